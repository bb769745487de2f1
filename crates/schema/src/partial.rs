//! Validation of partially known values, such as the parameters of a step that has not run yet.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use super::{QUICK_STEPS, Schema, VIOLATIONS_MAX, Violation, defaults, violation, work};

/// Maximum number of violations examined, including violations by unknown parts.
const CANDIDATES_MAX: usize = 1000;

/// How much of a part of the value is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The whole value is known.
    Whole,
    /// The value is an array or object with unknown parts; all names, or the number of items, are
    /// known.
    Parts,
    /// The value is a string.
    Text,
    /// The value can be anything.
    Nothing,
}

impl Schema {
    /// Returns up to 20 violations that are certain regardless of the unknown parts. In `value`,
    /// unknown parts may have any value, and unknown strings any text; `known_at` reports how much
    /// is known of the part at a JSON pointer. Takes up to a few milliseconds; a value that would
    /// take longer is not checked.
    #[must_use]
    pub fn certain_violations(
        &self,
        mut value: Value,
        known_at: &dyn Fn(&str) -> Known,
    ) -> Vec<Violation> {
        if defaults::fill(&self.nodes, &mut value, QUICK_STEPS).is_err() {
            return Vec::new();
        }
        match work::measure(self, &value, QUICK_STEPS) {
            Ok(work) if work.telling <= QUICK_STEPS => {}
            Ok(_) | Err(_) => return Vec::new(),
        }
        let errors = self.validator.iter_errors(&value).take(CANDIDATES_MAX);
        let certain = errors.filter(|error| is_certain(error, known_at)).take(VIOLATIONS_MAX);
        certain.map(|error| violation(&error)).collect()
    }
}

fn is_certain(error: &ValidationError<'_>, known_at: &dyn Fn(&str) -> Known) -> bool {
    if known_at("") == Known::Whole {
        return true;
    }
    // Whether the subschemas of these keywords apply may depend on an unknown part.
    let mut keywords = error.evaluation_path().as_str().split('/');
    if keywords.any(|keyword| matches!(keyword, "then" | "else")) {
        return false;
    }
    let kind = error.kind();
    let is_forbidden = matches!(kind, ValidationErrorKind::FalseSchema);
    let is_of_type = matches!(kind, ValidationErrorKind::Type { .. });
    let is_of_names_or_count = matches!(
        kind,
        ValidationErrorKind::Required { .. }
            | ValidationErrorKind::AdditionalProperties { .. }
            | ValidationErrorKind::PropertyNames { .. }
            | ValidationErrorKind::MinProperties { .. }
            | ValidationErrorKind::MaxProperties { .. }
            | ValidationErrorKind::AdditionalItems { .. }
            | ValidationErrorKind::MinItems { .. }
            | ValidationErrorKind::MaxItems { .. }
    );
    match known_at(error.instance_path().as_str()) {
        Known::Whole => true,
        Known::Parts => is_forbidden || is_of_type || is_of_names_or_count,
        Known::Text => is_forbidden || is_of_type,
        Known::Nothing => is_forbidden,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the paths of the certain violations of a value whose field `any` is unknown and
    /// whose field `text` is an unknown string.
    fn paths(schema: &Value, value: &Value) -> Vec<String> {
        let known_at = |pointer: &str| match pointer {
            "" => Known::Parts,
            "/any" => Known::Nothing,
            "/text" => Known::Text,
            _ => Known::Whole,
        };
        let violations =
            Schema::compile(schema).unwrap().certain_violations(value.clone(), &known_at);
        violations.into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn schema_certain_violations_are_of_known_parts() {
        let value = json!({"any": null, "text": "", "n": 1});
        for (schema, expect) in [
            (json!({"required": ["any", "n"]}), vec![]),
            (json!({"required": ["x", "y"]}), vec!["/x", "/y"]),
            (json!({"required": ["x"], "properties": {"x": {"default": 1}}}), vec![]),
            (json!({"properties": {"n": {"type": "string"}}}), vec!["/n"]),
            (json!({"properties": {"n": {"minimum": 2}}}), vec!["/n"]),
            (json!({"properties": {"any": {"type": "string"}}}), vec![]),
            (json!({"properties": {"any": {"enum": [1, 2]}}}), vec![]),
            (json!({"properties": {"text": {"type": "integer"}}}), vec!["/text"]),
            (json!({"properties": {"text": {"type": ["integer", "string"]}}}), vec![]),
            (
                json!({"properties": {"text": {"minLength": 3, "pattern": "^x", "enum": ["y"]}}}),
                vec![],
            ),
            (json!({"properties": {"any": false}}), vec!["/any"]),
            (
                json!({"additionalProperties": false, "properties": {"any": {}, "text": {}}}),
                vec!["/n"],
            ),
            (json!({"maxProperties": 2}), vec![""]),
            (json!({"type": "array"}), vec![""]),
            (
                json!({"anyOf": [{"required": ["x"]}, {"properties": {"any": {"const": 1}}}]}),
                vec![],
            ),
            (json!({"const": {}}), vec![]),
            (json!({"not": {"properties": {"any": {"type": "null"}}}}), vec![]),
            (
                json!({"if": {"properties": {"any": {"type": "null"}}}, "then": {"required": ["x"]}}),
                vec![],
            ),
            (json!({"dependentRequired": {"any": ["x"]}}), vec!["/x"]),
            (
                json!({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"required": ["x"]}}}),
                vec!["/x"],
            ),
        ] {
            assert_eq!(paths(&schema, &value), expect, "{schema}");
        }
    }
}
