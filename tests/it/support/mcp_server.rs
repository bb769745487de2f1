//! A server of the Model Context Protocol with two tools, by HTTP with JSON or with events, and as lines for a
//! program of the shell.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::server::{Response, Whole, respond, serve};

/// What the tool `large` answers with.
const LARGE: usize = 50 << 20;

#[derive(Default)]
struct State {
    /// The bodies of all messages, with their headers.
    messages: Mutex<Vec<(Value, hyper::HeaderMap)>>,
    is_down: AtomicBool,
    sends_events: AtomicBool,
}

/// The server.
pub struct McpServer {
    address: SocketAddr,
    state: Arc<State>,
}

/// The tools, as the server lists them.
fn tools() -> Value {
    let text = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tool = |name: &str| json!({"name": name, "description": "says it", "inputSchema": text});
    let too_large =
        json!({"name": "wide", "inputSchema": {"type": "object", "x": "y".repeat(20_000)}});
    json!({"tools": [tool("echo"), tool("fail"), tool("large"), tool("never"), tool("se.cret/tool"), too_large]})
}

impl McpServer {
    pub async fn start() -> Self {
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let address = serve(move |request| Arc::clone(&shared).answer(request)).await;
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// From now on it answers 503, or again as it should.
    pub fn is_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Ordering::SeqCst);
    }

    /// From now on it answers with events.
    pub fn sends_events(&self) {
        self.state.sends_events.store(true, Ordering::SeqCst);
    }

    /// The messages of that method, with their headers.
    pub fn asked(&self, method: &str) -> Vec<(Value, hyper::HeaderMap)> {
        let messages = self.state.messages.lock().unwrap();
        messages.iter().filter(|(message, _)| message["method"] == method).cloned().collect()
    }
}

impl State {
    async fn answer(self: Arc<Self>, request: Whole) -> Response {
        if request.method() != hyper::Method::POST {
            return respond(405, "");
        }
        let message: Value = serde_json::from_slice(request.body()).unwrap();
        self.messages.lock().unwrap().push((message.clone(), request.headers().clone()));
        if self.is_down.load(Ordering::SeqCst) {
            return respond(503, "down");
        }
        let Some(id) = message.get("id") else { return respond(202, "") };
        let arguments = &message["params"]["arguments"];
        let said = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let result = match (message["method"].as_str().unwrap(), message["params"]["name"].as_str())
        {
            ("initialize", _) => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "stub", "version": "1"},
            }),
            ("tools/list", _) => tools(),
            (_, Some("echo")) => said(arguments["text"].as_str().unwrap_or("nothing")),
            (_, Some("large")) => said(&"x".repeat(LARGE)),
            (_, Some("never")) => std::future::pending().await,
            (_, Some("fail")) => {
                let error = json!({"code": -32602, "message": "text is too short"});
                return json_answer(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            _ => said("other"),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        if !self.sends_events.load(Ordering::SeqCst) {
            return json_answer(&answer);
        }
        let note = json!({"jsonrpc": "2.0", "method": "notifications/message",
            "params": {"level": "info", "data": "ignore me"}});
        let text =
            format!(": hi\n\nevent: message\ndata: {note}\n\nevent: message\ndata: {answer}\n\n");
        let mut response = respond(200, text);
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        response
    }
}

fn json_answer(message: &Value) -> Response {
    let mut response = respond(200, message.to_string());
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

/// A program of the shell that is such a server with the tool `greet`, which says the greeting of its
/// environment.
pub const PROGRAM: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    [ -n "$id" ] || continue
    case $line in
        *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
        *'"tools/list"'*) result='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
        *'"die"'*) exit 3 ;;
        *) result="{\"content\":[{\"type\":\"text\",\"text\":\"$GREETING, from $$\"}]}" ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;
