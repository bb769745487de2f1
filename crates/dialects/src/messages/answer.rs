//! Writes answers and streams.

use orrery_wire::messages::answer::{
    self as wire, Block, Delta, ErrorBody, Event as Sent, MessageEnd, StopReason,
};
use serde_json::{Map, Value};

use crate::{Answer, End, Event, Part, Reasoning, ToolCall, Unreadable, Usage};

/// The prefix of IDs for calls to which the model's server gives none.
const CALL_PREFIX: &str = "toolu_";

/// Writes a complete answer to a request for `model`. With `shows_thinking`, it has the reasoning.
///
/// # Errors
/// [`Unreadable`] if the arguments of a tool call are not a JSON object, unless the token limit cut
/// them off: then the call is left out.
pub fn write_answer(
    answer: Answer,
    id: &str,
    model: &str,
    shows_thinking: bool,
) -> Result<wire::Answer, Unreadable> {
    let is_cut = answer.end == End::TokenLimit;
    let mut content = Vec::with_capacity(answer.parts.len());
    for (index, part) in answer.parts.into_iter().enumerate() {
        match part {
            Part::Text(text) | Part::Refusal(text) => content.push(Block::Text { text }),
            Part::Reasoning(Reasoning { text, signature }) if shows_thinking => {
                let signature = signature.unwrap_or_default();
                content.push(Block::Thinking { thinking: text, signature });
            }
            Part::ToolCall(ToolCall { id: call, name, arguments }) => {
                let Some(input) = input_of(&arguments) else {
                    if is_cut {
                        continue;
                    }
                    let problem = "has a tool call whose arguments are not a JSON object";
                    return Err(Unreadable(problem.to_owned()));
                };
                content.push(Block::ToolUse { id: call_id(call, id, index), name, input });
            }
            Part::Reasoning(_) | Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    let (stop_reason, stop_sequence) = stop_of(answer.end);
    Ok(wire::Answer {
        stop_reason: Some(stop_reason),
        stop_sequence,
        usage: usage_of(answer.usage),
        content,
        ..empty(id, model)
    })
}

fn empty(id: &str, model: &str) -> wire::Answer {
    wire::Answer {
        id: id.to_owned(),
        kind: "message",
        role: "assistant",
        model: model.to_owned(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: wire::Usage::default(),
    }
}

/// Parses the arguments of a tool call. Models may write nothing for a tool without arguments.
fn input_of(arguments: &str) -> Option<Map<String, Value>> {
    if arguments.trim().is_empty() {
        return Some(Map::new());
    }
    match serde_json::from_str(arguments).ok()? {
        Value::Object(input) => Some(input),
        Value::Null => Some(Map::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
    }
}

/// Returns the ID of a call. One that the server does not give is made from the answer's ID, so that
/// it is unique within a conversation.
fn call_id(given: String, answer: &str, index: usize) -> String {
    if !given.is_empty() {
        return given;
    }
    let answer = answer.split_once('_').map_or(answer, |(_, id)| id);
    format!("{CALL_PREFIX}{answer}_{index}")
}

fn stop_of(end: End) -> (StopReason, Option<String>) {
    match end {
        End::Complete => (StopReason::EndTurn, None),
        End::StopString(text) => (StopReason::StopSequence, Some(text)),
        End::TokenLimit => (StopReason::MaxTokens, None),
        End::ToolCalls => (StopReason::ToolUse, None),
        End::Refused => (StopReason::Refusal, None),
    }
}

fn usage_of(usage: Usage) -> wire::Usage {
    wire::Usage {
        input_tokens: usage.input.saturating_sub(usage.cached),
        output_tokens: usage.output,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: usage.cached.min(usage.input),
        cost: usage.cost,
    }
}

/// Returns the kind of an error for one in OpenAI's form.
fn kind_of(kind: &str) -> &'static str {
    match kind {
        "invalid_request_error" | "conflict" => "invalid_request_error",
        "insufficient_quota" => "billing_error",
        "rate_limit_error" => "rate_limit_error",
        "timeout" => "timeout_error",
        _ => "api_error",
    }
}

/// The block that a stream is writing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Text,
    Thinking { signature: String },
    Tool { call: usize },
}

/// Writes the events of a stream.
#[derive(Debug)]
pub struct StreamWriter {
    id: String,
    model: String,
    request_id: String,
    shows_thinking: bool,
    /// The number of the next block.
    next: u64,
    open: Option<Open>,
    end: Option<End>,
    usage: Usage,
    has_calls: bool,
    is_refused: bool,
}

impl StreamWriter {
    /// Creates a writer for the answer `id` to a request for `model`. With `shows_thinking`, the
    /// stream has the reasoning.
    #[must_use]
    pub fn new(id: String, model: String, request_id: String, shows_thinking: bool) -> Self {
        Self {
            id,
            model,
            request_id,
            shows_thinking,
            next: 0,
            open: None,
            end: None,
            usage: Usage::default(),
            has_calls: false,
            is_refused: false,
        }
    }

    /// Returns the first event, with an estimate of the prompt's tokens.
    #[must_use]
    pub fn start(&mut self, input_tokens: u64) -> Sent {
        self.usage.input = input_tokens;
        let message = wire::Answer { usage: usage_of(self.usage), ..empty(&self.id, &self.model) };
        Sent::MessageStart { message }
    }

    /// Writes an event. [`Event::Failure`] ends the stream.
    ///
    /// # Errors
    /// [`Unreadable`] if the model's server mixes the parts of several tool calls, for which the
    /// format has no form.
    pub fn event(&mut self, event: Event, sent: &mut Vec<Sent>) -> Result<(), Unreadable> {
        match event {
            Event::Text(text) => self.text(text, sent),
            Event::Refusal(text) => {
                self.is_refused = true;
                self.text(text, sent);
            }
            Event::Reasoning(Reasoning { text, signature }) => {
                if self.shows_thinking {
                    let signature = signature.unwrap_or_default();
                    if !matches!(self.open, Some(Open::Thinking { .. })) {
                        let (thinking, empty) = (String::new(), String::new());
                        let block = Block::Thinking { thinking, signature: empty };
                        self.begin(Open::Thinking { signature }, block, sent);
                    }
                    self.delta(Delta::ThinkingDelta { thinking: text }, sent);
                }
            }
            Event::ToolStart { call, id, name } => {
                self.has_calls = true;
                let id = call_id(id, &self.id, call);
                let block = Block::ToolUse { id, name, input: Map::new() };
                self.begin(Open::Tool { call }, block, sent);
            }
            Event::ToolArguments { call, text } => {
                if self.open != Some(Open::Tool { call }) {
                    let problem = "mixes the parts of several tool calls";
                    return Err(Unreadable(problem.to_owned()));
                }
                self.delta(Delta::InputJsonDelta { partial_json: text }, sent);
            }
            Event::End(end) => self.end = Some(end),
            Event::Usage(usage) => self.usage = usage,
            Event::Failure { kind, message } => sent.push(self.failure(&kind, message)),
        }
        Ok(())
    }

    /// Writes the events that end a complete answer.
    pub fn finish(&mut self, sent: &mut Vec<Sent>) {
        self.close(sent);
        let end = self.end.take().unwrap_or_default().of_parts(self.has_calls, self.is_refused);
        let (stop_reason, stop_sequence) = stop_of(end);
        let delta = MessageEnd { stop_reason, stop_sequence };
        sent.push(Sent::MessageDelta { delta, usage: usage_of(self.usage) });
        sent.push(Sent::MessageStop);
    }

    /// Returns the event that ends a broken stream.
    #[must_use]
    pub fn failure(&self, kind: &str, message: String) -> Sent {
        let request_id = self.request_id.clone();
        Sent::Error { error: ErrorBody { kind: kind_of(kind), message }, request_id }
    }

    fn text(&mut self, text: String, sent: &mut Vec<Sent>) {
        if self.open != Some(Open::Text) {
            self.begin(Open::Text, Block::Text { text: String::new() }, sent);
        }
        self.delta(Delta::TextDelta { text }, sent);
    }

    fn begin(&mut self, open: Open, content_block: Block, sent: &mut Vec<Sent>) {
        self.close(sent);
        sent.push(Sent::ContentBlockStart { index: self.next, content_block });
        self.open = Some(open);
    }

    fn delta(&self, delta: Delta, sent: &mut Vec<Sent>) {
        sent.push(Sent::ContentBlockDelta { index: self.next, delta });
    }

    fn close(&mut self, sent: &mut Vec<Sent>) {
        let Some(open) = self.open.take() else { return };
        if let Open::Thinking { signature } = open {
            self.delta(Delta::SignatureDelta { signature }, sent);
        }
        sent.push(Sent::ContentBlockStop { index: self.next });
        self.next = self.next.saturating_add(1);
    }
}
