//! `POST /mcp` on the agent's host: the Model Context Protocol over Streamable HTTP, without
//! sessions (`docs/spec/mcp.md`, "Messages"). `agent::mcp` handles the messages. This module
//! handles the headers and the origin, and chooses between JSON and an event stream for the
//! response.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, ORIGIN};
use serde_json::Value;
use url::{Host, Url};

use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::{Context, Services};
use orrery_agent::mcp::{Call, Headers, Next, Reply, not_json};
use orrery_chat::Caller;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_http::request::parse_value;
use orrery_http::sse::{self, HEARTBEAT};
use orrery_http::{Response, response, trace_context};
use orrery_wire::mcp;

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
const STOPPING: &str = "the service is shutting down; the call resumes after the restart";

pub(crate) const POST: Doc = Doc {
    request: Some(RequestDoc::json::<mcp::Request>()),
    responses: &[
        ResponseDoc::json_or_events::<mcp::Response, mcp::StreamEvent>(
            200,
            "The response; server-sent events if a call reports progress or takes long",
        ),
        ResponseDoc::empty(202, "A notification was accepted"),
        ResponseDoc::json::<mcp::Response>(
            400,
            "The message is malformed, or its headers contradict it",
        ),
        ResponseDoc::error(403, "The request comes from a page of another origin"),
        ResponseDoc::json::<mcp::Response>(404, "Method not found"),
    ],
    description: "Receives one JSON-RPC 2.0 message of the Model Context Protocol (Streamable \
                  HTTP, without sessions); models and workflows are its tools. A request returns \
                  200 and a notification 202; batches are rejected. A tool call that reports \
                  progress, or takes more than 15 s, returns a stream if the client accepts \
                  `text/event-stream`. A failed run, an invalid input or an insufficient balance \
                  is a result with `isError`, not an HTTP error.",
    ..Doc::new("mcp", "post_mcp_message", "Send a message of the Model Context Protocol")
};

/// `POST /mcp`
pub(crate) async fn post(mut context: Context) -> Result<Response, crate::Error> {
    check_origin(&context)?;
    let source = context.source();
    let caller = context.caller()?;
    let organization = caller.organization;
    let key = caller.key;
    let bytes = context.request.body().await?;
    let message = match parse_value(&bytes) {
        Ok(message) => message,
        Err(error) => {
            let refusal = not_json(error.explanation());
            return Ok(response::json(StatusCode::BAD_REQUEST, &refusal));
        }
    };
    let services = &context.services;
    let headers = &context.request.headers;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = trace_context::of(headers);
    let named = Headers {
        version: text("mcp-protocol-version"),
        method: text("mcp-method"),
        name: text("mcp-name"),
        origin: origin.as_ref(),
    };
    let caller = Caller { organization, key, source };
    let takes_events = takes_events(headers);
    match services.agent.answer_mcp(caller, &named, message).await? {
        Reply::Accepted => Ok(response::empty(StatusCode::ACCEPTED)),
        Reply::Message(status, message) => Ok(response::json(status, &message)),
        Reply::Call(call) => follow(services, *call, organization, key, takes_events).await,
    }
}

/// Rejects requests from pages of other origins. Otherwise, a page of another origin could read
/// responses of a service that is reachable only from the browser's machine. Programs other than
/// browsers send no `Origin`.
fn check_origin(context: &Context) -> Result<(), crate::Error> {
    let headers = &context.request.headers;
    // On the dashboard's host, the origin was already checked.
    let Some(origin) = headers.get(ORIGIN).filter(|_| context.site().is_err()) else {
        return Ok(());
    };
    let settings = &context.services.settings;
    let live = context.services.live.load();
    let origin = origin.to_str().unwrap_or_default();
    let is_allowed = live.cors_origins.iter().any(|one| one == "*" || one == origin);
    let hosts = settings.hosts.iter().filter_map(|host| Url::parse(&host.url).ok());
    let is_own = hosts.into_iter().any(|host| is_origin_of(&host, origin));
    if is_allowed || is_own {
        return Ok(());
    }
    let message = "origin not allowed: add it to cors.allow_origins in the configuration";
    Err(crate::Error::status(StatusCode::FORBIDDEN, message))
}

