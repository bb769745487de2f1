//! The rows of batches in the store.

use orrery_domain::ids::{BatchId, Id, OrganizationId};
use orrery_storage::{Commit, Key, Table};

/// Returns the prefix of an organization's batches, newest first.
pub(crate) fn batches_of(organization: OrganizationId) -> Key {
    Key::table(Table::Batch).id(organization)
}

/// Returns the row of a batch.
pub(crate) fn batch(organization: OrganizationId, id: BatchId) -> Key {
    batches_of(organization).id_newest_first(id)
}

/// Parses the id from a key of [`batch()`].
pub(crate) fn id_of(key: &Key) -> Option<BatchId> {
    let inverted: &[u8; 16] = key.as_bytes().last_chunk()?;
    Some(BatchId::from(inverted.map(|byte| !byte)))
}

/// Returns the prefix of the unfinished batches, oldest first. The value of a row is its
/// organization.
pub(crate) fn all_open() -> Key {
    Key::table(Table::BatchOpen)
}

/// Returns the row of an unfinished batch.
pub(crate) fn open(id: BatchId) -> Key {
    all_open().id(id)
}

/// Returns the value of an unfinished batch's row.
pub(crate) fn owner(organization: OrganizationId) -> Vec<u8> {
    organization.bytes().to_vec()
}

/// Returns the prefix of a batch's answers, in the order of its lines.
pub(crate) fn answers(id: BatchId) -> Key {
    Key::table(Table::BatchLine).id(id)
}

/// Returns the row of the answer to a line, which is numbered from 0.
pub(crate) fn answer(id: BatchId, line: u32) -> Key {
    answers(id).raw(&line.to_be_bytes())
}

/// Parses the number of the line from a key of [`answer`].
pub(crate) fn line_of(key: &Key) -> Option<u32> {
    key.as_bytes().last_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Returns the counters of a batch: lines with an answer, and lines with an error.
pub(crate) fn counts(id: BatchId) -> [Key; 2] {
    [count(id, false), count(id, true)]
}

/// Returns the counter of a batch's lines with an answer or with an error.
pub(crate) fn count(id: BatchId, is_error: bool) -> Key {
    Key::table(Table::BatchCount).id(id).raw(&[u8::from(is_error)])
}

/// Deletes the counters of a batch.
pub(crate) fn delete_counts(commit: &mut Commit, id: BatchId) {
    for key in counts(id) {
        commit.delete(key);
    }
}
