//! Schedules of workflows and models: create, list, read, update, delete (`docs/spec/schedules.md`,
//! "Routes").

use hyper::StatusCode;
use serde_json::{Map, Value};

use super::doc::{Doc, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::named::only_one;
use super::schedule_change::Change;
use super::{Context, Services};
use orrery_domain::calendar::Calendar;
use orrery_domain::execution::Kind;
use orrery_domain::ids::{ScheduleId, WorkflowId};
use orrery_domain::schedule::{CATCH_UP_DEFAULT, Overlap, RunResult, Schedule, Target};
use orrery_http::request::{parse, parse_value};
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_records::schedules;
use orrery_runtime::new_id;
use orrery_storage::Commit;
use orrery_wire::admin::NamedSchedule;
use orrery_wire::request;
use orrery_wire::schedule::{
    self as wire, NEXT_RUNS, NewOfModel, NewOfWorkflow, OfAny, OfWorkflow,
};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;

const SCHEDULE: ResponseDoc = ResponseDoc::json::<wire::Schedule>(200, "The schedule");
const CREATED: ResponseDoc = ResponseDoc::json::<wire::Schedule>(201, "The created schedule");
const DELETED: ResponseDoc =
    ResponseDoc::empty(204, "The schedule is deleted; executions that it started continue");
const PAGE: ResponseDoc = ResponseDoc::json::<wire::Schedules>(200, "The schedules, oldest first");
const NO_WORKFLOW: ResponseDoc = ResponseDoc::error(404, "Workflow not found");
const NO_SCHEDULE: ResponseDoc = ResponseDoc::error(404, "Schedule not found");
const SEVERAL: ResponseDoc = ResponseDoc::error(
    409,
    "Several schedules have this name, the one with this name starts another workflow or model, or there are too many",
);
const TOO_MANY: ResponseDoc = ResponseDoc::error(409, "There are too many schedules");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewOfWorkflow>()),
    is_idempotent: true,
    responses: &[CREATED, NO_WORKFLOW, TOO_MANY],
    description: "Creates a schedule that starts the workflow by a cron pattern in a time zone. \
                  The inputs are validated now and at each firing. Each firing is decided exactly \
                  once, even after a crash; `overlap` determines what happens if the previous \
                  execution has not ended, and `catch_up_seconds` how late a firing may run. An \
                  organization has at most 1000 schedules; one more returns 409. Send an \
                  `Idempotency-Key` to retry safely.",
    ..Doc::new("schedules", "create_workflow_schedule", "Schedule a workflow")
};

/// `POST /workflows/{workflow}/schedules`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let workflow = workflow_of(&context).await?;
    let bytes = context.request.body().await?;
    let read = || {
        let NewOfWorkflow { cron, run, common, secret } = parse(&bytes)?;
        let mut change = Change::read(common, secret, &context.services)?;
        change.cron = Some(cron);
        change.run_workflow(run)?;
        Ok(change)
    };
    let target = Target::Workflow { workflow, version: None };
    create_of(&context, &bytes, target, read).await
}

pub(crate) const CREATE_OF_MODEL: Doc = Doc {
    request: Some(RequestDoc::json::<NewOfModel>()),
    is_idempotent: true,
    responses: &[CREATED, TOO_MANY],
    description: "Creates a schedule that runs a prediction of `model` by a cron pattern in a time \
                  zone, with the fields of a prediction. Overlap, late firings and limits work as \
                  for a workflow's schedule. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new("schedules", "create_model_schedule", "Schedule a prediction")
};

/// `POST /v1/schedules`
pub(crate) async fn create_of_model(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let read = || {
        let mut body = parse_value(&bytes)?;
        let has_version = context.services.settings.fill_version(&mut body);
        let NewOfModel { cron, model, version, run, common, secret } = request::read(body)?;
        let mut change = Change::read(common, secret, &context.services)?;
        change.cron = Some(cron);
        change.model = Some(model);
        change.version = Some(version).filter(|_| has_version);
        change.run_model(run)?;
        Ok(change)
    };
    create_of(&context, &bytes, model_target(), read).await
}

fn model_target() -> Target {
    Target::Model { model: String::new(), version: String::new(), fallback_selector: None }
}

