//! Compresses large responses for clients that accept compression: lists, documents and metrics.
//!
//! Responses of the dashboard are never compressed: a page of another site can trigger a request,
//! the browser adds the cookie to the request, and the length of a compressed response would reveal
//! information about its contents. Streams and stored files are never compressed either.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderValue, VARY,
};
use hyper::{HeaderMap, StatusCode};

use super::Role;
use orrery_http::{Response, body};

/// Responses below this size, in bytes, are not compressed.
const SIZE_MIN: u64 = 2 * 1024;
/// Responses above this size, in bytes, are not compressed, because compression would take at least
/// a second of CPU time.
const SIZE_MAX: u64 = 64 * 1024 * 1024;
/// Responses above this size, in bytes, are compressed on a blocking thread.
const OFF_THREAD_MIN: usize = 64 * 1024;
/// Compression levels at which compression is faster than a typical network.
const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 4;

/// A content coding that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Zstd,
    Gzip,
}

impl Coding {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Returns the best coding that a request accepts; `None` for no compression.
    pub(crate) fn asked(headers: &HeaderMap) -> Option<Self> {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut best: Option<(f32, Self)> = None;
        for one in lists.flat_map(|list| list.split(',')) {
            let mut parts = one.split(';').map(str::trim);
            let coding = match parts.next().map(str::to_ascii_lowercase).as_deref() {
                Some("zstd") => Self::Zstd,
                Some("gzip" | "x-gzip") => Self::Gzip,
                Some(_) | None => continue,
            };
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse);
            let weight: f32 = weight.unwrap_or(0.0);
            let is_better = match best {
                None => true,
                Some((held, kept)) => weight > held || (weight == held && kept == Self::Gzip),
            };
            if weight > 0.0 && is_better {
                best = Some((weight, coding));
            }
        }
        best.map(|(_, coding)| coding)
    }
}

/// Compresses a response if the client accepts compression and the response is eligible.
pub(crate) async fn compress(mut answer: Response, role: Role, coding: Option<Coding>) -> Response {
    if !is_worth_it(&answer, role) {
        return answer;
    }
    answer.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(coding) = coding else { return answer };
    let (mut parts, whole) = answer.into_parts();
    let Ok(whole) = whole.collect().await else {
        return Response::from_parts(parts, body::empty());
    };
    let whole = whole.to_bytes();
    match encoded(whole.clone(), coding).await {
        Some(shorter) => {
            let name = HeaderValue::from_static(coding.as_str());
            parts.headers.insert(CONTENT_ENCODING, name);
            Response::from_parts(parts, body::full(shorter))
        }
        None => Response::from_parts(parts, body::full(whole)),
    }
}

fn is_worth_it(answer: &Response, role: Role) -> bool {
    let headers = answer.headers();
    let is_text = headers.get(CONTENT_TYPE).is_some_and(|kind| {
        [&b"application/json"[..], b"text/plain"]
            .iter()
            .any(|text| kind.as_bytes().starts_with(text))
    });
    let has = |name| headers.contains_key(name);
    let is_of_api = match role {
        Role::Base | Role::Workflows | Role::Flows | Role::Agent | Role::Ollama | Role::Metrics => {
            true
        }
        Role::Dashboard | Role::Control => false,
    };
    is_of_api
        && is_text
        && answer.status() == StatusCode::OK
        && !(has(CONTENT_ENCODING) || has(ETAG) || has(ACCEPT_RANGES) || has(CONTENT_RANGE))
        && answer
            .body()
            .size_hint()
            .exact()
            .is_some_and(|size| (SIZE_MIN..=SIZE_MAX).contains(&size))
}

/// Returns the compressed bytes; `None` if the compressed bytes are not shorter than the original.
async fn encoded(whole: Bytes, coding: Coding) -> Option<Bytes> {
    let length = whole.len();
    let shorter = if length < OFF_THREAD_MIN {
        encode(&whole, coding)
    } else {
        tokio::task::spawn_blocking(move || encode(&whole, coding)).await.ok()?
    };
    shorter.ok().filter(|shorter| shorter.len() < length).map(Bytes::from)
}

fn encode(whole: &[u8], coding: Coding) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Zstd => zstd::encode_all(whole, ZSTD_LEVEL),
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
            encoder.write_all(whole)?;
            encoder.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_http::response;

    #[test]
    fn coding_follows_weights_of_accept_encoding() {
        for (asked, coding) in [
            ("gzip, zstd", Some(Coding::Zstd)),
            ("zstd;q=0.5, gzip", Some(Coding::Gzip)),
            ("gzip;q=0.5, br, zstd;q=0.5", Some(Coding::Zstd)),
            ("GZIP", Some(Coding::Gzip)),
            ("gzip;q=0, zstd;q=0", None),
            ("gzip;q=nonsense", None),
            ("br, identity, *", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(asked));
            assert_eq!(Coding::asked(&headers), coding, "{asked}");
        }
    }

    #[tokio::test]
    async fn compression_is_applied_only_where_safe_and_worthwhile() {
        let long = "a long line of text\n".repeat(10_000);
        let answer = || response::text(StatusCode::OK, long.clone());
        let coding_of = |answer: &Response| {
            answer.headers().get(CONTENT_ENCODING).map(|value| value.to_str().unwrap().to_owned())
        };
        let gzip = Some(Coding::Gzip);
        let packed = compress(answer(), Role::Metrics, gzip).await;
        assert_eq!(coding_of(&packed).as_deref(), Some("gzip"));
        assert_eq!(packed.headers()[VARY], "accept-encoding");
        assert!(packed.body().size_hint().exact().unwrap() < 10_000);
        let plain = compress(answer(), Role::Base, None).await;
        assert_eq!(
            (coding_of(&plain), plain.headers()[VARY].to_str().unwrap()),
            (None, "accept-encoding")
        );
        assert_eq!(coding_of(&compress(answer(), Role::Dashboard, gzip).await), None);
        let short = response::text(StatusCode::OK, "short");
        assert_eq!(coding_of(&compress(short, Role::Base, gzip).await), None);
        let mut tagged = answer();
        tagged.headers_mut().insert(ETAG, HeaderValue::from_static("\"1\""));
        assert_eq!(coding_of(&compress(tagged, Role::Base, gzip).await), None);
    }
}
