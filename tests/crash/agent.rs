//! Exchanges of the agent while the service is repeatedly killed, sometimes during a summary of the
//! conversation: no tool call with a result runs again, each exchange ends, the session's memory
//! contains each exchange once, and the balance is exact.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};
use crate::verdict;

/// Tool calls per exchange.
const TOOLS: usize = 3;
/// Cost of an answer in micro-dollars: two tokens at a thousandth of a dollar each.
const ANSWER_COST: i64 = 2000;
/// Cost of a tool call in micro-dollars.
const TOOL_COST: i64 = 1000;
/// Model answers between two kills: enough for each session to make progress, so that no session is
/// suspected of causing the crashes.
const ANSWERS_BETWEEN: usize = 6;
/// Delay of the model's answers, so that kills fall between its steps.
const THINKING: Duration = Duration::from_millis(15);

/// A context so small that the second prompt of a session triggers a summary, and words that fill
/// it.
const CONTEXT_TOKENS: usize = 4096;
const LONG_PROMPT: usize = 1500;
/// Maximum number of exchanges in a session's memory.
const REMEMBERED_MAX: u32 = 50;

/// Requests that a model server has received.
#[derive(Debug, Default)]
struct Asked {
    /// All answered requests.
    answers: AtomicUsize,
    /// Summary requests, answered or not.
    summaries: AtomicUsize,
}

impl Asked {
    fn answers(&self) -> usize {
        self.answers.load(Ordering::SeqCst)
    }

    fn summaries(&self) -> usize {
        self.summaries.load(Ordering::SeqCst)
    }
}

/// Starts a model server that calls a tool several times and then answers; it also generates
/// summaries.
fn start_server(asked: &Arc<Asked>) -> String {
    let asked = Arc::clone(asked);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                answer(&stream, &asked);
                asked.answers.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    format!("http://{address}/v1")
}

fn answer(stream: &TcpStream, asked: &Asked) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Ok(request) = crate::support::http::Message::read(&mut reader) else { return };
    let request = request.json();
    // Summary requests offer no tools.
    let is_summary = request.get("tools").is_none();
    asked.summaries.fetch_add(usize::from(is_summary), Ordering::SeqCst);
    std::thread::sleep(THINKING);
    let messages = request["messages"].as_array().unwrap();
    let own = messages.iter().rev().take_while(|message| message["role"] != "user");
    let made = own.filter(|message| message["role"] == "tool").count();
    let message = if is_summary {
        json!({"content": "They met."})
    } else if made < TOOLS {
        let input = json!({"model": "paid", "input": {"template": format!("{made}")}});
        let function = json!({"name": "run_model", "arguments": input.to_string()});
        json!({"content": null, "tool_calls": [{"id": format!("c{made}"), "function": function}]})
    } else {
        json!({"content": "done"})
    };
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1});
    let body = json!({"choices": [{"message": message}], "usage": usage}).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut writer = stream;
    drop(writer.write_all(format!("{head}{body}").as_bytes()));
}

/// Returns the number of exchanges in all sessions, once all accepted ones have ended.
fn ended(client: &mut Client, accepted: usize) -> Option<usize> {
    let rows = client.get("/v2/executions?type=agent&limit=100").ok()?.json();
    let rows = rows["executions"].as_array()?.clone();
    let is_over = |row: &Value| row["completed_at"].is_string();
    (rows.len() >= accepted && rows.iter().all(is_over)).then_some(rows.len())
}

/// Creates a service whose agent uses this server and may call a model that costs money.
fn set_up(folder: &Path, server: &str, agent: &str) -> Setup {
    let lines = format!(
        "[router]\nupstream_url = \"{server}\"\n\
         prices = [{{ model = \"m\", per_million_input_tokens = 1000.0, \
         per_million_output_tokens = 1000.0 }}]\n[agent]\nmodel = \"m\"\n{agent}"
    );
    let setup = Setup::new(folder, &folder.join("data"), &lines);
    let manifest = "slug = \"paid\"\noutput_type = \"string\"\n[cost]\ntype = \"fixed\"\n\
                    amount = 0.001\n[runner]\ntype = \"builtin\"\nname = \"text-template\"\n";
    setup.add_model("paid", manifest);
    setup
}

/// Begins an exchange; returns whether the service accepted it. The response head confirms that the
/// prompt is durable.
fn begin(setup: &Setup, key: &str, session: &str, message: &str) -> bool {
    let body = json!({"message": message, "session_id": session});
    let started = setup.agent(key).post("/chat", &[], &body.to_string());
    started.is_ok_and(|answer| answer.status() == 200)
}

