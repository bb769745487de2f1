//! The routes for members to manage the organization's API keys, and the route by which a key
//! describes itself. A key belongs to the organization, not to the member who created it. Only the
//! responses that create or rotate a key contain the full key.

use std::time::Duration;

use hyper::StatusCode;

use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::account::ApiKey;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::key_policy::KeyPolicy;
use orrery_http::{Response, response};
use orrery_records::accounts;
use orrery_records::billing::Payer;
use orrery_wire::key_policy::{self as wire, KeyInfo, KeyPolicyChange};
use orrery_wire::member::{Key, KeyRequest, KeyRotation, Keys, NewKey};

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<Keys>(200, "The keys of the organization, oldest first")],
    description: "Returns the API keys of the organization, oldest first, with what they may do and \
                  what they have spent. Only the response that creates a key contains the full key.",
    ..Doc::new("keys", "list_keys", "List API keys")
};

pub(crate) const LIST_OF: Doc = Doc { id: "list_organization_keys", ..LIST };

/// `GET /keys`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let accounts = &context.services.accounts;
    let organization = context.organization()?;
    // Flush buffered uses first, so that the response includes them.
    accounts.write_uses().await?;
    let found = accounts.keys(organization).await?;
    let uses = accounts.last_uses(organization, found.iter().map(|key| key.id)).await?;
    let mut keys = Vec::with_capacity(found.len());
    for (key, last_use) in found.iter().zip(uses) {
        keys.push(Key::of(key, last_use, policy_of(&context.services, key).await?));
    }
    Ok(response::json(StatusCode::OK, &Keys { keys }))
}

/// Returns what a key may do, and what it has spent in the current period of its budget.
///
/// # Errors
/// 503 when the store cannot be read.
pub(crate) async fn policy_of(
    services: &Services,
    key: &ApiKey,
) -> Result<wire::KeyPolicy, crate::Error> {
    let now = services.clock.now();
    let (start, _) = key.policy.period(key.created_at, now);
    let payer = Payer { organization: key.organization, key: key.id };
    let spent = services.billing.spent(payer, start).await?;
    Ok(wire::KeyPolicy::of(key, spent, now))
}

/// Returns a key as members and operators see it.
///
/// # Errors
/// 503 when the store cannot be read.
pub(crate) async fn described(services: &Services, key: &ApiKey) -> Result<Key, crate::Error> {
    let uses = services.accounts.last_uses(key.organization, [key.id]).await?;
    let last_use = uses.into_iter().next().flatten();
    Ok(Key::of(key, last_use, policy_of(services, key).await?))
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
    let KeyRequest { name, expires_in_days, policy } = context.request.json().await?;
    let policy = policy.apply(KeyPolicy::default())?;
    let validity = expires_in_days.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
    let accounts = context.services.accounts.by(context.actor());
    let creator = &context.visit()?.member.email;
    let organization = context.organization()?;
    let expires_at = accounts.expiry(validity)?;
    let made =
        accounts.create_key_with(organization, name.trim(), creator, expires_at, policy).await;
    let (key, full) = made?;
    let body = NewKey { described: described(&context.services, &key).await?, key: full };
    Ok(response::json(StatusCode::CREATED, &body))
}

const NOT_FOUND: ResponseDoc = ResponseDoc::error(404, "Key not found");

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<KeyPolicyChange>()),
    responses: &[ResponseDoc::json::<Key>(200, "The changed key"), NOT_FOUND],
    description: "Changes what a key may do, from the next request on. Omitted fields keep their \
                  value, and null removes a restriction. Needs the permission 'Can manage API \
                  keys'.",
    ..Doc::new("keys", "update_key", "Update an API key")
};

/// `PATCH /keys/{id}`
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let id = id_in_path(&context)?;
    let change: KeyPolicyChange = context.request.json().await?;
    let accounts = context.services.accounts.by(context.actor());
    let organization = context.organization()?;
    let key = change_policy(&accounts, organization, id, change).await?;
    Ok(response::json(StatusCode::OK, &described(&context.services, &key).await?))
}

