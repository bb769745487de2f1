//! Sessions: the agent's memory of conversations, by organization and a name chosen by the client.
//!
//! An exchange is added in the commit that accepts it and completed in the commit that ends it, so
//! each exchange is stored exactly once, even after a crash. If a session is cleared while an
//! exchange runs, the session stays cleared. Only the newest exchanges are retained, and idle
//! sessions are deleted.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;

use orrery_domain::ids::{ExecutionId, OrganizationId, SessionId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_engine::{self as engine, Engine};
use orrery_runtime::{Clock, new_id};
use orrery_storage::commit::Expect;
use orrery_storage::record::{Record, decode};
use orrery_storage::{self as storage, Commit, Key, Store, Table};

/// Maximum number of exchanges that a session retains and that a model receives.
pub(crate) const KEPT_MAX: usize = 50;
/// Maximum number of exchanges read per session: the retained, running and queued exchanges.
const READ_MAX: usize = KEPT_MAX + 16;
/// Maximum number of sessions in a list.
const LISTED_MAX: usize = 10_000;

/// A stored session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub id: SessionId,
    pub name: String,
    pub created_at: Timestamp,
    /// The time at which an exchange last ended.
    pub used_at: Timestamp,
    /// The number of exchanges that ended with a response, plus cancelled exchanges that are no
    /// longer stored.
    pub exchanges: u64,
    /// The summary that replaces older exchanges in prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

/// A stored summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub text: Payload,
    /// The last exchange that the summary covers.
    pub through: ExecutionId,
}

/// A stored exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    at: Timestamp,
    prompt: Payload,
    /// `None` if the exchange has not ended or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<Payload>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    media: Vec<String>,
}

impl Record for Session {
    const NAME: &'static str = "session";
}

impl Record for Entry {
    const NAME: &'static str = "session exchange";
}

/// The memory of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// The exchanges, oldest first.
    pub exchanges: Vec<Remembered>,
    /// The number of finished exchanges, including exchanges that are no longer stored.
    pub total: u64,
    /// The summary, with the id of the last exchange that it covers.
    summarized: Option<(String, ExecutionId)>,
}

impl Memory {
    /// Returns the summary of the older exchanges.
    #[must_use]
    pub fn summary(&self) -> Option<&str> {
        self.summarized.as_ref().map(|(text, _)| text.as_str())
    }

    /// Returns the exchanges that the summary does not cover, oldest first.
    #[must_use]
    pub fn open(&self) -> &[Remembered] {
        let Some((_, through)) = &self.summarized else { return &self.exchanges };
        let covered = self.exchanges.partition_point(|exchange| exchange.id <= *through);
        self.exchanges.get(covered..).unwrap_or_default()
    }
}

/// A finished exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub id: ExecutionId,
    pub at: Timestamp,
    pub prompt: String,
    pub response: String,
    pub media: Vec<String>,
}

impl Remembered {
    /// Returns the size of the prompt and the response in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.prompt.len().saturating_add(self.response.len())
    }
}

/// The sessions in a store; clones share the store.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    store: Store,
    clock: Clock,
}

fn row(organization: OrganizationId, name: &str) -> Key {
    sessions_of(organization).text(name)
}

fn sessions_of(organization: OrganizationId) -> Key {
    Key::table(Table::AgentSession).id(organization)
}

fn entries(session: SessionId) -> Key {
    Key::table(Table::AgentExchange).id(session)
}

