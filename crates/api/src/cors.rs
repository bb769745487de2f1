//! The headers of responses to requests from pages of other origins.

use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use orrery_http::{Response, response};

/// The headers that a page may send.
const ALLOWED_HEADERS: [&str; 22] = [
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "prefer",
    "range",
    "traceparent",
    "tracestate",
    "x-api-key",
    "x-request-id",
    "x-session-id",
];
/// The start of the headers in which OpenAI's and Anthropic's clients describe themselves, and the
/// maximum number of them.
const CLIENT_HEADERS: &str = "x-stainless-";
const HEADERS_MAX: usize = 20;

/// Returns the headers that a preflight asks for and that OpenAI's and Anthropic's clients add to
/// describe themselves.
fn own_headers_of_clients(asked: &HeaderMap) -> impl Iterator<Item = &str> {
    let asked = asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let names = asked.filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(','));
    let names = names.map(str::trim).filter(|name| HeaderName::from_bytes(name.as_bytes()).is_ok());
    names.filter(|name| name.to_ascii_lowercase().starts_with(CLIENT_HEADERS)).take(HEADERS_MAX)
}

/// Answers the preflight of a request with one of these methods.
pub(crate) fn preflight_response(allow: &str, asked: &HeaderMap) -> Response {
    let mut answer = response::empty(StatusCode::NO_CONTENT);
    let headers = answer.headers_mut();
    if let Ok(methods) = HeaderValue::from_str(allow) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    let names: Vec<&str> =
        ALLOWED_HEADERS.into_iter().chain(own_headers_of_clients(asked)).collect();
    if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    let varies = HeaderValue::from_static("access-control-request-headers");
    headers.append(header::VARY, varies);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    answer
}

/// Lets pages of this origin read a response.
pub(crate) fn allow_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "content-disposition, content-range, deprecation, etag, link, preference-applied, \
             request-id, retry-after, warning, x-decision-method, x-error-hint, x-execution-id, \
             x-orrery-cache, x-request-id, x-session-id, x-task-id, x-total-count",
        ),
    );
}
