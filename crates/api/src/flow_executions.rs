//! Executions in the legacy format (`docs/spec/legacy.md`, "Execution record"): trigger, bulk
//! trigger, list, look up.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::Context;
use super::body;
use super::doc::{Doc, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::inputs::check_entry;
use super::triggers::{find, refuse_archived, submission, version_of};
use orrery_domain::execution::{Execution, TOGETHER_MAX};
use orrery_domain::ids::{BulkId, ExecutionId, OrganizationId};
use orrery_domain::legacy;
use orrery_domain::workflow::Workflow;
use orrery_engine as engine;
use orrery_engine::query::lists::Query;
use orrery_http::request::{parse, parse_value};
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::execution::Steps;
use orrery_wire::legacy::{
    BulkTrigger, Bulked, ExecutionList, LookUp, LookedUp, Record, Trigger, Triggered,
};
use orrery_wire::request::{self, Mismatch};
use orrery_workflows::{Compiled, count_trigger};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Maximum bytes of details from which one response is built. Records beyond the limit have no step
/// outputs.
const DETAILS_MAX: usize = 32 << 20;

const UNPAID: ResponseDoc = ResponseDoc::error(402, "Insufficient balance");
const NO_WORKFLOW: ResponseDoc = ResponseDoc::error(404, "Workflow not found");
const CONFLICT: ResponseDoc = ResponseDoc::error(
    409,
    "The workflow is archived, or a request with this Idempotency-Key is still in progress",
);

pub(crate) const TRIGGER: Doc = Doc {
    request: Some(RequestDoc::optional_json::<Trigger>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<Triggered<'static>>(200, "The execution was accepted and is durable"),
        UNPAID,
        NO_WORKFLOW,
        CONFLICT,
    ],
    description: "Starts an execution of the workflow's latest version and returns its ID as \
                  `trigger_id`; the execution is durable before the response is sent. The inputs \
                  are validated against the declared inputs. Send an `Idempotency-Key` to retry \
                  safely.",
    ..Doc::new("executions", "trigger_workflow", "Trigger a workflow")
};

/// `POST /api/v1/{workflow}/trigger`
pub(crate) async fn trigger(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let started = start(&context, &bytes, Together::One).await?;
    let id = started.first().cloned().unwrap_or_default();
    let message = "Workflow triggered successfully";
    let body = Triggered { status: "success", message, trigger_id: &id };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const BULK: Doc = Doc {
    request: Some(RequestDoc::json::<BulkTrigger>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<Bulked<'static>>(200, "The executions were accepted and are durable"),
        UNPAID,
        NO_WORKFLOW,
        CONFLICT,
    ],
    description: "Starts one execution for each of 1 to 100 sets of parameters. If one set is \
                  invalid, no execution starts. The response lists the IDs in the order of the \
                  request. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new("executions", "trigger_workflow_in_bulk", "Trigger a workflow for many inputs")
};

pub(crate) const BULK_ALIAS: Doc = Doc {
    id: "trigger_workflow_in_bulk_alias",
    summary: "Trigger a workflow for many inputs, like `POST /api/v2/{workflow}/bulk`",
    description: "The same as `POST /api/v2/{workflow}/bulk`, under an earlier path.",
    ..BULK
};

/// `POST /api/v2/{workflow}/bulk`: starts either all executions or none of them.
pub(crate) async fn bulk(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let ids = start(&context, &bytes, Together::Bulk).await?;
    let message = "Workflows triggered successfully";
    let body = Bulked { status: "success", message, execution_ids: &ids };
    Ok(response::json(StatusCode::OK, &body))
}

/// Parses the body of a single trigger or a bulk trigger as a bulk trigger.
fn read(bytes: &[u8], together: Together) -> Result<BulkTrigger, crate::Error> {
    if together == Together::One {
        let Trigger { parameters, webhook_url, webhook_secret } = parse(bytes)?;
        let parameters = vec![parameters.unwrap_or_default()];
        return Ok(BulkTrigger { parameters, webhook_url, webhook_secret });
    }
    // The error message about the number of items is part of the specification.
    request::read(parse_value(bytes)?).map_err(|mismatch: Mismatch| {
        if mismatch.path == "parameters" && mismatch.message != "must be an array of objects" {
            let message = format!("parameters must contain 1–{TOGETHER_MAX} items");
            return crate::Error::bad_request(message);
        }
        mismatch.into()
    })
}

/// Whether the started executions belong to a bulk trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Together {
    One,
    Bulk,
}

/// Starts an execution of the latest version for each entry of the parameters, and returns the IDs
/// in the same order.
async fn start(
    context: &Context,
    bytes: &[u8],
    together: Together,
) -> Result<Vec<String>, crate::Error> {
    let organization = context.caller()?.organization;
    let services = &context.services;
    let workflow = find(context).await?;
    let version = version_of(&workflow, None)?;
    let route = format!("flows/{together:?}/{}", workflow.id);
    let claim = match idempotency_key::begin(context, organization, &route, bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let ids = idempotency_key::kept_body(answered)?;
            return serde_json::from_value(ids).map_err(crate::Error::internal);
        }
    };
    refuse_archived(&workflow)?;
    let BulkTrigger { parameters, webhook_url: url, webhook_secret: secret } =
        read(bytes, together)?;
    body::warn_of_secret_alone(&context.request, url.as_ref(), secret.as_ref());
    let webhook = body::webhook(url, secret, None, services)?;
    let compiled = services.workflows.compiled(version.revision).await?;
    let bulk: Option<BulkId> = (together == Together::Bulk).then(new_id);
    let mut submissions = Vec::new();
    let mut ids = Vec::new();
    for (index, parameters) in parameters.into_iter().enumerate() {
        let inputs = check(&compiled, parameters).await?.map_err(|fault| match together {
            Together::One => crate::Error::bad_request(fault),
            Together::Bulk => crate::Error::bad_request(format!("parameters[{index}]: {fault}")),
        })?;
        let one = submission(context, &workflow, version, bulk, &inputs, webhook.clone())?;
        ids.push(one.id.to_string());
        submissions.push(one);
    }
    let answered = StoredResponse::whole(workflow.id, StatusCode::OK.as_u16(), json!(ids));
    let mut commit = claim.commit(answered)?;
    for _each in &submissions {
        count_trigger(&mut commit, workflow.id, &version.id);
    }
    services.engine.submit(submissions, commit).await?;
    Ok(ids)
}

