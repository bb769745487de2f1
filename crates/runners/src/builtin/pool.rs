//! The service's side of the built-in models' workers: each worker process serves one run at a
//! time, is reused for the next run, and is replaced when it exits. See `worker` for the other
//! side.
//!
//! A worker that exits, does not respond in time or violates the protocol fails only its current
//! run and is killed. A worker is also killed when its run is dropped, after a large run (to return
//! its memory at once), and after being idle for a while. Workers exit when the service does.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::weight::{Budget, MEMORY_MAX, MIB};
use super::worker::{CPU_SECONDS_MAX, Head, MEMORY_BESIDE, Message, NOT_STARTED};
use super::{RUNS_MAX, refuse};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_guard::groups::{Group, Groups};
use orrery_http::request::{JSON_VALUES_MAX, count_values};
use orrery_runtime as runtime;
use orrery_runtime::shortage::{Pauses, when_able};

/// Wall-clock timeout of a response, regardless of how busy the machine is. A compute-bound run is
/// stopped earlier, by its CPU time limit.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Idle time after which a worker is stopped.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(10);
/// A worker is not reused after a run that used more than this number of bytes of memory.
const KEPT_MEMORY_MAX: u64 = 64 * MIB;
/// Maximum size of a response: the largest image that a run may produce, in base64, plus overhead.
const ANSWER_MAX: u64 = 128 * MIB;
/// Maximum length of a failure message, in bytes.
const MESSAGE_MAX: usize = 4096;
/// Responses longer than this number of bytes are parsed on a blocking thread.
const QUICK_ANSWER: usize = 64 * 1024;
/// Maximum number of bytes read from the standard error of a worker that has exited.
const LAST_WORDS_MAX: u64 = 4096;
/// How long a worker may take to exit after closing its streams, before it is killed.
const ENDING: Duration = Duration::from_secs(1);
/// Maximum number of processes in the control group, counting both active workers and workers being
/// replaced.
const PIDS_MAX: u64 = 64;

/// A job for a worker.
#[derive(Debug)]
pub(super) struct Request {
    pub model: &'static str,
    /// Upper bound of the run's memory in bytes; `None` if the worker computes it.
    pub weight: Option<u64>,
    /// Bytes of memory that the worker may use to compute the weight.
    pub reading: u64,
    /// The input as JSON.
    pub input: Vec<u8>,
    pub image: Bytes,
}

/// The workers of all built-in models; clones share them.
#[derive(Debug, Clone)]
pub struct Workers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    program: PathBuf,
    arguments: Vec<OsString>,
    time_max: Duration,
    idle: Mutex<Vec<(Process, Instant)>>,
    groups: Option<Arc<Groups>>,
    /// The control group of all workers, created with the first worker.
    group: OnceLock<Group>,
}

/// A worker process. Dropping this value kills the process.
#[derive(Debug)]
struct Process {
    child: Child,
    jobs: ChildStdin,
    answers: BufReader<ChildStdout>,
    errors: ChildStderr,
}

/// The failure of a worker that sent no response.
#[derive(Debug)]
enum Lost {
    /// The worker closed its streams.
    Ended,
    Late,
    /// The worker violated the protocol.
    Nonsense,
}

impl Workers {
    /// Creates a pool that has no workers yet. `program` is this binary; `groups` is the parent of
    /// the workers' control group.
    #[must_use]
    pub fn new(program: PathBuf, groups: Option<Arc<Groups>>) -> Self {
        Self::with(program, vec!["builtin-worker".into()], TIME_MAX, groups)
    }

    fn with(
        program: PathBuf,
        arguments: Vec<OsString>,
        time_max: Duration,
        groups: Option<Arc<Groups>>,
    ) -> Self {
        let idle = Mutex::default();
        let group = OnceLock::new();
        let shared = Shared { program, arguments, time_max, idle, groups, group };
        Self { shared: Arc::new(shared) }
    }

