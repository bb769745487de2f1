//! A strict reader of JSON objects: fields by name and type, a [`Mismatch`] with a sentence for
//! each invalid field, and the names of unread fields. The definition compiler collects all
//! mismatches.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

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

/// Returns the value of [`integer`] if it is within the range of `T`.
#[must_use]
pub fn whole_number<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    T::try_from(integer(value)?).ok()
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
    /// [`Mismatch`] for any other type.
    pub fn text(&mut self, field: &'static str) -> Found<String> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Mismatch::new(field, "must be a string")),
        }
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// [`Mismatch`] for any other type.
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
    /// [`Mismatch`] for any other type, or a number outside `range`.
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
    /// [`Mismatch`] for any other type, or a number outside `range`.
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
    /// [`Mismatch`] for any other type.
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
    /// [`Mismatch`] for any other type.
    pub fn list(&mut self, field: &'static str) -> Found<Vec<Value>> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(Mismatch::new(field, "must be an array")),
        }
    }

    /// Returns the names of the unread fields.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// Returns the names of the fields read so far, in order.
    #[must_use]
    pub fn known(&self) -> &[&'static str] {
        &self.read
    }
}

impl Mismatch {
    fn new(field: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { field, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(fields: Value) -> JsonObject {
        let Value::Object(fields) = fields else { panic!("an object") };
        fields.into()
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
    }

    #[test]
    fn json_object_mismatch_names_field_and_expected_type() {
        let fields = json!({
            "text": 1, "flag": "yes", "number": 11, "whole": 1.5, "size": -1, "object": [],
            "list": {},
        });
        let mut object = object(fields);
        let mismatches = [
            object.text("text").err(),
            object.flag("flag").err(),
            object.number("number", &(0.0..=10.0)).err(),
            object.whole("whole", &(1..=10)).err(),
            object.whole("size", &(0..=u64::MAX)).err(),
            object.object("object").err(),
            object.list("list").err(),
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
