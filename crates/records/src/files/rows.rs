//! The rows of files in the store.

use orrery_domain::file::{Digest, File, Upload};
use orrery_domain::ids::{FileId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Key, Table};

/// Returns the row of a pending upload.
pub(super) fn upload(organization: OrganizationId, id: FileId) -> Key {
    Key::table(Table::Upload).id(organization).id(id)
}

/// Returns the row of a deleted file's tombstone. The row's value is the time at which the
/// tombstone expires.
pub(super) fn tombstone(organization: OrganizationId, id: FileId) -> Key {
    Key::table(Table::FileGone).id(organization).id(id)
}

/// The totals of an organization's files: three counters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum {
    Files = 0,
    Bytes = 1,
    Uploads = 2,
}

/// Returns the row of one of the counters.
pub(super) fn sum(organization: OrganizationId, sum: Sum) -> Key {
    Key::table(Table::FileUsage).id(organization).raw(&[sum as u8])
}

/// Returns the prefix of an organization's files, newest first.
pub(super) fn files_of(organization: OrganizationId) -> Key {
    Key::table(Table::File).id(organization)
}

/// Returns the row of a file. The files of an organization are sorted by time, newest first.
pub(super) fn file(organization: OrganizationId, id: FileId) -> Key {
    Key::table(Table::File).id(organization).id_newest_first(id)
}

/// Adds a file's rows and updates the organization's totals.
pub(super) fn add(commit: &mut Commit, file: &File) -> Result<(), storage::Error> {
    commit.put_bytes(reference(file.sha256, file.id), Vec::new());
    commit.put_bytes(expiry(file.expires_at, file.organization, file.id), Vec::new());
    commit.put(self::file(file.organization, file.id), file)?;
    count(commit, file, 1);
    Ok(())
}

/// Adds the rows of a pending upload.
pub(super) fn add_upload(commit: &mut Commit, upload: &Upload) -> Result<(), storage::Error> {
    let Upload { organization, id, expires_at, .. } = *upload;
    commit.put_bytes(expiry(expires_at, organization, id), Vec::new());
    commit.put(self::upload(organization, id), upload)?;
    commit.add(sum(organization, Sum::Uploads), 1);
    Ok(())
}

/// Removes a pending upload. If several commits remove the same upload concurrently, only the first
/// succeeds.
pub(super) fn remove_upload(commit: &mut Commit, upload: &Upload) {
    let Upload { organization, id, expires_at, .. } = *upload;
    commit.expect(Expect::Present(self::upload(organization, id)));
    commit.delete(expiry(expires_at, organization, id));
    commit.delete(self::upload(organization, id));
    commit.add(sum(organization, Sum::Uploads), -1);
}

/// Removes a file's rows and updates the totals.
pub(super) fn remove(commit: &mut Commit, file: &File) {
    commit.delete(reference(file.sha256, file.id));
    commit.delete(expiry(file.expires_at, file.organization, file.id));
    commit.delete(self::file(file.organization, file.id));
    count(commit, file, -1);
}

fn count(commit: &mut Commit, file: &File, files: i64) {
    let bytes = i64::try_from(file.size).unwrap_or(i64::MAX);
    commit.add(sum(file.organization, Sum::Files), files);
    commit.add(sum(file.organization, Sum::Bytes), files.saturating_mul(bytes));
}

/// Returns the prefix of the expiry index, oldest first.
pub(super) fn expiries() -> Key {
    Key::table(Table::FileExpiry)
}

/// Returns the entry of a file in the expiry index.
pub(super) fn expiry(time: Timestamp, organization: OrganizationId, id: FileId) -> Key {
    expiries().time(time).id(organization).id(id)
}

/// Parses the organization and the file from a key of [`expiry`].
pub(super) fn of_expiry(key: &Key) -> Option<(OrganizationId, FileId)> {
    let ids: &[u8; 32] = key.as_bytes().last_chunk()?;
    let (organization, _id) = ids.split_first_chunk::<16>()?;
    Some((OrganizationId::from(*organization), key.last_id()?))
}

/// Returns the prefix of the references to all blobs.
pub(super) fn blob_references() -> Key {
    Key::table(Table::Content)
}

/// Returns the prefix of the references from files to a blob. A blob without references may be
/// deleted.
pub fn references(digest: Digest) -> Key {
    blob_references().raw(&digest.0)
}

/// Parses the blob's digest from a key of [`reference()`].
pub fn of_reference(key: &Key) -> Option<Digest> {
    let rest = key.as_bytes().strip_prefix(blob_references().as_bytes())?;
    rest.first_chunk().map(|digest| Digest(*digest))
}

/// Returns the row of a file's reference to a blob.
pub(super) fn reference(digest: Digest, id: FileId) -> Key {
    references(digest).id(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::file::FileSource;
    use orrery_storage::record::{decode, encode};

    #[test]
    fn file_row_matches_golden_bytes() {
        let file = File {
            id: FileId::from([1; 16]),
            organization: OrganizationId::from([2; 16]),
            filename: Some("a.png".to_owned()),
            content_type: "image/png".to_owned(),
            size: 3,
            sha256: Digest([3; 32]),
            source: FileSource::Output,
            purpose: None,
            metadata: None,
            execution: None,
            key: None,
            created_at: Timestamp::from_micros(4),
            expires_at: Timestamp::from_micros(5),
        };
        let sha = "03".repeat(32);
        let golden = format!(
            "\u{1}{{\"id\":\"01010101-0101-0101-0101-010101010101\",\
             \"organization\":\"02020202-0202-0202-0202-020202020202\",\"filename\":\"a.png\",\
             \"content_type\":\"image/png\",\"size\":3,\"sha256\":\"{sha}\",\
             \"source\":\"output\",\"created_at\":4,\"expires_at\":5}}"
        );
        assert_eq!(String::from_utf8(encode(&file).unwrap()).unwrap(), golden);
        assert_eq!(decode::<File>(golden.as_bytes()).unwrap(), file);
    }
}
