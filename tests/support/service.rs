//! The real binary, on its own data folder and loopback address.
//!
//! Each service listens on a unique address 127.x.y.z, on the default ports: tests do not have to
//! find free ports, and no other process can take a port between two starts.

use std::fs::{self, File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::http::{Client, Message};
use super::{eventually, signal};

const BINARY: &str = env!("CARGO_BIN_EXE_orrery");
const BASE_PORT: u16 = 8080;
const FLOWS_PORT: u16 = 8082;
const AGENT_PORT: u16 = 8083;
const METRICS_PORT: u16 = 9464;
/// Log lines shown in a failure.
const SHOWN_LINES: usize = 25;

/// Returns the configuration with a small `limits.disk_reserve`, added to its `[limits]` table if
/// it has one.
pub(crate) fn with_small_reserve(text: &str) -> String {
    const LIMITS: &str = "[limits]\n";
    const RESERVE: &str = "disk_reserve = \"64MiB\"\n";
    match text.split_once(LIMITS) {
        Some((before, after)) => format!("{before}{LIMITS}{RESERVE}{after}"),
        None => format!("{text}{LIMITS}{RESERVE}"),
    }
}

/// All settings for a start; a test may start the service many times.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    folder: PathBuf,
    address: Ipv4Addr,
    config: PathBuf,
    data: PathBuf,
    /// The file with the clock error in microseconds; see [`Setup::shift_clock`].
    clock: PathBuf,
    starts: Arc<AtomicU32>,
    /// File descriptor limit of the service; `None` for the machine's default.
    descriptors: Option<u32>,
}

impl Setup {
    /// Creates a setup. `folder` contains the configuration, manifests and log; the service writes
    /// all other files to `data`. Webhooks to loopback are allowed and retried quickly, and the
    /// disk reserve is small, because the default may exceed the free space of a build machine.
    /// `more` is appended to the configuration.
    pub(crate) fn new(folder: &Path, data: &Path, more: &str) -> Self {
        let models = folder.join("models.d");
        fs::create_dir_all(&models).unwrap();
        let address = own_address();
        let host =
            |name: &str, port: u16| format!("[hosts.{name}]\nlisten = \"{address}:{port}\"\n");
        let hosts: String = ["base", "workflows", "flows", "agent", "dashboard"]
            .iter()
            .zip(BASE_PORT..)
            .map(|(name, port)| host(name, port))
            .collect();
        // Use a relative path if possible, as people usually do.
        let written = data.strip_prefix(folder).unwrap_or(data);
        let text = format!(
            "data_dir = {written:?}\nmodels_dir = \"models.d\"\n{hosts}\
             [metrics]\nlisten = \"{address}:{METRICS_PORT}\"\n\
             [egress]\nallow = [\"127.0.0.0/8\"]\n\
             [webhooks]\nschedule = [\"100ms\", \"200ms\", \"400ms\", \"1s\", \"2s\", \"4s\"]\n\
             {more}"
        );
        let text = with_small_reserve(&text);
        let config = folder.join(format!("config-{address}.toml"));
        fs::write(&config, text).unwrap();
        let folder = folder.to_owned();
        let data = data.to_owned();
        let clock = folder.join(format!("clock-{address}"));
        fs::write(&clock, 0_i64.to_le_bytes()).unwrap();
        let starts = Arc::default();
        Self { folder, address, config, data, clock, starts, descriptors: None }
    }

    /// Shifts the service's clock by this many seconds, immediately and at its next starts. Works
    /// only in a binary with debug assertions.
    pub(crate) fn shift_clock(&self, seconds: i64) {
        let file = OpenOptions::new().write(true).open(&self.clock).unwrap();
        file.write_all_at(&(seconds * 1_000_000).to_le_bytes(), 0).unwrap();
        // The service caches the shift for 5 ms.
        std::thread::sleep(Duration::from_millis(10));
    }

    /// Limits the number of file descriptors of services started later.
    #[must_use]
    pub(crate) fn with_descriptors(self, most: u32) -> Self {
        Self { descriptors: Some(most), ..self }
    }

