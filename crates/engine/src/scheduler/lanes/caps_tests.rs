//! Tests the caps of organizations against a model of the disk: no organization ever exceeds its
//! cap or blocks other organizations, and no work is stranded.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use orrery_domain::ids::Id;

pub(super) const LANES: usize = 3;

fn id(number: u32) -> ExecutionId {
    let mut bytes = [0; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

pub(super) fn organization(number: u8) -> OrganizationId {
    [number; 16].into()
}

pub(super) fn name(lane: usize) -> String {
    format!("lane-{lane}")
}

fn number(name: &str) -> usize {
    name.trim_start_matches("lane-").parse().unwrap()
}

fn ticket((_, id, organization): Row) -> Ticket<()> {
    Ticket { id, organization, payload: () }
}

/// A lane, and an execution queued in it.
pub(super) type Row = (usize, ExecutionId, OrganizationId);

#[derive(Debug)]
pub(super) struct Running {
    pub(super) row: Row,
    pub(super) yields: bool,
    _task: Arc<()>,
}

#[derive(Debug)]
struct Refill {
    lane: usize,
    of: OrganizationId,
    rows: Vec<Row>,
    more_from: Option<ExecutionId>,
}

pub(super) struct Fixture {
    pub(super) lanes: Lanes<(), u32>,
    pub(super) disk: BTreeSet<Row>,
    pub(super) running: Vec<Running>,
    paused: Vec<Row>,
    started: Vec<Row>,
    refills: Vec<Refill>,
    caps: BTreeMap<OrganizationId, usize>,
    next_id: u32,
    /// Number of reads from disk.
    reads: usize,
    /// Number of rows read.
    rows_read: usize,
}

impl Fixture {
    pub(super) fn new(lane_cap: usize, active: usize, caps: &[(u8, usize)]) -> Self {
        let mut lanes = Lanes::new(active);
        for lane in 0..LANES {
            lanes.set_limits(&name(lane), lane_cap, 10_000);
        }
        let mut fixture = Self {
            lanes,
            disk: BTreeSet::new(),
            running: Vec::new(),
            paused: Vec::new(),
            started: Vec::new(),
            refills: Vec::new(),
            caps: BTreeMap::new(),
            next_id: 0,
            reads: 0,
            rows_read: 0,
        };
        for (number, cap) in caps {
            fixture.cap(*number, Some(*cap));
        }
        fixture
    }

    fn cap(&mut self, number: u8, cap: Option<usize>) {
        let organization = organization(number);
        match cap {
            Some(cap) => self.caps.insert(organization, cap),
            None => self.caps.remove(&organization),
        };
        self.lanes.set_organization_cap(organization, cap);
    }

    pub(super) fn submit(&mut self, lane: usize, owner: u8, spills: bool) {
        self.next_id += 1;
        let row = (lane, id(self.next_id), organization(owner));
        self.lanes.admit(row.2, None).unwrap();
        self.lanes.reserve(&name(lane), row.1).unwrap();
        self.disk.insert(row);
        if spills {
            self.lanes.count_stored(&name(lane), row.2, row.1, 0);
        }
        self.lanes.enqueue(&name(lane), ticket(row));
    }

    fn find_at_start(&mut self, lane: usize, owner: u8, count: u32) {
        let owner = organization(owner);
        for _ in 0..count {
            self.next_id += 1;
            self.disk.insert((lane, id(self.next_id), owner));
            self.lanes.count_stored(&name(lane), owner, id(self.next_id), 1);
        }
        self.lanes.count_unfinished(owner, count as usize);
    }

    pub(super) fn counted(&self, owner: OrganizationId) -> usize {
        self.running.iter().filter(|run| run.row.2 == owner && !run.yields).count()
    }

    fn step(&mut self) -> bool {
        let has_turns = self.lanes.has_turns();
        let next = self.lanes.next();
        assert!(has_turns || next.is_none(), "nobody would have looked");
        match next {
            None => false,
            Some(Next::AdmitStep { .. }) => true,
            Some(Next::Start { lane, ticket, task }) => {
                let owner = ticket.organization;
                let cap = self.caps.get(&owner).copied().unwrap_or(usize::MAX);
                assert!(self.counted(owner) < cap, "{owner} runs over its cap");
                let row = (number(&lane), ticket.id, owner);
                assert!(self.disk.contains(&row), "it starts what is not there");
                assert!(self.running.iter().all(|run| run.row != row), "it runs twice at once");
                self.started.push(row);
                self.running.push(Running { row, yields: false, _task: task });
                true
            }
            Some(Next::Refill { lane, organization: of, from, most }) => {
                self.reads += 1;
                let lane = number(&lane);
                let of_it = |row: &&Row| row.0 == lane && row.1 >= from && row.2 == of;
                let rows = self.disk.iter().filter(of_it).copied();
                let mut rows = rows
                    .inspect(|_| self.rows_read += 1)
                    .filter(|row| !self.lanes.knows(&name(lane), row.1));
                let found = rows.by_ref().take(most).collect();
                let more_from = rows.next().map(|row| row.1);
                self.refills.push(Refill { lane, of, rows: found, more_from });
                true
            }
        }
    }

    fn deliver(&mut self) {
        if let Some(Refill { lane, of, rows, more_from }) = self.refills.pop() {
            let rows = rows.into_iter().map(ticket).collect();
            self.lanes.refilled(&name(lane), of, rows, more_from);
        }
    }

    pub(super) fn settle(&mut self) {
        while self.step() {
            self.deliver();
        }
    }

    fn take(&mut self, which: usize) -> Option<Row> {
        let index = which.checked_rem(self.running.len())?;
        Some(self.running.remove(index).row)
    }

    pub(super) fn finish(&mut self, which: usize) {
        if let Some(row) = self.take(which) {
            self.disk.remove(&row);
            self.lanes.ended(row.2);
            self.lanes.release(&name(row.0), row.1);
        }
    }

    fn pause(&mut self, which: usize) {
        if let Some(row) = self.take(which) {
            self.lanes.pause(&name(row.0), ticket(row));
            self.paused.push(row);
        }
    }

    fn resume(&mut self, which: usize) {
        if let Some(index) = which.checked_rem(self.paused.len()) {
            let row = self.paused.remove(index);
            self.lanes.resume(&name(row.0), row.1);
        }
    }

    pub(super) fn yields(&mut self, which: usize, does: bool) {
        let Some(index) = which.checked_rem(self.running.len()) else { return };
        let run = &mut self.running[index];
        run.yields = does;
        let parking = if does { Parking::ForOthers } else { Parking::Not };
        self.lanes.park(&name(run.row.0), run.row.1, parking);
    }

    fn cancel(&mut self, which: usize) {
        let runs = |row: &&Row| self.running.iter().any(|run| run.row == **row);
        let waiting: Vec<Row> = self.disk.iter().filter(|row| !runs(row)).copied().collect();
        let Some(index) = which.checked_rem(waiting.len()) else { return };
        let row = waiting[index];
        self.disk.remove(&row);
        self.paused.retain(|paused| *paused != row);
        self.lanes.ended(row.2);
        self.lanes.forget(&name(row.0), row.1);
    }

    /// Asserts that an organization that runs fewer executions than its guaranteed number of
    /// permits does not wait in any lane that is below the lane's cap.
    pub(super) fn assert_own_places(&self, lane_cap: usize, own: usize) {
        let held = |row: &Row| self.paused.contains(row) || self.runs(row);
        for row in self.disk.iter().filter(|row| !held(row)) {
            let in_lane = self.running.iter().filter(|run| run.row.0 == row.0).count();
            let most = self.caps.get(&row.2).map_or(own, |cap| own.min(*cap));
            let placed = self.running.iter().filter(|run| run.row.2 == row.2).count();
            let is_served = self.counted(row.2) >= most || placed >= own * 2;
            assert!(is_served || in_lane >= lane_cap, "{row:?} waits for others");
        }
    }

    fn runs(&self, row: &Row) -> bool {
        self.running.iter().any(|run| run.row == *row)
    }

    pub(super) fn invariants(&mut self) {
        for number in 0..4 {
            let owner = organization(number);
            let running = self.counted(owner);
            let unfinished = self.disk.iter().filter(|row| row.2 == owner).count();
            let load = self.lanes.load_of(owner);
            let queued = unfinished - running;
            assert_eq!((load.running, load.queued), (running, queued), "the counts");
        }
        for lane in 0..LANES {
            let rows = self.disk.iter().filter(|row| row.0 == lane).count();
            let running = self.running.iter().filter(|run| run.row.0 == lane).count();
            let load = self.lanes.load(&name(lane));
            assert_eq!((load.running, load.queued), (running, rows - running), "of the lane");
            for owner in (0..4).map(organization) {
                let rows = self.disk.iter().filter(|row| row.0 == lane && row.2 == owner).count();
                let own = |run: &&Running| run.row.0 == lane && run.row.2 == owner;
                let running = self.running.iter().filter(own).count();
                let share = self.lanes.share(&name(lane), owner, Some(rows));
                assert_eq!((share.running, share.queued), (running, rows - running), "its share");
            }
        }
        assert!(!self.lanes.recount(), "the places were counted wrong");
    }
}

#[derive(Debug, Clone)]
enum Act {
    Submit(usize, u8, bool),
    Step,
    Refill,
    Finish(usize),
    Pause(usize),
    Resume(usize),
    Yield(usize, bool),
    Cancel(usize),
    Cap(u8, Option<usize>),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..LANES, 0_u8..4, prop::bool::weighted(0.2))
            .prop_map(|(lane, owner, spills)| Act::Submit(lane, owner, spills)),
        6 => Just(Act::Step),
        3 => Just(Act::Refill),
        3 => any::<usize>().prop_map(Act::Finish),
        1 => any::<usize>().prop_map(Act::Pause),
        1 => any::<usize>().prop_map(Act::Resume),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, does)| Act::Yield(which, does)),
        1 => any::<usize>().prop_map(Act::Cancel),
        1 => (0_u8..4, prop::option::of(1_usize..4)).prop_map(|(owner, cap)| Act::Cap(owner, cap)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn organization_never_starts_over_its_cap_and_everything_runs(
        lane_cap in 1_usize..4,
        active in 1_usize..10,
        acts in prop::collection::vec(acts(), 0..150),
    ) {
        let mut fixture = Fixture::new(lane_cap, active, &[(1, 1), (2, 2)]);
        for act in acts {
            match act {
                Act::Submit(lane, owner, spills) => fixture.submit(lane, owner, spills),
                Act::Step => {
                    fixture.step();
                }
                Act::Refill => fixture.deliver(),
                Act::Finish(which) => fixture.finish(which),
                Act::Pause(which) => fixture.pause(which),
                Act::Resume(which) => fixture.resume(which),
                Act::Yield(which, does) => fixture.yields(which, does),
                Act::Cancel(which) => fixture.cancel(which),
                Act::Cap(owner, cap) => fixture.cap(owner, cap),
            }
            fixture.invariants();
        }
        while !fixture.refills.is_empty() {
            fixture.settle();
            fixture.deliver();
        }
        fixture.settle();
        fixture.assert_own_places(lane_cap, OWN_PLACES.min(active.div_ceil(4)));
        for _ in 0..1000 {
            while fixture.step() {}
            fixture.deliver();
            fixture.resume(0);
            fixture.finish(0);
        }
        fixture.invariants();
        prop_assert!(fixture.disk.is_empty(), "left waiting: {:?}", fixture.disk);
    }
}

