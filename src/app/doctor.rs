//! What a running service finds about its own upkeep: disk, backups, sandbox, what the last start refused.
//! `orrery check` looks at more, before a start; this looks and changes nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::backups;
use super::rotation;
use crate::api::{Doctor, Finding};
use crate::config::{self, Config};
use crate::domain::time::Timestamp;
use crate::guard::fence;
use crate::storage;

/// The share of the disk below which its room is a concern, in hundredths.
const LOW_PERCENT: u64 = 10;
/// A backup is late when it is so many times as old as the time between two.
const LATE: u32 = 2;

/// The doctor of a service with this configuration.
pub fn of(config: &Config) -> Doctor {
    let config = config.clone();
    Doctor::new(move |now| findings(&config, now))
}

fn good(subject: &'static str, detail: impl Into<String>) -> Finding {
    Finding { subject, is_concern: false, detail: detail.into() }
}

fn concern(subject: &'static str, detail: impl Into<String>) -> Finding {
    Finding { subject, is_concern: true, detail: detail.into() }
}

fn findings(config: &Config, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(disk(&config.data_dir));
    found.push(backup(&config.backup, now));
    found.extend(backups::concern(&config.backup).map(|detail| concern("backups", detail)));
    found.extend(noted(&config.data_dir));
    if rotation::is_under_way(&config.data_dir) {
        found.push(concern("seal", rotation::UNDER_WAY));
    }
    found.push(match fence::strength().concern() {
        Some(detail) => concern("sandbox", detail),
        None => good("sandbox", "Landlock confines programs of models to their folder"),
    });
    found
}

/// The free space of a disk beside the reserve; an error where the service would refuse new work.
///
/// # Errors
/// What an operator has to know of a disk that is nearly full.
pub fn disk_space(folder: &Path, reserve: Option<u64>) -> Result<String, String> {
    const MIB: u64 = 1024 * 1024;
    let monitor = storage::DiskSpaceMonitor::with_reserve(folder.to_path_buf(), reserve);
    let (free, reserve) = (monitor.free(), monitor.reserve());
    if free < reserve {
        return Err(storage::shortage(free, reserve));
    }
    let (free, reserve) = (free / MIB, reserve / MIB);
    Ok(format!(
        "{free} MiB are free; below {reserve} MiB (limits.disk_reserve) new work is refused"
    ))
}

fn disk(folder: &Path) -> Option<Finding> {
    let sizes = storage::disk_sizes(folder)?;
    let percent = sizes.free.saturating_mul(100).checked_div(sizes.total).unwrap_or_default();
    let gigabytes = |bytes: u64| bytes / 1_000_000_000;
    let detail = format!(
        "{} of {} GB are free ({percent} %)",
        gigabytes(sizes.free),
        gigabytes(sizes.total)
    );
    Some(if percent < LOW_PERCENT { concern("disk", detail) } else { good("disk", detail) })
}

/// How old the newest backup is, and whether it should be newer.
fn backup(config: &config::Backup, now: Timestamp) -> Finding {
    let Some(every) = config.every else {
        return concern("backups", "none are made: set `backup.every`");
    };
    let written = backups::newest(&config.folder)
        .and_then(|path| fs::metadata(path).ok()?.modified().ok())
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let Some(written) = written else {
        return concern("backups", "there is none yet");
    };
    let age = now.since(Timestamp::from_micros(0).plus(written));
    let detail = format!("the newest is {} old; one is made each {}", words(age), words(every));
    if age > every.saturating_mul(LATE) {
        concern("backups", detail)
    } else {
        good("backups", detail)
    }
}

/// A span in its largest unit.
fn words(span: Duration) -> String {
    let seconds = span.as_secs();
    let (count, unit) = match seconds {
        0..=59 => (seconds, "second"),
        60..=3599 => (seconds / 60, "minute"),
        3600..=86_399 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// What the service has noted in its data folder for somebody to act on.
fn noted(folder: &Path) -> Vec<Finding> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let mut found = Vec::new();
    if !text("kept-log.given-up").is_empty() {
        found.push(concern(
            "log archive",
            "the log is not kept until the next full backup: `orrery check` says why",
        ));
    }
    let refused = text("sweep.refused").lines().count();
    if refused > 0 {
        found.push(concern(
            "sweep",
            format!("the last start refused {refused} sweeps: `orrery check` says why"),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_names_the_age_of_the_newest_backup() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        config.data_dir = folder.path().to_owned();
        config.backup.folder = folder.path().to_owned();
        config.backup.every = None;
        let now = Timestamp::from_micros(0).plus(UNIX_EPOCH.elapsed().unwrap());
        assert_eq!(backup(&config.backup, now).detail, "none are made: set `backup.every`");
        config.backup.every = Some(Duration::from_secs(3600));
        assert_eq!(backup(&config.backup, now), concern("backups", "there is none yet"));
        fs::write(folder.path().join("orrery-1.backup"), "").unwrap();
        let found = backup(&config.backup, now.plus(Duration::from_secs(60)));
        assert!(
            !found.is_concern && found.detail.ends_with("one is made each 1 hour"),
            "{found:?}"
        );
        let late = backup(&config.backup, now.plus(Duration::from_secs(3 * 3600 + 60)));
        assert!(
            late.is_concern && late.detail.starts_with("the newest is 3 hours old"),
            "{late:?}"
        );
    }

    #[test]
    fn doctor_reports_what_the_service_has_noted() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(noted(folder.path()), []);
        fs::write(folder.path().join("sweep.refused"), "one\ntwo\n").unwrap();
        assert_eq!(noted(folder.path())[0].subject, "sweep");
        assert!(disk(folder.path()).is_some());
    }
}
