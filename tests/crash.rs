//! Crash tests of the real binary: killed, cut off from power, out of disk space, stuck. In each
//! case, no acknowledged data is lost, each execution ends and is charged exactly once, and each
//! webhook arrives.
//!
//! For longer manual runs: `ORRERY_CRASH_ROUNDS=50`, `ORRERY_CRASH_STARTS=10`,
//! `ORRERY_CRASH_CUTS=10`, `ORRERY_CRASH_FLOWS=50`, `ORRERY_CRASH_DELIVERIES=30`,
//! `ORRERY_CRASH_MIX=100`, `ORRERY_CRASH_CHECKPOINTS=50`, `ORRERY_CRASH_REPLAYS=10`,
//! `ORRERY_CRASH_WAVES=5`, `ORRERY_CRASH_MOMENTS=1000`, `ORRERY_CRASH_AGENT=50`,
//! `ORRERY_CRASH_REDRIVES=10000`, `ORRERY_CRASH_SCHEDULES=20`, `ORRERY_CRASH_EVENTS=20`,
//! `ORRERY_CRASH_CHILDREN=2000`, `ORRERY_CRASH_BATCH=10000`, `ORRERY_CRASH_JOBS=1000`. `ORRERY_TEST_SEED` repeats the random choices of a run, but not
//! the machine's timing. `tests/README.md` explains what each test proves.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and tells its seed"
)]

#[path = "crash/abuse.rs"]
mod abuse;
#[path = "crash/agent.rs"]
mod agent;
#[path = "crash/backups.rs"]
mod backups;
#[path = "crash/batches.rs"]
mod batches;
#[path = "crash/chat.rs"]
mod chat;
#[path = "crash/checkpoints.rs"]
mod checkpoints;
#[path = "crash/children.rs"]
mod children;
#[path = "crash/clocks.rs"]
mod clocks;
#[path = "crash/deliveries.rs"]
mod deliveries;
#[path = "crash/events.rs"]
mod events;
#[path = "crash/faults.rs"]
mod faults;
#[path = "crash/flips.rs"]
mod flips;
#[path = "crash/flows.rs"]
mod flows;
#[path = "crash/groups.rs"]
mod groups;
#[path = "crash/image.rs"]
mod image;
#[path = "crash/jobs.rs"]
mod jobs;
#[path = "crash/leftovers.rs"]
mod leftovers;
#[path = "crash/limits.rs"]
mod limits;
#[path = "crash/load.rs"]
mod load;
#[path = "crash/mix.rs"]
mod mix;
#[path = "crash/moments.rs"]
mod moments;
#[path = "crash/money.rs"]
mod money;
#[path = "crash/neighbors.rs"]
mod neighbors;
#[path = "crash/poison.rs"]
mod poison;
#[path = "crash/private.rs"]
mod private;
#[path = "crash/providers.rs"]
mod providers;
#[path = "crash/redrives.rs"]
mod redrives;
#[path = "crash/responses.rs"]
mod responses;
#[path = "crash/schedules.rs"]
mod schedules;
#[path = "crash/starts.rs"]
mod starts;
mod support;
#[path = "crash/verdict.rs"]
mod verdict;
#[path = "crash/waves.rs"]
mod waves;
#[path = "crash/workers.rs"]
mod workers;
#[path = "crash/world.rs"]
mod world;

use std::fs;
use std::path::Path;
use std::time::Duration;

use flows::Flows;
use image::Mounted;
use load::{Ask, ClientLog, noise};
use providers::STUCK_CONCURRENCY;
use serde_json::json;
use support::random::Random;
use support::service::{Setup, take_room};
use support::{count_from, eventually};
use world::World;

const MIB: u64 = 1024 * 1024;
/// The input of each prediction of a backlog.
const BACKLOG_INPUT_BYTES: usize = 30_000;
/// When this many predictions end, they write more data than the free space inside the store's
/// file.
const FULL_DISK_BACKLOG: usize = 3_000;

