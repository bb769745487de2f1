//! Workflows in the legacy format, converted from their definitions.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Time, pattern};
use orrery_domain::ids::{OrganizationId, WorkflowId};
use orrery_domain::legacy::{KEPT, MODEL_TYPE, Shape, names, object, print_of, text};
use orrery_domain::model::VERSION;
use orrery_domain::reference::Root;
use orrery_domain::template::Template;
use orrery_domain::workflow::{self, DESCRIPTION_MAX, NAME_MAX, Status};

/// A workflow in the legacy format.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyWorkflow")]
pub struct Workflow {
    /// A string that the client chose.
    pub workspace_id: String,
    /// The name of the workflow.
    pub name: String,
    /// The description of the workflow.
    pub description: String,
    /// The URL of a picture that the client chose.
    pub thumbnail_url: String,
    /// The inputs of the workflow.
    pub inputs: Vec<Input>,
    /// The outputs of the workflow.
    pub outputs: Vec<Output>,
    /// The steps of the workflow.
    pub steps: Vec<Step>,
    /// The nodes of the editor's graph, as JSON text. Unchanged while the steps match the stored
    /// graph; otherwise, a simple layout of the steps.
    pub nodes_json: String,
    /// The edges of the editor's graph, as JSON text.
    pub edges_json: String,
    /// The dependencies between steps. Only in lists.
    #[serde(skip)]
    pub edges: Vec<Edge>,
}

/// An input of a workflow in the legacy format.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LegacyInput")]
pub struct Input {
    /// The name of the input.
    pub name: String,
    /// The type of the input, such as `string`.
    pub r#type: String,
    /// The default value as text. Empty if there is none.
    pub default_value: String,
}

/// An output of a workflow in the legacy format.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LegacyOutput")]
pub struct Output {
    /// The name of the output.
    pub name: String,
    /// The type of the output, such as `string`.
    pub r#type: String,
    /// A value, or a reference such as `{{step.output}}`.
    pub value: String,
}

/// A step of a workflow in the legacy format.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LegacyStep")]
pub struct Step {
    /// The ID of the step.
    pub id: String,
    /// The name of the step.
    pub name: String,
    /// `1019Model`, or the type of a step that the legacy format does not have.
    pub r#type: String,
    /// The slug of the model. Empty for a step that runs no model.
    pub model_slug: String,
    /// The version of the model. Empty for a step that runs no model.
    pub model_version: String,
    /// The step's parameters. Values may be references to inputs.
    #[schemars(with = "Map<String, Value>")]
    pub params: Value,
}

/// A dependency: one step refers to another, or lists it in `depends_on`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "LegacyEdge")]
pub struct Edge {
    /// The ID of the edge: `source-target`.
    pub id: String,
    /// The step that is referred to.
    pub source: String,
    /// The step that refers to `source`.
    pub target: String,
    /// Always `default`.
    #[schemars(extend("const" = "default"))]
    pub r#type: &'static str,
}

impl Workflow {
    /// Returns the legacy format of a workflow whose latest version has this definition.
    #[must_use]
    pub fn of(workflow: &workflow::Workflow, definition: &Value) -> Self {
        let kept = kept(definition);
        let written = definition.get("steps");
        let steps = steps(definition);
        let is_drawn = written.is_some_and(|steps| text(kept, "drawn_for") == print_of(steps));
        let drawn = |name: &str| {
            let drawing = text(kept, name);
            if is_drawn && !drawing.is_empty() { Some(drawing.to_owned()) } else { None }
        };
        let edges = edges(steps);
        let plain_edges = || json!(edges).to_string();
        Self {
            workspace_id: text(kept, "workspace_id").to_owned(),
            name: workflow.name.clone(),
            description: workflow.description.clone(),
            thumbnail_url: text(kept, "thumbnail_url").to_owned(),
            inputs: inputs(definition, kept),
            outputs: outputs(definition, kept),
            steps: steps.iter().map(|step| Step::of(step, kept)).collect(),
            nodes_json: drawn("nodes_json").unwrap_or_else(|| nodes(steps).to_string()),
            edges_json: drawn("edges_json").unwrap_or_else(plain_edges),
            edges,
        }
    }
}

