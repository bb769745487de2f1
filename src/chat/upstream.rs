//! One try at a model's server: a connection, the request, and the first byte of the answer, each
//! within its time.
//!
//! Only a connection that was not made is tried again: nothing of the request has left this machine
//! then. A model that has several servers is also asked for at another one where nothing can have come
//! of the request (`runners::endpoints`). What a server answers other than success is a [`Failure`], with the server's status.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER,
};
use hyper::{Request, Response};
use tokio::time::{Instant, timeout_at};

use super::error::Failure;
use super::meter::{Meter, Seen, cut, said_of};
use super::relay::EVENT_MAX;
use super::route::Target;
use super::service::Inner;
use crate::domain::classify::ErrorClass;
use crate::domain::trace;
use crate::http::event_stream::EventReader;
use crate::http::places::Arriving;
use crate::http::sse::HEARTBEAT;
use crate::http::{client, connector, trace_context};
use crate::runners::endpoints::{self, Lease, Pool};
use crate::runners::llm::{InUse, OpenError};
use crate::runtime;

/// How often a connection is tried.
const CONNECTS_MAX: u32 = 2;
/// What some servers put in front of JSON.
pub const BOM: &[u8] = b"\xef\xbb\xbf";
/// Between two tries.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a refusal that are read, and how long that may take.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer that has begun.
#[derive(Debug)]
pub struct Opened {
    /// Whether it is a stream of events.
    pub is_stream: bool,
    /// Its first bytes; `None` where they have not come yet.
    pub first: Option<Bytes>,
    pub body: Arriving,
    pub limits: Limits,
    /// Keeps a model of this machine loaded until the answer has come.
    pub in_use: Option<InUse>,
    /// The place at a server of the model, on which the end of the answer is noted.
    pub lease: Option<Lease>,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'r> {
    /// The path at a process of this service.
    pub path: &'static str,
    pub body: &'r Bytes,
    pub is_stream: bool,
    /// Whether another model is tried when this one fails.
    pub may_fall_back: bool,
    /// Its span.
    pub call: &'r trace::Call,
}

/// How long a try may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// When it began.
    pub begun: Instant,
    /// Until when the first byte has to come.
    pub first_byte: Instant,
    /// Until when the whole answer has to have come.
    pub whole: Instant,
}

impl Limits {
    /// Of a try that begins now.
    #[must_use]
    pub fn from_now(first_byte: Duration, whole: Duration) -> Self {
        let begun = runtime::monotonic_now();
        let after = |time: Duration| begun.checked_add(time).unwrap_or(begun);
        Self { begun, first_byte: after(first_byte.min(whole)), whole: after(whole) }
    }
}

impl Inner {
    /// Sends a request and waits for the answer to begin; a stream that does not begin before the client
    /// expects a sign of life is given without its first bytes. `name` is the model's, for messages;
    /// with `may_fall_back` a model of this machine that has just failed is not waited for.
    ///
    /// # Errors
    /// [`Failure`]
    pub async fn open(
        &self,
        name: &str,
        target: &Target,
        asked: Asked<'_>,
        limits: Limits,
    ) -> Result<Opened, Failure> {
        let Asked { path, body, is_stream, may_fall_back, call } = asked;
        let accept = if is_stream { "text/event-stream" } else { "application/json" };
        let request = |url: &str| {
            let mut request =
                Request::post(url).header(CONTENT_TYPE, "application/json").header(ACCEPT, accept);
            request = request.header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = target.authorization() {
                request = request.header(AUTHORIZATION, authorization);
            }
            let leaves = !matches!(target, Target::Process(_));
            if let Some(headers) = request.headers_mut().filter(|_| leaves) {
                trace_context::pass_on(headers, call);
            }
            request.body(body.clone()).map_err(|error| {
                let message = format!("the request to the model '{name}' cannot be made: {error}");
                Failure::new(502, ErrorClass::InvalidModelConfig, message)
            })
        };
        let sending = async {
            Ok(match target {
                Target::Server { url, .. } => {
                    (self.connect(name, &request(url)?).await?, None, None)
                }
                Target::Pool { servers, path, .. } => {
                    let request = |url: &str| request(&format!("{url}{path}"));
                    let (answer, lease) = self.connect_to_one(name, servers, request).await?;
                    (answer, None, Some(lease))
                }
                Target::Process(process) => {
                    let opened = process.open(request(path)?, may_fall_back).await;
                    let (answer, in_use) = opened.map_err(|error| unopened(name, &error))?;
                    (answer.map(Arriving::from), Some(in_use), None)
                }
            })
        };
        let answer = timeout_at(limits.first_byte, sending).await;
        let (answer, in_use, mut lease) = answer.map_err(|_elapsed| too_late(name))??;
        if !answer.status().is_success() {
            note(lease.as_mut(), None);
            return Err(refusal(name, answer, target).await);
        }
        let (head, mut body) = answer.into_parts();
        let declared = is_event_stream(&head.headers);
        let begun = match compression(&head.headers) {
            Some(coding) => {
                let what = format!("its answer is compressed ({coding}), which was not asked for");
                Err(misunderstood(name, &what))
            }
            None if !is_stream && !declared => Ok((false, None)),
            None => begin(name, &mut body, limits, declared).await,
        };
        let begun = begun.and_then(|(came_as_stream, first)| match came_as_stream && !is_stream {
            true => Err(misunderstood(name, "its answer is a stream that was not asked for")),
            false => Ok((came_as_stream, first)),
        });
        match begun {
            Ok((is_stream, first)) => Ok(Opened { is_stream, first, body, limits, in_use, lease }),
            Err(failure) => {
                note(lease.as_mut(), Some(&failure));
                Err(failure)
            }
        }
    }

