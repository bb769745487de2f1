//! Connects to the host of a URL: resolver, egress guard, TCP and TLS.
//!
//! The guard checks each address after the name has been resolved and immediately before
//! connecting; no connection bypasses it. A static binary has no system resolver, so names are
//! resolved here, with the machine's hosts file and name servers.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::egress::{Forbidden, Policy};
use super::places::{Places, Socket};
use orrery_runtime::shortage::{is_shortage, mentions_shortage};

/// Delay between attempts to get a file descriptor while idle connections are being closed.
const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of addresses tried per name.
const ADDRESSES_MAX: usize = 8;

/// A connection that could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("the name {host} cannot be resolved: {reason}")]
    Resolve { host: String, reason: String },
    /// The URL's host is this forbidden address.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("the name {host} resolves to a forbidden address: {forbidden}")]
    LeadsAstray { host: String, forbidden: Forbidden },
    #[error("cannot connect to {address}: {reason}")]
    Connect { address: SocketAddr, reason: String },
    #[error("no TLS connection with {host}: {reason}")]
    Tls { host: String, reason: String },
    #[error("no connection with {host} within {limit:?}")]
    Timeout { host: String, limit: Duration },
    #[error("the URL has no host")]
    NoHost,
    /// This machine lacks resources (file descriptors, memory) for a connection. The error does not
    /// depend on the remote host.
    #[error("this machine has no resources left for a connection: {reason}")]
    Local { reason: String },
}

/// A failed name lookup.
#[derive(Debug, Clone)]
pub struct Unresolved {
    pub reason: String,
    /// Whether the lookup failed because this machine lacks resources; the name itself may be
    /// valid.
    pub is_local: bool,
}

impl From<String> for Unresolved {
    fn from(reason: String) -> Self {
        Self { is_local: mentions_shortage(&reason), reason }
    }
}

/// A future that resolves to the addresses of a name.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, Unresolved>> + Send + 'a>>;

/// Resolves names; replaceable in tests.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// Returns the addresses of `host`, or the reason for the failed lookup.
    fn resolve<'a>(&'a self, host: &'a str) -> Resolving<'a>;

    /// Like [`Resolve::resolve`], but queries no name server.
    fn resolve_here<'a>(&'a self, host: &'a str) -> Resolving<'a>;
}

/// Resolves names with the machine's hosts file and name servers.
#[derive(Debug)]
pub struct SystemResolver {
    resolver: Result<TokioResolver, String>,
}

impl SystemResolver {
    /// Reads the machine's resolver settings. Without any settings, `localhost` can still be
    /// resolved.
    #[must_use]
    pub fn new() -> Self {
        let resolver = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        Self { resolver: resolver.map_err(|error| error.to_string()) }
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self::new()
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            if name == "localhost" || name.ends_with(".localhost") {
                return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
            }
            let resolver = self.resolver.as_ref().map_err(|reason| reason.clone())?;
            let found = resolver.lookup_ip(host).await.map_err(|error| unresolved(&error))?;
            Ok(found.iter().collect())
        })
    }

    fn resolve_here<'a>(&'a self, host: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            let text = tokio::fs::read_to_string(HOSTS_FILE).await;
            let found = in_hosts_file(&text.map_err(|error| error.to_string())?, host);
            if found.is_empty() { Err(NOT_HERE.to_owned().into()) } else { Ok(found) }
        })
    }
}

/// Returns a readable reason for a failed lookup, because the resolver's own messages contain Rust
/// types.
fn unresolved(error: &hickory_resolver::net::NetError) -> String {
    if error.is_nx_domain() {
        return "there is no such name".to_owned();
    }
    if error.is_no_records_found() {
        return "the name has no address".to_owned();
    }
    let text = error.to_string();
    // After the first `{` or `(`, the message is a debug rendering of types.
    let end = text.find(['{', '(']).unwrap_or(text.len());
    let words = text.get(..end).unwrap_or_default().trim_end();
    format!("{words}; check this machine's name servers (/etc/resolv.conf)")
}

const HOSTS_FILE: &str = "/etc/hosts";
const NOT_HERE: &str =
    "single-label names are looked up only in the hosts file (egress.single_label_names)";

/// Returns the addresses of a name in a hosts file.
fn in_hosts_file(text: &str, host: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let addresses = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    });
    addresses.collect()
}

/// Returns whether a name has only one label and is not `localhost`.
fn is_single_label(host: &str) -> bool {
    let name = host.trim_end_matches('.');
    !name.contains('.') && !name.eq_ignore_ascii_case("localhost")
}

