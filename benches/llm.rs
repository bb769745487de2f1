//! A language model of the runner `llm`, against the same llama.cpp without a service: `cargo bench
//! --bench llm`.
//!
//! The model has random weights (600 MB, `Q8_0`). Both sides run it in their own process with the
//! same number of threads, in alternating rounds. The benchmark compares that process's CPU time
//! per prompt token and per generated token, and its memory. Bare llama.cpp is a loop around its
//! functions that caches the state of previous sequences, as the service and llama.cpp's own server
//! do. Each round's prompt begins differently, so that none is cached. "Four at once" is the tokens
//! per second of four concurrent generations, relative to one.
//!
//! `ORRERY_BENCH_ROUNDS` (3), `ORRERY_BENCH_LAYERS` (24: 6 take a quarter of the file),
//! `ORRERY_BENCH_PROMPT` (512 tokens), `ORRERY_BENCH_WRITTEN` (64 tokens), `ORRERY_BENCH_THREADS` (1).

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

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Instant;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Value, json};

use support::client::{self, Connection};
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, mebibytes, ratio};
use support::{folder, knob, median};

const FILE: &str = "ORRERY_BENCH_FILE";
const SHAPE: gguf::Shape = gguf::Shape {
    embedding: 1536,
    layers: 24,
    heads: 12,
    kv_heads: 4,
    feed_forward: 4096,
    context: 4096,
    weights: gguf::Weights::Q8_0,
    words: "",
};
const CONTEXT: u32 = 4096;
const BATCH: u32 = 256;
const PARALLEL: u32 = 4;
/// The end-of-text token; no generation here may produce it.
const END: &str = "2";

/// CPU seconds per prompt token and per generated token, bytes of memory, and the speedup of four
/// concurrent generations over a single one.
struct Cost {
    read: f64,
    written: f64,
    memory: f64,
    four: f64,
}

fn main() {
    if process::role().is_some() {
        return bare();
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(measure());
}

fn prompt_tokens() -> usize {
    knob("ORRERY_BENCH_PROMPT", 512) as usize
}

fn written_tokens() -> usize {
    knob("ORRERY_BENCH_WRITTEN", 64) as usize
}

fn threads() -> i32 {
    knob("ORRERY_BENCH_THREADS", 1) as i32
}

/// Returns a prompt with one token per letter.
fn prompt(round: usize) -> String {
    let first = char::from(b'a' + (round % 26) as u8);
    std::iter::once(first).chain("word and ".chars().cycle()).take(prompt_tokens()).collect()
}

/// llama.cpp alone, with the cached state of each sequence.
struct Alone<'m> {
    model: &'m LlamaModel,
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
}

impl Alone<'_> {
    /// Evaluates a new prompt; returns its number of tokens and its last token.
    fn read(&mut self, sequence: u32, text: &str) -> (usize, LlamaToken) {
        let tokens = self.model.vocab().tokenize(text.as_bytes(), true, true);
        self.context.clear_kv_cache_seq(Some(sequence), None, None).unwrap();
        let mut at = 0;
        for part in tokens.chunks(BATCH as usize) {
            self.batch.clear();
            for token in part {
                let is_last = at + 1 == tokens.len();
                self.batch.add(*token, at as i32, &[sequence as i32], is_last).unwrap();
                at += 1;
            }
            self.context.decode(&mut self.batch).unwrap();
        }
        (at, *tokens.last().unwrap())
    }

    /// Generates tokens in each of the sequences, beginning with the re-evaluation of the last
    /// token at `at`.
    fn write(&mut self, sequences: &[u32], last: LlamaToken, at: usize) {
        let mut sampler = LlamaSampler::greedy();
        let mut tokens = vec![last; sequences.len()];
        for at in at..at + written_tokens() {
            self.batch.clear();
            for (token, sequence) in tokens.iter().zip(sequences) {
                self.batch.add(*token, at as i32, &[*sequence as i32], true).unwrap();
            }
            self.context.decode(&mut self.batch).unwrap();
            for (place, token) in tokens.iter_mut().enumerate() {
                *token = sampler.sample(&self.context, place as i32);
            }
        }
    }

    /// Truncates a sequence to its first `kept` tokens, and copies these to the other sequences.
    fn share(&mut self, own: u32, kept: usize) {
        let kept = Some(kept as u32);
        self.context.clear_kv_cache_seq(Some(own), kept, None).unwrap();
        for other in (0..PARALLEL).filter(|other| *other != own) {
            self.context.clear_kv_cache_seq(Some(other), None, None).unwrap();
            self.context.copy_kv_cache_seq(own as i32, other as i32, Some(0), kept).unwrap();
        }
    }
}