#[test]
fn kills_under_load_lose_nothing_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    for _ in 0..count_from("ORRERY_CRASH_ROUNDS", 2) {
        world.kill_under_load(service);
        service = world.setup.start();
        ClientLog::clear_doubts(&world.client_log, &mut world.setup.client(&world.key));
    }
    let ends = world.check_all();
    // Completed executions never change.
    service.kill();
    let _service = world.setup.start();
    assert!(world.check_all() == ends, "an end has changed after it was reported");
    println!("{} predictions acknowledged", ends.len());
}

/// A prediction that keeps crashing the process fails at the third crash, and the service recovers.
#[test]
fn poison_prediction_is_isolated_after_three_crashes() {
    let folder = tempfile::tempdir().unwrap();
    poison::isolated(folder.path());
}

/// SIGKILLs never count against an execution, and an execution suspected of crashes does not delay
/// other organizations.
#[test]
fn killed_prediction_completes_and_suspect_delays_nobody() {
    let folder = tempfile::tempdir().unwrap();
    poison::killed(folder.path());
}

/// 200 workflows of five steps, killed at random moments: all return the expected outputs, no
/// finished step runs again, and each model step is charged once.
#[test]
fn no_finished_step_runs_again_after_kills() {
    const RUNS: usize = 200;
    const BULK: usize = 10;
    let rounds = usize::try_from(count_from("ORRERY_CRASH_FLOWS", 2)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let flows = Flows::start(&mut random);
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    flows.add_model(&setup);
    let mut service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let workflow = flows.create(&mut client);
    let mut expected = std::collections::HashMap::new();
    for first in (0..RUNS).step_by(BULK) {
        let inputs: Vec<_> = (first..first + BULK).map(|n| json!({"n": n})).collect();
        let body = json!({"inputs": inputs}).to_string();
        let path = format!("/v1/workflows/{workflow}/bulk-trigger");
        let taken = client.post(&path, &[], &body).unwrap();
        assert_eq!(taken.status(), 202, "{}", taken.text());
        for (n, entry) in taken.json()["executions"].as_array().unwrap().iter().enumerate() {
            let id = entry["execution_id"].as_str().unwrap().to_owned();
            expected.insert(id, first + n + flows::STEPS);
        }
    }
    for round in 1..=rounds {
        let wanted = RUNS * flows::STEPS * round / (rounds + 1);
        eventually("more steps run", || (flows.arrived() >= wanted).then_some(()));
        std::thread::sleep(Duration::from_micros(random.within(0..10_000)));
        service.kill();
        service = setup.start();
    }
    let mut client = setup.client(&key);
    let mut cost = 0;
    for (id, output) in &expected {
        let path = format!("/v1/workflows/executions/{id}?timeout=30");
        let detail = client.get(&path).unwrap().json();
        cost += flows::finished_cost_micros(&detail);
        assert_eq!(detail["status"], "completed", "{detail}");
        assert_eq!(detail["output"], *output, "{detail}");
    }
    let again = flows.look(|seen| {
        assert!(seen.faults.is_empty(), "{:#?}", seen.faults);
        assert_eq!(seen.attempts.len(), RUNS * flows::STEPS);
        seen.attempts.values().filter(|count| **count > 1).count()
    });
    println!("{} steps, {again} were in flight when the process died and ran again", RUNS * 5);
    assert_eq!(verdict::balance(&mut client), -cost);
    drop(service);
}

#[test]
fn a_kill_during_the_start_after_a_kill_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    for _ in 0..count_from("ORRERY_CRASH_STARTS", 1) {
        world.kill_under_load(service);
        let starting = world.setup.spawn();
        std::thread::sleep(Duration::from_micros(world.random.within(0..150_000)));
        starting.kill();
        service = world.setup.start();
    }
    world.check_all();
}

