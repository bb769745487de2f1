//! Converts fields that several request bodies share, and builds the error responses for invalid
//! input.

use std::collections::HashSet;

use hyper::header::{HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Services;
use crate::Error;
use orrery_domain::delivery::Webhook;
use orrery_domain::signature;
use orrery_http::Request;
use orrery_http::request::parse_value;
use orrery_schema::{Unavailable, ValidationError, Violation};
use orrery_wire::request::{Mismatch, read};

/// Reads a body that the dashboard sends from a form. The details of an error name the field, so
/// that the page can show the message next to the field.
///
/// # Errors
/// 400 when the body does not match its schema.
pub(crate) async fn form<T: DeserializeOwned + JsonSchema + 'static>(
    request: &mut Request,
) -> Result<T, Error> {
    let body = parse_value(&request.body().await?)?;
    read(body).map_err(|mismatch| {
        let Mismatch { path, message, .. } = &mismatch;
        let details = json!([{"path": format!("/{path}"), "message": message}]);
        Error::from(mismatch).with_details(details)
    })
}

/// Returns the webhook that reports the completion: the URL, and the secret that signs deliveries.
/// An empty URL means no webhook.
///
/// # Errors
/// 400 for an invalid URL, for a URL that the egress guard denies, and for an invalid secret.
pub(crate) fn webhook(
    url: Option<String>,
    secret: Option<String>,
    send_plain_secret: Option<bool>,
    services: &Services,
) -> Result<Option<Webhook>, Error> {
    let Some(url) = webhook_url("webhook_url", url, services)? else { return Ok(None) };
    let secret = secret.filter(|secret| !secret.is_empty());
    let secret = secret.map(|secret| sealed_secret(&secret, services)).transpose()?;
    Ok(Some(Webhook { secret, send_plain_secret, ..Webhook::unsigned(url) }))
}

/// The warning about a webhook secret without a URL.
pub(crate) const SECRET_ALONE: &str = "webhook_secret has no effect without webhook_url";

/// Warns about a webhook secret without a URL.
pub(crate) fn warn_of_secret_alone(
    request: &Request,
    url: Option<&String>,
    secret: Option<&String>,
) {
    let is_set = |text: Option<&String>| text.is_some_and(|text| !text.is_empty());
    if is_set(secret) && !is_set(url) {
        request.warn(SECRET_ALONE);
    }
}

/// Returns the URL in the field `name`; `None` if the URL is empty.
///
/// # Errors
/// 400 for an invalid URL, and for a URL that the egress guard denies.
pub(crate) fn webhook_url(
    name: &str,
    url: Option<String>,
    services: &Services,
) -> Result<Option<String>, Error> {
    let url = url.filter(|url| !url.is_empty());
    if let Some(url) = &url {
        let checked = services.egress.check_url(url);
        checked.map_err(|error| Error::bad_request(format!("{name} {error}")))?;
    }
    Ok(url)
}

/// Returns the items without surrounding whitespace and without duplicates, in order.
pub(crate) fn distinct(items: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    let trimmed = items.into_iter().map(|item| item.trim().to_owned());
    trimmed.filter(|item| seen.insert(item.clone())).collect()
}

/// Seals a webhook's secret for storage.
///
/// # Errors
/// 400 for an invalid secret.
pub(crate) fn sealed_secret(secret: &str, services: &Services) -> Result<String, Error> {
    signature::check_secret(secret).map_err(|error| Error::bad_request(error.to_string()))?;
    services.sealer.seal(secret).map_err(Error::internal)
}

/// Returns the error for input that fails validation.
pub(crate) fn validation_error(error: ValidationError) -> Error {
    match error {
        ValidationError::Violations(violations) => invalid_input(&violations),
        ValidationError::Unavailable(unavailable) => validation_unavailable(unavailable),
    }
}

/// Returns the error for a validation that could not run. The status is 503 if a retry may succeed.
pub(crate) fn validation_unavailable(unavailable: Unavailable) -> Error {
    match unavailable {
        Unavailable::Busy => Error::unavailable(unavailable.to_string())
            .with_header(RETRY_AFTER, HeaderValue::from_static("1")),
        Unavailable::Panicked => Error::internal(unavailable),
    }
}

/// Returns the error for input that violates its schema. The message contains the first violation,
/// and the details contain all violations.
fn invalid_input(violations: &[Violation]) -> Error {
    let first = violations.first().map_or("", |violation| violation.message.as_str());
    Error::bad_request(format!("invalid input: {first}")).with_details(violations)
}
