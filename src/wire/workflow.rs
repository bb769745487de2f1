//! Workflows, their versions and categories.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{ExecutionStatus, Time};
use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, WorkflowId};
use crate::domain::waits_for::WaitsFor;
use crate::domain::workflow::{self, CATEGORIES_MAX, DESCRIPTION_MAX, NAME_MAX, Status, TAGS_MAX};

/// A workflow over all of its versions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Workflow<'a> {
    pub workflow_id: WorkflowId,
    /// Names it in paths, as its id does.
    pub slug: &'a str,
    pub name: &'a str,
    pub description: &'a str,
    /// Slugs of categories.
    pub categories: &'a [String],
    pub tags: &'a [String],
    pub locked: bool,
    pub production: bool,
    /// The version that runs when none is named.
    pub latest_version_id: &'a str,
    pub status: Status,
    pub trigger_count: i64,
    pub created_at: Time,
    pub updated_at: Time,
    /// Oldest first.
    pub versions: Vec<Version<'a>>,
}

/// A version of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkflowVersion")]
pub struct Version<'a> {
    pub version_id: &'a str,
    /// The workflow's slug.
    pub slug: &'a str,
    pub locked: bool,
    pub production: bool,
    /// Whether other organizations may run it: unlisted, not private.
    pub allowed_to_share: bool,
    pub trigger_count: i64,
    pub status: Status,
    /// Absent in the answer to a create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Absent in the answer to a create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// The steps, credentials masked; where one version is shown alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<RawValue>>,
}

impl<'a> Workflow<'a> {
    /// The view of a workflow that was triggered `triggers` times, its versions as often as
    /// `by_version` says in their order.
    #[must_use]
    pub fn of(workflow: &'a workflow::Workflow, triggers: i64, by_version: &[i64]) -> Self {
        let counts = by_version.iter().copied().chain(std::iter::repeat(0));
        let versions = workflow.versions.iter().zip(counts);
        Self {
            workflow_id: workflow.id,
            slug: &workflow.slug,
            name: &workflow.name,
            description: &workflow.description,
            categories: &workflow.categories,
            tags: &workflow.tags,
            locked: workflow.locked,
            production: workflow.production,
            latest_version_id: &workflow.latest,
            status: workflow.status,
            trigger_count: triggers,
            created_at: workflow.created_at.into(),
            updated_at: workflow.updated_at.into(),
            versions: versions
                .map(|(version, count)| Version::of(workflow, version, count))
                .collect(),
        }
    }
}

impl<'a> Version<'a> {
    /// The view of a version that was triggered `triggers` times, without its definition.
    #[must_use]
    pub fn of(
        workflow: &'a workflow::Workflow,
        version: &'a workflow::Version,
        triggers: i64,
    ) -> Self {
        Self {
            version_id: &version.id,
            slug: &workflow.slug,
            locked: version.locked,
            production: version.production,
            allowed_to_share: version.allowed_to_share,
            trigger_count: triggers,
            status: version.status,
            created_at: Some(version.created_at.into()),
            updated_at: Some(version.updated_at.into()),
            definition: None,
        }
    }
}

/// A page of workflows.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkflowList")]
pub struct List<'a> {
    pub workflows: Vec<Workflow<'a>>,
    /// The `offset` of the next page: the requested offset plus the length of this page.
    pub offset: usize,
    pub total_count: usize,
}

/// The versions of a workflow, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkflowVersionList")]
pub struct Versions<'a> {
    pub versions: Vec<Version<'a>>,
    pub total_count: usize,
}

/// A definition to be checked.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "DefinitionCheckRequest")]
pub struct NewCheck {
    /// Any JSON; what is wrong with it is in the answer.
    pub definition: Option<Value>,
    /// The workflow whose stored credentials `***` means.
    pub workflow: Option<String>,
}

/// What is wrong with a definition.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DefinitionCheck")]
pub struct Check {
    pub valid: bool,
    /// In the order of the definition.
    pub problems: Vec<FieldError>,
}

/// One thing that is wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DefinitionProblem")]
pub struct FieldError {
    /// Where in the definition, as a JSON pointer; empty: the definition itself.
    pub path: String,
    pub message: String,
}

/// The newest execution of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LastRun {
    pub workflow_id: WorkflowId,
    pub execution_id: ExecutionId,
    pub status: ExecutionStatus,
    /// `event` or `paused`: what it waits for that somebody has to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<&'static str>,
    pub created_at: Time,
    /// Seconds; null while it has not ended.
    pub run_time: Option<f64>,
    /// US dollars.
    pub cost: f64,
    /// How many executions the workflow has.
    pub total: u64,
}

