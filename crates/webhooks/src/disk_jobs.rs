//! The outbox's disk operations other than attempts: finding due deliveries, parking deliveries
//! that wait for a receiver, reading parked deliveries back, and storing circuits.
//!
//! One job runs at a time, so that each job sees the writes of the previous job. Every read is a
//! page of bounded size.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::attempt::Context;
use super::dispatcher::{CircuitChange, ENDPOINTS_MAX, EndpointName, Item};
use super::endpoint::Refill;
use super::outbox::{CARRIED_BYTES_MAX, Outbox};
use super::rows::{self, Circuit, Due, RowIndex};
use orrery_domain::delivery::{Attempt, Status};
use orrery_domain::time::Timestamp;
use orrery_storage::record::decode;
use orrery_storage::{Commit, Key, Page, Row, Store, Table};

/// Number of rows per page of the due index.
const PAGE_ROWS: usize = 512;
/// Number of receivers handled by one sweep job.
const PARKED_ENDPOINTS_MAX: usize = 64;
/// Maximum number of deliveries that one job fails as expired.
const EXPIRED_ROWS_MAX: usize = 128;
/// A delivery fails once its receiver's circuit has kept it waiting for this long: otherwise,
/// deliveries to a dead receiver would stay pending forever.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(72 * 3600);

/// A disk job.
#[derive(Debug)]
pub(super) enum DiskJob {
    /// Read the circuits that were open when the previous process ended.
    ReadCircuits,
    /// Read the next page of the due index after this key.
    Scan { after: Option<Key> },
    /// Move rows from the due index to their receivers' parked rows.
    Park(Vec<Item>),
    /// Read a page of a receiver's parked rows.
    LoadParked(Refill),
    /// Write or delete circuits.
    KeepCircuits(Vec<CircuitChange>),
    /// Find receivers with parked rows, after this key.
    FindParked { after: Option<Key> },
    /// Fail deliveries that have waited too long.
    Expire(Vec<Item>),
}

/// The result of a disk job.
#[derive(Debug)]
pub(super) enum JobOutput {
    Circuits(Vec<(EndpointName, Circuit)>),
    Scanned(Scanned),
    Parked(Vec<Item>),
    LoadedParked { receiver: EndpointName, items: Vec<Item>, complete: bool },
    KeptCircuits,
    FoundParked(ParkedPage),
    Expired(Vec<Item>),
}

/// A page of the due index.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The due deliveries, oldest first.
    pub(super) items: Vec<Item>,
    /// Whether this page contains the last due delivery.
    pub(super) ended: bool,
    /// The time at which the first row that is not yet due becomes due.
    pub(super) next_due: Option<Timestamp>,
}

/// Receivers with parked rows.
#[derive(Debug)]
pub(super) struct ParkedPage {
    pub(super) found: Vec<ParkedEndpoint>,
    /// The key after which to continue; `None` after the last receiver.
    pub(super) after: Option<Key>,
}

#[derive(Debug)]
pub(super) struct ParkedEndpoint {
    pub(super) receiver: EndpointName,
    pub(super) oldest: Timestamp,
    pub(super) circuit: Option<Circuit>,
    /// The receivers' oldest deliveries, if they have waited longer than [`WAIT_MAX`].
    pub(super) overdue: Vec<Item>,
}

/// A failed job.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) job: DiskJob,
    pub(super) error: Error,
}

