//! An answer that comes at once: read up to a limit, counted, recorded, and passed on with its cost.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::timeout_at;

use super::call::{Answer, Call, Came, End, Reply, keeps_content};
use super::error::{Error, Failure};
use super::meter::{Meter, said_of};
use super::route::Candidate;
use super::upstream::{Opened, broken, next, note, too_late};
use crate::domain::chat::Tokens;
use crate::domain::classify::ErrorClass;
use crate::domain::money::Usd;
use crate::domain::raw_object::RawObject;
use crate::http::budget::Lease;
use crate::runtime;

/// The largest answer, in bytes: the embeddings of a full request fit.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

impl Call {
    /// Reads the answer and replies with it. A client that goes away ends it.
    pub(super) async fn whole(
        mut self,
        candidate: Candidate,
        mut opened: Opened,
        mut reply: Reply,
    ) {
        let first_byte = Some(self.started.elapsed());
        let read = tokio::select! {
            biased;
            () = reply.closed() => {
                let came = Came { first_byte, ..Came::default() };
                self.record_or_log(&candidate, &End::Cancelled, came).await;
                return;
            }
            read = read_whole(
                &candidate.name,
                &mut opened,
                self.inner.options.idle_timeout,
                &mut self.lease,
                ANSWER_MAX,
            ) => read,
        };
        let mut meter = Meter::new(
            self.request.prompt_tokens,
            keeps_content(&self.inner, self.request.operation),
        );
        let execution = self.id;
        let parsed = read.and_then(|text| {
            let answer = parse(&candidate.name, &text)?;
            meter.whole(self.request.operation, &answer, &text);
            Ok(answer)
        });
        note(opened.lease.as_mut(), parsed.as_ref().err());
        let mut answer = match parsed {
            Ok(answer) => answer,
            Err(failure) => {
                let came = Came { first_byte, ..Came::default() };
                self.record_or_log(&candidate, &End::Failed(failure.clone()), came).await;
                // A client that has gone away needs no answer.
                let _unsent = reply.send(Err(Error::Failed { execution, failure }));
                return;
            }
        };
        let came = Self::came(&candidate, &meter, opened.limits.begun);
        let body = with_cost(&mut answer, came.tokens, came.cost);
        let came = Came { first_byte, content: meter.take_content(), ..came };
        let recorded = self.record(&candidate, &End::Done, came).await;
        let replied = match (recorded, body) {
            (Ok(()), Ok(body)) => Ok(Answer::Whole { execution, body: body.into() }),
            (Err(error), _) => Err(error.into()),
            (Ok(()), Err(error)) => {
                let message = format!("the answer cannot be written: {error}");
                let failure = Failure::new(500, ErrorClass::InternalError, message);
                Err(Error::Failed { execution, failure })
            }
        };
        // A client that has gone away needs no answer.
        let _unsent = reply.send(replied);
    }

    async fn record_or_log(self, candidate: &Candidate, end: &End, came: Came) {
        if let Err(error) = self.record(candidate, end, came).await {
            tracing::error!(%error, "a call of the chat router could not be recorded");
        }
    }
}

/// Reads an answer of at most `most` bytes, each pause of which may take `idle`. `lease` covers it twice:
/// it is written once more with its cost.
///
/// # Errors
/// [`Failure`]
pub async fn read_whole(
    name: &str,
    opened: &mut Opened,
    idle: Duration,
    lease: &mut Lease,
    most: usize,
) -> Result<Bytes, Failure> {
    let deadline = opened.limits.whole;
    let mut read = BytesMut::new();
    loop {
        let now = runtime::monotonic_now();
        let until = now.checked_add(idle).unwrap_or(now);
        let data = timeout_at(until.min(deadline), next(&mut opened.body)).await;
        let data = data.map_err(|_elapsed| too_late(name))?;
        let data = data.map_err(|error| broken(name, &format!("its answer broke: {error}")))?;
        let Some(data) = data else { return Ok(read.freeze()) };
        let length = read.len().saturating_add(data.len());
        if length > most {
            return Err(broken(name, &format!("its answer is larger than {most} bytes")));
        }
        lease.grow_to(length.saturating_mul(2)).map_err(|_full| too_many_bodies())?;
        read.extend_from_slice(&data);
    }
}

/// The failure of an answer for which there is no memory.
fn too_many_bodies() -> Failure {
    let message = "too many bodies are in flight; try again in a moment";
    Failure::new(503, ErrorClass::InternalError, message)
}

/// The answer as an object. One that is an error in spite of its status is a failure.
///
/// # Errors
/// [`Failure`]
pub fn parse(name: &str, text: &[u8]) -> Result<RawObject, Failure> {
    let answer: RawObject = serde_json::from_slice(text)
        .map_err(|_other| broken(name, "its answer is not a JSON object"))?;
    match answer.get("error") {
        Some(error) => Err(said_of(502, error.as_bytes())),
        None => Ok(answer),
    }
}

/// The object's text with the cost in its `usage`. Where it has none, `tokens` are there in its place,
/// marked where the model has not counted them.
///
/// # Errors
/// Never in practice: everything in it is JSON.
pub fn with_cost(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn priced(answer: &str) -> String {
        let mut object: RawObject = serde_json::from_str(answer).unwrap();
        let tokens = Tokens { input: 3, output: 4, is_estimated: true };
        let text = with_cost(&mut object, tokens, Usd::from_micros(2500)).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn whole_answer_changes_by_its_cost_alone() {
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

    #[test]
    fn whole_answer_with_an_error_is_a_failure() {
        let failure = parse("m", br#"{"error":{"message":"no","code":404}}"#).unwrap_err();
        assert_eq!((failure.status, &*failure.message), (502, "no"));
        for garbage in ["", "[]", "<html>"] {
            assert_eq!(parse("m", garbage.as_bytes()).unwrap_err().status, 502);
        }
    }
}
