//! Payload files on a real disk: transient errors are never mistaken for damage.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::{Kind, Options, SweepOptions};
use super::*;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::time::Timestamp;

fn owner(number: u8) -> ExecutionId {
    [number; 16].into()
}

/// Set in the child process, in which no descriptors are left.
const CHILD: &str = "ORRERY_TEST_NO_DESCRIPTORS";

fn open(folder: &Path) -> Store {
    Store::open(&Options { folder: folder.to_path_buf(), inline_bytes: 10 }).unwrap()
}

fn text(letter: char, bytes: usize) -> Box<RawValue> {
    RawValue::from_string(format!("\"{}\"", letter.to_string().repeat(bytes))).unwrap()
}

#[tokio::test]
async fn payload_read_distinguishes_deleted_damaged_and_unmounted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let payload = store.write_payload(owner(1), text('x', 100)).await.unwrap();
    let other = store.write_payload(owner(1), text('y', 100)).await.unwrap();
    let kind = async || store.read_payload(&payload).await.map_err(|error| error.kind());
    let payloads = folder.path().join(PAYLOADS);
    let away = folder.path().join("away");
    fs::rename(&payloads, &away).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::TryAgain, "the folder is away");
    fs::create_dir(&payloads).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::TryAgain, "an empty mount point is in its place");
    let refused = store.write_payload(owner(2), text('z', 100)).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::TryAgain, "nothing is written to a mount point");
    fs::create_dir(payloads.join("ab")).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::TryAgain, "it is another folder");
    fs::remove_dir_all(&payloads).unwrap();
    fs::rename(&away, &payloads).unwrap();
    kind().await.unwrap();
    let path = store.payload_path(payload.file().unwrap().id);
    fs::write(&path, "other").unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::Damaged);
    fs::remove_file(&path).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::Gone);
    store.read_payload(&other).await.unwrap();
}

/// Runs a test that changes process limits in a child process; returns false in the child.
fn runs_in_child(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("payloads::tests::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
    true
}

#[test]
fn payload_read_recovers_after_descriptor_shortage() {
    if runs_in_child("payload_read_recovers_after_descriptor_shortage") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let payload = store.write_payload(owner(1), text('x', 100)).await.unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let read = store.read_payload(&payload).await.map_err(|error| error.kind());
        let written =
            store.write_payload(owner(1), text('y', 100)).await.map_err(|error| error.kind());
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(read.unwrap_err(), Kind::TryAgain);
        assert_eq!(written.unwrap_err(), Kind::TryAgain);
        assert_eq!(store.read_payload(&payload).await.unwrap().get(), text('x', 100).get());
    });
}

#[test]
fn store_waits_out_descriptor_shortage() {
    if runs_in_child("store_waits_out_descriptor_shortage") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mark");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    assert!(std::fs::File::open(folder.path()).is_err());
    let (written, was_done) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            crate::data_dir::write_new(&path, b"mark")?;
            crate::data_dir::sync(folder.path())
        });
        // Let the shortage last for a while. No result is expected during this time.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let was_done = writing.is_finished();
        setrlimit(Resource::Nofile, limit).unwrap();
        (writing.join().unwrap(), was_done)
    });
    written.unwrap();
    assert!(!was_done);
    assert_eq!(std::fs::read(&path).unwrap(), b"mark");
}

#[tokio::test]
async fn disk_nearly_full_refuses_new_work_but_accepts_completions() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let put = |mut commit: Commit| {
        commit.put_bytes(Key::table(Table::Lane).text("a"), Vec::new());
        commit
    };
    store.commit(put(Commit::of_new_work())).await.unwrap();
    store.disk_space().keep(Some(u64::MAX));
    for refused in [put(Commit::of_new_work()), {
        let mut outer = put(Commit::new());
        outer.extend(Commit::of_new_work());
        outer
    }] {
        assert!(matches!(store.commit(refused).await, Err(Error::Full)));
    }
    store.commit(put(Commit::new())).await.unwrap();
    store.write_payload(owner(1), text('x', 100)).await.unwrap();
}

