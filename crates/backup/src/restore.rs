//! Restores a backup into a folder, and rewrites a store to reclaim disk space. Both operations
//! build the new store in a temporary folder, and move the store to its final location when it is
//! complete.

use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::read::{self, Entry};
use super::replay::{Plan, Reached, Replay};
use super::{Error, Keys, SEAL, SEAL_NEXT, Summary, encryption};
use orrery_domain::file::Digest;
use orrery_domain::time::Timestamp;
use orrery_records::audit::{self, Actor};
use orrery_storage::export::{Change, is_own, read_change};
use orrery_storage::{self as storage, Commit, Key, Options, Store, Table, held_back};

/// The temporary folder of a restore, inside its target.
const PART: &str = "restore.part";
/// The temporary folder for a store that is being rewritten.
const COMPACT: &str = "compact.part";
/// Size of the rows in each commit, in bytes.
const COMMIT_BYTES: usize = 512 * 1024;
/// The entries of a data folder that a restore creates.
pub(super) const PLACES: [&str; 6] = ["payloads", "files", "tls", SEAL, SEAL_NEXT, "store"];
pub(super) const STORE: &str = "store";

/// Restores only `file` into `folder`, without the log archive; see [`restore_until`].
///
/// # Errors
/// As [`restore_until`].
pub fn restore(
    file: File,
    keys: &Keys,
    folder: &Path,
    inline_bytes: usize,
    now: Timestamp,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, Error> {
    let alone = Replay::default();
    let restored = restore_until(file, keys, folder, inline_bytes, now, &alone, progress)?;
    Ok(restored.0)
}

/// Restores `file`, decrypted with `keys` if necessary, into `folder`, which must not contain a
/// store, and replays the log archive according to `replay`. The backup is read twice: nothing is
/// written before the entire backup has been checked. `now` is the time of the restore: from then
/// on, unfinished executions and webhooks are held back until the operator resumes them. Blocks;
/// within a runtime, call it on its own thread.
///
/// # Errors
/// [`Error::Refused`] if the target is not empty; [`Error::Damaged`]; [`Error::Disk`],
/// [`Error::Storage`]. On error, the folder is unchanged.
pub fn restore_until(
    mut file: File,
    keys: &Keys,
    folder: &Path,
    inline_bytes: usize,
    now: Timestamp,
    replay: &Replay,
    progress: &mut dyn FnMut(u64),
) -> Result<(Summary, Option<Reached>), Error> {
    if let Some(place) = PLACES.iter().find(|place| folder.join(place).exists()) {
        let message = format!(
            "{} already contains {place}: restore into another folder (--into), or move it away",
            folder.display()
        );
        return Err(Error::Refused(message));
    }
    let summary = read::verify(encryption::open(BufReader::new(&mut file), keys)?, progress)?;
    let plan = replay.plan(&summary, keys, progress)?;
    file.rewind()?;
    let plain = encryption::open(BufReader::new(file), keys)?;
    make(folder)?;
    // A folder that existed before the restore may have been accessible to other users.
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    let part = folder.join(PART);
    remove_folder(&part)?;
    make(&part)?;
    let restored = fill(plain, &part, inline_bytes, now, &plan, keys, progress);
    let restored = restored.and_then(|restored| {
        // The store is moved last, because a folder without a store does not count as a data
        // folder.
        for place in PLACES {
            if part.join(place).exists() {
                fs::rename(part.join(place), folder.join(place))?;
            }
        }
        sync(folder)?;
        Ok(restored)
    });
    remove_folder(&part)?;
    restored
}

fn fill(
    from: impl Read,
    part: &Path,
    inline_bytes: usize,
    now: Timestamp,
    plan: &Plan,
    keys: &Keys,
    progress: &mut dyn FnMut(u64),
) -> Result<(Summary, Option<Reached>), Error> {
    let store = Store::open(&Options { folder: part.to_path_buf(), inline_bytes })?;
    let mut rows = Importing::into(&store, held_back::hold_back);
    let mut shards = Vec::new();
    let filled = read::read(from, &mut |entry, content| {
        match entry {
            Entry::Rows | Entry::Changes => {
                let mut content = BufReader::new(content);
                while let Some(change) = read_change(&mut content)? {
                    rows.add(change)?;
                }
            }
            Entry::Payload(id) => write_file(&store.payload_path(*id), content, &mut shards)?,
            Entry::Content(digest) => {
                write_file(&content_path(part, *digest), content, &mut shards)?;
            }
            Entry::Records => return Err(read::not_alone()),
            Entry::Seal => write_file(&part.join(SEAL), content, &mut shards)?,
            Entry::NextSeal => write_file(&part.join(SEAL_NEXT), content, &mut shards)?,
            Entry::Tls(name) => {
                write_file(&part.join("tls").join(name), content, &mut shards)?;
            }
        }
        progress(rows.total);
        Ok(())
    });
    let written = filled.and_then(|summary| {
        rows.flush()?;
        let reached = plan.apply(part, keys, &mut rows, &mut shards)?;
        note(&store, &summary, now)?;
        for shard in &shards {
            sync(shard)?;
        }
        Ok((summary, reached))
    });
    close(store)?;
    written
}

/// Rewrites the store in `folder` row by row, and replaces the old store atomically if the new one
/// is smaller. No other process may use the folder. Blocks; within a runtime, call it on its own
/// thread. Returns the store's size before and after, in bytes.
///
/// Keys are written first, without values, so that the tree's leaves are split while they are
/// small. Then each value is written once. Otherwise, every growing leaf would be rewritten several
/// times, and up to half of the new store could be garbage.
///
/// # Errors
/// [`Error::Storage`] if a service uses the store; [`Error::Disk`]. On error, the store is
/// unchanged.
pub fn compact(
    folder: &Path,
    inline_bytes: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u64), Error> {
    if !folder.join(STORE).is_dir() {
        return Err(Error::Refused(format!("there is no store in {}", folder.display())));
    }
    let part = folder.join(COMPACT);
    let old = Store::open(&Options { folder: folder.to_path_buf(), inline_bytes })?;
    remove_folder(&part)?;
    make(&part)?;
    let copied = copy_rows(&old, &part, inline_bytes, progress);
    // This clone of the handle keeps the folder locked.
    let lock = old.clone();
    close(old)?;
    let swapped = copied.and_then(|()| {
        let before = size_of(&folder.join(STORE))?;
        let after = size_of(&part.join(STORE))?;
        if after >= before {
            return Ok((before, before));
        }
        storage::exchange(folder, &part)?;
        Ok((before, after))
    });
    drop(lock);
    remove_folder(&part)?;
    swapped
}

/// Copies the rows of `old` into a new store in `part`: first the keys, then the values.
fn copy_rows(
    old: &Store,
    part: &Path,
    inline_bytes: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut total = 0;
    for is_of_keys in [true, false] {
        let new = Store::open(&Options { folder: part.to_path_buf(), inline_bytes })?;
        let mut rows = Importing { total, ..Importing::into(&new, |key| key) };
        let exported = old.export(&mut |(key, value)| {
            match value {
                // The store's own metadata must have its final values from the start.
                Some(_) if is_of_keys && !is_meta(&key) => {
                    rows.add((key, Some(Vec::new())))?;
                }
                // A row without a value has already been written.
                Some(value) if value.is_empty() => {}
                value => rows.add((key, value))?,
            }
            progress(rows.total);
            Ok(())
        });
        let copied = exported.and_then(|_exported| rows.flush());
        total = rows.total;
        // Closing a store moves all its data from the log into the tree.
        close(new)?;
        copied?;
    }
    Ok(())
}

fn is_meta(key: &Key) -> bool {
    key.as_bytes().first() == Some(&(Table::Meta as u8))
}

/// Imports rows into a store.
pub(super) struct Importing<'s> {
    pub store: &'s Store,
    pub commit: Commit,
    pub bytes: usize,
    /// Total size of all rows imported so far, in bytes.
    pub total: u64,
    /// Maps a row's key to its key in this store.
    place: fn(Key) -> Key,
}

