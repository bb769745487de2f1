//! Handles one message of the protocol, in any supported version.
//!
//! In versions before 2026-07-28, a client begins with `initialize` and sends the version in a
//! header. In later versions, each request names the client and the version in `_meta`, and its
//! headers repeat the method and the tool.

use std::sync::Arc;

use hyper::StatusCode;
use rmcp::model::{
    CallToolRequestParams, CancelledNotificationParam, DiscoverResult, ErrorData, Implementation,
    InitializeRequestParams, InitializeResult, JsonRpcMessage, PaginatedRequestParams,
    ProgressToken, ProtocolVersion, RequestId, RequestMetaObject, ServerCapabilities,
    ServerNotification, ServerRequest, ServerResult, ToolsCapability,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::call::{self, Call};
use super::tools;
use crate::error::Error;
use crate::service::Inner;
use orrery_chat::Caller;
use orrery_domain::trace;
use orrery_engine as engine;

const INSTRUCTIONS: &str = "The tools run the AI models and the workflows of this service. Running may cost \
    money; the description of a tool states the price. Files that a tool creates are links.";
/// Maximum length of a request id that is a string, in characters.
const ID_CHARS_MAX: usize = 256;

/// A message to the client.
pub(super) type ServerMessage = JsonRpcMessage<ServerRequest, ServerResult, ServerNotification>;

/// The request headers that describe the message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers<'a> {
    /// `MCP-Protocol-Version`
    pub version: Option<&'a str>,
    /// `Mcp-Method`
    pub method: Option<&'a str>,
    /// `Mcp-Name`
    pub name: Option<&'a str>,
    /// The trace origin of the request.
    pub origin: Option<&'a Arc<trace::Origin>>,
}

/// The result of handling a message.
#[derive(Debug)]
pub enum Reply {
    /// The message was accepted and needs no response.
    Accepted,
    /// The response message and its HTTP status.
    Message(StatusCode, Value),
    /// A running call.
    Call(Box<Call>),
}

/// A message from a client, with its method not yet parsed.
#[derive(Debug, Deserialize)]
struct Incoming {
    jsonrpc: String,
    #[serde(default)]
    id: Option<RequestId>,
    method: Option<String>,
    #[serde(default)]
    params: Option<Map<String, Value>>,
}

/// The client and the protocol version of a request.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub id: RequestId,
    /// Whether the version is 2026-07-28 or later.
    pub is_modern: bool,
    pub progress: Option<ProgressToken>,
    /// The trace origin of the request.
    pub origin: Option<Arc<trace::Origin>>,
}

impl Asked {
    /// Builds the response in the format of the client's version.
    pub(super) fn response(&self, result: impl Into<ServerResult>) -> Value {
        let mut result = result.into();
        if self.is_modern {
            result.fill_missing_cache_hints();
        } else {
            result.strip_result_type_for_legacy_peer();
        }
        written(&ServerMessage::response(result, self.id.clone()))
    }

    /// Builds an error response.
    pub(super) fn error(&self, error: ErrorData) -> Value {
        refusal(Some(self.id.clone()), error)
    }
}

/// Builds the error response to a message. If the id is unreadable, the response's `id` is null, as
/// JSON-RPC requires.
fn refusal(id: Option<RequestId>, error: ErrorData) -> Value {
    let has_id = id.is_some();
    let mut refusal = written(&ServerMessage::error(error, id));
    if let Some(fields) = refusal.as_object_mut().filter(|_| !has_id) {
        fields.insert("id".to_owned(), Value::Null);
    }
    refusal
}

/// Builds the error response to a body that is not JSON. `message` says why.
#[must_use]
pub fn not_json(message: String) -> Value {
    refusal(None, ErrorData::parse_error(message, None))
}

/// Serializes a message as JSON. Every message can be serialized.
pub(super) fn written(message: &ServerMessage) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

