//! The tools with effects: they run models and workflows, and create workflows.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::progress::of_prediction;
use super::read::{in_event, summary, unreadable};
use super::{Outcome, Use};
use crate::work::{self, Ready};
use orrery_domain::execution::{Execution, Source, Status};
use orrery_domain::ids::{ExecutionId, WorkflowId};
use orrery_domain::model::Pricing;
use orrery_domain::workflow::{DESCRIPTION_MAX, NAME_MAX, Workflow, is_version_id};
use orrery_engine::{self as engine, Submission};
use orrery_records::audit::Actor;
use orrery_runtime::new_id;
use orrery_runtime::turns::Turn;
use orrery_storage::{self as storage, Commit};
use orrery_workflows::{self as workflows, New, Put, Workflows};

/// Maximum number of an output's URLs that an event lists, and maximum characters of each URL.
const URLS_MAX: usize = 64;
const URL_CHARS_MAX: usize = 2048;
/// Timeout of each wait for the end of an execution.
pub(super) const WAIT: Duration = Duration::from_secs(60);

/// The work to start.
enum Started<'a> {
    Model(&'a str),
    /// A version of a workflow.
    Workflow {
        id: WorkflowId,
        version: &'a str,
    },
}

impl Use<'_> {
    /// Runs a model as a separate prediction.
    pub(super) async fn run_model(
        &mut self,
        arguments: Map<String, Value>,
        room: Option<Turn>,
    ) -> Result<Outcome, engine::Error> {
        let slug = arguments.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(model) = self.inner.catalog.get(&slug) else {
            return Ok(Outcome::refused(format!("there is no model '{slug}'; use find_models")));
        };
        let child = match self.started().await? {
            Some(child) => child,
            None => {
                let input = arguments.get("input").cloned().unwrap_or_default();
                let ready = match work::prediction(&model, input).await {
                    Ok(ready) => ready,
                    Err(refused) => return Ok(Outcome::refused(refused)),
                };
                if let Some(Pricing::Fixed { amount }) = &model.pricing
                    && let Some(most) = self.exchange.limits.cost
                    && self.spent.plus(*amount) > most
                {
                    let message = format!("'{slug}' costs more than this exchange may still spend");
                    return Ok(Outcome::said(message));
                }
                match self.submit(ready, Started::Model(&slug)).await? {
                    Ok(child) => child,
                    Err(outcome) => return Ok(outcome),
                }
            }
        };
        drop((arguments, room));
        let ended = self.wait(child).await?;
        let output = self.output(&ended).await?;
        let status = ended.status.word(ended.kind());
        let progress = of_prediction(child, status, &slug, true);
        let mut outcome = Outcome::json(&summary(&ended, &output)).with_event(progress);
        outcome.cost = ended.cost;
        if ended.status == Status::Success && model.output_type.is_artefact() {
            outcome.media = urls(&output);
            let generations: Vec<Value> = outcome
                .media
                .iter()
                .map(|url| json!({"url": url, "model": slug, "type": model.output_type.as_str()}))
                .collect();
            let time = ended.run_time().map(|time| time.as_millis());
            outcome.events.push(json!({
                "type": "generation_response",
                "url": outcome.media.first(),
                "generations": generations,
                "total": generations.len(),
                "tool_name": "run_model",
                "model": slug,
                "execution_time_ms": time.and_then(|time| u64::try_from(time).ok()),
            }));
        }
        Ok(outcome)
    }

    /// Triggers a workflow and waits until it ends.
    pub(super) async fn run_workflow(
        &mut self,
        arguments: Map<String, Value>,
        room: Option<Turn>,
    ) -> Result<Outcome, engine::Error> {
        let reference = arguments.get("workflow").and_then(Value::as_str).unwrap_or_default();
        let workflow = match self.workflow(reference).await? {
            Ok(workflow) => workflow,
            Err(outcome) => return Ok(outcome),
        };
        let child = match self.started().await? {
            Some(child) => child,
            None => {
                let inputs = arguments.get("inputs").cloned().unwrap_or_else(|| json!({}));
                match self.trigger(&workflow, inputs).await? {
                    Ok(child) => child,
                    Err(outcome) => return Ok(outcome),
                }
            }
        };
        drop((arguments, room));
        let ended = self.follow(child).await?;
        let output = self.output(&ended).await?;
        let time = ended.run_time().map(|time| time.as_millis());
        let mut outcome = Outcome::json(&summary(&ended, &output)).with_event(json!({
            "type": "execution_completed",
            "execution_id": child,
            "workflow_id": workflow.id,
            "status": ended.status.execution_word(),
            "output": in_event(&output),
            "all_outputs": urls(&output),
            "total_time_ms": time.and_then(|time| u64::try_from(time).ok()),
        }));
        outcome.cost = ended.cost;
        outcome.media = urls(&output);
        Ok(outcome)
    }

    /// Starts the latest version of a workflow, or returns an error message for the model.
    async fn trigger(
        &mut self,
        workflow: &Workflow,
        inputs: Value,
    ) -> Result<Result<ExecutionId, Outcome>, engine::Error> {
        let ready = match work::workflow_run(self.inner, workflow, inputs).await? {
            Ok(ready) => ready,
            Err(refused) => return Ok(Err(Outcome::refused(refused))),
        };
        self.submit(ready, Started::Workflow { id: workflow.id, version: &workflow.latest }).await
    }

    /// Creates a workflow.
    pub(super) async fn create_workflow(
        &mut self,
        arguments: &Map<String, Value>,
    ) -> Result<Outcome, engine::Error> {
        let field = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let (name, description) = (field("name").trim(), field("description"));
        if name.is_empty() || name.chars().nth(NAME_MAX).is_some() {
            return Ok(Outcome::refused(format!("name must have 1 to {NAME_MAX} characters")));
        }
        if description.chars().nth(DESCRIPTION_MAX).is_some() {
            let message = format!("description must have at most {DESCRIPTION_MAX} characters");
            return Ok(Outcome::refused(message));
        }
        let id: WorkflowId = *self.task.workflow.get_or_insert_with(new_id);
        self.begin(Vec::new()).await?;
        let found = self.inner.workflows.by_id(id).await;
        let workflow = match found {
            Ok(workflow) => workflow,
            Err(workflows::Error::NotFound { .. }) => {
                let new = New {
                    name: name.to_owned(),
                    description: description.to_owned(),
                    categories: Vec::new(),
                    tags: Vec::new(),
                    locked: false,
                    production: false,
                    definition: arguments.get("definition").cloned(),
                };
                let organization = self.organization();
                match self.workflows().create(organization, id, new, Commit::new()).await {
                    Ok(workflow) => Arc::new(workflow),
                    Err(error) => return refusal(error),
                }
            }
            Err(error) => return Err(unreadable(error)),
        };
        let definition = arguments.get("definition");
        let steps = definition.and_then(|definition| definition.get("steps")?.as_array());
        let event = json!({
            "type": "workflow_created",
            "workflow_id": workflow.id,
            "version_id": workflow.latest,
            "workflow_name": workflow.name,
            "input_schema": definition.and_then(|definition| definition.get("input_schema")),
            "steps_count": steps.map_or(0, Vec::len),
        });
        let shown = json!({
            "workflow_id": workflow.id, "slug": workflow.slug, "version_id": workflow.latest,
        });
        Ok(Outcome::json(&shown).with_event(built(definition)).with_event(event))
    }

    /// Creates or changes a version of a workflow. Idempotent.
    pub(super) async fn put_version(
        &mut self,
        arguments: &Map<String, Value>,
    ) -> Result<Outcome, engine::Error> {
        let field = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let (reference, version) = (field("workflow"), field("version_id"));
        if !is_version_id(version) {
            return Ok(Outcome::refused("version_id must have a form such as v2"));
        }
        let workflow = match self.workflow(reference).await? {
            Ok(workflow) => workflow,
            Err(outcome) => return Ok(outcome),
        };
        let put = Put {
            definition: arguments.get("definition").cloned(),
            locked: false,
            production: false,
            allowed_to_share: None,
            name: None,
            description: None,
            replaces: None,
        };
        let (organization, id) = (self.organization(), workflow.id.to_string());
        let changed = self.workflows().put_version(organization, &id, version, put).await;
        if let Err(error) = changed {
            return refusal(error);
        }
        let event = json!({
            "type": "workflow_updated",
            "success": true,
            "workflow_id": workflow.id,
            "version_id": version,
            "definition": arguments.get("definition"),
            "message": format!("version {version} is the latest"),
        });
        let shown = json!({"workflow_id": workflow.id, "version_id": version});
        let built = built(arguments.get("definition"));
        Ok(Outcome::json(&shown).with_event(built).with_event(event))
    }

    /// Returns the workflows with the agent's session as the audit log's actor.
    fn workflows(&self) -> Workflows {
        self.inner.workflows.by(Actor::agent(&self.exchange.session_name))
    }

    /// Returns the execution that this call has already started, if it was interrupted by a crash.
    async fn started(&self) -> Result<Option<ExecutionId>, engine::Error> {
        let Some(child) = self.task.execution else { return Ok(None) };
        match self.inner.engine.get(self.organization(), child).await {
            Ok(_) => Ok(Some(child)),
            Err(engine::Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Starts an execution under an id that is already committed, or returns an error message for
    /// the model.
    async fn submit(
        &mut self,
        ready: Ready,
        started: Started<'_>,
    ) -> Result<Result<ExecutionId, Outcome>, engine::Error> {
        let Ready { work, input, beside } = ready;
        let child: ExecutionId = *self.task.execution.get_or_insert_with(new_id);
        let event = match started {
            Started::Model(model) => of_prediction(child, "starting", model, false),
            Started::Workflow { id, version } => json!({
                "type": "execution_started",
                "execution_id": child,
                "workflow_id": id,
                "version_id": version,
                "inputs": in_event(&input),
            }),
        };
        self.begin(vec![event]).await?;
        let execution = self.run.execution();
        // The step exists, because `begin` has committed it.
        let place = self.run.steps().len().saturating_sub(1);
        let call = execution.trace().call(&execution.exchange_step_key(place));
        let input =
            to_raw_value(&input).map_err(|error| storage::Error::malformed("input", error))?;
        let submission = Submission {
            id: child,
            organization: execution.organization,
            key: execution.key,
            source: Source::Agent,
            work,
            input,
            webhook: None,
            origin: Some(call.origin()),
        };
        match self.inner.engine.submit(vec![submission], beside).await {
            Ok(_) => Ok(Ok(child)),
            Err(error @ (engine::Error::Storage(_) | engine::Error::Stopping)) => Err(error),
            Err(error) => Ok(Err(Outcome::said(format!("it could not be started: {error}")))),
        }
    }

    /// Waits until the execution ends.
    async fn wait(&self, child: ExecutionId) -> Result<Execution, engine::Error> {
        let _until_it_ends = self.run.yield_place();
        loop {
            let organization = self.organization();
            let execution = self.inner.engine.wait(organization, child, WAIT).await?;
            if execution.status.is_final() {
                return Ok(execution);
            }
            self.inner.engine.check_running()?;
        }
    }
}

/// Builds the event for an accepted definition.
fn built(definition: Option<&Value>) -> Value {
    let steps = definition.and_then(|definition| definition.get("steps")?.as_array());
    json!({
        "type": "workflow_built",
        "steps_count": steps.map_or(0, Vec::len),
        "definition": definition.map(in_event),
    })
}

/// Builds the message for the model about a rejected definition.
fn refusal(error: workflows::Error) -> Result<Outcome, engine::Error> {
    use workflows::Error as E;
    if matches!(error, E::Storage(_) | E::ValidationUnavailable(_)) {
        return Err(unreadable(error));
    }
    Ok(Outcome::refused(error.to_string()))
}

/// Returns the URLs in an output: the output itself, or the items of a list.
pub(crate) fn urls(output: &Value) -> Vec<String> {
    let is_url = |text: &&str| {
        let is_web = text.starts_with("http://") || text.starts_with("https://");
        is_web && text.chars().nth(URL_CHARS_MAX).is_none()
    };
    let items = output.as_array().map_or_else(|| vec![output], |items| items.iter().collect());
    let urls = items.into_iter().filter_map(Value::as_str).filter(is_url);
    urls.take(URLS_MAX).map(str::to_owned).collect()
}
