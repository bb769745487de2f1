//! Serves OpenAI's API on a socket over HTTP/2, with a separate stream for each response. A client
//! that drops a stream cancels the generation.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Frame as BodyFrame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::{oneshot, watch};

use super::answer::{Choice, Frame, Shape, Written};
use super::boot::State;
use super::completions::Completions;
use super::embeddings::Pooling;
use super::engine::{End, Event, Job, Limits};
use super::prompt::{Prepared, Sizes, prepare};
use super::request::Refusal;
use super::score::{self, Labels, Texts};
use super::template::ChatTemplate;
use super::watch::{Client, Step, Watch};
use super::{COUNT, READY, SCORE, embeddings, request, rerank};
use orrery_domain::chat::Operation;
use orrery_domain::ids::ExecutionId;
use orrery_runtime::{self as runtime, Clock, Tasks};

/// Maximum size of a request in bytes: the service's own limit plus the fields that it adds.
const REQUEST_MAX: usize = 65 * 1024 * 1024;
/// Maximum number of concurrent requests.
const STREAMS_MAX: u32 = 4096;
/// Send buffer size of a response, in bytes.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum number of unsent chunks of a stream.
const CHUNKS_MAX: usize = 16;

/// A loaded model.
#[derive(Debug)]
pub(super) struct Loaded {
    name: String,
    model: Arc<LlamaModel>,
    room: usize,
    sizes: Sizes,
    clock: Clock,
    tasks: Tasks,
    watch: Arc<Watch>,
    work: Work,
}

/// The model's task: generating text, computing embeddings or rating documents.
#[derive(Debug)]
enum Work {
    Chat(Box<Chat>),
    Embeddings { jobs: SyncSender<embeddings::Job> },
    Rerank { jobs: SyncSender<embeddings::Job> },
}

/// The state of a generating model.
#[derive(Debug)]
pub(super) struct Chat {
    pub jobs: SyncSender<Job>,
    pub template: ChatTemplate,
    pub scores: SyncSender<score::Job>,
    pub labels: Arc<Labels>,
}

impl Loaded {
    /// Creates a model that generates text.
    #[must_use]
    pub(super) fn chat(
        name: String,
        model: Arc<LlamaModel>,
        limits: Limits,
        chat: Chat,
        watch: &Arc<Watch>,
    ) -> Self {
        Self::new(name, model, limits, Work::Chat(Box::new(chat)), watch)
    }

    /// Creates an embedding model or a reranker.
    #[must_use]
    pub(super) fn pooled(
        name: String,
        model: Arc<LlamaModel>,
        pooling: Pooling,
        jobs: SyncSender<embeddings::Job>,
        limits: Limits,
        watch: &Arc<Watch>,
    ) -> Self {
        let work = match pooling {
            Pooling::Rank => Work::Rerank { jobs },
            Pooling::OfFile | Pooling::Mean => Work::Embeddings { jobs },
        };
        Self::new(name, model, limits, work, watch)
    }

    fn new(
        name: String,
        model: Arc<LlamaModel>,
        limits: Limits,
        work: Work,
        watch: &Arc<Watch>,
    ) -> Self {
        let room = usize::try_from(limits.context).unwrap_or(1);
        let sizes = Sizes::of(&model);
        let (clock, tasks, watch) = (Clock::system(), Tasks::new(), Arc::clone(watch));
        Self { name, model, room, sizes, clock, tasks, watch, work }
    }

    /// Returns a fault that does not prevent the model from responding.
    fn warning(&self) -> Option<String> {
        match &self.work {
            Work::Chat(chat) => chat.template.warning.clone(),
            Work::Embeddings { .. } | Work::Rerank { .. } => None,
        }
    }

    fn chats(&self) -> Result<&Chat, Refusal> {
        match &self.work {
            Work::Chat(chat) => Ok(chat),
            Work::Embeddings { .. } | Work::Rerank { .. } => {
                Err(Refusal::because(500, "this model does not support chat"))
            }
        }
    }
}

/// The answer to a request.
pub(crate) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Serves until the peer closes the connection.
///
/// # Errors
/// Fails if the connection breaks.
pub(super) async fn serve(
    socket: UnixStream,
    state: watch::Receiver<State>,
) -> std::io::Result<()> {
    listen(socket, move |request| answer(request, state.clone())).await
}

