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

/// The details of a body that is not valid JSON.
#[derive(Debug, Serialize)]
pub struct Position<'a> {
    pub line: usize,
    pub column: usize,
    pub message: &'a str,
}

/// The details of what is not known, where something like it is.
#[derive(Debug, Serialize)]
pub struct Hint {
    pub hint: String,
}

/// The details of what does not fit into an organization's quota.
#[derive(Debug, Serialize)]
pub struct Quota {
    pub quota_bytes: u64,
    pub used_bytes: u64,
}

/// The details of what the balance does not cover, in US dollars.
#[derive(Debug, Serialize)]
pub struct Unpaid {
    pub balance_usd: f64,
    pub reserved_usd: f64,
    pub needed_usd: f64,
}
