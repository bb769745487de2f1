//! The agent host: a scripted model leads it through tools, limits and refusals. Also tests the
//! session memory, and how an exchange resumes after its last finished step.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Service, Upstream, until};

/// Charges a thousandth of a dollar per token.
pub(crate) const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 1000.0, \
                     per_million_output_tokens = 1000.0 }]\n";
pub(crate) const AGENT: &str = "[agent]\nmodel = 'far'\n";
/// The events of an exchange that creates an image.
const MADE: [&str; 6] = [
    "tool_call",
    "execution_progress",
    "execution_progress",
    "generation_response",
    "message",
    "complete",
];

/// Returns an assistant message with a tool call.
pub(crate) fn calls(tool: &str, arguments: Value) -> Value {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    let call = json!({"id": format!("call-{tool}"), "type": "function", "function": function});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

pub(crate) fn says(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

pub(crate) fn completion(message: &Value) -> Value {
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
    json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
}

/// Scripts a model that returns these messages in turn in each exchange, then repeats the last one.
pub(crate) fn script(up: &Upstream, messages: Vec<Value>) {
    up.follows(move |request| {
        let all = request["messages"].as_array().unwrap();
        let own = all.iter().rev().take_while(|message| message["role"] != "user");
        let said = own.filter(|message| message["role"] == "assistant").count();
        (200, completion(messages.get(said).or(messages.last()).unwrap()))
    });
}

/// Returns the tool results in the newest request.
fn tool_results(up: &Upstream) -> Vec<String> {
    let request = up.newest();
    let messages = request["messages"].as_array().unwrap();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

async fn start() -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(PRICE) + AGENT)).await;
    (up, service)
}

pub(crate) fn host(service: &Service, method: Method, path: &str) -> Ask {
    service.ask(Role::Agent, method, path).key(&service.key)
}

pub(crate) fn prompt(service: &Service, session: &str, text: &str) -> Ask {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"messages": messages, "session_id": session, "stream": false});
    host(service, Method::POST, "/v1/chat/completions").json(&body)
}

pub(crate) async fn memory(service: &Service, session: &str) -> Value {
    let path = format!("/memory?session_id={session}");
    host(service, Method::GET, &path).send().await.expect(200)
}

async fn rows(service: &Service, filter: &str) -> Vec<Value> {
    let page = service.get(&format!("/v2/executions?{filter}")).await.expect(200);
    page["executions"].as_array().unwrap().clone()
}

/// Returns the events of a stream with their ids; the last event is `[DONE]`.
pub(crate) fn events(answer: &Answer) -> Vec<(String, Value)> {
    assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
    let frames = answer.text.split("\n\n").filter(|frame| frame.starts_with("id: "));
    let read = frames.map(|frame| {
        let (id, data) = frame.strip_prefix("id: ").unwrap().split_once("\ndata: ").unwrap();
        (id.to_owned(), serde_json::from_str(data).unwrap())
    });
    read.collect()
}

pub(crate) fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(_, data)| data["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn agent_makes_an_image_and_remembers_its_url() {
    let (up, service) = start().await;
    script(
        &up,
        vec![
            calls("find_models", json!({"query": "qr code"})),
            calls("run_model", json!({"model": "image-qr", "input": {"text": "hello"}})),
            says("Here it is."),
        ],
    );
    let answer = prompt(&service, "s1", "make a QR code").send().await;
    let said = answer.expect(200);
    assert_eq!(said["object"], "chat.completion");
    assert_eq!(said["choices"][0]["message"]["content"], "Here it is.");
    assert_eq!((&said["model"], &said["session_id"]), (&json!("orrery/beta"), &json!("s1")));
    assert_eq!(said["task_id"], answer.header("x-task-id"));
    let url = said["generations"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("http://"), "{url}");
    assert_eq!(said["usage"]["prompt_tokens"], 27);
    assert_eq!(said["usage"]["cost"], 0.03);
    let results = tool_results(&up);
    assert!(results[0].contains("image-qr") && results[1].contains("success"), "{results:?}");
    let memory = memory(&service, "s1").await;
    assert_eq!((&memory["session_id"], &memory["total_exchanges"]), (&json!("s1"), &json!(1)));
    let exchange = &memory["conversation_history"][0];
    assert_eq!(exchange["user_prompt"], "make a QR code");
    assert_eq!(exchange["chatbot_response"], "Here it is.");
    assert_eq!(memory["generated_media_urls"].as_array().unwrap().len(), 1);
    let made = &rows(&service, "type=prediction").await[0];
    assert_eq!((&made["source"], &made["status"]), (&json!("agent"), &json!("success")));
    let row = &rows(&service, "type=agent").await[0];
    assert_eq!((&row["id"], &row["model"]), (&said["task_id"], &json!("far")));
    assert_eq!((&row["status"], &row["output"]), (&json!("success"), &Value::Null));
    assert_eq!(row["agent"]["session_id"], "s1");
    let charged: i64 = service.ledger().await.iter().map(|entry| entry.amount.micros()).sum();
    assert_eq!(charged, -30_000);
}

