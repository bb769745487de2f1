//! Maintenance of models: calls their runners periodically, and applies the interfaces that runners
//! discover.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Catalog;
use orrery_runtime::Tasks;

/// Interval between maintenance runs.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for maintaining one runner.
const MAINTENANCE_MAX: Duration = Duration::from_secs(10);

impl Catalog {
    /// Maintains all runners until the service stops; calls `changed` whenever maintenance has
    /// replaced a model.
    pub fn run_maintenance(&self, tasks: &Tasks, changed: impl Fn() + Send + Sync + 'static) {
        let catalog = self.clone();
        let stopping = tasks.clone();
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(MAINTENANCE_INTERVAL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = stopping.stopping() => return,
                    _ = ticks.tick() => {}
                }
                let models = catalog.list();
                let maintaining = models.iter().map(|model| async {
                    let in_time =
                        tokio::time::timeout(MAINTENANCE_MAX, model.runner.maintain()).await;
                    if in_time.is_err() {
                        tracing::debug!(
                            model = %model.slug,
                            "maintenance of a model took too long"
                        );
                    }
                });
                tokio::select! {
                    () = stopping.stopping() => return,
                    _all = join_all(maintaining) => {}
                }
                let mut has_changed = false;
                for model in &models {
                    has_changed |= catalog.adopt_interface(model);
                }
                if has_changed {
                    changed();
                }
            }
        });
    }

    /// Applies the interface that the runner discovered. Returns whether the interface is new.
    fn adopt_interface(&self, model: &Arc<super::Model>) -> bool {
        let Some(interface) = model.runner.interface() else { return false };
        if model.interface.as_ref().is_some_and(|known| Arc::ptr_eq(known, &interface)) {
            return false;
        }
        self.replace(model, &interface)
    }
}
