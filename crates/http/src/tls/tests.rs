//! Tests of TLS with real handshakes: certificates created, kept, replaced, reloaded, rejected.

use std::os::unix::fs::PermissionsExt as _;

use rcgen::{CertificateParams, KeyPair};
use rustls::client::Resumption;
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, HandshakeKind, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use x509_parser::time::ASN1Time;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// 2026-11-20T09:30:00Z.
const NOW: Timestamp = Timestamp::from_micros(1_795_167_000_000_000);

fn days(count: u32) -> Timestamp {
    NOW.plus(DAY * count)
}

/// A client's clock that always shows the same time.
#[derive(Debug)]
struct At(Timestamp);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.unix_seconds()).unwrap();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// A client that trusts only the authority in one file.
#[derive(Clone)]
struct Client(ClientConfig);

/// Result of a handshake.
#[derive(Debug)]
struct Agreed {
    version: ProtocolVersion,
    protocol: Option<Vec<u8>>,
    kind: HandshakeKind,
    certificate: CertificateDer<'static>,
}

impl Client {
    fn trusting(authority: &Path, now: Timestamp) -> Self {
        Self::speaking(authority, now, &[&TLS13, &TLS12])
    }

    fn speaking(
        authority: &Path,
        now: Timestamp,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_details(provider, Arc::new(At(now)))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Self(config)
    }

    fn offering(mut self, protocols: &[&[u8]]) -> Self {
        self.0.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self
    }

    /// Performs a handshake over a pipe, and sends one word in each direction.
    async fn connect(&self, server: &Certificates, name: &str) -> Result<Agreed, String> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(self.0.clone()));
        let accept = async {
            let mut stream = server.acceptor().accept(far).await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            stream.write_all(&word).await?;
            stream.flush().await
        };
        let connect = async {
            let mut stream = connector.connect(name, near).await?;
            stream.write_all(b"word").await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            assert_eq!(&word, b"word");
            let session = stream.get_ref().1;
            std::io::Result::Ok(Agreed {
                version: session.protocol_version().unwrap(),
                protocol: session.alpn_protocol().map(<[u8]>::to_vec),
                kind: session.handshake_kind().unwrap(),
                certificate: session.peer_certificates().unwrap()[0].clone(),
            })
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        let agreed = connected.map_err(|error| error.to_string())?;
        accepted.map_err(|error| error.to_string())?;
        Ok(agreed)
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn made(dir: &TempDir, names: &[&str], now: Timestamp) -> Result<Certificates, Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Certificates::self_signed(dir.path(), &names, now)
}

