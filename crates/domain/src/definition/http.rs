//! The `http` step: the request, the responses that count as failures, and the fallback request
//! (`docs/spec/steps.md`, "HTTP steps").
//!
//! Constant parts are validated here; values from references are validated when the request is
//! sent. The egress guard checks every address to which the host resolves.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};
use url::Url;

use super::fields::Fields;
use crate::json_object::whole_number;
use crate::json_pointer::{JsonPointer, brief};
use crate::json_size::Size;
use crate::reference::{Reference, Scope};
use crate::template::{Template, check_name};
use crate::url_template::{self, UrlTemplate};

/// Default timeout of an HTTP step.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Minimum timeout. Lower values are raised to this minimum (`docs/spec/hosts.md`, "Limits").
pub(super) const TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// Maximum timeout, in seconds.
const TIMEOUT_SECONDS_MAX: f64 = 300.0;
/// Maximum number of headers, and of query parameters, in a request.
const ENTRIES_MAX: usize = 100;
/// Maximum length of a header name, in bytes.
const HEADER_NAME_BYTES_MAX: usize = 128;

/// An HTTP step.
#[derive(Debug, Clone)]
pub struct Http {
    pub request: Request,
    pub fail_when: FailWhen,
    /// The request that is sent when the step has failed. This request never carries the
    /// credentials of the original request.
    pub fallback: Option<Request>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    /// The URL, which resolves to a string: an absolute http(s) URL.
    pub url: Template,
    /// The parsed URL if it contains no references.
    pub fixed_url: Option<Url>,
    /// The headers in the order written. Each value resolves to a string, number or boolean.
    pub headers: Vec<(String, Template)>,
    /// The query parameters in the order written. An array becomes one parameter per item.
    pub query: Vec<(String, Template)>,
    /// The body: JSON, or a string that is sent unchanged.
    pub body: Option<Template>,
    pub auth: Option<Auth>,
}

/// An HTTP method that a step may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
}

/// Credentials of a request, which are never printed, not even in debug output.
#[derive(Clone)]
pub enum Auth {
    Basic { username: Template, password: Template },
    Bearer { token: Template },
    ApiKey { name: String, value: Template, place: KeyPlace },
}

/// Where an API key is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace {
    Header,
    Query,
}

/// The responses that count as failures. A missing response is always a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailWhen {
    ConnectionError,
    Non2xx,
    Statuses(Vec<u16>),
}

impl FailWhen {
    /// Returns whether a response with this status is a failure.
    #[must_use]
    pub fn is_failure(&self, status: u16) -> bool {
        match self {
            Self::ConnectionError => false,
            Self::Non2xx => !(200..300).contains(&status),
            Self::Statuses(statuses) => statuses.contains(&status),
        }
    }
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Options];

    /// Returns the method's name in HTTP.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(…)",
            Self::Bearer { .. } => "Bearer(…)",
            Self::ApiKey { .. } => "ApiKey(…)",
        })
    }
}

// --- parsing ---

impl Http {
    pub(super) fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let request = Request::read(fields);
        let auth = fields.object("auth");
        let auth = auth.map(|auth| read_auth(fields.nested("auth", auth)));
        let fail_when = read_fail_when(fields);
        let fallback = fields.object("fallback");
        let fallback = fallback.map(|fallback| {
            let mut fallback = fields.nested("fallback", fallback);
            let is_enabled = fallback.flag("enabled").unwrap_or(true);
            let request = Request::read(&mut fallback);
            fallback.end("the fallback of an http step");
            (is_enabled, request)
        });
        let fallback = match fallback {
            Some((true, request)) => Some(request?),
            Some((false, _)) | None => None,
        };
        let auth = match auth {
            Some(auth) => Some(auth?),
            None => None,
        };
        Some(Self { request: Request { auth, ..request? }, fail_when, fallback })
    }
}

/// Reads the timeout of an HTTP step. Values below 5 s are raised to 5 s, and the default is 30 s.
/// Older definitions name the field `timeout`.
pub(super) fn read_timeout(fields: &mut Fields<'_>) -> Duration {
    let range = 0.0..=TIMEOUT_SECONDS_MAX;
    let legacy = fields.seconds("timeout", &range);
    fields.seconds("timeout_seconds", &range).or(legacy).unwrap_or(TIMEOUT_DEFAULT).max(TIMEOUT_MIN)
}

