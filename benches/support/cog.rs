//! Cog's own server, with an instant predictor.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::Killed;
use super::service::{free_ports, get};

/// The time limit for Cog's start, most of which is Python.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cog {
    pub address: SocketAddr,
    _server: Killed,
}

impl Cog {
    /// Starts Cog with a Python that has it installed. Cog's server starts its worker as plain
    /// `python`, so the folder of that Python comes first in the path.
    pub(crate) async fn start(python: &Path) -> Self {
        let address = free_ports(1)[0];
        let path = std::env::var("PATH").unwrap();
        let programs = python.parent().unwrap().display();
        let server = Command::new(python)
            .args(["-m", "cog.server.http", "--host", "127.0.0.1"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cog"))
            .env("PATH", format!("{programs}:{path}"))
            .env("PORT", address.port().to_string())
            .env("COG_PREDICT_TYPE_STUB", "echo.py:Predictor")
            .env("COG_MAX_CONCURRENCY", "64")
            .env("COG_LOG_LEVEL", "error")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let cog = Self { address, _server: Killed(server) };
        let deadline = Instant::now() + PATIENCE;
        while !get(address, "/health-check").is_some_and(|answer| answer.contains("READY")) {
            assert!(Instant::now() < deadline, "Cog does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cog
    }
}
