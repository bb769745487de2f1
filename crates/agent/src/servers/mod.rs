//! Model Context Protocol servers that provide additional tools to the agent: over HTTP through the
//! egress guard, or as programs in the sandbox of `command` models.
//!
//! A connection is opened when the agent first needs the server, and stays open. If a server is
//! down, only that server's tools are unavailable, and the connection is retried after a delay. The
//! number and size of tools, the size of results and the duration of calls are limited. The effects
//! of these tools are unknown, so all of them count as tools with effects.

mod connection;
mod http;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;

use self::connection::{Call, Connection, Line};
pub use self::connection::{Doors, Settings, Transport};
pub use self::reports::Report;
use super::mcp::plain_name;
use orrery_runtime as runtime;

/// Maximum concurrent calls to one server.
const CALLS_MAX: usize = 8;
/// Time limit for connecting and listing the tools. Programs such as `npx` and `uvx` load their
/// packages first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum age of a list of tools.
const TOOLS_TTL: Duration = Duration::from_secs(300);
/// Minimum age of a list of tools, regardless of how often its server announces changes.
const CHANGE_PERIOD: Duration = Duration::from_secs(2);
/// Delay before a server that is down is retried.
const DOWN_FOR: Duration = Duration::from_secs(30);

/// A tool that a server provides.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    /// The name for the model: the server's name, two underscores, and the tool's own name.
    pub name: String,
    /// The server's own name for the tool.
    pub own_name: String,
    pub description: String,
    pub schema: Value,
}

impl ServerTool {
    /// Returns the tool in OpenAI's format.
    fn shown(&self) -> Value {
        json!({"type": "function", "function": {
            "name": self.name, "description": self.description, "parameters": self.schema,
        }})
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Called {
    /// The result for the model.
    Said(String),
    /// The server rejected the input, with the reason.
    Refused(String),
}

/// All configured servers; clones share them.
#[derive(Debug, Clone)]
pub struct Servers(Arc<Vec<Server>>);

#[derive(Debug)]
struct Server {
    settings: Settings,
    doors: Doors,
    state: Mutex<State>,
    places: Semaphore,
}

#[derive(Debug)]
enum State {
    /// The server is not connected.
    New,
    Up(Box<Connection>),
    /// The connection is not retried before this time.
    Down(Instant),
}

impl Servers {
    /// Creates the set of servers, none of them connected yet.
    #[must_use]
    pub fn new(settings: Vec<Settings>, doors: &Doors) -> Self {
        let server = |settings| Server {
            settings,
            doors: doors.clone(),
            state: Mutex::new(State::New),
            places: Semaphore::new(CALLS_MAX),
        };
        Self(Arc::new(settings.into_iter().map(server).collect()))
    }

    /// Returns the tools of all available servers in OpenAI's format.
    pub async fn offered(&self) -> Vec<Value> {
        let all = join_all(self.0.iter().map(Server::tools)).await;
        all.iter().flat_map(|tools| tools.iter().map(ServerTool::shown)).collect()
    }

    /// Returns whether a server could have a tool with this name.
    #[must_use]
    pub fn may_have(&self, name: &str) -> bool {
        self.0.iter().any(|server| server.is_own(name))
    }

    /// Calls the tool with this name. `key` identifies the call, including repetitions after a
    /// crash; `heard` receives progress reports.
    pub async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        key: &str,
        heard: watch::Sender<Option<Report>>,
    ) -> Called {
        for server in self.0.iter().filter(|server| server.is_own(name)) {
            let tools = server.tools().await;
            if let Some(tool) = tools.iter().find(|tool| tool.name == name) {
                let call = Call { tool: &tool.own_name, arguments, key, heard };
                return server.call(call).await;
            }
        }
        Called::Refused(format!("the tool '{name}' is unavailable; its server may be down"))
    }
}

impl Server {
    fn prefix(&self) -> String {
        format!("{}__", self.settings.name)
    }

    fn is_own(&self, name: &str) -> bool {
        name.starts_with(&self.prefix())
    }

    /// Returns the server's tools; none while the server is down.
    async fn tools(&self) -> Arc<Vec<ServerTool>> {
        let mut state = self.state.lock().await;
        let now = runtime::monotonic_now();
        match &mut *state {
            State::Up(connection) if connection.is_good(now, TOOLS_TTL) => {
                let tools = Arc::clone(&connection.tools);
                let Some(line) = connection.changed(now, CHANGE_PERIOD) else { return tools };
                // The lock is released here, so that calls and other exchanges can continue while
                // the tools are listed.
                drop(state);
                return self.listed_again(line).await.unwrap_or(tools);
            }
            State::Down(until) if now < *until => return Arc::default(),
            State::New | State::Up(_) | State::Down(_) => {}
        }
        // The old connection is closed before the new one opens.
        *state = State::New;
        let connecting = Connection::open(&self.settings, &self.doors);
        let limit = match self.settings.transport {
            Transport::Http { .. } => CONNECT_TIMEOUT,
            Transport::Program { .. } => START_TIMEOUT,
        };
        let opened = match tokio::time::timeout(limit, connecting).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(format!("it did not answer within {limit:?}")),
        };
        match opened {
            Ok(mut connection) => {
                connection.tools = Arc::new(self.chosen(connection.listed()));
                let tools = Arc::clone(&connection.tools);
                *state = State::Up(Box::new(connection));
                tools
            }
            Err(reason) => {
                let server = &self.settings.name;
                tracing::warn!(server, reason, "MCP server of the agent is down");
                *state = State::Down(runtime::monotonic_now() + DOWN_FOR);
                Arc::default()
            }
        }
    }

