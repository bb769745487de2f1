//! Serves the dashboard's files. The files are embedded in the binary, compressed once, and served
//! with headers for caching, revalidation and the content security policy.
//!
//! This module never reads from disk, and does not handle the dashboard's data, which the page
//! requests from the service at the same origin.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, ETAG, HeaderMap,
    HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use rust_embed::RustEmbed;

use orrery_domain::hex::hex;
use orrery_http::{Response, response};

/// The content security policy of the dashboard: only content from this origin, and connections
/// only to this origin. The policy permits no inline scripts, no inline styles except the style in
/// `index.html`, which is identified by its hash, no conversion of strings to markup, and no
/// framing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; \
     style-src 'self' 'sha256-BJmK7Z9aTgguCQ95NicYWwcJc8bWIvtU/RUBf01TYUU='; \
     img-src 'self' data: blob:; \
     media-src 'self' blob:; font-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'",
);
/// The page for all screens.
pub const PAGE: &str = "index.html";
/// The placeholder in the page for the path below which the dashboard is served.
const PLACE: &str = "{place}";
/// Maximum length of a request header. A longer header is ignored.
const HEADER_MAX: usize = 4096;

#[derive(RustEmbed)]
#[folder = "../../static/"]
struct Files;

/// The compressed files by path and place. Each file is compressed once. The number of entries is
/// bounded by the number of embedded files, because only the page depends on its place.
static COMPRESSED: Mutex<Option<HashMap<(String, &str), Bytes>>> = Mutex::new(None);

/// Adds the protective headers to a response of the dashboard's host. Existing headers of the
/// response are kept, because users' files have a stricter policy.
pub fn protect(headers: &mut HeaderMap) {
    let of_origin = HeaderValue::from_static("same-origin");
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("cross-origin-opener-policy"), of_origin.clone()),
        (HeaderName::from_static("cross-origin-resource-policy"), of_origin),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    ] {
        headers.entry(name).or_insert(value);
    }
}

/// Returns the embedded file at `path` (`index.html`, `style.css`, …), or a 304 without a body if
/// the browser's copy is current. `place` is the path below which the dashboard is served, and
/// usually empty. `asked` contains the request headers. Browsers cache a file but revalidate it
/// before each use, so that an update of the binary takes effect at once.
#[must_use]
pub fn asset(path: &str, place: &'static str, asked: &HeaderMap) -> Option<Response> {
    let file = Files::get(path)?;
    // Only the page contains absolute paths; all other files use relative paths.
    let place = if path == PAGE { place } else { "" };
    let tag = tag(&file.metadata.sha256_hash(), place);
    answer(asked, &tag, content_type(path), |is_compressed| {
        let is_page = path == PAGE;
        let bytes = if is_page { page_below(place, &file.data).into() } else { content(file.data) };
        if is_compressed { compressed(path, place, &bytes) } else { Some(bytes) }
    })
}

/// Returns a file with its entity tag, or a 304 if the request's headers contain this tag. `body`
/// returns the content, either compressed with gzip or uncompressed.
pub(crate) fn answer(
    asked: &HeaderMap,
    tag: &str,
    content_type: &'static str,
    body: impl FnOnce(bool) -> Option<Bytes>,
) -> Option<Response> {
    let header = |name: HeaderName| {
        let text = asked.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if text.len() <= HEADER_MAX { text } else { "" }
    };
    let mut answer = if matches(header(IF_NONE_MATCH), tag) {
        response::empty(StatusCode::NOT_MODIFIED)
    } else {
        let is_compressed = accepts_gzip(header(ACCEPT_ENCODING));
        let content_type = HeaderValue::from_static(content_type);
        let mut answer = response::with_type(StatusCode::OK, content_type, body(is_compressed)?);
        if is_compressed {
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    };
    let headers = answer.headers_mut();
    protect(headers);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    // The tag is weak, because the same file may be sent with or without compression.
    headers.insert(ETAG, HeaderValue::try_from(format!("W/{tag}")).ok()?);
    Some(answer)
}

/// Returns the content of an embedded file without copying it.
pub(crate) fn content(data: Cow<'static, [u8]>) -> Bytes {
    match data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    }
}

/// Returns the page for a dashboard below `place`.
fn page_below(place: &str, page: &[u8]) -> String {
    String::from_utf8_lossy(page).replace(PLACE, place)
}

/// Returns whether an `Accept-Encoding` header accepts gzip.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        name.trim().eq_ignore_ascii_case("gzip") && !weight.replace(' ', "").ends_with("q=0")
    })
}

/// Returns the file at `path`, compressed with gzip.
fn compressed(path: &str, place: &'static str, bytes: &Bytes) -> Option<Bytes> {
    let mut made = COMPRESSED.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_with(HashMap::new);
    let key = (path.to_owned(), place);
    if let Some(known) = made.get(&key) {
        return Some(known.clone());
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).ok()?;
    let small = Bytes::from(encoder.finish().ok()?);
    made.insert(key, small.clone());
    Some(small)
}

/// Returns a strong `ETag` (RFC 9110, section 8.8.3): in quotes, the place of the page and half of
/// the contents' SHA-256 in hexadecimal.
pub(crate) fn tag(hash: &[u8; 32], place: &str) -> String {
    format!("\"{place}{}\"", hex(hash.iter().take(16)))
}

