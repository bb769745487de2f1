//! Runs: model calls and HTTP requests, from the resolved input to the report of the result.
//!
//! A run owns everything that it needs. Dropping a run cancels it and releases its model permit.
//! This module never retries or commits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Actor;
use super::children::{Caller, PreparedChild};
use super::memory;
use super::resolve::{StepResult, split_step_error, unresolved};
use crate::query::events::{RunProgress, RunProgressSink};
use crate::run::attempt::{NewResult, StoredOutput, model_removed};
use crate::run::budget::Budget;
use crate::scheduler::in_flight::Run;
use crate::scheduler::permit::ModelPermit;
use crate::{Error, Inner, Models, models};
use orrery_domain::attempt::Failure;
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{
    FailWhen, HTTP_TIMEOUT_DEFAULT, Http, Kind, Model, Request, SubWorkflow,
};
use orrery_domain::execution::Fault;
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::machine::workflow::{Event, StepProgress, Success};
use orrery_domain::mask::mask_value;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::reference::Scope;
use orrery_domain::step::{HttpResponse, Instance};
use orrery_domain::template::{RESOLVED_BYTES_MAX, Template};
use orrery_domain::trace;
use orrery_records::billing::{Payer, Reservation};
use orrery_records::files::Origin;
use orrery_runners as runners;
use orrery_runners::request::{self, Prepared};
use orrery_runtime::turns::Turn;
use orrery_runtime::{new_id, turns};

/// A run, or its wait for a permit.
pub(super) type Running = Pin<Box<dyn Future<Output = Report> + Send>>;

/// A wait for a memory share.
type Taking = Pin<Box<dyn Future<Output = Turn> + Send>>;

/// One attempt, ready to run.
#[derive(Debug)]
pub(super) struct Job {
    instance: Instance,
    attempt: u32,
    /// Identifies the attempt; stable across restarts.
    key: String,
    organization: OrganizationId,
    /// The API key that requested the execution.
    api_key: KeyId,
    execution: ExecutionId,
    budget: Arc<Budget>,
    limit: Option<Duration>,
    /// The attempt's span.
    trace: trace::Call,
    call: Call,
    /// The memory share for the attempt's input.
    room: Option<Turn>,
}

#[derive(Debug)]
enum Call {
    Model(ModelCall),
    Http { request: Box<Prepared>, fail_when: FailWhen },
    Workflow { call: models::Call, caller: Box<Caller> },
}

#[derive(Debug)]
struct ModelCall {
    slug: String,
    input: Value,
    /// Whether the step has a fallback model.
    may_fall_back: bool,
    /// The cost of the step so far.
    spent: Usd,
    /// Whether another organization owns the workflow. The result cache would confirm guesses of
    /// such an input, which is hidden.
    is_hidden: bool,
}

/// The input of a call, to be stored with its step.
enum Shown {
    /// A value whose secrets have yet to be masked.
    Value(Value),
    /// A text without secrets.
    Text(Box<RawValue>),
}

/// The result of a run, or of a wait that precedes the run.
pub(super) enum Report {
    /// Memory for the attempt's input was granted.
    RoomGranted { instance: Instance, attempt: u32, room: Turn },
    /// A model permit was granted.
    PermitGranted { job: Box<Job>, permit: ModelPermit },
    /// A child was prepared, or cannot be created.
    ChildPrepared { instance: Instance, attempt: u32, prepared: Box<PreparedChild> },
    Ended {
        instance: Instance,
        attempt: u32,
        /// An [`Error`] means that the output could not be stored; the attempt is repeated.
        outcome: Box<Result<Outcome, Error>>,
        /// The reservation for the call, held until its cost is charged.
        reservation: Option<Reservation>,
        /// What the call has used.
        used: Option<Used>,
    },
}

/// The model and the tokens of a model call, and the result to store in the result cache, if any.
#[derive(Debug)]
pub(super) struct Used {
    pub model: String,
    pub tokens: Tokens,
    pub result: Option<NewResult>,
}

/// The result of a run.
type Outcome = Result<Success, Failed>;

/// A failed run, and its cost despite the failure.
#[derive(Debug)]
pub(super) struct Failed {
    fault: Fault,
    cost: Usd,
    logs: Option<String>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { fault: Fault::of_step(&failure), cost: Usd::ZERO, logs: None }
    }
}

