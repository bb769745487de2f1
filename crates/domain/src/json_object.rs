//! A strict reader of JSON objects: fields by name and type, a [`Mismatch`] with a sentence for
//! each invalid field, and the names of unread fields. The caller decides what to do with
//! mismatches: requests fail on the first one, while the definition compiler collects all of them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// Maximum characters per item in a list of strings.
const LISTED_TEXT_CHARS_MAX: usize = 1000;

/// A JSON object being read. Each reader removes its field; null counts as absent.
#[derive(Debug, Default)]
pub struct JsonObject {
    left: Map<String, Value>,
    read: Vec<&'static str>,
}

/// An invalid field. Prints as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {message}")]
pub struct Mismatch {
    pub field: &'static str,
    /// The rest of a sentence that begins with the field.
    pub message: Cow<'static, str>,
}

/// The result of a reader: the value, nothing, or a mismatch.
pub type Found<T> = Result<Option<T>, Mismatch>;

impl From<Map<String, Value>> for JsonObject {
    fn from(fields: Map<String, Value>) -> Self {
        Self { left: fields, read: Vec::new() }
    }
}

/// The largest integer up to which floating-point numbers are exact.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Returns the integer value of a JSON number in any notation: `2`, `2.0` and `2e0` are the same
/// number (JSON Schema, section 4.2.3). `None` for a fraction, or for a float so large that digits
/// may be lost.
#[must_use]
pub fn integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    exact.or_else(|| {
        let float = number.as_f64()?;
        let is_whole = float.fract() == 0.0 && float.abs() <= EXACT_MAX;
        is_whole.then(|| format!("{float:.0}").parse().ok()).flatten()
    })
}

/// [`integer`], within the range of `T`.
#[must_use]
pub fn whole_number<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    T::try_from(integer(value)?).ok()
}

/// Rewrites all whole numbers in a value without a fraction, for types that accept only integers.
#[must_use]
pub fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(ref number) if number.is_f64() => {
            whole_number::<i64>(&value).map_or(value, Value::from)
        }
        Value::Array(items) => items.into_iter().map(with_integers).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, field)| (name, with_integers(field))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

impl JsonObject {
    /// Takes the field, regardless of its type.
    pub fn take(&mut self, field: &'static str) -> Option<Value> {
        self.read.push(field);
        self.left.shift_remove(field).filter(|value| !value.is_null())
    }

