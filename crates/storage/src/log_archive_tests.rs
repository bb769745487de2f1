//! Tests log archiving: checkpoints, closing and starting the store remove nothing that the chain
//! still needs, and the number of bytes that wait for the chain is limited.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::super::checkpoint::Limits;
use super::super::{Commit, Key, Options, Table};
use super::*;

fn open(folder: &Path) -> Store {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 100 };
    let lock = data_dir::make_and_lock(&options.folder).unwrap();
    Store::open_with(&options, lock, Limits::EAGER, Arc::default()).unwrap()
}

async fn commit(store: &Store, number: u64, bytes: usize) {
    let mut commit = Commit::new();
    let key = Key::table(Table::Facet).number_largest_first(number);
    commit.put_bytes(key, [&number.to_be_bytes()[..], &vec![7; bytes]].concat());
    store.commit(commit).await.unwrap();
}

/// Returns the numbers in the rows of all groups after `after`, and the last record.
fn groups(store: &Store, after: u64) -> (Vec<u64>, u64) {
    let mut found = Vec::new();
    let until = store.last_record();
    let mut expected = after;
    let last = store.read_log(after, until, u64::MAX, &mut |group| {
        expected += 1;
        assert_eq!(group.number, expected);
        for value in group.rows.into_values().flatten() {
            found.push(u64::from_be_bytes(value[..8].try_into().unwrap()));
        }
        Ok(())
    });
    assert_eq!(last.unwrap(), until);
    (found, until)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_archive_survives_checkpoints_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    commit(&store, 0, 10).await;
    let kept = store.start_archiving().unwrap();
    assert!((1..=store.last_record()).contains(&kept.from) && kept.through == kept.from);
    for number in 1..40 {
        commit(&store, number, 300).await;
        if number % 13 == 0 {
            // Without archiving, closing and starting the store would each empty the log.
            store.close().await;
            store = open(folder.path());
        }
    }
    assert_eq!(store.archive_position(), Some(kept.clone()));
    let (found, until) = groups(&store, kept.through);
    assert_eq!(found, (1..40).collect::<Vec<u64>>());
    // Bounded reads continue where the previous read ended.
    let mut last = kept.through;
    let mut turns = 0;
    while last < until {
        last = store.read_log(last, until, 500, &mut |_| Ok(())).unwrap();
        turns += 1;
    }
    assert!(turns > 10, "{turns}");
    store.mark_archived(kept.chain, until).unwrap();
    // Another chain's position is ignored.
    store.mark_archived(Uuid::nil(), until + 9).unwrap();
    assert_eq!(store.archive_position().map(|kept| kept.through), Some(until));
    store.close().await;
    let store = open(folder.path());
    let gone = store.read_log(kept.from, until, u64::MAX, &mut |_| Ok(())).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::InvalidData, "{gone}");
    store.stop_archiving(None);
    store.close().await;
    assert_eq!(open(folder.path()).archive_position(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_archive_stops_when_over_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.start_archiving().unwrap();
    store.set_archive_budget(40 * 1024 * 1024);
    let mut number = 0;
    while store.archive_position().is_some() && number < 200 {
        number += 1;
        commit(&store, number, 1024 * 1024).await;
    }
    assert!((30..100).contains(&number), "{number} MiB were kept");
    let reason = store.take_archive_failure().unwrap();
    assert!(reason.contains("`backup.log_budget` (41943040)"), "{reason}");
    assert_eq!((store.take_archive_failure(), store.unarchived_bytes()), (None, 0));
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.archive_position(), None);
    assert!(store.shared.segments.bytes() < 40 * 1024 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_keeps_payload_files_until_backed_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let owner = PayloadId::from([1; 16]);
    let text = || RawValue::from_string(format!("\"{}\"", "x".repeat(200))).unwrap();
    let write = async || {
        let payload = store.write_payload(owner, text()).await.unwrap();
        let mut commit = Commit::new();
        store.claim(&mut commit, &payload);
        store.commit(commit).await.unwrap();
        payload
    };
    let release = async |payload: &orrery_domain::payload::Payload| {
        let mut commit = Commit::new();
        store.release(&mut commit, payload);
        store.commit(commit).await.unwrap();
        store.remove_payload(payload).await.unwrap();
    };
    let payload = write().await;
    let path = store.payload_path(payload.file().unwrap().id);
    let kept = store.start_archiving().unwrap();
    release(&payload).await;
    store.mark_archived(kept.chain, kept.from).unwrap();
    assert!(path.is_file(), "the chain has not come so far");
    store.mark_archived(kept.chain, store.last_record()).unwrap();
    assert!(!path.exists());
    // A file that is written again in the meantime is not deleted.
    let payload = write().await;
    release(&payload).await;
    let again = write().await;
    assert_eq!(again.file(), payload.file());
    store.mark_archived(kept.chain, store.last_record()).unwrap();
    assert!(path.is_file());
    // Deferred deletions are carried out as soon as the chain ends.
    release(&again).await;
    assert!(path.is_file());
    store.stop_archiving(None);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_stops_on_damaged_position_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.start_archiving().unwrap();
    store.close().await;
    fs::write(folder.path().join("store/log/kept.json"), "{").unwrap();
    let store = open(folder.path());
    assert_eq!(store.archive_position(), None);
    assert!(store.take_archive_failure().unwrap().contains("is damaged"));
}
