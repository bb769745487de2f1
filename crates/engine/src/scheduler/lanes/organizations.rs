//! Each organization's use of the lanes: its running and unfinished executions, and the lanes in
//! which its executions stay on disk because the organization is at its cap.
//!
//! An organization without a cap and without work in the lanes has no entry.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::lane::{Left, Parking};
use super::{Full, OrganizationLoad};
use orrery_domain::ids::OrganizationId;

#[derive(Debug, Default)]
struct Organization {
    /// Maximum number of running executions; `None` means no limit.
    cap: Option<usize>,
    /// Running executions, including those that only wait for executions that they have started.
    placed: usize,
    /// Running executions that only wait for executions that they have started; they do not count
    /// against the cap.
    yielding: usize,
    /// Accepted, unfinished executions.
    unfinished: usize,
    /// Lanes to read when the organization is below its cap. The lane that has waited longest comes
    /// first.
    waiting: VecDeque<Arc<str>>,
    /// Whether the organization is already in the queue of woken organizations.
    is_woken: bool,
    /// Number of lanes that are being read for the organization.
    reading: usize,
}

impl Organization {
    const fn running(&self) -> usize {
        self.placed.saturating_sub(self.yielding)
    }

    const fn queued(&self) -> usize {
        self.unfinished.saturating_sub(self.running())
    }

    fn is_nothing(&self) -> bool {
        let counts = self.placed + self.yielding + self.unfinished + self.reading;
        self.cap.is_none() && counts == 0 && self.waiting.is_empty() && !self.is_woken
    }
}

/// All organizations with entries in the lanes.
#[derive(Debug, Default)]
pub(super) struct Organizations {
    all: HashMap<OrganizationId, Organization>,
}

impl Organizations {
    fn change<T>(&mut self, id: OrganizationId, change: impl FnOnce(&mut Organization) -> T) -> T {
        let one = self.all.entry(id).or_default();
        let changed = change(one);
        if one.is_nothing() {
            self.all.remove(&id);
        }
        changed
    }

    pub(super) fn set_cap(&mut self, id: OrganizationId, cap: Option<usize>) {
        self.change(id, |one| one.cap = cap);
    }

    /// Returns how many more executions may start.
    pub(super) fn room(&self, id: OrganizationId) -> usize {
        let Some(one) = self.all.get(&id) else { return usize::MAX };
        one.cap.map_or(usize::MAX, |cap| cap.saturating_sub(one.running()))
    }

    /// Whether fewer than `own` executions of the organization are running, and fewer than twice
    /// `own` are either running or waiting for executions that they have started.
    pub(super) fn runs_fewer(&self, id: OrganizationId, own: usize) -> bool {
        let Some(one) = self.all.get(&id) else { return own > 0 };
        one.running() < own && one.placed < own.saturating_mul(2)
    }

    pub(super) fn load(&self, id: OrganizationId) -> OrganizationLoad {
        let one = self.all.get(&id);
        one.map_or_else(OrganizationLoad::default, |one| OrganizationLoad {
            running: one.running(),
            queued: one.queued(),
        })
    }

    // --- unfinished executions ---

    /// Counts an execution that is about to be accepted.
    ///
    /// # Errors
    /// [`Full`] if the queue limit is reached.
    pub(super) fn admit(&mut self, id: OrganizationId, limit: Option<usize>) -> Result<(), Full> {
        let queued = self.all.get(&id).map_or(0, Organization::queued);
        if limit.is_some_and(|limit| queued >= limit) {
            return Err(Full { queued });
        }
        self.count_unfinished(id, 1);
        Ok(())
    }

    pub(super) fn count_unfinished(&mut self, id: OrganizationId, count: usize) {
        self.change(id, |one| one.unfinished += count);
    }

    pub(super) fn ended(&mut self, id: OrganizationId) {
        self.change(id, |one| one.unfinished = one.unfinished.saturating_sub(1));
    }

    // --- running executions ---

    pub(super) fn started(&mut self, id: OrganizationId) {
        self.change(id, |one| one.placed += 1);
    }

    pub(super) fn left(&mut self, left: Left) {
        self.change(left.organization, |one| {
            one.placed = one.placed.saturating_sub(1);
            if left.parking == Parking::ForOthers {
                one.yielding = one.yielding.saturating_sub(1);
            }
        });
    }

    /// Records that a running execution starts or stops waiting for executions that it has started.
    pub(super) fn yields(&mut self, id: OrganizationId, does: bool) {
        self.change(id, |one| {
            one.yielding = if does { one.yielding + 1 } else { one.yielding.saturating_sub(1) };
        });
    }

    /// Replaces the counts of running executions, and returns true if they were wrong. Each item is
    /// the organization of a running execution, and whether the execution yields.
    pub(super) fn recount(
        &mut self,
        running: impl Iterator<Item = (OrganizationId, bool)>,
    ) -> bool {
        let mut counts: HashMap<OrganizationId, (usize, usize)> = HashMap::new();
        for (id, yields) in running {
            let count = counts.entry(id).or_default();
            *count = (count.0 + 1, count.1 + usize::from(yields));
        }
        let mut was_wrong = false;
        for (id, one) in &mut self.all {
            let (placed, yielding) = counts.remove(id).unwrap_or_default();
            was_wrong |= (one.placed, one.yielding) != (placed, yielding);
            (one.placed, one.yielding) = (placed, yielding);
        }
        for (id, (placed, yielding)) in counts {
            was_wrong = true;
            self.change(id, |one| (one.placed, one.yielding) = (placed, yielding));
        }
        was_wrong
    }

    // --- waiting lanes ---

    /// Adds a lane to read when the organization is below its cap.
    pub(super) fn wait_in(&mut self, id: OrganizationId, lane: Arc<str>) {
        self.change(id, |one| one.waiting.push_back(lane));
    }

    /// Returns how many more lanes to read for the organization.
    pub(super) fn room_to_read(&self, id: OrganizationId) -> usize {
        let reading = self.all.get(&id).map_or(0, |one| one.reading);
        self.room(id).saturating_sub(reading)
    }

    pub(super) fn begin_reading(&mut self, id: OrganizationId) {
        self.change(id, |one| one.reading += 1);
    }

    pub(super) fn end_reading(&mut self, id: OrganizationId) {
        self.change(id, |one| one.reading = one.reading.saturating_sub(1));
    }

    /// Whether to wake the organization: it may run more executions, has work waiting in a lane,
    /// and has not been woken yet. If so, marks it as woken.
    pub(super) fn wakes(&mut self, id: OrganizationId) -> bool {
        if self.room_to_read(id) == 0 {
            return false;
        }
        let Some(one) = self.all.get_mut(&id).filter(|one| !one.waiting.is_empty()) else {
            return false;
        };
        !std::mem::replace(&mut one.is_woken, true)
    }

    /// Returns the next lane to read for the organization. Returns `None` if there is no such lane
    /// or the organization is at its cap. In that case, the organization must be woken again later.
    pub(super) fn next_waiting(&mut self, id: OrganizationId) -> Option<Arc<str>> {
        let may_run = self.room_to_read(id) > 0;
        self.change(id, |one| {
            let next = one.waiting.pop_front_if(|_| may_run);
            one.is_woken = next.is_some();
            next
        })
    }
}
