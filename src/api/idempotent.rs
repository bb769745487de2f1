//! `Idempotency-Key` at the edge: the header in, the right to create or an earlier answer out.

use serde_json::Value;

use super::Context;
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::http;
use crate::idempotency::{self, Answered, Begin, Ticket};
use crate::storage::Commit;

/// How a create goes on.
#[derive(Debug)]
pub enum Turn {
    /// Create, in the commit that the claim gives.
    Create(Claim),
    /// It was created before: answer from what was recorded then.
    Repeat(Answered),
}

/// The right to create. Hold it until the commit has returned: until then, another request with the
/// same key waits.
#[derive(Debug)]
pub struct Claim(Option<Ticket>);

impl Claim {
    /// The commit for what is created. Where the request has a key, it records `answered` under it.
    ///
    /// # Errors
    /// 500 when the answer is too large to be recorded.
    pub fn commit(&self, answered: Answered) -> Result<Commit, http::Error> {
        let mut commit = Commit::new();
        if let Some(ticket) = &self.0 {
            ticket.record(&mut commit, answered).map_err(http::Error::internal)?;
        }
        Ok(commit)
    }
}

/// The id of the execution that an earlier request created.
///
/// # Errors
/// 500 when what was recorded is no such id.
pub fn created_id(answered: &Answered) -> Result<ExecutionId, http::Error> {
    answered.subject.parse().map_err(http::Error::internal)
}

/// The body that an earlier request was answered with.
///
/// # Errors
/// 500 when none was recorded.
pub fn kept_body(answered: Answered) -> Result<Value, http::Error> {
    let answer = answered.answer.ok_or_else(|| http::Error::internal("no answer was recorded"))?;
    Ok(answer.body)
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
        return Ok(Turn::Create(Claim(None)));
    };
    let key = header.to_str().map_err(|error| {
        http::Error::bad_request("Idempotency-Key must be visible ASCII").with_source(error)
    })?;
    idempotency::check_key(key)?;
    let begun = context.services.idempotency.begin(organization, route, key, body).await?;
    match begun {
        Begin::Fresh(ticket) => Ok(Turn::Create(Claim(Some(ticket)))),
        Begin::Replay(answered) => Ok(Turn::Repeat(answered)),
        Begin::Mismatch => Err(http::Error::unprocessable(
            "this Idempotency-Key was used with another request body",
        )),
        Begin::InProgress => Err(http::Error::conflict(
            "a request with this Idempotency-Key is still being answered",
        )),
    }
}