async fn create_of(
    context: &Context,
    bytes: &[u8],
    target: Target,
    read: impl FnOnce() -> Result<Change, crate::Error>,
) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let route = match &target {
        Target::Workflow { workflow, .. } => format!("schedules/{workflow}"),
        Target::Model { .. } => "schedules".to_owned(),
    };
    let claim = match idempotency_key::begin(context, organization, &route, bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let id = idempotency_key::created_id(&answered)?;
            let services = &context.services;
            let made = services.schedules.find(organization, id).await?;
            return Ok(response::json(StatusCode::CREATED, &shown(services, &made).await?));
        }
    };
    let change = read()?;
    let id = new_id();
    let commit = claim.commit(StoredResponse::created(id))?;
    create_with(context, id, target, &change, commit).await
}

async fn create_with(
    context: &Context,
    id: ScheduleId,
    target: Target,
    change: &Change,
    beside: Commit,
) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let services = &context.services;
    let now = services.clock.now();
    let mut schedule = Schedule {
        id,
        organization: caller.organization,
        key: caller.key,
        target,
        cron: String::new(),
        timezone: "UTC".to_owned(),
        input: Value::Object(Map::new()),
        overlap: Overlap::Skip,
        catch_up_seconds: CATCH_UP_DEFAULT,
        jitter_seconds: 0,
        paused: false,
        starts_at: None,
        ends_at: None,
        webhook: None,
        decided_until: now,
        next: None,
        due: None,
        waiting: Vec::new(),
        last: None,
        latest: None,
        name: None,
        created_at: now,
        updated_at: now,
    };
    change.apply(&mut schedule);
    change.warn_of_secret_alone(&context.request, &schedule);
    if schedule.cron.is_empty() {
        return Err(crate::Error::bad_request("cron is required"));
    }
    if matches!(&schedule.target, Target::Model { model, .. } if model.is_empty()) {
        return Err(crate::Error::bad_request("model field is required"));
    }
    let has_version =
        !matches!(&schedule.target, Target::Model { version, .. } if version.is_empty());
    if !has_version && !services.settings.optional_version {
        return Err(crate::Error::bad_request("version field is required"));
    }
    let schedules = services.schedules.by(context.actor());
    let made = schedules.create_beside(schedule, beside).await?;
    Ok(response::json(StatusCode::CREATED, &shown(services, &made).await?))
}

pub(crate) const LIST: Doc = Doc {
    query: &[OFFSET, Param::limit(LIMIT_MAX, LIMIT_DEFAULT)],
    responses: &[PAGE, NO_WORKFLOW],
    description: "Returns a page of the workflow's schedules, oldest first, each with its next ten \
                  firings and its last run.",
    ..Doc::new("schedules", "list_workflow_schedules", "List the schedules of a workflow")
};

/// `GET /workflows/{workflow}/schedules`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let workflow = workflow_of(&context).await?;
    let organization = context.organization()?;
    let schedules = context.services.schedules.of_workflow(organization, workflow).await?;
    page(&context, schedules).await
}

pub(crate) const LIST_ALL: Doc = Doc {
    query: &[OFFSET, Param::limit(LIMIT_MAX, LIMIT_DEFAULT)],
    responses: &[PAGE],
    description: "Returns a page of the organization's schedules of workflows and of models, \
                  oldest first.",
    ..Doc::new("schedules", "list_schedules", "List the schedules of all workflows and models")
};

/// `GET /v1/schedules`
pub(crate) async fn list_all(context: Context) -> Result<Response, crate::Error> {
    let schedules = context.services.schedules.list(context.organization()?).await?;
    page(&context, schedules).await
}

async fn page(context: &Context, schedules: Vec<Schedule>) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let offset = query.number("offset", 0..=u64::MAX, 0)?;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let total_count = schedules.len();
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    let mut shown_ones = Vec::new();
    for schedule in schedules.iter().skip(skipped).take(usize::try_from(limit)?) {
        shown_ones.push(shown(&context.services, schedule).await?);
    }
    let body = wire::Schedules { schedules: shown_ones, total_count, offset, limit };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const GET: Doc = Doc {
    responses: &[SCHEDULE, NO_SCHEDULE],
    description: "Returns the schedule with its next ten firings and its last run. A schedule of \
                  another workflow returns 404.",
    ..Doc::new("schedules", "get_workflow_schedule", "Get a schedule of a workflow")
};

pub(crate) const GET_ANY: Doc = Doc {
    id: "get_schedule",
    summary: "Get a schedule of a workflow or model",
    description: "Returns the schedule of a workflow or a model with its next ten firings and its \
                  last run.",
    ..GET
};