    /// Runs one job within the memory `budget`. Dropping the future kills the worker. Must be
    /// called on a thread that lives as long as the runtime: a worker treats the end of the thread
    /// that started it as the end of the service.
    ///
    /// # Errors
    /// The model's own failure; `invalid_user_input` for a run that exceeds its memory, time or
    /// stack; `internal_error` if the worker exits for any other reason.
    pub(super) async fn run(&self, request: Request, budget: &Budget) -> Result<Value, Failure> {
        let model = request.model;
        let mut memory = match request.weight {
            Some(weight) => Some(budget.take(weight).await?),
            None => None,
        };
        let mut granted = request.weight.unwrap_or(request.reading);
        let begun = self.begin(&request, granted).await;
        drop(request);
        let (mut process, mut answer) = begun.map_err(|error| {
            let sentence = format!("the model '{model}': its worker cannot be started: {error}");
            Failure::new(ErrorClass::ProviderUnavailable, sentence)
        })?;
        if memory.is_none()
            && let Ok(Message::Weight(weight)) = answer
        {
            granted = weight;
            // If the budget rejects the weight, the worker is in the middle of a run, so it is
            // dropped and thereby killed.
            memory = Some(budget.take(weight).await?);
            answer = self.heard(process.go_on(weight)).await;
        }
        let result = match answer {
            Ok(Message::Output(output)) => Ok(output),
            Ok(Message::Failed(failure)) => Err(failure),
            Ok(Message::Panicked) => {
                let sentence = format!("the model '{model}' panicked");
                return Err(Failure::new(ErrorClass::InternalError, sentence));
            }
            Ok(Message::Weight(_)) => {
                return Err(process.lost(Lost::Nonsense, model, granted).await);
            }
            Err(lost) => return Err(process.lost(lost, model, granted).await),
        };
        if granted <= KEPT_MEMORY_MAX {
            self.keep(process);
        }
        drop(memory);
        result
    }

    /// Stops workers that have been idle for `time`.
    pub(super) fn retire(&self, time: Duration) {
        // The workers are dropped, and thereby killed, only after the lock is released.
        let retired: Vec<_> = {
            let mut idle = self.idle();
            let (kept, retired) = idle.drain(..).partition(|(_, since)| since.elapsed() < time);
            *idle = kept;
            retired
        };
        drop::<Vec<(Process, Instant)>>(retired);
    }

    /// Sends the job to a worker and waits for the first response. Retries while the machine does
    /// not have the resources to start a worker.
    async fn begin(
        &self,
        request: &Request,
        granted: u64,
    ) -> io::Result<(Process, Result<Message, Lost>)> {
        let mut pauses = Pauses::within(self.shared.time_max);
        loop {
            let mut process = when_able(pauses.left(), || self.process()).await?;
            let answer = self.heard(process.ask(request, granted)).await;
            let is_lost = matches!(answer, Err(Lost::Ended));
            if !is_lost || !process.could_not_start().await {
                return Ok((process, answer));
            }
            tracing::warn!("built-in worker failed to enter its sandbox");
            if !pauses.wait().await {
                return Ok((process, answer));
            }
        }
    }

    async fn heard(
        &self,
        answer: impl Future<Output = Result<Message, Lost>>,
    ) -> Result<Message, Lost> {
        tokio::time::timeout(self.shared.time_max, answer).await.unwrap_or(Err(Lost::Late))
    }

    /// Returns the most recently used idle worker, or starts a new one.
    fn process(&self) -> io::Result<Process> {
        loop {
            let Some((mut process, _)) = self.idle().pop() else { return self.start() };
            if matches!(process.child.try_wait(), Ok(None)) {
                return Ok(process);
            }
        }
    }

    fn keep(&self, process: Process) {
        let mut idle = self.idle();
        if idle.len() < RUNS_MAX {
            idle.push((process, runtime::monotonic_now()));
        }
    }

