//! Taking work: the limit, the commit, the lane, in this order.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::cells::Cell;
use super::lanes::Ticket;
use super::{Engine, Error, Inner, Place, rows};
use crate::domain::delivery::Webhook;
use crate::domain::execution::{Candidate, Execution, Source, Status};
use crate::domain::ids::{ExecutionId, KeyId, OrganizationId};
use crate::domain::money::Usd;
use crate::storage::Commit;

/// An execution with a payload up to this many bytes waits in memory whole; a larger one is read
/// again when its turn comes.
const KEEP_BYTES: u64 = 4096;

/// Work as it was asked for: checked, with its defaults filled in.
#[derive(Debug)]
pub struct Submission {
    /// Made by the caller, so that what it commits beside can name it.
    pub id: ExecutionId,
    pub organization: OrganizationId,
    pub key: KeyId,
    pub source: Source,
    pub version: String,
    /// JSON that fits the first model's request schema.
    pub input: Box<RawValue>,
    /// The models to try, in order; not empty.
    pub chain: Vec<Candidate>,
    pub webhook: Option<Webhook>,
    /// What has to become durable with it: the answer under an `Idempotency-Key`.
    pub beside: Commit,
}

impl Engine {
    /// Takes the work. When this returns `Ok`, it is on the disk and will end exactly once.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::Storage`], [`Error::Stopping`]: then nothing was created.
    pub async fn submit(&self, submission: Submission) -> Result<Execution, Error> {
        if self.inner.tasks.is_stopping() {
            return Err(Error::Stopping);
        }
        let inner = Arc::clone(&self.inner);
        // In a task of its own: a client that hangs up must not leave a committed row that no lane
        // knows of.
        let task = self.inner.tasks.spawn(async move { inner.submit(submission).await });
        task.await.unwrap_or(Err(Error::Stopping))
    }
}

impl Inner {
    async fn submit(self: &Arc<Self>, submission: Submission) -> Result<Execution, Error> {
        let model = submission.chain.first().map_or("", |candidate| candidate.model.as_str());
        let lane = self.open_lane(model);
        self.lanes().reserve(&lane).map_err(|full| Error::QueueFull { queued: full.queued })?;
        match self.accept(submission, &lane).await {
            Ok(execution) => {
                self.enlist(&execution, &lane);
                self.pump();
                Ok(execution)
            }
            Err(error) => {
                self.lanes().unreserve(&lane);
                Err(error)
            }
        }
    }

    /// Writes the execution, its row in the lane and what comes beside, as one.
    async fn accept(&self, submission: Submission, lane: &str) -> Result<Execution, Error> {
        let input = self.store.write_payload(submission.input).await?;
        let execution = Execution {
            id: submission.id,
            organization: submission.organization,
            key: submission.key,
            source: submission.source,
            version: submission.version,
            status: Status::Created,
            input,
            chain: submission.chain,
            position: 0,
            attempts: Vec::new(),
            output: None,
            logs: None,
            fault: None,
            cost: Usd::ZERO,
            webhook: submission.webhook,
            created_at: self.clock.now(),
            started_at: None,
            completed_at: None,
        };
        let mut commit = submission.beside;
        commit.put(rows::execution(execution.organization, execution.id), &execution)?;
        let value = rows::queued_value(execution.organization);
        commit.put_bytes(rows::queued(lane, execution.id), value);
        self.store.claim(&mut commit, &execution.input);
        self.store.commit(commit).await?;
        Ok(execution)
    }

    /// Puts a committed execution at the end of its lane's window, or leaves it to the disk.
    pub(super) fn enlist(&self, execution: &Execution, lane: &str) {
        let mut lanes = self.lanes();
        let keep = execution.input.len() <= KEEP_BYTES && lanes.has_room(lane);
        let cell: Option<Arc<Cell>> = keep.then(|| self.cells.create(execution.clone()));
        let payload = Place { organization: execution.organization, cell };
        lanes.push(lane, Ticket { id: execution.id, payload });
    }
}
