//! `json-query`: queries a JSON document with a JMESPath expression.
//!
//! An expression of a few hundred characters can double its document forty times over. The worker
//! process bounds the memory and time that this takes; a counter bounds the result before it is
//! serialized.

use std::io;

use jmespath::ErrorReason;
use serde_json::{Value, json};

use super::weight::MIB;
use super::{Builtin, Work, json_numbers, refuse, text};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::OutputType;

/// Maximum length of an expression, in characters.
const LENGTH_MAX: u64 = 500;
/// Maximum size of a document, in bytes of JSON.
const DOCUMENT_MAX: usize = 2 * 1024 * 1024;
/// Peak memory of a search per byte of the document, measured with documents of many small values.
const BYTES_EACH: u64 = 150;
/// Bytes of memory for intermediate values of the expression.
const WORKING_MEMORY: u64 = 32 * MIB;
/// Maximum size of a result, in bytes of JSON.
const RESULT_MAX: usize = 32 * 1024 * 1024;
/// Maximum nesting depth of a result.
const DEPTH_MAX: usize = 100;

pub(super) const MODEL: Builtin = Builtin {
    slug: "json-query",
    title: "JSON query",
    description: "Picks and reshapes parts of a JSON document by a JMESPath expression. The output holds the result, of any type, as `result`.",
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
                "description": "JMESPath, such as: people[?age > `30`].name. Integers are compared and added exactly.",
                "minLength": 1,
                "maxLength": LENGTH_MAX,
            },
            "document": {"title": "Document", "description": "Any JSON value."},
        },
    })
}

fn weigh(input: &Value) -> u64 {
    let document = input.get("document").map_or(0, |document| document.to_string().len());
    let searched = (document.min(DOCUMENT_MAX) as u64).saturating_mul(BYTES_EACH);
    searched.saturating_add(WORKING_MEMORY)
}

fn query(input: &Value) -> Result<Value, Failure> {
    let runtime = json_numbers::runtime();
    let expression = json_numbers::compile(text(input, "expression"), &runtime).map_err(fault)?;
    let document = input.get("document").unwrap_or(&Value::Null);
    if document.to_string().len() > DOCUMENT_MAX {
        return Err(refuse(format!("the document is larger than {DOCUMENT_MAX} bytes")));
    }
    let found = expression.search(document).map_err(fault)?;
    // Parts that the expression repeats are shared in memory, but serialized each time they occur.
    let mut room = Room(RESULT_MAX);
    if serde_json::to_writer(&mut room, &*found).is_err() && room.0 == 0 {
        return Err(refuse(format!("the result is larger than {RESULT_MAX} bytes")));
    }
    let result = serde_json::to_value(&*found).map_err(|error| {
        Failure::new(
            ErrorClass::InternalError,
            format!("the result cannot be written as JSON: {error}"),
        )
    })?;
    if depth(&result) > DEPTH_MAX {
        return Err(refuse(format!("the result nests deeper than {DEPTH_MAX} levels")));
    }
    Ok(json!({"result": result}))
}

fn fault(error: jmespath::JmespathError) -> Failure {
    let what = match error.reason {
        ErrorReason::Parse(what) => what,
        ErrorReason::Runtime(what) => what.to_string(),
    };
    refuse(format!("the query failed at character {}: {}", error.offset + 1, what.trim_end()))
}

/// A writer that counts down a byte budget.
struct Room(usize);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => {
                self.0 = 0;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    deepest.unwrap_or(0) + 1
}
