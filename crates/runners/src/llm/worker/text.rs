//! Assembles generated text from its tokens: only complete characters, up to the first stop string.

/// The result of adding the bytes of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// More text, possibly empty.
    Text(String),
    /// The end of the text, because a stop string was found.
    Stopped(String),
}

/// Text that has not been returned yet.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// The bytes of an incomplete character.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stops: Vec<String>,
}

impl Text {
    /// Creates an empty text that ends before the first occurrence of any of `stops`, none of which
    /// may be empty.
    #[must_use]
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, ..Self::default() }
    }

    /// Adds the bytes of a token.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Taken {
        self.bytes.extend_from_slice(bytes);
        self.decode(false);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop)).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return Taken::Stopped(std::mem::take(&mut self.held));
        }
        let keep = self.stops.iter().map(|stop| beginning(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        Taken::Text(std::mem::replace(&mut self.held, rest))
    }

    /// Returns the remaining text at the end.
    #[must_use]
    pub(super) fn rest(&mut self) -> String {
        self.decode(true);
        std::mem::take(&mut self.held)
    }

    /// Decodes complete characters; invalid UTF-8 is replaced.
    fn decode(&mut self, is_end: bool) {
        loop {
            let (valid, broken) = match std::str::from_utf8(&self.bytes) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.bytes.clear();
                    return;
                }
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let text = String::from_utf8_lossy(self.bytes.get(..valid).unwrap_or_default());
            self.held.push_str(&text);
            self.bytes.drain(..valid);
            match broken {
                None if !is_end => return,
                None => self.bytes.clear(),
                Some(length) => {
                    self.bytes.drain(..length);
                }
            }
            self.held.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Returns the length of the longest suffix of `text` that is a prefix of `stop`, in bytes.
fn beginning(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    let is_beginning = |length: &usize| {
        let at = text.len() - length;
        text.is_char_boundary(at) && text.get(at..).is_some_and(|end| stop.starts_with(end))
    };
    (1..=longest).rev().find(is_beginning).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of these pieces, and whether a stop string ended it.
    fn text(pieces: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let mut text = Text::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut out = Vec::new();
        for piece in pieces {
            match text.push(piece) {
                Taken::Text(more) => out.push(more),
                Taken::Stopped(rest) => {
                    out.push(rest);
                    return (out, true);
                }
            }
        }
        out.push(text.rest());
        (out, false)
    }

    #[test]
    fn text_never_splits_a_character() {
        let moon = "a🌙b".as_bytes();
        let pieces: Vec<&[u8]> = moon.chunks(1).collect();
        let (out, _) = text(&pieces, &[]);
        assert_eq!(out.concat(), "a🌙b");
        assert_eq!(out[..5], ["a", "", "", "", "🌙"]);
        let (out, _) = text(&[b"a\xf0\x9f", b"b", b"\xff", b"\xe2\x82"], &[]);
        assert_eq!(out, ["a", "\u{fffd}b", "\u{fffd}", "", "\u{fffd}"]);
    }

    #[test]
    fn text_ends_before_stop_string_split_over_pieces() {
        let (out, stopped) = text(&[b"one EN", b"D two"], &["END", "EXIT"]);
        assert_eq!((out.concat().as_str(), stopped), ("one ", true));
        assert_eq!(out[0], "one ");
        let (out, stopped) = text(&[b"one EN", b"X two E"], &["END", "EXIT"]);
        assert_eq!((out.concat().as_str(), stopped), ("one ENX two E", false));
        let (out, stopped) = text(&[b"xaab"], &["aab", "ab"]);
        assert_eq!((out.concat().as_str(), stopped), ("x", true), "the earliest match wins");
    }
}
