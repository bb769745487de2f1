//! Errors in a schema: their position, the violated rule, and the correction.

use serde_json::{Map, Value};

use super::{Violation, brief};

const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];
/// Type names from programming languages, with their JSON Schema equivalents.
const OTHER_TYPES: [(&str, &str); 11] = [
    ("float", "number"),
    ("double", "number"),
    ("decimal", "number"),
    ("int", "integer"),
    ("long", "integer"),
    ("bool", "boolean"),
    ("str", "string"),
    ("text", "string"),
    ("dict", "object"),
    ("map", "object"),
    ("list", "array"),
];
/// Maximum length in characters of a value quoted in an error.
const QUOTED_CHARS: usize = 80;

/// Describes the error of a schema that could not be compiled.
pub(super) fn of(schema: &Value, error: &jsonschema::ValidationError<'_>) -> Violation {
    let mut path = error.instance_path().to_string();
    if let Some((names, _name)) = path.rsplit_once("/patternProperties/")
        && error.masked().to_string().contains("regex")
    {
        // The name is invalid, but a pointer to it would point to its schema, so point to the
        // keyword.
        path = format!("{names}/patternProperties");
    }
    let value = schema.pointer(&path).unwrap_or(&Value::Null);
    let message = match keyword(&path) {
        "pattern" => pattern(value),
        "patternProperties" if value.is_object() => {
            let mut names = value.as_object().into_iter().flat_map(Map::keys);
            let invalid = names.find(|name| regex::Regex::new(name).is_err());
            invalid.map_or_else(|| library(schema, error), |name| pattern(&name.as_str().into()))
        }
        "type" => unknown_type(value),
        "required" => "`required` must be a list of property names, next to `properties`, \
                       such as [\"text\"]"
            .to_owned(),
        keyword @ ("properties" | "$defs" | "definitions" | "patternProperties") => {
            format!("`{keyword}` must be an object of schemas by name")
        }
        "enum" => "`enum` must be a list of the allowed values".to_owned(),
        _ => library(schema, error),
    };
    Violation { path, message: brief(message) }
}

/// Returns the last keyword of a pointer into a schema. Indexes and property names are not
/// keywords, even if a property name looks like one.
fn keyword(path: &str) -> &str {
    let mut last = "";
    let mut is_name = false;
    for part in path.split('/').skip(1) {
        let is_item = part.bytes().all(|byte| byte.is_ascii_digit());
        match (is_name, is_item) {
            (true, _) => last = if last == "patternProperties" { last } else { "" },
            (false, true) => {}
            (false, false) => last = part,
        }
        is_name = !is_name
            && matches!(last, "properties" | "$defs" | "definitions" | "patternProperties");
    }
    last
}

/// Returns the position of the first reference with this target.
pub(super) fn place_of(schema: &Value, target: &str, place: &str) -> Option<String> {
    let inside = |name: &str| format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
    match schema {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let is_it = matches!(name.as_str(), "$ref" | "$dynamicRef") && value == target;
            if is_it { Some(inside(name)) } else { place_of(value, target, &inside(name)) }
        }),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| place_of(item, target, &inside(&index.to_string())))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn library(schema: &Value, error: &jsonschema::ValidationError<'_>) -> String {
    let message = error.masked().to_string();
    let named = schema.get("$schema").and_then(Value::as_str);
    match named.filter(|_| message.contains("meta-schema")) {
        Some(named) => format!(
            "`$schema` is {:?}, which is not known: leave it out, or write \
             \"https://json-schema.org/draft/2020-12/schema\"",
            quoted(named)
        ),
        None => message,
    }
}

fn pattern(value: &Value) -> String {
    let Some(pattern) = value.as_str() else {
        return "`pattern` must be a string".to_owned();
    };
    let reason = regex::Regex::new(pattern).err().map(|error| error.to_string());
    let reason = reason.as_deref().and_then(|text| text.lines().next_back());
    let reason = reason.and_then(|line| line.strip_prefix("error: "));
    let reason = reason.unwrap_or("look-around and references to groups are not supported");
    format!("{:?} is not a supported regular expression: {reason}", quoted(pattern))
}

fn unknown_type(value: &Value) -> String {
    let known = TYPES.join(", ");
    let Some(name) = value.as_str() else {
        return format!("`type` must be one of {known}, or a list of them, each once");
    };
    let lower = name.to_ascii_lowercase();
    let other = OTHER_TYPES.iter().find(|(other, _)| *other == lower).map(|(_, known)| *known);
    let meant = other.or_else(|| TYPES.into_iter().find(|known| *known == lower));
    let hint = meant.map(|meant| format!(", did you mean {meant}?")).unwrap_or_default();
    format!("`type` {:?} is not one of {known}{hint}", quoted(name))
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Schema;

    #[test]
    fn schema_errors_name_position_and_rule() {
        let place = "/properties/x";
        for (property, inside, said) in [
            (json!({"pattern": "(?=a)"}), "/pattern", "look-around, including look-ahead"),
            (json!({"pattern": "(a)\\1"}), "/pattern", "backreferences are not supported"),
            (json!({"type": "float"}), "/type", "did you mean number?"),
            (json!({"type": "String"}), "/type", "did you mean string?"),
            (json!({"type": "objekt"}), "/type", "is not one of string, number, integer"),
            (json!({"type": "string", "required": true}), "/required", "next to `properties`"),
            (json!({"enum": "a"}), "/enum", "a list of the allowed values"),
            (json!({"properties": []}), "/properties", "an object of schemas"),
            (json!({"minLength": "5"}), "/minLength", "is not of type \"integer\""),
            (json!({"$ref": "#/nowhere"}), "/$ref", "points to nothing in the schema"),
            (json!({"anyOf": [{}, {"$ref": "#/$defs/a"}]}), "/anyOf/1/$ref", "points to nothing"),
            (
                json!({"patternProperties": {"(?<=a)": {}}}),
                "/patternProperties",
                "\"(?<=a)\" is not a supported regular expression: look-around",
            ),
            (json!({"$ref": "#missing"}), "/$ref", "points to nothing in the schema"),
            (json!({"properties": {"pattern": 5}}), "/properties/pattern", "is not of type"),
        ] {
            let schema = json!({"type": "object", "properties": {"a": {}, "x": property}});
            let error = Schema::compile(&schema).unwrap_err();
            assert_eq!(error.path(), format!("{place}{inside}"), "{error}");
            let shown = format!("not a valid JSON Schema: {place}{inside}: ");
            let error = error.to_string();
            assert!(error.starts_with(&shown) && error.contains(said), "{error}");
        }
        let schema = json!({"$schema": "http://x.test/mine", "type": "object"});
        let error = Schema::compile(&schema).unwrap_err().to_string();
        assert!(
            error.contains("\"http://x.test/mine\", which is not known: leave it out"),
            "{error}"
        );
    }
}
