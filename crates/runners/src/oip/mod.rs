//! The runner `oip`: a model behind the Open Inference Protocol, version 2, over HTTP (KServe,
//! Triton, MLServer, OpenVINO Model Server, Seldon).
//!
//! The request schema is derived from the model's metadata. An input contains each tensor by name
//! as nested arrays, or uses the protocol's native format; the output contains the tensors by name,
//! as nested arrays again. The runner repeats a request only if the request certainly had no effect
//! (`endpoints`), because retries and fallbacks belong to the engine.
//!
//! ```text
//! metadata   the model's tensors, and the request schema
//! tensors    conversion between nested arrays and flat ones
//! ```

pub(crate) mod metadata;
pub(crate) mod tensors;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use self::metadata::Metadata;
use super::endpoints::{self, DescriptionAge, EndpointState, Pool, Readiness, Servers};
use super::http::{excerpt, unanswered, unreadable};
use super::options::{self, Dependencies, Model, Type, base_url};
use super::{Health, Job, Maintenance, ModelInterface, Run, Runner, Success, managed};
use orrery_config::reader::{Parsed, Section};
use orrery_config::values::{self, problem, text};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::Usage;
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::{content, trace_context};
use orrery_runtime as runtime;
use orrery_schema as schema;

/// Maximum size of a response, in bytes.
pub const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// Maximum size of the metadata in bytes, and the timeout for fetching it in a run that needs it.
const METADATA_MAX: usize = 1024 * 1024;
const METADATA_TIMEOUT: Duration = Duration::from_secs(3);
/// Characters that are not escaped in a path segment.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "oip", read: |section, folder| Some(Arc::new(Options::read(section, folder)?)) };

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// Servers whose URLs have neither `/v2` nor trailing slashes.
    servers: Servers,
    /// The model's path below a server's URL: `/v2/models/…`.
    path: String,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let health = managed::health(section);
        let servers = Servers::read(section, folder, health, root_url, "");
        let model = section.required("model", text);
        let version = section.optional("version", text);
        let part = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
        let version = version.map_or_else(String::new, |one| format!("/versions/{}", part(&one)));
        let path = format!("/v2/models/{}{version}", part(&model?));
        Some(Self { servers: servers?, path })
    }
}

/// Parses the URL of a server, without the path that the protocol adds.
fn root_url(value: &values::Value<'_>) -> Parsed<String> {
    let url = base_url(value)?;
    if url.ends_with("/v2") || url.contains("/v2/") {
        let message = "expected the server's URL without /v2/…, which the protocol adds; name the \
                       model in the key `model`";
        return Err(problem(value, message.to_owned()));
    }
    Ok(url)
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
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

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let check = managed::Check {
            path: format!("{}/ready", self.path),
            is_ready: managed::success,
            authorization: None,
            describes_model: true,
        };
        let servers = model.servers(&self.servers, true, true, Some(check), dependencies);
        let client = dependencies.client.clone();
        Arc::new(OipRunner { options: self, model, client, servers, known: Mutex::default() })
    }
}

/// A runner of one model.
#[derive(Debug)]
struct OipRunner {
    options: Arc<Options>,
    model: Model,
    client: Client,
    servers: Pool,
    known: Mutex<Known>,
}

/// The model's metadata, as last read.
#[derive(Debug, Default)]
struct Known {
    metadata: Option<Arc<Metadata>>,
    interface: Option<Arc<ModelInterface>>,
    /// When the metadata was last read.
    description: DescriptionAge,
    /// The last fault found in the metadata; each fault is logged once.
    wrong: Option<String>,
}

impl OipRunner {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the model is ready on a server.
    async fn probe(&self, url: String) -> Readiness {
        let request = Request::get(format!("{url}{}/ready", self.options.path));
        endpoints::ask_readiness(&self.client, request, |status| status.is_success()).await
    }

    /// Fetches the model's metadata from a server.
    async fn describe(&self, url: &str) {
        let request = Request::get(format!("{url}{}", self.options.path));
        match endpoints::probe(&self.client, request).await {
            Ok(answer) => drop(self.learn(&answer).await),
            Err(error) => self.note_metadata(Err(format!("cannot be read: {error}"))),
        }
    }

    /// Parses and stores the metadata in a response.
    async fn learn(&self, answer: &Response) -> Option<Arc<Metadata>> {
        let status = answer.status;
        let found = if status.is_success() {
            let body = answer.body.clone();
            let read = move || {
                let document = serde_json::from_slice(&body);
                metadata::read(&document.map_err(|error| format!("is not valid JSON: {error}"))?)
            };
            let read = schema::compile(read).await;
            read.unwrap_or_else(|error| Err(format!("was not read: {error}")))
        } else {
            Err(format!("is not available: the server answered {}", status.as_u16()))
        };
        self.note_metadata(found);
        self.known().metadata.clone()
    }

