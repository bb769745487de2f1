//! Logs and metrics: destinations, formats, and the meaning of each metric.
//!
//! Logs go to standard error. Log lines contain paths, ids and causes, but never query strings,
//! bodies, keys or secrets: callers do not log these, and dependencies that see raw traffic are
//! limited to `warn`. A request's id is a field of the request's span, so every line within the
//! span has the id.

pub mod exposition;
mod process;

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::Value;
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
use orrery_config::{Log, LogFormat};
use orrery_runtime::Tasks;

/// How often histogram samples are folded into their buckets, so that they do not accumulate while
/// nobody reads `/metrics`.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bucket bounds for request durations, in seconds. The bounds range from a response served from
/// memory to a long poll.
const REQUEST_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0];

/// Bucket bounds for the tokens of a call, as OpenTelemetry's conventions recommend.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Bucket bounds for execution times, in seconds. The bounds range from a built-in model to a long
/// workflow.
const WORK_SECONDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0];

/// Bucket bounds for commit durations, in seconds.
const COMMIT_SECONDS: [f64; 11] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];

/// Counters with labels. Each of their series starts at the first event.
const LABELLED: [&str; 7] = [
    "orrery_cache_lookups_total",
    "orrery_endpoint_requests_total",
    "orrery_upstream_requests_total",
    "orrery_requests_total",
    "orrery_executions_total",
    "orrery_audit_repairs_total",
    "orrery_webhook_deliveries_total",
];

/// Enables the access log at every level.
const ACCESS_LOG: &str = "orrery::access=info";

/// The maximum length of a value in a line, in characters: the journal splits lines after 48 KiB.
const VALUE_CHARS_MAX: usize = 4096;
/// JSON lines of up to this many bytes are not truncated.
const JSON_LINE_UNCUT_MAX: usize = 16 * 1024;

/// Handle that replaces the log filter.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// An error when setting up logs or metrics.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid log level {level:?}")]
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

/// Sends the logs of this process to standard error, as configured in `log`.
///
/// # Errors
/// Fails if the level is invalid, or logs are already set up.
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

/// Changes the log level.
///
/// # Errors
/// Fails if the level is invalid, or logs are not set up.
pub fn set_level(level: &str) -> Result<(), Error> {
    let filter = filter(level)?;
    let handle = FILTER.get().ok_or(Error::NotStarted)?;
    handle.reload(filter).map_err(|_gone| Error::NotStarted)
}

/// Returns the metrics of this process. The first call sets them up; later calls return the same
/// handle.
///
/// # Errors
/// Fails if another recorder is installed.
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
        .set_buckets_for_metric(full("gen_ai_client_token_usage"), &TOKENS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &WORK_SECONDS)
}

/// Describes the metrics of the service to the recorder. Counters without labels start at 0.
pub fn describe() {
    describe_counters();
    describe_gauges();
    describe_histograms();
}

fn describe_counters() {
    let counters = [
        ("orrery_requests_total", "Requests answered, by host, method, route and status"),
        ("orrery_executions_total", "Finished executions, by kind and status"),
        (
            "orrery_endpoint_requests_total",
            "Requests to the endpoints of models that have several endpoints, by outcome: answered \
             or missed",
        ),
        (
            "orrery_upstream_requests_total",
            "Attempts to call an upstream of the chat router, by outcome: answered, failed, limited \
             (429) or rejected (its key)",
        ),
        ("orrery_commits_total", "Commits made durable"),
        ("orrery_flushes_total", "Groups of commits flushed to disk together"),
        ("orrery_checkpoints_total", "Checkpoints, which move rows from the log to the tree"),
        (
            "orrery_audit_repairs_total",
            "Differences between memory and disk repaired by the audit, by kind",
        ),
        ("orrery_webhook_deliveries_total", "Finished deliveries, by outcome"),
        ("orrery_webhook_retries_total", "Failed delivery attempts that will be retried"),
        ("orrery_webhook_unsent_total", "Delivery attempts not made because of a local error"),
        ("orrery_webhook_endpoints_disabled_total", "Disabled endpoints, whose deliveries fail"),
        ("orrery_executions_abandoned_total", "Executions failed because they crashed the service"),
        ("orrery_spans_exported_total", "Spans accepted by the collector"),
        (
            "orrery_spans_dropped_total",
            "Spans not exported; an execution whose spans were never derived counts as one",
        ),
        ("orrery_sweeps_refused_total", "Retention sweeps skipped because of an implausible clock"),
        (
            "orrery_cache_lookups_total",
            "Lookups in the result cache, by kind of call and outcome: hit or miss",
        ),
        ("orrery_kept_log_given_up_total", "Abandoned chains of the log archive"),
        ("orrery_backup_failures_total", "Failed scheduled backups"),
        ("orrery_backup_after_failures_total", "Failed runs of backup.after"),
    ];
    for (name, text) in counters {
        describe_counter!(name, text);
        // Counters without labels exist from the start, so that their first increase is visible.
        if !LABELLED.contains(&name) {
            metrics::counter!(name).increment(0);
        }
    }
}

