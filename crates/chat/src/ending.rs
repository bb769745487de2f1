//! The history row of an ended call.

use super::call::{Caller, Came, End};
use super::route::Candidate;
use super::service::Inner;
use orrery_domain::chat::{self, Operation};
use orrery_domain::execution::{Execution, Fault, Status, Work};
use orrery_domain::ids::ExecutionId;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_domain::trace::Trace;

/// The facts of a call that its end does not change.
pub(super) struct Ending<'c> {
    pub(super) id: ExecutionId,
    pub(super) trace: &'c Trace,
    pub(super) caller: Caller,
    pub(super) created_at: Timestamp,
    pub(super) operation: Operation,
    pub(super) requested_model: &'c str,
}

impl Ending<'_> {
    /// Returns the row of the call for the history.
    pub(super) fn execution(
        self,
        inner: &Inner,
        candidate: &Candidate,
        end: &End,
        came: &Came,
    ) -> Execution {
        let Self { id, trace, caller, created_at, operation, requested_model } = self;
        let Caller { organization, key, source } = caller;
        let (status, failure) = match end {
            End::Done => (Status::Success, None),
            End::Cancelled => (Status::Cancelled, None),
            End::Failed(failure) => (Status::Error, Some(failure)),
        };
        let now = inner.clock.now();
        let first_byte_ms =
            came.first_byte.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let call = chat::Call {
            operation,
            model: candidate.name.clone(),
            requested_model: requested_model.to_owned(),
            is_upstream: candidate.local.is_none(),
            is_stream: came.is_stream,
            tokens: came.tokens,
            media: came.media,
            is_priced: candidate.price.is_known(),
            is_cached: came.is_cached,
            first_byte_ms,
        };
        Execution {
            id,
            organization,
            key,
            source,
            status,
            input: Payload::nothing(),
            work: Work::Chat(call),
            output: None,
            fault: failure.map(|failure| Fault::of(&failure.recorded())),
            cost: came.cost,
            reserved: Usd::ZERO,
            webhook: None,
            created_at,
            started_at: Some(created_at),
            completed_at: Some(now.max(created_at)),
            origin: trace.origin(),
        }
    }
}
