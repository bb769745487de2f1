//! Downloads one file: resumes an interrupted download, checks the digest, and only then gives the
//! file its name.
//!
//! An unfinished download consists of two files: `NAME.part` contains the first bytes, and
//! `NAME.source.part` states the version of the file to which these bytes belong.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderMap, HeaderName, HeaderValue, IF_RANGE, LAST_MODIFIED, RANGE,
};
use indicatif::{HumanBytes, ProgressBar};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::Digest;
use super::source::{From, Item};
use super::web::{Answer, Error, Web, shown};
use crate::backup::progress_bar;
use crate::model::give_to_service;
use crate::output;
use orrery_backup::Spared;
use orrery_runtime::regular_file;

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// Maximum number of consecutive resumptions that bring no new bytes, after a download has made
/// progress.
const RETRIES_MAX: u32 = 5;
/// Delay before the first retry; each further retry waits twice as long.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The number of bytes of a file to read at a time.
const PIECE_BYTES: usize = 1024 * 1024;
/// Maximum size of the description of an unfinished download, in bytes.
const ABOUT_BYTES_MAX: u64 = 16 * 1024;
const SHOWN: &str = "{bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// A finished file.
#[derive(Debug, Serialize)]
pub(super) struct Pulled {
    pub file: PathBuf,
    pub bytes: u64,
    pub sha256: String,
    /// Whether the source or `--sha256` stated this digest.
    #[serde(rename = "verified")]
    pub is_verified: bool,
}

/// Downloads files into one folder.
#[derive(Debug)]
pub(super) struct Downloader<'d> {
    pub web: &'d Web,
    pub folder: &'d Path,
    /// The web page of the repository, for errors.
    pub page: Option<&'d str>,
    /// The free disk space that a download must leave.
    pub reserve: Option<u64>,
}

/// The version of the file to which a part belongs. The URL has no query and no credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    url: String,
    /// `ETag` or `Last-Modified`, for `If-Range`.
    validator: Option<String>,
    sha256: Option<String>,
}

/// The first bytes of a file.
struct Part<'d> {
    target: &'d Path,
    path: PathBuf,
    about_path: PathBuf,
    file: File,
    hash: Sha256,
    length: u64,
    validator: Option<String>,
    /// The digest of the version to which the bytes of an earlier command belong.
    former: Option<Digest>,
    /// The size and the digest that the whole file must have.
    size: Option<u64>,
    sha256: Option<Digest>,
    bar: ProgressBar,
}

