//! The handle to the engine: what it is made of, its limits, and how busy it is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::billing::Billing;
use crate::domain::account::Limits;
use crate::domain::delivery::Delivery;
use crate::domain::execution::{Execution, lane_of_model};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::engine::active::ActiveExecutions;
use crate::engine::activity::Meters;
use crate::engine::query::events::EventLogs;
use crate::engine::query::waiters::Waiters;
use crate::engine::run::budget;
use crate::engine::scheduler::admission::{Entry, Scheduler, StepWaiter};
use crate::engine::scheduler::in_flight::InFlight;
use crate::engine::scheduler::lanes::{Lanes, Load, OrganizationLoad};
use crate::engine::scheduler::retries::{Backoff, Retries};
use crate::engine::trees::{TreeLimits, Trees};
use crate::engine::{Error, Exchanges, Models, Plans, rows};
use crate::files::Files;
use crate::http::client::Client;
use crate::limits;
use crate::runtime::turns::Turns;
use crate::runtime::{Clock, Tasks};
use crate::storage::Store;
use crate::webhooks::Endpoints;

/// Hands a committed delivery to the outbox.
pub type OnDelivery = Arc<dyn Fn(Delivery) + Send + Sync>;

/// Called with each execution that has ended, after the commit of its end. It must not block.
pub type OnEnd = Box<dyn Fn(&Execution) + Send + Sync>;

/// The engine's limits.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Executions that run at once, over all lanes.
    pub active: usize,
    /// How long a workflow may be running, waits not counted.
    pub workflow_timeout: Duration,
    /// An execution for which nothing is due for longer gives up its place and its memory.
    pub aside_after: Duration,
    /// Whether what the balance cannot pay is refused.
    pub enforce_balance: bool,
    /// When an execution is tried again that failed because of an error on our side.
    pub pauses: Backoff,
    /// Bytes of inputs and outputs that one execution may make.
    pub execution_bytes: u64,
    /// Bytes of inputs and outputs that one organization may keep.
    pub organization_bytes: u64,
    /// What one execution may start, directly and through others.
    pub tree: TreeLimits,
    /// For how long, after a start, an execution that runs alone may keep all others waiting.
    pub isolation: Duration,
    /// Bytes of memory that all running workflows take.
    pub workflow_memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            active: 4096,
            workflow_timeout: Duration::from_secs(15 * 60),
            aside_after: Duration::from_secs(5),
            enforce_balance: false,
            pauses: Backoff::default(),
            execution_bytes: 256 << 20,
            organization_bytes: u64::MAX,
            tree: TreeLimits { descendants: 2_000_000, bytes: 8 << 30 },
            isolation: Duration::from_millis(500),
            workflow_memory: 256 << 20,
        }
    }
}

/// What the engine works with.
pub struct Dependencies {
    pub store: Store,
    pub clock: Clock,
    pub tasks: Tasks,
    pub billing: Billing,
    pub limits: limits::Handle,
    pub models: Arc<dyn Models>,
    pub plans: Arc<dyn Plans>,
    /// Sends the requests of HTTP steps, through the egress guard.
    pub client: Client,
    /// Keeps what models give out as bytes.
    pub files: Files,
    /// The endpoints that are notified of what ends, beside the request's own webhook.
    pub endpoints: Endpoints,
    pub on_delivery: OnDelivery,
}

impl std::fmt::Debug for Dependencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dependencies").finish_non_exhaustive()
    }
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) models: Arc<dyn Models>,
    pub(super) plans: Arc<dyn Plans>,
    pub(super) client: Client,
    pub(super) files: Files,
    pub(super) endpoints: Endpoints,
    pub(super) on_delivery: OnDelivery,
    pub(super) on_end: OnceLock<OnEnd>,
    pub(super) billing: Billing,
    pub(super) limits: limits::Handle,
    pub(super) options: Options,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) retries: Retries,
    pub(super) active: ActiveExecutions,
    /// The trees of executions that are in memory.
    pub(super) trees: Trees,
    /// The memory of running workflows.
    pub(super) memory: Arc<Turns>,
    /// The memory of what calls of steps are given.
    pub(super) calls: Arc<Turns>,
    /// The memory of results and outputs that are being made.
    pub(super) resolving: Arc<Turns>,
    pub(super) meters: Meters,
    pub(super) event_logs: Arc<EventLogs>,
    pub(super) waiters: Waiters,
    /// Woken by the steps of exchanges, and by their ends.
    pub(super) step_waiters: Waiters,
    /// Takes the steps of exchanges.
    pub(super) exchanges: Mutex<Option<Weak<dyn Exchanges>>>,
    /// What runs, for the start after a crash.
    pub(super) in_flight: InFlight,
    /// Executions that are held back until they run alone.
    pub(super) quarantined: Mutex<HashSet<ExecutionId>>,
    /// The one of them that runs now.
    pub(super) suspect: Mutex<Option<ExecutionId>>,
    /// Whether what a stop left has been taken up: before that, nothing runs.
    pub(super) is_recovered: AtomicBool,
    /// When the store was restored, while what it carried over is held back.
    pub(super) paused: Mutex<Option<Timestamp>>,
    pub(super) resuming: tokio::sync::Mutex<()>,
    /// Notified when a bulk job is taken.
    pub(super) jobs: Notify,
    pub(super) starting_jobs: tokio::sync::Mutex<()>,
    /// What organizations keep of payloads.
    pub(super) usage: budget::UsageByOrganization,
    /// Notified when an execution is suspended.
    pub(super) timers: Notify,
}

