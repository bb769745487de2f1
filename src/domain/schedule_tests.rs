//! Calendars against a table that Python's zoneinfo made, and schedules over simulated time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Made by `tests/support/firings.py`.
const FIRINGS: &str = include_str!("calendar_firings.txt");

fn seconds(text: &str) -> Timestamp {
    Timestamp::from_micros(text.parse::<i64>().unwrap() * 1_000_000)
}

#[test]
fn calendar_fires_as_an_independent_one() {
    let mut lines = 0;
    for line in FIRINGS.lines() {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [cron, zone, start, expected] = parts[..] else { panic!("{line}") };
        let calendar = Calendar::parse(cron, zone).unwrap();
        let (mut at, mut is_first) = (seconds(start), true);
        for expected in expected.split(' ').map(seconds) {
            let next = calendar.next_after(at).unwrap();
            assert_eq!(next, expected, "{cron} in {zone} after {at}");
            // Backwards from just before the one that comes then.
            assert_eq!(calendar.last_until(next), Some(next), "{cron} in {zone} until {next}");
            let between = next.before(Duration::from_secs(1)).unwrap();
            let last = calendar.last_until(between).unwrap();
            assert!(last == at || (is_first && last < at), "{cron} in {zone} until {between}");
            (at, is_first) = (next, false);
        }
        lines += 1;
    }
    assert!(lines > 400, "{lines}");
}

#[test]
fn calendar_refuses_what_is_no_pattern_or_zone() {
    for (cron, zone) in [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * * *", "UTC"),
        ("60 * * * *", "UTC"),
        ("@never", "UTC"),
        ("a b c d e", "UTC"),
        (&"*,".repeat(200), "UTC"),
        ("* * * * *", "Mars/Olympus"),
        ("* * * * *", ""),
    ] {
        assert!(Calendar::parse(cron, zone).is_err(), "{cron} {zone}");
    }
    let never = Calendar::parse("0 0 30 FEB *", "Europe/Berlin").unwrap();
    assert_eq!(never.next_after(Timestamp::from_micros(0)), None);
    let leap = Calendar::parse("0 0 29 2 *", "UTC").unwrap();
    let moment: Timestamp = "2026-11-22T00:00:00Z".parse().unwrap();
    assert_eq!(leap.next_after(moment), "2028-02-29T00:00:00Z".parse().ok());
}

proptest! {
    #[test]
    fn calendar_parse_never_panics(cron in "[-0-9*/,#LW?@A-Za-z ]{0,40}", zone in "[A-Za-z/_]{0,20}") {
        if let Ok(calendar) = Calendar::parse(&cron, &zone) {
            let _next = calendar.next_after(Timestamp::from_micros(1_795_132_800_000_000));
        }
    }

    #[test]
    fn schedule_jitter_is_bounded_and_stable(id: [u8; 16], firing in 0_i64..1 << 50, most in 0_u32..1000) {
        let mut schedule = schedule("@daily", "UTC", Overlap::Skip);
        schedule.id = ScheduleId::from(id);
        schedule.jitter_seconds = most;
        let firing = Timestamp::from_micros(firing);
        let delay = schedule.jitter(firing);
        prop_assert!(delay <= Duration::from_secs(most.into()));
        prop_assert_eq!(delay, schedule.jitter(firing));
    }
}

fn start() -> Timestamp {
    "2026-03-01T00:00:00Z".parse().unwrap()
}

fn schedule(cron: &str, zone: &str, overlap: Overlap) -> Schedule {
    let target = Target::Workflow { workflow: WorkflowId::from([4; 16]), version: None };
    let mut schedule = Schedule {
        id: ScheduleId::from([7; 16]),
        organization: OrganizationId::from([1; 16]),
        key: KeyId::from([2; 16]),
        target,
        cron: cron.to_owned(),
        timezone: zone.to_owned(),
        input: json!({}),
        overlap,
        catch_up_seconds: CATCH_UP_DEFAULT,
        jitter_seconds: 0,
        paused: false,
        starts_at: None,
        ends_at: None,
        webhook: None,
        decided_until: start(),
        next: None,
        due: None,
        waiting: Vec::new(),
        last: None,
        latest: None,
        name: None,
        created_at: start(),
        updated_at: start(),
    };
    let calendar = Calendar::parse(cron, zone).unwrap();
    schedule.plan(&calendar, start());
    schedule
}

/// A schedule and what it starts, by a clock that a test moves.
struct World {
    schedule: Schedule,
    calendar: Calendar,
    now: Timestamp,
    /// When the run that is not finished ends.
    runs_until: Option<Timestamp>,
    run_time: Duration,
    started: Vec<Timestamp>,
    cancelled: usize,
}

