//! Returns a non-streamed answer: reads it up to a size limit, measures its usage, records the
//! call, and adds the cost.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};

use super::call::{Answer, Begun, Call, Came, End, Reply, keeps_content};
use super::error::{Error, Failure};
use super::meter::Meter;
use super::request::Form;
use super::rerank;
use super::route::Candidate;
use super::upstream::{Opened, note};
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_http::budget::Lease;
use orrery_http::{answers, content};
use orrery_runners::openai::answer::{self, EVENT_MAX};
use orrery_runners::openai::failure::{broken, misunderstood, too_late};
use orrery_runners::openai::shape;
use orrery_runtime as runtime;
use orrery_storage::Commit;

/// Maximum size of an answer in bytes: enough for the embeddings of a request with the most inputs.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// Number of copies of an answer in memory while the answer is converted to a stream.
const STREAM_COPIES: usize = 5;

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Whole {
    answer: RawObject,
    text: Bytes,
    first_byte: Duration,
    begun: Instant,
}

impl Call {
    /// Reads a non-streamed answer. If the client requested a stream, the answer is converted to
    /// one.
    pub(super) async fn read(
        &mut self,
        candidate: &Candidate,
        mut opened: Opened,
    ) -> Result<Begun, Failure> {
        let name = candidate.name.as_str();
        let first_byte = self.started.elapsed();
        let is_stream = self.request.is_stream;
        let is_deferred = self.is_deferred();
        let most = if is_stream || is_deferred { EVENT_MAX } else { ANSWER_MAX };
        let mut read = read_whole(name, &mut opened, &mut self.lease, most).await;
        if is_stream && let Ok(text) = &read {
            let bytes = text.len().saturating_mul(STREAM_COPIES);
            read = self.lease.grow_to(bytes).map_or_else(|_full| Err(too_many_bodies()), |()| read);
        }
        let operation = self.request.operation;
        let parsed = match read {
            Ok(text) if self.request.form != Form::Chat => {
                parse_native(self.request.form, name, text, is_stream).await
            }
            Ok(text) => parse_aside(operation, name, text, is_stream).await,
            Err(failure) => Err(failure),
        };
        let parsed = parsed.map_err(|failure| candidate.target.masked(failure));
        let parsed = parsed.and_then(|parsed| match parsed {
            Parsed::Whole(answer, _) if operation == Operation::Rerank => {
                let request = candidate.request(&self.request);
                let (answer, text) = rerank::in_common_form(name, request, answer)?;
                Ok(Parsed::Whole(answer, text))
            }
            Parsed::Whole(..) | Parsed::Events(_) => Ok(parsed),
        });
        if !is_stream || parsed.is_err() {
            note(opened.lease.as_mut(), parsed.as_ref().err());
        }
        match parsed? {
            Parsed::Whole(answer, text) => {
                let begun = opened.limits.begun;
                Ok(Begun::Whole(Whole { answer, text, first_byte, begun }))
            }
            Parsed::Events(events) => {
                opened.first = Some(events);
                opened.is_stream = true;
                Ok(Begun::Stream(Box::new(opened)))
            }
        }
    }

