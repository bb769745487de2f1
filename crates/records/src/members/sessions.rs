//! Sessions: a session identifies a member in one browser by a token that only the browser has.
//!
//! Every request reads the session and its member from the store. A logout, a new password, a
//! revoked permission or a removed member therefore takes effect at the next request. The module
//! caches nothing.

use std::net::IpAddr;
use std::time::Duration;

use super::throttle::Network;
use super::{Error, Members, rows};
use orrery_domain::hex::hex;
use orrery_domain::member::{Member, Origin, Session};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{Change, Commit, Key, Page, Table};

/// Maximum number of sessions of one member. When this number is exceeded, the oldest sessions end.
const SESSIONS_MAX: usize = 32;
/// Minimum interval between records of a session's use; shorter if the configured sessions are
/// short.
const NOTE_EVERY: Duration = Duration::from_secs(300);
/// How often a stream checks that its session is still valid.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Maximum length of the stored description of a device, in characters.
const DEVICE_MAX: usize = 256;

/// What a person enters to log in.
#[derive(Clone, Copy)]
pub struct LogIn<'a> {
    pub email: &'a str,
    pub password: &'a str,
    /// The code of an authenticator app, or a recovery code.
    pub code: Option<&'a str>,
}

impl std::fmt::Debug for LogIn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogIn").field("email", &self.email).finish_non_exhaustive()
    }
}

/// One of a member's sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// A name for the session that does not open it.
    pub id: String,
    pub is_current: bool,
    pub session: Session,
}

/// A valid session and its member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    pub member: Member,
    session: rows::Hash,
}

/// The sender of a request with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Person,
    /// The page itself. The page's own requests do not count as uses of the session.
    Page,
}

impl Members {
    /// Logs a member in with an email address, a password and, if the member has a second factor, a
    /// code. The returned string is the session's token, which is stored only in the browser.
    ///
    /// # Errors
    /// [`Error::WrongPassword`], which takes the same time for an unknown member;
    /// [`Error::CodeNeeded`]; [`Error::WrongCode`]; [`Error::TooManyAttempts`]; [`Error::Busy`];
    /// [`Error::Storage`].
    pub async fn log_in(
        &self,
        log_in: LogIn<'_>,
        origin: Origin,
    ) -> Result<(Member, String), Error> {
        let LogIn { email, password, code } = log_in;
        let from = origin.address;
        let member = self.by_email(email).await?;
        let check = async {
            self.verify(member.as_ref(), password, from).await?;
            self.check_code(member.ok_or(Error::WrongPassword)?, code).await
        };
        let member = self.throttled(rows::account_of(email), from, check).await?;
        let token = self.open_session(&member, origin).await?;
        Ok((member, token))
    }

    /// Checks a password or a code. The [`Throttle`](super::throttle) limits attempts from this
    /// address.
    pub(super) async fn throttled<T>(
        &self,
        account: [u8; 32],
        from: Option<IpAddr>,
        check: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let attempt = self.throttle.begin(account, from).map_err(Error::TooManyAttempts)?;
        let checked = check.await;
        // Only a wrong password or code counts as an attempt; a correct or unchecked one does not.
        if !matches!(checked, Err(Error::WrongPassword | Error::WrongCode)) {
            self.throttle.withdraw(&attempt);
        }
        checked
    }

    /// Checks the password of a member. A missing member takes the same time.
    pub(super) async fn verify(
        &self,
        member: Option<&Member>,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        let hash = member.map(|member| member.password.as_str()).filter(|hash| !hash.is_empty());
        match self.passwords.verify(hash, password, Network::of(from)).await? {
            true => Ok(()),
            false => Err(Error::WrongPassword),
        }
    }

    /// Opens a session for an authenticated member.
    ///
    /// # Errors
    /// [`Error::WrongPassword`] if the member has been removed or the password changed;
    /// [`Error::Storage`].
    pub(super) async fn open_session(
        &self,
        member: &Member,
        origin: Origin,
    ) -> Result<String, Error> {
        self.open_session_until(member, origin, None).await
    }

