//! The jobs of all models with the runner `pull`: the waiting jobs, the leases, and the workers
//! that have called.
//!
//! A job waits until a worker claims it, and is then leased to the worker's key under an attempt
//! number. Each report of the worker extends the lease. When a lease ends, the job goes back to the
//! head of its queue, and the next claim gets the next attempt number; reports under the earlier
//! number are refused. The run that created a job ends the job's expired leases, and dropping the
//! run removes the job.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::options::Model;
use crate::{Error, Job, Progress, Success};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::{KeyId, WorkerJobId};
use orrery_domain::json_object::whole_number;
use orrery_domain::model::Usage;
use orrery_runtime::{monotonic_now, new_id, random_bytes, turns};

/// Maximum number of claims of one key that wait for a job of one model.
pub const POLLS_MAX: usize = 1024;
/// Maximum length of a worker's name, in characters.
pub const WORKER_CHARS_MAX: usize = 64;
/// Maximum number of workers per model whose last call is remembered. Further workers are served,
/// but not counted.
const WORKERS_MAX: usize = 10_000;

/// The reason why a request of a worker is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "this key has no job {0}: the job has ended or was cancelled, or the service has \
         restarted; stop working on the job"
    )]
    Unknown(String),
    #[error(
        "the lease of attempt {attempt} of this job has ended, and the job went back to the \
         queue; stop working on the job"
    )]
    Stale { attempt: u32 },
    #[error("this key has {POLLS_MAX} claims waiting for jobs of this model")]
    Polls,
}

/// A job that is leased to a worker.
#[derive(Debug)]
pub struct Claim {
    pub job: WorkerJobId,
    pub attempt: u32,
    pub input: Arc<Value>,
    pub lease: Duration,
}

/// The jobs and the workers of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Situation {
    /// The number of jobs that wait for a worker.
    pub waiting: usize,
    /// The number of jobs that are leased to a worker.
    pub leased: usize,
    /// The number of workers that have called within the last lease time, or whose claim waits.
    pub workers: usize,
    /// How long the oldest waiting job has waited.
    pub oldest: Option<Duration>,
}

/// The jobs of all models.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<WorkerJobId, Held>,
    queues: HashMap<String, Queue>,
}

/// The waiting jobs and the workers of a model.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<WorkerJobId>,
    /// Notified when a job begins to wait.
    arrived: Arc<Notify>,
    /// Waiting claims by key.
    polls: HashMap<KeyId, usize>,
    /// The time of each worker's last call, and of the last call of any worker.
    workers: HashMap<(KeyId, String), Instant>,
    seen: Option<Instant>,
}

impl Queue {
    fn touch(&mut self, key: KeyId, worker: &str) {
        let now = monotonic_now();
        self.seen = Some(now);
        let id = (key, worker.to_owned());
        if self.workers.len() < WORKERS_MAX || self.workers.contains_key(&id) {
            self.workers.insert(id, now);
        }
    }
}

/// A job.
#[derive(Debug)]
struct Held {
    model: String,
    input: Arc<Value>,
    progress: Arc<dyn Progress>,
    cost_report: String,
    lease: Duration,
    /// The number of leases so far, and the attempt number of the last lease.
    attempts: u32,
    stage: Stage,
    /// The attempt that has reported parts of the output. Parts of later attempts are not passed on,
    /// because they would not continue the earlier parts.
    parts_of: Option<u32>,
    /// Notified when the job is claimed or ends.
    changed: Arc<Notify>,
}

