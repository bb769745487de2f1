//! The process that runs one model (`orrery llm-worker …`): llama.cpp behind OpenAI's API, on the
//! socket that is the process's standard input.
//!
//! The process enters its sandbox before it opens the model's file: from then on, the process can
//! read only that file and the chat template. The process exits when the service does. llama.cpp
//! may crash at any time; the process has no state that is not also in the service's store.

#[cfg(feature = "llama")]
mod adapter;
#[cfg(feature = "llama")]
mod answer;
#[cfg(feature = "llama")]
pub(crate) mod boot;
#[cfg(feature = "llama")]
mod completions;
#[cfg(feature = "llama")]
mod dialogue;
#[cfg(feature = "llama")]
mod embeddings;
#[cfg(feature = "llama")]
mod engine;
#[cfg(feature = "llama")]
mod grammar;
#[cfg(feature = "llama")]
pub(crate) mod log;
#[cfg(feature = "llama")]
mod messages;
#[cfg(feature = "llama")]
mod native;
#[cfg(feature = "llama")]
mod pace;
#[cfg(feature = "llama")]
mod prompt;
#[cfg(feature = "llama")]
mod python;
#[cfg(feature = "llama")]
pub(crate) mod request;
#[cfg(feature = "llama")]
mod rerank;
#[cfg(feature = "llama")]
mod sampling;
#[cfg(feature = "llama")]
mod score;
#[cfg(feature = "llama")]
pub(crate) mod server;
#[cfg(feature = "llama")]
mod slots;
#[cfg(feature = "llama")]
mod template;
#[cfg(feature = "llama")]
mod text;
#[cfg(feature = "llama")]
mod text_methods;
#[cfg(feature = "llama")]
mod thinking;
#[cfg(feature = "llama")]
mod tools;
#[cfg(feature = "llama")]
mod watch;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

#[cfg(any(feature = "llama", feature = "onnx"))]
use orrery_guard::sandbox::OwnMemory;
#[cfg(any(feature = "llama", feature = "onnx"))]
use orrery_guard::{groups, sandbox};

/// Exit code of a process that could not start; its last line of output states the reason.
pub const NOT_STARTED: u8 = 3;
/// Exit code of a process that exited to abandon work that did not stop by itself; its last line of
/// output states the reason.
pub const GIVEN_UP: u8 = 4;
/// The route that responds once the model is loaded: with 200, including a warning if the model has
/// a fault, or with the reason for a failure.
pub const READY: &str = "/ready";
/// The route that scores the answer labels of questions about one state.
pub const SCORE: &str = "/score";
/// The route that counts the tokens of a conversation's prompt.
pub const COUNT: &str = "/count";

/// The settings of any process that runs a model.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct CommonArgs {
    /// The process id of the service; the worker exits when the service does
    #[arg(long, value_name = "PID")]
    pub parent: i32,
    /// The control group to join
    #[arg(long, value_name = "FOLDER")]
    pub group: Option<PathBuf>,
    /// The model's name in answers
    #[arg(long, value_name = "SLUG")]
    pub name: String,
    /// The model file
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Number of compute threads
    #[arg(long, value_name = "COUNT")]
    pub threads: u32,
    /// Memory limit, not counting the file
    #[arg(long, value_name = "BYTES")]
    pub memory_bytes: Option<u64>,
}

impl CommonArgs {
    /// Builds the command line for these settings.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        add("--parent", self.parent.to_string().into());
        add("--name", self.name.clone().into());
        add("--file", self.file.clone().into());
        add("--threads", self.threads.to_string().into());
        if let Some(group) = &self.group {
            add("--group", group.clone().into());
        }
        if let Some(bytes) = self.memory_bytes {
            add("--memory-bytes", bytes.to_string().into());
        }
        arguments
    }

    /// Drops access to everything except the model file and `more` files. `beside` is memory in
    /// addition to the limit. Returns a view of the process's memory.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    #[cfg(any(feature = "llama", feature = "onnx"))]
    pub(crate) fn enter_sandbox(
        &self,
        beside: u64,
        more: &[&std::path::Path],
    ) -> io::Result<OwnMemory> {
        if let Some(group) = &self.group {
            groups::enter(group)?;
        }
        let memory = self.memory_bytes.map(|bytes| bytes.saturating_add(beside));
        let files = [&[self.file.as_path()], more].concat();
        sandbox::enter_reading(self.parent, &files, memory)
    }
}

/// The settings of the process.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Context length shared by all answers, in tokens
    #[arg(long, value_name = "TOKENS")]
    pub context: u32,
    /// Maximum number of concurrent answers
    #[arg(long, value_name = "COUNT")]
    pub parallel: u32,
    /// Batch size, in tokens
    #[arg(long, value_name = "TOKENS")]
    pub batch: u32,
    /// A chat template to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// A LoRA adapter
    #[arg(long, value_name = "FILE")]
    pub lora: Option<PathBuf>,
    /// The factor of the adapter's changes
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub lora_scale: Option<f64>,
}

/// Reports that the sandbox cannot be entered, and returns the exit code of the process.
#[cfg(any(feature = "llama", feature = "onnx"))]
pub(crate) fn not_started(error: &io::Error) -> u8 {
    let text = format!("its process cannot enter its sandbox: {error}\n");
    // The service reads standard error and shows its last line.
    drop(io::Write::write_all(&mut io::stderr(), text.as_bytes()));
    NOT_STARTED
}

/// Returns an error if this binary cannot run models on this machine, as a phrase that follows "the
/// model 'x':".
#[must_use]
pub fn unsupported() -> Option<&'static str> {
    if !cfg!(feature = "llama") {
        return Some("this build has no llama.cpp: build it with the feature `llama`");
    }
    #[cfg(target_arch = "x86_64")]
    if !(is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2"))
    {
        return Some(
            "this processor has no AVX2, FMA, F16C or BMI2, which models of the runners `llm` and \
             `whisper` need",
        );
    }
    None
}

/// Serves the model until the service stops it, and returns the exit code of the process.
///
/// # Errors
/// Fails if standard input is not a socket, or if the connection breaks.
#[cfg(feature = "llama")]
pub fn run(args: &WorkerArgs) -> io::Result<u8> {
    boot::run(args)
}

/// Does nothing, because this build does not support running models.
///
/// # Errors
/// Never fails.
#[cfg(not(feature = "llama"))]
pub fn run(_args: &WorkerArgs) -> io::Result<u8> {
    Ok(NOT_STARTED)
}
