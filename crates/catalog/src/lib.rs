//! The catalog: every model that the service offers, both built-in models and models with a
//! manifest in the models directory.
//!
//! A reload swaps the whole catalog at once. If a file becomes invalid, the last valid version of
//! its model stays in use; deleting a file removes its model. The engine reads the catalog through
//! its trait `engine::Models`.
//!
//! This crate never starts runs; the engine and the chat router do that.

mod build;
mod detail;
mod fixed;
mod maintenance;
mod manifest;
mod openapi;
mod versions;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use serde_json::Value;

use self::build::{build, builtin_model};
pub use self::detail::{detail, detail_json};
use self::manifest::Manifest;
pub use self::manifest::{Error, published_schema as manifest_schema};
pub use self::openapi::openapi;
use orrery_domain::chat::Operation;
use orrery_domain::model::{Cache, OutputType, Pricing, Slug};
use orrery_domain::retry::Policy;
use orrery_domain::spelling;
use orrery_engine as engine;
use orrery_runners::managed::Groups;
pub use orrery_runners::managed::Server as ManagedServer;
use orrery_runners::options::{Dependencies, is_model_file};
pub use orrery_runners::pull;
use orrery_runners::{Health, ModelInterface, Runner, builtin};
use orrery_schema::{Patience, Schema, ValidationError};

/// Maximum number of manifests and model files in the models directory.
const FILES_MAX: usize = 10_000;
/// The extension of manifests.
const MANIFEST: &str = "toml";

/// A model that the service offers.
#[derive(Debug)]
pub struct Model {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    pub output_type: OutputType,
    pub schema: Arc<Schema>,
    /// The price; `None` if the cost is unknown.
    pub pricing: Option<Pricing>,
    pub concurrency: usize,
    pub queue_limit: usize,
    pub timeout: Duration,
    /// Retry policy for predictions.
    pub retry: Policy,
    cache: Option<Cache>,
    pub runner: Arc<dyn Runner>,
    /// The runner's type, as written in manifests.
    pub runner_type: &'static str,
    /// The interface that the model had reported by the time this struct was built.
    interface: Option<Arc<ModelInterface>>,
    /// The rendered detail; see [`detail_json`].
    detail: OnceLock<Bytes>,
    /// See [`Model::version_id`].
    version_id: OnceLock<String>,
}

impl Model {
    /// Returns whether the model is a utility: one of the built-in tools for text, JSON and images.
    #[must_use]
    pub fn is_utility(&self) -> bool {
        self.runner_type == builtin::TYPE.name
    }

    /// Returns the result cache; `None` if there is none, or if the outputs are files.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref().filter(|_| !self.output_type.is_artefact())
    }

    /// Validates the input of a request and fills in the schema's defaults.
    ///
    /// # Errors
    /// Every violation, or the error that prevented the validation.
    pub async fn check_input(&self, input: Value) -> Result<Value, ValidationError> {
        self.schema.check_off_thread(input, Patience::Request).await
    }

    /// Returns the health state: `ok`, `starting` or `failing`.
    #[must_use]
    pub fn health_word(&self) -> &'static str {
        match self.runner.health() {
            Health::Starting => "starting",
            Health::Good | Health::Impaired(_) => "ok",
            Health::Failing(_) => "failing",
        }
    }

    /// Returns the reason if the model does not respond or responds in a degraded way.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        match self.runner.health() {
            Health::Starting | Health::Good => None,
            Health::Impaired(reason) | Health::Failing(reason) => Some(reason),
        }
    }

    /// Returns the failure if the model is failing.
    #[must_use]
    pub fn failing(&self) -> Option<String> {
        match self.runner.health() {
            Health::Starting | Health::Good | Health::Impaired(_) => None,
            Health::Failing(reason) => Some(reason),
        }
    }
}

/// The result of a reload.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of models in the catalog.
    pub loaded: usize,
    /// Errors in files. The last valid version of such a file, if any, stays in use.
    pub errors: Vec<Error>,
    /// Slugs that were removed.
    pub removed: Vec<String>,
    /// Slugs of new or changed manifests.
    pub changed: Vec<String>,
}