    /// Lists the tools again after the server has announced a change; `None` if the listing fails.
    async fn listed_again(&self, line: Line) -> Option<Arc<Vec<ServerTool>>> {
        let server = &self.settings.name;
        let listed = match tokio::time::timeout(CONNECT_TIMEOUT, line.list(server)).await {
            Ok(listed) => listed,
            Err(_elapsed) => Err(format!("it did not answer within {CONNECT_TIMEOUT:?}")),
        };
        let listed = match listed {
            Ok(listed) => Arc::new(self.chosen(listed)),
            Err(reason) => {
                line.still_changed();
                tracing::warn!(
                    server,
                    reason,
                    "MCP server did not list its changed tools; keeping the previous list"
                );
                return None;
            }
        };
        if let State::Up(connection) = &mut *self.state.lock().await
            && connection.has(&line)
        {
            connection.tools = Arc::clone(&listed);
        }
        Some(listed)
    }

    /// Returns the tools that the configuration allows, with their names for the model.
    fn chosen(&self, listed: Vec<ServerTool>) -> Vec<ServerTool> {
        let allow = self.settings.allow.as_ref();
        let is_allowed =
            |tool: &ServerTool| allow.is_none_or(|allow| allow.contains(&tool.own_name));
        let prefix = self.prefix();
        let mut chosen: Vec<ServerTool> = Vec::new();
        for mut tool in listed.into_iter().filter(is_allowed) {
            tool.name = plain_name(&prefix, &tool.own_name);
            if !chosen.iter().any(|earlier| earlier.name == tool.name) {
                chosen.push(tool);
            }
        }
        chosen
    }

    async fn call(&self, call: Call<'_>) -> Called {
        let tool = call.tool;
        let calling = async {
            // The semaphore is never closed.
            let _place = self.places.acquire().await;
            let line = match &*self.state.lock().await {
                State::Up(connection) => connection.line(),
                State::New | State::Down(_) => return Err("its server is down".to_owned()),
            };
            connection::call(line, call, CALL_TIMEOUT).await
        };
        let answered = match tokio::time::timeout(CALL_TIMEOUT, calling).await {
            Ok(answered) => answered,
            Err(_elapsed) => Err(format!("it did not answer within {CALL_TIMEOUT:?}")),
        };
        match answered {
            Ok(Ok(result)) => Called::Said(text_of(&result)),
            Ok(Err(error)) => refusal(&error),
            Err(reason) => {
                let server = &self.settings.name;
                tracing::warn!(server, tool, reason, "tool of an MCP server failed");
                Called::Said(format!("error: the tool failed: {reason}"))
            }
        }
    }
}

fn refusal(error: &ErrorData) -> Called {
    if error.code == rmcp::model::ErrorCode::INVALID_PARAMS {
        return Called::Refused(error.message.to_string());
    }
    Called::Said(format!("error: {}", error.message))
}

/// Converts a result to text for the model. Text and links are copied; images and audio are only
/// mentioned.
fn text_of(result: &CallToolResult) -> String {
    let mut parts: Vec<String> = Vec::new();
    for block in &result.content {
        let part = match block {
            ContentBlock::Text(text) => text.text.clone(),
            ContentBlock::ResourceLink(link) => format!("link: {} ({})", link.uri, link.name),
            ContentBlock::Image(image) => format!("(an image of type {})", image.mime_type),
            ContentBlock::Audio(audio) => format!("(audio of type {})", audio.mime_type),
            ContentBlock::Resource(resource) => resource.get_text(),
            // Content types of later protocol versions.
            _ => "(content of another kind)".to_owned(),
        };
        parts.push(part);
    }
    if parts.iter().all(String::is_empty)
        && let Some(structured) = &result.structured_content
    {
        parts.push(structured.to_string());
    }
    let said = parts.join("\n");
    if result.is_error == Some(true) { format!("error: {said}") } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_result_is_read_as_text() {
        let read = |result: Value| text_of(&serde_json::from_value(result).unwrap());
        let link = json!({"type": "resource_link", "uri": "https://h/a", "name": "a"});
        let image = json!({"type": "image", "data": "AAAA", "mimeType": "image/png"});
        let text = json!({"type": "text", "text": "hi"});
        let all = read(json!({"content": [text, link, image]}));
        assert_eq!(all, "hi\nlink: https://h/a (a)\n(an image of type image/png)");
        assert_eq!(read(json!({"content": [], "structuredContent": {"a": 1}})), r#"{"a":1}"#);
        assert_eq!(read(json!({"content": [text], "isError": true})), "error: hi");
    }
}
