//! Finds unknown keywords. JSON Schema ignores unknown keywords, including misspelled ones.

use serde_json::{Map, Value};

/// The keywords of draft 2020-12, of earlier drafts, and of the schemas of OpenAPI.
#[rustfmt::skip]
pub const KEYWORDS: [&str; 68] = [
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor",
    "$recursiveRef", "$ref", "$schema", "$vocabulary", "additionalItems", "additionalProperties",
    "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType", "contentSchema",
    "default", "definitions", "dependencies", "dependentRequired", "dependentSchemas",
    "deprecated", "description", "discriminator", "else", "enum", "example", "examples",
    "exclusiveMaximum", "exclusiveMinimum", "externalDocs", "format", "id", "if", "items",
    "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems",
    "minLength", "minProperties", "minimum", "multipleOf", "not", "nullable", "oneOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "readOnly", "required",
    "then", "title", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    "writeOnly", "xml",
];
/// Keywords whose value is a schema or a list of schemas.
const OF_SCHEMAS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an object of schemas by name.
const OF_NAMED_SCHEMAS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// An unknown keyword.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKeyword {
    /// The subschema as a JSON pointer; empty for the schema itself.
    pub path: String,
    pub keyword: String,
}

/// Returns the unknown keywords of a compiled schema, except those that begin with `x-`.
#[must_use]
pub fn unknown_keywords(schema: &Value) -> Vec<UnknownKeyword> {
    let mut found = Vec::new();
    visit(schema, "", &mut found);
    found
}

fn visit(schema: &Value, path: &str, found: &mut Vec<UnknownKeyword>) {
    for (keyword, value) in fields(schema) {
        let inside = format!("{path}/{keyword}");
        if OF_NAMED_SCHEMAS.contains(&keyword.as_str()) {
            for (name, schema) in fields(value) {
                let name = name.replace('~', "~0").replace('/', "~1");
                visit(schema, &format!("{inside}/{name}"), found);
            }
        } else if OF_SCHEMAS.contains(&keyword.as_str()) {
            visit(value, &inside, found);
            for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                visit(item, &format!("{inside}/{at}"), found);
            }
        } else if !KEYWORDS.contains(&keyword.as_str()) && !keyword.starts_with("x-") {
            found.push(UnknownKeyword { path: path.to_owned(), keyword: keyword.clone() });
        }
    }
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
