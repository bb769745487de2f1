//! Consistency checks: compare in-memory state with the store, and repair and report mismatches.
//!
//! As long as the engine works correctly, a check finds nothing. A check looks for permits held by
//! dead tasks, queue rows unknown to the scheduler, executions that are neither in a lane nor in
//! the timers, and reservations that match no unfinished execution. Each check reads a limited
//! number of rows, and confirms a mismatch with a second read before it repairs the mismatch.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::scheduler::lanes;
use crate::{Error, Inner, rows};
use orrery_domain::execution::{Execution, Kind, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine::Effect;
use orrery_domain::money::Usd;
use orrery_records::billing;
use orrery_storage::{Commit, Key, Page, Table};

/// Interval between checks.
const INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of unfinished executions per check.
const EXECUTIONS_MAX: usize = 10_000;
/// The kinds of executions that are stored before they end.
const KINDS: [Kind; 4] = [Kind::Agent, Kind::Chat, Kind::Prediction, Kind::Workflow];

/// The number of mismatches that a check found and repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Repairs {
    /// Permits that dead tasks held or that were miscounted.
    pub places: usize,
    /// Lanes with rows unknown to the scheduler.
    pub lanes: usize,
    /// Executions that were neither in a lane nor in the timers.
    pub executions: usize,
    /// Organizations whose reserved amount differed from the sum over their unfinished executions.
    pub reservations: usize,
}

/// State that one check passes on to the next.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Maximum number of unfinished executions per check.
    most: usize,
    /// Reserved amounts that did not match in the previous check.
    drifts: HashMap<OrganizationId, Usd>,
    /// The index row after which the next check continues.
    at: Option<Key>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self::of(EXECUTIONS_MAX)
    }
}

impl Rounds {
    /// Creates the state for checks that each visit up to `most` unfinished executions.
    pub(crate) fn of(most: usize) -> Self {
        Self { most, drifts: HashMap::new(), at: None }
    }
}

/// One check's walk through the unfinished executions.
struct Walk {
    left: usize,
    /// Sum of the reservations of the current organization's executions.
    sum: Usd,
    /// Number of the current organization's executions visited so far.
    met: usize,
    found: Repairs,
}

impl Walk {
    /// Creates a walk over up to `most` executions. The walk's repairs are added to `found`.
    const fn of(most: usize, found: Repairs) -> Self {
        Self { left: most, sum: Usd::ZERO, met: 0, found }
    }
}

