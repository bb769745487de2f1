//! Starts a tool call, follows its progress and returns its result. The execution of a call in
//! flight during a shutdown resumes after the next start, but the client gets no response to the
//! call.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ContentBlock, ErrorData, ProgressNotification,
    ProgressNotificationParam, Resource, ServerNotification,
};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::message::{Asked, ServerMessage, written};
use super::running::Place;
use super::tools::{self, Target};
use crate::error::Error;
use crate::service::Inner;
use crate::tools::urls;
use crate::work::{self, Ready};
use orrery_chat::Caller;
use orrery_domain::execution::{Execution, Source, Status, Work};
use orrery_domain::ids::{ExecutionId, FileId, OrganizationId};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_engine::{self as engine, Follower, Submission};
use orrery_runtime::new_id;

/// Timeout of each wait for the end of a call.
const WAIT: Duration = Duration::from_secs(60);
/// Maximum progress notifications of one call.
const PROGRESS_MAX: u32 = 1000;
/// Maximum length of a progress message, in characters.
const PROGRESS_CHARS_MAX: usize = 200;
/// Maximum bytes of an output in the text content. The structured content always has the complete
/// output.
const TEXT_MAX: usize = 256 * 1024;
/// Maximum bytes of a returned output.
const OUTPUT_MAX: u64 = 8 * 1024 * 1024;

/// The result of an attempt to start a call.
#[derive(Debug)]
pub(super) enum Started {
    Runs(Box<Call>),
    /// The tool's input was rejected before the call started.
    Ended(Box<CallToolResult>),
    /// The request itself is invalid.
    Refused(ErrorData),
}

/// A running call. Dropping it before its end cancels the execution.
#[derive(Debug)]
pub struct Call {
    inner: Arc<Inner>,
    organization: OrganizationId,
    execution: ExecutionId,
    asked: Asked,
    /// Follows the events of a prediction.
    follower: Option<Follower>,
    seen: u64,
    /// The numbers of started and finished workflow steps in the last progress report.
    steps: (usize, usize),
    /// The number of notifications sent.
    sent: u32,
    is_over: bool,
    _place: Place,
}

/// The next message of a call.
#[derive(Debug)]
pub enum Next {
    /// A progress notification.
    Progress(Value),
    /// The response, which is the last message.
    Answer(Value),
}

/// Returns a tool error, which the client's model can read.
fn failed(message: impl Into<String>) -> Started {
    Started::Ended(Box::new(CallToolResult::error(vec![ContentBlock::text(message)])))
}

/// Starts the tool that the request names.
pub(super) async fn start(
    inner: &Arc<Inner>,
    caller: Caller,
    asked: &Asked,
    params: CallToolRequestParams,
) -> Result<Started, Error> {
    let organization = caller.organization;
    let Some(target) = tools::find(inner, organization, &params.name).await? else {
        let shown: String = params.name.chars().take(128).collect();
        let near = tools::nearest(inner, organization, &params.name).await?;
        let hint = near.map(|near| format!(": did you mean {near}?")).unwrap_or_default();
        let message = format!("there is no tool '{shown}'{hint}");
        return Ok(Started::Refused(ErrorData::invalid_params(message, None)));
    };
    let input = Value::Object(params.arguments.unwrap_or_default());
    let ready = match &target {
        Target::Model(model) => work::prediction(model, input).await,
        Target::Workflow(workflow) => work::workflow_run(inner, workflow, input).await?,
    };
    let Ready { work, input, beside } = match ready {
        Ok(ready) => ready,
        Err(refused) => return Ok(failed(refused)),
    };
    let is_prediction = matches!(work, Work::Prediction(_));
    let execution: ExecutionId = new_id();
    let input = to_raw_value(&input)
        .map_err(|error| InvalidRequest::field("arguments", error.to_string()))?;
    let submission = Submission {
        id: execution,
        organization,
        key: caller.key,
        source: Source::Agent,
        work,
        input,
        webhook: None,
        origin: asked.origin.clone(),
    };
    match inner.engine.submit(vec![submission], beside).await {
        Ok(_) => {}
        Err(error @ (engine::Error::Storage(_) | engine::Error::Stopping)) => {
            return Err(Error::Engine(error));
        }
        Err(error) => return Ok(failed(format!("it could not be started: {error}"))),
    }
    let place = inner.calls.enter(caller.key, asked.id.to_string(), execution);
    let mut call = Call {
        inner: Arc::clone(inner),
        organization,
        execution,
        asked: asked.clone(),
        follower: None,
        seen: 0,
        steps: (0, 0),
        sent: 0,
        is_over: false,
        _place: place,
    };
    if is_prediction && asked.progress.is_some() {
        call.follower = Some(inner.engine.follow(organization, execution).await?);
    }
    Ok(Started::Runs(Box::new(call)))
}

impl Call {
    /// Returns whether the client has requested progress notifications.
    #[must_use]
    pub const fn has_progress(&self) -> bool {
        self.asked.progress.is_some()
    }

    /// Returns the error response to a call that cannot continue.
    #[must_use]
    pub fn refusal(&self, message: &'static str) -> Value {
        self.asked.error(ErrorData::internal_error(message, None))
    }

