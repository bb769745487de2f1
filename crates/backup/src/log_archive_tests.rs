//! Tests of the log archive: a restore to any commit yields the state after that commit; a crash at
//! any step of archiving leaves no gap; missing, modified or foreign files are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::value::RawValue;
use tempfile::TempDir;

use super::chain::{self, Listed};
use super::*;
use orrery_domain::ids::OrganizationId;
use orrery_domain::payload::Payload;
use orrery_records::files::Files;
use orrery_storage::faults::{Point as Step, copy_folder};
use orrery_storage::{Commit, Key, Options, Page, Sealer, Store, Table};

type Rows = BTreeMap<Key, Vec<u8>>;

fn open(folder: &Path) -> Source {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 10 };
    place(folder, Store::open(&options).unwrap())
}

/// Like [`open`], but without checkpoints, which would add records to the log of an idle store. The
/// log contains only the test's writes.
fn open_without_checkpoints(folder: &Path) -> Source {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 10 };
    place(folder, Store::open_without_checkpoints(&options).unwrap())
}

fn place(folder: &Path, store: Store) -> Source {
    Source { files: Files::scratch(folder, store.clone()), store }
}

/// A service's data folder and its backup folder.
struct Fixture {
    folder: TempDir,
    place: Source,
}

impl Fixture {
    fn new() -> Self {
        Self::opened_by(open)
    }

    fn opened_by(open: fn(&Path) -> Source) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Sealer::open(&folder.path().join("data")).unwrap();
        let place = open(&folder.path().join("data"));
        Self { folder, place }
    }

    /// Stops the service, calls `change` with its data folder, and restarts it.
    async fn restarted(self, change: impl FnOnce(&Path)) -> Self {
        let Self { folder, place } = self;
        let Source { store, files } = place;
        drop(files);
        store.close().await;
        let data = folder.path().join("data");
        change(&data);
        Self { place: open(&data), folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn backups(&self) -> PathBuf {
        self.folder.path().join("backups")
    }

    async fn put(&self, number: u64, value: &[u8]) {
        let mut commit = Commit::new();
        commit.put_bytes(key(number), value.to_vec());
        self.place.store.commit(commit).await.unwrap();
    }

    /// Makes a full backup that the chain continues; starts a chain if no chain exists.
    async fn backup(&self, name: &str) -> PathBuf {
        if self.place.store.archive_position().is_none() {
            self.place.store.start_archiving().unwrap();
        }
        let place = self.place.clone();
        let backups = self.backups();
        let name = name.to_owned();
        blocking(move || {
            fs::create_dir_all(&backups).unwrap();
            let path = backups.join(&name);
            let now = Timestamp::from_micros(1);
            write(&place, now, File::create(&path).unwrap(), &mut |_| {}).unwrap();
            let summary = verify(File::open(&path).unwrap(), &mut |_| {}).unwrap();
            note_base(&backups, &summary.point.unwrap(), &name).unwrap();
            path
        })
        .await
    }

    async fn archive(&self) -> Result<Option<Part>, Error> {
        self.archive_as(Encryption::Off).await
    }

    async fn archive_as(&self, encryption: Encryption) -> Result<Option<Part>, Error> {
        let place = self.place.clone();
        let log = self.backups().join(LOG);
        blocking(move || archive_log(&place, &log, &encryption, Some(0), Timestamp::from_micros(2)))
            .await
    }

    fn listed(&self) -> Listed {
        let chain = self.place.store.archive_position().unwrap().chain;
        Listed::of(&chain::folder_of(&self.backups().join(LOG), chain)).unwrap()
    }

    /// Returns the time of the last commit.
    fn now(&self) -> Timestamp {
        let store = &self.place.store;
        let mut time = None;
        let last = store.last_record();
        store
            .read_log(last - 1, last, 1, &mut |group| {
                time = Some(group.time);
                Ok(())
            })
            .unwrap();
        time.unwrap()
    }
}

fn key(number: u64) -> Key {
    Key::table(Table::Facet).number_largest_first(number)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Returns all rows except the store's metadata and the audit log. The audit log is excluded
/// because each restore adds an entry to it.
async fn rows(store: &Store) -> Rows {
    let page = Page { prefix: Key::from_bytes(&[]), after: None, before: None, limit: 10_000 };
    let rows = store.page(page).await.unwrap();
    let beside = [Table::Meta as u8, Table::Audit as u8];
    rows.into_iter().filter(|(key, _)| !beside.contains(&key.as_bytes()[0])).collect()
}

/// Returns the names of all files in and below a folder, except the files of a store.
fn files_in(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_in(&entry.path()));
        } else {
            found.insert(entry.file_name().into_string().unwrap());
        }
    }
    found
}

