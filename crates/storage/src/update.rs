//! Changes to single records under optimistic concurrency control.

use super::commit::{Commit, Expect};
use super::error::Error;
use super::key::Key;
use super::record::{Record, decode};
use super::store::Store;

/// Maximum attempts at a change when its rows are changed concurrently. Each conflict means that
/// another change succeeded.
pub const TRIES_MAX: usize = 100;

/// What [`Store::update`] does with a record.
#[derive(Debug)]
pub enum Change<T> {
    /// Stores the record. The commit contains the other writes of the change.
    Put(T, Commit),
    /// Deletes the record. The commit contains the other writes of the change.
    Delete(T, Commit),
    /// Changes nothing.
    Keep(T),
}

impl Store {
    /// Changes the record under `key` and returns it.
    ///
    /// `change` gets the record, or `None` if there is none. The commit is made on the condition
    /// that the row has not changed since it was read, and on the conditions in the commit that
    /// `change` returns. If one of these conditions does not hold, `change` is called again with
    /// the current record, so `change` must itself read any other rows on which its result depends.
    ///
    /// # Errors
    /// Errors of `change`; [`Error::Conflict`] after [`TRIES_MAX`] attempts; [`Error::Malformed`]
    /// if the row is not a `T`; as [`Store::get`] and [`Store::commit`].
    pub async fn update<T, E, F>(
        &self,
        key: &Key,
        mut change: impl FnMut(Option<T>) -> F,
    ) -> Result<T, E>
    where
        T: Record,
        E: From<Error>,
        F: Future<Output = Result<Change<T>, E>>,
    {
        let mut contested = key.clone();
        for _ in 0..TRIES_MAX {
            let before = self.get(key).await?;
            let record = before.as_deref().map(decode).transpose()?;
            let (record, mut commit) = match change(record).await? {
                Change::Put(record, mut commit) => {
                    commit.put(key.clone(), &record)?;
                    (record, commit)
                }
                Change::Delete(record, mut commit) => {
                    commit.delete(key.clone());
                    (record, commit)
                }
                Change::Keep(record) => return Ok(record),
            };
            commit.expect(Expect::unchanged(key.clone(), before));
            match self.commit(commit).await {
                Ok(()) => return Ok(record),
                Err(Error::Conflict { key }) => contested = key,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Conflict { key: contested }.into())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{Options, Table};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Count(u32);
    impl Record for Count {
        const NAME: &'static str = "count";
    }

    fn open() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 100 };
        let store = Store::open(&options).unwrap();
        (folder, store)
    }

    fn key() -> Key {
        Key::table(Table::Workflow).text("count")
    }

    fn beside() -> Key {
        Key::table(Table::Workflow).text("beside")
    }

    async fn write(store: &Store, count: u32) {
        let mut commit = Commit::new();
        commit.put(key(), &Count(count)).unwrap();
        store.commit(commit).await.unwrap();
    }

    fn with_beside() -> Commit {
        let mut commit = Commit::new();
        commit.add(beside(), 1);
        commit
    }

    async fn increment(store: &Store) -> Result<Count, Error> {
        let change = |count: Option<Count>| async move {
            let Count(count) = count.unwrap_or(Count(0));
            Ok(Change::Put(Count(count + 1), with_beside()))
        };
        store.update(&key(), change).await
    }

    #[tokio::test]
    async fn update_creates_changes_and_deletes_with_other_writes() {
        let (_folder, store) = open();
        assert_eq!(increment(&store).await.unwrap(), Count(1));
        assert_eq!(increment(&store).await.unwrap(), Count(2));
        assert_eq!(store.read(&key()).await.unwrap(), Some(Count(2)));
        let delete =
            |count: Option<Count>| async { Ok(Change::Delete(count.unwrap(), with_beside())) };
        assert_eq!(store.update::<_, Error, _>(&key(), delete).await.unwrap(), Count(2));
        assert_eq!(store.get(&key()).await.unwrap(), None);
        assert_eq!(store.counter(&beside()).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn update_writes_nothing_if_change_declines_or_fails() {
        let (_folder, store) = open();
        let missing = Error::Unavailable { reason: "missing".to_owned() };
        let change = |count: Option<Count>| {
            let count = count.ok_or(missing.clone()).map(Change::Keep);
            async { count }
        };
        let failed = store.update(&key(), change).await;
        assert!(matches!(failed, Err(Error::Unavailable { .. })), "{failed:?}");
        write(&store, 7).await;
        let commits = store.stats().commits;
        assert_eq!(store.update(&key(), change).await.unwrap(), Count(7));
        assert_eq!(store.stats().commits, commits);
    }

    #[tokio::test]
    async fn update_starts_over_after_conflict_with_other_writer() {
        let (_folder, store) = open();
        let calls = Cell::new(0);
        let change = |count: Option<Count>| {
            let (call, store) = (calls.get(), &store);
            calls.set(call + 1);
            async move {
                let mut commit = with_beside();
                match call {
                    // The row is created, then changed, then another row of the commit is changed.
                    0 | 1 => write(store, 10 * (call + 1)).await,
                    2 => {
                        commit.expect(Expect::Absent(beside()));
                        store.commit(with_beside()).await?;
                    }
                    _ => {}
                }
                Ok::<_, Error>(Change::Put(
                    Count(count.map_or(0, |Count(count)| count) + 1),
                    commit,
                ))
            }
        };
        assert_eq!(store.update(&key(), change).await.unwrap(), Count(21));
        assert_eq!(calls.get(), 4);
        assert_eq!(store.counter(&beside()).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn update_loses_no_concurrent_change() {
        let (_folder, store) = open();
        let increments = (0..20).map(|_| increment(&store));
        for count in futures_util::future::join_all(increments).await {
            count.unwrap();
        }
        assert_eq!(store.read(&key()).await.unwrap(), Some(Count(20)));
        assert_eq!(store.counter(&beside()).await.unwrap(), 20);
    }

    #[tokio::test]
    async fn update_gives_up_at_limit() {
        let (_folder, store) = open();
        let calls = Cell::new(0);
        let change = |_count: Option<Count>| {
            calls.set(calls.get() + 1);
            let (call, store) = (calls.get(), &store);
            async move {
                write(store, call).await;
                Ok::<_, Error>(Change::Put(Count(0), Commit::new()))
            }
        };
        let failed = store.update(&key(), change).await;
        assert!(matches!(failed, Err(Error::Conflict { key: held }) if held == key()));
        assert_eq!(usize::try_from(calls.get()).unwrap(), TRIES_MAX);
    }
}
