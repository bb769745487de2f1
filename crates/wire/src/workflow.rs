//! Workflows, their versions and categories.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::definition::Definition;
use super::request::CHECKED_ELSEWHERE;
use super::{ExecutionStatus, Time, pattern};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, WorkflowId};
use orrery_domain::waits_for::WaitsFor;
use orrery_domain::workflow::{
    self, CATEGORIES_MAX, DESCRIPTION_MAX, NAME_MAX, Status, TAG_MAX, TAGS_MAX,
};

/// A workflow with its versions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Workflow<'a> {
    /// The ID of the workflow.
    pub workflow_id: WorkflowId,
    /// The slug, which can replace the ID in paths.
    pub slug: &'a str,
    /// The name of the workflow.
    pub name: &'a str,
    /// The description of the workflow.
    pub description: &'a str,
    /// The slugs of the workflow's categories.
    pub categories: &'a [String],
    /// The tags of the workflow.
    pub tags: &'a [String],
    /// Whether the workflow is locked. A locked workflow can run, but not be changed.
    pub locked: bool,
    /// A flag for clients. The service does not use it.
    pub production: bool,
    /// The version that runs if a trigger does not name a version.
    pub latest_version_id: &'a str,
    /// The status of the workflow.
    pub status: Status,
    /// How often the workflow was triggered.
    pub trigger_count: i64,
    /// When the workflow was created.
    pub created_at: Time,
    /// When the workflow was last changed.
    pub updated_at: Time,
    /// The versions, oldest first.
    pub versions: Vec<Version<'a>>,
}

/// A version of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkflowVersion")]
pub struct Version<'a> {
    /// The ID of the version, unique within the workflow.
    pub version_id: &'a str,
    /// The workflow's slug.
    pub slug: &'a str,
    /// Whether the version is locked. A locked version can run, but not be changed.
    pub locked: bool,
    /// A flag for clients. The service does not use it.
    pub production: bool,
    /// Whether other organizations may run this version. Shared versions are unlisted, but not
    /// private.
    pub allowed_to_share: bool,
    /// How often the version was triggered.
    pub trigger_count: i64,
    /// The status of the version.
    pub status: Status,
    /// Absent in the response to a creation request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Absent in the response to a creation request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// The definition, with credentials masked. Only present when a single version is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<RawValue>>,
}

impl<'a> Workflow<'a> {
    /// Returns the view of a workflow with `triggers` triggers. `by_version` contains the number of
    /// triggers of each version, in the order of the versions.
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
    /// Returns the view of a version with `triggers` triggers, without its definition.
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
    /// The workflows of the page.
    pub workflows: Vec<Workflow<'a>>,
    /// The `offset` for the next page: the requested offset plus the length of this page.
    pub offset: usize,
    /// The number of matching workflows.
    pub total_count: usize,
}

/// The versions of a workflow, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "WorkflowVersionList")]
pub struct Versions<'a> {
    /// The versions, oldest first.
    pub versions: Vec<Version<'a>>,
    /// The number of versions.
    pub total_count: usize,
}

/// A definition to validate.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DefinitionCheckRequest")]
pub struct NewCheck {
    /// Any JSON. The problems of the definition are listed in the response.
    pub definition: Option<Value>,
    /// The workflow whose stored credentials replace `***`.
    pub workflow: Option<String>,
}

/// The problems of a definition.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DefinitionCheck")]
pub struct Check {
    /// Whether the definition has no problems.
    pub valid: bool,
    /// The problems, in the order of the definition.
    pub problems: Vec<FieldError>,
}

/// A problem of a definition.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DefinitionProblem")]
pub struct FieldError {
    /// A JSON pointer into the definition. Empty for the definition as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// The latest execution of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LastRun {
    /// The ID of the workflow.
    pub workflow_id: WorkflowId,
    /// The ID of the execution.
    pub execution_id: ExecutionId,
    /// The status of the execution.
    pub status: ExecutionStatus,
    /// What the execution needs to continue: an event (`event`) or a resume request (`paused`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<WaitsFor>")]
    pub waiting_for: Option<&'static str>,
    /// When the execution was created.
    pub created_at: Time,
    /// The run time in seconds. Null until the execution ends.
    pub run_time: Option<f64>,
    /// The cost in US dollars.
    pub cost: f64,
    /// The number of the workflow's executions.
    pub total: u64,
}

impl LastRun {
    /// Returns the view of the latest of `total` executions.
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

/// The latest executions of workflows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LastRuns {
    /// One entry for each workflow that has run.
    pub runs: Vec<LastRun>,
}

