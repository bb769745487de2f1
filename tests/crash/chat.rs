//! Chat calls when the service dies in the middle of a stream: no reservation remains, and the
//! ledger contains exactly the recorded calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::support::service::Setup;
use crate::verdict;

/// Maximum tokens of an answer; at the model's price they cost most of the balance.
const MOST: u64 = 900;
/// Cost of the answer after the restart: two tokens at a thousandth of a dollar each.
const CHARGED: i64 = 2000;

/// Starts a model server that sends only the first event of a stream, and answers other requests
/// immediately.
pub(crate) fn start_server() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(&stream));
        }
    });
    format!("http://{address}/v1")
}

fn answer(stream: &TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Ok(request) = crate::support::http::Message::read(&mut reader) else { return };
    let mut writer = stream;
    if request.json()["stream"] == true {
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        drop(writer.write_all(format!("{head}{event}").as_bytes()));
        // Wait until the client closes the connection.
        drop(reader.read(&mut [0]));
        return;
    }
    let choices = json!([{"index": 0, "message": {"role": "assistant", "content": "hello"}}]);
    let body = json!({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    drop(writer.write_all(format!("{head}{body}").as_bytes()));
}

/// Opens a stream and reads its first event.
fn open_stream(setup: &Setup, key: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(setup.base()).unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nX-API-Key: {key}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        setup.base(),
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = reader.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("12345678")), "the first event");
    stream
}

#[test]
fn chat_kill_in_mid_stream_leaves_no_reservation_and_a_right_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let lines = format!(
        "[billing]\nenforce = true\n[router]\nupstream_url = \"{}\"\n\
         prices = [{{ model = \"m\", per_million_input_tokens = 1000.0, \
         per_million_output_tokens = 1000.0 }}]\n",
        start_server()
    );
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &lines);
    let service = setup.start();
    let key = setup.create_key();
    setup.run(&["balance", "top-up", "--amount", "1"]);
    let mut body = json!({
        "model": "m", "max_tokens": MOST, "messages": [{"role": "user", "content": "hi"}],
    });
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let stream = open_stream(&setup, &key, &streaming);
    let path = "/v1/chat/completions";
    let refused = setup.client(&key).post(path, &[], &body.to_string()).unwrap();
    assert_eq!(refused.status(), 402, "the stream reserves most of the balance");
    service.kill();
    drop(stream);
    let service = setup.start();
    assert_eq!(verdict::balance(&mut setup.client(&key)), 1_000_000, "nothing was recorded");
    let answered = setup.client(&key).post(path, &[], &body.to_string()).unwrap();
    assert_eq!(answered.status(), 200, "nothing is reserved: {}", answered.text());
    assert_eq!(verdict::balance(&mut setup.client(&key)), 1_000_000 - CHARGED);
    service.kill();
    let service = setup.start();
    assert_eq!(verdict::balance(&mut setup.client(&key)), 1_000_000 - CHARGED);
    let ledger: Value = serde_json::from_str(&setup.run(&["balance", "ledger", "--json"])).unwrap();
    assert_eq!(ledger["entries"].as_array().unwrap().len(), 2, "{ledger}");
    assert_eq!(verdict::usage(&mut setup.client(&key)), (1, CHARGED));
    let rows = setup.client(&key).get("/v2/executions?type=chat").unwrap().json();
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1, "{rows}");
    assert_eq!(rows["executions"][0]["execution_cost"], 0.002);
    body["max_tokens"] = json!(MOST * 2);
    let refused = setup.client(&key).post(path, &[], &body.to_string()).unwrap();
    assert_eq!(refused.status(), 402);
    drop(service);
}
