//! The catalog: every model that the service offers, the built-in ones and those of the manifests
//! in the models folder.
//!
//! A reload swaps the whole catalog at once. A file that has become broken leaves the last good
//! version of its model serving; a file that is gone takes its model with it. Nothing here runs a
//! model.

mod detail;
mod manifest;
mod openapi;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use hyper::header::HeaderValue;
use serde_json::Value;

pub use self::detail::{detail, detail_json};
pub use self::manifest::Fault;
use self::manifest::{HttpConfig, Manifest, OpenAiConfig, RunnerConfig};
pub use self::openapi::openapi;
use crate::domain::model::{OutputType, Pricing, Slug};
use crate::engine;
use crate::http::client::Client;
use crate::http::egress::Policy;
use crate::runners::Runner;
use crate::runners::builtin::{self, Bench, Builtin};
use crate::runners::http::{HttpRunner, Settings};
use crate::runners::openai::{self, OpenAiRunner};
use crate::runners::template::Template;
use crate::schema::{Schema, Violation};
use crate::secret::Secret;

/// Manifests that one folder may hold.
const MANIFESTS_MAX: usize = 10_000;
/// Limits of a built-in model that has no manifest.
const BUILTIN_CONCURRENCY: usize = 64;
const BUILTIN_TIMEOUT: Duration = Duration::from_secs(120);
const BUILTIN_QUEUE_LIMIT: usize = 10_000;

/// A model that the service offers.
#[derive(Debug)]
pub struct Model {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    pub output_type: OutputType,
    pub schema: Schema,
    /// `None`: its cost is not known.
    pub pricing: Option<Pricing>,
    pub concurrency: usize,
    pub queue_limit: usize,
    pub timeout: Duration,
    pub runner: Arc<dyn Runner>,
    /// The runner's type, as manifests spell it.
    pub runner_type: &'static str,
    /// See [`detail_json`].
    detail: OnceLock<Bytes>,
}

impl Model {
    /// The input with the schema's defaults filled in, if it fits.
    ///
    /// # Errors
    /// Every violation; never none.
    pub fn check_input(&self, input: Value) -> Result<Value, Vec<Violation>> {
        self.schema.check(input)
    }
}

/// What a reload did.
#[derive(Debug, Default)]
pub struct Report {
    /// Models that are served now.
    pub loaded: usize,
    /// What is wrong with files; their last good versions go on serving, where there are any.
    pub faults: Vec<Fault>,
    /// Slugs that are gone.
    pub removed: Vec<String>,
}

type Models = BTreeMap<Slug, Arc<Model>>;

/// What a manifest's file last held in a good state.
type Files = BTreeMap<PathBuf, Arc<Model>>;

struct Shared {
    folder: PathBuf,
    models: ArcSwap<Models>,
    files: Mutex<Files>,
    bench: Bench,
    client: Client,
}

/// The catalog; clones share it.
#[derive(Clone)]
pub struct Catalog {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Catalog {
    /// The built-in models, which share `bench`, and those of the folder, which need not be there.
    #[must_use]
    pub fn open(folder: PathBuf, bench: Bench) -> (Self, Report) {
        let shared = Shared {
            folder,
            models: ArcSwap::default(),
            files: Mutex::default(),
            bench,
            client: Client::trusted(),
        };
        let catalog = Self { shared: Arc::new(shared) };
        let report = catalog.reload();
        (catalog, report)
    }

    /// The model of that slug.
    #[must_use]
    pub fn get(&self, slug: &str) -> Option<Arc<Model>> {
        let slug: Slug = slug.parse().ok()?;
        self.shared.models.load().get(&slug).cloned()
    }

    /// All models, by slug.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Model>> {
        self.shared.models.load().values().cloned().collect()
    }

    /// How many models there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.models.load().len()
    }

    /// Whether there is none; never so, since some are built in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the folder again. Blocks on the disk.
    #[must_use]
    pub fn reload(&self) -> Report {
        let mut files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = Report::default();
        let mut models: Models = builtin::ALL
            .iter()
            .filter_map(|builtin| builtin_model(builtin, &self.shared.bench))
            .map(|model| (model.slug.clone(), Arc::new(model)))
            .collect();
        let found = self.read_folder(&files, &mut report);
        let mut sources: BTreeMap<Slug, PathBuf> = BTreeMap::new();
        for (path, model) in &found {
            if let Some(first) = sources.get(&model.slug) {
                let message =
                    format!("the slug '{}' stands in {} already", model.slug, first.display());
                report.faults.push(Fault { file: path.clone(), line: 0, column: 0, message });
                continue;
            }
            sources.insert(model.slug.clone(), path.clone());
            models.insert(model.slug.clone(), Arc::clone(model));
        }
        *files = found;
        report.loaded = models.len();
        let before = self.shared.models.swap(Arc::new(models));
        let now = self.shared.models.load();
        report.removed =
            before.keys().filter(|slug| !now.contains_key(*slug)).map(Slug::to_string).collect();
        report
    }

    /// Every manifest in its present or, where that is broken, its last good state.
    fn read_folder(&self, before: &Files, report: &mut Report) -> Files {
        let mut found = Files::new();
        for path in manifests(&self.shared.folder, report) {
            match manifest::read(&path).and_then(|manifest| self.build(manifest, &path)) {
                Ok(model) => {
                    found.insert(path, Arc::new(model));
                }
                Err(fault) => {
                    report.faults.push(fault);
                    if let Some(last_good) = before.get(&path) {
                        found.insert(path, Arc::clone(last_good));
                    }
                }
            }
        }
        found
    }

    fn build(&self, manifest: Manifest, path: &Path) -> Result<Model, Fault> {
        build(manifest, path, &self.shared.bench, &self.shared.client)
    }
}

