//! Tools of MCP servers for the agent: offered, called, limited, unavailable; over HTTP and as
//! programs.

use std::path::Path;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::mcp_server::{McpServer, PROGRAM};
use crate::support::{Service, Upstream, installed};

const AGENT: &str = "[agent]\nmodel = 'far'\n";

fn calls(tool: &str, arguments: &Value) -> Value {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    let call = json!({"id": "c", "type": "function", "function": function});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

/// Scripts a model that calls these tools in turn, then returns a final answer.
fn script(up: &Upstream, uses: Vec<(&str, Value)>) {
    let uses: Vec<Value> = uses.iter().map(|(tool, arguments)| calls(tool, arguments)).collect();
    up.follows(move |request| {
        let all = request["messages"].as_array().unwrap();
        let own = all.iter().rev().take_while(|message| message["role"] != "user");
        let said = own.filter(|message| message["role"] == "assistant").count();
        let done = json!({"role": "assistant", "content": "done"});
        (200, json!({"choices": [{"message": uses.get(said).unwrap_or(&done)}]}))
    });
}

/// Returns the tool results in the newest request.
fn results(up: &Upstream) -> Vec<String> {
    let request = up.newest();
    let messages = request["messages"].as_array().unwrap();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// Returns the server tools offered in the newest request.
fn offered(up: &Upstream) -> Vec<String> {
    let request = up.newest();
    let names = request["tools"].as_array().unwrap().iter();
    let names = names.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.contains("__")).collect()
}

async fn ask(service: &Service, fields: Value) -> Value {
    let mut body = json!({"message": "go", "stream": false});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let ask = service.ask(Role::Agent, Method::POST, "/chat").key(&service.key).json(&body);
    ask.send().await.expect(200)
}

/// Starts a service whose agent has the tools of one server, named `stub`.
async fn service_of(up: &Upstream, server: &McpServer) -> Service {
    let (upstream, url) = (up.config(""), server.url());
    let lines = format!("{upstream}{AGENT}[[agent.mcp_servers]]\nname = 'stub'\nurl = '{url}'\n");
    Service::configured(&lines).await
}

#[tokio::test]
async fn agent_uses_tools_of_server() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    let url = server.url();
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'stub'\nurl = '{url}'\nallow = ['echo', 'se.cret/tool', 'wide']\n\
         headers = {{ Authorization = 'Bearer open sesame' }}\n",
        up.config("")
    );
    let service = Service::configured(&lines).await;
    script(&up, vec![("stub__echo", json!({"text": "hello"})), ("stub__large", json!({}))]);
    for turn in 1..=2 {
        assert_eq!(ask(&service, json!({})).await["message"], "done");
        assert_eq!(results(&up)[0], "hello");
        assert!(
            results(&up)[1].contains("the tool 'stub__large' is unavailable"),
            "{:?}",
            results(&up)
        );
        let names = offered(&up);
        assert_eq!(names.len(), 2, "what is allowed and not too large: {names:?}");
        assert!(
            names[0] == "stub__echo" && names[1].starts_with("stub__se_cret_tool_"),
            "{names:?}"
        );
        assert_eq!(server.asked("initialize").len(), 1, "one connection");
        let (call, headers) = server.asked("tools/call")[turn - 1].clone();
        assert_eq!(headers["authorization"], "Bearer open sesame");
        let key = call["params"]["_meta"]["orrery/idempotency_key"].as_str().unwrap();
        assert!(key.ends_with(":2"), "{key}");
        server.sends_events();
    }
    for behavior in ["plan", "ask"] {
        ask(&service, json!({"behavior": behavior})).await;
        assert!(offered(&up).is_empty());
        assert!(results(&up)[0].contains("runs in behavior agent only"));
    }
    assert_eq!(server.asked("tools/call").len(), 2, "no effects while it plans or reads");
}

#[tokio::test]
async fn agent_replies_to_requests_of_a_server_during_a_call() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    let url = server.url();
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'stub'\nurl = '{url}'\nallow = ['se.cret/tool']\n",
        up.config("")
    );
    let service = Service::configured(&lines).await;
    script(&up, Vec::new());
    ask(&service, json!({})).await;
    let tool = offered(&up).remove(0);
    script(&up, vec![(&tool, json!({}))]);
    ask(&service, json!({})).await;
    assert_eq!(results(&up), ["replied to"]);
    let mut replies = server.replies();
    replies.sort_by_key(|reply| reply["id"].to_string());
    assert_eq!(replies[0], json!({"jsonrpc": "2.0", "id": "srv-1", "result": {}}));
    for (reply, id) in replies[1..].iter().zip([json!("x"), json!(7)]) {
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&id, &json!(-32601)));
    }
}

