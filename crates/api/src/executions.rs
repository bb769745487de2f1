//! Workflow executions: list, read, cancel, redrive (`docs/spec/workflows.md`, "Execution detail").
//! The workflows host and the equivalent routes on the base host share the handlers; only one field
//! of the list differs.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use serde_json::{Map, Value};

use super::content::names_etag;
use super::doc::{Doc, Kind, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::triggers::{ACCEPTED, replayed};
use super::{Context, Role};
use orrery_domain::execution::{self, Execution};
use orrery_domain::hex::hex;
use orrery_domain::ids::{BulkId, ExecutionId};
use orrery_engine as engine;
use orrery_engine::query::lists::Query;
use orrery_engine::rows::Standing;
use orrery_http::request::parse;
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::{monotonic_now, new_id};
use orrery_wire as wire;
use orrery_wire::execution::{Cancelled, List, Summary};
use orrery_wire::trigger::Accepted;
use orrery_workflows::count_trigger;

/// Default time to wait for an execution to end or change, in seconds.
const TIMEOUT_DEFAULT: u64 = 10;
const TIMEOUT_MAX: u64 = 30;
const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;

const NO_EXECUTION: ResponseDoc = ResponseDoc::error(404, "Execution not found");

/// The values of `status` in the query of a list.
const STANDINGS: [(&str, Standing); 4] = [
    ("running", Standing::Unfinished),
    ("completed", Standing::Completed),
    ("failed", Standing::Failed),
    ("cancelled", Standing::Cancelled),
];

fn statuses() -> Vec<&'static str> {
    STANDINGS.iter().map(|(word, _)| *word).collect()
}

pub(crate) const LIST: Doc = Doc {
    query: &[
        Param::new("bulk_id", Kind::Uuid, "Only executions of this bulk trigger"),
        Param::new(
            "status",
            Kind::OneOf(statuses),
            "Only executions with this status; `running` includes all that have not ended",
        ),
        OFFSET,
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
    ],
    responses: &[
        ResponseDoc::json::<List>(200, "The executions, newest first"),
        ResponseDoc::error(404, "Workflow not found"),
    ],
    description: "Returns a page of the workflow's executions without their inputs and outputs. \
                  `total_count` counts all matches. For the executions of all workflows and \
                  models, use `GET /v2/executions`.",
    ..Doc::new("executions", "list_workflow_executions", "List the executions of a workflow")
};

/// `GET /workflows/{workflow}/executions?bulk_id=&status=&offset=&limit=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let query = &context.request.query;
    let bulk = match query.get("bulk_id") {
        None => None,
        Some(id) => Some(
            id.parse::<BulkId>()
                .map_err(|_no_id| crate::Error::bad_request("invalid bulk_id format"))?,
        ),
    };
    let standing = match query.get("status") {
        None => None,
        Some(status) => {
            let known = STANDINGS.iter().find(|(word, _)| *word == status);
            let (_, standing) = known.ok_or_else(|| {
                let message = format!("status must be one of {}", statuses().join(", "));
                crate::Error::bad_request(message)
            })?;
            Some(*standing)
        }
    };
    let offset = query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let services = &context.services;
    let workflow =
        services.workflows.find_any(organization, context.request.param("workflow")).await?;
    let wanted = Query { bulk, standing, offset, limit: usize::try_from(limit)? };
    let (found, total) = services.engine.executions_of(organization, workflow.id, wanted).await?;
    let is_base = context.role == Role::Base;
    let body = List {
        executions: found.iter().map(|one| Summary::of(one, &workflow)).collect(),
        total_count: total,
        limit: is_base.then_some(limit),
        offset: (!is_base).then_some(offset),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const GET: Doc = Doc {
    query: &[Param::new(
        "timeout",
        Kind::Whole { min: 0, max: TIMEOUT_MAX, default: TIMEOUT_DEFAULT },
        "How many seconds to wait for the execution to end or, with `If-None-Match`, to change",
    )],
    responses: &[
        ResponseDoc {
            headers: &[("ETag", "Changes whenever the execution changes")],
            ..ResponseDoc::json::<wire::execution::Execution>(200, "The execution")
        },
        ResponseDoc::empty(304, "The execution has not changed since `If-None-Match`"),
        NO_EXECUTION,
    ],
    description: "Returns the execution with the input, the output and the attempts of each step. \
                  Until the execution ends, the response is delayed by up to `timeout` seconds (0 \
                  to 30, 10 by default), and then shows the current state. Send the `ETag` in \
                  `If-None-Match` to wait only until the state differs from the state that the \
                  `ETag` identifies; 304 means that nothing has changed.",
    ..Doc::new("executions", "get_execution", "Get an execution")
};

/// `GET /executions/{execution}?timeout=`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let patience = context.request.query.number("timeout", 0..=TIMEOUT_MAX, TIMEOUT_DEFAULT)?;
    let patience = Duration::from_secs(patience);
    let organization = context.caller()?.organization;
    let id = id_of(&context)?;
    let engine = &context.services.engine;
    if !context.request.headers.contains_key(IF_NONE_MATCH) {
        engine.wait(organization, id, patience).await?;
        return tagged(&context.detail(organization, id).await?).map(|(answer, _tag)| answer);
    }
    // With `If-None-Match`, wait until the state differs. No response is held in memory during the
    // wait.
    let until = monotonic_now() + patience;
    let mut is_last_look = false;
    loop {
        let waiter = engine.watch_steps(id);
        let changed = waiter.woken();
        let detail = context.detail(organization, id).await?;
        let is_final = detail.execution.status.is_final();
        let (answer, tag) = tagged(&detail)?;
        if !names_etag(&context.request.headers, &IF_NONE_MATCH, &tag) {
            return Ok(answer);
        }
        drop((detail, answer));
        let left = until.saturating_duration_since(monotonic_now());
        if is_final || is_last_look || left.is_zero() {
            let mut unchanged = response::empty(StatusCode::NOT_MODIFIED);
            unchanged.headers_mut().insert(ETAG, value_of(&tag)?);
            return Ok(unchanged);
        }
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(left) => is_last_look = true,
            () = engine.stopping() => is_last_look = true,
        }
    }
}