/// Returns whether pages with this origin come from the host. All names for the local machine are
/// equivalent, because no other machine can serve pages under these names.
fn is_origin_of(host: &Url, origin: &str) -> bool {
    if host.origin().ascii_serialization() == origin {
        return true;
    }
    let is_loopback = |url: &Url| match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    Url::parse(origin).is_ok_and(|origin| {
        is_loopback(host)
            && is_loopback(&origin)
            && origin.scheme() == host.scheme()
            && origin.port_or_known_default() == host.port_or_known_default()
    })
}

/// Returns whether the client accepts server-sent events.
fn takes_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|list| list.split(',')).any(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        range.eq_ignore_ascii_case("text/event-stream")
    })
}

/// Returns the response to a call: JSON if the result is available soon or the client accepts only
/// JSON, otherwise an event stream.
async fn follow(
    services: &Arc<Services>,
    mut call: Call,
    organization: OrganizationId,
    key: KeyId,
    takes_events: bool,
) -> Result<Response, crate::Error> {
    if !(takes_events && call.has_progress()) {
        let soon = async {
            if takes_events {
                tokio::time::sleep(HEARTBEAT).await;
            } else {
                std::future::pending().await
            }
        };
        let answer = async {
            loop {
                if let Next::Answer(answer) = call.next().await? {
                    return Ok::<Value, crate::Error>(answer);
                }
            }
        };
        tokio::select! {
            answer = answer => return Ok(response::json(StatusCode::OK, &answer?)),
            () = soon => {}
            () = services.engine.stopping() => return Err(crate::Error::unavailable(STOPPING)),
        }
    }
    let of_key = Arc::clone(services);
    let over = Box::pin(async move { of_key.accounts.ended(organization, key).await });
    let watch = Watch { services: Arc::clone(services), call, over, is_done: false };
    Ok(sse::stream(stream::unfold(watch, |mut watch| async move {
        let piece = watch.next().await?;
        Some((piece, watch))
    })))
}

/// A client that follows a call.
struct Watch {
    services: Arc<Services>,
    call: Call,
    /// Resolves when the client's key is no longer valid.
    over: BoxFuture<'static, ()>,
    is_done: bool,
}

impl Watch {
    /// Returns the next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let next = tokio::select! {
            next = self.call.next() => next,
            () = self.services.engine.stopping() => {
                self.is_done = true;
                return Some(event(&self.call.refusal(STOPPING)));
            }
            () = &mut self.over => return None,
            () = tokio::time::sleep(HEARTBEAT) => return Some(Bytes::from_static(KEEP_ALIVE)),
        };
        Some(match next {
            Ok(Next::Progress(message)) => event(&message),
            Ok(Next::Answer(message)) => {
                self.is_done = true;
                event(&message)
            }
            Err(error) => {
                tracing::error!(%error, "failed to follow an MCP call");
                self.is_done = true;
                event(&self.call.refusal("the service cannot read its store at the moment"))
            }
        })
    }
}

fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn mcp_origin_may_use_any_name_of_the_local_machine() {
        for (host, origin, expected) in [
            ("http://127.0.0.1:8083", "http://127.0.0.1:8083", true),
            ("http://127.0.0.1:8083", "http://localhost:8083", true),
            ("http://[::1]:8083", "http://localhost:8083", true),
            ("http://localhost:8083", "http://127.0.0.1:8083", true),
            ("http://127.0.0.1:8083", "http://localhost:8084", false),
            ("http://127.0.0.1:8083", "https://localhost:8083", false),
            ("http://127.0.0.1:8083", "http://localhost.evil.example:8083", false),
            ("http://127.0.0.1:8083", "null", false),
            ("https://ai.example", "https://localhost", false),
            ("https://ai.example", "https://ai.example", true),
        ] {
            assert_eq!(is_origin_of(&Url::parse(host).unwrap(), origin), expected, "{origin}");
        }
    }

    #[test]
    fn mcp_client_accepts_events_by_its_accept_header() {
        for (accept, expected) in [
            ("application/json, text/event-stream", true),
            ("text/event-stream;q=0.5", true),
            ("Text/Event-Stream", true),
            ("application/json", false),
            ("*/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(takes_events(&headers), expected, "{accept}");
        }
        assert!(!takes_events(&HeaderMap::new()));
    }
}
