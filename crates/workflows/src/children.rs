//! Workflows that are run by steps of other workflows. When a definition is stored, the workflows
//! that its steps run must exist and must not form a cycle. The workflows are looked up again when
//! a step starts.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::definitions::{Checked, Compiled};
use super::parameters::Given;
use super::{Error, Workflows, count_trigger};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{PROBLEMS_MAX, Problem, SubWorkflow};
use orrery_domain::ids::{OrganizationId, RevisionId, WorkflowId};
use orrery_domain::workflow::{Status, Workflow};
use orrery_engine::{Call, Callee};
use orrery_schema::{Patience, Unavailable, ValidationError};
use orrery_storage::{self as storage, Commit};

/// Maximum number of versions searched for a cycle.
const VERSIONS_SEEN_MAX: usize = 1000;

/// A version reachable from the definition, and the workflows on the path to it.
struct Reached {
    workflow: Arc<Workflow>,
    version: String,
    way: Vec<String>,
}

/// The missing workflow or version that a step refers to.
enum Missing {
    /// Contains the most similar existing slug, if any.
    Workflow(Option<String>),
    Version(String),
}

impl Missing {
    fn describe(&self, reference: &str) -> String {
        match self {
            Self::Workflow(None) => format!("workflow '{reference}' does not exist"),
            Self::Workflow(Some(near)) => {
                format!("workflow '{reference}' does not exist: did you mean {near}?")
            }
            Self::Version(version) => {
                format!("workflow '{reference}' has no version '{version}'")
            }
        }
    }
}

impl Reached {
    /// Returns the version's revision; `None` for the version that is about to be stored.
    fn revision(&self) -> Option<RevisionId> {
        self.workflow.version(&self.version).map(|version| version.revision)
    }
}

impl Workflows {
    /// Rejects a definition if its steps run missing workflows or workflows that lead back to the
    /// definition, or if the inputs of a step can never match its workflow's schema. `own` is the
    /// version that the definition will be stored as; it then becomes the latest version.
    pub(super) async fn check_children(
        &self,
        organization: OrganizationId,
        own: Option<(WorkflowId, &str)>,
        checked: &Checked,
    ) -> Result<(), Error> {
        let mut problems = Vec::new();
        for (step, child) in checked.plan().children() {
            if problems.len() >= PROBLEMS_MAX {
                break;
            }
            let first = self.callee_of(organization, own, child).await?;
            let revision = first.as_ref().ok().and_then(Reached::revision);
            let refused = match first {
                Err(missing) => Some(missing.describe(&child.workflow)),
                Ok(first) => self.find_circle(organization, own, first).await?,
            };
            if let Some(message) = refused {
                let message = format!("step '{}': {message}", step.id);
                problems.push(Problem { path: checked.place_of(&step.id, "workflow"), message });
            } else if let Some(revision) = revision
                && let Some(compiled) = self.usable(revision).await?
                && let Some(schema) = &compiled.inputs
            {
                let target = format!("workflow '{}'", child.workflow);
                let given =
                    Given { step: &step.id, field: "inputs", target, values: &child.inputs };
                problems.extend(given.problems(schema, &checked.place_of(&step.id, "inputs")));
            }
        }
        problems.truncate(PROBLEMS_MAX);
        Error::of_problems(problems)
    }

    /// Returns the version that a step refers to, or what is missing.
    async fn callee_of(
        &self,
        organization: OrganizationId,
        own: Option<(WorkflowId, &str)>,
        child: &SubWorkflow,
    ) -> Result<Result<Reached, Missing>, Error> {
        let workflow = match self.find(organization, &child.workflow).await {
            Ok(workflow) => workflow,
            Err(Error::NotFound { near }) => return Ok(Err(Missing::Workflow(near))),
            Err(error) => return Err(error),
        };
        let is_own = own.filter(|(id, _)| *id == workflow.id);
        let latest = is_own.map_or(workflow.latest.as_str(), |(_, version)| version);
        let version = child.version.as_deref().unwrap_or(latest).to_owned();
        let is_there = workflow.version(&version).is_some()
            || is_own.is_some_and(|(_, own)| own == version.as_str());
        if !is_there {
            return Ok(Err(Missing::Version(version)));
        }
        let way = vec![workflow.slug.clone()];
        Ok(Ok(Reached { workflow, version, way }))
    }

