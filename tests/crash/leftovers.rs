//! Checks that completed work leaves nothing behind: no row in a lane, no timer, no open job. Also
//! contains helpers to run workflows and to read their complete history.

use std::path::Path;

use orrery_storage::{Key, Options, Page, Store, Table};
use serde_json::Value;

use crate::support::eventually;
use crate::support::http::Client;
use crate::support::service::{Service, Setup};

/// The default of `engine.payload_inline_bytes`.
const INLINE_BYTES: usize = 16 * 1024;
/// Maximum number of checks of the store, because the cleanup after the last execution takes a
/// moment.
const LOOKS_MAX: usize = 10;
/// Tables of unfinished work.
const TABLES: [Table; 3] = [Table::Lane, Table::Timer, Table::BulkJobOpen];

/// Waits until nothing is running, kills the service, and checks that its store has no unfinished
/// work.
pub(crate) fn check_none(setup: &Setup, mut service: Service) {
    let mut left = Vec::new();
    for _ in 0..LOOKS_MAX {
        eventually("nothing runs", || (setup.unfinished() == Some(0.0)).then_some(()));
        service.kill();
        left = rows_of_unfinished_work(setup.data());
        if left.is_empty() {
            return;
        }
        service = setup.start();
    }
    panic!("left behind: {left:#?}");
}

fn rows_of_unfinished_work(data: &Path) -> Vec<String> {
    let options = Options { folder: data.to_owned(), inline_bytes: INLINE_BYTES };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&options).unwrap();
        let mut found = Vec::new();
        for table in TABLES {
            let prefix = Key::table(table);
            let page = Page { prefix, after: None, before: None, limit: 1000 };
            let rows = store.page(page).await.unwrap();
            found.extend(rows.into_iter().map(|(key, _)| format!("{table:?} {key:?}")));
        }
        store.close().await;
        found
    })
}

/// Returns all rows of the history that match these filters, newest first.
pub(crate) fn history(client: &mut Client, filters: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v2/executions?limit=100&{filters}{cursor}");
        let page = client.get(&path).unwrap();
        assert_eq!(page.status(), 200, "{}", page.text());
        let mut page = page.json();
        let Value::Array(found) = page["executions"].take() else { panic!("{page}") };
        rows.extend(found);
        match page["next_cursor"].as_str() {
            Some(next) if page["has_more"] == true => cursor = format!("&cursor={next}"),
            _ => return rows,
        }
    }
}

/// Creates a workflow with these steps. Returns its id.
pub(crate) fn workflow(client: &mut Client, name: &str, steps: &Value) -> String {
    let body =
        serde_json::json!({"name": name, "description": "d", "definition": {"steps": steps}});
    let made = client.post("/v1/workflows", &[], &body.to_string()).unwrap();
    assert_eq!(made.status(), 201, "{}", made.text());
    made.json()["workflow_id"].as_str().unwrap().to_owned()
}

/// Triggers a workflow. Returns the id of the execution.
pub(crate) fn trigger(client: &mut Client, workflow: &str, inputs: &Value) -> String {
    let body = serde_json::json!({ "inputs": inputs }).to_string();
    let path = format!("/v1/workflows/{workflow}/trigger");
    let taken = client.post(&path, &[], &body).unwrap();
    assert_eq!(taken.status(), 202, "{}", taken.text());
    taken.json()["execution_id"].as_str().unwrap().to_owned()
}

/// Returns the detail of an execution.
pub(crate) fn detail(client: &mut Client, id: &str) -> Value {
    let answer = client.get(&format!("/v1/workflows/executions/{id}?timeout=0")).unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

/// Waits for the end of an execution; returns its detail.
pub(crate) fn ended(client: &mut Client, id: &str) -> Value {
    eventually("the execution ends", || {
        let answer = client.get(&format!("/v1/workflows/executions/{id}?timeout=30")).unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let detail = answer.json();
        (!detail["completed_at"].is_null()).then_some(detail)
    })
}
