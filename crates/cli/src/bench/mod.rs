//! `orrery bench`: benchmarks this machine. Results are comparable across machines. The command
//! starts a private service in a temporary folder and deletes the folder at the end. The benchmark
//! does not touch the operator's service and data.

mod bare;
mod figure;
mod machine;
mod private;
mod show;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use self::figure::{FORMAT, Figure, Report, Unit};
use self::machine::Machine;
use self::private::Private;
use super::output;
use super::service;
use super::signals::Signals;
use crate::load::StandIn;
use orrery_runtime::{self as runtime, Clock, regular_file};

const MIB: u64 = 1024 * 1024;
/// Free space that a run may need, in bytes: for its store and the disk reserve, and for each
/// second of measurement.
const ROOM: u64 = 128 * MIB;
const ROOM_PER_SECOND: u64 = 480 * MIB;
/// Maximum size of a report file, in bytes.
const REPORT_MAX: u64 = MIB;

/// Measure the performance of this box: disk, requests, workflows, webhooks, files, tokens
///
/// Starts a private service in a new folder and deletes it at the end. Nothing else should use the
/// box at the same time.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    /// The folder whose disk is measured
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    dir: PathBuf,
    /// Also measure the tokens per second of a language model: a GGUF file
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Run one short round of each measurement, about 15 seconds in all
    #[arg(long)]
    quick: bool,
    /// Compare with an earlier report: a file written with `--json`
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Print the report as JSON, to save it and compare with it later
    #[arg(long)]
    json: bool,
    /// Seconds of each round, for tests of this command
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = seconds)]
    round: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("write a number of seconds, such as 0.1".to_owned())
}

/// The number and duration of rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    rounds: usize,
    round: Duration,
    file_bytes: usize,
}

impl Plan {
    fn of(asked: &Bench) -> Self {
        let (rounds, seconds, file_bytes) = match (asked.quick, asked.round) {
            (_, Some(_)) => (1, 0.1, 1 << 20),
            (true, None) => (1, 0.9, 16 << 20),
            (false, None) => (3, 1.3, 48 << 20),
        };
        let round = asked.round.unwrap_or(Duration::from_secs_f64(seconds));
        Self { rounds, round, file_bytes }
    }

    /// Returns the free space that the run may need, in bytes.
    fn room(self) -> u64 {
        let round = u64::try_from(self.round.as_millis()).unwrap_or(u64::MAX);
        let measured = round.saturating_mul(self.rounds as u64);
        ROOM.saturating_add(measured.saturating_mul(ROOM_PER_SECOND) / 1000)
    }
}

pub(super) async fn run(asked: Bench) -> anyhow::Result<()> {
    let plan = Plan::of(&asked);
    let earlier = asked.compare.as_deref().map(read).transpose()?;
    let model = asked.model.as_deref().map(private::absolute).transpose()?;
    let dir = disk(&asked.dir, plan.room())?;
    let mut signals = Signals::new().context("signals cannot be caught")?;
    let report = tokio::select! {
        biased;
        () = signals.next() => anyhow::bail!("interrupted: the private service was stopped and its folder deleted"),
        report = measure(&dir, model.as_deref(), plan) => report?,
    };
    if asked.json {
        return output::json(&report);
    }
    let in_colour = output::in_colour(&std::io::stdout());
    output::raw(show::report(&report, earlier.as_ref(), in_colour).as_bytes())
}

/// Returns the absolute path of the folder to measure; fails if it has fewer than `room` free
/// bytes.
fn disk(dir: &Path, room: u64) -> anyhow::Result<PathBuf> {
    let shown = dir.display();
    let dir = fs::canonicalize(dir).with_context(|| format!("--dir {shown} cannot be used"))?;
    anyhow::ensure!(dir.is_dir(), "--dir {shown} is not a folder");
    anyhow::ensure!(
        !service::is_in_memory(&dir),
        "{} is in memory: its figures would not show the speed of a disk. Choose a folder on the service's disk with \
         --dir FOLDER",
        dir.display()
    );
    let free = service::free_bytes(&dir);
    anyhow::ensure!(
        free >= room,
        "{} has {} free, and a run may need {}: choose another disk with --dir FOLDER",
        dir.display(),
        super::measures::bytes(free),
        super::measures::bytes(room)
    );
    Ok(dir)
}

/// Reads an earlier report.
fn read(file: &Path) -> anyhow::Result<Report> {
    let shown = file.display();
    let unreadable = || format!("--compare {shown} cannot be read");
    let length = fs::metadata(file).with_context(unreadable)?.len();
    anyhow::ensure!(length <= REPORT_MAX, "--compare {shown} is too large for a report");
    let text = regular_file::read_to_string(file).with_context(unreadable)?;
    let report = serde_json::from_str::<Report>(&text);
    let report = report.map_err(|error| {
        let error = super::file::without_contents(&error.to_string());
        anyhow::anyhow!(
            "--compare {shown} is not a report: write one with `orrery bench --json >FILE`: {error}"
        )
    })?;
    anyhow::ensure!(
        report.format == FORMAT,
        "--compare {shown} has the format {}, but this version reads format {FORMAT}",
        report.format
    );
    Ok(report)
}

