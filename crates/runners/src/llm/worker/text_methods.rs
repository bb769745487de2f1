//! Methods of Python strings that chat templates call and `minijinja_contrib` lacks.

use minijinja::value::{Value, from_args};
use minijinja::{Error, ErrorKind};

/// Largest width to which a text is padded.
const WIDTH_MAX: usize = 10_000;

/// Calls a method of a text; returns `None` for other values and methods.
///
/// # Errors
/// The fault in the arguments.
pub(super) fn call(
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let Some(text) = value.as_str() else { return Ok(None) };
    let result = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (mark,): (&str,) = from_args(arguments)?;
            let (is_last, none) = (method == "rpartition", ("", ""));
            let parts = if is_last { text.rsplit_once(mark) } else { text.split_once(mark) };
            let parts = match parts {
                Some((before, behind)) => [before, mark, behind],
                None if is_last => [none.0, none.1, text],
                None => [text, none.0, none.1],
            };
            parts.into_iter().collect()
        }
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let before = text.split_once(part).map(|(before, _)| before.chars().count());
            let missing = || Error::new(ErrorKind::InvalidOperation, "substring not found");
            before.ok_or_else(missing)?.into()
        }
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = text.get(..text.len() - digits.len()).unwrap_or_default();
            let zeros = width.min(WIDTH_MAX).saturating_sub(text.chars().count());
            format!("{sign}{}{digits}", "0".repeat(zeros)).into()
        }
        "swapcase" => {
            let swap = |letter: char| -> String {
                if letter.is_uppercase() {
                    letter.to_lowercase().collect()
                } else {
                    letter.to_uppercase().collect()
                }
            };
            text.chars().map(swap).collect::<String>().into()
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Pads a text on both sides.
#[must_use]
pub(super) fn center(text: &str, width: Option<usize>) -> String {
    let width = width.unwrap_or(80).min(WIDTH_MAX);
    let missing = width.saturating_sub(text.chars().count());
    let before = missing / 2;
    format!("{}{text}{}", " ".repeat(before), " ".repeat(missing - before))
}
