//! The bare store: `cargo bench --bench store`.
//!
//! First, commits of 1, 8 and 64 committers: their rate, latency, CPU time and disk usage. The same
//! rounds measure a raw log, that is, appends of the same bytes to a file with one `fdatasync` for
//! as many values as there are committers. If `ORRERY_BENCH_BASELINE` names this program built from
//! another commit (`benches/baseline` builds it), they also measure that commit's store. Each run
//! has its own process and folder. Next, 64 committers at a fixed rate, so that the latencies of
//! the two stores are comparable. Finally, the tree's segment size: 512 KiB, the engine's default,
//! against 8 MiB, as set by `storage::tree`, with values of 700 bytes and of 32 KiB.
//!
//! `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_MILLIS` (1,500 per round), `ORRERY_BENCH_PACE` (20,000
//! commits a second; 0 skips that part), `ORRERY_BENCH_MEBIBYTES` (96 written with each segment
//! size; 0 skips that part).

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use orrery_domain::ids::ExecutionId;
use orrery_runtime::new_id;
use orrery_storage::{Commit, Key, Options, Store, Table as Rows};

use support::disk::{self, Disk};
use support::process;
use support::table::{Table, mebibytes, milliseconds, number};

/// The same allocator as in the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A typical record, and the largest payload size of interest for the tree.
const VALUES: [usize; 2] = [700, 32 * 1024];
const COMMITTERS: [u64; 3] = [1, 8, 64];
/// The row size of large values when they are split for small segments, in bytes.
const CHUNK: usize = 4096;
/// Bytes per flush, as in `storage::writer`.
const GROUP_BYTES: usize = 1024 * 1024;

fn main() {
    if let Some(role) = process::role() {
        return match role.as_str() {
            "raw" => Round::of_environment().append(),
            "commit" => {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                runtime.block_on(Round::of_environment().commit());
            }
            "write" => Variant::of_environment().write(),
            _ => Variant::of_environment().open_and_tell(),
        };
    }
    let subjects = Subject::all();
    commits(&subjects);
    let pace = support::knob("ORRERY_BENCH_PACE", 20_000);
    if pace > 0 {
        println!();
        paced(&subjects[1..], pace);
    }
    if support::knob("ORRERY_BENCH_MEBIBYTES", 96) > 0 {
        println!();
        segments();
    }
}

/// Returns incompressible bytes.
fn value(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    })
    .take(length)
    .collect()
}

/// A store that receives the commits of a round.
struct Subject {
    name: &'static str,
    program: PathBuf,
    role: &'static str,
}

/// The measurements of a round.
#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    /// Median commit latency in seconds.
    median: f64,
    p99: f64,
    /// Seconds of CPU time per commit.
    processor: f64,
    /// Voluntary context switches per commit.
    switches: f64,
    /// Disk activity of all processes, per commit: cache flushes and bytes written.
    flushes: f64,
    bytes: f64,
}

impl Subject {
    /// Returns a raw log, this store and, if named, the baseline's store.
    fn all() -> Vec<Self> {
        let own = std::env::current_exe().unwrap();
        let mut subjects = vec![
            Self { name: "raw log", program: own.clone(), role: "raw" },
            Self { name: "store", program: own, role: "commit" },
        ];
        if let Some(baseline) = std::env::var_os("ORRERY_BENCH_BASELINE") {
            subjects.push(Self { name: "baseline", program: baseline.into(), role: "commit" });
        }
        subjects
    }

    /// Runs a round of `time` at `pace` commits per second; 0 means as fast as possible.
    fn round(&self, length: usize, committers: u64, pace: u64, time: Duration) -> Figures {
        let folder = support::folder();
        let disk = Disk::of(folder.path());
        let before = disk.read();
        let output = process::program(&self.program, self.role)
            .env("FOLDER", folder.path())
            .env("VALUE", length.to_string())
            .env("COMMITTERS", committers.to_string())
            .env("PACE", pace.to_string())
            .env("MILLIS", time.as_millis().to_string())
            .output()
            .unwrap();
        let after = disk.read();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [count, seconds, median, p99, processor, switches] = figures[..] else {
            panic!("six figures, not {text}");
        };
        Figures {
            rate: count / seconds,
            median,
            p99,
            processor: processor / count,
            switches: switches / count,
            flushes: (after.flushes - before.flushes) / count,
            bytes: (after.bytes - before.bytes) / count,
        }
    }
}

/// Returns the number of rounds, and the duration of each.
fn rounds() -> (u64, Duration) {
    let time = Duration::from_millis(support::knob("ORRERY_BENCH_MILLIS", 1_500));
    (support::knob("ORRERY_BENCH_ROUNDS", 5), time)
}