    /// Returns the counter of the service's starts.
    pub(crate) fn starts(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.starts)
    }

    /// Adds a model; call it before a start.
    pub(crate) fn add_model(&self, name: &str, manifest: &str) {
        fs::write(self.folder.join("models.d").join(format!("{name}.toml")), manifest).unwrap();
    }

    /// Returns the service's data folder.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Returns the configuration file.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Starts the process without waiting for it to be ready.
    pub(crate) fn spawn(&self) -> Service {
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        self.starts.fetch_add(1, Ordering::SeqCst);
        let child = self.command(&["serve"]).stderr(log).stdout(Stdio::null()).spawn().unwrap();
        Service { child, setup: self.clone() }
    }

    /// Starts the process alone in a control group, without waiting for it to be ready.
    pub(crate) fn spawn_in(&self, group: &Path) -> Service {
        let log = OpenOptions::new().create(true).append(true).open(self.log()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(group);
        command.arg(BINARY).arg("--config").arg(self.config_name()).arg("serve");
        command.current_dir(&self.folder).env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        let child = command.stderr(log).stdout(Stdio::null()).spawn().unwrap();
        Service { child, setup: self.clone() }
    }

    /// Starts the service and waits until it is ready.
    pub(crate) fn start(&self) -> Service {
        let mut service = self.spawn();
        service.wait_until_ready();
        service
    }

    /// Creates a key of the organization `default`; the service must be running.
    pub(crate) fn create_key(&self) -> String {
        self.run(&["key", "create", "--name", "test"]).trim().to_owned()
    }

    /// Runs a command that must succeed; returns its standard output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let done = self.command(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// Runs a command that must fail; returns its standard error.
    pub(crate) fn fail(&self, arguments: &[&str]) -> String {
        let done = self.command(arguments).output().unwrap();
        assert!(!done.status.success(), "{arguments:?} did not fail");
        String::from_utf8(done.stderr).unwrap()
    }

    /// Returns a client of the base host.
    pub(crate) fn client(&self, key: &str) -> Client {
        Client::new(self.at(BASE_PORT), key)
    }

    /// Returns a client of the older workflows host.
    pub(crate) fn flows(&self, key: &str) -> Client {
        Client::new(self.at(FLOWS_PORT), key)
    }

    /// Returns a client of the agent host.
    pub(crate) fn agent(&self, key: &str) -> Client {
        Client::new(self.at(AGENT_PORT), key)
    }

    /// Returns the address of the base host.
    pub(crate) fn base(&self) -> SocketAddr {
        self.at(BASE_PORT)
    }

    /// Returns the value of a gauge or counter without labels from `GET /metrics`.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        value_of(&self.metrics()?, name)
    }

    fn metrics(&self) -> Option<String> {
        Some(Client::new(self.at(METRICS_PORT), "").get("/metrics").ok()?.text())
    }

    /// Returns the number of executions that are running or queued in a lane. Both numbers come
    /// from one scrape, because queued executions may start in between.
    pub(crate) fn unfinished(&self) -> Option<f64> {
        let metrics = self.metrics()?;
        let running = value_of(&metrics, "orrery_executions_running")?;
        Some(running + value_of(&metrics, "orrery_executions_queued")?)
    }

    /// Returns the log of all starts, without its first `length` bytes.
    pub(crate) fn log_since(&self, length: usize) -> String {
        let bytes = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(length..).unwrap_or_default()).into_owned()
    }

    /// Runs a command; returns whether it succeeded, and its output.
    pub(crate) fn try_run(&self, arguments: &[&str]) -> (bool, String, String) {
        let done = self.command(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.success(), text(&done.stdout), text(&done.stderr))
    }

    /// Returns the last lines of the service's log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("log-{}", self.address))
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.address), port)
    }

    /// Returns the configuration's path relative to the working folder of commands.
    fn config_name(&self) -> &Path {
        self.config.strip_prefix(&self.folder).unwrap_or(&self.config)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.descriptors {
            None => Command::new(BINARY),
            Some(most) => {
                let mut command = Command::new("sh");
                command
                    .args(["-c", &format!("ulimit -n {most} && exec \"$@\"")])
                    .args(["sh", BINARY]);
                command
            }
        };
        command.arg("--config").arg(self.config_name()).args(arguments).current_dir(&self.folder);
        command.env_remove("ORRERY_CONFIG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        command.env("ORRERY_TEST_CLOCK", &self.clock);
        command
    }
}

/// A running service, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    setup: Setup,
}

impl Service {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `GET /ready` returns 200; fails immediately if the process exits instead.
    pub(crate) fn wait_until_ready(&mut self) {
        let ready = eventually("the service is ready", || match self.ended() {
            Some(status) => Some(Err(status)),
            None => self.is_ready().then_some(Ok(())),
        });
        if let Err(status) = ready {
            panic!("the service did not start ({status}):\n{}", self.setup.log_tail());
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        let answer = Client::new(self.setup.at(BASE_PORT), "").get("/ready");
        answer.is_ok_and(|answer: Message| answer.status() == 200)
    }

    /// Returns the exit status if the process has exited by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends SIGKILL; returns when the process has exited.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Like `kill`, but keeps the value for later checks.
    pub(crate) fn kill_and_keep(&mut self) {
        drop(self.child.kill());
        eventually("the process dies", || self.ended());
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Sends SIGSTOP; returns once all threads have stopped, including those in a disk write.
    pub(crate) fn freeze(&self) {
        let pid = self.pid();
        assert!(signal(pid, Signal::STOP));
        eventually("every thread stands still", || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let mut states = threads.filter_map(|thread| {
                let stat = fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
                stat.rsplit(") ").next()?.chars().next()
            });
            states.all(|state| state == 'T').then_some(())
        });
    }

    fn end(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("the service's log ends with:\n{}", self.setup.log_tail());
        }
    }
}

fn value_of(metrics: &str, name: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.parse().ok()
}

/// Returns a loopback address for one service of one test process.
pub(crate) fn own_address() -> Ipv4Addr {
    static MADE: AtomicU32 = AtomicU32::new(0);
    const OF_A_PROCESS: u32 = 250;
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    assert!(made < OF_A_PROCESS, "a test process has {OF_A_PROCESS} addresses");
    // Start at 127.1.0.0: other tests use the lower addresses.
    let place = 0x1_0000 + (std::process::id() % 60_000) * OF_A_PROCESS + made;
    Ipv4Addr::from(0x7F00_0000 + place)
}

/// Creates a file that occupies `bytes` of disk space. If less is free, takes all of it and returns
/// false.
pub(crate) fn take_room(path: &Path, bytes: u64) -> bool {
    File::create(path).unwrap();
    let length = bytes.to_string();
    let mut command = Command::new("fallocate");
    command.args(["--length", &length]).arg(path).stderr(Stdio::null());
    command.status().unwrap().success()
}
