//! Models with the runner `pull`: the tests claim jobs over the API, or start real processes of
//! `orrery worker`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Method;
use orrery_api::Role;
use orrery_domain::ids::OrganizationId;
use orrery_domain::key_policy::{KeyPolicy, Scope};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::chains;
use crate::support::{Answer, Ask, Service, lane_is_free, signal, until};

/// Returns a manifest with the runner `pull`.
fn manifest(lease: &str, more: &str) -> String {
    format!(
        "slug = 'far'\noutput_type = 'string'\nconcurrency = 512\ntimeout = '60s'\n{more}\n\
         [cost]\ntype = 'fixed'\namount = 0.01\n[runner]\ntype = 'pull'\nlease = '{lease}'\n"
    )
}

async fn key_of(service: &Service, organization: OrganizationId, policy: KeyPolicy) -> String {
    let accounts = &service.running.services.accounts;
    accounts.create_key_with(organization, "worker", "test", None, policy).await.unwrap().1
}

fn worker_policy() -> KeyPolicy {
    KeyPolicy { scopes: Some([Scope::Worker].into()), ..KeyPolicy::default() }
}

/// Starts a service with the model `far`; also returns a key for the model's workers.
async fn start(lease: &str, more: &str) -> (Service, String) {
    let service = Service::start().await;
    service.manifest(&manifest(lease, more));
    let key = key_of(&service, service.organization.id, worker_policy()).await;
    (service, key)
}

/// Acts as a worker of a model whose jobs have the input `{"do": …}`: `good` succeeds, `fail`
/// fails, and all other jobs take forever.
pub(crate) async fn obey(service: &Service, slug: &str) {
    let key = key_of(service, service.organization.id, worker_policy()).await;
    let path = format!("/v1/workers/{slug}/claim?wait=60");
    loop {
        let answer = service.ask(Role::Base, Method::POST, &path).key(&key).send().await;
        let job = if answer.status == 200 { answer.json() } else { continue };
        let (what, end) = match job["input"]["do"].as_str() {
            Some("good") => ("complete", json!({"output": job["input"]})),
            Some("fail") => ("fail", json!({"error": "as asked"})),
            _ => continue,
        };
        assert_eq!(report(service, &key, &job, what, 1, end).await.status, 204);
    }
}

fn ask_claim(service: &Service, key: &str, wait: u32) -> Ask {
    let path = format!("/v1/workers/far/claim?wait={wait}&worker=w1");
    service.ask(Role::Base, Method::POST, &path).key(key)
}

async fn claimed(service: &Service, key: &str) -> Value {
    ask_claim(service, key, 30).send().await.expect(200)
}

/// Sends a report about a job.
async fn report(
    service: &Service,
    key: &str,
    job: &Value,
    what: &str,
    attempt: u32,
    more: Value,
) -> Answer {
    let path = format!("/v1/workers/jobs/{}/{what}", job["job_id"].as_str().unwrap());
    let mut body = json!({"attempt": attempt});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    service.ask(Role::Base, Method::POST, &path).key(key).json(&body).send().await
}

#[tokio::test]
async fn worker_claims_and_completes_a_job_by_http() {
    let (service, key) = start("30s", "").await;
    assert_eq!(ask_claim(&service, &key, 0).send().await.status, 204);
    let id = service.create("far", json!({"n": 1})).await;
    let job = claimed(&service, &key).await;
    assert_eq!(
        (&job["attempt"], &job["input"], &job["lease_seconds"]),
        (&json!(1), &json!({"n": 1}), &json!(30))
    );
    assert_eq!(report(&service, &key, &job, "heartbeat", 1, json!({})).await.status, 204);
    let log = json!({"log": "half way"});
    assert_eq!(report(&service, &key, &job, "log", 1, log).await.status, 204);
    let part = json!({"output": "a"});
    assert_eq!(report(&service, &key, &job, "part", 1, part).await.status, 204);
    let end = json!({"output": "ab", "metrics": {"cost": 0.25}});
    assert_eq!(report(&service, &key, &job, "complete", 1, end.clone()).await.status, 204);
    let again = report(&service, &key, &job, "complete", 1, end).await;
    let gone = format!("this key has no job {}", job["job_id"].as_str().unwrap());
    assert!(again.expect(409)["error"].as_str().unwrap().starts_with(&gone), "{}", again.text);
    let record = service.ended(&id).await;
    assert_eq!((&record["status"], &record["output"]), (&json!("success"), &json!("ab")));
    assert_eq!((&record["logs"], &record["metrics"]["cost"]), (&json!("half way"), &json!(0.25)));
    assert_eq!(ask_claim(&service, &key, 0).send().await.status, 204);
    let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text;
    assert!(metrics.contains("orrery_model_waiting{model=\"far\"} 0"), "{metrics}");
    assert!(metrics.contains("orrery_model_workers{model=\"far\"} 1"), "{metrics}");
    let owner = service.owner().await;
    let page = service.asks(&owner, Method::GET, "/models").send().await.expect(200);
    let far = page["models"].as_array().unwrap().iter().find(|model| model["slug"] == "far");
    let expected = json!({"workers": 1, "waiting": 0, "leased": 0});
    assert_eq!((&far.unwrap()["workers"], &far.unwrap()["runner"]), (&expected, &json!("pull")));
}

