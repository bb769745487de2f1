//! Scheduled backups: one every `backup.every` in `backup.folder`. The newest `backup.keep` backups
//! are retained, and so is all log archived since the oldest retained backup.
//!
//! A backup gets its final name only when it is complete and on disk. A failed backup is logged and
//! retried at the next interval, and existing backups are not pruned.
//!
//! Scheduled backups are recognized by their file names, which contain the time of the backup. The
//! schedule ignores other files in the folder, such as manual backups, and never deletes them.

pub(crate) mod after;
mod log_archive;

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use orrery_api::Services;
use orrery_backup::{self as backup, Encryption, Source, Spared, Summary};
use orrery_config::{self as config, Config};
use orrery_domain::time::Timestamp;
use orrery_records::audit::Actor;
use orrery_runtime::Tasks;
use orrery_storage as storage;

const PREFIX: &str = "orrery-";
const SUFFIX: &str = ".backup";
const PART: &str = "part";
/// The risk of an unencrypted backup, and the remedy.
pub const UNENCRYPTED: &str = "anyone who has the file can read everything in it, including the \
    sealed secrets, because seal.key is inside; set `backup.recipient` or `backup.passphrase_file`";

/// Writes scheduled backups until shutdown.
pub(crate) async fn run(services: Arc<Services>, tasks: Tasks, config: Config) {
    tasks.spawn(log_archive::run(Arc::clone(&services), tasks.clone(), config.clone()));
    let reserve = config.limits.disk_reserve;
    let config = config.backup;
    let Some(every) = config.every else { return };
    if let Some(concern) = concern(&config) {
        tracing::warn!("{concern}");
    }
    loop {
        publish(&config.folder);
        let due = until_due(&config.folder, every, services.clock.now());
        let due = if lacks_base(&services, &config) { Duration::ZERO } else { due };
        // If a log archive chain was abandoned, a new backup is due at once.
        let wait = config.log.map_or(due, |log| due.min(log));
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep(wait) => {}
        }
        if wait < due {
            continue;
        }
        let made = make(&services, &config, reserve).await;
        let subject = made.as_ref().map_or(&config.folder, |(path, _)| path).display().to_string();
        let entry = services.audit.entry(&Actor::service_on("timetable"), "backup.write", subject);
        match made {
            Ok((path, summary)) => {
                tracing::info!(
                    path = %path.display(), rows = summary.rows, files = summary.files,
                    damaged = summary.damaged.len(), "backup written"
                );
                services.audit.write_or_log(&entry).await;
                tokio::select! {
                    () = tasks.stopping() => return,
                    () = after::run(&services, &config, &path) => {}
                }
            }
            Err(error) => {
                services.audit.write_or_log(&entry.refused(&error.to_string())).await;
                metrics::counter!("orrery_backup_failures_total").increment(1);
                tracing::error!(%error, "backup failed");
                tokio::select! {
                    () = tasks.stopping() => return,
                    () = tokio::time::sleep(every.min(Duration::from_secs(3600))) => {}
                }
            }
        }
    }
}

/// Sets the metric for the time of the newest backup.
fn publish(folder: &Path) {
    let written = newest(folder).and_then(|path| fs::metadata(path).ok()?.modified().ok());
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    metrics::gauge!("orrery_backup_last_timestamp_seconds").set(written.as_secs_f64());
}

/// Returns whether the log archive is enabled but the full backup on which its chain is based is
/// missing.
fn lacks_base(services: &Services, config: &config::Backup) -> bool {
    let has_base = |kept: storage::ArchivePosition| backup::has_base(&config.folder, kept.chain);
    config.log.is_some()
        && !services.store.archive_position().is_some_and(|kept| has_base(kept).unwrap_or(true))
}

/// Returns the time until the newest scheduled backup is `every` old.
fn until_due(folder: &Path, every: Duration, now: Timestamp) -> Duration {
    let written = |path: &PathBuf| {
        let time = fs::metadata(path).ok()?.modified().ok()?;
        Some(Timestamp::from_micros(0).plus(time.duration_since(UNIX_EPOCH).ok()?))
    };
    let found = scheduled(folder).unwrap_or_default();
    // Backups dated further in the future are ignored: the clock was ahead when they were written.
    let latest = now.plus(every);
    let last = found.iter().filter_map(written).filter(|written| *written <= latest).max();
    last.map_or(Duration::ZERO, |written| every.saturating_sub(now.since(written)))
}

/// Returns whether a store was rejected because it is damaged or incomplete, or its parts do not
/// match.
#[must_use]
pub fn is_damage(error: &anyhow::Error) -> bool {
    use storage::Error::{Damaged, Misfit};
    matches!(error.downcast_ref(), Some(Damaged { .. } | Misfit { .. }))
}

/// Adds the newest scheduled backup in `folder` to the message of an error about a damaged store.
pub(crate) fn advised(error: storage::Error, folder: &Path) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    match newest(folder).filter(|_| is_damage(&error)) {
        None => error,
        Some(path) => error.context(format!(
            "the store cannot be used as it is; the newest backup is {0}: restore it into an empty \
             folder with `orrery restore {0}`",
            path.display()
        )),
    }
}

