//! Named secrets of an organization: their valid names and values, and the redaction of values in
//! stored data.
//!
//! A value is only used in the request of an `http` step. The response is searched for the values
//! that its request contained, so that an echo does not reveal them. Values shorter than
//! [`REDACTED_BYTES_MIN`] are not searched for, since they often occur by chance.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::OrganizationId;
use super::mask::MASKED;
use super::reference::is_root_char;
use super::time::Timestamp;

mod encodings;

/// Maximum length of a name.
pub const NAME_MAX: usize = 64;
/// Maximum length of a value in bytes, enough for a private key with its certificate chain.
pub const VALUE_BYTES_MAX: usize = 32 * 1024;
/// Minimum length of a value that is searched for in responses.
pub const REDACTED_BYTES_MIN: usize = 6;
/// Maximum length of a value that is searched for in all encodings. Longer values are searched for
/// only as plain text, in JSON and in forms.
const ENCODED_BYTES_MAX: usize = 1024;
/// Maximum total length of the values that one search looks for in all encodings, which take up to
/// 300 times as much memory. Values beyond this total are treated like values longer than
/// [`ENCODED_BYTES_MAX`].
const ENCODED_TOTAL_MAX: usize = 8 * 1024;

/// A stored secret.
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

/// Returns whether a name is valid: 1 to 64 characters of `a-zA-Z0-9_-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_root_char)
}

/// The values of secrets by name, which are never printed.
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
    /// Returns the value of the secret with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// The strings to redact from stored data, which are never printed.
#[derive(Clone, Default)]
pub struct Redaction {
    hidden: Vec<String>,
    /// Total length of the secrets whose encodings are in `hidden`.
    encoded_bytes: usize,
    /// Finds all strings in one pass; built on first use.
    finder: OnceLock<Option<AhoCorasick>>,
}

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redaction({})", self.hidden.len())
    }
}

impl Redaction {
    /// Adds a string, unless it is too short to be searched for.
    pub fn add(&mut self, text: &str) {
        if text.len() >= REDACTED_BYTES_MIN && !self.hidden.iter().any(|held| held == text) {
            self.hidden.push(text.to_owned());
            self.finder = OnceLock::new();
        }
    }

    /// Adds a secret, including its common encodings.
    pub fn add_secret(&mut self, value: &str) {
        self.add(value);
        self.add(value.trim());
        self.add(&form_urlencoded::byte_serialize(value.as_bytes()).collect::<String>());
        self.add(Value::from(value).to_string().trim_matches('"'));
        let total = self.encoded_bytes.saturating_add(value.len());
        if value.len() <= ENCODED_BYTES_MAX && total <= ENCODED_TOTAL_MAX {
            self.encoded_bytes = total;
            encodings::of(value).iter().for_each(|text| self.add(text));
        }
    }