impl Job {
    pub(super) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl Actor {
    /// Converts a report into an event. If the report grants a permit, the job starts to run; if it
    /// grants memory, the attempt is noted as granted.
    ///
    /// # Errors
    /// [`Error`] if a run's output could not be stored.
    pub(super) fn event_for(&mut self, report: Report) -> Result<Option<Event>, Error> {
        Ok(Some(match report {
            Report::RoomGranted { instance, attempt, room } => {
                self.granted.push((instance, attempt, room));
                return Ok(None);
            }
            Report::PermitGranted { job, permit } => {
                let instance = job.instance.clone();
                let attempt = job.attempt;
                let run = self.inner.run_with_permit(*job, permit);
                self.admitted.insert(instance.clone());
                self.push(instance.clone(), run);
                Event::Started { instance, attempt }
            }
            Report::ChildPrepared { instance, attempt, prepared } => {
                self.child_event(instance, attempt, *prepared)?
            }
            Report::Ended { instance, attempt, outcome, reservation, used } => {
                self.admitted.remove(&instance);
                self.reservations.extend(reservation);
                self.used.extend(used);
                match (*outcome)? {
                    Ok(mut success) => {
                        success.logs = success.logs.filter(|_| !self.is_foreign);
                        Event::Succeeded { instance, attempt, success }
                    }
                    Err(Failed { fault, cost, logs }) => {
                        let fault = self.redact_error(&instance, fault);
                        let logs = logs.filter(|_| !self.is_foreign);
                        Event::Failed { instance, attempt, fault, cost, logs }
                    }
                }
            }
        }))
    }

    /// Starts a job. Returns true if the job runs at once, and false if it waits for a permit.
    pub(super) fn start_job(&mut self, job: Job) -> bool {
        let instance = job.instance.clone();
        let inner = Arc::clone(&self.inner);
        let job = match job {
            Job { attempt, call: Call::Workflow { call, caller }, room, .. } => {
                let run = inner.prepare_child(instance.clone(), attempt, *caller, call);
                let run = async move {
                    let report = run.await;
                    drop(room);
                    report
                };
                self.push(instance, Box::pin(run));
                return false;
            }
            job => job,
        };
        let Call::Model(ModelCall { slug, .. }) = &job.call else {
            let run = inner.run_request(job);
            self.admitted.insert(instance.clone());
            self.push(instance, run);
            return true;
        };
        let permit = inner.acquire_permit(slug, inner.isolation.runs_as_suspect(self.id));
        let has_permit = permit.is_granted();
        let run = if has_permit {
            self.admitted.insert(instance.clone());
            inner.run_with_permit(job, permit)
        } else {
            Box::pin(async move {
                Report::PermitGranted { job: Box::new(job), permit: permit.granted().await }
            })
        };
        self.push(instance, run);
        has_permit
    }

    /// Resolves the input of an attempt. Returns the job and the event that records the input, or
    /// the event for a failure. Returns `None` if the attempt must wait for memory; the caller
    /// calls this function again with the granted `room`.
    pub(super) async fn prepare(
        &mut self,
        progress: &StepProgress,
        instance: Instance,
        attempt: u32,
        room: Option<Turn>,
    ) -> Result<Result<Option<(Job, Event)>, Event>, Error> {
        Ok(match self.resolve_call(progress, &instance, attempt, room).await? {
            Ok(job_and_event) => Ok(job_and_event),
            Err(fault) => {
                let fault = self.redact_error(&instance, fault);
                Err(Event::Failed { instance, attempt, fault, cost: Usd::ZERO, logs: None })
            }
        })
    }

    async fn resolve_call(
        &mut self,
        progress: &StepProgress,
        instance: &Instance,
        attempt: u32,
        room: Option<Turn>,
    ) -> StepResult<Option<(Job, Event)>> {
        let plan = Arc::clone(&self.plan);
        let Some(planned) = plan.at(instance.step) else {
            return Ok(Err(Fault::of_step(&no_such_step())));
        };
        let is_fallback = progress.step(instance).is_some_and(|step| step.primary_error.is_some());
        let view = match split_step_error(self.view_with_secrets(progress, instance).await)? {
            Ok(view) => view,
            Err(fault) => return Ok(Err(fault)),
        };
        let now = || self.room_now(&planned.kind, is_fallback, &view);
        let room = match room.map_or_else(now, |room| Ok(Some(room))) {
            Ok(room) => room,
            Err(taking) => {
                self.wait_for_room(instance.clone(), attempt, taking);
                return Ok(Ok(None));
            }
        };
        if room.is_some() {
            // Measuring and building the input takes time, so let other tasks run before it.
            tokio::task::yield_now().await;
        }
        let key = instance.attempt_key(self.id, &planned.id, attempt);
        let trace = self.trace.call(&key);
        let resolved = match &planned.kind {
            Kind::Model(model) => match resolve_model(model, is_fallback, &view) {
                Ok((slug, input)) => {
                    let slug = slug.to_owned();
                    let may_fall_back = model.fallback.is_some() && !is_fallback;
                    let spent = progress.step(instance).map_or(Usd::ZERO, |step| step.cost);
                    let is_hidden = self.is_foreign;
                    let call = ModelCall { slug, input, may_fall_back, spent, is_hidden };
                    check_model(&*self.inner.models, call).await
                }
                Err(fault) => Err(fault),
            },
            Kind::Http(http) => resolve_http(http, is_fallback, &view),
            Kind::Workflow(child) => {
                let caller = self.caller(&planned.id, child.waits, &trace);
                resolve_child(child, caller, &view)
                    .map(|(call, inputs)| (call, Shown::Value(inputs)))
            }
            Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) | Kind::Wait(_) | Kind::Pass(_) => {
                Err(Fault::of_step(&no_such_step()))
            }
        };
        let (call, shown) = match resolved {
            Ok(resolved) => resolved,
            Err(fault) => return Ok(Err(fault)),
        };
        let input = match self.keep_input(shown).await? {
            Ok(input) => input,
            Err(fault) => return Ok(Err(fault)),
        };
        let prediction = matches!(call, Call::Model(_)).then(new_id);
        let resolved = Event::Resolved { instance: instance.clone(), input, prediction };
        let job = Job {
            instance: instance.clone(),
            attempt,
            key,
            organization: self.organization,
            api_key: self.api_key,
            execution: self.id,
            budget: Arc::clone(&self.budget),
            limit: planned.timeout,
            trace,
            call,
            room,
        };
        Ok(Ok(Some((job, resolved))))
    }

