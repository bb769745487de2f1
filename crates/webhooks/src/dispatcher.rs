//! Decides which delivery is sent next: tracks deliveries in memory and each receiver's slots.
//!
//! The dispatcher is pure bookkeeping without disk, network or clock; the loop in `send_loop`
//! provides all three. The following rules prevent one receiver from slowing down another:
//! - A receiver starts with few slots, gains one slot with each response, up to its cap, and loses
//!   half of its slots with each failure. A response frees the receiver's slot immediately; the
//!   delivery still counts toward the total number of slots until its outcome is on the disk.
//! - Once three quarters of all slots are taken, no receiver takes more than its share: the number
//!   of all slots divided by the number of receivers that have deliveries and responded to their
//!   last attempt.
//! - Half of all slots are reserved for receivers that responded to their last attempt. New and
//!   failing receivers share the other half.
//! - After enough consecutive failures, the receiver's circuit opens: nothing is sent for some
//!   time, and then only one probe at a time.
//!
//! Memory is bounded by [`WINDOW`] and [`ENDPOINTS_MAX`], regardless of the backlog on the disk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{CircuitState, Endpoint, Refill};
use super::rows::{self, Circuit, RowIndex};
use orrery_domain::delivery::Delivery;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_storage::Key;

/// Maximum number of deliveries in memory, including those in flight or about to be parked. Each
/// delivery takes about 200 bytes, or more if its contents are in memory as well.
pub(super) const WINDOW: usize = 4096;
/// Maximum number of deliveries in memory that include their contents (at most 4 KiB each, see
/// `outbox::CARRIED_BYTES_MAX`), so that sending a new delivery needs no read from the disk.
pub(super) const CARRIED_MAX: usize = 1024;
/// Maximum number of receivers in memory.
pub(super) const ENDPOINTS_MAX: usize = 10_000;

/// A receiver's name: scheme, host and port.
pub(super) type EndpointName = Arc<str>;

/// A due delivery.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) organization: OrganizationId,
    pub(super) execution: ExecutionId,
    pub(super) due: Timestamp,
    pub(super) place: RowIndex,
    pub(super) receiver: EndpointName,
    /// The delivery itself, if it is small and was handed over in memory.
    pub(super) carried: Option<Box<Delivery>>,
}

impl Item {
    /// Returns the key of the delivery's row.
    pub(super) fn key(&self) -> Key {
        match self.place {
            RowIndex::Due => rows::due(self.due, self.organization, self.execution),
            RowIndex::Parked => {
                rows::parked(&self.receiver, self.due, self.organization, self.execution)
            }
        }
    }
}

/// The result of offering a delivery to the dispatcher.
#[derive(Debug)]
pub(super) enum Admission {
    /// The delivery is in memory, or already was.
    Queued,
    /// The receiver has no room, so the delivery must be parked. The delivery counts as being in
    /// memory until [`Dispatcher::parked`] or [`Dispatcher::forget`].
    Park(Item),
    /// The delivery stays on the disk: memory is full, or already contains the delivery with an
    /// earlier due time.
    Full,
}

/// A receiver's health, as indicated by an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// The receiver responded.
    Healthy,
    /// The receiver did not respond, or returned an overload or server error.
    Failing,
    /// The attempt did not reach the receiver.
    Unknown,
}

/// A change to a receiver's circuit that must be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CircuitChange {
    Opened(EndpointName, Circuit),
    Closed(EndpointName),
}

/// An attempt in flight.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    /// Whether the attempt uses a slot from the half for new and failing receivers.
    unproven: bool,
    /// Whether the receiver has responded.
    answered: bool,
}

/// The deliveries in memory and their receivers.
#[derive(Debug)]
pub(super) struct Dispatcher {
    all_slots: usize,
    slots_per_receiver: usize,
    circuit_failures: u32,
    circuit_open: Duration,
    receivers: HashMap<EndpointName, Endpoint>,
    /// Receivers with a delivery to send and a free slot, each in one of these two queues.
    healthy: VecDeque<EndpointName>,
    unknown: VecDeque<EndpointName>,
    /// Whether the queue `unknown` is next, so that neither queue starves the other.
    unproven_next: bool,
    wants_refill: VecDeque<EndpointName>,
    /// Open circuits, ordered by the time at which a probe may be sent.
    reopening: BTreeSet<(Timestamp, EndpointName)>,
    /// Every delivery in memory and its due time.
    held: HashMap<ExecutionId, Timestamp>,
    carried: usize,
    /// Attempts whose outcome is not on the disk yet.
    in_flight: HashMap<ExecutionId, InFlight>,
    unproven_in_flight: usize,
    /// Number of receivers with deliveries in memory: all such receivers, and only the proven ones.
    active: usize,
    proven_active: usize,
    open_circuits: usize,
    changes: Vec<CircuitChange>,
}

