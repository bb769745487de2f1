//! Compares the store with a plain map across restarts. Tests refused operations and crashes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::commit::{Expect, Write};
use crate::faults::Point;
use crate::marker::Marker;
use crate::{Row, Table};
use orrery_domain::ids::OrganizationId;
use orrery_runtime::turns;

fn options(folder: &TempDir) -> Options {
    Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 }
}

fn key(name: &str) -> Key {
    Key::table(Table::Lane).text(name)
}

fn put(name: &str, value: &[u8]) -> Commit {
    let mut commit = Commit::new();
    commit.put_bytes(key(name), value.to_vec());
    commit
}

#[tokio::test]
async fn store_keeps_commits_after_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let large = vec![7; 60_000];
    store.commit(put("a", b"1")).await.unwrap();
    store.commit(put("large", &large)).await.unwrap();
    store.close().await;
    let store = Store::open(&options(&folder)).unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(store.get(&key("large")).await.unwrap(), Some(large));
    assert_eq!(store.get(&key("b")).await.unwrap(), None);
    let many = store.get_many(&[key("b"), key("a")]).await.unwrap();
    assert_eq!(many, [None, Some(b"1".to_vec())]);
    assert!(store.stats().bytes_on_disk > 0);
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let store = Store::open_without_checkpoints(&options(&folder)).unwrap();
    // Closing takes longer than the code that runs after the last handle is dropped.
    store.faults().at_points(|point| {
        if point == Point::Applied {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    store.commit(put("a", b"1")).await.unwrap();
    let last = store.last_record();
    let other = store.clone();
    drop(store);
    assert_eq!(other.get(&key("a")).await.unwrap().as_deref(), Some(&b"1"[..]));
    drop(other);
    let mark = Marker::read(&path).unwrap().unwrap();
    assert!(mark.record >= last && mark.rows_in_log == 0, "{mark:?}");
    // A hook on the writer's own thread holds the last handle. The folder's lock is released once
    // the store is closed.
    let store = Store::open(&options(&folder)).unwrap();
    let (dropped, is_dropped) = std::sync::mpsc::channel();
    let handle = store.clone();
    let mut commit = put("b", b"1");
    commit.after_durable(move || {
        is_dropped.recv().unwrap();
        drop(handle);
    });
    let mut committing = Box::pin(store.commit(commit));
    assert!(futures_util::poll!(committing.as_mut()).is_pending());
    drop(committing);
    drop(store);
    dropped.send(()).unwrap();
    assert!((0..60).any(|_| data_dir::lock(&path).is_ok()), "the store was not closed");
    assert!(Marker::read(&path).unwrap().unwrap().record > mark.record);
    drop(folder);
    assert!(!path.exists(), "something was written behind the last handle");
}

#[tokio::test]
async fn commit_hooks_run_in_order_after_visibility_before_return() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooked = |number: usize| {
        let seen = Arc::clone(&seen);
        let view = store.shared.view.clone();
        let mut commit = put(&format!("row-{number}"), b"1");
        commit.after_durable(move || {
            let row = view.get(&key(&format!("row-{number}"))).unwrap();
            seen.lock().unwrap().push((number, row.is_some()));
        });
        commit
    };
    store.commit(hooked(0)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [(0, true)], "it ran before the answer");
    let commits = (1..=20).map(|number| store.commit(hooked(number)));
    for outcome in futures_util::future::join_all(commits).await {
        outcome.unwrap();
    }
    let expect: Vec<_> = (0..=20).map(|number| (number, true)).collect();
    assert_eq!(*seen.lock().unwrap(), expect);
}

#[tokio::test]
async fn commit_hooks_skip_failed_commits_and_contain_panics() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut refused = put("a", b"1");
    let flag = Arc::clone(&ran);
    refused.expect(Expect::Present(key("b"))).after_durable(move || {
        flag.store(true, Ordering::SeqCst);
    });
    assert!(matches!(store.commit(refused).await, Err(Error::Conflict { .. })));
    assert!(!ran.load(Ordering::SeqCst));
    let mut panics = put("a", b"1");
    panics.after_durable(|| panic!("as written"));
    store.commit(panics).await.unwrap();
    store.commit(put("c", b"1")).await.unwrap();
}

#[tokio::test]
async fn commit_hooks_run_after_caller_drops_its_future() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let (ran, runs) = oneshot::channel();
    let mut commit = put("a", b"1");
    commit.after_durable(move || ran.send(()).unwrap());
    drop(store.faults().hold_at_sync(store.commit(commit)).await);
    runs.await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn store_open_writes_new_value_to_prove_flush() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let store = Store::open(&options(&folder)).unwrap();
        let started = store.get(&Key::table(Table::Meta).text("started")).await.unwrap();
        assert!(!seen.contains(&started), "a write of the same bytes flushes nothing");
        seen.push(started);
        store.close().await;
    }
}

