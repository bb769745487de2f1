//! Workflows: stored, versioned, found by id or slug, compiled on demand.
//!
//! Every change is conditional on the workflow being unchanged in the meantime, and is retried a
//! few times after a conflict. A definition is stored once under its revision and never changed.
//! The engine obtains plans through its trait `engine::Plans`.
//!
//! Nothing here runs a workflow: the engine does.

mod categories;
mod changes;
mod children;
mod definitions;
mod erasure;
mod known;
mod list;
mod parameters;
mod reseal;
mod rows;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

pub use self::categories::{CATEGORIES, Category};
use self::changes::Act;
pub use self::definitions::Compiled;
use self::definitions::{Cache, Checked};
use self::known::Known;
pub use self::list::{Filter, SortKey};
pub use self::parameters::Models;
pub use self::reseal::reseal;
pub use self::rows::count_trigger;
use orrery_domain::definition::Problem;
use orrery_domain::ids::{OrganizationId, RevisionId, WorkflowId};
use orrery_domain::workflow::{
    FIRST_VERSION, Status, VERSIONS_MAX, Version, Workflow, is_version_id, slug_of,
};
use orrery_records::audit::{Actor, Recorder};
use orrery_records::secrets::Secrets;
use orrery_runtime::{Clock, new_id};
use orrery_schema::Unavailable;
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Sealer, Store};

/// Maximum number of workflows per organization, including deleted ones.
pub const WORKFLOWS_MAX: usize = 10_000;

/// An error from creating, changing or finding a workflow.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The problems of the definition; `message` is the first of them.
    #[error("{message}")]
    Invalid { message: String, problems: Vec<Problem> },
    /// `near` is the existing slug that is most similar to the unknown one.
    #[error("workflow not found")]
    NotFound { near: Option<String> },
    #[error("version not found")]
    NoVersion,
    /// [`Put::replaces`] does not contain the current revision.
    #[error("the workflow was changed since it was read")]
    Changed,
    #[error("version is locked")]
    VersionLocked,
    #[error("Workflow is locked and cannot be modified")]
    Locked,
    #[error("there are {0} workflows already; delete some first")]
    TooMany(usize),
    /// The definition cannot be validated at the moment.
    #[error(transparent)]
    ValidationUnavailable(#[from] Unavailable),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

impl Error {
    /// The error for an unknown id, for which no similar id is suggested.
    const MISSING: Self = Self::NotFound { near: None };

    /// Returns an error if there are problems.
    fn of_problems(problems: Vec<Problem>) -> Result<(), Self> {
        match problems.first() {
            None => Ok(()),
            Some(first) => Err(Self::Invalid { message: first.message.clone(), problems }),
        }
    }

    /// Returns the error for a problem without a location.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), problems: Vec::new() }
    }
}

/// A new workflow; its texts have been validated.
#[derive(Debug)]
pub struct New {
    pub name: String,
    pub description: String,
    pub categories: Vec<String>,
    pub tags: Vec<String>,
    pub locked: bool,
    pub production: bool,
    pub definition: Option<Value>,
}

/// A version to store.
#[derive(Debug)]
pub struct Put {
    pub definition: Option<Value>,
    pub locked: bool,
    pub production: bool,
    /// Whether other organizations may run the version. `None` leaves the value unchanged; a new
    /// version is then private.
    pub allowed_to_share: Option<bool>,
    /// The new name of the workflow; `None` leaves it unchanged.
    pub name: Option<String>,
    pub description: Option<String>,
    /// The revisions that the change may be based on; `None` allows any revision.
    pub replaces: Option<Vec<RevisionId>>,
}

/// Changes to a workflow; absent fields stay unchanged.
#[derive(Debug, Default)]
pub struct Change {
    pub name: Option<String>,
    pub description: Option<String>,
    pub categories: Option<Vec<String>>,
    pub tags: Option<Vec<String>>,
    pub locked: Option<bool>,
    pub production: Option<bool>,
    pub status: Option<Status>,
}

