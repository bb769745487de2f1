//! The runner `http`: any inference server that returns one result per request, or that accepts a job
//! whose state the runner then polls.
//!
//! The runner repeats a request only if the request certainly had no effect (`endpoints`), because
//! retries and fallbacks belong to the engine. A shortened form of the provider's error text is
//! passed on to the caller; headers are not, because they may contain secrets.

mod multipart;
mod poll;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request};
use serde_json::Value;

use self::multipart::{Encoded, Form};
use self::poll::Poll;
use super::endpoints::{self, EndpointState, Pool, Readiness, Servers};
use super::options::{self, Dependencies, Model, Type, secret_header};
use super::source::Sources;
use super::{Health, Job, Maintenance, Run, Runner, Success, managed};
use orrery_config::reader::{Parsed, Section};
use orrery_config::values::{self, problem};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::file;
use orrery_domain::ids::ExecutionId;
use orrery_domain::input_template::{self, InputTemplate};
use orrery_domain::model::Usage;
use orrery_http::client::{self, Client, Response};
use orrery_http::{connector, content, trace_context};
use orrery_runtime as runtime;
use orrery_runtime::turns::Turn;

/// Maximum size of a response, in bytes.
pub const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// Maximum length of a quoted provider error, in characters.
const QUOTED: usize = 300;

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "http", read: |section, folder| Some(Arc::new(Options::read(section, folder)?)) };

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    servers: Servers,
    /// The path of a readiness route on the server.
    health: Option<String>,
    method: Method,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The request body; `None` means that the body is the form in `multipart`, or the whole input
    /// if the manifest has no form.
    body: Option<InputTemplate>,
    form: Option<Form>,
    /// How to poll the job whose ID is in the response.
    poll: Option<Poll>,
    /// A JSON pointer to the output; `None` means the whole response.
    output: Option<String>,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let health = section.optional("health", path);
        let servers = Servers::read(section, folder, health.clone(), url, "");
        let method = section.get("method", Method::POST, method);
        let header = |name: &str, value: &values::Value<'_>| {
            let wrong = || problem(value, format!("{name:?} is not a valid header name"));
            let name = name.parse().map_err(|_invalid| wrong())?;
            Ok((name, secret_header(value, "", folder)?))
        };
        let headers = section.get("headers", Vec::new(), values::headers(header));
        let body = section.optional("body", template);
        let form = Form::read(section);
        if form.is_some() {
            if body.is_some() {
                section.error("body", "a request has either `body` or `multipart`".to_owned());
            }
            if headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
                section.error("headers", "`multipart` sets the header Content-Type".to_owned());
            }
            if ![Method::POST, Method::PUT, Method::PATCH].contains(&method) {
                let message = "a request with `multipart` is a POST, PUT or PATCH".to_owned();
                section.error("method", message);
            }
        }
        let poll = section.optional_section("poll", Poll::read);
        let output = section.optional("output", pointer);
        Some(Self { servers: servers?, health, method, headers, body, form, poll, output })
    }
}

impl options::Options for Options {
    fn concurrency(&self) -> Option<usize> {
        self.servers.concurrency()
    }

    fn programs(&self) -> Option<Vec<PathBuf>> {
        self.servers.programs()
    }

    fn missing(&self, groups: Option<&managed::Groups>) -> Option<String> {
        self.servers.missing(groups)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let is_probed = self.health.is_some();
        let servers = model.servers(&self.servers, is_probed, false, None, dependencies);
        let (client, sources) = (dependencies.client.clone(), dependencies.sources.clone());
        Arc::new(HttpRunner { options: self, model, client, sources, servers })
    }
}

fn method(value: &values::Value<'_>) -> Parsed<Method> {
    let text = values::text(value)?;
    let method = text.to_uppercase().parse();
    method.map_err(|_invalid| problem(value, format!("{text:?} is not an HTTP method")))
}

pub(super) fn path(value: &values::Value<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    let is_path = text.starts_with('/') && !text.starts_with("//");
    let wrong = || values::wrong(value, "a path such as \"/healthz\"");
    if is_path { Ok(text) } else { Err(wrong()) }
}

/// Parses a URL that may have references to the input, except in its scheme, host and port.
fn url(value: &values::Value<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    let template = InputTemplate::parse(&text.as_str().into());
    let template = template.map_err(|error| problem(value, error.to_string()))?;
    match template.url() {
        None => values::url(value),
        Some(Ok(_)) => Ok(text),
        Some(Err(error)) => Err(problem(value, error.to_string())),
    }
}

fn template(value: &values::Value<'_>) -> Parsed<InputTemplate> {
    let written = values::json(value)?;
    InputTemplate::parse(&written).map_err(|error| problem(value, error.to_string()))
}

