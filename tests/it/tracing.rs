//! Tracing across the entire service: how the context is propagated, including across restarts and
//! redrives, and the tree of spans that a collector receives.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use hyper::{HeaderMap, Method};
use orrery_api::Role;
use orrery_engine::traces::otlp::{Read, fields};
use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service, Upstream, respond, serve, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// A received span.
#[derive(Debug, Clone, Default)]
struct Span {
    trace: String,
    id: String,
    /// The id of the parent span; empty if there is none.
    parent: String,
    name: String,
    kind: u64,
    start: u64,
    end: u64,
    attributes: Value,
    is_error: bool,
    link: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn attribute(pair: &[u8]) -> (String, Value) {
    let mut name = String::new();
    let mut value = Value::Null;
    for (field, read) in fields(pair) {
        match (field, read) {
            (1, Read::Bytes(key)) => name = text(key),
            (2, Read::Bytes(any)) => value = value_of(any),
            other => panic!("no such field of an attribute: {other:?}"),
        }
    }
    (name, value)
}

fn value_of(any: &[u8]) -> Value {
    match fields(any).next().unwrap() {
        (1, Read::Bytes(said)) => text(said).into(),
        (2, Read::Number(flag)) => (flag == 1).into(),
        (3, Read::Number(number)) => number.into(),
        (4, Read::Number(bits)) => f64::from_bits(bits).into(),
        (5, Read::Bytes(array)) => fields(array)
            .map(|(_, one)| match one {
                Read::Bytes(any) => value_of(any),
                Read::Number(_) => panic!("not a value"),
            })
            .collect(),
        other => panic!("no such value: {other:?}"),
    }
}

fn span(bytes: &[u8]) -> Span {
    let mut span = Span { attributes: json!({}), ..Span::default() };
    for (field, read) in fields(bytes) {
        match (field, read) {
            (1, Read::Bytes(id)) => span.trace = hex(id),
            (2, Read::Bytes(id)) => span.id = hex(id),
            (4, Read::Bytes(id)) => span.parent = hex(id),
            (5, Read::Bytes(name)) => span.name = text(name),
            (6, Read::Number(kind)) => span.kind = kind,
            (7, Read::Number(nanos)) => span.start = nanos,
            (8, Read::Number(nanos)) => span.end = nanos,
            (9, Read::Bytes(pair)) => {
                let (name, value) = attribute(pair);
                span.attributes[name] = value;
            }
            (13, Read::Bytes(link)) => {
                let id = fields(link).find(|(field, _)| *field == 2).unwrap().1;
                let Read::Bytes(id) = id else { panic!("no id in {link:?}") };
                span.link = hex(id);
            }
            (15, Read::Bytes(_)) => span.is_error = true,
            (3, Read::Bytes(_)) | (16, Read::Number(1)) => {}
            other => panic!("no such field of a span: {other:?}"),
        }
    }
    span
}

/// A collector that records the received spans and their resource.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    resource: Arc<Mutex<Value>>,
}

impl Collector {
    async fn start() -> Self {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let resource = Arc::<Mutex<Value>>::default();
        let (kept, said) = (Arc::clone(&spans), Arc::clone(&resource));
        let address = serve(move |request| {
            assert_eq!(request.uri().path(), "/v1/traces");
            assert_eq!(request.headers()["x-key"], "s3cret");
            for (_, of_resource) in fields(request.body()) {
                let Read::Bytes(of_resource) = of_resource else { panic!("no resource") };
                for (field, read) in fields(of_resource) {
                    let Read::Bytes(inner) = read else { panic!("no message") };
                    let inner = fields(inner).filter_map(|(number, read)| match read {
                        Read::Bytes(bytes) => Some((number, bytes)),
                        Read::Number(_) => None,
                    });
                    match field {
                        1 => {
                            let all = inner.map(|(_, pair)| attribute(pair));
                            *said.lock().unwrap() = Value::Object(all.collect());
                        }
                        _ => {
                            let found = inner.filter(|(number, _)| *number == 2);
                            kept.lock().unwrap().extend(found.map(|(_, bytes)| span(bytes)));
                        }
                    }
                }
            }
            async { respond(200, "") }
        })
        .await;
        Self { endpoint: format!("http://{address}"), spans, resource }
    }

    fn config(&self) -> String {
        let endpoint = &self.endpoint;
        format!(
            "[telemetry]\notlp_endpoint = \"{endpoint}\"\notlp_headers = {{ X-Key = \"s3cret\" }}\n"
        )
    }

    /// Waits for a span that satisfies `is_last`; returns all spans so far.
    async fn until(&self, what: &str, is_last: impl Fn(&Span) -> bool) -> Vec<Span> {
        until(what, async || {
            let spans = self.spans.lock().unwrap();
            spans.iter().any(&is_last).then(|| spans.clone())
        })
        .await
    }

    /// Waits for the span of the execution itself; returns it and all spans so far.
    async fn of(&self, execution: &str) -> (Span, Vec<Span>) {
        let is_root =
            |span: &Span| span.attributes["orrery.execution.id"] == execution && span.kind != 3;
        let spans = self.until("span of the execution", is_root).await;
        (spans.iter().find(|span| is_root(span)).unwrap().clone(), spans)
    }
}

