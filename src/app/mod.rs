//! The composition root: opens every layer in order, serves, and stops them in reverse.
//!
//! The only place that knows all layers. [`start`] is a whole service in this process, [`serve`]
//! runs one until a signal, [`offline()`] opens one for the command line's own requests, without
//! listeners and without running any work.

mod backups;
mod control;
mod descriptors;
mod doctor;
mod first_start;
mod housekeeping;
mod journal;
mod offline;
mod private;
mod programs;
mod reload;
mod rotation;
mod router;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::accounts::Accounts;
use crate::agent::servers;
use crate::api::{Documents, HostAddress, HostService, Keep, Readiness, Role, Services, Settings};
use crate::audit::Audit;
use crate::backup::Source;
use crate::billing::Billing;
use crate::catalog::Catalog;
use crate::chains::Chains;
use crate::config::secret::{self, Secret};
use crate::config::{Config, TlsMode};
use crate::domain::delivery::Delivery;
use crate::domain::ids::PayloadId;
use crate::engine::{self, Engine};
use crate::files::{self, Files};
use crate::guard::fence;
use crate::guard::groups::Groups;
use crate::http::budget::{Budget, Share};
use crate::http::client::Client;
use crate::http::egress::Policy;
use crate::http::rate::Limiter;
use crate::http::server::{Limits, Listener};
use crate::http::tls::{Certificates, machine_name};
use crate::idempotency::Idempotency;
use crate::members::{self, Members};
use crate::runners::builtin::{BuiltinContext, Workers};
use crate::runners::command::GuardConfig;
use crate::runners::llm::Room;
use crate::runners::options::Dependencies;
use crate::runtime::{Clock, Tasks, memory, new_id};
use crate::secrets::Secrets;
use crate::signed_urls::SignedUrls;
use crate::storage::{self, Sealer, Store};
use crate::webhooks::{self, Outbox};
use crate::workflows::Workflows;
use crate::{config, telemetry};

pub use self::backups::{UNENCRYPTED, concern as backup_concern, encryption, is_damage};
pub use self::first_start::FirstStart;
pub use self::offline::{Offline, offline};
pub use self::rotation::{Resealed, UNDER_WAY as ROTATION_UNDER_WAY, Watch, rotate_seal};

/// The control socket's name within the data folder.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Who may use the socket: a file that its owner can read, and no program behind a fence.
pub const CONTROL_TOKEN: &str = "control.token";
/// Where runs of programs have their folders, within the data folder.
const WORK: &str = "work";
/// The balance route's bucket (`docs/spec/hosts.md`, "Limits").
const BALANCE_PER_SECOND: u32 = 3;
/// Connections to the control socket and, apart from them, to the metrics: no client of the other
/// hosts can take these.
const OPERATOR_CONNECTIONS: usize = 128;
/// The name of the key that a first start makes.
const FIRST_KEY: &str = "first key";

/// The hosts in the order of `config::Hosts::named`.
const ROLES: [Role; 5] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard];

/// A service in this process.
#[derive(Debug)]
pub struct Running {
    pub services: Arc<Services>,
    tasks: Tasks,
    grace: Duration,
    addresses: Vec<(Role, SocketAddr)>,
    certificates: Option<Certificates>,
}

impl Running {
    /// Where a host listens; its first address.
    #[must_use]
    pub fn address(&self, role: Role) -> Option<SocketAddr> {
        self.addresses.iter().find(|(held, _)| *held == role).map(|(_, address)| *address)
    }

    /// Stops: no new connections, what ends within the grace ends, the rest is left to recovery.
    pub async fn stop(self) {
        self.tasks.stop();
        if !self.tasks.ended(self.grace).await {
            tracing::info!("some work is still running; it resumes at the next start");
        }
        self.services.engine.stopped();
        self.services.store.clone().close().await;
    }
}

