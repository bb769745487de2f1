//! Event logs: the events of a running prediction or workflow execution, for clients that follow
//! the execution.
//!
//! A log is created when a client follows an execution or when the execution's model reports
//! progress. The log begins with a replay of the execution's history. Logs are limited in size and
//! are kept only in memory; if a log is lost, the stored execution still contains the execution's
//! state. The engine never waits for a follower.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use orrery_domain::attempt::Attempt;
use orrery_domain::execution::{Execution, Prediction, Status};
use orrery_domain::ids::ExecutionId;
use orrery_domain::logs::append_logs;
use orrery_runners::Progress;
use orrery_runtime::new_id;
use orrery_wire::event as wire;

/// Maximum number of events that a log retains for followers that join late or reconnect.
pub(crate) const EVENTS_MAX: usize = 1024;
/// Maximum bytes of events in one log.
pub(crate) const LOG_BYTES_MAX: usize = 128 * 1024;
/// Maximum bytes of events in all logs. Beyond that, each log retains only its newest event.
pub(crate) const ALL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of ended executions whose logs are retained for followers that reconnect.
const RECENT_MAX: usize = 256;
/// Memory overhead of an event, in bytes.
const EVENT_OVERHEAD: usize = 64;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// The event's number: starts at 1 and is consecutive within its log.
    pub number: u64,
    pub name: &'static str,
    /// The data as JSON text.
    pub data: String,
}

/// Events that a follower has not seen.
#[derive(Debug)]
pub struct NewEvents {
    pub events: Vec<Arc<Event>>,
    /// Whether events between the follower's last event and these new events were dropped.
    pub has_gap: bool,
    /// The execution has ended: no more events follow, and its stored record is final.
    pub ended: bool,
}

/// The event log of one execution.
#[derive(Debug)]
pub(crate) struct EventLog {
    /// Distinguishes this log from other logs of the same execution, for example after a restart.
    epoch: String,
    state: Mutex<State>,
    /// The number of the newest event, and whether the log is closed.
    newest: watch::Sender<(u64, bool)>,
    /// Bytes in all logs.
    all_bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    retained: VecDeque<Arc<Event>>,
    bytes: usize,
    newest: u64,
    ended: bool,
}

impl EventLog {
    fn new(all_bytes: Arc<AtomicUsize>, execution: &Execution) -> Self {
        let id: ExecutionId = new_id();
        let text = id.to_string();
        let epoch = text.get(text.len().saturating_sub(12)..).unwrap_or_default().to_owned();
        let log = Self {
            epoch,
            state: Mutex::default(),
            newest: watch::Sender::new((0, false)),
            all_bytes,
        };
        log.replay(execution);
        log
    }

    /// Adds the events that are evident from the execution's record.
    fn replay(&self, execution: &Execution) {
        let at = execution.created_at.into();
        let status = Status::Created.word(execution.kind());
        self.push(&wire::Event::Created { status, at });
        let Some(prediction) = execution.prediction() else { return };
        if let Some(logs) = &prediction.logs {
            self.push(&wire::Event::Log { text: logs, attempt: None });
        }
        if let Some(running) = prediction.running() {
            self.attempt_started(running);
        }
        if execution.status.is_final() {
            self.close();
        }
    }

    /// Returns an id that distinguishes this log from every other log.
    #[must_use]
    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Adds the start of an attempt.
    pub(crate) fn attempt_started(&self, attempt: &Attempt) {
        self.push(&wire::Event::Attempt {
            status: "processing",
            model: &attempt.model,
            attempt: attempt.number,
            at: attempt.started_at.into(),
        });
    }

