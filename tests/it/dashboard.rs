//! The dashboard's routes: who has access, what a session permits, and what pages of other origins
//! and hosts cannot make a browser do.

use std::net::SocketAddr;

use hyper::Method;
use orrery_api::{Access, ROUTES, Role};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::dashboard::{PASSWORD, Person, cookie_of, token_of};
use crate::support::{Provider, Receiver, Service, until, within};

const TEXT: &str = "text-template";

fn template() -> Value {
    json!({"model": TEXT, "version": "0.0.1", "input": {"template": "Hello"}})
}

#[tokio::test]
async fn setup_link_creates_one_owner_once() {
    let service = Service::start().await;
    let nobody = service.page_asks(Method::GET, "/session").send().await.expect(200);
    assert_eq!(
        nobody,
        json!({"set_up": false, "member": null, "organization": null, "version": null})
    );
    let first = service.owner_token().await;
    let token = service.owner_token().await;
    let body = |token: &str, email: &str, password: &str| json!({"token": token, "name": "Ada", "email": email, "password": password});
    let send =
        async |body: &Value| service.page_asks(Method::POST, "/setup").json(body).send().await;

    let replaced = send(&body(&first, "a@example.com", PASSWORD)).await;
    replaced.expect_error(410, "this link was withdrawn, or a newer one replaces it");
    send(&body("nonsense", "a@example.com", PASSWORD)).await.expect(410);
    for (email, password, field) in
        [("no address", PASSWORD, "/email"), ("a@example.com", "short", "/password")]
    {
        let refused = send(&body(&token, email, password)).await.expect(400);
        assert_eq!(refused["details"][0]["path"], field, "{refused}");
    }
    let shown = service.page_asks(Method::POST, "/links").json(&json!({"token": token}));
    assert_eq!(shown.send().await.expect(200)["kind"], "setup");

    // Several people use the same link concurrently, and only one becomes the Owner.
    let bodies: Vec<Value> =
        (0..4).map(|number| body(&token, &format!("a{number}@example.com"), PASSWORD)).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(send)).await;
    let made: Vec<_> = answers.iter().filter(|answer| answer.status == 204).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| [204, 410].contains(&answer.status)), "{answers:?}");
    let cookie = made[0].header("set-cookie");
    assert!(cookie.contains("; HttpOnly; SameSite=Strict;"), "{cookie}");
    let port = service.front(Role::Dashboard).port();
    assert!(cookie.starts_with(&format!("orrery_session_{port}=")), "{cookie}");
    let owner = Person { cookie: cookie_of(cookie), email: String::new() };
    let session = service.session_of(&owner).await;
    assert_eq!(
        (&session["member"]["role"], &session["member"]["api_key_access"]),
        (&json!("owner"), &json!(true))
    );
    send(&body(&token, "b@example.com", PASSWORD))
        .await
        .expect_error(410, "this link was used already");
    // From now on, the Owner's link sets a new password.
    let reset = service.owner_token().await;
    let shown = service.page_asks(Method::POST, "/links").json(&json!({"token": reset}));
    assert_eq!(shown.send().await.expect(200)["kind"], "reset");
    send(&body(&reset, "b@example.com", PASSWORD)).await.expect(410);
}

#[tokio::test]
async fn session_starts_with_password_and_ends_with_logout() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let wrong = service.logs_in(&owner.email, "wrong horse battery").await;
    wrong.expect_error(401, "the email address or the password is wrong");
    let unknown = service.logs_in("nobody@example.com", PASSWORD).await;
    assert_eq!((unknown.status, &unknown.text), (wrong.status, &wrong.text));
    let answer = service.logs_in("OWNER@example.com", PASSWORD).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    let second = Person { cookie: cookie_of(answer.header("set-cookie")), ..owner.clone() };
    assert_ne!(second.cookie, owner.cookie);
    let out = service.asks(&second, Method::DELETE, "/session").send().await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    service
        .asks(&second, Method::GET, "/members")
        .send()
        .await
        .expect_error(401, "you are not logged in");
    service.asks(&owner, Method::GET, "/members").send().await.expect(200);
    let restarted = service.restart().await;
    // The cookie's name contains the port, which has changed since.
    let value = owner.cookie.split_once('=').unwrap().1;
    let port = restarted.front(Role::Dashboard).port();
    let owner = Person { cookie: format!("orrery_session_{port}={value}"), ..owner };
    restarted.asks(&owner, Method::GET, "/members").send().await.expect(200);
}

