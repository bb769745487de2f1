//! Reloads the running service: configuration, manifests and certificates on SIGHUP and `orrery
//! reload`; manifests and certificates also when their files change.
//!
//! If a file is invalid, the service keeps using the last valid state. A reload adds one entry to
//! the audit log if anything has changed, and no entry otherwise. Changed ports, folders and sizes
//! take effect after a restart.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Running, alerts, journal, options};
use orrery_api::{Reloaded, Reloader, Services};
use orrery_catalog::Report;
use orrery_config::Config;
use orrery_engine::traces::Traces;
use orrery_http::egress::Lists;
use orrery_http::tls::Certificates;
use orrery_records::audit::Actor;
use orrery_runtime::Tasks;
use orrery_telemetry as telemetry;

/// The running state. A reload compares this state with the files and updates it.
struct Reloading {
    services: Weak<Services>,
    certificates: Option<Certificates>,
    traces: Traces,
    /// The current configuration.
    config: Mutex<Config>,
    /// Serializes reloads. Otherwise, two concurrent reloads could both apply and record the same
    /// change.
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Running {
    /// Reloads configuration, manifests and certificates.
    pub async fn reload(&self) {
        if let Some(reloader) = self.services.reloader.get() {
            let _told_by_the_log = reloader.reload(Actor::operator("SIGHUP")).await;
        }
    }
}

/// Returns the reloader of this service, for signals and the control socket.
pub(super) fn reloader(
    services: &Arc<Services>,
    certificates: Option<Certificates>,
    traces: Traces,
    config: &Config,
) -> Reloader {
    let reloading = Arc::new(Reloading {
        services: Arc::downgrade(services),
        certificates,
        traces,
        config: Mutex::new(config.clone()),
        one_at_a_time: tokio::sync::Mutex::default(),
    });
    Reloader::new(move |actor| {
        let reloading = Arc::clone(&reloading);
        Box::pin(async move { reloading.all(&actor).await })
    })
}

impl Reloading {
    async fn all(&self, actor: &Actor) -> Reloaded {
        let _one = self.one_at_a_time.lock().await;
        let mut reloaded = Reloaded::default();
        let Some(services) = self.services.upgrade() else { return reloaded };
        self.configuration(&services, actor, &mut reloaded).await;
        models(&services, actor, &mut reloaded).await;
        self.certificate(&services, actor, &mut reloaded).await;
        for fault in &reloaded.kept {
            tracing::warn!("{fault}; the last good state stays in use");
        }
        tracing::info!(
            models = reloaded.loaded,
            applied = reloaded.applied.join(", "),
            needs_restart = reloaded.needs_restart.join(", "),
            faults = reloaded.kept.len(),
            "configuration, manifests and certificates reloaded"
        );
        reloaded
    }

    async fn configuration(&self, services: &Services, actor: &Actor, reloaded: &mut Reloaded) {
        let current = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let source = current.source.clone();
        let file = source.path();
        // If there was no file at startup, there is nothing to reload unless a file was created
        // since then.
        if current.file.is_none() && !file.exists() {
            return;
        }
        let read = tokio::task::spawn_blocking(move || source.load()).await;
        let shown = file.display();
        let new = match read {
            Ok(Ok(new)) => new,
            Ok(Err(faults)) => {
                reloaded.kept.extend(faults.iter().map(|fault| format!("{shown}: {fault}")));
                return;
            }
            Err(interrupted) => {
                reloaded.kept.push(format!("{shown}: {interrupted}"));
                return;
            }
        };
        let mut now = current.clone();
        apply(services, &mut now, &new, reloaded);
        if now.telemetry != new.telemetry {
            self.traces.set_target(options::trace_target(&new));
            now.telemetry.clone_from(&new.telemetry);
            reloaded.applied.push("telemetry".to_owned());
        }
        now.file.clone_from(&new.file);
        reloaded.needs_restart = differences(&now, &new);
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let changes = (!reloaded.applied.is_empty()).then(|| reloaded.applied.join(", "));
        journal::note_change(services, actor, "configuration.reload", changes).await;
    }

