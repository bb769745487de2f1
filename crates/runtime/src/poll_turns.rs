//! Fair polling on the execution threads: even if many tasks of one organization are ready, only a
//! few of them are polled before the next task of another organization.
//!
//! Tokio polls tasks in the order in which they were woken. With thousands of ready executions of
//! one organization, each step of another organization would wait for all of them. So a task is
//! woken only at its organization's turn: each organization has at most as many awake tasks as
//! there are threads, and its other tasks wait in a FIFO queue.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

use orrery_domain::ids::OrganizationId;

/// The task has not been woken since its last poll.
const ASLEEP: u8 = 0;
/// The task is in its organization's queue.
const IN_LINE: u8 = 1;
/// The task is about to be polled.
const AWAKE: u8 = 2;
/// The task is being polled.
const POLLED: u8 = 3;
/// The task is being polled, and has been woken since the poll began.
const POLLED_AND_WOKEN: u8 = 4;
/// The task has finished or was dropped.
const GONE: u8 = 5;

/// The queues of all organizations.
#[derive(Debug)]
pub(crate) struct PollTurns {
    /// The maximum number of awake tasks per organization.
    most: usize,
    lines: Mutex<Lines>,
}

type Lines = HashMap<OrganizationId, Line>;

#[derive(Debug, Default)]
struct Line {
    awake: usize,
    waiting: VecDeque<Arc<Sleeper>>,
}

/// Wakes a task when its organization's turn comes.
#[derive(Debug)]
struct Sleeper {
    turns: Arc<PollTurns>,
    organization: OrganizationId,
    /// Changed only while the queues are locked.
    state: AtomicU8,
    task: AtomicWaker,
}

/// A future that is polled at its organization's turn.
#[derive(Debug)]
pub(crate) struct InTurn<F> {
    work: Pin<Box<F>>,
    sleeper: Arc<Sleeper>,
    waker: Waker,
}

impl Default for PollTurns {
    /// Allows as many awake tasks per organization as the machine has cores.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { most: cores, lines: Mutex::default() }
    }
}

impl PollTurns {
    /// Wraps `work` so that it takes turns with the work of other organizations.
    pub(crate) fn of<F: Future>(
        self: &Arc<Self>,
        organization: OrganizationId,
        work: F,
    ) -> InTurn<F> {
        let turns = Arc::clone(self);
        let (state, task) = (AtomicU8::new(ASLEEP), AtomicWaker::new());
        let sleeper = Arc::new(Sleeper { turns, organization, state, task });
        // No waker is registered yet, so this call only puts the task in the queue.
        sleeper.wake_by_ref();
        InTurn { work: Box::pin(work), waker: Waker::from(Arc::clone(&sleeper)), sleeper }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleeper {
    fn get(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
    }

    /// Whether the poll may begin.
    fn begin_poll(&self) -> bool {
        let _lines = self.turns.lock();
        let is_awake = self.get() == AWAKE;
        if is_awake {
            self.set(POLLED);
        }
        is_awake
    }

    /// Marks the task as no longer polled, or as dropped, and wakes the next task of its
    /// organization.
    fn leave(self: &Arc<Self>, state: u8) {
        let next = {
            let mut lines = self.turns.lock();
            let before = self.get();
            if !matches!(before, AWAKE | POLLED | POLLED_AND_WOKEN) {
                self.set(if before == GONE { GONE } else { state });
                return;
            }
            let Some(line) = lines.get_mut(&self.organization) else { return };
            if before == POLLED_AND_WOKEN && state == ASLEEP {
                self.set(IN_LINE);
                line.waiting.push_back(Arc::clone(self));
            } else {
                self.set(state);
            }
            let next = line.next();
            if next.is_none() {
                line.awake = line.awake.saturating_sub(1);
                if line.awake == 0 {
                    lines.remove(&self.organization);
                }
            }
            next
        };
        if let Some(next) = next {
            next.task.wake();
        }
    }
}

impl Line {
    /// Takes the first task from the queue.
    fn next(&mut self) -> Option<Arc<Sleeper>> {
        loop {
            let first = self.waiting.pop_front()?;
            if first.get() == IN_LINE {
                first.set(AWAKE);
                return Some(first);
            }
        }
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        {
            let mut lines = self.turns.lock();
            match self.get() {
                ASLEEP => {
                    let line = lines.entry(self.organization).or_default();
                    if line.awake >= self.turns.most {
                        self.set(IN_LINE);
                        line.waiting.push_back(Arc::clone(self));
                        return;
                    }
                    line.awake = line.awake.saturating_add(1);
                    self.set(AWAKE);
                }
                POLLED => return self.set(POLLED_AND_WOKEN),
                _ => return,
            }
        }
        self.task.wake();
    }
}

impl<F: Future> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.sleeper.task.register(context.waker());
        if !self.sleeper.begin_poll() {
            return Poll::Pending;
        }
        // If the poll panics, dropping `self` leaves the queue.
        let Self { work, sleeper, waker } = &mut *self;
        let polled = work.as_mut().poll(&mut Context::from_waker(waker));
        sleeper.leave(if polled.is_ready() { GONE } else { ASLEEP });
        polled
    }
}

