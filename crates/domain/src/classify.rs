//! The ten error classes shared by models, HTTP steps and webhooks, and the mapping from an
//! upstream's HTTP status to a class.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why an attempt failed: the `error_classification` values (`docs/spec/history.md`, "Error
/// classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    ContentModeration,
    ExecutionTimeout,
    InvalidUserInput,
    InvalidModelConfig,
    ProviderAuth,
    ProviderError,
    ProviderRateLimit,
    ProviderUnavailable,
    InternalError,
    Unknown,
}

/// The string is not one of the ten classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an error classification")]
pub struct Unrecognized;

impl ErrorClass {
    /// All classes, in the order of the specification.
    pub const ALL: [Self; 10] = [
        Self::ContentModeration,
        Self::ExecutionTimeout,
        Self::InvalidUserInput,
        Self::InvalidModelConfig,
        Self::ProviderAuth,
        Self::ProviderError,
        Self::ProviderRateLimit,
        Self::ProviderUnavailable,
        Self::InternalError,
        Self::Unknown,
    ];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ContentModeration => "content_moderation",
            Self::ExecutionTimeout => "execution_timeout",
            Self::InvalidUserInput => "invalid_user_input",
            Self::InvalidModelConfig => "invalid_model_config",
            Self::ProviderAuth => "provider_auth",
            Self::ProviderError => "provider_error",
            Self::ProviderRateLimit => "provider_rate_limit",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::InternalError => "internal_error",
            Self::Unknown => "unknown",
        }
    }

    /// Maps an upstream's HTTP status to a class; `None` for a success.
    #[must_use]
    pub const fn of_http_status(status: u16) -> Option<Self> {
        match status {
            200..=299 => None,
            401 | 403 => Some(Self::ProviderAuth),
            429 => Some(Self::ProviderRateLimit),
            400 | 404 | 422 => Some(Self::InvalidUserInput),
            408 => Some(Self::ExecutionTimeout),
            502..=504 => Some(Self::ProviderUnavailable),
            _ => Some(Self::ProviderError),
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ErrorClass {
    type Err = Unrecognized;
    fn from_str(text: &str) -> Result<Self, Unrecognized> {
        Self::ALL.into_iter().find(|class| class.as_str() == text).ok_or(Unrecognized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_class_stored_and_printed_forms_are_equal() {
        for class in ErrorClass::ALL {
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
            assert_eq!(class.as_str().parse(), Ok(class));
        }
        assert_eq!("timeout".parse::<ErrorClass>(), Err(Unrecognized));
    }

    #[test]
    fn error_class_depends_on_http_status() {
        for (status, class) in [
            (200, None),
            (204, None),
            (301, Some(ErrorClass::ProviderError)),
            (400, Some(ErrorClass::InvalidUserInput)),
            (401, Some(ErrorClass::ProviderAuth)),
            (403, Some(ErrorClass::ProviderAuth)),
            (404, Some(ErrorClass::InvalidUserInput)),
            (422, Some(ErrorClass::InvalidUserInput)),
            (429, Some(ErrorClass::ProviderRateLimit)),
            (500, Some(ErrorClass::ProviderError)),
            (502, Some(ErrorClass::ProviderUnavailable)),
            (503, Some(ErrorClass::ProviderUnavailable)),
            (504, Some(ErrorClass::ProviderUnavailable)),
        ] {
            assert_eq!(ErrorClass::of_http_status(status), class, "{status}");
        }
    }
}
