//! Makes one attempt to call a model's server: the connection, the request, and the first byte of
//! the response, each within its time limit.
//!
//! Only a failed connection is retried, because no part of the request has left this machine in
//! that case. If a model has several servers, the next server is tried as long as the request
//! cannot have had an effect (`runners::endpoints`). A response with an error status becomes a
//! [`Failure`] with that status.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use hyper::{Request, Response};
use tokio::time::{Instant, timeout_at};

use super::error::Failure;
use super::route::Target;
use super::service::Inner;
use super::upstreams::{ANTHROPIC_VERSION, Translation};
use orrery_domain::classify::ErrorClass;
use orrery_domain::trace;
use orrery_http::places::Arriving;
use orrery_http::{self as http, body, client, connector, trace_context};
use orrery_runners::endpoints::{self, Lease, Pool};
use orrery_runners::llm::{InUse, OpenError};
use orrery_runners::openai::answer::{self, Body, begin, is_event_stream};
use orrery_runners::openai::failure::too_late;
use orrery_runtime as runtime;

/// The media types of answers, for `Accept`.
pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENTS: &str = "text/event-stream";
/// Maximum number of connection attempts.
const CONNECTS_MAX: u32 = 2;
/// Delay between two connection attempts.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// A response that has started to arrive.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Whether the response is an event stream.
    pub is_stream: bool,
    /// The first bytes of the response; `None` if none have arrived yet.
    pub first: Option<Bytes>,
    pub body: Body,
    pub headers: HeaderMap,
    pub limits: Limits,
    /// Keeps a local model loaded until the response is complete.
    pub in_use: Option<InUse>,
    /// The lease of the server, on which the outcome is recorded.
    pub lease: Option<Lease>,
}

/// A request to send.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'r> {
    /// The path of the request's URL, without `/v1`.
    pub path: &'static str,
    pub content: &'r dyn Content,
    /// The media type of the answer, for `Accept`.
    pub accept: &'static str,
    /// Whether another model can be tried if this model fails.
    pub may_fall_back: bool,
    /// The trace span of the call.
    pub call: &'r trace::Call,
}

/// The body of a request, which may be sent several times.
pub(crate) trait Content: Send + Sync {
    /// Returns the value of `Content-Type`.
    fn media_type(&self) -> String {
        JSON.to_owned()
    }

    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Starts the body.
    fn body(&self) -> http::Body;

    /// Returns the whole body, if it is in memory.
    fn whole(&self) -> Option<Bytes> {
        None
    }

    /// Whether the body has the format of Anthropic's Messages API.
    fn is_message(&self) -> bool {
        false
    }

    /// Adds headers of the request.
    fn add_headers(&self, _headers: &mut HeaderMap) {}
}

/// A request in the format of Anthropic's Messages API.
pub(crate) struct NativeMessage {
    pub body: Bytes,
    /// The header `anthropic-beta`.
    pub beta: Option<HeaderValue>,
}

impl Content for NativeMessage {
    fn size(&self) -> u64 {
        self.body.size()
    }

    fn body(&self) -> http::Body {
        self.body.body()
    }

    fn is_message(&self) -> bool {
        true
    }

    fn add_headers(&self, headers: &mut HeaderMap) {
        let version = HeaderValue::from_static(ANTHROPIC_VERSION);
        headers.insert(HeaderName::from_static("anthropic-version"), version);
        if let Some(beta) = &self.beta {
            headers.insert(HeaderName::from_static("anthropic-beta"), beta.clone());
        }
    }
}

impl Content for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn body(&self) -> http::Body {
        body::full(self.clone())
    }

    fn whole(&self) -> Option<Bytes> {
        Some(self.clone())
    }
}

/// A response whose body has not been examined.
#[derive(Debug)]
pub(crate) struct Responded {
    pub headers: HeaderMap,
    pub arriving: Arriving,
    pub in_use: Option<InUse>,
    pub lease: Option<Lease>,
    pub translation: Option<Box<Translation>>,
}

/// The time limits of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The time at which the attempt began.
    pub begun: Instant,
    /// The deadline for the first byte.
    pub first_byte: Instant,
    /// The deadline for the complete response.
    pub whole: Instant,
    /// Maximum time between two pieces of the response.
    pub idle: Duration,
}

