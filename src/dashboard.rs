//! The dashboard's files: embedded in the binary, each with the headers that a browser needs to
//! keep it, to check it for a change, and to run nothing but it.
//!
//! This never reads a disk and never knows what the page shows: the page asks the service itself,
//! on the same origin, by `GET /status.json`.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use rust_embed::RustEmbed;

use crate::http::{Response, response};

/// What every file says beside its type and tag. A browser may run and show what comes from this
/// origin, talk to this origin, and nothing else: no inline script or style, no frame around it, no
/// form. It keeps a file and asks before each use, so that an update of the binary shows at once.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];
/// Characters of an `If-None-Match` that are read; what is longer counts as absent.
const IF_NONE_MATCH_MAX: usize = 4096;

#[derive(RustEmbed)]
#[folder = "static/"]
struct Files;

/// The file at `path` (`index.html`, `style.css`, …), unless there is none; 304 without a body when
/// the browser has it already. `if_none_match` is the request's header of that name.
#[must_use]
pub fn asset(path: &str, if_none_match: Option<&HeaderValue>) -> Option<Response> {
    let file = Files::get(path)?;
    let tag = tag(&file.metadata.sha256_hash());
    let known = if_none_match.and_then(|known| known.to_str().ok());
    let mut answer = if known.is_some_and(|known| matches(known, &tag)) {
        response::empty(StatusCode::NOT_MODIFIED)
    } else {
        let bytes = match file.data {
            Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        response::with_type(StatusCode::OK, HeaderValue::from_static(content_type(path)), bytes)
    };
    let headers = answer.headers_mut();
    headers.extend(HEADERS);
    headers.insert(ETAG, HeaderValue::try_from(tag).ok()?);
    Some(answer)
}

/// Half of the content's SHA-256, in base 16 and quotation marks: a strong `ETag` (RFC 9110,
/// section 8.8.3).
fn tag(hash: &[u8; 32]) -> String {
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

/// Whether `known`, an `If-None-Match`, names `tag` (RFC 9110, section 13.1.2: compared weakly).
fn matches(known: &str, tag: &str) -> bool {
    known.len() <= IF_NONE_MATCH_MAX
        && known.split(',').map(str::trim).any(|one| {
            one == "*" || one == tag || one.strip_prefix("W/").is_some_and(|weak| weak == tag)
        })
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some(_) | None => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::header::CONTENT_TYPE;

    use super::*;

    fn ask(path: &str, known: &str) -> Option<Response> {
        asset(path, Some(&HeaderValue::from_str(known).unwrap()))
    }

    fn tag_of(reply: &Response) -> String {
        reply.headers()[ETAG].to_str().unwrap().to_owned()
    }

    async fn text(reply: Response) -> String {
        let bytes = reply.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn dashboard_files_have_content_type_and_security_headers() {
        let names: Vec<_> = Files::iter().collect();
        assert!(names.iter().any(|name| name == "index.html"), "{names:?}");
        for name in names {
            let answer = asset(&name, None).unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            assert_ne!(content_type(&name), "application/octet-stream", "{name}");
            assert_eq!(answer.headers()[CONTENT_TYPE], content_type(&name));
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
            assert!(!text(answer).await.is_empty(), "{name}");
        }
    }

    #[tokio::test]
    async fn dashboard_matching_etag_returns_304() {
        let tag = tag_of(&asset("index.html", None).unwrap());
        for (known, status) in [
            (tag.clone(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            (tag.trim_matches('"').to_owned(), 200),
            ("\"other\"".to_owned(), 200),
            (String::new(), 200),
            (format!("{}{tag}", "\"a\",".repeat(2000)), 200),
        ] {
            let again = ask("index.html", &known).unwrap();
            assert_eq!(again.status(), status, "{known}");
            assert_eq!(tag_of(&again), tag);
            assert_eq!(again.headers()[CACHE_CONTROL], "no-cache");
            assert_eq!(text(again).await.is_empty(), status == 304);
        }
        assert_ne!(tag_of(&asset("app.js", None).unwrap()), tag);
    }

    #[test]
    fn dashboard_serves_only_embedded_files() {
        for path in
            ["", "/", ".", "../Cargo.toml", "/etc/passwd", "static/index.html", "INDEX.HTML"]
        {
            assert!(asset(path, None).is_none(), "{path}");
        }
    }

    #[tokio::test]
    async fn dashboard_page_complies_with_its_content_security_policy() {
        let page = text(asset("index.html", None).unwrap()).await;
        for forbidden in ["<style", " style=", " onclick=", "javascript:", "http://", "https://"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        for script in page.split("<script").skip(1) {
            assert!(script.trim_start().starts_with("src=\"/static/"), "{script}");
        }
        for reference in page.split("\"/static/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(asset(name, None).is_some(), "{name}");
        }
        let style = text(asset("style.css", None).unwrap()).await;
        assert!(!style.contains("url(") && !style.contains("@import"));
        let script = text(asset("app.js", None).unwrap()).await;
        for forbidden in ["innerHTML", "eval(", "document.write", "http://", "https://"] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
