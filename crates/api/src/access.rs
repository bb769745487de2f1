//! Authentication by key, link, session or admin key, and rate limits.

use std::fmt;
use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use subtle::ConstantTimeEq as _;
use url::{Host, Url};

use super::browser::{SEC_FETCH_SITE, Site};
use super::refused_key::{self, Taken};
use super::{Access, Rate, Route, Services, limits};
use orrery_domain::account::{DEFAULT_ORGANIZATION, dashboard_key};
use orrery_domain::file::File;
use orrery_domain::ids::{FileId, Id as _, KeyId, OrganizationId};
use orrery_domain::member::{Member, MemberRole};
use orrery_http::Request;
use orrery_http::request::Peer;
use orrery_records::accounts::{self, Caller, Prefix};
use orrery_records::members::{By, Visit};
use orrery_records::signed_urls::{self, Link};

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// A caller without credentials, on a public route.
    Anonymous,
    /// The holder of an API key.
    Caller(Caller),
    /// The holder of a signed link.
    Link(Link),
    /// A member with a dashboard session.
    Member(Box<Visit>),
    /// The holder of an admin key, on a route without an organization.
    Admin(KeyId),
    /// The operator, acting for an organization over the control socket or with an admin key.
    Operator(OrganizationId, Option<KeyId>),
}

impl Principal {
    /// Returns the organization for which the request acts, and its API key. Members have no key;
    /// resources that they create are recorded under the dashboard's own key ID.
    #[must_use]
    pub fn caller(&self) -> Option<Caller> {
        match self {
            Self::Caller(caller) => Some(*caller),
            Self::Member(visit) => {
                let organization = visit.member.organization;
                let key = dashboard_key(organization);
                Some(Caller { organization, key, prefix: Prefix::DASHBOARD })
            }
            Self::Operator(organization, _) => {
                let key = dashboard_key(*organization);
                Some(Caller { organization: *organization, key, prefix: Prefix::DASHBOARD })
            }
            Self::Anonymous | Self::Link(_) | Self::Admin(_) => None,
        }
    }

    /// Returns the ID to which rate limits apply: the ID of the API key, of the key with which a
    /// link was created, or of the member.
    fn key(&self) -> Option<KeyId> {
        match self {
            Self::Caller(caller) => Some(caller.key),
            Self::Link(link) => Some(link.key),
            Self::Member(visit) => Some(KeyId::from(visit.member.id.bytes())),
            Self::Admin(key) | Self::Operator(_, Some(key)) => Some(*key),
            Self::Anonymous | Self::Operator(_, None) => None,
        }
    }
}

/// The header that names the organization for which the operator acts, on routes that belong to an
/// organization.
const ORGANIZATION: &str = "x-orrery-organization";
/// The path parameter that names an organization.
const ORGANIZATION_PARAMETER: &str = "organization";
/// Maximum number of body bytes read before authentication, to find `api_key`.
const KEY_WITHIN: usize = 64 * 1024;

/// Authenticates a request as `access` requires; a member must have the `role`. Keys in headers are checked before any byte of the
/// body is read.
///
/// Errors: 401 without a valid key, link or session; 403 without the required permission; 503 when
/// the store cannot be read; errors from reading the body if the key is in the body.
pub(crate) async fn check(
    services: &Services,
    access: Access,
    role: MemberRole,
    request: &mut Request,
    site: Option<&Site>,
) -> Result<Principal, crate::Error> {
    match access {
        Access::Public => return Ok(Principal::Anonymous),
        Access::Local => return local(services, request),
        Access::Member | Access::Account | Access::KeyManager | Access::Owner => {
            let visit = by_session(services, request, site).await?;
            check_second_factor(services, &visit.member, access)?;
            check_member(&visit.member, access, role)?;
            return Ok(Principal::Member(Box::new(visit)));
        }
        Access::Admin => return by_admin_key(services, request).await,
        Access::MaybeKey | Access::Key | Access::Link | Access::BodyKey | Access::LocalKey => {}
    }
    let by_header = match presented_key(&request.headers) {
        Some(key) => services.accounts.authenticate(key).await?,
        None if access == Access::MaybeKey => return Ok(Principal::Anonymous),
        None if access == Access::Link => {
            let token = request.query.get(signed_urls::PARAMETER);
            let Some(token) = token else { return Err(refusal(services, request, None).await) };
            let opened = services.signed_urls.check(&request.path, token).await?;
            return match opened {
                Some(link) => Ok(Principal::Link(link)),
                None => Err(unopened(services, request, token).await?),
            };
        }
        None => None,
    };
    let in_body = if access == Access::BodyKey {
        // If the headers contain a valid key, `api_key` may be anywhere in the body. Otherwise,
        // `api_key` must be complete within the first bytes of the body, and no more of the body is
        // read before the caller is authenticated.
        let most = if by_header.is_some() { usize::MAX } else { KEY_WITHIN };
        key_in(&request.peek(most).await?)
    } else {
        None
    };
    // The body's `api_key` takes precedence over the headers. The handler rejects a body that is
    // not valid JSON.
    let caller = match &in_body {
        Some(key) => services.accounts.authenticate(key).await?,
        None => by_header,
    };
    match caller {
        Some(caller) => Ok(Principal::Caller(caller)),
        None if access == Access::LocalKey
            && let Some(caller) = local_caller(services, request).await? =>
        {
            Ok(Principal::Caller(caller))
        }
        None => Err(refusal(services, request, in_body.as_deref()).await),
    }
}

