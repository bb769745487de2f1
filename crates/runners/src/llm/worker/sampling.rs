//! Samples the next token with llama.cpp's samplers, in the same order as llama.cpp's own server,
//! and with the grammar that constrains the generation.

use std::time::Duration;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;

use super::request::Numbers;
use orrery_runtime as runtime;

/// Total time limit for the grammar of one generation; no other generation advances while a grammar
/// is evaluated.
const GRAMMAR_TIME_MAX: Duration = Duration::from_secs(20);
/// Number of latest tokens to which the penalties apply.
const PENALTY_WINDOW: i32 = 64;
/// The name of a grammar's first rule.
pub(super) const ROOT: &str = "root";

/// The sampling parameters of a request.
#[derive(Debug, Clone)]
pub(super) struct Sampling {
    /// The sampling temperature; 0 means that the most likely token is always chosen.
    pub temperature: f32,
    pub top_p: f32,
    /// The number of most likely tokens to sample from; 0 means all tokens.
    pub top_k: i32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repeat_penalty: f32,
    pub seed: u32,
    /// Token ids and the values added to their logits.
    pub bias: Vec<(i32, f32)>,
    pub grammar: Option<Bound>,
}

/// A grammar that constrains a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grammar {
    /// GBNF, with [`ROOT`] as its first rule.
    pub text: String,
    /// The trigger that activates the grammar; `None` means that the grammar is active from the
    /// beginning.
    pub trigger: Option<Trigger>,
}

/// A grammar parsed by llama.cpp.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    sampler: LlamaSampler,
    trigger: Option<Trigger>,
}

/// A trigger that activates a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// This text, at any position.
    Mark(&'static str),
    /// The beginning of the text, if it is an object whose first key is `name`.
    Named,
}

/// Searches the latest tokens for the trigger.
#[derive(Debug)]
struct Awaiting {
    trigger: Trigger,
    window: Vec<(LlamaToken, Vec<u8>)>,
}

impl Awaiting {
    /// Adds a token, and returns whether it completes the trigger, or `None` if the trigger can no
    /// longer occur.
    fn add(&mut self, token: LlamaToken, piece: &[u8]) -> Option<bool> {
        self.window.push((token, piece.to_vec()));
        match self.trigger {
            Trigger::Mark(mark) => {
                // Keep only tokens that may start the mark.
                let may_begin = |from: usize| {
                    let bytes = self.bytes_from(from);
                    bytes.starts_with(mark.as_bytes()) || mark.as_bytes().starts_with(&bytes)
                };
                let from = (0..self.window.len()).find(|from| may_begin(*from));
                self.window.drain(..from.unwrap_or(self.window.len()));
                Some(self.bytes_from(0).starts_with(mark.as_bytes()))
            }
            Trigger::Named => {
                const BEGINNING: &[u8] = br#"{"name""#;
                let mut text = self.bytes_from(0);
                text.retain(|byte| !byte.is_ascii_whitespace());
                if text.is_empty() {
                    self.window.clear();
                    return Some(false);
                }
                if text.starts_with(BEGINNING) {
                    return Some(true);
                }
                BEGINNING.starts_with(&text).then_some(false)
            }
        }
    }

    fn bytes_from(&self, from: usize) -> Vec<u8> {
        self.window.iter().skip(from).flat_map(|(_, piece)| piece.iter().copied()).collect()
    }
}

/// Samples the tokens of one generation.
#[derive(Debug)]
pub(super) struct Sampler {
    chain: LlamaSampler,
    grammar: Option<LlamaSampler>,
    /// Set until the grammar is active.
    awaiting: Option<Awaiting>,
    /// Time spent evaluating the grammar so far.
    grammar_time: Duration,
}

/// The condition that ends sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Halt {
    /// The grammar allows no further token.
    GrammarEnds,
    /// The grammar has used up [`GRAMMAR_TIME_MAX`].
    GrammarSlow,
}

