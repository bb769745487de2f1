//! `json-query`: asks a JSON document by a JMESPath expression.

use serde_json::{Value, json};

use super::{Builtin, Work, query_bounds, refuse, text};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::model::OutputType;

/// The longest expression, in characters, and the most brackets and prefixes in it: parsing and
/// searching recurse with both.
const LONGEST: u64 = 500;
const NESTING_MAX: usize = 40;
/// The largest document, in bytes of JSON.
const DOCUMENT_MAX: usize = 2 * 1024 * 1024;
/// Bytes of memory that searching takes for each byte of the document.
const BYTES_EACH: u64 = 100;
/// The largest result that a query may be able to make, in bytes of JSON.
const RESULT_MAX: f64 = 32.0 * 1024.0 * 1024.0;
/// What the result takes as values, at most.
const RESULT_WEIGHT: u64 = 64 * 1024 * 1024;
/// The most that a query may be able to touch, in values and bytes: about a second.
const EFFORT_MAX: f64 = 2e9;

pub(super) const MODEL: Builtin = Builtin {
    slug: "json-query",
    title: "JSON query",
    description: "Picks and reshapes parts of a JSON document by a JMESPath expression. The output \
                  holds what was found, of whatever type, as `result`.",
    output_type: OutputType::Object,
    schema,
    work: Work::Pure { weigh, run: query },
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

/// What searching the document takes, and the largest result: what is larger is refused before it is
/// made.
fn weigh(input: &Value) -> u64 {
    let document = input.get("document").map_or(0, |document| document.to_string().len());
    let searched = (document.min(DOCUMENT_MAX) as u64).saturating_mul(BYTES_EACH);
    searched.saturating_add(RESULT_WEIGHT)
}

fn query(input: &Value) -> Result<Value, Failure> {
    let fault = |error: jmespath::JmespathError| refuse(format!("the query failed: {error}"));
    let expression = text(input, "expression");
    if expression.matches(['[', '(', '{', '!', '&', '@']).count() > NESTING_MAX {
        return Err(refuse(format!("the query nests more than {NESTING_MAX} times")));
    }
    let expression = jmespath::compile(expression).map_err(fault)?;
    let document = input.get("document").unwrap_or(&Value::Null);
    let bytes = document.to_string().len();
    if bytes > DOCUMENT_MAX {
        return Err(refuse(format!("the document is larger than {DOCUMENT_MAX} bytes")));
    }
    #[expect(clippy::cast_precision_loss, reason = "documents stay far below 2^53 bytes")]
    let bounds = query_bounds::of(expression.as_ast(), bytes as f64);
    if bounds.is_none_or(|(size, effort)| size > RESULT_MAX || effort > EFFORT_MAX) {
        return Err(refuse("the query could take too much work on a document of this size"));
    }
    let found = expression.search(document).map_err(fault)?;
    let result = serde_json::to_value(&*found).map_err(|error| {
        Failure::new(ErrorClass::InternalError, format!("the result has no JSON form: {error}"))
    })?;
    Ok(json!({"result": result}))
}
