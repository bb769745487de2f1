//! The embedded store: the only crate that depends on the storage engine.
//!
//! Its interface consists of a few operations: `get`, `get_many`, `page`, `scan`, `list`, `search`,
//! `commit`, `update`, `write_payload`, `read_payload`, `stats`. A write is durable when `commit`
//! returns, not earlier, and callers act on a write only after `commit` has returned.
//!
//! The path of a commit, with the module responsible for each step:
//!
//! 1. [`writer`]: one thread groups commits ([`pace`] decides when the writer waits for more
//!    commits), checks preconditions, and resolves counters and lists.
//! 2. [`log`]: the group becomes one checksummed, numbered record, with one `pwrite` and one
//!    `fdatasync`.
//! 3. [`memtable`]: all rows of the group become visible at once. No row is visible before it is
//!    durable.
//! 4. The commits' hooks run, in order; then the results of the commits are returned.
//! 5. [`checkpoint`]: a background thread moves rows from the memtable into the [`tree`] (sled), in
//!    key order and in compressed [`blocks`], and then removes the log segments that contain these
//!    rows. Rows that are overwritten before a checkpoint never reach the tree.
//!
//! [`view`] merges the memtable and the tree into one ordered, consistent map. [`opening`] reads
//! the tree, the log and the [`marker`], and refuses parts that do not belong together. A failed
//! write is never retried: the process exits, and the next start reads the log.

pub mod commit;
mod covered;
pub mod export;
pub mod held_back;
pub mod index_intersection;
pub mod key;
pub mod list;
pub mod record;
pub mod root_folder;
pub mod rotation;
pub mod salvage;
pub mod trash;

mod blocks;
mod checkpoint;
mod claims;
#[cfg(any(test, feature = "test-support"))]
pub mod crash_point;
mod data_dir;
mod deferred_deletions;
mod disk_space;
mod durable;
mod encryption;
mod error;
#[cfg(any(test, feature = "test-support"))]
pub mod faults;
mod log;
mod log_archive;
mod marker;
mod memtable;
mod opening;
mod pace;
mod pack;
mod payloads;
mod row_cache;
mod scan;
mod store;
mod sweep;
mod tree;
mod tree_file;
mod update;
mod usage;
mod view;
mod watches;
mod writer;

pub use claims::Claims;
pub use commit::Commit;
pub use data_dir::{FolderLock, Sizes as DiskSizes, make_and_lock, sizes as disk_sizes};
pub use deferred_deletions::DeferredDeletions;
pub use disk_space::{DiskSpaceMonitor, shortage};
pub use encryption::{SealError, Sealer};
pub use error::{Error, Kind};
pub use index_intersection::{Found, Index, Search};
pub use key::{Key, Table};
pub use log_archive::{
    ArchivePosition, Group, LiveLog, claim_of, claimed_by, payload_in, read_live_log,
};
pub use marker::exchange;
pub use payloads::{Claim, Prepared};
pub use record::Record;
pub use scan::{Page, Row, Scan};
pub use store::{FORMAT, Options, Stats, Store};
pub use sweep::Shards;
pub use trash::{SweepOptions, Swept};
pub use update::{Change, TRIES_MAX};
pub use usage::RECORDED_FROM;
pub use watches::Watch;

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod wal_tests;
