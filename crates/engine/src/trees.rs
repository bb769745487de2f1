//! Trees: an execution and all of its descendants share a budget.
//!
//! The root of a tree is an execution that was not started by a step. The root has three durable
//! counters: the number of descendants ever created, their bytes, and the number of ended
//! descendants. The commit that creates or ends a descendant updates the counters, so crashes do
//! not reset them. In memory, the counts also include commits in progress; after a failed commit, a
//! count may be too high, but never too low.
//!
//! Cancelling a running root closes its tree: its descendants can no longer start executions, but
//! detached descendants keep running. Cancelling a root that has already ended cancels all of its
//! descendants: this decision is durable at once, so no descendant starts to run again, and then
//! the descendants are cancelled one by one in the background.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::{Error, Inner, rows};
use orrery_domain::execution::{Execution, Kind, Status, WorkflowRun};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{Commit, Key, Page};

/// A cancellation adds this number to the number of descendants, or to the number of ended
/// descendants. No tree ever has this many descendants.
const CLOSED: i64 = 1 << 40;
/// Average size of the rows of an execution, excluding its inputs and outputs.
const ROWS_BYTES: u64 = 4096;

/// Maximum number of descendants that are cancelled concurrently.
const CANCELS_MAX: usize = 100;

/// The limit that prevents a tree from growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TreeExceeded {
    #[error(
        "the execution {root} has started {limit} executions, directly and through others, and may \
         start no more (engine.descendants)"
    )]
    Descendants { root: ExecutionId, limit: u64 },
    #[error(
        "the executions that {root} has started, directly and through others, take more than {limit} \
         bytes (engine.tree_bytes)"
    )]
    Bytes { root: ExecutionId, limit: u64 },
    #[error("the execution {root}, the root of this execution, was cancelled")]
    Cancelled { root: ExecutionId },
}

/// The limits of a tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeLimits {
    pub descendants: u64,
    pub bytes: u64,
}

/// The budget of one tree. The budget is in memory while any execution of the tree is in memory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: ExecutionId,
    organization: OrganizationId,
    limits: TreeLimits,
    descendants: AtomicI64,
    bytes: AtomicI64,
    /// Whether the root was cancelled after its end, so that the descendants must be cancelled too.
    is_cancelled: AtomicBool,
    trees: Trees,
}

/// The trees in memory, by root.
#[derive(Debug, Default, Clone)]
pub(crate) struct Trees {
    open: Arc<Mutex<HashMap<ExecutionId, Weak<Tree>>>>,
    /// Locked while the counters of a tree are loaded.
    loading: Arc<tokio::sync::Mutex<()>>,
}

/// A descendant that is about to be created. Dropping this value before its commit is durable
/// undoes the count.
#[derive(Debug)]
pub(crate) struct NewDescendant {
    tree: Arc<Tree>,
    bytes: i64,
    is_kept: bool,
}

/// A tree that is about to be closed. Dropping this value before its commit is durable reopens the
/// tree.
#[derive(Debug)]
pub(crate) struct Closing {
    tree: Arc<Tree>,
    is_kept: bool,
}

/// The bytes that one execution produces, counted for its tree.
#[derive(Debug)]
pub(crate) struct TreeShare {
    tree: Arc<Tree>,
    /// Bytes that are not part of a commit yet.
    pending: AtomicI64,
}

impl Tree {
    pub(crate) const fn root(&self) -> ExecutionId {
        self.root
    }

    /// Whether the tree's descendants must be cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Checks that the root has not been cancelled. Called right before reserved descendants are
    /// created.
    ///
    /// # Errors
    /// [`TreeExceeded::Cancelled`].
    pub(crate) fn check_open(&self) -> Result<(), TreeExceeded> {
        let is_closed = self.descendants.load(Ordering::Acquire) >= CLOSED;
        if is_closed { Err(TreeExceeded::Cancelled { root: self.root }) } else { Ok(()) }
    }

    /// Counts one more descendant, with an input of `input` bytes.
    ///
    /// # Errors
    /// [`TreeExceeded`]: nothing is counted.
    pub(crate) fn reserve(self: &Arc<Self>, input: u64) -> Result<NewDescendant, TreeExceeded> {
        let (root, limit) = (self.root, self.limits.descendants);
        let bytes = signed(input.saturating_add(ROWS_BYTES));
        let count = self.descendants.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        let held = self.bytes.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        // Dropping this value undoes the count.
        let reserved = NewDescendant { tree: Arc::clone(self), bytes, is_kept: false };
        if count >= CLOSED {
            return Err(TreeExceeded::Cancelled { root });
        }
        if count > signed(limit) {
            return Err(TreeExceeded::Descendants { root, limit });
        }
        self.check_bytes(held)?;
        Ok(reserved)
    }

