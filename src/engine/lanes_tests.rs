//! Lanes against a model of the disk: whatever is submitted, taken, cancelled and refilled, each
//! execution starts exactly once, in the order of its lane, under the caps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn id(number: u32) -> ExecutionId {
    let mut bytes = [0; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

/// The lanes with the rows that would stand on the disk.
struct World {
    lanes: Lanes<(), u32>,
    disk: BTreeMap<(usize, ExecutionId), ()>,
    running: Vec<(usize, ExecutionId)>,
    started: Vec<(usize, ExecutionId)>,
    refills: Vec<(usize, Vec<ExecutionId>, bool)>,
    /// Guests that wait, as lane, number and name.
    asking: Vec<(usize, u64, u32)>,
    /// Guests that are in.
    admitted: Vec<(usize, u32)>,
    next_id: u32,
    cap: usize,
}

const PAGE: usize = 3;

fn name(lane: usize) -> String {
    format!("lane-{lane}")
}

impl World {
    fn new(lanes: usize, cap: usize, active: usize) -> Self {
        let mut world = Self {
            lanes: Lanes::new(active),
            disk: BTreeMap::new(),
            running: Vec::new(),
            started: Vec::new(),
            refills: Vec::new(),
            asking: Vec::new(),
            admitted: Vec::new(),
            next_id: 0,
            cap,
        };
        for lane in 0..lanes {
            world.lanes.set_limits(&name(lane), cap, 1000);
        }
        world
    }

    fn submit(&mut self, lane: usize, through_disk: bool) {
        self.lanes.reserve(&name(lane)).unwrap();
        self.next_id += 1;
        let id = id(self.next_id);
        self.disk.insert((lane, id), ());
        if through_disk {
            self.lanes.spill(&name(lane));
            if let Some(lane) = self.lanes.lanes.get_mut(name(lane).as_str())
                && let Some(refilling) = &mut lane.refilling
            {
                refilling.missed = true;
            }
        } else {
            self.lanes.push(&name(lane), Ticket { id, payload: () });
        }
    }

    fn step(&mut self) -> bool {
        match self.lanes.next() {
            None => false,
            Some(Next::Admit { lane, guest }) => {
                self.admitted.push((lane.trim_start_matches("lane-").parse().unwrap(), guest));
                true
            }
            Some(Next::Start { lane, ticket }) => {
                let lane: usize = lane.trim_start_matches("lane-").parse().unwrap();
                self.started.push((lane, ticket.id));
                self.running.push((lane, ticket.id));
                true
            }
            Some(Next::Refill { lane }) => {
                let lane: usize = lane.trim_start_matches("lane-").parse().unwrap();
                let limit = PAGE + self.lanes.running(&name(lane));
                let rows: Vec<_> =
                    self.disk.keys().filter(|(l, _)| *l == lane).map(|(_, id)| *id).collect();
                let complete = rows.len() <= limit;
                self.refills.push((lane, rows.into_iter().take(limit).collect(), complete));
                true
            }
        }
    }

    fn deliver_refill(&mut self) {
        if let Some((lane, rows, complete)) = self.refills.pop() {
            let rows = rows.into_iter().map(|id| Ticket { id, payload: () }).collect();
            self.lanes.refilled(&name(lane), rows, complete);
        }
    }

    fn finish(&mut self, which: usize) {
        if self.running.is_empty() {
            return;
        }
        let (lane, id) = self.running.remove(which % self.running.len());
        self.disk.remove(&(lane, id));
        self.lanes.release(&name(lane), id);
    }

    fn cancel(&mut self, which: usize) {
        let waiting: Vec<_> =
            self.disk.keys().filter(|row| !self.running.contains(row)).copied().collect();
        if waiting.is_empty() {
            return;
        }
        let (lane, id) = waiting[which % waiting.len()];
        self.disk.remove(&(lane, id));
        self.lanes.forget(&name(lane), id);
    }

    fn ask(&mut self, lane: usize) {
        self.next_id += 1;
        if self.lanes.enter(&name(lane)) {
            self.admitted.push((lane, self.next_id));
        } else {
            let number = self.lanes.ask(&name(lane), self.next_id);
            self.asking.push((lane, number, self.next_id));
        }
    }

    fn leave(&mut self, which: usize) {
        if !self.admitted.is_empty() {
            let (lane, _) = self.admitted.remove(which % self.admitted.len());
            self.lanes.leave(&name(lane));
        }
    }

    fn withdraw(&mut self, which: usize) {
        self.settle_guests();
        if !self.asking.is_empty() {
            let (lane, number, _) = self.asking.remove(which % self.asking.len());
            self.lanes.withdraw(&name(lane), number);
        }
    }

    /// Those that are in ask no more.
    fn settle_guests(&mut self) {
        let admitted = &self.admitted;
        self.asking.retain(|(lane, _, guest)| !admitted.contains(&(*lane, *guest)));
    }

    fn invariants(&mut self) {
        self.settle_guests();
        for lane in 0..3 {
            let own = self.running.iter().filter(|(l, _)| *l == lane).count();
            let running = own + self.admitted.iter().filter(|(l, _)| *l == lane).count();
            assert!(running <= self.cap, "a lane runs over its cap");
            let on_disk = self.disk.keys().filter(|(l, _)| *l == lane).count();
            let queued = on_disk - own + self.asking.iter().filter(|(l, ..)| *l == lane).count();
            let load = self.lanes.load(&name(lane));
            assert_eq!((load.running, load.queued), (running, queued), "the counts");
        }
        let mut seen = self.started.clone();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), self.started.len(), "one started twice");
    }
}