#[test]
fn organization_at_its_cap_does_not_block_others_in_one_lane() {
    let mut fixture = Fixture::new(2, 10, &[(1, 1)]);
    for _ in 0..20 {
        fixture.submit(0, 1, false);
    }
    fixture.submit(0, 2, false);
    fixture.settle();
    let owners: Vec<_> = fixture.started.iter().map(|row| row.2).collect();
    assert_eq!(owners, [organization(1), organization(2)]);
    let load = fixture.lanes.load_of(organization(1));
    assert_eq!(load, OrganizationLoad { running: 1, queued: 19 });
    // Nothing is reread while nothing can start.
    let reads = fixture.reads;
    assert!(!fixture.step());
    for _ in 0..19 {
        fixture.finish(0);
        fixture.settle();
    }
    // Each start causes one read, regardless of how many executions wait.
    assert!(fixture.reads - reads <= 40, "{} reads", fixture.reads - reads);
    let own: Vec<_> = fixture.started.iter().filter(|row| row.2 == organization(1)).collect();
    assert!(own.len() >= 18 && own.is_sorted(), "{own:?}");
}

#[test]
fn organization_at_its_cap_takes_turns_among_its_lanes() {
    let mut fixture = Fixture::new(4, 10, &[(1, 1)]);
    for lane in 0..LANES {
        for _ in 0..3 {
            fixture.submit(lane, 1, false);
        }
    }
    fixture.settle();
    for _ in 0..8 {
        fixture.finish(0);
        fixture.settle();
    }
    let mut lanes: Vec<_> = fixture.started.iter().map(|row| row.0).collect();
    assert_eq!(lanes.len(), 9);
    let mut first = lanes.drain(..3).collect::<Vec<_>>();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2]);
}

