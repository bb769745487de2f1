//! Models: the public catalog, and the models that OpenAI's and Anthropic's clients can call.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::doc::{Doc, ErrorForm, Kind, OFFSET, Param, ResponseDoc};
use super::{Context, chat, messages};
use orrery_catalog as catalog;
use orrery_http::{Response, response};
use orrery_wire::model::{Detail, List, Model};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 500;
const X_TOTAL_COUNT: HeaderName = HeaderName::from_static("x-total-count");

/// The header with the number of models.
const TOTAL: (&str, &str) = ("X-Total-Count", "The total number of matching models");

/// The formats of the list and of a single model.
const FORMATS: [&str; 3] = ["catalog", "openai", "anthropic"];
const FORMAT: Param = Param::new(
    "format",
    Kind::OneOf(|| FORMATS.to_vec()),
    "The format. `openai` and `anthropic` list the models that such clients can call, and require a key. Defaults to \
     `anthropic` for a request with the header `anthropic-version`, else to `openai` for a key in `Authorization: \
     Bearer`, else to `catalog`",
);
/// The header of Anthropic's clients.
pub(crate) const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// A format of the list and of a single model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Catalog,
    OpenAi,
    Anthropic,
}

/// The cursors that Anthropic's clients send. This list has a single page.
const AFTER_ID: Param = Param::new("after_id", Kind::Text, CURSOR_IGNORED);
const BEFORE_ID: Param = Param::new("before_id", Kind::Text, CURSOR_IGNORED);
const CURSOR_IGNORED: &str = "Ignored: the list of `anthropic` has one page";

/// The values of `group` for the catalog's list.
const MODELS: &str = "models";
const UTILITIES: &str = "utilities";

/// Returns the format that the request asks for.
fn format_of(context: &Context) -> Result<Format, crate::Error> {
    if context.form == ErrorForm::OpenAiOnly {
        return Ok(Format::OpenAi);
    }
    let format = match context.request.query.get("format") {
        None if context.request.headers.contains_key(ANTHROPIC_VERSION) => Format::Anthropic,
        None if context.is_by_bearer() => Format::OpenAi,
        None | Some("catalog") => Format::Catalog,
        Some("openai") => Format::OpenAi,
        Some("anthropic") => Format::Anthropic,
        Some(_) => {
            let message = format!("format must be one of {}", FORMATS.join(", "));
            return Err(crate::Error::bad_request(message));
        }
    };
    if format != Format::Catalog {
        context.caller()?;
    }
    Ok(format)
}

pub(crate) const LIST: Doc = Doc {
    query: &[
        FORMAT,
        Param::new("name", Kind::Text, "A part of the slug or the title, case-insensitive"),
        Param::new(
            "group",
            Kind::OneOf(|| vec![MODELS, UTILITIES]),
            "`utilities` for the built-in tools for texts, JSON and images, `models` for all others. Defaults to both",
        ),
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
        OFFSET,
        AFTER_ID,
        BEFORE_ID,
    ],
    responses: &[ResponseDoc {
        headers: &[TOTAL],
        ..ResponseDoc::json::<List<'static>>(
            200,
            "The models, then the utilities, each sorted by slug",
        )
    }],
    description: "Returns the models of the catalog as a bare array, a page at a time; \
                  `X-Total-Count` is the number of matches. Needs no key. With a key in \
                  `Authorization: Bearer`, or with `format=openai`, the response is instead \
                  OpenAI's list of the models that its clients can call, without pages. With the \
                  header `anthropic-version`, it is Anthropic's list of the models that can \
                  converse.",
    ..Doc::new("models", "list_models", "List models")
};

/// `GET /v1/models?name=&limit=&offset=&format=`: a bare array with the total in `X-Total-Count`,
/// or OpenAI's or Anthropic's list, which have no pages.
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    match format_of(&context)? {
        Format::OpenAi => return Ok(chat::list_callable(&context).await),
        Format::Anthropic => return Ok(messages::list_callable(&context).await),
        Format::Catalog => {}
    }
    let query = &context.request.query;
    let limit = usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?;
    let offset = usize::try_from(query.number("offset", 0..=u64::from(u32::MAX), 0)?)?;
    let name = query.get("name").unwrap_or_default().to_lowercase();
    let wants_utilities = match query.get("group") {
        None => None,
        Some(group @ (MODELS | UTILITIES)) => Some(group == UTILITIES),
        Some(_) => {
            let message = format!("group must be one of {MODELS}, {UTILITIES}");
            return Err(crate::Error::bad_request(message));
        }
    };
    let matches = |model: &Arc<catalog::Model>| {
        wants_utilities.is_none_or(|wanted| model.is_utility() == wanted)
            && (model.slug.as_str().to_lowercase().contains(&name)
                || model.title.to_lowercase().contains(&name))
    };
    let all = context.services.catalog.list_for_people();
    let found: Vec<_> = all.into_iter().filter(matches).collect();
    let page: Vec<_> =
        found.iter().skip(offset).take(limit).map(|model| catalog::detail(model)).collect();
    let mut answer = response::json(StatusCode::OK, &page);
    answer.headers_mut().insert(X_TOTAL_COUNT, HeaderValue::from(found.len()));
    Ok(answer)
}

