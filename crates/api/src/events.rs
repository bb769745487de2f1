//! Event streams. The events of a prediction (`docs/spec/predictions.md`, "Events") are `status`,
//! `log`, `output`, and `end` with the prediction as `GET /v1/prediction/{id}` returns it. The
//! events of a workflow execution (`docs/spec/workflows.md`, "Events of an execution") are
//! `status`, `step`, `wait`, `pause`, `resume`, and `end` with the detail.
//!
//! Each event has an ID, from which a client can resume after a lost connection. If the client
//! cannot resume, because the service has restarted or the client has missed too many events, the
//! stream starts from the beginning with a `reset` event.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use hyper::StatusCode;

use super::context::Grant;
use super::doc::{Doc, ResponseDoc};
use super::predictions;
use super::{Context, Services};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_engine::{Follower, NewEvents};
use orrery_http::sse::{self, Event};
use orrery_http::{Response, response};
use orrery_wire as wire;

/// The last part of the final event's ID.
pub(crate) const END: &str = "end";

pub(crate) const FOLLOW: Doc = Doc {
    responses: &[
        ResponseDoc::events::<wire::event::OfPrediction>(
            200,
            "Server-sent events: `status`, `log`, `output`, `reset`, and finally `end` with the \
             prediction. Resumable with `Last-Event-ID`",
        ),
        ResponseDoc::empty(204, "The client has already received `end`"),
        ResponseDoc::error(404, "Prediction not found"),
    ],
    description: "Streams the events of a prediction from its beginning as they occur; `end`, with \
                  the whole prediction, is the last one. Each event has an `id`: to resume a \
                  broken stream, send the last one in `Last-Event-ID`. A `reset` event asks the \
                  client to discard all earlier events, because some are no longer available. \
                  After `end` has been received, the response is 204.",
    ..Doc::new("predictions", "follow_prediction", "Stream the events of a prediction")
};

/// `GET /v1/prediction/{id}/events`
pub(crate) async fn follow(context: Context) -> Result<Response, crate::Error> {
    let id = predictions::id_of(&context)?;
    let grant = context.grant()?;
    let organization = grant.organization;
    let services = &context.services;
    let follower = services.engine.follow(organization, id).await;
    let follower = follower.map_err(predictions::not_found)?;
    stream(&context, grant, id, follower)
}

pub(crate) const FOLLOW_EXECUTION: Doc = Doc {
    responses: &[
        ResponseDoc::events::<wire::event::OfExecution>(
            200,
            "Server-sent events: `status`, `step`, `wait`, `pause`, `resume`, `reset`, and finally `end` with the \
             detail. Resumable with `Last-Event-ID`",
        ),
        ResponseDoc::empty(204, "The client has already received `end`"),
        ResponseDoc::error(404, "Execution not found"),
    ],
    description: "Streams the events of a workflow execution from its beginning as they occur; \
                  `end`, with the detail of the execution, is the last one. Outputs of more than 8 \
                  KiB are omitted from their events. To resume a broken stream, send the last `id` \
                  in `Last-Event-ID`; if that is not possible, a `reset` event precedes the \
                  current state of the steps. After `end` has been received, the response is 204.",
    ..Doc::new("executions", "follow_execution", "Stream the events of a workflow execution")
};

/// `GET /executions/{execution}/events`
pub(crate) async fn follow_execution(context: Context) -> Result<Response, crate::Error> {
    let missing = |_no_id| crate::Error::not_found("execution not found");
    let id: ExecutionId = context.request.param("execution").parse().map_err(missing)?;
    let grant = context.grant()?;
    let follower = context.services.engine.follow_execution(grant.organization, id).await?;
    stream(&context, grant, id, follower)
}

fn stream(
    context: &Context,
    grant: Grant,
    id: ExecutionId,
    follower: Follower,
) -> Result<Response, crate::Error> {
    let Some(watch) = Watch::resume(context, grant, id, follower) else {
        // The client has received all events. This status tells browsers not to reconnect.
        return Ok(response::empty(StatusCode::NO_CONTENT));
    };
    let events = futures_util::stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        let (events, ended) = watch.next().await?;
        Some((events, (!ended).then_some(watch)))
    });
    Ok(sse::response(events))
}