/// Opens the store and everything over it. Nothing listens and nothing runs yet.
///
/// # Errors
/// When the store, its key file or the metrics cannot be opened, in a sentence that says what to do.
fn open(
    config: &Config,
    tasks: &Tasks,
    hosts: Vec<HostAddress>,
    live: Option<Live>,
) -> anyhow::Result<Arc<Services>> {
    let clock = Clock::system();
    let base = hosts.iter().find(|host| host.role == Role::Base);
    let base = base.map(|base| base.url.clone()).unwrap_or_default();
    let Kept { store, sealer, accounts, signed_urls, files } =
        open_kept(config, clock.clone(), base)?;
    let policy = policy(config);
    let Live { control_token, groups } = live.unwrap_or_default();
    let guard = programs::guard(config, tasks, groups)?;
    let catalog = open_catalog(config, &policy, &files, &guard)?;
    let guarded = Client::guarded(policy.clone());
    let tool_servers = servers::Doors { client: guarded.clone(), guard };
    let sent = outbox_options(&config.webhooks);
    let outbox = Outbox::new(store.clone(), sealer.clone(), guarded.clone(), clock.clone(), sent);
    let waking = outbox.clone();
    let models = catalog.clone();
    let model_exists = Arc::new(move |slug: &str| models.get(slug).is_some());
    let workflows = Workflows::new(store.clone(), sealer.clone(), clock.clone(), model_exists);
    let billing = Billing::new(store.clone(), clock.clone());
    let dependencies = engine::Dependencies {
        store: store.clone(),
        clock: clock.clone(),
        tasks: tasks.clone(),
        billing: billing.clone(),
        models: Arc::new(catalog.clone()),
        plans: Arc::new(workflows.clone()),
        client: guarded,
        files: files.clone(),
        on_delivery: Arc::new(move |delivery: Delivery| waking.wake(delivery)),
    };
    let engine = Engine::new(dependencies, engine_options(config, &store));
    let chains = Chains::new(store.clone(), clock.clone());
    let chat = router::open(config, tasks, &store, &clock, &catalog, &chains, &engine)?;
    let bodies = Budget::new(config.limits.bodies_in_flight, Share::Fair);
    let kept = (&store, &clock, &files, &signed_urls);
    let by = (&bodies, tool_servers);
    let agent = router::agent((config, tasks), kept, &chat, &catalog, &workflows, &engine, by);
    Ok(Arc::new(Services {
        agent,
        decisions: router::decisions(config, tasks, &clock, &chat),
        chat,
        settings: Settings { control_token, ..settings(config, hosts) },
        started_at: clock.now(),
        readiness: Readiness::default(),
        documents: Documents::default(),
        accounts,
        members: Members::new(store.clone(), clock.clone(), members_options(config)),
        audit: Audit::new(store.clone(), clock.clone()),
        billing,
        chains,
        files,
        signed_urls,
        idempotency: Idempotency::new(store.clone(), clock.clone()),
        secrets: Secrets::new(store.clone(), sealer.clone(), clock.clone()),
        bodies,
        requests: Budget::new(config.limits.requests_in_flight, Share::Fair),
        rate: limiter(config),
        link_rate: limiter(config),
        balance_rate: Limiter::new(BALANCE_PER_SECOND, BALANCE_PER_SECOND),
        metrics: telemetry::metrics()?,
        egress: policy,
        clock,
        store,
        sealer,
        catalog,
        engine,
        workflows,
        outbox,
    }))
}

/// The rate of each key or link, where the configuration limits it.
fn limiter(config: &Config) -> Option<Limiter> {
    let rate = config.limits.rate.as_ref();
    rate.map(|rate| Limiter::new(rate.requests_per_second.get(), rate.burst.get()))
}

fn engine_options(config: &Config, store: &Store) -> engine::Options {
    let share = || store.disk_space().total() / 2;
    engine::Options {
        active: config.engine.active,
        workflow_timeout: config.engine.workflow_timeout,
        enforce_balance: config.billing.enabled && config.billing.enforce,
        execution_bytes: config.engine.execution_bytes,
        organization_bytes: config.engine.organization_bytes.unwrap_or_else(share),
        ..engine::Options::default()
    }
}

/// What only a service that listens has.
#[derive(Default)]
struct Live {
    control_token: Option<Secret>,
    groups: Option<Arc<Groups>>,
}

/// What is on the disk.
struct Kept {
    store: Store,
    sealer: Sealer,
    accounts: Accounts,
    signed_urls: SignedUrls,
    files: Files,
}

