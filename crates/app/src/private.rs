//! Keeps the data folder private to its owner: folders 0700, files 0600.
//!
//! New files get these permissions from the process's umask and from the code that creates them. An
//! older version, a copy or an operator may have left wider permissions. This module removes the
//! excess permissions before the service opens anything in the folder.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use orrery_runtime::Tasks;

/// The permission bits of the group and of all other users.
const OF_OTHERS: u32 = 0o077;
/// Folders that may contain millions of files. Each file is created with mode 0600. Private
/// subfolders are skipped, because no other user can reach their contents.
const LARGE: [&str; 3] = ["files", "payloads", "work"];

/// The secret files in the data folder.
pub(super) const SECRETS: [&str; 5] =
    ["seal.key", "seal.key.next", "control.token", "tls/ca.key", "tls/server.key"];
/// Interval at which a running service checks the modes of the secret files.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Removes other users' permissions from the data folder and everything in it, without following
/// symbolic links. Returns the number of changed files and folders.
///
/// # Errors
/// Returns an error if a file or folder stays accessible to others; the message names it.
pub(crate) fn tighten(data: &Path) -> anyhow::Result<usize> {
    let mut changed = 0;
    let Ok(data) = fs::canonicalize(data) else { return Ok(changed) };
    let mut folders = vec![data.clone()];
    while let Some(folder) = folders.pop() {
        let was_open = close(&folder)?;
        changed += usize::from(was_open);
        let part = folder.strip_prefix(&data).ok().and_then(|part| part.iter().next());
        if !was_open && part.is_some_and(|part| LARGE.iter().any(|large| part == *large)) {
            continue;
        }
        let unread = || format!("{} cannot be read", folder.display());
        for entry in fs::read_dir(&folder).with_context(unread)? {
            let entry = entry.with_context(unread)?;
            let kind = entry.file_type().with_context(unread)?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if !kind.is_symlink() {
                changed += usize::from(close(&entry.path())?);
            }
        }
    }
    if changed > 0 {
        tracing::info!(
            changed, folder = %data.display(),
            "removed other users' access to files in the data folder"
        );
    }
    Ok(changed)
}

/// Restores the modes of the running service's private files whenever they change, because a
/// program that may change modes could open the files to other users of the machine.
pub(crate) async fn keep_closed(data: PathBuf, tasks: Tasks) {
    let paths: Arc<[PathBuf]> =
        std::iter::once(data.clone()).chain(SECRETS.iter().map(|name| data.join(name))).collect();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = tasks.stopping() => return,
        }
        let paths = Arc::clone(&paths);
        // A panic in the thread ends only the current check; the next check runs as scheduled.
        let _next_look = tokio::task::spawn_blocking(move || close_all(&paths)).await;
    }
}

fn close_all(paths: &[PathBuf]) {
    for path in paths {
        match close(path) {
            Ok(false) => {}
            Ok(true) => {
                tracing::error!(path = %path.display(), "file was accessible to other users; permissions restored")
            }
            Err(error) => tracing::error!("{error:#}"),
        }
    }
}

/// Makes one file or folder private, and returns whether it was accessible to others.
fn close(path: &Path) -> anyhow::Result<bool> {
    let metadata = match fs::symlink_metadata(path) {
        // The writer of a temporary file may have renamed the file since the folder was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        metadata => metadata.with_context(|| format!("{} cannot be read", path.display()))?,
    };
    let mode = metadata.mode() & 0o7777;
    if mode & OF_OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !OF_OTHERS)).with_context(|| {
        format!(
            "other users can reach {} (mode {mode:04o}, owner {}), and its mode cannot be changed: \
             make it belong to the service's user, or run chmod go-rwx on it",
            path.display(),
            metadata.uid()
        )
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn private_secrets_are_restored_while_service_runs() {
        let outer = tempfile::tempdir().unwrap();
        let paths = ["", "seal.key", "control.token"].map(|name| outer.path().join(name));
        for path in paths.iter().skip(1) {
            fs::write(path, "secret").unwrap();
        }
        paths.iter().for_each(|path| set(path, 0o777));
        close_all(&[&paths[..], &[outer.path().join("seal.key.next")]].concat());
        assert_eq!(paths.each_ref().map(|path| mode(path)), [0o700; 3]);
    }

    #[test]
    fn data_folder_permissions_are_tightened_recursively() {
        let outer = tempfile::tempdir().unwrap();
        let data = outer.path().join("data");
        fs::create_dir_all(data.join("store/blobs")).unwrap();
        fs::create_dir_all(data.join("files/ab")).unwrap();
        let outside = outer.path().join("outside");
        for file in [&data.join("seal.key"), &data.join("store/blobs/1"), &outside] {
            fs::write(file, "").unwrap();
            set(file, 0o644);
        }
        let program = data.join("program");
        fs::write(&program, "").unwrap();
        set(&program, 0o755);
        std::os::unix::fs::symlink(&outside, data.join("link")).unwrap();
        for folder in ["store/blobs", "store", "files/ab", "files", ""] {
            set(&data.join(folder), 0o755);
        }

        assert_eq!(tighten(&data).unwrap(), 8);
        for folder in ["", "store", "store/blobs", "files", "files/ab"] {
            assert_eq!(mode(&data.join(folder)), 0o700, "{folder}");
        }
        assert_eq!(mode(&data.join("store/blobs/1")), 0o600);
        assert_eq!((mode(&program), mode(&outside)), (0o700, 0o644));
        assert_eq!(tighten(&data).unwrap(), 0);
        assert_eq!(tighten(&outer.path().join("none")).unwrap(), 0, "made later, with mode 0700");
    }
}
