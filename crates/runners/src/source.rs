//! Reads the files that an input refers to: `data:` URIs, the URLs of files that this service
//! stores, and other http(s) URLs, which must pass the egress policy for URLs from clients.

use std::sync::Arc;
use std::time::Duration;

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, Engine};
use bytes::Bytes;
use hyper::Request;
use hyper::header::CONTENT_TYPE;

use orrery_domain::file;
use orrery_http::client::{self, Client, Overflow};
use orrery_http::egress::{Policy, UrlError};
use orrery_records::files::{self, Files};
use orrery_runtime::turns::{Turn, Turns};

/// Maximum memory of all requests that contain files. Organizations take turns.
const MEMORY_MAX: usize = 256 * 1024 * 1024;
/// Timeout for fetching a file.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The default name of a file whose source contains no plain name, without an extension.
const NAMELESS: &str = "file";

/// Reads the files to which inputs refer.
#[derive(Debug, Clone)]
pub struct Sources {
    client: Client,
    policy: Arc<Policy>,
    /// Reads the files that the service's own URLs refer to, without HTTP.
    files: Option<Files>,
    /// The memory of the requests that contain files.
    memory: Arc<Turns>,
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct Source {
    pub bytes: Bytes,
    /// The content type, which is a valid header value.
    pub content_type: String,
    /// The file's name. It has an extension if the source or the content type implies an extension.
    pub name: String,
}

/// A file that cannot be read. The messages describe the source, not the model.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    File(#[from] files::Error),
    #[error("{0}{hint}", hint = hint(.0))]
    Url(UrlError),
    #[error("a data: URI must be base64")]
    NotBase64,
    #[error("not valid base64: {0}")]
    Base64(base64::DecodeError),
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("the URL answered {0}")]
    Status(u16),
    #[error("the file is too large")]
    TooLarge,
}

impl Error {
    /// Whether the file is larger than the limit.
    pub(super) const fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::TooLarge
                | Self::File(files::Error::TooLarge { .. })
                | Self::Client(client::Error::TooLarge { .. })
        )
    }
}

const fn hint(error: &UrlError) -> &'static str {
    match error {
        UrlError::NotHttp => ", or a data: URI such as data:image/png;base64,…",
        UrlError::TooLong | UrlError::PortZero | UrlError::UserInfo | UrlError::Forbidden(_) => "",
    }
}

impl Sources {
    /// Creates a reader; `policy` checks all URLs except the service's own URLs, which `files`
    /// reads.
    #[must_use]
    pub fn new(policy: Policy, files: Option<Files>) -> Self {
        let client = Client::guarded(policy.clone());
        let memory = Turns::new(MEMORY_MAX);
        Self { client, policy: Arc::new(policy), files, memory }
    }

    /// Takes memory for a request with files, waiting until there is some.
    pub(super) async fn memory(&self, bytes: usize) -> Turn {
        self.memory.take(bytes).await
    }

    /// Reads a file of at most `bytes_max` bytes.
    pub(super) async fn read(&self, source: &str, bytes_max: usize) -> Result<Source, Error> {
        if let Some(files) = &self.files
            && let Some((file, bytes)) = files.read_linked(source, bytes_max as u64).await?
        {
            let named = file.filename.as_deref();
            return Ok(Source::new(bytes.into(), file.content_type, named));
        }
        if let Some((scheme, data)) = source.split_once(':')
            && scheme.eq_ignore_ascii_case("data")
        {
            let file = decode_data(data)?;
            return if file.bytes.len() <= bytes_max { Ok(file) } else { Err(Error::TooLarge) };
        }
        let url = self.policy.check_url(source).map_err(Error::Url)?;
        let request = Request::get(url.as_str()).body(Bytes::new())?;
        let limits = client::Limits {
            total: FETCH_TIMEOUT,
            answer_bytes: bytes_max,
            overflow: Overflow::Fail,
        };
        let answer = self.client.send_when_able(request, &limits).await?;
        if !answer.status.is_success() {
            return Err(Error::Status(answer.status.as_u16()));
        }
        let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = file::content_type(kind.unwrap_or_default());
        let named = url.path_segments().and_then(Iterator::last).map(|segment| {
            percent_encoding::percent_decode_str(segment).decode_utf8_lossy().into_owned()
        });
        Ok(Source::new(answer.body, kind, named.as_deref()))
    }
}

impl Source {
    fn new(bytes: Bytes, content_type: String, named: Option<&str>) -> Self {
        let is_plain = |name: &&str| {
            !name.is_empty()
                && name.len() <= NAME_BYTES_MAX
                && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\' | '"'))
        };
        let name = named.filter(is_plain).unwrap_or(NAMELESS).to_owned();
        // Some servers choose a decoder by the extension.
        let name = match extension(&content_type) {
            Some(extension) if !name.contains('.') => format!("{name}.{extension}"),
            _ => name,
        };
        Self { bytes, content_type, name }
    }
}

/// Returns the usual file extension for a content type.
fn extension(content_type: &str) -> Option<&str> {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    Some(match essence {
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "audio/mpeg" => "mp3",
        "audio/mp4" | "audio/x-m4a" => "m4a",
        "audio/wave" | "audio/x-wav" => "wav",
        "audio/x-flac" => "flac",
        "text/plain" => "txt",
        "application/octet-stream" => return None,
        _ => {
            let (_, subtype) = essence.split_once('/')?;
            let is_extension =
                subtype.len() <= 5 && subtype.bytes().all(|byte| byte.is_ascii_alphanumeric());
            return is_extension.then_some(subtype);
        }
    })
}

/// Decodes the part of a `data:` URI after its scheme. Accepts line breaks in the base64 and
/// missing padding, which some programs produce.
fn decode_data(data: &str) -> Result<Source, Error> {
    const ANY_PADDING: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let (head, encoded) = data.split_once(',').ok_or(Error::NotBase64)?;
    let (kind, last) = head.rsplit_once(';').ok_or(Error::NotBase64)?;
    if !last.trim().eq_ignore_ascii_case("base64") {
        return Err(Error::NotBase64);
    }
    let encoded: Vec<u8> = encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes = ANY_PADDING.decode(encoded).map_err(Error::Base64)?;
    Ok(Source::new(bytes.into(), file::content_type(kind), None))
}
