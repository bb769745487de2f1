//! The real MLServer from PyPI, with the model of `tests/oip`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::process::own_address;
use super::python::installed;
use super::signal;

/// The port for HTTP; gRPC and metrics use the next ones.
const PORT: u16 = 8080;

/// An MLServer process, which is stopped when dropped.
#[derive(Debug)]
pub(crate) struct MlServer {
    child: Child,
    pub url: String,
    /// The folder with the server's settings.
    _folder: TempDir,
}

impl MlServer {
    /// Starts a server; it may take some seconds to become ready.
    pub(crate) fn start() -> Self {
        static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
        let programs = INSTALLED.get_or_init(|| installed("oip"));
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oip/echo");
        let folder = tempfile::tempdir().unwrap();
        let name = "model-settings.json";
        fs::copy(model.join(name), folder.path().join(name)).unwrap();
        let address = own_address();
        let settings = json!({
            "host": address, "http_port": PORT, "grpc_port": PORT + 1,
            "metrics_port": PORT + 2, "parallel_workers": 0, "debug": false,
        });
        fs::write(folder.path().join("settings.json"), settings.to_string()).unwrap();
        // Run it behind a guard, so that no process remains if the test panics.
        let path = std::env::var("PATH").unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_orrery"))
            .args(["guard", "--parent", &std::process::id().to_string(), "--directory"])
            .arg(folder.path())
            .arg("--write")
            .arg(std::env::temp_dir())
            .arg("--")
            .arg(programs.join("mlserver"))
            .args(["start", "."])
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("PYTHONPATH", model)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, url: format!("http://{address}:{PORT}"), _folder: folder }
    }
}

impl Drop for MlServer {
    fn drop(&mut self) {
        signal(self.child.id(), Signal::TERM);
        drop(self.child.wait());
    }
}
