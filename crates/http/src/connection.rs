//! State and deadlines of one connection, including deadlines for which hyper has no option.
//!
//! The parts of one connection share an [`Activity`]: its transport ([`Watched`]), its pending
//! responses ([`Outgoing`]), and the task that closes the connection when [`Activity::overdue`]
//! resolves. Requests do not wake that task. The task checks the deadlines periodically, at an
//! interval equal to the shortest time limit.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::body::{Body, BoxError};
use super::head_lines::{HeadLines, REFUSAL};
use super::refused_head;
use super::unread::Linger;
use orrery_runtime as runtime;

/// Bytes of a response passed to the transport at a time. The next piece follows when the client
/// has read enough to make room, so clients that do not read are detected.
const PIECE: usize = 64 * 1024;

/// For responses of at most this size, head and body are copied into one buffer: one write is
/// cheaper than a vectored one.
const JOINED_MAX: usize = 1024;

/// Bytes that are read at a time to be discarded.
const DISCARDED_PIECE: usize = 8 * 1024;

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Time limit for the head of a request: from its first byte or, for the first head, from the
    /// start of the connection.
    pub header: Duration,
    /// Time limit for a connection without a request.
    pub keep_alive: Duration,
    /// Time limit for a client that does not make room for the next byte of a response.
    pub write: Duration,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// The head of a request did not arrive in time.
    Head,
    /// No request arrived in time.
    Idle,
    /// The client does not read its response.
    Stalled,
}

/// One connection's deadlines.
#[derive(Debug)]
pub(crate) struct Activity {
    timeouts: Timeouts,
    state: Mutex<State>,
    /// Whether the transport has had nothing to read since the last request began.
    has_waited: AtomicBool,
    /// Whether the connection closes after a response to a request that has not been read
    /// completely.
    has_unread: AtomicBool,
    is_stopping: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Requests in flight.
    running: usize,
    /// Deadline of the next head or request; applies only while no request is in flight.
    deadline: Instant,
    awaits_head: bool,
    /// Responses that wait for the client to make room, each with its number and the start of its
    /// wait. There is at most one such response over HTTP/1.1, and at most as many as the stream
    /// limit over HTTP/2.
    waiting: Vec<(u64, Instant)>,
    next_response: u64,
    /// Whether the transport currently accepts no bytes. For a blocked transport, the kernel
    /// enforces its own time limit.
    is_blocked: bool,
    unblocked_at: Instant,
}

