//! Checks a value against a schema, and rewrites whole numbers such as `2.0` as integers.

use orrery_domain::json_object::integer;
use orrery_domain::time::Timestamp;
use serde_json::{Map, Value};

use super::mismatch::{Mismatch, Place};
use super::{CHECKED_ELSEWHERE, OTHERWISE};
use crate::pattern::{FILLED, Pattern};

/// Maximum length of a value in an error message, in characters.
const GIVEN_CHARS_MAX: usize = 64;

/// Checks `value`; the error is about the first mismatch.
pub(super) fn check(schema: &Value, value: &mut Value, place: &Place<'_>) -> Result<(), Mismatch> {
    if value.is_null() {
        return if allows_null(schema) { Ok(()) } else { Err(Mismatch::missing(place)) };
    }
    if keyword(schema, CHECKED_ELSEWHERE).is_some() {
        return Ok(());
    }
    if let Some(constant) = keyword(schema, "const") {
        if constant == value {
            return Ok(());
        }
        let otherwise = keyword(schema, OTHERWISE).and_then(Value::as_str).zip(value.as_str());
        return Err(match otherwise {
            Some((sentence, given)) => {
                let given: String = given.chars().take(GIVEN_CHARS_MAX).collect();
                Mismatch::invalid(place, format!("'{given}' {sentence}"))
            }
            None => one_of(place, std::slice::from_ref(constant)),
        });
    }
    if let Some(Value::Array(values)) = keyword(schema, "enum") {
        return if values.contains(value) { Ok(()) } else { Err(one_of(place, values)) };
    }
    for name in ["anyOf", "oneOf"] {
        if let Some(Value::Array(options)) = keyword(schema, name) {
            check_options(options, value, place)?;
        }
    }
    if !kinds(schema).is_empty() && !accepts_kind(schema, value) {
        return Err(match place {
            Place::Root => Mismatch::missing(place),
            Place::Field(..) | Place::Item(..) => {
                Mismatch::invalid(place, format!("must be {}", nouns(&[schema])))
            }
        });
    }
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::String(text) => check_text(schema, text, place),
        Value::Number(_) => check_number(schema, value, place),
        Value::Array(items) => check_items(schema, items, place),
        Value::Object(fields) => check_fields(schema, fields, place),
    }
}

/// Returns the value of a keyword. A schema has few keywords, so comparing them is faster than
/// hashing the name.
fn keyword<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.as_object()?.iter().find_map(|(key, value)| (key == name).then_some(value))
}

fn allows_null(schema: &Value) -> bool {
    let is_any = ["type", "enum", "const", "anyOf", "oneOf"]
        .iter()
        .all(|key| keyword(schema, key).is_none());
    let of_options = |key: &str| {
        keyword(schema, key)
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().any(allows_null))
    };
    is_any || accepts_kind(schema, &Value::Null) || of_options("anyOf") || of_options("oneOf")
}

/// Returns the types that a schema allows; an empty list if it allows all types.
fn kinds(schema: &Value) -> &[Value] {
    match keyword(schema, "type") {
        Some(Value::Array(kinds)) => kinds,
        Some(kind) => std::slice::from_ref(kind),
        None => &[],
    }
}

/// Returns whether the value has a type that the schema allows.
fn accepts_kind(schema: &Value, value: &Value) -> bool {
    kinds(schema).iter().filter_map(Value::as_str).any(|kind| match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::String(_) => kind == "string",
        Value::Number(_) => kind == "number" || (kind == "integer" && integer(value).is_some()),
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    })
}

/// Returns the types that these schemas allow, in words.
fn nouns(schemas: &[&Value]) -> String {
    let mut nouns: Vec<String> = Vec::new();
    for schema in schemas {
        for kind in kinds(schema).iter().filter_map(Value::as_str) {
            let noun = match kind {
                "null" => continue,
                "boolean" => "true or false".to_owned(),
                "integer" => range(schema, "whole number"),
                "number" => range(schema, "number"),
                "object" if nouns.is_empty() && schemas.len() == 1 => "an object".to_owned(),
                "array" if schemas.len() > 2 => "an array".to_owned(),
                "array" if is_of(schema, "string") => "an array of strings".to_owned(),
                "array" if is_of(schema, "object") => "an array of objects".to_owned(),
                "array" | "object" => format!("an {kind}"),
                _ => format!("a {kind}"),
            };
            if !nouns.contains(&noun) {
                nouns.push(noun);
            }
        }
    }
    match nouns.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => nouns.concat(),
    }
}

fn is_of(schema: &Value, kind: &str) -> bool {
    keyword(schema, "items").is_some_and(|items| kinds(items) == [kind])
}

