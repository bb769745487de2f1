//! Compares blocks with a plain map after every change to an entry, and after a crash at any of
//! these changes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::tree;

type Model = BTreeMap<Key, Vec<u8>>;
type Changes = BTreeMap<Key, Option<Vec<u8>>>;
type Held = BTreeMap<Vec<u8>, Vec<u8>>;

/// An in-memory map of entries, with a copy after each change.
#[derive(Default)]
struct Map {
    now: RefCell<Held>,
    history: RefCell<Vec<Held>>,
}

impl Map {
    fn of(held: Held) -> Self {
        Self { now: RefCell::new(held), ..Self::default() }
    }

    fn note(&self) {
        self.history.borrow_mut().push(self.now.borrow().clone());
    }
}

fn entry((bound, held): (&Vec<u8>, &Vec<u8>)) -> Entry {
    (bound.as_slice().into(), held.as_slice().into())
}

impl Entries for &Map {
    fn first_from(&self, from: Bound<&[u8]>) -> Result<Option<Entry>, Error> {
        let from = (from.map(<[u8]>::to_vec), Bound::Unbounded);
        Ok(self.now.borrow().range(from).next().map(entry))
    }
    fn put(&self, bound: &[u8], held: &[u8]) -> Result<(), Error> {
        self.now.borrow_mut().insert(bound.to_vec(), held.to_vec());
        self.note();
        Ok(())
    }
    fn remove(&self, bound: &[u8]) -> Result<(), Error> {
        self.now.borrow_mut().remove(bound);
        self.note();
        Ok(())
    }
}

/// Entries that change during a lookup: the lookup sees keys up to `border` as they were before the
/// change, and later keys as they are after it.
struct Torn {
    before: Held,
    after: Held,
    border: Vec<u8>,
    lookups: Cell<usize>,
    /// The number of the lookup that sees the change.
    torn_at: usize,
}

impl Entries for &Torn {
    fn first_from(&self, from: Bound<&[u8]>) -> Result<Option<Entry>, Error> {
        let Torn { before, after, border, lookups, torn_at } = self;
        let mut earlier = before.range((from.map(<[u8]>::to_vec), Bound::Unbounded));
        let mut later = after.range((from.map(<[u8]>::to_vec), Bound::Unbounded));
        let lookup = lookups.replace(lookups.get() + 1);
        let found = match lookup.cmp(torn_at) {
            std::cmp::Ordering::Less => earlier.next(),
            std::cmp::Ordering::Greater => later.next(),
            std::cmp::Ordering::Equal => {
                let found = earlier.next().filter(|(bound, _)| *bound < border);
                found.or_else(|| later.find(|(bound, _)| *bound >= border))
            }
        };
        Ok(found.map(entry))
    }
    fn put(&self, _bound: &[u8], _held: &[u8]) -> Result<(), Error> {
        unreachable!("nothing is written here")
    }
    fn remove(&self, _bound: &[u8]) -> Result<(), Error> {
        unreachable!("nothing is written here")
    }
}

fn key(table: Table, number: u16) -> Key {
    Key::table(table).raw(&[7; 8]).raw(&number.to_be_bytes())
}

fn apply(entries: &impl Entries, changes: &Changes) {
    let mut writer = Writer::new(entries);
    for (key, value) in changes {
        writer.change(key, value.as_deref()).unwrap();
    }
    writer.finish().unwrap();
}

