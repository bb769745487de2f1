//! Builds the operation of a route: its parameters, bodies, responses and security.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::schemas::Schemas;
use crate::doc::{BYTES, Content, Doc, ErrorForm, Kind, Param, RequestDoc, ResponseDoc};
use crate::{Access, BodyLimit, Rate, Role, Route, dispatch, unknown};
use orrery_domain::workflow::VERSION_ID_MAX;
use orrery_records::idempotency;

const ERROR: &str = "#/components/schemas/Error";
const ANTHROPIC_ERROR: &str = "#/components/schemas/AnthropicError";
const REPLICATE_ERROR: &str = "#/components/schemas/ReplicateError";
const OPEN_AI_ERROR: &str = "#/components/schemas/OpenAiError";

pub(super) fn of(route: &Route, schemas: &mut Schemas) -> Value {
    let doc = &route.doc;
    let mut operation = json!({
        "operationId": doc.id,
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": doc.description,
        "parameters": parameters(route),
    });
    let Value::Object(fields) = &mut operation else { return operation };
    // The workflows host exists only for compatibility; the base host has the same routes.
    if doc.is_deprecated || route.hosts == [Role::Workflows] {
        fields.insert("deprecated".to_owned(), true.into());
    }
    if let Some(request) = &doc.request {
        fields.insert("requestBody".to_owned(), request_body(request, schemas));
    }
    fields.insert("responses".to_owned(), responses(route, schemas));
    fields.insert("security".to_owned(), security(route.access));
    operation
}

/// Returns the security schemes of a route. Any one of the schemes is sufficient.
pub(super) const fn schemes(access: Access) -> &'static [&'static str] {
    match access {
        Access::Public | Access::Local => &[],
        Access::Member | Access::Account | Access::KeyManager | Access::Owner => &["Session"],
        Access::MaybeKey | Access::Key | Access::BodyKey | Access::LocalKey => {
            &["ApiKey", "Bearer"]
        }
        Access::Link => &["ApiKey", "Bearer", "Link"],
        Access::Admin => &["Bearer"],
    }
}

/// Returns the alternative security requirements.
fn security(access: Access) -> Value {
    let mut ways: Vec<Value> = schemes(access).iter().map(|name| json!({*name: []})).collect();
    // OpenAPI has no security scheme for an API key in the body.
    if matches!(access, Access::BodyKey | Access::MaybeKey) {
        ways.push(json!({}));
    }
    ways.into()
}

fn parameters(route: &Route) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*');
        let (description, schema) = path_parameter(name);
        Some(json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": schema,
        }))
    });
    let mut all: Vec<Value> = in_path.chain(route.doc.query.iter().map(query_parameter)).collect();
    if route.doc.is_idempotent {
        all.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": "For 24 hours, a repeated request with this key returns the first response",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": idempotency::KEY_MAX,
                "pattern": "^[!-~]+$",
            },
        }));
    }
    if route.doc.takes_if_match {
        all.push(json!({
            "name": "If-Match",
            "in": "header",
            "description": "The `ETag` of the version that the change is based on or, for a new \
                            version, of the latest version. If the `ETag` is not current, the \
                            response is 412",
            "schema": {"type": "string", "minLength": 1},
        }));
    }
    all.into()
}

/// Returns the description of a path parameter. A name has the same meaning on every route.
fn path_parameter(name: &str) -> (&'static str, Value) {
    let text = || json!({"type": "string", "minLength": 1});
    let uuid = || json!({"type": "string", "format": "uuid"});
    match name {
        "id" => ("The id", uuid()),
        "execution" => ("The ID of the execution", uuid()),
        "job" => ("The ID of the job", uuid()),
        "workflow" => ("The ID or slug of the workflow", text()),
        "version" => {
            let pattern = format!("^[A-Za-z0-9._-]{{1,{VERSION_ID_MAX}}}$");
            ("The ID of the version", json!({"type": "string", "pattern": pattern}))
        }
        "slug" | "model" => ("The slug of the model, which may contain `/`", text()),
        "page" => ("The path of the page", text()),
        "schema" => {
            let names = crate::schemas::NAMES.map(|name| format!("{name}.json"));
            ("The kind of file, with `.json`", json!({"type": "string", "enum": names}))
        }
        "name" => ("The name", text()),
        "owner" => ("The owner of the model, or `local`", text()),
        "organization" => ("The name of the organization", text()),
        _ => ("The path of the file", text()),
    }
}

