//! The administration API's routes for an organization and its resources. Resources are identified
//! by name, so requests are idempotent. The caller uses an admin key, and the path names the
//! organization.
//!
//! This module contains only handlers that are specific to the administration API. The other routes
//! of that API reuse the handlers for clients and members.

use hyper::StatusCode;

use super::body::form;
use super::doc::{Doc, Kind, Param, RequestDoc, ResponseDoc};
use super::links::new_link;
use super::{Context, chains, keys, limits, secrets};
use orrery_domain::account::ApiKey;
use orrery_domain::chain::Entry;
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_http::{Response, response};
use orrery_records::accounts;
use orrery_records::billing;
use orrery_records::chains::Change;
use orrery_wire as wire;
use orrery_wire::admin::{NamedChain, NamedKey, NamedOrganization, TopUp};
use orrery_wire::chain::Chain;
use orrery_wire::member::{Key, NewKey, NewLink};
use orrery_wire::operator::Organization;
use orrery_wire::secret::{Secret, SecretValue};
use orrery_wire::service::Balance;

pub(crate) const PUT_ORGANIZATION: Doc = Doc {
    request: Some(RequestDoc::optional_json::<NamedOrganization>()),
    responses: &[
        ResponseDoc::json::<Organization>(200, "The organization existed"),
        ResponseDoc::json::<Organization>(201, "The organization was created"),
    ],
    description: "Creates the organization with this name (201), or changes the given limits of an \
                  existing one (200). Repeating the request changes nothing.",
    ..Doc::new("organizations", "put_organization", "Create or update an organization")
};

/// `PUT /admin/v1/organizations/{organization}`
pub(crate) async fn put_organization(mut context: Context) -> Result<Response, crate::Error> {
    let NamedOrganization { limits } = match context.request.has_body() {
        true => context.request.json().await?,
        false => NamedOrganization::default(),
    };
    let name = context.request.param("organization");
    let services = &context.services;
    let accounts = services.accounts.by(context.actor());
    let (mut organization, status) = match accounts.create_organization(name).await {
        Ok(made) => (made, StatusCode::CREATED),
        Err(accounts::Error::Exists(_)) => (accounts.organization(name).await?, StatusCode::OK),
        Err(error) => return Err(error.into()),
    };
    if let Some(change) = limits {
        let change = move |held| change.apply(held);
        organization = accounts.change_limits(organization.id, change).await?;
    }
    Ok(response::json(status, &limits::described(services, &organization).await?))
}

const TWICE: ResponseDoc =
    ResponseDoc::error(409, "Several resources have this name, or there are too many resources");

pub(crate) const PUT_KEY: Doc = Doc {
    request: Some(RequestDoc::optional_json::<NamedKey>()),
    responses: &[
        ResponseDoc::json::<Key>(200, "The key existed; its full text cannot be shown again"),
        ResponseDoc::json::<NewKey>(
            201,
            "The key was created. This is the only response with the full key",
        ),
        TWICE,
    ],
    description: "Creates an API key with this name, or replaces the expiry and the limits of the \
                  existing one (200), whose text stays. Only the 201 response contains the full key: if it is lost, delete the key \
                  and create another. Several keys with the name return 409.",
    ..Doc::new("keys", "put_key", "Create an API key with this name")
};

/// `PUT /admin/v1/organizations/{organization}/keys/{name}`
pub(crate) async fn put_key(mut context: Context) -> Result<Response, crate::Error> {
    let NamedKey { expires_at, policy } = match context.request.has_body() {
        true => context.request.json().await?,
        false => NamedKey::default(),
    };
    let expires_at = expires_at.map(Timestamp::from);
    let policy = policy.apply(KeyPolicy::default())?;
    let organization = context.organization()?;
    let actor = context.actor();
    let services = &context.services;
    let accounts = services.accounts.by(actor.clone());
    let _one_of_a_name = services.naming.lock().await;
    let Some(found) = key_of(&context).await? else {
        let name = context.request.param("name");
        let made =
            accounts.create_key_with(organization, name, actor.who(), expires_at, policy).await;
        let (key, full) = made?;
        let body = NewKey { described: keys::described(services, &key).await?, key: full };
        return Ok(response::json(StatusCode::CREATED, &body));
    };
    let replace = move |key: &mut ApiKey| {
        key.expires_at = expires_at;
        key.policy = policy;
    };
    let key = accounts.change_key(organization, found.id, replace).await?;
    Ok(response::json(StatusCode::OK, &keys::described(services, &key).await?))
}

