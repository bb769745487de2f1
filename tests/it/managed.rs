//! Servers that the service starts for models: on demand, one after the other in a group, again
//! after they exit.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Method;
use orrery_api::Role;
use orrery_runtime::monotonic_now;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Service, signal, until};

/// Returns the manifest of a chat model whose server is `workers/server.py`; `more` contains further
/// keys of the runner, and `arguments` further arguments of the program.
fn manifest(slug: &str, arguments: &str, more: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/server.py");
    format!(
        "slug = '{slug}'\noutput_type = 'string'\nconcurrency = 16\n[runner]\ntype = 'openai'\n\
         kind = 'chat'\nmodel = 'm'\n\
         start = ['python3', '{}', '${{PORT}}', '--name', '{slug}'{arguments}]\n{more}\n",
        script.display()
    )
}

/// Calls a model, which sleeps for this many seconds; returns its status and its answer.
async fn call(service: &Service, model: &str, seconds: &str) -> (u16, String) {
    let messages = json!([{"role": "user", "content": seconds}]);
    let body = json!({"model": model, "messages": messages});
    let answer = service.post("/v1/chat/completions", &body).send().await;
    let said: Value = serde_json::from_str(&answer.text).unwrap();
    let content = &said["choices"][0]["message"]["content"];
    let text = content.as_str().or_else(|| said["error"]["message"].as_str());
    (answer.status, text.unwrap_or_default().to_owned())
}

/// Returns the process that answered.
fn pid_of(said: &str) -> u32 {
    said.split(' ').nth(1).unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}

async fn state(service: &Service, model: &str) -> Value {
    service.get(&format!("/v1/models/{model}/load")).await.expect(200)
}

async fn wait_for(service: &Service, model: &str, word: &str) {
    until(word, async || (state(service, model).await["state"] == word).then_some(())).await;
}

