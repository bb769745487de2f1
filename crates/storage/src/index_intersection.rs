//! Intersects indexes: finds the ids that several indexes have in common, newest first.
//!
//! Each index seeks to the furthest position that another index has reached, so rows that do not
//! match are skipped without being read. The number of seeks is limited: a search that reaches the
//! limit returns its position, and the next search continues there.

use std::ops::Bound;

use super::error::Error;
use super::key::Key;
use super::store::Store;
use super::view::Moment;
use orrery_domain::ids::Id;

/// An id as it appears at the end of index keys: inverted, so that newer ids come first.
type IdKey = [u8; 16];

/// Rows whose keys are a prefix followed by an id, as written by `Key::id_newest_first`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub prefix: Key,
    /// Includes only rows with this one-byte value; other rows are skipped one by one.
    pub value: Option<u8>,
}

impl From<Key> for Index {
    fn from(prefix: Key) -> Self {
        Self { prefix, value: None }
    }
}

/// The ids to look for.
#[derive(Debug, Clone)]
pub struct Search<T> {
    /// Groups of indexes. An id matches if each group has at least one index that contains the id.
    pub groups: Vec<Vec<Index>>,
    /// Include only ids older than this id.
    pub older_than: Option<T>,
    /// Include only this id and newer ids.
    pub oldest: Option<T>,
    /// The maximum number of ids.
    pub limit: usize,
    /// The maximum number of seeks. At this limit, the search returns even if it is incomplete.
    pub max_seeks: usize,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// The ids found, newest first.
    pub ids: Vec<T>,
    /// The id after which there may be more matches; it need not be one of `ids`. `None` at the end
    /// of the indexes.
    pub more_after: Option<T>,
    /// The number of seeks that the search took.
    pub seeks: usize,
}

impl Store {
    /// Returns the ids that every group of indexes contains.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn search<T: Id + Send + 'static>(
        &self,
        search: Search<T>,
    ) -> Result<Found<T>, Error> {
        let Search { groups, older_than, oldest, limit, max_seeks } = search;
        self.reading(move |moment| {
            let groups = groups.into_iter().map(|indexes| Group::of(moment, indexes)).collect();
            let budget = Budget { seeks: 0, max: max_seeks.max(1) };
            let run = Run { groups, budget, last: oldest.map(id_key) };
            run.find(older_than.map(id_key), limit)
        })
        .await
    }

    /// Returns up to `most` distinct prefixes that begin with `prefix` and are followed by an id.
    /// Costs one seek per prefix, regardless of the number of rows.
    ///
    /// # Errors
    /// The same errors as [`Store::get`].
    pub async fn branches(&self, prefix: &Key, most: usize) -> Result<Vec<Key>, Error> {
        let prefix = prefix.as_bytes().to_vec();
        self.reading(move |moment| {
            let mut found = Vec::new();
            let mut from = prefix.clone();
            while found.len() < most {
                let next = moment.range(Bound::Included(&from)).next().transpose();
                let Some((key, _)) = next? else { break };
                let key = key.as_bytes();
                let branch = key.len().checked_sub(size_of::<IdKey>()).and_then(|at| key.get(..at));
                let Some(branch) = branch.filter(|_| key.starts_with(&prefix)) else { break };
                found.push(Key::from_bytes(branch));
                from = [branch, &[u8::MAX; size_of::<IdKey>() + 1]].concat();
            }
            Ok(found)
        })
        .await
    }
}

fn id_key<T: Id>(id: T) -> IdKey {
    id.bytes().map(|byte| !byte)
}

fn id_at<T: Id>(key: IdKey) -> T {
    T::from(uuid::Uuid::from_bytes(key.map(|byte| !byte)))
}

/// The key before `key`; `None` before the first.
fn before(key: IdKey) -> Option<IdKey> {
    u128::from_be_bytes(key).checked_sub(1).map(u128::to_be_bytes)
}

/// The key after `key`; `None` after the last.
fn behind(key: IdKey) -> Option<IdKey> {
    u128::from_be_bytes(key).checked_add(1).map(u128::to_be_bytes)
}

struct Budget {
    seeks: usize,
    max: usize,
}

