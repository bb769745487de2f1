//! Counts the waiting deliveries by reason in the indexes on the disk, up to a limit, so that the
//! cost is the same for a backlog of a million as for one of a few thousand.

use super::outbox::Outbox;
use super::{Error, rows};
use orrery_domain::delivery::Status;
use orrery_domain::ids::OrganizationId;
use orrery_storage::{Key, Page, Table};

/// Maximum rows counted of each kind.
const COUNTED_MAX: usize = 1000;

/// Numbers of unfinished deliveries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Due: in flight, or waiting for a free slot of their receiver.
    pub due: usize,
    /// Waiting for their next attempt.
    pub retrying: usize,
    /// Parked because their receiver fails or has no free slot.
    pub parked: usize,
    /// There are more of one kind than are counted.
    pub is_capped: bool,
}

impl Outbox {
    /// The number of the organization's unfinished deliveries.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn pending(&self, organization: OrganizationId) -> Result<u64, Error> {
        let count = rows::status_count(organization, Status::Pending);
        Ok(u64::try_from(self.context.store.counter(&count).await?).unwrap_or(0))
    }

    /// The numbers of waiting deliveries.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn waiting(&self) -> Result<Waiting, Error> {
        let store = &self.context.store;
        let now = Key::table(Table::Due).time(self.context.clock.steady());
        let page = |table, after, before| Page {
            prefix: Key::table(table),
            after,
            before,
            limit: COUNTED_MAX,
        };
        let due = store.page(page(Table::Due, None, Some(now.clone()))).await?.len();
        let retrying = store.page(page(Table::Due, Some(now), None)).await?.len();
        let parked = store.page(page(Table::Parked, None, None)).await?.len();
        let is_capped = [due, retrying, parked].contains(&COUNTED_MAX);
        Ok(Waiting { due, retrying, parked, is_capped })
    }
}
