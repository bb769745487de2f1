//! The event stream of a prediction: `output`, `logs`, `error`, and finally `done`.
//!
//! Replicate's stream has no event that discards earlier output. If output that a client has
//! received becomes invalid, or if output is lost, the stream therefore ends with `error`. A
//! prediction whose model produces its output as a whole has one `output` event.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Context, Doc, NO_PREDICTION, ResponseDoc, Services, doc};
use crate::events::{END, Watch};
use crate::predictions::{id_of, not_found, shown_output};
use orrery_domain::execution::{Execution, Status};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_http::sse::{self, Event};
use orrery_http::{Response, response};
use orrery_wire::replicate::{DoneReason, EventData};

const LOST: &str = "some of the output is no longer available as events: get the prediction";
const AGAIN: &str = "the model has started again after a failure: get the prediction";

pub(crate) const FOLLOW: Doc = Doc {
    responses: &[
        ResponseDoc::events::<EventData>(
            200,
            "Server-sent events: `output`, `logs`, `error`, and finally `done`. Resumable with \
             `Last-Event-ID`",
        ),
        ResponseDoc::empty(204, "The client has already received `done`"),
        NO_PREDICTION,
    ],
    description: "Streams the output and the logs of a prediction, from its start until its end. \
                  Needs an API key or the `token` in `urls.stream`. An `output` that is not a \
                  text is JSON. If the prediction fails, the stream contains an `error` event. \
                  `done` is always the last event.",
    ..doc("replicate_stream_prediction", "Stream the output of a prediction")
};

/// `GET /replicate/v1/predictions/{id}/stream`
pub(crate) async fn follow(context: Context) -> Result<Response, crate::Error> {
    let id = id_of(&context)?;
    let grant = context.grant()?;
    let engine = &context.services.engine;
    let follower = engine.follow(grant.organization, id).await.map_err(not_found)?;
    let Some(watch) = Watch::resume(&context, grant, id, follower) else {
        return Ok(response::empty(StatusCode::NO_CONTENT));
    };
    let retained = watch.follower.events_since(0);
    let mut received = retained.events.iter().take_while(|event| event.number <= watch.seen);
    let has_sent =
        watch.seen > 0 && (retained.has_gap || received.any(|event| event.name == "output"));
    let translation = Translation { has_sent, ..Translation::default() };
    let stream = Stream { watch, translation };
    let events = futures_util::stream::unfold(Some(stream), |stream| async move {
        let mut stream = stream?;
        let (events, has_ended) = stream.next().await?;
        Some((events, (!has_ended).then_some(stream)))
    });
    Ok(sse::response(events))
}

/// The translation of the engine's events.
#[derive(Debug, Default)]
struct Translation {
    /// Whether the client has received, or may have received, a part of the output.
    has_sent: bool,
    /// The number of the attempt whose output is sent.
    attempt: Option<u64>,
    /// Whether parts of the output are skipped, because the client gets it as a whole at the end.
    awaits_whole: bool,
}

/// An event of Replicate's API: its name and its data.
type Named = (&'static str, EventData);

impl Translation {
    /// Reacts to events that are no longer available.
    fn lose(&mut self) -> Result<(), &'static str> {
        if self.has_sent {
            return Err(LOST);
        }
        self.awaits_whole = true;
        Ok(())
    }

    /// Translates an event; `None` if Replicate's stream has no such event.
    ///
    /// # Errors
    /// The reason if the stream must end because earlier output is invalid.
    fn of(&mut self, name: &str, data: &str) -> Result<Option<Named>, &'static str> {
        let Ok(mut data) = serde_json::from_str::<Value>(data) else { return Ok(None) };
        match name {
            "log" => Ok(data.get("text").and_then(Value::as_str).map(|text| {
                // The engine sends each line of the logs as one event, without the line break.
                ("logs", EventData::Text(format!("{text}\n")))
            })),
            "output" if !self.awaits_whole => {
                let attempt = data.get("attempt").and_then(Value::as_u64);
                if self.has_sent && self.attempt.is_some() && self.attempt != attempt {
                    return Err(AGAIN);
                }
                self.has_sent = true;
                self.attempt = attempt;
                let part = data.get_mut("part").map(Value::take).unwrap_or_default();
                Ok(Some(("output", EventData::Text(text_of(part)))))
            }
            _ => Ok(None),
        }
    }
}

/// Returns a part of the output as text.
fn text_of(part: Value) -> String {
    if let Value::String(text) = part { text } else { part.to_string() }
}

/// Returns the events for an output that is sent as a whole: one for each text in a list.
fn whole(output: &RawValue) -> Vec<Named> {
    let output = serde_json::from_str::<Value>(output.get()).unwrap_or_default();
    let texts = output.as_array().filter(|parts| parts.iter().all(Value::is_string)).cloned();
    let parts = texts.unwrap_or_else(|| vec![output]);
    parts.into_iter().map(|part| ("output", EventData::Text(text_of(part)))).collect()
}

/// A client that streams a prediction.
struct Stream {
    watch: Watch,
    translation: Translation,
}

