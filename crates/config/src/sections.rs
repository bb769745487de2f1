//! All sections with their keys, ranges and defaults. Defaults are defined only here.
//!
//! `Config::defaults` reads an empty file with this code, so that a default and its check cannot
//! diverge. This module also checks constraints between keys after it has read them.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

use super::acme::{acme, public_names};
use super::agent::agent;
use super::alerts::alerts;
use super::groups::groups;
use super::oidc::oidc;
use super::reader::{Known, Reader, Section};
use super::router::router;
use super::values::{
    Value, addresses, command, duration, flag, header, headers, host_name, key_id, list, log_level,
    map, memory_size, network, one_of, one_or_more, origin, path, positive, recipient, size,
    some_addresses, text, web_address, whole,
};
use super::{
    Audit, Backup, Billing, Compat, Config, Cors, Dashboard, Decisions, Egress, Engine, Error,
    Files, Host, Hosts, Limits, Log, LogFormat, Metrics, Ollama, Rate, Retention, Source,
    Telemetry, Tls, TlsMode, Webhooks, secret,
};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const TEN_YEARS: Duration = Duration::from_secs(86_400 * 3652);

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;

/// The metrics port of a service that uses the default ports.
const METRICS_PORT: u16 = 9464;
/// Number of hosts, each with its own port.
pub(super) const HOSTS: u16 = 5;

/// The largest daily token budget: far more than a machine can produce.
const TOKENS_PER_DAY_MAX: u64 = 1_000_000_000_000;

/// Defaults that differ between a service with a configuration file and a service without a
/// configuration file.
#[derive(Debug, Clone)]
pub(super) struct Defaults {
    /// Absolute paths, or paths relative to the working folder.
    data_dir: &'static str,
    models_dir: &'static str,
    /// The address of every host.
    address: IpAddr,
    /// The port of the base host; the other hosts' ports follow in the order of [`Hosts::named`].
    first_port: u16,
    metrics_port: u16,
    allow: &'static [&'static str],
    disk_reserve: Option<u64>,
    optional_version: bool,
    /// The machine's host name, for links to a host that listens on all addresses.
    pub(super) machine: String,
}

impl Defaults {
    /// Returns the defaults for trying the service: everything on loopback and under the working
    /// folder.
    pub(super) fn without_a_file() -> Self {
        Self {
            data_dir: "orrery-data",
            models_dir: "orrery-data/models.d",
            address: IpAddr::from([127, 0, 0, 1]),
            first_port: 8080,
            metrics_port: METRICS_PORT,
            allow: &["127.0.0.0/8", "::1/128"],
            // The machine is probably a personal computer, whose disk may be nearly full.
            disk_reserve: Some(2 * GIB),
            optional_version: true,
            machine: machine_name(),
        }
    }

    /// Returns the same defaults with other addresses. If the hosts' ports change, the metrics port
    /// changes accordingly. Client URLs may reach loopback addresses only while the hosts are not
    /// reachable from other machines.
    pub(super) fn listening_on(self, address: Option<IpAddr>, first_port: Option<u16>) -> Self {
        let address = address.unwrap_or(self.address);
        Self {
            address,
            first_port: first_port.unwrap_or(self.first_port),
            metrics_port: first_port.map_or(METRICS_PORT, metrics_port),
            allow: if address.to_canonical().is_loopback() { self.allow } else { &[] },
            ..self
        }
    }

    /// Returns the defaults for a service on a network.
    pub(super) fn with_a_file() -> Self {
        Self {
            data_dir: "/var/lib/orrery",
            models_dir: "/etc/orrery/models.d",
            address: IpAddr::from([0, 0, 0, 0]),
            first_port: 8443,
            metrics_port: METRICS_PORT,
            allow: &[],
            disk_reserve: None,
            optional_version: false,
            machine: machine_name(),
        }
    }
}

/// Returns the port of the metrics if the base host has `first_port`.
pub(super) const fn metrics_port(first_port: u16) -> u16 {
    first_port.saturating_add(HOSTS)
}

