//! Serves the documentation site on the dashboard's host. `packaging/site/build` generates and
//! compresses the files, and a build with the feature `docs` embeds them.
//!
//! The routes need no session, because the files in `docs/` are public. Without the feature, a page
//! explains where to find the documentation. This module never reads from disk.

use std::io::Read as _;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue, LOCATION};

use crate::Context;
use crate::doc::{Doc, ResponseDoc};
use crate::static_files;
use orrery_http::{Response, response};

/// The files, compressed with gzip. The paths of these files have the additional extension `.gz`.
#[cfg(feature = "docs")]
#[derive(rust_embed::RustEmbed)]
#[folder = "../../target/site/packed/"]
struct Site;

/// The empty site of a build without the documentation.
#[cfg(not(feature = "docs"))]
struct Site;

#[cfg(not(feature = "docs"))]
impl Site {
    const fn get(_path: &str) -> Option<rust_embed::EmbeddedFile> {
        None
    }
}

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// The page that `/docs/` shows.
const FIRST: &str = "index.html";

const FILE_ANSWERS: &[ResponseDoc] = &[
    ResponseDoc::raw(200, "*/*", "The file"),
    ResponseDoc::empty(304, "Not modified"),
    ResponseDoc::raw(404, "text/html", "No such page, or a build without the documentation"),
];
const PAGE_ANSWERS: &[ResponseDoc] = &[
    ResponseDoc::raw(200, "text/html", "The page"),
    ResponseDoc::raw(302, "text/html", "Redirects to `docs/`"),
    ResponseDoc::empty(304, "Not modified"),
    ResponseDoc::raw(404, "text/html", "A build without the documentation"),
];

pub(crate) const PAGE: Doc = Doc {
    responses: PAGE_ANSWERS,
    description: "Returns the first page of the documentation of this version; without the slash \
                  at the end, redirects to it. Needs no session. A build without the documentation \
                  answers 404 with a page that says where to read it.",
    ..Doc::new("dashboard", "documentation", "Open the documentation")
};
pub(crate) const FILE: Doc = Doc {
    responses: FILE_ANSWERS,
    description: "Returns a page, a picture or another file of the documentation, with an `ETag`. \
                  Needs no session.",
    ..Doc::new("dashboard", "documentation_file", "Get a file of the documentation")
};

/// `GET /docs/`. The links of the page are relative to this folder, so `/docs` redirects to
/// `/docs/`.
pub(crate) async fn page(context: Context) -> Result<Response, crate::Error> {
    if context.request.path.ends_with('/') {
        return Ok(file_at(FIRST, &context.request.headers));
    }
    let page = Bytes::from_static(b"<a href=\"docs/\">Documentation</a>");
    let mut answer = response::with_type(StatusCode::FOUND, HTML, page);
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("docs/"));
    Ok(answer)
}

/// `GET /docs/{file}`
pub(crate) async fn file(context: Context) -> Result<Response, crate::Error> {
    Ok(file_at(context.request.param("file"), &context.request.headers))
}

fn file_at(path: &str, asked: &HeaderMap) -> Response {
    found(path, asked).unwrap_or_else(|| absent(path))
}

/// Returns the file at `path`.
fn found(path: &str, asked: &HeaderMap) -> Option<Response> {
    let file = Site::get(&format!("{path}.gz"))?;
    let content_type = match static_files::content_type(path) {
        // Examples and settings are text files with extensions that browsers do not recognize.
        "application/octet-stream" => "text/plain; charset=utf-8",
        known => known,
    };
    let tag = static_files::tag(&file.metadata.sha256_hash(), "");
    static_files::answer(asked, &tag, content_type, |is_compressed| {
        let packed = static_files::content(file.data);
        if is_compressed { Some(packed) } else { plain(&packed) }
    })
}

/// Decompresses a file for the few clients that do not accept gzip.
fn plain(packed: &[u8]) -> Option<Bytes> {
    let mut content = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut content).ok()?;
    Some(content.into())
}

/// Returns the page for a path without a file.
fn absent(path: &str) -> Response {
    let text = if Site::get(&format!("{FIRST}.gz")).is_some() {
        let up = "../".repeat(path.matches('/').count());
        format!(
            "<h1>Page not found</h1><p>The address may be mistyped, or of another version. <a \
             href=\"{up}index.html\">Go to the table of contents</a>.</p>"
        )
    } else {
        concat!(
            "<h1>No documentation in this build</h1><p>Released builds contain the documentation. \
             This one does not: read <code>docs/README.md</code> in its source tree, or <a \
             href=\"",
            env!("CARGO_PKG_REPOSITORY"),
            "/blob/main/docs/README.md\">online</a>. <code>packaging/site/build</code> and \
             <code>cargo build --features docs</code> make a build that contains it.</p>"
        )
        .to_owned()
    };
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"color-scheme\" \
         content=\"light dark\"><title>Orrery documentation</title>{text}</html>"
    );
    response::with_type(StatusCode::NOT_FOUND, HTML, page.into())
}
