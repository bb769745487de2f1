//! The token of the control socket: created at each start, in a file that only the data folder's
//! owner can read. A program of a model has the same user but cannot read that file, so it cannot
//! use the socket either.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;

use crate::config::secret::Secret;
use crate::runtime::random_bytes;

/// Random bytes in a token.
const BYTES: usize = 32;

/// A new token.
///
/// # Errors
/// When the operating system gives no random bytes.
pub fn token() -> anyhow::Result<Secret> {
    let mut text = String::new();
    for byte in random_bytes::<BYTES>()? {
        write!(text, "{byte:02x}")?;
    }
    Ok(Secret::from(text))
}

/// Writes the token for the command line to read, in the place of an earlier one.
///
/// # Errors
/// When the file cannot be written.
pub fn keep(path: &Path, token: &Secret) -> anyhow::Result<()> {
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
