//! Derives spans from a stored execution: for the execution itself, its time in the queue, its
//! steps and attempts, and its model calls. This module does no I/O.

use std::collections::HashMap;

use super::said;
use super::span::{Kind, Span};
use crate::Outline;
use crate::calls::Facts;
use orrery_domain::agent::{Begun, Task};
use orrery_domain::attempt::{Attempt, Failure};
use orrery_domain::chat::{self, Operation, Tokens};
use orrery_domain::definition::{Kind as StepKind, Plan, Step as Planned};
use orrery_domain::delivery::Delivery;
use orrery_domain::execution::{Execution, Fault, Source, Status, Work};
use orrery_domain::payload::Payload;
use orrery_domain::step::{self, Instance, Step};
use orrery_domain::time::Timestamp;
use orrery_domain::trace::{SpanId, Trace};

/// Maximum number of an execution's steps that have spans.
pub(super) const STEPS_MAX: usize = 1000;
/// Maximum number of spans of an execution.
pub(super) const SPANS_MAX: usize = 2000;
/// Maximum length in characters of a name chosen by a client or a model.
const NAME_MAX: usize = 128;

/// The details of a chat call that its record lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said<'f> {
    pub facts: &'f Facts,
    /// Whether the span contains the messages.
    pub has_content: bool,
}

/// Returns the spans of an execution that has ended. The execution's own span comes first.
pub(super) fn of_execution(outline: &Outline, said: Option<Said<'_>>) -> Vec<Span> {
    let Outline { execution, steps, plan } = outline;
    let of = Of { execution, trace: execution.trace(), end: end_of(execution) };
    let mut spans = vec![of.root()];
    spans.extend(of.queue());
    match &execution.work {
        Work::Prediction(prediction) => {
            let attempts = prediction.attempts.iter();
            spans.extend(attempts.map(|attempt| {
                of.model_attempt(attempt, &execution.attempt_key(attempt.number), of.trace.root())
            }));
        }
        Work::Workflow(_) => of.steps(steps, plan.as_deref(), &mut spans),
        Work::Chat(call) => {
            let mut span = of.call(&call.model, operation(call.operation));
            if let Some(first_byte) = call.first_byte_ms {
                span.set("orrery.first_byte_ms", first_byte);
            }
            span.set("gen_ai.provider.name", provider(call));
            span.set("gen_ai.request.stream", call.is_stream);
            tokens(&mut span, call.tokens);
            if let Some(Said { facts, has_content }) = said {
                said::describe(&mut span, facts, has_content);
            }
            spans.push(span);
        }
        Work::Decision(decision) => {
            let mut span = of.call(&decision.model, operation(Operation::Chat));
            span.set("orrery.calls", decision.calls);
            tokens(&mut span, decision.tokens);
            spans.push(span);
        }
        Work::Agent(exchange) => of.exchange(steps, &exchange.model, &mut spans),
    }
    spans.truncate(SPANS_MAX);
    spans
}

/// Returns the span of the last attempt at a delivery.
pub(super) fn of_attempt(delivery: &Delivery) -> Option<Span> {
    let attempt = delivery.progress.attempts.last()?;
    let trace = delivery.trace();
    let id = SpanId::of(&delivery.attempt_key(attempt.number));
    let took = std::time::Duration::from_millis(attempt.duration_ms);
    let end = attempt.created_at.plus(took);
    let mut span = Span::new(&trace, id, "POST webhook".to_owned(), attempt.created_at, end)
        .below(trace.root())
        .kind(Kind::Client);
    span.set("http.request.method", "POST");
    if let Some(status) = attempt.status_code {
        span.set("http.response.status_code", u32::from(status));
    }
    if let Ok(url) = url::Url::parse(&delivery.webhook.url)
        && let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default())
    {
        span.set("server.address", host.to_owned());
        span.set("server.port", u32::from(port));
    }
    if attempt.number > 1 {
        span.set("http.request.resend_count", attempt.number.saturating_sub(1));
    }
    span.set("orrery.delivery.id", delivery.id.to_string());
    span.set("orrery.execution.id", delivery.execution.to_string());
    span.set("orrery.organization.id", delivery.organization.to_string());
    if attempt.error.is_some() {
        match attempt.status_code {
            Some(status) => {
                span.set("error.type", status.to_string());
                span.error = Some("the receiver refused the delivery".to_owned());
            }
            None => span.fail("the receiver gave no answer", "no_answer"),
        }
    }
    Some(span)
}

