//! Fallback chains: the operator's routes on the control socket, and the members' routes in the
//! dashboard. API clients select a chain with a prediction's `fallback_selector`, but cannot read
//! or change chains.

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::doc::{Doc, Kind, Param, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_domain::chain::Entry;
use orrery_http::{Response, response};
use orrery_records::chains::Change;
use orrery_wire::chain;
use orrery_wire::operator::{Chain, Chains};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct New {
    organization: Option<String>,
    model: String,
    name: String,
    entries: Vec<chain::Entry>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Changed {
    organization: Option<String>,
    model: String,
    name: String,
    entries: Option<Vec<chain::Entry>>,
    enabled: Option<bool>,
}

pub(crate) const CREATE: Doc = Doc::new("admin", "admin_create_chain", "Create a fallback chain");

/// `POST /admin/chains`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let new: New = context.request.json().await?;
    let services = &context.services;
    let organization =
        services.accounts.organization_or_default(new.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, &new.model, slug);
    let entries = new.entries.into_iter().map(Entry::from).collect();
    let made = services
        .chains
        .by(context.actor())
        .create(organization.id, &new.model, &new.name, entries, &schema_of)
        .await?;
    Ok(response::json(StatusCode::CREATED, &Chain::of(&made, &organization)))
}

pub(crate) const CHANGE: Doc = Doc::new("admin", "admin_change_chain", "Update a fallback chain");

/// `PUT /admin/chains`: changes the entries of a chain, or enables or disables it.
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let changed: Changed = context.request.json().await?;
    let services = &context.services;
    let organization =
        services.accounts.organization_or_default(changed.organization.as_deref()).await?;
    let schema_of = |slug: &str| schema_of(services, &changed.model, slug);
    let entries = changed.entries.map(|all| all.into_iter().map(Entry::from).collect());
    let change = Change { entries, enabled: changed.enabled };
    let chain = services
        .chains
        .by(context.actor())
        .change(organization.id, &changed.model, &changed.name, change, &schema_of)
        .await?;
    Ok(response::json(StatusCode::OK, &Chain::of(&chain, &organization)))
}

pub(crate) const LIST: Doc = Doc::new("admin", "admin_list_chains", "List fallback chains");

/// `GET /admin/chains?organization=`: the chains of one organization, or of all organizations.
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let mut chains = Vec::new();
    for organization in context.named_organizations().await? {
        let of_one = services.chains.list(organization.id).await?;
        chains.extend(of_one.iter().map(|chain| Chain::of(chain, &organization)));
    }
    Ok(response::json(StatusCode::OK, &Chains { chains }))
}

pub(crate) const DELETE: Doc = Doc::new("admin", "admin_delete_chain", "Delete a fallback chain");

/// `DELETE /admin/chains?organization=&model=&name=`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let query = &context.request.query;
    let organization = services.accounts.organization_or_default(query.get("organization")).await?;
    let model = query.get("model").unwrap_or("");
    let name = query.get("name").unwrap_or("");
    services.chains.by(context.actor()).delete(organization.id, model, name).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const LIST_OWN: Doc = Doc {
    responses: &[ResponseDoc::json::<chain::Chains>(200, "The chains, sorted by model and name")],
    description: "Returns the fallback chains of the organization, sorted by model and name.",
    ..Doc::new("chains", "list_chains", "List fallback chains")
};

pub(crate) const LIST_NAMED: Doc = Doc { id: "list_organization_chains", ..LIST_OWN };

/// `GET /chains` of the dashboard.
pub(crate) async fn list_own(context: Context) -> Result<Response, crate::Error> {
    let chains = context.services.chains.list(context.organization()?).await?;
    let chains = chains.iter().map(chain::Chain::from).collect();
    Ok(response::json(StatusCode::OK, &chain::Chains { chains }))
}

pub(crate) const CREATE_OWN: Doc = Doc {
    request: Some(RequestDoc::json::<chain::NewChain>()),
    responses: &[
        ResponseDoc::json::<chain::Chain>(201, "The chain, which is enabled"),
        ResponseDoc::error(
            409,
            "The model already has a chain with this name, or there are too many chains",
        ),
    ],
    description: "Creates a fallback chain: models that run in order if the primary model fails. \
                  The chain applies to predictions that are created from now on. A name that the \
                  model's chains already use returns 409.",
    ..Doc::new("chains", "create_chain", "Create a fallback chain")
};

/// `POST /chains` of the dashboard.
pub(crate) async fn create_own(mut context: Context) -> Result<Response, crate::Error> {
    let chain::NewChain { model, name, entries } = context.request.json().await?;
    let services = &context.services;
    let schema_of = |slug: &str| schema_of(services, &model, slug);
    let entries = entries.into_iter().map(Entry::from).collect();
    let chains = services.chains.by(context.actor());
    let made = chains.create(context.organization()?, &model, &name, entries, &schema_of).await?;
    Ok(response::json(StatusCode::CREATED, &chain::Chain::from(&made)))
}

const NO_CHAIN: ResponseDoc = ResponseDoc::error(404, "Chain not found");

pub(crate) const CHANGE_OWN: Doc = Doc {
    request: Some(RequestDoc::json::<chain::ChainChange>()),
    responses: &[
        ResponseDoc::json::<chain::Chain>(200, "The updated chain"),
        NO_CHAIN,
        ResponseDoc::error(409, "The chain was changed concurrently"),
    ],
    description: "Changes the entries of a chain, or enables or disables it; omitted fields keep \
                  their values. Predictions that exist already keep the chain that they were \
                  created with.",
    ..Doc::new("chains", "change_chain", "Update a fallback chain")
};

/// `PUT /chains` of the dashboard: changes the entries of a chain, or enables or disables it.
pub(crate) async fn change_own(mut context: Context) -> Result<Response, crate::Error> {
    let chain::ChainChange { model, name, entries, enabled } = context.request.json().await?;
    let services = &context.services;
    let schema_of = |slug: &str| schema_of(services, &model, slug);
    let entries = entries.map(|entries| entries.into_iter().map(Entry::from).collect());
    let change = Change { entries, enabled };
    let chains = services.chains.by(context.actor());
    let chain = chains.change(context.organization()?, &model, &name, change, &schema_of).await?;
    Ok(response::json(StatusCode::OK, &chain::Chain::from(&chain)))
}

pub(crate) const DELETE_OWN: Doc = Doc {
    query: &[
        Param { is_required: true, ..Param::new("model", Kind::Text, "The primary model") },
        Param { is_required: true, ..Param::new("name", Kind::Text, "The name of the chain") },
    ],
    responses: &[ResponseDoc::empty(204, "The chain is deleted"), NO_CHAIN],
    description: "Deletes a chain. Predictions that exist already keep the chain that they were \
                  created with.",
    ..Doc::new("chains", "delete_chain", "Delete a fallback chain")
};

/// `DELETE /chains?model=&name=` of the dashboard.
pub(crate) async fn delete_own(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let model = query.get("model").unwrap_or("");
    let name = query.get("name").unwrap_or("");
    let chains = context.services.chains.by(context.actor());
    chains.delete(context.organization()?, model, name).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the request schema of a model, or an error message if the model does not exist. A chain
/// may begin at the id of an upstream's model, whose requests the router knows; its entries are
/// catalog models.
pub(crate) fn schema_of(services: &Services, primary: &str, slug: &str) -> Result<Value, String> {
    if slug == primary && services.chat.is_at_upstream(slug) {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let model = services.catalog.get(slug).ok_or_else(|| services.catalog.missing(slug))?;
    Ok(model.schema.text().clone())
}
