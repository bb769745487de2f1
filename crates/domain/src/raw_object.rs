//! A JSON object with unparsed values. A proxy uses such objects to change known fields and pass on
//! all others byte for byte, including numbers of any precision.
//!
//! Values are never parsed. Of duplicate fields, only the last value is kept, so that all readers
//! of the object see the same value.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// Maximum number of fields in an object.
pub const FIELDS_MAX: usize = 1000;
/// Initial capacity of an object, in fields: most requests have no more.
const FIELDS_USUAL: usize = 8;
/// Overhead of a field in addition to its name and its value, in bytes, rounded up.
const PUNCTUATION: usize = 6;

/// A JSON object with its fields in order.
#[derive(Debug, Clone, Default)]
pub struct RawObject {
    fields: Vec<(String, Box<RawValue>)>,
}

impl RawObject {
    /// Returns the JSON text of a field; null counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(field, _)| field == name)?;
        Some(value.get()).filter(|text| *text != "null")
    }

    /// Returns all fields with their values, including nulls.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.get()))
    }

    /// Returns the names of all fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the value of a field as a `T`; `None` if it is absent, null or of another type.
    #[must_use]
    pub fn value<'s, T: Deserialize<'s>>(&'s self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Removes a field.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|(field, _)| field != name);
    }

    /// Keeps only the fields for which `stays` returns true.
    pub fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.fields.retain(|(field, _)| stays(field));
    }

    /// Sets a field; an existing field keeps its position.
    ///
    /// # Errors
    /// If the value cannot be serialized.
    pub fn set<T: Serialize + ?Sized>(
        &mut self,
        name: &str,
        value: &T,
    ) -> Result<(), serde_json::Error> {
        self.put(name.to_owned(), to_raw_value(value)?);
        Ok(())
    }

    /// Serializes the object to JSON text.
    ///
    /// # Errors
    /// Never in practice, because the values are already JSON.
    pub fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        let fields = self.fields.iter();
        let bytes = fields.map(|(name, value)| name.len() + value.get().len() + PUNCTUATION).sum();
        let mut text = Vec::with_capacity(bytes);
        serde_json::to_writer(&mut text, self)?;
        Ok(text)
    }

    fn put(&mut self, name: String, value: Box<RawValue>) {
        match self.fields.iter_mut().find(|(field, _)| *field == name) {
            Some((_, held)) => *held = value,
            None => self.fields.push((name, value)),
        }
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawObject;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut object = RawObject { fields: Vec::with_capacity(FIELDS_USUAL) };
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    object.put(name, value);
                    if object.fields.len() > FIELDS_MAX {
                        let message = format!("an object may have at most {FIELDS_MAX} fields");
                        return Err(A::Error::custom(message));
                    }
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> RawObject {
        serde_json::from_str(text).unwrap()
    }

    fn text(object: &RawObject) -> String {
        String::from_utf8(object.text().unwrap()).unwrap()
    }

    #[test]
    fn raw_object_keeps_values_byte_for_byte() {
        let written = r#"{"a":1.10000000000000000001,"b":{ "c" : [1e400, "\u00e9"]},"d":12345678901234567890123}"#;
        assert_eq!(text(&object(written)), written);
    }

    #[test]
    fn raw_object_changes_only_the_named_field() {
        let mut fields = object(r#"{"model":"a","x":{"y": 1},"model":"b","gone":1}"#);
        assert_eq!(fields.get("model"), Some(r#""b""#), "the last one counts");
        fields.set("model", "c").unwrap();
        fields.set("more", &true).unwrap();
        fields.remove("gone");
        assert_eq!(text(&fields), r#"{"model":"c","x":{"y": 1},"more":true}"#);
    }

    #[test]
    fn raw_object_reads_typed_values_and_treats_null_as_absent() {
        let fields = object(r#"{"a":null,"b":7}"#);
        assert_eq!((fields.get("a"), fields.get("b")), (None, Some("7")));
        assert_eq!((fields.value::<u64>("b"), fields.value::<String>("b")), (Some(7), None));
    }

    #[test]
    fn raw_object_limits_fields_and_rejects_other_values() {
        let many = |count: usize| {
            let fields: Vec<String> = (0..count).map(|number| format!("\"{number}\":1")).collect();
            serde_json::from_str::<RawObject>(&format!("{{{}}}", fields.join(",")))
        };
        assert!(many(FIELDS_MAX).is_ok() && many(FIELDS_MAX + 1).is_err());
        for other in ["[]", "1", "\"a\"", "null", "{", "{\"a\":}"] {
            assert!(serde_json::from_str::<RawObject>(other).is_err(), "{other}");
        }
    }
}
