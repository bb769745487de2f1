//! Kills at critical moments of the store: while a checkpoint moves rows from the log to the tree,
//! and while a start replays a log of several MiB.
//!
//! The test detects the start of a checkpoint by the processor time of its thread, and the start of
//! a replay by the bytes that the process has read. A new mark in the data folder indicates the end
//! of either operation. A kill before the new mark therefore interrupts the operation.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::load::{Ask, ClientLog};
use crate::providers::Providers;
use crate::support::random::Random;
use crate::support::service::Service;
use crate::support::{count_from, eventually};
use crate::verdict;
use crate::world::World;

/// Concurrent clients, and the number of predictions that each creates before a kill during a
/// checkpoint. Their rows are well over the 1,000 that trigger a checkpoint after a second without
/// commits.
const SENDERS: u64 = 8;
const CREATES: u64 = 30;
/// The number of predictions that each client creates before a kill during a start, and the size of
/// inputs and outputs, which the store keeps in rows, not in files.
const LARGE_CREATES: u64 = 15;
const PADDING: usize = 30_000;
const MIB: usize = 1024 * 1024;
/// A start that has read this many bytes is reading the log, because the log is at least this long.
const LOG_BYTES: usize = 4 * MIB;
/// More processor time between two polls than an idle polling thread uses.
const BUSY_NANOS: u64 = 1_000_000;
/// The thread name, as truncated by the kernel.
const CHECKPOINT_THREAD: &str = "store-checkpoin";
/// Number of misses allowed in addition to one per hit.
const SPARE_MISSES: u32 = 10;

/// The moment of a kill: random within an adaptive span, so that about one kill in five comes too
/// late, and the last steps are hit as often as the first ones.
struct Aim {
    span_micros: u64,
    hits: u32,
    misses: u32,
    wanted: u32,
}

impl Aim {
    const fn new(span_micros: u64, wanted: u32) -> Self {
        Self { span_micros, hits: 0, misses: 0, wanted }
    }

    fn is_open(&self) -> bool {
        assert!(self.misses <= self.wanted + SPARE_MISSES, "{} kills missed", self.misses);
        self.hits < self.wanted
    }

    fn wait(&self, random: &mut Random) {
        std::thread::sleep(Duration::from_micros(random.within(0..self.span_micros)));
    }

    const fn note(&mut self, is_hit: bool) {
        if is_hit {
            self.hits += 1;
            self.span_micros += self.span_micros / 8;
        } else {
            self.misses += 1;
            self.span_micros -= self.span_micros / 3;
        }
    }
}

/// `kill -9` during checkpoints, `ORRERY_CRASH_CHECKPOINTS` times.
#[test]
fn kills_during_checkpoints_lose_nothing() {
    const SPAN_MICROS: u64 = 200_000;
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    let mut aim = Aim::new(SPAN_MICROS, count_from("ORRERY_CRASH_CHECKPOINTS", 2));
    while aim.is_open() {
        let mark = mark(&world);
        let ids = create(&mut world, CREATES, Ask::random);
        wait_for_a_checkpoint(&world, &service, &mark);
        aim.wait(&mut world.random);
        service.kill();
        aim.note(self::mark(&world) == mark);
        service = world.setup.start();
        verdict::settle(&world.setup, &world.key, &ids);
    }
    let ends = world.check_all();
    println!(
        "{} kills inside a checkpoint, {} behind its mark; {} predictions acknowledged",
        aim.hits,
        aim.misses,
        ends.len()
    );
    check_at_rest(&world, service, &ends);
}