async fn post(service: &Service, path: &str) -> Value {
    service.ask(Role::Base, Method::POST, path).key(&service.key).send().await.expect(200)
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn managed_server_starts_on_demand_and_stops_when_idle() {
    let service = Service::start().await;
    service.manifest(&manifest("talk", ", '--wait', '0.3'", "idle_unload = '1s'"));
    assert_eq!(state(&service, "talk").await["state"], "unloaded");
    let both = join_all([call(&service, "talk", "0"), call(&service, "talk", "0")]).await;
    assert!(both.iter().all(|(status, _)| *status == 200), "{both:?}");
    assert_eq!(both[0].1, both[1].1, "both requests wait for one start");
    let pid = pid_of(&both[0].1);
    let loaded = state(&service, "talk").await;
    assert_eq!((&loaded["state"], &loaded["in_flight"]), (&json!("ready"), &json!(0)));
    wait_for(&service, "talk", "unloaded").await;
    assert!(!signal(pid, Signal::CONT), "the process has ended");
    let run = json!({"model": "talk", "version": "0.0.1", "input": {"prompt": "0"}});
    let record = service.post("/v1/prediction/run", &run).send().await.expect(200);
    assert!(record["output"].as_str().unwrap().starts_with("talk "), "{record}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn managed_server_is_loaded_and_unloaded_by_hand() {
    let service = Service::start().await;
    service.manifest(&manifest("talk", "", ""));
    post(&service, "/v1/models/talk/load").await;
    wait_for(&service, "talk", "ready").await;
    let slow = call(&service, "talk", "1");
    let unloaded = async {
        until("a request in flight", async || {
            (state(&service, "talk").await["in_flight"] == 1).then_some(())
        })
        .await;
        post(&service, "/v1/models/talk/unload").await["state"].clone()
    };
    let ((status, said), word) = tokio::join!(slow, unloaded);
    assert_eq!((status, word), (200, json!("draining")), "{said}");
    wait_for(&service, "talk", "unloaded").await;
    service.manifest("slug = 'text'\noutput_type = 'object'\n[runner]\ntype = 'http'\nurl = 'http://127.0.0.1:1'\n");
    let refused = service.get("/v1/models/text/load").await;
    refused.expect_error(409, "the manifest of the model 'text' has no `start`");
    let other = service.ask(Role::Base, Method::POST, "/v1/models/no/load").key(&service.key);
    other.send().await.expect(404);
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn requests_of_killed_server_are_repeated() {
    let service = Service::start().await;
    service.manifest(&manifest("talk", "", ""));
    let first = pid_of(&call(&service, "talk", "0").await.1);
    let calls = join_all((0..8).map(|_| call(&service, "talk", "0.5")));
    let kill = async {
        until("requests in flight", async || {
            (state(&service, "talk").await["in_flight"] == 8).then_some(())
        })
        .await;
        assert!(signal(first, Signal::KILL));
    };
    let (answers, ()) = tokio::join!(calls, kill);
    for (status, said) in answers {
        assert_eq!(status, 200, "{said}");
        assert_ne!(pid_of(&said), first);
    }
    let reason = state(&service, "talk").await["reason"].clone();
    assert_eq!(reason, Value::Null, "the new server works");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn server_that_does_not_start_fails_requests_with_its_reason() {
    let service = Service::start().await;
    service.manifest(&manifest("talk", ", '--exit', '3'", ""));
    service.manifest(&manifest("late", ", '--wait', '60'", "start_timeout = '1s'"));
    for _ in 0..3 {
        let (status, said) = call(&service, "talk", "0").await;
        assert_eq!(status, 503, "{said}");
        assert!(said.contains("its server exited (exit status: 3)"), "{said}");
    }
    let (status, said) = call(&service, "late", "0").await;
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("its server was not ready within 1s"), "{said}");
    let failed = state(&service, "talk").await;
    assert_eq!(failed["state"], "failed");
    let model = service.running.services.catalog.get("talk").unwrap();
    assert!(matches!(model.runner.health(), orrery_runners::Health::Failing(_)));
    assert!(model.runner.diagnostics().unwrap().contains("there is no model file"));
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn servers_of_a_group_take_turns_without_thrashing() {
    let swap_after = Duration::from_secs(2);
    let service = Service::configured("[groups.gpu]\nmemory = '10MiB'\nswap_after = '2s'\n").await;
    for slug in ["a", "b"] {
        service.manifest(&manifest(slug, "", "group = 'gpu'\nmemory = '6MiB'"));
    }
    let begun = monotonic_now();
    let client = async |number: usize| {
        let mut seen = BTreeSet::new();
        let mut turn = number;
        while begun.elapsed() < swap_after * 4 {
            let model = ["a", "b"][turn % 2];
            let (status, said) = call(&service, model, "0.02").await;
            assert_eq!(status, 200, "{said}");
            assert!(said.starts_with(model), "{said}");
            seen.insert(pid_of(&said));
            turn += 1;
        }
        seen
    };
    let seen = join_all((0..8).map(client)).await;
    let elapsed = begun.elapsed();
    let starts = seen.into_iter().flatten().collect::<BTreeSet<u32>>().len() as u128;
    let most = elapsed.as_millis() / swap_after.as_millis() + 1;
    assert!((3..=most).contains(&starts), "{starts} starts in {elapsed:?}");
}

#[tokio::test]
async fn group_that_a_manifest_names_must_exist_and_be_large_enough() {
    let service = Service::configured("[groups.small]\nmemory = '1MiB'\n").await;
    service.manifest(&manifest("lost", "", "group = 'gpu0'"));
    service.manifest(&manifest("large", "", "group = 'small'\nmemory = '2MiB'"));
    for (slug, reason) in [
        ("lost", "its group 'gpu0' is not in the configuration: add [groups.gpu0]"),
        ("large", "it needs 2097152 bytes, but its group 'small' has 1048576 bytes"),
    ] {
        let (status, said) = call(&service, slug, "0").await;
        assert_eq!(status, 503, "{said}");
        assert!(said.ends_with(reason), "{said}");
        assert_eq!(state(&service, slug).await["reason"], reason);
    }
}
