//! Checks the responses of every test against the OpenAPI document of their host: the document
//! contains the operation's status, and the response body and every accepted request match their
//! schemas.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use jsonschema::Validator;
use orrery_api::{ROUTES, Role, Route, openapi_of};
use orrery_http::router::{Outcome, Router};
use serde_json::{Value, json};

/// A host, with its routes and its document.
struct Host {
    router: Router<&'static Route>,
    document: Value,
}

/// The hosts that serve a document.
static HOSTS: LazyLock<HashMap<Role, Host>> = LazyLock::new(|| {
    let roles = [Role::Base, Role::Workflows, Role::Flows, Role::Agent, Role::Dashboard];
    let host = |role: Role| {
        let mut router = Router::new();
        for route in ROUTES.iter().filter(|route| route.hosts.contains(&role)) {
            router.insert(route.method.clone(), route.path, route).unwrap();
        }
        (role, Host { router, document: openapi_of(role, "") })
    };
    roles.into_iter().map(host).collect()
});

static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// A request and its response.
pub(crate) struct Exchange<'a> {
    pub role: Role,
    pub method: &'a Method,
    pub path: &'a str,
    pub sent: &'a [u8],
    pub status: u16,
    pub headers: &'a HeaderMap,
    pub text: &'a str,
}

/// Panics if the exchange does not conform to the document. Ignores paths and methods that the
/// document does not contain.
#[track_caller]
pub(crate) fn check(exchange: &Exchange<'_>) {
    let Exchange { role, method, path, sent, status, headers, text } = exchange;
    let Some(host) = HOSTS.get(role) else { return };
    // Below `/openai`, errors and files have OpenAI's format, which the document does not describe.
    let below = path
        .strip_prefix("/openai")
        .filter(|path| *role == Role::Base && *status < 400 && !path.starts_with("/v1/files"));
    let path = below.unwrap_or(path);
    let Ok(Outcome::Found { value: route, .. }) = host.router.find(method, path) else { return };
    let place = format!("{} {} of the {} host", route.method, route.path, role.as_str());
    let document = &host.document;
    let path = route.path.replace("{*", "{");
    let operation = &document["paths"][path][route.method.as_str().to_lowercase()];
    let answer = &operation["responses"][status.to_string()];
    assert!(answer.is_object(), "{place}: the status {status} is not documented: {text}");
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if (200..300).contains(status) && body.is_object() && !sent.is_empty() {
        let sent = serde_json::from_slice(sent).unwrap();
        validate(document, body, &sent, &format!("{place}, an accepted request"));
    }
    if *method == Method::HEAD {
        return;
    }
    let Some(content) = answer["content"].as_object() else {
        assert_eq!(*text, "", "{place}: {status} has no documented body");
        return;
    };
    let sent_type = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
    let sent_type = sent_type.split(';').next().unwrap_or_default();
    let known = content.get(sent_type).or_else(|| content.get("*/*"));
    let schema = known.unwrap_or_else(|| panic!("{place}: {status} is documented as {content:?}"));
    if sent_type == "application/json" && !content.contains_key("*/*") {
        let body = serde_json::from_str(text).unwrap();
        validate(document, &schema["schema"], &body, &format!("{place}, {status}"));
    }
    if sent_type == "text/event-stream" {
        for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let data = serde_json::from_str(data).unwrap_or_else(|_no_json| json!(data));
            validate(document, &schema["schema"], &data, &format!("{place}, an event"));
        }
    }
}

/// Panics if the body of a delivery does not match the schema of its webhook.
#[track_caller]
pub(crate) fn check_webhook(body: &Value) {
    let document = &HOSTS[&Role::Base].document;
    let name = match body["type"].as_str() {
        Some(event) if body["data"].is_object() => event,
        _ if body["step_outputs"].is_object() => "execution_ended",
        _ if body["urls"].is_object() => "replicate_prediction",
        _ => "prediction_ended",
    };
    let webhook = &document["webhooks"][name]["post"];
    assert!(webhook.is_object(), "the webhook {name} is not documented: {body}");
    let schema = &webhook["requestBody"]["content"]["application/json"]["schema"];
    validate(document, schema, body, &format!("the webhook {name}"));
}

/// Checks that `value` matches `schema`, a part of `document`.
#[track_caller]
fn validate(document: &Value, schema: &Value, value: &Value, place: &str) {
    let validator = validator(document, schema);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{place} is not as documented: {errors:#?}\n{value:#}");
}

fn validator(document: &Value, schema: &Value) -> Arc<Validator> {
    let name = format!("{} {schema}", document["info"]["title"]);
    let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let made = validators.entry(name).or_insert_with(|| {
        let whole = json!({"components": document["components"], "allOf": [schema]});
        let options = jsonschema::draft202012::options();
        Arc::new(options.should_validate_formats(true).build(&whole).unwrap())
    });
    Arc::clone(made)
}

/// Checks that each example of a document matches its schema.
pub(crate) fn check_examples(role: Role) {
    let document = &HOSTS[&role].document;
    let mut examples = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            let place = format!("the example of {name}");
            validate(document, schema, example, &place);
            examples += 1;
        }
    }
    assert!(examples > 0, "the document of the {} host has no example", role.as_str());
}