impl<'s> Importing<'s> {
    pub(super) fn into(store: &'s Store, place: fn(Key) -> Key) -> Self {
        Self { store, commit: Commit::new(), bytes: 0, total: 0, place }
    }

    pub(super) fn add(&mut self, (key, value): Change) -> io::Result<()> {
        if is_own(&key) {
            // Backups from earlier releases contain the metadata rows of their store's tree.
            return Ok(());
        }
        let key = (self.place)(key);
        let bytes = key.as_bytes().len() + value.as_ref().map_or(0, Vec::len);
        match value {
            Some(value) => self.commit.put_bytes(key, value),
            None => self.commit.delete(key),
        };
        self.bytes += bytes;
        self.total += bytes as u64;
        if self.bytes >= COMMIT_BYTES { self.flush() } else { Ok(()) }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let commit = std::mem::take(&mut self.commit);
        let runtime = tokio::runtime::Handle::current();
        runtime.block_on(self.store.commit(commit)).map_err(io::Error::other)
    }
}

/// Records the store's origin in its audit log, and marks the store as paused if any row is held
/// back.
fn note(store: &Store, summary: &Summary, now: Timestamp) -> io::Result<()> {
    let Summary { created_at, version, rows, changes, files, sha256, .. } = summary;
    let subject = format!(
        "a backup of {created_at} by release {version}: {} rows, {files} files, SHA-256 {sha256}",
        rows.saturating_add(*changes)
    );
    let operator = Actor::operator("command line");
    let entry = audit::Entry::done(&operator, now, audit::RESTORE, subject, None);
    let noting = async {
        let mut commit = Commit::new();
        if store.has_any(held_back::all()).await? {
            commit.put_bytes(held_back::paused(), now.sortable().to_vec());
        }
        audit::add(&mut commit, &entry)?;
        store.commit(commit).await
    };
    tokio::runtime::Handle::current().block_on(noting).map_err(io::Error::other)
}

pub(super) fn close(store: Store) -> io::Result<()> {
    tokio::runtime::Handle::current().block_on(store.close());
    Ok(())
}

/// Returns the path of file contents in a data folder.
pub(super) fn content_path(data: &Path, digest: Digest) -> PathBuf {
    let name = digest.to_string();
    data.join("files").join(name.get(..2).unwrap_or_default()).join(name)
}

pub(super) fn write_file(
    path: &Path,
    content: &mut dyn Read,
    shards: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let shard = path.parent().unwrap_or(path).to_path_buf();
    make(&shard)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    io::copy(content, &mut file)?;
    file.sync_all()?;
    if shards.last() != Some(&shard) && !shards.contains(&shard) {
        shards.push(shard);
    }
    Ok(())
}

pub(super) fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn size_of(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