impl Downloader<'_> {
    /// Downloads a file, unless it is complete already.
    pub(super) async fn pull(&self, item: &Item) -> anyhow::Result<Pulled> {
        let target = self.folder.join(&item.name);
        if target.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml")) {
            bail!(
                "{} would be a manifest, which may start programs: download it yourself, and read \
                 it before you copy it into the models folder",
                target.display()
            );
        }
        if target.try_exists().unwrap_or(true) {
            return existing(&target, item);
        }
        if let Some(folder) = target.parent().filter(|folder| *folder != self.folder) {
            create_like(folder, self.folder)
                .with_context(|| format!("{} cannot be created", folder.display()))?;
        }
        let mut part = Part::open(&target, item)?;
        let size = item.size.map_or_else(String::new, |size| format!(" ({})", HumanBytes(size)));
        let from = match &item.from {
            From::Web(url) => shown(url),
            From::Disk(path) => path.display().to_string(),
        };
        output::note(&format!("Pulling {from}{size}"));
        match &item.from {
            From::Web(url) => self.download(url, &mut part).await?,
            From::Disk(path) => self.copy(path, &mut part)?,
        }
        part.finish()
    }

    /// Requests the file until it is complete. Replaces a broken connection as long as new bytes
    /// arrive.
    async fn download(&self, url: &Url, part: &mut Part<'_>) -> anyhow::Result<()> {
        part.resume(url)?;
        let mut fruitless = RETRIES_MAX;
        loop {
            let before = part.length;
            let error = match self.attempt(url, part).await {
                Ok(()) => return Ok(()),
                Err(Error::Final(message)) => bail!("{message}"),
                Err(Error::Transient(message)) => message,
            };
            fruitless = if part.length > before { 0 } else { fruitless + 1 };
            if fruitless > RETRIES_MAX {
                let is_resumable = part.length > 0;
                bail!(
                    "{error}{}",
                    if is_resumable { "; run the same command to resume" } else { "" }
                );
            }
            tokio::time::sleep(RETRY_AFTER * 2_u32.pow(fruitless)).await;
        }
    }

    async fn attempt(&self, url: &Url, part: &mut Part<'_>) -> Result<(), Error> {
        let mut answer = self.web.get(url, &part.headers()).await?;
        if part.length > 0 && !part.continues(&answer)? {
            if part.is_whole(&answer) {
                return Ok(());
            }
            output::note("The file has changed at its source: starting again.");
            part.restart().map_err(written)?;
            if answer.status != StatusCode::OK {
                answer = self.web.get(url, &part.headers()).await?;
            }
        }
        if !answer.status.is_success() {
            return Err(self.web.refused(answer.status, url, self.page));
        }
        if answer.status == StatusCode::PARTIAL_CONTENT && part.length == 0 {
            return Err(Error::Final(format!("{} answers only a part of the file", shown(url))));
        }
        part.learn(url, &answer)?;
        let left = part.size.map_or(0, |size| size.saturating_sub(part.length));
        let file = part.file.try_clone().map_err(written)?;
        let folder = part.target.parent().unwrap_or(self.folder);
        let mut out = Spared::new(file, folder, self.reserve, left).map_err(written)?;
        part.bar.set_position(part.length);
        part.bar.reset_eta();
        while let Some(piece) = self.web.next_piece(&mut answer.body).await? {
            part.check_room(piece.len())?;
            out.write_all(&piece).map_err(written)?;
            part.add(&piece);
        }
        match part.size {
            Some(size) if part.length < size => {
                Err(Error::Transient(format!("only {} of {size} bytes arrived", part.length)))
            }
            _ => Ok(()),
        }
    }

    /// Copies the file from a folder.
    fn copy(&self, from: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
        let failed = || format!("{} cannot be copied", from.display());
        part.restart().with_context(failed)?;
        let mut source = regular_file::open(from).with_context(failed)?;
        let file = part.file.try_clone().with_context(failed)?;
        let folder = part.target.parent().unwrap_or(self.folder);
        let expected = part.size.unwrap_or(0);
        let mut out = Spared::new(file, folder, self.reserve, expected).with_context(failed)?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = source.read(&mut piece).with_context(failed)?;
            let read = piece.get(..count).unwrap_or_default();
            if read.is_empty() {
                return Ok(());
            }
            out.write_all(read).with_context(failed)?;
            part.add(read);
        }
    }
}

/// Creates a folder with the owner and the permissions of another folder.
fn create_like(folder: &Path, other: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir(folder)?;
    let other = fs::metadata(other)?;
    if geteuid().is_root() {
        chown(folder, Some(other.uid()), Some(other.gid()))?;
    }
    fs::set_permissions(folder, other.permissions())
}

/// Returns the description of a file that exists already, if it is the file to pull.
fn existing(target: &Path, item: &Item) -> anyhow::Result<Pulled> {
    let shown = target.display();
    let mut file = regular_file::open(target).with_context(|| format!("{shown} cannot be read"))?;
    let bytes = file.metadata()?.len();
    let mut hash = Sha256::new();
    let bar = progress_bar("verify", SHOWN);
    bar.set_length(bytes);
    hash_all(&mut file, &mut hash, &bar).with_context(|| format!("{shown} cannot be read"))?;
    bar.finish_and_clear();
    let digest = Digest(hash.finalize().into());
    let is_same = match (item.sha256, item.size) {
        (Some(sha256), _) => sha256 == digest,
        (None, Some(size)) => size == bytes,
        (None, None) => false,
    };
    if !is_same {
        bail!(
            "{shown} exists already, and nothing shows that it is the file to pull: delete it, or \
             choose another folder with --into"
        );
    }
    output::note(&format!("{shown} is complete already."));
    let (file, sha256) = (target.to_path_buf(), digest.to_string());
    Ok(Pulled { file, bytes, sha256, is_verified: item.sha256.is_some() })
}

