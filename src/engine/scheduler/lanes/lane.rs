//! One lane: which executions it holds in memory, and in which state each of them is.
//!
//! A row of the lane is in at most one state. What is in none is on disk behind the window.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use super::{Load, PAUSED_MAX, Ticket, WINDOW};
use crate::domain::ids::ExecutionId;

/// The state of an execution that the lane knows in memory.
#[derive(Debug)]
pub(super) enum MemberState<T> {
    /// A commit that adds its row is under way; the row may be visible already.
    Reserved,
    /// It waits in the window.
    Waiting,
    Running(Run<T>),
    /// It has failed and waits for its next try. Its row is still there.
    Paused(T),
}

/// A running execution.
#[derive(Debug)]
pub(super) struct Run<T> {
    /// Dead once the task that runs it has ended, in whichever way.
    task: Weak<()>,
    /// It only waits for a place at a model.
    is_parked: bool,
    /// It was put back into this lane before it has left its place.
    requeued: Option<Requeued<T>>,
}

#[derive(Debug)]
enum Requeued<T> {
    Reserved,
    Enqueued(T),
}

/// How an execution left its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    Active,
    Parked,
    /// It had none.
    Not,
}

#[derive(Debug)]
pub(super) struct Lane<T, G> {
    pub(super) cap: usize,
    pub(super) queue_limit: usize,
    /// Guests that wait, each under its number.
    pub(super) waiting_steps: VecDeque<(u64, G)>,
    /// Guests that are in.
    pub(super) visiting: usize,
    /// Who came last, where both wait.
    pub(super) guest_was_last: bool,
    members: HashMap<ExecutionId, MemberState<T>>,
    window: VecDeque<Ticket<T>>,
    running: usize,
    paused: usize,
    /// Everything accepted that does not run: announced, in the window, paused, or on the disk.
    queued: usize,
    /// Rows may be on disk behind the window; new ones go there too, to keep the order.
    spilled: bool,
    refilling: Option<RefillInProgress>,
    pub(super) in_turn: bool,
    pub(super) in_idle_turn: bool,
}

/// What happened to a lane while its head was being read.
#[derive(Debug, Default)]
struct RefillInProgress {
    /// A row was written that the reading may have missed.
    missed: bool,
    /// Rows that the reading may have seen but that have been deleted.
    deleted: HashSet<ExecutionId>,
}

impl<T, G> Lane<T, G> {
    pub(super) fn new(cap: usize, queue_limit: usize) -> Self {
        Self {
            cap,
            queue_limit,
            waiting_steps: VecDeque::new(),
            visiting: 0,
            guest_was_last: false,
            members: HashMap::new(),
            window: VecDeque::new(),
            running: 0,
            paused: 0,
            queued: 0,
            spilled: false,
            refilling: None,
            in_turn: false,
            in_idle_turn: false,
        }
    }

    // --- what it could do ---

    pub(super) fn has_place(&self) -> bool {
        self.running + self.visiting < self.cap
    }

    pub(super) fn can_start(&self) -> bool {
        !self.window.is_empty() && self.has_place() && self.paused < PAUSED_MAX
    }

