//! The OpenAPI 3.1 document of a host, made from the table that serves its requests and from the
//! types of `wire`.
//!
//! Each operation has the answers that its documentation names and those that follow from its row:
//! 401 of a route that asks for a key, 408, 413 and 415 of one that reads a body, 429 of one with a rate.
//! `tests/it` holds every answer of every test against these documents.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};

use super::doc::{BYTES, Content, Doc, ErrorForm, Kind, Param, RequestDoc, ResponseDoc, SchemaOf};
use super::{Access, BodyLimit, ROUTES, Rate, Role, Route, dispatch, unknown};
use crate::domain::workflow::VERSION_ID_MAX;
use crate::idempotency;
use crate::wire;

const SCHEMAS: &str = "#/components/schemas/";
const ERROR: &str = "#/components/schemas/Error";
const OPEN_AI_ERROR: &str = "#/components/schemas/OpenAiError";

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
                    "description": "The session of a member in a browser; without TLS the cookie is \
                                    orrery_session_PORT",
                },
                "Link": {
                    "type": "apiKey",
                    "in": "query",
                    "name": crate::signed_urls::PARAMETER,
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

/// The schemas of a document: of what is read, and of what is sent, where an absent field differs
/// from one that is null.
struct Schemas {
    read: SchemaGenerator,
    sent: SchemaGenerator,
    /// The components of answers that may carry `warnings`.
    warned: BTreeSet<String>,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            let mut plain = ReplaceBoolSchemas::default();
            plain.skip_additional_properties = true;
            settings.with_transform(plain)
        };
        Self {
            read: settings().for_deserialize().into_generator(),
            sent: settings().for_serialize().into_generator(),
            warned: BTreeSet::new(),
        }
    }

    /// The schema of an answer. With `warns`, it can include the warnings about unknown fields of
    /// the request that `unknown::warn` adds.
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
                    "description": "A sentence for each unknown field of the request; absent without any",
                }));
            }
        }
        schemas.extend(self.read.take_definitions(true));
        name_variants(&mut schemas);
        schemas
    }
}

/// Gives the variants of each `oneOf` a component of their own, named after the schema and their tag, and a
/// discriminator: generators of clients name types after components.
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

/// The property of a variant that has one value only.
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

/// `a_word` as `AWord`.
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
    // The whole workflows host is for compatibility; the base host has its routes.
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

/// The ways to be let in, any of which will do.
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
        // A key in the body is not a security scheme.
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
            "description": "For 24 hours, the same request under this key gets the first answer",
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
            "description": "The `ETag` of the version that the change is based on, or, for a new \
                            version, of the latest one; 412 when it is not the present one",
            "schema": {"type": "string", "minLength": 1},
        }));
    }
    all.into()
}

/// The version of the API, which the contract states; the version of the program is a field of its own.
const VERSION: &str = "1.0.0";

/// What the parts of paths are: one name is the same thing on each route.
fn path_parameter(name: &str) -> (&'static str, Value) {
    let text = || json!({"type": "string", "minLength": 1});
    let uuid = || json!({"type": "string", "format": "uuid"});
    match name {
        "id" => ("The id", uuid()),
        "execution" => ("The id of the execution", uuid()),
        "workflow" => ("The id of the workflow, or its slug", text()),
        "version" => {
            let pattern = format!("^[A-Za-z0-9._-]{{1,{VERSION_ID_MAX}}}$");
            ("The id of the version", json!({"type": "string", "pattern": pattern}))
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

/// The answers that follow from a row of the table.
fn general_responses(route: &Route) -> Vec<ResponseDoc> {
    let Doc { request, is_idempotent, .. } = route.doc;
    let mut all = vec![
        ResponseDoc::error(400, "The request is malformed; the message says what is wrong"),
        ResponseDoc::error(500, "An error of the service"),
        ResponseDoc {
            headers: &[RETRY_AFTER],
            ..ResponseDoc::error(
                503,
                "The service cannot answer now: it is busy, stopping, or its disk is full",
            )
        },
    ];
    if matches!(route.access, Access::MaybeKey | Access::Key | Access::BodyKey | Access::Link) {
        all.push(ResponseDoc::error(401, "Invalid or missing API key"));
    }
    if route.access == Access::Admin {
        all.push(ResponseDoc::error(401, "Invalid or missing admin key"));
        all.push(ResponseDoc::error(
            404,
            "There is no such organization or thing, or the administration API is off",
        ));
    }
    if route.access.is_by_session() {
        all.push(ResponseDoc::error(401, "Nobody is logged in"));
        all.push(ResponseDoc::error(
            403,
            "The member may not do this, or the request did not come from a page of the dashboard",
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
            "A request with this Idempotency-Key is still being answered, or a conflict",
        ));
        all.push(ResponseDoc::error(422, "This Idempotency-Key was used with another body"));
    }
    if route.rate != Rate::Free {
        all.push(ResponseDoc {
            headers: &[RETRY_AFTER],
            ..ResponseDoc::error(429, "Too many requests, or a full queue")
        });
    }
    all
}

/// The media type of content of any kind.
const ANY: &str = "*/*";
const RETRY_AFTER: (&str, &str) = ("Retry-After", "Seconds to wait before the next try");
const REQUEST_ID: (&str, &str) = ("X-Request-Id", "The id of the request, as in the service's log");

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

/// The schema of an error. A missing key reads the same on every route.
fn error_schema(route: &Route, status: u16) -> &'static str {
    match route.doc.errors {
        ErrorForm::OpenAi if status != 401 => OPEN_AI_ERROR,
        ErrorForm::OpenAi | ErrorForm::Plain => ERROR,
    }
}

/// What the answers of a route have in common.
#[derive(Debug, Clone, Copy)]
struct OfRoute {
    /// The id of the request.
    has_id: bool,
    /// Names of unknown fields of the request.
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
        // Generators of clients know bytes by their own media type alone.
        Content::Raw(ANY) => json!({BYTES: {"schema": binary()}, ANY: {"schema": binary()}}),
        Content::Raw(media_type) => {
            let is_text = media_type.starts_with("text/");
            let schema = if is_text { json!({"type": "string"}) } else { binary() };
            json!({media_type: {"schema": schema}})
        }
        // A stream has no schema of its own in OpenAPI 3.1.
        Content::Events => json!({"text/event-stream": {}}),
    };
    fields.insert("content".to_owned(), content);
    described
}