/// The tools in the odd list that can be called.
const ODD_TOOLS: [&str; 4] = ["stub__echo", "stub__nested", "stub__invalid", "stub__annotated"];

#[tokio::test]
async fn agent_skips_invalid_tools_of_server() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    server.lists_odd_tools();
    let service = service_of(&up, &server).await;
    script(&up, Vec::new());
    ask(&service, json!({})).await;
    assert_eq!(offered(&up), ODD_TOOLS);
    let request = up.newest();
    let tools = request["tools"].as_array().unwrap();
    let nested = tools.iter().find(|tool| tool["function"]["name"] == "stub__nested").unwrap();
    assert_eq!(nested["function"]["parameters"]["$defs"]["A"]["type"], "string");
}

#[tokio::test]
async fn agent_lists_tools_of_server_again_after_change() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    server.sends_events();
    let service = service_of(&up, &server).await;
    script(&up, vec![("stub__echo", json!({"text": "hi"}))]);
    ask(&service, json!({})).await;
    assert_eq!(results(&up), ["hi"]);
    server.lists_odd_tools();
    // The server announces the change with its response to each call.
    await_changed_tools(&service, &up).await;
    assert_eq!(server.asked("initialize").len(), 1, "by the same connection");
}

/// Sends prompts until the agent offers the tools in the odd list. Changes to the list are
/// rate-limited.
async fn await_changed_tools(service: &Service, up: &Upstream) {
    for _ in 0..200 {
        ask(service, json!({})).await;
        if offered(up) == ODD_TOOLS {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{:?}", offered(up));
}

#[tokio::test]
async fn agent_retries_failed_listing_of_changed_tools() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    server.sends_events();
    let service = service_of(&up, &server).await;
    script(&up, vec![("stub__echo", json!({"text": "hi"}))]);
    ask(&service, json!({})).await;
    // The server announces the changed list with its response to each call.
    server.lists_odd_tools();
    server.refuses_a_listing();
    await_changed_tools(&service, &up).await;
}

#[tokio::test]
async fn agent_opens_new_session_if_server_has_forgotten_the_old_one() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    server.begins_a_session();
    let service = service_of(&up, &server).await;
    for session in 1..4_usize {
        script(&up, vec![("stub__echo", json!({"text": format!("in {session}")}))]);
        ask(&service, json!({})).await;
        assert_eq!(results(&up), [format!("in {session}")]);
        assert_eq!(server.asked("initialize").len(), session);
        let calls = server.asked("tools/call");
        let (_, headers) = calls.last().unwrap();
        assert_eq!(headers["mcp-session-id"], session.to_string());
        assert_eq!(headers["mcp-protocol-version"], "2025-06-18", "as the server chose");
        server.begins_a_session();
    }
}

#[tokio::test]
async fn agent_loses_only_tools_of_unavailable_server() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    let url = server.url();
    let closed = McpServer::start().await;
    closed.is_down(true);
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'good'\nurl = '{url}'\n[[agent.mcp_servers]]\nname = 'bad'\n\
         url = '{}'\n[[agent.mcp_servers]]\nname = 'metadata'\nurl = 'http://169.254.169.254/mcp'\n\
         [[agent.mcp_servers]]\nname = 'nowhere'\ncommand = ['/no/such/program']\n",
        up.config(""),
        closed.url()
    );
    let service = Service::configured(&lines).await;
    script(&up, vec![("bad__echo", json!({})), ("good__echo", json!({"text": "still here"}))]);
    ask(&service, json!({})).await;
    assert!(results(&up)[0].contains("its server may be down"), "{:?}", results(&up));
    assert_eq!(results(&up)[1], "still here");
    assert!(offered(&up).iter().all(|name| name.starts_with("good__")), "{:?}", offered(&up));
    let tries = closed.asked("initialize").len();
    ask(&service, json!({})).await;
    assert_eq!(closed.asked("initialize").len(), tries, "it is left alone for a while");
}