/// Reads `text`. Relative paths in `text` are resolved against `folder`, and all paths in the
/// result are absolute. Returns the configuration (with defaults for invalid values), the errors,
/// and all known keys.
pub(super) fn read(
    text: &str,
    folder: &Path,
    defaults: &Defaults,
) -> (Config, Vec<Error>, Vec<Known>) {
    let folder = super::absolute(folder);
    let reader = Reader::new(text);
    let document = reader.document();
    let config = Section::root(&reader, &document, |root| everything(root, &folder, defaults));
    drop(document);
    let (errors, known) = reader.finish();
    (config, errors, known)
}

fn telemetry(section: &mut Section<'_>, folder: &Path) -> Telemetry {
    let otlp_endpoint = section.optional("otlp_endpoint", web_address);
    let otlp_headers = section.get("otlp_headers", Vec::new(), headers(header(folder)));
    if !otlp_headers.is_empty() && section.span("otlp_endpoint").is_none() {
        let message = "`telemetry.otlp_headers` has no effect without `otlp_endpoint`";
        section.error("otlp_headers", message.to_owned());
    }
    let content = section.get("content", false, flag);
    Telemetry { otlp_endpoint, otlp_headers, content }
}

fn everything(root: &mut Section<'_>, folder: &Path, defaults: &Defaults) -> Config {
    let default = |path: &str| super::absolute(Path::new(path));
    let data_dir = root.get("data_dir", default(defaults.data_dir), path(folder));
    let models_dir = root.get("models_dir", default(defaults.models_dir), path(folder));
    let mut tls = root.section("tls", |section| tls(section, folder, &data_dir));
    let (hosts, metrics) = listeners(root, &tls, defaults);
    name_certificate(root, &mut tls, &hosts);
    Config {
        hosts,
        tls,
        limits: root.section("limits", |section| limits(section, defaults)),
        engine: root.section("engine", engine),
        retention: root.section("retention", retention),
        webhooks: root.section("webhooks", webhooks),
        egress: root.section("egress", |section| egress(section, defaults)),
        files: root.section("files", files),
        billing: root.section("billing", billing),
        router: root.section("router", |section| router(section, folder)),
        decisions: root.section("decisions", decisions),
        dashboard: root.section("dashboard", |section| Dashboard {
            session_idle: section.get("session_idle", 12 * HOUR, duration(SECOND..=366 * DAY)),
            session_max: section.get("session_max", 7 * DAY, duration(SECOND..=366 * DAY)),
            require_second_factor: section.get("require_second_factor", false, flag),
            admin_api: section.get("admin_api", false, flag),
            oidc: section.section("oidc", |section| oidc(section, folder)),
        }),
        agent: root.section("agent", |section| agent(section, folder)),
        backup: root.section("backup", |section| backup(section, folder, &data_dir)),
        audit: root.section("audit", |section| Audit {
            folder: section.get("folder", data_dir.join("audit"), path(folder)),
            max_bytes: section.get("max_bytes", 16 * MIB, size(KIB..=TIB)),
            keep: section.get("keep", 10, whole(1..=1000)),
        }),
        compat: root.section("compat", |section| Compat {
            optional_version: section.get("optional_version", defaults.optional_version, flag),
        }),
        cors: root.section("cors", |section| Cors {
            allow_origins: section.get("allow_origins", Vec::new(), list(origin)),
        }),
        metrics,
        log: root.section("log", |section| Log {
            level: section.get("level", "info".to_owned(), log_level),
            format: section.get(
                "format",
                LogFormat::Auto,
                one_of(&LogFormat::ALL, LogFormat::as_str),
            ),
            access: section.get("access", false, flag),
        }),
        telemetry: root.section("telemetry", |section| telemetry(section, folder)),
        alerts: root.section("alerts", |section| alerts(section, folder)),
        groups: root.get("groups", Vec::new(), groups),
        data_dir,
        models_dir,
        program: PathBuf::from("/proc/self/exe"),
        file: None,
        source: Source::default(),
        bootstrap_key: None,
        accept_loss: false,
    }
}

