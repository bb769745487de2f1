//! One receiver (scheme, host, port): its deliveries in memory, and its limit of concurrency.
//!
//! Plain bookkeeping for `dispatcher`, which alone changes it.

use std::collections::VecDeque;

use super::dispatcher::{EndpointName, Item};
use orrery_domain::time::Timestamp;
use orrery_storage::Key;

/// Initial slots of a receiver.
const INITIAL_CONCURRENCY: usize = 2;
/// Maximum deliveries that wait in memory for each slot of their receiver.
const WAITING_PER_CONCURRENCY: usize = 4;
/// Maximum answered deliveries of one receiver whose outcome is not on the disk yet; beyond it,
/// nothing is sent to the receiver. A crash sends these again.
pub(super) const RECORDING_MAX: usize = 64;

/// The state of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CircuitState {
    /// Deliveries are sent.
    Closed,
    /// Nothing is sent before this time.
    Open(Timestamp),
    /// Open, but its time is over: one probe may be sent at a time.
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
    /// Requests that it has not answered yet.
    pub(super) in_flight: usize,
    /// Answered deliveries whose outcome is not on the disk yet.
    pub(super) recording: usize,
    /// Its current slots.
    pub(super) concurrency: usize,
    /// Whether its last attempt was answered.
    pub(super) proven: bool,
    /// Consecutive failures.
    pub(super) failures: u32,
    pub(super) circuit: CircuitState,
    /// The due time of its oldest parked row that is not in memory; `None` if there is no such row.
    pub(super) parked: Option<Timestamp>,
    /// The last parked row that was read; all rows up to it are in memory or gone. The next page
    /// begins after it: a page from the beginning would pass over all deleted rows.
    pub(super) read_up_to: Option<(Timestamp, Key)>,
    /// Number of deliveries in memory that have a parked row.
    pub(super) held_parked: usize,
    /// Whether it is in a queue of receivers that can be sent to.
    pub(super) ready: bool,
    /// Whether it is queued for reading parked rows, or they are being read.
    pub(super) hungry: bool,
}

impl Endpoint {
    /// A new receiver, with at most `most` slots.
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

    /// Notes a parked row that is not in memory.
    pub(super) fn note_parked(&mut self, due: Timestamp) {
        self.parked = Some(self.parked.map_or(due, |parked| parked.min(due)));
        self.read_up_to.take_if(|(read, _)| due <= *read);
    }

    /// Notes that rows after [`Endpoint::read_up_to`] were read, oldest first; `complete` if there
    /// are no others.
    pub(super) fn note_read(&mut self, items: &[Item], complete: bool) {
        let last = items.last().filter(|_| !complete);
        self.parked = last.map(|item| item.due);
        self.read_up_to = last.map(|item| (item.due, item.key()));
    }

    /// Whether memory holds deliveries for it.
    pub(super) fn is_active(&self) -> bool {
        self.in_flight + self.recording > 0 || !self.waiting.is_empty()
    }

    /// Whether no delivery is known to wait for it anywhere.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_active() && self.parked.is_none() && !self.ready && !self.hungry
    }

    /// Whether a delivery can start. `share` is its fair share of all slots; it may exceed that
    /// while slots are `plenty`.
    pub(super) fn can_send(&self, share: usize, plenty: bool) -> bool {
        let slots = match self.circuit {
            CircuitState::Closed if plenty => self.concurrency,
            CircuitState::Closed => self.concurrency.min(share),
            CircuitState::HalfOpen => 1,
            CircuitState::Open(_) => 0,
        };
        !self.waiting.is_empty() && self.in_flight < slots && self.recording < RECORDING_MAX
    }

    /// Maximum deliveries that may wait for it in memory.
    pub(super) const fn waiting_limit(&self) -> usize {
        self.concurrency.saturating_mul(WAITING_PER_CONCURRENCY)
    }

    /// Whether parked rows should be read; `room` is its fair share of the window.
    pub(super) fn wants_rows(&self, room: usize) -> bool {
        self.parked.is_some()
            && match self.circuit {
                CircuitState::Closed => self.waiting.len() * 2 < room.min(self.waiting_limit()),
                CircuitState::HalfOpen => !self.is_active(),
                CircuitState::Open(_) => false,
            }
    }
}