/// Runs bare llama.cpp: for each input line that names a round, does the same work as the service
/// and prints its cost. Like llama.cpp's own server, it caches the state of previous sequences.
fn bare() {
    let backend = LlamaBackend::init().unwrap();
    llama_cpp_2::send_logs_to_tracing(llama_cpp_2::LogOptions::default().with_logs_enabled(false));
    let file = std::env::var(FILE).unwrap();
    let model = LlamaModel::load_from_file(&backend, file, &LlamaModelParams::default()).unwrap();
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(CONTEXT))
        .with_n_batch(BATCH)
        .with_n_ubatch(BATCH)
        .with_n_seq_max(PARALLEL)
        .with_kv_unified(true)
        .with_n_threads(threads())
        .with_n_threads_batch(threads())
        .with_no_perf(true);
    let context = model.new_context(&backend, params).unwrap();
    let mut alone = Alone { model: &model, context, batch: LlamaBatch::new(BATCH as usize, 1) };
    let own = std::process::id();
    for line in std::io::stdin().lock().lines() {
        let round: u32 = line.unwrap().parse().unwrap();
        let sequence = round % PARALLEL;
        let before = process::processor_seconds(own);
        let (tokens, last) = alone.read(sequence, &prompt(round as usize));
        let read = process::processor_seconds(own);
        let kept = tokens - 1;
        alone.context.clear_kv_cache_seq(Some(sequence), Some(kept as u32), None).unwrap();
        let begun = Instant::now();
        alone.write(&[sequence], last, kept);
        let one = begun.elapsed().as_secs_f64();
        let written = process::processor_seconds(own);
        alone.share(sequence, kept);
        let begun = Instant::now();
        alone.write(&[0, 1, 2, 3], last, kept);
        let four = begun.elapsed().as_secs_f64();
        let memory = process::resident(own);
        let speed = f64::from(PARALLEL) * one / four;
        println!("{}", json!([read - before, written - read, memory, tokens, speed]));
        std::io::stdout().flush().unwrap();
    }
}

/// A process with bare llama.cpp.
struct Bare {
    child: Killed,
    answers: BufReader<std::process::ChildStdout>,
}

impl Bare {
    fn start(file: &Path) -> Self {
        let mut command = process::again("bare");
        let mut child =
            Killed(command.env(FILE, file).stdin(std::process::Stdio::piped()).spawn().unwrap());
        let answers = BufReader::new(child.0.stdout.take().unwrap());
        Self { child, answers }
    }

    fn round(&mut self, round: usize) -> Cost {
        writeln!(self.child.0.stdin.as_mut().unwrap(), "{round}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let [read, written, memory, tokens, four]: [f64; 5] = serde_json::from_str(&line).unwrap();
        Cost { read: read / tokens, written: written / written_tokens() as f64, memory, four }
    }
}

async fn ask(setup: &Setup, key: &str, text: &str, written: usize) -> Value {
    let body = json!({
        "model": "large", "temperature": 0, "max_tokens": written, "logit_bias": {END: -100},
        "messages": [{"role": "user", "content": text}],
    });
    let path = "/v1/chat/completions";
    let request = client::post(setup.base, path, key, &body.to_string());
    let answer = Connection::open(setup.base).await.ask(&request).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["usage"].is_object(), "{answer}");
    answer
}

