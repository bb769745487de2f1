//! Counted lists: lists to which rows are appended. A list has an exact count, and a page at any
//! offset takes one read.
//!
//! Only the writer assigns numbers to rows: each row gets the next number in its list. The counter
//! is stored under the list's own key, and the rows follow under inverted numbers, newest first.
//! Rows are removed only at the old end; a counter after the rows contains the number of removed
//! rows.

use std::ops::Range;

use super::commit::Commit;
use super::error::Error;
use super::key::Key;
use super::scan::PAGE_MAX;
use super::store::Store;
use super::view::Moment;
use super::writer;

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub rows: Vec<Vec<u8>>,
    /// The number of rows in the list.
    pub total: u64,
}

/// The oldest rows of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldEnd {
    list: Key,
    first: u64,
    /// The rows, oldest first.
    pub rows: Vec<Vec<u8>>,
}

impl OldEnd {
    /// Adds the removal of the oldest `count` rows to `commit`. Only one task at a time may trim a
    /// list.
    pub fn trim(&self, commit: &mut Commit, count: usize) {
        let count = count.min(self.rows.len()) as u64;
        for number in self.first..self.first.saturating_add(count) {
            commit.delete(self.list.clone().number_largest_first(number));
        }
        commit.add(gone(&self.list), i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// The key of the number of removed rows. This key sorts after the rows.
fn gone(list: &Key) -> Key {
    list.clone().raw(&[u8::MAX; 9])
}

/// The range of a list's row numbers, from the oldest to the newest row (exclusive).
fn numbers(moment: &Moment, list: &Key) -> Result<Range<u64>, Error> {
    let counter = |key: &Key| {
        let count = writer::counter(moment.get(key)?.as_deref())?;
        Ok::<_, Error>(u64::try_from(count).unwrap_or_default())
    };
    Ok(counter(&gone(list))?..counter(list)?)
}

impl Store {
    /// Returns up to `limit` rows after the newest `offset` rows. Costs one short read, regardless
    /// of the list's length and the offset. Concurrent appends do not shift the page.
    ///
    /// # Errors
    /// The same errors as [`Store::get`]; [`Error::Malformed`] if `list` is not a list.
    pub async fn list(&self, list: &Key, offset: u64, limit: usize) -> Result<List, Error> {
        let list = list.clone();
        self.reading(move |moment| {
            let numbers = numbers(moment, &list)?;
            let total = numbers.end.saturating_sub(numbers.start);
            let newest = numbers.end.saturating_sub(offset);
            let wanted = (numbers.start..newest).rev().take(limit.min(PAGE_MAX));
            Ok(List { rows: read_numbers(moment, &list, wanted)?, total })
        })
        .await
    }

    /// Returns up to `limit` of the oldest rows.
    ///
    /// # Errors
    /// The same errors as [`Store::list`].
    pub async fn old_end(&self, list: &Key, limit: usize) -> Result<OldEnd, Error> {
        let list = list.clone();
        self.reading(move |moment| {
            let numbers = numbers(moment, &list)?;
            let first = numbers.start;
            let rows = read_numbers(moment, &list, numbers.take(limit.min(PAGE_MAX)))?;
            Ok(OldEnd { list, first, rows })
        })
        .await
    }
}

fn read_numbers(
    moment: &Moment,
    list: &Key,
    numbers: impl Iterator<Item = u64>,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut rows = Vec::new();
    for number in numbers {
        let key = list.clone().number_largest_first(number);
        rows.extend(moment.get(&key)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Options, Table};
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

        /// Compares batches of appends to two lists with two vectors, across a restart.
        #[test]
        fn list_contains_exactly_what_was_appended(
            batches in prop::collection::vec(
                prop::collection::vec(prop::collection::vec((0_u8..2, any::<u8>()), 0..4), 0..6),
                0..5,
            ),
            offset in 0_u64..30,
            limit in 0_usize..10,
            gone in 0_usize..4,
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
                    let old = store.old_end(&name(0), 3).await.unwrap();
                    assert_eq!(old.rows, expected[0][..expected[0].len().min(3)]);
                    let mut commit = Commit::new();
                    old.trim(&mut commit, gone);
                    store.commit(commit).await.unwrap();
                    expected[0].drain(..gone.min(old.rows.len()));
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