    /// Records an answer and sends it to the client.
    pub(super) async fn whole(mut self, candidate: Candidate, whole: Whole, reply: Reply) {
        let Whole { answer, text, first_byte, begun } = whole;
        let operation = self.request.operation;
        let mut meter =
            Meter::new(self.prompt_tokens(&candidate), keeps_content(&self.inner, operation));
        let bytes = text.len();
        let form = self.request.form;
        let measure = move || {
            match form {
                Form::Chat => meter.whole(operation, &answer, &text),
                Form::Responses => meter.response(&answer),
                Form::Messages => meter.message(&answer),
            }
            (meter, answer)
        };
        let measured = answers::parse_aside(bytes, measure).await;
        let execution = self.id;
        let Some((mut meter, mut answer)) = measured else {
            let message = "the answer cannot be measured";
            let failure = Failure::new(500, ErrorClass::InternalError, message);
            let end = End::Failed(failure.clone());
            if let Err(error) = self.record(&candidate, &end, Came::default()).await {
                tracing::error!(%error, "failed to record chat call");
            }
            // A disconnected client needs no answer.
            let _unsent = reply.send(Err(Error::Failed { execution, failure }));
            return;
        };
        let came = self.came(&candidate, &meter, begun);
        let body = match candidate.shown.as_ref().filter(|_| answer.get("model").is_some()) {
            Some(shown) => answer.set("model", shown),
            None => Ok(()),
        };
        let body = body.and_then(|()| match form {
            Form::Responses => with_cost_of_response(&mut answer, came.tokens, came.cost),
            Form::Chat | Form::Messages => with_cost(&mut answer, came.tokens, came.cost),
        });
        let body = body.map(Bytes::from);
        let mut beside = match (&body, self.beside.take()) {
            (Ok(body), Some(beside)) => beside.commit(execution, body.clone()).await,
            (Ok(_), None) | (Err(_), _) => Commit::new(),
        };
        let cache = self.cache_miss();
        if let (Ok(body), Some(slot)) = (&body, &self.slot) {
            slot.add(&self.inner, &candidate, body, &mut beside);
        }
        let content = meter.take_content();
        let finish_reasons = meter.take_finish_reasons();
        let first_byte = Some(first_byte);
        let came = Came { first_byte, content, finish_reasons, beside, ..came };
        candidate.count(&End::Done, came.cost, self.inner.clock.now());
        let recorded = self.record(&candidate, &End::Done, came).await;
        let replied = match (recorded, body) {
            (Ok(()), Ok(body)) => Ok(Answer::Whole { execution, cache, body }),
            (Err(error), _) => Err(error.into()),
            (Ok(()), Err(error)) => {
                let message = format!("failed to serialize the answer: {error}");
                let failure = Failure::new(500, ErrorClass::InternalError, message);
                Err(Error::Failed { execution, failure })
            }
        };
        // A disconnected client needs no answer.
        let _unsent = reply.send(replied);
    }
}

/// Reads an answer of at most `most` bytes. `lease` reserves twice the answer's size, because the answer is serialized again with its cost.
///
/// # Errors
/// [`Failure`]
pub(crate) async fn read_whole(
    name: &str,
    opened: &mut Opened,
    lease: &mut Lease,
    most: usize,
) -> Result<Bytes, Failure> {
    let deadline = opened.limits.whole;
    let mut read = BytesMut::from(opened.first.take().unwrap_or_default());
    loop {
        let now = runtime::monotonic_now();
        let until = now.checked_add(opened.limits.idle).unwrap_or(now);
        let data = timeout_at(until.min(deadline), opened.body.next()).await;
        let data = data.map_err(|_elapsed| too_late(name))?;
        let data = data.map_err(|error| broken(name, &format!("its answer broke: {error}")))?;
        let Some(data) = data else {
            return answer::utf8(name, &opened.headers, read.freeze());
        };
        let length = read.len().saturating_add(data.len());
        if length > most {
            return Err(broken(name, &format!("its answer is larger than {most} bytes")));
        }
        lease.grow_to(length.saturating_mul(2)).map_err(|_full| too_many_bodies())?;
        read.extend_from_slice(&data);
    }
}

/// A parsed answer.
enum Parsed {
    /// The answer as an object, with its raw text.
    Whole(RawObject, Bytes),
    /// The answer converted to stream events.
    Events(Bytes),
}

/// Parses an answer, on a blocking thread if it is long.
async fn parse_aside(
    operation: Operation,
    name: &str,
    text: Bytes,
    is_stream: bool,
) -> Result<Parsed, Failure> {
    let name = name.to_owned();
    let unparsed = broken(&name, "its answer cannot be read");
    let bytes = text.len();
    let parse = move || {
        // Some servers send a stream that was not requested.
        let may_be_events = operation.writes_text() && !text.trim_ascii_start().starts_with(b"{");
        let converted = if operation == Operation::Rerank {
            rerank::object_of(&text)
        } else if may_be_events {
            shape::completion_of(operation, &text)
        } else {
            None
        };
        let text = converted.map_or(text, Bytes::from);
        let checked = content::check_values(&text);
        checked.map_err(|error| broken(&name, &format!("its answer cannot be read: {error}")))?;
        let (answer, text) = match answer::parse(Some(operation), &name, &text) {
            Ok(answer) => (answer, text),
            Err(failure) => {
                let text = shape::repaired(&text).ok_or(failure)?;
                (answer::parse(Some(operation), &name, &text)?, text)
            }
        };
        if !is_stream {
            return Ok(Parsed::Whole(answer, text));
        }
        drop(answer);
        let events = if operation == Operation::Completions {
            shape::text_events_of(&text)
        } else {
            shape::events_of(&text)
        };
        events.map(Parsed::Events).ok_or_else(|| misunderstood(&name, "its answer has no choices"))
    };
    answers::parse_aside(bytes, parse).await.unwrap_or(Err(unparsed))
}

