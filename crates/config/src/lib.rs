//! The configuration: all keys as validated, typed values.
//!
//! `config.example.toml` shows each key with its default, which a test verifies. A [`Source`] reads
//! a file and the command-line flags, and reports all errors at once, each with its line and
//! column. Without a file and flags, [`Config::defaults`] applies. All values in a [`Config`] are
//! in range, so later code does not check them again.
//!
//! `edit` changes one key of a file and keeps the rest of its text; `explain` lists each key with
//! its value and where the value comes from, and writes a file that contains all keys.
//!
//! `reader`, `values` and `secret` also read the manifests of models.
//!
//! Nothing here binds a port, creates a folder or changes the machine. Files are only read, and
//! secrets never appear in errors or in `Debug`.

mod acme;
mod agent;
mod alerts;
pub mod edit;
pub mod explain;
pub mod exposed;
mod groups;
mod oidc;
pub mod reader;
mod router;
pub mod secret;
mod sections;
mod source;
#[cfg(test)]
mod tests;
mod upstreams;
pub mod values;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use orrery_domain::ids::KeyId;

pub use self::alerts::{AlertFormat, Alerts};
pub use self::groups::ServerGroup;
pub use self::oidc::{Oidc, OidcGroup};
pub use self::router::{ModelPrice, Responses, Router};
pub use self::secret::Secret;
pub use self::source::{Flags, LOCAL_FILE, Source};
pub use self::upstreams::{StreamOptions, Upstream, UpstreamKind};

/// The text of `config.example.toml`: each key with its default and a description.
const EXAMPLE: &str = include_str!("../../../config.example.toml");
/// Maximum size of the configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The largest port of the base host that leaves room for the ports of the other hosts and the
/// metrics.
pub const FIRST_PORT_MAX: u16 = u16::MAX - sections::HOSTS;

/// All options of the service. For an optional feature, `None` means that the feature is off.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The folder for all data that the service writes.
    pub data_dir: PathBuf,
    /// Folder of the model manifests, one TOML file per model.
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
    pub alerts: Alerts,
    /// The groups of servers that share memory.
    pub groups: Vec<ServerGroup>,
    /// The path of this program, which is also started as the guard of models' workers. Not set by
    /// files.
    pub program: PathBuf,
    /// The file from which the configuration was read. Not set by files.
    pub file: Option<PathBuf>,
    /// How the configuration was read, so that a reload reads the configuration in the same way.
    /// Not set by files.
    pub source: Source,
    /// The text of the first API key, if the operator chooses it. Not set by files.
    pub bootstrap_key: Option<Secret>,
    /// Whether the operator accepts missing or removed files, for this start only. Not set by
    /// files.
    pub accept_loss: bool,
}

/// The hosts of the service, each with its own addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// Addresses that serve every host, each below its own path. The list may be empty, and may
    /// contain an address of the base host.
    pub one_port: Vec<SocketAddr>,
    pub base: Host,
    pub workflows: Host,
    pub flows: Host,
    pub agent: Host,
    pub dashboard: Host,
    pub ollama: Ollama,
}

/// The host with Ollama's API.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ollama {
    /// Empty if the host is off.
    pub listen: Vec<SocketAddr>,
    /// The API key of requests from this machine that send no key.
    pub key_id: Option<KeyId>,
}

impl Hosts {
    /// Returns the hosts with their names in the configuration, in display order.
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

/// The addresses of a host, and the base URL for links to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// At least one address.
    pub listen: Vec<SocketAddr>,
    /// An absolute URL without a trailing slash.
    pub public_url: String,
}

/// The encryption of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub mode: TlsMode,
    /// Additional names for the self-signed certificate, in addition to `localhost` and the
    /// machine's host name.
    pub names: Vec<String>,
}