impl Activity {
    /// Creates the state of a connection that starts now and awaits its first head.
    pub(crate) fn new(timeouts: Timeouts) -> Arc<Self> {
        let now = runtime::monotonic_now();
        let state = State {
            running: 0,
            deadline: now + timeouts.header,
            awaits_head: true,
            waiting: Vec::new(),
            next_response: 0,
            is_blocked: false,
            unblocked_at: now,
        };
        Arc::new(Self {
            timeouts,
            state: Mutex::new(state),
            has_waited: AtomicBool::new(true),
            has_unread: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Marks a request as in flight until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> PendingResponse {
        let mut state = self.lock();
        state.running += 1;
        state.awaits_head = false;
        state.next_response += 1;
        PendingResponse { number: state.next_response, activity: Arc::clone(self) }
    }

    /// Returns whether the connection awaits a head: its first head, or a head that has started to
    /// arrive.
    pub(crate) fn awaits_head(&self) -> bool {
        self.lock().awaits_head
    }

    /// Lets other connections run first if this request arrived together with the previous request.
    /// Otherwise, a client that pipelines thousands of requests would monopolize its thread.
    pub(crate) async fn take_turn(&self) {
        if !self.has_waited.swap(false, Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    /// Records that the connection closes after the current response, although the client may still
    /// be sending its request.
    pub(crate) fn leaves_unread(&self) {
        self.has_unread.store(true, Ordering::Relaxed);
    }

    /// Ends the discarding of unread bytes, for a shutdown.
    pub(crate) fn stops_lingering(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Resolves when a deadline has passed.
    pub(crate) async fn overdue(&self) -> Overdue {
        let Timeouts { header, keep_alive, write } = self.timeouts;
        // Deadlines set from now on cannot be earlier than this step, so sleeping this long cannot
        // miss a deadline.
        let step = header.min(keep_alive).min(write);
        loop {
            let now = runtime::monotonic_now();
            let next = self.lock().next(write);
            match next {
                Some((at, overdue)) if at <= now => return overdue,
                Some((at, _)) => tokio::time::sleep_until(at.min(now + step)).await,
                None => tokio::time::sleep_until(now + step).await,
            }
        }
    }

    /// Returns the deadline that has passed, if any.
    pub(crate) fn is_overdue(&self) -> Option<Overdue> {
        let next = self.lock().next(self.timeouts.write);
        next.filter(|(at, _)| *at <= runtime::monotonic_now()).map(|(_, overdue)| overdue)
    }

    /// Records that bytes have arrived between requests: the next head has started.
    fn head_begins(&self) {
        let mut state = self.lock();
        if state.running == 0 && !state.awaits_head {
            state.awaits_head = true;
            state.deadline = runtime::monotonic_now() + self.timeouts.header;
        }
    }

    /// Records whether the transport accepted bytes.
    fn wrote(&self, took_some: bool) {
        let mut state = self.lock();
        if took_some && !state.is_blocked {
            return;
        }
        let now = runtime::monotonic_now();
        (state.is_blocked, state.unblocked_at) = (!took_some, now);
        if state.running == 0 && !state.awaits_head {
            // The last part of the previous response is still being sent.
            state.deadline = now + self.timeouts.keep_alive;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn waits_no_more(&mut self, number: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != number);
    }

    /// Returns the next deadline and its reason.
    fn next(&self, write: Duration) -> Option<(Instant, Overdue)> {
        if self.running == 0 {
            let awaited = if self.awaits_head { Overdue::Head } else { Overdue::Idle };
            return Some((self.deadline, awaited));
        }
        let waiting = self.waiting.iter().map(|(_, since)| *since);
        let longest = waiting.min().filter(|_| !self.is_blocked)?;
        Some((longest.max(self.unblocked_at) + write, Overdue::Stalled))
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct PendingResponse {
    number: u64,
    activity: Arc<Activity>,
}

impl PendingResponse {
    /// Records whether the response is waiting for the client to make room.
    fn waits_for_client(&self, waits: bool) {
        let mut state = self.activity.lock();
        state.waits_no_more(self.number);
        if waits {
            state.waiting.push((self.number, runtime::monotonic_now()));
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let mut state = self.activity.lock();
        state.waits_no_more(self.number);
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.deadline = runtime::monotonic_now() + self.activity.timeouts.keep_alive;
        }
    }
}

/// A response body that is being sent, in pieces of [`PIECE`] bytes.
#[derive(Debug)]
pub(crate) struct Outgoing {
    inner: Body,
    rest: Bytes,
    pending: PendingResponse,
}

impl Outgoing {
    pub(crate) fn new(inner: Body, pending: PendingResponse) -> Self {
        pending.waits_for_client(true);
        Self { inner, rest: Bytes::new(), pending }
    }
}

impl hyper::body::Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) else {
                this.pending.waits_for_client(false);
                return Poll::Pending;
            };
            this.pending.waits_for_client(true);
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Ok(Ok(data))) => this.rest = data,
            }
        } else {
            this.pending.waits_for_client(true);
        }
        let length = this.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.size_hint();
        let rest = self.rest.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// A connection's transport, which reports its reads and writes to its [`Activity`].
#[derive(Debug)]
pub(crate) struct Watched<S> {
    inner: S,
    activity: Arc<Activity>,
    /// Checks the lines of heads; only for HTTP/1.1.
    lines: Option<HeadLines>,
    /// The unwritten part of the response to a refused head.
    refusal: Option<Bytes>,
    /// Discards the rest of a request that was answered before it was read completely.
    linger: Option<Linger>,
}

impl<S> Watched<S> {
    /// Wraps an HTTP/1.1 transport: any bytes between requests start a new head, and the lines of
    /// heads are checked.
    pub(crate) fn http1(inner: S, activity: Arc<Activity>) -> Self {
        Self { inner, activity, lines: Some(HeadLines::new()), refusal: None, linger: None }
    }

    /// Wraps an HTTP/2 transport, where any frame may arrive between requests.
    pub(crate) fn http2(inner: S, activity: Arc<Activity>) -> Self {
        Self { inner, activity, lines: None, refusal: None, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lines.as_mut().is_some_and(HeadLines::take_refusal) {
            let length = REFUSAL.len().min(buffer.remaining());
            buffer.put_slice(REFUSAL.get(..length).unwrap_or_default());
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.inner).poll_read(context, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => {
                this.activity.has_waited.store(true, Ordering::Relaxed);
                return Poll::Pending;
            }
        }
        let Some(lines) = &mut this.lines else { return Poll::Ready(Ok(())) };
        if let Some(new) = buffer.filled_mut().get_mut(before..).filter(|new| !new.is_empty()) {
            this.activity.head_begins();
            lines.check(new);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Watched<S> {
    /// Writes the response to a refused head.
    fn poll_refuse(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.as_mut().filter(|rest| !rest.is_empty()) {
            let written = Pin::new(&mut self.inner).poll_write(context, rest);
            self.activity.wrote(written.is_ready());
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => rest.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and discards the rest of the request.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.activity.is_stopping.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        let inner = &mut self.inner;
        let mut piece = [0; DISCARDED_PIECE];
        self.linger.get_or_insert_with(Linger::new).poll(context, |context| {
            let mut buffer = ReadBuf::new(&mut piece);
            let is_read = ready!(Pin::new(&mut *inner).poll_read(context, &mut buffer)).is_ok();
            let length = buffer.filled().len();
            Poll::Ready((is_read && length > 0).then_some(length))
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.lines.is_some() && this.refusal.is_none() && this.activity.awaits_head() {
            this.refusal = refused_head::answer_to(bytes);
        }
        if this.refusal.is_some() {
            ready!(this.poll_refuse(context))?;
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.activity.wrote(written.is_ready());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(context);
        this.activity.wrote(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_shutdown(context))?;
        if this.refusal.is_some() || this.activity.has_unread.load(Ordering::Relaxed) {
            ready!(this.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [slice] = slices {
            return self.poll_write(context, slice);
        }
        let length = slices.iter().map(|slice| slice.len()).sum();
        let mut joined = [0; JOINED_MAX];
        if let Some(joined) = joined.get_mut(..length) {
            let mut rest = &mut *joined;
            for slice in slices {
                let (part, behind) = rest.split_at_mut(slice.len());
                part.copy_from_slice(slice);
                rest = behind;
            }
            return self.poll_write(context, joined);
        }
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(context, slices);
        this.activity.wrote(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
