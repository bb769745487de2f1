//! Workflow executions: trigger, bulk, lists, details, cancel, redrive, waits, webhooks.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, until};

const SECRET: &str = "a secret of theirs";

fn model(id: &str, slug: &str, params: Value) -> Value {
    json!({"step_id": id, "type": "model", "model": slug, "params": params})
}

fn schema() -> Value {
    json!({"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer"}, "m": {"type": "integer", "default": 7}}})
}

#[tokio::test]
async fn execution_of_models_completes_and_sends_webhook() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest(
        "echo",
        "/echo",
        "[cost]\ntype = 'fixed'\namount = 0.002\n",
    ));
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let mut second = model("second", "broken", json!({"from": "{{first.output.n}}"}));
    second["fallback"] = json!({"model": "echo", "params": {"instead": "{{inputs.m}}"}});
    let steps = json!([model("first", "echo", json!({"n": "{{inputs.n}}"})), second]);
    let definition = json!({"input_schema": schema(), "steps": steps,
        "metadata": {"output_mapping": {"n": "{{first.output.n}}", "m": "{{second.output.instead}}"}}});
    let id = service.workflow_of(definition).await;
    let fields =
        json!({"inputs": {"n": 1}, "webhook_url": receiver.url(), "webhook_secret": SECRET});
    let execution = service.trigger(&id, fields).await;
    let hook = receiver.next().await;
    let detail = service.completed(&execution).await;
    assert_eq!(hook.json(), detail);
    assert!(hook.header("x-webhook-signature").is_some());
    assert_eq!(detail["status"], "completed");
    assert_eq!(detail["inputs"], json!({"n": 1, "m": 7}));
    assert_eq!(detail["output"], json!({"n": 1, "m": 7}));
    assert_eq!((&detail["workflow_id"], &detail["version_id"]), (&json!(id), &json!("v1")));
    assert_eq!(detail["metrics"]["cost"], 0.004);
    let step = &detail["step_outputs"]["second"];
    assert_eq!(step["metadata"]["fallback_used"], true);
    assert_eq!(step["metadata"]["model"], "echo");
    assert!(step["metadata"]["primary_error"].as_str().unwrap().contains("answered 500"));
    assert_eq!(step["input"], json!({"instead": 7}));
    // Each model step is a separate prediction.
    let prediction = step["metadata"]["prediction_id"].as_str().unwrap();
    let prediction = service.ended(prediction).await;
    assert_eq!(
        (&prediction["model"], &prediction["status"]),
        (&json!("broken"), &json!("success"))
    );
    assert_eq!(prediction["output"], json!({"instead": 7}));
    assert_eq!(prediction["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(service.ledger().await.len(), 2);
    let read = service.flows(Method::GET, &format!("/workflows/{id}")).send().await.expect(200);
    assert_eq!(
        (&read["trigger_count"], &read["versions"][0]["trigger_count"]),
        (&json!(1), &json!(1))
    );
}

#[tokio::test]
async fn execution_failure_names_its_step_and_sends_webhook() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest("broken", "/status/503", ""));
    let id = service.workflow(json!([model("only", "broken", json!({}))])).await;
    let execution = service.trigger(&id, json!({"webhook_url": receiver.url()})).await;
    let hook = receiver.next().await.json();
    let detail = service.completed(&execution).await;
    assert_eq!(hook, detail);
    assert_eq!((&hook["status"], &hook["error"]), (&json!("failed"), &json!("StepFailed")));
    let cause = hook["error_cause"].as_str().unwrap();
    assert!(cause.starts_with("step 'only': the model 'broken' answered 503"), "{cause}");
    assert_eq!(hook["error_classification"], "provider_unavailable");
    assert_eq!(
        (&hook["output"], &hook["step_outputs"]["only"]["status"]),
        (&Value::Null, &json!("failed"))
    );
}

