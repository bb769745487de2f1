//! The runner `llm`: serves a GGUF file with llama.cpp in a separate process of this binary
//! (`worker`).
//!
//! The process serves OpenAI's API, like the servers of the runner `openai`, but on a private
//! socket pair; the chat router, predictions and workflows therefore use it in the same way. The
//! process is started on demand and stopped when idle, and a crash loses only the active
//! generations (`process`). This file parses the manifest; it generates no text itself.

pub mod gguf;
pub(crate) mod gguf_types;
mod process;
mod room;
pub mod worker;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use self::gguf::{CONTEXT_MIN, Header};
pub(crate) use self::process::Program;
pub use self::process::{InUse, OpenError, Process};
pub use self::room::Room;
pub use self::worker::{COUNT, SCORE};
use super::openai::stream_options::StreamOptions;
use super::openai::{Exchange, Kind};
use super::options::{self, Dependencies, Model, Type};
use super::{Health, Job, LocalModel, Maintenance, ModelInterface, Run, Runner, Server, Success};
use orrery_config::reader::Section;
use orrery_config::values::{duration, number, one_of, path, problem, size, whole};
use orrery_domain::attempt::Failure;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::{OutputType, Usage};
use orrery_http::body;
use orrery_http::places::Arriving;
use orrery_runtime as runtime;
use orrery_schema::Schema;

/// Default context length in tokens, if the model supports at least as many.
const DEFAULT_CONTEXT: u32 = 8192;
const CONTEXT_MAX: u32 = 4 * 1024 * 1024;
pub(crate) const THREADS_MAX: u32 = 512;
/// Default number of concurrent generations.
const DEFAULT_PARALLEL: u32 = 4;
const PARALLEL_MAX: u32 = 64;
/// Default batch size, in tokens.
const DEFAULT_BATCH: u32 = 256;
const BATCH_MAX: u32 = 8192;
pub(crate) const DEFAULT_IDLE: Duration = Duration::from_secs(15 * 60);
pub(crate) const IDLE_MIN: Duration = Duration::from_secs(1);
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Lower and upper bound of `memory_bytes`.
pub(crate) const MEMORY_MIN: u64 = 64 * 1024 * 1024;
pub(crate) const MEMORY_MAX: u64 = 1 << 50;
/// Maximum absolute value of `lora_scale`.
const LORA_SCALE_MAX: f64 = 100.0;

/// When a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// On the first request; unloaded when idle.
    OnDemand,
    /// When the service starts, and never unloaded.
    AtStart,
}

impl Load {
    /// All load modes.
    pub(crate) const ALL: [Self; 2] = [Self::OnDemand, Self::AtStart];

    /// Returns the mode's spelling in manifests.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::AtStart => "at_start",
        }
    }
}

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "llm", read: |section, folder| Some(Arc::new(Options::read(section, folder)?)) };

/// The manifest's options.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The absolute path of the model file.
    file: PathBuf,
    /// The file's modification time, used to detect a replaced file.
    changed: Option<SystemTime>,
    /// The file's header, or the error for a rejected file.
    header: Result<Header, gguf::Error>,
    /// Context length shared by all concurrent generations, in tokens.
    context: u32,
    threads: u32,
    parallel: u32,
    batch: u32,
    idle_unload: Duration,
    load: Load,
    chat_template: Option<PathBuf>,
    memory_bytes: Option<u64>,
    lora: Option<Lora>,
}

