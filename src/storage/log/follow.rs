//! Reading the log while the writer appends to it, and how much of it is retained for archiving.
//!
//! Only records that are published are read: they are whole and durable. A segment is removed when
//! the tree holds all of its records and, while the log is archived for a chain of backups, the chain
//! holds them too. The wait for the chain is bounded in bytes: past it the chain is given up, and
//! the service goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::form::{self, HEADER_BYTES, Header, Record};
use super::{Segments, path_of, sync_folder};
use crate::domain::ids::{Id, RequestId};
use crate::runtime::new_id;
use crate::storage::data_dir;

/// The file in the log's folder that says how far the log is archived.
const FILE: &str = "kept.json";

/// How far a chain of backups holds the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivePosition {
    /// The chain's name. A chain never has two histories.
    pub chain: Uuid,
    /// The chain holds the records behind this one …
    pub from: u64,
    /// … up to this one, durably.
    pub through: u64,
}

/// What the segments know of the chain.
#[derive(Debug, Default)]
pub struct ArchiveState {
    pub position: Option<ArchivePosition>,
    /// Bytes of segments that may wait for the chain.
    pub budget: Option<u64>,
    /// Why the last chain was given up, until somebody asks.
    pub given_up: Option<String>,
}

impl ArchiveState {
    /// What the log's folder says. A file that cannot be read ends the chain.
    pub fn of(folder: &Path) -> Self {
        let kept = match fs::read(path_of_file(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            text => text.and_then(|text| Ok(serde_json::from_slice(&text)?)),
        };
        match kept {
            Ok(kept) => Self { position: Some(kept), ..Self::default() },
            Err(error) => Self {
                given_up: Some(format!("the store's note of the log archive is damaged: {error}")),
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
    /// How far the log is archived; `None` while no chain needs it.
    pub fn archive_position(&self) -> Option<ArchivePosition> {
        self.held().archive.position.clone()
    }

    /// Bytes of segments that may wait for the chain before it is given up.
    pub fn set_archive_budget(&self, bytes: u64) {
        self.held().archive.budget = Some(bytes);
    }

    /// Why the last chain was given up; answered once.
    pub fn take_archive_failure(&self) -> Option<String> {
        self.held().archive.given_up.take()
    }

    /// Begins a chain behind the last record that `published` names: no record behind it is removed
    /// before the chain has it.
    pub fn start_archiving(&self, published: impl FnOnce() -> u64) -> io::Result<ArchivePosition> {
        let _alone = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = {
            let mut held = self.held();
            // Removal holds the same lock, and removes no more than was published before.
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

    /// Notes that `chain` durably holds the records up to `through`. Nothing happens when another
    /// chain, or none, is kept by now.
    pub fn mark_archived(&self, chain: Uuid, through: u64) -> io::Result<()> {
        let _alone = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = self.archive_position().filter(|kept| kept.chain == chain) else {
            return Ok(());
        };
        let kept = ArchivePosition { through, ..kept };
        // The note first: what is removed by it must stay known as kept.
        note(&self.folder, &kept)?;
        let mut held = self.held();
        if held.archive.position.as_ref().is_some_and(|held| held.chain == chain) {
            held.archive.position = Some(kept);
        }
        Ok(())
    }

    /// Gives the chain up: the log is archived no more. No later start continues the chain once this
    /// has succeeded.
    ///
    /// # Errors
    /// When the disk refuses; then a later start may find the chain again.
    pub fn stop_archiving(&self, reason: Option<String>) -> io::Result<()> {
        // A note that is being written would come back behind its removal.
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

    /// As [`Segments::stop_archiving`]; a failure is logged.
    pub fn give_up_archiving(&self, reason: Option<String>) {
        if let Err(error) = self.stop_archiving(reason) {
            // The next start finds the log incomplete and gives the chain up again.
            tracing::error!(%error, "failed to remove the note of the log archive");
        }
    }

    /// Bytes of the segments that hold records behind `through`.
    pub fn bytes_behind(&self, through: u64) -> u64 {
        let held = self.held();
        let nexts = held.segments.iter().skip(1).map(|(first, _)| *first).chain([u64::MAX]);
        let behind = held.segments.iter().zip(nexts);
        behind
            .filter(|(_, next)| *next > through.saturating_add(1))
            .map(|((_, bytes), _)| bytes)
            .sum()
    }

    /// Gives the chain up when more waits for it than may.
    pub(super) fn enforce_archive_budget(&self) {
        let (kept, budget) = {
            let archive = &self.held().archive;
            (archive.position.clone(), archive.budget)
        };
        let (Some(kept), Some(budget)) = (kept, budget) else { return };
        let waiting = self.bytes_behind(kept.through);
        if waiting > budget {
            self.give_up_archiving(Some(format!(
                "{waiting} bytes of log wait to be kept, more than `backup.log_budget` ({budget})"
            )));
        }
    }

    /// Shows the records behind `after`, up to the published record `until`, in order; ends early
    /// behind the one with which it has shown `most` bytes. Answers the last one shown.
    ///
    /// # Errors
    /// When a record is missing or cannot be read; whatever `take` fails with.
    pub fn follow(
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
