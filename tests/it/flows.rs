//! The older host: a full cycle as its clients perform it, one workflow in two formats, and the
//! host's errors.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Provider, Receiver, Service, until};

fn ask(service: &Service, method: Method, path: &str) -> Ask {
    service.ask(Role::Flows, method, &format!("/api{path}")).key(&service.key)
}

async fn get(service: &Service, path: &str) -> Answer {
    ask(service, Method::GET, path).send().await
}

async fn post(service: &Service, path: &str, body: Value) -> Answer {
    ask(service, Method::POST, path).json(&body).send().await
}

fn workflow() -> Value {
    json!({
        "workspace_id": "w-1",
        "name": "Old Flow",
        "description": "",
        "thumbnail_url": "http://h/t.png",
        "inputs": [
            {"name": "prompt", "type": "string", "default_value": "hi"},
            {"name": "n", "type": "number", "default_value": "2"},
        ],
        "outputs": [{"name": "result", "type": "object", "value": "{{b.output}}"}],
        "steps": [
            {"id": "a", "name": "First", "type": "1019Model", "model_slug": "echo",
             "model_version": "0.0.1", "params": {"text": "{{prompt}}", "n": "{{n}}"}},
            {"id": "b", "name": "Second", "type": "1019Model", "model_slug": "echo",
             "model_version": "0.0.1", "params": {"first": "{{a.output}}"}},
        ],
        "nodes_json": "[ {\"id\": \"a\"} ]",
        "edges_json": "[]",
    })
}

async fn world() -> (Service, Provider) {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    service.manifest(&provider.manifest("held", "/hold", ""));
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    (service, provider)
}

async fn create(service: &Service, body: &Value) -> String {
    let made = ask(service, Method::POST, "/v1/").json(body).send().await.expect(200);
    assert_eq!(made["message"], "Workflow created successfully");
    made["workflow_id"].as_str().unwrap().to_owned()
}

/// Waits for the end of an execution; returns its record.
async fn ended(service: &Service, workflow: &str, id: &Value) -> Value {
    let path = format!("/v1/{workflow}/executions/{}", id.as_str().unwrap());
    until("end of the execution", async || {
        let record = get(service, &path).await.expect(200);
        let status = record["status"].as_str().unwrap();
        ["succeeded", "failed"].contains(&status).then_some(record.clone())
    })
    .await
}

#[tokio::test]
async fn legacy_flow_client_completes_full_cycle() {
    let (service, _provider) = world().await;
    let mut receiver = Receiver::start().await;
    let id = create(&service, &workflow()).await;
    let listed = get(&service, "/v1/").await.expect(200);
    assert_eq!((&listed["status"], &listed["total"]), (&json!("success"), &json!(1)));
    assert_eq!(listed["workflows"], listed["flows"]);
    let shown = &listed["workflows"][0];
    let mut alone = get(&service, &format!("/v1/{id}")).await.expect(200);
    let nested = alone.as_object_mut().unwrap().remove("workflow").unwrap();
    assert_eq!((shown, shown), (&alone, &nested));
    for (name, value) in workflow().as_object().unwrap() {
        assert_eq!(&shown[name], value, "{name} is as it came");
    }
    assert_eq!(shown["id"], id.as_str());
    assert_eq!(shown["category"]["slug"], "general");
    for name in
        ["organization_id", "user_id", "status", "last_updated_by", "created_at", "updated_at"]
    {
        assert!(shown[name].is_string(), "{name}");
    }
    assert_eq!(shown["premium"], false);
    assert_eq!(shown["popularity"], shown["trigger_count"]);
    let edge = json!({"id": "a-b", "source": "a", "target": "b", "type": "default"});
    assert_eq!(shown["edges"], json!([edge]));

    let fields = json!({"parameters": {"prompt": "ho", "n": "7"}, "webhook_url": receiver.url()});
    let started = post(&service, &format!("/v1/{id}/trigger"), fields).await.expect(200);
    assert_eq!(started["message"], "Workflow triggered successfully");
    let record = ended(&service, &id, &started["trigger_id"]).await;
    let keys: Vec<_> = record.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "flow_id",
            "average_percent",
            "flow_name",
            "organization_id",
            "api_key",
            "execution_id",
            "source_ip_address",
            "parameters",
            "step_results",
            "status",
            "output",
            "output_json",
            "created_at",
            "started_at",
            "ended_at",
            "updated_at",
            "deleted_at"
        ]
    );
    assert_eq!(
        (&record["status"], &record["average_percent"]),
        (&json!("succeeded"), &json!(100.0))
    );
    assert_eq!(record["api_key"], format!("{}…", &service.key[..8]));
    assert!(!record.to_string().contains(&service.key), "the key is shown nowhere");
    assert_eq!(record["source_ip_address"], "127.0.0.1");
    // A number sent as a string is converted to the input's type.
    let parameters = json!([{"name": "prompt", "value": "ho"}, {"name": "n", "value": 7}]);
    assert_eq!(record["parameters"], parameters);
    let output = json!({"result": {"first": {"text": "ho", "n": 7}}});
    assert_eq!(record["output_json"], output);
    assert_eq!(record["output"].as_str().unwrap(), output.to_string());
    let step = &record["step_results"][0];
    assert_eq!((&step["step_id"], &step["step_name"]), (&json!("a"), &json!("First")));
    assert_eq!((&step["model"], &step["version"]), (&json!("echo"), &json!("0.0.1")));
    assert_eq!((&step["status"], &step["input"]), (&json!("succeeded"), &step["output"]));
    let hook = receiver.next().await.json();
    assert_eq!(hook["execution_id"], started["trigger_id"]);
}

