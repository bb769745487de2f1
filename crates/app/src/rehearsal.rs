//! Upgrade rehearsal: starts this release on a copy of a service's data, without ports. A rehearsal
//! runs no work, sends no requests, starts none of the operator's programs, and writes only to the
//! copy.
//!
//! The copy is a restored backup, so its unfinished executions are paused.

use std::path::PathBuf;
use std::time::Duration;

use super::{Running, bring_up};
use orrery_api::Services;
use orrery_config::Config;
use orrery_domain::account::{ApiKey, LedgerEntry, Organization};
use orrery_domain::chain::Chain;
use orrery_domain::execution::Execution;
use orrery_domain::file::File;
use orrery_domain::member::Member;
use orrery_domain::schedule::Schedule;
use orrery_domain::secret::Secret;
use orrery_domain::step::Step;
use orrery_domain::workflow::Workflow;
use orrery_runtime::monotonic_now;
use orrery_storage::record::{Record, decode};
use orrery_storage::{self as storage, Key, Table, held_back};

/// Maximum number of errors that a rehearsal reports.
const FAULTS_MAX: usize = 100;

/// The result of a rehearsal.
#[derive(Debug, Clone, Default)]
pub struct Rehearsed {
    /// The time until the service was ready.
    pub start: Duration,
    /// The store format that this release writes.
    pub store_format: u32,
    /// Free bytes on the disk in addition to the copy.
    pub free: u64,
    /// Number of unfinished executions that a service would resume.
    pub executions: u64,
    pub deliveries: u64,
    /// Number of workflow versions that this release can run.
    pub workflows: u64,
    pub models: usize,
    /// Problems that prevent this release from reading or running stored data, as sentences.
    pub faults: Vec<String>,
    /// Errors in the manifests.
    pub manifests: Vec<String>,
}

/// Starts this release on `data`, a restored data folder that replaces the data folder of `config`.
/// Reads all stored records with this release's types, and stops.
///
/// # Errors
/// Returns an error if the service does not start, or the store cannot be read.
pub async fn rehearse(config: &Config, data: PathBuf) -> anyhow::Result<Rehearsed> {
    let began = monotonic_now();
    let (running, _started) = bring_up(&on_copy(config, data), || None).await?;
    let start = began.elapsed();
    let free = running.services.store.disk_space().free();
    let mut found =
        Rehearsed { start, store_format: storage::FORMAT, free, ..Rehearsed::default() };
    let looked = look(&running, &mut found).await;
    running.stop().await;
    looked?;
    Ok(found)
}

/// Returns the configuration for a copy: without listeners and without outgoing connections. The
/// function lists every section, so that the compiler reports a new section that is missing here.
fn on_copy(config: &Config, data: PathBuf) -> Config {
    let Config {
        data_dir: _,
        models_dir: _,
        hosts: _,
        tls: _,
        limits: _,
        engine: _,
        retention: _,
        webhooks: _,
        egress: _,
        files: _,
        billing: _,
        router: _,
        decisions: _,
        dashboard: _,
        agent: _,
        alerts: _,
        groups: _,
        audit: _,
        backup: _,
        compat: _,
        cors: _,
        metrics: _,
        telemetry: _,
        log: _,
        program: _,
        file: _,
        source: _,
        bootstrap_key: _,
        accept_loss: _,
    } = config;
    let mut copy = config.clone();
    let hosts = &mut copy.hosts;
    for host in [
        &mut hosts.base,
        &mut hosts.workflows,
        &mut hosts.flows,
        &mut hosts.agent,
        &mut hosts.dashboard,
    ] {
        host.listen.clear();
    }
    // Without listeners, the copy needs no certificate and orders none.
    copy.hosts.one_port.clear();
    copy.hosts.ollama.listen.clear();
    copy.metrics.listen.clear();
    copy.router.upstreams.clear();
    copy.telemetry.otlp_endpoint = None;
    copy.alerts.url = None;
    copy.agent.mcp_servers.clear();
    copy.audit.folder = data.join("audit");
    copy.backup.folder = data.join("backups");
    (copy.backup.every, copy.backup.log) = (None, None);
    // The command that made the copy has already checked the free space, so the copy needs no
    // reserve.
    copy.limits.disk_reserve = Some(0);
    copy.data_dir = data;
    copy
}

