//! The engine's view of models and workflows: how to run them, and their limits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use orrery_domain::attempt::Failure;
use orrery_domain::definition::Plan;
use orrery_domain::ids::{OrganizationId, RevisionId, WorkflowId};
use orrery_domain::model::{Cache, OutputType, Pricing};
use orrery_domain::retry::Policy;
use orrery_domain::secret::Values;
use orrery_runners::Runner;
use orrery_storage::{self as storage, Commit};

/// The engine's view of a model, as a snapshot: when the catalog is reloaded, only later lookups
/// see the change.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    pub runner: Arc<dyn Runner>,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Maximum number of running calls.
    pub concurrency: usize,
    /// Maximum number of queued calls.
    pub queue_limit: usize,
    pub output_type: OutputType,
    /// The price; `None` if the model is free.
    pub pricing: Option<Pricing>,
    /// Retry policy of predictions. Workflow steps have their own retry policies.
    pub retry: Policy,
    /// The result cache; `None` if results are not cached.
    pub cache: Option<Cache>,
}

/// A future that resolves to a validated input, or to an error message.
pub type CheckInputFuture<'a> = Pin<Box<dyn Future<Output = Result<Value, String>> + Send + 'a>>;

/// Looks up models by slug. The engine looks up a model each time it uses the model.
pub trait Models: Send + Sync {
    /// Returns the model, or `None` if it is no longer in the catalog.
    fn model(&self, slug: &str) -> Option<ModelSpec>;

    /// Fills in the defaults of the model's request schema, or returns an error message about the
    /// first violation. The input of an unknown model is not validated.
    fn check_input(&self, slug: &str, input: Value) -> CheckInputFuture<'_>;
}

/// A future that resolves to a plan.
pub type PlanFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Arc<Plan>>, storage::Error>> + Send + 'a>>;

/// A future that resolves to the owner of a workflow.
pub type OwnerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<OrganizationId>, storage::Error>> + Send + 'a>>;

/// A future that resolves to secret values.
pub type SecretsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Values, storage::Error>> + Send + 'a>>;

/// A step's call to another workflow.
#[derive(Debug)]
pub struct Call {
    /// The id or slug of the workflow.
    pub workflow: String,
    /// The version's id; `None` means the latest version.
    pub version: Option<String>,
    pub inputs: Value,
}

/// A called workflow, ready to run.
#[derive(Debug)]
pub struct Callee {
    pub workflow: WorkflowId,
    pub version: String,
    pub revision: RevisionId,
    /// The inputs, validated against the version's schema, with defaults filled in.
    pub inputs: Value,
    /// Writes to include in the commit that creates the execution.
    pub beside: Commit,
}

/// A future that resolves to a callee, or to the error that prevents the callee from running.
pub type CalleeFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Result<Callee, Failure>, storage::Error>> + Send + 'a>>;

/// Looks up workflows.
pub trait Plans: Send + Sync {
    /// Returns the plan, or `None` if there is no such revision or it no longer compiles.
    fn plan(&self, revision: RevisionId) -> PlanFuture<'_>;

    /// Returns the organization that owns the workflow, or `None` if there is no such workflow.
    fn owner(&self, workflow: WorkflowId) -> OwnerFuture<'_>;

    /// Resolves the workflow that a step of `organization` calls.
    fn callee(&self, organization: OrganizationId, call: Call) -> CalleeFuture<'_>;

    /// Counts a run of a version in the commit that creates the run.
    fn count_run(&self, commit: &mut Commit, workflow: WorkflowId, version: &str);

    /// Returns the current values of the named secrets, omitting secrets that the organization does
    /// not have.
    fn secrets(&self, organization: OrganizationId, names: Vec<String>) -> SecretsFuture<'_>;
}
