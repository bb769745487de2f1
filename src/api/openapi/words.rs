//! What no row of the route table says of a route: its summary, its query, its body's shape, what it
//! answers.

use serde_json::{Value, json};

use crate::api::executions::BULK_MAX;
use crate::api::{Role, Route};
use crate::domain::workflow::{DESCRIPTION_MAX, NAME_MAX, Status, TAGS_MAX};
use crate::engine::lists::TOGETHER_MAX;

/// What no table row says of a route.
pub struct Words {
    pub summary: &'static str,
    pub query: &'static [&'static str],
    pub body: Option<fn() -> Value>,
    pub success: (u16, &'static str),
    /// Whether it makes something, and so takes an `Idempotency-Key`.
    pub creates: bool,
}

const fn plain(summary: &'static str, success: &'static str) -> Words {
    Words { summary, query: &[], body: None, success: (200, success), creates: false }
}

/// What both lists of the history can be asked for.
macro_rules! history_query {
    ($paging:literal) => {
        &[
            "model",
            "status",
            "type",
            "workflow_id",
            "workflow_execution_id",
            "error_classification",
            "from",
            "to",
            "limit",
            $paging,
        ]
    };
}

fn words_of_history(path: &str) -> Option<Words> {
    match path {
        "/v1/executions" => Some(Words {
            query: history_query!("offset"),
            ..plain(
                "The organization's history (deprecated: at most 1000 rows)",
                "executions, total_count, total_capped, offset, limit",
            )
        }),
        "/v2/executions" => Some(Words {
            query: history_query!("cursor"),
            ..plain(
                "The organization's history, newest first",
                "executions, limit, has_more, next_cursor",
            )
        }),
        _ => None,
    }
}

/// The words of a route.
pub fn words(route: &Route) -> Words {
    if let Some(words) = words_of_history(route.path) {
        return words;
    }
    if route.hosts.contains(&Role::Flows) && route.path.starts_with("/api") {
        return words_of_flows(route.method.as_str(), route.path);
    }
    // The workflows host and its mirror under the base host say the same.
    let path = route.path.strip_prefix("/api").unwrap_or(route.path);
    if ["/v1/workflows", "/v1/executions", "/v1/categories", "/v1/public", "/v1/{workflow}"]
        .into_iter()
        .any(|start| path.starts_with(start))
    {
        return words_of_workflows(route.method.as_str(), path);
    }
    if path.starts_with("/admin") {
        return words_of_admin(route.method.as_str(), path);
    }
    if path.starts_with("/v1/webhooks") {
        return words_of_webhooks(route.method.as_str(), path);
    }
    if path.starts_with("/v1/files") || path.starts_with("/v1/upload") {
        return words_of_files(route.method.as_str(), path);
    }
    match (route.method.as_str(), path) {
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
            creates: true,
            ..plain("Create a prediction", "status, message and predictionID")
        },
        ("POST", "/v1/prediction/run") => Words {
            body: Some(prediction_schema),
            creates: true,
            ..plain(
                "Create a prediction and wait for its end",
                "How it ended: status, message, predictionID, output and error",
            )
        },
        ("GET", "/v1/prediction/{id}") => Words {
            query: &["wait"],
            ..plain("A prediction; held until it ends, up to wait seconds", "The prediction")
        },
        ("GET", "/v1/prediction/{id}/events") => plain(
            "Follow a prediction: server-sent events, resumable by Last-Event-ID",
            "A stream of status, log, output and, at last, end with the prediction",
        ),
        ("POST", "/v1/prediction/{id}/cancel") => {
            plain("Cancel a prediction", "status, message and predictionID")
        }
        ("GET", "/v1/billing/balance") => plain("The organization's balance", "balance_usd"),
        ("GET", "/status.json") => plain("How the service stands", "What the status page shows"),
        ("GET", "/static/{*file}") => plain("A file of the status page", "The file"),
        _ => plain("", ""),
    }
}

fn words_of_webhooks(method: &str, path: &str) -> Words {
    match (method, path) {
        ("GET", "/v1/webhooks") => Words {
            query: &["status", "execution", "host", "from", "to", "limit", "offset"],
            ..plain("Deliveries, newest first", "webhooks, limit, offset, total_count")
        },
        ("GET", "/v1/webhooks/{execution}") => {
            plain("The delivery of an execution, with every attempt", "The delivery")
        }
        ("POST", "/v1/webhooks/{execution}/redeliver") => Words {
            success: (202, "delivery_id and status"),
            ..plain("Send a delivery again that has ended: the same bytes", "")
        },
        ("POST", "/v1/webhooks/replay") => Words {
            success: (202, "count: how many are sent again"),
            body: Some(replay),
            ..plain("Send every failed delivery of a window again", "")
        },
        ("POST", "/v1/webhooks/test") => Words {
            body: Some(try_out),
            ..plain("Send one sample delivery", "What the receiver said")
        },
        _ => plain("", ""),
    }
}

