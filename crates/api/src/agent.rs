//! The routes of the agent's host (`docs/spec/agent.md`, "Routes"): prompts, tasks and session
//! memory.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::doc::{Doc, ErrorForm, Kind, Param, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_agent::{Feed, Request, Started, TaskEvent, check_session_name};
use orrery_chat::Caller;
use orrery_domain::execution::{Execution, Source};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::request::parse_value;
use orrery_http::sse::{self, HEARTBEAT};
use orrery_http::{Response, response};
use orrery_wire::agent::{
    Choice, Cleared, Completion, CompletionRequest, Exchange, Memory, Message, MessageRequest,
    Model, Models, Reply, Sessions, TaskCancelled, Usage,
};
use orrery_wire::agent_event::{Streamed, StreamedChunk};
use orrery_wire::request::{self, Mismatch};

const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");
const X_TASK_ID: HeaderName = HeaderName::from_static("x-task-id");
/// The key ID that is recorded for prompts that the operator sends from the command line.
const NOBODY: [u8; 16] = [0; 16];
const DONE: &[u8] = b"data: [DONE]\n\n";
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

const TASK: (&str, &str) =
    ("X-Task-Id", "The ID of the task, which can be used to resume its events");
const SESSION: (&str, &str) = ("X-Session-Id", "The session that the exchange belongs to");

/// The responses of both prompt routes.
macro_rules! answers {
    ($answer:ty, $event:ty) => {
        &[
            ResponseDoc {
                headers: &[TASK, SESSION],
                ..ResponseDoc::json_or_events::<$answer, $event>(
                    200,
                    "Server-sent events that end with `[DONE]`; with `stream: false`, the reply",
                )
            },
            ResponseDoc::error(402, "Insufficient balance"),
            ResponseDoc::error(
                409,
                "Too many exchanges of the session are waiting, or the exchange was cancelled",
            ),
            ResponseDoc::error(502, "The exchange failed"),
            ResponseDoc::error(504, "The exchange timed out"),
        ]
    };
}

pub(crate) const COMPLETIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CompletionRequest>()),
    responses: answers!(Completion<'static>, StreamedChunk),
    description: "Starts an exchange with the agent in OpenAI's format: the last message is the \
                  prompt, and earlier messages are used only if the request names no session. By \
                  default, the response is a stream of chunks with the agent's events, which ends \
                  with `[DONE]`; with `stream: false`, it is the completion. The exchange is \
                  durable and continues if the client disconnects: follow its task, named by \
                  `X-Task-Id`. The exchanges of a session run one after the other; at most four \
                  wait, and another returns 409. Errors have OpenAI's format.",
    ..Doc::new("agent", "create_agent_completion", "Send a prompt to the agent, in OpenAI's format")
};

/// `POST /v1/chat/completions` of the agent's host
pub(crate) async fn completions(context: Context) -> Result<Response, crate::Error> {
    answer(context, Form::OpenAi).await
}

pub(crate) const CHAT: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<MessageRequest>()),
    responses: answers!(Reply<'static>, Streamed),
    description: "Starts an exchange with the agent. By default, the response is a stream of the \
                  agent's events, which ends with `[DONE]`; with `stream: false`, it is the reply. \
                  Pass the same `session_id` to continue a conversation; without `session_id`, a \
                  new session is created and named by `X-Session-Id`. The exchange is durable and \
                  continues if the client disconnects: follow its task, named by `X-Task-Id`. \
                  Errors have OpenAI's format.",
    ..Doc::new("agent", "chat_with_agent", "Send a prompt to the agent")
};

/// `POST /chat`
pub(crate) async fn chat(context: Context) -> Result<Response, crate::Error> {
    answer(context, Form::Flat).await
}

pub(crate) const CHAT_FOR: Doc =
    Doc::new("admin", "admin_chat_with_agent", "Send a prompt to the agent for an organization");

/// `POST /admin/agent/chat?organization=`: the organization is charged, and the history row has no
/// key.
pub(crate) async fn chat_for(context: Context) -> Result<Response, crate::Error> {
    let named = context.request.query.get("organization");
    let organization = context.services.accounts.organization_or_default(named).await?.id;
    answer_to(context, Caller { organization, key: NOBODY.into(), source: Source::Api }, Form::Flat)
        .await
}

