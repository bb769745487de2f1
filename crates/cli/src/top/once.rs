//! `orrery top --once`: the figures from two samples as a table or as JSON, for pipes, logs and
//! small terminals.

use std::time::Duration;

use super::figures::{Figures, History};
use super::look;
use crate::measures::{amount, bytes, grouped, span, time_or_none};
use crate::output::{self, Column, Output};
use orrery_config::Config;
use orrery_runtime as runtime;

const LANES: [Column; 9] = [
    Column::Text("LANE"),
    Column::Text("KIND"),
    Column::Number("RUNNING"),
    Column::Number("CAP"),
    Column::Number("QUEUED"),
    Column::Number("RATE/S"),
    Column::Number("P50"),
    Column::Number("P99"),
    Column::Number("FAILED/S"),
];
const WHOLE: [Column; 2] = [Column::Text("WHAT"), Column::Text("NOW")];

pub(super) async fn run(every: Duration, output: &Output, config: &Config) -> anyhow::Result<()> {
    let mut history = History::default();
    let begun = runtime::monotonic_now();
    for pause in [Duration::ZERO, every] {
        tokio::time::sleep(pause).await;
        let activity = look(config).await?;
        history.take(begun.elapsed().as_secs_f64(), activity);
    }
    let Some(figures) = history.figures() else { return Ok(()) };
    if output.is_json() {
        return output::json(&figures);
    }
    let in_colour = output::in_colour(&std::io::stdout());
    let width = output::screen_width();
    let table = output::table(&WHOLE, whole(&figures), in_colour, width)
        + "\n"
        + &output::table(&LANES, lanes(&figures), in_colour, width);
    output::raw(table.as_bytes())
}

/// Returns the rows about the service, its work, its resources and its warnings.
fn whole(figures: &Figures) -> Vec<Vec<String>> {
    let service = format!("{}, pid {}, up {}", figures.version, figures.pid, span(figures.uptime));
    let mut lines = vec![("service", service)];
    lines.extend(work(figures));
    lines.extend(means(figures));
    lines.extend(figures.warnings.iter().map(|warning| ("warning", warning.clone())));
    lines.into_iter().map(|(what, now)| vec![what.to_owned(), now]).collect()
}

/// Returns the rows about the service's work.
fn work(figures: &Figures) -> [(&'static str, String); 4] {
    let Figures { requests, executions, commits, deliveries, .. } = figures;
    let times = |p50, p99| format!("p50 {}, p99 {}", time_or_none(p50), time_or_none(p99));
    let counted = |count: usize| grouped(count as f64);
    let more = if deliveries.is_capped { " or more" } else { "" };
    let requests = format!(
        "{}/s, {} in flight, {}; 4xx {}/s, 5xx {}/s",
        amount(requests.rate),
        requests.in_flight,
        times(requests.p50, requests.p99),
        amount(requests.refused_rate),
        amount(requests.failed_rate)
    );
    let executions = format!(
        "{}/s, {} running, {} queued, {} retrying; failed {}/s",
        amount(executions.rate),
        counted(executions.running),
        counted(executions.queued),
        counted(executions.retrying),
        amount(executions.failed_rate)
    );
    let commits = format!(
        "{}/s, {} waiting, {}",
        amount(commits.rate),
        commits.waiting,
        times(commits.p50, commits.p99)
    );
    let deliveries = format!(
        "{}/s, {} in flight, {} queued, {} retrying{more}, {} circuits open; failed {}/s",
        amount(deliveries.rate),
        deliveries.in_flight,
        counted(deliveries.queued),
        counted(deliveries.retrying),
        deliveries.open_circuits,
        amount(deliveries.failed_rate)
    );
    [
        ("requests", requests),
        ("executions", executions),
        ("commits", commits),
        ("webhooks", deliveries),
    ]
}

/// Returns the rows about the service's resources.
fn means(figures: &Figures) -> [(&'static str, String); 3] {
    let Figures { commits, disk, process, machine, .. } = figures;
    let disk = format!(
        "{} of {} free; store {}, including log {}",
        bytes(disk.free),
        bytes(disk.total),
        bytes(commits.store_bytes),
        bytes(commits.log_bytes)
    );
    let process = format!(
        "{:.0} % of one core, {} of memory, {} of {} files, {} threads",
        process.cpu * 100.0,
        bytes(process.resident_bytes),
        process.open_files,
        grouped(process.open_files_max as f64),
        process.threads
    );
    let machine = format!(
        "{} cores, load {:.1}, {} of {} memory available",
        machine.cores,
        machine.load,
        bytes(machine.memory_available_bytes),
        bytes(machine.memory_bytes)
    );
    [("disk", disk), ("process", process), ("machine", machine)]
}

fn lanes(figures: &Figures) -> Vec<Vec<String>> {
    let line = |lane: &super::figures::LaneFigures| {
        vec![
            lane.shown_name(),
            lane.kind.clone(),
            grouped(lane.running as f64),
            grouped(lane.cap as f64),
            grouped(lane.queued as f64),
            amount(lane.rate),
            time_or_none(lane.p50),
            time_or_none(lane.p99),
            amount(lane.failed_rate),
        ]
    };
    figures.lanes.iter().map(line).collect()
}
