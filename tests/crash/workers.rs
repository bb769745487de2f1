//! What happens to the workers of a `command` model and of the built-in models when their service
//! dies.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::service::Setup;

const WORKERS: usize = 10;

/// Returns whether a process exists and is not a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
#[ignore = "needs python3: run tests/run"]
fn workers_and_their_children_die_with_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/odd.py");
    let manifest = format!(
        "slug = 'odd'\noutput_type = 'object'\nconcurrency = {WORKERS}\n\
         [runner]\ntype = 'command'\ncommand = ['python3', {script:?}]\n"
    );
    setup.add_model("odd", &manifest);
    let service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let body = json!({"model": "odd", "version": "1", "input": {"do": "hang"}}).to_string();
    let ids: Vec<String> = std::iter::repeat_with(|| {
        let made = client.post("/v1/prediction", &[], &body).unwrap().json();
        made["predictionID"].as_str().unwrap().to_owned()
    })
    .take(WORKERS)
    .collect();
    // Each worker reports its process id and the ids of two children, one of them in its own
    // session.
    let mut processes = Vec::new();
    for id in &ids {
        processes.extend(eventually("the workers are at work", || {
            let seen = client.get(&format!("/v1/prediction/{id}")).unwrap().json();
            let logs = seen["logs"].as_str().unwrap_or_default().to_owned();
            let numbers = logs.split(|c: char| !c.is_ascii_digit());
            let pids: Vec<u32> = numbers.filter_map(|digits| digits.parse().ok()).collect();
            (logs.starts_with("pid ") && pids.len() == 3).then_some(pids)
        }));
    }
    assert_eq!(processes.iter().filter(|pid| lives(**pid)).count(), 3 * WORKERS);
    service.kill();
    eventually("every worker has ended", || processes.iter().all(|pid| !lives(*pid)).then_some(()));

    // The next start recovers all predictions.
    let _service = setup.start();
    let mut client = setup.client(&key);
    for id in &ids {
        let answer = client.post(&format!("/v1/prediction/{id}/cancel"), &[], "").unwrap();
        assert_eq!((answer.status(), &answer.json()["status"]), (200, &Value::from("cancelled")));
    }
}

#[test]
fn workers_of_builtin_models_die_with_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let template = "{% for i in range(9000) %}{{ long | upper | lower | length }}{% endfor %}";
    let input = json!({"template": template, "values": {"long": "x".repeat(1_000_000)}});
    let body = json!({"model": "text-template", "version": "1", "input": input}).to_string();
    for _ in 0..2 {
        assert_eq!(client.post("/v1/prediction", &[], &body).unwrap().status(), 200);
    }
    let parent = format!("PPid:\t{}\n", service.pid());
    let workers = eventually("two workers are at work", || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let of_service = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.contains(&parent) && status.contains("NoNewPrivs:\t1")
        };
        let workers: Vec<u32> = pids.filter(of_service).collect();
        (workers.len() == 2).then_some(workers)
    });
    service.kill();
    eventually("every worker has ended", || workers.iter().all(|pid| !lives(*pid)).then_some(()));
}