fn words_of_flows(method: &str, path: &str) -> Words {
    match (method, path) {
        ("GET", "/api/v1") => Words {
            query: &["limit", "offset"],
            ..plain("List workflows", "status, message, total, workflows (also as flows)")
        },
        ("POST", "/api/v1") => Words {
            body: Some(legacy_workflow_schema),
            creates: true,
            ..plain("Create a workflow", "status, message and workflow_id")
        },
        ("GET", "/api/v1/{workflow}") => plain("A workflow", "The workflow"),
        ("POST", "/api/v1/{workflow}") => Words {
            body: Some(legacy_workflow_schema),
            ..plain("Change a workflow", "The workflow as it is now")
        },
        ("POST", "/api/v1/{workflow}/trigger") => Words {
            body: Some(legacy_trigger_schema),
            creates: true,
            ..plain("Trigger a workflow", "status, message and trigger_id")
        },
        ("POST", "/api/v1/{workflow}/executions/bulk") => Words {
            body: Some(lookup_schema),
            ..plain("Look executions up by their ids", "status, total and executions")
        },
        ("GET", "/api/v1/{workflow}/executions") => Words {
            query: &["limit", "offset"],
            ..plain("List a workflow's executions", "status, message, total and executions")
        },
        ("GET", _) => plain("An execution", "The execution record"),
        _ => Words {
            body: Some(legacy_bulk_schema),
            creates: true,
            ..plain("Trigger a workflow for many inputs", "status, message and execution_ids")
        },
    }
}

fn legacy_workflow_schema() -> Value {
    let named =
        |more: Value| json!({"type": "array", "items": {"type": "object", "properties": more}});
    let text = || json!({"type": "string"});
    json!({
        "type": "object",
        "required": ["name", "steps"],
        "properties": {
            "workspace_id": text(), "name": text(), "description": text(), "thumbnail_url": text(),
            "inputs": named(json!({"name": text(), "type": text(), "default_value": text()})),
            "outputs": named(json!({"name": text(), "type": text(), "value": text()})),
            "steps": named(json!({
                "id": text(), "name": text(), "type": text(), "model_slug": text(),
                "model_version": text(), "params": {"type": "object"},
            })),
            "nodes_json": text(), "edges_json": text(),
        },
    })
}

fn legacy_trigger_schema() -> Value {
    json!({"type": "object", "properties": {
        "parameters": {"type": "object"},
        "webhook_url": {"type": "string"}, "webhook_secret": {"type": "string"},
    }})
}

fn legacy_bulk_schema() -> Value {
    json!({"type": "object", "required": ["parameters"], "properties": {
        "parameters": {
            "type": "array", "minItems": 1, "maxItems": TOGETHER_MAX, "items": {"type": "object"},
        },
        "webhook_url": {"type": "string"}, "webhook_secret": {"type": "string"},
    }})
}

fn lookup_schema() -> Value {
    json!({"type": "object", "required": ["execution_ids"], "properties": {
        "execution_ids": {"type": "array", "maxItems": 100, "items": {"type": "string"}},
    }})
}

fn words_of_files(method: &str, path: &str) -> Words {
    match (method, path) {
        ("POST", "/v1/upload/presign") => Words {
            body: Some(presign_schema),
            ..plain(
                "Announce an upload",
                "id, presigned_url, public_url, expires_at and required_headers",
            )
        },
        ("PUT", "/v1/upload/{id}") => Words {
            query: &["token"],
            ..plain("Send the bytes of an announced upload", "The file")
        },
        ("POST", "/v1/files") => Words {
            success: (201, "The file"),
            ..plain(
                "Send a file: multipart/form-data with the field file, and expires_in_seconds",
                "",
            )
        },
        ("GET", "/v1/files") => Words {
            query: &["limit", "cursor"],
            ..plain("Files, newest first", "files, next_cursor, has_more")
        },
        ("GET", "/v1/files/usage") => plain("What the files come to", "count and bytes"),
        ("GET", "/v1/files/{id}") => plain("What is known of a file", "The file"),
        ("DELETE", "/v1/files/{id}") => {
            Words { success: (204, "It is gone"), ..plain("Delete a file", "") }
        }
        _ => Words {
            query: &["token"],
            ..plain(
                "The bytes of a file; one Range of them, or 304 when If-None-Match has them",
                "The bytes",
            )
        },
    }
}