/// `GET /workflows/{workflow}/schedules/{schedule}` and `GET /v1/schedules/{schedule}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let schedule = find(&context).await?;
    Ok(response::json(StatusCode::OK, &shown(&context.services, &schedule).await?))
}

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<OfWorkflow>()),
    responses: &[SCHEDULE, NO_SCHEDULE],
    description: "Changes the given fields; omitted fields keep their values, and an empty string \
                  clears an optional text or time. A change, like the end of a pause, restarts the \
                  schedule from now: earlier firings are not caught up. An unknown field returns \
                  400.",
    ..Doc::new("schedules", "change_workflow_schedule", "Update a schedule of a workflow")
};

pub(crate) const CHANGE_ANY: Doc = Doc {
    request: Some(RequestDoc::optional_json::<OfAny>()),
    id: "change_schedule",
    summary: "Update a schedule of a workflow or model",
    description: "Changes the given fields of a schedule of a workflow or a model; omitted fields \
                  keep their values, and an empty string clears an optional text or time. A \
                  change, like the end of a pause, restarts the schedule from now: earlier firings \
                  are not caught up.",
    ..CHANGE
};

/// `PUT /workflows/{workflow}/schedules/{schedule}` and `PUT /v1/schedules/{schedule}`: omitted
/// fields keep their values.
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let found = find(&context).await?;
    // Paths without a workflow exist only on the base host, and also accept schedules of models.
    let change = if context.request.param("workflow").is_empty() {
        let OfAny { target, common, secret } = context.request.json().await?;
        let mut change = Change::read(common, secret, &context.services)?;
        change.run_any(target, matches!(found.target, Target::Model { .. }))?;
        change
    } else {
        let OfWorkflow { cron, run, common, secret } = context.request.json().await?;
        let mut change = Change::read(common, secret, &context.services)?;
        change.cron = cron;
        change.run_workflow(run)?;
        change
    };
    let services = &context.services;
    let apply = |schedule: &mut Schedule| -> Result<(), schedules::Error> {
        change.apply(schedule);
        Ok(())
    };
    let by = services.schedules.by(context.actor());
    let changed = by.change(found.organization, found.id, apply).await?;
    change.warn_of_secret_alone(&context.request, &changed);
    Ok(response::json(StatusCode::OK, &shown(services, &changed).await?))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[DELETED, NO_SCHEDULE],
    description: "Deletes the schedule; it does not fire again. Executions that it started \
                  continue, and firings that wait for them are dropped.",
    ..Doc::new("schedules", "delete_workflow_schedule", "Delete a schedule of a workflow")
};

pub(crate) const DELETE_ANY: Doc = Doc {
    id: "delete_schedule",
    summary: "Delete a schedule of a workflow or model",
    description: "Deletes the schedule of a workflow or a model; it does not fire again. \
                  Executions that it started continue, and firings that wait for them are dropped.",
    ..DELETE
};

