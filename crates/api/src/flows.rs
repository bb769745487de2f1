//! Workflows in the legacy format (`docs/spec/legacy.md`, "Routes"): the same workflows as on the
//! workflows host, but with different requests and responses.

use hyper::StatusCode;
use serde_json::Value;

use super::Context;
use super::doc::{Doc, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use orrery_domain::ids::WorkflowId;
use orrery_domain::legacy;
use orrery_domain::workflow::{Version, Workflow};
use orrery_http::request::parse_value;
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::legacy::{Category, Created, List, Listed, NewWorkflow, Shown, Workflow as Shape};
use orrery_wire::request;
use orrery_workflows::{self as workflows, CATEGORIES, Filter, New, Put};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;

const NO_WORKFLOW: ResponseDoc = ResponseDoc::error(404, "Workflow not found");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewWorkflow>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<Created<'static>>(200, "The created workflow"),
        ResponseDoc::error(
            409,
            "There are too many workflows, or a request with this Idempotency-Key is still in \
             progress",
        ),
    ],
    description: "Creates a workflow in the legacy format. The workflow is stored with one \
                  version, is compiled like any other workflow, and is also visible on the other \
                  hosts. A step of the type `1019Model` becomes a `model` step. Send an \
                  `Idempotency-Key` to retry safely.",
    ..Doc::new("workflows", "create_workflow", "Create a workflow")
};

/// `POST /api/v1/`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let bytes = context.request.body().await?;
    let claim = match idempotency_key::begin(&context, organization, "flows", &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let workflows = &context.services.workflows;
            if let Ok(workflow) = workflows.find_any(organization, &answered.subject).await {
                super::workflows::warn_of_taken_name(&context, &workflow).await;
            }
            return Ok(created(&answered.subject));
        }
    };
    let NewWorkflow { name, description, shape } = read(&bytes)?;
    let definition = definition(&shape, None)?;
    let services = &context.services;
    let id: WorkflowId = new_id();
    let commit = claim.commit(StoredResponse::created(id))?;
    let new = New {
        name,
        description: description.unwrap_or_default(),
        categories: Vec::new(),
        tags: Vec::new(),
        locked: false,
        production: false,
        definition: Some(definition),
    };
    let workflow =
        services.workflows.by(context.actor()).create(organization, id, new, commit).await?;
    super::workflows::warn_of_taken_name(&context, &workflow).await;
    Ok(created(&id.to_string()))
}

fn created(id: &str) -> Response {
    let message = "Workflow created successfully";
    response::json(StatusCode::OK, &Created { status: "success", message, workflow_id: id })
}

pub(crate) const UPDATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewWorkflow>()),
    responses: &[
        ResponseDoc::json::<Shape>(200, "The updated workflow"),
        ResponseDoc::error(403, "The version or the workflow is locked"),
        NO_WORKFLOW,
        ResponseDoc::error(409, "The workflow was changed concurrently"),
    ],
    description: "Changes the given fields of the workflow and of its latest version, and returns \
                  the workflow. A locked workflow or version returns 403; a concurrent change \
                  returns 409.",
    ..Doc::new("workflows", "update_workflow", "Update a workflow and its latest version")
};

/// `POST /api/v1/{workflow}`: updates the latest version and the workflow's name and description.
pub(crate) async fn update(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let NewWorkflow { name, description, shape } = read(&context.request.body().await?)?;
    let services = &context.services;
    let reference = context.request.param("workflow");
    let workflow = services.workflows.find(organization, reference).await?;
    let latest = latest(&workflow)?;
    if latest.locked {
        return Err(workflows::Error::VersionLocked.into());
    }
    let before = definition_of(&context, latest).await?;
    let put = Put {
        definition: Some(definition(&shape, Some(&before))?),
        locked: latest.locked,
        production: latest.production,
        allowed_to_share: None,
        name: Some(name),
        description: Some(description.unwrap_or_default()),
        replaces: None,
    };
    let changed = services
        .workflows
        .by(context.actor())
        .put_version(organization, reference, &workflow.latest, put)
        .await?;
    let changed_definition = definition_of(&context, self::latest(&changed)?).await?;
    Ok(response::json(StatusCode::OK, &Shape::of(&changed, &changed_definition)))
}

pub(crate) const LIST: Doc = Doc {
    query: &[Param::limit(LIMIT_MAX, LIMIT_DEFAULT), OFFSET],
    responses: &[ResponseDoc::json::<List<'static>>(200, "The workflows, newest first")],
    description: "Returns the organization's workflows in the legacy format, including those that \
                  were created on other hosts. `workflows` and `flows` are the same array.",
    ..Doc::new("workflows", "list_workflows", "List workflows")
};

/// `GET /api/v1/?limit=&offset=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let query = &context.request.query;
    let filter = Filter::newest(
        usize::try_from(query.number("offset", 0..=u64::from(u32::MAX), 0)?)?,
        usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?,
    );
    let (found, total) = context.services.workflows.list(organization, &filter).await?;
    let mut shown = Vec::with_capacity(found.len());
    for workflow in &found {
        shown.push(listed(&context, workflow).await?);
    }
    let body = List {
        status: "success",
        message: "Workflows fetched successfully",
        total,
        workflows: &shown,
        flows: &shown,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Shown<'static>>(200, "The workflow"), NO_WORKFLOW],
    description: "Returns the workflow in the legacy format, both at the top level and as \
                  `workflow`.",
    ..Doc::new("workflows", "get_workflow", "Get a workflow")
};

/// `GET /api/v1/{workflow}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let reference = context.request.param("workflow");
    let workflow = context.services.workflows.find(organization, reference).await?;
    let listed = listed(&context, &workflow).await?;
    let shown = Shown { fields: &listed, workflow: &listed };
    Ok(response::json(StatusCode::OK, &shown))
}

/// Reads a body. The error message about missing steps is part of the specification.
fn read(bytes: &[u8]) -> Result<NewWorkflow, crate::Error> {
    request::read(parse_value(bytes)?).map_err(|mismatch| {
        if mismatch.path == "steps" && mismatch.message == "must not be empty" {
            return crate::Error::bad_request("definition must include at least one step");
        }
        mismatch.into()
    })
}

fn definition(shape: &legacy::Shape, before: Option<&Value>) -> Result<Value, crate::Error> {
    let definition = legacy::definition(shape, before);
    definition.map_err(|error| crate::Error::bad_request(error.to_string()))
}

fn latest(workflow: &Workflow) -> Result<&Version, crate::Error> {
    Ok(workflow.version(&workflow.latest).ok_or(workflows::Error::NoVersion)?)
}

async fn definition_of(context: &Context, version: &Version) -> Result<Value, crate::Error> {
    let text = context.services.workflows.definition(version.revision).await?;
    serde_json::from_str(text.get()).map_err(crate::Error::internal)
}

/// Returns a workflow in the form that lists contain.
async fn listed<'w>(context: &Context, workflow: &'w Workflow) -> Result<Listed<'w>, crate::Error> {
    let definition = definition_of(context, latest(workflow)?).await?;
    let triggers = context.services.workflows.triggers(workflow).await?.total;
    Ok(Listed::of(workflow, &definition, category(workflow), triggers))
}

/// Returns the first category of the workflow, or the general category if the workflow has no
/// category.
fn category(workflow: &Workflow) -> Category<'_> {
    let slug = workflow.categories.first().map_or("general", String::as_str);
    let known = CATEGORIES.into_iter().find(|category| category.slug == slug);
    let (name, description) = known.map_or(("", ""), |known| (known.label, known.description));
    Category { id: slug, name, description, slug, icon: "", thumbnail: "" }
}
