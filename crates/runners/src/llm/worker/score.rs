//! Scoring: the probabilities of a question's option labels as the next token, for many questions
//! about one state.
//!
//! Each request has its own context, on a thread other than the thread that generates text. The
//! state is computed once, in batches of a fixed size. Each question is a suffix that is computed
//! in separate batches, so its result depends only on the state and the question, bit for bit.
//! Nothing is sampled or cached.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::adapter::Adapter;
use super::engine::Limits;
use super::prompt::{Sizes, overflow};
use super::request::Refusal;
use super::template::{ChatTemplate, SPLIT};
use super::tools::Tools;
use super::watch::{Watch, Work};

/// Maximum number of queued requests.
const JOBS_MAX: usize = 64;
/// Maximum number of questions per request, and of labels per question.
const QUESTIONS_MAX: usize = 256;
const LABELS_MAX: usize = 26;
/// Sequence ids: the state, and one for each of the two orders of a question's options.
const STATE: i32 = 0;
const ORDERS: [i32; 2] = [1, 2];
/// Tokens per step; a disconnected caller is noticed after each step. The number does not depend on
/// time, so that scores are reproducible.
const STEP: usize = 64;
/// The context size is rounded up to a multiple of this many tokens.
const CONTEXT_STEP: usize = 256;
/// Placeholder for the user's message while the template is split around it.
const MARK: &str = "orrery-state-and-question";

/// The tokens of each label, starting with `A`: all spellings with surrounding whitespace.
#[derive(Debug)]
pub(super) struct Labels {
    tokens: Vec<Vec<LlamaToken>>,
}

/// A parsed request, ready to be computed.
#[derive(Debug)]
pub(super) struct Job {
    /// The common prefix of all questions; not empty.
    prefix: Vec<LlamaToken>,
    questions: Vec<Suffix>,
    reply: oneshot::Sender<Result<Vec<Scores>, String>>,
}

/// A question in the form in which it follows the state.
#[derive(Debug)]
struct Suffix {
    /// The common prefix of both orders.
    shared: Vec<LlamaToken>,
    /// The rest of each order; neither is empty.
    orders: [Vec<LlamaToken>; 2],
    labels: usize,
}

/// The log-probabilities of a question's labels relative to each other, for each order.
type Scores = [Vec<f64>; 2];

/// A request from the service.
#[derive(Debug, Deserialize)]
struct Body {
    /// The instructions.
    system: String,
    state: String,
    questions: Vec<Asked>,
}

#[derive(Debug, Deserialize)]
struct Asked {
    /// The common prefix of both orders.
    question: String,
    /// The options in each of the two orders.
    orders: [String; 2],
    labels: usize,
}

/// The scoring thread.
#[derive(Debug)]
pub(super) struct Scorer<'m> {
    model: &'m LlamaModel,
    backend: &'m LlamaBackend,
    labels: Arc<Labels>,
    limits: Limits,
    adapter: Option<Adapter>,
    watch: &'m Watch,
    jobs: Receiver<Job>,
}

/// A token in a batch: its position, its sequences, and the order whose labels are read after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    token: LlamaToken,
    at: usize,
    sequences: &'static [i32],
    order: Option<usize>,
}

impl Labels {
    /// Finds the labels in a model's vocabulary.
    #[must_use]
    pub(super) fn of(model: &LlamaModel) -> Self {
        let vocabulary = model.vocab();
        let mut tokens = vec![Vec::new(); LABELS_MAX];
        for token in vocabulary.tokens() {
            let piece = vocabulary.token_to_piece(token, true, None);
            if let [letter @ b'A'..=b'Z'] = piece.trim_ascii()
                && let Some(spellings) = tokens.get_mut(usize::from(letter - b'A'))
            {
                spellings.push(token);
            }
        }
        Self { tokens }
    }

