//! One lane: which executions it holds in memory, and in which state each of them is.
//!
//! A row of the lane is in at most one state. What is in none is on disk alone, and `stored` has its
//! organization.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use super::lines::Lines;
use super::{Load, PAUSED_MAX, SHARE, Ticket, WINDOW};
use crate::domain::ids::{ExecutionId, OrganizationId};

/// The state of an execution that the lane knows in memory.
#[derive(Debug)]
pub(super) enum MemberState<T> {
    /// A commit that adds its row is under way; the row may be visible already.
    Reserved,
    /// It waits in the window.
    Waiting,
    Running(Run<T>),
    /// It has failed and waits for its next try. Its row is still there.
    Paused(Ticket<T>),
}

/// A running execution.
#[derive(Debug)]
pub(super) struct Run<T> {
    /// Dead once the task that runs it has ended, in whichever way.
    task: Weak<()>,
    organization: OrganizationId,
    parking: Parking,
    /// It was put back into this lane before it has left its place.
    requeued: Option<Requeued<T>>,
}

impl<T> Run<T> {
    fn of(task: &Arc<()>, organization: OrganizationId) -> Self {
        let task = Arc::downgrade(task);
        Self { task, organization, parking: Parking::Not, requeued: None }
    }
}

#[derive(Debug)]
enum Requeued<T> {
    Reserved,
    Enqueued(T),
}

/// What a running execution waits for, without a place of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parking {
    /// Nothing: it has its place.
    Not,
    /// Places at models.
    ForModels,
    /// Executions that it has started: it is not counted for its organization either.
    ForOthers,
}

/// How an execution left its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) organization: OrganizationId,
    pub(super) parking: Parking,
}

#[derive(Debug)]
pub(super) struct Lane<T, G> {
    pub(super) cap: usize,
    pub(super) queue_limit: usize,
    /// Whether an organization that runs nothing here may start one above the cap.
    pub(super) may_exceed: bool,
    /// Guests that wait, each under its number.
    pub(super) waiting_steps: Lines<Option<OrganizationId>, (u64, G)>,
    /// Guests that are in.
    pub(super) visiting: usize,
    /// Who came last, where both wait.
    pub(super) guest_was_last: bool,
    members: HashMap<ExecutionId, MemberState<T>>,
    window: Lines<OrganizationId, Ticket<T>>,
    running: usize,
    running_of: HashMap<OrganizationId, usize>,
    paused: usize,
    /// Everything accepted that does not run: announced, in the window, paused, or on the disk.
    queued: usize,
    /// Organizations with rows that are in no state here.
    stored: HashMap<OrganizationId, Stored>,
    /// Those of them of whom nothing waits in the window, in the order in which they are read.
    to_read: VecDeque<OrganizationId>,
    refilling: Option<RefillInProgress>,
    pub(super) in_turn: bool,
    pub(super) in_idle_turn: bool,
}

/// What an organization has on the disk alone.
#[derive(Debug)]
struct Stored {
    /// None of these rows is older.
    from: ExecutionId,
    /// It is in `to_read`, or waits elsewhere until it may run more.
    is_in_turn: bool,
}

/// What happened to a lane while rows of an organization were being read.
#[derive(Debug)]
struct RefillInProgress {
    of: OrganizationId,
    /// Rows that the reading may have seen but that have been deleted.
    deleted: HashSet<ExecutionId>,
}