impl Report {
    /// Returns a summary of the changes, or `None` if there are none.
    #[must_use]
    pub fn changes(&self) -> Option<String> {
        let parts = [("changed", &self.changed), ("removed", &self.removed)];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, slugs)| !slugs.is_empty())
            .map(|(what, slugs)| format!("{what}: {}", slugs.join(", ")))
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

type Models = BTreeMap<Slug, Arc<Model>>;

/// A model that cannot be loaded and has had no valid version since the service started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    /// The manifest or model file.
    pub file: PathBuf,
    /// The load error; shown to operators only.
    pub reason: String,
}

/// The last valid contents of a manifest file.
#[derive(Debug, Clone)]
struct Loaded {
    manifest: Arc<Manifest>,
    model: Arc<Model>,
}

type Files = BTreeMap<PathBuf, Loaded>;

struct Shared {
    folder: PathBuf,
    /// The error of the last attempt to read the directory, if it failed.
    unreadable: ArcSwapOption<String>,
    models: ArcSwap<Models>,
    unserved: ArcSwap<BTreeMap<Slug, Unserved>>,
    files: Mutex<Files>,
    dependencies: Dependencies,
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
    /// Opens the catalog of the built-in models and the models in the directory. The directory may
    /// be missing.
    #[must_use]
    pub fn open(folder: PathBuf, dependencies: Dependencies) -> (Self, Report) {
        let (models, unserved) = (ArcSwap::default(), ArcSwap::default());
        let files = Mutex::default();
        let unreadable = ArcSwapOption::empty();
        let shared = Shared { folder, unreadable, models, unserved, files, dependencies };
        let catalog = Self { shared: Arc::new(shared) };
        let report = catalog.reload();
        (catalog, report)
    }

    /// Returns the model with this slug.
    #[must_use]
    pub fn get(&self, slug: &str) -> Option<Arc<Model>> {
        let slug: Slug = slug.parse().ok()?;
        self.shared.models.load().get(&slug).cloned()
    }

    /// Returns the load error of the model with this slug, if its file cannot be loaded.
    #[must_use]
    pub fn unserved(&self, slug: &str) -> Option<Unserved> {
        let slug: Slug = slug.parse().ok()?;
        self.shared.unserved.load().get(&slug).cloned()
    }

    /// Returns the slugs of all models that cannot be loaded, with the reasons.
    #[must_use]
    pub fn list_unserved(&self) -> Vec<(Slug, Unserved)> {
        self.shared.unserved.load().iter().map(|(slug, why)| (slug.clone(), why.clone())).collect()
    }

    /// Returns the error of the last attempt to read the directory, if it failed; the models are
    /// then from an earlier read.
    #[must_use]
    pub fn unreadable(&self) -> Option<Arc<String>> {
        self.shared.unreadable.load_full()
    }

    /// Returns the existing slug that is closest to an unknown one.
    #[must_use]
    pub fn nearest(&self, slug: &str) -> Option<String> {
        let models = self.shared.models.load();
        let slugs: Vec<&str> = models.keys().map(Slug::as_str).collect();
        spelling::nearest(slug, &slugs).map(str::to_owned)
    }

    /// Returns the error message for an unknown slug, with the closest existing one.
    #[must_use]
    pub fn missing(&self, slug: &str) -> String {
        let hint = self.nearest(slug).map(|near| format!(": did you mean {near}?"));
        format!("there is no model {slug}{}", hint.unwrap_or_default())
    }

    /// Returns the jobs of all models with the runner `pull`.
    #[must_use]
    pub fn jobs(&self) -> &pull::Jobs {
        &self.shared.dependencies.jobs
    }

