//! The read-only tools.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Outcome, Use, score, words};
use orrery_catalog as catalog;
use orrery_domain::execution::Execution;
use orrery_domain::ids::ExecutionId;
use orrery_domain::workflow::Workflow;
use orrery_engine as engine;
use orrery_engine::query::history::Filter;
use orrery_storage as storage;
use orrery_workflows::{self as workflows, Filter as WorkflowFilter};

/// Maximum number of models and workflows in a search result.
const FOUND_MAX: usize = 20;
/// Maximum number of workflows that a search examines.
const WORKFLOWS_MAX: usize = 1000;
/// Maximum number of items in a list.
const ITEMS_MAX: u64 = 20;
/// Maximum bytes of an output that a tool reads.
const OUTPUT_MAX: u64 = 1024 * 1024;
/// Maximum length of a description in a search result, in characters.
const SHORT: usize = 200;

impl Use<'_> {
    pub(super) async fn read(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Outcome, engine::Error> {
        let field = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let limit = arguments.get("limit").and_then(Value::as_u64).unwrap_or(10);
        let limit = usize::try_from(limit.clamp(1, ITEMS_MAX)).unwrap_or(1);
        match tool {
            "find_models" => Ok(self.find_models(&words(arguments))),
            "get_model" => Ok(self.get_model(field("model"))),
            "find_workflows" => self.find_workflows(&words(arguments)).await,
            "get_workflow" => self.get_workflow(field("workflow")).await,
            "list_executions" => self.list_executions(limit).await,
            "get_execution" => self.get_execution(field("id")).await,
            _ => self.list_files(limit).await,
        }
    }

    fn find_models(&self, words: &[String]) -> Outcome {
        let models = self.inner.catalog.list();
        let mut found: Vec<(usize, Value)> = models
            .iter()
            .map(|model| {
                let schema = model.schema.text().to_string();
                let text = format!("{} {} {} {schema}", model.slug, model.title, model.description);
                let shown = json!({
                    "model": model.slug.as_str(),
                    "title": model.title,
                    "description": short(&model.description),
                    "output_type": model.output_type.as_str(),
                });
                (score(words, &text), shown)
            })
            .filter(|(score, _)| words.is_empty() || *score > 0)
            .collect();
        found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        let found: Vec<Value> = found.into_iter().take(FOUND_MAX).map(|(_, shown)| shown).collect();
        Outcome::json(&json!({"models": found}))
    }

    fn get_model(&self, slug: &str) -> Outcome {
        match self.inner.catalog.get(slug) {
            Some(model) => {
                let detail = String::from_utf8_lossy(&catalog::detail_json(&model)).into_owned();
                Outcome::said(detail)
            }
            None => Outcome::said(format!("there is no model '{slug}'; use find_models")),
        }
    }

    async fn find_workflows(&self, words: &[String]) -> Result<Outcome, engine::Error> {
        let filter = WorkflowFilter::newest(0, WORKFLOWS_MAX);
        let listed = self.inner.workflows.list(self.organization(), &filter).await;
        let (workflows, _) = listed.map_err(unreadable)?;
        let mut found: Vec<(usize, Value)> = workflows
            .iter()
            .map(|workflow| {
                let text = format!("{} {} {}", workflow.slug, workflow.name, workflow.description);
                let shown = json!({
                    "workflow_id": workflow.id,
                    "slug": workflow.slug,
                    "name": workflow.name,
                    "description": short(&workflow.description),
                });
                (score(words, &text), shown)
            })
            .filter(|(score, _)| words.is_empty() || *score > 0)
            .collect();
        found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        let found: Vec<Value> = found.into_iter().take(FOUND_MAX).map(|(_, shown)| shown).collect();
        Ok(Outcome::json(&json!({"workflows": found})))
    }

    async fn get_workflow(&self, reference: &str) -> Result<Outcome, engine::Error> {
        let workflow = match self.workflow(reference).await? {
            Ok(workflow) => workflow,
            Err(outcome) => return Ok(outcome),
        };
        let latest = workflow.version(&workflow.latest).map(|version| version.revision);
        let definition = match latest {
            Some(revision) => {
                let text = self.inner.workflows.definition(revision).await.map_err(unreadable)?;
                serde_json::from_str(text.get()).unwrap_or(Value::Null)
            }
            None => Value::Null,
        };
        let shown = json!({
            "workflow_id": workflow.id,
            "slug": workflow.slug,
            "name": workflow.name,
            "description": workflow.description,
            "version_id": workflow.latest,
            "definition": definition,
        });
        let event = json!({
            "type": "workflow_fetched",
            "workflow_id": workflow.id,
            "version_id": workflow.latest,
            "workflow_name": workflow.name,
            "definition": in_event(&definition),
        });
        Ok(Outcome::json(&shown).with_event(event))
    }

    async fn list_executions(&self, limit: usize) -> Result<Outcome, engine::Error> {
        let engine = &self.inner.engine;
        let filter = Filter::default();
        let page = engine.history(self.organization(), &filter, None, limit).await?;
        let shown: Vec<Value> =
            page.executions.iter().map(|one| summary(one, &Value::Null)).collect();
        Ok(Outcome::json(&json!({"executions": shown})))
    }

    async fn get_execution(&self, id: &str) -> Result<Outcome, engine::Error> {
        let missing = || Outcome::said(format!("there is no execution '{id}'"));
        let Ok(id) = id.parse::<ExecutionId>() else { return Ok(missing()) };
        let execution = match self.inner.engine.get(self.organization(), id).await {
            Ok(execution) => execution,
            Err(engine::Error::NotFound) => return Ok(missing()),
            Err(error) => return Err(error),
        };
        let output = self.output(&execution).await?;
        Ok(Outcome::json(&summary(&execution, &output)))
    }

    async fn list_files(&self, limit: usize) -> Result<Outcome, engine::Error> {
        let listed = self.inner.files.list(self.organization(), None, None, limit).await;
        let files = listed.map_err(|error| {
            let reason = error.to_string();
            engine::Error::Storage(storage::Error::Unavailable { reason })
        })?;
        let shown = files.files.iter().map(|file| {
            json!({
                "id": file.id,
                "filename": file.filename,
                "content_type": file.content_type,
                "size": file.size,
                "created_at": file.created_at.to_string(),
            })
        });
        Ok(Outcome::json(&json!({"files": shown.collect::<Vec<_>>()})))
    }

    /// Returns the organization's workflow with this id or slug, or an error message for the model.
    pub(super) async fn workflow(
        &self,
        reference: &str,
    ) -> Result<Result<Arc<Workflow>, Outcome>, engine::Error> {
        match self.inner.workflows.find(self.organization(), reference).await {
            Ok(workflow) => Ok(Ok(workflow)),
            Err(workflows::Error::NotFound { near }) => {
                let hint = near.map(|near| format!(" (did you mean '{near}'?)"));
                let hint = hint.unwrap_or_default();
                let message =
                    format!("there is no workflow '{reference}'{hint}; use find_workflows");
                Ok(Err(Outcome::refused(message)))
            }
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Returns the output of an execution with freshly signed links; null if there is no output.
    pub(super) async fn output(&self, execution: &Execution) -> Result<Value, engine::Error> {
        self.inner.output(execution, OUTPUT_MAX).await
    }
}

/// Converts a workflow error that is not the model's fault to an engine error.
pub(crate) fn unreadable(error: workflows::Error) -> engine::Error {
    if let workflows::Error::Storage(error) = error {
        return error.into();
    }
    let reason = error.to_string();
    engine::Error::Storage(storage::Error::Unavailable { reason })
}

/// Returns an execution in the form that the model receives.
pub(super) fn summary(execution: &Execution, output: &Value) -> Value {
    json!({
        "id": execution.id,
        "type": execution.kind().as_str(),
        "model": execution.models().map(|(model, _)| model),
        "status": execution.status.word(execution.kind()),
        "error": execution.fault.as_ref().map(|fault| fault.cause.as_str()),
        "cost_usd": execution.cost.dollars(),
        "created_at": execution.created_at.to_string(),
        "output": output,
    })
}

/// Returns a value for an event. A value that is too large is omitted.
pub(super) fn in_event(value: &Value) -> Value {
    const EVENT_MAX: usize = 64 * 1024;
    if value.to_string().len() > EVENT_MAX { Value::Null } else { value.clone() }
}

fn short(text: &str) -> String {
    text.chars().take(SHORT).collect()
}
