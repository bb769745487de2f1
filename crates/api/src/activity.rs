//! Returns the current activity of the service on the control socket, for `orrery top`: the lanes,
//! combined with the metrics for Prometheus. The cost of a request depends only on the number of
//! lanes and metric series, not on the amount of stored data.

use std::collections::BTreeMap;
use std::fs;

use hyper::StatusCode;

use super::doc::Doc;
use super::{Context, Services, doctor, root};
use orrery_domain::chat;
use orrery_domain::execution::{lane_of_model, lane_of_workflow};
use orrery_domain::histogram::{Bucket, Histogram};
use orrery_domain::ids::WorkflowId;
use orrery_engine::LaneActivity;
use orrery_http::{Response, response};
use orrery_telemetry as telemetry;
use orrery_telemetry::exposition::{Sample, samples};
use orrery_wire::activity::{
    Activity, Deliveries, Disk, Executions, Host, Lane, Machine, Process, Store,
};

/// Maximum number of lanes in the response.
const LANES_MAX: usize = 100;
const KIB: u64 = 1024;
/// Hosts that serve only the operator's own tools, and are left out of the response.
const NOT_SHOWN: [&str; 2] = ["control", "metrics"];

pub(crate) const SHOW: Doc = Doc::new("admin", "admin_activity", "Get the current activity");

/// `GET /admin/activity`
pub(crate) async fn show(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let (found, lanes_total) = services.engine.activity(LANES_MAX);
    let mut lanes = Vec::with_capacity(found.len());
    for lane in found {
        lanes.push(described(services, lane).await);
    }
    let waiting = services.outbox.waiting().await.map_err(crate::Error::internal)?;
    let in_memory = *services.outbox.metrics().borrow();
    // These functions read files in /proc.
    let reading = tokio::task::spawn_blocking(|| (telemetry::process_figures(), machine()));
    let (process, machine) = reading.await.map_err(crate::Error::internal)?;
    let counted = Counted::of(&services.metrics.render());
    let (running, queued) = services.engine.totals();
    let stats = services.store.stats();
    let space = services.store.disk_space();
    let activity = Activity {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime: services.clock.now().since(services.started_at).as_secs_f64(),
        warnings: warnings(services).await?,
        executions: Executions {
            running,
            queued,
            retrying: services.engine.retrying(),
            ..counted.executions
        },
        lanes,
        lanes_total,
        hosts: counted.hosts.into_values().collect(),
        requests_in_flight: services.requests.used() as u64,
        deliveries: Deliveries {
            in_flight: in_memory.in_flight,
            queued: waiting.due.saturating_sub(in_memory.in_flight),
            retrying: waiting.retrying.saturating_add(waiting.parked),
            is_capped: waiting.is_capped,
            open_circuits: in_memory.open_circuits,
            ..counted.deliveries
        },
        store: Store {
            bytes: stats.bytes_on_disk,
            log_bytes: stats.log_bytes,
            commits: stats.commits,
            flushes: stats.flushes,
            waiting: stats.waiting,
            times: counted.commits,
        },
        disk: Disk {
            free: space.free(),
            total: space.total(),
            reserve: space.reserve(),
            is_low: space.is_low(),
        },
        process: Process {
            resident_bytes: process.resident_bytes,
            open_files: process.open_files,
            open_files_max: process.open_files_max,
            threads: process.threads,
            cpu: process.cpu,
        },
        machine,
    };
    Ok(response::json(StatusCode::OK, &activity))
}

/// Returns warnings for the operator. Warnings that require a check of the machine come from the
/// doctor.
async fn warnings(services: &Services) -> Result<Vec<String>, crate::Error> {
    let mut warnings = root::warnings(services).await?;
    if !services.readiness.get() {
        warnings.push("starting: loading unfinished work".to_owned());
    }
    if services.engine.paused_since().is_some() {
        warnings.push(
            "work is paused since a restore; run `orrery resume` once the machine that \
             the backup came from is off"
                .to_owned(),
        );
    }
    if let Some(failing) = doctor::failing(services) {
        warnings.push(format!("{failing}; `orrery model list` shows the reasons"));
    }
    Ok(warnings)
}

/// Adds the name that users know to a lane.
async fn described(services: &Services, found: LaneActivity) -> Lane {
    let LaneActivity { lane, load, failed, times } = found;
    let (kind, name) = lane.split_once(':').unwrap_or((&lane, ""));
    let mut described = Lane {
        kind: kind.to_owned(),
        name: name.to_owned(),
        running: load.running,
        queued: load.queued,
        cap: load.cap,
        failing: None,
        server: None,
        failed,
        times,
    };
    if let Some(model) = services.catalog.get(name).filter(|_model| lane == lane_of_model(name)) {
        described.cap = model.concurrency;
        described.failing = model.failing();
        let server = model.runner.managed();
        described.server = server.map(|server| server.situation().phase.as_str().to_owned());
    } else if let Ok(id) = name.parse::<WorkflowId>()
        && lane == lane_of_workflow(id)
        && let Ok(workflow) = services.workflows.by_id(id).await
    {
        described.name.clone_from(&workflow.slug);
    } else if lane == chat::LANE {
        "chat in the background".clone_into(&mut described.name);
    } else if name.is_empty() {
        "sessions".clone_into(&mut described.name);
    }
    described
}