/// A LoRA adapter, which changes the weights of the model.
#[derive(Debug, Clone, PartialEq)]
struct Lora {
    /// The absolute path of the adapter's file.
    file: PathBuf,
    /// The file's modification time, used to detect a replaced file.
    changed: Option<SystemTime>,
    /// The factor by which the adapter's changes are multiplied.
    scale: f64,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let file = section.required("file", existing(folder));
        let context = section.optional("context", whole(CONTEXT_MIN..=CONTEXT_MAX));
        let threads = section.optional("threads", whole(1..=THREADS_MAX));
        let parallel = section.get("parallel", DEFAULT_PARALLEL, whole(1..=PARALLEL_MAX));
        let batch = section.get("batch", DEFAULT_BATCH, whole(1..=BATCH_MAX));
        let idle_unload = section.get("idle_unload", DEFAULT_IDLE, duration(IDLE_MIN..=IDLE_MAX));
        let load = section.get("load", Load::OnDemand, one_of(&Load::ALL, Load::as_str));
        let chat_template = section.optional("chat_template", existing(folder));
        let memory_bytes = section.optional("memory_bytes", size(MEMORY_MIN..=MEMORY_MAX));
        let lora = section.optional("lora", existing(folder));
        let scale = section.optional("lora_scale", number(-LORA_SCALE_MAX..=LORA_SCALE_MAX));
        if scale.is_some() && section.span("lora").is_none() {
            section.error("lora_scale", "`lora_scale` requires `lora`".to_owned());
        }
        let lora =
            lora.map(|file| Lora { changed: changed(&file), scale: scale.unwrap_or(1.0), file });
        let options = Self::of_file(file?);
        Some(Self {
            context: context.unwrap_or(options.context),
            threads: threads.unwrap_or(options.threads),
            parallel,
            // A batch must have room for at least one token of each generation.
            batch: batch.max(parallel),
            idle_unload,
            load,
            chat_template,
            memory_bytes,
            lora,
            ..options
        })
    }

    /// Returns the options of a model file without a manifest.
    #[must_use]
    pub fn of_file(file: PathBuf) -> Self {
        let header = Header::read(&file);
        let trained = header.as_ref().ok().and_then(|header| header.context_length);
        let trained = trained.and_then(|tokens| u32::try_from(tokens).ok());
        Self {
            changed: changed(&file),
            header,
            context: trained.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT),
            threads: default_threads(),
            parallel: DEFAULT_PARALLEL,
            batch: DEFAULT_BATCH,
            idle_unload: DEFAULT_IDLE,
            load: Load::OnDemand,
            chat_template: None,
            memory_bytes: None,
            lora: None,
            file,
        }
    }

    /// Returns the path of the model file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the file's header if it is valid.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref().ok()
    }

    fn kind(&self) -> Kind {
        match self.header() {
            Some(header) if header.is_reranker => Kind::Rerank,
            Some(header) if header.is_embedding => Kind::Embeddings,
            Some(_) | None => Kind::Chat,
        }
    }

    /// Estimates the memory of the loaded model, in bytes.
    fn memory_estimate(&self) -> u64 {
        /// Memory of the program, its batch buffers, and llama.cpp's overhead.
        const BESIDE: u64 = 256 * 1024 * 1024;
        let Some(header) = self.header() else { return 0 };
        let context = header.token_bytes.saturating_mul(self.context.into());
        let lora = self.lora.as_ref().and_then(|lora| std::fs::metadata(&lora.file).ok());
        let lora = lora.map_or(0, |found| found.len());
        [header.file_bytes, context, lora, BESIDE].into_iter().fold(0, u64::saturating_add)
    }

    fn program(&self) -> Program {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--context", self.context.to_string().into());
        add("--parallel", self.parallel.to_string().into());
        add("--batch", self.batch.to_string().into());
        if let Some(template) = &self.chat_template {
            add("--chat-template", template.clone().into());
        }
        if let Some(lora) = &self.lora {
            add("--lora", lora.file.clone().into());
            add("--lora-scale", lora.scale.to_string().into());
        }
        let header = self.header();
        let rejected = self.header.as_ref().err();
        let fault = rejected.map(|error| format!("its file {} {error}", self.file.display()));
        Program {
            command: "llm-worker",
            arguments,
            file: self.file.clone(),
            file_bytes: header.map_or(0, |header| header.file_bytes),
            quantization: header.map(|header| header.quantization),
            context: Some(self.context),
            threads: self.threads,
            memory_bytes: self.memory_bytes,
            memory_estimate: self.memory_estimate(),
            idle_unload: self.idle_unload,
            load: self.load,
            fault: fault.or_else(|| worker::unsupported().map(str::to_owned)),
        }
    }

    /// Returns the interface derived from the file.
    fn interface(&self) -> Option<ModelInterface> {
        let (schema, output_type) = match self.kind() {
            Kind::Chat => (chat_schema(), OutputType::String),
            kind @ (Kind::Embeddings
            | Kind::Images
            | Kind::Completions
            | Kind::Rerank
            | Kind::Transcriptions
            | Kind::Speech) => (kind.schema(), OutputType::Array),
        };
        let schema = Schema::compile(&schema).ok()?;
        Some(ModelInterface { schema: Arc::new(schema), output_type })
    }
}

