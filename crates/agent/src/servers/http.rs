//! The HTTP transport to a server. The transport uses the service's own client, with the egress
//! guard and limits. A response is read until the result has arrived; meanwhile, the transport
//! replies to the server's requests. The transport ignores all notifications except progress
//! reports and announcements of changed tools.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, FuturesUnordered};
use http_body_util::BodyExt;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage, ServerNotification};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use sse_stream::Sse;

use super::connection::ANSWER_MAX;
use super::reports::Reports;
use orrery_http::client::Client;
use orrery_http::event_stream::EventReader;
use orrery_http::places::Arriving;
use orrery_http::request::count_values;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// Time limit for a request and its response. Calls have a separate, shorter limit.
const TOTAL: Duration = Duration::from_secs(150);
/// Maximum characters of an error body quoted in messages.
const SHOWN_MAX: usize = 200;
/// Maximum number of JSON values in one message.
const VALUES_MAX: usize = 100_000;
/// Maximum concurrent replies to a server's requests during one call; further requests wait.
const REPLIES_MAX: usize = 16;
/// Time limit for the server to accept a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The JSON-RPC error code for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

/// The reason why a message got no response.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Failed(String);

type Error = StreamableHttpError<Failed>;

fn failed(reason: impl Into<String>) -> Error {
    StreamableHttpError::Client(Failed(reason.into()))
}

/// Sends messages to a server.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    client: Client,
    reports: Reports,
}

impl Sender {
    /// Creates a sender that uses this client and forwards progress to `reports`.
    pub(super) const fn new(client: Client, reports: Reports) -> Self {
        Self { client, reports }
    }

    async fn open(
        &self,
        method: Method,
        url: &str,
        session: Option<Arc<str>>,
        key: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        body: Bytes,
    ) -> Result<Response<Arriving>, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = session {
            request = request.header(SESSION, &*session);
        }
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| failed(error.to_string()))?;
        self.client.open(request).await.map_err(|error| failed(error.to_string()))
    }

    async fn post(
        &self,
        url: &str,
        message: &ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        key: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let body = serde_json::to_vec(message).map_err(StreamableHttpError::Deserialize)?;
        let has_session = session.is_some();
        let asked_session = session.clone();
        let posting =
            self.open(Method::POST, url, session, key.clone(), headers.clone(), body.into());
        let (head, body) = posting.await?.into_parts();
        if head.status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let wants_answer = matches!(message, JsonRpcMessage::Request(_));
        if head.status.is_success() && !wants_answer {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let text = |name: &HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
        let session = text(&SESSION).map(str::to_owned);
        let kind = text(&CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        if kind.trim_start().starts_with("text/event-stream") {
            let session = session.clone().map(Arc::from).or(asked_session);
            let reply = |text: Bytes| {
                let (session, key, headers) = (session.clone(), key.clone(), headers.clone());
                async move {
                    let posting = self.open(Method::POST, url, session, key, headers, text);
                    match tokio::time::timeout(REPLY_TIMEOUT, posting).await {
                        Ok(Ok(_accepted)) => {}
                        Ok(Err(error)) => tracing::debug!(%error, "MCP server rejected a reply"),
                        Err(_elapsed) => tracing::debug!("MCP server did not take a reply in time"),
                    }
                }
            };
            let message = answer_in(body, &self.reports, reply).await?;
            let session = session.map(|session| session.to_string());
            return Ok(StreamableHttpPostResponse::Json(message, session));
        }
        let bytes = whole(body).await?;
        check_values(&bytes)?;
        match serde_json::from_slice::<ServerJsonRpcMessage>(&bytes) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(_) => {
                let shown: String =
                    String::from_utf8_lossy(&bytes).chars().take(SHOWN_MAX).collect();
                Err(failed(format!("it returned {}: {shown}", head.status)))
            }
        }
    }
}

fn too_large() -> Error {
    StreamableHttpError::ResponseBodyTooLarge { max_size: ANSWER_MAX }
}

