//! Webhook endpoints (`docs/spec/webhooks.md`, "Endpoints"): create, update, rotate the secret,
//! test. Only the response that creates a secret contains the secret, so these routes do not store
//! responses for an `Idempotency-Key`.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::value::to_raw_value;

use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::webhooks::headers_of_endpoint;
use super::{Context, Services, body};
use orrery_domain::delivery::{Delivery, Webhook};
use orrery_domain::ids::{EndpointId, WorkflowId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_domain::webhook_endpoint::{Disabled, Endpoint, Event, Reason, Scheme, is_name};
use orrery_http::{Response, response};
use orrery_runtime::new_id;
use orrery_webhooks::EndpointError;
use orrery_wire::delivery::TestDelivery;
use orrery_wire::webhook_endpoint::{
    self as wire, EndpointChange, EndpointFields, EventBody, GRACE_DEFAULT, NewEndpoint, Rotate,
    Test, WithSecret,
};

const NO_ENDPOINT: ResponseDoc = ResponseDoc::error(404, "Endpoint not found");

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewEndpoint>()),
    responses: &[
        ResponseDoc::json::<WithSecret>(201, "The endpoint, with its secret"),
        ResponseDoc::error(409, "There are too many endpoints, or the name is taken"),
    ],
    description: "Creates an endpoint that is notified of all of the organization's predictions \
                  and workflows, or of those that `events`, `models` and `workflow_ids` select. \
                  The `secret` is shown in this response only, so `Idempotency-Key` is not \
                  supported. An organization has at most 50 endpoints; one more, or a name that is \
                  in use, returns 409.",
    ..Doc::new("webhooks", "create_webhook_endpoint", "Create a webhook endpoint")
};

/// `POST /v1/webhook-endpoints`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let NewEndpoint { url, fields } = context.request.json().await?;
    let change = Change::read(Some(url), fields, &context.services)?;
    create_with(&context, &change).await
}

async fn create_with(context: &Context, change: &Change) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let services = &context.services;
    let now = services.clock.now();
    if change.url.is_none() {
        return Err(crate::Error::bad_request("url is required"));
    }
    let mut endpoint = Endpoint {
        id: new_id(),
        organization,
        name: None,
        url: String::new(),
        events: Vec::new(),
        models: Vec::new(),
        workflows: Vec::new(),
        scheme: change.scheme.unwrap_or_default(),
        secret: String::new(),
        send_plain_secret: false,
        public_key: None,
        replaced: None,
        disabled: None,
        failing_since: None,
        created_at: now,
        updated_at: now,
    };
    change.check_scheme(endpoint.scheme)?;
    change.apply(&mut endpoint, now);
    let endpoints = services.outbox.endpoints().by(context.actor());
    let (endpoint, secret) = endpoints.create(endpoint).await?;
    let body = WithSecret { endpoint: wire::Endpoint::of(&endpoint), secret };
    Ok(response::json(StatusCode::CREATED, &body))
}

pub(crate) const LIST: Doc = Doc {
    responses: &[ResponseDoc::json::<wire::Endpoints>(200, "The endpoints, oldest first")],
    description: "Returns all endpoints of the organization without their secrets, oldest first.",
    ..Doc::new("webhooks", "list_webhook_endpoints", "List webhook endpoints")
};

/// `GET /v1/webhook-endpoints`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let endpoints = context.services.outbox.endpoints().list(context.organization()?).await?;
    let webhook_endpoints = endpoints.iter().map(wire::Endpoint::of).collect();
    Ok(response::json(StatusCode::OK, &wire::Endpoints { webhook_endpoints }))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<wire::Endpoint>(200, "The endpoint"), NO_ENDPOINT],
    description: "Returns the endpoint without its secret. An endpoint with the signature `v1a` \
                  shows its `public_key`.",
    ..Doc::new("webhooks", "get_webhook_endpoint", "Get a webhook endpoint")
};

/// `GET /v1/webhook-endpoints/{endpoint}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let found = find(&context).await?;
    Ok(response::json(StatusCode::OK, &wire::Endpoint::of(&found)))
}

pub(crate) const CHANGE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<EndpointChange>()),
    responses: &[
        ResponseDoc::json::<wire::Endpoint>(200, "The updated endpoint"),
        NO_ENDPOINT,
        ResponseDoc::error(409, "The name is taken"),
    ],
    description: "Changes the given fields; omitted fields keep their values, and an empty `name` \
                  removes the name. The signature scheme cannot be changed. `disabled: false` also \
                  enables an endpoint that was disabled after failures. Deliveries that are \
                  already waiting keep their URL.",
    ..Doc::new("webhooks", "change_webhook_endpoint", "Update a webhook endpoint")
};

