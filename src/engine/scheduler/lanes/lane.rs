//! One lane: which executions it holds in memory, and in which state each of them is.
//!
//! A row of the lane is in at most one state. What is in none is on disk: behind the window, or, of an
//! organization that may run no more at the moment, passed over.

use std::collections::{HashMap, HashSet};
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
    /// Rows may be on disk behind the window; new ones go there too, to keep the order.
    spilled: bool,
    /// Whose rows these are; `None`: it is not known.
    stored: Option<HashSet<OrganizationId>>,
    /// Organizations with rows that were passed over, each with the oldest of them: all of them are on
    /// disk and in no state here.
    passed: HashMap<OrganizationId, ExecutionId>,
    /// Those of them that are not noted as waiting here.
    pub(super) newly_passed: Vec<OrganizationId>,
    refilling: Option<RefillInProgress>,
    pub(super) in_turn: bool,
    pub(super) in_idle_turn: bool,
}

/// What happened to a lane while its head was being read.
#[derive(Debug, Default)]
struct RefillInProgress {
    /// Whose rows are being read, when it is not the lane's head.
    of: Option<OrganizationId>,
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
            spilled: false,
            stored: Some(HashSet::new()),
            passed: HashMap::new(),
            newly_passed: Vec::new(),
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
        self.next_organization().is_some() && self.paused < PAUSED_MAX
    }

    /// Whose turn it is, where a place is free for it.
    pub(super) fn next_organization(&self) -> Option<OrganizationId> {
        let mut waiting = self.window.keys();
        match (self.has_place(), self.may_exceed) {
            (true, _) => waiting.next(),
            (false, true) => waiting.find(|one| !self.running_of.contains_key(one)),
            (false, false) => None,
        }
    }

    pub(super) fn wants_refill(&self) -> bool {
        let is_dry = self.spilled && self.refilling.is_none() && !self.has_stored_in_window();
        is_dry && self.window.len() < WINDOW && self.has_place() && self.paused < PAUSED_MAX
    }

    /// Whether the window has any of those who have rows behind it.
    fn has_stored_in_window(&self) -> bool {
        self.window.keys().any(|one| self.is_stored(one))
    }

    /// Whether the organization may have rows behind the window.
    fn is_stored(&self, organization: OrganizationId) -> bool {
        self.spilled && self.stored.as_ref().is_none_or(|stored| stored.contains(&organization))
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

    pub(super) fn has_room(&self, organization: OrganizationId) -> bool {
        !self.is_stored(organization) && self.fits(organization)
    }

    /// However much the others have in the window, each has its share.
    fn fits(&self, organization: OrganizationId) -> bool {
        self.window.len() < WINDOW || self.window.len_of(organization) < SHARE
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

    /// Puts a counted ticket at the end of the window, or leaves it to the disk.
    fn push_back(&mut self, ticket: Ticket<T>) {
        if let Some(refilling) = &mut self.refilling {
            refilling.missed = true;
        }
        let organization = ticket.organization;
        let is_behind_passed = self.passed.contains_key(&organization)
            || self.refilling.as_ref().is_some_and(|one| one.of == Some(organization));
        if is_behind_passed {
            self.members.remove(&ticket.id);
            self.note_passed(organization, ticket.id);
        } else if self.has_room(organization) {
            self.members.insert(ticket.id, MemberState::Waiting);
            self.window.push_back(organization, ticket);
        } else if self.spilled && !self.is_stored(organization) {
            // Not behind the rows of others.
            self.members.remove(&ticket.id);
            if self.note_passed(organization, ticket.id) {
                self.newly_passed.push(organization);
            }
        } else {
            self.members.remove(&ticket.id);
            self.spilled = true;
            if let Some(stored) = &mut self.stored {
                stored.insert(organization);
            }
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
        self.stored = None;
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
            if self.fits(ticket.organization) {
                self.members.insert(ticket.id, MemberState::Waiting);
                self.window.push_back(ticket.organization, ticket);
            } else {
                is_left_out = true;
            }
        }
        self.spilled = !complete || refilling.missed || is_left_out;
        if !self.spilled {
            self.stored = Some(HashSet::new());
        }
    }

    // --- past those that may not start ---

    /// Leaves the first ticket of an organization to the disk. True: it had nothing passed over here.
    pub(super) fn pass_first_of(&mut self, organization: OrganizationId) -> bool {
        let Some(ticket) = self.window.pop_of(organization) else { return false };
        self.members.remove(&ticket.id);
        self.pass(organization, ticket.id)
    }

    /// Passes over a row of an organization. True: it had none passed over here.
    pub(super) fn pass(&mut self, organization: OrganizationId, id: ExecutionId) -> bool {
        let is_read = self.refilling.as_ref().is_some_and(|one| one.of == Some(organization));
        self.note_passed(organization, id) && !is_read
    }

    fn note_passed(&mut self, organization: OrganizationId, id: ExecutionId) -> bool {
        let before = self.passed.get(&organization).copied();
        let oldest = before.map_or(id, |before| before.min(id));
        self.passed.insert(organization, oldest);
        before.is_none()
    }

    pub(super) fn has_passed(&self, organization: OrganizationId) -> bool {
        self.passed.contains_key(&organization)
    }

    /// Organizations with rows that were passed over.
    pub(super) fn passed(&self) -> Vec<OrganizationId> {
        self.passed.keys().copied().collect()
    }

    /// Whether rows of the organization that were passed over could be of use now.
    pub(super) fn wants_passed(&self, organization: OrganizationId) -> bool {
        self.passed.contains_key(&organization)
            && self.refilling.is_none()
            && self.has_place()
            && self.paused < PAUSED_MAX
            && !self.has_in_window(organization)
    }

    /// Whether one of the organization waits in the window.
    pub(super) fn has_in_window(&self, organization: OrganizationId) -> bool {
        self.window.len_of(organization) > 0
    }

    /// Begins to read what was passed over of an organization; gives the oldest row of it.
    pub(super) fn begin_refill_of(&mut self, organization: OrganizationId) -> Option<ExecutionId> {
        let from = self.passed.remove(&organization)?;
        self.refilling = Some(RefillInProgress { of: Some(organization), ..Default::default() });
        Some(from)
    }

    /// Rows of the organization, oldest first, and the row from which there may be more of them.
    /// True: something of it is passed over still.
    pub(super) fn refilled_of(
        &mut self,
        organization: OrganizationId,
        rows: Vec<Ticket<T>>,
        more_from: Option<ExecutionId>,
    ) -> bool {
        let refilling = self.refilling.take().unwrap_or_default();
        for ticket in rows {
            if self.knows(ticket.id) || refilling.deleted.contains(&ticket.id) {
                continue;
            }
            if !self.fits(organization) {
                self.note_passed(organization, ticket.id);
                continue;
            }
            self.members.insert(ticket.id, MemberState::Waiting);
            // They are older than what came since.
            let id = ticket.id;
            self.window.insert(organization, ticket, |held| held.id > id);
        }
        if let Some(id) = more_from {
            self.note_passed(organization, id);
        }
        self.has_passed(organization)
    }

    // --- through the lane ---

    /// Gives the next one of the window a place. The handle belongs to the task that runs it.
    pub(super) fn start(&mut self) -> Option<(Ticket<T>, Arc<()>)> {
        let organization = self.next_organization()?;
        let ticket = self.window.pop_of(organization)?;
        let task = Arc::new(());
        let run = Run::of(&task, organization);
        self.members.insert(ticket.id, MemberState::Running(run));
        self.count_in(organization);
        self.queued = self.queued.saturating_sub(1);
        self.guest_was_last = false;
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

    /// A paused one waits for its turn again, before all others.
    pub(super) fn resume(&mut self, id: ExecutionId) {
        if !matches!(self.members.get(&id), Some(MemberState::Paused(_))) {
            return;
        }
        if let Some(MemberState::Paused(ticket)) = self.members.insert(id, MemberState::Waiting) {
            self.paused = self.paused.saturating_sub(1);
            self.window.push_front(ticket.organization, ticket);
        }
    }

    /// Its row has been deleted while it waited. A running one is left to its release. Gives whose it was,
    /// when it was in the window.
    pub(super) fn forget(&mut self, id: ExecutionId) -> Option<OrganizationId> {
        let mut owner = None;
        match self.members.get_mut(&id) {
            None => {}
            Some(MemberState::Waiting) => {
                self.members.remove(&id);
                let removed = self.window.remove(|ticket| ticket.id == id);
                owner = removed.map(|ticket| ticket.organization);
            }
            Some(MemberState::Paused(_)) => {
                self.members.remove(&id);
                self.paused = self.paused.saturating_sub(1);
            }
            Some(MemberState::Running(run)) => {
                run.requeued.take()?;
            }
            Some(MemberState::Reserved) => return None,
        }
        self.queued = self.queued.saturating_sub(1);
        self.note_deleted(id);
        owner
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
        let is_whole = !self.spilled && self.passed.is_empty() && self.refilling.is_none();
        is_whole.then_some(self.members.len())
    }
}