/// Returns the JSON Schema of the configuration.
pub(super) fn schema() -> serde_json::Value {
    let reader = Reader::describing("");
    let document = reader.document();
    let _defaults = Section::root(&reader, &document, |root| {
        everything(root, Path::new("/"), &Defaults::without_a_file())
    });
    drop(document);
    reader.schema()
}

/// The addresses of one listener, and the key that configures them.
struct Listener {
    name: &'static str,
    addresses: Vec<SocketAddr>,
    at: Option<Range<usize>>,
}

fn listeners(root: &mut Section<'_>, tls: &Tls, defaults: &Defaults) -> (Hosts, Metrics) {
    let mut taken: Vec<Listener> = Vec::new();
    let hosts = root.section("hosts", |section| {
        let one_port = section.optional("one_port", some_addresses).unwrap_or_default();
        let of_one_port = (!one_port.is_empty()).then(|| section.span("one_port"));
        // The URL of the base host, if the URLs of the other hosts are below that URL.
        let mut shared: Option<String> = None;
        let mut host = |name: &'static str, offset: u16| {
            section.section(name, |section| {
                let default = SocketAddr::new(defaults.address, defaults.first_port + offset);
                let listen = section.get("listen", vec![default], some_addresses);
                let at = section.span("listen");
                taken.push(Listener { name, addresses: listen.clone(), at });
                let derived = match &shared {
                    Some(base) => format!("{base}/{name}"),
                    None if one_port.is_empty() => public_url(&listen, tls, &defaults.machine),
                    None => public_url(&one_port, tls, &defaults.machine),
                };
                let public_url = section.optional("public_url", web_address).unwrap_or(derived);
                if !one_port.is_empty() {
                    shared.get_or_insert_with(|| public_url.clone());
                }
                Host { listen, public_url }
            })
        };
        let base = host("base", 0);
        let workflows = host("workflows", 1);
        let flows = host("flows", 2);
        let agent = host("agent", 3);
        let dashboard = host("dashboard", 4);
        if let Some(at) = of_one_port {
            let own = one_port.iter().filter(|address| !base.listen.contains(address));
            taken.push(Listener { name: "one_port", addresses: own.copied().collect(), at });
        }
        let ollama = section.section("ollama", |section| {
            let listen = section.optional("listen", some_addresses).unwrap_or_default();
            let at = section.span("listen");
            if listen.is_empty() && section.span("key_id").is_some() {
                let message = "`hosts.ollama.key_id` has no effect without `listen`";
                section.error("key_id", message.to_owned());
            }
            taken.push(Listener { name: "ollama", addresses: listen.clone(), at });
            Ollama { listen, key_id: section.optional("key_id", key_id) }
        });
        Hosts { one_port, base, workflows, flows, agent, dashboard, ollama }
    });
    let metrics = root.section("metrics", |section| {
        let default = SocketAddr::from(([127, 0, 0, 1], defaults.metrics_port));
        let listen = section.get("listen", vec![default], addresses);
        let at = section.span("listen");
        taken.push(Listener { name: "metrics", addresses: listen.clone(), at });
        Metrics { listen }
    });
    refuse_shared_addresses(root, &taken);
    (hosts, metrics)
}

fn refuse_shared_addresses(root: &Section<'_>, taken: &[Listener]) {
    let all: Vec<(&Listener, &SocketAddr)> = taken
        .iter()
        .flat_map(|listener| listener.addresses.iter().map(move |address| (listener, address)))
        .collect();
    for (index, (second, address)) in all.iter().enumerate() {
        for (first, other) in all.iter().take(index) {
            if overlap(address, other) {
                let at = second.at.as_ref().or(first.at.as_ref());
                let one = first.name;
                let two = second.name;
                let message = if one == two {
                    format!("{one} listens on {other} and {address}, which are one address")
                } else {
                    format!("{one} ({other}) and {two} ({address}) listen on one address")
                };
                root.error_at(at, message);
            }
        }
    }
}

/// Returns whether two listeners conflict. Port 0 means any free port, and the IPv6 wildcard also
/// accepts IPv4 connections.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let covers = |wide: &SocketAddr, narrow: &SocketAddr| {
        wide.ip().is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4())
    };
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}