/// The result of a seek in an index.
#[derive(Clone, Copy)]
enum Seek {
    At(IdKey),
    Ended,
    /// The budget is exhausted. There is no match up to and including this key.
    BudgetExhausted(IdKey),
}

struct Run<'m> {
    groups: Vec<Group<'m>>,
    budget: Budget,
    /// The last key to consider.
    last: Option<IdKey>,
}

/// Alternative indexes, at least one of which must contain the id.
struct Group<'m> {
    indexes: Vec<Rows<'m>>,
}

/// The rows of one index.
struct Rows<'m> {
    moment: &'m Moment,
    prefix: Vec<u8>,
    value: Option<u8>,
    /// A cursor at the index's first row at or after the target of the last seek.
    cursor: Cursor,
}

#[derive(Clone, Copy)]
enum Cursor {
    Unread,
    At(IdKey),
    Ended,
}

impl Run<'_> {
    fn find<T: Id>(mut self, after: Option<IdKey>, limit: usize) -> Result<Found<T>, Error> {
        let mut found = Found { ids: Vec::new(), more_after: None, seeks: 0 };
        let mut target = match after {
            None => Some(IdKey::default()),
            Some(after) => behind(after),
        };
        let mut reached = after;
        while let Some(wanted) = target {
            if found.ids.len() >= limit || self.budget.seeks >= self.budget.max {
                found.more_after = reached.map(id_at);
                break;
            }
            let key = match self.first_in_all(wanted)? {
                Seek::At(key) => key,
                Seek::Ended => break,
                Seek::BudgetExhausted(key) => {
                    found.more_after = Some(id_at(key));
                    break;
                }
            };
            if self.last.is_some_and(|last| key > last) {
                break;
            }
            if key == wanted && self.agree(key) {
                found.ids.push(id_at(key));
                reached = Some(key);
                target = behind(key);
            } else {
                // There is no match between the two positions.
                reached = before(key);
                target = Some(key);
            }
        }
        found.seeks = self.budget.seeks;
        Ok(found)
    }

    /// Seeks one group after the other to the furthest key reached so far, starting at `wanted`.
    /// Returns the last key reached.
    fn first_in_all(&mut self, wanted: IdKey) -> Result<Seek, Error> {
        let mut furthest = wanted;
        for group in &mut self.groups {
            match group.seek(furthest, &mut self.budget)? {
                Seek::At(key) => furthest = furthest.max(key),
                other @ (Seek::Ended | Seek::BudgetExhausted(_)) => return Ok(other),
            }
        }
        Ok(Seek::At(furthest))
    }

    fn agree(&self, key: IdKey) -> bool {
        self.groups.iter().all(|group| group.has(key))
    }
}

impl<'m> Group<'m> {
    fn of(moment: &'m Moment, indexes: Vec<Index>) -> Self {
        let rows = |Index { prefix, value }| {
            let prefix = prefix.as_bytes().to_vec();
            Rows { moment, prefix, value, cursor: Cursor::Unread }
        };
        Self { indexes: indexes.into_iter().map(rows).collect() }
    }

    /// Returns the group's first key at or after `wanted`.
    fn seek(&mut self, wanted: IdKey, budget: &mut Budget) -> Result<Seek, Error> {
        let mut first = Seek::Ended;
        for index in &mut self.indexes {
            let seek = index.seek(wanted, budget)?;
            first = match (first, seek) {
                (Seek::Ended, other) | (other, Seek::Ended) => other,
                (Seek::At(a) | Seek::BudgetExhausted(a), Seek::At(b)) if b <= a => Seek::At(b),
                (Seek::At(a) | Seek::BudgetExhausted(a), Seek::BudgetExhausted(b)) if b < a => {
                    Seek::BudgetExhausted(b)
                }
                (nearer, _) => nearer,
            };
        }
        Ok(first)
    }

    fn has(&self, key: IdKey) -> bool {
        self.indexes.iter().any(|index| matches!(index.cursor, Cursor::At(at) if at == key))
    }
}

