//! The log archive: every `backup.log`, the service copies new commits to the log archive in the
//! backup folder (see [`backup::archive_log`]).
//!
//! A chain starts with a full backup. A chain ends if it cannot be continued, or if the log that is
//! not yet archived exceeds `backup.log_budget`. The service then reports the end in its log, in a
//! metric and in `orrery check`, keeps running, and starts the next chain with a full backup at
//! once.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orrery_api::Services;
use orrery_backup::{self as backup, LOG, Part, Source};
use orrery_config::Config;
use orrery_runtime::{Recurring, Tasks};

/// The file that records why the last chain was abandoned, for `orrery check`; absent while a chain
/// exists.
pub(super) const GIVEN_UP: &str = "kept-log.given-up";
/// Interval of the checks for an early rotation.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Log size that triggers an early rotation.
const EARLY_BYTES: u64 = 64 * 1024 * 1024;

/// Archives the log until shutdown.
pub(super) async fn run(services: Arc<Services>, tasks: Tasks, config: Config) {
    let Some(every) = config.backup.log else {
        // Otherwise, a chain from before the restart would prevent the deletion of the log,
        // although no task archives the log.
        services.store.stop_archiving(None);
        note_given_up(&services, None);
        return;
    };
    services.store.set_archive_budget(config.backup.log_budget);
    let look_every = every.min(LOOK_EVERY);
    // Log that an earlier process has left behind is archived at once.
    let mut since_turn = every;
    let mut whole_at = services.clock.monotonic();
    let mut trouble = Recurring::default();
    loop {
        if since_turn >= every || services.store.unarchived_bytes() > EARLY_BYTES {
            since_turn = Duration::ZERO;
            if turn(&services, &config, &mut trouble).await {
                if trouble.end() {
                    tracing::info!("log archiving resumed");
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

/// Archives the log that is not yet archived. Returns whether a chain exists afterward.
async fn turn(services: &Services, config: &Config, trouble: &mut Recurring) -> bool {
    if let Some(reason) = services.store.take_archive_failure() {
        given_up(services, &reason);
    }
    loop {
        match archive(services, config).await {
            Ok(None) => return services.store.archive_position().is_some(),
            Ok(Some(Part { first, last, bytes, damaged })) => {
                tracing::debug!(first, last, bytes, damaged, "log archived");
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
                        "failed to archive the log; it stays in the store for the next attempt: check the \
                         folder that the error names, or the backup folder"
                    );
                }
                return false;
            }
        }
    }
}

/// Returns whether the log that is not yet archived takes up disk space that new work needs.
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
    tracing::error!("log archive abandoned: {reason}. The next chain starts with a full backup");
    note_given_up(services, Some(reason));
}

fn report(services: &Services, whole_at: Duration) {
    let age = services.clock.monotonic().saturating_sub(whole_at);
    metrics::gauge!("orrery_kept_log_age_seconds").set(age.as_secs_f64());
    let waiting = u32::try_from(services.store.unarchived_bytes() / 1024).unwrap_or(u32::MAX);
    metrics::gauge!("orrery_kept_log_waiting_bytes").set(f64::from(waiting) * 1024.0);
}

/// Records for `orrery check` why no chain exists, or removes that record.
pub(super) fn note_given_up(services: &Services, reason: Option<&str>) {
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