/// Runs one job.
///
/// # Errors
/// [`Failed`] if the store cannot be read or written; in that case, nothing is changed.
pub(super) async fn run(
    context: &Context,
    job: DiskJob,
    now: Timestamp,
) -> Result<JobOutput, Failed> {
    let store = &context.store;
    let done = match &job {
        DiskJob::ReadCircuits => read_circuits(store).await.map(JobOutput::Circuits),
        DiskJob::Scan { after } => scan(store, after.clone(), now).await.map(JobOutput::Scanned),
        DiskJob::LoadParked(refill) => load_parked(store, refill.clone()).await,
        DiskJob::KeepCircuits(changes) => keep_circuits(store, changes).await,
        DiskJob::FindParked { after } => {
            // Use the believed time, so that deliveries that wait for their receivers do not fail
            // when the clock jumps ahead.
            let believed = context.clock.believed();
            find_parked(store, after.clone(), believed).await.map(JobOutput::FoundParked)
        }
        DiskJob::Park(items) => park(store, items).await.map(|()| JobOutput::Parked(Vec::new())),
        DiskJob::Expire(items) => {
            expire(context, items, now).await.map(|()| JobOutput::Expired(Vec::new()))
        }
    };
    match (done, job) {
        (Ok(JobOutput::Parked(_)), DiskJob::Park(items)) => Ok(JobOutput::Parked(items)),
        (Ok(JobOutput::Expired(_)), DiskJob::Expire(items)) => Ok(JobOutput::Expired(items)),
        (Ok(done), _) => Ok(done),
        (Err(error), job) => Err(Failed { job, error }),
    }
}

async fn read_circuits(store: &Store) -> Result<Vec<(EndpointName, Circuit)>, Error> {
    let prefix = Key::table(Table::Circuit);
    // Restored circuits may take up half of the receivers in memory; the other half is for
    // receivers that work.
    let page = Page::of(prefix, ENDPOINTS_MAX / 2);
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
    let rows = store.page(Page { after, ..Page::of(prefix, PAGE_ROWS) }).await?;
    let mut scanned = Scanned { items: Vec::new(), ended: rows.len() < PAGE_ROWS, next_due: None };
    for row in rows {
        let Some(item) = item_of(store, row, RowIndex::Due).await? else { continue };
        if item.due > now {
            scanned.next_due = Some(item.due);
            scanned.ended = true;
            break;
        }
        scanned.items.push(item);
    }
    Ok(scanned)
}

/// Returns the delivery of a row from either index. An unreadable row is logged and deleted,
/// because it could not be used after a restart either.
async fn item_of(store: &Store, row: Row, place: RowIndex) -> Result<Option<Item>, Error> {
    let (key, bytes) = row;
    let parts = rows::moment_and_ids(&key);
    match (parts, decode::<Due>(&bytes)) {
        (Some((due, organization, execution)), Ok(row)) => {
            let receiver = Arc::from(row.receiver);
            Ok(Some(Item { organization, execution, due, place, receiver, carried: None }))
        }
        (_, damaged) => {
            let reason = damaged.err().map(|error| error.to_string());
            tracing::error!(?key, reason, "unreadable row of the webhook outbox deleted");
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
        commit.put(key, &row)?;
        commit.delete(item.key());
    }
    Ok(store.commit(commit).await?)
}

async fn load_parked(store: &Store, refill: Refill) -> Result<JobOutput, Error> {
    let Refill { receiver, after, limit } = refill;
    let prefix = rows::parked_at(&receiver);
    let rows = store.page(Page { after, ..Page::of(prefix, limit) }).await?;
    let complete = rows.len() < limit;
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.extend(item_of(store, row, RowIndex::Parked).await?);
    }
    carry(store, &mut items).await?;
    Ok(JobOutput::LoadedParked { receiver, items, complete })
}

/// Loads small deliveries along with their rows: a single read for all deliveries is cheaper than a
/// read for each delivery.
async fn carry(store: &Store, items: &mut [Item]) -> Result<(), Error> {
    let ids: Vec<_> = items.iter().map(|item| (item.organization, item.execution)).collect();
    for (item, delivery) in items.iter_mut().zip(rows::load_many(store, &ids).await?) {
        let delivery = delivery.filter(|delivery| {
            // Any other delivery is read and checked when it is attempted.
            delivery.progress.next_attempt_at == Some(item.due)
                && delivery.body.len() <= CARRIED_BYTES_MAX
        });
        item.carried = delivery.map(Box::new);
    }
    Ok(())
}