fn query_parameter(param: &Param) -> Value {
    let schema = match param.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Uuid => json!({"type": "string", "format": "uuid"}),
        Kind::Time => json!({"type": "string", "format": "date-time"}),
        Kind::Day => json!({"type": "string", "format": "date"}),
        Kind::Whole { min, max, default } => {
            json!({"type": "integer", "minimum": min, "maximum": max, "default": default})
        }
        Kind::OneOf(values) => json!({"type": "string", "enum": values()}),
        Kind::ListOf(values) => {
            json!({"type": "array", "items": {"type": "string", "enum": values()}})
        }
    };
    let mut parameter = json!({
        "name": param.name,
        "in": "query",
        "required": param.is_required,
        "description": param.description,
        "schema": schema,
    });
    if let Value::Object(fields) = &mut parameter
        && matches!(param.kind, Kind::ListOf(_))
    {
        fields.insert("explode".to_owned(), false.into());
    }
    parameter
}

fn request_body(request: &RequestDoc, schemas: &mut Schemas) -> Value {
    let schema = match request.schema {
        Some(schema) => schema(&mut schemas.read).to_value(),
        None => binary(),
    };
    json!({
        "required": request.is_required,
        "content": {request.media_type: {"schema": schema}},
    })
}

fn binary() -> Value {
    json!({"type": "string", "format": "binary"})
}

/// Returns the responses that follow from a row of the route table.
fn general_responses(route: &Route) -> Vec<ResponseDoc> {
    let Doc { request, is_idempotent, .. } = route.doc;
    let mut all = vec![
        ResponseDoc::error(400, "The request is invalid; the message says why"),
        ResponseDoc::error(500, "Internal error"),
        ResponseDoc {
            headers: &[RETRY_AFTER],
            ..ResponseDoc::error(
                503,
                "The service is temporarily unavailable: it is busy, shutting down, or its disk is full",
            )
        },
    ];
    if matches!(route.access, Access::MaybeKey | Access::Key | Access::BodyKey | Access::Link) {
        all.push(ResponseDoc::error(401, "Invalid or missing API key"));
        all.push(ResponseDoc::error(403, "The API key is blocked, or may not do this"));
    }
    if route.needs.is_metered() {
        all.push(ResponseDoc::error(402, "The balance or the budget of the API key is too low"));
    }
    if route.access == Access::Admin {
        all.push(ResponseDoc::error(401, "Invalid or missing admin key"));
        all.push(ResponseDoc::error(404, "Not found, or the administration API is off"));
    }
    if route.access.is_by_session() {
        all.push(ResponseDoc::error(401, "Nobody is logged in"));
        all.push(ResponseDoc::error(
            403,
            "The member lacks the role or the permission, or the request did not come from a page of the dashboard",
        ));
        all.push(ResponseDoc::error(415, "The body is not application/json"));
    }
    if request.is_some() && route.body != BodyLimit::None {
        all.push(ResponseDoc::error(408, "The body arrived too slowly"));
        all.push(ResponseDoc::error(413, "The body is over a limit"));
        if !route.access.is_by_session() {
            all.push(ResponseDoc::error(415, "The body's content coding is not supported"));
        }
    }
    if is_idempotent {
        all.push(ResponseDoc::error(
            409,
            "A request with this Idempotency-Key is still in progress, or a conflict",
        ));
        all.push(ResponseDoc::error(422, "The Idempotency-Key was already used with another body"));
    }
    if route.rate != Rate::Free {
        all.push(ResponseDoc {
            headers: &[RETRY_AFTER],
            ..ResponseDoc::error(429, "Too many requests, or a full queue")
        });
    }
    all
}

