//! The pool of a model's workers: at most as many as the model's concurrency, each reused until it
//! exits and is then replaced.
//!
//! A worker that exits without a response or violates the protocol counts as a failure; consecutive
//! failures increase the delay before the next start, so that failures never cause a restart storm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::process::GuardConfig;
use super::worker::Worker;
use super::{Options, describe};
use crate::Health;
use crate::backoff::Backoff;
use crate::options::Model;
use crate::tail::Tail;
use orrery_runtime::Recurring;
use orrery_runtime::shortage::is_shortage;

/// How long to wait for a free worker before checking the pool again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Hint about a worker that exited before its first response.
const HINT_ENDED: &str = "the worker ended before it answered: with mode = \"persistent\" it answers \
    each line of its standard input with a line of JSON, and ends when its input ends; for a program that \
    does one job and ends, set mode = \"once\"";
/// Hint about a worker that was killed before its first response.
const HINT_SILENT: &str = "the worker was ended before it answered: does it write a line of JSON for \
    each line that it reads, and flush it? Standard output is for answers alone: messages belong on \
    standard error";
/// A worker that has been running for this long is considered to have started successfully.
const SETTLED: Duration = Duration::from_secs(2);

/// The workers of one model.
#[derive(Debug)]
pub(super) struct Pool {
    pub options: Arc<Options>,
    pub model: Model,
    pub guard: GuardConfig,
    /// The standard error of the pool's workers.
    pub tail: Tail,
    state: Mutex<State>,
    /// Notified when a worker is free or a new one may be started.
    freed: Notify,
}

#[derive(Debug)]
struct State {
    idle: Vec<Worker>,
    /// Number of workers that are idle, busy or exiting.
    alive: usize,
    backoff: Backoff,
    health: Health,
    /// A hint for the operator if the last worker sent no response.
    hint: Option<&'static str>,
    /// The failure that was logged last.
    logged: Recurring,
}

/// A worker in use. If the lease is dropped before the outcome of its job is known, the worker is
/// killed.
#[derive(Debug)]
pub(super) struct WorkerLease {
    pool: Arc<Pool>,
    pub worker: Option<Worker>,
}

impl Pool {
    /// Creates a pool without workers.
    #[must_use]
    pub(super) fn new(options: Arc<Options>, model: Model, guard: GuardConfig) -> Arc<Self> {
        let state = State {
            idle: Vec::new(),
            alive: 0,
            backoff: Backoff::default(),
            health: Health::Starting,
            hint: None,
            logged: Recurring::default(),
        };
        let tail = Tail::default();
        let state = Mutex::new(state);
        let freed = Notify::new();
        Arc::new(Self { options, model, guard, tail, state, freed })
    }

