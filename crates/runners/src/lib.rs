//! Runners: each turns a model's input into its output, with a server or a process of this machine.
//!
//! | module | models |
//! |---|---|
//! | [`builtin`] | those of the binary, in sandboxed worker processes |
//! | [`command`] | programs of the operator, each under a guard |
//! | [`llm`] | language models from a GGUF file, in a process with llama.cpp |
//! | [`http`], [`openai`], [`cog`], [`oip`] | inference servers, by protocol |
//! | [`endpoints`] | the servers of a model: which one is next, and which are out of rotation |
//!
//! A runner never retries a request that may have had an effect, never writes to the store, and
//! knows nothing of predictions: the engine calls it once per attempt, limits its time, and cancels
//! it by dropping the future, which must release whatever the run holds (a connection, a process).
//!
//! To add a runner, see `CONTRIBUTING.md`, "Add a runner".

pub mod backoff;
pub mod builtin;
pub mod cog;
pub mod command;
pub mod endpoints;
pub mod http;
pub mod llm;
pub mod oip;
pub mod openai;
pub mod options;
pub mod rendering;
pub mod request;
#[cfg(test)]
mod stand_in;
pub mod tail;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use hyper::header::HeaderValue;
use serde_json::Value;
use tempfile::TempDir;

use orrery_domain::attempt::Failure;
use orrery_domain::chat::Operation;
use orrery_domain::model::{OutputType, Usage};
use orrery_domain::money::Usd;
use orrery_domain::trace;
use orrery_schema::Schema;

/// One run: an input that matches the model's request schema, with defaults filled in.
#[derive(Debug, Clone)]
pub struct Job {
    /// A permanent id of this attempt, stable across crashes: `<execution>:<step>:<attempt>`. Sent
    /// as `Idempotency-Key` if the other side supports it.
    pub attempt_key: String,
    pub input: Arc<Value>,
    pub progress: Arc<dyn Progress>,
    /// A fallback model runs if this one fails, so fail at once instead of waiting for a model that
    /// cannot start.
    pub may_fall_back: bool,
    /// Trace context and request id to pass on in calls.
    pub trace: trace::Call,
}

/// Receives the progress of a run. It is kept even if the run then fails, times out or is
/// cancelled.
pub trait Progress: Send + Sync + std::fmt::Debug {
    /// Adds text that the model wrote besides its output to the prediction's `logs`: one line or
    /// several.
    fn log(&self, text: &str);

    /// Reports an early part of the output. All parts of a run concatenated are its output or a
    /// prefix of it.
    fn output(&self, part: &Value);
}

/// The result of a successful run.
#[derive(Debug)]
pub struct Success {
    pub output: Value,
    pub usage: Usage,
    /// The folder of the files that the output names by `{"path": …}`. Removed when dropped.
    pub folder: Option<Folder>,
}

/// The folder of one run, inside the folder of the run's process. Dropping it removes it; the
/// process's folder is removed with its last owner.
#[derive(Debug)]
pub struct Folder {
    run: TempDir,
    _of_process: Arc<TempDir>,
}

impl Folder {
    /// Creates a folder inside the folder of a process.
    ///
    /// # Errors When the file system refuses.
    pub fn new_in(of_process: &Arc<TempDir>) -> std::io::Result<Self> {
        let run = TempDir::with_prefix_in("run-", of_process.path())?;
        Ok(Self { run, _of_process: Arc::clone(of_process) })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.run.path()
    }
}

impl Success {
    /// An output that names no files.
    #[must_use]
    pub const fn new(output: Value, usage: Usage) -> Self {
        Self { output, usage, folder: None }
    }
}

/// The error of a failed run.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", failure.message)]
pub struct Error {
    pub failure: Failure,
    /// Charged despite the failure, because the provider reported a cost.
    pub cost: Option<Usd>,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self { failure, cost: None }
    }
}

/// The future of [`Runner::run`].
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<Success, Error>> + Send + 'a>>;

