//! Schedules that fire every second, with the service killed around their firings: the service must
//! decide each firing once, and start runs according to the overlap rule.

use std::time::Duration;

use orrery_domain::time::Timestamp;
use orrery_runtime::{self as runtime, Clock};
use serde_json::{Value, json};

use crate::leftovers::{check_none, history, workflow};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};

const SECOND_MICROS: i64 = 1_000_000;
/// Duration of a run: longer than the interval between two firings.
const RUN_SECONDS: f64 = 1.3;
/// Firings before the first kill and between two kills.
const FIRINGS_BETWEEN: u32 = 2;
/// After an outage of a certain length, one firing represents all missed ones
/// (`docs/spec/schedules.md`, "Firing"). This limit is a little shorter than that.
const OUTAGE_MAX: Duration = Duration::from_secs(8);

fn micros(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<Timestamp>().unwrap().micros()
}

/// Creates a schedule that fires every second until `ends_at`; returns its path and the time of its
/// first firing.
fn schedule(client: &mut Client, overlap: &str, ends_at: &str) -> (String, i64) {
    let steps = json!([{"step_id": "w", "type": "wait", "seconds": RUN_SECONDS}]);
    let workflow = workflow(client, overlap, &steps);
    let path = format!("/v1/workflows/{workflow}/schedules");
    let body = json!({"cron": "* * * * * *", "overlap": overlap, "ends_at": ends_at});
    let made = client.post(&path, &[], &body.to_string()).unwrap();
    assert_eq!(made.status(), 201, "{}", made.text());
    let made = made.json();
    let first = micros(&made["next_runs"][0]);
    (format!("/v1/schedules/{}", made["schedule_id"].as_str().unwrap()), first)
}

/// Sleeps until shortly before or after the next full second.
fn wait_for_a_firing(random: &mut Random) {
    let passed = Clock::system().now().micros().rem_euclid(SECOND_MICROS);
    let left = u64::try_from(SECOND_MICROS - passed).unwrap();
    let early = 20_000;
    std::thread::sleep(Duration::from_micros(
        (left + random.within(0..60_000)).saturating_sub(early),
    ));
}

/// Returns the start, end and status of each run of a schedule, ordered by start.
fn runs(client: &mut Client, path: &str) -> Vec<(i64, i64, String)> {
    let schedule = client.get(path).unwrap().json();
    let filter = format!("type=workflow&workflow_id={}", schedule["workflow_id"].as_str().unwrap());
    let rows = history(client, &filter);
    let mut runs: Vec<_> = rows
        .iter()
        .map(|row| {
            assert_eq!(row["schedule_id"], schedule["schedule_id"], "{row}");
            let status = row["status"].as_str().unwrap().to_owned();
            (micros(&row["created_at"]), micros(&row["completed_at"]), status)
        })
        .collect();
    runs.sort();
    runs
}

#[test]
fn schedules_fire_once_or_by_their_rule_around_kills() {
    let kills = count_from("ORRERY_CRASH_SCHEDULES", 3);
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let mut service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    // A start takes about a second, so no schedule ends before the last kill.
    let lasts = i64::from(2 + kills * (FIRINGS_BETWEEN + 1)) * SECOND_MICROS;
    let now = Clock::system().now().micros();
    let end_after = |lasts: i64| (now + lasts) / SECOND_MICROS * SECOND_MICROS;
    let rules = ["allow", "skip", "queue", "cancel_other"];
    let schedules = rules.map(|rule| {
        // Queued runs continue after the last firing, so this schedule ends earlier. The last kills
        // still interrupt its runs.
        let end = end_after(if rule == "queue" { lasts / 2 } else { lasts });
        (rule, end, schedule(&mut client, rule, &Timestamp::from_micros(end).to_string()))
    });

    let mut longest = Duration::ZERO;
    for _ in 0..kills {
        std::thread::sleep(Duration::from_secs(u64::from(FIRINGS_BETWEEN - 1)));
        wait_for_a_firing(&mut random);
        let since = runtime::monotonic_now();
        service.kill();
        service = setup.start();
        longest = longest.max(since.elapsed());
    }
    let mut client = setup.client(&key);
    for (.., (path, _)) in &schedules {
        eventually("the last firing is decided", || {
            let schedule = client.get(path).unwrap().json();
            let is_over = schedule["next_runs"] == json!([]) && schedule["waiting"] == 0;
            is_over.then_some(())
        });
    }
    eventually("each run ends", || (setup.unfinished() == Some(0.0)).then_some(()));
    let mut counts = Vec::new();
    for (rule, end, (path, first)) in &schedules {
        let firings = usize::try_from((end - first) / SECOND_MICROS + 1).unwrap();
        let runs = eventually("each run of the schedule ends", || {
            let schedule = client.get(path).unwrap().json();
            let last = schedule["last_run"]["status"].as_str().unwrap_or_default().to_owned();
            (last != "running" && last != "queued").then(|| runs(&mut client, path))
        });
        counts.push((rule, runs.len(), firings));
        for (number, (began, ..)) in runs.iter().enumerate() {
            let at = first + i64::try_from(number).unwrap() * SECOND_MICROS;
            assert!(*began >= at, "{rule}: run {number} came before its firing: {runs:?}");
        }
        let one_at_a_time = runs.windows(2).all(|two| two[1].0 >= two[0].1);
        assert!(*rule == "allow" || one_at_a_time, "{rule}: {runs:?}");
        let ends = |wanted: &[&str]| runs.iter().all(|(.., end)| wanted.contains(&&**end));
        match *rule {
            "cancel_other" => {
                assert!(ends(&["completed", "cancelled"]), "{runs:?}");
                assert_eq!(runs.last().unwrap().2, "completed", "{runs:?}");
            }
            _ => assert!(ends(&["completed"]), "{runs:?}"),
        }
        match *rule {
            "skip" => assert!((1..=firings).contains(&runs.len()), "{runs:?}"),
            _ if longest < OUTAGE_MAX => assert_eq!(runs.len(), firings, "{rule}: {runs:?}"),
            _ => assert!(runs.len() <= firings, "{rule}: {runs:?}"),
        }
    }
    check_none(&setup, service);
    println!("{kills} kills, {longest:?} without the service at most; runs of firings: {counts:?}");
}
