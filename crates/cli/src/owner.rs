//! The user who owns a service's data: the user's name and groups, and file checks with that user's
//! permissions. A root process can switch to that user, but does so only on a dedicated thread.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user other than root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    uid: u32,
    /// The name in `/etc/passwd`; the numeric id if there is no entry.
    pub(super) name: String,
    group: u32,
    groups: Vec<u32>,
}

impl Owner {
    /// Returns the owner of the folder, if this process runs as root and the owner is another user.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        let metadata = fs::metadata(folder).ok()?;
        if !geteuid().is_root() || metadata.uid() == 0 {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        Some(Self::read(metadata.uid(), metadata.gid(), &passwd, &group))
    }

    /// Returns the user with this id, and the groups of the user in the texts `passwd` and
    /// `groups`.
    fn read(uid: u32, group_of_folder: u32, passwd: &str, groups: &str) -> Self {
        let user = user(uid, passwd);
        let name = user.map_or_else(|| uid.to_string(), |(name, _)| name.to_owned());
        let group = user.map_or(group_of_folder, |(_, group)| group);
        let further = groups.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let number = fields.nth(2)?.parse().ok()?;
            fields.next()?.split(',').any(|member| member == name).then_some(number)
        });
        Self { uid, group, groups: further.collect(), name }
    }

    /// Runs `work` with this user's permissions on a dedicated thread; the calling thread stays
    /// root.
    ///
    /// # Errors
    /// Returns an error if the system does not permit switching users, as in some containers.
    pub(super) fn looks<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let groups: Vec<Gid> =
                    self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
                let group = Gid::from_raw(self.group);
                let uid = Uid::from_raw(self.uid);
                set_thread_groups(&groups)
                    .and_then(|()| set_thread_res_gid(group, group, group))
                    .and_then(|()| set_thread_res_uid(uid, uid, uid))
                    .with_context(|| format!("files cannot be checked as user {}", self.name))?;
                Ok(work())
            });
            looking.join().map_err(|_panic| anyhow::anyhow!("the check panicked"))?
        })
    }
}

/// Returns the name of a user; the numeric id if the system has no name for the user.
pub(super) fn name(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    user(uid, &passwd).map_or_else(|| uid.to_string(), |(name, _)| name.to_owned())
}

/// Returns the numeric id of a group.
pub(super) fn group(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Finds the name and the primary group of a user in the text of `/etc/passwd`.
fn user(uid: u32, passwd: &str) -> Option<(&str, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (number == uid).then_some((name, group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\norrery:x:998:997::/var/lib/orrery:/bin/no\n";
    const GROUP: &str =
        "root:x:0:\nssl-cert:x:120:www-data,orrery\norrery:x:997:\nadm:x:4:orreryx\n";

    #[test]
    fn owner_of_data_has_groups_of_user() {
        let owner = Owner::read(998, 1, PASSWD, GROUP);
        let expect = Owner { uid: 998, name: "orrery".to_owned(), group: 997, groups: vec![120] };
        assert_eq!(owner, expect);
        let unknown = Owner::read(4242, 7, PASSWD, GROUP);
        assert_eq!((unknown.name.as_str(), unknown.group), ("4242", 7));
        assert!(unknown.groups.is_empty());
    }

    #[test]
    fn group_id_is_found_by_name() {
        assert_eq!(group("root"), Some(0));
        assert_eq!(group("no-such-group-here"), None);
    }

    #[test]
    fn owner_checks_files_with_own_permissions() {
        // Only root can switch to another user. Otherwise, the test has nothing more to check.
        let folder = tempfile::tempdir().unwrap();
        if !geteuid().is_root() {
            assert_eq!(Owner::of(folder.path()), None);
            return;
        }
        let secret = folder.path().join("secret");
        fs::write(&secret, "x").unwrap();
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&secret, closed).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let other = Owner::read(65_534, 65_534, PASSWD, GROUP);
        let error = other.looks(|| fs::read(&secret)).unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read(&secret).unwrap(), b"x", "the calling thread is still root");
    }
}
