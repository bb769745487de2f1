//! Log archiving: reads the commits after a given record, in order, and tracks how far a chain of
//! backups has archived the log. The commits can be read from an open store, and from a store that
//! no longer opens.

use std::io;
use std::path::Path;

use uuid::Uuid;

use super::data_dir;
use super::error::Error;
use super::key::{Key, Table};
use super::log::follow::ArchiveState;
use super::log::form::Record;
use super::log::{self, replay};
use super::memtable::Rows;
use super::opening::STORE;
use super::payloads::{Claim, PAYLOADS, path_of};
use super::store::Store;
use super::trash;
use orrery_domain::ids::PayloadId;
use orrery_domain::time::Timestamp;

pub use super::log::follow::ArchivePosition;

/// A group of commits: one record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub number: u64,
    /// When the group was written, by the machine's clock.
    pub time: Timestamp,
    /// The rows; `None` deletes a row. A seal has no rows; it only proves that the previous record
    /// is complete.
    pub rows: Rows,
}

impl Group {
    fn of(record: &Record<'_>) -> io::Result<Self> {
        let rows = record.rows().ok_or_else(|| {
            let reason = format!("the rows of record {} of the log cannot be read", record.number);
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })?;
        Ok(Self { number: record.number, time: record.time, rows })
    }
}

/// Returns the payload file that a row claims.
#[must_use]
pub fn claimed_by(key: &Key) -> Option<PayloadId> {
    let is_claim = key.as_bytes().first() == Some(&(Table::PayloadFile as u8));
    if is_claim { key.last_id() } else { None }
}

impl Store {
    /// The store's unique id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        Uuid::from_bytes(self.shared.id)
    }

    /// The number of the last log record that is durable and visible.
    #[must_use]
    pub fn last_record(&self) -> u64 {
        self.shared.view.memtable.published()
    }

    /// The archive position; `None` without a chain.
    #[must_use]
    pub fn archive_position(&self) -> Option<ArchivePosition> {
        self.shared.segments.archive_position()
    }

    /// The last log record that no chain of backups needs anymore.
    #[must_use]
    pub(super) fn archived_through(&self) -> u64 {
        self.archive_position().map_or(u64::MAX, |kept| kept.through)
    }

    /// Whether everything is archived, or archiving is off.
    #[must_use]
    pub fn is_archived(&self) -> bool {
        self.archived_through() >= self.last_record()
    }

    /// Starts a chain of backups. From now on, the log and the files to which it refers are
    /// retained until [`Store::mark_archived`] confirms that the chain contains them.
    ///
    /// # Errors
    /// If the disk fails. In that case, no chain is started.
    pub fn start_archiving(&self) -> io::Result<ArchivePosition> {
        self.shared.segments.start_archiving(|| self.last_record())
    }

    /// Records that the chain durably contains the log up to `through`, and carries out the
    /// deletions that waited for the chain to contain these records.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn mark_archived(&self, chain: Uuid, through: u64) -> io::Result<()> {
        self.shared.segments.mark_archived(chain, through)?;
        #[cfg(any(test, feature = "test-support"))]
        self.shared.faults.hit(super::faults::Point::ArchiveFree);
        self.delete_unpinned();
        Ok(())
    }

    /// Ends the chain. If the chain is abandoned, `reason` explains why; see
    /// [`Store::take_archive_failure`].
    pub fn stop_archiving(&self, reason: Option<String>) {
        self.shared.segments.give_up_archiving(reason);
        self.delete_unpinned();
    }

    /// Ends the chain durably, so that no later start continues it. Does nothing without a chain.
    ///
    /// # Errors
    /// If the disk fails. A later start may then continue the chain.
    pub fn end_chain(&self) -> io::Result<()> {
        self.shared.segments.stop_archiving(None)?;
        self.delete_unpinned();
        Ok(())
    }

    /// Takes the reason why the last chain was abandoned. Returns it only once.
    #[must_use]
    pub fn take_archive_failure(&self) -> Option<String> {
        self.shared.segments.take_archive_failure()
    }

    /// Sets the maximum bytes of log that may wait for the chain. Beyond that, the chain is
    /// abandoned.
    pub fn set_archive_budget(&self, bytes: u64) {
        self.shared.segments.set_archive_budget(bytes);
    }

    /// Bytes of log that wait for the chain, in whole segments.
    #[must_use]
    pub fn unarchived_bytes(&self) -> u64 {
        self.archive_position().map_or(0, |kept| self.shared.segments.bytes_behind(kept.through))
    }

    /// Passes every group after the record `after` to `take`, up to the record `until`, which must
    /// exist. Stops early after `most` bytes. Returns the last record passed. Blocks; call it on
    /// its own thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the log no longer contains the records; any error of
    /// `take`.
    pub fn read_log(
        &self,
        after: u64,
        until: u64,
        most: u64,
        take: &mut dyn FnMut(Group) -> io::Result<()>,
    ) -> io::Result<u64> {
        self.shared.segments.follow(after, until, most, &mut |record| take(Group::of(record)?))
    }
}

/// The log of a store that no process has open.
#[derive(Debug)]
pub struct LiveLog {
    pub store: Uuid,
    /// The chain that archived the log.
    pub chain: Option<Uuid>,
    /// The numbers of the first and last record passed to `take`.
    pub first: u64,
    pub last: u64,
    /// Why the log cannot be read after `last`; `None` if `last` is the end of the log.
    pub fault: Option<String>,
}

/// Passes every complete group after the record `after` in the log of the data folder `data` to
/// `take`, even if the store does not open. Does not change the log. Returns `None` if there is no
/// log.
///
/// # Errors
/// [`Error::Locked`] if a process uses the data folder; [`Error::Folder`] if the disk cannot be
/// read.
pub fn read_live_log(
    data: &Path,
    after: u64,
    take: &mut dyn FnMut(Group),
) -> Result<Option<LiveLog>, Error> {
    let _lock = data_dir::lock(data)?;
    let folder = data.join(STORE).join(log::FOLDER);
    let mut malformed = None;
    let mut given = None;
    let found = replay::read(&folder, after, false, &mut |record| {
        if record.number <= after || malformed.is_some() {
            return;
        }
        match Group::of(record) {
            Ok(group) => {
                let first = given.map_or(group.number, |(first, _)| first);
                given = Some((first, group.number));
                take(group);
            }
            Err(error) => malformed = Some(error.to_string()),
        }
    });
    let found = found.map_err(|error| Error::folder(&folder, &error))?;
    let Some(store) = found.store else { return Ok(None) };
    let (first, last) = given.unwrap_or((found.first, found.last));
    Ok(Some(LiveLog {
        store: Uuid::from_bytes(store),
        chain: ArchiveState::of(&folder).position.map(|archived| archived.chain),
        first,
        last,
        fault: malformed.or_else(|| found.errors.first().map(ToString::to_string)),
    }))
}

/// Returns the path of a payload's file in the data folder `data`, even if a sweep has moved the
/// file to the trash.
#[must_use]
pub fn payload_in(data: &Path, id: PayloadId) -> std::path::PathBuf {
    let path = path_of(data, id);
    if path.is_file() {
        return path;
    }
    trash::find(&data.join(PAYLOADS), &id.to_string()).unwrap_or(path)
}

/// Returns the length and checksum that a claim's row records about its file.
#[must_use]
pub fn claim_of(value: &[u8]) -> Option<Claim> {
    Claim::read(value)
}

#[cfg(test)]
#[path = "log_archive_tests.rs"]
mod tests;