impl LastRun {
    /// The view of the newest of `total` executions.
    #[must_use]
    pub fn of(workflow: WorkflowId, execution: &Execution, total: u64) -> Self {
        Self {
            workflow_id: workflow,
            execution_id: execution.id,
            status: execution.status.into(),
            waiting_for: execution.waits_for().map(WaitsFor::as_str),
            created_at: execution.created_at.into(),
            run_time: execution.run_time().map(|time| time.as_secs_f64()),
            cost: execution.cost.dollars(),
            total,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct LastRuns {
    pub runs: Vec<LastRun>,
}

/// A category of workflows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Category<'a> {
    pub slug: &'a str,
    pub label: &'a str,
    pub description: &'a str,
    pub is_default: bool,
    pub created_at: Time,
    pub updated_at: Time,
}

/// All categories.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CategoryList")]
pub struct Categories<'a> {
    pub categories: Vec<Category<'a>>,
}

/// A workflow to be made.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({
    "name": "Greeting",
    "description": "Greets by name",
    "categories": ["text"],
    "definition": definition(),
}))]
pub struct NewWorkflow {
    #[schemars(length(min = 1, max = DESCRIPTION_MAX))]
    pub description: String,
    #[schemars(flatten)]
    pub fields: NewWorkflowFields,
}

/// A workflow to be made; the base host does not require a description.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "NewWorkflow", example = json!({
    "name": "Greeting",
    "definition": definition(),
}))]
pub struct NewWorkflowOnBase {
    #[schemars(length(min = 1, max = DESCRIPTION_MAX))]
    pub description: Option<String>,
    #[schemars(flatten)]
    pub fields: NewWorkflowFields,
}

/// What both hosts take of a workflow to be made.
#[derive(Debug, JsonSchema)]
pub struct NewWorkflowFields {
    #[schemars(length(min = 1, max = NAME_MAX))]
    pub name: String,
    /// Slugs of categories.
    #[schemars(length(max = CATEGORIES_MAX))]
    pub categories: Option<Vec<String>>,
    #[schemars(length(max = TAGS_MAX))]
    pub tags: Option<Vec<String>>,
    pub locked: Option<bool>,
    pub production: Option<bool>,
    pub definition: Definition,
}

/// Changes of a workflow; what is absent stays.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"description": "Greets a person by name", "tags": ["demo"]}))]
pub struct WorkflowChange {
    #[schemars(length(min = 1, max = NAME_MAX))]
    pub name: Option<String>,
    #[schemars(length(min = 1, max = DESCRIPTION_MAX))]
    pub description: Option<String>,
    /// Slugs of categories.
    #[schemars(length(max = CATEGORIES_MAX))]
    pub categories: Option<Vec<String>>,
    #[schemars(length(max = TAGS_MAX))]
    pub tags: Option<Vec<String>>,
    pub locked: Option<bool>,
    pub production: Option<bool>,
    pub status: Option<Status>,
}

/// A version to be made or changed.
#[derive(Debug, JsonSchema)]
#[schemars(example = json!({"version_id": "v2", "definition": definition()}))]
pub struct NewVersion {
    /// The one in the path.
    pub version_id: String,
    #[schemars(flatten)]
    pub fields: NewVersionFields,
}

/// A version to be made or changed; the base host takes its id from the path.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "NewVersion", example = json!({"definition": definition()}))]
pub struct NewVersionOnBase {
    /// If present, the one in the path.
    pub version_id: Option<String>,
    #[schemars(flatten)]
    pub fields: NewVersionFields,
}

/// What both hosts take of a version to be made or changed.
#[derive(Debug, JsonSchema)]
pub struct NewVersionFields {
    pub definition: Definition,
    pub locked: Option<bool>,
    pub production: Option<bool>,
    /// Whether other organizations may run it; as before where it is absent.
    pub allowed_to_share: Option<bool>,
}

/// What a workflow does.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "WorkflowDefinition")]
pub struct Definition {
    /// Steps that begin as soon as what they refer to has ended.
    #[schemars(length(min = 1))]
    pub steps: Vec<Map<String, Value>>,
    /// The JSON Schema of the inputs.
    pub input_schema: Option<Map<String, Value>>,
    /// `output_mapping`, and whatever else belongs to the definition.
    pub metadata: Option<Map<String, Value>>,
    pub version: Option<Value>,
}

fn definition() -> Value {
    json!({
        "steps": [{
            "step_id": "greet",
            "type": "model",
            "model": "text-template",
            "params": {"template": "Hello {{inputs.name}}!"},
        }],
        "input_schema": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}},
        },
    })
}
