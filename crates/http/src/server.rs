//! HTTP server: one accept loop for all listeners, with limits, time-outs and graceful shutdown.
//!
//! A [`Service`] interprets requests. A panic in the service fails only the current request, which
//! returns 500.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderValue, STRICT_TRANSPORT_SECURITY};
use hyper::service::service_fn;
use hyper::{Method, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use super::body::{self, Body};
use super::budget::{Budget, Lease};
use super::connection::{Activity, Outgoing, Overdue, Timeouts, Watched};
use super::date;
use super::port_holder;
use super::request::Peer;
use super::response::Response;
use super::tls::acme::CHALLENGE_PROTOCOL;
use super::unread;
use orrery_runtime::{self as runtime, Tasks};

/// Length of the accept queue of each listener.
const BACKLOG: u32 = 1024;
/// Maximum number of header fields per request.
pub(super) const HEADERS_MAX: usize = 100;
/// Maximum size of a request's head, in bytes.
pub(super) const HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 128;
/// Bytes of a request's body that an HTTP/2 client may send before the handler has read any: per
/// request, and for the entire connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a response that an HTTP/2 connection buffers per request until the client makes room.
const SEND_BUFFER: usize = 128 * 1024;
/// Interval of pings on an HTTP/2 connection.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a shutdown waits for a request that a client may be about to send; also the interval at
/// which the shutdown checks for such requests.
const LAST_HEAD: Duration = Duration::from_secs(2);
const LAST_HEAD_STEP: Duration = Duration::from_millis(10);
/// Delay after a failed accept, such as when file descriptors run out.
const REST_AFTER_FAULT: Duration = Duration::from_millis(100);
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// How long browsers require TLS for this host: a year.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");
/// The response to a plain-HTTP client if its address has too many connections.
const TOO_MANY: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n\
    Content-Type: application/json\r\nContent-Length: 62\r\nConnection: close\r\n\r\n\
    {\"error\":\"too many connections from one address\",\"status\":429}";
/// The first bytes of an HTTP/2 connection without TLS; no HTTP/1.1 method starts with them.
const HTTP2_BEGINS: &[u8] = b"PRI";

/// A future response.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Handles requests.
pub trait Service: Send + Sync + 'static {
    /// Returns the response to one request.
    fn call(&self, request: hyper::Request<Body>, peer: Peer) -> ResponseFuture;
}

/// The limits of a listener. Listeners with the same `connections` share the connection slots.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Time limit for the TLS handshake and for each request's head.
    pub header_timeout: Duration,
    /// Time limit for a connection without a request.
    pub keep_alive: Duration,
    /// Time limit for a peer that accepts no bytes while bytes are pending.
    pub write_timeout: Duration,
    /// Connection slots. The listener accepts no connection while all slots are taken.
    pub connections: Arc<Semaphore>,
    /// The connection limit per address.
    pub per_address: Arc<Budget>,
}

impl Limits {
    const fn timeouts(&self) -> Timeouts {
        Timeouts {
            header: self.header_timeout,
            keep_alive: self.keep_alive,
            write: self.write_timeout,
        }
    }
}

/// The service cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct BindError {
    pub address: String,
    pub reason: String,
}

/// How to choose another port, on the command line or in the configuration.
const CHOOSE_PORT: &str = "`orrery serve --port 9000`, or `listen` in the configuration";

/// Explains why listening on an address failed, and suggests a remedy.
#[must_use]
pub fn refusal(address: SocketAddr, error: &io::Error) -> String {
    match (error.kind(), port_holder::of(address)) {
        (io::ErrorKind::AddrInUse, Some(holder)) => {
            format!("{holder} listens there; stop it, or choose another port ({CHOOSE_PORT})")
        }
        (io::ErrorKind::AddrInUse, None) => {
            format!("another program listens there; choose another port ({CHOOSE_PORT})")
        }
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{error}; ports below 1024 need CAP_NET_BIND_SERVICE")
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            format!("{error}; no interface of this machine has this address")
        }
        (_, _) => format!("{error}; choose another address"),
    }
}

/// The kind of listening socket.
#[derive(Debug)]
enum ListenerKind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    kind: ListenerKind,
}

