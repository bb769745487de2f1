//! Replays the log archive on top of a backup: first checks all required files, then applies the
//! log, either completely or up to a given time.
//!
//! The replayed log consists of the chain and, if the data folder of a damaged store is given, that
//! store's own log. A commit's time is the machine's clock time when the commit was written. The
//! replay ends before the first commit that is later than the requested time.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chain::{Listed, check_file, folder_of, foreign, read_file, read_group};
use super::read::Entry;
use super::restore::{Importing, content_path, write_file};
use super::{Error, Keys, Point, SEAL_NEXT, Summary};
use orrery_domain::file::Digest;
use orrery_domain::ids::PayloadId;
use orrery_domain::time::Timestamp;
use orrery_records::files;
use orrery_runtime::regular_file;
use orrery_storage::{Group, claimed_by, payload_in, read_live_log};

/// The log to apply on top of a backup; none by default.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// The folder of chains, next to the backup.
    pub log: Option<PathBuf>,
    /// The data folder of a damaged store, whose own log is applied after the chain.
    pub live: Option<PathBuf>,
    /// Commits later than this time are not applied; `None` applies all commits.
    pub until: Option<Timestamp>,
}

/// The position that a replay has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// The last log record applied, and its time.
    pub record: u64,
    pub at: String,
    /// Number of log archive files that were read.
    pub files: usize,
    /// Number of records applied after the backup.
    pub records: u64,
    /// Descriptions of parts that are incomplete.
    pub notes: Vec<String>,
}

/// A replay whose files have been checked.
#[derive(Debug)]
pub struct Plan {
    point: Option<Point>,
    files: Vec<PathBuf>,
    live: Option<PathBuf>,
    until: Option<Timestamp>,
    notes: Vec<String>,
    /// The last available record, and the time of the last record in the files.
    pub last: u64,
    pub last_at: Timestamp,
    /// The latest time of any record up to `last`, which is later than `last_at` if the machine's
    /// clock was set back. A replay up to this time applies all records.
    latest: Timestamp,
    /// Uncompressed size of the files, in bytes.
    bytes: u64,
}

