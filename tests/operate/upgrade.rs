//! `orrery upgrade --rehearse` with a running service and with a backup, and the error of a binary
//! that is too old for its store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orrery_storage::{Commit, FORMAT, Key, Options, Page, Store, Table};
use serde_json::{Value, json};

use crate::support::server::{Gate, Server};
use crate::support::service::Setup;
use crate::support::{eventually, signal};

fn report(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Writes rows into the store of a stopped service.
fn write(data: &Path, rows: impl FnOnce(&[(Key, Vec<u8>)]) -> Vec<(Key, Vec<u8>)>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options { folder: data.to_owned(), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let executions = Key::table(Table::Execution);
        let page = Page { prefix: executions, after: None, before: None, limit: 10 };
        let found = store.page(page).await.unwrap();
        let mut commit = Commit::new();
        for (key, value) in rows(&found) {
            commit.put_bytes(key, value);
        }
        store.commit(commit).await.unwrap();
        store.close().await;
    });
}

#[test]
fn upgrade_is_rehearsed_while_service_runs() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let gate = Gate::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let (held, count) = (gate.clone(), Arc::clone(&asked));
    let model = Server::start(move |request| {
        if request.second_word() == "/slow" {
            count.fetch_add(1, Ordering::SeqCst);
            held.pass();
        }
        (200, "{}".to_owned())
    });
    let setup =
        Setup::new(folder.path(), &place.join("data"), "[backup]\nevery = '24h'\nfolder = 'b'\n");
    let url = model.url("/slow");
    let slow =
        format!("slug = 'slow'\noutput_type = 'object'\n[runner]\ntype = 'http'\nurl = '{url}'\n");
    setup.add_model("slow", &slow);
    setup.add_model("wrong", "slug = 7\n");
    let mut service = setup.start();
    let key = setup.create_key();
    let body =
        json!({"model": "slow", "version": "1", "input": {}, "webhook_url": model.url("/hook")});
    let taken = setup.client(&key).post("/v1/prediction/", &[], &body.to_string()).unwrap();
    assert_eq!(taken.status(), 200, "{}", taken.text());
    let workflow = r#"{"name": "W", "description": "d",
        "definition": {"steps": [{"step_id": "p", "type": "pass", "result": 1}]}}"#;
    assert_eq!(setup.client(&key).post("/v1/workflows", &[], workflow).unwrap().status(), 201);
    eventually("the model is asked", || (asked.load(Ordering::SeqCst) == 1).then_some(()));

    let found = report(&setup.run(&["upgrade", "--rehearse", "--json"]));
    assert_eq!((&found["good"], &found["faults"]), (&json!(true), &json!([])), "{found}");
    assert_eq!(found["from"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&found["store_format"], &found["new_store_format"]),
        (&json!(FORMAT), &json!(FORMAT))
    );
    assert_eq!(
        (&found["unfinished_executions"], &found["workflow_versions"]),
        (&json!(1), &json!(1))
    );
    let wrong = found["manifests"].as_array().unwrap();
    assert!(wrong[0].as_str().unwrap().contains("wrong.toml"), "{found}");
    assert!(found["rows"].as_u64().unwrap() > 5 && found["copy_bytes"].as_u64().unwrap() > 1000);
    // The rehearsal did not run any work, write anything next to the data, or affect the service.
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    assert_eq!(service.ended(), None);
    let said = setup.try_run(&["upgrade", "--rehearse"]).2;
    assert!(said.contains("nothing was run or sent"), "{said}");
    gate.open();

    // Opening the store of a stopped service would already upgrade it, but a backup can be
    // rehearsed.
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    setup.run(&["backup", backup]);
    assert!(signal(service.pid(), rustix::process::Signal::TERM));
    eventually("the service stops", || service.ended());
    let said = setup.fail(&["upgrade", "--rehearse"]);
    assert!(said.contains("no service runs in") && said.contains("--backup FILE"), "{said}");
    let again = report(&setup.run(&["upgrade", "--rehearse", "--backup", backup, "--json"]));
    assert_eq!(again["good"], true, "{again}");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
    assert!(Path::new(backup).exists());
}

#[test]
fn rehearsal_reports_what_this_release_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let key = setup.create_key();
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "What a night!"}}"#;
    assert_eq!(setup.client(&key).post("/v1/prediction/run", &[], body).unwrap().status(), 200);
    service.kill();
    // A record as another release might have written it.
    write(setup.data(), |executions| {
        let (key, _) = &executions[0];
        vec![(key.clone(), b"\x01{\"id\": \"of another form\"}".to_vec())]
    });
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    setup.run(&["backup", backup]);
    let (is_good, text, said) =
        setup.try_run(&["upgrade", "--rehearse", "--backup", backup, "--json"]);
    assert!(!is_good && said.contains("do not upgrade"), "{said}");
    let found = report(&text);
    let faults = found["faults"].as_array().unwrap();
    assert!(faults.len() == 1 && faults[0].as_str().unwrap().contains("execution"), "{found}");
}

#[test]
fn newer_store_is_rejected_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    setup.start().kill();
    write(setup.data(), |_| {
        let marker = Key::table(Table::Meta).text("format");
        vec![(marker, (FORMAT + 1).to_be_bytes().to_vec())]
    });
    for command in [&["serve"][..], &["verify"], &["key", "list"]] {
        let said = setup.fail(command);
        let expect = format!("has store format {}, which a newer release wrote", FORMAT + 1);
        assert!(said.contains(&expect), "{command:?}: {said}");
        assert!(
            said.contains("Install that release again, or a newer release"),
            "{command:?}: {said}"
        );
    }
}
