//! Tests deriving and encoding spans, and an exporter whose collector is down, busy, silent or
//! removed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::export::{Source, SpansFuture};
use super::span::{Kind, Span, Value};
use super::*;
use crate::Outline;
use orrery_domain::attempt::{self, Attempt, Failure};
use orrery_domain::chat::{self, Operation, Tokens};
use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::Plan;
use orrery_domain::execution::{Fault, Prediction, Source as Through, Status, Work, WorkflowRun};
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_domain::step::{Instance, Step};
use orrery_domain::time::Timestamp;
use orrery_domain::trace::{Origin, SpanId, Trace};
use orrery_runtime::monotonic_now;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn execution(work: Work, origin: Option<Arc<Origin>>) -> Execution {
    Execution {
        id: [7; 16].into(),
        organization: [1; 16].into(),
        key: [2; 16].into(),
        source: Through::Api,
        status: Status::Success,
        input: Payload::nothing(),
        work,
        output: None,
        fault: None,
        cost: Usd::from_micros(250_000),
        reserved: Usd::ZERO,
        webhook: None,
        created_at: time(10),
        started_at: Some(time(20)),
        completed_at: Some(time(90)),
        origin,
    }
}

fn tree(spans: &[Span]) -> Vec<(String, Option<String>, i64, i64)> {
    let name = |id: SpanId| spans.iter().find(|span| span.id == id).map(|span| span.name.clone());
    let line = |span: &Span| {
        let parent = span.parent.and_then(name);
        (span.name.clone(), parent, span.start.micros(), span.end.micros())
    };
    spans.iter().map(line).collect()
}

fn line(name: &str, parent: &str, start: i64, end: i64) -> (String, Option<String>, i64, i64) {
    let parent = (!parent.is_empty()).then(|| parent.to_owned());
    (name.to_owned(), parent, start, end)
}

fn value<'s>(span: &'s Span, name: &str) -> Option<&'s Value> {
    span.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[test]
fn spans_of_prediction_have_queue_and_attempts() {
    let mut prediction = Prediction::new("1".to_owned(), Vec::new());
    let mut first = Attempt::begin(1, "caption".to_owned(), time(20));
    let said = "the model 'caption' answered 500: the secret input";
    let failure = Failure::new(ErrorClass::ProviderError, said);
    first.close(1, attempt::Outcome::Error, Some(failure), time(40));
    let mut second = Attempt::begin(2, "caption-small".to_owned(), time(41));
    second.close(2, attempt::Outcome::Success, None, time(90));
    prediction.attempts = vec![first, second];
    let origin = Origin::read(Some(PARENT), Some("v=1"), None);
    let execution = execution(Work::Prediction(prediction), origin);
    let call = execution.trace().call(&execution.attempt_key(2));
    let spans = derive::of_execution(&Outline { execution, steps: Vec::new(), plan: None }, None);
    assert_eq!(
        tree(&spans),
        [
            line("prediction ", "", 10, 90),
            line("queue", "prediction ", 10, 20),
            line("model caption", "prediction ", 20, 40),
            line("model caption-small", "prediction ", 41, 90),
        ]
    );
    let root = &spans[0];
    assert_eq!(root.parent.unwrap().to_string(), "00f067aa0ba902b7");
    assert_eq!((root.kind, root.state.as_deref()), (Kind::Server, Some("v=1")));
    assert!(spans.iter().all(|span| span.trace.to_string() == "4bf92f3577b34da6a3ce929d0e0e4736"));
    // The request to the model's server names the exported span.
    assert_eq!(call.traceparent(), PARENT.replace("00f067aa0ba902b7", &spans[3].id.to_string()));
    assert_eq!(value(&spans[2], "error.type"), Some(&"provider_error".into()));
    assert_eq!(value(&spans[3], "gen_ai.request.model"), Some(&"caption-small".into()));
    assert!(!format!("{spans:?}").contains("secret"), "{spans:?}");
}

fn plan() -> Plan {
    let definition = json!({"steps": [
        {"step_id": "each", "type": "map", "items": ["a"], "item_name": "one", "steps": [
            {"step_id": "inner", "type": "parallel", "branches": [
                {"steps": [{"step_id": "get", "type": "http", "url": "https://h.example/"}]},
            ]},
        ]},
        {"step_id": "old", "type": "pass", "result": 1},
    ]});
    Plan::compile(Some(&definition), &|_| true).unwrap()
}

