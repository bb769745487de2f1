//! Models that are programs: what a worker may and may not do, and that the worker leaves no
//! processes or files behind.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Service, lane_is_free, until};
use orrery_runtime as runtime;

/// Returns the manifest of a model that runs the worker; `more` contains further keys of the
/// runner.
fn manifest(slug: &str, top: &str, more: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/odd.py");
    let top = if top.contains("output_type") {
        top.to_owned()
    } else {
        format!("output_type = 'object'\n{top}")
    };
    let command = if more.contains("command =") {
        more.replace("ODD", &script.display().to_string())
    } else {
        format!("command = ['python3', '{}']\n{more}", script.display())
    };
    format!("slug = '{slug}'\n{top}\n[runner]\ntype = 'command'\n{command}\n")
}

async fn run(service: &Service, model: &str, input: Value) -> Value {
    let id = service.create(model, input).await;
    service.ended(&id).await
}

/// Returns the process ids in a log line or an output.
fn pids(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Returns whether a process exists and is not a zombie.
fn lives(pid: &u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

async fn all_gone(pids: &[u32]) {
    until("end of the processes", async || (!pids.iter().any(lives)).then_some(())).await;
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_worker_is_reused_and_reports_progress() {
    let service = Service::start().await;
    service.manifest(&manifest(
        "odd",
        "concurrency = 1\n[cost]\ntype = 'usage_based'\nper_million_input_tokens = 2.0\n",
        "",
    ));
    let record = run(&service, "odd", json!({"do": "tell"})).await;
    assert_eq!((&record["status"], &record["output"]), (&json!("success"), &json!("ab")));
    assert_eq!(record["logs"], "one\ntwo\nthree");
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(
            run(&service, "odd", json!({"do": "environment"})).await["output"]["pid"].clone(),
        );
    }
    assert!(workers.iter().all(|pid| *pid == workers[0]), "{workers:?}");
    let input = json!({"do": "echo", "value": 7, "metrics": {"input_tokens": 500_000}});
    let paid = run(&service, "odd", input).await;
    assert_eq!((&paid["output"], &paid["metrics"]["cost"]), (&json!(7), &json!(1.0)));
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_worker_gets_only_manifest_environment() {
    let service = Service::start().await;
    std::fs::create_dir(service.models().join("home")).unwrap();
    service.manifest_file("token", "s3cret");
    std::os::unix::fs::chown(service.models().join("token"), None, None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(service.models().join("token"), mode).unwrap();
    let runner = "directory = 'home'\nenv = { TOKEN = '${file:token}' }";
    service.manifest(&manifest("odd", "", runner));
    let output = run(&service, "odd", json!({"do": "environment"})).await["output"].clone();
    assert_eq!((&output["secret"], &output["model"]), (&json!("s3cret"), &json!("odd")));
    let home = service.models().join("home").canonicalize().unwrap();
    assert_eq!(output["folder"], home.to_str().unwrap());
    let names = output["names"].as_array().unwrap();
    assert!(!names.iter().any(|name| name.as_str().unwrap().starts_with("CARGO")), "{names:?}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_worker_errors_fail_only_their_run() {
    let service = Service::start().await;
    service.manifest(&manifest("odd", "concurrency = 1\ntimeout = '20s'\n", ""));
    for (input, class, says) in [
        (
            json!({"do": "fail", "error": "too dark", "class": "content_moderation"}),
            "content_moderation",
            "too dark",
        ),
        (json!({"do": "fail", "class": "bad luck"}), "unknown", "no"),
        (
            json!({"do": "garbage"}),
            "provider_error",
            "its worker wrote a line that is not valid JSON: Loading checkpoint shards",
        ),
        (
            json!({"do": "binary"}),
            "provider_error",
            "its worker wrote a line that is not valid JSON",
        ),
        (
            json!({"do": "huge"}),
            "provider_error",
            "its worker wrote a line of more than 10485760 bytes",
        ),
        (
            json!({"do": "stranger"}),
            "provider_error",
            "its worker returned a result for an id that it was not sent",
        ),
        (
            json!({"do": "die"}),
            "provider_error",
            "its worker ended without an answer (exit status: 9)",
        ),
        (json!({"do": "die", "code": 0}), "provider_error", "its worker ended without an answer"),
        (json!({"do": "vanish"}), "provider_error", "its worker ended without an answer"),
    ] {
        let failed = run(&service, "odd", input.clone()).await;
        assert_eq!(
            (&failed["status"], &failed["error_classification"]),
            (&json!("error"), &json!(class)),
            "{input}"
        );
        let error = failed["error"].as_str().unwrap();
        assert!(error.starts_with("the model 'odd': ") && error.contains(says), "{error}");
        assert_eq!(run(&service, "odd", json!({"value": 1})).await["output"], 1, "after {input}");
    }
    lane_is_free(&service, "odd").await;
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_cancel_and_timeout_kill_worker_and_its_children() {
    let service = Service::start().await;
    service.manifest(&manifest("odd", "concurrency = 1\n", ""));
    service.manifest(&manifest("brief", "concurrency = 1\ntimeout = '2s'\n", ""));
    let id = service.create("odd", json!({"do": "hang"})).await;
    let path = format!("/v1/prediction/{id}");
    let processes = until("log", async || {
        let pids = pids(service.get(&path).await.expect(200)["logs"].as_str().unwrap_or_default());
        (pids.len() == 3).then_some(pids)
    })
    .await;
    assert!(processes.iter().all(lives));
    let asked = runtime::monotonic_now();
    service.cancel(&id).await.expect(200);
    all_gone(&processes).await;
    assert!(asked.elapsed() < std::time::Duration::from_secs(60), "{:?}", asked.elapsed());
    let cancelled = service.ended(&id).await;
    assert!(cancelled["logs"].as_str().unwrap().starts_with("pid "), "what it wrote is kept");
    assert_eq!(run(&service, "odd", json!({"value": 1})).await["output"], 1);

    let late = run(&service, "brief", json!({"do": "hang"})).await;
    assert_eq!(late["error_classification"], "execution_timeout");
    all_gone(&pids(late["logs"].as_str().unwrap())).await;
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_once_mode_leaves_no_processes() {
    let service = Service::start().await;
    service.manifest(&manifest("once", "", "mode = 'once'"));
    let first = run(&service, "once", json!({"do": "leave"})).await;
    let second = run(&service, "once", json!({"do": "leave"})).await;
    let processes: Vec<u32> =
        [&first, &second].iter().flat_map(|done| pids(&done["output"].to_string())).collect();
    assert_eq!(processes.len(), 6);
    all_gone(&processes).await;
    let failed = run(&service, "once", json!({"do": "die"})).await;
    assert!(failed["error"].as_str().unwrap().contains("(exit status: 9)"), "{failed}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_memory_limit_of_manifest_is_enforced() {
    let service = Service::start().await;
    service.manifest(&manifest("odd", "", "memory_bytes = '512MiB'"));
    let hog = |bytes: u64| json!({"do": "hog", "bytes": bytes});
    assert_eq!(run(&service, "odd", hog(1 << 20)).await["output"], 1 << 20);
    let failed = run(&service, "odd", hog(1 << 30)).await;
    assert_eq!(failed["error_classification"], "provider_error", "{failed}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_run_files_are_kept_and_its_folder_removed() {
    let service = Service::start().await;
    service.manifest(&manifest("draw", "output_type = 'file'\n", ""));
    let drawn =
        run(&service, "draw", json!({"do": "file", "name": "a.txt", "text": "drawn"})).await;
    let url = drawn["output"].as_str().unwrap();
    let path = format!("/v1{}", url.split_once("/v1").unwrap().1);
    let file = service.get(&path).await;
    assert_eq!((file.text.as_str(), file.header("content-type")), ("drawn", "text/plain"));
    let escape = json!({"do": "file", "name": "a", "text": "x", "path": "/etc/hostname"});
    let failed = run(&service, "draw", escape).await;
    assert_eq!(failed["error_classification"], "provider_error");
    assert!(failed["error"].as_str().unwrap().contains("leads outside the folder"), "{failed}");
    // The process's folder remains while the process lives, but contains no folders of completed
    // runs.
    let work = service.folder.path().join("data/work");
    let of_process = std::fs::read_dir(work).unwrap().next().unwrap().unwrap().path();
    let left = std::fs::read_dir(of_process).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["tmp"]);
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_model_that_cannot_start_reports_and_recovers() {
    let service = Service::start().await;
    let top = "concurrency = 1\nqueue_limit = 1\ntimeout = '30s'\n";
    service.manifest(&manifest("gone", top, "command = ['no-such-program']"));
    let runner = "directory = '.'\ncommand = ['python3', 'ODD', 'flag']";
    service.manifest(&manifest("flag", top, runner));
    let admin = async |slug: &str| {
        let model = service.running.services.catalog.get(slug).unwrap();
        (model.health_word(), model.failing().unwrap_or_default())
    };
    until("failure", async || (admin("gone").await.0 == "failing").then_some(())).await;
    let (_, reason) = admin("gone").await;
    assert!(reason.starts_with("its program 'no-such-program' cannot be started in "), "{reason}");
    assert_eq!(service.get("/v1/models/gone").await.status, 200, "it can still be looked at");

    // The failing model still queues work; when the queue is full, the rejection contains the
    // reason.
    until("failure", async || (admin("flag").await.0 == "failing").then_some(())).await;
    let waiting = service.create("flag", json!({"value": 1})).await;
    let refused = until("refusal", async || {
        let body = json!({"model": "flag", "version": "1", "input": {"value": 2}});
        let answer = service.post("/v1/prediction/", &body).send().await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    let says =
        "the model 'flag' does not answer: its worker ended without an answer (exit status: 4)";
    refused.expect_error(503, says);
    std::fs::write(service.models().join("flag"), "").unwrap();
    assert_eq!(service.ended(&waiting).await["output"], 1);
    until("recovery", async || (admin("flag").await.0 == "ok").then_some(())).await;
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_chain_skips_model_that_cannot_start() {
    let service = Service::start().await;
    service.manifest(&manifest(
        "broken",
        "timeout = '60s'\n",
        "command = ['python3', 'ODD', 'broken']",
    ));
    service.manifest(&manifest("odd", "", ""));
    let entries = serde_json::from_value(json!([{"model": "odd"}])).unwrap();
    let services = &service.running.services;
    let schema_of = |slug: &str| {
        services.catalog.get(slug).map(|one| one.schema.text().clone()).ok_or_else(String::new)
    };
    let organization = service.organization.id;
    services.chains.create(organization, "broken", "safe", entries, &schema_of).await.unwrap();
    until("failure", async || {
        services
            .catalog
            .get("broken")
            .unwrap()
            .failing()
            .map(|reason| assert!(reason.contains("exit status: 3")))
    })
    .await;
    let fields = json!({"input": {"value": 5}, "fallback_selector": "safe"});
    let id = service.create_with("broken", fields).await;
    let prediction = service.ended(&id).await;
    assert_eq!((&prediction["status"], &prediction["output"]), (&json!("success"), &json!(5)));
    assert_eq!(prediction["attempts"][0]["error_classification"], "provider_unavailable");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_reload_replaces_workers_only_on_change() {
    let service = Service::start().await;
    service.manifest(&manifest("odd", "concurrency = 1\n", ""));
    let pid = async || {
        let done = run(&service, "odd", json!({"do": "environment"})).await;
        u32::try_from(done["output"]["pid"].as_u64().unwrap()).unwrap()
    };
    let first = pid().await;
    let _reloaded = service.running.services.catalog.reload();
    assert_eq!(pid().await, first);
    service.manifest(&manifest("odd", "concurrency = 2\n", ""));
    assert_ne!(pid().await, first);
    all_gone(&[first]).await;
    let second = pid().await;
    std::fs::remove_file(service.models().join("slugodd.toml")).unwrap();
    let _reloaded = service.running.services.catalog.reload();
    all_gone(&[second]).await;
}
