//! What handlers call: the verbs of the layers below, put together by `app`.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio::task::JoinError;

use super::{Documents, Role};
use crate::accounts::Accounts;
use crate::agent::Agent;
use crate::audit::{Actor, Audit};
use crate::billing::Billing;
use crate::catalog::Catalog;
use crate::chains::Chains;
use crate::chat::Chat;
use crate::config::secret::Secret;
use crate::decisions::Decisions;
use crate::domain::ids::OrganizationId;
use crate::domain::time::Timestamp;
use crate::engine::{Aside, Engine};
use crate::files::Files;
use crate::http::budget::Budget;
use crate::http::egress;
use crate::http::rate::{Limiter, OrganizationLimiter};
use crate::idempotency::Idempotency;
use crate::members::Members;
use crate::runtime::{Clock, SharedAnswers};
use crate::schedules::Schedules;
use crate::secrets::Secrets;
use crate::signed_urls::SignedUrls;
use crate::storage::{Sealer, Store};
use crate::webhooks::Outbox;
pub use crate::wire::operator::Reloaded;
pub use crate::wire::service::{Finding, Listening, RunningService, Verdict};
use crate::workflows::Workflows;

/// A host and the address by which clients reach it.
#[derive(Debug, Clone)]
pub struct HostAddress {
    pub role: Role,
    /// Without a slash at its end.
    pub url: String,
}

/// Whether the service has read what a stop left unfinished.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<watch::Sender<bool>>);

impl Readiness {
    /// From now on `GET /ready` answers 200.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    /// Whether it is so.
    #[must_use]
    pub fn get(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves once it is so.
    pub async fn wait(&self) {
        let mut changes = self.0.subscribe();
        // The sender is held here: it never closes.
        let _ready = changes.wait_for(|is_ready| *is_ready).await;
    }
}

/// How long what has ended is kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    pub executions: Duration,
    /// Their inputs and outputs.
    pub payloads: Duration,
    pub deliveries: Duration,
    /// Sessions of the agent in which nothing is said.
    pub sessions: Duration,
}

/// Looks whether the newest backup is late, and says how.
pub type LateBackup = Arc<dyn Fn(Timestamp) -> Option<String> + Send + Sync>;

