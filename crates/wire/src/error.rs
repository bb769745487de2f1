//! The error body and its `details`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// An error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(example = json!({"error": "Prediction not found", "status": 404}))]
pub struct Error<'a> {
    /// A message for people.
    pub error: &'a str,
    /// The HTTP status. Absent for an invalid API key and an unknown model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// More information, such as every violation of a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<&'a Value>,
}

/// Details of a syntax error in a JSON body.
#[derive(Debug, Serialize)]
pub struct Position<'a> {
    pub line: usize,
    pub column: usize,
    pub message: &'a str,
}

/// Details of an unknown name, with a similar known name.
#[derive(Debug, Serialize)]
pub struct Hint {
    pub hint: String,
}

/// Details of a quota that would be exceeded.
#[derive(Debug, Serialize)]
pub struct Quota {
    pub quota_bytes: u64,
    pub used_bytes: u64,
}

/// Details of an insufficient balance, in US dollars.
#[derive(Debug, Serialize)]
pub struct Unpaid {
    pub balance_usd: f64,
    pub reserved_usd: f64,
    pub needed_usd: f64,
}
