//! Reads the log while the writer appends to it, and retains segments until a chain of backups has
//! archived them.
//!
//! Only published records are read, since they are complete and durable. A segment is removed once
//! the tree contains all of its records and, while a chain of backups archives the log, the chain
//! contains these records too. The number of bytes that wait for the chain is limited. Beyond the
//! limit, the chain is abandoned and the service continues.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::form::{self, HEADER_BYTES, Header, Record};
use super::{Segments, path_of, sync_folder};
use crate::data_dir;
use orrery_domain::ids::{Id, RequestId};
use orrery_runtime::new_id;

/// The file in the log's folder that records the archive position.
const FILE: &str = "kept.json";

/// How far a chain of backups has archived the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivePosition {
    /// The chain's id. A chain contains the history of a single store.
    pub chain: Uuid,
    /// The record after which the chain begins.
    pub from: u64,
    /// The last record that the chain contains durably.
    pub through: u64,
}

/// The archiving state of the segments.
#[derive(Debug, Default)]
pub(crate) struct ArchiveState {
    pub position: Option<ArchivePosition>,
    /// Maximum bytes of segments that may wait for the chain.
    pub budget: Option<u64>,
    /// The reason why the last chain was abandoned, until [`Segments::take_archive_failure`]
    /// returns it.
    pub given_up: Option<String>,
}

