//! Hexadecimal text of bytes.

use std::fmt::Write;

/// Formats bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    bytes.into_iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
