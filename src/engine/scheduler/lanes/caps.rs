//! Caps of organizations over all lanes: whose tickets are passed over, and when their lanes are read for
//! them again.
//!
//! Nothing here counts: see `organizations`. Nothing here starts: a lane whose window has the tickets
//! again takes its turn as any other.

use std::sync::Arc;

use super::lane::Lane;
use super::{Full, Lanes, Next, OrganizationLoad, Ticket, WINDOW};
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

    /// Whether a refill of the lane's head, which has taken so many of this organization, takes this row
    /// too. One that may not start is passed over.
    pub fn takes(
        &mut self,
        name: &str,
        (organization, id): (OrganizationId, ExecutionId),
        taken: usize,
    ) -> bool {
        let room = self.organizations.room(organization);
        let Some((name, _)) = self.lanes.get_key_value(name) else { return false };
        let name = Arc::clone(name);
        let Some(lane) = self.lanes.get_mut(&name) else { return false };
        if taken < room && !lane.has_passed(organization) {
            return true;
        }
        if lane.pass(organization, id) {
            self.organizations.wait_in(organization, name);
        }
        false
    }

    /// Rows of an organization that had been passed over, oldest first, and from where there may be more
    /// of them.
    pub fn refilled_of(
        &mut self,
        name: &str,
        organization: OrganizationId,
        rows: Vec<Ticket<T>>,
        more_from: Option<ExecutionId>,
    ) {
        self.organizations.end_reading(organization);
        if let Some((held, _)) = self.lanes.get_key_value(name) {
            let held = Arc::clone(held);
            if let Some(lane) = self.lanes.get_mut(name)
                && lane.refilled_of(organization, rows, more_from)
            {
                self.organizations.wait_in(organization, held);
            }
        }
        self.schedule_lane(name);
        for other in self.lanes.get(name).map(Lane::passed).unwrap_or_default() {
            if other != organization {
                self.wake_organization(other);
            }
        }
        // What starts from this lane wakes the next one.
        let starts_here = |lane: &Lane<T, G>| lane.can_start() && lane.has_in_window(organization);
        if !self.lanes.get(name).is_some_and(starts_here) {
            self.wake_organization(organization);
        }
    }

    /// Tickets at the head of a window whose organizations may run no more leave it to the others.
    pub(super) fn pass_blocked(&mut self, name: &Arc<str>) {
        let mut has_passed = false;
        while let Some(lane) = self.lanes.get_mut(name).filter(|lane| lane.can_start())
            && let Some(organization) = lane.next_organization()
            && self.organizations.room(organization) == 0
        {
            if lane.pass_first_of(organization) {
                self.organizations.wait_in(organization, Arc::clone(name));
            }
            has_passed = true;
        }
        if has_passed {
            // They were before the guests.
            self.wake_steps(name);
        }
    }

    /// Notes where organizations wait whose rows were left to the disk.
    pub(super) fn note_passed(&mut self, name: &str) {
        let passed = self.lanes.get_mut(name).map(|lane| std::mem::take(&mut lane.newly_passed));
        let Some((name, _)) = self.lanes.get_key_value(name) else { return };
        for organization in passed.into_iter().flatten() {
            self.organizations.wait_in(organization, Arc::clone(name));
        }
    }

    /// Has as many lanes of the organization read as it may start executions.
    pub(super) fn wake_organization(&mut self, organization: OrganizationId) {
        let mut room = self.organizations.room_to_read(organization);
        for _ in 0..self.organizations.waiting(organization) {
            if room == 0 {
                return;
            }
            let Some(name) = self.organizations.next_waiting(organization) else { return };
            match self.lanes.get(&name) {
                Some(lane) if lane.wants_passed(organization) => {
                    self.organizations.begin_reading(organization);
                    self.passed_turn.push_back((name, organization));
                    room = room.saturating_sub(1);
                }
                Some(lane) if lane.has_passed(organization) => {
                    self.organizations.wait_in(organization, name);
                }
                // What was passed over was read, or deleted with its lane.
                Some(_) | None => {}
            }
        }
    }

    /// The lane may have a place for organizations that wait in it.
    pub(super) fn wake_passed(&mut self, name: &str) {
        let passed = self.lanes.get(name).map(Lane::passed).unwrap_or_default();
        for organization in passed {
            self.wake_organization(organization);
        }
    }

    /// The next lane to be read for one organization.
    pub(super) fn next_passed(&mut self) -> Option<Next<T, G>> {
        while let Some((name, organization)) = self.passed_turn.pop_front() {
            let room = self.organizations.room(organization);
            let lane = self.lanes.get_mut(&name);
            if let Some(lane) = lane.filter(|lane| room > 0 && lane.wants_passed(organization))
                && let Some(from) = lane.begin_refill_of(organization)
            {
                let most = room.min(WINDOW);
                return Some(Next::RefillOf { lane: name, organization, from, most });
            }
            self.organizations.end_reading(organization);
            if self.lanes.get(&name).is_some_and(|lane| lane.has_passed(organization)) {
                self.organizations.wait_in(organization, name);
            }
            // Another lane may have a place.
            self.wake_organization(organization);
        }
        None
    }
}
