//! Error messages for invalid YAML, and a check for numbers that would lose digits or that YAML
//! parsers interpret differently.

use anyhow::bail;
use granit_parser::{Event, Parser, ScalarStyle};
use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

use super::file::{ALIASES_MAX, DEPTH_MAX, VALUES_MAX, quotable, without_contents};

/// Parts of the library's messages, and their replacements.
const OTHERS: [(&str, &str); 5] = [
    (
        "non-finite float",
        "infinity, .nan and numbers beyond 1.7976931348623157e308 have no JSON form: write null, \
         or a text in quotation marks",
    ),
    ("recursion limit exceeded", "lists and objects may nest at most 100 levels deep"),
    ("budget breached", "there may be at most 200000 values, including those of aliases"),
    ("cannot deserialize null into string", "a key must not be null: write it in quotation marks"),
    ("invalid u64", "the number cannot be read: write it in decimal digits"),
];

/// Returns the error as a sentence with its line and column.
#[expect(clippy::wildcard_enum_match_arm, reason = "most faults have a sentence of their own")]
pub(super) fn sentence(error: &Error) -> String {
    let what = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key \"{}\"", quotable(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => "duplicate key".to_owned(),
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Depth { .. } => {
                format!("lists and objects may nest at most {DEPTH_MAX} levels deep")
            }
            BudgetBreach::Documents { .. } => {
                "only one document is allowed: remove the line --- between documents".to_owned()
            }
            BudgetBreach::Aliases { .. } | BudgetBreach::Anchors { .. } => {
                format!("there may be at most {ALIASES_MAX} anchors and aliases")
            }
            _ => format!("there may be at most {VALUES_MAX} values"),
        },
        Error::MultipleDocuments { .. } => {
            "only one document is allowed: remove the line --- between documents".to_owned()
        }
        other => {
            let text = other.to_string();
            let known = OTHERS.iter().find(|(library, _)| text.contains(library));
            // The text already ends with the location.
            let Some((_, sentence)) = known else { return without_contents(&text) };
            (*sentence).to_owned()
        }
    };
    match error.location() {
        Some(place) => format!("line {} column {}: {what}", place.line(), place.column()),
        None => what,
    }
}

