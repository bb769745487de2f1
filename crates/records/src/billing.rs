//! Billing: a ledger for each organization, and the balance, which is the sum of its entries.
//!
//! An entry and its change to the balance are one commit. The store's writer increments the balance
//! as a counter, so concurrent charges are never lost. A charge is part of the commit that
//! completes the charged work, so each charge happens exactly once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::audit::{Actor, Recorder};
use orrery_domain::account::{EntryKind, LedgerEntry, TOP_UP_DOLLARS_MAX};
use orrery_domain::ids::{EntryId, ExecutionId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, new_id, turns};
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

/// Maximum top-up.
pub const TOP_UP_MAX: Usd = Usd::from_micros(TOP_UP_DOLLARS_MAX * 1_000_000);

/// Errors of ledger operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a top-up must be more than 0 and at most {TOP_UP_MAX} USD")]
    Amount,
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The ledgers of a store. Clones share the pending reservations.
#[derive(Debug, Clone)]
pub struct Billing {
    store: Store,
    clock: Clock,
    /// Amounts that are reserved but whose reservation has not been committed yet.
    pending: Arc<Mutex<HashMap<OrganizationId, Usd>>>,
    /// Locked while a balance is read and an amount is reserved.
    turn: Arc<tokio::sync::Mutex<()>>,
    recorder: Recorder,
}

/// The possible cost of work, determined before the work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// The maximum cost, as far as it is known.
    pub known: Usd,
    /// Whether usage-based costs may be added. Such work requires a balance above zero.
    pub open: bool,
}

impl Price {
    /// Returns a price with the higher known cost of the two, open if either price is open.
    #[must_use]
    pub fn dearer(self, other: Self) -> Self {
        Self { known: self.known.max(other.known), open: self.open || other.open }
    }
}

/// The reason why an amount was not reserved.
#[derive(Debug, thiserror::Error)]
pub enum Unreserved {
    /// The balance, minus existing reservations, does not cover the price.
    #[error("payment required")]
    Short { balance: Usd, reserved: Usd, needed: Usd },
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// A pending reservation. Drop it once the commit that contains [`reserve`] is durable.
#[derive(Debug)]
pub struct Reservation {
    billing: Billing,
    organization: OrganizationId,
    amount: Usd,
}

impl Reservation {
    /// Returns the reserved amount.
    #[must_use]
    pub const fn amount(&self) -> Usd {
        self.amount
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut pending = self.billing.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pending.get(&self.organization).copied().unwrap_or_default().plus(-self.amount);
        if left > Usd::ZERO {
            pending.insert(self.organization, left);
        } else {
            pending.remove(&self.organization);
        }
    }
}

/// Reserves `amount` for new work in the commit that creates the work.
pub fn reserve(commit: &mut Commit, organization: OrganizationId, amount: Usd) {
    if amount > Usd::ZERO {
        commit.add(reserved_key(organization), amount.micros());
    }
}

/// Releases the reservation for work, in the commit that ends the work.
pub fn release(commit: &mut Commit, organization: OrganizationId, amount: Usd) {
    if amount > Usd::ZERO {
        commit.add(reserved_key(organization), (-amount).micros());
    }
}

/// Adds a charge to the commit of the work that causes the charge. `amount` must not be negative.
/// `entry` is a new ID, whose time determines the charge's position in the ledger. Because the
/// charge is part of the caller's commit, the charge happens only once.
///
/// # Errors
/// [`storage::Error`] never in practice: an entry always serializes.
pub fn charge(
    commit: &mut Commit,
    organization: OrganizationId,
    amount: Usd,
    execution: ExecutionId,
    entry: EntryId,
    now: Timestamp,
) -> Result<(), storage::Error> {
    let entry = LedgerEntry {
        id: entry,
        kind: EntryKind::Charge,
        amount: -amount,
        execution: Some(execution),
        created_at: now,
    };
    write(commit, organization, &entry)
}

fn write(
    commit: &mut Commit,
    organization: OrganizationId,
    entry: &LedgerEntry,
) -> Result<(), storage::Error> {
    commit.put(ledger_key(organization).id_newest_first(entry.id), entry)?;
    commit.add(balance_key(organization), entry.amount.micros());
    Ok(())
}

impl Billing {
    /// Opens the ledgers of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        let pending = Arc::default();
        let turn = Arc::default();
        let recorder = Recorder::new(clock.clone());
        Self { store, clock, pending, turn, recorder }
    }