/// A parent that waits for its child does not count toward its organization's cap, so a cap of one
/// suffices.
#[test]
fn organization_with_cap_of_one_runs_child_of_waiting_parent() {
    let mut fixture = Fixture::new(4, 10, &[(1, 1)]);
    fixture.submit(0, 1, false);
    fixture.settle();
    fixture.submit(1, 1, false);
    fixture.settle();
    assert_eq!(fixture.running.len(), 1);
    fixture.yields(0, true);
    fixture.settle();
    assert_eq!(fixture.running.len(), 2);
    fixture.yields(0, false);
    fixture.submit(2, 1, false);
    fixture.finish(1);
    fixture.settle();
    assert_eq!(fixture.running.len(), 1, "the parent goes on, and nothing beside it");
}

#[test]
fn organization_cap_change_ends_nothing_when_lowered_and_starts_all_when_lifted() {
    let mut fixture = Fixture::new(10, 10, &[]);
    for _ in 0..6 {
        fixture.submit(0, 1, false);
    }
    fixture.settle();
    fixture.cap(1, Some(2));
    for _ in 0..3 {
        fixture.submit(1, 1, false);
    }
    fixture.settle();
    assert_eq!(fixture.running.len(), 6);
    for _ in 0..4 {
        fixture.finish(0);
        fixture.settle();
    }
    assert_eq!(fixture.running.len(), 2);
    fixture.finish(0);
    fixture.settle();
    assert_eq!(fixture.running.len(), 2);
    fixture.cap(1, None);
    fixture.settle();
    assert_eq!(fixture.running.len(), 4);
}

