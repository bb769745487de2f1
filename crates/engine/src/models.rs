//! Models and workflows, as the engine sees them: how to run them, and their limits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use orrery_domain::attempt::Failure;
use orrery_domain::definition::Plan;
use orrery_domain::ids::{OrganizationId, RevisionId, WorkflowId};
use orrery_domain::model::{OutputType, Pricing};
use orrery_domain::retry::Policy;
use orrery_domain::secret::Values;
use orrery_runners::Runner;
use orrery_storage::{self as storage, Commit};

/// A model as the engine sees it. A snapshot: a reload of the catalog affects only later lookups.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    pub runner: Arc<dyn Runner>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Maximum running calls.
    pub concurrency: usize,
    /// Maximum queued calls.
    pub queue_limit: usize,
    pub output_type: OutputType,
    /// `None` if the model is free.
    pub pricing: Option<Pricing>,
    /// Retry policy of predictions. Workflow steps have their own.
    pub retry: Policy,
}

/// A future of a checked input.
pub type CheckInputFuture<'a> = Pin<Box<dyn Future<Output = Result<Value, String>> + Send + 'a>>;

/// Looks up models by slug, at each use.
pub trait Models: Send + Sync {
    /// The model, or `None` if it is no longer in the catalog.
    fn model(&self, slug: &str) -> Option<ModelSpec>;

    /// Fills in the defaults of the model's request schema, or returns a sentence about the first
    /// violation. The input of an unknown model is not checked.
    fn check_input(&self, slug: &str, input: Value) -> CheckInputFuture<'_>;
}

/// A future of a plan.
pub type PlanFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Arc<Plan>>, storage::Error>> + Send + 'a>>;

/// A future of an owner.
pub type OwnerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<OrganizationId>, storage::Error>> + Send + 'a>>;

/// A future of secret values.
pub type SecretsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Values, storage::Error>> + Send + 'a>>;

/// The call of another workflow by a step.
#[derive(Debug)]
pub struct Call {
    /// The id or slug of the workflow.
    pub workflow: String,
    /// `None` means the latest version.
    pub version: Option<String>,
    pub inputs: Value,
}

/// A called workflow, ready to run.
#[derive(Debug)]
pub struct Callee {
    pub workflow: WorkflowId,
    pub version: String,
    pub revision: RevisionId,
    /// Validated against the schema of the version, with defaults filled in.
    pub inputs: Value,
    /// Becomes durable in the same commit as the execution.
    pub beside: Commit,
}

/// A future of a callee, or of the reason why it cannot run.
pub type CalleeFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Result<Callee, Failure>, storage::Error>> + Send + 'a>>;

/// Looks up workflows.
pub trait Plans: Send + Sync {
    /// The plan, or `None` if there is no such revision or it no longer compiles.
    fn plan(&self, revision: RevisionId) -> PlanFuture<'_>;

    /// The organization that owns the workflow, or `None` if there is no such workflow.
    fn owner(&self, workflow: WorkflowId) -> OwnerFuture<'_>;

    /// Resolves the workflow that a step of this organization calls.
    fn callee(&self, organization: OrganizationId, call: Call) -> CalleeFuture<'_>;

    /// Counts a run of a version in the commit that creates it.
    fn count_run(&self, commit: &mut Commit, workflow: WorkflowId, version: &str);

    /// The current values of the named secrets that the organization has.
    fn secrets(&self, organization: OrganizationId, names: Vec<String>) -> SecretsFuture<'_>;
}