    /// Stores the input of a call, with secrets masked.
    async fn keep_input(&mut self, shown: Shown) -> StepResult<Payload> {
        match shown {
            _ if self.is_foreign => self.store_text(RawValue::NULL.to_owned()).await,
            Shown::Text(text) => self.store_text(text).await,
            Shown::Value(mut value) => {
                mask_value(&mut value);
                self.payload(&value).await
            }
        }
    }

    /// Returns a memory share for the input of a call, if the input needs a share and the memory is
    /// free now. If the memory is not free, returns a future that waits for the share.
    fn room_now(
        &self,
        kind: &Kind,
        is_fallback: bool,
        view: &dyn Scope,
    ) -> Result<Option<Turn>, Taking> {
        let Some(mut taking) = self.room_for(kind, is_fallback, view) else { return Ok(None) };
        taking.as_mut().now_or_never().map(Some).ok_or(taking)
    }

    fn wait_for_room(&mut self, instance: Instance, attempt: u32, taking: Taking) {
        let waiting = instance.clone();
        let granted =
            taking.map(move |room| Report::RoomGranted { instance: waiting, attempt, room });
        self.push(instance, Box::pin(granted));
    }

    /// Returns a future that waits for memory for a call's input, if the input needs a share.
    fn room_for(&self, kind: &Kind, is_fallback: bool, view: &dyn Scope) -> Option<Taking> {
        let size = match kind {
            Kind::Model(model) => params_of(model, is_fallback).1.size(view, RESOLVED_BYTES_MAX),
            Kind::Http(http) => request_of(http, is_fallback).size(view, RESOLVED_BYTES_MAX),
            Kind::Workflow(child) => child.inputs.size(view, RESOLVED_BYTES_MAX),
            Kind::Parallel(_) | Kind::Choice(_) | Kind::Map(_) | Kind::Wait(_) | Kind::Pass(_) => {
                return None;
            }
        };
        let taking = memory::room(&self.inner.memory.calls, self.organization, size)?;
        Some(Box::pin(taking))
    }
}

