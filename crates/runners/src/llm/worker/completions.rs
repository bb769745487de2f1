//! Text completions: the prompt is continued as it is, without a chat template. Control tokens in it
//! are control tokens, because such clients write the prompt's format themselves.

use std::sync::{Arc, Weak};

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{self, Receiver};

use super::answer::{Frame, Written, token_text};
use super::engine::{End, Event, Finish, Job, Logprobs, PARTS_MAX, Part};
use super::prompt::{Sizes, overflow_of, random_seed};
use super::request::{Fields, Numbers, Refusal, bias, numbers, seed, stops};
use super::sampling::Sampling;
use super::watch::Work;

/// Maximum number of answers to a request.
const ANSWERS_MAX: u64 = 128;
const LOGPROBS_MAX: u64 = 20;

/// A request for completions.
#[derive(Debug)]
pub(super) struct Completions {
    prompts: Vec<Prompt>,
    suffix: Option<String>,
    echoes: bool,
    pub is_stream: bool,
    pub wants_usage: bool,
    max_tokens: Option<usize>,
    stops: Vec<String>,
    logprobs: Option<usize>,
    pub answers: u32,
    numbers: Numbers,
    seed: Option<u32>,
    bias: Vec<(i32, f32)>,
}

#[derive(Debug)]
enum Prompt {
    Text(String),
    Tokens(Vec<i32>),
}

/// A job with the choice that it fills.
pub(super) type Prepared = (Job, Receiver<Event>, Choice);

/// One choice of a response, built as its text arrives.
#[derive(Debug)]
pub(super) struct Choice {
    index: usize,
    /// Whether the response is returned whole.
    is_whole: bool,
    /// The prompt, until it is sent with the first text.
    echo: String,
    has_logprobs: bool,
    /// Characters of the text so far, for the offsets of tokens.
    length: usize,
    whole: Whole,
}

#[derive(Debug, Default)]
struct Whole {
    text: String,
    logprobs: Shown,
}

/// Log-probabilities in the form of completions.
#[derive(Debug, Default)]
struct Shown {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl Shown {
    fn value(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }

    fn add(&mut self, model: &LlamaModel, logprobs: &Logprobs, offset: usize) {
        let top = logprobs.top.iter();
        let top = top.map(|one| (token_text(model, one.token), one.shown().into()));
        self.tokens.push(token_text(model, logprobs.chosen.token).into());
        self.token_logprobs.push(logprobs.chosen.shown().into());
        self.top_logprobs.push(Value::Object(top.collect::<Map<String, Value>>()));
        self.text_offset.push(offset.into());
    }
}

impl Completions {
    /// Parses a request.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::because(400, format!("the body is not JSON: {error}")))?;
        let fields = Fields::new(&fields);
        let prompts = prompts(&fields)?;
        let suffix = match fields.get("suffix") {
            None => None,
            Some(Value::String(suffix)) => Some(suffix.clone()).filter(|text| !text.is_empty()),
            Some(_) => return Err(Refusal::of("suffix", "suffix must be a text")),
        };
        let answers = fields.whole("n", 1, ANSWERS_MAX)?.unwrap_or(1);
        if fields.whole("best_of", 1, ANSWERS_MAX)?.is_some_and(|best_of| best_of > answers) {
            let message = "this model does not choose the best of several answers";
            return Err(Refusal::of("best_of", message));
        }
        let logprobs = fields.whole("logprobs", 0, LOGPROBS_MAX)?;
        let echoes = fields.flag("echo")?;
        if echoes && logprobs.is_some() {
            let message = "the log-probabilities of an echoed prompt are not computed";
            return Err(Refusal::of("logprobs", message));
        }
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let options = fields.object("stream_options")?;
        Ok(Self {
            suffix,
            echoes,
            is_stream: fields.flag("stream")?,
            wants_usage: options
                .and_then(|options| options.get("include_usage")?.as_bool())
                .unwrap_or(false),
            // The service has removed -1, which means no limit.
            max_tokens: fields.whole("max_tokens", 1, u32::MAX.into())?.map(size),
            stops: stops(&fields)?,
            logprobs: logprobs.map(size),
            answers: u32::try_from(answers).unwrap_or(1),
            numbers: numbers(&fields)?,
            seed: seed(&fields)?,
            bias: bias(&fields)?,
            prompts,
        })
    }

