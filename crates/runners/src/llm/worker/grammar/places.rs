//! Resolves what a schema allows at one location: follows references, merges `allOf`, and flattens
//! alternatives.

use std::borrow::Cow;
use std::collections::HashSet;

use jsonschema::PatternOptions;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{Builder, Error, Fields};

/// Maximum nesting of references, alternatives and `allOf` at one location.
const IN_PLACE_MAX: usize = 200;

/// The cost of validating the literals at one location.
const VALIDATOR_COST: usize = 16;

/// Keywords that do not constrain values.
const ANNOTATIONS: [&str; 17] = [
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];
/// Keywords that no grammar can express.
const UNAPPLIED: [&str; 21] = [
    "$dynamicRef",
    "$recursiveRef",
    "disallow",
    "divisibleBy",
    "extends",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "multipleOf",
];
/// Keywords that imply a type if the schema specifies none.
const TELLING: [(&str, &[&str]); 4] = [
    ("object", &["properties", "additionalProperties", "required", "minProperties"]),
    ("array", &["items", "prefixItems", "minItems", "maxItems"]),
    ("string", &["pattern", "format", "minLength", "maxLength"]),
    ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
];

/// A schema with at most one type and without references or alternatives.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub schema: Fields,
    /// The location in the schema: a JSON pointer or another unique identifier.
    pub place: String,
}

/// The values that a schema allows at a location.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub leaves: Vec<Leaf>,
    /// The JSON of literal values.
    pub literals: Vec<String>,
    /// References already followed, so that none is followed twice.
    followed: HashSet<String>,
}

/// The location being resolved, and the choices found so far.
struct At<'f> {
    place: &'f str,
    /// Nesting depth of references, alternatives and `allOf`.
    depth: usize,
    found: &'f mut Choices,
}

impl At<'_> {
    /// Returns a nested location that adds to the same choices.
    fn within<'f>(&'f mut self, place: &'f str) -> At<'f> {
        At { place, depth: self.depth + 1, found: self.found }
    }
}

impl Leaf {
    /// Returns the type; `None` means any type.
    pub(super) fn kind(&self) -> Option<&str> {
        if let Some(kind) = self.schema.get("type") {
            return kind.as_str();
        }
        let tells = |keywords: &[&str]| keywords.iter().any(|one| self.schema.contains_key(*one));
        TELLING.iter().find(|(_, keywords)| tells(keywords)).map(|(kind, _)| *kind)
    }

    /// Returns the predefined rule if the schema specifies nothing but the type.
    pub(super) fn primitive(&self) -> Option<&'static str> {
        let is_said = |name: &String| name != "type" && !is_annotation(name);
        if self.schema.keys().any(is_said) {
            return None;
        }
        let Some(kind) = self.schema.get("type") else { return Some("value") };
        let rules = ["object", "array", "string", "integer", "number", "boolean", "null"];
        rules.into_iter().find(|rule| kind == rule)
    }

    /// Parses a minimum and a maximum count.
    pub(super) fn bounds(&self, least: &str, most: &str) -> Result<(u64, Option<u64>), Error> {
        let count = |name: &str| match self.schema.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a whole number that is not negative; larger ones saturate"
                )]
                let of_float =
                    |value: f64| (value >= 0.0 && value.fract() == 0.0).then_some(value as u64);
                let count = value.as_u64().or_else(|| value.as_f64().and_then(of_float));
                let why = || format!("{name} must be a whole number that is not negative");
                count.map(Some).ok_or_else(|| Error::new(&self.place, why()))
            }
        };
        let (least_count, most_count) = (count(least)?.unwrap_or(0), count(most)?);
        if most_count.is_some_and(|most| most < least_count) {
            let why = format!("{least} is larger than {most}");
            return Err(Error::new(&self.place, why));
        }
        Ok((least_count, most_count))
    }
}

fn is_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name) || name.starts_with("x-") || name == "nullable"
}

impl Builder<'_, '_> {
    /// Returns the values that a schema allows.
    pub(super) fn choices(&mut self, schema: &Value, place: &str) -> Result<Choices, Error> {
        let mut found = Choices::default();
        self.choose(schema, At { place, depth: 0, found: &mut found })?;
        found.literals.sort_unstable();
        found.literals.dedup();
        Ok(found)
    }

