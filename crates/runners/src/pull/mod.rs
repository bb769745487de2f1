//! The runner `pull`: models that workers on other machines run. The service opens no connection to
//! a worker: each run becomes a job, which a worker claims over the API.
//!
//! ```text
//! jobs       the jobs of all models, their leases and the workers that have called
//! ```
//!
//! Jobs exist in memory, next to the runs that wait for them. The run is durable in the engine:
//! after a restart, the run starts again as a new job, and reports about the old job are refused.

mod jobs;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::jobs::{Claim, Jobs, POLLS_MAX, Refused, Situation, WORKER_CHARS_MAX};
use super::options::{self, Dependencies, Model, Type};
use super::{Health, Job, Run, Runner};
use orrery_config::reader::Section;
use orrery_config::values::{duration, string};
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::ids::KeyId;

/// Default maximum number of waiting and leased jobs together. Further runs wait in the model's
/// queue.
const CONCURRENCY: usize = 64;
const LEASE: Duration = Duration::from_secs(60);
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3600);

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "pull", read: |section, _folder| Some(Arc::new(Options::read(section))) };

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// The time after which a job whose worker is silent goes to another worker.
    lease: Duration,
    /// The organization whose keys may claim jobs. Workers see the inputs of all organizations.
    organization: String,
}

impl Options {
    fn read(section: &mut Section<'_>) -> Self {
        let lease = section.get("lease", LEASE, duration(LEASE_MIN..=LEASE_MAX));
        let organization = section.get("organization", DEFAULT_ORGANIZATION.to_owned(), string);
        Self { lease, organization }
    }
}

impl options::Options for Options {
    fn concurrency(&self) -> Option<usize> {
        Some(CONCURRENCY)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        Arc::new(PullRunner { options: self, model, jobs: Arc::clone(&dependencies.jobs) })
    }
}

/// The runner of one model.
#[derive(Debug)]
pub struct PullRunner {
    options: Arc<Options>,
    model: Model,
    jobs: Arc<Jobs>,
}

impl PullRunner {
    /// Returns the name of the organization whose keys may claim jobs of this model.
    #[must_use]
    pub fn organization(&self) -> &str {
        &self.options.organization
    }

    /// Waits for a job and leases it to the worker. Returns `None` if no job is waiting before
    /// `wait` has passed. If the future is dropped, no job is claimed.
    ///
    /// # Errors
    /// [`Refused::Polls`] if the key has too many claims waiting.
    pub async fn claim(
        &self,
        key: KeyId,
        worker: &str,
        wait: Duration,
    ) -> Result<Option<Claim>, Refused> {
        self.jobs.claim(&self.model.name, key, worker, wait).await
    }

    /// Returns the numbers of jobs and workers.
    #[must_use]
    pub fn situation(&self) -> Situation {
        self.jobs.situation(&self.model.name, self.options.lease)
    }
}

impl Runner for PullRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let placed = self.jobs.place(&self.model, self.options.lease, &job);
            placed.outcome().await
        })
    }

    fn health(&self) -> Health {
        let Situation { waiting, workers, oldest, .. } = self.situation();
        let lease = self.options.lease;
        if workers == 0 && oldest.is_some_and(|waited| waited > lease) {
            let jobs = if waiting == 1 { "a job".to_owned() } else { format!("{waiting} jobs") };
            let what = format!("has {jobs} waiting, and no worker has called within {lease:?}");
            return Health::Failing(what);
        }
        Health::Good
    }

    fn pull(&self) -> Option<&PullRunner> {
        Some(self)
    }
}