/// Looks at the machine, the data folder and the backups at this time; it reads files and tries the disk,
/// so it is called off the threads that serve requests.
#[derive(Clone)]
pub struct Doctor {
    look: Arc<dyn Fn(Timestamp) -> Vec<Finding> + Send + Sync>,
    /// `None` when backups are not made on a schedule.
    late_backup: Option<LateBackup>,
    /// Paths of this machine, and what members of organizations read in their place.
    private: Arc<[(String, &'static str)]>,
    /// Names of hosts that the configuration refers to.
    hosts: Arc<[String]>,
    started: RunningService,
}

impl Doctor {
    #[must_use]
    pub fn new(
        look: impl Fn(Timestamp) -> Vec<Finding> + Send + Sync + 'static,
        late_backup: Option<LateBackup>,
        private: Vec<(String, &'static str)>,
        hosts: Vec<String>,
        started: RunningService,
    ) -> Self {
        let (private, hosts) = (private.into(), hosts.into());
        Self { look: Arc::new(look), late_backup, private, hosts, started }
    }

    /// How the service was started: its configuration file, and where it serves metrics.
    #[must_use]
    pub fn started(&self) -> RunningService {
        self.started.clone()
    }

    /// What there is to be said now.
    #[must_use]
    pub fn findings(&self, now: Timestamp) -> Vec<Finding> {
        (self.look)(now)
    }

    /// That the newest backup is older than it should be; lists a folder, on a thread of its own, where
    /// backups are made on a schedule.
    ///
    /// # Errors
    /// When the look itself ended by a panic.
    pub async fn late_backup(&self, now: Timestamp) -> Result<Option<String>, JoinError> {
        match self.late_backup.clone() {
            Some(look) => tokio::task::spawn_blocking(move || look(now)).await,
            None => Ok(None),
        }
    }

    /// Names of hosts that the service looks up.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The finding as members of organizations read it: without a path of this machine, and without what
    /// only its operator can do.
    #[must_use]
    pub fn for_members(&self, finding: Finding) -> Finding {
        let detail = self
            .private
            .iter()
            .fold(finding.detail, |detail, (path, name)| detail.replace(path.as_str(), name));
        Finding { detail, mend: None, ..finding }
    }
}

impl std::fmt::Debug for Doctor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doctor").finish_non_exhaustive()
    }
}

/// Settings that handlers read.
#[derive(Debug, Clone)]
pub struct Settings {
    pub body_bytes: usize,
    /// The largest file.
    pub file_bytes: usize,
    /// How long a body may stand still.
    pub body_timeout: Duration,
    /// How long a body that is held in memory may take.
    pub body_total_timeout: Duration,
    /// The slowest average of a body, in bytes per second.
    pub body_min_rate: usize,
    /// How long `POST /v1/prediction/run` holds its answer.
    pub sync_wait: Duration,
    /// A prediction may come without `version`.
    pub optional_version: bool,
    /// Whether the dashboard's host serves the administration API.
    pub admin_api: bool,
    /// Whether there is a balance to tell.
    pub billing_enabled: bool,
    pub hosts: Vec<HostAddress>,
    /// Names of this machine, beside those in the URLs of its hosts.
    pub names: Vec<String>,
    /// What a request over the control socket has to bring; `None` where there is no socket.
    pub control_token: Option<Secret>,
    pub doctor: Doctor,
}

/// Settings that a reload of the configuration replaces while the service runs.
#[derive(Debug)]
pub struct Live {
    /// Origins that browsers may call from; empty: none.
    pub cors_origins: Vec<String>,
    pub keep: Keep,
    /// For each key, where the configuration sets one.
    pub rate: Option<Limiter>,
    /// As `rate`, for the links that were made with each key.
    pub link_rate: Option<Limiter>,
    /// Whether each request has a line in the log.
    pub access_log: bool,
}

/// What a reload comes to.
pub type Reloading = Pin<Box<dyn Future<Output = Reloaded> + Send>>;

/// Reads configuration, manifests and certificates again, on behalf of somebody.
#[derive(Clone)]
pub struct Reloader(Arc<dyn Fn(Actor) -> Reloading + Send + Sync>);

impl Reloader {
    #[must_use]
    pub fn new(reload: impl Fn(Actor) -> Reloading + Send + Sync + 'static) -> Self {
        Self(Arc::new(reload))
    }

    /// Reads everything again.
    pub fn reload(&self, actor: Actor) -> Reloading {
        (self.0)(actor)
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

/// Everything that a handler may call.
#[derive(Debug)]
pub struct Services {
    pub settings: Settings,
    pub clock: Clock,
    pub started_at: Timestamp,
    pub readiness: Readiness,
    pub documents: Documents,
    pub store: Store,
    pub sealer: Sealer,
    pub accounts: Accounts,
    pub audit: Audit,
    pub members: Members,
    pub schedules: Schedules,
    pub secrets: Secrets,
    pub billing: Billing,
    pub idempotency: Idempotency,
    pub files: Files,
    pub signed_urls: SignedUrls,
    pub catalog: Catalog,
    pub chains: Chains,
    pub chat: Chat,
    pub agent: Agent,
    pub decisions: Decisions,
    pub engine: Engine,
    pub workflows: Workflows,
    pub outbox: Outbox,
    /// Judges the URLs that clients supply.
    pub egress: egress::Policy,
    /// Bytes of request and reply bodies in memory.
    pub bodies: Arc<Budget>,
    /// Requests that are being answered.
    pub requests: Arc<Budget>,
    /// Settings that a reload replaces.
    pub live: ArcSwap<Live>,
    /// Reads everything again; set once the service runs.
    pub reloader: OnceLock<Reloader>,
    pub balance_rate: Limiter,
    /// Held while something is looked for by a name that need not be unique, and then made.
    pub naming: tokio::sync::Mutex<()>,
    /// What each organization's pages ask for at the same time: it reads many rows.
    pub aside: SharedAnswers<OrganizationId, Aside>,
    /// For each organization that has a limit of requests.
    pub organization_rate: OrganizationLimiter,
    pub metrics: PrometheusHandle,
}

impl Services {
    /// Where clients reach a host; empty when it has no listener.
    #[must_use]
    pub fn url_of(&self, role: Role) -> &str {
        self.settings.hosts.iter().find(|host| host.role == role).map_or("", |host| &host.url)
    }
}
