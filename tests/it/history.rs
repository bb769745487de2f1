//! The organization's history: its records, filters, cursors and errors.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Provider, Service};

async fn list(service: &Service, path: &str) -> Value {
    service.get(path).await.expect(200)
}

/// Returns a field's value in each row.
fn field<'a>(page: &'a Value, name: &str) -> Vec<&'a Value> {
    page["executions"].as_array().unwrap().iter().map(|row| &row[name]).collect()
}

#[tokio::test]
async fn history_can_be_restricted_to_a_key() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    let accounts = &service.running.services.accounts;
    let made = accounts.create_key(service.organization.id, "second", "test", None).await;
    let (second, text) = made.unwrap();
    let body = json!({"model": "echo", "version": "1", "input": {"n": 1}});
    let mut own = Vec::new();
    for number in 0..9 {
        let key = if number % 3 == 0 { &text } else { &service.key };
        let ask = service.ask(Role::Base, Method::POST, "/v1/prediction").key(key).json(&body);
        let made = ask.send().await.expect(200);
        let id = made["predictionID"].clone();
        service.ended(id.as_str().unwrap()).await;
        if number % 3 == 0 {
            own.insert(0, id);
        }
    }
    let path = format!("/v2/executions?api_key_id={}", second.id);
    let page = list(&service, &path).await;
    assert_eq!(field(&page, "id"), own.iter().collect::<Vec<_>>());
    assert_eq!(field(&page, "api_key_id"), [&json!(second.id); 3]);
    let first = list(&service, &format!("{path}&limit=2")).await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = list(&service, &format!("{path}&limit=2&cursor={cursor}")).await;
    assert_eq!((field(&first, "id").len(), field(&rest, "id")), (2, vec![&own[2]]));
    let by_offset = list(&service, &path.replace("v2", "v1")).await;
    assert_eq!(by_offset["total_count"], 3);
    let failed = list(&service, &format!("{path}&status=error&model=echo")).await;
    assert!(field(&failed, "id").is_empty());
    let wrong = service.ask(Role::Base, Method::GET, "/v2/executions?api_key_id=1");
    let wrong = wrong.key(&service.key).undocumented().send().await;
    wrong.expect_error(400, "api_key_id must be a UUID");
}

#[tokio::test]
async fn history_record_shows_work_and_outcome() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let priced = "[cost]\ntype = 'fixed'\namount = 0.002\n";
    service.manifest(&provider.manifest("echo", "/echo", priced));
    let step = json!({"step_id": "a", "type": "model", "model": "echo", "params": {"n": 1}});
    let workflow = service.workflow(json!([step])).await;
    let run = service.trigger(&workflow, json!({})).await;
    service.completed(&run).await;
    let page = list(&service, "/v2/executions").await;
    assert_eq!(page["limit"], 20);
    assert_eq!((&page["has_more"], &page["next_cursor"]), (&json!(false), &Value::Null));
    // A workflow of one model step has two rows; the step's row is newer than the run's.
    assert_eq!(field(&page, "type"), ["prediction", "workflow"]);
    let [step, whole] = &page["executions"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!(step["workflow_execution_id"], run);
    for row in [step, whole] {
        assert_eq!(
            (&row["workflow_id"], &row["workflow_name"]),
            (&json!(workflow), &json!("flow"))
        );
        assert_eq!((&row["version_id"], &row["source"]), (&json!("v1"), &json!("api")));
        assert_eq!(row["execution_cost"], 0.002);
        assert!(row["run_time"].as_f64().unwrap() >= 0.0);
        assert_eq!(row["output"], "{\"n\":1}", "the output is JSON text");
    }
    assert_eq!((&step["model"], &step["requested_model"]), (&json!("echo"), &json!("echo")));
    assert_eq!((&step["status"], &whole["status"]), (&json!("success"), &json!("completed")));
    assert_eq!((&whole["id"], &whole["model"]), (&json!(run), &Value::Null));
    let fields: Vec<&String> = whole.as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        [
            "id",
            "type",
            "model",
            "requested_model",
            "workflow_id",
            "workflow_name",
            "version_id",
            "workflow_execution_id",
            "bulk_id",
            "status",
            "error",
            "error_cause",
            "error_classification",
            "execution_cost",
            "run_time",
            "created_at",
            "started_at",
            "completed_at",
            "output",
            "api_key_id",
            "source"
        ]
    );
    // Other organizations do not see these rows.
    let other = service.ask(Role::Base, Method::GET, "/v2/executions").key(&service.other_key);
    assert_eq!(other.send().await.expect(200)["executions"], json!([]));
}

