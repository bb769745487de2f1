//! The handle to the engine: its dependencies, limits and load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::active::ActiveExecutions;
use crate::activity::Meters;
use crate::bulk::Jobs;
use crate::call_metrics::CallMetrics;
use crate::calls::Facts;
use crate::query::detail::Views;
use crate::query::news::News;
use crate::query::waiters::Waiters;
use crate::resume::HeldBack;
use crate::run::budget;
use crate::run::workflow::memory::MemoryBudgets;
use crate::scheduler::admission::{Entry, Scheduler, StepWaiter};
use crate::scheduler::isolation::Isolation;
use crate::scheduler::lanes::{Lanes, Load, OrganizationLoad};
use crate::scheduler::retries::{Backoff, Retries};
use crate::trees::{TreeLimits, Trees};
use crate::{Calls, Error, Exchanges, Models, Plans, rows};
use orrery_domain::account::Limits;
use orrery_domain::delivery::Delivery;
use orrery_domain::execution::{Execution, lane_of_model};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::client::Client;
use orrery_records::billing::Billing;
use orrery_records::files::Files;
use orrery_records::limits;
use orrery_records::result_cache::ResultCache;
use orrery_runtime::{Clock, Tasks};
use orrery_storage::{Page, Store};
use orrery_webhooks::Endpoints;

/// Maximum number of executions that [`Engine::share`] counts for an organization and a model.
pub(crate) const SHARE_MAX: usize = 10_000;

/// Passes a committed delivery to the outbox.
pub type OnDelivery = Arc<dyn Fn(Delivery) + Send + Sync>;

/// A callback for each execution that ends. The engine calls it after the commit that ends the
/// execution, and passes the [`Facts`] only for a chat call. The callback must not block.
pub type OnEnd = Box<dyn Fn(&Execution, Option<Facts>) + Send + Sync>;

/// The engine's limits.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum running executions across all lanes.
    pub active: usize,
    /// Maximum run time of a workflow, excluding waits.
    pub workflow_timeout: Duration,
    /// An execution with nothing due within this time is suspended: it releases its permit and
    /// memory.
    pub suspend_after: Duration,
    /// Whether to reject work that the organization's balance does not cover.
    pub enforce_balance: bool,
    /// Retry delays after internal errors.
    pub pauses: Backoff,
    /// Maximum bytes of inputs and outputs that one execution may produce.
    pub execution_bytes: u64,
    /// Maximum bytes of inputs and outputs stored per organization.
    pub organization_bytes: u64,
    /// Limits on the descendants of one root execution.
    pub tree: TreeLimits,
    /// Maximum time after a start during which an execution that must run alone may block all other
    /// executions.
    pub isolation: Duration,
    /// Memory limit of all running workflows combined, in bytes.
    pub workflow_memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            active: 4096,
            workflow_timeout: Duration::from_secs(15 * 60),
            suspend_after: Duration::from_secs(5),
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

