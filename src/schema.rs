//! JSON Schemas: compiled once, then asked about each input.
//!
//! Nothing is ever fetched: a `$ref` that leaves the document is refused when the schema is
//! compiled. Patterns run on a linear-time engine, and size and depth are bounded, so that a
//! hostile schema costs no more than its length.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Validator};
use serde::Serialize;
use serde_json::{Map, Value};

/// The largest schema, in bytes of JSON.
pub const BYTES_MAX: usize = 1024 * 1024;
/// The deepest nesting of a schema.
pub const DEPTH_MAX: usize = 64;
/// Violations that one answer tells of.
const VIOLATIONS_MAX: usize = 20;
/// The memory that one compiled pattern may take.
const PATTERN_BYTES: usize = 256 * 1024;
/// Patterns that one schema may have.
const PATTERNS_MAX: usize = 100;
/// Local references that filling in a default follows, one behind the other.
const REF_DEPTH: usize = 16;

/// A schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a schema may have {BYTES_MAX} bytes, this one has {0}")]
    TooLarge(usize),
    #[error("a schema may nest {DEPTH_MAX} deep")]
    TooDeep,
    #[error("a schema may have {PATTERNS_MAX} patterns, this one has {0}")]
    TooManyPatterns(usize),
    #[error("\"$ref\": \"{0}\" leaves the document: only references within it (#/…) are followed")]
    RemoteRef(String),
    #[error("no valid JSON Schema: {0}")]
    Invalid(String),
}

/// One way in which a value breaks its schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Where, as a JSON pointer; empty: the value itself.
    pub path: String,
    /// What, without repeating the value.
    pub message: String,
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    text: Value,
    validator: Validator,
}

impl PartialEq for Schema {
    /// Equal as they were written.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// [`Error`] in a sentence for whoever wrote the schema.
    pub fn compile(schema: &Value) -> Result<Self, Error> {
        let bytes = schema.to_string().len();
        if bytes > BYTES_MAX {
            return Err(Error::TooLarge(bytes));
        }
        check_tree(schema, 0)?;
        let patterns = patterns(schema);
        if patterns > PATTERNS_MAX {
            return Err(Error::TooManyPatterns(patterns));
        }
        let patterns =
            PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(patterns)
            .build(schema)
            .map_err(|error| Error::Invalid(error.masked().to_string()))?;
        Ok(Self { text: schema.clone(), validator })
    }

    /// The schema as it was written.
    #[must_use]
    pub const fn text(&self) -> &Value {
        &self.text
    }

    /// The value with the schema's defaults filled in, if it fits.
    ///
    /// # Errors
    /// Every violation, up to 20, in the order of the schema; never none.
    pub fn check(&self, mut value: Value) -> Result<Value, Vec<Violation>> {
        fill_defaults(&self.text, &self.text, &mut value, 0);
        let errors = self.validator.iter_errors(&value).take(VIOLATIONS_MAX);
        let violations: Vec<Violation> = errors.map(|error| violation(&error)).collect();
        if violations.is_empty() { Ok(value) } else { Err(violations) }
    }
}

fn violation(error: &jsonschema::ValidationError<'_>) -> Violation {
    let path = error.instance_path().to_string();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let name = property.as_str().unwrap_or_default();
        let escaped = name.replace('~', "~0").replace('/', "~1");
        return Violation {
            path: format!("{path}/{escaped}"),
            message: format!("missing required field '{name}'"),
        };
    }
    let what = error.masked().to_string();
    let message = match path.strip_prefix('/') {
        Some(field) => format!("'{}' is wrong: {what}", field.replace('/', ".")),
        None => what,
    };
    Violation { path, message }
}

