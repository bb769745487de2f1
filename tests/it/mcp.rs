//! The Model Context Protocol on the agent host: the tools, how clients call, follow and cancel
//! them, and which requests are rejected; also the official Python client and the conformance
//! suite.

use std::path::{Path, PathBuf};

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Service, Upstream, installed, until};

const BOTH: &str = "application/json, text/event-stream";

fn post(service: &Service, body: &Value) -> Ask {
    let ask = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.key);
    ask.header("accept", BOTH).json(body)
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

async fn ask(service: &Service, method: &str, params: Value) -> Value {
    let answer = post(service, &request(method, params)).send().await.expect(200);
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
    answer
}

async fn call(service: &Service, name: &str, arguments: Value) -> Value {
    let answer = ask(service, "tools/call", json!({"name": name, "arguments": arguments})).await;
    answer["result"].clone()
}

/// Returns all tools, over all pages.
async fn tools(service: &Service) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let params = cursor.map_or_else(|| json!({}), |cursor: Value| json!({"cursor": cursor}));
        let page = ask(service, "tools/list", params).await["result"].clone();
        let tools = page["tools"].as_array().unwrap();
        assert!(tools.len() <= 50, "{}", tools.len());
        all.extend(tools.iter().cloned());
        match page.get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => return all,
        }
    }
}

fn named<'t>(tools: &'t [Value], name: &str) -> &'t Value {
    let found = tools.iter().find(|tool| tool["name"] == name);
    found.unwrap_or_else(|| panic!("no tool {name}"))
}

/// Returns the messages of a stream.
fn messages(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), "text/event-stream", "{}", answer.text);
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn greeting() -> Value {
    let params = json!({"expression": "name", "document": {"name": "{{inputs.name}}"}});
    let step = json!({"step_id": "pick", "type": "model", "model": "json-query", "params": params});
    json!({"steps": [step], "input_schema": {
        "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}})
}

#[tokio::test]
async fn mcp_server_answers_in_version_of_client() {
    let service = Service::start().await;
    let hello = |version: &str| {
        let info = json!({"name": "test", "version": "1"});
        json!({"protocolVersion": version, "capabilities": {}, "clientInfo": info})
    };
    for (asked, expected) in [("2025-06-18", "2025-06-18"), ("1.0", "2025-11-25")] {
        let answer = ask(&service, "initialize", hello(asked)).await;
        let result = &answer["result"];
        assert_eq!(result["protocolVersion"], expected);
        assert_eq!(result["serverInfo"]["name"], "orrery");
        assert_eq!(result["capabilities"], json!({"tools": {}}));
    }
    assert_eq!(ask(&service, "ping", json!({})).await["result"], json!({}));
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let taken = post(&service, &ready).send().await;
    assert_eq!((taken.status, taken.text.as_str()), (202, ""));
    let stream = service.ask(Role::Agent, Method::GET, "/mcp").key(&service.key).send().await;
    assert_eq!((stream.status, stream.header("allow")), (405, "POST"));
}

#[tokio::test]
async fn mcp_version_without_handshake_repeats_all_fields_per_request() {
    let service = Service::start().await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let send = |method: &str, params: Value| {
        let ask = post(&service, &request(method, params));
        ask.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method)
    };
    let found = send("server/discover", json!({"_meta": meta})).send().await.expect(200);
    assert!(
        found["result"]["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28"))
    );
    let listed = send("tools/list", json!({"_meta": meta})).send().await.expect(200);
    let result = &listed["result"];
    assert_eq!(
        (&result["resultType"], &result["cacheScope"]),
        (&json!("complete"), &json!("private"))
    );
    let older = ask(&service, "tools/list", json!({})).await;
    assert!(older["result"].get("resultType").is_none(), "older clients do not know it");
    let missing = send("no/method", json!({"_meta": meta})).send().await.expect(404);
    assert_eq!(missing["error"]["code"], -32601);
    let params = json!({"_meta": meta, "name": "model_text-template", "arguments": {}});
    let unnamed = send("tools/call", params.clone()).send().await.expect(400);
    assert_eq!(unnamed["error"]["code"], -32020);
    let answer = send("tools/call", params).header("mcp-name", "model_text-template").send().await;
    assert_eq!(answer.expect(200)["result"]["isError"], true);
}

#[tokio::test]
async fn mcp_tools_are_models_and_workflows_of_organization() {
    let service = Service::start().await;
    let near = Upstream::start().await;
    let priced = "title = 'Caption'\ndescription = 'Says what is in a picture.'\n\
                  cost = { type = 'fixed', amount = 0.01 }";
    service.manifest(&near.manifest("vendor/caption.v1", "chat", priced));
    for number in 0..60 {
        service.manifest(&near.manifest(&format!("more-{number}"), "chat", ""));
    }
    let body = json!({"name": "Greet", "description": "Greets.", "definition": greeting()});
    service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    let all = tools(&service).await;
    let mut names: Vec<&str> = all.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let models = service.running.services.catalog.len();
    assert_eq!(names.len(), models + 1);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    assert!(names.iter().all(|name| name.len() <= 64 && name.chars().all(is_plain)), "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), models + 1, "each name once");
    let template = named(&all, "model_text-template");
    assert_eq!(template["inputSchema"]["type"], "object");
    assert_eq!(template["inputSchema"]["required"], json!(["template"]));
    assert_eq!(template["annotations"]["readOnlyHint"], false);
    let caption = all.iter().find(|tool| tool["title"] == "Caption").unwrap();
    assert!(caption["name"].as_str().unwrap().starts_with("model_vendor_caption_v1_"), "{caption}");
    let text = "Says what is in a picture. Cost: $0.01 per execution.";
    assert_eq!(caption["description"], text);
    let meta = &caption["_meta"];
    assert_eq!(meta["orrery/model"], "vendor/caption.v1");
    assert_eq!(
        (&meta["orrery/cost"]["amount"], &meta["orrery/cost"]["currency"]),
        (&json!(0.01), &json!("USD"))
    );
    let greet = named(&all, "workflow_greet");
    assert_eq!(greet["inputSchema"]["required"], json!(["name"]));
    assert_eq!((&greet["title"], &greet["_meta"]["orrery/cost"]), (&json!("Greet"), &Value::Null));
    let body = request("tools/list", json!({"cursor": "workflows:0"}));
    let other = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.other_key).json(&body);
    assert_eq!(other.send().await.expect(200)["result"]["tools"], json!([]));
    let body = request("tools/call", json!({"name": "workflow_greet", "arguments": {"name": "a"}}));
    let other = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.other_key).json(&body);
    let error = other.send().await.expect(200)["error"].clone();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32602), &json!("there is no tool 'workflow_greet'"))
    );
    for (name, meant) in [
        ("image-qr", "model_image-qr"),
        ("model_image_qr", "model_image-qr"),
        ("greet", "workflow_greet"),
        ("workflow_gret", "workflow_greet"),
    ] {
        let body = request("tools/call", json!({"name": name, "arguments": {}}));
        let refused = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.key).json(&body);
        let error = refused.send().await.expect(200)["error"].clone();
        assert_eq!(error["message"], format!("there is no tool '{name}': did you mean {meant}?"));
    }
}

