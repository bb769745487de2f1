//! Keeping models ready: their runners are looked after again and again, and what a runner finds out
//! about its model is taken over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Catalog;
use crate::runtime::Tasks;

/// How often runners are looked after.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// How long looking after one may take.
const TEND_MAX: Duration = Duration::from_secs(10);

impl Catalog {
    /// Looks after all runners until the service stops; `changed` is called when a model has become
    /// another one by it.
    pub fn keep(&self, tasks: &Tasks, changed: impl Fn() + Send + Sync + 'static) {
        let (catalog, stopping) = (self.clone(), tasks.clone());
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(TEND_EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = stopping.stopping() => return,
                    _ = ticks.tick() => {}
                }
                let models = catalog.list();
                let tending = models.iter().map(|model| async {
                    let in_time = tokio::time::timeout(TEND_MAX, model.runner.tend()).await;
                    if in_time.is_err() {
                        tracing::debug!(model = %model.slug, "looking after it took too long");
                    }
                });
                tokio::select! {
                    () = stopping.stopping() => return,
                    _all = join_all(tending) => {}
                }
                let mut has_changed = false;
                for model in &models {
                    has_changed |= catalog.take_over(model);
                }
                if has_changed {
                    changed();
                }
            }
        });
    }

    /// Takes over what the runner has found out about its model; whether that is anything new.
    fn take_over(&self, model: &Arc<super::Model>) -> bool {
        let Some(face) = model.runner.face() else { return false };
        if model.face.as_ref().is_some_and(|known| Arc::ptr_eq(known, &face)) {
            return false;
        }
        self.replace(model, &face)
    }
}
