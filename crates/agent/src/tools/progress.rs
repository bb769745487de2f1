//! Reports the progress of an execution that a tool has started, as events. The events of workflow
//! steps are committed with the step of the exchange as they occur, so that a client that
//! reconnects receives each event once.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::Use;
use crate::drive::text;
use crate::servers::{Called, Report};
use orrery_domain::agent::{Begun, Task};
use orrery_domain::execution::Execution;
use orrery_domain::ids::ExecutionId;
use orrery_engine as engine;
use orrery_engine::query::progress::{EndedStep, Progress};

/// Maximum number of events of one tool call, and maximum bytes of all these events. The events are
/// limited because they are stored in a step, whose size must stay small.
const EVENTS_MAX: usize = 128;
const BYTES_MAX: usize = 48 * 1024;
/// Maximum bytes of an output in an event.
const OUTPUT_MAX: u64 = 4 * 1024;
/// Minimum time between two progress reports of a tool, because each report is a commit.
const REPORT_PAUSE: Duration = Duration::from_millis(500);
const KIND: &str = "execution_progress";

impl Use<'_> {
    /// Waits until a workflow execution ends. Meanwhile, adds an event for each step that ends.
    pub(super) async fn follow(&mut self, child: ExecutionId) -> Result<Execution, engine::Error> {
        let _until_it_ends = self.run.yield_place();
        let engine = self.inner.engine.clone();
        let organization = self.organization();
        loop {
            let waiter = engine.watch_steps(child);
            let woken = waiter.woken();
            let progress = engine.progress(organization, child).await?;
            self.note(&progress).await?;
            if progress.execution.status.is_final() {
                return Ok(progress.execution);
            }
            tokio::select! {
                ended = engine.wait(organization, child, super::act::WAIT) => {
                    ended?;
                    engine.check_running()?;
                }
                () = woken => {}
            }
        }
    }

    /// Commits an event for each step that has ended since the last call of this function.
    async fn note(&mut self, progress: &Progress) -> Result<(), engine::Error> {
        let known: HashSet<&str> = self.events.iter().filter_map(step_of).collect();
        let is_new = |(_, step): &(usize, &EndedStep)| !known.contains(step.id.as_str());
        let new: Vec<_> = progress.ended.iter().enumerate().filter(is_new).collect();
        let mut events = self.events.clone();
        let mut bytes: usize = events.iter().map(|event| event.to_string().len()).sum();
        for (place, step) in new {
            let event = self.event(progress, place, step).await?;
            bytes += event.to_string().len();
            if events.len() >= EVENTS_MAX || bytes > BYTES_MAX {
                break;
            }
            events.push(event);
        }
        if events.len() == self.events.len() {
            return Ok(());
        }
        self.events = events;
        self.renew().await
    }

    /// Calls a tool of an MCP server. The tool's progress reports become events, at a limited rate.
    pub(super) async fn call_and_report(
        &mut self,
        name: &str,
        arguments: Map<String, Value>,
        key: &str,
    ) -> Result<Called, engine::Error> {
        let servers = self.inner.servers.clone();
        let (heard, mut reports) = watch::channel(None);
        let mut calling = pin!(servers.call(name, arguments, key, heard));
        loop {
            tokio::select! {
                called = &mut calling => return Ok(called),
                report = next(&mut reports) => self.report(name, report).await?,
            }
            tokio::select! {
                called = &mut calling => return Ok(called),
                () = tokio::time::sleep(REPORT_PAUSE) => {}
            }
        }
    }

    /// Commits the event for a progress report.
    async fn report(&mut self, name: &str, report: Report) -> Result<(), engine::Error> {
        let message = report.message.unwrap_or_else(|| format!("{name} is running"));
        let event = json!({"type": "progress", "message": message, "percent": report.percent});
        let bytes: usize = self.events.iter().map(|event| event.to_string().len()).sum();
        if self.events.len() >= EVENTS_MAX || bytes + event.to_string().len() > BYTES_MAX {
            return Ok(());
        }
        self.events.push(event);
        self.renew().await
    }

    /// Commits the step with the events so far.
    async fn renew(&mut self) -> Result<(), engine::Error> {
        let begun = Begun { task: Task::Tool(self.task.clone()), events: self.events.clone() };
        self.run.renew_step(text(&begun)?).await
    }

    async fn event(
        &self,
        progress: &Progress,
        place: usize,
        step: &EndedStep,
    ) -> Result<Value, engine::Error> {
        let output = match &step.output {
            Some(output) if output.len() <= OUTPUT_MAX => {
                let text = self.inner.store.read_payload(output).await;
                text.map_or(Value::Null, |text| {
                    serde_json::from_str(text.get()).unwrap_or_default()
                })
            }
            Some(_) | None => Value::Null,
        };
        let completed = place + 1;
        Ok(json!({
            "type": KIND,
            "execution_id": progress.execution.id,
            "step_id": step.id,
            "step_status": step.status.as_str(),
            "model": step.model,
            "output": output,
            "completed_steps": completed,
            "total_steps": progress.total,
            "progress_percent": completed * 100 / progress.total.max(1),
        }))
    }
}

/// Builds the progress event of a prediction, which has a single step.
pub(super) fn of_prediction(id: ExecutionId, status: &str, model: &str, is_over: bool) -> Value {
    json!({
        "type": KIND,
        "execution_id": id,
        "step_id": null,
        "step_status": status,
        "model": model,
        "output": null,
        "completed_steps": u8::from(is_over),
        "total_steps": 1,
        "progress_percent": if is_over { 100 } else { 0 },
    })
}

/// Waits for the next report. After the last report, the future never resolves.
async fn next(reports: &mut watch::Receiver<Option<Report>>) -> Report {
    loop {
        if reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(report) = reports.borrow_and_update().clone() {
            return report;
        }
    }
}

fn step_of(event: &Value) -> Option<&str> {
    event.get("type").filter(|kind| *kind == KIND)?;
    event.get("step_id")?.as_str()
}
