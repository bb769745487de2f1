//! The service as a separate process, for tests that kill and restart it, read its log, or shift
//! its clock.
//!
//! The service listens on a unique loopback address with fixed ports, so that a page can reconnect
//! after a restart.

use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::{until, within};

const BINARY: &str = env!("CARGO_BIN_EXE_orrery");
const HOSTS: [&str; 5] = ["base", "workflows", "flows", "agent", "dashboard"];
const FIRST_PORT: u16 = 8080;
const DASHBOARD_PORT: u16 = 8084;

pub(crate) struct Process {
    pub folder: TempDir,
    address: Ipv4Addr,
    child: Child,
}

/// Returns a loopback address for one program or service of one test process, starting at 127.128.0.0.
pub(super) fn own_address() -> Ipv4Addr {
    static MADE: AtomicU32 = AtomicU32::new(0);
    const OF_A_PROCESS: u32 = 1000;
    let place = (std::process::id() % 8_000) * OF_A_PROCESS + MADE.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::from(0x7F80_0000 + place)
}

impl Process {
    /// Starts the service. `prepare` receives the models folder before the start; `lines` are added
    /// to the configuration.
    pub(crate) async fn start(lines: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = own_address();
        let listens: String = (FIRST_PORT..)
            .zip(HOSTS)
            .map(|(port, host)| format!("hosts.{host}.listen = \"{address}:{port}\"\n"))
            .collect();
        let config = format!(
            "data_dir = \"data\"\nmodels_dir = \"models.d\"\n{listens}metrics.listen = \"{address}:9464\"\n\
             egress.allow = [\"127.0.0.0/8\"]\nlimits.disk_reserve = \"64MiB\"\n{lines}"
        );
        fs::create_dir(folder.path().join("models.d")).unwrap();
        fs::write(folder.path().join("config.toml"), config).unwrap();
        fs::write(folder.path().join("clock"), 0_i64.to_le_bytes()).unwrap();
        prepare(&folder.path().join("models.d"));
        let child = spawn(folder.path());
        let mut process = Self { folder, address, child };
        process.is_ready().await;
        process
    }

    /// Sends SIGKILL; returns when the process has exited.
    pub(crate) async fn kill(&mut self) {
        within("end of the process", self.child.kill()).await.unwrap();
    }

    /// Restarts the service at the same address.
    pub(crate) async fn start_again(&mut self) {
        self.child = spawn(self.folder.path());
        self.is_ready().await;
    }

    /// Returns the URL of the dashboard page at this path.
    pub(crate) fn page(&self, path: &str) -> String {
        format!("http://{}:{DASHBOARD_PORT}{path}", self.address)
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) async fn command(&self, arguments: &[&str]) -> String {
        let mut command = command(self.folder.path());
        let done = within("end of the command", command.args(arguments).output()).await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// Shifts the service's clock by this many seconds.
    pub(crate) fn shift_clock(&self, seconds: i64) {
        fs::write(self.folder.path().join("clock"), (seconds * 1_000_000).to_le_bytes()).unwrap();
        // The service caches the shift for 5 ms.
        std::thread::sleep(Duration::from_millis(10));
    }

    /// Returns the service's log, which spans all starts.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    async fn is_ready(&mut self) {
        let address = self.address;
        until("start of the process", async || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.log());
            let mut stream = TcpStream::connect((address, FIRST_PORT)).await.ok()?;
            let ask =
                format!("GET /ready HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            stream.write_all(ask.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["--config", "config.toml"]).current_dir(folder).stdin(Stdio::null());
    command.env_remove("ORRERY_CONFIG").env_remove("NOTIFY_SOCKET");
    command.env("ORRERY_TEST_CLOCK", folder.join("clock")).kill_on_drop(true);
    command
}

fn spawn(folder: &Path) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    command(folder).arg("serve").stdout(Stdio::null()).stderr(log).spawn().unwrap()
}