    pub(super) fn wants_refill(&self) -> bool {
        let is_dry = self.window.is_empty() && self.spilled && self.refilling.is_none();
        is_dry && self.has_place() && self.paused < PAUSED_MAX
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Whether nothing is in the lane, in memory or on the disk.
    pub(super) fn is_unused(&self) -> bool {
        let has_rows = self.queued > 0 || self.spilled || self.refilling.is_some();
        let has_guests = self.visiting > 0 || !self.waiting_steps.is_empty();
        self.members.is_empty() && self.window.is_empty() && !has_rows && !has_guests
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        !self.spilled && self.window.len() < WINDOW
    }

    pub(super) fn knows(&self, id: ExecutionId) -> bool {
        self.members.contains_key(&id)
    }

    pub(super) fn load(&self) -> Load {
        Load {
            running: self.running + self.visiting,
            queued: self.queued + self.waiting_steps.len(),
            cap: self.cap,
        }
    }

    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn position(&self, id: ExecutionId) -> Option<usize> {
        self.window.iter().position(|ticket| ticket.id == id).map(|index| index + 1)
    }

    // --- into the lane ---

    /// A commit is about to add the execution's row.
    pub(super) fn reserve(&mut self, id: ExecutionId) {
        match self.members.get_mut(&id) {
            None => {
                self.members.insert(id, MemberState::Reserved);
            }
            Some(MemberState::Running(run)) if run.requeued.is_none() => {
                run.requeued = Some(Requeued::Reserved)
            }
            // It is in the lane already: one row, one count.
            Some(
                MemberState::Reserved
                | MemberState::Waiting
                | MemberState::Paused(_)
                | MemberState::Running(_),
            ) => {
                return;
            }
        }
        self.queued += 1;
    }

    /// The announced commit has failed.
    pub(super) fn cancel_reservation(&mut self, id: ExecutionId) {
        match self.members.get_mut(&id) {
            Some(MemberState::Reserved) => {
                self.members.remove(&id);
            }
            Some(MemberState::Running(run)) if matches!(run.requeued, Some(Requeued::Reserved)) => {
                run.requeued = None;
            }
            None
            | Some(MemberState::Waiting | MemberState::Paused(_) | MemberState::Running(_)) => {
                return;
            }
        }
        self.queued = self.queued.saturating_sub(1);
    }

    /// The announced row is durable.
    pub(super) fn enqueue(&mut self, ticket: Ticket<T>) {
        match self.members.get_mut(&ticket.id) {
            Some(MemberState::Reserved) => {}
            Some(MemberState::Running(run)) if matches!(run.requeued, Some(Requeued::Reserved)) => {
                run.requeued = Some(Requeued::Enqueued(ticket.payload));
                return;
            }
            Some(MemberState::Waiting | MemberState::Paused(_) | MemberState::Running(_)) => return,
            None => self.queued += 1,
        }
        self.push_back(ticket);
    }

    /// Puts a counted ticket at the end of the window, or leaves it to the disk.
    fn push_back(&mut self, ticket: Ticket<T>) {
        if let Some(refilling) = &mut self.refilling {
            refilling.missed = true;
        }
        if self.has_room() {
            self.members.insert(ticket.id, MemberState::Waiting);
            self.window.push_back(ticket);
        } else {
            self.members.remove(&ticket.id);
            self.spilled = true;
        }
    }

    /// Rows that a start has found on the disk.
    pub(super) fn count_stored(&mut self, count: usize) {
        self.queued += count;
        self.mark_rows_on_disk();
    }

    /// There may be rows on the disk that no state covers.
    pub(super) fn mark_rows_on_disk(&mut self) {
        self.spilled = true;
        if let Some(refilling) = &mut self.refilling {
            refilling.missed = true;
        }
    }

    pub(super) fn begin_refill(&mut self) {
        self.refilling = Some(RefillInProgress::default());
    }

    /// The rows at the head, oldest first. `complete`: no row stood behind them.
    pub(super) fn refilled(&mut self, rows: Vec<Ticket<T>>, complete: bool) {
        let refilling = self.refilling.take().unwrap_or_default();
        let mut is_left_out = false;
        for ticket in rows {
            if self.knows(ticket.id) || refilling.deleted.contains(&ticket.id) {
                continue;
            }
            if self.window.len() < WINDOW {
                self.members.insert(ticket.id, MemberState::Waiting);
                self.window.push_back(ticket);
            } else {
                is_left_out = true;
            }
        }
        self.spilled = !complete || refilling.missed || is_left_out;
    }

    // --- through the lane ---

    /// Gives the head of the window a place. The handle belongs to the task that runs it.
    pub(super) fn start(&mut self) -> Option<(Ticket<T>, Arc<()>)> {
        let ticket = self.window.pop_front()?;
        let task = Arc::new(());
        let run = Run { task: Arc::downgrade(&task), is_parked: false, requeued: None };
        self.members.insert(ticket.id, MemberState::Running(run));
        self.running += 1;
        self.queued = self.queued.saturating_sub(1);
        self.guest_was_last = false;
        Some((ticket, task))
    }

    /// Gives a place to one that is in no state here: its row is on the disk.
    pub(super) fn start_quarantined(&mut self, id: ExecutionId) -> Option<Arc<()>> {
        if self.knows(id) {
            return None;
        }
        let task = Arc::new(());
        let run = Run { task: Arc::downgrade(&task), is_parked: false, requeued: None };
        self.members.insert(id, MemberState::Running(run));
        self.running += 1;
        self.queued = self.queued.saturating_sub(1);
        Some(task)
    }

    /// Notes whether a running one only waits for a model. True when that is a change.
    pub(super) fn park(&mut self, id: ExecutionId, is_parked: bool) -> bool {
        let Some(MemberState::Running(run)) = self.members.get_mut(&id) else { return false };
        std::mem::replace(&mut run.is_parked, is_parked) != is_parked
    }

    /// A running one leaves its place: it has ended, or is elsewhere.
    pub(super) fn release(&mut self, id: ExecutionId) -> Departure {
        let Some((left, again)) = self.leave(id) else { return Departure::Not };
        match again {
            Some(Requeued::Enqueued(payload)) => self.push_back(Ticket { id, payload }),
            Some(Requeued::Reserved) => {
                self.members.insert(id, MemberState::Reserved);
            }
            None => self.note_deleted(id),
        }
        left
    }

    /// A running one leaves its place because it has failed; it stays here, for [`Lane::resume`].
    pub(super) fn pause(&mut self, id: ExecutionId, payload: T) -> Departure {
        let Some((left, again)) = self.leave(id) else { return Departure::Not };
        match again {
            // It is in the lane again, with a turn of its own.
            Some(Requeued::Enqueued(payload)) => self.push_back(Ticket { id, payload }),
            Some(Requeued::Reserved) => {
                self.members.insert(id, MemberState::Reserved);
            }
            None => {
                self.members.insert(id, MemberState::Paused(payload));
                self.paused += 1;
                self.queued += 1;
            }
        }
        left
    }

    fn leave(&mut self, id: ExecutionId) -> Option<(Departure, Option<Requeued<T>>)> {
        if !matches!(self.members.get(&id), Some(MemberState::Running(_))) {
            return None;
        }
        let Some(MemberState::Running(run)) = self.members.remove(&id) else { return None };
        self.running = self.running.saturating_sub(1);
        Some((if run.is_parked { Departure::Parked } else { Departure::Active }, run.requeued))
    }

    /// A paused one waits for its turn again, before all others.
    pub(super) fn resume(&mut self, id: ExecutionId) {
        if !matches!(self.members.get(&id), Some(MemberState::Paused(_))) {
            return;
        }
        if let Some(MemberState::Paused(payload)) = self.members.insert(id, MemberState::Waiting) {
            self.paused = self.paused.saturating_sub(1);
            self.window.push_front(Ticket { id, payload });
        }
    }

    /// Its row has been deleted while it waited. A running one is left to its release.
    pub(super) fn forget(&mut self, id: ExecutionId) {
        match self.members.get_mut(&id) {
            None => {}
            Some(MemberState::Waiting) => {
                self.members.remove(&id);
                self.window.retain(|ticket| ticket.id != id);
            }
            Some(MemberState::Paused(_)) => {
                self.members.remove(&id);
                self.paused = self.paused.saturating_sub(1);
            }
            Some(MemberState::Running(run)) => {
                let Some(_row) = run.requeued.take() else { return };
            }
            Some(MemberState::Reserved) => return,
        }
        self.queued = self.queued.saturating_sub(1);
        self.note_deleted(id);
    }

    fn note_deleted(&mut self, id: ExecutionId) {
        if let Some(refilling) = &mut self.refilling {
            refilling.deleted.insert(id);
        }
    }

    // --- for the audit ---

    /// Running ones whose task has ended without leaving the place.
    pub(super) fn leaked(&self) -> Vec<ExecutionId> {
        let is_leaked = |member: &MemberState<T>| match member {
            MemberState::Running(run) => run.task.strong_count() == 0,
            MemberState::Reserved | MemberState::Waiting | MemberState::Paused(_) => false,
        };
        self.members.iter().filter(|(_, member)| is_leaked(member)).map(|(id, _)| *id).collect()
    }

    /// How many hold a place, and how many of them are parked, counted again.
    pub(super) fn count_running(&self) -> (usize, usize) {
        let runs = self.members.values().filter_map(|member| match member {
            MemberState::Running(run) => Some(usize::from(run.is_parked)),
            MemberState::Reserved | MemberState::Waiting | MemberState::Paused(_) => None,
        });
        runs.fold((0, 0), |(running, parked), is_parked| (running + 1, parked + is_parked))
    }

    /// How many executions it knows in memory, unless there are rows behind them on disk.
    pub(super) fn complete_len(&self) -> Option<usize> {
        (!self.spilled && self.refilling.is_none()).then_some(self.members.len())
    }
}
