//! A connection to one MCP server: opens the connection, lists the server's tools and calls them.
//! Dropping a connection closes it and stops the server's program, if the connection started a
//! program.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientConfig, ClientRequest,
    ContentBlock, ErrorData, Implementation, ListToolsRequest, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, RequestMetaObject, ServerResult,
};
use rmcp::service::{
    ClientInitializeError, NotificationContext, Peer, PeerRequestOptions, RunningService,
    ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ServerTool;
use super::http::Sender;
use super::reports::{Report, Reports};
use orrery_config::secret::Secret;
use orrery_http::client::Client;
use orrery_runners::command::GuardConfig;
use orrery_runners::command::process::{Process, Program};
use orrery_runners::tail::Tail;
use orrery_runtime as runtime;
use orrery_schema::Schema;

/// Maximum bytes of one response from a server.
pub(super) const ANSWER_MAX: usize = 1024 * 1024;
/// Maximum number of tools per server, and maximum number of pages in the list of tools.
const TOOLS_MAX: usize = 64;
const PAGES_MAX: usize = 16;
/// Maximum characters of a tool's own name and of its description, and maximum bytes of its schema.
/// A tool whose name or schema exceeds these limits is omitted.
const NAME_MAX: usize = 128;
const DESCRIPTION_MAX: usize = 1024;
const SCHEMA_MAX: usize = 16 * 1024;
/// The failure of a call that returned no valid result.
const NO_RESULT: &str = "its response is not a valid tool result";
/// The `_meta` key for the id of a call. A server can use the id to recognize a repeated call.
const KEY: &str = "orrery/idempotency_key";

/// A configured server.
#[derive(Debug, Clone)]
pub struct Settings {
    pub name: String,
    pub transport: Transport,
    /// The allowed tools; `None` allows all.
    pub allow: Option<Vec<String>>,
}

/// The transport to a server.
#[derive(Debug, Clone)]
pub enum Transport {
    Http {
        url: String,
        headers: Vec<(String, Secret)>,
    },
    Program {
        /// The program and its arguments; never empty.
        command: Vec<String>,
        /// The working directory, as an absolute path.
        directory: PathBuf,
        env: Vec<(String, Secret)>,
        writable: Vec<PathBuf>,
        memory_bytes: Option<u64>,
    },
}

/// The HTTP client and the sandbox through which servers are reached.
#[derive(Debug, Clone)]
pub struct Doors {
    /// Checks each address against the egress rules.
    pub client: Client,
    pub guard: GuardConfig,
}

/// The part of a connection that calls use.
#[derive(Debug, Clone)]
pub(super) struct Line {
    peer: Peer<RoleClient>,
    reports: Reports,
}

/// An open connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    service: RunningService<RoleClient, Handler>,
    reports: Reports,
    /// The tools that the agent may use.
    pub tools: Arc<Vec<ServerTool>>,
    listed: Vec<ServerTool>,
    opened_at: Instant,
    /// The earliest time at which changed tools are listed again.
    next_listing: Instant,
    _process: Option<Process>,
}

/// The client end of a connection: sends the client's name, receives progress, and supports no
/// requests from the server.
#[derive(Debug, Clone)]
struct Handler {
    reports: Reports,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let own = Implementation::new("orrery", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(rmcp::model::ClientCapabilities::default(), own)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_progress(
        &self,
        said: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.reports.take(&said);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.reports.tools_changed();
    }
}

impl Connection {
    /// Connects and lists the tools. Uses the `initialize` handshake if the server's version has
    /// one.
    ///
    /// # Errors
    /// The reason, as text.
    pub(super) async fn open(settings: &Settings, doors: &Doors) -> Result<Self, String> {
        match Self::open_by(settings, doors, ClientLifecycleMode::Initialize).await {
            Ok(connection) => Ok(connection),
            Err(reason) => {
                let preferred_versions = vec![ProtocolVersion::NO_INITIALIZE];
                let mode = ClientLifecycleMode::Discover { preferred_versions };
                Self::open_by(settings, doors, mode).await.map_err(|_later| reason)
            }
        }
    }

