//! The events of a prediction, as `GET /v1/prediction/{id}/events` sends them
//! (`docs/spec/predictions.md`, "Events"), and of a workflow execution (`docs/spec/workflows.md`,
//! "Events of an execution"). The last event, `end`, contains the complete prediction or execution.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Time;
use super::execution::Execution;
use super::prediction::Prediction;
use orrery_domain::ids::ExecutionId;
use orrery_domain::step;

/// One event: its name and its data.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Event<'a> {
    /// `status`: the prediction or the execution was created.
    #[schemars(title = "CreatedEvent")]
    Created {
        /// The first status: `created` for a prediction, `queued` for an execution.
        #[schemars(extend("enum" = ["created", "queued"]))]
        status: &'static str,
        /// When the prediction or the execution was created.
        at: Time,
    },
    /// `status`: an attempt has started.
    #[schemars(title = "AttemptEvent")]
    Attempt {
        /// Always `processing`.
        #[schemars(extend("const" = "processing"))]
        status: &'static str,
        /// The model that runs.
        model: &'a str,
        /// The number of the attempt, starting at 1.
        attempt: u32,
        /// When the attempt started.
        at: Time,
    },
    /// `log`: a line of the model's log output.
    #[schemars(title = "LogEvent")]
    Log {
        /// The line.
        text: &'a str,
        /// The attempt that wrote the line. Absent for lines of earlier attempts.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `output`: a part of the output, as the model produces it.
    #[schemars(title = "OutputEvent")]
    Output {
        /// The part.
        part: &'a Value,
        /// The attempt that produced the part.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    /// `status`: the workflow execution has started.
    #[schemars(title = "StatusEvent")]
    Status {
        /// The status of the execution.
        #[schemars(extend("enum" = ["queued", "running"]))]
        status: &'static str,
        /// When the execution started.
        at: Time,
    },
    /// `step`: a step, or an attempt of a step, has started or ended.
    #[schemars(title = "StepEvent")]
    Step(StepEvent<'a>),
    /// `wait`: a step waits for a time or an event.
    #[schemars(title = "WaitEvent")]
    Wait {
        /// The ID of the step.
        step_id: &'a str,
        /// The item's index in each enclosing `map`, outermost first.
        #[serde(skip_serializing_if = "<[u32]>::is_empty")]
        items: &'a [u32],
        /// When the wait ends, or the step times out.
        until: Time,
    },
    /// `pause`: the execution was paused.
    #[schemars(title = "PauseEvent")]
    Pause {
        /// The API key, the member or the step that paused the execution.
        by: &'a str,
        /// When the execution was paused.
        at: Time,
    },
    /// `resume`: the execution was resumed.
    #[schemars(title = "ResumeEvent")]
    Resume {
        /// When the execution was resumed.
        at: Time,
    },
    /// `reset`: the client's last event is from another stream, or events have been dropped. The
    /// stream restarts from the beginning.
    #[schemars(title = "ResetEvent", extend("additionalProperties" = false))]
    Reset {},
}

/// `step`: a step, or an attempt of a step, has started or ended.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StepEvent<'a> {
    /// The ID of the step.
    pub step_id: &'a str,
    /// The item's index in each enclosing `map`, outermost first.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub items: &'a [u32],
    /// The status of the step.
    pub status: step::Status,
    /// The number of the attempt, starting at 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The execution that a `workflow` step has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// When the step or the attempt started or ended.
    pub at: Time,
    /// When the next attempt starts, or when the step times out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The output of a completed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<&'a RawValue>,
    /// Set if the output is too large for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<bool>,
    /// The name of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
    /// The cause of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_cause: Option<&'a str>,
}

/// The schema of the data in the stream of a prediction.
#[derive(Debug)]
pub struct OfPrediction;

impl JsonSchema for OfPrediction {
    fn schema_name() -> Cow<'static, str> {
        "PredictionEvent".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let titles = ["CreatedEvent", "AttemptEvent", "LogEvent", "OutputEvent", "ResetEvent"];
        let end = generator.subschema_for::<Prediction<'_>>();
        schema_of(generator, &titles, end, "a prediction")
    }
}

/// The schema of the data in the stream of a workflow execution.
#[derive(Debug)]
pub struct OfExecution;

impl JsonSchema for OfExecution {
    fn schema_name() -> Cow<'static, str> {
        "ExecutionEvent".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let titles = [
            "CreatedEvent",
            "StatusEvent",
            "StepEvent",
            "WaitEvent",
            "PauseEvent",
            "ResumeEvent",
            "ResetEvent",
        ];
        let end = generator.subschema_for::<Execution>();
        schema_of(generator, &titles, end, "a workflow execution")
    }
}

/// Returns the schema of a stream with the events of these titles and `end`.
fn schema_of(generator: &mut SchemaGenerator, titles: &[&str], end: Schema, of: &str) -> Schema {
    let all = Event::json_schema(generator);
    let all = all.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    let title_of = |one: &Value| one.get("title").and_then(Value::as_str).map(str::to_owned);
    let is_sent = |one: &&Value| title_of(one).is_some_and(|title| titles.contains(&&*title));
    let mut data: Vec<Value> = all.filter(is_sent).cloned().collect();
    data.push(end.to_value());
    json_schema!({
        "description": format!(
            "The data of an event in the stream of {of}. The schema of each event begins with the \
             event's name; the data of `end` is the whole of {of}."
        ),
        "anyOf": data,
    })
}

impl Event<'_> {
    /// Returns the event's name in the stream.
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

    /// Returns the event's data: one line of JSON.
    #[must_use]
    pub fn data(&self) -> String {
        // Strings, numbers and JSON values always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}
