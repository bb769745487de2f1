//! Compares a Whisper model of the runner `whisper` with the same whisper.cpp without a service:
//! `cargo bench --bench whisper`.
//!
//! The model has the size of `tiny` and always writes the same text. Orrery and bare whisper.cpp
//! recognize the same recording in separate processes with the same number of threads, in
//! alternating rounds. The benchmark compares the seconds of audio per second of CPU time and of
//! wall-clock time, and the memory.
//!
//! `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_SECONDS` (60), `ORRERY_BENCH_LAYERS` (4),
//! `ORRERY_BENCH_THREADS` (1), `ORRERY_BENCH_BEAM` (5). With `ORRERY_BENCH_MODEL` and
//! `ORRERY_BENCH_WAV`, the benchmark uses a real model and a real recording (WAV, 16 kHz, mono,
//! 16 bits), and prints the text.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says so and ends")]
#![expect(clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "its tasks end with it; it measures time")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "the sizes are its own"
)]

mod support;
#[path = "../tests/support/whisper.rs"]
mod whisper;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use orrery_whisper::whisper_rs::{
    FullParams, SamplingStrategy, WhisperContext, WhisperContextParameters, install_logging_hooks,
};
use serde_json::{Value, json};

use support::client::Connection;
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, mebibytes, ratio};
use support::{folder, knob, median};

const FILE: &str = "ORRERY_BENCH_FILE";
const AUDIO: &str = "ORRERY_BENCH_AUDIO";
/// CPU seconds and wall-clock seconds for the recording, and bytes of memory.
struct Cost {
    processor: f64,
    time: f64,
    memory: f64,
}

