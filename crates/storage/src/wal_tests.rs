//! Tests the store with its log: crashes at any step, visibility, and refused parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::checkpoint::Limits;
use super::faults::{Faults, Point, copy_folder};
use super::scan::Page;
use super::*;
use orrery_runtime::Tasks;

fn open(folder: &Path, limits: Limits, faults: &Arc<Faults>) -> Result<Store, Error> {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 100 };
    Store::open_with(
        &options,
        data_dir::make_and_lock(&options.folder)?,
        limits,
        Arc::clone(faults),
    )
}

fn usual(folder: &Path) -> Result<Store, Error> {
    open(folder, Limits::default(), &Arc::default())
}

fn key(name: &str, number: u64) -> Key {
    Key::table(Table::Facet).text(name).number_largest_first(number)
}

/// Creates the commit `number`; numbers begin at 1.
fn commit(number: u64) -> Commit {
    let mut commit = Commit::new();
    for side in ["a", "z"] {
        if number.is_multiple_of(5) {
            commit.delete(key(side, number % 7));
        } else {
            let length = usize::try_from(number * 37 % 300).unwrap();
            commit.put_bytes(
                key(side, number % 7),
                [&number.to_be_bytes()[..], &vec![7; length]].concat(),
            );
        }
    }
    commit.add(Key::table(Table::Lane), 1);
    commit
}

/// Returns the rows expected after this many commits.
fn expected(commits: u64) -> BTreeMap<Key, Vec<u8>> {
    let mut rows = BTreeMap::new();
    for number in 1..=commits {
        for write in commit(number).writes {
            match write {
                commit::Write::Put(key, value) => rows.insert(key, value),
                commit::Write::Delete(key) => rows.remove(&key),
                commit::Write::Add(key, _) => rows.insert(key, number.to_be_bytes().to_vec()),
                commit::Write::AddEach(..) | commit::Write::Append(..) => None,
            };
        }
    }
    rows
}

/// Returns all rows, and the number of commits according to the counter.
async fn rows(store: &Store) -> (u64, BTreeMap<Key, Vec<u8>>) {
    let page = Page { prefix: Key::from_bytes(&[]), after: None, before: None, limit: 10_000 };
    let rows = store.page(page).await.unwrap();
    let rows: BTreeMap<_, _> =
        rows.into_iter().filter(|(key, _)| key.as_bytes()[0] != Table::Meta as u8).collect();
    let count = rows
        .get(&Key::table(Table::Lane))
        .map_or(0, |row| u64::from_be_bytes(row[..].try_into().unwrap()));
    (count, rows)
}

/// Copies of a data folder. Each copy is what would remain after a crash at a given point.
#[derive(Default)]
struct Images {
    /// The number of copies still wanted at each point.
    wanted: Mutex<BTreeMap<Point, u32>>,
    /// The point, the copied folder, and the number of acknowledged commits.
    taken: Mutex<Vec<(Point, TempDir, u64)>>,
    answered: AtomicU64,
    in_checkpoint: AtomicBool,
}

const POINTS: [Point; 9] = [
    Point::Write,
    Point::Sync,
    Point::Publish,
    Point::Answer,
    Point::Row,
    Point::Applied,
    Point::Flush,
    Point::Marker,
    Point::Remove,
];

impl Images {
    /// Copies the folder three times at every point.
    fn watch(self: &Arc<Self>, folder: &Path, faults: &Faults) {
        *self.wanted.lock().unwrap() = POINTS.map(|point| (point, 3)).into();
        let images = Arc::clone(self);
        let folder = folder.to_path_buf();
        faults.at_points(move |point| images.reached(point, &folder));
    }

