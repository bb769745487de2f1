//! `orrery seal rotate`: replaces `seal.key` and reseals all sealed data with the new key.
//!
//! Rotation requires a stopped service: a running service has executions with sealed secrets in
//! memory, and after the rotation would write these secrets, which are sealed with the old key.
//!
//! A rotation ends the log archive chain, because all backups and logs of a chain must use the same
//! `seal.key`.

use anyhow::Context as _;

use orrery_config::Config;
use orrery_engine as engine;
use orrery_records::audit::{Actor, Audit};
use orrery_records::members;
use orrery_records::schedules;
use orrery_records::secrets;
use orrery_runtime::Clock;
use orrery_storage as storage;
use orrery_storage::rotation::Rotation;
use orrery_webhooks as webhooks;
use orrery_workflows as workflows;

use super::{Kept, open_kept};

/// The warning about an interrupted rotation.
pub const UNDER_WAY: &str = "a rotation of seal.key was interrupted: both keys are in use until you stop \
    the service and run `orrery seal rotate` once more";

pub(crate) use orrery_storage::rotation::is_under_way;
pub use orrery_storage::rotation::{Resealed, Watch};

/// Rotates the key of the data folder of `config`. `watch` is called after each step.
///
/// # Errors
/// Returns an error if a service runs on the store, or the disk fails. The store then stays usable,
/// and the next rotation resumes where this one stopped.
pub async fn rotate_seal(config: &Config, watch: &mut Watch<'_>) -> anyhow::Result<Resealed> {
    let Kept { store, .. } = open_kept(config, Clock::system(), &[], None)?;
    let rotated = rotate(config, &store, watch).await;
    store.close().await;
    rotated
}

async fn rotate(
    config: &Config,
    store: &storage::Store,
    watch: &mut Watch<'_>,
) -> anyhow::Result<Resealed> {
    let audit = Audit::new(store.clone(), Clock::system());
    let operator = Actor::operator("command line");
    // The entry is written before the first step, so that the audit log records every rotation.
    audit.write(&audit.entry(&operator, "seal.rotate", "begun")).await?;
    watch(Resealed::default())?;
    // The full backup at the start of a log archive chain contains the old key, so rows sealed with
    // the new key must not be applied to that backup. The next start begins a new chain with a full
    // backup.
    store.end_chain().context("the chain of the log archive cannot be ended")?;
    let mut rotation = Rotation::begin(&config.data_dir)?;
    watch(rotation.resealed)?;
    engine::rows::reseal(store, &mut rotation, watch).await?;
    webhooks::reseal(store, &mut rotation, watch).await?;
    workflows::reseal(store, &mut rotation, watch).await?;
    secrets::reseal(store, &mut rotation, watch).await?;
    schedules::reseal(store, &mut rotation, watch).await?;
    members::reseal(store, &mut rotation, watch).await?;
    let resealed = rotation.finish()?;
    watch(resealed)?;
    let Resealed { secrets, unreadable, .. } = resealed;
    let done = format!("done: {secrets} secrets sealed again, {unreadable} unreadable");
    audit.write(&audit.entry(&operator, "seal.rotate", done)).await?;
    Ok(resealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_storage::{Commit, Key, Options, Sealer, Store, Table};

    #[tokio::test(flavor = "multi_thread")]
    async fn rotation_ends_chain_of_log_archive_before_first_reseal() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        config.data_dir = folder.path().join("data");
        let options = Options { folder: config.data_dir.clone(), inline_bytes: 10 };
        Sealer::open(&config.data_dir).unwrap();
        let store = Store::open(&options).unwrap();
        store.start_archiving().unwrap();
        let mut commit = Commit::new();
        commit.put_bytes(Key::table(Table::Facet).number_largest_first(1), vec![7]);
        store.commit(commit).await.unwrap();
        store.close().await;

        // Interrupt the rotation after the step that creates the new key.
        let store = Store::open(&options).unwrap();
        assert!(store.archive_position().is_some());
        let data = config.data_dir.clone();
        let interrupt: &mut Watch<'_> = &mut |_done| {
            if !is_under_way(&data) {
                return Ok(());
            }
            Err(storage::Error::Unavailable { reason: "interrupted".to_owned() })
        };
        let error = rotate(&config, &store, interrupt).await.unwrap_err();
        assert!(error.to_string().contains("interrupted"), "{error:#}");
        assert_eq!(store.archive_position(), None);
        store.close().await;

        let store = Store::open(&options).unwrap();
        assert_eq!(store.archive_position(), None);
        rotate(&config, &store, &mut |_done| Ok(())).await.unwrap();
        assert_eq!((store.archive_position(), store.take_archive_failure()), (None, None));
        store.close().await;
        let store = Store::open(&options).unwrap();
        assert_eq!(store.archive_position(), None);
        assert!(!is_under_way(&config.data_dir));
    }
}