    /// Returns whether each of the first `count` labels has a token.
    #[must_use]
    fn has(&self, count: usize) -> bool {
        self.tokens.get(..count).is_some_and(|all| all.iter().all(|one| !one.is_empty()))
    }

    /// Returns the log-probabilities of the first `count` labels relative to each other, or `None`
    /// if the model computes values that are not finite.
    fn scores(&self, logits: &[f32], count: usize) -> Option<Vec<f64>> {
        let logit = |token: &LlamaToken| {
            let place = usize::try_from(token.0).ok()?;
            logits.get(place).copied().map(f64::from).filter(|logit| logit.is_finite())
        };
        let of_label = |spellings: &Vec<LlamaToken>| {
            let all: Option<Vec<f64>> = spellings.iter().map(logit).collect();
            all.map(|all| log_sum(&all))
        };
        let labels = self.tokens.get(..count)?;
        let scores: Vec<f64> = labels.iter().map(of_label).collect::<Option<_>>()?;
        let total = log_sum(&scores);
        Some(scores.into_iter().map(|score| score - total).collect())
    }
}

/// Computes the log-sum-exp of logarithms.
fn log_sum(logarithms: &[f64]) -> f64 {
    let most = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + logarithms.iter().map(|one| (one - most).exp()).sum::<f64>().ln()
}

impl<'m> Scorer<'m> {
    /// Creates the scorer and the sender for its jobs.
    #[must_use]
    pub(super) fn new(
        model: &'m LlamaModel,
        backend: &'m LlamaBackend,
        labels: Arc<Labels>,
        limits: Limits,
        adapter: Option<Adapter>,
        watch: &'m Watch,
    ) -> (Self, SyncSender<Job>) {
        let (sender, jobs) = sync_channel(JOBS_MAX);
        (Self { model, backend, labels, limits, adapter, watch, jobs }, sender)
    }

    /// Computes until all senders are dropped.
    pub(super) fn run(&self) {
        while let Ok(job) = self.jobs.recv() {
            let Job { prefix, questions, reply } = job;
            let scores = self.score(&prefix, &questions, &reply);
            // The receiver may have been dropped.
            let _unheard = reply.send(scores);
        }
    }

    fn score(
        &self,
        prefix: &[LlamaToken],
        questions: &[Suffix],
        reply: &oneshot::Sender<Result<Vec<Scores>, String>>,
    ) -> Result<Vec<Scores>, String> {
        // The two orders of a question can copy a recurrent state, but cannot share it.
        let can_share = !self.model.is_recurrent() && !self.model.is_hybrid();
        let own = questions.iter().map(|question| question.tokens(can_share)).max();
        let size = (prefix.len() + own.unwrap_or(0)).next_multiple_of(CONTEXT_STEP);
        let sequences = u32::try_from(ORDERS.len() + 1).unwrap_or(u32::MAX);
        let params = LlamaContextParams::default()
            .with_n_ctx(u32::try_from(size).ok().and_then(NonZeroU32::new))
            .with_n_batch(self.limits.batch)
            .with_n_ubatch(self.limits.batch)
            .with_n_seq_max(sequences)
            .with_kv_unified(true)
            .with_n_threads(self.limits.threads)
            .with_n_threads_batch(self.limits.threads)
            .with_no_perf(true);
        let context = self.watch.set_aside(|| self.model.new_context(self.backend, params));
        let mut context = context.map_err(|error| error.to_string())?;
        self.adapter.as_ref().map_or(Ok(()), |adapter| adapter.apply(&mut context))?;
        let batch_max = usize::try_from(self.limits.batch).unwrap_or(1).min(size);
        let batch = LlamaBatch::new(batch_max, sequences.cast_signed());
        let step = batch_max.min(STEP);
        let mut computing = Computing { context, batch, step, labels: &self.labels, reply };
        computing.read(prefix)?;
        questions
            .iter()
            .map(|question| computing.answer(prefix.len(), question, can_share))
            .collect()
    }
}