impl<F> Drop for InTurn<F> {
    fn drop(&mut self) {
        self.sleeper.leave(GONE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;
    use crate::{Tasks, new_id};

    /// Returns pending once, after waking itself.
    async fn more_to_do() {
        let mut is_over = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut is_over, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn polls_of_organizations_take_turns() {
        const GREEDY: usize = 500;
        const POLLS: usize = 20;
        let turns = Arc::new(PollTurns { most: 2, lines: Mutex::default() });
        let tasks = Tasks::new();
        let [greedy, other]: [OrganizationId; 2] = [new_id(), new_id()];
        let polled = Arc::<AtomicUsize>::default();
        for _ in 0..GREEDY {
            let polled = Arc::clone(&polled);
            tasks.spawn(turns.of(greedy, async move {
                for _ in 0..POLLS {
                    polled.fetch_add(1, Ordering::Relaxed);
                    more_to_do().await;
                }
            }));
        }
        let seen = Arc::clone(&polled);
        let served = tasks.spawn(turns.of(other, async move {
            let before = seen.load(Ordering::Relaxed);
            for _ in 0..POLLS {
                more_to_do().await;
            }
            seen.load(Ordering::Relaxed) - before
        }));
        let between = served.await.unwrap();
        assert!(
            between <= GREEDY,
            "{between} polls of one organization between {POLLS} of another"
        );
        tasks.stop();
        assert!(tasks.ended(std::time::Duration::from_secs(60)).await);
        assert_eq!(polled.load(Ordering::Relaxed), GREEDY * POLLS, "no wake-up is lost");
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn polls_continue_after_tasks_are_dropped() {
        let turns = Arc::new(PollTurns { most: 1, lines: Mutex::default() });
        let who: OrganizationId = new_id();
        let first = turns.of(who, std::future::ready(1));
        let second = turns.of(who, std::future::ready(2));
        let mut third = turns.of(who, std::future::ready(3));
        assert!((&mut third).now_or_never().is_none(), "it is not its turn");
        drop((second, first));
        assert_eq!((&mut third).now_or_never(), Some(3));
        drop(third);
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn sleeping_task_delays_no_polls() {
        let turns = Arc::new(PollTurns { most: 1, lines: Mutex::default() });
        let who: OrganizationId = new_id();
        let notify = Notify::new();
        let mut sleeps = turns.of(who, notify.notified());
        assert!((&mut sleeps).now_or_never().is_none());
        assert_eq!(turns.of(who, std::future::ready(1)).now_or_never(), Some(1));
        notify.notify_one();
        assert!((&mut sleeps).now_or_never().is_some());
    }

    #[tokio::test]
    async fn polls_continue_after_panic() {
        let turns = Arc::new(PollTurns { most: 1, lines: Mutex::default() });
        let tasks = Tasks::new();
        let who: OrganizationId = new_id();
        let panics = tasks.spawn(turns.of(who, async { panic!("as scripted") }));
        assert!(panics.await.is_err());
        assert_eq!(turns.of(who, std::future::ready(1)).now_or_never(), Some(1));
    }
}
