//! The fields of a request's body: read by name, refused in words that name them.

use std::collections::HashSet;

use hyper::header::{HeaderValue, RETRY_AFTER};
use serde_json::{Map, Value};

use super::Services;
use crate::domain::delivery::Webhook;
use crate::domain::signature;
use crate::http::Error;
use crate::http::call::parse_value;
use crate::schema::{Unavailable, Unfit, Violation};

/// The longest text in a list of texts, in characters.
const LISTED_TEXT_MAX: usize = 1000;

/// A JSON object as a client sent it.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body; an empty one has no fields.
    ///
    /// # Errors
    /// 400 when it is not JSON or no object.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let Value::Object(fields) = parse_value(bytes)? else {
            return Err(Error::bad_request("the request body must be a JSON object"));
        };
        Ok(Self(fields))
    }

    /// Takes a field out, of whatever shape; null counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A text; null counts as absent.
    ///
    /// # Errors
    /// 400 when it is none.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Error> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Error::bad_request(format!("{name} must be a string"))),
        }
    }

    /// A text that must be there and hold something else than spaces.
    ///
    /// # Errors
    /// 400 `{name} is required`; 400 when it is longer than `most` characters.
    pub fn required(&self, name: &str, most: usize) -> Result<String, Error> {
        let text = self.text(name)?.filter(|text| !text.trim().is_empty());
        let text = text.ok_or_else(|| Error::bad_request(format!("{name} is required")))?;
        if text.chars().count() > most {
            let message = format!("{name} must have at most {most} characters");
            return Err(Error::bad_request(message));
        }
        Ok(text.to_owned())
    }

    /// True or false; null counts as absent.
    ///
    /// # Errors
    /// 400 when it is neither.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Error::bad_request(format!("{name} must be true or false"))),
        }
    }

    /// An array of texts, each once, trimmed; null counts as absent. The limits are checked before
    /// anything is copied or compared.
    ///
    /// # Errors
    /// 400 when it is not an array of strings, has more than `most` items (repeated ones included), or
    /// an item of more than 1,000 characters.
    pub fn texts(&self, name: &str, most: usize) -> Result<Option<Vec<String>>, Error> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let wrong = || Error::bad_request(format!("{name} must be an array of strings"));
        let items = value.as_array().ok_or_else(wrong)?;
        if items.len() > most {
            return Err(Error::bad_request(format!("{name} must have at most {most} items")));
        }
        let (mut seen, mut each_once) = (HashSet::new(), Vec::new());
        for item in items {
            let text = item.as_str().ok_or_else(wrong)?.trim();
            if text.chars().nth(LISTED_TEXT_MAX).is_some() {
                let message =
                    format!("{name} must have items of at most {LISTED_TEXT_MAX} characters");
                return Err(Error::bad_request(message));
            }
            if seen.insert(text) {
                each_once.push(text.to_owned());
            }
        }
        Ok(Some(each_once))
    }

    /// Where the completion is to be announced. An empty URL means nowhere.
    ///
    /// # Errors
    /// 400 for a URL that is none or leads where none may lead, and for a secret that is none.
    pub fn webhook(&self, services: &Services) -> Result<Option<Webhook>, Error> {
        self.webhook_at("webhook_url", services)
    }

    /// The same where the URL stands in another field.
    ///
    /// # Errors
    /// As [`Fields::webhook`].
    pub fn webhook_at(&self, name: &str, services: &Services) -> Result<Option<Webhook>, Error> {
        let secret = self.text("webhook_secret")?.filter(|secret| !secret.is_empty());
        let Some(url) = self.text(name)?.filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        let refuse = |what: String| Error::bad_request(what);
        services.egress.check_url(url).map_err(|error| refuse(format!("{name} {error}")))?;
        let seal = |secret: &str| {
            signature::check_secret(secret).map_err(|error| refuse(error.to_string()))?;
            services.sealer.seal(secret).map_err(Error::internal)
        };
        let secret = secret.map(seal).transpose()?;
        Ok(Some(Webhook { url: url.to_owned(), secret }))
    }
}

/// Input that is not taken.
pub fn unfit(unfit: Unfit) -> Error {
    match unfit {
        Unfit::Breaks(violations) => invalid_input(&violations),
        Unfit::Unavailable(unavailable) => unchecked(unavailable),
    }
}

/// What was not checked: 503 for what may be tried again.
pub fn unchecked(unavailable: Unavailable) -> Error {
    match unavailable {
        Unavailable::Busy => Error::unavailable(unavailable.to_string())
            .with_header(RETRY_AFTER, HeaderValue::from_static("1")),
        Unavailable::Panicked => Error::internal(unavailable),
    }
}

/// Input that breaks its schema: all violations, the first of them in the message.
fn invalid_input(violations: &[Violation]) -> Error {
    let first = violations.first().map_or("", |violation| violation.message.as_str());
    Error::bad_request(format!("invalid input: {first}")).with_details(violations)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(list: Value) -> Result<Option<Vec<String>>, String> {
        let body = json!({ "tags": list }).to_string();
        let fields = Fields::parse(body.as_bytes()).unwrap();
        fields.texts("tags", 20).map_err(|error| error.message)
    }

    #[test]
    fn listed_texts_are_kept_once_in_their_order() {
        let list = json!(["b", " a ", "b", "a"]);
        assert_eq!(texts(list), Ok(Some(vec!["b".to_owned(), "a".to_owned()])));
        assert_eq!(texts(Value::Null), Ok(None));
    }

    /// Comparing each of a million items with each other one would take hours.
    #[test]
    fn listed_texts_are_counted_and_measured_before_they_are_compared() {
        let many: Vec<String> = (0..1_000_000).map(|number| number.to_string()).collect();
        assert_eq!(texts(json!(many)), Err("tags must have at most 20 items".to_owned()));
        assert_eq!(
            texts(json!(["x".repeat(LISTED_TEXT_MAX + 1)])),
            Err("tags must have items of at most 1000 characters".to_owned())
        );
        assert_eq!(texts(json!(["a", 1])), Err("tags must be an array of strings".to_owned()));
    }
}
