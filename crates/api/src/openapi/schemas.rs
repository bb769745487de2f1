//! The schemas of a document.

use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};

use crate::doc::SchemaOf;
use orrery_wire as wire;

pub(super) const SCHEMAS: &str = "#/components/schemas/";

/// The schemas of a document, separate for requests and responses, because only responses
/// distinguish between absent and null fields.
pub(super) struct Schemas {
    pub(super) read: SchemaGenerator,
    sent: SchemaGenerator,
    /// The components of responses that may contain `warnings`.
    warned: BTreeSet<String>,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = |mut settings: SchemaSettings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            let mut plain = ReplaceBoolSchemas::default();
            plain.skip_additional_properties = true;
            settings.with_transform(plain).into_generator()
        };
        Self {
            read: settings(orrery_wire::request::settings()),
            sent: settings(SchemaSettings::draft2020_12().for_serialize()),
            warned: BTreeSet::new(),
        }
    }

    /// Returns the schema of a response. With `warns`, it includes the warnings about unknown
    /// request fields that `unknown::warn` adds.
    pub(super) fn answer(&mut self, schema: SchemaOf, warns: bool) -> Value {
        let schema = schema(&mut self.sent).to_value();
        let name = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|place| place.strip_prefix(SCHEMAS));
        if let Some(name) = name.filter(|_| warns) {
            self.warned.insert(name.to_owned());
        }
        schema
    }

    /// Returns the schemas that `paths` refer to, directly or indirectly.
    pub(super) fn take(mut self, paths: &Map<String, Value>) -> Map<String, Value> {
        self.sent.subschema_for::<wire::error::Error<'static>>();
        self.sent.subschema_for::<wire::openai::Error<'static>>();
        let mut schemas = self.sent.take_definitions(true);
        for name in &self.warned {
            let properties = schemas.get_mut(name).and_then(|schema| schema.get_mut("properties"));
            if let Some(Value::Object(properties)) = properties {
                properties.entry("warnings").or_insert_with(|| json!({
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "A warning for each unknown field of the request. Absent if there are none",
                }));
            }
        }
        schemas.extend(self.read.take_definitions(true));
        name_variants(&mut schemas);
        let mut used = BTreeSet::new();
        paths.values().for_each(|path| collect_used(path, &schemas, &mut used));
        schemas.retain(|name, _| used.contains(name));
        schemas
    }
}

/// Adds the names of the schemas that `value` refers to.
fn collect_used(value: &Value, schemas: &Map<String, Value>, used: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_used(item, schemas, used)),
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if let Some(name) = reference.and_then(|place| place.strip_prefix(SCHEMAS))
                && used.insert(name.to_owned())
                && let Some(schema) = schemas.get(name)
            {
                collect_used(schema, schemas, used);
            }
            fields.values().for_each(|field| collect_used(field, schemas, used));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Turns each variant of a `oneOf` into a component, named after the schema and the variant's tag,
/// and adds a discriminator. Client generators name types after components.
fn name_variants(schemas: &mut Map<String, Value>) {
    let mut named = Map::new();
    for (name, schema) in schemas.iter_mut() {
        let Some(schema) = schema.as_object_mut() else { continue };
        let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { continue };
        let Some(tag) = variants.first().and_then(tag_of).map(str::to_owned) else { continue };
        let values: Option<Vec<String>> = variants.iter().map(|one| tag_value(one, &tag)).collect();
        let Some(values) = values else { continue };
        let mut mapping = Map::new();
        for (variant, value) in variants.iter_mut().zip(values) {
            let own = format!("{name}{}", words(&value));
            let reference = format!("{SCHEMAS}{own}");
            mapping.insert(value, reference.clone().into());
            named.insert(own, std::mem::replace(variant, json!({"$ref": reference})));
        }
        let discriminator = json!({"propertyName": tag, "mapping": mapping});
        schema.insert("discriminator".to_owned(), discriminator);
    }
    schemas.extend(named);
}

/// Returns the property of a variant that has only one possible value.
fn tag_of(variant: &Value) -> Option<&str> {
    let properties = variant.get("properties")?.as_object()?;
    properties
        .iter()
        .find(|(_, schema)| schema.get("const").is_some())
        .map(|(name, _)| name.as_str())
}

fn tag_value(variant: &Value, tag: &str) -> Option<String> {
    variant.get("properties")?.get(tag)?.get("const")?.as_str().map(str::to_owned)
}

/// Converts `a_word` to `AWord`.
fn words(value: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    value.split('_').map(word).collect()
}
