//! Stored responses: reading, following and deleting them, and the items of their input.

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{TAG, background};
use crate::Context;
use crate::doc::{Doc, ErrorForm, Kind, Param, ResponseDoc};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::{Response, response};
use orrery_responses::{self as responses, Found};
use orrery_wire::responses::answer::{Deleted, ItemList, Response as Answer};
use orrery_wire::responses::event::Event;

/// Maximum and default number of items in a page.
const ITEMS_MAX: u64 = 100;
const ITEMS_DEFAULT: u64 = 20;

const NO_RESPONSE: ResponseDoc =
    ResponseDoc::error(404, "The organization has no such response, or it is no longer stored");

pub(crate) const GET: Doc = Doc {
    errors: ErrorForm::OpenAi,
    query: &[
        Param::new(
            "stream",
            Kind::OneOf(|| vec!["true", "false"]),
            "Whether to stream the response",
        ),
        Param::new(
            "starting_after",
            Kind::Whole { min: 0, max: u32::MAX as u64, default: 0 },
            "With `stream`, the number of the last event that the client has",
        ),
    ],
    responses: &[
        ResponseDoc::json_or_events::<Answer, Event>(200, "The response, or its events"),
        NO_RESPONSE,
    ],
    description: "Returns a stored response. With `stream`, returns it as server-sent events, in \
                  which each part is one piece, so that the numbers of the events are the same each \
                  time; `starting_after` skips those that the client has. The stream of a response in \
                  the background waits for its end.",
    ..Doc::new(TAG, "get_response", "Get a response")
};

/// `GET /v1/responses/{id}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let is_stream = query.get("stream") == Some("true");
    let after = query.get("starting_after").is_some();
    let after =
        if after { Some(query.number("starting_after", 0..=u32::MAX.into(), 0)?) } else { None };
    let (organization, id) = named_id(&context)?;
    let services = &context.services;
    if !is_stream {
        let found = services.background.find(organization, id).await?;
        let response = found.ok_or_else(|| missing(&context))?;
        return Ok(response::json_text(StatusCode::OK, Bytes::from(response.get().to_owned())));
    }
    let skipped = after.and_then(|after| usize::try_from(after).ok()).map_or(0, |after| after + 1);
    background::follow(&context.services, organization, id, skipped)
        .await?
        .ok_or_else(|| missing(&context))
}

async fn find(context: &Context) -> Result<Found, crate::Error> {
    let (organization, id) = named_id(context)?;
    let found = context.services.responses.find(organization, id).await?;
    found.ok_or_else(|| missing(context))
}

/// Returns the response in the path.
pub(super) fn named_id(context: &Context) -> Result<(OrganizationId, ExecutionId), crate::Error> {
    let id = responses::id_of(context.request.param("id")).ok_or_else(|| missing(context))?;
    Ok((context.caller()?.organization, id))
}

pub(super) fn missing(context: &Context) -> crate::Error {
    let id = context.request.param("id");
    crate::Error::not_found(format!("there is no stored response '{id}'"))
}

pub(crate) const DELETE: Doc = Doc {
    errors: ErrorForm::OpenAi,
    responses: &[ResponseDoc::json::<Deleted>(200, "The response is deleted"), NO_RESPONSE],
    description: "Deletes a stored response, and cancels it if it has not ended. Responses that continue it can no longer be \
                  continued themselves.",
    ..Doc::new(TAG, "delete_response", "Delete a response")
};

/// `DELETE /v1/responses/{id}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let (organization, id) = named_id(&context)?;
    let services = &context.services;
    let found = services.responses.find(organization, id).await?;
    if found.is_some_and(|found| found.is_open) {
        services.background.cancel(organization, id).await?;
    }
    if !services.responses.delete(organization, id).await? {
        return Err(missing(&context));
    }
    let id = responses::shown(id);
    Ok(response::json(StatusCode::OK, &Deleted { id, object: "response", deleted: true }))
}

pub(crate) const INPUT_ITEMS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    query: &[
        Param::limit(ITEMS_MAX, ITEMS_DEFAULT),
        Param::new(
            "order",
            Kind::OneOf(|| vec!["asc", "desc"]),
            "The order of the items: `desc`, the default, returns the last one first",
        ),
        Param::new("after", Kind::Text, "The ID of the item after which the page begins"),
        Param::new("before", Kind::Text, "The ID of the item before which the page ends"),
    ],
    responses: &[ResponseDoc::json::<ItemList<'static>>(200, "A page of items"), NO_RESPONSE],
    description: "Returns the items of a stored response's own input, without those of the \
                  responses that it continues.",
    ..Doc::new(TAG, "list_response_input_items", "List the input items of a response")
};

/// `GET /v1/responses/{id}/input_items`
pub(crate) async fn input_items(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let limit = query.number("limit", 1..=ITEMS_MAX, ITEMS_DEFAULT)?;
    let limit = usize::try_from(limit).map_err(crate::Error::internal)?;
    let is_oldest_first = query.get("order") == Some("asc");
    let (after, before) = (query.get("after"), query.get("before"));
    let Found { input, .. } = find(&context).await?;
    let mut items: Vec<(String, Box<RawValue>)> = named(&input)?;
    if !is_oldest_first {
        items.reverse();
    }
    let place = |name: &str, id: &str| {
        let place = items.iter().position(|(other, _)| other == id);
        place.ok_or_else(|| {
            crate::Error::bad_request(format!("{name} '{id}' is not an item of the input"))
        })
    };
    let start = match after {
        Some(id) => place("after", id)? + 1,
        None => 0,
    };
    let end = match before {
        Some(id) => place("before", id)?,
        None => items.len(),
    };
    let page = items.get(start..end).unwrap_or_default();
    let shown = page.get(..limit.min(page.len())).unwrap_or_default();
    let list = ItemList {
        object: "list",
        data: shown.iter().map(|(_, item)| &**item).collect(),
        first_id: shown.first().map(|(id, _)| id.as_str()),
        last_id: shown.last().map(|(id, _)| id.as_str()),
        has_more: shown.len() < page.len(),
    };
    Ok(response::json(StatusCode::OK, &list))
}

/// Returns items with their IDs.
fn named(input: &RawValue) -> Result<Vec<(String, Box<RawValue>)>, crate::Error> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    let items: Vec<Box<RawValue>> =
        serde_json::from_str(input.get()).map_err(crate::Error::internal)?;
    let name = |item: Box<RawValue>| {
        let Named { id } = serde_json::from_str(item.get())?;
        Ok((id, item))
    };
    items
        .into_iter()
        .map(name)
        .collect::<Result<_, _>>()
        .map_err(|error: serde_json::Error| crate::Error::internal(error))
}
