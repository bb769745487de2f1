//! Uploads (`docs/spec/files.md`, "Upload"): either presigned, followed by a PUT, or as a form in a
//! single request. The bytes are streamed to disk.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderMap, HeaderValue};
use multer::{Field, Multipart};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::files::{missing, public_url, view};
use orrery_domain::file::{self, Digest, File, NAME_MAX, PURPOSE_MAX};
use orrery_http::media_type::{self, MediaType};
use orrery_http::{Request, Response, response};
use orrery_records::files::{Announced, Files, Receiving};
use orrery_wire as wire;
use orrery_wire::file::{FileForm, FileUrl, NewUpload, RequiredHeaders, Retention};
use orrery_wire::request;

/// Maximum size of a form field's head (boundary and headers), in bytes. The limit is accurate to
/// one chunk. The form parser may read two chunks, each as large as a connection's buffer, before
/// it searches for the end of a head, so the limit must be larger than two chunks.
const HEAD_MAX: usize = 1024 * 1024;
/// Maximum size of a field other than the file, in bytes.
const FIELD_MAX: usize = 1024;

/// The field with the retention of the file, in seconds.
const KEEP: &str = "expires_in_seconds";

/// The field that says what the file is for.
const PURPOSE: &str = "purpose";

pub(crate) const PRESIGN: Doc = Doc {
    request: Some(RequestDoc::json::<NewUpload>()),
    responses: &[
        ResponseDoc::json::<wire::file::Announced>(200, "The presigned upload"),
        ResponseDoc::error(413, "The body exceeds the limit, or the upload exceeds a quota"),
    ],
    description: "Creates a URL to which anyone can upload the bytes with a `PUT` within 15 \
                  minutes, without a key, with exactly the `required_headers`. `public_url` is the \
                  URL of the content afterwards. Nothing is stored until the upload. The request \
                  is not idempotent: each repetition creates another upload.",
    ..Doc::new("files", "announce_upload", "Create a presigned upload")
};

