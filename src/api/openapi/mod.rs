//! The OpenAPI 3.1 document of a host, made from the table that serves its requests.
//!
//! Paths, methods and access come from `ROUTES`, the words from `words`. A test holds that every route
//! has some.

mod words;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::words::words;
use super::{Access, BodyLimit, ROUTES, Role, Route};

/// The documents of all hosts, each made once: anyone may ask for them, any number of times.
#[derive(Debug, Default)]
pub struct Documents {
    made: Mutex<HashMap<Role, Bytes>>,
}

impl Documents {
    /// The text of one host's document; `url` is where clients reach the host.
    ///
    /// # Errors
    /// When the document has no JSON form.
    pub fn of_host(&self, role: Role, url: &str) -> Result<Bytes, serde_json::Error> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = made.get(&role) {
            return Ok(text.clone());
        }
        let text = Bytes::from(serde_json::to_vec(&of_host(role, url))?);
        made.insert(role, text.clone());
        Ok(text)
    }
}

/// The document of one host, reached at `url`.
#[must_use]
pub fn of_host(role: Role, url: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES.iter().filter(|route| route.hosts.contains(&role)) {
        let path = route.path.replace("{*", "{");
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        if let Value::Object(operations) = operations {
            operations.insert(route.method.as_str().to_lowercase(), operation(route));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": format!("Orrery, {} host", role.as_str()),
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [{"url": if url.is_empty() { "/" } else { url }}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
                "Link": {"type": "apiKey", "in": "query", "name": crate::links::PARAMETER},
            },
            "schemas": {"Error": error_schema()},
        },
    })
}

fn operation(route: &Route) -> Value {
    let words = words(route);
    let mut operation = json!({
        "summary": words.summary,
        "parameters": parameters(route, words.query),
        "responses": responses(route, words.success),
    });
    let Value::Object(fields) = &mut operation else { return operation };
    if is_keyed(route) {
        let mut ways = vec![json!({"ApiKey": []}), json!({"Bearer": []})];
        if route.access == Access::Link {
            ways.push(json!({"Link": []}));
        }
        fields.insert("security".to_owned(), ways.into());
    }
    if let Some(body) = words.body {
        let content = json!({"application/json": {"schema": body()}});
        fields.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
    }
    operation
}

const fn is_keyed(route: &Route) -> bool {
    matches!(route.access, Access::Key | Access::BodyKey | Access::Link)
}

fn parameters(route: &Route, query: &[&str]) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*');
        let schema = json!({"type": "string"});
        Some(json!({"name": name, "in": "path", "required": true, "schema": schema}))
    });
    let in_query = query.iter().map(|name| {
        let kind = if ["limit", "offset", "wait", "timeout"].contains(name) {
            "integer"
        } else {
            "string"
        };
        json!({"name": name, "in": "query", "schema": {"type": kind}})
    });
    let mut all: Vec<Value> = in_path.chain(in_query).collect();
    if creates(route) {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 255});
        all.push(json!({"name": "Idempotency-Key", "in": "header", "schema": schema}));
    }
    all.into()
}

fn responses(route: &Route, success: (u16, &str)) -> Value {
    let mut responses = Map::new();
    responses.insert(success.0.to_string(), json!({"description": success.1}));
    let mut refuse = |status: &str, description: &str| {
        let schema = json!({"$ref": "#/components/schemas/Error"});
        let content = json!({"application/json": {"schema": schema}});
        responses
            .insert(status.to_owned(), json!({"description": description, "content": content}));
    };
    if is_keyed(route) {
        refuse("401", "Invalid or missing API key");
    }
    if route.path.contains('{') || creates(route) || query_names_model(route) {
        refuse("404", "Not found");
    }
    if creates(route) {
        refuse("409", "A request with this Idempotency-Key is still being answered");
        refuse("422", "This Idempotency-Key was used with another request body");
    }
    if route.path.ends_with("/cancel") || route.path.ends_with("/redrive") {
        refuse("409", "It has ended already, or has not yet");
    }
    if route.method == hyper::Method::PUT {
        refuse("403", "The workflow or the version is locked");
    }
    if !words(route).query.is_empty() {
        refuse("400", "A parameter is missing or out of its range");
    }
    if route.body == BodyLimit::Configured {
        refuse("400", "The request is at fault, as the message says");
        refuse("413", "The body is over the limit");
    }
    if starts_work(route) || route.path.contains("balance") {
        refuse("429", "Too many requests, or a full queue; with Retry-After");
        refuse("503", "The store takes no writes, or the service is stopping");
    }
    if route.path == "/v1/prediction/run" {
        let goes_on = "It takes longer than the answer is held: status, message and predictionID";
        responses.insert("202".to_owned(), json!({"description": goes_on}));
    }
    Value::Object(responses)
}

/// Whether the route creates something and so takes an `Idempotency-Key`.
fn creates(route: &Route) -> bool {
    words(route).creates
}

/// Whether the route takes work, which a full queue or a full disk can refuse.
fn starts_work(route: &Route) -> bool {
    route.path.starts_with("/v1/prediction") || creates(route)
}

fn query_names_model(route: &Route) -> bool {
    route.path == "/v1/model"
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string"},
            "status": {"type": "integer"},
            "details": {},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_words() {
        for route in ROUTES {
            assert!(!words(route).summary.is_empty(), "{} {}", route.method, route.path);
        }
        let document = of_host(Role::Base, "https://box.lan:8443");
        let create = &document["paths"]["/v1/prediction"]["post"];
        assert_eq!(create["security"][0], json!({"ApiKey": []}));
        assert!(document["paths"].get("/admin/keys").is_none());
        let trigger =
            of_host(Role::Workflows, "")["paths"]["/api/v1/{workflow}/trigger"]["post"].take();
        assert!(trigger["responses"].get("202").is_some() && trigger["requestBody"].is_object());
    }
}
