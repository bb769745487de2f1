//! Recovery of unfinished work at startup.
//!
//! Recovery only counts the rows of the lanes, page by page; the executions are read when their
//! turn comes, under the same caps as new executions. Work that was in flight also has a row, and
//! runs again with the same attempt number. Suspended executions are in the timers, which are read
//! when they are due. Executions that may have crashed the process are quarantined and first run
//! alone, see `isolation`.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;

use crate::consistency::organization_of;
use crate::{Engine, Error, Inner, rows};
use orrery_domain::execution::{Kind, Status};
use orrery_domain::ids::OrganizationId;
use orrery_runtime as runtime;
use orrery_storage::{Key, Page, Store, Table};

/// Delay before a panicked task is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);

impl Engine {
    /// Whether any stored work may have a due time: whether there is a timer, or a queued workflow,
    /// whose steps may have due times.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store cannot be read.
    pub async fn awaits_moment(&self) -> Result<bool, Error> {
        for prefix in [rows::timers(), rows::queues_of_workflows()] {
            if self.inner.store.has_any(prefix).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Recovers all unfinished work and begins to run it. Returns the number of recovered
    /// executions. Call this function once, before any work is submitted.
    ///
    /// # Errors
    /// [`Error::Storage`] if the lanes cannot be read.
    pub async fn recover(&self) -> Result<usize, Error> {
        if let Some(since) = self.inner.read_pause().await? {
            tracing::warn!(
                restored_at = %since,
                "store restored from a backup: unfinished executions and webhooks wait \
                 for `orrery resume`"
            );
        }
        let quarantined = self.inner.judge_crash().await?;
        self.inner.count_queued().await?;
        let mut total = 0_usize;
        for (organization, count) in count_unfinished(&self.inner.store).await? {
            self.inner.lanes().count_unfinished(organization, count);
            total = total.saturating_add(count);
        }
        self.inner.is_recovered.store(true, Ordering::Release);
        if !quarantined.is_empty() {
            self.inner.lanes().hold_starts(true);
            let inner = Arc::clone(&self.inner);
            self.inner.tasks.spawn(inner.run_quarantined(quarantined));
        }
        self.inner.supervise("dispatcher", Inner::dispatch);
        self.inner.supervise("timekeeper", Inner::run_timers);
        self.inner.supervise("bulk jobs", Inner::run_jobs);
        self.inner.supervise("audit", Inner::run_consistency_checks);
        Ok(total)
    }
}

impl Inner {
    /// Counts the rows of the lanes per organization.
    async fn count_queued(&self) -> Result<(), Error> {
        let mut newest = None;
        let mut scan = self.store.scan(rows::queues());
        while let Some((key, _)) = scan.next().await? {
            let Some((lane, organization, id)) = rows::parse_queued(&key) else {
                tracing::error!(?key, "skipped an unreadable queue row");
                continue;
            };
            self.open_lane(&lane);
            self.lanes().count_stored(&lane, organization, id, 1);
            newest = newest.max(Some(id));
        }
        // Ids of new work sort after those of queued work, even if the system clock was set back.
        newest.into_iter().for_each(runtime::ids_follow);
        Ok(())
    }

    /// Runs a task until the service stops, and restarts it if it panics.
    fn supervise<F>(self: &Arc<Self>, name: &'static str, work: fn(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let inner = Arc::clone(self);
        self.tasks.spawn(async move {
            while AssertUnwindSafe(work(Arc::clone(&inner))).catch_unwind().await.is_err() {
                tracing::error!(task = name, "engine task panicked; restarting");
                tokio::time::sleep(RESTART_DELAY).await;
            }
        });
    }
}

/// Counts the unfinished executions of each organization.
async fn count_unfinished(store: &Store) -> Result<HashMap<OrganizationId, usize>, Error> {
    let mut counts = HashMap::new();
    let all = Key::table(Table::Standing);
    let mut organizations = store.scan(Page::of(all.clone(), 1));
    while let Some((key, _)) = organizations.next().await?
        && let Some(organization) = organization_of(&key)
    {
        for kind in Kind::ALL {
            let mut scan = store.scan(rows::standing(organization, kind, Status::Created));
            while let Some(rows) = scan.next_page().await? {
                *counts.entry(organization).or_insert(0) += rows.len();
            }
        }
        organizations.skip_prefix(&all.clone().id(organization));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation_tests::{ORGANIZATION, PATIENCE, Process, Script, prediction, runtime};
    use crate::{Options, Submission};
    use orrery_storage::Commit;

    /// After a start, the backlog of one organization does not delay others in the same lane.
    #[test]
    fn recovery_runs_others_beside_backlog_of_one_organization() {
        const BACKLOG: usize = 900;
        let other: OrganizationId = [9; 16].into();
        let folder = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let start =
                || Process::start_with(&folder, i64::MAX, Script::default(), Options::default());
            let process = start();
            let backlog = (0..BACKLOG).map(|number| prediction(number, &["works"], false));
            let backlog: Vec<_> = backlog.collect();
            let ids: Vec<orrery_domain::ids::ExecutionId> =
                backlog.iter().map(|one| one.id).collect();
            // The dispatcher is not started.
            process.engine.submit(backlog, Commit::new()).await.unwrap();
            process.engine.inner.tasks.stop();
            process.store.clone().close().await;
            drop(process);
            let process = start();
            let (engine, inner) = (&process.engine, &process.engine.inner);
            inner.lanes().hold_starts(true);
            assert_eq!(engine.recover().await.unwrap(), BACKLOG);
            let one = Submission { organization: other, ..prediction(0, &["works"], false) };
            let id = one.id;
            engine.submit(vec![one], Commit::new()).await.unwrap();
            inner.start_others();
            let ended = engine.wait(other, id, PATIENCE).await.unwrap();
            assert!(ended.status.is_final(), "{ended:?}");
            let mut before = 0;
            for id in ids {
                let one = engine.get(ORGANIZATION.into(), id).await.unwrap();
                before += usize::from(one.started_at.is_some_and(|at| Some(at) < ended.started_at));
            }
            assert!(before <= 10, "{before} of the backlog began before it");
            inner.tasks.stop();
        });
    }
}
