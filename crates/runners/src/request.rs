//! The request of an `http` step: resolved, validated and sent once (`docs/spec/steps.md`, "HTTP
//! steps").
//!
//! The given client checks the addresses that it connects to. This module never retries a request
//! and never follows a redirect. Credentials and named secrets are sent but never shown; named
//! secrets are also masked in the response.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request as HyperRequest};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use url::Url;

use super::http::{class_of, excerpt};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{Auth, FailWhen, KeyPlace, Request};
use orrery_domain::mask::{MASKED, has_secrets, is_secret_name, mask_text, mask_url, mask_value};
use orrery_domain::reference::{self, Field, Reference, Scope};
use orrery_domain::secret::Redaction;
use orrery_domain::template::{RESOLVED_BYTES_MAX, Template};
use orrery_domain::trace;
use orrery_domain::url_template::{self, UrlTemplate};
use orrery_http::answers::{self, Room};
use orrery_http::client::{self, Client, Limits, Overflow, SecretHost};
use orrery_http::request::JSON_VALUES_MAX;
use orrery_http::{basic_auth, content, trace_context};

/// Maximum size of a response body, in bytes.
pub const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// Maximum number of JSON values in a response; parsed, they take about 72 MB.
const ANSWER_VALUES_MAX: usize = JSON_VALUES_MAX;
/// Initial capacity for header fields, enough for most requests, including the fields that the
/// client adds.
const HEADERS_USUAL: usize = 12;
/// Maximum size of response headers that is stored, in bytes of names and values.
const HEADERS_MAX: usize = 16 * 1024;
const AGENT: &str = concat!("orrery/", env!("CARGO_PKG_VERSION"));
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A request that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Reference(#[from] reference::Error),
    #[error("url {0}")]
    Url(url_template::Error),
    #[error("the user name of basic credentials must not contain ':'")]
    User,
    #[error("the header '{0}' must be a string of visible characters")]
    Header(String),
    #[error("the query parameter '{0}' must be a string, number, true, false or an array of these")]
    Query(String),
    #[error("the credentials must be strings of visible characters")]
    Credentials,
    #[error("the request is larger than {RESOLVED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the request cannot be written as JSON: {0}")]
    Json(String),
}

impl From<url_template::Error> for Error {
    fn from(error: url_template::Error) -> Self {
        Self::Url(error)
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error.to_string())
    }
}

/// A request with all references resolved. The Debug output of this type contains no secrets.
#[derive(Clone)]
pub struct Prepared {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    shown: Box<RawValue>,
    /// The secrets in the request, in the forms in which a response may echo them.
    hidden: Redaction,
    /// Whether the host is part of a secret.
    has_secret_host: bool,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({})", self.shown)
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub status: u16,
    /// Header names in lower case; the values of repeated headers are joined with commas.
    pub headers: Map<String, Value>,
    /// The body, parsed if it is JSON, otherwise as text.
    pub body: Value,
    /// Holds memory for the response; keep it until the response is stored.
    pub room: Room,
}

impl Prepared {
    /// Returns the request without credentials.
    #[must_use]
    pub fn shown(&self) -> &RawValue {
        &self.shown
    }

    /// Takes [`Prepared::shown`], which is null afterward.
    #[must_use]
    pub fn take_shown(&mut self) -> Box<RawValue> {
        std::mem::replace(&mut self.shown, RawValue::NULL.to_owned())
    }
}

/// A request without secrets, in its stored form.
#[derive(Serialize)]
struct Shown<'s> {
    method: &'static str,
    url: &'s str,
    headers: &'s Map<String, Value>,
    query_params: &'s Map<String, Value>,
    body: &'s RawValue,
}

