//! The streams of changes that members hold open: a few for each, so that no member takes the places of all.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Members, Visit};
use crate::domain::ids::{MemberId, OrganizationId};
use crate::domain::member::Member;

/// The maximum number of streams of one member. A browser shares one stream between all of its
/// windows, so this is also the maximum number of browsers.
pub const STREAMS_MAX: usize = 8;
/// Streams of one organization's members together.
pub const STREAMS_OF_ORGANIZATION_MAX: usize = 256;

/// The open streams, by organization and member, oldest first.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<HashMap<OrganizationId, OfMembers>>);

type OfMembers = HashMap<MemberId, VecDeque<Arc<Notify>>>;

/// The place of one stream; it is free when this is dropped.
#[derive(Debug)]
pub struct StreamPlace {
    followers: Arc<Followers>,
    organization: OrganizationId,
    member: MemberId,
    replaced: Arc<Notify>,
}

impl Followers {
    fn open(&self) -> MutexGuard<'_, HashMap<OrganizationId, OfMembers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// A place for one more stream of the member; `None` where the organization has too many. The oldest of
    /// more than [`STREAMS_MAX`] is replaced: people look at what they have opened last.
    #[must_use]
    pub fn follow(&self, visit: &Visit) -> Option<StreamPlace> {
        let Member { organization, id: member, .. } = visit.member;
        let mut open = self.followers.open();
        let of_members = open.entry(organization).or_default();
        let own = of_members.get(&member).map_or(0, VecDeque::len);
        let all: usize = of_members.values().map(VecDeque::len).sum();
        if own < STREAMS_MAX && all >= STREAMS_OF_ORGANIZATION_MAX {
            return None;
        }
        let replaced = Arc::new(Notify::new());
        let streams = of_members.entry(member).or_default();
        if own >= STREAMS_MAX
            && let Some(oldest) = streams.pop_front()
        {
            oldest.notify_one();
        }
        streams.push_back(Arc::clone(&replaced));
        let followers = Arc::clone(&self.followers);
        Some(StreamPlace { followers, organization, member, replaced })
    }
}

impl StreamPlace {
    /// Resolves when a newer stream of the member has taken the place.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.followers.open();
        let Some(of_members) = open.get_mut(&self.organization) else { return };
        if let Some(streams) = of_members.get_mut(&self.member) {
            streams.retain(|one| !Arc::ptr_eq(one, &self.replaced));
        }
        of_members.retain(|_, streams| !streams.is_empty());
        if of_members.is_empty() {
            open.remove(&self.organization);
        }
    }
}