/// The dependencies of the engine.
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
    /// Stores the binary outputs of models.
    pub files: Files,
    /// Endpoints that are notified of new and ended executions, in addition to the webhook of the
    /// request.
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
    pub(super) results: ResultCache,
    pub(super) endpoints: Endpoints,
    pub(super) on_delivery: OnDelivery,
    pub(super) on_end: OnceLock<OnEnd>,
    pub(super) billing: Billing,
    pub(super) limits: limits::Handle,
    pub(super) options: Options,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) retries: Arc<Retries>,
    pub(super) active: ActiveExecutions,
    /// The execution trees that are in memory.
    pub(super) trees: Trees,
    pub(super) memory: MemoryBudgets,
    pub(super) meters: Meters,
    pub(super) call_metrics: CallMetrics,
    pub(super) views: Views,
    pub(super) news: News,
    pub(super) waiters: Waiters,
    /// Waiters that are woken when a step of an exchange begins or ends, and when the exchange
    /// ends.
    pub(super) step_waiters: Waiters,
    /// Executes the steps of exchanges.
    pub(super) exchanges: Mutex<Option<Weak<dyn Exchanges>>>,
    /// Makes calls in the background.
    pub(super) calls: Mutex<Option<Weak<dyn Calls>>>,
    pub(super) isolation: Isolation,
    /// Whether recovery is complete. Nothing runs until then.
    pub(super) is_recovered: AtomicBool,
    pub(super) held_back: HeldBack,
    pub(super) jobs: Jobs,
    /// Payload usage by organization.
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
    pub(super) fn is_recovered(&self) -> bool {
        self.is_recovered.load(Ordering::Acquire)
    }

    /// Applies an organization's limit on running executions.
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
    /// Creates an engine on an open store. Nothing runs until [`Engine::recover`] is called.
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
        let scheduler = Arc::new(Scheduler::new(options.active, active.clone()));
        let retries = Arc::new(Retries::new(options.pauses));
        let news = News::new(clock.clone(), files.clone(), active.clone());
        let views = Views {
            store: store.clone(),
            clock: clock.clone(),
            plans: Arc::clone(&plans),
            files: files.clone(),
            retries: Arc::clone(&retries),
            scheduler: Arc::clone(&scheduler),
            active: active.clone(),
        };
        let results = ResultCache::new(store.clone(), clock.clone());
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
            results,
            endpoints,
            on_delivery,
            on_end: OnceLock::new(),
            options,
            scheduler,
            retries,
            active,
            trees: Trees::default(),
            call_metrics: CallMetrics::default(),
            memory: MemoryBudgets::new(options.workflow_memory),
            meters: Meters::default(),
            views,
            news,
            waiters: Waiters::default(),
            step_waiters: Waiters::default(),
            exchanges: Mutex::default(),
            calls: Mutex::default(),
            isolation: Isolation::default(),
            is_recovered: AtomicBool::new(false),
            held_back: HeldBack::default(),
            jobs: Jobs::default(),
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

    /// Returns the stored execution.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such execution or it belongs to another organization;
    /// [`Error::Storage`].
    pub async fn get(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Execution, Error> {
        let key = rows::execution(organization, id);
        self.inner.store.read(&key).await?.ok_or(Error::NotFound)
    }

    /// Returns the load on a model's lane.
    #[must_use]
    pub fn load(&self, model: &str) -> Load {
        self.inner.lanes().load(&lane_of_model(model))
    }

    /// Returns an organization's share of the load on a model's lane. At most [`SHARE_MAX`]
    /// executions are counted.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn share(&self, organization: OrganizationId, model: &str) -> Result<Load, Error> {
        let lane = lane_of_model(model);
        let mut rows = None;
        if self.load(model).queued > 0 {
            let prefix = rows::queue_of(&lane, organization);
            let page = Page { prefix, after: None, before: None, limit: SHARE_MAX };
            rows = Some(self.inner.store.page(page).await?.len());
        }
        Ok(self.inner.lanes().share(&lane, organization, rows))
    }

    /// Returns the numbers of running and queued executions across all lanes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        self.inner.lanes().totals()
    }

    /// Returns an organization's numbers of running and other unfinished executions, or `None`
    /// until recovery is complete.
    #[must_use]
    pub fn load_of(&self, organization: OrganizationId) -> Option<OrganizationLoad> {
        let is_known = self.inner.is_recovered();
        is_known.then(|| self.inner.lanes().load_of(organization))
    }

    /// Returns the number of executions that failed with an internal error and are waiting for a
    /// retry or being retried.
    #[must_use]
    pub fn retrying(&self) -> usize {
        self.inner.retries.len()
    }

    /// Returns the number of executions in memory, either running or queued in a window.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        self.inner.active.len()
    }

    /// Applies the concurrency limits of the catalog after a change.
    pub fn models_changed(&self) {
        self.inner.models_changed();
        self.inner.scheduler.wake();
    }
}