impl<T, G> Lane<T, G> {
    pub(super) fn new(cap: usize, queue_limit: usize) -> Self {
        Self {
            cap,
            queue_limit,
            may_exceed: false,
            waiting_steps: Lines::default(),
            visiting: 0,
            guest_was_last: false,
            members: HashMap::new(),
            window: Lines::default(),
            running: 0,
            running_of: HashMap::new(),
            paused: 0,
            queued: 0,
            stored: HashMap::new(),
            to_read: VecDeque::new(),
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
        self.next_among(|_| true).is_some()
    }

    /// Whose turn it is among those for whom `may` holds, where the lane has a place for it.
    pub(super) fn next_among(
        &self,
        may: impl Fn(OrganizationId) -> bool,
    ) -> Option<OrganizationId> {
        let is_open = self.paused < PAUSED_MAX && (self.may_exceed || self.has_place());
        let mut waiting = self.window.keys().filter(|_| is_open);
        waiting.find(|one| self.has_place_for(*one) && may(*one))
    }

    /// Whether `is_it` holds for an organization that waits here.
    pub(super) fn has_one(&self, is_it: impl Fn(OrganizationId) -> bool) -> bool {
        self.window.keys().chain(self.to_read.iter().copied()).any(is_it)
    }

    pub(super) fn wants_refill(&self) -> bool {
        self.next_to_read().is_some()
    }

    /// Whose rows are read next, as its place in `to_read`.
    fn next_to_read(&self) -> Option<usize> {
        if !self.may_refill() || !(self.may_exceed || self.has_place()) {
            return None;
        }
        self.to_read.iter().position(|one| self.has_place_for(*one))
    }

    /// Whether rows of the organization could be of use now.
    pub(super) fn may_read(&self, organization: OrganizationId) -> bool {
        self.may_refill() && self.has_place_for(organization)
    }

    fn may_refill(&self) -> bool {
        self.refilling.is_none() && self.paused < PAUSED_MAX
    }

    fn has_place_for(&self, organization: OrganizationId) -> bool {
        self.has_place() || (self.may_exceed && !self.running_of.contains_key(&organization))
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Whether nothing is in the lane, in memory or on the disk.
    pub(super) fn is_unused(&self) -> bool {
        let has_rows = self.queued > 0 || !self.stored.is_empty() || self.refilling.is_some();
        let has_guests = self.visiting > 0 || !self.waiting_steps.is_empty();
        self.members.is_empty() && self.window.is_empty() && !has_rows && !has_guests
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    pub(super) fn has_room(&self, organization: OrganizationId) -> bool {
        let is_stored = self.stored.contains_key(&organization) || self.is_reading(organization);
        !is_stored && (self.window.len() < WINDOW || self.window.len_of(organization) < SHARE)
    }

    /// How many rows of one organization are read at once: however much the others have in the window, each
    /// has its share.
    pub(super) fn room_for_one(&self) -> usize {
        WINDOW.saturating_sub(self.window.len()).max(SHARE)
    }

    fn is_reading(&self, organization: OrganizationId) -> bool {
        self.refilling.as_ref().is_some_and(|one| one.of == organization)
    }

    pub(super) fn knows(&self, id: ExecutionId) -> bool {
        self.members.contains_key(&id)
    }

    pub(super) fn is_requeued(&self, id: ExecutionId) -> bool {
        let member = self.members.get(&id);
        matches!(member, Some(MemberState::Running(run)) if run.requeued.is_some())
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
        self.window.before(|ticket| ticket.id == id).map(|before| before + 1)
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

    /// Puts a counted ticket into the window, or leaves it to the disk.
    fn push_back(&mut self, ticket: Ticket<T>) {
        if self.has_room(ticket.organization) {
            self.put_in_window(ticket);
        } else {
            self.members.remove(&ticket.id);
            self.note_stored(ticket.organization, ticket.id);
        }
    }

    /// In the order of age among those of its organization.
    fn put_in_window(&mut self, ticket: Ticket<T>) {
        let id = ticket.id;
        self.members.insert(id, MemberState::Waiting);
        self.window.insert(ticket.organization, ticket, |held| held.id > id);
    }

    /// Counts rows of an organization that are on the disk alone, none older than `from`.
    pub(super) fn count_stored(
        &mut self,
        organization: OrganizationId,
        from: ExecutionId,
        count: usize,
    ) {
        self.queued += count;
        self.note_stored(organization, from);
    }

    fn note_stored(&mut self, organization: OrganizationId, id: ExecutionId) {
        let stored = Stored { from: id, is_in_turn: false };
        let stored = self.stored.entry(organization).or_insert(stored);
        stored.from = stored.from.min(id);
        self.plan_reading(organization);
    }

    /// An organization of whom nothing is left in the window is to be read, if it has rows behind it.
    fn plan_reading(&mut self, organization: OrganizationId) {
        if self.window.len_of(organization) > 0 || self.is_reading(organization) {
            return;
        }
        if let Some(stored) = self.stored.get_mut(&organization)
            && !std::mem::replace(&mut stored.is_in_turn, true)
        {
            self.to_read.push_back(organization);
        }
    }

    /// An organization that waited elsewhere may run more.
    pub(super) fn read_later(&mut self, organization: OrganizationId) {
        self.to_read.push_back(organization);
    }

    /// Takes the one whose rows are read next out of its turn.
    pub(super) fn take_turn_to_read(&mut self) -> Option<OrganizationId> {
        self.next_to_read().and_then(|at| self.to_read.remove(at))
    }

    /// Begins to read the rows of an organization whose turn it is; gives where they begin.
    pub(super) fn begin_refill(&mut self, organization: OrganizationId) -> Option<ExecutionId> {
        let stored = self.stored.remove(&organization)?;
        self.refilling = Some(RefillInProgress { of: organization, deleted: HashSet::new() });
        Some(stored.from)
    }

    /// Rows of the organization that was read, oldest first, and from where there are more of them.
    pub(super) fn refilled(
        &mut self,
        organization: OrganizationId,
        rows: Vec<Ticket<T>>,
        more_from: Option<ExecutionId>,
    ) {
        let deleted = self.refilling.take().map(|refilling| refilling.deleted).unwrap_or_default();
        for ticket in rows {
            if !self.knows(ticket.id) && !deleted.contains(&ticket.id) {
                self.put_in_window(ticket);
            }
        }
        match more_from {
            Some(id) => self.note_stored(organization, id),
            None => self.plan_reading(organization),
        }
    }

    /// Leaves the tickets of an organization that may run no more to the disk. True: it is
    /// in no turn, and the caller notes it.
    pub(super) fn put_back(&mut self, organization: OrganizationId) -> bool {
        let line = self.window.take(organization);
        let Some(from) = line.iter().map(|ticket| ticket.id).min() else { return false };
        for ticket in line {
            self.members.remove(&ticket.id);
        }
        let stored = Stored { from, is_in_turn: false };
        let stored = self.stored.entry(organization).or_insert(stored);
        stored.from = stored.from.min(from);
        !std::mem::replace(&mut stored.is_in_turn, true)
    }

    // --- through the lane ---

    /// Gives the next one of an organization in the window a place. The handle belongs to the task that runs
    /// it.
    pub(super) fn start(&mut self, organization: OrganizationId) -> Option<(Ticket<T>, Arc<()>)> {
        let ticket = self.window.pop_of(organization)?;
        let task = Arc::new(());
        let run = Run::of(&task, organization);
        self.members.insert(ticket.id, MemberState::Running(run));
        self.count_in(organization);
        self.queued = self.queued.saturating_sub(1);
        self.guest_was_last = false;
        self.plan_reading(organization);
        Some((ticket, task))
    }

    /// Gives a place to one that is in no state here: its row is on the disk.
    pub(super) fn start_quarantined(
        &mut self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Option<Arc<()>> {
        if self.knows(id) {
            return None;
        }
        let task = Arc::new(());
        let run = Run::of(&task, organization);
        self.members.insert(id, MemberState::Running(run));
        self.count_in(organization);
        self.queued = self.queued.saturating_sub(1);
        Some(task)
    }

    fn count_in(&mut self, organization: OrganizationId) {
        self.running += 1;
        *self.running_of.entry(organization).or_default() += 1;
    }

    /// Notes what a running one waits for. Gives what it was before, when that is a change.
    pub(super) fn park(&mut self, id: ExecutionId, parking: Parking) -> Option<Left> {
        let Some(MemberState::Running(run)) = self.members.get_mut(&id) else { return None };
        let before = std::mem::replace(&mut run.parking, parking);
        let organization = run.organization;
        (before != parking).then_some(Left { organization, parking: before })
    }

    /// A running one leaves its place: it has ended, or is elsewhere.
    pub(super) fn release(&mut self, id: ExecutionId) -> Option<Left> {
        let (left, again) = self.leave(id)?;
        let organization = left.organization;
        match again {
            Some(Requeued::Enqueued(payload)) => {
                self.push_back(Ticket { id, organization, payload });
            }
            Some(Requeued::Reserved) => {
                self.members.insert(id, MemberState::Reserved);
            }
            None => self.note_deleted(id),
        }
        Some(left)
    }

    /// A running one leaves its place because it has failed; it stays here, for [`Lane::resume`].
    pub(super) fn pause(&mut self, ticket: Ticket<T>) -> Option<Left> {
        let Ticket { id, organization, .. } = ticket;
        let (left, again) = self.leave(id)?;
        match again {
            // It is in the lane again, with a turn of its own.
            Some(Requeued::Enqueued(payload)) => {
                self.push_back(Ticket { id, organization, payload });
            }
            Some(Requeued::Reserved) => {
                self.members.insert(id, MemberState::Reserved);
            }
            None => {
                self.members.insert(id, MemberState::Paused(ticket));
                self.paused += 1;
                self.queued += 1;
            }
        }
        Some(left)
    }

    fn leave(&mut self, id: ExecutionId) -> Option<(Left, Option<Requeued<T>>)> {
        if !matches!(self.members.get(&id), Some(MemberState::Running(_))) {
            return None;
        }
        let Some(MemberState::Running(run)) = self.members.remove(&id) else { return None };
        self.running = self.running.saturating_sub(1);
        if let Some(count) = self.running_of.get_mut(&run.organization) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.running_of.remove(&run.organization);
            }
        }
        Some((Left { organization: run.organization, parking: run.parking }, run.requeued))
    }

    /// A paused one waits for its turn again, as old as it is.
    pub(super) fn resume(&mut self, id: ExecutionId) {
        if !matches!(self.members.get(&id), Some(MemberState::Paused(_))) {
            return;
        }
        if let Some(MemberState::Paused(ticket)) = self.members.remove(&id) {
            self.paused = self.paused.saturating_sub(1);
            self.put_in_window(ticket);
        }
    }

    /// Its row has been deleted while it waited. A running one is left to its release.
    pub(super) fn forget(&mut self, id: ExecutionId) {
        match self.members.get_mut(&id) {
            None => {}
            Some(MemberState::Waiting) => {
                self.members.remove(&id);
                if let Some(removed) = self.window.remove(|ticket| ticket.id == id) {
                    self.plan_reading(removed.organization);
                }
            }
            Some(MemberState::Paused(_)) => {
                self.members.remove(&id);
                self.paused = self.paused.saturating_sub(1);
            }
            Some(MemberState::Running(run)) => {
                let was_requeued = run.requeued.take().is_some();
                if !was_requeued {
                    return;
                }
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
    pub(super) fn leaked(&self) -> impl Iterator<Item = (OrganizationId, ExecutionId)> {
        self.members.iter().filter_map(|(id, member)| match member {
            MemberState::Running(run) if run.task.strong_count() == 0 => {
                Some((run.organization, *id))
            }
            MemberState::Running(_)
            | MemberState::Reserved
            | MemberState::Waiting
            | MemberState::Paused(_) => None,
        })
    }

    /// Those that hold a place, each with what it waits for.
    pub(super) fn runs(&self) -> impl Iterator<Item = Left> {
        self.members.values().filter_map(|member| match member {
            MemberState::Running(run) => {
                Some(Left { organization: run.organization, parking: run.parking })
            }
            MemberState::Reserved | MemberState::Waiting | MemberState::Paused(_) => None,
        })
    }

    /// How many executions it knows in memory, unless there are rows behind them on disk.
    pub(super) fn complete_len(&self) -> Option<usize> {
        let is_whole = self.stored.is_empty() && self.refilling.is_none();
        is_whole.then_some(self.members.len())
    }
}
