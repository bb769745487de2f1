//! A private service to measure: this binary, started as a separate process with its own folder and
//! its own loopback address. Dropping it kills the process and deletes the folder. Other services
//! are not touched.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::Admin;
use crate::load::{Connection, StandIn, get};
use orrery_config::Config;
use orrery_runtime as runtime;

/// Time limit for the service to start.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Number of log lines to show after a failed start.
const SHOWN_LINES: usize = 5;
const HOSTS: [&str; 6] = ["base", "workflows", "flows", "agent", "dashboard", "metrics"];
/// Environment variables that the private service does not inherit, because they are meant for the
/// operator's service.
const NOT_INHERITED: [&str; 5] =
    ["ORRERY_CONFIG", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// The slug of a model that never responds, so that its executions stay unfinished.
pub(super) const HELD: &str = "bench-held";
/// The slug of a model that responds immediately.
pub(super) const INSTANT: &str = "bench-instant";
/// The slug of the language model given with `--model`.
pub(super) const LANGUAGE: &str = "bench-language";

/// A running service.
pub(super) struct Private {
    // The first field, so that the process is killed before the folder is deleted.
    child: Killed,
    pub(super) base: SocketAddr,
    pub(super) workflows: SocketAddr,
    pub(super) metrics: SocketAddr,
    pub(super) key: String,
    /// Time from process start until the service was ready, in seconds.
    pub(super) started_in: f64,
    /// Accepts connections for the model that never responds.
    _held: TcpListener,
    folder: TempDir,
}

/// A child process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The child may already have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Creates a temporary folder in `parent` that is deleted on drop.
pub(super) fn folder(parent: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("orrery-bench-").tempdir_in(parent);
    made.with_context(|| format!("no folder can be created in {}", parent.display()))
}

impl Private {
    /// Starts the service on the disk of `parent`, with a language model if a file is given.
    pub(super) async fn start(
        parent: &Path,
        server: &StandIn,
        language: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let folder = folder(parent)?;
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("loopback has no port")?;
        let models = folder.path().join("models");
        fs::create_dir(&models)?;
        let write = |slug: &str, text: String| fs::write(models.join(format!("{slug}.toml")), text);
        write(HELD, http_model(HELD, 1, held.local_addr()?))?;
        write(INSTANT, http_model(INSTANT, 256, server.address()))?;
        if let Some(file) = language {
            write(LANGUAGE, language_model(file))?;
        }
        let addresses = free_addresses()?;
        let [base, workflows, _, _, _, metrics] = addresses;
        let config = folder.path().join("config.toml");
        fs::write(&config, configuration(folder.path(), &addresses)?)?;
        let begun = runtime::monotonic_now();
        let mut child = spawn(&config, folder.path())?;
        until_ready(base, &mut child, folder.path()).await?;
        let started_in = begun.elapsed().as_secs_f64();
        let key = key(&config).await?;
        Ok(Self { child, base, workflows, metrics, key, started_in, _held: held, folder })
    }

    /// Returns the exit status and the end of the log, if the service has exited by itself.
    pub(super) fn why_it_ended(&mut self) -> Option<String> {
        let status = self.child.0.try_wait().ok().flatten()?;
        Some(format!("the measured service exited ({status}): {}", log_end(self.folder.path())))
    }
}

/// Returns free ports on a loopback address derived from this process's id. Another process is
/// unlikely to use that address, so the ports stay free until the service binds them.
fn free_addresses() -> anyhow::Result<[SocketAddr; 6]> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 | (high & 63), middle, low.clamp(1, 254));
    // All listeners stay bound until the end, so that the system assigns each port only once.
    let held: Vec<TcpListener> = HOSTS
        .iter()
        .map(|_host| TcpListener::bind((own, 0)))
        .collect::<Result<_, _>>()
        .with_context(|| format!("loopback ({own}) has no free ports"))?;
    let addresses: Vec<SocketAddr> =
        held.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    addresses.try_into().map_err(|_few| anyhow::anyhow!("loopback has no free ports"))
}

fn configuration(folder: &Path, addresses: &[SocketAddr; 6]) -> anyhow::Result<String> {
    let folder =
        folder.to_str().context("the path of the folder is not UTF-8; choose another --dir")?;
    let place = |name: &str| Value::from(format!("{folder}/{name}"));
    let mut text = format!("data_dir = {}\nmodels_dir = {}\n", place("data"), place("models"));
    for (host, address) in HOSTS.iter().zip(addresses) {
        let section =
            if *host == "metrics" { "metrics".to_owned() } else { format!("hosts.{host}") };
        text += &format!("[{section}]\nlisten = \"{address}\"\n");
    }
    // The servers for models, workflow steps and webhooks are on loopback, so the egress rules must
    // allow it. The log level is `error`, because logging a warning for each rejected request would
    // distort the results.
    text += "[egress]\nallow = [\"127.0.0.0/8\"]\n[log]\nlevel = \"error\"\n\
             [webhooks]\ntimeout = \"5m\"\n[limits]\ndisk_reserve = \"64MiB\"\n";
    Ok(text)
}

fn http_model(slug: &str, concurrency: u32, server: SocketAddr) -> String {
    format!(
        "slug = '{slug}'\ntitle = 'Measured'\noutput_type = 'object'\nconcurrency = {concurrency}\n\
         timeout = '1h'\nqueue_limit = 100000000\n[request_schema]\ntype = 'object'\n\
         [runner]\ntype = 'http'\nurl = 'http://{server}/model'\n"
    )
}

fn language_model(file: &Path) -> String {
    let file = Value::from(file.to_string_lossy());
    format!(
        "slug = '{LANGUAGE}'\ntimeout = '30m'\n[runner]\ntype = 'llm'\nfile = {file}\nidle_unload = '1h'\n"
    )
}

fn spawn(config: &Path, folder: &Path) -> anyhow::Result<Killed> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let log = fs::File::create(folder.join("log"))?;
    let mut command = Command::new(binary);
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    command.arg("--config").arg(config).arg("serve").current_dir(folder);
    // A separate process group: Ctrl-C reaches only this command, which then stops the service.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(Killed(command.spawn().context("the service cannot be started")?))
}

async fn until_ready(base: SocketAddr, child: &mut Killed, folder: &Path) -> anyhow::Result<()> {
    let begun = runtime::monotonic_now();
    loop {
        if let Ok(mut connection) = Connection::open(base).await
            && let Ok(answer) = connection.ask(&get(base, "/ready")).await
            && answer.status == 200
        {
            return Ok(());
        }
        if let Some(status) = child.0.try_wait()? {
            anyhow::bail!("the service does not start ({status}): {}", log_end(folder));
        }
        anyhow::ensure!(
            begun.elapsed() < PATIENCE,
            "the service does not become ready within a minute"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn log_end(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(SHOWN_LINES).collect();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    lines.join("\n  ")
}

async fn key(config: &Path) -> anyhow::Result<String> {
    let config: Config = crate::configuration(Some(config))?;
    let admin = Admin::reach(&config).await?;
    let asked = json!({"name": "bench", "created_by": "orrery bench"});
    let made = admin.post("/admin/keys", &asked).await?;
    let key = made.get("key").and_then(Value::as_str).context("the service returned no key")?;
    Ok(key.to_owned())
}

/// Returns the absolute path of a model file, which the service needs because it runs in another
/// folder.
pub(super) fn absolute(file: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(file).with_context(|| format!("the model {} cannot be read", file.display()))
}
