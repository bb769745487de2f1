//! The trace of an execution, according to W3C Trace Context
//! (<https://www.w3.org/TR/trace-context/>): the trace id, and the context that is propagated to
//! called services.
//!
//! Ids are derived, never random. Work submitted without a `traceparent` uses its own id as the
//! trace id, and a span id is a hash of the span's permanent name, such as the id of an attempt. So
//! no ids have to be stored, an attempt that is repeated after a crash keeps its span, and the ids
//! sent to a model's server match the ids exported after the work has ended.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::ids::{ExecutionId, Id as _};

/// Maximum number of entries in a `tracestate`. A longer `tracestate` is dropped.
const STATE_ENTRIES_MAX: usize = 32;
/// Maximum number of characters in a propagated `tracestate`: the minimum required by the
/// specification.
const STATE_CHARS_MAX: usize = 512;
/// Entries longer than this number of characters are dropped first when there are too many
/// characters.
const STATE_ENTRY_LONG: usize = 128;
/// Maximum number of characters in an entry's key, and in its value.
const STATE_PART_MAX: usize = 256;

/// Number of characters in a `traceparent` of version 00.
const PARENT_CHARS: usize = 55;

/// The flag of a caller that records its spans and asks the called services to record theirs too.
const SAMPLED: u8 = 0b01;
/// The flag of a trace id whose last seven bytes are random (level 2).
const RANDOM: u8 = 0b10;

/// The id of a trace: never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span: never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns the binary form for exporters.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// Returns the span id derived from a name; always the same for the same name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let hash = Sha256::digest(name.as_bytes());
        let bytes = hash.first_chunk().copied().unwrap_or([1; 8]);
        Self(if bytes == [0; 8] { [1; 8] } else { bytes })
    }

    /// Returns the binary form for exporters.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The calling span: a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    pub trace: TraceId,
    pub span: SpanId,
    flags: u8,
}

/// The string is not a valid `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent")]
pub struct Invalid;

impl Parent {
    /// Returns whether the caller requests that spans be recorded.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns this context with another span of the same trace.
    const fn at(self, span: SpanId) -> Self {
        Self { span, ..self }
    }
}

impl FromStr for Parent {
    type Err = Invalid;

    /// Parses exactly what section 3.2 of the specification allows. For an unknown version, only
    /// the parts of version 00 are read.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let bytes = text.as_bytes();
        let (head, rest) = bytes.split_at_checked(PARENT_CHARS).ok_or(Invalid)?;
        let [b'-', ..] = head.get(2..).ok_or(Invalid)? else { return Err(Invalid) };
        let is_separated = |at: usize| head.get(at) == Some(&b'-');
        if !is_separated(35) || !is_separated(52) {
            return Err(Invalid);
        }
        let [version] = hex(head.get(..2))?;
        let more_is_allowed = version != 0 && rest.first() == Some(&b'-');
        if version == 0xff || !(rest.is_empty() || more_is_allowed) {
            return Err(Invalid);
        }
        let trace: [u8; 16] = hex(head.get(3..35))?;
        let span: [u8; 8] = hex(head.get(36..52))?;
        let [flags] = hex(head.get(53..55))?;
        if trace == [0; 16] || span == [0; 8] {
            return Err(Invalid);
        }
        let flags = flags & (SAMPLED | RANDOM);
        Ok(Self { trace: TraceId(trace), span: SpanId(span), flags })
    }
}

/// Parses lower-case hexadecimal digits.
fn hex<const N: usize>(text: Option<&[u8]>) -> Result<[u8; N], Invalid> {
    let (pairs, []) = text.ok_or(Invalid)?.as_chunks::<2>() else { return Err(Invalid) };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(Invalid),
    };
    let mut read = [0; N];
    if pairs.len() != N {
        return Err(Invalid);
    }
    for (byte, [high, low]) in read.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Ok(read)
}