#[test]
fn span_of_chat_call_contains_messages_only_on_request() {
    let request = json!({
        "model": "m", "temperature": 0.5, "max_tokens": 9, "seed": 7,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"},
                {"type": "image_url", "image_url": {"url": "data:secret"}}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "x".repeat(9000)},
        ],
    });
    let answer = json!({"content": "Hi"}).to_string();
    let facts = Facts {
        request: request.to_string().into(),
        answer: Some(RawValue::from_string(answer).unwrap()),
        finish_reasons: vec!["stop".to_owned()],
    };
    let call = chat::Call {
        operation: Operation::Chat,
        model: "m".to_owned(),
        requested_model: "m".to_owned(),
        is_upstream: true,
        is_stream: true,
        tokens: Tokens { input: 9, output: 3, cached: 4, ..Tokens::default() },
        media: chat::Media::default(),
        is_priced: true,
        is_cached: false,
        first_byte_ms: None,
    };
    let outline =
        Outline { execution: execution(Work::Chat(call), None), steps: Vec::new(), plan: None };
    let of = |has_content| {
        let said = derive::Said { facts: &facts, has_content };
        derive::of_execution(&outline, Some(said)).remove(1)
    };
    let span = of(false);
    for (name, expected) in [
        ("gen_ai.provider.name", Value::from("openai")),
        ("gen_ai.request.temperature", Value::from(0.5)),
        ("gen_ai.request.max_tokens", Value::from(9_i64)),
        ("gen_ai.request.seed", Value::from(7_i64)),
        ("gen_ai.request.stream", Value::from(true)),
        ("gen_ai.response.finish_reasons", Value::from(vec!["stop".to_owned()])),
        ("gen_ai.usage.cache_read.input_tokens", Value::from(4_u64)),
    ] {
        assert_eq!(value(&span, name), Some(&expected), "{name}");
    }
    assert!(!format!("{span:?}").contains("Hello") && !format!("{span:?}").contains("Hi"));
    let span = of(true);
    let messages = |name: &str| {
        let Some(Value::Text(text)) = value(&span, name) else { panic!("{span:?}") };
        serde_json::from_str::<serde_json::Value>(text).unwrap()
    };
    let asked = messages("gen_ai.input.messages");
    let texts =
        json!([{"type": "text", "content": "Hello"}, {"type": "text", "content": "[image_url]"}]);
    assert_eq!(
        asked[0],
        json!({"role": "system", "parts": [{"type": "text", "content": "Be brief."}]})
    );
    assert_eq!(asked[1]["parts"], texts);
    let called = json!([{"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"}]);
    assert_eq!(asked[2]["parts"], called);
    assert_eq!(asked[3]["parts"][0]["response"].as_str().unwrap().chars().count(), 8193);
    let answered = json!([{"role": "assistant", "parts": [{"type": "text", "content": "Hi"}],
        "finish_reason": "stop"}]);
    assert_eq!(messages("gen_ai.output.messages"), answered);
}

#[test]
fn messages_of_chat_calls_are_bounded_while_they_wait() {
    let all = Arc::default();
    let facts = |bytes: usize| Facts {
        request: vec![b' '; bytes].into(),
        answer: None,
        finish_reasons: Vec::new(),
    };
    let first = Waiting::new(facts(FACTS_BYTES_MAX), &all);
    assert!(first.is_some() && Waiting::new(facts(1), &all).is_none());
    drop(first);
    assert!(Waiting::new(facts(1), &all).is_some());
}

#[test]
fn spans_of_workflow_follow_maps_and_branches() {
    let mut run = WorkflowRun::new([4; 16].into(), "v1".to_owned(), [5; 16].into(), None);
    run.redriven_from = Some([9; 16].into());
    let mut execution = execution(Work::Workflow(run), None);
    execution.status = Status::Error;
    let cause = "'h.example' answered 500: the secret body";
    execution.fault = Some(Fault::new("StepFailed", ErrorClass::ProviderError, cause));
    let plan = Arc::new(plan());
    let at = |id: &str, items: &[u32]| Instance {
        step: plan.step(id).unwrap().position,
        items: items.to_vec(),
    };
    let step = |start, end, status| {
        let mut step = Step::new(status, time(start));
        step.completed_at = Some(time(end));
        step
    };
    use orrery_domain::step::Status::{Completed, Failed, Skipped};
    let mut get = step(30, 50, Failed);
    get.attempts = vec![Attempt::begin(1, String::new(), time(31))];
    let steps = vec![
        (at("each", &[]), step(20, 60, Failed)),
        (at("old", &[]), step(1, 2, Completed)),
        (at("get", &[1]), get),
        (at("get", &[2]), step(30, 30, Skipped)),
    ];
    let outline = Outline { execution, steps, plan: Some(plan) };
    let spans = derive::of_execution(&outline, None);
    assert_eq!(
        tree(&spans),
        [
            line("workflow", "", 10, 90),
            line("queue", "workflow", 10, 20),
            line("step each", "workflow", 20, 60),
            // The enclosing branch has no row, so it has no span. Steps that were copied or skipped
            // have no span either.
            line("step get", "step each", 30, 50),
            line("GET", "step get", 31, 90),
        ]
    );
    assert_eq!(spans[0].link, Some(Trace::new([9; 16].into(), None).root()));
    assert_eq!(spans[0].error.as_deref(), Some("StepFailed"));
    assert_eq!(value(&spans[3], "orrery.step.item"), Some(&1_u32.into()));
    assert!(!format!("{spans:?}").contains("secret"), "{spans:?}");
    let without_plan = Outline { plan: None, ..outline };
    assert_eq!(derive::of_execution(&without_plan, None).len(), 2);
}

