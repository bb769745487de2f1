//! Makes the engine's flush durable.
//!
//! On Linux, sled 0.34 ends a flush with a call to `sync_file_range`, which starts write-back and
//! waits for it, but neither makes the file's length durable nor flushes the disk's cache. In
//! tests, most stores did not open again after a power cut. So this file defines the symbol
//! `sync_file_range` for the entire binary, and implements it with `fdatasync`. The linker prefers
//! this definition to the C library's, in the static binary and in tests. [`calls`] verifies this
//! at every start; a store refuses to open if the definition is not in use.
//!
//! This module is one of the four places that use `unsafe`; the file contains nothing else.

#![expect(unsafe_code, reason = "a C symbol is defined and a C function called: see above")]

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Bytes written back at a time, so that syncs of the log can run in between.
const STEP: libc::off64_t = 256 * 1024;

/// Replaces the C library's `sync_file_range`: makes the file's data and length durable.
///
/// The engine calls this function after writing each of its buffers of 8 MiB. A single `fdatasync`
/// of that size would block the disk, and with it all commits, until it returned. So the range is
/// first written back in small steps.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sync_file_range(
    descriptor: libc::c_int,
    offset: libc::off64_t,
    length: libc::off64_t,
    _flags: libc::c_uint,
) -> libc::c_int {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let end = offset.saturating_add(length);
    let mut at = offset;
    while at < end {
        let step = STEP.min(end - at);
        // SAFETY: the system call accepts any integers. If the call fails, the `fdatasync` below
        // still syncs the data.
        unsafe { libc::syscall(libc::SYS_sync_file_range, descriptor, at, step, flags) };
        at += step;
    }
    // SAFETY: fdatasync accepts any integer, and returns EBADF for an integer that is not an open
    // descriptor.
    unsafe { libc::fdatasync(descriptor) }
}

/// The number of calls that the engine has made to `sync_file_range` in this process.
pub(crate) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}
