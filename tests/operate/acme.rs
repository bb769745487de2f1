//! Certificates by ACME, from Pebble: Let's Encrypt's test authority, which validates names like a
//! real authority. The authority resolves names with its own DNS server, `pebble-challtestsrv`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::service::{Service, Setup};

const NAME: &str = "box.example";
const DIRECTORY_PORT: u16 = 14_000;
const MANAGEMENT_PORT: u16 = 15_000;
const DNS_PORT: u16 = 8053;
/// Time limit of one read from a connection.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A process that is killed at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The authority and its DNS server.
struct Authority {
    folder: PathBuf,
    setup: Setup,
    _directory: Process,
    _dns: Process,
}

/// Creates a service that orders its certificate; `folder` also contains the authority's files.
fn service(folder: &Path) -> Setup {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(folder.join("directory-ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let setup = Setup::new(folder, &folder.join("data"), "");
    let address = setup.base().ip();
    let more = format!(
        "[tls]\nmode = 'acme'\n[tls.acme]\ndirectory = 'https://{address}:{DIRECTORY_PORT}/dir'\n\
         directory_ca = 'directory-ca.pem'\ncontact = ['admin@box.example']\ndomains = ['{NAME}']\n"
    );
    let text = fs::read_to_string(setup.config()).unwrap();
    fs::write(setup.config(), format!("{text}{more}")).unwrap();
    let issuer = Issuer::from_params(&params, &key);
    let own = KeyPair::generate().unwrap();
    let issued = CertificateParams::new(vec![address.to_string()]).unwrap();
    let issued = issued.signed_by(&own, &issuer).unwrap();
    fs::write(folder.join("directory.pem"), issued.pem()).unwrap();
    fs::write(folder.join("directory.key"), own.serialize_pem()).unwrap();
    setup
}

impl Authority {
    /// Starts the authority. It issues certificates with this validity, and connects to `target`
    /// to validate names.
    fn start(folder: &Path, setup: &Setup, validity: Duration, target: SocketAddr) -> Self {
        let address = setup.base().ip();
        let config = json!({"pebble": {
            "listenAddress": format!("{address}:{DIRECTORY_PORT}"),
            "managementListenAddress": format!("{address}:{MANAGEMENT_PORT}"),
            "certificate": folder.join("directory.pem"),
            "privateKey": folder.join("directory.key"),
            "httpPort": 1,
            "tlsPort": target.port(),
            "externalAccountBindingRequired": false,
            "certificateValidityPeriod": validity.as_secs(),
        }});
        let path = folder.join("pebble.json");
        fs::write(&path, config.to_string()).unwrap();
        let log = File::create(folder.join("pebble.log")).unwrap();
        let dns = format!("{address}:{DNS_PORT}");
        let dns_server = Command::new("pebble-challtestsrv")
            .args(["-dns01", &dns, "-defaultIPv4", &target.ip().to_string(), "-defaultIPv6", ""])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", ""])
            .args(["-management", &format!("{address}:8055")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let directory = Command::new("pebble")
            .args(["-strict", "-dnsserver", &dns, "-config"])
            .arg(&path)
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let (directory, dns) = (Process(directory), Process(dns_server));
        let (folder, setup) = (folder.to_owned(), setup.clone());
        let started = Self { folder, setup, _directory: directory, _dns: dns };
        eventually("the authority answers", || started.try_root());
        started
    }

    /// Returns the root of the issued certificates, which the authority creates anew at each start.
    fn root(&self) -> CertificateDer<'static> {
        eventually("the authority's root", || self.try_root())
    }

    fn try_root(&self) -> Option<CertificateDer<'static>> {
        let address = SocketAddr::new(self.setup.base().ip(), MANAGEMENT_PORT);
        let ca = CertificateDer::from_pem_file(self.folder.join("directory-ca.pem")).unwrap();
        let name = address.ip().to_string();
        let mut connection = Connection::open(address, &name, ca).ok()?;
        CertificateDer::from_pem_slice(connection.get("/roots/0").ok()?.as_bytes()).ok()
    }

    /// Returns the number of orders that the authority has accepted. Requests would be more: the
    /// authority rejects some nonces at random, and the service repeats the request.
    fn orders(&self) -> usize {
        let log = fs::read_to_string(self.folder.join("pebble.log")).unwrap();
        log.lines().filter(|line| line.contains("Added order")).count()
    }
}

/// A TLS connection that verifies the server's certificate.
struct Connection {
    name: String,
    stream: StreamOwned<ClientConnection, TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr, name: &str, root: CertificateDer<'static>) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(root).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = ServerName::try_from(name.to_owned()).unwrap();
        let client = ClientConnection::new(Arc::new(config), server).unwrap();
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        let mut stream = StreamOwned::new(client, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { name: name.to_owned(), stream })
    }

    /// Returns the body of a response with the status 200.
    fn get(&mut self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.name);
        self.stream.write_all(request.as_bytes())?;
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_lowercase();
                assert!(head.starts_with("http/1.1 200"), "{text}");
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    return Ok(body.to_owned());
                }
            }
            let mut part = [0; 4096];
            let count = self.stream.read(&mut part)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read.extend_from_slice(&part[..count]);
        }
    }

    fn certificate(&self) -> Vec<u8> {
        self.stream.conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// Waits for a connection that verifies the service's certificate with the authority's root.
fn trusted(setup: &Setup, authority: &Authority) -> Connection {
    let root = authority.root();
    let mut connection = eventually("the service has the authority's certificate", || {
        Connection::open(setup.base(), NAME, root.clone()).ok()
    });
    connection.get("/ready").unwrap();
    connection
}

/// Starts the service, and waits until it serves a certificate, self-signed or not.
fn start(setup: &Setup) -> Service {
    let before = setup.log_since(0).len();
    let mut service = setup.spawn();
    eventually("the service is ready", || {
        assert!(service.ended().is_none(), "{}", setup.log_tail());
        setup.log_since(before).contains("service ready").then_some(())
    });
    service
}

/// Returns the only file with this name in the cache.
fn cached(setup: &Setup, name: &str) -> PathBuf {
    let folders = fs::read_dir(setup.data().join("acme")).unwrap();
    let mut found = folders.map(|entry| entry.unwrap().path().join(name));
    let only = found.next().unwrap();
    assert!(found.next().is_none());
    only
}

/// Returns the findings of `orrery doctor` about TLS.
fn doctor(setup: &Setup) -> Vec<String> {
    let (_, found, said) = setup.try_run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&found).unwrap_or_else(|_| panic!("{found}{said}"));
    let findings = report["findings"].as_array().unwrap().iter();
    let of_tls = findings.filter(|found| found["subject"] == "tls");
    of_tls.map(|found| format!("{} {}", found["verdict"], found["detail"])).collect()
}