#[derive(Debug)]
enum Stage {
    Waiting { since: Instant },
    Leased { key: KeyId, worker: String, since: Instant, until: Instant },
    Ended(Option<Box<Result<Success, Error>>>),
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job, which exists until the returned value is dropped.
    pub(super) fn place<'m>(
        self: &Arc<Self>,
        model: &'m Model,
        lease: Duration,
        job: &Job,
    ) -> Placed<'m> {
        // Knowing the id of one job must not help to guess the ids of others.
        let id = random_bytes().map_or_else(|_no_bytes| new_id(), WorkerJobId::from);
        let changed = Arc::<Notify>::default();
        let held = Held {
            model: model.name.clone(),
            input: Arc::clone(&job.input),
            progress: Arc::clone(&job.progress),
            cost_report: model.cost_report.clone(),
            lease,
            attempts: 0,
            stage: Stage::Waiting { since: monotonic_now() },
            parts_of: None,
            changed: Arc::clone(&changed),
        };
        let mut state = self.lock();
        state.jobs.insert(id, held);
        let queue = state.queues.entry(model.name.clone()).or_default();
        queue.waiting.push_back(id);
        queue.arrived.notify_one();
        drop(state);
        Placed { jobs: Arc::clone(self), id, changed, model }
    }

    /// See [`PullRunner::claim`](super::PullRunner::claim).
    pub(super) async fn claim(
        &self,
        model: &str,
        key: KeyId,
        worker: &str,
        wait: Duration,
    ) -> Result<Option<Claim>, Refused> {
        let until = monotonic_now() + wait;
        let poll = Poll::begin(self, model, key, worker)?;
        loop {
            // Registered before the queue is read, so that no job arrives unnoticed in between.
            let arrived = poll.arrived.notified();
            if let Some(claim) = self.take(model, key, worker) {
                return Ok(Some(claim));
            }
            if timeout_at(until, arrived).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Leases the job that has waited longest.
    fn take(&self, model: &str, key: KeyId, worker: &str) -> Option<Claim> {
        let mut state = self.lock();
        let State { jobs, queues } = &mut *state;
        let queue = queues.get_mut(model)?;
        queue.touch(key, worker);
        let id = queue.waiting.pop_front()?;
        if !queue.waiting.is_empty() {
            // One notification may stand for several jobs.
            queue.arrived.notify_one();
        }
        let held = jobs.get_mut(&id)?;
        held.attempts = held.attempts.saturating_add(1);
        let since = monotonic_now();
        let until = since + held.lease;
        held.stage = Stage::Leased { key, worker: worker.to_owned(), since, until };
        held.changed.notify_one();
        let (attempt, lease) = (held.attempts, held.lease);
        Some(Claim { job: id, attempt, input: Arc::clone(&held.input), lease })
    }

    /// Finds a job that is leased to the key under this attempt number, extends its lease, and
    /// passes it to `report` together with the time since the claim.
    fn reported<T>(
        &self,
        job: &str,
        key: KeyId,
        attempt: u32,
        report: impl FnOnce(&mut Held, Duration) -> T,
    ) -> Result<T, Refused> {
        let unknown = || Refused::Unknown(job.chars().take(WORKER_CHARS_MAX).collect());
        let id: WorkerJobId = job.parse().map_err(|_no_id| unknown())?;
        let mut state = self.lock();
        let State { jobs, queues } = &mut *state;
        let held = jobs.get_mut(&id).ok_or_else(unknown)?;
        let now = monotonic_now();
        let queue = queues.entry(held.model.clone()).or_default();
        let lease = held.lease;
        match &mut held.stage {
            Stage::Leased { key: of, worker, since, until } if *of == key => {
                if attempt != held.attempts || *until <= now {
                    return Err(Refused::Stale { attempt });
                }
                *until = now + lease;
                queue.touch(key, worker);
                let taken = now.saturating_duration_since(*since);
                Ok(report(held, taken))
            }
            // The key may have had an earlier lease.
            Stage::Leased { .. } | Stage::Waiting { .. } if attempt <= held.attempts => {
                Err(Refused::Stale { attempt })
            }
            Stage::Leased { .. } | Stage::Waiting { .. } | Stage::Ended(_) => Err(unknown()),
        }
    }

    /// Extends the lease of a job.
    ///
    /// # Errors
    /// [`Refused`] unless the job is leased to the key under this attempt number.
    pub fn heartbeat(&self, job: &str, key: KeyId, attempt: u32) -> Result<(), Refused> {
        self.reported(job, key, attempt, |_held, _taken| ())
    }

    /// Adds text to the logs of a job's run.
    ///
    /// # Errors
    /// As [`Jobs::heartbeat`].
    pub fn log(&self, job: &str, key: KeyId, attempt: u32, text: &str) -> Result<(), Refused> {
        let progress =
            self.reported(job, key, attempt, |held, _taken| Arc::clone(&held.progress))?;
        progress.log(text);
        Ok(())
    }

    /// Adds a part to the output of a job's run.
    ///
    /// # Errors
    /// As [`Jobs::heartbeat`].
    pub fn part(&self, job: &str, key: KeyId, attempt: u32, part: &Value) -> Result<(), Refused> {
        let progress = self.reported(job, key, attempt, |held, _taken| {
            let continues = *held.parts_of.get_or_insert(attempt) == attempt;
            continues.then(|| Arc::clone(&held.progress))
        })?;
        if let Some(progress) = progress {
            progress.output(part);
        }
        Ok(())
    }

    /// Ends a job with its output.
    ///
    /// # Errors
    /// As [`Jobs::heartbeat`].
    pub fn complete(
        &self,
        job: &str,
        key: KeyId,
        attempt: u32,
        output: Value,
        metrics: Option<Map<String, Value>>,
    ) -> Result<(), Refused> {
        self.reported(job, key, attempt, |held, run_time| {
            let metric = |name: &str| whole_number(metrics.as_ref()?.get(name)?);
            let (input_tokens, output_tokens) = (metric("input_tokens"), metric("output_tokens"));
            // Rebuild the body that the worker sent, because the JSON pointer in the manifest's
            // `cost.report` refers to it.
            let mut body = Map::new();
            body.insert("output".to_owned(), output);
            if let Some(metrics) = metrics {
                body.insert("metrics".to_owned(), metrics.into());
            }
            let mut body = Value::Object(body);
            let cost = Model::cost_at(&held.cost_report, &body);
            let output = body.get_mut("output").map(Value::take).unwrap_or_default();
            let usage = Usage { run_time, cost, input_tokens, output_tokens, ..Usage::default() };
            held.end(Ok(Success::new(output, usage)));
        })
    }

    /// Ends a job with an error.
    ///
    /// # Errors
    /// As [`Jobs::heartbeat`].
    pub fn fail(
        &self,
        job: &str,
        key: KeyId,
        attempt: u32,
        error: &str,
        class: ErrorClass,
    ) -> Result<(), Refused> {
        self.reported(job, key, attempt, |held, _taken| {
            // `orrery worker` sends the messages of runners, which begin with the model's slug.
            let prefix = format!("the model '{}': ", held.model);
            let message = error.strip_prefix(&prefix).unwrap_or(error);
            held.end(Err(Failure::new(class, prefix.clone() + message).into()));
        })
    }

    /// Returns the jobs and workers of a model. Workers count for `lease` after their last call.
    pub(super) fn situation(&self, model: &str, lease: Duration) -> Situation {
        let mut state = self.lock();
        let State { jobs, queues } = &mut *state;
        let Some(queue) = queues.get_mut(model) else { return Situation::default() };
        let now = monotonic_now();
        queue.workers.retain(|_, seen| now.saturating_duration_since(*seen) <= lease);
        let is_leased = |held: &&Held| matches!(held.stage, Stage::Leased { .. });
        let waits = |id| match jobs.get(id)?.stage {
            Stage::Waiting { since } => Some(now.saturating_duration_since(since)),
            Stage::Leased { .. } | Stage::Ended(_) => None,
        };
        Situation {
            waiting: queue.waiting.len(),
            leased: jobs.values().filter(|held| held.model == model).filter(is_leased).count(),
            workers: queue.workers.len(),
            oldest: queue.waiting.iter().filter_map(waits).max(),
        }
    }
}

impl Held {
    fn end(&mut self, outcome: Result<Success, Error>) {
        self.stage = Stage::Ended(Some(Box::new(outcome)));
        self.changed.notify_one();
    }
}

/// A claim that waits for a job. The worker counts as present until this value is dropped.
struct Poll<'j> {
    jobs: &'j Jobs,
    model: &'j str,
    key: KeyId,
    worker: &'j str,
    arrived: Arc<Notify>,
}