/// `PUT /v1/webhook-endpoints/{endpoint}`: omitted fields keep their values.
pub(crate) async fn change(mut context: Context) -> Result<Response, crate::Error> {
    let found = find(&context).await?;
    let EndpointChange { url, fields } = context.request.json().await?;
    let services = &context.services;
    let change = Change::read(url, fields, services)?;
    if change.scheme.is_some_and(|scheme| scheme != found.scheme) {
        let message = "signature cannot be changed; make another endpoint";
        return Err(crate::Error::bad_request(message));
    }
    change.check_scheme(found.scheme)?;
    let now = services.clock.now();
    let endpoints = services.outbox.endpoints().by(context.actor());
    let apply = |endpoint: &mut Endpoint| change.apply(endpoint, now);
    let changed = endpoints.change(found.organization, found.id, apply).await?;
    Ok(response::json(StatusCode::OK, &wire::Endpoint::of(&changed)))
}

pub(crate) const PUT_NAMED: Doc = Doc {
    request: Some(RequestDoc::optional_json::<EndpointChange>()),
    responses: &[
        ResponseDoc::json::<wire::Endpoint>(200, "The endpoint existed"),
        ResponseDoc::json::<WithSecret>(
            201,
            "The endpoint was created; the response has its secret",
        ),
        ResponseDoc::error(
            409,
            "There are too many endpoints, or the endpoint has another signature scheme",
        ),
    ],
    description: "Creates the endpoint with this name, or changes the given fields of an existing \
                  one. Repeating the request changes nothing. Only the 201 response contains the \
                  secret. If the existing endpoint has another signature scheme, the response is \
                  409.",
    ..Doc::new("webhooks", "put_webhook_endpoint", "Create or update a webhook endpoint")
};

/// `PUT /admin/v1/organizations/{organization}/webhook-endpoints/{name}`: a request with identical
/// fields changes nothing.
pub(crate) async fn put_named(mut context: Context) -> Result<Response, crate::Error> {
    let EndpointChange { url, fields } = context.request.json().await?;
    let services = &context.services;
    let mut change = Change::read(url, fields, services)?;
    let name = context.request.param("name");
    if !is_name(name) {
        return Err(EndpointError::InvalidName.into());
    }
    change.name = Some(Some(name.to_owned()));
    let Some(found) = find_named(&context).await? else {
        return create_with(&context, &change).await;
    };
    if change.scheme.is_some_and(|scheme| scheme != found.scheme) {
        return Err(crate::Error::conflict(
            "signature cannot be changed: delete the endpoint first",
        ));
    }
    change.check_scheme(found.scheme)?;
    let now = services.clock.now();
    let mut wanted = found.clone();
    change.apply(&mut wanted, now);
    if wanted == found {
        return Ok(response::json(StatusCode::OK, &wire::Endpoint::of(&found)));
    }
    let endpoints = services.outbox.endpoints().by(context.actor());
    let apply = |endpoint: &mut Endpoint| change.apply(endpoint, now);
    let changed = endpoints.change(found.organization, found.id, apply).await?;
    Ok(response::json(StatusCode::OK, &wire::Endpoint::of(&changed)))
}

pub(crate) const DELETE_NAMED: Doc = Doc {
    id: "delete_named_webhook_endpoint",
    summary: "Delete a webhook endpoint by name",
    description: "Deletes the endpoint with this name. The endpoint's waiting deliveries fail \
                  without being sent.",
    ..DELETE
};

/// `DELETE /admin/v1/organizations/{organization}/webhook-endpoints/{name}`
pub(crate) async fn delete_named(context: Context) -> Result<Response, crate::Error> {
    let found = find_named(&context).await?.ok_or(EndpointError::NotFound)?;
    let endpoints = context.services.outbox.endpoints().by(context.actor());
    endpoints.delete(found.organization, found.id).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the endpoint with the name in the path; names are unique.
async fn find_named(context: &Context) -> Result<Option<Endpoint>, crate::Error> {
    let name = context.request.param("name");
    let all = context.services.outbox.endpoints().list(context.organization()?).await?;
    Ok(all.into_iter().find(|one| one.name.as_deref() == Some(name)))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[
        ResponseDoc::empty(204, "The endpoint is deleted; its pending deliveries fail"),
        NO_ENDPOINT,
    ],
    description: "Deletes the endpoint. The endpoint's waiting deliveries fail without being sent, \
                  and its history remains.",
    ..Doc::new("webhooks", "delete_webhook_endpoint", "Delete a webhook endpoint")
};

/// `DELETE /v1/webhook-endpoints/{endpoint}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let endpoints = context.services.outbox.endpoints().by(context.actor());
    endpoints.delete(organization, id_of(&context)?).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const ROTATE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<Rotate>()),
    responses: &[
        ResponseDoc::json::<WithSecret>(200, "The endpoint, with its new secret"),
        NO_ENDPOINT,
    ],
    description: "Replaces the secret and returns the new one, which is not shown again. For \
                  `grace_seconds` (a day by default), deliveries carry two signatures, one with \
                  the new and one with the previous secret, so that receivers can be changed \
                  without a gap.",
    ..Doc::new("webhooks", "rotate_webhook_endpoint", "Rotate the secret of a webhook endpoint")
};

