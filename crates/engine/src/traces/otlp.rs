//! Encodes spans as an OTLP request (`ExportTraceServiceRequest` of opentelemetry-proto) in
//! Protocol Buffers, which every collector accepts.
//!
//! The few required fields are written by number, using the three wire types that they need. The
//! official crate would add the entire OpenTelemetry SDK as a dependency, and Protocol Buffers
//! crates with derive macros would add more code than this file contains. A test compares the bytes
//! with the output of the official implementation.

use super::span::{Span, Value};
use orrery_domain::time::Timestamp;

/// `STATUS_CODE_ERROR`
const ERROR: u64 = 2;
/// The sampled flag of W3C Trace Context.
const SAMPLED: u32 = 1;

/// A message being written: fields in any order, each with its field number.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// The wire type of a value.
#[derive(Debug, Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

impl Message {
    fn varint(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.0.push(low & 0x7f);
            }
            self.0.push(low | 0x80);
        }
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    fn whole(&mut self, field: u32, number: u64) {
        self.key(field, Wire::Varint);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, bytes: [u8; 8]) {
        self.key(field, Wire::Fixed64);
        self.0.extend_from_slice(&bytes);
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.key(field, Wire::Fixed32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes a field. Omits the field if it is empty, as is usual for these types.
    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.whole_bytes(field, bytes);
        }
    }

    fn whole_bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, Wire::Bytes);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a nested message, even if it is empty.
    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.whole_bytes(field, &inner.0);
    }
}

/// Returns the request body for `spans` of a service on this machine.
pub fn encode(spans: &[Span], machine: &str) -> Vec<u8> {
    let resource = [
        ("service.name", Value::from("orrery")),
        ("service.version", Value::from(env!("CARGO_PKG_VERSION"))),
        ("host.name", Value::from(machine.to_owned())),
    ];
    let mut request = Message::default();
    request.message(1, |of_resource| {
        of_resource.message(1, |written| attributes(written, 1, &resource));
        of_resource.message(2, |of_scope| {
            of_scope.message(1, |scope| {
                scope.bytes(1, b"orrery");
                scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for one in spans {
                of_scope.message(2, |written| span(written, one));
            }
        });
    });
    request.0
}

fn span(written: &mut Message, span: &Span) {
    written.bytes(1, &span.trace.bytes());
    written.bytes(2, &span.id.bytes());
    written.bytes(3, span.state.as_deref().unwrap_or_default().as_bytes());
    if let Some(parent) = span.parent {
        written.bytes(4, &parent.bytes());
    }
    written.bytes(5, span.name.as_bytes());
    written.whole(6, span.kind as u64);
    written.fixed64(7, nanos(span.start).to_le_bytes());
    written.fixed64(8, nanos(span.end).to_le_bytes());
    attributes(written, 9, &span.attributes);
    if let Some(link) = span.link {
        written.message(13, |written| {
            written.bytes(1, &span.trace.bytes());
            written.bytes(2, &link.bytes());
        });
    }
    if let Some(error) = &span.error {
        written.message(15, |status| {
            status.bytes(2, error.as_bytes());
            status.whole(3, ERROR);
        });
    }
    written.fixed32(16, SAMPLED);
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.micros()).unwrap_or(0).saturating_mul(1000)
}

fn attributes(written: &mut Message, field: u32, all: &[(&'static str, Value)]) {
    for (name, value) in all {
        written.message(field, |pair| {
            pair.bytes(1, name.as_bytes());
            pair.message(2, |any| match value {
                Value::Text(text) => any.whole_bytes(1, text.as_bytes()),
                Value::Whole(number) => any.whole(3, number.cast_unsigned()),
                Value::Flag(flag) => any.whole(2, u64::from(*flag)),
                Value::Number(number) => any.fixed64(4, number.to_le_bytes()),
                Value::Texts(texts) => any.message(5, |array| {
                    for text in texts {
                        array.message(1, |any| any.whole_bytes(1, text.as_bytes()));
                    }
                }),
            });
        });
    }
}

/// Returns the number of spans that a collector rejected according to its response
/// (`ExportTraceServiceResponse`), or 0 if the response cannot be parsed.
pub fn rejected(answer: &[u8]) -> usize {
    let partial = fields(answer).find_map(|(field, value)| match (field, value) {
        (1, Read::Bytes(partial)) => Some(partial),
        _ => None,
    });
    let rejected = fields(partial.unwrap_or_default()).find_map(|(field, value)| match value {
        Read::Number(number) if field == 1 => Some(number),
        Read::Number(_) | Read::Bytes(_) => None,
    });
    rejected.and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

/// Iterates over the fields of a message with their numbers, up to the first unreadable field.
pub fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Read<'_>)> {
    std::iter::from_fn(move || {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => Read::Number(varint(&mut rest)?),
            1 => {
                let (bytes, behind) = rest.split_first_chunk::<8>()?;
                rest = behind;
                Read::Number(u64::from_le_bytes(*bytes))
            }
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let (bytes, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Read::Bytes(bytes)
            }
            5 => {
                let (bytes, behind) = rest.split_first_chunk::<4>()?;
                rest = behind;
                Read::Number(u32::from_le_bytes(*bytes).into())
            }
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
