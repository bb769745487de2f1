//! Rejects lines of HTTP/1.1 heads that end in LF without CR.
//!
//! hyper's parser accepts a bare LF as a line end, as RFC 9112 section 2.2 allows. A proxy in front
//! of this server that does not accept a bare LF would see different header fields, which enables
//! request smuggling. [`HeadLines`] tracks the bytes that a connection reads, through heads, bodies
//! and chunks. [`HeadLines`] replaces a bare LF with a byte that is invalid everywhere in a head,
//! so that the parser itself responds with 400 and closes the connection.
//!
//! [`HeadLines`] buffers only the start of one line, and does not duplicate the parser's own
//! checks.

/// The byte that replaces a bare LF.
const INVALID: u8 = 0;
/// Bytes delivered to the parser after a bare LF. These bytes end the line and the head, so that
/// the parser does not wait for more input.
pub(crate) const REFUSAL: &[u8] = b"\0\r\n\r\n";
/// Number of bytes of a line that are buffered: enough for `Content-Length` and the longest number.
const LINE_START: usize = 64;

/// The kind of the next byte in a connection's stream of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a line of a head.
    Head,
    /// In a body or a chunk with this many bytes left.
    Data { left: u64, chunked: bool },
    /// In the line end after a chunk's data.
    ChunkEnd,
    /// In the line with a chunk's size.
    ChunkSize,
    /// In a line after the last chunk.
    Trailer,
    /// Checking has stopped, because the parser refuses the input.
    Refused,
}

/// How the length of the body after a head is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
}

/// Tracks the position in the requests of one connection.
#[derive(Debug)]
pub(crate) struct HeadLines {
    place: State,
    /// The start of the current line, without its line end.
    line: Vec<u8>,
    /// Whether the line is longer than its buffered start.
    is_long: bool,
    /// Whether the last byte was CR.
    after_cr: bool,
    /// Whether this head already has a non-empty line.
    has_begun: bool,
    framing: Framing,
    /// Whether a bare LF has arrived and [`REFUSAL`] has not been delivered yet.
    owes_refusal: bool,
}

impl HeadLines {
    /// Creates the state for a new connection.
    pub(crate) fn new() -> Self {
        Self {
            place: State::Head,
            line: Vec::with_capacity(LINE_START),
            is_long: false,
            after_cr: false,
            has_begun: false,
            framing: Framing::Length(0),
            owes_refusal: false,
        }
    }

    /// Returns true once, when [`REFUSAL`] must be read next in place of the client's bytes.
    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.owes_refusal)
    }

    /// Checks the next bytes; the first bare LF in a line becomes [`INVALID`].
    pub(crate) fn check(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            match &mut self.place {
                State::Refused => return,
                State::Data { left, chunked } => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left = left.saturating_sub(length as u64);
                    if *left == 0 {
                        self.place = if *chunked { State::ChunkEnd } else { State::Head };
                    }
                    bytes = bytes.split_at_mut(length).1;
                }
                State::Head | State::ChunkEnd | State::ChunkSize | State::Trailer => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let length = end.map_or(bytes.len(), |end| end + 1);
                    let (line, rest) = bytes.split_at_mut(length);
                    if !self.take_line(line) {
                        line.iter_mut().for_each(|byte| self.line_byte(byte));
                    }
                    bytes = rest;
                }
            }
        }
    }

    /// Consumes a line that ends in CR LF and has no other CR. Returns false if the line was not
    /// consumed.
    fn take_line(&mut self, line: &[u8]) -> bool {
        let Some(line) = line.strip_suffix(b"\r\n").filter(|line| !line.contains(&b'\r')) else {
            return false;
        };
        let room = LINE_START.saturating_sub(self.line.len());
        self.is_long |= line.len() > room;
        self.line.extend(line.iter().take(room));
        self.finish_line();
        true
    }

    fn finish_line(&mut self) {
        self.end_line();
        self.line.clear();
        (self.is_long, self.after_cr) = (false, false);
    }

    fn line_byte(&mut self, byte: &mut u8) {
        match *byte {
            b'\n' if self.after_cr => self.finish_line(),
            b'\n' => {
                *byte = INVALID;
                self.place = State::Refused;
                self.owes_refusal = true;
            }
            other => {
                self.after_cr = other == b'\r';
                if self.after_cr {
                    return;
                }
                if self.line.len() < LINE_START {
                    self.line.push(other);
                } else {
                    self.is_long = true;
                }
            }
        }
    }

    fn end_line(&mut self) {
        self.place = match self.place {
            State::Head if !self.line.is_empty() => {
                self.has_begun = true;
                self.header_line()
            }
            State::Head if !self.has_begun => State::Head,
            State::Head => {
                self.has_begun = false;
                match std::mem::replace(&mut self.framing, Framing::Length(0)) {
                    Framing::Length(0) => State::Head,
                    Framing::Length(left) => State::Data { left, chunked: false },
                    Framing::Chunked => State::ChunkSize,
                }
            }
            State::ChunkEnd => State::ChunkSize,
            State::ChunkSize => match chunk_size(&self.line) {
                Some(0) => State::Trailer,
                Some(left) => State::Data { left, chunked: true },
                None => State::Refused,
            },
            State::Trailer if self.line.is_empty() => State::Head,
            State::Trailer => State::Trailer,
            place @ (State::Data { .. } | State::Refused) => place,
        };
    }

    /// Reads the body's framing from a header line. `Transfer-Encoding` overrides `Content-Length`
    /// (RFC 9112 section 6.3).
    fn header_line(&mut self) -> State {
        let Some(colon) = self.line.iter().position(|byte| *byte == b':') else {
            return State::Head;
        };
        let (name, value) = self.line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case(b"content-length") && self.framing != Framing::Chunked {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            match length.filter(|_| !self.is_long) {
                Some(length) => self.framing = Framing::Length(length),
                None => return State::Refused,
            }
        }
        State::Head
    }
}

