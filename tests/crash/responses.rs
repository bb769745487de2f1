//! Responses in the background when the service is killed while one runs and another waits: each
//! ends once, and is charged once.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use orrery_runtime as runtime;
use serde_json::{Value, json};

use crate::support::http::Message;
use crate::support::service::Setup;
use crate::verdict;

/// Cost of an answer: two tokens at a thousandth of a dollar each.
const CHARGED: i64 = 2000;
const PATIENCE: Duration = Duration::from_secs(120);

/// A model server that answers only once it may.
#[derive(Default)]
struct Server {
    may_answer: AtomicBool,
    asked: AtomicUsize,
}

impl Server {
    fn start(self: &Arc<Self>) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::clone(self);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = Arc::clone(&server);
                std::thread::spawn(move || server.answer(&stream));
            }
        });
        format!("http://{address}/v1")
    }

    fn answer(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Ok(_request) = Message::read(&mut reader) else { return };
        self.asked.fetch_add(1, Ordering::SeqCst);
        wait(|| self.may_answer.load(Ordering::SeqCst));
        let choices = json!([{"index": 0, "message": {"role": "assistant", "content": "hello"}}]);
        let usage = json!({"prompt_tokens": 1, "completion_tokens": 1});
        let body = json!({"choices": choices, "usage": usage}).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut writer = stream;
        drop(writer.write_all(format!("{head}{body}").as_bytes()));
    }
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let deadline = runtime::monotonic_now() + PATIENCE;
    while !is_done() {
        assert!(runtime::monotonic_now() < deadline, "nothing happened for {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn background_responses_end_once_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::default());
    let lines = "[engine]\nactive = 1\n";
    let setup = Setup::new(folder.path(), &folder.path().join("data"), lines);
    let url = server.start();
    let models = folder.path().join("models.d");
    std::fs::create_dir_all(&models).unwrap();
    let manifest = format!(
        "slug = 'm'\noutput_type = 'string'\nconcurrency = 1\n[runner]\ntype = 'openai'\n\
         url = '{url}'\nmodel = 'm'\nkind = 'chat'\n[cost]\ntype = 'usage_based'\n\
         per_million_input_tokens = 1000.0\nper_million_output_tokens = 1000.0\n"
    );
    std::fs::write(models.join("m.toml"), manifest).unwrap();
    let service = setup.start();
    let key = setup.create_key();
    setup.run(&["balance", "top-up", "--amount", "1"]);
    let body = json!({"model": "m", "input": "hi", "background": true}).to_string();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = setup.client(&key).post("/v1/responses", &[], &body).unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let response: Value = answer.json();
        assert_eq!(response["status"], "queued");
        ids.push(response["id"].as_str().unwrap().to_owned());
    }
    wait(|| server.asked.load(Ordering::SeqCst) > 0);
    let read = |id: &String| setup.client(&key).get(&format!("/v1/responses/{id}")).unwrap().json();
    service.kill();
    let service = setup.start();
    for id in &ids {
        let status = read(id)["status"].clone();
        assert!(status == "queued" || status == "in_progress", "{status}");
    }
    server.may_answer.store(true, Ordering::SeqCst);
    for id in &ids {
        wait(|| read(id)["status"] == "completed");
        assert_eq!(read(id)["output"][0]["content"][0]["text"], "hello");
    }
    assert_eq!(verdict::balance(&mut setup.client(&key)), 1_000_000 - 2 * CHARGED);
    service.kill();
    let service = setup.start();
    for id in &ids {
        assert_eq!(read(id)["status"], "completed");
    }
    assert_eq!(verdict::balance(&mut setup.client(&key)), 1_000_000 - 2 * CHARGED);
    assert_eq!(verdict::usage(&mut setup.client(&key)).1, 2 * CHARGED);
    let rows = setup.client(&key).get("/v2/executions?type=chat").unwrap().json();
    assert_eq!(rows["executions"].as_array().unwrap().len(), 2, "{rows}");
    drop(service);
}