/// The log-probability of a token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Likely {
    pub token: LlamaToken,
    /// The natural logarithm of the token's probability.
    pub logprob: f32,
}

impl Likely {
    /// Returns the logarithm as JSON, which has no infinity; OpenAI uses this value for tokens that
    /// are practically impossible.
    #[must_use]
    pub(super) fn shown(&self) -> f32 {
        self.logprob.max(-9999.0)
    }
}

impl Sampling {
    /// Creates the parameters with these numbers.
    #[must_use]
    pub(super) fn new(
        numbers: Numbers,
        seed: u32,
        bias: Vec<(i32, f32)>,
        grammar: Option<Bound>,
    ) -> Self {
        Self {
            temperature: numbers.temperature,
            top_p: numbers.top_p,
            top_k: numbers.top_k,
            min_p: numbers.min_p,
            presence_penalty: numbers.presence_penalty,
            frequency_penalty: numbers.frequency_penalty,
            repeat_penalty: numbers.repeat_penalty,
            seed,
            bias,
            grammar,
        }
    }
}

impl Grammar {
    /// Parses the grammar; returns `None` if llama.cpp rejects it.
    #[must_use]
    pub(super) fn read(&self, model: &LlamaModel) -> Option<Bound> {
        let sampler = LlamaSampler::grammar(model, &self.text, ROOT).ok()?;
        Some(Bound { sampler, trigger: self.trigger })
    }
}

impl Sampler {
    /// Creates the sampler for a request.
    pub(super) fn new(model: &LlamaModel, sampling: Sampling) -> Self {
        let vocabulary = model.n_vocab();
        let mut chain = Vec::new();
        if !sampling.bias.is_empty() {
            let bias = sampling.bias.iter();
            let bias: Vec<_> =
                bias.map(|(token, bias)| LlamaLogitBias::new(LlamaToken(*token), *bias)).collect();
            chain.push(LlamaSampler::logit_bias(vocabulary, &bias));
        }
        let Sampling { repeat_penalty, frequency_penalty, presence_penalty, .. } = sampling;
        let is_neutral = |value: f32, neutral: f32| (value - neutral).abs() < f32::EPSILON;
        if !(is_neutral(repeat_penalty, 1.0)
            && is_neutral(frequency_penalty, 0.0)
            && is_neutral(presence_penalty, 0.0))
        {
            chain.push(LlamaSampler::penalties(
                vocabulary,
                PENALTY_WINDOW,
                repeat_penalty,
                frequency_penalty,
                presence_penalty,
            ));
        }
        if sampling.temperature > 0.0 {
            if sampling.top_k > 0 {
                chain.push(LlamaSampler::top_k(sampling.top_k));
            }
            if sampling.top_p < 1.0 {
                chain.push(LlamaSampler::top_p(sampling.top_p, 1));
            }
            if sampling.min_p > 0.0 {
                chain.push(LlamaSampler::min_p(sampling.min_p, 1));
            }
            chain.push(LlamaSampler::temp(sampling.temperature));
            chain.push(LlamaSampler::dist(sampling.seed));
        } else {
            chain.push(LlamaSampler::greedy());
        }
        let trigger = sampling.grammar.as_ref().and_then(|grammar| grammar.trigger);
        Self {
            chain: LlamaSampler::chain(chain, true),
            grammar: sampling.grammar.map(|grammar| grammar.sampler),
            awaiting: trigger.map(|trigger| Awaiting { trigger, window: Vec::new() }),
            grammar_time: Duration::ZERO,
        }
    }

    /// Returns whether a grammar constrains the next token.
    #[must_use]
    pub(super) const fn is_bound(&self) -> bool {
        self.grammar.is_some()
    }

