//! What the benchmarks share: a service in a child process, a load client, tables of medians.
//!
//! Each benchmark is a program of its own that compares two things in one run, in rounds that
//! alternate, and prints medians. Nothing here listens or connects anywhere but on loopback, and
//! every loop has an end.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]

pub mod client;
pub mod cog;
pub mod disk;
pub mod instant;
pub mod process;
pub mod requests;
pub mod service;
pub mod table;
pub mod workflows;

use std::path::PathBuf;

/// A number from the environment, or what holds without it.
pub fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// In which order a round measures `sides`: each round reverses that of the one before it.
pub fn order(round: u64, sides: usize) -> impl Iterator<Item = usize> {
    (0..sides).map(move |side| if round.is_multiple_of(2) { side } else { sides - 1 - side })
}

/// A new folder for one measurement, gone when it is dropped. It is under `target/`, and so on the
/// disk that the build is on, unless `ORRERY_BENCH_DIR` names another place; a memory file system
/// would make every figure here meaningless.
pub fn folder() -> tempfile::TempDir {
    let place = std::env::var_os("ORRERY_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    std::fs::create_dir_all(&place).unwrap();
    tempfile::tempdir_in(place).unwrap()
}

/// The middle of the samples; of an even number, the mean of the two in the middle.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => samples[middle],
        _ => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

/// The sample below which `part` of them are; `0.5` is the median.
pub fn percentile(samples: &[f64], part: f64) -> f64 {
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