impl<'j> Poll<'j> {
    fn begin(jobs: &'j Jobs, model: &'j str, key: KeyId, worker: &'j str) -> Result<Self, Refused> {
        let mut state = jobs.lock();
        let queue = state.queues.entry(model.to_owned()).or_default();
        let polls = queue.polls.entry(key).or_default();
        if *polls >= POLLS_MAX {
            return Err(Refused::Polls);
        }
        *polls += 1;
        let arrived = Arc::clone(&queue.arrived);
        Ok(Self { jobs, model, key, worker, arrived })
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        let mut state = self.jobs.lock();
        let Some(queue) = state.queues.get_mut(self.model) else { return };
        queue.touch(self.key, self.worker);
        if let Some(polls) = queue.polls.get_mut(&self.key) {
            *polls = polls.saturating_sub(1);
            if *polls == 0 {
                queue.polls.remove(&self.key);
            }
        }
    }
}

/// A job of a run. Dropping this value removes the job.
#[derive(Debug)]
pub(super) struct Placed<'m> {
    jobs: Arc<Jobs>,
    id: WorkerJobId,
    changed: Arc<Notify>,
    model: &'m Model,
}

/// The next step of a run.
enum Next {
    End(Box<Result<Success, Error>>),
    /// Wait for a worker, at most until this time.
    WaitForWorker(Instant),
    /// Wait for a report, at most until the lease ends.
    WaitForReport(Instant),
}

