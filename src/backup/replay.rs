//! Applying the log archive behind a backup: first all of it that is needed is checked, then it is
//! applied, up to a moment or to its end.
//!
//! The log ends where the chain ends, or, with the data folder of a damaged store, where that
//! store's own log ends. A commit belongs to the moment at which it was written, by the clock of the
//! machine; the first one that is later than the moment asked for ends the replay.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chain::{Listed, check_file, folder_of, foreign, read_file, read_group};
use super::read::Entry;
use super::restore::{Importing, content_path, write_file};
use super::{Error, Keys, Point, SEAL_NEXT, Summary};
use crate::domain::file::Digest;
use crate::domain::ids::PayloadId;
use crate::domain::time::Timestamp;
use crate::files;
use crate::runtime::regular_file;
use crate::storage::{Group, Page, claimed_by, payload_in, read_live_log};

/// What is applied behind a backup; by default nothing.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// The folder of chains beside the backup.
    pub log: Option<PathBuf>,
    /// The data folder of a damaged store: what its own log holds behind the chain.
    pub live: Option<PathBuf>,
    /// No commit later than this; without it, all.
    pub until: Option<Timestamp>,
}

/// How far a replay came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// The last record of the log that was applied, and when it was written.
    pub record: u64,
    pub at: String,
    /// Files of the log archive that were read.
    pub files: usize,
    /// Records that were applied behind the backup.
    pub records: u64,
    /// What is incomplete, in sentences.
    pub notes: Vec<String>,
}

/// What a replay applies, checked.
#[derive(Debug)]
pub struct Plan {
    point: Option<Point>,
    files: Vec<PathBuf>,
    live: Option<PathBuf>,
    until: Option<Timestamp>,
    notes: Vec<String>,
    /// The last record that is there, and the time of the last one in the files.
    pub last: u64,
    pub last_at: Timestamp,
    /// The latest time of any record up to there: a clock that was set back makes it later than
    /// `last_at`. A replay up to this time applies all of them.
    latest: Timestamp,
    /// Bytes that the files hold before compression.
    bytes: u64,
}

impl Plan {
    /// The commits up to `next` are missing. What was asked for may end here: a message like this one
    /// was read, and the moment that it names is wanted.
    fn stop_at_hole(&mut self, next: u64) -> Result<(), Error> {
        let [from, to] = [self.last.saturating_add(1), next.saturating_sub(1)];
        let at = self.latest;
        if self.until.is_some_and(|until| until <= at.end_of_millisecond()) {
            self.notes.push(format!(
                "the commits {from} to {to} are missing: the first of them may be of {at} as well"
            ));
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the log archive has a hole: the commits {from} to {to} are missing. Up to the hole it \
             can be restored with --until {at}, or the backup alone with --no-log"
        )))
    }

    fn nothing(point: Option<Point>) -> Self {
        let (last, last_at) = point.as_ref().map_or_else(Default::default, |it| (it.record, it.at));
        let (files, live, until, notes) = Default::default();
        Self { point, files, live, until, notes, last, last_at, latest: last_at, bytes: 0 }
    }

    /// Files of the log archive that belong to it.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Bytes that these files hold before compression.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is incomplete, in sentences.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Replay {
    /// Checks that the log behind a backup is there without a hole, as far as it is needed.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is not, with what is missing; [`Error::Damaged`]; [`Error::Disk`].
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
                "this backup does not say where in the log it was taken: an earlier release wrote \
                 it, and no log can be applied to it"
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

    /// Checks the chain's files; whether all that is wanted is in them, or before a hole.
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
        return Err(Error::Refused(format!("there is no log of a store in {shown}")));
    };
    let is_other = found.chain.is_some() && point.chain.is_some() && found.chain != point.chain;
    if found.store != point.store || is_other {
        let message = format!("the log in {shown} is not that of the store that was backed up");
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
    /// Applies the log to the store behind `rows`, whose data folder is `data`. `None` when there is
    /// nothing to apply.
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

/// A store that the log is applied to.
struct Applying<'a, 's> {
    data: &'a Path,
    rows: &'a mut Importing<'s>,
    shards: &'a mut Vec<PathBuf>,
    until: Option<Timestamp>,
    /// The last record that was applied, and its time.
    last: u64,
    at: Timestamp,
    is_done: bool,
    /// Payloads that were claimed or released since files were last written.
    payloads: BTreeMap<PayloadId, bool>,
    /// Contents that were referred to since then.
    contents: HashSet<Digest>,
    /// Contents that a file referred to no more.
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

    /// What the log of a damaged store holds, with the bytes that are in its data folder.
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
        // Two rows of the source may have one place here: what is put is what counts.
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

    /// Deletes the payloads that were released.
    fn settle(&mut self) -> io::Result<()> {
        self.contents.clear();
        for (id, is_claimed) in std::mem::take(&mut self.payloads) {
            if !is_claimed {
                remove(&payload_in(self.data, id))?;
            }
        }
        Ok(())
    }

    /// Deletes the contents that nothing refers to any more.
    fn drop_contents(&mut self) -> io::Result<()> {
        let runtime = tokio::runtime::Handle::current();
        for digest in std::mem::take(&mut self.dropped) {
            let page =
                Page { prefix: files::references(digest), after: None, before: None, limit: 1 };
            let left = runtime.block_on(self.rows.store.page(page)).map_err(io::Error::other)?;
            if left.is_empty() {
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
