//! `orrery verify FILE --restore`: a restore as it would be, into a folder that is removed again, however it
//! ends. It reads the backup and the log archive behind it, and touches no service and no store.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::backup::{blocking, byte_bar, checked_file, counted};
use super::output::{self, Output};
use super::service;
use crate::backup::{self, Keys, Replay, Spared};
use crate::config::Config;
use crate::runtime::Clock;

/// What the names of temporary folders begin with.
const PREFIX: &str = "orrery-rehearsal-";
/// The data folder within it.
const DATA: &str = "data";

/// Restores, opens, checks and removes: false when there are faults.
pub(super) async fn run(
    file: &Path,
    keys: Keys,
    replay: Replay,
    work_dir: Option<PathBuf>,
    config: &Config,
    output: &Output,
) -> anyhow::Result<bool> {
    let parent = work_dir.unwrap_or_else(|| beside(&config.data_dir));
    let folder =
        tempfile::Builder::new().prefix(PREFIX).tempdir_in(&parent).with_context(|| {
            format!(
                "no folder can be made in {}: name another one with --work-dir",
                parent.display()
            )
        })?;
    let restored = Config { data_dir: folder.path().join(DATA), ..config.clone() };
    let into = restored.data_dir.clone();
    let inline_bytes = config.engine.payload_inline_bytes;
    let reserve = config.limits.disk_reserve;
    let backup_file = file.to_owned();
    let reached = blocking(move || {
        // A disk that fills up would stop a service that runs on it.
        let summary = checked_file(&backup_file, &keys)?;
        Spared::new(io::sink(), &parent, reserve, summary.bytes).with_context(|| {
            format!(
                "{} has no room for a rehearsal: name another folder with --work-dir",
                parent.display()
            )
        })?;
        let opened = File::open(&backup_file)?;
        let bar = byte_bar("restore");
        let now = Clock::system().now();
        let mut progress = |bytes| bar.set_position(bytes);
        let (_summary, reached) =
            backup::restore_until(opened, &keys, &into, inline_bytes, now, &replay, &mut progress)?;
        bar.finish_and_clear();
        Ok(reached)
    })
    .await
    .with_context(|| format!("{} cannot be restored", file.display()))?;
    let place = service::stopped_store(&restored).context("the restored store cannot be opened")?;
    let store = place.store.clone();
    let report = blocking(move || {
        let bar = byte_bar("check");
        let report = backup::check_store(&place, &mut |rows| bar.set_position(rows))?;
        bar.finish_and_clear();
        Ok(report)
    })
    .await?;
    store.close().await;
    folder.close().context("the temporary folder cannot be removed")?;
    let is_good = report.faults.is_empty();
    counted(report, output)?;
    if let Some(reached) = reached {
        output::note(&format!("restored up to commit {} of {}", reached.record, reached.at));
    }
    output::note(match is_good {
        true => "the backup was restored, opened and checked, and the restored folder was removed",
        false => "the restored store has faults",
    });
    Ok(is_good)
}

/// The folder that holds the data folder, or the one for temporary files.
fn beside(data: &Path) -> PathBuf {
    let absolute = std::path::absolute(data).ok();
    let parent = absolute.as_deref().and_then(Path::parent).filter(|parent| parent.is_dir());
    parent.map_or_else(std::env::temp_dir, Path::to_path_buf)
}
