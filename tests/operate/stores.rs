//! Stores of each released version, opened by the current one: `tests/stores/VERSION.tar.zst` is a
//! data folder of a release that was killed during work, with the manifest of its model and its
//! recorded responses.
//!
//! `tests/stores/make` creates the file of the current release; a test in this file does the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::support::server::{Gate, Server};
use crate::support::service::{Service, Setup};
use crate::support::{eventually, signal};

/// Where to write the file of the current release, for `tests/stores/make`.
const MAKE: &str = "ORRERY_MAKE_STORE";
/// The file of recorded responses inside the archive.
const KNOWN: &str = "known.json";
const SECRET: &str = "the value of the secret";
/// Size limit of an archive, because the repository contains one per release.
const FILE_BYTES_MAX: u64 = 200 * 1024;
const PAYLOAD_BYTES: usize = 90_000;

/// Three workflows: one sends a secret, one waits for a person, and one waits for longer than the
/// test runs.
const ORGANIZATIONS: &str = r#"
organizations:
  default:
    limits: {running: 40, storage_bytes: 1000000000}
    secrets:
      vault: {file: vault}
    chains:
      safe: {model: broken, entries: [{model: text-template, input_map: {template: "no answer"}}]}
    workflows:
      greeting:
        name: Greeting
        description: Says hello, and proves who it is
        definition: {steps: [
          {step_id: say, type: pass, result: "hello {{inputs.name}}"},
          {step_id: tell, type: http, url: "{{inputs.url}}", method: POST,
           headers: {X-Proof: "{{secrets.vault}}"}, body: {said: "{{say.output}}"}}]}
      asks:
        name: Asks
        description: Waits for a person
        definition: {steps: [{step_id: ask, type: wait, event: {name: approval, timeout_seconds: 86400}}]}
      later:
        name: Later
        description: Waits
        definition: {steps: [{step_id: wait, type: wait, seconds: 80000}]}
    schedules:
      yearly: {workflow: greeting, cron: "0 0 1 1 *", timezone: Europe/Berlin}
      monthly: {model: text-template, version: "1", input: {template: x}, cron: "@monthly"}
    webhook_endpoints:
      orders: {url: "http://127.0.0.1:9/orders", events: [workflow.failed]}
  acme:
    keys:
      ci: null
"#;