/// A category for workflows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Category<'a> {
    /// The slug of the category, to use in `categories`.
    pub slug: &'a str,
    /// The name of the category.
    pub label: &'a str,
    /// What belongs to the category.
    pub description: &'a str,
    /// Always true: every organization has the same categories.
    pub is_default: bool,
    /// When the category was created.
    pub created_at: Time,
    /// When the category was last changed.
    pub updated_at: Time,
}

/// All categories.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CategoryList")]
pub struct Categories<'a> {
    /// The categories.
    pub categories: Vec<Category<'a>>,
}

/// A workflow to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({
    "name": "Greeting",
    "description": "Greets by name",
    "categories": ["text"],
    "definition": definition(),
}))]
pub struct NewWorkflow {
    /// The name of the workflow, from which its slug is derived.
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The description of the workflow.
    #[schemars(length(max = DESCRIPTION_MAX), transform = pattern::filled)]
    pub description: String,
    #[serde(flatten)]
    pub fields: NewWorkflowFields,
}

/// A workflow to create. On the base host, the description is optional.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewWorkflow", example = json!({
    "name": "Greeting",
    "definition": definition(),
}))]
pub struct NewWorkflowOnBase {
    /// The name of the workflow, from which its slug is derived.
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The description of the workflow.
    #[schemars(length(max = DESCRIPTION_MAX), transform = pattern::filled)]
    pub description: Option<String>,
    #[serde(flatten)]
    pub fields: NewWorkflowFields,
}

/// The fields of a new workflow that both hosts accept.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct NewWorkflowFields {
    /// The slugs of the workflow's categories.
    #[schemars(length(max = CATEGORIES_MAX))]
    pub categories: Option<Vec<String>>,
    /// Tags to filter by, at most three.
    #[schemars(length(max = TAGS_MAX), inner(length(max = TAG_MAX)), transform = pattern::each_name)]
    pub tags: Option<Vec<String>>,
    /// Whether the workflow is locked. A locked workflow can run, but not be changed.
    pub locked: Option<bool>,
    /// A flag for clients. The service does not use it.
    pub production: Option<bool>,
    /// What the workflow does.
    #[schemars(with = "Definition", transform = checked_elsewhere)]
    pub definition: Value,
}

/// Changes to a workflow. Omitted fields keep their value.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"description": "Greets a person by name", "tags": ["demo"]}))]
pub struct WorkflowChange {
    /// The name of the workflow. The slug does not change.
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: Option<String>,
    /// The description of the workflow.
    #[schemars(length(max = DESCRIPTION_MAX), transform = pattern::filled)]
    pub description: Option<String>,
    /// The slugs of the workflow's categories.
    #[schemars(length(max = CATEGORIES_MAX))]
    pub categories: Option<Vec<String>>,
    /// Tags to filter by, at most three.
    #[schemars(length(max = TAGS_MAX), inner(length(max = TAG_MAX)), transform = pattern::each_name)]
    pub tags: Option<Vec<String>>,
    /// Whether the workflow is locked. A locked workflow can run, but not be changed.
    pub locked: Option<bool>,
    /// A flag for clients. The service does not use it.
    pub production: Option<bool>,
    /// An `archived` workflow refuses triggers; `active` accepts them again.
    pub status: Option<Status>,
}

/// A version to create or update.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({"version_id": "v2", "definition": definition()}))]
pub struct NewVersion {
    /// The version's ID. Must match the path.
    pub version_id: String,
    #[serde(flatten)]
    pub fields: NewVersionFields,
}

/// A version to create or update. The base host takes the version's ID from the path.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "NewVersion", example = json!({"definition": definition()}))]
pub struct NewVersionOnBase {
    /// The version's ID. If present, it must match the path.
    pub version_id: Option<String>,
    #[serde(flatten)]
    pub fields: NewVersionFields,
}

/// The fields of a version that both hosts accept.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct NewVersionFields {
    /// What the workflow does.
    #[schemars(with = "Definition", transform = checked_elsewhere)]
    pub definition: Value,
    /// Whether the version is locked. A locked version can run, but not be changed.
    pub locked: Option<bool>,
    /// A flag for clients. The service does not use it.
    pub production: Option<bool>,
    /// Whether other organizations may run this version. If omitted, the setting does not change.
    pub allowed_to_share: Option<bool>,
}

/// Marks a schema as checked by the compiler of definitions, which reports all problems at once.
fn checked_elsewhere(schema: &mut Schema) {
    schema.insert(CHECKED_ELSEWHERE.to_owned(), "definition".into());
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