impl Request {
    /// Parses a request without its credentials.
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let method = read_method(fields);
        let url = fields.text_template("url").filter(|url| match url_problem(url) {
            // Earlier releases accepted these URLs; the step fails when it runs.
            Some(
                url_template::Error::Target(_)
                | url_template::Error::PortZero
                | url_template::Error::User,
            ) if fields.is_stored() => true,
            Some(problem) => {
                fields.refuse("url", problem.to_string());
                false
            }
            None => true,
        });
        let headers = read_entries(fields, "headers", header_problem);
        refuse_spellings(fields, &headers);
        let query = read_entries(fields, "query_params", query_problem);
        let body = fields.template("body");
        let url = url?;
        let fixed_url = url.constant().and_then(|text| Url::parse(text.as_str()?).ok());
        Some(Self { method, url, fixed_url, headers, query, body, auth: None })
    }

    /// Returns the size of the resolved request without credentials. Counting stops at `most` bytes
    /// per part.
    #[must_use]
    pub fn size(&self, scope: &dyn Scope, most: usize) -> Size {
        let fields = self.headers.iter().chain(&self.query).map(|(_, value)| value);
        let parts = std::iter::once(&self.url).chain(fields).chain(&self.body);
        parts.map(|part| part.size(scope, most)).fold(Size::default(), Size::plus)
    }

    pub(super) fn visit<'r>(
        &'r self,
        place: &JsonPointer<'_>,
        see: &mut dyn FnMut(&JsonPointer<'_>, &'r Reference),
    ) {
        self.url.visit(&place.field("url"), see);
        for (list, name) in [(&self.headers, "headers"), (&self.query, "query_params")] {
            for (key, value) in list {
                value.visit(&place.field(name).field(key), see);
            }
        }
        if let Some(body) = &self.body {
            body.visit(&place.field("body"), see);
        }
        let auth = place.field("auth");
        match &self.auth {
            None => {}
            Some(Auth::Basic { username, password }) => {
                username.visit(&auth.field("username"), see);
                password.visit(&auth.field("password"), see);
            }
            Some(Auth::Bearer { token }) => token.visit(&auth.field("token"), see),
            Some(Auth::ApiKey { value, .. }) => value.visit(&auth.field("value"), see),
        }
    }
}

fn read_method(fields: &mut Fields<'_>) -> Method {
    let Some(written) = fields.text("method") else { return Method::Get };
    let method =
        Method::ALL.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(&written));
    method.unwrap_or_else(|| {
        let known = Method::ALL.map(Method::as_str).join(", ");
        fields.refuse("method", format!("'{}' is not one of {known}", brief(&written)));
        Method::Get
    })
}

/// Describes the problem of a URL's constant parts, phrased as the rest of a sentence.
fn url_problem(url: &Template) -> Option<url_template::Error> {
    if let Some(template) = UrlTemplate::of(url) {
        return template.err();
    }
    let whole = url.constant()?;
    let parsed = whole.as_str().and_then(|text| Url::parse(text).ok());
    parsed.ok_or(url_template::Error::Url).and_then(|url| url_template::check_target(&url)).err()
}

/// Parses an object that maps names to scalars. `problem` returns the problem of an entry, if any.
fn read_entries(
    fields: &mut Fields<'_>,
    list: &'static str,
    problem: fn(&str, &Value) -> Option<&'static str>,
) -> Vec<(String, Template)> {
    let Some(written) = fields.object(list) else { return Vec::new() };
    if written.len() > ENTRIES_MAX {
        fields.refuse(list, format!("has more than {ENTRIES_MAX} entries"));
        return Vec::new();
    }
    let nested = fields.nested(list, Map::new());
    written
        .into_iter()
        .filter_map(|(name, value)| {
            if let Some(problem) = problem(&name, &value) {
                nested.refuse(&name, problem);
                return None;
            }
            if !nested.is_stored()
                && let Err(error) = check_name(&name, &JsonPointer::Root)
            {
                nested.refuse(&name, format!("is wrong: {} {}", error.reference, error.kind));
                return None;
            }
            let template = nested.parse(&name, &value)?;
            Some((name, template))
        })
        .collect()
}

