//! Workflow triggers, single and in bulk (`docs/spec/workflows.md`, "Trigger"). The workflows host
//! and the equivalent routes on the base host share the handlers.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::to_raw_value;

use super::Context;
use super::body;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::inputs::{check_entry, check_inputs};
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::{Execution, Work, WorkflowRun};
use orrery_domain::ids::{BulkId, ExecutionId, Id as _, WorkflowId};
use orrery_domain::workflow::{Status, Version, Workflow};
use orrery_engine::{self as engine, Submission};
use orrery_http::request::{parse, parse_value};
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::request;
use orrery_wire::trigger::{
    Accepted, BULK_MAX, Bulk, BulkEntry, BulkTrigger, BulkVersionTrigger, PublicTrigger, Trigger,
    VersionTrigger,
};
use orrery_workflows::{self as workflows, count_trigger};

/// The responses of all triggers.
macro_rules! triggers {
    ($accepted:expr, $missing:literal) => {
        &[
            $accepted,
            ResponseDoc::error(402, "Insufficient balance"),
            ResponseDoc::error(404, $missing),
            ResponseDoc::error(
                409,
                "The workflow is archived, or a request with this Idempotency-Key is still \
                 in progress",
            ),
        ]
    };
}

pub(crate) const ACCEPTED: ResponseDoc =
    ResponseDoc::json::<Accepted>(202, "The execution was accepted and is durable");
const STARTED: ResponseDoc = ResponseDoc::json::<Bulk>(202, "The result for each input");

pub(crate) const TRIGGER: Doc = Doc {
    request: Some(RequestDoc::optional_json::<Trigger>()),
    is_idempotent: true,
    responses: triggers!(ACCEPTED, "Workflow or version not found"),
    description: "Starts an execution of the workflow and returns its ID at once; the execution is \
                  durable before the response is sent. Without `version_id`, the latest version \
                  runs. Inputs that violate the `input_schema` return 400, an archived workflow \
                  returns 409, and a full queue returns 429. Poll the execution, follow its \
                  events, or pass a `webhook_url` to learn the result. Send an `Idempotency-Key` \
                  to retry safely.",
    ..Doc::new("executions", "trigger_workflow", "Trigger a workflow")
};

/// `POST /{workflow}/trigger`
pub(crate) async fn trigger(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let workflow = find(&context).await?;
    let read = parse(&bytes);
    let Trigger { version_id, run } =
        idempotency_key::checked(&context, route("trigger", &workflow, None), &bytes, read).await?;
    let version = version_of(&workflow, version_id.as_deref())?;
    start_one(&context, "trigger", None, &bytes, &workflow, version, run).await
}

pub(crate) const TRIGGER_VERSION: Doc = Doc {
    request: Some(RequestDoc::optional_json::<VersionTrigger>()),
    id: "trigger_version",
    summary: "Trigger a version of a workflow",
    description: "Starts an execution of the version in the path, and otherwise does the same as \
                  `POST /v1/workflows/{workflow}/trigger`.",
    ..TRIGGER
};

/// `POST /v1/workflows/trigger/{workflow}/{version}`
pub(crate) async fn trigger_version(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let workflow = find(&context).await?;
    let id = context.request.param("version");
    let version = version_of(&workflow, Some(id))?;
    let read = parse(&bytes);
    let run =
        idempotency_key::checked(&context, route("trigger", &workflow, Some(id)), &bytes, read)
            .await?;
    start_one(&context, "trigger", Some(id), &bytes, &workflow, version, run).await
}

pub(crate) const TRIGGER_PUBLIC: Doc = Doc {
    request: Some(RequestDoc::optional_json::<PublicTrigger>()),
    is_idempotent: true,
    responses: triggers!(ACCEPTED, "Version not found, or not shared"),
    description: "Starts an execution of a version that its owner has shared (`allowed_to_share`). \
                  The organization of the key owns and pays for the execution. `api_key` in the \
                  body takes precedence over the headers, for clients that cannot set them. A \
                  version that does not exist or is not shared returns 404. Send an \
                  `Idempotency-Key` to retry safely.",
    ..Doc::new(
        "executions",
        "trigger_public_version",
        "Trigger a shared version of any organization's workflow; the key may be in the body",
    )
};

/// `POST /public/{workflow}/versions/{version}/trigger`: the caller owns and pays for the
/// execution, regardless of the organization that owns the workflow.
pub(crate) async fn trigger_public(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let PublicTrigger { run, .. } = parse(&bytes)?;
    let missing =
        || crate::Error::not_found("workflow version not found or not publicly available");
    let reference = context.request.param("workflow");
    let workflows = &context.services.workflows;
    let found = match reference.parse::<WorkflowId>() {
        Ok(id) => workflows.by_id(id).await,
        Err(_slug) => workflows.find(context.caller()?.organization, reference).await,
    };
    let workflow = match found {
        Err(workflows::Error::NotFound { near }) => return Err(missing().with_near(near)),
        found => found?,
    };
    let version = workflow.version(context.request.param("version"));
    let is_public = |version: &&Version| {
        version.allowed_to_share
            && version.status == Status::Active
            && workflow.status == Status::Active
    };
    let version = version.filter(is_public).ok_or_else(missing)?;
    start_one(&context, "public", Some(&version.id), &bytes, &workflow, version, run).await
}

