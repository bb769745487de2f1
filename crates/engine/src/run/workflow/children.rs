//! Steps that run workflows. The commit that creates a child also records the child's id, so each
//! attempt has exactly one child. The step ends with the child's result.
//!
//! While the parent only waits for children, it stays in memory for a short time without a permit,
//! and is then suspended until a child ends.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::to_raw_value;

use super::Actor;
use super::resolve::{StepResult, split_step_error};
use super::runs::{Job, Report, Running};
use crate::models::{Call, Callee};
use crate::trees::Tree;
use crate::{Error, Inner, Submission, rows};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{
    DEPTH_MAX, Execution, Fault, ParentStep, Source, Status, Work, WorkflowRun,
};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_domain::machine::workflow::{Event, StepProgress, Success};
use orrery_domain::money::Usd;
use orrery_domain::step::Instance;
use orrery_domain::trace;
use orrery_runtime::new_id;
use orrery_storage::Commit;

/// A child that a step is about to start.
#[derive(Debug)]
pub(super) struct NewChild {
    pub id: ExecutionId,
    /// The commit that creates the child.
    pub commit: Commit,
}

/// The parent side of a new child.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub organization: OrganizationId,
    pub key: KeyId,
    /// The owner of the calling workflow; `None` if the workflow no longer exists.
    pub owner: Option<OrganizationId>,
    pub parent: ParentStep,
    /// The tree that the child counts toward.
    pub tree: Option<Arc<Tree>>,
    /// The span of the step's attempt.
    pub origin: Arc<trace::Origin>,
}

/// A child that is ready to be created, or the error that prevents its creation.
pub(super) type PreparedChild = Result<Result<NewChild, Failure>, Error>;

/// The first result of an attempt at a workflow step.
pub(super) enum Begun {
    /// There is no child yet. The job prepares a child.
    Job(Box<Job>, Event),
    /// The child has ended, or cannot be created. Contains the resulting event.
    Event(Event),
    /// The child is unfinished, or memory for its inputs is not available yet.
    Waits,
}

impl Actor {
    /// Begins an attempt at a workflow step, or continues with its existing child.
    pub(super) async fn begin_child(
        &mut self,
        progress: &StepProgress,
        instance: Instance,
        attempt: u32,
    ) -> Result<Begun, Error> {
        if let Some(child) = progress.step(&instance).and_then(|step| step.child) {
            // Register the child before reading its state. Otherwise, if the child ended between
            // the two, its end would be missed.
            self.children.insert(child, (instance, attempt));
            let ended = self.end_of_child(child).await?;
            return Ok(ended.map_or(Begun::Waits, Begun::Event));
        }
        Ok(match self.prepare(progress, instance, attempt, None).await? {
            Ok(Some((job, resolved))) => Begun::Job(Box::new(job), resolved),
            Ok(None) => Begun::Waits,
            Err(failed) => Begun::Event(failed),
        })
    }

    /// Builds the parent side of a step's child.
    pub(super) fn caller(&self, step_id: &str, is_waiting: bool, call: &trace::Call) -> Caller {
        let execution = self.id;
        let depth = self.depth.saturating_add(1);
        let step_id = step_id.to_owned();
        Caller {
            organization: self.organization,
            key: self.api_key,
            owner: self.owner,
            parent: ParentStep { execution, step_id, depth, is_waiting },
            tree: self.tree.clone(),
            origin: call.origin(),
        }
    }

    /// Returns the event for a prepared child.
    ///
    /// # Errors
    /// [`Error`] if the child temporarily cannot be prepared.
    pub(super) fn child_event(
        &mut self,
        instance: Instance,
        attempt: u32,
        prepared: PreparedChild,
    ) -> Result<Event, Error> {
        Ok(match prepared? {
            Ok(child) => {
                let id = child.id;
                self.new_children.insert(instance.clone(), child);
                Event::ChildStarted { instance, attempt, child: id }
            }
            Err(failure) => {
                let fault = self.redact_error(&instance, Fault::of_step(&failure));
                Event::Failed { instance, attempt, fault, cost: Usd::ZERO, logs: None }
            }
        })
    }

    /// If the tree was closed while a child was prepared, replaces the event that starts the child
    /// with a failure.
    pub(super) fn unless_tree_closed(&mut self, event: Event) -> Result<Event, Error> {
        let Event::ChildStarted { instance, attempt, .. } = &event else { return Ok(event) };
        let Some(Err(closed)) = self.tree.as_ref().map(|tree| tree.check_open()) else {
            return Ok(event);
        };
        self.new_children.remove(instance);
        let failure = Failure::new(ErrorClass::InvalidModelConfig, closed.to_string());
        self.child_event(instance.clone(), *attempt, Ok(Err(failure)))
    }

    /// Converts ended children into events of the steps that wait for them.
    pub(super) async fn take_ended_children(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        for child in std::mem::take(&mut self.ended_children) {
            events.extend(self.end_of_child(child).await?);
        }
        Ok(events)
    }

