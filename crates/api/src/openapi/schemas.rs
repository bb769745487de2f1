//! Builds the schemas of a document.

use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};

use crate::doc::SchemaOf;
use orrery_wire as wire;

pub(super) const SCHEMAS: &str = "#/components/schemas/";
/// An object with arbitrary fields.
const OBJECT: &str = "#/components/schemas/JsonObject";

/// The schemas of a document. Requests and responses have separate schemas, because only responses
/// distinguish between absent and null fields.
pub(super) struct Schemas {
    pub(super) read: SchemaGenerator,
    pub(super) sent: SchemaGenerator,
    /// Components that do not come from Rust types.
    added: Map<String, Value>,
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
            added: Map::new(),
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

    /// Adds a component, named after the words of `name`, and returns a reference to it.
    pub(super) fn add(&mut self, name: &str, schema: Value) -> Value {
        let name = words(name);
        let reference = json!({"$ref": format!("{SCHEMAS}{name}")});
        self.added.insert(name, schema);
        reference
    }

    /// Returns the schemas that `operations` reference directly or indirectly.
    pub(super) fn take<'o>(
        mut self,
        operations: impl Iterator<Item = &'o Value>,
    ) -> Map<String, Value> {
        self.sent.subschema_for::<wire::error::Error<'static>>();
        self.sent.subschema_for::<wire::openai::Error<'static>>();
        self.sent.subschema_for::<wire::messages::answer::Error<'static>>();
        self.sent.subschema_for::<wire::replicate::Problem<'static>>();
        let mut schemas = self.sent.take_definitions(true);
        for name in &self.warned {
            let properties = schemas.get_mut(name).and_then(|schema| schema.get_mut("properties"));
            if let Some(Value::Object(properties)) = properties {
                properties.entry("warnings").or_insert_with(|| json!({
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "A warning for each unknown field of the request. Absent if there are none.",
                }));
            }
        }
        schemas.extend(self.added);
        schemas.extend(self.read.take_definitions(true));
        name_variants(&mut schemas);
        schemas.values_mut().for_each(name_objects);
        for (name, schema) in &mut schemas {
            open_recursion(name, schema);
            // Remove fields that can only be null: openapi-fetch would give them a type without
            // values.
            if let Some(Value::Object(fields)) = schema.pointer_mut("/properties") {
                fields.retain(|_, field| field["type"] != "null");
            }
        }
        schemas.insert(
            "JsonObject".to_owned(),
            json!({
                "type": "object",
                "additionalProperties": true,
                "description": "An object with arbitrary fields.",
            }),
        );
        let mut used = BTreeSet::new();
        operations.for_each(|one| collect_used(one, &schemas, &mut used));
        schemas.retain(|name, _| used.contains(name));
        schemas
    }
}

/// Replaces nested steps and nested conditions with arbitrary objects, because client generators
/// fail on recursive types. `/schemas/workflow.json`, which is meant for editors, describes all
/// levels.
fn open_recursion(name: &str, value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| open_recursion(name, item)),
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            let target = reference.and_then(|place| place.strip_prefix(SCHEMAS));
            let is_recursive = match target {
                Some("WorkflowStep") => name != "WorkflowDefinition",
                Some("WorkflowCondition") => name.starts_with("WorkflowCondition"),
                _ => false,
            };
            if is_recursive {
                fields.insert("$ref".to_owned(), OBJECT.into());
            }
            fields.values_mut().for_each(|field| open_recursion(name, field));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds the names of the schemas that `value` references.
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

/// Turns the variants of each schema into components, because client generators name types after
/// components. A variant of a `oneOf` is named after the schema and the variant's tag, and the tag
/// becomes the discriminator. Any other variant is named after its title.
fn name_variants(schemas: &mut Map<String, Value>) {
    let mut named = Map::new();
    for (name, schema) in schemas.iter_mut() {
        let Some(schema) = schema.as_object_mut() else { continue };
        name_titled(schema, &mut named);
        let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { continue };
        let Some(tag) = variants.first().and_then(tag_of).map(str::to_owned) else { continue };
        let values: Option<Vec<String>> = variants.iter().map(|one| tag_value(one, &tag)).collect();
        let Some(values) = values else { continue };
        let mut mapping = Map::new();
        for (variant, value) in variants.iter_mut().zip(values) {
            let own = format!("{name}{}", words(&value));
            let reference = format!("{SCHEMAS}{own}");
            if let Some(tag) = variant.pointer_mut(&format!("/properties/{tag}")) {
                tag["description"] = format!("Always `{value}`.").into();
            }
            mapping.insert(value, reference.clone().into());
            named.insert(own, std::mem::replace(variant, json!({"$ref": reference})));
        }
        let discriminator = json!({"propertyName": tag, "mapping": mapping});
        schema.insert("discriminator".to_owned(), discriminator);
    }
    schemas.extend(named);
}

/// Turns each variant of an `anyOf` that has a title into a component of that name.
fn name_titled(schema: &mut Map<String, Value>, named: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get_mut("anyOf") else { return };
    for variant in variants {
        let Some(fields) = variant.as_object_mut() else { continue };
        let Some(Value::String(title)) = fields.remove("title") else { continue };
        if let Some(reference) = fields.get("$ref").cloned() {
            *variant = json!({"$ref": reference});
            continue;
        }
        let reference = json!({"$ref": format!("{SCHEMAS}{title}")});
        named.insert(title, std::mem::replace(variant, reference));
    }
}

/// Replaces each object with arbitrary fields that is nullable, an item or a variant with a
/// reference to one component. Otherwise, client generators would create a separate type for each
/// occurrence.
fn name_objects(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(name_objects),
        Value::Object(fields) => {
            if fields.get("type") == Some(&json!(["object", "null"])) && is_free(fields) {
                fields.shift_remove("type");
                fields.shift_remove("additionalProperties");
                fields.insert("anyOf".to_owned(), json!([{"$ref": OBJECT}, {"type": "null"}]));
                return;
            }
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    "examples" => {}
                    "items" => name_object(field),
                    "anyOf" | "oneOf" => {
                        field.as_array_mut().into_iter().flatten().for_each(name_object);
                    }
                    _ => name_objects(field),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn name_object(schema: &mut Value) {
    let is_free_object = |fields: &Map<String, Value>| {
        fields.get("type").is_some_and(|kind| kind == "object") && is_free(fields)
    };
    if schema.as_object().is_some_and(is_free_object) {
        *schema = json!({"$ref": OBJECT});
    } else {
        name_objects(schema);
    }
}

/// Returns whether the schema of an object permits arbitrary fields and names no field.
fn is_free(schema: &Map<String, Value>) -> bool {
    let is_open = schema.get("additionalProperties").is_none_or(|more| *more == true);
    is_open && !schema.contains_key("properties") && !schema.contains_key("title")
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

/// Converts `a_word` and `a.word` to `AWord`.
fn words(value: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    value.split(['_', '.']).map(word).collect()
}
