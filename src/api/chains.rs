//! The operator's routes for fallback chains, on the control socket. Clients name a chain in a
//! prediction's `fallback_selector`; they cannot see or change one.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::doc::Doc;
use super::{Context, Services};
use crate::chains::Change;
use crate::domain::chain::Entry;
use crate::http::{self, Response, response};
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
pub async fn create(mut context: Context) -> Result<Response, http::Error> {
    let new: New = context.request.json().await?;
    let services = &context.services;
    let organization =
        services.accounts.organization_or_default(new.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, slug);
    let made = services
        .chains
        .by(context.actor())
        .create(organization.id, &new.model, &new.name, new.entries, &schema_of)
        .await?;
    Ok(response::json(StatusCode::CREATED, &Chain::of(&made, &organization)))
}

pub const CHANGE: Doc = Doc::new("admin", "admin_change_chain", "Change a fallback chain");

/// `PUT /admin/chains`: changes entries, enables or disables.
pub async fn change(mut context: Context) -> Result<Response, http::Error> {
    let changed: Changed = context.request.json().await?;
    let services = &context.services;
    let organization =
        services.accounts.organization_or_default(changed.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, slug);
    let change = Change { entries: changed.entries, enabled: changed.enabled };
    let chain = services
        .chains
        .by(context.actor())
        .change(organization.id, &changed.model, &changed.name, change, &schema_of)
        .await?;
    Ok(response::json(StatusCode::OK, &Chain::of(&chain, &organization)))
}

pub const LIST: Doc = Doc::new("admin", "admin_list_chains", "List fallback chains");

/// `GET /admin/chains?organization=`: of one organization, or of all.
pub async fn list(context: Context) -> Result<Response, http::Error> {
    let services = &context.services;
    let mut chains = Vec::new();
    for organization in context.named_organizations().await? {
        let of_one = services.chains.list(organization.id).await?;
        chains.extend(of_one.iter().map(|chain| Chain::of(chain, &organization)));
    }
    Ok(response::json(StatusCode::OK, &Chains { chains }))
}

pub const DELETE: Doc = Doc::new("admin", "admin_delete_chain", "Delete a fallback chain");

/// `DELETE /admin/chains?organization=&model=&name=`
pub async fn delete(context: Context) -> Result<Response, http::Error> {
    let services = &context.services;
    let query = &context.request.query;
    let organization = services.accounts.organization_or_default(query.get("organization")).await?;
    let model = query.get("model").unwrap_or("");
    let name = query.get("name").unwrap_or("");
    services.chains.by(context.actor()).delete(organization.id, model, name).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

fn schema_of(services: &Services, slug: &str) -> Option<Value> {
    services.catalog.get(slug).map(|model| model.schema.text().clone())
}
