//! The documentation of a route, beside its handler: what the columns of the route table do not say.
//! `openapi` makes the documents of the hosts from both.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Adds the schemas that a type needs to a document, and refers to its own.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a route does, takes and answers.
#[derive(Debug, Clone, Copy)]
pub struct Doc {
    /// Groups operations.
    pub tag: &'static str,
    /// The operation's id: client generators name functions after it. Unique within a host.
    pub id: &'static str,
    pub summary: &'static str,
    pub is_deprecated: bool,
    pub query: &'static [Param],
    pub request: Option<RequestDoc>,
    /// Whether it takes an `Idempotency-Key`.
    pub is_idempotent: bool,
    /// Whether it takes an `If-Match`.
    pub takes_if_match: bool,
    /// How its errors are written.
    pub errors: ErrorForm,
    /// The answers of the handler. Those that follow from the route's columns, such as 401 and 429,
    /// are added in the document.
    pub responses: &'static [ResponseDoc],
}

impl Doc {
    /// A route that takes nothing and says nothing of its answers.
    #[must_use]
    pub const fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            tag,
            id,
            summary,
            is_deprecated: false,
            query: &[],
            request: None,
            is_idempotent: false,
            takes_if_match: false,
            errors: ErrorForm::Plain,
            responses: &[],
        }
    }
}

/// How errors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// The error body of the service.
    Plain,
    /// As OpenAI's clients read them, a missing key aside.
    OpenAi,
}

/// A parameter of the query.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub is_required: bool,
    pub description: &'static str,
}

/// The values of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    /// Any number of texts: the parameter may be repeated.
    Texts,
    Uuid,
    Time,
    Whole {
        min: u64,
        max: u64,
        default: u64,
    },
    /// One of these.
    OneOf(fn() -> Vec<&'static str>),
    /// Some of these, separated by commas.
    ListOf(fn() -> Vec<&'static str>),
}

impl Param {
    /// A parameter that may be absent.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind, description: &'static str) -> Self {
        Self { name, kind, is_required: false, description }
    }

    /// How many items a page has.
    #[must_use]
    pub const fn limit(max: u64, default: u64) -> Self {
        Self::new("limit", Kind::Whole { min: 1, max, default }, "How many items the page has")
    }
}

/// How many items are skipped.
pub const OFFSET: Param = Param::new(
    "offset",
    Kind::Whole { min: 0, max: u32::MAX as u64, default: 0 },
    "How many items are skipped",
);
/// Where the page begins.
pub const CURSOR: Param =
    Param::new("cursor", Kind::Text, "`next_cursor` of the previous page of the same query");

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestDoc {
    pub media_type: &'static str,
    pub is_required: bool,
    /// `None` for bytes of any kind.
    pub schema: Option<SchemaOf>,
}

impl RequestDoc {
    /// A JSON body that must be there.
    #[must_use]
    pub const fn json<T: JsonSchema>() -> Self {
        let schema = Some(schema_of::<T> as SchemaOf);
        Self { media_type: "application/json", is_required: true, schema }
    }

    /// A JSON body all of whose fields may be absent.
    #[must_use]
    pub const fn optional_json<T: JsonSchema>() -> Self {
        Self { is_required: false, ..Self::json::<T>() }
    }

    /// A form with a file.
    #[must_use]
    pub const fn form<T: JsonSchema>() -> Self {
        Self { media_type: "multipart/form-data", ..Self::json::<T>() }
    }

    /// Bytes of any kind.
    #[must_use]
    pub const fn bytes() -> Self {
        Self { media_type: BYTES, is_required: true, schema: None }
    }
}

/// One of the answers.
#[derive(Debug, Clone, Copy)]
pub struct ResponseDoc {
    pub status: u16,
    pub description: &'static str,
    pub content: Content,
    /// Names and descriptions.
    pub headers: &'static [(&'static str, &'static str)],
}

/// The body of an answer.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    Nothing,
    Json(SchemaOf),
    /// JSON, or server-sent events where the request asks for them.
    JsonOrEvents(SchemaOf),
    /// The error body.
    Error,
    /// The error body of the service or, in OpenAI's form, of OpenAI.
    AnyError,
    /// Text or bytes of this media type.
    Raw(&'static str),
    /// Server-sent events.
    Events,
}

/// The media type of bytes of which nothing is known.
pub const BYTES: &str = "application/octet-stream";

impl ResponseDoc {
    const fn new(status: u16, description: &'static str, content: Content) -> Self {
        Self { status, description, content, headers: &[] }
    }

    /// JSON of this type.
    #[must_use]
    pub const fn json<T: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Json(schema_of::<T>))
    }

    /// JSON of this type, or server-sent events.
    #[must_use]
    pub const fn json_or_events<T: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::JsonOrEvents(schema_of::<T>))
    }

    /// No body.
    #[must_use]
    pub const fn empty(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Nothing)
    }

    /// Text or bytes of a media type, which may be a range such as `*/*`.
    #[must_use]
    pub const fn raw(status: u16, media_type: &'static str, description: &'static str) -> Self {
        Self::new(status, description, Content::Raw(media_type))
    }

    /// A stream of server-sent events.
    #[must_use]
    pub const fn events(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Events)
    }

    /// The error body.
    #[must_use]
    pub const fn error(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Error)
    }

    /// The error body of the service, or that of OpenAI.
    #[must_use]
    pub const fn any_error(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::AnyError)
    }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
