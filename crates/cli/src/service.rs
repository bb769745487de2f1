//! The interface between the commands and the composition root: running and offline services,
//! checks, and operations on a stopped service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::admin::{Admin, InProcess};
use orrery_app::{self as app, FirstStart, Rehearsed, Resealed, Watch};
use orrery_backup::{Encryption, Source};
use orrery_config::Config;
use orrery_domain::time::Timestamp;
use orrery_wire::operator::AlertTest;
use orrery_wire::service::Finding;

pub(super) use orrery_app::seal_fault;

/// Connects to the running service, or opens its store if no service runs.
pub(super) async fn admin(config: &Config) -> anyhow::Result<Admin> {
    Admin::open(config, offline).await
}

/// Runs the service until the service is stopped. Once the service is ready, calls `ready` with the
/// values that a first start has created for the user.
pub(super) async fn serve(
    config: Config,
    is_watched: bool,
    ready: impl FnOnce(FirstStart) + Send + 'static,
) -> anyhow::Result<()> {
    app::serve(config, is_watched, ready).await
}

/// Opens the store of a stopped service.
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

/// Returns an error if the data folder has no store, belongs to another user, or is used by a
/// running service.
pub(super) fn refuse_without_store(config: &Config) -> anyhow::Result<()> {
    super::admin::refuse_running(&config.data_dir)?;
    super::admin::refuse_without_store(&config.data_dir)
}

/// Returns the configured encryption of backups.
pub(super) fn encryption(config: &Config) -> anyhow::Result<Encryption> {
    Ok(app::encryption(&config.backup)?)
}

/// Returns whether a store could not be opened because the store is damaged.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    app::is_damage(error)
}

/// Returns the findings about machine, data folder and backups that can be determined before a
/// start.
pub(super) fn settled(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::settled(config, now)
}

/// Sends a test alert without a running service; `None` if the configuration has no receiver.
pub(super) async fn test_alert(config: &Config) -> Option<AlertTest> {
    app::test_alert(config).await
}

/// Returns the findings that do not need the store.
pub(super) fn without_store(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::without_store(config, now)
}

/// Returns whether a folder is on an in-memory file system.
pub(super) fn is_in_memory(folder: &Path) -> bool {
    app::is_in_memory(folder)
}

/// Returns the free bytes on a folder's disk.
pub(super) fn free_bytes(folder: &Path) -> u64 {
    app::free_bytes(folder)
}

/// Returns the number of organizations of the running service; `None` if no service runs.
pub(super) async fn running_organizations(config: &Config) -> Option<usize> {
    let admin = Admin::running(config).await?;
    let answer = admin.get("/admin/organizations").await.ok()?;
    Some(answer.get("organizations")?.as_array()?.len())
}

/// Returns the warning about outgoing requests that the service would log at startup.
pub(super) fn egress_warning(config: &Config, organizations: usize) -> Option<String> {
    app::policy(config).warning(organizations)
}

/// Returns the slug of a valid manifest and a warning, or the manifest's errors, each with file,
/// line and column.
pub(super) fn check_manifest(
    file: &Path,
    config: Option<&Config>,
) -> Result<(String, Option<String>), Vec<String>> {
    let groups = config.map(app::server_groups);
    let checked = app::check_manifest(file, groups.as_ref());
    checked.map(|checked| (checked.slug.to_string(), checked.concern))
}

async fn offline(config: Config) -> anyhow::Result<InProcess> {
    let offline = Arc::new(app::offline(&config).await?);
    Ok(Box::new(move |request| {
        let offline = Arc::clone(&offline);
        Box::pin(async move { offline.call(request).await })
    }))
}