impl Listener {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// [`BindError`] if the address is taken or does not belong to this machine.
    pub fn tcp(address: SocketAddr) -> Result<Self, BindError> {
        let bind = || {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4(),
                SocketAddr::V6(_) => TcpSocket::new_v6(),
            }?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        let listener = bind().map_err(|error| BindError {
            address: address.to_string(),
            reason: refusal(address, &error),
        })?;
        Ok(Self { kind: ListenerKind::Tcp(listener) })
    }

    /// Listens on a socket that the caller has already bound.
    ///
    /// # Errors
    /// [`BindError`] if the socket cannot be used.
    pub fn of_bound(socket: std::net::TcpListener) -> Result<Self, BindError> {
        let address = socket.local_addr().map(|address| address.to_string());
        let taken = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        let listener = taken.map_err(|error| BindError {
            address: address.unwrap_or_default(),
            reason: error.to_string(),
        })?;
        Ok(Self { kind: ListenerKind::Tcp(listener) })
    }

    /// Listens on a Unix socket that only its owner can open. Replaces a socket file left by a dead
    /// process.
    ///
    /// # Errors
    /// [`BindError`] if the file cannot be created.
    pub fn unix(path: &Path) -> Result<Self, BindError> {
        use std::os::unix::fs::PermissionsExt;
        let bind = || {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let listener = super::unix_socket::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = bind().map_err(|error| BindError {
            address: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Ok(Self { kind: ListenerKind::Unix(listener) })
    }

    /// Returns the listening address; `None` for a Unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.kind {
            ListenerKind::Tcp(listener) => listener.local_addr().ok(),
            ListenerKind::Unix(_) => None,
        }
    }

    /// Serves requests until a shutdown begins; connections then finish their requests in flight.
    /// Each connection is a task in `tasks`, so the shutdown waits for all connections.
    pub async fn serve(
        self,
        tls: Option<TlsAcceptor>,
        service: Arc<dyn Service>,
        limits: Limits,
        tasks: Tasks,
    ) {
        let tasks_of_loop = tasks.clone();
        let accept = async move {
            loop {
                let Ok(place) = Arc::clone(&limits.connections).acquire_owned().await else {
                    return;
                };
                match self.accept().await {
                    Ok(stream) => {
                        let mut share = limits.per_address.lease(&stream.peer());
                        if share.grow(1).is_err() {
                            stream.refuse(tls.is_some());
                            continue;
                        }
                        let connection = Connection {
                            service: Arc::clone(&service),
                            timeouts: limits.timeouts(),
                            encrypted: tls.is_some(),
                            tasks: tasks_of_loop.clone(),
                            _place: place,
                            _share: share,
                        };
                        let serving = connection.serve(stream, limits.write_timeout, tls.clone());
                        tasks_of_loop.spawn(serving);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connection");
                        tokio::time::sleep(REST_AFTER_FAULT).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = tasks.stopping() => {}
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.kind {
            ListenerKind::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Each response is written as a unit; Nagle's algorithm would only delay it.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream, Peer::Tcp(address)))
            }
            ListenerKind::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream, Peer),
    Unix(tokio::net::UnixStream),
}

impl Stream {
    const fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, peer) => *peer,
            Self::Unix(_) => Peer::Unix,
        }
    }

    /// Closes the connection of an address that has too many connections. A plain-HTTP client gets
    /// a response first; the server does not wait for the client to read it.
    fn refuse(self, encrypted: bool) {
        tracing::debug!(peer = %self.peer(), "too many connections from one address");
        if let Self::Tcp(stream, _) = &self
            && !encrypted
            && let Err(error) = stream.try_write(TOO_MANY.as_bytes())
        {
            tracing::debug!(%error, "connection broke off");
        }
    }
}

/// The reason for ending a connection.
enum Limit {
    Overdue(Overdue),
    /// The service is shutting down.
    Stopping,
}

type Limiting<'c> = Pin<Box<dyn Future<Output = Limit> + Send + 'c>>;

/// One connection. The connection holds its slot and its part of the address's limit until it ends.
struct Connection {
    service: Arc<dyn Service>,
    timeouts: Timeouts,
    encrypted: bool,
    tasks: Tasks,
    _place: OwnedSemaphorePermit,
    _share: Lease,
}

impl Connection {
    async fn serve(self, stream: Stream, write_timeout: Duration, tls: Option<TlsAcceptor>) {
        if let Stream::Tcp(stream, _) = &stream
            && let Err(error) = limit_writes(stream, write_timeout)
        {
            tracing::debug!(%error, "connection broke off");
            return;
        }
        match (stream, tls) {
            (Stream::Unix(stream), _) => self.http1(stream, Peer::Unix).await,
            (Stream::Tcp(stream, peer), Some(tls)) => self.secured(stream, peer, tls).await,
            (Stream::Tcp(stream, peer), None) => self.plain(stream, peer).await,
        }
    }

    /// Performs the TLS handshake, then speaks the negotiated protocol. A client that sends plain
    /// HTTP to this port gets a response that explains the mistake.
    async fn secured(self, mut stream: TcpStream, peer: Peer, tls: TlsAcceptor) {
        let timeout = self.timeouts.header;
        let mut first = [0];
        match tokio::time::timeout(timeout, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first == [TLS_HANDSHAKE] => {}
            Ok(Ok(1..)) => return speaks_https(&mut stream, timeout).await,
            Ok(Ok(0) | Err(_)) | Err(_) => return,
        }
        let Ok(Ok(stream)) = tokio::time::timeout(timeout, tls.accept(stream)).await else {
            return;
        };
        match stream.get_ref().1.alpn_protocol() {
            // After the handshake of a challenge, there is nothing left to send.
            Some(CHALLENGE_PROTOCOL) => {}
            Some(b"h2") => self.http2(stream, peer).await,
            Some(_) | None => self.http1(stream, peer).await,
        }
    }

    /// Distinguishes HTTP/2 from HTTP/1.1 by the first bytes, which must arrive within the time
    /// limit for a head.
    async fn plain(self, mut stream: TcpStream, peer: Peer) {
        let mut first = [0; HTTP2_BEGINS.len()];
        let mut length = 0;
        let reading = async {
            while let Some(room) = first.get_mut(length..).filter(|room| !room.is_empty()) {
                match stream.read(room).await {
                    Ok(0) | Err(_) => return length > 0,
                    Ok(count) => length += count,
                }
                if first.get(..length) != HTTP2_BEGINS.get(..length) {
                    return true;
                }
            }
            true
        };
        if !matches!(tokio::time::timeout(self.timeouts.header, reading).await, Ok(true)) {
            return;
        }
        if first.first() == Some(&TLS_HANDSHAKE) {
            speaks_http(peer);
        }
        let is_http2 = length == HTTP2_BEGINS.len() && first == HTTP2_BEGINS;
        let begun = io::Cursor::new(first.get(..length).unwrap_or_default().to_vec());
        let (reader, writer) = stream.into_split();
        let stream = tokio::io::join(begun.chain(reader), writer);
        if is_http2 {
            self.http2(stream, peer).await;
        } else {
            self.http1(stream, peer).await;
        }
    }

    async fn http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, io: S, peer: Peer) {
        let activity = Activity::new(self.timeouts);
        let mut builder = hyper::server::conn::http1::Builder::new();
        // The activity enforces the time limits of heads: hyper's own timer would also close idle
        // connections.
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(None::<Duration>)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES)
            .auto_date_header(false)
            .half_close(false);
        let service =
            service_fn(|request| answer(&self.service, request, peer, &activity, self.encrypted));
        let io = TokioIo::new(Watched::http1(io, Arc::clone(&activity)));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        // Each of these futures is polled only when it is woken, rather than with every byte that
        // arrives.
        let mut limits: FuturesUnordered<Limiting<'_>> = FuturesUnordered::new();
        limits.push(Box::pin(async { Limit::Overdue(activity.overdue().await) }));
        limits.push(Box::pin(async {
            self.stopping(&activity).await;
            Limit::Stopping
        }));
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return log_end(ended),
                Some(limit) = limits.next() => match limit {
                    Limit::Overdue(overdue) => return log_overdue(overdue, peer),
                    Limit::Stopping => {
                        activity.stops_lingering();
                        connection.as_mut().graceful_shutdown();
                    }
                },
            }
        }
    }

    /// Resolves when the connection must accept no further requests: the shutdown has begun, and
    /// each request that the client has started to send (or may be about to send, on a new
    /// connection) has arrived or missed its deadline.
    async fn stopping(&self, activity: &Activity) {
        self.tasks.stopping().await;
        let begun = runtime::monotonic_now();
        while activity.awaits_head() && begun.elapsed() < LAST_HEAD {
            tokio::time::sleep(LAST_HEAD_STEP).await;
        }
    }

    async fn http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, io: S, peer: Peer) {
        let activity = Activity::new(self.timeouts);
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .auto_date_header(false)
            .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(self.timeouts.header);
        let answering = Arc::clone(&self.service);
        let current = Arc::clone(&activity);
        let encrypted = self.encrypted;
        let service = service_fn(move |request| {
            let service = Arc::clone(&answering);
            let activity = Arc::clone(&current);
            async move { answer(&service, request, peer, &activity, encrypted).await }
        });
        let io = TokioIo::new(Watched::http2(io, Arc::clone(&activity)));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            overdue = activity.overdue() => {
                log_overdue(overdue, peer);
                if overdue != Overdue::Idle {
                    return;
                }
            }
            () = self.stopping(&activity) => {}
        }
        // A request that is already in transit still gets a response.
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            ended = connection.as_mut() => log_end(ended),
            overdue = after_goodbye(&activity, self.timeouts.header) => log_overdue(overdue, peer),
        }
    }
}