impl Stream {
    /// Returns the next events, and whether these events are the last. Returns `None` when the
    /// service stops, the authorization ends, or the prediction cannot be read.
    async fn next(&mut self) -> Option<(Vec<Event>, bool)> {
        let news = self.watch.news().await?;
        let mut events = Vec::new();
        if news.has_gap
            && let Err(reason) = self.translation.lose()
        {
            return Some((self.broken_off(events, reason), true));
        }
        for event in &news.events {
            self.watch.seen = event.number;
            match self.translation.of(event.name, &event.data) {
                Ok(Some(named)) => events.push(self.event(&event.number.to_string(), named)),
                Ok(None) => {}
                Err(reason) => return Some((self.broken_off(events, reason), true)),
            }
        }
        if news.ended {
            let services = Arc::clone(&self.watch.services);
            let (organization, id) = (self.watch.organization, self.watch.id);
            let (execution, output) =
                outcome(services, organization, id, !self.translation.has_sent).await?;
            events.extend(self.end(&execution, output.as_deref()));
        }
        Some((events, news.ended))
    }

    /// Adds the events that end a stream whose output is incomplete.
    fn broken_off(&self, mut events: Vec<Event>, reason: &str) -> Vec<Event> {
        let error = EventData::Error { detail: reason.to_owned() };
        events.push(self.event(END, ("error", error)));
        events.push(self.event(END, ("done", EventData::Done { reason: Some(DoneReason::Error) })));
        events
    }

    /// Returns the last events of a prediction that has ended. `output` is its output if the client
    /// gets it as a whole.
    fn end(&self, execution: &Execution, output: Option<&RawValue>) -> Vec<Event> {
        let number = self.watch.seen.to_string();
        let mut events = Vec::new();
        if let Some(output) = output {
            events.extend(whole(output).into_iter().map(|named| self.event(&number, named)));
        }
        if execution.status == Status::Error {
            events.push(self.event(&number, ("error", failure(execution))));
        }
        let reason = match execution.status {
            Status::Cancelled => Some(DoneReason::Canceled),
            Status::Error => Some(DoneReason::Error),
            Status::Created | Status::Processing | Status::Success => None,
        };
        events.push(self.event(END, ("done", EventData::Done { reason })));
        events
    }

    fn event(&self, number: &str, (name, data): Named) -> Event {
        // Serialization cannot fail, because this data contains only strings.
        let data = match data {
            EventData::Text(text) => text,
            EventData::Error { .. } | EventData::Done { .. } => {
                serde_json::to_string(&data).unwrap_or_default()
            }
        };
        self.watch.event(name, number, data)
    }
}

/// Returns a prediction that has ended and, on request, its output if it has succeeded.
async fn outcome(
    services: Arc<Services>,
    organization: OrganizationId,
    id: ExecutionId,
    wants_output: bool,
) -> Option<(Execution, Option<Box<RawValue>>)> {
    let execution = services.engine.get(organization, id).await.ok()?;
    if !wants_output || execution.status != Status::Success {
        return Some((execution, None));
    }
    let output = shown_output(&services, &execution).await.ok()?.text;
    Some((execution, output))
}

fn failure(execution: &Execution) -> EventData {
    let detail = execution.fault.as_ref().map_or("", |fault| fault.cause.as_str()).to_owned();
    EventData::Error { detail }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(named: Option<Named>) -> Option<(&'static str, String)> {
        named.map(|(name, data)| match data {
            EventData::Text(text) => (name, text),
            EventData::Error { .. } | EventData::Done { .. } => panic!("{data:?}"),
        })
    }

    fn part(text: &str, attempt: u32) -> String {
        json!({"part": text, "attempt": attempt}).to_string()
    }

    #[test]
    fn events_are_translated_by_name() {
        let mut translation = Translation::default();
        let mut of = |name: &str, data: &str| text(translation.of(name, data).unwrap());
        assert_eq!(of("status", r#"{"status":"created"}"#), None);
        assert_eq!(of("log", r#"{"text":"a"}"#), Some(("logs", "a\n".to_owned())));
        assert_eq!(of("output", &part("b", 1)), Some(("output", "b".to_owned())));
        let object = r#"{"part":{"a":1},"attempt":1}"#;
        assert_eq!(of("output", object), Some(("output", r#"{"a":1}"#.to_owned())));
    }

    #[test]
    fn output_of_second_attempt_ends_the_stream() {
        let mut translation = Translation::default();
        translation.of("output", &part("a", 1)).unwrap();
        assert_eq!(translation.of("output", &part("a", 2)).map(text), Err(AGAIN));
    }

    #[test]
    fn lost_events_are_replaced_by_the_whole_output_if_none_was_sent() {
        let mut translation = Translation::default();
        assert_eq!(translation.lose(), Ok(()));
        assert_eq!(text(translation.of("output", &part("a", 1)).unwrap()), None);
        assert!(!translation.has_sent);
        let mut translation = Translation::default();
        translation.of("output", &part("a", 1)).unwrap();
        assert_eq!(translation.lose(), Err(LOST));
    }

    #[test]
    fn whole_output_has_one_event_for_each_text() {
        let texts = |output: serde_json::Value| {
            let output = serde_json::value::to_raw_value(&output).unwrap();
            whole(&output)
                .into_iter()
                .filter_map(|named| text(Some(named)))
                .map(|(_, text)| text)
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(json!("a")), ["a"]);
        assert_eq!(texts(json!(["a", "b"])), ["a", "b"]);
        assert_eq!(texts(json!(["a", 1])), [r#"["a",1]"#]);
        assert_eq!(texts(json!({"a": 1})), [r#"{"a":1}"#]);
    }
}
