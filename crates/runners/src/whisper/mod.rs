//! The runner `whisper`: turns speech into text with whisper.cpp in a separate process of this
//! binary (`worker`).
//!
//! The process is managed like that of a local language model (`llm::process`): it is started on
//! demand, shares the memory budget, and is stopped when idle. The audio is streamed to the
//! process, which decodes it; the service never decodes audio itself.

pub mod ask;
pub mod header;
pub mod worker;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use serde_json::{Map, Value, json};

use self::header::Header;
use super::llm::{
    DEFAULT_IDLE, IDLE_MAX, IDLE_MIN, InUse, Load, MEMORY_MAX, MEMORY_MIN, OpenError, Process,
    Program, THREADS_MAX, changed, default_threads, existing, worker as llm_worker,
};
use super::openai::answer::{self, Body};
use super::options::{self, Dependencies, Model, Type};
use super::source::Sources;
use super::{Health, Job, Maintenance, ModelInterface, Run, Runner, Server, Success};
use orrery_config::reader::Section;
use orrery_config::values::{duration, one_of, size, whole};
use orrery_domain::attempt::Failure;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::{OutputType, Usage};
use orrery_http::body;
use orrery_http::event_stream::EventReader;
use orrery_http::places::Arriving;
use orrery_runtime as runtime;
use orrery_schema::Schema;

/// Maximum size of a prediction's audio, which the service holds in memory; clients send larger
/// audio to OpenAI's audio routes.
const AUDIO_MAX: usize = 128 * 1024 * 1024;
/// Maximum size of an event of a prediction: the whole transcript with its segments.
const EVENT_MAX: usize = 64 * 1024 * 1024;
/// Default beam width, as in whisper.cpp's own program.
const DEFAULT_BEAM: u32 = 5;
/// Maximum beam width that whisper.cpp supports.
const BEAM_MAX: u32 = 8;

/// Default memory limit in bytes, in addition to twice the size of the file: a small file of audio
/// can claim large tables.
const DEFAULT_MEMORY: u64 = 3 * 1024 * 1024 * 1024;

/// The manifest section of this runner type.
pub const TYPE: Type = Type {
    name: "whisper",
    read: |section, folder| Some(Arc::new(Options::read(section, folder)?)),
};

/// Returns whether a file's name shows that the file is a Whisper model.
#[must_use]
pub fn is_model_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    name.starts_with("ggml-") && name.ends_with(".bin")
}

/// The manifest's options.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The absolute path of the model file.
    file: PathBuf,
    /// The file's modification time, used to detect a replaced file.
    changed: Option<SystemTime>,
    /// The file's header, or the error for a rejected file.
    header: Result<Header, header::Error>,
    /// The default language, for requests that name none.
    language: Option<String>,
    beam: u32,
    threads: u32,
    idle_unload: Duration,
    load: Load,
    memory_bytes: Option<u64>,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let file = section.required("file", existing(folder));
        let language = section.optional("language", language);
        let beam = section.get("beam", DEFAULT_BEAM, whole(1..=BEAM_MAX));
        let threads = section.optional("threads", whole(1..=THREADS_MAX));
        let idle_unload = section.get("idle_unload", DEFAULT_IDLE, duration(IDLE_MIN..=IDLE_MAX));
        let load = section.get("load", Load::OnDemand, one_of(&Load::ALL, Load::as_str));
        let memory_bytes = section.optional("memory_bytes", size(MEMORY_MIN..=MEMORY_MAX));
        let options = Self::of_file(file?);
        Some(Self {
            language,
            beam,
            threads: threads.unwrap_or(options.threads),
            idle_unload,
            load,
            memory_bytes,
            ..options
        })
    }

    /// Returns the options of a model file without a manifest.
    #[must_use]
    pub fn of_file(file: PathBuf) -> Self {
        Self {
            changed: changed(&file),
            header: Header::read(&file),
            language: None,
            beam: DEFAULT_BEAM,
            threads: default_threads(),
            idle_unload: DEFAULT_IDLE,
            load: Load::OnDemand,
            memory_bytes: None,
            file,
        }
    }

    fn program(&self) -> Program {
        /// Memory of the program, of a window of audio and of whisper.cpp's buffers.
        const BESIDE: u64 = 512 * 1024 * 1024;
        let mut arguments: Vec<OsString> = vec!["--beam".into(), self.beam.to_string().into()];
        if let Some(language) = &self.language {
            arguments.extend(["--language".into(), language.clone().into()]);
        }
        let header = self.header.as_ref().ok();
        let rejected = self.header.as_ref().err();
        let fault = rejected.map(|error| format!("its file {} {error}", self.file.display()));
        let file_bytes = header.map_or(0, |header| header.file_bytes);
        let default_memory = file_bytes.saturating_mul(2).saturating_add(DEFAULT_MEMORY);
        let memory_bytes = self.memory_bytes.unwrap_or(default_memory);
        Program {
            command: "whisper-worker",
            arguments,
            file: self.file.clone(),
            file_bytes,
            quantization: header.map(|header| header.quantization),
            context: None,
            threads: self.threads,
            memory_bytes: Some(memory_bytes),
            memory_estimate: file_bytes.saturating_add(file_bytes / 3).saturating_add(BESIDE),
            idle_unload: self.idle_unload,
            load: self.load,
            fault: fault.or_else(|| unsupported().map(str::to_owned)),
        }
    }
}