#[tokio::test]
async fn payload_write_failure_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    // No file can be renamed to a folder that is not empty.
    let path = folder.path().join("shard/name");
    fs::create_dir_all(path.join("within")).unwrap();
    assert!(keep_file(&path, b"x").is_err());
    assert_eq!(fs::read_dir(folder.path().join("shard")).unwrap().count(), 1);
}

async fn claimed(store: &Store, payload: &Payload) {
    let mut commit = Commit::new();
    store.claim(&mut commit, payload);
    store.commit(commit).await.unwrap();
}

fn names(folder: &Path) -> usize {
    let shards = fs::read_dir(folder.join(PAYLOADS)).unwrap().map(|shard| shard.unwrap());
    let shards = shards.filter(|shard| shard.file_name().len() == 2);
    shards.map(|shard| fs::read_dir(shard.path()).unwrap().count()).sum()
}

#[tokio::test]
async fn payload_files_are_deduplicated_per_owner() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = store.write_payload(owner(1), text('x', 100)).await.unwrap();
    for _ in 0..5 {
        assert_eq!(store.write_payload(owner(1), text('x', 100)).await.unwrap(), first);
    }
    assert_eq!(names(folder.path()), 1);
    let copy = store.copy_payload(owner(2), &first).await.unwrap();
    assert_ne!(copy, first);
    assert_eq!(names(folder.path()), 2);
    use std::os::unix::fs::MetadataExt;
    let path = store.payload_path(copy.file().unwrap().id);
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 2, "the bytes are shared");
    store.remove_payload(&first).await.unwrap();
    assert_eq!(store.read_payload(&copy).await.unwrap().get(), text('x', 100).get());
    // Writing the same contents again repairs the damage.
    fs::write(&path, text('y', 100).get()).unwrap();
    assert!(store.read_payload(&copy).await.is_err());
    assert_eq!(store.write_payload(owner(2), text('x', 100)).await.unwrap(), copy);
    assert_eq!(store.read_payload(&copy).await.unwrap().get(), text('x', 100).get());
    assert_eq!(store.write_payload(owner(1), text('x', 3)).await.unwrap().file(), None, "inline");
}

#[tokio::test]
async fn payload_for_several_owners_is_on_disk_once() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let owners: Vec<_> = (1..=50).map(owner).collect();
    let json = text('x', 100_000);
    let payloads = store.write_payload_for(&owners, json.clone()).await.unwrap();
    let paths: Vec<_> =
        payloads.iter().map(|one| store.payload_path(one.file().unwrap().id)).collect();
    let inode = |path| fs::metadata(path).unwrap().ino();
    assert!(paths.iter().all(|path| inode(path) == inode(&paths[0])));
    assert_eq!((paths.len(), fs::metadata(&paths[0]).unwrap().nlink()), (50, 50));
    // Each payload is removed separately.
    for gone in &payloads[..49] {
        store.remove_payload(gone).await.unwrap();
    }
    assert_eq!(store.read_payload(&payloads[49]).await.unwrap().get(), json.get());
    let few = store.write_payload_for(&owners[..1], text('y', 3)).await.unwrap();
    assert_eq!(few[0].file(), None, "inline");
    assert!(store.write_payload_for::<ExecutionId>(&[], text('y', 3)).await.unwrap().is_empty());
}