/// `POST /v1/webhook-endpoints/{endpoint}/rotate`
pub(crate) async fn rotate(mut context: Context) -> Result<Response, crate::Error> {
    let Rotate { grace_seconds } = context.request.json().await?;
    let grace = grace_seconds.unwrap_or(GRACE_DEFAULT);
    let organization = context.organization()?;
    let id = id_of(&context)?;
    let endpoints = context.services.outbox.endpoints().by(context.actor());
    let (endpoint, secret) = endpoints.rotate(organization, id, Duration::from_secs(grace)).await?;
    let body = WithSecret { endpoint: wire::Endpoint::of(&endpoint), secret };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const TEST: Doc = Doc {
    responses: &[ResponseDoc::json::<TestDelivery>(200, "The receiver's response"), NO_ENDPOINT],
    description: "Sends an `endpoint.test` event to the endpoint and returns the receiver's \
                  response, whatever its status. Nothing is stored or retried.",
    ..Doc::new("webhooks", "test_webhook_endpoint", "Send a test event to a webhook endpoint")
};

/// `POST /v1/webhook-endpoints/{endpoint}/test`: sends one test event and returns the receiver's
/// response.
pub(crate) async fn test(context: Context) -> Result<Response, crate::Error> {
    let endpoint = find(&context).await?;
    let services = &context.services;
    let now = services.clock.now();
    let data = Test { message: "This is a test event: nothing was run." };
    let data = to_raw_value(&data).map_err(crate::Error::internal)?;
    let sample = EventBody { kind: Event::EndpointTest, timestamp: now.into(), data: &data };
    let sample = serde_json::to_string(&sample).map_err(crate::Error::internal)?;
    let webhook = Webhook::unsigned(endpoint.url.clone());
    let nothing = Payload::nothing();
    let delivery = Delivery::new(new_id(), endpoint.organization, new_id(), webhook, nothing, now)
        .to(endpoint.id, Event::EndpointTest);
    let headers = headers_of_endpoint(&delivery.id.to_string(), endpoint.send_plain_secret);
    let trial = services.outbox.try_out(delivery, sample).await?;
    let body = TestDelivery::new(endpoint.url, &trial.attempt, trial.body, headers);
    Ok(response::json(StatusCode::OK, &body))
}

fn id_of(context: &Context) -> Result<EndpointId, crate::Error> {
    let id = context.request.param("endpoint").parse();
    id.map_err(|_no_id| EndpointError::NotFound.into())
}

async fn find(context: &Context) -> Result<Endpoint, crate::Error> {
    let id = id_of(context)?;
    Ok(context.services.outbox.endpoints().find(context.organization()?, id).await?)
}

/// The validated fields of a body.
#[derive(Debug, Default)]
struct Change {
    url: Option<String>,
    /// `Some(None)` removes the name.
    name: Option<Option<String>>,
    events: Option<Vec<Event>>,
    models: Option<Vec<String>>,
    workflows: Option<Vec<WorkflowId>>,
    scheme: Option<Scheme>,
    send_plain_secret: Option<bool>,
    disabled: Option<bool>,
}

impl Change {
    fn read(
        url: Option<String>,
        fields: EndpointFields,
        services: &Services,
    ) -> Result<Self, crate::Error> {
        let EndpointFields {
            name,
            events,
            models,
            workflow_ids,
            signature,
            send_plain_secret,
            disabled,
        } = fields;
        Ok(Self {
            url: body::webhook_url("url", url, services)?,
            name: name.map(|name| Some(name).filter(|name| !name.is_empty())),
            events: events.map(distinct),
            models: models.map(body::distinct),
            workflows: workflow_ids.map(distinct),
            scheme: signature,
            send_plain_secret,
            disabled,
        })
    }

    /// Rejects `send_plain_secret` for a scheme whose secret is a private key.
    fn check_scheme(&self, scheme: Scheme) -> Result<(), crate::Error> {
        if self.send_plain_secret == Some(true) && scheme == Scheme::V1a {
            return Err(crate::Error::bad_request(
                "send_plain_secret is not possible with the signature v1a, whose secret is a private \
                 key: receivers verify the signature with `public_key`",
            ));
        }
        Ok(())
    }

    fn apply(&self, endpoint: &mut Endpoint, now: Timestamp) {
        let Self { url, name, events, models, workflows, scheme: _, send_plain_secret, disabled } =
            self;
        endpoint.send_plain_secret = send_plain_secret.unwrap_or(endpoint.send_plain_secret);
        endpoint.url = url.clone().unwrap_or_else(|| std::mem::take(&mut endpoint.url));
        endpoint.name = name.clone().unwrap_or_else(|| endpoint.name.take());
        endpoint.events = events.clone().unwrap_or_else(|| std::mem::take(&mut endpoint.events));
        endpoint.models = models.clone().unwrap_or_else(|| std::mem::take(&mut endpoint.models));
        endpoint.workflows =
            workflows.clone().unwrap_or_else(|| std::mem::take(&mut endpoint.workflows));
        match disabled {
            Some(true) if endpoint.disabled.is_none() => {
                endpoint.disabled = Some(Disabled { at: now, reason: Reason::Request });
            }
            Some(false) => endpoint.disabled = None,
            Some(true) | None => {}
        }
    }
}

/// Returns the items without duplicates, in order.
fn distinct<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut distinct = Vec::with_capacity(items.len());
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
