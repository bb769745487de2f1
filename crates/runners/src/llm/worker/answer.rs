//! Formats generated text for OpenAI clients: as a complete response, or as chunks of a stream.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Map, Value, json};

use super::engine::{End, Finish, Logprobs, Part};
use super::native::{self, PYTHON};
use super::prompt::{Calls, Reading};
use super::sampling::Likely;
use super::thinking::{Divider, Split};
use super::tools::{Call, Form};

/// The beginnings of JSON code blocks, in which models trained on other formats write calls.
const FENCES: [&str; 2] = ["```json\n{", "```\n{"];
/// The beginning of a JSON call without markers, with all whitespace removed.
const NAMED: &str = "{\"name\"";

/// The constant fields of all chunks of a response.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub id: String,
    /// Unix time in seconds.
    pub created: i64,
    pub model: String,
    pub shape: Shape,
    /// Warnings about the request, which a whole completion contains.
    pub warnings: Vec<String>,
}

/// The shape of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    /// Completions, with this many answers to each prompt.
    Text {
        answers: u32,
    },
}

/// One choice of a response, built as its text arrives.
pub(super) trait Written {
    /// Returns the chunk for a part, if there is anything to show yet.
    fn part(&mut self, model: &LlamaModel, frame: &Frame, part: Part) -> Option<Value>;

    /// Returns the last chunks.
    fn end(&mut self, frame: &Frame, end: &End) -> Vec<Value>;

    /// Returns the whole choice.
    fn whole(self, frame: &Frame, end: &End) -> Value;
}

/// One choice of a chat completion.
#[derive(Debug)]
pub(super) struct Choice {
    index: u32,
    reading: Calls,
    is_legacy: bool,
    divider: Divider,
    /// Text held back because it contains calls, or may be the beginning of calls.
    held: String,
    is_calls: bool,
    /// Whether the text has turned out not to start with calls.
    is_text: bool,
    has_begun: bool,
    /// Collects the text of a response that is not streamed.
    whole: Option<Whole>,
}

#[derive(Debug, Default)]
struct Whole {
    text: String,
    reasoning: String,
    logprobs: Vec<Value>,
}

