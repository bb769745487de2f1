//! Retention: the service deletes old completed work, either entirely or only its inputs and
//! outputs. Unfinished work remains.

use std::fs;
use std::time::Duration;

use hyper::Method;
use orrery_api::Role;
use orrery_domain::time::Timestamp;
use orrery_storage::{Commit, Key, Page, Table};
use serde_json::{Value, json};

use crate::support::{Provider, Service, until};

/// Returns a string larger than a record's inline limit.
fn large() -> String {
    "x".repeat(100_000)
}

/// Returns a time that is later than every action in a test.
fn later(service: &Service) -> Timestamp {
    service.running.services.clock.now().plus(Duration::from_secs(3600))
}

async fn rows(service: &Service, table: Table) -> usize {
    let page = Page { prefix: Key::table(table), after: None, before: None, limit: 1000 };
    service.running.services.store.page(page).await.unwrap().len()
}

fn payload_files(service: &Service) -> usize {
    let folder = service.config.data_dir.join("payloads");
    let shards = fs::read_dir(folder).unwrap();
    shards.map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count()).sum()
}

/// Starts a service with two steps that have large inputs and outputs, a failure, a prediction, and
/// a prediction that is still running.
async fn world() -> (Service, Provider, [String; 4]) {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    service.manifest(&provider.manifest("held", "/hold", ""));
    service.manifest(&provider.manifest("broken", "/status/500", ""));
    let step = |id: &str, model: &str, text: &str| json!({"step_id": id, "type": "model", "model": model, "params": {"text": text}});
    let steps =
        json!([step("a", "echo", "{{inputs.text}}"), step("b", "echo", "{{a.output.text}}")]);
    let flow = service.workflow(steps).await;
    let run = service.trigger(&flow, json!({"inputs": {"text": large()}})).await;
    service.completed(&run).await;
    let steps =
        json!([step("a", "echo", "{{inputs.text}}"), step("b", "broken", "{{a.output.text}}")]);
    let broken = service.workflow(steps).await;
    let failed = service.trigger(&broken, json!({"inputs": {"text": large()}})).await;
    service.completed(&failed).await;
    let prediction = service.create("echo", json!({"text": large()})).await;
    service.ended(&prediction).await;
    let held = service.create("held", json!({"text": large()})).await;
    provider.arrived(5).await;
    (service, provider, [run, failed, prediction, held])
}

#[tokio::test]
async fn retention_deletes_nothing_while_clock_is_far_ahead() {
    let service = Service::adjusted("", |config| {
        config.retention.executions = Duration::from_millis(1);
    })
    .await;
    let id = service.create("text-template", json!({"template": "hi", "values": {}})).await;
    service.ended(&id).await;
    // Simulates that the previous process ran a year ago, and that the clock has jumped since.
    let now = service.running.services.clock.now();
    let seen = now.before(Duration::from_secs(365 * 24 * 3600)).unwrap();
    let key = || Key::table(Table::Meta).text("believed time");
    let mut commit = Commit::new();
    commit.put_bytes(key(), seen.sortable().to_vec());
    service.running.services.store.commit(commit).await.unwrap();
    let service = service.restart().await;
    until("sweep is refused", async || {
        let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await;
        metrics.text.contains("\norrery_sweeps_refused_total ").then_some(())
    })
    .await;
    assert_eq!(rows(&service, Table::Execution).await, 1);
    let clock = &service.running.services.clock;
    assert!(clock.believed() < seen.plus(Duration::from_secs(24 * 3600)), "{}", clock.believed());
    // Without the jump, the execution is deleted. The service also records its jump, once and at
    // any time, so the test repeats its own write until it is the last one.
    let later = now.plus(Duration::from_secs(1));
    let mut written = 0;
    until("time to be written", async || {
        let mut commit = Commit::new();
        commit.put_bytes(key(), later.sortable().to_vec());
        service.running.services.store.commit(commit).await.unwrap();
        written += 1;
        (written == 20).then_some(())
    })
    .await;
    let service = service.restart().await;
    until("sweep", async || (rows(&service, Table::Execution).await == 0).then_some(())).await;
}