/// Returns the default base URL of links: the first address, or the machine's host name if that
/// address is a wildcard.
fn public_url(listen: &[SocketAddr], tls: &Tls, machine: &str) -> String {
    let Some(first) = listen.first() else { return String::new() };
    let host = match first.ip() {
        address if address.is_unspecified() => machine.to_owned(),
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let (scheme, usual) = if tls.encrypts(first) { ("https", 443) } else { ("http", 80) };
    match first.port() {
        port if port == usual => format!("{scheme}://{host}"),
        port => format!("{scheme}://{host}:{port}"),
    }
}

/// Returns the host name that the kernel has for this machine; `localhost` if there is no such
/// name.
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if name.is_empty() || name == "(none)" || !name.bytes().all(is_plain) {
        return "localhost".to_owned();
    }
    name.to_owned()
}

/// Sets the names of an ACME certificate to the hosts' public names, if no names are configured.
fn name_certificate(root: &Section<'_>, tls: &mut Tls, hosts: &Hosts) {
    let TlsMode::Acme(acme) = &mut tls.mode else { return };
    if acme.domains.is_empty() {
        acme.domains = public_names(hosts);
    }
    if acme.domains.is_empty() {
        let message = "`tls.mode`: \"acme\" needs `tls.acme.domains`, or a `public_url` with a \
                       public DNS name";
        root.error("tls", message.to_owned());
    }
}

fn tls(section: &mut Section<'_>, folder: &Path, data_dir: &Path) -> Tls {
    let mode = section.get("mode", "auto".to_owned(), text);
    let certificate = section.optional("certificate", path(folder));
    let private_key = section.optional("private_key", path(folder));
    let names = section.get("names", Vec::new(), list(host_name));
    let files_given = certificate.is_some() || private_key.is_some();
    let is_acme = mode == "acme";
    let acme = section.section("acme", |section| {
        for key in ["directory_ca", "domains", "cache"].into_iter().filter(|_| !is_acme) {
            if section.span(key).is_some() {
                let message = format!("`tls.acme.{key}` is read in `mode = \"acme\"` only");
                section.error(key, message);
            }
        }
        acme(section, folder, data_dir)
    });
    let needs_files = mode == "files";
    let mode = match (mode.as_str(), certificate, private_key) {
        ("files", Some(certificate), Some(private_key)) => {
            TlsMode::Files { certificate, private_key }
        }
        ("files", _, _) => {
            let message = "`tls.mode`: \"files\" needs `certificate` and `private_key`";
            section.error("mode", message.to_owned());
            TlsMode::Auto
        }
        ("auto", ..) => TlsMode::Auto,
        ("self-signed", ..) => TlsMode::SelfSigned,
        ("acme", ..) => TlsMode::Acme(acme),
        ("off", ..) => TlsMode::Off,
        (other, ..) => {
            let expected = "\"auto\", \"self-signed\", \"files\", \"acme\" or \"off\"";
            let found = other.chars().take(80).collect::<String>();
            section.error("mode", format!("`tls.mode`: expected {expected}, found {found:?}"));
            return Tls { mode: TlsMode::Auto, names };
        }
    };
    if files_given && !matches!(mode, TlsMode::Files { .. }) && !needs_files {
        for key in ["certificate", "private_key"] {
            if section.span(key).is_some() {
                section.error(key, format!("`tls.{key}` is read in `mode = \"files\"` only"));
            }
        }
    }
    Tls { mode, names }
}

