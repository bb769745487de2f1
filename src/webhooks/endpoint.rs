//! One receiver (scheme, host, port): what waits for it in memory, and what it has earned.
//!
//! Plain bookkeeping for `dispatcher`, which alone changes it.

use std::collections::VecDeque;

use super::dispatcher::{EndpointName, Item};
use crate::domain::time::Timestamp;
use crate::storage::Key;

/// Slots that a receiver begins with.
const INITIAL_CONCURRENCY: usize = 2;
/// Deliveries that may wait in memory for each slot that their receiver has.
const WAITING_PER_CONCURRENCY: usize = 4;
/// Answered deliveries of one receiver whose outcome is on its way to the disk; with more, nothing
/// is sent to it. A crash sends these again.
pub(super) const RECORDING_MAX: usize = 64;

/// The gate of a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CircuitState {
    /// Deliveries go out.
    Closed,
    /// Nothing goes out until then.
    Open(Timestamp),
    /// Open, but its time is over: one probe may go out at a time.
    HalfOpen,
}

/// A page of a receiver's parked rows that is to be read.
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
    /// Deliveries that it answered and whose outcome is not on the disk yet.
    pub(super) recording: usize,
    /// Slots that it has earned.
    pub(super) concurrency: usize,
    /// Whether its last attempt was answered.
    pub(super) proven: bool,
    /// In a row.
    pub(super) failures: u32,
    pub(super) circuit: CircuitState,
    /// The oldest of its rows that are parked on the disk and not in memory; `None` when there is
    /// no such row.
    pub(super) parked: Option<Timestamp>,
    /// The last parked row that was read, where all rows up to it are in memory or gone. The next
    /// page begins behind it: a page from the beginning would pass over all rows that were deleted.
    pub(super) read_up_to: Option<(Timestamp, Key)>,
    /// How many of those in memory have a parked row.
    pub(super) held_parked: usize,
    /// Whether it is in a queue of those that can be sent to.
    pub(super) ready: bool,
    /// Whether it is in the queue of those that want parked rows read, or they are being read.
    pub(super) hungry: bool,
}

impl Endpoint {
    /// A stranger, which may have `most` slots in the end.
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

    /// Notes that rows from [`Endpoint::read_up_to`] on were read, oldest first; `complete` when
    /// there are no others.
    pub(super) fn note_read(&mut self, items: &[Item], complete: bool) {
        let last = items.last().filter(|_| !complete);
        self.parked = last.map(|item| item.due);
        self.read_up_to = last.map(|item| (item.due, item.key()));
    }

    /// Whether memory holds deliveries for it.
    pub(super) fn is_active(&self) -> bool {
        self.in_flight + self.recording > 0 || !self.waiting.is_empty()
    }

    /// Whether nothing is known to wait for it anywhere.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_active() && self.parked.is_none() && !self.ready && !self.hungry
    }

    /// Whether a delivery can start. `share` is its fair share of all slots; it may take more than
    /// that while slots are `plenty`.
    pub(super) fn can_send(&self, share: usize, plenty: bool) -> bool {
        let slots = match self.circuit {
            CircuitState::Closed if plenty => self.concurrency,
            CircuitState::Closed => self.concurrency.min(share),
            CircuitState::HalfOpen => 1,
            CircuitState::Open(_) => 0,
        };
        !self.waiting.is_empty() && self.in_flight < slots && self.recording < RECORDING_MAX
    }

    /// Deliveries that may wait for it in memory.
    pub(super) const fn waiting_limit(&self) -> usize {
        self.concurrency.saturating_mul(WAITING_PER_CONCURRENCY)
    }

    /// Whether parked rows should be read, where `room` is its fair share of the window.
    pub(super) fn wants_rows(&self, room: usize) -> bool {
        self.parked.is_some()
            && match self.circuit {
                CircuitState::Closed => self.waiting.len() * 2 < room.min(self.waiting_limit()),
                CircuitState::HalfOpen => !self.is_active(),
                CircuitState::Open(_) => false,
            }
    }
}