    fn reached(&self, point: Point, folder: &Path) {
        // One thread copies at a time; the others wait at their next point.
        let mut wanted = self.wanted.lock().unwrap();
        let is_writers = point <= Point::Answer;
        if !is_writers {
            self.in_checkpoint.store(point != Point::Ended, Ordering::SeqCst);
        }
        if is_writers && self.in_checkpoint.load(Ordering::SeqCst) {
            return;
        }
        let answered = self.answered.load(Ordering::SeqCst);
        let Some(left) = wanted.get_mut(&point).filter(|left| **left > 0 && answered > 20) else {
            return;
        };
        *left -= 1;
        let image = tempfile::tempdir().unwrap();
        copy_folder(folder, image.path());
        self.taken.lock().unwrap().push((point, image, answered));
    }

    fn is_done(&self) -> bool {
        self.wanted.lock().unwrap().values().all(|left| *left == 0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wal_crash_at_any_step_loses_no_acknowledged_commit() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::<Faults>::default();
    let images = Arc::<Images>::default();
    let store = open(folder.path(), Limits::EAGER, &faults).unwrap();
    images.watch(folder.path(), &faults);
    let mut number = 0;
    while !images.is_done() && number < 5000 {
        number += 1;
        store.commit(commit(number)).await.unwrap();
        images.answered.store(number, Ordering::SeqCst);
    }
    store.close().await;
    let taken = std::mem::take(&mut *images.taken.lock().unwrap());
    let seen: BTreeSet<Point> = taken.iter().map(|(point, ..)| *point).collect();
    assert_eq!(seen, POINTS.into(), "every point was reached");
    for (point, image, answered) in taken {
        let store = usual(image.path()).unwrap_or_else(|error| panic!("{point:?}: {error}"));
        let (count, found) = rows(&store).await;
        assert!((answered..=answered + 1).contains(&count), "{point:?}: {answered}, {count}");
        assert_eq!(found, expected(count), "{point:?}");
        // The store continues to work, and is complete after a second start.
        store.commit(commit(count + 1)).await.unwrap();
        store.close().await;
        let store = usual(image.path()).unwrap();
        assert_eq!(rows(&store).await, (count + 1, expected(count + 1)), "{point:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wal_commit_is_invisible_until_durable() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Arc::<Faults>::default();
    let store = open(folder.path(), Limits::NEVER, &faults).unwrap();
    let view = store.shared.view.clone();
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let noted = Arc::clone(&seen);
    faults.at_points(move |point| {
        let found = [("a", 1), ("z", 1)].map(|(side, of)| view.get(&key(side, of)).unwrap());
        noted.lock().unwrap().push((point, found.map(|row| row.is_some())));
    });
    faults.slow_syncs(Duration::from_millis(10));
    store.commit(commit(1)).await.unwrap();
    faults.at_points(|_| ());
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let hidden = [false; 2];
    let visible = [true; 2];
    let expect = [
        (Point::Write, hidden),
        (Point::Sync, hidden),
        (Point::Publish, hidden),
        (Point::Answer, visible),
    ];
    assert_eq!(seen, expect);
}

/// Both rows of a pair are always written together, while layers are frozen and dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn store_page_is_consistent_during_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Limits::EAGER, &Arc::default()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks = Tasks::new();
    let writing = {
        let store = store.clone();
        let stop = Arc::clone(&stop);
        tasks.spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                store.commit(commit(number)).await.unwrap();
            }
        })
    };
    for turn in 0..300 {
        let (count, found) = rows(&store).await;
        assert_eq!(found, expected(count), "turn {turn}");
        let keys: Vec<Key> = ["a", "z"].iter().map(|side| key(side, count % 7)).collect();
        let pair = store.get_many(&keys).await.unwrap();
        assert_eq!(pair[0], pair[1], "turn {turn}");
    }
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
}

#[tokio::test]
async fn wal_overwritten_rows_never_reach_tree() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Limits::NEVER, &Arc::default()).unwrap();
    for number in 1..=100 {
        store.commit(commit(number)).await.unwrap();
    }
    let tree = store.shared.view.db.clone();
    assert!(tree.iter().keys().all(|key| key.unwrap()[0] == Table::Meta as u8));
    assert_eq!(rows(&store).await, (100, expected(100)));
    drop(tree);
    store.close().await;
    // After closing, all rows are in the tree and the log is empty.
    let log = fs::read_dir(folder.path().join("store/log")).unwrap();
    let bytes: u64 = log.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 512 * 1024, "{bytes}");
    let store = usual(folder.path()).unwrap();
    assert!(store.shared.view.memtable.is_empty());
    assert_eq!(rows(&store).await, (100, expected(100)));
}

