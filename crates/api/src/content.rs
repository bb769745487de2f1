//! Serves file contents (`docs/spec/files.md`, "Content"): the complete file, a range, or a 304 if
//! unchanged.
//!
//! Files from models and users are not trusted, so browsers must not run their contents in this
//! host's origin.

use std::io::SeekFrom;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_NONE_MATCH, IF_RANGE, RANGE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{Context as Hash, SHA256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::Context;
use super::doc::{Doc, ResponseDoc};
use super::files::missing;
use orrery_domain::file::{Digest, File};
use orrery_http::{self as http, Response, body, response};
use orrery_records::files;

/// Number of bytes read and sent at a time.
const BLOCK: u64 = 64 * 1024;
/// Maximum size, in bytes, of a file that is verified before its first byte is sent. Larger files
/// are verified while they are sent.
const CHECKED_FIRST: u64 = 16 * 1024 * 1024;
/// The content security policy, which denies all capabilities to a page in a file.
const SANDBOX: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// The header with the range of a 206 response.
const PART: (&str, &str) = ("Content-Range", "The range, and the size of the file");

pub(crate) const GET: Doc = Doc {
    responses: &[
        ResponseDoc::raw(200, "*/*", "The bytes, with the content type of the file"),
        ResponseDoc {
            headers: &[PART],
            ..ResponseDoc::raw(206, "*/*", "The bytes of the `Range`")
        },
        ResponseDoc::empty(304, "The content matches `If-None-Match`"),
        ResponseDoc::error(404, "File not found"),
        ResponseDoc::error(412, "The content does not match `If-Match`"),
        ResponseDoc {
            headers: &[("Content-Range", "The size of the file")],
            ..ResponseDoc::error(416, "The `Range` is outside the file")
        },
    ],
    description: "Returns the bytes of a file, with an API key or with the `token` of its `url`. \
                  Supports `Range` and conditional requests. HTML and SVG are sent as attachments, \
                  and every response carries a sandboxing `Content-Security-Policy`.",
    ..Doc::new("files", "get_file_content", "Get the content of a file")
};

/// `GET /v1/files/{id}/content`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let id = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let organization = context.organization()?;
    let found = context.services.files.find(organization, id).await?;
    let (file, path) = found.ok_or_else(missing)?;
    let headers = &context.request.headers;
    let etag = format!("\"{}\"", file.sha256);
    // Pages of other sites may embed contents by link, but contents read with a key are restricted
    // to this origin.
    let readers = if context.caller().is_ok() { "same-origin" } else { "cross-origin" };
    if headers.contains_key(IF_MATCH) && !has_strong_etag(headers, &etag) {
        let message = "the content of this file does not match If-Match";
        return Err(crate::Error::status(StatusCode::PRECONDITION_FAILED, message));
    }
    if names_etag(headers, &IF_NONE_MATCH, &etag) {
        let mut unchanged = response::empty(StatusCode::NOT_MODIFIED);
        describe(&file, &etag, readers, unchanged.headers_mut());
        return Ok(unchanged);
    }
    // `If-Range` must contain a single strong tag, neither a list nor `*` (RFC 9110, section
    // 13.1.5).
    let is_same = headers.get(IF_RANGE).is_none_or(|tag| tag.as_bytes() == etag.as_bytes());
    // Ranges apply to GET only (section 14.2).
    let has_range = is_same && context.request.method == Method::GET;
    let asked = headers.get(RANGE).filter(|_| has_range).and_then(|range| range.to_str().ok());
    let (status, part) = match asked.map_or(Asked::Whole, |range| parse_range(range, file.size)) {
        Asked::Nothing => {
            let error = crate::Error::status(
                StatusCode::RANGE_NOT_SATISFIABLE,
                format!("the range is outside the file's {} bytes", file.size),
            );
            let size = HeaderValue::try_from(format!("bytes */{}", file.size));
            return Err(match size {
                Ok(size) => error.with_header(CONTENT_RANGE, size),
                Err(_) => error,
            });
        }
        Asked::Whole => (StatusCode::OK, None),
        Asked::Part(part) => (StatusCode::PARTIAL_CONTENT, Some(part)),
    };
    let (first, length) = match &part {
        None => (0, file.size),
        Some(part) => (*part.start(), part.end() - part.start() + 1),
    };
    let check = part.is_none().then(|| Check { digest: file.sha256, hash: Hash::new(&SHA256) });
    if check.is_some() && file.size <= CHECKED_FIRST {
        context.services.files.check_blob(file.sha256).await?;
    }
    let mut answer = hyper::Response::new(read(path, first, length, check).await?);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    describe(&file, &etag, readers, headers);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(part) = part {
        let range = format!("bytes {}-{}/{}", part.start(), part.end(), file.size);
        headers
            .insert(CONTENT_RANGE, HeaderValue::try_from(range).map_err(crate::Error::internal)?);
    }
    Ok(answer)
}