fn open_kept(config: &Config, clock: Clock, base: String) -> anyhow::Result<Kept> {
    private::tighten(&config.data_dir)?;
    // Before the store: a new folder has its key first.
    let sealer = Sealer::open_used(&config.data_dir)?;
    if rotation::is_under_way(&config.data_dir) {
        tracing::warn!("{}", rotation::UNDER_WAY);
    }
    let store = Store::open(&storage::Options {
        folder: config.data_dir.clone(),
        inline_bytes: config.engine.payload_inline_bytes,
    })
    .map_err(|error| backups::advised(error, &config.backup.folder))?;
    let accounts = Accounts::new(store.clone(), clock.clone());
    let signed_urls =
        SignedUrls::new(sealer.clone(), clock.clone(), Arc::new(accounts.clone()), base);
    let folder = config.data_dir.join("files");
    let files =
        Files::new(folder, store.clone(), clock, signed_urls.clone(), files_options(config));
    Ok(Kept { store, sealer, accounts, signed_urls, files })
}

/// Whether a rotation of `seal.key` was begun and has not ended.
#[must_use]
pub fn is_rotation_under_way(config: &Config) -> bool {
    rotation::is_under_way(&config.data_dir)
}

/// What is stored by a service that is stopped.
///
/// # Errors
/// When a service runs on it, or it cannot be opened.
pub fn stopped_store(config: &Config) -> anyhow::Result<Source> {
    let Kept { store, files, .. } = open_kept(config, Clock::system(), String::new())?;
    Ok(Source { store, files })
}

fn open_catalog(
    config: &Config,
    policy: &Policy,
    files: &Files,
    guard: &GuardConfig,
) -> anyhow::Result<Catalog> {
    if config.models_dir.starts_with(&config.data_dir) {
        std::fs::create_dir_all(&config.models_dir)
            .with_context(|| format!("cannot make {}", config.models_dir.display()))?;
    }
    let workers = Workers::new(config.program.clone(), guard.groups.clone());
    let dependencies = Dependencies {
        builtins: BuiltinContext::new(policy.clone(), Some(files.clone()), workers),
        client: Client::trusted(),
        guard: guard.clone(),
        room: Arc::new(Room::of_bytes(config.limits.model_memory_bytes)),
    };
    let (catalog, report) = Catalog::open(config.models_dir.clone(), dependencies);
    reload::log_errors(&report);
    Ok(catalog)
}

fn settings(config: &Config, hosts: Vec<HostAddress>) -> Settings {
    Settings {
        body_bytes: config.limits.body_bytes,
        file_bytes: usize::try_from(config.files.max_bytes).unwrap_or(usize::MAX),
        body_timeout: config.limits.body_timeout,
        body_total_timeout: config.limits.body_total_timeout,
        body_min_rate: config.limits.body_min_rate,
        sync_wait: config.limits.sync_wait,
        optional_version: config.compat.optional_version,
        cors_origins: config.cors.allow_origins.clone(),
        billing_enabled: config.billing.enabled,
        keep: Keep {
            executions: config.retention.executions,
            payloads: config.retention.payloads,
            deliveries: config.retention.deliveries,
            sessions: config.retention.sessions,
        },
        hosts,
        names: config.tls.names.iter().cloned().chain([machine_name()]).collect(),
        control_token: None,
        doctor: doctor::of(config),
    }
}

/// Which addresses the configuration lets clients have called.
#[must_use]
pub fn policy(config: &Config) -> Policy {
    let allow = config.egress.allow.clone();
    let deny = config.egress.deny.clone();
    let single_label_names = config.egress.single_label_names;
    Policy { allow, deny, single_label_names, ..Policy::default() }
}

fn members_options(config: &Config) -> members::Options {
    let config::Dashboard { session_idle, session_max } = config.dashboard;
    members::Options { session_idle, session_max }
}

fn files_options(config: &Config) -> files::Options {
    let config::Files { max_bytes, quota_bytes, retention } = config.files;
    files::Options { max_bytes, quota_bytes, retention }
}

fn outbox_options(webhooks: &config::Webhooks) -> webhooks::Options {
    webhooks::Options {
        schedule: webhooks.schedule.clone(),
        timeout: webhooks.timeout,
        redelivery_cooldown: webhooks.redelivery_cooldown,
        in_flight: webhooks.in_flight,
        in_flight_per_receiver: webhooks.in_flight_per_receiver,
        send_plain_secret: webhooks.send_plain_secret,
        circuit_failures: webhooks.circuit_failures,
        circuit_open: webhooks.circuit_open,
    }
}

