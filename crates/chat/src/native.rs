//! Calls in the formats of OpenAI's Responses API and Anthropic's Messages API, which pass to an
//! upstream that has the same API. Any other model receives such requests as chat completions.

use std::sync::Arc;

use bytes::Bytes;

use super::call::{Answer, Caller, Extras};
use super::error::Error;
use super::request::{Form, MessageHeaders, Request};
use super::service::Chat;
use orrery_domain::ids::ExecutionId;
use orrery_domain::trace;
use orrery_http::budget::Lease;

impl Chat {
    /// Returns whether an upstream has OpenAI's Responses API.
    #[must_use]
    pub fn has_responses(&self) -> bool {
        self.inner.upstreams.all().iter().any(|upstream| upstream.options.has_responses)
    }

    /// Returns whether a request for this model in the format of OpenAI's Responses API passes to
    /// an upstream's own ([`Chat::respond`]): whether the first upstream of the model has it.
    pub async fn passes_responses(&self, model: &str) -> bool {
        if !self.has_responses() {
            return false;
        }
        let named = self.inner.named(model).await;
        self.passes(named.model(), Form::Responses)
    }

    /// Returns whether a request for this model in the format of Anthropic's Messages API passes to
    /// an upstream's own ([`Chat::message`]): whether the first upstream of the model has it.
    pub async fn passes_messages(&self, model: &str) -> bool {
        if !self.inner.upstreams.all().iter().any(|upstream| upstream.reads(Form::Messages)) {
            return false;
        }
        let named = self.inner.named(model).await;
        self.passes(named.model(), Form::Messages)
    }

    fn passes(&self, model: &str, form: Form) -> bool {
        let first = self.inner.upstreams.matching(model).next();
        self.is_at_upstream(model) && first.is_some_and(|upstream| upstream.reads(form))
    }

    /// Makes a call in the format of Anthropic's Messages API. Otherwise like [`Chat::call`].
    ///
    /// # Errors
    /// As [`Chat::call`].
    pub async fn message(
        &self,
        caller: Caller,
        body: Bytes,
        headers: MessageHeaders,
        lease: Lease,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Answer, Error> {
        let request = Request::read_message(&body, headers)?;
        self.answer(caller, request, body, lease, Extras::default(), asked).await
    }

    /// Makes a call in the format of OpenAI's Responses API. The events of a stream have no names.
    /// Otherwise like [`Chat::call`].
    ///
    /// # Errors
    /// As [`Chat::call`].
    pub async fn respond(
        &self,
        caller: Caller,
        body: Bytes,
        lease: Lease,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Answer, Error> {
        let request = Request::read_response(&body)?;
        self.answer(caller, request, body, lease, Extras::default(), asked).await
    }
}
