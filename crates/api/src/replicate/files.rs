//! Files: upload, list, read and delete.

use std::sync::Arc;

use hyper::StatusCode;

use super::{CURSOR, Context, Doc, NO_FILE, Position, ResponseDoc, Services, doc, url_of};
use crate::content;
use crate::context::Grant;
use crate::doc::{ErrorForm, RequestDoc};
use crate::files::missing;
use crate::uploads::{REPLICATE_CONTENT, take_form};
use orrery_domain::file as domain;
use orrery_domain::ids::FileId;
use orrery_http::{Response, response};
use orrery_wire::replicate::{File, FileForm, Page};

/// Number of files in a page.
const PAGE: usize = 100;

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::form::<FileForm>()),
    responses: &[
        ResponseDoc::json::<File>(201, "The file"),
        ResponseDoc::error(413, "The file exceeds a limit or a quota"),
        ResponseDoc::error(422, "The file was not stored"),
    ],
    description: "Stores the file in a multipart form. The URL in `urls.get` can be used as a \
                  model's input, and works without a key until the file is deleted. A file above \
                  `files.max_bytes` or the organization's quota returns 413.",
    ..doc("replicate_create_file", "Upload a file")
};

/// `POST /replicate/v1/files`: a form with the fields `content` and `metadata`.
pub(crate) async fn create(context: Context) -> Result<Response, crate::Error> {
    let (services, grant) = (Arc::clone(&context.services), context.grant()?);
    let file = take_form(context, REPLICATE_CONTENT).await?;
    Ok(response::json(StatusCode::CREATED, &view(&services, &file, &grant)))
}

pub(crate) const LIST: Doc = Doc {
    query: &[CURSOR],
    responses: &[ResponseDoc::json::<Page<File>>(200, "A page of the files, newest first")],
    description: "Returns a page of up to 100 files of the key's organization: uploads, and \
                  files that models produced.",
    ..doc("replicate_list_files", "List files")
};

/// `GET /replicate/v1/files?cursor=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let services = &context.services;
    let asked = format!("replicate files {}", grant.organization);
    let position: Position<FileId> = Position::read(&context, asked, url_of(services, "files"))?;
    let listed = services.files.list(grant.organization, None, position.after(), PAGE).await?;
    let page = Page {
        previous: position.previous(services),
        next: position.next(services, listed.more_after),
        results: listed.files.iter().map(|file| view(services, file, &grant)).collect(),
    };
    Ok(response::json(StatusCode::OK, &page))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<File>(200, "The file"), NO_FILE],
    description: "Returns the record of a file. A deleted or expired file returns 404.",
    ..doc("replicate_get_file", "Get a file")
};

/// `GET /replicate/v1/files/{id}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let grant = context.grant()?;
    let services = &context.services;
    let found = services.files.find(grant.organization, id_of(&context)?).await?;
    let (file, _path) = found.ok_or_else(missing)?;
    Ok(response::json(StatusCode::OK, &view(services, &file, &grant)))
}

pub(crate) const DELETE: Doc = Doc {
    responses: &[ResponseDoc::empty(204, "The file is deleted"), NO_FILE],
    description: "Deletes the file; its URL stops working. Repeating the request returns 204 \
                  again. An ID that never existed returns 404.",
    ..doc("replicate_delete_file", "Delete a file")
};

/// `DELETE /replicate/v1/files/{id}`
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    if !context.services.files.delete(organization, id_of(&context)?).await? {
        return Err(missing());
    }
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const DOWNLOAD: Doc = Doc {
    tag: super::TAG,
    id: "replicate_download_file",
    summary: "Download a file",
    description: "Returns the bytes of a file. Supports `Range` and conditional requests. The \
                  URL in the file's `urls.get` returns the same bytes without a key.",
    errors: ErrorForm::Replicate,
    ..content::GET
};

fn id_of(context: &Context) -> Result<FileId, crate::Error> {
    context.request.param("id").parse().map_err(|_no_id| missing())
}

/// Returns the file as Replicate's API shows it. `grant` signs the link to the file's content.
fn view(services: &Services, file: &domain::File, grant: &Grant) -> File {
    let link = grant.link(file.expires_at);
    File::of(file, services.signed_urls.url(link, &domain::File::content_path(file.id)))
}