/// The hosts of a service that does not listen, by the addresses of its configuration.
fn configured_hosts(config: &Config) -> Vec<HostAddress> {
    let hosts = ROLES.into_iter().zip(config.hosts.named());
    hosts.map(|(role, (_, host))| HostAddress { role, url: host.public_url.clone() }).collect()
}

/// A listener that is bound but does not serve yet.
struct Bound {
    role: Role,
    listener: Listener,
    encrypted: bool,
}

/// Binds every address of every host, so that a taken port is known before anything else happens.
fn bind(config: &Config) -> anyhow::Result<(Vec<Bound>, Vec<HostAddress>)> {
    let mut bound = Vec::new();
    let mut hosts = Vec::new();
    for (role, (name, host)) in ROLES.into_iter().zip(config.hosts.named()) {
        let mut url = host.public_url.clone();
        for address in &host.listen {
            let listener = Listener::tcp(*address).with_context(|| format!("the host {name}"))?;
            if address.port() == 0
                && let Some(actual) = listener.address()
            {
                url = url.replace(":0", &format!(":{}", actual.port()));
            }
            bound.push(Bound { role, listener, encrypted: config.tls.encrypts(address) });
        }
        hosts.push(HostAddress { role, url });
    }
    for address in &config.metrics.listen {
        let listener = Listener::tcp(*address).context("metrics")?;
        bound.push(Bound { role: Role::Metrics, listener, encrypted: false });
    }
    Ok((bound, hosts))
}

/// The certificate for encrypted listeners; `None` where there is none of them.
fn certificates(config: &Config, clock: &Clock) -> anyhow::Result<Option<Certificates>> {
    let hosts = config.hosts.named();
    if !hosts.iter().flat_map(|(_, host)| &host.listen).any(|address| config.tls.encrypts(address))
    {
        return Ok(None);
    }
    let made = match &config.tls.mode {
        TlsMode::Files { certificate, private_key } => {
            secret::hide_from_programs(private_key);
            Certificates::files(certificate, private_key)?
        }
        TlsMode::Auto | TlsMode::SelfSigned | TlsMode::Off => {
            let mut names = config.tls.names.clone();
            let hosts = hosts.iter().filter_map(|(_, host)| url::Url::parse(&host.public_url).ok());
            let machine = machine_name();
            let hosts = hosts.filter_map(|url| url.host_str().map(str::to_owned));
            // A URL that is derived has the machine's own name, which may change with each start.
            names.extend(hosts.filter(|host| !host.eq_ignore_ascii_case(&machine)));
            Certificates::self_signed(&config.data_dir, &names, clock.now())?
        }
    };
    Ok(Some(made))
}

/// Starts a whole service: when this returns, it listens and has taken up unfinished work.
///
/// # Errors
/// When a port, the store, a certificate or the control socket cannot be had.
pub async fn start(config: &Config) -> anyhow::Result<Running> {
    let tasks = Tasks::new();
    let clock = Clock::system();
    let (bound, hosts) = bind(config)?;
    let control_token = control::token()?;
    let live = Live { control_token: Some(control_token.clone()), groups: take_groups() };
    let services = open(config, &tasks, hosts, Some(live))?;
    services.store.disk_space().keep(config.limits.disk_reserve);
    if !config.accept_loss {
        services.store.check_payload_folder().await?;
        services.files.check_folder().await?;
    }
    let started: PayloadId = new_id();
    let certificates = certificates(config, &clock)?;
    let acceptor = certificates.as_ref().map(Certificates::acceptor);
    let limits = server_limits(config);
    let mut addresses = Vec::new();
    for Bound { role, listener, encrypted } in bound {
        addresses.extend(listener.address().map(|address| (role, address)));
        let tls = acceptor.clone().filter(|_| encrypted);
        let limits = if role == Role::Metrics { for_operator(&limits) } else { limits.clone() };
        listen(listener, role, tls, &services, limits, &tasks)?;
    }
    control::keep(&config.data_dir.join(CONTROL_TOKEN), &control_token)?;
    let control = Listener::unix(&config.data_dir.join(CONTROL_SOCKET))?;
    listen(control, Role::Control, None, &services, for_operator(&limits), &tasks)?;
    if let Some(certificates) = &certificates {
        certificates.watch(&tasks, &clock, journal::noting(&services, &tasks, "certificate"));
    }
    remove_work(&config.data_dir.join(WORK));
    housekeeping::restore_time(&services).await?;
    let unfinished = services.engine.recover().await?;
    services.outbox.start(&tasks);
    services.readiness.set();
    tracing::info!(unfinished, models = services.catalog.len(), "the service is up");
    reload::watch_models(&services, &tasks);
    reload::maintain_models(&services, &tasks);
    warn_of_open_networks(&services).await?;
    journal::note_start(&services, config).await?;
    tasks.spawn(journal::run(Arc::clone(&services), tasks.clone(), config.audit.clone()));
    telemetry::run_upkeep(&tasks, services.metrics.clone());
    memory::keep_small(&tasks);
    tasks.spawn(housekeeping::run(
        Arc::clone(&services),
        tasks.clone(),
        started,
        config.accept_loss,
    ));
    tasks.spawn(backups::run(Arc::clone(&services), tasks.clone(), config.clone()));
    let grace = config.engine.shutdown_grace;
    Ok(Running { services, tasks, grace, addresses, certificates })
}

