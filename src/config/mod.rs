//! The configuration: every key as a checked, typed value.
//!
//! `config.example.toml` shows each key with its default, and a test proves that it says the
//! truth. [`Config::load`] reads a file and reports everything that is wrong with it at once, each
//! error with its line and column; [`Config::defaults`] is what holds without a file. Whatever
//! is in a [`Config`] is in range: no later code checks again.
//!
//! `reader`, `values` and `secret` read the manifests of models as well.
//!
//! Nothing here binds a port, makes a folder or changes the machine; files are only read, and a
//! secret never appears in an error or in `Debug`.

mod agent;
pub mod exposed;
pub mod reader;
mod router;
pub mod secret;
mod sections;
#[cfg(test)]
mod tests;
pub mod values;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

use self::reader::read_file;
pub use self::secret::Secret;

/// The largest configuration file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The last port of the base host that leaves ports to the others and to the metrics.
pub const FIRST_PORT_MAX: u16 = u16::MAX - sections::HOSTS;

/// Every option of the service. Absent options are `None`: the feature is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where the service keeps everything it writes.
    pub data_dir: PathBuf,
    /// Where the model manifests lie, one TOML file for each model.
    pub models_dir: PathBuf,
    pub hosts: Hosts,
    pub tls: Tls,
    pub limits: Limits,
    pub engine: Engine,
    pub retention: Retention,
    pub webhooks: Webhooks,
    pub egress: Egress,
    pub files: Files,
    pub billing: Billing,
    pub router: Router,
    pub decisions: Decisions,
    pub dashboard: Dashboard,
    pub agent: Agent,
    pub audit: Audit,
    pub backup: Backup,
    pub compat: Compat,
    pub cors: Cors,
    pub metrics: Metrics,
    pub log: Log,
    pub telemetry: Telemetry,
    /// This program, which is started again as the guard of a model's workers. No file sets it.
    pub program: PathBuf,
    /// The file that this was read from, for a reload. No file sets it.
    pub file: Option<PathBuf>,
    /// Whether the operator accepts that files are missing or swept away, for this start. No file
    /// sets it.
    pub accept_loss: bool,
}

/// One face of the service for each role, each on addresses of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    pub base: Host,
    pub workflows: Host,
    pub flows: Host,
    pub agent: Host,
    pub dashboard: Host,
}

impl Hosts {
    /// The hosts with their names in the configuration, in the order in which they are shown.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Host); 5] {
        [
            ("base", &self.base),
            ("workflows", &self.workflows),
            ("flows", &self.flows),
            ("agent", &self.agent),
            ("dashboard", &self.dashboard),
        ]
    }
}

/// Where a host listens, and what links to it start with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// At least one address.
    pub listen: Vec<SocketAddr>,
    /// Absolute, without a slash at its end.
    pub public_url: String,
}

/// How connections are encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub mode: TlsMode,
    /// More names for the self-made certificate, beside localhost and the machine's own.
    pub names: Vec<String>,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsMode {
    /// Plain on loopback addresses, self-made on all others.
    Auto,
    /// Self-made everywhere.
    SelfSigned,
    /// The operator's own, in PEM files.
    Files { certificate: PathBuf, private_key: PathBuf },
    /// Plain HTTP everywhere.
    Off,
}

impl Tls {
    /// Whether a listener on `address` speaks TLS.
    #[must_use]
    pub fn encrypts(&self, address: &SocketAddr) -> bool {
        match self.mode {
            TlsMode::Auto => !address.ip().to_canonical().is_loopback(),
            TlsMode::SelfSigned | TlsMode::Files { .. } => true,
            TlsMode::Off => false,
        }
    }
}

/// Bounds on what one client may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, in bytes; what is over it gets 413.
    pub body_bytes: usize,
    /// How long `POST /v1/prediction/run` holds its answer.
    pub sync_wait: Duration,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How long a body may stand still without a byte.
    pub body_timeout: Duration,
    /// How long a whole body may take that is held in memory; files are not.
    pub body_total_timeout: Duration,
    /// The slowest average of a body, in bytes per second, after a head start of `body_timeout`.
    pub body_min_rate: usize,
    /// Bytes of request and reply bodies in memory, over all hosts.
    pub bodies_in_flight: usize,
    /// Bytes that the answers to outgoing requests may take in memory.
    pub answers_in_flight: usize,
    /// Requests that are being answered, over all hosts.
    pub requests_in_flight: usize,
    /// How long a client may accept no byte of its reply.
    pub write_timeout: Duration,
    /// How long a connection lives without a request.
    pub keep_alive: Duration,
    /// Open connections over all hosts.
    pub connections: usize,
    /// Bytes of the data folder's disk that new work leaves free; none: by the disk's size.
    pub disk_reserve: Option<u64>,
    /// Open connections of one address.
    pub connections_per_address: usize,
    /// Requests for each key.
    pub rate: Option<Rate>,
    /// Tokens of chat and embeddings that one key may use in a day (UTC); none: no limit.
    pub tokens_per_day: Option<u64>,
    /// Bytes of memory for all language models of this machine; `None`: what it has free.
    pub model_memory_bytes: Option<u64>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub requests_per_second: NonZeroU32,
    pub burst: NonZeroU32,
}

