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
    /// Always `2.0`.
    #[schemars(extend("const" = "2.0"))]
    pub jsonrpc: String,
    /// The ID of the request.
    #[schemars(extend("type" = ["string", "integer"], "maxLength" = 256))]
    #[schemars(extend("minimum" = i64::MIN, "maximum" = i64::MAX))]
    pub id: Option<Value>,
    /// The method: `initialize`, `server/discover`, `ping`, `tools/list`, `tools/call` or a
    /// notification.
    pub method: String,
    /// The parameters of the method.
    pub params: Option<Map<String, Value>>,
}

/// A response with either a `result` or an `error`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpResponse")]
pub struct Response {
    /// Always `2.0`.
    #[schemars(extend("const" = "2.0"))]
    pub jsonrpc: String,
    /// The ID of the request. Absent if the ID could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// The result of the method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    /// The reason why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// The data of an event in the stream of a call: progress notifications, then the response.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "McpStreamEvent")]
pub enum StreamEvent {
    Notification(Notification),
    Response(Response),
}

/// A notification about the progress of a call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpNotification")]
pub struct Notification {
    /// Always `2.0`.
    #[schemars(extend("const" = "2.0"))]
    pub jsonrpc: String,
    /// The method: `notifications/progress`.
    pub method: String,
    /// The progress token of the call, the progress and a message.
    pub params: Map<String, Value>,
}

/// The reason why there is no result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "McpError")]
pub struct Error {
    /// The error code of JSON-RPC or of the Model Context Protocol.
    pub code: i64,
    /// A message for people.
    pub message: String,
    /// More information about the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}
