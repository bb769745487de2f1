//! The roles of members: each route of the dashboard, and each route below `/api`, accepts exactly
//! the members whose role the route table names.

use std::collections::BTreeSet;

use hyper::Method;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use orrery_api::{Access, MOUNTED, Needs, ROUTES, Role, Route};
use orrery_domain::member::MemberRole;
use serde_json::{Value, json};

use crate::role_screens::{Populated, populated, pressed};
use crate::routes::path_of;
use crate::support::chromium::Chromium;
use crate::support::dashboard::{PASSWORD, Person, token_of};
use crate::support::{Ask, Process, Service};

/// An organization with one member of each role. Viewers have the permission to manage API keys.
async fn people(service: &Service) -> Vec<(MemberRole, Person)> {
    let owner = service.owner().await;
    let mut people = vec![(MemberRole::Owner, owner.clone())];
    for role in MemberRole::GIVEN {
        let email = format!("{}@example.com", role.as_str());
        let invite = service.asks(&owner, Method::POST, "/invitations");
        let made = invite.json(&json!({"role": role})).send().await.expect(201);
        let token = token_of(made["url"].as_str().unwrap());
        people.push((role, service.joins("/invitations/accept", &token, &email).await));
    }
    let id = service.id_of(&owner, "viewer@example.com").await;
    let allow = service.asks(&owner, Method::PATCH, &format!("/members/{id}"));
    let changed = allow.json(&json!({"api_key_access": true})).send().await.expect(200);
    assert_eq!((&changed["role"], &changed["api_key_access"]), (&json!("viewer"), &json!(true)));
    people
}

/// Returns every route that takes a session, with its path on the dashboard's host.
fn rows() -> Vec<(String, &'static Route)> {
    let mut rows: Vec<(String, &Route)> = ROUTES
        .iter()
        .filter(|route| route.access.is_by_session() && route.path != "/session")
        .map(|route| (path_of(route), route))
        .collect();
    for (name, role) in MOUNTED {
        let is_of_every_host =
            |route: &Route| ["/", "/health", "/ready", "/openapi.json"].contains(&route.path);
        let of_host = ROUTES.iter().filter(|route| route.hosts.contains(&role));
        let of_host =
            of_host.filter(|route| !is_of_every_host(route) && route.needs != Needs::Work);
        rows.extend(of_host.map(|route| (format!("/api/{name}{}", path_of(route)), route)));
    }
    rows
}

#[tokio::test]
async fn role_decides_on_every_route() {
    let service = Service::start().await;
    let people = people(&service).await;
    let mut refused = [0; 4];
    for (path, route) in rows() {
        // A stream of changes never ends, so request one for an unknown topic, which is rejected.
        let path = if path == "/events" { "/events?topics=none".to_owned() } else { path };
        for (at, (role, person)) in people.iter().enumerate() {
            let may = if route.access == Access::KeyManager {
                // Of the people above, these two have the permission.
                matches!(role, MemberRole::Owner | MemberRole::Viewer)
            } else {
                role.covers(route.role)
            };
            let answer = service.asks(person, route.method.clone(), &path).send().await;
            let said = format!("{} {path} as {}: {}", route.method, role.as_str(), answer.text);
            assert_eq!(answer.status != 403, may, "{said}");
            if !may {
                refused[at] += 1;
                let reason = if route.access == Access::KeyManager {
                    "the permission 'Can manage API keys'".to_owned()
                } else if route.access == Access::Owner {
                    "only the Owner".to_owned()
                } else {
                    format!("this needs the role {}, and", route.role.as_str())
                };
                assert!(answer.text.contains(&reason), "{said}");
            }
        }
    }
    let [owner, editor, operator, viewer] = refused;
    assert_eq!(owner, 0);
    assert!(0 < editor && editor + 20 < operator && operator + 20 < viewer, "{refused:?}");
}

#[tokio::test]
async fn role_is_changed_by_owner_alone_and_at_once() {
    let service = Service::start().await;
    let people = people(&service).await;
    let [(_, owner), (_, editor), ..] = &people[..] else { panic!("four people") };
    let id = service.id_of(owner, &editor.email).await;
    let path = format!("/members/{id}");
    let change = async |person: &Person, fields: Value| {
        service.asks(person, Method::PATCH, &path).json(&fields).send().await
    };
    change(editor, json!({"role": "viewer"})).await.expect(403);
    for unknown in ["owner", "member", ""] {
        change(owner, json!({"role": unknown})).await.expect(400);
    }
    let store = async || {
        let put = service.asks(editor, Method::PUT, "/api/base/v1/secrets/vault");
        put.json(&json!({"value": "x"})).send().await
    };
    assert!(store().await.status < 300);
    assert_eq!(change(owner, json!({"role": "operator"})).await.expect(200)["role"], "operator");
    store().await.expect(403);
    assert_eq!(service.session_of(editor).await["member"]["role"], "operator");
    let audit = service.asks(owner, Method::GET, "/audit").send().await.expect(200).to_string();
    assert!(audit.contains("editor@example.com operator"), "{audit}");
    let own = service.id_of(owner, &owner.email).await;
    let own = service.asks(owner, Method::PATCH, &format!("/members/{own}"));
    own.json(&json!({"role": "viewer"})).send().await.expect(409);
}

