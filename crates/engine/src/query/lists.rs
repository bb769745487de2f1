//! Lists of a workflow's executions, newest first, with exact totals.
//!
//! Most pages come from counted lists, in which any page takes one read: one list of all
//! executions, and one list per final status, ordered by completion. Unfinished executions have a
//! separate index, in which the cost of a page grows with its offset. The executions of one bulk
//! trigger are few, so all of them are read.

use crate::rows::{self, Standing};
use crate::{Engine, Error};
use orrery_domain::execution::{Execution, Kind, Status, TOGETHER_MAX, lane_of_workflow};
use orrery_domain::ids::{BulkId, ExecutionId, OrganizationId, WorkflowId};
use orrery_storage::record::decode;
use orrery_storage::{Key, Page};

/// Selects executions of a workflow.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    pub bulk: Option<BulkId>,
    pub standing: Option<Standing>,
    pub offset: u64,
    pub limit: usize,
}

impl Engine {
    /// Returns a page of an organization's executions of a workflow, and the total number of
    /// matches.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn executions_of(
        &self,
        organization: OrganizationId,
        workflow: WorkflowId,
        query: Query,
    ) -> Result<(Vec<Execution>, u64), Error> {
        if let Some(bulk) = query.bulk {
            return self.of_bulk(organization, workflow, bulk, query).await;
        }
        let store = &self.inner.store;
        let standings = rows::standings(organization, workflow);
        let list = match query.standing {
            None => rows::of_workflow(organization, workflow),
            Some(Standing::Unfinished) => {
                // The number of unfinished executions is the number of rows ever appended to the
                // list of all executions, minus the rows ever appended to the other lists.
                let ended = [Standing::Completed, Standing::Failed, Standing::Cancelled];
                let ended = ended.map(|standing| rows::ended(&standings, standing));
                let all = rows::of_workflow(organization, workflow);
                let appended = store.counters(&[&[all][..], &ended].concat()).await?;
                let total = appended.into_iter().reduce(|all, ended| all.saturating_sub(ended));
                let total = total.unwrap_or_default();
                let index = rows::standing(organization, Kind::Workflow, Status::Processing)
                    .text(&lane_of_workflow(workflow));
                let ids = self.newest(&index, query).await?;
                let found = self.read_all(organization, &ids).await?;
                return Ok((found, u64::try_from(total).unwrap_or_default()));
            }
            Some(ended @ (Standing::Completed | Standing::Failed | Standing::Cancelled)) => {
                rows::ended(&standings, ended)
            }
        };
        let list = store.list(&list, query.offset, query.limit).await?;
        let id = |row: Vec<u8>| Some(ExecutionId::from(<[u8; 16]>::try_from(row).ok()?));
        let ids: Vec<_> = list.rows.into_iter().filter_map(id).collect();
        let total = list.total;
        Ok((self.read_all(organization, &ids).await?, total))
    }

    /// Returns the ids in which the keys of an index end, after skipping the query's offset.
    async fn newest(&self, index: &Key, query: Query) -> Result<Vec<ExecutionId>, Error> {
        let mut skip = usize::try_from(query.offset).unwrap_or(usize::MAX);
        let mut ids = Vec::new();
        let page = Page::of(index.clone(), skip.saturating_add(query.limit));
        let mut scan = self.inner.store.scan(page);
        while ids.len() < query.limit
            && let Some((key, _)) = scan.next().await?
        {
            if skip == 0 {
                ids.extend(key.last_id_inverted::<ExecutionId>());
            } else {
                skip -= 1;
            }
        }
        Ok(ids)
    }

    async fn of_bulk(
        &self,
        organization: OrganizationId,
        workflow: WorkflowId,
        bulk: BulkId,
        query: Query,
    ) -> Result<(Vec<Execution>, u64), Error> {
        let found = self.inner.store.page(Page::of(rows::bulk(bulk), TOGETHER_MAX)).await?;
        let ids: Vec<ExecutionId> = found.iter().filter_map(|(key, _)| key.last_id()).collect();
        let matches = |execution: &Execution| {
            execution.workflow().is_some_and(|run| run.workflow == workflow)
                && query.standing.is_none_or(|s| s == Standing::from(execution.status))
        };
        let mut all = self.read_all(organization, &ids).await?;
        all.retain(matches);
        all.reverse();
        let total = all.len() as u64;
        let offset = usize::try_from(query.offset).unwrap_or(usize::MAX);
        Ok((all.into_iter().skip(offset).take(query.limit).collect(), total))
    }

    /// Reads the executions that still exist, in the order of `ids`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn read_all(
        &self,
        organization: OrganizationId,
        ids: &[ExecutionId],
    ) -> Result<Vec<Execution>, Error> {
        let keys: Vec<_> = ids.iter().map(|id| rows::execution(organization, *id)).collect();
        let found = self.inner.store.get_many(&keys).await?;
        Ok(found.iter().flatten().map(|row| decode(row)).collect::<Result<_, _>>()?)
    }
}