/// Starts the model server and webhook receiver. While the gate is closed, the model's answers
/// wait.
fn world(gate: Gate) -> Server {
    Server::start(move |request| match request.second_word() {
        "/slow" => {
            gate.pass();
            (200, r#"{"said": "done"}"#.to_owned())
        }
        "/broken" => (500, "{}".to_owned()),
        "/proof" if request.header("x-proof") != Some(SECRET) => (403, "{}".to_owned()),
        _ => (200, "{}".to_owned()),
    })
}

fn manifest(slug: &str, url: &str) -> String {
    format!(
        "slug = '{slug}'\noutput_type = 'object'\nconcurrency = 1\ntimeout = '1h'\n\
         [cost]\ntype = 'fixed'\namount = 0.25\n[runner]\ntype = 'http'\nurl = '{url}'\n"
    )
}

/// A service on a store, and the recorded responses.
struct Subject {
    setup: Setup,
    key: String,
}

impl Subject {
    fn new(folder: &Path, key: String, world: &Server) -> Self {
        let setup = Setup::new(folder, &folder.join("data"), "[billing]\nenabled = true\n");
        for (slug, path) in [("slow", "/slow"), ("broken", "/broken")] {
            setup.add_model(slug, &manifest(slug, &world.url(path)));
        }
        Self { setup, key }
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.setup.client(&self.key).get(path).unwrap();
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
        answer.json()
    }

    fn post(&self, path: &str, more: &[(&str, &str)], body: &str) -> Value {
        let answer = self.setup.client(&self.key).post(path, more, body).unwrap();
        assert!((200..300).contains(&answer.status()), "{path}: {}", answer.text());
        serde_json::from_str(&answer.text()).unwrap_or(Value::Null)
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        self.post(path, &[], &body.to_string())
    }

    fn predict(&self, model: &str, input: &Value, webhook: &str) -> String {
        let body = json!({"model": model, "version": "1", "input": input, "webhook_url": webhook});
        text(&self.ask("/v1/prediction/", &body)["predictionID"])
    }

    fn trigger(&self, workflow: &str, inputs: &Value) -> String {
        let path = format!("/v1/workflows/{workflow}/trigger");
        text(&self.ask(&path, &json!({ "inputs": inputs }))["execution_id"])
    }

    fn run_of(&self, id: &str) -> Value {
        self.get(&format!("/v1/workflows/executions/{id}?timeout=0"))
    }

    fn prediction(&self, id: &str) -> Value {
        // Without `wait=0`, the request would wait for the end.
        self.get(&format!("/v1/prediction/{id}?wait=0"))
    }

    fn wait_for_prediction(&self, id: &str, status: &str) {
        eventually(&format!("{id} is {status}"), || {
            (self.prediction(id)["status"] == status).then_some(())
        });
    }

    fn wait_for_run(&self, id: &str, status: &str) {
        eventually(&format!("{id} is {status}"), || {
            (self.run_of(id)["status"] == status).then_some(())
        });
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

/// Stops the service as an operator would, so that the tree contains all rows.
fn stop(mut service: Service) {
    assert!(signal(service.pid(), rustix::process::Signal::TERM));
    eventually("the service stops", || service.ended());
}

/// Fills a new store in `folder` with one resource of each kind, kills the service, and returns its
/// responses.
fn fill(folder: &Path) -> Value {
    let gate = Gate::default();
    let world = world(gate.clone());
    fs::write(folder.join("vault"), SECRET).unwrap();
    fs::write(folder.join("organizations.yaml"), ORGANIZATIONS).unwrap();
    let mut subject = Subject::new(folder, String::new(), &world);
    let service = subject.setup.start();
    subject.key = subject.setup.create_key();
    let file = folder.join("organizations.yaml");
    subject.setup.run(&["apply", "-f", file.to_str().unwrap()]);
    subject.setup.run(&["balance", "top-up", "--amount", "12.5"]);
    let known = finished(&subject, &world);
    stop(service);
    // Unfinished work is only in the log.
    let service = subject.setup.start();
    let known = unfinished(&subject, known);
    service.kill();
    gate.open();
    known
}

/// Creates work that completes; returns the paths whose responses must not change, with these
/// responses.
fn finished(subject: &Subject, world: &Server) -> Map<String, Value> {
    let hook = world.url("/hook");
    let large = "a large payload ".repeat(PAYLOAD_BYTES / 16);
    let good = subject.predict("text-language", &json!({"text": "What a night!"}), &hook);
    let bad = subject.predict("image-resize", &json!({"image": "data:,x", "width": 1}), &hook);
    let big = subject.predict("text-template", &json!({ "template": large }), &hook);
    let chained = json!({"model": "broken", "version": "1", "fallback_selector": "safe",
        "input": {"n": 1}});
    let chained = text(&subject.ask("/v1/prediction/", &chained)["predictionID"]);
    let once = [("Idempotency-Key", "order-7")];
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "Bonjour !"}}"#;
    let repeated = text(&subject.post("/v1/prediction/", &once, body)["predictionID"]);
    let inputs = json!({"name": "Ada", "url": world.url("/proof")});
    let run = subject.trigger("greeting", &inputs);
    for id in [&good, &big, &chained, &repeated] {
        subject.wait_for_prediction(id, "success");
    }
    subject.wait_for_prediction(&bad, "error");
    subject.wait_for_run(&run, "completed");
    let form = "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
        Content-Type: text/plain\r\n\r\nthe bytes of a file\r\n--b0--\r\n";
    let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
    let file = text(&subject.post("/v1/files", &form_type, form)["id"]);
    eventually("the webhooks are delivered", || {
        let delivered =
            subject.setup.metric("orrery_webhook_deliveries_total{outcome=\"delivered\"}")?;
        (delivered >= 3.0).then_some(())
    });
    let mut paths = vec![
        format!("/v1/workflows/executions/{run}"),
        format!("/v1/files/{file}"),
        "/v1/workflows/greeting".to_owned(),
        "/v1/workflows/greeting/versions".to_owned(),
        "/v1/schedules".to_owned(),
        "/v1/secrets".to_owned(),
        "/v1/webhook-endpoints".to_owned(),
        "/v1/billing/balance".to_owned(),
    ];
    for id in [&good, &bad, &big, &chained, &repeated] {
        paths.push(format!("/v1/prediction/{id}"));
    }
    for id in [&good, &bad, &big] {
        paths.push(format!("/v1/webhooks/{id}"));
    }
    let mut known = Map::new();
    known.insert("file".to_owned(), file.into());
    known.insert("repeated".to_owned(), repeated.into());
    let answers = paths.into_iter().map(|path| (path.clone(), subject.get(&path)));
    known.insert("answers".to_owned(), Value::Object(answers.collect()));
    known
}

/// Creates work that is unfinished when the service is killed.
fn unfinished(subject: &Subject, mut known: Map<String, Value>) -> Value {
    let dead = "http://127.0.0.1:9/hook";
    let running = subject.predict("slow", &json!({"n": 1}), dead);
    let queued = subject.predict("slow", &json!({"n": 2}), dead);
    let asks = subject.trigger("asks", &json!({}));
    let later = subject.trigger("later", &json!({}));
    let undelivered = subject.predict("text-language", &json!({"text": "Good night."}), dead);
    subject.wait_for_prediction(&running, "processing");
    subject.wait_for_prediction(&undelivered, "success");
    for id in [&asks, &later] {
        eventually("it waits", || {
            let waits = subject.run_of(id)["waiting_for"].as_array().map(Vec::len);
            (waits == Some(1)).then_some(())
        });
    }
    eventually("an attempt has failed", || {
        let delivery = subject.get(&format!("/v1/webhooks/{undelivered}"));
        (!delivery["attempts"].as_array()?.is_empty()).then_some(())
    });
    let lists = [
        ("org", ["org", "list", "--json"]),
        ("chain", ["chain", "list", "--json"]),
        ("key", ["key", "list", "--json"]),
    ];
    let lists = lists.map(|(name, line)| {
        let listed: Value = serde_json::from_str(&subject.setup.run(&line)).unwrap();
        (name.to_owned(), listed)
    });
    known.insert("lists".to_owned(), Value::Object(lists.into_iter().collect()));
    for (name, id) in [
        ("running", running),
        ("queued", queued),
        ("asks", asks),
        ("later", later),
        ("undelivered", undelivered),
    ] {
        known.insert(name.to_owned(), id.into());
    }
    known.insert("key".to_owned(), subject.key.clone().into());
    known.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    known.insert("made_at".to_owned(), seconds().into());
    Value::Object(known)
}

#[expect(clippy::disallowed_methods, reason = "nothing here runs on the code that it tests")]
fn seconds() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs().cast_signed()
}

