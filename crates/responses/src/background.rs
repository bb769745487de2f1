//! Responses in the background: the engine runs their calls, so that they survive a crash. The end
//! of the call, its charge and the response are one commit.

use std::sync::{Arc, Weak};

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::{NewResponse, Responses};
use orrery_chat::{self as chat, Caller, Chat, Finished};
use orrery_dialects::chat::read_answer;
use orrery_dialects::responses::{Ids, failed, write_answer};
use orrery_domain::chat::{Call, Media, Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Fault, Status, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::trace;
use orrery_engine::{self as engine, CallEnding, CallFuture, Calls, Engine, Submission};
use orrery_http::answers;
use orrery_http::budget::Budget;
use orrery_http::request::Peer;
use orrery_runtime::{Clock, turns};
use orrery_storage::{self as storage, Commit};
use orrery_wire::responses::answer::Outcome;

/// The dependencies of background responses.
#[derive(Debug)]
pub struct Dependencies {
    pub responses: Responses,
    pub clock: Clock,
    pub chat: Chat,
    pub engine: Engine,
    /// The memory budget for bodies.
    pub bodies: Arc<Budget>,
}

/// A response to create in the background.
#[derive(Debug)]
pub struct NewBackground {
    pub new: NewResponse,
    /// The chat completion that answers it.
    pub body: Box<RawValue>,
    /// The `model` of the completion.
    pub model: String,
    /// Whether `encrypted_content` repeats the text of reasoning.
    pub shows_reasoning: bool,
    /// The trace context of the request.
    pub origin: Option<Arc<trace::Origin>>,
    /// Writes that are part of the commit.
    pub beside: Commit,
}

/// Creates responses in the background; clones share the same state.
#[derive(Debug, Clone)]
pub struct Background {
    inner: Arc<Dependencies>,
}

impl Background {
    /// Creates a handle, which runs the engine's calls from now on.
    #[must_use]
    pub fn new(dependencies: Dependencies) -> Self {
        let inner = Arc::new(dependencies);
        let weak: Weak<Dependencies> = Arc::downgrade(&inner);
        let calls: Weak<dyn Calls> = weak;
        inner.engine.set_calls(calls);
        Self { inner }
    }

    /// Accepts a response. When this returns, it is on disk and will end exactly once.
    ///
    /// # Errors
    /// [`chat::Error`]: nothing was accepted.
    pub async fn start(&self, caller: Caller, wanted: NewBackground) -> Result<(), chat::Error> {
        let NewBackground { new, body, model, shows_reasoning, origin, mut beside } = wanted;
        let inner = &self.inner;
        let text = body.get().to_owned().into();
        let lease = inner.bodies.lease(&Peer::InProcess);
        inner.chat.check_call(caller, Operation::Chat, text, lease).await?;
        let (organization, id) = (new.organization, new.id);
        let added = inner.responses.add(&mut beside, new, Some(shows_reasoning)).await;
        added.map_err(engine::Error::from)?;
        let call = Call {
            operation: Operation::Chat,
            model: model.clone(),
            requested_model: model,
            is_upstream: false,
            is_stream: false,
            tokens: Tokens::default(),
            media: Media::default(),
            is_priced: false,
            is_cached: false,
            first_byte_ms: None,
        };
        let submission = Submission {
            id,
            organization,
            key: caller.key,
            source: caller.source,
            work: Work::Chat(call),
            input: body,
            webhook: None,
            origin,
        };
        inner.engine.submit(vec![submission], beside).await?;
        inner.responses.evict(organization).await.map_err(engine::Error::from)?;
        Ok(())
    }

    /// Returns a response as its client sees it now; `None` if the organization has no such
    /// response.
    ///
    /// # Errors
    /// [`engine::Error`]
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<Box<RawValue>>, engine::Error> {
        let Some(found) = self.inner.responses.find(organization, id).await? else {
            return Ok(None);
        };
        if !found.is_open {
            return Ok(Some(found.response));
        }
        let execution = match self.inner.engine.get(organization, id).await {
            Ok(execution) => Some(execution),
            Err(engine::Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        // The response may have ended since it was read.
        match self.inner.responses.find(organization, id).await? {
            Some(found) if found.is_open => Ok(Some(shown(&found.response, execution.as_ref())?)),
            found => Ok(found.map(|found| found.response)),
        }
    }

    /// Cancels a response that has not ended. Others stay as they are.
    ///
    /// # Errors
    /// [`engine::Error`]
    pub async fn cancel(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<(), engine::Error> {
        match self.inner.engine.cancel(organization, id).await {
            Ok(_) | Err(engine::Error::AlreadyEnded(_) | engine::Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns a response that has no answer, with the status of its execution.
fn shown(
    response: &RawValue,
    execution: Option<&Execution>,
) -> Result<Box<RawValue>, storage::Error> {
    let status = match execution.map(|execution| execution.status) {
        Some(Status::Created) => "queued",
        Some(Status::Processing) => "in_progress",
        Some(Status::Cancelled) => "cancelled",
        Some(Status::Success | Status::Error) | None => "failed",
    };
    let mut more = Map::from_iter([("status".to_owned(), json!(status))]);
    if status == "failed" {
        let fault = execution.and_then(|execution| execution.fault.as_ref());
        let cause = fault.map_or("its execution is no longer stored", |fault| &fault.cause);
        more.insert("error".to_owned(), json!({"code": "server_error", "message": cause}));
    }
    merged(response, more)
}

/// Returns a response with other values of some fields.
fn merged(response: &RawValue, more: Map<String, Value>) -> Result<Box<RawValue>, storage::Error> {
    let malformed = |error: serde_json::Error| storage::Error::malformed("response", error);
    let mut fields: Map<String, Value> = serde_json::from_str(response.get()).map_err(malformed)?;
    fields.extend(more);
    to_raw_value(&fields).map_err(malformed)
}

impl Calls for Dependencies {
    fn run<'a>(&'a self, execution: &'a Execution) -> CallFuture<'a> {
        Box::pin(turns::on_behalf_of(execution.organization, self.run_call(execution)))
    }
}

/// The end of a call, with the kind of its error in OpenAI's form.
struct Ended {
    ending: CallEnding,
    answer: Result<bytes::Bytes, (String, String)>,
}

impl Dependencies {
    async fn run_call(&self, execution: &Execution) -> Result<CallEnding, engine::Error> {
        let (organization, id) = (execution.organization, execution.id);
        let Work::Chat(call) = &execution.work else { return Err(engine::Error::NotFound) };
        let Ended { mut ending, answer } = self.ask(execution, call).await?;
        let open = self.responses.open_of(organization, id).await?;
        // Its client or retention has deleted it.
        let Some(open) = open else { return Ok(ending) };
        let ids = Ids { response: super::shown(id), shows_reasoning: open.shows_reasoning };
        let now = self.clock.now().unix_seconds();
        let outcome = outcome_of(answer, ids, now).await;
        if let (Err(message), None) = (&outcome, &ending.fault) {
            let class = ErrorClass::ProviderError;
            ending.fault = Some(Fault::new("StepFailed", class, message.clone()));
        }
        let outcome = outcome.unwrap_or_else(|message| failed("upstream_error", message));
        let malformed = |error| storage::Error::malformed("response", error);
        let Value::Object(fields) = serde_json::to_value(&outcome).map_err(malformed)? else {
            return Ok(ending);
        };
        let response = merged(&open.response, fields)?;
        self.responses.close(&mut ending.beside, organization, id, open, response).await?;
        Ok(ending)
    }

    /// Asks the model.
    async fn ask(&self, execution: &Execution, call: &Call) -> Result<Ended, engine::Error> {
        let lease = self.bodies.lease(&Peer::InProcess);
        let body = match self.responses.payload(&execution.input).await {
            Ok(body) => body,
            Err(error @ (storage::Error::Gone { .. } | storage::Error::Payload { .. })) => {
                return Ok(refused(call, ErrorClass::InternalError, error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        let body = String::from(Box::<str>::from(body)).into();
        match self.chat.call_for(execution, body, lease).await {
            Ok(Finished { ended, answer }) => {
                let Execution { work, fault, cost, .. } = ended.execution;
                let Work::Chat(call) = work else { return Err(engine::Error::NotFound) };
                let mut beside = ended.beside;
                let reservation = ended.reservation;
                beside.after_durable(move || drop(reservation));
                let ending = CallEnding { call, fault, cost, output: ended.output, beside };
                let answer = answer.map_err(|failure| {
                    let kind = failure.said.kind.as_deref();
                    let kind = kind.unwrap_or_else(|| orrery_wire::openai::kind_of(failure.status));
                    (kind.to_owned(), failure.message.clone())
                });
                Ok(Ended { ending, answer })
            }
            Err(chat::Error::Engine(
                error @ (engine::Error::Storage(_) | engine::Error::Stopping),
            )) => Err(error),
            Err(error) => Ok(refused(call, ErrorClass::InvalidUserInput, error.to_string())),
        }
    }
}

/// Returns the end of a call for which no model was asked.
fn refused(call: &Call, class: ErrorClass, message: String) -> Ended {
    let fault = Some(Fault::new("StepFailed", class, message.clone()));
    let ending = CallEnding {
        call: call.clone(),
        fault,
        cost: Usd::ZERO,
        output: None,
        beside: Commit::new(),
    };
    Ended { ending, answer: Err(("server_error".to_owned(), message)) }
}

/// Translates an answer.
async fn outcome_of(
    answer: Result<bytes::Bytes, (String, String)>,
    ids: Ids,
    now: i64,
) -> Result<Outcome, String> {
    let text = match answer {
        Ok(text) => text,
        Err((kind, message)) => return Ok(failed(&kind, message)),
    };
    let length = text.len();
    let translate = move || read_answer(&text).map(|answer| write_answer(answer, &ids, now));
    let translated = answers::parse_aside(length, translate).await;
    let translated = translated.ok_or_else(|| "the answer cannot be read".to_owned())?;
    translated.map_err(|error| error.to_string())
}
