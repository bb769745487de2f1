//! Decisions (`docs/spec/decisions.md`, "Route"): typed questions about one state.

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};

use super::Context;
use super::chat::{EXECUTION, identified};
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use orrery_chat::Caller;
use orrery_chat::decisions::Decided;
use orrery_domain::execution::Source;
use orrery_domain::ids::KeyId;
use orrery_http::{Response, response};
use orrery_wire::decision::{Decisions, Request, Usage};

/// The header with the method that was used to answer the questions.
const METHOD: HeaderName = HeaderName::from_static("x-decision-method");

pub(crate) const DECIDE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<Request>()),
    responses: &[
        ResponseDoc {
            headers: &[
                EXECUTION,
                (
                    "X-Decision-Method",
                    "`logprobs`, or `votes` if at least one question was answered by \
                     sampling",
                ),
            ],
            ..ResponseDoc::json::<Decisions>(200, "The answers to all questions")
        },
        ResponseDoc::error(402, "Insufficient balance"),
        ResponseDoc::error(403, "The model's server denied the request"),
        ResponseDoc::error(404, "Model not found"),
        ResponseDoc::error(409, "The model's server reported a conflict"),
        ResponseDoc::error(422, "The model's server rejected the request"),
        ResponseDoc::error(502, "A question could not be answered; nothing is charged"),
        ResponseDoc::error(504, "The model timed out"),
    ],
    description: "Answers up to 256 typed questions about a text or a JSON value with \
                  probabilities that a chat model assigns to the options. All questions are \
                  answered, or the request fails and costs nothing. An unknown field at any depth \
                  returns 400 with its path. The route is in alpha and may change. \
                  `X-Decision-Method` is `logprobs` or `votes`. Errors have OpenAI's format.",
    ..Doc::new("decisions", "decide", "Answer typed questions about a state")
};

/// `POST /v1/decisions`
pub(crate) async fn decide(context: Context) -> Result<Response, crate::Error> {
    let caller = context.caller()?;
    let organization = caller.organization;
    let key = caller.key;
    let caller = Caller { organization, key, source: context.source() };
    answer(context, caller).await
}

pub(crate) const DECIDE_FOR: Doc = Doc {
    errors: ErrorForm::Plain,
    ..Doc::new("admin", "admin_decide", "Answer typed questions for an organization")
};

/// `POST /admin/decisions?organization=`: the organization is charged, and the history row has no
/// key.
pub(crate) async fn decide_for(context: Context) -> Result<Response, crate::Error> {
    let named = context.request.query.get("organization");
    let organization = context.services.accounts.organization_or_default(named).await?;
    let nobody = KeyId::from([0; 16]);
    let caller = Caller { organization: organization.id, key: nobody, source: Source::Api };
    answer(context, caller).await
}

async fn answer(mut context: Context, caller: Caller) -> Result<Response, crate::Error> {
    let body = context.request.body().await?;
    let services = &context.services;
    let lease = services.bodies.lease(&context.request.peer);
    let origin = |id| context.origin(id);
    let decided = services.decisions.decide(caller, body, lease, origin).await?;
    let Decided { execution, method, answers, used } = decided;
    let usage = Usage {
        input_tokens: used.tokens.input,
        output_tokens: used.tokens.output,
        cost: used.cost.dollars(),
    };
    let mut answer = response::json(StatusCode::OK, &Decisions { answers, usage });
    answer.headers_mut().insert(METHOD, HeaderValue::from_static(method.as_str()));
    Ok(identified(execution, answer))
}
