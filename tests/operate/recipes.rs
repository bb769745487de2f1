//! `orrery model add`: each recipe's manifest is valid, and a call through the service reaches the
//! server as the server expects it.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stub::{Stub, respond};
use crate::support::http::{Client, Message};
use crate::support::service::{Service, Setup};

/// A file whose name and type a server must keep.
const FORM: &str = "--b0\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nSLUG\r\n--b0\r\n\
    Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
    Content-Type: audio/wav\r\n\r\nRIFF....WAVE\r\n--b0--\r\n";
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg==";
/// A graph of ComfyUI, and whether its prompt has ended.
const GRAPH: &str = r#"{"1": {"class_type": "Say", "inputs": {"text": "a dog"}}}"#;
static GRAPH_ENDED: AtomicBool = AtomicBool::new(false);
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];

/// Answers as the real servers do, if the request has what they require.
fn serve(request: &Message, out: &mut TcpStream) {
    let body = String::from_utf8_lossy(&request.body).into_owned();
    let value: Value = serde_json::from_str(&body).unwrap_or_default();
    let (path, text) = (request.second_word(), "done");
    match path {
        "/v1/chat/completions" if value["messages"].is_array() && value["model"] == "m" => {
            let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let events = format!("data: {chunk}\n\ndata: {end}\n\ndata: [DONE]\n\n");
            respond(out, 200, &[("Content-Type", "text/event-stream")], events.as_bytes());
        }
        "/v1/embeddings" if value["input"].is_string() => {
            let data = json!([{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]);
            let usage = json!({"prompt_tokens": 1, "total_tokens": 1});
            let answer = json!({"object": "list", "data": data, "model": "m", "usage": usage});
            respond(out, 200, JSON, answer.to_string().as_bytes());
        }
        "/v1/audio/transcriptions" if body.contains("name=\"file\"; filename=") => {
            respond(out, 200, JSON, json!({"text": text}).to_string().as_bytes());
        }
        "/v1/images/generations" if value["prompt"].is_string() => {
            let answer = json!({"created": 1, "data": [{"b64_json": PNG}]});
            respond(out, 200, JSON, answer.to_string().as_bytes());
        }
        // Flask labels all bytes as a page.
        "/synthesize" if value["text"].is_string() => {
            respond(out, 200, &[("Content-Type", "text/html; charset=utf-8")], b"RIFF....WAVE");
        }
        "/object_info/Say" => {
            let text = json!({"text": ["STRING", {}]});
            let answer = json!({"Say": {"input": {"required": text}}}).to_string();
            respond(out, 200, JSON, answer.as_bytes());
        }
        "/system_stats" => respond(out, 200, JSON, b"{}"),
        "/queue" => respond(out, 200, JSON, br#"{"queue_running": [], "queue_pending": []}"#),
        "/prompt" if value["prompt"]["1"]["inputs"]["text"] == "a cat" => {
            GRAPH_ENDED.store(true, Ordering::SeqCst);
            let answer = json!({"prompt_id": value["prompt_id"]}).to_string();
            respond(out, 200, JSON, answer.as_bytes());
        }
        _ if path.starts_with("/history/") => {
            let id = path.trim_start_matches("/history/");
            let image =
                json!({"images": [{"filename": "a.png", "subfolder": "", "type": "output"}]});
            let ended = json!({id: {"outputs": {"1": image}}});
            let is_ended = GRAPH_ENDED.load(Ordering::SeqCst);
            let answer = if is_ended { ended } else { json!({}) }.to_string();
            respond(out, 200, JSON, answer.as_bytes());
        }
        _ if path.starts_with("/view?") => {
            respond(out, 200, &[("Content-Type", "image/png")], b"PNG");
        }
        "/v1/models" => {
            respond(out, 200, JSON, json!({"object": "list", "data": []}).to_string().as_bytes());
        }
        _ => respond(out, 404, JSON, br#"{"error": "unexpected request"}"#),
    }
}

struct Place {
    folder: TempDir,
    setup: Setup,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
        Self { folder, setup }
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models.d")
    }

    fn add(&self, arguments: &[&str]) -> (bool, String, String) {
        self.setup.try_run(&[&["model", "add"][..], arguments].concat())
    }

    fn adds(&self, arguments: &[&str]) -> String {
        let (is_good, printed, said) = self.add(arguments);
        assert!(is_good, "{arguments:?}: {printed} {said}");
        said
    }

    fn refuses(&self, arguments: &[&str]) -> String {
        let (is_good, printed, said) = self.add(arguments);
        assert!(!is_good, "{arguments:?}: {printed} {said}");
        said
    }

    fn start(&self) -> (Service, Client) {
        let service = self.setup.start();
        let key = self.setup.create_key();
        (service, self.setup.client(&key))
    }
}

/// Runs a prediction and returns its output.
fn predict(client: &mut Client, slug: &str, input: Value) -> Value {
    let body = json!({"model": slug, "version": "1", "input": input}).to_string();
    let answer = client.post("/v1/prediction/run", &[], &body).unwrap().json();
    assert_eq!(answer["status"], "success", "{slug}: {answer}");
    answer["output"].clone()
}

/// Calls a recipe's model once.
fn call(client: &mut Client, recipe: &str) {
    match recipe {
        "llama-server" | "vllm" | "ollama" => {
            let messages = json!([{"role": "user", "content": "hi"}]);
            let body = json!({"model": recipe, "messages": messages}).to_string();
            let answer = client.post("/v1/chat/completions", &[], &body).unwrap().json();
            assert_eq!(answer["choices"][0]["message"]["content"], "done", "{recipe}: {answer}");
        }
        "tei" => {
            let body = json!({"model": recipe, "input": "hi"}).to_string();
            let answer = client.post("/v1/embeddings", &[], &body).unwrap().json();
            assert_eq!(answer["data"][0]["embedding"], json!([0.5, 0.25]), "{answer}");
        }
        "whisper-server" | "speaches" => {
            let kind = [("Content-Type", "multipart/form-data; boundary=b0")];
            let form = FORM.replace("SLUG", recipe);
            let answer = client.post("/v1/audio/transcriptions", &kind, &form).unwrap();
            assert_eq!(answer.json()["text"], "done", "{recipe}: {}", answer.text());
        }
        "piper" => {
            let output = predict(client, recipe, json!({"text": "hi"}));
            assert!(output.as_str().unwrap().starts_with("http"), "{output}");
        }
        "sd-server" | "diffusers" => {
            let output = predict(client, recipe, json!({"prompt": "a cat"}));
            assert!(output.as_str().unwrap().starts_with("http"), "{output}");
        }
        "comfyui" => {
            let output = predict(client, recipe, json!({"text": "a cat"}));
            assert!(output.as_str().unwrap().starts_with("http"), "{output}");
        }
        other => panic!("the recipe {other} has no call here"),
    }
}

/// Returns the names of all recipes, and whether the service can start their servers.
fn recipes(place: &Place) -> Vec<(String, bool)> {
    let listed = place.setup.run(&["model", "add", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let row = |row: &Value| {
        (row["recipe"].as_str().unwrap().to_owned(), row["starts"].as_bool().unwrap())
    };
    listed.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn recipes_call_servers_that_run_already() {
    let place = Place::new();
    let server = Stub::start(serve);
    let url = server.url("/");
    let all = recipes(&place);
    // `diffusers` needs no server.
    let all = all.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "diffusers");
    let all: Vec<&str> = all.collect();
    let graph = place.folder.path().join("exported.json");
    fs::write(&graph, GRAPH).unwrap();
    for recipe in &all {
        let named = ["llama-server", "vllm", "ollama", "speaches"].contains(recipe);
        let model: &[&str] = match *recipe {
            "comfyui" => &["--graph", graph.to_str().unwrap()],
            _ if named => &["--model", "m"],
            _ => &[],
        };
        let said = place.adds(&[&[*recipe, "--url", url.as_str()][..], model].concat());
        assert!(said.starts_with("Try it: ") && said.contains(recipe), "{said}");
    }
    let (_service, mut client) = place.start();
    for recipe in all {
        call(&mut client, recipe);
    }
    let texts: String = server.requests().iter().map(Message::text).collect();
    assert!(texts.contains("audio/wav"), "the type of the file is kept");
}

#[test]
fn model_add_lists_recipes_and_never_replaces_a_manifest() {
    let place = Place::new();
    let (_, printed, _) = place.add(&[]);
    assert!(printed.starts_with("RECIPE"), "{printed}");
    let row = printed.lines().find(|line| line.starts_with("ollama")).unwrap();
    assert!(row.ends_with("Chat with a model of the Ollama on this machine"), "{row}");
    let said = place.refuses(&["olama", "--model", "m"]);
    assert!(said.contains("no recipe olama; the recipes are llama-server, vllm"), "{said}");
    assert!(place.refuses(&["ollama"]).contains("the recipe ollama needs --model NAME"));
    place.adds(&["ollama", "--model", "first"]);
    let manifest = place.models().join("ollama.toml");
    assert_eq!(fs::metadata(&manifest).unwrap().permissions().mode() & 0o022, 0);
    let said = place.refuses(&["ollama", "--model", "second"]);
    assert!(said.contains("exists already: choose another --slug"), "{said}");
    assert!(fs::read_to_string(&manifest).unwrap().contains("model = \"first\""));
    place.adds(&["ollama", "--model", "second", "--force"]);
    assert!(fs::read_to_string(&manifest).unwrap().contains("model = \"second\""));
    place.adds(&["ollama", "--model", "m", "--slug", "team/chat"]);
    assert!(place.models().join("team-chat.toml").is_file());
    let said = place.refuses(&["sd-server", "--model", "none.gguf"]);
    assert!(said.contains("there is no file none.gguf"), "{said}");
    // The manifest is written, although its server is not installed yet.
    fs::write(place.models().join("tiny.bin"), "").unwrap();
    let missing = ["whisper-server", "--model", "tiny.bin", "--slug", "later"];
    let said = place.refuses(&missing);
    assert!(said.contains("the program 'whisper-server' does not exist"), "{said}");
    assert!(place.models().join("later.toml").is_file());
    let left = fs::read_dir(place.models()).unwrap();
    let left = left
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with(".new-"));
    assert_eq!(left.count(), 0);
}

/// A program that accepts the options of a real server and answers like it.
const SERVER: &str = include_str!("../it/workers/recipe_server.py");

/// Writes a program.
fn install(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
#[ignore = "needs python3: run tests/run"]
fn recipes_start_their_servers() {
    let place = Place::new();
    let models = place.models();
    // The runner `command` and `python3 -m` look for modules in the models folder.
    install(&models.join("piper/http_server.py"), SERVER);
    install(&models.join("torch.py"), include_str!("../it/workers/stub_torch.py"));
    install(&models.join("diffusers.py"), include_str!("../it/workers/stub_diffusers.py"));
    fs::write(models.join("model.bin"), "").unwrap();
    let all: Vec<String> =
        recipes(&place).into_iter().filter(|(_, starts)| *starts).map(|(name, _)| name).collect();
    for recipe in &all {
        let wants_name = ["vllm", "tei", "diffusers"].contains(&recipe.as_str());
        let model = if wants_name { "org/model" } else { "model.bin" };
        // The machine may lack the program.
        let (_, printed, said) = place.add(&[recipe, "--model", model]);
        assert!(said.contains("Try it: "), "{recipe}: {printed} {said}");
        let manifest = models.join(format!("{recipe}.toml"));
        let program = if recipe == "tei" { "text-embeddings-router" } else { recipe };
        let installed = place.folder.path().join("bin").join(program);
        install(&installed, SERVER);
        let text = fs::read_to_string(&manifest).unwrap();
        let text = text
            .replacen(&format!("    \"{program}\","), &format!("    {installed:?},"), 1)
            .replace("exec vllm serve", &format!("exec {} serve", installed.display()));
        fs::write(&manifest, text).unwrap();
        place.setup.run(&["model", "check", manifest.to_str().unwrap()]);
    }
    let (_service, mut client) = place.start();
    for recipe in &all {
        call(&mut client, recipe);
    }
}