#[tokio::test]
async fn execution_bulk_trigger_starts_valid_inputs_only() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let pass = json!([{"step_id": "a", "type": "pass", "result": "{{inputs.n}}"}]);
    let id = service.workflow_of(json!({"input_schema": schema(), "steps": pass})).await;
    let body =
        json!({"inputs": [{"n": 1}, {"n": "x"}, 7, {}, {"n": 2}], "webhook_url": receiver.url()});
    let path = format!("/{id}/bulk-trigger");
    let taken = service.flows(Method::POST, &path).json(&body).send().await.expect(202);
    let bulk = taken["bulk_id"].as_str().unwrap();
    let entries = taken["executions"].as_array().unwrap();
    let statuses: Vec<_> = entries.iter().map(|entry| entry["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["queued", "failed", "failed", "failed", "queued"]);
    assert_eq!(
        entries[3],
        json!({"status": "failed", "message": "invalid input: missing required field 'n'"})
    );
    for _ in 0..2 {
        let hook = receiver.next().await.json();
        assert_eq!(hook["bulk_id"], bulk);
        assert_eq!(hook["output"], hook["inputs"]["n"]);
    }
    let list = async |query: &str| {
        let path = format!("/workflows/{id}/executions{query}");
        service.flows(Method::GET, &path).send().await.expect(200)
    };
    let listed = list(&format!("?bulk_id={bulk}")).await;
    assert_eq!(listed["total_count"], 2);
    assert_eq!(listed["executions"][0]["execution_id"], entries[4]["execution_id"]);
    assert_eq!(list(&format!("?bulk_id={bulk}&status=failed")).await["total_count"], 0);
    for bulk in ["", "x"] {
        let path = format!("/workflows/{id}/executions?bulk_id={bulk}");
        let refused = service.flows(Method::GET, &path).send().await;
        refused.expect_error(400, "invalid bulk_id format");
        let refused = service.get(&format!("/v1{path}")).await;
        refused.expect_error(400, "invalid bulk_id format");
    }
    for inputs in [json!([]), json!(vec![json!({}); 11]), json!({}), Value::Null] {
        let body = json!({"inputs": inputs});
        let refused = service.flows(Method::POST, &path).json(&body).send().await.expect(400);
        assert_eq!(refused["error"], "inputs must contain 1–10 items");
    }
}

#[tokio::test]
async fn execution_list_is_counted_paged_and_filtered() {
    let service = Service::start().await;
    let steps = json!([{"step_id": "a", "type": "choice",
        "condition": {"expression": "{{inputs.bad}}", "operator": "equals", "value": true},
        "condition_met_branch": {"steps": [{"step_id": "b", "type": "pass", "result": "{{inputs.nothing}}"}]}}]);
    let id = service.workflow(steps).await;
    let mut ids = Vec::new();
    for number in 0..7 {
        let execution = service.trigger(&id, json!({"inputs": {"bad": number % 3 == 0}})).await;
        service.completed(&execution).await;
        ids.insert(0, execution);
    }
    let list = async |query: &str| {
        let path = format!("/workflows/{id}/executions{query}");
        let listed = service.flows(Method::GET, &path).send().await.expect(200);
        let found = listed["executions"].as_array().unwrap().iter();
        let found: Vec<_> =
            found.map(|one| one["execution_id"].as_str().unwrap().to_owned()).collect();
        (found, listed["total_count"].as_u64().unwrap(), listed["offset"].as_u64().unwrap())
    };
    assert_eq!(list("").await, (ids.clone(), 7, 0));
    assert_eq!(list("?offset=2&limit=3").await, (ids[2..5].to_vec(), 7, 2));
    assert_eq!(list("?offset=7").await, (Vec::new(), 7, 7));
    let failed: Vec<_> = ids.iter().rev().step_by(3).rev().cloned().collect();
    assert_eq!(list("?status=failed").await, (failed.clone(), 3, 0));
    assert_eq!(list("?status=failed&offset=1&limit=1").await, (failed[1..2].to_vec(), 3, 1));
    assert_eq!(list("?status=completed").await.1, 4);
    assert_eq!(list("?status=running").await.1, 0);
    let mirrored = service.get(&format!("/v1/workflows/{id}/executions?limit=2&offset=1")).await;
    let mirrored = mirrored.expect(200);
    assert_eq!((mirrored.get("offset"), &mirrored["limit"]), (None, &json!(2)));
    let summary = &mirrored["executions"][0];
    assert_eq!((&summary["flow_id"], &summary["flow_name"]), (&json!(id), &json!("flow")));
    assert!(summary["ended_at"].is_string() && summary["version_id"] == "v1");
    for (query, expect) in [
        ("?limit=101", "limit must be a whole number from 1 to 100"),
        ("?offset=x", "offset must be a whole number from 0"),
        ("?status=queued", "status must be one of running"),
        ("?status=", "status must be one of running"),
    ] {
        let path = format!("/workflows/{id}/executions{query}");
        let refused = service.flows(Method::GET, &path).send().await.expect(400);
        assert!(refused["error"].as_str().unwrap().starts_with(expect), "{refused}");
    }
}

#[tokio::test]
async fn execution_trigger_refusals_have_specified_texts() {
    let service = Service::start().await;
    let pass = json!([{"step_id": "a", "type": "pass", "result": "{{inputs.n}}"}]);
    let id = service.workflow_of(json!({"input_schema": schema(), "steps": pass})).await;
    for (status, body, expect) in [
        (400, json!({}), "invalid input: missing required field 'n'"),
        (400, json!({"inputs": [1]}), "inputs must be an object"),
        (400, json!({"inputs": {"n": "x"}}), "invalid input: 'n' is wrong"),
        (404, json!({"inputs": {"n": 1}, "version_id": "v9"}), "version not found"),
        (400, json!({"inputs": {"n": 1}, "webhook_url": "nope"}), "webhook_url"),
        (400, json!({"inputs": {"n": 1}, "version_id": 3}), "version_id must be a string"),
    ] {
        let refused =
            service.flows(Method::POST, &format!("/{id}/trigger")).json(&body).send().await;
        let refused = refused.expect(status);
        assert!(refused["error"].as_str().unwrap().starts_with(expect), "{refused}");
    }
    let body = json!({"inputs": {"n": 1}});
    for path in ["/v1/workflows/flow/trigger", "/v1/workflows/trigger/flow/v1"] {
        let taken = service.post(path, &body).send().await.expect(202);
        let execution = taken["execution_id"].as_str().unwrap();
        let path = format!("/v1/workflows/executions/{execution}");
        assert_eq!(service.get(&path).await.expect(200)["output"], 1);
    }
    let body = json!({"inputs": [{"n": 1}]});
    service.post("/v1/workflows/bulk-trigger/flow/v1", &body).send().await.expect(202);
    let archive = json!({"status": "archived"});
    service.flows(Method::PUT, "/workflows/flow").json(&archive).send().await.expect(200);
    service.flows(Method::POST, "/flow/trigger").json(&json!({})).send().await.expect(409);
}

#[tokio::test]
async fn execution_trigger_is_idempotent_per_key() {
    let service = Service::start().await;
    let id = service.workflow(json!([{"step_id": "a", "type": "pass"}])).await;
    let send = |path: String, body: Value| {
        let ask = service.flows(Method::POST, &path).json(&body);
        ask.header("idempotency-key", "k").send()
    };
    for (path, body) in [
        (format!("/{id}/trigger"), json!({"inputs": {}})),
        (format!("/{id}/bulk-trigger"), json!({"inputs": [{}, 1]})),
    ] {
        let first = send(path.clone(), body.clone()).await.expect(202);
        assert_eq!(send(path.clone(), body).await.expect(202), first);
        send(path, json!({"inputs": [{}], "webhook_url": ""})).await.expect(422);
    }
    let read = service.flows(Method::GET, &format!("/workflows/{id}")).send().await.expect(200);
    assert_eq!(read["trigger_count"], 2);
}

#[tokio::test]
async fn execution_of_public_version_accepts_any_valid_key() {
    let service = Service::start().await;
    let id = service.workflow(json!([{"step_id": "a", "type": "pass", "result": 1}])).await;
    let path = format!("/api/v1/public/{id}/versions/v1/trigger");
    let ask = |body: Value| service.ask(Role::Workflows, Method::POST, &path).json(&body);
    let theirs = json!({"api_key": service.other_key, "inputs": {}});
    let missed = ask(theirs.clone()).send().await.expect(404);
    assert_eq!(missed["error"], "workflow version not found or not publicly available");
    let share = json!({"version_id": "v1", "allowed_to_share": true,
        "definition": {"steps": [{"step_id": "a", "type": "pass", "result": 1}]}});
    let put = service.flows(Method::PUT, &format!("/workflows/{id}/versions/v1")).json(&share);
    put.send().await.expect(200);
    let taken = ask(theirs).send().await.expect(202);
    let execution = taken["execution_id"].as_str().unwrap();
    // The execution belongs to the caller, not to the workflow's owner.
    let path = format!("/api/v1/executions/{execution}");
    let theirs = service.ask(Role::Workflows, Method::GET, &path).key(&service.other_key);
    assert_eq!(theirs.send().await.expect(200)["output"], 1);
    service.ask(Role::Workflows, Method::GET, &path).key(&service.key).send().await.expect(404);
    let mine = service.flows(Method::GET, &format!("/workflows/{id}/executions")).send().await;
    assert_eq!(mine.expect(200)["total_count"], 0);
    for body in [json!({}), json!({"api_key": "smk_wrong"}), json!({"api_key": 7})] {
        let refused = ask(body).send().await.expect(401);
        assert_eq!(refused, json!({"error": "Invalid or missing API key"}));
    }
    ask(json!({})).key(&service.key).send().await.expect(202);
}

#[tokio::test]
async fn execution_runs_models_concurrently_until_http_barrier() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("hold", "/hold", "concurrency = 4\n"));
    let id = service.workflow(json!([
        model("a", "hold", json!({})),
        model("b", "hold", json!({"x": "{{a.output.held}}"})),
        model("c", "hold", json!({"x": "{{a.output.held}}"})),
        {"step_id": "h", "type": "http", "method": "POST", "url": provider.url("/echo"), "body": "{{inputs.n}}"},
        model("d", "hold", json!({})),
    ])).await;
    let execution = service.trigger(&id, json!({"inputs": {"n": [1]}})).await;
    provider.arrived(1).await;
    assert_eq!(provider.requests().len(), 1);
    provider.release(1);
    provider.arrived(3).await;
    let keys = || -> Vec<String> {
        let key = |name: &str| name.split(':').nth(1).unwrap().to_owned();
        let requests = provider.requests();
        requests.iter().map(|one| key(one.headers()["idempotency-key"].to_str().unwrap())).collect()
    };
    let mut middle = keys()[1..].to_vec();
    middle.sort();
    assert_eq!(middle, ["b", "c"]);
    provider.release(1);
    let half = until("half", async || {
        let detail = service.execution(&execution).await;
        let steps = &detail["step_outputs"];
        let ended = ["b", "c"].into_iter().filter(|id| steps[id]["status"] == "completed").count();
        (ended == 1).then_some(detail)
    });
    let half = half.await;
    assert_eq!((&half["step_outputs"]["h"]["status"], keys().len()), (&json!("queued"), 3));
    assert_eq!(half["waiting_for"][0]["reason"], "step");
    provider.release(2);
    let detail = service.completed(&execution).await;
    assert_eq!(keys()[3..], ["h", "d"]);
    assert_eq!(detail["step_outputs"]["h"]["output"], json!({"output": [1]}));
    assert_eq!(detail["output"], json!({"held": true}));
}

