//! Why an execution or a step failed as a whole: a name, a class and a sentence, made of the failure of
//! its last attempt. Pure.

use serde::{Deserialize, Serialize};

use super::attempt::Failure;
use super::classify::ErrorClass;

/// Why an execution failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The error's name, one of `docs/spec/steps.md`, "Error names".
    pub name: String,
    pub class: ErrorClass,
    /// A sentence that says what happened.
    pub cause: String,
}

impl Fault {
    /// A fault under one of the names of `docs/spec/steps.md`, "Error names".
    pub fn new(name: &str, class: ErrorClass, cause: impl Into<String>) -> Self {
        Self { name: name.to_owned(), class, cause: cause.into() }
    }

    /// The fault of an execution whose last attempt failed so.
    #[must_use]
    pub fn of(failure: &Failure) -> Self {
        Self::named("ExecutionTimeout", failure)
    }

    /// The fault of a step whose last attempt failed so.
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