/// Parses the chunk size at the start of a chunk's line, before the extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes as they are after the check, when `step` bytes are read at a time; `!`
    /// marks a replaced byte.
    fn checked(text: &str, step: usize) -> String {
        let mut lines = HeadLines::new();
        let mut bytes = text.as_bytes().to_vec();
        for part in bytes.chunks_mut(step) {
            lines.check(part);
        }
        String::from_utf8(bytes).unwrap().replace(char::from(INVALID), "!")
    }

    #[test]
    fn head_lines_ending_in_bare_lf_are_marked() {
        let post = "POST / HTTP/1.1\r\nHost: a\r\n";
        for (text, expect) in [
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", "GET / HTTP/1.1!Host: a\r\n\r\n".to_owned()),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", "GET / HTTP/1.1\r\nHost: a!\r\n".to_owned()),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", "GET / HTTP/1.1\r\nHost: a\r\n!".to_owned()),
            ("\nGET / HTTP/1.1\r\n\r\n", "!GET / HTTP/1.1\r\n\r\n".to_owned()),
            (
                "GET / HTTP/1.1\r\nA: b\n\r\nGET / HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\r\nA: b!\r\nGET / HTTP/1.1\r\n\r\n".to_owned(),
            ),
        ] {
            for step in [1, 3, text.len()] {
                assert_eq!(checked(text, step), expect, "{text:?} by {step}");
            }
        }
        for text in [
            format!("{post}Content-Length: 3\r\n\r\na\nbGET / HTTP/1.1\nHost: a\r\n\r\n"),
            format!("{post}content-length:  3 \r\n\r\na\nbGET / HTTP/1.1\nHost: a\r\n\r\n"),
            format!(
                "{post}Transfer-Encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.1\nHost: a\r\n\r\n"
            ),
            format!(
                "{post}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\nHost: a\r\n\r\n"
            ),
            format!("\r\n{post}\r\n\r\nGET / HTTP/1.1\nHost: a\r\n\r\n"),
        ] {
            let expect = text.replace("1.1\nHost", "1.1!Host");
            for step in [1, 2, 7, text.len()] {
                assert_eq!(checked(&text, step), expect, "{text:?} by {step}");
            }
        }
        let chunk = format!("{post}Transfer-Encoding: chunked\r\n\r\n3\na\nb\r\n0\r\n\r\n");
        assert_eq!(checked(&chunk, 5), chunk.replace("3\n", "3!"));
    }

    #[test]
    fn head_lines_ignore_bodies() {
        let long = "x".repeat(10_000);
        for text in [
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\n\n\n\n".to_owned(),
            format!("GET /{long} HTTP/1.1\r\nA: {long}\r\n\r\n"),
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\n\n\r\n0\r\n\r\n"
                .to_owned(),
        ] {
            for step in [1, 2, 7, text.len()] {
                assert_eq!(checked(&text, step), text, "by {step}");
            }
        }
    }
}
