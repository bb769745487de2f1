//! Explains JSON syntax errors to the author of the JSON.

/// Literals of other languages that JSON spells differently or does not have.
const FOREIGN: [(&str, &str); 8] = [
    ("NaN", "send null, or a string"),
    ("nan", "send null, or a string"),
    ("Infinity", "send null, or a string"),
    ("inf", "send null, or a string"),
    ("undefined", "send null"),
    ("None", "send null"),
    ("True", "send true"),
    ("False", "send false"),
];
const YAML: &str = "this looks like YAML; send JSON, such as {\"name\": \"value\"}";
const TOML: &str = "this looks like TOML; send JSON, such as {\"name\": \"value\"}";
const QUOTES: &str = "JSON requires double quotes around strings and names";
const COMMENT: &str = "JSON has no comments";
/// The start of a first line in other notations. The first match applies.
const STARTS: [(&str, &str); 10] = [
    ("--- ", YAML),
    ("- ", YAML),
    ("%YAML", YAML),
    ("%TAG", YAML),
    ("//", COMMENT),
    ("/*", COMMENT),
    ("<", "this looks like XML or HTML; send JSON, such as {\"name\": \"value\"}"),
    ("@", "this looks like the name of a file: `curl -d @FILE` sends its contents"),
    ("'", QUOTES),
    ("--", "this looks like multipart form data; send JSON"),
];
/// Number of bytes at the start that are checked for another notation.
const START_BYTES: usize = 2000;
/// Maximum length of a parser's message, in characters. The parser quotes values.
const MESSAGE_CHARS_MAX: usize = 200;

/// What a parser reports, and how to correct it.
struct Fault {
    message: String,
    hint: Option<String>,
}

/// Returns the parser's error message with its position, and a hint, if any.
#[must_use]
pub fn with_position(text: &[u8], error: &serde_json::Error) -> String {
    let Fault { message, hint } = fault(text, error);
    let message = format!("{message} at line {} column {}", error.line(), error.column());
    joined(message, hint)
}

/// Returns the parser's error message without its position, and a hint, if any.
#[must_use]
pub fn sentence(text: &[u8], error: &serde_json::Error) -> String {
    let Fault { message, hint } = fault(text, error);
    joined(message, hint)
}

fn joined(message: String, hint: Option<String>) -> String {
    match hint {
        Some(hint) => format!("{message}: {hint}"),
        None => message,
    }
}

fn fault(text: &[u8], error: &serde_json::Error) -> Fault {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&place).unwrap_or(&message);
    let hinted = |message: &str, hint: &str| Fault {
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    };
    match message {
        "recursion limit exceeded" => Fault {
            message: "lists and objects may nest at most 127 levels deep".to_owned(),
            hint: None,
        },
        "key must be a string" => hinted(message, QUOTES),
        "number out of range" => {
            hinted(&format!("a number is beyond {:e}", f64::MAX), "send it as a string")
        }
        _ if message.contains("surrogate") || message.contains("end of hex escape") => {
            hinted("an escape from \\ud800 to \\udfff is half of a character", "send both halves")
        }
        _ => Fault {
            message: cut(message),
            hint: foreign(text, error).or_else(|| notation(text, error).map(str::to_owned)),
        },
    }
}

/// Returns the start of a message.
fn cut(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

/// Returns a hint if the word at the error is a literal of another notation.
fn foreign(text: &[u8], error: &serde_json::Error) -> Option<String> {
    let line = text.split(|byte| *byte == b'\n').nth(error.line().checked_sub(1)?)?;
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic();
    let at = error.column().saturating_sub(1).min(line.len().saturating_sub(1));
    let before = line.get(..at)?.iter().rev().take_while(|byte| is_letter(byte)).count();
    let word = line.get(at.checked_sub(before)?..)?;
    let end = word.iter().position(|byte| !is_letter(byte)).unwrap_or(word.len());
    let word = std::str::from_utf8(word.get(..end)?).ok()?;
    let (word, hint) = FOREIGN.iter().find(|(foreign, _)| *foreign == word)?;
    Some(format!("{word} is not a JSON value; {hint}"))
}

/// Returns a hint if the first line looks like another notation. If the first line is a comment,
/// the first line after the comments decides.
fn notation(text: &[u8], error: &serde_json::Error) -> Option<&'static str> {
    if error.line() > 1 {
        return None;
    }
    let start = text.get(..START_BYTES.min(text.len()))?;
    let mut lines = start.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii_start);
    let first = lines.next()?;
    if !first.starts_with(b"#") {
        return notation_of(first);
    }
    let next = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    next.and_then(notation_of).or(Some(COMMENT))
}