#[tokio::test]
async fn mcp_call_answers_with_text_structure_and_links() {
    let service = Service::start().await;
    let made = call(&service, "model_image-qr", json!({"text": "hello"})).await;
    assert_eq!(made["isError"], false, "{made}");
    let url = made["structuredContent"]["output"].as_str().unwrap();
    let content = made["content"].as_array().unwrap();
    assert_eq!((&content[0]["type"], &content[0]["text"]), (&json!("text"), &json!(url)));
    let link = &content[1];
    assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &json!(url)));
    assert_eq!(link["mimeType"], "image/png");
    assert!(link["size"].as_u64().unwrap() > 0 && !link["name"].as_str().unwrap().is_empty());
    let id = made["structuredContent"]["id"].as_str().unwrap();
    let row =
        service.get("/v2/executions?type=prediction").await.expect(200)["executions"][0].clone();
    assert_eq!((&row["id"], &row["source"]), (&json!(id), &json!("agent")));
    let body = json!({"name": "Greet", "description": "d", "definition": greeting()});
    service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    let greeted = call(&service, "workflow_greet", json!({"name": "Ada"})).await;
    assert_eq!(greeted["structuredContent"]["output"]["result"], "Ada", "{greeted}");
    assert_eq!(greeted["structuredContent"]["status"], "completed");
}

