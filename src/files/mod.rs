//! Files: bytes that belong to an organization, with a URL for each.
//!
//! The bytes are durable under their digest before the row that refers to them is committed; bytes
//! that no row refers to were never acknowledged and go with the sweep after a start. A file is
//! never changed. This module knows nothing of HTTP or of models.

mod artefacts;
mod content;
mod rows;

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;

pub use self::artefacts::Origin;
use self::content::{Contents, Written};
use crate::domain::file::{self, Digest, File, FileSource};
use crate::domain::ids::{ExecutionId, FileId, OrganizationId};
use crate::links::Links;
use crate::runtime::Clock;
use crate::storage::{self, Commit, Page, Store};

/// Files that go in one commit.
const AT_ONCE: usize = 128;
/// Between two such commits, so that the writer serves everyone else.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest name that is kept, in characters.
const NAME_MAX: usize = 255;

/// The limits of files.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The largest file, in bytes.
    pub max_bytes: u64,
    /// How long a file is kept.
    pub retention: Duration,
}

/// Why a file cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given is no file, in a sentence that begins with "it".
    #[error("{0}")]
    Invalid(String),
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

impl From<content::Error> for Error {
    fn from(error: content::Error) -> Self {
        match error {
            content::Error::TooLarge { limit } => Self::TooLarge { limit },
            content::Error::Disk(error) => Self::Disk(error),
        }
    }
}

/// A file that is to be kept.
#[derive(Debug)]
struct NewFile {
    /// One that is there already under this id is written over.
    id: FileId,
    organization: OrganizationId,
    execution: Option<ExecutionId>,
    filename: Option<String>,
    content_type: String,
    source: FileSource,
}

/// Where the bytes of a new file come from.
type Source = Box<dyn Read + Send>;

struct Shared {
    store: Store,
    clock: Clock,
    links: Links,
    contents: Contents,
    options: Options,
    /// Read while a content is written and referred to, written while one is looked at to go.
    gate: RwLock<()>,
}

/// All files; clones share them.
#[derive(Clone)]
pub struct Files {
    shared: Arc<Shared>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Files {
    /// Files whose bytes stand in `folder` and whose rows in `store`.
    #[must_use]
    pub fn new(
        folder: PathBuf,
        store: Store,
        clock: Clock,
        links: Links,
        options: Options,
    ) -> Self {
        let contents = Contents::new(folder);
        let gate = RwLock::default();
        Self { shared: Arc::new(Shared { store, clock, links, contents, options, gate }) }
    }

    /// Files of a test's store, in the folder of that store.
    #[cfg(test)]
    pub fn scratch(folder: &std::path::Path, store: Store) -> Self {
        let sealer = storage::Sealer::open(folder).unwrap();
        let links = Links::new(sealer, "http://box".to_owned());
        let options = Options { max_bytes: 1024, retention: Duration::from_secs(3600) };
        Self::new(folder.join("files"), store, Clock::system(), links, options)
    }

    /// Keeps a file. When this returns, its bytes and its row are on the disk.
    async fn keep(&self, new: NewFile, mut source: Source) -> Result<File, Error> {
        let shared = &self.shared;
        let _referred_to_before_a_sweep_looks = shared.gate.read().await;
        let (contents, limit) = (shared.contents.clone(), shared.options.max_bytes);
        let Written { digest, size } =
            blocking(move || contents.write(&mut *source, limit).map_err(Error::from)).await?;
        let now = shared.clock.now();
        let file = File {
            id: new.id,
            organization: new.organization,
            filename: new.filename.map(|name| name.chars().take(NAME_MAX).collect()),
            content_type: file::content_type(&new.content_type),
            size,
            sha256: digest,
            source: new.source,
            execution: new.execution,
            created_at: now,
            expires_at: now.plus(shared.options.retention),
        };
        let mut commit = Commit::new();
        let key = rows::file(file.organization, file.id);
        if let Some(before) = shared.store.read::<File>(&key).await? {
            commit.delete(rows::reference(before.sha256, before.id));
            commit.delete(rows::expiry(before.expires_at, before.organization, before.id));
        }
        commit.put_bytes(rows::reference(digest, file.id), Vec::new());
        let expiry = rows::expiry(file.expires_at, file.organization, file.id);
        commit.put_bytes(expiry, Vec::new());
        commit.put(key, &file).map_err(storage::Error::from)?;
        shared.store.commit(commit).await?;
        Ok(file)
    }

    /// The file and where its bytes stand; `None` when this organization has no such file, or has
    /// it no more.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: FileId,
    ) -> Result<Option<(File, PathBuf)>, Error> {
        let found = self.shared.store.read::<File>(&rows::file(organization, id)).await?;
        let now = self.shared.clock.now();
        Ok(found.filter(|file| file.expires_at > now).map(|file| {
            let path = self.shared.contents.path(file.sha256);
            (file, path)
        }))
    }

