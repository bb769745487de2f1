//! Converts names in references: the input reference `{{name}}` in the legacy form is
//! `{{inputs.name}}` in a definition. References to steps are the same in both forms.

use std::collections::HashSet;

use serde_json::Value;

use crate::reference::is_root_char;

const INPUTS: &str = "inputs";

/// Maximum length of an input name in bytes. The length is limited because finding a name in a
/// reference takes quadratic time.
pub const NAME_BYTES_MAX: usize = 128;

/// Converts references to these inputs from the legacy form to the form of a definition.
pub fn to_definition(value: &Value, inputs: &HashSet<String>) -> Value {
    replaced(value, &|inside| {
        let name = longest_name(inside, inputs)?;
        let rest = inside.get(name.len()..)?;
        Some(format!("{INPUTS}{}{rest}", step_into(name)))
    })
}

/// Converts references to inputs to the legacy form.
pub fn to_legacy(value: &Value) -> Value {
    replaced(value, &|inside| {
        let rest = inside.strip_prefix(INPUTS)?;
        if let Some(name) = rest.strip_prefix('.') {
            return Some(name.to_owned());
        }
        let (name, rest) = rest.strip_prefix("['")?.split_once("']")?;
        Some(format!("{name}{rest}"))
    })
}

/// Returns the longest input name at the start of the reference that is followed by a `.`, a `[` or
/// the end of the reference. Looks up each prefix in the set, so that the time does not depend on
/// the number of inputs.
fn longest_name<'t>(inside: &'t str, inputs: &HashSet<String>) -> Option<&'t str> {
    let within = inside.get(..inside.floor_char_boundary(NAME_BYTES_MAX + 1))?;
    let whole = (inside.len() <= NAME_BYTES_MAX).then_some(inside);
    let prefixes = within.rmatch_indices(['.', '[']).filter_map(|(end, _)| inside.get(..end));
    whole.into_iter().chain(prefixes).find(|name| !name.is_empty() && inputs.contains(*name))
}

/// Returns the path segment that selects an input.
fn step_into(name: &str) -> String {
    if name.chars().all(is_root_char) { format!(".{name}") } else { format!("['{name}']") }
}

/// Replaces the text between braces wherever `replace` returns a replacement.
fn replaced(value: &Value, replace: &dyn Fn(&str) -> Option<String>) -> Value {
    match value {
        Value::String(text) => Value::String(replaced_in(text, replace)),
        Value::Array(items) => items.iter().map(|item| replaced(item, replace)).collect(),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| (name.clone(), replaced(value, replace)));
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn replaced_in(text: &str, replace: &dyn Fn(&str) -> Option<String>) -> String {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once("{{") {
        done.push_str(before);
        done.push_str("{{");
        rest = behind;
        // A literal `{{`.
        if before.ends_with('\\') {
            continue;
        }
        let Some((inside, behind)) = rest.split_once("}}") else { break };
        match replace(inside.trim()) {
            Some(other) => done.push_str(&other),
            None => done.push_str(inside),
        }
        done.push_str("}}");
        rest = behind;
    }
    done.push_str(rest);
    done
}
