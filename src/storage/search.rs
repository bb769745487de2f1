//! Searches: which ids stand in all of several indexes, newest first.
//!
//! Every index jumps to the place where the others are, so that what does not match is skipped and
//! not read; the number of such jumps is limited. A search that reaches the limit says how far it
//! came, and the next one goes on there.

use std::ops::Bound;

use super::error::Error;
use super::key::Key;
use super::store::Store;
use super::view::Moment;
use crate::domain::ids::Id;

/// An id as index rows have it at their end: inverted, so that newer ones come first.
type Place = [u8; 16];

/// Rows whose keys go on behind a prefix with nothing but an id as `Key::id_newest_first` writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub prefix: Key,
    /// Only rows whose value is this one byte; the others are passed by one by one.
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
    /// An id is found when, of each of these groups, one of the indexes has it.
    pub groups: Vec<Vec<Index>>,
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
        self.reading(move |moment| {
            let groups = groups.into_iter().map(|indexes| Group::of(moment, indexes)).collect();
            let budget = Budget { jumps: 0, most: jumps.max(1) };
            let run = Run { groups, budget, last: oldest.map(inverted) };
            run.find(older_than.map(inverted), limit)
        })
        .await
    }

    /// The different prefixes under `prefix` behind which an id follows, up to `most` of them. Costs
    /// a jump for each, however many rows it has.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn branches(&self, prefix: &Key, most: usize) -> Result<Vec<Key>, Error> {
        let prefix = prefix.as_bytes().to_vec();
        self.reading(move |moment| {
            let (mut found, mut from) = (Vec::new(), prefix.clone());
            while found.len() < most {
                let next = moment.range(Bound::Included(&from)).next().transpose();
                let Some((key, _)) = next? else { break };
                let key = key.as_bytes();
                let branch = key.len().checked_sub(size_of::<Place>()).and_then(|at| key.get(..at));
                let Some(branch) = branch.filter(|_| key.starts_with(&prefix)) else { break };
                found.push(Key::from_bytes(branch));
                from = [branch, &[u8::MAX; size_of::<Place>() + 1]].concat();
            }
            Ok(found)
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

/// The place before `place`; `None` before the first.
fn before(place: Place) -> Option<Place> {
    u128::from_be_bytes(place).checked_sub(1).map(u128::to_be_bytes)
}

/// The place behind `place`; `None` behind the last.
fn behind(place: Place) -> Option<Place> {
    u128::from_be_bytes(place).checked_add(1).map(u128::to_be_bytes)
}

struct Budget {
    jumps: usize,
    most: usize,
}

/// Where a jump leads.
#[derive(Clone, Copy)]
enum Jump {
    At(Place),
    Ended,
    /// No more jumps: nothing stands up to this place.
    Tired(Place),
}

struct Run<'m> {
    groups: Vec<Group<'m>>,
    budget: Budget,
    /// Nothing behind this place is looked at.
    last: Option<Place>,
}

/// Indexes of which one has to have the id.
struct Group<'m> {
    indexes: Vec<Rows<'m>>,
}

/// The rows of one index.
struct Rows<'m> {
    moment: &'m Moment,
    prefix: Vec<u8>,
    value: Option<u8>,
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
            if found.ids.len() >= limit || self.budget.jumps >= self.budget.most {
                found.more_behind = reached.map(id_at);
                break;
            }
            let place = match self.first_in_all(wanted)? {
                Jump::At(place) => place,
                Jump::Ended => break,
                Jump::Tired(place) => {
                    found.more_behind = Some(id_at(place));
                    break;
                }
            };
            if self.last.is_some_and(|last| place > last) {
                break;
            }
            if place == wanted && self.agree(place) {
                found.ids.push(id_at(place));
                reached = Some(place);
                target = behind(place);
            } else {
                // Nothing stands between the two in all groups.
                reached = before(place);
                target = Some(place);
            }
        }
        found.jumps = self.budget.jumps;
        Ok(found)
    }

    /// The furthest of the groups' first places at or behind `wanted`.
    fn first_in_all(&mut self, wanted: Place) -> Result<Jump, Error> {
        let mut furthest = wanted;
        for group in &mut self.groups {
            match group.jump(furthest, &mut self.budget)? {
                Jump::At(place) => furthest = furthest.max(place),
                other @ (Jump::Ended | Jump::Tired(_)) => return Ok(other),
            }
        }
        Ok(Jump::At(furthest))
    }

    fn agree(&self, place: Place) -> bool {
        self.groups.iter().all(|group| group.has(place))
    }
}

impl<'m> Group<'m> {
    fn of(moment: &'m Moment, indexes: Vec<Index>) -> Self {
        let rows = |Index { prefix, value }| {
            let prefix = prefix.as_bytes().to_vec();
            Rows { moment, prefix, value, at: Standing::Unread }
        };
        Self { indexes: indexes.into_iter().map(rows).collect() }
    }

    /// Its first place at or behind `wanted`.
    fn jump(&mut self, wanted: Place, budget: &mut Budget) -> Result<Jump, Error> {
        let mut first = Jump::Ended;
        for index in &mut self.indexes {
            let jump = index.jump(wanted, budget)?;
            first = match (first, jump) {
                (Jump::Ended, other) | (other, Jump::Ended) => other,
                (Jump::At(a) | Jump::Tired(a), Jump::At(b)) if b <= a => Jump::At(b),
                (Jump::At(a) | Jump::Tired(a), Jump::Tired(b)) if b < a => Jump::Tired(b),
                (nearer, _) => nearer,
            };
        }
        Ok(first)
    }

    fn has(&self, place: Place) -> bool {
        self.indexes.iter().any(|index| matches!(index.at, Standing::At(at) if at == place))
    }
}

impl Rows<'_> {
    fn jump(&mut self, wanted: Place, budget: &mut Budget) -> Result<Jump, Error> {
        match self.at {
            Standing::At(place) if place >= wanted => return Ok(Jump::At(place)),
            Standing::Ended => return Ok(Jump::Ended),
            Standing::At(_) | Standing::Unread => {}
        }
        let from = [&self.prefix[..], &wanted].concat();
        for row in self.moment.range(Bound::Included(&from)) {
            let (key, value) = row?;
            let place = key.as_bytes().strip_prefix(&self.prefix[..]);
            let Some(place) = place.and_then(|place| Place::try_from(place).ok()) else { break };
            budget.jumps += 1;
            if self.value.is_none_or(|wanted| *value == [wanted]) {
                self.at = Standing::At(place);
                return Ok(Jump::At(place));
            }
            if budget.jumps >= budget.most {
                self.at = Standing::Unread;
                return Ok(Jump::Tired(place));
            }
        }
        budget.jumps += 1;
        self.at = Standing::Ended;
        Ok(Jump::Ended)
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

    /// Every other index has rows of two values, of which one is asked for.
    fn asked(number: usize) -> Index {
        Index { prefix: index(number), value: (number % 2 == 1).then_some(7) }
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
                    jumps,
                };
                let mut found = Vec::new();
                for _ in 0..5000 {
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
                let filled = (0..4).filter(|n| n % 2 == 1 || !indexes[*n].is_empty());
                let branches = store.branches(&Key::table(Table::Facet), 10).await.unwrap();
                assert_eq!(branches, filled.map(index).collect::<Vec<_>>());
            });
        }
    }
}
