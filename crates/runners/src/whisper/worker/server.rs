//! Receives requests on a socket over HTTP/2 and sends the answers. A client that drops its stream
//! abandons the request.

use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as Socket;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use orrery_whisper::whisper_rs;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use super::WorkerArgs;
use super::engine::{Engine, Event, Job};
use super::request::{Ask, Format, language};
use super::transcript::log_line;
use crate::llm::worker::boot::or_abort;
use crate::llm::worker::not_started;
use crate::llm::worker::request::Refusal;
use crate::llm::worker::server::{Answer, Chunks, event, listen, plain, refused, whole};
use crate::llm::worker::{READY, log};
use crate::whisper::ask::{HEAD_MAX, PROGRESS};
use orrery_domain::chat::Operation;
use orrery_runtime::{Tasks, memory};

/// Maximum number of requests that wait for the engine.
const JOBS_MAX: usize = 256;
/// Maximum number of pieces of audio that wait for the decoder.
const PIECES_MAX: usize = 8;

/// Memory of the threads' stacks, in addition to the operator's limit.
const STACKS: u64 = 64 * 1024 * 1024;

/// The loading state: `None` while loading, then the engine's queue or the load error.
type State = Option<Result<SyncSender<Job>, String>>;

/// Serves the model until the service closes the socket.
///
/// # Errors
/// Fails if standard input is not a socket.
pub(super) fn run(args: &WorkerArgs) -> io::Result<u8> {
    memory::keep_less()?;
    if let Err(error) = args.common.enter_sandbox(STACKS, &[]) {
        return Ok(not_started(&error));
    }
    log::set_up();
    whisper_rs::install_logging_hooks();
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (ready, state) = watch::channel(None);
    let args = args.clone();
    let engine = std::thread::Builder::new().name("model".to_owned());
    engine.spawn(move || or_abort(|| load(&args, &ready)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let socket = UnixStream::from_std(socket)?;
        let tasks = Tasks::new();
        listen(socket, move |request| answer(request, state.clone(), tasks.clone())).await
    })?;
    Ok(0)
}

/// Loads the model, reports readiness, and computes on this thread until no client is left.
fn load(args: &WorkerArgs, ready: &watch::Sender<State>) {
    if let Some(Err(refusal)) = args.language.as_deref().map(language) {
        let _unheard = ready.send(Some(Err(refusal.message)));
        return;
    }
    let (jobs, queue) = sync_channel(JOBS_MAX);
    match Engine::load(args) {
        Ok(engine) => {
            // If the receiver was dropped, the process is exiting.
            let _unheard = ready.send(Some(Ok(jobs)));
            engine.run(&queue);
        }
        Err(error) => {
            let why = log::last_error().unwrap_or_else(|| error.to_string());
            let _unheard = ready.send(Some(Err(format!("whisper.cpp cannot load it: {why}"))));
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    mut state: watch::Receiver<State>,
    tasks: Tasks,
) -> Answer {
    let loaded = match state.wait_for(Option::is_some).await {
        Ok(loaded) => loaded.clone(),
        Err(_ended) => None,
    };
    let jobs = match loaded {
        Some(Ok(jobs)) => jobs,
        Some(Err(reason)) => return plain(StatusCode::SERVICE_UNAVAILABLE, reason),
        None => return plain(StatusCode::SERVICE_UNAVAILABLE, "its process is ending".to_owned()),
    };
    let path = request.uri().path();
    if path == READY {
        return plain(StatusCode::OK, String::new());
    }
    let is_translation = path == Operation::Translations.path();
    let is_progress = path == PROGRESS;
    let is_known = is_translation || is_progress || path == Operation::Transcriptions.path();
    if request.method() != Method::POST || !is_known {
        return refused(&Refusal::because(404, "no such route"));
    }
    let read = async {
        let (head, audio) = split(request.into_body()).await?;
        let mut ask = Ask::read(&head, is_progress)?;
        ask.is_translation |= is_translation;
        recognize(ask, audio, &jobs, &tasks).await
    };
    read.await.unwrap_or_else(|refusal: Refusal| refused(&refusal))
}

/// Reads the first line of a request. Also returns the audio that follows the line.
async fn split(mut body: Incoming) -> Result<(Bytes, Upload), Refusal> {
    let mut read = BytesMut::new();
    loop {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let head = read.split_to(end).freeze();
            read.advance(1);
            return Ok((head, Upload { first: read.freeze(), rest: body }));
        }
        if read.len() > HEAD_MAX {
            return Err(Refusal::because(413, "the fields of the request are too large"));
        }
        match next(&mut body).await {
            Some(Ok(piece)) => read.extend_from_slice(&piece),
            Some(Err(error)) => return Err(Refusal::because(400, error.to_string())),
            None => return Err(Refusal::because(400, "the request has no audio")),
        }
    }
}

/// Audio that is arriving.
struct Upload {
    first: Bytes,
    rest: Incoming,
}

async fn next(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match body.frame().await? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Passes the audio on to the decoder, until the decoder needs no more.
async fn pass_on(audio: Upload, pieces: mpsc::Sender<io::Result<Bytes>>) {
    let Upload { first, mut rest } = audio;
    let mut piece = Some(Ok(first));
    while let Some(came) = piece {
        let came = came.map_err(|error: hyper::Error| {
            io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())
        });
        let is_error = came.is_err();
        if pieces.send(came).await.is_err() || is_error {
            return;
        }
        piece = next(&mut rest).await;
    }
}

/// The audio as the decoder reads it, on the thread of the engine.
struct Arriving {
    /// Locked by one thread only: a decoder's source must be `Sync`.
    pieces: Mutex<mpsc::Receiver<io::Result<Bytes>>>,
    current: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            let pieces = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
            match pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let read = buffer.len().min(self.current.len());
        self.current.copy_to_slice(buffer.get_mut(..read).unwrap_or_default());
        Ok(read)
    }
}

