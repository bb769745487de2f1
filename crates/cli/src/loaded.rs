//! Loads the configuration, and formats the errors of an invalid configuration.

use std::path::Path;

use orrery_config::{Config, Error, Source};

/// Loads the configuration from `file` or, without a file, from the current folder.
pub(super) fn configuration(file: Option<&Path>) -> anyhow::Result<Config> {
    loaded(&Source { file: file.map(Path::to_path_buf), ..Source::default() })
}

pub(super) fn loaded(source: &Source) -> anyhow::Result<Config> {
    source.load().map_err(|faults| unusable(source, &faults))
}

/// Returns the error for an invalid configuration.
pub(super) fn unusable(source: &Source, faults: &[Error]) -> anyhow::Error {
    let path = source.path();
    let lines: Vec<String> = faults.iter().map(|fault| located(&path, fault)).collect();
    let named =
        source.file.as_ref().map_or_else(String::new, |_| format!(" --config {}", path.display()));
    anyhow::anyhow!("{}", lines.join("\n  ")).context(format!(
        "{} cannot be used; `orrery{named} check` also checks everything else",
        path.display()
    ))
}

/// Formats an error as compilers do, so that editors and terminals can link to its location.
pub(super) fn located(path: &Path, error: &Error) -> String {
    match error.line {
        0 => error.message.clone(),
        line => format!("{}:{line}:{}: {}", path.display(), error.column, error.message),
    }
}
