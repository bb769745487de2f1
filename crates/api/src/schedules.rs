//! Schedules of workflows and models: create, list, read, update, delete (`docs/spec/schedules.md`,
//! "Routes").

use hyper::StatusCode;
use serde_json::{Map, Value};

use super::doc::{Doc, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::named::only_one;
use super::{Context, Services, body};
use orrery_domain::calendar::Calendar;
use orrery_domain::delivery::Webhook;
use orrery_domain::execution::Kind;
use orrery_domain::ids::{ScheduleId, WorkflowId};
use orrery_domain::schedule::{CATCH_UP_DEFAULT, Overlap, RunResult, Schedule, Target};
use orrery_domain::spelling;
use orrery_domain::time::Timestamp;
use orrery_http::request::{parse, parse_value};
use orrery_http::{Request, Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_records::schedules;
use orrery_runtime::new_id;
use orrery_storage::Commit;
use orrery_wire::admin::NamedSchedule;
use orrery_wire::request;
use orrery_wire::schedule::{
    self as wire, AnyTarget, Common, ModelRun, NEXT_RUNS, NewOfModel, NewOfWorkflow, OfAny,
    OfWorkflow, WorkflowRun,
};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Maximum size of an input as JSON, so that it fits in a record of the store.
const INPUT_BYTES_MAX: usize = 48 * 1024;

const SCHEDULE: ResponseDoc = ResponseDoc::json::<wire::Schedule>(200, "The schedule");
const CREATED: ResponseDoc = ResponseDoc::json::<wire::Schedule>(201, "The created schedule");
const DELETED: ResponseDoc =
    ResponseDoc::empty(204, "The schedule is deleted; executions that it started continue");
const PAGE: ResponseDoc = ResponseDoc::json::<wire::Schedules>(200, "The schedules, oldest first");
const NO_WORKFLOW: ResponseDoc = ResponseDoc::error(404, "Workflow not found");
const NO_SCHEDULE: ResponseDoc = ResponseDoc::error(404, "Schedule not found");
const SEVERAL: ResponseDoc = ResponseDoc::error(
    409,
    "Several schedules have this name, it starts another workflow or model, or there are too many",
);
const TOO_MANY: ResponseDoc = ResponseDoc::error(409, "There are too many schedules");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewOfWorkflow>()),
    is_idempotent: true,
    responses: &[CREATED, NO_WORKFLOW, TOO_MANY],
    ..Doc::new("schedules", "create_workflow_schedule", "Schedule a workflow")
};

/// `POST /workflows/{workflow}/schedules`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let workflow = workflow_of(&context).await?;
    let bytes = context.request.body().await?;
    let read = || {
        let NewOfWorkflow { cron, run, common, secret } = parse(&bytes)?;
        let mut change = Change::read(common, secret.webhook_secret, &context.services)?;
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
    ..Doc::new("schedules", "create_model_schedule", "Schedule a prediction")
};

/// `POST /v1/schedules`
pub(crate) async fn create_of_model(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let read = || {
        let mut body = parse_value(&bytes)?;
        let has_version = context.services.settings.fill_version(&mut body);
        let NewOfModel { cron, model, version, run, common, secret } = request::read(body)?;
        let mut change = Change::read(common, secret.webhook_secret, &context.services)?;
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
    ..Doc::new("schedules", "get_workflow_schedule", "Get a schedule of a workflow")
};

pub(crate) const GET_ANY: Doc =
    Doc { id: "get_schedule", summary: "Get a schedule of a workflow or model", ..GET };

/// `GET /workflows/{workflow}/schedules/{schedule}` and `GET /v1/schedules/{schedule}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let schedule = find(&context).await?;
    Ok(response::json(StatusCode::OK, &shown(&context.services, &schedule).await?))
}

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<OfWorkflow>()),
    responses: &[SCHEDULE, NO_SCHEDULE],
    ..Doc::new("schedules", "change_workflow_schedule", "Update a schedule of a workflow")
};

pub(crate) const CHANGE_ANY: Doc = Doc {
    request: Some(RequestDoc::optional_json::<OfAny>()),
    id: "change_schedule",
    summary: "Update a schedule of a workflow or model",
    ..CHANGE
};

