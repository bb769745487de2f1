//! Runs the steps of an exchange one after the other: the model is asked, its tools are run, and
//! each result is committed before the next step begins. After a crash the step in flight is
//! repeated; committed steps never are.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::events::read;
use super::prompt::{self, Past, Shown};
use super::service::Inner;
use super::sessions::Memory;
use super::summary::{Talk, newest};
use super::tools::{self, Outcome};
use orrery_chat::{self as chat, Admission, BoundModel, Caller, Completion, Failure};
use orrery_domain::agent::{
    Answer, Begun, Done, End, Exchange, Next, Question, StepRecord, StepResult, Task, ToolCall,
    ToolTask, next,
};
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Fault};
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_domain::token_bound::TokenBound;
use orrery_domain::trace;
use orrery_engine::{self as engine, Ending, ExchangeFuture, ExchangeRun, Exchanges, StepCost};
use orrery_http::request::Peer;
use orrery_runtime::turns;
use orrery_storage::Commit;

/// Maximum tokens of one answer.
const ANSWER_TOKENS_MAX: u64 = 4096;
/// Maximum bytes of an answer's text.
const TEXT_MAX: usize = 256 * 1024;
/// Maximum tool calls of one answer, and bytes of the arguments of each.
const CALLS_MAX: usize = 16;
const ARGUMENTS_MAX: usize = 64 * 1024;
/// Maximum bytes of the messages for the model; a longer exchange fails.
const PROMPT_MAX: usize = 4 * 1024 * 1024;
/// Maximum bytes of the URLs that the session stores for one exchange.
const MEDIA_BYTES_MAX: usize = 32 * 1024;
/// Maximum characters of ids and names that a model generates.
const NAME_CHARS_MAX: usize = 128;

/// A step with the content of its row.
pub struct Kept {
    pub begun: Begun,
    pub done: Option<Done>,
    pub cost: Usd,
}

/// The span of the next step.
pub fn next_call(run: &ExchangeRun) -> trace::Call {
    let execution = run.execution();
    execution.trace().call(&execution.exchange_step_key(run.steps().len()))
}

/// The steps in the form shown to the model.
pub fn shown(kept: &[Kept]) -> impl Iterator<Item = Shown<'_>> {
    kept.iter().filter_map(|step| {
        let result = &step.done.as_ref()?.result;
        Some(Shown { task: &step.begun.task, result })
    })
}

/// Why the steps stopped.
enum Stop {
    End(End),
    Failed(Failure),
    TimedOut,
}

impl Exchanges for Inner {
    fn run<'a>(&'a self, exchange: &'a mut ExchangeRun) -> ExchangeFuture<'a> {
        let organization = exchange.execution().organization;
        Box::pin(turns::on_behalf_of(organization, self.drive(exchange)))
    }
}

impl Inner {
    async fn drive(&self, run: &mut ExchangeRun) -> Result<Ending, engine::Error> {
        let execution = run.execution().clone();
        let Some(exchange) = execution.agent().cloned() else {
            return Err(engine::Error::NotFound);
        };
        let mut kept = Vec::new();
        for step in run.steps() {
            let (begun, done) = read(self, step).await?;
            // A step whose content is lost is treated as absent: it is repeated.
            let Some(begun) = begun else { break };
            kept.push(Kept { begun, done, cost: step.cost });
        }
        let ran = execution.started_at.map(|start| self.clock.now().since(start));
        let limit = Duration::from_millis(exchange.limits.time_ms);
        let left = limit.saturating_sub(ran.unwrap_or_default());
        let steps = self.take_steps(run, &execution, &exchange, &mut kept);
        let stop = match tokio::time::timeout(left, steps).await {
            Ok(stop) => stop?,
            Err(_elapsed) => {
                self.cancel_open(run, &execution).await?;
                Stop::TimedOut
            }
        };
        self.conclude(&execution, &exchange, &kept, stop).await
    }

