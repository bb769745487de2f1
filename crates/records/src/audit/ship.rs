//! The audit log as a file of JSON lines for log shippers: `audit.jsonl`, rotated by size to
//! `audit.jsonl.1` and so on. The authoritative log is in the store; the file is a copy, and a
//! missing file is rebuilt from the store. After a restore, the file continues with the entry about
//! the restore, and still contains the lines from before the restore.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Audit, Entry, RESTORE};
use orrery_runtime::regular_file;

const NAME: &str = "audit.jsonl";

/// The file's location and how it is rotated.
#[derive(Debug, Clone)]
pub struct Options {
    pub folder: PathBuf,
    /// The size above which the file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files to keep.
    pub keep: usize,
}

/// Copies the log to a file.
#[derive(Debug)]
pub struct Shipper {
    audit: Audit,
    options: Options,
    /// The number of the next entry to write; `None` if the file must be read to determine it.
    next: Option<u64>,
}

impl Shipper {
    #[must_use]
    pub const fn new(audit: Audit, options: Options) -> Self {
        Self { audit, options, next: None }
    }

    /// Appends all new entries. When this function returns, the entries are durable.
    ///
    /// # Errors
    /// When the store cannot be read or the file cannot be written. The next call continues with
    /// the first missing entry.
    pub async fn ship(&mut self) -> io::Result<()> {
        loop {
            let next = match self.next {
                Some(next) => next,
                None => self.read_next().await?,
            };
            let entries = self.audit.since(next).await.map_err(io::Error::other)?;
            if entries.is_empty() {
                self.next = Some(next);
                return Ok(());
            }
            // After a failed write, the file must be read again, because it may end with a partial
            // line.
            self.next = None;
            self.append(next, &entries)?;
            self.next = Some(next.saturating_add(entries.len() as u64));
        }
    }

    fn path(&self, number: usize) -> PathBuf {
        match number {
            0 => self.options.folder.join(NAME),
            number => self.options.folder.join(format!("{NAME}.{number}")),
        }
    }

    /// Returns the number of the next entry to write: the number after that of the last complete
    /// line, if that line matches the store's entry. If the line does not match, the store has been
    /// restored, and the file continues with the entry about the restore.
    async fn read_next(&self) -> io::Result<u64> {
        let Some((number, line)) = self.last_line()? else { return Ok(0) };
        let next = number.saturating_add(1);
        let held = self.audit.since(number).await.map_err(io::Error::other)?;
        let shown = held.first().map(|entry| serde_json::to_value(entry.show(Some(number))));
        let is_same =
            |shown: &Value| ["at", "action"].iter().all(|of| shown.get(of) == line.get(of));
        if shown.transpose()?.as_ref().is_some_and(is_same) {
            return Ok(next);
        }
        let restored = self.audit.newest(RESTORE).await.map_err(io::Error::other)?;
        let at = restored.filter(|restored| *restored <= number);
        tracing::warn!(line = number, at, "audit log file is from before a restore");
        Ok(at.unwrap_or(next))
    }

    /// Returns the last complete line and its number.
    fn last_line(&self) -> io::Result<Option<(u64, Value)>> {
        for number in 0..=self.options.keep {
            let file = match regular_file::open(&self.path(number)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(named(&self.path(number), &error)),
            };
            let mut last = None;
            for line in BufReader::new(file).split(b'\n') {
                let line: Option<Value> = serde_json::from_slice(&line?).ok();
                last = line.and_then(|line| Some((line.get("number")?.as_u64()?, line))).or(last);
            }
            if last.is_some() {
                return Ok(last);
            }
        }
        Ok(None)
    }