impl Rows<'_> {
    fn seek(&mut self, wanted: IdKey, budget: &mut Budget) -> Result<Seek, Error> {
        match self.cursor {
            Cursor::At(key) if key >= wanted => return Ok(Seek::At(key)),
            Cursor::Ended => return Ok(Seek::Ended),
            Cursor::At(_) | Cursor::Unread => {}
        }
        let from = [&self.prefix[..], &wanted].concat();
        for row in self.moment.range(Bound::Included(&from)) {
            let (row_key, value) = row?;
            let key = row_key.as_bytes().strip_prefix(&self.prefix[..]);
            let Some(key) = key.and_then(|key| IdKey::try_from(key).ok()) else { break };
            budget.seeks += 1;
            if self.value.is_none_or(|wanted| *value == [wanted]) {
                self.cursor = Cursor::At(key);
                return Ok(Seek::At(key));
            }
            if budget.seeks >= budget.max {
                self.cursor = Cursor::Unread;
                return Ok(Seek::BudgetExhausted(key));
            }
        }
        budget.seeks += 1;
        self.cursor = Cursor::Ended;
        Ok(Seek::Ended)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::{Commit, Options, Table};
    use super::*;
    use orrery_domain::ids::ExecutionId;

    fn id(number: u8) -> ExecutionId {
        let mut bytes = [0; 16];
        bytes[15] = number;
        ExecutionId::from(bytes)
    }

    fn index(number: usize) -> Key {
        Key::table(Table::Facet).text(&"x".repeat(number))
    }

    /// The rows of every second index have one of two values, and the search filters by one of
    /// these values.
    fn asked(number: usize) -> Index {
        Index { prefix: index(number), value: (number % 2 == 1).then_some(7) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Reads the results page by page, each with few seeks, and compares them with
        /// intersections of sets.
        #[test]
        fn index_intersection_finds_exactly_the_common_ids(
            indexes in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 0..60), 4),
            split in 0_usize..5,
            limit in 1_usize..7,
            max_seeks in 1_usize..9,
            oldest in prop::option::of(any::<u8>()),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let folder = tempfile::tempdir().unwrap();
                let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 100 };
                let store = Store::open(&options).unwrap();
                let mut commit = Commit::new();
                for (number, ids) in indexes.iter().enumerate() {
                    for one in ids {
                        commit.put_bytes(index(number).id_newest_first(id(*one)), vec![7]);
                    }
                    for other in (0..=255).filter(|other| number % 2 == 1 && !ids.contains(other)) {
                        commit.put_bytes(index(number).id_newest_first(id(other)), vec![8]);
                    }
                }
                store.commit(commit).await.unwrap();
                let groups = [0..split.min(4), split.min(4)..4].map(|of| of.collect::<Vec<_>>());
                let groups: Vec<_> = groups.into_iter().filter(|of| !of.is_empty()).collect();
                let union = |of: &Vec<usize>| -> BTreeSet<u8> {
                    of.iter().flat_map(|number| indexes[*number].iter().copied()).collect()
                };
                let all = groups.iter().map(union).reduce(|a, b| &a & &b).unwrap();
                let expected: Vec<_> = all
                    .into_iter()
                    .rev()
                    .filter(|found| oldest.is_none_or(|oldest| *found >= oldest))
                    .map(id)
                    .collect();
                let mut search = Search {
                    groups: groups
                        .iter()
                        .map(|of| of.iter().map(|number| asked(*number)).collect())
                        .collect(),
                    older_than: None,
                    oldest: oldest.map(id),
                    limit,
                    max_seeks,
                };
                let mut found = Vec::new();
                for _ in 0..5000 {
                    let page = store.search(search.clone()).await.unwrap();
                    assert!(page.ids.len() <= limit);
                    assert!(page.seeks <= max_seeks + 4, "{} seeks of {max_seeks}", page.seeks);
                    found.extend(page.ids);
                    search.older_than = page.more_after;
                    if search.older_than.is_none() {
                        break;
                    }
                }
                assert_eq!(found, expected);
                let filled = (0..4).filter(|n| n % 2 == 1 || !indexes[*n].is_empty());
                let branches = store.branches(&Key::table(Table::Facet), 10).await.unwrap();
                assert_eq!(branches, filled.map(index).collect::<Vec<_>>());
            });
        }
    }
}