async fn keep_circuits(store: &Store, changes: &[CircuitChange]) -> Result<JobOutput, Error> {
    let mut commit = Commit::new();
    for change in changes {
        match change {
            CircuitChange::Opened(receiver, circuit) => {
                let key = rows::circuit(receiver);
                commit.put(key, circuit)?;
            }
            CircuitChange::Closed(receiver) => {
                commit.delete(rows::circuit(receiver));
            }
        }
    }
    store.commit(commit).await?;
    Ok(JobOutput::KeptCircuits)
}

async fn find_parked(
    store: &Store,
    mut after: Option<Key>,
    now: Timestamp,
) -> Result<ParkedPage, Error> {
    let mut found = Vec::new();
    while found.len() < PARKED_ENDPOINTS_MAX {
        let prefix = Key::table(Table::Parked);
        let rows = store.page(Page { after, ..Page::of(prefix, 1) }).await?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(ParkedPage { found, after: None });
        };
        after = Some(row.0.clone());
        let Some(first) = item_of(store, row, RowIndex::Parked).await? else { continue };
        let receiver = Arc::clone(&first.receiver);
        after = Some(rows::after_parked_at(&receiver));
        let circuit = store.read(&rows::circuit(&receiver)).await?;
        let mut overdue = Vec::new();
        if is_overdue(&first, now) {
            let page = Page::of(rows::parked_at(&receiver), EXPIRED_ROWS_MAX);
            for row in store.page(page).await? {
                let item = item_of(store, row, RowIndex::Parked).await?;
                overdue.extend(item.filter(|item| is_overdue(item, now)));
            }
        }
        found.push(ParkedEndpoint { receiver, oldest: first.due, circuit, overdue });
    }
    Ok(ParkedPage { found, after })
}

impl Outbox {
    /// Returns whether the disk contains any delivery or open circuit that waits for a point in
    /// time.
    ///
    /// # Errors
    /// [`Error::Store`] if the store cannot be read.
    pub async fn awaits_moment(&self) -> Result<bool, Error> {
        for table in [Table::Due, Table::Parked, Table::Circuit] {
            if self.context.store.has_any(Key::table(table)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_overdue(item: &Item, now: Timestamp) -> bool {
    now.since(item.due) > WAIT_MAX
}

/// Fails deliveries without sending them; the final attempt in each delivery's record contains the
/// reason.
async fn expire(context: &Context, items: &[Item], now: Timestamp) -> Result<(), Error> {
    let Context { store, endpoints, options, .. } = context;
    let mut commit = Commit::new();
    let mut judged = HashSet::new();
    for item in items {
        commit.delete(item.key());
        let delivery = rows::load(store, item.organization, item.execution).await?;
        let Some(mut delivery) =
            delivery.filter(|delivery| delivery.progress.next_attempt_at == Some(item.due))
        else {
            continue;
        };
        let waited = humantime::format_duration(WAIT_MAX);
        let attempt = Attempt {
            number: delivery.progress.next_number(),
            status_code: None,
            response: None,
            error: Some(format!("abandoned: the receiver has been failing for {waited}")),
            duration_ms: 0,
            redelivery: delivery.progress.redelivery,
            created_at: now,
        };
        delivery.progress.note(attempt, None);
        rows::move_status_row(&mut commit, &delivery, Some(Status::Pending));
        if delivery.endpoint.is_some_and(|target| judged.insert(target.id)) {
            endpoints.judge(&mut commit, &delivery, options.disable_endpoint_after).await?;
        }
        let key = rows::progress(item.organization, item.execution);
        commit.put(key, &delivery.progress)?;
        metrics::counter!("orrery_webhook_deliveries_total", "outcome" => "failed").increment(1);
    }
    Ok(store.commit(commit).await?)
}
