//! A folder of files to which the store refers. The folder is distinguished from a different folder
//! at the same path, such as the empty mount point of an unmounted volume, or a new folder that was
//! created after the original was moved away.
//!
//! While the folder is not in place, no file counts as deleted, and no file is written at the
//! folder's path, because that file would be hidden once the volume is mounted again.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Mode, OFlags};

/// A folder, identified by its inode from the first time that it is seen.
#[derive(Debug)]
pub struct RootFolder {
    path: PathBuf,
    inode: OnceLock<u64>,
}

impl RootFolder {
    /// Creates a value for the folder at `path`. If the folder is missing, the first write creates
    /// it.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let inode = fs::metadata(&path).map(|data| OnceLock::from(data.ino())).unwrap_or_default();
        Self { path, inode }
    }

    /// The folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks before a write that the folder is in place. Creates the folder if it never existed.
    ///
    /// # Errors
    /// If the folder is missing, or another folder is in its place.
    pub fn ensure(&self) -> io::Result<()> {
        if self.inode.get().is_none() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
            if let Some(above) = self.path.parent() {
                fs::File::open(above)?.sync_all()?;
            }
        }
        let found = fs::metadata(&self.path)?.ino();
        if *self.inode.get_or_init(|| found) == found {
            return Ok(());
        }
        let path = self.path.display();
        Err(io::Error::other(format!(
            "{path} is not the folder that was there before: is a volume not mounted?"
        )))
    }

    /// Whether the folder has a shard (a subfolder with a two-character name). If so, it is neither
    /// missing nor the empty mount point of an unmounted volume.
    #[must_use]
    pub fn has_shards(&self) -> bool {
        let Ok(shards) = fs::read_dir(&self.path) else { return false };
        shards.into_iter().flatten().any(|shard| shard.file_name().len() == 2)
    }

    /// Whether the folder is in place but has no file at `path`, a path within it. Returns false if
    /// the answer cannot be determined.
    #[must_use]
    pub fn lacks(&self, path: &Path) -> bool {
        let Ok(within) = path.strip_prefix(&self.path) else { return false };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open(&self.path, flags, Mode::empty()) else { return false };
        let is_known = rustix::fs::fstat(&folder)
            .is_ok_and(|data| self.inode.get().is_none_or(|inode| *inode == data.st_ino));
        let found = rustix::fs::statat(&folder, within, AtFlags::empty());
        is_known && found.is_err_and(|error| error == rustix::io::Errno::NOENT)
    }

    /// Checks that a file that was not found at `path`, a path within the folder, is really lost.
    /// The file is lost if the folder is in place and not empty.
    ///
    /// # Errors
    /// If the state of the folder does not show whether the file is lost. The error names the
    /// folder.
    pub fn check_lost(&self, path: &Path) -> io::Result<()> {
        if self.lacks(path) && self.has_shards() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is missing, empty or not the folder that was there before, but the store refers to \
             files in it: is a volume not mounted?",
            self.path.display()
        )))
    }

    /// Accepts the folder in its current state, even if it is empty or missing. From then on, its
    /// former contents count as lost.
    ///
    /// # Errors
    /// If the folder cannot be created, or another folder is in its place.
    pub fn accept_loss(&self) -> io::Result<()> {
        self.ensure()?;
        if self.has_shards() { Ok(()) } else { make_shard(&self.path.join(FIRST_SHARD)) }
    }
}

/// The shard that marks an accepted loss. No other shard is ever empty.
const FIRST_SHARD: &str = "00";

/// Creates a shard of a root folder, accessible only to its owner, and syncs its directory entry.
///
/// # Errors
/// If the disk fails, or the root folder is missing.
pub fn make_shard(shard: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(shard) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    let Some(root) = shard.parent() else { return Ok(()) };
    fs::File::open(root)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_folder_unmounted_is_not_written_or_reported_missing() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("files");
        let away = above.path().join("away");
        let root = RootFolder::new(path.clone());
        assert!(!root.lacks(&path.join("ab/file")), "nothing is known of it");
        root.ensure().unwrap();
        make_shard(&path.join("ab")).unwrap();
        make_shard(&path.join("ab")).unwrap();
        fs::write(path.join("ab/file"), "x").unwrap();
        let missing = path.join("ab/other");
        assert!(root.lacks(&missing) && root.lacks(&path.join("cd/other")));
        root.check_lost(&missing).unwrap();
        assert!(!root.lacks(&path.join("ab/file")) && !root.lacks(above.path()));
        fs::rename(&path, &away).unwrap();
        assert!(root.ensure().is_err() && make_shard(&path.join("ef")).is_err());
        assert!(!root.lacks(&missing));
        let refused = root.check_lost(&missing).unwrap_err().to_string();
        assert!(refused.starts_with(path.to_str().unwrap()), "{refused}");
        // A mount point is not accepted, even if files have been written to it.
        fs::create_dir_all(path.join("ab")).unwrap();
        assert!(root.ensure().unwrap_err().to_string().contains("is a volume not mounted?"));
        assert!(!root.lacks(&missing) && root.check_lost(&missing).is_err());
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        root.ensure().unwrap();
        assert!(root.lacks(&missing));
        // If the mount point is found at the start of the process, it is taken for the folder.
        let mount_point = above.path().join("empty");
        fs::create_dir(&mount_point).unwrap();
        let missing = mount_point.join("ab/file");
        let root = RootFolder::new(mount_point);
        assert!(root.lacks(&missing) && root.check_lost(&missing).is_err());
        root.accept_loss().unwrap();
        root.check_lost(&missing).unwrap();
    }
}