/// How work is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Executions held in memory at one time; the rest wait on disk.
    pub active: usize,
    /// How long a whole workflow may take.
    pub workflow_timeout: Duration,
    /// How long a shutdown waits for running work.
    pub shutdown_grace: Duration,
    /// Bytes of inputs and outputs that one execution may make.
    pub execution_bytes: u64,
    /// Bytes of inputs and outputs that one organization may keep; none: half of the disk.
    pub organization_bytes: Option<u64>,
    /// Executions that one may start, directly and through others.
    pub descendants: u64,
    /// Bytes that those may take.
    pub tree_bytes: u64,
    /// Bytes of memory that all running workflows take.
    pub workflow_memory: usize,
    /// The largest payload kept in the store itself, in bytes; larger ones are files.
    pub payload_inline_bytes: usize,
}

/// How long finished things are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    pub executions: Duration,
    pub payloads: Duration,
    pub deliveries: Duration,
    /// Sessions of the agent in which nothing is said.
    pub sessions: Duration,
}

/// How webhooks are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhooks {
    /// The delay before the second attempt, before the third, and so on.
    pub schedule: Vec<Duration>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How long after a redelivery the next one is refused.
    pub redelivery_cooldown: Duration,
    /// Whether `X-Webhook-Secret` carries the secret itself.
    pub send_plain_secret: bool,
    /// Attempts in flight over all receivers.
    pub in_flight: usize,
    /// Attempts in flight to one receiver (scheme, host and port).
    pub in_flight_per_receiver: usize,
    /// Failures in a row that open a receiver's circuit.
    pub circuit_failures: u32,
    /// How long an open circuit waits before its probe.
    pub circuit_open: Duration,
    /// How long nothing succeeds at a webhook endpoint until it is disabled.
    pub disable_endpoint_after: Duration,
}

/// Which addresses URLs from clients may reach. `allow` wins over `deny`, `deny` over the built-in
/// rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    pub allow: Vec<IpNet>,
    pub deny: Vec<IpNet>,
    /// Whether names of one label are looked up beyond the hosts file.
    pub single_label_names: bool,
}

/// Uploaded and saved files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The largest file, in bytes.
    pub max_bytes: u64,
    /// What all files of one organization may take, in bytes.
    pub quota_bytes: Option<u64>,
    pub retention: Duration,
}

/// The balance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Billing {
    pub enabled: bool,
    /// Whether what the balance cannot pay is refused.
    pub enforce: bool,
}

/// The dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dashboard {
    /// How long a session lasts without a request.
    pub session_idle: Duration,
    /// How long a session lasts in all.
    pub session_max: Duration,
    /// Whether admin keys may administer the box below `/admin/v1`.
    pub admin_api: bool,
}

/// The chat router.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Where model ids go that are not local, with its `/v1` and without a slash at its end; none:
    /// they do not exist.
    pub upstream_url: Option<String>,
    pub upstream_key: Option<Secret>,
    /// The part of a price that is added to it: 0.05 adds 5 %.
    pub platform_fee: f64,
    /// What the upstream's models cost, each model once.
    pub prices: Vec<ModelPrice>,
    /// Whether the history keeps the answers of models.
    pub keep_content: bool,
    /// How long resolving, connecting and the TLS handshake may take together.
    pub connect_timeout: Duration,
    /// How long the first byte of an answer may take.
    pub first_byte_timeout: Duration,
    /// How long an answer that has begun may pause.
    pub idle_timeout: Duration,
    /// How long the upstream's list of models is used before it is asked for again.
    pub catalog_ttl: Duration,
}

/// What a model of the upstream costs, in US dollars.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPrice {
    /// The id, as the upstream spells it.
    pub model: String,
    pub per_million_input_tokens: f64,
    pub per_million_output_tokens: f64,
}

/// Decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decisions {
    /// Names of decision models with the chat models that they stand for.
    pub aliases: Vec<(String, String)>,
    /// Answers to a question where the model gives no probabilities.
    pub samples: u32,
}

/// The agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The chat model that thinks; none: the agent takes no prompts.
    pub model: Option<String>,
    /// The one that thinks in mode `eco`; none: the same.
    pub eco_model: Option<String>,
    /// The id that clients know.
    pub model_id: String,
    /// How long an exchange may run.
    pub timeout: Duration,
    /// Answers and uses of tools of one exchange.
    pub max_steps: u32,
    /// What an exchange may cost, in US dollars; none: no limit.
    pub max_cost: Option<f64>,
    /// Tokens of the context of a model that this box does not run.
    pub context_tokens: u32,
    /// Servers that give it more tools, each name once.
    pub mcp_servers: Vec<McpServer>,
}