    /// Returns whether there is nothing to search for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hidden.is_empty()
    }

    /// Masks every occurrence in a string.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        match self.finder() {
            Some(finder) => {
                let mut masked = String::with_capacity(text.len());
                finder.replace_all_with(text, &mut masked, |_, _, masked| {
                    masked.push_str(MASKED);
                    true
                });
                masked
            }
            None => self.hidden.iter().fold(text.to_owned(), |text, one| text.replace(one, MASKED)),
        }
    }

    /// Returns the search automaton; `None` if there are too many strings for a single search.
    fn finder(&self) -> Option<&AhoCorasick> {
        let build = || {
            // One string may contain another; the longest match wins.
            let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).clone();
            builder.build(&self.hidden).ok()
        };
        self.finder.get_or_init(build).as_ref()
    }

    /// Masks every occurrence in a value: in strings, field names and numbers.
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
            Value::Array(items) => {
                // A list of bytes, such as a buffer in Node.
                let is_byte = |item: &Value| item.as_u64().is_some_and(|byte| byte <= 255);
                if items.iter().all(is_byte)
                    && self.is_in(&Value::from(items.as_slice()).to_string())
                {
                    *value = MASKED.into();
                    return;
                }
                items.iter_mut().for_each(|item| self.value(item));
            }
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Masks every occurrence in the fields of an object as [`Redaction::value`] does.
    pub fn fields(&self, fields: &mut Map<String, Value>) {
        if fields.keys().any(|name| self.is_in(name)) {
            let named = std::mem::take(fields).into_iter();
            *fields = named.map(|(name, value)| (self.text(&name), value)).collect();
        }
        fields.iter_mut().for_each(|(_, value)| self.value(value));
    }

    fn is_in(&self, text: &str) -> bool {
        match self.finder() {
            Some(finder) => finder.is_match(text),
            None => self.hidden.iter().any(|hidden| text.contains(hidden)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_names_are_valid_in_references() {
        for good in ["a", "API_KEY", "stripe-live-2", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "a b", "a.b", "ключ", "a/b", "a}}", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn redaction_masks_values_anywhere() {
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
    fn redaction_masks_usual_encodings_of_a_secret() {
        let secret = "Pä/ss+w<o>rd&'1\"";
        let mut redaction = Redaction::default();
        redaction.add_secret(secret);
        for echo in [
            "P\u{e4}/ss+w<o>rd&'1\"",
            r#"P\u00e4/ss+w<o>rd&'1\""#,
            r#"P\u00E4\/ss+w<o>rd&'1\""#,
            r#"P\u00e4/ss+w\u003co\u003erd\u0026'1\""#,
            "P%C3%A4%2Fss%2Bw%3Co%3Erd%26%271%22",
            "p\u{e4}/ss+w<o>rd&'1\"",
            "P%c3%a4%2fss%2bw%3co%3erd%26%271%22",
            "P%C3%A4%2Fss%2Bw%3Co%3Erd%26'1%22",
            "Pä/ss+w&lt;o&gt;rd&amp;&#39;1&quot;",
            "Pä/ss+w&lt;o&gt;rd&amp;&#x27;1&#34;",
            "50c3a42f73732b773c6f3e726426273122",
            "50C3A42F73732B773C6F3E726426273122",
            "UMOkL3NzK3c8bz5yZCYnMSI=",
            "UMOkL3NzK3c8bz5yZCYnMSI",
            "P\u{c4}/SS+W<O>RD&'1\"",
            "P%C3%A4/ss%2Bw%3Co%3Erd%26%271%22",
            "P%C3%A4/ss+w%3Co%3Erd&'1%22",
            "P%25C3%25A4%252Fss%252Bw%253Co%253Erd%2526%25271%2522",
            "50:c3:a4:2f:73:73:2b:77:3c:6f:3e:72:64:26:27:31:22",
            "50 C3 A4 2F 73 73 2B 77 3C 6F 3E 72 64 26 27 31 22",
            "80, 195, 164, 47, 115, 115, 43, 119, 60, 111, 62, 114, 100, 38, 39, 49, 34",
            r#"Pä/ss+w<o>rd&'1\\\""#,
            r#"P\\u00e4/ss+w<o>rd&'1\\\""#,
            "P\u{c3}\u{a4}/ss+w<o>rd&'1\"",
            r#"P\u00c3\u00a4/ss+w<o>rd&'1\""#,
        ] {
            assert_eq!(
                redaction.text(&format!("[{echo}]")).trim_matches(['[', ']', '=']),
                MASKED,
                "{echo}"
            );
        }
        // The secret is part of basic-auth credentials of various users: the first and last base64
        // characters also depend on the neighboring bytes.
        for user in ["", "u", "us", "use", "user"] {
            use base64::Engine as _;
            let text =
                base64::engine::general_purpose::STANDARD.encode(format!("{user}:{secret}."));
            assert!(redaction.text(&text).contains(MASKED), "{text}");
        }
        assert_eq!(redaction.text("Pä/ss, an other text"), "Pä/ss, an other text");
        // Values beyond the total are still masked as plain text.
        for number in 0..20 {
            redaction.add_secret(&format!("{number}{}", "x".repeat(1000)));
        }
        assert!(redaction.encoded_bytes <= ENCODED_TOTAL_MAX);
        assert_eq!(redaction.text(&format!("19{}", "x".repeat(1000))), MASKED);
        let buffer = json!({"type": "Buffer", "data": secret.as_bytes()});
        let mut value = json!([buffer, [1, 2, 3], [80, 195, 164, "x"]]);
        redaction.value(&mut value);
        let expect = json!([{"type": "Buffer", "data": "***"}, [1, 2, 3], [80, 195, 164, "x"]]);
        assert_eq!(value, expect);
    }

    #[test]
    fn values_print_names_only() {
        let values: Values = [("a".to_owned(), "hunter2".to_owned())].into_iter().collect();
        assert_eq!((values.get("a"), values.get("b")), (Some("hunter2"), None));
        assert_eq!(format!("{values:?}"), r#"{"a"}"#);
    }
}
