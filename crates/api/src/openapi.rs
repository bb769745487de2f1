//! The OpenAPI 3.1 document of a host, generated from the route table and the types of `wire`.
//!
//! An operation has the responses in its documentation and the responses that follow from its row:
//! 401 for a route with a key, 408, 413 and 415 for a route with a body, 429 for a route with a
//! rate limit. `tests/it` validates every response in every test against these documents.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};

use super::doc::{BYTES, Content, Doc, ErrorForm, Kind, Param, RequestDoc, ResponseDoc, SchemaOf};
use super::{Access, BodyLimit, ROUTES, Rate, Role, Route, dispatch, unknown};
use orrery_domain::workflow::VERSION_ID_MAX;
use orrery_records::idempotency;
use orrery_wire as wire;

const SCHEMAS: &str = "#/components/schemas/";
const ERROR: &str = "#/components/schemas/Error";
const OPEN_AI_ERROR: &str = "#/components/schemas/OpenAiError";

/// The documents of all hosts. Each document is generated once, because anyone may request it at
/// any rate.
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

/// Returns the document of the host with this URL.
#[must_use]
pub fn of_host(role: Role, url: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES.iter().filter(|route| route.hosts.contains(&role)) {
        let operations = paths.entry(path_of(route)).or_insert_with(|| json!({}));
        if let Value::Object(operations) = operations {
            let method = route.method.as_str().to_lowercase();
            operations.insert(method, operation(route, &mut schemas));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": format!("Orrery, {} host", role.as_str()),
            "version": VERSION,
            "x-orrery-version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": if url.is_empty() { "/" } else { url }}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
                "Session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "__Host-orrery_session",
                    "description": "A member's session in a browser. Without TLS, the cookie is \
                                    orrery_session_PORT",
                },
                "Link": {
                    "type": "apiKey",
                    "in": "query",
                    "name": orrery_records::signed_urls::PARAMETER,
                    "description": "The token of a link that the service issued",
                },
            },
            "schemas": schemas.take(),
        },
    })
}

fn path_of(route: &Route) -> String {
    route.path.replace("{*", "{")
}

/// The schemas of a document, separate for requests and responses, because only responses
/// distinguish between absent and null fields.
struct Schemas {
    read: SchemaGenerator,
    sent: SchemaGenerator,
    /// The components of responses that may contain `warnings`.
    warned: BTreeSet<String>,
}

impl Schemas {
    fn new() -> Self {
        let settings = |mut settings: SchemaSettings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            let mut plain = ReplaceBoolSchemas::default();
            plain.skip_additional_properties = true;
            settings.with_transform(plain).into_generator()
        };
        Self {
            read: settings(orrery_wire::request::settings()),
            sent: settings(SchemaSettings::draft2020_12().for_serialize()),
            warned: BTreeSet::new(),
        }
    }

    /// Returns the schema of a response. With `warns`, it includes the warnings about unknown
    /// request fields that `unknown::warn` adds.
    fn answer(&mut self, schema: SchemaOf, warns: bool) -> Value {
        let schema = schema(&mut self.sent).to_value();
        let name = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|place| place.strip_prefix(SCHEMAS));
        if let Some(name) = name.filter(|_| warns) {
            self.warned.insert(name.to_owned());
        }
        schema
    }

    fn take(mut self) -> Map<String, Value> {
        self.sent.subschema_for::<wire::error::Error<'static>>();
        self.sent.subschema_for::<wire::openai::Error<'static>>();
        let mut schemas = self.sent.take_definitions(true);
        for name in &self.warned {
            let properties = schemas.get_mut(name).and_then(|schema| schema.get_mut("properties"));
            if let Some(Value::Object(properties)) = properties {
                properties.entry("warnings").or_insert_with(|| json!({
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "A warning for each unknown field of the request. Absent if there are none",
                }));
            }
        }
        schemas.extend(self.read.take_definitions(true));
        name_variants(&mut schemas);
        schemas
    }
}

/// Turns each variant of a `oneOf` into a component, named after the schema and the variant's tag,
/// and adds a discriminator. Client generators name types after components.
fn name_variants(schemas: &mut Map<String, Value>) {
    let mut named = Map::new();
    for (name, schema) in schemas.iter_mut() {
        let Some(schema) = schema.as_object_mut() else { continue };
        let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { continue };
        let Some(tag) = variants.first().and_then(tag_of).map(str::to_owned) else { continue };
        let values: Option<Vec<String>> = variants.iter().map(|one| tag_value(one, &tag)).collect();
        let Some(values) = values else { continue };
        let mut mapping = Map::new();
        for (variant, value) in variants.iter_mut().zip(values) {
            let own = format!("{name}{}", words(&value));
            let reference = format!("{SCHEMAS}{own}");
            mapping.insert(value, reference.clone().into());
            named.insert(own, std::mem::replace(variant, json!({"$ref": reference})));
        }
        let discriminator = json!({"propertyName": tag, "mapping": mapping});
        schema.insert("discriminator".to_owned(), discriminator);
    }
    schemas.extend(named);
}

