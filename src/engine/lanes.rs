//! Lanes: who runs next.
//!
//! Each model and each workflow has a lane of its own, first in, first out, with its own cap of
//! running executions; places are given to the lanes in turn. The rows of a lane stand on the disk;
//! here is only a window on its head, so that a backlog of a million takes no memory.
//!
//! The steps of running workflows come to a model's lane as guests: they share its cap with the
//! lane's own executions, in turn with them, and are not counted against the running executions,
//! since theirs has its place already.
//!
//! No I/O and no waiting: [`Lanes::next`] says what to do, its caller does it. A lane whose window
//! has run dry while rows stand behind it asks for a refill.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::domain::ids::ExecutionId;

/// How many executions of a lane wait in memory; the others wait on the disk.
pub const WINDOW: usize = 256;

/// An execution that waits for its turn. `T` is what its taker needs.
#[derive(Debug)]
pub struct Ticket<T> {
    pub id: ExecutionId,
    pub payload: T,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Next<T, G> {
    /// Let this guest in; its lane has counted it.
    Admit { lane: Arc<str>, guest: G },
    /// Start this one; its lane has counted it as running.
    Start { lane: Arc<str>, ticket: Ticket<T> },
    /// Read the head of this lane from the disk and hand it to [`Lanes::refilled`].
    Refill { lane: Arc<str> },
}

/// How a lane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub running: usize,
    pub queued: usize,
    pub cap: usize,
}

/// The lane is full; nothing was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the queue holds {queued} and takes no more")]
pub struct Full {
    pub queued: usize,
}

#[derive(Debug)]
struct Lane<T, G> {
    cap: usize,
    /// Guests that wait, each under its number.
    guests: VecDeque<(u64, G)>,
    /// Guests that are in.
    visiting: usize,
    /// Who came last, where both wait.
    guest_was_last: bool,
    queue_limit: usize,
    running: HashSet<ExecutionId>,
    /// Tickets of running ones: they were put aside and woken before they had left their place.
    returning: Vec<Ticket<T>>,
    window: VecDeque<Ticket<T>>,
    /// Everything accepted that does not run: in the window, on the disk, or being committed.
    queued: usize,
    /// Rows may stand on the disk behind the window; new ones go there too, to keep the order.
    spilled: bool,
    refilling: Option<Refilling>,
    in_turn: bool,
}

/// What happened to a lane while its head was being read.
#[derive(Debug, Default)]
struct Refilling {
    /// A row was written that the reading may have missed.
    missed: bool,
    /// Rows that the reading may have seen but that are gone.
    gone: HashSet<ExecutionId>,
}

/// All lanes, and the turn among those that have work.
#[derive(Debug)]
pub struct Lanes<T, G> {
    lanes: HashMap<Arc<str>, Lane<T, G>>,
    turn: VecDeque<Arc<str>>,
    /// Lanes that may have room for a guest.
    guest_turn: VecDeque<Arc<str>>,
    last_guest: u64,
    active: usize,
    active_cap: usize,
    /// Nothing is started, though guests are let in.
    is_held: bool,
}

