//! The service: the binary of this build in a child process, on loopback ports.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::Killed;

/// The time limit for a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the binary to measure: this build's, unless `ORRERY_BENCH_BINARY` names another one.
fn binary() -> PathBuf {
    std::env::var_os("ORRERY_BENCH_BINARY")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_orrery")), PathBuf::from)
}

/// A service's configuration on disk.
pub(crate) struct Setup {
    pub base: SocketAddr,
    pub workflows: SocketAddr,
    pub agent: SocketAddr,
    pub metrics: SocketAddr,
    config: PathBuf,
    data: PathBuf,
    models: PathBuf,
}

impl Setup {
    /// Creates a configuration in `folder`, with free ports.
    pub(crate) fn new(folder: &Path) -> Self {
        Self::with(folder, "")
    }

    /// Like [`Self::new`], with additional configuration lines.
    pub(crate) fn with(folder: &Path, lines: &str) -> Self {
        let data = folder.join("data");
        let models = folder.join("models");
        std::fs::create_dir_all(&models).unwrap();
        let ports: Vec<SocketAddr> = free_ports(6);
        let mut text = format!("data_dir = {data:?}\nmodels_dir = {models:?}\n");
        for (host, address) in
            ["base", "workflows", "flows", "agent", "dashboard"].iter().zip(&ports)
        {
            text += &format!("[hosts.{host}]\nlisten = \"{address}\"\n");
        }
        text += &format!("[metrics]\nlisten = \"{}\"\n", ports[5]);
        // Workflow steps call the benchmark's own servers.
        text += "[egress]\nallow = [\"127.0.0.0/8\"]\n";
        // The default is a fraction of the disk, which may exceed the free space of a build
        // machine.
        text += "[limits]\ndisk_reserve = \"64MiB\"\n";
        // During a start, early requests to `/ready` get 503; logging them would slow the start
        // down.
        text += "[log]\nlevel = \"off\"\n";
        text += lines;
        let config = folder.join("config.toml");
        std::fs::write(&config, text).unwrap();
        let base = ports[0];
        let workflows = ports[1];
        let agent = ports[3];
        let metrics = ports[5];
        Self { base, workflows, agent, metrics, config, data, models }
    }

    /// Returns the service's data folder.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Adds the manifest of a model.
    pub(crate) fn model(&self, slug: &str, manifest: &str) {
        std::fs::write(self.models.join(format!("{slug}.toml")), manifest).unwrap();
    }

    /// Creates an API key with the command line; the service must be running.
    pub(crate) fn key(&self) -> String {
        self.key_with(&[])
    }

    /// Creates an API key that has every kind of limit. No benchmark reaches these limits.
    pub(crate) fn limited_key(&self) -> String {
        let limits = "--models text-*,hanging,stub --scope predict,chat,read --budget 1000000/30d \
                      --rpm 1000000 --tpm 1000000000 --parallel 10000 --tag team=bench";
        self.key_with(&limits.split_whitespace().collect::<Vec<_>>())
    }

    fn key_with(&self, limits: &[&str]) -> String {
        let arguments = [&["key", "create", "--name", "bench"], limits].concat();
        let made = self.command(&arguments).output().unwrap();
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "no key could be made: {said}");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    }

    /// Returns a command of the command line.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("--config").arg(&self.config).args(arguments);
        command
    }

    /// Starts the service; returns its process and the time from the spawn to the first 200 from
    /// `/ready`.
    pub(crate) fn start(&self) -> (Killed, Duration) {
        let started = Instant::now();
        let child = Command::new(binary())
            .arg("--config")
            .arg(&self.config)
            .arg("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let child = Killed(child);
        while !is_ready(self.base) {
            assert!(started.elapsed() < PATIENCE, "the service does not become ready");
            std::thread::sleep(Duration::from_millis(1));
        }
        (child, started.elapsed())
    }
}

/// Returns free loopback ports.
pub(crate) fn free_ports(count: usize) -> Vec<SocketAddr> {
    // Hold all of them at once, so that no port is returned twice.
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

fn is_ready(address: SocketAddr) -> bool {
    get(address, "/ready").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Returns the manifest of a model whose server accepts every request and never answers. The model
/// runs one request at a time, so its queue grows to its limit. The listener is that server.
pub(crate) fn hanging_model(queue_limit: u64) -> (TcpListener, String) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let manifest = format!(
        "slug = 'hanging'\ntitle = 'Hanging'\noutput_type = 'string'\nconcurrency = 1\n\
         timeout = '1h'\nqueue_limit = {queue_limit}\n\
         [request_schema]\ntype = 'object'\nrequired = ['text']\n\
         properties.text = {{ type = 'string', maxLength = 10000 }}\n\
         [runner]\ntype = 'http'\nurl = 'http://{address}/'\n"
    );
    (server, manifest)
}

/// Sends a GET on a new connection; returns the whole response, head and body, or `None` if nothing
/// listens.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns the value of a metric without labels, or the sum over its labels.
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = get(address, "/metrics").unwrap();
    let of_name = text.lines().filter_map(|line| line.strip_prefix(name));
    let values = of_name.filter(|rest| rest.starts_with(['{', ' ']));
    values.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
