//! Billing: a ledger for each organization, and the balance that its entries add up to.
//!
//! An entry and its change of the balance stand in one commit; the balance is a counter that the
//! store's writer adds to, so that charges at the same moment never lose one another. A charge
//! stands in the commit of the completion that caused it: exactly once.

use crate::domain::account::{EntryKind, LedgerEntry};
use crate::domain::ids::{EntryId, ExecutionId, OrganizationId};
use crate::domain::money::Usd;
use crate::domain::time::Timestamp;
use crate::runtime::{Clock, fresh};
use crate::storage::record::{Malformed, decode};
use crate::storage::{self, Commit, Key, Page, Record, Store, Table};

impl Record for LedgerEntry {
    const NAME: &'static str = "ledger entry";
}

/// The ledgers of a store.
#[derive(Debug, Clone)]
pub struct Billing {
    store: Store,
    clock: Clock,
}

/// Adds a charge to the commit of what is charged for. `amount` is positive.
///
/// # Errors
/// [`Malformed`] never in practice: an entry has a JSON form.
pub fn charge(
    commit: &mut Commit,
    organization: OrganizationId,
    amount: Usd,
    execution: ExecutionId,
    entry: EntryId,
    now: Timestamp,
) -> Result<(), Malformed> {
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
) -> Result<(), Malformed> {
    commit.put(ledger_key(organization).id_newest_first(entry.id), entry)?;
    commit.add(balance_key(organization), entry.amount.micros());
    Ok(())
}

impl Billing {
    /// The ledgers of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self { store, clock }
    }

    /// What the organization has; below zero when it owes.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be read.
    pub async fn balance(&self, organization: OrganizationId) -> Result<Usd, storage::Error> {
        self.store.counter(&balance_key(organization)).await.map(Usd::from_micros)
    }

    /// Adds to the balance and answers what it is then, at least.
    ///
    /// # Errors
    /// [`storage::Error`] when the store cannot be written.
    pub async fn top_up(
        &self,
        organization: OrganizationId,
        amount: Usd,
    ) -> Result<Usd, storage::Error> {
        let entry = LedgerEntry {
            id: fresh(),
            kind: EntryKind::TopUp,
            amount,
            execution: None,
            created_at: self.clock.now(),
        };
        let mut commit = Commit::new();
        write(&mut commit, organization, &entry)?;
        self.store.commit(commit).await?;
        self.balance(organization).await
    }

    /// Up to `limit` entries, newest first, behind `after`.
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
        let rows = self.store.page(Page { prefix, after, before: None, limit }).await?;
        rows.iter().map(|(_, bytes)| Ok(decode(bytes)?)).collect()
    }
}

fn ledger_key(organization: OrganizationId) -> Key {
    Key::table(Table::Ledger).id(organization)
}

fn balance_key(organization: OrganizationId) -> Key {
    Key::table(Table::Balance).id(organization)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Options;

    #[tokio::test]
    async fn the_entries_add_up_to_the_balance() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(1));
        let billing = Billing::new(store.clone(), clock);
        let (mine, other) = (OrganizationId::from([1; 16]), OrganizationId::from([2; 16]));
        billing.top_up(other, Usd::from_micros(5)).await.unwrap();
        billing.top_up(mine, Usd::from_micros(1000)).await.unwrap();
        let charges = (0..200).map(|_| {
            let mut commit = Commit::new();
            let one = Usd::from_micros(1);
            charge(&mut commit, mine, one, fresh(), fresh(), Timestamp::from_micros(2)).unwrap();
            store.commit(commit)
        });
        for written in futures_util::future::join_all(charges).await {
            written.unwrap();
        }
        let ledger = billing.ledger(mine, None, 1000).await.unwrap();
        assert_eq!(ledger.len(), 201);
        let sum: Usd = ledger.iter().map(|entry| entry.amount).sum();
        assert_eq!(sum, Usd::from_micros(800));
        assert_eq!(billing.balance(mine).await.unwrap(), sum);
        assert_eq!(billing.balance(other).await.unwrap(), Usd::from_micros(5));
        let page = billing.ledger(mine, Some(ledger[9].id), 2).await.unwrap();
        assert_eq!(page, ledger[10..12]);
    }
}
