//! The history of an organization: predictions, workflow executions and chat router calls in one
//! list, newest first, with any combination of filters.
//!
//! The module `indexes` maps each filter to an index, except the filter by key. The cost of a page
//! is the number of its rows plus the seeks in the indexes of the filters, at most [`SEEKS_MAX`]. A
//! page that reaches this limit ends early, and the next page resumes there. New rows sort before
//! all pages that follow, so no older row is listed twice or skipped.

use std::time::Duration;

use crate::query::indexes::{self, Attribute};
use crate::{Engine, Error, Inner, rows};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Kind, Status, lane_of_model, lane_of_workflow};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId, WorkflowId};
use orrery_domain::time::Timestamp;
use orrery_domain::waits_for::WaitsFor;
use orrery_storage::record::decode;
use orrery_storage::{Index, Key, Search};

/// Maximum number of index seeks per page. This many seeks take some tens of milliseconds.
const SEEKS_MAX: usize = 50_000;
/// Maximum number of executions that a page with a filter by key reads.
pub const SCANNED_MAX: usize = 10_000;
/// Minimum number of executions that a page with a filter by key reads at a time.
const SCANNED_AT_ONCE: usize = 500;
/// Maximum number of lanes scanned per status: an organization cannot have more workflows than
/// this.
pub const LANES_MAX: usize = 10_000;
/// Maximum difference between the time in an id and the execution's creation time.
const ID_TIME_TOLERANCE: Duration = Duration::from_secs(2);
/// Page size and maximum number of pages of [`Engine::first`].
const PAGE: usize = 100;
const ROUNDS_MAX: usize = 30;

/// Selects executions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Matches executions with one of these statuses; `None` matches any.
    pub standings: Option<Vec<(Kind, Status)>>,
    pub model: Option<String>,
    /// Matches executions with one of these error classes; an empty list matches any.
    pub classes: Vec<ErrorClass>,
    pub workflow: Option<WorkflowId>,
    /// Matches executions started by steps of this execution.
    pub parent: Option<ExecutionId>,
    /// Matches workflow runs that are waiting for this kind of event.
    pub waits_for: Option<WaitsFor>,
    /// Matches executions of this API key. No index covers this filter: a page reads the executions
    /// that match the other filters, up to [`SCANNED_MAX`].
    pub key: Option<KeyId>,
    /// Matches executions created at or after this time.
    pub from: Option<Timestamp>,
    /// Matches executions created before this time.
    pub to: Option<Timestamp>,
}

/// A page of the history.
#[derive(Debug)]
pub struct History {
    pub executions: Vec<Execution>,
    /// Cursor of the next page; `None` on the last page.
    pub more_after: Option<ExecutionId>,
}

/// A page at an offset from the newest execution.
#[derive(Debug)]
pub struct FirstPage {
    pub executions: Vec<Execution>,
    /// Number of matches found within the limits.
    pub total: usize,
    /// Whether there may be more matches.
    pub is_capped: bool,
}

impl Filter {
    /// Whether an execution that was found through the indexes matches the filter in its current
    /// state.
    fn matches(&self, execution: &Execution) -> bool {
        let has_status = self
            .standings
            .as_ref()
            .is_none_or(|standings| standings.contains(&(execution.kind(), execution.status)));
        let created = execution.created_at;
        has_status
            && self.key.is_none_or(|key| execution.key == key)
            && (self.waits_for.is_none() || self.waits_for == execution.waits_for())
            && self.from.is_none_or(|from| created >= from)
            && self.to.is_none_or(|to| created < to)
    }

    /// Returns the requested statuses, each with the value that its index rows must have.
    /// Unfinished statuses share an index prefix, so they are returned as one entry.
    fn statuses(&self) -> Option<Vec<(Kind, Status, Option<u8>)>> {
        let standings = self.standings.as_ref()?;
        let mut found = Vec::new();
        for kind in Kind::ALL {
            let has = |status: &Status| standings.contains(&(kind, *status));
            let (ended, unfinished): (Vec<Status>, Vec<Status>) =
                Status::ALL.into_iter().filter(has).partition(|status| status.is_final());
            match unfinished[..] {
                [] => {}
                [one] => found.push((kind, one, Some(rows::byte_of(one)))),
                [one, ..] => found.push((kind, one, None)),
            }
            found.extend(ended.into_iter().map(|ended| (kind, ended, None)));
        }
        Some(found)
    }
}

/// Returns the indexes that cover everything in a lane, regardless of status.
fn in_lane(organization: OrganizationId, kind: Kind, lane: &str) -> Vec<Index> {
    let of = |status| Index::from(rows::standing(organization, kind, status).text(lane));
    [Status::Created, Status::Success, Status::Error, Status::Cancelled].map(of).to_vec()
}

