//! Writes answers and streams of chat completions.

use serde_json::{Map, Value, json};

use crate::{Answer, End, Event, Part, Usage};

/// The fields that an answer and all chunks of a stream have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub id: String,
    pub model: String,
    /// In Unix seconds.
    pub created: i64,
}

impl Frame {
    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }
}

/// Writes a complete answer.
#[must_use]
pub fn write_answer(answer: Answer, frame: &Frame) -> Value {
    let (mut text, mut reasoning, mut refusal) = (String::new(), String::new(), String::new());
    let mut calls = Vec::new();
    for part in answer.parts {
        match part {
            Part::Text(said) => text.push_str(&said),
            Part::Refusal(said) => refusal.push_str(&said),
            Part::Reasoning(said) => reasoning.push_str(&said.text),
            Part::ToolCall(call) => {
                let function = json!({"name": call.name, "arguments": call.arguments});
                calls.push(json!({"id": call.id, "type": "function", "function": function}));
            }
            Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    let has_text = !text.is_empty() || (calls.is_empty() && refusal.is_empty());
    message.insert("content".to_owned(), if has_text { text.into() } else { Value::Null });
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            message.insert(name.to_owned(), value);
        }
    };
    set("reasoning_content", (!reasoning.is_empty()).then(|| reasoning.into()));
    set("refusal", (!refusal.is_empty()).then(|| refusal.into()));
    set("tool_calls", (!calls.is_empty()).then(|| calls.into()));
    let mut choice = json!({"index": 0, "message": message});
    add_end(&mut choice, &answer.end);
    let mut written = frame.object("chat.completion", json!([choice]));
    if let Some(fields) = written.as_object_mut() {
        fields.insert("usage".to_owned(), usage_of(answer.usage));
    }
    written
}

fn add_end(choice: &mut Value, end: &End) {
    let Some(fields) = choice.as_object_mut() else { return };
    let reason = match end {
        End::Complete => "stop",
        End::StopString(text) => {
            // As vLLM names it.
            fields.insert("stop_reason".to_owned(), text.as_str().into());
            "stop"
        }
        End::TokenLimit => "length",
        End::ToolCalls => "tool_calls",
        End::Refused => "content_filter",
    };
    fields.insert("finish_reason".to_owned(), reason.into());
}

fn usage_of(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input.saturating_add(usage.output),
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// Writes the chunks of a stream.
#[derive(Debug)]
pub struct StreamWriter {
    frame: Frame,
    has_begun: bool,
}

impl StreamWriter {
    #[must_use]
    pub const fn new(frame: Frame) -> Self {
        Self { frame, has_begun: false }
    }

    /// Writes an event. A stream ends with `[DONE]` after its last event.
    #[must_use]
    pub fn event(&mut self, event: Event) -> Value {
        let delta = match event {
            Event::Text(text) => json!({"content": text}),
            Event::Reasoning(reasoning) => json!({"reasoning_content": reasoning.text}),
            Event::Refusal(text) => json!({"refusal": text}),
            Event::ToolStart { call, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call =
                    json!({"index": call, "id": id, "type": "function", "function": function});
                json!({"tool_calls": [call]})
            }
            Event::ToolArguments { call, text } => {
                json!({"tool_calls": [{"index": call, "function": {"arguments": text}}]})
            }
            Event::End(end) => {
                let mut choice = json!({"index": 0, "delta": {}});
                add_end(&mut choice, &end);
                return self.frame.object("chat.completion.chunk", json!([choice]));
            }
            Event::Usage(usage) => {
                let mut chunk = self.frame.object("chat.completion.chunk", json!([]));
                if let Some(fields) = chunk.as_object_mut() {
                    fields.insert("usage".to_owned(), usage_of(usage));
                }
                return chunk;
            }
            Event::Failure { kind, message } => {
                return json!({"error": {"message": message, "type": kind}});
            }
        };
        let mut choice = json!({"index": 0, "delta": delta, "finish_reason": null});
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if let Some(Value::Object(delta)) = choice.get_mut("delta").filter(|_| is_first) {
            delta.insert("role".to_owned(), "assistant".into());
        }
        self.frame.object("chat.completion.chunk", json!([choice]))
    }
}
