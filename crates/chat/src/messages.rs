//! Answers in the format of Anthropic's Messages API, which an upstream gives and the router passes
//! on: the model's name, the cost, and the events that end a stream.

use bytes::Bytes;
use serde_json::json;

use super::error::Failure;
use super::whole::with_cost;
use orrery_domain::chat::Tokens;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_wire::messages::answer::kind_of;

/// Returns the first event with `shown` as the model's name; `None` if it cannot be parsed.
pub(super) fn renamed(data: &[u8], shown: &str) -> Option<Bytes> {
    let mut event: RawObject = serde_json::from_slice(data).ok()?;
    let mut message: RawObject = event.value("message")?;
    message.set("model", shown).ok()?;
    event.set("message", &message).ok()?;
    Some(named("message_start", &event.text().ok()?))
}

/// Returns the events that end a stream: that of the usage, with the cost, and the last.
pub(super) fn end(usage: &[u8], tokens: Tokens, cost: Usd) -> Bytes {
    let event: Option<RawObject> = serde_json::from_slice(usage).ok();
    let text = event.and_then(|mut event| with_cost(&mut event, tokens, cost).ok());
    let usage = named("message_delta", &text.unwrap_or_else(|| usage.to_vec()));
    let stop = named("message_stop", br#"{"type":"message_stop"}"#);
    [usage, stop].concat().into()
}

/// Returns the event that ends a broken stream.
pub(super) fn error_event(failure: &Failure, request_id: &str) -> Bytes {
    let error = json!({"type": kind_of(failure.status), "message": failure.message});
    let event = json!({"type": "error", "error": error, "request_id": request_id});
    named("error", event.to_string().as_bytes())
}

fn named(name: &str, data: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
}
