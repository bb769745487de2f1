//! Re-encrypts the credentials of stored definitions when `seal.key` is rotated.

use serde_json::Value;
use serde_json::value::to_raw_value;

use super::definitions::malformed;
use super::rows::Definition;
use orrery_domain::definition::secrets;
use orrery_domain::ids::RevisionId;
use orrery_storage::record::decode;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Commit, Key, Row, Store, Table};

/// Re-encrypts the credentials of all definitions.
///
/// # Errors
/// Fails if the store cannot be read or written, or if `watch` fails. Completed commits are not
/// undone.
pub async fn reseal(
    store: &Store,
    rotation: &mut Rotation,
    watch: &mut Watch<'_>,
) -> Result<(), storage::Error> {
    let mut scan = store.scan(Key::table(Table::Definition));
    while let Some(row) = scan.next().await? {
        rotation.resealed.rows += 1;
        match reseal_one(store, rotation, row).await {
            // Deleted or damaged definitions are unreadable with either key.
            Err(error) if error.is_final() => rotation.resealed.unreadable += 1,
            done => done?,
        }
        watch(rotation.resealed)?;
    }
    Ok(())
}

async fn reseal_one(
    store: &Store,
    rotation: &mut Rotation,
    (key, bytes): Row,
) -> Result<(), storage::Error> {
    let Definition { workflow, definition: old } = decode(&bytes)?;
    let missing = || storage::Error::malformed("definition", "its key contains no revision");
    let revision = key.last_id::<RevisionId>().ok_or_else(missing)?;
    let text = store.read_payload(&old).await?;
    let mut value: Value = serde_json::from_str(text.get()).map_err(malformed)?;
    if !secrets::reseal(&mut value, &mut |sealed: &str| rotation.reseal(sealed))? {
        return Ok(());
    }
    let text = to_raw_value(&value).map_err(malformed)?;
    let definition = store.write_payload(revision, text).await?;
    let mut commit = Commit::new();
    store.release(&mut commit, &old);
    store.claim(&mut commit, &definition);
    commit.put(key, &Definition { workflow, definition })?;
    store.commit(commit).await?;
    // After a crash before this point, the next start removes the file.
    store.remove_payload(&old).await
}
