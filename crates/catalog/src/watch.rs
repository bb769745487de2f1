//! Watches the models directory and reloads the catalog once changes have settled.
//!
//! A watch follows the directory that it was set on, not the path. The task therefore also checks
//! whether the path now leads to a different directory, and if so, watches that directory. This
//! check covers a directory that is created after startup or replaced by a mount, a rename or a
//! symbolic link.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::task::{JoinError, spawn_blocking};

use super::{Catalog, Report};
use orrery_runtime::{Recurring, Tasks};

/// Quiet period before a reload, because editors write files in several steps.
const SETTLED: Duration = Duration::from_millis(300);

/// How often the task checks whether the path leads to a different directory.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Extension of unfinished downloads, as `orrery model pull` and browsers write them.
const PARTIAL: &str = "part";

/// Device and inode of a directory.
type Identity = (u64, u64);

/// A watch on the directory that the path led to at the last check.
struct Watch {
    changed: Arc<Notify>,
    /// The directory's identity; `None` if there is no directory.
    identity: Option<Identity>,
    /// Dropping the watcher ends the watch.
    watcher: Option<RecommendedWatcher>,
    failure: Recurring,
}

impl Watch {
    fn new(folder: &Path) -> Self {
        let mut watch = Self {
            changed: Arc::default(),
            identity: None,
            watcher: None,
            failure: Recurring::default(),
        };
        watch.renew(folder);
        watch
    }

    /// Returns whether the path leads to a directory other than the watched one, or to a directory
    /// that could not be watched.
    fn is_outdated(&self, folder: &Path) -> bool {
        let identity = identity_of(folder);
        identity != self.identity || (identity.is_some() && self.watcher.is_none())
    }

    /// Watches the directory that the path now leads to. Returns whether the directory is being
    /// watched, or is a different one than before. A missing directory is not a failure, because
    /// the directory is optional.
    fn renew(&mut self, folder: &Path) -> bool {
        let before = std::mem::replace(&mut self.identity, identity_of(folder));
        self.watcher = None;
        if self.identity.is_some() {
            match self.start(folder) {
                Ok(watcher) => {
                    self.watcher = Some(watcher);
                    return true;
                }
                Err(error) if self.failure.is_news(&error.to_string()) => {
                    let folder = folder.display();
                    tracing::warn!(%folder, %error, "failed to watch the models folder");
                }
                Err(_logged) => {}
            }
        }
        before != self.identity
    }

    fn start(&self, folder: &Path) -> notify::Result<RecommendedWatcher> {
        let changed = Arc::clone(&self.changed);
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                let is_change = |event: notify::Event| {
                    // An event without paths says that the watcher has lost events.
                    let is_overflow = event.paths.is_empty();
                    let mut paths = event.paths.iter();
                    !event.kind.is_access() && (is_overflow || paths.any(|path| !is_partial(path)))
                };
                if event.is_ok_and(is_change) {
                    changed.notify_one();
                }
            })?;
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

/// Returns whether the file is an unfinished download. Such a file changes constantly, and each
/// change would postpone the reload. The rename at the end of the download also counts as a change
/// of the final file.
fn is_partial(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == PARTIAL)
}

fn identity_of(folder: &Path) -> Option<Identity> {
    std::fs::metadata(folder).ok().map(|data| (data.dev(), data.ino()))
}