struct Restored {
    folder: TempDir,
    reached: Option<Reached>,
}

async fn restored(file: &Path, replay: Replay) -> Result<Restored, Error> {
    restored_with(file, Keys::none(), replay).await
}

async fn restored_with(file: &Path, keys: Keys, replay: Replay) -> Result<Restored, Error> {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("data");
    let file = File::open(file).unwrap();
    let done = blocking(move || {
        let now = Timestamp::from_micros(9);
        restore_until(file, &keys, &into, 10, now, &replay, &mut |_| {})
    })
    .await;
    let left = files_in(folder.path());
    match done {
        Ok((_, reached)) => Ok(Restored { folder, reached }),
        Err(error) => {
            assert_eq!(left, BTreeSet::new(), "{error}");
            Err(error)
        }
    }
}

impl Restored {
    /// Returns the restored rows, after checking that exactly the files that they refer to exist.
    async fn rows(&self) -> Rows {
        let data = self.folder.path().join("data");
        let place = open(&data);
        let found = rows(&place.store).await;
        let claimed: BTreeSet<String> =
            found.keys().filter_map(orrery_storage::claimed_by).map(|id| id.to_string()).collect();
        assert_eq!(files_in(&data.join("payloads")), claimed);
        let checked = place.clone();
        let report = blocking(move || check_store(&checked, &mut |_| {}).unwrap()).await;
        assert_eq!(report.faults, Vec::<String>::new());
        place.store.close().await;
        found
    }
}

fn replay(fixture: &Fixture) -> Replay {
    Replay { log: Some(fixture.backups().join(LOG)), ..Replay::default() }
}

/// A step of a random history.
#[derive(Debug, Clone)]
enum Act {
    Put(u64, usize),
    Delete(u64),
    /// Claims or releases a payload for an owner.
    Payload(u8),
    Archive,
    Backup,
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        5 => (0..6_u64, 0..50_usize).prop_map(|(key, bytes)| Act::Put(key, bytes)),
        2 => (0..6_u64).prop_map(Act::Delete),
        3 => (0..3_u8).prop_map(Act::Payload),
        2 => Just(Act::Archive),
        1 => Just(Act::Backup),
        1 => Just(Act::Restart),
    ];
    prop::collection::vec(act, 5..30)
}

/// A history, with a copy of all rows after each commit.
struct History {
    fixture: Fixture,
    first: PathBuf,
    moments: Vec<(Timestamp, Rows)>,
}

async fn happened(acts: &[Act]) -> History {
    let mut fixture = Fixture::new();
    fixture.put(99, b"before").await;
    let first = fixture.backup("0.backup").await;
    let mut held: BTreeMap<u8, Payload> = BTreeMap::new();
    let mut moments = Vec::new();
    for (at, act) in acts.iter().enumerate() {
        let store = fixture.place.store.clone();
        let mut commit = Commit::new();
        let mut gone = None;
        match act {
            Act::Put(number, bytes) => {
                commit.put_bytes(key(*number), vec![u8::try_from(at).unwrap(); *bytes]);
            }
            Act::Delete(number) => {
                commit.delete(key(*number));
            }
            Act::Payload(owner) => match held.remove(owner) {
                Some(payload) => {
                    store.release(&mut commit, &payload);
                    gone = Some(payload);
                }
                None => {
                    let text = format!("\"{}\"", "x".repeat(20 + usize::from(*owner)));
                    let text = RawValue::from_string(text).unwrap();
                    let id = OrganizationId::from([*owner; 16]);
                    let payload = store.write_payload(id, text).await.unwrap();
                    store.claim(&mut commit, &payload);
                    held.insert(*owner, payload);
                }
            },
            Act::Archive => {
                fixture.archive().await.unwrap();
                continue;
            }
            Act::Backup => {
                fixture.backup(&format!("{at}.backup")).await;
                continue;
            }
            Act::Restart => {
                drop(store);
                fixture = fixture.restarted(|_| ()).await;
                continue;
            }
        }
        store.commit(commit).await.unwrap();
        if let Some(payload) = gone {
            store.remove_payload(&payload).await.unwrap();
        }
        moments.push((fixture.now(), rows(&store).await));
    }
    fixture.archive().await.unwrap();
    History { fixture, first, moments }
}

