//! Limits of organizations: requests beyond the request, queue and storage limits get 429 and
//! create nothing. The number of running executions is limited without affecting other
//! organizations, even after a restart.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::account::Limits;
use serde_json::{Value, json};

use crate::agent;
use crate::support::{Provider, Service, Upstream, until};

impl Service {
    async fn limit(&self, limits: Limits) {
        let accounts = &self.running.services.accounts;
        accounts.change_limits(self.organization.id, move |_| limits).await.unwrap();
    }

    /// Creates a prediction for the other organization.
    async fn of_other(&self, body: &Value) {
        let ask = self.ask(Role::Base, Method::POST, "/v1/prediction").key(&self.other_key);
        ask.json(body).send().await.expect(200);
    }

    /// Returns the running and queued executions of the first organization.
    async fn load(&self) -> (u64, u64) {
        let limits = self.get("/v1/limits").await.expect(200);
        let used = |name: &str| limits[name]["used"].as_u64().unwrap();
        (used("running"), used("queued"))
    }
}

#[tokio::test]
async fn organization_request_limit_counts_all_its_keys() {
    let service = Service::start().await;
    let accounts = &service.running.services.accounts;
    let made = accounts.create_key(service.organization.id, "second", "test", None).await;
    let (_, second) = made.unwrap();
    let unlimited = service.get("/v1/limits").await.expect(200);
    assert_eq!(unlimited["requests_per_second"], json!({"limit": null, "used": null}));
    service.limit(Limits { requests_per_second: Some(2), ..Limits::default() }).await;
    let ask = |key: &str| service.ask(Role::Base, Method::GET, "/v1/limits").key(key);
    // The limit is two per second: of many concurrent requests, some are rejected.
    let mut refused = 0;
    for number in 0..20 {
        let answer = ask(if number % 2 == 0 { &service.key } else { &second }).send().await;
        if answer.status == 429 {
            answer.expect_error(429, "this organization is limited to 2 requests per second");
            assert_eq!(answer.header("retry-after"), "1");
            refused += 1;
        } else {
            assert_eq!(answer.expect(200)["requests_per_second"]["limit"], 2);
        }
        ask(&service.other_key).send().await.expect(200);
    }
    assert!(refused > 0, "nothing was refused");
    service.limit(Limits::default()).await;
    for _ in 0..20 {
        ask(&service.key).send().await.expect(200);
    }
}

#[tokio::test]
async fn organization_over_queue_limit_gets_429_and_creates_nothing() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    service.create("held", json!({})).await;
    provider.arrived(1).await;
    service.limit(Limits { queued: Some(2), ..Limits::default() }).await;
    let second = service.create("held", json!({})).await;
    let flow = service.workflow(json!([{"step_id": "w", "type": "wait", "seconds": 3600}])).await;
    // An execution that waits for a time is unfinished, but does not count as running.
    let waiting = service.trigger(&flow, json!({})).await;
    // It is queued before it runs, so the load alone does not show that it is waiting.
    until("its wait", async || {
        let waits = &service.execution(&waiting).await["waiting_for"][0];
        (waits["reason"] == "timer" && service.load().await == (1, 2)).then_some(())
    })
    .await;
    let message = "this organization is limited to 2 queued executions and has 2";
    let body = json!({"model": "held", "version": "1", "input": {}});
    let refused = service.post("/v1/prediction", &body).send().await;
    refused.expect_error(429, message);
    assert_eq!(refused.header("retry-after"), "5");
    let trigger = |path: String, body: Value| service.flows(Method::POST, &path).json(&body).send();
    trigger(format!("/{flow}/trigger"), json!({})).await.expect_error(429, message);
    let bulk = json!({"inputs": [{}, {}]});
    trigger(format!("/{flow}/bulk-trigger"), bulk.clone()).await.expect_error(429, message);
    let listed = service.get("/v2/executions").await.expect(200);
    assert_eq!(listed["executions"].as_array().unwrap().len(), 3, "{listed}");
    // The limit leaves room for only one of the two executions of the bulk trigger, so none is
    // created.
    service.cancel(&second).await.expect(200);
    let message = "this organization is limited to 2 queued executions and has 2";
    trigger(format!("/{flow}/bulk-trigger"), bulk).await.expect_error(429, message);
    assert_eq!(service.load().await, (1, 1));
    service.of_other(&body).await;
    trigger(format!("/{flow}/trigger"), json!({})).await.expect(202);
    trigger(format!("/executions/{waiting}/cancel"), json!({})).await.expect(200);
    until("room", async || (service.load().await == (1, 1)).then_some(())).await;
    provider.release(2);
}