/// Measures latencies of 64 committers at a fixed total rate.
fn paced(subjects: &[Subject], pace: u64) {
    let (rounds, time) = rounds();
    let length = VALUES[0];
    let committers = COMMITTERS[2];
    let rounds: Vec<Vec<Figures>> = (0..rounds)
        .map(|_| subjects.iter().map(|of| of.round(length, committers, pace, time)).collect())
        .collect();
    let mut table = Table::new(&["at a fixed rate", "per second", "median", "p99", "CPU each"]);
    for (at, subject) in subjects.iter().enumerate() {
        let [rate, _, _, median, p99, processor, ..] = &cells(&rounds, at)[..] else { return };
        let name = format!("{}, {length} B, {committers} committers", subject.name);
        table.row([&name, rate, median, p99, processor].map(Clone::clone));
    }
    table.print();
}

fn commits(subjects: &[Subject]) {
    let (rounds, time) = rounds();
    let mut table = Table::new(&[
        "commits",
        "per second",
        "of raw",
        "of the baseline",
        "median",
        "p99",
        "CPU each",
        "switches",
        "flushes",
        "bytes",
    ]);
    for length in VALUES {
        for committers in COMMITTERS {
            let rounds: Vec<Vec<Figures>> = (0..rounds)
                .map(|_| subjects.iter().map(|of| of.round(length, committers, 0, time)).collect())
                .collect();
            for (at, subject) in subjects.iter().enumerate() {
                let name = format!("{}, {length} B, {committers} committers", subject.name);
                table.row(std::iter::once(name).chain(cells(&rounds, at)));
            }
        }
    }
    table.print();
    println!("{rounds} rounds of {time:?} each");
}

/// Returns the medians over all rounds of the subject at index `at`, as strings.
fn cells(rounds: &[Vec<Figures>], at: usize) -> Vec<String> {
    let of = |figure: fn(&Figures) -> f64| {
        support::median(rounds.iter().map(|round| figure(&round[at])).collect())
    };
    let against = |other: usize| {
        let ratios =
            rounds.iter().filter_map(|round| Some(round[at].rate / round.get(other)?.rate));
        let ratio = support::median(ratios.collect());
        if other == at || ratio.is_nan() { String::new() } else { format!("{ratio:.2}") }
    };
    let micros = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
    vec![
        number(of(|figures| figures.rate)),
        against(0),
        against(2),
        micros(of(|figures| figures.median)),
        micros(of(|figures| figures.p99)),
        format!("{:.1} µs", of(|figures| figures.processor) * 1e6),
        format!("{:.2}", of(|figures| figures.switches)),
        format!("{:.3}", of(|figures| figures.flushes)),
        number(of(|figures| figures.bytes)),
    ]
}

/// The settings of a round, in the process that makes the commits.
struct Round {
    folder: PathBuf,
    value: Vec<u8>,
    committers: u64,
    /// Commits per second by all committers together; 0 means as fast as possible.
    pace: u64,
    time: Duration,
}

impl Round {
    fn of_environment() -> Self {
        Self {
            folder: std::env::var_os("FOLDER").unwrap().into(),
            value: value(usize::try_from(support::knob("VALUE", 0)).unwrap()),
            committers: support::knob("COMMITTERS", 1),
            pace: support::knob("PACE", 0),
            time: Duration::from_millis(support::knob("MILLIS", 0)),
        }
    }

    /// Appends to a file, with one `fdatasync` for as many values as there are committers.
    fn append(&self) {
        let mut file = File::create(self.folder.join("raw")).unwrap();
        let before = Spent::now();
        let started = Instant::now();
        let mut latencies = Vec::new();
        while started.elapsed() < self.time {
            let one = Instant::now();
            for _ in 0..self.committers {
                file.write_all(&self.value).unwrap();
            }
            file.sync_data().unwrap();
            let took = one.elapsed().as_secs_f64();
            latencies.extend((0..self.committers).map(|_| took));
        }
        before.print(started, latencies);
    }

    /// Commits to a store.
    async fn commit(&self) {
        let options = Options { folder: self.folder.clone(), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let before = Spent::now();
        let started = Instant::now();
        let time = self.time;
        let mut tasks = tokio::task::JoinSet::new();
        let every = |pace| Duration::from_secs(self.committers).div_f64(pace as f64);
        let every = (self.pace > 0).then(|| every(self.pace));
        for number in 0..self.committers {
            let store = store.clone();
            let value = self.value.clone();
            let mut next = started + every.unwrap_or_default().mul_f64(number as f64 / 64.0);
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < time {
                    let mut one = Instant::now();
                    if let Some(every) = every {
                        tokio::time::sleep_until(next.into()).await;
                        // Latency is measured from the due time, even if the previous commit
                        // delayed this one.
                        one = next;
                        next += every;
                    }
                    let mut commit = Commit::new();
                    let key = Key::table(Rows::Execution).id(new_id::<ExecutionId>());
                    commit.put_bytes(key, value.clone());
                    store.commit(commit).await.unwrap();
                    latencies.push(one.elapsed().as_secs_f64());
                }
                latencies
            });
        }
        let latencies = tasks.join_all().await.concat();
        before.print(started, latencies);
    }
}

/// The resource usage of this process since its start.
struct Spent {
    processor: f64,
    switches: f64,
}

