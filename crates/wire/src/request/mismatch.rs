//! Explains why a body does not match its schema: the position, and a sentence that names it.

use std::fmt;

use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::spelling;

/// The first part of a body that does not match its schema. Prints as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The path of the field, such as `entries[0].model`; empty for the body itself.
    pub path: String,
    pub kind: MismatchKind,
    /// The rest of a sentence that begins with the path.
    pub message: String,
}

/// The kind of a mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchKind {
    /// A required field is absent, null or blank.
    Missing,
    /// The schema has no such field.
    Unknown,
    /// The value has another type, or is outside a limit.
    Invalid,
}

/// The message about a required field that is absent, null or blank.
const REQUIRED: &str = "is required";

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, kind, message } = self;
        match kind {
            MismatchKind::Unknown => f.write_str(message),
            _ if path.is_empty() => write!(f, "the request body {message}"),
            MismatchKind::Missing | MismatchKind::Invalid => write!(f, "{path} {message}"),
        }
    }
}

impl std::error::Error for Mismatch {}

impl From<Mismatch> for InvalidRequest {
    fn from(mismatch: Mismatch) -> Self {
        let message = mismatch.to_string();
        if mismatch.path.is_empty() {
            return Self::whole(message);
        }
        let is_missing = mismatch.kind == MismatchKind::Missing && mismatch.message == REQUIRED;
        let code = if is_missing { "missing_required_parameter" } else { "invalid_value" };
        Self { code, ..Self::field(mismatch.path, message) }
    }
}

impl Mismatch {
    /// Returns the error for an OpenAI-compatible request, in which `param` is only the top-level
    /// field of the path.
    #[must_use]
    pub fn of_field(self) -> InvalidRequest {
        let field = self.path.split(['.', '[']).next().map(|field| field.to_owned().into());
        InvalidRequest { param: field.filter(|_| !self.path.is_empty()), ..self.into() }
    }

    /// Reports a top-level field whose value cannot be used.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { path: name.to_owned(), kind: MismatchKind::Invalid, message: message.into() }
    }

    pub(super) fn invalid(place: &Place<'_>, message: impl Into<String>) -> Self {
        Self { path: place.to_string(), kind: MismatchKind::Invalid, message: message.into() }
    }

    pub(super) fn missing(place: &Place<'_>) -> Self {
        match place {
            Place::Root => Self::invalid(place, "must be a JSON object"),
            Place::Field(..) | Place::Item(..) => {
                Self { kind: MismatchKind::Missing, ..Self::invalid(place, REQUIRED) }
            }
        }
    }

    /// Reports a field that the schema does not have.
    pub(super) fn unknown(place: &Place<'_>, known: &[&str]) -> Self {
        let path = place.to_string();
        let name = match place {
            Place::Field(_, name) => name,
            Place::Root | Place::Item(..) => "",
        };
        let message = spelling::unknown("field", &path, name, known);
        Self { path, kind: MismatchKind::Unknown, message }
    }

    /// Reports a body that matches its schema but cannot be converted, which is an error in the
    /// schema.
    pub(super) fn of_conversion(error: &serde_json::Error) -> Self {
        Self::invalid(&Place::Root, format!("cannot be read: {error}"))
    }
}

/// A position in a body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

/// Maximum length of a name in a path, in characters.
const NAME_CHARS_MAX: usize = 256;

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(parent, name) => {
                let dot = if matches!(parent, Self::Root) { "" } else { "." };
                let name: String = name.chars().take(NAME_CHARS_MAX).collect();
                write!(f, "{parent}{dot}{name}")
            }
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