impl Change {
    /// Returns whether the change only unlocks the workflow.
    fn only_unlocks(&self) -> bool {
        let Self { name, description, categories, tags, locked, production, status } = self;
        *locked == Some(false)
            && (name.is_none() && description.is_none() && categories.is_none())
            && (tags.is_none() && production.is_none() && status.is_none())
    }
}

/// The number of triggers of a workflow, in total and for each version in version order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Triggers {
    pub total: i64,
    pub versions: Vec<i64>,
}

/// The workflows of a store; clones share the caches. There must be only one such object for each
/// store.
#[derive(Clone)]
pub struct Workflows {
    store: Store,
    clock: Clock,
    recorder: Recorder,
    models: Arc<dyn Models>,
    /// Encrypts the credentials of definitions.
    sealer: Sealer,
    secrets: Secrets,
    cache: Arc<Cache>,
    known: Arc<Known>,
    /// Reserved slugs, which new workflows cannot have.
    reserved: Arc<BTreeSet<&'static str>>,
}

impl std::fmt::Debug for Workflows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workflows").finish_non_exhaustive()
    }
}

impl Workflows {
    /// Opens the workflows of a store. `models` are the models that definitions may refer to.
    #[must_use]
    pub fn new(store: Store, sealer: Sealer, clock: Clock, models: Arc<dyn Models>) -> Self {
        let secrets = Secrets::new(store.clone(), sealer.clone(), clock.clone());
        let recorder = Recorder::new(clock.clone());
        let (cache, known) = (Arc::default(), Arc::default());
        let reserved = Arc::default();
        Self { store, clock, recorder, models, sealer, secrets, cache, known, reserved }
    }

    /// Returns the same workflows with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Reserves slugs that have another meaning in paths.
    #[must_use]
    pub fn reserving(self, slugs: BTreeSet<&'static str>) -> Self {
        Self { reserved: Arc::new(slugs), ..self }
    }

