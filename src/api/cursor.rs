//! Cursors: where the next page of a list begins, in a form that nobody else can make.
//!
//! A cursor carries the id after which its page begins, and is bound to the list, the organization,
//! the filters and the limit that were asked for. Nothing of it is stored.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Context, Services};
use crate::domain::ids::Id;
use crate::http;

/// The cursor behind `id`, good for what was `asked` alone.
pub fn behind<T: Id>(services: &Services, asked: &str, id: T) -> String {
    let id = id.bytes();
    URL_SAFE_NO_PAD.encode([&id[..], &services.sealer.mac(&signed(asked, &id))].concat())
}

/// The id behind which the query's `cursor` begins; `None` at the start.
///
/// # Errors
/// 400 for one that was not made for what is `asked`.
pub fn read<T: Id>(context: &Context, asked: &str) -> Result<Option<T>, http::Error> {
    let cursor = context.request.query.get("cursor").filter(|cursor| !cursor.is_empty());
    let Some(cursor) = cursor else { return Ok(None) };
    let id = (|| {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (id, mac) = bytes.split_first_chunk::<16>()?;
        let is_ours = context.services.sealer.check_mac(&signed(asked, id), mac);
        is_ours.then(|| T::from(uuid::Uuid::from_bytes(*id)))
    })();
    id.map(Some).ok_or_else(|| http::Error::bad_request("invalid cursor"))
}

fn signed(asked: &str, id: &[u8; 16]) -> Vec<u8> {
    [b"cursor\0", asked.as_bytes(), &[0], id].concat()
}
