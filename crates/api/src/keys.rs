//! The routes for members to manage the organization's API keys. A key belongs to the organization,
//! not to the member who created it. Only the response that creates a key contains the full key.

use std::time::Duration;

use hyper::StatusCode;

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use orrery_domain::ids::KeyId;
use orrery_http::{Response, response};
use orrery_wire::member::{Key, KeyRequest, Keys, NewKey};

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<Keys>(200, "The keys of the organization, oldest first")],
    description: "Returns the API keys of the organization, oldest first. Only the response that \
                  creates a key contains the full key.",
    ..Doc::new("keys", "list_keys", "List API keys")
};

pub(crate) const LIST_OF: Doc = Doc { id: "list_organization_keys", ..LIST };

/// `GET /keys`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let accounts = &context.services.accounts;
    let organization = context.organization()?;
    // Flush buffered uses first, so that the response includes them.
    accounts.write_uses().await?;
    let keys = accounts.keys(organization).await?;
    let uses = accounts.last_uses(organization, keys.iter().map(|key| key.id)).await?;
    let keys = keys.iter().zip(uses).map(|(key, last_use)| Key::of(key, last_use)).collect();
    Ok(response::json(StatusCode::OK, &Keys { keys }))
}

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<KeyRequest>()),
    responses: &[ResponseDoc::json::<NewKey>(
        201,
        "The key. This is the only response with the full key",
    )],
    description: "Creates an API key of the organization and returns it in full, once: the service \
                  stores only a hash. Needs the permission 'Can manage API keys'.",
    ..Doc::new("keys", "create_key", "Create an API key")
};

/// `POST /keys`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let KeyRequest { name, expires_in_days } = context.request.json().await?;
    let validity = expires_in_days.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
    let accounts = context.services.accounts.by(context.actor());
    let creator = &context.visit()?.member.email;
    let made = accounts.create_key(context.organization()?, name.trim(), creator, validity);
    let (key, full) = made.await?;
    let body = NewKey { described: Key::of(&key, None), key: full };
    Ok(response::json(StatusCode::CREATED, &body))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[
        ResponseDoc::empty(204, "The key is deleted and no longer works"),
        ResponseDoc::error(404, "Key not found"),
    ],
    description: "Deletes the key, which stops working at once. The key's executions remain. Needs \
                  the permission 'Can manage API keys'.",
    ..Doc::new("keys", "delete_key", "Delete an API key")
};

/// `DELETE /keys/{id}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let missing = || crate::Error::not_found("key not found");
    let id: KeyId = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let accounts = context.services.accounts.by(context.actor());
    accounts.delete_key(context.organization()?, id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}