/// Parses a complete answer of OpenAI's Responses API, or of Anthropic's Messages API.
async fn parse_native(
    form: Form,
    name: &str,
    text: Bytes,
    is_stream: bool,
) -> Result<Parsed, Failure> {
    let field = if form == Form::Messages { "content" } else { "output" };
    if is_stream {
        return Err(misunderstood(name, "its answer is not a stream"));
    }
    let name = name.to_owned();
    let unparsed = broken(&name, "its answer cannot be read");
    let bytes = text.len();
    let parse = move || {
        let checked = content::check_values(&text);
        checked.map_err(|error| broken(&name, &format!("its answer cannot be read: {error}")))?;
        let answer = answer::parse(None, &name, &text)?;
        match answer.get(field) {
            Some(_) => Ok(Parsed::Whole(answer, text)),
            None => Err(misunderstood(&name, &format!("its answer has no {field}"))),
        }
    };
    answers::parse_aside(bytes, parse).await.unwrap_or(Err(unparsed))
}

/// Returns the failure for an answer that exceeds the memory budget.
pub(crate) fn too_many_bodies() -> Failure {
    let message = "too many bodies are in flight; try again in a moment";
    Failure::new(503, ErrorClass::InternalError, message)
}

/// Serializes the object with the cost in its `usage`. A missing usage is filled in from `tokens`,
/// and marked as estimated if the model did not count the tokens.
///
/// # Errors
/// None in practice: all values are JSON.
pub(crate) fn with_cost(
    answer: &mut RawObject,
    tokens: Tokens,
    cost: Usd,
) -> Result<Vec<u8>, serde_json::Error> {
    match answer.value::<RawObject>("usage") {
        Some(mut usage) => {
            usage.set("cost", &cost.dollars())?;
            answer.set("usage", &usage)?;
        }
        None => {
            let mut usage = RawObject::default();
            usage.set("prompt_tokens", &tokens.input)?;
            usage.set("completion_tokens", &tokens.output)?;
            usage.set("total_tokens", &tokens.total())?;
            usage.set("cost", &cost.dollars())?;
            if tokens.is_estimated {
                usage.set("estimated", &true)?;
            }
            answer.set("usage", &usage)?;
        }
    }
    answer.text()
}

/// Serializes a response of OpenAI's Responses API like [`with_cost`].
///
/// # Errors
/// None in practice: all values are JSON.
pub(crate) fn with_cost_of_response(
    response: &mut RawObject,
    tokens: Tokens,
    cost: Usd,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut usage: RawObject = response.value("usage").unwrap_or_default();
    if usage.get("output_tokens").is_none() {
        usage.set("input_tokens", &tokens.input)?;
        usage.set("output_tokens", &tokens.output)?;
        usage.set("total_tokens", &tokens.total())?;
    }
    usage.set("cost", &cost.dollars())?;
    response.set("usage", &usage)?;
    response.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_http::answers::MODEL_VALUES_MAX;

    #[tokio::test]
    async fn whole_answers_of_too_many_values_are_refused() {
        let zeros = "0,".repeat(MODEL_VALUES_MAX);
        for operation in [Operation::Chat, Operation::Embeddings] {
            let many = format!("{{\"data\":[{{\"embedding\":[{zeros}0]}}]}}");
            let refused = parse_aside(operation, "m", many.into(), false).await.err().unwrap();
            assert!(refused.message.contains("more than 4000000 JSON values"), "{refused:?}");
        }
        let few = "{\"data\":[{\"embedding\":[0,0]}]}";
        assert!(parse_aside(Operation::Embeddings, "m", few.into(), false).await.is_ok());
    }

    fn priced(answer: &str) -> String {
        let mut object: RawObject = serde_json::from_str(answer).unwrap();
        let tokens = Tokens::estimated(3, 4);
        let text = with_cost(&mut object, tokens, Usd::from_micros(2500)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn whole_answer_changes_only_by_its_cost() {
        assert_eq!(
            priced(r#"{"x":1.0000000000000000001,"usage":{"prompt_tokens":1,"y":{ }},"z":[]}"#),
            r#"{"x":1.0000000000000000001,"usage":{"prompt_tokens":1,"y":{ },"cost":0.0025},"z":[]}"#
        );
        assert_eq!(
            priced(r#"{"usage":{"cost":9}}"#),
            r#"{"usage":{"cost":0.0025}}"#,
            "what the upstream charges is not what the client pays"
        );
    }

    #[test]
    fn whole_answer_without_usage_gets_the_estimate() {
        let usage = r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"cost":0.0025,"estimated":true}"#;
        assert_eq!(priced("{}"), format!(r#"{{"usage":{usage}}}"#));
    }
}