fn pointer(value: &values::Value<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    let is_pointer = text.starts_with('/');
    let wrong = || values::wrong(value, "a JSON pointer such as \"/caption\"");
    if is_pointer { Ok(text) } else { Err(wrong()) }
}

/// A runner of one model.
#[derive(Debug)]
struct HttpRunner {
    options: Arc<Options>,
    model: Model,
    client: Client,
    sources: Sources,
    servers: Pool,
}

/// The body of a request, and its content type.
struct Content {
    kind: HeaderValue,
    body: Bytes,
    /// The permit for the memory of a form.
    _memory: Option<Turn>,
}

impl HttpRunner {
    fn unmade(&self, class: ErrorClass, reason: &str) -> Failure {
        let model = &self.model.name;
        Failure::new(class, format!("the request to the model '{model}' cannot be made: {reason}"))
    }

    async fn content(&self, job: &Job) -> Result<Content, Failure> {
        if let Some(form) = &self.options.form {
            // The random bits of the ID do not occur in the content, except with negligible
            // probability.
            let boundary = format!("orrery-{}", runtime::new_id::<ExecutionId>());
            let encoded = form.encode(&job.input, &self.sources, &boundary).await;
            let encoded = encoded
                .map_err(|error| self.unmade(ErrorClass::InvalidUserInput, &error.to_string()))?;
            let Encoded { kind, body, memory } = encoded;
            return Ok(Content { kind, body, _memory: Some(memory) });
        }
        let kind = HeaderValue::from_static("application/json");
        if self.options.method == Method::GET {
            return Ok(Content { kind, body: Bytes::new(), _memory: None });
        }
        let body = match &self.options.body {
            None => job.input.to_string(),
            Some(template) => {
                let body = template.fill(&job.input);
                let body = body.map_err(|error| {
                    self.unmade(ErrorClass::InvalidUserInput, &format!("its body: {error}"))
                })?;
                body.to_string()
            }
        };
        Ok(Content { kind, body: Bytes::from(body), _memory: None })
    }

    fn request(&self, url: &str, job: &Job, content: &Content) -> Result<Request<Bytes>, Failure> {
        let url = input_template::fill_url(url, &job.input).map_err(|error| {
            self.unmade(ErrorClass::InvalidUserInput, &format!("its url {error}"))
        })?;
        let mut request = Request::builder()
            .method(self.options.method.clone())
            .uri(url)
            .header("idempotency-key", &job.attempt_key);
        if !self.options.headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
            request = request.header(CONTENT_TYPE, &content.kind);
        }
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        if let Some(headers) = request.headers_mut() {
            trace_context::pass_on(headers, &job.trace);
        }
        request
            .body(content.body.clone())
            .map_err(|error| self.unmade(ErrorClass::InvalidModelConfig, &error.to_string()))
    }

    /// Probes a server at the manifest's readiness path.
    async fn probe(&self, url: String) -> Readiness {
        let path = self.options.health.as_deref().unwrap_or("/");
        let target = url::Url::parse(&url).and_then(|url| url.join(path));
        let mut request = Request::get(target.map_or_else(|_never| url, String::from));
        for (name, value) in &self.options.headers {
            request = request.header(name, value);
        }
        endpoints::ask_readiness(&self.client, request, |status| status.is_success()).await
    }

    /// Returns an error if the response has an error status.
    async fn check_status(&self, answer: &Response) -> Result<(), super::Error> {
        let status = answer.status.as_u16();
        let Some(class) = ErrorClass::of_http_status(status) else { return Ok(()) };
        let model = &self.model.name;
        let sentence = format!("the model '{model}' answered {status}: {}", excerpt(&answer.body));
        let body = content::json(&answer.headers, &answer.body).await.unwrap_or_default();
        let failure = Failure::new(class, sentence);
        Err(super::Error { failure, cost: self.model.reported_cost(&body) })
    }

    fn unexpected_response(&self, answer: &[u8], what: &str) -> Failure {
        let model = &self.model.name;
        let sentence = format!("the model '{model}' {what}: {}", excerpt(answer));
        Failure::new(ErrorClass::ProviderError, sentence)
    }

    async fn json(&self, answer: &Response) -> Result<Value, Failure> {
        let body = content::json(&answer.headers, &answer.body).await;
        body.map_err(|error| self.unexpected_response(&answer.body, &unreadable(&error)))
    }

    async fn read(&self, answer: &Response, run_time: Duration) -> Result<Success, super::Error> {
        self.check_status(answer).await?;
        if self.model.gives_files && self.options.output.is_none() && !is_json(answer) {
            let usage = Usage { run_time, ..Usage::default() };
            return Ok(Success::new(data_uri(answer).into(), usage));
        }
        let body = self.json(answer).await?;
        let cost = self.model.reported_cost(&body);
        let output = self.output_of(self.options.output.as_deref(), body)?;
        let usage = Usage { run_time, cost, ..Usage::default() };
        Ok(Success::new(output, usage))
    }

    /// Returns the value in the response to which the pointer refers, or the whole response if there
    /// is no pointer.
    fn output_of(&self, pointer: Option<&str>, answer: Value) -> Result<Value, Failure> {
        let Some(pointer) = pointer else { return Ok(answer) };
        answer.pointer(pointer).cloned().ok_or_else(|| {
            let text = answer.to_string();
            let what = format!("gave an answer without {pointer}");
            self.unexpected_response(text.as_bytes(), &what)
        })
    }
}

