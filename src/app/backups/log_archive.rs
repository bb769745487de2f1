//! The log archive: each `backup.log`, what was committed since the last time goes into the folder of
//! backups, see [`backup::archive_log`].
//!
//! A chain begins with a full backup and ends when it cannot go on, or when more log waits for it
//! than `backup.log_budget`. Then the log, a metric and `orrery check` say so, the service goes on,
//! and the next chain begins with a full backup at once.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Services;
use crate::backup::{self, LOG, Part, Source};
use crate::config::Config;
use crate::runtime::{Recurring, Tasks};

/// Says why the last chain was given up, for `orrery check`; absent while there is one.
pub const GIVEN_UP: &str = "kept-log.given-up";
/// How often it is looked whether so much log waits that the turn comes early.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Bytes of log that bring the turn early.
const EARLY_BYTES: u64 = 64 * 1024 * 1024;

/// Keeps the log until the shutdown.
pub async fn run(services: Arc<Services>, tasks: Tasks, config: Config) {
    let Some(every) = config.backup.log else {
        // A chain of an earlier start would hold the log for nobody.
        services.store.stop_archiving(None);
        note_given_up(&services, None);
        return;
    };
    services.store.set_archive_budget(config.backup.log_budget);
    let look_every = every.min(LOOK_EVERY);
    // What an earlier process left to do is due.
    let mut since_turn = every;
    let mut whole_at = services.clock.monotonic();
    let mut trouble = Recurring::default();
    loop {
        if since_turn >= every || services.store.unarchived_bytes() > EARLY_BYTES {
            since_turn = Duration::ZERO;
            if turn(&services, &config, &mut trouble).await {
                if trouble.end() {
                    tracing::info!("the log is kept again");
                }
                whole_at = services.clock.monotonic();
            }
        }
        report(&services, whole_at);
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(look_every) => since_turn += look_every,
        }
    }
}

/// Keeps what there is; whether there is a chain that holds it all now.
async fn turn(services: &Services, config: &Config, trouble: &mut Recurring) -> bool {
    if let Some(reason) = services.store.take_archive_failure() {
        given_up(services, &reason);
    }
    loop {
        match archive(services, config).await {
            Ok(None) => return services.store.archive_position().is_some(),
            Ok(Some(Part { first, last, bytes, damaged })) => {
                tracing::debug!(first, last, bytes, damaged, "the log was kept");
            }
            Err(backup::Error::Chain(reason)) => {
                services.store.stop_archiving(None);
                given_up(services, &reason);
                return false;
            }
            Err(error) if is_in_the_way(services) => {
                services.store.stop_archiving(None);
                given_up(services, &format!("the disk is nearly full, and {error}"));
                return false;
            }
            Err(error) => {
                if trouble.is_news(&error.to_string()) {
                    tracing::warn!(
                        %error,
                        "the log was not kept; it stays in the store and is tried again: look at the \
                         folder that the error names, or at the folder of backups"
                    );
                }
                return false;
            }
        }
    }
}

/// Whether log that waits takes the room that new work needs.
fn is_in_the_way(services: &Services) -> bool {
    services.store.stats().disk_is_low && services.store.unarchived_bytes() > EARLY_BYTES
}

async fn archive(services: &Services, config: &Config) -> Result<Option<Part>, backup::Error> {
    let place = Source { store: services.store.clone(), files: services.files.clone() };
    let log = config.backup.folder.join(LOG);
    let reserve = config.limits.disk_reserve;
    let now = services.clock.now();
    let encryption = super::encryption(&config.backup)?;
    let work = move || backup::archive_log(&place, &log, &encryption, reserve, now);
    let working = tokio::task::spawn_blocking(work);
    let archived = working.await.unwrap_or_else(|panic| Err(io::Error::other(panic).into()))?;
    services.files.remove_unpinned().await?;
    Ok(archived)
}

fn given_up(services: &Services, reason: &str) {
    metrics::counter!("orrery_kept_log_given_up_total").increment(1);
    tracing::error!(
        "the log archive was abandoned: {reason}. The next chain begins with a full backup"
    );
    note_given_up(services, Some(reason));
}

fn report(services: &Services, whole_at: Duration) {
    let age = services.clock.monotonic().saturating_sub(whole_at);
    metrics::gauge!("orrery_kept_log_age_seconds").set(age.as_secs_f64());
    let waiting = u32::try_from(services.store.unarchived_bytes() / 1024).unwrap_or(u32::MAX);
    metrics::gauge!("orrery_kept_log_waiting_bytes").set(f64::from(waiting) * 1024.0);
}

/// Notes for `orrery check` why there is no chain, or that there is one.
pub fn note_given_up(services: &Services, reason: Option<&str>) {
    let path: &Path = &services.store.folder().join(GIVEN_UP);
    let noted = match reason {
        Some(reason) => fs::write(path, reason),
        None => match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
    };
    if let Err(error) = noted {
        tracing::warn!(
            path = %path.display(), %error,
            "failed to record the state of the log archive"
        );
    }
}
