//! Turns a request into jobs for the engine: the tokens of the prompt, the grammar, and the rules
//! for parsing the generated text.

use std::sync::{Arc, Weak};

use llama_cpp_2::model::LlamaModel;
use tokio::sync::mpsc::{self, Receiver};

use super::engine::{Event, Job, PARTS_MAX};
use super::grammar::Rules;
use super::request::{Chat, Refusal};
use super::sampling::{Bound, Grammar, ROOT, Sampling};
use super::template::{ChatTemplate, SPLIT};
use super::thinking::{self, Thinking};
use super::tools::{Form, Tools};
use super::watch::{Step, Work};

/// Maximum length of a word in bytes, for tokenizers that split words recursively: the stack is
/// sized for this length.
const WORD_MAX: usize = 32 * 1024;

/// The parsing rules for the generated text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub calls: Calls,
    pub thinking: Thinking,
    /// Whether the client expects a call in the field `function_call`.
    pub is_legacy: bool,
}

/// Whether the generated text contains calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    /// The text has a required format and contains no calls.
    Text,
    /// Calls are not requested; calls that the model writes anyway are dropped.
    Dropped(Form),
    /// The text may switch to calls.
    Maybe(Form),
    /// The text either has a required format or consists of calls.
    Instead(Form),
    /// The text consists of calls.
    Always(Form),
}

impl Reading {
    /// Determines how the generated text is parsed. Closes thinking that the prompt has opened, if
    /// the required format does not allow thinking.
    fn of(chat: &Chat, form: Form, tools: &Tools<'_>, prompt: &mut String) -> Self {
        let calls = match (tools.is_empty(), &chat.format) {
            (true, None) => Calls::Dropped(form),
            (true, Some(_)) => Calls::Text,
            (false, _) if tools.are_forced() => Calls::Always(form),
            (false, None) => Calls::Maybe(form),
            (false, Some(_)) => Calls::Instead(form),
        };
        let is_bound = !matches!(calls, Calls::Dropped(_) | Calls::Maybe(_));
        let thinking = match thinking::begun_in(prompt) {
            Some(close) if is_bound => {
                // A grammar applies from the first token, so thinking is not possible.
                prompt.push_str(&format!("\n{close}\n\n"));
                Thinking::Never
            }
            None if is_bound => Thinking::Never,
            Some(close) => Thinking::Begun(close),
            None => Thinking::Maybe,
        };
        Self { calls, thinking, is_legacy: chat.is_legacy }
    }
}

/// A parsed request, ready to be computed.
#[derive(Debug)]
pub(super) struct Prepared {
    pub jobs: Vec<(Job, Receiver<Event>)>,
    pub reading: Reading,
}

/// Prepares a request for a model with a context of `room` tokens.
///
/// # Errors
/// The fault in the request.
pub(super) fn prepare(
    chat: &Chat,
    model: &Arc<LlamaModel>,
    template: &ChatTemplate,
    sizes: Sizes,
    room: usize,
    work: &Work,
) -> Result<Prepared, Refusal> {
    let tools = Tools::new(&chat.tools, &chat.choice, chat.has_parallel_calls);
    let mut prompt = template.render(&chat.messages, &tools, &chat.template_values, work)?;
    let reading = Reading::of(chat, template.tools, &tools, &mut prompt);
    let vocabulary = model.vocab();
    // Omit the BOS token if the template writes it itself.
    let bos = vocabulary.bos();
    let bos = if bos.0 >= 0 { vocabulary.token_to_piece(bos, true, None) } else { Vec::new() };
    let begins = !bos.is_empty() && prompt.as_bytes().starts_with(&bos);
    let wanted = chat.max_tokens.unwrap_or(1);
    let least = sizes.least_tokens(&prompt);
    if least >= room {
        return Err(overflow(least, wanted, room));
    }
    sizes.check_words("messages", &prompt)?;
    // Pieces of a control token inside a message are tokenized separately, as text. Some tokenizers
    // put a space before each text. The separator, which no token contains, prevents a space before
    // the piece; its own tokens are removed.
    let mut tokens = Vec::new();
    let separator = vocabulary.tokenize(SPLIT.to_string().as_bytes(), false, false);
    for (number, part) in prompt.split(SPLIT).enumerate() {
        if number == 0 {
            tokens.extend(vocabulary.tokenize(part.as_bytes(), !begins, true));
            continue;
        }
        let separated = vocabulary.tokenize(format!("{SPLIT}{part}").as_bytes(), false, true);
        match separated.strip_prefix(&*separator) {
            Some(part) => tokens.extend_from_slice(part),
            None => tokens.extend(vocabulary.tokenize(part.as_bytes(), false, true)),
        }
    }
    if tokens.is_empty() {
        return Err(Refusal::of("messages", "the messages result in an empty prompt"));
    }
    if tokens.len() >= room {
        return Err(overflow(tokens.len(), wanted, room));
    }
    work.check()?;
    work.enter(Step::Grammar);
    let grammar = grammar(chat, model, template.tools, &tools, work)?;
    work.check()?;
    work.enter(Step::Reading);
    let max_tokens = chat.max_tokens.unwrap_or(usize::MAX).min(room - tokens.len());
    let first_seed = chat.seed.unwrap_or_else(random_seed);
    let job = |number: u32| {
        let seed = first_seed.wrapping_add(number);
        let sampling = Sampling::new(chat.numbers, seed, chat.bias.clone(), grammar.clone());
        let (reply, events) = mpsc::channel(PARTS_MAX);
        let job = Job {
            prompt: tokens.clone(),
            sampling,
            max_tokens,
            stops: chat.stops.clone(),
            shown: Arc::clone(&template.markup),
            logprobs: chat.logprobs,
            client: Weak::clone(work.client()),
            reply,
        };
        (job, events)
    };
    Ok(Prepared { jobs: (0..chat.answers).map(job).collect(), reading })
}

