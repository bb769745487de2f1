//! What commands need of the composition root: a running service, an offline one, checks and rebuilds.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::admin::{Admin, InProcess};
use crate::app::{self, FirstStart, Rehearsed, Resealed, Watch};
use crate::backup::{Encryption, Source};
use crate::config::Config;
use crate::domain::time::Timestamp;
use crate::wire::service::Finding;

/// The way to the running service, or to its store.
pub(super) async fn admin(config: &Config) -> anyhow::Result<Admin> {
    Admin::open(config, offline).await
}

/// Runs the service until it is asked to stop. Once it is ready, calls `ready` with what a start makes that
/// a person watches.
pub(super) async fn serve(
    config: Config,
    is_watched: bool,
    ready: impl FnOnce(FirstStart) + Send + 'static,
) -> anyhow::Result<()> {
    app::serve(config, is_watched, ready).await
}

/// What is stored by a service that is stopped.
pub(super) fn stopped_store(config: &Config) -> anyhow::Result<Source> {
    refuse_without_store(config)?;
    app::stopped_store(config)
}

/// Starts this program on a copy of the data, without running anything.
pub(super) async fn rehearse(config: &Config, data: PathBuf) -> anyhow::Result<Rehearsed> {
    app::rehearse(config, data).await
}

/// Makes a new `seal.key` for a service that is stopped.
pub(super) async fn rotate_seal(
    config: &Config,
    watch: &mut Watch<'_>,
) -> anyhow::Result<Resealed> {
    refuse_without_store(config)?;
    app::rotate_seal(config, watch).await
}

/// Refuses a data folder without a store, of another user, or with a service that runs.
pub(super) fn refuse_without_store(config: &Config) -> anyhow::Result<()> {
    super::admin::refuse_running(&config.data_dir)?;
    super::admin::refuse_without_store(&config.data_dir)
}

/// How the configuration has backups encrypted.
pub(super) fn encryption(config: &Config) -> anyhow::Result<Encryption> {
    Ok(app::encryption(&config.backup)?)
}

/// Whether a store was refused for what is wrong with it.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    app::is_damage(error)
}

/// What is settled before a start about machine, data folder and backups.
pub(super) fn settled(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::settled(config, now)
}

/// What can be found without the store.
pub(super) fn without_store(config: &Config, now: Timestamp) -> Vec<Finding> {
    app::without_store(config, now)
}

/// Whether a folder is on a file system without a disk.
pub(super) fn is_in_memory(folder: &Path) -> bool {
    app::is_in_memory(folder)
}

/// Bytes that are free on a folder's disk.
pub(super) fn free_bytes(folder: &Path) -> u64 {
    app::free_bytes(folder)
}

/// How many organizations the running service has; `None` where none runs.
pub(super) async fn running_organizations(config: &Config) -> Option<usize> {
    let admin = Admin::running(config).await?;
    let answer = admin.get("/admin/organizations").await.ok()?;
    Some(answer.get("organizations")?.as_array()?.len())
}

/// What the start warns of about outgoing requests.
pub(super) fn egress_warning(config: &Config, organizations: usize) -> Option<String> {
    app::policy(config).warning(organizations)
}

/// The slug of a good manifest, or its faults, each with file, line and column.
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