/// Returns a number with its range: `a whole number from 1 to 10`.
fn range(schema: &Value, noun: &str) -> String {
    let limit = |name: &str| keyword(schema, name);
    let unbounded = Value::from(u64::MAX);
    let most = limit("maximum").filter(|most| **most != unbounded);
    let or_no_limit = if keyword(schema, "not").is_some() { "-1 or " } else { "" };
    let least = if or_no_limit.is_empty() { limit("minimum").cloned() } else { Some(1.into()) };
    match (least, limit("exclusiveMinimum"), most) {
        (None, Some(above), Some(most)) => format!("a {noun} above {above} and at most {most}"),
        (Some(least), _, Some(most)) => format!("{or_no_limit}a {noun} from {least} to {most}"),
        (Some(least), _, None) => format!("a {noun}, {least} or more"),
        (None, ..) => format!("a {noun}"),
    }
}

fn one_of(place: &Place<'_>, values: &[Value]) -> Mismatch {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let words: Vec<String> = values.iter().filter(|value| !value.is_null()).map(word).collect();
    Mismatch::invalid(place, format!("must be one of {}", words.join(", ")))
}

/// Checks a value that must match one of several schemas.
fn check_options(options: &[Value], value: &mut Value, place: &Place<'_>) -> Result<(), Mismatch> {
    let tag = options.iter().find_map(tag_of).map(|(name, _)| name.as_str());
    if let (Some(tag), Value::Object(fields)) = (tag, &*value) {
        let place = Place::Field(place, tag);
        let mut tags: Vec<Value> = Vec::new();
        for (_, value) in options.iter().filter_map(tag_of) {
            if !tags.contains(value) {
                tags.push(value.clone());
            }
        }
        match fields.get(tag) {
            Some(given) if !tags.contains(given) => return Err(one_of(&place, &tags)),
            None if options.iter().all(|option| requires(option, tag)) => {
                return Err(Mismatch::missing(&place));
            }
            _ => {}
        }
    }
    let fits = |option: &&Value| {
        let has_tag = tag_of(option).is_none_or(|(name, tag)| match value.get(name) {
            Some(given) => given == tag,
            None => !requires(option, name),
        });
        kinds(option).is_empty() || (accepts_kind(option, value) && has_tag)
    };
    // If several alternatives are arrays, the first item shows which alternative is meant.
    let has_item = |option: &&&Value| {
        let item = value.get(0);
        item.zip(keyword(option, "items")).is_none_or(|(item, of_item)| accepts_kind(of_item, item))
    };
    let mut fitting: Vec<&Value> = options.iter().filter(fits).collect();
    if fitting.iter().any(|option| has_item(&option)) {
        fitting.retain(|option| has_item(&option));
    }
    if let [only] = fitting[..] {
        return check(only, value, place);
    }
    let mut mismatches = Vec::new();
    for option in &fitting {
        let mut copy = value.clone();
        match check(option, &mut copy, place) {
            Ok(()) => {
                *value = copy;
                return Ok(());
            }
            Err(mismatch) => mismatches.push(mismatch),
        }
    }
    // The intended alternative is probably the one whose mismatch is the deepest.
    let depth = |of: &Mismatch| of.path.matches(['.', '[']).count();
    let furthest = mismatches
        .into_iter()
        .reduce(|best, next| if depth(&next) > depth(&best) { next } else { best });
    let all: Vec<&Value> = options.iter().collect();
    Err(furthest.unwrap_or_else(|| Mismatch::invalid(place, format!("must be {}", nouns(&all)))))
}

/// Returns the names of the fields that a schema requires.
fn required(schema: &Value) -> &[Value] {
    keyword(schema, "required").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn requires(option: &Value, field: &str) -> bool {
    required(option).iter().any(|name| name == field)
}

/// Returns the field of an alternative that has only one possible value, and the value.
fn tag_of(option: &Value) -> Option<(&String, &Value)> {
    let properties = keyword(option, "properties")?.as_object()?;
    properties.iter().find_map(|(name, property)| Some((name, keyword(property, "const")?)))
}

fn limit(schema: &Value, name: &str) -> Option<usize> {
    keyword(schema, name).and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok())
}

fn check_text(schema: &Value, text: &str, place: &Place<'_>) -> Result<(), Mismatch> {
    let parts = keyword(schema, "allOf").and_then(Value::as_array).into_iter().flatten();
    for pattern in std::iter::once(schema).chain(parts).filter_map(|one| keyword(one, "pattern")) {
        let Some(pattern) = pattern.as_str().and_then(Pattern::named) else { continue };
        if !pattern.accepts(text) {
            return Err(match pattern.regex == FILLED.regex {
                true => Mismatch::missing(place),
                false => Mismatch::invalid(place, pattern.sentence),
            });
        }
    }
    let least = limit(schema, "minLength").unwrap_or(0);
    if text.is_empty() && least > 0 {
        return Err(Mismatch {
            message: "must not be empty".to_owned(),
            ..Mismatch::missing(place)
        });
    }
    if text.chars().count() < least {
        return Err(Mismatch::invalid(place, format!("must have at least {least} characters")));
    }
    if let Some(most) = limit(schema, "maxLength")
        && text.chars().nth(most).is_some()
    {
        return Err(Mismatch::invalid(place, format!("must have at most {most} characters")));
    }
    match keyword(schema, "format").and_then(Value::as_str) {
        Some("date-time") => match text.parse::<Timestamp>() {
            Ok(_) => Ok(()),
            Err(error) => Err(Mismatch::invalid(place, format!("is {error}"))),
        },
        Some("uuid") if !is_uuid(text) => Err(Mismatch::invalid(place, "must be a UUID")),
        _ => Ok(()),
    }
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    lengths == [8, 4, 4, 4, 12] && parts.iter().all(is_hex)
}

