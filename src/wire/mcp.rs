//! Messages of the Model Context Protocol, as the OpenAPI document describes them. They are read and
//! written with the types of the `rmcp` crate, in `agent::mcp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A request, or a notification where it has no `id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "McpRequest",
    example = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
)]
pub struct Request {
    /// `2.0`
    pub jsonrpc: String,
    /// A string or an integer.
    pub id: Option<Value>,
    /// `initialize`, `server/discover`, `ping`, `tools/list`, `tools/call` or a notification.
    pub method: String,
    pub params: Option<Map<String, Value>>,
}

/// The answer to a request: `result` or `error`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpResponse")]
pub struct Response {
    /// `2.0`
    pub jsonrpc: String,
    /// That of the request; absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// Why there is no result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpError")]
pub struct Error {
    pub code: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}