/// Answers requests until the peer closes the connection.
///
/// # Errors
/// Fails if the connection breaks.
pub(crate) async fn listen<F: Future<Output = Answer> + Send + 'static>(
    socket: UnixStream,
    answer: impl Fn(Request<Incoming>) -> F,
) -> std::io::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.max_concurrent_streams(STREAMS_MAX).max_send_buf_size(SEND_BUFFER);
    let served = server.serve_connection(TokioIo::new(socket), service).await;
    served.map_err(std::io::Error::other)
}

async fn answer(request: Request<Incoming>, mut state: watch::Receiver<State>) -> Answer {
    let loaded = match state.wait_for(Option::is_some).await {
        Ok(loaded) => loaded.clone(),
        Err(_ended) => None,
    };
    let loaded = match loaded {
        Some(Ok(loaded)) => loaded,
        Some(Err(reason)) => return plain(StatusCode::SERVICE_UNAVAILABLE, reason),
        None => return plain(StatusCode::SERVICE_UNAVAILABLE, "its process is ending".to_owned()),
    };
    let path = request.uri().path();
    if path == READY {
        return plain(StatusCode::OK, loaded.warning().unwrap_or_default());
    }
    let is_score = path == SCORE;
    let is_count = path == COUNT;
    let is_text = path == Operation::Completions.path();
    let is_rerank = path == Operation::Rerank.path();
    let is_chat = is_score || is_count || is_text || path == Operation::Chat.path();
    let is_known = is_chat || is_rerank || path == Operation::Embeddings.path();
    if request.method() != Method::POST || !is_known {
        return refused(&Refusal::because(404, "no such route"));
    }
    let body = match Limited::new(request.into_body(), REQUEST_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_cut) => return refused(&Refusal::because(413, "the request is too large")),
    };
    // The client is dropped together with this future when the service drops the request.
    let client = Client::new();
    let answer = async {
        match &loaded.work {
            Work::Chat(_) if is_score => score(Arc::clone(&loaded), body, &client).await,
            Work::Chat(_) if is_count => count(Arc::clone(&loaded), body, &client).await,
            Work::Chat(_) if is_text => complete(Arc::clone(&loaded), body, &client).await,
            Work::Chat(_) if is_chat => chat(Arc::clone(&loaded), body, &client).await,
            Work::Embeddings { jobs } if !is_chat && !is_rerank => {
                embed(Arc::clone(&loaded), body, jobs.clone(), &client).await
            }
            Work::Rerank { jobs } if is_rerank => {
                rate(Arc::clone(&loaded), body, jobs.clone(), &client).await
            }
            Work::Chat(_) => Err(Refusal::of("model", "this model generates text only")),
            Work::Embeddings { .. } => {
                Err(Refusal::of("model", "this model only produces embeddings"))
            }
            Work::Rerank { .. } => Err(Refusal::of("model", "this model only rates documents")),
        }
    };
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        refusal = client.refused() => Err(refusal),
    };
    answer.unwrap_or_else(|refusal| refused(&refusal))
}

async fn chat(loaded: Arc<Loaded>, body: Bytes, client: &Arc<Client>) -> Result<Answer, Refusal> {
    let reader = Arc::clone(&loaded);
    let asked = Arc::downgrade(client);
    // Tokenizing a long prompt takes a while, so it runs on a blocking thread.
    let read = tokio::task::spawn_blocking(move || {
        let work = reader.watch.begin(Step::Reading, &asked);
        work.check()?;
        let chat = request::Chat::read(&body)?;
        let Chat { jobs, template, .. } = reader.chats()?;
        let prepared = prepare(&chat, &reader.model, template, reader.sizes, reader.room, &work)?;
        let Prepared { jobs: prepared, reading } = prepared;
        let mut choices = Vec::with_capacity(prepared.len());
        for (index, (job, events)) in (0..).zip(prepared) {
            jobs.try_send(job).map_err(|error| busy(&error))?;
            choices.push((Choice::new(index, reading, !chat.is_stream), events));
        }
        Ok((chat, choices))
    });
    let (chat, choices) = read.await.map_err(|_panic| panicked())??;
    let frame = Frame {
        id: format!("chatcmpl-{}", runtime::new_id::<ExecutionId>()),
        created: loaded.clock.now().unix_seconds(),
        model: loaded.name.clone(),
        shape: Shape::Chat,
        warnings: chat.warnings,
    };
    let wants_usage = chat.is_stream.then_some(chat.wants_usage);
    written(loaded, frame, choices, wants_usage, client).await
}

