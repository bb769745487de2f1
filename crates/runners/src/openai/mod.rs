//! The runner `openai`: any OpenAI-compatible server (llama-server, vLLM, Ollama, …), for chat,
//! text completions, embeddings, reranking, images, transcription and speech.
//!
//! Text is always requested as a stream, so that dropping the run on cancellation closes the
//! connection and the server stops. The server's token counts are reported as usage. The runner
//! repeats a request only if the request certainly had no effect (`endpoints`), because retries and
//! fallbacks belong to the engine.

pub mod answer;
mod exchange;
pub mod failure;
pub mod message;
pub mod said;
pub mod shape;
pub mod stream_options;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

pub use self::exchange::{ANSWER_MAX, Exchange};
pub use self::failure::{Failure, Said};
use self::stream_options::{StreamOptions, ask_with_options};
use super::endpoints::{self, EndpointState, Lease, Pool, Readiness, Servers};
use super::http::failure_of;
use super::options::{self, Dependencies, Model, Type, base_url, secret_header};
use super::{Health, Job, Maintenance, Run, Runner, Server, Success, managed};
use orrery_config::reader::Section;
use orrery_config::values::{self, one_of};
use orrery_domain::attempt;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::Usage;
use orrery_http::client::{Client, Limits, Overflow};
use orrery_runtime as runtime;

/// The task of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Embeddings,
    Images,
    Completions,
    Rerank,
    Transcriptions,
    Speech,
}

/// The manifest section of this runner type.
pub const TYPE: Type = Type {
    name: "openai",
    read: |section, folder| Some(Arc::new(Options::read(section, folder)?)),
};

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// Servers whose URLs end with `/v1`, without a trailing slash.
    servers: Servers,
    /// The model's name on the server.
    model: String,
    kind: Kind,
    /// The header `Bearer …`, marked as sensitive.
    authorization: Option<HeaderValue>,
}

impl Options {
    fn is_for(&self, operation: Operation) -> bool {
        self.kind.operations().contains(&operation)
    }

    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let health = managed::health(section);
        let url = |value: &values::Value<'_>| values::api_url(value, base_url(value)?);
        let servers = Servers::read(section, folder, health, url, "/v1");
        let model = section.required("model", values::text);
        let kind = section.required("kind", one_of(&Kind::ALL, Kind::as_str));
        let bearer = |value: &values::Value<'_>| secret_header(value, "Bearer ", folder);
        let authorization = section.optional("key", bearer);
        Some(Self { servers: servers?, model: model?, kind: kind?, authorization })
    }
}

impl options::Options for Options {
    fn schema(&self) -> Option<Value> {
        Some(self.kind.schema())
    }

    fn concurrency(&self) -> Option<usize> {
        self.servers.concurrency()
    }

    fn programs(&self) -> Option<Vec<PathBuf>> {
        self.servers.programs()
    }

    fn missing(&self, groups: Option<&managed::Groups>) -> Option<String> {
        self.servers.missing(groups)
    }

    fn concern(&self) -> Option<String> {
        let found = self.servers.addresses.iter().find_map(|one| values::without_path(&one.url));
        found.map(|(detail, _meant)| format!("runner.url {detail}"))
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        // A single server is not probed, because it may belong to a third party; its health is
        // derived from its responses.
        let is_probed = self.servers.addresses.len() > 1;
        let check = managed::Check {
            path: "/models".to_owned(),
            is_ready: managed::answers,
            authorization: self.authorization.clone(),
            describes_model: false,
        };
        let servers = model.servers(&self.servers, is_probed, false, Some(check), dependencies);
        let servers = Arc::new(servers);
        let client = dependencies.client.clone();
        Arc::new(OpenAiRunner { options: self, model, client, servers, is_probed })
    }
}

/// A runner of one model.
#[derive(Debug)]
struct OpenAiRunner {
    options: Arc<Options>,
    model: Model,
    client: Client,
    servers: Arc<Pool>,
    is_probed: bool,
}