#[tokio::test]
async fn password_reset_and_change_end_sessions() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let member = service.member(&owner, "grace@example.com").await;
    let id = service.id_of(&owner, "grace@example.com").await;
    let link = service
        .asks(&owner, Method::POST, &format!("/members/{id}/reset"))
        .send()
        .await
        .expect(201);
    let token = token_of(link["url"].as_str().unwrap());
    let reset = async |token: &str| {
        let body = json!({"token": token, "password": "another long password"});
        service.page_asks(Method::POST, "/session/reset").json(&body).send().await
    };
    let opened = reset(&token).await;
    assert_eq!(opened.status, 204);
    let by_link = Person { cookie: cookie_of(opened.header("set-cookie")), ..member.clone() };
    service.asks(&by_link, Method::GET, "/session").send().await.expect(200);
    reset(&token).await.expect_error(410, "this link was used already");
    service.asks(&member, Method::GET, "/keys").send().await.expect(401);
    service.logs_in("grace@example.com", PASSWORD).await.expect(401);
    let again = service.logs_in("grace@example.com", "another long password").await;
    let again = Person { cookie: cookie_of(again.header("set-cookie")), ..member };

    let change = async |current: &str| {
        let body = json!({"current": current, "password": "a third long password"});
        service.asks(&again, Method::POST, "/session/password").json(&body).send().await
    };
    change("wrong horse battery").await.expect_error(422, "the current password is wrong");
    let changed = change("another long password").await;
    assert_eq!(changed.status, 204);
    service.asks(&again, Method::GET, "/keys").send().await.expect(401);
    let fresh = Person { cookie: cookie_of(changed.header("set-cookie")), ..again };
    service.asks(&fresh, Method::GET, "/keys").send().await.expect(200);
}

#[tokio::test]
async fn member_permissions_are_enforced_on_every_route() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let manager = service.member(&owner, "manager@example.com").await;
    let member = service.member(&owner, "member@example.com").await;
    let id = service.id_of(&owner, "manager@example.com").await;
    let path = format!("/members/{id}");
    let tick = service.asks(&owner, Method::PATCH, &path).json(&json!({"api_key_access": true}));
    assert_eq!(tick.send().await.expect(200)["api_key_access"], true);
    let nothing = "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f";
    for route in ROUTES.iter().filter(|route| route.access.is_by_session()) {
        // A stream of changes never ends, so request one for an unknown topic, which is rejected.
        let path = match route.path {
            "/events" => "/events?topics=none".to_owned(),
            path => path.replace("{id}", nothing),
        };
        // Without a session there is no access, and members have only their own permissions.
        let anonymous = service.page_asks(route.method.clone(), &path).send().await;
        assert_eq!(anonymous.status, 401, "{path}");
        let by_key = service.page_asks(route.method.clone(), &path).key(&service.key).send().await;
        assert_eq!(by_key.status, 401, "{path}");
        if route.path == "/session" {
            continue;
        }
        for (person, may_keys, is_owner) in
            [(&owner, true, true), (&manager, true, false), (&member, false, false)]
        {
            let allowed = match route.access {
                Access::Owner => is_owner,
                Access::KeyManager => may_keys,
                Access::Public
                | Access::MaybeKey
                | Access::Key
                | Access::BodyKey
                | Access::LocalKey
                | Access::Link
                | Access::Member
                | Access::Account
                | Access::Admin
                | Access::Local => true,
            };
            let answer = service.asks(person, route.method.clone(), &path).send().await;
            assert_eq!(answer.status != 403, allowed, "{} {path} {}", route.method, person.email);
        }
    }
    // A revoked permission takes effect at the next request.
    let tick = service.asks(&owner, Method::PATCH, &path).json(&json!({"api_key_access": false}));
    tick.send().await.expect(200);
    let create = service.asks(&manager, Method::POST, "/keys").json(&json!({"name": "k"}));
    create.send().await.expect_error(
        403,
        "this needs the permission 'Can manage API keys', which the Owner grants",
    );
    // The Owner's role cannot be changed.
    let own = service.id_of(&owner, &owner.email).await;
    let own = format!("/members/{own}");
    service.asks(&owner, Method::DELETE, &own).send().await.expect(409);
    let untick = service.asks(&owner, Method::PATCH, &own).json(&json!({"api_key_access": false}));
    untick.send().await.expect(409);
}