pub(crate) const FOLLOW: Doc = Doc {
    responses: &[
        ResponseDoc {
            headers: &[TASK],
            ..ResponseDoc::events::<StreamedChunk>(
                200,
                "The events after `Last-Event-ID`, then `[DONE]`",
            )
        },
        ResponseDoc::error(404, "Task not found"),
    ],
    description: "Streams the events of a task, starting after `Last-Event-ID` or at the \
                  beginning, and ends with `[DONE]` when the task has ended. Any number of clients \
                  can follow a task, even after it has ended.",
    ..Doc::new("agent", "follow_task", "Stream the events of a task, or resume the stream")
};

/// `GET /v1/tasks/{task}/events`
pub(crate) async fn follow(context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let task = task_of(&context)?;
    let last = context.request.headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let services = &context.services;
    let feed = services.agent.follow(caller.organization, task, last).await?;
    let watch = Watch::new(services, feed, caller.organization, caller.key, Form::OpenAi);
    Ok(identified(stream_of(watch), task, None))
}

pub(crate) const CANCEL: Doc = Doc {
    responses: &[
        ResponseDoc::json::<TaskCancelled>(
            200,
            "The task and the executions it was running are cancelled",
        ),
        ResponseDoc::error(404, "Task not found"),
        ResponseDoc::error(409, "The task has already ended"),
    ],
    description: "Cancels the task and the predictions and executions that its tools are running. \
                  A task that has already ended returns 409.",
    ..Doc::new("agent", "cancel_task", "Cancel a task")
};

/// `POST /v1/tasks/{task}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let task = task_of(&context)?;
    let organization = context.caller()?.organization;
    context.services.agent.cancel(organization, task).await?;
    let body = TaskCancelled { task_id: task.to_string(), status: "cancelled" };
    Ok(response::json(StatusCode::OK, &body))
}

const SESSION_QUERY: &[Param] = &[Param {
    is_required: true,
    ..Param::new("session_id", Kind::Text, "The name of the session")
}];

pub(crate) const MEMORY: Doc = Doc {
    query: SESSION_QUERY,
    responses: &[ResponseDoc::json::<Memory<'static>>(
        200,
        "The memory of the session; empty if the session does not exist",
    )],
    description: "Returns the newest 50 exchanges of the session, oldest first, and the summary \
                  that replaces older exchanges in prompts. A session that does not exist returns \
                  200 with an empty history. A session is deleted when it has been idle for \
                  `retention.sessions`.",
    ..Doc::new("sessions", "get_memory", "Get the memory of a session")
};

