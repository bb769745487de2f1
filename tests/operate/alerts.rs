//! `orrery alerts test` with a running service and a stopped one, and a reload of the receiver.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::server::Server;
use crate::support::service::Setup;

/// Starts a receiver that refuses the second message.
fn receiver() -> Server {
    let count = AtomicUsize::new(0);
    Server::start(move |message| {
        assert_eq!(message.json()["type"], "alert.test");
        let status = if count.fetch_add(1, Ordering::SeqCst) == 1 { 403 } else { 200 };
        (status, "noted".to_owned())
    })
}

#[test]
fn alerts_test_prints_the_answer_of_the_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = receiver();
    let more = format!("[alerts]\nurl = '{}'\n", receiver.url("/secret-topic"));
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let said = setup.fail(&["alerts", "test"]);
    assert!(said.contains("set alerts.url, then run `orrery reload`"), "{said}");
    let before = fs::read_to_string(setup.config()).unwrap();
    fs::write(setup.config(), format!("{before}{more}")).unwrap();
    let applied: Value = serde_json::from_str(&setup.run(&["reload", "--json"])).unwrap();
    assert_eq!(applied["applied"], serde_json::json!(["alerts"]));
    let printed = setup.run(&["alerts", "test"]);
    assert!(printed.contains("200") && printed.contains("noted"), "{printed}");
    assert!(!printed.contains("secret-topic"), "{printed}");
    let (is_good, printed, said) = setup.try_run(&["alerts", "test", "--json"]);
    let refused: Value = serde_json::from_str(&printed).unwrap();
    assert!(!is_good && said.contains("was not delivered"), "{said}");
    assert_eq!(refused["error"], "the receiver answered 403 Forbidden: noted");
    drop(service);
    // Without a running service, the command sends the message itself.
    setup.run(&["alerts", "test"]);
    drop(receiver);
    let (is_good, printed, _) = setup.try_run(&["alerts", "test", "--json"]);
    let unreachable: Value = serde_json::from_str(&printed).unwrap();
    let error = unreachable["error"].as_str().unwrap();
    assert!(!is_good && error.contains("refused"), "{error}");
}