    /// The bytes of the file that a URL of ours names, up to `limit`; `None` when it is no such URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the file is gone, [`Error::TooLarge`], [`Error::Disk`].
    pub async fn read_linked(&self, url: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some((path, organization)) = self.shared.links.parse(url) else { return Ok(None) };
        let id = path.strip_prefix("/v1/files/").and_then(|rest| rest.strip_suffix("/content"));
        let Some(id) = id.and_then(|id| id.parse().ok()) else { return Ok(None) };
        let found = self.find(organization, id).await?;
        let gone = || Error::Invalid("the file is not there any more".to_owned());
        let (file, path) = found.ok_or_else(gone)?;
        if file.size > limit {
            return Err(Error::TooLarge { limit });
        }
        blocking(move || Ok(std::fs::read(path)?)).await.map(Some)
    }

    /// Deletes contents that no file refers to; answers how many. To be run once, after a start.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`].
    pub async fn sweep(&self) -> Result<usize, Error> {
        let shared = &self.shared;
        let contents = shared.contents.clone();
        let found = {
            let _nothing_is_on_its_way = shared.gate.write().await;
            blocking(move || Ok(contents.clean()?)).await?
        };
        let mut swept = 0;
        for digest in found {
            swept += usize::from(self.remove_unused(digest).await?);
        }
        Ok(swept)
    }

    /// Deletes a content that no file refers to; whether it did.
    async fn remove_unused(&self, digest: Digest) -> Result<bool, Error> {
        let _nothing_is_on_its_way = self.shared.gate.write().await;
        let page = Page { prefix: rows::references(digest), after: None, before: None, limit: 1 };
        let is_unused = self.shared.store.page(page).await?.is_empty();
        if is_unused {
            let contents = self.shared.contents.clone();
            blocking(move || Ok(contents.remove(digest)?)).await?;
        }
        Ok(is_unused)
    }

    /// Deletes the files whose time is over, with the contents that nothing else refers to, a few at
    /// a time. Answers how many.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Storage`]; what went until then is gone.
    pub async fn remove_expired(&self) -> Result<usize, Error> {
        let shared = &self.shared;
        let mut removed = 0;
        loop {
            let before = Some(rows::expiries().time(shared.clock.now()));
            let page = Page { prefix: rows::expiries(), after: None, before, limit: AT_ONCE };
            let due = shared.store.page(page).await?;
            let (mut commit, mut digests) = (Commit::new(), Vec::new());
            for (key, _) in &due {
                commit.delete(key.clone());
                let Some((organization, id)) = rows::of_expiry(key) else { continue };
                let row = rows::file(organization, id);
                if let Some(file) = shared.store.read::<File>(&row).await? {
                    commit.delete(rows::reference(file.sha256, id));
                    commit.delete(row);
                    digests.push(file.sha256);
                    removed += 1;
                }
            }
            shared.store.commit(commit).await?;
            for digest in digests {
                self.remove_unused(digest).await?;
            }
            if due.len() < AT_ONCE {
                return Ok(removed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn blocking<T, F>(work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Error> + Send + 'static,
{
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|error| Err(Error::Disk(io::Error::other(error))))
}

#[cfg(test)]
mod tests;
