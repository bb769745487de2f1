//! The handle of the agent: starting, following and cancelling exchanges, and reading sessions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::sync::Semaphore;

use super::error::Error;
use super::events::{Feed, TaskEvent};
use super::mcp::Running;
use super::request::Request;
use super::servers::{self, Servers};
use super::sessions::{Memory, Sessions};
use orrery_catalog::Catalog;
use orrery_chat::{Caller, Chat};
use orrery_domain::agent::{Exchange, Limits, Mode};
use orrery_domain::chat::Tokens;
use orrery_domain::execution::{Execution, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::money::Usd;
use orrery_domain::trace;
use orrery_engine::{self as engine, Engine, Exchanges, Submission};
use orrery_http::budget::Budget;
use orrery_records::files::Files;
use orrery_records::signed_urls::SignedUrls;
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_storage::{self as storage, Commit, Store};
use orrery_workflows::Workflows;

/// Divisor of the step limit in `eco` mode.
const ECO_DIVISOR: u32 = 4;
/// Maximum number of model answers in memory. Each answer has at most a few MiB.
const ANSWERS_MAX: usize = 64;

/// The settings of the agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// The chat model; with `None`, the agent accepts no prompts.
    pub model: Option<String>,
    /// The chat model in `eco` mode; with `None`, `eco` mode uses `model`.
    pub eco_model: Option<String>,
    /// The model id that clients use to call the agent.
    pub model_id: String,
    pub timeout: Duration,
    pub steps_max: u32,
    pub cost_max: Option<Usd>,
    /// The context length, in tokens, that is assumed for models that are not local.
    pub context_tokens: u32,
    /// MCP servers that provide additional tools.
    pub servers: Vec<servers::Settings>,
}

/// The dependencies of the agent.
#[derive(Debug)]
pub struct Dependencies {
    pub store: Store,
    pub clock: Clock,
    pub tasks: Tasks,
    pub chat: Chat,
    pub catalog: Catalog,
    pub workflows: Workflows,
    pub files: Files,
    pub signed_urls: SignedUrls,
    pub engine: Engine,
    /// The memory budget for bodies.
    pub bodies: Arc<Budget>,
    /// The HTTP client and the sandbox through which MCP servers are reached.
    pub doors: servers::Doors,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) chat: Chat,
    pub(super) catalog: Catalog,
    pub(super) workflows: Workflows,
    pub(super) files: Files,
    pub(super) signed_urls: SignedUrls,
    pub(super) engine: Engine,
    pub(super) bodies: Arc<Budget>,
    pub(super) sessions: Sessions,
    pub(super) answers: Semaphore,
    /// The running calls of MCP clients.
    pub(super) calls: Running,
    pub(super) servers: Servers,
}

/// The agent; clones share the same state.
#[derive(Debug, Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

/// An accepted exchange, which is on disk and which the service runs to its end.
#[derive(Debug, Clone)]
pub struct Started {
    pub task: ExecutionId,
    pub session: String,
}

impl Agent {
    /// Creates an agent with these settings. From now on, the agent runs the engine's exchanges.
    #[must_use]
    pub fn new(dependencies: Dependencies, options: Options) -> Self {
        let Dependencies {
            store,
            clock,
            tasks,
            chat,
            catalog,
            workflows,
            files,
            signed_urls,
            engine,
            bodies,
            doors,
        } = dependencies;
        let inner = Arc::new(Inner {
            sessions: Sessions::new(store.clone(), clock.clone()),
            answers: Semaphore::new(ANSWERS_MAX),
            calls: Running::default(),
            servers: Servers::new(options.servers.clone(), &doors),
            options,
            store,
            clock,
            tasks,
            chat,
            catalog,
            workflows,
            files,
            signed_urls,
            engine,
            bodies,
        });
        let weak: Weak<Inner> = Arc::downgrade(&inner);
        let exchanges: Weak<dyn Exchanges> = weak;
        inner.engine.set_exchanges(exchanges);
        Self { inner }
    }

