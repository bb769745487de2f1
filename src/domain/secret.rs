//! Named secrets of an organization: what a name and a value must be, and the redaction of values in
//! what is kept.
//!
//! A value is resolved into the request of an `http` step and nowhere else. What the receiver answers
//! is searched for the values that its request carried, so that an echo reveals none. Values shorter
//! than [`REDACTED_BYTES_MIN`] are not searched for: they are in too many texts by chance.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::OrganizationId;
use super::mask::MASKED;
use super::reference::is_root_char;
use super::time::Timestamp;

/// The longest name.
pub const NAME_MAX: usize = 64;
/// The longest value: a private key with its chain of certificates fits.
pub const VALUE_BYTES_MAX: usize = 32 * 1024;
/// The shortest value that is searched for in answers.
pub const REDACTED_BYTES_MIN: usize = 6;

/// A secret as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    pub organization: OrganizationId,
    pub name: String,
    /// The value, sealed.
    pub sealed: String,
    pub created_at: Timestamp,
    /// When the value was last set.
    pub updated_at: Timestamp,
}

/// Whether a secret can have this name: 1 to 64 characters of `a-zA-Z0-9_-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_root_char)
}

/// The values of secrets by name. Never printed.
#[derive(Clone, Default)]
pub struct Values(HashMap<String, String>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl FromIterator<(String, String)> for Values {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Values {
    /// The value of the secret with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Texts that must not be kept. Never printed.
#[derive(Clone, Default)]
pub struct Redaction(Vec<String>);

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redaction({})", self.0.len())
    }
}

impl Redaction {
    /// Adds a text, unless it is too short to be searched for.
    pub fn add(&mut self, text: &str) {
        if text.len() >= REDACTED_BYTES_MIN && !self.0.iter().any(|held| held == text) {
            self.0.push(text.to_owned());
            // A text may contain another one, which must not break it up.
            self.0.sort_by_key(|text| std::cmp::Reverse(text.len()));
        }
    }

    /// Whether there is nothing to search for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text with every occurrence masked.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for hidden in &self.0 {
            if text.contains(hidden) {
                text = text.replace(hidden, MASKED);
            }
        }
        text
    }

    /// Masks every occurrence in a value: in texts, names of fields and numbers.
    pub fn value(&self, value: &mut Value) {
        if self.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if self.is_in(text) {
                    *text = self.text(text);
                }
            }
            Value::Number(number) => {
                if self.is_in(&number.to_string()) {
                    *value = MASKED.into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// [`Redaction::value`] for the fields of an object.
    pub fn fields(&self, fields: &mut Map<String, Value>) {
        if fields.keys().any(|name| self.is_in(name)) {
            let named = std::mem::take(fields).into_iter();
            *fields = named.map(|(name, value)| (self.text(&name), value)).collect();
        }
        fields.iter_mut().for_each(|(_, value)| self.value(value));
    }

    fn is_in(&self, text: &str) -> bool {
        self.0.iter().any(|hidden| text.contains(hidden))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_names_are_those_that_a_reference_can_have() {
        for good in ["a", "API_KEY", "stripe-live-2", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "a.b", "ключ", "a/b", "a}}", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn redaction_masks_values_wherever_they_are() {
        let mut redaction = Redaction::default();
        for text in ["hunter2", "hunter2-and-more", "123456", "short"] {
            redaction.add(text);
        }
        let mut value = json!({
            "text": "a hunter2-and-more b hunter2",
            "hunter2": [123456, 12345, 9_123_456.5, true, null],
            "kept": "short",
        });
        redaction.value(&mut value);
        let expect = json!({"text": "a *** b ***", "kept": "short", "***": ["***", 12345, "***", true, null]});
        assert_eq!(value, expect);
        assert_eq!(format!("{redaction:?}"), "Redaction(3)");
    }

    #[test]
    fn values_print_names_only() {
        let values: Values = [("a".to_owned(), "hunter2".to_owned())].into_iter().collect();
        assert_eq!((values.get("a"), values.get("b")), (Some("hunter2"), None));
        assert_eq!(format!("{values:?}"), r#"{"a"}"#);
    }
}
