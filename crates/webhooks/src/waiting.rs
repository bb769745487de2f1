//! Counts the waiting deliveries by reason, from the indexes on the disk, up to a limit. Counting a
//! backlog of a million deliveries therefore costs no more than counting a few thousand.

use super::outbox::Outbox;
use super::{Error, rows};
use orrery_domain::delivery::Status;
use orrery_domain::ids::OrganizationId;
use orrery_storage::{Key, Page, Table};

/// Maximum number of rows counted for each reason.
const COUNTED_MAX: usize = 1000;

/// The numbers of unfinished deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Due deliveries: in flight, or waiting for a free slot of their receiver.
    pub due: usize,
    /// Deliveries that wait for their next attempt.
    pub retrying: usize,
    /// Deliveries that are parked because their receiver fails or has no free slot.
    pub parked: usize,
    /// Whether the limit was reached for any reason, so that there may be more deliveries.
    pub is_capped: bool,
}

impl Outbox {
    /// Returns the number of the organization's unfinished deliveries.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn pending(&self, organization: OrganizationId) -> Result<u64, Error> {
        let count = rows::status_count(organization, Status::Pending);
        Ok(u64::try_from(self.context.store.counter(&count).await?).unwrap_or(0))
    }

    /// Returns the numbers of waiting deliveries.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn waiting(&self) -> Result<Waiting, Error> {
        let store = &self.context.store;
        let now = Key::table(Table::Due).time(self.context.clock.steady());
        let page = |table, after, before| Page {
            after,
            before,
            ..Page::of(Key::table(table), COUNTED_MAX)
        };
        let due = store.page(page(Table::Due, None, Some(now.clone()))).await?.len();
        let retrying = store.page(page(Table::Due, Some(now), None)).await?.len();
        let parked = store.page(page(Table::Parked, None, None)).await?.len();
        let is_capped = [due, retrying, parked].contains(&COUNTED_MAX);
        Ok(Waiting { due, retrying, parked, is_capped })
    }
}
