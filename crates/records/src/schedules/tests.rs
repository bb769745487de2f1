//! Tests of schedules on a real store, with work that leaves rows: each firing starts its work
//! exactly once, even if the process dies after any commit.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;

use super::*;
use orrery_domain::ids::{ExecutionId, KeyId};
use orrery_domain::schedule::{CATCH_UP_DEFAULT, Overlap, RunResult};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::{Key, Options, Table};

const ORGANIZATION: [u8; 16] = [1; 16];

/// Work that never ends by itself. Each start writes a row about the firing to the facts table.
struct Rows {
    store: Store,
    /// The errors that the next starts return; later starts succeed.
    faults: Mutex<Vec<Fault>>,
}

fn started_rows() -> Key {
    Key::table(Table::Meta).text("test-started")
}

impl Work for Rows {
    fn check<'a>(&'a self, _schedule: &'a Schedule) -> StartFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_running(&self, _organization: OrganizationId, _id: ExecutionId) -> RunningFuture<'_> {
        Box::pin(std::future::ready(Ok(false)))
    }

    fn cancel(&self, _organization: OrganizationId, _id: ExecutionId) -> DoneFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn start<'a>(
        &'a self,
        schedule: &'a Schedule,
        id: ExecutionId,
        mut beside: Commit,
    ) -> StartFuture<'a> {
        Box::pin(async move {
            if let Some(fault) = self.faults.lock().unwrap().pop() {
                return Err(fault);
            }
            let last = schedule.last.as_ref().unwrap();
            assert_eq!(last.result, RunResult::Started(id));
            let key = started_rows().time(last.scheduled_for).id(schedule.id);
            // If the same firing starts twice, the second commit conflicts with this row.
            beside.expect(Expect::Absent(key.clone()));
            beside.put_bytes(key, Vec::new());
            self.store.commit(beside).await.map_err(Fault::Storage)
        })
    }
}

fn opened(folder: &Path, clock: &Clock, faults: Vec<Fault>) -> Schedules {
    let store = Store::open(&Options { folder: folder.to_owned(), inline_bytes: 1024 }).unwrap();
    let work = Rows { store: store.clone(), faults: Mutex::new(faults) };
    Schedules::new(store, clock.clone(), Arc::new(work))
}

/// Opens the schedules in the same folder again, as the next process does.
async fn reopened(schedules: Schedules, folder: &Path, clock: &Clock) -> Schedules {
    let store = schedules.store.clone();
    drop(schedules);
    store.close().await;
    opened(folder, clock, Vec::new())
}

fn moment(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(cron: &str, clock: &Clock) -> Schedule {
    let now = clock.now();
    Schedule {
        id: orrery_runtime::new_id(),
        organization: ORGANIZATION.into(),
        key: KeyId::from([2; 16]),
        target: Target::Workflow { workflow: WorkflowId::from([4; 16]), version: None },
        cron: cron.to_owned(),
        timezone: "Europe/Berlin".to_owned(),
        input: json!({}),
        overlap: Overlap::Allow,
        catch_up_seconds: CATCH_UP_DEFAULT,
        jitter_seconds: 0,
        paused: false,
        starts_at: None,
        ends_at: None,
        webhook: None,
        decided_until: now,
        next: None,
        due: None,
        waiting: Vec::new(),
        last: None,
        latest: None,
        name: None,
        created_at: now,
        updated_at: now,
    }
}

async fn timers(schedules: &Schedules) -> usize {
    let page = Page { prefix: rows::timers(), after: None, before: None, limit: 1000 };
    schedules.store.page(page).await.unwrap().len()
}

async fn started(schedules: &Schedules) -> Vec<Timestamp> {
    let page = Page { prefix: started_rows(), after: None, before: None, limit: 1000 };
    let rows = schedules.store.page(page).await.unwrap();
    let moment = |key: &Key| {
        let bytes = key.as_bytes();
        Timestamp::from_sortable(bytes[bytes.len() - 24..bytes.len() - 16].try_into().unwrap())
    };
    rows.iter().map(|(key, _)| moment(key)).collect()
}

#[tokio::test]
async fn schedule_fires_once_whenever_the_process_dies() {
    let begin = moment("2026-03-29T00:30:00Z");
    let hours: BTreeSet<Timestamp> =
        (1..=6).map(|hour| moment(&format!("2026-03-29T0{hour}:00:00Z"))).collect();
    let mut deaths = 0;
    for crash_after in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(begin);
        let schedules = opened(folder.path(), &clock, Vec::new());
        let made = schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
        let mut schedules = reopened(schedules, folder.path(), &clock).await;
        schedules.store.crash_after(crash_after);
        while clock.now() < moment("2026-03-29T06:10:00Z") {
            clock.advance(Duration::from_secs(600));
            let is_dead = tokio::select! {
                biased;
                () = schedules.store.crashed() => true,
                done = schedules.fire_due() => { done.unwrap(); false }
            };
            if is_dead {
                // The next process reads the store from the disk.
                deaths += 1;
                schedules = reopened(schedules, folder.path(), &clock).await;
                schedules.fire_due().await.unwrap();
            }
        }
        let started = started(&schedules).await;
        assert_eq!(started.iter().copied().collect::<BTreeSet<_>>(), hours, "{crash_after}");
        assert_eq!((started.len(), timers(&schedules).await), (6, 1), "{crash_after}");
        let stored = schedules.find(ORGANIZATION.into(), made.id).await.unwrap();
        assert_eq!(stored.next, Some(moment("2026-03-29T07:00:00Z")));
    }
    assert_eq!(deaths, 6, "one for each firing");
}

