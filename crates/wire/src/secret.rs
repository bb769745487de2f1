//! Named secrets. Values appear only in requests, never in responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, pattern};
use orrery_domain::secret::{self, VALUE_BYTES_MAX};

/// A named secret, without its value.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Secret {
    /// The name of the secret.
    pub name: String,
    /// When the secret was created.
    pub created_at: Time,
    /// When the value was last set.
    pub updated_at: Time,
}

/// The named secrets of an organization.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Secrets {
    /// The secrets, sorted by name.
    pub secrets: Vec<Secret>,
}

/// A secret value to store.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretValue {
    /// The value: 1 to 32768 bytes of text without NUL. The value is never returned.
    #[schemars(length(min = 1, max = VALUE_BYTES_MAX), transform = pattern::without_nul)]
    pub value: String,
}

impl std::fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretValue")
    }
}

impl From<&secret::Secret> for Secret {
    fn from(secret: &secret::Secret) -> Self {
        Self {
            name: secret.name.clone(),
            created_at: secret.created_at.into(),
            updated_at: secret.updated_at.into(),
        }
    }
}
