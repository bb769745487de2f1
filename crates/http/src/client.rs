//! HTTP client for all outgoing requests of the service.
//!
//! [`Client::guarded`] is for URLs supplied by clients, [`Client::trusted`] for URLs in the
//! operator's manifests. Redirects are never followed, a sent request is never retried, and
//! responses are limited in size and time. Credentials in a URL are sent as Basic credentials. The
//! calling task sends `http://` requests itself, over connections from `pool`. Hyper's client sends
//! `https://` requests, which may negotiate HTTP/2, and reads streamed responses. A request first
//! waits for its slot (see `places`); its time limit starts when it has the slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use tokio_rustls::TlsConnector;

use super::answers::{self, SMALL};
use super::basic_auth;
use super::body;
use super::connector::{self, Connector, Resolve, SystemResolver};
use super::content;
use super::egress::Policy;
use super::exchange;
use super::places::{Arriving, Places, Share, Shed};
use super::pool::{KEEP_IDLE, Pool};
use orrery_domain::mask::MASKED;
use orrery_runtime::shortage::Pauses;
use orrery_runtime::turns;

/// Time limit for the name lookup, the connection and the TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time and size limits of a response.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time from the call to the last byte of the response.
    pub total: Duration,
    pub answer_bytes: usize,
    pub overflow: Overflow,
}

/// How to handle a response that exceeds the size limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// The request fails.
    Fail,
    /// The response is truncated at the limit; the rest of the response is not read.
    Truncate,
}

/// A response, complete or truncated at the limit.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub truncated: bool,
}

/// A request that got no response. The messages are for callers: all connection failures have the
/// same message, so that callers cannot scan the hosts and ports of this network. [`Error::detail`]
/// is for the log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{}", public(.0))]
    Connection(connector::Error),
    #[error("no answer within {limit:?}")]
    Timeout { limit: Duration },
    #[error("the answer is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the answer is not HTTP or was cut off")]
    Protocol { reason: String },
    #[error("the answer cannot be read: {0}")]
    Content(content::Error),
}

/// Returns the public message for a connection failure. A denied address that is written in the URL
/// may be shown, because the caller already knows that address.
fn public(error: &connector::Error) -> String {
    match error {
        connector::Error::Forbidden(_) | connector::Error::NoHost => error.to_string(),
        connector::Error::Local { .. } => {
            "this machine cannot send requests at the moment".to_owned()
        }
        connector::Error::Resolve { .. }
        | connector::Error::LeadsAstray { .. }
        | connector::Error::Connect { .. }
        | connector::Error::Tls { .. }
        | connector::Error::Timeout { .. } => "the host cannot be reached".to_owned(),
    }
}

impl Error {
    /// Returns the full error, with names and addresses, for the operator.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Connection(error) => error.to_string(),
            Self::Protocol { reason } => format!("{self}: {reason}"),
            Self::Timeout { .. } | Self::TooLarge { .. } | Self::Content(_) => self.to_string(),
        }
    }
}

/// The public root certificates and the machine's own. Loading them takes 25 ms.
static ROOTS: LazyLock<RootCertStore> = LazyLock::new(|| {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    // If the machine has no root certificates, or they are unreadable, only the public root
    // certificates are used.
    let native = rustls_native_certs::load_native_certs();
    let (_added, _ignored) = roots.add_parsable_certificates(native.certs);
    roots
});

/// Sends requests; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Hyper>,
    pub(super) pool: Arc<Pool>,
    places: Arc<Places>,
}

type HyperClient = legacy::Client<Connector, body::Body>;

/// Hyper's client. This client has no way to close its idle connections, so [`Shed::shed`] replaces
/// the client. Requests in flight keep their connections.
#[derive(Debug)]
struct Hyper {
    current: RwLock<HyperClient>,
    connector: Connector,
}

impl Hyper {
    fn new(connector: Connector) -> Self {
        Self { current: RwLock::new(Self::fresh(&connector)), connector }
    }

