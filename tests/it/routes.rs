//! The complete route table: its contents, and properties of every row.

use std::collections::{BTreeMap, BTreeSet};

use hyper::Method;
use orrery_api::{Access, ROUTES, Role, Route};
use serde_json::Value;

use crate::support::{Service, conformance};

const TCP: [Role; 6] =
    [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard, Role::Metrics];

/// Returns a path of the route with plausible parameters.
pub(crate) fn path_of(route: &Route) -> String {
    route
        .path
        .replace("{id}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{task}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{workflow}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{execution}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{session}", "00112233445566778899aabbccddeeff")
        .replace("{job}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{version}", "v1")
        .replace("{owner}", "local")
        .replace("{name}", "a-name")
        .replace("{organization}", "default")
        .replace("{endpoint}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{schedule}", "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
        .replace("{*slug}", "text-template")
        .replace("{*model}", "text-template")
        .replace("{*file}", "style.css")
        .replace("{*page}", "keys")
}

/// Returns a method that no route has.
fn wrong_method() -> Method {
    Method::from_bytes(b"PROPFIND").unwrap()
}

/// Returns every route, once for each TCP host that serves it.
fn rows() -> impl Iterator<Item = (Role, &'static Route)> {
    TCP.into_iter()
        .flat_map(|role| ROUTES.iter().map(move |route| (role, route)))
        .filter(|(role, route)| route.hosts.contains(role))
        // The admin API is off unless configured; `admin_api` tests it.
        .filter(|(_, route)| route.access != Access::Admin)
}

#[test]
fn route_table() {
    let table: String = ROUTES
        .iter()
        .map(|route| {
            let hosts: Vec<&str> = route.hosts.iter().map(|role| role.as_str()).collect();
            format!(
                "{:<38} {:<6} {:<58} {:<10} {:<10} {:<8} {:<10} {:?}\n",
                hosts.join(" "),
                route.method.as_str(),
                route.path,
                format!("{:?}", route.access),
                format!("{:?}", route.needs),
                route.role.as_str(),
                format!("{:?}", route.body),
                route.rate,
            )
        })
        .collect();
    insta::assert_snapshot!(table);
}

#[tokio::test]
async fn route_wrong_method_gets_405_with_allow() {
    let service = Service::start().await;
    let mut allowed: BTreeMap<(Role, String), BTreeSet<&str>> = BTreeMap::new();
    for (role, route) in rows() {
        let methods = allowed.entry((role, path_of(route))).or_default();
        methods.insert(route.method.as_str());
        if route.method == Method::GET {
            methods.insert("HEAD");
        }
    }
    for ((role, path), methods) in allowed {
        let answer = service.ask(role, wrong_method(), &path).key(&service.key).send().await;
        assert_eq!(answer.status, 405, "{}", answer.text);
        let error = &answer.json()["error"];
        if path.starts_with("/replicate/") {
            assert_eq!(answer.json()["detail"], "method not allowed");
        } else if error.is_string() {
            answer.expect_error(405, "method not allowed");
        } else {
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("PROPFIND {path} is not served: ")), "{message}");
        }
        let allowed: BTreeSet<&str> = answer.header("allow").split(", ").collect();
        assert_eq!(allowed, methods, "{} {path}", role.as_str());
    }
}

#[tokio::test]
async fn route_trailing_slash_is_ignored_without_redirect() {
    let service = Service::start().await;
    // The pages below `/docs` link to each other relative to that folder.
    let is_exempt = |path: &str| path == "/" || path == "/docs";
    for (role, route) in rows().filter(|(_, route)| !is_exempt(route.path)) {
        let path = path_of(route);
        let ask = |path: &str| service.ask(role, route.method.clone(), path).send();
        let plain = ask(&path).await;
        let slashed = ask(&format!("{path}/")).await;
        assert_eq!(plain.status, slashed.status, "{path}");
        assert!(!(300..400).contains(&plain.status), "{path} redirects");
    }
    for path in ["/v1/nothing", "/v1/nothing/", "/v2", "/metrics", "/admin/keys"] {
        let answer = service.get(path).await;
        answer.expect_error(404, "not found");
    }
}