impl Kind {
    /// All kinds of models.
    const ALL: [Self; 7] = [
        Self::Chat,
        Self::Embeddings,
        Self::Images,
        Self::Completions,
        Self::Rerank,
        Self::Transcriptions,
        Self::Speech,
    ];

    /// Returns the chat router operations that this kind of model serves.
    #[must_use]
    pub const fn operations(self) -> &'static [Operation] {
        match self {
            Self::Chat => &[Operation::Chat],
            Self::Embeddings => &[Operation::Embeddings],
            Self::Completions => &[Operation::Completions],
            Self::Rerank => &[Operation::Rerank],
            Self::Images => &[Operation::Images, Operation::ImageEdits],
            Self::Transcriptions => &[Operation::Transcriptions, Operation::Translations],
            Self::Speech => &[Operation::Speech],
        }
    }

    /// Returns the operation of a prediction.
    const fn predicts(self) -> Operation {
        match self {
            Self::Chat => Operation::Chat,
            Self::Embeddings => Operation::Embeddings,
            Self::Completions => Operation::Completions,
            Self::Rerank => Operation::Rerank,
            Self::Images => Operation::Images,
            Self::Transcriptions => Operation::Transcriptions,
            Self::Speech => Operation::Speech,
        }
    }

    /// Whether the answer is generated text.
    #[must_use]
    pub const fn writes_text(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Returns the kind's spelling in manifests.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
            Self::Images => "images",
            Self::Completions => "completions",
            Self::Rerank => "rerank",
            Self::Transcriptions => "transcriptions",
            Self::Speech => "speech",
        }
    }

    /// Returns the default request schema of this kind.
    #[must_use]
    pub fn schema(self) -> Value {
        match self {
            Self::Chat => json!({
                "type": "object",
                "properties": {
                    "prompt": {"type": "string", "description": "The user's message"},
                    "system": {"type": "string", "description": "The system message"},
                    "messages": {
                        "type": "array", "minItems": 1, "items": {"type": "object"},
                        "description": "A whole conversation, instead of prompt",
                    },
                    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
                    "max_tokens": {
                        "type": "integer", "minimum": -1, "not": {"const": 0},
                        "description": "-1: as many as the context has room for",
                    },
                },
                "anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
            }),
            Self::Embeddings => json!({
                "type": "object",
                "required": ["input"],
                "properties": {"input": {
                    "type": ["string", "array"], "items": {"type": "string"},
                    "description": "One text, or several",
                }},
            }),
            Self::Images => json!({
                "type": "object",
                "required": ["prompt"],
                "properties": {
                    "prompt": {"type": "string"},
                    "n": {"type": "integer", "minimum": 1, "maximum": 10},
                    "size": {"type": "string"},
                },
            }),
            Self::Completions => json!({
                "type": "object",
                "required": ["prompt"],
                "properties": {
                    "prompt": {
                        "type": ["string", "array"], "items": {"type": "string"},
                        "description": "One text to continue, or several",
                    },
                    "suffix": {"type": "string", "description": "The text after the completion"},
                    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
                    "max_tokens": {"type": "integer", "minimum": 1},
                },
            }),
            Self::Rerank => json!({
                "type": "object",
                "required": ["query", "documents"],
                "properties": {
                    "query": {"type": "string"},
                    "documents": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                    "top_n": {"type": "integer", "minimum": 1},
                },
            }),
            Self::Transcriptions => transcription_schema(),
            Self::Speech => speech_schema(),
        }
    }

    const fn path(self) -> &'static str {
        self.predicts().path()
    }
}

fn transcription_schema() -> Value {
    json!({
        "type": "object",
        "required": ["file"],
        "properties": {
            "file": {"type": "string", "description": "An audio file as a data: URL"},
            "language": {"type": "string"},
            "prompt": {"type": "string"},
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
        },
    })
}

fn speech_schema() -> Value {
    json!({
        "type": "object",
        "required": ["input"],
        "properties": {
            "input": {"type": "string", "description": "The text to read aloud"},
            "voice": {"type": "string"},
            "response_format": {"type": "string"},
            "speed": {"type": "number", "minimum": 0.25, "maximum": 4},
            "instructions": {"type": "string"},
        },
    })
}

