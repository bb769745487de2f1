//! Tests of requests with the same key: repeated, concurrent, with a different body, a day later,
//! and after a disconnect.

use serde_json::json;

use super::*;
use orrery_runtime::Tasks;
use orrery_storage::Options;
use orrery_storage::record::encode;

const ORGANIZATION: [u8; 16] = [1; 16];
/// The ID of the created resource, and the key of a counter of how often the resource was created.
const CREATED: [u8; 16] = [9; 16];

fn keys() -> (tempfile::TempDir, Idempotency, Clock) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
    let clock = Clock::scripted(Timestamp::from_micros(1));
    let keys = Idempotency::new(Store::open(&options).unwrap(), clock.clone());
    (folder, keys, clock)
}

fn created() -> Key {
    Key::table(Table::Balance).id(OrganizationId::from(CREATED))
}

async fn begin(keys: &Idempotency, key: &str, body: &str) -> Begin {
    keys.begin(ORGANIZATION.into(), "create", key, body.as_bytes()).await.unwrap()
}

async fn fresh(keys: &Idempotency, key: &str, body: &str) -> Claim {
    let begun = begin(keys, key, body).await;
    let Begin::New(claim) = begun else { panic!("not fresh: {begun:?}") };
    claim
}

fn creation(claim: &Claim, subject: &str) -> Commit {
    let mut commit = Commit::new();
    commit.add(created(), 1);
    claim.record(&mut commit, StoredResponse::created(subject)).unwrap();
    commit
}

async fn finish(keys: &Idempotency, claim: Claim, subject: &str) {
    keys.store.commit(creation(&claim, subject)).await.unwrap();
}

fn word(begin: &Begin) -> String {
    match begin {
        Begin::New(_) => "fresh".to_owned(),
        Begin::Replay(answered) => format!("replay {}", answered.subject),
        Begin::Mismatch => "mismatch".to_owned(),
        Begin::InProgress => "in progress".to_owned(),
    }
}

#[tokio::test]
async fn idempotency_repeat_replays_first_response() {
    let (_folder, keys, clock) = keys();
    let claim = fresh(&keys, "k", "body").await;
    finish(&keys, claim, "id-1").await;
    let day = REMEMBERED;
    let blink = Duration::from_micros(1);
    for (organization, route, key, body, after, expected) in [
        (1, "create", "k", "body", Duration::ZERO, "replay id-1"),
        (1, "create", "k", "other", Duration::ZERO, "mismatch"),
        (1, "create", "k", "", Duration::ZERO, "mismatch"),
        (1, "create", "k2", "body", Duration::ZERO, "fresh"),
        (1, "create", "K", "body", Duration::ZERO, "fresh"),
        (1, "creat", "ek", "body", Duration::ZERO, "fresh"),
        (1, "run", "k", "body", Duration::ZERO, "fresh"),
        (2, "create", "k", "body", Duration::ZERO, "fresh"),
        (1, "create", "k", "body", day - blink, "replay id-1"),
        (1, "create", "k", "other", Duration::ZERO, "mismatch"),
        (1, "create", "k", "body", blink, "fresh"),
        (1, "create", "k", "other", Duration::ZERO, "fresh"),
    ] {
        clock.advance(after);
        let organization = OrganizationId::from([organization; 16]);
        let begun = keys.begin(organization, route, key, body.as_bytes()).await.unwrap();
        assert_eq!(word(&begun), expected, "{organization} {route} {key} {body}");
    }
}

#[tokio::test]
async fn idempotency_key_is_remembered_while_clock_is_wrong() {
    let (_folder, keys, clock) = keys();
    let day = 24 * 3600 * 1_000_000;
    clock.set(Timestamp::from_micros(10 * day));
    let start = 1000 * day;
    clock.set(Timestamp::from_micros(start));
    clock.advance(Duration::from_secs(30 * 24 * 3600));
    let right = clock.now();
    // The clock's state when the key is recorded, and when the request is repeated.
    for (name, recorded, asked) in
        [("ahead", 0, 365), ("back", 0, -365), ("was ahead", 365, 0), ("was back", -365, 0)]
    {
        let at = |days: i64| Timestamp::from_micros(right.micros() + days * day);
        clock.set(at(recorded));
        let claim = fresh(&keys, name, "body").await;
        finish(&keys, claim, name).await;
        clock.set(at(asked));
        assert_eq!(word(&begin(&keys, name, "body").await), format!("replay {name}"));
        assert_eq!(keys.sweep().await.unwrap(), 0, "{name}");
        clock.set(right);
    }
}

