//! Tells the binary what it was built from: commit and date, features, target. It runs no code of the project and
//! writes nothing.
//!
//! The commit is that of the environment (`ORRERY_COMMIT`, for builds from an archive) or, in an optimized
//! build, that of git. A build without optimization names none, so that a commit does not rebuild everything.

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
    let llama = (!variable("CARGO_FEATURE_LLAMA").is_empty()).then(|| "llama".to_owned());
    let parts: Vec<String> =
        [commit, llama, Some(variable("TARGET"))].into_iter().flatten().collect();
    println!("cargo::rustc-env=ORRERY_BUILD={}", parts.join(", "));
}

/// The commit that is checked out, such as `0123456789 2026-11-23`; none in an archive, also in one that was
/// unpacked within another repository.
fn of_git() -> Option<String> {
    let root = env::var("CARGO_MANIFEST_DIR").ok()?;
    if git(&["rev-parse", "--show-toplevel"])? != root {
        return None;
    }
    // What each commit and each checkout writes.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        // A file that is not there would be taken for a change at every build.
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
