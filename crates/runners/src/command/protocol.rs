//! The protocol between the service and a worker: JSON Lines.
//!
//! The service sends one line per job, `{"id", "input", "traceparent", "request_id"}` and sometimes
//! `"folder"` and `"tracestate"`; the worker responds with any number of lines, the last of which
//! contains `output` or `error`.

use serde_json::{Map, Value};

use crate::Job;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::json_object::whole_number;
use orrery_domain::model::Usage;
use orrery_domain::money::Usd;

/// Maximum length of a worker's line in bytes, which limits the output.
pub(super) const LINE_MAX: usize = 10 * 1024 * 1024;

/// A message from a worker.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// The worker has started and accepts jobs.
    Ready,
    Log(String),
    /// A part of the output, sent before the job is finished.
    Part(Value),
    /// The job has finished.
    Ended(Box<Ended>),
}

/// The outcome of a job.
#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    /// The output, or the failure as classified by the worker.
    pub result: Result<Value, Failure>,
    pub usage: Usage,
}

/// Formats the line for a job.
pub(super) fn job(job: &Job, folder: Option<&str>) -> String {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("id", job.attempt_key.as_str().into());
    put("input", Value::clone(&job.input));
    if let Some(folder) = folder {
        put("folder", folder.into());
    }
    put("traceparent", job.trace.traceparent().into());
    if let Some(state) = job.trace.tracestate() {
        put("tracestate", state.into());
    }
    put("request_id", job.trace.request_id().into());
    let mut line = Value::Object(fields).to_string();
    line.push('\n');
    line
}

/// Parses a line. `id` is the worker's current job, if any; `cost_report` points to a cost in the
/// response. Returns `Ok(None)` for a log line of a job that has finished.
///
/// # Errors
/// The fault, as a phrase that follows "its worker".
pub(super) fn parse(
    line: &[u8],
    id: Option<&str>,
    cost_report: &str,
) -> Result<Option<Said>, String> {
    let Ok(said) = serde_json::from_slice::<Value>(line) else {
        return Err(format!("wrote a line that is not valid JSON: {}", super::excerpt(line)));
    };
    let Value::Object(mut fields) = said else {
        return Err(format!("wrote a line that is not an object: {}", super::excerpt(line)));
    };
    if fields.get("ready") == Some(&Value::Bool(true)) {
        return Ok(Some(Said::Ready));
    }
    let is_of_job = id.is_some() && fields.get("id").and_then(Value::as_str) == id;
    if let Some(log) = fields.get("log") {
        let text = log.as_str().map_or_else(|| log.to_string(), str::to_owned);
        return Ok(is_of_job.then_some(Said::Log(text)));
    }
    if !is_of_job {
        let shown = super::excerpt(line);
        return Err(match (id, fields.get("id")) {
            (Some(_), None) => format!(
                "returned a result without the \"id\" of its job, which each line must repeat: {shown}"
            ),
            _ => format!("returned a result for an id that it was not sent: {shown}"),
        });
    }
    if let Some(part) = fields.remove("part") {
        return Ok(Some(Said::Part(part)));
    }
    let metric = |name: &str| whole_number(fields.get("metrics")?.get(name)?);
    let mut usage = Usage {
        input_tokens: metric("input_tokens"),
        output_tokens: metric("output_tokens"),
        ..Usage::default()
    };
    let result = if let Some(error) = fields.get("error").filter(|error| !error.is_null()) {
        let class = match fields.get("classification").and_then(Value::as_str) {
            None => ErrorClass::ProviderError,
            Some(class) => class.parse().unwrap_or(ErrorClass::Unknown),
        };
        let message = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
        Err(Failure::new(class, message))
    } else if let Some(output) = fields.remove("output") {
        Ok(output)
    } else {
        let what = "wrote a line without output, error, part or log";
        return Err(format!("{what}: {}", super::excerpt(line)));
    };
    let dollars = Value::Object(fields).pointer(cost_report).and_then(Value::as_f64);
    usage.cost = dollars.and_then(Usd::from_dollars).filter(|cost| *cost >= Usd::ZERO);
    Ok(Some(Said::Ended(Box::new(Ended { result, usage }))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::RecordingProgress;
    use orrery_domain::trace::{Origin, Trace};

    fn of(line: &str) -> Result<Option<Said>, String> {
        parse(line.as_bytes(), Some("a"), "/metrics/cost")
    }

    #[test]
    fn protocol_job_line_has_trace_context_and_request_id() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let origin = Origin::read(Some(parent), Some("v=1"), Some("r-1"));
        let mut asked = Arc::<RecordingProgress>::default().job(json!({"n": 1}));
        asked.trace = Trace::new([7; 16].into(), origin).call("e:s:1");
        let expected = json!({
            "id": "e:s:1", "input": {"n": 1}, "folder": "/f",
            "traceparent": asked.trace.traceparent(), "tracestate": "v=1", "request_id": "r-1",
        });
        assert_eq!(job(&asked, Some("/f")), format!("{expected}\n"));
        assert!(asked.trace.traceparent().starts_with(&parent[..36]));
    }

    #[test]
    fn protocol_parses_every_message() {
        assert_eq!(of(r#"{"ready":true}"#), Ok(Some(Said::Ready)));
        assert_eq!(of(r#"{"id":"a","log":"x"}"#), Ok(Some(Said::Log("x".to_owned()))));
        assert_eq!(of(r#"{"id":"b","log":"late"}"#), Ok(None));
        assert_eq!(of(r#"{"id":"a","part":"x"}"#), Ok(Some(Said::Part(json!("x")))));
        let Ok(Some(Said::Ended(ended))) =
            of(r#"{"id":"a","output":null,"metrics":{"cost":0.5,"input_tokens":3}}"#)
        else {
            panic!("the job has not finished")
        };
        assert_eq!(ended.result, Ok(Value::Null));
        assert_eq!(
            (ended.usage.cost, ended.usage.input_tokens),
            (Some(Usd::from_micros(500_000)), Some(3))
        );
        for (classification, class) in [
            ("", ErrorClass::ProviderError),
            (r#","classification":"content_moderation""#, ErrorClass::ContentModeration),
            (r#","classification":"bad luck""#, ErrorClass::Unknown),
        ] {
            let Ok(Some(Said::Ended(ended))) =
                of(&format!(r#"{{"id":"a","error":"no"{classification}}}"#))
            else {
                panic!("the job has not finished")
            };
            assert_eq!(ended.result, Err(Failure::new(class, "no")));
        }
    }

    #[test]
    fn protocol_rejects_malformed_lines_with_reason() {
        for (line, says) in [
            ("loading…", "wrote a line that is not valid JSON: loading…"),
            ("[1]", "wrote a line that is not an object: [1]"),
            (r#"{"id":"b","output":1}"#, "returned a result for an id that it was not sent"),
            (r#"{"output":1}"#, "returned a result without the \"id\" of its job"),
            (r#"{"id":"a"}"#, "wrote a line without output, error, part or log"),
        ] {
            assert!(of(line).unwrap_err().starts_with(says), "{line}");
        }
        assert!(parse(br#"{"id":"a","output":1}"#, None, "").is_err(), "no job is in progress");
        assert!(parse(b"\xff\xfe", Some("a"), "").is_err());
    }
}