#[tokio::test]
async fn agent_streams_events_in_both_forms_and_resumes_them() {
    let (up, service) = start().await;
    script(
        &up,
        vec![
            calls("run_model", json!({"model": "image-qr", "input": {"text": "hello"}})),
            says("Done."),
        ],
    );
    let body = json!({"message": "go", "session_id": "s"});
    let flat = host(&service, Method::POST, "/chat").json(&body).send().await;
    let task = flat.header("x-task-id").to_owned();
    let flat = events(&flat);
    assert_eq!(kinds(&flat), MADE);
    assert_eq!(flat[0].1["name"], "run_model");
    let (begun, ended) = (&flat[1].1, &flat[2].1);
    assert_eq!(
        (&begun["step_status"], &begun["progress_percent"]),
        (&json!("starting"), &json!(0))
    );
    assert_eq!(
        (&ended["step_status"], &ended["progress_percent"]),
        (&json!("success"), &json!(100))
    );
    assert_eq!((&ended["model"], &ended["total_steps"]), (&json!("image-qr"), &json!(1)));
    let complete = &flat[5].1;
    assert_eq!((&complete["status"], &complete["task_id"]), (&json!("ok"), &json!(task)));
    assert_eq!(complete["generations"][0]["url"], flat[3].1["url"]);
    let path = format!("/v1/tasks/{task}/events");
    let all = events(&host(&service, Method::GET, &path).send().await);
    assert_eq!(kinds(&all), kinds(&flat));
    let chunk = &all[4].1;
    assert_eq!(chunk["object"], "chat.completion.chunk");
    assert_eq!(chunk["choices"][0]["delta"]["content"], "Done.");
    assert_eq!(all[5].1["choices"][0]["finish_reason"], "stop");
    for missed in 0..=all.len() {
        let mut ask = host(&service, Method::GET, &path);
        if missed > 0 {
            ask = ask.header("last-event-id", &all[missed - 1].0);
        }
        let rest = events(&ask.send().await);
        assert_eq!(kinds(&rest), kinds(&all)[missed..], "behind {missed}");
    }
    let foreign = service.ask(Role::Agent, Method::GET, &path).key(&service.other_key);
    foreign.send().await.expect_error(404, "task not found");
}

