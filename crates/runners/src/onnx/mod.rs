//! The runner `onnx`: runs an ONNX file with tract in a separate process of this binary (`worker`).
//!
//! The request schema is derived from the inputs that the file declares: in a request, each input
//! is nested arrays, or a file that is converted as the manifest describes. The process is managed
//! like those of the runner `llm` (`Process`): started on demand, stopped when idle, killed to
//! cancel a run.
//!
//! ```text
//! graph        reads the inputs and outputs of a file, without its weights
//! element      element types, and their conversion between JSON and bytes
//! preparation  files as inputs, and labels of outputs, as the manifest describes them
//! message      the messages between the service and the process
//! worker       the process: tract, images and audio
//! ```

mod element;
#[cfg(any(test, feature = "test-support"))]
pub mod files;
mod graph;
mod message;
mod preparation;
pub mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request, StatusCode, Uri};
use serde_json::Value;

use self::graph::Graph;
use self::message::{Content, ELEMENTS_MAX, NamedLengths, Part};
use self::preparation::{Labels, Named, Preparation};
use super::builtin::images;
use super::llm::{
    DEFAULT_IDLE, IDLE_MAX, IDLE_MIN, Load, MEMORY_MAX, MEMORY_MIN, OpenError, Process, Program,
    THREADS_MAX, changed, existing,
};
use super::options::{self, Dependencies, Model, Type};
use super::source::Sources;
use super::{Health, Job, LocalModel, Maintenance, ModelInterface, Run, Runner, Success};
use orrery_config::reader::Section;
use orrery_config::values::{duration, one_of, size, whole};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::{OutputType, Usage};
use orrery_http::body;
use orrery_runtime as runtime;
use orrery_runtime::turns::Turn;
use orrery_schema::Schema;

/// The extension of model files.
pub(super) const EXTENSION: &str = "onnx";
/// Maximum total size of the files in one request, in bytes.
const FILES_MAX: usize = images::FILE_MAX;
/// Maximum size of a response: every element is at most a string of some length.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Requests and responses with more elements or bytes than this are converted on a blocking thread.
const QUICK: usize = 16 * 1024;
/// Default memory limit in bytes, in addition to four times the size of the file: tract holds the
/// weights twice while it optimizes a model, and the client determines the size of its tensors.
const DEFAULT_MEMORY: u64 = 2 * 1024 * 1024 * 1024;

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "onnx", read: |section, folder| Some(Arc::new(Options::read(section, folder)?)) };

/// The manifest's options.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The absolute path of the model file.
    file: PathBuf,
    /// The file's modification time, used to detect a replaced file.
    changed: Option<SystemTime>,
    /// The file's description, or the error for a rejected file.
    graph: Result<Graph, graph::Error>,
    /// The inputs that are files, completed with what the graph declares.
    inputs: Named<Preparation>,
    outputs: Named<Labels>,
    threads: u32,
    idle_unload: Duration,
    load: Load,
    memory_bytes: u64,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let file = section.required("file", existing(folder));
        let threads = section.optional("threads", whole(1..=THREADS_MAX));
        let idle_unload = section.get("idle_unload", DEFAULT_IDLE, duration(IDLE_MIN..=IDLE_MAX));
        let load = section.get("load", Load::OnDemand, one_of(&Load::ALL, Load::as_str));
        let memory_bytes = section.optional("memory_bytes", size(MEMORY_MIN..=MEMORY_MAX));
        let inputs = section.optional("inputs", preparation::inputs).unwrap_or_default();
        let outputs = section.optional("outputs", preparation::outputs(folder));
        let mut options = Self::of_file(file?);
        options.threads = threads.unwrap_or(options.threads);
        options.memory_bytes = memory_bytes.unwrap_or(options.memory_bytes);
        options.outputs = outputs.unwrap_or_default();
        if let Ok(graph) = &options.graph {
            let names: Vec<&str> = graph.outputs.iter().map(|one| one.name.as_str()).collect();
            for name in options.outputs.keys().filter(|name| !names.contains(&name.as_str())) {
                section.error("outputs", unknown("output", name, &names));
            }
            let names: Vec<&str> = graph.inputs.iter().map(|one| one.name.as_str()).collect();
            for (name, prepared) in inputs {
                let Some(tensor) = graph.inputs.iter().find(|tensor| tensor.name == name) else {
                    section.error("inputs", unknown("input", &name, &names));
                    continue;
                };
                match prepared.completed(tensor) {
                    Ok(completed) => drop(options.inputs.insert(name, completed)),
                    Err(reason) => section.error("inputs", format!("the input '{name}' {reason}")),
                }
            }
        }
        Some(Self { idle_unload, load, ..options })
    }

    /// Returns the options of a model file without a manifest.
    #[must_use]
    pub fn of_file(file: PathBuf) -> Self {
        let graph = Graph::read(&file);
        let bytes = graph.as_ref().map_or(0, |graph| graph.file_bytes);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            changed: changed(&file),
            graph,
            inputs: Named::new(),
            outputs: Named::new(),
            threads: u32::try_from(cores).unwrap_or(1).clamp(1, THREADS_MAX),
            idle_unload: DEFAULT_IDLE,
            load: Load::OnDemand,
            memory_bytes: bytes.saturating_mul(4).saturating_add(DEFAULT_MEMORY),
            file,
        }
    }

    fn program(&self) -> Program {
        /// Memory of the program and of small tensors.
        const BESIDE: u64 = 64 * 1024 * 1024;
        let file_bytes = self.graph.as_ref().map_or(0, |graph| graph.file_bytes);
        Program {
            command: "onnx-worker",
            arguments: Vec::new(),
            file: self.file.clone(),
            file_bytes,
            quantization: None,
            context: None,
            threads: self.threads,
            memory_bytes: Some(self.memory_bytes),
            memory_estimate: file_bytes.saturating_mul(2).saturating_add(BESIDE),
            idle_unload: self.idle_unload,
            load: self.load,
            fault: self.fault(),
        }
    }

    /// Returns the reason why the model can never run, if there is one.
    fn fault(&self) -> Option<String> {
        if let Err(error) = &self.graph {
            return Some(format!("its file {} {error}", self.file.display()));
        }
        worker::unsupported().map(str::to_owned)
    }

    /// Returns the interface derived from the file.
    fn interface(&self) -> Option<ModelInterface> {
        let graph = self.graph.as_ref().ok()?;
        let schema = Schema::compile(&message::schema(graph, &self.inputs)).ok()?;
        Some(ModelInterface { schema: Arc::new(schema), output_type: OutputType::Object })
    }
}

