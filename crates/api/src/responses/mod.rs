//! The routes for clients of OpenAI's Responses API (`docs/spec/responses.md`, "Routes"). A
//! response is the answer of a chat completion, so routing, prices, fallback chains and the history
//! are those of `chat`.

mod background;
mod compact;
mod native;
mod stored;
mod stream;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use orrery_dialects::responses::{
    Head, Ids, identify, of_input, read, settings, shows_reasoning, write_answer,
};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;

use super::chat::{self, EXECUTION};
use super::completion::{self, execution_of};
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation, OptionalClaim};
use super::{Context, Services};
use orrery_chat::{Beside, Caller};
use orrery_domain::chat::Operation;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_http::Response;
use orrery_http::budget::Lease;
use orrery_http::request::{self as http_request, busy};
use orrery_responses::{self as responses, NewResponse};
use orrery_runtime as runtime;
use orrery_storage::Commit;
use orrery_wire::request;
use orrery_wire::responses::answer::{Item as Shown, Response as Answer, Settings};
use orrery_wire::responses::event::Event;
use orrery_wire::responses::{
    CreateRequest, Input, InputContent, InputMessage, InputRole, Item, MessageTag,
};

pub(crate) use self::background::{CANCEL, cancel};
pub(crate) use self::compact::{COMPACT, compact};
pub(crate) use self::stored::{DELETE, GET, INPUT_ITEMS, delete, get, input_items};

/// The group of the operations.
pub(crate) const TAG: &str = "responses";

/// Memory that a byte of a request takes for its items, until the response is stored.
const ITEM_COPIES: usize = 2;

pub(crate) const CREATE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CreateRequest>()),
    is_idempotent: true,
    responses: chat::failures!(ResponseDoc::json_or_events::<Answer, Event>(
        200,
        "The response; with `stream`, server-sent events that end with `response.completed`, \
         `response.incomplete` or `response.failed`"
    )),
    description: "Answers in the format of OpenAI's Responses API with any model that can be called \
                  by chat completions: a local chat model, the agent, an alias, or a model of the \
                  upstream. The request is translated to a chat completion, and its answer back. \
                  The response is stored for `retention.responses` of the configuration unless \
                  `store` is false, so that `previous_response_id` can continue it. With \
                  `background`, the answer is the queued response, which survives a restart; an \
                  `Idempotency-Key` counts only then. The cost is in `usage.cost`. Errors have \
                  OpenAI's format.",
    ..Doc::new(TAG, "create_response", "Create a response")
};

/// `POST /v1/responses`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let given = context.request.body().await?;
    if passes(&context.services, &given).await {
        let caller = chat::caller_of(&context)?;
        let mut lease = context.services.bodies.lease(&context.request.peer);
        lease.grow(given.len().saturating_mul(ITEM_COPIES)).map_err(|_full| busy())?;
        return native::create(&context, caller, &given, lease).await;
    }
    let request = request::read(http_request::parse_value(&given)?);
    let request: CreateRequest = request.map_err(InvalidRequest::from)?;
    check_background(&context.services, &request)?;
    let caller = chat::caller_of(&context)?;
    let services = Arc::clone(&context.services);
    let mut lease = services.bodies.lease(&context.request.peer);
    lease.grow(given.len().saturating_mul(ITEM_COPIES)).map_err(|_full| busy())?;
    let claim = match begin(&context, &request, caller.organization, &given).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            return background::again(&context, &answered, request.stream == Some(true)).await;
        }
    };
    drop(given);
    let settings = settings(&request);
    let shows_reasoning = shows_reasoning(&request);
    let conversation = conversation(&services, caller.organization, request, &mut lease).await?;
    let Conversation { keep, items, request } = conversation;
    let request = read(request, items);
    if request.messages.is_empty() {
        let message = "input has only reasoning that no model can read";
        return Err(InvalidRequest::field("input", message).into());
    }
    if settings.background
        && let Some(keep) = keep
    {
        let wanted = background::Wanted { keep, settings, shows_reasoning, request, claim };
        return background::create(&context, caller, wanted).await;
    }
    let body = completion::write(&services, &request).await?;
    let mut bound = lease.sibling();
    bound.grow(body.len()).map_err(|_full| busy())?;
    let body = bound.bind(body);
    let created_at = services.clock.now().unix_seconds();
    let asked = Asked { settings, created_at, shows_reasoning };
    let pending = Pending { keep, asked, lease };
    answer(services, context, caller, body, pending).await
}