    /// Waits for the next message. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub async fn next(&mut self) -> Result<Next, Error> {
        loop {
            let engine = self.inner.engine.clone();
            let waiter = engine.watch_steps(self.execution);
            let woken = waiter.woken();
            let execution = engine.get(self.organization, self.execution).await?;
            if execution.status.is_final() {
                let answer = self.answer(&execution).await?;
                self.is_over = true;
                return Ok(Next::Answer(answer));
            }
            if let Some(message) = self.news().await? {
                return Ok(Next::Progress(message));
            }
            let changed = async {
                match &self.follower {
                    Some(follower) if self.sent < PROGRESS_MAX => follower.changed(self.seen).await,
                    Some(_) | None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = engine.wait(self.organization, self.execution, WAIT) => {
                    ended?;
                    engine.check_running()?;
                }
                () = woken => {}
                () = changed => {}
            }
        }
    }

    /// Returns a notification of the progress made since the last notification.
    async fn news(&mut self) -> Result<Option<Value>, Error> {
        let Some(token) = self.asked.progress.clone() else { return Ok(None) };
        if self.sent >= PROGRESS_MAX {
            return Ok(None);
        }
        let message = match &self.follower {
            Some(follower) => {
                let news = follower.events_since(self.seen);
                let Some(newest) = news.events.last() else { return Ok(None) };
                self.seen = newest.number;
                let data: Value = serde_json::from_str(&newest.data).unwrap_or_default();
                said(newest.name, &data)
            }
            None => {
                let steps = self.inner.engine.steps_of(self.execution).await?;
                let ended = steps.iter().filter(|step| step.status.is_final()).count();
                if (steps.len(), ended) == self.steps {
                    return Ok(None);
                }
                self.steps = (steps.len(), ended);
                format!("{ended} of {} started steps have ended", steps.len())
            }
        };
        self.sent += 1;
        let message: String = message.chars().take(PROGRESS_CHARS_MAX).collect();
        let params =
            ProgressNotificationParam::new(token, f64::from(self.sent)).with_message(message);
        let notification = ServerNotification::from(ProgressNotification::new(params));
        Ok(Some(written(&ServerMessage::notification(notification))))
    }

    /// Builds the response for a finished execution.
    async fn answer(&self, execution: &Execution) -> Result<Value, Error> {
        let output = self.inner.output(execution, OUTPUT_MAX).await?;
        let fault = execution.fault.as_ref().map(|fault| fault.cause.as_str());
        let error = match execution.status {
            Status::Success => None,
            Status::Cancelled => Some("the call was cancelled"),
            Status::Error | Status::Created | Status::Processing => {
                Some(fault.unwrap_or("the call failed"))
            }
        };
        let shown = json!({
            "id": execution.id,
            "status": execution.status.word(execution.kind()),
            "output": output,
            "error": error,
            "cost_usd": execution.cost.dollars(),
        });
        let mut result = match error {
            Some(error) => CallToolResult::error(vec![ContentBlock::text(error)]),
            None => {
                let mut content = vec![ContentBlock::text(text_of(&output))];
                for url in urls(&output) {
                    content.push(ContentBlock::ResourceLink(self.link(url).await?));
                }
                CallToolResult::success(content)
            }
        };
        result.structured_content = Some(shown);
        Ok(self.asked.response(result))
    }

    /// Builds a resource link to a file, including the file's metadata if known.
    async fn link(&self, url: String) -> Result<Resource, Error> {
        let own = self.inner.signed_urls.parse(&url).await?;
        let own = own.filter(|(_, organization)| *organization == self.organization);
        let id = own.and_then(|(path, _)| path.split('/').rev().nth(1)?.parse::<FileId>().ok());
        let Some(id) = id else {
            let bare = url.split(['?', '#']).next().unwrap_or_default();
            let name = bare.rsplit('/').find(|part| !part.is_empty()).unwrap_or("output");
            let name: String = name.chars().take(128).collect();
            return Ok(Resource::new(url, name));
        };
        let found = self.inner.files.find(self.organization, id).await;
        let found = found.ok().flatten().map(|(file, _)| file);
        let name = found.as_ref().and_then(|file| file.filename.clone());
        let link = Resource::new(url, name.unwrap_or_else(|| id.to_string()));
        Ok(match found {
            Some(file) => link.with_mime_type(file.content_type).with_size(file.size),
            None => link,
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_over || self.inner.tasks.is_stopping() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let organization = self.organization;
        let execution = self.execution;
        self.inner.tasks.spawn(async move {
            match inner.engine.cancel(organization, execution).await {
                Ok(_) | Err(engine::Error::NotFound | engine::Error::AlreadyEnded(_)) => {}
                Err(error) => tracing::warn!(%error, "failed to cancel abandoned MCP call"),
            }
        });
    }
}

/// Converts an event of a prediction to a progress message.
fn said(name: &str, data: &Value) -> String {
    let text = |field: &str| data.get(field).and_then(Value::as_str).unwrap_or_default();
    match name {
        "status" => match text("model") {
            "" => text("status").to_owned(),
            model => format!("{} {model}", text("status")),
        },
        "log" => text("text").trim().to_owned(),
        _ => name.to_owned(),
    }
}

/// Converts an output to text: a string as is, any other value as JSON.
fn text_of(output: &Value) -> String {
    let mut text = match output {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            output.to_string()
        }
    };
    if text.len() > TEXT_MAX {
        let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str("… (cut)");
    }
    text
}
