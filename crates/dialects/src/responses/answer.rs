//! Writes complete answers.

use orrery_wire::responses::ReasoningPart;
use orrery_wire::responses::answer::{
    Compaction, IncompleteDetails, InputDetails, Item, ItemStatus, Outcome, OutputDetails,
    Part as Shown, Response, ResponseError, Role, Settings, Status, Usage as ShownUsage,
};

use super::items::output_text;
use super::{FIELD_END, SUMMARY, digits};
use crate::{Answer, End, Part, Reasoning, ToolCall, Usage};

/// The parts of a response that are known before its answer.
#[derive(Debug, Clone)]
pub struct Head {
    pub ids: Ids,
    /// In Unix seconds.
    pub created_at: i64,
    pub settings: Settings,
}

impl Head {
    /// Returns the response with this outcome.
    #[must_use]
    pub fn with(&self, outcome: Outcome) -> Response {
        Response {
            id: self.ids.response.clone(),
            object: "response",
            created_at: self.created_at,
            outcome,
            settings: self.settings.clone(),
        }
    }
}

/// What the items of an answer depend on, other than the answer.
#[derive(Debug, Clone)]
pub struct Ids {
    /// The ID of the response.
    pub response: String,
    /// Whether `encrypted_content` repeats the text of reasoning.
    pub shows_reasoning: bool,
}

impl Ids {
    /// Returns the ID of an item of the answer.
    pub(super) fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", digits(&self.response))
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

/// Returns the outcome of a response without an answer.
#[must_use]
pub fn begun(status: Status) -> Outcome {
    Outcome {
        completed_at: None,
        status,
        error: None,
        incomplete_details: None,
        output: Vec::new(),
        usage: None,
    }
}

/// Returns the outcome of a response that failed before its answer began. The kind of the error is
/// that of OpenAI's error body.
#[must_use]
pub fn failed(kind: &str, message: String) -> Outcome {
    Outcome { error: Some(ResponseError { code: code_of(kind), message }), ..begun(Status::Failed) }
}

/// Returns the code of a failed response for the kind of an error in OpenAI's form.
#[must_use]
pub fn code_of(kind: &str) -> &'static str {
    match kind {
        "rate_limit_error" => "rate_limit_exceeded",
        "invalid_request_error" => "invalid_prompt",
        _ => "server_error",
    }
}

/// Writes a complete answer, which ended at `now`, in Unix seconds.
#[must_use]
pub fn write_answer(answer: Answer, ids: &Ids, now: i64) -> Outcome {
    let mut output: Vec<Item> = Vec::with_capacity(answer.parts.len());
    let status = item_status(&answer.end);
    for part in answer.parts {
        let index = output.len();
        match part {
            Part::Text(text) => say(ids, &mut output, status, output_text(&text)),
            Part::Refusal(refusal) => say(ids, &mut output, status, Shown::Refusal { refusal }),
            Part::Reasoning(said) => output.push(ids.reasoning(index, status, &said)),
            Part::ToolCall(ToolCall { id, name, arguments }) => output.push(Item::FunctionCall {
                id: ids.item_id("fc", index),
                status,
                call_id: ids.call_id(id, index),
                name,
                arguments,
            }),
            Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    ended(output, &answer.end, answer.usage, now)
}

/// Adds a part to the last message, or in a new one.
fn say(ids: &Ids, output: &mut Vec<Item>, status: ItemStatus, part: Shown) {
    if let Some(Item::Message { content, .. }) = output.last_mut() {
        return content.push(part);
    }
    let id = ids.item_id("msg", output.len());
    output.push(Item::Message { id, status, role: Role::Assistant, content: vec![part] });
}

/// Returns why a response with this end is incomplete; `None` if it is complete.
pub(super) fn incomplete(end: &End, output: &[Item]) -> Option<IncompleteDetails> {
    let is_refusal = |part: &Shown| matches!(part, Shown::Refusal { .. });
    let says_no = output.iter().any(|item| match item {
        Item::Message { content, .. } => content.iter().any(is_refusal),
        Item::FunctionCall { .. }
        | Item::FunctionCallOutput { .. }
        | Item::Reasoning { .. }
        | Item::Compaction { .. } => false,
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

pub(super) fn ended(output: Vec<Item>, end: &End, usage: Usage, now: i64) -> Outcome {
    let incomplete_details = incomplete(end, &output);
    let is_complete = incomplete_details.is_none();
    Outcome {
        completed_at: is_complete.then_some(now),
        incomplete_details,
        output,
        usage: Some(usage_of(usage)),
        ..begun(if is_complete { Status::Completed } else { Status::Incomplete })
    }
}

/// Writes the answer to [`super::SUMMARIZE`] as a compaction made at `now`, in Unix seconds. Returns
/// `None` if the model has written no text.
#[must_use]
pub fn write_compaction(answer: Answer, ids: &Ids, now: i64) -> Option<Compaction> {
    let texts = answer.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.trim()),
        Part::Refusal(_)
        | Part::Reasoning(_)
        | Part::ToolCall(_)
        | Part::Image(_)
        | Part::ToolResult { .. } => None,
    });
    let summary = texts.collect::<Vec<_>>().join("\n");
    if summary.is_empty() {
        return None;
    }
    let item = Item::Compaction {
        id: ids.item_id("cmp", 0),
        encrypted_content: format!("{SUMMARY}{summary}"),
    };
    Some(Compaction {
        id: ids.response.clone(),
        object: "response.compaction",
        created_at: now,
        output: vec![item],
        usage: usage_of(answer.usage),
    })
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