impl Dispatcher {
    /// Creates a dispatcher without receivers or deliveries.
    pub(super) fn new(options: &super::Options) -> Self {
        Self {
            all_slots: options.in_flight.max(1),
            slots_per_receiver: options.in_flight_per_receiver.max(1),
            circuit_failures: options.circuit_failures.max(1),
            circuit_open: options.circuit_open,
            receivers: HashMap::new(),
            healthy: VecDeque::new(),
            unknown: VecDeque::new(),
            unproven_next: false,
            wants_refill: VecDeque::new(),
            reopening: BTreeSet::new(),
            held: HashMap::new(),
            carried: 0,
            in_flight: HashMap::new(),
            unproven_in_flight: 0,
            active: 0,
            proven_active: 0,
            open_circuits: 0,
            changes: Vec::new(),
        }
    }

    /// Accepts a due delivery if both memory and its receiver have room.
    pub(super) fn offer(&mut self, mut item: Item) -> Admission {
        if let Some(due) = self.held.get(&item.execution) {
            // A delivery may become due again before its last attempt is recorded as finished.
            let is_due_again = *due != item.due && item.place == RowIndex::Due;
            return if is_due_again { Admission::Full } else { Admission::Queued };
        }
        if self.held.len() >= WINDOW || !self.track(&item.receiver) {
            return Admission::Full;
        }
        let name = Arc::clone(&item.receiver);
        let room = self.waiting_room();
        let Some(receiver) = self.receivers.get_mut(&name) else { return Admission::Full };
        let in_order = item.place == RowIndex::Parked || receiver.parked.is_none();
        let takes = match receiver.circuit {
            CircuitState::Closed => {
                in_order && receiver.waiting.len() < room.min(receiver.waiting_limit())
            }
            CircuitState::HalfOpen => in_order && !receiver.is_active(),
            CircuitState::Open(_) => false,
        };
        if !takes && item.place == RowIndex::Parked {
            receiver.note_parked(item.due);
            return Admission::Full;
        }
        self.held.insert(item.execution, item.due);
        if !takes {
            item.carried = None;
            return Admission::Park(item);
        }
        if self.carried >= CARRIED_MAX {
            item.carried = None;
        }
        self.carried += usize::from(item.carried.is_some());
        self.change(&name, |receiver| {
            receiver.held_parked += usize::from(item.place == RowIndex::Parked);
            receiver.waiting.push_back(item);
        });
        Admission::Queued
    }

    /// Returns the next delivery to attempt, if a slot is free. The delivery stays in flight until
    /// [`Dispatcher::finish`].
    pub(super) fn next(&mut self) -> Option<Item> {
        while self.in_flight.len() < self.all_slots {
            let name = self.turn()?;
            if let Some(item) = self.start(&name) {
                return Some(item);
            }
        }
        None
    }

    /// Records the receiver's response to an attempt and frees the receiver's slot. Returns
    /// deliveries to park if the receiver's circuit has just opened.
    pub(super) fn answered(&mut self, item: &Item, health: Health, now: Timestamp) -> Vec<Item> {
        match self.in_flight.get_mut(&item.execution) {
            Some(attempt) if !attempt.answered => attempt.answered = true,
            _ => return Vec::new(),
        }
        self.change(&item.receiver, |receiver| {
            receiver.in_flight -= 1;
            receiver.recording += 1;
        });
        match health {
            Health::Healthy => self.succeeded(&item.receiver),
            Health::Failing => return self.failed(&item.receiver, now),
            Health::Unknown => {}
        }
        Vec::new()
    }

    /// Ends an attempt. If the row is unchanged, `health` is [`Health::Unknown`]; otherwise, the
    /// outcome is on the disk. Includes [`Dispatcher::answered`], with the same result.
    pub(super) fn finish(&mut self, item: &Item, health: Health, now: Timestamp) -> Vec<Item> {
        let parked = self.answered(item, health, now);
        let Some(attempt) = self.in_flight.remove(&item.execution) else { return parked };
        self.unproven_in_flight -= usize::from(attempt.unproven);
        self.held.remove(&item.execution);
        self.change(&item.receiver, |receiver| {
            receiver.recording -= 1;
            receiver.held_parked -= usize::from(item.place == RowIndex::Parked);
            // The row of the attempt may still exist, so that row must be read again.
            if health == Health::Unknown && item.place == RowIndex::Parked {
                receiver.note_parked(item.due);
            }
        });
        parked
    }