/// `kill -9` under load, and again while the next start replays the log, `ORRERY_CRASH_REPLAYS`
/// times.
#[test]
fn kills_during_the_replay_of_a_log_lose_nothing() {
    const SPAN_MICROS: u64 = 200_000;
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    let mut aim = Aim::new(SPAN_MICROS, count_from("ORRERY_CRASH_REPLAYS", 1));
    let mut largest = 0;
    while aim.is_open() {
        create(&mut world, LARGE_CREATES, |random, _| Ask::template(random.next(), PADDING));
        service.kill();
        largest = largest.max(log_bytes(&world));
        let mark = mark(&world);
        let starting = world.setup.spawn();
        wait_for_the_replay(&world, &starting, &mark);
        aim.wait(&mut world.random);
        starting.kill();
        aim.note(self::mark(&world) == mark);
        service = world.setup.start();
    }
    let ends = world.check_all();
    println!(
        "{} second kills while a start read the log, {} behind it; at most {} MiB of log; {} \
         predictions acknowledged",
        aim.hits,
        aim.misses,
        largest / MIB,
        ends.len()
    );
    assert!(largest >= LOG_BYTES, "{largest} bytes of log are few");
    check_at_rest(&world, service, &ends);
}

/// Creates `count` predictions from each client; returns once all are acknowledged.
fn create(world: &mut World, count: u64, ask: fn(&mut Random, &Providers) -> Ask) -> Vec<String> {
    let before: HashSet<String> = ClientLog::ids(&world.client_log).into_iter().collect();
    let senders: Vec<_> =
        (0..SENDERS).map(|_| (world.setup.client(&world.key), world.random.fork())).collect();
    let client_log = &world.client_log;
    let providers = &world.providers;
    std::thread::scope(|scope| {
        for (mut client, mut random) in senders {
            scope.spawn(move || {
                for _ in 0..count {
                    assert!(ask(&mut random, providers).send(&mut client, client_log));
                }
            });
        }
    });
    ClientLog::assert_none_refused(client_log);
    let ids: Vec<_> =
        ClientLog::ids(client_log).into_iter().filter(|id| !before.contains(id)).collect();
    assert_eq!(ids.len() as u64, SENDERS * count);
    ids
}

/// Waits until a checkpoint has begun. `mark` is the mark read before the load.
fn wait_for_a_checkpoint(world: &World, service: &Service, mark: &Value) {
    let thread = checkpoint_thread(service.pid());
    let mut before = used_nanos(&thread);
    eventually("a checkpoint begins", || {
        let now = used_nanos(&thread);
        let is_busy = now - before >= BUSY_NANOS;
        before = now;
        (is_busy || self::mark(world) != *mark).then_some(())
    });
}

/// Waits until a start has begun to read the log. A start rewrites the mark once it has read the
/// entire log into memory.
fn wait_for_the_replay(world: &World, starting: &Service, mark: &Value) {
    let path = format!("/proc/{}/io", starting.pid());
    eventually("a start reads the log", || {
        let text = fs::read_to_string(&path).unwrap();
        let read: usize = text.lines().next().unwrap().split(' ').next_back()?.parse().ok()?;
        (read >= LOG_BYTES || self::mark(world) != *mark).then_some(())
    });
}

fn checkpoint_thread(pid: u32) -> PathBuf {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut folders = threads.map(|thread| thread.unwrap().path());
    let is_named = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == CHECKPOINT_THREAD)
    };
    folders.find(is_named).unwrap()
}

/// Returns the processor time used by a thread.
fn used_nanos(thread: &Path) -> u64 {
    let text = fs::read_to_string(thread.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn mark(world: &World) -> Value {
    let text = fs::read(world.setup.data().join("store.mark")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Returns the number of bytes written to the log's segments, without the zeros preallocated after
/// them.
fn log_bytes(world: &World) -> usize {
    let segments = fs::read_dir(world.setup.data().join("store/log")).unwrap();
    let written = |path: PathBuf| {
        let bytes = fs::read(path).unwrap();
        let last = bytes.chunks(4096).rposition(|chunk| chunk.iter().any(|byte| *byte != 0));
        last.map_or(0, |last| (last + 1) * 4096)
    };
    segments
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "spare"))
        .map(written)
        .sum()
}

/// Checks after one more kill that every outcome is byte-identical and the store is undamaged.
fn check_at_rest(world: &World, service: Service, ends: &verdict::Ends) {
    service.kill();
    let service = world.setup.start();
    let ids: Vec<String> = ends.keys().cloned().collect();
    assert!(verdict::settle(&world.setup, &world.key, &ids) == *ends, "an end has changed");
    service.kill();
    println!("{}", world.setup.run(&["verify"]).trim());
}