/// The media type of server-sent events. OpenAPI 3.1 has no keyword for the items of a stream, so
/// the schema describes the data of each event. Other documents use the same convention, and client
/// generators expect it.
const EVENTS: &str = "text/event-stream";
/// The media type that stands for any content.
const ANY: &str = "*/*";
const RETRY_AFTER: (&str, &str) = ("Retry-After", "The number of seconds to wait before a retry");
const REQUEST_ID: (&str, &str) =
    ("X-Request-Id", "The ID of the request, which is also in the service's log");

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let mut by_status: BTreeMap<u16, ResponseDoc> = BTreeMap::new();
    for response in general_responses(route) {
        by_status.insert(response.status, response);
    }
    for response in route.doc.responses {
        by_status.insert(response.status, *response);
    }
    let of_route = OfRoute {
        has_id: !dispatch::has_no_request_id(route.path),
        warns: unknown::names_fields(route),
    };
    let described = by_status.into_values().map(|response| {
        let error = error_schema(route, response.status);
        let described = describe(&response, error, of_route, schemas);
        (response.status.to_string(), described)
    });
    Value::Object(described.collect())
}

/// Returns the schema of an error. The error for a missing key is the same on every route.
fn error_schema(route: &Route, status: u16) -> &'static str {
    match route.doc.errors {
        ErrorForm::OpenAi if status != 401 => OPEN_AI_ERROR,
        ErrorForm::OpenAiOnly => OPEN_AI_ERROR,
        ErrorForm::OpenAi | ErrorForm::Plain => ERROR,
        ErrorForm::Anthropic => ANTHROPIC_ERROR,
        ErrorForm::Replicate => REPLICATE_ERROR,
    }
}

/// Properties that all responses of a route share.
#[derive(Debug, Clone, Copy)]
struct OfRoute {
    /// Whether responses have a request ID.
    has_id: bool,
    /// Whether responses may have warnings about unknown request fields.
    warns: bool,
}

fn describe(
    response: &ResponseDoc,
    error: &'static str,
    OfRoute { has_id, warns }: OfRoute,
    schemas: &mut Schemas,
) -> Value {
    let mut described = json!({"description": response.description});
    let Value::Object(fields) = &mut described else { return described };
    let own = response.headers.iter().copied();
    let headers = own.chain(has_id.then_some(REQUEST_ID)).map(|(name, description)| {
        let header = json!({"description": description, "schema": {"type": "string"}});
        (name.to_owned(), header)
    });
    let headers: Map<String, Value> = headers.collect();
    if !headers.is_empty() {
        fields.insert("headers".to_owned(), Value::Object(headers));
    }
    let content = match response.content {
        Content::Nothing => return described,
        Content::Error if error == REPLICATE_ERROR => {
            json!({"application/problem+json": {"schema": {"$ref": error}}})
        }
        Content::Error => json!({"application/json": {"schema": {"$ref": error}}}),
        Content::AnyError => {
            let forms = [ERROR, OPEN_AI_ERROR, ANTHROPIC_ERROR];
            let any = json!({"anyOf": forms.map(|form| json!({"$ref": form}))});
            json!({"application/json": {"schema": any}})
        }
        Content::JsonOrEvents(schema, data) => json!({
            "application/json": {"schema": schemas.answer(schema, warns)},
            EVENTS: {"schema": schemas.answer(data, false)},
        }),
        Content::JsonOrText(schema) => json!({
            "application/json": {"schema": schemas.answer(schema, warns)},
            "text/plain": {"schema": {"type": "string"}},
        }),
        Content::JsonOrCsv(schema) => json!({
            "application/json": {"schema": schemas.answer(schema, warns)},
            "text/csv": {"schema": {"type": "string"}},
        }),
        Content::JsonTextOrEvents(schema, data) => json!({
            "application/json": {"schema": schemas.answer(schema, warns)},
            "text/plain": {"schema": {"type": "string"}},
            EVENTS: {"schema": schemas.answer(data, false)},
        }),
        Content::Json(schema) => {
            json!({"application/json": {"schema": schemas.answer(schema, warns)}})
        }
        // Client generators recognize binary data only by the media type
        // `application/octet-stream`.
        Content::Raw(ANY) => json!({BYTES: {"schema": binary()}, ANY: {"schema": binary()}}),
        Content::Raw(media_type) => {
            let is_text = media_type.starts_with("text/");
            let schema = if is_text { json!({"type": "string"}) } else { binary() };
            json!({media_type: {"schema": schema}})
        }
        Content::Events(data) => json!({EVENTS: {"schema": schemas.answer(data, false)}}),
    };
    fields.insert("content".to_owned(), content);
    described
}