pub(crate) const ROTATE_KEY: Doc = Doc {
    responses: &[
        ResponseDoc::json::<NewKey>(200, "The key with its new text, which is shown only here"),
        ResponseDoc::error(404, "Key not found"),
        TWICE,
    ],
    description: "Gives the key with this name a new text. Its ID, limits and history stay. The \
                  previous text works until the grace period ends, by default not at all.",
    id: "rotate_named_key",
    summary: "Rotate an API key by name",
    ..keys::ROTATE
};

/// `POST /admin/v1/organizations/{organization}/keys/{name}/rotate`
pub(crate) async fn rotate_key(mut context: Context) -> Result<Response, crate::Error> {
    let grace = keys::grace(&mut context).await?;
    let key = key_of(&context).await?.ok_or(accounts::Error::NoKey)?;
    let accounts = context.services.accounts.by(context.actor());
    let (key, full) = accounts.rotate_key(context.organization()?, key.id, grace).await?;
    let body = NewKey { described: keys::described(&context.services, &key).await?, key: full };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const DELETE_KEY: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "The key is deleted and no longer works"), TWICE],
    description: "Deletes the key with this name or ID, which stops working at once. Several keys \
                  with the name return 409, and nothing is deleted.",
    ..Doc::new("keys", "delete_named_key", "Delete an API key by name or ID")
};