/// Rejects integers beyond 64 bits, which would lose digits, and scalars that YAML 1.1 and 1.2
/// interpret differently: 017 is 15 in YAML 1.1 and 17 in YAML 1.2, and 1_000 is a number in YAML
/// 1.1 and a string in YAML 1.2.
///
/// # Errors
/// Returns an error that contains the first such number, its location, and what to write instead.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other events hold no value")]
pub(super) fn check_numbers(text: &str) -> anyhow::Result<()> {
    // The stack of open objects and lists. The entry for an object is whether the next scalar is a
    // key.
    let mut open: Vec<Option<bool>> = Vec::new();
    for event in Parser::new_from_str(text) {
        // Invalid YAML was already rejected.
        let Ok((event, span)) = event else { return Ok(()) };
        match event {
            Event::MappingStart(..) => {
                value_begins(&mut open);
                open.push(Some(true));
            }
            Event::SequenceStart(..) => {
                value_begins(&mut open);
                open.push(None);
            }
            Event::MappingEnd | Event::SequenceEnd => {
                open.pop();
            }
            Event::Alias(_) => {
                value_begins(&mut open);
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                let is_key = value_begins(&mut open);
                let (line, column) = (span.start.line(), span.start.col() + 1);
                if !is_key && is_wide(&text) {
                    bail!(
                        "line {line} column {column}: the number {text} does not fit into 64 bits \
                         and would change: write \"{text}\" for the text"
                    );
                }
                if !is_key && is_ambiguous(&text) {
                    bail!(
                        "line {line} column {column}: other YAML parsers read {text} as a \
                         different number or as a string: write \"{text}\" for the string, or \
                         the number in decimal digits"
                    );
                }
            }
            Event::Scalar(..) => {
                value_begins(&mut open);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Records the start of a node, and returns whether the node is a key.
fn value_begins(open: &mut [Option<bool>]) -> bool {
    let Some(Some(is_key)) = open.last_mut() else { return false };
    let was_key = *is_key;
    *is_key = !was_key;
    was_key
}

/// Returns whether a plain scalar is an integer that does not fit in 64 bits.
fn is_wide(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<i64>().is_err()
        && text.parse::<u64>().is_err()
        || digits.strip_prefix("0x").is_some_and(|digits| {
            digits.len() > 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// Returns whether a plain scalar is a number in some YAML parsers and a different number or a
/// string in others.
fn is_ambiguous(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut bytes = digits.bytes();
    let (first, second) = (bytes.next(), bytes.next());
    if !first.is_some_and(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'_' | b'.');
    if digits.bytes().all(is_number) {
        let has_zero = first == Some(b'0') && second.is_some_and(|byte| byte.is_ascii_digit());
        let dots = digits.bytes().filter(|byte| *byte == b'.').count();
        return dots <= 1 && (has_zero || digits.contains('_'));
    }
    let rest = digits.get(2..).unwrap_or_default();
    let in_base = |base: fn(&u8) -> bool| {
        rest.bytes().any(|byte| base(&byte)) && rest.bytes().all(|byte| byte == b'_' || base(&byte))
    };
    match (first, second) {
        (Some(b'0'), Some(b'o')) => in_base(|byte| matches!(byte, b'0'..=b'7')),
        (Some(b'0'), Some(b'b' | b'B')) => in_base(|byte| matches!(byte, b'0' | b'1')),
        (Some(b'0'), Some(b'x')) => rest.contains('_') && in_base(u8::is_ascii_hexdigit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::yaml;

    #[test]
    fn yaml_rejects_numbers_that_readers_parse_differently() {
        for number in
            ["017", "0777", "01234", "1_000", "0b101", "-012", "0x1_f", "1_0.5", "00", "0o17"]
        {
            for text in
                [format!("a:\n  b: {number}\n"), format!("a: [1, {number}]"), number.to_owned()]
            {
                let error = format!("{:#}", yaml(&text).unwrap_err());
                let says = format!("parsers read {number} as a different number");
                assert!(error.contains(&says), "{text}: {error}");
                assert!(error.starts_with("line "), "{error}");
            }
            for text in
                [format!("a: \"{number}\""), format!("{number}: x"), format!("a: '{number}'")]
            {
                assert!(yaml(&text).is_ok(), "{text}");
            }
        }
        let error = format!("{:#}", yaml("a: 1\nb: {c: 017}\n").unwrap_err());
        assert!(error.starts_with("line 2 column 8: other YAML parsers read 017 "), "{error}");
        for number in ["18446744073709551615", "-9223372036854775808"] {
            assert!(yaml(&format!("a: {number}")).is_ok(), "{number}");
        }
        assert!(yaml("123456789012345678901: x").is_ok(), "a name");
        for number in ["0", "10", "0.5", "1e3", "0x1f", "-7", "1.5.2", "1:30", "2026-01-01", "1_a"]
        {
            assert!(yaml(&format!("a: {number}")).is_ok(), "{number}");
        }
    }

    #[test]
    fn yaml_faults_have_readable_messages() {
        let level = |name: char, of: &str| format!("{name}: &{name} [{}]\n", [of; 9].join(", "));
        let mut aliases = level('a', "x");
        for (name, of) in ('b'..='h').zip('a'..) {
            aliases.push_str(&level(name, &format!("*{of}")));
        }
        for (text, said) in [
            ("a: 1\nb: 2\na: 3\n", "line 3 column 1: duplicate key \"a\""),
            ("a: 1\n---\nb: 2\n", "only one document is allowed"),
            (&format!("{}1{}", "[".repeat(101), "]".repeat(101)), "at most 100 levels deep"),
            (&"- x\n".repeat(200_001), "at most 200000 values"),
            ("a: [1, 2", "line 1"),
            ("a: .nan", "line 1 column 4: infinity, .nan and numbers beyond 1.79"),
            ("a: -.inf", "no JSON form"),
            ("{null: a}", "a key must not be null: write it in quotation marks"),
            ("a: !!int 017", "the number cannot be read: write it in decimal digits"),
            ("a: 0xFFFFFFFFFFFFFFFFFF", "does not fit into 64 bits"),
            (&aliases, "at most 200000 values, including those of aliases"),
            ("a: 1e400", "no JSON form"),
            (
                "a: 18446744073709551616",
                "line 1 column 4: the number 18446744073709551616 does not",
            ),
            ("- -9223372036854775809", "does not fit into 64 bits and would change"),
        ] {
            let error = format!("{:#}", yaml(text).unwrap_err());
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("budget") && !error.contains("Policy"), "{error}");
        }
    }
}
