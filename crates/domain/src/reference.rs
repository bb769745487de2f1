//! References such as `{{inputs.size}}` and `{{caption.output[0].text}}`: parsed once, when a
//! workflow is stored, and resolved each time a step starts.
//!
//! ```text
//! reference = "{{" root *( "." name / "[" index "]" / "['" any key "']" ) "}}"
//! root      = "inputs" / "execution" / "secrets" / step id / item name of a map
//! ```
//!
//! Nothing here depends on the steps of a workflow, and no defaults replace missing values.
//! `template` handles the JSON that contains references.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use super::json_pointer::{JsonPointer, brief_pointer};
use super::pattern::PATTERN_BYTES_MAX;
use super::secret::is_name as is_secret_id;
use super::template::DEPTH_MAX;

/// Maximum length of a reference between its braces, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 512;

/// A reference. The `Display` output of a reference can be parsed again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    root: Root,
    path: Vec<Segment>,
}

/// The root of a reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Root {
    /// The inputs of the execution.
    Inputs,
    /// The execution itself, of which only the `id` is available.
    Execution,
    /// A named secret of the workflow's organization. Only the requests of `http` steps can use
    /// secrets.
    Secrets,
    /// A step, or the item of a `map` step, depending on the workflow.
    Name(String),
}

/// One path segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    /// `.name` or `['name']`. For an array, a whole number counts as an index.
    Key(String),
    /// `[0]`, counted from 0.
    Index(usize),
}

/// The fields of a step that references can use (`docs/spec/steps.md`, "References").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    Output,
    /// The first element of an array output, otherwise the output.
    Primary,
    Status,
    /// The response body of an HTTP step: parsed if it is JSON, otherwise text.
    Body,
    StatusCode,
    /// The response headers of an HTTP step: an object whose names are case-insensitive.
    Headers,
    /// The event that an event-waiting step received: an object with its `name` and `source`.
    Event,
    /// The link through which the event that a step waits for can be sent.
    ResumeUrl,
}

/// The values available to references.
pub trait Scope {
    /// Returns the inputs of the execution, an object.
    fn inputs(&self) -> &Value;
    /// Returns the id of the execution, as printed in the API.
    fn execution_id(&self) -> String;
    /// Returns the current item of the enclosing `map` step whose `item_name` is `name`.
    fn item(&self, name: &str) -> Option<&Value>;
    /// Returns a field of a step; `None` if the step does not have the field, for example because
    /// the step has not ended, has failed or was skipped.
    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>>;
    /// Returns the value of a named secret; `None` where secrets are not available.
    fn secret(&self, _name: &str) -> Option<&str> {
        None
    }
}

/// A scope for tests that contains only inputs.
#[cfg(any(test, feature = "test-support"))]
#[derive(Debug)]
pub struct Inputs(pub Value);

#[cfg(any(test, feature = "test-support"))]
impl Scope for Inputs {
    fn inputs(&self) -> &Value {
        &self.0
    }
    fn execution_id(&self) -> String {
        "e".to_owned()
    }
    fn item(&self, _name: &str) -> Option<&Value> {
        None
    }
    fn step(&self, _id: &str, _field: Field) -> Option<Cow<'_, Value>> {
        None
    }
}

/// A reference that cannot be parsed or resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reference}{} {kind}", at(place))]
pub struct Error {
    /// The position in the template as a JSON pointer; empty for the template itself.
    pub place: String,
    /// The reference with its braces, truncated if it is long.
    pub reference: String,
    pub kind: ErrorKind,
}

