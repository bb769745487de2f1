//! Errors sent to clients: the public message and, kept separate, the cause for the log. Only this
//! module converts an error to a status and a body.

use std::fmt;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use serde_json::Value;

use super::body::BoxError;
use super::response::{self, Response};
use orrery_wire as wire;
use orrery_wire::messages::answer as anthropic;
use orrery_wire::request::Mismatch;

/// An error returned to a client: a refused request or a failed response. The body is specified in
/// `docs/spec/hosts.md`, "Error body".
#[derive(Debug)]
pub struct Error {
    pub status: StatusCode,
    /// The public message, which must not contain internals.
    pub message: String,
    /// Boxed to keep the error small, because many functions return it in a `Result`.
    more: Box<More>,
}

#[derive(Debug, Default)]
struct More {
    details: Option<Value>,
    explanation: Option<String>,
    bare: bool,
    is_busy: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
    source: Option<BoxError>,
    open_ai: OpenAi,
}

/// Fields of OpenAI's error body in addition to the message.
#[derive(Debug, Default)]
pub struct OpenAi {
    /// Overrides the type that the status implies.
    pub kind: Option<String>,
    /// The invalid field of the request.
    pub param: Option<String>,
    pub code: Option<String>,
}

impl Error {
    /// Creates an error of any status with a message for the client.
    #[must_use]
    pub fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), more: Box::default() }
    }

    /// Creates a 400 error.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::status(StatusCode::BAD_REQUEST, message)
    }

    /// Creates a 401 error with the exact body of `docs/spec/hosts.md`, "Authentication".
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::status(StatusCode::UNAUTHORIZED, "Invalid or missing API key")
            .bare()
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// Creates a 404 error.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::status(StatusCode::NOT_FOUND, message)
    }

    /// Creates a 409 error.
    #[must_use]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::status(StatusCode::CONFLICT, message)
    }

    /// Creates a 413 error.
    #[must_use]
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("the request body is larger than {limit_bytes} bytes");
        Self::status(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Creates a 422 error.
    #[must_use]
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::status(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// Creates a 429 error with `Retry-After`, in whole seconds, at least one.
    #[must_use]
    pub fn too_many(message: impl Into<String>, retry_after: Duration) -> Self {
        let seconds = retry_after.as_secs_f64().ceil().max(1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1; a float past the range becomes the range's end"
        )]
        let seconds = HeaderValue::from(seconds as u64);
        Self::status(StatusCode::TOO_MANY_REQUESTS, message)
            .with_header(header::RETRY_AFTER, seconds)
    }

    /// Creates a 503 error with `Retry-After`, for requests refused because of the current load.
    /// Clients cause this error, which can be frequent, so the error is logged at the level of a
    /// client error.
    #[must_use]
    pub fn busy(message: impl Into<String>) -> Self {
        let mut error = Self::status(StatusCode::SERVICE_UNAVAILABLE, message)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"));
        error.more.is_busy = true;
        error
    }

    /// Returns whether the error was created by [`Error::busy`].
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.more.is_busy
    }

    /// Creates a 500 error: the client receives `internal error`, and the log contains `source`.
    #[must_use]
    pub fn internal(source: impl Into<BoxError>) -> Self {
        Self::status(StatusCode::INTERNAL_SERVER_ERROR, "internal error").with_source(source)
    }

    /// Creates a 503 error.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::status(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Leaves `status` out of the body.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.more.bare = true;
        self
    }

    /// Adds `details` to the body.
    #[must_use]
    pub fn with_details(mut self, details: impl serde::Serialize) -> Self {
        // A value that cannot be serialized to JSON is omitted: the message contains the
        // essentials.
        self.more.details = serde_json::to_value(details).ok();
        self
    }

    /// Sets the message for clients of protocols whose errors have no details.
    #[must_use]
    pub fn with_explanation(mut self, explanation: impl Into<String>) -> Self {
        self.more.explanation = Some(explanation.into());
        self
    }

    /// Adds a suggestion: as the details if the error has no details, or to the list of violations
    /// if the details are such a list. Other details stay unchanged.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        match &mut self.more.details {
            None => return self.with_details(wire::error::Hint { hint: hint.into() }),
            Some(Value::Array(violations)) => {
                violations.push(serde_json::json!({"path": "", "message": hint.into()}));
            }
            Some(_) => {}
        }
        self
    }

    /// Adds the fields for OpenAI's clients.
    #[must_use]
    pub fn with_open_ai(mut self, open_ai: OpenAi) -> Self {
        self.more.open_ai = open_ai;
        self
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.more.headers.push((name, value));
        self
    }

    /// Adds the cause, which only the log shows.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.more.source = Some(source.into());
        self
    }

    /// Returns the chain of causes for the log; empty if there is no cause.
    #[must_use]
    pub fn cause(&self) -> String {
        let mut sentence = String::new();
        let mut next = self.more.source.as_deref().map(|source| source as &dyn std::error::Error);
        while let Some(cause) = next {
            if !sentence.is_empty() {
                sentence.push_str(": ");
            }
            sentence.push_str(&cause.to_string());
            next = cause.source();
        }
        sentence
    }

    /// Converts the error to the response for the client.
    #[must_use]
    pub fn into_response(self) -> Response {
        let body = wire::error::Error {
            error: &self.message,
            status: (!self.more.bare).then_some(self.status.as_u16()),
            details: self.more.details.as_ref(),
        };
        let response = response::json(self.status, &body);
        with_headers(response, self.more.headers)
    }

    /// Returns the message followed by an explanation from the details, for clients of protocols
    /// whose errors have no details.
    #[must_use]
    pub fn explanation(&self) -> String {
        if let Some(explanation) = &self.more.explanation {
            return explanation.clone();
        }
        let hint = self.more.details.as_ref().and_then(|details| details.get("hint")?.as_str());
        match hint {
            Some(hint) => format!("{}: {hint}", self.message),
            None => self.message.clone(),
        }
    }

    /// Converts the error to the response for an OpenAI client. The response to a missing key is
    /// that of all other routes.
    #[must_use]
    pub fn into_open_ai_response(self) -> Response {
        if self.status == StatusCode::UNAUTHORIZED {
            return self.into_response();
        }
        self.into_open_ai_envelope()
    }

    /// Converts the error to the response for an OpenAI client, also if the key is missing.
    #[must_use]
    pub fn into_open_ai_envelope(self) -> Response {
        let status = self.status.as_u16();
        let open_ai = &self.more.open_ai;
        let message = self.explanation();
        let body = wire::openai::Error {
            error: wire::openai::Body {
                message: &message,
                kind: open_ai.kind.as_deref().unwrap_or_else(|| wire::openai::kind_of(status)),
                param: open_ai.param.as_deref(),
                code: open_ai.code.as_deref().or(wire::openai::code_of(status)),
            },
        };
        let response = response::json(self.status, &body);
        with_headers(response, self.more.headers)
    }

    /// Converts the error to the response for a client of Replicate's API: problem details (RFC
    /// 9457). Violations of a schema become `invalid_fields`.
    #[must_use]
    pub fn into_problem(self) -> Response {
        let violations = self.more.details.as_ref().and_then(Value::as_array);
        let field = |violation: &'_ Value| {
            let field = violation.get("path")?.as_str()?.to_owned();
            Some((field, violation.get("message")?.as_str()?.to_owned()))
        };
        let fields: Vec<_> = violations.into_iter().flatten().filter_map(field).collect();
        let body = wire::replicate::Problem {
            title: self.status.canonical_reason().unwrap_or_default(),
            detail: &self.explanation(),
            status: self.status.as_u16(),
            invalid_fields: fields
                .iter()
                .map(|(field, description)| wire::replicate::InvalidField { field, description })
                .collect(),
        };
        let mut response = response::json(self.status, &body);
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        with_headers(response, self.more.headers)
    }

    /// Converts the error to the response for a client of Anthropic's API.
    #[must_use]
    pub fn into_anthropic_response(self, request_id: &str) -> Response {
        let error = anthropic::ErrorBody {
            kind: anthropic::kind_of(self.status.as_u16()),
            message: self.explanation(),
        };
        let response =
            response::json(self.status, &anthropic::Error { kind: "error", error, request_id });
        with_headers(response, self.more.headers)
    }
}

