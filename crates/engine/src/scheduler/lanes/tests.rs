//! Tests lanes against a model of the disk: after any sequence of commits, starts, cancellations,
//! refills, pauses and requeues, each execution runs in one task at a time, in lane order, within
//! the caps.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn id(number: u32) -> ExecutionId {
    let mut bytes = [0; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

fn ticket(id: ExecutionId) -> Ticket<()> {
    Ticket { id, organization: owner(), payload: () }
}

fn owner() -> OrganizationId {
    [1; 16].into()
}

type Member = (usize, ExecutionId);

/// The lanes and the rows that would be on disk.
struct Fixture {
    lanes: Lanes<(), u32>,
    /// Rows visible to readers.
    disk: BTreeSet<Member>,
    /// Commits in progress, oldest first.
    committing: VecDeque<Member>,
    running: Vec<(Member, Arc<()>)>,
    paused: Vec<Member>,
    /// Executions in the order of their first start.
    started: Vec<Member>,
    refills: Vec<(usize, Vec<ExecutionId>, Option<ExecutionId>)>,
    /// Waiting steps: lane, number and name.
    asking: Vec<(usize, u64, u32)>,
    /// Admitted steps: lane and name.
    admitted: Vec<(usize, u32)>,
    next_id: u32,
    cap: usize,
    count: usize,
}

const PAGE: usize = 3;

fn name(lane: usize) -> String {
    format!("lane-{lane}")
}

fn number(name: &str) -> usize {
    name.trim_start_matches("lane-").parse().unwrap()
}

impl Fixture {
    fn new(lanes: usize, cap: usize, active: usize) -> Self {
        let mut fixture = Self {
            lanes: Lanes::new(active),
            disk: BTreeSet::new(),
            committing: VecDeque::new(),
            running: Vec::new(),
            paused: Vec::new(),
            started: Vec::new(),
            refills: Vec::new(),
            asking: Vec::new(),
            admitted: Vec::new(),
            next_id: 0,
            cap,
            count: lanes,
        };
        for lane in 0..lanes {
            fixture.lanes.set_limits(&name(lane), cap, 10_000);
        }
        fixture
    }

    /// Begins a commit that adds an execution to a lane.
    fn announce(&mut self, lane: usize) {
        self.next_id += 1;
        let id = id(self.next_id);
        self.lanes.reserve(&name(lane), id).unwrap();
        self.committing.push_back((lane, id));
    }

    /// Makes the rows of commits in progress visible before their hooks run.
    fn show(&mut self) {
        self.disk.extend(self.committing.iter().copied());
    }

    /// Completes the oldest commit and runs its hook. `spills` leaves the ticket on disk.
    fn enqueue(&mut self, spills: bool) {
        let Some((lane, id)) = self.committing.pop_front() else { return };
        self.disk.insert((lane, id));
        if spills {
            self.lanes.count_stored(&name(lane), owner(), id, 0);
        }
        self.lanes.enqueue(&name(lane), ticket(id));
    }

    /// Fails the newest commit, unless its row is already visible.
    fn fail(&mut self) {
        if let Some((lane, id)) = self.committing.pop_back_if(|row| !self.disk.contains(row)) {
            self.lanes.cancel_reservation(&name(lane), id);
        }
    }

    fn submit(&mut self, lane: usize, spills: bool) {
        self.announce(lane);
        while !self.committing.is_empty() {
            self.enqueue(spills);
        }
    }

    fn step(&mut self) -> bool {
        let has_turns = self.lanes.has_turns();
        let next = self.lanes.next();
        assert!(has_turns || next.is_none(), "nobody would have looked");
        match next {
            None => false,
            Some(Next::AdmitStep { lane, waiter, .. }) => {
                self.admitted.push((number(&lane), waiter));
                true
            }
            Some(Next::Start { lane, ticket, task }) => {
                let member = (number(&lane), ticket.id);
                let twice = self.running.iter().any(|(running, _)| *running == member);
                assert!(!twice, "{member:?} runs twice at once");
                if !self.started.contains(&member) {
                    self.started.push(member);
                }
                self.running.push((member, task));
                true
            }
            Some(Next::Refill { lane, from, most, .. }) => {
                let lane = number(&lane);
                let rows = self.disk.iter().filter(|row| row.0 == lane && row.1 >= from);
                let mut fresh =
                    rows.map(|(_, id)| *id).filter(|id| !self.lanes.knows(&name(lane), *id));
                let rows = fresh.by_ref().take(most.min(PAGE)).collect();
                let more_from = fresh.next();
                self.refills.push((lane, rows, more_from));
                true
            }
        }
    }

    fn deliver_refill(&mut self) {
        if let Some((lane, rows, more_from)) = self.refills.pop() {
            let rows = rows.into_iter().map(ticket).collect();
            self.lanes.refilled(&name(lane), owner(), rows, more_from);
        }
    }

    fn take_running(&mut self, which: usize) -> Option<Member> {
        let index = which.checked_rem(self.running.len())?;
        Some(self.running.remove(index).0)
    }

    fn finish(&mut self, which: usize) {
        if let Some((lane, id)) = self.take_running(which) {
            self.disk.remove(&(lane, id));
            self.lanes.release(&name(lane), id);
        }
    }

    /// Makes a running execution fail and wait for a retry.
    fn pause(&mut self, which: usize) {
        if let Some((lane, id)) = self.take_running(which) {
            self.lanes.pause(&name(lane), ticket(id));
            self.paused.push((lane, id));
        }
    }

    fn resume(&mut self, which: usize) {
        if let Some(index) = which.checked_rem(self.paused.len()) {
            let (lane, id) = self.paused.remove(index);
            self.lanes.resume(&name(lane), id);
        }
    }

    fn park(&mut self, which: usize, is_parked: bool) {
        if let Some(index) = which.checked_rem(self.running.len()) {
            let (lane, id) = self.running[index].0;
            let parking = if is_parked { Parking::ForModels } else { Parking::Not };
            self.lanes.park(&name(lane), id, parking);
        }
    }

    /// Suspends a running execution and wakes it before it releases its permit.
    fn put_back(&mut self, which: usize) {
        let Some(member) = self.take_running(which) else { return };
        let (lane, id) = member;
        self.disk.remove(&member);
        self.lanes.reserve_accepted(&name(lane), id);
        self.disk.insert(member);
        self.lanes.enqueue(&name(lane), ticket(id));
        self.lanes.release(&name(lane), id);
    }

    fn cancel(&mut self, which: usize) {
        let is_running = |row: &Member| self.running.iter().any(|(running, _)| running == row);
        let is_waiting = |row: &&Member| !is_running(row) && !self.committing.contains(row);
        let waiting: Vec<_> = self.disk.iter().filter(is_waiting).copied().collect();
        let Some(index) = which.checked_rem(waiting.len()) else { return };
        let (lane, id) = waiting[index];
        self.disk.remove(&(lane, id));
        self.paused.retain(|paused| *paused != (lane, id));
        self.lanes.forget(&name(lane), id);
    }

    fn ask(&mut self, lane: usize) {
        self.next_id += 1;
        if self.lanes.try_acquire(&name(lane), None) {
            self.admitted.push((lane, self.next_id));
        } else {
            let number = self.lanes.enqueue_step(&name(lane), None, self.next_id, false);
            self.asking.push((lane, number, self.next_id));
        }
    }

    fn leave(&mut self, which: usize) {
        if let Some(index) = which.checked_rem(self.admitted.len()) {
            let (lane, _) = self.admitted.remove(index);
            self.lanes.release_step(&name(lane), None);
        }
    }

    fn withdraw(&mut self, which: usize) {
        self.settle_steps();
        if let Some(index) = which.checked_rem(self.asking.len()) {
            let (lane, number, _) = self.asking.remove(index);
            self.lanes.cancel_wait(&name(lane), number);
        }
    }

    /// Removes admitted steps from the list of waiting steps.
    fn settle_steps(&mut self) {
        let admitted = &self.admitted;
        self.asking.retain(|(lane, _, waiter)| !admitted.contains(&(*lane, *waiter)));
    }

    fn invariants(&mut self) {
        self.settle_steps();
        for lane in 0..self.count {
            let own = self.running.iter().filter(|((of, _), _)| *of == lane).count();
            let running = own + self.admitted.iter().filter(|(of, _)| *of == lane).count();
            assert!(running <= self.cap, "a lane runs over its cap");
            let mut rows = self.disk.clone();
            rows.extend(self.committing.iter().copied());
            let rows = rows.iter().filter(|(of, _)| *of == lane).count();
            let queued = rows - own + self.asking.iter().filter(|(of, ..)| *of == lane).count();
            let load = self.lanes.load(&name(lane));
            assert_eq!((load.running, load.queued), (running, queued), "the counts");
        }
        assert!(self.lanes.leaked().is_empty());
        assert!(!self.lanes.recount(), "the places were counted wrong");
    }

    /// Runs everything to its end.
    fn drain(&mut self) {
        for _ in 0..2000 {
            self.enqueue(false);
            while self.step() {}
            self.deliver_refill();
            self.resume(0);
            self.finish(0);
            self.settle_steps();
            self.leave(0);
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Announce(usize),
    Show,
    Enqueue(bool),
    Fail,
    Step,
    Refill,
    Finish(usize),
    Pause(usize),
    Resume(usize),
    Park(usize, bool),
    PutBack(usize),
    Cancel(usize),
    Ask(usize),
    Leave(usize),
    Withdraw(usize),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_usize..3).prop_map(Act::Announce),
        1 => Just(Act::Show),
        4 => any::<bool>().prop_map(Act::Enqueue),
        1 => Just(Act::Fail),
        6 => Just(Act::Step),
        3 => Just(Act::Refill),
        3 => any::<usize>().prop_map(Act::Finish),
        1 => any::<usize>().prop_map(Act::Pause),
        1 => any::<usize>().prop_map(Act::Resume),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, parked)| Act::Park(which, parked)),
        1 => any::<usize>().prop_map(Act::PutBack),
        1 => any::<usize>().prop_map(Act::Cancel),
        2 => (0_usize..3).prop_map(Act::Ask),
        2 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Withdraw),
    ]
}