fn describe_gauges() {
    let gauges = [
        ("orrery_bodies_in_flight_bytes", "Request and response bodies in memory"),
        ("orrery_requests_in_flight", "Requests in flight"),
        ("orrery_executions_running", "Running executions"),
        ("orrery_executions_queued", "Queued executions"),
        ("orrery_executions_retrying", "Executions being retried after an internal error"),
        ("orrery_disk_free_bytes", "Free space of the data folder's disk, including the ballast"),
        ("orrery_disk_reserve_bytes", "Free space below which new work is refused"),
        ("orrery_disk_low", "Whether new work is refused because the disk is nearly full: 1 or 0"),
        (
            "orrery_sweep_refused_files",
            "Orphaned files that an aborted sweep would have moved to the trash",
        ),
        ("orrery_commits_waiting", "Commits waiting for the writer"),
        ("orrery_paused", "Whether work is held back since a restore: 1 or 0"),
        ("orrery_models", "Models in the catalog"),
        ("orrery_model_healthy", "Whether a model is expected to answer: 1, or 0 while it fails"),
        ("orrery_model_running", "Running predictions and steps of a model"),
        ("orrery_model_queued", "Predictions and steps queued for a model"),
        ("orrery_model_waiting", "Predictions and steps that no worker of a model has claimed"),
        (
            "orrery_model_workers",
            "Workers of a model whose last request was at most one lease time ago",
        ),
        (
            "orrery_endpoint_used",
            "Whether an endpoint of a model with several endpoints is in rotation: 1 or 0",
        ),
        (
            "orrery_endpoint_in_flight",
            "Requests in flight at an endpoint of a model with several endpoints",
        ),
        (
            "orrery_server_ready",
            "Whether a server that this service starts for a model is ready: 1 or 0",
        ),
        ("orrery_upstream_used", "Whether an upstream of the chat router is in rotation: 1 or 0"),
        ("orrery_upstream_in_flight", "Requests in flight at an upstream of the chat router"),
        (
            "orrery_upstream_spend_dollars",
            "What callers have paid for an upstream's answers since the start of the service",
        ),
        ("orrery_webhook_in_flight", "Delivery attempts in flight"),
        ("orrery_webhook_open_circuits", "Receivers with an open circuit breaker"),
    ];
    for (name, text) in gauges {
        describe_gauge!(name, text);
    }
    describe_gauge!("orrery_store_bytes", Unit::Bytes, "The size of the store on disk");
    let gauges = [
        ("orrery_clock_ahead_seconds", "How far the machine's clock is ahead of the trusted time"),
        (
            "orrery_certificate_expiry_timestamp_seconds",
            "Expiry of the served certificate, in Unix time",
        ),
        (
            "orrery_backup_last_timestamp_seconds",
            "Time of the newest backup, in Unix time; 0 if there is none",
        ),
        ("orrery_kept_log_age_seconds", "Age of the oldest log that is not archived"),
    ];
    for (name, text) in gauges {
        describe_gauge!(name, Unit::Seconds, text);
    }
    let waiting = "Log that is not archived yet";
    describe_gauge!("orrery_kept_log_waiting_bytes", Unit::Bytes, waiting);
    let lag = "How long the oldest due delivery has waited";
    describe_gauge!("orrery_webhook_lag_seconds", Unit::Seconds, lag);
}