#[tokio::test]
async fn store_lock_error_names_holding_process() {
    let folder = tempfile::tempdir().unwrap();
    let _store = Store::open(&options(&folder)).unwrap();
    let error = Store::open(&options(&folder)).unwrap_err().to_string();
    let pid = std::process::id();
    let expect = format!(
        "already running, pid {pid}: {} is in use; stop that service first",
        folder.path().display()
    );
    assert_eq!(error, expect);
}

#[tokio::test]
async fn store_open_removes_partial_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    Store::open(&options(&folder)).unwrap().close().await;
    let half = folder.path().join("store/snap.00000000000000FF.generating");
    std::fs::write(&half, b"half").unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    assert!(!half.exists());
    store.commit(put("a", b"1")).await.unwrap();
}

#[tokio::test]
async fn store_open_refuses_newer_format() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let mut commit = Commit::new();
    let marker = Key::table(Table::Meta).text("format");
    commit.put_bytes(marker, (FORMAT + 1).to_be_bytes().to_vec());
    store.commit(commit).await.unwrap();
    store.close().await;
    let error = Store::open(&options(&folder)).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("Install that release again, or a newer release"), "{said}");
    assert!(said.contains("restore a backup"), "{said}");
}

#[tokio::test]
async fn commit_conflict_writes_nothing_and_spares_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let mut held = put("held", b"1");
    held.add(key("three"), 3);
    store.commit(held).await.unwrap();
    for expect in [
        Expect::Absent(key("held")),
        Expect::Present(key("missing")),
        Expect::Equal(key("held"), b"2".to_vec()),
        Expect::Below(key("three"), 3),
        Expect::Below(key("no counter"), 0),
    ] {
        let mut refused = put("new", b"x");
        refused.expect(expect);
        let (refused, other) = tokio::join!(store.commit(refused), store.commit(put("b", b"2")));
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        other.unwrap();
        assert_eq!(store.get(&key("new")).await.unwrap(), None);
    }
    let mut below = put("new", b"x");
    below.expect(Expect::Below(key("three"), 4)).expect(Expect::Below(key("no counter"), 1));
    store.commit(below).await.unwrap();
}

#[tokio::test]
async fn commit_expecting_absence_wins_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let claims = (0..50_u8).map(|n| {
        let mut commit = put("seat", &[n]);
        commit.expect(Expect::Absent(key("seat"))).add(key("count"), 1);
        let store = store.clone();
        async move { store.commit(commit).await.is_ok() }
    });
    let won = futures_util::future::join_all(claims).await;
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
    assert_eq!(store.counter(&key("count")).await.unwrap(), 1);
}

#[tokio::test]
async fn commit_additions_are_never_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let additions = (1..=200_i64).map(|n| {
        let mut commit = Commit::new();
        commit.add(key("sum"), n).add(key("sum"), -1);
        store.commit(commit)
    });
    for outcome in futures_util::future::join_all(additions).await {
        outcome.unwrap();
    }
    assert_eq!(store.counter(&key("sum")).await.unwrap(), 200 * 201 / 2 - 200);
    store.commit(put("sum", b"odd")).await.unwrap();
    assert!(matches!(store.counter(&key("sum")).await, Err(Error::Malformed(_))));
}

#[tokio::test]
async fn store_refuses_commits_after_close() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&options(&folder)).unwrap();
    let other = store.clone();
    store.close().await;
    let refused = other.commit(put("a", b"1")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}

#[derive(Debug, Clone)]
enum Act {
    Commit(Vec<Write>),
    Reopen,
}

fn name() -> impl Strategy<Value = String> {
    "[ab]{0,3}"
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let value = prop_oneof![
        9 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (1_usize..40_000).prop_map(|length| vec![9; length]),
    ];
    let write = prop_oneof![
        4 => (name(), value).prop_map(|(name, value)| Write::Put(key(&name), value)),
        1 => name().prop_map(|name| Write::Delete(key(&name))),
        1 => (name(), -5_i64..5).prop_map(|(name, n)| Write::Add(key(&format!("n{name}")), n)),
        1 => (name(), -5_i64..5).prop_map(|(name, n)| Write::AddEach(key(&format!("s{name}")), vec![n, 1])),
        1 => name().prop_map(|name| Write::Append(key(&format!("l{name}")), vec![1])),
    ];
    let act = prop_oneof![
        12 => prop::collection::vec(write, 1..6).prop_map(Act::Commit),
        1 => Just(Act::Reopen),
    ];
    prop::collection::vec(act, 1..30)
}