fn presign_schema() -> Value {
    json!({
        "type": "object",
        "required": ["content_type"],
        "properties": {
            "content_type": {"type": "string"},
            "filename": {"type": "string", "minLength": 1, "maxLength": crate::files::NAME_MAX},
            "size": {"type": "integer", "minimum": 0},
            "sha256": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
            "file_type": {"type": "string"},
            "expires_in_seconds": {"type": "integer", "minimum": 60, "maximum": 31_536_000},
        },
    })
}

fn words_of_admin(method: &str, path: &str) -> Words {
    match (method, path) {
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
        ("GET", "/admin/webhooks") => Words {
            query: &[
                "organization",
                "status",
                "execution",
                "host",
                "from",
                "to",
                "limit",
                "offset",
            ],
            ..plain("Deliveries of an organization", "webhooks, limit, offset, total_count")
        },
        ("GET", "/admin/webhooks/{execution}") => {
            Words { query: &["organization"], ..plain("A delivery", "The delivery") }
        }
        ("POST", "/admin/webhooks/{execution}/redeliver") => Words {
            query: &["organization"],
            success: (202, "delivery_id and status"),
            ..plain("Send a delivery again", "")
        },
        ("GET", "/admin/executions") => Words {
            query: &["organization", "unfinished", "limit"],
            ..plain("Executions of all organizations", "executions")
        },
        ("GET", "/admin/executions/{execution}") => plain("An execution", "The execution"),
        ("POST", "/admin/executions/{execution}/cancel") => {
            plain("End an execution now", "execution_id and status")
        }
        ("POST", "/admin/resume") => {
            plain("Let go on what a restore held back", "executions and deliveries")
        }
        ("GET", "/admin/audit") => Words {
            query: &["action", "organization", "from", "to", "limit"],
            ..plain("The audit log, newest first", "entries")
        },
        _ => words_of_admin_money_and_models(method, path),
    }
}

fn words_of_admin_money_and_models(method: &str, path: &str) -> Words {
    match (method, path) {
        ("GET", "/admin/balance") => Words {
            query: &["organization"],
            ..plain("What an organization has", "organization and balance_usd")
        },
        ("POST", "/admin/balance/top-up") => Words {
            success: (201, "organization and balance_usd"),
            ..plain("Add to a balance", "")
        },
        ("GET", "/admin/balance/ledger") => Words {
            query: &["organization", "limit"],
            ..plain("The entries that add up to a balance", "organization and entries")
        },
        ("POST", "/admin/chains") => {
            Words { success: (201, "The chain"), ..plain("Save a fallback chain", "") }
        }
        ("PUT", "/admin/chains") => plain("Change a fallback chain", "The chain"),
        ("GET", "/admin/chains") => plain("List fallback chains", "chains"),
        ("DELETE", "/admin/chains") => {
            Words { success: (204, "It is gone"), ..plain("Delete a fallback chain", "") }
        }
        ("GET", "/admin/models") => plain("List models with their load", "models"),
        ("POST", "/admin/models/test") => {
            plain("Run one input through a model", "What it gave, or how it failed")
        }
        ("GET", "/admin/backup") => plain("Everything in one file, as it is now", "The backup"),
        ("POST", "/admin/reload") => plain("Read the models folder again", "What was loaded"),
        _ => plain("", ""),
    }
}

fn words_of_workflows(method: &str, path: &str) -> Words {
    match (method, path) {
        ("POST", "/v1/workflows" | "/v1/workflows/create") => Words {
            body: Some(workflow_schema),
            success: (201, "The workflow with its one version"),
            creates: true,
            ..plain("Create a workflow", "")
        },
        ("GET", "/v1/workflows") => Words {
            query: &[
                "limit",
                "offset",
                "category",
                "tag",
                "keyword",
                "status",
                "sort_key",
                "sort_direction",
            ],
            ..plain("List workflows", "workflows, offset and total_count")
        },
        ("GET", "/v1/workflows/{workflow}") => {
            plain("A workflow with all of its versions", "The workflow")
        }
        ("PUT", "/v1/workflows/{workflow}") => Words {
            body: Some(workflow_change_schema),
            ..plain("Change what a workflow says of itself", "The workflow")
        },
        ("DELETE", "/v1/workflows/{workflow}") => {
            Words { success: (204, "It is gone"), ..plain("Delete a workflow", "") }
        }
        ("GET", "/v1/workflows/{workflow}/versions") => {
            plain("List a workflow's versions", "versions and total_count")
        }
        ("GET", "/v1/workflows/{workflow}/versions/{version}") => {
            plain("A version with its definition", "The version")
        }
        ("PUT", "/v1/workflows/{workflow}/versions/{version}") => Words {
            body: Some(version_schema),
            ..plain("Make or change a version, the latest from then on", "The version")
        },
        ("GET", "/v1/workflows/{workflow}/executions") => Words {
            query: &["bulk_id", "status", "offset", "limit"],
            ..plain("List a workflow's executions", "executions and total_count")
        },
        ("GET", "/v1/categories") => plain("List categories", "categories"),
        _ => words_of_executions(method, path),
    }
}