#[tokio::test]
async fn store_of_earlier_release_opens() {
    let folder = tempfile::tempdir().unwrap();
    {
        let db = tree::open(&folder.path().join("store")).unwrap();
        db.insert(tree::format_key().as_bytes(), &1_u32.to_be_bytes()).unwrap();
        for (key, value) in expected(30) {
            db.insert(key.as_bytes(), value).unwrap();
        }
        db.flush().unwrap();
    }
    let store = usual(folder.path()).unwrap();
    assert_eq!(rows(&store).await, (30, expected(30)));
    store.commit(commit(31)).await.unwrap();
    store.close().await;
    let store = usual(folder.path()).unwrap();
    assert_eq!(rows(&store).await, (31, expected(31)));
    let format = blocks::get(&store.shared.view.db, tree::format_key().as_bytes()).unwrap();
    assert_eq!(
        format,
        Some(FORMAT.to_be_bytes().to_vec()),
        "an older release has to refuse it now"
    );
}

#[tokio::test]
async fn tree_values_are_packed_only_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let key = Key::table(Table::Facet).text("long");
    let value = "{\"status\":\"completed\"}".repeat(20).into_bytes();
    let store = usual(folder.path()).unwrap();
    let mut commit = Commit::new();
    commit.put_bytes(key.clone(), value.clone());
    store.commit(commit).await.unwrap();
    store.close().await;
    let store = usual(folder.path()).unwrap();
    let first = store.shared.view.db.range(key.as_bytes()..).next();
    let (_, held) = first.unwrap().unwrap();
    assert!(held.len() < 100, "{}", held.len());
    assert_eq!(store.get(&key).await.unwrap(), Some(value.clone()));
    let page = Page { prefix: key.clone(), after: None, before: None, limit: 2 };
    assert_eq!(store.page(page).await.unwrap(), [(key, value)]);
}

/// Creates a killed store with some rows in its tree and some in its log.
async fn killed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let image = tempfile::tempdir().unwrap();
    let faults = Arc::default();
    let store = open(folder.path(), Limits::NEVER, &faults).unwrap();
    for number in 1..=20 {
        store.commit(commit(number)).await.unwrap();
    }
    store.close().await;
    let store = open(folder.path(), Limits::NEVER, &faults).unwrap();
    for number in 21..=30 {
        store.commit(commit(number)).await.unwrap();
    }
    copy_folder(folder.path(), image.path());
    image
}

fn refusal(folder: &Path) -> String {
    usual(folder).unwrap_err().to_string()
}

