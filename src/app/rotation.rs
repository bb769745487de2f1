//! `orrery seal rotate`: a new `seal.key`, and everything that is sealed sealed again with it.
//!
//! On the store of a stopped service only: a running one holds executions in memory, with their sealed
//! secrets, and would write those of the old key again behind the rotation.

use crate::audit::{Actor, Audit};
use crate::config::Config;
use crate::runtime::Clock;
use crate::storage::rotation::Rotation;
use crate::{engine, schedules, secrets, storage, webhooks, workflows};

use super::{Kept, open_kept};

/// What is to be said of a rotation that was interrupted.
pub const UNDER_WAY: &str = "a rotation of seal.key was interrupted: both keys are in use until you stop \
    the service and run `orrery seal rotate` once more";

pub use crate::storage::rotation::{Resealed, Watch, is_under_way};

/// Rotates the key of the data folder of `config`. `watch` is called after each step.
///
/// # Errors
/// When a service runs on the store, or the disk fails: then the store can be used as it is, and the
/// next rotation goes on where this one ended.
pub async fn rotate_seal(config: &Config, watch: &mut Watch<'_>) -> anyhow::Result<Resealed> {
    let Kept { store, .. } = open_kept(config, Clock::system(), String::new(), None)?;
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
    // Before the first step: there is no rotation that the log does not know of.
    audit.write(&audit.entry(&operator, "seal.rotate", "begun")).await?;
    watch(Resealed::default())?;
    let mut rotation = Rotation::begin(&config.data_dir)?;
    watch(rotation.resealed)?;
    engine::rows::reseal(store, &mut rotation, watch).await?;
    webhooks::reseal(store, &mut rotation, watch).await?;
    workflows::reseal(store, &mut rotation, watch).await?;
    secrets::reseal(store, &mut rotation, watch).await?;
    schedules::reseal(store, &mut rotation, watch).await?;
    let resealed = rotation.finish()?;
    watch(resealed)?;
    let Resealed { secrets, unreadable, .. } = resealed;
    let done = format!("done: {secrets} secrets sealed again, {unreadable} unreadable");
    audit.write(&audit.entry(&operator, "seal.rotate", done)).await?;
    Ok(resealed)
}