/// Returns the child span of `parent` with this name.
fn below<'s>(spans: &'s [Span], parent: &Span, name: &str) -> &'s Span {
    let found = spans.iter().find(|span| span.parent == parent.id && span.name == name);
    let found = found.unwrap_or_else(|| panic!("no {name} below {parent:?} in {spans:#?}"));
    assert_eq!(found.trace, parent.trace);
    assert!(found.start <= found.end && found.start >= parent.start, "{found:?} {parent:?}");
    found
}

/// Returns the span id in a request's headers; checks that they contain this trace.
fn carried(headers: &HeaderMap, trace: &str, request_id: &str) -> String {
    let parent = headers["traceparent"].to_str().unwrap();
    let parts: Vec<&str> = parent.split('-').collect();
    assert_eq!((parts[0], parts[1], parts[3]), ("00", trace, "01"), "{parent}");
    assert_eq!(headers["x-request-id"], request_id);
    parts[2].to_owned()
}

#[tokio::test]
async fn trace_is_propagated_by_every_step_and_exported_as_tree() {
    let collector = Collector::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    let service = Service::configured(&collector.config()).await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    let steps = json!([{"step_id": "inside", "type": "http", "url": provider.url("/list")}]);
    let inner = service.workflow(steps).await;
    let outer = service
        .workflow(json!([
            {"step_id": "m", "type": "model", "model": "echo", "params": {"said": "a secret"}},
            {"step_id": "h", "type": "http", "url": provider.url("/list?token=hidden"),
             "headers": {"X-Request-Id": "mine"}},
            {"step_id": "c", "type": "workflow", "workflow": inner},
        ]))
        .await;
    let asked = service.flows(Method::POST, &format!("/{outer}/trigger"));
    let asked = asked.header("traceparent", traceparent()).header("tracestate", "v=1, w=2");
    let body = json!({"inputs": {}, "webhook_url": receiver.url()});
    let taken = asked.header("x-request-id", "r-1").json(&body).send().await.expect(202);
    let id = taken["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(service.completed(&id).await["status"], "completed");
    let webhook = receiver.next().await;
    let [model, http, inside] = provider.requests().try_into().unwrap();
    assert_eq!(http.headers()["x-request-id"], "mine");
    let mut http_headers = http.headers().clone();
    http_headers.insert("x-request-id", "r-1".parse().unwrap());
    let mut of_webhook = HeaderMap::new();
    for name in ["traceparent", "x-request-id"] {
        of_webhook.insert(name, webhook.header(name).unwrap().parse().unwrap());
    }
    let carried: Vec<String> = [model.headers(), &http_headers, inside.headers(), &of_webhook]
        .map(|headers| carried(headers, TRACE, "r-1"))
        .into();
    assert_eq!(carried.iter().collect::<HashSet<_>>().len(), 4, "{carried:?}");
    for headers in [model.headers(), http.headers(), inside.headers()] {
        assert_eq!(headers["tracestate"], "v=1,w=2");
    }

    collector.until("span of the webhook", |span| span.name == "POST webhook").await;
    let (root, spans) = collector.of(&id).await;
    assert_eq!(
        (root.name.as_str(), root.trace.as_str(), root.parent.as_str()),
        ("workflow", TRACE, CALLER)
    );
    assert_eq!((root.kind, &root.attributes["orrery.status"]), (2, &json!("completed")));
    let queue = below(&spans, &root, "queue");
    assert!(queue.end <= root.end);
    let step = below(&spans, &root, "step m");
    let attempt = below(&spans, step, "model echo");
    assert_eq!((&attempt.id, attempt.kind), (&carried[0], 3));
    let get = below(&spans, below(&spans, &root, "step h"), "GET");
    assert_eq!((&get.id, &get.attributes["http.response.status_code"]), (&carried[1], &json!(200)));
    let start = below(&spans, below(&spans, &root, "step c"), "start workflow");
    let child = below(&spans, start, "workflow");
    let inside = below(&spans, below(&spans, child, "step inside"), "GET");
    assert_eq!(inside.id, carried[2]);
    let sent = below(&spans, &root, "POST webhook");
    assert_eq!(
        (&sent.id, &sent.attributes["http.response.status_code"]),
        (&carried[3], &json!(200))
    );
    for hidden in ["secret", "hidden", &service.key] {
        assert!(!format!("{spans:?}").contains(hidden), "{hidden}: {spans:#?}");
    }
    let resource = collector.resource.lock().unwrap().clone();
    assert_eq!(resource["service.name"], "orrery");
    assert!(resource["service.version"].is_string() && resource["host.name"].is_string());
}

#[tokio::test]
async fn trace_and_span_survive_a_restart() {
    let collector = Collector::start().await;
    let provider = Provider::start().await;
    let service = Service::configured(&collector.config()).await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let body = json!({"model": "held", "version": "1", "input": {}});
    let asked = service.post("/v1/prediction/", &body).header("traceparent", traceparent());
    let taken = asked.send().await.expect(200);
    let id = taken["predictionID"].as_str().unwrap().to_owned();
    // Without a caller's trace, the execution has its own.
    let own = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let service = service.restart().await;
    provider.release(10);
    assert_eq!(service.ended(&id).await["status"], "success");
    assert_eq!(service.ended(&own).await["status"], "success");
    let (root, _) = collector.of(&id).await;
    assert_eq!((root.trace.as_str(), root.parent.as_str()), (TRACE, CALLER));
    let (of_own, spans) = collector.of(&own).await;
    assert_eq!((of_own.trace, of_own.parent), (own.replace('-', ""), String::new()));
    let attempt = below(&spans, &root, "model held");
    let requests = provider.requests();
    let of_it = requests
        .iter()
        .filter(|request| request.headers()["idempotency-key"].to_str().unwrap().starts_with(&id));
    let sent: Vec<String> = of_it.map(|request| carried(request.headers(), TRACE, &id)).collect();
    assert!(sent.len() > 1 && sent.iter().all(|span| *span == attempt.id), "{sent:?}");
}

#[tokio::test]
async fn redrive_stays_in_trace_of_original() {
    let collector = Collector::start().await;
    let provider = Provider::start().await;
    let service = Service::configured(&collector.config()).await;
    let url = provider.url("/status/500");
    let flow = service
        .workflow(json!([{"step_id": "h", "type": "http", "url": url, "fail_when": "non_2xx"}]))
        .await;
    let failed = service.trigger(&flow, json!({"inputs": {}})).await;
    assert_eq!(service.completed(&failed).await["status"], "failed");
    let redrive = async |parent: Option<String>| {
        let mut asked = service.flows(Method::POST, &format!("/executions/{failed}/redrive"));
        if let Some(parent) = parent {
            asked = asked.header("traceparent", parent);
        }
        let taken = asked.json(&json!({})).send().await.expect(202);
        let id = taken["execution_id"].as_str().unwrap().to_owned();
        service.completed(&id).await;
        id
    };
    let again = redrive(None).await;
    let elsewhere = redrive(Some(traceparent())).await;
    let (first, _) = collector.of(&failed).await;
    let (second, spans) = collector.of(&again).await;
    assert_eq!((&second.trace, &second.parent, &second.link), (&first.trace, &first.id, &first.id));
    assert!(first.is_error && first.attributes["error.type"] == "provider_error", "{first:?}");
    let get = below(&spans, below(&spans, &second, "step h"), "GET");
    assert!(get.is_error);
    let (third, _) = collector.of(&elsewhere).await;
    assert_eq!((third.trace.as_str(), third.parent.as_str()), (TRACE, CALLER));
}

#[tokio::test]
async fn chat_and_decisions_propagate_trace_and_reload_starts_export() {
    let collector = Collector::start().await;
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let body = json!({"model": "far", "messages": [{"role": "user", "content": "hi"}]});
    up.says("not exported", 1, 1);
    service.post("/v1/chat/completions", &body).send().await.expect(200);
    let file = service.folder.path().join("config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{config}{}", collector.config())).unwrap();
    service.running.reload().await;
    up.says("hello", 5, 7);
    let asked = service.post("/v1/chat/completions", &body).header("traceparent", traceparent());
    let said = asked.header("tracestate", "v=1").send().await;
    said.expect(200);
    let execution = said.header("x-execution-id").to_owned();
    let requests = up.requests();
    let sent = carried(requests[1].headers(), TRACE, &execution);
    assert_eq!(requests[1].headers()["tracestate"], "v=1");
    let (root, spans) = collector.of(&execution).await;
    assert_eq!((root.name.as_str(), root.parent.as_str()), ("chat far", CALLER));
    let call = below(&spans, &root, "chat far");
    let attributes = &call.attributes;
    assert_eq!((&call.id, call.kind), (&sent, 3));
    assert_eq!(
        (&attributes["gen_ai.usage.input_tokens"], &attributes["gen_ai.usage.output_tokens"]),
        (&json!(5), &json!(7))
    );
    let operation = &attributes["gen_ai.operation.name"];
    assert_eq!((operation, &attributes["gen_ai.response.model"]), (&json!("chat"), &json!("far")));
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text;
    assert!(metrics.contains("\norrery_spans_dropped_total "), "{metrics}");

    // An invalid header is ignored.
    let question =
        json!({"type": "score", "instructions": "How?", "criteria": ["1 low", "1 high"]});
    let decide = json!({"model": "far", "state": "s", "questions": {"q": question}});
    let broken = format!("{}-more", traceparent());
    let asked = service.post("/v1/decisions", &decide).header("traceparent", broken);
    up.answers(500, "no");
    let refused = asked.header("x-request-id", "r-9").send().await;
    assert!(refused.status >= 400, "{}", refused.text);
    let requests = up.requests();
    let parent = requests[2].headers()["traceparent"].to_str().unwrap();
    assert!(!parent.contains(TRACE) && requests[2].headers()["x-request-id"] == "r-9", "{parent}");
}