/// Hashes contents while they are sent, and compares the hash with the file's digest.
struct Check {
    digest: Digest,
    hash: Hash,
}

impl Check {
    /// Hashes a block. After the last block, returns whether the contents are intact.
    fn passes(&mut self, block: &[u8], is_last: bool) -> bool {
        self.hash.update(block);
        !is_last || self.hash.clone().finish().as_ref() == self.digest.0
    }
}

/// Streams part of a file. If the complete file is sent and its hash does not match, the last block
/// is withheld and the connection is aborted, so that the client does not mistake the download for
/// a complete file.
async fn read(
    path: PathBuf,
    first: u64,
    length: u64,
    check: Option<Check>,
) -> Result<http::Body, crate::Error> {
    let unread = |error: std::io::Error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        crate::Error::from(if is_missing {
            files::Error::Damaged("missing")
        } else {
            files::Error::Disk(error)
        })
    };
    let mut file = tokio::fs::File::open(path).await.map_err(unread)?;
    file.seek(SeekFrom::Start(first)).await.map_err(unread)?;
    let blocks = stream::unfold((file, length, check), |(mut file, left, mut check)| async move {
        if left == 0 {
            return None;
        }
        let mut block = vec![0; usize::try_from(left.min(BLOCK)).unwrap_or_default()];
        let read = file.read_exact(&mut block).await;
        let left = left - block.len() as u64;
        let passes = check.as_mut().is_none_or(|check| check.passes(&block, left == 0));
        match read {
            Ok(_) if passes => Some((Ok(Bytes::from(block)), (file, left, check))),
            Ok(_) => {
                tracing::error!("file content damaged: download aborted");
                let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
                Some((Err(error.into()), (file, 0, None)))
            }
            Err(error) => Some((Err(error.into()), (file, 0, None))),
        }
    });
    Ok(body::stream(blocks))
}

fn describe(file: &File, etag: &str, readers: &str, headers: &mut HeaderMap) {
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    set(CONTENT_TYPE, &file.content_type);
    set(ETAG, etag);
    set(ACCEPT_RANGES, "bytes");
    // Caches must revalidate, so that they do not serve a deleted file.
    set(CACHE_CONTROL, "private, no-cache");
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(CONTENT_SECURITY_POLICY, SANDBOX);
    set(CROSS_ORIGIN_RESOURCE_POLICY, readers);
    // The URL contains the link's token.
    set(REFERRER_POLICY, "no-referrer");
    set(CONTENT_DISPOSITION, &disposition(file));
}

/// Returns the `Content-Disposition` header: inline, unless the file may contain a script. The
/// header contains the filename in both forms of RFC 6266.
fn disposition(file: &File) -> String {
    /// Characters that a quoted string must not contain.
    const QUOTED: &AsciiSet = &CONTROLS.add(b'"').add(b'\\').add(b'%');
    let essence = file.content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    let has_script = essence.ends_with("html") || essence.ends_with("xml");
    let kind = if has_script { "attachment" } else { "inline" };
    let Some(name) = &file.filename else { return kind.to_owned() };
    let plain: String = name.chars().map(|c| if c.is_ascii() { c } else { '_' }).collect();
    let plain = utf8_percent_encode(&plain, QUOTED);
    let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

/// Returns whether a header's list of tags contains `etag`, by weak comparison (RFC 9110, section
/// 13.1.2).
pub(super) fn names_etag(headers: &HeaderMap, name: &HeaderName, etag: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag
    })
}