pub(crate) const GET: Doc = Doc {
    query: &[FORMAT],
    responses: &[
        ResponseDoc::json::<Detail<'static>>(200, "The model"),
        ResponseDoc::any_error(404, "Model not found"),
        ResponseDoc::any_error(503, "The upstream's list of models cannot be read"),
    ],
    description: "Returns a model with the JSON Schema of its input and its estimated cost. Needs \
                  no key. A key in `Authorization: Bearer`, or `format=openai`, selects OpenAI's \
                  format, which exists only for models that OpenAI's clients can call; the header \
                  `anthropic-version`, or `format=anthropic`, selects Anthropic's. An unknown slug \
                  returns 404.",
    ..Doc::new("models", "get_model", "Get a model")
};

/// `GET /v1/models/{slug}?format=`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let slug = context.request.param("slug");
    match format_of(&context)? {
        Format::OpenAi => return chat::find_callable(&context, slug).await,
        Format::Anthropic => return Ok(messages::find_callable(&context, slug).await),
        Format::Catalog => {}
    }
    let model = find(&context, slug)?;
    Ok(response::json_text(StatusCode::OK, catalog::detail_json(&model)))
}

pub(crate) const GET_BY_QUERY: Doc = Doc {
    is_deprecated: true,
    query: &[Param {
        is_required: true,
        ..Param::new("slug", Kind::Text, "The slug of the model")
    }],
    responses: &[
        ResponseDoc {
            headers: &[("Deprecation", "`true`"), ("Link", "The route that replaces this one")],
            ..ResponseDoc::json::<Model<'static>>(200, "The model")
        },
        ResponseDoc::error(404, "Model not found"),
    ],
    description: "Returns the same as `GET /v1/models/{slug}` in the format of the catalog. \
                  Deprecated: the `Link` header names the replacement.",
    ..Doc::new("models", "get_model_by_query", "Get a model by query parameter")
};

/// `GET /v1/model?slug=`, deprecated.
pub(crate) async fn get_by_query(context: Context) -> Result<Response, crate::Error> {
    let slug = context.request.query.get("slug").filter(|slug| !slug.is_empty());
    let slug = slug.ok_or_else(|| crate::Error::bad_request("slug parameter is required"))?;
    let model = find(&context, slug)?;
    let mut answer = response::json_text(StatusCode::OK, catalog::detail_json(&model));
    let headers = answer.headers_mut();
    headers.insert("deprecation", HeaderValue::from_static("true"));
    let link = format!("</v1/models/{}>; rel=\"successor-version\"", model.slug);
    if let Ok(link) = HeaderValue::from_str(&link) {
        headers.insert(hyper::header::LINK, link);
    }
    Ok(answer)
}

pub(crate) const OPENAPI: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Map<String, Value>>(200, "An OpenAPI 3.0 document"),
        ResponseDoc::error(404, "Model not found"),
    ],
    description: "Returns an OpenAPI 3.0.3 document with one path, `/v1/prediction/`, whose body \
                  permits only this model. `components.schemas.Input` is the request schema in the \
                  vocabulary of OpenAPI 3.0. Needs no key.",
    ..Doc::new(
        "models",
        "get_model_openapi",
        "Get a model's request schema as an OpenAPI 3.0 document",
    )
};

/// `GET /v1/models/{slug}/schemas/openapi`
pub(crate) async fn openapi(context: Context) -> Result<Response, crate::Error> {
    let model = find(&context, context.request.param("slug"))?;
    Ok(response::json(StatusCode::OK, &catalog::openapi(&model)))
}

pub(crate) fn find(context: &Context, slug: &str) -> Result<Arc<catalog::Model>, crate::Error> {
    let catalog = &context.services.catalog;
    catalog.get(slug).ok_or_else(|| not_found(catalog, slug))
}

/// Returns the error for an unknown slug, with the exact text of the specification. The details
/// contain a similar slug, if any.
pub(crate) fn not_found(catalog: &catalog::Catalog, slug: &str) -> crate::Error {
    let error = crate::Error::not_found("Failed to fetch model: model not found").bare();
    error.with_near(catalog.nearest(slug))
}