/// The source of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsMode {
    /// Plain HTTP on loopback addresses, a self-signed certificate on all other addresses.
    Auto,
    /// Self-signed everywhere.
    SelfSigned,
    /// The operator's certificate, in PEM files.
    Files { certificate: PathBuf, private_key: PathBuf },
    /// A certificate that the service orders over ACME, on all addresses.
    Acme(Acme),
    /// Plain HTTP everywhere.
    Off,
}

/// How the service orders its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acme {
    /// The `https` URL of the authority's directory.
    pub directory: String,
    /// A certificate authority that may have issued the directory's own certificate, in addition to
    /// the public authorities.
    pub directory_ca: Option<PathBuf>,
    /// Mail addresses of the account.
    pub contact: Vec<String>,
    /// DNS names of the certificate in lower case, at least one.
    pub domains: Vec<String>,
    /// The folder for the account and the certificate.
    pub cache: PathBuf,
}

impl Tls {
    /// Returns whether a listener on `address` uses TLS.
    #[must_use]
    pub fn encrypts(&self, address: &SocketAddr) -> bool {
        match self.mode {
            TlsMode::Auto => !address.ip().to_canonical().is_loopback(),
            TlsMode::SelfSigned | TlsMode::Files { .. } | TlsMode::Acme(_) => true,
            TlsMode::Off => false,
        }
    }
}

/// Limits on clients' requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, in bytes. Larger bodies are refused with 413.
    pub body_bytes: usize,
    /// Maximum time that `POST /v1/prediction/run` waits for the result.
    pub sync_wait: Duration,
    /// Time limit for the head of a request.
    pub header_timeout: Duration,
    /// Maximum time between two bytes of a body.
    pub body_timeout: Duration,
    /// Time limit for an entire body that is kept in memory; files are exempt.
    pub body_total_timeout: Duration,
    /// Minimum average rate of a body, in bytes per second, after a grace period of `body_timeout`.
    pub body_min_rate: usize,
    /// Maximum memory for request and response bodies over all hosts, in bytes.
    pub bodies_in_flight: usize,
    /// Maximum memory for responses to outgoing requests, in bytes.
    pub answers_in_flight: usize,
    /// Maximum number of requests in flight, over all hosts.
    pub requests_in_flight: usize,
    /// Maximum time for which a client may accept no byte of its response.
    pub write_timeout: Duration,
    /// Maximum time that a connection stays open without a request.
    pub keep_alive: Duration,
    /// Maximum number of open connections, over all hosts.
    pub connections: usize,
    /// Bytes of the data folder's disk that new work must leave free; `None` if this amount depends
    /// on the disk's size.
    pub disk_reserve: Option<u64>,
    /// Maximum number of open connections per address.
    pub connections_per_address: usize,
    /// Request rate per key.
    pub rate: Option<Rate>,
    /// Maximum number of chat and embedding tokens per key and day (UTC); with `None`, there is no
    /// limit.
    pub tokens_per_day: Option<u64>,
    /// Memory for all language models of this machine, in bytes; with `None`, all free memory.
    pub model_memory_bytes: Option<u64>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub requests_per_second: NonZeroU32,
    pub burst: NonZeroU32,
}

/// Limits of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Maximum number of executions held in memory; other executions wait on disk.
    pub active: usize,
    /// Time limit of a workflow.
    pub workflow_timeout: Duration,
    /// Maximum time that a shutdown waits for running work.
    pub shutdown_grace: Duration,
    /// Maximum total size of the inputs and outputs of one execution, in bytes.
    pub execution_bytes: u64,
    /// Maximum size of an organization's stored inputs and outputs, in bytes; with `None`, half of
    /// the disk.
    pub organization_bytes: Option<u64>,
    /// Maximum number of executions that one execution may start, directly and indirectly.
    pub descendants: u64,
    /// Maximum size on disk of all executions that one execution starts, in bytes.
    pub tree_bytes: u64,
    /// Maximum memory of all running workflows, in bytes.
    pub workflow_memory: usize,
    /// The largest payload that is stored in the store itself, in bytes; larger payloads are stored
    /// as files.
    pub payload_inline_bytes: usize,
}