/// Returns the caller of a request without a valid key on Ollama's host: the holder of the key that
/// the configuration names, if the request comes from a program of this machine.
///
/// A web page can send requests to this machine, too: it is recognized by its origin or, if it has
/// rebound its own name, by the host that the request names.
async fn local_caller(
    services: &Services,
    request: &Request,
) -> Result<Option<Caller>, crate::Error> {
    let Some(key) = services.settings.local_key else { return Ok(None) };
    let headers = &request.headers;
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let names_loopback =
        match Url::parse(&format!("http://{host}/")).ok().as_ref().and_then(Url::host) {
            Some(Host::Ipv4(ip)) => is_loopback(ip.into()),
            Some(Host::Ipv6(ip)) => is_loopback(ip.into()),
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            None => false,
        };
    let live = services.live.load();
    let is_allowed = match (headers.get(ORIGIN), headers.get(SEC_FETCH_SITE)) {
        (Some(origin), _) => {
            live.cors_origins.iter().any(|one| one.as_bytes() == origin.as_bytes())
        }
        (None, Some(site)) => site == "none",
        (None, None) => true,
    };
    if !(request.peer.ip().is_some_and(is_loopback) && names_loopback && is_allowed) {
        return Ok(None);
    }
    Ok(services.accounts.caller_of(key).await?)
}

/// Returns a 401 with the reason. `in_body` is the API key in the body, if any.
async fn refusal(services: &Services, request: &Request, in_body: Option<&str>) -> crate::Error {
    let error = crate::Error::unauthorized();
    refused_key::explained(error, &services.accounts, request, Taken::ApiKey, in_body).await
}

/// Returns the error for an invalid link: 404 if the link was for a file that has been deleted,
/// otherwise 401.
async fn unopened(
    services: &Services,
    request: &Request,
    token: &str,
) -> Result<crate::Error, crate::Error> {
    let lapsed = services.signed_urls.lapsed(&request.path, token);
    if let (Some(link), Ok(id)) = (lapsed, request.param("id").parse::<FileId>())
        && request.path.trim_end_matches('/') == File::content_path(id)
        && services.files.find(link.organization, id).await?.is_none()
    {
        return Ok(super::files::missing());
    }
    Ok(refusal(services, request, None).await)
}

/// The header that marks requests that the page sends without a user action.
const UNATTENDED: &str = "x-orrery-unattended";

/// Returns whether a person or the page itself caused a request.
pub(crate) fn by(headers: &HeaderMap) -> By {
    if headers.contains_key(UNATTENDED) { By::Page } else { By::Person }
}

/// Authenticates a member by the session cookie.
async fn by_session(
    services: &Services,
    request: &Request,
    site: Option<&Site>,
) -> Result<Visit, crate::Error> {
    let visit = match site.and_then(|site| site.token(&request.headers)) {
        Some(token) => services.members.authenticate(token, by(&request.headers)).await?,
        None => None,
    };
    visit.ok_or_else(|| crate::Error::status(StatusCode::UNAUTHORIZED, "you are not logged in"))
}

/// Checks that a member has the permission or the role that a route requires.
fn check_member(member: &Member, access: Access, role: MemberRole) -> Result<(), crate::Error> {
    if access == Access::KeyManager && !member.may_manage_keys() {
        let message = "this needs the permission 'Can manage API keys', which the Owner grants";
        return Err(crate::Error::status(StatusCode::FORBIDDEN, message));
    }
    check_role(member, role)
}

/// Checks that a member has the second factor that the configuration requires.
fn check_second_factor(
    services: &Services,
    member: &Member,
    access: Access,
) -> Result<(), crate::Error> {
    if access == Access::Account || !services.members.lacks_second_factor(member) {
        return Ok(());
    }
    let message = "this service requires a second factor: set it up on the page Your account";
    Err(crate::Error::status(StatusCode::FORBIDDEN, message))
}