/// Resolves and validates a request.
///
/// # Errors
/// [`Error`], as a sentence for the author of the step.
pub fn prepare(request: &Request, scope: &dyn Scope) -> Result<Prepared, Error> {
    let mut filler = Filler {
        left: RESOLVED_BYTES_MAX,
        scope,
        hidden: Redaction::default(),
        has_secret_host: false,
    };
    let (mut url, shown_url) = filler.url(request)?;
    url_template::check_target(&url)?;
    let mut headers = HeaderMap::with_capacity(HEADERS_USUAL.max(request.headers.len()));
    let mut shown_headers = Map::new();
    for (name, value) in &request.headers {
        let filled = filler.fill(value)?;
        let fault = || Error::Header(name.clone());
        let sent = text_of(&filled.sent).ok_or_else(fault)?;
        insert(&mut headers, name, &sent, value.has_secrets())?;
        let shown = text_of(filled.shown()).ok_or_else(fault)?;
        shown_headers.insert(name.clone(), shown_header(name, shown).into());
    }
    let shown_query = add_query(&mut url, request, &mut filler)?;
    let (body, shown_body) = match &request.body {
        None => (Bytes::new(), RawValue::NULL.to_owned()),
        Some(template) => {
            let Filled { sent, masked, json } = filler.fill(template)?;
            let json = json.map_or_else(|| to_raw_value(&sent), Ok)?;
            let shown = match masked {
                None if !sent.is_string() && !has_secrets(&sent) => json.clone(),
                masked => to_raw_value(&shown_body(masked.unwrap_or_else(|| sent.clone())))?,
            };
            let (bytes, kind) = if let Value::String(text) = sent {
                (Bytes::from(text), "text/plain; charset=utf-8")
            } else {
                (Bytes::from(String::from(Box::<str>::from(json))), "application/json")
            };
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
            (bytes, shown)
        }
    };
    if let Some(auth) = &request.auth {
        let name = add_auth(auth, &mut filler, &mut url, &mut headers)?;
        shown_headers.extend(name.map(|name| (name, MASKED.into())));
    }
    let shown = to_raw_value(&Shown {
        method: request.method.as_str(),
        url: &shown_url,
        headers: &shown_headers,
        query_params: &shown_query,
        body: &shown_body,
    })?;
    let method = Method::from_bytes(request.method.as_str().as_bytes()).unwrap_or(Method::GET);
    let Filler { hidden, has_secret_host, .. } = filler;
    Ok(Prepared { method, url, headers, body, shown, hidden, has_secret_host })
}

/// Sends the request once, within a trace span. The attempt's key allows the receiver to recognize
/// a repeated attempt.
///
/// # Errors
/// [`Failure`] if there was no response or `fail_when` treats the response as a failure.
pub async fn send(
    client: &Client,
    mut prepared: Prepared,
    fail_when: &FailWhen,
    timeout: Duration,
    attempt_key: &str,
    call: &trace::Call,
) -> Result<Response, Failure> {
    let hidden = std::mem::take(&mut prepared.hidden);
    match exchange(client, prepared, &hidden, fail_when, timeout, attempt_key, call).await {
        Ok(mut answer) => {
            if !hidden.is_empty() {
                hidden.fields(&mut answer.headers);
                hidden.value(&mut answer.body);
            }
            Ok(answer)
        }
        Err(failure) => Err(Failure { message: hidden.text(&failure.message), ..failure }),
    }
}

async fn exchange(
    client: &Client,
    prepared: Prepared,
    hidden: &Redaction,
    fail_when: &FailWhen,
    timeout: Duration,
    attempt_key: &str,
    call: &trace::Call,
) -> Result<Response, Failure> {
    let Prepared { method, url, headers, body, has_secret_host, .. } = prepared;
    let host = if has_secret_host { MASKED } else { url.host_str().unwrap_or_default() };
    let unmade = |reason: String| {
        let sentence = format!("the request to '{host}' cannot be made: {reason}");
        Failure::new(ErrorClass::InvalidModelConfig, sentence)
    };
    let mut request = HyperRequest::builder()
        .method(method)
        .uri(url.as_str())
        .body(body)
        .map_err(|error| unmade(error.to_string()))?;
    *request.headers_mut() = headers;
    if has_secret_host {
        request.extensions_mut().insert(SecretHost);
    }
    let key = HeaderValue::from_str(attempt_key).map_err(|error| unmade(error.to_string()))?;
    request.headers_mut().entry(IDEMPOTENCY_KEY).or_insert(key);
    trace_context::pass_on(request.headers_mut(), call);
    request.headers_mut().entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
    let limits = Limits { total: timeout, answer_bytes: ANSWER_MAX, overflow: Overflow::Fail };
    let answer = client.send_when_able(request, &limits).await.map_err(|error| {
        Failure::new(class_of(&error), format!("the request to '{host}' failed: {error}"))
    })?;
    let status = answer.status.as_u16();
    if fail_when.is_failure(status) {
        let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
        // Redact before truncating, because half a secret is still a secret.
        let body = match hidden.is_empty() {
            true => answer.body,
            false => hidden.text(&String::from_utf8_lossy(&answer.body)).into(),
        };
        let sentence = format!("'{host}' answered {status}: {}", excerpt(&body));
        return Err(Failure::new(class, sentence));
    }
    let unread = |error: content::Error| {
        let sentence = format!("the answer from '{host}' ({status}) cannot be read: {error}");
        Failure::new(ErrorClass::ProviderError, hidden.text(&sentence))
    };
    let room = {
        let text = content::text(&answer.headers, &answer.body).map_err(unread)?;
        answers::room(content::without_mark(text.as_bytes()), ANSWER_VALUES_MAX).await
    };
    let room = room.map_err(|error| {
        Failure::new(
            ErrorClass::ProviderError,
            format!("the response from '{host}' is too large: {error}"),
        )
    })?;
    let reading = answers::parse_aside(answer.body.len(), move || read(answer, room)).await;
    let reading = reading.ok_or_else(|| {
        Failure::new(ErrorClass::InternalError, format!("the answer from '{host}' cannot be read"))
    })?;
    reading.map_err(unread)
}