/// Retention of finished work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    pub executions: Duration,
    pub payloads: Duration,
    pub deliveries: Duration,
    /// Retention of agent sessions, counted from the last message.
    pub sessions: Duration,
    /// Retention of stored responses, counted from their creation.
    pub responses: Duration,
}

/// Delivery of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhooks {
    /// Delays before the second attempt, the third attempt, and so on.
    pub schedule: Vec<Duration>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Minimum time between redeliveries.
    pub redelivery_cooldown: Duration,
    /// Whether `X-Webhook-Secret` carries the secret itself.
    pub send_plain_secret: bool,
    /// Maximum number of attempts in flight, over all receivers.
    pub in_flight: usize,
    /// Maximum number of attempts in flight to one receiver (scheme, host and port).
    pub in_flight_per_receiver: usize,
    /// Number of consecutive failures that open a receiver's circuit.
    pub circuit_failures: u32,
    /// Time that a circuit stays open before a probe.
    pub circuit_open: Duration,
    /// Time without a successful delivery after which a webhook endpoint is disabled.
    pub disable_endpoint_after: Duration,
}

/// Addresses that URLs from clients may reach. `allow` overrides `deny`, and `deny` overrides the
/// built-in rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    pub allow: Vec<IpNet>,
    pub deny: Vec<IpNet>,
    /// Whether single-label names are also looked up in DNS, not only in the hosts file.
    pub single_label_names: bool,
}

/// Uploaded and saved files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The largest file, in bytes.
    pub max_bytes: u64,
    /// Maximum total size of an organization's files, in bytes; with `None`, there is no limit.
    pub quota_bytes: Option<u64>,
    pub retention: Duration,
}

/// Settings of organizations' balances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Billing {
    pub enabled: bool,
    /// Whether work that the balance does not cover is refused.
    pub enforce: bool,
}

/// The dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dashboard {
    /// Maximum time between two requests of a session.
    pub session_idle: Duration,
    /// Maximum lifetime of a session.
    pub session_max: Duration,
    /// Whether members who log in with a password must set up a second factor.
    pub require_second_factor: bool,
    /// The identity provider through which people log in, if any.
    pub oidc: Option<Oidc>,
    /// Whether admin keys may administer the box below `/admin/v1`.
    pub admin_api: bool,
}

/// Decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decisions {
    /// Aliases of decision models, with their chat models.
    pub aliases: Vec<(String, String)>,
    /// Number of samples per question if the model returns no probabilities.
    pub samples: u32,
}

/// The agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    /// The agent's chat model; with `None`, the agent accepts no prompts.
    pub model: Option<String>,
    /// The model for mode `eco`; with `None`, `eco` mode uses `model`.
    pub eco_model: Option<String>,
    /// The model id that clients see.
    pub model_id: String,
    /// Time limit of an exchange.
    pub timeout: Duration,
    /// Maximum number of model responses and tool calls in one exchange.
    pub max_steps: u32,
    /// Maximum cost of an exchange, in US dollars; with `None`, there is no limit.
    pub max_cost: Option<f64>,
    /// Context size, in tokens, of a model that does not run on this box.
    pub context_tokens: u32,
    /// Servers with additional tools; their names are unique.
    pub mcp_servers: Vec<McpServer>,
}

/// A server of the Model Context Protocol (MCP).
#[derive(Debug, Clone, PartialEq)]
pub struct McpServer {
    /// Prefix of the names of the server's tools.
    pub name: String,
    pub transport: McpTransport,
    /// The permitted tools; with `None`, all tools.
    pub allow: Option<Vec<String>>,
}