/// `GET /memory?session_id=`
pub(crate) async fn memory(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let name = session_of(&context)?;
    let memory = context.services.agent.memory(organization, name).await?;
    let history = memory.exchanges.iter().map(|exchange| Exchange {
        timestamp: exchange.at.into(),
        user_prompt: &exchange.prompt,
        chatbot_response: &exchange.response,
        generated_media_urls: &exchange.media,
    });
    let media = memory.exchanges.iter().flat_map(|exchange| &exchange.media);
    let body = Memory {
        session_id: name,
        conversation_history: history.collect(),
        total_exchanges: memory.total,
        summary: memory.summary(),
        generated_media_urls: media.map(String::as_str).collect(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const CLEAR: Doc = Doc {
    query: SESSION_QUERY,
    responses: &[ResponseDoc::json::<Cleared<'static>>(200, "The session's memory is deleted")],
    description: "Deletes the exchanges and the summary of the session. An exchange that is in \
                  progress at that time is not stored. Repeating the request returns 200 with \
                  `cleared: false`.",
    ..Doc::new("sessions", "clear_memory", "Delete the memory of a session")
};

/// `DELETE /memory?session_id=`
pub(crate) async fn clear(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let name = session_of(&context)?;
    let cleared = context.services.agent.clear(organization, name).await?;
    Ok(response::json(StatusCode::OK, &Cleared { cleared, session_id: name }))
}

pub(crate) const SESSIONS: Doc = Doc {
    responses: &[ResponseDoc::json::<Sessions>(200, "The IDs of the sessions")],
    description: "Returns the names of the organization's sessions, at most 10,000.",
    ..Doc::new("sessions", "list_sessions", "List sessions")
};

/// `GET /sessions`
pub(crate) async fn sessions(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let sessions = context.services.agent.sessions(organization).await?;
    Ok(response::json(StatusCode::OK, &Sessions { sessions }))
}

pub(crate) const MODELS: Doc = Doc {
    responses: &[ResponseDoc::json::<Models<'static>>(200, "The agent's model")],
    description: "Returns the agent as the only model, in OpenAI's format, for clients that choose \
                  from a list.",
    ..Doc::new("agent", "list_agent_models", "List the agent's models")
};

/// `GET /v1/models` of the agent's host
pub(crate) async fn models(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let model = Model {
        id: services.agent.model_id(),
        object: "model",
        created: services.started_at.unix_seconds(),
        owned_by: "orrery",
    };
    Ok(response::json(StatusCode::OK, &Models { object: "list", data: [model] }))
}

fn task_of(context: &Context) -> Result<ExecutionId, crate::Error> {
    let missing = |_no_id| crate::Error::not_found("task not found");
    context.request.param("task").parse().map_err(missing)
}

/// Returns the session in the query.
fn session_of(context: &Context) -> Result<&str, crate::Error> {
    let name = context.request.query.get("session_id").unwrap_or_default();
    check_session_name(name)?;
    Ok(name)
}

/// The format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// OpenAI's chunks, which also contain the fields of the agent's event.
    OpenAi,
    Flat,
}

async fn answer(context: Context, form: Form) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let (organization, key) = (caller.organization, caller.key);
    let caller = Caller { organization, key, source: context.source() };
    answer_to(context, caller, form).await
}

async fn answer_to(
    mut context: Context,
    caller: Caller,
    form: Form,
) -> Result<Response, crate::Error> {
    let bytes = context.request.body().await?;
    let session = session_header(&context);
    let request = match form {
        Form::OpenAi => Request::of_completion(read(&bytes)?, session, true)?,
        Form::Flat => Request::of_message(read(&bytes)?, session)?,
    };
    start(context, caller, request, form).await
}

/// Reads a body. Errors have OpenAI's format.
fn read<T: DeserializeOwned + JsonSchema + 'static>(bytes: &[u8]) -> Result<T, crate::Error> {
    Ok(request::read(parse_value(bytes)?).map_err(Mismatch::of_field)?)
}

fn session_header(context: &Context) -> Option<&str> {
    context.request.headers.get(&X_SESSION_ID)?.to_str().ok()
}

/// Handles a chat completion on another host if its model is the agent. `stream` has the same
/// default as in OpenAI's API.
pub(crate) async fn complete(
    context: Context,
    caller: Caller,
    body: &[u8],
) -> Result<Response, crate::Error> {
    let request = Request::of_completion(read(body)?, session_header(&context), false)?;
    start(context, caller, request, Form::OpenAi).await
}

async fn start(
    context: Context,
    caller: Caller,
    request: Request,
    form: Form,
) -> Result<Response, crate::Error> {
    let services = &context.services;
    for url in &request.question.image_urls {
        services
            .egress
            .check_url(url)
            .map_err(|error| crate::Error::bad_request(format!("image_urls {error}")))?;
    }
    let is_stream = request.is_stream;
    let Caller { organization, key, .. } = caller;
    let Started { task, session } =
        services.agent.start(caller, request, |id| context.origin(id)).await?;
    let mut feed = services.agent.follow(organization, task, None).await?;
    if is_stream {
        let watch = Watch::new(services, feed, organization, key, form);
        return Ok(identified(stream_of(watch), task, Some(&session)));
    }
    let mut events: Vec<TaskEvent> = Vec::new();
    while !feed.is_over() {
        tokio::select! {
            news = services.agent.next(&mut feed) => events.extend(news?),
            () = services.engine.stopping() => {
                let message = "the service is shutting down; the task resumes after the restart";
                return Err(crate::Error::unavailable(message));
            }
        }
    }
    let execution = services.engine.get(organization, task).await?;
    let whole = whole(services, &execution, &events, &session, form)?;
    Ok(identified(whole, task, Some(&session)))
}

/// Builds the complete response from the events of a finished exchange.
fn whole(
    services: &Services,
    execution: &Execution,
    events: &[TaskEvent],
    session: &str,
    form: Form,
) -> Result<Response, crate::Error> {
    let of = |kind: &str| {
        let mut all = events.iter().map(|event| &event.data);
        all.rfind(|data| data.get("type").and_then(Value::as_str) == Some(kind))
    };
    let text = |data: &Value, field: &str| {
        data.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    if let Some(error) = of("error") {
        let status = match text(error, "error_code").as_str() {
            "ExecutionTimeout" => StatusCode::GATEWAY_TIMEOUT,
            "Cancelled" => StatusCode::CONFLICT,
            "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_GATEWAY,
        };
        return Err(crate::Error::status(status, text(error, "message")));
    }
    let content = match (of("message"), of("clarification_needed")) {
        (Some(message), _) => text(message, "content"),
        (None, Some(asked)) => text(asked, "question"),
        (None, None) => String::new(),
    };
    let complete = of("complete").cloned().unwrap_or_default();
    let tokens = execution.agent().map(|exchange| exchange.tokens).unwrap_or_default();
    let usage = Usage {
        prompt_tokens: tokens.input,
        completion_tokens: tokens.output,
        total_tokens: tokens.total(),
        cost: execution.cost.dollars(),
    };
    let (task_id, generations) =
        (execution.id.to_string(), complete.get("generations").unwrap_or(&Value::Null));
    Ok(match form {
        Form::OpenAi => {
            let message = Message { role: "assistant", content: &content };
            let body = Completion {
                id: format!("chatcmpl-{task_id}"),
                object: "chat.completion",
                created: execution.created_at.unix_seconds(),
                model: services.agent.model_id(),
                choices: [Choice { index: 0, message, finish_reason: "stop" }],
                usage,
                generations,
                task_id,
                session_id: session,
            };
            response::json(StatusCode::OK, &body)
        }
        Form::Flat => {
            let status = text(&complete, "status");
            let body = Reply {
                message: &content,
                status: &status,
                usage,
                generations,
                task_id,
                session_id: session,
            };
            response::json(StatusCode::OK, &body)
        }
    })
}

fn identified(mut answer: Response, task: ExecutionId, session: Option<&str>) -> Response {
    let headers = answer.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&task.to_string()) {
        headers.insert(X_TASK_ID, id);
    }
    // A session name that is not a valid header value appears only in the body of the response.
    if let Some(Ok(name)) = session.map(HeaderValue::from_str) {
        headers.insert(X_SESSION_ID, name);
    }
    answer
}

/// A client that streams a task's events.
struct Watch {
    services: Arc<Services>,
    feed: Feed,
    form: Form,
    /// Resolves when the client's key is no longer valid.
    over: BoxFuture<'static, ()>,
    is_done: bool,
}

impl Watch {
    fn new(
        services: &Arc<Services>,
        feed: Feed,
        organization: OrganizationId,
        key: orrery_domain::ids::KeyId,
        form: Form,
    ) -> Self {
        let of_key = Arc::clone(services);
        let over = Box::pin(async move {
            if key == NOBODY.into() {
                return std::future::pending().await;
            }
            of_key.accounts.ended(organization, key).await;
        });
        Self { services: Arc::clone(services), feed, form, over, is_done: false }
    }

    /// Returns the next bytes; `None` at the end, or when the client has to reconnect.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let news = tokio::select! {
            news = self.services.agent.next(&mut self.feed) => news.ok()?,
            () = self.services.engine.stopping() => return None,
            () = &mut self.over => return None,
            () = tokio::time::sleep(HEARTBEAT) => return Some(Bytes::from_static(KEEP_ALIVE)),
        };
        let mut text = String::new();
        for TaskEvent { id, data } in news {
            let data = match self.form {
                Form::OpenAi => self.chunk(data),
                Form::Flat => data,
            };
            text.push_str(&format!("id: {id}\ndata: {data}\n\n"));
        }
        let mut bytes = text.into_bytes();
        if self.feed.is_over() {
            self.is_done = true;
            bytes.extend_from_slice(DONE);
        }
        Some(bytes.into())
    }

    /// Converts an event to an OpenAI chunk, with the event's fields at the top level.
    fn chunk(&self, event: Value) -> Value {
        let text = |name: &str| event.get(name).and_then(Value::as_str);
        let content = match text("type") {
            Some("message") => text("content"),
            Some("clarification_needed") => text("question"),
            _ => None,
        };
        let is_last = text("type") == Some("complete");
        let delta = content
            .map_or_else(|| json!({}), |content| json!({"role": "assistant", "content": content}));
        let finish_reason = if is_last { json!("stop") } else { Value::Null };
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", self.feed.task),
            "object": "chat.completion.chunk",
            "created": self.services.clock.now().unix_seconds(),
            "model": self.services.agent.model_id(),
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        });
        if let (Value::Object(chunk), Value::Object(event)) = (&mut chunk, event) {
            for (name, value) in event {
                // Fields of the chunk take precedence over fields of the event, so that `model` is
                // always the agent.
                chunk.entry(name).or_insert(value);
            }
        }
        chunk
    }
}

fn stream_of(watch: Watch) -> Response {
    sse::stream(stream::unfold(watch, |mut watch| async move {
        let piece = watch.next().await?;
        Some((piece, watch))
    }))
}
