//! The operator's routes for fallback chains, on the control socket. Clients name a chain in a
//! prediction's `fallback_selector`; they cannot see or change one.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::doc::Doc;
use super::{Context, Services};
use crate::chains::Change;
use crate::domain::account::{DEFAULT_ORGANIZATION, Organization};
use crate::domain::chain::Entry;
use crate::http::{self, Reply, reply};
use crate::wire::operator::{Chain, Chains};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    organization: Option<String>,
    model: String,
    name: String,
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    organization: Option<String>,
    model: String,
    name: String,
    entries: Option<Vec<Entry>>,
    enabled: Option<bool>,
}

pub const CREATE: Doc = Doc::new("admin", "admin_create_chain", "Save a fallback chain");

/// `POST /admin/chains`
pub async fn create(mut context: Context) -> Result<Reply, http::Error> {
    let new: New = context.call.json().await?;
    let services = &context.services;
    let organization = organization(services, new.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, slug);
    let made = services
        .chains
        .by(context.actor())
        .create(organization.id, &new.model, &new.name, new.entries, &schema_of)
        .await?;
    Ok(reply::json(StatusCode::CREATED, &Chain::of(&made, &organization)))
}

pub const CHANGE: Doc = Doc::new("admin", "admin_change_chain", "Change a fallback chain");

/// `PUT /admin/chains`: changes entries, enables or disables.
pub async fn change(mut context: Context) -> Result<Reply, http::Error> {
    let changed: Changed = context.call.json().await?;
    let services = &context.services;
    let organization = organization(services, changed.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, slug);
    let change = Change { entries: changed.entries, enabled: changed.enabled };
    let chain = services
        .chains
        .by(context.actor())
        .change(organization.id, &changed.model, &changed.name, change, &schema_of)
        .await?;
    Ok(reply::json(StatusCode::OK, &Chain::of(&chain, &organization)))
}

pub const LIST: Doc = Doc::new("admin", "admin_list_chains", "List fallback chains");

/// `GET /admin/chains?organization=`: of one organization, or of all.
pub async fn list(context: Context) -> Result<Reply, http::Error> {
    let services = &context.services;
    let organizations = match context.call.query.get("organization") {
        Some(name) => vec![services.accounts.organization(name).await?],
        None => services.accounts.organizations().await?,
    };
    let mut chains = Vec::new();
    for organization in organizations {
        let of_one = services.chains.list(organization.id).await?;
        chains.extend(of_one.iter().map(|chain| Chain::of(chain, &organization)));
    }
    Ok(reply::json(StatusCode::OK, &Chains { chains }))
}

pub const DELETE: Doc = Doc::new("admin", "admin_delete_chain", "Delete a fallback chain");

/// `DELETE /admin/chains?organization=&model=&name=`
pub async fn delete(context: Context) -> Result<Reply, http::Error> {
    let services = &context.services;
    let query = &context.call.query;
    let organization = organization(services, query.get("organization")).await?;
    let (model, name) = (query.get("model").unwrap_or(""), query.get("name").unwrap_or(""));
    services.chains.by(context.actor()).delete(organization.id, model, name).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

async fn organization(
    services: &Services,
    name: Option<&str>,
) -> Result<Organization, http::Error> {
    match name {
        None | Some(DEFAULT_ORGANIZATION) => Ok(services.accounts.ensure_default().await?.0),
        Some(name) => Ok(services.accounts.organization(name).await?),
    }
}

fn schema_of(services: &Services, slug: &str) -> Option<Value> {
    services.catalog.get(slug).map(|model| model.schema.text().clone())
}
