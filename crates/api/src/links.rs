//! Single-use links: setup links, invitations, and the routes that redeem them.
//!
//! Only the response that creates a link contains its URL.

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;

use super::body::form;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::sessions::{FOREIGN, NOT_JSON, with_cookie};
use super::{Context, Role};
use orrery_domain::ids::LinkId;
use orrery_domain::member::MemberRole;
use orrery_http::{Response, response};
use orrery_records::members::{Issued, Newcomer};
use orrery_wire::member::{
    Invitation, InvitationRequest, Invitations, Join, LinkToken, NewLink, OpenLink,
};

pub(crate) const CLOSED: ResponseDoc =
    ResponseDoc::error(410, "The link is invalid, expired, revoked or already used");
const JOINED: ResponseDoc =
    ResponseDoc::empty(204, "The member is created and logged in; the session cookie is set");
const TAKEN: ResponseDoc = ResponseDoc::error(
    409,
    "A member with this email address already exists, or the organization is full",
);

/// Returns a new link in the form that its creator receives.
pub(crate) fn new_link(context: &Context, issued: &Issued) -> NewLink {
    NewLink {
        id: issued.link.id,
        kind: issued.link.kind,
        url: issued.url(context.services.url_of(Role::Dashboard)),
        expires_at: issued.link.expires_at.into(),
    }
}

pub(crate) const DESCRIBE: Doc = Doc {
    request: Some(RequestDoc::json::<LinkToken>()),
    responses: &[
        ResponseDoc::json::<OpenLink>(200, "The purpose of the link"),
        FOREIGN,
        CLOSED,
        NOT_JSON,
    ],
    description: "Returns what a link is for, without using it up. An unknown, used, replaced or \
                  expired link returns 410.",
    ..Doc::new("links", "describe_link", "Get the purpose of a valid link")
};

/// `POST /links`
pub(crate) async fn describe(mut context: Context) -> Result<Response, crate::Error> {
    let LinkToken { token } = context.request.json().await?;
    let link = context.services.members.link(&token).await?;
    let organization = context.services.accounts.organization_of(link.organization).await?;
    let body = OpenLink {
        kind: link.kind,
        organization: organization.name,
        email: link.email,
        expires_at: link.expires_at.into(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const SET_UP: Doc = Doc {
    request: Some(RequestDoc::json::<Join>()),
    responses: &[JOINED, FOREIGN, TAKEN, CLOSED, NOT_JSON],
    description: "Creates the Owner of the organization with a setup link and opens a session. The \
                  link works once, for 24 hours.",
    ..Doc::new("links", "set_up", "Create the organization's Owner with a link")
};

/// `POST /setup`
pub(crate) async fn set_up(mut context: Context) -> Result<Response, crate::Error> {
    let join: Join = form(&mut context.request).await?;
    let (_, token) = context
        .services
        .members
        .set_up(&join.token, newcomer(&join), context.origin_of_session())
        .await?;
    with_cookie(&context, &token)
}

pub(crate) const ACCEPT: Doc = Doc {
    request: Some(RequestDoc::json::<Join>()),
    responses: &[JOINED, FOREIGN, TAKEN, CLOSED, NOT_JSON],
    description: "Creates a member with an invitation and opens a session. The invitation works \
                  once, for 24 hours; an email address that is in use returns 409.",
    ..Doc::new("links", "accept_invitation", "Join the organization with an invitation")
};

/// `POST /invitations/accept`
pub(crate) async fn accept(mut context: Context) -> Result<Response, crate::Error> {
    let join: Join = form(&mut context.request).await?;
    let (_, token) = context
        .services
        .members
        .accept(&join.token, newcomer(&join), context.origin_of_session())
        .await?;
    with_cookie(&context, &token)
}

fn newcomer(join: &Join) -> Newcomer<'_> {
    Newcomer { name: &join.name, email: join.email.trim(), password: &join.password }
}

pub(crate) const INVITE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<InvitationRequest>()),
    responses: &[
        ResponseDoc::json::<NewLink>(
            201,
            "The invitation. This is the only response with its link",
        ),
        TAKEN,
    ],
    description: "Creates an invitation and returns its `url` once; the Owner passes it on, \
                  because the service sends no email. The link works once, for 24 hours. Only the \
                  Owner may invite.",
    ..Doc::new("links", "create_invitation", "Invite a person")
};

