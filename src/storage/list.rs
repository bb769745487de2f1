//! Counted lists: rows that are appended, counted exactly, and jumped into at any depth in one read.
//!
//! Each row gets the next number of its list from the writer, which alone knows it; the counter
//! stands under the list's own key, the rows behind it with their numbers inverted, newest first. A
//! row that is deleted leaves its number unused and still counts.

use super::error::Error;
use super::key::Key;
use super::store::{PAGE_MAX, Store};
use super::writer;

/// A part of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub rows: Vec<Vec<u8>>,
    /// How many were ever appended.
    pub total: u64,
}

impl Store {
    /// Up to `limit` rows behind the newest `offset` ones. Takes the time of one short read, however
    /// long the list and however deep the offset. Rows appended meanwhile do not shift it.
    ///
    /// # Errors
    /// As [`Store::get`]; [`Error::Malformed`] when `list` is no list.
    pub async fn list(&self, list: &Key, offset: u64, limit: usize) -> Result<List, Error> {
        let list = list.clone();
        self.reading(move |db| {
            let counter = db.get(list.as_bytes()).map_err(|error| Error::unavailable(&error))?;
            let total = writer::counter(counter.as_deref())?;
            let total = u64::try_from(total).unwrap_or_default();
            let mut rows = Vec::new();
            let Some(first) = total.checked_sub(offset).and_then(|left| left.checked_sub(1)) else {
                return Ok(List { rows, total });
            };
            for number in (0..=first).rev().take(limit.min(PAGE_MAX)) {
                let key = list.clone().number_largest_first(number);
                let found = db.get(key.as_bytes()).map_err(|error| Error::unavailable(&error))?;
                rows.extend(found.map(|row| row.to_vec()));
            }
            Ok(List { rows, total })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Commit, Options, Table};
    use super::*;

    fn open(folder: &tempfile::TempDir) -> Store {
        let folder = folder.path().to_path_buf();
        Store::open(&Options { folder, inline_bytes: 100 }).unwrap()
    }

    fn name(list: u8) -> Key {
        Key::table(Table::WorkflowExecution).raw(&[list; 16])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        /// Batches of commits of appends to two lists, against two vectors, and through a restart.
        #[test]
        fn a_list_is_what_was_appended(
            batches in prop::collection::vec(
                prop::collection::vec(prop::collection::vec((0_u8..2, any::<u8>()), 0..4), 0..6),
                0..5,
            ),
            offset in 0_u64..30,
            limit in 0_usize..10,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let folder = tempfile::tempdir().unwrap();
                let mut store = open(&folder);
                let mut expected = [Vec::new(), Vec::new()];
                for batch in &batches {
                    let commits = batch.iter().map(|appends| {
                        let mut commit = Commit::new();
                        for (list, value) in appends {
                            commit.append(name(*list), vec![*value]);
                        }
                        store.commit(commit)
                    });
                    for done in futures_util::future::join_all(commits).await {
                        done.unwrap();
                    }
                    for (list, value) in batch.iter().flatten() {
                        expected[usize::from(*list)].push(vec![*value]);
                    }
                }
                for reopened in [false, true] {
                    if reopened {
                        store.clone().close().await;
                        drop(store);
                        store = open(&folder);
                    }
                    for (list, values) in (0_u8..2).zip(&expected) {
                        let found = store.list(&name(list), offset, limit).await.unwrap();
                        let skip = usize::try_from(offset).unwrap();
                        let rows: Vec<_> =
                            values.iter().rev().skip(skip).take(limit).cloned().collect();
                        let total = values.len() as u64;
                        assert_eq!(found, List { rows, total });
                    }
                }
            });
        }
    }
}