impl Placed<'_> {
    /// Waits until the job has ended. The time in which the job waits for a worker does not count
    /// toward the run's time limit, but the job fails if no worker has called for as long as the
    /// model's timeout.
    pub(super) async fn outcome(self) -> Result<Success, Error> {
        loop {
            match self.next() {
                Next::End(outcome) => return *outcome,
                Next::WaitForWorker(until) => {
                    let _arrived_or_late =
                        turns::waiting(timeout_at(until, self.changed.notified())).await;
                }
                Next::WaitForReport(until) => {
                    let _reported_or_late = timeout_at(until, self.changed.notified()).await;
                }
            }
        }
    }

    /// Returns the next step, and ends an expired lease.
    fn next(&self) -> Next {
        let mut state = self.jobs.lock();
        let State { jobs, queues } = &mut *state;
        let model = &self.model.name;
        let queue = queues.entry(model.clone()).or_default();
        let now = monotonic_now();
        let Some(held) = jobs.get_mut(&self.id) else {
            // Unreachable: only dropping this value removes the job.
            let lost = self.model.failure(ErrorClass::InternalError, "its job is lost");
            return Next::End(Box::new(Err(lost.into())));
        };
        match &mut held.stage {
            Stage::Ended(outcome) => {
                let again = || self.model.failure(ErrorClass::InternalError, "its job has ended");
                Next::End(outcome.take().unwrap_or_else(|| Box::new(Err(again().into()))))
            }
            Stage::Leased { until, .. } if *until > now => Next::WaitForReport(*until),
            Stage::Leased { worker, .. } => {
                tracing::warn!(
                    %model, job = %self.id, attempt = held.attempts, %worker,
                    "lease of a worker ended; the job waits for another worker"
                );
                held.stage = Stage::Waiting { since: now };
                queue.waiting.push_front(self.id);
                queue.arrived.notify_one();
                Next::WaitForWorker(now + self.model.timeout)
            }
            Stage::Waiting { since } => {
                let is_polled = !queue.polls.is_empty();
                let seen = if is_polled { Some(now) } else { queue.seen };
                let until = seen.map_or(*since, |seen| seen.max(*since)) + self.model.timeout;
                if until > now {
                    return Next::WaitForWorker(until);
                }
                let what = format!("no worker has called within {:?}", self.model.timeout);
                let failure = self.model.failure(ErrorClass::ProviderUnavailable, &what);
                Next::End(Box::new(Err(failure.into())))
            }
        }
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        let mut state = self.jobs.lock();
        state.jobs.remove(&self.id);
        if let Some(queue) = state.queues.get_mut(&self.model.name) {
            queue.waiting.retain(|id| *id != self.id);
        }
    }
}