    fn note_metadata(&self, found: Result<(Metadata, ModelInterface), String>) {
        let mut known = self.known();
        known.description.note();
        match found {
            Ok((metadata, interface)) => {
                known.wrong = None;
                if known.metadata.as_deref() != Some(&metadata) {
                    known.metadata = Some(Arc::new(metadata));
                    known.interface = Some(Arc::new(interface));
                }
            }
            Err(wrong) => {
                if known.wrong.as_ref() != Some(&wrong) {
                    let model = &self.model.name;
                    tracing::warn!(%model, "the model's metadata {wrong}");
                    known.wrong = Some(wrong);
                }
            }
        }
    }

    /// Returns the model's metadata, fetching it if it is not known yet. Inputs in the protocol's
    /// native format do not need the metadata.
    async fn metadata(&self, input: &Value) -> Result<Option<Arc<Metadata>>, Failure> {
        if let Some(known) = self.known().metadata.clone() {
            return Ok(Some(known));
        }
        let limits = Limits {
            total: METADATA_TIMEOUT.min(self.model.timeout),
            answer_bytes: METADATA_MAX,
            overflow: Overflow::Fail,
        };
        let request = |url: &str| self.request(Request::get(url), url, "", Bytes::new());
        let failed = match self.servers.send(&self.client, &limits, request).await {
            Ok((answer, mut lease)) => {
                lease.note(None);
                if let Some(known) = self.learn(&answer).await {
                    return Ok(Some(known));
                }
                let wrong = self.known().wrong.clone().unwrap_or_default();
                let status = answer.status.as_u16();
                let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
                self.model.failure(class, &format!("its metadata {wrong}"))
            }
            Err(error) => unanswered(&self.model.name, error),
        };
        if input.get("inputs").is_some_and(Value::is_array) { Ok(None) } else { Err(failed) }
    }

    fn request(
        &self,
        request: hyper::http::request::Builder,
        url: &str,
        route: &str,
        body: Bytes,
    ) -> Result<Request<Bytes>, Failure> {
        let request = request.uri(format!("{url}{}{route}", self.options.path)).body(body);
        request.map_err(|error| {
            let what = format!("the request cannot be made: {error}");
            self.model.failure(ErrorClass::InvalidModelConfig, &what)
        })
    }

    async fn read(&self, answer: &Response, run_time: Duration) -> Result<Success, super::Error> {
        let status = answer.status.as_u16();
        let body: Result<Value, _> = content::json(&answer.headers, &answer.body).await;
        if let Some(class) = ErrorClass::of_http_status(status) {
            let body = body.unwrap_or_default();
            let error = body.get("error").and_then(Value::as_str);
            let said = excerpt(error.map_or(&answer.body, str::as_bytes));
            let failure = self.model.failure(class, &format!("it answered {status}: {said}"));
            return Err(super::Error { failure, cost: self.model.reported_cost(&body) });
        }
        let garbage = |what: &str| self.model.failure(ErrorClass::ProviderError, what);
        let mut body = body.map_err(|error| {
            let said = excerpt(&answer.body);
            garbage(&format!("{}: {said}", unreadable(&error)))
        })?;
        let cost = self.model.reported_cost(&body);
        let output = tensors::outputs(&mut body);
        let output = output.map_err(|what| garbage(&format!("its answer {what}")))?;
        Ok(Success::new(output, Usage { run_time, cost, ..Usage::default() }))
    }
}

impl Runner for OipRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let metadata = self.metadata(&job.input).await?;
            let body = tensors::request(&job.input, metadata.as_deref(), &job.attempt_key);
            let body =
                body.map_err(|what| self.model.failure(ErrorClass::InvalidUserInput, &what))?;
            let body = Bytes::from(body.to_string());
            let request = |url: &str| {
                let request = Request::post(url)
                    .header(CONTENT_TYPE, "application/json")
                    .header("idempotency-key", &job.attempt_key);
                let mut request = self.request(request, url, "/infer", body.clone())?;
                trace_context::pass_on(request.headers_mut(), &job.trace);
                Ok(request)
            };
            let answer =
                self.model.exchange(&self.servers, &self.client, ANSWER_MAX, request).await?;
            self.read(&answer, started.elapsed()).await
        })
    }

    fn health(&self) -> Health {
        self.servers.health()
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            self.servers.probe(|url| self.probe(url)).await;
            let usable = self.servers.usable();
            let is_due = self.known().description.is_due(usable.is_some());
            if let Some(url) = usable.filter(|_| is_due) {
                self.describe(&url).await;
            }
        })
    }

    fn interface(&self) -> Option<Arc<ModelInterface>> {
        self.known().interface.clone()
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
