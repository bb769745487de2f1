//! Detects unknown top-level fields of a JSON body without building a tree of the body. A request
//! that asks for strict handling (RFC 7240) and has unknown fields is refused; for other requests,
//! the response contains a warning.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::Error;
use orrery_domain::spelling;

/// Maximum number of unknown names listed in one response.
const NAMED_MAX: usize = 10;
/// The fields that contain the input of a workflow or a model.
const INPUTS: [&str; 2] = ["inputs", "input"];
/// Maximum size of a body that is checked, in bytes. Larger bodies are checked only for strict
/// requests.
const LOOKED_AT_MAX: usize = 256 * 1024;

/// Checks the fields of a request's body.
#[derive(Debug, Clone)]
pub struct FieldCheck {
    known: Arc<[String]>,
    is_strict: bool,
    found: Arc<Mutex<Vec<String>>>,
}

impl FieldCheck {
    /// Creates a check against the known names. A strict check refuses a body that contains unknown
    /// names.
    #[must_use]
    pub fn new(known: Arc<[String]>, is_strict: bool) -> Self {
        Self { known, is_strict, found: Arc::default() }
    }

    /// Returns whether the client requested strict handling.
    #[must_use]
    pub const fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Checks an entire body. Only JSON objects are checked; other input is left to the body's
    /// parser.
    ///
    /// # Errors
    /// 400 for a body with unknown names, in a strict check.
    pub(super) fn look(&self, body: &[u8]) -> Result<(), Error> {
        if !self.is_strict && body.len() > LOOKED_AT_MAX {
            return Ok(());
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let unknown = json.deserialize_map(Unknown(&self.known));
        let Ok(unknown) = unknown.and_then(|unknown| json.end().map(|()| unknown)) else {
            return Ok(());
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        let named = unknown.iter().take(NAMED_MAX);
        let sentences: Vec<String> = named.map(|name| sentence_of(name, &known)).collect();
        if self.is_strict {
            return Err(Error::bad_request(sentences.join("; ")));
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = sentences;
        Ok(())
    }

    /// Adds a warning to the response.
    pub(super) fn add(&self, sentence: String) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
    }

    /// Returns a sentence for each unknown name in the checked body.
    #[must_use]
    pub fn found(&self) -> Vec<String> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the sentence about an unknown name. A common mistake is to send the inputs of a workflow
/// or model next to the object that should contain them.
fn sentence_of(name: &str, known: &[&str]) -> String {
    let sentence = spelling::unknown("field", name, name, known);
    let is_near = spelling::nearest(name, known).is_some();
    match INPUTS.into_iter().find(|inputs| known.contains(inputs)).filter(|_| !is_near) {
        Some(inputs) => format!("{sentence}; the fields of the input belong inside {inputs}"),
        None => sentence,
    }
}

/// Collects the unknown names in an object.
struct Unknown<'k>(&'k [String]);

impl<'de> Visitor<'de> for Unknown<'_> {
    type Value = BTreeSet<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut unknown = BTreeSet::new();
        while let Some(name) = fields.next_key_seed(UnlessKnown(self.0))? {
            fields.next_value::<IgnoredAny>()?;
            unknown.extend(name);
        }
        Ok(unknown)
    }
}

/// Reads a field name. Returns `None` if the name is known.
struct UnlessKnown<'k>(&'k [String]);

impl<'de> DeserializeSeed<'de> for UnlessKnown<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for UnlessKnown<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let is_known = self.0.iter().any(|known| known == name);
        Ok((!is_known).then(|| name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_strict: bool) -> FieldCheck {
        let known = ["model", "input", "webhook_url"].map(str::to_owned);
        FieldCheck::new(known.into(), is_strict)
    }

    #[test]
    fn body_fields_unknown_are_reported_or_rejected() {
        let body = br#"{"model": "m", "webhook": "x", "input": {"inner": 1}, "zzz": [1]}"#;
        let lax = check(false);
        lax.look(body).unwrap();
        assert_eq!(
            lax.found(),
            [
                "unknown field webhook: did you mean webhook_url?",
                "unknown field zzz: expected one of model, input, webhook_url; the fields of the input belong \
                 inside input",
            ]
        );
        let error = check(true).look(body).unwrap_err();
        assert_eq!(error.status, 400);
        assert!(error.message.starts_with("unknown field webhook: did you mean webhook_url?; "));
    }

    #[test]
    fn body_fields_ignore_other_bodies() {
        for body in [&b""[..], b"[1]", b"{", b"null", b"\xff", br#"{"model": 1}"#] {
            let check = check(true);
            check.look(body).unwrap();
            assert!(check.found().is_empty());
        }
    }

    #[test]
    fn body_fields_warnings_are_header_safe_and_limited() {
        let names: Vec<String> =
            (0..100).map(|number| format!("\"{number}\\r\\nSet-Cookie: é\": 1")).collect();
        let lax = check(false);
        lax.look(format!("{{{}}}", names.join(",")).as_bytes()).unwrap();
        let found = lax.found();
        assert_eq!(found.len(), NAMED_MAX);
        for sentence in found {
            assert!(sentence.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{sentence}");
            assert!(!sentence.contains('"'), "{sentence}");
        }
    }
}
