//! The runner `cog`: runs predictions in containers built with Cog, over their HTTP API.
//!
//! Each run is a `PUT` request with a unique id, so that a request repeated after a crash joins the
//! existing run instead of starting a second one. The model's schemas are read from the container.
//! Cog accepts a limited number of concurrent runs and rejects further ones; a run waits until the
//! container can accept it. Once a run has started, this module never repeats its request. If the
//! model has several containers, a run interrupted by a crash of this service may be repeated in
//! another container.

mod interface;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use serde_json::{Value, json};

use super::endpoints::{
    self, DescriptionAge, EndpointState, Lease, Pool, Readiness, Servers, Standing,
};
use super::http::{excerpt, failure_of, unanswered, unreadable};
use super::options::{self, Dependencies, Model, Type, base_url};
use super::{Health, Job, Maintenance, ModelInterface, Run, Runner, Success, managed};
use orrery_config::reader::Section;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::Usage;
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::{content, trace_context};
use orrery_runtime::{self as runtime, Tasks};
use orrery_schema as schema;

/// Maximum size of a response in bytes, including files as `data:` URIs.
pub const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Timeout of a request to cancel a run.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);
/// Initial and maximum polling interval while a container is busy.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(500);

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "cog", read: |section, folder| Some(Arc::new(Options::read(section, folder)?)) };

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// The containers, whose URLs have no trailing slashes.
    servers: Servers,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let health = managed::health(section);
        Some(Self { servers: Servers::read(section, folder, health, base_url, "")? })
    }
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
        let tasks = dependencies.guard.tasks.clone();
        let check = managed::Check {
            path: "/health-check".to_owned(),
            is_ready: |answer| readiness_of(&answer.body) == Readiness::Ready,
            authorization: None,
            describes_model: true,
        };
        let servers = model.servers(&self.servers, true, true, Some(check), dependencies);
        Arc::new(CogRunner::new(model, dependencies.client.clone(), tasks, servers))
    }
}

/// A runner of one model.
#[derive(Debug)]
struct CogRunner {
    model: Model,
    client: Client,
    tasks: Tasks,
    servers: Pool,
    known: Mutex<Known>,
}

/// The model's interface, as last read.
#[derive(Debug, Default)]
struct Known {
    interface: Option<Arc<ModelInterface>>,
    /// When the interface was last read.
    description: DescriptionAge,
}

