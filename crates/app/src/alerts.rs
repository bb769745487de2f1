//! Runs the doctor's checks every `alerts.every` and alerts the operator to problems, if a receiver
//! is configured.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use orrery_alerts::{Alerts, Budget, Format, Options, Target};
use orrery_api::{Finding, HostAddress, Role, Services};
use orrery_config::{AlertFormat, Config};
use orrery_records::billing::BudgetUse;
use orrery_runtime::{Clock, Tasks};
use orrery_wire::operator::AlertTest;

/// Maximum delay of the first check after a start, because the first backup and the first
/// connections may still be in progress.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// Time after which checks that are still running are reported.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// The subject of findings about the checks themselves.
const SUBJECT: &str = "doctor";

/// Converts the `alerts` section of the configuration.
pub(crate) fn options(config: &Config) -> Options {
    let alerts = &config.alerts;
    let format = match alerts.format {
        AlertFormat::Webhook => Format::Webhook,
        AlertFormat::Ntfy => Format::Ntfy,
    };
    let target =
        alerts.url.clone().map(|url| Target { url, secret: alerts.secret.clone(), format });
    Options { target, every: alerts.every }
}

/// Opens the alerts of a service with these hosts.
pub(crate) fn open(config: &Config, clock: &Clock, hosts: &[HostAddress]) -> Alerts {
    let base = hosts.iter().find(|host| host.role == Role::Base);
    let service =
        base.map_or_else(|| config.hosts.base.public_url.clone(), |base| base.url.clone());
    Alerts::open(&config.data_dir, service, clock.clone(), options(config))
}

/// Sends a test alert without a running service; `None` if the configuration has no receiver.
pub async fn test_alert(config: &Config) -> Option<AlertTest> {
    open(config, &Clock::system(), &[]).test().await
}

/// Runs the checks until shutdown.
pub(crate) async fn run(services: Arc<Services>, tasks: Tasks) {
    tasks.spawn(services.alerts.clone().run(tasks.clone()));
    let mut options = services.alerts.options();
    let mut is_first = true;
    loop {
        let Options { target, every } = options.borrow_and_update().clone();
        let wait = if is_first { every.min(FIRST_AFTER) } else { every };
        let is_due = tokio::select! {
            () = tasks.stopping() => return,
            changed = options.changed() => match changed {
                Ok(()) => false,
                Err(_closed) => return,
            },
            () = tokio::time::sleep(wait), if target.is_some() => true,
        };
        if is_due {
            tokio::select! {
                () = tasks.stopping() => return,
                () = check(&services) => is_first = false,
            }
        }
    }
}

/// Passes the spending of each budget to the alerts.
async fn check_budgets(services: &Services) -> anyhow::Result<()> {
    let found = services.billing.budgets().await?;
    let organizations = services.accounts.organizations().await?;
    let names: HashMap<_, _> = organizations.into_iter().map(|one| (one.id, one.name)).collect();
    let budgets = found.into_iter().filter_map(|found| {
        let organization = names.get(&found.payer.organization)?;
        let (id, about, fix) = match &found.key_name {
            Some(key) => (
                format!("key {}", found.payer.key),
                format!("the key {key} of the organization {organization}"),
                format!("orrery key update {} --budget USD", found.payer.key),
            ),
            None => (
                format!("organization {}", found.payer.organization),
                format!("the organization {organization}"),
                format!("orrery org limit {organization} --monthly-budget USD"),
            ),
        };
        let BudgetUse { budget, spent, period, .. } = found;
        Some(Budget { id, about, budget, spent, period, fix })
    });
    services.alerts.observe_budgets(&budgets.collect::<Vec<_>>()).await;
    Ok(())
}

/// Runs all checks once, and passes their findings to the alerts. Checks that hang are reported,
/// and are not run a second time.
async fn check(services: &Services) {
    if let Err(error) = check_budgets(services).await {
        tracing::error!(%error, "failed to check the budgets");
    }
    let mut checks = pin!(orrery_api::findings(services));
    loop {
        match tokio::time::timeout(PATIENCE, checks.as_mut()).await {
            Ok(Ok(found)) => return services.alerts.observe(&found, true).await,
            Ok(Err(error)) => {
                let detail = format!("the checks failed: {}", error.cause());
                let failed = Finding::fault(SUBJECT, detail).mended_by("orrery doctor");
                return services.alerts.observe(&[failed], false).await;
            }
            Err(_elapsed) => {
                let minutes = PATIENCE.as_secs() / 60;
                let detail = format!("the checks did not finish within {minutes} minutes");
                let hung = Finding::fault(SUBJECT, detail)
                    .mended_by("check the disks and the network mounts: dmesg, mount");
                services.alerts.observe(&[hung], false).await;
            }
        }
    }
}
