//! Patterns of the operators `matches` and `string_matches`: regular expressions that run in linear
//! time, or text with `*` as a wildcard.
//!
//! A literal pattern is compiled when it is parsed. A pattern with references is compiled when the
//! condition is evaluated: a single reference supplies the whole pattern; inside a longer pattern,
//! the characters of a value are matched literally.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::json_pointer::{JsonPointer, brief};
use super::reference::{self, Reference, Scope};
use super::template::{Part, RESOLVED_BYTES_MAX, Template};

/// Maximum length of a pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// Maximum memory of a compiled pattern, in bytes.
const PATTERN_MEMORY_MAX: usize = 256 * 1024;

/// A pattern.
#[derive(Debug, Clone)]
pub enum Pattern {
    Compiled(Regex),
    /// A pattern with references.
    Open {
        template: Template,
        syntax: Syntax,
    },
}

/// The syntax of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Regex,
    /// `*` matches any text. A pattern without `*` matches anywhere in the subject.
    Wildcards,
}

impl Pattern {
    /// Parses a pattern, and compiles it if it has no references.
    ///
    /// # Errors
    /// Returns the rest of a sentence about the condition.
    pub fn parse(written: &str, syntax: Syntax) -> Result<Self, String> {
        let template = Template::parse(&Value::String(written.to_owned()))
            .map_err(|fault| format!("has an invalid value: {fault}"))?;
        if template.constant().is_none() {
            return Ok(Self::Open { template, syntax });
        }
        // Compiled as written, because a regular expression may contain `\\{{`.
        compile(&syntax.regex(&[Piece::Pattern(written)])).map(Self::Compiled)
    }

    /// Returns whether the subject matches; only strings can match.
    ///
    /// # Errors
    /// [`reference::Error`] names a reference that resolves to nothing or produces an invalid
    /// pattern.
    pub fn matches(&self, subject: &Value, scope: &dyn Scope) -> Result<bool, reference::Error> {
        let is_match = |regex: &Regex| subject.as_str().is_some_and(|text| regex.is_match(text));
        match self {
            Self::Compiled(regex) => Ok(is_match(regex)),
            Self::Open { template, syntax } => {
                let references = template.references();
                let culprit = references.first().map(ToString::to_string).unwrap_or_default();
                let pattern = resolve(template, *syntax, scope)?;
                let regex =
                    pattern.and_then(|pattern| compile(&pattern).ok()).ok_or_else(|| {
                        let kind = reference::ErrorKind::Pattern;
                        reference::Error::new(&JsonPointer::Root, culprit, kind)
                    })?;
                Ok(is_match(&regex))
            }
        }
    }

    /// Returns the template of a pattern with references; `None` for a literal pattern.
    #[must_use]
    pub const fn template(&self) -> Option<&Template> {
        match self {
            Self::Compiled(_) => None,
            Self::Open { template, .. } => Some(template),
        }
    }
}

/// A part of a pattern.
enum Piece<'t> {
    Pattern(&'t str),
    /// Matches itself literally.
    Literal(String),
}

impl Syntax {
    fn regex(self, pieces: &[Piece<'_>]) -> String {
        let is_whole = self == Self::Wildcards
            && pieces
                .iter()
                .any(|piece| matches!(piece, Piece::Pattern(text) if text.contains('*')));
        let inside: String = pieces
            .iter()
            .map(|piece| match (piece, self) {
                (Piece::Pattern(text), Self::Regex) => (*text).to_owned(),
                (Piece::Pattern(text), Self::Wildcards) => {
                    text.split('*').map(regex::escape).collect::<Vec<_>>().join(".*")
                }
                (Piece::Literal(text), _) => regex::escape(text),
            })
            .collect();
        if is_whole { format!("(?s)^{inside}$") } else { inside }
    }
}

/// Resolves a template into a regular expression. Returns `None` if the template is a single
/// reference and its value is not a string.
fn resolve(
    template: &Template,
    syntax: Syntax,
    scope: &dyn Scope,
) -> Result<Option<String>, reference::Error> {
    let Some(parts) = template.text_parts() else {
        let value = template.resolve(scope, RESOLVED_BYTES_MAX)?;
        return Ok(value.as_str().map(|text| syntax.regex(&[Piece::Pattern(text)])));
    };
    let pieces = parts.iter().map(|part| match part {
        Part::Literal(text) => Ok(Piece::Pattern(text)),
        Part::Reference(reference) => text_of(reference, scope).map(Piece::Literal),
    });
    Ok(Some(syntax.regex(&pieces.collect::<Result<Vec<_>, _>>()?)))
}

fn text_of(reference: &Reference, scope: &dyn Scope) -> Result<String, reference::Error> {
    let value = reference.look_up(scope).ok_or_else(|| {
        let kind = reference::ErrorKind::Nothing;
        reference::Error::new(&JsonPointer::Root, reference.to_string(), kind)
    })?;
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!("has a pattern of more than {PATTERN_BYTES_MAX} bytes"));
    }
    RegexBuilder::new(pattern)
        .size_limit(PATTERN_MEMORY_MAX)
        .dfa_size_limit(PATTERN_MEMORY_MAX)
        .build()
        .map_err(|fault| {
            let shown = brief(pattern);
            format!(
                "has a pattern that is not a valid regular expression: {shown:?}: {}",
                reason(&fault)
            )
        })
}