    /// Returns the event for a child's result, or `None` if the child is unfinished or no step is
    /// waiting for it.
    async fn end_of_child(&mut self, child: ExecutionId) -> Result<Option<Event>, Error> {
        let Some((instance, attempt)) = self.children.get(&child).cloned() else { return Ok(None) };
        let key = rows::execution(self.organization, child);
        let stored = self.inner.store.read::<Execution>(&key).await.map_err(Error::from);
        let outcome = match split_step_error(stored)? {
            Ok(Some(stored)) if !stored.status.is_final() => return Ok(None),
            Ok(Some(stored)) => self.outcome_of(&stored).await?,
            Ok(None) => Err(Fault::of_step(&Failure::new(
                ErrorClass::InternalError,
                format!("the child execution {child} is no longer stored"),
            ))),
            Err(fault) => Err(fault),
        };
        self.children.remove(&child);
        Ok(Some(match outcome {
            Ok(output) => {
                let success =
                    Success { output, answer: None, cost: Usd::ZERO, logs: None, is_cached: false };
                Event::Succeeded { instance, attempt, success }
            }
            Err(fault) => {
                let fault = self.redact_error(&instance, fault);
                Event::Failed { instance, attempt, fault, cost: Usd::ZERO, logs: None }
            }
        }))
    }

    /// Returns the output of an ended child, or its failure converted to a step failure.
    async fn outcome_of(
        &mut self,
        child: &Execution,
    ) -> StepResult<orrery_domain::payload::Payload> {
        let id = child.id;
        let failed = |class: ErrorClass, cause: String| Fault::new("StepFailed", class, cause);
        match (child.status, &child.output, &child.fault) {
            (Status::Success, Some(output), _) => {
                let text = self.inner.store.read_payload(output).await.map_err(Error::from);
                match split_step_error(text)? {
                    Ok(text) => self.store_text(text).await,
                    Err(fault) => Ok(Err(fault)),
                }
            }
            (Status::Success, None, _) => self.payload(&Value::Null).await,
            (_, _, Some(fault)) => {
                let cause = format!("the child execution {id} failed: {}", fault.cause);
                Ok(Err(failed(fault.class, cause)))
            }
            _ => Ok(Err(failed(
                ErrorClass::Unknown,
                format!("the child execution {id} was cancelled"),
            ))),
        }
    }
}

impl Inner {
    /// Looks up the workflow, validates its inputs, and prepares the commit that creates the child.
    pub(super) fn prepare_child(
        self: Arc<Self>,
        instance: Instance,
        attempt: u32,
        caller: Caller,
        call: Call,
    ) -> Running {
        Box::pin(async move {
            let prepared = Box::new(self.child(caller, call).await);
            Report::ChildPrepared { instance, attempt, prepared }
        })
    }

    async fn child(self: &Arc<Self>, caller: Caller, call: Call) -> PreparedChild {
        let refuse = |class: ErrorClass, message: String| -> PreparedChild {
            Ok(Err(Failure::new(class, message)))
        };
        let Caller { organization, key, owner, parent, tree, origin } = caller;
        if parent.depth > DEPTH_MAX {
            let message = format!("workflows within workflows nest deeper than {DEPTH_MAX} levels");
            return refuse(ErrorClass::InvalidModelConfig, message);
        }
        let Some(owner) = owner else {
            let message = "the organization that owns the workflow is not known".to_owned();
            return refuse(ErrorClass::InvalidModelConfig, message);
        };
        let Some(tree) = tree else {
            return refuse(
                ErrorClass::InternalError,
                "the execution's tree is not loaded".to_owned(),
            );
        };
        let callee = match self.plans.callee(owner, call).await? {
            Ok(callee) => callee,
            Err(failure) => return Ok(Err(failure)),
        };
        let Callee { workflow, version, revision, inputs, beside } = callee;
        let mut run = WorkflowRun::new(workflow, version, revision, None);
        (run.owner, run.parent, run.root) = (Some(owner), Some(parent), Some(tree.root()));
        let id: ExecutionId = new_id();
        let input = to_raw_value(&inputs)
            .map_err(|error| orrery_storage::Error::malformed("input", error))?;
        let counted = match tree.reserve(input.get().len() as u64) {
            Ok(counted) => counted,
            Err(over) => return refuse(ErrorClass::InvalidModelConfig, over.to_string()),
        };
        let submission = Submission {
            id,
            organization,
            key,
            source: Source::Workflow,
            work: Work::Workflow(run),
            input,
            webhook: None,
            origin: Some(origin),
        };
        match self.commit_of_submissions(vec![submission], beside).await {
            Ok((mut commit, _)) => {
                counted.record(&mut commit);
                Ok(Ok(NewChild { id, commit }))
            }
            Err(
                error @ (Error::QueueFull { .. }
                | Error::TooManyQueued { .. }
                | Error::Failing { .. }),
            ) => refuse(ErrorClass::ProviderUnavailable, error.to_string()),
            Err(
                error @ (Error::Unpaid { .. }
                | Error::OverBudget(_)
                | Error::Refused(_)
                | Error::OverQuota { .. }),
            ) => refuse(ErrorClass::InvalidModelConfig, error.to_string()),
            Err(error) => Err(error),
        }
    }
}
