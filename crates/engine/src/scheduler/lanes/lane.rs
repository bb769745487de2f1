//! One lane: the executions that it has in memory, and the state of each of these.
//!
//! An execution in the lane has at most one state. If an execution has no state, its row is only on
//! disk, and its organization is in `stored`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use super::lines::Lines;
use super::{Load, PAUSED_MAX, SHARE, Ticket, WINDOW};
use orrery_domain::ids::{ExecutionId, OrganizationId};

/// The state of an execution in the lane's memory.
#[derive(Debug)]
pub(super) enum MemberState<T> {
    /// A commit that adds the execution's row is in progress; the row may already be visible.
    Reserved,
    /// Queued in the window.
    Waiting,
    Running(Run<T>),
    /// Failed and waiting for its retry. The execution's row still exists.
    Paused(Ticket<T>),
}

/// A running execution.
#[derive(Debug)]
pub(super) struct Run<T> {
    /// A weak reference that is dangling once the task has ended for any reason.
    task: Weak<()>,
    organization: OrganizationId,
    parking: Parking,
    /// Set if the execution was put back into this lane before its permit was released.
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

/// Whether a running execution holds a permit or waits without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parking {
    /// Not parked: the execution holds a permit.
    Not,
    /// Waiting for model permits.
    ForModels,
    /// Waiting for executions that this execution has started. Such an execution does not count
    /// toward its organization's cap either.
    ForOthers,
}

/// The organization of a running execution, and whether the execution was parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) organization: OrganizationId,
    pub(super) parking: Parking,
}

#[derive(Debug)]
pub(super) struct Lane<T, G> {
    pub(super) cap: usize,
    pub(super) queue_limit: usize,
    /// Whether an organization that runs nothing in this lane may start one execution above the
    /// cap.
    pub(super) may_exceed: bool,
    /// Waiting steps, each with its number.
    pub(super) waiting_steps: Lines<Option<OrganizationId>, (u64, G)>,
    /// The number of admitted steps by organization. No number is 0.
    admitted_steps: HashMap<Option<OrganizationId>, usize>,
    /// Whether a step was admitted last; steps and executions alternate while both are waiting.
    pub(super) step_was_last: bool,
    members: HashMap<ExecutionId, MemberState<T>>,
    window: Lines<OrganizationId, Ticket<T>>,
    running: usize,
    running_of: HashMap<OrganizationId, usize>,
    paused: usize,
    /// All accepted work that is not running: announced, in the window, paused, or on disk.
    queued: usize,
    /// Organizations with rows that are only on disk.
    stored: HashMap<OrganizationId, Stored>,
    /// Organizations in `stored` without a ticket in the window, in the order in which they are
    /// read.
    to_read: VecDeque<OrganizationId>,
    refilling: Option<RefillInProgress>,
    pub(super) in_turn: bool,
    pub(super) in_idle_turn: bool,
}

/// The rows of an organization that are only on disk.
#[derive(Debug)]
struct Stored {
    /// A lower bound: no row is older than this execution.
    from: ExecutionId,
    /// Whether the organization is in `to_read`, or waits in `organizations` until it may run more.
    is_in_turn: bool,
}

/// Changes to a lane while rows of an organization are being read.
#[derive(Debug)]
struct RefillInProgress {
    of: OrganizationId,
    /// Rows that were deleted after the read began, and that the read may still have returned.
    deleted: HashSet<ExecutionId>,
}