#[tokio::test]
async fn mcp_failed_call_reports_reason_to_model() {
    let service = Service::start().await;
    let near = Upstream::start().await;
    let refused = call(&service, "model_text-template", json!({})).await;
    assert_eq!(refused["isError"], true);
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert_eq!(text, "invalid input: missing required field 'template'");
    service.manifest(&near.manifest("near", "chat", ""));
    near.answers(500, r#"{"error":{"message":"down"}}"#);
    let failed = call(&service, "model_near", json!({"prompt": "hi"})).await;
    assert_eq!(
        (&failed["isError"], &failed["structuredContent"]["status"]),
        (&json!(true), &json!("error"))
    );
    assert!(failed["content"][0]["text"].as_str().unwrap().contains("down"), "{failed}");
}

#[tokio::test]
async fn mcp_call_reports_its_progress() {
    let service = Service::start().await;
    let meta = json!({"progressToken": "p1"});
    let params =
        json!({"name": "model_text-template", "arguments": {"template": "hi"}, "_meta": meta});
    let answer = post(&service, &request("tools/call", params)).send().await;
    let all = messages(&answer);
    let (last, notes) = all.split_last().unwrap();
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(7), &json!("hi")));
    let mut earlier = 0.0;
    for note in notes {
        assert_eq!(note["method"], "notifications/progress", "{note}");
        assert_eq!(note["params"]["progressToken"], "p1");
        let progress = note["params"]["progress"].as_f64().unwrap();
        assert!(progress > earlier, "{notes:?}");
        earlier = progress;
    }
}

