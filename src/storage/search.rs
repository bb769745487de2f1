//! Searches: which ids stand in all of several indexes, newest first.
//!
//! Every index jumps to the place where the others are, so that what does not match is skipped and
//! not read; the number of such jumps is limited. A search that reaches the limit says how far it
//! came, and the next one goes on there. No row's value is ever read.

use super::error::Error;
use super::key::Key;
use super::store::Store;
use crate::domain::ids::Id;

/// An id as index rows have it at their end: inverted, so that newer ones come first.
type Place = [u8; 16];

/// The ids to look for.
#[derive(Debug, Clone)]
pub struct Search<T> {
    /// An id is found when, of each of these groups, one of the indexes has it. An index is the
    /// prefix of rows whose keys go on with nothing but the id as `Key::id_newest_first` writes it.
    pub groups: Vec<Vec<Key>>,
    /// Only ids older than this one.
    pub older_than: Option<T>,
    /// Only this id and newer ones.
    pub oldest: Option<T>,
    /// At most so many.
    pub limit: usize,
    /// After so many jumps it ends, complete or not.
    pub jumps: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// The newest first.
    pub ids: Vec<T>,
    /// There may be more behind this id, which need not be one of those found; `None`: that is all.
    pub more_behind: Option<T>,
    /// How many jumps it took.
    pub jumps: usize,
}

impl Store {
    /// The ids that stand in all groups of indexes.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn search<T: Id + Send + 'static>(
        &self,
        search: Search<T>,
    ) -> Result<Found<T>, Error> {
        let Search { groups, older_than, oldest, limit, jumps } = search;
        self.reading(move |db| {
            let groups = groups.into_iter().map(|indexes| Group::of(db, indexes)).collect();
            let run = Run { groups, jumps: 0, jumps_max: jumps.max(1), last: oldest.map(inverted) };
            run.find(older_than.map(inverted), limit)
        })
        .await
    }
}

fn inverted<T: Id>(id: T) -> Place {
    id.bytes().map(|byte| !byte)
}

fn id_at<T: Id>(place: Place) -> T {
    T::from(uuid::Uuid::from_bytes(place.map(|byte| !byte)))
}

/// The place behind `place`; `None` behind the last.
fn behind(place: Place) -> Option<Place> {
    u128::from_be_bytes(place).checked_add(1).map(u128::to_be_bytes)
}

struct Run<'db> {
    groups: Vec<Group<'db>>,
    jumps: usize,
    jumps_max: usize,
    /// Nothing behind this place is looked at.
    last: Option<Place>,
}

/// Indexes of which one has to have the id.
struct Group<'db> {
    indexes: Vec<Index<'db>>,
}

struct Index<'db> {
    db: &'db sled::Db,
    prefix: Vec<u8>,
    /// Where it stands: its first row at or behind the last jump's target.
    at: Standing,
}

#[derive(Clone, Copy)]
enum Standing {
    Unread,
    At(Place),
    Ended,
}

impl Run<'_> {
    fn find<T: Id>(mut self, after: Option<Place>, limit: usize) -> Result<Found<T>, Error> {
        let mut found = Found { ids: Vec::new(), more_behind: None, jumps: 0 };
        let mut target = match after {
            None => Some(Place::default()),
            Some(after) => behind(after),
        };
        let mut reached = after;
        while let Some(wanted) = target {
            if found.ids.len() >= limit || self.jumps >= self.jumps_max {
                found.more_behind = reached.map(id_at);
                break;
            }
            let Some(place) = self.first_in_all(wanted)? else { break };
            if self.last.is_some_and(|last| place > last) {
                break;
            }
            if place == wanted && self.agree(place) {
                found.ids.push(id_at(place));
                reached = Some(place);
                target = behind(place);
            } else {
                // Nothing stands between the two in all groups.
                reached = u128::from_be_bytes(place).checked_sub(1).map(u128::to_be_bytes);
                target = Some(place);
            }
        }
        found.jumps = self.jumps;
        Ok(found)
    }

    /// The furthest of the groups' first places at or behind `wanted`; `None` when one has none.
    fn first_in_all(&mut self, wanted: Place) -> Result<Option<Place>, Error> {
        let mut furthest = wanted;
        for group in &mut self.groups {
            match group.jump(furthest, &mut self.jumps)? {
                None => return Ok(None),
                Some(place) => furthest = furthest.max(place),
            }
        }
        Ok(Some(furthest))
    }

    fn agree(&self, place: Place) -> bool {
        self.groups.iter().all(|group| group.has(place))
    }
}

impl<'db> Group<'db> {
    fn of(db: &'db sled::Db, indexes: Vec<Key>) -> Self {
        let index = |key: Key| Index { db, prefix: key.as_bytes().to_vec(), at: Standing::Unread };
        Self { indexes: indexes.into_iter().map(index).collect() }
    }

    /// Its first place at or behind `wanted`.
    fn jump(&mut self, wanted: Place, jumps: &mut usize) -> Result<Option<Place>, Error> {
        let mut first: Option<Place> = None;
        for index in &mut self.indexes {
            if let Some(place) = index.jump(wanted, jumps)? {
                first = Some(first.map_or(place, |first| first.min(place)));
            }
        }
        Ok(first)
    }

    fn has(&self, place: Place) -> bool {
        self.indexes.iter().any(|index| matches!(index.at, Standing::At(at) if at == place))
    }
}

impl Index<'_> {
    fn jump(&mut self, wanted: Place, jumps: &mut usize) -> Result<Option<Place>, Error> {
        match self.at {
            Standing::At(place) if place >= wanted => return Ok(Some(place)),
            Standing::Ended => return Ok(None),
            Standing::At(_) | Standing::Unread => {}
        }
        *jumps += 1;
        let from = [&self.prefix[..], &wanted].concat();
        let next = self.db.range(from..).next().transpose();
        let next = next.map_err(|error| Error::unavailable(&error))?;
        let place = next.as_ref().and_then(|(key, _)| {
            let place = key.strip_prefix(&self.prefix[..])?;
            Place::try_from(place).ok()
        });
        self.at = place.map_or(Standing::Ended, Standing::At);
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::{Commit, Options, Table};
    use super::*;
    use crate::domain::ids::ExecutionId;

    fn id(number: u8) -> ExecutionId {
        let mut bytes = [0; 16];
        bytes[15] = number;
        ExecutionId::from(bytes)
    }

    fn index(number: usize) -> Key {
        Key::table(Table::Facet).text(&"x".repeat(number))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Page after page with few jumps, against sets.
        #[test]
        fn what_is_found_is_what_stands_in_all_groups(
            indexes in prop::collection::vec(prop::collection::btree_set(any::<u8>(), 0..60), 4),
            split in 0_usize..5,
            limit in 1_usize..7,
            jumps in 1_usize..9,
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
                        commit.put_bytes(index(number).id_newest_first(id(*one)), Vec::new());
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
                        .map(|of| of.iter().map(|number| index(*number)).collect())
                        .collect(),
                    older_than: None,
                    oldest: oldest.map(id),
                    limit,
                    jumps,
                };
                let mut found = Vec::new();
                for _ in 0..2000 {
                    let page = store.search(search.clone()).await.unwrap();
                    assert!(page.ids.len() <= limit);
                    assert!(page.jumps <= jumps + 4, "{} jumps of {jumps}", page.jumps);
                    found.extend(page.ids);
                    search.older_than = page.more_behind;
                    if search.older_than.is_none() {
                        break;
                    }
                }
                assert_eq!(found, expected);
            });
        }
    }
}
