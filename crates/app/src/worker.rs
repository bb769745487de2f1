//! The models of `orrery worker`: runners without a store, a catalog folder or listeners.

use std::path::PathBuf;

use super::{policy, programs, take_groups};
use orrery_catalog::Catalog;
use orrery_config::Config;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_engine::{self as engine, Models as _};
use orrery_records::files;
use orrery_runners::{Error, Job, Success};
use orrery_runtime::Tasks;

/// Maximum total size of an output's files, which are sent as text.
const FILES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The models that a worker runs.
#[derive(Debug, Clone)]
pub struct WorkerModels(Catalog);

impl WorkerModels {
    /// Opens the models in these manifests. `concurrency`, if given, replaces the value in each
    /// manifest. The models' processes keep their files below `config.data_dir` and are stopped
    /// when `tasks` stops.
    ///
    /// # Errors
    /// Returns all errors in all manifests.
    pub fn open(
        config: &Config,
        paths: &[PathBuf],
        concurrency: Option<usize>,
        tasks: &Tasks,
    ) -> Result<Self, Vec<String>> {
        let guard = programs::guard(config, tasks, take_groups());
        let dependencies = programs::dependencies(config, &policy(config), None, &guard);
        let catalog = Catalog::of_files(paths, concurrency, dependencies);
        let catalog =
            catalog.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let own = catalog.list().into_iter().find(|model| model.runner.pull().is_some());
        if let Some(model) = own {
            return Err(vec![format!(
                "the manifest of the model '{}' has the runner pull, which is for the service: give \
                 the worker a manifest with the runner that runs the model",
                model.slug
            )]);
        }
        catalog.run_maintenance(tasks, || {});
        Ok(Self(catalog))
    }

    /// Returns the slug of each model and its maximum number of concurrent runs.
    #[must_use]
    pub fn list(&self) -> Vec<(String, usize)> {
        let models = self.0.list();
        models.iter().map(|model| (model.slug.to_string(), model.concurrency)).collect()
    }

    /// Runs a job of a model. Dropping the future cancels the run. Files of the output become
    /// `data:` URIs.
    ///
    /// # Errors
    /// Returns the runner's error, or an error if an output file cannot be read.
    pub async fn run(&self, slug: &str, job: Job) -> Result<Success, Error> {
        let Some(spec) = self.0.model(slug) else {
            let message = format!("this worker does not run the model '{slug}'");
            return Err(Failure::new(ErrorClass::InvalidModelConfig, message).into());
        };
        let mut success = engine::call_runner(&spec, slug, job, None, spec.timeout).await?;
        if let Some(folder) = &success.folder {
            let inlined =
                files::inline_artefacts(success.output, folder.path(), FILES_BYTES_MAX).await;
            success.output = inlined.map_err(|error| {
                let message = format!("the model '{slug}': cannot send its output: {error}");
                Failure::new(ErrorClass::ProviderError, message)
            })?;
        }
        Ok(success)
    }
}
