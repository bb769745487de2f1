//! Executions in their older shape (`spec/api.md`, "Execution record"; `spec/decisions.md` part 6):
//! trigger, bulk, list, look up.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::Context;
use super::executions::{check_entry, find, submission, version_of};
use super::fields::Fields;
use super::idempotent::{self, Turn};
use crate::domain::execution::Execution;
use crate::domain::ids::{BulkId, ExecutionId, OrganizationId};
use crate::domain::legacy;
use crate::domain::workflow::Workflow;
use crate::engine;
use crate::engine::lists::{Query, TOGETHER_MAX};
use crate::http::{self, Reply, reply};
use crate::idempotency::Answered;
use crate::runtime::fresh;
use crate::storage::Commit;
use crate::workflows::{Compiled, count_trigger};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Ids that one look-up takes.
const LOOK_UP_MAX: usize = 100;
/// Bytes of details that one answer is made from; the records past it leave out what the steps gave.
const DETAILS_MAX: usize = 32 << 20;
/// The version that every model has.
const MODEL_VERSION: &str = "0.0.1";

/// `POST /api/v1/{workflow}/trigger`
pub async fn trigger(mut context: Context) -> Result<Reply, http::Error> {
    let bytes = context.call.body().await?;
    let mut fields = Fields::parse(&bytes)?;
    let parameters = fields.take("parameters").unwrap_or_else(|| json!({}));
    let started = start(&context, &bytes, fields, vec![parameters], Together::One).await?;
    let id = started.first().cloned().unwrap_or_default();
    let message = "Workflow triggered successfully";
    let body = json!({"status": "success", "message": message, "trigger_id": id});
    Ok(reply::json(StatusCode::OK, &body))
}

/// `POST /api/v2/{workflow}/bulk`: all of them start, or none.
pub async fn bulk(mut context: Context) -> Result<Reply, http::Error> {
    let bytes = context.call.body().await?;
    let mut fields = Fields::parse(&bytes)?;
    let Some(Value::Array(parameters)) = fields.take("parameters") else {
        return Err(http::Error::bad_request("parameters must be an array of objects"));
    };
    if !(1..=TOGETHER_MAX).contains(&parameters.len()) {
        let message = format!("parameters must contain 1–{TOGETHER_MAX} items");
        return Err(http::Error::bad_request(message));
    }
    let ids = start(&context, &bytes, fields, parameters, Together::Bulk).await?;
    let message = "Workflows triggered successfully";
    let body = json!({"status": "success", "message": message, "execution_ids": ids});
    Ok(reply::json(StatusCode::OK, &body))
}

/// Whether what starts belongs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Together {
    One,
    Bulk,
}

/// Starts the latest version for each of the parameters; the ids in their order.
async fn start(
    context: &Context,
    bytes: &[u8],
    fields: Fields,
    parameters: Vec<Value>,
    together: Together,
) -> Result<Vec<String>, http::Error> {
    let organization = context.caller()?.organization;
    let services = &context.services;
    let workflow = find(context).await?;
    let version = version_of(&workflow, None)?;
    let route = format!("flows/{together:?}/{}", workflow.id);
    let ticket = match idempotent::turn(context, organization, &route, bytes).await? {
        Turn::Create(ticket) => ticket,
        Turn::Repeat(answered) => return repeated(&answered),
    };
    let webhook = fields.webhook(services)?;
    let compiled = services.workflows.compiled(version.revision).await?;
    let bulk: Option<BulkId> = (together == Together::Bulk).then(fresh);
    let (mut beside, mut submissions, mut ids) = (Commit::new(), Vec::new(), Vec::new());
    for (index, parameters) in parameters.into_iter().enumerate() {
        let inputs = check(&compiled, parameters).await?.map_err(|fault| match together {
            Together::One => http::Error::bad_request(fault),
            Together::Bulk => http::Error::bad_request(format!("parameters[{index}]: {fault}")),
        })?;
        let one = submission(context, &workflow, version, bulk, &inputs, webhook.clone())?;
        count_trigger(&mut beside, workflow.id, &version.id);
        ids.push(one.id.to_string());
        submissions.push(one);
    }
    if let Some(ticket) = &ticket {
        let body = json!(ids);
        let answered = Answered::whole(workflow.id, StatusCode::OK.as_u16(), body);
        ticket.record(&mut beside, answered).map_err(http::Error::internal)?;
    }
    services.engine.submit(submissions, beside).await?;
    Ok(ids)
}

