//! Feeds: what happens to a prediction while it goes on, for those who follow it.
//!
//! A feed is made when somebody follows a prediction or its model tells something, and begins with
//! what has happened until then; a prediction that does neither has none. It is in memory alone, a
//! bounded part of it: what is lost with it stands in the stored prediction. Nothing waits for a
//! follower.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::domain::attempt::Attempt;
use crate::domain::execution::{Execution, Prediction, append_logs};
use crate::domain::ids::ExecutionId;
use crate::runners::Progress;
use crate::runtime::fresh;
use crate::wire::event as wire;

/// Events that one feed keeps for those who come late or come again.
pub const EVENTS_MAX: usize = 1024;
/// Bytes of events that one feed keeps.
pub const FEED_BYTES_MAX: usize = 128 * 1024;
/// Bytes of events that all feeds keep. Beyond it, each keeps its newest event alone.
pub const ALL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Feeds of ended predictions that are kept for followers whose connection broke.
const RECENT_MAX: usize = 256;
/// What an event takes beside its text.
const EVENT_OVERHEAD: usize = 64;

/// One thing that happened.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// From 1, without a gap within its feed.
    pub number: u64,
    pub name: &'static str,
    /// JSON text.
    pub data: String,
}

/// What a follower has not seen.
#[derive(Debug)]
pub struct News {
    pub events: Vec<Arc<Event>>,
    /// Events between what the follower saw and these are no longer kept.
    pub has_gap: bool,
    /// Nothing more comes: the prediction has ended, and stands in the store as it stays.
    pub ended: bool,
}

/// What happens to one prediction.
#[derive(Debug)]
pub struct Feed {
    /// Tells this feed from another one of the same prediction, after a restart.
    epoch: String,
    state: Mutex<State>,
    /// The number of the newest event, and whether it was the last.
    newest: watch::Sender<(u64, bool)>,
    /// Bytes in all feeds.
    all_bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<Arc<Event>>,
    bytes: usize,
    newest: u64,
    ended: bool,
}

impl Feed {
    fn new(all_bytes: Arc<AtomicUsize>, execution: &Execution) -> Self {
        let id: ExecutionId = fresh();
        let text = id.to_string();
        let epoch = text.get(text.len().saturating_sub(12)..).unwrap_or_default().to_owned();
        let feed = Self {
            epoch,
            state: Mutex::default(),
            newest: watch::Sender::new((0, false)),
            all_bytes,
        };
        feed.begin(execution);
        feed
    }

    /// What has happened to the execution until now.
    fn begin(&self, execution: &Execution) {
        let at = execution.created_at.into();
        self.push(&wire::Event::Created { status: "created", at });
        let Some(prediction) = execution.prediction() else { return };
        if let Some(logs) = &prediction.logs {
            self.push(&wire::Event::Log { text: logs, attempt: None });
        }
        if let Some(running) = prediction.running() {
            self.attempt(running);
        }
        if execution.status.is_final() {
            self.end();
        }
    }

    /// Tells this feed from every other.
    #[must_use]
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// An attempt has begun.
    pub fn attempt(&self, attempt: &Attempt) {
        self.push(&wire::Event::Attempt {
            status: "processing",
            model: &attempt.model,
            attempt: attempt.number,
            at: attempt.started_at.into(),
        });
    }