    /// Returns the health of the pool's workers.
    #[must_use]
    pub(super) fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// Returns the hint for the operator about a model whose worker sends no response.
    #[must_use]
    pub(super) fn hint(&self) -> Option<&'static str> {
        self.lock().hint
    }

    /// Takes a live worker, waiting until one is available.
    ///
    /// # Errors
    /// The last failure, if no worker can be started now and `may_wait` is false.
    pub(super) async fn take(self: &Arc<Self>, may_wait: bool) -> Result<WorkerLease, String> {
        loop {
            let freed = self.freed.notified();
            let pause = {
                let mut state = self.lock();
                if let Some(worker) = self.pop_alive(&mut state) {
                    return Ok(self.lease(worker));
                }
                if state.alive < self.model.concurrency && state.backoff.left().is_zero() {
                    if let Some(worker) = self.start(&mut state) {
                        return Ok(self.lease(worker));
                    }
                    continue;
                }
                if let (false, Health::Failing(reason)) = (may_wait, &state.health) {
                    return Err(reason.clone());
                }
                state.backoff.left()
            };
            // Without a delay, all workers are in use, so the run must wait for a worker to be
            // returned.
            let pause = if pause.is_zero() { LOOK_AGAIN } else { pause };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn lease(self: &Arc<Self>, worker: Worker) -> WorkerLease {
        WorkerLease { pool: Arc::clone(self), worker: Some(worker) }
    }

    /// Takes an idle worker that is still alive; dead workers are removed and no longer counted.
    fn pop_alive(&self, state: &mut State) -> Option<Worker> {
        while let Some(mut worker) = state.idle.pop() {
            match worker.ended() {
                None => return Some(worker),
                Some(status) => {
                    let reason = describe(Some(status), &self.tail);
                    self.died(state, worker.is_proven, &reason);
                }
            }
        }
        None
    }

    /// Starts a worker; a failure delays the next attempt.
    fn start(&self, state: &mut State) -> Option<Worker> {
        match Worker::start(self) {
            Ok(worker) => {
                state.alive += 1;
                Some(worker)
            }
            Err(error) if is_shortage(&error) => {
                // A lack of machine resources does not indicate a fault in the model.
                state.backoff.pause();
                tracing::warn!(model = %self.model.name, %error, "worker failed to start: out of machine resources");
                None
            }
            Err(error) => {
                self.failed(state, format!("its worker cannot be started: {error}"));
                None
            }
        }
    }

    /// Records that a worker ended unexpectedly.
    fn died(&self, state: &mut State, is_proven: bool, reason: &str) {
        state.alive = state.alive.saturating_sub(1);
        if is_proven {
            // The worker has responded before, so the model is able to start.
            state.backoff.failed();
            tracing::warn!(model = %self.model.name, %reason, "worker exited");
        } else {
            self.failed(state, reason.to_owned());
        }
        self.freed.notify_waiters();
    }

    fn failed(&self, state: &mut State, reason: String) {
        let pause = state.backoff.failed();
        let model = &self.model.name;
        let said = self.tail.last_line().unwrap_or_default();
        // A failing program reports its own reason; only a silent exit needs a hint.
        let hint = (reason == super::ENDED).then_some(HINT_ENDED);
        if state.logged.is_news(&reason) {
            let pause = humantime::format_duration(pause).to_string();
            tracing::warn!(
                %model, %reason, %said, hint, pause,
                "worker failed to start; retrying, next logged in an hour or on a change"
            );
        }
        state.hint = hint;
        state.health = Health::Failing(reason);
    }

    /// Keeps at least one worker running, so that a model that cannot start is detected before its
    /// first request, and a worker that stays up counts as healthy.
    pub(super) fn maintain(self: &Arc<Self>) {
        let mut state = self.lock();
        let idle = std::mem::take(&mut state.idle);
        for mut worker in idle {
            match worker.ended() {
                Some(status) => {
                    let reason = describe(Some(status), &self.tail);
                    self.died(&mut state, worker.is_proven, &reason);
                }
                None => {
                    if worker.started.elapsed() >= SETTLED {
                        state.health = Health::Good;
                    }
                    state.idle.push(worker);
                }
            }
        }
        if state.alive == 0
            && state.backoff.left().is_zero()
            && let Some(worker) = self.start(&mut state)
        {
            state.idle.push(worker);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerLease {
    /// Returns the worker to the pool after its job.
    pub(super) fn return_to_pool(mut self) {
        let Some(worker) = self.worker.take() else { return };
        let mut state = self.pool.lock();
        state.backoff.succeeded();
        state.health = Health::Good;
        state.hint = None;
        state.logged.end();
        state.idle.push(worker);
        drop(state);
        self.pool.freed.notify_one();
    }

    /// Reaps a worker that exited by itself, and returns a description of its exit.
    pub(super) async fn reap(mut self) -> String {
        let Some(worker) = self.worker.take() else { return String::new() };
        let pool = Arc::clone(&self.pool);
        // Runs in a separate task, so that the worker is removed from the count even if the caller
        // is dropped.
        let reaping = self.pool.guard.tasks.spawn(async move {
            let mut worker = worker;
            let status = worker.end().await;
            let reason = describe(status, &pool.tail);
            pool.died(&mut pool.lock(), worker.is_proven, &reason);
            reason
        });
        reaping.await.unwrap_or_default()
    }
}

impl Drop for WorkerLease {
    /// Kills the worker, because its job was cancelled or timed out, or because it violated the
    /// protocol; its slot in the pool is free once it is dropped.
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            // The runtime has shut down; dropping the worker tells its guard to end the worker.
            return;
        }
        let pool = Arc::clone(&self.pool);
        if !worker.has_written {
            pool.lock().hint = Some(HINT_SILENT);
        }
        self.pool.guard.tasks.spawn(async move {
            let mut worker = worker;
            worker.end().await;
            pool.lock().alive -= 1;
            pool.freed.notify_waiters();
        });
    }
}