/// Returns the fields that exist only in the legacy format.
fn kept(definition: &Value) -> Option<&Value> {
    definition.get("metadata")?.get(KEPT)
}

fn steps(definition: &Value) -> &[Value] {
    definition.get("steps").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn inputs(definition: &Value, kept: Option<&Value>) -> Vec<Input> {
    let schema = definition.get("input_schema");
    let types = object(kept, "input_types");
    let input = |(name, property): (&String, &Value)| {
        let word = types.and_then(|types| types.get(name)?.as_str()).unwrap_or_default();
        let kind = property.get("type").and_then(Value::as_str).unwrap_or("string");
        let default_value = match property.get("default") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let word = if word.is_empty() { kind } else { word };
        Input { name: name.clone(), r#type: word.to_owned(), default_value }
    };
    object(schema, "properties").into_iter().flatten().map(input).collect()
}

fn outputs(definition: &Value, kept: Option<&Value>) -> Vec<Output> {
    let types = object(kept, "output_types");
    let output = |(name, value): (&String, &Value)| {
        let word = types.and_then(|types| types.get(name)?.as_str()).unwrap_or("string");
        let value = names::to_legacy(value);
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Output { name: name.clone(), r#type: word.to_owned(), value }
    };
    let mapping = object(definition.get("metadata"), "output_mapping");
    mapping.into_iter().flatten().map(output).collect()
}

impl Step {
    fn of(step: &Value, kept: Option<&Value>) -> Self {
        let id = step_id(step);
        let name = text(Some(step), "name");
        let name = if name.is_empty() { id } else { name };
        let named = |r#type: &str, model_slug: &str, model_version: &str, params: &Value| Self {
            id: id.to_owned(),
            name: name.to_owned(),
            r#type: r#type.to_owned(),
            model_slug: model_slug.to_owned(),
            model_version: model_version.to_owned(),
            params: names::to_legacy(params),
        };
        if text(Some(step), "type") == "model" {
            let version =
                object(kept, "model_versions").and_then(|versions| versions.get(id)?.as_str());
            let version = version.unwrap_or(VERSION);
            let params = step.get("params").cloned().unwrap_or_else(|| json!({}));
            return named(MODEL_TYPE, text(Some(step), "model"), version, &params);
        }
        let mut params = step.as_object().cloned().unwrap_or_default();
        for name in ["step_id", "id", "name", "type"] {
            params.shift_remove(name);
        }
        named(text(Some(step), "type"), "", "", &Value::Object(params))
    }
}

fn step_id(step: &Value) -> &str {
    let id = text(Some(step), "step_id");
    if id.is_empty() { text(Some(step), "id") } else { id }
}

fn nodes(steps: &[Value]) -> Value {
    let node = |step: &Value| {
        let name = text(Some(step), "name");
        let label = if name.is_empty() { step_id(step) } else { name };
        json!({"id": step_id(step), "type": text(Some(step), "type"), "data": {"label": label}})
    };
    steps.iter().map(node).collect()
}

/// Returns an edge for each reference to another step, and for each step in `depends_on`.
fn edges(steps: &[Value]) -> Vec<Edge> {
    let mut edges = Vec::new();
    for step in steps {
        let target = step_id(step);
        let mut sources: HashSet<String> = HashSet::new();
        let waits_for = step.get("depends_on").and_then(Value::as_array).into_iter().flatten();
        sources.extend(waits_for.filter_map(Value::as_str).map(str::to_owned));
        let fields = step.as_object().cloned().unwrap_or_default();
        if let Ok(template) = Template::parse(&Value::Object(fields)) {
            for reference in template.references() {
                if let Root::Name(name) = reference.root() {
                    sources.insert(name.clone());
                }
            }
        }
        for other in steps.iter().map(step_id).filter(|other| *other != target) {
            if sources.contains(other) {
                edges.push(Edge {
                    id: format!("{other}-{target}"),
                    source: other.to_owned(),
                    target: target.to_owned(),
                    r#type: "default",
                });
            }
        }
    }
    edges
}

/// The first category of a workflow.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "LegacyCategory")]
pub struct Category<'a> {
    /// The ID of the category.
    pub id: &'a str,
    /// The name of the category.
    pub name: &'a str,
    /// What belongs to the category.
    pub description: &'a str,
    /// The slug of the category.
    pub slug: &'a str,
    /// Always empty.
    pub icon: &'a str,
    /// Always empty.
    pub thumbnail: &'a str,
}

/// A workflow, as legacy lists show it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyWorkflowListed")]
pub struct Listed<'a> {
    #[serde(flatten)]
    pub workflow: Workflow,
    /// The organization that owns the workflow.
    pub organization_id: OrganizationId,
    /// Always empty: workflows belong to organizations.
    pub user_id: &'a str,
    /// The ID of the workflow.
    pub id: WorkflowId,
    /// The first category of the workflow.
    pub category: Category<'a>,
    /// The status of the workflow.
    pub status: Status,
    /// The dependencies between the steps.
    pub edges: Vec<Edge>,
    /// Always false.
    pub premium: bool,
    /// How often the workflow was triggered.
    pub trigger_count: i64,
    /// The same as `trigger_count`.
    pub popularity: i64,
    /// Always empty.
    pub last_updated_by: &'a str,
    /// When the workflow was created.
    pub created_at: Time,
    /// When the workflow was last changed.
    pub updated_at: Time,
}

