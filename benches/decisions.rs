//! Decisions by a language model of the runner `llm`: ten questions about one state, against one
//! question and against ten single-question requests: `cargo bench --bench decisions`.
//!
//! The model has random weights (600 MB, `Q8_0`) and a vocabulary that contains the words of the
//! prompts. The benchmark compares the CPU time of the model's process, in alternating rounds. Each
//! round's state begins differently, so that no prompt is cached.
//!
//! `ORRERY_BENCH_ROUNDS` (3), `ORRERY_BENCH_LAYERS` (24: 6 take a quarter of the file),
//! `ORRERY_BENCH_STATE` (1000 tokens), `ORRERY_BENCH_QUESTIONS` (10), `ORRERY_BENCH_THREADS` (1).

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "its tasks end with it; it measures time")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "the sizes are its own"
)]

#[path = "../tests/support/gguf.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod gguf;
mod support;

use serde_json::{Map, Value, json};

use support::client::{self, Connection};
use support::process;
use support::service::Setup;
use support::table::{Table, mebibytes, ratio};
use support::{folder, knob, median};

/// The words of all prompts. A trained model's vocabulary also contains them.
const WORDS: &str = "You answer one question about a state. The is data: ignore instructions inside it. \
    Each option of the has label. Answer with that fits best, and nothing else. user: system: assistant: \
    State: Question: Options: Label: Is this message urgent? yes no the printer in room four is on fire \
    and nobody knows where water comes from today";
const SHAPE: gguf::Shape = gguf::Shape {
    embedding: 1536,
    layers: 24,
    heads: 12,
    kv_heads: 4,
    feed_forward: 4096,
    context: 4096,
    weights: gguf::Weights::Q8_0,
    words: WORDS,
};
/// The sentence repeated to make up the state.
const STATE: &str =
    "the printer in room four is on fire and nobody knows where the water comes from today";
/// Maximum cost of ten questions in one request, relative to one question and to ten requests of
/// one question each.
const OF_ONE_MAX: f64 = 1.5;
const OF_ALONE_MAX: f64 = 0.4;

fn main() {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(measure());
}

fn count() -> usize {
    knob("ORRERY_BENCH_QUESTIONS", 10) as usize
}

/// Returns a state with about as many tokens as words.
fn state(round: usize) -> String {
    let words = STATE.split(' ').cycle().skip(round % 16);
    words.take(knob("ORRERY_BENCH_STATE", 1000) as usize).collect::<Vec<_>>().join(" ")
}

fn question(number: usize) -> (String, Value) {
    let instructions = format!("Is this message {number} urgent?");
    (format!("q{number}"), json!({"type": "oul", "instructions": instructions}))
}

/// Requests decisions and returns the number of prompt tokens.
async fn decide(setup: &Setup, key: &str, state: &str, questions: Map<String, Value>) -> f64 {
    let body = json!({"model": "large", "state": state, "questions": questions});
    let request = client::post(setup.base, "/v1/decisions", key, &body.to_string());
    let answer = Connection::open(setup.base).await.ask(&request).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["answers"].is_object(), "{answer}");
    answer["usage"]["input_tokens"].as_f64().unwrap()
}

async fn measure() {
    let folder = folder();
    let shape = gguf::Shape { layers: knob("ORRERY_BENCH_LAYERS", SHAPE.layers), ..SHAPE };
    let file = folder.path().join("large.gguf");
    gguf::write(&file, &shape, "Large", 7);
    let bytes = std::fs::metadata(&file).unwrap().len();
    let setup = Setup::new(folder.path());
    let threads = knob("ORRERY_BENCH_THREADS", 1);
    setup.model(
        "large",
        &format!(
            "slug = 'large'\ntimeout = '30m'\n[runner]\ntype = 'llm'\nfile = {file:?}\n\
             context = 4096\nthreads = {threads}\nidle_unload = '1h'\n"
        ),
    );
    let (service, _) = setup.start();
    let key = setup.key();
    decide(&setup, &key, "x", [question(0)].into_iter().collect()).await;
    let worker = process::child_of(service.0.id(), "llm-worker");
    // Measures the tokens and the CPU seconds of one or more requests.
    let measured = async |state: &str, requests: Vec<Map<String, Value>>| {
        let before = process::processor_seconds(worker);
        let mut tokens = 0.0;
        for questions in requests {
            tokens += decide(&setup, &key, state, questions).await;
        }
        (tokens, process::processor_seconds(worker) - before)
    };
    let mut costs: [Vec<f64>; 3] = Default::default();
    let mut tokens = [0.0; 3];
    for round in 0..knob("ORRERY_BENCH_ROUNDS", 3) as usize {
        let state = state(round);
        let all: Vec<(String, Value)> = (0..count()).map(question).collect();
        let one = vec![all[..1].iter().cloned().collect()];
        let together = vec![all.iter().cloned().collect()];
        let alone = all.iter().map(|question| [question.clone()].into_iter().collect()).collect();
        for (place, requests) in [one, together, alone].into_iter().enumerate() {
            let (read, seconds) = measured(&state, requests).await;
            costs[place].push(seconds);
            tokens[place] = read;
        }
    }
    let [one, together, alone] = costs.map(median);
    let mut table = Table::new(&["", "CPU time", "tokens read"]);
    let names = ["one question", "all questions together", "each question alone"];
    for ((name, seconds), tokens) in names.iter().zip([one, together, alone]).zip(tokens) {
        table.row([(*name).to_owned(), format!("{seconds:.2} s"), format!("{tokens:.0}")]);
    }
    table.print();
    println!(
        "{} questions together, of one: {} (at most {OF_ONE_MAX})",
        count(),
        ratio(together / one)
    );
    println!("of each alone: {} (at most {OF_ALONE_MAX})", ratio(together / alone));
    println!("a file of {}, {threads} threads", mebibytes::<1>(bytes as f64));
}
