//! Monitors the work on requests. Templates, grammars and tokenizers process values of any size in
//! calls that cannot be interrupted: doubling a text, searching a long list, sampling a token under
//! a grammar.
//!
//! Work that takes too much memory or time is rejected, and work whose caller has disconnected is
//! abandoned. If the work does not stop by itself, this process exits; the service then starts a
//! new process and repeats the other requests.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::GIVEN_UP;
use super::request::Refusal;
use orrery_guard::sandbox::OwnMemory;
use orrery_runtime::crash_note::exit_at_once;
use orrery_runtime::monotonic_now;

/// Maximum memory growth of one step, in bytes.
const MEMORY_MAX: u64 = 512 * MIB;
/// Time limit for rendering the templates of a request, and for building the grammar of its
/// schemas.
const READING_MAX: Duration = Duration::from_secs(30);
/// Time limit for sampling one token under a grammar.
const TOKEN_MAX: Duration = Duration::from_secs(20);
/// Time allowed for an error response to reach the service before the process exits.
const SENDING: Duration = Duration::from_millis(100);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(5);
const MIB: u64 = 1024 * 1024;

/// A caller that waits for a response. When the last reference is dropped, the caller has
/// disconnected.
#[derive(Debug)]
pub(super) struct Client {
    refusal: watch::Sender<Option<Refusal>>,
}

impl Client {
    /// Creates a waiting caller.
    #[must_use]
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { refusal: watch::Sender::new(None) })
    }

    /// Waits until the work on the request is rejected, and returns the error.
    pub(super) async fn refused(&self) -> Refusal {
        let mut refusal = self.refusal.subscribe();
        let found = refusal.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        match found {
            Some(refusal) => refusal,
            None => std::future::pending().await,
        }
    }
}

/// The kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Tokenizing a request.
    Reading,
    /// Rendering a chat template.
    Template,
    /// Building a grammar from schemas.
    Grammar,
    /// Sampling a token under a grammar.
    Token,
    /// Computing embeddings.
    Vectors,
}

impl Step {
    /// Returns the grace period for the work to stop by itself. An exit interrupts the streams of
    /// other clients, so steps that are bounded by their input get more time than steps that a
    /// template or schema can prolong.
    const fn stopping_max(self) -> Duration {
        match self {
            Self::Reading => Duration::from_secs(10),
            Self::Grammar | Self::Token | Self::Vectors => Duration::from_secs(2),
            Self::Template => Duration::from_millis(500),
        }
    }
}

/// The work in progress.
#[derive(Debug)]
pub(super) struct Watch {
    memory: Option<OwnMemory>,
    running: Mutex<Running>,
    begun: Condvar,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    all: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    client: Weak<Client>,
    step: Step,
    since: Instant,
    /// Data size of the process at the start of the step, in bytes.
    data: u64,
    /// When the caller disconnected.
    left: Option<Instant>,
}

/// Work on a request. Dropping this value marks the work as finished.
#[derive(Debug)]
pub(super) struct Work {
    watch: Arc<Watch>,
    number: u64,
    client: Weak<Client>,
}

impl Work {
    /// Switches to another step.
    pub(super) fn enter(&self, step: Step) {
        let data = self.watch.data();
        if let Some(entry) = self.watch.lock().of(self.number) {
            (entry.step, entry.since, entry.data) = (step, monotonic_now(), data);
        }
    }

    /// Returns the caller.
    #[must_use]
    pub(super) const fn client(&self) -> &Weak<Client> {
        &self.client
    }

    /// Checks whether to continue.
    ///
    /// # Errors
    /// Fails if the caller has disconnected, or if the step has taken too long.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.client.strong_count() == 0 {
            return Err(Refusal::because(500, "the caller disconnected"));
        }
        let mut running = self.watch.lock();
        let entry = running.of(self.number);
        let exceeded = entry.and_then(|entry| exceeded(entry.step, 0, entry.since.elapsed()));
        exceeded.map_or(Ok(()), Err)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.watch.lock().all.retain(|entry| entry.number != self.number);
    }
}

impl Running {
    fn of(&mut self, number: u64) -> Option<&mut Entry> {
        self.all.iter_mut().find(|entry| entry.number == number)
    }
}

impl Watch {
    /// Creates a watch that measures memory with `memory`.
    #[must_use]
    pub(super) fn new(memory: Option<OwnMemory>) -> Arc<Self> {
        Arc::new(Self { memory, running: Mutex::default(), begun: Condvar::new() })
    }

    /// Begins work for a caller.
    #[must_use]
    pub(super) fn begin(self: &Arc<Self>, step: Step, client: &Weak<Client>) -> Work {
        let data = self.data();
        let mut running = self.lock();
        let number = running.next;
        running.next += 1;
        let (client, since) = (Weak::clone(client), monotonic_now());
        let work = Work { watch: Arc::clone(self), number, client: Weak::clone(&client) };
        running.all.push(Entry { number, client, step, since, data, left: None });
        self.begun.notify_one();
        work
    }

