//! The events of a prediction, as `GET /v1/prediction/{id}/events` sends them
//! (`docs/spec/predictions.md`, "Events"), and of a workflow execution (`docs/spec/workflows.md`,
//! "Events of an execution"). The last event, `end`, carries the whole prediction or execution.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Time;
use orrery_domain::ids::ExecutionId;
use orrery_domain::step;

/// One event: its name and its data.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Event<'a> {
    /// `status`: the prediction was created.
    Created { status: &'static str, at: Time },
    /// `status`: an attempt has started.
    Attempt { status: &'static str, model: &'a str, attempt: u32, at: Time },
    /// `log`: a line of the model's log output, from this attempt.
    Log {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `output`: a part of the output, as the model produces it.
    Output {
        part: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `status`: the workflow execution has started.
    Status { status: &'static str, at: Time },
    /// `step`: a step, or an attempt of a step, has started or ended.
    Step(StepEvent<'a>),
    /// `wait`: a step waits for a time or an event.
    Wait {
        step_id: &'a str,
        #[serde(skip_serializing_if = "<[u32]>::is_empty")]
        items: &'a [u32],
        until: Time,
    },
    /// `pause`: the execution was paused.
    Pause { by: &'a str, at: Time },
    /// `resume`: the execution was resumed.
    Resume { at: Time },
    /// `reset`: the client's last event is from another stream, or events have been dropped. The
    /// stream restarts from the beginning.
    Reset {},
}

/// The progress of a step.
#[derive(Debug, Serialize)]
pub struct StepEvent<'a> {
    pub step_id: &'a str,
    /// The item's index in each enclosing `map`, outermost first.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub items: &'a [u32],
    pub status: step::Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The execution that a `workflow` step has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    pub at: Time,
    /// When the next attempt starts, or when the step times out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<&'a RawValue>,
    /// Set if the output is too large for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_cause: Option<&'a str>,
}

impl Event<'_> {
    /// The event's name in the stream.
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

    /// The event's data: one line of JSON.
    #[must_use]
    pub fn data(&self) -> String {
        // Strings, numbers and JSON values always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}
