//! Code shared by the benchmarks: a service in a child process, a load client, tables of medians.
//!
//! Each benchmark compares two or more sides in one run, in alternating rounds, and prints medians.
//! Everything listens and connects on loopback only, and every loop ends.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]

pub(crate) mod client;
pub(crate) mod cog;
pub(crate) mod disk;
pub(crate) mod instant;
pub(crate) mod process;
pub(crate) mod requests;
pub(crate) mod service;
pub(crate) mod table;
pub(crate) mod workflows;

use std::path::PathBuf;

/// Returns the number in an environment variable, or the default.
pub(crate) fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the order in which a round measures `sides`, the reverse of the previous round's order.
pub(crate) fn order(round: u64, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |side| if round.is_multiple_of(2) { side } else { sides - 1 - side })
}

/// Creates a temporary folder for one measurement, under `target/` and thus on the build disk
/// unless `ORRERY_BENCH_DIR` names another location. A memory file system would make the figures
/// meaningless.
pub(crate) fn folder() -> tempfile::TempDir {
    let place = std::env::var_os("ORRERY_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&place).unwrap();
    tempfile::tempdir_in(place).unwrap()
}

/// Returns the median of the samples.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => samples[middle],
        _ => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

/// Returns the quantile `part` of the samples; `0.5` is the median.
pub(crate) fn percentile(samples: &[f64], part: f64) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index within the samples"
    )]
    let index = ((samples.len() as f64 - 1.0) * part).round() as usize;
    samples[index]
}