/// A run in progress: the results so far, and the progress bar.
struct Run {
    plan: Plan,
    bar: ProgressBar,
    figures: Vec<Figure>,
}

/// The id, name and unit of a result, for tables and for `--compare`.
type Name = (&'static str, &'static str, Unit);

const HASH: Name = ("cpu_sha256", "one core, SHA-256", Unit::MegabytesPerSecond);
const LOOPBACK: Name = ("loopback_64", "bare HTTP on loopback, 64 connections", Unit::PerSecond);
const FLUSH_P50: Name = ("fsync_p50", "a flush of 4 KiB, median", Unit::Seconds);
const FLUSH_P99: Name = ("fsync_p99", "a flush of 4 KiB, p99", Unit::Seconds);
const GROUPS: Name = ("disk_groups", "bare records, 64 to a flush", Unit::PerSecond);
const START: Name = ("start", "start of the service, until ready", Unit::Seconds);
const CREATE_1: Name = ("create_1", "durable creates, 1 connection", Unit::PerSecond);
const CREATE_64: Name = ("create_64", "durable creates, 64 connections", Unit::PerSecond);
const RUN_1: Name = ("run_1", "a run to the end, median", Unit::Seconds);
const RUN_64: Name = ("run_64", "runs to the end, 64 connections", Unit::PerSecond);
const WORKFLOW_1: Name = ("workflow_1", "a workflow of 3 steps, median", Unit::Seconds);
const WORKFLOW_64: Name = ("workflow_64", "workflows of 3 steps, a burst", Unit::PerSecond);
const DELIVERY: Name = ("delivery", "webhook deliveries", Unit::PerSecond);
const UPLOAD: Name = ("upload", "file upload", Unit::MegabytesPerSecond);
const DOWNLOAD: Name = ("download", "file download", Unit::MegabytesPerSecond);
const READ: Name = ("tokens_read", "a language model reads", Unit::TokensPerSecond);
const WRITTEN: Name = ("tokens_written", "a language model writes", Unit::TokensPerSecond);
/// Number of measurements in a run, not counting the start and the language model.
const MEASUREMENTS: usize = 11;

impl Run {
    /// Runs the rounds of one measurement.
    async fn measure(
        &mut self,
        name: Name,
        mut round: impl AsyncFnMut(Duration) -> anyhow::Result<f64>,
    ) -> anyhow::Result<()> {
        let unused = ("", "", Unit::Seconds);
        self.measure_both([name, unused], async |time| Ok((round(time).await?, f64::NAN))).await
    }

    /// Runs the rounds of a measurement with two results.
    async fn measure_both(
        &mut self,
        [(id, name, unit), (other_id, other_name, other_unit)]: [Name; 2],
        mut round: impl AsyncFnMut(Duration) -> anyhow::Result<(f64, f64)>,
    ) -> anyhow::Result<()> {
        self.bar.set_message(name);
        let (mut values, mut others) = (Vec::new(), Vec::new());
        for _ in 0..self.plan.rounds {
            let (value, other) = round(self.plan.round).await.with_context(|| name.to_owned())?;
            values.push(value);
            others.push(other);
            self.bar.inc(1);
        }
        self.figures.extend(Figure::of(id, name, unit, values));
        if !other_id.is_empty() {
            self.figures.extend(Figure::of(other_id, other_name, other_unit, others));
        }
        Ok(())
    }
}

