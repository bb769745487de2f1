//! Caps of organizations over all lanes: whose tickets are left to the disk, and when their lanes are read
//! for them.
//!
//! Nothing here counts: see `organizations`. Nothing here starts: a lane whose window has the tickets
//! again takes its turn as any other.

use std::sync::Arc;

use super::{Full, Lanes, Next, OrganizationLoad, Ticket};
use crate::domain::ids::{ExecutionId, OrganizationId};

impl<T, G> Lanes<T, G> {
    /// Caps how many executions of an organization run at once; those above a lowered cap run on.
    pub fn set_organization_cap(&mut self, organization: OrganizationId, cap: Option<usize>) {
        self.organizations.set_cap(organization, cap);
        self.wake_organization(organization);
    }

    /// Lets an organization that runs nothing in the lane start one above its cap.
    pub fn let_exceed(&mut self, name: &str, may_exceed: bool) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.may_exceed = may_exceed;
        }
        self.schedule_lane(name);
    }

    /// Counts an execution that is about to be accepted, unless as many of its organization wait as may.
    /// Each is taken back by [`Lanes::ended`].
    ///
    /// # Errors
    /// [`Full`] when that many wait.
    pub fn admit(
        &mut self,
        organization: OrganizationId,
        limit: Option<usize>,
    ) -> Result<(), Full> {
        self.organizations.admit(organization, limit)
    }

    /// Counts executions that a start has found unfinished.
    pub fn count_unfinished(&mut self, organization: OrganizationId, count: usize) {
        self.organizations.count_unfinished(organization, count);
    }

    /// One of the organization has ended, or was not accepted after all.
    pub fn ended(&mut self, organization: OrganizationId) {
        self.organizations.ended(organization);
    }

    #[must_use]
    pub fn load_of(&self, organization: OrganizationId) -> OrganizationLoad {
        self.organizations.load(organization)
    }

    /// Rows of the organization in the lane, oldest first, and from where there are more of them.
    pub fn refilled(
        &mut self,
        name: &str,
        organization: OrganizationId,
        rows: Vec<Ticket<T>>,
        more_from: Option<ExecutionId>,
    ) {
        self.organizations.end_reading(organization);
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.refilled(organization, rows, more_from);
        }
        self.schedule_lane(name);
        self.refilled.push(organization);
    }

    /// What else is read for those for whom a lane was read, if that lane has not started as many of them
    /// as may run.
    pub(super) fn next_refilled(&mut self) -> Option<Next<T, G>> {
        for organization in std::mem::take(&mut self.refilled) {
            self.wake_organization(organization);
        }
        self.next_woken()
    }

    /// Tickets at the head of a window whose organizations may run no more leave it to the others.
    pub(super) fn put_back_blocked(&mut self, name: &Arc<str>) {
        let mut has_left = false;
        while let Some(organization) = self.whose_turn(name)
            && self.organizations.room(organization) == 0
            && let Some(lane) = self.lanes.get_mut(name)
        {
            if lane.put_back(organization) {
                self.organizations.wait_in(organization, Arc::clone(name));
            }
            has_left = true;
        }
        if has_left {
            // They were before the guests.
            self.wake_steps(name);
        }
    }

    /// What the lane has read next: of the organization whose turn it is, and that may run more. The
    /// others wait until they may.
    pub(super) fn next_refill(&mut self, name: &Arc<str>) -> Option<Next<T, G>> {
        while let Some(organization) = self.lanes.get_mut(name)?.take_turn_to_read() {
            if self.organizations.room_to_read(organization) > 0 {
                return self.begin_refill(name, organization);
            }
            self.organizations.wait_in(organization, Arc::clone(name));
        }
        None
    }

    fn begin_refill(
        &mut self,
        name: &Arc<str>,
        organization: OrganizationId,
    ) -> Option<Next<T, G>> {
        let lane = self.lanes.get_mut(name)?;
        let from = lane.begin_refill(organization)?;
        let most = self.organizations.room(organization).min(lane.room_for_one());
        self.organizations.begin_reading(organization);
        // Others go on while it is read.
        self.schedule_lane(name);
        Some(Next::Refill { lane: Arc::clone(name), organization, from, most })
    }

    /// Has as many lanes in which the organization waits read as it may start executions.
    pub(super) fn wake_organization(&mut self, organization: OrganizationId) {
        if self.organizations.wakes(organization) {
            self.woken.push_back(organization);
        }
    }

    /// The next refill for an organization that waits and may run more. A lane without a free place reads
    /// its rows later.
    pub(super) fn next_woken(&mut self) -> Option<Next<T, G>> {
        while let Some(organization) = self.woken.front().copied() {
            let Some(name) = self.organizations.next_waiting(organization) else {
                self.woken.pop_front();
                continue;
            };
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            if lane.may_read(organization) {
                return self.begin_refill(&name, organization);
            }
            lane.read_later(organization);
            self.schedule_lane(&name);
        }
        None
    }
}
