//! Prepares the data folder before the store opens: creates and locks the folder, removes leftovers
//! of a crash, and syncs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::Error;
use super::log;
use super::opening::STORE;
use orrery_runtime::shortage::with_descriptor;

/// Creates the folder and its missing parents, accessible to the owner only.
pub(crate) fn make(folder: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| Error::folder(folder, &error))
}

/// The lock file.
const LOCK: &str = "lock";

/// The number of retries for a lock that this process itself holds. All retries together take one
/// second. A child that was forked before the store was closed, and has not yet called `exec`, may
/// still hold the lock.
const OWN_LOOKS: u32 = 100;
/// The number of retries for a lock that a killed process holds until the kernel has freed its
/// memory. All retries together take 20 seconds.
const ENDING_LOOKS: u32 = 2000;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The lock on a data folder. The lock is held until this value is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
    folder: PathBuf,
}

impl FolderLock {
    /// Removes the folder if it contains only the lock file.
    pub fn remove_new_folder(self) {
        drop(fs::remove_file(self.folder.join(LOCK)));
        drop(fs::remove_dir(&self.folder));
    }
}

/// Creates the folder if it is missing, and locks it for this process.
///
/// # Errors
/// [`Error::Locked`] if another process holds the lock; [`Error::Folder`].
pub fn make_and_lock(folder: &Path) -> Result<FolderLock, Error> {
    make(folder)?;
    lock(folder)
}

/// Locks the folder for this process.
///
/// # Errors
/// The same errors as [`make_and_lock`].
pub(crate) fn lock(folder: &Path) -> Result<FolderLock, Error> {
    let path = folder.join(LOCK);
    let fault = |error: io::Error| Error::folder(&path, &error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(fault)?;
    let mut looks = 0;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(fs::TryLockError::WouldBlock) => {
                let pid = holder(&mut file);
                if looks >= looks_for(pid) {
                    return Err(Error::Locked { folder: folder.to_path_buf(), pid });
                }
                looks += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(fs::TryLockError::Error(error)) => return Err(fault(error)),
        }
    }
    let note = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    note(&mut file).map_err(fault)?;
    Ok(FolderLock { _file: file, folder: folder.to_path_buf() })
}

/// Reads the process id in the lock file.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Returns the number of retries for a lock that process `pid` holds, before the folder is reported
/// as in use.
fn looks_for(pid: Option<u32>) -> u32 {
    match pid {
        Some(pid) if pid == std::process::id() => OWN_LOOKS,
        Some(pid) if is_ending(pid) => ENDING_LOOKS,
        Some(_) | None => 0,
    }
}

/// Whether a process has exited, is exiting, or has a pending SIGKILL.
fn is_ending(pid: u32) -> bool {
    /// The kernel's `PF_EXITING`: the process is freeing its resources.
    const EXITING: u64 = 4;
    /// The bit of SIGKILL in the masks of pending signals.
    const KILLED: u64 = 1 << 8;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return !Path::new("/proc").join(pid.to_string()).exists();
    };
    // The preceding command name may contain anything, including spaces and parentheses.
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let is_killed = pending.into_iter().any(|mask| mask & KILLED != 0);
    matches!(state, "Z" | "X") || flags & EXITING != 0 || is_killed
}

/// Deletes incomplete snapshots that remain if the process was killed during an earlier start.
/// While such a snapshot exists, the engine does not open.
pub(crate) fn remove_half_snapshots(store: &Path) -> Result<usize, Error> {
    let fault = |error: io::Error| Error::folder(store, &error);
    let entries = match fs::read_dir(store) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(fault(error)),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path()).map_err(fault)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Refuses a data folder that contains named pipes or devices where files should be: opening a pipe
/// may block forever.
pub(crate) fn refuse_special_files(data: &Path) -> Result<(), Error> {
    let store = data.join(STORE);
    let folders = [data.to_path_buf(), store.join(log::FOLDER), store];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let kind = fs::metadata(&path).map(|found| found.file_type());
        if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_block_device())
        {
            let reason = "it is not a regular file but a named pipe or a device: put the file back, \
                          or remove it and restore a backup";
            return Err(Error::Folder { path, reason: reason.to_owned() });
        }
    }
    Ok(())
}

