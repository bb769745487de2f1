//! The error of an execution or a step: a name, a class and a sentence, derived from the failure of
//! its last attempt. Pure.

use serde::{Deserialize, Serialize};

use super::attempt::Failure;
use super::classify::ErrorClass;

/// The error of an execution or a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// One of the names in `docs/spec/steps.md`, "Error names".
    pub name: String,
    pub class: ErrorClass,
    /// A sentence that describes the error.
    pub cause: String,
}

impl Fault {
    /// Creates an error with one of the names in `docs/spec/steps.md`, "Error names".
    pub fn new(name: &str, class: ErrorClass, cause: impl Into<String>) -> Self {
        Self { name: name.to_owned(), class, cause: cause.into() }
    }

    /// Creates the error of an execution whose last attempt failed with `failure`.
    #[must_use]
    pub fn of(failure: &Failure) -> Self {
        Self::named("ExecutionTimeout", failure)
    }

    /// Creates the error of a step whose last attempt failed with `failure`.
    #[must_use]
    pub fn of_step(failure: &Failure) -> Self {
        Self::named("StepTimeout", failure)
    }

    fn named(timeout: &str, failure: &Failure) -> Self {
        let name = match failure.class {
            ErrorClass::ExecutionTimeout => timeout,
            ErrorClass::InternalError => "InternalError",
            ErrorClass::ContentModeration
            | ErrorClass::InvalidUserInput
            | ErrorClass::InvalidModelConfig
            | ErrorClass::ProviderAuth
            | ErrorClass::ProviderError
            | ErrorClass::ProviderRateLimit
            | ErrorClass::ProviderUnavailable
            | ErrorClass::Unknown => "StepFailed",
        };
        Self::new(name, failure.class, failure.message.clone())
    }
}
