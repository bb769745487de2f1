//! Answers the requests of the state machine: for the result of a condition, the items of a map,
//! the end of a wait, the output of a step with nested steps, or the output of the execution.
//!
//! All answers depend only on committed state, so they are the same after a crash.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Actor;
use super::memory::{self, steps_in_maps};
use super::view::View;
use crate::Error;
use crate::rows::SentEvent;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{Block, Choice, Kind, MapStep, Output, Parallel, Wait, WaitError};
use orrery_domain::execution::{Execution, Fault};
use orrery_domain::json_size::Size;
use orrery_domain::machine::workflow::{Event, ITEMS_MAX, StepProgress};
use orrery_domain::payload::Payload;
use orrery_domain::reference;
use orrery_domain::step::{Instance, Status};
use orrery_domain::template::{RESOLVED_BYTES_MAX, Template};
use orrery_runtime::turns::Turn;

/// The result of a lookup: a [`Fault`] fails the step, and an [`Error`] fails the run of the entire
/// workflow, which is then retried.
pub(super) type StepResult<T> = Result<Result<T, Fault>, Error>;

/// The error name of an unresolvable reference. The error's cause names references, but never
/// includes their values.
pub(super) const REFERENCE_ERROR: &str = "ReferenceError";

/// Returns the error of an unresolvable reference.
pub(super) fn unresolved(error: &reference::Error) -> Fault {
    Fault::new(REFERENCE_ERROR, ErrorClass::InvalidModelConfig, error.to_string())
}

fn type_error(cause: impl Into<String>) -> Fault {
    Fault::new("StepFailed", ErrorClass::InvalidModelConfig, cause)
}

/// Separates errors that fail the step from errors that do not: permanently unreadable data (a
/// damaged file, an output that is nested too deeply) fails the step, and a disk error does not.
pub(super) fn split_step_error<T>(result: Result<T, Error>) -> StepResult<T> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Storage(error)) if error.is_final() => {
            let cause = format!("a referenced output cannot be read: {error}");
            Ok(Err(Fault::new("InternalError", ErrorClass::InternalError, cause)))
        }
        Err(error) => Err(error),
    }
}

impl Actor {
    /// Returns the result of a step that runs neither a model nor a request.
    pub(super) async fn answer(
        &mut self,
        progress: &StepProgress,
        instance: Instance,
    ) -> Result<Event, Error> {
        let plan = Arc::clone(&self.plan);
        let Some(planned) = plan.at(instance.step) else {
            return Ok(Event::StepInvalid {
                instance,
                fault: type_error("the plan does not contain this step"),
            });
        };
        let uses = plan.uses(instance.step);
        let view = self.view(progress, instance.step, &instance.items, uses).await;
        let view = match split_step_error(view)? {
            Ok(view) => view,
            Err(fault) => return Ok(Event::StepInvalid { instance, fault }),
        };
        let event = match &planned.kind {
            Kind::Choice(choice) => choice
                .condition
                .holds(&view)
                .map(|met| Event::Decided { instance: instance.clone(), met })
                .map_err(|error| unresolved(&error)),
            Kind::Map(map) => self.items_of(map, &view, &instance).await,
            Kind::Wait(wait) if wait.event().is_some() => match self.answer_of(&instance).await? {
                Some(answered) => return Ok(answered),
                None => self.wait_end(wait, &view, &instance),
            },
            Kind::Wait(wait) => self.wait_end(wait, &view, &instance),
            Kind::Pass(pass) => match self.resolve(&pass.result, &view).await? {
                Ok(output) => Ok(Event::ResultReady { instance: instance.clone(), output }),
                Err(fault) => Err(fault),
            },
            Kind::Model(_) | Kind::Http(_) | Kind::Parallel(_) | Kind::Workflow(_) => {
                Err(type_error("steps of this type have no direct result"))
            }
        };
        Ok(event.unwrap_or_else(|fault| Event::StepInvalid { instance, fault }))
    }

    /// Computes the end of a wait.
    fn wait_end(&self, wait: &Wait, view: &View, instance: &Instance) -> Result<Event, Fault> {
        let until = wait.end(view, self.inner.clock.reading());
        until.map(|until| Event::WaitUntil { instance: instance.clone(), until }).map_err(|error| {
            match error {
                WaitError::Reference(error) => unresolved(&error),
                WaitError::Seconds | WaitError::Until | WaitError::TooFar => {
                    type_error(error.to_string())
                }
            }
        })
    }

