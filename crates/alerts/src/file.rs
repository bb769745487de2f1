//! The ledger's file in the data folder, replaced atomically.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::ledger::Ledger;

/// The file's name in the data folder.
pub(super) const NAME: &str = "alerts.json";
/// Maximum size of the file, far above the size of a full ledger.
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Reads the ledger. A missing or damaged file counts as an empty ledger: open alerts are then
/// raised again.
pub(super) fn read(path: &Path) -> Ledger {
    let text = match fs::File::open(path) {
        Ok(file) => {
            let mut text = Vec::new();
            file.take(BYTES_MAX).read_to_end(&mut text).map(|_bytes| text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ledger::default(),
        Err(error) => Err(error),
    };
    let ledger = text.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
    ledger.unwrap_or_else(|error| {
        let path = path.display();
        tracing::warn!(%path, %error, "failed to read the open alerts; they are raised again");
        Ledger::default()
    })
}

/// Replaces the file.
///
/// # Errors
/// Returns an error if the file cannot be written. The previous file is then unchanged.
pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let half = path.with_added_extension("half");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&half)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&half, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_file_is_an_empty_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert_eq!(read(&path), Ledger::default());
        write(&path, b"{\"alerts\":[").unwrap();
        assert_eq!(read(&path), Ledger::default());
        write(&path, &serde_json::to_vec(&Ledger::default()).unwrap()).unwrap();
        assert_eq!(read(&path), Ledger::default());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
