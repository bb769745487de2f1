//! Work that completes even if its caller is dropped. While the caller waits, it polls the work
//! itself, without a separate task or thread switch; when the caller is dropped, a task takes over.
//!
//! The work never runs twice, and never continues after a panic.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The work panicked. The panic is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("task panicked")]
pub struct Panicked;

/// Resolves with the output of the work; see [`super::Tasks::complete`].
#[derive(Debug)]
#[must_use = "the work begins when it is awaited"]
pub struct Completing<F: Future<Output: Send> + Send + 'static> {
    /// The work; `None` after the work has finished.
    work: Option<Pin<Box<F>>>,
    tracker: TaskTracker,
    /// Makes a shutdown wait for the work, even while the caller drives it.
    _counted: TaskTrackerToken,
}

impl<F: Future<Output: Send> + Send + 'static> Completing<F> {
    pub(super) fn new(work: F, tracker: TaskTracker) -> Self {
        let counted = tracker.token();
        Self { work: Some(Box::pin(work)), tracker, _counted: counted }
    }

    /// Drives the work until `other` resolves. The rest of the work then continues in a task.
    pub async fn until<T>(mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|context| {
            if self.work.is_some() {
                // The result is not needed here; if it is used, the work itself passes it to
                // `other`.
                let _ended_or_pending = Pin::new(&mut self).poll(context);
            }
            other.as_mut().poll(context)
        })
        .await
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Completing<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else { return Poll::Ready(Err(Panicked)) };
        let polled = match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(_panic) => Err(Panicked),
        };
        self.work = None;
        Poll::Ready(polled)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Completing<F> {
    fn drop(&mut self) {
        // Without a runtime, the process is exiting and no task could continue the work.
        if let Some(work) = self.work.take()
            && let Ok(runtime) = Handle::try_current()
        {
            self.tracker.spawn_on(work, &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::Panicked;
    use crate::Tasks;

    const GRACE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn completing_returns_output_to_waiting_caller() {
        let tasks = Tasks::new();
        assert_eq!(tasks.complete(async { 5 }).await, Ok(5));
        assert_eq!(tasks.complete(async { panic!("as scripted") }).await, Err::<(), _>(Panicked));
        assert!(tasks.ended(GRACE).await);
    }

    #[tokio::test]
    async fn completing_continues_after_caller_is_dropped_and_shutdown_waits() {
        let tasks = Tasks::new();
        let (go_on, gate) = oneshot::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let work = {
            let done = Arc::clone(&done);
            async move {
                gate.await.unwrap();
                done.store(true, Ordering::SeqCst);
            }
        };
        let mut waiting = Box::pin(tasks.complete(work));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        assert!(!tasks.ended(Duration::from_millis(1)).await);
        go_on.send(()).unwrap();
        assert!(tasks.ended(GRACE).await);
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn completing_until_moves_remaining_work_to_task() {
        let tasks = Tasks::new();
        let (reply, answer) = oneshot::channel();
        let (go_on, gate) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let work = async move {
            reply.send(1).unwrap();
            gate.await.unwrap();
            end.send(2).unwrap();
        };
        assert_eq!(tasks.complete(work).until(answer).await, Ok(1));
        go_on.send(()).unwrap();
        assert_eq!(ended.await, Ok(2));
    }
}