fn with_headers(mut response: Response, headers: Vec<(HeaderName, HeaderValue)>) -> Response {
    for (name, value) in headers {
        response.headers_mut().append(name, value);
    }
    response
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status.as_u16(), self.message)
    }
}

impl std::error::Error for Error {}

impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Self {
        Self::bad_request(mismatch.to_string())
    }
}

/// Converts the error for a number in a request that does not fit into `usize`, which can happen
/// only on 32-bit machines.
impl From<std::num::TryFromIntError> for Error {
    fn from(error: std::num::TryFromIntError) -> Self {
        Self::bad_request("a number is out of range").with_source(error)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn text(error: Error) -> String {
        let bytes = error.into_response().into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn http_error_body_has_specified_shape_and_hides_cause() {
        let secret = Error::internal("the password is x");
        assert_eq!(secret.cause(), "the password is x");
        for (error, body) in [
            (Error::unauthorized(), r#"{"error":"Invalid or missing API key"}"#),
            (Error::not_found("not found"), r#"{"error":"not found","status":404}"#),
            (secret, r#"{"error":"internal error","status":500}"#),
            (
                Error::bad_request("no").with_details(serde_json::json!([1])),
                r#"{"error":"no","status":400,"details":[1]}"#,
            ),
        ] {
            assert_eq!(text(error).await, body);
        }
    }

    #[tokio::test]
    async fn http_error_body_for_openai_clients_names_type_param_and_code() {
        let text = async |error: Error| {
            let body = error.into_open_ai_response().into_body().collect().await.unwrap();
            String::from_utf8(body.to_bytes().to_vec()).unwrap()
        };
        let param = OpenAi { param: Some("n".to_owned()), ..OpenAi::default() };
        for (error, body) in [
            (Error::unauthorized(), r#"{"error":"Invalid or missing API key"}"#),
            (
                Error::bad_request("n is wrong").with_open_ai(param),
                r#"{"error":{"message":"n is wrong","type":"invalid_request_error","param":"n","code":"invalid_value"}}"#,
            ),
            (
                Error::too_large(8),
                r#"{"error":{"message":"the request body is larger than 8 bytes","type":"invalid_request_error","param":null,"code":null}}"#,
            ),
            (
                Error::busy("full"),
                r#"{"error":{"message":"full","type":"upstream_error","param":null,"code":null}}"#,
            ),
        ] {
            assert_eq!(text(error).await, body);
        }
        let body = Error::unauthorized().into_open_ai_envelope().into_body().collect().await;
        let expected = r#"{"error":{"message":"Invalid or missing API key","type":"authentication_error","param":null,"code":"invalid_api_key"}}"#;
        assert_eq!(body.unwrap().to_bytes(), expected);
    }

    #[tokio::test]
    async fn http_error_body_for_anthropic_clients_has_kind_and_request_id() {
        let text = async |error: Error| {
            let body = error.into_anthropic_response("r-1").into_body().collect().await.unwrap();
            String::from_utf8(body.to_bytes().to_vec()).unwrap()
        };
        for (error, body) in [
            (
                Error::unauthorized(),
                r#"{"type":"error","error":{"type":"authentication_error","message":"Invalid or missing API key"},"request_id":"r-1"}"#,
            ),
            (
                Error::bad_request("no").with_hint("did you mean yes?"),
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"no: did you mean yes?"},"request_id":"r-1"}"#,
            ),
            (
                Error::busy("full"),
                r#"{"type":"error","error":{"type":"overloaded_error","message":"full"},"request_id":"r-1"}"#,
            ),
        ] {
            assert_eq!(text(error).await, body);
        }
    }

    #[tokio::test]
    async fn http_error_body_for_replicate_clients_is_a_problem() {
        let violation = serde_json::json!([{"path": "/a", "message": "a is required"}]);
        for (error, body) in [
            (
                Error::unauthorized(),
                r#"{"title":"Unauthorized","detail":"Invalid or missing API key","status":401}"#,
            ),
            (
                Error::unprocessable("invalid input: a is required").with_details(violation),
                r#"{"title":"Unprocessable Entity","detail":"invalid input: a is required","status":422,"invalid_fields":[{"field":"/a","description":"a is required"}]}"#,
            ),
        ] {
            let response = error.into_problem();
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body);
        }
    }

    #[test]
    fn http_error_retry_after_is_at_least_one_whole_second() {
        for (wait, seconds) in [(0, "1"), (1000, "1"), (1001, "2")] {
            let response = Error::too_many("slow", Duration::from_millis(wait)).into_response();
            assert_eq!(response.headers()["retry-after"], seconds);
        }
        let response = Error::unauthorized().into_response();
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
}