/// Handles a message.
pub(super) async fn answer(
    inner: &Arc<Inner>,
    caller: Caller,
    headers: &Headers<'_>,
    message: Value,
) -> Result<Reply, Error> {
    let bad = |id, error| Ok(Reply::Message(StatusCode::BAD_REQUEST, refusal(id, error)));
    let id = message.get("id").cloned().and_then(|id| serde_json::from_value(id).ok());
    // A notification has no id. A client that sends a null id expects a response but could not
    // match the response to the request, so the message is rejected.
    let has_null = message.get("id").is_some_and(Value::is_null);
    let incoming = match serde_json::from_value::<Incoming>(message) {
        Ok(incoming) if incoming.jsonrpc == "2.0" && !has_null => incoming,
        Ok(_) | Err(_) => {
            let message = "the body must be one JSON-RPC 2.0 message: an object with jsonrpc, \
                method and, if it expects a response, an id that is a string or an integer";
            return bad(id, ErrorData::invalid_request(message, None));
        }
    };
    let Some(method) = incoming.method else {
        let message = "this server sends no requests, so it accepts no responses";
        return bad(id, ErrorData::invalid_request(message, None));
    };
    let params = incoming.params.unwrap_or_default();
    let is_known =
        |version: &str| ProtocolVersion::KNOWN_VERSIONS.iter().any(|v| v.as_str() == version);
    if let Some(version) = headers.version.filter(|version| !is_known(version)) {
        return bad(id, unsupported(version));
    }
    let Some(id) = incoming.id else {
        if method == "notifications/cancelled" {
            cancel(inner, caller, params).await?;
        }
        return Ok(Reply::Accepted);
    };
    if matches!(&id, RequestId::String(text) if text.chars().nth(ID_CHARS_MAX).is_some()) {
        let message = format!("an id must have at most {ID_CHARS_MAX} characters");
        return bad(None, ErrorData::invalid_request(message, None));
    }
    let meta = meta_of(&params);
    let asked = match check_version(headers, &method, &params, &meta) {
        Ok(is_modern) => Asked {
            id,
            is_modern,
            progress: meta.get_progress_token(),
            origin: headers.origin.cloned(),
        },
        Err(error) => return bad(Some(id), error),
    };
    dispatch(inner, caller, asked, &method, params).await
}

/// Returns the `_meta` of a request; empty if it is absent or invalid.
fn meta_of(params: &Map<String, Value>) -> RequestMetaObject {
    let meta = params.get("_meta").cloned();
    meta.and_then(|meta| serde_json::from_value(meta).ok()).unwrap_or_default()
}

fn unsupported(version: &str) -> ErrorData {
    let shown: String = version.chars().take(32).collect();
    let supported: Vec<&str> =
        ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
    let data = json!({"requested": shown, "supported": supported});
    let code = rmcp::model::ErrorCode::UNSUPPORTED_PROTOCOL_VERSION;
    ErrorData::new(code, format!("the protocol version {shown} is not supported"), Some(data))
}

/// Returns whether the request uses version 2026-07-28 or later. Returns an error if its headers
/// and `_meta` disagree.
fn check_version(
    headers: &Headers<'_>,
    method: &str,
    params: &Map<String, Value>,
    meta: &RequestMetaObject,
) -> Result<bool, ErrorData> {
    let modern = ProtocolVersion::NO_INITIALIZE;
    let named = params
        .get("_meta")
        .and_then(|meta| meta.get("io.modelcontextprotocol/protocolVersion"))
        .and_then(Value::as_str);
    if method == "initialize" {
        return Ok(false);
    }
    if let Some(named) = named {
        if !ProtocolVersion::KNOWN_VERSIONS.iter().any(|version| version.as_str() == named) {
            return Err(unsupported(named));
        }
        if headers.version != Some(named) {
            let message = "MCP-Protocol-Version must be the protocolVersion of the request's _meta";
            return Err(ErrorData::header_mismatch(message, None));
        }
    }
    let version = named.or(headers.version);
    if method != "server/discover" && version.is_none_or(|version| version < modern.as_str()) {
        return Ok(false);
    }
    let missing = meta.missing_required_keys(&modern);
    if !missing.is_empty() {
        let message = format!("_meta lacks {}", missing.join(", "));
        return Err(ErrorData::invalid_params(message, None));
    }
    if headers.method != Some(method) {
        let message = format!("the header Mcp-Method must be '{method}'");
        return Err(ErrorData::header_mismatch(message, None));
    }
    let tool = params.get("name").and_then(Value::as_str);
    if method == "tools/call" && headers.name != tool {
        let message = "the header Mcp-Name must be the name of the tool";
        return Err(ErrorData::header_mismatch(message, None));
    }
    Ok(true)
}

async fn dispatch(
    inner: &Arc<Inner>,
    caller: Caller,
    asked: Asked,
    method: &str,
    params: Map<String, Value>,
) -> Result<Reply, Error> {
    let result: Result<ServerResult, ErrorData> = match method {
        "initialize" => read(params).map(|params| initialize(&params).into()),
        "server/discover" => Ok(discover().into()),
        "ping" => Ok(ServerResult::empty(())),
        "tools/list" => match read::<PaginatedRequestParams>(params) {
            Ok(page) => {
                let listed = tools::list(inner, caller.organization, page.cursor.as_deref()).await;
                listed.map_err(Error::Engine)?.map(ServerResult::from)
            }
            Err(error) => Err(error),
        },
        "tools/call" => match read::<CallToolRequestParams>(params) {
            Ok(params) => match call::start(inner, caller, &asked, params).await? {
                call::Started::Runs(call) => return Ok(Reply::Call(call)),
                call::Started::Ended(result) => Ok((*result).into()),
                call::Started::Refused(error) => Err(error),
            },
            Err(error) => Err(error),
        },
        _ => {
            let shown: String = method.chars().take(64).collect();
            let code = rmcp::model::ErrorCode::METHOD_NOT_FOUND;
            Err(ErrorData::new(code, format!("there is no method '{shown}'"), None))
        }
    };
    Ok(match result {
        Ok(result) => Reply::Message(StatusCode::OK, asked.response(result)),
        Err(error) => {
            let is_missing = error.code == rmcp::model::ErrorCode::METHOD_NOT_FOUND;
            let status =
                if asked.is_modern && is_missing { StatusCode::NOT_FOUND } else { StatusCode::OK };
            Reply::Message(status, asked.error(error))
        }
    })
}

