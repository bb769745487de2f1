//! The encodings in which other programs commonly echo a secret.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All characters except the unreserved ones (RFC 3986).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that JavaScript's `encodeURIComponent` encodes.
const COMPONENT: &AsciiSet =
    &UNRESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');

/// Returns the encodings of `value` in base64, hexadecimal, URLs, JSON, HTML and host names.
pub fn of(value: &str) -> Vec<String> {
    let mut all = vec![value.to_lowercase()];
    for set in [UNRESERVED, COMPONENT] {
        let encoded = utf8_percent_encode(value, set).to_string();
        all.push(lower_escapes(&encoded));
        all.push(encoded);
    }
    let hex = |upper: bool| {
        value.bytes().fold(String::new(), |mut text, byte| {
            let _infallible = match upper {
                true => write!(text, "{byte:02X}"),
                false => write!(text, "{byte:02x}"),
            };
            text
        })
    };
    all.extend([hex(false), hex(true)]);
    for is_slash_escaped in [false, true] {
        for is_html_safe in [false, true] {
            for is_upper in [false, true] {
                all.push(json(value, is_slash_escaped, is_html_safe, is_upper));
            }
        }
    }
    for (quote, apostrophe) in [
        ("&quot;", "&#39;"),
        ("&#34;", "&#39;"),
        ("&quot;", "&#x27;"),
        ("&#34;", "&#x27;"),
        ("&quot;", "&apos;"),
        ("\"", "'"),
    ] {
        let html = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        all.push(html.replace('"', quote).replace('\'', apostrophe));
    }
    all.extend(base64(value));
    all
}

/// Converts the escapes of a percent-encoded string to lower case.
fn lower_escapes(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        text.push('%');
        text.push_str(&digits.to_ascii_lowercase());
        text.push_str(rest);
    }
    text
}

/// The contents of a JSON string in ASCII.
fn json(value: &str, is_slash_escaped: bool, is_html_safe: bool, is_upper: bool) -> String {
    let mut text = String::new();
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '/' if is_slash_escaped => text.push_str("\\/"),
            '<' | '>' | '&' if is_html_safe => escape(&mut text, c, is_upper),
            ' '..='~' => text.push(c),
            _ => escape(&mut text, c, is_upper),
        }
    }
    text
}

fn escape(text: &mut String, c: char, is_upper: bool) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _infallible = match is_upper {
            true => write!(text, "\\u{unit:04X}"),
            false => write!(text, "\\u{unit:04x}"),
        };
    }
}

/// Returns the base64 of the value alone, and the characters that are the same at any position in a
/// longer input; the first and last characters also contain bits of the neighboring bytes.
fn base64(value: &str) -> Vec<String> {
    let mut all = Vec::new();
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        all.push(engine.encode(value));
        for (before, shared) in [("", 0), ("x", 2), ("xx", 3)] {
            let text = format!("{before}{value}");
            let whole = text.len().saturating_mul(4) / 3;
            let encoded = engine.encode(text);
            all.extend(encoded.get(shared..whole).map(str::to_owned));
        }
    }
    all
}