    fn append(&self, first: u64, entries: &[Entry]) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.options.folder)?;
        let path = self.path(0);
        if fs::metadata(&path).is_ok_and(|file| file.len() >= self.options.max_bytes) {
            self.rotate()?;
        }
        let mut text = Vec::new();
        if last_byte(&path).is_some_and(|last| last != b'\n') {
            text.push(b'\n');
        }
        for (number, entry) in (first..).zip(entries) {
            serde_json::to_writer(&mut text, &entry.show(Some(number)))?;
            text.push(b'\n');
        }
        let mut options = OpenOptions::new();
        let file = regular_file::open_with(&path, options.append(true).create(true).mode(0o600));
        let mut file = file.map_err(|error| named(&path, &error))?;
        file.write_all(&text)?;
        file.sync_all()
    }

    fn rotate(&self) -> io::Result<()> {
        for number in (0..self.options.keep).rev() {
            match fs::rename(self.path(number), self.path(number.saturating_add(1))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Returns the last byte of a file; `None` if it is missing or empty.
fn last_byte(path: &Path) -> Option<u8> {
    let mut file = regular_file::open(path).ok()?;
    file.seek(SeekFrom::End(-1)).ok()?;
    let mut last = [0];
    file.read_exact(&mut last).ok()?;
    let [last] = last;
    Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Actor;
    use orrery_runtime::Clock;
    use orrery_storage::{self as storage, Store};

    #[tokio::test]
    async fn audit_file_has_each_entry_once_across_restart_and_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let store = Store::open(&storage::Options { folder: data, inline_bytes: 65_536 }).unwrap();
        let audit = Audit::new(store, Clock::system());
        let options = Options { folder: folder.path().join("audit"), max_bytes: 300, keep: 9 };
        let write = async |subject: &str| {
            let entry = audit.entry(&Actor::operator("test"), "key.create", subject);
            audit.write(&entry).await.unwrap();
        };
        for number in 0..6 {
            write(&number.to_string()).await;
            // Use a new shipper each time, as after a restart of the service.
            Shipper::new(audit.clone(), options.clone()).ship().await.unwrap();
            if number == 3 {
                // Simulate a crash in the middle of writing a line.
                let path = options.folder.join(NAME);
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(b"{\"number\":99,").unwrap();
            }
        }
        let mut numbers = Vec::new();
        for number in (0..=options.keep).rev() {
            let path = Shipper::new(audit.clone(), options.clone()).path(number);
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            numbers.extend(lines.filter_map(|line| line["number"].as_u64()));
        }
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        assert!(options.folder.join("audit.jsonl.1").exists(), "it was rotated");
    }

    #[tokio::test]
    async fn audit_file_that_is_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let store = Store::open(&storage::Options { folder: data, inline_bytes: 65_536 }).unwrap();
        let audit = Audit::new(store, Clock::system());
        let entry = audit.entry(&Actor::operator("test"), "key.create", "a");
        audit.write(&entry).await.unwrap();
        for name in [NAME, "audit.jsonl.1"] {
            let options = Options { folder: folder.path().join(name), max_bytes: 300, keep: 1 };
            fs::create_dir(&options.folder).unwrap();
            let path = options.folder.join(name);
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
            // If a pipe has a reader, opening it for writing does not block, so only the file type
            // shows that this is a pipe.
            let _reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let error = Shipper::new(audit.clone(), options).ship().await.unwrap_err().to_string();
            let expect = format!("{}: it is not a regular file", path.display());
            assert!(error.starts_with(&expect), "{error}");
        }
    }

    #[tokio::test]
    async fn audit_file_continues_with_the_restore_after_a_longer_history() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let folder = folder.path().join(name);
            let store = Store::open(&storage::Options { folder, inline_bytes: 65_536 }).unwrap();
            Audit::new(store, Clock::system())
        };
        let options = Options { folder: folder.path().join("audit"), max_bytes: 100_000, keep: 1 };
        let write = async |audit: &Audit, action: &str, subjects: std::ops::Range<u32>| {
            for subject in subjects {
                let entry = audit.entry(&Actor::operator("test"), action, subject.to_string());
                audit.write(&entry).await.unwrap();
            }
        };
        let ship = async |audit: &Audit| {
            Shipper::new(audit.clone(), options.clone()).ship().await.unwrap();
            let text = fs::read_to_string(options.folder.join(NAME)).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines
                .map(|line| format!("{}{}", line["action"].as_str().unwrap(), line["number"]))
                .collect::<Vec<_>>()
        };
        let before = open("before");
        write(&before, "a", 0..5).await;
        assert_eq!(ship(&before).await.len(), 5);
        // The backup has the first two entries. The new history is shorter in one case and longer
        // in the other.
        for after in [0..0, 0..9] {
            let name = format!("after-{}", after.end);
            let restored = open(&name);
            // Give the entries different times.
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            write(&restored, "a", 0..2).await;
            write(&restored, RESTORE, 0..1).await;
            write(&restored, "b", after.clone()).await;
            let shipped = ship(&restored).await;
            let expected = usize::try_from(after.end).unwrap() + 1;
            let at = shipped.iter().rposition(|one| one == "restore2").unwrap();
            assert_eq!(shipped.len() - at, expected, "{shipped:?}");
            assert_eq!(ship(&restored).await, shipped, "it is its own now");
        }
    }
}