fn check_number(schema: &Value, value: &mut Value, place: &Place<'_>) -> Result<(), Mismatch> {
    let is_integer = kinds(schema).iter().any(|kind| kind == "integer");
    let noun = if is_integer { "whole number" } else { "number" };
    let is_within = |name: &str, holds: fn(f64, f64) -> bool| {
        let limit = keyword(schema, name).and_then(Value::as_f64);
        limit.is_none_or(|limit| value.as_f64().is_some_and(|number| holds(number, limit)))
    };
    let is_excluded =
        schema.pointer("/not/const").is_some_and(|excluded| excluded.as_f64() == value.as_f64());
    let fits = is_within("minimum", |number, least| number >= least)
        && is_within("maximum", |number, most| number <= most)
        && is_within("exclusiveMinimum", |number, least| number > least)
        && !is_excluded;
    if !fits {
        return Err(Mismatch::invalid(place, format!("must be {}", range(schema, noun))));
    }
    if is_integer && let Some(whole) = integer(value) {
        let unsigned = u64::try_from(whole).ok().map(Value::from);
        let signed = || i64::try_from(whole).ok().map(Value::from);
        let Some(whole) = unsigned.or_else(signed) else {
            return Err(Mismatch::invalid(place, format!("must be {}", range(schema, noun))));
        };
        *value = whole;
    }
    Ok(())
}

fn check_items(schema: &Value, items: &mut [Value], place: &Place<'_>) -> Result<(), Mismatch> {
    let least = limit(schema, "minItems").unwrap_or(0);
    let most = limit(schema, "maxItems");
    if items.len() < least || most.is_some_and(|most| items.len() > most) {
        let message = match most {
            _ if items.is_empty() && least == 1 => "must not be empty".to_owned(),
            Some(most) if least > 1 => format!("must have {least} to {most} items"),
            Some(most) => format!("must have at most {most} items"),
            None => format!("must have at least {least} items"),
        };
        return Err(Mismatch::invalid(place, message));
    }
    let Some(of_item) = keyword(schema, "items") else { return Ok(()) };
    let mut items = items.iter_mut().enumerate();
    items.try_for_each(|(index, item)| check(of_item, item, &Place::Item(place, index)))
}

fn check_fields(
    schema: &Value,
    fields: &mut Map<String, Value>,
    place: &Place<'_>,
) -> Result<(), Mismatch> {
    let properties = keyword(schema, "properties").and_then(Value::as_object);
    let is_known = |name: &str| properties.is_some_and(|known| known.contains_key(name));
    let others = keyword(schema, "additionalProperties");
    let required = required(schema);
    for (name, property) in properties.into_iter().flatten() {
        let place = Place::Field(place, name);
        match fields.get_mut(name) {
            Some(value) => check(property, value, &place)?,
            None if required.iter().any(|required| required == name) => {
                return Err(Mismatch::missing(&place));
            }
            None => {}
        }
    }
    if others == Some(&Value::Bool(false))
        && let Some(unknown) = fields.keys().find(|name| !is_known(name))
    {
        let known: Vec<&str> = properties.into_iter().flatten().map(|(name, _)| &**name).collect();
        return Err(Mismatch::unknown(&Place::Field(place, unknown), &known));
    }
    check_count(schema, fields.len(), place)?;
    let Some(of_others) = others.filter(|others| others.is_object()) else { return Ok(()) };
    for (name, value) in fields.iter_mut().filter(|(name, _)| !is_known(name)) {
        if let Some(of_name) = keyword(schema, "propertyNames") {
            let of_names = |mismatch: Mismatch| Mismatch {
                message: format!("must have field names that each {}", mismatch.message),
                ..Mismatch::invalid(place, "")
            };
            check(of_name, &mut Value::from(name.as_str()), place).map_err(of_names)?;
        }
        check(of_others, value, &Place::Field(place, name))?;
    }
    Ok(())
}

/// Checks the number of fields in an object whose fields may have any names.
fn check_count(schema: &Value, count: usize, place: &Place<'_>) -> Result<(), Mismatch> {
    let least = limit(schema, "minProperties").unwrap_or(0);
    let most = limit(schema, "maxProperties").unwrap_or(usize::MAX);
    if (least..=most).contains(&count) {
        return Ok(());
    }
    Err(Mismatch::invalid(place, format!("must have {least} to {most} fields")))
}
