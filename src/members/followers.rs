//! The streams of changes that members hold open: a few for each, so that no member takes the places of all.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Members, Visit};
use crate::domain::ids::MemberId;

/// Streams of one member. A browser holds one for all of its windows, so this is a number of browsers.
pub const STREAMS_MAX: usize = 8;

type Open = HashMap<MemberId, VecDeque<Arc<Notify>>>;

/// The open streams of all members, oldest first.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<Open>);

/// The place of one stream; it is free when this is dropped.
#[derive(Debug)]
pub struct StreamPlace {
    followers: Arc<Followers>,
    member: MemberId,
    replaced: Arc<Notify>,
}

impl Followers {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    /// A place for one more stream of the member. The oldest of more than [`STREAMS_MAX`] is replaced: people
    /// look at what they have opened last.
    #[must_use]
    pub fn follow(&self, visit: &Visit) -> StreamPlace {
        let member = visit.member.id;
        let replaced = Arc::new(Notify::new());
        let mut open = self.followers.open();
        let own = open.entry(member).or_default();
        if own.len() >= STREAMS_MAX
            && let Some(oldest) = own.pop_front()
        {
            oldest.notify_one();
        }
        own.push_back(Arc::clone(&replaced));
        StreamPlace { followers: Arc::clone(&self.followers), member, replaced }
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
        let Some(own) = open.get_mut(&self.member) else { return };
        own.retain(|one| !Arc::ptr_eq(one, &self.replaced));
        if own.is_empty() {
            open.remove(&self.member);
        }
    }
}