    /// Returns all models, sorted by slug.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Model>> {
        self.shared.models.load().values().cloned().collect()
    }

    /// Returns all models in display order: the utilities come last.
    #[must_use]
    pub fn list_for_people(&self) -> Vec<Arc<Model>> {
        let mut all = self.list();
        all.sort_by_key(|model| model.is_utility());
        all
    }

    /// Returns the number of models.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.models.load().len()
    }

    /// Always returns false, since some models are built in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the file that describes a model, or `None` for a built-in model without a manifest.
    #[must_use]
    pub fn source(&self, slug: &str) -> Option<PathBuf> {
        let files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        let found = files.iter().find(|(_, loaded)| loaded.model.slug.as_str() == slug);
        found.map(|(path, _)| path.clone())
    }

    /// Reads the directory again. Blocks on disk I/O.
    #[must_use]
    pub fn reload(&self) -> Report {
        let mut files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = Report::default();
        let mut models: Models = builtin::ALL
            .iter()
            .filter_map(|builtin| builtin_model(builtin, &self.shared.dependencies.builtins))
            .map(|model| (model.slug.clone(), Arc::new(model)))
            .collect();
        let (found, held_back) = self.read_folder(&files, &mut report);
        let was_served =
            |model: &Arc<Model>| files.values().any(|loaded| Arc::ptr_eq(&loaded.model, model));
        let mut sources: BTreeMap<Slug, PathBuf> = BTreeMap::new();
        // Manifests take precedence over model files without a manifest.
        let (bare, written): (Vec<_>, Vec<_>) =
            found.iter().partition(|(path, _)| is_model_file(path));
        for (path, Loaded { model, .. }) in written.into_iter().chain(bare) {
            if let Some(first) = sources.get(&model.slug) {
                let message =
                    format!("the slug '{}' is already defined in {}", model.slug, first.display());
                report.errors.push(Error { file: path.clone(), line: 0, column: 0, message });
                continue;
            }
            sources.insert(model.slug.clone(), path.clone());
            if !was_served(model) {
                report.changed.push(model.slug.to_string());
            }
            models.insert(model.slug.clone(), Arc::clone(model));
        }
        let unserved = unserved(&report.errors, held_back, &found, &models);
        *files = found;
        report.loaded = models.len();
        self.shared.unserved.store(Arc::new(unserved));
        let before = self.shared.models.swap(Arc::new(models));
        let now = self.shared.models.load();
        report.removed =
            before.keys().filter(|slug| !now.contains_key(*slug)).map(Slug::to_string).collect();
        report
    }

    /// Reads every manifest, and retains the last valid state of an invalid one. Also lists the
    /// model files that an invalid manifest blocks. If the directory cannot be read, nothing
    /// changes.
    fn read_folder(&self, before: &Files, report: &mut Report) -> (Files, Vec<HeldBack>) {
        let folder = &self.shared.folder;
        let paths = match paths_in(folder) {
            Ok(paths) => paths,
            // At startup, the directory may be missing.
            Err(error) if error.kind() == ErrorKind::NotFound && before.is_empty() => Vec::new(),
            Err(error) => {
                let message = format!(
                    "the models folder cannot be read: {error}; its models stay as they were"
                );
                self.shared.unreadable.store(Some(Arc::new(message.clone())));
                report.errors.push(Error { file: folder.clone(), line: 0, column: 0, message });
                return (before.clone(), Vec::new());
            }
        };
        self.shared.unreadable.store(None);
        let all = |is_kind: fn(&Path) -> bool| {
            paths.iter().filter(move |path| is_kind(path)).take(FILES_MAX).cloned()
        };
        let mut found = Files::new();
        for path in all(|path| manifest::has_extension(path, MANIFEST)) {
            let loaded = manifest::read(&path).and_then(|manifest| {
                // An unchanged manifest retains its runner and the runner's processes.
                match before.get(&path).filter(|loaded| *loaded.manifest == manifest) {
                    Some(loaded) => Ok(loaded.clone()),
                    None => self.load(manifest, &path),
                }
            });
            match loaded {
                Ok(loaded) => {
                    found.insert(path, loaded);
                }
                Err(errors) => {
                    report.errors.extend(errors);
                    if let Some(last_good) = before.get(&path) {
                        found.insert(path, last_good.clone());
                    }
                }
            }
        }
        let held_back = self.add_model_files(all(is_model_file), before, &mut found, report);
        (found, held_back)
    }

    /// Adds the model files that no manifest refers to. Returns the files that an invalid manifest
    /// may refer to.
    fn add_model_files(
        &self,
        paths: impl Iterator<Item = PathBuf>,
        before: &Files,
        found: &mut Files,
        report: &mut Report,
    ) -> Vec<HeldBack> {
        let mut held_back = Vec::new();
        let named: Vec<PathBuf> = found
            .values()
            .filter_map(|loaded| loaded.manifest.runner.options.model_file().map(resolved))
            .collect();
        let is_manifest = |file: &Path| manifest::has_extension(file, MANIFEST);
        let broken = report.errors.iter().map(|error| &error.file);
        let broken: BTreeSet<PathBuf> = broken
            .filter(|file| is_manifest(file) && !found.contains_key(*file))
            .cloned()
            .collect();
        let broken: Vec<(PathBuf, Option<String>)> =
            broken.into_iter().map(|file| (file.clone(), manifest::text_of(&file))).collect();
        for path in paths {
            if named.contains(&resolved(&path)) {
                continue;
            }
            // An invalid manifest may refer to the file and set its price.
            let may_name = |(manifest, text): &&(PathBuf, Option<String>)| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let is_in_text = text.as_ref().is_none_or(|text| text.contains(&*name));
                is_in_text || manifest.file_stem() == path.file_stem()
            };
            if let Some((manifest, _)) = broken.iter().find(may_name)
                && !before.contains_key(&path)
            {
                held_back.push(HeldBack { file: path, manifest: manifest.clone() });
                continue;
            }
            let Some(manifest) = manifest::of_model_file(&path) else {
                let message = "its name contains no valid slug: add a manifest".to_owned();
                report.errors.push(Error { file: path, line: 0, column: 0, message });
                continue;
            };
            if manifest.runner.options.is_part() {
                continue;
            }
            let loaded = match before.get(&path).filter(|loaded| *loaded.manifest == manifest) {
                Some(loaded) => Ok(loaded.clone()),
                None => self.load(manifest, &path),
            };
            match loaded {
                Ok(loaded) => drop(found.insert(path, loaded)),
                Err(errors) => report.errors.extend(errors),
            }
        }
        held_back
    }

    fn load(&self, manifest: Manifest, path: &Path) -> Result<Loaded, Vec<Error>> {
        let model = built(&manifest, path, &self.shared.dependencies)?;
        Ok(Loaded { manifest: Arc::new(manifest), model: Arc::new(model) })
    }

    /// Replaces a model with a copy that has the interface discovered by its runner. Returns
    /// whether the model was still in use.
    fn replace(&self, old: &Arc<Model>, interface: &Arc<ModelInterface>) -> bool {
        let mut files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = files.values_mut().find(|loaded| Arc::ptr_eq(&loaded.model, old));
        let Some(loaded) = loaded else { return false };
        loaded.model = Arc::new(old.with_interface(&loaded.manifest, Arc::clone(interface)));
        let mut models = Models::clone(&self.shared.models.load());
        models.insert(loaded.model.slug.clone(), Arc::clone(&loaded.model));
        self.shared.models.store(Arc::new(models));
        true
    }
}

