//! Writes answers and streams.

use orrery_wire::ollama::{Function, ToolCall as Call};
use serde_json::{Map, Value};

use crate::{Answer, End, Event, Part, Reasoning, ToolCall, Unreadable, Usage};

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Piece {
    pub text: String,
    pub thinking: String,
    /// Complete calls.
    pub calls: Vec<Call>,
}

impl Piece {
    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }
}

/// The end of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finish {
    /// Why it ended, in Ollama's words.
    pub reason: &'static str,
    pub usage: Usage,
}

/// Writes a complete answer. With `hides_thinking`, it has no reasoning.
///
/// # Errors
/// [`Unreadable`] if the arguments of a call are not a JSON object, unless the token limit cut them
/// off: then the call is left out.
pub fn write_answer(answer: Answer, hides_thinking: bool) -> Result<(Piece, Finish), Unreadable> {
    let mut writer = StreamWriter::new(hides_thinking);
    let mut piece = Piece::default();
    for part in answer.parts {
        match part {
            Part::Text(text) | Part::Refusal(text) => piece.text.push_str(&text),
            Part::Reasoning(Reasoning { text, .. }) if !hides_thinking => {
                piece.thinking.push_str(&text);
            }
            Part::ToolCall(call) => writer.calls.push(call),
            Part::Reasoning(_) | Part::Image(_) | Part::ToolResult { .. } => {}
        }
    }
    writer.end = Some(answer.end);
    writer.usage = answer.usage;
    let (last, finish) = writer.finish()?;
    piece.calls = last.calls;
    Ok((piece, finish))
}

/// Writes the pieces of a stream. Calls are written at its end, because each is sent as a whole.
#[derive(Debug, Default)]
pub struct StreamWriter {
    hides_thinking: bool,
    calls: Vec<ToolCall>,
    end: Option<End>,
    usage: Usage,
}

impl StreamWriter {
    /// Creates a writer. With `hides_thinking`, the stream has no reasoning.
    #[must_use]
    pub fn new(hides_thinking: bool) -> Self {
        Self { hides_thinking, ..Self::default() }
    }

    /// Adds an event to a piece.
    ///
    /// # Errors
    /// The message of [`Event::Failure`], which is the last event.
    pub fn event(&mut self, event: Event, piece: &mut Piece) -> Result<(), String> {
        match event {
            Event::Text(text) | Event::Refusal(text) => piece.text.push_str(&text),
            Event::Reasoning(Reasoning { text, .. }) => {
                if !self.hides_thinking {
                    piece.thinking.push_str(&text);
                }
            }
            Event::ToolStart { call, id, name } => {
                let empty = || ToolCall {
                    id: String::new(),
                    name: String::new(),
                    arguments: String::new(),
                };
                self.calls.resize_with(self.calls.len().max(call.saturating_add(1)), empty);
                if let Some(known) = self.calls.get_mut(call) {
                    known.id = id;
                    known.name = name;
                }
            }
            Event::ToolArguments { call, text } => {
                if let Some(known) = self.calls.get_mut(call) {
                    known.arguments.push_str(&text);
                }
            }
            Event::End(end) => self.end = Some(end),
            Event::Usage(usage) => self.usage = usage,
            Event::Failure { message, .. } => return Err(message),
        }
        Ok(())
    }

    /// Returns the last piece, and the end.
    ///
    /// # Errors
    /// As [`write_answer`].
    pub fn finish(&mut self) -> Result<(Piece, Finish), Unreadable> {
        let end = self.end.take().unwrap_or_default();
        let mut calls = Vec::with_capacity(self.calls.len());
        for ToolCall { id, name, arguments } in std::mem::take(&mut self.calls) {
            match arguments_of(&arguments) {
                Some(arguments) => {
                    let id = Some(id).filter(|id| !id.is_empty());
                    calls.push(Call { id, function: Function { name, arguments } });
                }
                None if end == End::TokenLimit => {}
                None => {
                    let problem = "has a tool call whose arguments are not a JSON object";
                    return Err(Unreadable(problem.to_owned()));
                }
            }
        }
        let reason = match end {
            End::TokenLimit => "length",
            End::Complete | End::StopString(_) | End::ToolCalls | End::Refused => "stop",
        };
        let finish = Finish { reason, usage: self.usage };
        Ok((Piece { calls, ..Piece::default() }, finish))
    }
}

/// Parses the arguments of a call. Models may write nothing for a tool without arguments.
fn arguments_of(arguments: &str) -> Option<Map<String, Value>> {
    if arguments.trim().is_empty() {
        return Some(Map::new());
    }
    match serde_json::from_str(arguments).ok()? {
        Value::Object(arguments) => Some(arguments),
        Value::Null => Some(Map::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
    }
}
