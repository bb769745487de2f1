//! `Idempotency-Key` at the edge: the header in, the right to create or an earlier answer out.

use super::Context;
use crate::domain::ids::OrganizationId;
use crate::http;
use crate::idempotency::{self, Answered, Begin, Ticket};

/// How a create goes on.
#[derive(Debug)]
pub enum Turn {
    /// Create; with a ticket, record what was created in the same commit.
    Create(Option<Ticket>),
    /// It was created before: answer from its id.
    Repeat(Answered),
}

/// Reads the header and looks its key up for this organization and route.
///
/// # Errors
/// 400 for a key of a wrong length; 409 while the first request is still being answered; 422 when
/// the key came with another body; 503 when the store cannot be read.
pub async fn turn(
    context: &Context,
    organization: OrganizationId,
    route: &str,
    body: &[u8],
) -> Result<Turn, http::Error> {
    let Some(header) = context.call.headers.get("idempotency-key") else {
        return Ok(Turn::Create(None));
    };
    let key = header.to_str().map_err(|error| {
        http::Error::bad_request("Idempotency-Key must be visible ASCII").with_source(error)
    })?;
    idempotency::check_key(key)?;
    let begun = context.services.idempotency.begin(organization, route, key, body).await?;
    match begun {
        Begin::Fresh(ticket) => Ok(Turn::Create(Some(ticket))),
        Begin::Replay(answered) => Ok(Turn::Repeat(answered)),
        Begin::Mismatch => Err(http::Error::unprocessable(
            "this Idempotency-Key was used with another request body",
        )),
        Begin::InProgress => Err(http::Error::conflict(
            "a request with this Idempotency-Key is still being answered",
        )),
    }
}