/// Rejects a message that would take far more memory when parsed than as text.
fn check_values(message: &[u8]) -> Result<(), Error> {
    match count_values(message) > VALUES_MAX {
        true => Err(failed(format!("its response contains more than {VALUES_MAX} JSON values"))),
        false => Ok(()),
    }
}

/// Returns the next piece of a body.
async fn piece(body: &mut Arriving) -> Result<Option<Bytes>, Error> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(failed(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn whole(mut body: Arriving) -> Result<Bytes, Error> {
    let mut read = BytesMut::new();
    while let Some(data) = piece(&mut body).await? {
        if read.len().saturating_add(data.len()) > ANSWER_MAX {
            return Err(too_large());
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// Finds the response in a stream of events. Replies to the server's requests concurrently, because
/// a server may wait for a reply before it responds.
async fn answer_in<F: Future<Output = ()>>(
    mut body: Arriving,
    reports: &Reports,
    reply: impl Fn(Bytes) -> F,
) -> Result<ServerJsonRpcMessage, Error> {
    let mut events = EventReader::new(ANSWER_MAX);
    let mut replies = FuturesUnordered::new();
    let mut total = 0_usize;
    loop {
        let data = tokio::select! {
            Some(()) = replies.next() => continue,
            data = piece(&mut body), if replies.len() < REPLIES_MAX => data?,
        };
        let Some(data) = data else { return Err(StreamableHttpError::UnexpectedEndOfStream) };
        total = total.saturating_add(data.len());
        if total > ANSWER_MAX {
            return Err(too_large());
        }
        events.push(&data);
        while let Some(event) = events.next_event().map_err(|_too_long| too_large())? {
            let Some(data) = event.data.filter(|data| !data.is_empty()) else { continue };
            check_values(&data)?;
            if let Some(text) = reply_to(&data) {
                replies.push(reply(text));
                continue;
            }
            let message: ServerJsonRpcMessage = match serde_json::from_slice(&data) {
                Ok(message) => message,
                Err(error) if has_method(&data) => {
                    tracing::debug!(%error, "unknown notification of an MCP server ignored");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match message {
                JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => return Ok(message),
                JsonRpcMessage::Notification(said) => hear(reports, &said.notification),
                JsonRpcMessage::Request(_) => {}
            }
        }
    }
}

/// Handles a notification from the server.
fn hear(reports: &Reports, said: &ServerNotification) {
    if let ServerNotification::ProgressNotification(progress) = said {
        reports.take(&progress.params);
    }
    if let ServerNotification::ToolListChangedNotification(_) = said {
        reports.tools_changed();
    }
}

/// The fields that distinguish requests and notifications from responses.
#[derive(Deserialize)]
struct Head<'a> {
    method: Option<String>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

fn has_method(message: &[u8]) -> bool {
    serde_json::from_slice::<Head<'_>>(message).is_ok_and(|head| head.method.is_some())
}

/// Returns the reply to a message, if it is a request. Only `ping` is supported.
fn reply_to(message: &[u8]) -> Option<Bytes> {
    let head: Head<'_> = serde_json::from_slice(message).ok()?;
    let (method, id) = (head.method?, head.id?);
    let reply = if method == "ping" {
        json!({"jsonrpc": "2.0", "id": id, "result": {}})
    } else {
        let error = json!({"code": METHOD_NOT_FOUND, "message": "method not supported"});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    };
    Some(reply.to_string().into())
}

impl StreamableHttpClient for Sender {
    type Error = Failed;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let posting = self.post(&uri, &message, session_id, auth_header, custom_headers);
        match tokio::time::timeout(TOTAL, posting).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(failed(format!("no answer within {TOTAL:?}"))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        let session = Some(session_id);
        let deleting =
            self.open(Method::DELETE, &uri, session, auth_header, custom_headers, Bytes::new());
        match tokio::time::timeout(TOTAL, deleting).await {
            Ok(answer) => answer.map(drop),
            Err(_elapsed) => Err(failed(format!("no answer within {TOTAL:?}"))),
        }
    }

    /// Declines to open a stream for notifications from the server.
    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}