#[tokio::test]
async fn model_with_a_slug_like_a_route_has_jobs() {
    let (service, key) = start("30s", "").await;
    for slug in ["jobs", "jobs/far", "team/claim"] {
        service.manifest(&manifest("30s", "").replace("'far'", &format!("'{slug}'")));
        let id = service.create(slug, json!({})).await;
        let path = format!("/v1/workers/{slug}/claim?wait=30");
        let job = service.ask(Role::Base, Method::POST, &path).key(&key).send().await.expect(200);
        let end = json!({"output": slug});
        assert_eq!(report(&service, &key, &job, "complete", 1, end).await.status, 204);
        assert_eq!(service.ended(&id).await["output"], slug);
    }
}

#[tokio::test]
async fn lease_that_ends_gives_the_job_to_the_next_attempt() {
    let (service, key) = start("1s", "").await;
    let id = service.create("far", json!({})).await;
    let job = claimed(&service, &key).await;
    let next = claimed(&service, &key).await;
    assert_eq!((&next["job_id"], &next["attempt"]), (&job["job_id"], &json!(2)));
    let stale = "the lease of attempt 1 of this job has ended, and the job went back to the \
                 queue; stop working on the job";
    for (what, more) in [
        ("heartbeat", json!({})),
        ("log", json!({"log": "x"})),
        ("part", json!({"output": "x"})),
        ("complete", json!({"output": "x"})),
        ("fail", json!({"error": "x"})),
    ] {
        report(&service, &key, &job, what, 1, more).await.expect_error(409, stale);
    }
    let error = json!({"error": "no", "classification": "content_moderation"});
    assert_eq!(report(&service, &key, &next, "fail", 2, error).await.status, 204);
    let record = service.ended(&id).await;
    assert_eq!(
        (&record["error"], &record["error_classification"]),
        (&json!("the model 'far': no"), &json!("content_moderation"))
    );
    assert_eq!(record["attempts"].as_array().unwrap().len(), 1, "the engine made one attempt");
}

#[tokio::test]
async fn cancelled_prediction_ends_the_job_of_its_worker() {
    let (service, key) = start("30s", "").await;
    let id = service.create("far", json!({})).await;
    let job = claimed(&service, &key).await;
    service.cancel(&id).await.expect(200);
    // The run ends a moment after the response.
    let ended = until("the end of the job", async || {
        let answer = report(&service, &key, &job, "heartbeat", 1, json!({})).await;
        (answer.status != 204).then_some(answer)
    })
    .await;
    assert!(ended.expect(409)["error"].as_str().unwrap().contains("has ended or was cancelled"));
    let waiting = service.create("far", json!({})).await;
    service.cancel(&waiting).await.expect(200);
    lane_is_free(&service, "far").await;
    assert_eq!(ask_claim(&service, &key, 0).send().await.status, 204);
}

