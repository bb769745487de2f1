//! Resuming after a restore: the unfinished work of the backup is held back until an operator
//! confirms that the original machine is off. Reads and new work are not affected.
//!
//! Rows that would trigger work are moved to a separate table, see `storage::held_back`. Resuming
//! moves the rows back in batches. If resuming is interrupted, a second request continues where the
//! first request stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::{Engine, Error, Inner, rows};
use orrery_domain::execution::Execution;
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Row, Table, held_back};

/// Maximum rows moved in one commit.
const BATCH_MAX: usize = 500;

/// Counts of the restored work that was resumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Resumed {
    pub executions: usize,
    pub deliveries: usize,
}

/// Whether restored work is held back.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// The time of the restore while restored work is held back; otherwise `None`.
    since: Mutex<Option<Timestamp>>,
    /// Locked while the work is resumed.
    resuming: tokio::sync::Mutex<()>,
}

impl HeldBack {
    pub(crate) fn since(&self) -> Option<Timestamp> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held-back row and its original key.
struct HeldRow {
    table: Table,
    key: Key,
    row: Row,
    /// The execution that the row schedules.
    execution: Option<Key>,
}

impl Engine {
    /// Returns the time of the restore while restored work is held back.
    #[must_use]
    pub fn paused_since(&self) -> Option<Timestamp> {
        self.inner.held_back.since()
    }

    /// Resumes everything that a restore held back. When this function returns, the deliveries are
    /// durable; the outbox picks them up at its next poll.
    ///
    /// # Errors
    /// [`Error::Storage`]; batches moved before the error stay resumed.
    pub async fn resume(&self) -> Result<Resumed, Error> {
        let inner = Arc::clone(&self.inner);
        // Resuming must complete even if the client disconnects. Otherwise, the store could contain
        // queue rows that are missing from their lanes in memory.
        let resuming = self.inner.tasks.complete(async move { inner.resume().await });
        resuming.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    /// Reads the time of the restore from the store, if restored work is still held back.
    pub(super) async fn read_pause(&self) -> Result<Option<Timestamp>, Error> {
        let row = self.store.get(&held_back::paused()).await?;
        let since = row.and_then(|bytes| bytes.try_into().ok()).map(Timestamp::from_sortable);
        *self.held_back.lock() = since;
        Ok(since)
    }

    async fn resume(self: &Arc<Self>) -> Result<Resumed, Error> {
        let _one_at_a_time = self.held_back.resuming.lock().await;
        let mut resumed = Resumed::default();
        loop {
            let found = self.store.page(Page::of(held_back::all(), BATCH_MAX)).await?;
            if found.is_empty() {
                break;
            }
            match self.release_rows(found, &mut resumed).await {
                // In case of a conflict, an execution was cancelled concurrently, so the rows are
                // read again.
                Ok(()) | Err(Error::Storage(storage::Error::Conflict { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let mut commit = Commit::new();
        commit.delete(held_back::paused());
        self.store.commit(commit).await?;
        *self.held_back.lock() = None;
        Ok(resumed)
    }

    async fn release_rows(
        self: &Arc<Self>,
        found: Vec<Row>,
        resumed: &mut Resumed,
    ) -> Result<(), Error> {
        let mut commit = Commit::new();
        let mut rows = Vec::new();
        for row in found {
            commit.delete(row.0.clone());
            rows.extend(describe(row));
        }
        let keys: Vec<Key> = rows.iter().filter_map(|one| one.execution.clone()).collect();
        let states = self.store.get_many(&keys).await?;
        let states: HashMap<Key, Option<Vec<u8>>> = keys.into_iter().zip(states).collect();
        let (mut lanes, mut counted) = (Vec::new(), Resumed::default());
        for one in rows {
            let state = one.execution.as_ref().and_then(|key| states.get(key));
            match (&one.execution, state) {
                // An execution that was cancelled in the meantime is not resumed.
                (Some(key), Some(Some(bytes))) if is_unfinished(bytes) => {
                    commit.expect(Expect::Equal(key.clone(), bytes.clone()));
                    counted.executions += 1;
                }
                (Some(_), _) => continue,
                (None, _) if one.table == Table::ScheduleDue => {}
                (None, _) => counted.deliveries += 1,
            }
            if one.table == Table::Lane
                && let Some(parsed) = rows::parse_queued(&one.key)
            {
                lanes.push(parsed);
            }
            commit.put_bytes(one.key, one.row.1);
        }
        self.store.commit(commit).await?;
        resumed.executions += counted.executions;
        resumed.deliveries += counted.deliveries;
        // If the service is stopped, there is no scheduler to notify.
        if self.is_recovered() {
            for (lane, organization, id) in lanes {
                self.open_lane(&lane);
                self.lanes().count_stored(&lane, organization, id, 1);
            }
            self.timers.notify_one();
            self.scheduler.wake();
        }
        Ok(())
    }
}

/// Returns `None` for a row without a valid original key.
fn describe(row: Row) -> Option<HeldRow> {
    let (table, key) = held_back::original(&row.0)?;
    let execution = if table == Table::Lane {
        let (_, organization, id) = rows::parse_queued(&key)?;
        Some(rows::execution(organization, id))
    } else if table == Table::Timer {
        let (_, organization, id) = rows::parse_timer(&key, &row.1)?;
        Some(rows::execution(organization, id))
    } else {
        None
    };
    Some(HeldRow { table, key, row, execution })
}

fn is_unfinished(bytes: &[u8]) -> bool {
    decode::<Execution>(bytes).is_ok_and(|execution| !execution.status.is_final())
}
