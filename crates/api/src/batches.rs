//! Batches: files of requests that are answered in the background (`docs/spec/chat.md`, "Batches").

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::value::RawValue;

use super::doc::{Doc, ErrorForm, Kind, Param, RequestDoc, ResponseDoc};
use super::files::invalid_after;
use super::idempotency_key::{self, Creation};
use super::{Context, Services, responses};
use orrery_batches::{self as batches, Answered, Answering, Answers, LineRecord, New};
use orrery_chat::{self as chat, Caller, Failure, Finished};
use orrery_domain::batch::{self, Endpoint};
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::{BatchId, FileId};
use orrery_engine::{self as engine, EndedCall};
use orrery_http::budget::Lease;
use orrery_http::request::{Peer, busy, reserve_values};
use orrery_http::{self as http, Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire::batch::{List, Request, View};

const LIMIT_DEFAULT: u64 = 20;
const LIMIT_MAX: u64 = 100;

const NO_BATCH: ResponseDoc = ResponseDoc::error(404, "Batch not found");
const BATCH: ResponseDoc = ResponseDoc::json::<View>(200, "The batch with its progress");

pub(crate) const CREATE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<Request>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<View>(200, "The batch, which is durable"),
        ResponseDoc::error(429, "Too many batches are unfinished"),
    ],
    description: "Answers the requests in a file of JSON lines in the background, at most 50,000 \
                  lines and 200 MiB. Each line is answered and charged once, even after a crash, \
                  and yields to live calls. Poll the batch for its progress; when it has ended, \
                  `output_file_id` and `error_file_id` name the files with the results. Lines \
                  that are not answered within 24 hours expire.",
    ..Doc::new("chat", "create_batch", "Create a batch")
};

/// `POST /v1/batches`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let organization = caller.organization;
    let bytes = context.request.body().await?;
    let services = &context.services;
    let claim = match idempotency_key::begin(&context, organization, "batch", &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let id = idempotency_key::created_id(&answered)?;
            return Ok(view(&services.batches.get(organization, id).await?));
        }
    };
    let request: Request = http::request::parse(&bytes)?;
    let input_file: FileId = request.input_file_id.parse().map_err(crate::Error::internal)?;
    let id: BatchId = new_id();
    let new = New {
        id,
        organization,
        key: caller.key,
        source: context.source(),
        endpoint: request.endpoint,
        input_file,
        metadata: request.metadata.unwrap_or_default().0,
    };
    let beside = claim.commit(StoredResponse::created(id))?;
    let batch = services.batches.create(new, beside).await?;
    Ok(response::json(StatusCode::OK, &View::of(&batch, 0, 0)))
}

pub(crate) const GET: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[BATCH, NO_BATCH],
    description: "Returns the batch with its progress. The last 1,000 ended batches of an \
                  organization are kept.",
    ..Doc::new("chat", "get_batch", "Get a batch")
};

/// `GET /v1/batches/{batch}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let batches = &context.services.batches;
    Ok(view(&batches.get(organization, id_of(&context)?).await?))
}

pub(crate) const LIST: Doc = Doc {
    errors: ErrorForm::OpenAi,
    query: &[
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
        Param::new("after", Kind::Text, "The `last_id` of the previous page"),
    ],
    responses: &[ResponseDoc::json::<List>(200, "The batches, newest first")],
    description: "Returns a page of the organization's batches, newest first. Pass `last_id` as \
                  `after` for the next page.",
    ..Doc::new("chat", "list_batches", "List batches")
};

/// `GET /v1/batches?limit=&after=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let query = &context.request.query;
    let limit = query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let after = query.get("after").filter(|after| !after.is_empty());
    let after = after
        .map(|name| batch::parse_name(name).ok_or_else(|| invalid_after("batch")))
        .transpose()?;
    let batches = &context.services.batches;
    let listed = batches.list(organization, after, usize::try_from(limit)?).await?;
    let data: Vec<View> =
        listed.batches.iter().map(|one| View::of(&one.batch, one.completed, one.failed)).collect();
    let body = List {
        object: "list",
        first_id: data.first().map(|first| first.id.clone()),
        last_id: data.last().map(|last| last.id.clone()),
        has_more: listed.has_more,
        data,
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const CANCEL: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[BATCH, NO_BATCH, ResponseDoc::error(409, "The batch has already ended")],
    description: "Cancels the batch: no more lines are started, and those in flight are answered. \
                  The results so far are in the output files. Cancelling a cancelled batch \
                  changes nothing and returns 200.",
    ..Doc::new("chat", "cancel_batch", "Cancel a batch")
};

/// `POST /v1/batches/{batch}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let batches = &context.services.batches;
    Ok(view(&batches.cancel(organization, id_of(&context)?).await?))
}

fn view(progress: &batches::Progress) -> Response {
    let body = View::of(&progress.batch, progress.completed, progress.failed);
    response::json(StatusCode::OK, &body)
}

fn id_of(context: &Context) -> Result<BatchId, crate::Error> {
    batch::parse_name(context.request.param("batch")).ok_or_else(missing)
}

pub(crate) fn missing() -> crate::Error {
    crate::Error::not_found("batch not found")
}

/// Answers the lines of batches through the chat router.
#[derive(Debug, Clone)]
pub struct BatchAnswers(Arc<Services>);

