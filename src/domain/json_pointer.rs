//! Where in a JSON document something is, kept as a chain of borrowed steps.
//!
//! It costs nothing until it is printed, which happens for faults only: a document with a hundred
//! thousand strings under long names is walked without a hundred thousand long paths.

use std::fmt;

/// The longest stretch of a user's own words that a sentence about a fault repeats, in characters.
const BRIEF_CHARS: usize = 60;

/// A JSON pointer (RFC 6901) into a document; displays as an empty text for the document itself.
#[derive(Debug, Clone, Copy)]
pub enum JsonPointer<'a> {
    Root,
    Field(&'a JsonPointer<'a>, &'a str),
    Item(&'a JsonPointer<'a>, usize),
}

impl<'a> JsonPointer<'a> {
    /// The pointer to the field `name` of the object here.
    #[must_use]
    pub const fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    /// The pointer to the array item `index`, counted from 0, of the array here.
    #[must_use]
    pub const fn item(&'a self, index: usize) -> Self {
        Self::Item(self, index)
    }
}

impl fmt::Display for JsonPointer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(parent, name) => {
                let escaped = brief(name).replace('~', "~0").replace('/', "~1");
                write!(f, "{parent}/{escaped}")
            }
            Self::Item(parent, index) => write!(f, "{parent}/{index}"),
        }
    }
}

/// `text` as far as a sentence should repeat it: at most 60 characters of it, then `…`.
#[must_use]
pub fn brief(text: &str) -> String {
    match text.char_indices().nth(BRIEF_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointer_escapes_field_names() {
        let root = JsonPointer::Root;
        let steps = root.field("steps");
        let third = steps.item(2);
        assert_eq!(root.to_string(), "");
        assert_eq!(third.field("a/b~c").to_string(), "/steps/2/a~1b~0c");
    }

    #[test]
    fn brief_truncates_between_characters() {
        assert_eq!(brief("short"), "short");
        assert_eq!(brief(&"ü".repeat(60)), "ü".repeat(60));
        assert_eq!(brief(&"ü".repeat(61)), format!("{}…", "ü".repeat(60)));
    }
}