/// Checks that all ways of reading the entries, with `changes` applied, match the model.
fn check(entries: &(impl Entries + Clone), changes: &Changes, model: &Model) {
    let expected = |key: &Key| model.get(key).cloned();
    for table in [Table::Meta, Table::Execution, Table::Facet] {
        for key in (0..KEYS).map(|number| key(table, number)) {
            if !changes.contains_key(&key) {
                assert_eq!(get(entries, key.as_bytes()).unwrap(), expected(&key), "{key:?}");
            }
        }
    }
    let starts = [key(Table::Execution, 3), key(Table::Facet, KEYS / 2)];
    let starts = starts.iter().flat_map(|key| {
        [Bound::Included(key.as_bytes()), Bound::Excluded(key.as_bytes()), Bound::Unbounded]
    });
    for from in starts {
        let rows: Result<Vec<Row>, Error> = Iter::new(entries.clone(), from).collect();
        let rows = rows.unwrap();
        assert!(rows.is_sorted_by(|(one, _), (other, _)| one < other), "each row once, in order");
        let mut read: Model = rows.into_iter().collect();
        for (key, value) in changes {
            match value {
                Some(value) => drop(read.insert(key.clone(), value.clone())),
                None => drop(read.remove(key)),
            }
        }
        let from_there = |key: &Key| match from {
            Bound::Included(from) => key.as_bytes() >= from,
            Bound::Excluded(from) => key.as_bytes() > from,
            Bound::Unbounded => true,
        };
        read.retain(|key, _| from_there(key));
        let mut model = model.clone();
        model.retain(|key, _| from_there(key));
        assert_eq!(read, model);
    }
}

/// Repeats the check with lookups during which entries change.
fn check_torn(history: &[Held], changes: &Changes, model: &Model) {
    for moments in history.windows(3) {
        let [before, .., after] = moments else { continue };
        let bounds = before.keys().chain(after.keys());
        let moved = bounds.filter(|bound| before.get(*bound) != after.get(*bound));
        for border in moved {
            let torn = |torn_at| Torn {
                before: before.clone(),
                after: after.clone(),
                border: border.clone(),
                lookups: Cell::new(0),
                torn_at,
            };
            for key in (0..KEYS).map(|number| key(Table::Execution, number)) {
                if !changes.contains_key(&key) {
                    let read = get(&&torn(0), key.as_bytes()).unwrap();
                    assert_eq!(read.as_ref(), model.get(&key), "{key:?}");
                }
            }
            for torn_at in 0..6 {
                let torn = torn(torn_at);
                let rows = Iter::new(&torn, Bound::Unbounded).map(Result::unwrap);
                let read: Model = rows.filter(|(key, _)| !changes.contains_key(key)).collect();
                let mut model = model.clone();
                model.retain(|key, _| !changes.contains_key(key));
                assert_eq!(read, model);
            }
        }
    }
}

fn advance(model: &mut Model, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
}

const KEYS: u16 = 48;

fn change() -> impl Strategy<Value = (Key, Option<Vec<u8>>)> {
    const TABLES: [Table; 4] = [Table::Meta, Table::Execution, Table::Execution, Table::Facet];
    let value = prop_oneof![
        2 => Just(None),
        4 => (any::<u8>(), 0..700_usize).prop_map(Some),
        1 => (any::<u8>(), 3000..9000_usize).prop_map(Some),
    ];
    (prop::sample::select(&TABLES[..]), 0..KEYS, value).prop_map(|(table, number, value)| {
        let bytes = |(seed, length): (u8, usize)| -> Vec<u8> {
            (0..length).map(|at| seed.wrapping_mul((at * at % 251).to_le_bytes()[0])).collect()
        };
        (key(table, number), value.map(bytes))
    })
}

