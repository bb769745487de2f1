//! Workers: claim the jobs of models with the runner `pull`, and report about them.
//!
//! A key with the scope `worker` can claim only jobs of models whose manifest names the key's
//! organization, because jobs contain the inputs of all organizations.

use std::time::Duration;

use hyper::StatusCode;

use super::doc::{Doc, Kind, Param, RequestDoc, ResponseDoc};
use super::{Context, models};
use orrery_catalog::pull::{Claim, Jobs, Refused, WORKER_CHARS_MAX};
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::KeyId;
use orrery_engine::Error as EngineError;
use orrery_http::{Response, response};
use orrery_records::accounts;
use orrery_wire::worker::{Completion, Failure, Heartbeat, Job, Log, Part};

/// Maximum duration of `wait`, in seconds.
const WAIT_MAX: u64 = 60;

pub(crate) const CLAIM: Doc = Doc {
    query: &[
        Param::new(
            "wait",
            Kind::Whole { min: 0, max: WAIT_MAX, default: 0 },
            "How many seconds to wait for a job",
        ),
        Param::new(
            "worker",
            Kind::Text,
            "The worker's name, with at most 64 characters. Workers with the same key and name \
             are counted as one",
        ),
    ],
    responses: &[
        ResponseDoc::json::<Job>(200, "The job, which is now leased to this key"),
        ResponseDoc::empty(204, "No job is waiting"),
        ResponseDoc::error(404, "Model not found"),
        ResponseDoc::error(409, "The model's runner is not `pull`"),
    ],
    description: "Leases the job that has waited longest. With `wait`, the response is delayed \
                  until a job is waiting or `wait` seconds have passed. Each report about the \
                  job extends the lease. When a lease ends, the next claim gets the job under \
                  the next attempt number. Needs a key with the scope `worker` that belongs to \
                  the organization in `runner.organization` of the model's manifest.",
    ..Doc::new("workers", "claim_job", "Claim a job of a model")
};

/// `POST /v1/workers/{model}/claim?wait=&worker=`
pub(crate) async fn claim(context: Context) -> Result<Response, crate::Error> {
    let slug = context.request.param("model");
    let query = &context.request.query;
    let wait = Duration::from_secs(query.number("wait", 0..=WAIT_MAX, 0)?);
    let worker = query.get("worker").unwrap_or_default();
    if worker.chars().count() > WORKER_CHARS_MAX || worker.chars().any(char::is_control) {
        let message = format!(
            "worker must have at most {WORKER_CHARS_MAX} characters and no control characters"
        );
        return Err(crate::Error::bad_request(message));
    }
    let services = &context.services;
    let caller = context.caller()?;
    services.engine.policies().check_model(caller.key, slug).map_err(EngineError::from)?;
    let model = models::find(&context, slug)?;
    let Some(pull) = model.runner.pull() else {
        let runner = model.runner_type;
        let message = format!(
            "the model '{slug}' has the runner {runner}: workers run models with the runner pull"
        );
        return Err(crate::Error::conflict(message));
    };
    let named = services.accounts.organization(pull.organization()).await;
    let of_model = match named {
        Ok(organization) => Some(organization.id),
        Err(accounts::Error::NoOrganization(_)) => None,
        Err(error) => return Err(error.into()),
    };
    if of_model != Some(caller.organization) {
        let message = format!(
            "this key may not claim jobs of the model '{slug}': the key must belong to the \
             organization {}, which the model's manifest names in `runner.organization`",
            pull.organization()
        );
        return Err(crate::Error::status(StatusCode::FORBIDDEN, message));
    }
    let claim = tokio::select! {
        biased;
        () = services.engine.stopping() => {
            return Err(crate::Error::unavailable("the service is shutting down"));
        }
        claim = pull.claim(caller.key, worker, wait) => claim?,
    };
    Ok(match claim {
        None => response::empty(StatusCode::NO_CONTENT),
        Some(Claim { job, attempt, input, lease }) => {
            let lease_seconds = lease.as_secs().max(1);
            let job = Job { job_id: job, attempt, input, lease_seconds };
            response::json(StatusCode::OK, &job)
        }
    })
}

