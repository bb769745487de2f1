//! Control groups for models' programs, available if systemd delegates the service's group to the
//! service (`Delegate=`). A group limits the memory and processes of a guard and all of its
//! descendants. A single write kills all of these processes, including those that escaped from the
//! guard.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Name prefix of the groups that this module creates.
const PREFIX: &str = "orrery-";
/// The child group for the service's own process, because a group with child groups may not contain
/// processes.
const SERVICE: &str = "orrery-service";
/// Maximum number of processes and threads of one guard and all of its descendants.
const PIDS_MAX: u64 = 4096;

/// The service's own group, in which it creates child groups.
#[derive(Debug)]
pub struct Groups {
    folder: PathBuf,
    /// Whether the groups can limit memory and processes. Without limits, they can only kill
    /// processes together.
    has_limits: bool,
    made: AtomicU64,
}

impl Groups {
    /// Takes control of this process's group, and moves this process into a child group.
    ///
    /// # Errors
    /// Returns the reason why control of the group is not possible.
    pub fn take() -> Result<Self, String> {
        let folder = own_folder().ok_or("cgroup version 2 is not mounted")?;
        let shown = folder.display();
        let listed = fs::read_to_string(folder.join("cgroup.procs"));
        let listed = listed.map_err(|error| format!("{shown} cannot be read: {error}"))?;
        if listed.trim() != std::process::id().to_string() {
            return Err(format!("{shown} also contains other processes"));
        }
        remove_left(&folder);
        let service = folder.join(SERVICE);
        fs::create_dir(&service)
            .and_then(|()| write(&service, "cgroup.procs", &std::process::id().to_string()))
            .map_err(|error| format!("{shown} is not delegated to the service: {error}"))?;
        let has_limits = write(&folder, "cgroup.subtree_control", "+memory +pids").is_ok();
        Ok(Self { folder, has_limits, made: AtomicU64::new(0) })
    }

    /// Returns whether the groups limit memory and processes, or only kill processes together.
    #[must_use]
    pub const fn has_limits(&self) -> bool {
        self.has_limits
    }

    /// Creates a group for one guard and all of its descendants.
    ///
    /// # Errors
    /// If the kernel refuses the group.
    pub fn make(&self, memory_bytes: Option<u64>) -> io::Result<Group> {
        let group = self.make_folder("worker")?;
        if self.has_limits {
            write(&group.folder, "pids.max", &PIDS_MAX.to_string())?;
            if let Some(bytes) = memory_bytes {
                write(&group.folder, "memory.max", &bytes.to_string())?;
                write(&group.folder, "memory.oom.group", "1")?;
            }
        }
        Ok(group)
    }

    /// Creates a group for processes that share limits. If together they exceed the memory limit,
    /// the kernel kills one of them.
    ///
    /// # Errors
    /// If the kernel refuses the group.
    pub fn make_shared(&self, name: &str, memory_bytes: u64, pids: u64) -> io::Result<Group> {
        let group = self.make_folder(name)?;
        if self.has_limits {
            write(&group.folder, "pids.max", &pids.to_string())?;
            write(&group.folder, "memory.max", &memory_bytes.to_string())?;
        }
        Ok(group)
    }

    fn make_folder(&self, name: &str) -> io::Result<Group> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{PREFIX}{name}-{number}"));
        fs::create_dir(&folder)?;
        Ok(Group { folder })
    }
}

/// The group of one guard. Dropping this value removes the group if the group is empty.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
}

impl Group {
    /// Returns the path of the group's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Kills all processes in the group (Linux 5.14).
    pub fn kill(&self) {
        if let Err(error) = write(&self.folder, "cgroup.kill", "1") {
            tracing::debug!(%error, group = %self.folder.display(), "cannot kill control group");
        }
    }

    /// Removes the group. Returns whether the group was removed.
    #[must_use]
    pub fn remove(&self) -> bool {
        match fs::remove_dir(&self.folder) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _is_empty = self.remove();
    }
}

/// Moves this process into the group.
///
/// # Errors
/// If the kernel refuses the move.
pub fn enter(folder: &Path) -> io::Result<()> {
    write(folder, "cgroup.procs", "0")
}

fn write(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    // Do not create the file: a folder without this file is not a control group.
    let mut file = fs::OpenOptions::new().write(true).open(folder.join(file))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

/// Kills and removes the groups left by a service that was killed.
fn remove_left(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let left = Group { folder: entry.path() };
            left.kill();
        }
    }
}

/// Returns the folder of this process's group; `None` without cgroup version 2.
#[must_use]
pub fn own_folder() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(mount_of_groups(&mounts)?.join(own))
}

/// Finds the mount point of cgroup version 2 in the contents of `mountinfo`.
fn mount_of_groups(mounts: &str) -> Option<PathBuf> {
    // Format: 36 35 98:0 /root /where options - type source options
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let is_groups = after.split(' ').next() == Some("cgroup2");
        let place = before.split(' ').nth(4)?;
        is_groups.then(|| PathBuf::from(place))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_mount_is_found_among_others() {
        let mounts = "\
            22 1 0:21 / /proc rw,nosuid - proc proc rw\n\
            30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            31 22 0:27 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of_groups(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount_of_groups(""), None);
    }
}
