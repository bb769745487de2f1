//! Deliveries to webhook endpoints. A delivery is written in the commit whose change it reports.
//! The delivery is sent in addition to the webhook of the request itself.
//!
//! Endpoints are looked up in memory, so for organizations without endpoints, there is no extra
//! cost.

use serde_json::value::{RawValue, to_raw_value};

use crate::{Error, Inner};
use orrery_domain::delivery::{Delivery, Webhook};
use orrery_domain::execution::Execution;
use orrery_domain::ids::DeliveryId;
use orrery_domain::machine::{Effect, is_final};
use orrery_domain::payload::Payload;
use orrery_domain::webhook_endpoint::Event;
use orrery_runtime::new_id;
use orrery_storage::Commit;
use orrery_webhooks as webhooks;
use orrery_wire::webhook_endpoint::{EventBody, Started};

impl Inner {
    /// Whether the announcement is needed because the end of the execution is sent to a webhook.
    pub(crate) fn announces(&self, execution: &Execution, effects: &[Effect]) -> bool {
        effects.contains(&Effect::EnqueueWebhook)
            || (is_final(effects)
                && !self.endpoints.wanting(Event::of_end(execution), execution).is_empty())
    }

    /// Adds the endpoint deliveries for an ended execution to the commit that ends it.
    /// `announcement` is the body of the request's own webhook.
    pub(crate) async fn tell_of_end(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        announcement: &RawValue,
    ) -> Result<Vec<Delivery>, Error> {
        self.tell(commit, execution, Event::of_end(execution), announcement).await
    }

    /// Adds the endpoint deliveries of a new execution to the commit that creates it.
    pub(crate) async fn tell_of_start(
        &self,
        commit: &mut Commit,
        execution: &Execution,
    ) -> Result<Vec<Delivery>, Error> {
        let event = Event::of_start(execution);
        if self.endpoints.wanting(event, execution).is_empty() {
            return Ok(Vec::new());
        }
        let data = to_raw_value(&Started::of(execution));
        let data = data.map_err(|error| orrery_storage::Error::malformed("event", error))?;
        self.tell(commit, execution, event, &data).await
    }

    async fn tell(
        &self,
        commit: &mut Commit,
        execution: &Execution,
        event: Option<Event>,
        data: &RawValue,
    ) -> Result<Vec<Delivery>, Error> {
        let mut deliveries = Vec::new();
        let Some(kind) = event else { return Ok(deliveries) };
        let organization = execution.organization;
        let endpoints = self.endpoints.wanting(event, execution);
        let ids: Vec<DeliveryId> = endpoints.iter().map(|_| new_id()).collect();
        let Some(first) = ids.first().copied() else { return Ok(deliveries) };
        let now = self.clock.now();
        let body = to_raw_value(&EventBody { kind, timestamp: now.into(), data });
        let body = body.map_err(|error| orrery_storage::Error::malformed("event", error))?;
        // All deliveries share the same bytes on disk, which count only once.
        let bodies = self.store.write_payload_for(&ids, body).await?;
        let bytes = bodies.first().map_or(0, Payload::len);
        self.store.record_usage(commit, organization, first, bytes);
        for ((endpoint, id), body) in endpoints.into_iter().zip(ids).zip(bodies) {
            self.store.claim(commit, &body);
            let webhook = Webhook::unsigned(endpoint.url.clone());
            let delivery = Delivery::new(id, organization, execution.id, webhook, body, now)
                .to(endpoint.id, kind)
                .traced(execution.origin.clone());
            webhooks::enqueue(commit, &delivery)?;
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }
}
