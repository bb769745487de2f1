//! Key-value pairs that clients of OpenAI's API store with what they create.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Maximum number of pairs.
pub const METADATA_MAX: usize = 16;
/// Maximum length of a name, in characters.
pub const METADATA_NAME_MAX: usize = 64;
/// Maximum length of a value, in characters.
pub const METADATA_VALUE_MAX: usize = 512;

/// Key-value pairs of the client.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    rename = "ClientMetadata",
    extend(
        "maxProperties" = METADATA_MAX,
        "propertyNames" = json!({"type": "string", "maxLength": METADATA_NAME_MAX}),
        "additionalProperties" = json!({"type": "string", "maxLength": METADATA_VALUE_MAX}),
    )
)]
pub struct Metadata(pub BTreeMap<String, String>);