    async fn open_by(
        settings: &Settings,
        doors: &Doors,
        mode: ClientLifecycleMode,
    ) -> Result<Self, String> {
        let mut started = None;
        let reports = Reports::default();
        let handler = Handler { reports: reports.clone() };
        let service = match &settings.transport {
            Transport::Http { url, headers } => {
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(header_map(headers)?);
                let sender = Sender::new(doors.client.clone(), reports.clone());
                let transport = StreamableHttpClientTransport::with_client(sender, config);
                handler.serve_with_lifecycle(transport, mode).await
            }
            Transport::Program { command, directory, env, writable, memory_bytes } => {
                let program = Program {
                    command,
                    directory,
                    env,
                    memory_bytes: *memory_bytes,
                    writable,
                    model: None,
                    grace: None,
                };
                let (mut process, stdout) =
                    Process::start(&doors.guard, &program, &Tail::default())
                        .map_err(|error| format!("its program cannot be started: {error}"))?;
                let stdin = process.stdin.take().ok_or("its pipes are closed")?;
                started = Some(process);
                let transport =
                    AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(ANSWER_MAX);
                handler.serve_with_lifecycle(transport, mode).await
            }
        };
        let service = service.map_err(|error| unopened(&error))?;
        let listed = list(service.peer(), &settings.name).await?;
        let opened_at = runtime::monotonic_now();
        Ok(Self {
            service,
            reports,
            tools: Arc::default(),
            listed,
            opened_at,
            next_listing: opened_at,
            _process: started,
        })
    }

    /// Takes the tools that the server listed when the connection was opened.
    pub(super) fn listed(&mut self) -> Vec<ServerTool> {
        std::mem::take(&mut self.listed)
    }

    /// Returns whether the connection is open and its list of tools is at most `ttl` old.
    pub(super) fn is_good(&self, now: Instant, ttl: Duration) -> bool {
        !self.service.peer().is_transport_closed() && now.duration_since(self.opened_at) < ttl
    }

    /// If the server has announced a change to its tools, returns the handle for listing the tools
    /// again. Returns a handle at most once per `period`.
    pub(super) fn changed(&mut self, now: Instant, period: Duration) -> Option<Line> {
        if now < self.next_listing || !self.reports.take_tools_changed() {
            return None;
        }
        self.next_listing = now + period;
        Some(self.line())
    }

    /// Returns whether a handle belongs to this connection.
    pub(super) fn has(&self, line: &Line) -> bool {
        self.reports.is_same(&line.reports)
    }

    /// Returns the handle for calls.
    pub(super) fn line(&self) -> Line {
        Line { peer: self.service.peer().clone(), reports: self.reports.clone() }
    }
}

impl Line {
    /// Lists the server's current tools.
    ///
    /// # Errors
    /// The reason, as text.
    pub(super) async fn list(&self, server: &str) -> Result<Vec<ServerTool>, String> {
        list(&self.peer, server).await
    }

    /// Records that listing the changed tools failed, so that the next call requests the list
    /// again.
    pub(super) fn still_changed(&self) {
        self.reports.tools_changed();
    }
}

fn header_map(headers: &[(String, Secret)]) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let read = |(name, secret): &(String, Secret)| {
        let wrong = || format!("the header {name:?} cannot be sent");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_invalid| wrong())?;
        let mut value = HeaderValue::from_str(secret.expose()).map_err(|_invalid| wrong())?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    headers.iter().map(read).collect()
}

async fn list(peer: &Peer<RoleClient>, server: &str) -> Result<Vec<ServerTool>, String> {
    let mut tools: Vec<ServerTool> = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ListToolsRequest::with_param(page);
        let answer = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
        let (page, next) = page_of(answer.map_err(in_words)?)?;
        for listed in &page {
            if tools.len() == TOOLS_MAX {
                tracing::warn!(
                    server,
                    "MCP server has more than {TOOLS_MAX} tools; the rest are ignored"
                );
                return Ok(tools);
            }
            match read(listed, server) {
                Ok(tool) if tools.iter().any(|earlier| earlier.own_name == tool.own_name) => {
                    leave_out(server, listed, "another tool has the same name");
                }
                Ok(tool) => tools.push(tool),
                Err(reason) => leave_out(server, listed, &reason),
            }
        }
        cursor = next.filter(|cursor| !cursor.is_empty());
        if cursor.is_none() {
            break;
        }
    }
    Ok(tools)
}

/// Returns the unparsed tools on a page, and the cursor of the next page.
fn page_of(answer: ServerResult) -> Result<(Vec<Value>, Option<String>), String> {
    let answer = match serde_json::to_value(answer) {
        Ok(answer) => answer,
        Err(error) => return Err(format!("its answer to tools/list cannot be read: {error}")),
    };
    let listed = answer.get("tools").and_then(Value::as_array);
    let listed = listed.ok_or("its answer to tools/list has no list `tools`")?;
    let next = answer.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
    Ok((listed.clone(), next))
}

fn leave_out(server: &str, listed: &Value, reason: &str) {
    let name = listed.get("name").and_then(Value::as_str).unwrap_or("(no name)");
    let tool: String = name.chars().take(NAME_MAX).collect();
    tracing::warn!(server, tool, reason, "tool of an MCP server ignored");
}

