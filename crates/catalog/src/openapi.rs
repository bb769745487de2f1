//! A model's request schema as an OpenAPI 3.0 document (`docs/spec/models.md`, "OpenAPI document of
//! a model").
//!
//! OpenAPI 3.0 uses an older and smaller JSON Schema: `nullable` instead of `null`, a single-value
//! `enum` instead of `const`, booleans for exclusive bounds, and `components` instead of `$defs`.
//! Unsupported keywords are omitted, so the document may accept more than the model does, but never
//! less.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::Model;
use orrery_domain::model::{OutputType, VERSION};

/// Prefix of references to the request schema's definitions in the document.
const SCHEMAS: &str = "#/components/schemas/";
/// Keywords with the same meaning in both dialects.
const KEPT: &[&str] = &[
    "title",
    "description",
    "default",
    "enum",
    "format",
    "pattern",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "required",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Returns the OpenAPI document of one model.
#[must_use]
pub fn openapi(model: &Model) -> Value {
    let mut schemas = Map::new();
    let text = model.schema.text();
    for holder in ["$defs", "definitions"] {
        let definitions = text.get(holder).and_then(Value::as_object).into_iter().flatten();
        for (name, definition) in definitions {
            schemas.insert(component(name), translate(definition));
        }
    }
    schemas.insert("Input".to_owned(), translate(text));
    schemas.insert("Output".to_owned(), output(model.output_type));
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": model.title,
            "description": model.description,
            "version": VERSION,
        },
        "paths": {"/v1/prediction/": {"post": operation(model)}},
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    })
}

fn operation(model: &Model) -> Value {
    let created = json!({
        "type": "object",
        "required": ["status", "message", "predictionID"],
        "properties": {
            "status": {"type": "string"},
            "message": {"type": "string"},
            "predictionID": {"type": "string", "format": "uuid"},
        },
    });
    json!({
        "operationId": "createPrediction",
        "summary": format!("Run {}", model.title),
        "security": [{"ApiKey": []}],
        "requestBody": {
            "required": true,
            "content": {"application/json": {"schema": {
                "type": "object",
                "required": ["model", "version", "input"],
                "properties": {
                    "model": {"type": "string", "enum": [model.slug.as_str()]},
                    "version": {"type": "string"},
                    "input": {"$ref": format!("{SCHEMAS}Input")},
                    "webhook_url": {"type": "string"},
                    "webhook_secret": {"type": "string"},
                    "fallback_selector": {"type": "string"},
                },
            }}},
        },
        "responses": {
            "200": {
                "description": "The prediction was accepted; its output will match Output.",
                "content": {"application/json": {"schema": created}},
            },
        },
    })
}

fn output(output_type: OutputType) -> Value {
    match output_type {
        OutputType::String => json!({"type": "string"}),
        OutputType::Array => json!({"type": "array", "items": {}}),
        OutputType::Object => json!({"type": "object"}),
        OutputType::Number => json!({"type": "number"}),
        OutputType::Boolean => json!({"type": "boolean"}),
        OutputType::Image | OutputType::Audio | OutputType::Video | OutputType::File => json!({
            "oneOf": [
                {"type": "string", "format": "uri"},
                {"type": "array", "items": {"type": "string", "format": "uri"}},
            ],
        }),
    }
}

/// Returns the component name for a definition. The name contains only characters that OpenAPI
/// allows, and differs from the names that the document itself defines.
fn component(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    match name.as_str() {
        "Input" | "Output" | "" => format!("{name}_"),
        _ => name,
    }
}

/// Translates a JSON Schema to OpenAPI 3.0.
fn translate(schema: &Value) -> Value {
    let Value::Object(schema) = schema else {
        // `false` accepts nothing, `true` everything.
        return if *schema == Value::Bool(false) { json!({"not": {}}) } else { json!({}) };
    };
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return reference(target);
    }
    let mut translated = Map::new();
    for keyword in KEPT {
        if let Some(value) = schema.get(*keyword) {
            translated.insert((*keyword).to_owned(), value.clone());
        }
    }
    types(schema, &mut translated);
    bounds(schema, &mut translated);
    children(schema, &mut translated);
    if let Some(constant) = schema.get("const") {
        translated.insert("enum".to_owned(), json!([constant]));
    }
    if let Some(example) = schema.get("examples").and_then(|examples| examples.get(0)) {
        translated.insert("example".to_owned(), example.clone());
    }
    if translated.get("required").is_some_and(|required| *required == json!([])) {
        translated.remove("required");
    }
    Value::Object(translated)
}

