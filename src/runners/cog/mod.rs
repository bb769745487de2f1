//! The runner `cog`: a container that Cog has built, by its HTTP API.
//!
//! A run is a `PUT` with an id of its own, so that one that is asked for again after a crash is not
//! run beside itself. What the model takes and gives is read from the container. Cog has a number of
//! places and refuses what is beyond them: a run waits for one. Nothing that has begun is repeated
//! here.

mod interface;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http::{class_of, excerpt};
use super::options::{self, Dependencies, Model, Type, base_url};
use super::{Health, Job, Maintenance, ModelInterface, Run, Runner, Success};
use crate::config::reader::Section;
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::model::Usage;
use crate::domain::money::Usd;
use crate::http::client::{Client, Limits, Overflow, Response};
use crate::runtime::{self, Tasks};
use crate::schema;

/// The largest answer, in bytes: files come as `data:` URIs within it.
pub const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// How long the container may take to say how it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is asked while all is well.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How often its OpenAPI document is read again.
const FACE_EVERY: Duration = Duration::from_secs(60);
/// The pauses between two looks for a place: the first, and the longest.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(500);

/// What manifests say of a runner of this type.
pub const TYPE: Type =
    Type { name: "cog", read: |section, _folder| Some(Arc::new(Options::read(section)?)) };

/// How one model is asked.
#[derive(Debug, PartialEq)]
struct Options {
    /// Without a slash at its end.
    url: String,
}

impl Options {
    fn read(section: &mut Section<'_>) -> Option<Self> {
        Some(Self { url: section.required("url", base_url)? })
    }
}

impl options::Options for Options {
    fn is_self_describing(&self) -> bool {
        true
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let tasks = dependencies.guard.tasks.clone();
        Arc::new(CogRunner::new(self, model, dependencies.client.clone(), tasks))
    }
}

/// The runner of one model.
#[derive(Debug)]
struct CogRunner {
    options: Arc<Options>,
    model: Model,
    client: Client,
    tasks: Tasks,
    known: Mutex<Known>,
}

/// What is known of the container.
#[derive(Debug)]
struct Known {
    health: Health,
    interface: Option<Arc<ModelInterface>>,
    asked: Option<Instant>,
    /// When its document was last read.
    read: Option<Instant>,
}