/// `POST /v1/upload/presign`
pub(crate) async fn presign(mut context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let NewUpload { content_type, filename, size, sha256, retention, .. } =
        context.request.json().await?;
    if file::content_type(&content_type) != content_type {
        return Err(crate::Error::bad_request("content_type must be a type such as image/png"));
    }
    let announced = Announced {
        filename: filename.as_deref().map(check_name).transpose()?,
        sha256: sha256.and_then(|text| Digest::parse(&text.to_ascii_lowercase())),
        size,
        keep: keep(&retention),
        key: Some(grant.key),
        purpose: None,
        content_type,
    };
    let services = &context.services;
    let upload = services.files.announce(grant.organization, announced).await?;
    let link = grant.link(upload.expires_at);
    let body = wire::file::Announced {
        id: upload.id,
        presigned_url: services.signed_urls.url(link, &File::upload_path(upload.id)),
        public_url: public_url(services, &upload, &grant),
        expires_at: upload.expires_at.into(),
        required_headers: RequiredHeaders { content_type: upload.content_type },
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const PUT: Doc = Doc {
    request: Some(RequestDoc::bytes()),
    responses: &[
        ResponseDoc::json::<wire::file::File>(200, "The file"),
        ResponseDoc::error(404, "Upload not found"),
        ResponseDoc::error(409, "The upload is already complete"),
        ResponseDoc::error(410, "The upload has expired"),
        ResponseDoc::error(413, "The file exceeds a limit or a quota"),
        ResponseDoc::error(422, "The bytes do not match the declared size or hash"),
    ],
    description: "Stores the bytes of an upload that `POST /v1/upload/presign` created, with an \
                  API key or with the `token` of its URL. `Content-Type` must be the announced \
                  type. Bytes that do not match the announced size or hash return 422, and nothing \
                  is stored; the upload can then be repeated until it expires. A complete upload \
                  returns 409.",
    ..Doc::new(
        "files",
        "upload",
        "Upload the bytes of a presigned upload, with the declared Content-Type",
    )
};

/// `PUT /v1/upload/{id}`: uploads the bytes of a presigned upload.
pub(crate) async fn put(mut context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let id = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let services = Arc::clone(&context.services);
    let upload = services.files.awaited(organization, id).await?;
    let sent = media_type::of(&context.request.headers);
    if sent.is_none() || sent != MediaType::parse(&upload.content_type) {
        let message = format!("Content-Type must be {}, as announced", upload.content_type);
        return Err(crate::Error::bad_request(message));
    }
    let mut receiving = services.files.receive(upload.size).await?;
    while let Some(piece) = context.request.next_chunk().await? {
        receiving.write(&piece).await?;
    }
    let file = receiving.finish(organization, Announced::from(&upload), Some(&upload)).await?;
    Ok(response::json(StatusCode::OK, &view(&services, &file, &grant)))
}

pub(crate) const POST: Doc = Doc {
    request: Some(RequestDoc::form::<FileForm>()),
    responses: &[
        ResponseDoc::json::<wire::file::File>(201, "The file"),
        ResponseDoc::error(413, "The file exceeds a limit or a quota"),
        ResponseDoc::error(422, "The file was not stored"),
    ],
    description: "Stores a file of a multipart form and returns its record. `url` of the record \
                  can be used as an input of models, and read without a key. The bytes are synced \
                  to disk before the response. A file above `files.max_bytes` or the \
                  organization's quota returns 413.",
    ..Doc::new("files", "create_file", "Upload a file in a form")
};

/// `POST /v1/files`: a form with the field `file`.
pub(crate) async fn post(context: Context) -> Result<Response, crate::Error> {
    Ok(response::json(StatusCode::CREATED, &take_form(context).await?))
}

pub(crate) const POST_FOR_URL: Doc = Doc {
    responses: &[
        ResponseDoc::json::<FileUrl>(200, "The URL of the file, which can be read without a key"),
        ResponseDoc::error(413, "The file exceeds a limit or a quota"),
        ResponseDoc::error(422, "The file was not stored"),
    ],
    description: "Stores a file of a multipart form and returns only its URL, for clients that \
                  need no record. Otherwise, the request does the same as `POST /v1/files`.",
    ..Doc { id: "upload_file", summary: "Upload a file in a form and return only its URL", ..POST }
};

/// `POST /api/v1/upload`: the same form as `POST /v1/files`, for clients that only need a URL for
/// an input.
pub(crate) async fn post_for_url(context: Context) -> Result<Response, crate::Error> {
    let url = take_form(context).await?.url;
    Ok(response::json(StatusCode::OK, &FileUrl { url }))
}

/// Stores the file in a form.
async fn take_form(context: Context) -> Result<wire::file::File, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let services = Arc::clone(&context.services);
    let content_type = context.request.headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let boundary = content_type.and_then(|it| multer::parse_boundary(it).ok());
    let boundary = boundary.ok_or_else(|| {
        crate::Error::bad_request("the body must be multipart/form-data with a field file")
    })?;
    let failure = Failure::default();
    let head = Head::default();
    let bare = format!("--{boundary}\n").into_bytes();
    let form = pieces(context.request, failure.clone(), head.clone(), bare);
    let mut form = Multipart::new(form, boundary);
    let mut announced = Announced { key: Some(grant.key), ..Announced::default() };
    let mut received: Option<Receiving> = None;
    while let Some(mut field) = form.next_field().await.map_err(|error| failure.of(&error))? {
        head.ended();
        match field.name() {
            Some("file") if received.is_none() => {
                check_encoding(field.headers())?;
                let extended = extended_name(field.headers());
                let filename = extended.as_deref().or(field.file_name());
                announced.filename = filename.map(check_name).transpose()?;
                let content_type = field.content_type().map_or("", AsRef::as_ref);
                announced.content_type = file::content_type(content_type);
                received = Some(receive(&services.files, &mut field, &failure).await?);
                head.begins();
            }
            Some("file") => {
                return Err(crate::Error::bad_request("only one file can be sent at a time"));
            }
            Some(KEEP) => {
                let text = short_text(&mut field, &failure).await?;
                let value = text.trim().parse::<u64>().map_or(Value::String(text), Value::from);
                announced.keep = keep(&request::read(json!({KEEP: value}))?);
                head.begins();
            }
            Some(PURPOSE) => {
                let text = short_text(&mut field, &failure).await?;
                announced.purpose = Some(check_purpose(text)?);
                head.begins();
            }
            Some(_) | None => {
                let message =
                    "the form may have only the fields file, purpose and expires_in_seconds";
                return Err(crate::Error::bad_request(message));
            }
        }
    }
    let received = received.ok_or_else(|| crate::Error::bad_request("file is required"))?;
    let file = received.finish(organization, announced, None).await?;
    Ok(view(&services, &file, &grant))
}

/// The error that ended the body of a form early, if any.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<crate::Error>>>);

impl Failure {
    fn set(&self, error: crate::Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Returns the error for the client: the cause of the failed read, or the form's own error.
    fn of(&self, error: &multer::Error) -> crate::Error {
        let read = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        read.unwrap_or_else(|| {
            crate::Error::bad_request(format!("the form cannot be read: {error}"))
        })
    }
}

/// Bytes received since the start of a field's head (boundary and headers). The form parser buffers
/// a head and searches it from its start with every chunk, so the length of a head must be bounded.
#[derive(Clone, Default)]
struct Head(Arc<Mutex<Option<usize>>>);

impl Head {
    fn begins(&self) {
        *self.lock() = Some(0);
    }

    fn ended(&self) {
        *self.lock() = None;
    }

    /// Counts a chunk; returns false if the head is too long.
    fn takes(&self, bytes: usize) -> bool {
        let mut held = self.lock();
        let Some(before) = *held else { return true };
        *held = Some(before.saturating_add(bytes));
        before <= HEAD_MAX
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the body's chunks. `bare` is the expected first line of a form whose lines end in LF.
/// Such a form is rejected, because the parser would read the entire form without finding a field.
fn pieces(
    request: Request,
    failure: Failure,
    head: Head,
    bare: Vec<u8>,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    head.begins();
    let start = (request, failure, head, bare);
    stream::try_unfold(start, |(mut request, failure, head, bare)| async move {
        // The parser reads chunks as long as they are available. Yielding limits the parser to one
        // chunk at a time. Otherwise, the parser would buffer chunks without limit if they arrive
        // faster than the disk can store them.
        tokio::task::yield_now().await;
        match request.next_chunk().await {
            Ok(Some(piece)) if !head.takes(piece.len()) => {
                let message = format!("the headers of a field may have at most {HEAD_MAX} bytes");
                failure.set(crate::Error::bad_request(message));
                Err(std::io::ErrorKind::InvalidData.into())
            }
            Ok(Some(piece)) if !bare.is_empty() && piece.starts_with(&bare) => {
                let message = "the lines of the form must end in CRLF (RFC 2046), but the first \
                               line ends in LF";
                failure.set(crate::Error::bad_request(message));
                Err(std::io::ErrorKind::InvalidData.into())
            }
            // Only the first chunk is examined, because it contains the first line of the body.
            Ok(piece) => Ok(piece.map(|piece| (piece, (request, failure, head, Vec::new())))),
            Err(error) => {
                failure.set(error.into());
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
    })
}

async fn receive(
    files: &Files,
    field: &mut Field<'_>,
    failure: &Failure,
) -> Result<Receiving, crate::Error> {
    let mut receiving = files.receive(None).await?;
    while let Some(piece) = field.chunk().await.map_err(|error| failure.of(&error))? {
        receiving.write(&piece).await?;
    }
    Ok(receiving)
}

async fn short_text(field: &mut Field<'_>, failure: &Failure) -> Result<String, crate::Error> {
    let mut text = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| failure.of(&error))? {
        text.extend_from_slice(&piece);
        if text.len() > FIELD_MAX {
            let message = format!("a field other than the file may have at most {FIELD_MAX} bytes");
            return Err(crate::Error::bad_request(message));
        }
    }
    String::from_utf8(text).map_err(|_no_text| crate::Error::bad_request("a field is not UTF-8"))
}

/// Returns the value of `filename*` (RFC 8187), which some clients send for names that are not
/// ASCII.
fn extended_name(headers: &HeaderMap) -> Option<String> {
    let disposition = headers.get(CONTENT_DISPOSITION)?.to_str().ok()?;
    let mut parameters = disposition.split(';').filter_map(|one| one.split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("filename*"))?;
    let (charset, rest) = value.trim().split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    charset.eq_ignore_ascii_case("utf-8").then(|| name.into_owned())
}

/// Rejects a file with a `Content-Transfer-Encoding`, because the service would store the encoded
/// bytes (RFC 7578, section 4.7).
fn check_encoding(headers: &HeaderMap) -> Result<(), crate::Error> {
    let encoding = headers.get("content-transfer-encoding").map(HeaderValue::as_bytes);
    match encoding.map(|encoding| encoding.trim_ascii().to_ascii_lowercase()).as_deref() {
        None | Some(b"binary" | b"8bit" | b"7bit") => Ok(()),
        Some(_) => Err(crate::Error::bad_request(
            "the file has a Content-Transfer-Encoding: send its bytes without one",
        )),
    }
}

/// Validates a filename: a plain name without path separators.
fn check_name(name: &str) -> Result<String, crate::Error> {
    let is_name = !name.is_empty()
        && name.chars().count() <= NAME_MAX
        && !name.chars().any(|c| c.is_control() || c == '/' || c == '\\')
        && name != "."
        && name != "..";
    if !is_name {
        return Err(crate::Error::bad_request(format!(
            "filename must be a plain name of 1 to {NAME_MAX} characters, without / and \\"
        )));
    }
    Ok(name.to_owned())
}

fn check_purpose(text: String) -> Result<String, crate::Error> {
    let is_purpose = !text.is_empty()
        && text.chars().count() <= PURPOSE_MAX
        && !text.chars().any(char::is_control);
    if !is_purpose {
        let message = format!("purpose must have 1 to {PURPOSE_MAX} characters, without controls");
        return Err(crate::Error::bad_request(message));
    }
    Ok(text)
}

fn keep(retention: &Retention) -> Option<Duration> {
    retention.expires_in_seconds.map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the limit, the parser would search a head of 100 MiB from its start 6,000 times.
    #[test]
    fn multipart_field_head_is_bounded_but_content_is_not() {
        let head = Head::default();
        head.begins();
        assert!(head.takes(HEAD_MAX) && head.takes(1));
        assert!(!head.takes(1), "it was too long before this piece");
        head.ended();
        assert!(head.takes(100 * 1024 * 1024) && head.takes(1));
        head.begins();
        assert!(head.takes(1));
    }
}
