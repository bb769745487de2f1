//! The OpenAPI 3.1 document of a host, made from the table that serves its requests.
//!
//! Paths, methods and access come from `ROUTES`; only the words stand here. A test holds that every
//! route has some.

use serde_json::{Map, Value, json};

use super::{Access, BodyLimit, ROUTES, Role, Route};

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
    if route.access == Access::Key {
        fields.insert("security".to_owned(), json!([{"ApiKey": []}, {"Bearer": []}]));
    }
    if let Some(body) = words.body {
        let content = json!({"application/json": {"schema": body()}});
        fields.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
    }
    operation
}

fn parameters(route: &Route, query: &[&str]) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*');
        let schema = json!({"type": "string"});
        Some(json!({"name": name, "in": "path", "required": true, "schema": schema}))
    });
    let in_query = query.iter().map(|name| {
        let kind = if ["limit", "offset", "wait"].contains(name) { "integer" } else { "string" };
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
    if route.access == Access::Key {
        refuse("401", "Invalid or missing API key");
    }
    if route.path.contains('{') || creates(route) || query_names_model(route) {
        refuse("404", "Not found");
    }
    if creates(route) {
        refuse("409", "A request with this Idempotency-Key is still being answered");
        refuse("422", "This Idempotency-Key was used with another request body");
    }
    if route.path.ends_with("/cancel") {
        refuse("409", "The prediction has already ended");
    }
    if !words(route).query.is_empty() {
        refuse("400", "A parameter is missing or out of its range");
    }
    if route.body == BodyLimit::Configured {
        refuse("400", "The request is at fault, as the message says");
        refuse("413", "The body is over the limit");
    }
    if route.path.starts_with("/v1/prediction") || route.path.contains("balance") {
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
    route.method == hyper::Method::POST
        && matches!(route.path, "/v1/prediction" | "/v1/prediction/run")
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

/// What no table row says of a route.
struct Words {
    summary: &'static str,
    query: &'static [&'static str],
    body: Option<fn() -> Value>,
    success: (u16, &'static str),
}

const fn plain(summary: &'static str, success: &'static str) -> Words {
    Words { summary, query: &[], body: None, success: (200, success) }
}

fn words(route: &Route) -> Words {
    match (route.method.as_str(), route.path) {
        ("GET", "/") => plain("Who this host is", "Name, version, role and links"),
        ("GET", "/health") => plain("Whether the process lives", "It does"),
        ("GET", "/ready") => plain("Whether it takes work", "Storage is open, recovery is read"),
        ("GET", "/openapi.json") => plain("This document", "OpenAPI 3.1"),
        ("GET", "/metrics") => plain("Metrics for Prometheus", "Text format"),
        ("GET", "/v1/models") => Words {
            query: &["name", "limit", "offset"],
            ..plain("List models", "An array of model details; the total in X-Total-Count")
        },
        ("GET", "/v1/models/{*slug}") => plain("A model's detail", "Model detail"),
        ("GET", "/v1/models/{*slug}/schemas/openapi") => {
            plain("A model's request schema", "An OpenAPI 3.0 document")
        }
        ("GET", "/v1/model") => {
            Words { query: &["slug"], ..plain("A model's detail (deprecated)", "Model detail") }
        }
        ("POST", "/v1/prediction") => Words {
            body: Some(prediction_schema),
            ..plain("Create a prediction", "status, message and predictionID")
        },
        ("POST", "/v1/prediction/run") => Words {
            body: Some(prediction_schema),
            ..plain(
                "Create a prediction and wait for its end",
                "How it ended: status, message, predictionID, output and error",
            )
        },
        ("GET", "/v1/prediction/{id}") => Words {
            query: &["wait"],
            ..plain("A prediction; held until it ends, up to wait seconds", "The prediction")
        },
        ("POST", "/v1/prediction/{id}/cancel") => {
            plain("Cancel a prediction", "status, message and predictionID")
        }
        ("GET", "/v1/billing/balance") => plain("The organization's balance", "balance_usd"),
        ("GET", "/status.json") => plain("How the service stands", "What the status page shows"),
        ("GET", "/static/{*file}") => plain("A file of the status page", "The file"),
        ("POST", "/admin/keys") => {
            Words { success: (201, "The key, this once"), ..plain("Create an API key", "") }
        }
        ("GET", "/admin/keys") => plain("List API keys", "keys"),
        ("DELETE", "/admin/keys/{id}") => {
            Words { success: (204, "It is gone"), ..plain("Delete an API key", "") }
        }
        ("POST", "/admin/organizations") => {
            Words { success: (201, "The organization"), ..plain("Create an organization", "") }
        }
        ("GET", "/admin/organizations") => plain("List organizations", "organizations"),
        ("GET", "/admin/models") => plain("List models with their load", "models"),
        ("POST", "/admin/reload") => plain("Read the models folder again", "What was loaded"),
        _ => plain("", ""),
    }
}

fn prediction_schema() -> Value {
    json!({
        "type": "object",
        "required": ["model", "version", "input"],
        "properties": {
            "model": {"type": "string", "description": "A model's slug"},
            "version": {"type": "string", "minLength": 1},
            "input": {"type": "object", "description": "Fits the model's request_schema"},
            "webhook_url": {"type": "string"},
            "webhook_secret": {"type": "string", "minLength": 1, "maxLength": 256},
            "fallback_selector": {"type": "string"},
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
    }
}
