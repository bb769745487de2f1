//! Log-in through an OpenID provider: authorization code flow with PKCE (OpenID Connect Core 1.0,
//! RFC 7636).
//!
//! A member is created at the first log-in and is recognized by issuer and subject, never by the
//! email address. The provider's groups decide the organization and the role at each log-in, and a
//! session lasts at most an hour, so that a person who leaves a group loses access within an hour.

mod provider;
mod token;
#[cfg(test)]
mod token_tests;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderValue, LOCATION, SET_COOKIE};

use self::provider::{Back, Error, Identified, PATIENCE};
pub use self::provider::{Group, Options, Provider};
use super::Context;
use super::doc::{Doc, ResponseDoc};
use super::sessions::session_cookie;
use orrery_domain::member::{Member, MemberRole};
use orrery_http::{Response, response};
use orrery_records::members::{self, External};

const NONE: ResponseDoc = ResponseDoc::error(404, "No identity provider is configured");

pub(crate) const BEGIN: Doc = Doc {
    responses: &[ResponseDoc::empty(303, "To the identity provider, or to the log-in page"), NONE],
    description: "Begins a log-in through the identity provider in `dashboard.oidc`: sets a cookie \
                  that binds the log-in to the browser, and redirects to the provider.",
    ..Doc::new("sessions", "begin_oidc", "Log in through the identity provider")
};

/// `GET /session/oidc`
pub(crate) async fn begin(context: Context) -> Result<Response, crate::Error> {
    let begun = match provider(&context)?.begin().await {
        Ok(begun) => begun,
        Err(error) => return refused(&context, &error.into()),
    };
    let mut answer = redirect(&begun.url)?;
    let cookie = context.site()?.cookie_of_log_in(&begun.sealed, PATIENCE.as_secs());
    if let Some(cookie) = cookie {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(answer)
}

pub(crate) const CALLBACK: Doc = Doc {
    responses: &[
        ResponseDoc::empty(303, "To the dashboard, with a session, or to the log-in page"),
        NONE,
    ],
    description: "Ends a log-in through the identity provider, which sends the browser here. \
                  Checks that this browser began the log-in, redeems the code once, verifies the \
                  ID token, and opens a session for at most an hour. After a failure, the log-in \
                  page says why.",
    ..Doc::new("sessions", "end_oidc", "Return from the identity provider")
};

/// `GET /session/oidc/callback`
pub(crate) async fn callback(context: Context) -> Result<Response, crate::Error> {
    provider(&context)?;
    let members = &context.services.members;
    let from = context.request.peer.ip();
    let mut answer = match members.throttle_external(from, Box::pin(log_in(&context))).await {
        Ok(token) => {
            let mut answer = redirect(&format!("{}/app", context.site()?.place))?;
            answer.headers_mut().append(SET_COOKIE, session_cookie(&context, &token)?);
            answer
        }
        Err(failure) => refused(&context, &failure)?,
    };
    if let Some(cookie) = context.site()?.cookie_of_log_in("", 0) {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    Ok(answer)
}

/// Why nobody is logged in.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Provider(#[from] Error),
    #[error("none of the person's groups is in `dashboard.oidc.map`")]
    NoGroup,
    #[error("the identity provider sends no verified email address")]
    NoEmail,
    #[error("`dashboard.oidc.map` names an organization that does not exist: {0}")]
    NoOrganization(String),
    #[error(transparent)]
    Member(#[from] members::Error),
    #[error("{}", .0.message)]
    Other(crate::Error),
}

impl Failure {
    /// Returns the word by which the log-in page knows the failure.
    fn word(&self) -> &'static str {
        match self {
            Self::Provider(Error::Denied(_)) => "denied",
            Self::Provider(Error::Expired) => "expired",
            Self::Provider(Error::Provider(_)) => "provider",
            Self::Provider(Error::Token(_)) => "token",
            Self::NoGroup => "groups",
            Self::NoEmail => "email",
            Self::Member(members::Error::EmailTaken) => "taken",
            Self::Member(members::Error::TooManyAttempts(_)) => "throttled",
            Self::NoOrganization(_) | Self::Member(_) | Self::Other(_) => "failed",
        }
    }
}

async fn log_in(context: &Context) -> Result<String, Failure> {
    let provider = provider(context).map_err(Failure::Other)?;
    let query = &context.request.query;
    let back = Back {
        state: query.get("state").unwrap_or_default(),
        code: query.get("code"),
        error: query.get("error"),
        issuer: query.get("iss"),
    };
    let site = context.site().map_err(Failure::Other)?;
    let found = provider.finish(site.log_in(&context.request.headers), back).await?;
    let members = &context.services.members;
    let (issuer, subject) = (&provider.options.issuer, &found.subject);
    let known = members.external(issuer, subject).await?;
    let granted = granted(context, &provider.options, &found, known.as_ref()).await?;
    let Some((organization, role)) = granted else {
        if let Some(member) = known {
            members.end_sessions(&member).await?;
        }
        return Err(Failure::NoGroup);
    };
    let email = match (&known, &found.email) {
        (Some(member), _) => member.email.clone(),
        (None, Some(email)) => email.clone(),
        (None, None) => return Err(Failure::NoEmail),
    };
    let name = found.name.as_deref().unwrap_or(&email);
    let person = External { organization, issuer, subject, email: &email, name, role };
    Ok(members.log_in_external(person, context.origin_of_session()).await?.1)
}

/// Returns the organization and the role that the groups of a person grant. A member stays in the
/// organization; a new one joins the organization of the first group in the configuration. Of
/// several roles there, the highest holds.
async fn granted(
    context: &Context,
    options: &Options,
    found: &Identified,
    known: Option<&Member>,
) -> Result<Option<(orrery_domain::ids::OrganizationId, MemberRole)>, Failure> {
    let mut granted = None;
    for group in options.map.iter().filter(|group| found.groups.contains(&group.name)) {
        let accounts = &context.services.accounts;
        let organization = accounts.organization(&group.organization).await;
        let organization = organization
            .map_err(|_missing| Failure::NoOrganization(group.organization.clone()))?
            .id;
        if known.is_some_and(|member| member.organization != organization) {
            continue;
        }
        granted = match granted {
            None => Some((organization, group.role)),
            Some((chosen, role)) if chosen == organization && group.role.covers(role) => {
                Some((chosen, group.role))
            }
            other => other,
        };
    }
    Ok(granted)
}

fn provider(context: &Context) -> Result<&Provider, crate::Error> {
    let provider = context.services.oidc.as_ref();
    provider.ok_or_else(|| crate::Error::not_found("no identity provider is configured"))
}

/// Redirects to the log-in page, which says why nobody is logged in. The address contains only one
/// of our own words.
fn refused(context: &Context, failure: &Failure) -> Result<Response, crate::Error> {
    tracing::warn!(reason = %failure, "a log-in through the identity provider failed");
    context.services.audit.denied(context.request.peer.ip());
    redirect(&format!("{}/?sso={}", context.site()?.place, failure.word()))
}

fn redirect(to: &str) -> Result<Response, crate::Error> {
    let mut answer = response::empty(StatusCode::SEE_OTHER);
    let to = HeaderValue::try_from(to).map_err(crate::Error::internal)?;
    answer.headers_mut().insert(LOCATION, to);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}
