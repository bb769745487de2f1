//! The `wait` step: for a duration, until a time, or for an event.

use std::time::Duration;

use serde_json::Value;

use super::fields::Fields;
use crate::json_pointer::JsonPointer;
use crate::reference::{self, Reference, Scope};
use crate::secret::is_name;
use crate::template::{RESOLVED_BYTES_MAX, Template};
use crate::time::{Now, Timestamp};

/// The error of a wait that does not set exactly one of these fields.
const ONE_OF: &str = "a wait needs exactly one of seconds, until and event";
/// Maximum wait: 366 days.
pub const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// What a step waits for.
#[derive(Debug, Clone)]
pub enum Wait {
    /// `seconds`: a non-negative, possibly fractional number, or a reference to one.
    For(Template),
    /// `until`: an RFC 3339 time, or a reference to one. A time in the past ends the wait at once.
    Until(Template),
    /// `event`: until the event is sent.
    Event(EventWait),
}

/// An event that a step waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct EventWait {
    /// The event's name, which is unique in the definition: 1 to 64 characters of `a-zA-Z0-9_-`.
    pub name: String,
    /// The schema of the event's payload.
    pub schema: Option<Value>,
    /// Timeout of the wait; `None` means the maximum wait.
    pub timeout: Option<Duration>,
    /// The step's output on a timeout; `None` means that the step fails.
    pub default: Option<Value>,
}

/// Why a wait cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Reference(#[from] reference::Error),
    #[error("seconds must be a number from 0 to {}", WAIT_MAX.as_secs())]
    Seconds,
    #[error("until must be an RFC 3339 time such as 2026-11-20T09:30:00Z")]
    Until,
    #[error("until is more than 366 days ahead")]
    TooFar,
}

impl Wait {
    /// Returns the end of the wait on the steady clock, for a step that starts at `now`.
    ///
    /// # Errors
    /// [`Error`] if a referenced value is missing or invalid.
    pub fn end(&self, scope: &dyn Scope, now: Now) -> Result<Timestamp, Error> {
        let end = match self {
            Self::For(seconds) => {
                now.steady.plus(duration(&seconds.resolve(scope, RESOLVED_BYTES_MAX)?)?)
            }
            Self::Until(until) => now.due_at(moment(&until.resolve(scope, RESOLVED_BYTES_MAX)?)?),
            Self::Event(event) => now.steady.plus(event.limit()),
        };
        if end > now.steady.plus(WAIT_MAX) { Err(Error::TooFar) } else { Ok(end) }
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        if let Some(event) = fields.object("event") {
            if fields.take("seconds").is_some() || fields.take("until").is_some() {
                fields.say("event", ONE_OF);
            }
            return EventWait::read(fields.nested("event", event)).map(Self::Event);
        }
        match (fields.take("seconds"), fields.take("until")) {
            (Some(written), None) => {
                let seconds = fields.parse("seconds", &written)?;
                if let Some(Err(error)) = seconds.constant().map(duration) {
                    fields.say("seconds", error.to_string());
                }
                Some(Self::For(seconds))
            }
            (None, Some(written)) => {
                let until = fields.parse("until", &written)?;
                if let Some(Err(error)) = until.constant().map(moment) {
                    fields.say("until", error.to_string());
                }
                Some(Self::Until(until))
            }
            (Some(_), Some(_)) | (None, None) => {
                fields.say("seconds", ONE_OF);
                None
            }
        }
    }

    pub(super) fn visit<'w>(
        &'w self,
        place: &JsonPointer<'_>,
        see: &mut dyn FnMut(&JsonPointer<'_>, &'w Reference),
    ) {
        match self {
            Self::For(seconds) => seconds.visit(&place.field("seconds"), see),
            Self::Until(until) => until.visit(&place.field("until"), see),
            Self::Event(_) => {}
        }
    }

    /// Returns the event that the step waits for, if any.
    #[must_use]
    pub const fn event(&self) -> Option<&EventWait> {
        match self {
            Self::Event(event) => Some(event),
            Self::For(_) | Self::Until(_) => None,
        }
    }
}

impl EventWait {
    /// Returns the maximum wait for the event.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.timeout.unwrap_or(WAIT_MAX)
    }

    fn read(mut fields: Fields<'_>) -> Option<Self> {
        let name = fields.required_text("name").filter(|name| {
            let is_name = is_name(name);
            if !is_name {
                fields.refuse("name", "must have 1 to 64 characters of a-z A-Z 0-9 _ -");
            }
            is_name
        });
        let schema = fields.object("schema").map(Value::Object);
        let timeout = fields.seconds("timeout_seconds", &(0.0..=WAIT_MAX.as_secs_f64()));
        let default = fields.take("default");
        let default = default.and_then(|written| {
            let constant = fields.parse("default", &written)?.constant().cloned();
            if constant.is_none() {
                fields.refuse("default", "must not have references in it");
            }
            constant
        });
        fields.end("the event of a wait");
        Some(Self { name: name?, schema, timeout, default })
    }
}

fn duration(seconds: &Value) -> Result<Duration, Error> {
    let seconds = seconds.as_f64().filter(|seconds| *seconds <= WAIT_MAX.as_secs_f64());
    // Maps negative numbers and non-numbers to the same error.
    Duration::try_from_secs_f64(seconds.unwrap_or(-1.0)).map_err(|_below_zero| Error::Seconds)
}

fn moment(until: &Value) -> Result<Timestamp, Error> {
    until.as_str().and_then(|text| text.parse().ok()).ok_or(Error::Until)
}
