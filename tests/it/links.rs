//! Links end with the key that made them, at their expiry, and draw from a bucket of their own.

use hyper::Method;
use orrery::api::Role;
use serde_json::{Value, json};

use crate::support::{Ask, Provider, Service, within};

/// A request to a URL that the service gave out, without a key.
fn open(service: &Service, method: Method, url: &str) -> Ask {
    let path = url.split_once("/v1").unwrap().1;
    service.ask(Role::Base, method, &format!("/v1{path}"))
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

    // The file is there still, and another key makes another link to it.
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
