//! Abuse: one hostile request, or many, against the real binary. After each attack the service is
//! still running and answers `/health`, an ordinary prediction still completes, and resident memory
//! stays bounded.
//!
//! `ORRERY_ABUSE_HEALTH_MS` and `ORRERY_ABUSE_RSS_MIB` set the bounds: in a full test run these
//! tests compete with other tests, so the default bounds are wide; `tests/torture/abuse` runs these
//! tests alone with narrow bounds.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::support::http::Client;
use crate::support::server::{Gate, Server};
use crate::support::service::{Service, Setup};
use crate::support::{count_from, eventually};
use orrery_runtime as runtime;

/// Interval between polls of `/health`.
const LOOK_EVERY: Duration = Duration::from_millis(50);
pub(crate) const MIB: u64 = 1024 * 1024;

/// A service under attack, and the record of its health.
pub(crate) struct Target {
    pub setup: Setup,
    service: Service,
    pub key: String,
    watch: Watch,
    _folder: tempfile::TempDir,
}

/// Polls `/health` until dropped; records the slowest response, and the peak memory usage of the
/// service together with its workers.
struct Watch {
    ending: Arc<AtomicBool>,
    slowest_ms: Arc<AtomicU64>,
    resident: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(setup: &Setup, pid: u32) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let slowest_ms = Arc::<AtomicU64>::default();
        let resident = Arc::<AtomicU64>::default();
        let end = Arc::clone(&ending);
        let slowest = Arc::clone(&slowest_ms);
        let most = Arc::clone(&resident);
        let setup = setup.clone();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let asked = runtime::monotonic_now();
                let answer = setup.client("").get("/health");
                assert!(answer.is_ok_and(|answer| answer.status() == 200), "/health fails");
                let took = u64::try_from(asked.elapsed().as_millis()).unwrap();
                slowest.fetch_max(took, Ordering::Relaxed);
                most.fetch_max(resident_with_children(pid), Ordering::Relaxed);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Self { ending, slowest_ms, resident, thread: Some(thread) }
    }
}

/// Returns the resident memory of the service and of its built-in workers. Shared pages of the
/// binary are counted once per process.
fn resident_with_children(pid: u32) -> u64 {
    let parent = format!("PPid:\t{pid}\n");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |child: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.contains(&parent)
    };
    resident_bytes(pid) + pids.filter(is_child).map(resident_bytes).sum::<u64>()
}

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

impl Target {
    fn new(more: &str) -> Self {
        Self::with(more, |setup| setup)
    }

    pub(crate) fn with(more: &str, prepare: impl FnOnce(Setup) -> Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let setup = prepare(Setup::new(folder.path(), &folder.path().join("data"), more));
        let service = setup.start();
        let key = setup.create_key();
        let watch = Watch::start(&setup, service.pid());
        Self { setup, service, key, watch, _folder: folder }
    }

    pub(crate) fn client(&self) -> Client {
        self.setup.client(&self.key)
    }

    /// Creates a workflow and returns its id, or the error response.
    pub(crate) fn create_workflow(
        &self,
        name: &str,
        definition: &Value,
    ) -> Result<String, (u16, String)> {
        let body = json!({"name": name, "description": "d", "definition": definition});
        let made = self.client().post("/v1/workflows", &[], &body.to_string()).unwrap();
        match made.status() {
            201 => Ok(made.json()["workflow_id"].as_str().unwrap().to_owned()),
            status => Err((status, made.text())),
        }
    }

    /// Checks that an ordinary prediction completes, that the service has not restarted, that it
    /// answered `/health` in time throughout, and that its memory stayed bounded.
    fn assert_well(self, attack: &str) {
        self.assert_well_within(attack, 0);
    }

    /// Like `assert_well`, with this many extra MiB of memory for the attack.
    pub(crate) fn assert_well_within(mut self, attack: &str, budget_mib: u64) {
        let mut client = self.client();
        let body = json!({"model": "text-template", "version": "1",
                          "input": {"template": "{{ a }}", "values": {"a": "well"}}});
        let made = client.post("/v1/prediction/", &[], &body.to_string()).unwrap();
        assert_eq!(made.status(), 200, "{attack}: {}", made.text());
        let path =
            format!("/v1/prediction/{}?wait=30", made.json()["predictionID"].as_str().unwrap());
        let ended = client.get(&path).unwrap().json();
        assert_eq!(ended["output"], "well", "{attack}: {ended}");
        assert!(self.service.ended().is_none(), "{attack} ended the process");
        self.watch.ending.store(true, Ordering::Relaxed);
        self.watch.thread.take().unwrap().join().unwrap();
        let slowest = self.watch.slowest_ms.load(Ordering::Relaxed);
        let resident = self.watch.resident.load(Ordering::Relaxed) / MIB;
        println!("{attack}: /health within {slowest} ms, at most {resident} MiB resident");
        let health_ms = u64::from(count_from("ORRERY_ABUSE_HEALTH_MS", 15_000));
        let rss_mib = u64::from(count_from("ORRERY_ABUSE_RSS_MIB", 400));
        assert!(slowest <= health_ms, "{attack}: /health took {slowest} ms");
        assert!(resident <= rss_mib + budget_mib, "{attack}: {resident} MiB resident");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.watch.ending.store(true, Ordering::Relaxed);
    }
}

