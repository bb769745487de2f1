//! Backups under load: created by the running service, verified, restored to another folder, and
//! started from there.

use std::fs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::ClientLog;
use crate::World;
use crate::support::eventually;
use crate::support::server::Server;
use crate::support::service::Setup;
use crate::verdict;

#[test]
fn backup_under_load_restores_a_complete_service() {
    let folder = tempfile::tempdir().unwrap();
    let (mut world, service) = World::new(folder.path(), &folder.path().join("data"));
    let content = "the bytes of a file ".repeat(10_000);
    let form = format!(
        "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{content}\r\n--b0--\r\n"
    );
    let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
    let mut client = world.setup.client(&world.key);
    let file = client.post("/v1/files", &form_type, &form).unwrap().json();
    let load = world.load();
    world.wait_for_a_random_moment();
    let before = ClientLog::ids(&world.client_log);
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    world.setup.run(&["backup", backup]);
    load.end();
    ClientLog::assert_none_refused(&world.client_log);
    service.kill();
    assert!(world.setup.run(&["verify", backup]).contains("files"));

    let data = folder.path().join("elsewhere/data");
    world.setup.run(&["restore", backup, "--into", data.to_str().unwrap()]);
    let setup = Setup::new(folder.path(), &data, "");
    setup.run(&["verify"]);
    let service = setup.start();
    setup.run(&["resume"]);
    let ends = verdict::settle(&setup, &world.key, &before);
    world.client_log.lock().unwrap().acknowledged.retain(|id, _| ends.contains_key(id));
    // Executions that were unfinished at the time of the backup end a second time, so their
    // webhooks differ.
    verdict::check_ends(&world.client_log, &ends);
    ClientLog::repeat_keys(&world.client_log, &mut setup.client(&world.key));
    let path = format!("/v1/files/{}/content", file["id"].as_str().unwrap());
    assert_eq!(setup.client(&world.key).get(&path).unwrap().text(), content);

    // The service rejects a restore into a folder with data, and a truncated backup.
    let refused = setup.fail(&["restore", backup]);
    assert!(
        refused.contains("already contains payloads") || refused.contains("already"),
        "{refused}"
    );
    let whole = fs::read(backup).unwrap();
    let cut = folder.path().join("cut.backup");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let nowhere = folder.path().join("nowhere");
    let refused =
        setup.fail(&["restore", cut.to_str().unwrap(), "--into", nowhere.to_str().unwrap()]);
    assert!(refused.contains("the backup is incomplete or damaged"), "{refused}");
    assert!(!nowhere.exists());

    // While the service runs, it has exclusive access to its store; other commands can rewrite the
    // store after it has stopped.
    for command in ["verify", "compact"] {
        let refused = setup.fail(&[command]);
        assert!(refused.contains("a service is running on"), "{command}: {refused}");
    }
    service.kill();
    println!("{}", setup.run(&["compact"]));
    setup.run(&["verify"]);
    let _service = setup.start();
    assert!(verdict::settle(&setup, &world.key, &before) == ends, "the same as before");
}

#[test]
fn restored_service_holds_back_carried_over_work() {
    let folder = tempfile::tempdir().unwrap();
    let (world, service) = World::new(folder.path(), &folder.path().join("data"));
    let requests = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&requests);
    let refusing = Arc::new(AtomicU32::new(1));
    let refuses = Arc::clone(&refusing);
    let receiver = Server::start(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        (if refuses.load(Ordering::SeqCst) == 1 { 500 } else { 200 }, "{}".to_owned())
    });
    let create = |setup: &Setup, model: &str, webhook: Option<String>| -> String {
        let body = json!({"model": model, "version": "0.0.1", "input": {"mark": 7},
            "webhook_url": webhook.unwrap_or_default()});
        let mut client = setup.client(&world.key);
        let answer = client.post("/v1/prediction", &[], &body.to_string()).unwrap().json();
        answer["predictionID"].as_str().unwrap().to_owned()
    };
    let status = |setup: &Setup, id: &str| -> Value {
        let path = format!("/v1/prediction/{id}?wait=1");
        setup.client(&world.key).get(&path).unwrap().json()["status"].clone()
    };
    let stuck: Vec<String> = (0..5).map(|_| create(&world.setup, "stuck", None)).collect();
    let announced = create(&world.setup, "priced", Some(receiver.url("/hook")));
    eventually("a refused webhook", || (requests.load(Ordering::SeqCst) > 0).then_some(()));
    eventually("stuck ones run", || (world.providers.gate.held() == 3).then_some(()));
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    world.setup.run(&["backup", backup]);
    service.kill();

    let data = folder.path().join("elsewhere/data");
    world.setup.run(&["restore", backup, "--into", data.to_str().unwrap()]);
    let setup = Setup::new(folder.path(), &data, "");
    let before = requests.load(Ordering::SeqCst);
    let _service = setup.start();
    let ready = || setup.client("").get("/ready").unwrap().json();
    assert_eq!(ready()["paused"], true, "{}", ready());
    assert!(setup.log_tail().contains("orrery resume"), "{}", setup.log_tail());
    let new = create(&setup, "priced", None);
    assert_eq!(status(&setup, &new), "success", "new work runs");
    assert_eq!(status(&setup, &announced), "success", "reads are served");
    let listed: Value =
        serde_json::from_str(&setup.run(&["execution", "list", "--unfinished", "--json"])).unwrap();
    assert_eq!(listed["executions"].as_array().unwrap().len(), stuck.len());
    setup.run(&["execution", "cancel", &stuck[4]]);
    assert_eq!(world.providers.gate.held(), 3, "no stuck one runs again");
    assert_eq!(requests.load(Ordering::SeqCst), before, "no webhook goes out");

    refusing.store(0, Ordering::SeqCst);
    world.providers.gate.open();
    let resumed: Value = serde_json::from_str(&setup.run(&["resume", "--json"])).unwrap();
    assert_eq!(resumed, json!({"executions": stuck.len() - 1, "deliveries": 1}));
    assert_eq!(ready().get("paused"), None);
    for (number, id) in stuck.iter().enumerate() {
        let end = if number == 4 { "cancelled" } else { "success" };
        eventually("each ends", || (status(&setup, id) == end).then_some(()));
    }
    eventually("the webhook", || (requests.load(Ordering::SeqCst) > before).then_some(()));
}
