//! A permanent waker for a connection, which is polled by the task of its current user.
//!
//! A call alternately polls two things: the connection, and its own exchange. The connection and
//! the exchange wake each other through hyper's channels, and each keeps the waker from its last
//! poll. A connection therefore keeps one waker for its entire life, across all its users. A
//! wake-up during a poll causes another round in the same poll; only a wake-up between polls
//! reaches the task.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A poll is in progress.
const POLLING: u8 = 1;
/// A wake-up has arrived since the last poll began.
const WOKEN: u8 = 2;
/// Maximum number of rounds in one poll before other tasks on the thread run. The limit also ends
/// the loop if a source wakes immediately because the task's budget is used up.
const ROUNDS_MAX: usize = 16;

/// A waker that stays the same while different tasks poll with it in turn.
pub(super) struct Relay {
    waker: Waker,
    shared: Arc<Shared>,
}

struct Shared {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(WOKEN, AcqRel) & POLLING == 0 {
            self.task.wake();
        }
    }
}

impl Relay {
    /// Creates a relay that wakes no task yet.
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared { state: AtomicU8::new(0), task: AtomicWaker::new() });
        Self { waker: Waker::from(Arc::clone(&shared)), shared }
    }

    /// Returns the context to poll with.
    pub(super) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Polls `step` until it is ready, or until a round ends without a wake-up. After that,
    /// wake-ups reach the task of `outer`.
    ///
    /// No wake-up is lost. `state` changes only by read-modify-write operations, so these
    /// operations have one order, and each operation sees everything that was written before the
    /// earlier operations. A wake-up before the swap is handled by the step after the swap. A
    /// wake-up between the swap and the exchange makes the exchange fail, which causes another
    /// round. A wake-up after the exchange finds no poll in progress and wakes the task, whose
    /// waker was registered before the exchange. If the state is left at `POLLING`, either nobody
    /// is waiting any more or the task has been woken to poll again.
    pub(super) fn poll<T>(
        &self,
        outer: &Context<'_>,
        mut step: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.shared.task.register(outer.waker());
        let mut own = self.context();
        for _ in 0..ROUNDS_MAX {
            self.shared.state.swap(POLLING, AcqRel);
            let polled = step(&mut own);
            if polled.is_ready() {
                return polled;
            }
            if self.shared.state.compare_exchange(POLLING, 0, AcqRel, Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        outer.waker().wake_by_ref();
        Poll::Pending
    }

    /// Drops the waker of the task that polled last.
    pub(super) fn release(&self) {
        drop(self.shared.task.take());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Counts the calls of its waker.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn relay_repolls_on_wake_during_poll_and_wakes_task_afterwards() {
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let outer = Context::from_waker(&waker);
        let relay = Relay::new();
        let mut rounds = 0;
        let polled = relay.poll(&outer, |own| {
            rounds += 1;
            if rounds < 3 {
                own.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((rounds, count.0.load(Ordering::SeqCst)), (3, 0));
        relay.waker.wake_by_ref();
        relay.waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "one wake-up for one poll");
        assert!(relay.poll(&outer, |_| Poll::<()>::Pending).is_pending());
        relay.release();
        relay.waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "a released task is left alone");
    }

    #[test]
    fn relay_yields_when_step_wakes_itself_forever() {
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let relay = Relay::new();
        let mut rounds = 0;
        let polled = relay.poll(&Context::from_waker(&waker), |own| {
            rounds += 1;
            own.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        assert_eq!((rounds, count.0.load(Ordering::SeqCst)), (ROUNDS_MAX, 1));
    }

    /// Another thread publishes numbers and wakes once for each; the poller waits for each in turn.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn relay_loses_no_wake_from_other_thread() {
        const NUMBERS: usize = 20_000;
        let relay = Relay::new();
        let (published, consumed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (waker, source, seen) =
            (relay.waker.clone(), Arc::clone(&published), Arc::clone(&consumed));
        let publisher = tokio::task::spawn_blocking(move || {
            for number in 1..=NUMBERS {
                source.store(number, Ordering::Relaxed);
                waker.wake_by_ref();
                // The next number is published only after this one was seen, so that a lost wake-up
                // is a deadlock; and it is published immediately, so that it arrives while the poll
                // that saw this number is still running.
                let mut spins = 0_u32;
                while seen.load(Ordering::Acquire) < number && Arc::strong_count(&seen) > 1 {
                    spins = spins.wrapping_add(1);
                    if spins.is_multiple_of(10_000) {
                        std::thread::yield_now();
                    }
                    std::hint::spin_loop();
                }
            }
        });
        let mut next = 1;
        let waiting = poll_fn(move |outer| {
            relay.poll(outer, |_| {
                let number = published.load(Ordering::Relaxed);
                if number < next {
                    return Poll::Pending;
                }
                consumed.store(number, Ordering::Release);
                next = number + 1;
                if number == NUMBERS { Poll::Ready(()) } else { Poll::Pending }
            })
        });
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("no wake-up is lost");
        publisher.await.unwrap();
    }
}