/// `DELETE /workflows/{workflow}/schedules/{schedule}` and `DELETE /v1/schedules/{schedule}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let found = find(&context).await?;
    let schedules = context.services.schedules.by(context.actor());
    schedules.delete(found.organization, found.id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const PUT_NAMED: Doc = Doc {
    request: Some(RequestDoc::json::<NamedSchedule>()),
    responses: &[SCHEDULE, CREATED, SEVERAL],
    description: "Creates the schedule with this name for `workflow` or `model`, or changes the \
                  given fields of an existing one. Repeating the request changes nothing. If \
                  several schedules have the name, or the existing one starts something else, the \
                  response is 409.",
    ..Doc::new("schedules", "put_schedule", "Create or update a schedule")
};

/// `PUT /admin/v1/organizations/{organization}/schedules/{name}`: a request with identical fields
/// changes nothing.
pub(crate) async fn put_named(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let NamedSchedule { workflow: named, target, common } = request::read(parse_value(&bytes)?)
        .map_err(|mismatch| match mismatch.path.as_str() {
            // The stored secret is sealed, so it cannot be compared with the new one.
            "webhook_secret" => crate::Error::bad_request(
                "webhook_secret cannot be set here: use a webhook endpoint",
            ),
            _ => mismatch.into(),
        })?;
    let organization = context.organization()?;
    let workflow = match &named {
        Some(reference) => Some(context.services.workflows.find(organization, reference).await?.id),
        None => None,
    };
    let services = &context.services;
    let mut change = Change::read(common, wire::Secret::default(), services)?;
    change.run_any(target, workflow.is_none())?;
    if workflow.is_none() && change.model.is_none() {
        return Err(crate::Error::bad_request("workflow or model is required"));
    }
    change.name = Some(context.request.param("name").to_owned());
    let _one_of_a_name = services.naming.lock().await;
    let Some(found) = find_named(&context).await? else {
        let target = match workflow {
            Some(workflow) => Target::Workflow { workflow, version: None },
            None => model_target(),
        };
        return create_with(&context, new_id(), target, &change, Commit::new()).await;
    };
    let is_same_target = match &found.target {
        Target::Workflow { workflow: of, .. } => workflow == Some(*of),
        Target::Model { .. } => workflow.is_none(),
    };
    if !is_same_target {
        let message =
            "the schedule with this name starts another workflow or model: delete it first";
        return Err(crate::Error::conflict(message));
    }
    let mut wanted = found.clone();
    change.apply(&mut wanted);
    if wanted == found {
        return Ok(response::json(StatusCode::OK, &shown(services, &found).await?));
    }
    let apply = |schedule: &mut Schedule| -> Result<(), schedules::Error> {
        change.apply(schedule);
        Ok(())
    };
    let by = services.schedules.by(context.actor());
    let changed = by.change(organization, found.id, apply).await?;
    Ok(response::json(StatusCode::OK, &shown(services, &changed).await?))
}

pub(crate) const DELETE_NAMED: Doc = Doc {
    responses: &[DELETED, NO_SCHEDULE, SEVERAL],
    description: "Deletes the schedule with this name. If several schedules have the name, nothing \
                  is deleted, and the response is 409.",
    ..Doc::new("schedules", "delete_named_schedule", "Delete a schedule by name")
};

/// `DELETE /admin/v1/organizations/{organization}/schedules/{name}`
pub(crate) async fn delete_named(context: Context) -> Result<Response, crate::Error> {
    let found = find_named(&context).await?.ok_or(schedules::Error::NotFound)?;
    let schedules = context.services.schedules.by(context.actor());
    schedules.delete(found.organization, found.id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the schedule with the name in the path, if any.
async fn find_named(context: &Context) -> Result<Option<Schedule>, crate::Error> {
    let name = context.request.param("name");
    let all = context.services.schedules.list(context.organization()?).await?;
    let found = all.into_iter().filter(|one| one.name.as_deref() == Some(name));
    only_one(found, "schedules", name)
}

async fn workflow_of(context: &Context) -> Result<WorkflowId, crate::Error> {
    let organization = context.organization()?;
    let reference = context.request.param("workflow");
    Ok(context.services.workflows.find(organization, reference).await?.id)
}

/// Returns the schedule in the path. If the path also has a workflow, the schedule must belong to
/// that workflow.
async fn find(context: &Context) -> Result<Schedule, crate::Error> {
    let missing = || crate::Error::from(schedules::Error::NotFound);
    let id: ScheduleId = context.request.param("schedule").parse().map_err(|_no_id| missing())?;
    let found = context.services.schedules.find(context.organization()?, id).await?;
    if context.request.param("workflow").is_empty() {
        return Ok(found);
    }
    let named = workflow_of(context).await?;
    match &found.target {
        Target::Workflow { workflow, .. } if *workflow == named => Ok(found),
        Target::Workflow { .. } | Target::Model { .. } => Err(missing()),
    }
}

/// Returns the client's view of a schedule.
async fn shown(services: &Services, schedule: &Schedule) -> Result<wire::Schedule, crate::Error> {
    let calendar = Calendar::load(&schedule.cron, &schedule.timezone).ok();
    let next = calendar.map(|calendar| schedule.next_firings(&calendar, NEXT_RUNS));
    let status = match schedule.last.as_ref().map(|last| &last.result) {
        Some(RunResult::Started(id)) => {
            match services.engine.get(schedule.organization, *id).await {
                Ok(execution) if execution.kind() == Kind::Prediction => {
                    Some(execution.status.prediction_word())
                }
                Ok(execution) => Some(execution.status.execution_word()),
                Err(orrery_engine::Error::NotFound) => None,
                Err(error) => return Err(error.into()),
            }
        }
        Some(RunResult::Skipped | RunResult::Missed | RunResult::Refused(_)) | None => None,
    };
    Ok(wire::Schedule::of(schedule, next.unwrap_or_default(), status))
}