impl Limits {
    /// Creates limits for an attempt that begins now.
    #[must_use]
    pub(crate) fn from_now(first_byte: Duration, whole: Duration, idle: Duration) -> Self {
        let begun = runtime::monotonic_now();
        let after = |time: Duration| begun.checked_add(time).unwrap_or(begun);
        Self { begun, first_byte: after(first_byte.min(whole)), whole: after(whole), idle }
    }
}

impl Inner {
    /// Sends a request and waits for the response to begin. If a stream has not begun when the
    /// client's first keep-alive is due, the stream is returned without its first bytes. `name` is
    /// the model's name for messages. With `may_fall_back`, the call does not wait for a local
    /// model that has just failed.
    ///
    /// # Errors
    /// [`Failure`]
    pub(crate) async fn open(
        &self,
        name: &str,
        target: &Target,
        asked: Asked<'_>,
        is_stream: bool,
        limits: Limits,
    ) -> Result<Opened, Failure> {
        let responded = self.respond(name, target, asked, limits).await?;
        let Responded { headers, arriving, in_use, mut lease, translation } = responded;
        let declared = is_event_stream(&headers);
        let begun = async {
            let mut body = Body::of(name, &headers, arriving)?;
            if let Some(translation) = translation {
                body = body.translated(translation);
            }
            let (came_as_stream, first) = if is_stream || declared {
                begin(name, &mut body, limits.first_byte, declared).await?
            } else {
                (false, None)
            };
            // A stream that the client did not request is read to its end.
            Ok((came_as_stream && is_stream, first, body))
        };
        match begun.await {
            Ok((is_stream, first, body)) => {
                Ok(Opened { is_stream, first, body, headers, limits, in_use, lease })
            }
            Err(failure) => {
                let failure = target.masked(failure);
                note(lease.as_mut(), Some(&failure));
                Err(failure)
            }
        }
    }

    /// Sends a request and waits for the head of a successful response.
    ///
    /// # Errors
    /// [`Failure`], also for an error status.
    pub(crate) async fn respond(
        &self,
        name: &str,
        target: &Target,
        asked: Asked<'_>,
        limits: Limits,
    ) -> Result<Responded, Failure> {
        let translated = match target {
            Target::Upstream(used) if used.is_anthropic() && !asked.content.is_message() => {
                let created = self.clock.now().unix_seconds();
                Some(Translation::begin(name, asked.content, created).await?)
            }
            Target::Upstream(_) | Target::Pool { .. } | Target::Process(_) => None,
        };
        let (content, translation) = translated.unzip();
        let content = content.as_ref().map_or(asked.content, |content| content as &dyn Content);
        let asked = Asked { content, ..asked };
        let Asked { path, may_fall_back, .. } = asked;
        let request = |url: &str| request(name, url, target, asked);
        let sending = async {
            Ok(match target {
                Target::Upstream(used) => {
                    let servers = &used.upstream.servers;
                    let request = |url: &str| request(&used.url(url, path));
                    let tries = if may_fall_back { 1 } else { CONNECTS_MAX };
                    let opened = self.connect_to_one(name, servers, request, tries).await;
                    let (answer, lease) = opened?;
                    (answer, None, Some(lease))
                }
                Target::Pool { servers, path, .. } => {
                    let request = |url: &str| request(&format!("{url}{path}"));
                    let tries = if servers.len() > 1 { 1 } else { CONNECTS_MAX };
                    let opened = self.connect_to_one(name, servers, request, tries).await;
                    let (answer, lease) = opened?;
                    (answer, None, Some(lease))
                }
                Target::Process(process) => {
                    let (head, _unsent) = request(path)?.into_parts();
                    let request = || Request::from_parts(head.clone(), content.body());
                    let opened = process.open(request, may_fall_back).await;
                    let (answer, in_use) = opened.map_err(|error| unopened(name, &error))?;
                    (answer.map(Arriving::from), Some(in_use), None)
                }
            })
        };
        let answer = timeout_at(limits.first_byte, sending).await;
        let (answer, in_use, mut lease) = answer.map_err(|_elapsed| too_late(name))??;
        let (head, arriving) = answer.into_parts();
        if !head.status.is_success() {
            let failure =
                target.masked(answer::refusal(name, &head, arriving, target.secret()).await);
            // A status below 500 is the server's answer to the request.
            note(lease.as_mut(), Some(&failure).filter(|_| head.status.is_server_error()));
            return Err(failure);
        }
        let translation = translation.map(Box::new);
        Ok(Responded { headers: head.headers, arriving, in_use, lease, translation })
    }

