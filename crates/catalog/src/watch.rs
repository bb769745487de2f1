//! Watches the models folder and reloads the catalog when a change in it has settled.

use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::{Catalog, Report};
use orrery_runtime::Tasks;

/// Delay without further changes before a reload: editors write in several steps.
const SETTLED: Duration = Duration::from_millis(300);

impl Catalog {
    /// Reloads after each change of the folder until the service stops; `reloaded` is called after
    /// each reload. If the folder cannot be watched, a warning is logged once; a signal still
    /// reloads it.
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
            // Dropping the watcher would end the watch.
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

    /// Like [`Catalog::reload`], on a blocking thread.
    ///
    /// # Errors
    /// If the thread panicked or the service stops.
    pub async fn reload_off_thread(&self) -> Result<Report, tokio::task::JoinError> {
        let catalog = self.clone();
        tokio::task::spawn_blocking(move || catalog.reload()).await
    }
}
