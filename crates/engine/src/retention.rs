//! Retention: deletes the payloads of executions that ended long ago, and later the executions
//! themselves. Retention deletes in small batches so that the writer can serve other work in
//! between.
//!
//! Unfinished executions are never deleted, regardless of age. A prediction that ran as a workflow
//! step is deleted together with its workflow execution, because they share payloads.

use std::collections::HashSet;

use crate::events::ROWS_MAX;
use crate::query::history::{LANES_MAX, first_id_after};
use crate::query::indexes;
use crate::rows::{self, Standing};
use crate::{Engine, Error, Inner};
use orrery_domain::execution::{Execution, Kind, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId, WorkflowId};
use orrery_domain::payload::Payload;
use orrery_domain::step::Step;
use orrery_domain::time::Timestamp;
use orrery_runtime::SweepPace;
use orrery_storage::record::decode;
use orrery_storage::{Commit, Key, Page, Row};

/// Batch size for executions, and page size for the steps of one execution.
const BATCH_MAX: usize = 64;
/// Maximum number of steps deleted in the same commit as their execution.
const STEPS_IN_COMMIT: usize = 512;
/// All final statuses; workflow executions come before the predictions that are deleted with them.
const ENDED: [(Kind, Status); 15] = [
    (Kind::Workflow, Status::Success),
    (Kind::Workflow, Status::Error),
    (Kind::Workflow, Status::Cancelled),
    (Kind::Prediction, Status::Success),
    (Kind::Prediction, Status::Error),
    (Kind::Prediction, Status::Cancelled),
    (Kind::Chat, Status::Success),
    (Kind::Chat, Status::Error),
    (Kind::Chat, Status::Cancelled),
    (Kind::Decision, Status::Success),
    (Kind::Decision, Status::Error),
    (Kind::Decision, Status::Cancelled),
    (Kind::Agent, Status::Success),
    (Kind::Agent, Status::Error),
    (Kind::Agent, Status::Cancelled),
];

/// The part of an execution to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PurgeScope {
    /// The entire execution.
    Whole,
    /// The inputs and outputs of the execution.
    Payloads,
}

/// Rows that are deleted with an execution: its first steps, and all events that were sent to it.
#[derive(Debug, Default)]
struct Parts {
    steps: Vec<Row>,
    events: Vec<Row>,
}

/// A commit, and the payload files that are orphaned once the commit is durable.
#[derive(Default)]
struct Batch {
    commit: Commit,
    payloads: Vec<Payload>,
    steps: usize,
}

impl Engine {
    /// Deletes an organization's executions that ended before `cutoff`. Returns the number of
    /// deleted executions.
    ///
    /// # Errors
    /// [`Error::Storage`]; deletions committed before the error are not undone.
    pub async fn purge_before(
        &self,
        organization: OrganizationId,
        cutoff: Timestamp,
    ) -> Result<usize, Error> {
        self.inner.sweep(organization, None, cutoff, PurgeScope::Whole).await
    }

    /// Deletes the inputs and outputs of an organization's executions that ended before `cutoff`;
    /// clients then see them as null. Records the cutoff. An execution that was created before the
    /// recorded cutoff and ended after it keeps its payloads until the execution itself is deleted.
    ///
    /// # Errors
    /// [`Error::Storage`]; deletions committed before the error are not undone.
    pub async fn purge_payloads_before(
        &self,
        organization: OrganizationId,
        cutoff: Timestamp,
    ) -> Result<usize, Error> {
        let mark = rows::payloads_forgotten(organization);
        let store = &self.inner.store;
        let since = store.get(&mark).await?.and_then(|time| time.try_into().ok());
        let since = since.map(Timestamp::from_sortable);
        let count = self.inner.sweep(organization, since, cutoff, PurgeScope::Payloads).await?;
        let mut commit = Commit::new();
        commit.put_bytes(mark, cutoff.sortable().to_vec());
        store.commit(commit).await?;
        Ok(count)
    }
}

