//! The fields of a request's body: read by name, refused in words that name them.

use serde_json::{Map, Value, json};

use super::Services;
use crate::domain::delivery::Webhook;
use crate::domain::signature;
use crate::http::Error;
use crate::http::call::parse_value;
use crate::schema::Violation;

/// A JSON object as a client sent it.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body; an empty one has no fields.
    ///
    /// # Errors
    /// 400 when it is no JSON or no object.
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

    /// An array of texts, each once, trimmed; null counts as absent.
    ///
    /// # Errors
    /// 400 when it is none, or has more than `most`.
    pub fn texts(&self, name: &str, most: usize) -> Result<Option<Vec<String>>, Error> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let text = |item: &Value| item.as_str().map(|text| text.trim().to_owned());
        let texts = value.as_array().and_then(|items| items.iter().map(text).collect());
        let texts: Vec<String> = texts
            .ok_or_else(|| Error::bad_request(format!("{name} must be an array of strings")))?;
        let mut each_once: Vec<String> = Vec::new();
        for text in texts {
            if !each_once.contains(&text) {
                each_once.push(text);
            }
        }
        if each_once.len() > most {
            return Err(Error::bad_request(format!("{name} must have at most {most} items")));
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

/// Input that breaks its schema: all violations, the first of them in the message.
pub fn invalid_input(violations: &[Violation]) -> Error {
    Error::bad_request(first_violation(violations)).with_details(json!(violations))
}

/// The message of input that breaks its schema.
pub fn first_violation(violations: &[Violation]) -> String {
    let first = violations.first().map_or("", |violation| violation.message.as_str());
    format!("invalid input: {first}")
}
