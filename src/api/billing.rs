//! Billing: the balance.

use hyper::StatusCode;
use serde_json::json;

use super::Context;
use crate::http::{self, Reply, reply};

/// `GET /v1/billing/balance`
pub async fn balance(context: Context) -> Result<Reply, http::Error> {
    if !context.services.settings.billing_enabled {
        return Err(http::Error::unavailable("service unavailable"));
    }
    let organization = context.caller()?.organization;
    let balance = context.services.billing.balance(organization).await?;
    Ok(reply::json(StatusCode::OK, &json!({"balance_usd": balance.dollars()})))
}
