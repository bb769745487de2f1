//! Bulk jobs: start, read, cancel (`docs/spec/history.md`, "Bulk jobs").

use hyper::StatusCode;

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::history::read_filter;
use super::idempotency_key::{self, Creation};
use orrery_domain::bulk::{Action, Job, LIMIT_MAX, Selection, Status};
use orrery_domain::ids::JobId;
use orrery_domain::member::MemberRole;
use orrery_engine as engine;
use orrery_http::{self as http, Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::bulk_job::{Accepted, Request, View};

const NO_JOB: ResponseDoc = ResponseDoc::error(404, "Job not found");
const JOB: ResponseDoc = ResponseDoc::json::<View>(200, "The job with its progress");

pub(crate) const START: Doc = Doc {
    request: Some(RequestDoc::json::<Request>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<Accepted>(202, "The job was accepted and is durable"),
        ResponseDoc::error(409, "Too many jobs are running"),
    ],
    description: "Starts a job in the background that applies `action` to the executions that \
                  match `filter` and exist now, newest first, at most `limit` of them. The job \
                  continues after a crash, and redrives or deletes each execution once. An \
                  organization can run four jobs at a time; a fifth job returns 409. Poll the job \
                  for its progress. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new(
        "executions",
        "start_bulk_job",
        "Start a bulk job on all executions that match a filter",
    )
};

/// `POST /executions/bulk`
pub(crate) async fn start(mut context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let bytes = context.request.body().await?;
    let organization = caller.organization;
    let claim = match idempotency_key::begin(&context, organization, "bulk-job", &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let job_id = answered.subject.parse().map_err(crate::Error::internal)?;
            return Ok(response::json(StatusCode::ACCEPTED, &Accepted { job_id }));
        }
    };
    let request: Request = http::request::parse(&bytes)?;
    if request.action == Action::Delete {
        context.check_role(MemberRole::Editor)?;
    }
    let limit = request.limit.unwrap_or(LIMIT_MAX);
    let filter = read_filter(&|name| request.filter.get(name))?;
    let services = &context.services;
    let id: JobId = new_id();
    let actor = context.actor();
    let job = Job {
        id,
        organization,
        key: caller.key,
        source: context.source(),
        by: actor.who().to_owned(),
        action: request.action,
        selection: Selection {
            standings: filter.standings,
            model: filter.model,
            classes: filter.classes,
            workflow: filter.workflow,
            parent: filter.parent,
            from: filter.from,
            to: filter.to,
        },
        limit,
        status: Status::Running,
        total: None,
        done: 0,
        failed: 0,
        cursor: None,
        started_at: services.clock.now(),
        completed_at: None,
    };
    let beside = claim.commit(StoredResponse::created(id))?;
    let action = format!("executions.bulk.{}", job.action.as_str());
    let entry = services.audit.entry(&actor, &action, id.to_string()).of(organization);
    let engine = services.engine.clone();
    let starting = async move { engine.start_job(&job, beside).await };
    services.audit.record(entry, starting).await?;
    Ok(response::json(StatusCode::ACCEPTED, &Accepted { job_id: id }))
}

pub(crate) const GET: Doc = Doc {
    responses: &[JOB, NO_JOB],
    description: "Returns the job with its progress. `total` is null until the executions are \
                  counted. The last 100 ended jobs of an organization are kept.",
    ..Doc::new("executions", "get_bulk_job", "Get a bulk job")
};

/// `GET /executions/bulk/{job}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    let job = engine.job(organization, id_of(&context)?).await.map_err(not_found)?;
    Ok(response::json(StatusCode::OK, &View::from(&job)))
}

pub(crate) const CANCEL: Doc = Doc {
    responses: &[JOB, NO_JOB],
    description: "Cancels the job; completed actions are not undone. Cancelling a job that has \
                  ended changes nothing and returns 200.",
    ..Doc::new(
        "executions",
        "cancel_bulk_job",
        "Cancel a bulk job without undoing its completed actions",
    )
};

/// `POST /executions/bulk/{job}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    let job = engine.cancel_job(organization, id_of(&context)?).await.map_err(not_found)?;
    Ok(response::json(StatusCode::OK, &View::from(&job)))
}

fn not_found(error: engine::Error) -> crate::Error {
    if matches!(error, engine::Error::NotFound) { missing() } else { error.into() }
}

fn id_of(context: &Context) -> Result<JobId, crate::Error> {
    context.request.param("job").parse().map_err(|_no_id| missing())
}

fn missing() -> crate::Error {
    crate::Error::not_found("job not found")
}