impl OpenAiRunner {
    async fn answer(&self, job: &Job) -> Result<(Value, Usage), attempt::Failure> {
        let Options { kind, authorization, .. } = &*self.options;
        let authorization = authorization.as_ref();
        let exchange = Exchange { kind: *kind, model: &self.model, authorization };
        if *kind == Kind::Transcriptions {
            let what = "is for POST /v1/audio/transcriptions and POST /v1/audio/translations; \
                        predictions cannot send it files";
            return Err(exchange.failure(ErrorClass::InvalidUserInput, what));
        }
        let ask = |options| self.ask(&exchange, job, options);
        let answer = match kind {
            Kind::Chat | Kind::Completions => {
                ask_with_options(&self.servers.stream_options, false, ask).await
            }
            Kind::Embeddings
            | Kind::Images
            | Kind::Rerank
            | Kind::Transcriptions
            | Kind::Speech => ask(StreamOptions::Omitted).await,
        };
        answer.map_err(|failure| exchange.named(failure))
    }

    /// Sends the request to one of the servers, and reads the response to its end.
    async fn ask(
        &self,
        exchange: &Exchange<'_>,
        job: &Job,
        options: StreamOptions,
    ) -> Result<(Value, Usage), Failure> {
        let request = |url: &str| exchange.request(url, &self.options.model, job, options);
        let failed = |error| match error {
            endpoints::Error::Unmade(failure) => failure,
            endpoints::Error::Unstarted(reason) => {
                let message = format!("the model '{}': {reason}", self.model.name);
                Failure::new(503, ErrorClass::ProviderUnavailable, message)
            }
            endpoints::Error::Client(error) => {
                let attempt::Failure { class, message } = failure_of(&self.model.name, &error);
                Failure::new(502, class, message)
            }
        };
        if exchange.kind.writes_text() {
            let opened = self.servers.open(&self.client, request).await;
            let (answer, lease) = opened.map_err(failed)?;
            return noted(lease, exchange.read(job, answer).await);
        }
        let limits = Limits {
            total: self.model.timeout,
            answer_bytes: ANSWER_MAX,
            overflow: Overflow::Fail,
        };
        let sent = self.servers.send(&self.client, &limits, request).await;
        let (answer, lease) = sent.map_err(failed)?;
        let status = answer.status.as_u16();
        noted(lease, exchange.parse(job, status, &answer.headers, &answer.body).await)
    }

    /// Probes a server by listing its models. An error response also counts as a response.
    async fn probe(&self, url: String) -> Readiness {
        let mut request = Request::get(format!("{url}/models"));
        if let Some(authorization) = &self.options.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let answers = |status: StatusCode| !status.is_server_error();
        endpoints::ask_readiness(&self.client, request, answers).await
    }
}

/// Records the outcome of a request on its lease.
fn noted<T>(mut lease: Lease, ended: Result<T, Failure>) -> Result<T, Failure> {
    lease.note(ended.as_ref().err().map(Failure::recorded).as_ref());
    ended
}

impl Runner for OpenAiRunner {
    fn server(&self, operation: Operation) -> Option<Server> {
        self.options.is_for(operation).then(|| Server::Remote {
            servers: Arc::clone(&self.servers),
            model: self.options.model.clone(),
            authorization: self.options.authorization.clone(),
        })
    }

    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let (output, usage) = self.answer(&job).await?;
            Ok(Success::new(output, Usage { run_time: started.elapsed(), ..usage }))
        })
    }

    fn health(&self) -> Health {
        self.servers.health()
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            if self.is_probed || self.servers.server().is_some() {
                self.servers.probe(|url| self.probe(url)).await;
            }
        })
    }

    fn endpoints(&self) -> Vec<EndpointState> {
        self.servers.states()
    }

    fn managed(&self) -> Option<&Arc<managed::Server>> {
        self.servers.server()
    }

    fn diagnostics(&self) -> Option<String> {
        self.servers.server()?.diagnostics()
    }
}

#[cfg(test)]
mod tests;