#[tokio::test]
async fn execution_cancel_stops_running_steps_and_sends_webhook() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let receiver = Receiver::start().await;
    service.manifest(&provider.manifest("hold", "/hold", "concurrency = 1\n"));
    let id = service
        .workflow(json!([model("a", "hold", json!({})), model("b", "hold", json!({}))]))
        .await;
    let execution = service.trigger(&id, json!({"webhook_url": receiver.url()})).await;
    provider.arrived(1).await;
    let waiting = until("wait", async || {
        let detail = service.execution(&execution).await;
        let waits = detail["waiting_for"].as_array().unwrap().clone();
        waits.iter().any(|one| one["reason"] == "model").then_some(waits)
    });
    let waiting = waiting.await;
    assert!(waiting.iter().any(|one| one["model"] == "hold" && one["running"] == 1), "{waiting:?}");
    // The gauges belong to the entire process, so a service in another test may set them at the
    // same time.
    until("gauges of the model", async || {
        let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text;
        let lines =
            ["orrery_model_running{model=\"hold\"} 1", "orrery_model_queued{model=\"hold\"} 1"];
        lines.iter().all(|line| metrics.contains(line)).then_some(())
    })
    .await;
    let cancel = || service.flows(Method::POST, &format!("/executions/{execution}/cancel")).send();
    let expected = json!({"execution_id": execution, "status": "cancelled"});
    assert_eq!(cancel().await.expect(200), expected);
    provider.hung_up(1).await;
    assert_eq!(cancel().await.expect(200), expected);
    let detail = service.completed(&execution).await;
    assert_eq!(detail["status"], "cancelled");
    let steps = &detail["step_outputs"];
    assert_eq!(
        (&steps["a"]["status"], &steps["b"]["status"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    // The model's slot is free again.
    let next = service.create("hold", json!({})).await;
    provider.arrived(2).await;
    provider.release(1);
    assert_eq!(service.ended(&next).await["status"], "success");
    assert!(receiver.is_empty());
    let done = service.workflow(json!([{"step_id": "a", "type": "pass"}])).await;
    let done = service.trigger(&done, json!({})).await;
    service.completed(&done).await;
    let refused = service.flows(Method::POST, &format!("/executions/{done}/cancel")).send().await;
    assert_eq!(refused.expect(409)["error"], "execution has already ended with status completed");
}

#[tokio::test]
async fn execution_redrive_continues_after_finished_steps() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    service.manifest(&provider.manifest("flaky", "/status/500", ""));
    let id = service
        .workflow(json!([
            model("a", "echo", json!({"n": "{{inputs.n}}"})),
            model("b", "flaky", json!({"n": "{{a.output.n}}"})),
            model("c", "echo", json!({"n": "{{b.output.n}}"})),
        ]))
        .await;
    let failed = service.trigger(&id, json!({"inputs": {"n": 5}})).await;
    assert_eq!(service.completed(&failed).await["status"], "failed");
    assert_eq!(provider.requests().len(), 2);
    service.manifest(&provider.manifest("flaky", "/echo", ""));
    let redrive =
        |id: &str| service.flows(Method::POST, &format!("/executions/{id}/redrive")).send();
    let taken = redrive(&failed).await.expect(202);
    assert_eq!((&taken["status"], &taken["redriven_from"]), (&json!("queued"), &json!(failed)));
    let again = taken["execution_id"].as_str().unwrap();
    let detail = service.completed(again).await;
    assert_eq!((&detail["status"], &detail["output"]), (&json!("completed"), &json!({"n": 5})));
    assert_eq!(detail["redriven_from"], failed.as_str());
    let record = format!("/api/v1/{id}/executions/{again}");
    let record = service.ask(Role::Flows, Method::GET, &record).key(&service.key).send().await;
    assert_eq!(record.expect(200)["source_ip_address"], "127.0.0.1", "as of the failed one");
    // The first step's stored output was reused.
    assert_eq!(provider.requests().len(), 4);
    let refused = redrive(again).await.expect(409);
    assert_eq!(refused["error"], "only a failed or cancelled execution can be redriven");
}

#[tokio::test]
async fn execution_wait_step_survives_restart_and_ends_on_time() {
    let service = Service::start().await;
    let id = service
        .workflow(json!([
            {"step_id": "a", "type": "pass", "result": 1},
            {"step_id": "w", "type": "wait", "seconds": 6},
            {"step_id": "b", "type": "pass", "result": "{{a.output}}"},
        ]))
        .await;
    let execution = service.trigger(&id, json!({})).await;
    let waiting = until("wait", async || {
        let detail = service.execution(&execution).await;
        (detail["waiting_for"][0]["reason"] == "timer").then_some(detail)
    });
    let until_when = waiting.await["waiting_for"][0]["until"].as_str().unwrap().to_owned();
    until("place given up", async || (service.engine().in_memory() == 0).then_some(())).await;
    let service = service.restart().await;
    let detail = service.execution(&execution).await;
    assert_eq!(detail["waiting_for"][0]["until"], until_when.as_str());
    let detail = service.completed(&execution).await;
    assert_eq!((&detail["status"], &detail["output"]), (&json!("completed"), &json!(1)));
    let moment = |text: &str| text.parse::<orrery_domain::time::Timestamp>().unwrap();
    let ended = moment(detail["step_outputs"]["w"]["completed_at"].as_str().unwrap());
    assert!(ended >= moment(&until_when));
}

#[tokio::test]
async fn execution_cancel_while_suspended_removes_its_timer() {
    let service = Service::start().await;
    let id = service.workflow(json!([{"step_id": "w", "type": "wait", "seconds": 3600}])).await;
    let execution = service.trigger(&id, json!({})).await;
    until("place given up", async || (service.engine().in_memory() == 0).then_some(())).await;
    let cancel = service.flows(Method::POST, &format!("/executions/{execution}/cancel"));
    cancel.send().await.expect(200);
    let detail = service.execution(&execution).await;
    assert_eq!(
        (&detail["status"], &detail["step_outputs"]["w"]["status"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
}

#[tokio::test]
async fn execution_continues_after_restart() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("hold", "/hold", "concurrency = 8\n"));
    let id = service
        .workflow(json!([
            model("a", "hold", json!({})),
            model("b", "hold", json!({"a": "{{a.output.held}}"})),
        ]))
        .await;
    let mut executions = Vec::new();
    for _ in 0..5 {
        executions.push(service.trigger(&id, json!({})).await);
    }
    provider.arrived(5).await;
    provider.release(5);
    provider.arrived(10).await;
    let service = service.restart().await;
    provider.arrived(15).await;
    provider.release(15);
    for execution in &executions {
        let detail = service.completed(execution).await;
        assert_eq!(detail["output"], json!({"held": true}), "{detail}");
    }
    // Only in-flight requests were repeated, with the same keys.
    let mut keys: Vec<_> = provider
        .requests()
        .iter()
        .map(|one| one.headers()["idempotency-key"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 15);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 10);
}
