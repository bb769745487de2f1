//! Exports a consistent snapshot of every row while the service runs, and imports rows.
//!
//! The store is read from beginning to end, while the writer passes on a copy of each batch that it
//! writes in the meantime. The rows that were read, followed by these batches in order, yield the
//! state at the end of the read: a row that no batch changes was read in its final state, and for
//! any other row, the last batch that changes it contains its final state. Payload files that exist
//! at the beginning are kept until the export ends.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::claims::Claims;
use super::deferred_deletions::DeferredDeletions;
use super::key::Key;
use super::memtable::Rows;
use super::payloads::path_of;
use super::scan::{Page, read_rows};
use super::store::Store;
use super::tree;
use super::writer::{ChangeStream, Message};
use orrery_domain::ids::PayloadId;
use orrery_domain::time::Timestamp;
use orrery_runtime::Clock;

/// Maximum batches that may wait to be written to the spool. A batch is one of the writer's groups
/// of about a mebibyte. Beyond that, the export fails.
const BATCHES_MAX: usize = 128;
/// The maximum length of a key, and of a value, in an import.
const KEY_MAX: u32 = 64 * 1024;
const VALUE_MAX: u32 = 256 * 1024 * 1024;
/// The value length that marks a deleted row.
const TOMBSTONE: u32 = u32::MAX;

/// A row's key and value; the value is `None` if the row is deleted.
pub type Change = (Key, Option<Vec<u8>>);

/// The result of an export.
#[derive(Debug)]
pub struct Exported {
    /// The payload files that the rows claim.
    pub claims: Claims,
    /// The number of the last log record that the rows include.
    pub record: u64,
    /// The machine's time after the export. No included commit is later.
    pub at: Timestamp,
}

/// A guard that prevents the deletion of payload files while it exists.
#[derive(Debug)]
pub struct PayloadPin {
    store: Store,
}

impl Drop for PayloadPin {
    fn drop(&mut self) {
        self.store.deferred().unpin();
        self.store.delete_unpinned();
    }
}

impl Store {
    pub(super) fn deferred(&self) -> MutexGuard<'_, DeferredDeletions<PayloadId>> {
        self.shared.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps every existing payload file until the guard is dropped.
    #[must_use]
    pub fn pin_payloads(&self) -> PayloadPin {
        self.deferred().pin();
        PayloadPin { store: self.clone() }
    }

    /// Deletes the payload files whose deferred deletion is due.
    pub(super) fn delete_unpinned(&self) {
        let due = self.deferred().due(self);
        for id in due {
            // Files are deleted one at a time, under the lock, so that a file that is written again
            // in the meantime is not deleted.
            let mut deferred = self.deferred();
            if deferred.take(id, self) {
                // The sweep at the next start deletes any remaining files.
                let _swept_later = std::fs::remove_file(self.payload_path(id));
            }
        }
    }

    /// The path of a payload's file.
    #[must_use]
    pub fn payload_path(&self, id: PayloadId) -> PathBuf {
        path_of(&self.shared.folder, id)
    }

