//! Findings about the service and its machine: the doctor's findings, and findings that need the
//! open service. The findings are served on the control socket for `orrery doctor`, including for
//! the store of a stopped service, and shown on the dashboard. All checks are read-only.

use std::time::Duration;

use hyper::StatusCode;

use super::doc::{Doc, ResponseDoc};
use super::{Context, Finding, Services};
use orrery_backup::{self as backup, Source};
use orrery_domain::execution::{Execution, Kind};
use orrery_domain::time::Timestamp;
use orrery_http::connector::{Resolve as _, SystemResolver};
use orrery_http::{Response, response};
use orrery_records::secrets;
use orrery_storage::{Key, Page, Table};
use orrery_wire::service::{DoctorReport, Listening, RunningService};

/// Maximum number of unfinished executions that are searched for the oldest one.
const UNFINISHED_MAX: usize = 1000;
/// Age at which a prediction, a call, an exchange or a queued workflow execution counts as stuck.
const STUCK: Duration = Duration::from_secs(60 * 60);
/// Maximum number of models and hosts that a finding names.
const NAMED_MAX: usize = 10;
/// Timeout of one DNS lookup.
const LOOK_UP: Duration = Duration::from_secs(3);
/// Number of the latest rows that the spot check reads from each table.
const SPOT_ROWS: usize = 50;
/// Maximum payload bytes that the spot check reads.
const SPOT_BYTES: u64 = 64 * 1024 * 1024;
const SPOT_TABLES: [Table; 4] =
    [Table::Execution, Table::Definition, Table::Delivery, Table::Ledger];

pub(crate) const FIND: Doc = Doc {
    responses: &[ResponseDoc::json::<DoctorReport>(200, "The findings, concerns first")],
    ..Doc::new("admin", "admin_doctor", "Check the service and its machine")
};

/// `GET /admin/doctor`
pub(crate) async fn find(context: Context) -> Result<Response, crate::Error> {
    let findings = findings(&context.services).await?;
    let running = running(&context.services);
    Ok(response::json(StatusCode::OK, &DoctorReport { findings, running }))
}

/// Returns the options with which the service was started; `None` for the store of a stopped
/// service.
fn running(services: &Services) -> Option<RunningService> {
    services.settings.control_token.as_ref()?;
    let RunningService { pid, file, listening: metrics } = services.settings.doctor.started();
    let hosts = services
        .settings
        .hosts
        .iter()
        .map(|host| Listening { host: host.role.as_str().to_owned(), url: host.url.clone() });
    Some(RunningService { pid, file, listening: hosts.chain(metrics).collect() })
}

/// Returns all findings, worst first.
///
/// # Errors
/// Returns an error when the organizations cannot be read from the store.
pub async fn findings(services: &Services) -> Result<Vec<Finding>, crate::Error> {
    let doctor = services.settings.doctor.clone();
    let now = services.clock.now();
    let looking = tokio::task::spawn_blocking(move || doctor.findings(now));
    let mut found = looking.await.map_err(crate::Error::internal)?;
    found.push(clock(services));
    found.push(store(services).await);
    found.push(seal(services).await?);
    found.extend(work(services, now).await?);
    found.push(webhooks(services));
    found.push(models(services));
    found.extend(upstreams(services));
    let organizations = services.accounts.organizations().await?.len();
    found.push(match services.egress.warning(organizations) {
        Some(warning) => Finding::warning("egress", warning)
            .mended_by("set egress.deny and egress.allow, then run `orrery reload`"),
        None => Finding::good("egress", "the guard covers all client-supplied URLs"),
    });
    found.push(services.alerts.finding());
    found.push(names(services.settings.doctor.hosts()).await);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    Ok(found)
}

/// Checks whether the machine's clock is plausible.
fn clock(services: &Services) -> Finding {
    match services.clock.ahead() {
        Some(ahead) => Finding::fault(
            "clock",
            format!("{} ahead of the last known time: nothing is deleted by age", words(ahead)),
        )
        .mended_by("timedatectl set-ntp true; if the clock is right, no action is needed"),
        None => Finding::good("clock", "consistent with the last known time"),
    }
}

/// Checks that the seal key belongs to this store.
async fn seal(services: &Services) -> Result<Finding, crate::Error> {
    Ok(match services.secrets.has_right_key().await? {
        true => Finding::good("seal", "seal.key belongs to this store"),
        false => {
            Finding::fault("seal", secrets::FOREIGN_KEY).mended_by(secrets::FOREIGN_KEY_REMEDY)
        }
    })
}

/// Reads the latest rows of the large tables, and their payloads.
async fn store(services: &Services) -> Finding {
    let place = Source { store: services.store.clone(), files: services.files.clone() };
    let pin = place.store.pin_payloads();
    let mut rows = Vec::new();
    for table in SPOT_TABLES {
        match services.store.page(Page::of(Key::table(table), SPOT_ROWS)).await {
            Ok(page) => rows.extend(page),
            Err(error) => {
                return Finding::fault("store", format!("cannot be read: {error}"))
                    .mended_by("stop the service, then run `orrery verify`");
            }
        }
    }
    let checking = tokio::task::spawn_blocking(move || {
        let report = backup::check_rows(&place, &rows, SPOT_BYTES);
        drop(pin);
        report
    });
    let Ok(report) = checking.await else {
        return Finding::warning("store", "the spot check was interrupted");
    };
    match report.faults.first() {
        Some(fault) => Finding::fault("store", fault.clone())
            .mended_by("stop the service, then run `orrery verify` and `orrery restore`"),
        None => Finding::good("store", format!("{} rows checked, all intact", report.rows)),
    }
}

