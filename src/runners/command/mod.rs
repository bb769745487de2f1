//! The runner `command`: a program of the operator's that reads jobs and writes answers, as JSON
//! Lines on its standard streams (see `protocol`).
//!
//! In the mode `persistent` a pool of workers is kept, each with one job at a time; in the mode
//! `once` each job gets a process of its own. A run that is dropped ends its process, with all that
//! it has started. Nothing is retried here.

mod pool;
mod protocol;
mod tail;
mod worker;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::pool::Pool;
use self::protocol::Ended;
use self::tail::Tail;
pub use self::worker::Guards;
use self::worker::{Fault, Worker};
use super::http::quote;
use super::{Error, Folder, Health, Job, Run, Runner, Success, Tending};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::model::Usage;
use crate::guard;
use crate::runtime;
use crate::runtime::shortage::when_able;
use crate::secret::Secret;

/// How long a process is waited for that this machine cannot start now.
const STARTING_MAX: Duration = Duration::from_secs(60);

/// How processes are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Again and again.
    Persistent,
    /// One for each job.
    Once,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Persistent, Self::Once];

    /// As manifests spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Once => "once",
        }
    }
}

/// How one model is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Named in sentences, and to the program as `ORRERY_MODEL`.
    pub model: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    pub mode: Mode,
    /// Where it starts.
    pub directory: PathBuf,
    pub env: Vec<(String, Secret)>,
    /// The address space that each of its processes may have.
    pub memory_bytes: Option<u64>,
    /// Folders that it may write to, beside its own.
    pub writable: Vec<PathBuf>,
    /// Workers at once.
    pub concurrency: usize,
    /// JSON pointer to a cost in an answer.
    pub cost_report: String,
    /// Whether it may give out files: then each run has a folder for them.
    pub gives_files: bool,
}

/// The runner of one model.
#[derive(Debug)]
pub struct CommandRunner {
    pool: Arc<Pool>,
    /// How the last process of the mode `once` did.
    once: Mutex<Health>,
}

impl CommandRunner {
    /// A runner without a process yet.
    #[must_use]
    pub fn new(settings: Settings, guards: Guards) -> Self {
        Self { pool: Pool::new(settings, guards), once: Mutex::new(Health::Starting) }
    }

    fn settings(&self) -> &Settings {
        &self.pool.settings
    }

    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        Failure::new(class, format!("the model '{}': {what}", self.settings().model))
    }

    async fn run_in_pool(&self, job: &Job) -> Result<(Ended, Option<Folder>), Failure> {
        let taken = self.pool.take(!job.may_fall_back).await;
        let mut taken =
            taken.map_err(|reason| self.failure(ErrorClass::ProviderUnavailable, &reason))?;
        let Some(worker) = &mut taken.worker else {
            return Err(self.failure(ErrorClass::InternalError, "it has no worker"));
        };
        let folder = self.folder(worker)?;
        let path = folder.as_ref().map(|folder| folder.path().display().to_string());
        match worker.ask(job, path.as_deref(), &self.settings().cost_report, false).await {
            Ok(ended) => {
                taken.give_back();
                Ok((ended, folder))
            }
            Err(fault) => {
                let reason = match fault {
                    Fault::Ended => taken.bury().await,
                    Fault::Nonsense(what) => format!("its worker {what}"),
                };
                Err(self.failure(ErrorClass::ProviderError, &reason))
            }
        }
    }

    async fn run_once(&self, job: &Job) -> Result<(Ended, Option<Folder>), Failure> {
        let Pool { settings, guards, tail, .. } = &*self.pool;
        let worker = when_able(STARTING_MAX, || Worker::start(settings, guards, tail)).await;
        let mut worker = worker.map_err(|error| {
            let what = format!("its process cannot be started: {error}");
            self.failure(ErrorClass::ProviderUnavailable, &what)
        })?;
        let folder = self.folder(&worker)?;
        let path = folder.as_ref().map(|folder| folder.path().display().to_string());
        let answer = worker.ask(job, path.as_deref(), &settings.cost_report, true).await;
        let (health, result) = match answer {
            Ok(ended) => {
                worker.leave().await;
                (Health::Good, Ok((ended, folder)))
            }
            Err(Fault::Nonsense(what)) => {
                let reason = format!("its process {what}");
                (Health::Good, Err(self.failure(ErrorClass::ProviderError, &reason)))
            }
            Err(Fault::Ended) => {
                let status = worker.end().await;
                let reason = describe(status, tail);
                let failure = self.failure(ErrorClass::ProviderError, &reason);
                (Health::Failing(reason), Err(failure))
            }
        };
        *self.once.lock().unwrap_or_else(PoisonError::into_inner) = health;
        result
    }

    /// A folder for the files of a run, where it may give some out.
    fn folder(&self, worker: &Worker) -> Result<Option<Folder>, Failure> {
        if !self.settings().gives_files {
            return Ok(None);
        }
        worker.folder().map(Some).map_err(|error| {
            let what = format!("a folder for its files cannot be made: {error}");
            self.failure(ErrorClass::InternalError, &what)
        })
    }
}

impl Runner for CommandRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let (Ended { result, usage }, folder) = match self.settings().mode {
                Mode::Persistent => self.run_in_pool(&job).await?,
                Mode::Once => self.run_once(&job).await?,
            };
            let usage = Usage { run_time: started.elapsed(), ..usage };
            match result {
                Ok(output) => Ok(Success { output, usage, folder }),
                Err(failure) => Err(Error {
                    failure: self.failure(failure.class, &failure.message),
                    cost: usage.cost,
                }),
            }
        })
    }

    fn health(&self) -> Health {
        match self.settings().mode {
            Mode::Persistent => self.pool.health(),
            Mode::Once => self.once.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn tend(&self) -> Tending<'_> {
        Box::pin(async {
            if self.settings().mode == Mode::Persistent {
                self.pool.tend();
            }
        })
    }

    fn diagnostics(&self) -> Option<String> {
        Some(self.pool.tail.text()).filter(|text| !text.is_empty())
    }
}

/// How a process ended that should not have, in words that follow "the model 'x':". What it wrote
/// stays between it and the operator, but for what the guard itself says.
fn describe(status: Option<ExitStatus>, tail: &Tail) -> String {
    let not_started =
        status.and_then(|status| status.code()) == Some(i32::from(guard::NOT_STARTED));
    if not_started
        && let Some(line) = tail.last_line()
        && let Some(said) = line.strip_prefix(guard::SAYS)
    {
        return format!("its program {said}");
    }
    match status {
        None => "its worker ended and left no exit status".to_owned(),
        Some(status) if status.success() => "its worker ended without an answer".to_owned(),
        Some(status) => format!("its worker ended without an answer ({status})"),
    }
}
