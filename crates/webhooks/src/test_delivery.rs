//! Test deliveries: sent once on request and never stored. A test delivery waits for one of its
//! receiver's slots like every other delivery, so it cannot exceed the receiver's limit on requests
//! in flight.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::attempt::{self, Context, Report};
use super::dispatcher::Item;
use super::rows::RowIndex;
use orrery_domain::delivery::{self, Attempt, Delivery};

/// Maximum number of test deliveries queued for the loop; further test deliveries are refused.
pub(super) const INBOX_MAX: usize = 64;

/// A requested test delivery. Dropping it refuses the request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) delivery: Delivery,
    pub(super) body: Bytes,
    pub(super) done: oneshot::Sender<Attempt>,
}

impl Job {
    /// Returns the dispatcher's item for the test delivery, which has no row.
    pub(super) fn item(&self) -> Item {
        Item {
            organization: self.delivery.organization,
            execution: self.delivery.row(),
            due: self.delivery.created_at,
            place: RowIndex::Due,
            receiver: Arc::from(delivery::receiver(&self.delivery.webhook.url)),
            carried: None,
        }
    }

    /// Sends the test delivery, unless the caller has disconnected.
    pub(super) async fn run(self, context: &Context) -> Report {
        if self.done.is_closed() {
            return Report::StaleRow;
        }
        let (attempt, health) = attempt::dry_run(context, &self.delivery, self.body).await;
        // The caller may have disconnected by now.
        let _nobody_waits = self.done.send(attempt);
        Report::Made { health, next: None }
    }
}