    pub(super) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the model id that clients use to call the agent.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.inner.options.model_id
    }

    /// Returns whether the agent accepts prompts.
    #[must_use]
    pub fn has_model(&self) -> bool {
        self.inner.options.model.is_some() || self.inner.options.eco_model.is_some()
    }

    /// Accepts a prompt. When this function returns, the prompt is on disk, and the exchange will
    /// end exactly once. `asked` is the execution metadata that the request sets.
    ///
    /// # Errors
    /// [`Error::NoModel`], [`Error::SessionBusy`], [`Error::Engine`]: the prompt was not accepted.
    pub async fn start(
        &self,
        caller: Caller,
        request: Request,
        asked: impl FnOnce(ExecutionId) -> Option<Arc<trace::Origin>>,
    ) -> Result<Started, Error> {
        let inner = &self.inner;
        let options = &inner.options;
        let eco = options.eco_model.as_ref().filter(|_| request.mode == Mode::Eco);
        let model = eco.or(options.model.as_ref()).ok_or(Error::NoModel)?.clone();
        let steps = match request.mode {
            Mode::Max => options.steps_max,
            Mode::Eco => (options.steps_max / ECO_DIVISOR).max(1),
        };
        let limits = Limits {
            steps,
            time_ms: u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX),
            cost: options.cost_max,
        };
        let task: ExecutionId = new_id();
        let origin = asked(task);
        let name = request.session.unwrap_or_else(|| task.to_string());
        let question = to_raw_value(&request.question)
            .map_err(|error| InvalidRequest::field("message", error.to_string()))?;
        for _ in 0..storage::TRIES_MAX {
            let mut beside = Commit::of_new_work();
            let Caller { organization, key, source } = caller;
            let prompt = &request.question.prompt;
            let noted = inner.sessions.note_start(&mut beside, organization, &name, task, prompt);
            let session = noted.await?;
            let exchange = Exchange {
                session: session.id,
                session_name: name.clone(),
                model: model.clone(),
                mode: request.mode,
                behavior: request.behavior,
                limits,
                tokens: Tokens::default(),
                needs_clarification: false,
            };
            let submission = Submission {
                id: task,
                organization,
                key,
                source,
                work: Work::Agent(exchange),
                input: question.clone(),
                webhook: None,
                origin: origin.clone(),
            };
            match inner.engine.submit(vec![submission], beside).await {
                // The session was created or cleared concurrently.
                Err(engine::Error::Storage(storage::Error::Conflict { .. })) => {}
                taken => {
                    taken?;
                    return Ok(Started { task, session: name });
                }
            }
        }
        Err(Error::SessionBusy { waiting: 0 })
    }

    /// Returns the feed of an exchange after the event with this id.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Engine`].
    pub async fn follow(
        &self,
        organization: OrganizationId,
        task: ExecutionId,
        last: Option<&str>,
    ) -> Result<Feed, Error> {
        self.inner.exchange(organization, task).await?;
        Ok(Feed::new(organization, task, last))
    }

    /// Waits for the next events of a feed; an empty list means that the feed has ended.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub async fn next(&self, feed: &mut Feed) -> Result<Vec<TaskEvent>, Error> {
        loop {
            let waiter = self.inner.engine.watch_steps(feed.task);
            let woken = waiter.woken();
            let news = feed.news(&self.inner).await?;
            if !news.is_empty() || feed.is_over() {
                return Ok(news);
            }
            woken.await;
        }
    }

    /// Cancels an exchange and the execution that its current step has started.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Engine`], including if the exchange has already ended.
    pub async fn cancel(
        &self,
        organization: OrganizationId,
        task: ExecutionId,
    ) -> Result<Execution, Error> {
        self.inner.exchange(organization, task).await?;
        Ok(self.inner.engine.cancel(organization, task).await?)
    }

    /// Returns the memory of a session; empty if the session does not exist.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub async fn memory(&self, organization: OrganizationId, name: &str) -> Result<Memory, Error> {
        let inner = &self.inner;
        let Some(session) = inner.sessions.find(organization, name).await? else {
            return Ok(Memory::default());
        };
        let mut memory = inner.sessions.memory(organization, &session, Some(&inner.engine)).await?;
        let urls = memory.exchanges.iter_mut().flat_map(|exchange| &mut exchange.media);
        for url in urls {
            if let Value::String(rendered) =
                inner.with_links(organization, Value::String(url.clone()))
            {
                *url = rendered;
            }
        }
        Ok(memory)
    }

    /// Deletes a session. Returns false if the session does not exist.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub async fn clear(&self, organization: OrganizationId, name: &str) -> Result<bool, Error> {
        Ok(self.inner.sessions.clear(organization, name).await?)
    }

    /// Returns the names of the organization's sessions.
    ///
    /// # Errors
    /// [`Error::Engine`]
    pub async fn sessions(&self, organization: OrganizationId) -> Result<Vec<String>, Error> {
        Ok(self.inner.sessions.names(organization).await?)
    }

    /// Deletes the organization's sessions that have been idle for `keep`, and returns their
    /// number.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn forget_unused(
        &self,
        organization: OrganizationId,
        keep: Duration,
    ) -> Result<usize, storage::Error> {
        self.inner.sessions.forget_unused(organization, keep).await
    }
}

impl Inner {
    /// Returns the exchange with this id.
    pub(super) async fn exchange(
        &self,
        organization: OrganizationId,
        task: ExecutionId,
    ) -> Result<Execution, Error> {
        let execution = self.engine.get(organization, task).await?;
        if execution.agent().is_none() {
            return Err(Error::NotFound);
        }
        Ok(execution)
    }

    /// Returns the output of an execution with freshly signed links; null if there is no output. An
    /// output of more than `most` bytes is replaced by a message.
    pub(super) async fn output(
        &self,
        execution: &Execution,
        most: u64,
    ) -> Result<Value, engine::Error> {
        let Some(output) = &execution.output else { return Ok(Value::Null) };
        if output.len() > most {
            let text = format!("(an output of {} bytes, too large to be shown here)", output.len());
            return Ok(Value::String(text));
        }
        let text = match self.store.read_payload(output).await {
            Ok(text) => text,
            Err(error) if error.is_final() => return Ok(Value::Null),
            Err(error) => return Err(error.into()),
        };
        let text = self.signed_urls.render(execution.organization, text);
        Ok(serde_json::from_str(text.get()).unwrap_or(Value::Null))
    }

    /// Returns a value with freshly signed links to the organization's files.
    pub(super) fn with_links(&self, organization: OrganizationId, value: Value) -> Value {
        let Ok(text) = to_raw_value(&value) else { return value };
        let rendered = self.signed_urls.render(organization, text);
        serde_json::from_str(rendered.get()).unwrap_or(value)
    }
}
