//! The encodings in which other programs commonly echo a secret.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// All characters except the unreserved ones (RFC 3986).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters that JavaScript's `encodeURIComponent` encodes.
const COMPONENT: &AsciiSet =
    &UNRESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*');

/// The characters that Python's `quote` encodes.
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');
/// The characters that JavaScript's `encodeURI` encodes.
const URI: &AsciiSet = &COMPONENT
    .remove(b'/')
    .remove(b';')
    .remove(b',')
    .remove(b'?')
    .remove(b':')
    .remove(b'@')
    .remove(b'&')
    .remove(b'=')
    .remove(b'+')
    .remove(b'$')
    .remove(b'#');

/// Returns the encodings of `value` in base64, lists of bytes, URLs, JSON, HTML and host names,
/// including those of the value's UTF-8 read as Latin-1.
pub(super) fn of(value: &str) -> Vec<String> {
    let mut all = vec![value.to_lowercase(), value.to_uppercase()];
    all.extend(base64(value));
    all.extend(bytes(value));
    for set in [UNRESERVED, COMPONENT, PATH, URI] {
        let encoded = utf8_percent_encode(value, set).to_string();
        for encoded in [lower_escapes(&encoded), encoded] {
            // In a URL that is itself a parameter of another URL.
            all.push(encoded.replace('%', "%25"));
            all.push(encoded);
        }
    }
    all.extend(texts(value));
    let latin1: String = value.bytes().map(char::from).collect();
    if latin1 != value {
        all.extend(texts(&latin1));
        all.push(latin1);
    }
    all
}

/// Returns the bytes as lists in hexadecimal and decimal.
fn bytes(value: &str) -> Vec<String> {
    const SEPARATORS: &[&str] = &["", ":", " ", "-"];
    let lists = |form: fn(u8) -> String, separators: &[&str]| -> Vec<String> {
        let all: Vec<String> = value.bytes().map(form).collect();
        separators.iter().map(|separator| all.join(separator)).collect()
    };
    let mut all = lists(|byte| format!("{byte:02x}"), SEPARATORS);
    all.extend(lists(|byte| format!("{byte:02X}"), SEPARATORS));
    all.extend(lists(|byte| byte.to_string(), &[",", ", ", " "]));
    all
}

/// Returns the value as it appears in JSON strings, in JSON inside JSON strings, and in HTML.
fn texts(value: &str) -> Vec<String> {
    let quoted = Value::from(value).to_string();
    let mut all = vec![quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()];
    for is_slash_escaped in [false, true] {
        for is_html_safe in [false, true] {
            for is_upper in [false, true] {
                all.push(json(value, is_slash_escaped, is_html_safe, is_upper));
            }
        }
    }
    let again = |text: &String| text.replace('\\', "\\\\").replace('"', "\\\"");
    all.extend(all.iter().map(again).collect::<Vec<_>>());
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

/// Returns the contents of a JSON string in ASCII.
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

/// Returns the base64 of the value alone and, for each of its three alignments in a longer input,
/// the base64 characters that depend only on the value. The first and last characters also contain
/// bits of the neighboring bytes.
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
