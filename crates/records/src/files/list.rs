//! Lists of an organization's files, and storage usage.

use super::rows::{self, Sum};
use super::{Error, Files};
use orrery_domain::file::{File, Upload};
use orrery_domain::ids::{FileId, OrganizationId};
use orrery_storage::Page;
use orrery_storage::record::decode;

/// Maximum number of expired files, over all organizations, that are subtracted from the totals.
/// The sweep deletes expired files every minute.
const EXPIRED_MAX: usize = 10_000;

/// Maximum number of files with another purpose that are read for a page, which then may have fewer
/// files than its limit.
const SCANNED_MAX: usize = 10_000;

/// A page of an organization's files, newest first.
#[derive(Debug)]
pub struct Listed {
    pub files: Vec<File>,
    /// The last file of this page, if more files follow.
    pub more_after: Option<FileId>,
}

/// The storage usage of an organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u64,
}

impl Files {
    /// Lists up to `limit` files after `after`. If `purpose` is given, lists only files with that
    /// purpose. The cost depends on the number of listed files, of expired files between them that
    /// have not been deleted yet, and of up to [`SCANNED_MAX`] files with another purpose.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(
        &self,
        organization: OrganizationId,
        purpose: Option<&str>,
        after: Option<FileId>,
        limit: usize,
    ) -> Result<Listed, Error> {
        let now = self.shared.clock.believed();
        let after = after.map(|id| rows::file(organization, id));
        let page = Page::of(rows::files_of(organization), limit.saturating_add(1));
        let mut scan = self.shared.store.scan(Page { after, ..page });
        let mut files: Vec<File> = Vec::new();
        let mut others = 0;
        while let Some((_, row)) = scan.next().await? {
            let file: File = decode(&row)?;
            if file.expires_at <= now {
                continue;
            }
            if purpose.is_some_and(|purpose| file.purpose.as_deref() != Some(purpose)) {
                others += 1;
                if others >= SCANNED_MAX {
                    return Ok(Listed { files, more_after: Some(file.id) });
                }
                continue;
            }
            if files.len() == limit {
                let more_after = files.last().map(|last| last.id);
                return Ok(Listed { files, more_after });
            }
            files.push(file);
        }
        Ok(Listed { files, more_after: None })
    }

    /// Returns the pending upload with this ID; `None` if there is no such upload.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn announced(
        &self,
        organization: OrganizationId,
        id: FileId,
    ) -> Result<Option<Upload>, Error> {
        let found = self.shared.store.read::<Upload>(&rows::upload(organization, id)).await?;
        let now = self.shared.clock.believed();
        Ok(found.filter(|upload| upload.expires_at > now))
    }

    /// Returns the number and the total size of an organization's files. Identical files count
    /// separately; expired files do not count, just as they are not listed.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn usage(&self, organization: OrganizationId) -> Result<Usage, Error> {
        let keys = [Sum::Files, Sum::Bytes].map(|sum| rows::sum(organization, sum));
        let sums = self.shared.store.counters(&keys).await?;
        let sum = |at: usize| sums.get(at).and_then(|sum| u64::try_from(*sum).ok());
        let counted = |at: usize| sum(at).unwrap_or_default();
        let expired = self.expired(organization).await?;
        Ok(Usage {
            files: counted(0).saturating_sub(expired.files),
            bytes: counted(1).saturating_sub(expired.bytes),
        })
    }

    /// Returns the usage of an organization's expired files that have not been deleted yet.
    async fn expired(&self, organization: OrganizationId) -> Result<Usage, Error> {
        let store = &self.shared.store;
        let now = self.shared.clock.believed();
        let mut expired = Usage { files: 0, bytes: 0 };
        let before = Some(rows::expiries().time(now));
        let mut scan = store.scan(Page { before, ..rows::expiries().into() });
        for _ in 0..EXPIRED_MAX {
            let Some((key, _)) = scan.next().await? else { break };
            let Some((owner, id)) = rows::of_expiry(&key) else { continue };
            if owner != organization {
                continue;
            }
            let file = store.read::<File>(&rows::file(owner, id)).await?;
            if let Some(file) = file.filter(|file| file.expires_at <= now) {
                expired.files += 1;
                expired.bytes = expired.bytes.saturating_add(file.size);
            }
        }
        Ok(expired)
    }
}