async fn look(running: &Running, found: &mut Rehearsed) -> anyhow::Result<()> {
    let services = &running.services;
    let report = services.catalog.reload_off_thread().await?;
    found.models = report.loaded;
    found.manifests = report.errors.iter().map(ToString::to_string).collect();
    let mut scan = services.store.scan(held_back::all());
    while let Some((key, _)) = scan.next().await? {
        match held_back::original(&key) {
            Some((Table::Lane | Table::Timer, _)) => found.executions += 1,
            Some((Table::Due | Table::Parked, _)) => found.deliveries += 1,
            Some(_) | None => {}
        }
    }
    read::<Organization>(services, Table::Organization, found).await?;
    read::<ApiKey>(services, Table::ApiKey, found).await?;
    read::<Member>(services, Table::Member, found).await?;
    read::<Secret>(services, Table::Secret, found).await?;
    read::<Chain>(services, Table::Chain, found).await?;
    read::<Schedule>(services, Table::Schedule, found).await?;
    read::<File>(services, Table::File, found).await?;
    read::<LedgerEntry>(services, Table::Ledger, found).await?;
    read::<Execution>(services, Table::Execution, found).await?;
    read::<Step>(services, Table::Step, found).await?;
    for workflow in read::<Workflow>(services, Table::Workflow, found).await? {
        compile(services, &workflow, found).await;
    }
    Ok(())
}

/// Compiles all versions of a workflow.
async fn compile(services: &Services, workflow: &Workflow, found: &mut Rehearsed) {
    for version in &workflow.versions {
        match services.workflows.compiled(version.revision).await {
            Ok(_plan) => found.workflows += 1,
            Err(error) => fault(
                found,
                format!("the workflow {}, version {}: {error}", workflow.slug, version.id),
            ),
        }
    }
}

/// Reads a table's records with this release's types. Only the records of small tables are
/// returned.
async fn read<T: Record + Send>(
    services: &Services,
    table: Table,
    found: &mut Rehearsed,
) -> Result<Vec<T>, storage::Error> {
    let mut kept = Vec::new();
    let is_kept = matches!(table, Table::Workflow);
    let mut scan = services.store.scan(Key::table(table));
    while let Some((key, value)) = scan.next().await? {
        // Some tables also contain counters and references, which are not JSON records.
        if value.get(1) != Some(&b'{') {
            continue;
        }
        match decode::<T>(&value) {
            Ok(record) if is_kept => kept.push(record),
            Ok(_) => {}
            Err(error) => fault(found, format!("the row {key:?}: {error}")),
        }
    }
    Ok(kept)
}

fn fault(found: &mut Rehearsed, sentence: String) {
    if found.faults.len() < FAULTS_MAX {
        found.faults.push(sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_config::Upstream;

    #[test]
    fn rehearsal_reaches_nothing_outside_its_copy() {
        let mut config = Config::defaults();
        config.router.upstreams = vec![Upstream::of("https://models.example/v1".to_owned())];
        config.backup.every = Some(Duration::from_secs(60));
        config.backup.log = Some(Duration::from_secs(60));
        config.hosts.one_port = vec!["127.0.0.1:8080".parse().unwrap()];
        config.hosts.ollama.listen = vec!["127.0.0.1:11434".parse().unwrap()];
        let data = PathBuf::from("/copy/data");
        let copy = on_copy(&config, data.clone());
        assert!(copy.hosts.named().iter().all(|(_, host)| host.listen.is_empty()));
        assert!(copy.hosts.one_port.is_empty() && copy.metrics.listen.is_empty());
        assert!(copy.hosts.ollama.listen.is_empty());
        assert!(copy.router.upstreams.is_empty() && copy.agent.mcp_servers.is_empty());
        assert_eq!((copy.backup.every, copy.backup.log), (None, None));
        for folder in [&copy.data_dir, &copy.audit.folder, &copy.backup.folder] {
            assert!(folder.starts_with(&data), "{}", folder.display());
        }
        assert_eq!(copy.models_dir, config.models_dir);
    }
}