    fn fresh(connector: &Connector) -> HyperClient {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEEP_IDLE)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .pool_max_idle_per_host(connector.places.idle_per_host())
            .build(connector.clone())
    }

    fn get(&self) -> HyperClient {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shed for Hyper {
    fn shed(&self) {
        let fresh = Self::fresh(&self.connector);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // Dropping the previous client, after the lock is released, closes its idle connections.
        let former = std::mem::replace(&mut *current, fresh);
        drop(current);
        drop(former);
    }
}

/// Builds a client with non-default settings.
#[derive(Debug)]
pub struct Builder {
    policy: Option<Arc<Policy>>,
    resolver: Arc<dyn Resolve>,
    roots: RootCertStore,
    connect_timeout: Duration,
    places: Arc<Places>,
}

impl Client {
    /// Creates a client for URLs supplied by clients: `policy` checks each address.
    #[must_use]
    pub fn guarded(policy: Policy) -> Self {
        Builder::new(Some(policy)).build()
    }

    /// Creates a client for the operator's own URLs.
    #[must_use]
    pub fn trusted() -> Self {
        Builder::new(None).build()
    }

    /// Returns a client of the same kind that takes its connections from the given share.
    #[must_use]
    pub fn with_share(&self, share: Share) -> Self {
        let connector = &self.inner.connector;
        Self::over(Connector { places: Places::of(share), ..connector.clone() })
    }

    fn over(connector: Connector) -> Self {
        let places = Arc::clone(&connector.places);
        let inner = Arc::new(Hyper::new(connector.clone()));
        let pool = Arc::new(Pool::new(connector, places.idle_per_host()));
        let inner_shed: Arc<dyn Shed> = Arc::<Hyper>::clone(&inner);
        let pool_shed: Arc<dyn Shed> = Arc::<Pool>::clone(&pool);
        places.register(Arc::downgrade(&inner_shed));
        places.register(Arc::downgrade(&pool_shed));
        Self { inner, pool, places }
    }

    /// Sends a request and reads the response. Dropping the future closes the connection.
    ///
    /// # Errors
    /// [`Error`]; its message is for the user who configured the URL.
    pub async fn send(
        &self,
        mut request: Request<Bytes>,
        limits: &Limits,
    ) -> Result<Response, Error> {
        basic_auth::take_from_url(&mut request);
        let _place = self.places.take().await;
        if exchange::is_plain(&request) {
            return self.send_plain(request, limits, None).await;
        }
        self.send_other(request, limits).await
    }

    /// Like [`Client::send`], but retries until `limits.total` has passed while this machine lacks
    /// the resources (file descriptors, memory) to send the request. An attempt that lacks
    /// resources has not sent any byte. Used for work that must survive temporary shortages.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send_when_able(
        &self,
        mut request: Request<Bytes>,
        limits: &Limits,
    ) -> Result<Response, Error> {
        basic_auth::take_from_url(&mut request);
        let _place = self.places.take().await;
        let mut pauses = Pauses::within(limits.total);
        if exchange::is_plain(&request) {
            return self.send_plain(request, limits, Some(pauses)).await;
        }
        let mut limits = *limits;
        loop {
            let answer = self.send_other(request.clone(), &limits).await;
            let is_short = matches!(answer, Err(Error::Connection(connector::Error::Local { .. })));
            if !is_short || !pauses.wait().await {
                return answer;
            }
            limits.total = pauses.left();
        }
    }

    /// Sends over a connection that this task polls. `pauses`, if given, waits until a resource
    /// shortage is over.
    async fn send_plain(
        &self,
        request: Request<Bytes>,
        limits: &Limits,
        pauses: Option<Pauses>,
    ) -> Result<Response, Error> {
        let is_secret = has_secret_host(&request);
        let Some((authority, request)) = exchange::prepare(request) else {
            return Err(Error::Connection(connector::Error::NoHost));
        };
        let host = Host { name: authority.host(), is_secret };
        let is_connected = AtomicBool::new(false);
        let exchange = self.pool.exchange(&authority, request, limits, pauses, &is_connected);
        let is_connected = || is_connected.load(Ordering::Relaxed);
        within(limits.total, &host, is_connected, exchange).await
    }

    /// Sends with hyper's client.
    async fn send_other(
        &self,
        request: Request<Bytes>,
        limits: &Limits,
    ) -> Result<Response, Error> {
        let name = request.uri().host().unwrap_or_default().to_owned();
        let host = Host { name: &name, is_secret: has_secret_host(&request) };
        let mut request = request.map(body::full);
        let connection = capture_connection(&mut request);
        let exchange = async {
            let answer = self.inner.get().request(request).await.map_err(|error| cause(&error))?;
            collect(answer, limits).await
        };
        let is_connected = || connection.connection_metadata().is_some();
        within(limits.total, &host, is_connected, exchange).await
    }

    /// Sends a request and returns the response with its body unread. The caller must limit how the
    /// body is read.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn open(&self, request: Request<Bytes>) -> Result<hyper::Response<Arriving>, Error> {
        self.open_streaming(request.map(body::full)).await
    }

    /// Like [`Client::open`], for a request whose body is produced while it is sent.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn open_streaming(
        &self,
        mut request: Request<body::Body>,
    ) -> Result<hyper::Response<Arriving>, Error> {
        basic_auth::take_from_url(&mut request);
        let place = self.places.take().await;
        let name = request.uri().host().unwrap_or_default().to_owned();
        let host = Host { name: &name, is_secret: has_secret_host(&request) };
        let answer = self.inner.get().request(request).await;
        let answer = answer.map_err(|error| cause(&error));
        let answer = answer.inspect_err(|error| host.report(error))?;
        Ok(answer.map(|body| Arriving::new(body, place)))
    }
}

