//! Parses JSON request bodies and their webhook fields, and builds the error responses for invalid
//! input.

use hyper::header::{HeaderValue, RETRY_AFTER};
use serde_json::Value;

use super::Services;
use crate::Error;
use orrery_domain::delivery::Webhook;
use orrery_domain::json_object::JsonObject;
use orrery_domain::signature;
use orrery_http::fields::sentence;
use orrery_http::request::{Request, parse_value};
use orrery_schema::{Unavailable, ValidationError, Violation};

/// Parses a body as a JSON object. An empty body counts as an object without fields.
///
/// # Errors
/// 400 when the body is not JSON or not an object.
pub fn parse(bytes: &[u8]) -> Result<JsonObject, Error> {
    match parse_value(bytes)? {
        Value::Object(fields) => Ok(fields.into()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Error::bad_request("the request body must be a JSON object"))
        }
    }
}

/// Rejects a body with an unknown field.
///
/// # Errors
/// 400, with a similar known field as a suggestion.
pub fn refuse_unread(fields: &JsonObject) -> Result<(), Error> {
    match fields.unread().next() {
        Some(unknown) => Err(Error::bad_request(sentence("field", unknown, fields.known()))),
        None => Ok(()),
    }
}

/// Returns the webhook for the completion: `webhook_url`, signed with `webhook_secret`. An empty
/// URL means no webhook.
///
/// # Errors
/// 400 for an invalid URL, for a URL that the egress guard denies, and for an invalid secret.
pub fn webhook(fields: &mut JsonObject, services: &Services) -> Result<Option<Webhook>, Error> {
    webhook_at("webhook_url", fields, services)
}

/// The warning about a webhook secret without a URL.
pub const SECRET_ALONE: &str = "webhook_secret has no effect without webhook_url";

/// Warns about a webhook secret without a URL.
pub fn warn_of_secret_alone(request: &Request, fields: &JsonObject) {
    let is_set =
        |name| fields.peek(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if is_set("webhook_secret") && !is_set("webhook_url") {
        request.warn(SECRET_ALONE);
    }
}

/// Like [`webhook`], but reads the URL from another field.
///
/// # Errors
/// The same as [`webhook`].
pub fn webhook_at(
    name: &'static str,
    fields: &mut JsonObject,
    services: &Services,
) -> Result<Option<Webhook>, Error> {
    let secret = fields.text("webhook_secret")?.filter(|secret| !secret.is_empty());
    let Some(url) = webhook_url_at(name, fields, services)? else { return Ok(None) };
    let secret = secret.map(|secret| sealed_secret(&secret, services)).transpose()?;
    Ok(Some(Webhook { url, secret }))
}

/// Returns only the URL; `None` if it is empty.
///
/// # Errors
/// 400 for an invalid URL, and for a URL that the egress guard denies.
pub fn webhook_url_at(
    name: &'static str,
    fields: &mut JsonObject,
    services: &Services,
) -> Result<Option<String>, Error> {
    let url = fields.text(name)?.filter(|url| !url.is_empty());
    if let Some(url) = &url {
        let checked = services.egress.check_url(url);
        checked.map_err(|error| Error::bad_request(format!("{name} {error}")))?;
    }
    Ok(url)
}

/// Seals a webhook's secret for storage.
///
/// # Errors
/// 400 for an invalid secret.
pub fn sealed_secret(secret: &str, services: &Services) -> Result<String, Error> {
    signature::check_secret(secret).map_err(|error| Error::bad_request(error.to_string()))?;
    services.sealer.seal(secret).map_err(Error::internal)
}

/// Returns the error for input that fails validation.
pub fn validation_error(error: ValidationError) -> Error {
    match error {
        ValidationError::Violations(violations) => invalid_input(&violations),
        ValidationError::Unavailable(unavailable) => validation_unavailable(unavailable),
    }
}

/// Returns the error for a validation that could not run: 503 if a retry may help.
pub fn validation_unavailable(unavailable: Unavailable) -> Error {
    match unavailable {
        Unavailable::Busy => Error::unavailable(unavailable.to_string())
            .with_header(RETRY_AFTER, HeaderValue::from_static("1")),
        Unavailable::Panicked => Error::internal(unavailable),
    }
}

/// Returns the error for input that violates its schema: all violations, with the first one in the
/// message.
fn invalid_input(violations: &[Violation]) -> Error {
    let first = violations.first().map_or("", |violation| violation.message.as_str());
    Error::bad_request(format!("invalid input: {first}")).with_details(violations)
}
