//! Whole responses that are not what they seem to be, and compressed bodies.

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
        let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), level);
        if coding == "gzip" {
            gzip.write_all(text).unwrap();
            gzip.finish().unwrap()
        } else {
            deflate.write_all(text).unwrap();
            deflate.finish().unwrap()
        }
    };
    let text = b"data: {\"choices\":[]}\n\n".repeat(20);
    for coding in ["gzip", "deflate"] {
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
}
