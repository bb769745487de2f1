//! What the outbox does on the disk beside attempts: finds what is due, parks what waits for a
//! receiver, reads it back, keeps circuits.
//!
//! One chore runs at a time, so that each sees what the one before wrote. Every read is a page of
//! bounded size.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::attempt::Context;
use super::outbox::Outbox;
use super::roster::{CircuitChange, Item, MAX_RECEIVERS, Name};
use super::rows::{self, Circuit, Due, Place};
use crate::domain::delivery::{Attempt, Status};
use crate::domain::time::Timestamp;
use crate::storage::record::decode;
use crate::storage::{self, Commit, Key, Page, Row, Store, Table};

/// Rows of the due index in one page.
const PAGE_ROWS: usize = 512;
/// Receivers looked at in one sweep chore.
const SWEPT_RECEIVERS: usize = 64;
/// Deliveries given up in one chore.
const GIVEN_UP_ROWS: usize = 128;
/// A delivery that waited for its receiver's circuit for so long is given up: without an end, a
/// dead receiver's deliveries would be pending forever.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(72 * 3600);

/// A piece of work on the disk.
#[derive(Debug)]
pub(super) enum Chore {
    /// Read the circuits that were open when the process ended.
    ReadCircuits,
    /// Read the next page of the due index behind this key.
    Scan { after: Option<Key> },
    /// Move rows from the due index to their receivers' parked ones.
    Park(Vec<Item>),
    /// Read a receiver's oldest parked rows.
    Feed { receiver: Name, limit: usize },
    /// Write or delete circuits.
    KeepCircuits(Vec<CircuitChange>),
    /// Look which receivers have parked rows, from behind this key on.
    Sweep { after: Option<Key> },
    /// Fail deliveries that waited too long.
    GiveUp(Vec<Item>),
}

/// What a chore found or did.
#[derive(Debug)]
pub(super) enum Done {
    Circuits(Vec<(Name, Circuit)>),
    Scanned(Scanned),
    Parked(Vec<Item>),
    Fed { receiver: Name, items: Vec<Item>, complete: bool },
    KeptCircuits,
    Swept(Swept),
    GivenUp(Vec<Item>),
}

/// A page of the due index.
#[derive(Debug)]
pub(super) struct Scanned {
    /// What is due, oldest first.
    pub(super) items: Vec<Item>,
    /// Whether nothing due stands behind them.
    pub(super) ended: bool,
    /// When the first row that is not due yet will be.
    pub(super) next_due: Option<Timestamp>,
}

/// Receivers with parked rows.
#[derive(Debug)]
pub(super) struct Swept {
    pub(super) found: Vec<Found>,
    /// Where to go on; `None` when all were seen.
    pub(super) after: Option<Key>,
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) receiver: Name,
    pub(super) oldest: Timestamp,
    pub(super) circuit: Option<Circuit>,
    /// Its oldest deliveries, where they have waited longer than [`LONGEST_WAIT`].
    pub(super) overdue: Vec<Item>,
}

/// A chore that failed, and what it had in hand.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) chore: Chore,
    pub(super) error: Error,
}

/// Does one chore.
///
/// # Errors
/// [`Failed`] when the store cannot be read or written; nothing was changed then.
pub(super) async fn run(context: &Context, chore: Chore, now: Timestamp) -> Result<Done, Failed> {
    let store = &context.store;
    let done = match &chore {
        Chore::ReadCircuits => read_circuits(store).await.map(Done::Circuits),
        Chore::Scan { after } => scan(store, after.clone(), now).await.map(Done::Scanned),
        Chore::Feed { receiver, limit } => feed(store, receiver, *limit).await,
        Chore::KeepCircuits(changes) => keep_circuits(store, changes).await,
        Chore::Sweep { after } => {
            // A clock that jumps ahead must not fail what waits for its receiver.
            let believed = context.clock.believed();
            sweep(store, after.clone(), believed).await.map(Done::Swept)
        }
        Chore::Park(items) => park(store, items).await.map(|()| Done::Parked(Vec::new())),
        Chore::GiveUp(items) => {
            give_up(store, items, now).await.map(|()| Done::GivenUp(Vec::new()))
        }
    };
    match (done, chore) {
        (Ok(Done::Parked(_)), Chore::Park(items)) => Ok(Done::Parked(items)),
        (Ok(Done::GivenUp(_)), Chore::GiveUp(items)) => Ok(Done::GivenUp(items)),
        (Ok(done), _) => Ok(done),
        (Err(error), chore) => Err(Failed { chore, error }),
    }
}

async fn read_circuits(store: &Store) -> Result<Vec<(Name, Circuit)>, Error> {
    let prefix = Key::table(Table::Circuit);
    // Half of what memory can hold: the other half is for receivers that work.
    let page = Page { prefix, after: None, before: None, limit: MAX_RECEIVERS / 2 };
    let mut circuits = Vec::new();
    for (key, bytes) in store.page(page).await? {
        if let (Some(receiver), Ok(circuit)) = (rows::receiver_of_circuit(&key), decode(&bytes)) {
            circuits.push((Arc::from(receiver), circuit));
        }
    }
    Ok(circuits)
}

async fn scan(store: &Store, after: Option<Key>, now: Timestamp) -> Result<Scanned, Error> {
    let prefix = Key::table(Table::Due);
    let rows = store.page(Page { prefix, after, before: None, limit: PAGE_ROWS }).await?;
    let mut scanned = Scanned { items: Vec::new(), ended: rows.len() < PAGE_ROWS, next_due: None };
    for row in rows {
        let Some(item) = item_of(store, row, Place::Due).await? else { continue };
        if item.due > now {
            scanned.next_due = Some(item.due);
            scanned.ended = true;
            break;
        }
        scanned.items.push(item);
    }
    Ok(scanned)
}