/// The problem of a reference. `Display` prints the rest of a sentence that begins with the
/// reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    #[error("has no closing }}}}")]
    Open,
    #[error("is empty")]
    Empty,
    #[error("is longer than {REFERENCE_BYTES_MAX} bytes")]
    Long,
    #[error("must start with a name of a-z A-Z 0-9 _ -")]
    Root,
    #[error("lacks a name after a dot")]
    Name,
    #[error("has brackets without an index such as [0] or a key such as ['a b'] in them")]
    Bracket,
    #[error(
        "must continue with a dot or a bracket after a name; references have no filters or operators"
    )]
    Stray,
    #[error("is unknown: the execution has only {{{{execution.id}}}}")]
    Execution,
    #[error("must name one secret, such as {{{{secrets.NAME}}}}, with a-z A-Z 0-9 _ - in the name")]
    Secret,
    #[error("is not a reference to the input, such as {{{{input.x}}}}")]
    NotTheInput,
    #[error(
        "is in the name of a field, where references are not resolved: write the name out, or write a literal \
         {{{{ as \\{{{{"
    )]
    InName,
    #[error("resolves to nothing")]
    Nothing,
    #[error("must resolve to an array")]
    NotAnArray,
    #[error(
        "does not resolve to a valid pattern: a string of at most {PATTERN_BYTES_MAX} bytes, and for matches a \
         valid regular expression"
    )]
    Pattern,
    #[error("makes the result larger than {0} bytes")]
    TooLarge(usize),
    #[error("makes the result nest deeper than {DEPTH_MAX} levels")]
    TooDeep,
}

impl Reference {
    /// Parses the text between the braces, ignoring surrounding spaces.
    ///
    /// # Errors
    /// [`ErrorKind`] describes the problem.
    pub fn parse(text: &str) -> Result<Self, ErrorKind> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ErrorKind::Empty);
        }
        if text.len() > REFERENCE_BYTES_MAX {
            return Err(ErrorKind::Long);
        }
        let root_end = text.find(|c: char| !is_root_char(c)).unwrap_or(text.len());
        let (root, rest) = text.split_at(root_end);
        if root.is_empty() {
            return Err(ErrorKind::Root);
        }
        let path = parse_path(rest)?;
        let root = match root {
            "inputs" => Root::Inputs,
            "execution" if path == [Segment::Key("id".to_owned())] => Root::Execution,
            "execution" => return Err(ErrorKind::Execution),
            "secrets" if secret_name(&path).is_some() => Root::Secrets,
            "secrets" => return Err(ErrorKind::Secret),
            name => Root::Name(name.to_owned()),
        };
        Ok(Self { root, path })
    }

    /// Returns the root of the reference.
    #[must_use]
    pub const fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the path after the root.
    #[must_use]
    pub fn path(&self) -> &[Segment] {
        &self.path
    }

    /// Returns the step field to which the reference refers, if its root is a step.
    #[must_use]
    pub fn field(&self) -> Option<Field> {
        match self.path.first()? {
            Segment::Key(name) => Field::named(name),
            Segment::Index(_) => None,
        }
    }

    /// Returns the name of the secret to which the reference refers, if any.
    #[must_use]
    pub fn secret(&self) -> Option<&str> {
        if self.root == Root::Secrets { secret_name(&self.path) } else { None }
    }

    /// Returns the referenced value; `None` if any part of the path is missing. An existing null is
    /// a value.
    #[must_use]
    pub fn look_up<'s>(&self, scope: &'s dyn Scope) -> Option<Cow<'s, Value>> {
        match &self.root {
            Root::Inputs => walk(Cow::Borrowed(scope.inputs()), &self.path),
            Root::Execution => Some(Cow::Owned(Value::String(scope.execution_id()))),
            Root::Secrets => {
                let value = scope.secret(secret_name(&self.path)?)?;
                Some(Cow::Owned(Value::String(value.to_owned())))
            }
            Root::Name(name) => match scope.item(name) {
                Some(item) => walk(Cow::Borrowed(item), &self.path),
                None => self.look_up_step(name, scope),
            },
        }
    }

    fn look_up_step<'s>(&self, id: &str, scope: &'s dyn Scope) -> Option<Cow<'s, Value>> {
        let field = self.field()?;
        let value = scope.step(id, field)?;
        let mut path = self.path.get(1..).unwrap_or_default();
        if field != Field::Headers {
            return walk(value, path);
        }
        let Some((Segment::Key(header), rest)) = path.split_first() else {
            return walk(value, path);
        };
        path = rest;
        walk(entry_ignoring_case(value, header)?, path)
    }
}

