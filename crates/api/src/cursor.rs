//! Cursors: signed positions in a list, which clients cannot forge.
//!
//! A cursor contains the ID after which its page begins, and can also contain the IDs after which
//! the previous pages begin. The cursor is valid only for the same list, organization, filters and
//! limit. The service does not store cursors.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Context, Services};
use orrery_domain::ids::Id;

/// Length of the authentication code, in bytes.
const MAC_BYTES: usize = 32;

/// Returns the cursor for the page after `id`. The cursor is valid only for the same query `asked`.
pub(crate) fn behind<T: Id>(services: &Services, asked: &str, id: T) -> String {
    behind_all(services, asked, &[id])
}

/// Returns the cursor for the page that begins after the last ID in `ids`. The previous pages begin
/// after the earlier IDs.
pub(crate) fn behind_all<T: Id>(services: &Services, asked: &str, ids: &[T]) -> String {
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.bytes()).collect();
    URL_SAFE_NO_PAD.encode([&ids[..], &services.sealer.mac(&signed(asked, &ids))].concat())
}

/// Returns the ID after which the page of the query's `cursor` begins; `None` for the first page.
///
/// # Errors
/// 400 for an invalid cursor, or a cursor from another query.
pub(crate) fn read<T: Id>(context: &Context, asked: &str) -> Result<Option<T>, crate::Error> {
    Ok(read_all(context, asked)?.pop())
}

/// Returns the IDs in the query's `cursor`; empty for the first page.
///
/// # Errors
/// 400 for an invalid cursor, or a cursor from another query.
pub(crate) fn read_all<T: Id>(context: &Context, asked: &str) -> Result<Vec<T>, crate::Error> {
    let cursor = context.request.query.get("cursor").filter(|cursor| !cursor.is_empty());
    let Some(cursor) = cursor else { return Ok(Vec::new()) };
    let ids = (|| {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (ids, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        let is_ours = context.services.sealer.check_mac(&signed(asked, ids), mac);
        let (ids, rest) = ids.as_chunks::<16>();
        let is_whole = is_ours && rest.is_empty() && !ids.is_empty();
        is_whole.then(|| ids.iter().map(|id| T::from(uuid::Uuid::from_bytes(*id))).collect())
    })();
    ids.ok_or_else(|| crate::Error::bad_request("invalid cursor"))
}

fn signed(asked: &str, ids: &[u8]) -> Vec<u8> {
    [b"cursor\0", asked.as_bytes(), &[0], ids].concat()
}
