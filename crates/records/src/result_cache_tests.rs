//! Tests of the cache on a real store: what finds a result, slots, limits and expiry.

use serde_json::value::to_raw_value;

use super::*;
use orrery_domain::ids::KeyId;
use orrery_storage::Options;
use orrery_storage::record::encode;

const HOUR: Duration = Duration::from_secs(3600);
const PAYER: [u8; 16] = [1; 16];

fn cache(scope: CacheScope) -> Cache {
    Cache { ttl: HOUR, scope, version: [7; 32] }
}

fn payer(organization: u8, key: u8) -> Payer {
    Payer { organization: [organization; 16].into(), key: KeyId::from([key; 16]) }
}

fn entry(input: &str) -> Entry {
    let cache = cache(CacheScope::Organization);
    Entry::new(payer(1, 1), "m", &cache, "prediction", input.as_bytes())
}

fn results() -> (tempfile::TempDir, ResultCache, Clock) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
    let clock = Clock::scripted(Timestamp::from_micros(1));
    let results = ResultCache::new(Store::open(&options).unwrap(), clock.clone());
    (folder, results, clock)
}

async fn add(results: &ResultCache, entry: &Entry, result: &str) {
    let mut commit = Commit::new();
    results.add(&mut commit, entry, &to_raw_value(result).unwrap()).unwrap();
    results.store.commit(commit).await.unwrap();
}

async fn find(results: &ResultCache, entry: &Entry) -> Option<String> {
    let found = results.find(entry, "test").await?;
    Some(serde_json::from_str(found.get()).unwrap())
}

#[test]
fn cached_result_matches_golden_bytes() {
    let result = RawValue::from_string(r#"{"b":1,"a":1.50}"#.to_owned()).unwrap();
    let expires_at = Timestamp::from_micros(5);
    let row = CachedResult { hash: "0f".to_owned(), expires_at, result };
    let bytes = encode(&row).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert_eq!(text, "\u{1}{\"hash\":\"0f\",\"expires_at\":5,\"result\":{\"b\":1,\"a\":1.50}}");
    let read: CachedResult = orrery_storage::record::decode(&bytes).unwrap();
    assert_eq!(read.result.get(), r#"{"b":1,"a":1.50}"#);
}

#[test]
fn cache_entry_depends_on_every_part_of_a_request() {
    let of = |payer, model, cache: &Cache, operation, input: &[u8]| {
        Entry::new(payer, model, cache, operation, input).hash
    };
    let (shared, own) = (cache(CacheScope::Organization), cache(CacheScope::Key));
    let first = of(payer(1, 1), "m", &shared, "p", b"{}");
    assert_eq!(of(payer(1, 2), "m", &shared, "p", b"{}"), first, "another key");
    let edited = Cache { version: [8; 32], ..shared };
    let hashes = [
        first,
        of(payer(1, 1), "n", &shared, "p", b"{}"),
        of(payer(1, 1), "m", &edited, "p", b"{}"),
        of(payer(1, 1), "m", &shared, "q", b"{}"),
        of(payer(1, 1), "m", &shared, "p{", b"}"),
        of(payer(1, 1), "m", &shared, "p", b"[]"),
        of(payer(1, 1), "m", &own, "p", b"{}"),
        of(payer(1, 2), "m", &own, "p", b"{}"),
    ];
    let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
}

#[tokio::test]
async fn cache_result_expires_and_is_swept() {
    let (_folder, results, clock) = results();
    let (first, second) = (entry("1"), entry("2"));
    assert_eq!(find(&results, &first).await, None);
    add(&results, &first, "one").await;
    clock.advance(HOUR / 2);
    add(&results, &second, "two").await;
    assert_eq!(find(&results, &first).await.as_deref(), Some("one"));
    clock.advance(HOUR / 2);
    assert_eq!(find(&results, &first).await, None, "expired");
    assert_eq!(find(&results, &second).await.as_deref(), Some("two"));
    assert_eq!(results.sweep(PAYER.into()).await.unwrap(), 1);
    assert_eq!(results.sweep(PAYER.into()).await.unwrap(), 0);
    assert_eq!(find(&results, &second).await.as_deref(), Some("two"));
    let rows = results.store.page(Page::of(Key::table(Table::CachedResult), 10)).await.unwrap();
    assert_eq!(rows.len(), 2, "the result and its expiry time");
    let other = [2; 16];
    clock.advance(HOUR);
    assert_eq!(results.sweep(other.into()).await.unwrap(), 0, "of another organization");
}

#[tokio::test]
async fn cache_result_replaces_another_in_its_slot() {
    let (_folder, results, _clock) = results();
    let first = entry("1");
    // The same slot, but another hash.
    let mut second = first;
    second.hash[31] ^= 1;
    add(&results, &first, "one").await;
    assert_eq!(find(&results, &second).await, None);
    add(&results, &second, "two").await;
    assert_eq!(find(&results, &first).await, None);
    assert_eq!(find(&results, &second).await.as_deref(), Some("two"));
    let other = Entry { organization: [2; 16].into(), ..second };
    assert_eq!(find(&results, &other).await, None, "another organization");
}

#[tokio::test]
async fn cache_result_above_limit_is_not_added() {
    let (_folder, results, _clock) = results();
    let quotes = 2;
    let largest = "x".repeat(RESULT_BYTES_MAX - quotes);
    add(&results, &entry("1"), &largest).await;
    assert_eq!(find(&results, &entry("1")).await, Some(largest.clone()));
    add(&results, &entry("2"), &format!("{largest}x")).await;
    assert_eq!(find(&results, &entry("2")).await, None);
}

#[tokio::test]
async fn cache_results_never_take_more_than_their_slots() {
    let (_folder, results, _clock) = results();
    let mut commit = Commit::new();
    for input in 0..3 * u32::from(SLOTS) {
        let result = to_raw_value(&input).unwrap();
        results.add(&mut commit, &entry(&input.to_string()), &result).unwrap();
    }
    results.store.commit(commit).await.unwrap();
    let prefix = Key::table(Table::CachedResult);
    let rows = results.store.page(Page::of(prefix, 4 * usize::from(SLOTS))).await.unwrap();
    assert!((usize::from(SLOTS)..=2 * usize::from(SLOTS)).contains(&rows.len()), "{}", rows.len());
}