/// Returns whether `If-Match` contains `etag`, by strong comparison, or `*` (RFC 9110, section
/// 13.1.1).
fn has_strong_etag(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|one| one == "*" || one == etag)
}

/// The result of parsing a `Range`.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    Part(RangeInclusive<u64>),
    /// A range outside the file.
    Nothing,
}

/// Parses a single byte range (RFC 9110, section 14.1.2). For multiple ranges, other units and
/// invalid values, the complete file is returned, as the RFC allows.
fn parse_range(text: &str, size: u64) -> Asked {
    let bytes = text.split_once('=').filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = bytes.and_then(|(_, range)| range.split_once('-')) else {
        return Asked::Whole;
    };
    // `parse` would accept a sign, which is invalid in a range.
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // A number that does not fit is larger than any file.
    let number = |text: &str| is_number(text).then(|| text.parse().unwrap_or(u64::MAX));
    let (first, last) = match (first.trim(), last.trim()) {
        ("", "") => return Asked::Whole,
        ("", count) => match number(count) {
            None => return Asked::Whole,
            Some(0) => return Asked::Nothing,
            Some(count) => (size.saturating_sub(count), size.saturating_sub(1)),
        },
        (first, "") => match number(first) {
            None => return Asked::Whole,
            Some(first) => (first, size.saturating_sub(1)),
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, last.min(size.saturating_sub(1))),
            _ => return Asked::Whole,
        },
    };
    if first >= size { Asked::Nothing } else { Asked::Part(first..=last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_header_parses_every_form_of_a_single_range() {
        for (text, asked) in [
            ("bytes=0-0", Asked::Part(0..=0)),
            ("bytes=2-5", Asked::Part(2..=5)),
            ("bytes=2-500", Asked::Part(2..=9)),
            ("bytes=7-", Asked::Part(7..=9)),
            ("bytes=-3", Asked::Part(7..=9)),
            ("bytes=-30", Asked::Part(0..=9)),
            ("bytes=10-", Asked::Nothing),
            ("bytes=10-12", Asked::Nothing),
            ("bytes=-0", Asked::Nothing),
            ("bytes=5-2", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("bytes=-", Asked::Whole),
            ("bytes=a-b", Asked::Whole),
            ("lines=1-2", Asked::Whole),
            ("Bytes=2-5", Asked::Part(2..=5)),
            ("bytes=+1-+3", Asked::Whole),
            ("bytes=+1-", Asked::Whole),
            ("bytes=-+3", Asked::Whole),
            ("bytes=99999999999999999999-", Asked::Nothing),
            ("bytes=1-99999999999999999999999", Asked::Part(1..=9)),
            ("bytes=-99999999999999999999", Asked::Part(0..=9)),
        ] {
            assert_eq!(parse_range(text, 10), asked, "{text}");
        }
        for text in ["bytes=0-0", "bytes=0-", "bytes=-1"] {
            assert_eq!(parse_range(text, 0), Asked::Nothing, "{text}");
        }
    }

    #[tokio::test]
    async fn file_content_is_cut_off_if_digest_mismatches() {
        use http_body_util::BodyExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = vec![7; 200_000];
        std::fs::write(&path, &bytes).unwrap();
        let mut right = Hash::new(&SHA256);
        right.update(&bytes);
        let right = Digest(right.finish().as_ref().try_into().unwrap());
        for (digest, is_whole) in [(right, true), (Digest([0; 32]), false)] {
            let check = Some(Check { digest, hash: Hash::new(&SHA256) });
            let mut body = read(path.clone(), 0, 200_000, check).await.unwrap();
            let mut sent = 0;
            let mut is_cut = false;
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => sent += frame.into_data().unwrap().len(),
                    Err(_cut) => is_cut = true,
                }
            }
            assert_eq!((sent == bytes.len(), is_cut), (is_whole, !is_whole), "{sent}");
        }
    }
}