#[tokio::test]
async fn organization_over_storage_limit_gets_429_and_stores_nothing() {
    let service = Service::start().await;
    service.limit(Limits { storage_bytes: Some(10), ..Limits::default() }).await;
    let announce = |bytes: usize| {
        let body = json!({"filename": "a.txt", "content_type": "text/plain", "size": bytes});
        service.post("/v1/upload/presign", &body).send()
    };
    let refused = announce(11).await;
    let text = refused.expect(429);
    assert_eq!(text["details"], json!({"quota_bytes": 10, "used_bytes": 0}));
    let message = "this organization is limited to 10 bytes of files and has 0: delete some, or wait \
                   until they expire";
    assert_eq!(text["error"], message);
    assert_eq!(refused.header("retry-after"), "60");
    let form = |text: &str| {
        let part = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"";
        let body = format!("{part}\r\nContent-Type: text/plain\r\n\r\n{text}\r\n--b--\r\n");
        let ask = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
        ask.header("content-type", "multipart/form-data; boundary=b").body(body).send()
    };
    form("eight by").await.expect(201);
    assert_eq!(form("eight by").await.status, 429);
    let used = service.get("/v1/files/usage").await.expect(200);
    assert_eq!((&used["count"], &used["bytes"]), (&json!(1), &json!(8)));
    let limits = service.get("/v1/limits").await.expect(200);
    assert_eq!(limits["storage_bytes"], json!({"limit": 10, "used": 8}));
}

#[tokio::test]
async fn organization_running_limit_holds_without_blocking_others_even_after_restart() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 8"));
    service.limit(Limits { running: Some(1), ..Limits::default() }).await;
    let mut ids = Vec::new();
    for number in 0..4 {
        ids.push(service.create("held", json!({"n": number})).await);
    }
    provider.arrived(1).await;
    let body = json!({"model": "held", "version": "1", "input": {"n": "other"}});
    service.of_other(&body).await;
    provider.arrived(2).await;
    until("one runs", async || (service.load().await == (1, 3)).then_some(())).await;
    let service = service.restart().await;
    // The restart recovers only these executions.
    provider.arrived(4).await;
    until("one runs", async || (service.load().await == (1, 3)).then_some(())).await;
    let limits = service.get("/v1/limits").await.expect(200);
    assert_eq!(limits["running"], json!({"limit": 1, "used": 1}));
    for count in 5..=7 {
        provider.release(1);
        // One of the two held executions has completed; the next release completes the
        // organization's own.
        provider.release(1);
        provider.arrived(count).await;
        assert!(service.load().await.0 <= 1);
    }
    provider.release(8);
    for id in &ids {
        assert_eq!(service.ended(id).await["status"], "success");
    }
    until("nothing", async || (service.load().await == (0, 0)).then_some(())).await;
}

#[tokio::test]
async fn organization_with_running_limit_of_one_runs_nested_workflows() {
    let service = Service::start().await;
    service.limit(Limits { running: Some(1), ..Limits::default() }).await;
    let inner = service.workflow(json!([{"step_id": "p", "type": "pass", "result": 7}])).await;
    let call = |id: &str| json!([{"step_id": "c", "type": "workflow", "workflow": id}]);
    let middle = service.workflow(call(&inner)).await;
    let outer = service.workflow(call(&middle)).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(service.trigger(&outer, json!({})).await);
    }
    for id in ids {
        let ended = service.completed(&id).await;
        assert_eq!((&ended["status"], &ended["output"]), (&json!("completed"), &json!(7)));
    }
}

/// An exchange that waits for its tool does not occupy the slot that the tool may need.
#[tokio::test]
async fn organization_with_running_limit_of_one_runs_tools_of_agent() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(agent::PRICE) + agent::AGENT)).await;
    service.limit(Limits { running: Some(1), ..Limits::default() }).await;
    let run = json!({"model": "text-template", "input": {"template": "seen"}});
    agent::script(&up, vec![agent::calls("run_model", run), agent::says("done")]);
    let answer = agent::prompt(&service, "s", "run it").send().await.expect(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "done", "{answer}");
    let rows = service.get("/v2/executions?type=prediction").await.expect(200);
    assert_eq!(rows["executions"][0]["status"], "success", "{rows}");
    until("nothing", async || (service.load().await == (0, 0)).then_some(())).await;
}

/// A firing that meets a full queue is not lost: its execution starts once there is room.
#[tokio::test]
async fn organization_over_queue_limit_starts_scheduled_runs_later() {
    let service = Service::start().await;
    let flow = service.workflow(json!([{"step_id": "w", "type": "wait", "seconds": 3600}])).await;
    let waiting = service.trigger(&flow, json!({})).await;
    service.limit(Limits { queued: Some(1), ..Limits::default() }).await;
    let quick = service.workflow(json!([{"step_id": "p", "type": "pass", "result": 7}])).await;
    let path = format!("/workflows/{quick}/schedules");
    let body = json!({"cron": "* * * * * *"});
    let made = service.flows(Method::POST, &path).json(&body).send().await.expect(201);
    let one = format!("{path}/{}", made["schedule_id"].as_str().unwrap());
    let last = async || {
        let shown = service.flows(Method::GET, &one).send().await.expect(200);
        shown["last_run"]["execution_id"].as_str().map(str::to_owned)
    };
    let schedules = &service.running.services.schedules;
    until("a firing that waits", async || {
        let held = schedules.list(service.organization.id).await.unwrap().remove(0);
        // The schedule's next check is later than its overdue firing.
        (held.due > held.next).then_some(())
    })
    .await;
    assert_eq!(last().await, None);
    let cancel = service.flows(Method::POST, &format!("/executions/{waiting}/cancel"));
    cancel.json(&json!({})).send().await.expect(200);
    let started = until("its start", last).await;
    assert_eq!(service.completed(&started).await["output"], 7);
}