/// Packs the data folder in `folder` with the recorded responses.
fn pack(folder: &Path, known: &Value, into: &Path) {
    let encoder = zstd::Encoder::new(File::create(into).unwrap(), 19).unwrap();
    let mut tar = tar::Builder::new(encoder);
    for name in ["ballast", "control.sock", "control.token", "lock", "work"] {
        let path = folder.join("data").join(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else if fs::symlink_metadata(&path).is_ok() {
            fs::remove_file(path).unwrap();
        }
    }
    tar.append_dir_all("data", folder.join("data")).unwrap();
    fs::write(folder.join(KNOWN), serde_json::to_vec_pretty(known).unwrap()).unwrap();
    tar.append_path_with_name(folder.join(KNOWN), KNOWN).unwrap();
    tar.into_inner().unwrap().finish().unwrap();
}

fn unpack(file: &Path, folder: &Path) -> Value {
    let decoder = zstd::Decoder::new(File::open(file).unwrap()).unwrap();
    tar::Archive::new(decoder).unpack(folder).unwrap();
    serde_json::from_slice(&fs::read(folder.join(KNOWN)).unwrap()).unwrap()
}

/// Opens an unpacked store with this release, verifies it, reads everything, and completes the
/// unfinished work.
fn open(folder: &Path, known: &Value) {
    let gate = Gate::default();
    let world = world(gate.clone());
    let subject = Subject::new(folder, text(&known["key"]), &world);
    // The store's clock is set to a minute after the store's creation, so that nothing has expired,
    // however old the file is.
    subject.setup.shift_clock(known["made_at"].as_i64().unwrap() + 60 - seconds());
    assert_whole(&subject.setup);
    let service = subject.setup.start();
    let running = text(&known["running"]);
    eventually("the prediction that ran runs again", || {
        (subject.prediction(&running)["status"] == "processing").then_some(())
    });
    assert_settled(&subject, known);
    assert_waiting(&subject, known);
    gate.open();
    assert_goes_on(&subject, known, &world);
    stop(service);
    assert_whole(&subject.setup);
}

fn assert_whole(setup: &Setup) {
    let report: Value = serde_json::from_str(&setup.run(&["verify", "--json"])).unwrap();
    assert_eq!(report["faults"], json!([]), "{report}");
    assert!(report["rows"].as_u64().unwrap() > 50, "{report}");
    assert!(report["payloads"].as_u64().unwrap() > 0 && report["files"] == 1, "{report}");
}

/// Checks that completed work is unchanged.
fn assert_settled(subject: &Subject, known: &Value) {
    for (path, then) in known["answers"].as_object().unwrap() {
        assert_kept(path, &plain(then), &plain(&subject.get(path)));
    }
    for (name, then) in known["lists"].as_object().unwrap() {
        let now = subject.setup.run(&[name, "list", "--json"]);
        assert_kept(name, &plain(then), &plain(&serde_json::from_str(&now).unwrap()));
    }
    let content = format!("/v1/files/{}/content", text(&known["file"]));
    assert_eq!(
        subject.setup.client(&subject.key).get(&content).unwrap().text(),
        "the bytes of a file"
    );
    // A repeated request gets the same response, so nothing runs twice.
    let once = [("Idempotency-Key", "order-7")];
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "Bonjour !"}}"#;
    let again = subject.post("/v1/prediction/", &once, body);
    assert_eq!(again["predictionID"], known["repeated"]);
    let ledger = subject.setup.run(&["balance", "ledger", "--json"]);
    assert!(ledger.contains("12.5"), "{ledger}");
    let audit = subject.setup.run(&["audit", "list", "--action", "secret", "--json"]);
    assert!(audit.contains("vault") && !audit.contains(SECRET), "{audit}");
}