impl Plan {
    /// Handles a gap: commits before `next` are missing. If the requested time is before the gap,
    /// the replay may end there; otherwise, the error message suggests such a time.
    fn stop_at_hole(&mut self, next: u64) -> Result<(), Error> {
        let [from, to] = [self.last.saturating_add(1), next.saturating_sub(1)];
        let at = self.latest;
        if self.until.is_some_and(|until| until <= at.end_of_millisecond()) {
            self.notes.push(format!(
                "the commits {from} to {to} are missing; the first of them may also be from {at}"
            ));
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the log archive has a gap: the commits {from} to {to} are missing. To restore up \
             to the gap, use --until {at}; to restore only the backup, use --no-log"
        )))
    }

    fn nothing(point: Option<Point>) -> Self {
        let (last, last_at) = point.as_ref().map_or_else(Default::default, |it| (it.record, it.at));
        let (files, live, until, notes) = Default::default();
        Self { point, files, live, until, notes, last, last_at, latest: last_at, bytes: 0 }
    }

    /// Returns the number of files in the plan.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the uncompressed size of the files, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns descriptions of the parts that are incomplete.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Replay {
    /// Checks that the part of the log that is required after the backup has no gap.
    ///
    /// # Errors
    /// [`Error::Refused`] if the log has a gap, with the missing commits; [`Error::Damaged`];
    /// [`Error::Disk`].
    pub fn plan(
        &self,
        backup: &Summary,
        keys: &Keys,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Plan, Error> {
        let Some(point) = &backup.point else {
            if self.until.is_none() && self.live.is_none() {
                return Ok(Plan::nothing(None));
            }
            return Err(Error::Refused(
                "this backup does not record its position in the log because an earlier release \
                 wrote it, so no log can be applied to it"
                    .to_owned(),
            ));
        };
        if let Some(until) = self.until.filter(|until| *until < point.at) {
            return Err(Error::Refused(format!(
                "the backup itself was taken at {}, later than {until}: restore an earlier backup",
                point.at
            )));
        }
        let mut plan = Plan { until: self.until, ..Plan::nothing(Some(point.clone())) };
        let is_done = self.plan_chain(&mut plan, point, keys, progress)?;
        if let Some(live) = self.live.as_ref().filter(|_| !is_done) {
            plan_live(&mut plan, point, live)?;
        }
        let is_empty = plan.files.is_empty() && plan.live.is_none();
        if self.until.is_some() && is_empty && plan.notes.is_empty() {
            plan.notes.push("there is no log archive after the backup".to_owned());
        }
        Ok(plan)
    }

    /// Checks the chain's files. Returns whether the plan is complete: the files reach the
    /// requested time, or the replay ends at a gap.
    fn plan_chain(
        &self,
        plan: &mut Plan,
        point: &Point,
        keys: &Keys,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, Error> {
        let (Some(log), Some(chain)) = (&self.log, point.chain) else { return Ok(false) };
        let listed = Listed::of(&folder_of(log, chain))?;
        for file in listed.files.into_iter().filter(|file| file.last > point.record) {
            let expected = plan.last.saturating_add(1);
            let is_next =
                if plan.files.is_empty() { file.first <= expected } else { file.first == expected };
            if !is_next && file.first > expected {
                return plan.stop_at_hole(file.first).map(|()| true);
            }
            let checked = check_file(&file.path, keys, point.record, progress)?;
            let range = checked.range;
            let shown = file.path.display();
            if range.store != point.store || range.chain != chain {
                let message = format!("{shown} belongs to the log of another store");
                return Err(Error::Refused(message));
            }
            if !is_next || (range.first, range.last) != (file.first, file.last) {
                return Err(Error::Refused(format!(
                    "{shown} holds the commits {} to {}, but {expected} comes next: someone \
                     renamed or added a file of the log",
                    range.first, range.last
                )));
            }
            plan.notes.extend(checked.damaged);
            (plan.last, plan.last_at) = (range.last, range.last_at);
            plan.latest = plan.latest.max(checked.latest);
            plan.bytes = plan.bytes.saturating_add(checked.bytes);
            plan.files.push(file.path);
            if self.until.is_some_and(|until| checked.latest > until) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn plan_live(plan: &mut Plan, point: &Point, live: &Path) -> Result<(), Error> {
    let shown = live.display();
    if live.join(SEAL_NEXT).exists() {
        return Err(Error::Refused(format!(
            "the rotation of seal.key in {shown} was interrupted: its log may have rows that are sealed \
             with the new key, which the backup lacks. Restore without --live-log"
        )));
    }
    let found = read_live_log(live, plan.last, &mut |_group| {})?;
    let Some(found) = found else {
        return Err(Error::Refused(format!("there is no store log in {shown}")));
    };
    let is_other = found.chain.is_some() && point.chain.is_some() && found.chain != point.chain;
    if found.store != point.store || is_other {
        let message = format!("the log in {shown} belongs to another store than the backup");
        return Err(Error::Refused(message));
    }
    let expected = plan.last.saturating_add(1);
    if found.first > expected {
        return plan.stop_at_hole(found.first);
    }
    if let Some(fault) = found.fault {
        plan.notes.push(format!("the log in {shown} cannot be read past its damage: {fault}"));
    }
    plan.live = Some(live.to_path_buf());
    Ok(())
}

impl Plan {
    /// Applies the log to the store of `rows`, whose data folder is `data`. Returns `None` if there
    /// was nothing to apply.
    pub(super) fn apply(
        &self,
        data: &Path,
        keys: &Keys,
        rows: &mut Importing<'_>,
        shards: &mut Vec<PathBuf>,
    ) -> Result<Option<Reached>, Error> {
        let Some(point) = self.point.as_ref() else { return Ok(None) };
        if self.files.is_empty() && self.live.is_none() && self.until.is_none() {
            return Ok(None);
        }
        let mut applying = Applying {
            data,
            rows,
            shards,
            until: self.until,
            last: point.record,
            at: point.at,
            is_done: false,
            payloads: BTreeMap::new(),
            contents: HashSet::new(),
            dropped: HashSet::new(),
            notes: self.notes.clone(),
        };
        for file in &self.files {
            applying.file(file, keys)?;
        }
        if let Some(live) = &self.live {
            applying.live(live)?;
        }
        applying.rows.flush()?;
        applying.drop_contents()?;
        Ok(Some(Reached {
            record: applying.last,
            at: applying.at.to_string(),
            files: self.files.len(),
            records: applying.last.saturating_sub(point.record),
            notes: applying.notes,
        }))
    }
}

/// The target of a replay.
struct Applying<'a, 's> {
    data: &'a Path,
    rows: &'a mut Importing<'s>,
    shards: &'a mut Vec<PathBuf>,
    until: Option<Timestamp>,
    /// The last record applied, and its time.
    last: u64,
    at: Timestamp,
    is_done: bool,
    /// Payloads that were claimed or released since files were last written.
    payloads: BTreeMap<PayloadId, bool>,
    /// File contents that gained a reference since files were last written.
    contents: HashSet<Digest>,
    /// File contents that lost a reference since files were last written.
    dropped: HashSet<Digest>,
    notes: Vec<String>,
}

impl Applying<'_, '_> {
    fn file(&mut self, path: &Path, keys: &Keys) -> Result<(), Error> {
        read_file(path, keys, &mut |entry, content| {
            match entry {
                Entry::Records => {
                    let mut content = BufReader::new(content);
                    while let Some(group) = read_group(&mut content)? {
                        self.group(group)?;
                    }
                }
                Entry::Payload(id) if self.payloads.get(id) == Some(&true) => {
                    self.write(&payload_in(self.data, *id), content)?;
                }
                Entry::Content(digest) if self.contents.contains(digest) => {
                    self.write(&content_path(self.data, *digest), content)?;
                }
                Entry::Payload(_) | Entry::Content(_) => {}
                Entry::Rows | Entry::Changes | Entry::Seal | Entry::NextSeal | Entry::Tls(_) => {
                    return Err(foreign());
                }
            }
            Ok(())
        })?;
        Ok(self.settle()?)
    }

    /// Applies a damaged store's log, with the payloads and files in that store's data folder.
    fn live(&mut self, live: &Path) -> Result<(), Error> {
        let mut failed = None;
        read_live_log(live, self.last, &mut |group| {
            if failed.is_none() {
                failed = self.group(group).err();
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let claimed: Vec<PayloadId> =
            self.payloads.iter().filter(|(_, is)| **is).map(|(id, _)| *id).collect();
        for id in claimed {
            let from = payload_in(live, id);
            let to = payload_in(self.data, id);
            self.copy(&from, &to, &format!("the payload {id}"))?;
        }
        for digest in std::mem::take(&mut self.contents) {
            let from = content_path(live, digest);
            let to = content_path(self.data, digest);
            self.copy(&from, &to, &format!("the content {digest}"))?;
        }
        Ok(self.settle()?)
    }

    fn group(&mut self, group: Group) -> io::Result<()> {
        if self.is_done || group.number <= self.last {
            return Ok(());
        }
        if group.number != self.last.saturating_add(1) {
            let reason = format!("commit {} follows {}", group.number, self.last);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if self.until.is_some_and(|until| group.time > until) {
            self.is_done = true;
            return Ok(());
        }
        (self.last, self.at) = (group.number, group.time);
        for (key, value) in &group.rows {
            if let Some(id) = claimed_by(key) {
                self.payloads.insert(id, value.is_some());
            } else if let Some(digest) = files::of_reference(key) {
                let noted = if value.is_some() { &mut self.contents } else { &mut self.dropped };
                noted.insert(digest);
            }
        }
        // Two rows of the source may map to the same key. If one row is put and the other row is
        // deleted, the put wins.
        let (put, deleted): (Vec<_>, Vec<_>) =
            group.rows.into_iter().partition(|(_, value)| value.is_some());
        deleted.into_iter().chain(put).try_for_each(|change| self.rows.add(change))
    }

    fn write(&mut self, path: &Path, content: &mut dyn io::Read) -> io::Result<()> {
        remove(path)?;
        write_file(path, content, self.shards)
    }

    fn copy(&mut self, from: &Path, to: &Path, what: &str) -> io::Result<()> {
        match regular_file::open(from) {
            Ok(mut file) => self.write(to, &mut file),
            Err(error) => {
                self.notes.push(format!("{what} cannot be read: {error}"));
                Ok(())
            }
        }
    }

    /// Applies the claims and releases of payloads: deletes released payloads.
    fn settle(&mut self) -> io::Result<()> {
        self.contents.clear();
        for (id, is_claimed) in std::mem::take(&mut self.payloads) {
            if !is_claimed {
                remove(&payload_in(self.data, id))?;
            }
        }
        Ok(())
    }

    /// Deletes the file contents that no row refers to any more.
    fn drop_contents(&mut self) -> io::Result<()> {
        let runtime = tokio::runtime::Handle::current();
        for digest in std::mem::take(&mut self.dropped) {
            let is_used = self.rows.store.has_any(files::references(digest));
            if !runtime.block_on(is_used).map_err(io::Error::other)? {
                remove(&content_path(self.data, digest))?;
            }
        }
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
