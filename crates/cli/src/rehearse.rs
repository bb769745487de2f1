//! `orrery verify FILE --restore`: rehearses a restore in a temporary folder, which is always
//! deleted. The rehearsal reads only the backup and its log archive, and does not access any
//! service or store.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempDir;

use super::backup::{blocking, byte_bar, checked_file, counted};
use super::output::{self, Output};
use super::service;
use orrery_backup::{self as backup, Keys, Reached, Replay, Report, Source, Spared, Summary};
use orrery_config::Config;
use orrery_runtime::{Clock, regular_file};

/// The prefix for names of temporary folders.
const PREFIX: &str = "orrery-rehearsal-";
/// The name of the data folder inside the temporary folder.
pub(super) const DATA: &str = "data";

/// Restores a backup, opens and checks the store, and deletes the copy. Returns false if it finds
/// errors.
pub(super) async fn run(
    file: &Path,
    keys: Keys,
    replay: Replay,
    work_dir: Option<PathBuf>,
    config: &Config,
    output: &Output,
) -> anyhow::Result<bool> {
    let (folder, parent) = folder_for_copy(work_dir, config)?;
    let restored = Config { data_dir: folder.path().join(DATA), ..config.clone() };
    let into = restored.data_dir.clone();
    let backup_file = file.to_owned();
    let no_room = |_bytes| "a rehearsal".to_owned();
    let copy = Copy { file: backup_file, keys, replay, into, parent, bar: "restore", no_room };
    let (_summary, reached) = restore(copy, config)
        .await
        .with_context(|| format!("{} cannot be restored", file.display()))?;
    let place = service::stopped_store(&restored).context("the restored store cannot be opened")?;
    let report = check(place).await?;
    folder.close().context("the temporary folder cannot be deleted")?;
    let is_good = report.faults.is_empty();
    counted(report, output)?;
    if let Some(reached) = reached {
        output::note(&format!("restored up to commit {} of {}", reached.record, reached.at));
    }
    output::note(match is_good {
        true => "the backup was restored, opened and checked, and the restored folder was deleted",
        false => "the restored store has faults",
    });
    Ok(is_good)
}

/// A backup to restore into a temporary copy.
pub(super) struct Copy {
    pub file: PathBuf,
    pub keys: Keys,
    pub replay: Replay,
    /// The new data folder, and the folder that contains it.
    pub into: PathBuf,
    pub parent: PathBuf,
    /// The label of the progress bar.
    pub bar: &'static str,
    /// Returns the subject of the error message for a lack of space, given the size of the copy in
    /// bytes.
    pub no_room: fn(u64) -> String,
}

/// Verifies a backup and its log archive, and restores both. Fails if there is not enough free
/// space, because a full disk would stop a service on the same disk.
///
/// # Errors
/// Returns an error when the backup is damaged, or there is not enough space for the copy.
pub(super) async fn restore(
    copy: Copy,
    config: &Config,
) -> anyhow::Result<(Summary, Option<Reached>)> {
    let Copy { file, keys, replay, into, parent, bar, no_room } = copy;
    let inline_bytes = config.engine.payload_inline_bytes;
    let reserve = config.limits.disk_reserve;
    blocking(move || {
        let bytes = expected_bytes(&file, &keys, &replay)?;
        Spared::new(io::sink(), &parent, reserve, bytes).with_context(|| {
            let (parent, what) = (parent.display(), no_room(bytes));
            format!("{parent} has no room for {what}: choose another folder with --work-dir")
        })?;
        let opened = regular_file::open(&file)?;
        let bar = byte_bar(bar);
        let now = Clock::system().now();
        let mut progress = |bytes| bar.set_position(bytes);
        let restored =
            backup::restore_until(opened, &keys, &into, inline_bytes, now, &replay, &mut progress)?;
        bar.finish_and_clear();
        Ok(restored)
    })
    .await
}

/// Returns the number of bytes that a restore of `file` and its log archive may write.
///
/// # Errors
/// Returns an error when the backup is damaged, or its log archive cannot be applied.
fn expected_bytes(file: &Path, keys: &Keys, replay: &Replay) -> anyhow::Result<u64> {
    let summary = checked_file(file, keys)?;
    let bar = byte_bar("log");
    let plan = replay.plan(&summary, keys, &mut |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    Ok(summary.bytes.saturating_add(plan.bytes()))
}

/// Reads and checks a complete restored store, and closes it.
///
/// # Errors
/// Returns an error when the store cannot be read at all.
pub(super) async fn check(place: Source) -> anyhow::Result<Report> {
    let store = place.store.clone();
    let report = blocking(move || {
        let bar = byte_bar("check");
        let report = backup::check_store(&place, &mut |rows| bar.set_position(rows))?;
        bar.finish_and_clear();
        Ok(report)
    })
    .await?;
    store.close().await;
    Ok(report)
}

/// Creates a temporary folder for a copy of the data; also returns its parent folder.
pub(super) fn folder_for_copy(
    work_dir: Option<PathBuf>,
    config: &Config,
) -> anyhow::Result<(TempDir, PathBuf)> {
    let parent = work_dir.unwrap_or_else(|| beside(&config.data_dir));
    let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&parent);
    let folder = made.with_context(|| {
        format!(
            "no folder can be created in {}: choose another one with --work-dir",
            parent.display()
        )
    })?;
    Ok((folder, parent))
}

/// Returns the parent of the data folder, or the system's folder for temporary files.
fn beside(data: &Path) -> PathBuf {
    let absolute = std::path::absolute(data).ok();
    let parent = absolute.as_deref().and_then(Path::parent).filter(|parent| parent.is_dir());
    parent.map_or_else(std::env::temp_dir, Path::to_path_buf)
}