/// Returns the seed of a request that has none.
#[must_use]
pub(super) fn random_seed() -> u32 {
    orrery_runtime::random_bytes().map_or(1, u32::from_le_bytes)
}

/// Tokenizer properties that are checked before tokenizing, which takes memory and, for some
/// vocabularies, stack space for each byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Length of the longest token, in bytes.
    longest: usize,
    /// Whether words are split recursively, to a depth that equals the length of the word.
    nests: bool,
}

impl Sizes {
    /// Reads the properties of a model's vocabulary.
    #[must_use]
    pub(super) fn of(model: &LlamaModel) -> Self {
        let vocabulary = model.vocab();
        let length = |token| vocabulary.token_to_piece(token, true, None).len();
        let longest = vocabulary.tokens().map(length).max().unwrap_or(1).max(1);
        // llama.cpp's name for byte-pair vocabularies is `gpt2`.
        let nests = model.meta_val_str("tokenizer.ggml.model").is_ok_and(|kind| kind == "gpt2");
        Self { longest, nests }
    }

    /// Returns the minimum number of tokens of a text.
    #[must_use]
    pub(super) const fn least_tokens(self, text: &str) -> usize {
        text.len() / self.longest
    }

    /// Rejects a text with a word that is too long for this vocabulary.
    ///
    /// # Errors
    /// Names the field `param`.
    pub(super) fn check_words(self, param: &str, text: &str) -> Result<(), Refusal> {
        let is_long = |word: &str| word.len() > WORD_MAX;
        if self.nests && text.split(|letter: char| letter.is_ascii_whitespace()).any(is_long) {
            let message = format!(
                "a word has more than {WORD_MAX} bytes without whitespace, which is too long for \
                 this model's tokenizer: break it into lines"
            );
            return Err(Refusal::of(param, message));
        }
        Ok(())
    }
}

/// Returns the error for a prompt and response that exceed the context.
#[must_use]
pub(super) fn overflow(prompt: usize, wanted: usize, room: usize) -> Refusal {
    let message = format!(
        "this model's context has {room} tokens; the prompt has {prompt} and {wanted} are requested for \
         the answer: shorten the messages, or give the model a larger context"
    );
    Refusal {
        status: 400,
        message,
        param: Some("messages".to_owned()),
        code: Some("context_length_exceeded"),
    }
}

/// Like [`overflow`], for the text in the field `param`.
#[must_use]
pub(super) fn overflow_of(
    param: &str,
    prompt: usize,
    wanted: Option<usize>,
    room: usize,
) -> Refusal {
    let wanted = wanted.unwrap_or(1);
    let message = format!(
        "this model's context has {room} tokens; {param} has {prompt} and {wanted} are requested for \
         the answer: shorten {param}, or give the model a larger context"
    );
    Refusal { message, param: Some(param.to_owned()), ..overflow(prompt, wanted, room) }
}

fn grammar(
    chat: &Chat,
    model: &LlamaModel,
    form: Form,
    tools: &Tools<'_>,
    work: &Work,
) -> Result<Option<Bound>, Refusal> {
    let mut rules = Rules::default();
    let format = chat.format.as_ref().filter(|_| !tools.are_forced());
    let answer = format.map(|format| {
        let answer = rules.schema(&format.schema, format.is_strict);
        answer.map_err(|error| Refusal::of(&format.place, error.to_string()))
    });
    let answer = answer.transpose()?;
    let calls = tools.calls(form, answer.is_some(), &mut rules, || work.check())?;
    let param = format.map_or("tools", |format| &format.place);
    let (root, trigger) = match (answer, calls) {
        (Some(answer), Some((calls, _))) => (format!("{answer} | {calls}"), None),
        (Some(answer), None) => (answer, None),
        (None, Some(calls)) => calls,
        (None, None) => return Ok(None),
    };
    let refused = || Refusal::of(param, "llama.cpp cannot enforce this schema: simplify it");
    let grammar = Grammar { text: rules.text(ROOT, &root), trigger };
    grammar.read(model).map(Some).ok_or_else(refused)
}
