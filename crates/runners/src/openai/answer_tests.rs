//! Tests complete responses that report or conceal a failure, and compressed bodies.

use super::*;

#[test]
fn whole_answer_with_an_error_is_a_failure() {
    let chat = Some(Operation::Chat);
    let failed = |text: &str| parse(chat, "m", text.as_bytes()).unwrap_err();
    for error in [
        r#"{"error":{"message":"no","code":404}}"#,
        r#"{"object":"error","message":"no"}"#,
        r#"{"detail":"no"}"#,
        r#"{"error":"no","choices":[{"message":{}}]}"#,
        r#"{"choices":[{"message":{"content":""},"finish_reason":"error","error":{"message":"no"}}]}"#,
    ] {
        let failure = failed(error);
        assert_eq!((failure.status, &*failure.message), (502, "no"), "{error}");
    }
    for garbage in [
        "",
        " ",
        "[]",
        "<html>",
        "{}",
        r#"{"choices":[]}"#,
        r#"{"choices":[{"index":0}]}"#,
        r#"{"choices":[{"message":{"content":NaN}}]}"#,
    ] {
        let failure = failed(garbage);
        assert_eq!((failure.status, failure.class), (502, ErrorClass::ProviderError));
    }
    let good = "{\"error\":false,\"choices\":[{\"message\":{}}]}";
    assert!(parse(chat, "m", good.as_bytes()).is_ok());
}

#[test]
fn error_response_says_whether_another_model_or_request_may_succeed() {
    let failed =
        |status: u16, text: &str| refused("m", status, &HeaderMap::new(), text.as_bytes(), None);
    for (text, code) in [
        (
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
            CONTEXT,
        ),
        (
            r#"{"object":"error","message":"This model's maximum context length is 2048 tokens.","code":400}"#,
            CONTEXT,
        ),
        (r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#, CONTEXT),
        (r#"{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#, CONTEXT),
        (r#"{"error":{"message":"Output blocked by content filtering policy"}}"#, ""),
        (r#"{"error":{"message":"m does not support tools"}}"#, ""),
        (
            r#"{"error":{"message":"Unsupported parameter: max_tokens","code":"unsupported_parameter"}}"#,
            "unsupported_parameter",
        ),
    ] {
        let failure = failed(400, text);
        assert!(failure.may_fall_back(), "{text}");
        assert_eq!(failure.said.code.as_deref().unwrap_or_default(), code, "{text}");
    }
    for text in [r#"{"error":{"message":"temperature must be at most 2"}}"#, "", "no"] {
        for status in [400, 413, 414, 415, 422, 431] {
            assert!(!failed(status, text).may_fall_back(), "{status} {text}");
        }
    }
    let flagged = r#"{"error":{"code":403,"message":"no","metadata":{"flagged_input":"x"}}}"#;
    assert_eq!(failed(403, flagged).class, ErrorClass::ContentModeration);
    for (text, expected) in [
        (r#"{"error":"Bad Request","detail":"Unknown field stream_options"}"#, true),
        (
            r#"{"error":{"message":"Validation failed","details":[{"field":"stream_options"}]}}"#,
            true,
        ),
        (r#"{"error":{"message":"Extra inputs are not permitted"}}"#, true),
        (r#"{"error":{"message":"include_usage is not allowed"}}"#, true),
        (r#"{"error":{"message":"messages is too short"}}"#, false),
    ] {
        assert_eq!(failed(422, text).names_stream_options(), expected, "{text}");
        assert!(!failed(500, text).names_stream_options(), "{text}");
    }
}

const CONTEXT: &str = "context_length_exceeded";

#[test]
fn whole_answer_is_decoded_from_its_charset() {
    let typed =
        |kind: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    for (kind, body) in [
        ("application/json", &b"\xef\xbb\xbf{\"a\":\"\xc3\xa9\"}"[..]),
        ("application/json; charset=iso-8859-1", b"{\"a\":\"\xe9\"}"),
        ("application/json", b"\xff\xfe{\0\"\0a\0\"\0:\0\"\0\xe9\0\"\0}\0"),
    ] {
        let text = utf8("m", &typed(kind), Bytes::from_static(body)).unwrap();
        assert_eq!(text, "{\"a\":\"é\"}", "{kind}");
    }
    let failure = utf8("m", &typed("x/y; charset=klingon"), Bytes::from_static(b"{}")).unwrap_err();
    assert!(failure.message.contains("klingon"), "{}", failure.message);
    let failure = utf8("m", &HeaderMap::new(), Bytes::from_static(b"\xff\xff")).unwrap_err();
    assert!(failure.message.contains("not valid UTF-8"), "{}", failure.message);
}

#[test]
fn content_coding_is_decoded_at_any_chunk_size() {
    let coded = |coding: &'static str, text: &[u8]| {
        let level = flate2::Compression::default();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), level);
        if coding.contains("gzip") {
            gzip.write_all(text).unwrap();
            gzip.finish().unwrap()
        } else if coding == "deflate" {
            zlib.write_all(text).unwrap();
            zlib.finish().unwrap()
        } else {
            raw.write_all(text).unwrap();
            raw.finish().unwrap()
        }
    };
    let text = b"data: {\"choices\":[]}\n\n".repeat(20);
    for coding in ["gzip", "identity, gzip", "deflate", "deflate, utf-8"] {
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(coding))]);
        let coded = coded(coding, &text);
        for size in [1, 7, coded.len()] {
            let mut decoder = Decoder::of(&headers).unwrap().unwrap();
            let pieces = coded.chunks(size).map(|piece| decoder.decode(piece).unwrap());
            let decoded: Vec<u8> = pieces.flatten().collect();
            assert_eq!(decoded, text, "{coding} in pieces of {size}");
        }
        let mut decoder = Decoder::of(&headers).unwrap().unwrap();
        assert!(decoder.decode(b"not compressed, or in another way").is_err(), "{coding}");
    }
    let other = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("br"))]);
    assert_eq!(Decoder::of(&other).unwrap_err(), "br");
    assert!(Decoder::of(&HeaderMap::new()).unwrap().is_none());
    for none in ["", "identity", "UTF-8", "none", "binary, identity"] {
        let value = HeaderValue::from_static(none);
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, value)]);
        assert!(Decoder::of(&headers).unwrap().is_none(), "{none}");
    }
    let twice = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip, br"))]);
    assert_eq!(Decoder::of(&twice).unwrap_err(), "gzip, br");
}