    /// Creates a workflow with one version. `beside` is written in the same commit.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem of the definition; [`Error::TooMany`];
    /// [`Error::Storage`]: nothing was created.
    pub async fn create(
        &self,
        organization: OrganizationId,
        id: WorkflowId,
        new: New,
        beside: Commit,
    ) -> Result<Workflow, Error> {
        let definition = self.restore_secrets(new.definition, &[]).await?;
        let checked = self.check(organization, None, definition).await?;
        let held = self.store.counter(&rows::count(organization)).await?;
        if usize::try_from(held).unwrap_or_default() >= WORKFLOWS_MAX {
            return Err(Error::TooMany(WORKFLOWS_MAX));
        }
        let now = self.clock.now();
        let slug = slug_of(&new.name);
        let mut workflow = Workflow {
            id,
            organization,
            slug: slug.clone(),
            name: new.name,
            description: new.description,
            categories: new.categories,
            tags: new.tags,
            locked: new.locked,
            production: new.production,
            status: Status::Active,
            latest: FIRST_VERSION.to_owned(),
            versions: vec![Version {
                id: FIRST_VERSION.to_owned(),
                revision: new_id(),
                locked: false,
                production: new.production,
                allowed_to_share: false,
                status: Status::Active,
                created_at: now,
                updated_at: now,
            }],
            created_at: now,
            updated_at: now,
        };
        // Check before writing a large definition; the commit checks again.
        self.store.admit()?;
        let mut written = Commit::of_new_work();
        let revision = workflow.versions.first().map_or_else(new_id, |version| version.revision);
        self.write_definition(&mut written, id, revision, &checked).await?;
        for _ in 0..storage::TRIES_MAX {
            workflow.slug = self.free_slug(organization, &slug).await?;
            let mut commit = beside.clone();
            commit.extend(written.clone());
            let slug_row = rows::slug(organization, &workflow.slug);
            commit.expect(Expect::Absent(slug_row.clone()));
            commit.put_bytes(slug_row.clone(), rows::id_value(id));
            commit.put_bytes(rows::of_organization(organization).id_newest_first(id), Vec::new());
            commit.add(rows::count(organization), 1);
            commit.put(rows::workflow(id), &workflow)?;
            let subject = changes::subject(&workflow);
            self.recorder.add(&mut commit, changes::CREATE, subject, organization)?;
            match self.store.commit(commit).await {
                Err(storage::Error::Conflict { key }) if key == slug_row => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    self.cache.put(revision, checked.into_compiled());
                    return Ok(workflow);
                }
            }
        }
        Err(storage::Error::Conflict { key: rows::slug(organization, &workflow.slug) }.into())
    }

    /// Creates or changes a version and makes it the latest.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Locked`], [`Error::VersionLocked`], [`Error::Changed`],
    /// [`Error::Invalid`], [`Error::Storage`]: nothing was changed.
    pub async fn put_version(
        &self,
        organization: OrganizationId,
        reference: &str,
        version_id: &str,
        put: Put,
    ) -> Result<Workflow, Error> {
        if !is_version_id(version_id) {
            return Err(Error::invalid(
                "version_id must have 1 to 64 characters of A-Z a-z 0-9 . _ -",
            ));
        }
        let may_change = |workflow: &Workflow| -> Result<(), Error> {
            if workflow.version(version_id).is_some_and(|version| version.locked) {
                return Err(Error::VersionLocked);
            }
            if workflow.locked {
                return Err(Error::Locked);
            }
            check_base(workflow, version_id, put.replaces.as_deref())?;
            if workflow.version(version_id).is_none() && workflow.versions.len() >= VERSIONS_MAX {
                let message = format!("a workflow can have at most {VERSIONS_MAX} versions");
                return Err(Error::invalid(message));
            }
            Ok(())
        };
        let before = self.find(organization, reference).await?;
        may_change(&before)?;
        let stored = revisions_for(&before, version_id);
        let definition = self.restore_secrets(put.definition, &stored).await?;
        let own = (before.id, version_id);
        let checked = self.check(organization, Some(own), definition).await?;
        let revision: RevisionId = new_id();
        self.store.admit()?;
        let mut definition = Commit::of_new_work();
        self.write_definition(&mut definition, before.id, revision, &checked).await?;
        let now = self.clock.now();
        let changed = self
            .change(before.id, definition, |workflow| {
                may_change(workflow)?;
                let held = workflow.version(version_id);
                let version = Version {
                    id: version_id.to_owned(),
                    revision,
                    locked: put.locked,
                    production: put.production,
                    allowed_to_share: put
                        .allowed_to_share
                        .unwrap_or_else(|| held.is_some_and(|held| held.allowed_to_share)),
                    status: Status::Active,
                    created_at: held.map_or(now, |held| held.created_at),
                    updated_at: now,
                };
                match workflow.versions.iter_mut().find(|held| held.id == version_id) {
                    Some(held) => *held = version,
                    None => workflow.versions.push(version),
                }
                version_id.clone_into(&mut workflow.latest);
                workflow.updated_at = now;
                if let Some(name) = &put.name {
                    workflow.name.clone_from(name);
                }
                if let Some(description) = &put.description {
                    workflow.description.clone_from(description);
                }
                Ok(())
            })
            .await?;
        self.cache.put(revision, checked.into_compiled());
        Ok(changed)
    }

    /// Validates a definition like [`Workflows::put_version`], or like [`Workflows::create`] if
    /// there is no `reference`, but stores nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem; [`Error::NotFound`],
    /// [`Error::ValidationUnavailable`], [`Error::Storage`].
    pub async fn try_definition(
        &self,
        organization: OrganizationId,
        reference: Option<&str>,
        definition: Option<Value>,
    ) -> Result<(), Error> {
        let workflow = match reference {
            Some(reference) => Some(self.find(organization, reference).await?),
            None => None,
        };
        let stored = workflow.as_ref().map(|workflow| revisions_for(workflow, &workflow.latest));
        let definition = self.restore_secrets(definition, &stored.unwrap_or_default()).await?;
        let own = workflow.as_ref().map(|workflow| (workflow.id, workflow.latest.as_str()));
        self.check(organization, own, definition).await.map(drop)
    }

    /// Changes a workflow's own fields.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Locked`] unless the change only unlocks the workflow,
    /// [`Error::Storage`].
    pub async fn update(
        &self,
        organization: OrganizationId,
        reference: &str,
        change: Change,
    ) -> Result<Workflow, Error> {
        let id = self.find(organization, reference).await?.id;
        let now = self.clock.now();
        let is_deletion = change.status == Some(Status::Deleted);
        let beside = if is_deletion { Commit::new() } else { Commit::of_new_work() };
        self.change(id, beside, |workflow| {
            if workflow.locked && !change.only_unlocks() {
                return Err(Error::Locked);
            }
            if let Some(name) = &change.name {
                workflow.name.clone_from(name);
            }
            if let Some(description) = &change.description {
                workflow.description.clone_from(description);
            }
            if let Some(categories) = &change.categories {
                workflow.categories.clone_from(categories);
            }
            if let Some(tags) = &change.tags {
                workflow.tags.clone_from(tags);
            }
            workflow.locked = change.locked.unwrap_or(workflow.locked);
            workflow.production = change.production.unwrap_or(workflow.production);
            workflow.status = change.status.unwrap_or(workflow.status);
            workflow.updated_at = now;
            Ok(())
        })
        .await
    }

    /// Returns the organization's workflow with this id or slug, unless it is deleted.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        reference: &str,
    ) -> Result<Arc<Workflow>, Error> {
        let found = self.find_any(organization, reference).await?;
        if found.status == Status::Deleted { Err(Error::MISSING) } else { Ok(found) }
    }

    /// Returns a workflow like [`Workflows::find`], but also finds a deleted workflow by its id,
    /// because its executions remain readable.
    ///
    /// # Errors
    /// The same errors as [`Workflows::find`].
    pub async fn find_any(
        &self,
        organization: OrganizationId,
        reference: &str,
    ) -> Result<Arc<Workflow>, Error> {
        let id = match reference.parse::<WorkflowId>() {
            Ok(id) => id,
            Err(_slug) => {
                let row = self.store.get_often(&rows::slug(organization, reference)).await?;
                let Some(id) = row.and_then(|row| <[u8; 16]>::try_from(row).ok()) else {
                    let near = self.nearest(organization, reference).await?;
                    return Err(Error::NotFound { near });
                };
                id.into()
            }
        };
        let found = self.by_id(id).await?;
        if found.organization == organization { Ok(found) } else { Err(Error::MISSING) }
    }

    /// Returns the workflow with this id, regardless of its organization.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn by_id(&self, id: WorkflowId) -> Result<Arc<Workflow>, Error> {
        let changes = match self.known.get(id) {
            Ok(workflow) => return Ok(workflow),
            Err(changes) => changes,
        };
        let row = self.store.get_often(&rows::workflow(id)).await?.ok_or(Error::MISSING)?;
        let workflow = Arc::new(decode(&row)?);
        self.known.put(&workflow, row.len(), changes);
        Ok(workflow)
    }

    /// Returns the number of triggers.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn triggers(&self, workflow: &Workflow) -> Result<Triggers, Error> {
        let keys = std::iter::once(rows::triggers(workflow.id)).chain(
            workflow.versions.iter().map(|version| rows::triggers_of(workflow.id, &version.id)),
        );
        let counters = self.store.counters(&keys.collect::<Vec<_>>()).await?;
        let mut counters = counters.into_iter();
        let total = counters.next().unwrap_or_default();
        Ok(Triggers { total, versions: counters.collect() })
    }

    /// Changes the record, provided that nobody else has changed it in the meantime, and records
    /// what was changed in the audit log.
    async fn change(
        &self,
        id: WorkflowId,
        beside: Commit,
        change: impl Fn(&mut Workflow) -> Result<(), Error> + Sync,
    ) -> Result<Workflow, Error> {
        let (beside, change) = (&beside, &change);
        let edit = |workflow: Option<Workflow>| async move {
            let exists = |workflow: &Workflow| workflow.status != Status::Deleted;
            let before = workflow.filter(exists).ok_or(Error::MISSING)?;
            let mut workflow = before.clone();
            change(&mut workflow)?;
            let mut commit = beside.clone();
            for Act { action, subject } in changes::between(&before, &workflow) {
                self.recorder.add(&mut commit, action, subject, workflow.organization)?;
            }
            let known = Arc::clone(&self.known);
            commit.after_durable(move || known.forget(id));
            if workflow.status == Status::Deleted {
                // The workflow's slug becomes free again.
                commit.delete(rows::slug(workflow.organization, &workflow.slug));
            }
            Ok(storage::Change::Put(workflow, commit))
        };
        self.store.update(&rows::workflow(id), edit).await
    }

    /// Returns a free slug of the organization: `slug`, `slug-2`, …
    async fn free_slug(&self, organization: OrganizationId, slug: &str) -> Result<String, Error> {
        let mut taken = 0_usize;
        let mut free = 1_usize;
        // Doubling finds a free number quickly; bisection then finds the lowest free number after a
        // run of taken ones.
        while self.is_taken(organization, &numbered(slug, free)).await? {
            taken = free;
            free = free.saturating_mul(2);
        }
        while free.saturating_sub(taken) > 1 {
            let middle = taken.midpoint(free);
            if self.is_taken(organization, &numbered(slug, middle)).await? {
                taken = middle;
            } else {
                free = middle;
            }
        }
        Ok(numbered(slug, free))
    }

    async fn is_taken(&self, organization: OrganizationId, slug: &str) -> Result<bool, Error> {
        Ok(self.reserved.contains(slug)
            || self.store.get(&rows::slug(organization, slug)).await?.is_some())
    }

    /// Validates a definition, on another thread if it is large. `own` is the version of an
    /// existing workflow that the definition will be stored as.
    async fn check(
        &self,
        organization: OrganizationId,
        own: Option<(WorkflowId, &str)>,
        definition: Option<Value>,
    ) -> Result<Checked, Error> {
        let checked = definitions::check(definition, Some(Arc::clone(&self.models))).await?;
        self.check_secrets(organization, checked.plan()).await?;
        self.check_children(organization, own, &checked).await?;
        Ok(checked)
    }
}