/// Starts one execution. For `Idempotency-Key`s, `trigger` distinguishes routes that can address
/// the same version.
async fn start_one(
    context: &Context,
    trigger: &str,
    in_path: Option<&str>,
    bytes: &Bytes,
    workflow: &Workflow,
    version: &Version,
    run: VersionTrigger,
) -> Result<Response, crate::Error> {
    let services = &context.services;
    let route = route(trigger, workflow, in_path);
    let earlier = format!("trigger/{}/{}", workflow.id, version.id);
    let claim = match begin(context, &route, &earlier, bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => return replayed(context, &answered, None).await,
    };
    refuse_archived(workflow)?;
    let VersionTrigger {
        inputs,
        webhook_url: url,
        webhook_secret: secret,
        webhook_send_plain_secret,
    } = run;
    body::warn_of_secret_alone(&context.request, url.as_ref(), secret.as_ref());
    let webhook = body::webhook(url, secret, webhook_send_plain_secret, services)?;
    let compiled = services.workflows.compiled(version.revision).await?;
    let inputs = check_inputs(&compiled, Value::Object(inputs.unwrap_or_default())).await?;
    let submission = submission(context, workflow, version, None, &inputs, webhook)?;
    let mut commit = claim.commit(StoredResponse::created(submission.id))?;
    count_trigger(&mut commit, workflow.id, &version.id);
    let taken = services.engine.submit(vec![submission], commit).await?;
    let taken = taken.first().ok_or_else(|| crate::Error::internal("no execution was accepted"))?;
    Ok(accepted(taken))
}

/// Like [`idempotency_key::begin`], but also finds keys that releases up to 0.1.0 recorded with
/// `earlier`, the version that was started. Such keys exist for a day after an upgrade.
async fn begin(
    context: &Context,
    route: &str,
    earlier: &str,
    bytes: &[u8],
) -> Result<Creation, crate::Error> {
    let organization = context.caller()?.organization;
    if route != earlier {
        let before = idempotency_key::begin(context, organization, earlier, bytes).await?;
        if matches!(before, Creation::Replay(_)) {
            return Ok(before);
        }
    }
    idempotency_key::begin(context, organization, route, bytes).await
}

/// Returns the route under which an `Idempotency-Key` is recorded. The route depends only on the
/// path, and not on the version that the path selects: without a version in the path, the latest
/// version may change before the request is retried.
fn route(trigger: &str, workflow: &Workflow, in_path: Option<&str>) -> String {
    format!("{trigger}/{}/{}", workflow.id, in_path.unwrap_or_default())
}

fn accepted(execution: &Execution) -> Response {
    response::json(StatusCode::ACCEPTED, &Accepted::from(execution))
}

/// Returns the response to an earlier request that created one execution, even if that execution
/// has been deleted since.
pub(crate) async fn replayed(
    context: &Context,
    answered: &StoredResponse,
    redriven_from: Option<ExecutionId>,
) -> Result<Response, crate::Error> {
    let id: ExecutionId = idempotency_key::created_id(answered)?;
    let organization = context.caller()?.organization;
    let accepted = match context.services.engine.get(organization, id).await {
        Ok(execution) => Accepted::from(&execution),
        Err(engine::Error::NotFound) => Accepted::at(id, id.made_at()),
        Err(error) => return Err(error.into()),
    };
    Ok(response::json(StatusCode::ACCEPTED, &Accepted { redriven_from, ..accepted }))
}

pub(crate) const BULK: Doc = Doc {
    request: Some(RequestDoc::json::<BulkTrigger>()),
    is_idempotent: true,
    responses: triggers!(STARTED, "Workflow or version not found"),
    description: "Starts one execution for each of 1 to 10 inputs. The response has one entry for \
                  each input, in the order of the request: an invalid input has the status \
                  `failed` and a message, and the others start. `bulk_id` selects these executions \
                  in the list. A request that would exceed a limit of the organization is rejected \
                  entirely. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new("executions", "trigger_workflow_in_bulk", "Trigger a workflow for 1 to 10 inputs")
};

/// `POST /{workflow}/bulk-trigger`
pub(crate) async fn bulk(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let workflow = find(&context).await?;
    let read = read_bulk(&bytes);
    let BulkTrigger { version_id, runs } =
        idempotency_key::checked(&context, route("bulk-trigger", &workflow, None), &bytes, read)
            .await?;
    let version = version_of(&workflow, version_id.as_deref())?;
    start_bulk(&context, None, &bytes, &workflow, version, runs).await
}

pub(crate) const BULK_VERSION: Doc = Doc {
    request: Some(RequestDoc::json::<BulkVersionTrigger>()),
    id: "trigger_version_in_bulk",
    summary: "Trigger a version of a workflow for 1 to 10 inputs",
    description: "Starts executions of the version in the path, and otherwise does the same as \
                  `POST /v1/workflows/{workflow}/bulk-trigger`.",
    ..BULK
};

