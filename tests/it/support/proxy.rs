//! A reverse proxy in front of a service, with the configuration in `docs/examples/proxy`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orrery_app::Running;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::process::own_address;
use super::until;

/// Time limit of one request that checks whether a proxy forwards; the request is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The port of a proxy.
const PORT: u16 = 18443;
/// The name of the port that the service itself shares between all hosts, without a proxy.
const NONE: &str = "one-port";
/// The addresses used in the examples: the service's and the proxy's.
const SERVICE: &str = "127.0.0.1:8080";
const PROXY: &str = "ai.example.com";

/// A running proxy, which is stopped on drop.
pub(crate) struct Proxy {
    name: String,
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Proxy {
    /// Starts the proxy of this name in front of the service's shared port, if it has one; returns
    /// `None` for the port itself.
    ///
    /// The program must be in `target/proxies`, where `tests/one-port` puts it.
    pub(crate) async fn in_front(name: Option<&str>, running: &Running) -> Option<Self> {
        let name = name.filter(|name| *name != NONE)?;
        let service = running.one_port?;
        let top = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        // Traefik recognizes the format by the file's name.
        let is_yaml = Path::new(name).extension().is_some_and(|extension| extension == "yml");
        let at = folder.path().join(if is_yaml { "config.yml" } else { "config" });
        // Proxies cannot report a port that the system chose, so each has an address of its own.
        let address = SocketAddr::from((own_address(), PORT));
        let example = fs::read_to_string(top.join("docs/examples/proxy").join(name)).unwrap();
        let example = example.replace(SERVICE, &service.to_string());
        let (program, arguments, text) = match name {
            "nginx.conf" => {
                let example = example
                    .replace("listen 443 ssl;", &format!("listen {address};"))
                    .lines()
                    .filter(|line| !line.contains("ssl_"))
                    .collect::<Vec<_>>()
                    .join("\n");
                let text = format!(
                    "daemon off; pid pid; error_log stderr; worker_processes 1;\n\
                     events {{ worker_connections 512; }}\n\
                     http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
                     fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n{example}\n}}\n"
                );
                ("usr/sbin/nginx", vec!["-e", "stderr", "-p", ".", "-c", "config"], text)
            }
            "Caddyfile" => {
                // Any name, because tests also send other names.
                let (ip, port) = (address.ip(), address.port());
                let text = example.replace(PROXY, &format!("http://:{port}"));
                let text =
                    format!("{{\n admin off\n auto_https off\n default_bind {ip}\n}}\n{text}");
                let arguments = vec!["run", "--config", "config", "--adapter", "caddyfile"];
                ("usr/bin/caddy", arguments, text)
            }
            "traefik.yml" => {
                fs::write(folder.path().join("route.yml"), traefik_route(top, service)).unwrap();
                ("traefik", vec!["--configfile=config.yml"], traefik(&example, address))
            }
            other => panic!("there is no example of {other}"),
        };
        fs::write(at, text).unwrap();
        let program = top.join("target/proxies").join(program);
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(folder.path()).env("HOME", folder.path());
        let log = folder.path().join("log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut proxy = Self { name: name.to_owned(), child, address, _folder: folder };
        // Traefik listens before its route is ready.
        until("the proxy forwards", async || {
            if let Some(exit) = proxy.child.try_wait().unwrap() {
                panic!("{}: {exit}: {}", proxy.name, fs::read_to_string(&log).unwrap());
            }
            // A proxy that waits for the service forwards the request.
            tokio::time::timeout(ANSWER_TIMEOUT, forwards(address)).await.unwrap_or(Some(()))
        })
        .await;
        Some(proxy)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Returns `Some` if the proxy has its route. The status does not matter, because the tests of TLS
/// and of connection limits have services that do not answer this request.
async fn forwards(address: SocketAddr) -> Option<()> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    (answer.starts_with("HTTP/1.1 ") && !answer.starts_with("HTTP/1.1 404")).then_some(())
}

/// Returns Traefik's static configuration without TLS.
fn traefik(example: &str, address: SocketAddr) -> String {
    let (before, _resolvers) = example.split_once("certificatesResolvers").unwrap();
    before.replace(":443", &address.to_string()).replace("/etc/traefik/traefik-orrery", "route")
}

/// Returns Traefik's route for any name, without TLS.
fn traefik_route(top: &Path, service: SocketAddr) -> String {
    let example = fs::read_to_string(top.join("docs/examples/proxy/traefik-orrery.yml")).unwrap();
    let example = example.replace(&format!("Host(`{PROXY}`)"), "PathPrefix(`/`)");
    let plain =
        example.lines().filter(|line| !line.contains("tls:") && !line.contains("certResolver"));
    plain.collect::<Vec<_>>().join("\n").replace(SERVICE, &service.to_string())
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // On SIGTERM, nginx also stops its workers.
        let stopped = crate::support::signal(self.child.id(), rustix::process::Signal::TERM);
        if !stopped {
            let _killed = self.child.kill();
        }
        let _ended = self.child.wait();
    }
}