    /// Sends a request to one of a model's servers. One that has no other is tried twice.
    async fn connect_to_one(
        &self,
        name: &str,
        servers: &Pool,
        request: impl Fn(&str) -> Result<Request<Bytes>, Failure>,
    ) -> Result<(Response<Arriving>, Lease), Failure> {
        let mut tries = 1;
        let most = if servers.len() > 1 { 1 } else { CONNECTS_MAX };
        loop {
            match servers.open(&self.client, &request).await {
                Ok(opened) => return Ok(opened),
                Err(endpoints::Error::Unmade(failure)) => return Err(failure),
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

    async fn connect(
        &self,
        name: &str,
        request: &Request<Bytes>,
    ) -> Result<Response<Arriving>, Failure> {
        let mut tries = 1;
        loop {
            match self.client.open(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if tries < CONNECTS_MAX && may_connect_again(&error) => {
                    tries += 1;
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
                Err(error) => return Err(unreached(name, &error)),
            }
        }
    }
}

/// Whether an answer is a stream, by its first bytes, and those bytes; `None` when they have not come
/// before the client expects a sign of life. Media types are not relied on: many servers send others.
///
/// # Errors
/// [`Failure`], also for a stream whose first event is one.
async fn begin(
    name: &str,
    body: &mut Arriving,
    limits: Limits,
    is_declared: bool,
) -> Result<(bool, Option<Bytes>), Failure> {
    let now = runtime::monotonic_now();
    let mut until = limits.first_byte;
    if is_declared {
        until = until.min(now.checked_add(HEARTBEAT).unwrap_or(now));
    }
    let mut read = BytesMut::new();
    let mut events = EventReader::new(EVENT_MAX);
    loop {
        let piece = match timeout_at(until, next(body)).await {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Err(broken(name, &format!("its stream broke: {error}"))),
            Err(_elapsed) if read.is_empty() && until == limits.first_byte => {
                return Err(too_late(name));
            }
            Err(_elapsed) => return Ok((true, (!read.is_empty()).then(|| read.freeze()))),
        };
        let is_over = piece.is_none();
        let mut piece = piece.unwrap_or_default();
        if read.is_empty() {
            piece =
                piece.strip_prefix(BOM).map_or_else(|| piece.clone(), |rest| piece.slice_ref(rest));
        }
        read.extend_from_slice(&piece);
        match read.trim_ascii_start().first() {
            Some(b'{' | b'[') => return Ok((false, Some(read.freeze()))),
            Some(b'<') => return Err(misunderstood(name, "its answer is an HTML or XML page")),
            None if is_over => return Err(broken(name, "its stream ended before it began")),
            Some(_) if is_over => return Ok((true, Some(read.freeze()))),
            Some(_) | None => {}
        }
        events.push(&piece);
        while let Ok(Some(event)) = events.next_event() {
            let Some(data) = event.data.filter(|data| !data.trim_ascii().is_empty()) else {
                continue;
            };
            check_first(name, &data)?;
            return Ok((true, Some(read.freeze())));
        }
        if read.len() > EVENT_MAX {
            return Ok((true, Some(read.freeze())));
        }
    }
}

/// Refuses a stream that begins with its failure, while another model can still be tried.
fn check_first(name: &str, data: &[u8]) -> Result<(), Failure> {
    if data.trim_ascii() == b"[DONE]" {
        return Err(misunderstood(name, "its stream has no answer"));
    }
    match Meter::new(0, false).event(data)? {
        Seen::Failed(failure) => Err(*failure),
        Seen::Part | Seen::Usage => Ok(()),
    }
}

/// The failure of an answer that is not what was asked for.
pub fn misunderstood(name: &str, what: &str) -> Failure {
    Failure::new(502, ErrorClass::ProviderError, format!("the model '{name}': {what}"))
}

/// The content coding of an answer, if it has one.
fn compression(headers: &HeaderMap) -> Option<String> {
    let coding = headers.get(CONTENT_ENCODING)?;
    let coding = coding.to_str().unwrap_or("unknown").trim();
    (!coding.is_empty() && !coding.eq_ignore_ascii_case("identity")).then(|| cut(coding))
}

/// Notes how an answer ended on the place at the server that gave it.
pub fn note(lease: Option<&mut Lease>, failure: Option<&Failure>) {
    if let Some(lease) = lease {
        lease.note(failure.map(Failure::recorded).as_ref());
    }
}

/// The next bytes of a body; `None` at its end.
///
/// # Errors
/// When it breaks off.
pub async fn next(body: &mut Arriving) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The failure of an answer that broke off, with what was seen of it.
pub fn broken(name: &str, what: &str) -> Failure {
    let message = format!("the model '{name}': {what}");
    Failure::new(502, ErrorClass::ProviderUnavailable, message)
}

/// The failure of an answer that takes too long.
pub fn too_late(name: &str) -> Failure {
    let message = format!("the model '{name}' did not answer in time");
    Failure::new(504, ErrorClass::ExecutionTimeout, message)
}

/// Whether nothing of the request has left this machine, and another try may do better. A connection
/// that was waited for in vain is not waited for again.
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

/// The failure of a model of this machine whose process is not there.
pub fn unopened(name: &str, error: &OpenError) -> Failure {
    let (status, class, reason) = match error {
        OpenError::Unavailable(reason) => (503, ErrorClass::ProviderUnavailable, reason),
        OpenError::Ended(reason) => (502, ErrorClass::ProviderError, reason),
    };
    Failure::new(status, class, format!("the model '{name}': {reason}"))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// What a server says that does not answer. Its status stays, except where it speaks of this service's
/// own key or account, or where it is not an answer: then it is 502.
async fn refusal(name: &str, answer: Response<Arriving>, target: &Target) -> Failure {
    let status = answer.status().as_u16();
    let retry_after = answer.headers().get(RETRY_AFTER).cloned();
    let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
    if matches!(status, 401 | 402 | 407) {
        let message = format!("the server of the model '{name}' refuses this service ({status})");
        return Failure::new(502, ErrorClass::ProviderAuth, message);
    }
    let text = read_refusal(answer.into_body()).await;
    let key = target.authorization().and_then(|value| value.to_str().ok());
    let key = key.and_then(|value| value.strip_prefix("Bearer ")).filter(|key| !key.is_empty());
    let text = match key {
        Some(key) => text.replace(key, "…"),
        None => text,
    };
    let body: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let mut failure = match body.get("error") {
        Some(error) if !error.is_null() => said_of(status, error.to_string().as_bytes()),
        Some(_) | None => {
            let said = if text.trim().is_empty() { "nothing more" } else { text.trim() };
            let message = format!("the model '{name}' answered {status}: {}", cut(said));
            Failure::new(status, class, message)
        }
    };
    failure.said.retry_after = retry_after;
    if !(400..600).contains(&status) {
        failure.status = 502;
    }
    failure
}

/// The beginning of a refusal, as far as it comes in time.
async fn read_refusal(mut body: Arriving) -> String {
    let mut read = BytesMut::new();
    let reading = async {
        while let Ok(Some(data)) = next(&mut body).await {
            let room = REFUSAL_BYTES_MAX.saturating_sub(read.len());
            read.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
            if read.len() >= REFUSAL_BYTES_MAX {
                return;
            }
        }
    };
    // What has come by then has to do.
    let _ended = tokio::time::timeout(REFUSAL_TIMEOUT, reading).await;
    String::from_utf8_lossy(&read).into_owned()
}