#[tokio::test]
async fn only_worker_keys_of_the_organization_in_the_manifest_claim() {
    let (service, key) = start("30s", "").await;
    let id = service.ask(Role::Base, Method::POST, "/v1/prediction").key(&service.other_key);
    let body = json!({"model": "far", "version": "1", "input": {"of": "other"}});
    id.json(&body).send().await.expect(200);
    let scope = "this key may not do this: it needs the scope worker";
    ask_claim(&service, &service.key, 0).send().await.expect_error(403, scope);
    ask_claim(&service, &service.other_key, 0).send().await.expect_error(403, scope);
    let owner = service.owner().await;
    let page = service.asks(&owner, Method::POST, "/api/base/v1/workers/far/claim");
    page.send().await.expect_error(404, "not found");
    let accounts = &service.running.services.accounts;
    let other = accounts.organization("other").await.unwrap().id;
    let stranger = key_of(&service, other, worker_policy()).await;
    ask_claim(&service, &stranger, 0).send().await.expect_error(
        403,
        "this key may not claim jobs of the model 'far': the key must belong to the organization \
         default, which the model's manifest names in `runner.organization`",
    );
    let narrow = KeyPolicy { models: Some(vec!["near".to_owned()]), ..worker_policy() };
    let narrow = key_of(&service, service.organization.id, narrow).await;
    let refused = ask_claim(&service, &narrow, 0).send().await;
    refused.expect_error(403, "this key may not use the model 'far'");
    // A worker sees the inputs of all organizations, and only the key that claimed a job may report.
    let job = claimed(&service, &key).await;
    assert_eq!(job["input"], json!({"of": "other"}));
    report(&service, &stranger, &job, "complete", 1, json!({"output": "x"})).await.expect(409);
    let post = |path: &'static str| service.ask(Role::Base, Method::POST, path).key(&key);
    post("/v1/workers/text-template/claim").send().await.expect_error(
        409,
        "the model 'text-template' has the runner builtin: workers run models with the runner pull",
    );
    post("/v1/workers/nothing/claim").send().await.expect(404);
    post("/v1/workers/far/claim?wait=61").send().await.expect(400);
    post("/v1/prediction").json(&body).send().await.expect(403);
    service.manifest(&(manifest("30s", "") + "organization = 'other'\n"));
    assert_eq!(ask_claim(&service, &stranger, 0).send().await.status, 204);
    ask_claim(&service, &key, 0).send().await.expect(403);
    // The job that was created with the earlier manifest is still leased to its worker.
    let end = json!({"output": "x"});
    assert_eq!(report(&service, &key, &job, "complete", 1, end).await.status, 204);
}

#[tokio::test]
async fn model_without_workers_gives_way_to_the_next_of_the_chain() {
    let (service, _) = start("1s", "").await;
    service.manifest(&manifest("1s", "").replace("'60s'", "'1s'"));
    let entries = json!([{"model": "text-template", "input_map": {"template": "b", "values": {}}}]);
    chains::save(&service, "far", "spare", entries).await;
    let fields = json!({"fallback_selector": "spare"});
    let record = service.ended(&service.create_with("far", fields).await).await;
    assert_eq!((&record["status"], &record["output"]), (&json!("success"), &json!("b")));
    let first = &record["attempts"][0];
    assert_eq!(first["error"], "the model 'far': no worker has called within 1s");
    assert_eq!(first["error_classification"], "provider_unavailable");
}

#[tokio::test]
async fn claim_whose_client_leaves_takes_no_job() {
    let (service, key) = start("60s", "").await;
    let workers = async || {
        let model = service.running.services.catalog.get("far").unwrap();
        model.runner.pull().unwrap().situation()
    };
    for _ in 0..3 {
        let left = ask_claim(&service, &key, 60).header("connection", "close").send();
        assert!(timeout(Duration::from_millis(200), left).await.is_err(), "the claim waited");
    }
    // Time for the service to notice that the clients have disconnected.
    sleep(Duration::from_millis(300)).await;
    let id = service.create("far", json!({})).await;
    until("a waiting job", async || (workers().await.waiting == 1).then_some(())).await;
    let job = claimed(&service, &key).await;
    assert_eq!(job["attempt"], 1, "no earlier claim took the job");
    report(&service, &key, &job, "complete", 1, json!({"output": "x"})).await;
    assert_eq!(service.ended(&id).await["output"], "x");
}

/// A folder with the key, the manifest and the program of a worker process.
struct Machine {
    folder: tempfile::TempDir,
    url: String,
}

