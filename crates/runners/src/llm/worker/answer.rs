//! Formats generated text for OpenAI clients: as a whole response, or as chunks of a stream.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Value, json};

use super::engine::{End, Finish, Logprobs, Part};
use super::native::{self, PYTHON};
use super::prompt::{Calls, Reading};
use super::sampling::Likely;
use super::thinking::{Divider, Split};
use super::tools::{Call, Form};

/// Models trained on other formats write calls in a JSON code block.
const FENCES: [&str; 2] = ["```json\n{", "```\n{"];

/// The constant fields of all chunks of a response.
#[derive(Debug, Clone)]
pub struct Frame {
    pub id: String,
    /// Unix time in seconds.
    pub created: i64,
    pub model: String,
}

/// One choice of a response, built as its text arrives.
#[derive(Debug)]
pub struct Choice {
    index: u32,
    reading: Calls,
    divider: Divider,
    /// Text held back because it is, or may be the beginning of, calls.
    held: String,
    is_calls: bool,
    /// Whether the text has turned out not to start with calls.
    is_text: bool,
    has_begun: bool,
    /// Collects the text of a response that is returned whole.
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
    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Builds the final chunk, which contains only the usage.
    #[must_use]
    pub fn usage_chunk(&self, ends: &[End]) -> Value {
        let mut chunk = self.chunk(&json!([]));
        add(&mut chunk, "usage", usage(ends));
        chunk
    }

    /// Builds a completion that is returned whole.
    #[must_use]
    pub fn completion(&self, choices: Vec<Value>, ends: &[End]) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage(ends),
        })
    }
}