fn main() {
    if process::role().is_some() {
        return bare();
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(measure());
}

/// Returns the samples of a WAV file.
fn samples_of(file: &[u8]) -> &[u8] {
    let head = file.windows(4).position(|name| name == b"data").unwrap();
    &file[head + 8..]
}

fn threads() -> i32 {
    knob("ORRERY_BENCH_THREADS", 1) as i32
}

fn beam() -> i32 {
    knob("ORRERY_BENCH_BEAM", 5) as i32
}

/// Runs bare whisper.cpp: for each line of input, recognizes the recording and prints the cost.
fn bare() {
    install_logging_hooks();
    let mut parameters = WhisperContextParameters::default();
    parameters.use_gpu(false);
    let file = std::env::var(FILE).unwrap();
    let context = WhisperContext::new_with_params(&file, parameters).unwrap();
    let audio = std::fs::read(std::env::var(AUDIO).unwrap()).unwrap();
    let own = std::process::id();
    for _line in std::io::stdin().lock().lines() {
        let before = process::processor_seconds(own);
        let begun = Instant::now();
        // Reusing a whisper.cpp state would change the text.
        let mut state = context.create_state().unwrap();
        let samples: Vec<f32> = samples_of(&audio)
            .chunks_exact(2)
            .map(|bytes| f32::from(i16::from_le_bytes([bytes[0], bytes[1]])) / 32_768.0)
            .collect();
        let strategy = SamplingStrategy::BeamSearch { beam_size: beam(), patience: -1.0 };
        let mut parameters = FullParams::new(strategy);
        parameters.set_n_threads(threads());
        parameters.set_language(Some("en"));
        parameters.set_no_context(true);
        parameters.set_print_progress(false);
        state.full(parameters, &samples).unwrap();
        let text: String =
            state.as_iter().map(|segment| segment.to_str_lossy().unwrap().into_owned()).collect();
        let time = begun.elapsed().as_secs_f64();
        let processor = process::processor_seconds(own) - before;
        println!("{}", json!([processor, time, process::resident(own), text.trim()]));
        std::io::stdout().flush().unwrap();
    }
}

/// A process with bare whisper.cpp.
struct Bare {
    child: Killed,
    answers: BufReader<std::process::ChildStdout>,
}

impl Bare {
    fn start(file: &Path, audio: &Path) -> Self {
        let mut command = process::again("bare");
        command.env(FILE, file).env(AUDIO, audio).stdin(std::process::Stdio::piped());
        let mut child = Killed(command.spawn().unwrap());
        let answers = BufReader::new(child.0.stdout.take().unwrap());
        Self { child, answers }
    }

    fn round(&mut self) -> (Cost, String) {
        writeln!(self.child.0.stdin.as_mut().unwrap()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let (processor, time, memory, text) = serde_json::from_str(&line).unwrap();
        (Cost { processor, time, memory }, text)
    }
}

/// Sends the recording to the service; returns the text.
async fn ask(setup: &Setup, key: &str, audio: &[u8]) -> String {
    let mut form = Vec::new();
    for (name, value) in [("model", "ears"), ("language", "en")] {
        let part =
            format!("--b0\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        form.extend(part.as_bytes());
    }
    form.extend(
        b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n",
    );
    form.extend(audio);
    form.extend(b"\r\n--b0--\r\n");
    let address = setup.base;
    let head = format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: multipart/form-data; boundary=b0\r\nContent-Length: {}\r\n\r\n",
        form.len()
    );
    let request = [head.into_bytes(), form].concat();
    let answer = Connection::open(address).await.ask(&request).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Returns the paths of the model and of the recording.
fn files(folder: &Path) -> (PathBuf, PathBuf) {
    let given = |name: &str| std::env::var(name).ok().map(PathBuf::from);
    let model = given("ORRERY_BENCH_MODEL").unwrap_or_else(|| {
        let layers = knob("ORRERY_BENCH_LAYERS", 4) as usize;
        let file = folder.join("ggml-ears.bin");
        whisper::write(&file, &whisper::Shape { state: 384, heads: 6, layers, ..whisper::SLOW });
        file
    });
    let audio = given("ORRERY_BENCH_WAV").unwrap_or_else(|| {
        let file = folder.join("tone.wav");
        let seconds = knob("ORRERY_BENCH_SECONDS", 60);
        std::fs::write(&file, whisper::wav(16_000, 1, seconds as f64)).unwrap();
        file
    });
    (model, audio)
}

async fn measure() {
    let folder = folder();
    let (model, recording) = files(folder.path());
    let audio = std::fs::read(&recording).unwrap();
    let seconds = samples_of(&audio).len() as f64 / 32_000.0;
    let setup = Setup::new(folder.path());
    let manifest = format!(
        "slug = 'ears'\ntimeout = '1h'\n[runner]\ntype = 'whisper'\nfile = {model:?}\n\
         threads = {}\nbeam = {}\nidle_unload = '1h'\n",
        threads(),
        beam()
    );
    setup.model("ears", &manifest);
    let (service, _) = setup.start();
    let key = setup.key();
    ask(&setup, &key, &audio).await;
    let worker = process::child_of(service.0.id(), "whisper-worker");
    let mut bare = Bare::start(&model, &recording);
    bare.round();
    let (mut raw, mut served) = (Vec::new(), Vec::new());
    for _round in 0..knob("ORRERY_BENCH_ROUNDS", 5) {
        let (cost, expected) = bare.round();
        raw.push(cost);
        let before = process::processor_seconds(worker);
        let begun = Instant::now();
        let text = ask(&setup, &key, &audio).await;
        let time = begun.elapsed().as_secs_f64();
        let processor = process::processor_seconds(worker) - before;
        served.push(Cost { processor, time, memory: process::resident(worker) });
        assert_eq!(text, expected);
    }
    let middle = |costs: &[Cost], part: fn(&Cost) -> f64| median(costs.iter().map(part).collect());
    let parts: [fn(&Cost) -> f64; 3] = [|c| c.processor, |c| c.time, |c| c.memory];
    let mut table = Table::new(&["", "of CPU time", "of time", "memory"]);
    for (name, costs) in [("whisper.cpp alone", &raw), ("orrery", &served)] {
        table.row([
            name.to_owned(),
            format!("{:.1}", seconds / middle(costs, parts[0])),
            format!("{:.1}", seconds / middle(costs, parts[1])),
            mebibytes::<1>(middle(costs, parts[2])),
        ]);
    }
    let of_raw = |part: fn(&Cost) -> f64| ratio(middle(&raw, part) / middle(&served, part));
    table.row([
        "of it".to_owned(),
        of_raw(parts[0]),
        of_raw(parts[1]),
        ratio(middle(&served, parts[2]) / middle(&raw, parts[2])),
    ]);
    println!("seconds of audio per second, {} threads", threads());
    table.print();
    println!("a recording of {seconds:.0} s: {}", bare.round().1);
}