impl Suffix {
    /// Returns the number of tokens that the question takes in the context.
    fn tokens(&self, can_share: bool) -> usize {
        let times = if can_share { 1 } else { ORDERS.len() };
        self.shared.len() * times + self.orders.iter().map(Vec::len).sum::<usize>()
    }

    /// Returns the question's tokens after a prefix of `from` tokens. The sequence of the two
    /// orders does not depend on which order was given first, so that a question with reversed
    /// options is computed identically.
    fn entries(&self, from: usize, can_share: bool) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(self.tokens(can_share));
        let mut add = |tokens: &[LlamaToken], at: usize, sequences: &'static [i32]| {
            let placed = tokens.iter().zip(at..);
            entries.extend(placed.map(|(token, at)| Entry {
                token: *token,
                at,
                sequences,
                order: None,
            }));
        };
        let [given, reversed] = &self.orders;
        let order = if given <= reversed { [0, 1] } else { [1, 0] };
        if can_share {
            add(&self.shared, from, &ORDERS);
        }
        let mut ends = Vec::with_capacity(ORDERS.len());
        for (place, own) in order.into_iter().zip([&ORDERS[..1], &ORDERS[1..]]) {
            if !can_share {
                add(&self.shared, from, own);
            }
            let Some(tokens) = self.orders.get(place) else { continue };
            add(tokens, from + self.shared.len(), own);
            ends.push((place, own));
        }
        for (place, own) in ends {
            let last = entries.iter_mut().rfind(|entry| entry.sequences == own);
            if let Some(last) = last {
                last.order = Some(place);
            }
        }
        entries
    }
}

/// A request that is being computed.
struct Computing<'c, 'm> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    step: usize,
    labels: &'c Labels,
    reply: &'c oneshot::Sender<Result<Vec<Scores>, String>>,
}

impl Computing<'_, '_> {
    /// Computes the common prefix of all questions.
    fn read(&mut self, prefix: &[LlamaToken]) -> Result<(), String> {
        let entry = |(token, at): (&LlamaToken, usize)| Entry {
            token: *token,
            at,
            sequences: &[STATE],
            order: None,
        };
        let entries: Vec<Entry> = prefix.iter().zip(0..).map(entry).collect();
        entries.chunks(self.step).try_for_each(|part| self.decode(part))
    }

    /// Computes the scores of a question after a prefix of this many tokens.
    fn answer(
        &mut self,
        prefix: usize,
        question: &Suffix,
        can_share: bool,
    ) -> Result<Scores, String> {
        for sequence in ORDERS {
            let copied = self.context.copy_kv_cache_seq(STATE, sequence, None, None);
            copied.map_err(|error| error.to_string())?;
        }
        let mut scores = Scores::default();
        for part in question.entries(prefix, can_share).chunks(self.step) {
            self.decode(part)?;
            for (place, entry) in (0..).zip(part) {
                let Some(order) = entry.order.and_then(|order| scores.get_mut(order)) else {
                    continue;
                };
                let logits = self.context.get_logits_ith(place);
                let found = self.labels.scores(logits, question.labels);
                *order = found.ok_or("the model computed values that are not finite")?;
            }
        }
        for sequence in ORDERS {
            let removed = self.context.clear_kv_cache_seq(u32::try_from(sequence).ok(), None, None);
            removed.map_err(|error| error.to_string())?;
        }
        Ok(scores)
    }

    fn decode(&mut self, part: &[Entry]) -> Result<(), String> {
        if self.reply.is_closed() {
            return Err("the caller disconnected".to_owned());
        }
        self.batch.clear();
        for entry in part {
            let at = i32::try_from(entry.at).unwrap_or(i32::MAX);
            let added = self.batch.add(entry.token, at, entry.sequences, entry.order.is_some());
            added.map_err(|error| error.to_string())?;
        }
        self.context.decode(&mut self.batch).map_err(|error| error.to_string())
    }
}

