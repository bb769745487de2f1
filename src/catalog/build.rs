//! From a manifest to a model: its runner, with what that needs, and its limits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::HeaderValue;

use super::manifest::{CommandConfig, HttpConfig, Manifest, OpenAiConfig, RunnerConfig};
use super::{Fault, Model};
use crate::domain::model::OutputType;
use crate::http::client::Client;
use crate::http::egress::Policy;
use crate::runners::builtin::{self, Bench, Builtin, Workers};
use crate::runners::cog::{self, CogRunner};
use crate::runners::command::{self, CommandRunner, Guards};
use crate::runners::http::{HttpRunner, Settings};
use crate::runners::openai::{self, OpenAiRunner};
use crate::runners::template::Template;
use crate::runners::watched::Watched;
use crate::runners::{Face, Runner};
use crate::runtime::Tasks;
use crate::schema::Schema;
use crate::secret::Secret;

/// Limits of a built-in model that has no manifest.
const BUILTIN_CONCURRENCY: usize = 64;
const BUILTIN_TIMEOUT: Duration = Duration::from_secs(120);
const BUILTIN_QUEUE_LIMIT: usize = 10_000;

/// What runners are made with.
#[derive(Debug, Clone)]
pub struct Means {
    /// For the built-in models.
    pub bench: Bench,
    /// For the operator's own URLs.
    pub client: Client,
    /// For the operator's own programs.
    pub guards: Guards,
}

impl Means {
    /// For manifests that are only looked at: no program can be started.
    #[must_use]
    pub fn none() -> Self {
        let guards = Guards {
            program: PathBuf::new(),
            work: PathBuf::new(),
            hidden: Vec::new(),
            models: PathBuf::new(),
            groups: None,
            tasks: Tasks::new(),
        };
        let workers = Workers::new(PathBuf::new(), None);
        let bench = Bench::new(Policy::default(), None, workers);
        Self { bench, client: Client::trusted(), guards }
    }
}

/// The model of a manifest. Nothing of it runs yet.
///
/// # Errors
/// What is wrong with the manifest beyond its own text.
pub fn build(manifest: &Manifest, path: &Path, means: &Means) -> Result<Model, Fault> {
    let fault = |message| Fault { file: path.to_path_buf(), line: 0, column: 0, message };
    let (runner, runner_type): (Arc<dyn Runner>, _) = match &manifest.runner {
        RunnerConfig::Builtin { name } => {
            let builtin = builtin::find(name).ok_or_else(|| {
                let known: Vec<_> = builtin::ALL.iter().map(|builtin| builtin.slug).collect();
                fault(format!("runner: there is no built-in '{name}', only {}", known.join(", ")))
            })?;
            (means.bench.runner(builtin), "builtin")
        }
        RunnerConfig::Http(http) => {
            let settings = http_settings(manifest, http).map_err(fault)?;
            (watched(HttpRunner::new(settings, means.client.clone())), "http")
        }
        RunnerConfig::OpenAi(config) => {
            let settings = openai_settings(manifest, config).map_err(fault)?;
            (watched(OpenAiRunner::new(settings, means.client.clone())), "openai")
        }
        RunnerConfig::Cog { url } => {
            let settings = cog::Settings {
                model: manifest.slug.to_string(),
                url: url.clone(),
                cost_report: manifest.cost_report.clone(),
                timeout: manifest.timeout,
            };
            let tasks = means.guards.tasks.clone();
            (Arc::new(CogRunner::new(settings, means.client.clone(), tasks)), "cog")
        }
        RunnerConfig::Command(config) => {
            let settings = command_settings(manifest, config);
            (Arc::new(CommandRunner::new(settings, means.guards.clone())), "command")
        }
    };
    let face = runner.face();
    Ok(Model {
        slug: manifest.slug.clone(),
        title: manifest.title.clone(),
        description: manifest.description.clone(),
        output_type: output_type(manifest, face.as_deref()),
        schema: schema(manifest, face.as_deref()).map_err(fault)?,
        pricing: manifest.pricing.clone(),
        concurrency: manifest.concurrency,
        queue_limit: manifest.queue_limit,
        timeout: manifest.timeout,
        runner,
        runner_type,
        face,
        detail: OnceLock::new(),
    })
}