impl CogRunner {
    /// `tasks` tell the container of cancels.
    const fn new(options: Arc<Options>, model: Model, client: Client, tasks: Tasks) -> Self {
        let known = Known { health: Health::Starting, interface: None, asked: None, read: None };
        Self { options, model, client, tasks, known: Mutex::new(known) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        Failure::new(class, format!("the model '{}': {what}", self.model.name))
    }

    /// Asks until there is a place, and gives the answer of the run.
    async fn ask(&self, id: &str, job: &Job) -> Result<Response, Failure> {
        let body = Bytes::from(json!({"id": id, "input": *job.input}).to_string());
        let limits = Limits {
            total: self.model.timeout,
            answer_bytes: ANSWER_MAX,
            overflow: Overflow::Fail,
        };
        let mut pause = LOOK_FIRST;
        loop {
            let request = Request::builder()
                .method(Method::PUT)
                .uri(format!("{}/predictions/{id}", self.options.url))
                .header(CONTENT_TYPE, "application/json")
                .body(body.clone());
            let request = request.map_err(|error| {
                let what = format!("the request cannot be made: {error}");
                self.failure(ErrorClass::InvalidModelConfig, &what)
            })?;
            let answer = self.client.send_when_able(request, &limits).await;
            let answer =
                answer.map_err(|error| self.failure(class_of(&error), &error.to_string()))?;
            // 202: this very run is under way, from before a crash. 409: every place is taken.
            // 503: it starts.
            let may_wait = match answer.status.as_u16() {
                202 | 409 => true,
                503 => !job.may_fall_back && self.is_starting().await,
                _ => false,
            };
            if !may_wait {
                return Ok(answer);
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LOOK_MAX);
        }
    }

    async fn is_starting(&self) -> bool {
        self.look().await;
        self.known().health == Health::Starting
    }

    fn read(
        &self,
        answer: &Response,
        job: &Job,
        waited: Duration,
    ) -> Result<Success, super::Error> {
        let status = answer.status.as_u16();
        if let Some(class) = ErrorClass::of_http_status(status) {
            let what = format!("it answered {status}: {}", excerpt(&answer.body));
            return Err(self.failure(class, &what).into());
        }
        let body: Value = serde_json::from_slice(&answer.body).map_err(|_garbage| {
            let what = format!("gave an answer that is not valid JSON: {}", excerpt(&answer.body));
            self.failure(ErrorClass::ProviderError, &what)
        })?;
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        job.progress.log(text("logs"));
        let metric = |name: &str| body.get("metrics")?.get(name);
        let count = |name: &str| metric(name).and_then(Value::as_u64);
        let seconds = metric("predict_time").and_then(Value::as_f64);
        let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let cost = body.pointer(&self.model.cost_report).and_then(Value::as_f64);
        let cost = cost.and_then(Usd::from_dollars).filter(|cost| *cost >= Usd::ZERO);
        let usage = Usage {
            run_time: seconds.unwrap_or(waited),
            input_tokens: count("input_token_count"),
            output_tokens: count("output_token_count"),
            cost,
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
        Err(super::Error { failure: self.failure(ErrorClass::ProviderError, &what), cost })
    }

    async fn get(&self, path: &str) -> Result<Response, String> {
        let limits =
            Limits { total: PROBE_TIMEOUT, answer_bytes: ANSWER_MAX, overflow: Overflow::Fail };
        let request = Request::get(format!("{}{path}", self.options.url)).body(Bytes::new());
        let request = request.map_err(|error| error.to_string())?;
        self.client.send(request, &limits).await.map_err(|error| error.to_string())
    }

    /// Asks the container how it is.
    async fn look(&self) {
        let health = match self.get("/health-check").await {
            Err(error) => Health::Failing(format!("its container does not answer: {error}")),
            Ok(answer) => health_of(&answer.body),
        };
        let mut known = self.known();
        if known.health != health {
            let (state, reason) = match &health {
                Health::Starting => ("starting", None),
                Health::Good => ("ok", None),
                Health::Failing(reason) => ("failing", Some(reason.as_str())),
            };
            tracing::info!(model = %self.model.name, state, reason, "a Cog container has changed");
        }
        known.asked = Some(runtime::monotonic_now());
        known.health = health;
    }

    /// Reads what the container says of its model.
    async fn read_face(&self) {
        let found = match self.get("/openapi.json").await {
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
        known.read = Some(runtime::monotonic_now());
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
            let cancel = CancelOnDrop { runner: self, id: &id, is_armed: true };
            let answer = self.ask(&id, &job).await?;
            cancel.disarm();
            self.read(&answer, &job, started.elapsed())
        })
    }

    fn health(&self) -> Health {
        self.known().health.clone()
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            let (is_due, was_good) = {
                let known = self.known();
                let is_good = known.health == Health::Good;
                let asked = known.asked.filter(|asked| is_good && asked.elapsed() < PROBE_EVERY);
                (asked.is_none(), is_good)
            };
            if is_due {
                self.look().await;
            }
            let wants_face = {
                let known = self.known();
                let is_fresh = known.read.is_some_and(|read| read.elapsed() < FACE_EVERY);
                known.health == Health::Good && !(was_good && is_fresh)
            };
            if wants_face {
                self.read_face().await;
            }
        })
    }

    fn interface(&self) -> Option<Arc<ModelInterface>> {
        self.known().interface.clone()
    }
}

/// Tells the container that nobody waits for a run any more.
struct CancelOnDrop<'a> {
    runner: &'a CogRunner,
    id: &'a str,
    is_armed: bool,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_armed || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let url = format!("{}/predictions/{}/cancel", self.runner.options.url, self.id);
        let client = self.runner.client.clone();
        // Older versions go on when the connection closes.
        self.runner.tasks.spawn(async move {
            let limits =
                Limits { total: PROBE_TIMEOUT, answer_bytes: 4096, overflow: Overflow::Truncate };
            if let Ok(request) = Request::post(url).body(Bytes::new()) {
                let _it_has_ended_or_is_gone = client.send(request, &limits).await;
            }
        });
    }
}

/// An id that a path may contain, one for each attempt.
fn id_of(attempt_key: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    attempt_key.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
}

fn health_of(body: &[u8]) -> Health {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body.get("status").and_then(Value::as_str) {
        Some("READY" | "BUSY") => Health::Good,
        Some("STARTING") => Health::Starting,
        Some("SETUP_FAILED") => {
            Health::Failing("its setup failed: the container's log says why".to_owned())
        }
        Some(other) => Health::Failing(format!("its container says {}", excerpt(other.as_bytes()))),
        None => Health::Failing("its container does not report its health".to_owned()),
    }
}

#[cfg(test)]
mod tests;
