//! Fair permits: a limited resource (slots, connections, bytes) that organizations share.
//!
//! Work waits for its permit instead of failing. Organizations take turns, each in FIFO order.
//!
//! A limit with a reserve is for permits that are held for a long time: an organization that holds
//! permits may hold at most as much as is still free. So one organization alone reaches half of the
//! limit, two reach a third each, and a part of the limit remains free for the next organization.
//! An organization that holds nothing may take everything that is free in one request. A request
//! above the limit is granted once nothing else is in use.
//!
//! A limit without a reserve is for permits that are released soon: one organization may hold
//! everything. When another organization's turn comes, all other requests wait until that
//! organization's request has been granted.
//!
//! [`on_behalf_of`] sets the organization for which a task works; [`timeout`] is a time limit that
//! excludes waits for permits.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use super::monotonic_now;
use orrery_domain::ids::OrganizationId;

/// How often a time limit is checked while the task waits for a permit.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The holder of a permit; `None` is the service itself.
type Holder = Option<OrganizationId>;

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// The organization for which a task works, and how long it has waited for permits.
#[derive(Debug)]
struct Scope {
    holder: Holder,
    waits: Mutex<Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    ended: Duration,
    pending: usize,
    since: Option<Instant>,
}

impl Scope {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    /// The total of all waits so far.
    fn total(&self) -> Duration {
        self.ended.saturating_add(self.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }
}

/// A wait for a permit, recorded in the task's scope while it lasts.
struct Waiting(Option<Arc<Scope>>);

impl Waiting {
    fn begin() -> Self {
        let scope = SCOPE.try_with(Arc::clone).ok();
        if let Some(scope) = &scope {
            let mut waits = scope.waits();
            waits.pending = waits.pending.saturating_add(1);
            waits.since.get_or_insert_with(monotonic_now);
        }
        Self(scope)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(scope) = &self.0 else { return };
        let mut waits = scope.waits();
        waits.pending = waits.pending.saturating_sub(1);
        if waits.pending == 0 {
            waits.ended = waits.total();
            waits.since = None;
        }
    }
}

/// Runs `work`, in which every permit is taken for `organization`; `None` is the service itself.
///
/// The future of an `async fn` would contain `work` twice: as the argument, and while `work` runs.
pub fn on_behalf_of<F: Future>(
    organization: impl Into<Option<OrganizationId>>,
    work: F,
) -> impl Future<Output = F::Output> {
    let scope = Scope { holder: organization.into(), waits: Mutex::default() };
    SCOPE.scope(Arc::new(scope), work)
}

/// Awaits `work`, which waits until other tasks release something. The waiting time does not count
/// toward the time limit of [`timeout`].
pub async fn waiting<F: Future>(work: F) -> F::Output {
    let _waiting = Waiting::begin();
    work.await
}

/// The organization for which this task works; `None` is the service itself.
#[must_use]
pub fn holder() -> Option<OrganizationId> {
    SCOPE.try_with(|scope| scope.holder).ok().flatten()
}

/// Limits the time of `work`, excluding waits for permits.
///
/// # Errors
/// [`Elapsed`] if `work` exceeds the limit.
pub async fn timeout<F: Future>(limit: Duration, work: F) -> Result<F::Output, Elapsed> {
    let Ok(scope) = SCOPE.try_with(Arc::clone) else {
        return tokio::time::timeout(limit, work).await;
    };
    let mut work = std::pin::pin!(work);
    let start = monotonic_now();
    let before = scope.waits().total();
    loop {
        let (waited, is_waiting) = {
            let waits = scope.waits();
            (waits.total().saturating_sub(before), waits.pending > 0)
        };
        let spent = start.elapsed().saturating_sub(waited);
        let left = limit.saturating_sub(spent);
        let pause = if is_waiting { left.max(LOOK_EVERY) } else { left };
        match tokio::time::timeout(pause, work.as_mut()).await {
            Err(elapsed) if left.is_zero() && !is_waiting => return Err(elapsed),
            Err(_look_again) => {}
            done => return done,
        }
    }
}

/// A limit that organizations share fairly.
#[derive(Debug)]
pub struct Turns {
    limit: AtomicUsize,
    has_reserve: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    held: HashMap<Holder, usize>,
    /// Waiters by organization, in the order of their turns.
    waiting: VecDeque<(Holder, VecDeque<Waiter>)>,
}

#[derive(Debug)]
struct Waiter {
    amount: usize,
    grant: oneshot::Sender<Turn>,
}

/// A permit for a part of the limit. Dropping this value releases the permit.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    turns: Arc<Turns>,
    holder: Holder,
    amount: usize,
}

