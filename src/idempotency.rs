//! `Idempotency-Key`: a create or trigger that comes twice under one key happens once.
//!
//! The first answer's essence is written in the commit of what was created, so that neither is
//! there without the other. While the first is being answered, a second waits for it, a bounded
//! time. Keys are forgotten after 24 hours (`spec/decisions.md` part 3).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::domain::ids::OrganizationId;
use crate::domain::time::Timestamp;
use crate::runtime::Clock;
use crate::storage::record::{Malformed, decode};
use crate::storage::{self, Commit, Key, Page, Record, Store, Table};

/// How long a key is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// The longest key, in characters.
pub const KEY_MAX: usize = 255;
/// How long a second request waits for the first one's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rows that a sweep looks at in one go.
const SWEEP_BATCH: usize = 500;

/// A key that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Idempotency-Key must have 1 to {KEY_MAX} characters")]
pub struct InvalidKey;

/// Checks a key as it came.
///
/// # Errors
/// [`InvalidKey`] in a sentence for the client.
pub fn check_key(key: &str) -> Result<(), InvalidKey> {
    if (1..=KEY_MAX).contains(&key.chars().count()) { Ok(()) } else { Err(InvalidKey) }
}

type Place = [u8; 32];

/// What the first request came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// The id of what was created; the answer is made from it again.
    pub subject: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    /// SHA-256 of the request's body, in base 16.
    body: String,
    answered: Answered,
    at: Timestamp,
}

impl Record for Remembered {
    const NAME: &'static str = "idempotency key";
}

/// How a request under a key goes on.
#[derive(Debug)]
pub enum Begin {
    /// It is the first: create, and record the answer in the same commit.
    Fresh(Ticket),
    /// It happened already.
    Replay(Answered),
    /// The key was used with another body.
    Mismatch,
    /// The first is still being answered, after [`PATIENCE`].
    InProgress,
}

/// The keys of a store and the requests that are under way.
#[derive(Debug, Clone)]
pub struct Idempotency {
    store: Store,
    clock: Clock,
    under_way: Arc<Mutex<HashMap<Place, watch::Receiver<()>>>>,
}

/// The right to answer first under a key; dropping it lets the next one try.
#[derive(Debug)]
pub struct Ticket {
    under_way: Arc<Mutex<HashMap<Place, watch::Receiver<()>>>>,
    place: Place,
    row: Key,
    body: String,
    now: Timestamp,
    _done: watch::Sender<()>,
}

impl Idempotency {
    /// The keys of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock, under_way: Arc::default() }
    }

    /// Looks a key up for one organization and route, and takes it when it is new.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn begin(
        &self,
        organization: OrganizationId,
        route: &str,
        key: &str,
        body: &[u8],
    ) -> Result<Begin, storage::Error> {
        let place = place(organization, route, key);
        let row = Key::table(Table::Idempotency).raw(&place);
        let body = hex(&Sha256::digest(body));
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let mut first = match self.take(place) {
                Ok(done) => return self.look(place, row, body, done).await,
                Err(first) => first,
            };
            // An error says that the first is done: its ticket is gone.
            if tokio::time::timeout_at(deadline, first.changed()).await.is_err() {
                return Ok(Begin::InProgress);
            }
        }
    }

    /// Takes the place, or gives what tells when it is free.
    fn take(&self, place: Place) -> Result<watch::Sender<()>, watch::Receiver<()>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        match under_way.entry(place) {
            Entry::Occupied(first) => Err(first.get().clone()),
            Entry::Vacant(free) => {
                let (done, waiting) = watch::channel(());
                free.insert(waiting);
                Ok(done)
            }
        }
    }

    async fn look(
        &self,
        place: Place,
        row: Key,
        body: String,
        done: watch::Sender<()>,
    ) -> Result<Begin, storage::Error> {
        let now = self.clock.now();
        let under_way = Arc::clone(&self.under_way);
        let ticket = Ticket { under_way, place, row: row.clone(), body, now, _done: done };
        let remembered = self.store.read::<Remembered>(&row).await?;
        match remembered.filter(|remembered| now.since(remembered.at) < REMEMBERED) {
            None => Ok(Begin::Fresh(ticket)),
            Some(remembered) if remembered.body == ticket.body => {
                Ok(Begin::Replay(remembered.answered))
            }
            Some(_) => Ok(Begin::Mismatch),
        }
    }

    /// Deletes the keys that are past their time; answers how many.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read or written.
    pub async fn sweep(&self) -> Result<usize, storage::Error> {
        let now = self.clock.now();
        let (mut swept, mut after) = (0, None);
        loop {
            let prefix = Key::table(Table::Idempotency);
            let page = Page { prefix, after, before: None, limit: SWEEP_BATCH };
            let rows = self.store.page(page).await?;
            let Some((last, _)) = rows.last() else { return Ok(swept) };
            after = Some(last.clone());
            let mut commit = Commit::new();
            for (key, bytes) in rows {
                let remembered: Remembered = decode(&bytes)?;
                if now.since(remembered.at) >= REMEMBERED {
                    commit.delete(key);
                    swept += 1;
                }
            }
            if !commit.is_empty() {
                self.store.commit(commit).await?;
            }
        }
    }
}

