//! `json-query`: asks a JSON document by a JMESPath expression.

use serde_json::{Value, json};

use super::{Builtin, Work, refuse, text};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::model::OutputType;

/// The longest expression, in characters, and the most brackets and prefixes in it: parsing and
/// searching recurse with both.
const LONGEST: u64 = 500;
const NESTING_MAX: usize = 40;

pub(super) const MODEL: Builtin = Builtin {
    slug: "json-query",
    title: "JSON query",
    description: "Picks and reshapes parts of a JSON document by a JMESPath expression. The output \
                  holds what was found, of whatever type, as `result`.",
    output_type: OutputType::Object,
    schema,
    work: Work::Pure(query),
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["expression", "document"],
        "additionalProperties": false,
        "properties": {
            "expression": {
                "type": "string",
                "title": "Expression",
                "description": "JMESPath, such as: people[?age > `30`].name",
                "minLength": 1,
                "maxLength": LONGEST,
            },
            "document": {"title": "Document", "description": "Any JSON value."},
        },
    })
}

fn query(input: &Value) -> Result<Value, Failure> {
    let fault = |error: jmespath::JmespathError| refuse(format!("the query failed: {error}"));
    let expression = text(input, "expression");
    if expression.matches(['[', '(', '{', '!', '&', '@']).count() > NESTING_MAX {
        return Err(refuse(format!("the query nests more than {NESTING_MAX} times")));
    }
    let expression = jmespath::compile(expression).map_err(fault)?;
    let document = input.get("document").unwrap_or(&Value::Null);
    let found = expression.search(document).map_err(fault)?;
    let result = serde_json::to_value(&*found).map_err(|error| {
        Failure::new(ErrorClass::InternalError, format!("the result has no JSON form: {error}"))
    })?;
    Ok(json!({"result": result}))
}