#[tokio::test]
async fn api_key_outlives_permission_and_account_of_its_creator() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let maker = service.member(&owner, "maker@example.com").await;
    let other = service.member(&owner, "other@example.com").await;
    let set = async |email: &str, allowed: bool| {
        let id = service.id_of(&owner, email).await;
        let path = format!("/members/{id}");
        let body = json!({"api_key_access": allowed});
        service.asks(&owner, Method::PATCH, &path).json(&body).send().await.expect(200);
        id
    };
    let id = set("maker@example.com", true).await;
    let body = json!({"name": "of the maker", "expires_in_days": 30});
    let made = service.asks(&maker, Method::POST, "/keys").json(&body).send().await.expect(201);
    let key = made["key"].as_str().unwrap().to_owned();
    let works = async || {
        let ask = service.ask(Role::Base, Method::GET, "/v1/billing/balance").key(&key);
        ask.send().await.status == 200
    };
    assert!(works().await);
    set("maker@example.com", false).await;
    assert!(works().await);
    let gone = service.asks(&owner, Method::DELETE, &format!("/members/{id}")).send().await;
    assert_eq!(gone.status, 204);
    service.asks(&maker, Method::GET, "/members").send().await.expect(401);
    service.logs_in("maker@example.com", PASSWORD).await.expect(401);
    assert!(works().await);
    // The list shows the key's creator and last use, but never the key itself.
    let listed = service.asks(&other, Method::GET, "/keys").send().await;
    assert!(!listed.text.contains(&key));
    let keys = listed.expect(200);
    let shown =
        keys["keys"].as_array().unwrap().iter().find(|one| one["id"] == made["id"]).unwrap();
    assert_eq!(shown["created_by"], "maker@example.com");
    assert!(shown["last_used_at"].is_string() && shown["expires_at"].is_string(), "{shown}");
    set("other@example.com", true).await;
    let path = format!("/keys/{}", made["id"].as_str().unwrap());
    assert_eq!(service.asks(&other, Method::DELETE, &path).send().await.status, 204);
    assert!(!works().await);
    let audit = service.asks(&other, Method::GET, "/audit?action=key").send().await;
    assert!(!audit.text.contains(&key));
    let audit = audit.expect(200);
    let acts: Vec<_> = audit["events"]
        .as_array()
        .unwrap()
        .iter()
        .take(2)
        .map(|event| {
            format!("{} {}", event["actor"].as_str().unwrap(), event["action"].as_str().unwrap())
        })
        .collect();
    assert_eq!(acts, ["other@example.com key.delete", "maker@example.com key.create"]);
}