/// All rows of the organization in the lane that was read have been cancelled, and only work of
/// other organizations is left in this lane. So the next lane is read.
#[test]
fn organization_continues_in_another_lane_when_read_rows_are_cancelled() {
    for is_in_window in [false, true] {
        let mut fixture = Fixture::new(1, 10, &[(1, 1)]);
        for lane in 0..LANES {
            fixture.submit(lane, 1, false);
            fixture.settle();
        }
        fixture.finish(0);
        assert!(fixture.step(), "lane 1 is read for it");
        if is_in_window {
            fixture.deliver();
        }
        fixture.cancel(0);
        fixture.submit(1, 2, false);
        fixture.deliver();
        fixture.settle();
        let runs: Vec<_> = fixture.running.iter().map(|run| (run.row.0, run.row.2)).collect();
        assert_eq!(runs, [(1, organization(2)), (2, organization(1))]);
    }
}

/// The next execution in the lane may not start, so the waiting step is admitted at once.
#[test]
fn organization_at_its_cap_does_not_delay_waiting_step() {
    let mut fixture = Fixture::new(1, 10, &[(1, 1)]);
    fixture.submit(1, 1, false);
    fixture.settle();
    fixture.lanes.enqueue_step(&name(0), None, 1, false);
    let next = fixture.lanes.next();
    assert!(matches!(next, Some(Next::AdmitStep { waiter: 1, .. })), "{next:?}");
    fixture.submit(0, 1, false);
    fixture.lanes.enqueue_step(&name(0), None, 2, false);
    assert!(!fixture.step(), "the only place is taken");
    fixture.lanes.release_step(&name(0), None);
    let next = fixture.lanes.next();
    assert!(matches!(next, Some(Next::AdmitStep { waiter: 2, .. })), "{next:?}");
    // The execution left on disk starts when both permits are free.
    fixture.lanes.release_step(&name(0), None);
    fixture.finish(0);
    fixture.settle();
    assert_eq!(fixture.started.len(), 2);
    fixture.invariants();
}