impl Inner {
    /// Deletes one ended execution. The writes in `beside` are part of the same commit.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotEnded`], also if the execution ran as a step of an
    /// execution that still exists; [`Error::Storage`].
    pub(super) async fn delete_ended(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        beside: Commit,
    ) -> Result<(), Error> {
        let key = rows::execution(organization, id);
        let latest = Timestamp::from_micros(i64::MAX);
        let ended = self.ended_before(organization, &[id], latest).await?;
        if ended.is_empty() {
            let _unended: Execution = self.store.read(&key).await?.ok_or(Error::NotFound)?;
            return Err(Error::NotEnded);
        }
        self.sweep_ended(organization, ended, PurgeScope::Whole, beside).await?;
        Ok(())
    }

    /// Sweeps executions created from `since` to `cutoff` that ended before `cutoff`.
    async fn sweep(
        &self,
        organization: OrganizationId,
        since: Option<Timestamp>,
        cutoff: Timestamp,
        going: PurgeScope,
    ) -> Result<usize, Error> {
        let pace = SweepPace::begin();
        let mut count = 0;
        for (kind, status) in ENDED {
            let standing = rows::standing(organization, kind, status);
            for lane in self.store.branches(&standing, LANES_MAX).await? {
                count += self.sweep_lane(organization, &lane, since, cutoff, going, pace).await?;
            }
        }
        Ok(count)
    }

    async fn sweep_lane(
        &self,
        organization: OrganizationId,
        lane: &Key,
        since: Option<Timestamp>,
        cutoff: Timestamp,
        going: PurgeScope,
        pace: SweepPace,
    ) -> Result<usize, Error> {
        let mut count = 0;
        let at = |time| lane.clone().id_newest_first(first_id_after(time));
        let (after, before) = (Some(at(cutoff)), since.map(at));
        let page = Page { prefix: lane.clone(), after, before, limit: BATCH_MAX };
        let mut scan = self.store.scan(page);
        while let Some(found) = scan.next_page().await? {
            let ids = found.iter().filter_map(|(key, _)| key.last_id_inverted::<ExecutionId>());
            let ids: Vec<ExecutionId> = ids.collect();
            let ended = self.ended_before(organization, &ids, cutoff).await?;
            let swept = self.sweep_ended(organization, ended, going, Commit::new()).await?;
            count += swept;
            // Executions that are retained were only read, so they do not count as deleted.
            pace.pause(swept).await;
        }
        Ok(count)
    }

    /// Sweeps ended executions. The writes in `beside` are part of the commit for the first of
    /// these executions.
    async fn sweep_ended(
        &self,
        organization: OrganizationId,
        ended: Vec<Execution>,
        going: PurgeScope,
        beside: Commit,
    ) -> Result<usize, Error> {
        let parts = self.parts(&ended).await?;
        let mut batch = Batch { commit: beside, ..Batch::default() };
        let owners = ended.iter().map(|execution| execution.id);
        self.store.release_usage(&mut batch.commit, organization, owners).await?;
        if going == PurgeScope::Whole {
            for key in self.trees_to_delete(organization, &ended).await? {
                batch.commit.delete(key);
            }
        }
        let mut workflows = HashSet::new();
        let mut count = 0;
        for (execution, parts) in ended.into_iter().zip(parts) {
            let Parts { steps, events } = parts;
            if steps.len() < BATCH_MAX {
                self.sweep_steps(&mut batch, &execution, steps, going).await?;
            } else {
                self.sweep_all_steps(&execution, going).await?;
            }
            for (key, _) in events {
                batch.commit.delete(key);
            }
            let workflow = execution.workflow().map(|run| run.workflow);
            if self.sweep_one(&mut batch, execution, going)? {
                count += 1;
                workflows.extend(workflow.filter(|_| going == PurgeScope::Whole));
            }
            if batch.steps >= STEPS_IN_COMMIT {
                self.finish(std::mem::take(&mut batch)).await?;
            }
        }
        self.finish(batch).await?;
        for workflow in workflows {
            self.trim_lists(organization, workflow).await?;
        }
        Ok(count)
    }

