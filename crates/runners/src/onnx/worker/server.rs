//! Serves requests on a socket over HTTP/2, with a separate stream for each response. A client that
//! drops a stream cancels the run.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::RUN;
use super::engine::Engine;
use crate::llm::worker::{GIVEN_UP, READY};
use orrery_runtime::crash_note::exit_at_once;

/// Maximum size of a request in bytes: the files, or the elements of the tensors.
const REQUEST_MAX: usize = 128 * 1024 * 1024;
/// Maximum number of concurrent requests.
const STREAMS_MAX: u32 = 4096;
/// How long an abandoned run may take to end by itself before the process exits. tract cannot be
/// interrupted, and after an exit, the service has to repeat the other runs.
const STOPPING: Duration = Duration::from_secs(1);
/// Flow control window of a request, in bytes.
const WINDOW: u32 = 1024 * 1024;

/// The loading state: `None` while loading, then the model or the load error.
pub(super) type State = Option<Result<Arc<Engine>, String>>;

type Answer = Response<Full<Bytes>>;

/// Serves until the peer closes the connection.
///
/// # Errors
/// Fails if the connection breaks.
pub(super) async fn serve(
    socket: UnixStream,
    state: watch::Receiver<State>,
) -> std::io::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(answer(request, state).await) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW.saturating_mul(8));
    let served = server.serve_connection(TokioIo::new(socket), service).await;
    served.map_err(std::io::Error::other)
}

async fn answer(request: Request<Incoming>, mut state: watch::Receiver<State>) -> Answer {
    let loaded = match state.wait_for(Option::is_some).await {
        Ok(loaded) => loaded.clone(),
        Err(_ended) => None,
    };
    let unavailable = |reason: String| whole(StatusCode::SERVICE_UNAVAILABLE, reason);
    let engine = match loaded {
        Some(Ok(engine)) => engine,
        Some(Err(reason)) => return unavailable(reason),
        None => return unavailable("its process is ending".to_owned()),
    };
    match request.uri().path() {
        READY => return whole(StatusCode::OK, Bytes::new()),
        RUN => {}
        _ => return whole(StatusCode::NOT_FOUND, "no such route"),
    }
    let Ok(body) = Limited::new(request.into_body(), REQUEST_MAX).collect().await else {
        return whole(StatusCode::BAD_REQUEST, "the input is too large");
    };
    let body = body.to_bytes();
    let work = Work::default();
    let state = Arc::clone(&work.state);
    // The runtime has as many blocking threads as the model may use; other runs wait.
    let run = tokio::task::spawn_blocking(move || {
        let _running = Running::begin(state);
        engine.run(&body)
    });
    // If the service drops the request, this future is dropped, and with it `work`. A run that has
    // not begun is then cancelled.
    let cancel = Cancel(run.abort_handle());
    let ran = run.await;
    drop((work, cancel));
    match ran {
        Ok(Ok(answer)) => whole(StatusCode::OK, answer),
        Ok(Err(reason)) => whole(StatusCode::BAD_REQUEST, reason),
        Err(_panic) => {
            whole(StatusCode::INTERNAL_SERVER_ERROR, "the engine panicked on this input")
        }
    }
}

fn whole(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}

/// When dropped, cancels the task if it has not begun.
struct Cancel(tokio::task::AbortHandle);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The progress of a run.
#[derive(Debug, Default)]
struct Progress {
    has_begun: AtomicBool,
    has_ended: AtomicBool,
}

/// A run in progress. Dropping this value ends the run, also after a panic.
struct Running(Arc<Progress>);

impl Running {
    fn begin(state: Arc<Progress>) -> Self {
        state.has_begun.store(true, Ordering::Release);
        Self(state)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

/// A run whose client is waiting. If this value is dropped before the run ends, the process exits.
#[derive(Debug, Default)]
struct Work {
    state: Arc<Progress>,
}

impl Drop for Work {
    fn drop(&mut self) {
        let is_over = |state: &Progress| {
            !state.has_begun.load(Ordering::Acquire) || state.has_ended.load(Ordering::Acquire)
        };
        if is_over(&self.state) {
            return;
        }
        let state = Arc::clone(&self.state);
        let give_up = move || {
            std::thread::sleep(STOPPING);
            if !is_over(&state) {
                // The service reads standard error and shows its last line.
                let said = b"abandoned work did not stop\n";
                drop(std::io::Write::write_all(&mut std::io::stderr(), said));
                exit_at_once(GIVEN_UP.into());
            }
        };
        let started = std::thread::Builder::new().name("watch".to_owned()).spawn(give_up);
        if started.is_err() {
            exit_at_once(GIVEN_UP.into());
        }
    }
}
