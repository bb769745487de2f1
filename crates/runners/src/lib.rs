//! Runners: each turns a model's input into its output, using a server or a local process.
//!
//! | module | models |
//! |---|---|
//! | [`builtin`] | the models built into the binary, in sandboxed worker processes |
//! | [`command`] | the operator's programs, each under a guard |
//! | [`llm`] | language models from a GGUF file, in a process with llama.cpp |
//! | [`whisper`] | speech recognition from a ggml file, in a process with whisper.cpp |
//! | [`onnx`] | tensors in and out, from an ONNX file, in a process with tract |
//! | [`http`], [`openai`], [`cog`], [`oip`] | inference servers, by protocol |
//! | [`comfyui`] | graphs of nodes on a ComfyUI server |
//! | [`endpoints`] | load balancing over the servers of a model |
//! | [`managed`] | servers that this service starts and stops |
//! | [`pull`] | models that run on other machines, where workers claim jobs |
//!
//! A runner never retries a request that may have had an effect, never writes to the store, and
//! does not depend on predictions: the engine calls it once per attempt, limits its time, and
//! cancels it by dropping the future, which must release all resources of the run (a connection, a
//! process).
//!
//! To add a runner, see `CONTRIBUTING.md`, "Add a runner".

pub mod backoff;
pub mod builtin;
pub mod cog;
pub mod comfyui;
pub mod command;
pub mod endpoints;
pub mod http;
pub mod llm;
pub mod managed;
pub mod oip;
pub mod onnx;
pub mod openai;
pub mod options;
pub mod pull;
pub mod rendering;
pub mod request;
pub mod source;
#[cfg(test)]
mod stand_in;
pub mod tail;
pub mod whisper;

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

/// One run: an input that is valid under the model's request schema, with defaults filled in.
#[derive(Debug, Clone)]
pub struct Job {
    /// A permanent id of this attempt, stable across crashes: `<execution>:<step>:<attempt>`. Sent
    /// as `Idempotency-Key` if the remote side supports it.
    pub attempt_key: String,
    pub input: Arc<Value>,
    pub progress: Arc<dyn Progress>,
    /// Whether a fallback model runs if this model fails, so that the run should fail at once
    /// instead of waiting for a model that cannot start.
    pub may_fall_back: bool,
    /// The trace context and request id to pass on in calls.
    pub trace: trace::Call,
}

/// Receives the progress of a run. Reported progress is retained even if the run then fails, times
/// out or is cancelled.
pub trait Progress: Send + Sync + std::fmt::Debug {
    /// Appends text that the model wrote in addition to its output to the prediction's `logs`; the
    /// text may have several lines.
    fn log(&self, text: &str);

    /// Reports a part of the output before the run has finished. The concatenation of all parts of
    /// a run is its output or a prefix of it.
    fn output(&self, part: &Value);
}

/// The result of a successful run.
#[derive(Debug)]
pub struct Success {
    pub output: Value,
    pub usage: Usage,
    /// The directory of the files that the output refers to as `{"path": …}`. Dropping this value
    /// removes the directory.
    pub folder: Option<Folder>,
}

/// The directory of one run, inside the directory of the run's process. Dropping this value removes
/// the directory; the process's directory is removed with its last owner.
#[derive(Debug)]
pub struct Folder {
    run: TempDir,
    _of_process: Arc<TempDir>,
}

impl Folder {
    /// Creates a directory inside the directory of a process.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn new_in(of_process: &Arc<TempDir>) -> std::io::Result<Self> {
        let run = TempDir::with_prefix_in("run-", of_process.path())?;
        Ok(Self { run, _of_process: Arc::clone(of_process) })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.run.path()
    }
}

impl Success {
    /// Creates the result of a run whose output refers to no files.
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
    /// The cost that the provider reported, which is charged despite the failure.
    pub cost: Option<Usd>,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self { failure, cost: None }
    }
}

/// The future of [`Runner::run`].
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<Success, Error>> + Send + 'a>>;

/// The health of a model: whether it can be expected to respond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Not known yet.
    Starting,
    Good,
    /// The model responds, but with a fault. Never contains a secret.
    Impaired(String),
    /// The model does not respond; the reason is a phrase that follows the model's name. Never
    /// contains a secret.
    Failing(String),
}

/// The interface that a model reports: its input schema and its output type.
#[derive(Debug, PartialEq)]
pub struct ModelInterface {
    pub schema: Arc<Schema>,
    pub output_type: OutputType,
}

/// An OpenAI-compatible server for one model.
#[derive(Debug, Clone)]
pub enum Server {
    /// One or more remote endpoints.
    Remote {
        /// URLs that end with `/v1`, without a trailing slash.
        servers: Arc<endpoints::Pool>,
        /// The model's name on the server.
        model: String,
        /// The header `Bearer …`, marked as sensitive.
        authorization: Option<HeaderValue>,
    },
    /// A process started by this service.
    Process(Arc<llm::Process>),
}

/// A model that this service runs from a file, in a separate process on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// The most common data type of the model's weights, such as `Q4_K`.
    pub quantization: Option<&'static str>,
    /// Context length shared by all concurrent generations, in tokens; `None` for models whose input
    /// has any length.
    pub context: Option<u32>,
    /// Resident memory of the model's process in bytes; `None` if the model is not loaded.
    pub resident_bytes: Option<u64>,
}

/// The future of [`Runner::maintain`].
pub type Maintenance<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Runs a model: turns inputs into outputs.
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// Runs one job. Dropping the future cancels the run and releases its resources.
    fn run(&self, job: Job) -> Run<'_>;

    /// Returns the model's last known health; sends no request.
    fn health(&self) -> Health {
        Health::Good
    }

    /// Returns whether the runner has its own permits, which organizations take in turn. If so, the
    /// model's concurrency limit need not reserve capacity for idle organizations.
    fn has_places(&self) -> bool {
        false
    }

    /// Maintains the runner's resources: starts missing workers, polls remote servers. Called
    /// repeatedly while the service runs, but never concurrently.
    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the interface that the runner discovered; the `Arc` is the same until the interface
    /// changes.
    fn interface(&self) -> Option<Arc<ModelInterface>> {
        None
    }

    /// Returns the OpenAI-compatible server of this model, if it supports the operation; the chat
    /// router forwards requests to it.
    fn server(&self, _operation: Operation) -> Option<Server> {
        None
    }

    /// Returns details of the local model, if this machine runs the model.
    fn local(&self) -> Option<LocalModel> {
        None
    }

    /// Returns the state of the model's endpoints, if there are several.
    fn endpoints(&self) -> Vec<endpoints::EndpointState> {
        Vec::new()
    }

    /// Returns the model's server, if this service starts it.
    fn managed(&self) -> Option<&Arc<managed::Server>> {
        None
    }

    /// Returns this runner if it is the runner `pull`.
    fn pull(&self) -> Option<&pull::PullRunner> {
        None
    }

    /// Returns the end of the standard error of the model's processes, for the operator.
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

/// Returns the call context for a test run.
#[cfg(test)]
#[must_use]
pub fn test_call() -> trace::Call {
    trace::Trace::new([7; 16].into(), None).call("e:s:1")
}

#[cfg(test)]
impl RecordingProgress {
    /// Creates a job that reports its progress here.
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
