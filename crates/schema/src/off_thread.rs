//! Runs compilation and validation on blocking threads instead of the threads that serve requests.
//! Inputs that take only microseconds stay on the caller's thread, because switching threads would
//! cost more than the check. Longer work needs one of a few permits, so that the rest of the
//! service keeps its cores. A permit is released when its work ends, even if the caller has stopped
//! waiting for the result.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    Attempt, INLINE_BYTES, INLINE_STEPS, QUICK_STEPS, STEPS_MAX, Schema, Violation, too_much,
};

/// Maximum number of concurrent compilations of schemas and definitions.
pub const COMPILATIONS_MAX: usize = 2;
/// Maximum number of concurrent validations of more than [`QUICK_STEPS`].
pub const VALIDATIONS_MAX: usize = 2;
/// Maximum total time that a request waits for its permit and its work.
pub const DEADLINE: Duration = Duration::from_secs(10);

static COMPILING: Semaphore = Semaphore::const_new(COMPILATIONS_MAX);
static VALIDATING: Semaphore = Semaphore::const_new(VALIDATIONS_MAX);

/// The reason that the work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("too many definitions and inputs are being checked; try again in a moment")]
    Busy,
    #[error("the check stopped unexpectedly")]
    Panicked,
}

/// The reason that an input is rejected. `Display` prints the first violation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// The violations of the schema, at least one.
    #[error("{}", .0.first().map_or("", |violation| violation.message.as_str()))]
    Violations(Vec<Violation>),
    #[error(transparent)]
    Unavailable(Unavailable),
}

/// How long the caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// For a request: waits for up to [`DEADLINE`].
    Request,
    /// For an execution: waits without a limit.
    Execution,
}

/// Runs a compilation as soon as a permit is free.
///
/// # Errors
/// [`Unavailable`].
pub async fn compile<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unavailable> {
    in_turn(&COMPILING, Patience::Request, work).await
}

async fn in_turn<T: Send + 'static>(
    places: &'static Semaphore,
    patience: Patience,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unavailable> {
    let working = async move {
        let place = places.acquire().await.map_err(|_closed| Unavailable::Busy)?;
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        working.await.map_err(|_panic| Unavailable::Panicked)
    };
    match patience {
        Patience::Execution => working.await,
        Patience::Request => {
            tokio::time::timeout(DEADLINE, working).await.unwrap_or(Err(Unavailable::Busy))
        }
    }
}

/// Returns whether a value has at most about `left` bytes. Stops counting at that limit.
fn is_small(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => 0,
    };
    let Some(rest) = left.checked_sub(own + 8) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| is_small(item, left)),
        Value::Object(fields) => fields.iter().all(|(name, field)| {
            *left = left.saturating_sub(name.len());
            is_small(field, left)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

impl Schema {
    /// Runs [`Schema::check`] on a blocking thread, unless the check takes only microseconds.
    /// Longer checks wait for a permit.
    ///
    /// # Errors
    /// [`ValidationError`].
    pub async fn check_off_thread(
        self: &Arc<Self>,
        mut value: Value,
        patience: Patience,
    ) -> Result<Value, ValidationError> {
        if self.is_inline && is_small(&value, &mut { INLINE_BYTES }) {
            match self.attempt(value, INLINE_STEPS) {
                Attempt::Fits(value) => return Ok(value),
                Attempt::Violations(violations) => {
                    return Err(ValidationError::Violations(violations));
                }
                Attempt::Over(partly_filled) => value = partly_filled,
            }
        }
        let schema = Arc::clone(self);
        let quick = tokio::task::spawn_blocking(move || schema.attempt(value, QUICK_STEPS)).await;
        let value = match quick {
            Err(_panic) => return Err(ValidationError::Unavailable(Unavailable::Panicked)),
            Ok(Attempt::Fits(value)) => return Ok(value),
            Ok(Attempt::Violations(violations)) => {
                return Err(ValidationError::Violations(violations));
            }
            Ok(Attempt::Over(value)) => value,
        };
        let schema = Arc::clone(self);
        let work = move || schema.attempt(value, STEPS_MAX);
        match in_turn(&VALIDATING, patience, work).await.map_err(ValidationError::Unavailable)? {
            Attempt::Fits(value) => Ok(value),
            Attempt::Violations(violations) => Err(ValidationError::Violations(violations)),
            Attempt::Over(_) => Err(ValidationError::Violations(vec![too_much()])),
        }
    }
}
