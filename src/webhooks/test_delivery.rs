//! Test deliveries: sent once on request and never stored. They wait for a slot of their receiver
//! like every other delivery, so that they cannot open more connections to it than those may.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::attempt::{self, Context, Report};
use super::dispatcher::Item;
use super::rows::RowIndex;
use crate::domain::delivery::{self, Attempt, Delivery};

/// Test deliveries between those who ask for them and the loop; one more is refused.
pub(super) const INBOX_MAX: usize = 64;

/// A test delivery that was asked for. Dropping it says that it was refused.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) delivery: Delivery,
    pub(super) body: Bytes,
    pub(super) done: oneshot::Sender<Attempt>,
}

impl Job {
    /// As the dispatcher knows it. It has no row.
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

    /// Sends it, unless nobody waits for the answer any more.
    pub(super) async fn run(self, context: &Context) -> Report {
        if self.done.is_closed() {
            return Report::StaleRow;
        }
        let (attempt, health) = attempt::dry_run(context, &self.delivery, self.body).await;
        // The caller may have hung up by now.
        let _nobody_waits = self.done.send(attempt);
        Report::Made { health, next: None }
    }
}