/// Resolves when the request is no longer authorized: its key is deleted or has expired, its link
/// has expired, or its session has ended.
pub(crate) async fn over(services: Arc<Services>, grant: Grant) {
    let expiry = async {
        let Some(until) = grant.until else { return std::future::pending().await };
        tokio::time::sleep(until.since(services.clock.now())).await;
    };
    let session = async {
        let Some(visit) = &grant.visit else { return std::future::pending().await };
        services.members.ended(visit).await;
    };
    tokio::select! {
        () = services.accounts.ended(grant.organization, grant.key) => {}
        () = expiry => {}
        () = session => {}
    }
}

/// A client that streams the events of an execution.
pub(crate) struct Watch {
    pub(crate) services: Arc<Services>,
    pub(crate) organization: OrganizationId,
    pub(crate) id: ExecutionId,
    pub(crate) follower: Follower,
    over: BoxFuture<'static, ()>,
    /// The number of the last event that was read.
    pub(crate) seen: u64,
    /// Whether the ID of the client's last event does not belong to this stream.
    lost: bool,
}

impl Watch {
    /// Starts after the event in `Last-Event-ID`, or at the beginning. Returns `None` if that event
    /// was the last one.
    pub(crate) fn resume(
        context: &Context,
        grant: Grant,
        id: ExecutionId,
        follower: Follower,
    ) -> Option<Self> {
        let organization = grant.organization;
        let services = Arc::clone(&context.services);
        let headers = &context.request.headers;
        let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
        let last = last.and_then(|id| id.rsplit_once('-'));
        if last.is_some_and(|(_, number)| number == END) {
            return None;
        }
        let seen = last
            .filter(|(epoch, _)| *epoch == follower.epoch())
            .and_then(|(_, number)| number.parse().ok());
        let lost = last.is_some() && seen.is_none();
        let over = Box::pin(over(Arc::clone(&services), grant));
        let seen = seen.unwrap_or(0);
        Some(Self { services, organization, id, follower, over, seen, lost })
    }

    /// Waits for events after `seen`, which the caller advances. Returns `None` when the service
    /// stops or the authorization ends.
    pub(crate) async fn news(&mut self) -> Option<NewEvents> {
        tokio::select! {
            () = self.follower.changed(self.seen) => {}
            () = self.services.engine.stopping() => return None,
            () = &mut self.over => return None,
        }
        Some(self.follower.events_since(self.seen))
    }

    /// Returns the next events, and whether these events are the last. Returns `None` when the
    /// service stops, the authorization ends, or the prediction cannot be read; in these cases, the
    /// client reconnects.
    async fn next(&mut self) -> Option<(Vec<Event>, bool)> {
        let news = self.news().await?;
        let mut events = Vec::with_capacity(news.events.len() + 1);
        if std::mem::take(&mut self.lost) || news.has_gap {
            let reset = wire::event::Event::Reset {};
            events.push(self.event(reset.name(), &self.seen.to_string(), reset.data()));
        }
        for event in &news.events {
            events.push(self.event(event.name, &event.number.to_string(), event.data.clone()));
            self.seen = event.number;
        }
        if news.ended {
            let data = detail(Arc::clone(&self.services), self.organization, self.id).await?;
            events.push(self.event("end", END, data));
        }
        Some((events, news.ended))
    }

    pub(crate) fn event(&self, name: &'static str, number: &str, data: String) -> Event {
        Event { id: format!("{}-{number}", self.follower.epoch()), name, data }
    }
}

/// Returns the detail of the ended prediction or execution.
async fn detail(
    services: Arc<Services>,
    organization: OrganizationId,
    id: ExecutionId,
) -> Option<String> {
    let execution = services.engine.get(organization, id).await.ok()?;
    if execution.workflow().is_some() {
        let detail = services.engine.detail(organization, id).await.ok()?;
        return serde_json::to_string(&detail.view).ok();
    }
    predictions::detail(&services, &execution).await.ok()
}