fn describe_histograms() {
    let histograms = [
        ("orrery_request_seconds", "Time from a request's head to its response, by host"),
        ("orrery_execution_seconds", "Time from the creation of an execution to its end"),
        (
            "gen_ai_client_operation_duration_seconds",
            "Duration of chat router calls, by operation and model",
        ),
        ("orrery_commit_seconds", "Time to make a group of commits durable"),
        ("orrery_checkpoint_seconds", "Duration of checkpoints"),
    ];
    for (name, text) in histograms {
        describe_histogram!(name, Unit::Seconds, text);
    }
    let tokens = "Tokens of chat router calls, by kind, operation and model";
    describe_histogram!("gen_ai_client_token_usage", Unit::Count, tokens);
}

/// Returns the filter for a level. The level applies to the service's own crates; dependencies log
/// only warnings.
fn filter(level: &str) -> Result<EnvFilter, Error> {
    let directives: Vec<String> = level
        .split(',')
        .map(|directive| match directive {
            "off" | "error" => format!("{directive},orrery={directive}"),
            of_a_module if of_a_module.contains('=') => of_a_module.to_owned(),
            level => format!("warn,orrery={level}"),
        })
        .collect();
    // The access log has its own setting, so it is enabled at every level.
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

/// Writes a field of a text line. A value may come from an untrusted source, so it must not start a
/// line, control the terminal or reorder the surrounding text.
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
        .with_writer(CutLines(writer));
    tracing_subscriber::registry().with(filter).with(lines)
}

/// Truncates the values in long JSON lines. The formatter writes each line in one piece.
struct CutLines<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for CutLines<W> {
    type Writer = CutLines<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        CutLines(self.0.make_writer())
    }
}

impl<W: io::Write> io::Write for CutLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() > JSON_LINE_UNCUT_MAX
            && let Ok(mut value) = serde_json::from_slice::<Value>(line)
        {
            cut(&mut value);
            self.0.write_all(format!("{value}\n").as_bytes())?;
        } else {
            self.0.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Truncates each text to [`VALUE_CHARS_MAX`].
fn cut(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(VALUE_CHARS_MAX) {
                text.truncate(end);
                text.push('…');
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(cut),
        Value::Array(items) => items.iter_mut().for_each(cut),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_runtime::CapturedLog;

    fn replaceable(level: &str) -> Filter {
        reload::Layer::new(filter(level).unwrap()).0
    }

    #[test]
    fn log_level_changes_while_logs_are_written() {
        let lines = CapturedLog::default();
        let sink = lines.clone();
        let (layer, handle) = reload::Layer::new(filter("info").unwrap());
        let subscriber = text(layer, false, move || sink.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "orrery_engine", "before");
            handle.reload(filter("debug").unwrap()).unwrap();
            tracing::debug!(target: "orrery_engine", "after");
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
            tracing::info!(path = %"é".repeat(1 << 20), "answered {}", "x".repeat(1 << 20));
        });
        let text = lines.text();
        let (first, long) = text.split_once('\n').unwrap();
        assert!(long.len() < 4 * VALUE_CHARS_MAX && long.ends_with("}\n"), "{}", long.len());
        let line: Value = serde_json::from_str(long).unwrap();
        assert!(line["path"].as_str().unwrap().ends_with("é…"), "{line}");
        assert_eq!(line["span"]["request_id"], "r-17");
        let line: Value = serde_json::from_str(first).unwrap();
        assert_eq!(line["message"], "answered");
        assert_eq!(line["path"], "/v1/models");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["span"]["request_id"], "r-17");
    }

    #[test]
    fn log_filter_limits_other_crates_to_warnings() {
        let lines = CapturedLog::default();
        let sink = lines.clone();
        let level = "debug,orrery_engine=trace";
        let subscriber = text(replaceable(level), false, move || sink.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "h2::codec", "header smk_secret");
            tracing::warn!(target: "h2::codec", "a warning");
            tracing::trace!(target: "orrery_http", "too fine");
            tracing::trace!(target: "orrery_engine", "fine enough");
            tracing::debug!(target: "orrery_http", "a detail");
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