    /// Records that rows were moved to their receivers' parked rows.
    pub(super) fn parked(&mut self, items: &[Item]) {
        for item in items {
            self.held.remove(&item.execution);
            // If the receiver does not fit in memory, the sweep finds its rows later.
            if self.track(&item.receiver) {
                self.change(&item.receiver, |receiver| {
                    receiver.note_parked(item.due);
                });
            }
        }
    }

    /// Forgets deliveries that were to be parked but are still in the due index.
    pub(super) fn forget(&mut self, items: &[Item]) {
        for item in items {
            self.held.remove(&item.execution);
        }
    }

    /// Returns a receiver whose parked rows should be read. Does not return that receiver again
    /// until [`Dispatcher::refilled`].
    pub(super) fn next_to_refill(&mut self) -> Option<Refill> {
        if self.held.len() >= WINDOW {
            return None;
        }
        let room = self.waiting_room();
        while let Some(name) = self.wants_refill.pop_front() {
            let Some(receiver) = self.receivers.get_mut(&name) else { continue };
            receiver.hungry = receiver.wants_rows(room);
            if receiver.hungry {
                let after = receiver.read_up_to.clone().map(|(_, key)| key);
                // The first page starts with the rows of deliveries that are already in memory.
                let held = if after.is_some() { 0 } else { receiver.held_parked };
                let limit = room.min(receiver.waiting_limit());
                let limit = held + limit.saturating_sub(receiver.waiting.len());
                return Some(Refill { receiver: name, after, limit });
            }
        }
        None
    }

    /// Accepts parked rows of a receiver, oldest first. `complete` means that the receiver has no
    /// further parked rows.
    pub(super) fn refilled(&mut self, name: &EndpointName, items: Vec<Item>, complete: bool) {
        if let Some(receiver) = self.receivers.get_mut(name) {
            receiver.note_read(&items, complete);
            receiver.hungry = false;
        }
        for item in items {
            // Deliveries that do not fit are recorded as parked.
            let _stays_on_disk = self.offer(item);
        }
        self.change(name, |_receiver| {});
    }

    /// Records that a receiver's parked rows could not be read.
    pub(super) fn refill_failed(&mut self, name: &EndpointName) {
        self.change(name, |receiver| receiver.hungry = false);
    }

    /// Reserves a delivery so that it is not sent until [`Dispatcher::forget`]. Returns `false` if
    /// the delivery is already in memory, or if memory is full.
    pub(super) fn reserve(&mut self, item: &Item) -> bool {
        let free = self.held.len() < WINDOW && !self.held.contains_key(&item.execution);
        if free {
            self.held.insert(item.execution, item.due);
        }
        free
    }

    /// Records parked rows that may not be known in memory, for example after a start.
    pub(super) fn restore_endpoint(
        &mut self,
        name: &EndpointName,
        oldest: Timestamp,
        circuit: Option<Circuit>,
        now: Timestamp,
    ) -> bool {
        if self.receivers.contains_key(name) {
            self.change(name, |receiver| receiver.note_parked(oldest));
            return true;
        }
        if let Some(circuit) = circuit
            && !self.restore_circuit(name, circuit, now)
        {
            return false;
        }
        if !self.track(name) {
            return false;
        }
        self.change(name, |receiver| receiver.note_parked(oldest));
        true
    }

    /// Restores a circuit that was open when the process ended. Returns whether there was room for
    /// the circuit.
    pub(super) fn restore_circuit(
        &mut self,
        name: &EndpointName,
        circuit: Circuit,
        now: Timestamp,
    ) -> bool {
        if !self.track(name) {
            return false;
        }
        self.change(name, |receiver| {
            receiver.failures = circuit.failures;
            receiver.concurrency = 1;
        });
        self.set_gate(name, CircuitState::Open(circuit.open_until));
        self.reopen(now);
        true
    }

