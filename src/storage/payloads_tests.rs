//! Payload files on a real disk: faults that pass are never taken for damage.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::{Kind, Options};
use super::*;

/// Set in the process that runs out of descriptors.
const CHILD: &str = "ORRERY_TEST_NO_DESCRIPTORS";

fn open(folder: &Path) -> Store {
    Store::open(&Options { folder: folder.to_path_buf(), inline_bytes: 10 }).unwrap()
}

fn text(letter: char, bytes: usize) -> Box<RawValue> {
    RawValue::from_string(format!("\"{}\"", letter.to_string().repeat(bytes))).unwrap()
}

#[tokio::test]
async fn payload_reads_tell_deleted_damaged_and_unmounted_apart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let payload = store.write_payload(text('x', 100)).await.unwrap();
    let other = store.write_payload(text('y', 100)).await.unwrap();
    let kind = async || store.read_payload(&payload).await.map_err(|error| error.kind());
    let (payloads, away) = (folder.path().join(PAYLOADS), folder.path().join("away"));
    fs::rename(&payloads, &away).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::TryAgain, "the folder is away");
    fs::create_dir(&payloads).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::TryAgain, "an empty mount point is in its place");
    fs::remove_dir(&payloads).unwrap();
    fs::rename(&away, &payloads).unwrap();
    kind().await.unwrap();
    let path = store.payload_path(payload.file().unwrap().id);
    fs::write(&path, "other").unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::Damaged);
    fs::remove_file(&path).unwrap();
    assert_eq!(kind().await.unwrap_err(), Kind::Gone);
    store.read_payload(&other).await.unwrap();
}

#[test]
fn a_process_without_descriptors_reads_payloads_again_later() {
    if std::env::var_os(CHILD).is_none() {
        let name =
            "storage::payloads::tests::a_process_without_descriptors_reads_payloads_again_later";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let payload = store.write_payload(text('x', 100)).await.unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let read = store.read_payload(&payload).await.map_err(|error| error.kind());
        let written = store.write_payload(text('y', 100)).await.map_err(|error| error.kind());
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(read.unwrap_err(), Kind::TryAgain);
        assert_eq!(written.unwrap_err(), Kind::TryAgain);
        assert_eq!(store.read_payload(&payload).await.unwrap().get(), text('x', 100).get());
    });
}

#[tokio::test]
async fn new_work_is_refused_on_a_nearly_full_disk_and_completions_pass() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let put = |mut commit: Commit| {
        commit.put_bytes(Key::table(Table::Lane).text("a"), Vec::new());
        commit
    };
    store.commit(put(Commit::of_new_work())).await.unwrap();
    store.room().keep(Some(u64::MAX));
    for refused in [put(Commit::of_new_work()), {
        let mut outer = put(Commit::new());
        outer.extend(Commit::of_new_work());
        outer
    }] {
        assert!(matches!(store.commit(refused).await, Err(Error::Full)));
    }
    store.commit(put(Commit::new())).await.unwrap();
    store.write_payload(text('x', 100)).await.unwrap();
}

#[tokio::test]
async fn a_payload_that_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shelf/name");
    fs::create_dir(folder.path().join("shelf")).unwrap();
    // A file larger than a process may write: EFBIG, as a full disk gives ENOSPC.
    fs::write(&path, "there").unwrap();
    assert_eq!(write_file(&path, b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"there", "another's file is not touched");
}