fn read(answer: client::Response, room: Room) -> Result<Response, content::Error> {
    let mut headers: Map<String, Value> = Map::new();
    let mut kept = 0_usize;
    for (name, value) in &answer.headers {
        let value = content::header_text(value);
        kept = kept.saturating_add(name.as_str().len()).saturating_add(value.len());
        if kept > HEADERS_MAX {
            break;
        }
        match headers.get_mut(name.as_str()) {
            Some(Value::String(held)) => {
                held.push_str(", ");
                held.push_str(&value);
            }
            _ => {
                headers.insert(name.as_str().to_owned(), value.into());
            }
        }
    }
    let text = content::text(&answer.headers, &answer.body)?;
    let body = match content::parse(text.as_bytes()) {
        Ok(body) => body,
        Err(error) if content::claims_json(&answer.headers) && !text.trim().is_empty() => {
            return Err(error);
        }
        Err(_not_json) => Value::String(text.into_owned()),
    };
    Ok(Response { status: answer.status.as_u16(), headers, body, room })
}

/// Resolves the parts of a request.
struct Filler<'s> {
    /// Number of bytes left for the parts of the request.
    left: usize,
    scope: &'s dyn Scope,
    /// The secrets filled in so far.
    hidden: Redaction,
    has_secret_host: bool,
}

/// A resolved part of a request.
struct Filled {
    sent: Value,
    /// The part with secrets masked, if it contains any.
    masked: Option<Value>,
    /// The JSON as sent, for an array or an object.
    json: Option<Box<RawValue>>,
}

impl Filled {
    /// Returns the value without secrets.
    const fn shown(&self) -> &Value {
        match &self.masked {
            Some(masked) => masked,
            None => &self.sent,
        }
    }
}

impl Filler<'_> {
    /// Returns the URL as sent, with user name and password, and as shown.
    fn url(&mut self, request: &Request) -> Result<(Url, String), Error> {
        if let Some(url) = &request.fixed_url {
            self.left = self.left.checked_sub(url.as_str().len()).ok_or(Error::TooLarge)?;
            return Ok((url.clone(), mask_url(&without_userinfo(url))));
        }
        if let Some(template) = UrlTemplate::of(&request.url) {
            return self.url_from_template(&template?, &request.url);
        }
        let written = self.fill(&request.url)?;
        let url = written.sent.as_str().and_then(|text| Url::parse(text).ok());
        let url = url.ok_or(url_template::Error::Url)?;
        let shown = match written.shown().as_str() {
            // Named secrets are masked by name, and other credentials by their position in the URL.
            Some(text) if request.url.has_secrets() => {
                self.has_secret_host = true;
                self.hidden.add(url.host_str().unwrap_or_default());
                mask_url(text)
            }
            _ => mask_url(&without_userinfo(&url)),
        };
        Ok((url, shown))
    }

    fn url_from_template(
        &mut self,
        template: &UrlTemplate<'_>,
        written: &Template,
    ) -> Result<(Url, String), Error> {
        let url = match template.resolve(self.scope, self.left) {
            Err(url_template::Error::Reference(error)) => return Err(error.into()),
            url => url?,
        };
        self.left = self.left.checked_sub(url.as_str().len()).ok_or(Error::TooLarge)?;
        if !self.hide_secrets(written) {
            return Ok((url.clone(), mask_url(&without_userinfo(&url))));
        }
        Ok((url, mask_url(&template.masked(self.scope)?)))
    }

    fn fill(&mut self, template: &Template) -> Result<Filled, Error> {
        let sent = template.resolve(self.scope, self.left)?;
        let (bytes, json) = match &sent {
            Value::String(text) => (text.len(), None),
            Value::Null | Value::Bool(_) | Value::Number(_) => (8, None),
            Value::Array(_) | Value::Object(_) => {
                let json = to_raw_value(&sent)?;
                (json.get().len(), Some(json))
            }
        };
        self.left = self.left.checked_sub(bytes).ok_or(Error::TooLarge)?;
        let masked = match self.hide_secrets(template) {
            true => Some(template.resolve(&Masking(self.scope), RESOLVED_BYTES_MAX)?),
            false => None,
        };
        Ok(Filled { sent, masked, json })
    }

    /// Records the secrets that a template refers to, and returns whether there are any.
    fn hide_secrets(&mut self, template: &Template) -> bool {
        let mut has_any = false;
        for name in template.references().into_iter().filter_map(Reference::secret) {
            has_any = true;
            if let Some(value) = self.scope.secret(name) {
                self.hidden.add_secret(value);
            }
        }
        has_any
    }

    fn text(&mut self, template: &Template) -> Result<String, Error> {
        text_of(&self.fill(template)?.sent).ok_or(Error::Credentials)
    }
}