#[test]
fn spans_of_one_execution_are_bounded() {
    let mut prediction = Prediction::new("1".to_owned(), Vec::new());
    let attempt = |number| Attempt::begin(number, "m".repeat(1000), time(20));
    prediction.attempts = (0..5000).map(attempt).collect();
    let execution = execution(Work::Prediction(prediction), None);
    let spans = derive::of_execution(&Outline { execution, steps: Vec::new(), plan: None }, None);
    assert_eq!(spans.len(), derive::SPANS_MAX);
    assert!(spans[5].name.len() < 200);
}

/// Compares the encoding with the bytes that Python's `opentelemetry-proto` 1.45.2 writes for the
/// same span.
#[test]
fn otlp_matches_official_implementation() {
    let origin = Origin::read(Some(PARENT), Some("v=1"), None);
    let trace = Trace::new([7; 16].into(), origin);
    let start = time(1_700_000_000_000_001);
    let mut span = Span::new(
        &trace,
        trace.root(),
        "prediction caption".to_owned(),
        start,
        time(1_700_000_000_300_000),
    )
    .below(trace.caller().unwrap().span)
    .kind(Kind::Server);
    span.set("orrery.kind", "prediction");
    span.set("orrery.attempt", 300_u32);
    span.set("orrery.cost_usd", 0.25);
    span.set("error.type", "");
    span.link = Some(trace.caller().unwrap().span);
    span.error = Some("StepFailed".to_owned());
    let written: String =
        otlp::encode(&[span], "box").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        written,
        concat!(
            "0ace020a4a0a180a0c736572766963652e6e616d6512080a066f72726572790a1a0a0f736572766963652e7665",
            "7273696f6e12070a05302e312e300a120a09686f73742e6e616d6512050a03626f7812ff010a0f0a066f727265",
            "72791205302e312e3012eb010a104bf92f3577b34da6a3ce929d0e0e47361208f95341213369bb621a03763d31",
            "220800f067aa0ba902b72a1270726564696374696f6e2063617074696f6e300239e8032a36fe9c97174100a30b",
            "48fe9c97174a1b0a0b6f72726572792e6b696e64120c0a0a70726564696374696f6e4a150a0e6f72726572792e",
            "617474656d7074120318ac024a1c0a0f6f72726572792e636f73745f757364120921000000000000d03f4a100a",
            "0a6572726f722e7479706512020a006a1c0a104bf92f3577b34da6a3ce929d0e0e4736120800f067aa0ba902b7",
            "7a0e120a537465704661696c65641802850101000000"
        )
        .replace("05302e312e30", &version())
    );
    let answer = [0x0a, 0x06, 0x08, 0x03, 0x12, 0x02, 0x6e, 0x6f];
    assert_eq!(otlp::rejected(&answer), 3);
    for cut in 0..answer.len() {
        assert_eq!(otlp::rejected(&answer[..cut]), 0, "{cut}");
    }
}

/// The version as encoded in the golden bytes: one length byte, then the text.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(version.len(), 5, "write the golden bytes again: the lengths in them change");
    let text: String = version.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("05{text}")
}

/// Every execution has one span.
struct OneSpan;

impl Source for OneSpan {
    fn spans_of<'a>(
        &'a self,
        _organization: OrganizationId,
        id: ExecutionId,
        _said: Option<derive::Said<'a>>,
    ) -> SpansFuture<'a> {
        let trace = Trace::new(id, None);
        let span = Span::new(&trace, trace.root(), "one".to_owned(), time(1), time(2));
        Box::pin(std::future::ready(Ok(vec![span])))
    }
}

