//! The service's side of a model's process, which is started on the first request, stopped when
//! idle, and restarted after a delay if it exits by itself.
//!
//! Requests use HTTP/2 on a socket pair, so that each response has its own stream: dropping the
//! stream cancels the response, and a slow reader does not block others. If a process exits, the
//! active generations are lost. If a process exits in order to abandon the work of one request, the
//! process is restarted at once, and requests whose response had not begun are repeated.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::Load;
use super::room::Room;
use super::worker::{CommonArgs, GIVEN_UP, NOT_STARTED, READY};
use crate::backoff::Backoff;
use crate::command::GuardConfig;
use crate::options::{Dependencies, Model};
use crate::tail::Tail;
use crate::{Health, LocalModel};
use orrery_guard::groups::Group;
use orrery_http::{Body, body};
use orrery_runtime::shortage::when_able;
use orrery_runtime::{self as runtime, Tasks};

/// Timeout for loading a model: loading a large model from a slow disk takes minutes.
const LOADING_MAX: Duration = Duration::from_secs(600);
/// How long to retry a spawn that fails because the machine is out of resources.
const STARTING_MAX: Duration = Duration::from_secs(60);
/// How long a killed process may take to exit.
const ENDING: Duration = Duration::from_secs(5);
/// Longest restart delay that a request waits for. If the delay is longer, the request fails at
/// once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of times that a request is repeated because its process exited on account of
/// another request.
const REPEATS_MAX: u32 = 3;
const STOPPING: &str = "the service is stopping";
/// Maximum number of bytes read of a model-load error message.
const REFUSAL_MAX: usize = 64 * 1024;
/// Flow control window of a response, in bytes.
const WINDOW: u32 = 64 * 1024;

/// The error for a request that received no response, as a phrase that follows "the model 'x':".
#[derive(Debug)]
pub enum OpenError {
    /// The model is temporarily unavailable.
    Unavailable(String),
    /// The model's process exited.
    Ended(String),
}

/// What a process runs, and its limits.
#[derive(Debug)]
pub(crate) struct Program {
    /// The hidden command of this binary.
    pub command: &'static str,
    /// The arguments of the command beside [`CommonArgs`].
    pub arguments: Vec<OsString>,
    /// The absolute path of the model file.
    pub file: PathBuf,
    /// Size of the file in bytes; 0 if it cannot be read.
    pub file_bytes: u64,
    /// The most common data type of the model's weights, such as `Q4_K`.
    pub quantization: Option<&'static str>,
    /// Context length in tokens, if callers have to keep within it.
    pub context: Option<u32>,
    pub threads: u32,
    pub memory_bytes: Option<u64>,
    /// Estimated memory of the loaded model, in bytes.
    pub memory_estimate: u64,
    pub idle_unload: Duration,
    pub load: Load,
    /// The reason why the model can never be loaded, if there is one: an invalid file, or a build or
    /// processor that cannot run it.
    pub fault: Option<String>,
}

/// The process of one model.
#[derive(Debug)]
pub struct Process {
    program: Program,
    pub(crate) model: Model,
    guard: GuardConfig,
    room: Arc<Room>,
    /// The standard error of the process.
    tail: Tail,
    state: Mutex<State>,
    /// Locked while the process is being started.
    loading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct State {
    instance: Option<Arc<Instance>>,
    /// Number of active generations.
    in_use: usize,
    idle_since: Instant,
    backoff: Backoff,
    /// Number of starts so far.
    starts: u64,
    /// The model-load error or a description of the process's exit; cleared by a successful load.
    failure: Option<String>,
    /// A fault found when the model was last loaded that does not prevent it from responding.
    warning: Option<String>,
}

/// A process with its model loaded.
#[derive(Debug)]
struct Instance {
    requests: http2::SendRequest<Body>,
    /// Killed on drop.
    child: Mutex<Child>,
    id: Option<u32>,
    _group: Option<Group>,
}

/// A request in progress: while it exists, the model's process is not unloaded.
#[derive(Debug)]
pub struct InUse {
    process: Arc<Process>,
    instance: Arc<Instance>,
}

impl InUse {
    /// Returns how the process exited after an interrupted response, as a phrase that follows "the
    /// model 'x':"; `None` if the process is still running.
    pub async fn ended(&self) -> Option<String> {
        self.process.reap(&self.instance).await
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.process.lock();
        state.in_use = state.in_use.saturating_sub(1);
        state.idle_since = runtime::monotonic_now();
        drop(state);
        self.process.room.note_idle();
    }
}

impl Process {
    /// Creates the handle without starting the process.
    #[must_use]
    pub(crate) fn new(program: Program, model: Model, dependencies: &Dependencies) -> Arc<Self> {
        let state = State {
            instance: None,
            in_use: 0,
            idle_since: runtime::monotonic_now(),
            backoff: Backoff::default(),
            starts: 0,
            failure: None,
            warning: None,
        };
        let process = Arc::new(Self {
            program,
            model,
            guard: dependencies.guard.clone(),
            room: Arc::clone(&dependencies.room),
            tail: Tail::default(),
            state: Mutex::new(state),
            loading: Arc::default(),
        });
        process.room.add(&process);
        process
    }

