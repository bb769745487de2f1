//! The cost of the worker processes of built-in models: `cargo bench --bench builtin`.
//!
//! Each model runs on a small input in this process and through its worker, one run at a time, in
//! alternating rounds. Further rounds run several inputs at once, and start a new worker for each
//! run. No service and no store are involved.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use orrery_domain::trace::Trace;
use orrery_http::egress::Policy;
use orrery_runners::builtin::{Builtin, BuiltinContext, RUNS_MAX, Workers, find};
use orrery_runners::source::Sources;
use orrery_runners::{Job, Progress, Runner};
use serde_json::{Value, json};
use support::median;
use support::table::{Table, number, ratio};

/// Runs of a model per round.
const RUNS: u64 = 200;

/// Discards all events.
#[derive(Debug)]
struct Silent;

impl Progress for Silent {
    fn log(&self, _text: &str) {}
    fn output(&self, _part: &Value) {}
}

/// A model with an input, and the contents of the image that the input refers to.
struct Case {
    name: &'static str,
    builtin: &'static Builtin,
    input: Arc<Value>,
    image: Vec<u8>,
    runs: u64,
}

impl Case {
    fn new(name: &'static str, model: &str, input: Value, runs: u64) -> Self {
        let uri = input.get("image").and_then(Value::as_str).unwrap_or_default();
        let image = uri
            .split_once(";base64,")
            .map_or_else(Vec::new, |(_, encoded)| STANDARD.decode(encoded).unwrap());
        Self { name, builtin: find(model).unwrap(), input: Arc::new(input), image, runs }
    }

    fn job(&self) -> Job {
        Job {
            attempt_key: "bench:prediction:1".to_owned(),
            input: Arc::clone(&self.input),
            progress: Arc::new(Silent),
            may_fall_back: false,
            trace: Trace::new([7; 16].into(), None).call("bench:prediction:1"),
        }
    }

    /// Measures runs in this process and returns their median duration in seconds.
    fn here(&self) -> f64 {
        let samples = (0..self.runs).map(|_| {
            let asked = Instant::now();
            self.builtin.compute(&self.input, &self.image).unwrap();
            asked.elapsed().as_secs_f64()
        });
        median(samples.collect())
    }

    async fn through(&self, runner: &dyn Runner) -> f64 {
        let mut samples = Vec::new();
        for _ in 0..self.runs {
            let asked = Instant::now();
            runner.run(self.job()).await.unwrap();
            samples.push(asked.elapsed().as_secs_f64());
        }
        median(samples)
    }
}

fn cases() -> Vec<Case> {
    let text = "Orrery is a wonderful machine. It shows how the planets move around the sun. ";
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(64, 64).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let png = format!("data:image/png;base64,{}", STANDARD.encode(png.into_inner()));
    let page = "<div><p>word <b>bold</b></p><ul><li>item</li></ul></div>";
    let people: Vec<Value> =
        (0..20).map(|n| json!({"name": format!("person {n}"), "age": n * 3})).collect();
    let template = json!({"template": "Hello {{ name }}!", "values": {"name": "Ada"}});
    let query = json!({"expression": "people[?age > `30`].name", "document": {"people": people}});
    vec![
        Case::new("text-template, 17 bytes", "text-template", template, RUNS),
        Case::new("json-query, 20 objects", "json-query", query, RUNS),
        Case::new("text-language, 80 bytes", "text-language", json!({"text": text}), RUNS),
        Case::new("text-keywords, 8 kB", "text-keywords", json!({"text": text.repeat(100)}), RUNS),
        Case::new("html-to-text, 5 kB", "html-to-text", json!({"html": page.repeat(100)}), RUNS),
        Case::new(
            "image-resize, 64 by 64",
            "image-resize",
            json!({"image": png, "width": 32}),
            RUNS,
        ),
        Case::new("html-to-text, 80 kB", "html-to-text", json!({"html": page.repeat(1450)}), 10),
    ]
}

#[tokio::main]
async fn main() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let workers = Workers::new(PathBuf::from(env!("CARGO_BIN_EXE_orrery")), None);
    let bench = BuiltinContext::new(Sources::new(Policy::default(), None), workers);
    let mut table = Table::new(&["", "in process", "in a worker", "added", "ratio"]);
    let micros = |seconds: f64| format!("{} µs", number(seconds * 1e6));
    for case in cases() {
        let runner = bench.runner(case.builtin);
        runner.run(case.job()).await.unwrap();
        let mut here = Vec::new();
        let mut through = Vec::new();
        for _ in 0..rounds {
            here.push(case.here());
            through.push(case.through(runner.as_ref()).await);
        }
        let here = median(here);
        let through = median(through);
        table.row([
            case.name.to_owned(),
            micros(here),
            micros(through),
            micros(through - here),
            ratio(through / here),
        ]);
    }
    table.print();
    println!();
    starts(&bench, rounds).await;
}

/// Measures the duration of a run that has to start its worker, and the runs per second across all
/// workers.
async fn starts(bench: &BuiltinContext, rounds: u64) {
    let cases = cases();
    let case = cases.first().unwrap();
    let mut fresh = Vec::new();
    let mut rates = Vec::new();
    for _ in 0..rounds {
        for _ in 0..20 {
            let workers = Workers::new(PathBuf::from(env!("CARGO_BIN_EXE_orrery")), None);
            let runner = BuiltinContext::new(Sources::new(Policy::default(), None), workers)
                .runner(case.builtin);
            let asked = Instant::now();
            runner.run(case.job()).await.unwrap();
            fresh.push(asked.elapsed().as_secs_f64());
        }
        let runner = bench.runner(case.builtin);
        let end = Instant::now() + Duration::from_secs(1);
        let begun = Instant::now();
        let mut count = 0.0;
        while Instant::now() < end {
            let runs = (0..4 * RUNS_MAX).map(|_| runner.run(case.job()));
            for run in join_all(runs).await {
                run.unwrap();
                count += 1.0;
            }
        }
        rates.push(count / begun.elapsed().as_secs_f64());
    }
    println!("a run that starts its worker: {:.1} ms", median(fresh) * 1e3);
    println!("text-template, {} at a time: {} a second", 4 * RUNS_MAX, number(median(rates)));
}
