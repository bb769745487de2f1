//! The route that sends a test alert to the operator's receiver.

use hyper::StatusCode;

use super::Context;
use super::doc::Doc;
use orrery_http::{Response, response};

pub(crate) const TEST: Doc = Doc::new("admin", "admin_test_alerts", "Send a test alert");

/// `POST /admin/alerts/test`: sends a test message and returns the receiver's answer.
pub(crate) async fn test(context: Context) -> Result<Response, crate::Error> {
    let sent = context.services.alerts.test().await;
    let sent = sent.ok_or_else(|| {
        crate::Error::status(
            StatusCode::CONFLICT,
            "the service sends no alerts: set alerts.url, then run `orrery reload`",
        )
    })?;
    Ok(response::json(StatusCode::OK, &sent))
}
