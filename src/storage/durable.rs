//! Makes the engine's flush durable.
//!
//! sled 0.34 ends a flush on Linux in `sync_file_range`, which starts write-back and waits for it
//! but makes neither the file's length nor the disk's cache durable: after a power cut most stores
//! did not open again. This file defines that symbol for the whole binary, as `fdatasync`. The
//! linker prefers it to the C library's, in the static binary and in tests alike; [`calls`] shows
//! at every start that it did, and a store refuses to open when it did not.
//!
//! One of the four places with `unsafe`, and nothing else is here.

#![expect(unsafe_code, reason = "a C symbol is defined and a C function called: see the head")]

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// What is written back at a time: the log's own syncs get their turn in between.
const STEP: libc::off64_t = 256 * 1024;

/// Stands in for the C library's `sync_file_range`: makes the file's data and length durable.
///
/// The engine asks after each of its buffers, which have 8 MiB. One `fdatasync` of as much keeps the
/// disk from everybody else for as long as it takes, and commits wait; so the range is written back in
/// steps first.
#[unsafe(no_mangle)]
pub extern "C" fn sync_file_range(
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
        // SAFETY: the kernel's call takes any integers. What it refuses, `fdatasync` does.
        unsafe { libc::syscall(libc::SYS_sync_file_range, descriptor, at, step, flags) };
        at += step;
    }
    // SAFETY: fdatasync takes any integer and answers EBADF for what is not an open descriptor.
    unsafe { libc::fdatasync(descriptor) }
}

/// How often the engine has called it in this process.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}