/// Continues texts.
async fn complete(
    loaded: Arc<Loaded>,
    body: Bytes,
    client: &Arc<Client>,
) -> Result<Answer, Refusal> {
    let reader = Arc::clone(&loaded);
    let asked = Arc::downgrade(client);
    // Tokenizing a long prompt takes a while.
    let read = tokio::task::spawn_blocking(move || {
        let work = reader.watch.begin(Step::Reading, &asked);
        work.check()?;
        let request = Completions::read(&body)?;
        let jobs = &reader.chats()?.jobs;
        let mut choices = Vec::new();
        for (job, events, choice) in
            request.prepare(&reader.model, reader.sizes, reader.room, &work)?
        {
            jobs.try_send(job).map_err(|error| busy(&error))?;
            choices.push((choice, events));
        }
        Ok((request, choices))
    });
    let (request, choices) = read.await.map_err(|_panic| panicked())??;
    let frame = Frame {
        id: format!("cmpl-{}", runtime::new_id::<ExecutionId>()),
        created: loaded.clock.now().unix_seconds(),
        model: loaded.name.clone(),
        shape: Shape::Text { answers: request.answers },
        warnings: Vec::new(),
    };
    let wants_usage = request.is_stream.then_some(request.wants_usage);
    written(loaded, frame, choices, wants_usage, client).await
}

/// Returns the response of these choices: whole, or as a stream, which may end with its usage.
async fn written<C: Written + Send + 'static>(
    loaded: Arc<Loaded>,
    frame: Frame,
    choices: Vec<(C, Receiver<Event>)>,
    wants_usage: Option<bool>,
    client: &Arc<Client>,
) -> Result<Answer, Refusal> {
    if let Some(wants_usage) = wants_usage {
        let (chunks, body) = mpsc::channel(CHUNKS_MAX);
        let tasks = loaded.tasks.clone();
        let streamed = Streamed { frame, choices, wants_usage };
        tasks.spawn(stream(loaded, streamed, chunks, Arc::clone(client)));
        let answer = Response::builder().header(CONTENT_TYPE, "text/event-stream");
        let body = BoxBody::new(Chunks::of(body));
        return answer.body(body).map_err(|_never| panicked());
    }
    let answers = choices.into_iter();
    let answers = answers.map(|(choice, events)| whole_answer(&loaded, &frame, choice, events));
    let answers = futures_util::future::try_join_all(answers).await?;
    let (choices, ends): (Vec<Value>, Vec<End>) = answers.into_iter().unzip();
    Ok(json(StatusCode::OK, &frame.completion(choices, &ends)))
}

/// Collects one whole response.
async fn whole_answer<C: Written>(
    loaded: &Loaded,
    frame: &Frame,
    mut choice: C,
    mut events: Receiver<Event>,
) -> Result<(Value, End), Refusal> {
    let end = loop {
        match events.recv().await {
            Some(Event::Part(part)) => {
                let _kept = choice.part(&loaded.model, frame, part);
            }
            Some(Event::End(end)) => break end,
            Some(Event::Failed(reason)) => return Err(failed(&reason)),
            None => return Err(failed("the model's process is ending")),
        }
    };
    Ok((choice.whole(frame, &end), end))
}

/// The choices of a streamed response.
struct Streamed<C> {
    frame: Frame,
    choices: Vec<(C, Receiver<Event>)>,
    wants_usage: bool,
}