/// The connection to a server.
#[derive(Debug, Clone, PartialEq)]
pub enum McpTransport {
    /// Streamable HTTP.
    Http { url: String, headers: Vec<(String, Secret)> },
    /// A program started by the service, over its standard streams.
    Program {
        /// The program and its arguments, never empty.
        command: Vec<String>,
        directory: PathBuf,
        env: Vec<(String, Secret)>,
        /// Folders that the program may write to, in addition to its own folder.
        writable: Vec<PathBuf>,
        /// The program's address space limit, in bytes.
        memory_bytes: Option<u64>,
    },
}

/// Scheduled backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub every: Option<Duration>,
    /// Number of backups to keep.
    pub keep: usize,
    pub folder: PathBuf,
    /// Public keys for age encryption (`age1…`). The holders of the matching secret keys can read
    /// the backups. If the list is empty, `passphrase` applies.
    pub recipients: Vec<String>,
    /// The passphrase that encrypts backups if there are no recipients. With `None` and no
    /// recipients, backups are not encrypted.
    pub passphrase: Option<Secret>,
    /// Interval of the log archive.
    pub log: Option<Duration>,
    /// Maximum size of the log that waits to be archived, in bytes.
    pub log_budget: u64,
    /// Program to run after each backup, with its arguments. If the list is empty, no program runs.
    pub after: Vec<String>,
    /// Time limit of the `after` program.
    pub after_timeout: Duration,
}

/// The file to which the audit log is written for log shippers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    pub folder: PathBuf,
    /// Size at which the file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files to keep.
    pub keep: usize,
}

/// Compatibility with older clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compat {
    /// Whether a prediction may omit `version`.
    pub optional_version: bool,
}

/// Cross-origin requests of browsers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Origins such as `https://app.example`, or `*` alone. If the list is empty, cross-origin
    /// requests are not allowed.
    pub allow_origins: Vec<String>,
}

/// The Prometheus endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Addresses of the endpoint. If the list is empty, the endpoint is off.
    pub listen: Vec<SocketAddr>,
}

/// Export of execution spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// OTLP/HTTP endpoint of a collector, to which `/v1/traces` is appended unless present; with
    /// `None`, the export is off.
    pub otlp_endpoint: Option<String>,
    /// Headers of each export request.
    pub otlp_headers: Vec<(String, Secret)>,
    /// Whether spans contain the messages of chat calls.
    pub content: bool,
}

/// Logging options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or a list such as `info,orrery_engine=debug`.
    pub level: String,
    pub format: LogFormat,
    /// Whether each request is logged.
    pub access: bool,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    Text,
    Json,
}

impl LogFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Text, Self::Json];

    /// Returns the format's name in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// One error in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct Error {
    /// Line number, from 1; 0 if the error concerns the entire file.
    pub line: usize,
    /// Column in characters, from 1; 0 if the error concerns the entire file.
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

/// Makes `path` absolute by resolving it against the current folder.
///
/// Every path from the configuration, a manifest or the command line is made absolute once, when
/// the path is read: models' programs and workers run in other folders, and a reload compares
/// paths.
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
    /// Returns the configuration that applies without a file: data in `./orrery-data`, all hosts on
    /// loopback ports.
    #[must_use]
    pub fn defaults() -> Self {
        let (config, errors, _known) =
            sections::read("", Path::new(""), &sections::Defaults::without_a_file());
        debug_assert!(errors.is_empty(), "the defaults are in range: {errors:?}");
        config
    }

    /// Returns the configuration of an installed service whose file is unknown.
    #[must_use]
    pub fn for_installed() -> Self {
        let defaults = sections::Defaults::with_a_file();
        let (config, _errors, _known) = sections::read("", Path::new(""), &defaults);
        config
    }

    /// Reads the file at `path`. Relative paths in the file are resolved against the directory that
    /// contains it.
    ///
    /// # Errors
    /// All errors in the file, in line order.
    pub fn load(path: &Path) -> Result<Self, Vec<Error>> {
        Source::of_file(path).load()
    }
}