#[tokio::test]
async fn idempotency_key_is_reusable_after_a_day() {
    let (_folder, keys, clock) = keys();
    let claim = fresh(&keys, "k", "body").await;
    finish(&keys, claim, "id-1").await;
    clock.advance(REMEMBERED);
    let claim = fresh(&keys, "k", "other").await;
    finish(&keys, claim, "id-2").await;
    assert_eq!(word(&begin(&keys, "k", "other").await), "replay id-2");
    assert_eq!(word(&begin(&keys, "k", "body").await), "mismatch");
    assert_eq!(keys.sweep().await.unwrap(), 0);
    clock.advance(REMEMBERED);
    assert_eq!(keys.sweep().await.unwrap(), 1);
    assert_eq!(keys.sweep().await.unwrap(), 0);
}

#[tokio::test]
async fn idempotency_sweep_removes_expired_keys_in_batches() {
    let (_folder, keys, clock) = keys();
    let old = SWEEP_BATCH + 10;
    for number in 0..old {
        let claim = fresh(&keys, &format!("old-{number}"), "body").await;
        let commit = creation(&claim, "id");
        drop(claim);
        keys.store.commit(commit).await.unwrap();
    }
    clock.advance(REMEMBERED);
    let claim = fresh(&keys, "new", "body").await;
    finish(&keys, claim, "id-new").await;
    assert_eq!(keys.sweep().await.unwrap(), old);
    assert_eq!(word(&begin(&keys, "new", "body").await), "replay id-new");
}

#[tokio::test]
async fn idempotency_sweep_keeps_replaced_record() {
    let (_folder, keys, clock) = keys();
    let claim = fresh(&keys, "k", "body").await;
    let row = claim.row.clone();
    finish(&keys, claim, "id-1").await;
    clock.advance(REMEMBERED);
    let seen = keys.store.get(&row).await.unwrap().unwrap();
    let claim = fresh(&keys, "k", "body").await;
    finish(&keys, claim, "id-2").await;
    assert!(!keys.delete(row, Some(seen), None).await.unwrap());
    assert_eq!(word(&begin(&keys, "k", "body").await), "replay id-2");
}

#[tokio::test]
async fn idempotency_keys_of_older_release_are_indexed_by_time_once() {
    let (_folder, keys, clock) = keys();
    for key in ["old", "young"] {
        let claim = fresh(&keys, key, "body").await;
        let expiry = expiry(claim.now, &claim.row);
        finish(&keys, claim, "id").await;
        let mut commit = Commit::new();
        commit.delete(expiry);
        keys.store.commit(commit).await.unwrap();
        clock.advance(REMEMBERED / 2);
    }
    assert_eq!(keys.sweep().await.unwrap(), 1, "a full scan found the old key");
    assert_eq!(word(&begin(&keys, "young", "body").await), "replay id");
    clock.advance(REMEMBERED / 2);
    assert_eq!(keys.sweep().await.unwrap(), 1);
    let page = Page { prefix: expiries(), after: None, before: None, limit: 10 };
    assert!(keys.store.page(page).await.unwrap().is_empty());
}

