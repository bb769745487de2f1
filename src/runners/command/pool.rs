//! The pool of a model's workers: as many as its concurrency, each used again and again, replaced
//! when it ends.
//!
//! A worker that ends without having answered, or talks nonsense, counts as a failure: the more of
//! them in a row, the longer until the next is started. There is never a storm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::process::GuardConfig;
use super::worker::Worker;
use super::{Options, describe};
use crate::runners::Health;
use crate::runners::backoff::Backoff;
use crate::runners::options::Model;
use crate::runners::tail::Tail;
use crate::runtime::Recurring;
use crate::runtime::shortage::is_shortage;

/// How long a free worker is waited for before the pool is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// For a worker that has ended before it gave an answer.
const HINT_ENDED: &str = "the worker ended before it answered: with mode = \"persistent\" it answers \
    each line of its standard input with a line of JSON, and ends when its input ends; for a program that \
    does one job and ends, set mode = \"once\"";
/// For a worker that was ended before it gave an answer.
const HINT_SILENT: &str = "the worker was ended before it answered: does it write a line of JSON for \
    each line that it reads, and flush it? Standard output is for answers alone: messages belong on \
    standard error";
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
    backoff: Backoff,
    health: Health,
    /// A hint for the operator about the last worker, where it gave no answer.
    hint: Option<&'static str>,
    /// The failure that was logged last.
    logged: Recurring,
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

    /// How its workers are.
    #[must_use]
    pub fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// A hint for the operator about a model whose worker gives no answer.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        self.lock().hint
    }

    /// A worker that is alive, as soon as there is one.
    ///
    /// # Errors
    /// When none can be started now, if `may_wait` is not set: the sentence says why.
    pub async fn take(self: &Arc<Self>, may_wait: bool) -> Result<WorkerLease, String> {
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
            // Past the pause, only a worker that is returned can help.
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
                state.backoff.pause();
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
            state.backoff.failed();
            tracing::warn!(model = %self.model.name, %reason, "a worker has ended");
        } else {
            self.failed(state, reason.to_owned());
        }
        self.freed.notify_waiters();
    }

    fn failed(&self, state: &mut State, reason: String) {
        let pause = state.backoff.failed();
        let model = &self.model.name;
        let said = self.tail.last_line().unwrap_or_default();
        // A program that fails says why itself; only a quiet end needs an explanation.
        let hint = (reason == super::ENDED).then_some(HINT_ENDED);
        if state.logged.is_news(&reason) {
            let pause = humantime::format_duration(pause).to_string();
            tracing::warn!(
                %model, %reason, %said, hint, pause,
                "a worker cannot start; it is tried again, and logged again in an hour or on a change"
            );
        }
        state.hint = hint;
        state.health = Health::Failing(reason);
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
    /// The worker has answered: it is free for the next job.
    pub fn return_to_pool(mut self) {
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
        if !worker.is_proven {
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