fn limits(section: &mut Section<'_>, defaults: &Defaults) -> Limits {
    let disk_reserve = section.optional("disk_reserve", size(MIB..=64 * TIB));
    let body_bytes = section.get("body_bytes", 8 * 1024 * 1024, memory_size(KIB..=GIB));
    let time = || duration(MILLISECOND..=HOUR);
    Limits {
        sync_wait: section.get("sync_wait", MINUTE, duration(SECOND..=HOUR)),
        header_timeout: section.get("header_timeout", 10 * SECOND, time()),
        body_timeout: section.get("body_timeout", MINUTE, time()),
        body_total_timeout: section.get("body_total_timeout", 5 * MINUTE, time()),
        body_min_rate: section.get("body_min_rate", 1024, memory_size(1..=GIB)),
        bodies_in_flight: bodies_in_flight(section, body_bytes),
        answers_in_flight: section.get(
            "answers_in_flight",
            192 * 1024 * 1024,
            memory_size(16 * MIB..=TIB),
        ),
        requests_in_flight: section.get("requests_in_flight", 10_000, whole(2..=1_000_000)),
        write_timeout: section.get("write_timeout", 30 * SECOND, time()),
        keep_alive: section.get("keep_alive", 75 * SECOND, time()),
        connections: section.get("connections", 10_000, whole(1..=1_000_000)),
        disk_reserve: disk_reserve.or(defaults.disk_reserve),
        connections_per_address: section.get("connections_per_address", 1000, whole(1..=1_000_000)),
        rate: section.section("rate", rate),
        tokens_per_day: section.optional("tokens_per_day", whole(1..=TOKENS_PER_DAY_MAX)),
        model_memory_bytes: section.optional("model_memory_bytes", size(64 * MIB..=TIB)),
        body_bytes,
    }
}

/// Reads `bodies_in_flight`. A single client may use half of the budget, which must suffice for one
/// body.
fn bodies_in_flight(section: &mut Section<'_>, body_bytes: usize) -> usize {
    let least = body_bytes.saturating_mul(2);
    let default = least.max(256 * 1024 * 1024);
    let bytes = section.get("bodies_in_flight", default, memory_size(KIB..=TIB));
    if bytes < least {
        let message = format!(
            "`limits.bodies_in_flight` must be at least twice `limits.body_bytes`: {least} bytes"
        );
        section.error("bodies_in_flight", message);
    }
    bytes
}

fn rate(section: &mut Section<'_>) -> Option<Rate> {
    let requests_per_second: Option<NonZeroU32> = section.optional("requests_per_second", positive);
    let burst = section.optional("burst", positive);
    if requests_per_second.is_none() && burst.is_some() {
        let message = "`limits.rate.burst` has no effect without `requests_per_second`";
        section.error("burst", message.to_owned());
    }
    requests_per_second.map(|requests_per_second| Rate {
        requests_per_second,
        burst: burst.unwrap_or(requests_per_second),
    })
}

fn engine(section: &mut Section<'_>) -> Engine {
    Engine {
        active: section.get("active", 4096, whole(1..=1_000_000)),
        workflow_timeout: section.get(
            "workflow_timeout",
            15 * MINUTE,
            duration(SECOND..=366 * DAY),
        ),
        shutdown_grace: section.get("shutdown_grace", 10 * SECOND, duration(Duration::ZERO..=HOUR)),
        execution_bytes: section.get("execution_bytes", 256 * MIB, size(MIB..=TIB)),
        organization_bytes: section.optional("organization_bytes", size(MIB..=64 * TIB)),
        descendants: section.get("descendants", 2_000_000, whole(1..=1_000_000_000)),
        workflow_memory: section.get(
            "workflow_memory",
            256 * 1024 * 1024,
            memory_size(16 * MIB..=TIB),
        ),
        tree_bytes: section.get("tree_bytes", 8 * 1024 * MIB, size(MIB..=64 * TIB)),
        payload_inline_bytes: section.get(
            "payload_inline_bytes",
            65_536,
            memory_size(KIB..=64 * KIB),
        ),
    }
}

fn retention(section: &mut Section<'_>) -> Retention {
    let kept = || duration(MINUTE..=TEN_YEARS);
    Retention {
        executions: section.get("executions", 90 * DAY, kept()),
        payloads: section.get("payloads", 30 * DAY, kept()),
        deliveries: section.get("deliveries", 30 * DAY, kept()),
        sessions: section.get("sessions", 30 * DAY, kept()),
        responses: section.get("responses", 30 * DAY, kept()),
    }
}

