//! Billing: a ledger for each organization, and the balance, which is the sum of its entries.
//!
//! An API key may have a budget, which limits its charges in a period. An organization may have a
//! budget for each calendar month. Charges and reservations count toward both budgets.
//!
//! An entry and its change to the balance are one commit. The store's writer increments the balance
//! as a counter, so concurrent charges are never lost. A charge is part of the commit that
//! completes the charged work, so each charge happens exactly once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::audit::{Actor, Recorder};
use crate::usage::{self, Calls, Usage};
use crate::{key_policies, limits};
use orrery_domain::account::{EntryKind, LedgerEntry, TOP_UP_DOLLARS_MAX, dashboard_key};
use orrery_domain::chat::Tokens;
use orrery_domain::execution::Execution;
use orrery_domain::ids::{EntryId, ExecutionId, KeyId, OrganizationId};
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_domain::usage::{Day, Month};
use orrery_runtime::{Clock, new_id, turns};
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

/// The period of charges over a key's lifetime.
pub const ALL_TIME: Timestamp = Timestamp::from_micros(0);
/// Maximum number of counters that are read at once.
const COUNTERS_READ: usize = 1000;
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
    /// The keys' budgets.
    policies: key_policies::Handle,
    /// The organizations' budgets.
    limits: limits::Handle,
    usage: Usage,
    /// Amounts that are reserved but whose reservation has not been committed yet.
    pending: Arc<Mutex<Pending>>,
    /// Locked while a balance is read and an amount is reserved.
    turn: Arc<tokio::sync::Mutex<()>>,
    recorder: Recorder,
}

/// Who pays for work: the organization, and the key whose budget the work counts toward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payer {
    pub organization: OrganizationId,
    pub key: KeyId,
}

impl Payer {
    /// Returns who pays for an execution.
    #[must_use]
    pub const fn of(execution: &Execution) -> Self {
        Self { organization: execution.organization, key: execution.key }
    }
}

/// A charge for work.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'m> {
    /// Not negative.
    pub amount: Usd,
    pub execution: ExecutionId,
    /// A new ID, whose time determines the charge's position in the ledger.
    pub entry: EntryId,
    /// The model that the work used.
    pub model: &'m str,
}

/// A budget and the amount spent in its current period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetUse {
    pub payer: Payer,
    /// The name of the key; `None` for the budget of the organization.
    pub key_name: Option<String>,
    pub budget: Usd,
    pub spent: Usd,
    /// Start of the period.
    pub period: Timestamp,
}

/// Amounts by organization and by key.
#[derive(Debug, Default)]
struct Pending {
    organizations: HashMap<OrganizationId, Usd>,
    keys: HashMap<KeyId, Usd>,
}

impl Pending {
    fn add(&mut self, payer: Payer, amount: Usd) {
        add_to(&mut self.organizations, payer.organization, amount);
        add_to(&mut self.keys, payer.key, amount);
    }
}

/// Adds to an amount, and forgets an amount of zero.
fn add_to<Id: std::hash::Hash + Eq>(amounts: &mut HashMap<Id, Usd>, id: Id, amount: Usd) {
    let sum = amounts.get(&id).copied().unwrap_or_default().plus(amount);
    if sum > Usd::ZERO {
        amounts.insert(id, sum);
    } else {
        amounts.remove(&id);
    }
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

    /// Returns whether an amount covers the price. Open-ended work needs an amount above zero.
    fn is_covered_by(self, left: Usd) -> bool {
        left >= self.known && (!self.open || left > Usd::ZERO)
    }
}

/// The owner of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Key,
    Organization,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "this key",
            Self::Organization => "this organization for this month",
        })
    }
}

/// A budget that does not cover the price of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the budget of {whose} is {budget} USD, of which {spent} USD are spent and {reserved} USD are \
     reserved; this may cost {needed} USD"
)]
pub struct OverBudget {
    pub whose: Whose,
    pub budget: Usd,
    pub spent: Usd,
    pub reserved: Usd,
    pub needed: Usd,
}

impl OverBudget {
    /// Returns whether the budget would suffice without the reservations of other work.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.spent < self.budget && self.spent.plus(self.needed) <= self.budget
    }
}