/// Returns the message about a table for an input or output that the model does not have.
fn unknown(word: &str, name: &str, names: &[&str]) -> String {
    format!("the model has no {word} '{name}'; its {word}s are {}", names.join(", "))
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
    }

    fn model_file(&self) -> Option<&Path> {
        Some(&self.file)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let interface = self.interface().map(Arc::new);
        let process = Process::new(self.program(), model, dependencies);
        let sources = dependencies.sources.clone();
        Arc::new(OnnxRunner { options: self, process, interface, sources })
    }
}

/// A runner of one model.
#[derive(Debug)]
struct OnnxRunner {
    options: Arc<Options>,
    process: Arc<Process>,
    interface: Option<Arc<ModelInterface>>,
    sources: Sources,
}

/// The files of a request by the name of their input, and the permit for their memory.
type Files = (Vec<(String, Bytes)>, Option<Turn>);

impl OnnxRunner {
    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        self.process.model.failure(class, what)
    }

    fn refuse(&self, what: &str) -> Failure {
        self.failure(ErrorClass::InvalidUserInput, what)
    }

    async fn answer(&self, job: &Job) -> Result<Value, Failure> {
        if let Some(reason) = self.options.fault() {
            return Err(self.failure(ErrorClass::ProviderUnavailable, &reason));
        }
        let (files, memory) = self.files(&job.input).await?;
        let body = self.body(&job.input, files).await?;
        let request = || {
            let mut request = Request::new(body::full(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = Uri::from_static(worker::RUN);
            request
        };
        let opened = self.process.open(request, job.may_fall_back).await;
        let (answer, in_use) = opened.map_err(|error| match error {
            OpenError::Unavailable(reason) => {
                self.failure(ErrorClass::ProviderUnavailable, &reason)
            }
            OpenError::Ended(reason) => self.failure(ErrorClass::ProviderError, &reason),
        })?;
        drop(memory);
        let status = answer.status();
        let body = match Limited::new(answer.into_body(), ANSWER_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let ended = in_use.ended().await;
                let reason = ended.unwrap_or_else(|| format!("its answer ended early: {error}"));
                return Err(self.failure(ErrorClass::ProviderError, &reason));
            }
        };
        match status {
            StatusCode::OK => self.output(body).await,
            StatusCode::BAD_REQUEST => Err(self.refuse(&String::from_utf8_lossy(&body))),
            _ => Err(self.failure(ErrorClass::ProviderError, &String::from_utf8_lossy(&body))),
        }
    }

    /// Reads the files to which the input refers.
    async fn files(&self, input: &Value) -> Result<Files, Failure> {
        if self.options.inputs.is_empty() {
            return Ok((Vec::new(), None));
        }
        // The bytes of the files, and their copy in the request.
        let mut memory = self.sources.memory(FILES_MAX * 2).await;
        let mut left = FILES_MAX;
        let mut files = Vec::new();
        for name in self.options.inputs.keys() {
            let source = input.get(name).and_then(Value::as_str);
            let source = source.ok_or_else(|| self.refuse(&format!("'{name}' must be a URL")))?;
            let file = self.sources.read(source, left).await.map_err(|error| {
                self.refuse(&match error.is_too_large() {
                    true => {
                        format!("'{name}': all files together are larger than {FILES_MAX} bytes")
                    }
                    false => format!("'{name}': {error}"),
                })
            })?;
            left = left.saturating_sub(file.bytes.len());
            files.push((name.clone(), file.bytes));
        }
        memory.shrink_to((FILES_MAX - left) * 2);
        Ok((files, Some(memory)))
    }

    /// Builds the request.
    async fn body(
        &self,
        input: &Arc<Value>,
        files: Vec<(String, Bytes)>,
    ) -> Result<Bytes, Failure> {
        let elements =
            input.as_object().into_iter().flatten().map(|(_, value)| {
                message::shape_of(value).into_iter().fold(1, usize::saturating_mul)
            });
        let is_quick = files.is_empty() && elements.fold(0, usize::saturating_add) <= QUICK;
        let options = Arc::clone(&self.options);
        let input = Arc::clone(input);
        let build = move || options.request(&input, &files);
        let built = if is_quick { Ok(build()) } else { tokio::task::spawn_blocking(build).await };
        let built = built.unwrap_or_else(|_panic| Err("the input cannot be read".to_owned()));
        built.map(Bytes::from).map_err(|what| self.refuse(&what))
    }

    /// Reads the response.
    async fn output(&self, body: Bytes) -> Result<Value, Failure> {
        let options = Arc::clone(&self.options);
        let is_quick = body.len() <= QUICK;
        let read = move || message::output(&body, &options.outputs);
        let read = if is_quick { Ok(read()) } else { tokio::task::spawn_blocking(read).await };
        let read = read.unwrap_or_else(|_panic| Err("cannot be read".to_owned()));
        let garbage = |what| self.failure(ErrorClass::ProviderError, &format!("its answer {what}"));
        read.map_err(garbage)
    }
}