#[tokio::test]
async fn mcp_call_is_cancelled_by_its_client() {
    let service = Service::start().await;
    let slow = Upstream::start().await;
    service.manifest(&slow.manifest("slow", "chat", ""));
    let meta = json!({"progressToken": 1});
    let params = json!({"name": "model_slow", "arguments": {"prompt": "hi"}, "_meta": meta});
    slow.is_silent();
    let open = post(&service, &request("tools/call", params.clone())).open().await;
    slow.arrived(1).await;
    let foreign =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    let other =
        service.ask(Role::Agent, Method::POST, "/mcp").key(&service.other_key).json(&foreign);
    assert_eq!(other.send().await.status, 202);
    assert_eq!(post(&service, &foreign).send().await.status, 202);
    slow.hung_up(1).await;
    drop(open);
    slow.is_silent();
    let open = post(&service, &request("tools/call", params)).open().await;
    slow.arrived(2).await;
    drop(open);
    slow.hung_up(2).await;
    until("cancelled predictions", async || {
        let page = service.get("/v2/executions?status=cancelled").await.expect(200);
        (page["executions"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn mcp_invalid_message_is_rejected() {
    let service = Service::start().await;
    for (body, status, code) in [
        (json!([]), 400, -32600),
        (json!([request("ping", json!({}))]), 400, -32600),
        (json!({}), 400, -32600),
        (json!({"jsonrpc": "1.0", "id": 1, "method": "ping"}), 400, -32600),
        (json!({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}), 400, -32600),
        (json!({"jsonrpc": "2.0", "id": "x".repeat(10_000), "method": "ping"}), 400, -32600),
        (json!({"jsonrpc": "2.0", "id": 1, "result": {}}), 400, -32600),
        (json!({"jsonrpc": "2.0", "id": null, "method": "ping"}), 400, -32600),
        (request("resources/list", json!({})), 200, -32601),
        (request("tools/list", json!({"cursor": "files:1"})), 200, -32602),
        (request("tools/list", json!({"cursor": 1})), 200, -32602),
        (request("tools/call", json!({})), 200, -32602),
        (request("tools/call", json!({"name": "x".repeat(10_000)})), 200, -32602),
        (request("tools/call", json!({"name": "model_image-qr", "arguments": []})), 200, -32602),
    ] {
        let answer = post(&service, &body).undocumented().send().await.expect(status);
        assert_eq!(answer["error"]["code"], code, "{answer}");
        let id = body.get("id").filter(|id| id.is_u64()).unwrap_or(&Value::Null);
        assert_eq!(answer.get("id"), Some(id), "{answer}");
        assert!(answer.to_string().len() < 1000, "{answer}");
    }
    let first = request("tools/list", json!({"cursor": ""}));
    let first = post(&service, &first).send().await.expect(200);
    assert_eq!(first["result"]["tools"][0], tools(&service).await[0], "the first page");
    let unknown =
        post(&service, &request("ping", json!({}))).header("mcp-protocol-version", "1999-01-01");
    assert_eq!(unknown.send().await.expect(400)["error"]["code"], -32022);
    let broken = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.key).body("{");
    assert_eq!(broken.undocumented().send().await.expect(400)["error"]["code"], -32700);
    let large = service.refusal_of_large_body(Role::Agent, "/mcp").await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    let anonymous =
        service.ask(Role::Agent, Method::POST, "/mcp").json(&request("ping", json!({})));
    anonymous.send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    assert!(
        service.get("/v2/executions").await.expect(200)["executions"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn mcp_rejects_other_origins() {
    let service = Service::configured("cors.allow_origins = ['https://app.example']\n").await;
    let own = service.url(Role::Agent).replace("/agent", "");
    let near = own.replace("127.0.0.1", "localhost");
    let ping = request("ping", json!({}));
    for (origin, expected) in [
        ("https://app.example", 200),
        (own.as_str(), 200),
        (near.as_str(), 200),
        ("https://evil.example", 403),
        ("http://localhost:6274", 403),
        ("null", 403),
        ("\u{ff}", 403),
    ] {
        let answer = post(&service, &ping).header("origin", origin).send().await;
        assert_eq!(answer.status, expected, "{origin}: {}", answer.text);
    }
}

/// Returns the code blocks of a language in `docs/mcp.md`.
fn blocks(language: &str) -> Vec<&'static str> {
    const PAGE: &str = include_str!("../../docs/mcp.md");
    let fence = format!("```{language}\n");
    PAGE.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[tokio::test]
async fn mcp_page_shows_working_settings_and_calls() {
    let service = Service::start().await;
    for block in blocks("json") {
        let settings: Value = serde_json::from_str(block).unwrap();
        assert!(settings["mcpServers"]["orrery"].to_string().contains("8083/mcp"), "{block}");
    }
    let mut calls = 0;
    for line in blocks("sh").iter().flat_map(|block| block.split("curl ").skip(1)) {
        let body = line.split_once("-d '").unwrap().1.split('\'').next().unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(line.contains("$AGENT/mcp"), "{line}");
        let ask = service.ask(Role::Agent, Method::POST, "/mcp").key(&service.key).json(&body);
        let result = ask.send().await.expect(200)["result"].clone();
        assert!(result["tools"].is_array() || result["isError"] == false, "{result}");
        calls += 1;
    }
    assert_eq!(calls, 2);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn mcp_python_client_lists_and_calls_tools() {
    let service = Service::start().await;
    let body = json!({"name": "Greet", "description": "d", "definition": greeting()});
    service.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
    let near = Upstream::start().await;
    for number in 0..60 {
        service.manifest(&near.manifest(&format!("more-{number}"), "chat", ""));
    }
    let page = service.folder.path().join("page.py");
    std::fs::write(&page, blocks("python")[0]).unwrap();
    let installing = tokio::task::spawn_blocking(|| installed("mcp").join("python"));
    let mut client = tokio::process::Command::new(installing.await.unwrap());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    client.arg(file).arg(page).env("PYTHONDONTWRITEBYTECODE", "1");
    client.env("ORRERY_TEST_URL", format!("http://{}/mcp", service.address(Role::Agent)));
    client.env("ORRERY_TEST_KEY", &service.key);
    client.env("ORRERY_TEST_TOOLS", (service.running.services.catalog.len() + 1).to_string());
    let output = client.kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The scenarios of the conformance suite about tools, the only feature of this server. The other
/// scenarios cover resources, prompts, logs, completion, sampling and elicitation.
const SCENARIOS: [&str; 7] = [
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "tools-call-with-progress",
    "dns-rebinding-protection",
];

/// Returns the folder of the suite, which it installs from npm if necessary.
fn conformance_suite() -> PathBuf {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/conformance");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp-conformance");
    let done = place.join("done.json");
    let lock = std::fs::read(wanted.join("package-lock.json")).unwrap();
    if std::fs::read(&done).is_ok_and(|there| there == lock) {
        return place;
    }
    std::fs::create_dir_all(&place).unwrap();
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(wanted.join(file), place.join(file)).unwrap();
    }
    let mut npm = std::process::Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-fund", "--no-audit"]).current_dir(&place);
    let output = npm.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the suite cannot be installed with npm: {said}");
    std::fs::write(done, lock).unwrap();
    place
}

#[tokio::test]
#[ignore = "needs python3, nodejs and npm: run tests/run"]
async fn mcp_server_passes_the_conformance_suite() {
    let service = Service::start().await;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/model.py");
    for (name, act) in
        [("simple_text", "text"), ("error_handling", "error"), ("tool_with_progress", "progress")]
    {
        service.manifest(&format!(
            "slug = 'test_{name}'\noutput_type = 'string'\n[request_schema]\ntype = 'object'\n\
             [runner]\ntype = 'command'\ncommand = ['python3', {model:?}, '{act}']\n"
        ));
    }
    let suite = tokio::task::spawn_blocking(conformance_suite).await.unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/conformance.mjs");
    let mut client = tokio::process::Command::new("node");
    client.arg(file).arg(suite).args(SCENARIOS);
    client.env("ORRERY_TEST_URL", format!("http://{}/mcp", service.address(Role::Agent)));
    client.env("ORRERY_TEST_KEY", &service.key);
    let output = client.kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
