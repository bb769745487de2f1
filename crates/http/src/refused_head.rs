//! Adds the API's error body to hyper's responses to invalid heads, which hyper sends itself with
//! an empty body.

use bytes::Bytes;
use hyper::StatusCode;

use super::date;
use super::server::{HEAD_BYTES, HEADERS_MAX};
use orrery_wire::error::Error;

/// Maximum size of the heads that hyper writes itself, in bytes.
const OWN_HEAD_MAX: usize = 256;
const EMPTY: &str = "content-length: 0\r\n";

/// Returns the response to send instead of `written`, if `written` is hyper's own response to an
/// invalid head. A handler's response with the same status differs because it has a body.
pub(crate) fn answer_to(written: &[u8]) -> Option<Bytes> {
    if written.len() > OWN_HEAD_MAX || !written.starts_with(b"HTTP/1.") {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let error = match StatusCode::from_u16(status).ok()? {
        StatusCode::BAD_REQUEST => {
            "the request is not valid HTTP: its first line or a header cannot be read".to_owned()
        }
        StatusCode::URI_TOO_LONG => format!("the URL is longer than {} KiB", HEAD_BYTES / 1024),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => format!(
            "the head of the request is too large: it may have {HEADERS_MAX} header fields and {} KiB",
            HEAD_BYTES / 1024
        ),
        _ => return None,
    };
    if !head.ends_with("\r\n\r\n") || head.matches("\r\n\r\n").count() != 1 {
        return None;
    }
    let (before, behind) = head.split_once(EMPTY)?;
    let body = Error { error: &error, status: Some(status), details: None };
    let body = serde_json::to_string(&body).ok()?;
    let length = body.len();
    let date = date::now();
    let date = date.to_str().unwrap_or_default();
    let fields =
        format!("content-type: application/json\r\ncontent-length: {length}\r\ndate: {date}\r\n");
    Some(format!("{before}{fields}{behind}{body}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_head_gets_body_and_other_answers_stay() {
        let own = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let answer = answer_to(own.as_bytes()).unwrap();
        let answer = std::str::from_utf8(&answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");
        assert!(body.ends_with(",\"status\":400}"), "{answer}");
        for other in [
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert_eq!(answer_to(other.as_bytes()), None, "{other}");
        }
    }
}