impl ArchiveState {
    /// Reads the state in the log's folder. An unreadable file ends the chain.
    pub(crate) fn of(folder: &Path) -> Self {
        let kept = match fs::read(path_of_file(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            text => text.and_then(|text| Ok(serde_json::from_slice(&text)?)),
        };
        match kept {
            Ok(kept) => Self { position: Some(kept), ..Self::default() },
            Err(error) => Self {
                given_up: Some(format!(
                    "the stored position of the log archive is damaged: {error}"
                )),
                ..Self::default()
            },
        }
    }
}

fn path_of_file(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

fn note(folder: &Path, kept: &ArchivePosition) -> io::Result<()> {
    let text = serde_json::to_vec(kept)?;
    data_dir::write_new(&path_of_file(folder), &text).map_err(io::Error::other)
}

impl Segments {
    /// The archive position; `None` without a chain.
    pub(crate) fn archive_position(&self) -> Option<ArchivePosition> {
        self.held().archive.position.clone()
    }

    /// Sets the maximum bytes of segments that may wait for the chain.
    pub(crate) fn set_archive_budget(&self, bytes: u64) {
        self.held().archive.budget = Some(bytes);
    }

    /// Takes the reason why the last chain was abandoned. Returns it only once.
    pub(crate) fn take_archive_failure(&self) -> Option<String> {
        self.held().archive.given_up.take()
    }

    /// Starts a chain after the last published record, whose number `published` returns. From then
    /// on, no later record is removed before the chain contains it.
    pub(crate) fn start_archiving(
        &self,
        published: impl FnOnce() -> u64,
    ) -> io::Result<ArchivePosition> {
        let _alone = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = {
            let mut held = self.held();
            // The removal of segments takes the same lock, and removes only records that were
            // already published.
            let from = published();
            let chain = Uuid::from_bytes(new_id::<RequestId>().bytes());
            let kept = ArchivePosition { chain, from, through: from };
            held.archive.position = Some(kept.clone());
            held.archive.given_up = None;
            kept
        };
        note(&self.folder, &kept).inspect_err(|_error| self.held().archive.position = None)?;
        Ok(kept)
    }

    /// Records that `chain` durably contains the records up to `through`. Does nothing if that
    /// chain is no longer active.
    pub(crate) fn mark_archived(&self, chain: Uuid, through: u64) -> io::Result<()> {
        let _alone = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = self.archive_position().filter(|kept| kept.chain == chain) else {
            return Ok(());
        };
        let kept = ArchivePosition { through, ..kept };
        // Write the position to the file first: segments must be removed only on the basis of a
        // position that is on disk.
        note(&self.folder, &kept)?;
        let mut held = self.held();
        if held.archive.position.as_ref().is_some_and(|held| held.chain == chain) {
            held.archive.position = Some(kept);
        }
        Ok(())
    }

    /// Ends the chain: the log is no longer archived. Once this succeeds, no later start continues
    /// the chain.
    ///
    /// # Errors
    /// If the disk fails. A later start may then continue the chain.
    pub(crate) fn stop_archiving(&self, reason: Option<String>) -> io::Result<()> {
        // Without this lock, a concurrent write of the position could recreate the file after its
        // removal.
        let _alone = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held();
        if held.archive.position.take().is_some() {
            held.archive.given_up = reason;
        }
        drop(held);
        match fs::remove_file(path_of_file(&self.folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        sync_folder(&self.folder)
    }

    /// The same errors as [`Segments::stop_archiving`], but logs a failure.
    pub(crate) fn give_up_archiving(&self, reason: Option<String>) {
        if let Err(error) = self.stop_archiving(reason) {
            // The next start will find the log incomplete and abandon the chain again.
            tracing::error!(%error, "failed to remove the position of the log archive");
        }
    }

    /// Bytes of the segments that have records after `through`.
    pub(crate) fn bytes_behind(&self, through: u64) -> u64 {
        let held = self.held();
        let nexts = held.segments.iter().skip(1).map(|(first, _)| *first).chain([u64::MAX]);
        let behind = held.segments.iter().zip(nexts);
        behind
            .filter(|(_, next)| *next > through.saturating_add(1))
            .map(|((_, bytes), _)| bytes)
            .sum()
    }

    /// Abandons the chain if the number of bytes that wait for it exceeds the limit.
    pub(super) fn enforce_archive_budget(&self) {
        let (kept, budget) = {
            let archive = &self.held().archive;
            (archive.position.clone(), archive.budget)
        };
        let (Some(kept), Some(budget)) = (kept, budget) else { return };
        let waiting = self.bytes_behind(kept.through);
        if waiting > budget {
            self.give_up_archiving(Some(format!(
                "{waiting} bytes of log wait to be archived, more than `backup.log_budget` ({budget})"
            )));
        }
    }

    /// Passes the records after `after` to `take`, in order, up to the published record `until`.
    /// Stops early after the record that reaches a total of `most` bytes. Returns the last record
    /// passed.
    ///
    /// # Errors
    /// If a record is missing or cannot be read, or if `take` fails.
    pub(crate) fn follow(
        &self,
        after: u64,
        until: u64,
        most: u64,
        take: &mut dyn FnMut(&Record<'_>) -> io::Result<()>,
    ) -> io::Result<u64> {
        let firsts: Vec<u64> = self.held().segments.iter().map(|(first, _)| *first).collect();
        let mut progress = Followed { last: after, until, left: most };
        for (at, first) in firsts.iter().enumerate() {
            let next = firsts.get(at + 1).copied().unwrap_or(u64::MAX);
            if next <= after.saturating_add(1) || progress.is_done() {
                continue;
            }
            if *first > progress.last.saturating_add(1) {
                break;
            }
            let bytes = fs::read(path_of(&self.folder, *first))?;
            progress.read_segment(&bytes, *first, next, take)?;
        }
        if !progress.is_done() {
            let missing = progress.last.saturating_add(1);
            return Err(lost(format!("the log no longer has the record {missing}")));
        }
        Ok(progress.last)
    }
}

struct Followed {
    last: u64,
    until: u64,
    left: u64,
}

impl Followed {
    const fn is_done(&self) -> bool {
        self.last >= self.until || self.left == 0
    }

    fn read_segment(
        &mut self,
        bytes: &[u8],
        first: u64,
        next: u64,
        take: &mut dyn FnMut(&Record<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = Header::decode(bytes).ok().filter(|header| header.first == first);
        let header =
            header.ok_or_else(|| lost(format!("the header of segment {first:016x} is damaged")))?;
        let mut at = usize::try_from(HEADER_BYTES).unwrap_or(bytes.len());
        for expected in first..next {
            if self.is_done() {
                break;
            }
            let record = form::decode(bytes, at, header.nonce);
            let record = record.filter(|record| record.number == expected);
            let record =
                record.ok_or_else(|| lost(format!("record {expected} of the log is damaged")))?;
            at = record.end;
            if expected > self.last {
                take(&record)?;
                self.last = expected;
                self.left = self.left.saturating_sub(record.bytes);
            }
        }
        Ok(())
    }
}

fn lost(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