fn apply(model: &mut BTreeMap<Key, Vec<u8>>, writes: &[Write]) {
    for write in writes {
        match write {
            Write::Put(key, value) => {
                model.insert(key.clone(), value.clone());
            }
            Write::Delete(key) => {
                model.remove(key);
            }
            Write::Add(key, delta) => {
                let before = writer::counter(model.get(key).map(Vec::as_slice)).unwrap();
                model.insert(key.clone(), (before + delta).to_be_bytes().to_vec());
            }
            Write::AddEach(key, deltas) => {
                let row = model.get(key).map(Vec::as_slice);
                let before = writer::counters(row, deltas.len()).unwrap();
                let sums = before.iter().zip(deltas).map(|(sum, delta)| sum + delta);
                model.insert(key.clone(), sums.flat_map(i64::to_be_bytes).collect());
            }
            Write::Append(key, value) => {
                let before = writer::counter(model.get(key).map(Vec::as_slice)).unwrap();
                model.insert(key.clone(), (before + 1).to_be_bytes().to_vec());
                let row = key.clone().number_largest_first(before.try_into().unwrap());
                model.insert(row, value.clone());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn store_behaves_like_a_sorted_map(acts in acts(), limit in 1_usize..9, from in name(), to in name()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let mut store = Store::open(&options(&folder)).unwrap();
            let mut model = BTreeMap::new();
            for act in acts {
                match act {
                    Act::Commit(writes) => {
                        apply(&mut model, &writes);
                        store.commit(Commit { writes, ..Commit::default() }).await.unwrap();
                    }
                    Act::Reopen => {
                        store.clone().close().await;
                        drop(store);
                        store = Store::open(&options(&folder)).unwrap();
                    }
                }
                let counters = ["n", "na", "nab", "nb"].map(key);
                let expect = counters.each_ref().map(|key| {
                    writer::counter(model.get(key).map(Vec::as_slice)).unwrap()
                });
                assert_eq!(store.counters_often(&counters).await.unwrap(), expect);
            }
            let prefix = Key::table(Table::Lane);
            let after = Some(key(&from));
            let before = Some(key(&to));
            let rows = store
                .page(Page { prefix: prefix.clone(), after: after.clone(), before: before.clone(), limit })
                .await
                .unwrap();
            let expect: Vec<Row> = model
                .clone()
                .into_iter()
                .filter(|(held, _)| Some(held) > after.as_ref() && Some(held) < before.as_ref())
                .take(limit)
                .collect();
            assert_eq!(rows, expect);
            let all = store.page(Page { prefix, after: None, before: None, limit: 1000 }).await.unwrap();
            assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_organization_with_many_rows_in_memory_wait_while_others_pass() {
    const MIB: usize = 1024 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { log_bytes: 3 * MIB as u64, ..Limits::NEVER };
    let faults = Arc::<Faults>::default();
    let lock = data_dir::make_and_lock(folder.path()).unwrap();
    let store = Store::open_with(&options(&folder), lock, limits, faults).unwrap();
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    store.faults().at_points(move |point| {
        while point == Point::Applied && held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let [first, second]: [OrganizationId; 2] = [runtime::new_id(), runtime::new_id()];
    let mut state = 1_u64;
    let mut noise = || {
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        std::iter::repeat_with(next).take(MIB / 32).flat_map(u64::to_le_bytes).collect::<Vec<_>>()
    };
    let values: Vec<Vec<u8>> = (0..40).map(|_| noise()).collect();
    let mut large = std::pin::pin!(turns::on_behalf_of(first, async {
        for (number, value) in values.iter().enumerate() {
            store.commit(put(&format!("large{number}"), value)).await.unwrap();
        }
    }));
    // Until the checkpoint ends, the organization gets no more than its share of memory.
    while store.shared.memory.used() < 4 * MIB {
        assert!(futures_util::poll!(large.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    for number in 0..20 {
        let small = store.commit(put(&format!("small{number}"), b"1"));
        turns::on_behalf_of(second, small).await.unwrap();
        assert!(futures_util::poll!(large.as_mut()).is_pending());
        assert!(store.shared.memory.used() < 5 * MIB);
    }
    // A cancellation does not wait for the work that it stops.
    let mut cancellation = Commit::of_cancellation();
    cancellation.put_bytes(Key::table(Table::Workflow).text("cancelled"), b"1".to_vec());
    turns::on_behalf_of(first, store.commit(cancellation)).await.unwrap();
    assert!(futures_util::poll!(large.as_mut()).is_pending());
    is_held.store(false, Ordering::SeqCst);
    large.await;
    assert_eq!(store.get(&key("large39")).await.unwrap().as_deref(), Some(&*values[39]));
}

#[tokio::test]
async fn commit_waiting_for_memory_proceeds_once_available() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_without_checkpoints(&options(&folder)).unwrap();
    let other: OrganizationId = runtime::new_id();
    let all = store.shared.memory.force(other, usize::MAX / 2);
    let waiting = turns::on_behalf_of(other, store.commit(put("a", b"1")));
    let mut waiting = std::pin::pin!(waiting);
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    drop(all);
    waiting.await.unwrap();
}

#[tokio::test]
async fn commit_stops_waiting_for_memory_once_urgent() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_without_checkpoints(&options(&folder)).unwrap();
    let other: OrganizationId = runtime::new_id();
    let _all = store.shared.memory.force(other, usize::MAX / 2);
    let urgent = CancellationToken::new();
    let mut commit = put("a", b"1");
    commit.urgent_once(urgent.clone());
    let mut waiting = std::pin::pin!(turns::on_behalf_of(other, store.commit(commit)));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    urgent.cancel();
    waiting.await.unwrap();
}