    /// Takes a string.
    ///
    /// # Errors
    /// [`Mismatch`] for any other type; likewise for all readers below.
    pub fn text(&mut self, field: &'static str) -> Found<String> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Mismatch::new(field, "must be a string")),
        }
    }

    /// Takes a string of at most `most` characters.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn bounded_text(&mut self, field: &'static str, most: usize) -> Found<String> {
        self.text(field)?.map(|text| at_most(field, text, most)).transpose()
    }

    /// Takes a string of at most `most` characters that is not blank.
    ///
    /// # Errors
    /// [`Mismatch`]: a blank string `is required`.
    pub fn filled_text(&mut self, field: &'static str, most: usize) -> Found<String> {
        let Some(text) = self.text(field)? else { return Ok(None) };
        if text.trim().is_empty() {
            return Err(Mismatch::required(field));
        }
        at_most(field, text, most).map(Some)
    }

    /// Takes a display name: a [`JsonObject::filled_text`] without control characters.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn name(&mut self, field: &'static str, most: usize) -> Found<String> {
        one_line(field, self.filled_text(field, most)?)
    }

    /// Takes a [`JsonObject::name`] that may be empty.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn bounded_name(&mut self, field: &'static str, most: usize) -> Found<String> {
        one_line(field, self.bounded_text(field, most)?)
    }

    /// Takes a required [`JsonObject::name`].
    ///
    /// # Errors
    /// [`Mismatch`]: an absent or blank field `is required`.
    pub fn required_name(&mut self, field: &'static str, most: usize) -> Result<String, Mismatch> {
        self.name(field, most)?.ok_or_else(|| Mismatch::required(field))
    }

    /// Takes a required [`JsonObject::filled_text`].
    ///
    /// # Errors
    /// [`Mismatch`]: an absent or blank field `is required`.
    pub fn required_text(&mut self, field: &'static str, most: usize) -> Result<String, Mismatch> {
        self.filled_text(field, most)?.ok_or_else(|| Mismatch::required(field))
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn flag(&mut self, field: &'static str) -> Found<bool> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Mismatch::new(field, "must be true or false")),
        }
    }

    /// Takes a number, possibly with a fraction.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn number(&mut self, field: &'static str, range: &RangeInclusive<f64>) -> Found<f64> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let start = range.start();
        let end = range.end();
        let wrong = || Mismatch::new(field, format!("must be a number from {start} to {end}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn whole(&mut self, field: &'static str, range: &RangeInclusive<u64>) -> Found<u64> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let number = whole_number(&value).filter(|number| range.contains(number));
        let wrong = || {
            let message = match (range.start(), range.end()) {
                (start, &u64::MAX) => format!("must be a whole number, {start} or more"),
                (start, end) => format!("must be a whole number from {start} to {end}"),
            };
            Mismatch::new(field, message)
        };
        number.map(Some).ok_or_else(wrong)
    }

    /// Takes an object.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn object(&mut self, field: &'static str) -> Found<Map<String, Value>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(fields)),
            Some(_) => Err(Mismatch::new(field, "must be an object")),
        }
    }

    /// Takes an array.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn list(&mut self, field: &'static str) -> Found<Vec<Value>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(Mismatch::new(field, "must be an array")),
        }
    }

    /// Takes an array of strings, trimmed and without duplicates. The limits are checked before any
    /// comparison.
    ///
    /// # Errors
    /// [`Mismatch`], also for more than `most` items (including duplicates) and for an item of more
    /// than 1,000 characters.
    pub fn texts(&mut self, field: &'static str, most: usize) -> Found<Vec<String>> {
        let wrong = || Mismatch::new(field, "must be an array of strings");
        let Some(value) = self.take(field) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(wrong()) };
        if items.len() > most {
            return Err(Mismatch::new(field, format!("must have at most {most} items")));
        }
        let mut seen = HashSet::new();
        let mut texts = Vec::new();
        for item in &items {
            let text = item.as_str().ok_or_else(wrong)?.trim();
            if text.chars().nth(LISTED_TEXT_CHARS_MAX).is_some() {
                let message =
                    format!("must have items of at most {LISTED_TEXT_CHARS_MAX} characters");
                return Err(Mismatch::new(field, message));
            }
            if seen.insert(text) {
                texts.push(text.to_owned());
            }
        }
        Ok(Some(texts))
    }

    /// Returns the field's value without taking it.
    #[must_use]
    pub fn peek(&self, field: &str) -> Option<&Value> {
        self.left.get(field)
    }

    /// The names of the unread fields.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// The names of the fields read so far, in order.
    #[must_use]
    pub fn known(&self) -> &[&'static str] {
        &self.read
    }
}

impl Mismatch {
    fn new(field: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { field, message: message.into() }
    }

    /// The mismatch of a missing required field.
    #[must_use]
    pub fn required(field: &'static str) -> Self {
        Self::new(field, "is required")
    }
}

/// Returns the string, unless it contains control characters.
fn one_line(field: &'static str, text: Option<String>) -> Found<String> {
    if text.as_deref().is_some_and(|text| text.chars().any(char::is_control)) {
        return Err(Mismatch::new(field, "must not contain control characters"));
    }
    Ok(text)
}

