//! The documentation of a route, next to its handler. The documentation contains the information
//! that is not in the columns of the route table. `openapi` builds the hosts' documents from this
//! documentation and the route table.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Adds the schemas of a type to a document, and returns a reference to the type's own schema.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The documentation of a route: its purpose, parameters and responses.
#[derive(Debug, Clone, Copy)]
pub struct Doc {
    /// The group of the operation.
    pub tag: &'static str,
    /// The operation ID. Client generators use it as the name of a function. Unique within a host.
    pub id: &'static str,
    pub summary: &'static str,
    /// Further information for clients, in one to four sentences. Empty only for routes of hosts
    /// without a document.
    pub description: &'static str,
    pub is_deprecated: bool,
    pub query: &'static [Param],
    pub request: Option<RequestDoc>,
    /// Whether the route accepts an `Idempotency-Key`.
    pub is_idempotent: bool,
    /// Whether the route accepts an `If-Match`.
    pub takes_if_match: bool,
    /// The format of the errors.
    pub errors: ErrorForm,
    /// The responses of the handler. The responses that follow from the route's columns, such as
    /// 401 and 429, are added automatically.
    pub responses: &'static [ResponseDoc],
}

impl Doc {
    /// Documents a route that has no description, parameters, body or response descriptions.
    #[must_use]
    pub const fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self {
            tag,
            id,
            summary,
            description: "",
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

/// The format of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// The service's error body.
    Plain,
    /// OpenAI's error body. The 401 for a missing API key has the service's error body.
    OpenAi,
    /// OpenAI's error body, also for a missing API key: the routes below `/openai`.
    OpenAiOnly,
    /// Anthropic's error body.
    Anthropic,
    /// Replicate's error body, for the routes below `/replicate`.
    Replicate,
}

/// A query parameter.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub is_required: bool,
    pub description: &'static str,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Text,
    /// Any string; the parameter may be repeated.
    Texts,
    Uuid,
    Time,
    /// A day, such as `2026-11-30`.
    Day,
    Whole {
        min: u64,
        max: u64,
        default: u64,
    },
    /// The parameter has one of these values.
    OneOf(fn() -> Vec<&'static str>),
    /// A comma-separated list of these values.
    ListOf(fn() -> Vec<&'static str>),
}

impl Param {
    /// Documents an optional parameter.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind, description: &'static str) -> Self {
        Self { name, kind, is_required: false, description }
    }

    /// Documents the page size.
    #[must_use]
    pub const fn limit(max: u64, default: u64) -> Self {
        Self::new(
            "limit",
            Kind::Whole { min: 1, max, default },
            "The maximum number of items in the page",
        )
    }
}

/// The number of items to skip.
pub const OFFSET: Param = Param::new(
    "offset",
    Kind::Whole { min: 0, max: u32::MAX as u64, default: 0 },
    "The number of items to skip",
);
/// The start of the page.
pub const CURSOR: Param =
    Param::new("cursor", Kind::Text, "The `next_cursor` of the previous page of the same query");

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestDoc {
    pub media_type: &'static str,
    pub is_required: bool,
    /// `None` for arbitrary bytes.
    pub schema: Option<SchemaOf>,
}

impl RequestDoc {
    /// Documents a required JSON body.
    #[must_use]
    pub const fn json<T: JsonSchema>() -> Self {
        let schema = Some(schema_of::<T> as SchemaOf);
        Self { media_type: "application/json", is_required: true, schema }
    }

    /// Documents a JSON body whose fields are all optional.
    #[must_use]
    pub const fn optional_json<T: JsonSchema>() -> Self {
        Self { is_required: false, ..Self::json::<T>() }
    }

    /// Documents a form with a file.
    #[must_use]
    pub const fn form<T: JsonSchema>() -> Self {
        Self { media_type: "multipart/form-data", ..Self::json::<T>() }
    }

    /// Documents a body of arbitrary bytes.
    #[must_use]
    pub const fn bytes() -> Self {
        Self { media_type: BYTES, is_required: true, schema: None }
    }
}

/// A possible response.
#[derive(Debug, Clone, Copy)]
pub struct ResponseDoc {
    pub status: u16,
    pub description: &'static str,
    pub content: Content,
    /// Header names and descriptions.
    pub headers: &'static [(&'static str, &'static str)],
}

/// The body of a response.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    Nothing,
    Json(SchemaOf),
    /// JSON or, on request, server-sent events. The second schema describes an event's data.
    JsonOrEvents(SchemaOf, SchemaOf),
    /// JSON or plain text, depending on the request.
    JsonOrText(SchemaOf),
    /// JSON or CSV, depending on the request.
    JsonOrCsv(SchemaOf),
    /// JSON, plain text or server-sent events, depending on the request.
    JsonTextOrEvents(SchemaOf, SchemaOf),
    /// The error body.
    Error,
    /// The error body of the service, of OpenAI or of Anthropic, depending on the request.
    AnyError,
    /// Text or bytes of this media type.
    Raw(&'static str),
    /// Server-sent events, with the schema of an event's data.
    Events(SchemaOf),
}

/// The media type of arbitrary bytes.
pub const BYTES: &str = "application/octet-stream";

impl ResponseDoc {
    const fn new(status: u16, description: &'static str, content: Content) -> Self {
        Self { status, description, content, headers: &[] }
    }

    /// Documents a JSON response of this type.
    #[must_use]
    pub const fn json<T: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Json(schema_of::<T>))
    }

    /// Documents a JSON response of the type `T`, or server-sent events whose data is an `E`.
    #[must_use]
    pub const fn json_or_events<T: JsonSchema, E: JsonSchema>(
        status: u16,
        description: &'static str,
    ) -> Self {
        Self::new(status, description, Content::JsonOrEvents(schema_of::<T>, schema_of::<E>))
    }

    /// Documents a JSON response of the type `T`, plain text, or server-sent events whose data is an
    /// `E`.
    #[must_use]
    pub const fn json_text_or_events<T: JsonSchema, E: JsonSchema>(
        status: u16,
        description: &'static str,
    ) -> Self {
        Self::new(status, description, Content::JsonTextOrEvents(schema_of::<T>, schema_of::<E>))
    }

    /// Documents a JSON response of the type `T`, or plain text.
    #[must_use]
    pub const fn json_or_text<T: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::JsonOrText(schema_of::<T>))
    }

    /// Documents a JSON response of the type `T`, or CSV.
    #[must_use]
    pub const fn json_or_csv<T: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::JsonOrCsv(schema_of::<T>))
    }

    /// Documents a response without a body.
    #[must_use]
    pub const fn empty(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Nothing)
    }

    /// Documents a response with text or bytes of a media type, which may be a range such as `*/*`.
    #[must_use]
    pub const fn raw(status: u16, media_type: &'static str, description: &'static str) -> Self {
        Self::new(status, description, Content::Raw(media_type))
    }

    /// Documents a response with a stream of server-sent events whose data is an `E`.
    #[must_use]
    pub const fn events<E: JsonSchema>(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Events(schema_of::<E>))
    }

    /// Documents an error response with the error body.
    #[must_use]
    pub const fn error(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::Error)
    }

    /// Documents an error response with the error body of the service, of OpenAI or of Anthropic.
    #[must_use]
    pub const fn any_error(status: u16, description: &'static str) -> Self {
        Self::new(status, description, Content::AnyError)
    }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