#[tokio::test]
async fn schedule_retries_when_busy_and_continues_after_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2026-06-01T11:59:50Z"));
    let busy = Fault::Busy(Duration::from_secs(5));
    let faults = vec![Fault::Refused("no".to_owned()), busy];
    let schedules = opened(folder.path(), &clock, faults);
    let made = schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(schedules.fire_due().await.unwrap(), Duration::from_secs(5));
    let waiting = schedules.find(ORGANIZATION.into(), made.id).await.unwrap();
    assert_eq!((waiting.last, waiting.next), (None, Some(moment("2026-06-01T12:00:00Z"))));
    clock.advance(Duration::from_secs(5));
    schedules.fire_due().await.unwrap();
    let refused = schedules.find(ORGANIZATION.into(), made.id).await.unwrap();
    assert_eq!(refused.last.unwrap().result, RunResult::Refused("no".to_owned()));
    clock.advance(Duration::from_secs(3600));
    schedules.fire_due().await.unwrap();
    assert_eq!(started(&schedules).await, [moment("2026-06-01T13:00:00Z")]);
}

#[tokio::test]
async fn schedule_is_paused_when_its_work_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2026-06-01T11:59:59Z"));
    let schedules =
        opened(folder.path(), &clock, vec![Fault::Gone("workflow not found".to_owned())]);
    let made = schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
    clock.advance(Duration::from_secs(2));
    schedules.fire_due().await.unwrap();
    let stored = schedules.find(ORGANIZATION.into(), made.id).await.unwrap();
    assert!(stored.paused && stored.due.is_none());
    assert_eq!(timers(&schedules).await, 0);
}

#[tokio::test]
async fn schedule_changes_and_deletions_update_its_timer() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2026-06-01T11:30:00Z"));
    let schedules = opened(folder.path(), &clock, Vec::new());
    let organization = OrganizationId::from(ORGANIZATION);
    let made = schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
    let change = async |cron: &str, paused: bool| {
        let change = |schedule: &mut Schedule| -> Result<(), Error> {
            cron.clone_into(&mut schedule.cron);
            schedule.paused = paused;
            Ok(())
        };
        schedules.change(organization, made.id, change).await
    };
    let paused = change("0 * * * *", true).await.unwrap();
    assert_eq!((paused.next, timers(&schedules).await), (None, 0));
    // Firings that were due while the schedule was paused are skipped.
    clock.advance(Duration::from_secs(3600));
    let resumed = change("15 * * * *", false).await.unwrap();
    assert_eq!(resumed.next, Some(moment("2026-06-01T13:15:00Z")));
    assert_eq!(timers(&schedules).await, 1);
    assert!(matches!(change("61 * * * *", false).await, Err(Error::Calendar(_))));
    assert!(matches!(change("0 0 30 2 *", false).await, Err(Error::NoDate)));
    let other = OrganizationId::from([9; 16]);
    assert!(matches!(schedules.find(other, made.id).await, Err(Error::NotFound)));
    assert!(matches!(schedules.delete(other, made.id).await, Err(Error::NotFound)));
    schedules.delete(organization, made.id).await.unwrap();
    assert_eq!(timers(&schedules).await, 0);
    clock.advance(Duration::from_secs(7200));
    schedules.fire_due().await.unwrap();
    assert_eq!(started(&schedules).await, []);
}

