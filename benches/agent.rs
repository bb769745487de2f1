//! The agent: its overhead per step of an exchange, and the time to read one session's memory among
//! many: `cargo bench --bench agent`.
//!
//! A stub model server requests a read-only tool several times, then finishes. Each step of an
//! exchange is an answer or a tool call, and is committed before the next step begins. The agent's
//! overhead per step is the duration of an exchange, minus the stub's time for the same number of
//! calls, divided by the number of steps. Then the benchmark creates sessions with many exchanges
//! through the API and reads each session's memory in turn.
//!
//! `ORRERY_BENCH_EXCHANGES` (200), `ORRERY_BENCH_TOOLS` (10 tool calls in each),
//! `ORRERY_BENCH_SESSIONS` (1000), `ORRERY_BENCH_KEPT` (50 exchanges per session),
//! `ORRERY_BENCH_READS` (1000), `ORRERY_BENCH_CONNECTIONS` (32, while sessions are created).

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot go on says so and ends; it counts far below 2^53"
)]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "its tasks end with it; it measures time")]

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use support::client::{self, Connection};
use support::process::{self, Killed};
use support::requests::Requests;
use support::service::Setup;
use support::table::{Table, number};

const MODEL: &str = "stub";
/// The stub answers prompts with this prefix without calling a tool.
const PLAIN: &str = "plain";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match process::role() {
        Some(_stub) => runtime.block_on(stub()),
        None => runtime.block_on(measure()),
    }
}

// --- the stub ---

fn tools() -> usize {
    usize::try_from(support::knob("ORRERY_BENCH_TOOLS", 10)).unwrap()
}

/// Calls the tool the configured number of times per exchange, then finishes.
fn answer_to(request: &Value) -> Value {
    let messages = request["messages"].as_array().unwrap();
    let own: Vec<&Value> =
        messages.iter().rev().take_while(|message| message["role"] != "user").collect();
    let prompt = &messages[messages.len() - own.len() - 1]["content"];
    let is_plain = prompt.as_str().is_some_and(|prompt| prompt.starts_with(PLAIN));
    let used = own.iter().filter(|message| message["role"] == "tool").count();
    let message = if is_plain || used >= tools() {
        json!({"role": "assistant", "content": "It is done."})
    } else {
        let function = json!({"name": "find_models", "arguments": "{\"query\":\"text\"}"});
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": format!("c{used}"), "type": "function", "function": function}]})
    };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})
}

async fn stub() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        tokio::spawn(answer_all(connection));
    }
}

async fn answer_all(connection: TcpStream) {
    let mut requests = Requests::new(connection);
    while let Some(request) = requests.next().await {
        let head = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let body = answer_to(&serde_json::from_slice(&request[head..]).unwrap()).to_string();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if requests.answer(answer.as_bytes()).await.is_none() {
            return;
        }
    }
}

// --- the measurement ---

/// Starts the stub and returns its process and address.
fn start() -> (Killed, SocketAddr) {
    let mut child = Killed(process::again("stub").spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

fn prompt(address: SocketAddr, key: &str, session: &str, message: &str) -> Arc<[u8]> {
    let body = json!({"message": message, "session_id": session, "stream": false});
    client::post(address, "/chat", key, &body.to_string())
}

/// Measures calls of the stub alone and returns their median duration in milliseconds.
async fn stub_alone(address: SocketAddr) -> f64 {
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "go"}]});
    let request = client::post(address, "/v1/chat/completions", "-", &body.to_string());
    let mut connection = Connection::open(address).await;
    let mut samples = Vec::new();
    for _ in 0..500 {
        let started = Instant::now();
        connection.ask(&request).await;
        samples.push(started.elapsed().as_secs_f64() * 1e3);
    }
    support::median(samples)
}

/// Creates sessions with `kept` exchanges each.
async fn fill(address: SocketAddr, key: &str, sessions: u64, kept: u64) {
    let connections = support::knob("ORRERY_BENCH_CONNECTIONS", 32);
    let tasks: Vec<_> = (0..connections)
        .map(|first| {
            let key = key.to_owned();
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                let own = (0..sessions).skip(usize::try_from(first).unwrap());
                for session in own.step_by(usize::try_from(connections).unwrap()) {
                    let text = format!("{PLAIN} {}", "word ".repeat(40));
                    let request = prompt(address, &key, &format!("s{session}"), &text);
                    for _ in 0..kept {
                        connection.ask(&request).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn measure() {
    let exchanges = support::knob("ORRERY_BENCH_EXCHANGES", 200);
    let sessions = support::knob("ORRERY_BENCH_SESSIONS", 1000);
    let kept = support::knob("ORRERY_BENCH_KEPT", 50);
    let reads = support::knob("ORRERY_BENCH_READS", 1000);
    let (_stub, stub_address) = start();
    let folder = support::folder();
    let lines = format!(
        "[router]\nupstream_url = \"http://{stub_address}/v1\"\nprices = [{{ model = \"{MODEL}\", \
         per_million_input_tokens = 1.0, per_million_output_tokens = 2.0 }}]\n[agent]\n\
         model = \"{MODEL}\"\nmax_steps = 1000\n"
    );
    let setup = Setup::with(folder.path(), &lines);
    let (_orrery, _) = setup.start();
    let key = setup.key();
    let alone = stub_alone(stub_address).await;
    let mut connection = Connection::open(setup.agent).await;
    let steps = (2 * tools() + 1) as f64;
    let mut added = Vec::new();
    for number in 0..exchanges {
        let request = prompt(setup.agent, &key, &format!("measured-{number}"), "go");
        let started = Instant::now();
        connection.ask(&request).await;
        let time = started.elapsed().as_secs_f64() * 1e3;
        added.push((time - alone * (tools() + 1) as f64) / steps);
    }
    fill(setup.agent, &key, sessions, kept).await;
    let mut times = Vec::new();
    for number in 0..reads {
        let path = format!("/memory?session_id=s{}", number * 7919 % sessions.max(1));
        let request = client::get_with_key(setup.agent, &path, &key);
        let started = Instant::now();
        let memory = connection.ask(&request).await;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        let memory: Value = serde_json::from_str(&memory).unwrap();
        assert_eq!(memory["conversation_history"].as_array().unwrap().len() as u64, kept.min(50));
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    let mut table = Table::new(&["agent", "median ms", "worst ms", "samples"]);
    let most = added.iter().copied().fold(0.0, f64::max);
    let row = |name: &str, samples: &[f64], worst: f64| {
        let median = format!("{:.2}", support::median(samples.to_vec()));
        [name.to_owned(), median, format!("{worst:.2}"), number(samples.len() as f64)]
    };
    table.row(row("added to a step, its commit included", &added, most));
    table.row(row("GET /memory", &times, worst));
    table.print();
    println!(
        "{sessions} sessions of {kept} exchanges; {steps} steps of an exchange; a call of the stub takes {alone:.2} ms"
    );
}