#[tokio::test]
async fn session_runs_models_only_for_its_organization() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let made = service.asks(&owner, Method::POST, "/api/base/v1/prediction").json(&template());
    let id = made.send().await.expect(200)["predictionID"].as_str().unwrap().to_owned();
    let path = format!("/api/base/v1/prediction/{id}?wait=15");
    assert_eq!(
        service.asks(&owner, Method::GET, &path).send().await.expect(200)["output"],
        "Hello"
    );
    let history =
        service.asks(&owner, Method::GET, "/api/base/v2/executions").send().await.expect(200);
    let row = &history["executions"][0];
    assert_eq!((&row["source"], &row["api_key_id"]), (&json!("dashboard"), &Value::Null));
    // Keys of the same organization can read the prediction, keys of another organization cannot.
    assert_eq!(service.get(&format!("/v1/prediction/{id}")).await.status, 200);
    let foreign = service.ask(Role::Base, Method::GET, &format!("/v1/prediction/{id}"));
    foreign.key(&service.other_key).send().await.expect(404);
    let theirs = service.ask(Role::Base, Method::POST, "/v1/prediction").key(&service.other_key);
    let theirs = theirs.json(&template()).send().await.expect(200);
    let path = format!("/api/base/v1/prediction/{}", theirs["predictionID"].as_str().unwrap());
    service.asks(&owner, Method::GET, &path).send().await.expect_error(404, "Prediction not found");
    // An API key gives no access to the dashboard, and a session gives none to other hosts.
    service.page_asks(Method::GET, "/api/base/v1/files").key(&service.key).send().await.expect(401);
    let base = service.ask(Role::Base, Method::GET, "/v1/files").header("cookie", &owner.cookie);
    base.send().await.expect(401);
    for path in [
        "/api/base/",
        "/api/base/metrics",
        "/api/nothing/v1/models",
        "/admin/keys",
        "/api/base/admin/keys",
    ] {
        assert_eq!(service.asks(&owner, Method::GET, path).send().await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn request_from_another_page_changes_nothing() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let front = service.front(Role::Dashboard);
    let port = front.port();
    let own = format!("http://{front}");
    let send = async |headers: &[(&str, &str)], media_type: &str| {
        let mut ask = service.ask(Role::Dashboard, Method::POST, "/keys");
        for (name, value) in headers {
            ask = ask.header(name, value);
        }
        let ask = ask.header("cookie", &owner.cookie).header("content-type", media_type);
        ask.body(r#"{"name":"stolen"}"#).send().await
    };
    let json = "application/json";
    let foreign = "this request did not come from a page of the dashboard";
    for headers in [
        &[][..],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "none")],
        &[("sec-fetch-site", "same-site"), ("origin", own.as_str())],
        &[("origin", "http://127.0.0.1:1")],
        &[("origin", "null")],
        &[("origin", &format!("https://127.0.0.1:{port}"))],
        &[("origin", &format!("http://127.0.0.1:{port}.evil.example"))],
    ] {
        send(headers, json).await.expect_error(403, foreign);
    }
    for media_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain;application/json",
    ] {
        send(&[("sec-fetch-site", "same-origin")], media_type).await.expect(415);
    }
    let log_in = service.ask(Role::Dashboard, Method::POST, "/session");
    let body = json!({"email": owner.email, "password": PASSWORD});
    log_in
        .header("sec-fetch-site", "same-site")
        .json(&body)
        .send()
        .await
        .expect_error(403, foreign);
    // Reads from another page are rejected too, regardless of how the browser would handle the
    // response.
    let read = service.ask(Role::Dashboard, Method::GET, "/keys").header("cookie", &owner.cookie);
    read.clone().header("sec-fetch-site", "same-site").send().await.expect_error(403, foreign);
    let keys = read.send().await.expect(200);
    assert!(!keys.to_string().contains("stolen"), "{keys}");
    send(&[("origin", &own)], json).await.expect(201);
}

#[tokio::test]
async fn dashboard_answers_only_to_its_own_host_names() {
    let service = Service::configured("tls.names = [\"box.lan\"]\n").await;
    let address = service.address(Role::Dashboard);
    let port = address.port();
    for (host, status) in [
        (format!("127.0.0.1:{port}"), "200"),
        (format!("localhost:{port}"), "200"),
        (format!("orrery.localhost:{port}"), "200"),
        (format!("box.lan:{port}"), "200"),
        (format!("[::1]:{port}"), "200"),
        ("evil.example".to_owned(), "421"),
        (format!("localhost.evil.example:{port}"), "421"),
        (format!("notlocalhost:{port}"), "421"),
        (String::new(), "421"),
    ] {
        for path in ["/", "/session", "/static/app.js"] {
            let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let text = raw(address, &head).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {path}: {text}");
        }
    }
}