#[derive(Debug, Clone)]
enum Act {
    Submit(usize, bool),
    Step,
    Refill,
    Finish(usize),
    Cancel(usize),
    Ask(usize),
    Leave(usize),
    Withdraw(usize),
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_usize..3, any::<bool>()).prop_map(|(lane, disk)| Act::Submit(lane, disk)),
        6 => Just(Act::Step),
        3 => Just(Act::Refill),
        3 => any::<usize>().prop_map(Act::Finish),
        1 => any::<usize>().prop_map(Act::Cancel),
        2 => (0_usize..3).prop_map(Act::Ask),
        2 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Withdraw),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn each_starts_once_and_in_order(
        cap in 1_usize..4,
        active in 1_usize..6,
        acts in prop::collection::vec(acts(), 0..120),
    ) {
        let mut world = World::new(3, cap, active);
        for act in acts {
            match act {
                Act::Submit(lane, disk) => world.submit(lane, disk),
                Act::Step => { world.step(); }
                Act::Refill => world.deliver_refill(),
                Act::Finish(which) => world.finish(which),
                Act::Cancel(which) => world.cancel(which),
                Act::Ask(lane) => world.ask(lane),
                Act::Leave(which) => world.leave(which),
                Act::Withdraw(which) => world.withdraw(which),
            }
            world.invariants();
            prop_assert!(world.running.len() <= active);
        }
        // Liveness: let everything end.
        for _ in 0..2000 {
            while world.step() {}
            world.deliver_refill();
            world.finish(0);
            world.settle_guests();
            world.leave(0);
        }
        world.invariants();
        prop_assert!(world.asking.is_empty(), "guests left waiting: {:?}", world.asking);
        prop_assert!(world.disk.is_empty(), "left waiting: {:?}", world.disk);
        for lane in 0..3 {
            let order: Vec<_> = world.started.iter().filter(|(l, _)| *l == lane).collect();
            prop_assert!(order.is_sorted(), "out of order: {order:?}");
        }
    }
}

#[test]
fn a_full_lane_refuses_and_another_takes() {
    let mut lanes: Lanes<(), u32> = Lanes::new(10);
    lanes.set_limits("a", 1, 1);
    lanes.set_limits("b", 1, 1);
    assert_eq!(lanes.reserve("a"), Ok(()));
    assert_eq!(lanes.reserve("a"), Err(Full { queued: 1 }));
    assert_eq!(lanes.reserve("b"), Ok(()));
    lanes.unreserve("a");
    assert_eq!(lanes.reserve("a"), Ok(()));
}

#[test]
fn places_go_round_the_lanes() {
    let mut world = World::new(2, 10, 4);
    for _ in 0..4 {
        world.submit(0, false);
    }
    for _ in 0..4 {
        world.submit(1, false);
    }
    while world.step() {}
    let lanes: Vec<_> = world.started.iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [0, 1, 0, 1]);
}

#[test]
fn guests_and_the_lanes_own_take_turns_at_a_place() {
    let mut world = World::new(1, 1, 10);
    world.submit(0, false);
    while world.step() {}
    for _ in 0..2 {
        world.ask(0);
        world.submit(0, false);
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        world.finish(0);
        world.leave(0);
        while world.step() {}
        order.push((world.running.len(), world.admitted.len()));
    }
    assert_eq!(order, [(0, 1), (1, 0), (0, 1), (1, 0)]);
}

/// A workflow that has its place must reach its models although no further place is left.
#[test]
fn guests_come_in_when_every_place_is_taken() {
    let mut world = World::new(2, 2, 2);
    for _ in 0..4 {
        world.submit(0, false);
    }
    while world.step() {}
    assert_eq!(world.running.len(), 2);
    world.ask(1);
    world.ask(1);
    world.ask(1);
    while world.step() {}
    assert_eq!(world.admitted.len(), 2);
}

/// Woken before it has left its place, it waits for that and then for its turn.
#[test]
fn one_that_returns_while_it_leaves_runs_once_more() {
    let mut world = World::new(1, 2, 2);
    world.submit(0, false);
    while world.step() {}
    let (_, id) = world.running[0];
    world.lanes.admit(&name(0), 1);
    world.lanes.push(&name(0), Ticket { id, payload: () });
    assert!(!world.step(), "it runs twice at once");
    world.lanes.release(&name(0), id);
    let load = world.lanes.load(&name(0));
    assert_eq!((load.running, load.queued), (0, 1));
    world.running.clear();
    assert!(world.step());
    world.lanes.release(&name(0), id);
    assert_eq!(world.lanes.totals(), (0, 0));
}
