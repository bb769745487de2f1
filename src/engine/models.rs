//! What the engine needs to know of models and workflows: how to run them and within which limits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::domain::attempt::Failure;
use crate::domain::definition::Plan;
use crate::domain::ids::{OrganizationId, RevisionId, WorkflowId};
use crate::domain::model::{OutputType, Pricing};
use crate::domain::retry::Policy;
use crate::domain::secret::Values;
use crate::runners::Runner;
use crate::storage::{self, Commit};

/// A model as the engine sees it. A snapshot: a reload of the catalog changes the next one only.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    pub runner: Arc<dyn Runner>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How many may run at once.
    pub concurrency: usize,
    /// How many may wait.
    pub queue_limit: usize,
    pub output_type: OutputType,
    /// `None`: costs nothing.
    pub pricing: Option<Pricing>,
    /// When a prediction is tried again. The steps of workflows have rules of their own.
    pub retry: Policy,
}

/// A checked input, later.
pub type CheckInputFuture<'a> = Pin<Box<dyn Future<Output = Result<Value, String>> + Send + 'a>>;

/// Where models are looked up, by slug, at the moment of each use.
pub trait Models: Send + Sync {
    /// The model, or `None` when the catalog has it no more.
    fn model(&self, slug: &str) -> Option<ModelSpec>;

    /// The input with the defaults of the model's request schema filled in, or a sentence about the
    /// first violation. Of a model that the catalog does not have, nothing is said here.
    fn check_input(&self, slug: &str, input: Value) -> CheckInputFuture<'_>;
}

/// A plan, later.
pub type PlanFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Arc<Plan>>, storage::Error>> + Send + 'a>>;

/// An owner, later.
pub type OwnerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<OrganizationId>, storage::Error>> + Send + 'a>>;

/// Values of secrets, later.
pub type SecretsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Values, storage::Error>> + Send + 'a>>;

/// What a step asks for that runs another workflow.
#[derive(Debug)]
pub struct Call {
    /// The id or slug of the workflow.
    pub workflow: String,
    /// Absent: its latest version.
    pub version: Option<String>,
    pub inputs: Value,
}

/// A workflow that a step calls, ready to be run.
#[derive(Debug)]
pub struct Callee {
    pub workflow: WorkflowId,
    pub version: String,
    pub revision: RevisionId,
    /// They fit the schema of the version, and its defaults are filled in.
    pub inputs: Value,
    /// What becomes durable with the execution.
    pub beside: Commit,
}

/// A callee or why it cannot be run, later.
pub type CalleeFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Result<Callee, Failure>, storage::Error>> + Send + 'a>>;

/// Where workflows are looked up.
pub trait Plans: Send + Sync {
    /// The plan, or `None` when there is no such revision or it cannot be compiled any more.
    fn plan(&self, revision: RevisionId) -> PlanFuture<'_>;

    /// Whose workflow it is, or `None` when there is no such workflow.
    fn owner(&self, workflow: WorkflowId) -> OwnerFuture<'_>;

    /// What a step of a workflow of this organization calls.
    fn callee(&self, organization: OrganizationId, call: Call) -> CalleeFuture<'_>;

    /// Counts a run of a version into the commit that creates it.
    fn count_run(&self, commit: &mut Commit, workflow: WorkflowId, version: &str);

    /// The present values of those of the named secrets that the organization has.
    fn secrets(&self, organization: OrganizationId, names: Vec<String>) -> SecretsFuture<'_>;
}