#[tokio::test]
async fn history_from_finds_steps_that_waited_for_their_model() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1\n"));
    let step = |id: &str| json!({"step_id": id, "type": "model", "model": "held", "params": {}});
    let branches = json!([{"steps": [step("a")]}, {"steps": [step("b")]}]);
    let both = json!([{"step_id": "both", "type": "parallel", "branches": branches}]);
    let run = service.trigger(&service.workflow(both).await, json!({})).await;
    provider.arrived(1).await;
    // Sleep longer than the maximum difference between the time in an id and the time of its
    // record.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    provider.release(2);
    service.completed(&run).await;
    let page = list(&service, "/v2/executions?type=prediction").await;
    let times = field(&page, "created_at");
    assert_eq!(times.len(), 2);
    for (id, time) in field(&page, "id").iter().zip(&times) {
        let from = format!("/v2/executions?type=prediction&from={}", time.as_str().unwrap());
        let found = list(&service, &from).await;
        assert!(field(&found, "id").contains(id), "{id} of {time}: {found}");
    }
}

#[tokio::test]
async fn history_filters_work_alone_and_in_combination() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    for (slug, path) in [("echo", "/echo"), ("down", "/status/503"), ("odd", "/status/500")] {
        service.manifest(&provider.manifest(slug, path, ""));
    }
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1\n"));
    let mut ids = Vec::new();
    for model in ["echo", "down", "odd", "echo"] {
        let id = service.create(model, json!({})).await;
        service.ended(&id).await;
        ids.push(id);
    }
    let held = service.create("held", json!({})).await;
    provider.arrived(5).await;
    let waits = service.create("held", json!({})).await;
    let cancelled = service.create("held", json!({})).await;
    service.cancel(&cancelled).await.expect(200);
    let pass = json!([{"step_id": "a", "type": "pass", "result": 1}]);
    let workflow = service.workflow(pass).await;
    let run = service.trigger(&workflow, json!({})).await;
    service.completed(&run).await;
    let step = json!([{"step_id": "a", "type": "model", "model": "down", "params": {}}]);
    let broken = service.workflow(step).await;
    let failed = service.trigger(&broken, json!({})).await;
    service.completed(&failed).await;
    let [echo, down, odd, again] = &ids[..] else { panic!("four were made") };
    let time = list(&service, &format!("/v1/prediction/{odd}")).await;
    let time = time["created_at"].as_str().unwrap();
    let found = async |query: &str| -> BTreeSet<String> {
        let page = list(&service, &format!("/v2/executions?{query}")).await;
        field(&page, "id").iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let set = |ids: &[&String]| -> BTreeSet<String> { ids.iter().copied().cloned().collect() };
    let step = found(&format!("workflow_execution_id={failed}")).await;
    assert_eq!(step.len(), 1);
    let step = step.first().unwrap();
    assert_eq!(found("model=echo").await, set(&[echo, again]));
    assert_eq!(found("status=success").await, set(&[echo, again]));
    assert_eq!(found("status=completed").await, set(&[&run]));
    assert_eq!(found("status=failed,success").await, set(&[echo, again, &failed]));
    assert_eq!(found("status=cancelled").await, set(&[&cancelled]));
    assert_eq!(found("status=created").await, set(&[&waits]));
    assert_eq!(found("status=starting").await, set(&[]));
    assert_eq!(found("type=workflow").await, set(&[&run, &failed]));
    assert_eq!(found("type=workflow&status=success").await, set(&[]));
    assert_eq!(found(&format!("workflow_id={broken}")).await, set(&[&failed, step]));
    let unavailable = found("error_classification=provider_unavailable").await;
    assert_eq!(unavailable, set(&[down, &failed, step]));
    let either = found("error_classification=provider_error,provider_unavailable").await;
    assert_eq!(either, set(&[down, odd, &failed, step]));
    assert_eq!(found(&format!("to={time}")).await, set(&[echo, down]));
    let newer = found(&format!("from={time}&type=prediction&status=success")).await;
    assert_eq!(newer, set(&[again]));
    assert_eq!(
        found("model=down&error_classification=provider_unavailable").await,
        set(&[down, step])
    );
    // A running execution becomes visible shortly after it has begun.
    crate::support::until("begun run", async || {
        (found("status=processing&model=held").await == set(&[&held])).then_some(())
    })
    .await;
    provider.release(2);
    for id in [&held, &waits] {
        service.ended(id).await;
    }
    assert_eq!(found("status=created,processing,queued,running").await, set(&[]));
    let first = list(&service, "/v1/executions?model=echo&limit=1&offset=1").await;
    assert_eq!(field(&first, "id"), [echo]);
    assert_eq!((&first["total_count"], &first["total_capped"]), (&json!(2), &json!(false)));
    assert_eq!((&first["offset"], &first["limit"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn history_finds_fallback_by_both_models() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("first", "/status/500", ""));
    service.manifest(&provider.manifest("second", "/echo", ""));
    let step = json!([{"step_id": "a", "type": "model", "model": "first", "params": {},
        "fallback": {"model": "second", "params": {}}}]);
    let workflow = service.workflow(step).await;
    let run = service.trigger(&workflow, json!({})).await;
    service.completed(&run).await;
    for model in ["first", "second"] {
        let page = list(&service, &format!("/v2/executions?model={model}")).await;
        assert_eq!(field(&page, "model"), ["second"]);
        assert_eq!(field(&page, "requested_model"), ["first"]);
    }
}

/// Rows added in the meantime do not shift later pages.
#[tokio::test]
async fn history_pages_show_each_older_row_once_during_inserts() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", "concurrency = 8\n"));
    let mut before = Vec::new();
    for n in 0..53 {
        before.push(service.create("echo", json!({"n": n})).await);
    }
    let mut seen = Vec::new();
    let mut path = "/v2/executions?limit=10&model=echo".to_owned();
    loop {
        let page = list(&service, &path).await;
        let ids = field(&page, "id");
        seen.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned()));
        if page["has_more"] == false {
            assert_eq!(page["next_cursor"], Value::Null);
            break;
        }
        assert_eq!(ids.len(), 10);
        let cursor = page["next_cursor"].as_str().unwrap();
        path = format!("/v2/executions?limit=10&model=echo&cursor={cursor}");
        service.create("echo", json!({})).await;
        let again = list(&service, &path).await;
        assert_eq!(field(&again, "id"), field(&list(&service, &path).await, "id"));
    }
    before.reverse();
    assert_eq!(seen, before);
}