fn repeated(answered: &Answered) -> Result<Vec<String>, http::Error> {
    let answer = answered.answer.as_ref();
    let answer = answer.ok_or_else(|| http::Error::internal("a trigger has no answer"))?;
    serde_json::from_value(answer.body.clone()).map_err(http::Error::internal)
}

/// The inputs that the parameters stand for. Clients of this shape send numbers and flags as text
/// at times.
async fn check(
    compiled: &Compiled,
    mut parameters: Value,
) -> Result<Result<Value, String>, http::Error> {
    let schema = compiled.plan.input_schema();
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    if let Value::Object(given) = &mut parameters {
        for (name, value) in given {
            let kind = properties.and_then(|all| all.get(name)?.get("type")?.as_str());
            let typed = value.as_str().and_then(|text| legacy::typed(text, kind?));
            if let Some(typed) = typed {
                *value = typed;
            }
        }
    }
    check_entry(compiled, parameters).await
}

/// `GET /api/v1/{workflow}/executions?limit=&offset=`
pub async fn list(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let query = &context.call.query;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let offset = query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    let workflow = workflow_of(&context).await?;
    let wanted = Query { bulk: None, standing: None, offset, limit: usize::try_from(limit)? };
    let engine = &context.services.engine;
    let (found, total) = engine.executions_of(organization, workflow.id, wanted).await?;
    let records = records(&context, &workflow, &found).await?;
    let body = json!({
        "status": "success",
        "message": "Executions fetched successfully",
        "total": total,
        "executions": records,
    });
    Ok(reply::json(StatusCode::OK, &body))
}

/// `POST /api/v1/{workflow}/executions/bulk`: those of the ids that there are.
pub async fn look_up(mut context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let fields = Fields::parse(&context.call.body().await?)?;
    let ids = fields.texts("execution_ids", LOOK_UP_MAX)?;
    let ids = ids.ok_or_else(|| http::Error::bad_request("execution_ids is required"))?;
    let workflow = workflow_of(&context).await?;
    let mut found = Vec::new();
    for id in ids.iter().filter_map(|id| id.parse::<ExecutionId>().ok()) {
        found.extend(of_workflow(&context, organization, &workflow, id).await?);
    }
    let records = records(&context, &workflow, &found).await?;
    let body = json!({"status": "success", "total": records.len(), "executions": records});
    Ok(reply::json(StatusCode::OK, &body))
}

/// `GET /api/v1/{workflow}/executions/{execution}`
pub async fn get(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let missing = || http::Error::not_found("execution not found");
    let id = context.call.param("execution").parse().map_err(|_no_id| missing())?;
    let workflow = workflow_of(&context).await?;
    let found = of_workflow(&context, organization, &workflow, id).await?.ok_or_else(missing)?;
    let record = records(&context, &workflow, &[found]).await?.pop().ok_or_else(missing)?;
    Ok(reply::json(StatusCode::OK, &record))
}

/// The workflow of the path, deleted ones included: what they did stays readable.
async fn workflow_of(context: &Context) -> Result<Workflow, http::Error> {
    let organization = context.caller()?.organization;
    let reference = context.call.param("workflow");
    Ok(context.services.workflows.find_any(organization, reference).await?)
}