impl World {
    fn new(schedule: Schedule, run_time: u64) -> Self {
        let calendar = Calendar::parse(&schedule.cron, &schedule.timezone).unwrap();
        let run_time = Duration::from_secs(run_time);
        let (now, started) = (start(), Vec::new());
        Self { schedule, calendar, now, runs_until: None, run_time, started, cancelled: 0 }
    }

    /// Looks at the schedule whenever its timer comes, up to a moment.
    fn run_until(&mut self, end: Timestamp) {
        while let Some(due) = self.schedule.due.filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.look();
        }
        self.now = self.now.max(end);
    }

    /// Nothing looks at it until then.
    fn away_until(&mut self, end: Timestamp) {
        self.now = end;
    }

    fn look(&mut self) {
        // What is stored is what a process that starts now reads.
        let stored = serde_json::to_string(&self.schedule).unwrap();
        self.schedule = serde_json::from_str(&stored).unwrap();
        let is_running = self.runs_until.is_some_and(|end| end > self.now);
        let before = self.schedule.clone();
        let turn = self.schedule.turn(&self.calendar, self.now, is_running);
        assert_ne!((self.schedule.due, &self.schedule.waiting), (before.due, &before.waiting));
        if let Turn::Start { scheduled_for, cancels } = turn {
            self.cancelled += usize::from(cancels);
            assert!(cancels || !is_running || before.overlap == Overlap::Allow);
            self.started.push(scheduled_for);
            self.runs_until = Some(self.now.plus(self.run_time));
            let id = ExecutionId::from([9; 16]);
            self.schedule.note(scheduled_for, self.now, RunResult::Started(id));
        }
    }
}

fn after(seconds: u64) -> Timestamp {
    start().plus(Duration::from_secs(seconds))
}

#[test]
fn schedule_overlap_rules_decide_what_starts() {
    // Every minute, runs of 90 seconds, for ten minutes.
    for (overlap, started, cancelled) in [
        (Overlap::Skip, vec![1, 3, 5, 7, 9], 0),
        (Overlap::Allow, (1..=10).collect(), 0),
        (Overlap::CancelOther, (1..=10).collect(), 9),
        (Overlap::Queue, vec![1, 2, 3, 4, 5, 6, 7], 0),
    ] {
        let mut world = World::new(schedule("* * * * *", "UTC", overlap), 90);
        world.run_until(after(600));
        let expected: Vec<Timestamp> =
            started.into_iter().map(|minute| after(minute * 60)).collect();
        assert_eq!(world.started, expected, "{overlap:?}");
        assert_eq!(world.cancelled, cancelled, "{overlap:?}");
    }
}

#[test]
fn schedule_queue_is_bounded() {
    let mut world = World::new(schedule("* * * * *", "UTC", Overlap::Queue), 1_000_000);
    world.run_until(after(60 * 300));
    assert_eq!((world.started.len(), world.schedule.waiting.len()), (1, WAITING_MAX));
    let last = world.schedule.last.unwrap();
    assert_eq!((last.result, last.scheduled_for), (RunResult::Skipped, after(60 * 300)));
}

#[test]
fn schedule_catches_up_with_the_last_firing_within_its_limit() {
    let mut world = World::new(schedule("0 * * * *", "UTC", Overlap::Allow), 1);
    world.run_until(after(2 * 3600));
    world.away_until(after(7 * 3600 + 1800));
    world.run_until(after(8 * 3600));
    assert_eq!(world.started, [after(3600), after(7200), after(7 * 3600), after(8 * 3600)]);

    let mut world = World::new(schedule("0 0 * * *", "UTC", Overlap::Allow), 1);
    world.away_until(after(3 * 86400 + 7200));
    world.run_until(after(3 * 86400 + 7200));
    assert_eq!(world.started, []);
    let last = world.schedule.last.clone().unwrap();
    assert_eq!((last.result, last.scheduled_for), (RunResult::Missed, after(3 * 86400)));
    world.run_until(after(4 * 86400));
    assert_eq!(world.started, [after(4 * 86400)]);
}

#[test]
fn schedule_fires_between_its_start_and_its_end() {
    let mut schedule = schedule("0 * * * *", "UTC", Overlap::Allow);
    (schedule.starts_at, schedule.ends_at) = (Some(after(2 * 3600)), Some(after(4 * 3600)));
    let calendar = Calendar::parse("0 * * * *", "UTC").unwrap();
    schedule.plan(&calendar, start());
    let hours = [2, 3, 4].map(|hour| after(hour * 3600));
    assert_eq!(schedule.next_firings(&calendar, 10), hours);
    let mut world = World::new(schedule, 1);
    world.run_until(after(86400));
    assert_eq!(world.started, hours);
    assert_eq!((world.schedule.next, world.schedule.due), (None, None));
}