#[tokio::test]
async fn agent_limits_responses_of_server() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    let lines = |agent: &str| {
        let table = format!("[[agent.mcp_servers]]\nname = 's'\nurl = '{}'\n", server.url());
        up.config("") + agent + &table
    };
    let service = Service::configured(&lines(AGENT)).await;
    script(&up, vec![("s__large", json!({})), ("s__echo", json!({"text": "x".repeat(60_000)}))]);
    ask(&service, json!({})).await;
    assert!(results(&up)[0].contains("1048576 bytes"), "{:?}", results(&up)[0]);
    assert!(results(&up)[1].len() < 17 * 1024 && results(&up)[1].ends_with("… (cut)"));
    script(&up, vec![("s__fail", json!({})); 4]);
    let body = json!({"message": "go", "stream": false});
    let send = |service: &Service| {
        service.ask(Role::Agent, Method::POST, "/chat").key(&service.key).json(&body)
    };
    let refused = send(&service).send().await.expect(502);
    assert_eq!(
        refused["error"]["message"],
        "the model called the tool 's__fail' with invalid input"
    );
    script(&up, vec![("s__never", json!({}))]);
    let hasty = Service::configured(&lines(&format!("{AGENT}timeout = '2s'\n"))).await;
    let late = send(&hasty).send().await.expect(504);
    assert_eq!(late["error"]["message"], "the exchange did not end within 2s");
}

#[tokio::test]
async fn agent_uses_tools_of_program() {
    let up = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.sh"), PROGRAM).unwrap();
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'sh'\ncommand = ['/bin/sh', 'server.sh']\n\
         directory = '{}'\nenv = {{ GREETING = 'Ahoy' }}\n",
        up.config(""),
        folder.path().display()
    );
    let service = Service::configured(&lines).await;
    let greet = ("sh__greet", json!({}));
    script(&up, vec![greet.clone(), greet.clone()]);
    ask(&service, json!({})).await;
    let first = results(&up);
    assert!(first[0].starts_with("Ahoy, from ") && first[0] == first[1], "one process: {first:?}");
    script(&up, vec![("sh__greet", json!({"die": true})), greet]);
    ask(&service, json!({})).await;
    let later = results(&up);
    assert!(later[0].starts_with("error: the tool failed"), "{later:?}");
    assert!(later[1].starts_with("Ahoy, from ") && later[1] != first[0], "a new one: {later:?}");
}

/// Reads a stream up to the event that contains these words; returns the text read.
async fn until(open: &mut hyper::Response<Incoming>, words: &str) -> String {
    let mut read = String::new();
    while !read.contains(words) {
        let frame = open.body_mut().frame().await.unwrap().unwrap();
        read.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    read
}

#[tokio::test]
async fn agent_reports_progress_of_server_tool() {
    let up = Upstream::start().await;
    let server = McpServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.sh"), PROGRAM).unwrap();
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'web'\nurl = '{}'\n[[agent.mcp_servers]]\nname = 'sh'\n\
         command = ['/bin/sh', 'server.sh']\ndirectory = '{}'\nenv = {{ GREETING = 'Ahoy' }}\n",
        up.config(""),
        server.url(),
        folder.path().display()
    );
    let service = Service::configured(&lines).await;
    script(&up, vec![("web__slow", json!({})), ("sh__greet", json!({"report": true}))]);
    let body = json!({"message": "go"});
    let ask = service.ask(Role::Agent, Method::POST, "/chat").key(&service.key).json(&body);
    let mut open = ask.open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    until(&mut open, r#""message":"a quarter","percent":25"#).await;
    server.end_slow();
    until(&mut open, r#""message":"sh__greet is running","percent":null"#).await;
    std::fs::write(folder.path().join("go"), "").unwrap();
    until(&mut open, "[DONE]").await;
    assert_eq!(results(&up), ["at last", "reported"]);
    // The events are stored with the step.
    let path = format!("/v1/tasks/{task}/events");
    let again = service.ask(Role::Agent, Method::GET, &path).key(&service.key).send().await;
    let again = again.text;
    assert_eq!(again.matches(r#""type":"progress""#).count(), 2, "{again}");
    assert!(!again.contains("of another"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn agent_uses_tools_of_python_server() {
    let up = Upstream::start().await;
    let installing = tokio::task::spawn_blocking(|| installed("mcp").join("python"));
    let python = installing.await.unwrap();
    let script_file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/server.py");
    let lines = format!(
        "{}{AGENT}[[agent.mcp_servers]]\nname = 'py'\ncommand = ['{}', '{}']\ndirectory = '{}'\n\
         writable = ['{}']\n",
        up.config(""),
        python.display(),
        script_file.display(),
        script_file.parent().unwrap().display(),
        python.parent().unwrap().parent().unwrap().display(),
    );
    let service = Service::configured(&lines).await;
    script(&up, vec![("py__add", json!({"a": 20, "b": 22})), ("py__add", json!({"a": "x"}))]);
    ask(&service, json!({})).await;
    assert!(results(&up)[0].contains("42"), "{:?} of {:?}", results(&up), offered(&up));
    assert!(results(&up)[1].starts_with("error"), "{:?}", results(&up));
}
