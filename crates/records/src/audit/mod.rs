//! The audit log: the actor, origin, action, object and result of every audited operation. The log
//! is append-only: no code changes or deletes an entry.
//!
//! For an action that changes the store, the entry is in the same commit, so that neither exists
//! without the other. Refused actions get a separate entry. Failed authentications are counted in
//! memory and written as one entry per minute at most, so that a flood of failures cannot fill the
//! disk. No entry contains a key, a password or a request body.

mod ship;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

pub use self::ship::{Options as ShipOptions, Shipper};
use orrery_domain::account::box_owner;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, Tasks};
use orrery_storage::record::{decode, encode};
use orrery_storage::{self as storage, Commit, Key, Record, Store, Table};
use orrery_wire::operator::Act;

/// Maximum number of addresses in an entry about failed authentications. Other addresses are only
/// counted.
const ADDRESSES_MAX: usize = 16;
/// Maximum length of a subject or a result, in characters.
const TEXT_MAX: usize = 300;
/// Maximum number of entries that one search reads, starting with the newest.
const SEARCHED_MAX: u64 = 100_000;
/// Number of entries read at a time.
const PAGE: usize = 1000;
/// The action of a restore. The entry with this action starts the new history after the restore.
pub const RESTORE: &str = "restore";

/// The actor of an action, and the actor's origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    who: String,
    from: String,
}

impl Actor {
    /// Returns the service itself as the actor.
    #[must_use]
    pub fn service() -> Self {
        Self { who: "service".to_owned(), from: "service".to_owned() }
    }

    /// Returns the service itself as the actor of an action that an event triggered, such as a
    /// change in a watched folder.
    #[must_use]
    pub fn service_on(event: &str) -> Self {
        Self { who: "service".to_owned(), from: event.to_owned() }
    }

    /// Returns a member of an organization as the actor, using the dashboard from this address.
    #[must_use]
    pub fn member(email: &str, from: Option<IpAddr>) -> Self {
        let from = from.map_or_else(|| "local".to_owned(), |address| address.to_string());
        Self { who: email.to_owned(), from }
    }

    /// Returns the actor's name in the log: the service, a member or a key.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Returns the agent as the actor, in this session.
    #[must_use]
    pub fn agent(session: &str) -> Self {
        Self { who: "agent".to_owned(), from: format!("session {session}") }
    }

    /// Returns the holder of an API key as the actor, at this address.
    #[must_use]
    pub fn key(key: KeyId, from: Option<IpAddr>) -> Self {
        let from = from.map_or_else(|| "local".to_owned(), |address| address.to_string());
        Self { who: format!("key {key}"), from }
    }

    /// Returns the holder of an admin key as the actor, at this address.
    #[must_use]
    pub fn admin_key(key: KeyId, from: Option<IpAddr>) -> Self {
        let Self { who, from } = Self::key(key, from);
        Self { who: format!("admin {who}"), from }
    }

    /// Returns the owner of the data folder as the actor, acting over the control socket or with
    /// the command line on a stopped store.
    #[must_use]
    pub fn operator(from: &str) -> Self {
        Self { who: "operator".to_owned(), from: from.to_owned() }
    }
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub at: Timestamp,
    pub actor: String,
    pub from: String,
    /// The action, such as `key.create`.
    pub action: String,
    /// The object of the action.
    pub subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<OrganizationId>,
    /// `ok`, or the reason why the action was refused.
    pub result: String,
    /// The number of occurrences; 1 except for failed authentications.
    pub count: u64,
}

impl Record for Entry {
    const NAME: &'static str = "audit entry";
}

impl Entry {
    /// Creates the entry of a completed action.
    #[must_use]
    pub fn done(
        actor: &Actor,
        at: Timestamp,
        action: &str,
        subject: impl Into<String>,
        organization: Option<OrganizationId>,
    ) -> Self {
        Self {
            at,
            actor: actor.who.clone(),
            from: actor.from.clone(),
            action: action.to_owned(),
            subject: short(&subject.into()),
            organization,
            result: "ok".to_owned(),
            count: 1,
        }
    }

    /// Marks the entry as refused.
    #[must_use]
    pub fn refused(mut self, why: &str) -> Self {
        self.result = short(why);
        self
    }

    /// Sets the organization of the entry's object.
    #[must_use]
    pub const fn of(mut self, organization: OrganizationId) -> Self {
        self.organization = Some(organization);
        self
    }

    /// Returns the entry as shown to the operator and log shippers. `number` is the entry's
    /// sequence number, if the format includes the number.
    #[must_use]
    pub fn show(&self, number: Option<u64>) -> Act {
        Act {
            number,
            at: self.at.into(),
            actor: self.actor.clone(),
            from: self.from.clone(),
            action: self.action.clone(),
            subject: self.subject.clone(),
            organization_id: self.organization,
            result: self.result.clone(),
            count: self.count,
        }
    }
}