async fn of_workflow(
    context: &Context,
    organization: OrganizationId,
    workflow: &Workflow,
    id: ExecutionId,
) -> Result<Option<Execution>, http::Error> {
    match context.services.engine.get(organization, id).await {
        Ok(execution) => Ok(Some(execution)
            .filter(|it| it.workflow().is_some_and(|run| run.workflow == workflow.id))),
        Err(engine::Error::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Executions as records; of those past [`DETAILS_MAX`], without what the steps gave.
async fn records(
    context: &Context,
    workflow: &Workflow,
    executions: &[Execution],
) -> Result<Vec<Value>, http::Error> {
    let services = &context.services;
    let (mut records, mut bytes) = (Vec::with_capacity(executions.len()), 0);
    for execution in executions {
        let detail = services.engine.detail(workflow.organization, execution.id).await?;
        bytes += detail.body.get().len();
        let mut body: Value =
            serde_json::from_str(detail.body.get()).map_err(http::Error::internal)?;
        if let Value::Object(fields) = &mut body
            && bytes > DETAILS_MAX
        {
            fields.remove("step_outputs");
            fields.remove("output");
        }
        let key = services.accounts.key(execution.organization, execution.key).await?;
        // Of a key that was deleted nothing is known any more.
        let shown = key.map_or_else(|| "smk_…".to_owned(), |key| format!("{}…", key.prefix));
        records.push(record(workflow, &detail.execution, &body, &shown));
    }
    Ok(records)
}

fn record(workflow: &Workflow, execution: &Execution, detail: &Value, key: &str) -> Value {
    let empty = Map::new();
    let steps = detail.get("step_outputs").and_then(Value::as_object).unwrap_or(&empty);
    let inputs = detail.get("inputs").and_then(Value::as_object).unwrap_or(&empty);
    let parameters: Vec<Value> =
        inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let output = detail.get("output").unwrap_or(&Value::Null);
    let run = execution.workflow();
    let ended = execution.completed_at;
    let updated = ended.or(execution.started_at).unwrap_or(execution.created_at);
    json!({
        "flow_id": workflow.id.to_string(),
        "average_percent": percent(execution, steps),
        "flow_name": workflow.name,
        "organization_id": execution.organization.to_string(),
        "api_key": key,
        "execution_id": execution.id.to_string(),
        "source_ip_address": run.and_then(|run| run.source_ip).map_or_else(String::new, |ip| ip.to_string()),
        "parameters": parameters,
        "step_results": steps.values().map(step_result).collect::<Vec<_>>(),
        "status": word(execution.status.execution_word()),
        "output": as_text(output),
        "output_json": as_object(output),
        "created_at": execution.created_at.to_string(),
        "started_at": execution.started_at.map(|time| time.to_string()),
        "ended_at": ended.map(|time| time.to_string()),
        "updated_at": updated.to_string(),
        "deleted_at": null,
    })
}

/// What clients of this shape wait for.
fn word(status: &str) -> &str {
    if status == "completed" { "succeeded" } else { status }
}

/// How much of it is done: its steps that have ended, of all.
fn percent(execution: &Execution, steps: &Map<String, Value>) -> f64 {
    if execution.status == crate::domain::execution::Status::Success {
        return 100.0;
    }
    let is_done = |step: &&Value| {
        let status = step.get("status").and_then(Value::as_str).unwrap_or_default();
        !["queued", "running"].contains(&status)
    };
    let done = steps.values().filter(is_done).count();
    #[expect(clippy::cast_precision_loss, reason = "a definition has 500 steps at most")]
    let share = done as f64 / steps.len().max(1) as f64;
    (share * 1000.0).round() / 10.0
}

fn step_result(step: &Value) -> Value {
    let field = |name: &str| step.get(name).cloned().unwrap_or_default();
    let model = step.get("metadata").and_then(|metadata| metadata.get("model")?.as_str());
    let output = field("output");
    let name = step.get("name").and_then(Value::as_str);
    json!({
        "step_id": field("step_id"),
        "step_name": name.map_or_else(|| field("step_id"), Value::from),
        "model": model.unwrap_or_default(),
        "version": if model.is_some() { MODEL_VERSION } else { "" },
        "started_at": field("started_at"),
        "ended_at": field("completed_at"),
        "status": word(step.get("status").and_then(Value::as_str).unwrap_or_default()),
        "output": as_text(&output),
        "output_json": as_object(&output),
        "input": as_text(&field("input")),
    })
}

/// A value as JSON text; nothing as no text.
fn as_text(value: &Value) -> String {
    if value.is_null() { String::new() } else { value.to_string() }
}

/// The value itself where it is an object, else one that holds it.
fn as_object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { json!({"output": value}) }
}