    /// Passes every row to `take`: first the rows read from the tree, then the rows written in the
    /// meantime. Returns the payload files that the rows claim, and the last log record that the
    /// rows include. Blocks; call it on its own thread while holding a [`PayloadPin`].
    ///
    /// # Errors
    /// If `take` fails, if the disk cannot be read, or if the disk is so slow that writes arrive
    /// faster than they can be spooled.
    pub fn export(&self, take: &mut dyn FnMut(Change) -> io::Result<()>) -> io::Result<Exported> {
        let _alone = self.shared.exporting.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, batches) = sync_channel(BATCHES_MAX);
        let spool = tempfile::tempfile_in(&self.shared.folder)?;
        let noting = std::thread::Builder::new()
            .name("export-notes".to_owned())
            .spawn(move || note(&batches, spool))?;
        self.set_change_stream(Some(changes))?;
        let mut claims = Claims::new(&self.shared.folder)?;
        let mut give = |change: Change| {
            claims.note(&change)?;
            take(change)
        };
        let read = self.read_through(&mut give);
        // Remove the stream even after a failure, since the export does not need later writes.
        let ended = self.set_change_stream(None);
        let at = Clock::system().now();
        let noted =
            noting.join().map_err(|_panic| io::Error::other("the spool thread panicked"))?;
        read?;
        let ((stream_is_complete, record), spool) = (ended?, noted?);
        if !stream_is_complete {
            return Err(io::Error::other(
                "writes arrived faster than the export could save them; try again at lower load",
            ));
        }
        let mut spool = BufReader::new(spool);
        while let Some(change) = read_change(&mut spool)? {
            give(change)?;
        }
        Ok(Exported { claims, record, at })
    }

    fn read_through(&self, give: &mut dyn FnMut(Change) -> io::Result<()>) -> io::Result<()> {
        let mut page = Page::from(Key::from_bytes(&[]));
        loop {
            let (rows, is_last) = read_rows(&self.shared.view.moment(), &page, usize::MAX)
                .map_err(io::Error::other)?;
            page.after = rows.last().map(|(key, _)| key.clone());
            for (key, value) in rows.into_iter().filter(|(key, _)| !tree::is_own(key)) {
                give((key, Some(value)))?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Sets or removes the writer's change stream, after everything before it has been written.
    /// Returns whether there was a stream before, and the number of the last record.
    fn set_change_stream(&self, change_stream: Option<ChangeStream>) -> io::Result<(bool, u64)> {
        let (done, replaced) = oneshot::channel();
        let closed = || io::Error::other("the store is closed");
        let message = Message::SetChangeStream { change_stream, done };
        self.shared.writer_tx.blocking_send(message).map_err(|_closed| closed())?;
        replaced.blocking_recv().map_err(|_closed| closed())
    }
}

/// Writes batches to the spool as they arrive.
fn note(batches: &Receiver<Rows>, spool: File) -> io::Result<File> {
    let mut out = BufWriter::new(spool);
    for batch in batches {
        for change in batch {
            write_change(&mut out, &change)?;
        }
    }
    let mut spool = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    spool.rewind()?;
    Ok(spool)
}

/// Whether a row describes the tree that contains the row, and so must not be copied into another
/// tree.
#[must_use]
pub fn is_own(key: &Key) -> bool {
    tree::is_own(key)
}

/// Writes a change: the lengths of the key and the value, then the key and the value.
///
/// # Errors
/// If `out` fails.
pub fn write_change(out: &mut dyn Write, (key, value): &Change) -> io::Result<()> {
    let key = key.as_bytes();
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
    out.write_all(&length(key)?.to_be_bytes())?;
    let value_length = value.as_deref().map_or(Ok(TOMBSTONE), length)?;
    out.write_all(&value_length.to_be_bytes())?;
    out.write_all(key)?;
    out.write_all(value.as_deref().unwrap_or_default())
}

/// Reads the next change; `None` at the end.
///
/// # Errors
/// If `from` fails, ends in the middle of a change, or contains invalid data.
pub fn read_change(from: &mut dyn Read) -> io::Result<Option<Change>> {
    let mut lengths = [0; 8];
    let first = loop {
        match from.read(&mut lengths) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            count => break count?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    from.read_exact(lengths.get_mut(first..).unwrap_or_default())?;
    let [key, value] = [0, 4].map(|at| {
        lengths.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    });
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "a row has an impossible length");
    let key = key.filter(|length| *length <= KEY_MAX).ok_or_else(odd)?;
    let value =
        value.filter(|length| *length <= VALUE_MAX || *length == TOMBSTONE).ok_or_else(odd)?;
    let key = Key::from_bytes(&read_bytes(from, key)?);
    let value = if value == TOMBSTONE { None } else { Some(read_bytes(from, value)?) };
    Ok(Some((key, value)))
}

fn read_bytes(from: &mut dyn Read, length: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(u64::from(length)).read_to_end(&mut bytes)?;
    if read as u64 == u64::from(length) {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::value::RawValue;

    use super::super::key::Table;
    use super::super::{Claim, Commit, Options};
    use super::*;
    use orrery_runtime::Tasks;

    fn open(folder: &tempfile::TempDir) -> Store {
        let folder = folder.path().to_path_buf();
        Store::open(&Options { folder, inline_bytes: 10 }).unwrap()
    }

    fn row(name: &str, number: u64) -> Key {
        Key::table(Table::Facet).text(name).number_largest_first(number)
    }

    /// Both rows of a pair are always written together, with the same value.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn export_is_a_consistent_snapshot_during_writes() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = Tasks::new();
        let writers = (0..4_u64).map(|writer| {
            let store = store.clone();
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                let mut turn = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let mut commit = Commit::new();
                    for side in ["a", "z"] {
                        let key = row(side, writer * 100 + turn % 50);
                        if turn.is_multiple_of(7) {
                            commit.delete(key);
                        } else {
                            commit.put_bytes(key, turn.to_be_bytes().to_vec());
                        }
                    }
                    commit.add(row("count", writer), 1);
                    store.commit(commit).await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        for _ in 0..5 {
            let exported = store.clone();
            let rows = tokio::task::spawn_blocking(move || {
                let mut rows = BTreeMap::new();
                let pin = exported.pin_payloads();
                exported
                    .export(&mut |(key, value)| {
                        match value {
                            Some(value) => rows.insert(key, value),
                            None => rows.remove(&key),
                        };
                        Ok(())
                    })
                    .unwrap();
                drop(pin);
                rows
            });
            let rows = rows.await.unwrap();
            let side = |name: &str| -> Vec<Vec<u8>> {
                let prefix = Key::table(Table::Facet).text(name);
                let of =
                    rows.iter().filter(|(key, _)| key.as_bytes().starts_with(prefix.as_bytes()));
                of.map(|(_, value)| value.clone()).collect()
            };
            assert_eq!(side("a"), side("z"));
        }
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn payload_files_stay_while_pinned() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        let text = RawValue::from_string(format!("\"{}\"", "x".repeat(100))).unwrap();
        let payload = store.write_payload(PayloadId::from([1; 16]), text).await.unwrap();
        let mut commit = Commit::new();
        store.claim(&mut commit, &payload);
        store.commit(commit).await.unwrap();
        let path = store.payload_path(payload.file().unwrap().id);
        let one = store.pin_payloads();
        let two = store.pin_payloads();
        let exported = store.clone();
        let claims = tokio::task::spawn_blocking(move || exported.export(&mut |_| Ok(())));
        let mut claimed = Vec::new();
        let mut take = |id, claim: Option<Claim>| {
            claimed.push((id, claim.map(|claim| claim.bytes)));
            Ok(())
        };
        claims.await.unwrap().unwrap().claims.each(&mut take).unwrap();
        assert_eq!(claimed, [(payload.file().unwrap().id, Some(102))]);
        let mut commit = Commit::new();
        store.release(&mut commit, &payload);
        store.commit(commit).await.unwrap();
        store.remove_payload(&payload).await.unwrap();
        drop(one);
        assert!(path.exists());
        drop(two);
        assert!(!path.exists());
    }

    #[test]
    fn export_changes_round_trip_and_refuse_truncated_input() {
        let changes =
            [(row("a", 1), Some(vec![1, 2])), (row("b", 2), None), (row("c", 3), Some(vec![]))];
        let mut text = Vec::new();
        for change in &changes {
            write_change(&mut text, change).unwrap();
        }
        let mut from = &text[..];
        for change in changes {
            assert_eq!(read_change(&mut from).unwrap(), Some(change));
        }
        assert_eq!(read_change(&mut from).unwrap(), None);
        for cut in 1..8 + 5 {
            assert!(read_change(&mut &text[..cut]).is_err(), "{cut}");
        }
        assert!(read_change(&mut &[0xff; 8][..]).is_err());
    }
}