#[tokio::test]
async fn agent_creates_a_workflow_and_runs_it() {
    let (up, service) = start().await;
    let params = json!({"expression": "name", "document": {"name": "{{inputs.name}}"}});
    let step = json!({"step_id": "pick", "type": "model", "model": "json-query", "params": params});
    let definition = json!({"steps": [step], "input_schema": {
        "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}});
    script(
        &up,
        vec![
            calls("create_workflow", json!({"name": "Greet", "definition": definition})),
            calls("find_workflows", json!({"query": "greet"})),
            calls("run_workflow", json!({"workflow": "greet", "inputs": {"name": "Ada"}})),
            says("Greeted."),
        ],
    );
    let body = json!({"message": "greet Ada", "session_id": "s"});
    let answer = host(&service, Method::POST, "/chat").json(&body).send().await;
    let events = events(&answer);
    let kinds = kinds(&events);
    let expected = [
        "tool_call",
        "workflow_built",
        "workflow_created",
        "tool_call",
        "tool_call",
        "execution_started",
        "execution_progress",
        "execution_completed",
        "message",
        "complete",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(events[1].1["steps_count"], 1);
    let progress = &events[6].1;
    assert_eq!(progress["execution_id"], events[5].1["execution_id"]);
    let found = (&progress["step_id"], &progress["step_status"], &progress["model"]);
    assert_eq!(found, (&json!("pick"), &json!("completed"), &json!("json-query")));
    let found = (&progress["completed_steps"], &progress["total_steps"]);
    assert_eq!(found, (&json!(1), &json!(1)));
    assert_eq!(progress["progress_percent"], 100);
    assert_eq!(progress["output"]["result"], "Ada", "{progress}");
    let completed = events.iter().find(|(_, data)| data["type"] == "execution_completed").unwrap();
    assert_eq!(completed.1["output"]["result"], "Ada", "{events:?}");
    let list = service.flows(Method::GET, "/workflows").send().await.expect(200);
    assert_eq!(list["total_count"], 1);
}

#[tokio::test]
async fn agent_in_plan_or_ask_mode_has_no_effects() {
    let (up, service) = start().await;
    let run = json!({"model": "text-template", "input": {"template": "x"}});
    script(&up, vec![calls("run_model", run), says("1. Run text-template: free.")]);
    for behavior in ["plan", "ask"] {
        let body = json!({"message": "do it", "behavior": behavior, "stream": false});
        let answer = host(&service, Method::POST, "/chat").json(&body).send().await;
        assert_eq!(answer.expect(200)["message"], "1. Run text-template: free.");
        assert!(tool_results(&up)[0].contains("runs in behavior agent only"));
        let request = up.newest();
        let tools = request["tools"].as_array().unwrap();
        assert!(!tools.iter().any(|tool| tool["function"]["name"] == "run_model"));
    }
    assert!(rows(&service, "type=prediction").await.is_empty());
}

#[tokio::test]
async fn agent_corrects_rejected_input_and_ends_after_three() {
    let (up, service) = start().await;
    let run = |input: Value| calls("run_model", json!({"model": "text-template", "input": input}));
    let good = json!({"template": "ok"});
    script(&up, vec![run(json!({})), run(json!({"template": 7})), run(good), says("Done.")]);
    prompt(&service, "s", "go").send().await.expect(200);
    let results = tool_results(&up);
    assert!(results[0].contains("missing required field 'template'"), "{results:?}");
    assert!(results[2].contains("success"), "{results:?}");
    script(&up, vec![run(json!({}))]);
    let answer = prompt(&service, "s", "again").send().await;
    let message = answer.expect(502)["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the model called the tool 'run_model' with invalid input");
    let memory = memory(&service, "s").await;
    assert_eq!(memory["conversation_history"][1]["chatbot_response"], message);
    assert_eq!(rows(&service, "type=prediction").await.len(), 1);
}

#[tokio::test]
async fn agent_ends_at_its_limits() {
    let up = Upstream::start().await;
    let lines = up.config(PRICE) + AGENT + "max_steps = 8\nmax_cost = 0.05\n";
    let service = Service::configured(&lines).await;
    script(&up, vec![calls("list_files", json!({}))]);
    let eco = json!({"message": "go", "mode": "eco", "stream": false});
    let ask = |body: &Value| host(&service, Method::POST, "/chat").json(body);
    let answer = ask(&eco).send().await.expect(502);
    assert_eq!(answer["error"]["message"], "the exchange did not end within 2 steps");
    assert_eq!(up.requests().len(), 1, "an answer and a tool");
    let max = json!({"message": "go", "stream": false});
    let answer = ask(&max).send().await.expect(502);
    assert_eq!(answer["error"]["message"], "the exchange did not end within 8 steps");
    let many: Vec<Value> =
        (0..1000).map(|_| calls("list_files", json!({}))["tool_calls"][0].clone()).collect();
    script(&up, vec![json!({"role": "assistant", "tool_calls": many})]);
    ask(&max).send().await.expect(502);
    let row = &rows(&service, "type=agent").await[0];
    assert_eq!((&row["status"], &row["error"]), (&json!("error"), &json!("LimitReached")));
    let dear = Service::configured(
        &(up.config(&PRICE.replace("1000.0", "5000.0")) + AGENT + "max_cost = 0.05\n"),
    )
    .await;
    script(&up, vec![calls("list_files", json!({})), says("never said")]);
    let answer = host(&dear, Method::POST, "/chat").json(&max).send().await.expect(502);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("cost limit (agent.max_cost)"), "{message}");
}

#[tokio::test]
async fn agent_asks_client_for_clarification() {
    let (up, service) = start().await;
    let question = json!({"question": "Which color?", "options": ["red", "blue"]});
    script(&up, vec![calls("ask_user", question)]);
    let body = json!({"message": "paint", "session_id": "s"});
    let answer = host(&service, Method::POST, "/chat").json(&body).send().await;
    let events = events(&answer);
    assert_eq!(kinds(&events), ["tool_call", "clarification_needed", "complete"]);
    assert_eq!(events[1].1["options"], json!(["red", "blue"]));
    assert_eq!(events[2].1["status"], "clarification_needed");
    script(&up, vec![says("Blue it is.")]);
    prompt(&service, "s", "blue").send().await.expect(200);
    let request = up.newest();
    let texts: Vec<&Value> =
        request["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(texts[1..], [&json!("paint"), &json!("Which color?"), &json!("blue")]);
}

#[tokio::test]
async fn agent_sessions_belong_to_organization_and_survive_restart() {
    let (up, service) = start().await;
    script(&up, vec![says("Hello.")]);
    for session in ["b", "a"] {
        prompt(&service, session, "hi").send().await.expect(200);
    }
    let fresh = json!({"messages": [
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"}], "stream": false});
    let path = "/v1/chat/completions";
    let answer = host(&service, Method::POST, path).json(&fresh).send().await;
    let made = answer.header("x-session-id").to_owned();
    assert_eq!(up.newest()["messages"].as_array().unwrap().len(), 4, "what the client sent");
    let service = service.restart().await;
    let list = host(&service, Method::GET, "/sessions").send().await.expect(200);
    let mut expected = vec!["a".to_owned(), "b".to_owned(), made];
    expected.sort();
    let mut names: Vec<String> = serde_json::from_value(list["sessions"].clone()).unwrap();
    names.sort();
    assert_eq!(names, expected);
    assert_eq!(memory(&service, "a").await["total_exchanges"], 1);
    let other = |method, path| service.ask(Role::Agent, method, path).key(&service.other_key);
    let foreign = other(Method::GET, "/memory?session_id=a").send().await.expect(200);
    let nothing = json!({
        "session_id": "a", "conversation_history": [], "total_exchanges": 0, "summary": null,
        "generated_media_urls": [],
    });
    assert_eq!(foreign, nothing);
    let list = other(Method::GET, "/sessions").send().await.expect(200);
    assert_eq!(list["sessions"], json!([]));
    let cleared = other(Method::DELETE, "/memory?session_id=a").send().await.expect(200);
    assert_eq!(cleared, json!({"cleared": false, "session_id": "a"}));
    let clear = || host(&service, Method::DELETE, "/memory?session_id=a");
    assert_eq!(clear().send().await.expect(200)["cleared"], true);
    assert_eq!(clear().send().await.expect(200)["cleared"], false);
    assert_eq!(memory(&service, "a").await, nothing);
    let service = service.restart().await;
    assert_eq!(memory(&service, "a").await, nothing, "cleared for good");
}

#[tokio::test]
async fn agent_exchanges_of_one_session_run_in_turn() {
    let (up, service) = start().await;
    for _ in 0..8 {
        up.is_silent();
    }
    let body = json!({"message": "hi", "session_id": "s"});
    let ask = || host(&service, Method::POST, "/chat").json(&body);
    let mut open = vec![ask().open().await];
    up.arrived(1).await;
    for _ in 0..4 {
        open.push(ask().open().await);
    }
    let refused = ask().send().await;
    assert_eq!(refused.expect(409)["error"]["type"], "conflict");
    let elsewhere = json!({"message": "hi", "session_id": "t"});
    open.push(host(&service, Method::POST, "/chat").json(&elsewhere).open().await);
    up.arrived(2).await;
    for answer in &open {
        assert_eq!(answer.status(), 200);
        let task = answer.headers()["x-task-id"].to_str().unwrap();
        let path = format!("/v1/tasks/{task}/cancel");
        let cancelled = host(&service, Method::POST, &path).send().await.expect(200);
        assert_eq!(cancelled, json!({"task_id": task, "status": "cancelled"}));
    }
    let ended = rows(&service, "type=agent&status=cancelled").await;
    assert_eq!(ended.len(), 6);
    let task = open[0].headers()["x-task-id"].to_str().unwrap().to_owned();
    let path = format!("/v1/tasks/{task}/events");
    let events = events(&host(&service, Method::GET, &path).send().await);
    assert_eq!(kinds(&events), ["error", "complete"]);
    assert_eq!(events[0].1["error_code"], "Cancelled");
    let rest = host(&service, Method::GET, &path).header("last-event-id", "end-1").send().await;
    assert!(!rest.text.contains("error_code") && rest.text.contains("complete"), "{}", rest.text);
    let memory = memory(&service, "s").await;
    assert_eq!(memory["conversation_history"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn agent_resumes_after_last_finished_step_after_restart() {
    let (up, service) = start().await;
    let run = json!({"model": "image-qr", "input": {"text": "hello"}});
    up.answers(200, completion(&calls("run_model", run)).to_string());
    up.is_silent();
    let body = json!({"message": "go", "session_id": "s"});
    let open = host(&service, Method::POST, "/chat").json(&body).open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    up.arrived(2).await;
    drop(open);
    script(&up, vec![says("the first answer is not asked for again"), says("Done.")]);
    let service = service.restart().await;
    let path = format!("/v1/tasks/{task}/events");
    let events = events(&host(&service, Method::GET, &path).send().await);
    assert_eq!(kinds(&events), MADE);
    assert_eq!(events[4].1["content"], "Done.");
    assert_eq!(rows(&service, "type=prediction").await.len(), 1, "the tool ran once");
    let memory = memory(&service, "s").await;
    assert_eq!(memory["total_exchanges"], 1);
    let charged: i64 = service.ledger().await.iter().map(|entry| entry.amount.micros()).sum();
    assert_eq!(charged, -20_000, "the answer that was cut off costs nothing");
}

#[tokio::test]
async fn agent_cancel_ends_work_started_by_its_tool() {
    let (up, service) = start().await;
    let slow = Upstream::start().await;
    service.manifest(&slow.manifest("slow", "chat", ""));
    slow.is_silent();
    let run = json!({"model": "slow", "input": {"prompt": "hi"}});
    script(&up, vec![calls("run_model", run)]);
    let body = json!({"message": "go", "session_id": "s"});
    let open = host(&service, Method::POST, "/chat").json(&body).open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    slow.arrived(1).await;
    let path = format!("/v1/tasks/{task}/cancel");
    host(&service, Method::POST, &path).send().await.expect(200);
    slow.hung_up(1).await;
    let made = until("cancelled prediction", async || {
        rows(&service, "type=prediction&status=cancelled").await.pop()
    })
    .await;
    assert_eq!(made["source"], "agent");
    host(&service, Method::POST, &path).send().await.expect(200);
}

#[tokio::test]
async fn agent_invalid_request_starts_nothing() {
    let (up, service) = start().await;
    let post = |path: &str, body: &Value| host(&service, Method::POST, path).json(body);
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (path, body, param) in [
        ("/v1/chat/completions", json!({}), json!("messages")),
        ("/chat", json!({}), json!("message")),
        ("/chat", json!({"message": "hi", "mode": "fast"}), json!("mode")),
        ("/chat", json!({"message": "hi", "behavior": "obey"}), json!("behavior")),
        (
            "/chat",
            json!({"message": "hi", "image_urls": vec!["http://h/"; 5]}),
            json!("image_urls"),
        ),
        ("/chat", json!({"message": "hi", "session_id": "x".repeat(10_000)}), json!("session_id")),
        ("/chat", json!({"message": "hi", "session_id": "a\u{7}"}), json!("session_id")),
        ("/chat", json!({"message": "x".repeat(1 << 20)}), json!("message")),
        ("/v1/chat/completions", json!({"messages": user(json!(1))}), json!("messages")),
    ] {
        let answer = post(path, &body).undocumented().send().await;
        let error = answer.expect(400)["error"].clone();
        assert_eq!((&error["param"], &error["type"]), (&param, &json!("invalid_request_error")));
    }
    let large = service.refusal_of_large_body(Role::Agent, "/chat").await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let full = json!({"message": "x".repeat((8 << 20) - 100)});
    let error = post("/chat", &full).undocumented().send().await.expect(400)["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    let metadata = json!({"message": "hi", "image_urls": ["http://169.254.169.254/a.png"]});
    post("/chat", &metadata).send().await.expect(400);
    for method in [Method::GET, Method::DELETE] {
        let missing = host(&service, method, "/memory").send().await;
        missing.expect_error(400, "session_id is required");
    }
    let anonymous = service.ask(Role::Agent, Method::POST, "/chat").json(&json!({"message": "hi"}));
    anonymous.send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    assert_eq!(up.requests().len(), 0);
    assert!(rows(&service, "type=agent").await.is_empty());
    let models = host(&service, Method::GET, "/v1/models").send().await.expect(200);
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    let model = (&models["data"][0]["id"], &models["data"][0]["owned_by"]);
    assert_eq!(model, (&json!("orrery/beta"), &json!("orrery")));
    let without = Service::start().await;
    let answer = host(&without, Method::POST, "/chat").json(&json!({"message": "hi"})).send().await;
    let message = answer.expect(503)["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("agent.model"), "{message}");
}

#[tokio::test]
async fn agent_reports_failure_of_its_model() {
    let (up, service) = start().await;
    up.answers(500, r#"{"error":{"message":"down"}}"#);
    let answer = prompt(&service, "s", "hi").send().await;
    assert_eq!(answer.expect(502)["error"]["message"], "down");
    up.answers(200, "{}");
    prompt(&service, "s", "hi").send().await.expect(502);
    let memory = memory(&service, "s").await;
    assert_eq!(memory["conversation_history"][0]["chatbot_response"], "down");
    assert_eq!(memory["total_exchanges"], 2);
    assert!(service.ledger().await.is_empty());
}

#[tokio::test]
async fn agent_command_shows_tools_links_and_costs() {
    let (up, service) = start().await;
    script(
        &up,
        vec![
            calls("run_model", json!({"model": "image-qr", "input": {"text": "hello"}})),
            says("Here it is."),
        ],
    );
    let command = tokio::process::Command::new(env!("CARGO_BIN_EXE_orrery"))
        .args(["--config", "config.toml", "agent", "--session", "cli", "make a QR code"])
        .current_dir(service.folder.path())
        .output();
    let done = crate::support::within("end of the command", command).await.unwrap();
    let (said, noted) =
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert_eq!(said, "Here it is.\n", "{noted}");
    assert!(noted.contains("· run_model {\"model\":\"image-qr\""), "{noted}");
    assert!(noted.contains("http://") && noted.contains(" s, 0.020000 USD"), "{noted}");
    assert_eq!(memory(&service, "cli").await["total_exchanges"], 1);
}

/// Returns an assistant message with these raw tool calls.
fn raw_calls(calls: Value) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

#[tokio::test]
async fn agent_stops_model_that_returns_endless_garbage() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(PRICE) + AGENT + "max_steps = 12\n")).await;
    for garbage in [
        json!([{}]),
        json!([{"id": 7, "function": {"name": [], "arguments": 1}}]),
        json!([{"id": "x", "function": {"name": "run_model", "arguments": "{not json"}}]),
        json!([{"id": "x", "function": {"name": "no_such_tool", "arguments": "[]"}}]),
        json!([{"id": "x", "function": {"name": "run_model", "arguments": "\"text\""}}]),
        json!("calls"),
    ] {
        script(&up, vec![raw_calls(garbage.clone())]);
        let answer = prompt(&service, "s", "go").send().await;
        let message = answer.expect(502)["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("with invalid input") || message.contains("without a message"),
            "{garbage}: {message}"
        );
    }
    // Each answer calls a different unknown tool, so the agent rejects no tool twice.
    up.follows(|request| {
        let count = request["messages"].as_array().unwrap().len();
        let function = json!({"name": format!("tool_{count}"), "arguments": "{}"});
        (200, completion(&raw_calls(json!([{"id": "c", "function": function}]))))
    });
    let answer = prompt(&service, "s", "go").send().await.expect(502);
    assert_eq!(answer["error"]["message"], "the exchange did not end within 12 steps");
    assert!(rows(&service, "type=prediction").await.is_empty());
    assert_eq!(memory(&service, "s").await["total_exchanges"], 7, "each ended once");
}

#[tokio::test]
async fn agent_exchange_with_endless_growth_is_stopped() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config("") + AGENT + "max_steps = 1000\n")).await;
    let calls: Vec<Value> = (0..16)
        .map(|number| {
            let input = json!({"limit": 1, "padding": "x".repeat(60_000)}).to_string();
            json!({"id": format!("c{number}"), "function": {"name": "list_files", "arguments": input}})
        })
        .collect();
    script(&up, vec![raw_calls(json!(calls))]);
    let answer = prompt(&service, "s", "go").send().await.expect(502);
    assert_eq!(answer["error"]["message"], "the exchange is larger than 4194304 bytes");
    assert!(up.requests().len() < 8, "{}", up.requests().len());
}

#[tokio::test]
async fn agent_is_told_that_a_large_output_is_large() {
    let (up, service) = start().await;
    let step =
        json!({"step_id": "s", "type": "pass", "result": ["{{inputs.text}}", "{{inputs.text}}"]});
    service
        .workflow_of(json!({"steps": [step], "input_schema": {"type": "object",
        "properties": {"text": {"type": "string", "default": "y".repeat(700_000)}}}}))
        .await;
    script(&up, vec![calls("run_workflow", json!({"workflow": "flow"})), says("Long.")]);
    let body = json!({"message": "go", "session_id": "s"});
    let answer = host(&service, Method::POST, "/chat").json(&body).send().await;
    assert!(answer.text.len() < 10_000, "{} bytes of events", answer.text.len());
    let result = &tool_results(&up)[0];
    assert!(result.contains("(an output of 1400007 bytes"), "{}", &result[..200.min(result.len())]);
}

#[tokio::test]
async fn agent_memory_survives_backup_and_restore() {
    let (up, service) = start().await;
    script(&up, vec![says("Hello.")]);
    prompt(&service, "kept", "remember me").send().await.expect(200);
    let folder = service.folder.path().to_owned();
    let key = service.key.clone();
    let command = async |arguments: &[&str]| {
        let command = tokio::process::Command::new(env!("CARGO_BIN_EXE_orrery"))
            .args(["--config", "config.toml"])
            .args(arguments)
            .current_dir(&folder)
            .output();
        let done = crate::support::within("end of the command", command).await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    command(&["backup", "all.backup"]).await;
    prompt(&service, "kept", "forget this").send().await.expect(200);
    let service = service
        .restart_after(async |config: &orrery_config::Config| {
            std::fs::rename(&config.data_dir, config.data_dir.with_extension("old")).unwrap();
            command(&["restore", "all.backup"]).await;
        })
        .await;
    let memory = host(&service, Method::GET, "/memory?session_id=kept").key(&key).send().await;
    let memory = memory.expect(200);
    assert_eq!(memory["total_exchanges"], 1, "{memory}");
    assert_eq!(memory["conversation_history"][0]["user_prompt"], "remember me");
    let other = service.ask(Role::Agent, Method::GET, "/sessions").key(&service.other_key);
    assert_eq!(other.send().await.expect(200)["sessions"], json!([]));
}

#[tokio::test]
async fn agent_answers_on_base_host_with_openai_defaults() {
    let (up, service) = start().await;
    script(&up, vec![says("done")]);
    let ask = |more: Value| {
        let mut body =
            json!({"model": "orrery/beta", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        service.post("/v1/chat/completions", &body)
    };
    for more in [json!({}), json!({"stream": false}), json!({"stream": null})] {
        let said = ask(more).send().await.expect(200);
        assert_eq!(
            (&said["object"], &said["model"]),
            (&json!("chat.completion"), &json!("orrery/beta"))
        );
        assert_eq!(said["choices"][0]["message"]["content"], "done");
        assert_eq!(up.newest()["model"], "far");
    }
    let stream = ask(json!({"stream": true})).send().await;
    let all = events(&stream);
    let last = &all.last().unwrap().1;
    assert_eq!(
        (&last["type"], &last["choices"][0]["finish_reason"]),
        (&json!("complete"), &json!("stop"))
    );
    assert_eq!(stream.header("content-type"), "text/event-stream");
    assert_eq!(rows(&service, "type=agent").await.len(), 4);
}

#[tokio::test]
async fn agent_id_is_never_sent_to_upstream() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"model": "orrery/beta", "messages": messages});
    let error = service.post("/v1/chat/completions", &chat).send().await.expect(503);
    assert_eq!(
        error["error"]["message"],
        "the agent has no model: set agent.model in the configuration"
    );
    let question = json!({"q": {"type": "oul", "instructions": "?"}});
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "orrery/beta", "input": "a"})),
        ("/v1/decisions", json!({"model": "orrery/beta", "state": "a", "questions": question})),
    ] {
        let error = service.post(path, &body).send().await.expect(400);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("'orrery/beta' is the agent"), "{message}");
    }
    assert_eq!(up.requests().len(), 0);
}