/// Waits until a closing connection has no pending responses, or stalls.
async fn after_goodbye(activity: &Activity, patience: Duration) -> Overdue {
    loop {
        tokio::time::sleep(patience).await;
        if let Some(overdue) = activity.is_overdue() {
            return overdue;
        }
    }
}

/// Makes the kernel close the connection when the peer has accepted no bytes for `timeout`. Only
/// the kernel can detect that single bytes are accepted: a socket becomes writable only when a
/// large part of its buffer is free.
fn limit_writes(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, timeout_ms)?)
}

fn log_overdue(overdue: Overdue, peer: Peer) {
    tracing::debug!(?overdue, %peer, "connection closed");
}

/// Clients may drop connections at any time, so a failed connection is logged only at debug level.
fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection broke off");
    }
}

async fn answer(
    service: &Arc<dyn Service>,
    request: hyper::Request<Incoming>,
    peer: Peer,
    activity: &Arc<Activity>,
    encrypted: bool,
) -> Result<hyper::Response<Outgoing>, std::convert::Infallible> {
    let guard = activity.begin();
    activity.take_turn().await;
    let is_head = request.method() == Method::HEAD;
    let is_multiplexed = request.version() >= Version::HTTP_2;
    let (request, unread) = unread::watch(request);
    let answered = AssertUnwindSafe(async { service.call(request, peer).await }).catch_unwind();
    let response = answered.await.unwrap_or_else(|_panic| {
        tracing::error!("handler panicked");
        super::Error::internal("a handler panicked").into_response()
    });
    let mut response = if is_head { without_body(response) } else { response };
    if let Some(unread) = unread
        && let Err(rest) = unread.discard().await
    {
        if is_multiplexed {
            response = response.map(|body| unread::linger(body, rest));
        } else {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            activity.leaves_unread();
        }
    }
    response.headers_mut().entry(DATE).or_insert_with(date::now);
    if encrypted {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
    Ok(response.map(|body| Outgoing::new(body, guard)))
}

/// Removes the body from a response but keeps its `Content-Length`.
fn without_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(parts, body::empty())
}

/// Logs, once, that a client sent a TLS handshake to a port without TLS. The client could not read
/// a plain-HTTP response.
fn speaks_http(peer: Peer) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let advice = "this port speaks plain HTTP: use http:// in the address";
        tracing::warn!(%peer, "a client tried HTTPS; {advice}");
    });
}

/// Responds to a plain-HTTP request on a TLS port.
async fn speaks_https(stream: &mut TcpStream, timeout: Duration) {
    const TEXT: &str =
        "{\"error\":\"this port speaks HTTPS: use https:// in the address\",\"status\":400}";
    let head = format!(
        "HTTP/1.1 {} Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{TEXT}",
        StatusCode::BAD_REQUEST.as_u16(),
        TEXT.len()
    );
    let telling = async {
        // The request is read first: closing with unread bytes would reset the connection, and the
        // client would lose the response.
        let mut unread = [0; 4096];
        let _read = stream.read(&mut unread).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.shutdown().await
    };
    if let Ok(Err(error)) = tokio::time::timeout(timeout, telling).await {
        tracing::debug!(%error, "connection broke off");
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
