//! Messages of the Model Context Protocol, for the OpenAPI document only. `agent::mcp` reads and
//! writes them with the types of the `rmcp` crate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A request, or a notification if it has no `id`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "McpRequest",
    example = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
)]
pub struct Request {
    #[schemars(extend("const" = "2.0"))]
    pub jsonrpc: String,
    /// The ID of the request.
    #[schemars(extend("type" = ["string", "integer"], "maxLength" = 256))]
    #[schemars(extend("minimum" = i64::MIN, "maximum" = i64::MAX))]
    pub id: Option<Value>,
    /// The method: `initialize`, `server/discover`, `ping`, `tools/list`, `tools/call` or a
    /// notification.
    pub method: String,
    pub params: Option<Map<String, Value>>,
}

/// A response with either a `result` or an `error`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpResponse")]
pub struct Response {
    /// Always `2.0`.
    pub jsonrpc: String,
    /// The ID of the request. Absent if it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// The reason why there is no result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpError")]
pub struct Error {
    pub code: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}
