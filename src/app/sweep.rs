//! Sweeps: what a kill left behind, once after a start, and what is past its time, every hour.
//!
//! Nothing here decides what may go: each layer removes its own, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Services;
use crate::domain::ids::{FileId, Id, PayloadId};
use crate::runtime::Tasks;

/// How often what is past its time is swept out.
const EVERY: Duration = Duration::from_secs(3600);

/// Sweeps until the shutdown. What was begun before `started` has broken off.
pub async fn run(services: Arc<Services>, tasks: Tasks, started: PayloadId) {
    let swept = services.store.sweep_payloads(started).await;
    report("payload files that nothing referred to", swept);
    let swept = services.files.sweep(FileId::from(started.bytes())).await;
    report("contents that no file referred to", swept);
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        let swept = services.idempotency.sweep().await.map(|_| 0);
        report("idempotency keys that were forgotten", swept);
        report("files whose time was over", services.files.remove_expired().await);
        tokio::select! {
            () = tasks.stopping() => return,
            result = forget(&services) => report("organizations", result.map(|()| 0)),
        }
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
