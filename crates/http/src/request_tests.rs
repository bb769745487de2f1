//! Tests of reading bodies: hostile bodies are refused with a clear error, in bounded time and
//! memory.

use std::convert::Infallible;

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::*;
use crate::body::{empty, full};
use crate::budget::{Budget, Share};

fn call(body: Body, limits: Limits) -> Request {
    let request = hyper::Request::post("/v1/x?a=1").body(body).unwrap();
    let peer = Peer::Tcp(([10, 0, 0, 1], 1).into());
    let lease = Budget::new(1 << 30, Share::Fair).lease(&peer);
    Request::new(request, peer, "id".to_owned(), Params::default(), limits, lease)
}

const SMALL: Limits = Limits {
    body_bytes: 100,
    body_idle: Duration::from_secs(5),
    body_total: Some(Duration::from_secs(60)),
    body_rate: 1,
};

fn pieces(count: usize, size: usize) -> Body {
    let piece = move |_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; size])));
    let stream = futures_util::StreamExt::map(stream::iter(0..count), piece);
    StreamBody::new(stream).map_err(|never| match never {}).boxed()
}

#[tokio::test]
async fn body_over_limit_is_refused_by_length_or_while_read() {
    for body in [full(vec![b'x'; 101]), pieces(1_000_000, 60)] {
        let error = call(body, SMALL).body().await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(error.message, "the request body is larger than 100 bytes");
    }
    assert_eq!(call(pieces(2, 50), SMALL).body().await.unwrap().len(), 100);
    assert_eq!(call(full(vec![b'x'; 100]), SMALL).body().await.unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn body_that_stalls_times_out() {
    let stream = stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let body = StreamBody::new(stream).map_err(|never| match never {}).boxed();
    let error = call(body, SMALL).body().await.unwrap_err();
    assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn body_when_empty_parses_as_empty_object() {
    for body in [empty(), full("  \n")] {
        assert_eq!(call(body, SMALL).json::<Value>().await.unwrap(), json!({}));
    }
}

#[test]
fn body_with_invalid_json_reports_line_and_column() {
    let deep = "[".repeat(10_000);
    for (text, line, column) in
        [("{\n  \"a\": nope}", 2, 9), ("{", 1, 1), ("\"\u{1}\"", 1, 2), (deep.as_str(), 1, 128)]
    {
        let error = parse::<Value>(text.as_bytes()).unwrap_err();
        assert_eq!(error.message, "invalid JSON body");
        let response = error.into_response();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let bytes = futures_util::FutureExt::now_or_never(response.into_body().collect());
        let bytes = bytes.unwrap().unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(body["details"]["line"], line, "{body}");
        assert_eq!(body["details"]["column"], column, "{body}");
        assert!(!body["details"]["message"].as_str().unwrap().contains("column"), "{body}");
    }
    assert!(parse::<Value>(b"{\"a\":\"\xff\xfe\"}").is_err(), "invalid UTF-8");
}

#[test]
fn count_values_skips_strings_and_their_escapes() {
    for (text, values) in [
        ("7", 1),
        (r#"{"a":1,"b":[1,2]}"#, 7),
        (r#"["a,b:[{", "\"","\\", 1]"#, 5),
        (r#"["never closed, , ,"#, 2),
        (r#"["ends in a backslash\"#, 2),
        ("", 1),
    ] {
        assert_eq!(count_values(text.as_bytes()), values, "{text}");
    }
}

#[test]
fn body_with_missing_field_names_the_field() {
    #[derive(Debug, serde::Deserialize, JsonSchema)]
    struct Shape {
        #[expect(dead_code, reason = "only its type counts here")]
        name: String,
    }
    let error = parse::<Shape>(b"{}").unwrap_err();
    assert_eq!(error.message, "name is required");
}

/// Returns a body that sends one byte every `pause`.
fn trickle(pause: Duration) -> Body {
    let bytes = stream::unfold((), move |()| async move {
        tokio::time::sleep(pause).await;
        Some((Ok(Bytes::from_static(b"x")), ()))
    });
    crate::body::stream(bytes)
}

#[tokio::test(start_paused = true)]
async fn body_below_minimum_rate_times_out() {
    for (pause, message) in [
        (Duration::from_secs(4), "the body arrived slower than 1 bytes per second"),
        (Duration::from_millis(900), "the body took longer than 60s"),
        (Duration::from_secs(6), "no byte of the body arrived for 5s"),
    ] {
        let error = call(trickle(pause), SMALL).body().await.unwrap_err();
        assert_eq!((error.status, error.message.as_str()), (StatusCode::REQUEST_TIMEOUT, message));
    }
    let file = Limits { body_total: None, ..SMALL };
    let error = call(trickle(Duration::from_millis(900)), file).body().await.unwrap_err();
    assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE, "a file may take as long as it needs");
}

fn call_within(budget: &std::sync::Arc<Budget>, body: Body) -> Request {
    let peer = Peer::Tcp(([10, 0, 0, 1], 1).into());
    let limits = Limits { body_bytes: 10_000, ..SMALL };
    let request = hyper::Request::post("/v1/x").body(body).unwrap();
    Request::new(request, peer, "id".to_owned(), Params::default(), limits, budget.lease(&peer))
}

#[tokio::test]
async fn body_counts_against_budget_until_dropped() {
    let budget = Budget::new(10_000, Share::Fair);
    for body in [full(vec![b'x'; 3000]), pieces(30, 100)] {
        let first = call_within(&budget, body).body().await.unwrap();
        assert!(budget.used() >= 3000, "{}", budget.used());
        let error = call_within(&budget, full(vec![b'x'; 3000])).body().await.unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(error.into_response().headers()["retry-after"], "1");
        assert_eq!(first.len(), 3000);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
    let mut begun = call_within(&budget, pieces(usize::MAX, 100));
    assert_eq!(begun.peek(250).await.unwrap().len(), 250);
    assert!((250..1000).contains(&budget.used()), "{}", budget.used());
    let mut rest = call_within(&budget, pieces(4, 100));
    assert_eq!(rest.peek(150).await.unwrap().len(), 150);
    assert_eq!(rest.body().await.unwrap().len(), 400);
    drop((begun, rest));
    assert_eq!(budget.used(), 0);
}

#[tokio::test]
async fn body_with_too_many_json_values_is_refused_before_parsing() {
    let limits = Limits { body_bytes: 1 << 24, ..SMALL };
    let many = format!("[{}1]", "1,".repeat(JSON_VALUES_MAX));
    let error = call(full(many.clone()), limits).body().await.unwrap_err();
    assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(error.message, "the request body holds more than 1000000 JSON values");
    let text = format!(r#""\"{many}""#);
    assert_eq!(call(full(text.clone()), limits).body().await.unwrap(), text);
}

#[test]
fn body_parser_ignores_byte_order_mark_and_refuses_wide_integers() {
    assert_eq!(parse_value(b"\xef\xbb\xbf{\"a\": 1}").unwrap(), json!({"a": 1}));
    assert_eq!(parse_value(b"\xef\xbb\xbf").unwrap(), json!({}));
    for wide in ["18446744073709551616", "[-9223372036854775809]", "{\"a\":123456789012345678901}"]
    {
        let error = parse_value(wide.as_bytes()).unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        assert!(error.message.contains("does not fit into 64 bits"), "{}", error.message);
    }
    assert_eq!(parse_value(b"18446744073709551615").unwrap(), json!(u64::MAX));
}