fn at_most(field: &'static str, text: String, most: usize) -> Result<String, Mismatch> {
    if text.chars().nth(most).is_some() {
        return Err(Mismatch::new(field, format!("must have at most {most} characters")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(fields: Value) -> JsonObject {
        let Value::Object(fields) = fields else { panic!("an object") };
        fields.into()
    }

    fn texts(list: Value) -> Result<Option<Vec<String>>, String> {
        object(json!({ "tags": list })).texts("tags", 20).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn json_whole_numbers_are_read_in_any_notation() {
        let read = |text: &str| integer(&serde_json::from_str(text).unwrap());
        for (text, number) in [
            ("2", Some(2)),
            ("2.0", Some(2)),
            ("1e1", Some(10)),
            ("-0.0", Some(0)),
            ("-3.0", Some(-3)),
            ("9007199254740992.0", Some(9_007_199_254_740_992)),
            ("18446744073709551615", Some(u64::MAX.into())),
            ("9007199254740994.0", None),
            ("1e300", None),
            ("2.5", None),
            ("\"2\"", None),
            ("true", None),
        ] {
            assert_eq!(read(text), number, "{text}");
        }
        let mut fields = object(json!({"a": 2.0, "b": 2.5}));
        assert_eq!(fields.whole("a", &(0..=3)), Ok(Some(2)));
        assert!(fields.whole("b", &(0..=3)).is_err());
        assert_eq!(with_integers(json!({"a": [1.0, 1.5]})), json!({"a": [1, 1.5]}));
    }

    #[test]
    fn json_object_text_list_is_deduplicated_in_order() {
        let list = json!(["b", " a ", "b", "a"]);
        assert_eq!(texts(list), Ok(Some(vec!["b".to_owned(), "a".to_owned()])));
        assert_eq!(texts(Value::Null), Ok(None));
    }

    /// Comparing each of a million items with every other one would take hours.
    #[test]
    fn json_object_text_list_is_bounded_before_comparison() {
        let many: Vec<String> = (0..1_000_000).map(|number| number.to_string()).collect();
        assert_eq!(texts(json!(many)), Err("tags must have at most 20 items".to_owned()));
        assert_eq!(
            texts(json!(["x".repeat(LISTED_TEXT_CHARS_MAX + 1)])),
            Err("tags must have items of at most 1000 characters".to_owned())
        );
        assert_eq!(texts(json!(["a", 1])), Err("tags must be an array of strings".to_owned()));
    }

    #[test]
    fn json_object_mismatch_names_field_and_expected_type() {
        let fields = json!({
            "text": 1, "flag": "yes", "number": 11, "whole": 1.5, "size": -1, "object": [],
            "list": {}, "blank": " ", "long": "four",
        });
        let mut bounded = object(fields.clone());
        let mut object = object(fields);
        let mismatches = [
            object.text("text").err(),
            object.flag("flag").err(),
            object.number("number", &(0.0..=10.0)).err(),
            object.whole("whole", &(1..=10)).err(),
            object.whole("size", &(0..=u64::MAX)).err(),
            object.object("object").err(),
            object.list("list").err(),
            object.required_text("blank", 10).err(),
            object.required_text("absent", 10).err(),
            object.required_text("long", 3).err(),
            bounded.bounded_text("long", 3).err(),
        ];
        let sentences = mismatches.map(|mismatch| mismatch.unwrap().to_string());
        assert_eq!(
            sentences,
            [
                "text must be a string",
                "flag must be true or false",
                "number must be a number from 0 to 10",
                "whole must be a whole number from 1 to 10",
                "size must be a whole number, 0 or more",
                "object must be an object",
                "list must be an array",
                "blank is required",
                "absent is required",
                "long must have at most 3 characters",
                "long must have at most 3 characters",
            ]
        );
    }

    #[test]
    fn json_object_treats_null_as_absent_and_lists_unread_fields() {
        let mut object = object(json!({ "a": null, "b": 1, "c": 2 }));
        assert_eq!(object.text("a"), Ok(None));
        assert_eq!(object.take("b"), Some(json!(1)));
        assert_eq!(object.unread().collect::<Vec<_>>(), ["c"]);
        assert_eq!(object.known(), ["a", "b"]);
    }
}
