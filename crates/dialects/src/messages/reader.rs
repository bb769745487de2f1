//! Reads answers and streams.

use serde_json::Value;

use crate::{Answer, End, Event, Part, Reasoning, ToolCall, Unreadable, Usage};

/// Maximum number of blocks in a streamed answer.
const BLOCKS_MAX: usize = 10_000;

/// The ID of an answer, and the model that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    pub id: String,
    pub model: String,
}

/// Reads a complete answer.
///
/// # Errors
/// [`Unreadable`] if it is not JSON, or has no content.
pub fn read_answer(text: &[u8]) -> Result<(Origin, Answer), Unreadable> {
    let answer: Value = serde_json::from_slice(text)
        .map_err(|error| Unreadable(format!("is not valid JSON: {error}")))?;
    let blocks = answer.get("content").and_then(Value::as_array);
    let blocks = blocks.ok_or_else(|| Unreadable("has no content".to_owned()))?;
    let mut usage = Usage::default();
    add_usage(&mut usage, answer.get("usage"));
    let parts = blocks.iter().filter_map(part).collect();
    Ok((origin(&answer), Answer { parts, end: end_of(&answer).unwrap_or_default(), usage }))
}

fn origin(answer: &Value) -> Origin {
    Origin { id: string(answer, "id"), model: string(answer, "model") }
}

fn string(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn part(block: &Value) -> Option<Part> {
    match block.get("type")?.as_str()? {
        "text" => Some(Part::Text(string(block, "text"))),
        "thinking" => {
            let text = string(block, "thinking");
            Some(Part::Reasoning(Reasoning { text, signature: None }))
        }
        "tool_use" => {
            let arguments = block.get("input").map(Value::to_string).unwrap_or_default();
            let (id, name) = (string(block, "id"), string(block, "name"));
            Some(Part::ToolCall(ToolCall { id, name, arguments }))
        }
        _ => None,
    }
}

/// Returns why an answer ended; `None` if it goes on.
fn end_of(answer: &Value) -> Option<End> {
    Some(match answer.get("stop_reason")?.as_str()? {
        "max_tokens" | "model_context_window_exceeded" => End::TokenLimit,
        "stop_sequence" => End::StopString(string(answer, "stop_sequence")),
        "tool_use" => End::ToolCalls,
        "refusal" => End::Refused,
        _ => End::Complete,
    })
}

/// Replaces the counts that a part of the usage has.
fn add_usage(usage: &mut Usage, given: Option<&Value>) {
    let Some(given) = given else { return };
    let count = |name: &str| given.get(name).and_then(Value::as_u64);
    let cached = count("cache_read_input_tokens");
    if let Some(input) = count("input_tokens") {
        let written = count("cache_creation_input_tokens").unwrap_or(0);
        usage.cached = cached.unwrap_or(0);
        usage.input = input.saturating_add(usage.cached).saturating_add(written);
    }
    usage.output = count("output_tokens").unwrap_or(usage.output);
}

/// The meaning of an event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Read {
    /// The answer begins.
    Begun(Origin),
    Events(Vec<Event>),
    /// The answer is complete.
    Done,
}

/// Reads the data of a stream's events.
#[derive(Debug, Default)]
pub struct StreamReader {
    usage: Usage,
    /// The numbers of the blocks that are tool calls.
    calls: Vec<u64>,
    blocks: usize,
}

impl StreamReader {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// [`Unreadable`] if it is not JSON, or if the answer has too many blocks.
    pub fn event(&mut self, data: &[u8]) -> Result<Read, Unreadable> {
        let event: Value = serde_json::from_slice(data)
            .map_err(|error| Unreadable(format!("has an event that is not JSON: {error}")))?;
        let none = Read::Events(Vec::new());
        Ok(match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                let message = event.get("message").unwrap_or(&Value::Null);
                add_usage(&mut self.usage, message.get("usage"));
                Read::Begun(origin(message))
            }
            "content_block_start" => Read::Events(self.block(&event)?),
            "content_block_delta" => Read::Events(self.delta(&event).into_iter().collect()),
            "message_delta" => {
                add_usage(&mut self.usage, event.get("usage"));
                let end = event.get("delta").and_then(end_of).unwrap_or_default();
                Read::Events(vec![Event::End(end), Event::Usage(self.usage)])
            }
            "message_stop" => Read::Done,
            "error" => {
                let error = event.get("error").unwrap_or(&Value::Null);
                let (kind, message) = (string(error, "type"), string(error, "message"));
                Read::Events(vec![Event::Failure { kind, message }])
            }
            _ => none,
        })
    }

    fn block(&mut self, event: &Value) -> Result<Vec<Event>, Unreadable> {
        self.blocks = self.blocks.saturating_add(1);
        if self.blocks > BLOCKS_MAX {
            return Err(Unreadable(format!("has more than {BLOCKS_MAX} blocks")));
        }
        let block = event.get("content_block").unwrap_or(&Value::Null);
        Ok(match part(block) {
            Some(Part::ToolCall(ToolCall { id, name, .. })) => {
                let call = self.calls.len();
                self.calls.push(number_of(event));
                vec![Event::ToolStart { call, id, name }]
            }
            Some(Part::Text(text)) if !text.is_empty() => vec![Event::Text(text)],
            _ => Vec::new(),
        })
    }

    fn delta(&self, event: &Value) -> Option<Event> {
        let delta = event.get("delta")?;
        match delta.get("type")?.as_str()? {
            "text_delta" => Some(Event::Text(string(delta, "text"))),
            "thinking_delta" => {
                let text = string(delta, "thinking");
                Some(Event::Reasoning(Reasoning { text, signature: None }))
            }
            "input_json_delta" => {
                let block = number_of(event);
                let call = self.calls.iter().position(|call| *call == block)?;
                Some(Event::ToolArguments { call, text: string(delta, "partial_json") })
            }
            _ => None,
        }
    }
}

fn number_of(event: &Value) -> u64 {
    event.get("index").and_then(Value::as_u64).unwrap_or(0)
}
