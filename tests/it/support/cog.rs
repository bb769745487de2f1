//! The real Cog server from PyPI, with the predictor of `tests/cog`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::Signal;

use super::process::own_address;
use super::python::installed;
use super::signal;

/// The port of a server.
const PORT: u16 = 5000;

/// A Cog server, which is stopped when dropped.
#[derive(Debug)]
pub(crate) struct Cog {
    child: Child,
    pub url: String,
}

impl Cog {
    /// Starts a server; it may take some seconds to become ready.
    pub(crate) fn start() -> Self {
        static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
        let programs = INSTALLED.get_or_init(|| installed("cog"));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cog");
        let address = own_address();
        // Run it behind a guard, so that no process remains if the test panics.
        let path = std::env::var("PATH").unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_orrery"))
            .args(["guard", "--parent", &std::process::id().to_string(), "--directory"])
            .arg(folder)
            // The server writes its outputs to a temporary folder, which the sandbox must allow.
            .arg("--write")
            .arg(std::env::temp_dir())
            .arg("--")
            .arg(programs.join("python"))
            .args(["-m", "cog.server.http", "--host", &address.to_string()])
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("PORT", PORT.to_string())
            .env("COG_PREDICT_TYPE_STUB", "predict.py:Predictor")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, url: format!("http://{address}:{PORT}") }
    }
}

impl Drop for Cog {
    fn drop(&mut self) {
        signal(self.child.id(), Signal::TERM);
        drop(self.child.wait());
    }
}