const DONE: ResponseDoc = ResponseDoc::empty(204, "The report is accepted");
const NOT_HELD: ResponseDoc = ResponseDoc::error(
    409,
    "The job is not leased to the key under this attempt number: the job has ended or was \
     cancelled, or the lease has ended. The worker must stop working on the job",
);

pub(crate) const HEARTBEAT: Doc = Doc {
    request: Some(RequestDoc::json::<Heartbeat>()),
    responses: &[DONE, NOT_HELD],
    description: "Extends the lease of a job. A worker calls this at least every third of the \
                  lease, and stops working on the job if the response is 409.",
    ..Doc::new("workers", "extend_job", "Extend the lease of a job")
};

/// `POST /v1/workers/jobs/{job}/heartbeat`
pub(crate) async fn heartbeat(mut context: Context) -> Result<Response, crate::Error> {
    let Heartbeat { attempt } = context.request.json().await?;
    report(&context, |jobs, job, key| jobs.heartbeat(job, key, attempt))
}

pub(crate) const LOG: Doc = Doc {
    request: Some(RequestDoc::json::<Log>()),
    responses: &[DONE, NOT_HELD],
    description: "Adds text to the logs of the run. Extends the lease.",
    ..Doc::new("workers", "log_job", "Add to the logs of a job")
};

/// `POST /v1/workers/jobs/{job}/log`
pub(crate) async fn log(mut context: Context) -> Result<Response, crate::Error> {
    let Log { attempt, log } = context.request.json().await?;
    report(&context, |jobs, job, key| jobs.log(job, key, attempt, &log))
}

pub(crate) const PART: Doc = Doc {
    request: Some(RequestDoc::json::<Part>()),
    responses: &[DONE, NOT_HELD],
    description: "Sends a part of the output to the clients that follow the run. Extends the \
                  lease. The parts of later attempts are ignored once an attempt has sent a part.",
    ..Doc::new("workers", "send_job_part", "Send a part of a job's output")
};

/// `POST /v1/workers/jobs/{job}/part`
pub(crate) async fn part(mut context: Context) -> Result<Response, crate::Error> {
    let Part { attempt, output } = context.request.json().await?;
    report(&context, |jobs, job, key| jobs.part(job, key, attempt, &output))
}

pub(crate) const COMPLETE: Doc = Doc {
    request: Some(RequestDoc::json::<Completion>()),
    responses: &[DONE, NOT_HELD],
    description: "Ends a job with its whole output. If the service stops before it has stored the \
                  output, the run is repeated as a new job.",
    ..Doc::new("workers", "complete_job", "Complete a job")
};

/// `POST /v1/workers/jobs/{job}/complete`
pub(crate) async fn complete(mut context: Context) -> Result<Response, crate::Error> {
    let Completion { attempt, output, metrics } = context.request.json().await?;
    report(&context, |jobs, job, key| jobs.complete(job, key, attempt, output, metrics))
}

pub(crate) const FAIL: Doc = Doc {
    request: Some(RequestDoc::json::<Failure>()),
    responses: &[DONE, NOT_HELD],
    description: "Ends a job with an error. Whether the run is repeated or another model runs \
                  depends on the model's `retry` and on the fallback chain, as for other models.",
    ..Doc::new("workers", "fail_job", "Fail a job")
};

/// `POST /v1/workers/jobs/{job}/fail`
pub(crate) async fn fail(mut context: Context) -> Result<Response, crate::Error> {
    let Failure { attempt, error, classification } = context.request.json().await?;
    let class = classification.unwrap_or(ErrorClass::ProviderError);
    report(&context, |jobs, job, key| jobs.fail(job, key, attempt, &error, class))
}

/// Passes a worker's report to [`Jobs`]; the path contains the ID of the job.
fn report(
    context: &Context,
    report: impl FnOnce(&Jobs, &str, KeyId) -> Result<(), Refused>,
) -> Result<Response, crate::Error> {
    let key = context.caller()?.key;
    report(context.services.catalog.jobs(), context.request.param("job"), key)?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}