/// Whether a model can be expected to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Not known yet.
    Starting,
    Good,
    /// It answers, but with a fault. Contains no secret.
    Impaired(String),
    /// It does not answer; the reason is a phrase that follows the model's name. Contains no
    /// secret.
    Failing(String),
}

/// The interface that a model describes: its input schema and its output type.
#[derive(Debug, PartialEq)]
pub struct ModelInterface {
    pub schema: Arc<Schema>,
    pub output_type: OutputType,
}

/// An OpenAI-compatible server of one model.
#[derive(Debug, Clone)]
pub enum Server {
    /// One or several remote endpoints.
    Remote {
        /// URLs that end with `/v1`, without a trailing slash.
        servers: Arc<endpoints::Pool>,
        /// The server's name for the model.
        model: String,
        /// `Bearer …`, marked as sensitive.
        authorization: Option<HeaderValue>,
    },
    /// A process of this service.
    Process(Arc<llm::Process>),
}

/// A model that a process of this service runs from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Size of the file.
    pub file_bytes: u64,
    /// The most common type of its weights, such as `Q4_K`.
    pub quantization: Option<&'static str>,
    /// Context length shared by its answers, in tokens.
    pub context: u32,
    /// Resident memory of its process in bytes; `None` if it is not loaded.
    pub resident_bytes: Option<u64>,
}

/// The future of [`Runner::maintain`].
pub type Maintenance<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Turns inputs into outputs.
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// Runs one job. Dropping the future cancels the run and releases what it holds.
    fn run(&self, job: Job) -> Run<'_>;

    /// The model's health as last known; sends no request.
    fn health(&self) -> Health {
        Health::Good
    }

    /// Whether its runs take turns between organizations for places of their own: then the model's
    /// concurrency limit need not reserve capacity for idle organizations.
    fn has_places(&self) -> bool {
        false
    }

    /// Maintains what the runner holds: starts missing workers, polls remote servers. Called
    /// repeatedly while the service runs, never concurrently.
    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(std::future::ready(()))
    }

    /// The interface that the runner discovered; the same `Arc` until it changes.
    fn interface(&self) -> Option<Arc<ModelInterface>> {
        None
    }

    /// The OpenAI-compatible server of this model, if it supports the operation: the chat router
    /// forwards requests to it.
    fn server(&self, _operation: Operation) -> Option<Server> {
        None
    }

    /// The local model, if this machine runs it.
    fn local(&self) -> Option<LocalModel> {
        None
    }

    /// The state of its endpoints, if it has several.
    fn endpoints(&self) -> Vec<endpoints::EndpointState> {
        Vec::new()
    }

    /// The end of the standard error of the model's processes, for the operator.
    fn diagnostics(&self) -> Option<String> {
        None
    }
}

/// Records the progress of a run.
#[cfg(test)]
#[derive(Debug, Default)]
pub struct RecordingProgress {
    pub logs: std::sync::Mutex<Vec<String>>,
    pub parts: std::sync::Mutex<Vec<Value>>,
}

/// The call context of a test run.
#[cfg(test)]
#[must_use]
pub fn test_call() -> trace::Call {
    trace::Trace::new([7; 16].into(), None).call("e:s:1")
}

#[cfg(test)]
impl RecordingProgress {
    /// A job that reports its progress here.
    pub fn job(self: &Arc<Self>, input: Value) -> Job {
        let progress = Arc::clone(self);
        Job {
            attempt_key: "e:s:1".to_owned(),
            input: Arc::new(input),
            progress,
            may_fall_back: false,
            trace: test_call(),
        }
    }
}

#[cfg(test)]
impl Progress for RecordingProgress {
    fn log(&self, text: &str) {
        self.logs.lock().unwrap().push(text.to_owned());
    }

    fn output(&self, part: &Value) {
        self.parts.lock().unwrap().push(part.clone());
    }
}