    /// Sends a request to one of a model's servers. A failed connection is tried up to `most` times.
    async fn connect_to_one(
        &self,
        name: &str,
        servers: &Pool,
        request: impl Fn(&str) -> Result<Request<http::Body>, Failure>,
        most: u32,
    ) -> Result<(Response<Arriving>, Lease), Failure> {
        let mut tries = 1;
        loop {
            match servers.open_streaming(&self.client, &request).await {
                Ok(opened) => return Ok(opened),
                Err(endpoints::Error::Unmade(failure)) => return Err(failure),
                Err(endpoints::Error::Unstarted(reason)) => {
                    let message = format!("the model '{name}': {reason}");
                    return Err(Failure::new(503, ErrorClass::ProviderUnavailable, message));
                }
                Err(endpoints::Error::Client(error))
                    if tries < most && may_connect_again(&error) =>
                {
                    tries += 1;
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
                Err(endpoints::Error::Client(error)) => return Err(unreached(name, &error)),
            }
        }
    }
}

/// Builds the request to one server.
fn request(
    name: &str,
    url: &str,
    target: &Target,
    asked: Asked<'_>,
) -> Result<Request<http::Body>, Failure> {
    let Asked { content, accept, call, .. } = asked;
    let mut request = Request::post(url)
        .header(CONTENT_TYPE, content.media_type())
        .header(CONTENT_LENGTH, content.size())
        .header(ACCEPT, accept)
        .header(ACCEPT_ENCODING, "identity");
    if let Some(headers) = request.headers_mut() {
        content.add_headers(headers);
        target.add_headers(headers);
    }
    let leaves = !matches!(target, Target::Process(_));
    if let Some(headers) = request.headers_mut().filter(|_| leaves) {
        trace_context::pass_on(headers, call);
    }
    request.body(content.body()).map_err(|error| {
        let message = format!("cannot build the request to the model '{name}': {error}");
        Failure::new(502, ErrorClass::InvalidModelConfig, message)
    })
}

/// Records the outcome of a response on the server's lease. A server that rejects a request is well.
pub(crate) fn note(lease: Option<&mut Lease>, failure: Option<&Failure>) {
    if let Some(lease) = lease {
        let failure = failure.filter(|failure| !failure.is_of_request());
        lease.note(failure.map(Failure::recorded).as_ref());
    }
}

/// Returns whether no part of the request has left this machine and another attempt may succeed. A
/// connection that timed out is not retried.
fn may_connect_again(error: &client::Error) -> bool {
    use connector::Error as E;
    match error {
        client::Error::Connection(
            E::Connect { .. } | E::Tls { .. } | E::Resolve { .. } | E::Local { .. },
        ) => true,
        client::Error::Connection(
            E::Timeout { .. } | E::Forbidden(_) | E::LeadsAstray { .. } | E::NoHost,
        )
        | client::Error::Timeout { .. }
        | client::Error::TooLarge { .. }
        | client::Error::Content(_)
        | client::Error::Protocol { .. } => false,
    }
}

fn unreached(name: &str, error: &client::Error) -> Failure {
    let status = match error {
        client::Error::Connection(_) => 503,
        client::Error::Timeout { .. } => 504,
        client::Error::TooLarge { .. }
        | client::Error::Content(_)
        | client::Error::Protocol { .. } => 502,
    };
    let message = format!("the model '{name}': {error}");
    Failure::new(status, ErrorClass::ProviderUnavailable, message)
}

/// Returns the failure for a local model whose process is not available.
pub(crate) fn unopened(name: &str, error: &OpenError) -> Failure {
    let (status, class, reason) = match error {
        OpenError::Unavailable(reason) => (503, ErrorClass::ProviderUnavailable, reason),
        OpenError::Ended(reason) => (502, ErrorClass::ProviderError, reason),
    };
    Failure::new(status, class, format!("the model '{name}': {reason}"))
}