#[tokio::test]
async fn payload_sweep_trashes_unclaimed_files_of_earlier_runs() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let kept = store.write_payload(owner(1), text('a', 100)).await.unwrap();
    let orphan = store.write_payload(owner(1), text('b', 100)).await.unwrap();
    let again = store.write_payload(owner(1), text('c', 100)).await.unwrap();
    claimed(&store, &kept).await;
    // A file name of an older release, and an incomplete write left by a crash.
    let (old, part): (PayloadId, PayloadId) = (new_id(), new_id());
    let old = path_of(folder.path(), old);
    keep_file(&old, b"old").unwrap();
    let part = old.with_extension(format!("{part}.{PART}"));
    fs::write(&part, "half").unwrap();
    store.close().await;
    let store = open(folder.path());
    let started: PayloadId = new_id();
    assert_eq!(store.write_payload(owner(1), text('c', 100)).await.unwrap(), again);
    let later = store.write_payload(owner(1), text('d', 100)).await.unwrap();
    let options = SweepOptions { now: Timestamp::from_micros(0), accepts_loss: false };
    let swept = store.sweep_payloads(started, options).await.unwrap();
    assert_eq!((swept.unused, swept.moved, swept.refused), (4, 2, false), "{swept:?}");
    for payload in [&kept, &again, &later] {
        store.read_payload(payload).await.unwrap();
    }
    assert!(!old.exists() && !part.exists());
    assert!(matches!(store.read_payload(&orphan).await, Err(Error::Gone { .. })));
    let lost = folder.path().join("payloads/lost/1970-01-01");
    assert_eq!(fs::read_dir(&lost).unwrap().count(), 2);
    assert_eq!(store.sweep_payloads(started, options).await.unwrap().moved, 0);
    let week = SweepOptions {
        now: options.now.plus(super::super::trash::RETENTION * 2),
        accepts_loss: false,
    };
    assert_eq!(store.empty_payload_trash(week).await.unwrap(), 1);
    assert!(!lost.exists());
}

#[tokio::test]
async fn payload_sweep_of_too_many_files_needs_operator() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let started: PayloadId = new_id();
    for number in 0..1001_u32 {
        let id = id_of(&number.to_be_bytes().repeat(4).try_into().unwrap(), b"x");
        let path = path_of(folder.path(), id);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    let options = SweepOptions { now: Timestamp::from_micros(0), accepts_loss: false };
    let swept = store.sweep_payloads(started, options).await.unwrap();
    assert_eq!((swept.unused, swept.moved, swept.refused), (1001, 0, true));
    assert_eq!(names(folder.path()), 1001);
    store.close().await;
    let store = open(folder.path());
    let options = SweepOptions { accepts_loss: true, ..options };
    let swept = store.sweep_payloads(started, options).await.unwrap();
    assert_eq!((swept.moved, swept.refused), (1001, false));
}

#[tokio::test]
async fn payload_folder_missing_is_refused_if_store_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.check_payload_folder().await.unwrap();
    let payload = store.write_payload(owner(1), text('x', 100)).await.unwrap();
    claimed(&store, &payload).await;
    store.check_payload_folder().await.unwrap();
    let payloads = folder.path().join(PAYLOADS);
    let away = folder.path().join("away");
    fs::rename(&payloads, &away).unwrap();
    for _ in 0..2 {
        let refused = store.check_payload_folder().await.unwrap_err().to_string();
        assert!(refused.contains("it is missing or empty, but the store refers to"), "{refused}");
        // The second time, the folder is an empty mount point.
        let _there_already = fs::create_dir(&payloads);
    }
    fs::remove_dir(&payloads).unwrap();
    fs::rename(&away, &payloads).unwrap();
    store.check_payload_folder().await.unwrap();
}

#[tokio::test]
async fn payload_usage_is_recorded_with_commits_and_released_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let organization = OrganizationId::from([9; 16]);
    let usage = async || store.payload_usage(organization).await.unwrap();
    let record = async |number: u8, bytes: u64| {
        let mut commit = Commit::new();
        let recorded = store.record_usage(&mut commit, organization, owner(number), bytes);
        store.commit(commit).await.unwrap();
        recorded
    };
    assert_eq!(record(1, 100).await, 0, "too little");
    assert_eq!(record(1, 100_000).await, 100_000);
    assert_eq!(record(1, 70_000).await, 70_000);
    assert_eq!(record(2, 80_000).await, 80_000);
    assert_eq!(usage().await, 250_000);
    // Two concurrent removals.
    let mut commits = [Commit::new(), Commit::new()];
    for commit in &mut commits {
        store.release_usage(commit, organization, [owner(2)]).await.unwrap();
    }
    let [first, second] = commits;
    store.commit(first).await.unwrap();
    let refused = store.commit(second).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert_eq!(usage().await, 170_000);
    record(2, 80_000).await;
    for _ in 0..2 {
        let mut commit = Commit::new();
        store.release_usage(&mut commit, organization, [owner(1)]).await.unwrap();
        store.commit(commit).await.unwrap();
        assert_eq!(usage().await, 80_000);
    }
}
