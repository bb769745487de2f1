//! Writes complete answers.

use orrery_wire::responses::ReasoningPart;
use orrery_wire::responses::answer::{
    IncompleteDetails, InputDetails, Item, ItemStatus, OutputDetails, Part as Shown, Response,
    ResponseError, Role, Settings, Status, Usage as ShownUsage,
};

use super::items::output_text;
use super::{FIELD_END, digits};
use crate::{Answer, End, Part, Reasoning, ToolCall, Usage};

/// The parts of a response that are known before its answer.
#[derive(Debug, Clone)]
pub struct Head {
    /// The ID of the response.
    pub id: String,
    /// In Unix seconds.
    pub created_at: i64,
    pub settings: Settings,
    /// Whether `encrypted_content` repeats the text of reasoning.
    pub shows_reasoning: bool,
}

impl Head {
    /// Returns the ID of an item of the answer.
    pub(super) fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", digits(&self.id))
    }

    /// Returns the ID of a call. One that the model's server does not give is made from the
    /// response's ID, so that it is unique within a conversation.
    pub(super) fn call_id(&self, given: String, index: usize) -> String {
        if given.is_empty() { self.item_id("call", index) } else { given }
    }

    /// Returns the item of reasoning.
    pub(super) fn reasoning(&self, index: usize, status: ItemStatus, said: &Reasoning) -> Item {
        let Reasoning { text, signature } = said;
        let repeated = |field: &String| match self.shows_reasoning {
            true => format!("{field}{FIELD_END}{text}"),
            false => field.clone(),
        };
        let content = ReasoningPart::ReasoningText { text: text.clone() };
        Item::Reasoning {
            id: self.item_id("rs", index),
            status,
            summary: Vec::new(),
            content: vec![content],
            encrypted_content: signature.as_ref().map(repeated),
        }
    }
}

/// Returns a response without an answer.
#[must_use]
pub fn begun(head: &Head, status: Status) -> Response {
    Response {
        id: head.id.clone(),
        object: "response",
        created_at: head.created_at,
        completed_at: None,
        status,
        error: None,
        incomplete_details: None,
        output: Vec::new(),
        usage: None,
        settings: head.settings.clone(),
    }
}

/// Returns a response that failed after `output`. The kind of the error is that of OpenAI's error
/// body.
#[must_use]
pub fn failed(head: &Head, output: Vec<Item>, kind: &str, message: String) -> Response {
    let error = ResponseError { code: code_of(kind), message };
    Response { error: Some(error), output, ..begun(head, Status::Failed) }
}

/// Returns the code of a failed response for the kind of an error in OpenAI's form.
pub(super) fn code_of(kind: &str) -> &'static str {
    match kind {
        "rate_limit_error" => "rate_limit_exceeded",
        "invalid_request_error" => "invalid_prompt",
        _ => "server_error",
    }
}

/// Writes a complete answer, which ended at `now`, in Unix seconds.
#[must_use]
pub fn write_answer(answer: Answer, head: &Head, now: i64) -> Response {
    let mut output: Vec<Item> = Vec::with_capacity(answer.parts.len());
    let status = item_status(&answer.end);
    for part in answer.parts {
        let index = output.len();
        match part {
            Part::Text(text) => say(head, &mut output, status, output_text(&text)),
            Part::Refusal(refusal) => say(head, &mut output, status, Shown::Refusal { refusal }),
            Part::Reasoning(said) => output.push(head.reasoning(index, status, &said)),
            Part::ToolCall(ToolCall { id, name, arguments }) => output.push(Item::FunctionCall {
                id: head.item_id("fc", index),
                status,
                call_id: head.call_id(id, index),
                name,
                arguments,
            }),
            Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    ended(head, output, &answer.end, answer.usage, now)
}

/// Adds a part to the last message, or in a new one.
fn say(head: &Head, output: &mut Vec<Item>, status: ItemStatus, part: Shown) {
    if let Some(Item::Message { content, .. }) = output.last_mut() {
        return content.push(part);
    }
    let id = head.item_id("msg", output.len());
    output.push(Item::Message { id, status, role: Role::Assistant, content: vec![part] });
}

/// Returns why a response with this end is incomplete; `None` if it is complete.
pub(super) fn incomplete(end: &End, output: &[Item]) -> Option<IncompleteDetails> {
    let is_refusal = |part: &Shown| matches!(part, Shown::Refusal { .. });
    let says_no = output.iter().any(|item| match item {
        Item::Message { content, .. } => content.iter().any(is_refusal),
        Item::FunctionCall { .. } | Item::FunctionCallOutput { .. } | Item::Reasoning { .. } => {
            false
        }
    });
    let reason = match end {
        End::TokenLimit => "max_output_tokens",
        // A refusal in words is a complete answer.
        End::Refused if !says_no => "content_filter",
        End::Refused | End::Complete | End::StopString(_) | End::ToolCalls => return None,
    };
    Some(IncompleteDetails { reason })
}

pub(super) fn item_status(end: &End) -> ItemStatus {
    if *end == End::TokenLimit { ItemStatus::Incomplete } else { ItemStatus::Completed }
}

pub(super) fn ended(head: &Head, output: Vec<Item>, end: &End, usage: Usage, now: i64) -> Response {
    let incomplete_details = incomplete(end, &output);
    let is_complete = incomplete_details.is_none();
    Response {
        completed_at: is_complete.then_some(now),
        incomplete_details,
        output,
        usage: Some(usage_of(usage)),
        ..begun(head, if is_complete { Status::Completed } else { Status::Incomplete })
    }
}

fn usage_of(usage: Usage) -> ShownUsage {
    ShownUsage {
        input_tokens: usage.input,
        input_tokens_details: InputDetails { cached_tokens: usage.cached, cache_write_tokens: 0 },
        output_tokens: usage.output,
        output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning },
        total_tokens: usage.input.saturating_add(usage.output),
        cost: usage.cost.unwrap_or(0.0),
    }
}