/// After all exchanges have ended, checks which tools ran, the charges, and the memory.
fn check(setup: &Setup, key: &str, accepted: usize, sessions: usize) {
    let mut client = setup.client(key);
    let exchanges = eventually("every exchange ends", || ended(&mut client, accepted));
    let rows = client.get("/v2/executions?type=agent&limit=100").unwrap().json();
    let mut summaries = 0;
    for row in rows["executions"].as_array().unwrap() {
        assert_eq!(row["status"], "success", "{row}");
        // An exchange has four answers and three tool calls, and another answer if it triggers a
        // summary.
        summaries += match &row["execution_cost"] {
            cost if *cost == json!(0.011) => 0,
            cost if *cost == json!(0.013) => 1,
            cost => panic!("one summary at most: {cost}"),
        };
    }
    let rows = client.get("/v1/executions?type=prediction&limit=1").unwrap().json();
    assert_eq!(rows["total_count"], exchanges * TOOLS, "each tool ran once");
    let sum = |count: usize, each: i64| i64::try_from(count).unwrap() * each;
    let answers = exchanges * (TOOLS + 1) + summaries;
    let spent = sum(answers, ANSWER_COST) + sum(exchanges * TOOLS, TOOL_COST);
    assert_eq!(verdict::balance(&mut client), -spent);
    assert_eq!(verdict::usage(&mut client).1, spent);
    let mut remembered = 0;
    for session in 0..sessions {
        let path = format!("/memory?session_id=s{session}");
        let memory = setup.agent(key).get(&path).unwrap().json();
        let history = memory["conversation_history"].as_array().unwrap();
        assert!(history.iter().all(|exchange| exchange["chatbot_response"] == "done"), "{memory}");
        assert_eq!(memory["total_exchanges"], history.len());
        assert_eq!(memory["summary"].is_string(), summaries > 0, "{memory}");
        remembered += history.len();
    }
    assert_eq!(remembered, exchanges, "the memory holds each once");
    assert!(exchanges >= accepted && accepted > 0);
}

#[test]
fn agent_killed_again_and_again_ends_each_exchange_once() {
    let kills = count_from("ORRERY_CRASH_AGENT", 8);
    let (mut random, asked) = (Random::seeded(), Arc::<Asked>::default());
    let folder = tempfile::tempdir().unwrap();
    let setup = set_up(folder.path(), &start_server(&asked), "");
    let mut service = setup.start();
    let key = setup.create_key();
    let mut accepted = 0;
    for round in 0..kills {
        let before = asked.answers();
        let session = format!("s{}", round % 3);
        accepted += usize::from(begin(&setup, &key, &session, &format!("round {round}")));
        let mut client = setup.client(&key);
        eventually("the exchanges go on", || {
            let made = asked.answers() - before;
            (made >= ANSWERS_BETWEEN || ended(&mut client, accepted).is_some()).then_some(())
        });
        std::thread::sleep(Duration::from_millis(random.within(0..20)));
        service.kill();
        service = setup.start();
    }
    check(&setup, &key, accepted, 3);
    assert_eq!(asked.summaries(), 0, "the conversations are short");
    drop(service);
}

#[test]
fn agent_killed_while_it_summarizes_keeps_one_summary() {
    let (mut random, asked) = (Random::seeded(), Arc::<Asked>::default());
    let folder = tempfile::tempdir().unwrap();
    let context = format!("context_tokens = {CONTEXT_TOKENS}\n");
    let setup = set_up(folder.path(), &start_server(&asked), &context);
    let mut service = setup.start();
    let key = setup.create_key();
    let long = "word ".repeat(LONG_PROMPT);
    assert!(begin(&setup, &key, "s0", &long));
    let mut client = setup.client(&key);
    eventually("the first exchange ends", || ended(&mut client, 1));
    let mut accepted = 1;
    for round in 0..count_from("ORRERY_CRASH_AGENT", 8).min(REMEMBERED_MAX - 1) {
        let before = asked.summaries();
        accepted += usize::from(begin(&setup, &key, "s0", &format!("round {round} {long}")));
        // Kill while the model generates the summary, while the summary is committed, or just
        // after.
        eventually("a summary is asked for", || (asked.summaries() > before).then_some(()));
        std::thread::sleep(Duration::from_millis(random.within(0..30)));
        service.kill();
        service = setup.start();
        let mut client = setup.client(&key);
        eventually("the exchange ends", || ended(&mut client, accepted));
    }
    check(&setup, &key, accepted, 1);
    drop(service);
}