    fn choose(&mut self, schema: &Value, mut at: At<'_>) -> Result<(), Error> {
        let place = at.place;
        self.spend(1, place)?;
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(true) => &Fields::new(),
            Value::Bool(false) => return Ok(()),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(Error::new(place, "a schema must be an object, true or false"));
            }
        };
        if at.depth > IN_PLACE_MAX {
            let why = format!("more than {IN_PLACE_MAX} levels of nested alternatives");
            return Err(Error::new(place, why));
        }
        self.check_keywords(fields, place)?;
        if fields.get("nullable") == Some(&Value::Bool(true)) {
            at.found.literals.push("null".to_owned());
        }
        if fields.contains_key("$ref") {
            return self.follow(fields, at);
        }
        for keyword in ["anyOf", "oneOf"] {
            if fields.contains_key(keyword) {
                return self.alternatives(fields, keyword, at);
            }
        }
        if fields.contains_key("allOf") {
            return self.merge_all(fields, at);
        }
        if let Some(Value::Array(kinds)) = fields.get("type") {
            for kind in kinds {
                self.copy(fields, place)?;
                let mut one = fields.clone();
                one.insert("type".to_owned(), kind.clone());
                let of_kind = format!("{place}/type/{}", kind.as_str().unwrap_or_default());
                self.choose(&one.into(), at.within(&of_kind))?;
            }
            return Ok(());
        }
        self.one(fields, at)
    }

    /// Adds the literal values or the leaf of a schema without alternatives.
    fn one(&mut self, fields: &Fields, at: At<'_>) -> Result<(), Error> {
        let At { place, found, .. } = at;
        let listed = fields.get("enum").map(|listed| {
            let why = || Error::new(place, "enum must be a list of values");
            listed.as_array().filter(|listed| !listed.is_empty()).ok_or_else(why)
        });
        let listed = listed.transpose()?;
        let constant = fields.get("const");
        if listed.is_none() && constant.is_none() {
            self.copy(fields, place)?;
            found.leaves.push(Leaf { schema: fields.clone(), place: place.to_owned() });
            return Ok(());
        }
        let values = match (listed, constant) {
            (Some(listed), Some(constant)) => {
                listed.iter().filter(|one| *one == constant).collect()
            }
            (Some(listed), None) => listed.iter().collect::<Vec<_>>(),
            (None, constant) => constant.into_iter().collect(),
        };
        self.spend(values.len(), place)?;
        let kind = fields.get("type").and_then(Value::as_str);
        let mut values = values;
        values.retain(|value| kind.is_none_or(|kind| is_of(value, kind)));
        self.keep_valid(&mut values, fields, place)?;
        found.literals.extend(values.into_iter().map(Value::to_string));
        Ok(())
    }

    /// Removes the literals that other keywords of the same schema exclude.
    fn keep_valid(
        &mut self,
        values: &mut Vec<&Value>,
        fields: &Fields,
        place: &str,
    ) -> Result<(), Error> {
        let is_scalar = values.iter().all(|value| !value.is_object() && !value.is_array());
        let mut schema = fields.clone();
        schema.retain(|name, _| {
            let is_of = |keywords: &[&str]| keywords.contains(&name.as_str());
            let is_nested = TELLING.iter().take(2).any(|(_, keywords)| is_of(keywords));
            let is_done = is_of(&["type", "enum", "const"]) || is_annotation(name);
            !(is_done || (is_scalar && is_nested))
        });
        if schema.is_empty() {
            return Ok(());
        }
        self.spend(VALIDATOR_COST, place)?;
        let options = jsonschema::options().offline().should_validate_formats(true);
        match options.with_pattern_options(PatternOptions::regex()).build(&schema.into()) {
            Ok(validator) => values.retain(|value| validator.is_valid(value)),
            Err(_) if self.is_strict => {
                let why =
                    "keywords next to enum or const cannot be enforced: omit them, or omit strict";
                return Err(Error::new(place, why));
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn check_keywords(&self, fields: &Fields, place: &str) -> Result<(), Error> {
        if !self.is_strict {
            return Ok(());
        }
        let is_unapplied = |name: &&&str| {
            fields.get(**name).is_some_and(|value| !value.is_null() && *value != false)
        };
        match UNAPPLIED.iter().find(is_unapplied) {
            Some(name) => {
                let why = format!("{name} cannot be enforced: omit it, or omit strict");
                Err(Error::new(place, why))
            }
            None => Ok(()),
        }
    }

    fn follow(&mut self, fields: &Fields, mut at: At<'_>) -> Result<(), Error> {
        let place = at.place;
        let reference = fields.get("$ref").and_then(Value::as_str);
        let reference =
            reference.ok_or_else(|| Error::new(place, "$ref must be a string"))?.to_owned();
        let target = self.target(&reference).ok_or_else(|| {
            let short: String = reference.chars().take(100).collect();
            Error::new(place, format!("$ref '{short}' points to nothing in this schema"))
        })?;
        let beside = without(fields, "$ref");
        if beside.keys().all(|name| is_annotation(name)) {
            let is_new = at.found.followed.insert(reference.clone());
            return if is_new { self.choose(target, at.within(&reference)) } else { Ok(()) };
        }
        self.copy(&beside, place)?;
        if let Some(target) = target.as_object() {
            self.copy(target, place)?;
        }
        let both = json!({"allOf": [target, beside]});
        let of_both = format!("{reference} {}", Value::from(beside));
        self.choose(&both, at.within(&of_both))
    }

    fn alternatives(
        &mut self,
        fields: &Fields,
        keyword: &str,
        mut at: At<'_>,
    ) -> Result<(), Error> {
        let place = at.place;
        let why = || Error::new(place, format!("{keyword} must be a list of schemas"));
        let parts = fields.get(keyword).and_then(Value::as_array).filter(|all| !all.is_empty());
        let parts = parts.ok_or_else(why)?;
        self.copy(fields, place)?;
        let beside = without(fields, keyword);
        let is_alone = beside.keys().all(|name| is_annotation(name) || name == "type");
        for (index, part) in parts.iter().enumerate() {
            let of_part = format!("{place}/{keyword}/{index}");
            // A type next to alternatives only repeats the types in the alternatives.
            if is_alone && (part.get("type").is_some() || !beside.contains_key("type")) {
                self.choose(part, at.within(&of_part))?;
            } else {
                self.copy(&beside, place)?;
                if let Some(part) = part.as_object() {
                    self.copy(part, place)?;
                }
                let mut both = beside.clone();
                let all = both.entry("allOf").or_insert_with(|| json!([]));
                if let Some(all) = all.as_array_mut() {
                    all.push(part.clone());
                }
                self.choose(&both.into(), at.within(&of_part))?;
            }
        }
        Ok(())
    }

    fn merge_all(&mut self, fields: &Fields, mut at: At<'_>) -> Result<(), Error> {
        let place = at.place;
        let why = || Error::new(place, "allOf must be a list of schemas");
        let parts = fields.get("allOf").and_then(Value::as_array).ok_or_else(why)?;
        self.copy(fields, place)?;
        let beside = without(fields, "allOf");
        let is_empty = beside.keys().all(|name| is_annotation(name));
        let beside = (!is_empty).then(|| Value::from(beside));
        let mut merged = vec![Fields::new()];
        for part in beside.iter().chain(parts) {
            let mut of_part = Choices::default();
            let within = format!("{place}/allOf");
            let within = At { place: &within, depth: at.depth + 1, found: &mut of_part };
            self.choose(part, within)?;
            let mut next = Vec::new();
            let values = of_part.literals.iter().filter_map(|text| {
                let value: Value = serde_json::from_str(text).ok()?;
                json!({"enum": [value]}).as_object().cloned()
            });
            let ways = of_part.leaves.into_iter().map(|leaf| leaf.schema);
            for way in ways.chain(one_enum(values)) {
                for before in &merged {
                    self.spend(1, place)?;
                    self.copy(before, place)?;
                    self.copy(&way, place)?;
                    next.extend(both(before, &way, place)?);
                }
            }
            merged = next;
        }
        for (index, schema) in merged.into_iter().enumerate() {
            self.one(&schema, at.within(&format!("{place}/allOf/{index}")))?;
        }
        Ok(())
    }
}

impl<'s> Builder<'_, 's> {
    /// Returns the subschema that a reference points to, by JSON pointer or anchor.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let root = self.root;
        let own = root.get("$id").or(root.get("id")).and_then(Value::as_str);
        let fragment = own.and_then(|own| reference.strip_prefix(own)).unwrap_or(reference);
        let fragment = match fragment.strip_prefix('#') {
            Some(fragment) => percent_decode_str(fragment).decode_utf8().ok()?,
            None if fragment.is_empty() => Cow::Borrowed(""),
            None => return None,
        };
        if fragment.is_empty() || fragment.starts_with('/') {
            return root.pointer(&fragment);
        }
        anchored(root, &fragment)
    }
}