    /// Opens a session that ends at `until` in any case.
    ///
    /// # Errors
    /// As [`Members::open_session`].
    pub(super) async fn open_session_until(
        &self,
        member: &Member,
        origin: Origin,
        until: Option<Timestamp>,
    ) -> Result<String, Error> {
        let (token, hash) = rows::new_token()?;
        let place = rows::member(member.organization, member.id);
        let device = origin.device.map(|device| device.chars().take(DEVICE_MAX).collect());
        let now = self.clock.now();
        let session = Session {
            organization: member.organization,
            member: member.id,
            epoch: member.epoch,
            created_at: now,
            seen_at: now,
            until,
            origin: Origin { device, ..origin },
        };
        let add = |stored| self.add_session(stored, member, &hash, &session);
        self.store.update(&place, add).await?;
        Ok(token)
    }

    async fn add_session(
        &self,
        stored: Option<Member>,
        member: &Member,
        hash: &rows::Hash,
        session: &Session,
    ) -> Result<Change<Member>, Error> {
        let stored = stored.ok_or(Error::WrongPassword)?;
        if stored.epoch != member.epoch {
            return Err(Error::WrongPassword);
        }
        let of = rows::sessions_of(member.id);
        let page = Page::of(of.clone(), 2 * SESSIONS_MAX);
        let mut present = Vec::new();
        for (key, _) in self.store.page(page).await? {
            let hash = hash_of(&key);
            let session: Option<Session> = self.store.read(&rows::session(hash)).await?;
            present.push((session.map(|session| session.created_at), key));
        }
        present.sort();
        let mut commit = Commit::new();
        let superfluous = (present.len() + 1).saturating_sub(SESSIONS_MAX);
        for (_, key) in present.into_iter().take(superfluous) {
            commit.delete(rows::session(hash_of(&key))).delete(key);
        }
        commit.put(rows::session(hash), session)?;
        commit.put_bytes(of.raw(hash), Vec::new());
        self.recorder.add(&mut commit, "session.create", &member.email, member.organization)?;
        Ok(Change::Put(Member { last_seen_at: Some(session.created_at), ..stored }, commit))
    }

