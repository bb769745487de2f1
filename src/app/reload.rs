//! Reloads while the service runs: manifests and certificates, on SIGHUP and when their files change.
//! The audit log gets one entry for each change of what is served, and none for a look that finds
//! nothing. The configuration is read at a start only.

use std::sync::Arc;

use super::{Running, journal};
use crate::api::Services;
use crate::audit::Actor;
use crate::catalog::Report;
use crate::runtime::Tasks;

impl Running {
    /// Reads the models folder and the certificate files again.
    pub async fn reload(&self) {
        let actor = Actor::operator("SIGHUP");
        if let Ok(report) = self.services.catalog.reload_off_thread().await {
            log_errors(&report);
            tracing::info!(models = report.loaded, "the models folder was read again");
            self.services.engine.models_changed();
            journal::note_change(&self.services, &actor, "models.reload", report.changes()).await;
        }
        if let Some(certificates) = self.certificates.clone() {
            let now = self.services.clock.now();
            // It logs its own faults, and serves the last good certificate on.
            let reloading = tokio::task::spawn_blocking(move || certificates.reload(now));
            let reloaded = reloading.await.ok().and_then(Result::ok);
            tracing::info!(good = reloaded.is_some(), "the certificate was read again");
            let other = reloaded.flatten();
            journal::note_change(&self.services, &actor, "certificate.reload", other).await;
        }
    }
}

/// Reloads the models folder when something in it changes.
pub fn watch_models(services: &Arc<Services>, tasks: &Tasks) {
    let changed = Arc::clone(services);
    let note = journal::noting(services, tasks, "models");
    services.catalog.watch(tasks, move |report| {
        log_errors(report);
        tracing::info!(models = report.loaded, "the models folder was read again");
        changed.engine.models_changed();
        report.changes().into_iter().for_each(&note);
    });
}

/// Follows what runners find out about their models.
pub fn maintain_models(services: &Arc<Services>, tasks: &Tasks) {
    let changed = Arc::clone(services);
    services.catalog.run_maintenance(tasks, move || changed.engine.models_changed());
}

/// Logs what is wrong with manifests.
pub fn log_errors(report: &Report) {
    for error in &report.errors {
        tracing::warn!(
            %error,
            "a manifest is invalid; its last valid version, if any, stays in use"
        );
    }
}