impl Turns {
    /// Creates a limit with a reserve, so that a part of the limit remains free for the next
    /// organization.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Self::with(limit, true)
    }

    /// Like [`Turns::new`], but one organization may hold everything.
    #[must_use]
    pub fn without_reserve(limit: usize) -> Arc<Self> {
        Self::with(limit, false)
    }

    fn with(limit: usize, has_reserve: bool) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), has_reserve, state: Mutex::default() })
    }

    /// Changes the limit. Existing permits are unaffected.
    pub fn set_limit(self: &Arc<Self>, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
        self.serve();
    }

    /// The amount in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// The number of waiting callers.
    #[cfg(any(test, feature = "test-support"))]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.iter().map(|(_, line)| line.len()).sum()
    }

    /// Waits for a permit for `amount` on behalf of the task's organization. Dropping the future
    /// cancels the wait.
    pub async fn take(self: &Arc<Self>, amount: usize) -> Turn {
        let amount = amount.max(1);
        let holder = holder();
        let mut place = {
            let mut state = self.lock();
            let is_first = match self.has_reserve {
                true => state.waiting.iter().all(|(other, _)| *other != holder),
                false => state.waiting.is_empty(),
            };
            if is_first && self.has_room(&state, holder, amount) {
                return self.grant(&mut state, holder, amount);
            }
            Place { turns: self, granted: state.line_up(holder, amount) }
        };
        let _waiting = Waiting::begin();
        match (&mut place.granted).await {
            Ok(turn) => turn,
            // Unreachable: the waiter is dropped only after its permit was sent or this receiver
            // was dropped.
            Err(_gone) => Turn { turns: Arc::clone(self), holder, amount: 0 },
        }
    }

    /// Takes a permit for an organization even if there is no room.
    pub fn force(self: &Arc<Self>, organization: OrganizationId, amount: usize) -> Turn {
        let mut turn = Turn { turns: Arc::clone(self), holder: Some(organization), amount: 0 };
        turn.force(amount);
        turn
    }

    /// An empty permit.
    pub fn none(self: &Arc<Self>) -> Turn {
        Turn { turns: Arc::clone(self), holder: None, amount: 0 }
    }

    fn grant(self: &Arc<Self>, state: &mut State, holder: Holder, amount: usize) -> Turn {
        state.used = state.used.saturating_add(amount);
        let held = state.held.entry(holder).or_default();
        *held = held.saturating_add(amount);
        Turn { turns: Arc::clone(self), holder, amount }
    }

    /// Grants permits while there is room.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut state = self.lock();
            let Some((holder, waiter)) = self.next(&mut state) else { return };
            let turn = self.grant(&mut state, holder, waiter.amount);
            drop(state);
            if let Err(mut unwanted) = waiter.grant.send(turn) {
                // Release the permit here, since dropping it would call this function recursively.
                let mut state = self.lock();
                state.release(holder, std::mem::take(&mut unwanted.amount));
            }
        }
    }

    fn has_room(&self, state: &State, holder: Holder, amount: usize) -> bool {
        let free = self.limit.load(Ordering::Relaxed).saturating_sub(state.used);
        let held = state.held.get(&holder).copied().unwrap_or_default();
        let leaves_reserve = || held.saturating_add(amount) <= free.saturating_sub(amount);
        state.used == 0 || amount <= free && (!self.has_reserve || held == 0 || leaves_reserve())
    }

    /// Returns the next waiter for which there is room, and moves its organization to the end of
    /// the queue.
    fn next(&self, state: &mut State) -> Option<(Holder, Waiter)> {
        state.forget_gone();
        let candidates = if self.has_reserve { state.waiting.len() } else { 1 };
        let at = state.waiting.iter().take(candidates).position(|(holder, line)| {
            line.front().is_some_and(|first| self.has_room(state, *holder, first.amount))
        })?;
        let (holder, mut line) = state.waiting.remove(at)?;
        let waiter = line.pop_front()?;
        if !line.is_empty() {
            state.waiting.push_back((holder, line));
        }
        Some((holder, waiter))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line_up(&mut self, holder: Holder, amount: usize) -> oneshot::Receiver<Turn> {
        let (grant, granted) = oneshot::channel();
        let waiter = Waiter { amount, grant };
        match self.waiting.iter_mut().find(|(other, _)| *other == holder) {
            Some((_, line)) => line.push_back(waiter),
            None => self.waiting.push_back((holder, VecDeque::from([waiter]))),
        }
        granted
    }

    /// Removes cancelled waiters from the front of the queues.
    fn forget_gone(&mut self) {
        for (_, line) in &mut self.waiting {
            while line.pop_front_if(|first| first.grant.is_closed()).is_some() {}
        }
        self.waiting.retain(|(_, line)| !line.is_empty());
    }

    fn release(&mut self, holder: Holder, amount: usize) {
        self.used = self.used.saturating_sub(amount);
        let Some(held) = self.held.get_mut(&holder) else { return };
        *held = held.saturating_sub(amount);
        if *held == 0 {
            self.held.remove(&holder);
        }
    }
}

