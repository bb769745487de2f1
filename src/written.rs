//! What people write in files: read within a bound, told by line and column, and the nearest known
//! word to a mistyped one.
//!
//! Shared by the configuration and the manifests; it knows the keys of neither.

use std::io::Read;
use std::path::Path;

/// Words further away than this many edits are not suggested.
const FARTHEST: usize = 3;

/// The text of a file of at most `limit` bytes.
///
/// # Errors
/// A sentence that names the file and says what is wrong.
pub fn read(path: &Path, limit: u64) -> Result<String, String> {
    let shown = path.display();
    let file =
        std::fs::File::open(path).map_err(|error| format!("cannot open {shown}: {error}"))?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot read {shown}: {error}"))?;
    if bytes.len() as u64 > limit {
        return Err(format!("{shown} is larger than {limit} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| format!("{shown} is not UTF-8: {error}"))
}

/// Line and column of a byte of `text`, both from 1, the column in characters.
#[must_use]
pub fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// The known word that is nearest to `unknown`, if one is near enough.
#[must_use]
pub fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(unknown, word), *word))
        .filter(|(distance, word)| *distance <= FARTHEST && *distance < word.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// serde's sentence about an unknown field, with the nearest of `known` in place of the whole list;
/// every other sentence as it is.
#[must_use]
pub fn explain(message: &str, known: &[&str]) -> String {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let Some((unknown, _)) = unknown else { return message.to_owned() };
    match nearest(unknown, known) {
        Some(near) => format!("unknown key '{unknown}', did you mean '{near}'?"),
        None => format!("unknown key '{unknown}'"),
    }
}

/// Units of sizes, the longest names first.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// A size as people write it: a number of bytes, or text such as `"4GiB"`.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(untagged)]
pub enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    /// The bytes, if it says any.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Text(text) => bytes_of(text),
        }
    }
}

/// The bytes of a text such as `8MiB`, if it is one.
#[must_use]
pub fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, *unit)))?;
    number.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["listen", "public_url", "url"];
        assert_eq!(nearest("lisen", &known), Some("listen"));
        assert_eq!(nearest("xyz", &known), None);
        assert_eq!(nearest("certificate", &known), None);
        let sentence = "unknown field `lisetn`, expected `listen`";
        assert_eq!(explain(sentence, &known), "unknown key 'lisetn', did you mean 'listen'?");
        assert_eq!(explain("missing field `a`", &known), "missing field `a`");
    }
}