#[test]
#[ignore = "needs mkfs.ext4 and a mount: run tests/run"]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    if !image::can_mount() {
        return;
    }
    for _ in 0..count_from("ORRERY_CRASH_CUTS", 2) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk.img");
        let copy = folder.path().join("copy.img");
        image::make(&image, 512).unwrap();
        let disk = Mounted::new(&image, &folder.path().join("disk")).unwrap();
        let (mut world, service) = World::new(folder.path(), &disk.point().join("data"));
        let load = world.load();
        world.wait_for_a_random_moment();
        service.freeze();
        let before_the_cut = ClientLog::ids(&world.client_log);
        image::copy_at_one_moment(&image, &copy);
        service.kill();
        load.end();

        let disk = Mounted::new(&copy, &folder.path().join("disk-after")).unwrap();
        let setup = Setup::new(folder.path(), &disk.point().join("data"), "");
        let _service = setup.start();
        let ends = verdict::settle(&setup, &world.key, &before_the_cut);
        world.client_log.lock().unwrap().acknowledged.retain(|id, _| ends.contains_key(id));
        verdict::check_ends(&world.client_log, &ends);
        verdict::check_webhooks(&world.providers, &world.client_log);
        ClientLog::repeat_keys(&world.client_log, &mut setup.client(&world.key));
    }
}

#[test]
#[ignore = "needs mkfs.ext4 and a mount: run tests/run"]
fn full_disk_refuses_work_and_loses_nothing() {
    if !image::can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    image::make(&image, 640).unwrap();
    let disk = Mounted::new(&image, &folder.path().join("disk")).unwrap();
    let (mut world, mut service) = World::new(folder.path(), &disk.point().join("data"));
    let fillers = disk.point().join("fillers");
    fs::create_dir(&fillers).unwrap();

    // Nearly full: the service rejects new work with a clear error, its data stays readable, and
    // work resumes once there is space.
    let load = world.load();
    world.wait_for_a_random_moment();
    let filler = fillers.join("most");
    assert!(take_room(&filler, disk.free_bytes() - 40 * MIB));
    wait_for_a_refusal(&world);
    load.end();
    verdict::settle(&world.setup, &world.key, &ClientLog::ids(&world.client_log));
    fs::remove_file(&filler).unwrap();
    wait_for_an_acknowledgement(&mut world);

    // Completely full, with more data to write than the free space in the store's file: the process
    // exits with a failure, and unwritten commits leave no trace. The tree compresses its rows, so
    // only incompressible data can use up its space.
    send_backlog(&world, FULL_DISK_BACKLOG, |mark| noise(mark, BACKLOG_INPUT_BYTES));
    let load = world.load();
    world.wait_for_a_random_moment();
    fill_up(&disk, &fillers);
    wait_for_a_refusal(&world);
    world.providers.gate.open();
    let ended = eventually("the failing disk ends the process", || service.ended());
    load.end();
    assert!(!ended.success(), "{ended}");
    assert_all_for_want_of_room(&world);
    // A start without disk space also fails, with a helpful error and no damage.
    let mut starting = world.setup.spawn();
    let ended = eventually("a start on a full disk ends", || starting.ended());
    assert!(!ended.success(), "{ended}");
    println!("a start on a full disk says: {}", world.setup.log_tail().lines().last().unwrap());

    fs::remove_dir_all(&fillers).unwrap();
    let _service = world.setup.start();
    world.check_all();
    wait_for_an_acknowledgement(&mut world);
}

fn wait_for_a_refusal(world: &World) {
    eventually("creates are refused", || {
        (!world.client_log.lock().unwrap().refused.is_empty()).then_some(())
    });
    assert_all_for_want_of_room(world);
}

/// Checks that every refusal since the last call was caused by the full disk, or by a service that
/// exited because of it; clears the refusals.
fn assert_all_for_want_of_room(world: &World) {
    let refused = std::mem::take(&mut world.client_log.lock().unwrap().refused);
    for (status, text) in refused {
        assert_eq!(status, 503, "{text}");
        let reasons =
            ["the disk is full or failing: nothing was stored", "the service is stopping"];
        assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
    }
}

