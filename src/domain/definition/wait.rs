//! The `wait` step: until when.

use std::time::Duration;

use serde_json::Value;

use super::fields::Fields;
use crate::domain::json_pointer::JsonPointer;
use crate::domain::reference::{self, Reference, Scope};
use crate::domain::template::{RESOLVED_BYTES_MAX, Template};
use crate::domain::time::{Now, Timestamp};

/// The longest wait: 366 days.
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long a step waits.
#[derive(Debug, Clone)]
pub enum Wait {
    /// `seconds`: a number from 0 on, fractions included, or a reference to one.
    For(Template),
    /// `until`: an RFC 3339 time, or a reference to one. A time that has passed is not a wait.
    Until(Template),
}

/// A wait that cannot be made.
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
    /// The steady time at which the wait ends, for a step that starts at `now`.
    ///
    /// # Errors
    /// [`Error`] when what is referred to is missing or names no moment.
    pub fn end(&self, scope: &dyn Scope, now: Now) -> Result<Timestamp, Error> {
        let end = match self {
            Self::For(seconds) => {
                now.steady.plus(duration(&seconds.resolve(scope, RESOLVED_BYTES_MAX)?)?)
            }
            Self::Until(until) => now.due_at(moment(&until.resolve(scope, RESOLVED_BYTES_MAX)?)?),
        };
        if end > now.steady.plus(WAIT_MAX) { Err(Error::TooFar) } else { Ok(end) }
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
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
                fields.say("seconds", "a wait has either seconds or until");
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
        }
    }
}

fn duration(seconds: &Value) -> Result<Duration, Error> {
    let seconds = seconds.as_f64().filter(|seconds| *seconds <= WAIT_MAX.as_secs_f64());
    // Below zero and what is not a number at all are refused here.
    Duration::try_from_secs_f64(seconds.unwrap_or(-1.0)).map_err(|_below_zero| Error::Seconds)
}

fn moment(until: &Value) -> Result<Timestamp, Error> {
    until.as_str().and_then(|text| text.parse().ok()).ok_or(Error::Until)
}