    /// Samples the token that follows output `index` of the last batch.
    ///
    /// # Errors
    /// [`Halt`]
    pub(super) fn sample(
        &mut self,
        context: &LlamaContext<'_>,
        index: i32,
    ) -> Result<LlamaToken, Halt> {
        let grammar = match &mut self.grammar {
            Some(grammar) if self.awaiting.is_none() => grammar,
            // `sample` also records the token in the chain.
            Some(_) | None => return Ok(self.chain.sample(context, index)),
        };
        let begun = runtime::monotonic_now();
        let mut candidates = context.token_data_array_ith(index);
        candidates.apply_sampler(&mut self.chain);
        let mut chosen = candidates.selected_token();
        // Check the chosen token first; the grammar filters all tokens only if the chosen token
        // does not match.
        if !chosen.is_some_and(|token| allows(grammar, token)) {
            let mut candidates = context.token_data_array_ith(index);
            candidates.apply_sampler(grammar);
            if !candidates.data.iter().any(|candidate| candidate.logit().is_finite()) {
                return Err(Halt::GrammarEnds);
            }
            candidates.apply_sampler(&mut self.chain);
            // A bias may ban every token that the grammar allows.
            chosen = candidates.selected_token().filter(|token| allows(grammar, *token));
        }
        let token = chosen.ok_or(Halt::GrammarEnds)?;
        grammar.try_accept(token).map_err(|_broken| Halt::GrammarEnds)?;
        self.chain.try_accept(token).map_err(|_broken| Halt::GrammarEnds)?;
        self.grammar_time += begun.elapsed();
        if self.grammar_time > GRAMMAR_TIME_MAX {
            return Err(Halt::GrammarSlow);
        }
        Ok(token)
    }
}

impl Sampler {
    /// Records a generated token while a grammar awaits its trigger. A mark that starts inside a
    /// token does not activate the grammar, but calls are still parsed when the text is complete.
    pub(super) fn note(&mut self, token: LlamaToken, piece: &[u8]) {
        let Some(awaiting) = &mut self.awaiting else { return };
        let has_come = awaiting.add(token, piece);
        if has_come == Some(false) {
            return;
        }
        let window = self.awaiting.take().map(|awaiting| awaiting.window).unwrap_or_default();
        let holds = has_come == Some(true)
            && self.grammar.as_mut().is_some_and(|grammar| {
                let mut tokens = window.iter().map(|(token, _)| *token);
                tokens.all(|token| allows(grammar, token) && grammar.try_accept(token).is_ok())
            });
        if !holds {
            self.grammar = None;
        }
    }
}

fn allows(grammar: &mut LlamaSampler, token: LlamaToken) -> bool {
    let mut one = LlamaTokenDataArray::new(vec![LlamaTokenData::new(token, 1.0, 0.0)], false);
    one.apply_sampler(grammar);
    one.data.first().is_some_and(|candidate| candidate.logit().is_finite())
}

/// Returns the log-probabilities of a token and of the `most` likeliest tokens, before sampling.
pub(super) fn likelihoods(
    context: &LlamaContext<'_>,
    index: i32,
    token: LlamaToken,
    most: usize,
) -> (Likely, Vec<Likely>) {
    let logits = context.get_logits_ith(index);
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the logarithm of at most the vocabulary's size"
    )]
    let total = sum.ln() as f32 + highest;
    let likely = |token: LlamaToken| {
        let logit = usize::try_from(token.0).ok().and_then(|place| logits.get(place));
        Likely { token, logprob: logit.map_or(f32::NEG_INFINITY, |logit| logit - total) }
    };
    let mut order: Vec<(i32, f32)> = (0_i32..).zip(logits.iter().copied()).collect();
    let most = most.min(order.len());
    if most > 0 && most < order.len() {
        order.select_nth_unstable_by(most, |a, b| b.1.total_cmp(&a.1));
    }
    order.truncate(most);
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let top = order.into_iter().map(|(id, _)| likely(LlamaToken(id))).collect();
    (likely(token), top)
}