/// Sends predictions until one is acknowledged.
fn wait_for_an_acknowledgement(world: &mut World) {
    let mut client = world.setup.client(&world.key);
    let before = world.acknowledged();
    eventually("creates are taken again", || {
        Ask::random(&mut world.random, &world.providers).send(&mut client, &world.client_log);
        (world.acknowledged() > before).then_some(())
    });
    assert_all_for_want_of_room(world);
}

/// Fills all blocks of the disk.
fn fill_up(disk: &Mounted, fillers: &Path) {
    let mut more = 0;
    eventually("the disk is full", || {
        more += 1;
        take_room(&fillers.join(more.to_string()), disk.free_bytes());
        (disk.free_bytes() == 0).then_some(())
    });
}

/// Sends this many predictions from several concurrent clients; all of them wait for the gate.
fn send_backlog(world: &World, count: usize, padding: fn(u64) -> String) {
    const SENDERS: usize = 8;
    let share = count.div_ceil(SENDERS);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let mut client = world.setup.client(&world.key);
            let client_log = &world.client_log;
            scope.spawn(move || {
                for mark in sender * share..count.min((sender + 1) * share) {
                    let ask = Ask::stuck(mark as u64, &padding(mark as u64));
                    assert!(ask.send(&mut client, client_log));
                }
            });
        }
    });
}

#[test]
fn hanging_model_fills_only_its_own_lane() {
    const STUCK: u64 = 60;
    const OTHERS: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let (world, _service) = World::new(folder.path(), &folder.path().join("data"));
    let mut client = world.setup.client(&world.key);
    for mark in 0..STUCK {
        assert!(Ask::stuck(mark, "").send(&mut client, &world.client_log));
    }
    let stuck = ClientLog::ids(&world.client_log);
    for mark in 0..OTHERS {
        assert!(Ask::template(mark, 0).send(&mut client, &world.client_log));
    }
    let ids = ClientLog::ids(&world.client_log);
    let others: Vec<String> = ids.into_iter().filter(|id| !stuck.contains(id)).collect();
    // All other predictions end while the stuck ones are still running.
    verdict::settle(&world.setup, &world.key, &others);
    let running = usize::try_from(STUCK_CONCURRENCY).unwrap();
    assert_eq!(world.providers.gate.held(), running, "the stuck lane runs at its cap");
    for id in &stuck {
        let body = client.get(&format!("/v1/prediction/{id}")).unwrap().json();
        assert!(body["completed_at"].is_null(), "{body}");
    }
    world.providers.gate.open();
    world.check_all();
}

#[test]
fn backlog_resumes_after_kill() {
    const BACKLOG: usize = 6_000;
    /// All inputs together take 180 MB. At startup, at most 64 MiB of the inputs in the log are
    /// kept in memory.
    const MORE_RESIDENT_BYTES: u64 = 110 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let (world, service) = World::new(folder.path(), &folder.path().join("data"));
    let empty = service.resident_bytes();
    send_backlog(&world, BACKLOG, |_| "x".repeat(BACKLOG_INPUT_BYTES));
    assert_eq!(world.acknowledged(), BACKLOG);
    service.kill();
    let service = world.setup.start();
    let running = f64::from(STUCK_CONCURRENCY);
    eventually("the lane runs at its cap again", || {
        (world.setup.metric("orrery_executions_running") == Some(running)).then_some(())
    });
    let queued = world.setup.metric("orrery_executions_queued");
    assert_eq!(queued, Some(BACKLOG as f64 - running));
    let resident = service.resident_bytes();
    println!("resident: {} MiB empty, {} MiB with the backlog", empty / MIB, resident / MIB);
    assert!(resident < empty + MORE_RESIDENT_BYTES, "{resident} bytes, {empty} when empty");
    world.providers.gate.open();
    world.check_all();
    assert_eq!(world.setup.metric("orrery_executions_queued"), Some(0.0));
}
