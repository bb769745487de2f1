//! Single-use links: for setting up an organization's dashboard, for joining an organization, and
//! for setting a new password.
//!
//! The token is in the link's fragment, which browsers do not send. The token reaches the service
//! only in the body of the request that uses the link, so the token appears in no log. The store
//! has only the token's hash. A link is valid for a day and can be used once; a newer link for the
//! same purpose revokes it. The records of used links are kept until a day after their expiry, so
//! that a person who opens a used link again sees why the link is invalid.

use std::time::Duration;

use super::{Error, Members, rows};
use orrery_domain::ids::{LinkId, MemberId, OrganizationId};
use orrery_domain::member::{Link, LinkKind, LinkState, Member, MemberRole};
use orrery_domain::time::Timestamp;
use orrery_runtime::new_id;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Table};

/// How long a link is valid.
const VALID: Duration = Duration::from_secs(24 * 3600);
/// How long a link's record is kept after its expiry.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of open invitations per organization.
pub(super) const INVITATIONS_MAX: usize = 100;

/// A new link. The token is stored only here and in the link's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    pub link: Link,
    token: String,
}

impl Issued {
    /// Returns the link's URL, which opens the dashboard at `base`.
    #[must_use]
    pub fn url(&self, base: &str) -> String {
        format!("{base}/{}#{}", self.link.kind.page(), self.token)
    }
}

/// A valid link together with its row's bytes, which must be unchanged in the commit that uses the
/// link.
pub(super) struct Opened {
    pub(super) link: Link,
    key: Key,
    bytes: Vec<u8>,
}

impl Opened {
    /// Marks the link as used in `commit`. If several commits use the link, only the first
    /// succeeds.
    pub(super) fn used_up(self, commit: &mut Commit) -> Result<(), Error> {
        commit.expect(Expect::Equal(self.key.clone(), self.bytes));
        commit.delete(rows::link_of(&self.link));
        commit.put(self.key, &Link { state: LinkState::Used, ..self.link })?;
        Ok(())
    }
}

impl Members {
    /// Creates the link for the organization's Owner: to set up the dashboard or, if there already
    /// is an Owner, to set a new password. Revokes the previous link.
    ///
    /// # Errors
    /// [`Error::Storage`], [`Error::Randomness`].
    pub async fn owner_link(&self, organization: OrganizationId) -> Result<Issued, Error> {
        match self.owner(organization).await? {
            None => self.issue(self.draft(LinkKind::Setup, organization)).await,
            Some(owner) => self.reset_link(organization, owner.id).await,
        }
    }

    /// Creates an invitation link for the organization. Without a role, the person becomes an
    /// editor.
    ///
    /// # Errors
    /// [`Error::OneOwner`], [`Error::InvalidEmail`], [`Error::EmailTaken`], [`Error::TooManyInvitations`],
    /// [`Error::Storage`].
    pub async fn invite(
        &self,
        organization: OrganizationId,
        email: Option<&str>,
        role: Option<MemberRole>,
    ) -> Result<Issued, Error> {
        if role == Some(MemberRole::Owner) {
            return Err(Error::OneOwner);
        }
        if let Some(email) = email {
            super::check_email(email)?;
            if self.by_email(email).await?.is_some() {
                return Err(Error::EmailTaken);
            }
        }
        if self.invitations(organization).await?.len() >= INVITATIONS_MAX {
            return Err(Error::TooManyInvitations);
        }
        let email = email.map(str::to_owned);
        self.issue(Link { email, role, ..self.draft(LinkKind::Invitation, organization) }).await
    }

    /// Creates a link for a member to set a new password.
    ///
    /// # Errors
    /// [`Error::NoMember`], [`Error::NoPassword`], [`Error::Storage`].
    pub async fn reset_link(
        &self,
        organization: OrganizationId,
        member: MemberId,
    ) -> Result<Issued, Error> {
        let member = self.member(organization, member).await?;
        if member.identity.is_some() {
            return Err(Error::NoPassword);
        }
        let draft = self.draft(LinkKind::Reset, organization);
        self.issue(Link { member: Some(member.id), email: Some(member.email), ..draft }).await
    }

    fn draft(&self, kind: LinkKind, organization: OrganizationId) -> Link {
        let now = self.clock.now();
        Link {
            id: new_id(),
            kind,
            organization,
            member: None,
            role: None,
            email: None,
            state: LinkState::Open,
            created_at: now,
            expires_at: now.plus(VALID),
        }
    }

    async fn issue(&self, link: Link) -> Result<Issued, Error> {
        let (token, hash) = rows::new_token()?;
        let place = rows::link_of(&link);
        for _ in 0..storage::TRIES_MAX {
            let mut commit = Commit::new();
            let earlier = self.store.get(&place).await?;
            if let Some(earlier) = &earlier {
                self.withdraw_at(&mut commit, earlier).await?;
            }
            commit.expect(Expect::unchanged(place.clone(), earlier));
            commit.put(rows::link(&hash), &link)?;
            commit.put_bytes(place.clone(), hash.to_vec());
            let role = link.role.map(MemberRole::as_str);
            let words = [Some(link.kind.page()), link.email.as_deref(), role];
            let subject = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
            self.recorder.add(&mut commit, "link.create", subject, link.organization)?;
            if self.store.try_commit(commit).await? {
                return Ok(Issued { link, token });
            }
        }
        Err(Error::Busy)
    }