/// Returns the request schema of a chat model, including the fields specific to this runner.
fn chat_schema() -> Value {
    let mut schema = Kind::Chat.schema();
    let more = json!({
        "seed": {"type": "integer", "description": "The same seed gives the same text"},
        "top_k": {"type": "integer", "minimum": -1, "description": "0 or -1: all tokens"},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "stop": {"type": ["string", "array"], "items": {"type": "string"}},
        "response_format": {"type": "object"},
    });
    if let (Some(properties), Value::Object(more)) =
        (schema.get_mut("properties").and_then(Value::as_object_mut), more)
    {
        properties.extend(more);
    }
    schema
}

/// Returns the modification time of a file.
pub(crate) fn changed(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|found| found.modified()).ok()
}

/// Returns the default number of compute threads: all cores but one.
pub(crate) fn default_threads() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores.saturating_sub(1)).unwrap_or(1).clamp(1, THREADS_MAX)
}

/// Parses the path of a file that must exist; a relative path is resolved against `folder`.
pub(crate) fn existing(
    folder: &Path,
) -> impl Fn(&orrery_config::values::Value<'_>) -> orrery_config::reader::Parsed<PathBuf> {
    move |value| {
        let path = path(folder)(value)?;
        let missing = || problem(value, format!("{} is not a file", path.display()));
        if path.is_file() { Ok(path) } else { Err(missing()) }
    }
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
    }

    fn model_file(&self) -> Option<&Path> {
        Some(&self.file)
    }

    fn is_part(&self) -> bool {
        self.header.as_ref().is_err_and(gguf::Error::is_part)
    }

    fn title(&self) -> Option<&str> {
        self.header()?.name.as_deref()
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let interface = self.interface().map(Arc::new);
        let process = Process::new(self.program(), model, dependencies);
        Arc::new(LlmRunner { process, kind: self.kind(), interface })
    }
}

/// A runner of one model.
#[derive(Debug)]
struct LlmRunner {
    process: Arc<Process>,
    kind: Kind,
    interface: Option<Arc<ModelInterface>>,
}

impl LlmRunner {
    async fn answer(&self, job: &Job) -> Result<(Value, Usage), Failure> {
        let (process, kind) = (&self.process, self.kind);
        let exchange = Exchange { kind, model: &process.model, authorization: None };
        let request = exchange.request("", &process.model.name, job, StreamOptions::UsageOnly);
        let request = request.map_err(|failure| exchange.named(failure))?;
        let request = || request.clone().map(body::full);
        let opened = process.open(request, job.may_fall_back).await;
        let (answer, in_use) = opened.map_err(|error| match error {
            OpenError::Unavailable(reason) => {
                exchange.failure(ErrorClass::ProviderUnavailable, &reason)
            }
            OpenError::Ended(reason) => exchange.failure(ErrorClass::ProviderError, &reason),
        })?;
        let read = exchange.read(job, answer.map(Arriving::from)).await;
        let read = read.map_err(|failure| exchange.named(failure));
        if read.as_ref().is_err_and(|failure| failure.class == ErrorClass::ProviderUnavailable)
            && let Some(reason) = in_use.ended().await
        {
            return Err(exchange.failure(ErrorClass::ProviderError, &reason));
        }
        read
    }
}

impl Runner for LlmRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let (output, usage) = self.answer(&job).await?;
            Ok(Success::new(output, Usage { run_time: started.elapsed(), ..usage }))
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

    fn server(&self, operation: Operation) -> Option<Server> {
        let kind = self.kind;
        let continues_text = kind == Kind::Chat && operation == Operation::Completions;
        let serves = continues_text || kind.operations().contains(&operation);
        serves.then(|| Server::Process(Arc::clone(&self.process)))
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