/// Syncs a new store's files and directory entries. The engine syncs its files' data, but not the
/// entries of its folder.
pub(crate) fn sync_new(folder: &Path, store: &Path) -> Result<(), Error> {
    let mut paths = vec![store.join("conf"), store.to_path_buf(), folder.to_path_buf()];
    paths.extend(
        folder.parent().filter(|parent| !parent.as_os_str().is_empty()).map(Path::to_path_buf),
    );
    for path in paths {
        sync(&path)?;
    }
    Ok(())
}

/// Syncs one file or folder.
pub(crate) fn sync(path: &Path) -> Result<(), Error> {
    let synced = with_descriptor(|| File::open(path)).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::folder(path, &error))
}

/// Durably writes a small file that only the owner can read, atomically replacing an existing file.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_beside(path, bytes, |half| fs::rename(half, path))
}

/// Like [`write_new`], but keeps an existing file: of two concurrent writers, only the first takes
/// effect.
pub(crate) fn write_first(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_beside(path, bytes, |half| {
        match fs::hard_link(half, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
        fs::remove_file(half)
    })
}

fn write_beside(
    path: &Path,
    bytes: &[u8],
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), Error> {
    let fault = |error: io::Error| Error::folder(path, &error);
    let half = path.with_extension("half");
    let write = || {
        let mut file = with_descriptor(|| {
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&half)
        })?;
        file.write_all(bytes)?;
        file.sync_all()?;
        place(&half)
    };
    write().map_err(fault)?;
    path.parent().map_or(Ok(()), sync)
}

/// Disk space in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Available to this user.
    pub free: u64,
    pub total: u64,
}

/// The size and free space of the folder's disk.
pub fn sizes(folder: &Path) -> Option<Sizes> {
    let figures = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(figures.f_frsize);
    Some(Sizes { free: bytes(figures.f_bavail), total: bytes(figures.f_blocks) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn store_with_pipe_or_device_in_place_of_a_file_is_refused() {
        use crate::{Options, Store};
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let options = Options { folder: data.clone(), inline_bytes: 1024 };
        drop(Store::open(&options).unwrap());
        let log = fs::read_dir(data.join("store/log")).unwrap().next().unwrap().unwrap().path();
        let linked = data.join("store/linked");
        for path in
            [data.join("store/db"), data.join("store/conf"), data.join("store.mark"), log, linked]
        {
            let kept = path.with_extension("kept");
            let had = fs::rename(&path, &kept).is_ok();
            if had {
                mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
            } else {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
            let error = Store::open(&options).unwrap_err().to_string();
            assert!(error.contains("named pipe or a device"), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            fs::remove_file(&path).unwrap();
            if had {
                fs::rename(&kept, &path).unwrap();
            }
        }
        drop(Store::open(&options).unwrap());
    }

    /// Locks a folder, and writes `pid` into the lock file as the holder.
    fn held(folder: &Path, pid: u32) -> File {
        let path = folder.join("lock");
        fs::write(&path, format!("{pid}\n")).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        file.try_lock().unwrap();
        file
    }

    #[test]
    fn lock_waits_for_process_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        assert!(!is_ending(pid) && !is_ending(std::process::id()));
        child.kill().unwrap();
        while !is_ending(pid) {
            std::thread::sleep(LOCK_PAUSE);
        }
        // The process is a zombie until it is reaped.
        assert_waits(folder.path(), pid);
        child.wait().unwrap();
        assert!(is_ending(pid));
        assert_waits(folder.path(), pid);
    }

    /// Asserts that a lock whose holder is recorded as `pid` can be acquired once it is released,
    /// and not before.
    fn assert_waits(folder: &Path, pid: u32) {
        let file = held(folder, pid);
        let is_free = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| {
                let taken = lock(folder).map(drop);
                (taken, is_free.load(Ordering::SeqCst))
            });
            std::thread::sleep(5 * LOCK_PAUSE);
            is_free.store(true, Ordering::SeqCst);
            drop(file);
            let (taken, was_free) = taking.join().unwrap();
            assert!(taken.is_ok() && was_free, "{taken:?}");
        });
    }

    #[test]
    fn lock_of_live_process_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let _file = held(folder.path(), child.id());
        assert_eq!(looks_for(Some(child.id())), 0);
        let refused = lock(folder.path()).unwrap_err();
        assert!(matches!(refused, Error::Locked { pid: Some(pid), .. } if pid == child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
