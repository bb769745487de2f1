//! The embedded store: the only place that knows which engine keeps the data.
//!
//! Its face is a handful of verbs: `get`, `get_many`, `page`, `list`, `search`, `commit`,
//! `write_payload`, `read_payload`, `stats`. A write is on the disk when `commit` returns, not
//! before; nobody acts on a write before that.

pub mod commit;
pub mod export;
pub mod key;
pub mod list;
pub mod record;
pub mod search;

mod durable;
mod error;
mod folder;
#[cfg(test)]
pub mod fuse;
mod payloads;
mod room;
mod seal;
mod store;
mod writer;

pub use commit::Commit;
pub use error::{Error, Kind};
pub use key::{Key, Table};
pub use record::Record;
pub use room::Room;
pub use seal::Sealer;
pub use search::{Found, Index, Search};
pub use store::{FORMAT, Options, Page, Row, Stats, Store};
