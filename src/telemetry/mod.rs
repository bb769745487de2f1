//! Logs and metrics: where they go, in which shape, and what each metric means.
//!
//! Logs go to standard error. They name paths, ids and causes, and never hold query strings,
//! bodies, keys or secrets: those who log keep them out, and crates that see raw traffic are never
//! let below `warn`. A request's id is a field of its span, so that every line in it carries it.

pub mod exposition;
mod process;

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload};

pub use self::process::{
    Figures as ProcessFigures, figures as process_figures, render as process_metrics,
};
use crate::config::{Log, LogFormat};
use crate::runtime::Tasks;

/// How often the samples of histograms are folded into their buckets, so that they do not pile up
/// while nobody reads `/metrics`.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bounds of the buckets of a request's time, in seconds: from an answer out of memory to a held
/// one.
const REQUEST_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];

/// Bounds of the buckets of work's time, in seconds: from a built-in model to a long workflow.
const WORK_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0];

/// Bounds of the buckets of a commit's time, in seconds.
const COMMIT_SECONDS: [f64; 11] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];

/// Counters with labels, whose series begin with the first event.
const LABELLED: [&str; 5] = [
    "orrery_endpoint_requests_total",
    "orrery_requests_total",
    "orrery_executions_total",
    "orrery_audit_repairs_total",
    "orrery_webhook_deliveries_total",
];

/// Lets the lines of the access log through at every level.
const ACCESS_LOG: &str = "orrery::access=info";

/// The longest value in a line of text, in characters: the journal begins another line after 48 KiB.
const VALUE_CHARS_MAX: usize = 4096;

/// Replaces the filter of the logs that were started.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Why logs or metrics could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the log level {level:?} cannot be read")]
    Level {
        level: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("logs are not set up")]
    NotStarted,
    #[error("logs are already set up")]
    Installed(#[source] tracing::subscriber::SetGlobalDefaultError),
    #[error("metrics cannot be set up")]
    Metrics(#[source] metrics_exporter_prometheus::BuildError),
}

/// Sends the logs of this process to standard error, as `log` says.
///
/// # Errors
/// When the level is none, or when it was called before.
pub fn start_logs(log: &Log) -> Result<(), Error> {
    let terminal = std::io::stderr().is_terminal();
    let (filter, handle) = reload::Layer::new(filter(&log.level)?);
    let installed = match log.format {
        LogFormat::Auto if terminal => install_text(filter, true),
        LogFormat::Text => install_text(filter, terminal),
        LogFormat::Auto | LogFormat::Json => {
            tracing::subscriber::set_global_default(json(filter, std::io::stderr))
        }
    };
    installed.map_err(Error::Installed)?;
    // Only one subscriber is ever installed.
    let _first = FILTER.set(handle);
    Ok(())
}

/// Logs at another level from now on.
///
/// # Errors
/// When the level is none, or when no logs were started.
pub fn set_level(level: &str) -> Result<(), Error> {
    let filter = filter(level)?;
    let handle = FILTER.get().ok_or(Error::NotStarted)?;
    handle.reload(filter).map_err(|_gone| Error::NotStarted)
}

/// The metrics of this process; the first call sets them up, every other gives the same.
///
/// # Errors
/// When another recorder is installed.
pub fn metrics() -> Result<PrometheusHandle, Error> {
    static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
    static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = INSTALLING.lock();
    if let Some(handle) = INSTALLED.get() {
        return Ok(handle.clone());
    }
    let handle =
        recorder().and_then(PrometheusBuilder::install_recorder).map_err(Error::Metrics)?;
    describe();
    Ok(INSTALLED.get_or_init(|| handle).clone())
}

/// Folds histogram samples into buckets until the shutdown.
pub fn run_upkeep(tasks: &Tasks, metrics: PrometheusHandle) {
    let stopping = tasks.token();
    tasks.spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            metrics.run_upkeep();
        }
    });
}

fn recorder() -> Result<PrometheusBuilder, metrics_exporter_prometheus::BuildError> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(full("orrery_commit_seconds"), &COMMIT_SECONDS)?
        .set_buckets_for_metric(full("orrery_request_seconds"), &REQUEST_SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &WORK_SECONDS)
}

