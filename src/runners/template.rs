//! Templates of a manifest: JSON whose strings may hold `{{input.NAME}}`.
//!
//! A string that is one reference becomes the value itself, with its type; inside a longer string
//! the value is put in as text. What the input does not have becomes null, or no text.

use serde_json::{Map, Value};

/// The deepest nesting of a template.
const DEPTH_MAX: usize = 64;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub enum Template {
    Constant(Value),
    /// The path of a value within the input.
    Reference(Vec<String>),
    /// Text with references in it.
    Text(Vec<Part>),
    Array(Vec<Template>),
    Object(Vec<(String, Template)>),
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    Reference(Vec<String>),
}

/// A template that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{{{{{0}}}}} is no reference: write {{{{input.NAME}}}}")]
    Reference(String),
    #[error("'{0}' has {{{{ without }}}}")]
    Open(String),
    #[error("a template may nest {DEPTH_MAX} deep")]
    Depth,
}

impl Template {
    /// Parses a template as it is written.
    ///
    /// # Errors
    /// [`Error`] names the reference.
    pub fn parse(written: &Value) -> Result<Self, Error> {
        Self::parse_at(written, 0)
    }

    fn parse_at(written: &Value, depth: usize) -> Result<Self, Error> {
        if depth > DEPTH_MAX {
            return Err(Error::Depth);
        }
        Ok(match written {
            Value::String(text) => Self::of_text(text)?,
            Value::Array(items) => {
                let items = items.iter().map(|item| Self::parse_at(item, depth + 1));
                Self::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| {
                    Ok::<_, Error>((name.clone(), Self::parse_at(value, depth + 1)?))
                });
                Self::Object(fields.collect::<Result<_, _>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Self::Constant(written.clone()),
        })
    }

    fn of_text(text: &str) -> Result<Self, Error> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("{{") {
            let open = || Error::Open(text.chars().take(40).collect());
            let (reference, after) = behind.split_once("}}").ok_or_else(open)?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Reference(path_of(reference)?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(match parts.as_mut_slice() {
            [] => Self::Constant(Value::String(String::new())),
            [Part::Text(text)] => Self::Constant(Value::String(std::mem::take(text))),
            [Part::Reference(path)] => Self::Reference(std::mem::take(path)),
            _ => Self::Text(parts),
        })
    }

    /// The fields of the input that it refers to.
    #[must_use]
    pub fn sources(&self) -> Vec<&str> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Reference(path) => path.first().map(String::as_str).into_iter().collect(),
            Self::Text(parts) => parts.iter().filter_map(Part::source).collect(),
            Self::Array(items) => items.iter().flat_map(Self::sources).collect(),
            Self::Object(fields) => fields.iter().flat_map(|(_, value)| value.sources()).collect(),
        }
    }

    /// The template with the input's values in it.
    #[must_use]
    pub fn fill(&self, input: &Value) -> Value {
        match self {
            Self::Constant(value) => value.clone(),
            Self::Reference(path) => look_up(input, path).cloned().unwrap_or_default(),
            Self::Text(parts) => Value::String(parts.iter().map(|part| part.text(input)).collect()),
            Self::Array(items) => items.iter().map(|item| item.fill(input)).collect(),
            Self::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), value.fill(input)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

impl Part {
    fn source(&self) -> Option<&str> {
        match self {
            Self::Text(_) => None,
            Self::Reference(path) => path.first().map(String::as_str),
        }
    }

    fn text(&self, input: &Value) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Reference(path) => match look_up(input, path) {
                None => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        }
    }
}

fn path_of(reference: &str) -> Result<Vec<String>, Error> {
    let fault = || Error::Reference(reference.chars().take(40).collect());
    let path = reference.trim().strip_prefix("input").ok_or_else(fault)?;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let path = path.strip_prefix('.').ok_or_else(fault)?;
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) { Err(fault()) } else { Ok(path) }
}

fn look_up<'a>(input: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(input, |value, part| match value.as_array() {
        Some(items) => items.get(part.parse::<usize>().ok()?),
        None => value.get(part),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_keep_their_type_alone_and_become_text_among_text() {
        let input = json!({"image": "data:x", "n": 3, "list": [{"a": true}], "o": {"k": null}});
        for (template, expect) in [
            (json!("{{input.image}}"), json!("data:x")),
            (json!("{{ input.n }}"), json!(3)),
            (json!("n is {{input.n}}, a is {{input.list.0.a}}"), json!("n is 3, a is true")),
            (
                json!({"all": "{{input}}", "k": [1, "{{input.o}}"]}),
                json!({"all": input, "k": [1, {"k": null}]}),
            ),
            (json!("{{input.missing.x}}"), json!(null)),
            (json!("<{{input.missing}}>"), json!("<>")),
            (json!("plain } text {"), json!("plain } text {")),
            (json!(""), json!("")),
        ] {
            assert_eq!(Template::parse(&template).unwrap().fill(&input), expect, "{template}");
        }
    }

    #[test]
    fn broken_references_are_named() {
        for bad in ["{{inputs.a}}", "{{input.a", "{{input..a}}", "{{}}", "{{inputx}}"] {
            assert!(Template::parse(&json!([bad])).is_err(), "{bad}");
        }
    }
}
