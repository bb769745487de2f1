//! Cursors: signed positions in a list, which clients cannot forge.
//!
//! A cursor contains the ID after which its page begins. The cursor is valid only for the same
//! list, organization, filters and limit. The service does not store cursors.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Context, Services};
use orrery_domain::ids::Id;

/// Returns the cursor for the page after `id`. The cursor is valid only for the same query `asked`.
pub(crate) fn behind<T: Id>(services: &Services, asked: &str, id: T) -> String {
    let id = id.bytes();
    URL_SAFE_NO_PAD.encode([&id[..], &services.sealer.mac(&signed(asked, &id))].concat())
}

/// Returns the ID after which the page of the query's `cursor` begins; `None` for the first page.
///
/// # Errors
/// 400 for an invalid cursor, or a cursor from another query.
pub(crate) fn read<T: Id>(context: &Context, asked: &str) -> Result<Option<T>, crate::Error> {
    let cursor = context.request.query.get("cursor").filter(|cursor| !cursor.is_empty());
    let Some(cursor) = cursor else { return Ok(None) };
    let id = (|| {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (id, mac) = bytes.split_first_chunk::<16>()?;
        let is_ours = context.services.sealer.check_mac(&signed(asked, id), mac);
        is_ours.then(|| T::from(uuid::Uuid::from_bytes(*id)))
    })();
    id.map(Some).ok_or_else(|| crate::Error::bad_request("invalid cursor"))
}

fn signed(asked: &str, id: &[u8; 16]) -> Vec<u8> {
    [b"cursor\0", asked.as_bytes(), &[0], id].concat()
}