/// Streams all choices of a request concurrently.
async fn stream<C: Written>(
    loaded: Arc<Loaded>,
    streamed: Streamed<C>,
    chunks: mpsc::Sender<Bytes>,
    client: Arc<Client>,
) {
    let Streamed { frame, choices, wants_usage } = streamed;
    let answers = choices.into_iter();
    let answers = answers.map(|(choice, events)| one(&loaded, &frame, choice, events, &chunks));
    let ends = tokio::select! {
        biased;
        ends = futures_util::future::join_all(answers) => ends,
        refusal = client.refused() => {
            // The receiver may have been dropped.
            let _unheard = chunks.send(failure(&refusal)).await;
            return;
        }
    };
    let ends: Option<Vec<End>> = ends.into_iter().collect();
    // If some ends are missing, the client has disconnected or has received the error.
    let Some(ends) = ends else { return };
    let usage = wants_usage.then(|| event(&frame.usage_chunk(&ends)));
    for last in usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]) {
        if chunks.send(last).await.is_err() {
            return;
        }
    }
}

/// Streams one choice; returns `None` if it does not complete.
async fn one<C: Written>(
    loaded: &Loaded,
    frame: &Frame,
    mut choice: C,
    mut events: Receiver<Event>,
    chunks: &mpsc::Sender<Bytes>,
) -> Option<End> {
    loop {
        // When a client disconnects, the event receiver is dropped, and with it the generation.
        let next = tokio::select! {
            biased;
            () = chunks.closed() => return None,
            next = events.recv() => next,
        };
        match next {
            Some(Event::Part(part)) => {
                if let Some(chunk) = choice.part(&loaded.model, frame, part) {
                    chunks.send(event(&chunk)).await.ok()?;
                }
            }
            Some(Event::End(end)) => {
                for chunk in choice.end(frame, &end) {
                    chunks.send(event(&chunk)).await.ok()?;
                }
                return Some(end);
            }
            Some(Event::Failed(reason)) => {
                chunks.send(failure(&failed(&reason))).await.ok()?;
                return None;
            }
            None => return None,
        }
    }
}

async fn embed(
    loaded: Arc<Loaded>,
    body: Bytes,
    jobs: SyncSender<embeddings::Job>,
    client: &Arc<Client>,
) -> Result<Answer, Refusal> {
    let name = loaded.name.clone();
    let read =
        move |loaded: &Loaded| embeddings::read(&body, &loaded.model, loaded.sizes, loaded.room);
    let (vectors, tokens, is_base64) = pooled(loaded, jobs, client, read).await?;
    Ok(json(StatusCode::OK, &embeddings::answer(&name, &vectors, tokens, is_base64)))
}

/// Rates documents.
async fn rate(
    loaded: Arc<Loaded>,
    body: Bytes,
    jobs: SyncSender<embeddings::Job>,
    client: &Arc<Client>,
) -> Result<Answer, Refusal> {
    let name = loaded.name.clone();
    let read = move |loaded: &Loaded| {
        let inputs = rerank::read(&body, &loaded.model, loaded.sizes, loaded.room);
        inputs.map(|inputs| (inputs, ()))
    };
    let (outputs, tokens, ()) = pooled(loaded, jobs, client, read).await?;
    Ok(json(StatusCode::OK, &rerank::answer(&name, &outputs, tokens)))
}

/// Runs the model on the texts that `read` returns. Returns the output of each text, the total
/// number of tokens, and the rest of the result of `read`.
async fn pooled<T: Send + 'static>(
    loaded: Arc<Loaded>,
    jobs: SyncSender<embeddings::Job>,
    client: &Arc<Client>,
    read: impl FnOnce(&Loaded) -> Result<(Vec<Vec<LlamaToken>>, T), Refusal> + Send + 'static,
) -> Result<(Vec<Vec<f32>>, usize, T), Refusal> {
    let asked = Arc::downgrade(client);
    // Tokenizing long texts takes a while, so it runs on a blocking thread.
    let read = tokio::task::spawn_blocking(move || {
        let work = loaded.watch.begin(Step::Reading, &asked);
        work.check()?;
        read(&loaded)
    });
    let (inputs, beside) = read.await.map_err(|_panic| panicked())??;
    let tokens = inputs.iter().map(Vec::len).sum();
    let (reply, outputs) = oneshot::channel();
    let client = Arc::downgrade(client);
    jobs.try_send(embeddings::Job { inputs, client, reply }).map_err(|error| busy(&error))?;
    let outputs = outputs.await.map_err(|_ended| failed("the model's process is ending"))?;
    Ok((outputs.map_err(|reason| failed(&reason))?, tokens, beside))
}

