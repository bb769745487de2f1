//! The commands' interface to the composition root: a running service, an offline one, checks and
//! rebuilds.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::admin::{Admin, InProcess};
use orrery_app::{self as app, FirstStart, Rehearsed, Resealed, Watch};
use orrery_backup::{Encryption, Source};
use orrery_config::Config;
use orrery_domain::time::Timestamp;
use orrery_wire::service::Finding;

/// Connects to the running service, or opens its store.
pub(super) async fn admin(config: &Config) -> anyhow::Result<Admin> {
    Admin::open(config, offline).await
}

/// Runs the service until it is asked to stop. Once ready, calls `ready` with what a first start
/// created for a person to see.
pub(super) async fn serve(
    config: Config,
    is_watched: bool,
    ready: impl FnOnce(FirstStart) + Send + 'static,
) -> anyhow::Result<()> {
    app::serve(config, is_watched, ready).await
}

/// The store of a stopped service.
pub(super) fn stopped_store(config: &Config) -> anyhow::Result<Source> {
    refuse_without_store(config)?;
    app::stopped_store(config)
}

/// Starts this binary on a copy of the data, without running any work.
pub(super) async fn rehearse(config: &Config, data: PathBuf) -> anyhow::Result<Rehearsed> {
    app::rehearse(config, data).await
}

/// Creates a new `seal.key` for a stopped service.
pub(super) async fn rotate_seal(
    config: &Config,
    watch: &mut Watch<'_>,
) -> anyhow::Result<Resealed> {
    refuse_without_store(config)?;
    app::rotate_seal(config, watch).await
}

/// Rejects a data folder that has no store, belongs to another user, or has a running service.
pub(super) fn refuse_without_store(config: &Config) -> anyhow::Result<()> {
    super::admin::refuse_running(&config.data_dir)?;
    super::admin::refuse_without_store(&config.data_dir)
}

/// The configured encryption of backups.
pub(super) fn encryption(config: &Config) -> anyhow::Result<Encryption> {
    Ok(app::encryption(&config.backup)?)
}

/// Whether a store failed to open because it is damaged.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    app::is_damage(error)
}

/// Findings about machine, data folder and backups that are known before a start.
pub(super) fn settled(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::settled(config, now)
}

/// Findings that do not need the store.
pub(super) fn without_store(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::without_store(config, now)
}

/// Whether a folder is on a memory file system.
pub(super) fn is_in_memory(folder: &Path) -> bool {
    app::is_in_memory(folder)
}

/// Free bytes on a folder's disk.
pub(super) fn free_bytes(folder: &Path) -> u64 {
    app::free_bytes(folder)
}

/// The number of organizations of the running service; `None` if none runs.
pub(super) async fn running_organizations(config: &Config) -> Option<usize> {
    let admin = Admin::running(config).await?;
    let answer = admin.get("/admin/organizations").await.ok()?;
    Some(answer.get("organizations")?.as_array()?.len())
}

/// The warning about outgoing requests that a start logs.
pub(super) fn egress_warning(config: &Config, organizations: usize) -> Option<String> {
    app::policy(config).warning(organizations)
}

/// The slug of a valid manifest, or its faults, each with file, line and column.
pub(super) fn check_manifest(file: &Path) -> Result<String, Vec<String>> {
    app::check_manifest(file)
}

async fn offline(config: Config) -> anyhow::Result<InProcess> {
    let offline = Arc::new(app::offline(&config).await?);
    Ok(Box::new(move |request| {
        let offline = Arc::clone(&offline);
        Box::pin(async move { offline.call(request).await })
    }))
}
