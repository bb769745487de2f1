//! The generation loop: all active generations share each batch, and new requests join at the next
//! batch. Each batch takes one token from every active generation, then fills the remaining space
//! with prompt tokens of new requests, so that a long prompt does not block other generations.
//!
//! The loop never waits for a reader: a generation pauses while its reader is behind, and is
//! dropped before the next batch if its reader has disconnected. When the context is full, the most
//! recently admitted generation is suspended and its tokens are recomputed later.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::adapter::Adapter;
use super::pace::Pace;
use super::sampling::{Halt, Likely, Sampler, Sampling, likelihoods};
use super::slots::Slots;
use super::text::{Taken, Text};
use super::watch::{Client, Step, Watch};
use orrery_runtime as runtime;

/// Maximum number of queued requests.
pub(super) const JOBS_MAX: usize = 1024;
/// Maximum number of unread parts of a response.
pub(super) const PARTS_MAX: usize = 64;
/// The error of a generation whose grammar exceeds its time limit.
const GRAMMAR_SLOW: &str =
    "the grammar of the schema takes too long for each token: simplify its patterns";
/// Sleep time while every reader is behind.
const PAUSE: Duration = Duration::from_millis(2);

/// The sizes of the context and of its batches, and the number of threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Tokens shared by all generations.
    pub context: u32,
    pub threads: i32,
    pub parallel: u32,
    pub batch: u32,
}

/// A parsed request, ready to be computed.
#[derive(Debug)]
pub(super) struct Job {
    /// The prompt, which is not empty and is shorter than the context.
    pub prompt: Vec<LlamaToken>,
    pub sampling: Sampling,
    pub max_tokens: usize,
    pub stops: Vec<String>,
    /// Control tokens whose text becomes part of the generated text.
    pub shown: Arc<[LlamaToken]>,
    /// The number of most likely tokens to return at each position.
    pub logprobs: Option<usize>,
    pub client: Weak<Client>,
    pub reply: Sender<Event>,
}

/// An event of a job.
#[derive(Debug)]
pub(super) enum Event {
    Part(Part),
    End(End),
    /// The job failed.
    Failed(String),
}

/// A piece of text.
#[derive(Debug)]
pub(super) struct Part {
    pub text: String,
    pub logprobs: Option<Logprobs>,
}

/// The log-probabilities of a token and its alternatives.
#[derive(Debug)]
pub(super) struct Logprobs {
    pub chosen: Likely,
    pub top: Vec<Likely>,
}

/// The end of a generation, with its token usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub finish: Finish,
    pub prompt_tokens: usize,
    /// The number of prompt tokens that were cached in the context.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
}

/// The finish reason of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    /// The model or a stop string ended the text.
    Stop,
    /// The text reached its token limit.
    Length,
}

/// An active generation.
#[derive(Debug)]
pub(super) struct Answer {
    /// The prompt and the generated tokens. All tokens but the last are computed or in the current
    /// batch.
    pub tokens: Vec<LlamaToken>,
    /// Number of prompt tokens that were cached at the start.
    pub cached_tokens: usize,
    /// Position in the order of admission.
    pub admitted: u64,
    prompt_tokens: usize,
    written: usize,
    max_tokens: usize,
    sampler: Sampler,
    text: Text,
    shown: Arc<[LlamaToken]>,
    logprobs: Option<usize>,
    client: Weak<Client>,
    out: Outbox,
}

/// Events waiting for a slow reader.
#[derive(Debug)]
struct Outbox {
    reply: Sender<Event>,
    waiting: VecDeque<Event>,
}

impl Outbox {
    fn send(&mut self, event: Event) {
        self.waiting.push_back(event);
        self.flush();
    }

    /// Sends as much as the reader accepts. Returns true if nothing is left to send or the reader
    /// has disconnected.
    fn flush(&mut self) -> bool {
        while let Some(event) = self.waiting.pop_front() {
            match self.reply.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.waiting.push_front(event);
                    return false;
                }
                Err(TrySendError::Closed(_)) => {
                    self.waiting.clear();
                    return true;
                }
            }
        }
        true
    }
}

impl Answer {
    fn of(model: &LlamaModel, job: Job) -> Box<Self> {
        Box::new(Self {
            prompt_tokens: job.prompt.len(),
            tokens: job.prompt,
            cached_tokens: 0,
            admitted: 0,
            written: 0,
            max_tokens: job.max_tokens.max(1),
            sampler: Sampler::new(model, job.sampling),
            text: Text::new(job.stops),
            shown: job.shown,
            logprobs: job.logprobs,
            client: job.client,
            out: Outbox { reply: job.reply, waiting: VecDeque::new() },
        })
    }
}

/// The generation loop of one model.
#[derive(Debug)]
pub(super) struct Engine<'m> {
    model: &'m LlamaModel,
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    pace: Pace,
    watch: Arc<Watch>,
    room: usize,
    slots: Slots,
    jobs: Receiver<Job>,
    waiting: VecDeque<Box<Answer>>,
    /// Completed generations with slow readers.
    leaving: Vec<Outbox>,
}