/// Checks that a member has a role.
///
/// # Errors
/// 403 that names the role.
pub(crate) fn check_role(member: &Member, role: MemberRole) -> Result<(), crate::Error> {
    if member.may(role) {
        return Ok(());
    }
    let message = match role {
        MemberRole::Owner => "only the Owner of the organization may do this".to_owned(),
        MemberRole::Editor | MemberRole::Operator | MemberRole::Viewer => format!(
            "this needs the role {}, and your role is {}; the Owner can change it",
            role.as_str(),
            member.role.as_str()
        ),
    };
    Err(crate::Error::status(StatusCode::FORBIDDEN, message))
}

/// Authenticates an admin key, which must be in the `Authorization` header. The routes for admin
/// keys accept neither cookies nor links, so another web page cannot make a visitor's browser use
/// the visitor's admin rights.
async fn by_admin_key(services: &Services, request: &Request) -> Result<Principal, crate::Error> {
    let found = match bearer(&request.headers) {
        Some(key) => services.accounts.authenticate_admin(key).await?,
        None => None,
    };
    if let Some(key) = found {
        return Ok(Principal::Admin(key));
    }
    let error = crate::Error::status(StatusCode::UNAUTHORIZED, "Invalid or missing admin key")
        .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Err(refused_key::explained(error, &services.accounts, request, Taken::AdminKey, None).await)
}

/// Authenticates the operator on the control socket by the token in a file next to the socket. A
/// model's program runs as the service's user and may be able to connect to the socket, but cannot
/// read that file.
fn local(services: &Services, request: &Request) -> Result<Principal, crate::Error> {
    let expected = match request.peer {
        Peer::InProcess => return Ok(Principal::Anonymous),
        Peer::Unix | Peer::Tcp(_) => services.settings.control_token.as_ref(),
    };
    let presented = presented_key(&request.headers).unwrap_or_default();
    let is_good = expected.is_some_and(|expected| {
        bool::from(expected.expose().as_bytes().ct_eq(presented.as_bytes()))
    });
    if is_good {
        return Ok(Principal::Anonymous);
    }
    let message = "the control socket requires the token from control.token in the data folder";
    Err(crate::Error::status(StatusCode::UNAUTHORIZED, message))
}

/// Returns the principal for whom a request acts: an operator acts for an organization. `access` is
/// that of the route where it is mounted.
///
/// # Errors
/// 400 for a header that is not text; 404 for an unknown organization; 503 when the store cannot be
/// read.
pub(crate) async fn acting_for(
    services: &Services,
    route: &Route,
    access: Access,
    request: &Request,
    principal: Principal,
) -> Result<Principal, crate::Error> {
    match access {
        Access::Local | Access::Admin if route.access != access => {
            in_the_name_of(services, request, &principal).await
        }
        Access::Admin => in_the_name_of_path(services, route, request, principal).await,
        Access::Public
        | Access::MaybeKey
        | Access::Key
        | Access::BodyKey
        | Access::LocalKey
        | Access::Link
        | Access::Member
        | Access::Account
        | Access::KeyManager
        | Access::Owner
        | Access::Local => Ok(principal),
    }
}

/// Acts for an organization on behalf of the operator: the organization in the header, or the
/// default organization.
///
/// # Errors
/// 400 for a header that is not text; 404 for an unknown organization; 503 when the store cannot be
/// read.
async fn in_the_name_of(
    services: &Services,
    request: &Request,
    by: &Principal,
) -> Result<Principal, crate::Error> {
    let name = match request.headers.get(ORGANIZATION) {
        None => DEFAULT_ORGANIZATION,
        Some(name) => name.to_str().map_err(|_no_text| {
            crate::Error::bad_request(format!("{ORGANIZATION} must be the name of an organization"))
        })?,
    };
    let organization = services.accounts.organization_or_default(Some(name)).await?;
    Ok(Principal::Operator(organization.id, by.key()))
}