#[tokio::test]
async fn retention_deletes_finished_and_keeps_running_executions() {
    let (service, provider, [run, failed, prediction, held]) = world().await;
    let organization = service.organization.id;
    let engine = service.engine();
    let early = Timestamp::from_micros(0);
    assert_eq!(engine.purge_before(organization, early).await.unwrap(), 0);
    let list = async |id: &str| {
        let detail = service.execution(id).await;
        let workflow = detail["workflow_id"].as_str().unwrap().to_owned();
        let path = format!("/workflows/{workflow}/executions");
        (path.clone(), service.flows(Method::GET, &path).send().await.expect(200))
    };
    let (path, listed) = list(&run).await;
    assert_eq!(listed["total_count"], 1);
    // Two executions with two steps each, and a prediction.
    assert_eq!(engine.purge_before(organization, later(&service)).await.unwrap(), 7 - 4);
    for table in [Table::Step, Table::Bulk] {
        assert_eq!(rows(&service, table).await, 0, "{table:?}");
    }
    assert_eq!(rows(&service, Table::Execution).await, 1);
    let listed = service.flows(Method::GET, &path).send().await.expect(200);
    assert_eq!(listed, json!({"executions": [], "total_count": 0, "offset": 0}));
    let failures = service.flows(Method::GET, &format!("{path}?status=completed")).send().await;
    assert_eq!(failures.expect(200)["total_count"], 0);
    for id in [&run, &failed] {
        let gone = service.flows(Method::GET, &format!("/executions/{id}?timeout=0")).send().await;
        gone.expect_error(404, "execution not found");
    }
    let gone = service.get(&format!("/v1/prediction/{prediction}")).await;
    gone.expect_error(404, "Prediction not found");
    let history = service.get("/v2/executions").await.expect(200);
    assert_eq!(history["executions"].as_array().unwrap().len(), 1);
    assert_eq!(history["executions"][0]["id"], held.as_str());
    assert_eq!(payload_files(&service), 1, "the input of what runs");
    provider.release(1);
    let ended = service.ended(&held).await;
    assert_eq!((&ended["status"], &ended["input"]["text"]), (&json!("success"), &json!(large())));
    // Entries created later are counted from the beginning again.
    let workflow = path.split('/').nth(2).unwrap();
    let next = service.trigger(workflow, json!({"inputs": {"text": "y"}})).await;
    service.completed(&next).await;
    let listed = service.flows(Method::GET, &path).send().await.expect(200);
    assert_eq!(
        (&listed["total_count"], &listed["executions"][0]["execution_id"]),
        (&json!(1), &json!(next))
    );
}

#[tokio::test]
async fn retention_deletes_payloads_before_records() {
    let (service, _provider, [run, failed, prediction, held]) = world().await;
    let organization = service.organization.id;
    let engine = service.engine();
    let cutoff = later(&service);
    let count = engine.purge_payloads_before(organization, cutoff).await.unwrap();
    assert_eq!(count, 3);
    assert_eq!(payload_files(&service), 1, "the input of what runs");
    let record = service.get(&format!("/v1/prediction/{prediction}")).await.expect(200);
    assert_eq!((&record["status"], &record["input"]), (&json!("success"), &Value::Null));
    assert_eq!(record["output"], Value::Null);
    let detail = service.execution(&run).await;
    assert_eq!((&detail["status"], &detail["output"]), (&json!("completed"), &Value::Null));
    let step = &detail["step_outputs"]["a"];
    assert_eq!((&step["status"], &step["output"]), (&json!("completed"), &Value::Null));
    let child = step["metadata"]["prediction_id"].as_str().unwrap();
    let child = service.get(&format!("/v1/prediction/{child}")).await.expect(200);
    assert_eq!((&child["input"], &child["output"]), (&Value::Null, &Value::Null));
    let redrive = service.flows(Method::POST, &format!("/executions/{failed}/redrive"));
    redrive
        .json(&json!({}))
        .send()
        .await
        .expect_error(410, "the execution's inputs are no longer stored");
    assert_eq!(engine.purge_payloads_before(organization, cutoff).await.unwrap(), 0);
    service.cancel(&held).await.expect(200);
    // Afterwards, retention deletes everything as if the payloads still existed.
    engine.purge_before(organization, later(&service)).await.unwrap();
    for table in [Table::Execution, Table::Step, Table::Facet] {
        assert_eq!(rows(&service, table).await, 0, "{table:?}");
    }
}