/// The state of a request that waits for its answer.
struct Pending {
    keep: Option<Keep>,
    asked: Asked,
    /// Reserves memory for the items of the input, until the response is stored.
    lease: Lease,
}

impl Pending {
    /// Translates the answer of the chat completion into a response. Also returns the commit that
    /// stores the response.
    async fn translate(
        self,
        services: &Services,
        execution: ExecutionId,
        answer: Bytes,
    ) -> Result<(Answer, Commit), crate::Error> {
        let response = self.asked.translate(services, execution, answer).await?;
        let commit = match self.keep {
            Some(keep) => services.responses.commit_of(keep.of(&response)?).await?,
            None => Commit::new(),
        };
        Ok((response, commit))
    }
}

/// The parts of a response that its request determines.
struct Asked {
    settings: Settings,
    created_at: i64,
    shows_reasoning: bool,
}

impl Asked {
    fn head(self, execution: ExecutionId) -> Head {
        let Self { settings, created_at, shows_reasoning } = self;
        let ids = Ids { response: responses::shown(execution), shows_reasoning };
        Head { ids, created_at, settings }
    }

    /// Translates the answer of the chat completion into a response.
    async fn translate(
        self,
        services: &Services,
        execution: ExecutionId,
        answer: Bytes,
    ) -> Result<Answer, crate::Error> {
        let head = self.head(execution);
        let now = services.clock.now().unix_seconds();
        let translate = move |answer| Ok(head.with(write_answer(answer, &head.ids, now)));
        completion::translated(answer, translate).await
    }
}

/// Answers a request. `body` is the request as a chat completion. The commit that records the call
/// also stores the response, unless the response is streamed or comes from the agent.
async fn answer(
    services: Arc<Services>,
    context: Context,
    caller: Caller,
    body: Bytes,
    pending: Pending,
) -> Result<Response, crate::Error> {
    let organization = caller.organization;
    let is_stored = pending.keep.is_some();
    let pending = Arc::new(Mutex::new(Some(pending)));
    let (sender, mut translated) = oneshot::channel();
    let beside = {
        let (services, pending) = (Arc::clone(&services), Arc::clone(&pending));
        Beside::new(move |execution, answer| async move {
            let Some(pending) = taken(&pending) else { return Commit::new() };
            let translated = pending.translate(&services, execution, answer).await;
            let (translated, commit) = match translated {
                Ok((response, commit)) => (Ok(response), commit),
                Err(error) => (Err(error), Commit::new()),
            };
            // The handler is gone if the client has disconnected.
            let _unsent = sender.send(translated);
            commit
        })
    };
    let answer = chat::respond_beside(context, caller, Operation::Chat, body, Some(beside)).await?;
    let headers = answer.headers().clone();
    let response = if let Ok(translated) = translated.try_recv() {
        translated?
    } else {
        let pending = taken(&pending);
        let pending = pending.ok_or_else(|| crate::Error::internal("no translation"))?;
        let execution = execution_of(&answer).and_then(|id| id.parse().ok());
        let execution = execution.unwrap_or_else(runtime::new_id);
        if completion::is_stream(&answer) {
            let head = pending.asked.head(execution);
            return Ok(stream::stream_of(services, answer, head, pending.keep, pending.lease));
        }
        let text = completion::text_of(answer).await?;
        let (response, commit) = pending.translate(&services, execution, text).await?;
        services.responses.store(commit).await?;
        response
    };
    if is_stored {
        services.responses.evict(organization).await?;
    }
    Ok(completion::respond(&headers, &response))
}

fn taken(pending: &Mutex<Option<Pending>>) -> Option<Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A request of a batch, as a chat completion.
pub(crate) struct Line {
    /// The chat completion in OpenAI's format.
    pub body: Bytes,
    asked: Asked,
}

impl Line {
    /// Reads a request. Its response is not stored.
    pub(crate) async fn read(
        services: &Services,
        organization: OrganizationId,
        given: &[u8],
        lease: &mut Lease,
    ) -> Result<Self, crate::Error> {
        let request = request::read(http_request::parse_value(given)?);
        let mut request: CreateRequest = request.map_err(InvalidRequest::from)?;
        if request.background == Some(true) {
            let problem = "background is not available in a batch";
            return Err(InvalidRequest::field("background", problem).into());
        }
        request.store = Some(false);
        let settings = settings(&request);
        let shows_reasoning = shows_reasoning(&request);
        let Conversation { items, request, .. } =
            conversation(services, organization, request, lease).await?;
        let body = completion::write(services, &read(request, items)).await?;
        let created_at = services.clock.now().unix_seconds();
        Ok(Self { body, asked: Asked { settings, created_at, shows_reasoning } })
    }