#[test]
fn schedule_that_is_paused_has_no_timer() {
    let mut schedule = schedule("* * * * *", "UTC", Overlap::Queue);
    schedule.waiting.push(start());
    schedule.paused = true;
    let calendar = Calendar::parse("* * * * *", "UTC").unwrap();
    schedule.plan(&calendar, start());
    assert_eq!((schedule.next, schedule.due, schedule.waiting.len()), (None, None, 0));
    assert_eq!(schedule.next_firings(&calendar, 10), []);
}

#[test]
fn schedule_forgets_what_a_clock_far_ahead_decided() {
    let mut world = World::new(schedule("0 0 * * *", "UTC", Overlap::Allow), 1);
    let year = 366 * 86400;
    world.away_until(after(year));
    world.run_until(after(year));
    assert_eq!(world.started.len(), 1);
    // Set back by an hour: nothing comes twice.
    world.now = after(year - 3600);
    assert!(!world.schedule.realign(&world.calendar, world.now));
    // Set back by the year.
    world.now = after(10);
    assert!(world.schedule.realign(&world.calendar, world.now));
    world.run_until(after(86400));
    assert_eq!(world.started[1..], [after(86400)]);
}

/// A thousand schedules over a year in two zones, with a process that is away now and then.
#[test]
fn schedule_fires_each_time_once_over_a_year() {
    let crons = ["0 9 * * MON-FRI", "30 2 * * *", "0 0 1 * *", "15 */6 * * *", "0 3 * * SUN"];
    let zones = ["Europe/Berlin", "America/New_York"];
    let year = 365 * 86400_u64;
    let mut seed = 20_261_122_u64;
    let mut random = move |below: u64| {
        seed = mix(seed);
        seed % below
    };
    for number in 0..1000_u16 {
        let cron = crons[usize::from(number) % crons.len()];
        let zone = zones[usize::from(number) / crons.len() % zones.len()];
        let mut one = schedule(cron, zone, Overlap::Allow);
        let [high, low] = number.to_be_bytes();
        one.id = ScheduleId::from([7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, high, low]);
        one.jitter_seconds = u32::from(number % 50);
        let calendar = Calendar::parse(cron, zone).unwrap();
        one.plan(&calendar, start());
        let mut world = World::new(one, 1);
        let mut away = Vec::new();
        for _ in 0..6 {
            let from = world.now.plus(Duration::from_secs(random(year / 8)));
            let until = from.plus(Duration::from_secs(random(3 * 86400)));
            world.run_until(from);
            world.away_until(until);
            away.push((from, until));
        }
        world.run_until(after(year));
        let mut times = BTreeMap::<Timestamp, usize>::new();
        for started in &world.started {
            *times.entry(*started).or_default() += 1;
        }
        assert!(times.values().all(|count| *count == 1), "{cron}: a firing came twice");
        // Each firing of the calendar came, but for those while nothing looked, of which at most the
        // last of each time came, not later than an hour.
        let mut firing = calendar.next_after(start()).unwrap();
        while firing <= after(year - 60) {
            let late = away.iter().find(|(from, until)| {
                firing.plus(Duration::from_secs(60)) > *from && firing <= *until
            });
            assert!(
                times.remove(&firing).is_some() || late.is_some(),
                "{cron} {zone}: no {firing}"
            );
            firing = calendar.next_after(firing).unwrap();
        }
        assert!(times.keys().all(|left| *left > after(year - 60)), "{cron}: {times:?}");
    }
}

#[test]
fn schedule_record_matches_golden_form() {
    let mut schedule = schedule("@daily", "UTC", Overlap::CancelOther);
    schedule.note(start(), start(), RunResult::Refused("no".to_owned()));
    let golden = json!({
        "id": "07070707-0707-0707-0707-070707070707",
        "organization": "01010101-0101-0101-0101-010101010101",
        "key": "02020202-0202-0202-0202-020202020202",
        "target": {"workflow": {"workflow": "04040404-0404-0404-0404-040404040404"}},
        "cron": "@daily", "timezone": "UTC", "input": {}, "overlap": "cancel_other",
        "catch_up_seconds": 3600, "jitter_seconds": 0, "paused": false,
        "decided_until": 1_772_323_200_000_000_i64, "next": 1_772_409_600_000_000_i64,
        "due": 1_772_409_600_000_000_i64,
        "last": {"scheduled_for": 1_772_323_200_000_000_i64, "at": 1_772_323_200_000_000_i64,
            "result": {"refused": "no"}},
        "created_at": 1_772_323_200_000_000_i64, "updated_at": 1_772_323_200_000_000_i64,
    });
    assert_eq!(serde_json::to_value(&schedule).unwrap(), golden);
    assert_eq!(serde_json::from_value::<Schedule>(golden).unwrap(), schedule);
}