/// Validates a set of parameters and returns the inputs. Strings are converted to numbers and
/// booleans where the schema requires it, because some legacy clients send only strings.
async fn check(
    compiled: &Compiled,
    mut parameters: Map<String, Value>,
) -> Result<Result<Value, String>, crate::Error> {
    let schema = compiled.plan.input_schema();
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    for (name, value) in &mut parameters {
        let kind = properties.and_then(|all| all.get(name)?.get("type")?.as_str());
        let typed = value.as_str().and_then(|text| legacy::typed(text, kind?));
        if let Some(typed) = typed {
            *value = typed;
        }
    }
    check_entry(compiled, Value::Object(parameters)).await
}

pub(crate) const LIST: Doc = Doc {
    query: &[Param::limit(LIMIT_MAX, LIMIT_DEFAULT), OFFSET],
    responses: &[
        ResponseDoc::json::<ExecutionList<'static>>(200, "The executions, newest first"),
        NO_WORKFLOW,
    ],
    description: "Returns a page of the workflow's executions in the legacy format, newest first. \
                  `total` counts all executions.",
    ..Doc::new("executions", "list_executions", "List the executions of a workflow")
};

/// `GET /api/v1/{workflow}/executions?limit=&offset=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let query = &context.request.query;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let offset = query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    let workflow = workflow_of(&context).await?;
    let wanted = Query { bulk: None, standing: None, offset, limit: usize::try_from(limit)? };
    let engine = &context.services.engine;
    let (found, total) = engine.executions_of(organization, workflow.id, wanted).await?;
    let records = records(&context, &workflow, &found).await?;
    let body = ExecutionList {
        status: "success",
        message: "Executions fetched successfully",
        total,
        executions: records,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const LOOK_UP: Doc = Doc {
    request: Some(RequestDoc::json::<LookUp>()),
    responses: &[
        ResponseDoc::json::<LookedUp<'static>>(200, "The executions that exist"),
        NO_WORKFLOW,
    ],
    description: "Returns the records of the given executions, at most 100 IDs. IDs that do not \
                  belong to an execution of this workflow are left out.",
    ..Doc::new("executions", "look_up_executions", "Look up executions by ID")
};

/// `POST /api/v1/{workflow}/executions/bulk`: returns the executions that exist.
pub(crate) async fn look_up(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let LookUp { execution_ids: ids } = context.request.json().await?;
    let ids = body::distinct(ids);
    let workflow = workflow_of(&context).await?;
    let mut found = Vec::new();
    for id in ids.iter().filter_map(|id| id.parse::<ExecutionId>().ok()) {
        found.extend(of_workflow(&context, organization, &workflow, id).await?);
    }
    let executions = records(&context, &workflow, &found).await?;
    let body = LookedUp { status: "success", total: executions.len(), executions };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const GET: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Record<'static>>(200, "The execution"),
        ResponseDoc::error(404, "Workflow or execution not found"),
    ],
    description: "Returns the execution in the legacy format. The final statuses are `succeeded` \
                  and `failed`. `output` is JSON text; `output_json` is the value itself.",
    ..Doc::new("executions", "get_execution", "Get an execution")
};