#[tokio::test]
async fn legacy_flow_bulk_trigger_starts_and_looks_up_executions() {
    let (service, _provider) = world().await;
    let id = create(&service, &workflow()).await;
    let many = json!({"parameters": [{"prompt": "x"}, {}, {"n": 1}]});
    let bulk = post(&service, &format!("/v2/{id}/bulk"), many.clone()).await.expect(200);
    let ids = bulk["execution_ids"].as_array().unwrap();
    assert_eq!(ids.len(), 3);
    for one in ids {
        ended(&service, &id, one).await;
    }
    let wanted = json!({"execution_ids": [ids[2], "nonsense", ids[0], ids[2]]});
    let found = post(&service, &format!("/v1/{id}/executions/bulk"), wanted).await.expect(200);
    assert_eq!((&found["status"], &found["total"]), (&json!("success"), &json!(2)));
    assert_eq!(found["executions"][0]["execution_id"], ids[2]);
    assert_eq!(post(&service, &format!("/v1/{id}/bulk"), many).await.status, 200);
    let all = get(&service, &format!("/v1/{id}/executions?limit=2")).await.expect(200);
    assert_eq!((&all["total"], all["executions"].as_array().unwrap().len()), (&json!(6), 2));
}

#[tokio::test]
async fn legacy_flow_is_also_served_as_workflow() {
    let (service, _provider) = world().await;
    let id = create(&service, &workflow()).await;
    // The workflows host shows this workflow as one with a single version, and runs it the same
    // way.
    let engine = service.flows(Method::GET, &format!("/workflows/{id}")).send().await.expect(200);
    assert_eq!((&engine["name"], &engine["slug"]), (&json!("Old Flow"), &json!("old-flow")));
    assert_eq!(engine["versions"].as_array().unwrap().len(), 1);
    let run = service.trigger(&id, json!({"inputs": {"prompt": "x"}})).await;
    let output = json!({"result": {"first": {"text": "x", "n": 2}}});
    assert_eq!(service.completed(&run).await["output"], output);
    assert_eq!(ended(&service, &id, &json!(run)).await["output_json"], output);
    // A change on the workflows host is visible here, and parts that exist only in the other format
    // survive a change here.
    let path = format!("/workflows/{id}/versions/v1");
    let mut version = service.flows(Method::GET, &path).send().await.expect(200);
    version["definition"]["steps"][0]["fallback"] = json!({"model": "echo", "params": {}});
    version["definition"]["steps"][1]["name"] = json!("Last");
    let put = json!({"version_id": "v1", "definition": version["definition"]});
    service.flows(Method::PUT, &path).json(&put).send().await.expect(200);
    let mut shown = get(&service, &format!("/v1/{id}")).await.expect(200);
    assert_eq!(shown["steps"][1]["name"], "Last");
    assert!(
        shown["nodes_json"].as_str().unwrap().contains("Last"),
        "the drawing was of other steps"
    );
    shown["name"] = json!("New Name");
    let path = format!("/v1/{id}");
    // A client may send back read-only fields (the id, the category, ...); `Warning` names them.
    let echo = async |path: &str, shown: &Value| {
        ask(&service, Method::POST, path).json(shown).undocumented().send().await
    };
    let echoed = echo(&path, &shown).await;
    assert!(echoed.header("warning").contains("unknown field category"));
    let mut echoed = echoed.expect(200);
    assert!(echoed.as_object_mut().unwrap().remove("warnings").is_some());
    let keys: Vec<_> = echoed.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, workflow().as_object().unwrap().keys().cloned().collect::<Vec<_>>());
    assert_eq!((&echoed["name"], &echoed["steps"]), (&json!("New Name"), &shown["steps"]));
    let path = format!("/workflows/{id}/versions/v1");
    let after = service.flows(Method::GET, &path).send().await.expect(200);
    assert_eq!(after["definition"]["steps"][0]["fallback"], json!({"model": "echo", "params": {}}));
    // A workflow created on the workflows host is visible here too.
    let other = service.workflow(json!([{"step_id": "w", "type": "wait", "seconds": 0}])).await;
    let shown = get(&service, &format!("/v1/{other}")).await.expect(200);
    assert_eq!(shown["steps"][0]["type"], "wait");
    assert_eq!(echo(&format!("/v1/{other}"), &shown).await.status, 200);
    let locked = json!({"version_id": "v1", "locked": true, "definition": after["definition"]});
    service.flows(Method::PUT, &path).json(&locked).send().await.expect(200);
    post(&service, &format!("/v1/{id}"), workflow()).await.expect_error(403, "version is locked");
}

