//! Returns memory to the operating system after a peak.
//!
//! jemalloc, the binary's allocator, returns a free page ten seconds after its last use, but checks
//! its pages only during allocations. A service that is idle after a burst of large documents would
//! therefore keep hundreds of megabytes, and after many such documents more than a gigabyte;
//! [`keep_small`] returns this memory.
//!
//! This module is one of the four places that use `unsafe`: it calls two C functions that have no
//! safe wrapper.

#![expect(unsafe_code, reason = "C functions without a safe wrapper are called: see above")]

use std::io;
use std::time::Duration;

use super::Tasks;

/// How long a worker keeps a free page, in milliseconds. This time is short because free pages
/// count toward the worker's memory limit.
const WORKER_KEEPS_MS: isize = 1000;
/// The jemalloc settings of the first arena, and of arenas created later.
const KEPT: [&std::ffi::CStr; 2] = [c"arena.0.dirty_decay_ms", c"arenas.dirty_decay_ms"];
/// The jemalloc command that returns the free pages of all arenas. The number 4096 means all
/// arenas.
const PURGE_ALL: &std::ffi::CStr = c"arena.4096.purge";
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// How often to check memory use.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The number of checks between two trims. A trim costs CPU time, since returned pages must be
/// allocated again when they are needed.
const LOOKS: u32 = 10;
/// How far resident memory must exceed its value at startup for a trim to be worthwhile.
const WORTH: usize = 64 * MIB;
/// How far resident memory must exceed its value at startup for a trim at every check.
const PRESSING: usize = 128 * MIB;
/// A trim that returns less than this number of bytes is considered useless.
const OF_USE: usize = 8 * MIB;
/// The maximum factor by which useless trims lengthen the interval until the next trim, which is
/// then a minute.
const BACKOFF_MAX: u32 = 12;

/// Returns all pages without allocated bytes to the operating system: those of jemalloc, and those
/// of the C library's allocator, which linked C libraries use.
pub fn trim() {
    // SAFETY: malloc_trim may be called from any thread at any time; it locks the arenas one after
    // the other and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
    // SAFETY: the name ends in a zero byte, and `purge` neither reads nor writes a value. The
    // function may be called from any thread at any time.
    let failed = unsafe {
        tikv_jemalloc_sys::mallctl(
            PURGE_ALL.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        )
    };
    if failed != 0 {
        tracing::warn!(failed, "jemalloc did not return its free pages");
    }
}

/// Makes jemalloc return free pages a second after their last use. Called by workers at startup.
///
/// # Errors
/// If jemalloc does not support the setting.
pub fn keep_less() -> io::Result<()> {
    for name in KEPT {
        let mut kept = WORKER_KEEPS_MS;
        // SAFETY: the name ends in a zero byte. The value has the type and length that these names
        // take, and is copied before the call returns. The function may be called from any thread
        // at any time.
        let failed = unsafe {
            tikv_jemalloc_sys::mallctl(
                name.as_ptr(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                (&raw mut kept).cast(),
                size_of::<isize>(),
            )
        };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
    }
    Ok(())
}

/// Resident memory of this process in bytes; 0 if unknown.
#[must_use]
pub fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or_default().saturating_mul(KIB)
}

/// Trims after peaks until the shutdown.
pub fn keep_small(tasks: &Tasks) {
    let stopping = tasks.token();
    tasks.spawn(async move {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut rhythm = Rhythm::new(resident());
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            let before = resident();
            if !rhythm.is_due(before) {
                continue;
            }
            if let Err(error) = tokio::task::spawn_blocking(trim).await {
                tracing::warn!(%error, "failed to return free memory to the system");
                return;
            }
            let after = resident();
            rhythm.trimmed(before, after);
            tracing::debug!(
                before_mib = before / MIB,
                after_mib = after / MIB,
                "free memory returned to the system"
            );
        }
    });
}

/// Decides when to trim: while resident memory is far above its initial value, but less often while
/// trimming is useless.
#[derive(Debug)]
struct Rhythm {
    at_start: usize,
    /// Checks since the last trim.
    looks: u32,
    backoff: u32,
}

impl Rhythm {
    const fn new(at_start: usize) -> Self {
        Self { at_start, looks: LOOKS, backoff: 1 }
    }

    fn is_due(&mut self, resident: usize) -> bool {
        self.looks = self.looks.saturating_add(1);
        let above = resident.saturating_sub(self.at_start);
        let between = if above >= PRESSING { 1 } else { LOOKS };
        above >= WORTH && self.looks >= between.saturating_mul(self.backoff)
    }

    fn trimmed(&mut self, before: usize, after: usize) {
        let was_of_use = before.saturating_sub(after) >= OF_USE;
        let doubled = self.backoff.saturating_mul(2).min(BACKOFF_MAX);
        self.backoff = if was_of_use { 1 } else { doubled };
        self.looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_trim_returns_pages_between_live_blocks() {
        // Small blocks, of which one in a thousand stays allocated, so that no arena ends in free
        // memory.
        let blocks: Vec<Vec<u8>> = (0..192 * 1024).map(|_| vec![1; KIB]).collect();
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(1000).collect();
        let before = resident();
        trim();
        let after = resident();
        assert_eq!(kept.len(), 197);
        assert!(after + 96 * MIB < before, "{} MiB, then {} MiB", before / MIB, after / MIB);
    }

    #[test]
    fn worker_returns_free_memory_sooner() {
        keep_less().unwrap();
    }

    #[test]
    fn memory_trim_is_due_after_peak_and_backs_off_when_useless() {
        let low = 30 * MIB;
        let high = 700 * MIB;
        let mut rhythm = Rhythm::new(low);
        assert!(!rhythm.is_due(low + WORTH - 1));
        assert!(rhythm.is_due(high));
        rhythm.trimmed(high, high);
        let mut looks = Vec::new();
        for _ in 0..5 {
            looks.push((1..).find(|_| rhythm.is_due(high)).unwrap());
            rhythm.trimmed(high, high);
        }
        assert_eq!(looks, [2, 4, 8, 12, 12]);
        assert_eq!((1..).find(|_| rhythm.is_due(high)), Some(12));
        rhythm.trimmed(high, low + WORTH);
        assert!(rhythm.is_due(high));
        rhythm.trimmed(high, low);
        assert_eq!((1..).find(|_| rhythm.is_due(low + WORTH)), Some(LOOKS));
    }
}
