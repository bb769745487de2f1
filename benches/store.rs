//! The store by itself: `cargo bench --bench store`.
//!
//! First, commits per second of 1, 8 and 64 committers, beside a raw log in the same rounds: a file
//! that the same bytes are appended to, with an `fdatasync` after as many values as there are
//! committers. Then the engine's segment size:
//! 512 KiB, its own default, against 8 MiB, what `storage::store` sets, with values of 700 bytes
//! and of 32 KiB. Each of those runs in a process of its own, so that its memory is its own.
//!
//! `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_MILLIS` (700: of each round), `ORRERY_BENCH_MEBIBYTES`
//! (96: what each segment size is given to write).

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]

mod support;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orrery::domain::ids::ExecutionId;
use orrery::runtime::fresh;
use orrery::storage::{Commit, Key, Options, Store, Table as Rows};

use support::process;
use support::table::{Table, mebibytes, milliseconds, number};

/// A usual record, and a payload of the size that the tree still takes.
const VALUES: [usize; 2] = [700, 32 * 1024];
const COMMITTERS: [u64; 3] = [1, 8, 64];
/// Rows of one value cut for small segments, in bytes.
const CHUNK: usize = 4096;
/// Bytes that go to the disk together, as `storage::writer` bounds them.
const GROUP_BYTES: usize = 1024 * 1024;

fn main() {
    if let Some(role) = process::role() {
        return match role.as_str() {
            "write" => Variant::of_environment().write(),
            _ => Variant::of_environment().open_and_tell(),
        };
    }
    tokio::runtime::Runtime::new().unwrap().block_on(commits());
    println!();
    segments();
}

/// Bytes that do not repeat and do not compress.
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

async fn commits() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let time = Duration::from_millis(support::knob("ORRERY_BENCH_MILLIS", 700));
    let mut table = Table::new(&["commits per second", "700 B", "of raw", "32 KiB", "of raw"]);
    // For each value and number of committers: the raw log's rates, and the store's.
    let mut rates = vec![(Vec::new(), Vec::new()); VALUES.len() * COMMITTERS.len()];
    for (at, length) in VALUES.into_iter().enumerate() {
        let folder = support::folder();
        let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let value = value(length);
        for _ in 0..rounds {
            for (row, committers) in COMMITTERS.into_iter().enumerate() {
                let (raw, stored) = &mut rates[at * COMMITTERS.len() + row];
                raw.push(bare(&value, committers, time));
                stored.push(commit_round(&store, committers, &value, time).await);
            }
        }
        store.close().await;
    }
    for (row, committers) in COMMITTERS.into_iter().enumerate() {
        let (mut raw_cells, mut cells) = (Vec::new(), Vec::new());
        for rates in rates.chunks(COMMITTERS.len()) {
            let (raw, stored) = &rates[row];
            let ratios = stored.iter().zip(raw).map(|(stored, raw)| stored / raw).collect();
            raw_cells.extend([number(support::median(raw.clone())), String::new()]);
            let ratio = format!("{:.2}", support::median(ratios));
            cells.extend([number(support::median(stored.clone())), ratio]);
        }
        let name = format!("raw log, fdatasync after each {committers}");
        table.row(std::iter::once(name).chain(raw_cells));
        table.row(std::iter::once(format!("store, {committers} committers")).chain(cells));
    }
    table.print();
    println!("{rounds} rounds of {time:?} each");
}

/// Appends to a file, with an `fdatasync` after each `group` values; values per second.
fn bare(value: &[u8], group: u64, time: Duration) -> f64 {
    let folder = support::folder();
    let mut file = File::create(folder.path().join("bare")).unwrap();
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < time {
        for _ in 0..group {
            file.write_all(value).unwrap();
        }
        file.sync_data().unwrap();
        count += group;
    }
    count as f64 / started.elapsed().as_secs_f64()
}

async fn commit_round(store: &Store, committers: u64, value: &[u8], time: Duration) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..committers {
        let (store, value) = (store.clone(), value.to_vec());
        tasks.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                let mut commit = Commit::new();
                let key = Key::table(Rows::Execution).id(fresh::<ExecutionId>());
                commit.put_bytes(key, value.clone());
                store.commit(commit).await.unwrap();
                count += 1;
            }
            count
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.unwrap();
    }
    f64::from(count) / started.elapsed().as_secs_f64()
}

/// One way to lay values out in the engine's log.
struct Variant {
    segment: usize,
    value: usize,
    /// Rows that a value is cut into are this long.
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

    /// Runs a role in a process of its own; the figures that it printed.
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

    /// Writes every value twice, as a prediction is written when it is created and when it is
    /// completed, in groups with one flush each. Prints values per second and the memory at the end.
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

    /// Prints how long opening takes and the memory then.
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
        "files beside",
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
            let disk = disk_use(&variant.folder);
            let beside = std::fs::read_dir(variant.folder.join("blobs")).map_or(0, Iterator::count);
            let empty = Variant { folder: place("empty"), ..variant }.figures("open");
            table.row([
                format!("{name}, {length} B"),
                number(written[0]),
                format!("{:.2}", disk as f64 / (rows * length) as f64),
                beside.to_string(),
                mebibytes(written[1]),
                mebibytes(opened[1]),
                milliseconds(opened[0]),
                mebibytes(empty[1]),
            ]);
        }
    }
    table.print();
    println!("each given {} to write, every value twice", mebibytes(bytes as f64));
}

/// Bytes that the folder takes on the disk.
fn disk_use(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        bytes += if metadata.is_dir() { disk_use(&entry.path()) } else { metadata.blocks() * 512 };
    }
    bytes
}