#[tokio::test]
async fn role_of_viewer_includes_no_link_of_waiting_step() {
    let service = Service::start().await;
    let people = people(&service).await;
    let steps = json!([{"step_id": "ask", "type": "wait", "event": {"name": "approval"}}]);
    let flow = service.workflow(steps).await;
    let run = service.trigger(&flow, json!({})).await;
    let path = format!("/api/base/v1/workflows/executions/{run}");
    for (role, person) in &people {
        let url = crate::support::until("waiting step", async || {
            let run = service.asks(person, Method::GET, &path).send().await.expect(200);
            run["waiting_for"][0]["resume_url"].as_str().map(str::to_owned)
        })
        .await;
        let may_answer = *role != MemberRole::Viewer;
        assert_eq!(url.contains("token="), may_answer, "{}: {url}", role.as_str());
    }
    // A link that an operator has copied stops working when the operator becomes a viewer.
    let (_, operator) = &people[2];
    let run_of = service.asks(operator, Method::GET, &path).send().await.expect(200);
    let url = run_of["waiting_for"][0]["resume_url"].as_str().unwrap().to_owned();
    let id = service.id_of(&people[0].1, &operator.email).await;
    let demote = service.asks(&people[0].1, Method::PATCH, &format!("/members/{id}"));
    demote.json(&json!({"role": "viewer"})).send().await.expect(200);
    let place = url.split_once("/v1/").unwrap().1;
    let answer = service.ask(Role::Base, Method::POST, &format!("/v1/{place}"));
    answer.json(&json!({"payload": 1})).send().await.expect(403);
    let promote = service.asks(&people[0].1, Method::PATCH, &format!("/members/{id}"));
    promote.json(&json!({"role": "operator"})).send().await.expect(200);
    // Deleting runs in bulk is more than repeating them.
    let delete = json!({"action": "delete"});
    for (role, person) in &people {
        let start = service.asks(person, Method::POST, "/api/base/v1/workflows/executions/bulk");
        let status = start.json(&delete).send().await.status;
        assert_eq!(status != 403, role.covers(MemberRole::Editor), "{}", role.as_str());
    }
}

#[tokio::test]
async fn role_is_set_on_command_line() {
    let process = Process::start("", |_| {}).await;
    let link = process.command(&["member", "invite", "a@example.com", "--role", "viewer"]).await;
    let token = link.split_once('#').unwrap().1.split_whitespace().next().unwrap().to_owned();
    let connections = Client::builder(TokioExecutor::new()).build_http();
    let address = process.page("").trim_start_matches("http://").parse().unwrap();
    let path = "/invitations/accept";
    let join = Ask::new(&connections, Role::Dashboard, address, Method::POST, path);
    let body = json!({"token": token, "name": "A", "email": "a@example.com", "password": PASSWORD});
    let joined = join.header("sec-fetch-site", "same-origin").json(&body).send().await;
    assert_eq!(joined.status, 204, "{}", joined.text);
    let shown = process.command(&["member", "list"]).await;
    assert!(shown.contains("viewer"), "{shown}");
    let update = ["member", "update", "A@example.com", "--role", "operator", "--json"];
    let changed: Value = serde_json::from_str(&process.command(&update).await).unwrap();
    assert_eq!((&changed["role"], &changed["api_key_access"]), (&json!("operator"), &json!(false)));
}

/// Controls and the role without which they are hidden.
const HIDDEN: [(&str, MemberRole); 13] = [
    ("Run v1", MemberRole::Operator),
    ("Upload", MemberRole::Operator),
    ("Send again", MemberRole::Operator),
    ("Resume from the failed step", MemberRole::Operator),
    ("Add a secret", MemberRole::Editor),
    ("Import", MemberRole::Editor),
    ("New workflow", MemberRole::Editor),
    ("New chain", MemberRole::Editor),
    ("Change", MemberRole::Editor),
    ("Delete the chain safe of text-language", MemberRole::Editor),
    ("Save as v2", MemberRole::Editor),
    ("Share", MemberRole::Editor),
    ("Move up", MemberRole::Editor),
];

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn role_hides_what_it_does_not_permit() {
    let Populated { service, people, screens } = populated().await;
    let [owner, person, _] = &people;
    let id = service.id_of(owner, &person.email).await;
    let browser = Chromium::start().await;
    browser.becomes(&service, person).await;
    for role in MemberRole::GIVEN {
        let change = service.asks(owner, Method::PATCH, &format!("/members/{id}"));
        change.json(&json!({"role": role})).send().await.expect(200);
        let mut seen = BTreeSet::new();
        for path in screens.iter().map(String::as_str).chain(["/app/secrets"]) {
            seen.extend(pressed(&browser, &service, path).await);
            browser.picture(&format!("role-{}{}", role.as_str(), path.replace('/', "-"))).await;
        }
        for (name, needed) in HIDDEN {
            assert_eq!(seen.contains(name), role.covers(needed), "{name} as {}", role.as_str());
        }
    }
    browser.leave().await;
}