fn describe() {
    describe_counters();
    describe_gauges();
    describe_histograms();
}

fn describe_counters() {
    let counters = [
        ("orrery_requests_total", "Requests answered, by host, method, route and status"),
        ("orrery_executions_total", "Executions that ended, by kind and status"),
        (
            "orrery_endpoint_requests_total",
            "Requests to the servers of models with several, by outcome: answered or missed",
        ),
        ("orrery_commits_total", "Commits made durable"),
        ("orrery_flushes_total", "Groups of commits that were flushed to disk together"),
        (
            "orrery_checkpoints_total",
            "Checkpoints: times that rows went from the log into the tree",
        ),
        (
            "orrery_audit_repairs_total",
            "Differences between memory and disk that the audit repaired, by kind",
        ),
        ("orrery_webhook_deliveries_total", "Deliveries that ended, by outcome"),
        ("orrery_webhook_retries_total", "Delivery attempts that failed and will be repeated"),
        ("orrery_webhook_unsent_total", "Delivery attempts that this machine could not make"),
        (
            "orrery_webhook_endpoints_disabled_total",
            "Endpoints that were disabled: deliveries to them fail",
        ),
        (
            "orrery_executions_abandoned_total",
            "Executions that were ended because they crashed the service",
        ),
        ("orrery_spans_exported_total", "Spans that the collector has taken"),
        (
            "orrery_spans_dropped_total",
            "Spans that were not exported; an execution whose spans were never made counts as one",
        ),
        ("orrery_sweeps_refused_total", "Sweeps by age that a wrong clock held back"),
        ("orrery_kept_log_given_up_total", "Chains of the log archive that were given up"),
        ("orrery_backup_failures_total", "Scheduled backups that were not written"),
        ("orrery_backup_after_failures_total", "Runs of backup.after that failed"),
    ];
    for (name, text) in counters {
        describe_counter!(name, text);
        // Those without labels are there from the start, so that an increase of one is seen.
        if !LABELLED.contains(&name) {
            metrics::counter!(name).increment(0);
        }
    }
}

fn describe_gauges() {
    let gauges = [
        ("orrery_bodies_in_flight_bytes", "Request and reply bodies in memory"),
        ("orrery_requests_in_flight", "Requests that are being answered"),
        ("orrery_executions_running", "Executions that run now"),
        ("orrery_executions_queued", "Executions that wait for their turn"),
        (
            "orrery_executions_retrying",
            "Executions that are tried again after an error of the service itself",
        ),
        ("orrery_disk_free_bytes", "Free space of the data folder's disk, the ballast included"),
        ("orrery_disk_reserve_bytes", "Free space below which new work is refused"),
        ("orrery_disk_low", "Whether new work is refused because the disk is nearly full: 1 or 0"),
        ("orrery_sweep_refused_files", "Files that a refused sweep would have moved away"),
        ("orrery_commits_waiting", "Commits that wait for the writer"),
        ("orrery_paused", "Whether work is held back since a restore: 1 or 0"),
        ("orrery_models", "Models in the catalog"),
        ("orrery_model_healthy", "Whether a model is expected to answer: 1, or 0 while it fails"),
        ("orrery_model_running", "Predictions and steps that a model runs now"),
        ("orrery_model_queued", "Predictions and steps that wait for a model"),
        (
            "orrery_endpoint_used",
            "Whether a server of a model with several gets requests: 1, or 0 while it is left out",
        ),
        ("orrery_endpoint_in_flight", "Requests that a server of a model with several has"),
        ("orrery_webhook_in_flight", "Delivery attempts in flight"),
        (
            "orrery_webhook_open_circuits",
            "Receivers to which nothing is sent for now, after failures",
        ),
    ];
    for (name, text) in gauges {
        describe_gauge!(name, text);
    }
    describe_gauge!("orrery_store_bytes", Unit::Bytes, "The size of the store on disk");
    let gauges = [
        ("orrery_clock_ahead_seconds", "How far the machine's clock is ahead of the believed time"),
        (
            "orrery_certificate_expiry_timestamp_seconds",
            "When the served certificate ends, in Unix time",
        ),
        (
            "orrery_backup_last_timestamp_seconds",
            "When the newest backup was written, in Unix time; 0: never",
        ),
        ("orrery_kept_log_age_seconds", "Since when the log archive lacks something"),
    ];
    for (name, text) in gauges {
        describe_gauge!(name, Unit::Seconds, text);
    }
    let waiting = "Log that waits for the log archive";
    describe_gauge!("orrery_kept_log_waiting_bytes", Unit::Bytes, waiting);
    let lag = "How long the oldest due delivery has waited";
    describe_gauge!("orrery_webhook_lag_seconds", Unit::Seconds, lag);
}