    /// Closes the log because the execution has ended. Later events are ignored.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.newest.send_replace((state.newest, true));
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: &wire::Event<'_>) {
        self.push_data(event.name(), event.data());
    }

    /// Adds an event by name and data.
    pub(crate) fn push_data(&self, name: &'static str, data: String) {
        let size = data.len() + EVENT_OVERHEAD;
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.newest += 1;
        let number = state.newest;
        state.retained.push_back(Arc::new(Event { number, name, data }));
        state.bytes += size;
        let in_all = self.all_bytes.fetch_add(size, Ordering::Relaxed) + size;
        let room = if in_all > ALL_BYTES_MAX { 0 } else { LOG_BYTES_MAX };
        while state.retained.len() > 1 && (state.bytes > room || state.retained.len() > EVENTS_MAX)
        {
            let Some(oldest) = state.retained.pop_front() else { break };
            let freed = oldest.data.len() + EVENT_OVERHEAD;
            state.bytes = state.bytes.saturating_sub(freed);
            self.all_bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        self.newest.send_replace((number, false));
    }

    /// Returns the events after number `seen`. If `seen` is 0, returns all retained events.
    #[must_use]
    pub(crate) fn events_since(&self, seen: u64) -> NewEvents {
        let state = self.lock();
        let events: Vec<_> =
            state.retained.iter().filter(|event| event.number > seen).cloned().collect();
        let first = events.first().map_or(state.newest.saturating_add(1), |event| event.number);
        NewEvents { has_gap: first > seen.saturating_add(1), events, ended: state.ended }
    }

    /// Resolves once there is an event after `seen` or the log is closed.
    pub(crate) async fn changed(&self, seen: u64) {
        let mut newest = self.newest.subscribe();
        // The log owns the sender, so the sender outlives this call and the wait cannot fail.
        let _told = newest.wait_for(|(number, ended)| *number > seen || *ended).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        self.all_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// All event logs of this process.
#[derive(Debug, Default)]
pub(crate) struct EventLogs {
    all_bytes: Arc<AtomicUsize>,
    recent: Mutex<VecDeque<(ExecutionId, Arc<EventLog>)>>,
}

impl EventLogs {
    /// Whether there are no logs. In that case, callers can skip lookups.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        // Every log contains at least its first event, so the total is 0 only if there are no logs.
        self.all_bytes.load(Ordering::Relaxed) == 0
    }

    /// Creates a log that begins with the history of `execution`.
    #[must_use]
    pub(crate) fn create(&self, execution: &Execution) -> Arc<EventLog> {
        Arc::new(EventLog::new(Arc::clone(&self.all_bytes), execution))
    }

    /// Closes a log and retains it for a while for followers that reconnect.
    pub(crate) fn close(&self, id: ExecutionId, log: Arc<EventLog>) {
        log.close();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back((id, log));
        if recent.len() > RECENT_MAX {
            recent.pop_front();
        }
    }

    /// Returns the log of a recently ended execution.
    #[must_use]
    pub(crate) fn recent(&self, id: ExecutionId) -> Option<Arc<EventLog>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().find(|(held, _)| *held == id).map(|(_, log)| Arc::clone(log))
    }
}

/// The text logs and the event log of an execution, while the execution is in memory.
#[derive(Debug, Default)]
pub(crate) struct RunProgress {
    logs: Mutex<Option<String>>,
    log: Mutex<Option<Arc<EventLog>>>,
}

impl RunProgress {
    /// Returns the text logs of the running attempt.
    #[must_use]
    pub(crate) fn logs(&self) -> Option<String> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the text logs of the ended attempt. The next attempt begins with empty logs.
    #[must_use]
    pub(crate) fn take_logs(&self) -> Option<String> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the event log if there is one.
    #[must_use]
    pub(crate) fn event_log(&self) -> Option<Arc<EventLog>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the event log, creating it if needed.
    pub(crate) fn open_event_log(&self, make: impl FnOnce() -> Arc<EventLog>) -> Arc<EventLog> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(log.get_or_insert_with(make))
    }
}

/// Receives the progress of a prediction's run.
#[derive(Debug)]
pub(crate) struct RunProgressSink {
    pub run_progress: Arc<RunProgress>,
    /// The registry in which the event log is created, and the execution as of the start of the
    /// attempt. If `None`, only text logs are collected.
    pub event_logs: Option<(Arc<EventLogs>, Arc<Execution>)>,
}

