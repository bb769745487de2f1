//! Named secrets: set, list and delete, by an organization's clients and by the operator. Responses
//! never contain a value.

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Context;
use super::body::form;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use orrery_http::{Response, response};
use orrery_wire::operator;
use orrery_wire::secret::{Secret, SecretValue, Secrets};

const NO_SECRET: ResponseDoc = ResponseDoc::error(404, "Secret not found");

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<Secrets>(
        200,
        "The names and dates, sorted by name, without values",
    )],
    description: "Returns the names of the organization's secrets and when they were set, sorted \
                  by name. No response contains a value.",
    ..Doc::new("secrets", "list_secrets", "List named secrets")
};

/// `GET /v1/secrets`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let secrets = context.services.secrets.list(context.organization()?).await?;
    let secrets = secrets.iter().map(Secret::from).collect();
    Ok(response::json(StatusCode::OK, &Secrets { secrets }))
}

pub(crate) const PUT: Doc = Doc {
    request: Some(RequestDoc::json::<SecretValue>()),
    responses: &[
        ResponseDoc::json::<Secret>(200, "The value is replaced; all later attempts use it"),
        ResponseDoc::json::<Secret>(201, "The secret was created"),
        ResponseDoc::error(409, "There are too many secrets"),
    ],
    description: "Creates the secret (201) or replaces its value (200). Definitions refer to the \
                  secret as `{{secrets.NAME}}` in the requests of `http` steps; each attempt reads \
                  the current value. An organization has at most 1000 secrets; one more returns \
                  409.",
    ..Doc::new("secrets", "put_secret", "Set the value of a named secret")
};

/// `PUT /v1/secrets/{name}`
pub(crate) async fn put(mut context: Context) -> Result<Response, crate::Error> {
    let SecretValue { value } = form(&mut context.request).await?;
    let secrets = context.services.secrets.by(context.actor());
    let name = context.request.param("name");
    let (secret, is_new) = secrets.set(context.organization()?, name, &value).await?;
    Ok(response::json(status_of(is_new), &Secret::from(&secret)))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "The secret is deleted"), NO_SECRET],
    description: "Deletes the secret. Steps that refer to the secret fail from then on.",
    ..Doc::new("secrets", "delete_secret", "Delete a named secret")
};

/// `DELETE /v1/secrets/{name}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let secrets = context.services.secrets.by(context.actor());
    secrets.delete(context.organization()?, context.request.param("name")).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

// --- the operator's routes ---

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    organization: Option<String>,
    name: String,
    value: String,
    /// If true, nothing is stored, and the response only reports whether the value differs.
    #[serde(default)]
    compare_only: bool,
}

pub(crate) const SET_OF: Doc =
    Doc::new("admin", "admin_set_secret", "Set the value of a named secret");

/// `PUT /admin/secrets`. The operator has access to the seal key anyway, so comparing values
/// reveals nothing new.
pub(crate) async fn set_of(mut context: Context) -> Result<Response, crate::Error> {
    let New { organization, name, value, compare_only } = context.request.json().await?;
    let services = &context.services;
    let organization = services.accounts.organization_or_default(organization.as_deref()).await?;
    let secrets = services.secrets.by(context.actor());
    if compare_only {
        let is_same = secrets.is_set_to(organization.id, &name, &value).await?;
        return Ok(response::json(StatusCode::OK, &operator::SecretComparison { is_same }));
    }
    let (secret, is_new) = secrets.set(organization.id, &name, &value).await?;
    Ok(response::json(status_of(is_new), &operator::Secret::of(&secret, &organization)))
}

pub(crate) const LIST_OF: Doc = Doc::new("admin", "admin_list_secrets", "List named secrets");

/// `GET /admin/secrets?organization=`: the secrets of one organization, or of all organizations.
pub(crate) async fn list_of(context: Context) -> Result<Response, crate::Error> {
    let mut secrets = Vec::new();
    for organization in context.named_organizations().await? {
        let of_one = context.services.secrets.list(organization.id).await?;
        secrets.extend(of_one.iter().map(|one| operator::Secret::of(one, &organization)));
    }
    Ok(response::json(StatusCode::OK, &operator::Secrets { secrets }))
}

pub(crate) const DELETE_OF: Doc = Doc::new("admin", "admin_delete_secret", "Delete a named secret");

/// `DELETE /admin/secrets?organization=&name=`
pub(crate) async fn delete_of(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let query = &context.request.query;
    let organization = services.accounts.organization_or_default(query.get("organization")).await?;
    let name = query.get("name").unwrap_or_default();
    services.secrets.by(context.actor()).delete(organization.id, name).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns 201 for a created resource and 200 for an existing resource.
pub(crate) const fn status_of(is_new: bool) -> StatusCode {
    if is_new { StatusCode::CREATED } else { StatusCode::OK }
}
