//! The chat router's routes for OpenAI clients (`docs/spec/chat.md`, "Routes"): chat and text
//! completions, embeddings, rerank, and the list of models.

use std::borrow::Cow;

use bytes::Bytes;
use futures_util::stream;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_chat::{self as router, Answer, Beside, CacheOutcome, Caller, CatalogModel, Extras};
use orrery_domain::chat::Operation;
use orrery_domain::execution::Source;
use orrery_domain::ids::{ExecutionId, KeyId};
use orrery_domain::model::Pricing;
use orrery_http::error::OpenAi;
use orrery_http::{Response, response, sse};
use orrery_wire::chat::{
    self, CompletionRequest, EmbeddingsRequest, Model, ModelCatalog, ModelKind, ModelPricing,
    ModelSource, Models, Upstream,
};
use orrery_wire::completions::{
    CompletionRequest as TextRequest, RerankAnswer, RerankRequest, TextStreamEvent,
};

pub(crate) const X_EXECUTION_ID: HeaderName = HeaderName::from_static("x-execution-id");

/// The header with the call's ID in the history.
pub(crate) const EXECUTION: (&str, &str) = ("X-Execution-Id", "The ID of the call in the history");

pub(crate) const X_ORRERY_CACHE: HeaderName = HeaderName::from_static("x-orrery-cache");

/// The header with the outcome of the lookup in the result cache.
pub(crate) const CACHE: (&str, &str) = (
    "X-Orrery-Cache",
    "`hit` if the result comes from the model's result cache, `miss` if it is new; absent if the \
     model has no cache or the request is not repeatable",
);

/// The error responses for router calls. The status of an error from a model's server is forwarded.
macro_rules! failures {
    ($answer:expr) => {
        &[
            ResponseDoc { headers: &[EXECUTION, $crate::chat::CACHE], ..$answer },
            ResponseDoc::error(402, "Insufficient balance"),
            ResponseDoc::error(403, "The model's server denied the request"),
            ResponseDoc::error(404, "Model not found"),
            ResponseDoc::error(409, "The model's server reported a conflict"),
            ResponseDoc::error(422, "The model's server rejected the request"),
            ResponseDoc::error(502, "The model's server failed, or returned an invalid answer"),
            ResponseDoc::error(504, "The model timed out"),
        ]
    };
}
pub(crate) use failures;

pub(crate) const COMPLETIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CompletionRequest>()),
    responses: failures!(ResponseDoc::json_or_events::<chat::Answer, chat::StreamEvent>(
        200,
        "The answer; with `stream`, server-sent events that end with `[DONE]`"
    )),
    description: "Answers a conversation in OpenAI's format with a local chat model, the agent or \
                  a model of the upstream; `GET /v1/llm-router/model-catalog` lists them. Unknown \
                  fields are passed on to the model. With `stream`, the response is a stream of \
                  chunks that ends with `[DONE]`. The cost is in `usage.cost`. The call is not \
                  repeated by the service once a model has received it; if a local model fails \
                  before its answer begins, its fallback chain is tried. Errors have OpenAI's \
                  format.",
    ..Doc::new("chat", "create_chat_completion", "Create a chat completion")
};

/// `POST /v1/chat/completions`
pub(crate) async fn completions(context: Context) -> Result<Response, crate::Error> {
    call(context, Operation::Chat).await
}

pub(crate) const EMBEDDINGS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<EmbeddingsRequest>()),
    responses: failures!(ResponseDoc::json::<chat::Answer>(200, "The embeddings")),
    description: "Computes the embeddings of one or several texts in OpenAI's format, with a local \
                  model of the kind `embeddings` or a model of the upstream. Other fields are \
                  passed on to the model. The cost is in `usage.cost`. Errors have OpenAI's \
                  format.",
    ..Doc::new("chat", "create_embeddings", "Create embeddings")
};

/// `POST /v1/embeddings`
pub(crate) async fn embeddings(context: Context) -> Result<Response, crate::Error> {
    call(context, Operation::Embeddings).await
}