/// The parts of the model needed to parse a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Texts<'t> {
    pub model: &'t LlamaModel,
    pub template: &'t ChatTemplate,
    pub sizes: Sizes,
    /// Size of the context, in tokens.
    pub room: usize,
}

/// The result of parsing a request.
#[derive(Debug)]
pub(super) enum Read {
    Job {
        job: Job,
        scores: oneshot::Receiver<Result<Vec<Scores>, String>>,
        /// Total number of tokens computed, with the state counted once.
        tokens: usize,
    },
    /// The vocabulary has no token for a label.
    NoLabels,
}

/// Parses a request.
///
/// # Errors
/// The fault in the request; `param` names the question.
pub(super) fn read(
    body: &[u8],
    texts: Texts<'_>,
    labels: &Labels,
    work: &Work,
) -> Result<Read, Refusal> {
    let body: Body = serde_json::from_slice(body)
        .map_err(|error| Refusal::because(400, format!("the body is not a request: {error}")))?;
    let is_known = |asked: &Asked| (1..=LABELS_MAX).contains(&asked.labels);
    if !(1..=QUESTIONS_MAX).contains(&body.questions.len()) || !body.questions.iter().all(is_known)
    {
        return Err(Refusal::of("questions", "too many questions or labels"));
    }
    if !body.questions.iter().all(|asked| labels.has(asked.labels)) {
        return Ok(Read::NoLabels);
    }
    let (head, tail) = around(texts.template, &body.system, work)?;
    let Texts { model, sizes, room, .. } = texts;
    let vocabulary = model.vocab();
    // Omit the BOS token if the template writes it itself.
    let bos = vocabulary.bos();
    let bos = if bos.0 >= 0 { vocabulary.token_to_piece(bos, true, None) } else { Vec::new() };
    let begins = !bos.is_empty() && head.as_bytes().starts_with(&bos);
    let of_first = |refusal: Refusal| Refusal { param: Some("questions[0]".to_owned()), ..refusal };
    let least = sizes.least_tokens(&body.state);
    if least >= room {
        return Err(of_first(overflow(least, 1, room)));
    }
    sizes.check_words("state", &body.state)?;
    let mut prefix = vocabulary.tokenize(head.as_bytes(), !begins, true);
    // Client input is tokenized as text: control tokens in it have no effect.
    prefix.extend(vocabulary.tokenize(body.state.as_bytes(), false, false));
    let end = vocabulary.tokenize(tail.as_bytes(), false, true);
    let can_share = !model.is_recurrent() && !model.is_hybrid();
    let mut tokens = prefix.len();
    let mut suffix = |(place, asked): (usize, &Asked)| {
        let param = format!("questions[{place}]");
        let own = |text: &str| {
            sizes.check_words(&param, text)?;
            Ok::<_, Refusal>(vocabulary.tokenize(text.as_bytes(), false, false))
        };
        let order = |text: &str| Ok::<_, Refusal>([own(text)?, end.clone()].concat());
        let [given, reversed] = &asked.orders;
        let suffix = Suffix {
            shared: own(&asked.question)?,
            orders: [order(given)?, order(reversed)?],
            labels: asked.labels,
        };
        if suffix.orders.iter().any(Vec::is_empty) {
            return Err(Refusal::of(&param, "a question is empty"));
        }
        let own = suffix.tokens(can_share);
        tokens += own;
        if prefix.len() + own > room {
            return Err(Refusal { param: Some(param), ..overflow(prefix.len() + own, 1, room) });
        }
        Ok(suffix)
    };
    let questions = body.questions.iter().enumerate().map(&mut suffix);
    let questions = questions.collect::<Result<_, Refusal>>()?;
    let (reply, scores) = oneshot::channel();
    Ok(Read::Job { job: Job { prefix, questions, reply }, scores, tokens })
}