/// `PUT /workflows/{workflow}/schedules/{schedule}` and `PUT /v1/schedules/{schedule}`: omitted
/// fields keep their values.
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let found = find(&context).await?;
    // Only the base host has a path without the workflow, and with schedules of models.
    let change = if context.request.param("workflow").is_empty() {
        let OfAny { target, common, secret } = context.request.json().await?;
        let mut change = Change::read(common, secret.webhook_secret, &context.services)?;
        change.run_any(target, matches!(found.target, Target::Model { .. }))?;
        change
    } else {
        let OfWorkflow { cron, run, common, secret } = context.request.json().await?;
        let mut change = Change::read(common, secret.webhook_secret, &context.services)?;
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
    ..Doc::new("schedules", "delete_workflow_schedule", "Delete a schedule of a workflow")
};

pub(crate) const DELETE_ANY: Doc =
    Doc { id: "delete_schedule", summary: "Delete a schedule of a workflow or model", ..DELETE };

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
    ..Doc::new("schedules", "put_schedule", "Create or update a schedule")
};

/// `PUT /admin/v1/organizations/{organization}/schedules/{name}`: a request with identical fields
/// changes nothing.
pub(crate) async fn put_named(mut context: Context) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let NamedSchedule { workflow: named, target, common } = request::read(parse_value(&bytes)?)
        .map_err(|mismatch| match mismatch.path.as_str() {
            // The stored secret is sealed, so it cannot be compared.
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
    let mut change = Change::read(common, None, services)?;
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
    ..Doc::new("schedules", "delete_named_schedule", "Delete a schedule by name")
};

/// `DELETE /admin/v1/organizations/{organization}/schedules/{name}`
pub(crate) async fn delete_named(context: Context) -> Result<Response, crate::Error> {
    let found = find_named(&context).await?.ok_or(schedules::Error::NotFound)?;
    let schedules = context.services.schedules.by(context.actor());
    schedules.delete(found.organization, found.id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the schedule with the name in the path, if there is one.
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

/// The validated fields of a body.
#[derive(Debug, Default)]
struct Change {
    cron: Option<String>,
    timezone: Option<String>,
    input: Option<Value>,
    model: Option<String>,
    /// The version of the workflow or model. For a workflow, an empty string means the latest
    /// version.
    version: Option<String>,
    fallback_selector: Option<String>,
    overlap: Option<Overlap>,
    catch_up_seconds: Option<u64>,
    jitter_seconds: Option<u32>,
    paused: Option<bool>,
    /// `Some(None)` removes the limit.
    starts_at: Option<Option<Timestamp>>,
    ends_at: Option<Option<Timestamp>>,
    /// `Some(None)` removes the webhook.
    webhook_url: Option<Option<String>>,
    /// The sealed secret. `Some(None)` removes it, so that deliveries are not signed.
    webhook_secret: Option<Option<String>>,
    /// An empty string means no name.
    name: Option<String>,
}

impl Change {
    /// Reads the fields that all schedules have.
    fn read(
        common: Common,
        secret: Option<String>,
        services: &Services,
    ) -> Result<Self, crate::Error> {
        let url = common.webhook_url.map(|url| body::webhook_url("webhook_url", url, services));
        let sealed = secret.map(|secret| {
            let secret = Some(secret).filter(|secret| !secret.is_empty());
            secret.map(|secret| body::sealed_secret(&secret, services)).transpose()
        });
        Ok(Self {
            timezone: common.timezone,
            overlap: common.overlap,
            catch_up_seconds: common.catch_up_seconds,
            jitter_seconds: common.jitter_seconds,
            paused: common.paused,
            name: common.name,
            starts_at: common.starts_at.map(|text| moment("starts_at", &text)).transpose()?,
            ends_at: common.ends_at.map(|text| moment("ends_at", &text)).transpose()?,
            webhook_url: url.transpose()?,
            webhook_secret: sealed.transpose()?,
            ..Self::default()
        })
    }

    fn run_workflow(&mut self, run: WorkflowRun) -> Result<(), crate::Error> {
        let WorkflowRun { inputs, version_id } = run;
        self.version = version_id;
        self.input = inputs.map(|inputs| checked_input("inputs", inputs)).transpose()?;
        Ok(())
    }

    fn run_model(&mut self, run: ModelRun) -> Result<(), crate::Error> {
        let ModelRun { input, fallback_selector } = run;
        self.fallback_selector = fallback_selector;
        self.input = input.map(|input| checked_input("input", input)).transpose()?;
        Ok(())
    }

    /// Reads the fields of one kind of schedule; those of the other kind are refused.
    fn run_any(&mut self, target: AnyTarget, is_of_model: bool) -> Result<(), crate::Error> {
        let AnyTarget { cron, model, version, model_run, workflow_run } = target;
        let of_model = [
            ("model", model.is_some()),
            ("version", version.is_some()),
            ("input", model_run.input.is_some()),
            ("fallback_selector", model_run.fallback_selector.is_some()),
        ];
        let of_workflow = [
            ("inputs", workflow_run.inputs.is_some()),
            ("version_id", workflow_run.version_id.is_some()),
        ];
        let (known, others): (&[_], &[_]) =
            if is_of_model { (&of_model, &of_workflow) } else { (&of_workflow, &of_model) };
        if let Some((name, _)) = others.iter().find(|(_, is_given)| *is_given) {
            let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let sentence = spelling::unknown("field", name, name, &known);
            return Err(crate::Error::bad_request(sentence));
        }
        self.cron = cron;
        if !is_of_model {
            return self.run_workflow(workflow_run);
        }
        self.run_model(model_run)?;
        self.model = model;
        self.version = version;
        Ok(())
    }

    /// Warns about a webhook secret for a schedule without a webhook.
    fn warn_of_secret_alone(&self, request: &Request, schedule: &Schedule) {
        if schedule.webhook.is_none() && matches!(self.webhook_secret, Some(Some(_))) {
            request.warn(body::SECRET_ALONE);
        }
    }

    fn apply(&self, schedule: &mut Schedule) {
        put(&mut schedule.cron, &self.cron);
        put(&mut schedule.timezone, &self.timezone);
        put(&mut schedule.input, &self.input);
        put(&mut schedule.overlap, &self.overlap);
        put(&mut schedule.catch_up_seconds, &self.catch_up_seconds);
        put(&mut schedule.jitter_seconds, &self.jitter_seconds);
        put(&mut schedule.paused, &self.paused);
        put(&mut schedule.starts_at, &self.starts_at);
        put(&mut schedule.ends_at, &self.ends_at);
        if let Some(url) = &self.webhook_url {
            let secret = schedule.webhook.take().and_then(|held| held.secret);
            schedule.webhook = url.clone().map(|url| Webhook { url, secret });
        }
        if let Some(webhook) = &mut schedule.webhook {
            put(&mut webhook.secret, &self.webhook_secret);
        }
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        put(&mut schedule.name, &self.name.as_ref().map(some));
        match &mut schedule.target {
            Target::Workflow { version, .. } => put(version, &self.version.as_ref().map(some)),
            Target::Model { model, version, fallback_selector } => {
                put(model, &self.model);
                put(version, &self.version);
                put(fallback_selector, &self.fallback_selector.as_ref().map(some));
            }
        }
    }
}

/// Replaces `held` if there is a new value.
fn put<T: Clone>(held: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        held.clone_from(given);
    }
}

fn checked_input(name: &str, input: Map<String, Value>) -> Result<Value, crate::Error> {
    let input = Value::Object(input);
    if input.to_string().len() > INPUT_BYTES_MAX {
        let message = format!("{name} must have at most {INPUT_BYTES_MAX} bytes");
        return Err(crate::Error::bad_request(message));
    }
    Ok(input)
}

/// Parses a time; an empty string means no time.
fn moment(name: &str, text: &str) -> Result<Option<Timestamp>, crate::Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text.parse();
    parsed.map(Some).map_err(|error| crate::Error::bad_request(format!("{name} is {error}")))
}