/// A server of the Model Context Protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// What the names of its tools begin with.
    pub name: String,
    pub transport: McpTransport,
    /// The tools that are used; none: all.
    pub allow: Option<Vec<String>>,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// By Streamable HTTP.
    Http { url: String, headers: Vec<(String, Secret)> },
    /// A program that is started, by its standard streams.
    Program {
        /// The program and its arguments, never empty.
        command: Vec<String>,
        directory: PathBuf,
        env: Vec<(String, Secret)>,
        /// Folders that it may write to, beside its own.
        writable: Vec<PathBuf>,
        /// The address space that it may have.
        memory_bytes: Option<u64>,
    },
}

/// Backups on a timetable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub every: Option<Duration>,
    /// How many are kept.
    pub keep: usize,
    pub folder: PathBuf,
    /// Public keys of age (`age1…`) whose holders can read backups; empty: see `passphrase`.
    pub recipients: Vec<String>,
    /// Encrypts backups where there are no recipients; none: they are not encrypted.
    pub passphrase: Option<Secret>,
    /// How often the log is kept beside them.
    pub log: Option<Duration>,
    /// Bytes of log that may wait for that.
    pub log_budget: u64,
    /// The program that is run after each backup, with its arguments; empty: none.
    pub after: Vec<String>,
    /// How long it may run.
    pub after_timeout: Duration,
}

/// The audit log's file for log shippers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    pub folder: PathBuf,
    /// A file that has grown past it is rotated.
    pub max_bytes: u64,
    /// Rotated files that are kept.
    pub keep: usize,
}

/// What is allowed for the sake of older clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compat {
    /// Whether a prediction may omit `version`.
    pub optional_version: bool,
}

/// Browsers from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Origins such as `https://app.example`, or `*` alone. Empty: off.
    pub allow_origins: Vec<String>,
}

/// The Prometheus endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Empty: off.
    pub listen: Vec<SocketAddr>,
}

/// Where the spans of executions go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// The OTLP/HTTP endpoint of a collector, to which `/v1/traces` is added unless it ends so; none: off.
    pub otlp_endpoint: Option<String>,
    /// Headers of each request to it.
    pub otlp_headers: Vec<(String, Secret)>,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or a list such as `info,orrery::engine=debug`.
    pub level: String,
    pub format: LogFormat,
    /// Whether each request has a line.
    pub access: bool,
}

/// The shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    Text,
    Json,
}

impl LogFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Text, Self::Json];

    /// As the configuration spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// One thing that is wrong with a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct Error {
    /// From 1; 0 when the error is the whole file's.
    pub line: usize,
    /// From 1, in characters; 0 when the error is the whole file's.
    pub column: usize,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}, column {}: ", self.line, self.column)?;
        }
        f.write_str(&self.message)
    }
}

/// `path`, made absolute in the current folder.
///
/// Every path that comes from the configuration, a manifest or the command line is made absolute once, where
/// it is read: models' programs and workers run in other folders, and a reload compares paths.
#[must_use]
pub fn absolute(path: &Path) -> PathBuf {
    let made = if path.as_os_str().is_empty() {
        std::env::current_dir()
    } else {
        std::path::absolute(path)
    };
    made.unwrap_or_else(|_unknown| path.to_path_buf())
}

impl Config {
    /// What holds without a file: data in `./orrery-data`, every host on a loopback port.
    #[must_use]
    pub fn defaults() -> Self {
        let (config, errors, _known) =
            sections::read("", Path::new(""), &sections::Defaults::without_a_file());
        debug_assert!(errors.is_empty(), "the defaults are in range: {errors:?}");
        config
    }

    /// What holds without a file on another address, or with the base host on another port, which the
    /// ports of the other hosts and of the metrics follow.
    #[must_use]
    pub fn defaults_on(address: Option<IpAddr>, first_port: Option<u16>) -> Self {
        let defaults = sections::Defaults::listening_on(address, first_port);
        let (config, _errors, _known) = sections::read("", Path::new(""), &defaults);
        config
    }

    /// What holds for an installed service whose configuration is not known.
    #[must_use]
    pub fn for_installed() -> Self {
        let defaults = sections::Defaults::with_a_file();
        let (config, _errors, _known) = sections::read("", Path::new(""), &defaults);
        config
    }

    /// Reads the file at `path`. Paths in it that are not absolute start at its own folder.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of its lines.
    pub fn load(path: &Path) -> Result<Self, Vec<Error>> {
        let (config, errors) = Self::examine(path);
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// Reads the file at `path` as far as it can be read: a default replaces what is
    /// wrong. For `orrery check`, which looks on; nothing is to be served with errors left.
    #[must_use]
    pub fn examine(path: &Path) -> (Self, Vec<Error>) {
        secret::hide_from_programs(path);
        let folder = path.parent().unwrap_or(Path::new(""));
        let (text, unreadable) = match read_file(path, FILE_BYTES_MAX) {
            Ok(text) => (text, None),
            Err(message) => (String::new(), Some(Error { line: 0, column: 0, message })),
        };
        let (mut config, errors, _known) =
            sections::read(&text, folder, &sections::Defaults::with_a_file());
        config.file = Some(absolute(path));
        (config, unreadable.into_iter().chain(errors).collect())
    }
}