    /// Watches until the process exits; must run on a separate thread.
    pub(super) fn run(&self) {
        loop {
            let none = |running: &mut Running| running.all.is_empty();
            drop(self.begun.wait_while(self.lock(), none).unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(LOOK);
            let Some((refusal, client)) = self.look() else { continue };
            let said = format!("{}\n", refusal.message);
            if let Some(client) = client.upgrade() {
                client.refusal.send_replace(Some(refusal));
                std::thread::sleep(SENDING);
            }
            // The service reads standard error and shows its last line.
            drop(std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()));
            // Skip destructors, because other threads still use llama.cpp's static variables.
            exit_at_once(GIVEN_UP.into());
        }
    }

    /// Returns the first work that should have stopped but has not: the reason, and its caller.
    fn look(&self) -> Option<(Refusal, Weak<Client>)> {
        let (data, now) = (self.data(), monotonic_now());
        let mut running = self.lock();
        running.all.iter_mut().find_map(|entry| {
            if entry.client.strong_count() == 0 {
                let left = *entry.left.get_or_insert(now);
                let message = "abandoned work did not stop";
                let is_over = now.saturating_duration_since(left) > entry.step.stopping_max();
                return is_over.then(|| (Refusal::because(500, message), Weak::new()));
            }
            // The work still has time to stop by itself.
            let time = now.saturating_duration_since(entry.since);
            let time = time.saturating_sub(entry.step.stopping_max());
            let refusal = exceeded(entry.step, data.saturating_sub(entry.data), time)?;
            Some((refusal, Weak::clone(&entry.client)))
        })
    }

    /// Runs `make` without counting its memory toward the steps in progress.
    pub(super) fn set_aside<T>(&self, make: impl FnOnce() -> T) -> T {
        let before = self.data();
        let made = make();
        let taken = self.data().saturating_sub(before);
        for entry in &mut self.lock().all {
            entry.data = entry.data.saturating_add(taken);
        }
        made
    }

    fn data(&self) -> u64 {
        self.memory.as_ref().and_then(|memory| memory.data().ok()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error for a step that has taken this many bytes and this long, if a limit is
/// exceeded.
fn exceeded(step: Step, bytes: u64, time: Duration) -> Option<Refusal> {
    let (what, status, most) = match step {
        Step::Reading | Step::Vectors => return None,
        Step::Template => ("its chat template takes", 500, READING_MAX),
        Step::Grammar => ("the grammar of the schema takes", 400, READING_MAX),
        Step::Token => ("a token under the grammar of the schema takes", 400, TOKEN_MAX),
    };
    let limit = if bytes > MEMORY_MAX {
        format!("more than {} MiB of memory", MEMORY_MAX / MIB)
    } else if time > most {
        format!("longer than {} s", most.as_secs())
    } else {
        return None;
    };
    let advice = if step == Step::Template { "" } else { ": simplify it" };
    Some(Refusal::because(status, format!("{what} {limit}{advice}")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates work whose caller waits until the returned client is dropped.
    pub(crate) fn work() -> (Arc<Client>, Work) {
        let client = Client::new();
        let work = Watch::new(None).begin(Step::Reading, &Arc::downgrade(&client));
        (client, work)
    }

    #[test]
    fn watch_names_the_limit_a_step_exceeds() {
        for step in [Step::Reading, Step::Template, Step::Grammar, Step::Token, Step::Vectors] {
            assert_eq!(exceeded(step, MEMORY_MAX, TOKEN_MAX), None);
        }
        let said = |step, bytes, time| exceeded(step, bytes, time).unwrap().message;
        assert_eq!(
            said(Step::Template, MEMORY_MAX + 1, Duration::ZERO),
            "its chat template takes more than 512 MiB of memory"
        );
        assert_eq!(
            said(Step::Grammar, 0, READING_MAX + LOOK),
            "the grammar of the schema takes longer than 30 s: simplify it"
        );
        assert!(said(Step::Token, 0, TOKEN_MAX + LOOK).contains("longer than 20 s"));
    }

    #[test]
    fn work_without_caller_must_stop() {
        let (client, work) = work();
        assert_eq!(work.check(), Ok(()));
        work.enter(Step::Template);
        assert_eq!(work.check(), Ok(()));
        assert!(work.watch.look().is_none());
        drop(client);
        assert!(work.check().is_err());
        // The work still has time to stop by itself.
        assert!(work.watch.look().is_none());
        work.watch.lock().of(work.number).unwrap().left =
            monotonic_now().checked_sub(Step::Template.stopping_max() + LOOK);
        assert!(work.watch.look().is_some());
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_rejected_with_a_message() {
        let (client, work) = work();
        work.enter(Step::Grammar);
        work.watch.lock().of(work.number).unwrap().since =
            monotonic_now().checked_sub(READING_MAX * 2).unwrap();
        assert_eq!(work.check().unwrap_err().status, 400);
        let (refusal, of) = work.watch.look().unwrap();
        of.upgrade().unwrap().refusal.send_replace(Some(refusal.clone()));
        assert_eq!(client.refused().await, refusal);
        work.enter(Step::Reading);
        assert!(work.watch.look().is_none());
    }
}