/// Creates one prediction per input, waits until all have ended, and returns their records.
fn run_all(target: &Target, model: &str, inputs: &[Value]) -> Vec<Value> {
    let mut client = target.client();
    let mut ids = Vec::new();
    for input in inputs {
        let body = json!({"model": model, "version": "1", "input": input}).to_string();
        let made = client.post("/v1/prediction/", &[], &body).unwrap();
        if made.status() == 200 {
            ids.push(made.json()["predictionID"].as_str().unwrap().to_owned());
        } else {
            assert!([400, 413, 429, 503].contains(&made.status()), "{}", made.text());
        }
    }
    let read = |id: &String| {
        eventually("the prediction ends", || {
            let seen = client.get(&format!("/v1/prediction/{id}?wait=30")).unwrap().json();
            (!seen["completed_at"].is_null()).then_some(seen)
        })
    };
    ids.iter().map(read).collect()
}

#[test]
fn image_that_scales_to_gigabytes_is_cropped_or_rejected() {
    let target = Target::new("");
    let mut png = std::io::Cursor::new(Vec::new());
    image::GrayImage::new(10_000, 1).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let uri = format!("data:image/png;base64,{}", BASE64.encode(png.into_inner()));
    let input = json!({"image": uri, "fit": "cover", "width": 4096, "height": 4096});
    for seen in run_all(&target, "image-resize", &vec![input; 8]) {
        assert!(["success", "error"].contains(&seen["status"].as_str().unwrap()), "{seen}");
    }
    target.assert_well("an image that scales to gigabytes");
}

#[test]
fn schema_that_expands_exponentially_is_rejected() {
    let target = Target::new("");
    let mut definitions = json!({"d40": {"type": "string"}});
    for level in 0..40 {
        let next = format!("#/$defs/d{}", level + 1);
        definitions[format!("d{level}")] = json!({"allOf": [{"$ref": next}, {"$ref": next}]});
    }
    let chain = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}},
                       "$defs": definitions});
    let hundred = vec![json!({"$ref": "#"}); 100];
    let wide = json!({"type": "object", "allOf": hundred});
    let steps = json!([{"step_id": "a", "type": "pass", "result": 1}]);
    for (name, schema) in [("chain", chain), ("wide", wide)] {
        let definition = json!({"steps": steps, "input_schema": schema});
        match target.create_workflow(name, &definition) {
            Err((status, text)) => assert_eq!(status, 400, "{text}"),
            Ok(id) => {
                let body = json!({"inputs": {"a": "x"}}).to_string();
                let path = format!("/v1/workflows/{id}/trigger");
                let answer = target.client().post(&path, &[], &body).unwrap();
                assert!([202, 400].contains(&answer.status()), "{}", answer.text());
            }
        }
    }
    target.assert_well("a schema that expands exponentially");
}

#[test]
fn list_with_a_hundred_thousand_entries_is_rejected() {
    let target = Target::new("");
    let many: Vec<String> = (0..120_000).map(|n| n.to_string()).collect();
    let body = json!({"name": "n", "description": "d", "tags": many, "categories": many,
                      "definition": {"steps": [{"step_id": "a", "type": "pass", "result": 1}]}});
    let body = body.to_string();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let answer = target.client().post("/v1/workflows", &[], &body).unwrap();
                assert_eq!(answer.status(), 400, "{}", answer.text());
            });
        }
    });
    target.assert_well("lists with 120,000 entries");
}

#[test]
fn bodies_without_key_use_no_memory() {
    let target = Target::new("");
    let address = target.setup.base();
    let filler = vec![b'x'; 1024 * 1024];
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let id = "00000000-0000-7000-8000-000000000000";
        let head = format!(
            "POST /v1/public/{id}/versions/v1/trigger HTTP/1.1\r\nHost: {address}\r\n\
             Content-Length: 8388608\r\n\r\n{{\"inputs\":{{\"a\":\""
        );
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..7 {
            // The service may respond and close the connection at any moment: it does not store
            // rejected data.
            if stream.write_all(&filler).is_err() {
                break;
            }
        }
        held.push(stream);
    }
    target.assert_well("60 bodies of 7 MiB without a key");
}

