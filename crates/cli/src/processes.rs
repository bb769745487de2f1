//! The exit codes of the processes that the service starts: guards, fences and workers.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;

use super::output;
use orrery_guard as guard;

/// Returns the exit code of a worker.
pub(crate) fn worked(code: io::Result<u8>) -> anyhow::Result<ExitCode> {
    code.map(ExitCode::from).context("the worker")
}

/// Returns the exit code of a guard or a fence. An error is reported to the service over standard
/// error.
pub(crate) fn guarded(ended: io::Result<u8>) -> ExitCode {
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::note(&format!("{}{error}", guard::LOG_PREFIX));
            ExitCode::from(guard::NOT_STARTED)
        }
    }
}
