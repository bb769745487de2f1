//! Writes the audit log of the running service: starts, reloads, failed authentications, and the
//! file for log shippers.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use orrery_api::Services;
use orrery_config::{self as config, Config};
use orrery_domain::hex::hex;
use orrery_records::audit::{Actor, ShipOptions, Shipper};
use orrery_runtime::Tasks;

/// Update interval of the file for log shippers.
const SHIP_EVERY: Duration = Duration::from_secs(1);
/// Number of intervals between writes of failed authentications and of the last use of keys: one
/// minute.
const DENIED_EVERY: u32 = 60;

/// Records the start of the service, with a digest of its configuration that changes with every
/// setting.
///
/// # Errors
/// Returns an error if the store cannot be written.
pub(crate) async fn note_start(services: &Services, config: &Config) -> anyhow::Result<()> {
    let digest = Sha256::digest(format!("{config:?}").as_bytes());
    let digest = hex(digest.iter().take(8));
    let subject = format!("version {}, configuration {digest}", env!("CARGO_PKG_VERSION"));
    let entry = services.audit.entry(&Actor::service(), "service.start", subject);
    Ok(services.audit.write(&entry).await?)
}

/// Records the changes made by a reload, if there are any.
pub(crate) async fn note_change(
    services: &Services,
    actor: &Actor,
    action: &str,
    what: Option<String>,
) {
    if let Some(what) = what {
        services.audit.write_or_log(&services.audit.entry(actor, action, what)).await;
    }
}

/// Returns a function that records changes found by watching files. The audit log action is
/// `WHAT.reload`.
pub(crate) fn noting(
    services: &Arc<Services>,
    tasks: &Tasks,
    what: &'static str,
) -> impl Fn(String) + Send + Sync + 'static {
    let audit = services.audit.clone();
    let tasks = tasks.clone();
    move |change| {
        let action = format!("{what}.reload");
        let entry = audit.entry(&Actor::service_on("watched files"), &action, change);
        let audit = audit.clone();
        tasks.spawn(async move { audit.write_or_log(&entry).await });
    }
}

/// Writes the counts of failed authentications, the last uses of keys and the file for log shippers
/// at intervals until shutdown, and once more during shutdown.
pub(crate) async fn run(services: Arc<Services>, tasks: Tasks, options: config::Audit) {
    let config::Audit { folder, max_bytes, keep } = options;
    let mut shipper = Shipper::new(services.audit.clone(), ShipOptions { folder, max_bytes, keep });
    for look in (0..DENIED_EVERY).cycle() {
        let is_over = tasks.is_stopping();
        if look == 0 || is_over {
            report(services.audit.write_denied().await);
            if let Err(error) = services.accounts.write_uses().await {
                tracing::error!(%error, "failed to write last uses of keys; will retry");
            }
        }
        report(shipper.ship().await);
        if is_over {
            return;
        }
        tokio::select! {
            () = tasks.stopping() => {}
            () = tokio::time::sleep(SHIP_EVERY) => {}
        }
    }
}

fn report<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        tracing::error!(%error, "failed to write the audit log; will retry");
    }
}
