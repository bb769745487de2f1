//! Billing: the balance, and the operator's routes to see and change it.

use hyper::StatusCode;
use serde::Deserialize;

use super::doc::{Doc, Response};
use super::{Context, Services};
use crate::billing;
use crate::domain::account::{DEFAULT_ORGANIZATION, Organization};
use crate::domain::money::Usd;
use crate::http::{self, Reply, reply};
use crate::wire::operator;
use crate::wire::service::Balance;

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopUp {
    organization: Option<String>,
    amount_usd: f64,
}

pub const BALANCE: Doc = Doc {
    responses: &[Response::json::<Balance>(200, "The balance")],
    ..Doc::new("billing", "get_balance", "The balance of the organization")
};

/// `GET /v1/billing/balance`
pub async fn balance(context: Context) -> Result<Reply, http::Error> {
    if !context.services.settings.billing_enabled {
        return Err(http::Error::unavailable("service unavailable"));
    }
    let organization = context.caller()?.organization;
    let balance = context.services.billing.balance(organization).await?;
    Ok(reply::json(StatusCode::OK, &Balance { balance_usd: balance.dollars() }))
}

pub const SHOW: Doc = Doc::new("admin", "admin_show_balance", "The balance of an organization");

/// `GET /admin/balance?organization=`
pub async fn show(context: Context) -> Result<Reply, http::Error> {
    let services = &context.services;
    let organization = organization(services, context.call.query.get("organization")).await?;
    let balance = services.billing.balance(organization.id).await?;
    Ok(reply::json(StatusCode::OK, &operator::Balance::of(&organization, balance)))
}

pub const TOP_UP: Doc = Doc::new("admin", "admin_top_up", "Add to a balance");

/// `POST /admin/balance/top-up`
pub async fn top_up(mut context: Context) -> Result<Reply, http::Error> {
    let asked: TopUp = context.call.json().await?;
    let services = &context.services;
    let organization = organization(services, asked.organization.as_deref()).await?;
    let refused = || http::Error::bad_request(billing::Error::Amount.to_string());
    let amount = Usd::from_dollars(asked.amount_usd).ok_or_else(refused)?;
    let balance = match services.billing.by(context.actor()).top_up(organization.id, amount).await {
        Err(billing::Error::Storage(error)) => return Err(error.into()),
        Err(billing::Error::Amount) => return Err(refused()),
        Ok(balance) => balance,
    };
    Ok(reply::json(StatusCode::CREATED, &operator::Balance::of(&organization, balance)))
}

pub const LEDGER: Doc =
    Doc::new("admin", "admin_list_ledger", "The entries that add up to a balance");

/// `GET /admin/balance/ledger?organization=&limit=`: the newest entries.
pub async fn ledger(context: Context) -> Result<Reply, http::Error> {
    let services = &context.services;
    let query = &context.call.query;
    let limit = usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?;
    let organization = organization(services, query.get("organization")).await?;
    let entries = services.billing.ledger(organization.id, None, limit).await?;
    let entries = entries.iter().map(operator::LedgerLine::from).collect();
    let body = operator::Ledger { organization: organization.name, entries };
    Ok(reply::json(StatusCode::OK, &body))
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
