//! The events of an exchange. The events are derived from the exchange's committed steps, so a
//! client that reconnects receives exactly the events that it missed, even after a crash.
//!
//! An event's id is the event's position: the index of the step and the event's number within the
//! step, or `end` and a number for the events that follow the last step.

use serde_json::{Value, json};

use super::error::Error;
use super::service::Inner;
use orrery_domain::agent::{Begun, Done};
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::step::Step;
use orrery_engine as engine;

/// The first part of the ids of events after the last step.
const END: &str = "end";

/// One event of an exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskEvent {
    pub id: String,
    /// A JSON object with a `type`.
    pub data: Value,
}

/// A client's position in the events of an exchange.
#[derive(Debug, Clone)]
pub struct Feed {
    organization: OrganizationId,
    pub task: ExecutionId,
    /// The next step, and the number of its events that were already returned. After the last step,
    /// the number counts the final events.
    step: usize,
    given: usize,
    is_over: bool,
}

impl Feed {
    /// Creates the feed of an exchange after the event `last`. An invalid id is treated as absent.
    pub fn new(organization: OrganizationId, task: ExecutionId, last: Option<&str>) -> Self {
        let parts = last.and_then(|id| id.split_once('-'));
        let place = parts.and_then(|(step, number)| {
            let step = if step == END { usize::MAX } else { step.parse().ok()? };
            Some((step, number.parse().ok()?))
        });
        let (step, given) = place.unwrap_or((0, 0));
        Self { organization, task, step, given, is_over: false }
    }

    /// Returns whether all events were returned.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the events that are available now. Cancel-safe: dropping the future loses no event.
    pub(super) async fn news(&mut self, inner: &Inner) -> Result<Vec<TaskEvent>, Error> {
        let mut ahead = self.clone();
        let news = ahead.advance(inner).await?;
        *self = ahead;
        Ok(news)
    }

    async fn advance(&mut self, inner: &Inner) -> Result<Vec<TaskEvent>, Error> {
        if self.is_over {
            return Ok(Vec::new());
        }
        // The execution is read before its steps, so that a finished execution has all of its
        // steps.
        let execution = inner.exchange(self.organization, self.task).await?;
        let steps = inner.engine.steps_of(self.task).await?;
        let mut news = Vec::new();
        for (index, step) in steps.iter().enumerate().skip(self.step) {
            let events = self.events_of(inner, step).await?;
            if index > self.step {
                (self.step, self.given) = (index, 0);
            }
            for data in events.into_iter().skip(self.given) {
                self.given += 1;
                news.push(TaskEvent { id: format!("{index}-{}", self.given), data });
            }
        }
        if execution.status.is_final() {
            self.is_over = true;
            let made = generations(inner, &steps).await?;
            let last = endings(&execution, made);
            let given = if self.step == usize::MAX { self.given } else { 0 };
            let numbered = last.into_iter().zip(1_usize..).skip(given);
            news.extend(
                numbered.map(|(data, number)| TaskEvent { id: format!("{END}-{number}"), data }),
            );
        }
        Ok(news)
    }

    async fn events_of(&self, inner: &Inner, step: &Step) -> Result<Vec<Value>, engine::Error> {
        let (begun, done) = read(inner, step).await?;
        let done = done.map(|done| done.events);
        let begun = begun.map(|begun| begun.events).unwrap_or_default();
        let events = begun.into_iter().chain(done.into_iter().flatten());
        let render = |event| inner.with_links(self.organization, event);
        Ok(events.map(render).collect())
    }
}

/// Returns the contents of a step's row; `None` if retention has deleted the row.
pub(crate) async fn read(
    inner: &Inner,
    step: &Step,
) -> Result<(Option<Begun>, Option<Done>), engine::Error> {
    let begun = match &step.input {
        Some(input) => serde_json::from_str(inner.store.read_payload(input).await?.get()).ok(),
        None => None,
    };
    let done = match &step.output {
        Some(output) => serde_json::from_str(inner.store.read_payload(output).await?.get()).ok(),
        None => None,
    };
    Ok((begun, done))
}

/// Returns the outputs of all steps as `generation_response` events.
async fn generations(inner: &Inner, steps: &[Step]) -> Result<Vec<Value>, engine::Error> {
    let mut made = Vec::new();
    for step in steps {
        let events = read(inner, step).await?.1.map(|done| done.events).unwrap_or_default();
        for event in events {
            if let Some(of_one) = event.get("generations").and_then(Value::as_array) {
                made.extend(of_one.iter().cloned());
            }
        }
    }
    Ok(made)
}

/// Builds the final events of an exchange.
fn endings(execution: &Execution, generations: Vec<Value>) -> Vec<Value> {
    let fault = match (&execution.fault, execution.status) {
        (Some(fault), _) => Some((fault.cause.as_str(), fault.name.as_str())),
        (None, Status::Cancelled) => Some(("the task was cancelled", "Cancelled")),
        (None, _) => None,
    };
    let mut events = Vec::new();
    if let Some((message, code)) = fault {
        let details = execution.fault.as_ref().map(|fault| fault.class.as_str());
        events.push(json!({
            "type": "error", "message": message, "error_code": code,
            "details": {"error_classification": details},
        }));
    }
    let exchange = execution.agent();
    let asks = exchange.is_some_and(|exchange| exchange.needs_clarification);
    let status = match (fault, asks) {
        (Some(_), _) => "error",
        (None, true) => "clarification_needed",
        (None, false) => "ok",
    };
    let time = execution.run_time().unwrap_or_default();
    events.push(json!({
        "type": "complete",
        "task_id": execution.id,
        "status": status,
        "generations": generations,
        "model": exchange.map(|exchange| exchange.model.as_str()),
        "cost": execution.cost.dollars(),
        "total_time_ms": u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    }));
    events
}
