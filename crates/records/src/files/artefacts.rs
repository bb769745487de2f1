//! Artefacts: model outputs of the types image, audio, video and file. The artefacts' bytes are
//! stored as files, and the output contains the files' URLs.
//!
//! The bytes are given as `data:` URIs, or as `{"path": …}` with the path of a file in the run's
//! own folder. Other values, such as external URLs, stay unchanged.

use std::io::{self, Read};
use std::path::{Component, Path};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::Value;

use super::{Error, Files, NewFile, Source, blocking};
use crate::signed_urls::Link;
use orrery_domain::file::{File, FileSource, UNKNOWN_TYPE};
use orrery_domain::ids::{ExecutionId, FileId, KeyId, OrganizationId};

/// Maximum number of artefacts in one output.
pub(super) const ARTEFACTS_MAX: usize = 100;

/// The origin of an output.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    pub organization: OrganizationId,
    /// The key that started the execution. The links to the execution's files are signed for this
    /// key, so the links become invalid when the key does.
    pub key: KeyId,
    pub execution: ExecutionId,
    /// A stable name for the attempt. If the attempt runs again, the files are replaced.
    pub attempt_key: &'a str,
}

/// An artefact given as bytes.
struct Artefact {
    source: Source,
    content_type: String,
    filename: Option<String>,
}

impl Files {
    /// Replaces each artefact that was given as bytes with a link to a file. When this function
    /// returns, the files are durable. The links contain no host: [`SignedUrls::render`] adds the
    /// host when the output is read, so that links always use the configured `public_url`.
    ///
    /// [`SignedUrls::render`]: crate::signed_urls::SignedUrls::render
    ///
    /// # Errors
    /// [`Error::Invalid`] if an artefact is invalid, [`Error::TooLarge`] if it is too large.
    pub async fn keep_artefacts(
        &self,
        origin: Origin<'_>,
        output: Value,
        folder: Option<&Path>,
    ) -> Result<Value, Error> {
        let Value::Array(items) = output else {
            return self.keep_artefact(origin, 0, output, folder).await;
        };
        if items.len() > ARTEFACTS_MAX {
            return Err(Error::Invalid(format!("it has more than {ARTEFACTS_MAX} artefacts")));
        }
        let mut kept = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            kept.push(self.keep_artefact(origin, index, item, folder).await?);
        }
        Ok(Value::Array(kept))
    }

    async fn keep_artefact(
        &self,
        origin: Origin<'_>,
        index: usize,
        item: Value,
        folder: Option<&Path>,
    ) -> Result<Value, Error> {
        let artefact = match (&item, folder) {
            (Value::String(text), _) if text.starts_with("data:") => in_uri(text)?,
            (Value::Object(fields), Some(folder)) if fields.contains_key("path") => {
                in_folder(&item, folder).await?
            }
            _ => return Ok(item),
        };
        let new = NewFile {
            id: FileId::of_output(origin.execution, origin.attempt_key, index),
            organization: origin.organization,
            execution: Some(origin.execution),
            filename: artefact.filename,
            content_type: artefact.content_type,
            source: FileSource::Output,
            purpose: None,
            metadata: None,
            keep: None,
            key: Some(origin.key),
        };
        let file = self.keep(new, artefact.source).await?;
        let path = File::content_path(file.id);
        let organization = file.organization;
        let expires_at = file.expires_at;
        let link = Link { organization, key: origin.key, expires_at };
        Ok(self.shared.signed_urls.relative(link, &path).into())
    }
}

/// Returns an output in which each file of the run's folder is a `data:` URI, for a service on
/// another machine. `bytes_max` limits the total size of the files.
///
/// # Errors
/// [`Error::Invalid`] if an artefact is invalid, [`Error::TooLarge`] if it is too large.
pub async fn inline_artefacts(
    output: Value,
    folder: &Path,
    bytes_max: u64,
) -> Result<Value, Error> {
    let mut left = bytes_max;
    let Value::Array(items) = output else {
        return inline_artefact(output, folder, &mut left, bytes_max).await;
    };
    let mut inlined = Vec::with_capacity(items.len());
    for item in items {
        inlined.push(inline_artefact(item, folder, &mut left, bytes_max).await?);
    }
    Ok(Value::Array(inlined))
}

async fn inline_artefact(
    item: Value,
    folder: &Path,
    left: &mut u64,
    limit: u64,
) -> Result<Value, Error> {
    if item.get("path").is_none() {
        return Ok(item);
    }
    let Artefact { source, content_type, .. } = in_folder(&item, folder).await?;
    let most = *left;
    let bytes = blocking(move || {
        let mut bytes = Vec::new();
        source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = bytes.await?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    *left = most.checked_sub(length).ok_or(Error::TooLarge { limit })?;
    Ok(format!("data:{content_type};base64,{}", STANDARD.encode(bytes)).into())
}

fn in_uri(text: &str) -> Result<Artefact, Error> {
    let invalid = |what: String| Error::Invalid(format!("it is not a valid data: URI: {what}"));
    let uri = data_url::DataUrl::process(text).map_err(|error| invalid(format!("{error:?}")))?;
    let (bytes, _fragment) = uri.decode_to_vec().map_err(|error| invalid(error.to_string()))?;
    let content_type = uri.mime_type().to_string();
    Ok(Artefact { source: Box::new(std::io::Cursor::new(bytes)), content_type, filename: None })
}

/// Reads a file that the run left in its folder. Files elsewhere are rejected.
async fn in_folder(item: &Value, folder: &Path) -> Result<Artefact, Error> {
    let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
    let name =
        text("path").ok_or_else(|| Error::Invalid("its path must be a string".to_owned()))?;
    let shown: String = name.chars().take(200).collect();
    let refused = |what: &str| Error::Invalid(format!("its path '{shown}' {what}"));
    let path = Path::new(&name);
    // An absolute path is also accepted if it is inside the folder.
    let path = path.strip_prefix(folder).unwrap_or(path);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(refused("leads outside the folder of the run"));
    }
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let folder = folder.to_path_buf();
    let path = path.to_path_buf();
    let file = blocking(move || {
        // The program may still be running and changing its files, so the kernel itself must
        // confine the path, including symbolic links, to the folder that is opened here.
        let whole = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, whole, Mode::empty()).map_err(io::Error::from)?;
        // Opening a pipe must not block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = rustix::fs::openat2(folder, path, flags, Mode::empty(), within);
        let file = match file {
            Ok(file) => std::fs::File::from(file),
            Err(Errno::XDEV | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        Ok(file.metadata()?.is_file().then_some(file))
    });
    let file = file.await.map_err(|error| refused(&format!("cannot be read: {error}")))?;
    let file = file.ok_or_else(|| refused("is not a file in the folder of the run"))?;
    let guessed = || mime_guess::from_path(&name).first_raw().unwrap_or(UNKNOWN_TYPE).to_owned();
    let filename = Path::new(&name).file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Artefact {
        source: Box::new(file),
        content_type: text("content_type").unwrap_or_else(guessed),
        filename: text("filename").or(filename),
    })
}
