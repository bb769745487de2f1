//! Passes build information to the binary: commit and date, features, target. This script runs none
//! of the project's code and writes no files.
//!
//! The commit comes from `ORRERY_COMMIT` (for builds from an archive) or, in an optimized build,
//! from git. An unoptimized build contains no commit, because otherwise every new commit would
//! cause a complete rebuild.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ORRERY_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let is_optimized = variable("PROFILE") == "release";
    let given = Some(variable("ORRERY_COMMIT")).filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| is_optimized.then(of_git).flatten());
    let feature = |variable: &str, name: &str| env::var_os(variable).map(|_set| name.to_owned());
    let llama = feature("CARGO_FEATURE_LLAMA", "llama");
    let whisper = feature("CARGO_FEATURE_WHISPER", "whisper");
    let onnx = feature("CARGO_FEATURE_ONNX", "onnx");
    let parts = [commit, llama, whisper, onnx, Some(variable("TARGET"))];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    println!("cargo::rustc-env=ORRERY_BUILD={}", parts.join(", "));
}

/// Returns the hash and date of the checked-out commit, such as `0123456789 2026-11-23`. Returns
/// `None` for a source archive, even if it was unpacked inside another repository.
fn of_git() -> Option<String> {
    let this_crate = env::var("CARGO_MANIFEST_DIR").ok()?;
    let root = Path::new(&this_crate).ancestors().nth(2)?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?) != root {
        return None;
    }
    // Git writes these files at every commit and every checkout.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        // Cargo would treat a missing file as changed in every build.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["-c", "core.abbrev=10", "show", "--no-patch", "--format=%h %cs", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?.trim().to_owned();
    (done.status.success() && !text.is_empty()).then_some(text)
}
