//! Uploads (`docs/spec/files.md`, "Upload"): either presigned, followed by a PUT, or as a form in a
//! single request. The bytes are streamed to disk.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::Context;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::files::{answer, missing, public_url, view};
use super::form::Form;
use orrery_domain::file::{self, Digest, File, METADATA_BYTES_MAX, NAME_MAX, PURPOSE_MAX};
use orrery_http::media_type::{self, MediaType};
use orrery_http::{Response, response};
use orrery_records::files::{Announced, Receiving};
use orrery_wire as wire;
use orrery_wire::file::{FileForm, FileUrl, NewUpload, RequiredHeaders, Retention};
use orrery_wire::request;

/// Maximum size of a field other than the file, in bytes.
const FIELD_MAX: usize = 1024;

/// The form field with the file's content: its name in the service's own API, and its name in
/// Replicate's API.
const FILE: &str = "file";
pub(crate) const REPLICATE_CONTENT: &str = "content";

/// The form field of Replicate's API for the client's own data about the file.
const METADATA: &str = "metadata";

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
        metadata: None,
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
                  organization's quota returns 413. Below `/openai/v1`, the status is 200, and \
                  the record has only OpenAI's fields.",
    ..Doc::new("files", "create_file", "Upload a file in a form")
};

/// `POST /v1/files`: a form with the field `file`.
pub(crate) async fn post(context: Context) -> Result<Response, crate::Error> {
    let form = context.form;
    let (services, grant) = (Arc::clone(&context.services), context.grant()?);
    let file = take_form(context, FILE).await?;
    Ok(answer(form, StatusCode::CREATED, view(&services, &file, &grant)))
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
    let (services, grant) = (Arc::clone(&context.services), context.grant()?);
    let file = take_form(context, FILE).await?;
    let url = view(&services, &file, &grant).url;
    Ok(response::json(StatusCode::OK, &FileUrl { url }))
}

/// Stores the file in a form's field `content`. In Replicate's API, the form may also have the
/// field `metadata`, and no others.
pub(crate) async fn take_form(context: Context, content: &str) -> Result<File, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let services = Arc::clone(&context.services);
    let is_replicates = content == REPLICATE_CONTENT;
    let mut form = Form::of(context.request, content)?;
    let mut announced = Announced { key: Some(grant.key), ..Announced::default() };
    let mut received: Option<Receiving> = None;
    while let Some(part) = form.next().await? {
        match part.name() {
            Some(name) if name == content && received.is_none() => {
                announced.filename = part.filename().as_deref().map(check_name).transpose()?;
                announced.content_type = file::content_type(part.content_type());
                received = Some(part.receive(&services.files).await?);
            }
            Some(name) if name == content => {
                return Err(crate::Error::bad_request("only one file can be sent at a time"));
            }
            Some(METADATA) if is_replicates => {
                announced.metadata = Some(check_metadata(part.text(METADATA_BYTES_MAX).await?)?);
            }
            Some(KEEP) if !is_replicates => {
                let text = part.text(FIELD_MAX).await?;
                let value = text.trim().parse::<u64>().map_or(Value::String(text), Value::from);
                announced.keep = keep(&request::read(json!({KEEP: value}))?);
            }
            Some(PURPOSE) if !is_replicates => {
                announced.purpose = Some(check_purpose(part.text(FIELD_MAX).await?)?);
            }
            Some(_) | None => {
                let others = match is_replicates {
                    true => " and metadata",
                    false => ", purpose and expires_in_seconds",
                };
                let message = format!("the form may have only the fields {content}{others}");
                return Err(crate::Error::bad_request(message));
            }
        }
    }
    let missing = || crate::Error::bad_request(format!("{content} is required"));
    Ok(received.ok_or_else(missing)?.finish(organization, announced, None).await?)
}

fn check_metadata(text: String) -> Result<String, crate::Error> {
    match serde_json::from_str::<Map<String, Value>>(&text) {
        Ok(_object) => Ok(text),
        Err(_) => Err(crate::Error::bad_request("metadata must be a JSON object")),
    }
}

/// Validates a filename: a plain name without path separators.
pub(crate) fn check_name(name: &str) -> Result<String, crate::Error> {
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