/// The way in which the test collector handles a request.
#[derive(Debug, Clone, Copy)]
enum Does {
    Answers(&'static str),
    /// Never responds.
    Hangs,
}

const TAKES: Does = Does::Answers("200 OK\r\ncontent-length: 0\r\n\r\n");
const BUSY: Does =
    Does::Answers("503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n");
const REFUSES: Does = Does::Answers("400 Bad Request\r\ncontent-length: 0\r\n\r\n");
const REJECTS: Does = Does::Answers("200 OK\r\ncontent-length: 4\r\n\r\n\u{a}\u{2}\u{8}\u{1}");

/// A collector that gives these responses in order, repeating the last one; it records the spans of
/// each request, and the headers of the last request.
#[derive(Debug, Clone, Default)]
struct Collector {
    got: Arc<Mutex<Vec<usize>>>,
    head: Arc<Mutex<String>>,
}

impl Collector {
    async fn start(script: &[Does]) -> (Self, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let collector = Self::default();
        let mut script: VecDeque<Does> = script.iter().copied().collect();
        let kept = collector.clone();
        Tasks::attend(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let does =
                    if script.len() > 1 { script.pop_front() } else { script.front().copied() };
                let does = does.unwrap();
                Tasks::attend(kept.clone().serve(connection, does));
            }
        });
        let header = (HeaderName::from_static("x-key"), HeaderValue::from_static("k"));
        let target = Target::new(&format!("http://127.0.0.1:{port}/"), vec![header], false);
        (collector, target)
    }

    async fn serve(self, mut connection: TcpStream, does: Does) {
        let mut read = Vec::new();
        let (head, body) = loop {
            let mut piece = [0; 4096];
            let count = connection.read(&mut piece).await.unwrap();
            assert!(count > 0, "the request breaks off");
            read.extend_from_slice(&piece[..count]);
            let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = head.split("content-length: ").nth(1).unwrap();
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            if read.len() == end + 4 + length {
                break (head, read[end + 4..].to_vec());
            }
        };
        self.got.lock().unwrap().push(spans_in(&body));
        *self.head.lock().unwrap() = head;
        match does {
            Does::Answers(answer) => {
                let answer = format!("HTTP/1.1 {answer}");
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
            Does::Hangs => std::future::pending().await,
        }
    }

    fn got(&self) -> Vec<usize> {
        self.got.lock().unwrap().clone()
    }
}

/// Returns the number of spans in a request.
fn spans_in(body: &[u8]) -> usize {
    let of = |bytes, wanted| {
        otlp::fields(bytes).filter_map(move |(field, value)| match value {
            otlp::Read::Bytes(inner) if field == wanted => Some(inner),
            otlp::Read::Bytes(_) | otlp::Read::Number(_) => None,
        })
    };
    of(body, 1).flat_map(|resource| of(resource, 2)).flat_map(|scope| of(scope, 2)).count()
}

const QUICK: Pace = Pace {
    batch_after: Duration::from_millis(200),
    pause_first: Duration::from_millis(2),
    time_max: Duration::from_millis(200),
    flush_max: Duration::from_secs(2),
};
/// A batch is sent only when it is full, or at the stop.
const FULL: Pace = Pace { batch_after: Duration::from_secs(600), ..PATIENT };
const PATIENT: Pace =
    Pace { time_max: Duration::from_secs(10), flush_max: Duration::from_secs(20), ..QUICK };

/// Counts exported and dropped spans, by means of a metrics recorder for this thread.
struct Counted(metrics_exporter_prometheus::PrometheusHandle);

