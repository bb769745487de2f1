//! Pauses and resumes workflow executions (`docs/spec/workflows.md`, "Pauses").

use hyper::StatusCode;

use super::Context;
use super::doc::{Doc, ResponseDoc};
use orrery_domain::execution::Execution;
use orrery_domain::ids::ExecutionId;
use orrery_engine as engine;
use orrery_http::{Response, response};
use orrery_wire::execution::Paused;

const STATE: ResponseDoc = ResponseDoc::json::<Paused>(200, "The execution's pause state");
const NO_EXECUTION: ResponseDoc = ResponseDoc::error(404, "Execution not found");
const ENDED: ResponseDoc = ResponseDoc::error(409, "The execution has already ended");

pub(crate) const PAUSE: Doc = Doc {
    responses: &[STATE, NO_EXECUTION, ENDED],
    description: "Stops new steps and attempts of the execution; running steps finish. The pause \
                  survives restarts and does not count toward any timeout. Pausing a paused \
                  execution changes nothing and returns 200; an execution that has ended returns \
                  409.",
    ..Doc::new("executions", "pause_execution", "Pause an execution")
};

/// `POST /executions/{execution}/pause`
pub(crate) async fn pause(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let by = context.actor().who().to_owned();
    let engine = &context.services.engine;
    answer(engine.pause_execution(organization, id_of(&context)?, by).await)
}

pub(crate) const RESUME: Doc = Doc {
    responses: &[STATE, NO_EXECUTION, ENDED],
    description: "Continues a paused execution. A step with `on_exhausted: \"pause\"` that paused \
                  the execution is retried. Resuming an execution that is not paused changes \
                  nothing and returns 200; an execution that has ended returns 409.",
    ..Doc::new("executions", "resume_execution", "Resume a paused execution")
};

/// `POST /executions/{execution}/resume`
pub(crate) async fn resume(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let engine = &context.services.engine;
    answer(engine.resume_execution(organization, id_of(&context)?).await)
}

fn answer(changed: Result<Execution, engine::Error>) -> Result<Response, crate::Error> {
    let execution = changed?;
    let body = Paused {
        execution_id: execution.id,
        status: execution.status.into(),
        paused: execution.paused().is_some(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

fn id_of(context: &Context) -> Result<ExecutionId, crate::Error> {
    let missing = |_no_id| crate::Error::not_found("execution not found");
    context.request.param("execution").parse().map_err(missing)
}
