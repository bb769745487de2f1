//! Caps of organizations across all lanes: decides which tickets stay on disk, and when their lanes
//! are read again.
//!
//! The counts themselves are in `organizations`. This module does not start executions: once the
//! tickets are back in a lane's window, the lane takes its turn like any other lane.

use std::sync::Arc;

use super::{Full, Lanes, Load, Next, OrganizationLoad, Ticket};
use orrery_domain::ids::{ExecutionId, OrganizationId};

impl<T, G> Lanes<T, G> {
    /// Limits the running executions of an organization. Executions above a lowered cap keep
    /// running.
    pub(crate) fn set_organization_cap(
        &mut self,
        organization: OrganizationId,
        cap: Option<usize>,
    ) {
        self.organizations.set_cap(organization, cap);
        self.wake_organization(organization);
    }

    /// Sets whether an organization that runs nothing in the lane may start one execution above the
    /// lane's cap.
    pub(crate) fn let_exceed(&mut self, name: &str, may_exceed: bool) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.may_exceed = may_exceed;
        }
        self.schedule_lane(name);
    }

    /// Counts an execution that is about to be accepted, subject to the queue limit of its
    /// organization. Each call is undone by [`Lanes::ended`].
    ///
    /// # Errors
    /// [`Full`] if the limit is reached.
    pub(crate) fn admit(
        &mut self,
        organization: OrganizationId,
        limit: Option<usize>,
    ) -> Result<(), Full> {
        self.organizations.admit(organization, limit)
    }

    /// Counts unfinished executions found at startup.
    pub(crate) fn count_unfinished(&mut self, organization: OrganizationId, count: usize) {
        self.organizations.count_unfinished(organization, count);
    }

    /// Undoes the count of an execution that has ended or was not accepted after all.
    pub(crate) fn ended(&mut self, organization: OrganizationId) {
        self.organizations.ended(organization);
    }

    #[must_use]
    pub(crate) fn load_of(&self, organization: OrganizationId) -> OrganizationLoad {
        self.organizations.load(organization)
    }

    /// Returns the organization's share of a lane's load. `rows` is the number of the
    /// organization's unfinished executions on disk. If `rows` is `None`, only queued executions in
    /// memory are counted.
    #[must_use]
    pub(crate) fn share(&self, name: &str, of: OrganizationId, rows: Option<usize>) -> Load {
        self.lanes.get(name).map_or_else(Load::default, |lane| lane.load_of(of, rows))
    }

    /// Adds rows of the organization to the lane, oldest first. `more_from` is the first unread
    /// row.
    pub(crate) fn refilled(
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

    /// Wakes the organizations whose rows were just read, because a read may yield fewer executions
    /// than the organization may start. Returns the next read.
    pub(super) fn next_refilled(&mut self) -> Option<Next<T, G>> {
        for organization in std::mem::take(&mut self.refilled) {
            self.wake_organization(organization);
        }
        self.next_woken()
    }

    /// Drops tickets from the head of the lane's window as long as their organizations are at their
    /// caps. The rows of these tickets stay on disk.
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
            // The dropped tickets were ahead of the lane's waiting steps, which may now be
            // admitted.
            self.wake_steps(name);
        }
    }

    /// Returns the lane's next read, for the next organization that is below its cap. The other
    /// organizations wait until they are below their caps.
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
        // Other work in the lane can start during the read.
        self.schedule_lane(name);
        Some(Next::Refill { lane: Arc::clone(name), organization, from, most })
    }

    /// Triggers reads of the lanes in which the organization waits, one for each execution that it
    /// may start.
    pub(super) fn wake_organization(&mut self, organization: OrganizationId) {
        if self.organizations.wakes(organization) {
            self.woken.push_back(organization);
        }
    }

    /// Returns the next read for a waiting organization that is below its cap. A lane without a
    /// free permit reads its rows later.
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