    /// Sends a request whose URI is a path, after loading the model if needed. `request` rebuilds
    /// the request for a repetition. With `is_impatient`, the call fails immediately during the
    /// delay that follows a failure.
    ///
    /// # Errors
    /// [`OpenError`]
    pub async fn open(
        self: &Arc<Self>,
        request: impl Fn() -> Request<Body>,
        is_impatient: bool,
    ) -> Result<(Response<Incoming>, InUse), OpenError> {
        let mut repeats = 0;
        loop {
            let in_use = self.loaded(is_impatient).await.map_err(OpenError::Unavailable)?;
            let mut requests = in_use.instance.requests.clone();
            let error = match requests.send_request(request()).await {
                Ok(answer) => return Ok((answer, in_use)),
                Err(error) => error,
            };
            let reason = in_use.ended().await;
            let has_given_up = in_use.instance.ended().is_some_and(gave_up);
            if !has_given_up || repeats == REPEATS_MAX {
                return Err(OpenError::Ended(reason.unwrap_or_else(|| error.to_string())));
            }
            repeats += 1;
        }
    }

    /// Returns the running process, starting it if needed.
    async fn loaded(self: &Arc<Self>, is_impatient: bool) -> Result<InUse, String> {
        if let Some(found) = self.running() {
            return Ok(found);
        }
        let starts = self.lock().starts;
        let loading = Arc::clone(&self.loading).lock_owned().await;
        if let Some(found) = self.running() {
            return Ok(found);
        }
        let pause = {
            let state = self.lock();
            let pause = state.backoff.left();
            // A failed start fails all requests that were waiting for it. If the restart delay is
            // long, requests fail instead of waiting.
            let is_no_use =
                state.starts != starts || pause > PATIENCE || (is_impatient && !pause.is_zero());
            if let (true, Some(failure)) = (is_no_use, &state.failure) {
                return Err(failure.clone());
            }
            pause
        };
        tokio::time::sleep(pause).await;
        let process = Arc::clone(self);
        // Runs in a separate task, so that the other callers keep waiting if the first caller is
        // dropped.
        let starting = self.guard.tasks.spawn(async move {
            let result = process.load(is_impatient).await;
            drop(loading);
            result
        });
        starting.await.unwrap_or_else(|_stopping| Err(STOPPING.to_owned()))
    }

    /// Returns the process if it is running; otherwise records its exit.
    fn running(self: &Arc<Self>) -> Option<InUse> {
        let mut state = self.lock();
        let instance = Arc::clone(state.instance.as_ref()?);
        if let Some(status) = instance.ended() {
            self.note_end(&mut state, status);
            return None;
        }
        if instance.requests.is_closed() {
            // The process is exiting; its exit status is available soon.
            return None;
        }
        state.in_use = state.in_use.saturating_add(1);
        drop(state);
        Some(InUse { process: Arc::clone(self), instance })
    }

    async fn load(self: &Arc<Self>, is_impatient: bool) -> Result<InUse, String> {
        let started = self.start(is_impatient).await;
        let mut state = self.lock();
        state.starts = state.starts.wrapping_add(1);
        match started {
            Ok((instance, warning)) => {
                if let Some(warning) = &warning {
                    tracing::warn!(model = %self.model.name, %warning, "model loaded with a fault");
                }
                state.warning = warning;
                let instance = Arc::new(instance);
                state.instance = Some(Arc::clone(&instance));
                state.failure = None;
                state.backoff.succeeded();
                state.in_use = state.in_use.saturating_add(1);
                drop(state);
                Ok(InUse { process: Arc::clone(self), instance })
            }
            Err(reason) => {
                let pause = state.backoff.failed();
                tracing::warn!(model = %self.model.name, %reason, pause = %humantime::format_duration(pause), "model failed to load; retrying");
                state.failure = Some(reason.clone());
                Err(reason)
            }
        }
    }

