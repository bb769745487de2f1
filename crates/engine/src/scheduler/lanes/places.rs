//! Starts beyond the total number of permits: decides which lanes and organizations may start an
//! execution although all permits are taken.

use std::sync::Arc;

use super::{Lanes, Next, OWN_PLACES};
use orrery_domain::ids::OrganizationId;

impl<T, G> Lanes<T, G> {
    /// Returns the next start that is allowed although all permits are taken. All other work waits
    /// for a free permit.
    pub(super) fn next_without_place(&mut self) -> Option<Next<T, G>> {
        loop {
            while let Some(name) = self.idle_schedule.pop_front() {
                let Some(lane) = self.lanes.get_mut(&name) else { continue };
                lane.in_idle_turn = false;
                if let Some(next) = self.next_of(&name) {
                    return Some(next);
                }
            }
            if self.relieved.is_empty() {
                return None;
            }
            let relieved = std::mem::take(&mut self.relieved);
            let lanes = self.lanes.iter();
            let lanes = lanes.filter(|(_, lane)| lane.has_one(|one| relieved.contains(&one)));
            let names: Vec<_> = lanes.map(|(name, _)| Arc::clone(name)).collect();
            for name in names {
                self.schedule_lane(&name);
            }
        }
    }

    /// Returns the organization that may start the next execution in a lane.
    pub(super) fn whose_turn(&self, name: &str) -> Option<OrganizationId> {
        let lane = self.lanes.get(name)?;
        let needs_own = self.is_full() && !lane.is_idle();
        lane.next_among(|one| !needs_own || self.has_own_place(one))
    }

    /// Whether an organization may start an execution although all permits are taken.
    pub(super) fn has_own_place(&self, organization: OrganizationId) -> bool {
        let own = OWN_PLACES.min(self.active_cap.div_ceil(4));
        self.organizations.runs_fewer(organization, own)
    }

    /// Records that an organization has fewer running or parked executions than before. The
    /// organization's work may be waiting in lanes that no other event would schedule.
    pub(super) fn relieve(&mut self, organization: OrganizationId) {
        let waits = self.organizations.load(organization).queued > 0;
        if waits && self.has_own_place(organization) {
            self.relieved.insert(organization);
        }
    }
}