impl Sessions {
    /// Creates a handle for the sessions in a store.
    pub(crate) const fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock }
    }

    /// Returns the session with this name.
    pub(crate) async fn find(
        &self,
        organization: OrganizationId,
        name: &str,
    ) -> Result<Option<Session>, storage::Error> {
        self.store.read(&row(organization, name)).await
    }

    /// Adds an exchange to the commit that accepts it. Creates the session if it does not exist.
    pub(crate) async fn note_start(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        name: &str,
        id: ExecutionId,
        prompt: &str,
    ) -> Result<Session, storage::Error> {
        let now = self.clock.now();
        let session = match self.find(organization, name).await? {
            Some(session) => {
                commit.expect(Expect::Present(row(organization, name)));
                session
            }
            None => {
                let name = name.to_owned();
                let session = Session {
                    id: new_id(),
                    name,
                    created_at: now,
                    used_at: now,
                    exchanges: 0,
                    summary: None,
                };
                let key = row(organization, &session.name);
                commit.expect(Expect::Absent(key.clone()));
                commit.put(key, &session)?;
                session
            }
        };
        let prompt = self.keep(commit, prompt).await?;
        let entry = Entry { at: now, prompt, response: None, media: Vec::new() };
        commit.put(entries(session.id).id(id), &entry)?;
        Ok(session)
    }

    /// Adds the response of an exchange to the commit that ends it, and deletes the oldest
    /// exchanges. Does nothing if the session was cleared. The store's sweep removes the files of
    /// deleted exchanges.
    pub(crate) async fn note_end(
        &self,
        organization: OrganizationId,
        name: &str,
        session: SessionId,
        id: ExecutionId,
        response: &str,
        media: Vec<String>,
    ) -> Result<Commit, storage::Error> {
        let mut commit = Commit::new();
        let key = row(organization, name);
        let Some(bytes) = self.store.get(&key).await? else { return Ok(commit) };
        let mut stored: Session = decode(&bytes)?;
        if stored.id != session {
            return Ok(commit);
        }
        let entry_key = entries(session).id(id);
        let Some(mut entry) = self.store.read::<Entry>(&entry_key).await? else {
            return Ok(commit);
        };
        // If the session is cleared concurrently, the commit fails, and the next attempt leaves out
        // the session.
        commit.expect(Expect::Equal(key.clone(), bytes));
        entry.response = Some(self.keep(&mut commit, response).await?);
        entry.media = media;
        commit.put(entry_key, &entry)?;
        stored.exchanges = stored.exchanges.saturating_add(1);
        stored.used_at = self.clock.now().max(stored.used_at);
        let rows = self.entries(session).await?;
        for (key, entry) in rows.iter().take(rows.len().saturating_sub(KEPT_MAX)) {
            let was_cancelled = entry.response.is_none();
            stored.exchanges = stored.exchanges.saturating_add(u64::from(was_cancelled));
            self.release(&mut commit, entry);
            commit.delete(key.clone());
        }
        commit.put(key, &stored)?;
        Ok(commit)
    }

    /// Adds the summary to the commit of the step that creates it. Does nothing if the session was
    /// cleared.
    pub(crate) async fn note_summary(
        &self,
        organization: OrganizationId,
        name: &str,
        session: SessionId,
        through: ExecutionId,
        text: &str,
    ) -> Result<Commit, storage::Error> {
        let mut commit = Commit::new();
        let key = row(organization, name);
        let Some(bytes) = self.store.get(&key).await? else { return Ok(commit) };
        let mut stored: Session = decode(&bytes)?;
        if stored.id != session {
            return Ok(commit);
        }
        commit.expect(Expect::Equal(key.clone(), bytes));
        if let Some(earlier) = &stored.summary {
            self.store.release(&mut commit, &earlier.text);
        }
        stored.summary = Some(Summary { text: self.keep(&mut commit, text).await?, through });
        commit.put(key, &stored)?;
        Ok(commit)
    }

    /// Returns the memory of the session. If an engine is given, the memory includes cancelled
    /// exchanges, which ended without a response.
    pub(crate) async fn memory(
        &self,
        organization: OrganizationId,
        session: &Session,
        engine: Option<&Engine>,
    ) -> Result<Memory, storage::Error> {
        let mut memory = Memory { total: session.exchanges, ..Memory::default() };
        if let Some(summary) = &session.summary {
            memory.summarized = Some((self.text(&summary.text).await?, summary.through));
        }
        for (key, entry) in self.entries(session.id).await? {
            let Some(id) = key.last_id::<ExecutionId>() else { continue };
            if entry.response.is_none() {
                let Some(engine) = engine else { continue };
                match engine.get(organization, id).await {
                    Ok(execution) if execution.status.is_final() => {}
                    // The execution was deleted, so it had finished: only finished executions can
                    // be deleted.
                    Err(engine::Error::NotFound) => {}
                    Ok(_) | Err(_) => continue,
                }
                memory.total = memory.total.saturating_add(1);
            }
            let response = match &entry.response {
                Some(response) => self.text(response).await?,
                None => String::new(),
            };
            let prompt = self.text(&entry.prompt).await?;
            memory.exchanges.push(Remembered {
                id,
                at: entry.at,
                prompt,
                response,
                media: entry.media,
            });
        }
        let surplus = memory.exchanges.len().saturating_sub(KEPT_MAX);
        memory.exchanges.drain(..surplus);
        Ok(memory)
    }

    /// Returns the names of the organization's sessions, sorted.
    pub(crate) async fn names(
        &self,
        organization: OrganizationId,
    ) -> Result<Vec<String>, storage::Error> {
        let mut names = Vec::new();
        let mut scan = self.store.scan(sessions_of(organization));
        while names.len() < LISTED_MAX
            && let Some((_, bytes)) = scan.next().await?
        {
            names.push(decode::<Session>(&bytes)?.name);
        }
        Ok(names)
    }

    /// Deletes a session. Returns false if the session does not exist.
    pub(crate) async fn clear(
        &self,
        organization: OrganizationId,
        name: &str,
    ) -> Result<bool, storage::Error> {
        let Some(session) = self.find(organization, name).await? else { return Ok(false) };
        let mut commit = Commit::new();
        commit.delete(row(organization, name));
        let mut payloads = Vec::new();
        if let Some(summary) = session.summary {
            self.store.release(&mut commit, &summary.text);
            payloads.push(summary.text);
        }
        for (key, entry) in self.all_entries(session.id).await? {
            self.release(&mut commit, &entry);
            commit.delete(key);
            payloads.extend(std::iter::once(entry.prompt).chain(entry.response));
        }
        self.store.commit(commit).await?;
        for payload in payloads.iter().filter(|payload| payload.file().is_some()) {
            self.store.remove_payload(payload).await?;
        }
        Ok(true)
    }

    /// Deletes the organization's sessions that have been idle for `keep`, and returns their
    /// number.
    pub(crate) async fn forget_unused(
        &self,
        organization: OrganizationId,
        keep: Duration,
    ) -> Result<usize, storage::Error> {
        let Some(cutoff) = self.clock.now().before(keep) else { return Ok(0) };
        let mut count = 0;
        let mut scan = self.store.scan(sessions_of(organization));
        while let Some((_, bytes)) = scan.next().await? {
            let session: Session = decode(&bytes)?;
            if session.used_at < cutoff && self.clear(organization, &session.name).await? {
                count += 1;
            }
        }
        Ok(count)
    }

    async fn keep(&self, commit: &mut Commit, text: &str) -> Result<Payload, storage::Error> {
        let text =
            to_raw_value(text).map_err(|error| storage::Error::malformed(Entry::NAME, error))?;
        let owner: SessionId = new_id();
        let payload = self.store.write_payload(owner, text).await?;
        self.store.claim(commit, &payload);
        Ok(payload)
    }

    async fn text(&self, payload: &Payload) -> Result<String, storage::Error> {
        let text = self.store.read_payload(payload).await?;
        Ok(serde_json::from_str(text.get()).unwrap_or_default())
    }

    fn release(&self, commit: &mut Commit, entry: &Entry) {
        for payload in std::iter::once(&entry.prompt).chain(&entry.response) {
            self.store.release(commit, payload);
        }
    }

    /// Returns the newest stored exchanges, oldest first.
    async fn entries(&self, session: SessionId) -> Result<Vec<(Key, Entry)>, storage::Error> {
        let mut all = self.all_entries(session).await?;
        all.drain(..all.len().saturating_sub(READ_MAX));
        Ok(all)
    }

    async fn all_entries(&self, session: SessionId) -> Result<Vec<(Key, Entry)>, storage::Error> {
        let mut all = Vec::new();
        let mut scan = self.store.scan(entries(session));
        while let Some((key, bytes)) = scan.next().await? {
            all.push((key, decode(&bytes)?));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_storage::Options;
    use orrery_storage::record::encode;

    #[test]
    fn session_rows_match_golden_bytes() {
        let session = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",\"name\":\"s\",",
            "\"created_at\":1,\"used_at\":2,\"exchanges\":3}"
        );
        let read: Session = decode(session.as_bytes()).unwrap();
        assert_eq!(encode(&read).unwrap(), session.as_bytes());
        let entry = "\u{1}{\"at\":1,\"prompt\":{\"inline\":\"hi\"},\"response\":{\"inline\":\"ho\"},\"media\":[\"u\"]}";
        let read: Entry = decode(entry.as_bytes()).unwrap();
        assert_eq!(encode(&read).unwrap(), entry.as_bytes());
    }

    fn sessions() -> (tempfile::TempDir, Sessions, Store) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_owned(), inline_bytes: 64 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(1_000_000));
        (folder, Sessions::new(store.clone(), clock), store)
    }

    #[tokio::test]
    async fn session_keeps_the_newest_exchanges_and_counts_all() {
        let (_folder, sessions, store) = sessions();
        let organization = [1; 16].into();
        for number in 0..KEPT_MAX + 3 {
            let id: ExecutionId = new_id();
            let mut commit = Commit::new();
            let prompt = format!("{number} {}", "long ".repeat(40));
            let started = sessions.note_start(&mut commit, organization, "s", id, &prompt).await;
            let session = started.unwrap();
            store.commit(commit).await.unwrap();
            let ended = sessions.note_end(organization, "s", session.id, id, "yes", Vec::new());
            store.commit(ended.await.unwrap()).await.unwrap();
        }
        let session = sessions.find(organization, "s").await.unwrap().unwrap();
        let memory = sessions.memory(organization, &session, None).await.unwrap();
        assert_eq!((memory.exchanges.len(), memory.total), (KEPT_MAX, 53));
        assert!(memory.exchanges[0].prompt.starts_with("3 "), "the oldest ones are removed");
        assert!(sessions.find([2; 16].into(), "s").await.unwrap().is_none(), "of nobody else");
        assert!(sessions.clear(organization, "s").await.unwrap());
        assert!(!sessions.clear(organization, "s").await.unwrap());
        assert!(sessions.all_entries(session.id).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn cleared_session_ignores_the_end_of_an_older_exchange() {
        let (_folder, sessions, store) = sessions();
        let (organization, id): (OrganizationId, ExecutionId) = ([1; 16].into(), new_id());
        let mut commit = Commit::new();
        let started = sessions.note_start(&mut commit, organization, "s", id, "hi").await;
        let session = started.unwrap();
        store.commit(commit).await.unwrap();
        let end = async || {
            sessions.note_end(organization, "s", session.id, id, "ho", Vec::new()).await.unwrap()
        };
        let late = end().await;
        assert!(sessions.clear(organization, "s").await.unwrap());
        assert!(matches!(store.commit(late).await, Err(storage::Error::Conflict { .. })));
        assert!(end().await.is_empty());
    }
}
