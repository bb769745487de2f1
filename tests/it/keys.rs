//! API keys: both header forms on every route that requires a key, and the uniform error message.

use std::time::Duration;

use hyper::Method;
use orrery_api::{Access, ROUTES, Role};
use serde_json::json;

use crate::support::{Ask, Service};

const REFUSAL: &str = r#"{"error":"Invalid or missing API key"}"#;
/// The body of the response to a request without a key on a route below `/replicate`.
const PROBLEM: &str =
    r#"{"title":"Unauthorized","detail":"Invalid or missing API key","status":401}"#;

/// Returns requests without a key for every route on every host that requires one; `id` is used in
/// paths.
fn keyed(service: &Service, id: &str) -> Vec<(String, Ask)> {
    let rows = ROUTES.iter().filter(|route| route.access == Access::Key);
    rows.flat_map(|route| {
        route.hosts.iter().map(|role| {
            let path = route.path.replace("{id}", id);
            let ask = service.ask(*role, route.method.clone(), &path).body("{}");
            (format!("{} {} {path}", role.as_str(), route.method), ask)
        })
    })
    .collect()
}

#[tokio::test]
async fn api_key_routes_reject_invalid_keys_with_401() {
    let service = Service::start().await;
    let accounts = &service.running.services.accounts;
    let expired =
        accounts.create_key(service.organization.id, "gone", "test", Some(Duration::ZERO));
    let (_, expired) = expired.await.unwrap();
    let other = if service.key.ends_with('a') { 'b' } else { 'a' };
    let wrong = format!("{}{other}", &service.key[..service.key.len() - 1]);
    let routes = keyed(&service, "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f");
    assert!(routes.len() >= 5, "the table has lost its keys");
    for (name, ask) in routes {
        let mut refused = vec![ask.clone(), ask.clone().header("cookie", &service.key)];
        for key in ["", "smk_", "none", "\u{ff}", &expired, &wrong, &format!("{}x", service.key)] {
            refused.push(ask.clone().key(key));
            refused.push(ask.clone().header("authorization", format!("Bearer {key}")));
        }
        for scheme in ["Basic ", "", "Bearer"] {
            let value = format!("{scheme}{}", service.key);
            refused.push(ask.clone().header("authorization", value));
        }
        for ask in refused {
            let answer = ask.send().await;
            assert_eq!(answer.status, 401, "{name}");
            if name.contains("/v1/messages") {
                assert_eq!(answer.json()["error"]["type"], "authentication_error", "{name}");
            } else if name.contains("/replicate/") {
                assert_eq!(answer.text, PROBLEM, "{name}");
            } else {
                assert_eq!(answer.text, REFUSAL, "{name}");
            }
            assert_eq!(answer.header("www-authenticate"), "Bearer", "{name}");
            assert!(!answer.header("x-request-id").is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn refusal_of_a_key_says_in_a_header_what_was_wrong() {
    let service = Service::configured("dashboard.admin_api = true\n").await;
    let accounts = &service.running.services.accounts;
    let soon = Some(Duration::ZERO);
    let (_, expired) =
        accounts.create_key(service.organization.id, "gone", "test", soon).await.unwrap();
    let (_, admin) = accounts.create_admin_key("box", "test", None).await.unwrap();
    let other = if service.key.ends_with('a') { 'b' } else { 'a' };
    let unknown = format!("{}{other}", &service.key[..service.key.len() - 1]);
    let key = service.key.as_str();
    let forms = "send X-API-Key: KEY or Authorization: Bearer KEY";
    let balance = || service.ask(Role::Base, Method::GET, "/v1/billing/balance");
    let linked = service.ask(Role::Base, Method::GET, "/v1/billing/balance?token=x");
    let in_query = format!("/v1/billing/balance?api_key={key}");
    let in_query = service.ask(Role::Base, Method::GET, &in_query);
    let in_body = service.ask(Role::Base, Method::POST, "/v1/public/none/versions/v1/trigger");
    let in_body = in_body.json(&json!({"api_key": "smk_of_the_docs", "inputs": {}}));
    let no_key = format!("the request has no key: {forms}");
    let api_key = format!("the header api-key is not read: {forms}");
    let scheme = "the value of Authorization must be Bearer, a space and the key";
    let no_form = "this is not a key: keys are smk_ and 32 letters and digits";
    let administers = "this is an admin key, which is valid only for /admin/v1 on the \
                       dashboard's host: create an API key with orrery key create";
    let absent = "unknown key: it is mistyped, was deleted, or belongs to another installation";
    let logged = format!("the parameter api_key is not read, since addresses are logged: {forms}");
    for (ask, hint) in [
        (balance(), no_key.as_str()),
        (balance().header("Api-Key", key), &api_key),
        (balance().header("authorization", key), scheme),
        (balance().header("authorization", format!("Basic {key}")), scheme),
        (balance().key("smk_…"), "the value of X-API-Key is not ASCII text"),
        (balance().key("smk_..."), no_form),
        (balance().key(""), no_form),
        (balance().key(&unknown), absent),
        (balance().key(&expired), "the key has expired"),
        (balance().key(&admin), administers),
        (linked, "the link has expired or is for another resource: request a new one"),
        (in_query, &logged),
        (in_body, no_form),
    ] {
        let answer = ask.send().await;
        assert_eq!((answer.status, answer.text.as_str()), (401, REFUSAL), "{hint}");
        assert_eq!(answer.header("x-error-hint"), hint);
    }
    let organizations = || service.ask(Role::Dashboard, Method::GET, "/admin/v1/organizations");
    let bearer = |key: &str| organizations().header("authorization", format!("Bearer {key}"));
    let needed = "send Authorization: Bearer KEY, with an admin key";
    for (ask, hint) in [
        (organizations(), format!("the request has no key: {needed}")),
        (organizations().key(&admin), format!("an admin key is not read from X-API-Key: {needed}")),
        (
            bearer(key),
            "this is the API key of an organization, and admin keys begin with sma_".to_owned(),
        ),
        (bearer("sma_x"), "this is not a key: keys are sma_ and 32 letters and digits".to_owned()),
    ] {
        let answer = ask.send().await;
        assert_eq!((answer.status, answer.header("x-error-hint")), (401, hint.as_str()));
    }
}

#[tokio::test]
async fn api_key_headers_work_on_every_route_in_any_case() {
    let service = Service::start().await;
    let key = service.key.clone();
    let bearer = format!("Bearer {}", service.key);
    let lower = format!("bearer {}", service.key);
    let forms = [
        ("X-API-Key", &key),
        ("X-API-KEY", &key),
        ("x-api-key", &key),
        ("Authorization", &bearer),
        ("authorization", &lower),
    ];
    for (name, ask) in keyed(&service, "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f") {
        for (header, value) in forms {
            let answer = ask.clone().header(header, value).send().await;
            assert_ne!(answer.status, 401, "{name} {header}: {value}");
        }
    }
}

#[tokio::test]
async fn api_key_deleted_gets_401_at_once() {
    let service = Service::start().await;
    service.get("/v1/billing/balance").await.expect(200);
    let accounts = &service.running.services.accounts;
    let keys = accounts.keys(service.organization.id).await.unwrap();
    assert_eq!(keys.len(), 1);
    accounts.delete_key(service.organization.id, keys[0].id).await.unwrap();
    service.get("/v1/billing/balance").await.expect_text(401, REFUSAL);
}

#[tokio::test]
async fn api_key_of_other_organization_gets_404() {
    let service = Service::start().await;
    let id = service.create("text-template", json!({"template": "hello"})).await;
    service.ended(&id).await;
    let form = "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc\r\n--b0--\r\n";
    let upload = async || {
        let sent = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key).body(form);
        let sent = sent.header("content-type", "multipart/form-data; boundary=b0").send().await;
        sent.expect(201)["id"].as_str().unwrap().to_owned()
    };
    let by_id = ROUTES.iter().filter(|route| route.path.contains("{id}"));
    let mut asked = 0;
    for route in by_id.filter(|route| route.access == Access::Key) {
        let (id, missing) = match route.path.contains("/v1/files") {
            true => (upload().await, "file not found"),
            false => (id.clone(), "Prediction not found"),
        };
        let path = route.path.replace("{id}", &id);
        let ask = |key: &str| {
            service.ask(Role::Base, route.method.clone(), &path).key(key).body("{}").send()
        };
        if route.path.starts_with("/v1/responses") {
            // `stored_responses` tests those of other organizations.
            assert_eq!(ask(&service.key).await.status, 404, "{path}");
            continue;
        }
        let refused = ask(&service.other_key).await;
        if route.path.starts_with("/replicate/") {
            assert_eq!(refused.expect(404)["detail"], missing, "{path}");
        } else {
            refused.expect_error(404, missing);
        }
        assert_ne!(ask(&service.key).await.status, 404, "{path}");
        asked += 1;
    }
    assert!(asked >= 4, "the table has lost its ids");
    for id in ["none", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f"] {
        let path = format!("/v1/prediction/{id}");
        service.get(&path).await.expect_error(404, "Prediction not found");
        service.cancel(id).await.expect_error(404, "Prediction not found");
    }
}

#[tokio::test]
async fn api_key_rate_limit_is_off_until_configured() {
    let limits = "limits.rate.requests_per_second = 1\nlimits.rate.burst = 2\n";
    let service = Service::configured(limits).await;
    let path = "/v1/prediction/0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f";
    let many = std::iter::repeat_with(|| service.get(path)).take(20);
    let answers = futures_util::future::join_all(many).await;
    let passed = answers.iter().filter(|answer| answer.status == 404).count();
    assert!((2..20).contains(&passed), "{passed} passed");
    let refused = answers.iter().find(|answer| answer.status != 404).unwrap();
    refused.expect_error(429, "too many requests");
    assert_eq!(refused.header("retry-after"), "1");
    let other = service.ask(Role::Base, Method::GET, path).key(&service.other_key).send().await;
    other.expect_error(404, "Prediction not found");
    let unlimited = Service::start().await;
    for _ in 0..20 {
        unlimited.get(path).await.expect_error(404, "Prediction not found");
    }
}