impl<T, G> Lanes<T, G> {
    /// No lanes yet; at most `active_cap` executions run at once over all of them.
    #[must_use]
    pub fn new(active_cap: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            turn: VecDeque::new(),
            guest_turn: VecDeque::new(),
            last_guest: 0,
            active: 0,
            active_cap: active_cap.max(1),
            is_held: false,
        }
    }

    /// Starts nothing until it is called again with `false`. Guests are still let in.
    pub fn hold_starts(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether nothing is started now.
    #[must_use]
    pub fn holds_starts(&self) -> bool {
        self.is_held
    }

    /// Counts one that waits outside of the window as running: its caller starts it.
    pub fn start_held(&mut self, name: &str, id: ExecutionId) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        lane.queued = lane.queued.saturating_sub(1);
        if lane.running.insert(id) {
            self.active += 1;
        }
    }

    /// Makes the lane or changes its limits; running ones above a lowered cap run on.
    pub fn set_limits(&mut self, name: &str, cap: usize, queue_limit: usize) {
        let lane = self.lanes.entry(Arc::from(name)).or_insert_with(|| Lane {
            cap,
            guests: VecDeque::new(),
            visiting: 0,
            guest_was_last: false,
            queue_limit,
            running: HashSet::new(),
            returning: Vec::new(),
            window: VecDeque::new(),
            queued: 0,
            spilled: false,
            refilling: None,
            in_turn: false,
        });
        lane.cap = cap.max(1);
        lane.queue_limit = queue_limit;
        self.call_guests(name);
        self.give_turn(name);
    }

    /// Counts one more into the lane before it is committed, so that the limit holds under
    /// concurrency. Each reservation ends in [`Lanes::push`] or [`Lanes::unreserve`].
    ///
    /// # Errors
    /// [`Full`] when the lane holds its limit.
    pub fn reserve(&mut self, name: &str) -> Result<(), Full> {
        let Some(lane) = self.lanes.get_mut(name) else { return Ok(()) };
        if lane.queued >= lane.queue_limit {
            return Err(Full { queued: lane.queued });
        }
        lane.queued += 1;
        Ok(())
    }

    /// Counts one more in whatever the limit says: work that was accepted before (a fallback, a
    /// recovery) is never refused.
    pub fn admit(&mut self, name: &str, count: usize) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.queued += count;
        }
    }

    /// Gives a reservation back: its commit failed.
    pub fn unreserve(&mut self, name: &str) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.queued = lane.queued.saturating_sub(1);
        }
    }

    /// Notes rows on the disk that are not in the window: what a start finds.
    pub fn spill(&mut self, name: &str) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.spilled = true;
        }
        self.give_turn(name);
    }

    /// A counted execution is on the disk: it waits at the end of its lane.
    pub fn push(&mut self, name: &str, ticket: Ticket<T>) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        if lane.running.contains(&ticket.id) {
            lane.returning.push(ticket);
            return;
        }
        if let Some(refilling) = &mut lane.refilling {
            refilling.missed = true;
        }
        if lane.spilled || lane.window.len() >= WINDOW {
            lane.spilled = true;
        } else {
            lane.window.push_back(ticket);
        }
        self.give_turn(name);
    }

    /// Whether a ticket pushed now would wait in memory; decides whether to keep its state too.
    #[must_use]
    pub fn has_room(&self, name: &str) -> bool {
        self.lanes.get(name).is_some_and(|lane| !lane.spilled && lane.window.len() < WINDOW)
    }

    /// What to do next; `None` when nothing can start before something ends.
    pub fn next(&mut self) -> Option<Next<T, G>> {
        if let Some(admit) = self.next_guest() {
            return Some(admit);
        }
        while let Some(name) = self.turn.pop_front() {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            lane.in_turn = false;
            if lane.wants_refill() {
                lane.refilling = Some(Refilling::default());
                return Some(Next::Refill { lane: name });
            }
            if !lane.can_start() {
                continue;
            }
            if self.is_held || self.active >= self.active_cap {
                lane.in_turn = true;
                self.turn.push_front(name);
                return None;
            }
            let Some(ticket) = lane.window.pop_front() else { continue };
            lane.queued = lane.queued.saturating_sub(1);
            lane.running.insert(ticket.id);
            lane.guest_was_last = false;
            self.active += 1;
            self.call_guests(&name);
            self.give_turn(&name);
            return Some(Next::Start { lane: name, ticket });
        }
        None
    }

    /// The next guest whose lane has room, unless it is the turn of the lane's own.
    fn next_guest(&mut self) -> Option<Next<T, G>> {
        while let Some(name) = self.guest_turn.pop_front() {
            let may_start = !self.is_held && self.active < self.active_cap;
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            if !lane.has_place() || (lane.guest_was_last && may_start && !lane.window.is_empty()) {
                continue;
            }
            let Some((_, guest)) = lane.guests.pop_front() else { continue };
            lane.visiting += 1;
            lane.guest_was_last = true;
            self.call_guests(&name);
            return Some(Next::Admit { lane: name, guest });
        }
        None
    }

    /// Lets a guest in at once, when there is a place and nobody waits for it. True: it is in.
    pub fn enter(&mut self, name: &str) -> bool {
        let Some(lane) = self.lanes.get_mut(name) else { return false };
        let is_free = lane.has_place() && lane.guests.is_empty() && lane.window.is_empty();
        if is_free {
            lane.visiting += 1;
        }
        is_free
    }

    /// Puts a guest at the end of those that wait; its number takes it back.
    pub fn ask(&mut self, name: &str, guest: G) -> u64 {
        self.last_guest += 1;
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.guests.push_back((self.last_guest, guest));
        }
        self.call_guests(name);
        self.last_guest
    }

    /// A guest waits no more.
    pub fn withdraw(&mut self, name: &str, number: u64) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.guests.retain(|(held, _)| *held != number);
        }
    }

    /// A guest has gone.
    pub fn leave(&mut self, name: &str) {
        if let Some(lane) = self.lanes.get_mut(name) {
            lane.visiting = lane.visiting.saturating_sub(1);
        }
        self.call_guests(name);
        self.give_turn(name);
    }

    /// The rows at the lane's head, oldest first. `complete` says that no row stood behind them.
    pub fn refilled(&mut self, name: &str, rows: Vec<Ticket<T>>, complete: bool) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        let refilling = lane.refilling.take().unwrap_or_default();
        for ticket in rows {
            let known = lane.running.contains(&ticket.id) || refilling.gone.contains(&ticket.id);
            if !known && lane.window.len() < WINDOW {
                lane.window.push_back(ticket);
            }
        }
        lane.spilled = !complete || refilling.missed;
        self.give_turn(name);
    }

    /// A running one has left its place.
    pub fn release(&mut self, name: &str, id: ExecutionId) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        if lane.running.remove(&id) {
            self.active = self.active.saturating_sub(1);
            let returns = lane.returning.iter().position(|ticket| ticket.id == id);
            if let Some(returning) = returns.map(|index| lane.returning.swap_remove(index)) {
                self.push(name, returning);
            } else if let Some(refilling) = &mut lane.refilling {
                refilling.gone.insert(id);
            }
        }
        self.call_guests(name);
        self.give_turn(name);
    }

    /// One that waited is gone from the disk (cancelled). One that runs is left to its release.
    pub fn forget(&mut self, name: &str, id: ExecutionId) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        let returns = lane.returning.iter().position(|ticket| ticket.id == id);
        if let Some(index) = returns {
            lane.returning.swap_remove(index);
        } else if lane.running.contains(&id) {
            return;
        }
        lane.queued = lane.queued.saturating_sub(1);
        lane.window.retain(|ticket| ticket.id != id);
        if let Some(refilling) = &mut lane.refilling {
            refilling.gone.insert(id);
        }
        self.call_guests(name);
    }

    /// How the lane stands.
    #[must_use]
    pub fn load(&self, name: &str) -> Load {
        self.lanes.get(name).map_or_else(Load::default, |lane| Load {
            running: lane.running.len() + lane.visiting,
            queued: lane.queued + lane.guests.len(),
            cap: lane.cap,
        })
    }

    /// How many run and how many wait, over all lanes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        (self.active, self.lanes.values().map(|lane| lane.queued).sum())
    }

    /// The place of a waiting execution, from 1; `None` when it waits behind the window.
    #[must_use]
    pub fn position(&self, name: &str, id: ExecutionId) -> Option<usize> {
        let lane = self.lanes.get(name)?;
        lane.window.iter().position(|ticket| ticket.id == id).map(|index| index + 1)
    }

    /// Every lane's name.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        self.lanes.keys().cloned().collect()
    }

    /// The running ones of a lane: rows of them stand on the disk until they end.
    #[must_use]
    pub fn running(&self, name: &str) -> usize {
        self.lanes.get(name).map_or(0, |lane| lane.running.len())
    }

    /// Looks at the lane's guests with the next turn, if one of them may come in.
    fn call_guests(&mut self, name: &str) {
        let Some((name, lane)) = self.lanes.get_key_value(name) else { return };
        if !lane.guests.is_empty() && lane.has_place() {
            self.guest_turn.push_back(Arc::clone(name));
        }
    }

    /// Puts the lane at the end of the turn, if it has something to do and does not stand there.
    fn give_turn(&mut self, name: &str) {
        let Some((name, lane)) = self.lanes.get_key_value(name) else { return };
        if lane.in_turn || !(lane.can_start() || lane.wants_refill()) {
            return;
        }
        let name = Arc::clone(name);
        if let Some(lane) = self.lanes.get_mut(&name) {
            lane.in_turn = true;
        }
        self.turn.push_back(name);
    }
}

impl<T, G> Lane<T, G> {
    fn has_place(&self) -> bool {
        self.running.len() + self.visiting < self.cap
    }

    fn can_start(&self) -> bool {
        !self.window.is_empty() && self.has_place()
    }

    fn wants_refill(&self) -> bool {
        self.window.is_empty() && self.spilled && self.refilling.is_none() && self.has_place()
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