/// Returns the newest scheduled backup in a folder, if any.
pub(crate) fn newest(folder: &Path) -> Option<PathBuf> {
    scheduled(folder).ok()?.pop()
}

/// Returns the scheduled backups in a folder, oldest first; their names sort by time.
fn scheduled(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_scheduled) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the file name of the scheduled backup of the given time.
fn name_of(time: Timestamp) -> String {
    format!("{PREFIX}{}{SUFFIX}", time.to_string().replace(':', "-"))
}

/// Returns whether a file name has the form that [`name_of`] returns.
fn is_scheduled(name: &str) -> bool {
    let middle = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    let Some((day, time)) = middle.and_then(|middle| middle.split_once('T')) else { return false };
    let time = format!("{day}T{}", time.replace('-', ":")).parse::<Timestamp>();
    time.is_ok_and(|time| name_of(time) == name)
}

/// Destination and options of backups.
struct Target {
    folder: PathBuf,
    keep: usize,
    reserve: Option<u64>,
    encryption: Encryption,
}

impl Target {
    fn new(config: &config::Backup, reserve: Option<u64>) -> Result<Self, backup::Error> {
        let folder = config.folder.clone();
        let encryption = encryption(config)?;
        Ok(Self { folder, keep: config.keep, reserve, encryption })
    }
}

/// Returns the configured encryption of backups.
///
/// # Errors
/// Returns an error if a recipient is invalid, which a validated configuration never contains.
pub fn encryption(config: &config::Backup) -> Result<Encryption, backup::Error> {
    Encryption::new(&config.recipients, config.passphrase.as_ref())
}

/// Returns a warning if scheduled backups are not encrypted.
#[must_use]
pub fn concern(config: &config::Backup) -> Option<String> {
    let is_open = config.recipients.is_empty() && config.passphrase.is_none();
    (config.every.is_some() && is_open)
        .then(|| format!("scheduled backups are not encrypted: {UNENCRYPTED}"))
}

async fn make(
    services: &Services,
    config: &config::Backup,
    reserve: Option<u64>,
) -> Result<(PathBuf, Summary), backup::Error> {
    if config.log.is_some() && services.store.archive_position().is_none() {
        services.store.start_archiving()?;
    }
    let pin = services.files.pin();
    let place = Source { store: services.store.clone(), files: services.files.clone() };
    let target = Target::new(config, reserve)?;
    let now = services.clock.now();
    let writing = tokio::task::spawn_blocking(move || write(&place, &target, now));
    let written = writing.await.unwrap_or_else(|panic| Err(io::Error::other(panic).into()));
    services.files.unpin(pin).await?;
    if written.is_ok() && services.store.archive_position().is_some() {
        log_archive::note_given_up(services, None);
    }
    written
}

fn write(
    place: &Source,
    target: &Target,
    now: Timestamp,
) -> Result<(PathBuf, Summary), backup::Error> {
    let Target { folder, keep, reserve, encryption } = target;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let file_name = name_of(now);
    let path = folder.join(&file_name);
    let part = path.with_extension(PART);
    // The new backup will be about as large as the last one.
    let last = newest(folder).and_then(|last| fs::metadata(last).ok());
    let expected = last.map_or(0, |last| last.len());
    let write = || -> Result<Summary, backup::Error> {
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)?;
        let out = Spared::new(BufWriter::new(file), folder, *reserve, expected)?;
        let out = encryption.writer(out)?;
        let (out, summary) = backup::write(place, now, out, &mut |_| {})?;
        let (out, digest) = out.finish()?;
        out.into_inner().into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        // The backup is read back, because a file that cannot be read is useless as a backup.
        let file = File::open(&part)?;
        let summary = encryption.read_back(file, Some(summary), digest, &mut |_| {})?;
        if let Some(point) = &summary.point {
            backup::note_base(folder, point, &file_name)?;
        }
        fs::rename(&part, &path)?;
        File::open(folder)?.sync_all()?;
        Ok(summary)
    };
    let written = write();
    if written.is_err() {
        let _left_for_the_next_try = fs::remove_file(&part);
    }
    let summary = written?;
    // The new backup must not be pruned, so future-dated backups, whose names sort after it, are
    // pruned first.
    let found = scheduled(folder)?;
    let (older, mut others): (Vec<_>, Vec<_>) =
        found.into_iter().filter(|other| *other != path).partition(|other| *other < path);
    others.extend(older);
    for old in others.iter().take(others.len().saturating_sub(keep.saturating_sub(1))) {
        fs::remove_file(old)?;
    }
    if let Err(error) = backup::prune(folder, place.store.archive_position().map(|kept| kept.chain))
    {
        tracing::warn!(%error, "failed to prune the log archive");
    }
    Ok((path, summary))
}

#[cfg(test)]
mod tests;
