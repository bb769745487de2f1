//! Describes JSON Schemas in words, for table cells.

use serde_json::Value;

use super::page::anchor;

const REFERENCE: &str = "#/components/schemas/";

/// Returns the values that a schema permits, such as "string, up to 200 characters".
pub(super) fn of(schema: &Value) -> String {
    let mut text = base(schema);
    let limits = limits(schema);
    if !limits.is_empty() {
        text = format!("{text}, {}", limits.join(", "));
    }
    text
}

fn base(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return format!("[{name}](#{})", anchor(name));
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && schema.get("type").is_none()
    {
        return format.to_owned();
    }
    let names = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            let either = ["anyOf", "oneOf"].iter().find_map(|name| schema[name].as_array());
            let parts: Option<Vec<String>> = either.map(|parts| parts.iter().map(of).collect());
            return parts.map_or_else(|| "any value".to_owned(), |parts| parts.join(" or "));
        }
    };
    let words: Vec<String> = names.iter().map(|name| of_type(name, schema)).collect();
    words.join(" or ")
}

fn of_type(name: &str, schema: &Value) -> String {
    match name {
        "array" if schema["items"].is_object() => format!("array of {}", base(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object with values of {}", base(&schema["additionalProperties"]))
        }
        "string" => match schema["format"].as_str() {
            Some("date-time") => "time".to_owned(),
            Some("uuid") => "UUID".to_owned(),
            _ => "string".to_owned(),
        },
        _ => name.to_owned(),
    }
}

fn limits(schema: &Value) -> Vec<String> {
    let mut limits = Vec::new();
    for (low, high, unit) in [
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " fields"),
        ("minimum", "maximum", ""),
    ] {
        // Bounds that follow from the integer's width are left out.
        let number = |key: &str| schema[key].as_f64().filter(|value| value.abs() < 4e18);
        let low = number(low).filter(|low| *low != 0.0 || unit.is_empty());
        limits.extend(match (low, number(high)) {
            (Some(low), Some(high)) if (low - high).abs() < f64::EPSILON => {
                Some(format!("{low}{unit}"))
            }
            (Some(low), Some(high)) => Some(format!("{low} to {high}{unit}")),
            (Some(1.0), None) if !unit.is_empty() => Some("not empty".to_owned()),
            (Some(low), None) => Some(format!("at least {low}{unit}")),
            (None, Some(high)) => Some(format!("up to {high}{unit}")),
            (None, None) => None,
        });
    }
    if let Some(above) = schema["exclusiveMinimum"].as_f64() {
        limits.push(format!("above {above}"));
    }
    match schema.get("default") {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(default) => limits.push(format!("default `{default}`")),
    }
    if schema["deprecated"] == true {
        limits.push("deprecated".to_owned());
    }
    limits
}

/// Returns the name of the type that a schema references.
pub(super) fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(REFERENCE)
}

/// A field of an object.
#[derive(Debug)]
pub(super) struct Field<'a> {
    /// `a.b` for the field `b` of the object `a`, `a[].b` if `a` is an array of objects.
    pub path: String,
    pub is_required: bool,
    pub schema: &'a Value,
}

impl Field<'_> {
    pub(super) fn description(&self) -> &str {
        self.schema["description"].as_str().unwrap_or_default()
    }
}

/// Returns the fields of an object, including the fields of nested objects.
pub(super) fn fields(schema: &Value) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    collect(schema, "", &mut found);
    found
}

fn collect<'a>(schema: &'a Value, prefix: &str, found: &mut Vec<Field<'a>>) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let is_required = required.contains(&name.as_str());
        found.push(Field { path: path.clone(), is_required, schema: field });
        collect(field, &format!("{path}."), found);
        collect(&field["items"], &format!("{path}[]."), found);
    }
}

#[test]
fn types_are_words() {
    use serde_json::json;
    for (schema, expected) in [
        (json!({"type": "string", "minLength": 1, "maxLength": 9}), "string, 1 to 9 characters"),
        (json!({"type": ["integer", "null"], "minimum": 0}), "integer or null, at least 0"),
        (json!({"type": "string", "minLength": 1}), "string, not empty"),
        (json!({"$ref": "#/components/schemas/A"}), "[A](#a)"),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 3}),
            "array of string, up to 3 items",
        ),
        (json!({"enum": ["a", 1]}), "`\"a\"`, `1`"),
        (json!({"anyOf": [{"type": "null"}, {"const": true}]}), "null or `true`"),
        (json!({"type": "string", "format": "date-time"}), "time"),
        (json!({}), "any value"),
    ] {
        assert_eq!(of(&schema), expected, "{schema}");
    }
}
