//! The `[runner]` table of a manifest: the runner type, and the options of that type.
//!
//! To add a runner type, add a file with its `Options` and its `TYPE`, a `mod` line, and a line in
//! [`TYPES`]. Options are parsed strictly: unknown keys are rejected.

use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::HeaderValue;
use serde_json::Value;

use super::builtin::{BuiltinContext, Workers};
use super::command::GuardConfig;
use super::endpoints::{Lease, Pool, Registry, Servers, Settings};
use super::llm::Room;
use super::managed::{Check, Groups, Server};
use super::pull::Jobs;
use super::source::Sources;
use super::{Runner, builtin, cog, comfyui, command, http, llm, oip, onnx, openai, pull, whisper};
use orrery_config::reader::{Parsed, Section};
use orrery_config::values::{self, one_of, problem};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::OutputType;
use orrery_domain::money::Usd;
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::egress::Policy;
use orrery_runtime::Tasks;

/// All runner types that a manifest can use.
const TYPES: &[Type] = &[
    builtin::TYPE,
    http::TYPE,
    command::TYPE,
    openai::TYPE,
    cog::TYPE,
    llm::TYPE,
    oip::TYPE,
    onnx::TYPE,
    pull::TYPE,
    comfyui::TYPE,
    whisper::TYPE,
];

/// A runner type.
#[derive(Debug, Clone, Copy)]
pub struct Type {
    /// The type's spelling in manifests.
    pub name: &'static str,
    /// Parses the type's options from the `[runner]` table of a manifest in the given directory.
    pub read: fn(&mut Section<'_>, &Path) -> Option<Arc<dyn Options>>,
}

/// The parsed options of one model's runner.
pub trait Options: Debug + Send + Sync + Comparable {
    /// Returns the default request schema, if the options determine it.
    fn schema(&self) -> Option<Value> {
        None
    }

    /// Returns whether the model itself reports its request schema and its output type.
    fn is_self_describing(&self) -> bool {
        false
    }

    /// Returns the output type, if the options determine it before the model reports it.
    fn output_type(&self) -> Option<OutputType> {
        None
    }

    /// Returns the model file, which is then not listed as a separate model.
    fn model_file(&self) -> Option<&Path> {
        None
    }

    /// Returns whether the model file belongs to another model, so that it is not listed by itself.
    fn is_part(&self) -> bool {
        false
    }

    /// Returns the files that the runner runs as programs; `None` if it starts none of the operator's
    /// programs.
    fn programs(&self) -> Option<Vec<PathBuf>> {
        None
    }

    /// Returns a missing local dependency. Only `orrery check` uses this result: a program may be
    /// installed later, and a model that fails reports the reason itself.
    fn missing(&self, _groups: Option<&Groups>) -> Option<String> {
        None
    }

    /// Returns a probable mistake in options that are valid, for `orrery check`.
    fn concern(&self) -> Option<String> {
        None
    }

    /// Returns the default concurrency; `None` means the general default.
    fn concurrency(&self) -> Option<usize> {
        None
    }

    /// Returns the title in the model file.
    fn title(&self) -> Option<&str> {
        None
    }

    /// Creates the runner of `model` without starting any process.
    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner>;
}

/// The settings of a model in its manifest, independent of its runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The slug, used in messages.
    pub name: String,
    /// Maximum number of concurrent runs.
    pub concurrency: usize,
    /// Timeout of one run.
    pub timeout: Duration,
    /// JSON pointer to the cost in a response.
    pub cost_report: String,
    /// Whether the model's outputs are files.
    pub gives_files: bool,
}

impl Model {
    /// Creates the pool of the model's endpoints. With `is_probed`, remote endpoints are probed; with
    /// `starts_unknown`, they are also probed before their first use. `check` is for a server that
    /// this service starts.
    pub(super) fn servers(
        &self,
        servers: &Servers,
        is_probed: bool,
        starts_unknown: bool,
        check: Option<Check>,
        dependencies: &Dependencies,
    ) -> Pool {
        let Servers { addresses, start } = servers;
        let url = addresses.first().map(|one| one.url.as_str()).unwrap_or_default();
        let start = start.as_ref();
        let server = start.map(|start| {
            Server::new(start.clone(), self.name.clone(), url.to_owned(), check, dependencies)
        });
        let is_remote = server.is_none();
        let settings = Settings {
            model: &self.name,
            addresses,
            patience: self.timeout,
            is_probed: is_probed && is_remote,
            starts_unknown: starts_unknown && is_remote,
            is_strict: false,
            server,
        };
        Pool::new(&settings, &dependencies.endpoints)
    }

    /// Sends the request of a run to one of the model's endpoints and returns the response.
    pub(super) async fn exchange(
        &self,
        servers: &Pool,
        client: &Client,
        answer_bytes: usize,
        request: impl Fn(&str) -> Result<Request<Bytes>, Failure>,
    ) -> Result<Response, Failure> {
        let answer = self.exchange_holding(servers, client, answer_bytes, request).await;
        answer.map(|(answer, _lease)| answer)
    }

    /// Like [`Model::exchange`]; also returns the endpoint's lease, which the caller keeps for as
    /// long as the run uses the endpoint.
    pub(super) async fn exchange_holding(
        &self,
        servers: &Pool,
        client: &Client,
        answer_bytes: usize,
        request: impl Fn(&str) -> Result<Request<Bytes>, Failure>,
    ) -> Result<(Response, Lease), Failure> {
        let limits = Limits { total: self.timeout, answer_bytes, overflow: Overflow::Fail };
        let answer = servers.send(client, &limits, request).await;
        let (answer, mut lease) = answer.map_err(|error| http::unanswered(&self.name, error))?;
        lease.note(None);
        Ok((answer, lease))
    }