#[test]
fn organization_over_its_queue_limit_is_rejected_and_others_are_not() {
    let mut lanes = Lanes::<(), ()>::new(4);
    let one = organization(1);
    lanes.admit(one, Some(2)).unwrap();
    lanes.admit(one, Some(2)).unwrap();
    assert_eq!(lanes.admit(one, Some(2)), Err(Full { queued: 2 }));
    assert_eq!(lanes.admit(organization(2), Some(2)), Ok(()));
    lanes.ended(one);
    assert_eq!(lanes.admit(one, Some(2)), Ok(()));
}

#[test]
fn organizations_take_turns_in_a_lane_despite_uneven_backlogs() {
    let mut fixture = Fixture::new(1, 10, &[]);
    for _ in 0..WINDOW + 50 {
        fixture.submit(0, 1, false);
    }
    // More executions than the organization's share of the window, so the rest must be read
    // separately.
    const OTHERS: usize = SHARE + 4;
    for _ in 0..OTHERS {
        fixture.submit(0, 2, false);
    }
    fixture.settle();
    for _ in 0..OTHERS * 2 {
        fixture.finish(0);
        fixture.settle();
        fixture.invariants();
    }
    let of_other = fixture.started.iter().filter(|row| row.2 == organization(2));
    assert_eq!(of_other.clone().count(), OTHERS, "every second start was its own");
    assert!(of_other.map(|row| row.1).is_sorted(), "in their order");
    while !fixture.disk.is_empty() {
        fixture.finish(0);
        fixture.settle();
    }
    assert_eq!(fixture.started.len(), WINDOW + 50 + OTHERS);
    let of_first = fixture.started.iter().filter(|row| row.2 == organization(1));
    assert!(of_first.map(|row| row.1).is_sorted());
}

#[test]
fn organization_without_runs_may_exceed_cap_of_lane_whose_runner_has_places() {
    let mut fixture = Fixture::new(2, 10, &[]);
    fixture.lanes.let_exceed(&name(0), true);
    for lane in [0, 1] {
        for owner in [1, 1, 1, 2, 2, 3] {
            fixture.submit(lane, owner, false);
        }
    }
    fixture.settle();
    let started = |lane| {
        let rows = fixture.started.iter().filter(|row| row.0 == lane);
        rows.map(|row| row.2).collect::<Vec<_>>()
    };
    let [one, two, three] = [1, 2, 3].map(organization);
    assert_eq!(started(0), [one, two, three]);
    assert_eq!(started(1), [one, two]);
}

#[test]
fn waiting_steps_of_organizations_take_turns() {
    let mut fixture = Fixture::new(1, 10, &[]);
    assert!(fixture.lanes.try_acquire(&name(0), None));
    for (waiter, owner) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        fixture.lanes.enqueue_step(&name(0), Some(organization(owner)), waiter, false);
    }
    let (mut admitted, mut holder) = (Vec::new(), None);
    for _ in 0..4 {
        fixture.lanes.release_step(&name(0), holder);
        let Some(Next::AdmitStep { waiter, .. }) = fixture.lanes.next() else { break };
        admitted.push(waiter);
        holder = Some(organization(if waiter == 4 { 2 } else { 1 }));
    }
    assert_eq!(admitted, [1, 4, 2, 3]);
}

/// After a restart with a backlog of one organization, a new execution of another organization runs
/// next.
#[test]
fn organization_new_after_a_start_does_not_wait_behind_backlog() {
    const BACKLOG: u32 = 5000;
    let mut fixture = Fixture::new(1, 10, &[]);
    fixture.find_at_start(0, 1, BACKLOG);
    fixture.settle();
    for owner in 2..6 {
        fixture.submit(0, owner, false);
    }
    for _ in 0..5 {
        fixture.finish(0);
        fixture.settle();
    }
    let owners: BTreeSet<_> = fixture.started.iter().map(|row| row.2).collect();
    assert_eq!(owners.len(), 5, "each of them in the first round");
    // An organization with a backlog that is found at startup takes turns as well.
    fixture.find_at_start(0, 6, 3);
    for _ in 0..6 {
        fixture.finish(0);
        fixture.settle();
        fixture.invariants();
    }
    let found = fixture.started.iter().filter(|row| row.2 == organization(6));
    assert_eq!(found.count(), 3);
    let runs = fixture.started.len();
    assert!(fixture.rows_read < WINDOW + 4 * runs, "{} rows for {runs} runs", fixture.rows_read);
}

