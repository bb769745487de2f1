//! Watches the models directory and reloads the catalog once changes have settled.

use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::{Catalog, Report};
use orrery_runtime::Tasks;

/// Quiet period before a reload, because editors write files in several steps.
const SETTLED: Duration = Duration::from_millis(300);

impl Catalog {
    /// Reloads after each change in the directory until the service stops; calls `reloaded` after
    /// each reload. If the directory cannot be watched, a warning is logged once; a signal can
    /// still trigger a reload.
    pub fn watch(&self, tasks: &Tasks, reloaded: impl Fn(&Report) + Send + Sync + 'static) {
        let changed = Arc::new(Notify::new());
        let tell = Arc::clone(&changed);
        let folder = self.shared.folder.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|event| !event.kind.is_access()) {
                tell.notify_one();
            }
        });
        let watching = watcher.and_then(|mut watcher| {
            watcher.watch(&folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let watcher = match watching {
            Ok(watcher) => watcher,
            Err(error) => {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "failed to watch the models folder");
                return;
            }
        };
        let catalog = self.clone();
        let stopping = tasks.clone();
        tasks.spawn(async move {
            // Dropping the watcher would stop watching.
            let _watcher = watcher;
            loop {
                tokio::select! {
                    () = stopping.stopping() => return,
                    () = changed.notified() => {}
                }
                loop {
                    tokio::select! {
                        () = stopping.stopping() => return,
                        () = changed.notified() => {}
                        () = tokio::time::sleep(SETTLED) => break,
                    }
                }
                if let Ok(report) = catalog.reload_off_thread().await {
                    reloaded(&report);
                }
            }
        });
    }

    /// Like [`Catalog::reload`], but runs on a blocking thread.
    ///
    /// # Errors
    /// Fails if the thread panics or the service stops.
    pub async fn reload_off_thread(&self) -> Result<Report, tokio::task::JoinError> {
        let catalog = self.clone();
        tokio::task::spawn_blocking(move || catalog.reload()).await
    }
}
