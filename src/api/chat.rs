//! The chat router as OpenAI's clients call it (`docs/spec/chat.md`, "Routes"): chat completions,
//! embeddings, and the models that can be called.

use bytes::Bytes;
use futures_util::stream;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};

use super::Context;
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use crate::chat::{Answer, Caller, CatalogModel};
use crate::domain::chat::Operation;
use crate::domain::execution::Source;
use crate::domain::ids::{ExecutionId, KeyId};
use crate::domain::model::Pricing;
use crate::http::{self, Response, body, response};
use crate::wire::chat::{
    self, CompletionRequest, EmbeddingsRequest, Model, ModelCatalog, ModelKind, ModelPricing,
    ModelSource, Upstream,
};

pub const X_EXECUTION_ID: HeaderName = HeaderName::from_static("x-execution-id");

/// The call's row in the history.
pub const EXECUTION: (&str, &str) = ("X-Execution-Id", "The id of the call in the history");

/// What both operations answer when there is no answer. A server's own status is passed on.
macro_rules! failures {
    ($answer:expr) => {
        &[
            ResponseDoc { headers: &[EXECUTION], ..$answer },
            ResponseDoc::error(402, "The balance does not cover what the call may cost"),
            ResponseDoc::error(403, "The model's server refuses the request"),
            ResponseDoc::error(404, "There is no such model"),
            ResponseDoc::error(409, "The model's server reports a conflict"),
            ResponseDoc::error(422, "The model's server refuses the request"),
            ResponseDoc::error(502, "The model's server failed, or its answer makes no sense"),
            ResponseDoc::error(504, "The model did not answer in time"),
        ]
    };
}

pub const COMPLETIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<CompletionRequest>()),
    responses: failures!(ResponseDoc::json_or_events::<chat::Answer>(
        200,
        "The answer; with `stream`, server-sent events that end with `[DONE]`"
    )),
    ..Doc::new("chat", "create_chat_completion", "Complete a conversation")
};

/// `POST /v1/chat/completions`
pub async fn completions(context: Context) -> Result<Response, http::Error> {
    call(context, Operation::Chat).await
}

pub const EMBEDDINGS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<EmbeddingsRequest>()),
    responses: failures!(ResponseDoc::json::<chat::Answer>(200, "The embeddings")),
    ..Doc::new("chat", "create_embeddings", "Embed texts")
};

/// `POST /v1/embeddings`
pub async fn embeddings(context: Context) -> Result<Response, http::Error> {
    call(context, Operation::Embeddings).await
}

async fn call(context: Context, operation: Operation) -> Result<Response, http::Error> {
    let caller = context.caller()?;
    let organization = caller.organization;
    let key = caller.key;
    let caller = Caller { organization, key, source: context.source() };
    answer(context, caller, operation).await
}

pub const CONVERSE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    ..Doc::new("admin", "admin_chat", "Complete a conversation for an organization")
};

/// `POST /admin/chat?organization=`: the call of an operator, which has no key.
pub async fn converse(context: Context) -> Result<Response, http::Error> {
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
) -> Result<Response, http::Error> {
    let body = context.request.body().await?;
    let services = &context.services;
    let lease = services.bodies.lease(&context.request.peer);
    Ok(match services.chat.call(caller, operation, body, lease, |id| context.origin(id)).await? {
        Answer::Whole { execution, body } => {
            identified(execution, response::json_text(StatusCode::OK, body))
        }
        Answer::Stream { execution, pieces } => {
            let pieces = stream::unfold(pieces, |mut pieces| async move {
                let piece: Bytes = pieces.recv().await?;
                Some((Ok(piece), pieces))
            });
            let mut answer = hyper::Response::new(body::stream(pieces));
            let headers = answer.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            // Proxies such as nginx pass the events on as they come.
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            identified(execution, answer)
        }
    })
}

pub fn identified(execution: ExecutionId, mut answer: Response) -> Response {
    if let Ok(id) = HeaderValue::from_str(&execution.to_string()) {
        answer.headers_mut().insert(X_EXECUTION_ID, id);
    }
    answer
}

/// The header by which a failed call is found in the history.
pub fn execution_header(execution: ExecutionId) -> Option<(HeaderName, HeaderValue)> {
    Some((X_EXECUTION_ID, HeaderValue::from_str(&execution.to_string()).ok()?))
}

pub const MODELS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[ResponseDoc::json::<ModelCatalog<'static>>(
        200,
        "Local models, then those that the upstream lists",
    )],
    ..Doc::new("chat", "list_chat_models", "The models that can be called")
};

pub const MODELS_OF: Doc = Doc { tag: "admin", id: "admin_chat_models", ..MODELS };

/// `GET /v1/llm-router/model-catalog`, and for operators `GET /admin/chat/models`
pub async fn models(context: Context) -> Result<Response, http::Error> {
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
        }),
        status: if model.is_failing { "failing" } else { "ok" },
        pricing: model.pricing.as_ref().map(|pricing| priced(pricing, 1.0 + fee)),
    }
}

fn priced(pricing: &Pricing, factor: f64) -> ModelPricing {
    let with_fee = |price: &Option<f64>| price.map(|price| price * factor);
    match pricing {
        Pricing::Fixed { amount } => ModelPricing {
            per_answer: Some(amount.dollars() * factor),
            per_second: None,
            per_million_input_tokens: None,
            per_million_output_tokens: None,
        },
        Pricing::UsageBased {
            per_second,
            per_million_input_tokens,
            per_million_output_tokens,
            ..
        } => ModelPricing {
            per_answer: None,
            per_second: with_fee(per_second),
            per_million_input_tokens: with_fee(per_million_input_tokens),
            per_million_output_tokens: with_fee(per_million_output_tokens),
        },
    }
}