fn words_of_executions(method: &str, path: &str) -> Words {
    let is = |end: &str| method == "POST" && path.ends_with(end);
    if path.starts_with("/v1/public") {
        return Words {
            body: Some(public_trigger_schema),
            success: (202, "execution_id, status and started_at"),
            creates: true,
            ..plain("Trigger a shared version; the key may stand in the body", "")
        };
    }
    if path.contains("/bulk-trigger") {
        return Words {
            body: Some(bulk_schema),
            success: (202, "bulk_id, and execution_id or message of each entry"),
            creates: true,
            ..plain("Trigger a workflow for 1 to 10 inputs", "")
        };
    }
    if path.contains("/trigger") {
        return Words {
            body: Some(trigger_schema),
            success: (202, "execution_id, status and started_at"),
            creates: true,
            ..plain("Trigger a workflow", "")
        };
    }
    if is("/cancel") {
        return plain("Cancel an execution", "execution_id and status");
    }
    if is("/redrive") {
        return Words {
            success: (202, "execution_id, status, started_at and redriven_from"),
            creates: true,
            ..plain("Take a failed execution up again behind its finished steps", "")
        };
    }
    Words {
        query: &["timeout"],
        ..plain("An execution; held until it ends, up to timeout seconds", "Execution detail")
    }
}

fn workflow_schema() -> Value {
    json!({
        "type": "object",
        "required": ["name", "description", "definition"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": NAME_MAX},
            "description": {"type": "string", "minLength": 1, "maxLength": DESCRIPTION_MAX},
            "categories": {"type": "array", "items": {"type": "string"}},
            "tags": {"type": "array", "maxItems": TAGS_MAX, "items": {"type": "string"}},
            "locked": {"type": "boolean", "default": false},
            "production": {"type": "boolean", "default": false},
            "definition": definition_schema(),
        },
    })
}

fn workflow_change_schema() -> Value {
    let mut schema = workflow_schema();
    if let Value::Object(fields) = &mut schema {
        fields.shift_remove("required");
        if let Some(Value::Object(properties)) = fields.get_mut("properties") {
            properties.shift_remove("definition");
            let known = Status::ALL.map(Status::as_str);
            properties.insert("status".to_owned(), json!({"enum": known}));
        }
    }
    schema
}

fn version_schema() -> Value {
    json!({
        "type": "object",
        "required": ["version_id", "definition"],
        "properties": {
            "version_id": {"type": "string", "description": "The one in the path"},
            "definition": definition_schema(),
            "locked": {"type": "boolean", "default": false},
            "production": {"type": "boolean", "default": false},
            "allowed_to_share": {"type": "boolean"},
        },
    })
}

fn definition_schema() -> Value {
    json!({
        "type": "object",
        "required": ["steps"],
        "properties": {
            "version": {"type": "string"},
            "steps": {"type": "array", "minItems": 1, "items": {"type": "object"}},
            "input_schema": {"type": "object", "description": "JSON Schema of the inputs"},
            "metadata": {"type": "object"},
        },
    })
}

fn trigger_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "version_id": {"type": "string", "description": "Default: the latest"},
            "inputs": {"type": "object", "description": "Fits the version's input_schema"},
            "webhook_url": {"type": "string"},
            "webhook_secret": {"type": "string", "minLength": 1, "maxLength": 256},
        },
    })
}

fn public_trigger_schema() -> Value {
    let mut schema = trigger_schema();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.shift_remove("version_id");
        properties.insert("api_key".to_owned(), json!({"type": "string"}));
    }
    schema
}

fn bulk_schema() -> Value {
    let mut schema = trigger_schema();
    let inputs = json!({
        "type": "array", "minItems": 1, "maxItems": BULK_MAX, "items": {"type": "object"},
    });
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("inputs".to_owned(), inputs);
    }
    schema
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

fn replay() -> Value {
    let moment = |text: &str| json!({"type": "string", "format": "date-time", "description": text});
    json!({
        "type": "object",
        "required": ["from", "to"],
        "properties": {
            "from": moment("Deliveries that were created then or later"),
            "to": moment("and before"),
            "status": {"type": "string", "enum": ["failed"], "default": "failed"},
        },
    })
}

fn try_out() -> Value {
    json!({
        "type": "object",
        "required": ["url"],
        "properties": {
            "url": {"type": "string", "format": "uri"},
            "webhook_secret": {"type": "string", "minLength": 1, "maxLength": 256},
        },
    })
}