    /// The prediction has ended; nothing is added from now on.
    pub fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.newest.send_replace((state.newest, true));
    }

    fn push(&self, event: &wire::Event<'_>) {
        let (name, data) = (event.name(), event.data());
        let size = data.len() + EVENT_OVERHEAD;
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.newest += 1;
        let number = state.newest;
        state.kept.push_back(Arc::new(Event { number, name, data }));
        state.bytes += size;
        let in_all = self.all_bytes.fetch_add(size, Ordering::Relaxed) + size;
        let room = if in_all > ALL_BYTES_MAX { 0 } else { FEED_BYTES_MAX };
        while state.kept.len() > 1 && (state.bytes > room || state.kept.len() > EVENTS_MAX) {
            let Some(oldest) = state.kept.pop_front() else { break };
            let freed = oldest.data.len() + EVENT_OVERHEAD;
            state.bytes = state.bytes.saturating_sub(freed);
            self.all_bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        self.newest.send_replace((number, false));
    }

    /// What came behind the event `seen`; 0: everything that is kept.
    #[must_use]
    pub fn news(&self, seen: u64) -> News {
        let state = self.lock();
        let events: Vec<_> =
            state.kept.iter().filter(|event| event.number > seen).cloned().collect();
        let first = events.first().map_or(state.newest + 1, |event| event.number);
        News { has_gap: first > seen + 1, events, ended: state.ended }
    }

    /// Resolves once there is something behind `seen`, or nothing more will come.
    pub async fn changed(&self, seen: u64) {
        let mut newest = self.newest.subscribe();
        // The sender is this feed's own: it is not gone while this runs.
        let _told = newest.wait_for(|(number, ended)| *number > seen || *ended).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        self.all_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// All feeds of this process.
#[derive(Debug, Default)]
pub struct Feeds {
    all_bytes: Arc<AtomicUsize>,
    recent: Mutex<VecDeque<(ExecutionId, Arc<Feed>)>>,
}

impl Feeds {
    /// A feed that begins with what has happened to `execution` until now.
    #[must_use]
    pub fn make(&self, execution: &Execution) -> Arc<Feed> {
        Arc::new(Feed::new(Arc::clone(&self.all_bytes), execution))
    }

    /// Ends a feed, and keeps it a while for those who come again.
    pub fn end(&self, id: ExecutionId, feed: Arc<Feed>) {
        feed.end();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back((id, feed));
        if recent.len() > RECENT_MAX {
            recent.pop_front();
        }
    }

    /// The feed of a prediction that ended not long ago.
    #[must_use]
    pub fn recent(&self, id: ExecutionId) -> Option<Arc<Feed>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().find(|(held, _)| *held == id).map(|(_, feed)| Arc::clone(feed))
    }
}

/// What a run tells, while its execution is in memory.
#[derive(Debug, Default)]
pub struct Told {
    logs: Mutex<Option<String>>,
    feed: Mutex<Option<Arc<Feed>>>,
}

impl Told {
    /// The logs of the attempt that runs.
    #[must_use]
    pub fn logs(&self) -> Option<String> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The logs of the attempt that has ended; the next one begins with none.
    #[must_use]
    pub fn take_logs(&self) -> Option<String> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The feed, if there is one.
    #[must_use]
    pub fn feed(&self) -> Option<Arc<Feed>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The feed, made when there is none.
    pub fn open_feed(&self, make: impl FnOnce() -> Arc<Feed>) -> Arc<Feed> {
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(feed.get_or_insert_with(make))
    }
}

/// Hears the run of a prediction.
#[derive(Debug)]
pub struct Reporter {
    pub told: Arc<Told>,
    /// The execution as it stood when the attempt began, and where its feed is made. Without them
    /// only the logs are kept.
    pub feeds: Option<(Arc<Feeds>, Arc<Execution>)>,
}

impl Reporter {
    /// Adds an event of the attempt that is running, if anything is to be kept of it.
    fn push<'e>(&self, event: impl FnOnce(Option<u32>) -> wire::Event<'e>) {
        let Some((feeds, execution)) = &self.feeds else { return };
        let running = execution.prediction().and_then(Prediction::running);
        let event = event(running.map(|running| running.number));
        self.told.open_feed(|| feeds.make(execution)).push(&event);
    }
}

impl Progress for Reporter {
    fn log(&self, text: &str) {
        let text = text.trim_end_matches('\n');
        if text.is_empty() {
            return;
        }
        // The feed first: it begins with the logs of earlier attempts alone.
        self.push(|attempt| wire::Event::Log { text, attempt });
        let mut logs = self.told.logs.lock().unwrap_or_else(PoisonError::into_inner);
        append_logs(&mut logs, Some(text.to_owned()));
    }

    fn output(&self, part: &Value) {
        self.push(|attempt| wire::Event::Output { part, attempt });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::execution::{Candidate, Source, Status, Work};
    use crate::domain::money::Usd;
    use crate::domain::payload::Payload;
    use crate::domain::time::Timestamp;

    fn execution() -> Execution {
        Execution {
            id: fresh(),
            organization: fresh(),
            key: fresh(),
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
        }
    }

    fn log(text: &str) -> wire::Event<'_> {
        wire::Event::Log { text, attempt: None }
    }

    fn numbers(news: &News) -> Vec<u64> {
        news.events.iter().map(|event| event.number).collect()
    }

    #[tokio::test]
    async fn a_follower_gets_every_event_once_and_late_ones_the_beginning_too() {
        let (feeds, execution) = (Feeds::default(), execution());
        let feed = feeds.make(&execution);
        assert_eq!(numbers(&feed.news(0)), [1]);
        feed.push(&log("a"));
        feed.changed(1).await;
        let news = feed.news(1);
        assert_eq!((numbers(&news), news.has_gap, news.ended), (vec![2], false, false));
        feeds.end(execution.id, Arc::clone(&feed));
        feed.changed(2).await;
        feed.push(&log("too late"));
        let news = feed.news(2);
        assert!(news.events.is_empty() && news.ended && !news.has_gap);
        assert_eq!(numbers(&feeds.recent(execution.id).unwrap().news(0)), [1, 2]);
        assert!(feeds.recent(fresh()).is_none());
    }

    #[test]
    fn a_feed_keeps_its_newest_events_within_its_bounds_and_says_that_there_is_a_gap() {
        let feeds = Feeds::default();
        let feed = feeds.make(&execution());
        for _ in 0..EVENTS_MAX {
            feed.push(&log("x"));
        }
        let news = feed.news(0);
        assert_eq!((news.events.len(), news.has_gap), (EVENTS_MAX, true));
        assert!(!feed.news(1).has_gap);
        feed.push(&log(&"y".repeat(FEED_BYTES_MAX)));
        assert_eq!(feed.news(0).events.len(), 1, "one that is too large stands alone");
        let other = feeds.make(&execution());
        feeds.all_bytes.fetch_add(ALL_BYTES_MAX, Ordering::Relaxed);
        other.push(&log("z"));
        assert_eq!(numbers(&other.news(0)), [2], "no room for more than the newest");
        drop((feed, other));
        assert_eq!(feeds.all_bytes.load(Ordering::Relaxed), ALL_BYTES_MAX);
    }
}
