//! The receivers of an organization's deliveries, with their circuits. The receivers are read from
//! the index of deliveries and the circuits on the disk, up to a limit; the send loop is not
//! involved.

use std::collections::BTreeMap;

use super::outbox::Outbox;
use super::{Error, rows};
use orrery_domain::delivery::Status;
use orrery_domain::ids::OrganizationId;
use orrery_domain::time::Timestamp;
use orrery_storage::Page;

/// Maximum number of deliveries examined for each status, newest first.
const DELIVERIES_MAX: usize = 2_000;
/// Maximum number of receivers.
const RECEIVERS_MAX: usize = 200;

/// A receiver (scheme, host and port), and the outcomes of its newest deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    pub name: String,
    pub pending: usize,
    pub delivered: usize,
    pub failed: usize,
    /// Creation time of the newest delivery.
    pub newest: Timestamp,
    pub circuit: Option<OpenCircuit>,
}

/// An open circuit: the receiver has failed too many times in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCircuit {
    /// Number of consecutive failures.
    pub failures: u32,
    /// The time at which the next attempt is sent as a probe.
    pub until: Timestamp,
}

impl Outbox {
    /// Returns the receivers of the newest deliveries, most recent first, and whether some
    /// deliveries were not examined.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn receivers(
        &self,
        organization: OrganizationId,
    ) -> Result<(Vec<Receiver>, bool), Error> {
        let store = &self.context.store;
        let mut found: BTreeMap<String, Receiver> = BTreeMap::new();
        let mut is_capped = false;
        for status in [Status::Pending, Status::Failed, Status::Delivered] {
            let prefix = rows::status_rows(organization, status);
            let rows = store.page(Page::of(prefix, DELIVERIES_MAX)).await?;
            is_capped |= rows.len() == DELIVERIES_MAX;
            for (key, name) in rows {
                let Some((created, _)) = rows::created_and_execution(&key) else { continue };
                let Ok(name) = String::from_utf8(name) else { continue };
                if found.len() >= RECEIVERS_MAX && !found.contains_key(&name) {
                    is_capped = true;
                    continue;
                }
                let receiver = found.entry(name.clone()).or_insert_with(|| Receiver {
                    name,
                    pending: 0,
                    delivered: 0,
                    failed: 0,
                    newest: created,
                    circuit: None,
                });
                receiver.newest = receiver.newest.max(created);
                match status {
                    Status::Pending => receiver.pending += 1,
                    Status::Delivered => receiver.delivered += 1,
                    Status::Failed => receiver.failed += 1,
                }
            }
        }
        let mut receivers: Vec<Receiver> = found.into_values().collect();
        for receiver in &mut receivers {
            receiver.circuit = self.circuit(&receiver.name).await?;
        }
        receivers.sort_by_key(|receiver| std::cmp::Reverse(receiver.newest));
        Ok((receivers, is_capped))
    }

    /// Returns the open circuit of a receiver.
    pub(super) async fn circuit(&self, receiver: &str) -> Result<Option<OpenCircuit>, Error> {
        let kept: Option<rows::Circuit> = self.context.store.read(&rows::circuit(receiver)).await?;
        Ok(kept.map(|kept| OpenCircuit { failures: kept.failures, until: kept.open_until }))
    }
}