pub(crate) const TEXT_COMPLETIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<TextRequest>()),
    responses: failures!(ResponseDoc::json_or_events::<chat::Answer, TextStreamEvent>(
        200,
        "The completions; with `stream`, server-sent events that end with `[DONE]`"
    )),
    description: "Continues one or several texts in OpenAI's format, with a local model of the \
                  kind `completions`, a model of the runner `llm`, or a model of the upstream. \
                  Unknown fields are passed on to the model. With `stream`, the response is a \
                  stream of chunks that ends with `[DONE]`. The cost is in `usage.cost`. Errors \
                  have OpenAI's format.",
    ..Doc::new("chat", "create_completion", "Create a text completion")
};

/// `POST /v1/completions`
pub(crate) async fn text_completions(context: Context) -> Result<Response, crate::Error> {
    call(context, Operation::Completions).await
}

pub(crate) const RERANK: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<RerankRequest>()),
    responses: failures!(ResponseDoc::json::<RerankAnswer>(200, "The results")),
    description: "Sorts documents by their relevance to a query, with a local model of the kind \
                  `rerank` or a model of the upstream. The most relevant document is first. Other \
                  fields are passed on to the model. The cost is in `usage.cost`. Errors have \
                  OpenAI's format.",
    ..Doc::new("chat", "rerank", "Sort documents by relevance")
};

pub(crate) const RERANK_ALIAS: Doc = Doc {
    id: "rerank_alias",
    summary: "Sort documents by relevance, without a version",
    description: "Does the same as `POST /v1/rerank`, for clients that omit `/v1`.",
    ..RERANK
};

/// `POST /v1/rerank` and `POST /rerank`
pub(crate) async fn rerank(context: Context) -> Result<Response, crate::Error> {
    call(context, Operation::Rerank).await
}

async fn call(context: Context, operation: Operation) -> Result<Response, crate::Error> {
    let caller = caller_of(&context)?;
    answer(context, caller, operation).await
}

/// Returns the caller whose key authorizes the request.
///
/// # Errors
/// The errors of [`Context::caller`].
pub(crate) fn caller_of(context: &Context) -> Result<Caller, crate::Error> {
    let caller = context.caller()?;
    let (organization, key) = (caller.organization, caller.key);
    Ok(Caller { organization, key, source: context.source() })
}

pub(crate) const CONVERSE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    ..Doc::new("admin", "admin_chat", "Create a chat completion for an organization")
};

/// `POST /admin/chat?organization=`: a call by the operator, who has no API key.
pub(crate) async fn converse(context: Context) -> Result<Response, crate::Error> {
    let accounts = &context.services.accounts;
    let name = context.request.query.get("organization");
    let organization = accounts.organization_or_default(name).await?.id;
    let caller = Caller { organization, key: KeyId::from([0; 16]), source: Source::Api };
    answer(context, caller, Operation::Chat).await
}

async fn answer(
    mut context: Context,
    caller: Caller,
    operation: Operation,
) -> Result<Response, crate::Error> {
    let body = context.request.body().await?;
    respond(context, caller, operation, body).await
}

/// Answers the request in `body`, which has OpenAI's format.
pub(crate) async fn respond(
    context: Context,
    caller: Caller,
    operation: Operation,
    body: Bytes,
) -> Result<Response, crate::Error> {
    respond_beside(context, caller, operation, body, None).await
}