impl<'a> Listed<'a> {
    /// Returns the list entry of a workflow whose latest version has this definition, with its
    /// number of triggers.
    #[must_use]
    pub fn of(
        workflow: &workflow::Workflow,
        definition: &Value,
        category: Category<'a>,
        triggers: i64,
    ) -> Self {
        let mut shape = Workflow::of(workflow, definition);
        let edges = std::mem::take(&mut shape.edges);
        Self {
            workflow: shape,
            organization_id: workflow.organization,
            user_id: "",
            id: workflow.id,
            category,
            status: workflow.status,
            edges,
            premium: false,
            trigger_count: triggers,
            popularity: triggers,
            last_updated_by: "",
            created_at: workflow.created_at.into(),
            updated_at: workflow.updated_at.into(),
        }
    }
}

/// A workflow, whose fields are repeated under `workflow`, where some clients read them.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyWorkflowShown")]
pub struct Shown<'a> {
    #[serde(flatten)]
    pub fields: &'a Listed<'a>,
    /// The same fields once more.
    pub workflow: &'a Listed<'a>,
}

/// A page of workflows.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyWorkflowList")]
pub struct List<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// A message for people.
    pub message: &'static str,
    /// The number of the organization's workflows.
    pub total: usize,
    /// The workflows.
    pub workflows: &'a [Listed<'a>],
    /// The same list as `workflows`.
    pub flows: &'a [Listed<'a>],
}

/// The created workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LegacyWorkflowCreated")]
pub struct Created<'a> {
    /// Always `success`.
    #[schemars(extend("const" = "success"))]
    pub status: &'static str,
    /// A message for people.
    pub message: &'static str,
    /// The ID of the workflow.
    pub workflow_id: &'a str,
}

/// A workflow to create or update.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "LegacyNewWorkflow")]
#[schemars(example = json!({
    "name": "Greeting",
    "description": "Greets by name",
    "inputs": [{"name": "name", "type": "string", "default_value": "Ada"}],
    "outputs": [{"name": "greeting", "type": "string", "value": "{{greet.output}}"}],
    "steps": [{
        "id": "greet",
        "name": "Greet",
        "type": "1019Model",
        "model_slug": "text-template",
        "model_version": VERSION,
        "params": {"template": "Hello {{name}}!"},
    }],
}))]
pub struct NewWorkflow {
    /// The name of the workflow.
    #[schemars(length(max = NAME_MAX), transform = pattern::name)]
    pub name: String,
    /// The description of the workflow.
    #[schemars(length(max = DESCRIPTION_MAX))]
    pub description: Option<String>,
    #[serde(flatten)]
    pub shape: Shape,
}