/// Returns the detail with its `ETag`, which is half of the SHA-256 of its JSON text.
fn tagged(detail: &engine::Detail) -> Result<(Response, String), crate::Error> {
    let text = serde_json::to_vec(&detail.view).map_err(crate::Error::internal)?;
    let hash = ring::digest::digest(&ring::digest::SHA256, &text);
    let tag = format!("\"{}\"", hex(hash.as_ref().iter().take(16)));
    let mut answer = response::json_text(StatusCode::OK, text.into());
    answer.headers_mut().insert(ETAG, value_of(&tag)?);
    Ok((answer, tag))
}

fn value_of(tag: &str) -> Result<HeaderValue, crate::Error> {
    HeaderValue::try_from(tag).map_err(crate::Error::internal)
}

pub(crate) const CANCEL: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Cancelled>(200, "The execution is cancelled"),
        NO_EXECUTION,
        ResponseDoc::error(409, "The execution has already ended"),
    ],
    description: "Cancels the execution: running steps are stopped, and no further step starts. A \
                  cancelled execution sends no webhook. An execution that has already ended \
                  returns 409, unless executions that it started are still running: they are then \
                  cancelled.",
    ..Doc::new("executions", "cancel_execution", "Cancel an execution")
};

/// `POST /executions/{execution}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let id = id_of(&context)?;
    let engine = &context.services.engine;
    if engine.get(organization, id).await?.workflow().is_none() {
        return Err(missing());
    }
    engine.cancel(organization, id).await?;
    let body = Cancelled { execution_id: id, status: execution::Status::Cancelled.into() };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const REDRIVE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<Map<String, Value>>()),
    is_idempotent: true,
    responses: &[
        ACCEPTED,
        ResponseDoc::error(402, "Insufficient balance"),
        NO_EXECUTION,
        ResponseDoc::error(409, "The execution has not failed"),
        ResponseDoc::error(410, "The outputs of the execution's steps are no longer stored"),
    ],
    description: "Starts a new execution with the same inputs and version that reuses the outputs \
                  of the completed steps and runs the others. The failed execution does not \
                  change; `redriven_from` of the new execution contains the ID of the failed \
                  execution. An execution that has not failed returns 409, and one whose outputs \
                  are no longer stored returns 410. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new(
        "executions",
        "redrive_execution",
        "Redrive a failed execution from the steps that failed",
    )
};

/// `POST /executions/{execution}/redrive`
pub(crate) async fn redrive(mut context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let bytes = context.request.body().await?;
    parse::<Map<String, Value>>(&bytes)?;
    let source = id_of(&context)?;
    let route = format!("redrive/{source}");
    let services = &context.services;
    let organization = caller.organization;
    let claim = match idempotency_key::begin(&context, organization, &route, &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => return replayed(&context, &answered, Some(source)).await,
    };
    let failed = services.engine.get(organization, source).await?;
    let run = failed.workflow().ok_or_else(missing)?;
    let id: ExecutionId = new_id();
    let mut commit = claim.commit(StoredResponse::created(id))?;
    count_trigger(&mut commit, run.workflow, &run.version);
    let origin = context.origin(id);
    let redriving =
        services.engine.redrive(&failed, caller.key, context.source(), origin, id, commit);
    let taken = redriving.await?;
    Ok(redriven(&taken, source))
}

fn redriven(execution: &Execution, source: ExecutionId) -> Response {
    let body = Accepted { redriven_from: Some(source), ..Accepted::from(execution) };
    response::json(StatusCode::ACCEPTED, &body)
}

fn id_of(context: &Context) -> Result<ExecutionId, crate::Error> {
    context.request.param("execution").parse().map_err(|_no_id| missing())
}

fn missing() -> crate::Error {
    crate::Error::not_found("execution not found")
}
