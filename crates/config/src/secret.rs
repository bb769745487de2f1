//! Secrets of the configuration and the manifests, read from files or the environment and never
//! printed.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::reader::read_file;

/// Maximum size of a secret, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// Permission bits that expose a secret file: any access by others, and write access by the group.
/// Read access by the group is allowed, because the service's user reads a file owned by root
/// through the file's group.
const FORBIDDEN_MODE: u32 = 0o027;

/// The permission bit that grants write access to others.
const CHANGED_BY_OTHERS: u32 = 0o002;
/// The bit of a folder that prevents users from removing other users' files.
const STICKY: u32 = 0o1000;

/// A string that must not appear in logs or responses.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret itself, for the code that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The secret files that this process has read.
static PRIVATE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Records that models' programs may not open the file at `path`.
pub fn hide_from_programs(path: &Path) {
    PRIVATE.lock().unwrap_or_else(PoisonError::into_inner).insert(super::absolute(path));
}

/// Returns the files that models' programs may not open, of all services in this process.
#[must_use]
pub fn hidden_from_programs() -> Vec<PathBuf> {
    PRIVATE.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Reads the secret in the file at `path`, without trailing line ends.
///
/// # Errors
/// Returns a message, which does not contain the secret, if the file cannot be read, its
/// permissions are too open, or it does not contain exactly one line.
pub fn from_file(path: &Path) -> Result<Secret, String> {
    hide_from_programs(path);
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let mode = metadata.mode() & 0o777;
    if mode & FORBIDDEN_MODE != 0 {
        return Err(format!(
            "{shown} has mode {mode:04o}, so other users can read the secret in it: give it to the \
             service's user with chown, then run chmod 0600 on it"
        ));
    }
    let text = read_file(path, BYTES_MAX)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() || secret.chars().any(char::is_control) {
        return Err(format!("{shown} must contain exactly one line of text"));
    }
    Ok(Secret(secret.to_owned()))
}

/// Explains how users other than root and this process's user can change the file or folder at
/// `path`; `None` if they cannot change it.
#[must_use]
pub fn changeable_by_others(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let mode = metadata.mode() & 0o7777;
    let shown = path.display();
    if mode & CHANGED_BY_OTHERS != 0 {
        return Some(format!(
            "{shown} has mode {mode:04o}, so every user of this machine can change it: run chmod o-w on it"
        ));
    }
    let user = rustix::process::geteuid().as_raw();
    let owner = metadata.uid();
    (owner != 0 && owner != user).then(|| {
        format!(
            "{shown} belongs to the user {owner}, who is neither root nor the user of this process ({user}): \
             run chown root on it"
        )
    })
}

/// Explains how users other than root and this process's user can change or replace the file at
/// `path` or, if it is a link, its target; `None` if they cannot change or replace it.
#[must_use]
pub fn replaceable_by_others(path: &Path) -> Option<String> {
    // In a folder with the sticky bit, users can remove only their own files.
    let is_sticky = |folder: &Path| {
        std::fs::metadata(folder).is_ok_and(|metadata| metadata.mode() & STICKY != 0)
    };
    let target = path.canonicalize().unwrap_or_else(|_broken| path.to_path_buf());
    let folders = [path, &*target].into_iter().filter_map(Path::parent);
    let folders = folders.filter(|folder| !is_sticky(folder));
    std::iter::once(path).chain(folders).find_map(changeable_by_others)
}

/// Replaces each `${file:PATH}`, `${env:NAME}` and `${credential:NAME}` in `text`. Relative paths
/// are resolved against `folder`.
///
/// # Errors
/// Returns a message about the malformed or unresolvable reference. The message does not contain
/// any secret.
pub fn expand(text: &str, folder: &Path) -> Result<Secret, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, reference)) = rest.split_once("${") {
        let (reference, after) =
            reference.split_once('}').ok_or("a `${` has no `}` after it".to_owned())?;
        result.push_str(before);
        match reference.split_once(':') {
            Some(("file", path)) => result.push_str(from_file(&folder.join(path))?.expose()),
            Some(("env", name)) => {
                let value = std::env::var(name).ok().filter(|value| !value.is_empty());
                result.push_str(&value.ok_or(format!("environment variable {name} is not set"))?);
            }
            Some(("credential", name)) => result.push_str(credential(name)?.expose()),
            Some(_) | None => {
                return Err("a reference is `${file:PATH}`, `${env:NAME}` or `${credential:NAME}`"
                    .to_owned());
            }
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(Secret(result))
}

/// Reads a credential passed by systemd (`LoadCredential=`).
fn credential(name: &str) -> Result<Secret, String> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
    let folder = folder.ok_or_else(|| {
        format!("systemd passes no credentials: write LoadCredential={name}:FILE into the unit")
    })?;
    if name.is_empty() || name.contains('/') {
        return Err(format!("{name:?} is not the name of a credential"));
    }
    from_file(&Path::new(&folder).join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secret_references_are_expanded_and_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let secret = expand("Bearer ${file:token}!", folder.path()).unwrap();
        assert_eq!(secret.expose(), "Bearer s3cret!");
        assert!(!format!("{secret:?}").contains("s3cret"));
        assert_eq!(expand("plain $ text", folder.path()).unwrap().expose(), "plain $ text");
        for bad in [
            "${file:/no/such/file}",
            "${env:ORRERY_TEST_UNSET}",
            "${credential:key}",
            "${x:y}",
            "${open",
        ] {
            assert!(expand(bad, folder.path()).is_err(), "{bad}");
        }
    }
}
