//! Models that pool a text: embedding models turn texts into unit vectors, and rerankers rate the
//! relevance of documents (`rerank`), several texts per batch.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::adapter::Adapter;
use super::engine::{JOBS_MAX, Limits};
use super::pace::Pace;
use super::prompt::Sizes;
use super::request::Refusal;
use super::watch::{Client, Step, Watch};
use orrery_domain::json_object::whole_number;
use orrery_runtime as runtime;

/// Limits of one request: the number of texts, and their total number of tokens.
const INPUTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 300_000;

/// Texts to embed.
#[derive(Debug)]
pub(super) struct Job {
    /// No text is empty or longer than the context.
    pub inputs: Vec<Vec<LlamaToken>>,
    pub client: Weak<Client>,
    pub reply: oneshot::Sender<Result<Vec<Vec<f32>>, String>>,
}

/// How a model pools the vectors of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    /// By the pooling type in the model's file.
    OfFile,
    /// By the mean, because the file states no pooling type.
    Mean,
    /// Into outputs that rate the text.
    Rank,
}

/// The computation loop of an embedding model or a reranker.
#[derive(Debug)]
pub(super) struct Embedder<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    pace: Pace,
    watch: Arc<Watch>,
    sequences_max: usize,
    pooling: Pooling,
    jobs: Receiver<Job>,
    /// Requests in progress, which take turns to compute one batch each.
    turns: VecDeque<Turn>,
}

/// A request and its vectors so far.
#[derive(Debug)]
struct Turn {
    job: Job,
    vectors: Vec<Vec<f32>>,
}

impl<'m> Embedder<'m> {
    /// Creates a context for the model, and the sender for its jobs.
    ///
    /// # Errors
    /// Fails if llama.cpp cannot create the context.
    pub(super) fn new(
        model: &'m Arc<LlamaModel>,
        backend: &LlamaBackend,
        limits: Limits,
        pooling: Pooling,
        adapter: Option<&Adapter>,
        watch: &Arc<Watch>,
    ) -> Result<(Self, SyncSender<Job>), String> {
        // Attention is bidirectional, so each text must fit into one batch.
        let batch = limits.batch.max(limits.context);
        let pooling_type = match pooling {
            Pooling::OfFile | Pooling::Rank => LlamaPoolingType::Unspecified,
            Pooling::Mean => LlamaPoolingType::Mean,
        };
        let params = LlamaContextParams::default()
            .with_pooling_type(pooling_type)
            .with_n_ctx(NonZeroU32::new(batch))
            .with_n_batch(batch)
            .with_n_ubatch(batch)
            .with_n_seq_max(limits.parallel)
            .with_kv_unified(true)
            .with_embeddings(true)
            .with_n_threads(limits.threads)
            .with_n_threads_batch(limits.threads)
            .with_no_perf(true);
        let mut context = model.new_context(backend, params).map_err(|error| error.to_string())?;
        adapter.map_or(Ok(()), |adapter| adapter.apply(&mut context))?;
        let batch_max = usize::try_from(batch).unwrap_or(1);
        let sequences_max = usize::try_from(limits.parallel).unwrap_or(1);
        let (sender, jobs) = sync_channel(JOBS_MAX);
        let batch = LlamaBatch::new(batch_max, 1);
        let turns = VecDeque::new();
        let (pace, watch) = (Pace::new(batch_max), Arc::clone(watch));
        Ok((Self { context, batch, pace, watch, sequences_max, pooling, jobs, turns }, sender))
    }

    /// Computes until all senders are dropped.
    pub(super) fn run(&mut self) {
        loop {
            if self.turns.is_empty() {
                let Ok(job) = self.jobs.recv() else { return };
                self.turns.push_back(Turn { job, vectors: Vec::new() });
            }
            while self.turns.len() < JOBS_MAX
                && let Ok(job) = self.jobs.try_recv()
            {
                self.turns.push_back(Turn { job, vectors: Vec::new() });
            }
            if let Some(turn) = self.turns.pop_front() {
                self.go_on(turn);
            }
        }
    }

    /// Computes the next batch of a request and puts it back into the queue.
    fn go_on(&mut self, mut turn: Turn) {
        if turn.job.reply.is_closed() {
            return;
        }
        let rest = turn.job.inputs.get(turn.vectors.len()..).unwrap_or_default();
        let now = rest.get(..self.fitting(rest)).unwrap_or_default().to_vec();
        // Computing a text cannot be interrupted, regardless of its length.
        let work = self.watch.begin(Step::Vectors, &turn.job.client);
        let computed = self.compute(&now);
        drop(work);
        match computed {
            Ok(vectors) => turn.vectors.extend(vectors),
            Err(reason) => {
                let _unheard = turn.job.reply.send(Err(reason));
                return;
            }
        }
        if turn.vectors.len() < turn.job.inputs.len() {
            self.turns.push_back(turn);
        } else {
            // The receiver may have been dropped.
            let _unheard = turn.job.reply.send(Ok(turn.vectors));
        }
    }

    /// Returns how many of these texts fit into one batch, but at least one.
    fn fitting(&self, inputs: &[Vec<LlamaToken>]) -> usize {
        let mut tokens = 0;
        let fits = |input: &&Vec<LlamaToken>| {
            tokens += input.len();
            tokens <= self.pace.tokens()
        };
        inputs.iter().take(self.sequences_max).take_while(fits).count().max(1)
    }