impl Runner for HttpRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let content = self.content(&job).await?;
            let request = |url: &str| self.request(url, &job, &content);
            let started = runtime::monotonic_now();
            let exchange =
                self.model.exchange_holding(&self.servers, &self.client, ANSWER_MAX, request);
            let (answer, lease) = exchange.await?;
            drop(content);
            match &self.options.poll {
                None => {
                    drop(lease);
                    self.read(&answer, started.elapsed()).await
                }
                Some(poll) => {
                    let last = self.follow(poll, &job, &answer, &lease.url()).await?;
                    let cost = self.model.reported_cost(&last);
                    let pointer = poll.output.as_deref().or(self.options.output.as_deref());
                    let output = self.output_of(pointer, last)?;
                    let run_time = started.elapsed();
                    Ok(Success::new(output, Usage { run_time, cost, ..Usage::default() }))
                }
            }
        })
    }

    fn health(&self) -> Health {
        self.servers.health()
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            if self.options.health.is_some() || self.servers.server().is_some() {
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

fn is_json(answer: &Response) -> bool {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_none_or(|kind| kind.split(';').next().unwrap_or_default().trim_end().ends_with("json"))
}

/// Returns the rest of a sentence about a response that is not valid JSON.
pub(super) fn unreadable(error: &content::Error) -> String {
    if matches!(error, content::Error::Json(_)) {
        return "gave an answer that is not valid JSON".to_owned();
    }
    format!("gave an answer that cannot be read ({error})")
}

/// Returns the bytes of a response as a `data:` URI, which the engine stores as a file.
fn data_uri(answer: &Response) -> String {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = file::content_type(kind.unwrap_or_default());
    format!("data:{kind};base64,{}", STANDARD.encode(&answer.body))
}

/// Converts the error of a request that received no response into a failure of the model.
pub(super) fn failure_of(model: &str, error: &client::Error) -> Failure {
    Failure::new(class_of(error), format!("the model '{model}': {error}"))
}

/// Converts the error of a request that no endpoint answered into a failure of the model.
pub(super) fn unanswered(model: &str, error: endpoints::Error<Failure>) -> Failure {
    match error {
        endpoints::Error::Unmade(failure) => failure,
        endpoints::Error::Unstarted(reason) => {
            let message = format!("the model '{model}': {reason}");
            Failure::new(ErrorClass::ProviderUnavailable, message)
        }
        endpoints::Error::Client(error) => failure_of(model, &error),
    }
}

/// Returns the error class of a request that received no response.
pub(super) const fn class_of(error: &client::Error) -> ErrorClass {
    match error {
        client::Error::Timeout { .. } => ErrorClass::ExecutionTimeout,
        client::Error::TooLarge { .. }
        | client::Error::Content(_)
        | client::Error::Protocol { .. } => ErrorClass::ProviderError,
        client::Error::Connection(connector::Error::Forbidden(_) | connector::Error::NoHost) => {
            ErrorClass::InvalidModelConfig
        }
        client::Error::Connection(
            connector::Error::Resolve { .. }
            | connector::Error::LeadsAstray { .. }
            | connector::Error::Connect { .. }
            | connector::Error::Tls { .. }
            | connector::Error::Local { .. }
            | connector::Error::Timeout { .. },
        ) => ErrorClass::ProviderUnavailable,
    }
}

/// Returns the beginning of a provider's response, on one line.
pub(super) fn excerpt(body: &[u8]) -> String {
    let head = body.get(..body.len().min(4 * QUOTED)).unwrap_or_default();
    let text = String::from_utf8_lossy(head);
    let visible = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let quoted: String = visible.take(QUOTED).collect();
    if quoted.trim().is_empty() { "(nothing)".to_owned() } else { quoted.trim().to_owned() }
}

#[cfg(test)]
mod poll_tests;
#[cfg(test)]
mod tests;