fn hash_all(file: &mut File, hash: &mut Sha256, bar: &ProgressBar) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = file.read(&mut piece)?;
        let read = piece.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Ok(());
        }
        hash.update(read);
        bar.inc(count as u64);
    }
}

impl<'d> Part<'d> {
    fn open(target: &'d Path, item: &Item) -> anyhow::Result<Self> {
        let ending = |ending: &str| {
            let mut path = target.as_os_str().to_owned();
            path.push(ending);
            PathBuf::from(path)
        };
        let (path, about_path) = (ending(".part"), ending(".source.part"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = regular_file::open_with(&path, &mut options);
        let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another command is pulling {}", target.display());
        }
        // Another command may have renamed the file before it was locked.
        let (placed, own) = (fs::symlink_metadata(&path)?, file.metadata()?);
        if (placed.dev(), placed.ino()) != (own.dev(), own.ino()) || own.nlink() != 1 {
            bail!("{} was replaced or is a link: run the command again", path.display());
        }
        if item.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            bail!("{} has more than {FILE_BYTES_MAX} bytes", target.display());
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bar = progress_bar(&name, SHOWN);
        bar.set_length(item.size.unwrap_or(0));
        Ok(Self {
            target,
            path,
            about_path,
            file,
            hash: Sha256::new(),
            length: 0,
            validator: None,
            former: None,
            size: item.size,
            sha256: item.sha256,
            bar,
        })
    }

    /// Reuses the bytes that an earlier command downloaded, if they belong to this version of the
    /// file.
    fn resume(&mut self, url: &Url) -> anyhow::Result<()> {
        let found = self.file.metadata()?.len();
        let about = File::open(&self.about_path).ok().and_then(|file| {
            let mut text = String::new();
            file.take(ABOUT_BYTES_MAX).read_to_string(&mut text).ok()?;
            serde_json::from_str::<About>(&text).ok()
        });
        // The URL of a file on the hub contains the commit, which changes with every other file.
        let is_same = |about: &About| match (&self.sha256, &about.sha256) {
            (Some(known), Some(own)) => known.to_string() == *own,
            (Some(_), None) => false,
            (None, _) => about.url == shown(url),
        };
        let is_too_long = self.size.is_some_and(|size| found > size);
        let about = about.filter(|about| is_same(about) && !is_too_long);
        // Without a validator and a digest, nothing shows that the bytes still fit.
        let about = about.filter(|about| about.validator.is_some() || about.sha256.is_some());
        let Some(about) = about.filter(|_| found > 0) else { return Ok(self.restart()?) };
        self.former = about.sha256.as_deref().and_then(|digits| digits.parse().ok());
        self.validator = about.validator.filter(|_| about.url == shown(url));
        self.file.seek(SeekFrom::Start(0))?;
        hash_all(&mut self.file, &mut self.hash, &self.bar)?;
        self.length = self.file.stream_position()?;
        output::note(&format!("Resuming after {}.", HumanBytes(self.length)));
        Ok(())
    }

    /// Discards the bytes.
    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.hash, self.length) = (Sha256::new(), 0);
        (self.validator, self.former) = (None, None);
        Ok(())
    }

    fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = vec![(ACCEPT_ENCODING, HeaderValue::from_static("identity"))];
        if self.length > 0 {
            let range = HeaderValue::try_from(format!("bytes={}-", self.length));
            headers.extend(range.ok().map(|range| (RANGE, range)));
            let validator = self.validator.as_ref().map(HeaderValue::try_from);
            headers.extend(validator.and_then(Result::ok).map(|value| (IF_RANGE, value)));
        }
        headers
    }

    /// Returns whether a response contains the bytes that follow the part.
    fn continues(&self, answer: &Answer) -> Result<bool, Error> {
        if answer.status != StatusCode::PARTIAL_CONTENT {
            // Errors other than an unsatisfiable range say nothing about the file.
            let is_error = answer.status.is_client_error() || answer.status.is_server_error();
            if is_error && answer.status != StatusCode::RANGE_NOT_SATISFIABLE {
                return Ok(true);
            }
            return Ok(false);
        }
        let (start, total) = range_of(&answer.headers)
            .ok_or_else(|| Error::Final("the source sends an invalid Content-Range".to_owned()))?;
        let other = digest_of(answer).zip(self.former).is_some_and(|(new, known)| new != known);
        let has_size = self.size.is_none_or(|size| total.is_none_or(|total| total == size));
        let etag = answer.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
        let known = self.validator.as_deref().filter(|known| known.starts_with('"'));
        let has_changed = known.zip(etag).is_some_and(|(known, new)| known != new);
        Ok(start == Some(self.length) && has_size && !other && !has_changed)
    }

    /// Returns whether a response says that the part is the whole file.
    fn is_whole(&self, answer: &Answer) -> bool {
        let total = range_of(&answer.headers).and_then(|(_, total)| total);
        let is_after = answer.status == StatusCode::RANGE_NOT_SATISFIABLE;
        is_after && total == Some(self.length) && self.size.is_none_or(|size| size == self.length)
    }

    /// Takes the size, the digest and the version of the file from a response.
    fn learn(&mut self, url: &Url, answer: &Answer) -> Result<(), Error> {
        let headers = &answer.headers;
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        if text(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            return Err(Error::Final(format!("{} sends a compressed file", shown(url))));
        }
        let is_page = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"));
        let has_html = self.target.extension().is_some_and(|end| end == "html" || end == "htm");
        if is_page && !has_html {
            let hint = "on Hugging Face, replace /blob/ in the URL with /resolve/";
            return Err(Error::Final(format!("{} is a web page, not a file: {hint}", shown(url))));
        }
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        let size = match answer.status {
            StatusCode::PARTIAL_CONTENT => range_of(headers).and_then(|(_, total)| total),
            _ => length,
        };
        if let Some((known, stated)) = self.size.zip(size).filter(|(known, own)| known != own) {
            let message = format!("{} has {stated} bytes instead of {known}", shown(url));
            return Err(Error::Final(message));
        }
        self.size = self.size.or(size);
        if self.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            let message = format!("{} is larger than {FILE_BYTES_MAX} bytes", shown(url));
            return Err(Error::Final(message));
        }
        if let Some(stated) = digest_of(answer) {
            if self.sha256.is_some_and(|known| known != stated) {
                let message = format!("{} has another SHA-256: {stated}", shown(url));
                return Err(Error::Final(message));
            }
            self.sha256 = Some(stated);
        }
        self.bar.set_length(self.size.unwrap_or(0));
        // A weak validator does not promise equal bytes.
        let etag = text(ETAG).filter(|etag| !etag.starts_with("W/"));
        self.validator = etag.or_else(|| text(LAST_MODIFIED)).map(str::to_owned);
        let sha256 = self.sha256.map(|digest| digest.to_string());
        let about = About { url: shown(url), validator: self.validator.clone(), sha256 };
        let about = serde_json::to_vec(&about).map_err(|error| written(error.into()))?;
        let folder = self.target.parent().unwrap_or(Path::new("."));
        let placed = || -> io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
            file.write_all(&about)?;
            file.persist(&self.about_path)?;
            Ok(())
        };
        placed().map_err(written)
    }

    /// Checks that a piece belongs to the file.
    fn check_room(&self, bytes: usize) -> Result<(), Error> {
        let most = self.size.unwrap_or(FILE_BYTES_MAX);
        if self.length.saturating_add(bytes as u64) > most {
            return Err(Error::Final(format!("the source sends more than {most} bytes")));
        }
        Ok(())
    }

    /// Counts a piece that has been written.
    fn add(&mut self, piece: &[u8]) {
        self.hash.update(piece);
        self.length = self.length.saturating_add(piece.len() as u64);
        self.bar.set_position(self.length);
    }

    /// Checks the digest and gives the file its name.
    fn finish(self) -> anyhow::Result<Pulled> {
        self.bar.finish_and_clear();
        let shown = self.target.display();
        let failed = || format!("{shown} cannot be written");
        let digest = Digest(self.hash.finalize().into());
        if let Some(expected) = self.sha256.or(self.former).filter(|known| *known != digest) {
            fs::remove_file(&self.path).with_context(failed)?;
            drop(fs::remove_file(&self.about_path));
            bail!(
                "{shown}: the SHA-256 of the download is {digest} instead of {expected}; the \
                 download was deleted. Run the command again, or distrust the source"
            );
        }
        self.file.sync_all().with_context(failed)?;
        let folder = self.target.parent().unwrap_or(Path::new("."));
        give_to_service(&self.file, folder).with_context(failed)?;
        fs::rename(&self.path, self.target).with_context(failed)?;
        File::open(folder).and_then(|folder| folder.sync_all()).with_context(failed)?;
        drop(fs::remove_file(&self.about_path));
        Ok(Pulled {
            file: self.target.to_path_buf(),
            bytes: self.length,
            sha256: digest.to_string(),
            is_verified: self.sha256.is_some(),
        })
    }
}