/// Describes the problem of a pattern.
fn reason(fault: &regex::Error) -> String {
    if let regex::Error::CompiledTooBig(_) = fault {
        return format!("the pattern takes more than {PATTERN_MEMORY_MAX} bytes of memory");
    }
    let text = fault.to_string();
    // All lines but the last show the pattern.
    let last = text.lines().last().unwrap_or_default();
    match last.trim_start_matches("error: ").trim() {
        "repetition operator missing expression" => {
            "`*`, `+`, `?` or `{` repeats nothing; write \\ before it to match the character"
                .to_owned()
        }
        reason => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reference::Inputs;

    fn outcome(pattern: &str, syntax: Syntax, inputs: &Value) -> Result<bool, String> {
        let pattern = Pattern::parse(pattern, syntax)?;
        let matched = pattern.matches(&inputs["text"], &Inputs(inputs.clone()));
        matched.map_err(|error| error.to_string())
    }

    #[test]
    fn pattern_with_references_is_compiled_at_evaluation() {
        let inputs = json!({"text": "file-7.png", "regex": "^file-\\d", "stars": "file*", "dot": "7.p",
            "star": "*", "seven": 7, "broken": "(", "long": "a".repeat(PATTERN_BYTES_MAX + 1)});
        for (pattern, syntax, expect) in [
            ("{{inputs.regex}}", Syntax::Regex, true),
            ("{{inputs.stars}}", Syntax::Wildcards, true),
            ("{{inputs.stars}}", Syntax::Regex, true),
            ("^file-{{inputs.seven}}", Syntax::Regex, true),
            ("^file-{{inputs.dot}}ng$", Syntax::Regex, true),
            ("^file.{{inputs.star}}$", Syntax::Regex, false),
            ("*{{inputs.dot}}*", Syntax::Wildcards, true),
            ("file{{inputs.star}}", Syntax::Wildcards, false),
        ] {
            assert_eq!(outcome(pattern, syntax, &inputs), Ok(expect), "{pattern}");
        }
        for (pattern, expect) in [
            ("{{inputs.broken}}", "{{inputs.broken}} does not resolve to a valid pattern"),
            ("{{inputs.seven}}", "{{inputs.seven}} does not resolve to a valid pattern"),
            ("{{inputs.long}}", "{{inputs.long}} does not resolve to a valid pattern"),
            ("a{{inputs.gone}}", "{{inputs.gone}} resolves to nothing"),
            ("{{inputs.a", "has no closing"),
        ] {
            let error = outcome(pattern, Syntax::Regex, &inputs).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn pattern_error_is_described_in_words() {
        for (pattern, expect) in [
            ("*.png", "\"*.png\": `*`, `+`, `?` or `{` repeats nothing"),
            ("a|+", "repeats nothing"),
            ("(", "unclosed group"),
            ("(?=a)", "look-around, including look-ahead and look-behind, is not supported"),
            ("(a{99}){99}", "the pattern takes more than 262144 bytes of memory"),
        ] {
            let error = Pattern::parse(pattern, Syntax::Regex).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
        assert!(Pattern::parse("*.png (", Syntax::Wildcards).is_ok());
        assert!(outcome(r"a\{{2}", Syntax::Regex, &json!({"text": "a{{"})).unwrap());
    }
}
