//! The one place where the command line meets the rest of the program.

use std::path::Path;

use super::admin::{Admin, InProcess};
use super::check::{Finding, Verdict};
use crate::config::Config;
use crate::domain::time::Timestamp;

/// The way to the running service, or to its store.
pub(super) async fn admin(config: &Config) -> anyhow::Result<Admin> {
    Admin::open(config, offline).await
}

/// Runs the service until it is told to stop. Once it is ready, calls `ready` with the first key,
/// which it makes only if `make_first_key` and the store holds no organization yet.
pub(super) async fn serve(
    _config: Config,
    _make_first_key: bool,
    _ready: impl FnOnce(Option<String>) + Send + 'static,
) -> anyhow::Result<()> {
    anyhow::bail!("this build holds no service yet")
}

/// The slug of a good manifest, or its faults, each with file, line and column.
pub(super) fn check_manifest(file: &Path) -> Result<String, Vec<String>> {
    Err(vec![format!("{}: this build reads no manifests yet", file.display())])
}

/// Whether a certificate and its key fit together and hold now.
pub(super) fn check_certificate(certificate: &Path, _key: &Path, _now: Timestamp) -> Finding {
    Finding {
        subject: "tls".to_owned(),
        verdict: Verdict::Fault,
        detail: format!("{}: this build reads no certificates yet", certificate.display()),
    }
}

async fn offline(_config: Config) -> anyhow::Result<InProcess> {
    anyhow::bail!("this build opens no store yet: start the service first")
}
