//! Whether the key or the member behind a signed link or an open stream still exists.

use std::sync::PoisonError;
use std::time::Duration;

use super::{Accounts, CACHED_KEYS, Error};
use crate::signed_urls;
use orrery_domain::account::dashboard_key;
use orrery_domain::ids::{Id as _, KeyId, MemberId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::{Key, Table};

/// How often a stream that was opened with a key checks that the key still exists.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The part of a key's record that links need; the key existed when it was looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    organization: OrganizationId,
    expires_at: Option<Timestamp>,
}

impl Accounts {
    /// Returns a key that exists and has not expired. The dashboard's own key always exists. In
    /// place of a key's ID, a link may contain a member's ID.
    async fn live_key(
        &self,
        organization: OrganizationId,
        id: KeyId,
    ) -> Result<Option<Live>, Error> {
        if id == dashboard_key(organization) {
            return Ok(Some(Live { organization, expires_at: None }));
        }
        let (held, deletions) = {
            let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
            (cache.live.get(&id).copied(), cache.deletions)
        };
        let live = match held {
            Some(live) => Some(live),
            None => {
                let key = self.key(organization, id).await?;
                let live = key.map(|key| Live { organization, expires_at: key.expires_at });
                if live.is_none() && self.has_member(organization, id).await? {
                    // A member is not cached, because removing a member does not clear the cache.
                    return Ok(Some(Live { organization, expires_at: None }));
                }
                let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(live) = live
                    && cache.deletions == deletions
                {
                    if cache.live.len() >= CACHED_KEYS {
                        cache.live.clear();
                    }
                    cache.live.insert(id, live);
                }
                live
            }
        };
        let now = self.clock.now();
        let has_expired = |live: &Live| live.expires_at.is_some_and(|end| end <= now);
        Ok(live.filter(|live| live.organization == organization && !has_expired(live)))
    }

    /// Makes streams that were opened with a link check again whether its key or member exists.
    pub fn recheck_links(&self) {
        self.deleted.send_replace(());
    }

    async fn has_member(&self, organization: OrganizationId, id: KeyId) -> Result<bool, Error> {
        let member = MemberId::from(id.bytes());
        let row = Key::table(Table::Member).id(organization).id(member);
        Ok(self.store.get(&row).await?.is_some())
    }

    /// Resolves when the key is deleted or expires. While the store cannot be read, the key counts
    /// as existing.
    pub async fn ended(&self, organization: OrganizationId, id: KeyId) {
        let mut deleted = self.deleted.subscribe();
        loop {
            deleted.borrow_and_update();
            let expires_at = match self.live_key(organization, id).await {
                Ok(None) => return,
                Ok(Some(live)) => live.expires_at,
                Err(_unreadable) => None,
            };
            let left = expires_at.map_or(LOOK_AGAIN, |end| end.since(self.clock.now()));
            tokio::select! {
                change = deleted.changed() => if change.is_err() { return },
                () = tokio::time::sleep(left.min(LOOK_AGAIN)) => {}
            }
        }
    }
}

impl signed_urls::Keys for Accounts {
    fn is_live(&self, organization: OrganizationId, key: KeyId) -> signed_urls::KeyLookup<'_> {
        Box::pin(async move {
            match self.live_key(organization, key).await {
                Ok(live) => Ok(live.is_some()),
                Err(Error::Storage(error)) => Err(error),
                Err(_never) => Ok(false),
            }
        })
    }
}