/// An execution whose spans are being derived.
struct Of<'e> {
    execution: &'e Execution,
    trace: Trace,
    end: Timestamp,
}

fn end_of(execution: &Execution) -> Timestamp {
    execution.completed_at.unwrap_or(execution.created_at)
}

impl Of<'_> {
    fn root(&self) -> Span {
        let Execution { id, organization, source, work, created_at, .. } = self.execution;
        let kind = self.execution.kind();
        let name = match (work, self.execution.models()) {
            (Work::Workflow(_), _) => kind.as_str().to_owned(),
            (_, Some((_, requested))) => format!("{} {}", kind.as_str(), short(requested)),
            (_, None) => kind.as_str().to_owned(),
        };
        let is_asked_for = matches!(source, Source::Api | Source::Dashboard);
        let kind_of_span = if is_asked_for { Kind::Server } else { Kind::Internal };
        let mut span = Span::new(&self.trace, self.trace.root(), name, *created_at, self.end);
        span.parent = self.trace.caller().map(|parent| parent.span);
        span.kind = kind_of_span;
        span.set("orrery.execution.id", id.to_string());
        span.set("orrery.organization.id", organization.to_string());
        span.set("orrery.kind", kind.as_str());
        span.set("orrery.source", source.as_str());
        span.set("orrery.status", self.execution.status.word(kind));
        span.set("orrery.cost_usd", self.execution.cost.dollars());
        if let Work::Agent(exchange) = work {
            span.set("gen_ai.operation.name", "invoke_agent");
            span.set("gen_ai.provider.name", "orrery");
            span.set("gen_ai.request.model", short(&exchange.model));
            span.set("gen_ai.conversation.id", short(&exchange.session_name));
        }
        if let Work::Workflow(run) = work {
            span.set("orrery.workflow.id", run.workflow.to_string());
            span.set("orrery.workflow.version", run.version.clone());
            if let Some(failed) = run.redriven_from {
                span.set("orrery.redriven_from", failed.to_string());
                span.link = Some(Trace::new(failed, None).root());
            }
        }
        if let Some(fault) = &self.execution.fault {
            fail(&mut span, fault);
        } else if self.execution.status == Status::Error {
            span.error = Some("failed".to_owned());
        }
        span
    }

    /// Returns the span of the execution's time in the queue.
    fn queue(&self) -> Option<Span> {
        let Execution { id, created_at, work, .. } = self.execution;
        if matches!(work, Work::Chat(_) | Work::Decision(_)) {
            return None;
        }
        // An execution that ended without starting was queued until its end.
        let started = self.execution.started_at.unwrap_or(self.end);
        let span = SpanId::of(&format!("{id}:queue"));
        let name = "queue".to_owned();
        Some(Span::new(&self.trace, span, name, *created_at, started).below(self.trace.root()))
    }

    /// Returns the span of the single model call of a chat completion or a decision request.
    fn call(&self, model: &str, operation: &'static str) -> Span {
        let id = SpanId::of(&Execution::call_key(self.execution.id));
        let started = self.execution.started_at.unwrap_or(self.execution.created_at);
        let name = format!("{operation} {}", short(model));
        let mut span = Span::new(&self.trace, id, name, started, self.end)
            .below(self.trace.root())
            .kind(Kind::Client);
        span.set("gen_ai.operation.name", operation);
        if let Some((_, requested)) = self.execution.models() {
            span.set("gen_ai.request.model", short(requested));
        }
        span.set("gen_ai.response.model", short(model));
        if let Some(fault) = &self.execution.fault {
            fail(&mut span, fault);
        }
        span
    }

    /// Returns the span of an attempt at a model call.
    fn model_attempt(&self, attempt: &Attempt, key: &str, parent: SpanId) -> Span {
        let name = format!("model {}", short(&attempt.model));
        let mut span = self.attempt(attempt, key, name, parent);
        span.set("gen_ai.request.model", short(&attempt.model));
        span
    }

    fn attempt(&self, attempt: &Attempt, key: &str, name: String, parent: SpanId) -> Span {
        let end = attempt.completed_at.unwrap_or(self.end);
        let mut span = Span::new(&self.trace, SpanId::of(key), name, attempt.started_at, end)
            .below(parent)
            .kind(Kind::Client);
        span.set("orrery.attempt", attempt.number);
        if let Some(Failure { class, .. }) = &attempt.failure {
            span.fail(class.as_str(), class.as_str());
        }
        span
    }

    /// Adds the spans of a workflow's steps, each as a child of its enclosing step's span.
    fn steps(&self, steps: &[(Instance, Step)], plan: Option<&Plan>, spans: &mut Vec<Span>) {
        let Some(plan) = plan else { return };
        let known: HashMap<&Instance, &Step> =
            steps.iter().map(|(instance, step)| (instance, step)).collect();
        for (instance, step) in steps {
            let Some(planned) = plan.at(instance.step) else { continue };
            // A step copied from an earlier execution belongs to that execution's trace.
            let is_taken_over = step.latest() < self.execution.created_at;
            if is_taken_over || matches!(step.status, step::Status::Skipped) {
                continue;
            }
            let span = self.step(instance, step, planned, self.holder(plan, instance, &known));
            let parent = span.id;
            spans.push(span);
            for attempt in &step.attempts {
                if spans.len() >= SPANS_MAX {
                    return;
                }
                let key = instance.attempt_key(self.execution.id, &planned.id, attempt.number);
                spans.push(self.step_attempt(planned, step, attempt, &key, parent));
            }
        }
    }

    /// Returns the span of the nearest enclosing step that has a span, or otherwise the execution's
    /// span.
    fn holder(
        &self,
        plan: &Plan,
        instance: &Instance,
        known: &HashMap<&Instance, &Step>,
    ) -> SpanId {
        let mut items = instance.items.clone();
        let mut around = plan.at(instance.step).and_then(|planned| planned.parent);
        while let Some(planned) = around.and_then(|parent| plan.at(parent.step)) {
            if matches!(planned.kind, StepKind::Map(_)) {
                items.pop();
            }
            let holder = Instance { step: planned.position, items: items.clone() };
            if known.contains_key(&holder) {
                return SpanId::of(&holder.key(self.execution.id, &planned.id));
            }
            around = planned.parent;
        }
        self.trace.root()
    }

    fn step(&self, instance: &Instance, step: &Step, planned: &Planned, parent: SpanId) -> Span {
        let id = SpanId::of(&instance.key(self.execution.id, &planned.id));
        let end = step.completed_at.unwrap_or(self.end);
        let name = format!("step {}", planned.id);
        let mut span = Span::new(&self.trace, id, name, step.started_at, end).below(parent);
        span.set("orrery.step.id", planned.id.clone());
        span.set("orrery.step.type", planned.kind.as_str());
        let status = if step.status.is_final() { step.status } else { step::Status::Cancelled };
        span.set("orrery.status", status.as_str());
        if let Some(item) = instance.items.last() {
            span.set("orrery.step.item", *item);
        }
        if let Some(prediction) = step.prediction {
            span.set("orrery.prediction.id", prediction.to_string());
        }
        if let Some(child) = step.child {
            span.set("orrery.child.id", child.to_string());
        }
        if let Some(fault) = &step.fault {
            fail(&mut span, fault);
        }
        span
    }

    fn step_attempt(
        &self,
        planned: &Planned,
        step: &Step,
        attempt: &Attempt,
        key: &str,
        parent: SpanId,
    ) -> Span {
        match &planned.kind {
            StepKind::Http(http) => {
                let method = http.request.method.as_str();
                let mut span = self.attempt(attempt, key, method.to_owned(), parent);
                span.set("http.request.method", method);
                let is_last =
                    step.attempts.last().is_some_and(|last| last.number == attempt.number);
                if let Some(answer) = step.answer.as_ref().filter(|_| is_last) {
                    span.set("http.response.status_code", u32::from(answer.status_code));
                }
                span
            }
            StepKind::Workflow(_) => {
                let name = "start workflow".to_owned();
                self.attempt(attempt, key, name, parent).kind(Kind::Internal)
            }
            StepKind::Model(_)
            | StepKind::Parallel(_)
            | StepKind::Choice(_)
            | StepKind::Map(_)
            | StepKind::Wait(_)
            | StepKind::Pass(_) => self.model_attempt(attempt, key, parent),
        }
    }

    /// Adds the spans of an agent exchange's steps, which run one after the other.
    fn exchange(&self, steps: &[(Instance, Step)], model: &str, spans: &mut Vec<Span>) {
        let mut before = self.execution.started_at.unwrap_or(self.execution.created_at);
        for (place, (_, step)) in steps.iter().enumerate() {
            let begun = step.input.as_ref().and_then(task);
            let (name, is_tool) = match &begun {
                Some(Task::Tool(tool)) => {
                    (format!("execute_tool {}", short(&tool.call.name)), true)
                }
                Some(Task::Answer | Task::Summary) | None => {
                    (format!("chat {}", short(model)), false)
                }
            };
            let id = SpanId::of(&self.execution.exchange_step_key(place));
            let end = step.completed_at.unwrap_or(self.end);
            // A model's answer is stored when the step ends; it was requested when the previous
            // step ended.
            let start = if is_tool { step.started_at } else { before };
            let mut span = Span::new(&self.trace, id, name, start, end).below(self.trace.root());
            if is_tool {
                span.set("gen_ai.operation.name", "execute_tool");
                if let Some(Task::Tool(tool)) = &begun {
                    span.set("gen_ai.tool.name", short(&tool.call.name));
                }
            } else {
                span.kind = Kind::Client;
                span.set("gen_ai.operation.name", operation(Operation::Chat));
                span.set("gen_ai.request.model", short(model));
            }
            if let Some(child) = step.prediction {
                span.set("orrery.child.id", child.to_string());
            }
            before = end;
            spans.push(span);
        }
    }
}