#[tokio::test]
async fn history_cursor_is_valid_only_for_its_query() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    for _ in 0..3 {
        service.create("echo", json!({})).await;
    }
    let page = list(&service, "/v2/executions?limit=2").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    let good = format!("/v2/executions?limit=2&cursor={cursor}");
    assert_eq!(field(&list(&service, &good).await, "id").len(), 1);
    let damaged = format!("{}AAAA", &cursor[..cursor.len() - 4]);
    for query in [
        format!("limit=3&cursor={cursor}"),
        format!("cursor={cursor}"),
        format!("limit=2&model=echo&cursor={cursor}"),
        format!("limit=2&type=prediction&cursor={cursor}"),
        format!("limit=2&cursor={damaged}"),
        "limit=2&cursor=AAAA".to_owned(),
        "limit=2&cursor=%00%ff".to_owned(),
    ] {
        let answer = service.get(&format!("/v2/executions?{query}")).await;
        answer.expect_error(400, "invalid cursor");
    }
    let other = service.ask(Role::Base, Method::GET, &good).key(&service.other_key);
    other.send().await.expect_error(400, "invalid cursor");
    // The row survives a restart.
    let service = service.restart().await;
    assert_eq!(field(&list(&service, &good).await, "id").len(), 1);
}

#[tokio::test]
async fn history_invalid_filter_lists_permitted_values() {
    let service = Service::start().await;
    let range = "limit must be a whole number from 1 to 100";
    let words = "status must be one or more of created, starting, processing, success, error, \
                 cancelled, queued, running, completed, failed";
    let classes = "error_classification must be one or more of content_moderation, \
                   execution_timeout, invalid_user_input, invalid_model_config, provider_auth, \
                   provider_error, provider_rate_limit, provider_unavailable, internal_error, unknown";
    for (query, message) in [
        ("limit=0", range),
        ("limit=101", range),
        ("limit=x", range),
        ("status=done", words),
        ("status=success,done", words),
        ("error_classification=timeout", classes),
        ("type=both", "type must be one of prediction, workflow, chat, decision, agent"),
        ("status=", words),
        ("error_classification=", classes),
        ("type=", "type must be one of prediction, workflow, chat, decision, agent"),
        ("model=", "model must be the slug of a model"),
        ("from=", "from must be a time such as 2026-11-20T09:30:00Z"),
        ("workflow_id=1", "workflow_id must be a UUID"),
        ("workflow_id=", "workflow_id must be a UUID"),
        ("workflow_execution_id=", "workflow_execution_id must be a UUID"),
        ("workflow_execution_id=1", "workflow_execution_id must be a UUID"),
    ] {
        for version in ["v1", "v2"] {
            let answer = service.get(&format!("/{version}/executions?{query}")).await;
            answer.expect_error(400, message);
        }
    }
    let answer = service.get("/v2/executions?from=yesterday").await;
    assert_eq!(answer.status, 400);
    let deep =
        "V1 pagination is limited to 1000 rows; use GET /v2/executions with cursor pagination";
    for query in ["offset=981", "offset=901&limit=100", "offset=1000&limit=1"] {
        service.get(&format!("/v1/executions?{query}")).await.expect_error(400, deep);
    }
    let last = service.get("/v1/executions?offset=980").await;
    last.expect(200);
    assert_eq!(last.header("deprecation"), "true");
    assert_eq!(last.header("link"), "</v2/executions>; rel=\"successor-version\"");
}