#[test]
fn clients_that_do_not_read_block_nobody() {
    let target = Target::new("[limits]\nconnections = 64\nwrite_timeout = \"3s\"\n");
    let address = target.setup.base();
    let request = format!("GET /openapi.json HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(400);
    let slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            let _sent_or_full = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    // The control socket and the metrics listener have their own permits.
    assert!(target.setup.run(&["key", "list"]).contains("test"));
    assert!(target.setup.metric("orrery_executions_queued").is_some());
    let mut ended = 0;
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut sink = vec![0; 64 * 1024];
        while stream.read(&mut sink).is_ok_and(|read| read > 0) {}
        drop(stream.shutdown(Shutdown::Both));
        ended += 1;
    }
    assert_eq!(ended, 40);
    target.assert_well("40 clients that do not read");
}

#[test]
fn storm_of_large_pages_leaves_memory_bounded() {
    let target = Target::new("");
    let page = "<div><p>word <b>bold</b></p><ul><li>item</li></ul></div>".repeat(8_000);
    let inputs = vec![json!({"html": page}); 24];
    for seen in run_all(&target, "html-to-text", &inputs) {
        assert!(["success", "error"].contains(&seen["status"].as_str().unwrap()), "{seen}");
    }
    // Each worker maps the binary, so its pages are counted again; a debug build has many pages.
    target.assert_well_within("24 pages of 440 kB", 150);
}

#[test]
fn copies_of_one_input_are_stored_once() {
    let target = Target::new("");
    let steps: Vec<Value> = (0..100)
        .map(|n| json!({"step_id": format!("p{n}"), "type": "pass", "result": "{{inputs.a}}"}))
        .collect();
    let workflow = target.create_workflow("copies", &json!({"steps": steps})).unwrap();
    let body = json!({"inputs": {"a": "x".repeat(6 * 1024 * 1024)}}).to_string();
    let mut client = target.client();
    let made = client.post(&format!("/v1/workflows/{workflow}/trigger"), &[], &body).unwrap();
    assert_eq!(made.status(), 202, "{}", made.text());
    let id = made.json()["execution_id"].as_str().unwrap().to_owned();
    eventually("the execution ends", || {
        let path = format!("/v1/workflows/{workflow}/executions");
        let list = client.get(&path).unwrap().json();
        let status = list["executions"][0]["status"].as_str().unwrap().to_owned();
        assert_eq!(list["executions"][0]["execution_id"], id.as_str());
        ["completed", "failed"].contains(&status.as_str()).then_some(())
    });
    let stored = folder_bytes(&target.setup.data().join("payloads"));
    assert!(stored < 64 * MIB, "{} MiB of payloads for an input of 6", stored / MIB);
    target.assert_well("100 copies of a 6 MiB input");
}

pub(crate) fn folder_bytes(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_removed_meanwhile) => 0,
    };
    entries.flatten().map(bytes).sum()
}

#[test]
fn hanging_workflows_starve_no_model() {
    let gate = Gate::default();
    let held = gate.clone();
    let server = Server::start(move |_request| {
        held.pass();
        (200, "{}".to_owned())
    });
    let target = Target::new("[engine]\nactive = 40\n");
    let step =
        json!({"step_id": "a", "type": "http", "url": server.url("/"), "timeout_seconds": 300});
    for name in ["one", "two"] {
        let workflow = target.create_workflow(name, &json!({"steps": [step]})).unwrap();
        let body = json!({"inputs": vec![json!({}); 10]}).to_string();
        for _ in 0..3 {
            let path = format!("/v1/workflows/{workflow}/bulk-trigger");
            let made = target.client().post(&path, &[], &body).unwrap();
            assert_eq!(made.status(), 202, "{}", made.text());
        }
    }
    eventually("the steps hang", || (gate.held() >= 20).then_some(()));
    // `assert_well` runs a prediction to completion while all of these executions hang.
    target.assert_well("two workflows of 30 executions that hang");
    gate.open();
}

#[test]
fn test_deliveries_respect_endpoint_concurrency_limit() {
    let gate = Gate::default();
    let held = gate.clone();
    let receiver = Server::start(move |_request| {
        held.pass();
        (200, "{}".to_owned())
    });
    let target = Target::new("");
    let body = json!({"url": receiver.url("/hook"), "webhook_secret": "s"}).to_string();
    let most = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut client = target.client();
        let body = body.clone();
        clients.push(std::thread::spawn(move || {
            let answer = client.post("/v1/webhooks/test", &[], &body);
            answer.map(|answer| answer.status()).unwrap_or_default()
        }));
    }
    eventually("deliveries arrive", || (gate.held() > 0).then_some(()));
    let until = runtime::monotonic_now() + Duration::from_secs(1);
    while runtime::monotonic_now() < until {
        most.fetch_max(u64::try_from(gate.held()).unwrap(), Ordering::Relaxed);
        std::thread::yield_now();
    }
    gate.open();
    for client in clients {
        let status = client.join().unwrap();
        assert!([200, 429, 503].contains(&status), "{status}");
    }
    // `webhooks.in_flight_per_receiver` is 16.
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 16, "{most} test deliveries at once to one receiver");
    target.assert_well("100 test deliveries to one receiver");
}
