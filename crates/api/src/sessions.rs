//! Dashboard sessions: current session, login, logout and password changes.
//!
//! The session token is in a cookie that scripts cannot read, never in a response body.

use hyper::StatusCode;
use hyper::header::{HeaderValue, SET_COOKIE};

use super::body::form;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, Role, access};
use orrery_domain::member::Member;
use orrery_http::{Response, response};
use orrery_records::audit::Actor;
use orrery_records::members;
use orrery_wire::member::{
    HostUrl, LogIn, OpenSession, OpenSessions, PasswordChange, PasswordReset, Session,
};

pub(crate) const FOREIGN: ResponseDoc =
    ResponseDoc::error(403, "The request did not come from a page of the dashboard");
pub(crate) const NOT_JSON: ResponseDoc =
    ResponseDoc::error(415, "The body is not application/json");

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Session>(200, "The logged-in member, if any")],
    description: "Returns the member who is logged in, with the organization and the URLs of the \
                  hosts. `member` is null if nobody is logged in; the response is 200 either way.",
    ..Doc::new("sessions", "get_session", "Get the current session")
};

/// `GET /session`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let token = context.site()?.token(&context.request.headers);
    let visit = match token {
        Some(token) => {
            services.members.authenticate(token, access::by(&context.request.headers)).await?
        }
        None => None,
    };
    let Some(visit) = visit else {
        let set_up = services.members.is_set_up().await?;
        let body = Session {
            set_up,
            member: None,
            needs_second_factor: false,
            sign_on: services.oidc.as_ref().map(|provider| provider.button().to_owned()),
            organization: None,
            hosts: None,
            agent: None,
            version: None,
        };
        return Ok(response::json(StatusCode::OK, &body));
    };
    Ok(response::json(StatusCode::OK, &of_member(&context, &visit.member).await?))
}

/// Returns the session of a member.
async fn of_member(context: &Context, member: &Member) -> Result<Session, crate::Error> {
    let services = &context.services;
    let organization = services.accounts.organization_of(member.organization).await?;
    let hosts = services.settings.hosts.iter();
    let hosts = hosts.filter(|host| !matches!(host.role, Role::Metrics | Role::Control));
    let hosts = hosts.map(|host| HostUrl { role: host.role.as_str(), url: host.url.clone() });
    Ok(Session {
        set_up: true,
        member: Some(member.into()),
        needs_second_factor: services.members.lacks_second_factor(member),
        sign_on: services.oidc.as_ref().map(|provider| provider.button().to_owned()),
        organization: Some(organization.into()),
        hosts: Some(hosts.collect()),
        agent: Some(services.agent.has_model()),
        version: Some(env!("CARGO_PKG_VERSION")),
    })
}

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<LogIn>()),
    responses: &[
        ResponseDoc::empty(204, "Logged in; the session cookie is set"),
        ResponseDoc::error(401, "The email address, the password or the code is wrong or missing"),
        FOREIGN,
        NOT_JSON,
        ResponseDoc::error(429, "Too many attempts: retry after `Retry-After` seconds"),
    ],
    description: "Opens a session and sets its cookie. A wrong password and an unknown address \
                  return the same 401. If the member has a second factor, a correct password without \
                  `code` returns 401 with the details `{\"code\": \"required\"}`. After five attempts from one address, further attempts must \
                  wait and return 429 with `Retry-After`.",
    ..Doc::new("sessions", "log_in", "Log in")
};

/// `POST /session`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let LogIn { email, password, code } = context.request.json().await?;
    let services = &context.services;
    let from = context.request.peer.ip();
    let members = services.members.by(Actor::member(&email, from));
    let log_in = members::LogIn { email: email.trim(), password: &password, code: code.as_deref() };
    match members.log_in(log_in, context.origin_of_session()).await {
        Ok((_, token)) => with_cookie(&context, &token),
        Err(error) => {
            if matches!(error, members::Error::WrongPassword | members::Error::WrongCode) {
                services.audit.denied(from);
            }
            Err(error.into())
        }
    }
}

/// Returns the cookie with a session token.
pub(crate) fn session_cookie(context: &Context, token: &str) -> Result<HeaderValue, crate::Error> {
    let seconds = context.services.members.session_max().as_secs();
    let cookie = context.site()?.cookie(token, seconds);
    cookie.ok_or_else(|| crate::Error::bad_request("the Host header is malformed"))
}

