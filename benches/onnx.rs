//! Compares a model of the runner `onnx` with the same tract without a service:
//! `cargo bench --bench onnx`.
//!
//! The model multiplies matrices: 0.4 billion operations per call, which take tract a few
//! milliseconds. Orrery and bare tract run the model in separate processes, in alternating rounds.
//! Through the service, a call is `POST /v1/prediction/run`, which returns when the prediction
//! ends, after two durable commits; the input is JSON. Bare tract gets a tensor that is already in
//! memory. The second model computes almost nothing, so its time is the overhead of a call.
//!
//! `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_SECONDS` (2).

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]
#![expect(
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    reason = "the counts and sizes are its own"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use orrery_runners::onnx::files;
use serde_json::{Value, json};
use tract_onnx::prelude::*;

use support::client::{self, Connection};
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, number, ratio};
use support::{folder, knob, median};

const FILE: &str = "ORRERY_BENCH_FILE";
/// The length of the inputs, which is the side of the matrices.
const SIDE: usize = 256;

fn main() {
    if process::role().is_some() {
        return bare();
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(measure());
}

/// Returns the values of an input.
fn column() -> Vec<f32> {
    (0..SIDE).map(|at| if at % 2 == 0 { 0.0625 } else { -0.0625 }).collect()
}

/// Runs bare tract: for each input line with a number of seconds, calls the model on as many
/// threads as the line says, and prints the calls per second.
fn bare() {
    let model = tract_onnx::onnx().model_for_path(std::env::var(FILE).unwrap()).unwrap();
    let count = model.input_outlets().unwrap().len();
    let shape: &[usize] = if count == 2 { &[SIDE, 1] } else { &[SIDE] };
    let plan = model.into_optimized().unwrap().into_runnable().unwrap();
    let input = Tensor::from_shape(shape, &column()).unwrap();
    for line in std::io::stdin().lock().lines() {
        let [seconds, threads]: [u64; 2] = serde_json::from_str(&line.unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(seconds);
        let work = || {
            let mut calls = 0_u64;
            while Instant::now() < until {
                let inputs = (0..count).map(|_| input.clone().into_tvalue()).collect();
                plan.run(inputs).unwrap();
                calls += 1;
            }
            calls
        };
        let begun = Instant::now();
        let calls: u64 = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|one| one.join().unwrap()).sum()
        });
        println!("{}", calls as f64 / begun.elapsed().as_secs_f64());
        std::io::stdout().flush().unwrap();
    }
}

/// A process with bare tract.
struct Bare {
    child: Killed,
    answers: BufReader<std::process::ChildStdout>,
}

impl Bare {
    fn start(file: &Path) -> Self {
        let mut command = process::again("bare");
        let mut child = Killed(command.env(FILE, file).stdin(Stdio::piped()).spawn().unwrap());
        let answers = BufReader::new(child.0.stdout.take().unwrap());
        Self { child, answers }
    }

    fn round(&mut self, seconds: u64, threads: u64) -> f64 {
        writeln!(self.child.0.stdin.as_mut().unwrap(), "[{seconds}, {threads}]").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

/// Returns the calls per second through the service.
async fn served(setup: &Setup, request: &Arc<[u8]>, seconds: u64, connections: u64) -> f64 {
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let calls = (0..connections).map(|_| async {
        let mut connection = Connection::open(setup.base).await;
        let mut calls = 0_u64;
        while Instant::now() < until {
            connection.ask(request).await;
            calls += 1;
        }
        calls
    });
    let calls: u64 = futures_util::future::join_all(calls).await.into_iter().sum();
    calls as f64 / begun.elapsed().as_secs_f64()
}

async fn measure() {
    let folder = folder();
    let setup = Setup::new(folder.path());
    for (slug, model) in [("large", files::powers(12)), ("small", files::line())] {
        let file = folder.path().join(format!("{slug}.onnx"));
        std::fs::write(&file, model.bytes()).unwrap();
        let manifest = format!(
            "slug = '{slug}'\nconcurrency = 64\n[runner]\ntype = 'onnx'\nfile = {file:?}\n"
        );
        setup.model(slug, &manifest);
    }
    let (service, _) = setup.start();
    let key = setup.key();
    let rounds = knob("ORRERY_BENCH_ROUNDS", 5);
    let seconds = knob("ORRERY_BENCH_SECONDS", 2);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let mut table = Table::new(&["", "at once", "tract alone", "orrery", "of it"]);
    for slug in ["large", "small"] {
        let column = column();
        let input = match slug {
            "large" => {
                let column: Vec<Value> = column.iter().map(|one| json!([one])).collect();
                json!({"x": column, "z": column})
            }
            _ => json!({"x": column}),
        };
        let body = json!({"model": slug, "version": "1", "input": input}).to_string();
        let request = client::post(setup.base, "/v1/prediction/run", &key, &body);
        let mut bare = Bare::start(&folder.path().join(format!("{slug}.onnx")));
        // The first calls load the model and fill caches.
        bare.round(1, 1);
        served(&setup, &request, 1, 1).await;
        for at_once in [1, cores] {
            let (mut alone, mut through) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                alone.push(bare.round(seconds, at_once));
                through.push(served(&setup, &request, seconds, at_once).await);
            }
            let (alone, through) = (median(alone), median(through));
            table.row([
                slug.to_owned(),
                at_once.to_string(),
                format!("{}/s", number(alone)),
                format!("{}/s", number(through)),
                ratio(through / alone),
            ]);
        }
    }
    table.print();
    drop(service);
}