/// A program that logs its process ID and sleeps for `sleep` seconds; its output is `<n> squared is
/// <n * n>`.
const PROGRAM: &str = r#"while read -r line; do
id=${line#*\"id\":\"}; id=${id%%\"*}
n=${line#*\"n\":}; n=${n%%[!0-9]*}
nap=${line#*\"sleep\":}; nap=${nap%%[!0-9.]*}
echo "{\"id\":\"$id\",\"log\":\"pid $$\"}"
echo "{\"id\":\"$id\",\"part\":\"$n squared \"}"
sleep "$nap"
echo "{\"id\":\"$id\",\"output\":\"$n squared is $((n * n))\"}"
done
"#;

impl Machine {
    fn new(service: &Service, key: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = "slug = 'far'\noutput_type = 'string'\nconcurrency = 4\n[runner]\n\
                        type = 'command'\ncommand = ['/bin/sh', 'square.sh']\n";
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("far.toml", manifest).unwrap();
        write("square.sh", PROGRAM).unwrap();
        let key_file = folder.path().join("key");
        std::fs::write(&key_file, key).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key_file, private).unwrap();
        Self { folder, url: format!("http://{}", service.address(Role::Base)) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_orrery")));
        command.args(["worker", "--server", &self.url, "--drain", "10s", "--key-file"]);
        command.arg(self.path("key")).arg("--manifest").arg(self.path("far.toml"));
        command.stdin(Stdio::null()).kill_on_drop(true).current_dir(self.folder.path());
        command
    }

    fn worker(&self) -> Child {
        self.command().spawn().unwrap()
    }
}

/// Creates predictions with the numbers up to `count`, each of which takes `nap` seconds.
async fn squares(service: &Service, count: u64, nap: f64) -> Vec<String> {
    let made = (0..count).map(|n| service.create("far", json!({"n": n, "sleep": nap})));
    join_all(made).await
}

/// Checks that each prediction has the right output.
async fn are_right(service: &Service, ids: &[String]) {
    for (n, id) in ids.iter().enumerate() {
        let record = service.ended(id).await;
        assert_eq!(record["output"], format!("{n} squared is {}", n * n), "{record}");
        assert_eq!(record["attempts"].as_array().unwrap().len(), 1, "{record}");
    }
}

#[tokio::test]
async fn jobs_of_killed_workers_end_once_and_none_is_lost() {
    let (service, key) = start("1s", "").await;
    let machine = Machine::new(&service, &key);
    let ids = squares(&service, 160, 0.2).await;
    let _steady = machine.worker();
    let killing = async {
        let mut kills = 0;
        loop {
            let mut killed = machine.worker();
            sleep(Duration::from_secs(1)).await;
            killed.kill().await.unwrap();
            kills += 1;
            if service.engine().totals() == (0, 0) {
                return kills;
            }
        }
    };
    let (kills, ()) = tokio::join!(killing, are_right(&service, &ids));
    assert!(kills > 1, "{kills} kills");
    let charges = service.ledger().await;
    assert_eq!(charges.len(), ids.len(), "each job is charged once");
}

#[tokio::test]
async fn worker_process_stops_the_program_of_a_cancelled_job() {
    let (service, key) = start("1s", "").await;
    let machine = Machine::new(&service, &key);
    let _worker = machine.worker();
    let id = service.create("far", json!({"n": 1, "sleep": 600})).await;
    let pid = until("the log of the program", async || {
        let record = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
        record["logs"].as_str()?.strip_prefix("pid ")?.parse::<u32>().ok()
    })
    .await;
    service.cancel(&id).await.expect(200);
    until("the end of the program", async || (!signal(pid, Signal::CONT)).then_some(())).await;
    are_right(&service, &squares(&service, 4, 0.0).await).await;
}

#[tokio::test]
async fn worker_process_sends_parts_and_files() {
    let (service, key) = start("2s", "").await;
    let machine = Machine::new(&service, &key);
    let worker = machine.worker();
    let id = service.create("far", json!({"n": 3, "sleep": 0})).await;
    assert_eq!(service.ended(&id).await["output"], "3 squared is 9");
    let events = format!("/v1/prediction/{id}/events");
    let events = service.ask(Role::Base, Method::GET, &events).key(&service.key).send().await.text;
    assert!(events.contains("event: output\n") && events.contains("3 squared "), "{events}");
    drop(worker);
    // The output is a file in the program's own folder, which the service does not share.
    let program = r#"read -r line
id=${line#*\"id\":\"}; id=${id%%\"*}
folder=${line#*\"folder\":\"}; folder=${folder%%\"*}
echo hello > "$folder/a.txt"
echo "{\"id\":\"$id\",\"output\":{\"path\":\"a.txt\"}}"
"#;
    std::fs::write(machine.path("square.sh"), program).unwrap();
    let own = std::fs::read_to_string(machine.path("far.toml")).unwrap();
    let own = own.replace("'string'", "'file'") + "mode = 'once'\n";
    std::fs::write(machine.path("far.toml"), own).unwrap();
    service.manifest(&manifest("2s", "").replace("'string'", "'file'"));
    let _worker = machine.worker();
    let record = service.ended(&service.create("far", json!({})).await).await;
    let url = record["output"].as_str().unwrap_or_else(|| panic!("{record}"));
    let path = url.split_once("/v1/").map(|(_, rest)| format!("/v1/{rest}")).unwrap();
    let file = service.ask(Role::Base, Method::GET, &path).send().await;
    assert_eq!((file.status, file.text.as_str()), (200, "hello\n"));
    assert!(file.header("content-type").starts_with("text/plain"));
}

#[tokio::test]
async fn worker_process_finishes_its_jobs_after_sigterm() {
    let (service, key) = start("3s", "").await;
    let machine = Machine::new(&service, &key);
    let mut worker = machine.command().stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(worker.stderr.take().unwrap()).lines();
    let ids = squares(&service, 2, 1.5).await;
    for id in &ids {
        until("a running job", async || {
            let record = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
            record["logs"].as_str()?.strip_prefix("pid ").map(|_| ())
        })
        .await;
    }
    assert!(signal(worker.id().unwrap(), Signal::TERM));
    while !said.next_line().await.unwrap().unwrap().contains("finishing the running jobs") {}
    let late = service.create("far", json!({"n": 2, "sleep": 0})).await;
    are_right(&service, &ids).await;
    let ended = timeout(Duration::from_secs(60), worker.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
    let record = service.get(&format!("/v1/prediction/{late}")).await.expect(200);
    assert_ne!(record["status"], "success", "the worker took no further job");
    let _next = machine.worker();
    assert_eq!(service.ended(&late).await["output"], "2 squared is 4");
}

#[tokio::test]
async fn worker_process_runs_the_model_steps_of_workflows() {
    let (service, key) = start("30s", "").await;
    let machine = Machine::new(&service, &key);
    let _worker = machine.worker();
    let params = json!({"n": 7, "sleep": 0});
    let step = json!({"step_id": "far", "type": "model", "model": "far", "params": params});
    let steps = json!([step]);
    let workflow = service.workflow(steps).await;
    let execution = service.completed(&service.trigger(&workflow, json!({})).await).await;
    assert_eq!(execution["status"], "completed", "{execution}");
    assert!(execution.to_string().contains("7 squared is 49"), "{execution}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn example_worker_runs_jobs() {
    let (service, key) = start("3s", "").await;
    let url = format!("http://{}", service.address(Role::Base));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/worker.py");
    let mut worker = Command::new("python3");
    worker.arg(script).args([&url, "far"]).env("KEY", &key).kill_on_drop(true);
    let _worker = worker.spawn().unwrap();
    are_right(&service, &squares(&service, 20, 0.0).await).await;
    let failed = service.ended(&service.create("far", json!({})).await).await;
    assert_eq!(failed["error"], "the model 'far': KeyError('n')");
}

#[tokio::test]
async fn worker_process_explains_why_it_cannot_work() {
    let (service, key) = start("30s", "").await;
    let machine = Machine::new(&service, &service.key);
    let said = async || {
        let output = machine.command().stderr(Stdio::piped()).output().await.unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let refusal = said().await;
    assert!(refusal.contains("403 Forbidden: this key may not do this"), "{refusal}");
    std::fs::write(machine.path("key"), key).unwrap();
    std::fs::write(machine.path("far.toml"), manifest("30s", "")).unwrap();
    let own = said().await;
    assert!(own.contains("has the runner pull, which is for the service"), "{own}");
    std::fs::write(machine.path("far.toml"), "slug = 'far'\n").unwrap();
    assert!(said().await.contains("far.toml:1:1: `runner` is missing"));
}