    /// Half-opens every circuit whose open period has ended, so that a probe may be sent.
    pub(super) fn reopen(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.reopening.first()
            && *until <= now
        {
            let Some((_, name)) = self.reopening.pop_first() else { return };
            self.set_gate(&name, CircuitState::HalfOpen);
            self.change(&name, |_receiver| {});
        }
    }

    /// Returns the time at which the next circuit permits a probe.
    pub(super) fn next_reopening(&self) -> Option<Timestamp> {
        self.reopening.first().map(|(until, _)| *until)
    }

    /// Returns the changes to circuits since the last call, in order.
    pub(super) fn take_changes(&mut self) -> Vec<CircuitChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns whether a page of rows fits into the window.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < WINDOW / 4 * 3
    }

    /// Returns the number of deliveries in memory.
    pub(super) fn queued(&self) -> usize {
        self.held.len()
    }

    /// Returns the number of attempts whose outcome is not on the disk yet.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of circuits that are not closed.
    pub(super) fn open_circuits(&self) -> usize {
        self.open_circuits
    }

    /// Returns the due time of the oldest delivery that is in memory or known to be parked.
    pub(super) fn oldest_due(&self) -> Option<Timestamp> {
        let parked = self.receivers.values().filter_map(|receiver| receiver.parked);
        self.held.values().copied().chain(parked).min()
    }

    /// Returns the number of receivers in memory.
    #[cfg(test)]
    pub(super) fn endpoints(&self) -> usize {
        self.receivers.len()
    }

    /// Returns each receiver's share of all slots, and whether a receiver may exceed this share.
    fn fair_share(&self) -> (usize, bool) {
        let plenty = self.in_flight.len() < self.all_slots / 4 * 3;
        ((self.all_slots / self.proven_active.max(1)).max(1), plenty)
    }

    /// Returns the maximum number of waiting deliveries of a receiver: its share of the window.
    fn waiting_room(&self) -> usize {
        (WINDOW / self.active.max(1)).max(1)
    }

    fn unproven_limit(&self) -> usize {
        (self.all_slots / 2).max(1)
    }

    fn turn(&mut self) -> Option<EndpointName> {
        let open = self.unproven_in_flight < self.unproven_limit();
        self.unproven_next = !self.unproven_next;
        if self.unproven_next && open {
            self.unknown.pop_front().or_else(|| self.healthy.pop_front())
        } else {
            let strangers = if open { Some(&mut self.unknown) } else { None };
            self.healthy.pop_front().or_else(|| strangers?.pop_front())
        }
    }

    /// Starts a receiver's first waiting delivery, unless no delivery can be started any more.
    fn start(&mut self, name: &EndpointName) -> Option<Item> {
        let (share, plenty) = self.fair_share();
        let full = self.unproven_in_flight >= self.unproven_limit();
        let receiver = self.receivers.get_mut(name)?;
        if !receiver.proven && full {
            self.unknown.push_back(Arc::clone(name));
            return None;
        }
        receiver.ready = false;
        if !receiver.can_send(share, plenty) {
            return None;
        }
        let unproven = !receiver.proven;
        let mut started = None;
        self.change(name, |receiver| {
            started = receiver.waiting.pop_front();
            receiver.in_flight += usize::from(started.is_some());
        });
        let item = started?;
        self.carried -= usize::from(item.carried.is_some());
        self.unproven_in_flight += usize::from(unproven);
        self.in_flight.insert(item.execution, InFlight { unproven, answered: false });
        Some(item)
    }

    fn succeeded(&mut self, name: &EndpointName) {
        let most = self.slots_per_receiver;
        let closed = self.receivers.get(name).is_some_and(|r| r.circuit != CircuitState::Closed);
        if closed {
            self.set_gate(name, CircuitState::Closed);
            self.changes.push(CircuitChange::Closed(Arc::clone(name)));
        }
        self.change(name, |receiver| {
            receiver.failures = 0;
            receiver.proven = true;
            receiver.concurrency = receiver.concurrency.saturating_add(1).min(most);
        });
    }

    fn failed(&mut self, name: &EndpointName, now: Timestamp) -> Vec<Item> {
        let open_until = now.plus(self.circuit_open);
        self.change(name, |receiver| {
            receiver.failures = receiver.failures.saturating_add(1);
            receiver.concurrency = (receiver.concurrency / 2).max(1);
            receiver.proven = false;
        });
        let Some(receiver) = self.receivers.get(name) else { return Vec::new() };
        let opens = match receiver.circuit {
            CircuitState::Closed => receiver.failures >= self.circuit_failures,
            CircuitState::HalfOpen => true,
            // An attempt that started before the circuit opened does not extend the open period.
            CircuitState::Open(_) => false,
        };
        if !opens {
            return Vec::new();
        }
        let failures = receiver.failures;
        self.set_gate(name, CircuitState::Open(open_until));
        let circuit = Circuit { failures, open_until };
        self.changes.push(CircuitChange::Opened(Arc::clone(name), circuit));
        self.drain(name)
    }

    /// Empties the waiting list of a receiver whose circuit has opened. Returns the deliveries to
    /// park; deliveries that have a parked row already simply stay parked.
    fn drain(&mut self, name: &EndpointName) -> Vec<Item> {
        let mut to_park = Vec::new();
        let mut dropped = Vec::new();
        self.change(name, |receiver| {
            let waiting = std::mem::take(&mut receiver.waiting).into_iter();
            (to_park, dropped) = waiting.partition(|item| item.place == RowIndex::Due);
            for item in &dropped {
                receiver.held_parked -= 1;
                receiver.note_parked(item.due);
            }
        });
        self.forget(&dropped);
        for item in to_park.iter_mut().chain(&mut dropped) {
            self.carried -= usize::from(item.carried.take().is_some());
        }
        to_park
    }

    fn set_gate(&mut self, name: &EndpointName, gate: CircuitState) {
        let Some(receiver) = self.receivers.get_mut(name) else { return };
        let before = std::mem::replace(&mut receiver.circuit, gate);
        self.open_circuits += usize::from(gate != CircuitState::Closed);
        self.open_circuits -= usize::from(before != CircuitState::Closed);
        if let CircuitState::Open(until) = before {
            self.reopening.remove(&(until, Arc::clone(name)));
        }
        if let CircuitState::Open(until) = gate {
            self.reopening.insert((until, Arc::clone(name)));
        }
    }

    /// Changes a receiver, and then moves it to the queue where it belongs.
    fn change(&mut self, name: &EndpointName, change: impl FnOnce(&mut Endpoint)) {
        let ((share, plenty), room) = (self.fair_share(), self.waiting_room());
        let Some(receiver) = self.receivers.get_mut(name) else { return };
        self.active -= usize::from(receiver.is_active());
        self.proven_active -= usize::from(receiver.is_active() && receiver.proven);
        change(receiver);
        self.active += usize::from(receiver.is_active());
        self.proven_active += usize::from(receiver.is_active() && receiver.proven);
        if !receiver.ready && receiver.can_send(share, plenty) {
            receiver.ready = true;
            let queue = if receiver.proven { &mut self.healthy } else { &mut self.unknown };
            queue.push_back(Arc::clone(name));
        }
        if !receiver.hungry && receiver.wants_rows(room) {
            receiver.hungry = true;
            self.wants_refill.push_back(Arc::clone(name));
        }
    }

    /// Ensures that the receiver is in memory; returns `false` if memory has no room.
    fn track(&mut self, name: &EndpointName) -> bool {
        if !self.receivers.contains_key(name) {
            if self.receivers.len() >= ENDPOINTS_MAX {
                self.evict();
            }
            if self.receivers.len() >= ENDPOINTS_MAX {
                return false;
            }
            self.receivers.insert(Arc::clone(name), Endpoint::new(self.slots_per_receiver));
        }
        true
    }

    /// Removes receivers without deliveries. If too many are left, also removes receivers whose
    /// circuit is open; their circuits and rows stay on the disk, where the sweep finds them.
    fn evict(&mut self) {
        let mut closed = Vec::new();
        self.receivers.retain(|name, receiver| {
            if receiver.is_idle() && receiver.circuit == CircuitState::HalfOpen {
                closed.push(Arc::clone(name));
            }
            !receiver.is_idle() || matches!(receiver.circuit, CircuitState::Open(_))
        });
        self.open_circuits -= closed.len();
        self.changes.extend(closed.into_iter().map(CircuitChange::Closed));
        let surplus = self.receivers.len().saturating_sub(ENDPOINTS_MAX / 4 * 3);
        let latest: Vec<_> = self.reopening.iter().rev().take(surplus).cloned().collect();
        for (until, name) in latest {
            if self.receivers.get(&name).is_some_and(|r| !r.is_active() && !r.hungry) {
                self.receivers.remove(&name);
                self.reopening.remove(&(until, name));
                self.open_circuits -= 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
