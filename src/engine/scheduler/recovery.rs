//! Recovery: what a start finds unfinished.
//!
//! Only the rows of the lanes are read, a page at a time, and only counted: the executions behind
//! them are read when their turn comes, under the same caps as new ones. Work that was in flight
//! has a row too; it is taken again and runs again under its attempt's number. What waits for a
//! moment is in the timers, which are read as they come due. What may have killed the process is
//! held back and runs alone first, see `isolation`.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;

use crate::domain::execution::{Kind, Status};
use crate::domain::ids::OrganizationId;
use crate::engine::consistency::organization_of;
use crate::engine::{Engine, Error, Inner, rows};
use crate::runtime;
use crate::storage::{Key, Page, Store, Table};

/// Rows of the lanes that are read at once.
const PAGE: usize = 4096;
/// When a task that panicked is restarted.
const RESTART_DELAY: Duration = Duration::from_secs(1);

impl Engine {
    /// Whether anything on the disk waits for a moment: a timer, or a workflow in its lane, which may
    /// have steps that do.
    ///
    /// # Errors
    /// [`Error::Storage`] when the store cannot be read.
    pub async fn awaits_moment(&self) -> Result<bool, Error> {
        for prefix in [rows::timers(), rows::queues_of_workflows()] {
            let page = Page { prefix, after: None, before: None, limit: 1 };
            if !self.inner.store.page(page).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes up everything unfinished and begins to run. Answers how many there were. Called once,
    /// before work is submitted.
    ///
    /// # Errors
    /// [`Error::Storage`] when the lanes cannot be read.
    pub async fn recover(&self) -> Result<usize, Error> {
        if let Some(since) = self.inner.read_pause().await? {
            tracing::warn!(
                restored_at = %since,
                "this store was restored from a backup: its unfinished executions and webhooks wait \
                 for `orrery resume`"
            );
        }
        let quarantined = self.inner.judge_crash().await?;
        let total = self.inner.count_queued().await?;
        for (organization, count) in count_unfinished(&self.inner.store).await? {
            self.inner.lanes().count_unfinished(organization, count);
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
    /// Counts the rows of the lanes, each for its organization.
    async fn count_queued(&self) -> Result<usize, Error> {
        let mut total = 0;
        let mut after = None;
        let mut newest = None;
        loop {
            let page = Page { prefix: rows::queues(), after, before: None, limit: PAGE };
            let rows = self.store.page(page).await?;
            for (key, _) in &rows {
                let Some((lane, organization, id)) = rows::parse_queued(key) else {
                    tracing::error!(?key, "a row of a lane cannot be read");
                    continue;
                };
                self.open_lane(&lane);
                self.lanes().count_stored(&lane, (organization, id), 1);
                total += 1;
                newest = newest.max(Some(id));
            }
            match rows.into_iter().last() {
                Some((key, _)) => after = Some(key),
                None => {
                    // New work comes after what waits, also after the machine's clock was set back.
                    newest.into_iter().for_each(runtime::ids_follow);
                    return Ok(total);
                }
            }
        }
    }

    /// Runs a task for as long as the service does, and restarts it if it panics.
    fn supervise<F>(self: &Arc<Self>, name: &'static str, work: fn(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let inner = Arc::clone(self);
        self.tasks.spawn(async move {
            while AssertUnwindSafe(work(Arc::clone(&inner))).catch_unwind().await.is_err() {
                tracing::error!(task = name, "a task of the engine panicked and is restarted");
                tokio::time::sleep(RESTART_DELAY).await;
            }
        });
    }
}

/// How many executions of each organization have not ended.
async fn count_unfinished(store: &Store) -> Result<HashMap<OrganizationId, usize>, Error> {
    let mut counts = HashMap::new();
    let all = Key::table(Table::Standing);
    let mut after = None;
    loop {
        let page = Page { prefix: all.clone(), after, before: None, limit: 1 };
        let first = store.page(page).await?;
        let found = first.first().and_then(|(key, _)| organization_of(key));
        let Some(organization) = found else { return Ok(counts) };
        for kind in Kind::ALL {
            let prefix = rows::standing(organization, kind, Status::Created);
            let mut last = None;
            loop {
                let page = Page { prefix: prefix.clone(), after: last, before: None, limit: PAGE };
                let rows = store.page(page).await?;
                let Some((key, _)) = rows.last() else { break };
                last = Some(key.clone());
                *counts.entry(organization).or_insert(0) += rows.len();
            }
        }
        after = Some(all.clone().id(organization).raw(&[0xff; 64]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulation_tests::{
        ORGANIZATION, PATIENCE, Process, Script, prediction, runtime,
    };
    use crate::engine::{Options, Submission};
    use crate::storage::Commit;

    /// What one organization has in a lane at a start keeps no other one waiting there.
    #[test]
    fn recovery_runs_others_beside_the_backlog_of_one() {
        const BACKLOG: usize = 900;
        let other: OrganizationId = [9; 16].into();
        let folder = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let start =
                || Process::start_with(&folder, i64::MAX, Script::default(), Options::default());
            let process = start();
            let backlog = (0..BACKLOG).map(|number| prediction(number, &["works"], false));
            let backlog: Vec<_> = backlog.collect();
            let ids: Vec<crate::domain::ids::ExecutionId> =
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