/// Parses the parameters of a method.
fn read<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, ErrorData> {
    serde_json::from_value(Value::Object(params)).map_err(|error| {
        let message = format!("the parameters do not fit: {error}");
        ErrorData::invalid_params(message, None)
    })
}

fn server_info() -> Implementation {
    Implementation::new("orrery", env!("CARGO_PKG_VERSION")).with_title("Orrery")
}

fn capabilities() -> ServerCapabilities {
    let mut capabilities = ServerCapabilities::default();
    capabilities.tools = Some(ToolsCapability::default());
    capabilities
}

fn initialize(params: &InitializeRequestParams) -> InitializeResult {
    let asked = &params.protocol_version;
    let is_good = asked.has_initialize() && ProtocolVersion::KNOWN_VERSIONS.contains(asked);
    let version = if is_good { asked.clone() } else { ProtocolVersion::LATEST_WITH_INITIALIZE };
    InitializeResult::new(capabilities())
        .with_server_info(server_info())
        .with_protocol_version(version)
        .with_instructions(INSTRUCTIONS)
}

fn discover() -> DiscoverResult {
    let versions = ProtocolVersion::KNOWN_VERSIONS.to_vec();
    let mut result = DiscoverResult::new(versions, capabilities()).with_server_info(server_info());
    result.instructions = Some(INSTRUCTIONS.to_owned());
    result
}

/// Cancels the call that the client identifies, if the call is running.
async fn cancel(
    inner: &Arc<Inner>,
    caller: Caller,
    params: Map<String, Value>,
) -> Result<(), Error> {
    let Ok(params) = read::<CancelledNotificationParam>(params) else { return Ok(()) };
    let Some(request) = params.request_id else { return Ok(()) };
    let Some(call) = inner.calls.find(caller.key, &request.to_string()) else { return Ok(()) };
    match inner.engine.cancel(caller.organization, call).await {
        Ok(_) | Err(engine::Error::NotFound | engine::Error::AlreadyEnded(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(headers: Headers<'_>, method: &str, params: Value) -> Result<bool, String> {
        let Value::Object(params) = params else { panic!("an object") };
        let meta = meta_of(&params);
        check_version(&headers, method, &params, &meta).map_err(|error| error.message.into_owned())
    }

    #[test]
    fn mcp_version_of_a_request_must_agree_with_its_headers() {
        const NEW: &str = "2026-07-28";
        let meta = json!({"io.modelcontextprotocol/protocolVersion": NEW,
            "io.modelcontextprotocol/clientCapabilities": {}});
        let call = json!({"name": "model_a", "_meta": meta});
        let headers = Headers {
            version: Some(NEW),
            method: Some("tools/call"),
            name: Some("model_a"),
            origin: None,
        };
        assert_eq!(checked(headers, "tools/call", call.clone()), Ok(true));
        assert_eq!(checked(Headers::default(), "tools/list", json!({})), Ok(false));
        let old = Headers { version: Some("2025-06-18"), ..Headers::default() };
        assert_eq!(checked(old, "tools/list", json!({})), Ok(false));
        assert_eq!(checked(headers, "initialize", json!({})), Ok(false), "it negotiates");
        let unknown = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}});
        for (headers, method, params, expected) in [
            (Headers { name: None, ..headers }, "tools/call", call.clone(), "Mcp-Name"),
            (Headers { method: None, ..headers }, "tools/call", call.clone(), "Mcp-Method"),
            (Headers { version: None, ..headers }, "tools/call", call, "MCP-Protocol-Version"),
            (headers, "tools/list", json!({}), "_meta lacks"),
            (Headers::default(), "server/discover", json!({}), "_meta lacks"),
            (headers, "tools/list", unknown, "not supported"),
        ] {
            let error = checked(headers, method, params).unwrap_err();
            assert!(error.contains(expected), "{error} does not contain {expected}");
        }
    }

    #[test]
    fn mcp_initialize_negotiates_a_version_with_a_handshake() {
        for (asked, expected) in [
            ("2025-03-26", "2025-03-26"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("2099-01-01", "2025-11-25"),
        ] {
            let params = json!({"protocolVersion": asked, "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"}});
            let Value::Object(params) = params else { panic!("an object") };
            let result = initialize(&read(params).unwrap());
            assert_eq!(result.protocol_version.as_str(), expected);
        }
    }
}