impl Field {
    /// All fields.
    pub const ALL: [Self; 8] = [
        Self::Output,
        Self::Primary,
        Self::Status,
        Self::Body,
        Self::StatusCode,
        Self::Headers,
        Self::Event,
        Self::ResumeUrl,
    ];

    /// Returns the name that is used in references.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Primary => "primary",
            Self::Status => "status",
            Self::Body => "body",
            Self::StatusCode => "status_code",
            Self::Headers => "headers",
            Self::Event => "event",
            Self::ResumeUrl => "resume_url",
        }
    }

    /// Returns whether only HTTP steps have the field.
    #[must_use]
    pub const fn is_of_http(self) -> bool {
        matches!(self, Self::Body | Self::StatusCode | Self::Headers)
    }

    /// Returns whether only steps that wait for an event have the field.
    #[must_use]
    pub const fn is_of_event(self) -> bool {
        matches!(self, Self::Event | Self::ResumeUrl)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.as_str() == name)
    }
}

impl Error {
    pub(super) fn new(
        place: &JsonPointer<'_>,
        reference: impl Into<String>,
        kind: ErrorKind,
    ) -> Self {
        Self { place: place.to_string(), reference: reference.into(), kind }
    }
}

/// Returns the name in the path of a reference to a secret.
fn secret_name(path: &[Segment]) -> Option<&str> {
    match path {
        [Segment::Key(name)] if is_secret_id(name) => Some(name),
        _ => None,
    }
}

/// Returns ` at /the/place`, or an empty string for the template itself.
fn at(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(" at {}", brief_pointer(place)) }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{{")?;
        match &self.root {
            Root::Inputs => f.write_str("inputs")?,
            Root::Execution => f.write_str("execution")?,
            Root::Secrets => f.write_str("secrets")?,
            Root::Name(name) => f.write_str(name)?,
        }
        for segment in &self.path {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) if !key.is_empty() && key.chars().all(is_key_char) => {
                    write!(f, ".{key}")?;
                }
                Segment::Key(key) if key.contains('\'') => write!(f, "[\"{key}\"]")?,
                Segment::Key(key) => write!(f, "['{key}']")?,
            }
        }
        f.write_str("}}")
    }
}

fn parse_path(mut rest: &str) -> Result<Vec<Segment>, ErrorKind> {
    let mut path = Vec::new();
    while !rest.is_empty() {
        let (segment, behind) = if let Some(dotted) = rest.strip_prefix('.') {
            let end = dotted.find(|c: char| !is_key_char(c)).unwrap_or(dotted.len());
            let (name, behind) = dotted.split_at(end);
            if name.is_empty() {
                return Err(ErrorKind::Name);
            }
            (Segment::Key(name.to_owned()), behind)
        } else if let Some(inside) = rest.strip_prefix('[') {
            parse_bracket(inside)?
        } else {
            return Err(ErrorKind::Stray);
        };
        path.push(segment);
        rest = behind;
    }
    Ok(path)
}

/// Parses the text after an opening bracket. Also returns the text after the closing bracket.
fn parse_bracket(inside: &str) -> Result<(Segment, &str), ErrorKind> {
    for quote in ['\'', '"'] {
        if let Some(quoted) = inside.strip_prefix(quote) {
            let (key, behind) = quoted.split_once(quote).ok_or(ErrorKind::Bracket)?;
            let behind = behind.strip_prefix(']').ok_or(ErrorKind::Bracket)?;
            return Ok((Segment::Key(key.to_owned()), behind));
        }
    }
    let (digits, behind) = inside.split_once(']').ok_or(ErrorKind::Bracket)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(index) if is_number => Ok((Segment::Index(index), behind)),
        Ok(_) | Err(_) => Err(ErrorKind::Bracket),
    }
}

/// Returns whether `c` is allowed in a step id or item name.
pub(crate) const fn is_root_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Characters that are operators or filters in other template languages.
const OPERATORS: [char; 12] = ['|', '+', '*', '?', '(', ')', '=', '<', '>', '!', '&', ','];