/// Checks that unfinished work is still waiting after the upgrade.
fn assert_waiting(subject: &Subject, known: &Value) {
    let [running, queued, asks, later, undelivered] =
        ["running", "queued", "asks", "later", "undelivered"].map(|name| text(&known[name]));
    for id in [&running, &queued] {
        let status = text(&subject.prediction(id)["status"]);
        assert!(["created", "processing"].contains(&&*status), "{id} is {status}");
    }
    for id in [&asks, &later] {
        assert_eq!(subject.run_of(id)["waiting_for"].as_array().map(Vec::len), Some(1));
    }
    let delivery = subject.get(&format!("/v1/webhooks/{undelivered}"));
    assert_eq!(delivery["url"], "http://127.0.0.1:9/hook", "{delivery}");
    assert!(!delivery["attempts"].as_array().unwrap().is_empty(), "{delivery}");
}

/// Checks that work continues: the model answers, a person sends an event, a client cancels, and
/// stored workflows run.
fn assert_goes_on(subject: &Subject, known: &Value, world: &Server) {
    for name in ["running", "queued"] {
        let id = text(&known[name]);
        subject.wait_for_prediction(&id, "success");
        assert_eq!(subject.prediction(&id)["output"]["said"], "done");
    }
    let asks = text(&known["asks"]);
    let answer = json!({"payload": {"approved": true}});
    subject.ask(&format!("/v1/workflows/executions/{asks}/events/approval"), &answer);
    subject.wait_for_run(&asks, "completed");
    let later = text(&known["later"]);
    subject.ask(&format!("/v1/workflows/executions/{later}/cancel"), &json!({}));
    subject.wait_for_run(&later, "cancelled");
    // The workflow uses the secret that the old release sealed.
    let inputs = json!({"name": "Grace", "url": world.url("/proof")});
    subject.wait_for_run(&subject.trigger("greeting", &inputs), "completed");
    let balance = subject.get("/v1/billing/balance").to_string();
    assert!(balance.contains("12"), "both predictions cost 0.25: {balance}");
}

/// Returns the value without parts that differ between starts: the service's address and the
/// signatures of links.
fn plain(value: &Value) -> Value {
    match value {
        Value::String(text) if text.starts_with("http://127.") => {
            let path = text.splitn(4, '/').nth(3).unwrap_or_default();
            Value::String(path.split('?').next().unwrap_or_default().to_owned())
        }
        Value::Array(all) => all.iter().map(plain).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != "last_used_at");
            Value::Object(kept.map(|(name, value)| (name.clone(), plain(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Checks that everything recorded is still present; there may be additional fields.
fn assert_kept(path: &str, then: &Value, now: &Value) {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            for (name, value) in then {
                let found = now.get(name).unwrap_or(&Value::Null);
                assert_kept(&format!("{path} {name}"), value, found);
            }
        }
        (Value::Array(then), Value::Array(now)) => {
            assert_eq!(then.len(), now.len(), "{path}: {now:?}");
            for (then, now) in then.iter().zip(now) {
                assert_kept(path, then, now);
            }
        }
        (then, now) => assert_eq!(now, then, "{path}"),
    }
}

/// Returns the archives of all releases, sorted by name.
fn kept() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "zst")).collect();
    files.sort();
    files
}

#[test]
fn store_of_every_release_opens_and_goes_on() {
    let files = kept();
    assert!(!files.is_empty());
    for file in files {
        let folder = tempfile::tempdir().unwrap();
        let known = unpack(&file, folder.path());
        let name = format!("{}.tar.zst", text(&known["version"]));
        assert_eq!(file.file_name().unwrap().to_str(), Some(&*name));
        open(folder.path(), &known);
    }
}

#[test]
fn store_of_this_release_can_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let known = fill(folder.path());
    let file =
        std::env::var_os(MAKE).map_or_else(|| folder.path().join("store.tar.zst"), PathBuf::from);
    pack(folder.path(), &known, &file);
    let bytes = fs::metadata(&file).unwrap().len();
    assert!(bytes <= FILE_BYTES_MAX, "{bytes} bytes");
    let again = tempfile::tempdir().unwrap();
    let known = unpack(&file, again.path());
    open(again.path(), &known);
}