#[tokio::test]
async fn legacy_flow_execution_shows_failed_and_running_steps() {
    let (service, provider) = world().await;
    let mut body = workflow();
    body["steps"][0]["model_slug"] = json!("held");
    body["steps"][1]["model_slug"] = json!("broken");
    let id = create(&service, &body).await;
    let trigger = format!("/v1/{id}/trigger");
    let started = post(&service, &trigger, json!({})).await.expect(200);
    provider.arrived(1).await;
    let path = format!("/v1/{id}/executions/{}", started["trigger_id"].as_str().unwrap());
    let record = get(&service, &path).await.expect(200);
    assert_eq!((&record["status"], &record["ended_at"]), (&json!("running"), &Value::Null));
    assert_eq!((&record["output"], &record["output_json"]), (&json!(""), &json!({"output": null})));
    provider.release(1);
    let record = ended(&service, &id, &started["trigger_id"]).await;
    assert_eq!(record["status"], "failed");
    assert_eq!(record["step_results"][1]["status"], "failed");
}

#[tokio::test]
async fn legacy_flow_invalid_requests_start_nothing() {
    let (service, _provider) = world().await;
    let id = create(&service, &workflow()).await;
    let with = |name: &str, value: Value| {
        let mut body = workflow();
        body[name] = value;
        body
    };
    for (body, message) in [
        (with("name", json!("")), "name is required"),
        (with("name", json!("a\tb")), "name must not contain control characters"),
        (with("steps", json!([])), "definition must include at least one step"),
        (with("steps", json!({})), "steps must be an array of objects"),
        (with("inputs", json!([{"name": ""}])), "inputs[0].name must not be empty"),
        (
            with("inputs", json!([{"name": "{a}"}])),
            "each of inputs must have a name without braces and brackets",
        ),
        (with("nodes_json", json!([])), "nodes_json must be a string"),
    ] {
        for path in ["/v1".to_owned(), format!("/v1/{id}")] {
            let refused = post(&service, &path, body.clone()).await;
            assert_eq!((refused.status, &refused.json()["error"]), (400, &json!(message)));
        }
    }
    let unknown = with("steps", json!([{"id": "a", "model_slug": "none", "params": {}}]));
    let answer = post(&service, "/v1", unknown).await;
    assert!(answer.status == 400 && answer.text.contains("none"), "{}", answer.text);
    let typed =
        post(&service, &format!("/v1/{id}/trigger"), json!({"parameters": {"n": "x"}})).await;
    assert_eq!(typed.status, 400, "{}", typed.text);
    let bulk = format!("/v2/{id}/bulk");
    let bad = post(&service, &bulk, json!({"parameters": [{}, {"n": "x"}]})).await;
    assert!(bad.status == 400 && bad.text.contains("parameters[1]: invalid input"), "{}", bad.text);
    let none = "parameters must contain 1–100 items";
    post(&service, &bulk, json!({"parameters": []})).await.expect_error(400, none);
    let many = vec![json!({}); 101];
    post(&service, &bulk, json!({"parameters": many})).await.expect_error(400, none);
    let all = get(&service, &format!("/v1/{id}/executions")).await.expect(200);
    assert_eq!(all["total"], 0, "nothing was started");
    let absent = "01990000-0000-7000-8000-000000000000";
    get(&service, &format!("/v1/{absent}")).await.expect_error(404, "workflow not found");
    let missing = get(&service, &format!("/v1/{id}/executions/{absent}")).await;
    missing.expect_error(404, "execution not found");
    let foreign = service.ask(Role::Flows, Method::GET, &format!("/api/v1/{id}"));
    foreign.key(&service.other_key).send().await.expect_error(404, "workflow not found");
    let no_key = service.ask(Role::Flows, Method::GET, "/api/v1/").send().await;
    no_key.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    // The same key creates only once.
    let create = async |key: &str| {
        let ask = ask(&service, Method::POST, "/v1").header("idempotency-key", key);
        ask.json(&workflow()).send().await.expect(200)
    };
    assert_eq!(create("k").await, create("k").await);
    let trigger = async |body: Value| {
        let path = format!("/v1/{id}/trigger");
        let ask = ask(&service, Method::POST, &path).header("idempotency-key", "t");
        ask.json(&body).send().await
    };
    let first = trigger(json!({"parameters": {}})).await.expect(200);
    assert_eq!(first, trigger(json!({"parameters": {}})).await.expect(200));
    assert_eq!(trigger(json!({"parameters": {"n": 1}})).await.status, 422);
}