/// The limits that the hosts share.
fn server_limits(config: &Config) -> Limits {
    let per_address = Share::AtMost(config.limits.connections_per_address);
    Limits {
        header_timeout: config.limits.header_timeout,
        keep_alive: config.limits.keep_alive,
        write_timeout: config.limits.write_timeout,
        connections: Arc::new(Semaphore::new(descriptors::connections(
            config.limits.connections,
            descriptors::raise(),
        ))),
        per_address: Budget::new(usize::MAX, per_address),
    }
}

/// The same with places of its own, for one listener.
fn for_operator(limits: &Limits) -> Limits {
    Limits {
        connections: Arc::new(Semaphore::new(OPERATOR_CONNECTIONS)),
        per_address: Budget::new(usize::MAX, Share::AtMost(OPERATOR_CONNECTIONS)),
        ..limits.clone()
    }
}

fn listen(
    listener: Listener,
    role: Role,
    tls: Option<TlsAcceptor>,
    services: &Arc<Services>,
    limits: Limits,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let host = Arc::new(HostService::new(role, Arc::clone(services), tls.is_some())?);
    tasks.spawn(listener.serve(tls, host, limits, tasks.clone()));
    Ok(())
}

/// The service's control group, where it is delegated. Says what the programs of models can do here
/// that they should not.
fn take_groups() -> Option<Arc<Groups>> {
    if let Some(concern) = fence::strength().concern() {
        tracing::warn!("{concern}");
    }
    match Groups::take() {
        Ok(groups) => {
            tracing::info!(limits = groups.has_limits(), "programs of models get control groups");
            Some(Arc::new(groups))
        }
        Err(reason) => {
            tracing::info!("programs of models share the service's control group: {reason}");
            None
        }
    }
}

/// Removes what runs of programs have left behind. Programs make what is in there, so nothing in it
/// keeps the service from starting.
fn remove_work(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(
            %error, folder = %folder.display(),
            "failed to remove what earlier runs left behind"
        );
    }
}

/// Warns where several organizations can reach the network that the box is in.
async fn warn_of_open_networks(services: &Services) -> anyhow::Result<()> {
    let organizations = services.accounts.organizations().await?.len();
    if let Some(warning) = services.egress.warning(organizations) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Runs a service until SIGTERM or SIGINT; SIGHUP reloads models and certificates. Once it is ready,
/// `ready` is called with what a start makes that a person watches: nothing unless `is_watched`.
///
/// # Errors
/// When it cannot start, or when the disk refused a write: what was acknowledged is kept, and the
/// next start takes up the rest.
pub async fn serve(
    config: Config,
    is_watched: bool,
    ready: impl FnOnce(FirstStart) + Send + 'static,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let running = start(&config).await?;
    let first = first_start::prepare(&running.services, is_watched).await?;
    notify(sd_notify::NotifyState::Ready);
    ready(first);
    let services = Arc::clone(&running.services);
    let failure = loop {
        tokio::select! {
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            reason = services.store.failed() => break Some(reason),
            _ = hang_up.recv() => running.reload().await,
        }
    };
    notify(sd_notify::NotifyState::Stopping);
    running.stop().await;
    match failure {
        None => Ok(()),
        Some(reason) => anyhow::bail!(
            "the disk refused a write ({reason}): acknowledged data is safe; free some space or \
             replace the disk, then start again"
        ),
    }
}

/// Notifies systemd where `NOTIFY_SOCKET` asks for it.
fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "sd_notify failed");
    }
}