fn describe_histograms() {
    let histograms = [
        ("orrery_request_seconds", "Time from a request's head to its answer, by host"),
        ("orrery_execution_seconds", "Time from the creation of an execution to its end"),
        ("orrery_commit_seconds", "Time of one group of commits, until it is on disk"),
        ("orrery_checkpoint_seconds", "Time in which rows went from the log into the tree"),
    ];
    for (name, text) in histograms {
        describe_histogram!(name, Unit::Seconds, text);
    }
}

/// The level holds for the service itself; all else speaks up only to warn.
fn filter(level: &str) -> Result<EnvFilter, Error> {
    let directives: Vec<String> = level
        .split(',')
        .map(|directive| match directive {
            "off" | "error" => format!("{directive},orrery={directive}"),
            of_a_module if of_a_module.contains('=') => of_a_module.to_owned(),
            level => format!("warn,orrery={level}"),
        })
        .collect();
    // The access log has a switch of its own.
    EnvFilter::builder()
        .parse(format!("{ACCESS_LOG},{}", directives.join(",")))
        .map_err(|source| Error::Level { level: level.to_owned(), source })
}

fn install_text(
    filter: Filter,
    colours: bool,
) -> Result<(), tracing::subscriber::SetGlobalDefaultError> {
    let colours = colours && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing::subscriber::set_global_default(text(filter, colours, std::io::stderr))
}

/// A filter that can be replaced.
type Filter = reload::Layer<EnvFilter, Registry>;

fn text<W>(filter: Filter, colours: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_ansi(colours)
        .with_writer(writer);
    tracing_subscriber::registry().with(filter).with(lines)
}

/// Writes a field of a line of text. A value may come from outside: it cannot begin a line, change
/// the terminal or reorder the text around it.
fn write_field(
    writer: &mut Writer<'_>,
    field: &tracing::field::Field,
    value: &dyn fmt::Debug,
) -> fmt::Result {
    let text = format!("{value:?}");
    if field.name() != "message" {
        let (name, equals, end) = if writer.has_ansi_escapes() {
            ("\u{1b}[3m", "\u{1b}[0;2m=", "\u{1b}[0m")
        } else {
            ("", "=", "")
        };
        let own = field.name().trim_start_matches("r#");
        write!(writer, "{name}{own}{equals}{end}")?;
    }
    for letter in text.chars().take(VALUE_CHARS_MAX) {
        let acts = letter.is_control()
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if acts {
            write!(writer, "{}", letter.escape_default())?
        } else {
            writer.write_char(letter)?
        }
    }
    let is_cut = text.chars().nth(VALUE_CHARS_MAX).is_some();
    if is_cut { writer.write_char('…') } else { Ok(()) }
}

