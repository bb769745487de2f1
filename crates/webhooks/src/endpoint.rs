//! One receiver (scheme, host, port): its deliveries in memory, and its concurrency limit.
//!
//! Plain bookkeeping for `dispatcher`, which alone changes it.

use std::collections::VecDeque;

use super::dispatcher::{EndpointName, Item};
use orrery_domain::time::Timestamp;
use orrery_storage::Key;

/// Initial number of slots for a receiver.
const INITIAL_CONCURRENCY: usize = 2;
/// Maximum number of deliveries that wait in memory, per slot of their receiver.
const WAITING_PER_CONCURRENCY: usize = 4;
/// Maximum number of deliveries per receiver that got a response but whose outcome is not on the
/// disk yet. At this limit, nothing more is sent to the receiver. After a crash, these deliveries
/// are sent again.
pub(super) const RECORDING_MAX: usize = 64;

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CircuitState {
    /// Deliveries are sent.
    Closed,
    /// Nothing is sent before this time.
    Open(Timestamp),
    /// The open period has ended: one probe may be sent at a time.
    HalfOpen,
}

/// A page of a receiver's parked rows to read.
#[derive(Debug, Clone)]
pub(super) struct Refill {
    pub(super) receiver: EndpointName,
    pub(super) after: Option<Key>,
    pub(super) limit: usize,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) waiting: VecDeque<Item>,
    /// Number of requests to which the receiver has not responded yet.
    pub(super) in_flight: usize,
    /// Number of deliveries that got a response but whose outcome is not on the disk yet.
    pub(super) recording: usize,
    /// The receiver's current limit on requests in flight.
    pub(super) concurrency: usize,
    /// Whether the receiver responded to its last attempt.
    pub(super) proven: bool,
    /// Number of consecutive failures.
    pub(super) failures: u32,
    pub(super) circuit: CircuitState,
    /// The due time of the receiver's oldest parked row that is not in memory; `None` if there is
    /// no such row.
    pub(super) parked: Option<Timestamp>,
    /// The last parked row that was read; all rows up to this row are in memory or deleted. The
    /// next page starts after this row, because a page from the beginning would scan all deleted
    /// rows again.
    pub(super) read_up_to: Option<(Timestamp, Key)>,
    /// Number of deliveries in memory that have a parked row.
    pub(super) held_parked: usize,
    /// Whether the receiver is in a queue of receivers to which a delivery can be sent.
    pub(super) ready: bool,
    /// Whether the receiver's parked rows are being read, or the receiver is queued for reading its
    /// rows.
    pub(super) hungry: bool,
}

impl Endpoint {
    /// Creates a receiver with at most `most` slots.
    pub(super) fn new(most: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            in_flight: 0,
            recording: 0,
            concurrency: INITIAL_CONCURRENCY.min(most),
            proven: false,
            failures: 0,
            circuit: CircuitState::Closed,
            parked: None,
            read_up_to: None,
            held_parked: 0,
            ready: false,
            hungry: false,
        }
    }

    /// Records that there is a parked row that is not in memory.
    pub(super) fn note_parked(&mut self, due: Timestamp) {
        self.parked = Some(self.parked.map_or(due, |parked| parked.min(due)));
        self.read_up_to.take_if(|(read, _)| due <= *read);
    }

    /// Records that the rows after [`Endpoint::read_up_to`] were read, oldest first. `complete`
    /// means that there are no further rows.
    pub(super) fn note_read(&mut self, items: &[Item], complete: bool) {
        let last = items.last().filter(|_| !complete);
        self.parked = last.map(|item| item.due);
        self.read_up_to = last.map(|item| (item.due, item.key()));
    }

    /// Returns whether there are deliveries for the receiver in memory.
    pub(super) fn is_active(&self) -> bool {
        self.in_flight + self.recording > 0 || !self.waiting.is_empty()
    }

    /// Returns whether no delivery is known to wait for the receiver, either in memory or on the
    /// disk.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_active() && self.parked.is_none() && !self.ready && !self.hungry
    }

    /// Returns whether a delivery can start. `share` is the receiver's fair share of all slots;
    /// while slots are `plenty`, the receiver may exceed it.
    pub(super) fn can_send(&self, share: usize, plenty: bool) -> bool {
        let slots = match self.circuit {
            CircuitState::Closed if plenty => self.concurrency,
            CircuitState::Closed => self.concurrency.min(share),
            CircuitState::HalfOpen => 1,
            CircuitState::Open(_) => 0,
        };
        !self.waiting.is_empty() && self.in_flight < slots && self.recording < RECORDING_MAX
    }

    /// Returns the maximum number of deliveries that may wait for the receiver in memory.
    pub(super) const fn waiting_limit(&self) -> usize {
        self.concurrency.saturating_mul(WAITING_PER_CONCURRENCY)
    }

    /// Returns whether parked rows should be read; `room` is the receiver's fair share of the
    /// window.
    pub(super) fn wants_rows(&self, room: usize) -> bool {
        self.parked.is_some()
            && match self.circuit {
                CircuitState::Closed => self.waiting.len() * 2 < room.min(self.waiting_limit()),
                CircuitState::HalfOpen => !self.is_active(),
                CircuitState::Open(_) => false,
            }
    }
}