    /// Returns the event for a step if an answer was sent to it.
    pub(super) async fn answer_of(&mut self, instance: &Instance) -> Result<Option<Event>, Error> {
        let plan = Arc::clone(&self.plan);
        let sent = self.inner.sent_event(&plan, self.id, instance).await?;
        let Some(SentEvent { payload, source, .. }) = sent else { return Ok(None) };
        let instance = instance.clone();
        Ok(Some(match self.store_text(payload).await? {
            Ok(output) => Event::Answered { instance, output, source },
            Err(fault) => Event::StepInvalid { instance, fault },
        }))
    }

    /// Returns the events for answers that were sent to waiting steps. Reads the store only if
    /// answers may have arrived.
    pub(super) async fn take_answers(
        &mut self,
        progress: &StepProgress,
    ) -> Result<Vec<Event>, Error> {
        let mut answers = Vec::new();
        if !std::mem::take(&mut self.may_have_events) || !self.has_events {
            return Ok(answers);
        }
        let plan = Arc::clone(&self.plan);
        for (step, _) in plan.events() {
            let instance = Instance::of(step.position);
            let waits = progress
                .step(&instance)
                .is_some_and(|step| !step.status.is_final() && step.due.is_some());
            if waits {
                answers.extend(self.answer_of(&instance).await?);
            }
        }
        Ok(answers)
    }

    /// Resolves the items of a map. The items stay in memory while the map is open.
    async fn items_of(
        &mut self,
        map: &MapStep,
        view: &View,
        instance: &Instance,
    ) -> Result<Event, Fault> {
        // Hold this memory share until the items are counted as part of the open map.
        let _room = self.room_to_resolve(map.items.size(view, RESOLVED_BYTES_MAX)).await;
        let items = map.items.resolve(view, RESOLVED_BYTES_MAX);
        let Value::Array(items) = items.map_err(|error| unresolved(&error))? else {
            return Err(type_error("items must resolve to an array"));
        };
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if count > ITEMS_MAX {
            return Err(type_error(format!("there are {count} items, more than {ITEMS_MAX}")));
        }
        self.memory.open_map(&items, steps_in_maps(&self.plan));
        self.items.insert(instance.clone(), Arc::new(items));
        Ok(Event::MapOpened { instance: instance.clone(), items: count })
    }

    /// Resolves a template into a payload.
    async fn resolve(&mut self, template: &Template, view: &View) -> StepResult<Payload> {
        let size = template.size(view, RESOLVED_BYTES_MAX);
        let _room = self.room_to_resolve(size).await;
        self.slice.end().await;
        let value = match template.resolve(view, RESOLVED_BYTES_MAX) {
            Ok(value) => value,
            Err(error) => return Ok(Err(unresolved(&error))),
        };
        self.payload(&value).await
    }

    /// Acquires memory for a value that is built and stored right away.
    fn room_to_resolve(
        &self,
        size: Size,
    ) -> OptionFuture<impl Future<Output = Turn> + Send + use<>> {
        memory::room(&self.inner.memory.resolving, self.organization, size).into()
    }

    /// Stores a value as a payload, in a file if it is large.
    pub(super) async fn payload(&mut self, value: &Value) -> StepResult<Payload> {
        let text = serde_json::value::to_raw_value(value);
        let text = text.map_err(|error| orrery_storage::Error::malformed("output", error))?;
        self.store_text(text).await
    }

    /// Stores a text as a payload if the budget allows it.
    pub(super) async fn store_text(&mut self, text: Box<RawValue>) -> StepResult<Payload> {
        let kept = self.inner.store_text(&self.budget, self.id, text).await?;
        Ok(kept.map_err(|over| type_error(over.to_string())))
    }

    /// Builds the output of one item of a map, or of a step whose nested steps have ended.
    pub(super) async fn join_outputs(
        &mut self,
        progress: &StepProgress,
        instance: Instance,
        item: Option<u32>,
    ) -> Result<Event, Error> {
        let plan = Arc::clone(&self.plan);
        let kind = plan.at(instance.step).map(|step| &step.kind);
        let gathered = match (kind, item) {
            (Some(Kind::Map(map)), Some(item)) => {
                self.item_output(progress, map, &instance, item).await?
            }
            (Some(Kind::Map(_)), None) => {
                self.items.remove(&instance);
                let outputs = progress.items(&instance).unwrap_or_default().to_vec();
                self.join_array(outputs).await?
            }
            (Some(Kind::Parallel(parallel)), _) => {
                let outputs = outputs_of(progress, parallel, &instance);
                self.join_array(outputs).await?
            }
            (Some(Kind::Choice(choice)), _) => {
                let output = output_of_taken(progress, choice, &instance);
                Ok(output.map_or_else(null_output, Ok)?)
            }
            _ => Err(type_error("this step has no output")),
        };
        Ok(match gathered {
            Ok(output) => Event::Joined { instance, item, output },
            Err(fault) => Event::StepInvalid { instance, fault },
        })
    }