/// Creates a progress bar on standard error; hidden if standard error is not a terminal.
fn bar(measurements: usize) -> ProgressBar {
    let bar = ProgressBar::new(measurements as u64);
    let style =
        ProgressStyle::with_template("{spinner} {bar:24} {pos:>2} of {len}  {msg}  {elapsed}");
    bar.set_style(style.unwrap_or_else(|_template| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

async fn measure(dir: &Path, model: Option<&Path>, plan: Plan) -> anyhow::Result<Report> {
    let machine = Machine::of(dir);
    let begun = runtime::monotonic_now();
    let measurements = (MEASUREMENTS + usize::from(model.is_some())) * plan.rounds;
    let mut run = Run { plan, bar: bar(measurements), figures: Vec::new() };
    let server = StandIn::start().await.context("loopback has no port")?;
    without_service(&mut run, &server, &private::folder(dir)?).await?;
    run.bar.set_message(START.1);
    let mut service = Private::start(dir, &server, model).await?;
    let (id, name, unit) = START;
    run.figures.extend(Figure::of(id, name, unit, vec![service.started_in]));
    let measured = with_service(&mut run, &server, &service, model.is_some()).await;
    if let Err(error) = measured {
        // If the service has exited, report the cause instead of the broken connection.
        return Err(match service.why_it_ended() {
            Some(why) => error.context(why),
            None => error,
        });
    }
    drop(service);
    run.bar.finish_and_clear();
    Ok(Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        is_optimized: !cfg!(debug_assertions),
        measured_at: Clock::system().now().to_string(),
        seconds: begun.elapsed().as_secs_f64(),
        rounds: plan.rounds,
        machine,
        figures: run.figures,
    })
}

/// Runs the measurements that do not need the service.
async fn without_service(run: &mut Run, server: &StandIn, folder: &TempDir) -> anyhow::Result<()> {
    run.measure(HASH, bare::hash_rate).await?;
    run.measure(LOOPBACK, async |time| bare::loopback_rate(server, 64, time).await).await?;
    run.measure_both([FLUSH_P50, FLUSH_P99], async |time| {
        let times = bare::flush_times(folder.path(), time).await?;
        bare::middle_and_tail(&times).context("nothing was flushed")
    })
    .await?;
    run.measure(GROUPS, async |time| bare::group_rate(folder.path(), time).await).await
}

/// Runs the measurements of the service.
async fn with_service(
    run: &mut Run,
    server: &StandIn,
    service: &Private,
    has_model: bool,
) -> anyhow::Result<()> {
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        figure::quantile(&times, 0.5).context("nothing was measured")
    };
    let bytes = run.plan.file_bytes;
    run.measure(CREATE_1, async |time| service.create_rate(1, time).await).await?;
    run.measure(CREATE_64, async |time| service.create_rate(64, time).await).await?;
    run.measure(RUN_1, async |time| median(service.run_times(time).await?)).await?;
    run.measure(RUN_64, async |time| service.run_rate(64, time).await).await?;
    let trigger = service.workflow(server).await?;
    run.measure(WORKFLOW_1, async |time| median(service.workflow_times(&trigger, time).await?))
        .await?;
    run.measure(WORKFLOW_64, async |time| service.workflow_rate(&trigger, time).await).await?;
    run.measure(DELIVERY, async |time| service.delivery_rate(server, time).await).await?;
    run.measure_both([UPLOAD, DOWNLOAD], async |_time| service.file_rates(bytes).await).await?;
    if has_model {
        run.bar.set_message("loading the language model");
        let mut number = 0;
        service.token_rates(number).await?;
        run.measure_both([READ, WRITTEN], async |_time| {
            number += 1;
            service.token_rates(number).await
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(quick: bool, round: Option<Duration>) -> Bench {
        let dir = PathBuf::from(".");
        Bench { dir, model: None, quick, compare: None, json: false, round }
    }

    #[test]
    fn plans_take_a_minute_or_a_quarter_minute() {
        let seconds =
            |plan: Plan| plan.rounds as f64 * plan.round.as_secs_f64() * MEASUREMENTS as f64;
        let whole = seconds(Plan::of(&asked(false, None)));
        let quick = seconds(Plan::of(&asked(true, None)));
        assert!((35.0..55.0).contains(&whole), "{whole}");
        assert!((7.0..13.0).contains(&quick), "{quick}");
        let tiny = Plan::of(&asked(false, Some(Duration::from_millis(1))));
        assert_eq!((tiny.rounds, tiny.round), (1, Duration::from_millis(1)));
        let rooms = [Plan::of(&asked(false, None)), Plan::of(&asked(true, None)), tiny];
        assert_eq!(rooms.map(|plan| plan.room() / MIB), [2000, 560, 128]);
    }

    #[test]
    fn disk_rejects_memory_and_files() {
        let refused = disk(Path::new("/dev/shm"), 0).unwrap_err().to_string();
        assert!(
            refused.contains("/dev/shm is in memory") && refused.contains("--dir FOLDER"),
            "{refused}"
        );
        let missing = format!("{:#}", disk(Path::new("/no/such/folder"), 0).unwrap_err());
        assert!(missing.starts_with("--dir /no/such/folder cannot be used: "), "{missing}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(disk(file.path(), 0).unwrap_err().to_string().ends_with("is not a folder"));
    }

    #[test]
    fn read_rejects_invalid_reports() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("before.json");
        let said = |text: &str| {
            fs::write(&file, text).unwrap();
            read(&file).unwrap_err().to_string()
        };
        assert!(said("{}").contains("is not a report: write one with `orrery bench --json >FILE`"));
        let machine = Machine::of(folder.path());
        let other = Report {
            format: 9,
            version: "0.1.0".to_owned(),
            is_optimized: true,
            measured_at: String::new(),
            seconds: 1.0,
            rounds: 1,
            machine,
            figures: Vec::new(),
        };
        let text = serde_json::to_string(&other).unwrap();
        assert!(said(&text).contains("has the format 9"));
        fs::remove_file(&file).unwrap();
        assert!(read(&file).unwrap_err().to_string().ends_with("before.json cannot be read"));
        let good = Report { format: FORMAT, ..other };
        fs::write(&file, serde_json::to_string(&good).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), good);
    }
}