/// `GET /api/v1/{workflow}/executions/{execution}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let missing = || crate::Error::not_found("execution not found");
    let id = context.request.param("execution").parse().map_err(|_no_id| missing())?;
    let workflow = workflow_of(&context).await?;
    let found = of_workflow(&context, organization, &workflow, id).await?.ok_or_else(missing)?;
    let record = records(&context, &workflow, &[found]).await?.pop().ok_or_else(missing)?;
    Ok(response::json(StatusCode::OK, &record))
}

/// Returns the workflow in the path, even if it is deleted, so that its executions stay readable.
async fn workflow_of(context: &Context) -> Result<Arc<Workflow>, crate::Error> {
    let organization = context.caller()?.organization;
    let reference = context.request.param("workflow");
    Ok(context.services.workflows.find_any(organization, reference).await?)
}

async fn of_workflow(
    context: &Context,
    organization: OrganizationId,
    workflow: &Workflow,
    id: ExecutionId,
) -> Result<Option<Execution>, crate::Error> {
    match context.services.engine.get(organization, id).await {
        Ok(execution) => Ok(Some(execution)
            .filter(|it| it.workflow().is_some_and(|run| run.workflow == workflow.id))),
        Err(engine::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Converts executions to records. Records beyond [`DETAILS_MAX`] have no step outputs.
async fn records<'a>(
    context: &Context,
    workflow: &'a Workflow,
    executions: &[Execution],
) -> Result<Vec<Record<'a>>, crate::Error> {
    let services = &context.services;
    let mut records = Vec::with_capacity(executions.len());
    let mut bytes = 0_usize;
    for execution in executions {
        let detail = services.engine.detail(workflow.organization, execution.id).await?;
        let mut view = detail.view;
        bytes = bytes.saturating_add(view.text_bytes());
        if bytes > DETAILS_MAX {
            view.step_outputs = Steps::default();
            view.output = None;
        }
        let key = services.accounts.key(execution.organization, execution.key).await?;
        // The prefix of a deleted key is no longer stored.
        let shown = key.map_or_else(|| "smk_…".to_owned(), |key| format!("{}…", key.prefix));
        records.push(Record::of(workflow, &detail.execution, &view, shown));
    }
    Ok(records)
}
