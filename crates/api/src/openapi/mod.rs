//! The OpenAPI 3.1 document of a host, generated from the route table and the types of `wire`.
//!
//! An operation has the responses in its documentation, and the responses that follow from its row
//! in the route table: 401 for a route with a key, 408, 413 and 415 for a route with a body, 429
//! for a route with a rate limit. Every test in `tests/it` validates every response against these
//! documents.

mod operation;
mod schemas;
mod texts;
mod webhooks;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use super::{ROUTES, Role, Route};

/// The version of the API. The version of the program is in a separate field.
const VERSION: &str = "1.0.0";

/// The documents of all hosts. Each document is generated only once, because requests for documents
/// are neither authenticated nor limited.
#[derive(Debug, Default)]
pub struct Documents {
    made: Mutex<HashMap<Role, Bytes>>,
}

impl Documents {
    /// Returns the text of one host's document. `url` is the host's public URL.
    ///
    /// # Errors
    /// Returns an error when the document cannot be serialized.
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

/// Returns the document of a host, with this URL.
#[must_use]
pub fn of_host(role: Role, url: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    let routes = || ROUTES.iter().filter(|route| route.hosts.contains(&role));
    for route in routes() {
        let operations = paths.entry(path_of(route)).or_insert_with(|| json!({}));
        if let Value::Object(operations) = operations {
            let method = route.method.as_str().to_lowercase();
            operations.insert(method, operation::of(route, &mut schemas));
        }
    }
    let webhooks = webhooks::of_host(role, &mut schemas);
    let schemas = schemas.take(paths.values().chain(webhooks.values()));
    let of_webhooks = (!webhooks.is_empty()).then_some("webhooks");
    let tags = routes().map(|route| route.doc.tag).chain(of_webhooks).collect();
    let schemes = routes().flat_map(|route| operation::schemes(route.access)).copied().collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": format!("Orrery, {} host", role.as_str()),
            "description": texts::introduction(role),
            "version": VERSION,
            "x-orrery-version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "externalDocs": texts::external_docs(role),
        "servers": [{"url": if url.is_empty() { "/" } else { url }}],
        "tags": texts::tags(role, &tags),
        "paths": paths,
        "webhooks": webhooks,
        "components": {
            "securitySchemes": security_schemes(&schemes),
            "schemas": schemas,
        },
    })
}

/// Returns the definitions of the security schemes in `used`.
fn security_schemes(used: &BTreeSet<&str>) -> Map<String, Value> {
    let all = [
        (
            "ApiKey",
            json!({
                "type": "apiKey",
                "in": "header",
                "name": "X-API-Key",
                "description": "An API key of the organization, in this header",
            }),
        ),
        (
            "Bearer",
            json!({
                "type": "http",
                "scheme": "bearer",
                "description": "An API key or, for the administration API, an admin key",
            }),
        ),
        (
            "Session",
            json!({
                "type": "apiKey",
                "in": "cookie",
                "name": "__Host-orrery_session",
                "description": "A member's session in a browser. Without TLS, the cookie is \
                                orrery_session_PORT",
            }),
        ),
        (
            "Link",
            json!({
                "type": "apiKey",
                "in": "query",
                "name": orrery_records::signed_urls::PARAMETER,
                "description": "The token of a link that the service issued",
            }),
        ),
    ];
    let used = all.into_iter().filter(|(name, _)| used.contains(name));
    used.map(|(name, scheme)| (name.to_owned(), scheme)).collect()
}

fn path_of(route: &Route) -> String {
    route.path.replace("{*", "{")
}