/// Responds like [`respond`], and passes `beside` to the chat router. The agent ignores `beside`.
pub(crate) async fn respond_beside(
    context: Context,
    caller: Caller,
    operation: Operation,
    body: Bytes,
    beside: Option<Beside>,
) -> Result<Response, crate::Error> {
    if operation == Operation::Chat && is_of_agent(&context.services, &body) {
        return super::agent::complete(context, caller, &body).await;
    }
    let services = &context.services;
    let lease = services.bodies.lease(&context.request.peer);
    let asked = |id| context.origin(id);
    let extras = Extras { beside, skips_cache: context.skips_cache() };
    Ok(match services.chat.call(caller, operation, body, lease, extras, asked).await? {
        Answer::Whole { execution, cache, body } => {
            let answer = identified(execution, response::json_text(StatusCode::OK, body));
            with_cache(cache, answer)
        }
        Answer::Stream { execution, cache, pieces } => {
            let pieces = stream::unfold(pieces, |mut pieces| async move {
                let piece: Bytes = pieces.recv().await?;
                Some((piece, pieces))
            });
            with_cache(cache, identified(execution, sse::stream(pieces)))
        }
    })
}

/// Adds the header with the outcome of the lookup in the result cache, if there was one.
pub(crate) fn with_cache(outcome: Option<CacheOutcome>, mut answer: Response) -> Response {
    let value = match outcome {
        Some(CacheOutcome::Hit) => "hit",
        Some(CacheOutcome::Miss) => "miss",
        None => return answer,
    };
    answer.headers_mut().insert(X_ORRERY_CACHE, HeaderValue::from_static(value));
    answer
}

/// Returns whether a request's model is the agent.
fn is_of_agent(services: &Services, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: Cow<'a, str>,
    }
    let named = serde_json::from_slice::<Named<'_>>(body);
    named.is_ok_and(|named| is_agent(services, &named.model))
}

/// Returns whether this ID is the agent's. A catalog model with the same name takes precedence.
pub(crate) fn is_agent(services: &Services, id: &str) -> bool {
    id == services.agent.model_id() && services.catalog.get(id).is_none()
}

pub(crate) fn identified(execution: ExecutionId, mut answer: Response) -> Response {
    if let Ok(id) = HeaderValue::from_str(&execution.to_string()) {
        answer.headers_mut().insert(X_EXECUTION_ID, id);
    }
    answer
}

/// Returns the header with a failed call's ID in the history.
pub(crate) fn execution_header(execution: ExecutionId) -> Option<(HeaderName, HeaderValue)> {
    Some((X_EXECUTION_ID, HeaderValue::from_str(&execution.to_string()).ok()?))
}

pub(crate) const MODELS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[ResponseDoc::json::<ModelCatalog<'static>>(
        200,
        "Local models, then the models of the upstream",
    )],
    description: "Returns the local models that chat completions, embeddings, text completions, \
                  rerank, audio or images can call, then those of the upstream, with their prices, \
                  which include the platform fee. While the upstream does not answer, its last list is returned, and `upstream.stale` is true.",
    ..Doc::new("chat", "list_chat_models", "List callable models")
};

pub(crate) const MODELS_OF: Doc = Doc { tag: "admin", id: "admin_chat_models", ..MODELS };

/// `GET /v1/llm-router/model-catalog`, and for operators `GET /admin/chat/models`
pub(crate) async fn models(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let catalog = services.chat.models().await;
    let fee = services.chat.fee();
    let upstream = catalog.upstream.as_ref().map(|list| Upstream {
        stale: list.error.is_some(),
        fetched_at: list.fetched_at.map(Into::into),
        error: list.error.as_deref(),
    });
    let data = catalog.models.iter().map(|model| shown(model, fee)).collect();
    let body = ModelCatalog { object: "list", data, upstream };
    Ok(response::json(StatusCode::OK, &body))
}

/// Lists the models that OpenAI clients can call, in OpenAI's format.
pub(crate) async fn list_callable(context: &Context) -> Response {
    let services = &context.services;
    let catalog = services.chat.models().await;
    let data = callable(services, &catalog);
    response::json(StatusCode::OK, &Models { object: "list", data })
}