fn webhooks(section: &mut Section<'_>) -> Webhooks {
    let schedule =
        [5 * SECOND, 30 * SECOND, 2 * MINUTE, 10 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR];
    let delay = || duration(MILLISECOND..=30 * DAY);
    Webhooks {
        schedule: section.get("schedule", schedule.to_vec(), list(delay())),
        timeout: section.get("timeout", 15 * SECOND, duration(MILLISECOND..=10 * MINUTE)),
        redelivery_cooldown: section.get(
            "redelivery_cooldown",
            MINUTE,
            duration(Duration::ZERO..=DAY),
        ),
        send_plain_secret: section.get("send_plain_secret", true, flag),
        in_flight: section.get("in_flight", 256, whole(1..=100_000)),
        in_flight_per_receiver: section.get("in_flight_per_receiver", 16, whole(1..=10_000)),
        circuit_failures: section.get("circuit_failures", 10, whole(1..=1_000_000)),
        circuit_open: section.get("circuit_open", MINUTE, delay()),
        disable_endpoint_after: section.get(
            "disable_endpoint_after",
            5 * DAY,
            duration(Duration::ZERO..=TEN_YEARS),
        ),
    }
}

fn egress(section: &mut Section<'_>, defaults: &Defaults) -> Egress {
    let allow: Vec<IpNet> = defaults.allow.iter().filter_map(|text| text.parse().ok()).collect();
    Egress {
        allow: section.get("allow", allow, list(network)),
        deny: section.get("deny", Vec::new(), list(network)),
        single_label_names: section.get("single_label_names", false, flag),
    }
}

fn files(section: &mut Section<'_>) -> Files {
    Files {
        max_bytes: section.get("max_bytes", 100 * MIB, size(1..=TIB)),
        quota_bytes: section.optional("quota_bytes", size(1..=1024 * TIB)),
        retention: section.get("retention", 180 * DAY, duration(MINUTE..=TEN_YEARS)),
    }
}

fn billing(section: &mut Section<'_>) -> Billing {
    Billing {
        enabled: section.get("enabled", true, flag),
        enforce: section.get("enforce", false, flag),
    }
}

fn decisions(section: &mut Section<'_>) -> Decisions {
    let alias = |name: &str, value: &Value<'_>| Ok((name.to_owned(), text(value)?));
    Decisions {
        aliases: section.get("aliases", Vec::new(), map(alias)),
        samples: section.get("samples", 8, whole(1..=64)),
    }
}

fn backup(section: &mut Section<'_>, folder: &Path, data_dir: &Path) -> Backup {
    let passphrase = section.optional("passphrase_file", path(folder)).and_then(|path| {
        let passphrase = secret::from_file(&path);
        passphrase.map_err(|message| section.error("passphrase_file", message)).ok()
    });
    if section.span("recipient").is_some() && section.span("passphrase_file").is_some() {
        let message = "`backup.recipient` and `backup.passphrase_file`: set only one of them";
        section.error("passphrase_file", message.to_owned());
    }
    let backup = Backup {
        every: section.optional("every", duration(MINUTE..=366 * DAY)),
        keep: section.get("keep", 7, whole(1..=10_000)),
        folder: section.get("folder", data_dir.join("backups"), path(folder)),
        recipients: section.optional("recipient", one_or_more(recipient)).unwrap_or_default(),
        passphrase,
        log: section.optional("log", duration(SECOND..=DAY)),
        log_budget: section.get("log_budget", GIB, size(64 * MIB..=TIB)),
        after: section.get("after", Vec::new(), command(folder)),
        after_timeout: section.get("after_timeout", HOUR, duration(SECOND..=7 * DAY)),
    };
    if !backup.after.is_empty() && backup.every.is_none() {
        let message = "`backup.after` runs after scheduled backups: set `backup.every` too";
        section.error("after", message.to_owned());
    }
    if backup.log.is_some() && backup.every.is_none() {
        let message = "`backup.log` requires scheduled backups: set `backup.every` too";
        section.error("log", message.to_owned());
    }
    backup
}
