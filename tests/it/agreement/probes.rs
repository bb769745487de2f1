//! Valid and invalid values around the limits of a schema.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Length of the probes for a string and for an array without a maximum length.
const LONG_TEXT: usize = 40_000;
const LONG_LIST: usize = 12_000;
/// Levels of objects and arrays to probe.
const LEVELS: usize = 5;

/// Valid values for fields, by name, where the schema does not describe which values are
/// meaningful.
const SAMPLES: [(&str, &str); 12] = [
    ("cron", "\"@yearly\""),
    ("current", "\"correct horse battery\""),
    ("email", "\"someone@example.com\""),
    ("ends_at", "\"2099-01-01T00:00:00Z\""),
    ("entries", "[{\"model\": \"html-to-text\", \"input_map\": {\"html\": \"x\"}}]"),
    ("from", "\"2026-01-01T00:00:00Z\""),
    ("model", "\"text-template\""),
    ("password", "\"correct horse battery\""),
    ("starts_at", "\"2030-01-01T00:00:00Z\""),
    ("timezone", "\"Europe/Berlin\""),
    ("to", "\"2026-02-01T00:00:00Z\""),
    ("webhook_url", "\"http://127.0.0.1:1/\""),
];

/// Derives probes from the schemas of a document.
pub(super) struct Probes<'d> {
    document: &'d Value,
}

impl<'d> Probes<'d> {
    pub(super) const fn new(document: &'d Value) -> Self {
        Self { document }
    }

    /// Returns bodies for a schema, each with the location and the value that it probes.
    pub(super) fn of(&self, schema: &'d Value) -> Vec<(String, Value)> {
        let mut seen = BTreeSet::new();
        let mut all = vec![("the sample".to_owned(), self.sample(schema, ""))];
        all.extend(self.around(schema, "", 0));
        all.retain(|(_, body)| seen.insert(body.to_string()));
        all
    }

