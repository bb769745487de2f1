//! The limits of organizations: the route for clients, the operator's routes, and the check of the
//! request rate limit.

use hyper::StatusCode;

use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::account::Organization as Owner;
use orrery_domain::ids::OrganizationId;
use orrery_domain::usage::Day;
use orrery_http::{Response, response};
use orrery_wire::limits::{Limits, LimitsChange};
use orrery_wire::operator::Organization;

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Limits>(200, "The limits and their usage")],
    description: "Returns the limits that the operator set for the organization, with their \
                  current usage. A limit or a usage that does not exist is null. A request above a \
                  limit returns 429 with `Retry-After` and creates nothing.",
    ..Doc::new("limits", "get_limits", "Get limits and usage")
};

/// `GET /v1/limits`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let organization = services.accounts.organization_of(context.organization()?).await?;
    let limits = used_by(services, &organization).await?;
    Ok(response::json(StatusCode::OK, &limits))
}

/// Returns the limits of an organization with their usage.
///
/// # Errors
/// 503 when the store cannot be read.
pub(crate) async fn used_by(
    services: &Services,
    organization: &Owner,
) -> Result<Limits, crate::Error> {
    let load = services.engine.load_of(organization.id);
    let bytes = services.files.usage(organization.id).await?.bytes;
    let month = Day::of(services.clock.now()).month();
    let spent = services.billing.usage().spent(organization.id, month).await?;
    let load = load.map(|load| (load.running, load.queued));
    Ok(Limits::of(organization.limits, load, bytes, spent))
}

/// Returns the operator's view of an organization.
///
/// # Errors
/// The same as [`used_by`].
pub(crate) async fn described(
    services: &Services,
    owner: &Owner,
) -> Result<Organization, crate::Error> {
    Ok(Organization::of(owner, used_by(services, owner).await?))
}

const NO_ORGANIZATION: ResponseDoc = ResponseDoc::error(404, "Organization not found");

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<LimitsChange>()),
    responses: &[
        ResponseDoc::json::<Organization>(200, "The organization with its limits"),
        NO_ORGANIZATION,
    ],
    description: "Changes the given limits; omitted limits keep their values, and null removes a \
                  limit. The change applies to the next request and stops no running execution. \
                  Repeating the request changes nothing.",
    ..Doc::new("organizations", "admin_change_limits", "Update the limits of an organization")
};

/// `PUT /admin/organizations/{organization}/limits`: an omitted field keeps its value, and null
/// removes a limit.
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let change: LimitsChange = context.request.json().await?;
    let services = &context.services;
    let name = context.request.param("organization");
    let organization = services.accounts.organization(name).await?;
    let accounts = services.accounts.by(context.actor());
    let changed = accounts.change_limits(organization.id, move |held| change.apply(held)).await?;
    Ok(response::json(StatusCode::OK, &described(services, &changed).await?))
}

pub(crate) const SHOW: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Organization>(200, "The organization with its limits"),
        NO_ORGANIZATION,
    ],
    description: "Returns the organization with its limits and their current usage. An unknown \
                  name returns 404.",
    ..Doc::new("organizations", "admin_get_organization", "Get an organization")
};

/// `GET /admin/organizations/{organization}`
pub(crate) async fn show(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let organization =
        services.accounts.organization(context.request.param("organization")).await?;
    Ok(response::json(StatusCode::OK, &described(services, &organization).await?))
}

/// Takes one token from the organization's request bucket, if it has one.
///
/// # Errors
/// 429 with `Retry-After` when the bucket is empty.
pub(crate) fn check_requests(
    services: &Services,
    organization: OrganizationId,
) -> Result<(), crate::Error> {
    let limit = services.accounts.limits().of(organization).requests_per_second;
    let Some(per_second) = limit else { return Ok(()) };
    services.organization_rate.check(organization, per_second).map_err(|wait| {
        let message = format!("this organization is limited to {per_second} requests per second");
        crate::Error::too_many(message, wait)
    })
}