impl<'m> Engine<'m> {
    /// Creates a context for the model, and the sender for its jobs.
    ///
    /// # Errors
    /// Fails if llama.cpp cannot create the context.
    pub(super) fn new(
        model: &'m Arc<LlamaModel>,
        backend: &LlamaBackend,
        limits: Limits,
        adapter: Option<&Adapter>,
        watch: &Arc<Watch>,
    ) -> Result<(Self, SyncSender<Job>), String> {
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(limits.context))
            .with_n_batch(limits.batch)
            .with_n_ubatch(limits.batch)
            .with_n_seq_max(limits.parallel)
            .with_kv_unified(true)
            .with_n_threads(limits.threads)
            .with_n_threads_batch(limits.threads)
            .with_no_perf(true);
        let mut context = model.new_context(backend, params).map_err(|error| error.to_string())?;
        adapter.map_or(Ok(()), |adapter| adapter.apply(&mut context))?;
        let room = usize::try_from(limits.context.min(context.n_ctx())).unwrap_or(1);
        let batch_max = usize::try_from(limits.batch).unwrap_or(1);
        let can_cut = !model.is_recurrent() && !model.is_hybrid();
        let (sender, jobs) = sync_channel(JOBS_MAX);
        let engine = Self {
            model,
            context,
            batch: LlamaBatch::new(batch_max, 1),
            pace: Pace::new(batch_max),
            watch: Arc::clone(watch),
            room,
            slots: Slots::new(limits.parallel, room, can_cut),
            jobs,
            waiting: VecDeque::new(),
            leaving: Vec::new(),
        };
        Ok((engine, sender))
    }

    /// Computes until all senders are dropped.
    pub(super) fn run(&mut self) {
        while self.receive() {
            self.let_go();
            self.admit();
            let plan = self.plan();
            if plan.is_empty() {
                continue;
            }
            let begun = runtime::monotonic_now();
            match self.context.decode(&mut self.batch) {
                Ok(()) => {
                    self.pace.note(plan.iter().map(|share| share.tokens).sum(), begun.elapsed());
                    self.take(&plan);
                }
                Err(DecodeError::NoKvCacheSlot) if self.give_way() => {}
                Err(error) => self.fail(&error.to_string()),
            }
        }
    }

    /// Receives new jobs; blocks if there is nothing to compute. Returns false once all senders are
    /// dropped.
    fn receive(&mut self) -> bool {
        let can_compute =
            self.slots.all.iter().any(|slot| {
                slot.answer.as_ref().is_some_and(|answer| answer.out.waiting.is_empty())
            });
        let is_idle = !self.slots.is_active() && self.waiting.is_empty() && self.leaving.is_empty();
        if is_idle {
            match self.jobs.recv() {
                Ok(job) => self.waiting.push_back(Answer::of(self.model, job)),
                Err(_closed) => return false,
            }
        } else if !can_compute {
            match self.jobs.recv_timeout(PAUSE) {
                Ok(job) => self.waiting.push_back(Answer::of(self.model, job)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while self.waiting.len() < JOBS_MAX
            && let Ok(job) = self.jobs.try_recv()
        {
            self.waiting.push_back(Answer::of(self.model, job));
        }
        true
    }

    /// Flushes outboxes, and drops generations whose readers have disconnected.
    fn let_go(&mut self) {
        self.waiting.retain(|answer| !answer.out.reply.is_closed());
        self.leaving.retain_mut(|out| !out.flush());
        for index in 0..self.slots.all.len() {
            let Some(answer) = self.slots.all.get_mut(index).and_then(|slot| slot.answer.as_mut())
            else {
                continue;
            };
            answer.out.flush();
            if answer.out.reply.is_closed() {
                drop(self.slots.release(index));
            }
        }
    }

    fn admit(&mut self) {
        while let Some(answer) = self.waiting.pop_front() {
            if let Err(answer) = self.slots.admit(&mut self.context, answer) {
                self.waiting.push_front(answer);
                return;
            }
        }
    }

    /// Fills the batch and returns the share of each sequence.
    fn plan(&mut self) -> Vec<Share> {
        loop {
            let plan = self.fill();
            let tokens = plan.iter().map(|share| share.tokens).sum();
            if self.slots.make_room(&mut self.context, tokens) || !self.give_way() {
                return plan;
            }
        }
    }

    fn fill(&mut self) -> Vec<Share> {
        self.batch.clear();
        let mut order: Vec<(bool, u64, usize)> = Vec::new();
        for (index, slot) in self.slots.all.iter().enumerate() {
            let Some(answer) = &slot.answer else { continue };
            if answer.out.waiting.is_empty() {
                let is_prompt = answer.tokens.len() > slot.cached.len() + 1;
                order.push((is_prompt, answer.admitted, index));
            }
        }
        order.sort_unstable();
        let mut plan = Vec::new();
        let mut used = 0;
        // Every active generation gets its token, even if that exceeds the pace.
        let most = self.pace.tokens().max(order.len());
        for (_, _, index) in order {
            let Some(slot) = self.slots.all.get(index) else { continue };
            let Some(answer) = &slot.answer else { continue };
            let from = slot.cached.len();
            let rest = answer.tokens.get(from..).unwrap_or_default();
            let tokens = rest.len().min(most - used);
            let is_whole = tokens == rest.len();
            let mut output = None;
            for (offset, token) in rest.iter().take(tokens).enumerate() {
                let is_last = is_whole && offset + 1 == tokens;
                let at = i32::try_from(from + offset).unwrap_or(i32::MAX);
                if is_last {
                    output = Some(self.batch.n_tokens());
                }
                if self.batch.add(*token, at, &[slot.id], is_last).is_err() {
                    // Never happens: the batch has room for all counted tokens.
                    break;
                }
            }
            if tokens > 0 {
                plan.push(Share { index, tokens, output });
            }
            used += tokens;
        }
        plan
    }

    /// Frees space when the context is full. Returns whether something was evicted.
    fn give_way(&mut self) -> bool {
        if self.slots.forget_oldest(&mut self.context) {
            return true;
        }
        let Some(answer) = self.slots.take_youngest(&mut self.context) else { return false };
        self.waiting.push_front(answer);
        true
    }

    /// Samples the next token of each sequence from the computed batch.
    fn take(&mut self, plan: &[Share]) {
        for share in plan {
            let Some(slot) = self.slots.all.get_mut(share.index) else { continue };
            let Some(answer) = &mut slot.answer else { continue };
            let from = slot.cached.len();
            let computed = answer.tokens.get(from..from + share.tokens).unwrap_or_default();
            slot.cached.extend_from_slice(computed);
            let Some(output) = share.output else { continue };
            let end = answer.write(self.model, &self.context, output, self.room, &self.watch);
            if let Some(end) = end
                && let Some(answer) = self.slots.release(share.index)
            {
                self.leave(answer, end);
            }
        }
    }

    fn leave(&mut self, answer: Box<Answer>, end: Result<Finish, &'static str>) {
        let event = match end {
            Ok(finish) => Event::End(End {
                finish,
                prompt_tokens: answer.prompt_tokens,
                cached_tokens: answer.cached_tokens.min(answer.prompt_tokens),
                completion_tokens: answer.written,
            }),
            Err(reason) => Event::Failed(reason.to_owned()),
        };
        let mut out = answer.out;
        out.send(event);
        if !out.waiting.is_empty() {
            self.leaving.push(out);
        }
    }

    /// Fails every generation in the batch, because the state of the context is unknown.
    fn fail(&mut self, reason: &str) {
        tracing::error!(%reason, "batch failed");
        for index in 0..self.slots.all.len() {
            if let Some(mut answer) = self.slots.release(index) {
                answer.out.send(Event::Failed(reason.to_owned()));
                if !answer.out.waiting.is_empty() {
                    self.leaving.push(answer.out);
                }
            }
        }
        self.slots.clear(&mut self.context);
    }
}

/// A sequence's share of a batch.
#[derive(Debug, Clone, Copy)]
struct Share {
    index: usize,
    tokens: usize,
    /// The batch position whose output is sampled; `None` if the prompt continues in the next
    /// batch.
    output: Option<i32>,
}

impl Answer {
    /// Appends the next token. If the generation ends, returns how it ended: finished, or failed
    /// with a reason.
    fn write(
        &mut self,
        model: &LlamaModel,
        context: &LlamaContext<'_>,
        output: i32,
        room: usize,
        watch: &Arc<Watch>,
    ) -> Option<Result<Finish, &'static str>> {
        let work = self.sampler.is_bound().then(|| watch.begin(Step::Token, &self.client));
        let sampled = self.sampler.sample(context, output);
        drop(work);
        let token = match sampled {
            Ok(token) => token,
            Err(Halt::GrammarEnds) => {
                self.finish_text();
                return Some(Ok(Finish::Stop));
            }
            Err(Halt::GrammarSlow) => return Some(Err(GRAMMAR_SLOW)),
        };
        self.written += 1;
        let vocabulary = model.vocab();
        if vocabulary.is_eog(token) {
            self.finish_text();
            return Some(Ok(Finish::Stop));
        }
        let logprobs = self.logprobs.map(|most| {
            let (chosen, top) = likelihoods(context, output, token, most);
            Logprobs { chosen, top }
        });
        let is_shown = self.shown.contains(&token);
        let piece = vocabulary.token_to_piece(token, is_shown, None);
        self.sampler.note(token, &piece);
        match self.text.push(&piece) {
            Taken::Stopped(text) => {
                self.say(text, logprobs);
                return Some(Ok(Finish::Stop));
            }
            Taken::Text(text) => self.say(text, logprobs),
        }
        self.tokens.push(token);
        if self.written >= self.max_tokens || self.tokens.len() >= room {
            self.finish_text();
            return Some(Ok(Finish::Length));
        }
        None
    }

    fn say(&mut self, text: String, logprobs: Option<Logprobs>) {
        if !text.is_empty() || logprobs.is_some() {
            self.out.send(Event::Part(Part { text, logprobs }));
        }
    }

    fn finish_text(&mut self) {
        let rest = self.text.rest();
        self.say(rest, None);
    }
}