/// Returns a 204 response that stores the session token in a cookie.
pub(crate) fn with_cookie(context: &Context, token: &str) -> Result<Response, crate::Error> {
    let cookie = session_cookie(context, token)?;
    let mut answer = response::empty(StatusCode::NO_CONTENT);
    answer.headers_mut().insert(SET_COOKIE, cookie);
    Ok(answer)
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "Logged out")],
    description: "Ends the session and deletes its cookie.",
    ..Doc::new("sessions", "log_out", "Log out")
};

/// `DELETE /session`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    context.services.members.by(context.actor()).log_out(context.visit()?).await?;
    let mut answer = response::empty(StatusCode::NO_CONTENT);
    if let Some(cookie) = context.site()?.cookie("", 0) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(answer)
}

pub(crate) const RESET: Doc = Doc {
    request: Some(RequestDoc::json::<PasswordReset>()),
    responses: &[
        ResponseDoc::empty(
            204,
            "The password is set. All earlier sessions of the member have ended, and the cookie of a new \
             session is set",
        ),
        FOREIGN,
        super::links::CLOSED,
        ResponseDoc::error(401, "The code of the second factor is missing or wrong"),
        ResponseDoc::error(429, "Too many attempts: retry after `Retry-After` seconds"),
        NOT_JSON,
    ],
    description: "Sets a new password with the token of a password reset link, ends all sessions \
                  of the member and opens a new one. The link works once, for 24 hours; afterwards \
                  the response is 410.",
    ..Doc::new("sessions", "reset_password", "Set a new password with a link")
};

/// `POST /session/reset`
pub(crate) async fn reset(mut context: Context) -> Result<Response, crate::Error> {
    let PasswordReset { token, password, code } = form(&mut context.request).await?;
    let (members, origin) = (&context.services.members, context.origin_of_session());
    let (_, token) = members.reset(&token, &password, code.as_deref(), origin).await?;
    with_cookie(&context, &token)
}

pub(crate) const CHANGE_PASSWORD: Doc = Doc {
    request: Some(RequestDoc::json::<PasswordChange>()),
    responses: &[
        ResponseDoc::empty(204, "The password is changed; all other sessions have ended"),
        ResponseDoc::error(422, "The current password is wrong"),
        ResponseDoc::error(429, "Too many attempts: retry after `Retry-After` seconds"),
    ],
    description: "Changes the password of the logged-in member, ends the member's other sessions \
                  and sets a new cookie. A wrong current password returns 422. A password has 12 \
                  to 256 bytes.",
    ..Doc::new("sessions", "change_password", "Change your password")
};

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<OpenSessions>(200, "The sessions, the last used first")],
    description: "Returns the open sessions of the logged-in member, with device, address and \
                  times.",
    ..Doc::new("sessions", "list_sessions", "List your sessions")
};

/// `GET /sessions`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let all = context.services.members.sessions(context.visit()?).await?;
    let sessions = all.into_iter().map(|one| OpenSession {
        id: one.id,
        device: one.session.origin.device,
        address: one.session.origin.address,
        created_at: one.session.created_at.into(),
        last_seen_at: one.session.seen_at.into(),
        current: one.is_current,
    });
    Ok(response::json(StatusCode::OK, &OpenSessions { sessions: sessions.collect() }))
}

pub(crate) const END: Doc = Doc {
    responses: &[
        ResponseDoc::empty(204, "The session has ended"),
        ResponseDoc::error(404, "Session not found"),
    ],
    description: "Ends one of the sessions of the logged-in member.",
    ..Doc::new("sessions", "delete_session", "End one of your sessions")
};

/// `DELETE /sessions/{session}`
pub(crate) async fn end(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    members.end_session(context.visit()?, context.request.param("session")).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const END_OTHERS: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "All other sessions have ended")],
    description: "Ends all sessions of the logged-in member except the one of the request.",
    ..Doc::new("sessions", "delete_other_sessions", "Log out everywhere else")
};

/// `DELETE /sessions`
pub(crate) async fn end_others(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    members.end_other_sessions(context.visit()?).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// `POST /session/password`
pub(crate) async fn change_password(mut context: Context) -> Result<Response, crate::Error> {
    let PasswordChange { current, password } = form(&mut context.request).await?;
    let member = &context.visit()?.member;
    let members = context.services.members.by(context.actor());
    let origin = context.origin_of_session();
    let changed = members.change_password(member, &current, &password, origin).await;
    // A 401 would mean that the member is not logged in.
    let token = changed.map_err(|error| {
        if matches!(error, members::Error::WrongPassword) {
            return crate::Error::unprocessable("the current password is wrong");
        }
        error.into()
    })?;
    with_cookie(&context, &token)
}