fn written(error: io::Error) -> Error {
    Error::Final(format!("the download cannot be written: {error}"))
}

/// Returns the start and the total size in `Content-Range`; either may be missing.
fn range_of(headers: &HeaderMap) -> Option<(Option<u64>, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = match range {
        "*" => None,
        range => Some(range.split_once('-')?.0.parse().ok()?),
    };
    Some((start, total.parse().ok()))
}

/// Returns the SHA-256 of the whole file that a response states (RFC 9530, or the hub's header).
fn digest_of(answer: &Answer) -> Option<Digest> {
    let in_header = || {
        let text = answer.headers.get(REPR_DIGEST)?.to_str().ok()?;
        let item = text.split(',').find_map(|item| item.trim().strip_prefix("sha-256=:"))?;
        let bytes = STANDARD.decode(item.split(':').next()?).ok()?;
        Some(Digest(bytes.try_into().ok()?))
    };
    answer.linked.or_else(in_header)
}

#[cfg(test)]
mod tests {
    use orrery_http::egress::Policy;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers two requests: for the first request, sends three of six bytes and then stalls; for
    /// the second request, sends the remaining bytes.
    async fn stall(listener: TcpListener) -> String {
        let first = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 6\r\n\r\nabc";
        let second = "HTTP/1.1 206 Partial Content\r\nETag: \"1\"\r\nContent-Length: 3\r\n\
                      Content-Range: bytes 3-5/6\r\n\r\ndef";
        let mut request = vec![0; 4096];
        let (mut stalled, _) = listener.accept().await.unwrap();
        let _first = stalled.read(&mut request).await.unwrap();
        stalled.write_all(first.as_bytes()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let count = other.read(&mut request).await.unwrap();
        other.write_all(second.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..count]).into_owned()
    }

