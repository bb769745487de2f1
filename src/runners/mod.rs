//! Runners: each takes a model's input to its output, somewhere else or in this process.
//!
//! A runner never retries what may have had an effect, never writes to the store and knows nothing of predictions: the engine
//! calls it once for an attempt, bounds it in time, and cancels it by dropping the future, which
//! must release whatever the run held (a connection, a process).

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

use crate::domain::attempt::Failure;
use crate::domain::chat::Operation;
use crate::domain::model::{OutputType, Usage};
use crate::domain::money::Usd;
use crate::domain::trace;
use crate::schema::Schema;

/// One run: an input that fits the model's request schema, defaults filled in.
#[derive(Debug, Clone)]
pub struct Job {
    /// Names this attempt forever, also when it runs again after a crash:
    /// `<execution>:<step>:<attempt>`. Sent as `Idempotency-Key` where the other side can use it.
    pub attempt_key: String,
    pub input: Arc<Value>,
    pub progress: Arc<dyn Progress>,
    /// A fallback model runs when this one fails: better to fail at once than to wait for a model
    /// that cannot start.
    pub may_fall_back: bool,
    /// What goes to whom the run calls: trace context and request id.
    pub trace: trace::Call,
}

/// Where a run reports progress while it goes on. What is reported is kept also when the run then
/// fails, is out of time or is cancelled.
pub trait Progress: Send + Sync + std::fmt::Debug {
    /// Something that the model wrote beside its output, for the prediction's `logs`: a line, or
    /// several.
    fn log(&self, text: &str);

    /// A part of the output that is there already. All parts of a run, one behind the other, are
    /// its output, or the beginning of it.
    fn output(&self, part: &Value);
}

/// A run that succeeded.
#[derive(Debug)]
pub struct Success {
    pub output: Value,
    pub usage: Usage,
    /// Where the files are that the output names by `{"path": …}`. It is removed with this value.
    pub folder: Option<Folder>,
}

/// The folder of one run, within the folder of the process that the run has. Dropping it removes it;
/// the process's folder is removed with its last owner.
#[derive(Debug)]
pub struct Folder {
    run: TempDir,
    _of_process: Arc<TempDir>,
}

impl Folder {
    /// A new one within the folder of a process.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn new_in(of_process: &Arc<TempDir>) -> std::io::Result<Self> {
        let run = TempDir::with_prefix_in("run-", of_process.path())?;
        Ok(Self { run, _of_process: Arc::clone(of_process) })
    }

    /// Where it is.
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

/// A run that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", failure.message)]
pub struct Error {
    pub failure: Failure,
    /// Charged all the same, because the provider reported a cost.
    pub cost: Option<Usd>,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self { failure, cost: None }
    }
}

/// What a run comes to, later.
pub type Run<'a> = Pin<Box<dyn Future<Output = Result<Success, Error>> + Send + 'a>>;

/// Whether a model can be expected to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known yet.
    Starting,
    Good,
    /// It answers, though not as it should, and why. Holds no secret.
    Impaired(String),
    /// It does not answer, and why, in words that follow the model's name. Holds no secret.
    Failing(String),
}

/// The interface that a model describes: its input schema and its output type.
#[derive(Debug, PartialEq)]
pub struct ModelInterface {
    pub schema: Arc<Schema>,
    pub output_type: OutputType,
}

/// Where OpenAI's API is spoken for one model.
#[derive(Debug, Clone)]
pub enum Server {
    /// Somebody's server, or one of several.
    Remote {
        /// With their `/v1`, without a slash at their end.
        servers: Arc<endpoints::Pool>,
        /// What the server calls the model.
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
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The type of most of its weights, such as `Q4_K`.
    pub quantization: Option<&'static str>,
    /// Tokens that its answers have together.
    pub context: u32,
    /// Bytes of memory that its process has; `None`: it is not loaded.
    pub resident_bytes: Option<u64>,
}

/// The future of [`Runner::maintain`].
pub type Maintenance<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Takes inputs to outputs.
pub trait Runner: Send + Sync + std::fmt::Debug {
    /// Runs one job. Dropping the future cancels the run and releases what it holds.
    fn run(&self, job: Job) -> Run<'_>;

    /// How the model is, as far as is known without asking.
    fn health(&self) -> Health {
        Health::Good
    }

    /// Whether its runs wait for places of their own, in turns between organizations: then the model's
    /// concurrency need not keep an organization waiting that runs nothing.
    fn has_places(&self) -> bool {
        false
    }

    /// Maintains what the runner holds: starts missing workers, polls remote servers. Called
    /// again and again while the service runs, never twice at once.
    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(std::future::ready(()))
    }

    /// The interface that the runner discovered; the same value until it discovers another one.
    fn interface(&self) -> Option<Arc<ModelInterface>> {
        None
    }

    /// Where OpenAI's API is spoken for this model, if it serves the operation: the chat router passes
    /// requests on to it.
    fn server(&self, _operation: Operation) -> Option<Server> {
        None
    }

    /// The model as this machine runs it itself, where it does.
    fn local(&self) -> Option<LocalModel> {
        None
    }

    /// How its servers are, where it has several.
    fn endpoints(&self) -> Vec<endpoints::EndpointState> {
        Vec::new()
    }

    /// What the model's processes wrote for the operator, the end of it.
    fn diagnostics(&self) -> Option<String> {
        None
    }
}

/// Records what a run reports.
#[cfg(test)]
#[derive(Debug, Default)]
pub struct RecordingProgress {
    pub logs: std::sync::Mutex<Vec<String>>,
    pub parts: std::sync::Mutex<Vec<Value>>,
}

/// The call of a run of a test.
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