impl engine::Models for Catalog {
    fn model(&self, slug: &str) -> Option<engine::ModelSpec> {
        let model = self.get(slug)?;
        Some(engine::ModelSpec {
            runner: Arc::clone(&model.runner),
            timeout: model.timeout,
            concurrency: model.concurrency,
            queue_limit: model.queue_limit,
            output_type: model.output_type,
            pricing: model.pricing.clone(),
            retry: model.retry.clone(),
            cache: model.cache().copied(),
        })
    }

    fn check_input(&self, slug: &str, input: Value) -> engine::CheckInputFuture<'_> {
        let model = self.get(slug);
        Box::pin(async move {
            let Some(model) = model else { return Ok(input) };
            let checked = model.schema.check_off_thread(input, Patience::Execution).await;
            checked.map_err(|error| error.to_string())
        })
    }
}

/// A model file that an invalid manifest may refer to.
struct HeldBack {
    file: PathBuf,
    manifest: PathBuf,
}

/// Returns the slugs of files that describe models but cannot be loaded; these slugs still count as
/// local models.
fn unserved(
    errors: &[Error],
    held_back: Vec<HeldBack>,
    found: &Files,
    models: &Models,
) -> BTreeMap<Slug, Unserved> {
    let broken = errors.iter().map(|error| (error.file.clone(), error.to_string()));
    let held_back = held_back.into_iter().map(|HeldBack { file, manifest }| {
        (file, format!("{} is invalid and may refer to this file", manifest.display()))
    });
    let mut unserved = BTreeMap::new();
    for (file, reason) in broken.chain(held_back).filter(|(file, _)| !found.contains_key(file)) {
        let Some(slug) = manifest::slug_meant(&file) else { continue };
        if !models.contains_key(&slug) {
            unserved.entry(slug).or_insert(Unserved { file, reason });
        }
    }
    unserved
}