    #[test]
    fn part_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("m.gguf.part")).unwrap();
        let from = From::Web("http://h/m.gguf".parse().unwrap());
        let item = Item { from, name: "m.gguf".into(), size: None, sha256: None };
        let error = Part::open(&folder.path().join("m.gguf"), &item).err().unwrap();
        assert!(error.to_string().contains("was replaced or is a link"), "{error}");
        assert_eq!(fs::read_to_string(other).unwrap(), "kept");
    }

    #[tokio::test]
    async fn stalled_download_goes_on_with_another_connection() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/m.gguf", listener.local_addr().unwrap());
        let mut web = Web::new(&url, None, Policy::default());
        web.stalled = Duration::from_millis(500);
        let downloader =
            Downloader { web: &web, folder: folder.path(), page: None, reserve: Some(0) };
        let from = From::Web(url.parse().unwrap());
        let item = Item { from, name: "m.gguf".into(), size: None, sha256: None };
        let both = async { tokio::join!(downloader.pull(&item), stall(listener)) };
        let both = tokio::time::timeout(Duration::from_secs(60), both).await;
        let (pulled, request) = both.unwrap();
        assert_eq!(pulled.unwrap().bytes, 6);
        assert_eq!(fs::read(folder.path().join("m.gguf")).unwrap(), b"abcdef");
        assert!(request.to_lowercase().contains("range: bytes=3-\r\n"), "{request}");
    }

    #[test]
    fn content_range_is_parsed() {
        for (text, expect) in [
            ("bytes 5-9/10", Some((Some(5), Some(10)))),
            ("bytes 5-9/*", Some((Some(5), None))),
            ("bytes */10", Some((None, Some(10)))),
            ("bytes 5/10", None),
            ("items 5-9/10", None),
            ("bytes x-9/10", None),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_RANGE, HeaderValue::from_static(text))]);
            assert_eq!(range_of(&headers), expect, "{text}");
        }
    }
}