/// Validates the input of a call, and fills in its defaults. Also returns the input.
async fn check_model(models: &dyn Models, mut call: ModelCall) -> Result<(Call, Shown), Fault> {
    call.input = models.check_input(&call.slug, call.input).await.map_err(|violation| {
        let message = format!("the input of the model '{}' is invalid: {violation}", call.slug);
        Fault::of_step(&Failure::new(ErrorClass::InvalidUserInput, message))
    })?;
    let shown = Shown::Value(call.input.clone());
    Ok((Call::Model(call), shown))
}

const fn params_of(model: &Model, is_fallback: bool) -> (&String, &Template) {
    match &model.fallback {
        Some(fallback) if is_fallback => (&fallback.slug, &fallback.params),
        _ => (&model.slug, &model.params),
    }
}

const fn request_of(http: &Http, is_fallback: bool) -> &Request {
    match &http.fallback {
        Some(fallback) if is_fallback => fallback,
        _ => &http.request,
    }
}

/// Returns the model to run, and its input before validation.
fn resolve_model<'m>(
    model: &'m Model,
    is_fallback: bool,
    view: &dyn Scope,
) -> Result<(&'m str, Value), Fault> {
    let (slug, params) = params_of(model, is_fallback);
    let input = params.resolve(view, RESOLVED_BYTES_MAX);
    Ok((slug, input.map_err(|error| unresolved(&error))?))
}

fn resolve_child(
    child: &SubWorkflow,
    caller: Caller,
    view: &dyn Scope,
) -> Result<(Call, Value), Fault> {
    let inputs = child.inputs.resolve(view, RESOLVED_BYTES_MAX);
    let inputs = inputs.map_err(|error| unresolved(&error))?;
    let (workflow, version) = (child.workflow.clone(), child.version.clone());
    let call = models::Call { workflow, version, inputs: inputs.clone() };
    Ok((Call::Workflow { call, caller: Box::new(caller) }, inputs))
}

fn no_such_step() -> Failure {
    Failure::new(ErrorClass::InternalError, "the plan does not contain this step")
}

fn resolve_http(http: &Http, is_fallback: bool, view: &dyn Scope) -> Result<(Call, Shown), Fault> {
    let mut prepared = request::prepare(request_of(http, is_fallback), view).map_err(|error| {
        if let request::Error::Reference(error) = error {
            return unresolved(&error);
        }
        Fault::of_step(&Failure::new(ErrorClass::InvalidModelConfig, error.to_string()))
    })?;
    let shown = Shown::Text(prepared.take_shown());
    let call = Call::Http { request: Box::new(prepared), fail_when: http.fail_when.clone() };
    Ok((call, shown))
}

impl Inner {
    fn run_request(self: Arc<Self>, job: Job) -> Running {
        let Job {
            instance,
            attempt,
            key,
            organization,
            execution,
            budget,
            limit,
            trace,
            call,
            room,
            ..
        } = job;
        Box::pin(async move {
            let _room = room;
            let _mark = self.isolation.in_flight.begin(Run::attempt(organization, execution, &key));
            let Call::Http { request, fail_when } = call else {
                let outcome = Box::new(Ok(Err(no_such_step().into())));
                return ended(instance, attempt, outcome);
            };
            let limit = limit.unwrap_or(HTTP_TIMEOUT_DEFAULT);
            let sending = request::send(&self.client, *request, &fail_when, limit, &key, &trace);
            let sent = turns::on_behalf_of(organization, Box::pin(sending)).await;
            let outcome = match sent {
                Ok(answer) => self.store_response(answer, execution, &budget).await,
                Err(failure) => Ok(Err(failure.into())),
            };
            ended(instance, attempt, Box::new(outcome))
        })
    }