/// Rejects a change that is based on an outdated revision: the current revision is the revision of
/// the version or, for a new version, the revision of the latest version.
fn check_base(
    workflow: &Workflow,
    version_id: &str,
    expected: Option<&[RevisionId]>,
) -> Result<(), Error> {
    let Some(expected) = expected else { return Ok(()) };
    let base = workflow.version(version_id).or_else(|| workflow.version(&workflow.latest));
    let is_expected = base.is_some_and(|base| expected.contains(&base.revision));
    if is_expected { Ok(()) } else { Err(Error::Changed) }
}

/// Returns the revisions that may contain the secrets behind a client's masked values, most likely
/// first: the version being stored, the latest version, and all other versions from newest to
/// oldest.
fn revisions_for(workflow: &Workflow, version_id: &str) -> Vec<RevisionId> {
    let likely = [version_id, workflow.latest.as_str()];
    let likely = likely.into_iter().filter_map(|id| workflow.version(id));
    let mut revisions: Vec<RevisionId> = Vec::new();
    for version in likely.chain(workflow.versions.iter().rev()) {
        if !revisions.contains(&version.revision) {
            revisions.push(version.revision);
        }
    }
    revisions
}

fn numbered(slug: &str, number: usize) -> String {
    if number == 1 { slug.to_owned() } else { format!("{slug}-{number}") }
}

#[cfg(test)]
mod tests;
