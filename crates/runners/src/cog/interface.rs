//! Reads the request schema and the output type of a Cog model from its container's OpenAPI
//! document. This module does no I/O.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::ModelInterface;
use orrery_domain::model::OutputType;
use orrery_schema::Schema;

/// Maximum number of values in a schema after its references are inlined.
const VALUES_MAX: usize = 100_000;
/// Maximum nesting depth of references.
const REFS_DEEP: usize = 16;

/// Returns the interface that an OpenAPI document describes.
///
/// # Errors
/// The fault, as a phrase that follows "its OpenAPI document".
pub(super) fn read(document: &Value) -> Result<ModelInterface, String> {
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    let schemas = schemas.ok_or_else(|| "has no components.schemas".to_owned())?;
    let input = schemas.get("Input").ok_or_else(|| "describes no Input".to_owned())?;
    let mut left = VALUES_MAX;
    let mut input = resolve(input, schemas, 0, &mut left)?;
    sort_properties(&mut input);
    let schema = Schema::compile(&input).map_err(|error| format!("has an Input with {error}"))?;
    let output = match schemas.get("Output") {
        Some(output) => resolve(output, schemas, 0, &mut left)?,
        None => json!({}),
    };
    Ok(ModelInterface { schema: Arc::new(schema), output_type: output_type(&output) })
}

/// Converts to JSON Schema: inlines references and replaces `nullable` with a type.
fn resolve(
    schema: &Value,
    schemas: &Map<String, Value>,
    depth: usize,
    left: &mut usize,
) -> Result<Value, String> {
    let too_large = || format!("has more than {VALUES_MAX} values when references are filled in");
    *left = left.checked_sub(1).ok_or_else(too_large)?;
    if depth > REFS_DEEP {
        return Err("has references that are recursive or nested too deep".to_owned());
    }
    match schema {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let name = reference.strip_prefix("#/components/schemas/");
                let meant = name.and_then(|name| schemas.get(name));
                let meant = meant.ok_or_else(|| format!("has an unknown reference {reference}"))?;
                return resolve(meant, schemas, depth + 1, left);
            }
            let mut resolved = Map::new();
            for (name, value) in fields.iter().filter(|(name, _)| *name != "nullable") {
                resolved.insert(name.clone(), resolve(value, schemas, depth + 1, left)?);
            }
            let is_nullable = fields.get("nullable") == Some(&Value::Bool(true));
            if let Some(kind) =
                resolved.get_mut("type").filter(|kind| is_nullable && kind.is_string())
            {
                *kind = json!([kind.take(), "null"]);
            }
            Ok(Value::Object(resolved))
        }
        Value::Array(items) => {
            items.iter().map(|item| resolve(item, schemas, depth + 1, left)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(schema.clone()),
    }
}

/// Sorts the properties in the order of the predictor's arguments, which Cog specifies as
/// `x-order`.
fn sort_properties(schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    let order = |property: &Value| property.get("x-order").and_then(Value::as_u64);
    let mut sorted: Vec<(String, Value)> = std::mem::take(properties).into_iter().collect();
    sorted.sort_by_key(|(_, property)| order(property).unwrap_or(u64::MAX));
    properties.extend(sorted);
}

fn output_type(output: &Value) -> OutputType {
    let kind = |schema: &Value| schema.get("type").and_then(Value::as_str).map(str::to_owned);
    let is_file = |schema: &Value| {
        kind(schema).as_deref() == Some("string") && schema.get("format") == Some(&json!("uri"))
    };
    match kind(output).as_deref() {
        Some("string") if is_file(output) => OutputType::File,
        Some("string") => OutputType::String,
        Some("array") if output.get("items").is_some_and(is_file) => OutputType::File,
        Some("array") => OutputType::Array,
        Some("number" | "integer") => OutputType::Number,
        Some("boolean") => OutputType::Boolean,
        _ => OutputType::Object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(schemas: Value) -> Value {
        json!({"openapi": "3.0.2", "components": {"schemas": schemas}})
    }

    #[test]
    fn cog_openapi_inlines_references_and_keeps_argument_order() {
        let interface = read(&document(json!({
            "Input": {
                "type": "object", "required": ["text"],
                "properties": {
                    "do": {"allOf": [{"$ref": "#/components/schemas/do"}], "default": "a", "x-order": 1},
                    "seed": {"type": "integer", "nullable": true, "x-order": 2},
                    "text": {"type": "string", "x-order": 0},
                },
            },
            "do": {"type": "string", "enum": ["a", "b"]},
            "Output": {"type": "string"},
        })))
        .unwrap();
        let text = interface.schema.text().clone();
        let names: Vec<_> = text["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["text", "do", "seed"]);
        assert_eq!(text["properties"]["seed"]["type"], json!(["integer", "null"]));
        let filled = interface.schema.check(json!({"text": "x", "seed": null})).unwrap();
        assert_eq!(filled["do"], "a");
        assert!(interface.schema.check(json!({"text": "x", "do": "c"})).is_err());
        assert_eq!(interface.output_type, OutputType::String);
    }

    /// Each of 7 definitions has 100 references to the next: 10^14 values.
    #[test]
    fn cog_openapi_with_exploding_references_is_rejected() {
        let to = |name: String| json!({"$ref": format!("#/components/schemas/{name}")});
        let mut schemas: Map<String, Value> = (0..7)
            .map(|n| (format!("d{n}"), json!(vec![to(format!("d{}", n + 1)); 100])))
            .collect();
        schemas.insert("d7".to_owned(), json!({}));
        schemas.insert("Input".to_owned(), to("d0".to_owned()));
        let error = read(&document(schemas.into())).unwrap_err();
        assert_eq!(error, "has more than 100000 values when references are filled in");
    }

    #[test]
    fn cog_openapi_maps_every_output_type() {
        let uri = json!({"type": "string", "format": "uri"});
        for (output, expected) in [
            (uri.clone(), OutputType::File),
            (json!({"type": "array", "items": uri}), OutputType::File),
            (json!({"type": "array", "items": {"type": "string"}}), OutputType::Array),
            (json!({"type": "integer"}), OutputType::Number),
            (json!({"type": "boolean"}), OutputType::Boolean),
            (json!({"$ref": "#/components/schemas/Thing"}), OutputType::Object),
            (json!({}), OutputType::Object),
        ] {
            let schemas =
                json!({"Input": {"type": "object"}, "Output": output, "Thing": {"type": "object"}});
            assert_eq!(read(&document(schemas)).unwrap().output_type, expected, "{output}");
        }
    }

    #[test]
    fn cog_openapi_without_usable_schema_is_rejected() {
        for (schemas, says) in [
            (json!(null), "has no components.schemas"),
            (json!({}), "describes no Input"),
            (
                json!({"Input": {"$ref": "#/components/schemas/Input"}}),
                "has references that are recursive",
            ),
            (json!({"Input": {"$ref": "http://else/where"}}), "has an unknown reference"),
            (json!({"Input": {"type": 7}}), "has an Input with"),
        ] {
            let error = read(&document(schemas)).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
