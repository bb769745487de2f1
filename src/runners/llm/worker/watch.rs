//! Watches the work on requests. Templates, grammars and vocabularies compute with values of any size, in calls that
//! cannot be interrupted: a text that is doubled, a search through a long list, a token under a grammar.
//!
//! Work that takes too much memory or time is refused, and work that nobody waits for is given up. Where it does
//! not stop by itself, this process ends; the service starts another one and repeats what else was asked.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::GIVEN_UP;
use super::request::Refusal;
use crate::guard::sandbox::OwnMemory;
use crate::runtime::monotonic_now;

/// Memory that the process may take more while a step is computed, in bytes.
const MEMORY_MAX: u64 = 512 * MIB;
/// How long the templates of one request may be rendered, and the grammar of its schemas be made.
const READING_MAX: Duration = Duration::from_secs(30);
/// How long one token may be looked for under a grammar.
const TOKEN_MAX: Duration = Duration::from_secs(20);
/// How long a refusal has to reach the service before the process ends.
const SENDING: Duration = Duration::from_millis(100);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(5);
const MIB: u64 = 1024 * 1024;

/// Somebody who waits for an answer. When the last reference is dropped, nobody does.
#[derive(Debug)]
pub struct Client {
    refusal: watch::Sender<Option<Refusal>>,
}

impl Client {
    /// Waits.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { refusal: watch::Sender::new(None) })
    }

    /// Waits until the work on the request is refused.
    pub async fn refused(&self) -> Refusal {
        let mut refusal = self.refusal.subscribe();
        let found = refusal.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        match found {
            Some(refusal) => refusal,
            None => std::future::pending().await,
        }
    }
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A request becomes tokens.
    Reading,
    /// A chat template is rendered.
    Template,
    /// A grammar is made of schemas.
    Grammar,
    /// A token is looked for that a grammar allows.
    Token,
    /// Texts become vectors.
    Vectors,
}

impl Step {
    /// How long it has to stop by itself. Ending the process costs the streams of other clients, so that what
    /// ends with its input has more time than what a template or schema may draw out.
    const fn stopping_max(self) -> Duration {
        match self {
            Self::Reading => Duration::from_secs(10),
            Self::Grammar | Self::Token | Self::Vectors => Duration::from_secs(2),
            Self::Template => Duration::from_millis(500),
        }
    }
}

/// The work that is going on.
#[derive(Debug)]
pub struct Watch {
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
    /// Bytes of data that the process had when the step began.
    data: u64,
    /// Since when nobody waits for it.
    left: Option<Instant>,
}

/// Work on a request, until this is dropped.
#[derive(Debug)]
pub struct Work {
    watch: Arc<Watch>,
    number: u64,
    client: Weak<Client>,
}

impl Work {
    /// Goes over to another step.
    pub fn enter(&self, step: Step) {
        let data = self.watch.data();
        if let Some(entry) = self.watch.lock().of(self.number) {
            (entry.step, entry.since, entry.data) = (step, monotonic_now(), data);
        }
    }

    /// Who waits for it.
    #[must_use]
    pub const fn client(&self) -> &Weak<Client> {
        &self.client
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// Nobody waits for the answer any more, or the step has taken too long.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.client.strong_count() == 0 {
            return Err(Refusal::because(500, "nobody waits for the answer any more"));
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
    /// Of a process whose memory is seen there.
    #[must_use]
    pub fn new(memory: Option<OwnMemory>) -> Arc<Self> {
        Arc::new(Self { memory, running: Mutex::default(), begun: Condvar::new() })
    }

    /// Work for a client begins.
    #[must_use]
    pub fn begin(self: &Arc<Self>, step: Step, client: &Weak<Client>) -> Work {
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

    /// Watches for as long as the process lives; for a thread of its own.
    pub fn run(&self) {
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
            // Standard error goes to the service, which shows its last line.
            drop(std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes()));
            std::process::exit(GIVEN_UP.into());
        }
    }

    /// The first work that has to end and does not, why, and whose it is.
    fn look(&self) -> Option<(Refusal, Weak<Client>)> {
        let (data, now) = (self.data(), monotonic_now());
        let mut running = self.lock();
        running.all.iter_mut().find_map(|entry| {
            if entry.client.strong_count() == 0 {
                let left = *entry.left.get_or_insert(now);
                let message = "work that nobody waited for did not stop";
                let is_over = now.saturating_duration_since(left) > entry.step.stopping_max();
                return is_over.then(|| (Refusal::because(500, message), Weak::new()));
            }
            // It has time to stop by itself.
            let time = now.saturating_duration_since(entry.since);
            let time = time.saturating_sub(entry.step.stopping_max());
            let refusal = exceeded(entry.step, data.saturating_sub(entry.data), time)?;
            Some((refusal, Weak::clone(&entry.client)))
        })
    }

    /// Makes something whose memory does not count as that of the steps that are going on.
    pub fn set_aside<T>(&self, make: impl FnOnce() -> T) -> T {
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

/// The refusal of a step that has taken so many bytes and so long.
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
pub mod tests {
    use super::*;

    /// Work for a client who waits as long as this is kept.
    pub fn work() -> (Arc<Client>, Work) {
        let client = Client::new();
        let work = Watch::new(None).begin(Step::Reading, &Arc::downgrade(&client));
        (client, work)
    }

    #[test]
    fn watch_says_which_limit_a_step_exceeds() {
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
    fn work_that_nobody_waits_for_is_to_stop() {
        let (client, work) = work();
        assert_eq!(work.check(), Ok(()));
        work.enter(Step::Template);
        assert_eq!(work.check(), Ok(()));
        assert!(work.watch.look().is_none());
        drop(client);
        assert!(work.check().is_err());
        // It has a while.
        assert!(work.watch.look().is_none());
        work.watch.lock().of(work.number).unwrap().left =
            monotonic_now().checked_sub(Step::Template.stopping_max() + LOOK);
        assert!(work.watch.look().is_some());
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_refused_with_a_sentence() {
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