/// `POST /invitations`
pub(crate) async fn invite(mut context: Context) -> Result<Response, crate::Error> {
    let InvitationRequest { email, role } = form(&mut context.request).await?;
    let organization = context.organization()?;
    let email = email.as_deref().map(str::trim).filter(|email| !email.is_empty());
    let members = context.services.members.by(context.actor());
    let issued = members.invite(organization, email, role.map(MemberRole::from)).await?;
    Ok(response::json(StatusCode::CREATED, &new_link(&context, &issued)))
}

pub(crate) const INVITATIONS: Doc = Doc {
    responses: &[ResponseDoc::json::<Invitations>(200, "The open invitations, oldest first")],
    description: "Returns the open invitations without their links, oldest first. Only the Owner \
                  can use this operation.",
    ..Doc::new("links", "list_invitations", "List open invitations")
};

/// `GET /invitations`
pub(crate) async fn invitations(context: Context) -> Result<Response, crate::Error> {
    let open = context.services.members.invitations(context.organization()?).await?;
    let invitations = open.iter().map(Invitation::from).collect();
    Ok(response::json(StatusCode::OK, &Invitations { invitations }))
}

pub(crate) const WITHDRAW: Doc = Doc {
    responses: &[
        ResponseDoc::empty(204, "The invitation is revoked"),
        ResponseDoc::error(404, "Invitation not found"),
    ],
    description: "Revokes an open invitation; its link stops working. Only the Owner can use this \
                  operation.",
    ..Doc::new("links", "delete_invitation", "Revoke an invitation")
};

/// `DELETE /invitations/{id}`
pub(crate) async fn withdraw(context: Context) -> Result<Response, crate::Error> {
    let missing = || crate::Error::not_found("invitation not found");
    let id: LinkId = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let members = context.services.members.by(context.actor());
    members.withdraw_invitation(context.organization()?, id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InvitationTo {
    organization: Option<String>,
    email: Option<String>,
    role: Option<MemberRole>,
}

pub(crate) const INVITE_TO: Doc =
    Doc::new("admin", "admin_create_invitation", "Invite a person to an organization");

/// `POST /admin/invitations`
pub(crate) async fn invite_to(mut context: Context) -> Result<Response, crate::Error> {
    let InvitationTo { organization, email, role } = context.request.json().await?;
    let accounts = &context.services.accounts;
    let organization = accounts.organization_or_default(organization.as_deref()).await?;
    let email = email.as_deref().map(str::trim).filter(|email| !email.is_empty());
    let members = context.services.members.by(context.actor());
    let issued = members.invite(organization.id, email, role).await?;
    Ok(response::json(StatusCode::CREATED, &new_link(&context, &issued)))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OwnerLinkRequest {
    organization: Option<String>,
}

pub(crate) const OWNER_LINK: Doc = Doc {
    description: "Creates a link that sets up the Owner or resets the Owner's password. A new link \
                  replaces the previous one.",
    ..Doc::new(
        "admin",
        "admin_owner_link",
        "Create a link to set up the dashboard or reset its Owner",
    )
};

/// `POST /admin/owner-link`: invalidates the previous link.
pub(crate) async fn owner_link(mut context: Context) -> Result<Response, crate::Error> {
    let OwnerLinkRequest { organization } = context.request.json().await?;
    let accounts = &context.services.accounts;
    let organization = accounts.organization_or_default(organization.as_deref()).await?;
    let members = context.services.members.by(context.actor());
    let issued = members.owner_link(organization.id).await?;
    Ok(response::json(StatusCode::CREATED, &new_link(&context, &issued)))
}
