//! An MCP server with two tools, over HTTP with JSON or events; also a shell program that exchanges
//! lines.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::server::{Response, Whole, events, respond, serve};

const SESSION: &str = "mcp-session-id";
/// Size of the result of the tool `large`.
const LARGE: usize = 50 << 20;

#[derive(Default)]
struct State {
    /// All received messages, with their headers.
    messages: Mutex<Vec<(Value, hyper::HeaderMap)>>,
    is_down: AtomicBool,
    sends_events: AtomicBool,
    lists_odd_tools: AtomicBool,
    /// Number of listings to reject.
    refused_listings: AtomicUsize,
    /// The number of the current session; 0 if there is none.
    session: AtomicUsize,
    /// Number of replies that the client has sent to the server's own requests.
    replies: watch::Sender<usize>,
    /// Lets a call of the tool `slow` end.
    may_end: Notify,
}

/// A running server.
pub(crate) struct McpServer {
    address: SocketAddr,
    state: Arc<State>,
}

/// Returns the tools as the server lists them.
fn tools() -> Value {
    let text = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tool = |name: &str| json!({"name": name, "description": "says it", "inputSchema": text});
    let too_large =
        json!({"name": "wide", "inputSchema": {"type": "object", "x": "y".repeat(20_000)}});
    json!({"tools": [tool("echo"), tool("fail"), tool("large"), tool("never"), tool("slow"), tool("se.cret/tool"), too_large]})
}

/// Returns a list with some invalid tools.
fn odd_tools() -> Value {
    let good = tools()["tools"][0].clone();
    let with = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    let nested = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "string"}}});
    json!({"tools": [
        {"name": "none"}, with("null", Value::Null), with("text", json!("x")),
        with("", json!({})), {"inputSchema": {}},
        {"name": 1, "inputSchema": {}}, good, good, with("nested", nested),
        with("invalid", json!({"type": "odd"})),
        {"name": "annotated", "inputSchema": {}, "annotations": "x", "outputSchema": 5},
    ]})
}