    /// Finds a cycle that leads from a version back to the definition, and describes it.
    async fn find_circle(
        &self,
        organization: OrganizationId,
        own: Option<(WorkflowId, &str)>,
        first: Reached,
    ) -> Result<Option<String>, Error> {
        let Some((own_id, own_version)) = own else { return Ok(None) };
        let mut seen = HashSet::new();
        let mut open = VecDeque::from([first]);
        while let Some(Reached { workflow, version, way }) = open.pop_front() {
            if workflow.id == own_id && version == own_version {
                let (own, way) = (&workflow.slug, way.join("' → '"));
                let message = format!("workflows run each other in a cycle: '{own}' → '{way}'");
                return Ok(Some(message));
            }
            if !seen.insert((workflow.id, version.clone())) {
                continue;
            }
            if seen.len() > VERSIONS_SEEN_MAX {
                let message =
                    format!("its workflow leads to more than {VERSIONS_SEEN_MAX} workflows");
                return Ok(Some(message));
            }
            let Some(stored) = workflow.version(&version) else { continue };
            let Some(compiled) = self.usable(stored.revision).await? else { continue };
            for (_, child) in compiled.plan.children() {
                if let Ok(mut next) = self.callee_of(organization, own, child).await? {
                    next.way.splice(0..0, way.iter().cloned());
                    open.push_back(next);
                }
            }
        }
        Ok(None)
    }

    /// Returns a stored version; `None` if it is unusable. A step that runs an unusable version
    /// fails.
    async fn usable(&self, revision: RevisionId) -> Result<Option<Arc<Compiled>>, Error> {
        match self.compiled(revision).await {
            Ok(compiled) => Ok(Some(compiled)),
            Err(error @ (Error::Storage(_) | Error::ValidationUnavailable(_))) => Err(error),
            Err(_unusable) => Ok(None),
        }
    }

    /// Returns the current version of a step's workflow.
    pub(super) async fn find_callee(
        &self,
        organization: OrganizationId,
        call: Call,
    ) -> Result<Result<Callee, Failure>, storage::Error> {
        let refuse = |class, message: String| Ok(Err(Failure::new(class, message)));
        let unusable = ErrorClass::InvalidModelConfig;
        let name = &call.workflow;
        let workflow = match self.find(organization, name).await {
            Ok(workflow) if workflow.status == Status::Archived => {
                return refuse(unusable, format!("the workflow '{name}' is archived"));
            }
            Ok(workflow) => workflow,
            Err(Error::Storage(error)) => return Err(error),
            Err(_not_found) => {
                return refuse(unusable, format!("the workflow '{name}' no longer exists"));
            }
        };
        let id = call.version.as_deref().unwrap_or(&workflow.latest);
        let Some(version) = workflow.version(id) else {
            return refuse(unusable, format!("the workflow '{name}' has no version '{id}'"));
        };
        let compiled = loop {
            match self.compiled(version.revision).await {
                Ok(compiled) => break compiled,
                // An execution can wait until the validation is no longer busy.
                Err(Error::ValidationUnavailable(Unavailable::Busy)) => {}
                Err(Error::Storage(error)) if !error.is_final() => return Err(error),
                Err(error) => {
                    return refuse(unusable, format!("the workflow '{name}' cannot run: {error}"));
                }
            }
        };
        let mut inputs = call.inputs;
        if let Some(schema) = &compiled.inputs {
            inputs = match schema.check_off_thread(inputs, Patience::Execution).await {
                Ok(inputs) => inputs,
                Err(error @ ValidationError::Violations(_)) => {
                    let message = format!("the workflow '{name}': invalid input: {error}");
                    return refuse(ErrorClass::InvalidUserInput, message);
                }
                Err(error @ ValidationError::Unavailable(_)) => {
                    return refuse(ErrorClass::ProviderUnavailable, error.to_string());
                }
            };
        }
        let mut beside = Commit::new();
        count_trigger(&mut beside, workflow.id, &version.id);
        let (version, revision) = (version.id.clone(), version.revision);
        Ok(Ok(Callee { workflow: workflow.id, version, revision, inputs, beside }))
    }
}
