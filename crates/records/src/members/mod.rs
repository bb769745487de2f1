//! Members: the people who use the dashboard. This module handles how members join, log in and
//! leave, and the permissions of members.
//!
//! Each member belongs to one organization, and each organization has exactly one Owner. The
//! permission 'Can manage API keys' only allows creating and deleting API keys; the Owner always
//! has this permission. This module is independent of HTTP. This module never deletes a key,
//! because keys belong to the organization.

mod erasure;
mod external;
mod followers;
mod links;
mod passwords;
mod rows;
mod second_factor;
mod sessions;
mod throttle;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use self::external::External;
use self::followers::Followers;
pub use self::followers::StreamPlace;
pub use self::links::Issued;
use self::passwords::Passwords;
pub use self::second_factor::{Enrolment, code_at, reseal};
pub use self::sessions::{By, LogIn, OpenSession, Visit};
use self::throttle::Throttle;
use crate::audit::{Actor, Recorder};
use orrery_domain::ids::{MemberId, OrganizationId};
use orrery_domain::member::{
    EMAIL_MAX, Link, LinkKind, Member, MemberRole, NAME_MAX, Origin, is_email,
};
use orrery_runtime::{Clock, new_id};
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Change, Commit, Key, Page, Sealer, Store, Table};

/// Maximum number of members of an organization.
const MEMBERS_MAX: usize = 1000;

/// Errors of member operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the email address or the password is wrong")]
    WrongPassword,
    #[error("enter the code of your authenticator app")]
    CodeNeeded,
    #[error("the code is wrong, or it was used already: wait for the next one")]
    WrongCode,
    #[error("a second factor is set up already; remove it first")]
    HasSecondFactor,
    #[error("no second factor is set up")]
    NoSecondFactor,
    #[error("this member has no password: the log-in is through the identity provider")]
    NoPassword,
    #[error("the groups at the identity provider decide the role of this member")]
    RoleFromGroups,
    #[error("session not found")]
    NoSession,
    #[error("too many attempts to log in: wait a moment and try again")]
    TooManyAttempts(Duration),
    #[error("too many people are logging in at this moment; try again")]
    Busy,
    #[error("a name must have 1 to {NAME_MAX} characters and no control characters")]
    InvalidName,
    #[error("this is not an email address, such as ada@example.com")]
    InvalidEmail,
    #[error(
        "a password must have {} to {} bytes",
        passwords::PASSWORD_MIN,
        passwords::PASSWORD_MAX
    )]
    PasswordLength,
    #[error("a member with this email address already exists")]
    EmailTaken,
    #[error("the organization has {MEMBERS_MAX} members; remove one first")]
    TooManyMembers,
    #[error("there are {} open invitations; withdraw one first", links::INVITATIONS_MAX)]
    TooManyInvitations,
    #[error("member not found")]
    NoMember,
    #[error("invitation not found")]
    NoInvitation,
    #[error("the Owner always has every permission and cannot be removed")]
    OwnerStays,
    #[error("an organization has one Owner: choose the role editor, operator or viewer")]
    OneOwner,
    #[error("this link is not valid: check that it was copied completely")]
    LinkUnknown,
    #[error("this link was used already")]
    LinkUsed,
    #[error("this link was withdrawn, or a newer one replaces it")]
    LinkWithdrawn,
    #[error("this link has expired: links work for 24 hours")]
    LinkExpired,
    #[error("a password could not be hashed: {0}")]
    Hash(String),
    #[error(transparent)]
    Randomness(#[from] orrery_runtime::NoRandomness),
    #[error(transparent)]
    Seal(#[from] storage::SealError),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The lifetime of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Maximum time without a request.
    pub session_idle: Duration,
    /// Maximum lifetime.
    pub session_max: Duration,
    /// Whether members who log in with a password must set up a second factor.
    pub require_second_factor: bool,
}

/// A change of what a member may do. `None` leaves it as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessChange {
    pub role: Option<MemberRole>,
    /// The permission 'Can manage API keys'.
    pub api_key_access: Option<bool>,
}

/// The data that a new member enters.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer<'a> {
    pub name: &'a str,
    pub email: &'a str,
    pub password: &'a str,
}

