//! Files: their records, lists, what they come to, and deleting one (`spec/decisions.md` part 8).

use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::context::Grant;
use super::{Context, Services, cursor};
use crate::domain::file::{File, Upload};
use crate::domain::ids::FileId;
use crate::http::{self, Reply, reply};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;

/// `GET /v1/files?limit=&cursor=`
pub async fn list(context: Context) -> Result<Reply, http::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let limit = context.call.query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?;
    let asked = format!("files {organization} {limit}");
    let after = cursor::read(&context, &asked)?;
    let services = &context.services;
    let listed = services.files.list(organization, after, usize::try_from(limit)?).await?;
    let records: Vec<Record> =
        listed.files.iter().map(|file| Record::of(services, file, &grant)).collect();
    let body = json!({
        "files": serde_json::to_value(&records).map_err(http::Error::internal)?,
        "has_more": listed.more_behind.is_some(),
        "next_cursor": listed.more_behind.map(|id| cursor::behind(services, &asked, id)),
    });
    Ok(reply::json(StatusCode::OK, &body))
}

/// `GET /v1/files/{id}`: also of an upload that was announced and has not come.
pub async fn get(context: Context) -> Result<Reply, http::Error> {
    let grant = context.grant()?;
    let organization = grant.organization;
    let id: FileId = context.call.param("id").parse().map_err(|_no_id| missing())?;
    let services = &context.services;
    if let Some((file, _path)) = services.files.find(organization, id).await? {
        return Ok(reply::json(StatusCode::OK, &Record::of(services, &file, &grant)));
    }
    let upload = services.files.announced(organization, id).await?.ok_or_else(missing)?;
    Ok(reply::json(StatusCode::OK, &Record::of_upload(services, &upload, &grant)))
}

/// `GET /v1/files/usage`
pub async fn usage(context: Context) -> Result<Reply, http::Error> {
    let usage = context.services.files.usage(context.caller()?.organization).await?;
    Ok(reply::json(StatusCode::OK, &json!({"count": usage.files, "bytes": usage.bytes})))
}

/// `DELETE /v1/files/{id}`
pub async fn delete(context: Context) -> Result<Reply, http::Error> {
    let organization = context.caller()?.organization;
    let id = context.call.param("id").parse();
    let id = id.map_err(|_no_id| http::Error::bad_request("the file id must be a UUID"))?;
    if !context.services.files.delete(organization, id).await? {
        return Err(missing());
    }
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

pub fn missing() -> http::Error {
    http::Error::not_found("file not found")
}

/// The link to the file that an announced upload becomes.
pub fn public_url(services: &Services, upload: &Upload, grant: &Grant) -> String {
    let link = grant.link(services.files.latest_end(upload));
    services.links.url(link, &File::content_path(upload.id))
}

/// A file as clients read it.
#[derive(Debug, Serialize)]
pub struct Record {
    id: String,
    filename: Option<String>,
    content_type: String,
    size: Option<u64>,
    sha256: Option<String>,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    created_at: String,
    expires_at: String,
    url: String,
    status: &'static str,
}

impl Record {
    /// Of a file that is there, with a link in the name of `grant` that ends with the file.
    pub fn of(services: &Services, file: &File, grant: &Grant) -> Self {
        Self {
            id: file.id.to_string(),
            filename: file.filename.clone(),
            content_type: file.content_type.clone(),
            size: Some(file.size),
            sha256: Some(file.sha256.to_string()),
            source: file.source.as_str(),
            execution_id: file.execution.map(|id| id.to_string()),
            created_at: file.created_at.to_string(),
            expires_at: file.expires_at.to_string(),
            url: services.links.url(grant.link(file.expires_at), &File::content_path(file.id)),
            status: "ready",
        }
    }

    /// Of one that was announced: `expires_at` is when it has to have come.
    fn of_upload(services: &Services, upload: &Upload, grant: &Grant) -> Self {
        Self {
            id: upload.id.to_string(),
            filename: upload.filename.clone(),
            content_type: upload.content_type.clone(),
            size: upload.size,
            sha256: upload.sha256.map(|digest| digest.to_string()),
            source: "upload",
            execution_id: None,
            created_at: upload.created_at.to_string(),
            expires_at: upload.expires_at.to_string(),
            url: public_url(services, upload, grant),
            status: "pending",
        }
    }
}
