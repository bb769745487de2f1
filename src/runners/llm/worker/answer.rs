//! Answers as OpenAI's clients read them: whole, or as the chunks of a stream.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Value, json};

use super::engine::{End, Finish, Logprobs, Part};
use super::prompt::Reading;
use super::sampling::Likely;
use super::tools::{Call, Form};

/// What is the same in all chunks of an answer.
#[derive(Debug, Clone)]
pub struct Frame {
    pub id: String,
    /// Unix seconds.
    pub created: i64,
    pub model: String,
}

/// One of the answers to a request, as its text comes.
#[derive(Debug)]
pub struct Choice {
    index: u32,
    reading: Reading,
    /// What is not given out yet: it may be the beginning of calls, or is calls.
    held: String,
    is_calls: bool,
    has_begun: bool,
    /// Kept where the answer is given whole.
    whole: Option<Whole>,
}

#[derive(Debug, Default)]
struct Whole {
    text: String,
    logprobs: Vec<Value>,
}

impl Frame {
    /// A chunk of a stream.
    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// The chunk with the usage alone.
    #[must_use]
    pub fn usage_chunk(&self, ends: &[End]) -> Value {
        let mut chunk = self.chunk(&json!([]));
        add(&mut chunk, "usage", usage(ends));
        chunk
    }

    /// An answer that is given whole.
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

/// Tokens of all answers: the prompt counts once.
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
    /// Answer `index` of a request; with `is_whole` its text is kept.
    #[must_use]
    pub fn new(index: u32, reading: Reading, is_whole: bool) -> Self {
        Self {
            index,
            reading,
            held: String::new(),
            is_calls: matches!(reading, Reading::Calls(_)),
            has_begun: false,
            whole: is_whole.then(Whole::default),
        }
    }

    /// The chunk of a part, if it has anything to show yet.
    pub fn part(&mut self, model: &LlamaModel, frame: &Frame, part: Part) -> Option<Value> {
        let logprobs = part.logprobs.map(|logprobs| shown(model, &logprobs));
        self.held.push_str(&part.text);
        let text = self.showable();
        if let Some(whole) = &mut self.whole {
            whole.text.push_str(&text);
            whole.logprobs.extend(logprobs);
            return None;
        }
        if text.is_empty() && logprobs.is_none() {
            return None;
        }
        let mut choice = self.begun(json!({"content": text}));
        if let Some(logprobs) = logprobs {
            add(&mut choice, "logprobs", json!({"content": [logprobs]}));
        }
        Some(frame.chunk(&json!([choice])))
    }

    /// The text that cannot be the beginning of a call.
    fn showable(&mut self) -> String {
        let form = match self.reading {
            Reading::Text => return std::mem::take(&mut self.held),
            Reading::MayCall(form) | Reading::Calls(form) => form,
        };
        if self.is_calls {
            return String::new();
        }
        let mark = form.mark();
        if form == Form::Bare {
            // Calls are all of the text, or none of it.
            let text = self.held.trim_start();
            self.is_calls = text.starts_with(mark);
            let is_open = self.is_calls || text.is_empty();
            return if is_open { String::new() } else { std::mem::take(&mut self.held) };
        }
        if let Some(at) = self.held.find(mark) {
            self.is_calls = true;
            let calls = self.held.split_off(at);
            return std::mem::replace(&mut self.held, calls);
        }
        let most = self.held.len().min(mark.len() - 1);
        let keep = (1..=most).rev().find(|length| {
            let end = self.held.get(self.held.len() - length..);
            end.is_some_and(|end| mark.starts_with(end))
        });
        let rest = self.held.split_off(self.held.len() - keep.unwrap_or(0));
        std::mem::replace(&mut self.held, rest)
    }

    /// The last chunks: calls or held text, and why it ended.
    pub fn end(&mut self, frame: &Frame, end: &End) -> Vec<Value> {
        let (text, calls) = self.take_rest();
        let reason = reason(end, &calls);
        let mut chunks = Vec::new();
        if !text.is_empty() {
            let choice = self.begun(json!({"content": text}));
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

    /// The whole answer.
    #[must_use]
    pub fn whole(mut self, frame: &Frame, end: &End) -> Value {
        let (rest, calls) = self.take_rest();
        let Whole { mut text, logprobs } = self.whole.take().unwrap_or_default();
        text.push_str(&rest);
        let reason = reason(end, &calls);
        let content = if calls.is_empty() || !text.is_empty() { text.into() } else { Value::Null };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
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

    /// The calls, and the text that has turned out to be none.
    fn take_rest(&mut self) -> (String, Vec<Call>) {
        let rest = std::mem::take(&mut self.held);
        let calls = match self.reading {
            Reading::MayCall(form) | Reading::Calls(form) if self.is_calls => form.calls(&rest),
            Reading::Text | Reading::MayCall(_) | Reading::Calls(_) => Vec::new(),
        };
        if calls.is_empty() { (rest, calls) } else { (String::new(), calls) }
    }

    /// A choice of a chunk; the first one names the role.
    fn begun(&mut self, mut delta: Value) -> Value {
        if !self.has_begun {
            self.has_begun = true;
            add(&mut delta, "role", "assistant".into());
        }
        json!({"index": self.index, "delta": delta, "finish_reason": null})
    }
}

fn reason(end: &End, calls: &[Call]) -> &'static str {
    match end.finish {
        Finish::Stop if !calls.is_empty() => "tool_calls",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn tool_call(frame: &Frame, choice: u32, index: usize, call: &Call) -> Value {
    // Unique in a conversation: the answer's id is.
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

/// The likelihood of a token, and of others in its place.
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
        // JSON has no infinity: OpenAI writes this for what is as good as impossible.
        "logprob": likely.logprob.max(-9999.0),
        "bytes": bytes,
    })
}
