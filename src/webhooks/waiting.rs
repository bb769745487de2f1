//! How many deliveries wait, and for what: counted in the indexes on the disk, up to a bound, so that a look
//! costs as much with a backlog of a million as with one of a few thousand.

use super::outbox::Outbox;
use super::{Error, rows};
use crate::domain::delivery::Status;
use crate::domain::ids::OrganizationId;
use crate::storage::{Key, Page, Table};

/// Rows of each kind that are counted.
const COUNTED_MAX: usize = 1000;

/// Deliveries that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Due: in flight, or waiting for a free slot of their receiver.
    pub due: usize,
    /// Waiting for the time of their next attempt.
    pub retrying: usize,
    /// Held back, since their receiver fails or has no free slot.
    pub parked: usize,
    /// There are more of one kind than are counted.
    pub is_capped: bool,
}

impl Outbox {
    /// The organization's deliveries that have not ended.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn pending(&self, organization: OrganizationId) -> Result<u64, Error> {
        let count = rows::status_count(organization, Status::Pending);
        Ok(u64::try_from(self.context.store.counter(&count).await?).unwrap_or(0))
    }

    /// The deliveries that wait now.
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