/// The other organizations keep the window full. Executions whose rows are only on disk still get
/// their turns.
#[test]
fn organization_with_rows_on_disk_is_not_starved_by_steady_load_of_others() {
    const ROWS: usize = 300;
    const OTHERS: u8 = 20;
    for cap in [None, Some(2)] {
        let mut fixture = Fixture::new(4, 10, &[]);
        fixture.cap(1, cap);
        for _ in 0..ROWS {
            fixture.submit(0, 1, false);
        }
        for owner in 2..2 + OTHERS {
            for _ in 0..SHARE {
                fixture.submit(0, owner, false);
            }
        }
        fixture.settle();
        // Each organization has one turn per round.
        let rounds = ROWS + 50;
        for _ in 0..rounds * (usize::from(OTHERS) + 1) {
            let ended = fixture.running[0].row.2;
            fixture.finish(0);
            if ended != organization(1) {
                fixture.submit(0, ended.bytes()[0], false);
            }
            fixture.settle();
        }
        let own = fixture.started.iter().filter(|row| row.2 == organization(1));
        assert!(own.clone().map(|row| row.1).is_sorted(), "in their order");
        assert_eq!(own.count(), ROWS, "with a cap of {cap:?}");
        let runs = fixture.started.len();
        assert!(fixture.rows_read < 4 * runs, "{} rows for {runs} runs", fixture.rows_read);
    }
}

/// Starting an execution of one organization does not reread the rows of other organizations in the
/// lane.
#[test]
fn organization_at_its_cap_reads_no_rows_of_others() {
    let mut fixture = Fixture::new(2, 10, &[(2, 1)]);
    fixture.find_at_start(0, 1, 3000);
    fixture.find_at_start(0, 2, 60);
    fixture.settle();
    for _ in 0..240 {
        fixture.finish(0);
        fixture.settle();
    }
    let capped = fixture.started.iter().filter(|row| row.2 == organization(2));
    assert_eq!(capped.count(), 60);
    let runs = fixture.started.len();
    assert!(fixture.rows_read < WINDOW + 4 * runs, "{} rows for {runs} runs", fixture.rows_read);
}

/// A resumed attempt goes first within its organization; other organizations keep their turns.
#[test]
fn organization_whose_attempt_is_resumed_does_not_overtake_others() {
    let mut fixture = Fixture::new(1, 10, &[]);
    for owner in [1, 1, 2, 3] {
        fixture.submit(0, owner, false);
    }
    fixture.settle();
    let first = fixture.running[0].row;
    fixture.pause(0);
    fixture.settle();
    fixture.submit(0, 1, false);
    fixture.resume(0);
    for _ in 0..4 {
        fixture.finish(0);
        fixture.settle();
    }
    let owners: Vec<_> = fixture.started.iter().map(|row| row.2).collect();
    assert_eq!(owners, [1, 2, 3, 1, 1, 1].map(organization));
    assert_eq!(fixture.started[3], first);
}

/// The end of an execution triggers a read only for its own organization, regardless of how many
/// others wait at their caps.
#[test]
fn organizations_at_their_caps_are_not_polled_when_one_of_them_ends() {
    const ORGANIZATIONS: u8 = 250;
    let mut fixture = Fixture::new(1000, 1000, &[]);
    for owner in 1..=ORGANIZATIONS {
        fixture.cap(owner, Some(1));
        for _ in 0..3 {
            fixture.submit(0, owner, false);
        }
    }
    fixture.settle();
    assert_eq!(fixture.running.len(), usize::from(ORGANIZATIONS));
    for _ in 0..ORGANIZATIONS {
        let (reads, rows_read) = (fixture.reads, fixture.rows_read);
        fixture.finish(0);
        assert!(fixture.lanes.woken.len() + fixture.lanes.schedule.len() <= 2);
        fixture.settle();
        assert_eq!((fixture.reads - reads, fixture.rows_read - rows_read), (1, 2));
    }
}