impl Options {
    /// Builds the request for an input.
    fn request(&self, input: &Value, files: &[(String, Bytes)]) -> Result<Vec<u8>, String> {
        let fields = input.as_object().ok_or("the input must be an object")?;
        let graph = self.graph.as_ref().map_err(ToString::to_string)?;
        let names = || -> Vec<&str> { graph.inputs.iter().map(|one| one.name.as_str()).collect() };
        let is_input = |name: &String| graph.inputs.iter().any(|tensor| tensor.name == *name);
        if let Some(name) = fields.keys().find(|name| !is_input(name)) {
            return Err(unknown("input", name, &names()));
        }
        let mut named = NamedLengths::default();
        let mut left = ELEMENTS_MAX;
        let mut parts = Vec::new();
        for tensor in &graph.inputs {
            let name = &tensor.name;
            if let Some(prepared) = self.inputs.get(name) {
                let file = files.iter().find(|(of, _)| of == name);
                let (_, file) = file.ok_or_else(|| format!("'{name}' is missing"))?;
                let content = Content::File(prepared.clone());
                let part = Part { name: name.clone(), content, bytes: file.len() };
                parts.push((part, file.clone()));
                continue;
            }
            let value = fields.get(name).ok_or_else(|| format!("'{name}' is missing"))?;
            let (part, data) = message::tensor(tensor, value, &mut named, &mut left)?;
            parts.push((part, data.into()));
        }
        Ok(message::encode(&parts))
    }
}

impl Runner for OnnxRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let output = self.answer(&job).await?;
            let usage = Usage { run_time: started.elapsed(), ..Usage::default() };
            Ok(Success::new(output, usage))
        })
    }

    fn health(&self) -> Health {
        self.process.health()
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(self.process.maintain())
    }

    fn interface(&self) -> Option<Arc<ModelInterface>> {
        self.interface.clone()
    }

    fn diagnostics(&self) -> Option<String> {
        self.process.diagnostics()
    }

    fn local(&self) -> Option<LocalModel> {
        Some(self.process.local())
    }
}

#[cfg(test)]
mod tests;