/// Rejects header names that differ only in letter case: only one of them would be sent.
fn refuse_spellings(fields: &Fields<'_>, headers: &[(String, Template)]) {
    if fields.is_stored() {
        return;
    }
    let nested = fields.nested("headers", Map::new());
    for (at, (name, _)) in headers.iter().enumerate() {
        let mut before = headers.iter().take(at).map(|(other, _)| other);
        if let Some(other) = before.find(|other| other.eq_ignore_ascii_case(name)) {
            nested.refuse(name, format!("is the same header as '{other}': keep one of them"));
        }
    }
}

fn query_problem(_name: &str, value: &Value) -> Option<&'static str> {
    let is_scalar =
        |value: &Value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
    let is_good = match value {
        Value::Array(items) => items.iter().all(is_scalar),
        Value::Null | Value::Object(_) => false,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    (!is_good).then_some("must be a string, a number, true, false or an array of these")
}

/// Headers that the service controls and a request must not set.
const OWN_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn header_problem(name: &str, value: &Value) -> Option<&'static str> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX || !name.bytes().all(is_token) {
        return Some("must be the name of a header");
    }
    if OWN_HEADERS.into_iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Some("is set by the service itself");
    }
    match value {
        Value::String(text) => text
            .bytes()
            .any(|byte| byte != b'\t' && byte.is_ascii_control())
            .then_some("contains a control character"),
        Value::Bool(_) | Value::Number(_) => None,
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Some("must be a string, a number, true or false")
        }
    }
}

fn read_auth(mut fields: Fields<'_>) -> Option<Auth> {
    let kind = fields.required_text("type")?;
    let (auth, what) = match kind.as_str() {
        "basic" => {
            let username = fields.text_template("username");
            let password = fields.text_template("password");
            let auth = username.zip(password);
            (auth.map(|(username, password)| Auth::Basic { username, password }), "basic auth")
        }
        "bearer" => {
            let token = fields.text_template("token");
            (token.map(|token| Auth::Bearer { token }), "bearer auth")
        }
        "api_key" => (read_api_key(&mut fields), "api_key auth"),
        other => {
            let other = brief(other);
            fields.refuse("type", format!("'{other}' is not one of basic, bearer, api_key"));
            return None;
        }
    };
    fields.end(what);
    auth
}

fn read_api_key(fields: &mut Fields<'_>) -> Option<Auth> {
    let name = fields.text("name").unwrap_or_else(|| "X-API-Key".to_owned());
    let value = fields.text_template("value");
    let place = match fields.text("in").as_deref() {
        None | Some("header") => KeyPlace::Header,
        Some("query") => KeyPlace::Query,
        Some(other) => {
            let other = brief(other);
            fields.refuse("in", format!("'{other}' is not one of header, query"));
            return None;
        }
    };
    if place == KeyPlace::Header
        && let Some(problem) = header_problem(&name, &Value::Bool(true))
    {
        fields.refuse("name", problem);
    }
    if !fields.is_stored()
        && let Err(error) = check_name(&name, &JsonPointer::Root)
    {
        fields.refuse("name", format!("is wrong: {} {}", error.reference, error.kind));
    }
    Some(Auth::ApiKey { name, value: value?, place })
}

fn read_fail_when(fields: &mut Fields<'_>) -> FailWhen {
    let is_status = |status: &u16| (100..600).contains(status);
    let statuses = |written: &Value| {
        let status = |item: &Value| whole_number(item).filter(is_status);
        written.as_array()?.iter().map(status).collect::<Option<Vec<_>>>()
    };
    let Some(written) = fields.take("fail_when") else { return FailWhen::ConnectionError };
    match (written.as_str(), statuses(&written)) {
        (Some("connection_error"), _) => FailWhen::ConnectionError,
        (Some("non_2xx"), _) => FailWhen::Non2xx,
        (_, Some(mut statuses)) => {
            statuses.sort_unstable();
            statuses.dedup();
            FailWhen::Statuses(statuses)
        }
        (_, None) => {
            let message = "must be connection_error, non_2xx or an array of status codes";
            fields.refuse("fail_when", message);
            FailWhen::ConnectionError
        }
    }
}