/// Refuses what is too deep, and references that leave the document.
fn check_tree(schema: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::TooDeep);
    }
    match schema {
        Value::Object(fields) => {
            fields.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target))
                    if !target.starts_with('#') =>
                {
                    Err(Error::RemoteRef(target.clone()))
                }
                _ => check_tree(value, depth + 1),
            })
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_tree(item, depth + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// How many patterns a schema may hold, wherever they stand.
fn patterns(schema: &Value) -> usize {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(inner)) => inner.len() + patterns(value),
                _ => patterns(value),
            })
            .sum(),
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Puts in what the schema gives as `default` for absent properties, inside nested objects and
/// arrays too.
fn fill_defaults(root: &Value, schema: &Value, value: &mut Value, refs: usize) {
    let Value::Object(schema) = schema else { return };
    if let Some(target) = schema.get("$ref").and_then(Value::as_str)
        && refs < REF_DEPTH
        && let Some(target) = target.strip_prefix('#').and_then(|path| root.pointer(path))
    {
        fill_defaults(root, target, value, refs + 1);
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        if refs < REF_DEPTH {
            fill_defaults(root, part, value, refs + 1);
        }
    }
    match value {
        Value::Object(fields) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                fill_properties(root, properties, fields, refs);
            }
        }
        Value::Array(items) => {
            if let Some(of_items) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_defaults(root, of_items, item, refs));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fill_properties(
    root: &Value,
    properties: &Map<String, Value>,
    fields: &mut Map<String, Value>,
    refs: usize,
) {
    for (name, property) in properties {
        match fields.get_mut(name) {
            Some(present) => fill_defaults(root, property, present, refs),
            None => {
                if let Some(default) = property.get("default") {
                    fields.insert(name.clone(), default.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, value: Value) -> String {
        match Schema::compile(schema).map(|schema| schema.check(value)) {
            Err(error) => format!("schema: {error}"),
            Ok(Ok(value)) => value.to_string(),
            Ok(Err(violations)) => violations
                .into_iter()
                .map(|violation| format!("{}: {}", violation.path, violation.message))
                .collect::<Vec<_>>()
                .join("; "),
        }
    }

    #[test]
    fn values_are_filled_in_or_refused_in_words() {
        let schema = json!({
            "type": "object",
            "required": ["prompt"],
            "properties": {
                "prompt": {"type": "string", "maxLength": 5},
                "size": {"type": "integer", "default": 3, "minimum": 1},
                "nested": {"$ref": "#/$defs/nested"},
                "list": {"type": "array", "items": {"properties": {"b": {"default": true}}}},
            },
            "$defs": {"nested": {"type": "object", "properties": {"a": {"default": "x"}}}},
        });
        for (value, expect) in [
            (json!({"prompt": "hi"}), r#"{"prompt":"hi","size":3}"#),
            (json!({"prompt": "", "size": 7}), r#"{"prompt":"","size":7}"#),
            (
                json!({"prompt": "", "nested": {}, "list": [{}]}),
                r#"{"prompt":"","nested":{"a":"x"},"list":[{"b":true}],"size":3}"#,
            ),
            (json!({}), "/prompt: missing required field 'prompt'"),
            (json!({"prompt": 7}), r#"/prompt: 'prompt' is wrong: value is not of type "string""#),
            (
                json!({"prompt": "secret", "size": 0}),
                "/prompt: 'prompt' is wrong: value is longer than 5 characters; \
                 /size: 'size' is wrong: value is less than the minimum of 1",
            ),
            (json!([]), r#": value is not of type "object""#),
        ] {
            assert_eq!(check(&schema, value), expect);
        }
    }

    #[test]
    fn nothing_is_fetched_and_hostile_schemas_are_bounded() {
        let deep = (0..100).fold(json!({}), |inner, _| json!({"not": inner}));
        for (schema, expect) in [
            (json!({"$ref": "http://127.0.0.1:1/schema"}), "leaves the document"),
            (json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}), "leaves the document"),
            (json!({"allOf": [{"$dynamicRef": "other.json"}]}), "leaves the document"),
            (json!({"$schema": "http://127.0.0.1:1/meta"}), "schema: "),
            (json!({"$ref": "#/nowhere"}), "schema: no valid JSON Schema"),
            (json!({"type": "strin"}), "schema: no valid JSON Schema"),
            (json!({"pattern": "("}), "schema: no valid JSON Schema"),
            (json!({"pattern": "(?=look)"}), "schema: no valid JSON Schema"),
            (json!({"pattern": "((a{999}){999}){999}"}), "schema: no valid JSON Schema"),
            (deep, "nest"),
            (json!({"allOf": vec![json!({"pattern": "a"}); 101]}), "100 patterns"),
            (json!({"description": "x".repeat(BYTES_MAX)}), "bytes"),
        ] {
            let said = check(&schema, json!("a"));
            assert!(said.starts_with("schema: ") && said.contains(expect), "{said}");
        }
        let endless = json!({"$ref": "#", "default": 1});
        assert!(Schema::compile(&endless).is_ok_and(|schema| schema.check(json!(1)).is_ok()));
        let slow = Schema::compile(&json!({"pattern": "^(a+)+$"})).unwrap();
        assert!(slow.check(json!(format!("{}!", "a".repeat(50_000)))).is_err());
    }

    #[test]
    fn violations_are_counted_out() {
        let schema = json!({"items": {"type": "string"}});
        let many = Schema::compile(&schema).unwrap().check(json!(vec![0; 1000])).unwrap_err();
        assert_eq!(many.len(), VIOLATIONS_MAX);
    }
}