/// A valid manifest.
#[derive(Debug)]
pub struct Checked {
    pub slug: Slug,
    /// A probable mistake in the manifest, although it is valid.
    pub concern: Option<String>,
}

/// Checks one manifest as a reload would, without adding it to the catalog, and checks that its
/// local dependencies exist. Does not check the model's group if `groups` is `None`.
///
/// # Errors
/// Every [`Error`] of the file.
pub fn check(path: &Path, groups: Option<&Groups>) -> Result<Checked, Vec<Error>> {
    let manifest = manifest::read(path)?;
    if let Some(message) = manifest.runner.options.missing(groups) {
        return Err(vec![Error { file: path.to_path_buf(), line: 0, column: 0, message }]);
    }
    let model = built(&manifest, path, &Dependencies::none())?;
    let concern = manifest.runner.options.concern().or_else(|| useless_rate(&model));
    let concern = concern.map(|concern| format!("{}: {concern}", path.display()));
    Ok(Checked { slug: model.slug, concern })
}

/// Returns what is wrong with a price that the model never charges.
fn useless_rate(model: &Model) -> Option<String> {
    let Some(Pricing::UsageBased { rates, .. }) = &model.pricing else { return None };
    let rates = [
        ("per_audio_minute", rates.per_audio_minute, Operation::Transcriptions),
        ("per_million_characters", rates.per_million_characters, Operation::Speech),
        ("per_image", rates.per_image, Operation::Images),
    ];
    let (name, _, operation) = rates
        .into_iter()
        .find(|(_, rate, operation)| rate.is_some() && model.runner.server(*operation).is_none())?;
    let words = operation.words();
    Some(format!("cost.{name} has no effect, because the model does not serve {words}"))
}

/// Summary of a manifest or model file, used to check settings that name models.
#[derive(Debug)]
pub struct Outline {
    /// The model's slug; for an invalid file, the slug that the model would have.
    pub slug: Slug,
    /// Whether the model serves chat completions; `None` if the file is invalid.
    pub serves_chat: Option<bool>,
}

/// Returns the outline of a file; `None` if the file yields no slug.
#[must_use]
pub fn outline(path: &Path) -> Option<Outline> {
    let slug = manifest::slug_meant(path)?;
    let manifest = match is_model_file(path) {
        true => manifest::of_model_file(path),
        false => manifest::read(path).ok(),
    };
    let model = manifest.and_then(|manifest| built(&manifest, path, &Dependencies::none()).ok());
    let serves_chat = model.map(|model| model.runner.server(Operation::Chat).is_some());
    Some(Outline { slug, serves_chat })
}

fn built(
    manifest: &Manifest,
    path: &Path,
    dependencies: &Dependencies,
) -> Result<Model, Vec<Error>> {
    build(manifest, dependencies).map_err(|error| {
        let file = path.to_path_buf();
        let message = error.to_string();
        vec![Error { file, line: 0, column: 0, message }]
    })
}

/// Returns the path with symbolic links resolved.
fn resolved(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_gone| path.to_path_buf())
}

/// Returns the paths in a directory, sorted by name.
fn paths_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<std::io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