    /// Resolves references.
    fn resolved(&self, schema: &'d Value) -> &'d Value {
        match schema["$ref"].as_str() {
            Some(place) => self.resolved(self.document.pointer(&place[1..]).unwrap()),
            None => schema,
        }
    }

    fn options(schema: &'d Value) -> impl Iterator<Item = &'d Value> {
        ["anyOf", "oneOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten()
    }

    /// Returns a valid value.
    fn sample(&self, schema: &'d Value, name: &str) -> Value {
        if is_checked_elsewhere(schema) {
            return json!({"steps": [{"step_id": "a", "type": "wait", "seconds": 1}]});
        }
        let schema = self.resolved(schema);
        if let Some((_, text)) = SAMPLES.iter().find(|(known, _)| *known == name) {
            return serde_json::from_str(text).unwrap();
        }
        if let Some(only) = schema.get("const").or_else(|| schema["enum"].get(0)) {
            return only.clone();
        }
        if let Some(option) = Self::options(schema).find(|option| option["type"] != "null") {
            return self.sample(option, name);
        }
        match kinds(schema).first().copied().unwrap_or("object") {
            "string" => self.text(schema),
            "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
            "boolean" => json!(false),
            "array" => {
                let items = vec![self.sample(&schema["items"], ""); size(schema, "minItems")];
                items.into()
            }
            _ => Value::Object(self.object(schema)),
        }
    }

    fn text(&self, schema: &Value) -> Value {
        if let Some(example) = schema["examples"].get(0) {
            return example.clone();
        }
        match schema["format"].as_str() {
            Some("uuid") => json!("0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f"),
            Some("date-time") => json!("2099-01-01T00:00:00Z"),
            Some("uri") => json!("http://127.0.0.1:1/"),
            _ => json!("a".repeat(size(schema, "minLength").max(1))),
        }
    }

    /// Returns the schema's example, or else only the required fields.
    fn object(&self, schema: &'d Value) -> Map<String, Value> {
        if let Some(example) = schema["examples"][0].as_object() {
            return example.clone();
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let of = |name: &'d str| (name.to_owned(), self.sample(&schema["properties"][name], name));
        let mut fields: Map<_, _> = required.filter_map(Value::as_str).map(of).collect();
        for number in fields.len()..size(schema, "minProperties") {
            let value = self.sample(&schema["additionalProperties"], "");
            fields.insert(format!("name{number}"), value);
        }
        fields
    }

    /// Returns values around the limits of a schema.
    fn around(&self, schema: &'d Value, name: &str, level: usize) -> Vec<(String, Value)> {
        let is_opaque = is_checked_elsewhere(schema);
        let schema = self.resolved(schema);
        let others =
            [json!(null), json!(true), json!(7), json!(1.5), json!("x"), json!([]), json!({})];
        let mut all: Vec<Value> = others.into();
        let kinds = if is_opaque { Vec::new() } else { kinds(schema) };
        all.extend(schema["enum"].as_array().into_iter().flatten().cloned());
        let mut named: Vec<(String, Value)> = Vec::new();
        for kind in kinds {
            match kind {
                "string" => all.extend(self.texts(schema, name)),
                "integer" | "number" => all.extend(numbers(schema)),
                "array" => named.extend(self.arrays(schema, level)),
                "object" => named.extend(self.objects(schema, level)),
                _ => all.push(json!(false)),
            }
        }
        let shown = |value: Value| (format!(" = {}", super::shortened(&value.to_string())), value);
        let options = Self::options(schema).flat_map(|option| self.around(option, name, level));
        all.into_iter().map(shown).chain(named).chain(options).collect()
    }

    fn texts(&self, schema: &'d Value, name: &str) -> Vec<Value> {
        let mut all: Vec<Value> =
            ["", " ", "é", "x\u{7}", "a\nb", "\u{0}"].into_iter().map(Value::from).collect();
        all.push(self.sample(schema, name));
        let least = size(schema, "minLength");
        let most = schema["maxLength"].as_u64().map_or(LONG_TEXT, to_size);
        for length in [least.saturating_sub(1), least, most, most + 1] {
            all.push("a".repeat(length).into());
        }
        all
    }

    fn arrays(&self, schema: &'d Value, level: usize) -> Vec<(String, Value)> {
        let least = size(schema, "minItems");
        let most = schema["maxItems"].as_u64().map_or(LONG_LIST, to_size);
        let of = |count: usize| Value::from(vec![self.sample(&schema["items"], ""); count]);
        let lengths = [0, least.saturating_sub(1), least, 1, most, most + 1];
        let mut all: Vec<_> =
            lengths.into_iter().map(|count| (format!(" with {count} items"), of(count))).collect();
        if level < LEVELS {
            for (place, item) in self.around(&schema["items"], "", level + 1) {
                let mut items = vec![self.sample(&schema["items"], ""); least.saturating_sub(1)];
                items.push(item);
                all.push((format!("[]{place}"), items.into()));
            }
        }
        all
    }

    fn objects(&self, schema: &'d Value, level: usize) -> Vec<(String, Value)> {
        let base = self.object(schema);
        let with = |name: &str, value: Value| {
            let mut fields = base.clone();
            fields.insert(name.to_owned(), value);
            Value::Object(fields)
        };
        let mut all = vec![(" with an unknown field".to_owned(), with("zzz", json!(1)))];
        for name in base.keys() {
            let mut fields = base.clone();
            fields.shift_remove(name);
            all.push((format!(" without {name}"), fields.into()));
        }
        let properties = schema["properties"].as_object().into_iter().flatten();
        if level >= LEVELS {
            return all;
        }
        let mut whole = base.clone();
        for (name, property) in properties {
            let sample = self.sample(property, name);
            whole.entry(name).or_insert_with(|| sample.clone());
            all.push((format!(".{name}, a sample"), with(name, sample)));
            for (place, value) in self.around(property, name, level + 1) {
                all.push((format!(".{name}{place}"), with(name, value)));
            }
        }
        all.push((" with all fields".to_owned(), whole.into()));
        let values = &schema["additionalProperties"];
        if values.is_object() && !schema["maxProperties"].is_null() {
            for count in [size(schema, "maxProperties"), size(schema, "maxProperties") + 1] {
                let fields = (0..count).map(|n| (format!("name{n}"), self.sample(values, "")));
                all.push((format!(" with {count} fields"), fields.collect::<Map<_, _>>().into()));
            }
        }
        if values.is_object() {
            for (place, value) in self.around(values, "", level + 1) {
                all.push((format!(".name0{place}"), with("name0", value)));
            }
        }
        all
    }
}

/// Returns whether the compiler of definitions checks the value. Tests of the wire types compare
/// that schema with the compiler.
fn is_checked_elsewhere(schema: &Value) -> bool {
    schema["x-checked-by"] == "definition"
}

fn kinds(schema: &Value) -> Vec<&str> {
    let one = schema["type"].as_str().into_iter();
    let several = schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str);
    one.chain(several).collect()
}

fn size(schema: &Value, keyword: &str) -> usize {
    schema[keyword].as_u64().map_or(0, to_size)
}

fn to_size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn numbers(schema: &Value) -> Vec<Value> {
    let mut all =
        vec![json!(-1), json!(0), json!(1), json!(2.0), json!(2.5), json!(4_294_967_296_u64)];
    all.extend([json!(u64::MAX), json!(1e30)]);
    for keyword in ["minimum", "maximum", "exclusiveMinimum"] {
        if let Some(limit) = schema[keyword].as_i64() {
            let around = [limit.checked_sub(1), Some(limit), limit.checked_add(1)];
            all.extend(around.into_iter().flatten().map(Value::from));
        }
    }
    all
}
