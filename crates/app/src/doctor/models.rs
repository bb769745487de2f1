//! Checks that the manifests in the models folder are valid.

use std::path::{Path, PathBuf};

use orrery_api::{Finding, Verdict};
use orrery_catalog as catalog;

/// Maximum number of manifests to check.
const MANIFESTS_MAX: usize = 10_000;

pub(super) fn findings(folder: &Path) -> Vec<Finding> {
    let files = match manifest_files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let detail = format!("{} does not exist: built-in models only", folder.display());
            return vec![Finding::new("models", Verdict::Good, detail)];
        }
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", folder.display());
            return vec![Finding::new("models", Verdict::Fault, detail)];
        }
    };
    let mut findings = Vec::new();
    let mut good = 0_usize;
    for file in &files {
        match check(file) {
            Ok(_slug) => good += 1,
            Err(faults) => findings.extend(
                faults.into_iter().map(|fault| Finding::new("model", Verdict::Fault, fault)),
            ),
        }
    }
    let detail = format!("{}: {good} of {} manifests are valid", folder.display(), files.len());
    let verdict = if good == files.len() { Verdict::Good } else { Verdict::Fault };
    findings.insert(0, Finding::new("models", verdict, detail));
    findings
}

pub(super) fn manifest_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MANIFESTS_MAX) {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the slug of a valid manifest, or its errors with file, line and column.
///
/// # Errors
/// The errors of the manifest.
pub fn check(file: &Path) -> Result<String, Vec<String>> {
    let checked = catalog::check(file).map(|slug| slug.to_string());
    checked.map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_missing_models_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(findings(&folder.path().join("models.d"))[0].verdict, Verdict::Good);
        assert!(findings(folder.path())[0].detail.contains("0 of 0"));
    }
}