/// Changes the policy of a key.
///
/// # Errors
/// 400 for a value outside its limits; 404 for an unknown key; 503 when the store cannot be read or
/// written.
pub(crate) async fn change_policy(
    accounts: &accounts::Accounts,
    organization: OrganizationId,
    id: KeyId,
    change: KeyPolicyChange,
) -> Result<ApiKey, crate::Error> {
    let key = accounts.key(organization, id).await?.ok_or(accounts::Error::NoKey)?;
    // The values are checked before the change, whose result depends on the stored policy.
    change.clone().apply(key.policy)?;
    let apply = move |key: &mut ApiKey| {
        if let Ok(policy) = change.apply(key.policy.clone()) {
            key.policy = policy;
        }
    };
    Ok(accounts.change_key(organization, id, apply).await?)
}

pub(crate) const ROTATE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<KeyRotation>()),
    responses: &[
        ResponseDoc::json::<NewKey>(200, "The key with its new text, which is shown only here"),
        NOT_FOUND,
    ],
    description: "Gives a key a new text. Its ID, limits and history stay. The previous text works \
                  until the grace period ends, by default not at all. Needs the permission 'Can \
                  manage API keys'.",
    ..Doc::new("keys", "rotate_key", "Rotate an API key")
};

/// `POST /keys/{id}/rotate`
pub(crate) async fn rotate(mut context: Context) -> Result<Response, crate::Error> {
    let id = id_in_path(&context)?;
    let grace = grace(&mut context).await?;
    let accounts = context.services.accounts.by(context.actor());
    let (key, full) = accounts.rotate_key(context.organization()?, id, grace).await?;
    let body = NewKey { described: described(&context.services, &key).await?, key: full };
    Ok(response::json(StatusCode::OK, &body))
}

/// Reads the grace period of a rotation.
///
/// # Errors
/// 400 for an invalid body.
pub(crate) async fn grace(context: &mut Context) -> Result<Duration, crate::Error> {
    let KeyRotation { grace_seconds } = match context.request.has_body() {
        true => context.request.json().await?,
        false => KeyRotation::default(),
    };
    Ok(Duration::from_secs(u64::from(grace_seconds.unwrap_or(0))))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "The key is deleted and no longer works"), NOT_FOUND],
    description: "Deletes the key, which stops working at once. The key's executions remain. Needs \
                  the permission 'Can manage API keys'.",
    ..Doc::new("keys", "delete_key", "Delete an API key")
};

/// `DELETE /keys/{id}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let id = id_in_path(&context)?;
    let accounts = context.services.accounts.by(context.actor());
    accounts.delete_key(context.organization()?, id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the ID of the key in the path.
///
/// # Errors
/// 404 for a text that is no ID.
pub(crate) fn id_in_path(context: &Context) -> Result<KeyId, crate::Error> {
    let missing = |_no_id| crate::Error::from(accounts::Error::NoKey);
    context.request.param("id").parse().map_err(missing)
}

pub(crate) const INFO: Doc = Doc {
    responses: &[ResponseDoc::json::<KeyInfo>(200, "The key of the request")],
    description: "Returns the API key of the request: what it may do, its limits, and what it has \
                  spent in the current period of its budget.",
    ..Doc::new("keys", "get_key_info", "Get the API key of the request")
};

/// `GET /v1/key/info`
pub(crate) async fn info(context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let services = &context.services;
    let found = services.accounts.key(caller.organization, caller.key).await?;
    let key = found.ok_or(accounts::Error::NoKey)?;
    let info = KeyInfo {
        key_id: key.id,
        name: key.name.clone(),
        expires_at: key.expires_at.map(Into::into),
        policy: policy_of(services, &key).await?,
    };
    Ok(response::json(StatusCode::OK, &info))
}