impl Inner {
    /// Runs a check every minute until the service stops.
    pub(super) async fn run_consistency_checks(self: Arc<Self>) {
        let mut before = Repairs::default();
        let mut rounds = Rounds::default();
        loop {
            tokio::select! {
                () = self.tasks.stopping() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            match self.check_consistency(&mut rounds).await {
                Ok(found) => report(found, &mut before),
                Err(error) => tracing::warn!(%error, "consistency check cannot read the store"),
            }
        }
    }

    /// Runs one check.
    pub(super) async fn check_consistency(
        self: &Arc<Self>,
        rounds: &mut Rounds,
    ) -> Result<Repairs, Error> {
        let found = Repairs {
            places: self.check_slots(),
            lanes: self.check_lanes().await?,
            ..Repairs::default()
        };
        self.check_executions(found, rounds).await
    }

    /// Releases permits that dead tasks hold. The executions of these tasks are then read from the
    /// store again.
    fn check_slots(&self) -> usize {
        let mut lanes = self.lanes();
        let leaked = lanes.leaked();
        for (lane, organization, id) in &leaked {
            lanes.release(lane, *id);
            lanes.count_stored(lane, *organization, *id, 0);
        }
        let places = leaked.len() + usize::from(lanes.recount());
        drop(lanes);
        if places > 0 {
            self.scheduler.wake();
        }
        places
    }

    /// Finds lanes whose in-memory window should contain all of the lane's rows but does not.
    async fn check_lanes(&self) -> Result<usize, Error> {
        let mut found = 0;
        let mut lanes = self.store.scan(Page::of(rows::queues(), 1));
        while let Some((key, _)) = lanes.next().await? {
            let Some((lane, ..)) = rows::parse_queued(&key) else { continue };
            lanes.skip_prefix(&rows::queue(&lane));
            self.open_lane(&lane);
            let whole = self.lanes().complete_len(&lane);
            if let Some(known) = whole
                && let Some((organization, id)) = self.find_unknown(&lane, known).await?
            {
                found += 1;
                tracing::error!(
                    lane,
                    "consistency check found queue rows unknown to the scheduler"
                );
                self.lanes().count_stored(&lane, organization, id, 0);
                self.scheduler.wake();
            }
        }
        Ok(found)
    }

    /// Returns a row that a lane should have in memory but does not, after confirming it with a
    /// second read. The next check finds such rows of other organizations.
    async fn find_unknown(
        &self,
        lane: &str,
        known: usize,
    ) -> Result<Option<(OrganizationId, ExecutionId)>, Error> {
        let page = Page::of(rows::queue(lane), known.saturating_add(lanes::WINDOW));
        for (key, _) in self.store.page(page).await? {
            let Some((_, organization, id)) = rows::parse_queued(&key) else { continue };
            let is_held = self.isolation.quarantined().contains(&id);
            if is_held || self.lanes().knows(lane, id) {
                continue;
            }
            // The execution may have left the lane since the first read. If its row still exists,
            // the lane should contain it, because the commit that added the row had to announce it
            // to the lane.
            let exists = self.store.get(&key).await?.is_some();
            let lanes = self.lanes();
            if exists && !lanes.knows(lane, id) && lanes.complete_len(lane).is_some() {
                return Ok(Some((organization, id)));
            }
        }
        Ok(None)
    }

    /// Checks that every unfinished execution is in a lane or in the timers, and that each
    /// organization's reserved amount is the sum of its executions' reservations. If there are more
    /// executions than one check visits, the next check continues where this check stopped. The
    /// reserved amount of an organization is compared only if one check visits all of its
    /// executions, and none of them begins or ends during the check. To correct an amount, two such
    /// checks are needed.
    async fn check_executions(
        self: &Arc<Self>,
        found: Repairs,
        rounds: &mut Rounds,
    ) -> Result<Repairs, Error> {
        let mut walk = Walk::of(rounds.most, found);
        let is_paused = self.held_back.since().is_some();
        if is_paused {
            // Work held back by a restore is stored in another table.
            return Ok(walk.found);
        }
        let prefix = Key::table(Table::Standing);
        let mut resumed = rounds.at.take();
        let first = resumed.as_ref().and_then(organization_of);
        let after = first.map(|organization| prefix.clone().id(organization));
        let mut organizations = self.store.scan(Page { after, ..Page::of(prefix.clone(), 1) });
        while let Some((key, _)) = organizations.next().await?
            && let Some(organization) = organization_of(&key)
        {
            organizations.skip_prefix(&prefix.clone().id(organization));
            let resumed = resumed.take().filter(|key| organization_of(key) == Some(organization));
            let before = match &resumed {
                None => self.unfinished_ids(organization, walk.left).await?,
                Some(_) => None,
            };
            let reserved = billing::reserved(&self.store, organization).await?;
            rounds.at = self.check_organization(organization, resumed, &mut walk).await?;
            if rounds.at.is_some() {
                return Ok(walk.found);
            }
            let Some(before) = before else { continue };
            let is_same = reserved == billing::reserved(&self.store, organization).await?;
            let after = self.unfinished_ids(organization, before.len()).await?;
            if is_same && after.is_some_and(|after| is_of_one_moment(&before, &walk, &after)) {
                let drift = reserved.plus(-walk.sum);
                self.check_reserved(organization, drift, &mut rounds.drifts, &mut walk.found)
                    .await?;
            }
        }
        Ok(walk.found)
    }

    /// Returns the unfinished executions of an organization, or `None` if there are more than
    /// `most`.
    async fn unfinished_ids(
        &self,
        organization: OrganizationId,
        most: usize,
    ) -> Result<Option<BTreeSet<ExecutionId>>, Error> {
        let mut ids = BTreeSet::new();
        for kind in KINDS {
            let mut scan = self.store.scan(rows::standing(organization, kind, Status::Created));
            while let Some((key, _)) = scan.next().await? {
                ids.extend(key.last_id_inverted::<ExecutionId>());
                if ids.len() > most {
                    return Ok(None);
                }
            }
        }
        Ok(Some(ids))
    }

    /// Checks the unfinished executions of an organization, continuing where the previous check
    /// stopped. Returns the key where this check stops, or `None` once all executions were visited.
    async fn check_organization(
        self: &Arc<Self>,
        organization: OrganizationId,
        resumed: Option<Key>,
        walk: &mut Walk,
    ) -> Result<Option<Key>, Error> {
        (walk.sum, walk.met) = (Usd::ZERO, 0);
        for kind in KINDS {
            let index = rows::standing(organization, kind, Status::Created);
            let is_within = |key: &&Key| key.as_bytes().starts_with(index.as_bytes());
            let after = resumed.as_ref().filter(is_within).cloned();
            if after.is_none() && resumed.as_ref().is_some_and(|key| *key > index) {
                // The previous check has already covered this index.
                continue;
            }
            let stopped = self.check_index(index, after, organization, walk).await?;
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        Ok(None)
    }

    /// Returns the key after which the check stops, or `None` at the end of the index.
    async fn check_index(
        self: &Arc<Self>,
        index: Key,
        after: Option<Key>,
        organization: OrganizationId,
        walk: &mut Walk,
    ) -> Result<Option<Key>, Error> {
        let mut stopped = after.clone().unwrap_or_else(|| index.clone());
        let mut scan = self.store.scan(Page { after, ..index.into() });
        while let Some((key, _)) = scan.next().await? {
            if walk.left == 0 {
                return Ok(Some(stopped));
            }
            walk.left -= 1;
            if let Some(id) = key.last_id_inverted() {
                walk.met += 1;
                self.check_execution(organization, id, walk).await?;
            }
            stopped = key;
        }
        Ok(None)
    }

    async fn check_execution(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
        walk: &mut Walk,
    ) -> Result<(), Error> {
        let key = rows::execution(organization, id);
        // An execution that cannot be read is reported when the scheduler tries to run it.
        let Ok(Some(execution)) = self.store.read::<Execution>(&key).await else { return Ok(()) };
        if execution.status.is_final() {
            return Ok(());
        }
        walk.sum = walk.sum.plus(execution.reserved);
        if !self.has_owner(&execution).await? && self.requeue_orphan(organization, id).await? {
            walk.found.executions += 1;
        }
        Ok(())
    }

    /// Whether the execution has an owner: whether it is in its lane or in the timers.
    async fn has_owner(&self, execution: &Execution) -> Result<bool, Error> {
        let row = match execution.aside_until() {
            Some(due) => rows::timer(due, execution.id),
            None => rows::queued(&execution.lane(), execution.organization, execution.id),
        };
        Ok(self.store.get(&row).await?.is_some())
    }

    /// Puts an execution without an owner back into its lane. Reads the execution again while its
    /// cell is locked, so that it cannot change concurrently. Returns false if the execution has an
    /// owner.
    async fn requeue_orphan(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<bool, Error> {
        let active = self.active.get_or_insert(id);
        let mut state = active.state.lock().await;
        let stored = self.store.read::<Execution>(&rows::execution(organization, id)).await?;
        let Some(mut execution) = stored.filter(|stored| !stored.status.is_final()) else {
            return Ok(false);
        };
        if self.has_owner(&execution).await? {
            return Ok(false);
        }
        tracing::error!(
            execution = %id,
            "consistency check found an execution in no lane and no timer"
        );
        execution.take_suspension();
        let effects = [Effect::Enqueue { lane: execution.lane() }];
        self.write(Commit::new(), &execution, &effects, None).await?;
        if let Some(loaded) = state.as_mut() {
            loaded.execution = execution;
        }
        Ok(true)
    }

    /// Corrects the reserved amount once two consecutive checks find the same difference.
    async fn check_reserved(
        &self,
        organization: OrganizationId,
        drift: Usd,
        drifts: &mut HashMap<OrganizationId, Usd>,
        found: &mut Repairs,
    ) -> Result<(), Error> {
        if drift == Usd::ZERO {
            drifts.remove(&organization);
            return Ok(());
        }
        if drifts.insert(organization, drift) != Some(drift) {
            return Ok(());
        }
        tracing::error!(%organization, %drift, "consistency check corrected the reserved amount");
        let mut commit = Commit::new();
        billing::correct_reserved(&mut commit, organization, -drift);
        self.store.commit(commit).await?;
        drifts.remove(&organization);
        found.reservations += 1;
        Ok(())
    }
}

/// Whether a walk visited exactly the executions that were unfinished both before and after the
/// walk. It is not enough to compare the reserved amounts: if one execution ends and another
/// execution with the same price begins, the amount is unchanged, but the walk may have visited
/// neither of them.
fn is_of_one_moment(
    before: &BTreeSet<ExecutionId>,
    walk: &Walk,
    after: &BTreeSet<ExecutionId>,
) -> bool {
    before == after && walk.met == before.len()
}

/// Parses the organization from the key of an index row.
pub(super) fn organization_of(key: &Key) -> Option<OrganizationId> {
    let bytes = key.as_bytes().get(1..)?.first_chunk::<16>()?;
    Some(OrganizationId::from(*bytes))
}

/// Adds the repairs to the totals and logs the result when it changes.
fn report(found: Repairs, before: &mut Repairs) {
    let kinds = [
        ("places", found.places),
        ("lanes", found.lanes),
        ("executions", found.executions),
        ("reservations", found.reservations),
    ];
    for (kind, count) in kinds {
        metrics::counter!("orrery_audit_repairs_total", "kind" => kind).increment(count as u64);
    }
    if found != *before {
        let Repairs { places, lanes, executions, reservations } = found;
        tracing::warn!(
            places,
            lanes,
            executions,
            reservations,
            "consistency check repairs changed"
        );
        *before = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::simulation_tests::{ORGANIZATION, Process, Script, prediction, runtime};

    /// One execution ends before the walk reaches it, and another execution with the same price
    /// begins at a position that the walk has already passed. The reserved amount is correct
    /// although the walk's sum is lower.
    #[test]
    fn consistency_check_ignores_sum_when_executions_changed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let options = Options { enforce_balance: true, ..Options::default() };
            let process = Process::start_with(&folder, i64::MAX, Script::default(), options);
            let (engine, inner) = (&process.engine, &process.engine.inner);
            let organization: OrganizationId = ORGANIZATION.into();
            inner.billing.top_up(organization, Usd::from_micros(1_000_000)).await.unwrap();
            // These executions stay queued because the dispatcher is not started.
            let submit = async |number: usize| {
                let one = prediction(number, &["works"], false);
                let id = one.id;
                engine.submit(vec![one], Commit::new()).await.unwrap();
                id
            };
            let unfinished =
                async || inner.unfinished_ids(organization, 10).await.unwrap().unwrap();
            let reserved = async || billing::reserved(&inner.store, organization).await.unwrap();
            let first = submit(0).await;
            submit(1).await;
            let (before, known) = (unfinished().await, reserved().await);
            engine.cancel(organization, first).await.unwrap();
            let mut walk = Walk::of(10, Repairs::default());
            let stopped = inner.check_organization(organization, None, &mut walk).await.unwrap();
            assert_eq!(stopped, None);
            submit(2).await;
            assert!(reserved().await == known && walk.sum < known);
            let after = unfinished().await;
            assert!(!is_of_one_moment(&before, &walk, &after));
            inner.check_organization(organization, None, &mut walk).await.unwrap();
            assert!(is_of_one_moment(&after, &walk, &unfinished().await));
            assert_eq!(walk.sum, known);
            inner.tasks.stop();
        });
    }
}
