//! Hostile and malformed requests get a clear error or a closed connection, and the service keeps
//! working.

use std::fmt::Write;

use hyper::Method;
use orrery_api::Role;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Service, within};

const CREATE: &str = "/v1/prediction/";

/// Checks on a new connection that the service still works.
async fn goes_on(service: &Service) {
    let answer = service.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let id = service.create("text-template", json!({"template": "on"})).await;
    assert_eq!(service.ended(&id).await["output"], "on");
}

#[tokio::test]
async fn bad_input_hostile_json_bodies_get_400() {
    let service = Service::start().await;
    let open = format!(r#"{{"model":{}"#, "[".repeat(10_000));
    let closed = format!(r#"{{"input":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let in_input = format!(
        r#"{{"model":"text-template","version":"1","input":{{"template":"x","values":{closed}}}}}"#
    );
    let bodies: [&[u8]; 8] = [
        open.as_bytes(),
        closed.as_bytes(),
        objects.as_bytes(),
        in_input.as_bytes(),
        b"{\"model\":\"\xff\xfe\"}",
        b"\xff\xfe{\x00",
        b"{\"model\":\"\\ud800\"}",
        b"{\"model\":1e99999}",
    ];
    for body in bodies {
        let ask = service.ask(Role::Base, Method::POST, CREATE).key(&service.key);
        let refusal = ask.body(body.to_vec()).send().await.expect(400);
        assert_eq!(refusal["error"], "invalid JSON body");
        assert!(refusal["details"]["line"].is_u64(), "{refusal}");
    }
    goes_on(&service).await;
}

#[tokio::test]
async fn bad_input_content_length_over_limit_gets_413_before_body() {
    let service = Service::start().await;
    let head = format!(
        "POST {CREATE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Length: 1073741824\r\n\r\n",
        service.key
    );
    let answer = service.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    let body = r#"{"error":"the request body is larger than 8388608 bytes","status":413}"#;
    assert!(answer.ends_with(body), "{answer}");
    let keyless = head.replace(&service.key, "smk_none");
    let answer = service.raw(keyless.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{answer}");
    let on_get = head.replace("POST /v1/prediction/", "GET /v1/models");
    let answer = service.raw(on_get.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    goes_on(&service).await;
}

#[tokio::test]
async fn bad_input_chunked_body_over_limit_gets_413() {
    let service = Service::configured("limits.body_bytes = '1KiB'\n").await;
    let mut request = format!(
        "POST {CREATE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        service.key
    );
    for _ in 0..3 {
        write!(request, "200\r\n{}\r\n", "x".repeat(512)).unwrap();
    }
    let answer = service.raw(request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    goes_on(&service).await;
}

#[tokio::test]
async fn bad_input_invalid_http_is_rejected_or_closed() {
    let service = Service::start().await;
    let many_headers = "X: y\r\n".repeat(1000);
    let long_header = format!("X: {}\r\n", "y".repeat(1 << 20));
    let long_path = "a".repeat(1 << 20);
    for request in [
        "\r\n\r\n\r\nhello\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "G\u{0}T / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        format!("GET /v1/models HTTP/1.1\r\nHost: x\r\n{many_headers}\r\n"),
        format!("GET /v1/models HTTP/1.1\r\nHost: x\r\n{long_header}\r\n"),
        format!("GET /{long_path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("POST {CREATE} HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"),
        format!(
            "POST {CREATE} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
        ),
    ] {
        let answer = service.raw(request.as_bytes()).await;
        let shown: String = answer.chars().take(60).collect();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{shown}");
    }
    goes_on(&service).await;
}

#[tokio::test]
async fn bad_input_partial_request_creates_nothing() {
    let service = Service::start().await;
    let body = r#"{"model":"text-template","version":"1","input":{"template":"x"}}"#;
    let length = body.len();
    let whole = format!(
        "POST {CREATE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Length: {length}\r\n\r\n{body}",
        service.key
    );
    for cut in [1, 3, 20, whole.len() - body.len() - 1, whole.len() - body.len(), whole.len() - 1] {
        let mut stream = TcpStream::connect(service.address(Role::Base)).await.unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ended = within("end", stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{cut}: {answer}");
    }
    assert_eq!(service.engine().totals(), (0, 0), "half a request created something");
    goes_on(&service).await;
}

#[tokio::test]
async fn bad_input_slow_heads_and_bodies_time_out() {
    let times = "limits.header_timeout = '200ms'\nlimits.body_timeout = '200ms'\n";
    let service = Service::configured(times).await;
    for head in ["", "G", "PRI", "GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "] {
        // Each connection ends without a success response; after `PRI`, an HTTP/2 server sends its
        // settings before it closes the connection.
        let answer = service.raw(head.as_bytes()).await;
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4");
        assert!(refused || (head == "PRI" && !answer.contains("HTTP")), "{head}: {answer}");
    }
    let empty_settings = "\0\0\0\u{4}\0\0\0\0\0";
    let hello = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{empty_settings}");
    let answer = service.raw(hello.as_bytes()).await;
    assert!(!answer.contains("HTTP"), "{answer}");
    let slow = format!(
        "POST {CREATE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Length: 100\r\n\r\n{{",
        service.key
    );
    let answer = service.raw(slow.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    assert!(answer.ends_with(r#"{"error":"no byte of the body arrived for 200ms","status":408}"#));
    goes_on(&service).await;
}

/// A definition of 6 KiB that would take 2^40 steps to validate, a list of a million tags that
/// would take 10^12 comparisons, and an image with a single line that would take 168 GB.
#[tokio::test]
async fn bad_input_small_requests_for_endless_work_are_rejected() {
    let service = Service::start().await;
    let mut definitions: serde_json::Map<String, serde_json::Value> = (0..40)
        .map(|level| {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            (format!("d{level}"), json!({"allOf": [next, next]}))
        })
        .collect();
    definitions.insert("d40".to_owned(), json!({"type": "object"}));
    let schema = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    let definition = json!({"input_schema": schema, "steps": [{"step_id": "a", "type": "pass"}]});
    let body = json!({"name": "n", "description": "d", "definition": definition});
    let refusal = service.post("/v1/workflows/create", &body).send().await.expect(400);
    let message = "definition: input_schema: a schema may expand to at most 100000 subschemas when \
                   its references are followed";
    assert_eq!(refusal["error"], message);
    assert_eq!(refusal["details"][0]["path"], "/input_schema");
    let id = service.workflow(json!([{"step_id": "a", "type": "pass"}])).await;
    let put = json!({"version_id": "v2", "definition": definition});
    let path = format!("/workflows/{id}/versions/v2");
    let refusal = service.flows(Method::PUT, &path).json(&put).send().await.expect(400);
    assert_eq!(refusal["error"], message);

    let tags: Vec<String> = (0..200_000).map(|number| number.to_string()).collect();
    let steps = json!({"steps": [{"step_id": "a", "type": "pass"}]});
    let body = json!({"name": "n", "description": "d", "definition": steps, "tags": tags});
    let refusal = service.post("/v1/workflows/create", &body).send().await.expect(400);
    assert_eq!(refusal["error"], "tags must have at most 3 items");

    let twice = json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}});
    let flow = json!({"input_schema": twice, "steps": [{"step_id": "a", "type": "pass"}]});
    let id = service.workflow_of(flow).await;
    let deep = (0..60).fold(json!({}), |inner, _| json!({"a": inner}));
    let trigger = service.flows(Method::POST, &format!("/{id}/trigger"));
    let refusal = trigger.json(&json!({"inputs": deep})).send().await.expect(400);
    let expect = "invalid input: checking the value takes more than 33554432 steps: make the value \
                  smaller, or simplify its schema";
    assert_eq!(refusal["error"], expect);
    goes_on(&service).await;
}