    /// Cancels the execution that the last step has started, if it is unfinished.
    async fn cancel_open(
        &self,
        run: &ExchangeRun,
        execution: &Execution,
    ) -> Result<(), engine::Error> {
        let open = run.steps().last().filter(|step| !step.status.is_final());
        let Some(child) = open.and_then(|step| step.prediction) else { return Ok(()) };
        match self.engine.cancel(execution.organization, child).await {
            Ok(_) | Err(engine::Error::NotFound | engine::Error::AlreadyEnded(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn take_steps(
        &self,
        run: &mut ExchangeRun,
        execution: &Execution,
        exchange: &Exchange,
        kept: &mut Vec<Kept>,
    ) -> Result<Stop, engine::Error> {
        let question = self.store.read_payload(&execution.input).await?;
        let Ok(question) = serde_json::from_str::<Question>(question.get()) else {
            return Ok(Stop::Failed(internal("the stored prompt is damaged")));
        };
        let mut memory = self.history(execution, exchange).await?;
        // At most one summary: an endless exchange fills every context.
        let mut may_summarize = kept.iter().all(|step| step.begun.task != Task::Summary);
        loop {
            let records: Vec<StepRecord> = kept
                .iter()
                .map(|step| StepRecord {
                    task: step.begun.task.clone(),
                    done: step.done.as_ref().map(|done| done.result.clone()),
                    cost: step.cost,
                })
                .collect();
            let stop = match next(&records, &exchange.limits) {
                Next::End(end) => Some(Stop::End(end)),
                Next::Ask => {
                    let offered = self.offered(exchange.behavior).await;
                    let talk = Talk { execution, exchange, question: &question, memory: &memory };
                    let surplus = self.surplus(&talk, kept, &offered);
                    if may_summarize && surplus > 0 {
                        may_summarize = false;
                        self.summarize(run, &talk, surplus, kept).await?;
                        memory = self.history(execution, exchange).await?;
                    }
                    let talk = Talk { execution, exchange, question: &question, memory: &memory };
                    self.ask(run, &talk, &offered, kept).await?
                }
                Next::Run(call) => {
                    let task = ToolTask { call, execution: None, workflow: None };
                    self.use_tool(run, exchange, (task, Vec::new()), kept).await?;
                    None
                }
                Next::Resume => {
                    // An answer always begins and ends in one commit.
                    let begun = kept.pop().map(|step| step.begun);
                    let Some(Begun { task: Task::Tool(task), events }) = begun else {
                        return Ok(Stop::Failed(internal("a stored step is damaged")));
                    };
                    self.use_tool(run, exchange, (task, events), kept).await?;
                    None
                }
            };
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }

    /// The session's memory of earlier exchanges.
    async fn history(
        &self,
        execution: &Execution,
        exchange: &Exchange,
    ) -> Result<Memory, engine::Error> {
        let organization = execution.organization;
        let found = self.sessions.find(organization, &exchange.session_name).await?;
        let Some(session) = found.filter(|session| session.id == exchange.session) else {
            return Ok(Memory::default());
        };
        Ok(self.sessions.memory(organization, &session, None).await?)
    }

    /// Asks the model and commits its answer. Returns `Some` if the model fails.
    async fn ask(
        &self,
        run: &mut ExchangeRun,
        talk: &Talk<'_>,
        offered: &[Value],
        kept: &mut Vec<Kept>,
    ) -> Result<Option<Stop>, engine::Error> {
        let exchange = talk.exchange;
        let exchanges = newest(talk.memory.open(), self.past_room(talk, kept, offered));
        let past = Past { summary: talk.memory.summary(), exchanges };
        let messages = prompt::messages(exchange.behavior, past, talk.question, shown(kept));
        let fields = match request(&messages, offered) {
            Ok(fields) => fields,
            Err(error) => return Ok(Some(Stop::Failed(internal(&error.to_string())))),
        };
        let length = fields.text().map_or(0, |text| text.len());
        if length > PROMPT_MAX {
            let message = format!("the exchange has grown past {PROMPT_MAX} bytes");
            let failure = Failure::new(502, ErrorClass::ProviderError, message);
            return Ok(Some(Stop::Failed(failure)));
        }
        let bound = TokenBound::of(&fields);
        let caller = talk.caller();
        let (model, admission) = match self.admit(caller, &exchange.model, bound).await? {
            Ok(admitted) => admitted,
            Err(failure) => return Ok(Some(Stop::Failed(failure))),
        };
        let call = next_call(run);
        let completed = self.complete(&model, fields, &call).await;
        let Completion { answer, tokens, cost } = match completed {
            Ok(completion) => completion,
            Err(failure) => {
                // During a shutdown the model's process may end first.
                self.engine.check_running()?;
                return Ok(Some(Stop::Failed(failure)));
            }
        };
        let Some((answer, thoughts)) = parse(&answer) else {
            let message =
                format!("the model '{}' returned an answer without a message", exchange.model);
            return Ok(Some(Stop::Failed(Failure::new(502, ErrorClass::ProviderError, message))));
        };
        let begun = Begun { task: Task::Answer, events: Vec::new() };
        let events = events_of(&answer, thoughts);
        let result = StepResult::Answer(answer);
        let done = Done { result, events, media: Vec::new(), tokens };
        let mut beside = Commit::new();
        self.chat.count_tokens(&mut beside, caller, tokens);
        beside.after_durable(move || drop(admission));
        let cost = StepCost { total: cost, charged: cost };
        run.end_step(Some(text(&begun)?), text(&done)?, cost, beside).await?;
        kept.push(Kept { begun, done: Some(done), cost: cost.total });
        Ok(None)
    }

    /// Asks the model, once the answer fits into the memory budget.
    pub(super) async fn complete(
        &self,
        model: &BoundModel,
        fields: RawObject,
        call: &trace::Call,
    ) -> Result<Completion, Failure> {
        let _place = self.answers.acquire().await;
        let mut lease = self.bodies.lease(&Peer::InProcess);
        model.complete(fields, &mut lease, call).await
    }

    /// Binds the model and reserves the maximum cost of its answer, or returns the reason why not.
    pub(super) async fn admit(
        &self,
        caller: Caller,
        model: &str,
        bound: TokenBound,
    ) -> Result<Result<(BoundModel, Admission), Failure>, engine::Error> {
        let model = match self.chat.bind(model) {
            Ok(model) => model,
            Err(error) => {
                let class = ErrorClass::InvalidModelConfig;
                return Ok(Err(Failure::new(502, class, error.to_string())));
            }
        };
        let (tokens, price) = model.most_of(bound);
        match self.chat.admit(caller, tokens.total(), price).await {
            Ok(admission) => Ok(Ok((model, admission))),
            // A shutdown does not end the exchange: it resumes after the last step at the next
            // start.
            Err(chat::Error::Engine(
                error @ (engine::Error::Storage(_) | engine::Error::Stopping),
            )) => Err(error),
            Err(error) => {
                let class = ErrorClass::ProviderRateLimit;
                Ok(Err(Failure::new(402, class, error.to_string())))
            }
        }
    }

    /// Runs a tool and commits its result. `events` are those committed before a crash.
    async fn use_tool(
        &self,
        run: &mut ExchangeRun,
        exchange: &Exchange,
        (task, events): (ToolTask, Vec<Value>),
        kept: &mut Vec<Kept>,
    ) -> Result<(), engine::Error> {
        let spent = kept.iter().map(|step| step.cost).sum();
        let mut used = tools::Use { inner: self, run, exchange, task, events, spent };
        let Outcome { result, events, media, cost } = used.run().await?;
        let task = Task::Tool(used.task);
        let is_begun = run.steps().last().is_some_and(|step| !step.status.is_final());
        let begun = Begun { task, events: Vec::new() };
        let input = if is_begun { None } else { Some(text(&begun)?) };
        let result = StepResult::Tool(result);
        let done = Done { result, events, media, tokens: Tokens::default() };
        let step_cost = StepCost { total: cost, charged: Usd::ZERO };
        run.end_step(input, text(&done)?, step_cost, Commit::new()).await?;
        kept.push(Kept { begun, done: Some(done), cost });
        Ok(())
    }

    /// Ends an exchange, together with the session's entry.
    async fn conclude(
        &self,
        execution: &Execution,
        exchange: &Exchange,
        kept: &[Kept],
        stop: Stop,
    ) -> Result<Ending, engine::Error> {
        let limit =
            |message: String| Some(Fault::new("LimitReached", ErrorClass::ProviderError, message));
        let (said, fault, needs_clarification) = match stop {
            Stop::End(End::Answered(text)) => (text, None, false),
            Stop::End(End::Clarification(question)) => (question, None, true),
            Stop::End(End::StepLimit) => {
                let message =
                    format!("the exchange did not end within {} steps", exchange.limits.steps);
                (String::new(), limit(message), false)
            }
            Stop::End(End::CostLimit) => {
                let message = "the exchange has reached its cost limit (agent.max_cost)".to_owned();
                (String::new(), limit(message), false)
            }
            Stop::End(End::Refused { tool }) => {
                let message = format!("the model called the tool '{tool}' with invalid input");
                (String::new(), limit(message), false)
            }
            Stop::TimedOut => {
                let limit = Duration::from_millis(exchange.limits.time_ms);
                let message = format!("the exchange did not end within {limit:?}");
                let fault = Fault::new("ExecutionTimeout", ErrorClass::ExecutionTimeout, message);
                (String::new(), Some(fault), false)
            }
            Stop::Failed(failure) => (String::new(), Some(Fault::of(&failure.recorded())), false),
        };
        let response = fault.as_ref().map_or(said.as_str(), |fault| fault.cause.as_str());
        let media = kept.iter().filter_map(|step| step.done.as_ref());
        let media = remembered(media.flat_map(|done| done.media.clone()));
        let (organization, name) = (execution.organization, &exchange.session_name);
        let (session, id) = (exchange.session, execution.id);
        let beside =
            self.sessions.note_end(organization, name, session, id, response, media).await?;
        let used = kept.iter().filter_map(|step| Some(step.done.as_ref()?.tokens));
        let tokens = used.fold(Tokens::default(), |sum, one| Tokens {
            input: sum.input.saturating_add(one.input),
            output: sum.output.saturating_add(one.output),
            is_estimated: sum.is_estimated || one.is_estimated,
        });
        Ok(Ending { fault, tokens, needs_clarification, beside })
    }
}

/// The first media URLs that fit into the session's entry, which must stay small.
fn remembered(media: impl Iterator<Item = String>) -> Vec<String> {
    let mut bytes = 0_usize;
    let fits = |url: &String| {
        bytes = bytes.saturating_add(url.len());
        bytes <= MEDIA_BYTES_MAX
    };
    media.take_while(fits).collect()
}

/// The request for an answer, without its model.
fn request(messages: &[Value], offered: &[Value]) -> Result<RawObject, serde_json::Error> {
    let mut fields = RawObject::default();
    fields.set("messages", messages)?;
    fields.set("tools", offered)?;
    fields.set("max_tokens", &ANSWER_TOKENS_MAX)?;
    Ok(fields)
}

/// The fields of an answer that are read.
#[derive(Deserialize)]
struct Choice {
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<Value>,
    /// The reasoning of a model that thinks before it answers.
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<Value>,
}

/// The model's answer and its reasoning; `None` if there is no readable answer.
pub fn parse(answer: &RawObject) -> Option<(Answer, Option<String>)> {
    let choices: Vec<Choice> = answer.value("choices")?;
    let message = choices.into_iter().next()?.message?;
    let cut = |text: &str, most: usize| -> String { text.chars().take(most).collect() };
    let text_of = |value: Option<Value>| {
        let text = value.as_ref()?.as_str().filter(|text| !text.is_empty())?;
        let end = (0..=TEXT_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        Some(text.get(..end.unwrap_or(0)).unwrap_or_default().to_owned())
    };
    let text = text_of(message.content);
    let thoughts = text_of(message.reasoning_content.or(message.reasoning));
    let calls = message.tool_calls.unwrap_or_default().into_iter().take(CALLS_MAX);
    let calls = calls.enumerate().map(|(place, call)| {
        let (name, arguments) =
            call.function.map_or((None, None), |function| (function.name, function.arguments));
        let arguments = match arguments {
            Some(Value::String(text)) => text,
            Some(Value::Null) | None => "{}".to_owned(),
            Some(other) => other.to_string(),
        };
        ToolCall {
            id: call.id.map_or_else(|| format!("call_{place}"), |id| cut(&id, NAME_CHARS_MAX)),
            name: cut(&name.unwrap_or_default(), NAME_CHARS_MAX),
            arguments: if arguments.len() > ARGUMENTS_MAX { String::new() } else { arguments },
        }
    });
    Some((Answer { text, calls: calls.collect() }, thoughts))
}

/// The events of an answer.
fn events_of(answer: &Answer, thoughts: Option<String>) -> Vec<Value> {
    let mut events = Vec::new();
    events.extend(thoughts.map(|text| json!({"type": "thinking_delta", "content": text})));
    let is_last = answer.calls.is_empty();
    if is_last {
        let content = answer.text.as_deref().unwrap_or_default();
        events.push(json!({"type": "message", "content": content}));
    } else if let Some(text) = &answer.text {
        events.push(json!({"type": "text_response", "content": text}));
    }
    events.extend(answer.calls.iter().map(|call| {
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
        json!({"type": "tool_call", "name": call.name, "input": input})
    }));
    events
}

fn internal(message: &str) -> Failure {
    Failure::new(500, ErrorClass::InternalError, message)
}

/// A record as JSON text, which every record has.
pub fn text<T: serde::Serialize>(value: &T) -> Result<Box<RawValue>, engine::Error> {
    to_raw_value(value).map_err(|error| {
        let malformed =
            orrery_storage::record::Malformed { record: "step", reason: error.to_string() };
        engine::Error::Storage(malformed.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &Value) -> Option<Answer> {
        let answer = json!({"choices": [{"message": message}]}).to_string();
        Some(parse(&serde_json::from_str(&answer).unwrap())?.0)
    }

    #[test]
    fn agent_answer_shows_reasoning_first() {
        let message = json!({"content": "4", "reasoning_content": "2 and 2"});
        let answer = json!({"choices": [{"message": message}]}).to_string();
        let (answer, thoughts) = parse(&serde_json::from_str(&answer).unwrap()).unwrap();
        let events = events_of(&answer, thoughts);
        assert_eq!(events[0], json!({"type": "thinking_delta", "content": "2 and 2"}));
        assert_eq!(events[1], json!({"type": "message", "content": "4"}));
    }

    #[test]
    fn agent_answer_stays_bounded_for_garbage() {
        let calls: Vec<Value> = (0..1000)
            .map(|_| json!({"function": {"name": "x".repeat(500), "arguments": {"a": 1}}}))
            .collect();
        let answer = said(&json!({"content": "é".repeat(TEXT_MAX), "tool_calls": calls})).unwrap();
        assert_eq!(answer.calls.len(), CALLS_MAX);
        assert!(answer.text.unwrap().len() <= TEXT_MAX);
        assert_eq!((answer.calls[1].id.as_str(), answer.calls[1].name.len()), ("call_1", 128));
        assert_eq!(answer.calls[1].arguments, r#"{"a":1}"#);
        let large =
            json!([{"function": {"name": "t", "arguments": "x".repeat(ARGUMENTS_MAX + 1)}}]);
        let answer = said(&json!({"content": null, "tool_calls": large})).unwrap();
        assert_eq!((answer.text, &*answer.calls[0].arguments), (None, ""));
        assert!(parse(&serde_json::from_str(r#"{"choices":[]}"#).unwrap()).is_none());
        assert!(said(&Value::Null).is_none());
    }
}