impl Frame {
    /// Builds a chunk of a stream.
    #[must_use]
    pub(super) fn chunk(&self, choices: &Value) -> Value {
        let object = match self.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Text { .. } => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Builds the final chunk, which contains only the usage.
    #[must_use]
    pub(super) fn usage_chunk(&self, ends: &[End]) -> Value {
        let mut chunk = self.chunk(&json!([]));
        add(&mut chunk, "usage", self.usage(ends));
        chunk
    }

    /// Builds a completion that is not streamed.
    #[must_use]
    pub(super) fn completion(&self, choices: Vec<Value>, ends: &[End]) -> Value {
        let object = match self.shape {
            Shape::Chat => "chat.completion",
            Shape::Text { .. } => "text_completion",
        };
        let mut completion = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(ends),
        });
        if !self.warnings.is_empty() {
            add(&mut completion, "warnings", json!(self.warnings));
        }
        completion
    }

    /// Adds up the token usage; each prompt counts once.
    fn usage(&self, ends: &[End]) -> Value {
        let answers = match self.shape {
            Shape::Chat => ends.len(),
            Shape::Text { answers } => usize::try_from(answers).unwrap_or(1),
        };
        let prompts = || ends.chunks(answers.max(1));
        let most = |ends: &[End]| ends.iter().map(|end| end.prompt_tokens).max().unwrap_or(0);
        let least = |ends: &[End]| ends.iter().map(|end| end.cached_tokens).min().unwrap_or(0);
        let prompt: usize = prompts().map(most).sum();
        let cached: usize = prompts().map(least).sum();
        let completion: usize = ends.iter().map(|end| end.completion_tokens).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

impl Choice {
    /// Creates choice `index` of a request; with `is_whole`, the choice's text is collected.
    #[must_use]
    pub(super) fn new(index: u32, reading: Reading, is_whole: bool) -> Self {
        Self {
            index,
            reading: reading.calls,
            is_legacy: reading.is_legacy,
            divider: Divider::new(reading.thinking),
            held: String::new(),
            is_calls: matches!(reading.calls, Calls::Always(_)),
            is_text: false,
            has_begun: false,
            whole: is_whole.then(Whole::default),
        }
    }

    /// Splits the next text and returns the part that can be shown.
    fn take(&mut self, text: &str) -> Split {
        let Split { reasoning, content } = self.divider.push(text);
        self.held.push_str(&content);
        Split { reasoning, content: self.showable() }
    }

    /// Takes the text that cannot be the beginning of a call.
    fn showable(&mut self) -> String {
        let Some(form) = self.reading.form() else { return std::mem::take(&mut self.held) };
        if self.is_calls {
            return String::new();
        }
        let is_instead = matches!(self.reading, Calls::Instead(_));
        let is_dropped = matches!(self.reading, Calls::Dropped(_));
        if (is_instead || (form.is_whole() && !is_dropped)) && !self.is_text {
            let starts = starts_with_calls(&self.held, form, is_instead);
            self.is_calls = starts == Some(true);
            self.is_text = starts == Some(false);
            if !self.is_text {
                return String::new();
            }
            let text = bare(&self.held);
            if text.len() < self.held.trim_start().len() {
                self.held = text.to_owned();
            }
        }
        if is_instead {
            return std::mem::take(&mut self.held);
        }
        let marks = || marks_of(form);
        if let Some(at) = marks().filter_map(|mark| self.held.find(mark)).min() {
            self.is_calls = true;
            let calls = self.held.split_off(at);
            return std::mem::replace(&mut self.held, calls);
        }
        let from = |from: &usize| {
            let end = self.held.get(*from..).unwrap_or_default();
            !end.is_empty() && marks().any(|mark| mark.starts_with(end))
        };
        let longest = marks().map(str::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest);
        let at = (first..self.held.len()).find(from).unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest)
    }

    /// Takes the calls, and the held-back text that turned out not to be a call.
    fn take_rest(&mut self, end: &End) -> (Split, Vec<Call>) {
        let Split { reasoning, content } = self.divider.end();
        self.held.push_str(&content);
        let mut text = if self.is_calls { String::new() } else { self.showable() };
        let rest = std::mem::take(&mut self.held);
        let Some(form) = self.reading.form().filter(|_| self.is_calls) else {
            text.push_str(&rest);
            return (Split { reasoning, content: text }, Vec::new());
        };
        let mut calls = form.calls(bare(&rest));
        if calls.is_empty() {
            calls = native::calls(&rest, form);
        }
        let is_dropped = matches!(self.reading, Calls::Dropped(_));
        let is_format = matches!(self.reading, Calls::Instead(_)) && form.is_whole();
        let is_cut = end.finish == Finish::Length;
        if is_format && !is_only_call(&rest) {
            calls.clear();
            text.push_str(&rest);
        } else if is_dropped && calls.is_empty() {
            text.push_str(&native::unmarked(&rest, false));
        } else if is_dropped {
            calls.clear();
        } else if !calls.is_empty() {
            calls.truncate(if self.is_legacy { 1 } else { calls.len() });
        } else if !is_cut || is_text(form, &rest) {
            // A truncated call is neither a call nor text for the client.
            text.push_str(&native::unmarked(&form.unmarked(bare(&rest)), true));
        }
        (Split { reasoning, content: text }, calls)
    }

    fn reason(&self, end: &End, calls: &[Call]) -> &'static str {
        match end.finish {
            Finish::Stop if calls.is_empty() => "stop",
            Finish::Stop if self.is_legacy => "function_call",
            Finish::Stop => "tool_calls",
            Finish::Length => "length",
        }
    }

    /// Builds a choice of a chunk; the first chunk states the role.
    fn begun(&mut self, mut delta: Value) -> Value {
        if !self.has_begun {
            self.has_begun = true;
            add(&mut delta, "role", "assistant".into());
        }
        json!({"index": self.index, "delta": delta, "finish_reason": null})
    }
}

impl Written for Choice {
    fn part(&mut self, model: &LlamaModel, frame: &Frame, part: Part) -> Option<Value> {
        let logprobs = part.logprobs.map(|logprobs| shown(model, &logprobs));
        let Split { reasoning, content: text } = self.take(&part.text);
        if let Some(whole) = &mut self.whole {
            whole.text.push_str(&text);
            whole.reasoning.push_str(&reasoning);
            whole.logprobs.extend(logprobs);
            return None;
        }
        if text.is_empty() && reasoning.is_empty() && logprobs.is_none() {
            return None;
        }
        let mut choice = self.begun(delta(text, reasoning));
        if let Some(logprobs) = logprobs {
            add(&mut choice, "logprobs", json!({"content": [logprobs]}));
        }
        Some(frame.chunk(&json!([choice])))
    }

    fn end(&mut self, frame: &Frame, end: &End) -> Vec<Value> {
        let (Split { reasoning, content }, calls) = self.take_rest(end);
        let reason = self.reason(end, &calls);
        let mut chunks = Vec::new();
        if !content.is_empty() || !reasoning.is_empty() {
            let choice = self.begun(delta(content, reasoning));
            chunks.push(frame.chunk(&json!([choice])));
        }
        for (index, call) in calls.iter().enumerate() {
            let delta = if self.is_legacy {
                json!({"function_call": function(call)})
            } else {
                let mut one = tool_call(frame, self.index, index, call);
                add(&mut one, "index", index.into());
                json!({"tool_calls": [one]})
            };
            let choice = self.begun(delta);
            chunks.push(frame.chunk(&json!([choice])));
        }
        let mut last = self.begun(json!({}));
        add(&mut last, "finish_reason", reason.into());
        chunks.push(frame.chunk(&json!([last])));
        chunks
    }