fn segment(folder: &Path) -> std::path::PathBuf {
    let mut found: Vec<_> = fs::read_dir(folder.join("store/log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found.pop().unwrap()
}

#[tokio::test]
async fn store_open_refuses_missing_or_mismatched_parts() {
    // The store opens while it is complete.
    let image = killed().await;
    assert_eq!(rows(&usual(image.path()).unwrap()).await, (30, expected(30)));
    let older = killed().await;
    let (store, log) = ("store", "store/log");
    for (what, break_it, says) in [
        (
            "no store",
            Box::new(|at: &Path| fs::remove_dir_all(at.join(store)).unwrap()) as Box<dyn Fn(&Path)>,
            "its store is missing",
        ),
        (
            "an empty mount point",
            Box::new(|at: &Path| {
                fs::remove_dir_all(at.join(store)).unwrap();
                fs::create_dir(at.join(store)).unwrap();
            }),
            "its store is missing",
        ),
        (
            "no log",
            Box::new(|at: &Path| fs::remove_dir_all(at.join(log)).unwrap()),
            "the log of its store is missing",
        ),
        (
            "no tree, no mark",
            Box::new(|at: &Path| {
                fs::remove_file(at.join("store/db")).unwrap();
                fs::remove_file(at.join(marker::FILE)).unwrap();
            }),
            "the tree of its store is missing",
        ),
        (
            "another store",
            Box::new(|at: &Path| {
                fs::remove_dir_all(at.join(store)).unwrap();
                copy_folder(&older.path().join(store), &at.join(store));
            }),
            "its store is not the one that belongs here",
        ),
        (
            "another log",
            Box::new(|at: &Path| {
                fs::remove_dir_all(at.join(log)).unwrap();
                copy_folder(&older.path().join(log), &at.join(log));
            }),
            "its log belongs to another store",
        ),
        (
            "a damaged mark",
            Box::new(|at: &Path| fs::write(at.join(marker::FILE), "{").unwrap()),
            "delete this file",
        ),
        (
            "a damaged record",
            Box::new(|at: &Path| {
                let path = segment(at);
                let mut bytes = fs::read(&path).unwrap();
                bytes[64 + 100] ^= 1;
                fs::write(path, bytes).unwrap();
            }),
            "is damaged (log segment",
        ),
    ] {
        let image = killed().await;
        break_it(image.path());
        for again in 0..2 {
            let said = refusal(image.path());
            assert!(said.contains(says), "{what}, {again}: {said}");
        }
    }
}

#[tokio::test]
async fn store_open_refuses_rolled_back_parts() {
    let folder = tempfile::tempdir().unwrap();
    let old = tempfile::tempdir().unwrap();
    let store = usual(folder.path()).unwrap();
    store.commit(commit(1)).await.unwrap();
    store.close().await;
    copy_folder(folder.path(), old.path());
    let store = usual(folder.path()).unwrap();
    for number in 2..=9 {
        store.commit(commit(number)).await.unwrap();
    }
    store.close().await;
    let keep = tempfile::tempdir().unwrap();
    copy_folder(folder.path(), keep.path());
    // Remove the whole store.
    fs::remove_dir_all(folder.path().join("store")).unwrap();
    copy_folder(&old.path().join("store"), &folder.path().join("store"));
    let said = refusal(folder.path());
    assert!(said.contains("its store is older than it was"), "{said}");
    // The store opens once the marker is deleted.
    fs::remove_file(folder.path().join(marker::FILE)).unwrap();
    assert_eq!(rows(&usual(folder.path()).unwrap()).await, (1, expected(1)));
    // Replace only the tree, or only the log.
    for (from, part, says) in [
        ("store/log", "store/log", "its log is older than its tree"),
        ("store", "store/log", "its tree has lost rows or is older than its log"),
    ] {
        let mixed = tempfile::tempdir().unwrap();
        copy_folder(keep.path(), mixed.path());
        if from == part {
            fs::remove_dir_all(mixed.path().join(part)).unwrap();
            copy_folder(&old.path().join(part), &mixed.path().join(part));
        } else {
            fs::remove_dir_all(mixed.path().join(from)).unwrap();
            copy_folder(&old.path().join(from), &mixed.path().join(from));
            fs::remove_dir_all(mixed.path().join(part)).unwrap();
            copy_folder(&keep.path().join(part), &mixed.path().join(part));
        }
        let said = refusal(mixed.path());
        assert!(said.contains(says), "{said}");
    }
}

#[tokio::test]
async fn wal_torn_tail_is_dropped_and_log_continues() {
    let image = killed().await;
    let path = segment(image.path());
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    fs::write(&path, &bytes[..end - 3]).unwrap();
    for number in [29, 30, 31] {
        let store = usual(image.path()).unwrap();
        assert_eq!(rows(&store).await, (number, expected(number)));
        store.commit(commit(number + 1)).await.unwrap();
        if number == 30 {
            store.close().await;
        } else {
            drop(store);
        }
    }
}