impl Engine {
    /// Returns up to `limit` executions older than `older_than`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn history(
        &self,
        organization: OrganizationId,
        filter: &Filter,
        older_than: Option<ExecutionId>,
        limit: usize,
    ) -> Result<History, Error> {
        let inner = &self.inner;
        let newest = filter.to.map(|to| first_id_after(to.plus(ID_TIME_TOLERANCE)));
        let mut search = Search {
            groups: inner.groups(organization, filter).await?,
            older_than: match (older_than, newest) {
                (Some(id), Some(newest)) => Some(id.min(newest)),
                (id, newest) => id.or(newest),
            },
            oldest: filter
                .from
                .and_then(|from| Some(first_id_after(from.before(ID_TIME_TOLERANCE)?))),
            limit,
            max_seeks: if filter.key.is_some() { SCANNED_MAX } else { SEEKS_MAX },
        };
        let mut executions = Vec::new();
        loop {
            // Search for one execution more than requested, to detect whether there is a next page.
            search.limit = match filter.key {
                Some(_) => SCANNED_AT_ONCE.max(limit.saturating_add(1)),
                None => limit.saturating_add(1).saturating_sub(executions.len()),
            };
            let found = inner.store.search(search.clone()).await?;
            // Rows whose executions turn out not to match count toward the limit as well.
            search.max_seeks =
                search.max_seeks.saturating_sub(found.seeks.max(found.ids.len()).max(1));
            for execution in inner.current_executions(organization, &found.ids).await? {
                if filter.matches(&execution) {
                    executions.push(execution);
                }
            }
            if executions.len() > limit {
                executions.truncate(limit);
                let more_after = executions.last().map(|last| last.id);
                return Ok(History { executions, more_after });
            }
            search.older_than = found.more_after;
            if found.more_after.is_none() || search.max_seeks == 0 {
                return Ok(History { executions, more_after: found.more_after });
            }
        }
    }

    /// Skips the newest `offset` matches and returns up to `limit` matches that follow. Also
    /// returns the number of matches, counted up to `of`.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn first(
        &self,
        organization: OrganizationId,
        filter: &Filter,
        of: usize,
        offset: usize,
        limit: usize,
    ) -> Result<FirstPage, Error> {
        let mut first = FirstPage { executions: Vec::new(), total: 0, is_capped: false };
        let mut older_than = None;
        for _ in 0..ROUNDS_MAX {
            let page = PAGE.min(of.saturating_sub(first.total));
            let found = self.history(organization, filter, older_than, page).await?;
            let wanted = offset..offset.saturating_add(limit);
            for execution in found.executions {
                if wanted.contains(&first.total) {
                    first.executions.push(execution);
                }
                first.total += 1;
            }
            older_than = found.more_after;
            let Some(_more) = older_than else { return Ok(first) };
            if first.total >= of {
                break;
            }
        }
        first.is_capped = true;
        Ok(first)
    }
}

impl Inner {
    /// Returns the groups of indexes for a search: an execution matches if each group has an index
    /// that contains the execution.
    async fn groups(
        &self,
        organization: OrganizationId,
        filter: &Filter,
    ) -> Result<Vec<Vec<Index>>, Error> {
        let index = |facet| Index::from(indexes::index(organization, facet));
        let mut groups = Vec::new();
        groups.extend(filter.parent.map(|parent| vec![index(Attribute::Parent(parent))]));
        groups.extend(filter.workflow.map(|workflow| {
            let mut group = in_lane(organization, Kind::Workflow, &lane_of_workflow(workflow));
            group.push(index(Attribute::StepOfWorkflow(workflow)));
            group
        }));
        groups.extend(filter.model.as_deref().map(|model| {
            let mut group = in_lane(organization, Kind::Prediction, &lane_of_model(model));
            group.push(index(Attribute::Model(model)));
            group
        }));
        if !filter.classes.is_empty() {
            groups.push(
                filter.classes.iter().map(|class| index(Attribute::ErrorClass(*class))).collect(),
            );
        }
        if let Some(standings) = filter.statuses() {
            let mut group = Vec::new();
            for (kind, status, value) in standings {
                let prefix = rows::standing(organization, kind, status);
                let lanes = self.store.branches(&prefix, LANES_MAX).await?;
                group.extend(lanes.into_iter().map(|prefix| Index { prefix, value }));
            }
            groups.push(group);
        }
        if groups.is_empty() {
            groups.push(vec![rows::executions_of(organization).into()]);
        }
        Ok(groups)
    }

    /// Returns the executions in their current state: running executions from memory, all others
    /// from the store.
    async fn current_executions(
        &self,
        organization: OrganizationId,
        ids: &[ExecutionId],
    ) -> Result<Vec<Execution>, Error> {
        let keys: Vec<Key> = ids.iter().map(|id| rows::execution(organization, *id)).collect();
        let stored = self.store.get_many(&keys).await?;
        let reader = self.active.reader();
        let mut executions = Vec::with_capacity(ids.len());
        for row in stored.iter().flatten() {
            let execution: Execution = decode(row)?;
            let current = match execution.status.is_final() {
                true => None,
                false => reader.read(execution.id, |loaded| loaded.execution.clone()).await,
            };
            executions.push(current.unwrap_or(execution));
        }
        Ok(executions)
    }
}

/// Returns an id newer than all ids generated before `time` and older than all ids generated after
/// it.
pub fn first_id_after(time: Timestamp) -> ExecutionId {
    let millis = u64::try_from(time.micros() / 1000).unwrap_or_default();
    let [_, _, time @ ..] = millis.to_be_bytes();
    let mut id = [0; 16];
    let (head, _) = id.split_at_mut(time.len());
    head.copy_from_slice(&time);
    ExecutionId::from(id)
}