/// Finds executions and deliveries that should have ended, or that cannot end.
async fn work(services: &Services, now: Timestamp) -> Result<Vec<Finding>, crate::Error> {
    let mut found = Vec::new();
    if services.engine.paused_since().is_some() {
        found.push(
            Finding::warning("work", "paused since a restore")
                .about("pause")
                .mended_by("orrery resume, once the machine that the backup came from is off"),
        );
    }
    let retrying = services.engine.retrying();
    if retrying > 0 {
        let detail = format!("{retrying} executions are retrying after an internal error");
        let finding = Finding::fault("work", detail).about("retries");
        found.push(finding.mended_by("journalctl -u orrery -p err"));
    }
    let unfinished = services.engine.unfinished(None, UNFINISHED_MAX).await?;
    let oldest = unfinished.iter().filter(|one| can_be_stuck(one)).min_by_key(|one| one.created_at);
    let age = |one: &Execution| now.since(one.created_at);
    found.push(match oldest {
        Some(oldest) if age(oldest) > STUCK => {
            let word = oldest.status.word(oldest.kind());
            let id = oldest.id;
            let detail =
                format!("the oldest stuck execution has been {word} for {}", words(age(oldest)));
            Finding::warning("work", detail)
                .mended_by(format!("orrery execution show {id}; orrery execution cancel {id}"))
        }
        _ if unfinished.len() == UNFINISHED_MAX => Finding::good(
            "work",
            format!("{UNFINISHED_MAX} or more unfinished executions, none stuck"),
        ),
        _ => {
            Finding::good("work", format!("{} unfinished executions, none stuck", unfinished.len()))
        }
    });
    Ok(found)
}

/// Returns whether age alone makes an execution count as stuck. A workflow that has started may
/// legitimately wait for days.
fn can_be_stuck(execution: &Execution) -> bool {
    match execution.kind() {
        Kind::Workflow => execution.started_at.is_none(),
        Kind::Prediction | Kind::Chat | Kind::Decision | Kind::Agent => true,
    }
}

fn webhooks(services: &Services) -> Finding {
    let figures = *services.outbox.metrics().borrow();
    match figures.open_circuits {
        0 => Finding::good(
            "webhooks",
            format!("{} deliveries pending, no open circuits", figures.held),
        ),
        open => Finding::warning(
            "webhooks",
            format!("deliveries to {open} failing receivers are paused"),
        )
        .mended_by("orrery webhooks list --status pending"),
    }
}

/// Names the upstreams of the chat router that do not answer; `None` if all answer.
fn upstreams(services: &Services) -> Option<Finding> {
    let states = services.chat.upstream_states();
    let silent: Vec<&str> =
        states.iter().filter(|one| !one.is_used).map(|one| one.name.as_str()).collect();
    if silent.is_empty() {
        return None;
    }
    let named = silent.iter().copied().take(NAMED_MAX).collect::<Vec<&str>>().join(", ");
    let verb = if silent.len() == 1 { "does" } else { "do" };
    let detail =
        format!("{} of {} upstreams {verb} not answer: {named}", silent.len(), states.len());
    Some(Finding::warning("upstream", detail).mended_by("orrery model list"))
}

fn models(services: &Services) -> Finding {
    if let Some(reason) = services.catalog.unreadable() {
        return Finding::fault("catalog", reason.as_str()).mended_by(
            "check the permissions and the mount of models_dir, then run `orrery reload`",
        );
    }
    match failing(services) {
        Some(detail) => Finding::warning("catalog", detail).mended_by("orrery model list"),
        None => {
            let count = services.catalog.len();
            Finding::good("catalog", format!("{count} models, none is failing"))
        }
    }
}

/// Describes how many models are failing, and names them; `None` if no model is failing.
pub(crate) fn failing(services: &Services) -> Option<String> {
    let models = services.catalog.list();
    let failing = models.iter().filter(|model| model.failing().is_some());
    let failing: Vec<&str> = failing.map(|model| model.slug.as_str()).collect();
    let verb = match failing.len() {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    let named = failing.iter().copied().take(NAMED_MAX).collect::<Vec<&str>>().join(", ");
    Some(format!("{} of {} models {verb} failing: {named}", failing.len(), models.len()))
}

/// Looks up the host names in the configuration with DNS.
async fn names(hosts: &[String]) -> Finding {
    let resolver = SystemResolver::new();
    for host in hosts.iter().take(NAMED_MAX) {
        let reason = match tokio::time::timeout(LOOK_UP, resolver.resolve(host)).await {
            Ok(Ok(_addresses)) => continue,
            Ok(Err(unresolved)) => unresolved.reason,
            Err(_elapsed) => format!("no answer within {} s", LOOK_UP.as_secs()),
        };
        let detail = format!("cannot resolve {host}: {reason}");
        return Finding::fault("dns", detail).mended_by("check /etc/resolv.conf and /etc/hosts");
    }
    match hosts.len() {
        0 => Finding::good("dns", "no host names in the configuration"),
        count => Finding::good("dns", format!("{} names resolved", count.min(NAMED_MAX))),
    }
}

/// Formats a duration in its largest unit.
pub fn words(span: Duration) -> String {
    let seconds = span.as_secs();
    let (count, unit) = match seconds {
        0..=59 => (seconds, "second"),
        60..=3599 => (seconds / 60, "minute"),
        3600..=86_399 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}