/// Opens connections.
#[derive(Clone)]
pub struct Connector {
    pub(super) resolver: Arc<dyn Resolve>,
    /// `None` for the operator's own URLs, which are not guarded.
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) tls: TlsConnector,
    pub(super) timeout: Duration,
    pub(super) places: Arc<Places>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Connector {
    async fn connect(self, uri: Uri) -> Result<Stream, Error> {
        let host = uri.host().ok_or(Error::NoHost)?;
        self.in_time(host, self.connect_to(&uri, host)).await
    }

    /// Opens a TCP connection without TLS. Also returns its descriptor, which is counted.
    ///
    /// # Errors
    /// [`Error`]; also returned if the guard permits none of the host's addresses.
    pub(super) async fn connect_plain(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(TcpStream, Socket), Error> {
        self.in_time(host, self.connect_tcp(bare(host), port)).await
    }

    /// Limits `connecting` to the connect time-out.
    async fn in_time<T>(
        &self,
        host: &str,
        connecting: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limit = self.timeout;
        match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(Error::Timeout { host: host.to_owned(), limit }),
        }
    }

    async fn connect_to(&self, uri: &Uri, host: &str) -> Result<Stream, Error> {
        let is_https = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let bare = bare(host);
        let (stream, socket) = self.connect_tcp(bare, port).await?;
        if !is_https {
            return Ok(Stream {
                io: TokioIo::new(Box::new(stream)),
                is_http2: false,
                _socket: socket,
            });
        }
        let fault = |reason: String| Error::Tls { host: host.to_owned(), reason };
        let name =
            ServerName::try_from(bare.to_owned()).map_err(|error| fault(error.to_string()))?;
        let stream =
            self.tls.connect(name, stream).await.map_err(|error| fault(error.to_string()))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Stream { io: TokioIo::new(Box::new(stream)), is_http2, _socket: socket })
    }

    /// Tries the permitted addresses one after the other. If all attempts fail, returns the last
    /// error.
    async fn connect_tcp(&self, host: &str, port: u16) -> Result<(TcpStream, Socket), Error> {
        let literal = host.parse::<IpAddr>().ok();
        let addresses = match literal {
            Some(address) => vec![address],
            None => {
                let stays_here =
                    self.policy.as_ref().is_some_and(|it| !it.looks_up_single_labels());
                let resolving = if stays_here && is_single_label(host) {
                    self.resolver.resolve_here(host)
                } else {
                    self.resolver.resolve(host)
                };
                resolving.await.map_err(|error| match error {
                    Unresolved { reason, is_local: true } => Error::Local { reason },
                    Unresolved { reason, is_local: false } => {
                        Error::Resolve { host: host.to_owned(), reason }
                    }
                })?
            }
        };
        let socket = self.socket().await;
        let mut refusal =
            Error::Resolve { host: host.to_owned(), reason: "it has no address".to_owned() };
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            if let Some(Err(forbidden)) = self.policy.as_ref().map(|p| p.permits(address)) {
                refusal = match literal {
                    Some(_) => forbidden.into(),
                    None => Error::LeadsAstray { host: host.to_owned(), forbidden },
                };
                continue;
            }
            let address = SocketAddr::new(address, port);
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok((without_delay(stream), socket)),
                Err(error) if is_shortage(&error) => {
                    return Err(Error::Local { reason: error.to_string() });
                }
                Err(error) => refusal = Error::Connect { address, reason: reason(&error) },
            }
        }
        Err(refusal)
    }

    /// Takes a descriptor from this client's share. If no descriptor is free, waits until idle
    /// connections are closed.
    async fn socket(&self) -> Socket {
        loop {
            if let Some(socket) = self.places.open() {
                return socket;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }
}

/// Returns a host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Sends small writes immediately (`TCP_NODELAY`).
fn without_delay(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set socket option");
    }
    stream
}

/// Describes a connection error independently of the platform.
fn reason(error: &io::Error) -> String {
    let kind = error.kind();
    if kind == io::ErrorKind::ConnectionRefused {
        "connection refused".to_owned()
    } else if matches!(kind, io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) {
        "not reachable".to_owned()
    } else {
        error.to_string()
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Io for T {}

/// A connection, with or without TLS.
pub struct Stream {
    io: TokioIo<Box<dyn Io>>,
    is_http2: bool,
    _socket: Socket,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("is_http2", &self.is_http2).finish_non_exhaustive()
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        if self.is_http2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_lookup_handles_comments_aliases_and_case() {
        let text = "# comment 9.9.9.9 nas\n10.0.0.5\tNAS nas.lan # nas2\nfd00::5 nas\nbad nas\n";
        let addresses = |host| in_hosts_file(text, host);
        assert_eq!(addresses("nas").len(), 2);
        assert_eq!(addresses("nas.lan"), ["10.0.0.5".parse::<IpAddr>().unwrap()]);
        assert!(addresses("nas2").is_empty());
        for (host, expect) in
            [("nas", true), ("nas.", true), ("nas.lan", false), ("localhost", false)]
        {
            assert_eq!(is_single_label(host), expect, "{host}");
        }
    }
}
