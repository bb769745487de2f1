//! The composition root: opens all layers in order, serves, and stops the layers in reverse order.
//!
//! This is the only crate that depends on all layers, and it converts the configuration to the
//! options of the layers. [`start`] starts a complete service in this process. [`serve`] runs a
//! service until a signal arrives. [`offline()`] opens a service for the command line's own
//! requests, without listeners and without running work.
//!
//! The crate connects the layers, including callbacks from lower to higher layers, and runs the
//! maintenance: retention, backups, reloads, the doctor's checks. This crate contains no rules
//! about models, executions or money.

mod alerts;
mod backups;
mod control;
mod descriptors;
mod doctor;
mod erasure;
mod first_start;
mod housekeeping;
mod inherited;
mod journal;
mod listeners;
mod offline;
mod options;
mod people;
mod private;
mod programs;
mod rehearsal;
mod reload;
mod rotation;
mod router;
mod scheduled;
mod serving;
mod traces;
mod watchdog;
mod worker;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use arc_swap::ArcSwap;

use self::listeners::{Bound, bind, certificates, for_operator, server_limits};
use self::options::{configured_hosts, engine_options, files_options, outbox_options, settings};
use orrery_agent::{self as agent, Agent, servers};
use orrery_api::{
    self as api, BatchAnswers, Documents, HostAddress, Readiness, Role, Services, Settings,
};
use orrery_backup::Source;
use orrery_batches::{Batches, Delays};
use orrery_catalog::Catalog;
use orrery_config::secret::Secret;
use orrery_config::{Config, TlsMode};
use orrery_domain::delivery::Delivery;
use orrery_domain::ids::PayloadId;
use orrery_engine::{self as engine, Engine};
use orrery_guard::fence;
use orrery_guard::groups::Groups;
use orrery_http::answers;
use orrery_http::budget::{Budget, Share};
use orrery_http::client::Client;
use orrery_http::egress::Policy;
use orrery_http::places;
use orrery_http::rate::{Limiter, OrganizationLimiter};
use orrery_http::server::{Limits, Listener};
use orrery_http::tls::Certificates;
use orrery_records::accounts::Accounts;
use orrery_records::audit::Audit;
use orrery_records::billing::Billing;
use orrery_records::chains::Chains;
use orrery_records::files::Files;
use orrery_records::idempotency::Idempotency;
use orrery_records::secrets::{self, Secrets};
use orrery_records::signed_urls::SignedUrls;
use orrery_runners::command::GuardConfig;
use orrery_runtime::{Background, Clock, SharedAnswers, Tasks, memory, new_id};
use orrery_schema::Schema;
use orrery_storage::{self as storage, FolderLock, Sealer, Store};
use orrery_telemetry as telemetry;
use orrery_webhooks::Outbox;
use orrery_workflows::{self as workflows, Workflows};

pub use self::alerts::test_alert;
pub use self::backups::{UNENCRYPTED, concern as backup_concern, encryption, is_damage};
pub use self::doctor::{check_manifest, free_bytes, is_in_memory, settled, without_store};
pub use self::first_start::FirstStart;
pub use self::offline::{Offline, offline};
pub use self::options::policy;
pub use self::programs::server_groups;
pub use self::rehearsal::{Rehearsed, rehearse};
pub use self::rotation::{Resealed, UNDER_WAY as ROTATION_UNDER_WAY, Watch, rotate_seal};
pub use self::serving::{Running, serve};
pub use self::worker::WorkerModels;
pub use orrery_api::schemas::{NAMES as SCHEMAS, of as schema};

/// The control socket's file name in the data folder.
pub const CONTROL_SOCKET: &str = "control.sock";
/// The file with the token of the control socket. Only its owner can read it; sandboxed programs
/// cannot.
pub const CONTROL_TOKEN: &str = "control.token";
/// The folder for runs of programs, in the data folder.
const WORK: &str = "work";
/// Rate limit of the balance route (`docs/spec/hosts.md`, "Limits").
const BALANCE_PER_SECOND: u32 = 3;
/// Maximum connections to the control socket and, separately, to the metrics listener. Connections
/// to the other hosts do not count toward these limits.
const OPERATOR_CONNECTIONS: usize = 128;
/// The name of the API key that a first start creates.
const FIRST_KEY: &str = "first key";

/// The hosts in the order of `config::Hosts::named`.
const ROLES: [Role; 5] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard];