/// Returns whether `known`, an `If-None-Match` header, matches `tag` (RFC 9110, section 13.1.2:
/// weak comparison).
fn matches(known: &str, tag: &str) -> bool {
    known.split(',').map(str::trim).any(|one| {
        one == "*" || one == tag || one.strip_prefix("W/").is_some_and(|weak| weak == tag)
    })
}

pub(crate) fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("png") => "image/png",
        Some("json") => "application/json",
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("md") => "text/markdown; charset=utf-8",
        Some("txt" | "ts") => "text/plain; charset=utf-8",
        Some(_) | None => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use http_body_util::BodyExt;
    use hyper::header::CONTENT_TYPE;
    use sha2::{Digest, Sha256};

    use super::*;

    fn ask(path: &str, name: HeaderName, value: &str) -> Option<Response> {
        let mut asked = HeaderMap::new();
        asked.insert(name, HeaderValue::from_str(value).unwrap());
        asset(path, "", &asked)
    }

    fn plain(path: &str) -> Option<Response> {
        asset(path, "", &HeaderMap::new())
    }

    fn tag_of(reply: &Response) -> String {
        reply.headers()[ETAG].to_str().unwrap().to_owned()
    }

    async fn body(reply: Response) -> Vec<u8> {
        reply.into_body().collect().await.unwrap().to_bytes().to_vec()
    }

    #[tokio::test]
    async fn dashboard_files_have_content_type_and_security_headers() {
        let names: Vec<_> = Files::iter().collect();
        assert!(names.iter().any(|name| name == "index.html"), "{names:?}");
        for name in names {
            let answer = plain(&name).unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            assert_ne!(content_type(&name), "application/octet-stream", "{name}");
            assert_eq!(answer.headers()[CONTENT_TYPE], content_type(&name));
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(answer.headers()[X_FRAME_OPTIONS], "DENY");
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
            assert!(!body(answer).await.is_empty(), "{name}");
        }
    }

    #[tokio::test]
    async fn dashboard_matching_etag_returns_304() {
        let tag = tag_of(&plain("index.html").unwrap());
        let strong = tag.trim_start_matches("W/").to_owned();
        for (known, status) in [
            (tag.clone(), 304),
            (strong.clone(), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            (strong.trim_matches('"').to_owned(), 200),
            ("\"other\"".to_owned(), 200),
            (String::new(), 200),
            (format!("{}{tag}", "\"a\",".repeat(2000)), 200),
        ] {
            let again = ask("index.html", IF_NONE_MATCH, &known).unwrap();
            assert_eq!(again.status(), status, "{known}");
            assert_eq!(tag_of(&again), tag);
            assert_eq!(again.headers()[CACHE_CONTROL], "no-cache");
            assert_eq!(body(again).await.is_empty(), status == 304);
        }
        assert_ne!(tag_of(&plain("app.js").unwrap()), tag);
    }

    #[tokio::test]
    async fn dashboard_files_are_compressed_where_accepted() {
        let whole = body(plain("app.js").unwrap()).await;
        for (accepted, is_small) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0", false),
            ("br", false),
            ("", false),
        ] {
            let answer = ask("app.js", ACCEPT_ENCODING, accepted).unwrap();
            assert_eq!(answer.headers().contains_key(CONTENT_ENCODING), is_small, "{accepted}");
            let bytes = body(answer).await;
            assert_eq!(bytes.len() < whole.len(), is_small, "{accepted}");
            if is_small {
                use std::io::Read as _;
                let mut text = Vec::new();
                flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut text).unwrap();
                assert!(text == whole);
            }
        }
    }

    #[test]
    fn dashboard_serves_only_embedded_files() {
        for path in
            ["", "/", ".", "../Cargo.toml", "/etc/passwd", "static/index.html", "INDEX.HTML"]
        {
            assert!(plain(path).is_none(), "{path}");
        }
    }

    #[test]
    fn dashboard_policy_names_the_one_inline_style() {
        let page = String::from_utf8(Files::get("index.html").unwrap().data.into_owned()).unwrap();
        let (_, rest) = page.split_once("<style>").unwrap();
        let (style, rest) = rest.split_once("</style>").unwrap();
        assert!(!rest.contains("<style"), "one is enough");
        let hash = BASE64.encode(Sha256::digest(style));
        let policy = POLICY.to_str().unwrap().to_owned();
        assert!(policy.contains(&format!("style-src 'self' 'sha256-{hash}';")), "{hash}: {policy}");
    }

    #[tokio::test]
    async fn dashboard_files_fit_the_budget_of_the_first_screen() {
        const FIRST: [&str; 6] =
            ["index.html", "style.css", "vendor/preact.js", "app.js", "core.js", "location.js"];
        let mut sum = 0;
        for name in FIRST {
            sum += body(ask(name, ACCEPT_ENCODING, "gzip").unwrap()).await.len();
        }
        assert!(sum < 60_000, "{sum} bytes");
        let mut all = 0;
        for name in Files::iter() {
            all += body(ask(&name, ACCEPT_ENCODING, "gzip").unwrap()).await.len();
        }
        assert!(all < 272 * 1024, "{all} bytes");
    }
}