impl Fixture {
    fn act(&mut self, act: &Act) {
        match *act {
            Act::Announce(lane) => self.announce(lane),
            Act::Show => self.show(),
            Act::Enqueue(spills) => self.enqueue(spills),
            Act::Fail => self.fail(),
            Act::Step => {
                self.step();
            }
            Act::Refill => self.deliver_refill(),
            Act::Finish(which) => self.finish(which),
            Act::Pause(which) => self.pause(which),
            Act::Resume(which) => self.resume(which),
            Act::Park(which, is_parked) => self.park(which, is_parked),
            Act::PutBack(which) => self.put_back(which),
            Act::Cancel(which) => self.cancel(which),
            Act::Ask(lane) => self.ask(lane),
            Act::Leave(which) => self.leave(which),
            Act::Withdraw(which) => self.withdraw(which),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn lane_runs_each_ticket_once_and_in_order(
        cap in 1_usize..4,
        active in 1_usize..6,
        acts in prop::collection::vec(acts(), 0..120),
    ) {
        let mut fixture = Fixture::new(3, cap, active);
        for act in acts {
            fixture.act(&act);
            fixture.invariants();
        }
        fixture.drain();
        fixture.invariants();
        prop_assert!(fixture.asking.is_empty(), "steps left waiting: {:?}", fixture.asking);
        prop_assert!(fixture.disk.is_empty(), "left waiting: {:?}", fixture.disk);
        prop_assert!(fixture.running.is_empty(), "left running");
        for lane in 0..3 {
            let order: Vec<_> = fixture.started.iter().filter(|(of, _)| *of == lane).collect();
            prop_assert!(order.is_sorted(), "out of order: {order:?}");
        }
    }

    /// A stuck model, or a flood of executions in one lane, never starves another lane.
    #[test]
    fn lane_idle_is_never_starved_by_stuck_lanes(
        stuck in prop::collection::vec((1_usize..9, any::<bool>()), 0..40),
        active in 1_usize..12,
        cap in 1_usize..12,
        spills in any::<bool>(),
        parks in any::<bool>(),
    ) {
        let mut fixture = Fixture::new(stuck.len() + 1, cap, active);
        for (lane, (backlog, through_disk)) in stuck.iter().enumerate() {
            for _ in 0..*backlog {
                fixture.submit(lane, *through_disk);
            }
        }
        let settle = |fixture: &mut Fixture| {
            while fixture.step() {
                fixture.deliver_refill();
                if parks {
                    fixture.park(fixture.running.len().saturating_sub(1), true);
                }
            }
        };
        settle(&mut fixture);
        // No execution ends in this test. Each stuck lane runs at least one execution, and
        // executions beyond the first of each lane stay within the limit.
        let idle = stuck.len();
        for lane in 0..idle {
            prop_assert!(fixture.running.iter().any(|((of, _), _)| *of == lane), "{lane} is starved");
        }
        let most = if parks { active * 2 } else { active };
        prop_assert!(fixture.running.len() <= most + idle);
        fixture.submit(idle, spills);
        settle(&mut fixture);
        prop_assert!(fixture.running.iter().any(|((of, _), _)| *of == idle), "it is starved");
    }
}

#[test]
fn lane_when_full_rejects_while_others_accept() {
    let mut lanes: Lanes<(), u32> = Lanes::new(10);
    lanes.set_limits("a", 1, 1);
    lanes.set_limits("b", 1, 1);
    assert_eq!(lanes.reserve("a", id(1)), Ok(()));
    assert_eq!(lanes.reserve("a", id(2)), Err(Full { queued: 1 }));
    assert_eq!(lanes.reserve("b", id(3)), Ok(()));
    lanes.cancel_reservation("a", id(1));
    assert_eq!(lanes.reserve("a", id(4)), Ok(()));
}

#[test]
fn lane_slots_are_shared_round_robin() {
    let mut fixture = Fixture::new(2, 10, 4);
    for _ in 0..4 {
        fixture.submit(0, false);
    }
    for _ in 0..4 {
        fixture.submit(1, false);
    }
    while fixture.step() {}
    let lanes: Vec<_> = fixture.started.iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [0, 1, 0, 1]);
}

#[test]
fn lane_alternates_between_steps_and_own_tickets() {
    let mut fixture = Fixture::new(1, 1, 10);
    fixture.submit(0, false);
    while fixture.step() {}
    for _ in 0..2 {
        fixture.ask(0);
        fixture.submit(0, false);
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        fixture.finish(0);
        fixture.leave(0);
        while fixture.step() {}
        order.push((fixture.running.len(), fixture.admitted.len()));
    }
    assert_eq!(order, [(0, 1), (1, 0), (0, 1), (1, 0)]);
}

#[test]
fn lane_priority_step_overtakes_waiting_steps() {
    let mut fixture = Fixture::new(1, 1, 10);
    fixture.submit(0, false);
    while fixture.step() {}
    for (waiter, is_first) in [(1, false), (2, false), (3, true)] {
        fixture.lanes.enqueue_step(&name(0), None, waiter, is_first);
    }
    fixture.finish(0);
    let next = fixture.lanes.next();
    assert!(matches!(next, Some(Next::AdmitStep { waiter: 3, .. })), "{next:?}");
}

/// A workflow with a permit must reach its models even if no permit is free.
#[test]
fn lane_admits_steps_when_all_slots_are_taken() {
    let mut fixture = Fixture::new(2, 2, 2);
    for _ in 0..4 {
        fixture.submit(0, false);
    }
    while fixture.step() {}
    assert_eq!(fixture.running.len(), 2);
    fixture.ask(1);
    fixture.ask(1);
    fixture.ask(1);
    while fixture.step() {}
    assert_eq!(fixture.admitted.len(), 2);
}

/// An execution that is woken before it releases its permit first waits for the release and then
/// for its turn.
#[test]
fn lane_ticket_requeued_during_release_runs_once_more() {
    let mut fixture = Fixture::new(1, 2, 2);
    fixture.submit(0, false);
    while fixture.step() {}
    let ((_, id), _) = fixture.running[0];
    fixture.lanes.reserve_accepted(&name(0), id);
    fixture.lanes.enqueue(&name(0), ticket(id));
    assert!(!fixture.step(), "it runs twice at once");
    fixture.lanes.release(&name(0), id);
    let load = fixture.lanes.load(&name(0));
    assert_eq!((load.running, load.queued), (0, 1));
    fixture.running.clear();
    assert!(fixture.step());
    fixture.lanes.release(&name(0), id);
    assert_eq!(fixture.lanes.totals(), (0, 0));
}

/// If a refill reads a row before the hook of the row's commit has run, the refill must not create
/// a second ticket.
#[test]
fn lane_row_seen_before_its_hook_gets_one_ticket() {
    let mut fixture = Fixture::new(1, 9, 9);
    fixture.announce(0);
    fixture.show();
    fixture.lanes.count_stored(&name(0), owner(), id(1), 0);
    while fixture.step() {
        fixture.deliver_refill();
    }
    assert!(fixture.running.is_empty(), "it runs before it is durable");
    fixture.enqueue(false);
    while fixture.step() {
        fixture.deliver_refill();
    }
    assert_eq!(fixture.running.len(), 1);
    fixture.invariants();
}

#[test]
fn lane_finds_leaked_slots_of_dead_tasks() {
    let mut fixture = Fixture::new(1, 2, 2);
    fixture.submit(0, false);
    fixture.submit(0, false);
    while fixture.step() {}
    let ((_, id), task) = fixture.running.remove(0);
    assert!(fixture.lanes.leaked().is_empty());
    drop(task);
    assert_eq!(fixture.lanes.leaked(), [(Arc::from(name(0)), owner(), id)]);
    fixture.lanes.active = 7;
    assert!(fixture.lanes.recount() && !fixture.lanes.recount());
    assert_eq!(fixture.lanes.totals().0, 2);
}

/// A lane with too many failed executions starts no new executions until a failed execution is
/// resumed.
#[test]
fn lane_with_too_many_paused_tickets_starts_nothing_new() {
    let mut fixture = Fixture::new(1, 2, 2);
    for _ in 0..PAUSED_MAX {
        fixture.submit(0, false);
        while fixture.step() {}
        fixture.pause(0);
    }
    fixture.submit(0, false);
    while fixture.step() {}
    assert!(fixture.running.is_empty());
    fixture.resume(0);
    while fixture.step() {}
    assert_eq!(fixture.running.len(), 2, "the one that goes on, and the new one");
}

#[test]
fn lanes_remove_empty_lane() {
    let mut lanes = Lanes::<(), ()>::new(4);
    lanes.set_limits("a", 1, 4);
    lanes.reserve("a", id(1)).unwrap();
    lanes.remove_unused("a");
    assert_eq!(lanes.load("a").cap, 1, "work is announced to it");
    lanes.enqueue("a", ticket(id(1)));
    lanes.remove_unused("a");
    assert!(matches!(lanes.next(), Some(Next::Start { .. })));
    lanes.remove_unused("a");
    assert_eq!(lanes.load("a").running, 1);
    lanes.release("a", id(1));
    lanes.remove_unused("a");
    assert_eq!(lanes.load("a").cap, 0);
    assert_eq!(lanes.totals(), (0, 0));
}

#[test]
fn lanes_without_free_permit_need_no_dispatch_for_new_work() {
    let mut fixture = Fixture::new(1, 1, 10);
    fixture.submit(0, false);
    assert!(fixture.lanes.has_turns());
    while fixture.step() {}
    assert_eq!(fixture.running.len(), 1);
    fixture.submit(0, false);
    assert!(!fixture.lanes.has_turns(), "its only place is taken");
    fixture.finish(0);
    assert!(fixture.lanes.has_turns());
}

#[test]
fn lanes_removed_leave_no_entry_in_schedules() {
    let mut lanes = Lanes::<(), ()>::new(4);
    for number in 0..100 {
        lanes.set_limits("a", 1, 4);
        lanes.reserve("a", id(number)).unwrap();
        lanes.enqueue("a", ticket(id(number)));
        while lanes.next().is_some() {}
        lanes.release("a", id(number));
        lanes.remove_unused("a");
    }
    assert_eq!((lanes.schedule.len(), lanes.idle_schedule.len()), (0, 0));
}
