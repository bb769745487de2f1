//! Templates that refer to the input of one model: the `url` and `body` of an `http` runner, and
//! the `input_map` of a fallback chain.
//!
//! The syntax is that of step templates, with `input` as the only root. Fields that are missing
//! from the input are not errors here: they become null, or an empty string inside a longer string.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::json_pointer::JsonPointer;
use super::json_size::json_bytes;
use super::reference::{Error, ErrorKind, Field, Reference, Root, Scope, Segment};
use super::template::{Missing, RESOLVED_BYTES_MAX, Template, check_names};
use super::url_template::{self, UrlTemplate};

/// The root of every reference.
const ROOT: &str = "input";

/// A template whose references all start with `input`.
#[derive(Debug, Clone, PartialEq)]
pub struct InputTemplate(Template);

impl InputTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error`] names the reference and its position.
    pub fn parse(written: &Value) -> Result<Self, Error> {
        check_names(written)?;
        let template = Template::parse(written)?;
        let mut wrong = None;
        template.visit(&JsonPointer::Root, &mut |place, reference| {
            if !matches!(reference.root(), Root::Name(name) if name == ROOT) {
                wrong.get_or_insert_with(|| {
                    Error::new(place, reference.to_string(), ErrorKind::NotTheInput)
                });
            }
        });
        wrong.map_or(Ok(Self(template)), Err)
    }

    /// Fills in the values of `input`.
    ///
    /// # Errors
    /// If the result is too large ([`bytes_max`]) or nested too deeply.
    pub fn fill(&self, input: &Value) -> Result<Value, Error> {
        self.fill_within(input, bytes_max(input))
    }

    fn fill_within(&self, input: &Value, limit_bytes: usize) -> Result<Value, Error> {
        self.0.evaluate(&input_scope(input), Missing::Null, limit_bytes)
    }

    /// Returns the template as a URL; `None` for a constant or a single reference.
    ///
    /// # Errors
    /// [`url_template::Error`] for a reference in the scheme, host or port, or for an invalid URL.
    #[must_use]
    pub fn url(&self) -> Option<Result<UrlTemplate<'_>, url_template::Error>> {
        UrlTemplate::of(&self.0)
    }

    /// Returns the value itself if it contains no references.
    #[must_use]
    pub const fn constant(&self) -> Option<&Value> {
        self.0.constant()
    }

    /// Returns the field of the input, if the template is a single reference to a field.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        let reference = self.0.reference().filter(|reference| reference.path().len() == 1)?;
        first_key(reference)
    }

    /// Returns whether the template always resolves to a string.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        self.0.is_text()
    }

    /// Returns the input fields to which the template refers.
    #[must_use]
    pub fn sources(&self) -> Vec<&str> {
        self.0.references().into_iter().filter_map(first_key).collect()
    }
}

/// Fills the values of `input` into a URL, each into its own component. Unlike in other templates,
/// a missing value is an error.
///
/// # Errors
/// [`url_template::Error`] names the reference.
pub fn fill_url(url: &str, input: &Value) -> Result<String, url_template::Error> {
    let template = InputTemplate::parse(&url.into())?;
    match template.url() {
        None => Ok(url.to_owned()),
        Some(url) => {
            let url = url?.resolve(&input_scope(input), bytes_max(input))?;
            url_template::check_target(&url)?;
            Ok(url.into())
        }
    }
}

/// Fills the values of `input` into an object of templates. A field that is a single reference to a
/// missing value is omitted.
///
/// # Errors
/// If a template is invalid, or the result is too large ([`bytes_max`]) or nested too deeply.
pub fn fill_object(map: &Map<String, Value>, input: &Value) -> Result<Map<String, Value>, Error> {
    let mut left = bytes_max(input);
    let mut filled = Map::new();
    for (name, written) in map {
        let template = InputTemplate::parse(written)?;
        let value = template.fill_within(input, left)?;
        left = left.saturating_sub(json_bytes(&value));
        if !(value.is_null() && template.0.reference().is_some()) {
            filled.insert(name.clone(), value);
        }
    }
    Ok(filled)
}

/// Returns the maximum number of bytes of JSON that a template may produce from `input`: the limit
/// of a step's input, plus enough to use every field twice.
fn bytes_max(input: &Value) -> usize {
    json_bytes(input).saturating_mul(2).saturating_add(RESOLVED_BYTES_MAX)
}

fn first_key(reference: &Reference) -> Option<&str> {
    match reference.path().first()? {
        Segment::Key(name) => Some(name),
        Segment::Index(_) => None,
    }
}

/// A scope that contains one value under a name.
#[derive(Debug, Clone, Copy)]
pub struct Named<'v> {
    pub name: &'static str,
    pub value: &'v Value,
}

/// Returns the scope that contains the input.
const fn input_scope(input: &Value) -> Named<'_> {
    Named { name: ROOT, value: input }
}

impl Scope for Named<'_> {
    fn inputs(&self) -> &Value {
        self.value
    }

    fn execution_id(&self) -> String {
        String::new()
    }

    fn item(&self, name: &str) -> Option<&Value> {
        (name == self.name).then_some(self.value)
    }

    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn input_template_lone_reference_keeps_its_type() {
        let input =
            json!({"image": "data:x", "n": 3, "list": [{"a": true}], "o": {"k": null}, "a b": 1});
        for (template, expect) in [
            (json!("{{input.image}}"), json!("data:x")),
            (json!("{{ input.n }}"), json!(3)),
            (json!("n is {{input.n}}, a is {{input.list.0.a}}"), json!("n is 3, a is true")),
            (json!("{{input.list[0].a}} {{input['a b']}}"), json!("true 1")),
            (
                json!({"all": "{{input}}", "k": [1, "{{input.o}}"]}),
                json!({"all": input, "k": [1, {"k": null}]}),
            ),
            (json!("{{input.missing.x}}"), json!(null)),
            (json!(["{{input.missing}}", 1]), json!([null, 1])),
            (json!("<{{input.missing}}>"), json!("<>")),
            (json!("plain } text {"), json!("plain } text {")),
            (json!("\\{{input}}"), json!("{{input}}")),
            (json!(""), json!("")),
        ] {
            assert_eq!(InputTemplate::parse(&template).unwrap().fill(&input), Ok(expect));
        }
    }

    #[test]
    fn input_template_invalid_reference_is_named_with_its_path() {
        for (bad, expect) in [
            (
                "{{inputs.a}}",
                "{{inputs.a}} at /0 is not a reference to the input, such as {{input.x}}",
            ),
            ("{{step.output}}", "{{step.output}} at /0 is not a reference to the input"),
            ("{{execution.id}}", "{{execution.id}} at /0 is not a reference to the input"),
            ("{{input.a", "{{input.a at /0 has no closing }}"),
            ("{{input..a}}", "lacks a name"),
            ("{{}}", "is empty"),
            ("{{inputx}}", "is not a reference to the input"),
        ] {
            let error = InputTemplate::parse(&json!([bad])).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
        let error = InputTemplate::parse(&json!([{"{{input.a}}": 1}])).unwrap_err().to_string();
        assert!(
            error.contains("{{input.a}} at /0/{{input.a}} is in the name of a field"),
            "{error}"
        );
    }

    #[test]
    fn input_template_url_values_stay_in_their_component() {
        let input = json!({"id": "../a?x=", "n": 7, "up": "..", "colon": "a:b"});
        for (url, expect) in [
            ("http://h/u/{{input.id}}/x", Ok("http://h/u/..%2Fa%3Fx%3D/x")),
            ("http://h/{{input.n}}?q={{ input.id }}", Ok("http://h/7?q=..%2Fa%3Fx%3D")),
            ("http://h/plain", Ok("http://h/plain")),
            ("http://h/{{input.up}}/x", Err("must not get the path segment '..'")),
            ("http://h/{{input.missing}}/x", Err("{{input.missing}} ")),
            ("http://{{input.colon}}:p@h/", Err("must not have ':' in its user name")),
        ] {
            let filled = fill_url(url, &input).map_err(|error| error.to_string());
            match (filled, expect) {
                (Ok(filled), Ok(expect)) => assert_eq!(filled, expect),
                (Err(error), Err(expect)) => assert!(error.starts_with(expect), "{error}"),
                (filled, _) => panic!("{url}: {filled:?}"),
            }
        }
    }

    /// Clients choose the input, so a few references in the operator's template must not multiply
    /// it until memory runs out.
    #[test]
    fn input_template_result_is_bounded_by_input_size() {
        let input = json!({"text": "x".repeat(1 << 20)});
        let repeated = |times: usize| json!("{{input.text}}".repeat(times));
        let fill = |template: &Value| InputTemplate::parse(template).unwrap().fill(&input);
        assert!(fill(&repeated(9)).is_ok());
        let error = fill(&repeated(11)).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::TooLarge(_)), "{error}");
        let object = |fields: usize| {
            let fields = (0..fields).map(|number| (number.to_string(), repeated(1)));
            fill_object(&fields.collect(), &input)
        };
        assert!(object(9).is_ok());
        assert!(matches!(object(11).unwrap_err().kind, ErrorKind::TooLarge(_)));
    }

    #[test]
    fn input_template_omits_fields_missing_from_input() {
        let map = json!({"a": "{{input.a}}", "b": "{{input.b}}", "c": "<{{input.b}}>", "d": null});
        let filled = fill_object(map.as_object().unwrap(), &json!({"a": 1})).unwrap();
        assert_eq!(Value::Object(filled), json!({"a": 1, "c": "<>", "d": null}));
    }
}