/// Returns the text that the chat template writes before and after the user's message. If a
/// template has no system role, the instructions precede the message.
fn around(template: &ChatTemplate, system: &str, work: &Work) -> Result<(String, String), Refusal> {
    // Turn off thinking, because the model must answer with its first token.
    let values: Map<String, Value> =
        [("enable_thinking".to_owned(), false.into())].into_iter().collect();
    let render = |messages: Value| {
        let messages = messages.as_array().cloned().unwrap_or_default();
        let prompt = template.render(&messages, &Tools::none(), &values, work)?;
        Ok::<_, Refusal>(prompt.replace(SPLIT, ""))
    };
    let prompt = render(json!([
        {"role": "system", "content": system},
        {"role": "user", "content": MARK},
    ]));
    let prompt = match prompt {
        Ok(prompt) if prompt.contains(system) => prompt,
        Ok(_) | Err(_) => {
            render(json!([{"role": "user", "content": format!("{system}\n\n{MARK}")}]))?
        }
    };
    let around = prompt.split_once(MARK).filter(|(_, tail)| !tail.contains(MARK));
    let (head, tail) = around.ok_or_else(|| {
        Refusal::because(
            500,
            "the model's chat template does not show the user's message exactly once",
        )
    })?;
    Ok((head.to_owned(), tail.to_owned()))
}

/// Builds the response; `None` means that the labels have no tokens.
#[must_use]
pub(super) fn answer(scores: Option<&[Scores]>, tokens: usize) -> Value {
    json!({
        "scores": scores,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[i32]) -> Vec<LlamaToken> {
        ids.iter().map(|id| LlamaToken(*id)).collect()
    }

    fn suffix(given: &[i32], reversed: &[i32]) -> Suffix {
        Suffix { shared: tokens(&[1, 2]), orders: [tokens(given), tokens(reversed)], labels: 2 }
    }

    /// Returns the token, position, sequences and order of each entry.
    fn shown(entries: &[Entry]) -> Vec<(i32, usize, &[i32], Option<usize>)> {
        entries.iter().map(|one| (one.token.0, one.at, one.sequences, one.order)).collect()
    }

    #[test]
    fn score_entries_share_question_and_end_with_each_order() {
        let entries = suffix(&[5, 6], &[7]).entries(10, true);
        let both: &[i32] = &[1, 2];
        assert_eq!(
            shown(&entries),
            [
                (1, 10, both, None),
                (2, 11, both, None),
                (5, 12, &[1][..], None),
                (6, 13, &[1][..], Some(0)),
                (7, 12, &[2][..], Some(1)),
            ]
        );
        let apart = suffix(&[5], &[7]).entries(0, false);
        assert_eq!(apart.len(), 6);
        assert!(apart.iter().all(|entry| entry.sequences.len() == 1));
        assert_eq!(apart.iter().filter(|entry| entry.order.is_some()).count(), 2);
    }

    #[test]
    fn score_entries_of_reversed_options_differ_only_in_names() {
        let given = suffix(&[5, 6], &[7]).entries(3, true);
        let mut mirrored = suffix(&[7], &[5, 6]).entries(3, true);
        for entry in &mut mirrored {
            entry.order = entry.order.map(|order| 1 - order);
        }
        assert_eq!(given, mirrored);
    }

    #[test]
    fn score_labels_add_up_over_all_spellings() {
        let labels = Labels { tokens: vec![tokens(&[0, 2]), tokens(&[1])] };
        let third = (1.0_f32 / 3.0).ln();
        let scores = labels.scores(&[third, third, third, 9.0], 2).unwrap();
        assert!((scores[0].exp() - 2.0 / 3.0).abs() < 1e-6, "{scores:?}");
        assert!((scores.iter().map(|one| one.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(labels.scores(&[f32::NAN, 0.0, 0.0], 2).is_none());
        assert!(labels.has(2) && !labels.has(3));
    }
}