async fn measure() {
    let folder = folder();
    let shape = gguf::Shape { layers: knob("ORRERY_BENCH_LAYERS", SHAPE.layers), ..SHAPE };
    let file = folder.path().join("large.gguf");
    gguf::write(&file, &shape, "Large", 7);
    let bytes = std::fs::metadata(&file).unwrap().len();
    let setup = Setup::new(folder.path());
    let manifest = format!(
        "slug = 'large'\ntimeout = '30m'\n[runner]\ntype = 'llm'\nfile = {file:?}\ncontext = {CONTEXT}\n\
         batch = {BATCH}\nparallel = {PARALLEL}\nthreads = {}\nidle_unload = '1h'\n",
        threads()
    );
    setup.model("large", &manifest);
    let (service, _) = setup.start();
    let key = setup.key();
    ask(&setup, &key, "x", 1).await;
    let worker = process::child_of(service.0.id(), "llm-worker");
    let mut bare = Bare::start(&file);
    let mut raw = Vec::new();
    let mut served = Vec::new();
    for round in 0..knob("ORRERY_BENCH_ROUNDS", 3) as usize {
        raw.push(bare.round(round));
        served.push(round_of(&setup, &key, worker, round).await);
    }
    let mut table = Table::new(&["", "read", "written", "memory", "four at once"]);
    let middle = |costs: &[Cost], part: fn(&Cost) -> f64| median(costs.iter().map(part).collect());
    let parts: [fn(&Cost) -> f64; 4] = [|c| c.read, |c| c.written, |c| c.memory, |c| c.four];
    let shown = |costs: &[Cost]| -> Vec<String> {
        vec![
            format!("{:.1}/s", 1.0 / middle(costs, parts[0])),
            format!("{:.2}/s", 1.0 / middle(costs, parts[1])),
            mebibytes::<1>(middle(costs, parts[2])),
            ratio(middle(costs, parts[3])),
        ]
    };
    table.row(std::iter::once("llama.cpp alone".to_owned()).chain(shown(&raw)));
    table.row(std::iter::once("orrery".to_owned()).chain(shown(&served)));
    let of_raw = |part: fn(&Cost) -> f64| ratio(middle(&raw, part) / middle(&served, part));
    table.row([
        "of it".to_owned(),
        of_raw(parts[0]),
        of_raw(parts[1]),
        ratio(middle(&served, parts[2]) / middle(&raw, parts[2])),
        ratio(middle(&served, parts[3]) / middle(&raw, parts[3])),
    ]);
    println!("tokens per second of CPU time, {} threads", threads());
    table.print();
    println!(
        "a file of {}, prompts of {} tokens, {} written",
        mebibytes::<1>(bytes as f64),
        prompt_tokens(),
        written_tokens()
    );
}

/// Runs one round and returns its cost in the model's process.
async fn round_of(setup: &Setup, key: &str, worker: u32, round: usize) -> Cost {
    let text = prompt(round);
    let before = process::processor_seconds(worker);
    let read = ask(setup, key, &text, 1).await;
    let tokens = read["usage"]["prompt_tokens"].as_f64().unwrap();
    let after_prompt = process::processor_seconds(worker);
    let begun = Instant::now();
    // Repeat the request: its prompt is cached, except for the last token.
    let answer = ask(setup, key, &text, written_tokens()).await;
    let one = begun.elapsed().as_secs_f64();
    assert_eq!(answer["usage"]["completion_tokens"], written_tokens());
    let after = process::processor_seconds(worker);
    let begun = Instant::now();
    let asking = (0..PARALLEL).map(|_| ask(setup, key, &text, written_tokens()));
    futures_util::future::join_all(asking).await;
    let four = begun.elapsed().as_secs_f64();
    Cost {
        read: (after_prompt - before) / tokens,
        written: (after - after_prompt) / written_tokens() as f64,
        memory: process::resident(worker),
        four: f64::from(PARALLEL) * one / four,
    }
}
