//! The organization of the API key, and the secret that signs its webhooks.

use hyper::StatusCode;

use super::{Context, Doc, ResponseDoc, Services, doc};
use orrery_domain::ids::{Id as _, OrganizationId};
use orrery_domain::signature;
use orrery_http::{Response, response};
use orrery_wire::replicate::{Account, WebhookSecret};

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Account>(200, "The organization of the API key")],
    description: "Returns the organization of the API key.",
    ..doc("replicate_get_account", "Get the account")
};

/// `GET /replicate/v1/account`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let name = context.services.accounts.organization_of(organization).await?.name;
    let account = Account { kind: "organization", username: name.clone(), name };
    Ok(response::json(StatusCode::OK, &account))
}

pub(crate) const SECRET: Doc = Doc {
    responses: &[ResponseDoc::json::<WebhookSecret>(200, "The secret")],
    description: "Returns the secret that signs the webhooks of predictions that were created \
                  with Replicate's API. Each organization has its own secret, which changes when \
                  the operator rotates the service's key.",
    ..doc("replicate_get_webhook_secret", "Get the secret that signs webhooks")
};

/// `GET /replicate/v1/webhooks/default/secret`
pub(crate) async fn secret(context: Context) -> Result<Response, crate::Error> {
    let key = webhook_secret(&context.services, context.organization()?)?;
    Ok(response::json(StatusCode::OK, &WebhookSecret { key }))
}

/// Returns the secret that signs an organization's webhooks, in the form of Standard Webhooks.
///
/// # Errors
/// None in practice, because an authentication code has 32 bytes.
pub(super) fn webhook_secret(
    services: &Services,
    organization: OrganizationId,
) -> Result<String, crate::Error> {
    let mac = services.sealer.mac(&[b"replicate webhook\0", &organization.bytes()[..]].concat());
    let key = mac.try_into().map_err(|_other| crate::Error::internal("unexpected length"))?;
    Ok(signature::standard_secret(key))
}
