//! Checks that the data folder's owner owns all files in it, and that its secrets are private.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::private::SECRETS;
use orrery_api::Finding;

/// Maximum number of entries to check per folder.
const ENTRIES_MAX: usize = 10_000;
/// Folders to check, besides the data folder itself.
const FOLDERS: [&str; 4] = ["tls", "acme", "payloads", "files"];

pub(super) fn findings(data: &Path) -> Option<Finding> {
    let owner = fs::metadata(data).ok()?.uid();
    let shown = data.display();
    if let Some(open) = SECRETS.iter().map(|name| data.join(name)).find(|path| is_open(path)) {
        let open = open.display();
        return Some(
            Finding::fault("secrets", format!("other users can read {open}"))
                .mended_by(format!("chmod 600 {open}")),
        );
    }
    if let Some(foreign) = foreign(data, owner) {
        let foreign = foreign.display();
        let detail = format!(
            "{foreign} belongs to another user than {shown}: the service may not be able to use it"
        );
        return Some(
            Finding::fault("secrets", detail)
                .mended_by(format!("chown -R --reference={shown} {shown}")),
        );
    }
    Some(Finding::good("secrets", "other users cannot access the data folder"))
}

/// Builds a finding about a secret in a file that other users can read.
pub(super) fn exposed(warning: &str) -> Finding {
    Finding::warning("secrets", warning)
        .about(warning)
        .mended_by("\"${file:PATH}\" in its place, or chmod o-rwx")
}

fn is_open(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.mode() & 0o077 != 0)
}

/// Returns a file in the data folder that another user owns, if any.
fn foreign(data: &Path, owner: u32) -> Option<PathBuf> {
    let folders =
        std::iter::once(data.to_owned()).chain(FOLDERS.iter().map(|name| data.join(name)));
    let entries = folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.take(ENTRIES_MAX));
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() != owner))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn doctor_finds_open_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("seal.key");
        fs::write(&key, "secret").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        let found = findings(folder.path()).unwrap();
        assert_eq!(found.mend, Some(format!("chmod 600 {}", key.display())));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!findings(folder.path()).unwrap().concern);
        assert!(foreign(folder.path(), u32::MAX).is_some());
    }
}
