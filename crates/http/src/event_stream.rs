//! Parses server-sent events as they arrive, in the format of the HTML standard; the counterpart of
//! `sse`. The parser buffers at most one unfinished event, up to a limit, and does not change the
//! text of events.

use bytes::{Bytes, BytesMut};

/// An event with its terminating blank line, or a comment on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The text as received.
    pub raw: Bytes,
    /// The event's `data` lines, joined by line breaks; `None` if the event has no such line.
    pub data: Option<Bytes>,
}

impl Event {
    /// Returns whether the event's `event` line contains this type.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let mut lines = self.raw.split(|byte| matches!(byte, b'\n' | b'\r'));
        lines.any(|line| value_of(line, b"event") == Some(name.as_bytes()))
    }
}

/// The error for an event that exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event has more than {limit} bytes")]
pub struct TooLong {
    pub limit: usize,
}

/// Splits a stream into events.
#[derive(Debug)]
pub struct EventReader {
    pending: BytesMut,
    /// Start of the current incomplete line.
    line: usize,
    /// Bytes already searched for a line end.
    scanned: usize,
    limit: usize,
}

impl EventReader {
    /// Creates a reader for events of up to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { pending: BytesMut::new(), line: 0, scanned: 0, limit }
    }

    /// Adds received bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.pending.extend_from_slice(piece);
    }

    /// Returns the number of buffered bytes.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the next complete event.
    ///
    /// # Errors
    /// [`TooLong`], as soon as an event exceeds the limit, even if the event is not complete yet.
    pub fn next_event(&mut self) -> Result<Option<Event>, TooLong> {
        let too_long = TooLong { limit: self.limit };
        while let Some((end, next)) = self.line_end() {
            let is_blank = end == self.line;
            (self.line, self.scanned) = (next, next);
            if is_blank {
                (self.line, self.scanned) = (0, 0);
                let raw = self.pending.split_to(next).freeze();
                return if raw.len() > self.limit { Err(too_long) } else { Ok(Some(raw.into())) };
            }
        }
        if self.pending.len() > self.limit { Err(too_long) } else { Ok(None) }
    }

    /// Returns the remaining bytes at the end of the stream, as an event without its terminating
    /// blank line.
    #[must_use]
    pub fn rest(&mut self) -> Option<Event> {
        (self.line, self.scanned) = (0, 0);
        let raw = self.pending.split().freeze();
        (!raw.is_empty()).then(|| raw.into())
    }

    /// Returns the end of the current line and the start of the next one. If the buffer ends with a
    /// carriage return, the next byte is needed, because that byte may be a line feed that belongs
    /// to the same line end.
    fn line_end(&mut self) -> Option<(usize, usize)> {
        let behind = self.pending.get(self.scanned..).unwrap_or_default();
        let Some(at) = behind.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.scanned = self.pending.len();
            return None;
        };
        let end = self.scanned.saturating_add(at);
        let next = end.saturating_add(1);
        match (self.pending.get(end), self.pending.get(next)) {
            (Some(b'\r'), None) => {
                self.scanned = end;
                None
            }
            (Some(b'\r'), Some(b'\n')) => Some((end, next.saturating_add(1))),
            _ => Some((end, next)),
        }
    }
}

impl From<Bytes> for Event {
    fn from(raw: Bytes) -> Self {
        let mut lines = raw
            .split(|byte| matches!(byte, b'\n' | b'\r'))
            .filter_map(|line| value_of(line, b"data"));
        let first = lines.next();
        let second = lines.next();
        let data = match (first, second) {
            (None, _) => None,
            (Some(only), None) => Some(raw.slice_ref(only)),
            (Some(first), Some(second)) => {
                let all: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
                Some(Bytes::from(all.join(&b'\n')))
            }
        };
        Self { raw, data }
    }
}

/// Returns the value of a line if the line has this field.
fn value_of<'l>(line: &'l [u8], field: &[u8]) -> Option<&'l [u8]> {
    let value = line.strip_prefix(field)?;
    if value.is_empty() {
        return Some(value);
    }
    let value = value.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the raw text and data of each event in a stream that arrives in pieces of `size`
    /// bytes.
    fn events(text: &str, size: usize) -> Vec<(String, Option<String>)> {
        let mut reader = EventReader::new(100);
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            reader.push(piece);
            while let Some(event) = reader.next_event().unwrap() {
                found.push(event);
            }
        }
        found.extend(reader.rest());
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        found.iter().map(|event| (text(&event.raw), event.data.as_ref().map(text))).collect()
    }

    #[test]
    fn event_stream_parsing_is_independent_of_piece_size() {
        for (stream, expected) in [
            ("data: a\n\ndata:b\n\n", vec![("data: a\n\n", Some("a")), ("data:b\n\n", Some("b"))]),
            (
                "data: a\r\n\r\n: hi\r\n\r\n",
                vec![("data: a\r\n\r\n", Some("a")), (": hi\r\n\r\n", None)],
            ),
            (
                "event: x\ndata: a\ndata\ndata:  b\n\n",
                vec![("event: x\ndata: a\ndata\ndata:  b\n\n", Some("a\n\n b"))],
            ),
            (
                "data: a\r\rdata: b\r\rx",
                vec![("data: a\r\r", Some("a")), ("data: b\r\r", Some("b")), ("x", None)],
            ),
            ("database: a\n\n", vec![("database: a\n\n", None)]),
            ("data: cut", vec![("data: cut", Some("cut"))]),
            ("", vec![]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(raw, data)| ((*raw).to_owned(), data.map(str::to_owned)))
                .collect();
            for size in 1..=stream.len().max(1) {
                assert_eq!(events(stream, size), expected, "{stream:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn event_stream_rejects_event_over_limit() {
        let refused = Err(TooLong { limit: 10 });
        let mut reader = EventReader::new(10);
        reader.push(b"data: a\n\n");
        assert!(reader.next_event().unwrap().is_some());
        reader.push(b"data: 12345");
        assert_eq!(reader.next_event(), refused, "before it is complete");
        let mut reader = EventReader::new(10);
        reader.push(b"data: 12345\n\n");
        assert_eq!(reader.next_event(), refused);
    }

    #[test]
    fn event_has_the_type_of_its_event_line() {
        let event = |text: &'static str| Event::from(Bytes::from_static(text.as_bytes()));
        for text in ["event: error\ndata: x\n\n", "data: x\r\nevent:error\r\n", "event: error"] {
            assert!(event(text).is_named("error"), "{text}");
        }
        for text in ["event: errors\n", "data: error\n", ": event: error\n", "event\n"] {
            assert!(!event(text).is_named("error"), "{text}");
        }
    }
}