    /// Reads the executions that ended before `cutoff`, except those that ran as steps of an
    /// execution that still exists.
    async fn ended_before(
        &self,
        organization: OrganizationId,
        ids: &[ExecutionId],
        cutoff: Timestamp,
    ) -> Result<Vec<Execution>, Error> {
        let row_of = |id: &ExecutionId| rows::execution(organization, *id);
        let keys: Vec<Key> = ids.iter().map(row_of).collect();
        let mut ended = Vec::new();
        for (id, row) in ids.iter().zip(self.store.get_many(&keys).await?) {
            match row.as_deref().map(decode::<Execution>) {
                Some(Ok(execution)) => ended.push(execution),
                // A damaged execution must not block the deletion of the executions after it.
                // `orrery verify` reports it.
                Some(Err(error)) => {
                    tracing::warn!(execution = %id, %error, "damaged execution not deleted");
                }
                None => {}
            }
        }
        ended.retain(|execution| execution.completed_at.is_some_and(|ended| ended < cutoff));
        let parent_of = |execution: &Execution| {
            execution.prediction()?.step.as_ref().map(|step| step.execution)
        };
        let parents: Vec<ExecutionId> = ended.iter().filter_map(parent_of).collect();
        let keys: Vec<Key> = parents.iter().map(row_of).collect();
        let there = parents.iter().zip(self.store.get_many(&keys).await?);
        let there: HashSet<_> = there.filter_map(|(id, row)| row.map(|_row| *id)).collect();
        ended
            .retain(|execution| parent_of(execution).is_none_or(|parent| !there.contains(&parent)));
        Ok(ended)
    }

    /// Reads the first steps of each execution, and all of its events.
    async fn parts(&self, executions: &[Execution]) -> Result<Vec<Parts>, Error> {
        let pages_of = |execution: &Execution| {
            let steps = Page::of(rows::steps(execution.id), BATCH_MAX);
            [steps, Page::of(rows::events(execution.id), ROWS_MAX)]
        };
        let with_steps = executions.iter().filter(|execution| execution.has_steps());
        let pages: Vec<Page> = with_steps.flat_map(pages_of).collect();
        if pages.is_empty() {
            return Ok(executions.iter().map(|_execution| Parts::default()).collect());
        }
        let mut found = self.store.pages(pages).await?.into_iter();
        let mut next = || found.next().unwrap_or_default();
        let parts = executions.iter().map(|execution| match execution.has_steps() {
            true => Parts { steps: next(), events: next() },
            false => Parts::default(),
        });
        Ok(parts.collect())
    }

    /// Adds the deletion of one execution, or of its payloads, to the batch. Returns whether
    /// anything is deleted.
    fn sweep_one(
        &self,
        batch: &mut Batch,
        mut execution: Execution,
        going: PurgeScope,
    ) -> Result<bool, Error> {
        let key = rows::execution(execution.organization, execution.id);
        if going == PurgeScope::Payloads
            && execution.output.is_none()
            && execution.input.is_nothing()
        {
            return Ok(false);
        }
        let input = std::mem::replace(&mut execution.input, Payload::nothing());
        let payloads = std::iter::once(input).chain(execution.output.take());
        for payload in payloads {
            self.release(batch, payload);
        }
        match going {
            PurgeScope::Payloads => {
                batch.commit.put(key, &execution)?;
            }
            PurgeScope::Whole => {
                batch.commit.delete(key);
                indexes::remove(&mut batch.commit, &execution);
                if let Some(bulk) = execution.workflow().and_then(|run| run.bulk) {
                    batch.commit.delete(rows::bulk(bulk).id(execution.id));
                }
            }
        }
        Ok(true)
    }