/// The first pass after a start skips the damaged schedule and corrects the others.
#[tokio::test]
async fn unreadable_schedule_does_not_stop_others_from_firing() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2027-06-01T12:30:00Z"));
    let schedules = opened(folder.path(), &clock, Vec::new());
    schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
    let damaged = rows::schedule(ORGANIZATION.into(), ScheduleId::from([0; 16]));
    let mut commit = Commit::new();
    commit.put_bytes(damaged.clone(), b"?".to_vec());
    schedules.store.commit(commit).await.unwrap();
    clock.set(moment("2026-06-01T11:59:50Z"));
    schedules.realign().await.unwrap();
    clock.advance(Duration::from_secs(10));
    schedules.fire_due().await.unwrap();
    assert_eq!(started(&schedules).await, [moment("2026-06-01T12:00:00Z")]);
    assert_eq!(schedules.store.get(&damaged).await.unwrap(), Some(b"?".to_vec()));
}

/// Sets the clock back from 12:30 on 1 June between two passes; returns the log of the second pass.
async fn log_after_clock_was_set_back(to: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2026-06-01T12:30:00Z"));
    let schedules = opened(folder.path(), &clock, Vec::new());
    schedules.create(schedule("0 * * * *", &clock)).await.unwrap();
    let log = orrery_runtime::CapturedLog::default();
    let sink = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || sink.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let mut clock_at = None;
    schedules.look(&mut clock_at).await;
    assert_eq!(log.text(), "", "a start does not change the clock");
    clock.advance(Duration::from_secs(5));
    clock.set(moment(to));
    schedules.look(&mut clock_at).await;
    let text = log.text();
    // The next pass does not report the change of the clock again.
    clock.advance(Duration::from_secs(5));
    schedules.look(&mut clock_at).await;
    assert_eq!(log.text(), text);
    text
}

#[tokio::test]
async fn clock_that_is_set_back_is_logged_once() {
    const RESUME: &str = "clock set back: schedules resume once it reaches the previous time";
    const FROM_NOW: &str = "clock set back: next firing computed from the current time";
    for (to, is_noticed, is_realigned) in [
        ("2026-06-01T12:29:50Z", false, false),
        ("2026-06-01T11:30:00Z", true, false),
        ("2026-04-22T12:30:00Z", true, true),
    ] {
        let text = log_after_clock_was_set_back(to).await;
        assert_eq!(text.matches(RESUME).count(), usize::from(is_noticed), "{to}: {text}");
        assert_eq!(text.contains("until=2026-06-01T12:30:00"), is_noticed, "{to}: {text}");
        assert_eq!(text.matches(FROM_NOW).count(), usize::from(is_realigned), "{to}: {text}");
        assert_eq!(text.lines().filter(|line| !line.contains(" WARN ")).count(), 0, "{text}");
    }
}

#[tokio::test]
async fn schedules_of_an_organization_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::scripted(moment("2026-06-01T11:30:00Z"));
    let schedules = opened(folder.path(), &clock, Vec::new());
    let organization = OrganizationId::from(ORGANIZATION);
    let mut commit = Commit::new();
    for _ in 0..SCHEDULES_MAX {
        let one = schedule("0 * * * *", &clock);
        commit.put(rows::schedule(organization, one.id), &one).unwrap();
    }
    schedules.store.commit(commit).await.unwrap();
    let refused = schedules.create(schedule("0 * * * *", &clock)).await;
    assert!(matches!(refused, Err(Error::TooMany)), "{refused:?}");
}