impl Counted {
    fn of(&self, name: &str) -> usize {
        let text = self.0.render();
        let line =
            text.lines().find(|line| line.starts_with(&format!("orrery_spans_{name}_total ")));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

/// Runs an exporter until `enough` returns true, then stops it; returns the counts and how long the
/// stop took.
async fn export(
    pace: Pace,
    target: Option<Target>,
    count: usize,
    enough: impl Fn(&Counted) -> bool,
) -> (Counted, Duration) {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counted = Counted(recorder.handle());
    let guard = metrics::set_default_local_recorder(Box::leak(Box::new(recorder)));
    let traces = Traces::new(target);
    let stopping = CancellationToken::new();
    for number in 0..count {
        let mut one = execution(Work::Prediction(Prediction::new(String::new(), Vec::new())), None);
        let number = u128::try_from(number + 1).unwrap();
        one.id = number.to_be_bytes().into();
        traces.ended(&one, None);
    }
    let waiting = traces.inner.waiting.lock().await.take().unwrap();
    let source: Box<dyn Source> = Box::new(OneSpan);
    let (client, clock) = (Client::trusted(), Clock::system());
    let exporter = Exporter::new(traces, source, client, clock, stopping.clone(), pace);
    let local = tokio::task::LocalSet::new();
    let took = local
        .run_until(async {
            let running = tokio::task::spawn_local(exporter.run(waiting));
            while !enough(&counted) {
                tokio::task::yield_now().await;
            }
            let stopped = monotonic_now();
            stopping.cancel();
            running.await.unwrap();
            stopped.elapsed()
        })
        .await;
    drop(guard);
    (counted, took)
}

#[tokio::test]
async fn exporter_sends_batches_with_headers() {
    let (collector, target) = Collector::start(&[TAKES]).await;
    let (counted, _) =
        export(FULL, Some(target), 600, |counted| counted.of("exported") == 512).await;
    assert_eq!(collector.got(), [512, 88]);
    assert_eq!((counted.of("exported"), counted.of("dropped")), (600, 0));
    let head = collector.head.lock().unwrap().clone();
    for line in ["POST /v1/traces HTTP/1.1", "content-type: application/x-protobuf", "x-key: k"] {
        assert!(head.contains(line), "{head}");
    }
}

#[tokio::test]
async fn exporter_waits_as_long_as_busy_collector_requests() {
    let (collector, target) = Collector::start(&[BUSY, TAKES]).await;
    let begun = monotonic_now();
    let (counted, _) =
        export(PATIENT, Some(target), 3, |counted| counted.of("exported") == 3).await;
    assert_eq!((collector.got(), counted.of("dropped")), (vec![3, 3], 0));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn exporter_gives_up_on_collector_that_is_down_refusing_or_hanging() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let down = Target::new(&down, Vec::new(), false);
    let (counted, _) = export(QUICK, Some(down), 3, |counted| counted.of("dropped") == 3).await;
    assert_eq!(counted.of("exported"), 0);
    for (script, dropped, tries) in
        [(vec![REFUSES], 3, 1), (vec![REJECTS], 1, 1), (vec![Does::Hangs], 3, 5)]
    {
        let (collector, target) = Collector::start(&script).await;
        let (counted, _) =
            export(QUICK, Some(target), 3, |counted| counted.of("dropped") == dropped).await;
        assert_eq!((collector.got().len(), counted.of("exported")), (tries, 3 - dropped));
    }
}

#[tokio::test]
async fn exporter_flushes_at_shutdown_without_delaying_it() {
    let (collector, target) = Collector::start(&[TAKES]).await;
    let (counted, _) = export(PATIENT, Some(target), 700, |_| true).await;
    assert_eq!((counted.of("exported"), collector.got().iter().sum::<usize>()), (700, 700));
    let (_collector, target) = Collector::start(&[Does::Hangs]).await;
    let (counted, took) = export(QUICK, Some(target), 700, |_| true).await;
    assert_eq!((counted.of("exported"), counted.of("dropped")), (0, 700));
    assert!(took < 2 * QUICK.flush_max, "{took:?}");
}

#[tokio::test]
async fn queue_is_bounded_and_takes_nothing_while_disabled() {
    let (collector, target) = Collector::start(&[TAKES]).await;
    let more = QUEUE_MAX + 10;
    let (counted, _) =
        export(PATIENT, Some(target), more, |counted| counted.of("exported") == QUEUE_MAX).await;
    assert_eq!((counted.of("dropped"), collector.got().iter().sum::<usize>()), (10, QUEUE_MAX));
    let (counted, _) = export(QUICK, None, more, |_| true).await;
    assert_eq!((counted.of("exported"), counted.of("dropped")), (0, 0));
}

#[test]
fn target_ends_with_traces_path() {
    for endpoint in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
        assert_eq!(Target::new(endpoint, Vec::new(), false).url, "http://c:4318/v1/traces");
    }
    assert_eq!(
        Target::new("https://c/api/otlp/", Vec::new(), false).url,
        "https://c/api/otlp/v1/traces"
    );
}

#[test]
fn unsampled_traces_are_not_exported() {
    let traces = Traces::new(Some(Target::new("http://c", Vec::new(), false)));
    let unsampled = Origin::read(Some(&PARENT.replace("-01", "-00")), None, None);
    let work = || Work::Prediction(Prediction::new(String::new(), Vec::new()));
    traces.ended(&execution(work(), unsampled), None);
    assert_eq!(traces.inner.queue.capacity(), QUEUE_MAX);
    traces.ended(&execution(work(), None), None);
    assert_eq!(traces.inner.queue.capacity(), QUEUE_MAX - 1);
}
