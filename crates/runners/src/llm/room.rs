//! The memory budget shared by the local models of this machine. A model is loaded when enough
//! memory is free; to free memory, the models that have been idle the longest are unloaded. A model
//! that is serving a request is never unloaded.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard, Notify};
use tokio::time::timeout_at;

use super::process::Process;
use orrery_guard::groups;
use orrery_runtime as runtime;

/// Maximum time to wait for models that are serving requests.
const WAITING_MAX: Duration = Duration::from_secs(60);

/// The memory budget and the processes that use it.
#[derive(Debug, Default)]
pub struct Room {
    /// Memory limit for all models in bytes; `None` means the free memory of the machine.
    limit: Option<u64>,
    /// Only one model is loaded at a time, so that two loads never rely on the same free memory.
    loading: AsyncMutex<()>,
    processes: Mutex<Vec<Weak<Process>>>,
    /// Notified when a model becomes idle.
    idle: Notify,
}

impl Room {
    /// Creates a budget of this many bytes for all models.
    #[must_use]
    pub fn of_bytes(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Registers a model, which may be unloaded from now on.
    pub(super) fn add(&self, process: &Arc<Process>) {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.retain(|process| process.strong_count() > 0);
        processes.push(Arc::downgrade(process));
    }

    /// Notifies waiters that a model has become idle and can be unloaded.
    pub(super) fn note_idle(&self) {
        self.idle.notify_waiters();
    }

    /// Frees this many bytes. Waits for models that are serving requests, for up to
    /// `WAITING_MAX`, unless `is_impatient`. While the returned guard exists, no other model is
    /// loaded.
    ///
    /// # Errors
    /// An out-of-memory message, as a phrase that follows the model's name.
    pub(super) async fn make(
        &self,
        needed: u64,
        is_impatient: bool,
    ) -> Result<MutexGuard<'_, ()>, String> {
        let loading = self.loading.lock().await;
        let until = runtime::monotonic_now() + WAITING_MAX;
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            let free = self.free();
            if free.is_none_or(|free| needed <= free) {
                return Ok(loading);
            }
            if let Some(longest) = self.longest_idle() {
                longest.unload().await;
                continue;
            }
            let can_wait = !is_impatient && self.all().iter().any(|process| process.is_loaded());
            if !can_wait || timeout_at(until, idle).await.is_err() {
                let free = free.unwrap_or(0);
                return Err(format!(
                    "it needs about {} of memory, but only {} are free: a smaller context or a stronger \
                     quantization takes less",
                    shown(needed),
                    shown(free)
                ));
            }
        }
    }

    /// Returns the number of free bytes, or `None` if it is unknown.
    fn free(&self) -> Option<u64> {
        let Some(limit) = self.limit else { return available() };
        let all = self.all();
        let loaded = all.iter().filter(|process| process.is_loaded());
        let used = loaded.map(|process| process.memory_estimate()).sum::<u64>();
        Some(limit.saturating_sub(used))
    }

    fn longest_idle(&self) -> Option<Arc<Process>> {
        let idle =
            self.all().into_iter().filter_map(|process| Some((process.idle_since()?, process)));
        idle.min_by_key(|(since, _)| *since).map(|(_, process)| process)
    }

    fn all(&self) -> Vec<Arc<Process>> {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        processes.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Returns the free memory of the machine or of the service's control group, in bytes.
fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = machine.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let machine = machine?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    let machine = machine.saturating_mul(1024);
    Some(group_room().map_or(machine, |group| group.min(machine)))
}

/// Returns the memory left under the limits of the service's control group and its ancestors. The
/// page cache counts as free, because the kernel reclaims it.
fn group_room() -> Option<u64> {
    let own = groups::own_folder()?;
    let read = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let left = |folder: &Path| {
        let most = read(folder, "memory.max")?.trim().parse::<u64>().ok()?;
        let used = read(folder, "memory.current")?.trim().parse::<u64>().ok()?;
        let stat = read(folder, "memory.stat")?;
        let cached = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let is_file = matches!(name, "inactive_file" | "active_file");
            is_file.then(|| bytes.parse::<u64>().ok())?
        });
        Some(most.saturating_sub(used.saturating_sub(cached.sum())))
    };
    own.ancestors().filter_map(left).min()
}

/// Formats a byte count for display.
fn shown(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    let mib = bytes.div_ceil(MIB);
    if mib < 1024 { format!("{mib} MiB") } else { format!("{:.1} GiB", mib as f64 / 1024.0) }
}