    /// Returns the session that a token identifies, and the session's member; `None` if the token
    /// is not valid.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn authenticate(&self, token: &str, by: By) -> Result<Option<Visit>, Error> {
        let Some(hash) = rows::token_hash(token) else { return Ok(None) };
        self.valid(hash, by).await
    }

    async fn valid(&self, hash: rows::Hash, by: By) -> Result<Option<Visit>, Error> {
        let row = rows::session(&hash);
        let Some(bytes) = self.store.get(&row).await? else { return Ok(None) };
        let session: Session = decode(&bytes)?;
        let place = rows::member(session.organization, session.member);
        let Some(member_bytes) = self.store.get(&place).await? else { return Ok(None) };
        let member: Member = decode(&member_bytes)?;
        let now = self.clock.now();
        if !self.is_open(&session, &member) {
            return Ok(None);
        }
        if by == By::Person
            && now.since(session.seen_at) >= NOTE_EVERY.min(self.options.session_idle / 10)
        {
            let mut commit = Commit::new();
            commit.expect(Expect::Equal(row.clone(), bytes));
            commit.expect(Expect::Equal(place.clone(), member_bytes));
            commit.put(row, &Session { seen_at: now, ..session })?;
            commit.put(place, &Member { last_seen_at: Some(now), ..member.clone() })?;
            // If the session or the member was changed concurrently, the use is recorded by a later
            // request.
            if let Err(error) = self.store.try_commit(commit).await {
                tracing::warn!(%error, "failed to record session use");
            }
        }
        Ok(Some(Visit { member, session: hash }))
    }

    /// Lists the open sessions of a member, the last used first.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn sessions(&self, visit: &Visit) -> Result<Vec<OpenSession>, Error> {
        let mut open = Vec::new();
        for (hash, session) in self.sessions_of(&visit.member).await? {
            if self.is_open(&session, &visit.member) {
                open.push(OpenSession {
                    id: id_of(&hash),
                    is_current: hash == visit.session,
                    session,
                });
            }
        }
        open.sort_by_key(|one| std::cmp::Reverse(one.session.seen_at));
        Ok(open)
    }

    /// Ends one of a member's sessions.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Storage`].
    pub async fn end_session(&self, visit: &Visit, id: &str) -> Result<(), Error> {
        let all = self.sessions_of(&visit.member).await?;
        let found = all.into_iter().find(|(hash, _)| id_of(hash) == id);
        let (session, _) = found.ok_or(Error::NoSession)?;
        self.log_out(&Visit { member: visit.member.clone(), session }).await
    }

    /// Ends all of a member's sessions except this one.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn end_other_sessions(&self, visit: &Visit) -> Result<(), Error> {
        let Visit { member, session: own } = visit;
        let mut commit = Commit::new();
        for (hash, _) in self.sessions_of(member).await? {
            if hash != *own {
                commit.delete(rows::session(&hash)).delete(rows::sessions_of(member.id).raw(&hash));
            }
        }
        let action = "session.delete_others";
        self.recorder.add(&mut commit, action, &member.email, member.organization)?;
        self.store.commit(commit).await?;
        self.changed.send_replace(());
        Ok(())
    }

    async fn sessions_of(&self, member: &Member) -> Result<Vec<(rows::Hash, Session)>, Error> {
        let page = Page::of(rows::sessions_of(member.id), 2 * SESSIONS_MAX);
        let mut all = Vec::new();
        for (key, _) in self.store.page(page).await? {
            let Ok(hash) = rows::Hash::try_from(hash_of(&key)) else { continue };
            if let Some(session) = self.store.read::<Session>(&rows::session(&hash)).await? {
                all.push((hash, session));
            }
        }
        Ok(all)
    }

    /// Returns whether a member's session has not ended.
    fn is_open(&self, session: &Session, member: &Member) -> bool {
        let now = self.clock.now();
        session.epoch == member.epoch
            && session.until.is_none_or(|until| now < until)
            && now.since(session.created_at) < self.options.session_max
            && now.since(session.seen_at) < self.options.session_idle
    }

    /// Ends a session.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn log_out(&self, visit: &Visit) -> Result<(), Error> {
        let Visit { member, session } = visit;
        let mut commit = Commit::new();
        commit.delete(rows::session(session)).delete(rows::sessions_of(member.id).raw(session));
        self.recorder.add(&mut commit, "session.delete", &member.email, member.organization)?;
        self.store.commit(commit).await?;
        self.changed.send_replace(());
        Ok(())
    }

    /// Resolves when the session has ended. While the store cannot be read, the session counts as
    /// valid.
    pub async fn ended(&self, visit: &Visit) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Ok(None) = self.valid(visit.session, By::Page).await {
                return;
            }
            tokio::select! {
                change = changed.changed() => if change.is_err() { return },
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Removes the records of sessions that have ended and of old links. Returns the number of
    /// removed records.
    ///
    /// # Errors
    /// [`Error::Storage`]; the next call removes the remaining records.
    pub async fn sweep(&self) -> Result<usize, Error> {
        Ok(self.sweep_sessions().await? + self.sweep_links().await?)
    }

    async fn sweep_sessions(&self) -> Result<usize, Error> {
        let mut swept = 0;
        let mut scan = self.store.scan(Key::table(Table::Session));
        while let Some((key, bytes)) = scan.next().await? {
            let session: Session = decode(&bytes)?;
            let member = rows::member(session.organization, session.member);
            let member: Option<Member> = self.store.read(&member).await?;
            if member.is_some_and(|member| self.is_open(&session, &member)) {
                continue;
            }
            let mut commit = Commit::new();
            commit.delete(rows::sessions_of(session.member).raw(hash_of(&key)));
            commit.expect(Expect::Equal(key.clone(), bytes)).delete(key);
            swept += usize::from(self.store.try_commit(commit).await?);
        }
        Ok(swept)
    }
}

/// Returns the name of a session: the start of the hash of its token.
fn id_of(hash: &rows::Hash) -> String {
    hex(hash.first_chunk::<16>().map_or(&[][..], <[u8; 16]>::as_slice))
}

/// Returns the last 32 bytes of a key, which are the hash of the token.
pub(super) fn hash_of(key: &Key) -> &[u8] {
    let bytes = key.as_bytes();
    bytes.get(bytes.len().saturating_sub(32)..).unwrap_or_default()
}