/// Parses the code of a language, such as `en`; whether the model knows it is checked for each
/// request.
fn language(value: &orrery_config::values::Value<'_>) -> orrery_config::reader::Parsed<String> {
    let text = orrery_config::values::text(value)?;
    if text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Ok(text);
    }
    let message = format!("{text:?} is not the code of a language, such as \"en\"");
    Err(orrery_config::values::problem(value, message))
}

/// Returns an error if this binary cannot recognize speech on this machine, as a phrase that follows
/// "the model 'x':".
fn unsupported() -> Option<&'static str> {
    if !cfg!(feature = "whisper") {
        return Some("this build has no whisper.cpp: build it with the feature `whisper`");
    }
    llm_worker::unsupported()
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
    }

    fn model_file(&self) -> Option<&Path> {
        Some(&self.file)
    }

    fn concurrency(&self) -> Option<usize> {
        // The process recognizes one file at a time; other requests wait in the model's queue.
        Some(1)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let process = Process::new(self.program(), model, dependencies);
        let schema = Schema::compile(&schema()).ok().map(Arc::new);
        let interface =
            schema.map(|schema| ModelInterface { schema, output_type: OutputType::Object });
        let sources = dependencies.sources.clone();
        Arc::new(WhisperRunner { process, interface: interface.map(Arc::new), sources })
    }
}

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["audio"],
        "properties": {
            "audio": {
                "type": "string",
                "description": "The URL of an audio file, or a data: URL",
            },
            "language": {
                "type": "string",
                "description": "The language of the audio, such as en; detected by default",
            },
            "prompt": {
                "type": "string",
                "description": "Text that precedes the audio, or hints about its words",
            },
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
            "translate": {
                "type": "boolean", "default": false,
                "description": "Whether to translate into English",
            },
            "words": {
                "type": "boolean", "default": false,
                "description": "Whether each segment lists its words with their times",
            },
        },
    })
}

/// A runner of one model.
#[derive(Debug)]
struct WhisperRunner {
    process: Arc<Process>,
    interface: Option<Arc<ModelInterface>>,
    sources: Sources,
}