impl McpServer {
    pub(crate) async fn start() -> Self {
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let address = serve(move |request| Arc::clone(&shared).answer(request)).await;
        Self { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Makes the server respond with 503, or normally again.
    pub(crate) fn is_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Makes the server respond with events.
    pub(crate) fn sends_events(&self) {
        self.state.sends_events.store(true, Ordering::SeqCst);
    }

    /// Makes the server list some invalid tools.
    pub(crate) fn lists_odd_tools(&self) {
        self.state.lists_odd_tools.store(true, Ordering::SeqCst);
    }

    /// Makes the server reject the next listing.
    pub(crate) fn refuses_a_listing(&self) {
        self.state.refused_listings.store(1, Ordering::SeqCst);
    }

    /// Starts a new session; the server no longer accepts older ones.
    pub(crate) fn begins_a_session(&self) {
        self.state.session.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets one call of the tool `slow` end.
    pub(crate) fn end_slow(&self) {
        self.state.may_end.notify_one();
    }

    /// Returns the replies to the server's own requests.
    pub(crate) fn replies(&self) -> Vec<Value> {
        let messages = self.state.messages.lock().unwrap();
        let replies = messages.iter().filter(|(message, _)| message.get("method").is_none());
        replies.map(|(message, _)| message.clone()).collect()
    }

    /// Returns the messages with that method, with their headers.
    pub(crate) fn asked(&self, method: &str) -> Vec<(Value, hyper::HeaderMap)> {
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
        let session = self.session.load(Ordering::SeqCst);
        let sent = request.headers().get(SESSION).map(|id| id.to_str().unwrap().to_owned());
        let is_first = message["method"] == "initialize";
        if session > 0 && !is_first && sent != Some(session.to_string()) {
            return respond(404, "session not found");
        }
        let Some(id) = message.get("id") else { return respond(202, "") };
        if message.get("method").is_none() {
            self.replies.send_modify(|count| *count += 1);
            return respond(202, "");
        }
        let arguments = &message["params"]["arguments"];
        let said = |text: &str| json!({"content": [{"type": "text", "text": text}]});
        let result = match (message["method"].as_str().unwrap(), message["params"]["name"].as_str())
        {
            ("initialize", _) => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "stub", "version": "1"},
            }),
            ("tools/list", _) if self.refused_listings.swap(0, Ordering::SeqCst) > 0 => {
                return respond(500, "not now");
            }
            ("tools/list", _) if self.lists_odd_tools.load(Ordering::SeqCst) => odd_tools(),
            ("tools/list", _) => tools(),
            (_, Some("se.cret/tool")) => return self.asks_first(&message),
            (_, Some("echo")) => said(arguments["text"].as_str().unwrap_or("nothing")),
            (_, Some("large")) => said(&"x".repeat(LARGE)),
            (_, Some("never")) => std::future::pending().await,
            (_, Some("slow")) => return self.slowly(&message),
            (_, Some("fail")) => {
                let error = json!({"code": -32602, "message": "text is too short"});
                return json_answer(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
            _ => said("other"),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        if !self.sends_events.load(Ordering::SeqCst) {
            let mut response = json_answer(&answer);
            if session > 0 && is_first {
                response.headers_mut().insert(SESSION, session.into());
            }
            return response;
        }
        let note = json!({"jsonrpc": "2.0", "method": "notifications/message",
            "params": {"level": "info", "data": "ignore me"}});
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        let event = |message: &Value| format!("event: message\ndata: {message}\n\n");
        let notes = match message["params"]["name"].as_str() {
            Some(_) => event(&note) + &event(&changed),
            None => event(&note),
        };
        let mut response = respond(200, format!(": hi\n\n{notes}{}", event(&answer)));
        response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        response
    }
}

impl State {
    /// Sends the server's own requests, and the result once the client has replied to all of them.
    fn asks_first(self: Arc<Self>, message: &Value) -> Response {
        let asks = |id: Value, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method});
        let own = [
            asks(json!("srv-1"), "ping"),
            asks(json!(7), "sampling/createMessage"),
            asks(json!("x"), "vendor/unknown"),
        ];
        let text = json!([{"type": "text", "text": "replied to"}]);
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": text}});
        let end = stream::once(async move {
            let mut replies = self.replies.subscribe();
            replies.wait_for(|count| *count >= 3).await.unwrap();
            answer.to_string()
        });
        events(stream::iter(own.map(|request| request.to_string())).chain(end))
    }

    /// Reports progress for this call and for an unknown one, and ends when the test allows it.
    fn slowly(self: Arc<Self>, message: &Value) -> Response {
        let token = &message["params"]["_meta"]["progressToken"];
        let note = |token: &Value, progress: u8, text: &str| {
            let params = json!({
                "progressToken": token, "progress": progress, "total": 4, "message": text,
            });
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        };
        let notes = [note(&json!("foreign"), 3, "of another"), note(token, 1, "a quarter")];
        let text = json!([{"type": "text", "text": "at last"}]);
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": text}});
        let end = stream::once(async move {
            self.may_end.notified().await;
            answer.to_string()
        });
        events(stream::iter(notes.map(|note| note.to_string())).chain(end))
    }
}

fn json_answer(message: &Value) -> Response {
    let mut response = respond(200, message.to_string());
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

/// An MCP server as a shell program, whose tool `greet` returns the greeting from its environment.
pub(crate) const PROGRAM: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    [ -n "$id" ] || continue
    case $line in
        *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
        *'"tools/list"'*) result='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
        *'"die"'*) exit 3 ;;
        *'"report"'*)
            token=$(printf '%s' "$line" | sed -n 's/.*"progressToken":\([0-9]*\).*/\1/p')
            printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":2}}\n' "$token"
            while [ ! -e go ]; do sleep 0.02; done
            result='{"content":[{"type":"text","text":"reported"}]}' ;;
        *) result="{\"content\":[{\"type\":\"text\",\"text\":\"$GREETING, from $$\"}]}" ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;