async fn score(loaded: Arc<Loaded>, body: Bytes, client: &Arc<Client>) -> Result<Answer, Refusal> {
    let asked = Arc::downgrade(client);
    // Tokenizing a long state takes a while, so it runs on a blocking thread.
    let read = tokio::task::spawn_blocking(move || {
        let work = loaded.watch.begin(Step::Reading, &asked);
        work.check()?;
        let Chat { template, scores: jobs, labels, .. } = loaded.chats()?;
        let Loaded { sizes, room, .. } = *loaded;
        let texts = Texts { model: &loaded.model, template, sizes, room };
        match score::read(&body, texts, labels, &work)? {
            score::Read::NoLabels => Ok(None),
            score::Read::Job { job, scores, tokens } => {
                jobs.try_send(job).map_err(|error| busy(&error))?;
                Ok(Some((scores, tokens)))
            }
        }
    });
    let Some((scores, tokens)) = read.await.map_err(|_panic| panicked())?? else {
        return Ok(json(StatusCode::OK, &score::answer(None, 0)));
    };
    let scores = scores.await.map_err(|_ended| failed("the model's process is ending"))?;
    let scores = scores.map_err(|reason| failed(&reason))?;
    Ok(json(StatusCode::OK, &score::answer(Some(&scores), tokens)))
}

/// Counts the tokens in the prompt that a chat completion would use.
async fn count(loaded: Arc<Loaded>, body: Bytes, client: &Arc<Client>) -> Result<Answer, Refusal> {
    let asked = Arc::downgrade(client);
    // Tokenizing a long prompt takes a while, so it runs on a blocking thread.
    let counted = tokio::task::spawn_blocking(move || {
        let work = loaded.watch.begin(Step::Reading, &asked);
        work.check()?;
        let chat = request::Chat::read(&body)?;
        let Chat { template, .. } = loaded.chats()?;
        let prepared = prepare(&chat, &loaded.model, template, loaded.sizes, loaded.room, &work)?;
        Ok(prepared.jobs.first().map_or(0, |(job, _)| job.prompt.len()))
    });
    let tokens = counted.await.map_err(|_panic| panicked())??;
    Ok(json(StatusCode::OK, &serde_json::json!({"prompt_tokens": tokens})))
}

fn busy<T>(error: &TrySendError<T>) -> Refusal {
    match error {
        TrySendError::Full(_) => {
            Refusal::because(429, "too many requests are queued for this model")
        }
        TrySendError::Disconnected(_) => failed("the model's process is ending"),
    }
}

fn failed(reason: &str) -> Refusal {
    Refusal::because(500, format!("the model failed to compute a response: {reason}"))
}

fn panicked() -> Refusal {
    Refusal::because(500, "the request could not be read")
}

/// Returns the event of a failed stream.
fn failure(refusal: &Refusal) -> Bytes {
    [b"data: ", refusal.body().as_slice(), b"\n\n"].concat().into()
}

pub(crate) fn event(chunk: &Value) -> Bytes {
    format!("data: {chunk}\n\n").into()
}

fn json(status: StatusCode, body: &Value) -> Answer {
    whole(status, "application/json", body.to_string().into())
}

pub(crate) fn plain(status: StatusCode, text: String) -> Answer {
    whole(status, "text/plain", text.into())
}

pub(crate) fn refused(refusal: &Refusal) -> Answer {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    whole(status, "application/json", refusal.body().into())
}

pub(crate) fn whole(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(BoxBody::new(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer
}

/// The body of a stream.
pub(crate) struct Chunks {
    chunks: Receiver<Bytes>,
}

impl Chunks {
    /// Creates the body of a stream whose pieces arrive through `chunks`.
    pub(crate) const fn of(chunks: Receiver<Bytes>) -> Self {
        Self { chunks }
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        let next = self.chunks.poll_recv(context);
        next.map(|chunk| chunk.map(|chunk| Ok(BodyFrame::data(chunk))))
    }
}
