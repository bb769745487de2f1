//! Builds a model from a manifest: its runner, the runner's dependencies, and its limits.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Model;
use super::manifest::Manifest;
use orrery_domain::model::OutputType;
use orrery_domain::retry::Policy;
use orrery_runners::ModelInterface;
use orrery_runners::builtin::{self, Builtin, BuiltinContext};
use orrery_runners::options::{self, Dependencies};
use orrery_schema::{self as schema, Schema};

/// Limits of a built-in model without a manifest.
const BUILTIN_TIMEOUT: Duration = Duration::from_secs(120);
const BUILTIN_QUEUE_LIMIT: usize = 10_000;

/// Builds a model from its manifest without starting any process.
///
/// # Errors
/// Fails if the request schema is invalid.
pub(crate) fn build(
    manifest: &Manifest,
    dependencies: &Dependencies,
) -> Result<Model, schema::Error> {
    let options = Arc::clone(&manifest.runner.options);
    let runner = options.runner(
        options::Model {
            name: manifest.slug.to_string(),
            concurrency: manifest.concurrency,
            timeout: manifest.timeout,
            cost_report: manifest.cost_report.clone(),
            gives_files: manifest.output_type.is_some_and(OutputType::is_artefact),
        },
        dependencies,
    );
    let interface = runner.interface();
    Ok(Model {
        slug: manifest.slug.clone(),
        title: manifest.title.clone(),
        description: manifest.description.clone(),
        output_type: output_type(manifest, interface.as_deref()),
        schema: schema(manifest, interface.as_deref())?,
        pricing: manifest.pricing.clone(),
        concurrency: manifest.concurrency,
        queue_limit: manifest.queue_limit,
        timeout: manifest.timeout,
        retry: manifest.retry.clone(),
        cache: manifest.cache,
        runner,
        runner_type: manifest.runner.type_name,
        interface,
        detail: OnceLock::new(),
        version_id: OnceLock::new(),
    })
}

/// Returns the operator's output type, or else the type that the model reports, or else the type that
/// the runner's options determine, or else `object`.
fn output_type(manifest: &Manifest, interface: Option<&ModelInterface>) -> OutputType {
    let described = interface.map(|interface| interface.output_type);
    let determined = || manifest.runner.options.output_type();
    manifest.output_type.or(described).or_else(determined).unwrap_or(OutputType::Object)
}

/// Returns the operator's schema, or else the schema that the model reports, or else a schema for
/// any object.
fn schema(
    manifest: &Manifest,
    interface: Option<&ModelInterface>,
) -> Result<Arc<Schema>, schema::Error> {
    let described = interface.map(|interface| &interface.schema);
    match manifest.schema.as_ref().or(described) {
        Some(schema) => Ok(Arc::clone(schema)),
        None => Schema::compile(&serde_json::json!({"type": "object"})).map(Arc::new),
    }
}

impl Model {
    /// Returns a copy of this model with the given interface, which its runner reports.
    pub(super) fn with_interface(
        &self,
        manifest: &Manifest,
        interface: Arc<ModelInterface>,
    ) -> Self {
        let schema = schema(manifest, Some(&interface));
        Self {
            slug: self.slug.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            output_type: output_type(manifest, Some(&interface)),
            schema: schema.unwrap_or_else(|_unchanged| Arc::clone(&self.schema)),
            pricing: self.pricing.clone(),
            concurrency: self.concurrency,
            queue_limit: self.queue_limit,
            timeout: self.timeout,
            retry: self.retry.clone(),
            cache: self.cache,
            runner: Arc::clone(&self.runner),
            runner_type: self.runner_type,
            interface: Some(interface),
            detail: OnceLock::new(),
            version_id: OnceLock::new(),
        }
    }
}

/// Builds a built-in model that has no manifest. Never returns `None`: a test validates the slugs
/// and schemas.
pub(crate) fn builtin_model(builtin: &'static Builtin, context: &BuiltinContext) -> Option<Model> {
    Some(Model {
        slug: builtin.slug.parse().ok()?,
        title: builtin.title.to_owned(),
        description: builtin.description.to_owned(),
        output_type: builtin.output_type,
        schema: Schema::compile(&(builtin.schema)()).ok().map(Arc::new)?,
        pricing: None,
        concurrency: builtin::CONCURRENCY,
        queue_limit: BUILTIN_QUEUE_LIMIT,
        timeout: BUILTIN_TIMEOUT,
        retry: Policy::once(),
        cache: None,
        runner: context.runner(builtin),
        runner_type: builtin::TYPE.name,
        interface: None,
        detail: OnceLock::new(),
        version_id: OnceLock::new(),
    })
}
