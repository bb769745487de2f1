//! Gives memory back to the operating system after a peak.
//!
//! The binary's allocator, jemalloc, returns a free page ten seconds after its last use, but looks at its
//! pages only while it is asked for memory: a service that a storm of large documents leaves idle would
//! keep hundreds of megabytes. [`keep_small`] returns them then.
//!
//! This is one of the four places with `unsafe`: two C functions that have no safe form.

#![expect(unsafe_code, reason = "C functions without a safe form are called: see the head")]

use std::io;
use std::time::Duration;

use super::Tasks;

/// How long a worker keeps a free page, in milliseconds: a limit on its memory counts those that it holds.
const WORKER_KEEPS_MS: isize = 1000;
/// What is kept by the arena that a process begins with, and by those that are made later.
const KEPT: [&std::ffi::CStr; 2] = [c"arena.0.dirty_decay_ms", c"arenas.dirty_decay_ms"];
/// Returns the free pages of all arenas, by the number that stands for all of them.
const PURGE_ALL: &std::ffi::CStr = c"arena.4096.purge";
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// How often the memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// So much over what was resident at the start is worth a trim.
const WORTH: usize = 64 * MIB;
/// A trim that returns less was of no use.
const OF_USE: usize = 8 * MIB;
/// The most looks between two trims of which the first was of no use: a minute.
const LOOKS_MAX: u32 = 12;

/// Returns every page of which no byte is in use: jemalloc's, and those of the C library, which the
/// libraries in C use.
pub fn trim() {
    // SAFETY: malloc_trim may be called from any thread at any time; it takes the locks of the
    // arenas one after the other and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    // SAFETY: the name ends in a zero byte, and `purge` neither reads nor writes a value. It may be
    // called from any thread at any time.
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

/// For a worker, before it begins: free pages are returned a second after their last use.
///
/// # Errors
/// When jemalloc knows no such setting.
pub fn keep_less() -> io::Result<()> {
    for name in KEPT {
        let mut kept = WORKER_KEEPS_MS;
        // SAFETY: the name ends in a zero byte. The value is of the type that these names take, as long as
        // is said, and is copied before the call returns. It may be called from any thread at any time.
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

/// Bytes of this process in the machine's memory; 0 when the kernel does not say.
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
                tracing::warn!(%error, "free memory was not returned to the system");
                return;
            }
            let after = resident();
            rhythm.trimmed(before, after);
            tracing::debug!(
                before_mib = before / MIB,
                after_mib = after / MIB,
                "free memory was returned to the system"
            );
        }
    });
}

/// When to trim: while far more is resident than at the start, and less often while it is of no use.
#[derive(Debug)]
struct Rhythm {
    at_start: usize,
    looks_to_next: u32,
    looks_between: u32,
}

impl Rhythm {
    const fn new(at_start: usize) -> Self {
        Self { at_start, looks_to_next: 0, looks_between: 1 }
    }

    fn is_due(&mut self, resident: usize) -> bool {
        self.looks_to_next = self.looks_to_next.saturating_sub(1);
        self.looks_to_next == 0 && resident >= self.at_start.saturating_add(WORTH)
    }

    fn trimmed(&mut self, before: usize, after: usize) {
        let was_of_use = before.saturating_sub(after) >= OF_USE;
        let doubled = self.looks_between.saturating_mul(2).min(LOOKS_MAX);
        self.looks_between = if was_of_use { 1 } else { doubled };
        self.looks_to_next = self.looks_between;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_trim_returns_pages_between_live_blocks() {
        // Small blocks, of which one in a thousand stays: no arena ends in free memory.
        let blocks: Vec<Vec<u8>> = (0..192 * 1024).map(|_| vec![1; KIB]).collect();
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(1000).collect();
        let before = resident();
        trim();
        let after = resident();
        assert_eq!(kept.len(), 197);
        assert!(after + 96 * MIB < before, "{} MiB, then {} MiB", before / MIB, after / MIB);
    }

    #[test]
    fn memory_of_worker_is_kept_for_less() {
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
    }
}