/// The handle to the engine; clones share it.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (running, queued) = self.inner.lanes().totals();
        f.debug_struct("Engine").field("running", &running).field("queued", &queued).finish()
    }
}

impl Inner {
    pub(super) fn quarantined(&self) -> std::sync::MutexGuard<'_, HashSet<ExecutionId>> {
        self.quarantined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_recovered(&self) -> bool {
        self.is_recovered.load(Ordering::Acquire)
    }

    /// Takes over how many executions of an organization may run at once.
    fn cap_organization(&self, organization: OrganizationId, limits: Limits) {
        let cap = limits.running.map(|cap| usize::try_from(cap).unwrap_or(usize::MAX));
        self.lanes().set_organization_cap(organization, cap);
        self.scheduler.wake();
    }

    pub(super) fn lanes(&self) -> std::sync::MutexGuard<'_, Lanes<Entry, StepWaiter>> {
        self.scheduler.lanes()
    }
}

impl Engine {
    /// An engine over an open store. Nothing runs before [`Engine::recover`].
    #[must_use]
    pub fn new(dependencies: Dependencies, options: Options) -> Self {
        let Dependencies {
            store,
            clock,
            tasks,
            billing,
            limits,
            models,
            plans,
            client,
            files,
            endpoints,
            on_delivery,
        } = dependencies;
        let active = ActiveExecutions::default();
        let inner = Inner {
            store,
            clock,
            tasks,
            billing,
            limits: limits.clone(),
            models,
            plans,
            client,
            files,
            endpoints,
            on_delivery,
            on_end: OnceLock::new(),
            options,
            scheduler: Arc::new(Scheduler::new(options.active, active.clone())),
            retries: Retries::new(options.pauses),
            active,
            trees: Trees::default(),
            memory: Turns::new(options.workflow_memory),
            calls: Turns::new(options.workflow_memory / 2),
            resolving: Turns::new(options.workflow_memory / 2),
            meters: Meters::default(),
            event_logs: Arc::default(),
            waiters: Waiters::default(),
            step_waiters: Waiters::default(),
            exchanges: Mutex::default(),
            in_flight: InFlight::default(),
            quarantined: Mutex::default(),
            suspect: Mutex::default(),
            is_recovered: AtomicBool::new(false),
            paused: Mutex::default(),
            resuming: tokio::sync::Mutex::default(),
            jobs: Notify::new(),
            starting_jobs: tokio::sync::Mutex::default(),
            usage: budget::UsageByOrganization::default(),
            timers: Notify::new(),
        };
        let inner = Arc::new(inner);
        let to = Arc::downgrade(&inner);
        limits.on_change(Box::new(move |organization, limits| {
            if let Some(inner) = to.upgrade() {
                inner.cap_organization(organization, limits);
            }
        }));
        Self { inner }
    }

    /// The execution, as it is stored.
    ///
    /// # Errors
    /// [`Error::NotFound`] also for another organization's; [`Error::Storage`].
    pub async fn get(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let key = rows::execution(organization, id);
        self.inner.store.read(&key).await?.ok_or(Error::NotFound)
    }

    /// The state of a model's lane.
    #[must_use]
    pub fn load(&self, model: &str) -> Load {
        self.inner.lanes().load(&lane_of_model(model))
    }

    /// Executions that run and that wait, over all lanes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        self.inner.lanes().totals()
    }

    /// Executions of an organization that run, and those that have not ended and do not run; `None`
    /// while nothing is run.
    #[must_use]
    pub fn load_of(&self, organization: OrganizationId) -> Option<OrganizationLoad> {
        let is_known = self.inner.is_recovered();
        is_known.then(|| self.inner.lanes().load_of(organization))
    }

    /// Executions that wait for another try after an error on our side, and those that are being
    /// tried again.
    #[must_use]
    pub fn retrying(&self) -> usize {
        self.inner.retries.len()
    }

    /// Executions that are held in memory, running or waiting in a window.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        self.inner.active.len()
    }

    /// The catalog has changed: takes over its caps.
    pub fn models_changed(&self) {
        self.inner.models_changed();
        self.inner.scheduler.wake();
    }
}