/// Opens the store and all layers above it. Starts no listener and no work.
///
/// # Errors
/// Returns an error if the store, its key file or the metrics cannot be opened; the message
/// includes the remedy.
fn open(
    config: &Config,
    tasks: &Tasks,
    work: &Tasks,
    hosts: Vec<HostAddress>,
    live: Option<Live>,
) -> anyhow::Result<Arc<Services>> {
    let Live { control_token, groups, lock } = live.unwrap_or_default();
    let kept = open_kept(config, Clock::system(), &hosts, lock)?;
    let policy = policy(config);
    let guard = programs::guard(config, tasks, groups);
    let catalog = open_catalog(config, &policy, &kept.files, &guard)?;
    let guarded = Client::guarded(policy.clone());
    let doors = servers::Doors { client: guarded.with_share(places::Share::Tools), guard };
    let workflows = open_workflows(&kept, &catalog);
    let billing = kept.billing();
    let (outbox, engine) =
        open_engine(config, work, &kept, guarded, &billing, &catalog, &workflows);
    let Kept { store, clock, sealer, accounts, signed_urls, files } = kept;
    let chains = Chains::new(store.clone(), clock.clone());
    let chat = router::open(config, tasks, &store, &clock, &catalog, &chains, &engine)?;
    let bodies = Budget::new(config.limits.bodies_in_flight, Share::Fair);
    let dependencies = agent::Dependencies {
        store: store.clone(),
        clock: clock.clone(),
        tasks: tasks.clone(),
        chat: chat.clone(),
        catalog: catalog.clone(),
        workflows: workflows.clone(),
        files: files.clone(),
        signed_urls: signed_urls.clone(),
        engine: engine.clone(),
        bodies: Arc::clone(&bodies),
        doors,
    };
    let (responses, background) = router::responses(&store, &clock, &chat, &engine, &bodies);
    Ok(Arc::new(Services {
        alerts: alerts::open(config, &clock, &hosts),
        agent: Agent::new(dependencies, router::agent_options(config)),
        decisions: router::decisions(config, tasks, &clock, &chat),
        background,
        responses,
        chat,
        batches: batches(&store, &clock, &files),
        oidc: people::provider(config, &sealer, &clock, &hosts),
        settings: Settings { control_token, ..settings(config, hosts) },
        started_at: clock.now(),
        readiness: Readiness::default(),
        documents: Documents::default(),
        accounts,
        members: people::members(config, &store, &sealer, &clock),
        audit: Audit::new(store.clone(), clock.clone()),
        billing,
        schedules: scheduled::open(&store, &clock, &engine, &catalog, &workflows, &chains),
        chains,
        files,
        signed_urls,
        idempotency: Idempotency::new(store.clone(), clock.clone()),
        secrets: Secrets::new(store.clone(), sealer.clone(), clock.clone()),
        bodies,
        requests: Budget::new(config.limits.requests_in_flight, Share::Fair),
        live: ArcSwap::from_pointee(options::live(config)),
        reloader: OnceLock::new(),
        naming: tokio::sync::Mutex::default(),
        aside: SharedAnswers::default(),
        organization_rate: OrganizationLimiter::default(),
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

fn batches(store: &Store, clock: &Clock, files: &Files) -> Batches {
    Batches::new(store.clone(), clock.clone(), files.clone(), Delays::default())
}

/// The catalog's models, as workflow definitions see them.
struct CatalogModels(Catalog);

impl workflows::Models for CatalogModels {
    fn schema(&self, slug: &str) -> Option<Arc<Schema>> {
        self.0.get(slug).map(|model| Arc::clone(&model.schema))
    }

    fn nearest(&self, slug: &str) -> Option<String> {
        self.0.nearest(slug)
    }
}

/// Opens the engine and the outbox, which sends the engine's deliveries.
fn open_engine(
    config: &Config,
    work: &Tasks,
    kept: &Kept,
    client: Client,
    billing: &Billing,
    catalog: &Catalog,
    workflows: &Workflows,
) -> (Outbox, Engine) {
    let Kept { store, clock, sealer, accounts, files, .. } = kept;
    let sent = outbox_options(&config.webhooks);
    let outbox = Outbox::new(store.clone(), sealer.clone(), client.clone(), clock.clone(), sent);
    let dependencies = engine::Dependencies {
        store: store.with_own_readers(),
        clock: clock.clone(),
        tasks: work.clone(),
        billing: billing.clone(),
        limits: accounts.limits().clone(),
        models: Arc::new(catalog.clone()),
        plans: Arc::new(workflows.clone()),
        client,
        files: files.clone(),
        endpoints: outbox.endpoints().clone(),
        on_delivery: waking(&outbox),
    };
    let engine = Engine::new(dependencies, engine_options(config, store));
    (outbox, engine)
}

fn open_workflows(kept: &Kept, catalog: &Catalog) -> Workflows {
    let Kept { store, sealer, clock, .. } = kept;
    let models = Arc::new(CatalogModels(catalog.clone()));
    Workflows::new(store.clone(), sealer.clone(), clock.clone(), models)
        .reserving(api::words_beside("workflow"))
}

/// Returns a function that passes committed deliveries to the outbox.
fn waking(outbox: &Outbox) -> engine::OnDelivery {
    let outbox = outbox.clone();
    Arc::new(move |delivery: Delivery| outbox.wake(delivery))
}

/// The parts that only a listening service has.
#[derive(Default)]
struct Live {
    control_token: Option<Secret>,
    groups: Option<Arc<Groups>>,
    /// Lock of the data folder, taken before anything else is opened.
    lock: Option<FolderLock>,
}

/// The clock, and the layers that store data on disk.
struct Kept {
    store: Store,
    clock: Clock,
    sealer: Sealer,
    accounts: Accounts,
    signed_urls: SignedUrls,
    files: Files,
}

impl Kept {
    fn billing(&self) -> Billing {
        let accounts = &self.accounts;
        let (policies, limits) = (accounts.policies().clone(), accounts.limits().clone());
        Billing::new(self.store.clone(), self.clock.clone(), policies, limits)
    }
}

fn open_kept(
    config: &Config,
    clock: Clock,
    hosts: &[HostAddress],
    lock: Option<FolderLock>,
) -> anyhow::Result<Kept> {
    private::tighten(&config.data_dir)?;
    // The sealer is opened before the store, because a new folder needs its seal key first.
    let sealer = Sealer::open_used(&config.data_dir)?;
    if rotation::is_under_way(&config.data_dir) {
        tracing::warn!("{}", rotation::UNDER_WAY);
    }
    let options = storage::Options {
        folder: config.data_dir.clone(),
        inline_bytes: config.engine.payload_inline_bytes,
    };
    let store = match lock {
        Some(lock) => Store::open_locked(&options, lock),
        None => Store::open(&options),
    };
    let store = store.map_err(|error| backups::advised(error, &config.backup.folder))?;
    let accounts = Accounts::new(store.clone(), clock.clone());
    let base = hosts.iter().find(|host| host.role == Role::Base);
    let base = base.map(|base| base.url.clone()).unwrap_or_default();
    let signed_urls =
        SignedUrls::new(sealer.clone(), clock.clone(), Arc::new(accounts.clone()), base);
    let folder = config.data_dir.join("files");
    let limits = accounts.limits().clone();
    let files = Files::new(
        folder,
        store.clone(),
        clock.clone(),
        signed_urls.clone(),
        files_options(config),
        limits,
    );
    Ok(Kept { store, clock, sealer, accounts, signed_urls, files })
}

/// Returns an error message if a stopped service's seal key does not belong to its store.
///
/// # Errors
/// Returns an error if the key or the store cannot be read.
pub async fn seal_fault(config: &Config, store: &Store) -> anyhow::Result<Option<String>> {
    let sealer = Sealer::open_used(&config.data_dir)?;
    let fault = || format!("{}: {}", secrets::FOREIGN_KEY, secrets::FOREIGN_KEY_REMEDY);
    Ok((!secrets::has_key_of(store, &sealer).await?).then(fault))
}

/// Opens the data of a stopped service.
///
/// # Errors
/// Returns an error if a service runs on the data, or the data cannot be opened.
pub fn stopped_store(config: &Config) -> anyhow::Result<Source> {
    let Kept { store, files, .. } = open_kept(config, Clock::system(), &[], None)?;
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
            .with_context(|| format!("cannot create {}", config.models_dir.display()))?;
    }
    let dependencies = programs::dependencies(config, policy, Some(files.clone()), guard);
    let (catalog, report) = Catalog::open(config.models_dir.clone(), dependencies);
    reload::log_errors(&report);
    Ok(catalog)
}

/// Opens the control socket and starts the watchdog, which uses it.
fn listen_to_operator(
    config: &Config,
    services: &Arc<Services>,
    limits: Limits,
    tasks: &Tasks,
    token: Secret,
) -> anyhow::Result<()> {
    control::keep(&config.data_dir.join(CONTROL_TOKEN), &token)?;
    let socket = config.data_dir.join(CONTROL_SOCKET);
    let (role, listener) = (Role::Control, Listener::unix(&socket)?);
    let bound = Bound { role, listener, encrypted: false, is_one_port: false };
    bound.serve(None, services, limits, tasks)?;
    watchdog::feed(tasks, socket, token);
    Ok(())
}

/// Starts a complete service. When this returns, the service listens and has resumed unfinished
/// work.
///
/// # Errors
/// Returns an error if a port, the store, a certificate or the control socket is unavailable.
pub async fn start(config: &Config) -> anyhow::Result<Running> {
    let (running, started) = bring_up(config, take_groups).await?;
    attend(&running, config, started).await?;
    Ok(running)
}

/// Loads limits, key policies, owners of chains and names of counted models into memory, before the first request.
async fn load_accounts(services: &Services) -> anyhow::Result<()> {
    services.accounts.load_limits().await?;
    services.accounts.load_policies().await?;
    services.chains.load().await?;
    let organizations = services.accounts.organizations().await?;
    let ids: Vec<_> = organizations.into_iter().map(|organization| organization.id).collect();
    Ok(services.billing.load(ids).await?)
}

/// Opens all layers, listens on the configured addresses, resumes unfinished work, and reports
/// readiness. Also returns an id created when this process started: unfinished writes with earlier
/// ids were interrupted.
async fn bring_up(
    config: &Config,
    groups: impl FnOnce() -> Option<Arc<Groups>>,
) -> anyhow::Result<(Running, PayloadId)> {
    let bootstrap_key = first_start::bootstrap_key(config)?;
    let tasks = Tasks::new();
    let clock = Clock::system();
    let (lock, bound, hosts) = lock_and_bind(config, &clock)?;
    let control_token = control::token()?;
    let live =
        Live { control_token: Some(control_token.clone()), groups: groups(), lock: Some(lock) };
    let background = Background::start()?;
    let work = tasks.on(&background);
    answers::set_limit(config.limits.answers_in_flight);
    let services = open(config, &tasks, &work, hosts, Some(live))?;
    services.store.disk_space().keep(config.limits.disk_reserve);
    if config.accept_loss {
        services.store.accept_payload_loss()?;
        services.files.accept_loss()?;
    } else {
        services.store.check_payload_folder().await?;
        services.files.check_folder().await?;
    }
    services.outbox.endpoints().load().await?;
    load_accounts(&services).await?;
    services.secrets.check_key().await?;
    let started: PayloadId = new_id();
    let certificates = certificates(config, &clock)?;
    let acceptor = certificates.as_ref().map(Certificates::acceptor);
    let limits = server_limits(config);
    let mut addresses = Vec::new();
    let mut listening = Vec::new();
    let one_port = bound.iter().find(|bound| bound.is_one_port);
    let one_port = one_port.and_then(|bound| bound.listener.address());
    for bound in bound {
        if let Some(address) = bound.listener.address() {
            listening.push(format!("{} {address}", bound.name()));
            addresses.push((bound.role, address));
        }
        let tls = acceptor.clone().filter(|_| bound.encrypted);
        let is_metrics = bound.role == Role::Metrics;
        let limits = if is_metrics { for_operator(&limits) } else { limits.clone() };
        bound.serve(tls, &services, limits, &tasks)?;
    }
    listen_to_operator(config, &services, for_operator(&limits), &tasks, control_token)?;
    if let Some(certificates) = &certificates {
        certificates.watch(&tasks, &clock, journal::noting(&services, &tasks, "certificate"));
    }
    let traces = traces::export(config, &services, &tasks);
    let reloader = reload::reloader(&services, certificates.clone(), traces, config);
    let _first = services.reloader.set(reloader);
    remove_work(&config.data_dir.join(WORK));
    housekeeping::restore_time(&services).await?;
    let unfinished = services.engine.recover().await?;
    services.outbox.start(&work);
    work.spawn(services.schedules.clone().run(work.clone()));
    if let Some(key) = &bootstrap_key {
        first_start::bootstrap(&services, key).await?;
    }
    services.readiness.set();
    let disk = services.store.disk_space();
    tracing::info!(
        listening = listening.join(", "),
        unfinished,
        models = services.catalog.len(),
        disk_free_bytes = disk.free(),
        disk_reserve_bytes = disk.reserve(),
        "service ready"
    );
    let grace = config.engine.shutdown_grace;
    Ok((Running { services, tasks, grace, addresses, one_port, background }, started))
}

/// Locks the data folder, binds the addresses and checks the operator's certificate. If any of
/// these steps fails, a data folder that this start has created is removed, because commands would
/// mistake the folder for the data of a service.
fn lock_and_bind(
    config: &Config,
    clock: &Clock,
) -> anyhow::Result<(FolderLock, Vec<Bound>, Vec<HostAddress>)> {
    let is_new = !config.data_dir.exists();
    // The folder is locked before the ports are bound, so that a second start on the same folder
    // reports the lock and not ports in use.
    let lock = storage::make_and_lock(&config.data_dir)?;
    let bound = bind(config).and_then(|bound| {
        if matches!(config.tls.mode, TlsMode::Files { .. }) {
            certificates(config, clock)?;
        }
        Ok(bound)
    });
    match bound {
        Ok((bound, hosts)) => Ok((lock, bound, hosts)),
        Err(error) => {
            if is_new {
                lock.remove_new_folder();
            }
            Err(error)
        }
    }
}

/// Starts the background maintenance of a running service.
async fn attend(running: &Running, config: &Config, started: PayloadId) -> anyhow::Result<()> {
    let Running { services, tasks, .. } = running;
    reload::watch_models(services, tasks);
    reload::maintain_models(services, tasks);
    doctor::exposed(config).for_each(|warning| tracing::warn!("{warning}"));
    warn_of_open_networks(services).await?;
    journal::note_start(services, config).await?;
    tasks.spawn(journal::run(Arc::clone(services), tasks.clone(), config.audit.clone()));
    telemetry::run_upkeep(tasks, services.metrics.clone());
    memory::keep_small(tasks);
    tasks.spawn(housekeeping::run(
        Arc::clone(services),
        tasks.clone(),
        started,
        config.accept_loss,
    ));
    tasks.spawn(erasure::run(Arc::clone(services), tasks.clone()));
    tasks.spawn(alerts::run(Arc::clone(services), tasks.clone()));
    let answers = Arc::new(BatchAnswers::new(Arc::clone(services)));
    let engine = services.engine.clone();
    let is_held_back = move || engine.paused_since().is_some();
    tasks.spawn(services.batches.clone().run(answers, tasks.clone(), is_held_back));
    tasks.spawn(backups::run(Arc::clone(services), tasks.clone(), config.clone()));
    tasks.spawn(private::keep_closed(config.data_dir.clone(), tasks.clone()));
    Ok(())
}

/// Returns the service's control group, if systemd has delegated one. Warns about missing sandbox
/// features for models' programs.
fn take_groups() -> Option<Arc<Groups>> {
    for concern in fence::concerns() {
        tracing::warn!("{concern}");
    }
    match Groups::take() {
        Ok(groups) => {
            tracing::info!(
                limits = groups.has_limits(),
                "control groups enabled for models' programs"
            );
            Some(Arc::new(groups))
        }
        Err(reason) if std::env::var_os("INVOCATION_ID").is_some() => {
            tracing::info!(
                %reason,
                "no control groups: models' programs only have limits per process; set Delegate=yes in the unit"
            );
            None
        }
        // Only systemd delegates control groups.
        Err(reason) => {
            tracing::debug!(%reason, "no control groups");
            None
        }
    }
}

/// Removes the leftovers of runs of programs. Programs control the contents of the folder, so a
/// failure does not prevent the start.
fn remove_work(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(
            %error, folder = %folder.display(),
            "failed to remove leftovers of earlier runs"
        );
    }
}

/// Logs a warning if several organizations can reach the machine's network.
async fn warn_of_open_networks(services: &Services) -> anyhow::Result<()> {
    let organizations = services.accounts.organizations().await?.len();
    if let Some(warning) = services.egress.warning(organizations) {
        tracing::warn!("{warning}");
    }
    Ok(())
}