/// The reason why an amount was not reserved.
#[derive(Debug, thiserror::Error)]
pub enum Unreserved {
    /// The balance, minus existing reservations, does not cover the price.
    #[error("payment required")]
    Short { balance: Usd, reserved: Usd, needed: Usd },
    /// The budget of the key or the organization, minus its charges and reservations in this
    /// period, does not cover the price.
    #[error("over the budget")]
    OverBudget(OverBudget),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// A pending reservation. Drop it once the commit that contains [`reserve`] is durable.
#[derive(Debug)]
pub struct Reservation {
    pending: Arc<Mutex<Pending>>,
    payer: Payer,
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
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.add(self.payer, -self.amount);
    }
}

/// Reserves `amount` for new work in the commit that creates the work.
pub fn reserve(commit: &mut Commit, payer: Payer, amount: Usd) {
    if amount > Usd::ZERO {
        commit.add(reserved_key(payer.organization), amount.micros());
        commit.add(key_reserved_key(payer), amount.micros());
    }
}

/// Releases the reservation for work, in the commit that ends the work.
pub fn release(commit: &mut Commit, payer: Payer, amount: Usd) {
    if amount > Usd::ZERO {
        commit.add(reserved_key(payer.organization), (-amount).micros());
        commit.add(key_reserved_key(payer), (-amount).micros());
    }
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
    pub fn new(
        store: Store,
        clock: Clock,
        policies: key_policies::Handle,
        limits: limits::Handle,
    ) -> Self {
        let pending = Arc::default();
        let turn = Arc::default();
        let recorder = Recorder::new(clock.clone());
        let usage = Usage::new(store.clone());
        Self { store, clock, policies, limits, usage, pending, turn, recorder }
    }

    /// Loads the names of the counted models into memory. Call this once at startup, before any
    /// call is counted.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn load(
        &self,
        organizations: impl IntoIterator<Item = OrganizationId>,
    ) -> Result<(), storage::Error> {
        self.usage.load(organizations, self.clock.now()).await
    }

    /// Returns the usage counters, which also count the charges.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the policies of all keys.
    #[must_use]
    pub const fn policies(&self) -> &key_policies::Handle {
        &self.policies
    }

    /// Returns whether a budget limits the payer.
    #[must_use]
    pub fn has_budget(&self, payer: Payer) -> bool {
        self.limits.of(payer.organization).monthly_budget.is_some()
            || self.policies.budget(payer.key, &self.clock).is_some()
    }

    /// Counts a call that ends in this commit, or the tokens of a call.
    pub fn count(&self, commit: &mut Commit, payer: Payer, calls: &Calls<'_>) {
        self.usage.count(commit, payer, calls, self.clock.now());
    }

    /// Adds a charge to the commit of the work that causes the charge. Because the charge is part
    /// of the caller's commit, the charge happens only once.
    ///
    /// # Errors
    /// [`storage::Error`] never in practice: an entry always serializes.
    pub fn charge(
        &self,
        commit: &mut Commit,
        payer: Payer,
        charge: Charge<'_>,
    ) -> Result<(), storage::Error> {
        let Charge { amount, execution, entry, model } = charge;
        let now = self.clock.now();
        let entry = LedgerEntry {
            id: entry,
            kind: EntryKind::Charge,
            amount: -amount,
            execution: Some(execution),
            created_at: now,
        };
        write(commit, payer.organization, &entry)?;
        let calls = Calls::part(model, Tokens::default(), amount);
        self.usage.count(commit, payer, &calls, now);
        commit.add(spent_key(payer, ALL_TIME), amount.micros());
        if let Some((_, period)) = self.policies.budget(payer.key, &self.clock)
            && period != ALL_TIME
        {
            commit.add(spent_key(payer, period), amount.micros());
        }
        Ok(())
    }

    /// Returns the charges of a key in the period that begins at `period`, or, with [`ALL_TIME`],
    /// all of its charges.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn spent(&self, payer: Payer, period: Timestamp) -> Result<Usd, storage::Error> {
        self.store.counter(&spent_key(payer, period)).await.map(Usd::from_micros)
    }

    /// Returns the same ledgers with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Reserves the possible cost of work, if the budgets of the key and the organization cover it.
    /// If `needs_balance` is set, the balance must cover it, too. The caller must commit
    /// [`reserve`] with the same amount, and keep the returned reservation until then.
    ///
    /// # Errors
    /// [`Unreserved`].
    pub async fn hold(
        &self,
        payer: Payer,
        price: Price,
        needs_balance: bool,
    ) -> Result<Reservation, Unreserved> {
        let _one_looks_at_a_time = self.turn.lock().await;
        // If another reservation is committed between the two reads, that reservation is counted
        // twice, which can only make this check stricter.
        let (of_organization, of_key) = {
            let pending = self.pending();
            let of_organization = pending.organizations.get(&payer.organization).copied();
            let of_key = pending.keys.get(&payer.key).copied();
            (of_organization.unwrap_or_default(), of_key.unwrap_or_default())
        };
        let Payer { organization, key } = payer;
        let of_month = self.limits.of(organization).monthly_budget;
        let budget = self.policies.budget(key, &self.clock);
        let mut rows = Vec::with_capacity(6);
        if needs_balance {
            rows.extend([balance_key(organization), reserved_key(organization)]);
        }
        if of_month.is_some() {
            rows.extend([usage::total(organization, self.month()), reserved_key(organization)]);
        }
        if let Some((_, period)) = budget {
            rows.extend([spent_key(payer, period), key_reserved_key(payer)]);
        }
        // The counters are read on behalf of the service, so that the read does not queue behind
        // this organization's other reads: other organizations wait for this read.
        let counters =
            turns::on_behalf_of(None::<OrganizationId>, self.store.counters_often(&rows));
        let mut counters = counters.await?.into_iter().map(Usd::from_micros);
        let mut next = || counters.next().unwrap_or_default();
        if needs_balance {
            let (balance, reserved) = (next(), next().plus(of_organization));
            if !price.is_covered_by(balance.plus(-reserved)) {
                return Err(Unreserved::Short { balance, reserved, needed: price.known });
            }
        }
        for (whose, budget, pending) in [
            (Whose::Organization, of_month, of_organization),
            (Whose::Key, budget.map(|(budget, _)| budget), of_key),
        ] {
            let Some(budget) = budget else { continue };
            let (spent, reserved) = (next(), next().plus(pending));
            if !price.is_covered_by(budget.plus(-spent).plus(-reserved)) {
                let needed = price.known;
                let over = OverBudget { whose, budget, spent, reserved, needed };
                return Err(Unreserved::OverBudget(over));
            }
        }
        self.pending().add(payer, price.known);
        Ok(Reservation { pending: Arc::clone(&self.pending), payer, amount: price.known })
    }

    /// Returns all budgets of organizations and keys.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn budgets(&self) -> Result<Vec<BudgetUse>, storage::Error> {
        let (month, now) = (self.month(), self.clock.now());
        let of_organizations = self.limits.budgets().into_iter().map(|(organization, budget)| {
            let payer = Payer { organization, key: dashboard_key(organization) };
            let period = month.start();
            let found = BudgetUse { payer, key_name: None, budget, spent: Usd::ZERO, period };
            (usage::total(organization, month), found)
        });
        let of_keys = self.policies.with_budget().into_iter().filter_map(|(key, entry)| {
            let payer = Payer { organization: entry.organization, key };
            let (period, _) = entry.policy.period(entry.created_at, now);
            let (key_name, budget) = (Some(entry.name.clone()), entry.policy.max_budget?);
            let found = BudgetUse { payer, key_name, budget, spent: Usd::ZERO, period };
            Some((spent_key(payer, period), found))
        });
        let (rows, mut budgets): (Vec<Key>, Vec<BudgetUse>) =
            of_organizations.chain(of_keys).unzip();
        let mut spent = Vec::with_capacity(rows.len());
        for some in rows.chunks(COUNTERS_READ) {
            spent.extend(self.store.counters(some).await?);
        }
        for (budget, spent) in budgets.iter_mut().zip(spent) {
            budget.spent = Usd::from_micros(spent);
        }
        Ok(budgets)
    }

    fn month(&self) -> Month {
        Day::of(self.clock.now()).month()
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
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

fn key_reserved_key(payer: Payer) -> Key {
    Key::table(Table::KeyReserved).id(payer.organization).id(payer.key)
}

/// The row of a key's charges in the period that begins at `period`.
fn spent_key(payer: Payer, period: Timestamp) -> Key {
    let key = Key::table(Table::KeySpent).id(payer.organization).id(payer.key);
    key.raw(&period.sortable())
}

fn balance_key(organization: OrganizationId) -> Key {
    Key::table(Table::Balance).id(organization)
}

#[cfg(test)]
#[path = "billing_tests.rs"]
mod tests;