    /// Returns the same ledgers with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Reserves the possible cost of work, if the balance covers it. The caller must commit
    /// [`reserve`] with the same amount, and keep the returned reservation until then.
    ///
    /// # Errors
    /// [`Unreserved`].
    pub async fn hold(
        &self,
        organization: OrganizationId,
        price: Price,
    ) -> Result<Reservation, Unreserved> {
        let _one_looks_at_a_time = self.turn.lock().await;
        // If another reservation is committed between the two reads, that reservation is counted
        // twice, which can only make this check stricter.
        let on_its_way = self.pending().get(&organization).copied().unwrap_or_default();
        let keys = [balance_key(organization), reserved_key(organization)];
        // The balance is read on behalf of the service, so that the read does not queue behind this
        // organization's other reads: other organizations wait for this read.
        let counters = turns::on_behalf_of(None::<OrganizationId>, self.store.counters(&keys));
        let mut counters = counters.await?.into_iter().map(Usd::from_micros);
        let balance = counters.next().unwrap_or_default();
        let reserved = counters.next().unwrap_or_default().plus(on_its_way);
        let left = balance.plus(-reserved);
        if left < price.known || (price.open && left <= Usd::ZERO) {
            return Err(Unreserved::Short { balance, reserved, needed: price.known });
        }
        let mut pending = self.pending();
        let sum = pending.entry(organization).or_default();
        *sum = sum.plus(price.known);
        Ok(Reservation { billing: self.clone(), organization, amount: price.known })
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<OrganizationId, Usd>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the organization's balance; it is negative if the organization owes money.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn balance(&self, organization: OrganizationId) -> Result<Usd, storage::Error> {
        self.store.counter(&balance_key(organization)).await.map(Usd::from_micros)
    }

    /// Adds to the balance and returns the new balance, which includes concurrent charges.
    ///
    /// # Errors
    /// [`Error::Amount`] for an amount that is not above zero or is over [`TOP_UP_MAX`];
    /// [`Error::Storage`].
    pub async fn top_up(&self, organization: OrganizationId, amount: Usd) -> Result<Usd, Error> {
        if amount <= Usd::ZERO || amount > TOP_UP_MAX {
            return Err(Error::Amount);
        }
        let entry = LedgerEntry {
            id: new_id(),
            kind: EntryKind::TopUp,
            amount,
            execution: None,
            created_at: self.clock.now(),
        };
        let mut commit = Commit::new();
        write(&mut commit, organization, &entry)?;
        let subject = format!("{} USD, entry {}", amount.dollars(), entry.id);
        self.recorder.add(&mut commit, "balance.top-up", subject, organization)?;
        self.store.commit(commit).await?;
        Ok(self.balance(organization).await?)
    }

    /// Lists up to `limit` entries after `after`, newest first.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn ledger(
        &self,
        organization: OrganizationId,
        after: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>, storage::Error> {
        let prefix = ledger_key(organization);
        let after = after.map(|id| prefix.clone().id_newest_first(id));
        self.store.records(Page { after, ..Page::of(prefix, limit) }).await
    }
}

/// Returns the amount that is reserved in the store for the organization's unfinished work.
///
/// # Errors
/// [`storage::Error`] when the store cannot be read.
pub async fn reserved(store: &Store, organization: OrganizationId) -> Result<Usd, storage::Error> {
    store.counter(&reserved_key(organization)).await.map(Usd::from_micros)
}

/// Adds a correction to a commit, after a consistency check found that the reserved amount is off
/// by `by`.
pub fn correct_reserved(commit: &mut Commit, organization: OrganizationId, by: Usd) {
    commit.add(reserved_key(organization), by.micros());
}

fn ledger_key(organization: OrganizationId) -> Key {
    Key::table(Table::Ledger).id(organization)
}

fn reserved_key(organization: OrganizationId) -> Key {
    Key::table(Table::Reserved).id(organization)
}

fn balance_key(organization: OrganizationId) -> Key {
    Key::table(Table::Balance).id(organization)
}

#[cfg(test)]
#[path = "billing_tests.rs"]
mod tests;
