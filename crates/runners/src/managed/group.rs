//! Groups of servers that share memory, such as that of a GPU. A server is started when its memory
//! is free; other servers of the group give way for it.
//!
//! Servers that wait for memory get it in the order in which they asked for it. A server runs for
//! at least `swap_after`. After that, it is stopped for another server as soon as it is idle or, if
//! the other has waited for `swap_after`, even while its requests continue to arrive: it is
//! drained. So a group swaps at most once per `swap_after`, and no server waits without end for a
//! busy one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;

use super::server::Server;
use orrery_runtime as runtime;

/// The groups of the configuration.
#[derive(Debug, Default)]
pub struct Groups {
    groups: BTreeMap<String, Arc<Group>>,
}

impl Groups {
    /// Creates groups from their names, memory in bytes, and times after which a server gives way.
    #[must_use]
    pub fn new(groups: impl IntoIterator<Item = (String, u64, Duration)>) -> Self {
        let groups = groups.into_iter().map(|(name, memory, swap_after)| {
            let group = Group { memory, swap_after, ..Group::default() };
            (name, Arc::new(group))
        });
        Self { groups: groups.collect() }
    }

    /// Returns the group with a name.
    pub(super) fn named(&self, name: &str) -> Option<Arc<Group>> {
        self.groups.get(name).cloned()
    }
}

/// Servers that share memory.
#[derive(Debug, Default)]
pub struct Group {
    /// The memory of all servers together, in bytes.
    pub(super) memory: u64,
    swap_after: Duration,
    servers: Mutex<Vec<Weak<Server>>>,
    /// Held while a server waits for memory; the lock is fair.
    turn: AsyncMutex<()>,
    /// Notified when a server of the group becomes idle or stops.
    changed: Notify,
    /// The memory of processes that are ending although their servers are gone, in bytes.
    leaving: AtomicU64,
}

/// Memory of a group that a process takes until this value is dropped.
#[derive(Debug)]
pub(super) struct Leaving {
    group: Arc<Group>,
    memory: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.group.leaving.fetch_sub(self.memory, Ordering::Relaxed);
        self.group.note_change();
    }
}

impl Group {
    /// Adds a server, which may be stopped from now on.
    pub(super) fn add(&self, server: &Arc<Server>) {
        let mut servers = self.servers();
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(server));
    }

    /// Notifies waiters that a server has become idle or has stopped.
    pub(super) fn note_change(&self) {
        self.changed.notify_waiters();
    }

    /// Takes memory for a process that is ending, until the returned value is dropped.
    pub(super) fn leave(self: &Arc<Self>, memory: u64) -> Leaving {
        self.leaving.fetch_add(memory, Ordering::Relaxed);
        Leaving { group: Arc::clone(self), memory }
    }

    /// Returns whether the group has memory for the server now.
    pub(super) fn has_room_for(&self, server: &Arc<Server>) -> bool {
        self.used(&self.others(server)).saturating_add(server.memory()) <= self.memory
    }

    fn used(&self, others: &[(Arc<Server>, Option<Instant>)]) -> u64 {
        let others: u64 = others.iter().map(|(other, _)| other.memory()).sum();
        others.saturating_add(self.leaving.load(Ordering::Relaxed))
    }

    /// Waits until the group has memory for the server, and marks the server as loading. The time
    /// limit is that of the caller.
    pub(super) async fn claim(&self, server: &Arc<Server>) {
        let _turn = self.turn.lock().await;
        let asked = runtime::monotonic_now();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let others = self.others(server);
            if self.used(&others).saturating_add(server.memory()) <= self.memory {
                server.begin_loading();
                return;
            }
            let now = runtime::monotonic_now();
            match self.victim(&others, now, asked) {
                Victim::Now(other) => other.unload().await,
                Victim::At(at) => {
                    let _changed_or_due = tokio::time::timeout_at(at, changed).await;
                }
                Victim::None => changed.await,
            }
        }
    }

    /// Returns the servers of the group that take memory, each with the time of its start if it is
    /// ready.
    fn others(&self, server: &Arc<Server>) -> Vec<(Arc<Server>, Option<Instant>)> {
        let servers: Vec<_> = self.servers().iter().filter_map(Weak::upgrade).collect();
        let others = servers.into_iter().filter(|other| !Arc::ptr_eq(other, server));
        others.filter_map(|other| other.holding().map(|since| (other, since))).collect()
    }

    /// Chooses the server that is stopped: the one that has been idle longest, or one that is in
    /// use if the waiting server has waited long enough.
    fn victim(
        &self,
        others: &[(Arc<Server>, Option<Instant>)],
        now: Instant,
        asked: Instant,
    ) -> Victim {
        let ready = others.iter().filter_map(|(other, since)| Some((other, (*since)?)));
        let until = |since: Instant| since + self.swap_after;
        let idle = ready.clone().filter_map(|(other, since)| {
            let idle_since = other.idle_since()?;
            (until(since) <= now).then_some((idle_since, other))
        });
        if let Some((_, other)) = idle.min_by_key(|(idle_since, _)| *idle_since) {
            return Victim::Now(Arc::clone(other));
        }
        let drained = ready.map(|(other, since)| (until(since).max(until(asked)), other));
        match drained.min_by_key(|(at, _)| *at) {
            Some((at, other)) if at <= now => Victim::Now(Arc::clone(other)),
            Some((at, other)) => {
                // An idle server gives way earlier than a busy one.
                let since = others.iter().find(|(one, _)| Arc::ptr_eq(one, other));
                let since = since.and_then(|(_, since)| *since).map(until);
                Victim::At(since.filter(|since| *since > now).map_or(at, |since| since.min(at)))
            }
            None => Victim::None,
        }
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Weak<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which server is stopped to free memory, or when to look for one again.
enum Victim {
    Now(Arc<Server>),
    /// No server can be stopped before this time, unless something changes.
    At(Instant),
    /// None until something changes: the other servers are starting or stopping.
    None,
}