/// Returns the message of an error, without type names.
fn in_words(error: ServiceError) -> String {
    if let ServiceError::TransportSend(error) = error {
        return error.error.to_string();
    }
    if let ServiceError::McpError(error) = error {
        return format!("it answered {}: {}", error.code.0, error.message);
    }
    if let ServiceError::UnexpectedResponse = error {
        return "its answer has an unexpected form".to_owned();
    }
    error.to_string()
}

/// Returns the reason for a failed connection, without type names.
fn unopened(error: &ClientInitializeError) -> String {
    if let ClientInitializeError::TransportError { error, .. } = error {
        return error.error.to_string();
    }
    if let ClientInitializeError::JsonRpcError(error) = error {
        return format!("it answered {}: {}", error.code.0, error.message);
    }
    if let ClientInitializeError::ExpectedInitResponse(_)
    | ClientInitializeError::ExpectedInitResult(_) = error
    {
        return "it did not answer the handshake (initialize) as MCP requires".to_owned();
    }
    error.to_string()
}

/// Reads a tool from the server's list: name, description and schema. Invalid optional fields are
/// ignored. The tool's name for the model is set later.
///
/// # Errors
/// The reason for omitting the tool.
fn read(listed: &Value, server: &str) -> Result<ServerTool, String> {
    let text = |name: &str| listed.get(name).and_then(Value::as_str);
    let own_name = text("name").ok_or("its name must be a string")?.to_owned();
    if own_name.is_empty() || own_name.chars().nth(NAME_MAX).is_some() {
        return Err(format!("its name must have 1 to {NAME_MAX} characters"));
    }
    let schema = listed.get("inputSchema").filter(|schema| schema.is_object());
    let schema = schema.ok_or("`inputSchema` must be an object")?;
    if schema.to_string().len() > SCHEMA_MAX {
        return Err(format!("`inputSchema` has more than {SCHEMA_MAX} bytes"));
    }
    let schema = match Schema::compile(schema) {
        Ok(_) => schema.clone(),
        Err(error) => {
            tracing::warn!(server, tool = own_name, %error, "schema of an MCP tool simplified");
            simplified(schema)
        }
    };
    let description = text("description").unwrap_or_default();
    let description = description.chars().take(DESCRIPTION_MAX).collect();
    Ok(ServerTool { name: String::new(), own_name, description, schema })
}

/// Returns a valid schema that contains the names and descriptions of an invalid schema's
/// properties.
fn simplified(schema: &Value) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let properties: Map<String, Value> = properties
        .map(|(name, property)| {
            let described = property.get("description").filter(|text| text.is_string());
            let property = described.map_or(json!({}), |text| json!({"description": text}));
            (name.clone(), property)
        })
        .collect();
    json!({"type": "object", "properties": properties})
}

/// One tool call.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The server's name for the tool.
    pub tool: &'a str,
    pub arguments: Map<String, Value>,
    /// Identifies this call, including repetitions after a crash.
    pub key: &'a str,
    /// Receives the server's progress reports.
    pub heard: watch::Sender<Option<Report>>,
}

/// Calls a tool, and returns the tool's result or the server's error. If the server returns
/// neither, returns the reason as the outer error.
pub(super) async fn call(
    line: Line,
    call: Call<'_>,
    limit: Duration,
) -> Result<Result<CallToolResult, ErrorData>, String> {
    let Call { tool, arguments, key, heard } = call;
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let mut meta = RequestMetaObject::new();
    meta.insert(KEY.to_owned(), Value::String(key.to_owned()));
    let options = PeerRequestOptions::with_timeout(limit).with_meta(meta);
    let sent = line.peer.send_cancellable_request(request, options).await;
    let answered = match sent {
        Ok(handle) => {
            let _listening = line.reports.listen(handle.progress_token.clone(), heard);
            handle.await_response().await
        }
        Err(error) => Err(error),
    };
    match answered {
        Ok(ServerResult::CallToolResult(result)) => Ok(Ok(result)),
        Ok(ServerResult::CustomResult(other)) => result_of(&other.0).map(Ok),
        Ok(_) => Err(NO_RESULT.to_owned()),
        Err(ServiceError::McpError(error)) => Ok(Err(error)),
        Err(error) => Err(in_words(error)),
    }
}