#[tokio::test]
async fn dashboard_headers_forbid_frames_foreign_code_and_caches() {
    let service = Service::configured("cors.allow_origins = [\"*\"]\n").await;
    let owner = service.owner().await;
    for path in ["/", "/app/keys", "/static/app.js", "/session", "/keys", "/nothing"] {
        let answer =
            service.asks(&owner, Method::GET, path).header("origin", "http://x").send().await;
        let policy = answer.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert_eq!(answer.header("x-frame-options"), "DENY", "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin", "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), "", "{path}");
    }
}

#[tokio::test]
async fn wrong_passwords_throttle_only_their_own_address() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let address = service.address(Role::Dashboard);
    let log_in = async |from: &str, password: &str| {
        let body = json!({"email": owner.email, "password": password}).to_string();
        let head = format!(
            "POST /session HTTP/1.1\r\nHost: {address}\r\nSec-Fetch-Site: same-origin\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        raw_from(from, address, &head).await
    };
    let mut refused = 0;
    for _ in 0..20 {
        let answer = log_in("127.0.0.2", "wrong horse battery").await;
        if answer.starts_with("HTTP/1.1 429") {
            assert!(answer.to_lowercase().contains("retry-after: "), "{answer}");
            refused += 1;
        }
    }
    assert!(refused >= 10, "{refused}");
    assert!(log_in("127.0.0.3", PASSWORD).await.starts_with("HTTP/1.1 204"));
}

#[tokio::test]
async fn stream_ends_with_its_session() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let provider = crate::support::Provider::start().await;
    let runner =
        format!("type = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{}'", provider.url("/stream"));
    service.manifest(&format!("slug = 'chat'\noutput_type = 'string'\n[runner]\n{runner}\n"));
    let body = json!({"model": "chat", "version": "0.0.1", "input": {"prompt": "p"}});
    let made =
        service.asks(&owner, Method::POST, "/api/base/v1/prediction").json(&body).send().await;
    let id = made.expect(200)["predictionID"].as_str().unwrap().to_owned();
    let stream = service.asks(&owner, Method::GET, &format!("/api/base/v1/prediction/{id}/events"));
    let stream = stream.open().await;
    assert_eq!(stream.status(), 200);
    service.asks(&owner, Method::DELETE, "/session").send().await;
    use http_body_util::BodyExt as _;
    // The response body ends although the prediction continues.
    let _ended = within("end of the stream", stream.into_body().collect()).await;
    let status = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
    assert_eq!(status["completed_at"], Value::Null, "{status}");
    provider.finish();
}

#[tokio::test]
async fn status_counts_only_own_organization() {
    let service = Service::configured("webhooks.schedule = ['1h']\n").await;
    let owner = service.owner().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let run = json!({"model": "held", "version": "0.0.1", "input": {}});
    for _ in 0..2 {
        let other = service.ask(Role::Base, Method::POST, "/v1/prediction").key(&service.other_key);
        other.json(&run).send().await.expect(200);
    }
    provider.arrived(1).await;
    let status = async || service.asks(&owner, Method::GET, "/status").send().await.expect(200);
    let figures = |running: u32, queued: u32, person: u32, time: u32, webhooks: u32| {
        json!({"running": running, "queued": queued, "waiting_for_person": person,
               "waiting_for_time": time, "waiting_is_capped": false, "webhooks_pending": webhooks})
    };
    assert_eq!(status().await, figures(0, 0, 0, 0, 0));
    // One execution is queued behind the other organization's, one waits for a person, and one
    // waits for a time.
    service.create("held", json!({})).await;
    let asking = json!([{"step_id": "w", "type": "wait", "event": {"name": "e"}}]);
    let sleeping = json!([{"step_id": "w", "type": "wait", "seconds": 3600}]);
    for steps in [asking, sleeping] {
        let workflow = service.workflow(steps).await;
        service.trigger(&workflow, json!({})).await;
    }
    until("figures", async || (status().await == figures(0, 1, 1, 1, 0)).then_some(())).await;
    let nobody = service.page_asks(Method::GET, "/status").send().await;
    nobody.expect_error(401, "you are not logged in");
}

