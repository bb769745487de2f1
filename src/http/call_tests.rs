//! Reading bodies: every hostile kind ends in a clear refusal, in bounded time and memory.

use std::convert::Infallible;

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::*;
use crate::http::body::{empty, full};

fn call(body: Body, limits: Limits) -> Call {
    let request = Request::post("/v1/x?a=1").body(body).unwrap();
    Call::new(request, Peer::InProcess, "id".to_owned(), Params::default(), limits)
}

const SMALL: Limits = Limits { body_bytes: 100, body_idle: Duration::from_secs(5) };

fn pieces(count: usize, size: usize) -> Body {
    let piece = move |_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; size])));
    let stream = futures_util::StreamExt::map(stream::iter(0..count), piece);
    StreamBody::new(stream).map_err(|never| match never {}).boxed()
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_by_its_length_or_when_it_passes_it() {
    for body in [full(vec![b'x'; 101]), pieces(1_000_000, 60)] {
        let error = call(body, SMALL).body().await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(error.message, "the request body is larger than 100 bytes");
    }
    assert_eq!(call(pieces(2, 50), SMALL).body().await.unwrap().len(), 100);
    assert_eq!(call(full(vec![b'x'; 100]), SMALL).body().await.unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stands_still_is_given_up() {
    let stream = stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let body = StreamBody::new(stream).map_err(|never| match never {}).boxed();
    let error = call(body, SMALL).body().await.unwrap_err();
    assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn an_empty_body_is_an_empty_object() {
    for body in [empty(), full("  \n")] {
        assert_eq!(call(body, SMALL).json::<Value>().await.unwrap(), json!({}));
    }
}

#[test]
fn what_is_no_json_is_named_with_its_place() {
    let deep = "[".repeat(10_000);
    for (text, line, column) in
        [("{\n  \"a\": nope}", 2, 9), ("{", 1, 1), ("\"\u{1}\"", 1, 2), (deep.as_str(), 1, 128)]
    {
        let error = parse::<Value>(text.as_bytes()).unwrap_err();
        assert_eq!(error.message, "invalid JSON body");
        let reply = error.into_reply();
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST);
        let bytes = futures_util::FutureExt::now_or_never(reply.into_body().collect());
        let bytes = bytes.unwrap().unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(body["details"]["line"], line, "{body}");
        assert_eq!(body["details"]["column"], column, "{body}");
        assert!(!body["details"]["message"].as_str().unwrap().contains("column"), "{body}");
    }
    assert!(parse::<Value>(b"{\"a\":\"\xff\xfe\"}").is_err(), "invalid UTF-8");
}

#[test]
fn json_of_another_shape_names_the_field() {
    #[derive(Debug, serde::Deserialize)]
    struct Shape {
        #[expect(dead_code, reason = "only its type counts here")]
        name: String,
    }
    let error = parse::<Shape>(b"{}").unwrap_err();
    assert_eq!(error.message, "invalid request body: missing field `name`");
}