fn json<W>(filter: Filter, writer: W) -> impl Subscriber + Send + Sync + for<'s> LookupSpan<'s>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(writer);
    tracing_subscriber::registry().with(filter).with(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::CapturedLog;

    fn replaceable(level: &str) -> Filter {
        reload::Layer::new(filter(level).unwrap()).0
    }

    #[test]
    fn log_level_is_replaced_while_logs_are_written() {
        let lines = CapturedLog::default();
        let sink = lines.clone();
        let (layer, handle) = reload::Layer::new(filter("info").unwrap());
        let subscriber = text(layer, false, move || sink.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "orrery::engine", "before");
            handle.reload(filter("debug").unwrap()).unwrap();
            tracing::debug!(target: "orrery::engine", "after");
        });
        assert!(!lines.text().contains("before") && lines.text().contains("after"));
    }

    #[test]
    fn log_text_value_stays_in_its_line() {
        let written = |value: &str, colours: bool| {
            let lines = CapturedLog::default();
            let sink = lines.clone();
            let subscriber = text(replaceable("info"), colours, move || sink.clone());
            tracing::subscriber::with_default(subscriber, || {
                let _span = tracing::info_span!("request", id = %value).entered();
                tracing::info!(path = %value, r#type = value, "answered {value}");
            });
            lines.text()
        };
        for hostile in [
            "a\n2026-11-20T09:30:00Z ERROR orrery: forged",
            "a\r\nb",
            "a\u{1b}[2Jb\u{9b}2J\u{7}\u{8}\u{7f}",
            "a\u{2028}b\u{2029}\u{85}c\u{b}\u{c}",
            "a\u{202e}b\u{2066}\u{200f}",
            "a\0b",
        ] {
            let line = written(hostile, false);
            assert_eq!(line.matches(char::is_control).collect::<Vec<_>>(), ["\n"], "{line:?}");
            assert!(line.ends_with('\n') && line.contains("answered a"), "{line:?}");
            let reorders = ['\u{2028}', '\u{2029}', '\u{202e}', '\u{2066}', '\u{200f}'];
            assert!(!line.contains(reorders), "{line:?}");
            let line = written(hostile, true);
            assert!(!line.contains("\u{1b}[2J") && line.matches('\n').count() == 1, "{line:?}");
        }
        let plain = written("/v1/models é日", false);
        assert!(
            plain.ends_with(
                " answered /v1/models é日 path=/v1/models é日 type=\"/v1/models é日\"\n"
            ) && plain.contains("request{id=/v1/models é日}"),
            "{plain}"
        );
        let long = written(&"x".repeat(1 << 20), false);
        assert!(long.len() < 5 * VALUE_CHARS_MAX && long.contains("x…"), "{}", long.len());
    }

    #[test]
    fn log_json_line_carries_request_id() {
        let lines = CapturedLog::default();
        let sink = lines.clone();
        let subscriber = json(replaceable("info"), move || sink.clone());
        tracing::subscriber::with_default(subscriber, || {
            let _span = tracing::info_span!("request", request_id = "r-17").entered();
            tracing::info!(path = "/v1/models", "answered");
        });
        let line: serde_json::Value = serde_json::from_str(&lines.text()).unwrap();
        assert_eq!(line["message"], "answered");
        assert_eq!(line["path"], "/v1/models");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["span"]["request_id"], "r-17");
    }

    #[test]
    fn log_filter_limits_other_crates_to_warnings() {
        let lines = CapturedLog::default();
        let sink = lines.clone();
        let level = "debug,orrery::engine=trace";
        let subscriber = text(replaceable(level), false, move || sink.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "h2::codec", "header smk_secret");
            tracing::warn!(target: "h2::codec", "a warning");
            tracing::trace!(target: "orrery::http", "too fine");
            tracing::trace!(target: "orrery::engine", "fine enough");
            tracing::debug!(target: "orrery::http", "a detail");
        });
        let text = lines.text();
        for shown in ["a warning", "fine enough", "a detail"] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        for hidden in ["smk_secret", "too fine"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
    }

    #[test]
    fn metrics_recorder_installs_once_and_renders_histograms() {
        let handle = metrics().unwrap();
        metrics::histogram!("orrery_request_seconds", "host" => "base").record(0.003);
        metrics::counter!("orrery_requests_total", "route" => "/").increment(1);
        metrics().unwrap().run_upkeep();
        let text = handle.render();
        assert!(text.contains("# HELP orrery_requests_total Requests answered"), "{text}");
        assert!(
            text.contains("orrery_request_seconds_bucket{host=\"base\",le=\"0.005\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("orrery_request_seconds_bucket{host=\"base\",le=\"0.0025\"} 0"),
            "{text}"
        );
    }
}