#[tokio::test]
async fn model_loads_and_waits_count_only_own_organization() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let loads = async || {
        let found = service.asks(&owner, Method::GET, "/models").send().await.expect(200);
        let held = found["models"].as_array().unwrap().iter().find(|one| one["slug"] == "held");
        let held = held.unwrap().clone();
        (held["running"].clone(), held["queued"].clone(), held["concurrency"].clone())
    };
    // The other organization runs one and queues three; another of its models is idle.
    let run = json!({"model": "held", "version": "0.0.1", "input": {}});
    for _ in 0..4 {
        let other = service.ask(Role::Base, Method::POST, "/v1/prediction").key(&service.other_key);
        other.json(&run).send().await.expect(200);
    }
    provider.arrived(1).await;
    assert_eq!(loads().await, (json!(0), json!(0), json!(1)));
    // Two predictions and a step of a workflow wait behind them.
    for _ in 0..2 {
        service.create("held", json!({})).await;
    }
    let step = json!([{"step_id": "h", "type": "model", "model": "held", "params": {}}]);
    let flow = service.workflow(step).await;
    let execution = service.trigger(&flow, json!({})).await;
    until("own load", async || (loads().await == (json!(0), json!(3), json!(1))).then_some(()))
        .await;
    let waits = service.execution(&execution).await["waiting_for"].clone();
    let own =
        json!([{"reason": "model", "step_id": "h", "model": "held", "running": 0, "queued": 3}]);
    assert_eq!(waits, own);
    // The service's own figures count everything.
    assert_eq!(service.engine().load("held").queued, 6);
    // The step also counts for the organization while it occupies the model's slot.
    provider.release(7);
    service.completed(&execution).await;
    until("end", async || (loads().await == (json!(0), json!(0), json!(1))).then_some(())).await;
}

#[tokio::test]
async fn dashboard_lists_omit_bodies() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let receiver = Receiver::start().await;
    let fields = json!({"input": {"template": "x".repeat(9000)}, "webhook_url": receiver.url()});
    let id = service.create_with("text-template", fields).await;
    service.ended(&id).await;
    let asks = async |path: &str| {
        let answer = service.asks(&owner, Method::GET, path).send().await;
        assert!(answer.text.len() < 2000 || path.contains("output"), "{path}: {}", answer.text);
        answer.expect(200)
    };
    for list in ["/api/base/v2/executions", "/api/base/v1/executions"] {
        let found = asks(list).await;
        let row = &found["executions"][0];
        assert_eq!((&row["id"], &row["output"]), (&json!(id), &Value::Null), "{list}");
    }
    let some = asks("/api/base/v2/executions?fields=id,status").await;
    assert_eq!(some["executions"], json!([{"id": id, "status": "success"}]));
    let whole = asks("/api/base/v2/executions?fields=id,output").await;
    assert_eq!(whole["executions"][0].as_object().unwrap().len(), 2);
    assert!(whole["executions"][0]["output"].as_str().unwrap().len() > 9000);
    let webhooks = asks("/api/base/v1/webhooks").await;
    assert_eq!(webhooks["webhooks"][0]["request"], Value::Null);
    // A request with an API key returns every field.
    let by_key = service.get("/v2/executions").await.expect(200);
    assert!(by_key["executions"][0]["output"].as_str().unwrap().len() > 9000);
    let by_key = service.get("/v1/webhooks").await.expect(200);
    assert!(by_key["webhooks"][0]["request"].as_str().unwrap().len() > 9000);
    let wrong = service.get("/v2/executions?fields=id,input").await.expect(400);
    let error = wrong["error"].as_str().unwrap();
    assert!(error.starts_with("fields must be one or more of id, type, model"), "{error}");
    let columns = service.get("/v2/executions").await.expect(200);
    let documented: Vec<&String> = columns["executions"][0].as_object().unwrap().keys().collect();
    let all = documented.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
    service.get(&format!("/v2/executions?fields={all}")).await.expect(200);
}

async fn raw(address: SocketAddr, head: &str) -> String {
    exchange(TcpStream::connect(address).await.unwrap(), head).await
}

async fn raw_from(from: &str, address: SocketAddr, head: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    exchange(socket.connect(address).await.unwrap(), head).await
}

async fn exchange(mut stream: TcpStream, head: &str) -> String {
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ended = within("answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}