    /// Prepares the jobs for a model with a context of `room` tokens.
    ///
    /// # Errors
    /// The fault in the request.
    pub(super) fn prepare(
        &self,
        model: &Arc<LlamaModel>,
        sizes: Sizes,
        room: usize,
        work: &Work,
    ) -> Result<Vec<Prepared>, Refusal> {
        let mut prepared = Vec::new();
        let first_seed = self.seed.unwrap_or_else(random_seed);
        for prompt in &self.prompts {
            work.check()?;
            let tokens = self.tokens_of(prompt, model, sizes, room)?;
            if tokens.len() >= room {
                return Err(overflow_of("prompt", tokens.len(), self.max_tokens, room));
            }
            let max_tokens = self.max_tokens.unwrap_or(usize::MAX).min(room - tokens.len());
            let echo = match (self.echoes, prompt) {
                (false, _) => String::new(),
                (true, Prompt::Text(text)) => text.clone(),
                (true, Prompt::Tokens(_)) => {
                    tokens.iter().map(|token| token_text(model, *token)).collect()
                }
            };
            for _answer in 0..self.answers {
                let index = prepared.len();
                let seed = first_seed.wrapping_add(u32::try_from(index).unwrap_or(0));
                let (job, events) = self.job(tokens.clone(), max_tokens, seed, work);
                let choice = Choice {
                    index,
                    is_whole: !self.is_stream,
                    echo: echo.clone(),
                    has_logprobs: self.logprobs.is_some(),
                    length: 0,
                    whole: Whole::default(),
                };
                prepared.push((job, events, choice));
            }
        }
        Ok(prepared)
    }

    fn tokens_of(
        &self,
        prompt: &Prompt,
        model: &LlamaModel,
        sizes: Sizes,
        room: usize,
    ) -> Result<Vec<LlamaToken>, Refusal> {
        let vocabulary = model.vocab();
        let tokens: Vec<LlamaToken> = match prompt {
            Prompt::Tokens(tokens) => {
                let known = 0..vocabulary.n_tokens();
                if let Some(unknown) = tokens.iter().find(|token| !known.contains(token)) {
                    let message = format!("prompt has the token {unknown}, which this model lacks");
                    return Err(Refusal::of("prompt", message));
                }
                if self.suffix.is_some() {
                    let message = "a suffix needs a prompt that is a text";
                    return Err(Refusal::of("suffix", message));
                }
                tokens.iter().copied().map(LlamaToken).collect()
            }
            Prompt::Text(text) => {
                for (field, text) in [("prompt", text)]
                    .into_iter()
                    .chain(self.suffix.as_ref().map(|suffix| ("suffix", suffix)))
                {
                    let least = sizes.least_tokens(text);
                    if least >= room {
                        return Err(overflow_of(field, least, self.max_tokens, room));
                    }
                    sizes.check_words(field, text)?;
                }
                match &self.suffix {
                    None => with_bos(model, text),
                    Some(suffix) => in_the_middle(model, text, suffix)?,
                }
            }
        };
        if tokens.is_empty() {
            return Err(Refusal::of("prompt", "the prompt has no tokens"));
        }
        Ok(tokens)
    }

    fn job(
        &self,
        prompt: Vec<LlamaToken>,
        max_tokens: usize,
        seed: u32,
        work: &Work,
    ) -> (Job, Receiver<Event>) {
        let sampling = Sampling::new(self.numbers, seed, self.bias.clone(), None);
        let (reply, events) = mpsc::channel(PARTS_MAX);
        let job = Job {
            prompt,
            sampling,
            max_tokens,
            stops: self.stops.clone(),
            shown: Arc::default(),
            logprobs: self.logprobs,
            client: Weak::clone(work.client()),
            reply,
        };
        (job, events)
    }
}

