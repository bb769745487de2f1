//! Media types (RFC 9110, section 8.3), compared by meaning rather than spelling.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;

/// Maximum number of parameters; a type with more parameters is rejected.
const PARAMETERS_MAX: usize = 20;

/// A media type with its parameters. Letter case, whitespace, quotes and the order of parameters do
/// not affect equality.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaType {
    /// `type/subtype` in lower case.
    essence: String,
    parameters: BTreeMap<String, String>,
}

impl MediaType {
    /// Parses a media type. Returns `None` if the text is not a valid media type.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = split(text).into_iter();
        let essence = parts.next()?.trim().to_ascii_lowercase();
        let (kind, sub) = essence.split_once('/')?;
        if kind.is_empty() || sub.is_empty() || parts.len() > PARAMETERS_MAX {
            return None;
        }
        let mut parameters = BTreeMap::new();
        for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=')?;
            let name = name.trim().to_ascii_lowercase();
            let mut value = unquoted(value.trim());
            if name == "charset" {
                value.make_ascii_lowercase();
            }
            parameters.insert(name, value);
        }
        Some(Self { essence, parameters })
    }

    /// Returns whether the type is `essence` (`type/subtype`), regardless of its parameters.
    #[must_use]
    pub fn is(&self, essence: &str) -> bool {
        self.essence == essence
    }
}

/// Returns the media type of a message; `None` if the message has no valid media type.
#[must_use]
pub fn of(headers: &HeaderMap) -> Option<MediaType> {
    MediaType::parse(headers.get(CONTENT_TYPE)?.to_str().ok()?)
}

/// Returns the parts between unquoted semicolons.
fn split(text: &str) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(|letter| {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ';' => return !is_quoted,
            _ => {}
        }
        false
    })
    .collect()
}

fn unquoted(value: &str) -> String {
    let Some(quoted) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut letters = quoted.chars();
    let mut plain = String::with_capacity(quoted.len());
    while let Some(letter) = letters.next() {
        plain.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_compared_by_meaning() {
        let same = |one: &str, other: &str| MediaType::parse(one) == MediaType::parse(other);
        for (one, other) in [
            ("image/png", "IMAGE/PNG"),
            ("text/plain; charset=utf-8", "text/plain;charset=utf-8"),
            ("text/plain; charset=utf-8", "Text/Plain ; Charset=\"UTF-8\""),
            ("text/plain; a=1; b=2", "text/plain;b=2;a=1"),
            ("text/plain;", "text/plain"),
            ("a/b; c=\"x;y\\\"z\"", "a/b;c=\"x;y\\\"z\""),
        ] {
            assert!(same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("image/png", "image/jpeg"),
            ("text/plain; charset=utf-8", "text/plain"),
            ("text/plain; a=x", "text/plain; a=X"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
        for bad in ["", "png", "/png", "image/", "text/plain; charset"] {
            assert_eq!(MediaType::parse(bad), None, "{bad}");
        }
    }
}