    const fn check_bytes(&self, held: i64) -> Result<(), TreeExceeded> {
        let limit = self.limits.bytes;
        if held > signed(limit) {
            return Err(TreeExceeded::Bytes { root: self.root, limit });
        }
        Ok(())
    }

    /// Stops the growth of the tree.
    pub(crate) fn close(self: Arc<Self>) -> Closing {
        self.descendants.fetch_add(CLOSED, Ordering::AcqRel);
        Closing { tree: self, is_kept: false }
    }

    /// Returns the share of one execution in the tree.
    pub(crate) const fn share(self: Arc<Self>) -> TreeShare {
        TreeShare { tree: self, pending: AtomicI64::new(0) }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let mut open = self.trees.lock();
        // A new instance of this tree may have been loaded in the meantime.
        if open.get(&self.root).is_some_and(|tree| tree.strong_count() == 0) {
            open.remove(&self.root);
        }
    }
}

impl NewDescendant {
    /// Adds the count to the commit that creates the descendant. The commit fails if the tree has
    /// been closed by then.
    pub(crate) fn record(self, commit: &mut Commit) {
        let [descendants, bytes, _ended] = rows::tree(self.tree.root);
        commit.expect(Expect::Below(descendants.clone(), CLOSED));
        commit.add(descendants, 1);
        commit.add(bytes, self.bytes);
        commit.after_durable(move || self.keep());
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewDescendant {
    fn drop(&mut self) {
        if !self.is_kept {
            self.tree.descendants.fetch_sub(1, Ordering::AcqRel);
            self.tree.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

impl Closing {
    /// Closes the tree in the commit that cancels its root.
    pub(crate) fn record(self, commit: &mut Commit) {
        let [descendants, ..] = rows::tree(self.tree.root);
        commit.add(descendants, CLOSED);
        commit.after_durable(move || self.keep());
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if !self.is_kept {
            self.tree.descendants.fetch_sub(CLOSED, Ordering::AcqRel);
        }
    }
}

impl TreeShare {
    /// Counts the bytes of a payload that is about to be written.
    ///
    /// # Errors
    /// [`TreeExceeded::Bytes`]: nothing is counted.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), TreeExceeded> {
        let bytes = signed(bytes);
        let held = self.tree.bytes.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        if let Err(over) = self.tree.check_bytes(held) {
            self.tree.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(over);
        }
        self.pending.fetch_add(bytes, Ordering::AcqRel);
        Ok(())
    }

    /// Adds the bytes produced since the last commit to a commit.
    pub(crate) fn record(&self, commit: &mut Commit) {
        let bytes = self.pending.swap(0, Ordering::AcqRel);
        if bytes > 0 {
            let [_descendants, key, _ended] = rows::tree(self.tree.root);
            commit.add(key, bytes);
        }
    }
}

impl Drop for TreeShare {
    fn drop(&mut self) {
        let pending = self.pending.load(Ordering::Acquire);
        self.tree.bytes.fetch_sub(pending, Ordering::AcqRel);
    }
}

impl Trees {
    /// Returns the tree of a root of this organization if it is in memory.
    pub(crate) fn find(
        &self,
        organization: OrganizationId,
        root: ExecutionId,
    ) -> Option<Arc<Tree>> {
        let tree = self.lock().get(&root).and_then(Weak::upgrade);
        tree.filter(|tree| tree.organization == organization)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ExecutionId, Weak<Tree>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns the tree of an execution.
    pub(crate) async fn tree_of(&self, execution: &Execution) -> Result<Arc<Tree>, Error> {
        let organization = execution.organization;
        let root = execution.workflow().and_then(WorkflowRun::root).unwrap_or(execution.id);
        self.tree(organization, root).await
    }

    /// Returns the tree of a root.
    pub(crate) async fn tree(
        &self,
        organization: OrganizationId,
        root: ExecutionId,
    ) -> Result<Arc<Tree>, Error> {
        if let Some(tree) = self.trees.find(organization, root) {
            return Ok(tree);
        }
        let _one_at_a_time = self.trees.loading.lock().await;
        if let Some(tree) = self.trees.find(organization, root) {
            return Ok(tree);
        }
        // A pending count keeps the tree in memory until the commit is visible.
        let counters = self.store.counters(&rows::tree(root)).await?;
        let [descendants, bytes, ended] = <[i64; 3]>::try_from(counters).unwrap_or_default();
        let tree = Arc::new(Tree {
            root,
            organization,
            limits: self.options.tree,
            descendants: AtomicI64::new(descendants),
            bytes: AtomicI64::new(bytes),
            is_cancelled: AtomicBool::new(ended >= CLOSED),
            trees: self.trees.clone(),
        });
        self.trees.lock().insert(root, Arc::downgrade(&tree));
        Ok(tree)
    }

    /// Closes the tree of a root that is about to be cancelled. Returns `None` if the root has no
    /// descendants.
    pub(crate) async fn tree_to_close(
        &self,
        execution: &Execution,
    ) -> Result<Option<Closing>, Error> {
        if execution.workflow().is_none_or(|run| run.root().is_some()) {
            return Ok(None);
        }
        let tree = self.tree_of(execution).await?;
        let has_descendants = tree.descendants.load(Ordering::Acquire) > 0;
        Ok(has_descendants.then(|| tree.close()))
    }

    /// Counts an ended descendant in the commit that ends it.
    pub(crate) fn tell_tree(commit: &mut Commit, execution: &Execution) {
        if let Some(root) = execution.workflow().and_then(WorkflowRun::root) {
            let [.., ended] = rows::tree(root);
            commit.add(ended, 1);
        }
    }

    /// Cancels the unfinished descendants of an ended root. Returns `None` and does nothing if the
    /// execution is unfinished or not a root, or if its entire tree has ended.
    pub(crate) async fn cancel_rest_of_tree(
        self: &Arc<Self>,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<Execution>, Error> {
        let root = self.store.read::<Execution>(&rows::execution(organization, id)).await?;
        let is_ended_root = |root: &Execution| {
            root.status.is_final() && root.workflow().is_some_and(|run| run.root().is_none())
        };
        let Some(root) = root.filter(is_ended_root) else { return Ok(None) };
        let keys = rows::tree(id);
        let counters = self.store.counters(&keys).await?;
        let [descendants, _bytes, ended] = <[i64; 3]>::try_from(counters).unwrap_or_default();
        if descendants % CLOSED <= ended % CLOSED {
            return Ok(None);
        }
        let tree = self.tree(organization, id).await?;
        let mut commit = Commit::new();
        if descendants < CLOSED {
            Arc::clone(&tree).close().record(&mut commit);
        }
        if ended < CLOSED {
            let [.., ended] = keys;
            commit.add(ended, CLOSED);
        }
        tree.is_cancelled.store(true, Ordering::Release);
        self.store.commit(commit).await?;
        let inner = Arc::clone(self);
        self.tasks.spawn_for(organization, async move {
            if let Err(error) = inner.cancel_descendants(&tree).await {
                tracing::error!(execution = %id, %error, "cannot cancel the rest of the tree");
            }
        });
        Ok(Some(root))
    }

    /// Cancels each unfinished descendant.
    async fn cancel_descendants(self: &Arc<Self>, tree: &Tree) -> Result<(), Error> {
        let organization = tree.organization;
        let prefix = rows::standing(organization, Kind::Workflow, Status::Created);
        let mut scan = self.store.scan(Page::of(prefix, CANCELS_MAX));
        while let Some(found) = scan.next_page().await? {
            let ids: Vec<ExecutionId> =
                found.iter().filter_map(|(key, _)| key.last_id_inverted()).collect();
            let keys: Vec<Key> = ids.iter().map(|id| rows::execution(organization, *id)).collect();
            let mut cancels = FuturesUnordered::new();
            for (id, row) in ids.into_iter().zip(self.store.get_many(&keys).await?) {
                let Some(execution) = row.map(|row| decode::<Execution>(&row)).transpose()? else {
                    continue;
                };
                if execution.workflow().and_then(WorkflowRun::root) == Some(tree.root) {
                    cancels.push(self.cancel_unwanted(organization, id));
                }
            }
            while let Some(cancelled) = cancels.next().await {
                cancelled?;
            }
            if self.tasks.is_stopping() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the counters of trees whose roots are about to be deleted, or were deleted before
    /// their descendants.
    pub(crate) async fn trees_to_delete(
        &self,
        organization: OrganizationId,
        going: &[Execution],
    ) -> Result<Vec<Key>, Error> {
        let workflows = going.iter().filter_map(|one| Some((one.id, one.workflow()?)));
        let (roots, below): (Vec<_>, Vec<_>) =
            workflows.map(|(id, run)| (id, run.root())).partition(|(_, root)| root.is_none());
        let mut roots: Vec<ExecutionId> = roots.into_iter().map(|(id, _)| id).collect();
        let mut above: Vec<ExecutionId> = below.into_iter().filter_map(|(_, root)| root).collect();
        above.sort_unstable();
        above.dedup();
        let keys: Vec<Key> =
            above.iter().map(|root| rows::execution(organization, *root)).collect();
        let found = self.store.get_many(&keys).await?;
        let gone = above.into_iter().zip(found).filter(|(_, row)| row.is_none());
        roots.extend(gone.map(|(root, _)| root));
        let keys: Vec<Key> = roots.into_iter().flat_map(rows::tree).collect();
        let counters = self.store.counters(&keys).await?;
        let kept = keys.into_iter().zip(counters).filter(|(_, counter)| *counter != 0);
        Ok(kept.map(|(key, _)| key).collect())
    }
}

const fn signed(number: u64) -> i64 {
    if number > CLOSED.cast_unsigned() { CLOSED } else { number.cast_signed() }
}