fn read(dir: &TempDir, name: &str) -> Vec<u8> {
    fs::read(dir.path().join("tls").join(name)).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// An operator's files: a self-signed certificate and its key.
struct Files {
    dir: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(names: &[&str]) -> Self {
        let dir = folder();
        let certificate = dir.path().join("site.pem");
        let key = dir.path().join("site.key");
        let files = Self { dir, certificate, key };
        files.issue(names, NOW, days(90));
        files
    }

    fn issue(&self, names: &[&str], from: Timestamp, to: Timestamp) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = ASN1Time::from_timestamp(from.unix_seconds()).unwrap().to_datetime();
        params.not_after = ASN1Time::from_timestamp(to.unix_seconds()).unwrap().to_datetime();
        let key = KeyPair::generate().unwrap();
        fs::write(&self.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&self.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&self.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn open(&self) -> Result<Certificates, Error> {
        Certificates::files(&self.certificate, &self.key)
    }

    fn inspect(&self) -> Result<Summary, Error> {
        inspect(&self.certificate, &self.key, NOW)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Returns the certificate that the next handshake uses.
fn served(certificates: &Certificates) -> Vec<u8> {
    certificates.shared.current.certified.load().cert[0].to_vec()
}

#[tokio::test]
async fn tls_supports_1_2_and_1_3_with_both_alpn_protocols() {
    let dir = folder();
    let server = made(&dir, &[], NOW).unwrap();
    let authority = server.ca_path().unwrap();
    let versions: [(&'static SupportedProtocolVersion, ProtocolVersion); 2] =
        [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)];
    for (version, expected) in versions {
        let client = Client::speaking(authority, NOW, &[version]);
        let agreed = client.connect(&server, "localhost").await.unwrap();
        assert_eq!((agreed.version, agreed.protocol), (expected, None));
    }
    let both: [&[u8]; 2] = [b"http/1.1", b"h2"];
    for (offered, expected) in [(&both[..], "h2"), (&both[..1], "http/1.1")] {
        let client = Client::trusting(authority, NOW).offering(offered);
        let agreed = client.connect(&server, "localhost").await.unwrap();
        assert_eq!(agreed.version, ProtocolVersion::TLSv1_3);
        assert_eq!(agreed.protocol.as_deref(), Some(expected.as_bytes()));
    }
    let client = Client::trusting(authority, NOW).offering(&[b"spdy/3"]);
    assert!(client.connect(&server, "localhost").await.is_err());
}

#[tokio::test]
async fn certificate_covers_only_its_names() {
    let dir = folder();
    let extra = ["Box.LAN.", "*.apps.lan", "10.0.0.7", "FE80::0:1", "[fd00::7]"];
    let server = made(&dir, &extra, NOW).unwrap();
    let client = Client::trusting(server.ca_path().unwrap(), NOW);
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let machine = ServerName::try_from(machine.as_str()).map_or("localhost", |_name| &machine);
    let own = ["localhost", "127.0.0.1", "::1", machine];
    for name in own.into_iter().chain(["box.lan", "a.apps.lan", "10.0.0.7", "fe80::1", "fd00::7"]) {
        if let Err(error) = client.connect(&server, name).await {
            panic!("{name}: {error}");
        }
    }
    for name in ["box.example", "a.b.apps.lan", "10.0.0.8", "::2"] {
        let error = client.connect(&server, name).await.unwrap_err();
        assert!(error.contains("not valid for name"), "{name}: {error}");
    }
    let stranger = Client::trusting(made(&folder(), &[], NOW).unwrap().ca_path().unwrap(), NOW);
    let error = stranger.connect(&server, "localhost").await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[test]
fn certificate_refuses_invalid_names() {
    for name in
        ["", "a b", "exa_mple..com", "*.", "a.*.b", "Ünï", "https://box.lan", "[box]", "10.0.0.0/8"]
    {
        let error = made(&folder(), &[name], NOW).unwrap_err();
        assert!(matches!(error, Error::Name { .. }), "{name}: {error}");
    }
    let many: Vec<String> = (0..300).map(|number| format!("box{number}.lan")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(made(&folder(), &many, NOW), Err(Error::Names { .. })));
    assert!(made(&folder(), &many[..290], NOW).is_ok());
}

#[test]
fn tls_folder_and_keys_are_private_to_owner() {
    let dir = folder();
    made(&dir, &[], NOW).unwrap();
    let tls = dir.path().join("tls");
    assert_eq!(mode(&tls), 0o700);
    let mut names: Vec<_> =
        fs::read_dir(&tls).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["ca.key", "ca.pem", "server.key", "server.pem"]);
    for (name, expected) in
        [("ca.key", 0o600), ("server.key", 0o600), ("ca.pem", 0o600), ("server.pem", 0o600)]
    {
        assert_eq!(mode(&tls.join(name)), expected, "{name}");
    }
    // An open folder becomes private again, and a half-written key that others could read is
    // replaced.
    fs::set_permissions(&tls, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(tls.join("server.key.half"), "left by a kill").unwrap();
    fs::set_permissions(tls.join("server.key.half"), fs::Permissions::from_mode(0o666)).unwrap();
    made(&dir, &["box.lan"], NOW).unwrap();
    assert_eq!((mode(&tls), mode(&tls.join("server.key"))), (0o700, 0o600));
    assert!(!tls.join("server.key.half").exists());
}

#[tokio::test]
async fn certificate_is_kept_while_valid_and_reissued_otherwise() {
    let dir = folder();
    let first = made(&dir, &["box.lan"], NOW).unwrap();
    let client = Client::trusting(first.ca_path().unwrap(), days(366));
    let authority = read(&dir, "ca.pem");
    let certificate = read(&dir, "server.pem");
    // Valid for 397 days, renewed when 30 days are left.
    let mut authority = authority;
    for (names, now, is_kept) in [
        (vec!["BOX.lan", "127.0.0.1"], days(366), true),
        (vec!["box.lan", "shed.lan"], days(366), false),
        (vec!["box.lan"], days(366), false),
        (vec!["box.lan"], days(366 + 366), true),
        (vec!["box.lan"], days(366 + 368), false),
        // The clock was ahead when the certificate was issued, and has since been corrected.
        (vec!["box.lan"], NOW, false),
    ] {
        let before = read(&dir, "server.pem");
        let server = made(&dir, &names, now).unwrap();
        assert_eq!(read(&dir, "server.pem") == before, is_kept, "{names:?} at {now}");
        // An added name requires a reissued authority; a removed name does not.
        let is_added = names.contains(&"shed.lan");
        assert_eq!(read(&dir, "ca.pem") == authority, !is_added, "{names:?} at {now}");
        authority = read(&dir, "ca.pem");
        let client = Client::trusting(server.ca_path().unwrap(), now);
        client.connect(&server, "box.lan").await.unwrap();
    }
    assert_ne!(read(&dir, "server.pem"), certificate);
    // An older instance serves its own certificate until it reloads.
    assert!(client.connect(&first, "box.lan").await.is_ok());
}

#[tokio::test]
async fn ca_certificate_is_renewed_with_same_key_and_name() {
    let dir = folder();
    let server = made(&dir, &[], NOW).unwrap();
    let kept = dir.path().join("given-to-a-client.pem");
    fs::copy(server.ca_path().unwrap(), &kept).unwrap();
    let old = fs::read(&kept).unwrap();
    // A certificate that is lost or about to expire is reissued with the same key and name.
    fs::remove_file(server.ca_path().unwrap()).unwrap();
    for now in [NOW, days(18 * 365 + 1)] {
        let server = made(&dir, &[], now).unwrap();
        assert_ne!(read(&dir, "ca.pem"), old);
        for authority in [&kept, server.ca_path().unwrap()] {
            Client::trusting(authority, now).connect(&server, "localhost").await.unwrap();
        }
    }
    let renewed = read(&dir, "ca.pem");
    made(&dir, &[], days(18 * 365 + 500)).unwrap();
    assert_eq!(read(&dir, "ca.pem"), renewed);
}

#[tokio::test]
async fn certificate_recovers_after_wrong_clock() {
    for wrong in [Timestamp::from_micros(5_000_000), days(10 * 365)] {
        let dir = folder();
        let server = made(&dir, &[], wrong).unwrap();
        let given = read(&dir, "ca.pem");
        server.reload(NOW).unwrap();
        let authority = server.ca_path().unwrap();
        Client::trusting(authority, NOW).connect(&server, "localhost").await.unwrap();
        // The authority that clients installed in between stays valid.
        assert_eq!(read(&dir, "ca.pem"), given);
        let chain = pair::chain(authority).unwrap();
        let now = ASN1Time::from_timestamp(NOW.unix_seconds()).unwrap();
        assert!(pair::parse(&chain[0], authority).unwrap().validity().is_valid_at(now));
    }
}

#[tokio::test]
async fn certificate_of_other_ca_is_reissued() {
    let dir = folder();
    let server = made(&dir, &[], NOW).unwrap();
    let authority = server.ca_path().unwrap();
    let key = dir.path().join("tls/ca.key");
    let own_key = || KeyPair::from_pem(&fs::read_to_string(&key).unwrap()).unwrap();
    let own_name = authority::authority_name(&own_key());
    let other_name = rcgen::DistinguishedName::new();
    // Authorities with the same name but another key, and with the same key but another name.
    for (name, signer) in [(own_name, KeyPair::generate().unwrap()), (other_name, own_key())] {
        let before = (fs::read(authority).unwrap(), fs::read(&key).unwrap(), served(&server));
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        fs::write(authority, params.self_signed(&signer).unwrap().pem()).unwrap();
        fs::write(&key, signer.serialize_pem()).unwrap();
        server.reload(NOW).unwrap();
        assert_ne!(served(&server), before.2);
        Client::trusting(authority, NOW).connect(&server, "localhost").await.unwrap();
        fs::write(authority, before.0).unwrap();
        fs::write(&key, before.1).unwrap();
        server.reload(NOW).unwrap();
    }
}

#[test]
fn tls_poll_retries_after_transient_failure() {
    let files = Files::new(&["box.lan"]);
    let server = files.open().unwrap();
    server.poll(NOW);
    server.looked().failure = Some("too many open files".to_owned());
    server.poll(NOW);
    assert_eq!(server.looked().failure, None);
}

#[test]
fn ca_key_loss_matters_only_when_reissuing() {
    let dir = folder();
    made(&dir, &[], NOW).unwrap();
    let key = dir.path().join("tls/ca.key");
    fs::remove_file(&key).unwrap();
    made(&dir, &[], NOW).unwrap();
    let error = made(&dir, &["box.lan"], NOW).unwrap_err().to_string();
    assert!(error.contains(&key.display().to_string()) && error.contains("put it back"), "{error}");
    // Another authority's key cannot sign under this authority's name.
    fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = made(&dir, &["box.lan"], NOW).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    assert!(made(&dir, &[], NOW).is_ok());
}

#[tokio::test]
async fn certificate_is_reissued_after_crash_or_foreign_files() {
    let dir = folder();
    made(&dir, &[], NOW).unwrap();
    let other = folder();
    made(&other, &[], NOW).unwrap();
    let copy = |name: &str| {
        let from = other.path().join("tls").join(name);
        let to = dir.path().join("tls").join(name);
        fs::copy(from, to).unwrap();
    };
    let damages: [&dyn Fn(); 5] = [
        &|| copy("server.key"),
        &|| ["server.key", "server.pem"].into_iter().for_each(copy),
        &|| fs::remove_file(dir.path().join("tls/server.pem")).unwrap(),
        &|| fs::write(dir.path().join("tls/server.key"), "").unwrap(),
        &|| fs::write(dir.path().join("tls/server.pem"), "-----BEGIN CERTIFICATE-----").unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        damage();
        let server = made(&dir, &[], NOW).unwrap();
        let client = Client::trusting(server.ca_path().unwrap(), NOW);
        if let Err(error) = client.connect(&server, "localhost").await {
            panic!("damage {number}: {error}");
        }
    }
    // A damaged authority is not replaced: clients would reject a new one.
    fs::write(dir.path().join("tls/ca.pem"), "no certificate").unwrap();
    assert!(matches!(made(&dir, &[], NOW), Err(Error::NoCertificate { .. })));
}

#[tokio::test]
async fn tls_reload_ignores_broken_files() {
    let files = Files::new(&["box.lan"]);
    let server = files.open().unwrap();
    assert_eq!(server.ca_path(), None);
    let acceptor_holder = server.clone();
    let first = served(&server);
    let client = Client::trusting(&files.certificate, NOW);
    let agreed = client.connect(&acceptor_holder, "box.lan").await.unwrap();
    assert_eq!(agreed.certificate.to_vec(), first);

    let breakages: [&dyn Fn(); 4] = [
        &|| fs::write(&files.key, "").unwrap(),
        &|| fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap(),
        &|| fs::write(&files.certificate, "half of it").unwrap(),
        &|| fs::remove_file(&files.certificate).unwrap(),
    ];
    for breakage in breakages {
        breakage();
        assert!(server.reload(NOW).is_err());
        assert_eq!(served(&server), first);
        client.connect(&acceptor_holder, "box.lan").await.unwrap();
    }

    files.issue(&["box.lan"], NOW, days(90));
    server.reload(NOW).unwrap();
    assert_ne!(served(&server), first);
    let client = Client::trusting(&files.certificate, NOW);
    let agreed = client.connect(&acceptor_holder, "box.lan").await.unwrap();
    assert_eq!(agreed.certificate.to_vec(), served(&server));
}

#[tokio::test]
async fn tls_session_is_resumed_by_returning_client() {
    let dir = folder();
    let server = made(&dir, &[], NOW).unwrap();
    for version in [&TLS12, &TLS13] {
        let client = Client::speaking(server.ca_path().unwrap(), NOW, &[version]);
        let first = client.connect(&server, "localhost").await.unwrap();
        let second = client.connect(&server, "localhost").await.unwrap();
        assert_eq!((first.kind, second.kind), (HandshakeKind::Full, HandshakeKind::Resumed));
    }
}

#[tokio::test(start_paused = true)]
async fn tls_watch_reloads_changes_and_survives_broken_files() {
    let files = Files::new(&["box.lan"]);
    let server = files.open().unwrap();
    let tasks = Tasks::new();
    let clock = Clock::scripted(NOW);
    server.watch(&tasks, &clock, |_| {});
    // The clock is paused: it advances only when all tasks and their threads are idle.
    let two_looks = || tokio::time::sleep(2 * POLL_EVERY);
    two_looks().await;
    let first = served(&server);

    fs::write(&files.key, "broken").unwrap();
    two_looks().await;
    assert_eq!(served(&server), first);
    assert!(server.looked().failure.as_ref().unwrap().contains("site.key"));

    files.issue(&["box.lan"], NOW, days(90));
    two_looks().await;
    assert_eq!(served(&server), pair::chain(&files.certificate).unwrap()[0].to_vec());
    assert_ne!(served(&server), first);
    assert_eq!(server.looked().failure, None);
    assert_eq!(server.looked().concerns, []);

    clock.advance(DAY * 91);
    two_looks().await;
    assert_eq!(server.looked().concerns, [Concern::Ended { not_after: days(90) }]);

    tasks.stop();
    assert!(tasks.ended(POLL_EVERY).await);
}

#[tokio::test(start_paused = true)]
async fn tls_watch_renews_due_certificate_or_keeps_serving_old() {
    let dir = folder();
    let server = made(&dir, &[], NOW).unwrap();
    let tasks = Tasks::new();
    let clock = Clock::scripted(NOW);
    server.watch(&tasks, &clock, |_| {});
    let two_looks = || tokio::time::sleep(2 * POLL_EVERY);
    two_looks().await;
    let first = served(&server);
    clock.advance(DAY * 366);
    two_looks().await;
    assert_eq!(served(&server), first);

    // The key is missing, but the certificate being served is valid for another month.
    let key = dir.path().join("tls/ca.key");
    let away = dir.path().join("away");
    fs::rename(&key, &away).unwrap();
    clock.advance(DAY * 2);
    two_looks().await;
    assert_eq!(served(&server), first);
    assert!(server.looked().failure.as_ref().unwrap().contains("ca.key"));

    fs::rename(&away, &key).unwrap();
    two_looks().await;
    assert_ne!(served(&server), first);
    let client = Client::trusting(server.ca_path().unwrap(), clock.now());
    client.connect(&server, "localhost").await.unwrap();
    tasks.stop();
    assert!(tasks.ended(POLL_EVERY).await);
}

#[test]
fn certificate_summary_lists_names_validity_and_concerns() {
    let files = Files::new(&["box.lan", "10.0.0.7", "fe80::1"]);
    let summary = files.inspect().unwrap();
    assert_eq!(summary.names, ["box.lan", "10.0.0.7", "fe80::1"]);
    assert_eq!((summary.not_before, summary.not_after), (NOW, days(90)));
    assert_eq!(summary.concerns, []);

    let at = |now| inspect(&files.certificate, &files.key, now).unwrap().concerns;
    let not_after = days(90);
    assert_eq!(at(days(80)), []);
    assert_eq!(at(days(81)), [Concern::EndsSoon { not_after }]);
    assert_eq!(at(days(91)), [Concern::Ended { not_after }]);
    let early = at(Timestamp::from_micros(0));
    assert_eq!(early, [Concern::NotYetValid { not_before: NOW }]);
    assert!(early[0].is_refused() && Concern::Ended { not_after }.is_refused());
    assert!(!Concern::EndsSoon { not_after }.is_refused());
    let text = format!("the certificate {}", Concern::Ended { not_after });
    assert_eq!(text, "the certificate expired at 2027-02-18T09:30:00.000Z: renew it");

    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(at(NOW), [Concern::OpenKey { mode: 0o644 }]);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(at(NOW), []);
    files.issue(&[], NOW, days(90));
    assert_eq!(at(NOW), [Concern::NoNames]);
}

#[test]
fn tls_errors_name_file_and_remedy() {
    const OLD_ENCRYPTED: &str = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                                 DEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    const ENCRYPTED: &str =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    const NO_KEY: &str = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    const BAD_BASE64: &str = "-----BEGIN PRIVATE KEY-----\n?secret?\n-----END PRIVATE KEY-----\n";
    const NO_X509: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let check = |damage: &dyn Fn(&Files), file: &str, expected: &str| {
        let files = Files::new(&["box.lan"]);
        damage(&files);
        let error = files.inspect().unwrap_err().to_string();
        assert!(error.contains(&files.path(file).display().to_string()), "{file}: {error}");
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.contains("secret") && !error.contains("c2VjcmV0"), "{error}");
    };
    let key = |text: &'static str| move |files: &Files| fs::write(&files.key, text).unwrap();
    check(&key(OLD_ENCRYPTED), "site.key", "decrypt it with openssl pkey");
    check(&key(ENCRYPTED), "site.key", "decrypt it with openssl pkey");
    check(&key(NO_KEY), "site.key", "cannot be used");
    check(&key(BAD_BASE64), "site.key", "not well-formed PEM");
    check(&key(""), "site.key", "holds no private key");
    check(&|files| drop(fs::copy(&files.certificate, &files.key)), "site.key", "no private key");
    check(&|files| drop(fs::copy(&files.key, &files.certificate)), "site.pem", "no certificate");
    check(&|files| fs::write(&files.certificate, NO_X509).unwrap(), "site.pem", "cannot be served");
    check(&|files| fs::remove_file(&files.key).unwrap(), "site.key", "No such file");
    let large = |files: &Files| fs::write(&files.key, vec![b'\n'; (1 << 20) + 1]).unwrap();
    check(&large, "site.key", "larger than 1048576 bytes");
    let no_file = |files: &Files| {
        fs::remove_file(&files.key).unwrap();
        fs::create_dir(&files.key).unwrap();
    };
    check(&no_file, "site.key", "is not a file");
    let other_key = |files: &Files| {
        fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    };
    check(&other_key, "site.key", "does not belong to the first certificate");
    // A chain in the wrong order.
    let other_first = |files: &Files| {
        let own = fs::read_to_string(&files.certificate).unwrap();
        let other = fs::read_to_string(Files::new(&["other"]).certificate).unwrap();
        fs::write(&files.certificate, other + &own).unwrap();
    };
    check(&other_first, "site.pem", "put the server's own certificate first");
}

#[test]
fn tls_unwritable_folder_is_named_in_error() {
    let dir = folder();
    fs::write(dir.path().join("tls"), "a file").unwrap();
    let error = made(&dir, &[], NOW).unwrap_err().to_string();
    assert!(error.contains(&dir.path().join("tls").display().to_string()), "{error}");
}

/// Writes an authority that uses the folder's key, with these constraints or without constraints.
fn write_authority(dir: &TempDir, permitted: Option<&[&str]>) {
    let key = dir.path().join("tls/ca.key");
    let key = KeyPair::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = authority::authority_name(&key);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.name_constraints = permitted.map(|names| {
        constraints::permitting(&names.iter().map(|name| (*name).to_owned()).collect())
    });
    let pem = params.self_signed(&key).unwrap().pem();
    fs::write(dir.path().join("tls/ca.pem"), pem).unwrap();
}

#[tokio::test]
async fn ca_name_constraints_reject_other_names() {
    let dir = folder();
    let server = made(&dir, &["box.lan", "*.wild.lan"], NOW).unwrap();
    let authority = server.ca_path().unwrap();
    let client = Client::trusting(authority, NOW);
    for name in ["box.lan", "any.wild.lan", "localhost", "127.0.0.1"] {
        client.connect(&server, name).await.unwrap();
    }
    let chain = pair::chain(authority).unwrap();
    let signer = fs::read_to_string(dir.path().join("tls/ca.key")).unwrap();
    let signer = KeyPair::from_pem(&signer).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&chain[0], signer).unwrap();
    for (names, is_permitted) in [
        (vec!["box.lan"], true),
        (vec!["bank.example"], false),
        (vec!["box.lan", "bank.example"], false),
        (vec!["wild.lan.example"], false),
        (vec!["10.0.0.1"], false),
        (vec!["::2"], false),
    ] {
        let key = KeyPair::generate().unwrap();
        let all: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let issued = CertificateParams::new(all).unwrap().signed_by(&key, &issuer).unwrap();
        let certificate = dir.path().join("other.pem");
        let private = dir.path().join("other.key");
        fs::write(&certificate, issued.pem()).unwrap();
        fs::write(&private, key.serialize_pem()).unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
        let other = Certificates::files(&certificate, &private).unwrap();
        let connected = client.connect(&other, names[0]).await;
        assert_eq!(connected.is_ok(), is_permitted, "{names:?}: {connected:?}");
    }
}

#[tokio::test]
async fn ca_without_constraints_is_upgraded_for_existing_clients() {
    let dir = folder();
    made(&dir, &["box.lan"], NOW).unwrap();
    write_authority(&dir, None);
    let given = dir.path().join("given-to-a-client.pem");
    fs::copy(dir.path().join("tls/ca.pem"), &given).unwrap();
    let key = read(&dir, "ca.key");
    let server = made(&dir, &["box.lan"], NOW).unwrap();
    assert_ne!(read(&dir, "ca.pem"), fs::read(&given).unwrap());
    assert_eq!(read(&dir, "ca.key"), key);
    for authority in [&given, server.ca_path().unwrap()] {
        Client::trusting(authority, NOW).connect(&server, "box.lan").await.unwrap();
    }
    let written = read(&dir, "ca.pem");
    made(&dir, &["box.lan"], NOW).unwrap();
    assert_eq!(read(&dir, "ca.pem"), written, "it is written once");
    // A foreign authority, or an authority whose key is stored elsewhere, is left unchanged.
    write_authority(&dir, None);
    let bare = read(&dir, "ca.pem");
    fs::rename(dir.path().join("tls/ca.key"), dir.path().join("away")).unwrap();
    made(&dir, &["box.lan"], NOW).unwrap();
    assert_eq!(read(&dir, "ca.pem"), bare);
}

#[tokio::test]
async fn certificate_omits_machine_name_not_permitted_by_ca() {
    let dir = folder();
    made(&dir, &["box.lan"], NOW).unwrap();
    let permitted = ["127.0.0.1", "::1", "box.lan", "localhost"];
    write_authority(&dir, Some(&permitted));
    let authority = read(&dir, "ca.pem");
    let server = made(&dir, &["box.lan"], NOW).unwrap();
    assert_eq!(read(&dir, "ca.pem"), authority, "clients would refuse the box");
    let names =
        inspect(&dir.path().join("tls/server.pem"), &dir.path().join("tls/server.key"), NOW);
    assert_eq!(names.unwrap().names, permitted);
    Client::trusting(server.ca_path().unwrap(), NOW).connect(&server, "box.lan").await.unwrap();
    // A configured name justifies reissuing the authority, although clients with the previous
    // authority then reject the box.
    let given = dir.path().join("given-to-a-client.pem");
    fs::copy(server.ca_path().unwrap(), &given).unwrap();
    let server = made(&dir, &["box.lan", "shed.lan"], NOW).unwrap();
    let refused = Client::trusting(&given, NOW).connect(&server, "box.lan").await.unwrap_err();
    assert!(refused.contains("NameConstraint"), "{refused}");
    Client::trusting(server.ca_path().unwrap(), NOW).connect(&server, "shed.lan").await.unwrap();
}