impl CogRunner {
    /// Creates a runner; `tasks` runs the requests that cancel runs in the container.
    fn new(model: Model, client: Client, tasks: Tasks, servers: Pool) -> Self {
        Self { model, client, tasks, servers, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats the request until a container accepts it, and returns the response of the run.
    async fn ask(&self, run: &CancelOnDrop<'_>, job: &Job) -> Result<Response, Failure> {
        let id = run.id;
        let body = Bytes::from(json!({"id": id, "input": *job.input}).to_string());
        let limits = Limits {
            total: self.model.timeout,
            answer_bytes: ANSWER_MAX,
            overflow: Overflow::Fail,
        };
        let request = |url: &str| {
            run.is_at(url);
            let request = Request::builder()
                .method(Method::PUT)
                .uri(format!("{url}/predictions/{id}"))
                .header(CONTENT_TYPE, "application/json")
                .body(body.clone());
            let mut request = request.map_err(|error| {
                let what = format!("the request cannot be made: {error}");
                self.model.failure(ErrorClass::InvalidModelConfig, &what)
            })?;
            trace_context::pass_on(request.headers_mut(), &job.trace);
            Ok(request)
        };
        let mut held: Option<Lease> = None;
        let mut pause = LOOK_FIRST;
        loop {
            let (answer, mut lease) = match held.take() {
                None => {
                    let sent = self.servers.send(&self.client, &limits, request).await;
                    sent.map_err(|error| unanswered(&self.model.name, error))?
                }
                Some(lease) => {
                    let request = request(&lease.url())?;
                    let sent = self.client.send_when_able(request, &limits).await;
                    (sent.map_err(|error| failure_of(&self.model.name, &error))?, lease)
                }
            };
            // 202: the run is already in progress in this container, because it was started before
            // a crash. 409: the container is at its concurrency limit. 503: the container is
            // starting.
            match answer.status.as_u16() {
                202 => held = Some(lease),
                409 => lease.note(None),
                503 if !job.may_fall_back && self.is_starting(&lease.url()).await => {}
                _ => {
                    lease.note(None);
                    return Ok(answer);
                }
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LOOK_MAX);
        }
    }

    async fn is_starting(&self, url: &str) -> bool {
        self.servers.probe_now(url, |url| self.probe(url)).await == Standing::Starting
    }

    async fn read(
        &self,
        answer: &Response,
        job: &Job,
        waited: Duration,
    ) -> Result<Success, super::Error> {
        let status = answer.status.as_u16();
        if let Some(class) = ErrorClass::of_http_status(status) {
            let what = format!("it answered {status}: {}", excerpt(&answer.body));
            return Err(self.model.failure(class, &what).into());
        }
        let body: Value = content::json(&answer.headers, &answer.body).await.map_err(|error| {
            let what = format!("{}: {}", unreadable(&error), excerpt(&answer.body));
            self.model.failure(ErrorClass::ProviderError, &what)
        })?;
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        job.progress.log(text("logs"));
        let metric = |name: &str| body.get("metrics")?.get(name);
        let count = |name: &str| metric(name).and_then(Value::as_u64);
        let seconds = metric("predict_time").and_then(Value::as_f64);
        let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let cost = self.model.reported_cost(&body);
        let usage = Usage {
            run_time: seconds.unwrap_or(waited),
            input_tokens: count("input_token_count"),
            output_tokens: count("output_token_count"),
            cost,
            ..Usage::default()
        };
        let what = match text("status") {
            "succeeded" => {
                let output = body.get("output").cloned().unwrap_or_default();
                return Ok(Success::new(output, usage));
            }
            "failed" => format!("it failed: {}", text("error")),
            "canceled" => "its run was cancelled by something other than this service".to_owned(),
            _ => format!("gave an answer without a known status: {}", excerpt(&answer.body)),
        };
        Err(super::Error { failure: self.model.failure(ErrorClass::ProviderError, &what), cost })
    }

    /// Queries the health of a container.
    async fn probe(&self, url: String) -> Readiness {
        let request = Request::get(format!("{url}/health-check"));
        match endpoints::probe(&self.client, request).await {
            Err(error) => Readiness::Unready(format!("its container does not answer: {error}")),
            Ok(answer) => readiness_of(&answer.body),
        }
    }

    /// Reads the model's interface from a container.
    async fn read_face(&self, url: &str) {
        let request = Request::get(format!("{url}/openapi.json"));
        let found = match endpoints::probe(&self.client, request).await {
            Err(error) => Err(format!("cannot be read: {error}")),
            Ok(answer) if answer.status.is_success() => {
                let read = move || {
                    let document = serde_json::from_slice(&answer.body);
                    let document =
                        document.map_err(|error| format!("is not valid JSON: {error}"))?;
                    interface::read(&document)
                };
                let interface = schema::compile(read).await;
                interface.unwrap_or_else(|error| Err(format!("was not read: {error}")))
            }
            Ok(answer) => {
                Err(format!("is not available: the container answered {}", answer.status.as_u16()))
            }
        };
        let mut known = self.known();
        known.description.note();
        match found {
            Ok(interface) if known.interface.as_deref() == Some(&interface) => {}
            Ok(interface) => known.interface = Some(Arc::new(interface)),
            Err(error) => {
                let model = &self.model.name;
                tracing::warn!(%model, "the container's OpenAPI document {error}");
            }
        }
    }
}

impl Runner for CogRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let id = id_of(&job.attempt_key);
            let cancel = CancelOnDrop { runner: self, id: &id, at: Mutex::default() };
            let answer = self.ask(&cancel, &job).await?;
            cancel.disarm();
            self.read(&answer, &job, started.elapsed()).await
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
                self.read_face(&url).await;
            }
        })
    }

    fn endpoints(&self) -> Vec<EndpointState> {
        self.servers.states()
    }

    fn interface(&self) -> Option<Arc<ModelInterface>> {
        self.known().interface.clone()
    }

    fn managed(&self) -> Option<&Arc<managed::Server>> {
        self.servers.server()
    }

    fn diagnostics(&self) -> Option<String> {
        self.servers.server()?.diagnostics()
    }
}

/// Cancels the run in its container when dropped.
struct CancelOnDrop<'a> {
    runner: &'a CogRunner,
    id: &'a str,
    /// The container that received the last request; `None` if there is nothing to cancel.
    at: Mutex<Option<String>>,
}

impl CancelOnDrop<'_> {
    fn is_at(&self, url: &str) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(url.to_owned());
    }

    fn disarm(&self) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(url) = at else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let url = format!("{url}/predictions/{}/cancel", self.id);
        let client = self.runner.client.clone();
        // Cancel explicitly, because older versions of Cog continue a run after the connection is
        // closed.
        self.runner.tasks.spawn(async move {
            let limits =
                Limits { total: CANCEL_TIMEOUT, answer_bytes: 4096, overflow: Overflow::Truncate };
            if let Ok(request) = Request::post(url).body(Bytes::new()) {
                let _it_has_ended_or_is_gone = client.send(request, &limits).await;
            }
        });
    }
}

/// Returns an id that is safe in a URL path and unique per attempt.
fn id_of(attempt_key: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    attempt_key.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
}

fn readiness_of(body: &[u8]) -> Readiness {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body.get("status").and_then(Value::as_str) {
        Some("READY" | "BUSY") => Readiness::Ready,
        Some("STARTING") => Readiness::Starting,
        Some("SETUP_FAILED") => {
            Readiness::Unready("its setup failed: the container's log says why".to_owned())
        }
        Some(other) => {
            Readiness::Unready(format!("its container reports {}", excerpt(other.as_bytes())))
        }
        None => Readiness::Unready("its container does not report its health".to_owned()),
    }
}

#[cfg(test)]
mod tests;
