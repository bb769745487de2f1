//! Members who log in through an identity provider. Issuer and subject identify the person; the
//! email address only names the member, because a provider may change it or give it to someone else.

use std::net::IpAddr;
use std::time::Duration;

use super::{Error, MEMBERS_MAX, Members, check_email, check_name, id_bytes, rows};
use crate::audit::Actor;
use orrery_domain::ids::OrganizationId;
use orrery_domain::member::{Identity, Member, MemberRole, NAME_MAX, Origin};
use orrery_runtime::new_id;
use orrery_storage::Commit;
use orrery_storage::commit::Expect;

/// How long a session lasts until the provider must confirm the person's groups again.
const RENEW_AFTER: Duration = Duration::from_secs(3600);

/// A person whom the identity provider has identified.
#[derive(Debug, Clone, Copy)]
pub struct External<'a> {
    pub organization: OrganizationId,
    pub issuer: &'a str,
    pub subject: &'a str,
    pub email: &'a str,
    pub name: &'a str,
    pub role: MemberRole,
}

impl Members {
    /// Returns the member with this identity.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn external(&self, issuer: &str, subject: &str) -> Result<Option<Member>, Error> {
        let Some(ids) = self.store.get(&rows::identity(issuer, subject)).await? else {
            return Ok(None);
        };
        self.of_ids(&ids).await
    }

    /// Opens a session for a person whom the identity provider has identified, and creates the
    /// member at the first log-in. The session ends after an hour. The returned string is its
    /// token.
    ///
    /// # Errors
    /// [`Error::EmailTaken`]; [`Error::TooManyMembers`]; [`Error::InvalidEmail`];
    /// [`Error::Storage`].
    pub async fn log_in_external(
        &self,
        person: External<'_>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        let External { issuer, subject, .. } = person;
        let member = match self.external(issuer, subject).await? {
            Some(member) => self.with_role(member, person.role).await?,
            None => self.create_external(person).await?,
        };
        let until = self.clock.now().plus(RENEW_AFTER);
        let members = self.by(Actor::member(&member.email, origin.address));
        let token = members.open_session_until(&member, origin, Some(until)).await?;
        Ok((member, token))
    }

    /// Sets the role that the groups of a member grant.
    async fn with_role(&self, member: Member, role: MemberRole) -> Result<Member, Error> {
        if member.role == role {
            return Ok(member);
        }
        self.change(member.organization, member.id, "member.role", |stored| {
            Ok(Member { role, ..stored })
        })
        .await
    }

    async fn create_external(&self, person: External<'_>) -> Result<Member, Error> {
        let External { organization, issuer, subject, email, role, .. } = person;
        check_email(email)?;
        let plain = person.name.chars().filter(|letter| !letter.is_control()).take(NAME_MAX);
        let plain: String = plain.collect();
        let name = Some(plain.trim()).filter(|name| check_name(name).is_ok()).unwrap_or("Unnamed");
        if self.count(organization).await? >= MEMBERS_MAX {
            return Err(Error::TooManyMembers);
        }
        let member = Member {
            id: new_id(),
            organization,
            name: name.to_owned(),
            email: email.to_owned(),
            role,
            api_key_access: false,
            password: String::new(),
            identity: Some(Identity { issuer: issuer.to_owned(), subject: subject.to_owned() }),
            second_factor: None,
            epoch: 0,
            created_at: self.clock.now(),
            last_seen_at: None,
        };
        let mut commit = Commit::new();
        for place in [rows::email(email), rows::identity(issuer, subject)] {
            commit.expect(Expect::Absent(place.clone()));
            commit.put_bytes(place, [id_bytes(organization), id_bytes(member.id)].concat());
        }
        commit.put(rows::member(organization, member.id), &member)?;
        let recorder = self.recorder.by(Actor::member(email, None));
        recorder.add(&mut commit, "member.create", email, organization)?;
        match self.store.try_commit(commit).await? {
            true => Ok(member),
            // Another log-in may have created the member in the meantime.
            false => self.external(issuer, subject).await?.ok_or(Error::EmailTaken),
        }
    }

    /// Ends all sessions of a member whose groups grant nothing any more.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn end_sessions(&self, member: &Member) -> Result<(), Error> {
        self.change(member.organization, member.id, "session.revoke", |stored| {
            Ok(Member { epoch: stored.epoch.saturating_add(1), ..stored })
        })
        .await?;
        Ok(())
    }

    /// Limits log-ins through the identity provider like those with a password: `check` counts as
    /// an attempt if it fails.
    ///
    /// # Errors
    /// The error of `check`, or [`Error::TooManyAttempts`] as its kind of error.
    pub async fn throttle_external<T, E: From<Error>>(
        &self,
        from: Option<IpAddr>,
        check: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let account = rows::account_of("identity provider");
        let attempt = self.throttle.begin(account, from).map_err(Error::TooManyAttempts)?;
        let checked = check.await;
        if checked.is_ok() {
            self.throttle.withdraw(&attempt);
        }
        checked
    }

    /// Returns the member in a row that contains the ids of organization and member.
    pub(super) async fn of_ids(&self, ids: &[u8]) -> Result<Option<Member>, Error> {
        let (ids, _rest) = ids.as_chunks::<16>();
        let [organization, member] = *ids else { return Ok(None) };
        Ok(self.store.read::<Member>(&rows::member(organization.into(), member.into())).await?)
    }
}

/// Adds the deletion of a member's identity to `commit`.
pub(super) fn forget(commit: &mut Commit, member: &Member) {
    if let Some(Identity { issuer, subject }) = &member.identity {
        commit.delete(rows::identity(issuer, subject));
    }
}