impl engine::Models for Catalog {
    fn work(&self, slug: &str) -> Option<engine::Work> {
        let model = self.get(slug)?;
        Some(engine::Work {
            runner: Arc::clone(&model.runner),
            timeout: model.timeout,
            concurrency: model.concurrency,
            queue_limit: model.queue_limit,
            output_type: model.output_type,
            pricing: model.pricing.clone(),
        })
    }

    fn check_input(&self, slug: &str, input: Value) -> Result<Value, String> {
        let Some(model) = self.get(slug) else { return Ok(input) };
        model.check_input(input).map_err(|violations| {
            violations.into_iter().next().map_or_else(String::new, |violation| violation.message)
        })
    }
}

/// Checks one manifest as a reload would, without serving it.
///
/// # Errors
/// The first [`Fault`] of the file.
pub fn check(path: &Path) -> Result<Slug, Fault> {
    let (bench, client) = (Bench::new(Policy::default(), None), Client::trusted());
    build(manifest::read(path)?, path, &bench, &client).map(|model| model.slug)
}

/// The manifests of a folder, by name. A folder that is not there holds none.
fn manifests(folder: &Path, report: &mut Report) -> Vec<PathBuf> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            let (file, message) = (folder.to_path_buf(), error.to_string());
            report.faults.push(Fault { file, line: 0, column: 0, message });
            return Vec::new();
        }
    };
    let is_manifest = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_manifest)
        .take(MANIFESTS_MAX)
        .collect();
    paths.sort();
    paths
}

fn build(manifest: Manifest, path: &Path, bench: &Bench, client: &Client) -> Result<Model, Fault> {
    let fault = |message| Fault { file: path.to_path_buf(), line: 0, column: 0, message };
    let (runner, runner_type): (Arc<dyn Runner>, _) = match &manifest.runner {
        RunnerConfig::Builtin { name } => {
            let builtin = builtin::find(name).ok_or_else(|| {
                let known: Vec<_> = builtin::ALL.iter().map(|builtin| builtin.slug).collect();
                fault(format!("runner: there is no built-in '{name}', only {}", known.join(", ")))
            })?;
            (bench.runner(builtin), "builtin")
        }
        RunnerConfig::Http(http) => {
            let settings = http_settings(&manifest, http).map_err(fault)?;
            (Arc::new(HttpRunner::new(settings, client.clone())), "http")
        }
        RunnerConfig::OpenAi(config) => {
            let settings = openai_settings(&manifest, config).map_err(fault)?;
            (Arc::new(OpenAiRunner::new(settings, client.clone())), "openai")
        }
    };
    Ok(Model {
        slug: manifest.slug,
        title: manifest.title,
        description: manifest.description,
        output_type: manifest.output_type,
        schema: manifest.schema,
        pricing: manifest.pricing,
        concurrency: manifest.concurrency,
        queue_limit: manifest.queue_limit,
        timeout: manifest.timeout,
        runner,
        runner_type,
        detail: OnceLock::new(),
    })
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

/// A built-in model as it stands without a manifest. `None` never: their slugs and schemas are
/// checked by a test.
fn builtin_model(builtin: &'static Builtin, bench: &Bench) -> Option<Model> {
    Some(Model {
        slug: builtin.slug.parse().ok()?,
        title: builtin.title.to_owned(),
        description: builtin.description.to_owned(),
        output_type: builtin.output_type,
        schema: Schema::compile(&(builtin.schema)()).ok()?,
        pricing: None,
        concurrency: BUILTIN_CONCURRENCY,
        queue_limit: BUILTIN_QUEUE_LIMIT,
        timeout: BUILTIN_TIMEOUT,
        runner: bench.runner(builtin),
        runner_type: "builtin",
        detail: OnceLock::new(),
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