/// Adds entries to the commits of actions, for one actor.
#[derive(Debug, Clone)]
pub struct Recorder {
    clock: Clock,
    actor: Actor,
}

impl Recorder {
    /// Creates a recorder for the service itself.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, actor: Actor::service() }
    }

    /// Returns the same recorder for `actor`.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { clock: self.clock.clone(), actor }
    }

    /// Adds an action's entry to the commit that performs the action.
    ///
    /// # Errors
    /// As [`add`].
    pub fn add(
        &self,
        commit: &mut Commit,
        action: &str,
        subject: impl Into<String>,
        organization: OrganizationId,
    ) -> Result<(), storage::Error> {
        let now = self.clock.now();
        // Resources of the box do not belong to an organization.
        let organization = (organization != box_owner()).then_some(organization);
        add(commit, &Entry::done(&self.actor, now, action, subject, organization))
    }
}

fn short(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect()
}

/// Adds an entry to an action's commit.
///
/// # Errors
/// [`storage::Error`] never in practice: an entry always serializes.
pub fn add(commit: &mut Commit, entry: &Entry) -> Result<(), storage::Error> {
    commit.append(table(), encode(entry)?);
    Ok(())
}

fn table() -> Key {
    Key::table(Table::Audit)
}

/// A filter for entries.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Action prefix: `key` matches `key.create`.
    pub action: Option<String>,
    pub organization: Option<OrganizationId>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
}

impl Filter {
    fn matches(&self, entry: &Entry) -> bool {
        self.action.as_ref().is_none_or(|action| entry.action.starts_with(action))
            && self.organization.is_none_or(|id| entry.organization == Some(id))
            && self.from.is_none_or(|from| entry.at >= from)
            && self.to.is_none_or(|to| entry.at < to)
    }
}

/// The failed authentications that no entry reports yet.
#[derive(Debug, Default)]
struct Denied {
    count: u64,
    addresses: BTreeMap<String, u64>,
}

/// The audit log of a store. Clones share it.
#[derive(Debug, Clone)]
pub struct Audit {
    store: Store,
    clock: Clock,
    denied: Arc<Mutex<Denied>>,
    /// Actions in progress whose outcome will be recorded.
    tasks: Tasks,
}