    /// Starts the process and waits until its model is loaded.
    async fn start(&self, is_impatient: bool) -> Result<(Instance, Option<String>), String> {
        self.program.fault.clone().map_or(Ok(()), Err)?;
        if let Some(ended) = self.take() {
            // Kill a previous process that may still be exiting.
            ended.kill().await;
        }
        let _room = self.room.make(self.memory_estimate(), is_impatient).await?;
        let begun = runtime::monotonic_now();
        let group = self.guard.groups.as_ref();
        // The file's pages count toward the control group but not toward the memory limit.
        let file = self.program.file_bytes;
        let most = self.program.memory_bytes.map(|bytes| bytes.saturating_add(file));
        let group = group.map(|groups| groups.make(most)).transpose();
        let group =
            group.map_err(|error| format!("its control group cannot be created: {error}"))?;
        let spawned = when_able(STARTING_MAX, || self.spawn(group.as_ref())).await;
        let (mut child, socket) =
            spawned.map_err(|error| format!("its process cannot be started: {error}"))?;
        if let Some(errors) = child.stderr.take() {
            Tasks::attend(self.tail.clone().drain(errors));
        }
        let connected = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW.saturating_mul(64))
            .handshake(TokioIo::new(socket))
            .await;
        let (requests, connection) = connected.map_err(|error| format!("its process: {error}"))?;
        Tasks::attend(async move {
            // The result is ignored, because callers waiting for responses detect how the process
            // exits.
            let _ended = connection.await;
        });
        let id = child.id();
        let instance = Instance { requests, child: Mutex::new(child), id, _group: group };
        let ready = tokio::select! {
            ready = tokio::time::timeout(LOADING_MAX, instance.is_ready()) => ready,
            () = self.guard.tasks.stopping() => Ok(Err(Some(STOPPING.to_owned()))),
        };
        let refusal = match ready {
            Ok(Ok(warning)) => {
                tracing::info!(model = %self.model.name, time = ?begun.elapsed(), "model loaded");
                return Ok((instance, warning));
            }
            Ok(Err(refusal)) => Ok(refusal),
            Err(elapsed) => Err(elapsed),
        };
        let status = instance.kill().await;
        Err(match refusal {
            Ok(Some(refusal)) => refusal,
            Ok(None) => format!("it cannot be loaded: {}", self.describe(status)),
            Err(_elapsed) => format!("it was not loaded within {} s", LOADING_MAX.as_secs()),
        })
    }