impl Catalog {
    /// Reloads after each change in the directory until the service stops; calls `reloaded` after
    /// each reload. The directory may appear, disappear or be replaced at any time. If the
    /// directory cannot be watched, the task logs a warning and tries again; a signal can still
    /// trigger a reload.
    pub fn watch(&self, tasks: &Tasks, reloaded: impl Fn(&Report) + Send + Sync + 'static) {
        let mut watch = Watch::new(&self.shared.folder);
        let changed = Arc::clone(&watch.changed);
        let catalog = self.clone();
        let stopping = tasks.clone();
        tasks.spawn(async move {
            loop {
                let mut is_check = false;
                tokio::select! {
                    () = stopping.stopping() => return,
                    () = changed.notified() => {}
                    () = tokio::time::sleep(CHECK_EVERY) => is_check = true,
                }
                let folder = catalog.shared.folder.clone();
                let checked = spawn_blocking(move || {
                    let is_other = watch.is_outdated(&folder) && watch.renew(&folder);
                    (watch, is_other)
                });
                let Ok((checked, is_other)) = checked.await else { return };
                watch = checked;
                if is_check && !is_other {
                    continue;
                }
                loop {
                    tokio::select! {
                        () = stopping.stopping() => return,
                        () = changed.notified() => {}
                        () = tokio::time::sleep(SETTLED) => break,
                    }
                }
                // Renew the watch after every change, because a re-created directory may have the
                // same inode as before. Since the watch is renewed before the reload, no change is
                // missed.
                let folder = catalog.shared.folder.clone();
                let renewed = spawn_blocking(move || {
                    watch.renew(&folder);
                    watch
                });
                let Ok(renewed) = renewed.await else { return };
                watch = renewed;
                if let Ok(report) = catalog.reload_off_thread().await {
                    reloaded(&report);
                }
            }
        });
    }

    /// Reloads like [`Catalog::reload`], but on a blocking thread.
    ///
    /// # Errors
    /// Fails if the thread panics or the service stops.
    pub async fn reload_off_thread(&self) -> Result<Report, JoinError> {
        let catalog = self.clone();
        spawn_blocking(move || catalog.reload()).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::mpsc;

    use super::*;
    use orrery_runners::options::Dependencies;

    const MANIFEST: &str = "output_type = 'string'\n[runner]\ntype = 'builtin'\n\
                            name = 'text-template'\n";

    /// Writes the manifest of the model `slug` to the directory.
    fn add(folder: &Path, slug: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(format!("{slug}.toml")), format!("slug = '{slug}'\n{MANIFEST}"))
            .unwrap();
    }

    /// Time is paused, so the checks run immediately.
    #[tokio::test(start_paused = true)]
    async fn watch_follows_a_folder_that_appears_or_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let models = at("models.d");
        let (catalog, _) = Catalog::open(models.clone(), Dependencies::none());
        let tasks = Tasks::new();
        let (tell, mut reloads) = mpsc::unbounded_channel();
        catalog.watch(&tasks, move |_| tell.send(()).unwrap_or_default());
        let mut expect = async |present: &str, absent: &str| {
            while catalog.get(present).is_none() || catalog.get(absent).is_some() {
                reloads.recv().await.unwrap();
            }
        };

        add(&models, "created");
        expect("created", "none").await;
        add(&models, "added");
        expect("added", "none").await;

        fs::rename(&models, at("before")).unwrap();
        add(&models, "renamed");
        expect("renamed", "created").await;

        fs::remove_dir_all(&models).unwrap();
        add(&models, "recreated");
        expect("recreated", "renamed").await;

        fs::remove_dir_all(&models).unwrap();
        add(&at("elsewhere"), "linked");
        symlink(at("elsewhere"), &models).unwrap();
        expect("linked", "recreated").await;
        add(&at("elsewhere"), "beside");
        expect("beside", "recreated").await;

        fs::remove_file(&models).unwrap();
        symlink(at("before"), &models).unwrap();
        expect("created", "linked").await;
        tasks.stop();
    }

    /// Uses the real clock, because a paused clock would end the quiet period between two changes.
    #[tokio::test]
    async fn unfinished_download_does_not_postpone_a_reload() {
        let folder = tempfile::tempdir().unwrap();
        let (catalog, _) = Catalog::open(folder.path().to_path_buf(), Dependencies::none());
        let tasks = Tasks::new();
        let (tell, mut reloads) = mpsc::unbounded_channel();
        catalog.watch(&tasks, move |_| tell.send(()).unwrap_or_default());
        let partial = folder.path().join("model.gguf.part");
        let is_done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_done);
        let writer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                fs::write(&partial, "bytes").unwrap();
            }
        });
        add(folder.path(), "added");
        let added = tokio::time::timeout(Duration::from_secs(10), async {
            while catalog.get("added").is_none() {
                reloads.recv().await.unwrap();
            }
        });
        let added = added.await;
        is_done.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert!(added.is_ok(), "the manifest was not loaded");
        tasks.stop();
    }
}
