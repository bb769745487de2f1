//! The events of a prediction, as `GET /v1/prediction/{id}/events` sends them
//! (`docs/spec/predictions.md`, "Events"). The last one, `end`, carries the prediction itself.

use serde::Serialize;
use serde_json::Value;

use super::Time;

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
    /// `reset`: the client knows events of another stream, or some are lost; what follows starts
    /// from the beginning.
    Reset {},
}

impl Event<'_> {
    /// Its name in the stream.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } | Self::Attempt { .. } => "status",
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