/// A scope with masks instead of secrets.
struct Masking<'s>(&'s dyn Scope);

impl Scope for Masking<'_> {
    fn inputs(&self) -> &Value {
        self.0.inputs()
    }
    fn execution_id(&self) -> String {
        self.0.execution_id()
    }
    fn item(&self, name: &str) -> Option<&Value> {
        self.0.item(name)
    }
    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>> {
        self.0.step(id, field)
    }
    fn secret(&self, name: &str) -> Option<&str> {
        self.0.secret(name).map(|_value| MASKED)
    }
}

/// Returns a string, number or boolean as text.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn insert(
    headers: &mut HeaderMap,
    name: &str,
    value: &str,
    is_sensitive: bool,
) -> Result<(), Error> {
    let fault = || Error::Header(name.to_owned());
    let parsed = HeaderName::try_from(name).map_err(|_no_name| fault())?;
    let mut value = HeaderValue::from_str(value).map_err(|_no_value| fault())?;
    value.set_sensitive(is_sensitive);
    headers.insert(parsed, value);
    Ok(())
}

fn shown_header(name: &str, value: String) -> String {
    if is_secret_name(name) { MASKED.to_owned() } else { value }
}

/// Masks the values of fields with secret-like names in a body.
fn shown_body(mut body: Value) -> Value {
    if let Value::String(text) = &body {
        return mask_text(text).into();
    }
    mask_value(&mut body);
    body
}

/// Appends parameters to the URL, and returns them as shown.
fn add_query(
    url: &mut Url,
    request: &Request,
    filler: &mut Filler<'_>,
) -> Result<Map<String, Value>, Error> {
    let mut shown = Map::new();
    let mut pairs = Vec::new();
    for (name, value) in &request.query {
        let Filled { sent, masked, .. } = filler.fill(value)?;
        let fault = || Error::Query(name.clone());
        if let Value::Array(items) = &sent {
            for item in items {
                pairs.push((name.as_str(), text_of(item).ok_or_else(fault)?));
            }
        } else {
            pairs.push((name.as_str(), text_of(&sent).ok_or_else(fault)?));
        }
        let seen = masked.unwrap_or(sent);
        shown.insert(name.clone(), if is_secret_name(name) { MASKED.into() } else { seen });
    }
    if !pairs.is_empty() {
        url.query_pairs_mut().extend_pairs(pairs);
    }
    Ok(shown)
}

fn without_userinfo(url: &Url) -> Cow<'_, str> {
    if url.username().is_empty() && url.password().is_none() {
        return url.as_str().into();
    }
    let mut shown = url.clone();
    // Both calls fail only for URLs that cannot have credentials.
    let _had = (shown.set_username("").is_ok(), shown.set_password(None).is_ok());
    String::from(shown).into()
}

fn secret(text: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::from_str(text).map_err(|_no_value| Error::Credentials)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Adds the credentials, and returns the name of the header that carries them.
fn add_auth(
    auth: &Auth,
    filler: &mut Filler<'_>,
    url: &mut Url,
    headers: &mut HeaderMap,
) -> Result<Option<String>, Error> {
    let (name, value) = match auth {
        Auth::Basic { username, password } => {
            let user = filler.text(username)?;
            let word = filler.text(password)?;
            if username.has_secrets() || password.has_secrets() {
                filler.hidden.add(&STANDARD.encode(format!("{user}:{word}")));
            }
            let header = basic_auth::header(user.as_bytes(), word.as_bytes());
            (AUTHORIZATION, header.ok_or(Error::User)?)
        }
        Auth::Bearer { token } => {
            (AUTHORIZATION, secret(&format!("Bearer {}", filler.text(token)?))?)
        }
        Auth::ApiKey { name, value, place: KeyPlace::Query } => {
            let value = filler.text(value)?;
            url.query_pairs_mut().append_pair(name, &value);
            return Ok(None);
        }
        Auth::ApiKey { name, value, place: KeyPlace::Header } => {
            let parsed = HeaderName::try_from(name.as_str());
            let parsed = parsed.map_err(|_no_name| Error::Header(name.clone()))?;
            (parsed, secret(&filler.text(value)?)?)
        }
    };
    headers.insert(name.clone(), value);
    Ok(Some(name.as_str().to_owned()))
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