fn reference(target: &str) -> Value {
    let name = target.strip_prefix("#/$defs/").or_else(|| target.strip_prefix("#/definitions/"));
    match name.filter(|name| !name.contains('/')) {
        Some(name) => {
            // A reference is a URI fragment that contains a JSON pointer, so percent-decode it
            // before unescaping the pointer.
            let name = percent_decode_str(name).decode_utf8_lossy();
            let name = name.replace("~1", "/").replace("~0", "~");
            json!({"$ref": format!("{SCHEMAS}{}", component(&name))})
        }
        None if target == "#" => json!({"$ref": format!("{SCHEMAS}Input")}),
        // References to other locations cannot be expressed, so accept anything.
        None => json!({}),
    }
}

/// Translates `type`: OpenAPI 3.0 expresses lists of types and `null` differently.
fn types(schema: &Map<String, Value>, translated: &mut Map<String, Value>) {
    let listed = match schema.get("type") {
        None => return,
        Some(Value::Array(types)) => types.clone(),
        Some(one) => vec![one.clone()],
    };
    let named: Vec<&Value> = listed.iter().filter(|name| *name != "null").collect();
    if named.len() < listed.len() {
        translated.insert("nullable".to_owned(), true.into());
        nullable_enum(translated);
    }
    let typed = |name: &Value| {
        let items = (name == "array" && !schema.contains_key("items")).then(|| json!({}));
        match items {
            Some(items) => json!({"type": name, "items": items}),
            None => json!({"type": name}),
        }
    };
    match named.as_slice() {
        [] => {
            translated.insert("enum".to_owned(), json!([null]));
        }
        [one] => {
            let Value::Object(typed) = typed(one) else { return };
            translated.extend(typed);
        }
        several => {
            let several: Vec<Value> = several.iter().map(|name| typed(name)).collect();
            translated.insert("anyOf".to_owned(), several.into());
        }
    }
}

/// Adds null to a nullable enumeration, as OpenAPI 3.0 requires.
fn nullable_enum(translated: &mut Map<String, Value>) {
    if let Some(Value::Array(values)) = translated.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
}

/// Translates exclusive bounds, which OpenAPI 3.0 expresses as booleans next to the inclusive
/// bounds.
fn bounds(schema: &Map<String, Value>, translated: &mut Map<String, Value>) {
    for (plain, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match (schema.get(plain), schema.get(exclusive)) {
            (_, Some(bound @ Value::Number(_))) => {
                translated.insert(plain.to_owned(), bound.clone());
                translated.insert(exclusive.to_owned(), true.into());
            }
            (Some(bound), _) => {
                translated.insert(plain.to_owned(), bound.clone());
            }
            (None, _) => {}
        }
    }
}

fn children(schema: &Map<String, Value>, translated: &mut Map<String, Value>) {
    if let Some(Value::Object(properties)) = schema.get("properties") {
        let properties = properties.iter().map(|(name, value)| (name.clone(), translate(value)));
        translated.insert("properties".to_owned(), Value::Object(properties.collect()));
    }
    match schema.get("items") {
        // Tuples cannot be expressed; a schema for the remaining items would apply to all items.
        Some(items) if items.is_array() || schema.contains_key("prefixItems") => {
            translated.insert("items".to_owned(), json!({}));
        }
        Some(items) => {
            translated.insert("items".to_owned(), translate(items));
        }
        None => {}
    }
    match schema.get("additionalProperties") {
        // In OpenAPI 3.0, the keyword would also apply to properties that match a pattern.
        Some(_) if schema.contains_key("patternProperties") => {}
        Some(Value::Bool(allowed)) => {
            translated.insert("additionalProperties".to_owned(), (*allowed).into());
        }
        Some(of_others) => {
            translated.insert("additionalProperties".to_owned(), translate(of_others));
        }
        None => {}
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(parts)) = schema.get(keyword) {
            // Translated branches may accept too much, so several may match, which `oneOf` forbids.
            let exact = keyword != "oneOf" || parts.iter().all(is_exact);
            alternatives(if exact { keyword } else { "anyOf" }, parts, translated);
        }
    }
    // The negation of a schema that accepts more would accept less.
    if let Some(not) = schema.get("not").filter(|not| is_exact(not)) {
        translated.insert("not".to_owned(), translate(not));
    }
}