/// Returns the property of a variant that has only one possible value.
fn tag_of(variant: &Value) -> Option<&str> {
    let properties = variant.get("properties")?.as_object()?;
    properties
        .iter()
        .find(|(_, schema)| schema.get("const").is_some())
        .map(|(name, _)| name.as_str())
}

fn tag_value(variant: &Value, tag: &str) -> Option<String> {
    variant.get("properties")?.get(tag)?.get("const")?.as_str().map(str::to_owned)
}

/// Converts `a_word` to `AWord`.
fn words(value: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    value.split('_').map(word).collect()
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let doc = &route.doc;
    let mut operation = json!({
        "operationId": doc.id,
        "tags": [doc.tag],
        "summary": doc.summary,
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

/// Returns the alternative security requirements.
fn security(access: Access) -> Value {
    let by_key = [json!({"ApiKey": []}), json!({"Bearer": []})];
    let mut ways = match access {
        Access::Public | Access::Local => Vec::new(),
        Access::Member | Access::KeyManager | Access::Owner => vec![json!({"Session": []})],
        Access::MaybeKey | Access::Key | Access::BodyKey | Access::Link => by_key.to_vec(),
        Access::Admin => vec![json!({"Bearer": []})],
    };
    match access {
        Access::Link => ways.push(json!({"Link": []})),
        // OpenAPI has no security scheme for an API key in the body.
        Access::BodyKey | Access::MaybeKey => ways.push(json!({})),
        Access::Public
        | Access::Local
        | Access::Key
        | Access::Member
        | Access::KeyManager
        | Access::Admin
        | Access::Owner => {}
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
                            version, of the latest version. Returns 412 if it is not current",
            "schema": {"type": "string", "minLength": 1},
        }));
    }
    all.into()
}

/// The version of the API contract. The version of the program is a separate field.
const VERSION: &str = "1.0.0";

/// Returns the description of a path parameter. A name has the same meaning on every route.
fn path_parameter(name: &str) -> (&'static str, Value) {
    let text = || json!({"type": "string", "minLength": 1});
    let uuid = || json!({"type": "string", "format": "uuid"});
    match name {
        "id" => ("The id", uuid()),
        "execution" => ("The ID of the execution", uuid()),
        "workflow" => ("The ID or slug of the workflow", text()),
        "version" => {
            let pattern = format!("^[A-Za-z0-9._-]{{1,{VERSION_ID_MAX}}}$");
            ("The ID of the version", json!({"type": "string", "pattern": pattern}))
        }
        "slug" => ("The slug of the model, which may contain `/`", text()),
        "page" => ("The path of the page", text()),
        "name" => ("The name", text()),
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

/// Returns the responses that follow from a row of the table.
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
    }
    if route.access == Access::Admin {
        all.push(ResponseDoc::error(401, "Invalid or missing admin key"));
        all.push(ResponseDoc::error(404, "Not found, or the administration API is off"));
    }
    if route.access.is_by_session() {
        all.push(ResponseDoc::error(401, "Nobody is logged in"));
        all.push(ResponseDoc::error(
            403,
            "The member lacks the permission, or the request did not come from a page of the dashboard",
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
        ErrorForm::OpenAi | ErrorForm::Plain => ERROR,
    }
}

/// Properties of all responses of a route.
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
        Content::Error => json!({"application/json": {"schema": {"$ref": error}}}),
        Content::AnyError => {
            let any = json!({"anyOf": [{"$ref": ERROR}, {"$ref": OPEN_AI_ERROR}]});
            json!({"application/json": {"schema": any}})
        }
        Content::JsonOrEvents(schema) => json!({
            "application/json": {"schema": schemas.answer(schema, warns)},
            "text/event-stream": {},
        }),
        Content::Json(schema) => {
            json!({"application/json": {"schema": schemas.answer(schema, warns)}})
        }
        // Client generators recognize binary data only by its own media type.
        Content::Raw(ANY) => json!({BYTES: {"schema": binary()}, ANY: {"schema": binary()}}),
        Content::Raw(media_type) => {
            let is_text = media_type.starts_with("text/");
            let schema = if is_text { json!({"type": "string"}) } else { binary() };
            json!({media_type: {"schema": schema}})
        }
        // OpenAPI 3.1 cannot describe the events of a stream.
        Content::Events => json!({"text/event-stream": {}}),
    };
    fields.insert("content".to_owned(), content);
    described
}