/// Some rounds are runs of adjacent rows, as new executions and retention produce them.
fn round() -> impl Strategy<Value = Changes> {
    let run = (0..KEYS, 1..KEYS, any::<bool>(), 0..900_usize).prop_map(
        |(first, count, is_removed, length)| {
            let run = first..(first + count).min(KEYS);
            run.map(|number| (key(Table::Facet, number), (!is_removed).then(|| vec![1; length])))
                .collect()
        },
    );
    prop_oneof![
        prop::collection::btree_map(any::<u16>(), change(), 1..30)
            .prop_map(|changes| changes.into_values().collect()),
        run
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn blocks_match_map_at_every_step_and_after_any_crash(
        rounds in prop::collection::vec((round(), any::<prop::sample::Index>(), any::<bool>()), 1..8),
    ) {
        let mut held = Held::new();
        let mut model = Model::new();
        for (changes, crash, crashes) in rounds {
            advance(&mut model, &changes);
            if crashes {
                let map = Map::of(held.clone());
                apply(&&map, &changes);
                let history = map.history.take();
                if !history.is_empty() {
                    held = crash.get(&history).clone();
                }
            }
            let map = Map::of(held);
            check(&&map, &changes, &model);
            map.note();
            apply(&&map, &changes);
            let history = map.history.take();
            if !crashes {
                check_torn(&history, &changes, &model);
            }
            for moment in history {
                check(&&Map::of(moment), &changes, &model);
            }
            check(&&map, &Changes::new(), &model);
            held = map.now.take();
        }
    }

    #[test]
    fn blocks_in_the_engine_hold_what_a_map_holds(
        rounds in prop::collection::vec(round(), 1..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::new();
        for changes in rounds {
            let db = tree::open(folder.path()).unwrap();
            advance(&mut model, &changes);
            apply(&db, &changes);
            tree::flush(&db).unwrap();
            let read: Model = Iter::new(db.clone(), Bound::Unbounded)
                .map(Result::unwrap)
                .filter(|(key, _)| !tree::is_own(key))
                .collect();
            prop_assert_eq!(&read, &model);
        }
    }
}

fn run_of(table: Table, count: u16, length: usize) -> Changes {
    (0..count).map(|number| (key(table, number), Some(vec![7; length]))).collect()
}

#[test]
fn adjacent_rows_share_entries_except_in_meta() {
    let map = Map::default();
    apply(&&map, &run_of(Table::Facet, 400, 100));
    apply(&&map, &run_of(Table::Meta, 10, 100));
    let entries = map.now.borrow().len();
    assert!((20..30).contains(&entries), "{entries} entries: ten rows of Meta and some blocks");
    assert_eq!(map.now.borrow().range(vec![Table::Meta as u8]..).take(10).count(), 10);
}

#[test]
fn rows_added_one_by_one_share_entries() {
    let down: Vec<u16> = (0..400).rev().collect();
    let up: Vec<u16> = (0..400).collect();
    for order in [down, up] {
        let map = Map::default();
        for number in order {
            apply(&&map, &Changes::from([(key(Table::Facet, number), Some(vec![7; 100]))]));
        }
        let entries = map.now.borrow().len();
        assert!(entries <= 14, "{entries} entries for 400 rows of 111 bytes");
    }
}

#[test]
fn single_rows_of_earlier_formats_are_read_and_merged() {
    let map = Map::default();
    let mut model = Model::new();
    for (key, value) in run_of(Table::Facet, KEYS, 100) {
        let value = value.unwrap();
        map.now.borrow_mut().insert(key.as_bytes().to_vec(), pack::pack(&value).into_owned());
        model.insert(key, value);
    }
    check(&&map, &Changes::new(), &model);
    let changes = run_of(Table::Facet, KEYS, 90);
    advance(&mut model, &changes);
    apply(&&map, &changes);
    check(&&map, &Changes::new(), &model);
}

#[test]
fn unchanged_rows_and_deletions_of_missing_rows_write_nothing() {
    let map = Map::default();
    let changes = run_of(Table::Facet, 40, 100);
    apply(&&map, &changes);
    map.history.take();
    apply(&&map, &changes);
    let nothing = (100..200).map(|number| (key(Table::Facet, number), None)).collect();
    apply(&&map, &nothing);
    assert!(map.history.take().is_empty());
}

#[test]
fn damaged_blocks_are_reported() {
    let map = Map::default();
    apply(&&map, &run_of(Table::Facet, 20, 100));
    let (bound, held) =
        map.now.borrow().first_key_value().map(|(k, v)| (k.clone(), v.clone())).unwrap();
    for cut in 4..held.len() {
        map.now.borrow_mut().insert(bound.clone(), held[..cut].to_vec());
        assert!(get(&&map, key(Table::Facet, 5).as_bytes()).is_err(), "{cut}");
        assert!(Iter::new(&map, Bound::Unbounded).next().unwrap().is_err());
    }
}

/// A crash leaves rows in the entry from which they were moved. These rows must stay ignored when
/// the entry to which they were moved is removed.
#[test]
fn rows_left_behind_by_crash_stay_deleted() {
    let map = Map::default();
    let mut model = Model::new();
    let run = run_of(Table::Facet, 30, 100);
    advance(&mut model, &run);
    apply(&&map, &run);
    map.history.take();
    let grown = Changes::from([(key(Table::Facet, 0), Some(vec![8; 2000]))]);
    advance(&mut model, &grown);
    apply(&&map, &grown);
    let crashed = map.history.take().swap_remove(0);
    assert_eq!(crashed.len(), 2, "the first half is written, and the whole is still there");
    let map = Map::of(crashed);
    apply(&&map, &grown);
    assert!(map.history.take().is_empty(), "nothing has changed in the first half");
    check(&&map, &Changes::new(), &model);
    let moved = map.now.borrow().first_key_value().map(|(bound, _)| bound.clone()).unwrap();
    let gone: Changes = model.keys().map(|key| (key.clone(), None)).collect();
    let gone: Changes = gone.into_iter().filter(|(key, _)| key.as_bytes() <= &moved[..]).collect();
    advance(&mut model, &gone);
    apply(&&map, &gone);
    check(&&map, &Changes::new(), &model);
    assert_eq!(map.now.borrow().len(), 1);
}

/// Thousands of rows in one gap are written as they arrive, and a crash at any put loses none of
/// them.
#[test]
fn run_of_rows_into_gap_survives_crash_at_every_put() {
    let rows = |numbers: std::ops::Range<u16>, length: usize| -> Changes {
        numbers.map(|number| (key(Table::Facet, number), Some(vec![7; length]))).collect()
    };
    let map = Map::default();
    let mut model = Model::new();
    for old in [rows(0..20, 100), rows(5000..5020, 100)] {
        advance(&mut model, &old);
        apply(&&map, &old);
    }
    let mut run = rows(10..4000, 60);
    run.extend(rows(5010..5012, 300));
    let held = map.now.borrow().clone();
    map.history.take();
    apply(&&map, &run);
    let history = map.history.take();
    assert!(history.len() > 60, "{} puts", history.len());
    advance(&mut model, &run);
    for moment in history.into_iter().chain([held]).step_by(9) {
        let map = Map::of(moment);
        // A newer layer contains more rows than the layer being written.
        let later = rows(3990..4100, 80);
        let mut more = run.clone();
        more.extend(later.clone());
        let mut model = model.clone();
        advance(&mut model, &later);
        apply(&&map, &more);
        let read: Model = Iter::new(&map, Bound::Unbounded).map(Result::unwrap).collect();
        assert!(read == model);
        for (key, value) in &model {
            assert_eq!(get(&&map, key.as_bytes()).unwrap().as_ref(), Some(value));
        }
    }
}

/// Rows that no checkpoint changes are found at any time, both by key and in order.
#[test]
fn readers_find_every_row_while_neighbors_change() {
    const ROWS: u16 = 6_000;
    let folder = tempfile::tempdir().unwrap();
    let db = tree::open(folder.path()).unwrap();
    let still: Changes = (0..ROWS)
        .map(|number| (key(Table::Facet, number * 2), Some(number.to_be_bytes().repeat(30))))
        .collect();
    apply(&db, &still);
    let is_done = AtomicBool::new(false);
    let read = |seed: usize| {
        let mut looks = 0_usize;
        while !is_done.load(Ordering::Acquire) || looks == 0 {
            for number in (0..ROWS).map(|at| (usize::from(at) * 7919 + seed) % usize::from(ROWS)) {
                let number = u16::try_from(number).unwrap();
                let found = get(&db, key(Table::Facet, number * 2).as_bytes()).unwrap();
                assert_eq!(found, Some(number.to_be_bytes().repeat(30)), "{number}");
            }
            let rows = Iter::new(db.clone(), Bound::Unbounded).map(Result::unwrap);
            let found = rows.filter(|(key, _)| still.contains_key(key)).count();
            assert_eq!(found, usize::from(ROWS));
            looks += 1;
        }
    };
    std::thread::scope(|threads| {
        let readers = [1, 5_003].map(|seed| threads.spawn(move || read(seed)));
        for round in 0..40_u16 {
            let length = usize::from(round % 3) * 150;
            let changes: Changes = (0..ROWS)
                .filter(|number| number % 5 != round % 5)
                .map(|number| {
                    let value = (number % 7 != round % 7).then(|| vec![1; length]);
                    (key(Table::Facet, number * 2 + 1), value)
                })
                .collect();
            apply(&db, &changes);
        }
        is_done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