/// Returns one of the models that OpenAI clients can call.
///
/// # Errors
/// 404 with the reason, in OpenAI's format.
pub(crate) async fn find_callable(context: &Context, id: &str) -> Result<Response, crate::Error> {
    let services = &context.services;
    let catalog = services.chat.models().await;
    if let Some(model) = callable(services, &catalog).into_iter().find(|model| model.id == id) {
        return Ok(response::json(StatusCode::OK, &model));
    }
    let late = catalog.upstream.as_ref().and_then(|list| list.error.as_deref());
    let error: crate::Error = match (services.chat.bind(id), late) {
        (Ok(_), Some(reason)) => {
            let message = format!("the upstream may have the model '{id}', but {reason}");
            crate::Error::unavailable(message)
        }
        (Ok(_), None) => crate::Error::not_found(format!("the upstream lists no model '{id}'")),
        (Err(error), _) => error.into(),
    };
    if error.status.is_server_error() {
        return Ok(error.into_open_ai_response());
    }
    let open_ai = OpenAi {
        kind: None,
        param: Some("model".to_owned()),
        code: Some("model_not_found".to_owned()),
    };
    Ok(crate::Error::not_found(error.message.as_str())
        .with_open_ai(open_ai)
        .into_open_ai_response())
}

/// Returns the catalog and upstream models that OpenAI clients can call, and the agent.
pub(crate) fn callable<'a>(
    services: &'a Services,
    catalog: &'a router::ModelCatalog,
) -> Vec<Model<'a>> {
    let fee = services.chat.fee();
    let mut models: Vec<Model<'a>> = catalog.models.iter().map(|model| shown(model, fee)).collect();
    let id = services.agent.model_id();
    if services.agent.has_model() && models.iter().all(|model| model.id != id) {
        let local = catalog.models.iter().filter(|model| !model.is_upstream).count();
        models.insert(local, agent_of(services));
    }
    models
}

fn agent_of(services: &Services) -> Model<'_> {
    Model {
        id: services.agent.model_id(),
        object: "model",
        created: services.started_at.unix_seconds(),
        owned_by: "orrery",
        source: ModelSource::Local,
        kind: Some(ModelKind::Chat),
        context_length: None,
        status: "ok",
        pricing: None,
    }
}

fn shown(model: &CatalogModel, fee: f64) -> Model<'_> {
    Model {
        id: &model.id,
        object: "model",
        created: model.created.unwrap_or(0),
        owned_by: if model.is_upstream {
            model.owned_by.as_deref().unwrap_or("upstream")
        } else {
            "orrery"
        },
        source: if model.is_upstream { ModelSource::Upstream } else { ModelSource::Local },
        kind: model.operation.map(|operation| match operation {
            Operation::Chat => ModelKind::Chat,
            Operation::Embeddings => ModelKind::Embeddings,
            Operation::Completions => ModelKind::Completions,
            Operation::Rerank => ModelKind::Rerank,
            Operation::Transcriptions | Operation::Translations => ModelKind::Transcriptions,
            Operation::Speech => ModelKind::Speech,
            Operation::Images | Operation::ImageEdits => ModelKind::Images,
        }),
        context_length: model.context,
        status: if model.is_failing { "failing" } else { "ok" },
        pricing: model.pricing.as_ref().map(|pricing| priced(pricing, 1.0 + fee)),
    }
}

fn priced(pricing: &Pricing, factor: f64) -> ModelPricing {
    let with_fee = |price: Option<f64>| price.map(|price| price * factor);
    match pricing {
        Pricing::Fixed { amount } => {
            ModelPricing { per_answer: Some(amount.dollars() * factor), ..ModelPricing::default() }
        }
        Pricing::UsageBased { rates, .. } => ModelPricing {
            per_answer: None,
            per_second: with_fee(rates.per_second),
            per_million_input_tokens: with_fee(rates.per_million_input_tokens),
            per_million_output_tokens: with_fee(rates.per_million_output_tokens),
            per_million_cached_input_tokens: with_fee(rates.per_million_cached_input_tokens),
            per_million_reasoning_tokens: with_fee(rates.per_million_reasoning_tokens),
            per_audio_minute: with_fee(rates.per_audio_minute),
            per_million_characters: with_fee(rates.per_million_characters),
            per_image: with_fee(rates.per_image),
        },
    }
}
