//! The services that handlers call: the layers below the API, assembled by `app`.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinError;

use super::oidc::Provider;
use super::{Documents, Role};
use orrery_agent::Agent;
use orrery_alerts::Alerts;
use orrery_batches::Batches;
use orrery_catalog::Catalog;
use orrery_chat::Chat;
use orrery_chat::decisions::Decisions;
use orrery_config::secret::Secret;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::model::VERSION;
use orrery_domain::time::Timestamp;
use orrery_engine::{Aside, Engine};
use orrery_http::budget::Budget;
use orrery_http::egress;
use orrery_http::rate::{Limiter, OrganizationLimiter};
use orrery_records::accounts::Accounts;
use orrery_records::audit::{Actor, Audit};
use orrery_records::billing::Billing;
use orrery_records::chains::Chains;
use orrery_records::files::Files;
use orrery_records::idempotency::Idempotency;
use orrery_records::members::Members;
use orrery_records::schedules::Schedules;
use orrery_records::secrets::Secrets;
use orrery_records::signed_urls::SignedUrls;
use orrery_responses::{Background, Responses};
use orrery_runtime::{Clock, SharedAnswers};
use orrery_storage::{Sealer, Store};
use orrery_webhooks::Outbox;
pub use orrery_wire::operator::Reloaded;
pub use orrery_wire::service::{Finding, Listening, RunningService, Verdict};
use orrery_workflows::Workflows;

/// A host and its public URL.
#[derive(Debug, Clone)]
pub struct HostAddress {
    pub role: Role,
    /// The public URL, without a trailing slash.
    pub url: String,
}

/// Whether startup has loaded the unfinished work and the service is ready.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<watch::Sender<bool>>);

impl Readiness {
    /// Marks the service as ready, so that `GET /ready` returns 200.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    /// Returns whether the service is ready.
    #[must_use]
    pub fn get(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the service is ready.
    pub async fn wait(&self) {
        let mut changes = self.0.subscribe();
        // `self` holds the sender, so the channel never closes.
        let _ready = changes.wait_for(|is_ready| *is_ready).await;
    }
}

/// Retention periods of finished data.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    pub executions: Duration,
    /// Retention of inputs and outputs.
    pub payloads: Duration,
    pub deliveries: Duration,
    /// Retention of inactive agent sessions.
    pub sessions: Duration,
    /// Retention of stored responses.
    pub responses: Duration,
}

/// A check that returns a message if the latest backup is late.
pub type LateBackup = Arc<dyn Fn(Timestamp) -> Option<String> + Send + Sync>;