/// A position in a queue. Dropping this value lets the waiters behind the position proceed.
struct Place<'a> {
    turns: &'a Arc<Turns>,
    granted: oneshot::Receiver<Turn>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(turn) = self.granted.try_recv() {
            drop(turn);
            return;
        }
        self.turns.lock().forget_gone();
        self.turns.serve();
    }
}

impl Turn {
    /// Takes `more` even if there is no room, for data that is already in memory. Other callers
    /// wait until this amount is released.
    pub fn force(&mut self, more: usize) {
        let mut state = self.turns.lock();
        state.used = state.used.saturating_add(more);
        let held = state.held.entry(self.holder).or_default();
        *held = held.saturating_add(more);
        drop(state);
        self.amount = self.amount.saturating_add(more);
    }

    /// Merges a permit of the same holder into this one.
    pub fn join(&mut self, mut other: Self) {
        self.amount = self.amount.saturating_add(std::mem::take(&mut other.amount));
    }

    /// The organization that holds the permit.
    #[must_use]
    pub const fn holder(&self) -> Option<OrganizationId> {
        self.holder
    }

    /// Releases everything above `amount`.
    pub fn shrink_to(&mut self, amount: usize) {
        let surplus = self.amount.saturating_sub(amount);
        if surplus > 0 {
            self.amount = amount;
            self.turns.lock().release(self.holder, surplus);
            self.turns.serve();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::new_id;

    fn take_now(turns: &Arc<Turns>, who: OrganizationId, amount: usize) -> Option<Turn> {
        on_behalf_of(who, turns.take(amount)).now_or_never()
    }

    #[tokio::test]
    async fn turns_leave_a_part_for_next_organization() {
        let turns = Turns::new(8);
        let [first, second, third]: [OrganizationId; 3] = [new_id(), new_id(), new_id()];
        let held: Vec<_> = std::iter::from_fn(|| take_now(&turns, first, 1)).collect();
        assert_eq!(held.len(), 4);
        let also: Vec<_> = std::iter::from_fn(|| take_now(&turns, second, 1)).collect();
        assert_eq!(also.len(), 2);
        let last = take_now(&turns, third, 1);
        assert!(last.is_some());
        drop((held, also, last));
        assert_eq!((turns.used(), turns.lock().held.len()), (0, 0));
    }

    #[tokio::test]
    async fn turns_grant_large_part_to_organization_without_permit() {
        let turns = Turns::new(10);
        let [first, second]: [OrganizationId; 2] = [new_id(), new_id()];
        let whole = take_now(&turns, first, 50);
        assert!(whole.is_some(), "larger than the limit, and alone");
        assert!(take_now(&turns, second, 1).is_none());
        drop(whole);
        let small = take_now(&turns, first, 1);
        let large = take_now(&turns, second, 9);
        assert!(small.is_some() && large.is_some());
        assert!(take_now(&turns, first, 1).is_none());
    }

    #[tokio::test]
    async fn turns_alternate_between_waiting_organizations() {
        let turns = Turns::new(1);
        let [first, second]: [OrganizationId; 2] = [new_id(), new_id()];
        let held = take_now(&turns, first, 1);
        let mut lines: Vec<_> = [first, first, first, second]
            .into_iter()
            .map(|who| (who, Box::pin(on_behalf_of(who, turns.take(1)))))
            .collect();
        for (_, waiting) in &mut lines {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(held);
        let mut order = Vec::new();
        while !lines.is_empty() {
            let mut turn = None;
            lines.retain_mut(|(who, waiting)| match waiting.as_mut().now_or_never() {
                Some(granted) => {
                    order.push(*who);
                    turn = Some(granted);
                    false
                }
                None => true,
            });
            assert!(turn.is_some(), "somebody has a turn");
        }
        assert_eq!(order, [first, second, first, first]);
    }

    #[tokio::test]
    async fn turns_without_reserve_do_not_starve_large_requests() {
        let turns = Turns::without_reserve(10);
        let [first, second]: [OrganizationId; 2] = [new_id(), new_id()];
        let mut held: Vec<_> = std::iter::from_fn(|| take_now(&turns, first, 1)).collect();
        assert_eq!(held.len(), 10, "one organization holds all of it");
        let mut large = Box::pin(on_behalf_of(second, turns.take(8)));
        let mut small = Box::pin(on_behalf_of(first, turns.take(1)));
        for waiting in [&mut large, &mut small] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        held.truncate(4);
        assert!(small.as_mut().now_or_never().is_none(), "it is the turn of the large part");
        held.truncate(2);
        let large = large.now_or_never();
        assert!(large.is_some() && small.as_mut().now_or_never().is_none());
        held.clear();
        assert!(small.now_or_never().is_some());
    }

    #[tokio::test]
    async fn turns_forget_cancelled_waiters() {
        let turns = Turns::new(1);
        let [first, second]: [OrganizationId; 2] = [new_id(), new_id()];
        let held = take_now(&turns, first, 1);
        assert!(take_now(&turns, first, 1).is_none());
        assert!(take_now(&turns, second, 1).is_none());
        assert!(turns.lock().waiting.is_empty());
        drop(held);
        assert!(take_now(&turns, second, 1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn turns_wait_does_not_count_toward_time_limit() {
        let turns = Turns::new(1);
        let who: OrganizationId = new_id();
        let held = take_now(&turns, who, 1);
        let limit = Duration::from_secs(5);
        let work = on_behalf_of(who, async {
            timeout(limit, async {
                let turn = turns.take(1).await;
                tokio::time::sleep(Duration::from_secs(4)).await;
                drop(turn);
            })
            .await
        });
        let release = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(held);
        };
        let (done, ()) = tokio::join!(work, release);
        assert!(done.is_ok());
        let slow = tokio::time::sleep(Duration::from_secs(6));
        assert!(on_behalf_of(who, timeout(limit, slow)).await.is_err());
    }
}