/// Returns whether `c` is allowed in a key after a dot; other keys are written in brackets.
fn is_key_char(c: char) -> bool {
    !matches!(c, '.' | '[' | ']' | '{' | '}' | '\'' | '"')
        && !OPERATORS.contains(&c)
        && !c.is_whitespace()
        && !c.is_control()
}

fn walk<'v>(value: Cow<'v, Value>, path: &[Segment]) -> Option<Cow<'v, Value>> {
    match value {
        Cow::Borrowed(value) => path.iter().try_fold(value, enter).map(Cow::Borrowed),
        Cow::Owned(value) if path.is_empty() => Some(Cow::Owned(value)),
        Cow::Owned(value) => path.iter().try_fold(&value, enter).cloned().map(Cow::Owned),
    }
}

fn enter<'v>(value: &'v Value, segment: &Segment) -> Option<&'v Value> {
    match (value, segment) {
        (Value::Array(items), Segment::Index(index)) => items.get(*index),
        (Value::Array(items), Segment::Key(key)) => items.get(key.parse::<usize>().ok()?),
        (Value::Object(fields), Segment::Key(key)) => fields.get(key),
        _ => None,
    }
}

fn entry_ignoring_case<'v>(headers: Cow<'v, Value>, name: &str) -> Option<Cow<'v, Value>> {
    let find = |value: &'_ Value| {
        let fields = value.as_object()?;
        fields.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned()
    };
    let key = find(&headers)?;
    walk(headers, &[Segment::Key(key)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reference_root_is_inputs_execution_or_name() {
        let of = |text: &str| Reference::parse(text).map(|reference| reference.root().clone());
        assert_eq!(of("inputs.a"), Ok(Root::Inputs));
        assert_eq!(of(" execution.id "), Ok(Root::Execution));
        assert_eq!(of("input.a"), Ok(Root::Name("input".to_owned())));
        assert_eq!(of("step-1_b.output"), Ok(Root::Name("step-1_b".to_owned())));
    }

    #[test]
    fn reference_first_key_may_be_a_step_field() {
        let of = |text: &str| Reference::parse(text).ok().and_then(|reference| reference.field());
        for field in Field::ALL {
            assert_eq!(of(&format!("a.{}.x", field.as_str())), Some(field));
        }
        assert_eq!(of("a['output']"), Some(Field::Output));
        assert_eq!((of("a"), of("a[0]"), of("a.outputs")), (None, None, None));
    }

    #[test]
    fn reference_to_a_secret_has_exactly_one_name() {
        let secret = |text: &str| {
            Reference::parse(text).map(|reference| reference.secret().map(str::to_owned))
        };
        assert_eq!(secret("secrets.api_key"), Ok(Some("api_key".to_owned())));
        assert_eq!(secret("secrets['API-KEY']"), Ok(Some("API-KEY".to_owned())));
        assert_eq!(secret("inputs.secrets"), Ok(None));
        for bad in ["secrets", "secrets.a.b", "secrets[0]", "secrets['a b']", "secrets.a[0]"] {
            assert_eq!(secret(bad), Err(ErrorKind::Secret), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn reference_display_and_parse_are_inverse(
            root in "inputs|[a-zA-Z0-9_-]{1,20}",
            path in prop::collection::vec(
                prop_oneof![
                    any::<usize>().prop_map(Segment::Index),
                    "[^']{0,20}".prop_map(Segment::Key),
                    "[^\"]{0,20}".prop_map(Segment::Key),
                ],
                0..5,
            ),
        ) {
            prop_assume!(root != "execution" && root != "secrets");
            let root = if root == "inputs" { Root::Inputs } else { Root::Name(root) };
            let reference = Reference { root, path };
            let printed = reference.to_string();
            let inside = &printed[2..printed.len() - 2];
            prop_assert_eq!(Reference::parse(inside), Ok(reference), "{}", printed);
        }

        #[test]
        fn reference_parse_never_panics(text in "[a-z.\\[\\]'\"0-9 ]{0,40}|\\PC*") {
            let parsed = Reference::parse(&text);
            prop_assert!(parsed.is_err() || parsed.unwrap().to_string().starts_with("{{"));
        }
    }
}