/// What the operator has written, else what the model says, else an object.
fn output_type(manifest: &Manifest, face: Option<&Face>) -> OutputType {
    let told = face.map(|face| face.output_type);
    manifest.output_type.or(told).unwrap_or(OutputType::Object)
}

/// What the operator has written, else what the model says, else any object.
fn schema(manifest: &Manifest, face: Option<&Face>) -> Result<Arc<Schema>, String> {
    let told = face.map(|face| &face.schema);
    match manifest.schema.as_ref().or(told) {
        Some(schema) => Ok(Arc::clone(schema)),
        None => Schema::compile(&serde_json::json!({"type": "object"}))
            .map(Arc::new)
            .map_err(|error| error.to_string()),
    }
}

fn watched(runner: impl Runner + 'static) -> Arc<dyn Runner> {
    Arc::new(Watched::new(Arc::new(runner)))
}

impl Model {
    /// The same model with what it now says of itself.
    pub(super) fn with_face(&self, manifest: &Manifest, face: Arc<Face>) -> Self {
        let schema = schema(manifest, Some(&face));
        Self {
            slug: self.slug.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            output_type: output_type(manifest, Some(&face)),
            schema: schema.unwrap_or_else(|_unchanged| Arc::clone(&self.schema)),
            pricing: self.pricing.clone(),
            concurrency: self.concurrency,
            queue_limit: self.queue_limit,
            timeout: self.timeout,
            runner: Arc::clone(&self.runner),
            runner_type: self.runner_type,
            face: Some(face),
            detail: OnceLock::new(),
        }
    }
}

fn http_settings(manifest: &Manifest, http: &HttpConfig) -> Result<Settings, String> {
    let body = http.body.as_ref().map(Template::parse).transpose();
    let body = body.map_err(|error| format!("runner: body: {error}"))?;
    let mut headers = Vec::new();
    for (name, secret) in &http.headers {
        let value = HeaderValue::from_str(secret.expose());
        let mut value = value.map_err(|_hidden| format!("runner: header {name} cannot be sent"))?;
        value.set_sensitive(true);
        headers.push((name.clone(), value));
    }
    Ok(Settings {
        model: manifest.slug.to_string(),
        url: http.url.clone(),
        method: http.method.clone(),
        headers,
        body,
        output: http.output.clone(),
        gives_files: manifest.output_type.is_some_and(OutputType::is_artefact),
        cost_report: manifest.cost_report.clone(),
        timeout: manifest.timeout,
    })
}

fn openai_settings(manifest: &Manifest, config: &OpenAiConfig) -> Result<openai::Settings, String> {
    let bearer = |key: &Secret| {
        let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        let mut value = value.map_err(|_hidden| "runner: key cannot be sent".to_owned())?;
        value.set_sensitive(true);
        Ok::<_, String>(value)
    };
    Ok(openai::Settings {
        model: manifest.slug.to_string(),
        url: config.url.clone(),
        upstream: config.model.clone(),
        kind: config.kind,
        authorization: config.key.as_ref().map(bearer).transpose()?,
        timeout: manifest.timeout,
    })
}

fn command_settings(manifest: &Manifest, config: &CommandConfig) -> command::Settings {
    command::Settings {
        model: manifest.slug.to_string(),
        command: config.command.clone(),
        mode: config.mode,
        directory: config.directory.clone(),
        env: config.env.clone(),
        memory_bytes: config.memory_bytes,
        writable: config.writable.clone(),
        concurrency: manifest.concurrency,
        cost_report: manifest.cost_report.clone(),
        gives_files: manifest.output_type.is_some_and(OutputType::is_artefact),
    }
}

/// A built-in model as it stands without a manifest. `None` never: their slugs and schemas are
/// checked by a test.
pub fn builtin_model(builtin: &'static Builtin, bench: &Bench) -> Option<Model> {
    Some(Model {
        slug: builtin.slug.parse().ok()?,
        title: builtin.title.to_owned(),
        description: builtin.description.to_owned(),
        output_type: builtin.output_type,
        schema: Schema::compile(&(builtin.schema)()).ok().map(Arc::new)?,
        pricing: None,
        concurrency: BUILTIN_CONCURRENCY,
        queue_limit: BUILTIN_QUEUE_LIMIT,
        timeout: BUILTIN_TIMEOUT,
        runner: bench.runner(builtin),
        runner_type: "builtin",
        face: None,
        detail: OnceLock::new(),
    })
}