    /// Translates the answer to the chat completion.
    pub(crate) async fn translate(
        self,
        services: &Services,
        execution: ExecutionId,
        answer: Bytes,
    ) -> Result<Box<RawValue>, crate::Error> {
        let response = self.asked.translate(services, execution, answer).await?;
        to_raw_value(&response).map_err(crate::Error::internal)
    }
}

/// Returns whether a request passes to the upstream as it is. Responses in the background do not.
async fn passes(services: &Services, given: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: Cow<'a, str>,
        background: Option<bool>,
    }
    if !services.chat.has_responses() {
        return false;
    }
    match serde_json::from_slice::<Named<'_>>(given) {
        Ok(Named { model, background: None | Some(false) }) => {
            services.chat.passes_responses(&model).await
        }
        Ok(_) | Err(_) => false,
    }
}

/// Looks up the `Idempotency-Key` of a response in the background. The key of any other response is
/// ignored.
async fn begin(
    context: &Context,
    request: &CreateRequest,
    organization: OrganizationId,
    given: &[u8],
) -> Result<Creation, crate::Error> {
    if request.background != Some(true) {
        return Ok(Creation::New(OptionalClaim::NONE));
    }
    idempotency_key::begin(context, organization, "response", given).await
}

fn check_background(services: &Services, request: &CreateRequest) -> Result<(), crate::Error> {
    if request.background != Some(true) {
        return Ok(());
    }
    let problem = if request.store == Some(false) {
        "background needs store, since the response is read later"
    } else if chat::is_agent(services, &request.model) {
        "background is not available for the agent: read its answer or its stream"
    } else {
        return Ok(());
    };
    Err(InvalidRequest::field("background", problem).into())
}

/// The conversation of a request.
struct Conversation {
    /// `None` if the response is not stored.
    keep: Option<Keep>,
    /// The items of the responses that it continues, and those of its own input.
    items: Vec<Item>,
    /// The request without its input.
    request: CreateRequest,
}

/// Reads the conversation that a request continues, and resolves its references.
async fn conversation(
    services: &Services,
    organization: OrganizationId,
    mut request: CreateRequest,
    lease: &mut Lease,
) -> Result<Conversation, crate::Error> {
    let mut own = match std::mem::replace(&mut request.input, Input::Items(Vec::new())) {
        Input::Items(items) => items,
        Input::Text(text) => vec![Item::Message(InputMessage {
            kind: MessageTag::default(),
            role: InputRole::User,
            content: InputContent::Text(text),
            id: None,
        })],
    };
    services.responses.resolve(organization, &mut own, lease).await?;
    let previous = match &request.previous_response_id {
        Some(id) => Some(responses::id_of(id).ok_or_else(|| missing(id))?),
        None => None,
    };
    let mut items = match previous {
        Some(previous) => services.responses.conversation(organization, previous, lease).await?,
        None => Vec::new(),
    };
    let keep = if request.store.unwrap_or(true) {
        services.engine.check_room(organization).await?;
        Some(Keep { organization, previous, input: of_input(&own) })
    } else {
        None
    };
    items.append(&mut own);
    Ok(Conversation { keep, items, request })
}

/// Returns the error for a `previous_response_id` that is not the ID of any response.
fn missing(id: &str) -> crate::Error {
    responses::Error::NoResponse { id: id.to_owned() }.into()
}

/// What is stored with a response.
struct Keep {
    organization: OrganizationId,
    previous: Option<ExecutionId>,
    /// The items of its input, whose IDs depend on that of the response.
    input: Vec<Shown>,
}

impl Keep {
    /// Stores a response. When this returns, it is durable.
    async fn store(self, services: &Services, response: &Answer) -> Result<(), crate::Error> {
        Ok(services.responses.put(self.of(response)?).await?)
    }

    /// Returns what is stored for a response.
    fn of(mut self, response: &Answer) -> Result<NewResponse, crate::Error> {
        let id = responses::id_of(&response.id);
        let id = id.ok_or_else(|| crate::Error::internal("the response has no ID"))?;
        identify(&mut self.input, &response.id);
        let Self { organization, previous, input } = self;
        let input = to_raw_value(&input).map_err(crate::Error::internal)?;
        let response = to_raw_value(response).map_err(crate::Error::internal)?;
        Ok(NewResponse { organization, id, previous, input, response })
    }
}