    async fn item_output(
        &mut self,
        progress: &StepProgress,
        map: &MapStep,
        instance: &Instance,
        item: u32,
    ) -> StepResult<Payload> {
        let mut items = instance.items.clone();
        items.push(item);
        let Some(template) = &map.output else {
            return Ok(Ok(last_output(progress, &map.steps, &items).map_or_else(null_output, Ok)?));
        };
        let uses = self.plan.used_by(template);
        let view = self.view(progress, instance.step, &items, &uses).await;
        match split_step_error(view)? {
            Ok(view) => self.resolve(template, &view).await,
            Err(fault) => Ok(Err(fault)),
        }
    }

    /// Joins outputs into an array, with null in place of missing outputs.
    async fn join_array(&mut self, outputs: Vec<Option<Payload>>) -> StepResult<Payload> {
        let bytes: u64 = outputs.iter().flatten().map(Payload::len).sum();
        if bytes > RESOLVED_BYTES_MAX as u64 {
            let limit = RESOLVED_BYTES_MAX;
            return Ok(Err(type_error(format!(
                "the outputs of the nested steps exceed {limit} bytes"
            ))));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let _room = self.room_to_resolve(Size::bound(bytes, 0)).await;
        let mut text = String::from("[");
        for (number, output) in outputs.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            match output {
                None => text.push_str("null"),
                Some(Payload::Inline(raw)) => text.push_str(raw.get()),
                Some(payload) => {
                    let read = self.inner.store.read_payload(payload).await.map_err(Error::from);
                    match split_step_error(read)? {
                        Ok(raw) => text.push_str(raw.get()),
                        Err(fault) => return Ok(Err(fault)),
                    }
                }
            }
        }
        text.push(']');
        let text = RawValue::from_string(text)
            .map_err(|error| orrery_storage::Error::malformed("output", error))?;
        self.store_text(text).await
    }

    /// Returns the event that ends an execution that can no longer make progress.
    pub(super) fn standstill(&self, execution: &Execution) -> Option<Event> {
        if !self.timers.is_empty() || execution.paused().is_some() {
            return None;
        }
        let cause = "no runnable step left".to_owned();
        let fault = Fault::new("InternalError", ErrorClass::InternalError, cause);
        Some(Event::OutputResolved { output: Err(fault) })
    }

    /// Resolves the output of the execution.
    pub(super) async fn resolve_output(&mut self, progress: &StepProgress) -> Result<Event, Error> {
        let plan = Arc::clone(&self.plan);
        let output = match plan.output() {
            Output::LastStep(last) => {
                let last = progress.step(&Instance::of(*last));
                Ok(last.and_then(|step| step.output.clone()).map_or_else(null_output, Ok)?)
            }
            Output::Mapping(template) => {
                let uses = plan.used_by(template);
                let first = orrery_domain::definition::StepIndex::new(0);
                let view = self.view(progress, first, &[], &uses).await;
                match split_step_error(view)? {
                    Ok(view) => self.resolve(template, &view).await?,
                    Err(fault) => Err(fault),
                }
            }
        };
        let named = |mut fault: Fault| {
            fault.cause = format!("the output of the workflow: {}", fault.cause);
            fault
        };
        Ok(Event::OutputResolved { output: output.map_err(named) })
    }
}

/// Returns null, which is used in place of a missing output.
fn null_output() -> Result<Payload, Error> {
    Payload::of(&()).map_err(|error| orrery_storage::Error::malformed("output", error).into())
}

/// Returns the output of the last step of a block.
fn last_output(progress: &StepProgress, block: &Block, items: &[u32]) -> Option<Payload> {
    let last = Instance { step: *block.positions().last()?, items: items.to_vec() };
    progress.step(&last)?.output.clone()
}

/// Returns the output of each branch, which is the output of the branch's last step.
fn outputs_of(
    progress: &StepProgress,
    parallel: &Parallel,
    instance: &Instance,
) -> Vec<Option<Payload>> {
    let branches = parallel.branches.iter();
    branches.map(|branch| last_output(progress, &branch.steps, &instance.items)).collect()
}

/// Returns the output of the branch that ran.
fn output_of_taken(
    progress: &StepProgress,
    choice: &Choice,
    instance: &Instance,
) -> Option<Payload> {
    let is_taken = |block: &&Block| {
        block.positions().first().is_some_and(|first| {
            let first = Instance { step: *first, items: instance.items.clone() };
            progress.step(&first).is_some_and(|step| step.status != Status::Skipped)
        })
    };
    let taken = [&choice.met, &choice.otherwise].into_iter().find(is_taken)?;
    last_output(progress, taken, &instance.items)
}