    /// Revokes the link with this hash in `commit`.
    async fn withdraw_at(&self, commit: &mut Commit, hash: &[u8]) -> Result<(), Error> {
        let key = rows::link(hash);
        if let Some(bytes) = self.store.get(&key).await? {
            let link: Link = decode(&bytes)?;
            commit.expect(Expect::Equal(key.clone(), bytes));
            commit.put(key, &Link { state: LinkState::Withdrawn, ..link })?;
        }
        Ok(())
    }

    /// Lists the open invitations of an organization, oldest first.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn invitations(&self, organization: OrganizationId) -> Result<Vec<Link>, Error> {
        let prefix = rows::links_of(organization, LinkKind::Invitation);
        let hashes = self.store.page(Page::of(prefix, 2 * INVITATIONS_MAX)).await?;
        let links: Vec<Key> = hashes.iter().map(|(_, hash)| rows::link(hash)).collect();
        let now = self.clock.now();
        let mut open = Vec::new();
        for bytes in self.store.get_many(&links).await?.into_iter().flatten() {
            let link: Link = decode(&bytes)?;
            if link.state == LinkState::Open && link.expires_at > now {
                open.push(link);
            }
        }
        Ok(open)
    }

    /// Revokes an invitation.
    ///
    /// # Errors
    /// [`Error::NoInvitation`], [`Error::Storage`].
    pub async fn withdraw_invitation(
        &self,
        organization: OrganizationId,
        id: LinkId,
    ) -> Result<(), Error> {
        let place = rows::links_of(organization, LinkKind::Invitation).id(id);
        let hash = self.store.get(&place).await?.ok_or(Error::NoInvitation)?;
        let link: Option<Link> = self.store.read(&rows::link(&hash)).await?;
        let email = link.and_then(|link| link.email).unwrap_or_default();
        let mut commit = Commit::new();
        self.withdraw_at(&mut commit, &hash).await?;
        commit.expect(Expect::Equal(place.clone(), hash)).delete(place);
        let subject = format!("{id} {email}");
        self.recorder.add(&mut commit, "link.delete", subject.trim_end(), organization)?;
        self.store.commit_or(commit, Error::NoInvitation).await
    }

    /// Returns the link with this token, if it is still valid.
    ///
    /// # Errors
    /// [`Error::LinkUnknown`], [`Error::LinkUsed`], [`Error::LinkWithdrawn`],
    /// [`Error::LinkExpired`], [`Error::Storage`].
    pub async fn link(&self, token: &str) -> Result<Link, Error> {
        Ok(self.opened(token, None).await?.link)
    }

    /// Returns a valid link with its row. If `kind` is given, the link must be of that kind.
    pub(super) async fn opened(
        &self,
        token: &str,
        kind: Option<LinkKind>,
    ) -> Result<Opened, Error> {
        let hash = rows::token_hash(token).ok_or(Error::LinkUnknown)?;
        let key = rows::link(&hash);
        let bytes = self.store.get(&key).await?.ok_or(Error::LinkUnknown)?;
        let link: Link = decode(&bytes)?;
        if kind.is_some_and(|kind| kind != link.kind) {
            return Err(Error::LinkUnknown);
        }
        match link.state {
            LinkState::Used => return Err(Error::LinkUsed),
            LinkState::Withdrawn => return Err(Error::LinkWithdrawn),
            LinkState::Open => {}
        }
        if link.expires_at <= self.clock.now() {
            return Err(Error::LinkExpired);
        }
        Ok(Opened { link, key, bytes })
    }

    pub(super) async fn sweep_links(&self) -> Result<usize, Error> {
        let mut swept = 0;
        let mut scan = self.store.scan(Key::table(Table::Link));
        while let Some((key, bytes)) = scan.next().await? {
            let link: Link = decode(&bytes)?;
            if self.clock.now() < expiry_of_record(&link) {
                continue;
            }
            let place = rows::link_of(&link);
            let hash = super::sessions::hash_of(&key).to_vec();
            let mut commit = Commit::new();
            if self.store.get(&place).await?.as_ref() == Some(&hash) {
                commit.expect(Expect::Equal(place.clone(), hash)).delete(place);
            }
            commit.expect(Expect::Equal(key.clone(), bytes)).delete(key);
            swept += usize::from(self.store.try_commit(commit).await?);
        }
        Ok(swept)
    }

    /// Revokes, in `commit`, all links for setting this member's password.
    pub(super) async fn withdraw_resets(
        &self,
        commit: &mut Commit,
        member: &Member,
    ) -> Result<(), Error> {
        let place = rows::links_of(member.organization, LinkKind::Reset).id(member.id);
        if let Some(hash) = self.store.get(&place).await? {
            self.withdraw_at(commit, &hash).await?;
            commit.expect(Expect::Equal(place.clone(), hash)).delete(place);
        }
        Ok(())
    }
}

fn expiry_of_record(link: &Link) -> Timestamp {
    link.expires_at.plus(KEPT)
}