impl WhisperRunner {
    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        self.process.model.failure(class, what)
    }

    async fn transcribe(&self, job: &Job) -> Result<(Value, Usage), Failure> {
        let source = job.input.get("audio").and_then(Value::as_str);
        let source = source.ok_or_else(|| {
            self.failure(ErrorClass::InvalidUserInput, "`audio` must be the URL of an audio file")
        })?;
        let mut memory = self.sources.memory(AUDIO_MAX).await;
        let audio = self.sources.read(source, AUDIO_MAX).await.map_err(|error| {
            let mut what = format!("its audio cannot be read: {error}");
            if error.is_too_large() {
                what = format!("its audio is larger than {AUDIO_MAX} bytes");
            }
            self.failure(ErrorClass::InvalidUserInput, &what)
        })?;
        memory.shrink_to(audio.bytes.len());
        let head = Bytes::from(ask::encode(&fields(&job.input)));
        let request = || {
            let pieces = [head.clone(), audio.bytes.clone()].map(Ok);
            let mut request = Request::new(body::stream(stream::iter(pieces)));
            *request.method_mut() = hyper::Method::POST;
            *request.uri_mut() = hyper::Uri::from_static(ask::PROGRESS);
            let kind = hyper::header::HeaderValue::from_static(ask::MEDIA_TYPE);
            request.headers_mut().insert(CONTENT_TYPE, kind);
            request
        };
        let opened = self.process.open(request, job.may_fall_back).await;
        let (answer, in_use) = opened.map_err(|error| match error {
            OpenError::Unavailable(reason) => {
                self.failure(ErrorClass::ProviderUnavailable, &reason)
            }
            OpenError::Ended(reason) => self.failure(ErrorClass::ProviderError, &reason),
        })?;
        self.read(job, answer.map(Arriving::from), &in_use).await
    }

    /// Reads the segments and the transcript.
    async fn read(
        &self,
        job: &Job,
        answer: Response<Arriving>,
        in_use: &InUse,
    ) -> Result<(Value, Usage), Failure> {
        let name = self.process.name();
        let (head, arriving) = answer.into_parts();
        let named = |failure: super::openai::Failure| {
            let what =
                failure.message.trim_start_matches(&format!("the model '{name}': ")).to_owned();
            self.failure(failure.class, &what)
        };
        if !head.status.is_success() {
            return Err(named(answer::refusal(name, &head, arriving, None).await));
        }
        let mut body = Body::of(name, &head.headers, arriving).map_err(named)?;
        let mut reader = EventReader::new(EVENT_MAX);
        loop {
            let Ok(Some(piece)) = body.next().await else {
                let ended = in_use.ended().await;
                let what = ended.unwrap_or_else(|| "its answer was cut off".to_owned());
                return Err(self.failure(ErrorClass::ProviderError, &what));
            };
            reader.push(&piece);
            loop {
                let event = reader.next_event().map_err(|_too_long| {
                    self.failure(ErrorClass::ProviderError, "an event of its answer is too long")
                })?;
                let Some(event) = event else { break };
                let data = event.data.unwrap_or_default();
                let mut event: Map<String, Value> =
                    serde_json::from_slice(&data).unwrap_or_default();
                if let Some(line) = event.get("log").and_then(Value::as_str) {
                    job.progress.log(line);
                }
                if let Some(reason) = event.get("failed").and_then(Value::as_str) {
                    return Err(self.failure(ErrorClass::ProviderError, reason));
                }
                if let Some(output) = event.shift_remove("output") {
                    let seconds = output.get("duration").and_then(Value::as_f64);
                    let audio = seconds.and_then(|time| Duration::try_from_secs_f64(time).ok());
                    return Ok((output, Usage { audio, ..Usage::default() }));
                }
            }
        }
    }
}

/// Returns the input of a prediction as the fields of a form.
fn fields(input: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let kept = |name: &str| Some((name.to_owned(), text(input.get(name)?)));
    let is_set = |name: &str| input.get(name) == Some(&Value::Bool(true));
    let mut fields: Vec<(String, String)> =
        ["language", "prompt", "temperature"].into_iter().filter_map(kept).collect();
    if is_set("words") {
        fields.push(("timestamp_granularities[]".to_owned(), "word".to_owned()));
    }
    if is_set("translate") {
        fields.push((ask::TRANSLATE.to_owned(), "true".to_owned()));
    }
    fields
}

impl Runner for WhisperRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let (output, usage) = self.transcribe(&job).await?;
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
        let serves = matches!(operation, Operation::Transcriptions | Operation::Translations);
        serves.then(|| Server::Process(Arc::clone(&self.process)))
    }

    fn diagnostics(&self) -> Option<String> {
        self.process.diagnostics()
    }

    fn local(&self) -> Option<super::LocalModel> {
        Some(self.process.local())
    }
}

#[cfg(test)]
mod tests;
