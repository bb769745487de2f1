//! A position in a JSON document, as a linked list of borrowed path segments.
//!
//! The pointer is built only when it is printed, which happens only for errors. So walking a
//! document with a hundred thousand strings under long names does not build a hundred thousand long
//! paths.

use std::borrow::Cow;
use std::fmt;

/// Maximum number of characters of user-supplied text that an error message repeats.
const BRIEF_CHARS: usize = 60;
/// Maximum length of a printed JSON pointer, in bytes.
pub const POINTER_BYTES_MAX: usize = 4096;

/// A JSON pointer (RFC 6901) into a document; prints as an empty string for the document itself.
#[derive(Debug, Clone, Copy)]
pub enum JsonPointer<'a> {
    Root,
    Field(&'a JsonPointer<'a>, &'a str),
    Item(&'a JsonPointer<'a>, usize),
}

impl<'a> JsonPointer<'a> {
    /// Returns the pointer to the field `name` of this object.
    #[must_use]
    pub const fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    /// Returns the pointer to the item `index` of this array, from 0.
    #[must_use]
    pub const fn item(&'a self, index: usize) -> Self {
        Self::Item(self, index)
    }
}

impl fmt::Display for JsonPointer<'_> {
    /// Prints the exact pointer. If the exact pointer is longer than [`POINTER_BYTES_MAX`], prints
    /// the pointer to the innermost enclosing object or array that fits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pointer = String::new();
        self.write(&mut pointer);
        f.write_str(&pointer)
    }
}

impl JsonPointer<'_> {
    /// Appends the pointer, up to [`POINTER_BYTES_MAX`]. Returns whether the complete pointer fits.
    fn write(&self, pointer: &mut String) -> bool {
        let (parent, name) = match self {
            Self::Root => return true,
            Self::Field(parent, name) => (parent, Cow::Borrowed(*name)),
            Self::Item(parent, index) => (parent, Cow::Owned(index.to_string())),
        };
        if !parent.write(pointer) || name.len() > POINTER_BYTES_MAX {
            return false;
        }
        let name = escaped(&name);
        let fits = pointer.len() + 1 + name.len() <= POINTER_BYTES_MAX;
        if fits {
            pointer.push('/');
            pointer.push_str(&name);
        }
        fits
    }
}

/// Escapes a name for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Unescapes one segment of a JSON pointer.
#[must_use]
pub fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// Shortens a JSON pointer for an error message by truncating long names.
#[must_use]
pub fn brief_pointer(pointer: &str) -> String {
    pointer.split('/').map(brief).collect::<Vec<_>>().join("/")
}

/// Shortens `text` for an error message: at most 60 characters, then `…`.
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
    fn json_pointer_keeps_long_names_and_is_bounded() {
        let long = "ü/".repeat(100);
        let root = JsonPointer::Root;
        let place = root.field(&long);
        let pointer = place.item(3).to_string();
        let within = serde_json::json!({long.as_str(): [0, 0, 0, "here"]});
        assert_eq!(within.pointer(&pointer), Some(&"here".into()));
        assert_eq!(brief_pointer(&pointer), format!("/{}…/3", "ü~1".repeat(20)));
        let too_long = "x".repeat(POINTER_BYTES_MAX);
        let below = place.field(&too_long);
        assert_eq!(below.to_string(), place.to_string(), "leads to the object around it");
        assert_eq!(below.item(1).field("y").to_string(), place.to_string());
        assert_eq!(root.field(&too_long[1..]).to_string().len(), POINTER_BYTES_MAX);
    }

    #[test]
    fn brief_truncates_between_characters() {
        assert_eq!(brief("short"), "short");
        assert_eq!(brief(&"ü".repeat(60)), "ü".repeat(60));
        assert_eq!(brief(&"ü".repeat(61)), format!("{}…", "ü".repeat(60)));
    }
}