impl Parent {
    /// Returns the value of the header.
    fn text(&self) -> String {
        let mut text = String::with_capacity(PARENT_CHARS);
        text.push_str("00");
        for part in [&self.trace.0[..], &self.span.0, &[self.flags]] {
            text.push('-');
            let digits = part.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
            text.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
        }
        text
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Serialize for Parent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Parent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The trace context of a request, stored with the work that it created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The `tracestate` to propagate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The client's own `X-Request-Id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Origin {
    /// Reads the trace headers. An invalid `traceparent` is ignored, and so is a `tracestate`
    /// without a valid `traceparent`. Returns `None` if there is nothing to store.
    #[must_use]
    pub fn read(
        traceparent: Option<&str>,
        tracestate: Option<&str>,
        request_id: Option<&str>,
    ) -> Option<Arc<Self>> {
        let parent: Option<Parent> = traceparent.and_then(|text| text.parse().ok());
        if parent.is_none() && request_id.is_none() {
            return None;
        }
        let state = parent.and(tracestate).and_then(bounded_state);
        let request_id = request_id.map(str::to_owned);
        Some(Arc::new(Self { parent, state, request_id }))
    }
}

/// Returns a `tracestate` in the form in which it is propagated (section 3.3): complete, or without
/// its longest and last entries if it is too long. `None` if it is invalid or empty.
fn bounded_state(text: &str) -> Option<String> {
    let entries = text.split(',').map(|entry| entry.trim_matches([' ', '\t']));
    let mut entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
    let keys: Option<Vec<&str>> = entries.iter().map(|entry| key_of_entry(entry)).collect();
    let mut keys = keys?;
    keys.sort_unstable();
    let has_twice = keys.windows(2).any(|pair| matches!(pair, [one, other] if one == other));
    if entries.is_empty() || entries.len() > STATE_ENTRIES_MAX || has_twice {
        return None;
    }
    let length = |entries: &[&str]| entries.iter().map(|entry| entry.len() + 1).sum::<usize>() - 1;
    if length(&entries) > STATE_CHARS_MAX {
        entries.retain(|entry| entry.len() <= STATE_ENTRY_LONG);
    }
    while !entries.is_empty() && length(&entries) > STATE_CHARS_MAX {
        entries.pop();
    }
    (!entries.is_empty()).then(|| entries.join(","))
}

/// Returns the key of a `tracestate` entry; `None` if the entry is invalid.
fn key_of_entry(entry: &str) -> Option<&str> {
    let (key, value) = entry.split_once('=')?;
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_key = |byte: &u8| is_first(byte) || b"_-*/@".contains(byte);
    let is_value = |byte: &u8| matches!(byte, 0x20..=0x7e) && !b",=".contains(byte);
    let fits = |part: &str| (1..=STATE_PART_MAX).contains(&part.len());
    let (first, rest) = key.as_bytes().split_first()?;
    let is_entry = fits(key)
        && is_first(first)
        && rest.iter().all(is_key)
        && fits(value)
        && value.bytes().all(|byte| is_value(&byte));
    is_entry.then_some(key)
}

/// The trace of one execution.
#[derive(Debug, Clone)]
pub struct Trace {
    execution: ExecutionId,
    origin: Option<Arc<Origin>>,
}

impl Trace {
    /// Returns the trace of an execution with the given origin.
    #[must_use]
    pub const fn new(execution: ExecutionId, origin: Option<Arc<Origin>>) -> Self {
        Self { execution, origin }
    }

    /// Returns the origin that is stored with the execution.
    #[must_use]
    pub fn origin(&self) -> Option<Arc<Origin>> {
        self.origin.clone()
    }

    /// Returns the trace id: the caller's, or the execution's own.
    #[must_use]
    pub fn id(&self) -> TraceId {
        let own = || {
            let bytes = self.execution.bytes();
            TraceId(if bytes == [0; 16] { [1; 16] } else { bytes })
        };
        self.caller().map_or_else(own, |parent| parent.trace)
    }

    /// Returns the span of the execution itself.
    #[must_use]
    pub fn root(&self) -> SpanId {
        SpanId::of(&self.execution.to_string())
    }

    /// Returns the span of the caller, if known.
    #[must_use]
    pub fn caller(&self) -> Option<Parent> {
        self.origin.as_ref()?.parent
    }

    /// Returns the `tracestate` of the request.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.origin.as_ref()?.state.as_deref()
    }

    /// Returns whether the spans are to be recorded: as the caller requested, or true by default.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.caller().is_none_or(|parent| parent.is_sampled())
    }

    /// Returns the context of an outgoing call; `name` identifies the call permanently.
    #[must_use]
    pub fn call(&self, name: &str) -> Call {
        Call { trace: self.clone(), span: SpanId::of(name) }
    }

    /// Returns the origin of a redrive of this execution. The redrive has the same trace, unless
    /// the new request has its own trace.
    #[must_use]
    pub fn of_successor(&self, asked: Option<&Origin>) -> Arc<Origin> {
        let inherited = self.below(self.root());
        Arc::new(match asked {
            Some(asked) if asked.parent.is_some() => asked.clone(),
            Some(Origin { request_id: Some(id), .. }) => {
                Origin { request_id: Some(id.clone()), ..inherited }
            }
            Some(_) | None => inherited,
        })
    }

    fn below(&self, span: SpanId) -> Origin {
        let own = Parent { trace: self.id(), span, flags: SAMPLED };
        Origin {
            parent: Some(self.caller().unwrap_or(own).at(span)),
            state: self.state().map(str::to_owned),
            request_id: Some(self.request_id()),
        }
    }

    /// Returns the id of the request, or the execution's own id if the client sent none.
    fn request_id(&self) -> String {
        let given = self.origin.as_ref().and_then(|origin| origin.request_id.clone());
        given.unwrap_or_else(|| self.execution.to_string())
    }
}

/// An outgoing call, with its own span.
#[derive(Debug, Clone)]
pub struct Call {
    trace: Trace,
    span: SpanId,
}

impl Call {
    /// Returns the call's `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let own = Parent { trace: self.trace.id(), span: self.span, flags: SAMPLED };
        self.trace.caller().unwrap_or(own).at(self.span).text()
    }

    /// Returns the call's `tracestate`.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.trace.state()
    }

    /// Returns the call's `X-Request-Id`.
    #[must_use]
    pub fn request_id(&self) -> String {
        self.trace.request_id()
    }

    /// Returns the origin of an execution started by the call.
    #[must_use]
    pub fn origin(&self) -> Arc<Origin> {
        Arc::new(self.trace.below(self.span))
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
