//! Tests of stored responses: their rows, limits, conversations and deletion.

use std::net::IpAddr;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use orrery_http::budget::{Budget, Lease, Share};
use orrery_http::request::Peer;
use orrery_storage::record::encode;
use orrery_wire::responses::Item;

const ORGANIZATION: [u8; 16] = [1; 16];

fn open(folder: &TempDir, most: u64) -> Responses {
    let options = storage::Options { folder: folder.path().to_owned(), inline_bytes: 64 };
    let store = Store::open(&options).unwrap();
    Responses { most, ..Responses::new(store, Clock::system()) }
}

fn lease(limit: usize) -> Lease {
    let peer = Peer::Tcp((IpAddr::from([127, 0, 0, 1]), 1).into());
    Budget::new(limit, Share::AtMost(limit)).lease(&peer)
}

fn message(id: &str, role: &str, text: &str) -> Value {
    let kind = if role == "user" { "input_text" } else { "output_text" };
    let part = json!({"type": kind, "text": text});
    json!({"type": "message", "id": id, "role": role, "content": [part]})
}

async fn put(responses: &Responses, previous: Option<ExecutionId>, text: &str) -> ExecutionId {
    let id: ExecutionId = new_id();
    let digits = id.to_string().replace('-', "");
    let item = |place: &str, role: &str| message(&format!("msg_{digits}_{place}"), role, text);
    let new = NewResponse {
        organization: ORGANIZATION.into(),
        id,
        previous,
        input: to_raw_value(&json!([item("in0", "user")])).unwrap(),
        response: to_raw_value(&json!({"output": [item("0", "assistant")]})).unwrap(),
    };
    responses.put(new).await.unwrap();
    id
}

fn texts(items: &[Item]) -> Vec<String> {
    items.iter().map(|item| format!("{item:?}")).collect()
}

#[test]
fn response_row_matches_golden_bytes() {
    let stored = Stored {
        owner: ResponseId::from([1; 16]),
        created_at: Timestamp::from_micros(4),
        previous: Some(ExecutionId::from([2; 16])),
        input: Payload::of(&json!([])).unwrap(),
        response: Payload::of(&json!({})).unwrap(),
        open: Some(Open { shows_reasoning: true }),
    };
    let golden = "\u{1}{\"owner\":\"01010101-0101-0101-0101-010101010101\",\"created_at\":4,\
                  \"previous\":\"02020202-0202-0202-0202-020202020202\",\
                  \"input\":{\"inline\":[]},\"response\":{\"inline\":{}},\"open\":{\"shows_reasoning\":true}}";
    assert_eq!(String::from_utf8(encode(&stored).unwrap()).unwrap(), golden);
    assert_eq!(decode::<Stored>(golden.as_bytes()).unwrap(), stored);
}

#[tokio::test]
async fn conversation_is_read_through_previous_responses() {
    let folder = tempfile::tempdir().unwrap();
    let responses = open(&folder, 9);
    let organization = ORGANIZATION.into();
    let first = put(&responses, None, &"a".repeat(100)).await;
    let second = put(&responses, Some(first), "b").await;
    let items = responses.conversation(organization, second, &mut lease(1 << 20)).await.unwrap();
    let texts = texts(&items);
    assert_eq!(texts.len(), 4);
    assert!(texts[0].contains("aaa") && texts[1].contains("aaa") && texts[3].contains("\"b\""));
    let foreign = responses.conversation([2; 16].into(), second, &mut lease(1 << 20)).await;
    assert!(matches!(foreign, Err(Error::NoResponse { id }) if id == shown(second)));
    let full = responses.conversation(organization, second, &mut lease(100)).await;
    assert!(matches!(full, Err(Error::Busy)));
    assert!(responses.delete(organization, first).await.unwrap());
    assert!(!responses.delete(organization, first).await.unwrap());
    let broken = responses.conversation(organization, second, &mut lease(1 << 20)).await;
    assert!(matches!(broken, Err(Error::NoResponse { id }) if id == shown(first)));
}

#[tokio::test]
async fn conversation_has_limits() {
    let folder = tempfile::tempdir().unwrap();
    let responses = open(&folder, u64::MAX);
    let mut last = None;
    for _ in 0..=DEPTH_MAX {
        last = Some(put(&responses, last, "a").await);
    }
    let last = last.unwrap();
    let deep = responses.conversation(ORGANIZATION.into(), last, &mut lease(1 << 30)).await;
    assert!(matches!(deep, Err(Error::TooDeep)));
    let long = "x".repeat(usize::try_from(BYTES_MAX / 2).unwrap());
    let large = put(&responses, None, &long).await;
    let large = responses.conversation(ORGANIZATION.into(), large, &mut lease(1 << 30)).await;
    assert!(matches!(large, Err(Error::TooLarge)));
}

#[tokio::test]
async fn references_are_replaced_by_items_of_own_responses() {
    let folder = tempfile::tempdir().unwrap();
    let responses = open(&folder, 9);
    let id = put(&responses, None, "a").await;
    let reference = |id: String| -> Item {
        serde_json::from_value(json!({"type": "item_reference", "id": id})).unwrap()
    };
    let digits = id.to_string().replace('-', "");
    let mut items =
        vec![reference(format!("msg_{digits}_0")), reference(format!("msg_{digits}_in0"))];
    let organization = ORGANIZATION.into();
    responses.resolve(organization, &mut items, &mut lease(1 << 20)).await.unwrap();
    assert!(matches!(items.as_slice(), [Item::Answer(_), Item::Message(_)]), "{items:?}");
    let long = put(&responses, None, &"x".repeat(1 << 20)).await;
    let long = long.to_string().replace('-', "");
    let mut items = vec![reference(format!("msg_{long}_0")); 20];
    let many = responses.resolve(organization, &mut items, &mut lease(1 << 30)).await;
    assert!(matches!(many, Err(Error::TooLarge)), "each copy counts");
    let other: ExecutionId = new_id();
    let other = other.to_string().replace('-', "");
    for missing in [format!("msg_{digits}_7"), format!("msg_{other}_0"), "x".to_owned()] {
        let mut items = vec![reference(missing.clone())];
        let found = responses.resolve(organization, &mut items, &mut lease(1 << 20)).await;
        assert!(matches!(found, Err(Error::NoItem { id }) if id == missing));
    }
}

#[tokio::test]
async fn oldest_responses_are_evicted_and_all_are_erased() {
    let folder = tempfile::tempdir().unwrap();
    let responses = open(&folder, 2);
    let organization: OrganizationId = ORGANIZATION.into();
    let long = "x".repeat(100_000);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(put(&responses, None, &long).await);
    }
    assert!(responses.find(organization, ids[0]).await.unwrap().is_none());
    assert!(responses.find(organization, ids[2]).await.unwrap().is_some());
    assert!(responses.store.payload_usage(organization).await.unwrap() > 400_000);
    let before = responses.clock.now().before(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(responses.purge_before(organization, before).await.unwrap(), 0);
    responses.erase(organization).await.unwrap();
    assert!(responses.find(organization, ids[2]).await.unwrap().is_none());
    assert_eq!(responses.store.payload_usage(organization).await.unwrap(), 0);
    assert_eq!(responses.store.counter(&rows::count(organization)).await.unwrap(), 0);
}

#[test]
fn ids_have_one_form() {
    let id: ExecutionId = new_id();
    assert_eq!(id_of(&shown(id)), Some(id));
    for other in
        [shown(id).to_uppercase(), id.to_string(), "resp_".to_owned(), "resp_\u{e9}".repeat(9)]
    {
        assert_eq!(id_of(&other), None, "{other}");
    }
}