    fn start(&self) -> io::Result<Process> {
        let mut command = Command::new(&self.shared.program);
        command.args(&self.shared.arguments);
        command.arg("--parent").arg(std::process::id().to_string());
        if let Some(group) = self.group() {
            command.arg("--group").arg(group.path());
        }
        command.env_clear().current_dir("/").kill_on_drop(true);
        // A separate process group prevents terminal signals from reaching the worker: only the
        // service receives them, and lets running work finish.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let jobs = child.stdin.take();
        let answers = child.stdout.take();
        let errors = child.stderr.take();
        let (Some(jobs), Some(answers), Some(errors)) = (jobs, answers, errors) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Process { child, jobs, answers: BufReader::new(answers), errors })
    }

    /// Returns the control group of all workers, if the service has control groups. If creating the
    /// group fails, the next worker tries again.
    fn group(&self) -> Option<&Group> {
        let Shared { groups, group, .. } = &*self.shared;
        if group.get().is_none() {
            // These limits are a second line of defense: each worker also sets limits for itself.
            let memory = MEMORY_MAX + RUNS_MAX as u64 * MEMORY_BESIDE;
            match groups.as_ref()?.make_shared("builtin", memory, PIDS_MAX) {
                Ok(made) => drop(group.set(made)),
                Err(error) => {
                    tracing::warn!(%error, "built-in worker has no control group");
                }
            }
        }
        group.get()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Process, Instant)>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Sends a job and waits for the first response.
    async fn ask(&mut self, request: &Request, memory: u64) -> Result<Message, Lost> {
        let head = Head {
            model: request.model.to_owned(),
            memory,
            input: request.input.len(),
            image: request.image.len(),
        };
        let mut line = serde_json::to_vec(&head).map_err(|_error| Lost::Nonsense)?;
        line.push(b'\n');
        // Small jobs are sent in one write.
        let rest = if request.input.len() <= QUICK_ANSWER {
            line.extend_from_slice(&request.input);
            &[]
        } else {
            request.input.as_slice()
        };
        self.send(&[&line, rest, &request.image]).await?;
        self.hear().await
    }

    /// Returns whether the worker exited before it accepted a job because it could not enter its
    /// sandbox.
    async fn could_not_start(&mut self) -> bool {
        let waited = tokio::time::timeout(ENDING, self.child.wait()).await;
        waited.is_ok_and(|status| status.is_ok_and(|one| one.code() == Some(NOT_STARTED.into())))
    }

    /// Grants the memory that the worker requested, and waits for the outcome.
    async fn go_on(&mut self, memory: u64) -> Result<Message, Lost> {
        self.send(&[format!("{memory}\n").as_bytes()]).await?;
        self.hear().await
    }

    async fn send(&mut self, parts: &[&[u8]]) -> Result<(), Lost> {
        for part in parts {
            self.jobs.write_all(part).await.map_err(|_broken_pipe| Lost::Ended)?;
        }
        Ok(())
    }

    async fn hear(&mut self) -> Result<Message, Lost> {
        let mut line = Vec::new();
        let read = (&mut self.answers).take(ANSWER_MAX).read_until(b'\n', &mut line).await;
        read.map_err(|_broken_pipe| Lost::Ended)?;
        match line.last() {
            Some(b'\n') => {}
            Some(_) if line.len() as u64 >= ANSWER_MAX => return Err(Lost::Nonsense),
            Some(_) | None => return Err(Lost::Ended),
        }
        if line.len() <= QUICK_ANSWER {
            return parse(&line);
        }
        let parsed = tokio::task::spawn_blocking(move || parse(&line)).await;
        parsed.unwrap_or(Err(Lost::Nonsense))
    }

    /// Stops a worker that sent no response, and returns the failure of its run.
    async fn lost(mut self, lost: Lost, model: &str, memory: u64) -> Failure {
        match lost {
            Lost::Late => refuse("the run takes too long: make the input smaller"),
            Lost::Nonsense => {
                tracing::error!(%model, "built-in worker violated the protocol");
                internal(model, "its worker's answer cannot be read")
            }
            Lost::Ended => {
                let waited = tokio::time::timeout(ENDING, self.child.wait()).await;
                let status = waited.ok().and_then(Result::ok);
                let mut said = Vec::new();
                let mut errors = (&mut self.errors).take(LAST_WORDS_MAX);
                let reading = errors.read_to_end(&mut said);
                // Reading ends, because the worker's output is already in the pipe and no other
                // process holds the write end.
                let _read_or_not = tokio::time::timeout(ENDING, reading).await;
                ended(status, &String::from_utf8_lossy(&said), model, memory)
            }
        }
    }
}

/// Parses a response. The worker is not trusted, so the number of values is limited as it is in
/// requests.
fn parse(line: &[u8]) -> Result<Message, Lost> {
    if count_values(line) > JSON_VALUES_MAX {
        let sentence = format!("the result holds more than {JSON_VALUES_MAX} JSON values");
        return Ok(Message::Failed(refuse(sentence)));
    }
    let mut answer: Message = serde_json::from_slice(line).map_err(|_error| Lost::Nonsense)?;
    if let Message::Failed(failure) = &mut answer {
        failure.message.truncate(failure.message.floor_char_boundary(MESSAGE_MAX));
    }
    Ok(answer)
}

/// Returns the failure of a run whose worker has exited. Messages of the Rust runtime distinguish
/// exhausted memory or stack, which the input caused, from other crashes.
fn ended(status: Option<ExitStatus>, said: &str, model: &str, memory: u64) -> Failure {
    if said.contains("memory allocation of") {
        return refuse(format!(
            "the run exceeds its memory limit of {} MiB: make the input or the \
             result smaller",
            memory.div_ceil(MIB)
        ));
    }
    if said.contains("overflowed its stack") {
        return refuse("the input nests too deeply");
    }
    if status.and_then(|status| status.signal()) == Some(libc::SIGXCPU) {
        return refuse(format!(
            "the run takes more than {CPU_SECONDS_MAX} s of processor time: make the input smaller"
        ));
    }
    let status = status.map_or_else(|| "no exit status".to_owned(), |status| status.to_string());
    tracing::warn!(%model, %status, %said, "built-in worker exited");
    internal(model, &format!("its worker ended without an answer ({status})"))
}

fn internal(model: &str, what: &str) -> Failure {
    Failure::new(ErrorClass::InternalError, format!("the model '{model}': {what}"))
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