#[test]
fn restore_to_any_commit_yields_rows_of_that_commit() {
    let mut runner =
        TestRunner::new(Config { cases: 4, failure_persistence: None, ..Config::default() });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let done = runner.run(&(acts(), any::<prop::sample::Index>()), |(acts, index)| {
        runtime.block_on(async {
            let History { fixture, first, moments } = happened(&acts).await;
            let mut wanted = vec![None];
            if !moments.is_empty() {
                wanted.push(Some(index.index(moments.len())));
            }
            for wanted in wanted {
                let moment = wanted.map_or(moments.last(), |at| moments.get(at));
                let until = wanted.and(moment).map(|(time, _)| *time);
                let done = restored(&first, Replay { until, ..replay(&fixture) }).await;
                let found = done.unwrap_or_else(|error| panic!("{error}")).rows().await;
                if let Some((_, expected)) = moment {
                    assert_eq!(found, *expected, "{wanted:?}");
                }
            }
        });
        Ok(())
    });
    done.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_rebuilds_damaged_store_from_backup_and_log() {
    let fixture = Fixture::new();
    fixture.put(0, b"in the backup").await;
    let backup = fixture.backup("one.backup").await;
    fixture.put(1, b"in the log archive").await;
    fixture.archive().await.unwrap();
    fixture.put(2, b"in the live log").await;
    let text = RawValue::from_string(format!("\"{}\"", "y".repeat(50))).unwrap();
    let owner = OrganizationId::from([5; 16]);
    let payload = fixture.place.store.write_payload(owner, text).await.unwrap();
    let mut commit = Commit::new();
    fixture.place.store.claim(&mut commit, &payload);
    fixture.place.store.commit(commit).await.unwrap();
    let expected = rows(&fixture.place.store).await;
    let live = fixture.folder.path().join("wreck");
    copy_folder(&fixture.data(), &live);
    // A store whose tree is missing entirely is the worst case.
    fs::remove_file(live.join("store/db")).unwrap();
    let options = Options { folder: live.clone(), inline_bytes: 10 };
    Store::open(&options).unwrap_err();

    let kept_alone = restored(&backup, replay(&fixture)).await.unwrap();
    assert_eq!(kept_alone.rows().await.len(), 2);
    let with_live = Replay { live: Some(live.clone()), ..replay(&fixture) };
    let all = restored(&backup, with_live.clone()).await.unwrap();
    assert_eq!(all.rows().await, expected);
    let reached = all.reached.unwrap();
    assert_eq!((reached.files, reached.notes), (1, Vec::new()));

    // Without the log archive, there is a gap before the live log, so the restore fails. The live
    // log of another store is refused.
    let file = fixture.listed().files.remove(0);
    fs::remove_file(&file.path).unwrap();
    // The store's own log still contains all commits since the backup, because no commit has been
    // removed from that log yet.
    assert_eq!(restored(&backup, with_live).await.unwrap().rows().await, expected);
    let other = Fixture::new();
    other.put(0, b"x").await;
    let foreign = other.folder.path().join("copy");
    copy_folder(&other.data(), &foreign);
    let foreign = Replay { live: Some(foreign), ..replay(&fixture) };
    let refused = restored(&backup, foreign).await.err().unwrap().to_string();
    assert!(refused.contains("belongs to another store than the backup"), "{refused}");
}

/// Makes four commits after a backup, each in its own file of the log archive.
async fn archived() -> (Fixture, PathBuf, Vec<Timestamp>) {
    let fixture = Fixture::new();
    let backup = fixture.backup("one.backup").await;
    let mut moments = Vec::new();
    for number in 0..4 {
        fixture.put(number, b"value").await;
        moments.push(fixture.now());
        fixture.archive().await.unwrap().unwrap();
        // Each commit has a different millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (fixture, backup, moments)
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_reaches_gap_with_named_time() {
    let (fixture, backup, _) = archived().await;
    let files = fixture.listed().files;
    let away = fixture.folder.path().join("away");
    // The gap is after the first file, or directly after the backup.
    for (missing, read) in [(&files[1], 1), (&files[0], 0)] {
        fs::rename(&missing.path, &away).unwrap();
        let refused = restored(&backup, replay(&fixture)).await.err().unwrap().to_string();
        let at = refused.split_once("--until ").unwrap().1.split_once(';').unwrap().0;
        let until = Some(at.parse::<Timestamp>().unwrap().end_of_millisecond());
        let done = restored(&backup, Replay { until, ..replay(&fixture) }).await.unwrap();
        let reached = done.reached.unwrap();
        assert_eq!((reached.files, reached.notes.len()), (read, 1), "{reached:?}");
        assert!(reached.notes[0].contains("are missing"), "{reached:?}");
        assert!(reached.record < missing.last, "{reached:?}");
        fs::rename(&away, &missing.path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_refuses_log_with_gap_damage_or_foreign_file() {
    let (fixture, backup, moments) = archived().await;
    let files = fixture.listed().files;
    assert_eq!(files.len(), 4);
    let refused = async |until: Option<Timestamp>| {
        let done = restored(&backup, Replay { until, ..replay(&fixture) }).await;
        done.err().map(|error| error.to_string())
    };
    assert_eq!(refused(None).await, None);

    let away = fixture.folder.path().join("away");
    fs::rename(&files[1].path, &away).unwrap();
    let hole = refused(None).await.unwrap();
    let [from, to] = [files[1].first, files[1].last];
    assert!(hole.contains(&format!("the commits {from} to {to} are missing")), "{hole}");
    let behind = refused(Some(moments[2])).await.unwrap();
    assert!(behind.contains("has a gap"), "{behind}");
    // The requested time is before the gap.
    let before = moments[0].before(Duration::from_micros(1)).unwrap();
    assert_eq!(refused(Some(before)).await, None);
    fs::rename(&away, &files[1].path).unwrap();

    let whole = fs::read(&files[2].path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 20) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        fs::write(&files[2].path, &flipped).unwrap();
        match refused(None).await {
            // A modified format number cannot be distinguished from the format number of another
            // release.
            Some(message) => assert!(
                ["incomplete or damaged", "was written by release"]
                    .iter()
                    .any(|say| message.contains(say)),
                "{at}: {message}"
            ),
            // Some bits of the compressed form are irrelevant.
            None => assert_eq!(
                zstd::decode_all(&flipped[..]).unwrap(),
                zstd::decode_all(&whole[..]).unwrap(),
                "{at}"
            ),
        }
    }
    // The file's name now belongs to another file of the same chain, or to a file of another chain.
    fs::copy(&files[3].path, &files[2].path).unwrap();
    let renamed = refused(None).await.unwrap();
    assert!(renamed.contains("someone renamed or added a file of the log"), "{renamed}");
    let other = Fixture::new();
    other.backup("one.backup").await;
    other.put(1, b"x").await;
    other.archive().await.unwrap();
    fs::copy(&other.listed().files[0].path, &files[2].path).unwrap();
    let foreign = refused(None).await.unwrap();
    assert!(foreign.contains("belongs to the log of another store"), "{foreign}");
    fs::write(&files[2].path, whole).unwrap();

    let early = refused(Some(Timestamp::from_micros(5))).await.unwrap();
    assert!(early.contains("the backup itself was taken at"), "{early}");
    // A file of the log archive is not a backup.
    let alone = restored(&files[0].path, Replay::default()).await.err().unwrap().to_string();
    assert!(alone.contains("specify the backup that it follows"), "{alone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_crash_at_any_step_leaves_no_gap() {
    let mut fixture = Fixture::opened_by(open_without_checkpoints);
    fixture.backup("one.backup").await;
    let images = Arc::<Mutex<Vec<(Step, TempDir)>>>::default();
    let taken = Arc::clone(&images);
    let folder = fixture.folder.path().to_path_buf();
    fixture.place.store.faults().at_points(move |step| {
        if step >= Step::Archive {
            let image = tempfile::tempdir().unwrap();
            copy_folder(&folder, image.path());
            taken.lock().unwrap().push((step, image));
        }
    });
    for number in 0..2 {
        fixture.put(number, b"value").await;
        fixture.archive().await.unwrap().unwrap();
    }
    let expected = rows(&fixture.place.store).await;
    fixture.place.store.faults().at_points(|_| ());
    let images = std::mem::take(&mut *images.lock().unwrap());
    let steps: Vec<Step> = images.iter().map(|(step, _)| *step).collect();
    let each = [Step::Archive, Step::ArchiveName, Step::ArchiveNote, Step::ArchiveFree];
    assert_eq!(steps, [each, each].concat());
    for (at, (step, image)) in images.into_iter().enumerate() {
        let place = open_without_checkpoints(&image.path().join("data"));
        fixture = Fixture { folder: image, place };
        let turn = fixture.archive().await.unwrap_or_else(|error| panic!("{at} {step:?}: {error}"));
        // A file that already had its final name is adopted instead of being written again.
        assert_eq!(turn.is_none(), step >= Step::ArchiveNote, "{at} {step:?}");
        fixture.put(7, b"goes on").await;
        fixture.archive().await.unwrap().unwrap();
        let backup = fixture.backups().join("one.backup");
        let done = restored(&backup, replay(&fixture)).await;
        let found = done.unwrap_or_else(|error| panic!("{at} {step:?}: {error}")).rows().await;
        let mut so_far: Rows = expected.clone();
        if at < each.len() {
            so_far.remove(&key(1));
        }
        so_far.insert(key(7), b"goes on".to_vec());
        assert_eq!(found, so_far, "{at} {step:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_ends_on_rollback_and_is_pruned_with_backups() {
    let mut fixture = Fixture::new();
    let first = fixture.backup("1.backup").await;
    fixture.put(1, b"one").await;
    fixture.archive().await.unwrap();
    let chain = fixture.place.store.archive_position().unwrap().chain;
    // An older copy of the store, which replaces the store later.
    let older = fixture.folder.path().join("older");
    fixture = fixture.restarted(|data| copy_folder(data, &older)).await;
    for number in 2..4 {
        fixture.put(number, b"more").await;
        fixture.archive().await.unwrap();
    }
    let second = fixture.backup("2.backup").await;
    fixture.put(4, b"four").await;
    fixture.archive().await.unwrap();
    let backups = fixture.backups();
    assert_eq!((fixture.listed().files.len(), prune(&backups, Some(chain)).unwrap()), (4, 0));
    // When the first backup is deleted, the log files that only this backup needs are deleted as
    // well.
    fs::remove_file(&first).unwrap();
    assert_eq!(prune(&backups, Some(chain)).unwrap(), 3);
    let expected = rows(&fixture.place.store).await;
    assert_eq!(restored(&second, replay(&fixture)).await.unwrap().rows().await, expected);
    assert!(has_base(&backups, chain).unwrap());

    let put_back = |data: &Path| {
        fs::remove_dir_all(data).unwrap();
        copy_folder(&older, data);
    };
    fixture = fixture.restarted(put_back).await;
    fixture.put(5, b"another history").await;
    let error = fixture.archive().await.unwrap_err();
    assert!(matches!(error, Error::Chain(_)), "{error}");
    assert!(error.to_string().contains("the store was replaced by an older copy"), "{error}");
    fixture.place.store.stop_archiving(None);
    // The next chain has a new id; the previous chain is kept with its backup.
    fixture.backup("3.backup").await;
    let next = fixture.place.store.archive_position().unwrap().chain;
    assert_ne!(next, chain);
    fixture.put(6, b"six").await;
    fixture.archive().await.unwrap();
    fs::remove_dir_all(chain::folder_of(&backups.join(LOG), next)).unwrap();
    let error = fixture.archive().await.unwrap_err();
    assert!(error.to_string().contains("are missing from its folder"), "{error}");
    fs::remove_file(second).unwrap();
    assert_eq!(prune(&backups, Some(next)).unwrap(), 1);
    assert_eq!(files_in(&backups.join(LOG)), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_encrypted_opens_only_with_its_key() {
    let fixture = Fixture::new();
    let backup = fixture.backup("one.backup").await;
    let identity = age::x25519::Identity::generate();
    let file = fixture.folder.path().join("key.txt");
    let text = age::secrecy::ExposeSecret::expose_secret(&identity.to_string()).to_owned();
    fs::write(&file, text).unwrap();
    let recipients = Encryption::new(&[identity.to_public().to_string()], None).unwrap();
    for number in 0..2 {
        fixture.put(number, b"not for everyone").await;
        fixture.archive_as(recipients.clone()).await.unwrap().unwrap();
    }
    let expected = rows(&fixture.place.store).await;
    for file in fixture.listed().files {
        assert!(is_encrypted(&file.path).unwrap());
    }
    let refused = restored(&backup, replay(&fixture)).await.err().unwrap().to_string();
    assert!(refused.contains("decrypt it with --identity FILE"), "{refused}");
    let keys = Keys::in_identity_file(&file).unwrap();
    let done = restored_with(&backup, keys, replay(&fixture)).await.unwrap();
    assert_eq!(done.rows().await, expected);
}

#[test]
fn log_archive_groups_round_trip_and_refuse_truncation() {
    let rows = [(key(1), Some(vec![1; 9])), (key(2), None)].into();
    let group = orrery_storage::Group { number: 7, time: Timestamp::from_micros(-5), rows };
    let mut text = Vec::new();
    chain::write_group(&mut text, group.clone()).unwrap();
    let mut from = &text[..];
    assert_eq!(chain::read_group(&mut from).unwrap(), Some(group));
    assert_eq!(chain::read_group(&mut from).unwrap(), None);
    for cut in 1..text.len() {
        assert!(chain::read_group(&mut &text[..cut]).is_err(), "{cut}");
    }
}
