//! Erasure of all data about the members of a deleted organization.

use super::{Error, Members, external, rows};
use orrery_domain::ids::OrganizationId;
use orrery_domain::member::{Link, Member};
use orrery_storage::record::decode;
use orrery_storage::{Commit, Page};

/// Number of members per commit.
const BATCH_MAX: usize = 64;

impl Members {
    /// Deletes an organization's members, including the Owner, with their sessions and all links.
    ///
    /// # Errors
    /// [`Error::Storage`]; some of the data may then be left.
    pub async fn erase(&self, organization: OrganizationId) -> Result<(), Error> {
        loop {
            let page = Page::of(rows::members(organization), BATCH_MAX);
            let found = self.store.page(page).await?;
            let mut commit = Commit::new();
            for (key, bytes) in &found {
                let member: Member = decode(bytes)?;
                commit.delete(key.clone()).delete(rows::email(&member.email));
                external::forget(&mut commit, &member);
                let sessions = self.store.scan(rows::sessions_of(member.id)).next_page().await?;
                for (of_member, _) in sessions.unwrap_or_default() {
                    if let Some(hash) = of_member.as_bytes().last_chunk::<32>() {
                        commit.delete(rows::session(hash));
                    }
                    commit.delete(of_member);
                }
            }
            if found.is_empty() {
                break;
            }
            self.store.commit(commit).await?;
        }
        // Links that were used or revoked are not indexed by organization, so all links are
        // scanned.
        let mut scan = self.store.scan(rows::links());
        while let Some((key, bytes)) = scan.next().await? {
            let link: Link = decode(&bytes)?;
            if link.organization == organization {
                let mut commit = Commit::new();
                commit.delete(key).delete(rows::link_of(&link));
                self.store.commit(commit).await?;
            }
        }
        let mut commit = Commit::new();
        commit.delete(rows::owner(organization));
        self.store.commit(commit).await?;
        self.changed.send_replace(());
        Ok(())
    }
}
