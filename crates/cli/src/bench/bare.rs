//! Baselines without the service: hashing on one core, loopback requests, and disk flushes. The
//! service's results are compared with these measurements.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::figure::quantile;
use crate::load::{Load, StandIn, get};
use orrery_runtime as runtime;

/// Number of bytes hashed per block, which fits in any CPU cache.
const BLOCK: usize = 64 * 1024;
/// Size in bytes of the file region that is overwritten repeatedly, as in the store's log.
const ROOM: u64 = 16 * 1024 * 1024;
const WRITTEN: usize = 4096;
/// Number of records per flush, and the size of each record in bytes: the load that 64 connections
/// cause when they create executions.
pub(super) const GROUP: u32 = 64;
const RECORD: usize = 400;
/// Number of iterations between two clock readings.
const BETWEEN: u64 = 16;

/// Measures the rate at which one core computes SHA-256, in megabytes per second.
pub(super) async fn hash_rate(time: Duration) -> anyhow::Result<f64> {
    let hashing = tokio::task::spawn_blocking(move || {
        let block = vec![0x5a_u8; BLOCK];
        let mut hash = Sha256::new();
        let begun = runtime::monotonic_now();
        let mut blocks = 0_u64;
        while begun.elapsed() < time {
            for _ in 0..BETWEEN {
                hash.update(&block);
            }
            blocks += BETWEEN;
        }
        let seconds = begun.elapsed().as_secs_f64();
        // The hash is used, so that the compiler does not remove the computation.
        let is_used = hash.finalize().iter().any(|byte| *byte != 0);
        if is_used { (blocks * BLOCK as u64) as f64 / seconds / 1e6 } else { 0.0 }
    });
    Ok(hashing.await?)
}

/// Measures requests per second over this many connections to a server that does no work.
pub(super) async fn loopback_rate(
    server: &StandIn,
    connections: u64,
    time: Duration,
) -> anyhow::Result<f64> {
    let address = server.address();
    let round = Load { address, connections, request: get(address, "/x") }.run(time).await?;
    Ok(round.rate())
}

/// Measures the duration of a small write with a flush. Returns sorted times in seconds.
pub(super) async fn flush_times(folder: &Path, time: Duration) -> anyhow::Result<Vec<f64>> {
    let path = folder.join("flushes");
    Ok(tokio::task::spawn_blocking(move || flush(&path, WRITTEN, time)).await??)
}

/// Measures records per second. Like the store's commits, the records are written in groups, with
/// one flush per group.
pub(super) async fn group_rate(folder: &Path, time: Duration) -> anyhow::Result<f64> {
    let path = folder.join("groups");
    let bytes = RECORD * GROUP as usize;
    let times = tokio::task::spawn_blocking(move || flush(&path, bytes, time)).await??;
    let seconds: f64 = times.iter().sum();
    Ok(times.len() as f64 * f64::from(GROUP) / seconds)
}

/// Returns the median and the 99th percentile of sorted times.
pub(super) fn middle_and_tail(times: &[f64]) -> Option<(f64, f64)> {
    Some((quantile(times, 0.5)?, quantile(times, 0.99)?))
}

/// Repeatedly overwrites and flushes a preallocated file. Returns the sorted times.
fn flush(path: &Path, bytes: usize, time: Duration) -> io::Result<Vec<f64>> {
    let file = with_room(path)?;
    let block = vec![0xa5_u8; bytes];
    let mut times = Vec::new();
    let mut at = 0;
    let begun = runtime::monotonic_now();
    while times.is_empty() || begun.elapsed() < time {
        let before = runtime::monotonic_now();
        file.write_all_at(&block, at)?;
        file.sync_data()?;
        times.push(before.elapsed().as_secs_f64());
        at = (at + block.len() as u64) % (ROOM - block.len() as u64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Creates a file with all blocks written, so that a flush syncs only data and no metadata.
fn with_room(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let zeros = vec![0; BLOCK];
    for at in (0..ROOM).step_by(BLOCK) {
        file.write_all_at(&zeros, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bare_figures_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let time = Duration::from_millis(5);
        assert!(hash_rate(time).await.unwrap() > 1.0);
        let times = flush_times(folder.path(), time).await.unwrap();
        let (middle, tail) = middle_and_tail(&times).unwrap();
        assert!(middle > 0.0 && tail >= middle, "{middle} {tail}");
        assert!(group_rate(folder.path(), time).await.unwrap() > f64::from(GROUP));
        let server = StandIn::start().await.unwrap();
        assert!(loopback_rate(&server, 2, time).await.unwrap() > 10.0);
    }
}
