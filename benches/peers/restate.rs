//! Restate: its server and a service of three steps, on a fresh store. Restate uses its default
//! ports (8080, 9070 and 5122), which must be free.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support;
use super::support::client::{self, Connection};
use super::support::process::Killed;
use super::support::service::{free_ports, get};

const INGRESS: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9070";
const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: &str = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server";

/// A running Restate server with its service.
pub(crate) struct Restate {
    server: Killed,
    service: Killed,
    _folder: tempfile::TempDir,
}

impl Restate {
    /// Returns the address for calls.
    pub(crate) fn ingress() -> SocketAddr {
        INGRESS.parse().unwrap()
    }

    /// Returns the process ids of the server and the service.
    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.server.0.id(), self.service.0.id()]
    }

    /// Starts Restate; returns `None` if it is not installed.
    pub(crate) async fn start(stub: SocketAddr) -> Option<Self> {
        let installed = PathBuf::from(std::env::var_os("ORRERY_PEERS_RESTATE")?);
        let node = PathBuf::from(std::env::var_os("ORRERY_PEERS_NODE")?);
        let folder = support::folder();
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/restate/service.mjs");
        std::fs::copy(script, folder.path().join("service.mjs")).unwrap();
        symlink(installed.join("node_modules"), folder.path().join("node_modules")).unwrap();
        let port = free_ports(1)[0].port().to_string();
        let mut service = Command::new(node);
        service.arg("service.mjs").arg(stub.to_string()).arg(&port).current_dir(folder.path());
        service.env("NODE_ENV", "production");
        let mut server = Command::new(installed.join(SERVER));
        server
            .args(["--no-logo", "--listen-mode", "tcp", "--bind-ip", "127.0.0.1"])
            .args(["--advertised-host", "127.0.0.1", "--node-name", "bench", "--base-dir"])
            .arg(folder.path().join("data"))
            .env("RESTATE_DISABLE_TELEMETRY", "true");
        let (server, service) = (spawn(server), spawn(service));
        let deadline = Instant::now() + PATIENCE;
        let is_up = |address: &str, path: &str| {
            let answer = get(address.parse().unwrap(), path);
            answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        while !(is_up(ADMIN, "/health") && is_up(INGRESS, "/restate/health")) {
            assert!(Instant::now() < deadline, "Restate does not become ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let body = format!(r#"{{"uri":"http://127.0.0.1:{port}"}}"#);
        let admin: SocketAddr = ADMIN.parse().unwrap();
        Connection::open(admin).await.ask(&client::post(admin, "/deployments", "", &body)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Some(Self { server, service, _folder: folder })
    }
}

fn spawn(mut command: Command) -> Killed {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Killed(command.spawn().unwrap())
}
