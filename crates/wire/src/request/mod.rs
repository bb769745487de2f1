//! Reads requests. The OpenAPI documents publish the JSON Schema of a request's type, and [`read`]
//! checks each body against the same schema before it converts the body. So a limit is stated once,
//! at its field, and a body is accepted exactly if the published schema allows it.
//!
//! An absent field and a null field are equivalent, and a whole number may be written as `2.0`.
//! Only the schema keywords that the types in this crate use are supported.

mod check;
mod mismatch;

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::mismatch::Place;
pub use self::mismatch::{Mismatch, MismatchKind};

/// The schema keyword that marks a field whose value another part of the service checks.
pub const CHECKED_ELSEWHERE: &str = "x-checked-by";

/// The keyword of a field with one possible value: the sentence about any other.
pub const OTHERWISE: &str = "x-otherwise";

/// The schemas of requests, by their types.
static SCHEMAS: LazyLock<Mutex<HashMap<TypeId, Arc<Schema>>>> = LazyLock::new(Mutex::default);

/// Checks a body against the schema of its type, and converts it.
///
/// # Errors
/// [`Mismatch`]: the first field that does not match, in the order of the type's fields.
pub fn read<T: DeserializeOwned + JsonSchema + 'static>(mut body: Value) -> Result<T, Mismatch> {
    check::check(schema_of::<T>().as_value(), &mut body, &Place::Root)?;
    serde_json::from_value(body).map_err(|error| Mismatch::of_conversion(&error))
}

/// Returns the names of the fields in the schema of a request's type.
#[must_use]
pub fn field_names<T: JsonSchema + 'static>() -> Vec<String> {
    let schema = schema_of::<T>();
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// Returns a function that checks whether the type of a request has a field.
pub fn has_field<T: JsonSchema + 'static>() -> impl Fn(&str) -> bool {
    let schema = schema_of::<T>();
    move |name| {
        let properties = schema.get("properties").and_then(Value::as_object);
        properties.is_some_and(|properties| properties.contains_key(name))
    }
}

/// Returns the schema of a request's type, without references.
fn schema_of<T: JsonSchema + 'static>() -> Arc<Schema> {
    let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
    let made = schemas.entry(TypeId::of::<T>()).or_insert_with(|| {
        let mut settings = settings();
        settings.inline_subschemas = true;
        Arc::new(settings.into_generator().into_root_schema_for::<T>())
    });
    Arc::clone(made)
}

/// Returns the settings with which the schemas of requests are generated.
#[must_use]
pub fn settings() -> SchemaSettings {
    let mut settings = SchemaSettings::draft2020_12().for_deserialize();
    settings.meta_schema = None;
    settings.with_transform(RecursiveTransform(Range))
}

/// Adds the range of an integer type to its schema.
#[derive(Debug, Clone)]
struct Range;

impl Transform for Range {
    fn transform(&mut self, schema: &mut Schema) {
        let maximum = match schema.get("format").and_then(Value::as_str) {
            Some("uint32") => u64::from(u32::MAX),
            Some("uint64" | "uint") => u64::MAX,
            _ => return,
        };
        if schema.get("maximum").is_none() {
            schema.insert("maximum".to_owned(), maximum.into());
        }
    }
}

#[cfg(test)]
mod tests;
