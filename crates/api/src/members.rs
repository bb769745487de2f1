//! The routes for the members of an organization.

use hyper::StatusCode;

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use orrery_domain::ids::{MemberId, OrganizationId};
use orrery_domain::member::{self, MemberRole};
use orrery_http::{Response, response};
use orrery_records::members::AccessChange;
use orrery_wire::member::{Member, MemberChange, Members, NewLink};
use orrery_wire::operator;

const MISSING: ResponseDoc = ResponseDoc::error(404, "Member not found");
const OWNER: ResponseDoc =
    ResponseDoc::error(409, "The Owner always has every permission and cannot be removed");

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<Members>(200, "The members, oldest first")],
    description: "Returns the members of the organization, oldest first.",
    ..Doc::new("members", "list_members", "List members")
};

pub(crate) const LIST_OF: Doc = Doc { id: "list_organization_members", ..LIST };

/// `GET /members`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.list(context.organization()?).await?;
    let members = members.iter().map(Member::from).collect();
    Ok(response::json(StatusCode::OK, &Members { members }))
}

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<MemberChange>()),
    responses: &[ResponseDoc::json::<Member>(200, "The updated member"), MISSING, OWNER],
    description: "Changes a member's role, or grants or revokes the permission 'Can manage API \
                  keys', from the member's next request on. Keys that the member created are not \
                  affected. Only the Owner can use this operation; the Owner's own record cannot \
                  be changed (409).",
    ..Doc::new("members", "update_member", "Change a member's role or permission")
};

pub(crate) const CHANGE_OF: Doc = Doc {
    id: "update_organization_member",
    description: "Changes a member's role, or grants or revokes the permission 'Can manage API \
                  keys', from the member's next request on. Keys that the member created are not \
                  affected. The Owner's record cannot be changed (409).",
    ..CHANGE
};

/// `PATCH /members/{id}`
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let member = changed(&mut context, organization).await?;
    Ok(response::json(StatusCode::OK, &Member::from(&member)))
}

async fn changed(
    context: &mut Context,
    organization: OrganizationId,
) -> Result<member::Member, crate::Error> {
    let id = id_of(context)?;
    let MemberChange { role, api_key_access } = context.request.json().await?;
    let members = context.services.members.by(context.actor());
    let access = AccessChange { role: role.map(MemberRole::from), api_key_access };
    Ok(members.set_access(organization, id, access).await?)
}

pub(crate) const CHANGE_BY_OPERATOR: Doc =
    Doc::new("admin", "admin_update_member", "Change a member's role or permission");

/// `PATCH /admin/members/{id}?organization=`
pub(crate) async fn change_by_operator(mut context: Context) -> Result<Response, crate::Error> {
    let name = context.request.query.get("organization");
    let organization = context.services.accounts.organization_or_default(name).await?;
    let member = changed(&mut context, organization.id).await?;
    Ok(response::json(StatusCode::OK, &operator::Member::of(&member, &organization)))
}

pub(crate) const REMOVE: Doc = Doc {
    responses: &[
        ResponseDoc::empty(204, "The member is removed; keys that the member created remain"),
        MISSING,
        OWNER,
    ],
    description: "Removes the member and ends the member's sessions. Keys that the member created \
                  keep working, because they belong to the organization. Only the Owner can use \
                  this operation; the Owner cannot be removed (409).",
    ..Doc::new("members", "delete_member", "Remove a member")
};

/// `DELETE /members/{id}`
pub(crate) async fn remove(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    members.remove(context.organization()?, id_of(&context)?).await?;
    context.services.accounts.recheck_links();
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const REMOVE_OF: Doc = Doc::new("admin", "admin_delete_member", "Remove a member");

/// `DELETE /admin/members/{id}?organization=`
pub(crate) async fn remove_of(context: Context) -> Result<Response, crate::Error> {
    let id = id_of(&context)?;
    let services = &context.services;
    let name = context.request.query.get("organization");
    let organization = services.accounts.organization_or_default(name).await?;
    services.members.by(context.actor()).remove(organization.id, id).await?;
    services.accounts.recheck_links();
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const RESET: Doc = Doc {
    responses: &[
        ResponseDoc::json::<NewLink>(201, "The link. This is the only response with it"),
        MISSING,
        ResponseDoc::error(409, "The member logs in through the identity provider"),
    ],
    description: "Creates a link that the member can use to set a new password, and returns its \
                  `url` once. The link works once, for 24 hours. Only the Owner can use this \
                  operation.",
    ..Doc::new(
        "members",
        "reset_member",
        "Create a link that a member can use to set a new password",
    )
};

/// `POST /members/{id}/reset`
pub(crate) async fn reset(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    let issued = members.reset_link(context.organization()?, id_of(&context)?).await?;
    Ok(response::json(StatusCode::CREATED, &super::links::new_link(&context, &issued)))
}

fn id_of(context: &Context) -> Result<MemberId, crate::Error> {
    let missing = || crate::Error::not_found("member not found");
    context.request.param("id").parse().map_err(|_no_id| missing())
}

pub(crate) const LIST_ALL: Doc = Doc::new("admin", "admin_list_members", "List members");

/// `GET /admin/members?organization=`: the members of one organization, or of all organizations.
pub(crate) async fn list_all(context: Context) -> Result<Response, crate::Error> {
    let mut members = Vec::new();
    for organization in context.named_organizations().await? {
        for member in context.services.members.list(organization.id).await? {
            members.push(operator::Member::of(&member, &organization));
        }
    }
    Ok(response::json(StatusCode::OK, &operator::Members { members }))
}
