//! Checks of backups: their existence, age, readability and encryption.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use crate::backups;
use orrery_api::{Finding, LateBackup, words};
use orrery_backup::{self as backup, Keys};
use orrery_config as config;
use orrery_domain::time::Timestamp;

/// The age at which a backup is late, in backup intervals.
const LATE: u32 = 2;
/// A backup of at most this size is verified completely, if this machine can decrypt it. If a
/// backup is larger, only its first and last `PART` bytes are read.
const WHOLE_MAX: u64 = 64 * 1024 * 1024;
const PART: u64 = 8 * 1024 * 1024;

/// The result of the last read, cached so that the same backup is not read twice.
#[derive(Debug, Default)]
pub(super) struct Read(Mutex<Option<(Seen, Finding)>>);

/// Identifies a backup.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    path: PathBuf,
    bytes: u64,
    modified: Option<Duration>,
}

/// Returns a finding on whether scheduled backups are encrypted.
pub(super) fn encryption(config: &config::Backup) -> Option<Finding> {
    if let Some(concern) = backups::concern(config) {
        return Some(
            Finding::warning("backup", concern)
                .mended_by("set backup.recipient or backup.passphrase_file"),
        );
    }
    config.every.map(|_| Finding::good("backup", "on a schedule, encrypted"))
}

/// Returns a finding on the age of the newest backup, with a warning if the backup is late.
pub(super) fn age(config: &config::Backup, now: Timestamp) -> Finding {
    let late = |detail: String| {
        Finding::warning("backups", detail).mended_by("orrery backup FILE; journalctl -u orrery")
    };
    let Some(every) = config.every else {
        return Finding::warning("backups", "not scheduled: set `backup.every`")
            .mended_by("set backup.every, backup.folder and backup.recipient");
    };
    let written = backups::newest(&config.folder).and_then(|path| modified(&path));
    let Some(written) = written else {
        return late("there is none yet".to_owned());
    };
    let age = now.since(Timestamp::from_micros(0).plus(written));
    let detail = format!(
        "the newest backup is {} old; backups are scheduled every {}",
        words(age),
        words(every)
    );
    if age > every.saturating_mul(LATE) { late(detail) } else { Finding::good("backups", detail) }
}

/// Returns a check for a late backup; `None` without scheduled backups.
pub(super) fn late(config: &config::Backup) -> Option<LateBackup> {
    config.every?;
    let config = config.clone();
    Some(Arc::new(move |now| {
        let age = age(&config, now);
        age.concern.then_some(age.detail)
    }))
}

fn modified(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()
}

impl Read {
    /// Reads the newest backup, unless that backup was read before.
    pub(super) fn newest(&self, config: &config::Backup) -> Option<Finding> {
        let path = backups::newest(&config.folder)?;
        let bytes = fs::metadata(&path).ok()?.len();
        let seen = Seen { modified: modified(&path), bytes, path };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, finding)) = &*last
            && *before == seen
        {
            return Some(finding.clone());
        }
        let finding = match read(&seen, config) {
            Ok(detail) => Finding::good("last backup", detail),
            Err(error) => {
                let shown = seen.path.display();
                Finding::fault("last backup", format!("{shown}: {error}"))
                    .mended_by(format!("orrery verify {shown}; orrery backup FILE"))
            }
        };
        *last = Some((seen, finding.clone()));
        Some(finding)
    }
}

/// Reads a small backup completely, and the start and the end of a large one. Returns a description
/// of the check.
fn read(seen: &Seen, config: &config::Backup) -> anyhow::Result<String> {
    let file = File::open(&seen.path)?;
    let is_encrypted = backup::is_encrypted(&seen.path)?;
    let keys = match (&config.passphrase, is_encrypted) {
        (_, false) => Some(Keys::none()),
        (Some(passphrase), true) if config.recipients.is_empty() => {
            Some(Keys::of_passphrase(passphrase, "backup.passphrase_file"))
        }
        _ => None,
    };
    let mib = seen.bytes.div_ceil(1024 * 1024);
    match keys.filter(|_| seen.bytes <= WHOLE_MAX) {
        Some(keys) => {
            let plain = backup::open(BufReader::new(file), &keys)?;
            let summary = backup::verify(plain, &mut |_bytes| {})?;
            let rows = summary.rows;
            Ok(format!("the newest backup was verified: {rows} rows, {mib} MiB"))
        }
        None => {
            read_ends(file, seen.bytes)?;
            let how = "`orrery verify` reads the complete backup";
            Ok(format!("start and end of the newest backup are readable, {mib} MiB; {how}"))
        }
    }
}

/// Reads one part at the start and one part at the end.
fn read_ends(mut file: File, bytes: u64) -> io::Result<()> {
    use std::io::Seek as _;
    io::copy(&mut file.by_ref().take(PART), &mut io::sink())?;
    file.seek(io::SeekFrom::Start(bytes.saturating_sub(PART)))?;
    io::copy(&mut file.take(PART), &mut io::sink()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_api::Verdict;
    use orrery_config::Config;

    #[test]
    fn doctor_reports_age_of_newest_backup() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults().backup;
        config.folder = folder.path().to_owned();
        config.every = None;
        let now = Timestamp::from_micros(0).plus(UNIX_EPOCH.elapsed().unwrap());
        assert_eq!(age(&config, now).detail, "not scheduled: set `backup.every`");
        assert!(super::late(&config).is_none(), "a deliberate choice is no alarm");
        config.every = Some(Duration::from_secs(3600));
        assert_eq!(age(&config, now).detail, "there is none yet");
        let look = super::late(&config).unwrap();
        assert_eq!(look(now).as_deref(), Some("there is none yet"));
        fs::write(folder.path().join("orrery-2026-11-20T09-30-00.123Z.backup"), "").unwrap();
        let found = age(&config, now.plus(Duration::from_secs(60)));
        let scheduled = "backups are scheduled every 1 hour";
        assert!(!found.concern && found.detail.ends_with(scheduled), "{found:?}");
        let late = age(&config, now.plus(Duration::from_secs(3 * 3600 + 60)));
        assert!(
            late.concern && late.detail.starts_with("the newest backup is 3 hours old"),
            "{late:?}"
        );
    }

    #[test]
    fn doctor_reads_newest_backup_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults().backup;
        config.folder = folder.path().to_owned();
        let read = Read::default();
        assert_eq!(read.newest(&config), None);
        let path = folder.path().join("orrery-2026-11-20T09-30-00.123Z.backup");
        fs::write(path, "not a backup").unwrap();
        let found = read.newest(&config).unwrap();
        assert_eq!(found.verdict, Verdict::Fault);
        assert!(found.mend.as_deref().unwrap().starts_with("orrery verify "), "{found:?}");
        assert_eq!(read.newest(&config), Some(found));
    }
}