/// Parses a result that contains invalid items or items from a later protocol version. Such items
/// are replaced, and the others are retained.
fn result_of(answer: &Value) -> Result<CallToolResult, String> {
    let structured = answer.get("structuredContent").filter(|content| !content.is_null());
    // Some servers send a single block, or only its text, instead of a list of blocks.
    let is_block = answer.get("type").is_some_and(Value::is_string);
    let content = answer.get("content").or(is_block.then_some(answer));
    let blocks = match content {
        Some(Value::Array(blocks)) => &blocks[..],
        Some(one @ (Value::String(_) | Value::Object(_))) => std::slice::from_ref(one),
        Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None if structured.is_some() => &[],
        Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None => {
            return Err(NO_RESULT.to_owned());
        }
    };
    let block = |block: &Value| {
        let kind = block.get("type").and_then(Value::as_str).unwrap_or("unknown");
        let text = block.get("text").filter(|_| kind == "text").unwrap_or(block);
        if let Some(text) = text.as_str() {
            return ContentBlock::text(text);
        }
        let kind: String = kind.chars().take(NAME_MAX).collect();
        serde_json::from_value(block.clone())
            .unwrap_or_else(|_unknown| ContentBlock::text(format!("(content of the type {kind})")))
    };
    let content = blocks.iter().map(block).collect();
    let is_error = answer.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let mut result = CallToolResult::success(content);
    result.is_error = Some(is_error);
    result.structured_content = structured.cloned();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_result_with_unknown_content_keeps_the_rest() {
        let text = json!({"type": "text", "text": "hi"});
        let texts = |answer: Value| {
            let read = serde_json::from_value(answer.clone()).unwrap();
            let result = if let ServerResult::CallToolResult(result) = read {
                result
            } else {
                assert!(matches!(read, ServerResult::CustomResult(_)), "{read:?}");
                result_of(&answer).unwrap()
            };
            let texts = result.content.iter().map(|block| {
                block.as_text().map_or_else(|| "other".to_owned(), |text| text.text.clone())
            });
            (texts.collect::<Vec<_>>().join(" "), result.structured_content, result.is_error)
        };
        let (said, structured, _) = texts(json!({"content": [text, {"type": "hologram", "x": 1},
            {"type": "image"}, 7], "structuredContent": {"a": 1}}));
        assert_eq!(
            said,
            "hi (content of the type hologram) (content of the type image) (content of the type unknown)"
        );
        assert_eq!(structured, Some(json!({"a": 1})));
        for content in [json!(null), json!([]), json!(7)] {
            let (said, structured, _) =
                texts(json!({"content": content, "structuredContent": {"a": 1}}));
            assert_eq!((said.as_str(), structured), ("", Some(json!({"a": 1}))));
        }
        let (said, _, is_error) = texts(json!({"content": [{"type": "later"}], "isError": true}));
        assert_eq!((said.as_str(), is_error), ("(content of the type later)", Some(true)));
        for answer in [
            json!({"content": "hi"}),
            json!({"content": text}),
            json!({"content": [{"type": "text", "text": "hi", "annotations": "x"}]}),
            json!({"content": [{"type": "text", "text": "hi", "_meta": 1}]}),
            json!({"content": ["hi"]}),
            text,
        ] {
            assert_eq!(texts(answer.clone()).0, "hi", "{answer}");
        }
        for answer in [json!({"tools": []}), json!({}), json!({"content": null})] {
            assert!(result_of(&answer).is_err(), "{answer}");
        }
    }

    #[test]
    fn mcp_tool_is_read_despite_invalid_optional_fields() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        for (name, value) in [
            ("annotations", json!("x")),
            ("icons", json!(5)),
            ("title", json!([])),
            ("_meta", json!("x")),
            ("outputSchema", json!({"type": "odd"})),
            ("description", json!(7)),
            ("execution", json!("x")),
        ] {
            let tool =
                read(&json!({"name": "f", "inputSchema": schema, name: value}), "s").unwrap();
            assert_eq!((&*tool.own_name, &tool.schema, &*tool.description), ("f", &schema, ""));
        }
        let described = json!({"a": {"type": "any", "description": "A1A"}, "b": true});
        for schema in [
            json!({"properties": described}),
            json!({"properties": described, "required": null}),
            json!({"properties": described, "patternProperties": {"^(?!x).*$": {}}}),
            json!({"properties": described, "$ref": "https://example.org/other"}),
        ] {
            let tool = read(&json!({"name": "f", "inputSchema": schema}), "s").unwrap();
            let expected =
                json!({"type": "object", "properties": {"a": {"description": "A1A"}, "b": {}}});
            assert_eq!(tool.schema, expected, "{schema}");
        }
        for (tool, why) in [
            (json!({"inputSchema": {}}), "name must be a string"),
            (json!({"name": "", "inputSchema": {}}), "1 to 128"),
            (json!({"name": "f"}), "must be an object"),
            (json!({"name": "f", "inputSchema": []}), "must be an object"),
            (json!({"name": "f", "inputSchema": {"x": "y".repeat(SCHEMA_MAX)}}), "more than"),
        ] {
            assert!(read(&tool, "s").unwrap_err().contains(why), "{tool}");
        }
    }
}