    fn compute(&mut self, inputs: &[Vec<LlamaToken>]) -> Result<Vec<Vec<f32>>, String> {
        self.context.clear_kv_cache();
        self.batch.clear();
        for (id, input) in (0..).zip(inputs) {
            let added = self.batch.add_sequence(input, id, true);
            added.map_err(|error| error.to_string())?;
        }
        let begun = runtime::monotonic_now();
        self.context.decode(&mut self.batch).map_err(|error| error.to_string())?;
        self.pace.note(inputs.iter().map(Vec::len).sum(), begun.elapsed());
        let of_sequence = |id: i32| {
            let vector = self.context.embeddings_seq_ith(id).map_err(|error| error.to_string())?;
            Ok(if self.pooling == Pooling::Rank { vector.to_vec() } else { unit(vector) })
        };
        (0..).zip(inputs).map(|(id, _)| of_sequence(id)).collect()
    }
}

/// Returns the vector scaled to length one.
fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|part| f64::from(*part).powi(2)).sum::<f64>().sqrt();
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a vector of length one")]
    let part = |part: &f32| if length > 0.0 { (f64::from(*part) / length) as f32 } else { 0.0 };
    vector.iter().map(part).collect()
}

/// Parses a request. Returns its texts as tokens, and whether the vectors are requested in base64.
///
/// # Errors
/// The fault in the request.
pub(super) fn read(
    body: &[u8],
    model: &LlamaModel,
    sizes: Sizes,
    room: usize,
) -> Result<(Vec<Vec<LlamaToken>>, bool), Refusal> {
    let fields: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|error| Refusal::because(400, format!("the body is not JSON: {error}")))?;
    let wrong = || Refusal::of("input", "input must be a string, a list of strings, or tokens");
    let input = fields.get("input").ok_or_else(wrong)?;
    let texts = input.as_array().filter(|list| !list.first().is_some_and(Value::is_number));
    let inputs: Vec<&Value> = texts.map_or_else(|| vec![input], |texts| texts.iter().collect());
    if inputs.len() > INPUTS_MAX {
        return Err(Refusal::of("input", format!("input may have at most {INPUTS_MAX} texts")));
    }
    let width = u64::try_from(model.n_embd_out()).unwrap_or(0);
    if fields.get("dimensions").is_some_and(|wanted| !wanted.is_null() && *wanted != width) {
        let message = format!("this model's vectors have {width} dimensions; omit `dimensions`");
        return Err(Refusal::of("dimensions", message));
    }
    let is_base64 = match fields.get("encoding_format").filter(|format| !format.is_null()) {
        None => false,
        Some(format) if *format == "float" => false,
        Some(format) if *format == "base64" => true,
        Some(_) => {
            let message = "encoding_format must be float or base64";
            return Err(Refusal::of("encoding_format", message));
        }
    };
    let vocabulary = model.vocab();
    let tokens = |input: &Value| {
        let known = |id: &Value| {
            let id = whole_number::<i64>(id).ok_or_else(wrong)?;
            let token = i32::try_from(id).ok().filter(|id| (0..vocabulary.n_tokens()).contains(id));
            token.map(LlamaToken).ok_or_else(|| unknown(id, vocabulary.n_tokens()))
        };
        let tokens: Vec<LlamaToken> = if let Some(text) = input.as_str() {
            let least = sizes.least_tokens(text);
            if least > room {
                return Err(too_long(least, room));
            }
            sizes.check_words("input", text)?;
            vocabulary.tokenize(text.as_bytes(), true, false)
        } else {
            let ids = input.as_array().ok_or_else(wrong)?;
            ids.iter().map(known).collect::<Result<_, _>>()?
        };
        if tokens.is_empty() {
            return Err(Refusal::of("input", "a text in input is empty"));
        }
        if tokens.len() > room {
            return Err(too_long(tokens.len(), room));
        }
        Ok(tokens)
    };
    let inputs = inputs.into_iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
    if inputs.is_empty() {
        return Err(wrong());
    }
    if inputs.iter().map(Vec::len).sum::<usize>() > TOKENS_MAX {
        let message = format!("input may have at most {TOKENS_MAX} tokens in all");
        return Err(Refusal::of("input", message));
    }
    Ok((inputs, is_base64))
}

fn too_long(tokens: usize, room: usize) -> Refusal {
    let message = format!(
        "a text in input has {tokens} tokens or more, but this model's context has {room}: send \
         shorter texts, or give the model a larger context"
    );
    Refusal { code: Some("context_length_exceeded"), ..Refusal::of("input", message) }
}

fn unknown(id: i64, count: i32) -> Refusal {
    let message = format!(
        "input has the token {id}, which is not in this model's vocabulary of {count}: send the text, or \
         tokens of this model"
    );
    Refusal::of("input", message)
}

/// Builds the response to a request.
#[must_use]
pub(super) fn answer(name: &str, vectors: &[Vec<f32>], tokens: usize, is_base64: bool) -> Value {
    let shown = |vector: &Vec<f32>| {
        if is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|part| part.to_le_bytes()).collect();
            return STANDARD.encode(bytes).into();
        }
        json!(vector)
    };
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            json!({"object": "embedding", "index": index, "embedding": shown(vector)})
        })
        .collect();
    json!({
        "object": "list",
        "data": data,
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })
}