impl Ticket {
    /// Adds the answer to the commit of what was created. The ticket must live until that commit
    /// has returned.
    ///
    /// # Errors
    /// [`Malformed`] never in practice: an answer has a JSON form.
    pub fn record(&self, commit: &mut Commit, answered: Answered) -> Result<(), Malformed> {
        let remembered = Remembered { body: self.body.clone(), answered, at: self.now };
        commit.put(self.row.clone(), &remembered)?;
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.place);
    }
}

fn place(organization: OrganizationId, route: &str, key: &str) -> Place {
    use crate::domain::ids::Id;
    let mut hasher = Sha256::new();
    hasher.update(organization.bytes());
    hasher.update(route.as_bytes());
    hasher.update([0]);
    hasher.update(key.as_bytes());
    hasher.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Options;

    const ORGANIZATION: [u8; 16] = [1; 16];

    fn keys() -> (tempfile::TempDir, Idempotency, Clock) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
        let clock = Clock::scripted(Timestamp::from_micros(1));
        let keys = Idempotency::new(Store::open(&options).unwrap(), clock.clone());
        (folder, keys, clock)
    }

    async fn begin(keys: &Idempotency, key: &str, body: &str) -> Begin {
        keys.begin(ORGANIZATION.into(), "create", key, body.as_bytes()).await.unwrap()
    }

    async fn finish(keys: &Idempotency, ticket: Ticket, subject: &str) {
        let mut commit = Commit::new();
        ticket.record(&mut commit, Answered { subject: subject.to_owned() }).unwrap();
        keys.store.commit(commit).await.unwrap();
    }

    #[tokio::test]
    async fn the_second_is_answered_as_the_first_for_a_day() {
        let (_folder, keys, clock) = keys();
        let Begin::Fresh(ticket) = begin(&keys, "k", "body").await else { panic!("not fresh") };
        finish(&keys, ticket, "id-1").await;
        let Begin::Replay(answered) = begin(&keys, "k", "body").await else { panic!("no replay") };
        assert_eq!(answered.subject, "id-1");
        assert!(matches!(begin(&keys, "k", "other").await, Begin::Mismatch));
        assert!(matches!(begin(&keys, "k2", "body").await, Begin::Fresh(_)));
        let other = keys.begin([2; 16].into(), "create", "k", b"body").await.unwrap();
        assert!(matches!(other, Begin::Fresh(_)));
        assert_eq!(keys.sweep().await.unwrap(), 0);
        clock.advance(REMEMBERED);
        assert!(matches!(begin(&keys, "k", "other").await, Begin::Fresh(_)));
        assert_eq!(keys.sweep().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_failed_first_leaves_the_key_free() {
        let (_folder, keys, _) = keys();
        let first = begin(&keys, "k", "body").await;
        drop(first);
        assert!(matches!(begin(&keys, "k", "another").await, Begin::Fresh(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_waits_for_the_first_and_then_gives_up() {
        let (_folder, keys, _) = keys();
        let Begin::Fresh(ticket) = begin(&keys, "k", "body").await else { panic!("not fresh") };
        assert!(matches!(begin(&keys, "k", "body").await, Begin::InProgress));
        // The store's writer is outside of tokio's time: from here on it is the real one.
        tokio::time::resume();
        let (second, ()) = tokio::join!(begin(&keys, "k", "body"), finish(&keys, ticket, "id-1"));
        assert!(matches!(second, Begin::Replay(_)), "{second:?}");
    }
}