/// `DELETE /admin/v1/organizations/{organization}/keys/{name}`
pub(crate) async fn delete_key(context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let accounts = context.services.accounts.by(context.actor());
    let id = match context.request.param("name").parse() {
        Ok(id) => id,
        Err(_name) => key_of(&context).await?.ok_or(accounts::Error::NoKey)?.id,
    };
    accounts.delete_key(organization, id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the key with the name in the path, if any.
async fn key_of(context: &Context) -> Result<Option<ApiKey>, crate::Error> {
    let name = context.request.param("name");
    let keys = context.services.accounts.keys(context.organization()?).await?;
    only_one(keys.into_iter().filter(|key| key.name == name), "keys", name)
}

/// Returns the only match, or `None` if there is none.
///
/// # Errors
/// 409 when there are several matches, since names need not be unique.
pub(crate) fn only_one<T>(
    mut found: impl Iterator<Item = T>,
    kind: &str,
    name: &str,
) -> Result<Option<T>, crate::Error> {
    let first = found.next();
    if found.next().is_some() {
        let message = format!("several {kind} are called '{name}': rename or delete all but one");
        return Err(crate::Error::conflict(message));
    }
    Ok(first)
}

pub(crate) const PUT_CHAIN: Doc = Doc {
    request: Some(RequestDoc::json::<NamedChain>()),
    responses: &[
        ResponseDoc::json::<Chain>(200, "The chain existed"),
        ResponseDoc::json::<Chain>(201, "The chain was created"),
        ResponseDoc::error(409, "The chain was changed concurrently, or there are too many chains"),
    ],
    description: "Creates the chain with this name for `model`, or replaces the whole existing \
                  chain. Repeating the request changes nothing.",
    ..Doc::new("chains", "put_chain", "Create or replace a fallback chain")
};

/// `PUT /admin/v1/organizations/{organization}/chains/{name}`
pub(crate) async fn put_chain(mut context: Context) -> Result<Response, crate::Error> {
    let NamedChain { model, entries, enabled } = context.request.json().await?;
    let organization = context.organization()?;
    let name = context.request.param("name");
    let services = &context.services;
    let entries: Vec<Entry> = entries.into_iter().map(Entry::from).collect();
    let enabled = enabled.unwrap_or(true);
    let stored = services.chains.by(context.actor());
    let schema_of = |slug: &str| chains::schema_of(services, &model, slug);
    let listed = stored.list(organization).await?;
    let found = listed.into_iter().find(|chain| chain.model == model && chain.name == name);
    let (chain, status) = match found {
        Some(chain) if chain.entries == entries && chain.enabled == enabled => {
            (chain, StatusCode::OK)
        }
        Some(_) => {
            let change = Change { entries: Some(entries), enabled: Some(enabled) };
            let changed = stored.change(organization, &model, name, change, &schema_of).await?;
            (changed, StatusCode::OK)
        }
        None => {
            let mut made = stored.create(organization, &model, name, entries, &schema_of).await?;
            if !enabled {
                let change = Change { entries: None, enabled: Some(false) };
                made = stored.change(organization, &model, name, change, &schema_of).await?;
            }
            (made, StatusCode::CREATED)
        }
    };
    Ok(response::json(status, &Chain::from(&chain)))
}

pub(crate) const DELETE_CHAIN: Doc = Doc {
    query: &[Param { is_required: true, ..Param::new("model", Kind::Text, "The primary model") }],
    responses: &[ResponseDoc::empty(204, "The chain is deleted")],
    description: "Deletes the chain with this name of the model in the query. Predictions that \
                  exist already keep the chain that they were created with.",
    ..Doc::new("chains", "delete_named_chain", "Delete a fallback chain by name")
};

/// `DELETE /admin/v1/organizations/{organization}/chains/{name}?model=`
pub(crate) async fn delete_chain(context: Context) -> Result<Response, crate::Error> {
    let model = context.request.query.get("model").unwrap_or("");
    let stored = context.services.chains.by(context.actor());
    stored.delete(context.organization()?, model, context.request.param("name")).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const PUT_SECRET: Doc = Doc {
    request: Some(RequestDoc::json::<SecretValue>()),
    responses: &[
        ResponseDoc::json::<Secret>(200, "The secret existed and has the new value"),
        ResponseDoc::json::<Secret>(201, "The secret was created"),
        ResponseDoc::error(409, "There are too many secrets"),
    ],
    description: "Creates the secret (201) or replaces its value (200). Repeating the request with \
                  the same value changes nothing. No response contains a value.",
    ..Doc::new("secrets", "put_named_secret", "Create or update a named secret")
};

/// `PUT /admin/v1/organizations/{organization}/secrets/{name}`: a PUT with an identical value
/// changes nothing.
pub(crate) async fn put_secret(mut context: Context) -> Result<Response, crate::Error> {
    let SecretValue { value } = form(&mut context.request).await?;
    let organization = context.organization()?;
    let name = context.request.param("name");
    let stored = context.services.secrets.by(context.actor());
    if stored.is_set_to(organization, name, &value).await? {
        let listed = stored.list(organization).await?;
        if let Some(held) = listed.iter().find(|secret| secret.name == name) {
            return Ok(response::json(StatusCode::OK, &Secret::from(held)));
        }
    }
    let (secret, is_new) = stored.set(organization, name, &value).await?;
    Ok(response::json(secrets::status_of(is_new), &Secret::from(&secret)))
}

pub(crate) const TOP_UP: Doc = Doc {
    request: Some(RequestDoc::json::<TopUp>()),
    responses: &[ResponseDoc::json::<Balance>(201, "The balance after the top-up")],
    description: "Adds an amount to the organization's balance and returns the new balance. \
                  Repeating the request adds the amount again.",
    ..Doc::new("billing", "top_up_balance", "Top up the balance; this request is not idempotent")
};

/// `POST /admin/v1/organizations/{organization}/balance/top-up`
pub(crate) async fn top_up(mut context: Context) -> Result<Response, crate::Error> {
    let TopUp { amount_usd } = context.request.json().await?;
    let refused = || crate::Error::bad_request(billing::Error::Amount.to_string());
    let amount = Usd::from_dollars(amount_usd).ok_or_else(refused)?;
    let stored = context.services.billing.by(context.actor());
    match stored.top_up(context.organization()?, amount).await {
        Err(billing::Error::Storage(error)) => Err(error.into()),
        Err(billing::Error::Amount) => Err(refused()),
        Ok(balance) => {
            let body = wire::service::Balance { balance_usd: balance.dollars() };
            Ok(response::json(StatusCode::CREATED, &body))
        }
    }
}

pub(crate) const OWNER_LINK: Doc = Doc {
    responses: &[ResponseDoc::json::<NewLink>(201, "The link. The previous link stops working")],
    description: "Creates a link that sets up the Owner of the organization, or resets the Owner's \
                  password if there is an Owner. The link works once, for 24 hours; the previous \
                  link stops working.",
    ..Doc::new(
        "links",
        "create_owner_link",
        "Create a link to set up the dashboard or reset its Owner",
    )
};

/// `POST /admin/v1/organizations/{organization}/owner-link`
pub(crate) async fn owner_link(context: Context) -> Result<Response, crate::Error> {
    let members = context.services.members.by(context.actor());
    let issued = members.owner_link(context.organization()?).await?;
    Ok(response::json(StatusCode::CREATED, &new_link(&context, &issued)))
}
