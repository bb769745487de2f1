//! One server: its process, and the requests that use it.
//!
//! ```text
//! Unloaded ──first request──▶ Loading ──ready──▶ Ready ──idle, or another needs its memory──▶ Draining
//!     ▲                          │                 │                                            │
//!     │                          └──▶ Failed ◀─────┘ (repeated exits)                           │
//!     └─────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A server that exits by itself is started again at once, and the requests that it lost are
//! repeated by `endpoints`; one that exits again and again, or does not start, has a backoff, during
//! which requests fail at once with the reason.

use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::group::Group;
use super::{Check, Groups, Options, at_port};
use crate::Health;
use crate::backoff::Backoff;
use crate::command::GuardConfig;
use crate::command::process::Process;
use crate::llm::Load;
use crate::options::Dependencies;
use crate::tail::Tail;
use orrery_http::client::Client;
use orrery_runtime::{self as runtime, Tasks};

/// Delays after starts that failed.
const BACKOFF_FIRST: Duration = Duration::from_secs(5);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// A server that has been ready for this long counts as healthy again.
const STEADY: Duration = Duration::from_secs(60);
/// After this many exits, without the server being ready for [`STEADY`] in between, restarts are
/// delayed by the backoff.
const EXITS_MAX: u32 = 3;
/// How long a request whose connection broke waits for the exit of its server.
const EXIT_WAIT: Duration = Duration::from_secs(1);
const EXIT_LOOK: Duration = Duration::from_millis(5);
pub(super) const STOPPING: &str = "the service is stopping";

/// The state of a server, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Unloaded,
    Loading,
    Ready,
    Draining,
    Failed,
}

impl Phase {
    /// Returns the state in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Failed => "failed",
        }
    }
}

/// The state of a server with its details, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Situation {
    pub phase: Phase,
    /// How long the server has been in this phase.
    pub since: Duration,
    /// Why the server does not run.
    pub reason: Option<String>,
    /// The memory that the server takes of its group, in bytes.
    pub memory: Option<u64>,
    /// Requests in flight.
    pub in_use: usize,
}

/// A server that this service starts.
#[derive(Debug)]
pub struct Server {
    pub(super) options: Options,
    /// The model's slug.
    pub(super) model: String,
    /// The URL of the manifest.
    pub(super) url: String,
    pub(super) check: Option<Check>,
    pub(super) guard: GuardConfig,
    pub(super) client: Client,
    group: Result<Option<Arc<Group>>, String>,
    pub(super) tail: Tail,
    state: Mutex<State>,
    /// Locked while the server is being started.
    starting: Arc<tokio::sync::Mutex<()>>,
    /// Notified when the phase changes, and when the last request in flight ends.
    changed: Notify,
    /// Whether a task that [`Server::begin_open`] has started is running.
    is_opening: AtomicBool,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    instance: Option<Instance>,
    in_use: usize,
    idle_since: Instant,
    backoff: Backoff,
    /// Number of starts so far.
    starts: u64,
    /// Number of exits since the server was last steady.
    exits: u32,
    /// The error of the last start, or a description of the last exit.
    failure: Option<String>,
    /// Whether an operator has stopped the server, so that only a request starts it.
    is_held: bool,
    /// Whether the server has been ready since this service started.
    was_ready: bool,
}

/// A running server.
#[derive(Debug)]
struct Instance {
    process: Process,
    port: u16,
    number: u64,
    ready_at: Instant,
}

/// A request in flight: while it exists, the server is not stopped.
#[derive(Debug)]
pub struct InUse {
    server: Arc<Server>,
    port: u16,
    number: u64,
}

impl InUse {
    /// Returns a URL of the manifest with the server's port.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        at_port(url, self.port)
    }

    /// Returns whether the server that got the request has exited; waits briefly for its exit.
    pub async fn has_ended(&self) -> bool {
        let begun = runtime::monotonic_now();
        loop {
            if self.server.lock_after_exit().instance.as_ref().map(|one| one.number)
                != Some(self.number)
            {
                return true;
            }
            if begun.elapsed() > EXIT_WAIT {
                return false;
            }
            tokio::time::sleep(EXIT_LOOK).await;
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.server.lock();
        state.in_use = state.in_use.saturating_sub(1);
        state.idle_since = runtime::monotonic_now();
        let is_idle = state.in_use == 0;
        drop(state);
        if is_idle {
            self.server.note_change();
        }
    }
}

/// What a request finds.
enum Found {
    Running(InUse),
    /// Being started or stopped.
    Changing,
    Stopped,
    /// The server cannot be used, for this reason.
    Unusable(String),
}