    async fn certificate(&self, services: &Services, actor: &Actor, reloaded: &mut Reloaded) {
        let Some(certificates) = self.certificates.clone() else { return };
        let now = services.clock.now();
        match tokio::task::spawn_blocking(move || certificates.reload(now)).await {
            Ok(Ok(other)) => {
                journal::note_change(services, actor, "certificate.reload", other).await;
            }
            Ok(Err(error)) => reloaded.kept.push(format!("the certificate: {error}")),
            Err(interrupted) => reloaded.kept.push(format!("the certificate: {interrupted}")),
        }
    }
}

/// Applies the settings that can change at runtime, and records them in `now` and `reloaded`.
fn apply(services: &Services, now: &mut Config, new: &Config, reloaded: &mut Reloaded) {
    let mut applied = |section: &str| reloaded.applied.push(section.to_owned());
    if now.log.level != new.log.level && telemetry::set_level(&new.log.level).is_ok() {
        now.log.level.clone_from(&new.log.level);
        applied("log.level");
    }
    let live = [
        ("cors", now.cors != new.cors),
        ("retention", now.retention != new.retention),
        ("log.access", now.log.access != new.log.access),
        ("limits.rate", now.limits.rate != new.limits.rate),
    ];
    if live.iter().any(|(_, is_other)| *is_other) {
        services.live.store(Arc::new(options::live(new)));
        now.cors.clone_from(&new.cors);
        now.retention.clone_from(&new.retention);
        now.log.access = new.log.access;
        now.limits.rate = new.limits.rate;
        live.iter().filter(|(_, is_other)| *is_other).for_each(|(section, _)| applied(section));
    }
    if now.egress != new.egress {
        let egress = new.egress.clone();
        services.egress.replace(Lists {
            allow: egress.allow,
            deny: egress.deny,
            single_label_names: egress.single_label_names,
        });
        now.egress.clone_from(&new.egress);
        applied("egress");
    }
    if now.alerts != new.alerts {
        services.alerts.set_options(alerts::options(new));
        now.alerts.clone_from(&new.alerts);
        applied("alerts");
    }
    if now.limits.disk_reserve != new.limits.disk_reserve && new.limits.disk_reserve.is_some() {
        services.store.disk_space().keep(new.limits.disk_reserve);
        now.limits.disk_reserve = new.limits.disk_reserve;
        applied("limits.disk_reserve");
    }
}

/// Lists the sections in which two configurations differ.
fn differences(now: &Config, new: &Config) -> Vec<String> {
    let sections = [
        ("data_dir", now.data_dir != new.data_dir),
        ("models_dir", now.models_dir != new.models_dir),
        ("hosts", now.hosts != new.hosts),
        ("tls", now.tls != new.tls),
        ("limits", now.limits != new.limits),
        ("engine", now.engine != new.engine),
        ("webhooks", now.webhooks != new.webhooks),
        ("files", now.files != new.files),
        ("billing", now.billing != new.billing),
        ("router", now.router != new.router),
        ("decisions", now.decisions != new.decisions),
        ("dashboard", now.dashboard != new.dashboard),
        ("agent", now.agent != new.agent),
        ("audit", now.audit != new.audit),
        ("backup", now.backup != new.backup),
        ("compat", now.compat != new.compat),
        ("metrics", now.metrics != new.metrics),
        ("log", now.log != new.log),
        ("telemetry", now.telemetry != new.telemetry),
        ("alerts", now.alerts != new.alerts),
        ("groups", now.groups != new.groups),
    ];
    let differ = sections.iter().filter(|(_, is_other)| *is_other);
    differ.map(|(section, _)| (*section).to_owned()).collect()
}

async fn models(services: &Arc<Services>, actor: &Actor, reloaded: &mut Reloaded) {
    match services.catalog.reload_off_thread().await {
        Ok(report) => {
            services.engine.models_changed();
            reloaded.loaded = report.loaded;
            reloaded.removed.clone_from(&report.removed);
            reloaded.kept.extend(report.errors.iter().map(ToString::to_string));
            journal::note_change(services, actor, "models.reload", report.changes()).await;
        }
        Err(interrupted) => reloaded.kept.push(format!("the models folder: {interrupted}")),
    }
}

/// Reloads the models folder whenever one of its files changes.
pub(crate) fn watch_models(services: &Arc<Services>, tasks: &Tasks) {
    let changed = Arc::clone(services);
    let note = journal::noting(services, tasks, "models");
    services.catalog.watch(tasks, move |report| {
        log_errors(report);
        tracing::info!(models = report.loaded, "models folder reloaded");
        changed.engine.models_changed();
        report.changes().into_iter().for_each(&note);
    });
}

/// Updates the catalog when runners discover changes to their models.
pub(crate) fn maintain_models(services: &Arc<Services>, tasks: &Tasks) {
    let changed = Arc::clone(services);
    services.catalog.run_maintenance(tasks, move || changed.engine.models_changed());
}

/// Logs the errors of manifests, of model files and of the folder itself.
pub(crate) fn log_errors(report: &Report) {
    for error in &report.errors {
        tracing::warn!(%error, "failed to load models; the last valid state stays in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_lists_sections_that_need_restart() {
        let now = Config::defaults();
        assert!(differences(&now, &now).is_empty());
        let mut new = now.clone();
        new.engine.active += 1;
        new.hosts.base.public_url = "https://elsewhere".to_owned();
        assert_eq!(differences(&now, &new), ["hosts", "engine"]);
    }
}
