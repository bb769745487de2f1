//! The dashboard's files: embedded in the binary, each with the headers that a browser needs to
//! keep it, to check it for a change, and to run nothing but it.
//!
//! Plain data in and out: this never speaks HTTP, reads a disk or knows what the page shows. The
//! page asks the service itself, on the same origin, by `GET /status.json`.

use std::borrow::Cow;

use rust_embed::RustEmbed;

/// The file that stands for `/`.
pub const PAGE: &str = "index.html";

/// What a browser may do with these files: run and show what comes from this origin, talk to this
/// origin, and nothing else. No inline script or style, no frame around it, no form.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";
/// Kept, and asked about before each use: an update of the binary shows at once.
const CACHE_CONTROL: &str = "no-cache";
/// Characters of an `If-None-Match` that are read; what is longer counts as absent.
const IF_NONE_MATCH_MAX: usize = 4096;

#[derive(RustEmbed)]
#[folder = "static/"]
struct Files;

/// One answer with a file of the dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asset {
    /// 200, or 304 when the browser has the file already.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(&'static str, String)>,
    /// Empty with 304.
    pub bytes: Cow<'static, [u8]>,
}

/// The file at `path` (`index.html`, `style.css`, …), unless there is none. `if_none_match` is the
/// request's header of that name.
#[must_use]
pub fn asset(path: &str, if_none_match: Option<&str>) -> Option<Asset> {
    let file = Files::get(path)?;
    let tag = tag(&file.metadata.sha256_hash());
    let unchanged = if_none_match.is_some_and(|known| matches(known, &tag));
    let mut headers = vec![
        ("cache-control", CACHE_CONTROL.to_owned()),
        ("content-security-policy", CONTENT_SECURITY_POLICY.to_owned()),
        ("cross-origin-resource-policy", "same-origin".to_owned()),
        ("etag", tag),
        ("referrer-policy", "no-referrer".to_owned()),
        ("x-content-type-options", "nosniff".to_owned()),
    ];
    if unchanged {
        return Some(Asset { status: 304, headers, bytes: Cow::Borrowed(&[]) });
    }
    headers.push(("content-type", content_type(path).to_owned()));
    Some(Asset { status: 200, headers, bytes: file.data })
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
    use super::*;

    fn header<'a>(asset: &'a Asset, name: &str) -> Option<&'a str> {
        asset.headers.iter().find(|(held, _)| *held == name).map(|(_, value)| value.as_str())
    }

    fn text(path: &str) -> String {
        String::from_utf8(asset(path, None).unwrap().bytes.into_owned()).unwrap()
    }

    #[test]
    fn every_file_has_a_type_and_guards() {
        let names: Vec<_> = Files::iter().collect();
        assert!(names.iter().any(|name| name == PAGE), "{names:?}");
        for name in names {
            let asset = asset(&name, None).unwrap();
            assert_eq!(asset.status, 200);
            assert_ne!(content_type(&name), "application/octet-stream", "{name}");
            assert_eq!(header(&asset, "content-type"), Some(content_type(&name)));
            assert_eq!(header(&asset, "x-content-type-options"), Some("nosniff"));
            assert!(header(&asset, "content-security-policy").unwrap().contains("'none'"));
            assert!(!asset.bytes.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_known_is_not_sent_again() {
        let first = asset(PAGE, None).unwrap();
        let tag = header(&first, "etag").unwrap();
        for (known, status) in [
            (tag.to_owned(), 304),
            (format!("W/{tag}"), 304),
            (format!("\"other\", {tag}"), 304),
            ("*".to_owned(), 304),
            (tag.trim_matches('"').to_owned(), 200),
            ("\"other\"".to_owned(), 200),
            (String::new(), 200),
            (format!("{}{tag}", "\"a\",".repeat(2000)), 200),
        ] {
            let again = asset(PAGE, Some(&known)).unwrap();
            assert_eq!(again.status, status, "{known}");
            assert_eq!(again.bytes.is_empty(), status == 304);
            assert_eq!(header(&again, "etag"), Some(tag));
        }
        assert_ne!(header(&asset("app.js", None).unwrap(), "etag"), Some(tag));
    }

    #[test]
    fn there_is_no_way_out_of_the_folder() {
        for path in
            ["", "/", ".", "../Cargo.toml", "/etc/passwd", "static/index.html", "INDEX.HTML"]
        {
            assert_eq!(asset(path, None), None, "{path}");
        }
    }

    #[test]
    fn the_page_needs_nothing_that_its_policy_forbids() {
        let page = text(PAGE);
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
        let style = text("style.css");
        assert!(!style.contains("url(") && !style.contains("@import"));
        let script = text("app.js");
        for forbidden in ["innerHTML", "eval(", "document.write", "http://", "https://"] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