/// Adds up the token usage; the prompt counts once.
fn usage(ends: &[End]) -> Value {
    let prompt = ends.iter().map(|end| end.prompt_tokens).max().unwrap_or(0);
    let cached = ends.iter().map(|end| end.cached_tokens).min().unwrap_or(0);
    let completion: usize = ends.iter().map(|end| end.completion_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

impl Choice {
    /// Creates choice `index` of a request; with `is_whole`, its text is collected.
    #[must_use]
    pub fn new(index: u32, reading: Reading, is_whole: bool) -> Self {
        Self {
            index,
            reading: reading.calls,
            divider: Divider::new(reading.thinking),
            held: String::new(),
            is_calls: matches!(reading.calls, Calls::Always(_)),
            is_text: false,
            has_begun: false,
            whole: is_whole.then(Whole::default),
        }
    }

    /// Returns the chunk for a part, if there is anything to show yet.
    pub fn part(&mut self, model: &LlamaModel, frame: &Frame, part: Part) -> Option<Value> {
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

    /// Splits the next text and returns the part that can be shown.
    fn take(&mut self, text: &str) -> Split {
        let Split { reasoning, content } = self.divider.push(text);
        self.held.push_str(&content);
        Split { reasoning, content: self.showable() }
    }

    /// Takes the text that cannot be the beginning of a call.
    fn showable(&mut self) -> String {
        let form = match self.reading {
            Calls::Text => return std::mem::take(&mut self.held),
            Calls::Maybe(form) | Calls::Always(form) => form,
        };
        if self.is_calls {
            return String::new();
        }
        if form.is_whole() && !self.is_text {
            let text = bare(&self.held);
            let mut begins = FENCES.into_iter().chain([form.mark()]);
            self.is_calls = begins.any(|mark| text.starts_with(mark));
            let mut may_begin = FENCES.into_iter().chain([PYTHON]);
            if self.is_calls || may_begin.any(|mark| mark.starts_with(text)) {
                return String::new();
            }
            self.is_text = true;
            if text.len() < self.held.trim_start().len() {
                self.held = text.to_owned();
            }
        }
        let own = (!form.is_whole()).then(|| form.mark());
        let marks = || own.into_iter().chain(native::MARKS);
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

    /// Builds the last chunks: calls or held-back text, and the finish reason.
    pub fn end(&mut self, frame: &Frame, end: &End) -> Vec<Value> {
        let (Split { reasoning, content }, calls) = self.take_rest(end);
        let reason = reason(end, &calls);
        let mut chunks = Vec::new();
        if !content.is_empty() || !reasoning.is_empty() {
            let choice = self.begun(delta(content, reasoning));
            chunks.push(frame.chunk(&json!([choice])));
        }
        for (index, call) in calls.iter().enumerate() {
            let mut one = tool_call(frame, self.index, index, call);
            add(&mut one, "index", index.into());
            let choice = self.begun(json!({"tool_calls": [one]}));
            chunks.push(frame.chunk(&json!([choice])));
        }
        let mut last = self.begun(json!({}));
        add(&mut last, "finish_reason", reason.into());
        chunks.push(frame.chunk(&json!([last])));
        chunks
    }

    /// Builds the whole choice.
    #[must_use]
    pub fn whole(mut self, frame: &Frame, end: &End) -> Value {
        let (rest, calls) = self.take_rest(end);
        let Whole { mut text, mut reasoning, logprobs } = self.whole.take().unwrap_or_default();
        text.push_str(&rest.content);
        reasoning.push_str(&rest.reasoning);
        let reason = reason(end, &calls);
        let content = if calls.is_empty() || !text.is_empty() { text.into() } else { Value::Null };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            add(&mut message, "reasoning_content", reasoning.into());
        }
        if !calls.is_empty() {
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

    /// Takes the calls, and the held-back text that turned out not to be a call.
    fn take_rest(&mut self, end: &End) -> (Split, Vec<Call>) {
        let Split { reasoning, content } = self.divider.end();
        self.held.push_str(&content);
        let mut text = if self.is_calls { String::new() } else { self.showable() };
        let rest = std::mem::take(&mut self.held);
        let form = match self.reading {
            Calls::Maybe(form) | Calls::Always(form) if self.is_calls => Some(form),
            Calls::Text | Calls::Maybe(_) | Calls::Always(_) => None,
        };
        let mut calls = form.map(|form| form.calls(bare(&rest))).unwrap_or_default();
        if let Some(form) = form.filter(|_| calls.is_empty()) {
            calls = native::calls(&rest, form);
        }
        match form {
            Some(_) if !calls.is_empty() => {}
            // A truncated call is neither a call nor text for the client.
            Some(form) if end.finish == Finish::Length && !is_text(form, &rest) => {}
            Some(form) => text.push_str(&native::unmarked(&form.unmarked(bare(&rest)))),
            None => text.push_str(&rest),
        }
        (Split { reasoning, content: text }, calls)
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

/// Whether held-back text may be a JSON response or a code block.
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

fn reason(end: &End, calls: &[Call]) -> &'static str {
    match end.finish {
        Finish::Stop if !calls.is_empty() => "tool_calls",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn tool_call(frame: &Frame, choice: u32, index: usize, call: &Call) -> Value {
    // Unique within a conversation, because the response id is.
    let id = frame.id.trim_start_matches("chatcmpl-");
    json!({
        "id": format!("call_{id}_{choice}_{index}"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
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

fn token(model: &LlamaModel, likely: &Likely) -> Value {
    let LlamaToken(_) = likely.token;
    let bytes = model.vocab().token_to_piece(likely.token, true, None);
    json!({
        "token": String::from_utf8_lossy(&bytes),
        // JSON has no infinity; OpenAI uses this value for tokens that are practically impossible.
        "logprob": likely.logprob.max(-9999.0),
        "bytes": bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::worker::thinking::Thinking;

    /// Returns what the client receives for a text: thinking, content, and the names of calls.
    fn read(calls: Calls, text: &str, finish: Finish) -> (String, String, String) {
        let reading = Reading { calls, thinking: Thinking::Maybe };
        let mut choice = Choice::new(0, reading, false);
        let mut all = Split::default();
        for letter in text.chars() {
            let Split { reasoning, content } = choice.take(letter.encode_utf8(&mut [0; 4]));
            all.reasoning.push_str(&reasoning);
            all.content.push_str(&content);
        }
        let end = End { finish, prompt_tokens: 1, cached_tokens: 0, completion_tokens: 1 };
        let (rest, calls) = choice.take_rest(&end);
        let names: Vec<String> = calls.into_iter().map(|call| call.name).collect();
        (all.reasoning + &rest.reasoning, all.content + &rest.content, names.join(","))
    }

    #[test]
    fn answer_parses_calls_of_later_families() {
        let parameters = "{\"name\": \"f\", \"parameters\": {}}";
        let bare = Calls::Maybe(Form::Bare);
        for (calls, text, finish, expected) in [
            (bare, format!("```json\n{parameters}\n```"), Finish::Stop, ("", "", "f")),
            (bare, "```json\n{\"a\": 1}\n```".to_owned(), Finish::Stop, ("", "```json\n{\"a\": 1}\n```", "")),
            (bare, "```sh\nls\n```".to_owned(), Finish::Stop, ("", "```sh\nls\n```", "")),
            (Calls::Maybe(Form::Python), "[f(x=1), g()]".to_owned(), Finish::Stop, ("", "", "f,g")),
            (Calls::Maybe(Form::Python), "[1, 2] are".to_owned(), Finish::Stop, ("", "[1, 2] are", "")),
            (
                Calls::Maybe(Form::Args),
                "a[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{\"x\": 1}".to_owned(),
                Finish::Stop,
                ("", "a", "f,g"),
            ),
            (
                Calls::Maybe(Form::Free),
                "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>".to_owned(),
                Finish::Stop,
                ("", "", "f"),
            ),
            (
                Calls::Maybe(Form::Free),
                "<tool_call>g\n</tool_call>".to_owned(),
                Finish::Stop,
                ("", "", "g"),
            ),
            (
                Calls::Maybe(Form::Free),
                "<tool_call>g<arg_key>x</arg_key><arg_value>y</arg_value></tool_call>".to_owned(),
                Finish::Stop,
                ("", "", "g"),
            ),
        ] {
            let (thinking, content, names) = read(calls, &text, finish);
            assert_eq!((thinking.as_str(), content.as_str(), names.as_str()), expected, "{text}");
        }
    }

    #[test]
    fn answer_contains_no_markup_of_thinking_or_calls() {
        let arguments = "{\"name\": \"f\", \"arguments\": {}}";
        let parameters = "{\"name\": \"f\", \"parameters\": {}}";
        let tagged = Calls::Maybe(Form::Tagged);
        let bare = Calls::Maybe(Form::Bare);
        let list = Calls::Maybe(Form::List);
        for (calls, text, finish, expected) in [
            (Calls::Text, "<think>\na\n</think>\n\nb".to_owned(), Finish::Stop, ("a", "b", "")),
            (Calls::Text, "<think>a <b".to_owned(), Finish::Length, ("a <b", "", "")),
            (
                tagged,
                format!("<think>a</think>b<tool_call>{arguments}</tool_call>"),
                Finish::Stop,
                ("a", "b", "f"),
            ),
            (tagged, "b<tool_call>{\"name\": ".to_owned(), Finish::Length, ("", "b", "")),
            (tagged, "b<tool_call>c</tool_call>".to_owned(), Finish::Stop, ("", "bc", "")),
            (
                tagged,
                "<think>a<tool_call></think>b".to_owned(),
                Finish::Stop,
                ("a<tool_call>", "b", ""),
            ),
            (list, format!("[TOOL_CALLS][{arguments}]"), Finish::Stop, ("", "", "f")),
            (
                tagged,
                format!("<|python_tag|>{parameters}; {parameters}"),
                Finish::Stop,
                ("", "", "f,f"),
            ),
            (list, format!("<|python_tag|>{arguments}"), Finish::Stop, ("", "", "f")),
            (bare, format!("<|python_tag|>{parameters}"), Finish::Stop, ("", "", "f")),
            (tagged, format!("a <|python_tag|>{parameters}"), Finish::Stop, ("", "a ", "f")),
            (tagged, "<|python_tag|>print(1)".to_owned(), Finish::Stop, ("", "print(1)", "")),
            (bare, format!("\n<|python_tag|> {parameters}"), Finish::Stop, ("", "", "f")),
            (bare, "<|python_tag|>print(1) {x}".to_owned(), Finish::Stop, ("", "print(1) {x}", "")),
            (bare, "a {b} c".to_owned(), Finish::Stop, ("", "a {b} c", "")),
            (bare, "a <function=g>{\"x\": 1}</function>".to_owned(), Finish::Stop, ("", "a ", "g")),
            (
                tagged,
                "é <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}".to_owned(),
                Finish::Stop,
                ("", "é ", "g"),
            ),
            (tagged, "a <b> <function".to_owned(), Finish::Stop, ("", "a <b> <function", "")),
            (list, "a<|tool_call|>[{\"na".to_owned(), Finish::Length, ("", "a", "")),
            (
                tagged,
                "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary \
                      to=functions.g <|constrain|>json<|message|>{}"
                    .to_owned(),
                Finish::Stop,
                ("t", "", "g"),
            ),
        ] {
            let (reasoning, content, names) = read(calls, &text, finish);
            assert_eq!((&*reasoning, &*content, &*names), expected, "{text}");
        }
    }
}