#[tokio::test]
async fn route_head_equals_get_without_body() {
    let service = Service::start().await;
    for (role, route) in rows().filter(|(_, route)| route.method == Method::GET) {
        let path = path_of(route);
        let ask = |method| service.ask(role, method, &path).key(&service.key).send();
        let get = ask(Method::GET).await;
        let head = ask(Method::HEAD).await;
        assert_eq!((head.status, head.text.as_str()), (get.status, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        // Counters may change between the two requests, and with them the length, but the header is
        // always present.
        assert_eq!(head.header("content-length").is_empty(), get.text.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn request_id_is_echoed_if_valid_and_generated_otherwise() {
    let service = Service::start().await;
    let longest = "x".repeat(128);
    for id in ["abc-1", "~!@#$%^&*()", &longest] {
        let answer = service.ask(Role::Base, Method::GET, "/v1/models").header("x-request-id", id);
        assert_eq!(answer.send().await.header("x-request-id"), id);
    }
    let too_long = "x".repeat(129);
    for id in ["", "two words", "\u{e9}", "tab\there", &too_long] {
        let ask = service.ask(Role::Base, Method::GET, "/v1/models").header("x-request-id", id);
        let answer = ask.send().await;
        let made: uuid::Uuid = answer.header("x-request-id").parse().unwrap();
        assert_eq!(made.get_version_num(), 7, "{id}");
    }
    let mut made = BTreeSet::new();
    for (role, route) in rows() {
        let path = path_of(route);
        let answer = service.ask(role, route.method.clone(), &path).send().await;
        let id = answer.header("x-request-id").to_owned();
        let without = ["/", "/health", "/ready", "/metrics"].contains(&route.path);
        assert_eq!(id.is_empty(), without, "{path}: '{id}'");
        assert!(without || made.insert(id), "{path}: an id twice");
        let refused = service.ask(role, wrong_method(), &path).send().await;
        assert_eq!(refused.header("x-request-id").is_empty(), without, "{path}, refused");
    }
    for path in ["/v1/nothing", "/v1/models/%ff"] {
        let answer = service.ask(Role::Base, Method::GET, path).send().await;
        assert!(!answer.header("x-request-id").is_empty(), "{path}");
    }
}

#[tokio::test]
async fn openapi_of_each_host_matches_route_table() {
    let service = Service::start().await;
    for role in TCP.into_iter().filter(|role| *role != Role::Metrics) {
        let answer = service.ask(role, Method::GET, "/openapi.json").send().await;
        let document = answer.expect(200);
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["servers"][0]["url"], service.url(role));
        let mut described = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                described.insert(format!("{} {path}", method.to_uppercase()));
                assert!(!operation["summary"].as_str().unwrap().is_empty(), "{path}");
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{id} names two operations");
                let answers = operation["responses"].as_object().unwrap();
                assert!(
                    answers.keys().any(|status| status.starts_with(['2', '3'])),
                    "{method} {path}"
                );
            }
        }
        let expected: BTreeSet<String> = ROUTES
            .iter()
            .filter(|route| route.hosts.contains(&role))
            .map(|route| format!("{} {}", route.method, route.path.replace("{*", "{")))
            .collect();
        assert_eq!(described, expected, "{}", role.as_str());
        conformance::check_examples(role);
        let keyed = |route: &&Route| {
            route.hosts.contains(&role) && [Access::Key, Access::Link].contains(&route.access)
        };
        for route in ROUTES.iter().filter(keyed) {
            let method = route.method.as_str().to_lowercase();
            let operation = &document["paths"][route.path.replace("{*", "{")][&method];
            assert_ne!(operation["security"], Value::Null, "{}", route.path);
        }
    }
}