/// Tokenizes a prompt. Its first token is omitted if the prompt begins with it.
fn with_bos(model: &LlamaModel, text: &str) -> Vec<LlamaToken> {
    let vocabulary = model.vocab();
    let bos = vocabulary.bos();
    let bos = if bos.0 >= 0 { vocabulary.token_to_piece(bos, true, None) } else { Vec::new() };
    let begins = !bos.is_empty() && text.as_bytes().starts_with(&bos);
    vocabulary.tokenize(text.as_bytes(), !begins, true)
}

/// Tokenizes the texts around a completion, in the order that models for it expect: the text
/// before, the text after, and the mark of the middle.
fn in_the_middle(
    model: &LlamaModel,
    before: &str,
    after: &str,
) -> Result<Vec<LlamaToken>, Refusal> {
    let vocabulary = model.vocab();
    let (prefix, suffix, middle) =
        (vocabulary.fim_pre(), vocabulary.fim_suf(), vocabulary.fim_mid());
    if [prefix, suffix, middle].iter().any(|token| token.0 < 0) {
        let message = "this model has no tokens for filling in the middle: leave out suffix";
        return Err(Refusal::of("suffix", message));
    }
    let bos = vocabulary.bos();
    let has_bos = vocabulary.tokenize(b"a", true, false).first() == Some(&bos);
    let mut tokens: Vec<LlamaToken> = Vec::new();
    tokens.extend((bos.0 >= 0 && has_bos).then_some(bos));
    tokens.push(prefix);
    tokens.extend(vocabulary.tokenize(before.as_bytes(), false, false));
    tokens.push(suffix);
    tokens.extend(vocabulary.tokenize(after.as_bytes(), false, false));
    tokens.push(middle);
    Ok(tokens)
}

fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, Refusal> {
    let wrong = || {
        let message = "prompt must be a text, a list of texts, or lists of tokens";
        Refusal::of("prompt", message)
    };
    let token = |value: &Value| value.as_i64().and_then(|token| i32::try_from(token).ok());
    let tokens = |list: &Vec<Value>| list.iter().map(token).collect::<Option<Vec<i32>>>();
    match fields.get("prompt") {
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Tokens(tokens(list).ok_or_else(wrong)?)])
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            let one = |prompt: &Value| match prompt {
                Value::String(text) => Some(Prompt::Text(text.clone())),
                Value::Array(list) => tokens(list).map(Prompt::Tokens),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
            };
            list.iter().map(one).collect::<Option<_>>().ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

impl Choice {
    fn shown(&self, text: &str, logprobs: Value, reason: Value) -> Value {
        json!({"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}

impl Written for Choice {
    fn part(&mut self, model: &LlamaModel, frame: &Frame, part: Part) -> Option<Value> {
        let text = std::mem::take(&mut self.echo) + &part.text;
        let offset = self.length;
        self.length += text.chars().count();
        if self.is_whole {
            if let Some(logprobs) = &part.logprobs {
                self.whole.logprobs.add(model, logprobs, offset);
            }
            self.whole.text.push_str(&text);
            return None;
        }
        let logprobs = part.logprobs.map_or(Value::Null, |logprobs| {
            let mut shown = Shown::default();
            shown.add(model, &logprobs, offset);
            shown.value()
        });
        if text.is_empty() && logprobs.is_null() {
            return None;
        }
        Some(frame.chunk(&json!([self.shown(&text, logprobs, Value::Null)])))
    }

    fn end(&mut self, frame: &Frame, end: &End) -> Vec<Value> {
        let text = std::mem::take(&mut self.echo);
        vec![frame.chunk(&json!([self.shown(&text, Value::Null, reason(end))]))]
    }

    fn whole(mut self, _frame: &Frame, end: &End) -> Value {
        let Whole { text, logprobs } = std::mem::take(&mut self.whole);
        let logprobs = if self.has_logprobs { logprobs.value() } else { Value::Null };
        self.shown(&(text + &self.echo), logprobs, reason(end))
    }
}

fn reason(end: &End) -> Value {
    match end.finish {
        Finish::Stop => "stop".into(),
        Finish::Length => "length".into(),
    }
}
