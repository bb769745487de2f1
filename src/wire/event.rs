//! The events of a prediction, as `GET /v1/prediction/{id}/events` sends them
//! (`docs/spec/predictions.md`, "Events"), and of an execution of a workflow (`docs/spec/workflows.md`, "Events
//! of an execution"). The last one, `end`, carries the whole.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Time;
use crate::domain::ids::ExecutionId;
use crate::domain::step;

/// One event: its name and its data.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Event<'a> {
    /// `status`: the prediction was created.
    Created { status: &'static str, at: Time },
    /// `status`: an attempt has begun.
    Attempt { status: &'static str, model: &'a str, attempt: u32, at: Time },
    /// `log`: a line that the model wrote, during this attempt.
    Log {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `output`: a part of the output, as the model gives it.
    Output {
        part: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `status`: the execution of a workflow has begun.
    Status { status: &'static str, at: Time },
    /// `step`: a step has begun, has ended, or an attempt at it has.
    Step(StepEvent<'a>),
    /// `wait`: a step waits for a moment or an event.
    Wait {
        step_id: &'a str,
        #[serde(skip_serializing_if = "<[u32]>::is_empty")]
        items: &'a [u32],
        until: Time,
    },
    /// `pause`
    Pause { by: &'a str, at: Time },
    /// `resume`
    Resume { at: Time },
    /// `reset`: the client knows events of another stream, or some are lost; what follows starts
    /// from the beginning.
    Reset {},
}

/// What became of a step.
#[derive(Debug, Serialize)]
pub struct StepEvent<'a> {
    pub step_id: &'a str,
    /// The item's number in each `map` around it, outermost first.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub items: &'a [u32],
    pub status: step::Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The execution that a step of type workflow has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    pub at: Time,
    /// When the next attempt comes, or the time of the step is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<&'a RawValue>,
    /// Present when the output is too large for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_cause: Option<&'a str>,
}

impl Event<'_> {
    /// Its name in the stream.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } | Self::Attempt { .. } | Self::Status { .. } => "status",
            Self::Step(_) => "step",
            Self::Wait { .. } => "wait",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Log { .. } => "log",
            Self::Output { .. } => "output",
            Self::Reset {} => "reset",
        }
    }

    /// Its data: one line of JSON.
    #[must_use]
    pub fn data(&self) -> String {
        // Texts, numbers and JSON values always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}
