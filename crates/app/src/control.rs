//! The token of the control socket. Each start creates a new token, in a file that only the owner
//! of the data folder can read. A model's program runs as the same user but in a sandbox, where the
//! program cannot read that file and therefore cannot use the socket.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;

use orrery_config::secret::Secret;
use orrery_domain::hex::hex;
use orrery_runtime::random_bytes;

/// Number of random bytes in a token.
const BYTES: usize = 32;

/// Generates a token.
///
/// # Errors
/// Returns an error if the operating system provides no random bytes.
pub(crate) fn token() -> anyhow::Result<Secret> {
    Ok(Secret::from(hex(&random_bytes::<BYTES>()?)))
}

/// Writes the token to a file for the command line, replacing an earlier token.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn keep(path: &Path, token: &Secret) -> anyhow::Result<()> {
    let half = path.with_added_extension("half");
    let write = || -> io::Result<()> {
        match fs::remove_file(&half) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&half)?;
        file.write_all(token.expose().as_bytes())?;
        fs::rename(&half, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