/// Parses the task of a step of an exchange.
fn task(input: &Payload) -> Option<Task> {
    let Payload::Inline(text) = input else { return None };
    serde_json::from_str::<Begun>(text.get()).ok().map(|begun| begun.task)
}

/// Sets the name and class of an error, but not its cause, which may quote other text.
fn fail(span: &mut Span, fault: &Fault) {
    span.fail(fault.name.clone(), fault.class.as_str());
}

fn tokens(span: &mut Span, tokens: Tokens) {
    span.set("gen_ai.usage.input_tokens", tokens.input);
    span.set("gen_ai.usage.output_tokens", tokens.output);
    if tokens.cached > 0 {
        span.set("gen_ai.usage.cache_read.input_tokens", tokens.cached);
    }
    if tokens.reasoning > 0 {
        span.set("gen_ai.usage.reasoning.output_tokens", tokens.reasoning);
    }
}

/// Returns the provider of a call: this service, or an upstream that speaks OpenAI's API.
pub(crate) const fn provider(call: &chat::Call) -> &'static str {
    if call.is_upstream { "openai" } else { "orrery" }
}

/// Returns the operation name from the semantic conventions for generative AI.
pub(crate) const fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Chat => "chat",
        Operation::Embeddings => "embeddings",
        Operation::Completions => "text_completion",
        Operation::Rerank => "rerank",
        Operation::Transcriptions => "transcription",
        Operation::Translations => "translation",
        Operation::Speech => "speech",
        Operation::Images => "image_generation",
        Operation::ImageEdits => "image_edit",
    }
}

fn short(name: &str) -> String {
    name.chars().take(NAME_MAX).collect()
}
