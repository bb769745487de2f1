//! Explains why a request is not authenticated. Every 401 has the same body, and a header contains
//! the reason.

use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::access::presented_key;
use orrery_http::Request;
use orrery_records::accounts::{self, KeyFault};
use orrery_records::signed_urls;

/// The header with a sentence that explains why the service rejected a key.
pub(crate) const HINT: HeaderName = HeaderName::from_static("x-error-hint");

/// Headers in which clients of other services send keys. This service ignores these headers.
const OTHER_HEADERS: [&str; 9] = [
    "api-key",
    "apikey",
    "x-apikey",
    "x-key",
    "x-token",
    "x-auth-token",
    "x-access-token",
    "x-api-token",
    "x-goog-api-key",
];
/// Query parameters in which clients of other services send keys.
const PARAMETERS: [&str; 5] = ["api_key", "apikey", "key", "access_token", "x-api-key"];

/// The kind of key that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// An organization's API key, in either header; some routes also accept a link.
    ApiKey,
    /// An admin key, in `Authorization: Bearer`.
    AdminKey,
}

/// Adds the reason to the 401 for a request. `in_body` is the key in the request's body, if any.
pub(crate) async fn explained(
    error: crate::Error,
    accounts: &accounts::Accounts,
    request: &Request,
    taken: Taken,
    in_body: Option<&str>,
) -> crate::Error {
    let presented = match taken {
        Taken::ApiKey => in_body.or(presented_key(&request.headers)),
        Taken::AdminKey => super::access::bearer(&request.headers),
    };
    let hint = match presented {
        None => without_key(request, taken),
        Some(key) => {
            let prefix = match taken {
                Taken::ApiKey => accounts::KEY_PREFIX,
                Taken::AdminKey => accounts::ADMIN_KEY_PREFIX,
            };
            match accounts.fault_of(prefix, key).await {
                Ok(fault) => with_key(fault, taken, prefix),
                Err(_unreadable) => return error,
            }
        }
    };
    match HeaderValue::try_from(hint) {
        Ok(hint) => error.with_header(HINT, hint),
        Err(_never) => error,
    }
}

/// Returns the reason for a request in which no key was found.
fn without_key(request: &Request, taken: Taken) -> String {
    let forms = match taken {
        Taken::ApiKey => "X-API-Key: KEY or Authorization: Bearer KEY",
        Taken::AdminKey => "Authorization: Bearer KEY, with an admin key",
    };
    let headers = &request.headers;
    if taken != Taken::AdminKey && headers.contains_key("x-api-key") {
        return "the value of X-API-Key is not ASCII text".to_owned();
    }
    if headers.contains_key(AUTHORIZATION) {
        return "the value of Authorization must be Bearer, a space and the key".to_owned();
    }
    if taken == Taken::AdminKey && headers.contains_key("x-api-key") {
        return format!("an admin key is not read from X-API-Key: send {forms}");
    }
    if let Some(name) = OTHER_HEADERS.into_iter().find(|name| headers.contains_key(*name)) {
        return format!("the header {name} is not read: send {forms}");
    }
    let query = &request.query;
    if query.get(signed_urls::PARAMETER).is_some() {
        return "the link has expired or is for another resource: request a new one".to_owned();
    }
    if let Some(name) = PARAMETERS.into_iter().find(|name| query.get(name).is_some()) {
        return format!(
            "the parameter {name} is not read, since addresses are logged: send {forms}"
        );
    }
    format!("the request has no key: send {forms}")
}

/// Returns the reason for a rejected key.
fn with_key(fault: KeyFault, taken: Taken, prefix: &str) -> String {
    match fault {
        KeyFault::Form => format!("this is not a key: keys are {prefix} and 32 letters and digits"),
        KeyFault::OtherKind if taken == Taken::AdminKey => {
            format!("this is the API key of an organization, and admin keys begin with {prefix}")
        }
        KeyFault::OtherKind => {
            "this is an admin key, which is valid only for /admin/v1 on the dashboard's \
                host: create an API key with orrery key create"
                .to_owned()
        }
        KeyFault::Expired => "the key has expired".to_owned(),
        KeyFault::Unknown => {
            "unknown key: it is mistyped, was deleted, or belongs to another installation"
                .to_owned()
        }
    }
}
