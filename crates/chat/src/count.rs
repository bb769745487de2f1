//! Counts the tokens of a prompt without requesting an answer. Only a local model process can count
//! tokens.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::call::place_at;
use super::error::{Error, Failure};
use super::request::Form;
use super::route::{Candidate, Target};
use super::service::{Chat, Inner};
use super::upstream::{Asked, JSON, Limits};
use super::whole::read_whole;
use orrery_domain::chat::Operation;
use orrery_domain::execution::Execution;
use orrery_domain::ids::ExecutionId;
use orrery_domain::raw_object::RawObject;
use orrery_domain::trace::Trace;
use orrery_http::budget::Lease;
use orrery_runners::llm::COUNT;
use orrery_runtime::new_id;

/// Time limit of a count, which includes waiting for a slot and loading the model.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the answer, in bytes.
const ANSWER_MAX: usize = 4096;

impl Chat {
    /// Counts the prompt tokens of the chat completion in `body` for the model `id`. Returns `None`
    /// if the model cannot count tokens, is busy, or has a context that is too short for the
    /// prompt.
    ///
    /// # Errors
    /// The errors of [`Chat::call`] for a model that cannot be called.
    pub async fn count_prompt(
        &self,
        id: &str,
        body: Bytes,
        lease: Lease,
    ) -> Result<Option<u64>, Error> {
        let inner = &self.inner;
        let found = inner.find(&inner.named(id).await, Operation::Chat, Form::Chat)?;
        let is_process = |found: &Candidate| matches!(found.target, Target::Process(_));
        let Some(candidate) = found.into_iter().next().filter(is_process) else {
            return Ok(None);
        };
        // Boxed, because the future of a call is large.
        let counted = timeout(TIMEOUT, Box::pin(count(inner, &candidate, &body, lease))).await;
        Ok(counted.ok().and_then(Result::ok).flatten())
    }
}

/// Waits for a slot at the model, and requests the count from its process.
async fn count(
    inner: &Inner,
    candidate: &Candidate,
    body: &Bytes,
    mut lease: Lease,
) -> Result<Option<u64>, Failure> {
    let Candidate { name, target, .. } = candidate;
    let _permit = place_at(inner, name).await?;
    let id: ExecutionId = new_id();
    let call = Trace::new(id, None).call(&Execution::call_key(id));
    let asked =
        Asked { path: COUNT, content: body, accept: JSON, may_fall_back: true, call: &call };
    let limits = Limits::from_now(TIMEOUT, TIMEOUT, TIMEOUT);
    let mut opened = inner.open(name, target, asked, false, limits).await?;
    let text = read_whole(name, &mut opened, &mut lease, ANSWER_MAX).await?;
    let answer: Option<RawObject> = serde_json::from_slice(&text).ok();
    Ok(answer.and_then(|answer| answer.value("prompt_tokens")))
}