    /// Returns the failure of a run. `what` completes a sentence about the model.
    pub(super) fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        Failure::new(class, format!("the model '{}': {what}", self.name))
    }

    /// Returns the cost that a response reports.
    pub(super) fn reported_cost(&self, body: &Value) -> Option<Usd> {
        Self::cost_at(&self.cost_report, body)
    }

    /// Returns the cost to which a JSON pointer refers in a response.
    pub(super) fn cost_at(pointer: &str, body: &Value) -> Option<Usd> {
        let dollars = body.pointer(pointer)?.as_f64()?;
        Usd::from_dollars(dollars).filter(|cost| *cost >= Usd::ZERO)
    }
}

/// Shared dependencies of runners.
#[derive(Debug, Clone)]
pub struct Dependencies {
    /// Used by built-in models.
    pub builtins: BuiltinContext,
    /// Reads the files that inputs refer to.
    pub sources: Sources,
    /// Sends requests to URLs configured by the operator.
    pub client: Client,
    /// Starts the operator's programs and further processes of this binary.
    pub guard: GuardConfig,
    /// The memory budget of local models.
    pub room: Arc<Room>,
    /// The endpoints of remote models, which outlive the runners that use them.
    pub endpoints: Arc<Registry>,
    /// The groups of servers that share memory.
    pub groups: Arc<Groups>,
    /// The jobs of all models with the runner `pull`. Jobs outlive the runners that create them.
    pub jobs: Arc<Jobs>,
}

impl Dependencies {
    /// Creates dependencies for checking manifests: no program can be started.
    #[must_use]
    pub fn none() -> Self {
        let guard = GuardConfig {
            program: PathBuf::new(),
            work: PathBuf::new(),
            hidden: Vec::new(),
            models: PathBuf::new(),
            groups: None,
            tasks: Tasks::new(),
        };
        let workers = Workers::new(PathBuf::new(), None);
        let sources = Sources::new(Policy::default(), None);
        let builtins = BuiltinContext::new(sources.clone(), workers);
        let client = Client::trusted();
        let endpoints = Arc::default();
        let (room, groups, jobs) = (Arc::default(), Arc::default(), Arc::default());
        Self { builtins, sources, client, guard, room, endpoints, groups, jobs }
    }
}

/// The runner configuration of a manifest.
#[derive(Debug, Clone)]
pub struct Config {
    /// The type's spelling in manifests.
    pub type_name: &'static str,
    pub options: Arc<dyn Options>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.options.equals(&*other.options)
    }
}

impl Config {
    /// Returns the runner configuration of a model file without a manifest.
    #[must_use]
    pub fn of_model_file(file: &Path) -> Self {
        let path = file.to_path_buf();
        if whisper::is_model_file(file) {
            let options = Arc::new(whisper::Options::of_file(path));
            return Self { type_name: whisper::TYPE.name, options };
        }
        if has_extension(file, onnx::EXTENSION) {
            let options = Arc::new(onnx::Options::of_file(path));
            return Self { type_name: onnx::TYPE.name, options };
        }
        Self { type_name: llm::TYPE.name, options: Arc::new(llm::Options::of_file(path)) }
    }
}

/// Returns whether a file's name shows that the file is a model that needs no manifest.
#[must_use]
pub fn is_model_file(file: &Path) -> bool {
    ["gguf", onnx::EXTENSION].iter().any(|known| has_extension(file, known))
        || whisper::is_model_file(file)
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

/// Parses the `[runner]` table of a manifest in the directory `folder`; errors are recorded in the
/// section.
pub fn read(section: &mut Section<'_>, folder: &Path) -> Option<Config> {
    let Some(found) = section.required("type", one_of(TYPES, |kind| kind.name)) else {
        // The valid keys depend on the type, which is unknown here.
        section.ignore_others();
        return None;
    };
    let options = (found.read)(section, folder)?;
    Some(Config { type_name: found.name, options })
}

/// Returns the names of all runner types.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|kind| kind.name)
}

/// Compares options of any type.
pub trait Comparable: Any {
    /// Returns whether `other` has the same type and is equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Comparable for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// Builds a header value from `prefix` and a string in which secrets are substituted. The value is
/// marked as sensitive, so that it is never printed.
pub(super) fn secret_header(
    value: &values::Value<'_>,
    prefix: &str,
    folder: &Path,
) -> Parsed<HeaderValue> {
    if value.get_ref().as_str().is_some_and(|text| text.contains("{{")) {
        let message = "references are resolved in `url` and `body` only, not in headers".to_owned();
        return Err(problem(value, message));
    }
    let secret = values::secret(folder)(value)?;
    let header = HeaderValue::from_str(&format!("{prefix}{}", secret.expose()));
    let mut header = header.map_err(|_hidden| {
        problem(value, "a header cannot carry some of its characters".to_owned())
    })?;
    header.set_sensitive(true);
    Ok(header)
}

/// Parses the URL of a server and removes trailing slashes.
pub(super) fn base_url(value: &values::Value<'_>) -> Parsed<String> {
    values::url(value).map(|url| url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
impl Model {
    /// Creates a test model whose runs may take `timeout`.
    pub fn of_test(name: &str, timeout: Duration) -> Self {
        Self {
            name: name.to_owned(),
            concurrency: 1,
            timeout,
            cost_report: "/metrics/cost".to_owned(),
            gives_files: false,
        }
    }
}
