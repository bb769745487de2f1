//! Loads an execution: acquires memory, reads its stored state, and fails the execution if part of
//! the state is lost.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use super::Actor;
use super::memory::Memory;
use super::view::Values;
use crate::active::{ActiveExecution, LoadedExecution};
use crate::scheduler::lanes::Parking;
use crate::trees::{Tree, TreeShare};
use crate::{Error, Inner};
use orrery_domain::definition::{Plan, Role};
use orrery_domain::execution::{Execution, Fault, WorkflowRun};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine;
use orrery_domain::machine::workflow::StepProgress;
use orrery_runtime::{self as runtime, TimeSlice, Timer};
use orrery_storage::Commit;

impl Inner {
    /// Runs the workflow in the cell until it ends or is suspended.
    pub(crate) async fn run_workflow(
        self: &Arc<Self>,
        active: &ActiveExecution,
    ) -> Result<(), Error> {
        let known = {
            let state = active.state.lock().await;
            state.as_ref().map(|LoadedExecution { execution, .. }| {
                let root = execution.workflow().and_then(WorkflowRun::root);
                (execution.organization, execution.id, root)
            })
        };
        let Some((organization, id, root)) = known else { return Ok(()) };
        if let Some(root) = root
            && self.tree(organization, root).await?.is_cancelled()
        {
            return self.cancel_unwanted(organization, id).await;
        }
        let Some(memory) = self.acquire_memory(active).await else { return Ok(()) };
        // Boxed, so that an execution that waits for memory does not yet allocate the state of its
        // run.
        Box::pin(self.run_loaded(active, organization, id, memory)).await
    }

    async fn run_loaded(
        self: &Arc<Self>,
        active: &ActiveExecution,
        organization: OrganizationId,
        id: ExecutionId,
        memory: Memory,
    ) -> Result<(), Error> {
        let mut state = active.state.lock().await;
        let loaded = self.loaded(&mut state, organization, id).await?;
        let run = loaded.execution.workflow();
        let is_suspended = run.is_some_and(|run| run.aside_until.is_some());
        if loaded.execution.status.is_final() || is_suspended {
            return Ok(());
        }
        let entered = self.load_actor(loaded, memory).await;
        let result = match entered {
            Ok(Some(mut actor)) => {
                drop(state);
                actor.run(active).await
            }
            Ok(None) => {
                drop(state);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(error)
            }
        };
        let mut state = active.state.lock().await;
        if result.is_err() {
            // The state in memory may be ahead of the disk, so the next task reads it again.
            *state = None;
        } else if let Some(loaded) = state.as_mut() {
            loaded.progress = None;
        }
        result
    }

    /// Loads the plan, the inputs and the stored steps. If any of these is lost, fails the
    /// execution and returns `None`.
    pub(super) async fn load_actor(
        self: &Arc<Self>,
        loaded: &mut LoadedExecution,
        memory: Memory,
    ) -> Result<Option<Actor>, Error> {
        let is_new = std::mem::take(&mut loaded.is_new);
        let execution = &loaded.execution;
        let Some(run) = execution.workflow() else { return Ok(None) };
        let (plan, inputs) = match self.load_plan(execution, run.revision).await? {
            Ok(found) => found,
            Err(fault) => {
                self.fail_unloaded(loaded, fault).await?;
                return Ok(None);
            }
        };
        let owner = self.views.owner_of(execution).await?;
        let is_foreign = owner != Some(execution.organization);
        let ran = Duration::from_millis(run.ran_ms);
        let depth = run.parent.as_ref().map_or(0, |parent| parent.depth);
        let may_have_steps = !is_new || run.redriven_from.is_some();
        let is_marked = execution.started_at.is_some();
        let (id, organization) = (execution.id, execution.organization);
        let has_events = plan.events().next().is_some();
        let lane = execution.lane();
        let (api_key, trace) = (execution.key, execution.trace());
        let mut steps = if may_have_steps { self.read_steps(id).await? } else { Vec::new() };
        let known = may_have_steps.then(|| steps.iter().map(|(_, step)| step));
        let (tree, share) = self.load_tree(execution, &plan).await?;
        let budget = self.budget(execution, known, share).await?;
        for (_, step) in
            steps.iter_mut().filter(|(at, step)| !at.items.is_empty() && step.status.is_final())
        {
            // Save memory, since there can be many steps: their inputs, attempts and logs are no
            // longer needed.
            (step.input, step.attempts, step.logs) = (None, Vec::new(), None);
        }
        loaded.progress = Some(Box::new(StepProgress::restore(Arc::clone(&plan), steps)));
        Ok(Some(Actor {
            inner: Arc::clone(self),
            id,
            organization,
            api_key,
            trace,
            owner,
            is_foreign,
            plan,
            inputs,
            memory,
            items: HashMap::new(),
            values: Values::default(),
            budget,
            granted: Vec::new(),
            reservations: Vec::new(),
            used: Vec::new(),
            running: FuturesUnordered::new(),
            stops: HashMap::new(),
            admitted: BTreeSet::new(),
            has_events,
            may_have_events: true,
            depth,
            tree,
            children: HashMap::new(),
            ended_children: Vec::new(),
            new_children: HashMap::new(),
            is_paused: false,
            waits_since: None,
            lane,
            parking: Parking::Not,
            timers: BTreeSet::new(),
            timer: Timer::default(),
            is_marked,
            slice: TimeSlice::default(),
            begun: runtime::monotonic_now(),
            running_time: ran,
        }))
    }

    /// Loads the tree of an execution, and the execution's share in the tree, if the execution is
    /// part of a tree or may start a tree.
    async fn load_tree(
        &self,
        execution: &Execution,
        plan: &Plan,
    ) -> Result<(Option<Arc<Tree>>, Option<TreeShare>), Error> {
        let is_below = execution.workflow().is_some_and(|run| run.root().is_some());
        let starts = plan.steps().any(|step| step.kind.role() == Role::Starts);
        let tree = if starts || is_below { Some(self.tree_of(execution).await?) } else { None };
        let share = tree.clone().filter(|_| is_below).map(Tree::share);
        Ok((tree, share))
    }

    /// Fails an execution whose definition or inputs are lost.
    async fn fail_unloaded(
        self: &Arc<Self>,
        loaded: &mut LoadedExecution,
        fault: Fault,
    ) -> Result<(), Error> {
        let mut next = loaded.execution.clone();
        let mut effects = match self.sum_cost(&mut next).await {
            Ok(steps) => machine::abandon(steps.iter().map(|(_, step)| step)),
            Err(error) => {
                let id = next.id;
                tracing::error!(execution = %id, %error, "cannot read the cost of the steps");
                Vec::new()
            }
        };
        effects.extend(machine::fail(&mut next, fault, self.clock.now()));
        let body = self.views.workflow_body(&next, None, Vec::new()).await?;
        self.write(Commit::new(), &next, &effects, Some(body)).await?;
        loaded.execution = next;
        Ok(())
    }
}
