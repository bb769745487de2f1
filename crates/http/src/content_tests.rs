//! Tests of content from other programs: codings, character sets, byte-order marks and numbers.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::*;

const LIMIT: usize = 1000;

fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    writer.write_all(text).unwrap();
    writer.finish().unwrap()
}

#[test]
fn body_coding_is_decoded_or_rejected() {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(b"text").unwrap();
    let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
    raw.write_all(b"text").unwrap();
    for (coding, body) in [
        ("gzip", gzip(b"text")),
        ("X-GZIP", gzip(b"text")),
        ("gzip, gzip", gzip(&gzip(b"text"))),
        ("identity, gzip", gzip(b"text")),
        ("identity", b"text".to_vec()),
        ("deflate", zlib.finish().unwrap()),
        ("deflate", raw.finish().unwrap()),
    ] {
        let mut headers = headers(CONTENT_ENCODING, coding);
        assert_eq!(decode(&mut headers, body.into(), LIMIT).unwrap(), "text", "{coding}");
        assert!(!headers.contains_key(CONTENT_ENCODING));
    }
    for (coding, body, expect) in [
        ("br", b"text".to_vec(), "coding 'br'"),
        ("zstd, gzip", gzip(b"text"), "coding 'zstd'"),
        ("gzip, gzip, gzip", gzip(b"text"), "gzip, gzip, gzip"),
        ("gzip", b"text".to_vec(), "not valid gzip"),
        ("gzip", gzip(b"text")[..15].to_vec(), "not valid gzip"),
        ("gzip", gzip(&[b'x'; LIMIT + 1]), "larger than 1000 bytes"),
    ] {
        let error = decode(&mut headers(CONTENT_ENCODING, coding), body.into(), LIMIT);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
    let mut empty = headers(CONTENT_ENCODING, "br");
    assert_eq!(decode(&mut empty, Bytes::new(), LIMIT).unwrap(), "");
}

#[test]
fn body_text_follows_byte_order_mark_and_charset() {
    for (kind, body, expect) in [
        ("text/plain; charset=ISO-8859-1", &b"caf\xe9"[..], Ok("café")),
        ("text/plain;CHARSET=\"iso-8859-15\"", b"\xa4", Ok("€")),
        ("application/json; a=b; charset=windows-1251", b"\"\xff\"", Ok("\"я\"")),
        ("text/plain; charset=utf-16le", b"h\0i\0", Ok("hi")),
        ("text/plain", b"\xff\xfeh\0i\0", Ok("hi")),
        ("text/plain; charset=utf-16", b"\xfe\xff\0h\0i", Ok("hi")),
        ("text/plain; charset=iso-8859-1", b"\xef\xbb\xbfcaf\xc3\xa9", Ok("café")),
        ("text/plain; charset=shift_jis", b"\x93\xfa", Ok("日")),
        ("text/plain; charset=us-ascii", b"hi", Ok("hi")),
        ("text/plain; charset=", b"hi", Ok("hi")),
        ("text/plain", b"caf\xe9", Err("not valid UTF-8")),
        ("text/plain; charset=utf-8", b"\xed\xa0\x80", Err("not valid UTF-8")),
        ("text/plain; charset=klingon", b"hi", Err("charset 'klingon'")),
    ] {
        let read = text(&headers(CONTENT_TYPE, kind), body).map_err(|error| error.to_string());
        match (&read, expect) {
            (Ok(text), Ok(expect)) => assert_eq!(text, expect, "{kind}"),
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            _ => panic!("{kind}: {read:?}"),
        }
    }
}

#[test]
fn json_integers_beyond_64_bits_are_rejected() {
    let parsed = |text: &str| parse::<Value>(text.as_bytes());
    for text in [
        "18446744073709551616",
        "-9223372036854775809",
        r#"{"a":[1,{"b":123456789012345678901234567890}]}"#,
        r#"["\\",100000000000000000000]"#,
        r#"{"a\"1":36893488147419103232}"#,
    ] {
        assert!(matches!(parsed(text), Err(Error::Number(_))), "{text}");
    }
    for text in [
        "18446744073709551615",
        "-9223372036854775808",
        r#""123456789012345678901234567890""#,
        r#"["\"123456789012345678901234567890",1e30,123456789012345678901.5]"#,
        r#"{"123456789012345678901234567890":0}"#,
    ] {
        assert!(parsed(text).is_ok(), "{text}");
    }
    assert_eq!(parsed("\u{feff}{\"a\": 1}"), Ok(json!({"a": 1})));
    for text in ["NaN", "[Infinity]", r#""\ud800""#, "\u{feff}", "\u{feff}\u{feff}1"] {
        assert!(matches!(parsed(text), Err(Error::Json(_))), "{text}");
    }
    assert!(matches!(parsed(&"[".repeat(1000)), Err(Error::Json(_))));
}

#[test]
fn json_claim_follows_media_type() {
    for (kind, claims) in [
        ("application/json", true),
        ("Application/JSON; charset=utf-8", true),
        ("application/problem+json", true),
        ("text/json", true),
        ("text/plain", false),
        ("application/x-ndjson", false),
        ("text/html; profile=json", false),
    ] {
        assert_eq!(claims_json(&headers(CONTENT_TYPE, kind)), claims, "{kind}");
    }
}

#[test]
fn header_text_is_utf8_or_latin_1() {
    for (bytes, text) in [
        (&b"caf\xe9"[..], "caf\u{e9}"),
        (b"caf\xc3\xa9", "caf\u{e9}"),
        (b"\xa320", "\u{a3}20"),
        (b"plain", "plain"),
    ] {
        assert_eq!(header_text(&HeaderValue::from_bytes(bytes).unwrap()), text);
    }
}