impl RunProgressSink {
    /// Adds an event of the running attempt if events are collected.
    fn push<'e>(&self, event: impl FnOnce(Option<u32>) -> wire::Event<'e>) {
        let Some((logs, execution)) = &self.event_logs else { return };
        let running = execution.prediction().and_then(Prediction::running);
        let event = event(running.map(|running| running.number));
        self.run_progress.open_event_log(|| logs.create(execution)).push(&event);
    }
}

impl Progress for RunProgressSink {
    fn log(&self, text: &str) {
        let text = text.trim_end_matches('\n');
        if text.is_empty() {
            return;
        }
        // Push the event before adding the text, because a new event log must begin with the text
        // logs of earlier attempts only.
        self.push(|attempt| wire::Event::Log { text, attempt });
        let mut logs = self.run_progress.logs.lock().unwrap_or_else(PoisonError::into_inner);
        append_logs(&mut logs, Some(text.to_owned()));
    }

    fn output(&self, part: &Value) {
        self.push(|attempt| wire::Event::Output { part, attempt });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::execution::{Candidate, Source, Work};
    use orrery_domain::money::Usd;
    use orrery_domain::payload::Payload;
    use orrery_domain::time::Timestamp;

    fn execution() -> Execution {
        Execution {
            id: new_id(),
            organization: new_id(),
            key: new_id(),
            source: Source::Api,
            status: Status::Created,
            input: Payload::of(&Value::Null).unwrap(),
            work: Work::Prediction(Prediction::new(String::new(), vec![Candidate::new("echo")])),
            output: None,
            fault: None,
            cost: Usd::ZERO,
            reserved: Usd::ZERO,
            webhook: None,
            created_at: Timestamp::from_micros(0),
            started_at: None,
            completed_at: None,
            origin: None,
        }
    }

    fn log(text: &str) -> wire::Event<'_> {
        wire::Event::Log { text, attempt: None }
    }

    fn numbers(new_events: &NewEvents) -> Vec<u64> {
        new_events.events.iter().map(|event| event.number).collect()
    }

    #[tokio::test]
    async fn event_log_delivers_each_event_once_even_to_late_readers() {
        let logs = EventLogs::default();
        let execution = execution();
        let events = logs.create(&execution);
        assert_eq!(numbers(&events.events_since(0)), [1]);
        events.push(&log("a"));
        events.changed(1).await;
        let new_events = events.events_since(1);
        assert_eq!(
            (numbers(&new_events), new_events.has_gap, new_events.ended),
            (vec![2], false, false)
        );
        logs.close(execution.id, Arc::clone(&events));
        events.changed(2).await;
        events.push(&log("too late"));
        let new_events = events.events_since(2);
        assert!(new_events.events.is_empty() && new_events.ended && !new_events.has_gap);
        assert_eq!(numbers(&logs.recent(execution.id).unwrap().events_since(0)), [1, 2]);
        assert!(logs.recent(new_id()).is_none());
    }

    #[test]
    fn event_log_keeps_newest_within_limits_and_reports_gap() {
        let logs = EventLogs::default();
        let events = logs.create(&execution());
        for _ in 0..EVENTS_MAX {
            events.push(&log("x"));
        }
        let new_events = events.events_since(0);
        assert_eq!((new_events.events.len(), new_events.has_gap), (EVENTS_MAX, true));
        assert!(!events.events_since(1).has_gap);
        events.push(&log(&"y".repeat(LOG_BYTES_MAX)));
        assert_eq!(events.events_since(0).events.len(), 1, "one that is too large is alone");
        let other = logs.create(&execution());
        logs.all_bytes.fetch_add(ALL_BYTES_MAX, Ordering::Relaxed);
        other.push(&log("z"));
        assert_eq!(numbers(&other.events_since(0)), [2], "no room for more than the newest");
        drop((events, other));
        assert_eq!(logs.all_bytes.load(Ordering::Relaxed), ALL_BYTES_MAX);
    }
}
