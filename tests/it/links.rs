//! Links are revoked with the key that created them, expire, and have their own rate limit.

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::dashboard::Person;
use crate::support::{Ask, Provider, Service, until, within};

/// Returns a request to a URL issued by the service, without a key.
fn open(service: &Service, method: Method, url: &str) -> Ask {
    let path = url.split_once("/v1").unwrap().1;
    service.ask(Role::Base, method, &format!("/v1{path}"))
}

#[tokio::test]
async fn links_of_member_are_revoked_with_the_member() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let drawn = service.create("image-qr", json!({"text": "hi", "format": "svg"})).await;
    let output = service.ended(&drawn).await["output"].clone();
    let file = text(&output).split('/').nth_back(1).unwrap();
    let held = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let steps = json!([{"step_id": "ask", "type": "wait", "event": {"name": "approval"}}]);
    let workflow = service.workflow(steps).await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let waiting = async |person: &Person| {
        let path = format!("/api/workflows/api/v1/executions/{execution}?timeout=0");
        let seen = service.asks(person, Method::GET, &path).send().await.expect(200);
        seen["waiting_for"][0]["resume_url"].as_str().map(str::to_owned)
    };
    let get = async |person: &Person, path: &str| {
        service.asks(person, Method::GET, &format!("/api/base{path}")).send().await
    };
    let of = async |person: &Person| {
        let seen = get(person, &format!("/v1/files/{file}")).await.expect(200);
        let events = get(person, &format!("/v1/prediction/{held}")).await;
        let events = events.header("link").strip_prefix('<').unwrap().split_once('>').unwrap().0;
        (text(&seen["url"]).to_owned(), events.to_owned())
    };
    let (of_member, of_owner) = (of(&member).await, of(&owner).await);
    let resume = until("wait for the event", async || waiting(&member).await).await;
    for url in [&of_member.0, &of_owner.0, &resume] {
        assert_eq!(open(&service, Method::GET, url).send().await.status, 200, "{url}");
    }
    let mut stream = open(&service, Method::GET, &of_member.1).open().await;
    assert_eq!(stream.status().as_u16(), 200);

    let id = service.id_of(&owner, "grace@example.com").await;
    let removed = service.asks(&owner, Method::DELETE, &format!("/members/{id}")).send().await;
    assert_eq!(removed.status, 204);
    let ended = http_body_util::BodyExt::collect(stream.body_mut());
    within("end of the stream", ended).await.unwrap();
    for url in [&of_member.0, &of_member.1, &resume] {
        assert_eq!(open(&service, Method::GET, url).send().await.status, 401, "{url}");
    }
    let answer = open(&service, Method::POST, &resume).json(&json!({"payload": "yes"}));
    assert_eq!(answer.send().await.status, 401);
    // Other people's links, and links in outputs, keep working.
    for url in [&of_owner.0, text(&output)] {
        assert_eq!(open(&service, Method::GET, url).send().await.status, 200, "{url}");
    }
    provider.release(1);
}

/// Deletes the first organization's key.
async fn delete_key(service: &Service) {
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let key = accounts.keys(organization).await.unwrap().remove(0).id;
    accounts.delete_key(organization, key).await.unwrap();
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test]
async fn signed_urls_and_open_streams_end_with_their_key() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let drawn = service.create("image-qr", json!({"text": "hi", "format": "svg"})).await;
    let output = service.ended(&drawn).await["output"].clone();
    let announce = json!({"content_type": "text/plain"});
    let announced = service.post("/v1/upload/presign", &announce).send().await.expect(200);
    let id = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let detail = service.get(&format!("/v1/prediction/{id}")).await;
    let events = detail.header("link").strip_prefix('<').unwrap().split_once('>').unwrap().0;
    let mut by_link = open(&service, Method::GET, events).open().await;
    let path = format!("/v1/prediction/{id}/events");
    let mut by_key = service.ask(Role::Base, Method::GET, &path).key(&service.key).open().await;
    assert_eq!((by_link.status().as_u16(), by_key.status().as_u16()), (200, 200));
    assert_eq!(open(&service, Method::GET, text(&output)).send().await.status, 200);

    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let (_, second) = accounts.create_key(organization, "second", "test", None).await.unwrap();
    delete_key(&service).await;
    for stream in [&mut by_link, &mut by_key] {
        let ended = http_body_util::BodyExt::collect(stream.body_mut());
        let read = within("end of the stream", ended).await.unwrap().to_bytes();
        assert!(!String::from_utf8_lossy(&read).contains("event: end"), "the prediction goes on");
    }
    let refused = r#"{"error":"Invalid or missing API key"}"#;
    for url in [text(&output), events, text(&announced["public_url"])] {
        open(&service, Method::GET, url).send().await.expect_text(401, refused);
    }
    let put = open(&service, Method::PUT, text(&announced["presigned_url"]));
    put.header("content-type", "text/plain").body("abc").send().await.expect_text(401, refused);

    // The file still exists, and another key creates a different link to it.
    let files = service.ask(Role::Base, Method::GET, "/v1/files").key(&second).send().await;
    let url = files.expect(200)["files"][0]["url"].clone();
    assert_ne!(url, output);
    assert_eq!(open(&service, Method::GET, text(&url)).send().await.status, 200);
}

#[tokio::test]
async fn signed_urls_have_their_own_rate_limit() {
    let rate = "[limits.rate]\nrequests_per_second = 1\nburst = 3\n";
    let service = Service::configured(rate).await;
    let id = service.create("image-qr", json!({"text": "hi", "format": "svg"})).await;
    let url = service.ended(&id).await["output"].clone();
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(open(&service, Method::GET, text(&url)).send().await.status);
    }
    assert_eq!(statuses[..3], [200, 200, 200]);
    assert!(statuses[3..].contains(&429), "{statuses:?}");
    assert_eq!(service.get("/v1/files/usage").await.status, 200, "the key's own is not empty");
}