    fn whole(mut self, frame: &Frame, end: &End) -> Value {
        let (rest, calls) = self.take_rest(end);
        let Whole { mut text, mut reasoning, logprobs } = self.whole.take().unwrap_or_default();
        text.push_str(&rest.content);
        reasoning.push_str(&rest.reasoning);
        let reason = self.reason(end, &calls);
        let content = if calls.is_empty() || !text.is_empty() { text.into() } else { Value::Null };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            add(&mut message, "reasoning_content", reasoning.into());
        }
        if let (true, Some(call)) = (self.is_legacy, calls.first()) {
            add(&mut message, "function_call", function(call));
        } else if !calls.is_empty() {
            let calls = calls.iter().enumerate();
            let calls: Vec<Value> =
                calls.map(|(index, call)| tool_call(frame, self.index, index, call)).collect();
            add(&mut message, "tool_calls", calls.into());
        }
        let logprobs = if logprobs.is_empty() { Value::Null } else { json!({"content": logprobs}) };
        json!({
            "index": self.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": reason,
        })
    }
}

impl Calls {
    const fn form(self) -> Option<Form> {
        match self {
            Self::Text => None,
            Self::Dropped(form) | Self::Maybe(form) | Self::Instead(form) | Self::Always(form) => {
                Some(form)
            }
        }
    }
}

/// Returns the markers of calls that may follow text.
fn marks_of(form: Form) -> impl Iterator<Item = &'static str> {
    let own = (!form.is_whole()).then(|| form.mark());
    own.into_iter().chain(native::MARKS)
}

/// Returns whether a text starts with calls, or `None` if that is not certain yet. A text that does
/// not start with calls contains none. With `is_instead`, such a text is an answer in a required
/// format.
fn starts_with_calls(held: &str, form: Form, is_instead: bool) -> Option<bool> {
    let mut text = bare(held).to_owned();
    let mut begins: Vec<&str> = match (form.is_whole(), is_instead) {
        (true, true) => {
            text.retain(|letter| !letter.is_whitespace());
            vec![NAMED]
        }
        (true, false) => FENCES.into_iter().chain([form.mark()]).collect(),
        (false, _) => {
            text = held.trim_start().to_owned();
            marks_of(form).collect()
        }
    };
    if begins.iter().any(|mark| text.starts_with(mark)) {
        return Some(true);
    }
    begins.push(PYTHON);
    let may_begin = begins.iter().any(|mark| mark.starts_with(&*text));
    if may_begin { None } else { Some(false) }
}

/// Returns whether a JSON text has the fields of a call and no others.
fn is_only_call(text: &str) -> bool {
    let fields: Option<Map<String, Value>> = serde_json::from_str(bare(text).trim()).ok();
    let is_field = |name: &String| ["name", "parameters", "arguments"].contains(&name.as_str());
    fields.is_some_and(|fields| fields.len() == 2 && fields.keys().all(is_field))
}

/// Returns whether held-back text may be a JSON response or a code block.
fn is_text(form: Form, text: &str) -> bool {
    form.is_whole() && text.trim_start().starts_with([form.mark(), "`"].map(first_of))
}

fn first_of(mark: &str) -> char {
    mark.chars().next().unwrap_or_default()
}

/// Strips leading whitespace and the optional tag before tool calls that have no markers.
fn bare(text: &str) -> &str {
    let trimmed = text.trim_start();
    trimmed.strip_prefix(PYTHON).map_or(trimmed, str::trim_start)
}

/// Builds the delta of a chunk.
fn delta(content: String, reasoning: String) -> Value {
    let mut delta = json!({});
    if !reasoning.is_empty() {
        add(&mut delta, "reasoning_content", reasoning.into());
    }
    if !content.is_empty() || delta == json!({}) {
        add(&mut delta, "content", content.into());
    }
    delta
}

fn tool_call(frame: &Frame, choice: u32, index: usize, call: &Call) -> Value {
    // The id is unique within a conversation, because the response id is.
    let id = frame.id.trim_start_matches("chatcmpl-");
    json!({
        "id": format!("call_{id}_{choice}_{index}"),
        "type": "function",
        "function": function(call),
    })
}

fn function(call: &Call) -> Value {
    json!({"name": call.name, "arguments": call.arguments})
}

fn add(object: &mut Value, name: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

/// Formats the log-probabilities of a token and its alternatives as OpenAI's API does.
fn shown(model: &LlamaModel, logprobs: &Logprobs) -> Value {
    let mut chosen = token(model, &logprobs.chosen);
    let top: Vec<Value> = logprobs.top.iter().map(|likely| token(model, likely)).collect();
    add(&mut chosen, "top_logprobs", top.into());
    chosen
}

/// Returns the text of a token.
#[must_use]
pub(super) fn token_text(model: &LlamaModel, token: LlamaToken) -> String {
    let bytes = model.vocab().token_to_piece(token, true, None);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn token(model: &LlamaModel, likely: &Likely) -> Value {
    let LlamaToken(_) = likely.token;
    let bytes = model.vocab().token_to_piece(likely.token, true, None);
    json!({
        "token": String::from_utf8_lossy(&bytes),
        "logprob": likely.shown(),
        "bytes": bytes,
    })
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