#[tokio::test]
async fn idempotency_key_is_free_after_failed_first_request() {
    let (_folder, keys, _) = keys();
    drop(fresh(&keys, "k", "body").await);
    drop(fresh(&keys, "k", "another").await);
    assert!(keys.under_way.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn idempotency_repeat_waits_for_first_request_then_times_out() {
    let (_folder, keys, _) = keys();
    let claim = fresh(&keys, "k", "body").await;
    assert_eq!(word(&begin(&keys, "k", "body").await), "in progress");
    // The store's writer does not use tokio's time, so use real time from here on.
    tokio::time::resume();
    let (second, ()) = tokio::join!(begin(&keys, "k", "body"), finish(&keys, claim, "id-1"));
    assert_eq!(word(&second), "replay id-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_concurrent_requests_create_once() {
    let (_folder, keys, _) = keys();
    let tasks = Tasks::new();
    let clients: Vec<_> = (0..32)
        .map(|number| {
            let keys = keys.clone();
            tasks.spawn(async move {
                match begin(&keys, "k", "body").await {
                    Begin::New(claim) => {
                        let subject = format!("id-{number}");
                        finish(&keys, claim, &subject).await;
                        subject
                    }
                    Begin::Replay(answered) => answered.subject,
                    other @ (Begin::Mismatch | Begin::InProgress) => panic!("{other:?}"),
                }
            })
        })
        .collect();
    let mut heard = Vec::new();
    for client in clients {
        heard.push(client.await.unwrap());
    }
    heard.dedup();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(keys.store.counter(&created()).await.unwrap(), 1);
    assert!(keys.under_way.lock().unwrap().is_empty());
}

/// The client disconnects: its claim is dropped while its commit is still being written.
#[tokio::test]
async fn idempotency_commit_wins_after_its_claim_is_dropped() {
    let (_folder, keys, clock) = keys();
    for (round, subject) in [(1, "id-1"), (2, "id-3")] {
        let first = fresh(&keys, "k", "body").await;
        let on_its_way = creation(&first, subject);
        drop(first);
        let second = fresh(&keys, "k", "body").await;
        let too_late = creation(&second, "id-2");
        keys.store.commit(on_its_way).await.unwrap();
        let refused = keys.store.commit(too_late).await.unwrap_err();
        assert!(matches!(refused, storage::Error::Conflict { .. }), "{refused}");
        drop(second);
        assert_eq!(word(&begin(&keys, "k", "body").await), format!("replay {subject}"));
        assert_eq!(keys.store.counter(&created()).await.unwrap(), round);
        // The second round repeats the test with an expired response that is already recorded.
        clock.advance(REMEMBERED);
    }
}

#[tokio::test]
async fn idempotency_whole_response_is_stored_up_to_limit() {
    let (_folder, keys, _) = keys();
    let claim = fresh(&keys, "k", "body").await;
    let mut commit = Commit::new();
    let long = StoredResponse::whole("bulk", 202, json!("x".repeat(BODY_MAX - 1)));
    assert!(claim.record(&mut commit, long).is_err());
    assert!(commit.is_empty());
    let answered = StoredResponse::whole("bulk", 202, json!({"executions": ["a", "b"]}));
    claim.record(&mut commit, answered.clone()).unwrap();
    keys.store.commit(commit).await.unwrap();
    drop(claim);
    let begun = begin(&keys, "k", "body").await;
    let Begin::Replay(replayed) = begun else { panic!("no replay: {begun:?}") };
    assert_eq!(replayed, answered);
}

#[test]
fn idempotency_key_has_1_to_255_characters() {
    for (key, is_key) in [
        (String::new(), false),
        ("k".to_owned(), true),
        ("x".repeat(255), true),
        ("é".repeat(255), true),
        ("x".repeat(256), false),
    ] {
        assert_eq!(check_key(&key).is_ok(), is_key, "{}", key.len());
    }
    assert_eq!(InvalidKey.to_string(), "Idempotency-Key must have 1 to 255 characters");
}

#[test]
fn idempotency_record_matches_golden_bytes() {
    let remembered = Remembered {
        body: "00ff".to_owned(),
        answered: StoredResponse::created("id-1"),
        at: Timestamp::from_micros(5),
    };
    let golden = b"\x01{\"body\":\"00ff\",\"answered\":{\"subject\":\"id-1\"},\"at\":5}";
    assert_eq!(encode(&remembered).unwrap(), golden);
    assert_eq!(decode::<Remembered>(golden).unwrap().answered, remembered.answered);
}
