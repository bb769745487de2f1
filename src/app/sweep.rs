//! Sweeps: what a kill left behind, once after a start, and what is past its time, then and as long
//! as the service runs: files every minute, all else every hour.
//!
//! Nothing here decides what may go: each layer removes its own, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Services;
use crate::domain::ids::{FileId, Id, PayloadId};
use crate::runtime::Tasks;

/// How often files whose time is over are looked for; a look costs one read when there are none.
const EVERY: Duration = Duration::from_secs(60);
/// All else is swept at one of so many looks.
const OTHERS_EVERY: u32 = 60;

/// Sweeps until the shutdown. What was begun before `started` has broken off.
pub async fn run(services: Arc<Services>, tasks: Tasks, started: PayloadId) {
    let swept = services.store.sweep_payloads(started).await;
    report("payload files that nothing referred to", swept);
    let swept = services.files.sweep(FileId::from(started.bytes())).await;
    report("contents that no file referred to", swept);
    for look in (0..OTHERS_EVERY).cycle() {
        report("files whose time was over", services.files.remove_expired().await);
        if look == 0 {
            tokio::select! {
                () = tasks.stopping() => return,
                () = others(&services) => {}
            }
        }
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn others(services: &Services) {
    let swept = services.idempotency.sweep().await.map(|_| 0);
    report("idempotency keys that were forgotten", swept);
    if let Err(error) = forget(services).await {
        tracing::error!(%error, "what is past its time cannot be swept out");
    }
}

fn report<E: std::fmt::Display>(what: &str, swept: Result<usize, E>) {
    match swept {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "{what} are gone"),
        Err(error) => tracing::error!(%error, "{what} cannot be swept out"),
    }
}

/// Forgets what is past the configuration's `[retention]`.
async fn forget(services: &Services) -> anyhow::Result<()> {
    let keep = services.settings.keep;
    let now = services.clock.now();
    for organization in services.accounts.organizations().await? {
        if let Some(cutoff) = now.before(keep.deliveries) {
            let swept = services.outbox.forget_before(organization.id, cutoff).await;
            report("old deliveries", swept);
        }
        if let Some(cutoff) = now.before(keep.executions) {
            let swept = services.engine.forget_before(organization.id, cutoff).await;
            report("old executions", swept);
        }
        if let Some(cutoff) = now.before(keep.payloads) {
            let swept = services.engine.forget_payloads_before(organization.id, cutoff).await;
            report("inputs and outputs of old executions", swept);
        }
    }
    Ok(())
}
