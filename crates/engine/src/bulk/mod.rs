//! Bulk jobs: durable background jobs that perform an action on each selected execution separately.
//! A job's row stores its progress. If an action must not be repeated, the same commit performs the
//! action and updates the row. After any other action, a separate commit updates the row.

mod work;

use tokio::sync::Notify;

use crate::{Engine, Error};
use orrery_domain::bulk::{Job, Status};
use orrery_domain::ids::{Id, JobId, OrganizationId};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Change, Commit, Key, Page, Table};

/// Maximum number of running jobs per organization.
pub(crate) const RUNNING_MAX: usize = 4;
/// Maximum number of ended jobs retained per organization.
const KEPT_MAX: usize = 100;

/// Coordinates the start of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Notified when a job starts.
    started: Notify,
    /// Locked while a job starts, so that concurrent starts cannot exceed [`RUNNING_MAX`].
    starting: tokio::sync::Mutex<()>,
}

/// Key prefix of an organization's jobs, newest first.
pub(crate) fn jobs_of(organization: OrganizationId) -> Key {
    Key::table(Table::BulkJob).id(organization)
}

fn job(organization: OrganizationId, id: JobId) -> Key {
    jobs_of(organization).id_newest_first(id)
}

/// Key prefix of the running jobs, oldest first. The row's value is the organization's id.
fn open_jobs() -> Key {
    Key::table(Table::BulkJobOpen)
}

fn open_job(id: JobId) -> Key {
    open_jobs().id(id)
}

/// Adds a job's new state to the commit, on the condition that the job's row is unchanged.
fn put(commit: &mut Commit, before: Vec<u8>, next: &Job) -> Result<(), storage::Error> {
    let key = job(next.organization, next.id);
    commit.expect(Expect::Equal(key.clone(), before));
    commit.put(key, next)?;
    if next.status != Status::Running {
        commit.delete(open_job(next.id));
    }
    Ok(())
}

impl Engine {
    /// Starts a job. The writes in `beside` are part of the same commit.
    ///
    /// # Errors
    /// [`Error::TooManyJobs`], [`Error::HeldBack`], [`Error::Storage`]: no job is created.
    pub async fn start_job(&self, made: &Job, beside: Commit) -> Result<(), Error> {
        let inner = &self.inner;
        if self.paused_since().is_some() {
            return Err(Error::HeldBack);
        }
        let organization = made.organization;
        let _one_at_a_time = inner.jobs.starting.lock().await;
        let page = Page::of(jobs_of(organization), RUNNING_MAX + KEPT_MAX + 1);
        let mut ended = Vec::new();
        let mut running = 0;
        for (key, row) in inner.store.page(page).await? {
            if decode::<Job>(&row)?.status == Status::Running {
                running += 1;
            } else {
                ended.push(key);
            }
        }
        if running >= RUNNING_MAX {
            return Err(Error::TooManyJobs(RUNNING_MAX));
        }
        let mut commit = Commit::of_new_work();
        commit.extend(beside);
        for old in ended.into_iter().skip(KEPT_MAX - 1) {
            commit.delete(old);
        }
        commit.put(job(organization, made.id), made)?;
        commit.put_bytes(open_job(made.id), organization.bytes().to_vec());
        inner.store.commit(commit).await?;
        inner.jobs.started.notify_one();
        Ok(())
    }

    /// Returns a job.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job or it belongs to another organization;
    /// [`Error::Storage`].
    pub async fn job(&self, organization: OrganizationId, id: JobId) -> Result<Job, Error> {
        self.inner.store.read(&job(organization, id)).await?.ok_or(Error::NotFound)
    }

    /// Cancels a job. Actions that the job has already performed are not undone. If the job has
    /// ended, returns it unchanged.
    ///
    /// # Errors
    /// The same errors as [`Engine::job`].
    pub async fn cancel_job(&self, organization: OrganizationId, id: JobId) -> Result<Job, Error> {
        let inner = &self.inner;
        let cancel = |job: Option<Job>| async move {
            let mut job = job.ok_or(Error::NotFound)?;
            if job.status != Status::Running {
                return Ok(Change::Keep(job));
            }
            job.status = Status::Cancelled;
            job.completed_at = Some(inner.clock.now().max(job.started_at));
            let mut commit = Commit::new();
            commit.delete(open_job(id));
            Ok(Change::Put(job, commit))
        };
        inner.store.update(&job(organization, id), cancel).await
    }
}

#[cfg(test)]
mod tests;