/// The delivery that a row of either index speaks of. A row that cannot be read is deleted and
/// logged: no later start could do more with it.
async fn item_of(store: &Store, row: Row, place: Place) -> Result<Option<Item>, Error> {
    let (key, bytes) = row;
    let parts = rows::moment_and_ids(&key);
    match (parts, decode::<Due>(&bytes)) {
        (Some((due, organization, execution)), Ok(row)) => {
            let receiver = Arc::from(row.receiver);
            Ok(Some(Item { organization, execution, due, place, receiver, carried: None }))
        }
        (_, damaged) => {
            let reason = damaged.err().map(|error| error.to_string());
            tracing::error!(?key, reason, "a row of the webhook outbox cannot be read: deleted");
            let mut commit = Commit::new();
            commit.delete(key);
            store.commit(commit).await?;
            Ok(None)
        }
    }
}

async fn park(store: &Store, items: &[Item]) -> Result<(), Error> {
    let mut commit = Commit::new();
    for item in items {
        let row = Due { receiver: item.receiver.to_string() };
        let key = rows::parked(&item.receiver, item.due, item.organization, item.execution);
        commit.put(key, &row).map_err(storage::Error::from)?;
        commit.delete(item.key());
    }
    Ok(store.commit(commit).await?)
}

async fn feed(store: &Store, receiver: &Name, limit: usize) -> Result<Done, Error> {
    let prefix = rows::parked_at(receiver);
    let rows = store.page(Page { prefix, after: None, before: None, limit }).await?;
    let complete = rows.len() < limit;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.extend(item_of(store, row, Place::Parked).await?);
    }
    Ok(Done::Fed { receiver: Arc::clone(receiver), items, complete })
}

async fn keep_circuits(store: &Store, changes: &[CircuitChange]) -> Result<Done, Error> {
    let mut commit = Commit::new();
    for change in changes {
        match change {
            CircuitChange::Opened(receiver, circuit) => {
                let key = rows::circuit(receiver);
                commit.put(key, circuit).map_err(storage::Error::from)?;
            }
            CircuitChange::Closed(receiver) => {
                commit.delete(rows::circuit(receiver));
            }
        }
    }
    store.commit(commit).await?;
    Ok(Done::KeptCircuits)
}

async fn sweep(store: &Store, mut after: Option<Key>, now: Timestamp) -> Result<Swept, Error> {
    let mut found = Vec::new();
    while found.len() < SWEPT_RECEIVERS {
        let prefix = Key::table(Table::Parked);
        let rows = store.page(Page { prefix, after, before: None, limit: 1 }).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(Swept { found, after: None });
        };
        after = Some(row.0.clone());
        let Some(first) = item_of(store, row, Place::Parked).await? else { continue };
        let receiver = Arc::clone(&first.receiver);
        after = Some(rows::behind_parked_at(&receiver));
        let circuit = store.read(&rows::circuit(&receiver)).await?;
        let mut overdue = Vec::new();
        if is_overdue(&first, now) {
            let prefix = rows::parked_at(&receiver);
            let page = Page { prefix, after: None, before: None, limit: GIVEN_UP_ROWS };
            for row in store.page(page).await? {
                let item = item_of(store, row, Place::Parked).await?;
                overdue.extend(item.filter(|item| is_overdue(item, now)));
            }
        }
        found.push(Found { receiver, oldest: first.due, circuit, overdue });
    }
    Ok(Swept { found, after })
}

impl Outbox {
    /// Whether anything on the disk waits for a moment: a delivery, or the circuit of a receiver.
    ///
    /// # Errors
    /// [`Error::Store`] when the store cannot be read.
    pub async fn awaits_moment(&self) -> Result<bool, Error> {
        for table in [Table::Due, Table::Parked, Table::Circuit] {
            let page = Page { prefix: Key::table(table), after: None, before: None, limit: 1 };
            if !self.context.store.page(page).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_overdue(item: &Item, now: Timestamp) -> bool {
    now.since(item.due) > LONGEST_WAIT
}

/// Fails deliveries without sending them: one more line among their attempts says why.
async fn give_up(store: &Store, items: &[Item], now: Timestamp) -> Result<(), Error> {
    let mut commit = Commit::new();
    for item in items {
        commit.delete(item.key());
        let delivery = rows::load(store, item.organization, item.execution).await?;
        let Some(mut delivery) =
            delivery.filter(|delivery| delivery.progress.next_attempt_at == Some(item.due))
        else {
            continue;
        };
        let waited = humantime::format_duration(LONGEST_WAIT);
        let attempt = Attempt {
            number: delivery.progress.next_number(),
            status_code: None,
            response: None,
            error: Some(format!("given up: the receiver has been in trouble for {waited}")),
            duration_ms: 0,
            redelivery: delivery.progress.redelivery,
            created_at: now,
        };
        delivery.progress.note(attempt, None);
        rows::restand(&mut commit, &delivery, Some(Status::Pending));
        let key = rows::progress(item.organization, item.execution);
        commit.put(key, &delivery.progress).map_err(storage::Error::from)?;
        metrics::counter!("orrery_webhook_deliveries_total", "outcome" => "failed").increment(1);
    }
    Ok(store.commit(commit).await?)
}
