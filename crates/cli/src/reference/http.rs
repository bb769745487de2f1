//! The page about a host, generated from the host's OpenAPI document: the operations by tag, and
//! the types of their bodies.

use std::collections::BTreeMap;

use orrery_api::{Role, openapi_of};
use serde_json::{Map, Value};

use super::page::{Page, escape, outside_code};
use super::types::{self, Field};

/// In a link to a page of the specification, the part between the repository's URL and the page's
/// path in `docs/`.
const CONTRACT: &str = "/blob/main/docs/";

pub(super) fn page(role: Role) -> String {
    let document = openapi_of(role, "");
    let name = role.as_str();
    let mut page = Page::new(&format!("HTTP API: {name} host"), "the OpenAPI document");
    page.text(text_of(&document["info"], "description"));
    page.text(
        "Each host serves this reference as an OpenAPI 3.1 document at `/openapi.json`. A request \
         is described by its parameters and its body, which may refer to a type at the end of \
         this page. A type's fields are optional unless their type says \"required\".",
    );
    let general = general(&document);
    page.heading(2, "Responses of most operations");
    page.text("These are not repeated below:");
    let rows = general.iter().map(|(status, text)| [format!("`{status}`"), prose(text)]);
    page.table(["status", "meaning"], &rows.collect::<Vec<_>>());
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = text_of(tag, "name");
        page.heading(2, &format!("Operations: {name}"));
        page.text(&prose(text_of(tag, "description")));
        if let Some((_, contract)) = text_of(&tag["externalDocs"], "url").split_once(CONTRACT) {
            page.text(&format!("The contract: [{contract}](../{contract})"));
        }
        for (method, path, operation) in operations(&document["paths"]) {
            if operation["tags"][0] == *name {
                show(
                    &mut page,
                    &format!("`{} {path}`", method.to_uppercase()),
                    operation,
                    &general,
                );
            }
        }
        if name == "webhooks" {
            for (_, event, operation) in operations(&document["webhooks"]) {
                show(&mut page, &format!("The event `{event}`"), operation, &general);
            }
        }
    }
    page.heading(2, "Types");
    let schemas = document["components"]["schemas"].as_object();
    for (name, schema) in schemas.into_iter().flatten() {
        show_type(&mut page, name, schema);
    }
    page.finish()
}

/// Returns all operations: method, path, operation.
fn operations(paths: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = paths.as_object().into_iter().flatten();
    paths.flat_map(|(path, operations)| {
        let operations = operations.as_object().into_iter().flatten();
        operations.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    })
}

/// Returns the error responses that more than half of the operations share, with the same meaning.
fn general(document: &Value) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut all = 0;
    for (_, _, operation) in operations(&document["paths"]) {
        all += 1;
        for (status, response) in operation["responses"].as_object().into_iter().flatten() {
            let text = text_of(response, "description").to_owned();
            *counts.entry((status.clone(), text)).or_default() += 1;
        }
    }
    let is_general = |(status, _): &(String, String), count: usize| {
        !status.starts_with(['2', '3']) && 2 * count > all
    };
    counts.into_iter().filter(|(one, count)| is_general(one, *count)).map(|(one, _)| one).collect()
}

fn show(page: &mut Page, line: &str, operation: &Value, general: &BTreeMap<String, String>) {
    page.heading(3, text_of(operation, "summary"));
    let access = access(operation);
    let deprecated = if operation["deprecated"] == true { " Deprecated." } else { "" };
    page.text(&format!("{line}{access}{deprecated}"));
    page.text(&prose(text_of(operation, "description")));
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let rows = parameters.map(|one| {
        [
            format!("`{}`", text_of(one, "name")),
            text_of(one, "in").to_owned(),
            with_required(types::of(&one["schema"]), one["required"] == true),
            prose(text_of(one, "description")),
        ]
    });
    page.table(["parameter", "in", "type", "meaning"], &rows.collect::<Vec<_>>());
    let body = &operation["requestBody"];
    if let Some((media, schema)) = content(body) {
        let optional = if body["required"] == true { "" } else { ", optional" };
        page.text(&format!("Request body ({media}{optional}): {}", types::of(schema)));
    }
    let mut rows = Vec::new();
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let text = text_of(response, "description");
        if general.get(status).is_some_and(|known| known == text) {
            continue;
        }
        let body =
            content(response).filter(|(_, schema)| types::reference(schema) != Some("Error"));
        let body = body.map(|(media, schema)| match types::of(schema).as_str() {
            "any value" => media.to_owned(),
            words if media == "application/json" => words.to_owned(),
            words => format!("{words} ({media})"),
        });
        rows.push([format!("`{status}`"), prose(text), body.unwrap_or_default()]);
    }
    page.table(["status", "meaning", "body"], &rows);
}

/// Returns the first media type of a body, with its schema.
fn content(body: &Value) -> Option<(&str, &Value)> {
    let (media, content) = body["content"].as_object()?.iter().next()?;
    Some((media, content.get("schema").unwrap_or(&Value::Null)))
}

/// Returns the credentials that a request needs, as the end of a line.
fn access(operation: &Value) -> String {
    let Some(schemes) = operation["security"].as_array() else { return String::new() };
    let names: Vec<&str> = schemes
        .iter()
        .filter_map(Value::as_object)
        .flat_map(Map::keys)
        .map(|name| match name.as_str() {
            "ApiKey" => "an API key",
            "Session" => "a session",
            "Link" => "a signed link",
            _ => "",
        })
        .filter(|name| !name.is_empty())
        .collect();
    match (names.is_empty(), schemes.is_empty()) {
        (true, true) => " needs no key.".to_owned(),
        (true, false) => " needs an admin key.".to_owned(),
        (false, _) if schemes.iter().any(|one| one.as_object().is_some_and(Map::is_empty)) => {
            format!(" accepts {}.", names.join(" or "))
        }
        (false, _) => format!(" needs {}.", names.join(" or ")),
    }
}

fn show_type(page: &mut Page, name: &str, schema: &Value) {
    page.heading(3, name);
    page.text(&prose(text_of(schema, "description")));
    let fields = types::fields(schema);
    if fields.is_empty() {
        page.text(&format!("Type: {}", types::of(schema)));
        return;
    }
    let row = |field: &Field<'_>| {
        [
            format!("`{}`", field.path),
            with_required(types::of(field.schema), field.is_required),
            prose(field.description()),
        ]
    };
    page.table(["field", "type", "meaning"], &fields.iter().map(row).collect::<Vec<_>>());
}

fn with_required(words: String, is_required: bool) -> String {
    if is_required { format!("{words}; required") } else { words }
}

/// Returns a text of the document with `<` escaped, so that the text is not read as HTML.
fn prose(text: &str) -> String {
    outside_code(text, &escape)
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