/// The members of all organizations. Clones share the login throttle.
#[derive(Debug, Clone)]
pub struct Members {
    store: Store,
    sealer: Sealer,
    clock: Clock,
    options: Options,
    passwords: Passwords,
    throttle: Arc<Throttle>,
    /// Notified whenever a session ends or a member changes, so that streams check their sessions
    /// again.
    changed: Arc<watch::Sender<()>>,
    recorder: Recorder,
    followers: Arc<Followers>,
}

impl Members {
    /// Opens the members in a store.
    #[must_use]
    pub fn new(store: Store, sealer: Sealer, clock: Clock, options: Options) -> Self {
        let recorder = Recorder::new(clock.clone());
        let changed = Arc::new(watch::Sender::new(()));
        let passwords = Passwords::new();
        let throttle = Arc::new(Throttle::new());
        let followers = Arc::default();
        Self { store, sealer, clock, options, passwords, throttle, changed, recorder, followers }
    }

    /// Returns the same members with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Returns the maximum lifetime of a session.
    #[must_use]
    pub const fn session_max(&self) -> Duration {
        self.options.session_max
    }

    /// Returns whether any organization has an Owner. Until then, nobody can log in.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn is_set_up(&self) -> Result<bool, Error> {
        Ok(self.store.has_any(Key::table(Table::Owner)).await?)
    }

    /// Returns the organization's Owner.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn owner(&self, organization: OrganizationId) -> Result<Option<Member>, Error> {
        let Some(id) = self.store.get(&rows::owner(organization)).await? else { return Ok(None) };
        let Ok(id) = <[u8; 16]>::try_from(id.as_slice()) else { return Ok(None) };
        Ok(self.store.read(&rows::member(organization, id.into())).await?)
    }

    /// Creates the organization's Owner with a set-up link, and opens a session. The returned
    /// string is the session's token.
    ///
    /// # Errors
    /// An error about a field of [`Newcomer`], about the link, or from the store.
    pub async fn set_up(
        &self,
        token: &str,
        new: Newcomer<'_>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        self.join(token, LinkKind::Setup, new, origin).await
    }

    /// Creates a member with an invitation, and opens a session. The returned string is the
    /// session's token.
    ///
    /// # Errors
    /// As [`Members::set_up`].
    pub async fn accept(
        &self,
        token: &str,
        new: Newcomer<'_>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        self.join(token, LinkKind::Invitation, new, origin).await
    }

    async fn join(
        &self,
        token: &str,
        kind: LinkKind,
        new: Newcomer<'_>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        let name = new.name.trim();
        check_name(name)?;
        check_email(new.email)?;
        let organization = self.opened(token, Some(kind)).await?.link.organization;
        if self.count(organization).await? >= MEMBERS_MAX {
            return Err(Error::TooManyMembers);
        }
        if self.by_email(new.email).await?.is_some() {
            return Err(Error::EmailTaken);
        }
        let password = self.passwords.hash(new.password).await?;
        // The link is checked again, because hashing takes a while and the link must still be valid
        // afterward.
        let opened = self.opened(token, Some(kind)).await?;
        let role = match kind {
            LinkKind::Setup => MemberRole::Owner,
            LinkKind::Invitation | LinkKind::Reset => {
                opened.link.role.unwrap_or(MemberRole::Editor)
            }
        };
        let member = Member {
            id: new_id(),
            organization,
            name: name.to_owned(),
            email: new.email.to_owned(),
            role,
            api_key_access: role == MemberRole::Owner,
            password,
            identity: None,
            second_factor: None,
            epoch: 0,
            created_at: self.clock.now(),
            last_seen_at: None,
        };
        let by_email = rows::email(&member.email);
        let mut commit = Commit::new();
        if role == MemberRole::Owner {
            let owner = rows::owner(organization);
            commit.expect(Expect::Absent(owner.clone()));
            commit.put_bytes(owner, id_bytes(member.id));
        }
        commit.expect(Expect::Absent(by_email.clone()));
        commit.put_bytes(by_email, [id_bytes(organization), id_bytes(member.id)].concat());
        commit.put(rows::member(organization, member.id), &member)?;
        opened.used_up(&mut commit)?;
        let recorder = self.recorder.by(Actor::member(&member.email, None));
        recorder.add(&mut commit, "member.create", &member.email, organization)?;
        if !self.store.try_commit(commit).await? {
            // The link or the email address has been used in the meantime.
            self.opened(token, Some(kind)).await?;
            return Err(Error::EmailTaken);
        }
        let token =
            self.by(Actor::member(&member.email, None)).open_session(&member, origin).await?;
        Ok((member, token))
    }

    /// Sets a member's password with a link; a member with a second factor also needs a code. All of the member's sessions end, and a new session is
    /// opened. The returned string is the new session's token. A member can therefore log in with a
    /// link even while an attack causes the account's logins to be throttled.
    ///
    /// # Errors
    /// [`Error::PasswordLength`], [`Error::CodeNeeded`], [`Error::WrongCode`],
    /// [`Error::TooManyAttempts`], or an error about the link or from the store.
    pub async fn reset(
        &self,
        token: &str,
        password: &str,
        code: Option<&str>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        let Link { organization, member, .. } =
            self.opened(token, Some(LinkKind::Reset)).await?.link;
        let key = rows::member(organization, member.ok_or(Error::LinkUnknown)?);
        passwords::check_length(password)?;
        let held = self.store.read::<Member>(&key).await?.ok_or(Error::LinkWithdrawn)?;
        let account = rows::account_of(&held.email);
        self.throttled(account, origin.address, self.check_code(held, code)).await?;
        let password = &self.passwords.hash(password).await?;
        let reset = |member: Option<Member>| async move {
            // The link must still be valid after the password has been hashed, which takes a while.
            let opened = self.opened(token, Some(LinkKind::Reset)).await?;
            let member = member.ok_or(Error::LinkWithdrawn)?;
            let epoch = member.epoch.saturating_add(1);
            let member = Member { password: password.clone(), epoch, ..member };
            let mut commit = Commit::new();
            opened.used_up(&mut commit)?;
            let recorder = self.recorder.by(Actor::member(&member.email, None));
            recorder.add(&mut commit, "member.password", &member.email, organization)?;
            Ok::<_, Error>(Change::Put(member, commit))
        };
        let member = self.store.update(&key, reset).await?;
        self.changed.send_replace(());
        let session =
            self.by(Actor::member(&member.email, None)).open_session(&member, origin).await?;
        Ok((member, session))
    }

    /// Changes a member's password, given the current password. All of the member's sessions end,
    /// and a new session is opened. The returned string is the new session's token.
    ///
    /// # Errors
    /// [`Error::WrongPassword`], [`Error::TooManyAttempts`], [`Error::PasswordLength`],
    /// [`Error::Busy`], [`Error::Storage`].
    pub async fn change_password(
        &self,
        member: &Member,
        current: &str,
        password: &str,
        origin: Origin,
    ) -> Result<String, Error> {
        let (account, from) = (rows::account_of(&member.email), origin.address);
        self.throttled(account, from, self.verify(Some(member), current, from)).await?;
        let hash = self.passwords.hash(password).await?;
        let before = member.epoch;
        let changed = self.change(member.organization, member.id, "member.password", |now| {
            if now.epoch != before {
                return Err(Error::WrongPassword);
            }
            Ok(Member { password: hash.clone(), epoch: before.saturating_add(1), ..now })
        });
        let changed = changed.await?;
        self.open_session(&changed, origin).await
    }

    /// Lists the members of an organization, oldest first.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(&self, organization: OrganizationId) -> Result<Vec<Member>, Error> {
        let page = Page::of(Key::table(Table::Member).id(organization), MEMBERS_MAX);
        Ok(self.store.records(page).await?)
    }

    async fn count(&self, organization: OrganizationId) -> Result<usize, Error> {
        Ok(self.list(organization).await?.len())
    }

    /// Returns one of an organization's members.
    ///
    /// # Errors
    /// [`Error::NoMember`], [`Error::Storage`].
    pub async fn member(
        &self,
        organization: OrganizationId,
        id: MemberId,
    ) -> Result<Member, Error> {
        self.store.read(&rows::member(organization, id)).await?.ok_or(Error::NoMember)
    }

    async fn by_email(&self, email: &str) -> Result<Option<Member>, Error> {
        if email.len() > EMAIL_MAX || email.contains('\0') {
            return Ok(None);
        }
        let Some(ids) = self.store.get(&rows::email(email)).await? else { return Ok(None) };
        self.of_ids(&ids).await
    }

    /// Changes a member's role, or grants or revokes the permission 'Can manage API keys'. Keys do
    /// not change.
    ///
    /// # Errors
    /// [`Error::NoMember`]; [`Error::OwnerStays`]; [`Error::OneOwner`]; [`Error::RoleFromGroups`];
    /// [`Error::Storage`].
    pub async fn set_access(
        &self,
        organization: OrganizationId,
        id: MemberId,
        access: AccessChange,
    ) -> Result<Member, Error> {
        let AccessChange { role, api_key_access } = access;
        if role == Some(MemberRole::Owner) {
            return Err(Error::OneOwner);
        }
        let change = |member: Option<Member>| async move {
            let mut member = member.ok_or(Error::NoMember)?;
            if member.is_owner() {
                return Err(Error::OwnerStays);
            }
            let mut commit = Commit::new();
            if let Some(allowed) = api_key_access {
                let action = if allowed { "member.allow_keys" } else { "member.deny_keys" };
                self.recorder.add(&mut commit, action, &member.email, organization)?;
                member.api_key_access = allowed;
            }
            if let Some(role) = role {
                if member.identity.is_some() {
                    return Err(Error::RoleFromGroups);
                }
                let subject = format!("{} {}", member.email, role.as_str());
                self.recorder.add(&mut commit, "member.role", subject, organization)?;
                member.role = role;
            }
            Ok::<_, Error>(Change::Put(member, commit))
        };
        let member = self.store.update(&rows::member(organization, id), change).await?;
        self.changed.send_replace(());
        Ok(member)
    }

    async fn change(
        &self,
        organization: OrganizationId,
        id: MemberId,
        action: &str,
        changed: impl Fn(Member) -> Result<Member, Error> + Sync,
    ) -> Result<Member, Error> {
        let changed = &changed;
        let change = |member: Option<Member>| async move {
            let member = changed(member.ok_or(Error::NoMember)?)?;
            let mut commit = Commit::new();
            self.recorder.add(&mut commit, action, &member.email, organization)?;
            Ok::<_, Error>(Change::Put(member, commit))
        };
        let member = self.store.update(&rows::member(organization, id), change).await?;
        self.changed.send_replace(());
        Ok(member)
    }

    /// Removes a member. The member's sessions end; keys that the member created remain.
    ///
    /// # Errors
    /// [`Error::NoMember`]; [`Error::OwnerStays`]; [`Error::Storage`].
    pub async fn remove(&self, organization: OrganizationId, id: MemberId) -> Result<(), Error> {
        let remove = |member: Option<Member>| async move {
            let member = member.ok_or(Error::NoMember)?;
            if member.is_owner() {
                return Err(Error::OwnerStays);
            }
            let mut commit = Commit::new();
            // Without the member, the sessions are no longer valid; a sweep removes their rows.
            commit.delete(rows::email(&member.email));
            external::forget(&mut commit, &member);
            self.withdraw_resets(&mut commit, &member).await?;
            self.recorder.add(&mut commit, "member.delete", &member.email, organization)?;
            Ok::<_, Error>(Change::Delete(member, commit))
        };
        self.store.update(&rows::member(organization, id), remove).await?;
        self.changed.send_replace(());
        Ok(())
    }
}

fn id_bytes<T: orrery_domain::ids::Id>(id: T) -> Vec<u8> {
    id.bytes().to_vec()
}

fn check_name(name: &str) -> Result<(), Error> {
    let length = name.chars().count();
    if length == 0 || length > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Error::InvalidName);
    }
    Ok(())
}

fn check_email(email: &str) -> Result<(), Error> {
    if !is_email(email) || email.len() > EMAIL_MAX {
        return Err(Error::InvalidEmail);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