impl<T, G> Lane<T, G> {
    pub(super) fn new(cap: usize, queue_limit: usize) -> Self {
        Self {
            cap,
            queue_limit,
            may_exceed: false,
            waiting_steps: Lines::default(),
            admitted_steps: HashMap::new(),
            step_was_last: false,
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

    // --- capacity ---

    pub(super) fn has_free_permit(&self) -> bool {
        self.running + self.admitted_steps() < self.cap
    }

    pub(super) fn can_start(&self) -> bool {
        self.next_among(|_| true).is_some()
    }

    /// Returns the next organization that may start an execution, among those that satisfy `may`,
    /// if the lane has a free permit.
    pub(super) fn next_among(
        &self,
        may: impl Fn(OrganizationId) -> bool,
    ) -> Option<OrganizationId> {
        let is_open = self.paused < PAUSED_MAX && (self.may_exceed || self.has_free_permit());
        let mut waiting = self.window.keys().filter(|_| is_open);
        waiting.find(|one| self.has_free_permit_for(*one) && may(*one))
    }

    /// Whether an organization with queued work in this lane satisfies `is_it`.
    pub(super) fn has_one(&self, is_it: impl Fn(OrganizationId) -> bool) -> bool {
        self.window.keys().chain(self.to_read.iter().copied()).any(is_it)
    }

    pub(super) fn wants_refill(&self) -> bool {
        self.next_to_read().is_some()
    }

    /// Returns the position in `to_read` of the organization to read next.
    fn next_to_read(&self) -> Option<usize> {
        if !self.may_refill() || !(self.may_exceed || self.has_free_permit()) {
            return None;
        }
        self.to_read.iter().position(|one| self.has_free_permit_for(*one))
    }

    /// Whether reading rows of the organization is useful now.
    pub(super) fn may_read(&self, organization: OrganizationId) -> bool {
        self.may_refill() && self.has_free_permit_for(organization)
    }

    fn may_refill(&self) -> bool {
        self.refilling.is_none() && self.paused < PAUSED_MAX
    }

    fn has_free_permit_for(&self, organization: OrganizationId) -> bool {
        self.has_free_permit() || (self.may_exceed && !self.running_of.contains_key(&organization))
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Whether the lane is empty, in memory and on disk.
    pub(super) fn is_unused(&self) -> bool {
        let has_rows = self.queued > 0 || !self.stored.is_empty() || self.refilling.is_some();
        let has_steps = !self.admitted_steps.is_empty() || !self.waiting_steps.is_empty();
        self.members.is_empty() && self.window.is_empty() && !has_rows && !has_steps
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    pub(super) fn has_room(&self, organization: OrganizationId) -> bool {
        let is_stored = self.stored.contains_key(&organization) || self.is_reading(organization);
        !is_stored && (self.window.len() < WINDOW || self.window.len_of(organization) < SHARE)
    }

    /// Returns how many rows of one organization to read at once. Every organization has its share
    /// of the window, even if the window is full.
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
            running: self.running + self.admitted_steps(),
            queued: self.queued + self.waiting_steps.len(),
            cap: self.cap,
        }
    }

    /// Returns an organization's share of the load. `rows` is the number of its unfinished
    /// executions on disk. If `rows` is `None`, only queued executions in the window are counted.
    pub(super) fn load_of(&self, organization: OrganizationId, rows: Option<usize>) -> Load {
        let running = self.running_of.get(&organization).copied().unwrap_or_default();
        let in_window = || self.window.len_of(organization);
        let queued = rows.map_or_else(in_window, |rows| rows.saturating_sub(running));
        let of = Some(organization);
        let admitted = self.admitted_steps.get(&of).copied().unwrap_or_default();
        Load {
            running: running + admitted,
            queued: queued + self.waiting_steps.len_of(of),
            cap: self.cap,
        }
    }

    fn admitted_steps(&self) -> usize {
        self.admitted_steps.values().sum()
    }

    pub(super) fn admit_step(&mut self, of: Option<OrganizationId>) {
        *self.admitted_steps.entry(of).or_default() += 1;
    }

    pub(super) fn release_step(&mut self, of: Option<OrganizationId>) {
        if let Some(admitted) = self.admitted_steps.get_mut(&of) {
            *admitted = admitted.saturating_sub(1);
        }
        self.admitted_steps.retain(|_, admitted| *admitted > 0);
    }

    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    pub(super) fn position(&self, id: ExecutionId) -> Option<usize> {
        self.window.before(|ticket| ticket.id == id).map(|before| before + 1)
    }

    // --- adding ---

    /// Announces an execution whose row a commit is about to add.
    pub(super) fn reserve(&mut self, id: ExecutionId) {
        match self.members.get_mut(&id) {
            None => {
                self.members.insert(id, MemberState::Reserved);
            }
            Some(MemberState::Running(run)) if run.requeued.is_none() => {
                run.requeued = Some(Requeued::Reserved)
            }
            // The execution is already in the lane. Its single row must be counted once.
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

    /// Withdraws the announcement of a failed commit.
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

    /// Adds an announced ticket whose row is durable.
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

    /// Adds a ticket that is already counted to the window, or leaves it on disk.
    fn push_back(&mut self, ticket: Ticket<T>) {
        if self.has_room(ticket.organization) {
            self.put_in_window(ticket);
        } else {
            self.members.remove(&ticket.id);
            self.note_stored(ticket.organization, ticket.id);
        }
    }

    /// Puts a ticket into the window, sorted by age within its organization.
    fn put_in_window(&mut self, ticket: Ticket<T>) {
        let id = ticket.id;
        self.members.insert(id, MemberState::Waiting);
        self.window.insert(ticket.organization, ticket, |held| held.id > id);
    }

    /// Counts rows of an organization that are only on disk, none of which is older than `from`.
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

    /// Schedules a read for an organization that has rows on disk but none in the window.
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

    /// Schedules a read for an organization that was waiting at its cap and may now run more.
    pub(super) fn read_later(&mut self, organization: OrganizationId) {
        self.to_read.push_back(organization);
    }

    /// Removes and returns the organization to read next.
    pub(super) fn take_turn_to_read(&mut self) -> Option<OrganizationId> {
        self.next_to_read().and_then(|at| self.to_read.remove(at))
    }

    /// Begins to read the rows of an organization. Returns the row at which to start.
    pub(super) fn begin_refill(&mut self, organization: OrganizationId) -> Option<ExecutionId> {
        let stored = self.stored.remove(&organization)?;
        self.refilling = Some(RefillInProgress { of: organization, deleted: HashSet::new() });
        Some(stored.from)
    }

    /// Adds the rows that were read for an organization, oldest first. `more_from` is the first
    /// unread row.
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

    /// Drops the tickets of an organization at its cap; their rows stay on disk. Returns true if
    /// the organization is in no queue for reads and the caller must add it to one.
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

    // --- running ---

    /// Starts the next ticket of an organization in the window. The task that runs it owns the
    /// returned handle.
    pub(super) fn start(&mut self, organization: OrganizationId) -> Option<(Ticket<T>, Arc<()>)> {
        let ticket = self.window.pop_of(organization)?;
        let task = Arc::new(());
        let run = Run::of(&task, organization);
        self.members.insert(ticket.id, MemberState::Running(run));
        self.count_in(organization);
        self.queued = self.queued.saturating_sub(1);
        self.step_was_last = false;
        self.plan_reading(organization);
        Some((ticket, task))
    }

    /// Starts a quarantined execution, whose row is only on disk.
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

    /// Records what a running execution is waiting for. If this is a change, returns the previous
    /// state.
    pub(super) fn park(&mut self, id: ExecutionId, parking: Parking) -> Option<Left> {
        let Some(MemberState::Running(run)) = self.members.get_mut(&id) else { return None };
        let before = std::mem::replace(&mut run.parking, parking);
        let organization = run.organization;
        (before != parking).then_some(Left { organization, parking: before })
    }

    /// Releases the permit of an execution that has ended or moved elsewhere.
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

    /// Releases the permit of a failed execution, which stays in the lane until [`Lane::resume`].
    pub(super) fn pause(&mut self, ticket: Ticket<T>) -> Option<Left> {
        let Ticket { id, organization, .. } = ticket;
        let (left, again) = self.leave(id)?;
        match again {
            // The execution was queued in this lane again, so it waits for a new turn.
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

    /// Puts a paused execution back into the window, sorted by its age.
    pub(super) fn resume(&mut self, id: ExecutionId) {
        if !matches!(self.members.get(&id), Some(MemberState::Paused(_))) {
            return;
        }
        if let Some(MemberState::Paused(ticket)) = self.members.remove(&id) {
            self.paused = self.paused.saturating_sub(1);
            self.put_in_window(ticket);
        }
    }

    /// Removes a queued execution whose row was deleted. A running execution is kept until its
    /// permit is released.
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

    // --- consistency check ---

    /// Returns running executions whose task ended without releasing the permit.
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

    /// Returns the states of all running executions.
    pub(super) fn runs(&self) -> impl Iterator<Item = Left> {
        self.members.values().filter_map(|member| match member {
            MemberState::Running(run) => {
                Some(Left { organization: run.organization, parking: run.parking })
            }
            MemberState::Reserved | MemberState::Waiting | MemberState::Paused(_) => None,
        })
    }

    /// Returns the number of executions in memory, or `None` if some rows are only on disk.
    pub(super) fn complete_len(&self) -> Option<usize> {
        let is_whole = self.stored.is_empty() && self.refilling.is_none();
        is_whole.then_some(self.members.len())
    }
}