/// Checks the machine, the data folder and the backups. The checks read files and test the disk, so
/// they must not run on the threads that serve requests.
#[derive(Clone)]
pub struct Doctor {
    look: Arc<dyn Fn(Timestamp) -> Vec<Finding> + Send + Sync>,
    /// `None` when no backups are scheduled.
    late_backup: Option<LateBackup>,
    /// Local paths, and the text that replaces each path for members of organizations.
    private: Arc<[(String, &'static str)]>,
    /// The host names in the configuration.
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

    /// Returns the options with which the service was started.
    #[must_use]
    pub fn started(&self) -> RunningService {
        self.started.clone()
    }

    /// Returns the current findings.
    #[must_use]
    pub fn findings(&self, now: Timestamp) -> Vec<Finding> {
        (self.look)(now)
    }

    /// Returns a message if the latest scheduled backup is late. Lists the backup folder on a
    /// blocking thread.
    ///
    /// # Errors
    /// Returns an error when the check panics.
    pub async fn late_backup(&self, now: Timestamp) -> Result<Option<String>, JoinError> {
        match self.late_backup.clone() {
            Some(look) => tokio::task::spawn_blocking(move || look(now)).await,
            None => Ok(None),
        }
    }

    /// Returns the configured host names, whose DNS lookup the doctor checks.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the finding for members of organizations: without local paths, and without the
    /// remedy, which only the operator can apply.
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

/// Static settings that handlers read.
#[derive(Debug, Clone)]
pub struct Settings {
    pub body_bytes: usize,
    /// Maximum size of a file.
    pub file_bytes: usize,
    /// Timeout for a body of which no bytes arrive.
    pub body_timeout: Duration,
    /// Timeout for receiving a complete body that is held in memory.
    pub body_total_timeout: Duration,
    /// Minimum average rate of a body, in bytes per second.
    pub body_min_rate: usize,
    /// Maximum wait of `POST /v1/prediction/run` for the result.
    pub sync_wait: Duration,
    /// Whether a prediction may omit `version`.
    pub optional_version: bool,
    /// Whether the dashboard's host serves the administration API.
    pub admin_api: bool,
    /// Whether billing is enabled.
    pub billing_enabled: bool,
    /// The API key of requests to Ollama's host that come from this machine and send no key.
    pub local_key: Option<KeyId>,
    pub hosts: Vec<HostAddress>,
    /// Names of this machine, in addition to the names in the hosts' URLs.
    pub names: Vec<String>,
    /// The token that requests over the control socket must contain; `None` if there is no control
    /// socket.
    pub control_token: Option<Secret>,
    pub doctor: Doctor,
}

impl Settings {
    /// Fills in the version of a request body that has no version, if the version is optional.
    /// Returns whether the request itself contained a version.
    pub fn fill_version(&self, body: &mut Value) -> bool {
        let is_given = |version: &Value| !version.is_null() && version.as_str() != Some("");
        let has_version = body.get("version").is_some_and(is_given);
        if self.optional_version
            && !has_version
            && let Value::Object(fields) = body
        {
            fields.insert("version".to_owned(), VERSION.into());
        }
        has_version
    }
}

/// Settings that a reload of the configuration replaces while the service is running.
#[derive(Debug)]
pub struct Live {
    /// Allowed browser origins; if the list is empty, no origin is allowed.
    pub cors_origins: Vec<String>,
    pub keep: Keep,
    /// The rate limit of each key, if configured.
    pub rate: Option<Limiter>,
    /// The rate limit for the links created with each key; this limit has the same values as
    /// `rate`.
    pub link_rate: Option<Limiter>,
    /// Whether every request is logged.
    pub access_log: bool,
}

/// The future of a reload.
pub(crate) type Reloading = Pin<Box<dyn Future<Output = Reloaded> + Send>>;

/// Reloads the configuration, manifests and certificates on behalf of an actor.
#[derive(Clone)]
pub struct Reloader(Arc<dyn Fn(Actor) -> Reloading + Send + Sync>);

impl Reloader {
    #[must_use]
    pub fn new(reload: impl Fn(Actor) -> Reloading + Send + Sync + 'static) -> Self {
        Self(Arc::new(reload))
    }

    /// Reloads the configuration, manifests and certificates.
    pub fn reload(&self, actor: Actor) -> Reloading {
        (self.0)(actor)
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

/// All services that a handler may call.
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
    /// The identity provider, if one is configured.
    pub oidc: Option<Provider>,
    pub schedules: Schedules,
    pub secrets: Secrets,
    pub billing: Billing,
    pub idempotency: Idempotency,
    pub files: Files,
    pub signed_urls: SignedUrls,
    pub catalog: Catalog,
    pub chains: Chains,
    pub chat: Chat,
    pub batches: Batches,
    pub agent: Agent,
    pub decisions: Decisions,
    pub responses: Responses,
    pub background: Background,
    pub engine: Engine,
    pub workflows: Workflows,
    pub outbox: Outbox,
    /// Sends the doctor's findings to the operator.
    pub alerts: Alerts,
    /// Checks the URLs that clients supply.
    pub egress: egress::Policy,
    /// The memory budget of request and response bodies.
    pub bodies: Arc<Budget>,
    /// The budget of requests in flight.
    pub requests: Arc<Budget>,
    /// Settings that a reload replaces.
    pub live: ArcSwap<Live>,
    /// Reloads all files; set once the service is running.
    pub reloader: OnceLock<Reloader>,
    pub balance_rate: Limiter,
    /// A handler holds this lock while it looks up a name and then creates a resource with that
    /// name, because the store does not enforce unique names.
    pub naming: tokio::sync::Mutex<()>,
    /// Lets an organization's concurrent requests for the same page share one response, because
    /// building a response reads many rows.
    pub aside: SharedAnswers<OrganizationId, Aside>,
    /// The request rate limits of organizations.
    pub organization_rate: OrganizationLimiter,
    pub metrics: PrometheusHandle,
}

impl Services {
    /// Returns the public URL of a host; empty if it has no listener.
    #[must_use]
    pub fn url_of(&self, role: Role) -> &str {
        self.settings.hosts.iter().find(|host| host.role == role).map_or("", |host| &host.url)
    }
}
