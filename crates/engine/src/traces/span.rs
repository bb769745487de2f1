//! The span data type.

use std::borrow::Cow;

use orrery_domain::time::Timestamp;
use orrery_domain::trace::{SpanId, Trace, TraceId};

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Work within the service itself.
    Internal = 1,
    /// Work that the service does on behalf of a client.
    Server = 2,
    /// A call from the service to a remote party.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(Cow<'static, str>),
    Flag(bool),
    Whole(i64),
    Number(f64),
    Texts(Vec<String>),
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    /// The `tracestate` of W3C Trace Context.
    pub state: Option<String>,
    pub name: String,
    pub kind: Kind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
    /// The class of the span's error.
    pub error: Option<String>,
    /// The span of the same trace that this span continues.
    pub link: Option<SpanId>,
}

impl Span {
    /// Creates a span of `trace` from `start` to `end`; an earlier `end` is raised to `start`.
    pub fn new(trace: &Trace, id: SpanId, name: String, start: Timestamp, end: Timestamp) -> Self {
        Self {
            trace: trace.id(),
            id,
            parent: None,
            state: trace.state().map(str::to_owned),
            name,
            kind: Kind::Internal,
            start,
            end: end.max(start),
            attributes: Vec::new(),
            error: None,
            link: None,
        }
    }

    /// Sets the parent.
    pub fn below(mut self, parent: SpanId) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Sets the kind.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.attributes.push((name, value.into()));
    }

    /// Marks the span as failed, with this error name and class.
    pub fn fail(&mut self, name: impl Into<String>, class: &'static str) {
        self.set("error.type", class);
        self.error = Some(name.into());
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}