/// Acts for the organization in the path on behalf of the holder of an admin key. On routes that
/// manage the organization itself, the organization may not exist yet.
///
/// # Errors
/// 404 for an unknown organization; 503 when the store cannot be read.
async fn in_the_name_of_path(
    services: &Services,
    route: &Route,
    request: &Request,
    by: Principal,
) -> Result<Principal, crate::Error> {
    let name = request.param(ORGANIZATION_PARAMETER);
    if name.is_empty() {
        return Ok(by);
    }
    match services.accounts.organization(name).await {
        Ok(organization) => Ok(Principal::Operator(organization.id, by.key())),
        Err(accounts::Error::NoOrganization(_)) if route.path.ends_with("/{organization}") => {
            Ok(by)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the top-level field `api_key` of a JSON object. `text` may be a prefix of the object.
/// Other fields are skipped without being stored, regardless of their nesting depth.
fn key_in(text: &[u8]) -> Option<String> {
    struct Finder<'a>(&'a mut Option<String>);
    impl<'de> Visitor<'de> for Finder<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
            while let Some(name) = fields.next_key::<String>()? {
                if name == "api_key" {
                    *self.0 = Some(fields.next_value()?);
                    // The rest of the object is not parsed, so the resulting error is expected.
                    return Ok(());
                }
                fields.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }
    let mut found = None;
    let ended = serde_json::Deserializer::from_slice(text).deserialize_map(Finder(&mut found));
    if let Err(error) = ended {
        tracing::trace!(%error, "the body is not a complete JSON object");
    }
    found
}

/// Takes one token from the key's bucket, and one token from its organization's bucket if the
/// organization has a bucket. All links that were created with a key share a separate bucket of the
/// same size, so that holders of links cannot use up the key's rate limit.
///
/// # Errors
/// 429 with `Retry-After` when a bucket is empty.
pub(crate) fn check_rate_limit(
    services: &Services,
    rate: Rate,
    principal: &Principal,
) -> Result<(), crate::Error> {
    let live = services.live.load();
    let limiter = match (rate, principal) {
        (Rate::Free, _) => None,
        (Rate::Configured, Principal::Link(_)) => live.link_rate.as_ref(),
        // The dashboard shows the balance on many pages, so the normal rate applies to members.
        (Rate::Configured, _) | (Rate::Balance, Principal::Member(_)) => live.rate.as_ref(),
        (Rate::Balance, _) => Some(&services.balance_rate),
    };
    if let (Some(limiter), Some(key)) = (limiter, principal.key()) {
        let too_many = |wait| crate::Error::too_many("too many requests", wait);
        limiter.check(key).map_err(too_many)?;
    }
    match principal {
        Principal::Caller(caller) if rate != Rate::Free => {
            limits::check_requests(services, caller.organization)
        }
        // Requests with a link do not count toward the organization's rate. Requests from the
        // dashboard do not count either, because the dashboard shows how much of the rate is used.
        Principal::Caller(_)
        | Principal::Anonymous
        | Principal::Link(_)
        | Principal::Member(_)
        | Principal::Admin(_)
        | Principal::Operator(..) => Ok(()),
    }
}

/// Returns the key in `X-API-Key`, or in `Authorization: Bearer` (case-insensitive).
pub(crate) fn presented_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok().map(str::trim);
    }
    bearer(headers)
}

/// Returns the key in `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_key_is_found_at_start_of_body() {
        for (text, key) in [
            (r#"{"api_key":"smk_a"}"#, Some("smk_a")),
            (r#"{"inputs":{"api_key":"no"},"api_key":"smk_a","x":["#, Some("smk_a")),
            (r#"{"a":[1,{"b":"}"}],"api\u005fkey":"smk_\u0061", broken"#, Some("smk_a")),
            (r#"  {"inputs":{"api_key":"no"}}"#, None),
            (r#"{"api_key":7}"#, None),
            (r#"{"api_key":null}"#, None),
            (r#"{"api_key":"smk_"#, None),
            (r#"["api_key","smk_a"]"#, None),
            (r#""api_key""#, None),
            ("", None),
        ] {
            assert_eq!(key_in(text.as_bytes()).as_deref(), key, "{text}");
        }
        let deep =
            format!(r#"{{"a":{}1{},"api_key":"smk_a"}}"#, "[".repeat(9999), "]".repeat(9999));
        assert_eq!(key_in(deep.as_bytes()).as_deref(), Some("smk_a"));
    }

    #[test]
    fn api_key_is_read_from_both_headers() {
        for (name, value, key) in [
            ("x-api-key", "smk_a", Some("smk_a")),
            ("X-API-KEY", " smk_a ", Some("smk_a")),
            ("authorization", "Bearer smk_a", Some("smk_a")),
            ("Authorization", "bearer  smk_a", Some("smk_a")),
            ("Authorization", "Basic smk_a", None),
            ("Authorization", "smk_a", None),
            ("Cookie", "smk_a", None),
        ] {
            let mut headers = HeaderMap::new();
            let name = hyper::header::HeaderName::try_from(name).unwrap();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(presented_key(&headers), key, "{value}");
        }
    }
}