/// `POST /v1/workflows/bulk-trigger/{workflow}/{version}`
pub(crate) async fn bulk_version(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let workflow = find(&context).await?;
    let id = context.request.param("version");
    let version = version_of(&workflow, Some(id))?;
    let read = read_bulk(&bytes);
    let runs = idempotency_key::checked(
        &context,
        route("bulk-trigger", &workflow, Some(id)),
        &bytes,
        read,
    )
    .await?;
    start_bulk(&context, Some(id), &bytes, &workflow, version, runs).await
}

/// Reads a bulk trigger. The error message about its inputs is part of the specification.
fn read_bulk<T: DeserializeOwned + JsonSchema + 'static>(bytes: &[u8]) -> Result<T, crate::Error> {
    request::read(parse_value(bytes)?).map_err(|mismatch| match mismatch.path.as_str() {
        "inputs" => crate::Error::bad_request(format!("inputs must contain 1–{BULK_MAX} items")),
        _ => mismatch.into(),
    })
}

async fn start_bulk(
    context: &Context,
    in_path: Option<&str>,
    bytes: &Bytes,
    workflow: &Workflow,
    version: &Version,
    runs: BulkVersionTrigger,
) -> Result<Response, crate::Error> {
    let services = &context.services;
    let route = route("bulk-trigger", workflow, in_path);
    let earlier = format!("bulk-trigger/{}/{}", workflow.id, version.id);
    let claim = match begin(context, &route, &earlier, bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            return Ok(response::json(
                StatusCode::ACCEPTED,
                &idempotency_key::kept_body(answered)?,
            ));
        }
    };
    refuse_archived(workflow)?;
    let BulkVersionTrigger {
        inputs: entries,
        webhook_url: url,
        webhook_secret: secret,
        webhook_send_plain_secret,
    } = runs;
    body::warn_of_secret_alone(&context.request, url.as_ref(), secret.as_ref());
    let webhook = body::webhook(url, secret, webhook_send_plain_secret, services)?;
    let compiled = services.workflows.compiled(version.revision).await?;
    let bulk: BulkId = new_id();
    let now = services.clock.now();
    let mut submissions = Vec::new();
    let mut executions = Vec::new();
    for inputs in entries {
        match check_entry(&compiled, inputs).await? {
            Err(message) => executions.push(BulkEntry::refused(message)),
            Ok(inputs) => {
                let webhook = webhook.clone();
                let entry = submission(context, workflow, version, Some(bulk), &inputs, webhook)?;
                executions.push(BulkEntry::Accepted(Accepted::at(entry.id, now)));
                submissions.push(entry);
            }
        }
    }
    let body = Bulk { bulk_id: bulk, executions };
    let kept = serde_json::to_value(&body).map_err(crate::Error::internal)?;
    let mut commit =
        claim.commit(StoredResponse::whole(bulk, StatusCode::ACCEPTED.as_u16(), kept))?;
    for _each in &submissions {
        count_trigger(&mut commit, workflow.id, &version.id);
    }
    services.engine.submit(submissions, commit).await?;
    Ok(response::json(StatusCode::ACCEPTED, &body))
}

/// Returns the caller's workflow in the path; see [`refuse_archived`].
pub(crate) async fn find(context: &Context) -> Result<Arc<Workflow>, crate::Error> {
    let organization = context.caller()?.organization;
    let reference = context.request.param("workflow");
    Ok(context.services.workflows.find(organization, reference).await?)
}

/// Rejects triggers of an archived workflow. Handlers call this function after they have checked
/// the `Idempotency-Key`, so that a retry still returns the response to the earlier request.
///
/// # Errors
/// 409 if the workflow is archived.
pub(crate) fn refuse_archived(workflow: &Workflow) -> Result<(), crate::Error> {
    if workflow.status == Status::Archived {
        return Err(crate::Error::conflict("workflow is archived and cannot be triggered"));
    }
    Ok(())
}

pub(crate) fn version_of<'w>(
    workflow: &'w Workflow,
    named: Option<&str>,
) -> Result<&'w Version, crate::Error> {
    let id = named.filter(|id| !id.is_empty()).unwrap_or(&workflow.latest);
    Ok(workflow.version(id).ok_or(workflows::Error::NoVersion)?)
}

pub(crate) fn submission(
    context: &Context,
    workflow: &Workflow,
    version: &Version,
    bulk: Option<BulkId>,
    inputs: &Value,
    webhook: Option<Webhook>,
) -> Result<Submission, crate::Error> {
    let caller = context.caller()?;
    let mut run = WorkflowRun::new(workflow.id, version.id.clone(), version.revision, bulk);
    run.source_ip = context.request.peer.ip();
    run.owner = Some(workflow.organization);
    let id = new_id();
    Ok(Submission {
        id,
        organization: caller.organization,
        key: caller.key,
        source: context.source(),
        work: Work::Workflow(run),
        input: to_raw_value(inputs).map_err(crate::Error::internal)?,
        webhook,
        origin: context.origin(id),
    })
}