impl Builder {
    /// Creates a builder whose client uses the machine's resolver, and trusts the public root
    /// certificates and the machine's own.
    #[must_use]
    pub fn new(policy: Option<Policy>) -> Self {
        let share = if policy.is_some() { Share::Steps } else { Share::Models };
        Self {
            places: Places::of(share),
            policy: policy.map(Arc::new),
            resolver: Arc::new(SystemResolver::new()),
            roots: ROOTS.clone(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// Sets the time limit for the name lookup, the connection and the TLS handshake together.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    #[cfg(test)]
    pub(super) fn places(mut self, places: Arc<Places>) -> Self {
        self.places = places;
        self
    }

    /// Resolves names with `resolver`.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolve>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Also trusts these certificates. Unreadable certificates are ignored.
    #[must_use]
    pub fn trust(mut self, certificates: Vec<rustls_pki_types::CertificateDer<'static>>) -> Self {
        let (_added, _ignored) = self.roots.add_parsable_certificates(certificates);
        self
    }

    /// Builds the client.
    #[must_use]
    pub fn build(self) -> Client {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions();
        #[expect(clippy::expect_used, reason = "the provider supports its own default versions")]
        let mut config = versions
            .expect("ring supports TLS 1.2 and 1.3")
            .with_root_certificates(self.roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connector = Connector {
            resolver: self.resolver,
            policy: self.policy,
            tls: TlsConnector::from(Arc::new(config)),
            timeout: self.connect_timeout,
            places: self.places,
        };
        Client::over(connector)
    }
}

fn has_secret_host<B>(request: &Request<B>) -> bool {
    request.extensions().get::<SecretHost>().is_some()
}

/// A request extension that marks the request's host as secret: logs do not show it.
#[derive(Debug, Clone, Copy)]
pub struct SecretHost;

/// The host of a request, as shown in logs.
struct Host<'h> {
    name: &'h str,
    is_secret: bool,
}

impl Host<'_> {
    /// Logs the full reason for a failed request.
    fn report(&self, error: &Error) {
        let (host, detail) = match self.is_secret {
            true => (MASKED, error.detail().replace(self.name, MASKED)),
            false => (self.name, error.detail()),
        };
        tracing::info!(host, detail, "outgoing request failed");
    }
}

/// Runs an exchange with a time limit and logs its error. A time-out before the connection is
/// established counts as a connection failure.
async fn within(
    limit: Duration,
    host: &Host<'_>,
    is_connected: impl Fn() -> bool,
    exchange: impl Future<Output = Result<Response, Error>>,
) -> Result<Response, Error> {
    let answer = match turns::timeout(limit, exchange).await {
        Ok(answer) => answer,
        Err(_elapsed) if is_connected() => Err(Error::Timeout { limit }),
        Err(_elapsed) => {
            Err(Error::Connection(connector::Error::Timeout { host: host.name.to_owned(), limit }))
        }
    };
    answer.inspect_err(|error| host.report(error))
}

/// Reads an entire response and decodes its content coding, unless the response may be truncated.
pub(super) async fn collect(
    answer: hyper::Response<Incoming>,
    limits: &Limits,
) -> Result<Response, Error> {
    let (mut head, mut body) = answer.into_parts();
    let (mut body, truncated) = read(&mut body, limits).await?;
    if limits.overflow == Overflow::Fail {
        body = content::decode(&mut head.headers, body, limits.answer_bytes)
            .map_err(Error::Content)?;
    }
    Ok(Response { status: head.status, headers: head.headers, body, truncated })
}

/// Reads the body up to the limit; also returns whether it was truncated.
async fn read(body: &mut Incoming, limits: &Limits) -> Result<(Bytes, bool), Error> {
    let mut read = Pieces::default();
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = announced.unwrap_or(usize::MAX).min(limits.answer_bytes);
    let mut turn = None;
    let mut is_short = true;
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| Error::Protocol { reason: words(&error) })?;
        let Ok(mut data) = frame.into_data() else { continue };
        if is_short && read.len().saturating_add(data.len()) > SMALL {
            is_short = false;
            turn = answers::arrive(bytes).await;
        }
        let room = limits.answer_bytes.saturating_sub(read.len());
        if data.len() > room {
            if limits.overflow == Overflow::Fail {
                return Err(Error::TooLarge { limit: limits.answer_bytes });
            }
            data.truncate(room);
            read.push(data);
            return Ok((answers::bind(read.whole(), turn), true));
        }
        read.push(data);
    }
    Ok((answers::bind(read.whole(), turn), false))
}

/// The part of a body read so far. Most bodies arrive in one piece, which is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    /// All pieces joined, if there are several pieces.
    all: BytesMut,
}

impl Pieces {
    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    fn push(&mut self, piece: Bytes) {
        if self.first.is_empty() {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&piece);
    }

    fn whole(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

/// Converts the error, preferring the connector's own error in its chain.
fn cause(error: &legacy::Error) -> Error {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(connection) = current.downcast_ref::<connector::Error>() {
            return Error::Connection(connection.clone());
        }
        next = current.source();
    }
    Error::Protocol { reason: words(error) }
}

/// Returns the message of the innermost cause.
pub(super) fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