impl Audit {
    /// Opens the audit log of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, denied: Arc::default(), tasks: Tasks::new() }
    }

    /// Writes an entry in its own commit.
    ///
    /// # Errors
    /// [`storage::Error`].
    pub async fn write(&self, entry: &Entry) -> Result<(), storage::Error> {
        let mut commit = Commit::new();
        add(&mut commit, entry)?;
        self.store.commit(commit).await
    }

    /// Performs an action that makes no commit to which the entry could be added, and writes the
    /// entry if the action succeeds. The action and the write run in a task, so that both complete
    /// even if the caller disconnects. Refusals must be recorded by the calling code.
    ///
    /// # Errors
    /// The action's error.
    pub async fn record<T, E>(
        &self,
        entry: Entry,
        act: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<storage::Error> + Send + 'static,
    {
        let audit = self.clone();
        let recording = self.tasks.complete(async move {
            let ended = act.await;
            if ended.is_ok() {
                audit.write_or_log(&entry).await;
            }
            ended
        });
        recording.await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    /// Starts an action that continues after its response, and records its outcome: `entry` as
    /// given or, if the action fails, marked as refused with the error.
    pub fn follow<T, E>(
        &self,
        entry: Entry,
        act: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> JoinHandle<Result<T, E>>
    where
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let audit = self.clone();
        self.tasks.spawn(async move {
            let ended = act.await;
            let entry = match &ended {
                Ok(_) => entry,
                Err(error) => entry.refused(&error.to_string()),
            };
            audit.write_or_log(&entry).await;
            ended
        })
    }

    /// Writes the entry of an action that has already been performed. If the store fails, the entry
    /// is logged as an error.
    pub async fn write_or_log(&self, entry: &Entry) {
        if let Err(error) = self.write(entry).await {
            let Entry { action, subject, result, .. } = entry;
            tracing::error!(
                %error, action, subject, result,
                "failed to write audit entry"
            );
        }
    }

    /// Creates the entry of an action that happens now.
    #[must_use]
    pub fn entry(&self, actor: &Actor, action: &str, subject: impl Into<String>) -> Entry {
        Entry::done(actor, self.clock.now(), action, subject, None)
    }

    /// Counts a failed authentication.
    pub fn denied(&self, from: Option<IpAddr>) {
        let from = from.map_or_else(|| "local".to_owned(), |address| address.to_string());
        let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        denied.count = denied.count.saturating_add(1);
        if denied.addresses.len() < ADDRESSES_MAX || denied.addresses.contains_key(&from) {
            let count = denied.addresses.entry(from).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Writes the counted failed authentications as one entry, if any were counted.
    ///
    /// # Errors
    /// [`storage::Error`]; the count is then retained.
    pub async fn write_denied(&self) -> Result<(), storage::Error> {
        let taken =
            std::mem::take(&mut *self.denied.lock().unwrap_or_else(PoisonError::into_inner));
        if taken.count == 0 {
            return Ok(());
        }
        let from: Vec<String> =
            taken.addresses.iter().map(|(address, count)| format!("{address} ({count})")).collect();
        let entry = Entry {
            actor: "unknown".to_owned(),
            from: short(&from.join(", ")),
            count: taken.count,
            ..self.entry(&Actor::service(), "authentication", "API key").refused("denied")
        };
        let written = self.write(&entry).await;
        if written.is_err() {
            let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
            denied.count = denied.count.saturating_add(taken.count);
            for (address, count) in taken.addresses {
                *denied.addresses.entry(address).or_default() += count;
            }
        }
        written
    }

    /// Lists up to `limit` matching entries, newest first, among the newest [`SEARCHED_MAX`].
    ///
    /// # Errors
    /// [`storage::Error`].
    pub async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<Entry>, storage::Error> {
        let mut found = Vec::new();
        let mut offset = 0;
        while offset < SEARCHED_MAX {
            let page = self.store.list(&table(), offset, PAGE).await?;
            if page.rows.is_empty() {
                break;
            }
            offset = offset.saturating_add(page.rows.len() as u64);
            for row in &page.rows {
                let entry: Entry = decode(row)?;
                if filter.matches(&entry) {
                    found.push(entry);
                    if found.len() >= limit {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the number of the newest entry with this action.
    async fn newest(&self, action: &str) -> Result<Option<u64>, storage::Error> {
        let mut offset = 0;
        loop {
            let found = self.store.list(&table(), offset, PAGE).await?;
            for (row, behind) in found.rows.iter().zip(offset..) {
                let entry: Entry = decode(row)?;
                if entry.action == action {
                    return Ok(found.total.checked_sub(behind.saturating_add(1)));
                }
            }
            if found.rows.len() < PAGE {
                return Ok(None);
            }
            offset = offset.saturating_add(PAGE as u64);
        }
    }

    /// Returns up to a page of entries, oldest first, from `number` on; 0 is the first entry ever
    /// written.
    async fn since(&self, number: u64) -> Result<Vec<Entry>, storage::Error> {
        let mut total = self.store.list(&table(), 0, 0).await?.total;
        loop {
            let behind = total.saturating_sub(number);
            let page = behind.min(PAGE as u64);
            let limit = usize::try_from(page).unwrap_or(PAGE);
            let found = self.store.list(&table(), behind.saturating_sub(page), limit).await?;
            // Offsets are counted from the newest entry, so an entry added in the meantime would
            // have shifted the offsets.
            if found.total == total {
                return found.rows.iter().rev().map(|row| decode(row)).collect();
            }
            total = found.total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> (tempfile::TempDir, Audit) {
        let folder = tempfile::tempdir().unwrap();
        let options = storage::Options { folder: folder.path().join("data"), inline_bytes: 65_536 };
        let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
        (folder, Audit::new(Store::open(&options).unwrap(), clock))
    }

    #[tokio::test]
    async fn audit_list_filters_entries_newest_first() {
        let (_folder, audit) = open();
        for number in 0..5 {
            let action = if number % 2 == 0 { "key.create" } else { "chain.delete" };
            let entry = audit.entry(&Actor::operator("control socket"), action, number.to_string());
            audit.write(&entry).await.unwrap();
        }
        let subjects = async |action: Option<&str>, limit| {
            let filter = Filter { action: action.map(str::to_owned), ..Filter::default() };
            let found = audit.list(&filter, limit).await.unwrap();
            found.into_iter().map(|entry| entry.subject).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(subjects(None, 10).await, "4 3 2 1 0");
        assert_eq!(subjects(Some("key"), 2).await, "4 2");
        assert_eq!(subjects(Some("chain.delete"), 9).await, "3 1");
        let later = audit.since(3).await.unwrap();
        assert_eq!(
            later.iter().map(|entry| entry.subject.as_str()).collect::<Vec<_>>(),
            ["3", "4"]
        );
    }

    #[tokio::test]
    async fn audit_failed_authentications_collapse_into_one_entry() {
        let (_folder, audit) = open();
        for number in 0..10_000_u32 {
            audit.denied(Some(IpAddr::from(number.to_be_bytes())));
        }
        audit.write_denied().await.unwrap();
        audit.write_denied().await.unwrap();
        let entries = audit.list(&Filter::default(), 10).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].count, entries[0].result.as_str()), (10_000, "denied"));
        assert!(entries[0].from.len() <= TEXT_MAX);
    }
}
