//! `Idempotency-Key` at the edge: the header in, the right to create or an earlier answer out.

use std::str::FromStr;

use serde_json::Value;

use super::Context;
use crate::domain::ids::{Id, Invalid, OrganizationId};
use crate::http;
use crate::idempotency::{self, Begin, Claim, StoredResponse};
use crate::storage::Commit;
use crate::storage::record::Malformed;

/// How a create request continues.
#[derive(Debug)]
pub enum Creation {
    /// Create, in the commit that the claim gives.
    New(OptionalClaim),
    /// It was created before: answer from what was recorded then.
    Replay(StoredResponse),
}

/// The claim to the key of a request, if it has one. Keep it until the commit has returned: until
/// then, another request with the same key waits.
#[derive(Debug)]
pub struct OptionalClaim(Option<Claim>);

impl OptionalClaim {
    /// The commit for what is created. Where the request has a key, it records `answered` under it.
    ///
    /// # Errors
    /// 500 when the answer is too large to be recorded.
    pub fn commit(&self, answered: StoredResponse) -> Result<Commit, http::Error> {
        let mut commit = Commit::new();
        self.record(&mut commit, answered).map_err(http::Error::internal)?;
        Ok(commit)
    }

    /// The same in a commit that is there already.
    ///
    /// # Errors
    /// [`Malformed`] when the answer is too large to be recorded.
    pub fn record(&self, commit: &mut Commit, answered: StoredResponse) -> Result<(), Malformed> {
        self.0.as_ref().map_or(Ok(()), |claim| claim.record(commit, answered))
    }
}

/// The id of what an earlier request created.
///
/// # Errors
/// 500 when what was recorded is not such an id.
pub fn created_id<T: Id + FromStr<Err = Invalid>>(
    answered: &StoredResponse,
) -> Result<T, http::Error> {
    answered.subject.parse().map_err(http::Error::internal)
}

/// The body that an earlier request was answered with.
///
/// # Errors
/// 500 when none was recorded.
pub fn kept_body(answered: StoredResponse) -> Result<Value, http::Error> {
    let answer = answered.answer.ok_or_else(|| http::Error::internal("no answer was recorded"))?;
    Ok(answer.body)
}

/// Reads the header and looks its key up for this organization and route.
///
/// # Errors
/// 400 for a key of a wrong length; 409 while the first request is still being answered; 422 when
/// the key came with another body; 503 when the store cannot be read.
pub async fn begin(
    context: &Context,
    organization: OrganizationId,
    route: &str,
    body: &[u8],
) -> Result<Creation, http::Error> {
    let Some(header) = context.request.headers.get("idempotency-key") else {
        return Ok(Creation::New(OptionalClaim(None)));
    };
    let key = header.to_str().map_err(|error| {
        http::Error::bad_request("Idempotency-Key must be visible ASCII").with_source(error)
    })?;
    idempotency::check_key(key)?;
    let begin = context.services.idempotency.begin(organization, route, key, body).await?;
    match begin {
        Begin::New(claim) => Ok(Creation::New(OptionalClaim(Some(claim)))),
        Begin::Replay(answered) => Ok(Creation::Replay(answered)),
        Begin::Mismatch => Err(http::Error::unprocessable(
            "this Idempotency-Key was used with another request body",
        )),
        Begin::InProgress => Err(http::Error::conflict(
            "a request with this Idempotency-Key is still being answered",
        )),
    }
}