    fn run_with_permit(self: &Arc<Self>, job: Job, permit: ModelPermit) -> Running {
        let inner = Arc::clone(self);
        let Job {
            instance,
            attempt,
            key,
            organization,
            api_key,
            execution,
            budget,
            limit,
            trace,
            call,
            room,
        } = job;
        Box::pin(async move {
            let _room = room;
            let mark = inner.isolation.in_flight.begin(Run::attempt(organization, execution, &key));
            let (mut reservation, mut used) = (None, None);
            let outcome = match call {
                Call::Model(call) => {
                    let ModelCall { slug, input, spent, .. } = &call;
                    let payer = Payer { organization, key: api_key };
                    match inner.reserve_call(payer, slug, input, *spent).await {
                        Ok(reserved) => {
                            reservation = reserved;
                            let attempt_key = &key;
                            let origin =
                                Origin { organization, key: api_key, execution, attempt_key };
                            let model = slug.clone();
                            let ran = inner.run_step_model(origin, trace, call, limit, &budget);
                            ran.await.map(|(outcome, tokens, result)| {
                                used = Some(Used { model, tokens, result });
                                outcome
                            })
                        }
                        Err(error) => error.of_call().map(|failure| Err(failure.into())),
                    }
                }
                Call::Http { .. } | Call::Workflow { .. } => Ok(Err(no_such_step().into())),
            };
            drop((mark, permit));
            let outcome = Box::new(outcome);
            Report::Ended { instance, attempt, outcome, reservation, used }
        })
    }

    async fn run_step_model(
        &self,
        origin: Origin<'_>,
        trace: trace::Call,
        call: ModelCall,
        limit: Option<Duration>,
        budget: &Budget,
    ) -> Result<(Outcome, Tokens, Option<NewResult>), Error> {
        let failed = |failed: Failed| (Err(failed), Tokens::default(), None);
        let ModelCall { slug, input, may_fall_back, is_hidden, .. } = call;
        let Some(mut work) = self.models.model(&slug) else {
            return Ok(failed(model_removed(&slug).into()));
        };
        work.cache = work.cache.filter(|_| !is_hidden);
        let limit = limit.map_or(work.timeout, |limit| limit.min(work.timeout));
        let reported = Arc::<RunProgress>::default();
        let progress =
            Arc::new(RunProgressSink { run_progress: Arc::clone(&reported), event_logs: None });
        let attempt_key = origin.attempt_key.to_owned();
        let input = Arc::new(input);
        let job = runners::Job { attempt_key, input, progress, may_fall_back, trace };
        let payer = Payer { organization: origin.organization, key: origin.key };
        let ran = self.call_or_find(&work, &slug, job, payer, limit, false).await;
        let logs = reported.take_logs();
        Ok(match ran {
            Ok(ran) => match self.store_output(ran, origin, Some(&work), budget).await? {
                Ok(StoredOutput { output, tokens, cost, is_cached, result, .. }) => {
                    let success = Success { output, answer: None, cost, logs, is_cached };
                    (Ok(success), tokens, result)
                }
                Err(failure) => failed(Failed { logs, ..failure.into() }),
            },
            Err(error) => {
                let fault = Fault::of_step(&error.failure);
                let cost = error.cost.unwrap_or(Usd::ZERO);
                failed(Failed { fault, cost, logs })
            }
        })
    }

    async fn store_response(
        &self,
        answer: request::Response,
        execution: ExecutionId,
        budget: &Budget,
    ) -> Result<Outcome, Error> {
        let request::Response { status, headers, body, room: _room } = answer;
        let text = match serde_json::value::to_raw_value(&body) {
            Ok(text) => text,
            Err(error) => return Ok(Err(not_text(&error).into())),
        };
        let output = match self.store_text(budget, execution, text).await? {
            Ok(output) => output,
            Err(over) => {
                let failure = Failure::new(ErrorClass::InvalidModelConfig, over.to_string());
                return Ok(Err(failure.into()));
            }
        };
        let answer = Some(Arc::new(HttpResponse { status_code: status, headers }));
        Ok(Ok(Success { output, answer, cost: Usd::ZERO, logs: None, is_cached: false }))
    }
}

/// Returns the report of a call that reserved and used nothing.
fn ended(instance: Instance, attempt: u32, outcome: Box<Result<Outcome, Error>>) -> Report {
    Report::Ended { instance, attempt, outcome, reservation: None, used: None }
}

fn not_text(error: &serde_json::Error) -> Failure {
    Failure::new(
        ErrorClass::InternalError,
        format!("the output cannot be serialized as JSON: {error}"),
    )
}