/// Queues a request, and returns its answer or the stream of its events.
async fn recognize(
    ask: Ask,
    audio: Upload,
    jobs: &SyncSender<Job>,
    tasks: &Tasks,
) -> Result<Answer, Refusal> {
    let (pieces, arriving) = mpsc::channel(PIECES_MAX);
    let (sender, mut events) = mpsc::unbounded_channel();
    let arriving = Arriving { pieces: Mutex::new(arriving), current: Bytes::new() };
    let job = Job { ask: ask.clone(), audio: Box::new(arriving), events: sender };
    jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => Refusal::because(429, "too many requests wait for this model"),
        TrySendError::Disconnected(_) => ending(),
    })?;
    tasks.spawn(pass_on(audio, pieces));
    let is_stream = matches!(ask.format, Format::Stream | Format::Progress);
    loop {
        match events.recv().await.ok_or_else(ending)? {
            Event::Failed(refusal) => return Err(refusal),
            Event::Done(transcript) if !is_stream => {
                let (kind, text) = transcript.answer(&ask);
                return Ok(whole(StatusCode::OK, kind, text.into()));
            }
            first @ (Event::Done(_) | Event::Heard { .. }) if is_stream => {
                let (chunks, body) = mpsc::channel(1);
                tasks.spawn(stream(ask, first, events, chunks));
                let answer = Response::builder().header(CONTENT_TYPE, "text/event-stream");
                let answer = answer.body(BoxBody::new(Chunks::of(body)));
                return answer.map_err(|_never| ending());
            }
            Event::Done(_) | Event::Heard { .. } => {}
        }
    }
}

/// Sends the events of a request until it ends or the client leaves.
async fn stream(
    ask: Ask,
    first: Event,
    mut events: mpsc::UnboundedReceiver<Event>,
    chunks: mpsc::Sender<Bytes>,
) {
    let mut came = Some(first);
    let mut has_text = false;
    while let Some(event) = came {
        let is_last = !matches!(event, Event::Heard { .. });
        let chunk = shown(&ask, event, &mut has_text);
        if chunks.send(chunk).await.is_err() || is_last {
            return;
        }
        // When the client leaves, the receiver of the events is dropped, and the engine stops.
        came = tokio::select! {
            biased;
            () = chunks.closed() => return,
            came = events.recv() => came,
        };
    }
}

/// Returns an event as the client sees it.
fn shown(ask: &Ask, came: Event, has_text: &mut bool) -> Bytes {
    let is_progress = ask.format == Format::Progress;
    match came {
        Event::Heard { start, end, text } if is_progress => {
            event(&json!({"log": log_line(start, end, &text)}))
        }
        Event::Heard { text, .. } => {
            // All parts together are the text of the transcript, which begins without a space.
            let delta = if *has_text { text.as_str() } else { text.trim_start() };
            *has_text |= !delta.is_empty();
            event(&json!({"type": "transcript.text.delta", "delta": delta}))
        }
        Event::Done(transcript) if is_progress => event(&json!({"output": transcript.output(ask)})),
        Event::Done(transcript) => {
            let (text, usage) = (transcript.text(), transcript.usage());
            event(&json!({"type": "transcript.text.done", "text": text, "usage": usage}))
        }
        Event::Failed(refusal) if is_progress => event(&json!({"failed": refusal.message})),
        Event::Failed(refusal) => [b"data: ", refusal.body().as_slice(), b"\n\n"].concat().into(),
    }
}

fn ending() -> Refusal {
    Refusal::because(500, "the model's process is ending")
}