const LONG: Duration = Duration::from_secs(90 * 24 * 60 * 60);

#[test]
#[ignore = "needs pebble: run tests/run"]
fn certificate_by_acme_survives_restarts_and_is_replaced_when_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let setup = service(folder.path());
    let authority = Authority::start(folder.path(), &setup, LONG, setup.base());
    let running = start(&setup);
    let first = trusted(&setup, &authority).certificate();
    for (path, mode) in [
        (cached(&setup, "certificate.pem"), 0o600),
        (cached(&setup, "account.json"), 0o600),
        (setup.data().join("acme"), 0o700),
    ] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
    }
    assert_eq!(authority.orders(), 1);
    let found = doctor(&setup);
    assert!(found[0].starts_with("\"good\"") && found[0].contains(NAME), "{found:?}");
    running.kill();

    let before = setup.log_since(0).len();
    let running = start(&setup);
    assert_eq!(trusted(&setup, &authority).certificate(), first);
    setup.run(&["reload"]);
    assert_eq!(authority.orders(), 1, "a restart orders nothing");
    assert!(!setup.log_since(before).contains("ordering certificate"));
    running.kill();

    let path = cached(&setup, "certificate.pem");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let before = setup.log_since(0).len();
    let _running = start(&setup);
    assert_ne!(trusted(&setup, &authority).certificate(), first);
    assert!(setup.log_since(before).contains(&path.display().to_string()));
    assert_eq!(authority.orders(), 2);

    // The authority forgets its accounts when it stops.
    drop(authority);
    let authority = Authority::start(folder.path(), &setup, LONG, setup.base());
    fs::remove_file(&path).unwrap();
    trusted(&setup, &authority);
    assert!(setup.log_since(before).contains("does not know the account"));
}

#[test]
#[ignore = "needs pebble: run tests/run"]
fn certificate_by_acme_is_renewed_while_connections_stay_open() {
    let folder = tempfile::tempdir().unwrap();
    let setup = service(folder.path());
    let validity = Duration::from_secs(24);
    let authority = Authority::start(folder.path(), &setup, validity, setup.base());
    let _running = start(&setup);
    let mut open = trusted(&setup, &authority);
    eventually("a new certificate is served", || {
        let now = trusted(&setup, &authority);
        (now.certificate() != open.certificate()).then_some(())
    });
    open.get("/ready").unwrap();
    eventually("the change is in the audit log", || {
        setup.run(&["audit", "list", "--json"]).contains("certificate.reload").then_some(())
    });
    // There are no further orders until the next renewal.
    assert!(authority.orders() <= 3, "{}", authority.orders());
}

#[test]
#[ignore = "needs pebble: run tests/run"]
fn authority_that_is_down_or_refuses_is_reported_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let setup = service(folder.path());
    let running = start(&setup);
    // Clients that trust the service's own authority can connect.
    let own = setup.data().join("tls/ca.pem");
    let own = || CertificateDer::from_pem_file(&own).unwrap();
    Connection::open(setup.base(), "localhost", own()).unwrap().get("/ready").unwrap();
    let found = eventually("doctor knows why", || {
        let found = doctor(&setup);
        found[0].contains("no new certificate").then_some(found)
    });
    assert!(found[0].starts_with("\"warning\""), "{found:?}");
    assert!(found[0].contains("refused"), "{found:?}");

    // The authority's DNS server resolves the name to an address where nothing listens.
    let nowhere = SocketAddr::new("127.0.0.1".parse().unwrap(), 1);
    let authority = Authority::start(folder.path(), &setup, LONG, nowhere);
    setup.run(&["reload"]);
    let found = eventually("doctor has the authority's reason", || {
        let found = doctor(&setup);
        found[0].contains("could not validate").then_some(found)
    });
    assert!(found[0].contains(NAME) && found[0].contains("attempt 1"), "{found:?}");
    assert_eq!(authority.orders(), 1);
    let read = || -> Value {
        serde_json::from_slice(&fs::read(cached(&setup, "failure.json")).unwrap()).unwrap()
    };
    let micros = |failure: &Value, key: &str| failure[key].as_i64().unwrap();
    let failure = read();
    let pause = micros(&failure, "next") - micros(&failure, "at");
    assert!((300_000_000..=375_000_000).contains(&pause), "{failure}");
    for _ in 0..3 {
        setup.run(&["reload"]);
    }
    running.kill();
    let running = start(&setup);
    // Wait longer than the interval between checks.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((authority.orders(), read()), (1, failure), "neither reloads nor restarts loop");
    // After the pause the service tries again.
    setup.shift_clock(400);
    eventually("the second attempt", || (read()["attempts"] == 2).then_some(()));
    assert_eq!(authority.orders(), 2);
    running.kill();
}