impl Spent {
    fn now() -> Self {
        let pid = std::process::id();
        Self { processor: process::processor_seconds(pid), switches: process::switches(pid) }
    }

    /// Prints the figures that [`Subject::round`] parses.
    fn print(&self, started: Instant, mut latencies: Vec<f64>) {
        let seconds = started.elapsed().as_secs_f64();
        let now = Self::now();
        latencies.sort_by(f64::total_cmp);
        let count = latencies.len();
        let median = latencies[count / 2];
        let p99 = latencies[count * 99 / 100];
        let processor = now.processor - self.processor;
        let switches = now.switches - self.switches;
        println!("{count} {seconds} {median} {p99} {processor} {switches}");
    }
}

/// A way to store values in the engine's log.
struct Variant {
    segment: usize,
    value: usize,
    /// The length of the rows into which a value is split.
    row: usize,
    folder: PathBuf,
    rows: usize,
}

impl Variant {
    fn of_environment() -> Self {
        let number = |name| usize::try_from(support::knob(name, 0)).unwrap();
        Self {
            segment: number("SEGMENT"),
            value: number("VALUE"),
            row: number("ROW"),
            rows: number("ROWS"),
            folder: std::env::var_os("FOLDER").unwrap().into(),
        }
    }

    /// Runs a role in its own process; returns the figures that the process printed.
    fn figures(&self, role: &str) -> Vec<f64> {
        let output = process::again(role)
            .env("SEGMENT", self.segment.to_string())
            .env("VALUE", self.value.to_string())
            .env("ROW", self.row.to_string())
            .env("ROWS", self.rows.to_string())
            .env("FOLDER", &self.folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(|figure| figure.parse().unwrap()).collect()
    }

    fn open(&self) -> sled::Db {
        sled::Config::new()
            .path(&self.folder)
            .cache_capacity(128 * 1024 * 1024)
            .flush_every_ms(Some(500))
            .segment_size(self.segment)
            .mode(sled::Mode::HighThroughput)
            .open()
            .unwrap()
    }

    /// Writes every value twice, as the engine writes a prediction at its creation and completion,
    /// in groups with one flush each. Prints the values per second and the final memory usage.
    fn write(&self) {
        let db = self.open();
        let value = value(self.value);
        let group = (GROUP_BYTES / self.value).clamp(1, 64);
        let ids: Vec<[u8; 16]> = (0..self.rows as u128).map(u128::to_be_bytes).collect();
        let started = Instant::now();
        for ids in ids.chunks(group) {
            for _created_then_completed in 0..2 {
                let mut batch = sled::Batch::default();
                for id in ids {
                    for (part, chunk) in value.chunks(self.row).enumerate() {
                        let key = [&id[..], &[u8::try_from(part).unwrap()]].concat();
                        batch.insert(key, chunk);
                    }
                }
                db.apply_batch(batch).unwrap();
                db.flush().unwrap();
            }
        }
        let rate = 2.0 * self.rows as f64 / started.elapsed().as_secs_f64();
        println!("{rate} {}", process::resident(std::process::id()));
    }

    /// Opens the store, and prints the time taken and the memory usage afterwards.
    fn open_and_tell(&self) {
        let started = Instant::now();
        let db = self.open();
        let took = started.elapsed().as_secs_f64();
        println!("{took} {}", process::resident(std::process::id()));
        drop(db);
    }
}

fn segments() {
    let bytes = usize::try_from(support::knob("ORRERY_BENCH_MEBIBYTES", 96)).unwrap() << 20;
    let mut table = Table::new(&[
        "segments, values",
        "values/s",
        "disk per byte",
        "separate files",
        "memory, writing",
        "opened",
        "open takes",
        "empty",
    ]);
    for length in VALUES {
        for (name, segment, row) in [
            ("512 KiB", 512 << 10, length),
            ("512 KiB, cut at 4 KiB", 512 << 10, length.min(CHUNK)),
            ("8 MiB", 8 << 20, length),
        ] {
            if name.contains("cut") && length <= CHUNK {
                continue;
            }
            let folder = support::folder();
            let place = |name: &str| folder.path().join(name);
            let rows = bytes / 2 / length;
            let variant = Variant { segment, value: length, row, folder: place("full"), rows };
            let written = variant.figures("write");
            let opened = variant.figures("open");
            let disk = disk::kept(&variant.folder);
            let beside = std::fs::read_dir(variant.folder.join("blobs")).map_or(0, Iterator::count);
            let empty = Variant { folder: place("empty"), ..variant }.figures("open");
            table.row([
                format!("{name}, {length} B"),
                number(written[0]),
                format!("{:.2}", disk as f64 / (rows * length) as f64),
                beside.to_string(),
                mebibytes::<1>(written[1]),
                mebibytes::<1>(opened[1]),
                milliseconds::<0>(opened[0]),
                mebibytes::<1>(empty[1]),
            ]);
        }
    }
    table.print();
    println!("each given {} to write, every value twice", mebibytes::<1>(bytes as f64));
}
