//! Files: records, lists, usage, and deletion (`docs/spec/files.md`, "Records").

use hyper::StatusCode;

use super::context::Grant;
use super::doc::{CURSOR, Doc, ErrorForm, Kind, Param, ResponseDoc};
use super::{Context, Services, cursor};
use orrery_domain::file::{self as domain, Upload};
use orrery_domain::ids::FileId;
use orrery_http::{Response, response};
use orrery_wire::file::{Deleted, File, List, OpenAiFile, OpenAiList, OpenAiPage, Usage};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// The largest `limit` of OpenAI's API; a page still has at most [`LIMIT_MAX`] files.
const OPEN_AI_LIMIT_MAX: u64 = 10_000;

const NO_FILE: ResponseDoc = ResponseDoc::error(404, "File not found");

pub(crate) const LIST: Doc = Doc {
    query: &[
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
        CURSOR,
        Param::new("purpose", Kind::Text, "Only files with this purpose"),
        Param::new(
            "after",
            Kind::Text,
            "The ID of the last file of the previous page, instead of `cursor`",
        ),
    ],
    responses: &[ResponseDoc::json::<List>(200, "The files, newest first")],
    description: "Returns a page of the organization's files: uploads, pending uploads, and files \
                  that models produced. Pass `next_cursor` as `cursor` for the next page. With \
                  `purpose`, the page is also in OpenAI's format, and may have fewer files than \
                  `limit` although `has_more` is true. Below `/openai/v1`, the page has only \
                  OpenAI's fields.",
    ..Doc::new("files", "list_files", "List files")
};

/// `GET /v1/files?limit=&cursor=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let query = &context.request.query;
    let is_below_open_ai = context.form == ErrorForm::OpenAiOnly;
    let largest = if is_below_open_ai { OPEN_AI_LIMIT_MAX } else { LIMIT_MAX };
    let limit = query.number("limit", 1..=largest, LIMIT_DEFAULT)?.min(LIMIT_MAX);
    let purpose = query.get("purpose").filter(|purpose| !purpose.is_empty());
    let asked = format!("files {organization} {limit} {}", purpose.unwrap_or_default());
    let after = match query.get("after").filter(|after| !after.is_empty()) {
        Some(after) => Some(after.parse().map_err(|_no_id| invalid_after("file"))?),
        None => cursor::read(&context, &asked)?,
    };
    let services = &context.services;
    let listed = services.files.list(organization, purpose, after, usize::try_from(limit)?).await?;
    let files: Vec<File> = listed.files.iter().map(|file| view(services, file, &grant)).collect();
    let has_more = listed.more_after.is_some();
    if is_below_open_ai {
        return Ok(response::json(StatusCode::OK, &OpenAiPage::new(files, has_more)));
    }
    let body = List {
        open_ai: purpose.map(|_text| OpenAiList { object: "list", data: files.clone() }),
        files,
        has_more,
        next_cursor: listed.more_after.map(|id| cursor::behind(services, &asked, id)),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<File>(200, "The file, or the pending upload"), NO_FILE],
    description: "Returns the record of a file or of a pending upload. A deleted or expired file \
                  returns 404.",
    ..Doc::new("files", "get_file", "Get a file")
};

/// `GET /v1/files/{id}`: also returns pending uploads.
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let id: FileId = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let services = &context.services;
    if let Some((file, _path)) = services.files.find(organization, id).await? {
        return Ok(answer(context.form, StatusCode::OK, view(services, &file, &grant)));
    }
    let upload = services.files.announced(organization, id).await?.ok_or_else(missing)?;
    let url = public_url(services, &upload, &grant);
    Ok(answer(context.form, StatusCode::OK, File::of_upload(&upload, url)))
}

pub(crate) const USAGE: Doc = Doc {
    responses: &[ResponseDoc::json::<Usage>(200, "The number and total size of the files")],
    description: "Returns the number and the total size of the organization's files, which count \
                  toward its storage limit.",
    ..Doc::new("files", "get_file_usage", "Get the storage usage")
};

/// `GET /v1/files/usage`
pub(crate) async fn usage(context: Context) -> Result<Response, crate::Error> {
    let usage = context.services.files.usage(context.caller()?.organization).await?;
    Ok(response::json(StatusCode::OK, &Usage { count: usage.files, bytes: usage.bytes }))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "The file is deleted"), NO_FILE],
    description: "Deletes the file; its URL stops working. Repeating the request returns 204 \
                  again. An ID that never existed returns 404.",
    ..Doc::new("files", "delete_file", "Delete a file")
};

/// `DELETE /v1/files/{id}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let id = context.request.param("id").parse::<FileId>();
    let id = id.map_err(|_no_id| crate::Error::bad_request("the file id must be a UUID"))?;
    if !context.services.files.delete(organization, id).await? {
        return Err(missing());
    }
    if context.form == ErrorForm::OpenAiOnly {
        let body = Deleted { id, object: "file", deleted: true };
        return Ok(response::json(StatusCode::OK, &body));
    }
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// Returns the error for an `after` that is not an ID.
pub(crate) fn invalid_after(what: &str) -> crate::Error {
    crate::Error::bad_request(format!("after must be the ID of a {what}"))
}

pub(crate) fn missing() -> crate::Error {
    crate::Error::not_found("file not found")
}

/// Returns the link to the file that a pending upload will create.
pub(crate) fn public_url(services: &Services, upload: &Upload, grant: &Grant) -> String {
    let link = grant.link(services.files.latest_end(upload));
    services.signed_urls.url(link, &domain::File::content_path(upload.id))
}

/// Returns a file as a response. Below `/openai`, the response has OpenAI's status and fields;
/// elsewhere, it has `status` and the whole record.
pub(crate) fn answer(form: ErrorForm, status: StatusCode, file: File) -> Response {
    if form == ErrorForm::OpenAiOnly {
        return response::json(StatusCode::OK, &OpenAiFile::from(file));
    }
    response::json(status, &file)
}

/// Returns the view of a file, with a link made for `grant` that expires with the file.
pub(crate) fn view(services: &Services, file: &domain::File, grant: &Grant) -> File {
    let link = grant.link(file.expires_at);
    File::of(file, services.signed_urls.url(link, &domain::File::content_path(file.id)))
}
