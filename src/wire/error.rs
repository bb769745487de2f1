//! The error body.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// Why a request was refused, or not answered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"error": "Prediction not found", "status": 404}))]
pub struct Error<'a> {
    /// A sentence for people.
    pub error: &'a str,
    /// The HTTP status; absent with an invalid API key and an unknown model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What is wrong in detail, such as each violation of a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<&'a Value>,
}