fn notation_of(line: &[u8]) -> Option<&'static str> {
    let starts = |(start, _): &&(&str, _)| line.starts_with(start.as_bytes());
    if line.trim_ascii_end() == b"---" {
        return Some(YAML);
    }
    if let Some((_, hint)) = STARTS.iter().find(starts) {
        return Some(hint);
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.[]%".contains(byte);
    let name = line.iter().take_while(|byte| is_name(byte)).count();
    if name == 0 || line.starts_with(b"[") {
        return None;
    }
    let after = line.get(name..)?;
    match after.trim_ascii_start().first() {
        Some(b'=') if after.starts_with(b" ") => Some(TOML),
        Some(b'=') => Some("this looks like a form; send JSON, such as {\"name\": \"value\"}"),
        Some(b':') => Some(YAML),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn json_faults_have_readable_messages() {
        for (text, said) in [
            ("{\"a\": NaN}", "NaN is not a JSON value"),
            ("{\"a\": nan}", "nan is not a JSON value"),
            ("[1,\n -Infinity]", "Infinity is not a JSON value"),
            ("{\"a\": None}", "send null"),
            ("{\"a\": True}", "send true"),
            ("{\"a\": \"\\ud800\"}", "half of a character"),
            ("{\"a\": \"\\ud800x\"}", "half of a character"),
            ("{\"a\": \"\\ud800\\u0041\"}", "half of a character"),
            ("[1e400]", "a number is beyond 1.79"),
            (&"[".repeat(200), "at most 127 levels"),
            ("model=x&input=y", "looks like a form"),
            ("--boundary\r\nContent-Disposition: form-data", "looks like multipart"),
            (
                "------WebKitFormBoundary7MA4\r\nContent-Disposition: form-data",
                "looks like multipart",
            ),
            ("name: mood\nsteps: []", "looks like YAML"),
            ("---\nname: mood", "looks like YAML"),
            ("--- \nname: mood", "looks like YAML"),
            ("- name: mood", "looks like YAML"),
            ("%YAML 1.2\n---\nname: mood", "looks like YAML"),
            ("name = \"mood\"", "looks like TOML"),
            ("# a remark\n\n# another\nname: mood", "looks like YAML"),
            ("# a remark\nname = \"mood\"", "looks like TOML"),
            ("# a remark\n{}", "JSON has no comments"),
            ("# a remark", "JSON has no comments"),
            ("// a remark\n{}", "JSON has no comments"),
            ("<html>", "looks like XML or HTML"),
            ("@body.json", "`curl -d @FILE` sends its contents"),
            ("{'a': 1}", "key must be a string: JSON requires double quotes"),
            ("{a: 1}", "double quotes"),
            ("{\u{201c}a\u{201d}: 1}", "double quotes"),
            ("'a'", "double quotes"),
            ("{\"a\": 1,}", "trailing comma"),
            ("", "EOF while parsing a value"),
            ("nul", "EOF while parsing a value"),
            ("\u{e4}", "expected value"),
        ] {
            let error = serde_json::from_str::<Value>(text).unwrap_err();
            let sentence = sentence(text.as_bytes(), &error);
            assert!(sentence.contains(said), "{text}: {sentence}");
            assert!(!sentence.contains(" at line "), "{text}: {sentence}");
            // The position belongs to the parser's message, not to the example in the hint.
            let place = format!(" at line {} column {}", error.line(), error.column());
            let placed = with_position(text.as_bytes(), &error);
            let (what, hint) = placed.split_once(&place).unwrap();
            assert_eq!(format!("{what}{hint}"), sentence);
            assert!(hint.is_empty() || hint.starts_with(": "), "{text}: {placed}");
            assert_eq!(hint.is_empty(), !sentence.contains(": "), "{text}: {placed}");
        }
    }

    #[test]
    fn messages_quote_no_long_values() {
        let text = format!("\"{}\"", "\u{e4}".repeat(10_000));
        let error = serde_json::from_str::<Vec<u8>>(&text).unwrap_err();
        let sentence = with_position(text.as_bytes(), &error);
        assert!(sentence.contains("… at line 1 column 20002"), "{sentence}");
        assert!(sentence.len() < 500, "{sentence}");
    }
}
