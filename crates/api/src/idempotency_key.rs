//! Handles the `Idempotency-Key` header, which leads to either a claim to create a resource, or the
//! recorded response to an earlier request.

use std::str::FromStr;

use serde_json::Value;

use super::Context;
use orrery_domain::ids::{Id, Invalid, OrganizationId};
use orrery_records::idempotency::{self, Begin, Claim, StoredResponse};
use orrery_storage::{self as storage, Commit};

/// The decision about a create request.
#[derive(Debug)]
pub(crate) enum Creation {
    /// Create the resource in the commit that the claim provides.
    New(OptionalClaim),
    /// The resource was created before: return the recorded response.
    Replay(StoredResponse),
}

/// The claim to a request's `Idempotency-Key`, if the request has one. The handler must keep it
/// until the commit has returned, because it makes other requests with the same key wait.
#[derive(Debug)]
pub(crate) struct OptionalClaim(Option<Claim>);

impl OptionalClaim {
    /// The claim of a request whose key is ignored.
    pub(crate) const NONE: Self = Self(None);

    /// Returns the commit for the creation. If the request has a key, the commit records `answered`
    /// for that key.
    ///
    /// # Errors
    /// 500 when the response is too large to be recorded.
    pub(crate) fn commit(&self, answered: StoredResponse) -> Result<Commit, crate::Error> {
        let mut commit = Commit::new();
        self.record(&mut commit, answered).map_err(crate::Error::internal)?;
        Ok(commit)
    }

    /// Records `answered` in an existing commit.
    ///
    /// # Errors
    /// [`storage::Error::Malformed`] when the response is too large to be recorded.
    pub(crate) fn record(
        &self,
        commit: &mut Commit,
        answered: StoredResponse,
    ) -> Result<(), storage::Error> {
        self.0.as_ref().map_or(Ok(()), |claim| claim.record(commit, answered))
    }
}

/// Returns the ID that an earlier request created.
///
/// # Errors
/// 500 when the record contains no such ID.
pub(crate) fn created_id<T: Id + FromStr<Err = Invalid>>(
    answered: &StoredResponse,
) -> Result<T, crate::Error> {
    answered.subject.parse().map_err(crate::Error::internal)
}

/// Returns the body of the response to an earlier request.
///
/// # Errors
/// 500 when no body was recorded.
pub(crate) fn kept_body(answered: StoredResponse) -> Result<Value, crate::Error> {
    let answer =
        answered.answer.ok_or_else(|| crate::Error::internal("no response was recorded"))?;
    Ok(answer.body)
}

/// Reads the header and looks up its key for this organization and route.
///
/// # Errors
/// 400 for a key of invalid length; 409 while the first request is still in progress; 422 when the
/// key was used with another body; 503 when the store cannot be read.
pub(crate) async fn begin(
    context: &Context,
    organization: OrganizationId,
    route: &str,
    body: &[u8],
) -> Result<Creation, crate::Error> {
    let Some(header) = context.request.headers.get("idempotency-key") else {
        return Ok(Creation::New(OptionalClaim(None)));
    };
    let key = header.to_str().map_err(|error| {
        crate::Error::bad_request("Idempotency-Key must be visible ASCII").with_source(error)
    })?;
    idempotency::check_key(key)?;
    let begin = context.services.idempotency.begin(organization, route, key, body).await?;
    match begin {
        Begin::New(claim) => Ok(Creation::New(OptionalClaim(Some(claim)))),
        Begin::Replay(answered) => Ok(Creation::Replay(answered)),
        Begin::Mismatch => Err(crate::Error::unprocessable(
            "this Idempotency-Key was used with another request body",
        )),
        Begin::InProgress => Err(crate::Error::conflict(
            "a request with this Idempotency-Key is still being answered",
        )),
    }
}

/// Returns the parsed body. The error for a reused key takes precedence over the error for an
/// invalid body.
///
/// # Errors
/// The errors of [`begin`], and otherwise the error of the body.
pub(crate) async fn checked<T>(
    context: &Context,
    route: String,
    body: &[u8],
    read: Result<T, impl Into<crate::Error>>,
) -> Result<T, crate::Error> {
    match read {
        Ok(read) => Ok(read),
        Err(error) => {
            begin(context, context.caller()?.organization, &route, body).await?;
            Err(error.into())
        }
    }
}