impl BatchAnswers {
    /// Uses the services of a running service.
    #[must_use]
    pub const fn new(services: Arc<Services>) -> Self {
        Self(services)
    }
}

impl Answers for BatchAnswers {
    fn answer(&self, request: batches::Request) -> Answering<'_> {
        Box::pin(async move {
            let batches::Request { organization, key, source, endpoint, body, record } = request;
            let services = &self.0;
            let operation = match endpoint {
                Endpoint::ChatCompletions | Endpoint::Responses => Operation::Chat,
                Endpoint::Embeddings => Operation::Embeddings,
                Endpoint::Completions => Operation::Completions,
            };
            let caller = Caller { organization, key, source };
            // All batches share the memory of bodies as one more client.
            let mut lease = services.bodies.lease(&Peer::Tcp(([0, 0, 0, 0], 0).into()));
            if let Err(error) = reserve(&mut lease, &body) {
                return unread(error).await;
            }
            let (body, line) = match endpoint {
                Endpoint::Responses => {
                    match responses::Line::read(services, organization, &body, &mut lease).await {
                        Ok(line) => (line.body.clone(), Some(line)),
                        Err(error) => return unread(error).await,
                    }
                }
                Endpoint::ChatCompletions | Endpoint::Embeddings | Endpoint::Completions => {
                    (body, None)
                }
            };
            match services.chat.call_behind_others(caller, operation, body, lease.sibling()).await {
                Ok(finished) => self.record(finished, line, &record).await,
                Err(chat::Error::Engine(engine::Error::Stopping)) => Answered::Stopping,
                Err(chat::Error::Engine(engine::Error::Refused(cause))) if !cause.is_passing() => {
                    refused(cause.into()).await
                }
                Err(
                    chat::Error::TokensUsedUp { .. }
                    | chat::Error::TokensReserved { .. }
                    | chat::Error::Engine(_)
                    | chat::Error::Chains(_)
                    | chat::Error::Files(_),
                ) => Answered::Later,
                Err(error) => refused(error.into()).await,
            }
        })
    }
}

impl BatchAnswers {
    /// Records a call in one commit with the answer to its line. A transient failure is recorded
    /// without an answer, unless the line is not tried again.
    async fn record(
        &self,
        finished: Finished,
        line: Option<responses::Line>,
        record: &LineRecord,
    ) -> Answered {
        let Finished { mut ended, answer } = finished;
        let execution = ended.execution.id;
        let (status, body) = match answer {
            Ok(answer) => match line {
                Some(line) => match line.translate(&self.0, execution, answer).await {
                    Ok(response) => (200, response),
                    Err(error) => body_of(error).await,
                },
                None => (200, raw(answer.into())),
            },
            Err(failure) if is_transient(&failure) && !record.is_last_attempt() => {
                return self.settle(ended).await;
            }
            Err(failure) => body_of(chat::Error::Failed { execution, failure }.into()).await,
        };
        match record.writes(status, &execution.to_string(), &body).await {
            Ok(writes) => ended.beside.extend(writes),
            // Nothing is charged, and the line is tried again.
            Err(_unavailable) => return Answered::Later,
        };
        self.settle(ended).await
    }

    async fn settle(&self, ended: EndedCall) -> Answered {
        match self.0.engine.record_call(ended).await {
            Ok(()) => Answered::Called,
            Err(engine::Error::Stopping) => Answered::Stopping,
            Err(_unavailable) => Answered::Later,
        }
    }
}

/// Reserves memory for the body of a line and for its JSON values.
fn reserve(lease: &mut Lease, body: &[u8]) -> Result<(), crate::Error> {
    lease.grow(body.len()).map_err(|_full| busy())?;
    Ok(reserve_values(lease, body)?)
}

/// Returns the answer to a line that cannot be read. A line waits while a budget is exhausted.
async fn unread(error: crate::Error) -> Answered {
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE => Answered::Later,
        _ => refused(error).await,
    }
}

/// Returns the answer to a line that no model is asked for.
async fn refused(error: crate::Error) -> Answered {
    let (status, body) = body_of(error).await;
    Answered::Refused { status, body }
}

/// Returns a text that is JSON.
fn raw(text: Vec<u8>) -> Box<RawValue> {
    let text = String::from_utf8(text).unwrap_or_default();
    RawValue::from_string(text).unwrap_or_else(|_not_json| RawValue::NULL.to_owned())
}

/// Returns the status and the body that an OpenAI client would get.
async fn body_of(error: crate::Error) -> (u16, Box<RawValue>) {
    let (head, body) = error.into_open_ai_response().into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    (head.status.as_u16(), raw(bytes.into()))
}

/// Whether a later attempt may succeed.
fn is_transient(failure: &Failure) -> bool {
    match failure.class {
        ErrorClass::ExecutionTimeout
        | ErrorClass::ProviderError
        | ErrorClass::ProviderRateLimit
        | ErrorClass::ProviderUnavailable
        | ErrorClass::InternalError => failure.status == 429 || failure.status >= 500,
        ErrorClass::ContentModeration
        | ErrorClass::InvalidUserInput
        | ErrorClass::InvalidModelConfig
        | ErrorClass::ProviderAuth
        | ErrorClass::Unknown => false,
    }
}