impl Server {
    /// Creates the handle without starting the server. `url` is that of the manifest.
    #[must_use]
    pub(crate) fn new(
        options: Options,
        model: String,
        url: String,
        check: Option<Check>,
        dependencies: &Dependencies,
    ) -> Arc<Self> {
        let now = runtime::monotonic_now();
        let state = State {
            phase: Phase::Unloaded,
            since: now,
            instance: None,
            in_use: 0,
            idle_since: now,
            backoff: Backoff::between(BACKOFF_FIRST, BACKOFF_MAX),
            starts: 0,
            exits: 0,
            failure: None,
            is_held: false,
            was_ready: false,
        };
        let server = Arc::new(Self {
            group: options.group_of(&dependencies.groups),
            options,
            model,
            url,
            check,
            guard: dependencies.guard.clone(),
            client: dependencies.client.clone(),
            tail: Tail::default(),
            state: Mutex::new(state),
            starting: Arc::default(),
            changed: Notify::new(),
            is_opening: AtomicBool::new(false),
        });
        if let Ok(Some(group)) = &server.group {
            group.add(&server);
        }
        server
    }

    /// Waits until the server is ready, starting it if needed, and counts a request as in flight.
    ///
    /// # Errors
    /// The reason why the server cannot be started, as a phrase that follows the model's name.
    pub async fn open(self: &Arc<Self>) -> Result<InUse, String> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.find() {
                Found::Running(in_use) => return Ok(in_use),
                Found::Unusable(reason) => return Err(reason),
                Found::Changing => {
                    changed.await;
                    // All requests that were waiting for a start share its failure.
                    let state = self.lock();
                    if let (Phase::Failed, Some(failure)) = (state.phase, &state.failure) {
                        return Err(failure.clone());
                    }
                    continue;
                }
                Found::Stopped => {}
            }
            let Ok(starting) = Arc::clone(&self.starting).try_lock_owned() else {
                changed.await;
                continue;
            };
            let server = Arc::clone(self);
            // Runs in a separate task, so that the other callers keep waiting if the first caller
            // is dropped.
            let started = self.guard.tasks.spawn(async move {
                let started = server.load().await;
                drop(starting);
                server.note_change();
                started
            });
            return started.await.unwrap_or_else(|_stopping| Err(STOPPING.to_owned()));
        }
    }

    fn find(self: &Arc<Self>) -> Found {
        if let Err(reason) = &self.group {
            return Found::Unusable(reason.clone());
        }
        let mut state = self.lock_after_exit();
        match (state.phase, &state.instance) {
            (Phase::Ready, Some(instance)) => {
                let (port, number) = (instance.port, instance.number);
                state.in_use = state.in_use.saturating_add(1);
                Found::Running(InUse { server: Arc::clone(self), port, number })
            }
            (Phase::Loading | Phase::Draining, _) => Found::Changing,
            (Phase::Failed, _) if !state.backoff.left().is_zero() => {
                Found::Unusable(state.failure.clone().unwrap_or_default())
            }
            (Phase::Unloaded | Phase::Ready | Phase::Failed, _) => Found::Stopped,
        }
    }

    /// Waits for memory, and starts the server. The caller holds `starting`.
    async fn load(self: &Arc<Self>) -> Result<InUse, String> {
        match &self.group {
            Ok(Some(group)) => tokio::select! {
                () = group.claim(self) => {}
                () = self.guard.tasks.stopping() => return Err(STOPPING.to_owned()),
            },
            Ok(None) | Err(_) => self.begin_loading(),
        }
        let begun = runtime::monotonic_now();
        let started = self.start().await;
        let mut state = self.lock();
        match started {
            Ok((process, port)) => {
                tracing::info!(model = %self.model, port, time = ?begun.elapsed(), "server ready");
                let number = state.starts;
                let ready_at = runtime::monotonic_now();
                state.instance = Some(Instance { process, port, number, ready_at });
                state.failure = None;
                state.was_ready = true;
                state.in_use = state.in_use.saturating_add(1);
                self.enter(&mut state, Phase::Ready);
                drop(state);
                Ok(InUse { server: Arc::clone(self), port, number })
            }
            Err(reason) => {
                let pause = state.backoff.failed();
                tracing::warn!(model = %self.model, %reason, pause = %humantime::format_duration(pause), "server did not start; retrying");
                state.failure = Some(reason.clone());
                self.enter(&mut state, Phase::Failed);
                Err(reason)
            }
        }
    }

    /// Marks the server as loading: from now on it takes memory of its group.
    pub(super) fn begin_loading(&self) {
        let mut state = self.lock();
        state.starts = state.starts.wrapping_add(1);
        state.is_held = false;
        self.enter(&mut state, Phase::Loading);
    }

    /// Stops the server once its requests in flight have ended; new requests wait, and start it
    /// again. Does nothing unless the server is loading or ready. Dropping the future does not
    /// interrupt the stop.
    pub async fn unload(self: &Arc<Self>) {
        let server = Arc::clone(self);
        // An error means that the service is stopping, which ends the process anyway.
        let _stopped = self.guard.tasks.spawn(async move { server.stop().await }).await;
    }

    async fn stop(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.lock_after_exit();
                match state.phase {
                    Phase::Ready => {
                        self.enter(&mut state, Phase::Draining);
                        break;
                    }
                    Phase::Loading => {}
                    Phase::Unloaded | Phase::Draining | Phase::Failed => return,
                }
            }
            changed.await;
        }
        let instance = loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.lock_after_exit();
                if state.in_use == 0 || state.instance.is_none() {
                    break state.instance.take();
                }
            }
            changed.await;
        };
        if let Some(mut instance) = instance {
            instance.process.end().await;
        }
        tracing::info!(model = %self.model, "server stopped");
        self.enter(&mut self.lock(), Phase::Unloaded);
        self.note_change();
    }

    /// Starts the server in the background, which may wait for the memory of its group. If the
    /// start fails, the server's state contains the reason.
    pub fn begin_open(self: &Arc<Self>) {
        if self.is_opening.swap(true, Ordering::Relaxed) {
            return;
        }
        let server = Arc::clone(self);
        self.guard.tasks.spawn(async move {
            let _in_use = server.open().await;
            server.is_opening.store(false, Ordering::Relaxed);
        });
    }

    /// Stops the server like [`Server::unload`], in the background; `load = "at_start"` does not
    /// start it again.
    pub fn begin_hold(self: &Arc<Self>) {
        let server = Arc::clone(self);
        self.guard.tasks.spawn(async move {
            server.lock().is_held = true;
            server.stop().await;
        });
    }

    /// Starts and stops the server as configured, and records exits.
    pub(crate) async fn maintain(self: &Arc<Self>) {
        let (is_wanted, is_idle) = {
            let fits = match &self.group {
                // Only requests make other servers of the group stop.
                Ok(Some(group)) => group.has_room_for(self),
                Ok(None) => true,
                Err(_) => false,
            };
            let state = self.lock_after_exit();
            let is_down = matches!(state.phase, Phase::Unloaded | Phase::Failed);
            let is_due = is_down && !state.is_held && state.backoff.left().is_zero();
            let is_idle = state.phase == Phase::Ready
                && state.in_use == 0
                && state.idle_since.elapsed() >= self.options.idle_unload;
            (is_due && fits, is_idle)
        };
        let describes_model = self.check.as_ref().is_some_and(|check| check.describes_model);
        let starts_itself = match self.options.load {
            Load::AtStart => true,
            Load::OnDemand => describes_model && !self.lock().was_ready,
        };
        if starts_itself && is_wanted {
            self.begin_open();
        } else if self.options.load == Load::OnDemand && is_idle {
            // The stop may take longer than the maintenance of a model.
            let server = Arc::clone(self);
            self.guard.tasks.spawn(async move { server.stop().await });
        }
    }

    /// Returns the URL of the running server.
    pub(crate) fn address(&self) -> Option<String> {
        let state = self.lock_after_exit();
        let instance = state.instance.as_ref().filter(|_| state.phase == Phase::Ready);
        instance.map(|instance| at_port(&self.url, instance.port))
    }

    /// Returns the model's health; a stopped server has the health of its last start.
    pub(crate) fn health(&self) -> Health {
        if let Err(reason) = &self.group {
            return Health::Failing(reason.clone());
        }
        let state = self.lock_after_exit();
        match (state.phase, &state.failure) {
            (Phase::Failed, reason) => Health::Failing(reason.clone().unwrap_or_default()),
            (Phase::Loading, _) => Health::Starting,
            (Phase::Unloaded, _) if self.options.load == Load::AtStart && !state.is_held => {
                Health::Starting
            }
            (Phase::Unloaded | Phase::Ready | Phase::Draining, _) => Health::Good,
        }
    }

    /// Returns the state of the server.
    #[must_use]
    pub fn situation(&self) -> Situation {
        let memory = matches!(self.group, Ok(Some(_))).then(|| self.memory());
        let state = self.lock_after_exit();
        let reason = match &self.group {
            Err(reason) => Some(reason.clone()),
            Ok(_) => state.failure.clone(),
        };
        let phase = if self.group.is_err() { Phase::Failed } else { state.phase };
        Situation { phase, since: state.since.elapsed(), reason, memory, in_use: state.in_use }
    }

    /// Returns whether the server is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lock_after_exit().phase == Phase::Ready
    }

    /// Returns the end of the server's output.
    pub(crate) fn diagnostics(&self) -> Option<String> {
        Some(self.tail.text()).filter(|text| !text.is_empty())
    }

    /// Returns the memory that the server takes of its group, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let of_group = self.group.as_ref().ok().and_then(Option::as_ref);
        self.options.memory.or(of_group.map(|group| group.memory)).unwrap_or(0)
    }

    /// Returns `None` if the server takes no memory of its group. Otherwise returns the time at
    /// which it became ready, or `Some(None)` if it is not ready.
    #[expect(clippy::option_option, reason = "both answers must come from one lock of the state")]
    pub(super) fn holding(&self) -> Option<Option<Instant>> {
        let state = self.lock_after_exit();
        match state.phase {
            Phase::Unloaded | Phase::Failed => None,
            Phase::Loading | Phase::Draining => Some(None),
            Phase::Ready => Some(state.instance.as_ref().map(|instance| instance.ready_at)),
        }
    }

    /// Returns the time since which the server has been ready and idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.phase == Phase::Ready && state.in_use == 0).then_some(state.idle_since)
    }

    fn note_change(&self) {
        self.changed.notify_waiters();
        if let Ok(Some(group)) = &self.group {
            group.note_change();
        }
    }

    fn enter(&self, state: &mut State, phase: Phase) {
        state.phase = phase;
        state.since = runtime::monotonic_now();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, and records an exit of the server that has not been recorded yet.
    fn lock_after_exit(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let status = state.instance.as_mut().and_then(|instance| instance.process.ended());
        let Some((instance, status)) = state.instance.take_if(|_| status.is_some()).zip(status)
        else {
            return state;
        };
        let reason = self.describe(status);
        let mut process = instance.process;
        if tokio::runtime::Handle::try_current().is_ok() {
            // A guard that was killed has left its processes behind.
            Tasks::attend(async move {
                process.end().await;
            });
        }
        let was_steady = instance.ready_at.elapsed() >= STEADY;
        state.exits = if was_steady { 1 } else { state.exits.saturating_add(1) };
        if was_steady {
            state.backoff.succeeded();
        }
        if state.phase == Phase::Ready {
            let is_final = state.exits >= EXITS_MAX;
            let pause = if is_final { state.backoff.failed() } else { Duration::ZERO };
            tracing::warn!(model = %self.model, %reason, pause = %humantime::format_duration(pause), "server exited; restarting");
            state.failure = Some(reason);
            self.enter(&mut state, if is_final { Phase::Failed } else { Phase::Unloaded });
        }
        drop(state);
        self.note_change();
        self.lock()
    }

    /// Describes how the server exited, as a phrase that follows the model's name.
    pub(super) fn describe(&self, status: ExitStatus) -> String {
        // A program's own output may contain secrets.
        let said = self.tail.last_line();
        match said.as_deref().and_then(|line| line.strip_prefix(orrery_guard::LOG_PREFIX)) {
            Some(line) => line.to_owned(),
            None => format!("its server exited ({status})"),
        }
    }
}

impl Options {
    /// Returns the group that a manifest names, or why the server can never run.
    pub(crate) fn group_of(&self, groups: &Groups) -> Result<Option<Arc<Group>>, String> {
        let Some(name) = &self.group else { return Ok(None) };
        let group = groups.named(name).ok_or_else(|| {
            format!("its group '{name}' is not in the configuration: add [groups.{name}]")
        })?;
        match self.memory {
            Some(memory) if memory > group.memory => Err(format!(
                "it needs {memory} bytes, but its group '{name}' has {} bytes",
                group.memory
            )),
            Some(_) | None => Ok(Some(group)),
        }
    }
}

impl Drop for Server {
    /// Stops the process; its memory stays taken until it has exited. Outside a runtime, the process
    /// exits by itself.
    fn drop(&mut self) {
        let memory = self.memory();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(mut instance) = state.instance.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let group = self.group.as_ref().ok().and_then(Option::clone);
        let leaving = group.map(|group| group.leave(memory));
        Tasks::attend(async move {
            instance.process.end().await;
            drop(leaving);
        });
    }
}
