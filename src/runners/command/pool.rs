//! The pool of a model's workers: as many as its concurrency, each used again and again, replaced
//! when it ends.
//!
//! A worker that ends without having answered, or talks nonsense, counts as a failure: the more of
//! them in a row, the longer until the next is started. There is never a storm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::tail::Tail;
use super::worker::{GuardConfig, Worker};
use super::{Options, describe};
use crate::runners::Health;
use crate::runners::options::Model;
use crate::runtime;
use crate::runtime::shortage::is_shortage;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A worker that has lived for so long has started well.
const SETTLED: Duration = Duration::from_secs(2);

/// The workers of one model.
#[derive(Debug)]
pub struct Pool {
    pub options: Arc<Options>,
    pub model: Model,
    pub guard: GuardConfig,
    /// What its workers wrote to standard error.
    pub tail: Tail,
    state: Mutex<State>,
    /// A worker is free, or another one may be started.
    freed: Notify,
}

#[derive(Debug)]
struct State {
    idle: Vec<Worker>,
    /// Those that are idle, at work or ending.
    alive: usize,
    /// In a row.
    failures: u32,
    not_before: Instant,
    health: Health,
}

/// A worker that is at work. Dropped before its end is known, it is ended.
#[derive(Debug)]
pub struct WorkerLease {
    pool: Arc<Pool>,
    pub worker: Option<Worker>,
}

impl Pool {
    /// Without a worker.
    #[must_use]
    pub fn new(options: Arc<Options>, model: Model, guard: GuardConfig) -> Arc<Self> {
        let state = State {
            idle: Vec::new(),
            alive: 0,
            failures: 0,
            not_before: runtime::monotonic_now(),
            health: Health::Starting,
        };
        let tail = Tail::default();
        let (state, freed) = (Mutex::new(state), Notify::new());
        Arc::new(Self { options, model, guard, tail, state, freed })
    }

    /// How its workers are.
    #[must_use]
    pub fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// A worker that is alive, as soon as there is one.
    ///
    /// # Errors
    /// When none can be started now, if `may_wait` is not set: the sentence says why.
    pub async fn take(self: &Arc<Self>, may_wait: bool) -> Result<WorkerLease, String> {
        loop {
            let freed = self.freed.notified();
            let not_before = {
                let mut state = self.lock();
                if let Some(worker) = self.pop_alive(&mut state) {
                    return Ok(self.lease(worker));
                }
                let now = runtime::monotonic_now();
                if state.alive < self.model.concurrency && now >= state.not_before {
                    if let Some(worker) = self.start(&mut state) {
                        return Ok(self.lease(worker));
                    }
                    continue;
                }
                if let (false, Health::Failing(reason)) = (may_wait, &state.health) {
                    return Err(reason.clone());
                }
                state.not_before
            };
            // Past the pause, only a worker that is returned can help.
            let pause = not_before.saturating_duration_since(runtime::monotonic_now());
            let pause = if pause.is_zero() { PAUSE_MAX } else { pause };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn lease(self: &Arc<Self>, worker: Worker) -> WorkerLease {
        WorkerLease { pool: Arc::clone(self), worker: Some(worker) }
    }

    /// An idle worker that is alive still; those that are not are counted out.
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

    /// Starts a worker; when that is not possible, the next try comes after a pause.
    fn start(&self, state: &mut State) -> Option<Worker> {
        match Worker::start(self) {
            Ok(worker) => {
                state.alive += 1;
                Some(worker)
            }
            Err(error) if is_shortage(&error) => {
                // It says nothing about the model.
                state.not_before = runtime::monotonic_now() + FIRST_PAUSE;
                tracing::warn!(model = %self.model.name, %error, "a worker cannot start now");
                None
            }
            Err(error) => {
                self.failed(state, format!("its worker cannot be started: {error}"));
                None
            }
        }
    }

    /// A worker has ended without being asked to.
    fn died(&self, state: &mut State, is_proven: bool, reason: &str) {
        state.alive = state.alive.saturating_sub(1);
        if is_proven {
            // It has done work: whether the model can start is not in question.
            self.pause(state);
            tracing::warn!(model = %self.model.name, %reason, "a worker has ended");
        } else {
            self.failed(state, reason.to_owned());
        }
        self.freed.notify_waiters();
    }

    fn failed(&self, state: &mut State, reason: String) {
        self.pause(state);
        let pause = state.not_before.saturating_duration_since(runtime::monotonic_now());
        let (model, said) = (&self.model.name, self.tail.last_line().unwrap_or_default());
        tracing::warn!(%model, %reason, %said, ?pause, "a worker cannot start; tried again later");
        state.health = Health::Failing(reason);
    }

    fn pause(&self, state: &mut State) {
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(state.failures));
        state.failures = state.failures.saturating_add(1);
        state.not_before = runtime::monotonic_now() + doubled.min(PAUSE_MAX);
    }

    /// Sees to it that there is a worker, so that a model that cannot start is known before it is
    /// asked for, and that one that has settled counts as healthy.
    pub fn maintain(self: &Arc<Self>) {
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
            && runtime::monotonic_now() >= state.not_before
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
    /// The worker has answered: it is free for the next job.
    pub fn return_to_pool(mut self) {
        let Some(worker) = self.worker.take() else { return };
        let mut state = self.pool.lock();
        state.failures = 0;
        state.health = Health::Good;
        state.idle.push(worker);
        drop(state);
        self.pool.freed.notify_one();
    }

    /// The worker has ended by itself; says how.
    pub async fn reap(mut self) -> String {
        let Some(worker) = self.worker.take() else { return String::new() };
        let pool = Arc::clone(&self.pool);
        // In a task of its own: also when nobody waits any more, it is counted out.
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
    /// The job was cancelled, is out of time, or the worker talks nonsense: it is ended, and its
    /// place is free when it is dropped.
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            // The runtime has ended; the guard is asked by the worker's own end.
            return;
        }
        let pool = Arc::clone(&self.pool);
        self.pool.guard.tasks.spawn(async move {
            let mut worker = worker;
            worker.end().await;
            pool.lock().alive -= 1;
            pool.freed.notify_waiters();
        });
    }
}
