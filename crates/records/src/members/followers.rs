//! Open event streams. The number of streams is limited for each member, so that no member uses up
//! the organization's streams.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Members, Visit};
use orrery_domain::ids::{MemberId, OrganizationId};
use orrery_domain::member::Member;

/// Maximum number of streams per member. All windows of a browser share one stream, so this is also
/// the maximum number of browsers that a member can use at the same time.
pub(super) const STREAMS_MAX: usize = 8;
/// Maximum number of streams for all members of an organization together.
pub(super) const STREAMS_OF_ORGANIZATION_MAX: usize = 256;

/// The open streams, by organization and member, oldest first.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<HashMap<OrganizationId, OfMembers>>);

type OfMembers = HashMap<MemberId, VecDeque<Arc<Notify>>>;

/// A slot for one stream, released on drop.
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
    /// Opens another stream for the member; returns `None` if the organization has too many
    /// streams. If the member already has [`STREAMS_MAX`] streams, the new stream replaces the
    /// oldest one, because people use the window that they opened last.
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
    /// Resolves when one of the member's newer streams has replaced this stream.
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