fn anchored<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(fields) => {
            let is_text = |keyword: &str, text: &str| {
                fields.get(keyword).and_then(Value::as_str) == Some(text)
            };
            let is_it = is_text("$anchor", name) || is_text("$id", &format!("#{name}"));
            if is_it { Some(value) } else { fields.values().find_map(|one| anchored(one, name)) }
        }
        Value::Array(items) => items.iter().find_map(|one| anchored(one, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Returns the conjunction of two leaf schemas, or `None` if no value matches both.
fn both(first: &Fields, second: &Fields, place: &str) -> Result<Option<Fields>, Error> {
    let mut all = first.clone();
    for (name, value) in second {
        let Some(before) = all.get(name).filter(|_| !is_annotation(name)) else {
            all.entry(name.clone()).or_insert_with(|| value.clone());
            continue;
        };
        if before == value {
            continue;
        }
        let Some(merged) = merged(name, before, value, place)? else { return Ok(None) };
        all.insert(name.clone(), merged);
    }
    Ok(Some(all))
}

/// Returns the conjunction of two values of a keyword.
fn merged(name: &str, a: &Value, b: &Value, place: &str) -> Result<Option<Value>, Error> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let larger = a.as_f64() > b.as_f64();
    let value =
        match name {
            "type" if (a == "integer" && b == "number") || (a == "number" && b == "integer") => {
                "integer".into()
            }
            "type" | "const" => return Ok(None),
            "required" => list(a).into_iter().chain(list(b)).collect(),
            "enum" => {
                let (a, b) = (list(a), list(b));
                let common: Vec<Value> = a.into_iter().filter(|one| b.contains(one)).collect();
                if common.is_empty() {
                    return Ok(None);
                }
                common.into()
            }
            "properties" => {
                let mut all = a.as_object().cloned().unwrap_or_default();
                for (name, schema) in b.as_object().into_iter().flatten() {
                    let before = all.get(name).filter(|before| *before != schema).cloned();
                    let schema =
                        before.map_or(schema.clone(), |one| json!({"allOf": [one, schema]}));
                    all.insert(name.clone(), schema);
                }
                all.into()
            }
            "additionalProperties" if *a == false || *b == false => false.into(),
            "items" | "additionalProperties" => json!({"allOf": [a, b]}),
            "minimum" | "exclusiveMinimum" | "minItems" | "minLength" | "minProperties" => {
                if larger { a.clone() } else { b.clone() }
            }
            "maximum" | "exclusiveMaximum" | "maxItems" | "maxLength" | "maxProperties" => {
                if larger { b.clone() } else { a.clone() }
            }
            _ => {
                let why = format!("allOf gives {name} twice, which cannot be enforced together");
                return Err(Error::new(place, why));
            }
        };
    Ok(Some(value))
}

/// Merges literal values into one `enum`.
fn one_enum(values: impl Iterator<Item = Fields>) -> Option<Fields> {
    let all: Vec<Value> =
        values.filter_map(|one| one.get("enum")?.as_array()?.first().cloned()).collect();
    if all.is_empty() { None } else { json!({"enum": all}).as_object().cloned() }
}

fn without(fields: &Fields, name: &str) -> Fields {
    let mut rest = fields.clone();
    rest.remove(name);
    rest
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