/// Returns whether the translation of a schema is known to accept exactly the same values.
fn is_exact(schema: &Value) -> bool {
    let Value::Object(fields) = schema else { return true };
    fields.iter().all(|(keyword, value)| match (keyword.as_str(), value) {
        ("const" | "minimum" | "maximum" | "examples", _) => true,
        ("type", listed) => listed.is_string(),
        ("properties", Value::Object(properties)) => properties.values().all(is_exact),
        ("items", items) => !items.is_array() && is_exact(items),
        ("allOf" | "anyOf", Value::Array(parts)) => parts.iter().all(is_exact),
        (keyword, _) => KEPT.contains(&keyword),
    })
}

/// Translates alternatives; a `null` among them becomes `nullable`.
fn alternatives(keyword: &str, parts: &[Value], translated: &mut Map<String, Value>) {
    let is_null = |part: &&Value| part.get("type").is_some_and(|name| name == "null");
    let mut named: Vec<Value> =
        parts.iter().filter(|part| keyword == "allOf" || !is_null(part)).map(translate).collect();
    if named.len() < parts.len() {
        translated.insert("nullable".to_owned(), true.into());
    }
    if named.is_empty() {
        return;
    }
    // `types` may have added alternatives already; a value must match both sets.
    if let Some(Value::Array(types)) = translated.remove(keyword) {
        let both = vec![json!({keyword: types}), json!({keyword: named})];
        let all = translated.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.extend(both);
        }
        return;
    }
    if keyword == "allOf"
        && let Some(Value::Array(held)) = translated.get_mut("allOf")
    {
        held.append(&mut named);
        return;
    }
    translated.insert(keyword.to_owned(), named.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_translates_schema_keywords_to_3_0() {
        for (schema, expect) in [
            (json!({"type": ["string", "null"]}), json!({"nullable": true, "type": "string"})),
            (json!({"const": 3}), json!({"enum": [3]})),
            (json!({"exclusiveMinimum": 1}), json!({"minimum": 1, "exclusiveMinimum": true})),
            (json!({"minimum": 1, "maximum": 2}), json!({"minimum": 1, "maximum": 2})),
            (json!({"type": "array"}), json!({"type": "array", "items": {}})),
            (
                json!({"type": ["string", "array"]}),
                json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]}),
            ),
            (
                json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}),
                json!({"nullable": true, "anyOf": [{"type": "integer"}]}),
            ),
            (
                json!({"enum": ["a"], "type": ["string", "null"]}),
                json!({"enum": ["a", null], "nullable": true, "type": "string"}),
            ),
            (json!({"$ref": "#/$defs/a b"}), json!({"$ref": "#/components/schemas/a_b"})),
            (json!({"$ref": "#"}), json!({"$ref": "#/components/schemas/Input"})),
            (json!({"examples": [1, 2], "required": []}), json!({"example": 1})),
            (
                json!({"$schema": "x", "if": {}, "prefixItems": [], "properties": {"a": true}}),
                json!({"properties": {"a": {}}}),
            ),
            (json!(false), json!({"not": {}})),
            (json!({"$ref": "#/$defs/a%20b~1c"}), json!({"$ref": "#/components/schemas/a_b_c"})),
            (json!({"prefixItems": [{"type": "string"}], "items": false}), json!({"items": {}})),
            (json!({"patternProperties": {"^x": {}}, "additionalProperties": false}), json!({})),
            (json!({"not": {"required": ["a"]}}), json!({"not": {"required": ["a"]}})),
            (json!({"not": {"contains": {"type": "string"}}}), json!({})),
            (
                json!({"oneOf": [{"const": 1}, {"type": "string"}]}),
                json!({"oneOf": [{"enum": [1]}, {"type": "string"}]}),
            ),
            (
                json!({"oneOf": [{"contains": {}}, {"type": "string"}]}),
                json!({"anyOf": [{}, {"type": "string"}]}),
            ),
        ] {
            assert_eq!(translate(&schema), expect, "{schema}");
        }
    }
}