/// Returns the machine's processors and memory.
fn machine() -> Machine {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().and_then(|text| text.parse().ok());
    Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        load: load.unwrap_or(0.0),
        memory_bytes: kib("MemTotal:") * KIB,
        memory_available_bytes: kib("MemAvailable:") * KIB,
    }
}

/// The counters read from the metrics.
#[derive(Debug, Default)]
struct Counted {
    executions: Executions,
    hosts: BTreeMap<String, Host>,
    deliveries: Deliveries,
    commits: Histogram,
}

impl Counted {
    /// Parses metrics in Prometheus's text format.
    fn of(text: &str) -> Self {
        let mut counted = Self::default();
        let mut times: BTreeMap<String, Vec<(f64, u64)>> = BTreeMap::new();
        let mut commits = Vec::new();
        for sample in samples(text) {
            let label = |name: &str| sample.label(name).unwrap_or_default();
            match sample.name {
                "orrery_executions_total" => {
                    counted.executions.ended += sample.count();
                    if matches!(label("status"), "error" | "failed") {
                        counted.executions.failed += sample.count();
                    }
                }
                "orrery_requests_total" => counted.answers(&sample),
                "orrery_request_seconds_bucket" => {
                    times.entry(label("host").to_owned()).or_default().extend(sample.bucket());
                }
                "orrery_commit_seconds_bucket" => commits.extend(sample.bucket()),
                "orrery_webhook_deliveries_total" if label("outcome") == "delivered" => {
                    counted.deliveries.delivered += sample.count();
                }
                "orrery_webhook_deliveries_total" => counted.deliveries.failed += sample.count(),
                "orrery_webhook_retries_total" => counted.deliveries.retries += sample.count(),
                "orrery_webhook_lag_seconds" => counted.deliveries.lag = sample.value,
                _ => {}
            }
        }
        for (host, buckets) in times {
            if let Some(host) = counted.hosts.get_mut(&host) {
                host.times = not_cumulative(buckets);
            }
        }
        counted.commits = not_cumulative(commits);
        counted
    }

    fn answers(&mut self, sample: &Sample<'_>) {
        let host = sample.label("host").unwrap_or_default();
        if NOT_SHOWN.contains(&host) {
            return;
        }
        let own = self.hosts.entry(host.to_owned()).or_default();
        host.clone_into(&mut own.host);
        own.answers += sample.count();
        match sample.label("status").and_then(|status| status.chars().next()) {
            Some('4') => own.refused += sample.count(),
            Some('5') => own.failed += sample.count(),
            _ => {}
        }
    }
}

/// Converts Prometheus's cumulative buckets into a histogram.
fn not_cumulative(mut buckets: Vec<(f64, u64)>) -> Histogram {
    buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (mut from, mut below) = (0.0, 0);
    let buckets = buckets.into_iter().map(|(end, counted)| {
        let to = end.min(f64::MAX);
        let bucket = Bucket { from, to, count: counted.saturating_sub(below) };
        (from, below) = (to, counted.max(below));
        bucket
    });
    Histogram::of(buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE orrery_requests_total counter
orrery_requests_total{host="base",method="GET",route="/v1/models",status="200"} 5
orrery_requests_total{host="base",method="POST",route="/v1/prediction",status="429"} 2
orrery_requests_total{host="base",method="POST",route="a \"b\" c",status="503"} 1
orrery_requests_total{host="control",method="GET",route="/admin/activity",status="200"} 9
orrery_request_seconds_bucket{host="base",le="0.001"} 4
orrery_request_seconds_bucket{host="base",le="0.1"} 7
orrery_request_seconds_bucket{host="base",le="+Inf"} 8
orrery_executions_total{kind="prediction",status="success"} 3
orrery_executions_total{kind="prediction",status="error"} 1
orrery_executions_total{kind="workflow",status="failed"} 1
orrery_webhook_deliveries_total{outcome="delivered"} 6
orrery_webhook_deliveries_total{outcome="failed"} 1
orrery_webhook_retries_total 4
orrery_webhook_lag_seconds 1.5
orrery_commit_seconds_bucket{le="0.005"} 10
orrery_commit_seconds_bucket{le="+Inf"} 10
"#;

    #[test]
    fn activity_is_read_from_the_metrics() {
        let counted = Counted::of(TEXT);
        assert_eq!((counted.executions.ended, counted.executions.failed), (5, 2));
        let hosts: Vec<&Host> = counted.hosts.values().collect();
        assert_eq!(hosts.len(), 1, "the control socket is not shown: {hosts:?}");
        assert_eq!((hosts[0].answers, hosts[0].refused, hosts[0].failed), (8, 2, 1));
        let counts = serde_json::to_value(&hosts[0].times).unwrap();
        assert_eq!(
            counts,
            serde_json::json!([[0.0, 0.001, 4], [0.001, 0.1, 3], [0.1, f64::MAX, 1]])
        );
        let deliveries = counted.deliveries;
        assert_eq!((deliveries.delivered, deliveries.failed, deliveries.retries), (6, 1, 4));
        assert_eq!(deliveries.lag, 1.5);
        assert_eq!(counted.commits.count(), 10);
    }
}