    fn release(&self, batch: &mut Batch, payload: Payload) {
        self.store.release(&mut batch.commit, &payload);
        if payload.file().is_some() {
            batch.payloads.push(payload);
        }
    }

    async fn finish(&self, batch: Batch) -> Result<(), Error> {
        if !batch.commit.is_empty() {
            self.store.commit(batch.commit).await?;
        }
        for payload in batch.payloads {
            self.store.remove_payload(&payload).await?;
        }
        Ok(())
    }

    /// If an execution has many steps, sweeps these steps in several commits, before the execution
    /// itself.
    async fn sweep_all_steps(&self, execution: &Execution, going: PurgeScope) -> Result<(), Error> {
        let pace = SweepPace::begin();
        let mut scan = self.store.scan(Page::of(rows::steps(execution.id), BATCH_MAX));
        while let Some(found) = scan.next_page().await? {
            let count = found.len();
            let mut batch = Batch::default();
            self.sweep_steps(&mut batch, execution, found, going).await?;
            self.finish(batch).await?;
            pace.pause(count).await;
        }
        Ok(())
    }

    /// Sweeps steps of an execution, and the predictions that ran as these steps and share the
    /// steps' payloads.
    async fn sweep_steps(
        &self,
        batch: &mut Batch,
        execution: &Execution,
        found: Vec<Row>,
        going: PurgeScope,
    ) -> Result<(), Error> {
        batch.steps += found.len();
        let mut predictions = Vec::new();
        for (key, row) in found {
            let mut step: Step = match decode(&row) {
                Ok(step) => step,
                Err(error) => {
                    tracing::warn!(execution = %execution.id, %error, "damaged step");
                    if going == PurgeScope::Whole {
                        batch.commit.delete(key);
                    }
                    continue;
                }
            };
            // The executions that an exchange started are subject to retention themselves.
            predictions.extend(step.prediction.filter(|_| execution.workflow().is_some()));
            for payload in [step.input.take(), step.output.take()].into_iter().flatten() {
                self.release(batch, payload);
            }
            match going {
                PurgeScope::Whole => {
                    batch.commit.delete(key);
                }
                PurgeScope::Payloads => {
                    batch.commit.put(key, &step)?;
                }
            }
        }
        let row_of = |id: &ExecutionId| rows::execution(execution.organization, *id);
        let keys: Vec<Key> = predictions.iter().map(row_of).collect();
        for row in self.store.get_many(&keys).await?.iter().flatten() {
            self.sweep_one(batch, decode(row)?, going)?;
        }
        Ok(())
    }

    /// Trims deleted executions from the old ends of their workflows' lists.
    async fn trim_lists(
        &self,
        organization: OrganizationId,
        workflow: WorkflowId,
    ) -> Result<(), Error> {
        let standings = rows::standings(organization, workflow);
        let ended = [Standing::Completed, Standing::Failed, Standing::Cancelled];
        let ended = ended.map(|standing| rows::ended(&standings, standing));
        for list in ended.iter().chain([&rows::of_workflow(organization, workflow)]) {
            while self.trim(organization, list).await? {}
        }
        Ok(())
    }

    /// Trims up to [`BATCH_MAX`] rows from a list. Returns whether there may be more.
    async fn trim(&self, organization: OrganizationId, list: &Key) -> Result<bool, Error> {
        let old = self.store.old_end(list, BATCH_MAX).await?;
        let ids = old.rows.iter().filter_map(|row| <[u8; 16]>::try_from(row.as_slice()).ok());
        let keys: Vec<Key> = ids.map(|id| rows::execution(organization, id.into())).collect();
        let there = self.store.get_many(&keys).await?;
        let gone = there.iter().take_while(|row| row.is_none()).count();
        if gone > 0 {
            let mut commit = Commit::new();
            old.trim(&mut commit, gone);
            self.store.commit(commit).await?;
        }
        Ok(gone == BATCH_MAX)
    }
}
