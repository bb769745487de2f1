//! Billing: the balance and the ledger, and the operator's routes to read and change the balance.

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Context;
use super::doc::{self, Doc, ResponseDoc};
use orrery_domain::money::Usd;
use orrery_http::{Response, response};
use orrery_records::billing;
use orrery_wire::member::{Ledger, LedgerLine};
use orrery_wire::operator;
use orrery_wire::service::Balance;

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 10_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TopUp {
    organization: Option<String>,
    amount_usd: f64,
}

pub(crate) const BALANCE: Doc = Doc {
    responses: &[ResponseDoc::json::<Balance>(200, "The balance")],
    description: "Returns the balance of the organization in US dollars. If billing is off \
                  (`billing.enabled`), the response is 503. A key may call this route three times \
                  a second.",
    ..Doc::new("billing", "get_balance", "Get the balance")
};

/// `GET /v1/billing/balance`
pub(crate) async fn balance(context: Context) -> Result<Response, crate::Error> {
    if !context.services.settings.billing_enabled {
        return Err(crate::Error::unavailable("service unavailable"));
    }
    let organization = context.caller()?.organization;
    let balance = context.services.billing.balance(organization).await?;
    Ok(response::json(StatusCode::OK, &Balance { balance_usd: balance.dollars() }))
}

pub(crate) const SHOW: Doc =
    Doc::new("admin", "admin_show_balance", "Get the balance of an organization");

/// `GET /admin/balance?organization=`
pub(crate) async fn show(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let organization = services
        .accounts
        .organization_or_default(context.request.query.get("organization"))
        .await?;
    let balance = services.billing.balance(organization.id).await?;
    Ok(response::json(StatusCode::OK, &operator::Balance::of(&organization, balance)))
}

pub(crate) const TOP_UP: Doc = Doc::new("admin", "admin_top_up", "Top up a balance");

/// `POST /admin/balance/top-up`
pub(crate) async fn top_up(mut context: Context) -> Result<Response, crate::Error> {
    let asked: TopUp = context.request.json().await?;
    let services = &context.services;
    let organization =
        services.accounts.organization_or_default(asked.organization.as_deref()).await?;
    let refused = || crate::Error::bad_request(billing::Error::Amount.to_string());
    let amount = Usd::from_dollars(asked.amount_usd).ok_or_else(refused)?;
    let balance = match services.billing.by(context.actor()).top_up(organization.id, amount).await {
        Err(billing::Error::Storage(error)) => return Err(error.into()),
        Err(billing::Error::Amount) => return Err(refused()),
        Ok(balance) => balance,
    };
    Ok(response::json(StatusCode::CREATED, &operator::Balance::of(&organization, balance)))
}

pub(crate) const LEDGER: Doc =
    Doc::new("admin", "admin_list_ledger", "List the ledger entries of an organization");

/// `GET /admin/balance/ledger?organization=&limit=`: the latest entries.
pub(crate) async fn ledger(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let query = &context.request.query;
    let limit = usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?;
    let organization = services.accounts.organization_or_default(query.get("organization")).await?;
    let entries = services.billing.ledger(organization.id, None, limit).await?;
    let entries = entries.iter().map(operator::LedgerLine::from).collect();
    let body = operator::Ledger { organization: organization.name, entries };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const OWN_LEDGER: Doc = Doc {
    query: &[doc::Param::limit(LIMIT_MAX, LIMIT_DEFAULT)],
    responses: &[ResponseDoc::json::<Ledger>(200, "The latest entries, newest first")],
    description: "Returns the newest entries of the organization's ledger: top-ups, charges and \
                  refunds. The entries add up to the balance. A charge is written exactly once, in \
                  the commit that completes the charged work.",
    ..Doc::new("ledger", "list_ledger", "List ledger entries")
};

pub(crate) const LEDGER_OF: Doc = Doc {
    id: "list_organization_ledger",
    description: "Returns the newest entries of the organization's ledger: top-ups, charges and \
                  refunds. The entries add up to the balance.",
    ..OWN_LEDGER
};

/// `GET /ledger?limit=`: the ledger of the member's organization.
pub(crate) async fn own_ledger(context: Context) -> Result<Response, crate::Error> {
    let limit = context.request.query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let limit = usize::try_from(limit)?;
    let entries = context.services.billing.ledger(context.organization()?, None, limit).await?;
    let entries = entries.iter().map(LedgerLine::from).collect();
    Ok(response::json(StatusCode::OK, &Ledger { entries }))
}