    /// Spawns the process. Must be called on a thread that lives as long as the runtime: the
    /// process treats the end of the thread as the end of the service.
    fn spawn(&self, group: Option<&Group>) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let program = &self.program;
        let args = CommonArgs {
            parent: i32::try_from(std::process::id()).map_err(io::Error::other)?,
            group: group.map(|group| group.path().to_path_buf()),
            name: self.model.name.clone(),
            file: program.file.clone(),
            threads: program.threads,
            memory_bytes: program.memory_bytes,
        };
        let mut command = Command::new(&self.guard.program);
        command.arg(program.command).args(args.arguments()).args(&program.arguments);
        command.env_clear().current_dir("/").kill_on_drop(true);
        // A separate process group prevents terminal signals from reaching the process: only the
        // service receives them, and lets running work finish.
        command.process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Ok((command.spawn()?, UnixStream::from_std(ours)?))
    }

    /// Waits briefly for the process to exit after an interrupted response. Returns how the process
    /// exited, if it did.
    async fn reap(&self, instance: &Arc<Instance>) -> Option<String> {
        let waited = async {
            while instance.ended().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _alive = tokio::time::timeout(Duration::from_secs(1), waited).await;
        let status = instance.ended()?;
        let mut state = self.lock();
        if state.instance.as_ref().is_some_and(|current| Arc::ptr_eq(current, instance)) {
            self.note_end(&mut state, status);
        }
        Some(self.describe(Some(status)))
    }

    fn note_end(&self, state: &mut State, status: ExitStatus) {
        let reason = self.describe(Some(status));
        if gave_up(status) {
            tracing::warn!(model = %self.model.name, %reason, "model process ended to abandon one request; restarting");
            state.instance = None;
            return;
        }
        let pause = state.backoff.failed();
        let said = self.tail.last_line().unwrap_or_default();
        tracing::warn!(model = %self.model.name, %reason, %said, pause = %humantime::format_duration(pause), "model process exited; restarting");
        state.instance = None;
        state.failure = Some(reason);
    }

    /// Describes how the process exited, as a phrase that follows "the model 'x':".
    fn describe(&self, status: Option<ExitStatus>) -> String {
        let Some(status) = status else { return "its process does not answer".to_owned() };
        if (status.code() == Some(NOT_STARTED.into()) || gave_up(status))
            && let Some(line) = self.tail.last_line()
        {
            return line;
        }
        match status.signal() {
            // Rust aborts a process whose allocation fails.
            Some(signal @ (libc::SIGKILL | libc::SIGABRT))
                if self.program.memory_bytes.is_some() =>
            {
                let ended = if signal == libc::SIGKILL { "killed" } else { "aborted" };
                format!("its process was {ended}: it may have reached its `memory_bytes`")
            }
            _ => format!("its process ended ({status})"),
        }
    }

    /// Returns the model's health; an unloaded model has the health of its last load attempt.
    pub(crate) fn health(&self) -> Health {
        if let Some(reason) = &self.program.fault {
            return Health::Failing(reason.clone());
        }
        let state = self.lock();
        match (&state.failure, &state.instance, self.program.load) {
            (Some(reason), ..) => Health::Failing(reason.clone()),
            _ if state.warning.is_some() => {
                Health::Impaired(state.warning.clone().unwrap_or_default())
            }
            (None, None, Load::AtStart) => Health::Starting,
            (None, ..) => Health::Good,
        }
    }

    /// Loads and unloads the model as configured, and records exits.
    pub(crate) async fn maintain(self: &Arc<Self>) {
        let is_due = {
            let mut state = self.lock();
            if let Some(status) = state.instance.as_ref().and_then(|instance| instance.ended()) {
                self.note_end(&mut state, status);
            }
            let wanted = self.program.load == Load::AtStart && state.instance.is_none();
            wanted && state.backoff.left().is_zero()
        };
        if is_due && self.program.fault.is_none() {
            let _failure_is_noted = self.loaded(true).await;
        }
        let idle = self.idle_since().map(|since| since.elapsed());
        if self.program.load == Load::OnDemand
            && idle.is_some_and(|idle| idle >= self.program.idle_unload)
        {
            self.unload().await;
        }
    }

    /// Returns the time since which the model has been loaded and idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        let is_idle = state.instance.is_some() && state.in_use == 0;
        is_idle.then_some(state.idle_since)
    }

    /// Returns whether the model is loaded.
    pub(super) fn is_loaded(&self) -> bool {
        self.lock().instance.is_some()
    }

    /// Estimates the memory of the loaded model, in bytes.
    pub(super) const fn memory_estimate(&self) -> u64 {
        self.program.memory_estimate
    }

    /// Stops the process unless it is serving a request.
    pub(super) async fn unload(&self) {
        let Some(instance) = self.take() else { return };
        tracing::info!(model = %self.model.name, "model unloaded");
        instance.kill().await;
    }

    /// Takes the process out of use; returns `None` if it is serving a request or not running.
    fn take(&self) -> Option<Arc<Instance>> {
        let mut state = self.lock();
        if state.in_use > 0 { None } else { state.instance.take() }
    }

    pub(crate) fn diagnostics(&self) -> Option<String> {
        Some(self.tail.text()).filter(|text| !text.is_empty())
    }

    /// Returns the properties of the model and of its process.
    pub(crate) fn local(&self) -> LocalModel {
        let id = self.lock().instance.as_ref().and_then(|instance| instance.id);
        LocalModel {
            file_bytes: self.program.file_bytes,
            quantization: self.program.quantization,
            context: self.program.context,
            resident_bytes: id.and_then(resident_bytes),
        }
    }

    /// Returns the timeout of one response.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.model.timeout
    }

    /// Returns the model's slug.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model.name
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    /// Stops the process and removes its control group. Outside a runtime, the process exits by
    /// itself.
    fn drop(&mut self) {
        let instance = self.lock().instance.take();
        if let (Some(instance), Ok(_)) = (instance, tokio::runtime::Handle::try_current()) {
            Tasks::attend(async move {
                let _status = instance.kill().await;
            });
        }
    }
}

impl Instance {
    /// Waits until the model is loaded. Returns a warning if the model has a fault. The error is
    /// the message from the process, or `None` if the process exited.
    async fn is_ready(&self) -> Result<Option<String>, Option<String>> {
        let request = Request::get(READY).body(body::empty()).map_err(|_never| None)?;
        let answer = self.requests.clone().send_request(request).await.map_err(|_ended| None)?;
        let is_loaded = answer.status().is_success();
        let said = Limited::new(answer.into_body(), REFUSAL_MAX).collect().await;
        let said = said.map_err(|_ended| None)?.to_bytes();
        let said = String::from_utf8_lossy(&said).into_owned();
        if is_loaded { Ok(Some(said).filter(|said| !said.is_empty())) } else { Err(Some(said)) }
    }

    /// Returns the exit status if the process has exited.
    fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().ok().flatten()
    }

    /// Kills the process and waits for its exit.
    async fn kill(&self) -> Option<ExitStatus> {
        {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            // The process may have exited by itself.
            let _gone = child.start_kill();
        }
        let waited = async {
            loop {
                if let Some(status) = self.ended() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(ENDING, waited).await.ok()
    }
}

/// Returns whether the process exited to abandon the work of one request; the model itself is
/// healthy.
fn gave_up(status: ExitStatus) -> bool {
    status.code() == Some(GIVEN_UP.into())
}

/// Reads the resident memory of a process in bytes, including shared pages.
fn resident_bytes(id: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{id}/statm")).ok()?;
    let pages = statm.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}
