//! `orrery execution`: the list with the history's filters, once and with `--watch`; pausing,
//! resuming and redriving an execution.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::eventually;
use crate::support::service::Setup;

const WORKFLOW: &str = r#"{"name": "Waits", "description": "d", "definition": {"steps": [
    {"step_id": "mood", "type": "model", "model": "text-sentiment", "params": {"text": "{{inputs.text}}"}},
    {"step_id": "later", "type": "wait", "seconds": 3600}]}}"#;

/// Returns the subjects and statuses of the listed executions.
fn list(setup: &Setup, filters: &[&str]) -> Vec<(String, String)> {
    let mut arguments = vec!["execution", "list", "--json"];
    arguments.extend(filters);
    let listed: Value = serde_json::from_str(&setup.run(&arguments)).unwrap();
    let executions = listed["executions"].as_array().unwrap().iter();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    executions.map(|one| (text(one, "subject"), text(one, "status"))).collect()
}

fn predict(setup: &Setup, key: &str, model: &str, input: &str) {
    let body = format!(r#"{{"model": "{model}", "version": "1", "input": {input}}}"#);
    let run = setup.client(key).post("/v1/prediction/run", &[], &body).unwrap();
    assert_eq!(run.status(), 200, "{}", run.text());
}

/// Starts a run of the workflow; returns its id.
fn trigger(setup: &Setup, key: &str) -> String {
    let body = r#"{"inputs": {"text": "What a night!"}}"#;
    let taken = setup.client(key).post("/v1/workflows/waits/trigger", &[], body).unwrap();
    assert_eq!(taken.status(), 202, "{}", taken.text());
    let taken: Value = serde_json::from_str(&taken.text()).unwrap();
    taken["execution_id"].as_str().unwrap().to_owned()
}

#[test]
fn execution_list_filters_as_the_history_does() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let key = setup.create_key();
    predict(&setup, &key, "text-language", r#"{"text": "What a night!"}"#);
    predict(&setup, &key, "image-resize", r#"{"image": "data:,x", "width": 1}"#);
    let made = setup.client(&key).post("/v1/workflows", &[], WORKFLOW).unwrap();
    assert_eq!(made.status(), 201, "{}", made.text());
    trigger(&setup, &key);
    eventually("the step has ended", || {
        (list(&setup, &["--model", "text-sentiment"]).len() == 1).then_some(())
    });
    let pair = |subject: &str, status: &str| (subject.to_owned(), status.to_owned());
    assert_eq!(list(&setup, &["--model", "text-language"]), [pair("text-language", "success")]);
    assert_eq!(list(&setup, &["--status", "error,failed"]), [pair("image-resize", "error")]);
    assert_eq!(list(&setup, &["--type", "workflow"]).len(), 1);
    assert_eq!(list(&setup, &["--workflow", "waits"]).len(), 2, "the run and its step");
    assert_eq!(list(&setup, &["--workflow", "waits", "--type", "prediction"]).len(), 1);
    assert!(list(&setup, &["--workflow", "nothing"]).is_empty());
    assert_eq!(list(&setup, &["--from", "2020-01-01T00:00:00Z"]).len(), 4);
    assert!(list(&setup, &["--to", "2020-01-01T00:00:00Z"]).is_empty());
    assert_eq!(list(&setup, &["--limit", "2"]).len(), 2);
    assert_eq!(list(&setup, &["--unfinished"]).len(), 1);
    let said = setup.fail(&["execution", "list", "--status", "broken"]);
    assert!(said.contains("status"), "{said}");
    // The list is the same while the service is stopped.
    service.kill();
    assert_eq!(list(&setup, &["--status", "error"]), [pair("image-resize", "error")]);
}

#[test]
fn execution_list_watch_prints_one_line_per_change() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let key = setup.create_key();
    predict(&setup, &key, "text-language", r#"{"text": "What a night!"}"#);
    let mut watch = Command::new(env!("CARGO_BIN_EXE_orrery"));
    watch.arg("--config").arg(setup.config()).args(["execution", "list", "--watch", "--json"]);
    let mut watch = watch.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["subject"], "text-language");
    predict(&setup, &key, "text-keywords", r#"{"text": "What a beautiful night!"}"#);
    // The list may show the execution before it has ended.
    let seen = std::iter::repeat_with(next).find(|line| line["status"] == "success").unwrap();
    assert_eq!(seen["subject"], "text-keywords");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn execution_is_paused_resumed_and_redriven() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let key = setup.create_key();
    assert_eq!(setup.client(&key).post("/v1/workflows", &[], WORKFLOW).unwrap().status(), 201);
    let id = trigger(&setup, &key);
    let shown = |id: &str| -> Value {
        serde_json::from_str(&setup.run(&["execution", "show", id])).unwrap()
    };
    let is_paused = |id: &str| {
        let waits = shown(id)["waiting_for"].clone();
        waits.as_array().is_some_and(|all| all.iter().any(|one| one["reason"] == "paused"))
    };
    setup.run(&["execution", "pause", &id]);
    eventually("it is paused", || is_paused(&id).then_some(()));
    setup.run(&["execution", "resume", &id]);
    eventually("it is resumed", || (!is_paused(&id)).then_some(()));
    assert!(setup.fail(&["execution", "redrive", &id]).contains("execution"), "it has not ended");
    setup.run(&["execution", "cancel", &id]);
    let again = setup.run(&["execution", "redrive", &id]).trim().to_owned();
    assert_ne!(again, id);
    assert_eq!(shown(&again)["redriven_from"], id.as_str());
    setup.run(&["org", "create", "--name", "other"]);
    let said = setup.fail(&["execution", "pause", &again, "--org", "other"]);
    assert!(said.contains("not found"), "{said}");
}
