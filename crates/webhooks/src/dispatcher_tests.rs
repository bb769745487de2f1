//! Tests of the dispatcher's rules: with specific numbers, and with random histories on a disk
//! simulated by two maps.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Options;
use crate::endpoint::RECORDING_MAX;
use orrery_domain::delivery::Webhook;
use orrery_domain::ids::DeliveryId;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

fn item(receiver: &str, number: u64) -> Item {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    Item {
        organization: OrganizationId::from([1; 16]),
        execution: ExecutionId::from(id),
        due: NOW,
        place: RowIndex::Due,
        receiver: Arc::from(receiver),
        carried: None,
    }
}

fn delivery(item: &Item) -> Delivery {
    let webhook = Webhook::unsigned("http://a/".to_owned());
    let body = serde_json::from_value(serde_json::json!({"inline": {}})).unwrap();
    let id = DeliveryId::from([1; 16]);
    Delivery::new(id, item.organization, item.execution, webhook, body, item.due)
}

fn started(dispatcher: &mut Dispatcher) -> Vec<Item> {
    std::iter::from_fn(|| dispatcher.next()).collect()
}

#[test]
fn dispatcher_grows_endpoint_concurrency_per_success_up_to_cap() {
    let mut dispatcher =
        Dispatcher::new(&Options { in_flight_per_receiver: 5, ..Options::default() });
    let mut number = 0;
    let mut in_flight = Vec::new();
    let mut most = Vec::new();
    for _round in 0..8 {
        while matches!(dispatcher.offer(item("a", number)), Admission::Queued) {
            number += 1;
        }
        dispatcher.forget(&[item("a", number)]);
        in_flight.extend(started(&mut dispatcher));
        most.push(in_flight.len());
        let first = in_flight.remove(0);
        assert!(dispatcher.finish(&first, Health::Healthy, NOW).is_empty());
    }
    assert_eq!(most, [2, 3, 4, 5, 5, 5, 5, 5]);
    dispatcher.finish(&in_flight.remove(0), Health::Failing, NOW);
    dispatcher.finish(&in_flight.remove(0), Health::Failing, NOW);
    assert!(started(&mut dispatcher).is_empty(), "one slot is left, and two are taken");
}

#[test]
fn dispatcher_answer_frees_slot_of_endpoint_while_outcome_is_recorded() {
    let mut dispatcher =
        Dispatcher::new(&Options { in_flight_per_receiver: 1, ..Options::default() });
    let mut recording = Vec::new();
    for number in 0..100 {
        dispatcher.offer(item("a", number));
        let Some(started) = dispatcher.next() else { break };
        assert!(dispatcher.next().is_none(), "one request at a time");
        dispatcher.answered(&started, Health::Healthy, NOW);
        // The response is reported twice but counts only once.
        dispatcher.answered(&started, Health::Failing, NOW);
        recording.push(started);
    }
    assert_eq!((recording.len(), dispatcher.in_flight()), (RECORDING_MAX, RECORDING_MAX));
    dispatcher.finish(&recording[0], Health::Healthy, NOW);
    assert!(dispatcher.next().is_some(), "there is room for one more outcome");
    assert_eq!(dispatcher.in_flight(), RECORDING_MAX);
}

#[test]
fn dispatcher_recording_delivery_is_not_offered_again() {
    let mut dispatcher = Dispatcher::new(&Options::default());
    dispatcher.offer(item("a", 1));
    let started = dispatcher.next().unwrap();
    dispatcher.answered(&started, Health::Healthy, NOW);
    assert!(
        matches!(dispatcher.offer(item("a", 1)), Admission::Queued) && dispatcher.next().is_none()
    );
    dispatcher.finish(&started, Health::Healthy, NOW);
    dispatcher.offer(item("a", 1));
    assert!(dispatcher.next().is_some());
}

#[test]
fn dispatcher_delivery_due_again_waits_for_the_end_of_its_attempt() {
    let mut dispatcher = Dispatcher::new(&Options::default());
    dispatcher.offer(item("a", 1));
    let started = dispatcher.next().unwrap();
    dispatcher.answered(&started, Health::Failing, NOW);
    let again = Item { due: NOW.plus(Duration::from_secs(1)), ..item("a", 1) };
    assert!(matches!(dispatcher.offer(again.clone()), Admission::Full), "it would be lost");
    dispatcher.finish(&started, Health::Failing, NOW);
    assert!(matches!(dispatcher.offer(again.clone()), Admission::Queued));
    assert_eq!(dispatcher.next().map(|item| item.due), Some(again.due));
}

/// Returns the number of rounds that 30 working receivers need for `each` deliveries each, while
/// `dead` other receivers never respond (`hang`) or fail immediately.
fn rounds_of_the_living(each: u64, dead: u64, hang: bool) -> u64 {
    let mut dispatcher = Dispatcher::new(&Options::default());
    let mut to_offer = [each; 30];
    let mut left = 30 * each;
    let mut rounds = 0;
    let mut number = 0;
    while left > 0 {
        for receiver in 0..dead {
            let offered = item(&format!("dead {receiver}"), 1_000_000 + rounds * dead + receiver);
            if let Admission::Park(item) = dispatcher.offer(offered) {
                dispatcher.parked(&[item]);
            }
        }
        for (receiver, to_offer) in to_offer.iter_mut().enumerate() {
            while *to_offer > 0 {
                match dispatcher.offer(item(&format!("living {receiver}"), number)) {
                    Admission::Queued => (*to_offer, number) = (*to_offer - 1, number + 1),
                    Admission::Park(item) => {
                        dispatcher.forget(&[item]);
                        break;
                    }
                    Admission::Full => break,
                }
            }
        }
        // All deliveries of a round are in flight at the same time.
        for item in started(&mut dispatcher) {
            if item.receiver.starts_with("living") {
                dispatcher.finish(&item, Health::Healthy, NOW);
                left -= 1;
            } else if !hang {
                let parked = dispatcher.finish(&item, Health::Failing, NOW);
                dispatcher.parked(&parked);
            }
        }
        rounds += 1;
        assert!(rounds < 10_000);
    }
    rounds
}

#[test]
fn dispatcher_dead_endpoints_do_not_slow_healthy_ones() {
    let alone = rounds_of_the_living(2000, 0, false);
    let slots = 30 * 2000 / alone;
    assert!(slots > 220, "the living alone use {slots} slots in a round");
    let beside_refusing = rounds_of_the_living(2000, 20, false);
    assert!(beside_refusing * 100 <= alone * 105, "{beside_refusing} rounds, {alone} alone");
    // Until they time out, 20 hanging receivers keep their two initial slots: 40 of 256.
    let beside_hanging = rounds_of_the_living(2000, 20, true);
    assert!(beside_hanging * 100 <= alone * 125, "{beside_hanging} rounds, {alone} alone");
}

#[test]
fn dispatcher_cap_of_one_holds_from_first_attempt() {
    let mut dispatcher =
        Dispatcher::new(&Options { in_flight_per_receiver: 1, ..Options::default() });
    for number in 0..3 {
        dispatcher.offer(item("a", number));
    }
    assert_eq!(started(&mut dispatcher).len(), 1);
}

#[test]
fn dispatcher_reserves_half_of_the_slots_for_healthy_endpoints() {
    let mut dispatcher = Dispatcher::new(&Options { in_flight: 100, ..Options::default() });
    dispatcher.offer(item("living", 0));
    let first = dispatcher.next().unwrap();
    dispatcher.finish(&first, Health::Healthy, NOW);
    for number in 1..=500 {
        dispatcher.offer(item(&format!("stranger {number}"), number));
    }
    assert_eq!(started(&mut dispatcher).len(), 50);
    dispatcher.offer(item("living", 1000));
    assert_eq!(started(&mut dispatcher).len(), 1, "the other half is kept for those that answer");
}

#[test]
fn dispatcher_circuit_opens_probes_and_closes() {
    let options = Options { circuit_failures: 3, ..Options::default() };
    let mut dispatcher = Dispatcher::new(&options);
    let mut parked = Vec::new();
    for number in 0..8 {
        dispatcher.offer(item("a", number));
    }
    for _failure in 0..3 {
        let item = dispatcher.next().unwrap();
        parked.extend(dispatcher.finish(&item, Health::Failing, NOW));
    }
    assert_eq!((dispatcher.open_circuits(), parked.len()), (1, 5), "what waited goes to the disk");
    let until = NOW.plus(options.circuit_open);
    let circuit = Circuit { failures: 3, open_until: until };
    assert_eq!(dispatcher.take_changes(), [CircuitChange::Opened(Arc::from("a"), circuit)]);
    dispatcher.parked(&parked);
    assert!(matches!(dispatcher.offer(item("a", 50)), Admission::Park(_)));
    dispatcher.forget(&[item("a", 50)]);
    assert!(dispatcher.next_to_refill().is_none() && dispatcher.next().is_none());

    dispatcher.reopen(Timestamp::from_micros(until.micros() - 1));
    assert!(dispatcher.next_to_refill().is_none());
    let on_disk: Vec<Item> =
        parked.iter().map(|item| Item { place: RowIndex::Parked, ..item.clone() }).collect();
    for (health, now) in
        [(Health::Failing, until), (Health::Healthy, NOW.plus(2 * options.circuit_open))]
    {
        dispatcher.reopen(now);
        let refill = dispatcher.next_to_refill().unwrap();
        dispatcher.refilled(&refill.receiver, on_disk.clone(), true);
        let probe = dispatcher.next().unwrap();
        assert!(dispatcher.next().is_none(), "one probe at a time");
        assert!(dispatcher.finish(&probe, health, now).is_empty());
    }
    assert_eq!(dispatcher.open_circuits(), 0);
    assert_eq!(dispatcher.take_changes().last(), Some(&CircuitChange::Closed(Arc::from("a"))));
    let refill = dispatcher.next_to_refill().unwrap();
    dispatcher.refilled(&refill.receiver, on_disk[1..].to_vec(), true);
    assert!(dispatcher.next().is_some());
}

#[test]
fn dispatcher_memory_is_bounded() {
    let mut dispatcher = Dispatcher::new(&Options::default());
    let mut most_held = 0;
    let mut most_receivers = 0;
    for number in 0..100_000 {
        let offered = item(&format!("r{}", number % 20_000), number);
        if let Admission::Park(item) = dispatcher.offer(offered) {
            dispatcher.parked(&[item]);
        }
        // Some circuits open, so receivers may stay in memory without deliveries.
        most_held = most_held.max(dispatcher.queued());
        most_receivers = most_receivers.max(dispatcher.endpoints());
        if number > 10_000
            && let Some(item) = dispatcher.next()
        {
            for _failure in 0..10 {
                let name = Arc::clone(&item.receiver);
                let parked = dispatcher.failed(&name, NOW);
                dispatcher.parked(&parked);
            }
            dispatcher.finish(&item, Health::Unknown, NOW);
        }
    }
    assert_eq!((most_held, most_receivers), (WINDOW, ENDPOINTS_MAX));
}

#[test]
fn dispatcher_reads_each_parked_row_once() {
    let mut play = Play::new();
    for number in 0..1000 {
        let parked = Item { place: RowIndex::Parked, ..item("a", number) };
        play.disk.parked.insert((Arc::clone(&parked.receiver), parked.execution), parked);
    }
    play.dispatcher.restore_endpoint(&Arc::from("a"), NOW, None, NOW);
    while play.disk.delivered.len() < 1000 {
        play.feed();
        play.start();
        play.answer(0, Health::Healthy);
        if play.recording.len() > 5 {
            play.end_recording(true);
        }
        if play.in_flight.is_empty() {
            play.end_recording(true);
        }
        play.check();
    }
    assert_eq!(play.rows_read, 1000);
}

/// The disk as the dispatcher's caller sees it, and the delivered items.
#[derive(Debug, Default)]
struct Disk {
    due: BTreeMap<ExecutionId, Item>,
    parked: BTreeMap<(EndpointName, ExecutionId), Item>,
    delivered: BTreeSet<ExecutionId>,
}

#[derive(Debug)]
struct Play {
    dispatcher: Dispatcher,
    disk: Disk,
    to_park: Vec<Item>,
    in_flight: Vec<Item>,
    /// Attempts that got a response, with their health, and whose outcome is not on the disk yet.
    recording: Vec<(Item, Health)>,
    /// Number of parked rows that were read, deleted rows excluded.
    rows_read: usize,
    now: Timestamp,
}

impl Play {
    fn new() -> Self {
        let options = Options {
            in_flight: 6,
            in_flight_per_receiver: 3,
            circuit_failures: 3,
            ..Options::default()
        };
        Self {
            dispatcher: Dispatcher::new(&options),
            disk: Disk::default(),
            to_park: Vec::new(),
            in_flight: Vec::new(),
            recording: Vec::new(),
            rows_read: 0,
            now: NOW,
        }
    }

    fn offer(&mut self, item: Item) {
        if let Admission::Park(item) = self.dispatcher.offer(item) {
            self.to_park.push(item);
        }
    }

    fn scan(&mut self) {
        let due: Vec<Item> = self.disk.due.values().cloned().collect();
        due.into_iter().for_each(|item| self.offer(item));
    }

    fn park(&mut self) {
        for item in &self.to_park {
            self.disk.due.remove(&item.execution);
            let parked = Item { place: RowIndex::Parked, ..item.clone() };
            self.disk.parked.insert((Arc::clone(&item.receiver), item.execution), parked);
        }
        self.dispatcher.parked(&std::mem::take(&mut self.to_park));
    }

    fn feed(&mut self) {
        let Some(refill) = self.dispatcher.next_to_refill() else { return };
        let rows = self.disk.parked.values().filter(|item| item.receiver == refill.receiver);
        let mut items: Vec<Item> = rows.cloned().collect();
        items.sort_by_key(Item::key);
        items.retain(|item| refill.after.as_ref().is_none_or(|after| item.key() > *after));
        items.truncate(refill.limit);
        self.rows_read += items.len();
        items.iter_mut().for_each(|item| item.carried = Some(Box::new(delivery(item))));
        let complete = items.len() < refill.limit;
        self.dispatcher.refilled(&refill.receiver, items, complete);
    }

    fn start(&mut self) {
        let started = self.dispatcher.next();
        self.in_flight.extend(started.map(|item| Item { carried: None, ..item }));
    }

    fn finish(&mut self, which: usize, health: Health) {
        if self.in_flight.is_empty() {
            return;
        }
        let item = self.in_flight.swap_remove(which % self.in_flight.len());
        self.record(item, health);
    }

    fn answer(&mut self, which: usize, health: Health) {
        if self.in_flight.is_empty() {
            return;
        }
        let item = self.in_flight.swap_remove(which % self.in_flight.len());
        let parked = self.dispatcher.answered(&item, health, self.now);
        self.to_park.extend(parked);
        self.recording.push((item, health));
    }

    /// Writes the outcome of the oldest response to the disk, unless `is_recorded` is false.
    fn end_recording(&mut self, is_recorded: bool) {
        if !self.recording.is_empty() {
            let (item, health) = self.recording.remove(0);
            self.record(item, if is_recorded { health } else { Health::Unknown });
        }
    }

    fn record(&mut self, item: Item, health: Health) {
        // An attempt without a result does not change the delivery's row; any other attempt moves
        // the row.
        if health != Health::Unknown {
            self.disk.due.remove(&item.execution);
            self.disk.parked.remove(&(Arc::clone(&item.receiver), item.execution));
        }
        match health {
            Health::Healthy => assert!(self.disk.delivered.insert(item.execution), "sent twice"),
            Health::Failing => {
                let retry = Item { place: RowIndex::Due, ..item.clone() };
                self.disk.due.insert(retry.execution, retry);
            }
            Health::Unknown => {}
        }
        let parked = self.dispatcher.finish(&item, health, self.now);
        self.to_park.extend(parked);
    }

    fn restart(&mut self) {
        let disk = std::mem::take(&mut self.disk);
        let now = self.now;
        *self = Self { disk, now, ..Self::new() };
        let parked: Vec<Item> = self.disk.parked.values().cloned().collect();
        for item in parked {
            self.dispatcher.restore_endpoint(&item.receiver, item.due, None, self.now);
        }
    }

    fn check(&self) {
        let dispatcher = &self.dispatcher;
        let attempts = self.in_flight.len() + self.recording.len();
        assert_eq!(dispatcher.in_flight(), attempts);
        assert!(dispatcher.in_flight() <= 6);
        for (name, receiver) in &dispatcher.receivers {
            let in_flight = self.in_flight.iter().filter(|item| item.receiver == *name).count();
            assert_eq!(receiver.in_flight, in_flight);
            assert!(receiver.in_flight <= 3);
            let recording = self.recording.iter().filter(|(item, _)| item.receiver == *name);
            assert_eq!(receiver.recording, recording.count());
        }
        let waiting: usize = dispatcher.receivers.values().map(|r| r.waiting.len()).sum();
        assert_eq!(dispatcher.queued(), waiting + attempts + self.to_park.len());
        let queued = dispatcher.receivers.values().flat_map(|receiver| &receiver.waiting);
        let carried = queued.filter(|item| item.carried.is_some()).count();
        assert_eq!(dispatcher.carried, carried);
        let active = dispatcher.receivers.values().filter(|r| r.is_active()).count();
        assert_eq!(dispatcher.active, active);
        let proven = dispatcher.receivers.values().filter(|r| r.is_active() && r.proven).count();
        assert_eq!(dispatcher.proven_active, proven);
        let open =
            dispatcher.receivers.values().filter(|r| r.circuit != CircuitState::Closed).count();
        assert_eq!(dispatcher.open_circuits(), open);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Arrive(u8),
    Scan,
    Park,
    Feed,
    Start,
    Finish(usize, u8),
    Answer(usize, u8),
    EndRecording(bool),
    TimePasses,
    Restart,
}

fn health(number: u8) -> Health {
    match number {
        0 => Health::Healthy,
        1 => Health::Unknown,
        _ => Health::Failing,
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_u8..5).prop_map(Op::Arrive),
        1 => Just(Op::Scan),
        3 => Just(Op::Park),
        3 => Just(Op::Feed),
        6 => Just(Op::Start),
        6 => (0_usize..8, 0_u8..4).prop_map(|(which, health)| Op::Finish(which, health)),
        6 => (0_usize..8, 0_u8..4).prop_map(|(which, health)| Op::Answer(which, health)),
        6 => (0_u8..6).prop_map(|fault| Op::EndRecording(fault > 0)),
        1 => Just(Op::TimePasses),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #[test]
    fn dispatcher_delivers_everything_once_endpoints_recover(
        ops in prop::collection::vec(op(), 0..400),
    ) {
        let mut play = Play::new();
        let mut arrived = 0;
        for op in ops {
            match op {
                Op::Arrive(receiver) => {
                    // Some deliveries are due before others that arrived earlier.
                    let due = NOW.plus(Duration::from_micros(arrived / 2 % 7));
                    let item = Item { due, ..item(&format!("r{receiver}"), arrived) };
                    arrived += 1;
                    play.disk.due.insert(item.execution, item.clone());
                    play.offer(item);
                }
                Op::Scan => play.scan(),
                Op::Park => play.park(),
                Op::Feed => play.feed(),
                Op::Start => play.start(),
                Op::Finish(which, number) => play.finish(which, health(number)),
                Op::Answer(which, number) => play.answer(which, health(number)),
                Op::EndRecording(is_recorded) => play.end_recording(is_recorded),
                Op::TimePasses => {
                    play.now = play.now.plus(Duration::from_secs(45));
                    play.dispatcher.reopen(play.now);
                }
                Op::Restart => play.restart(),
            }
            play.check();
        }
        let mut rounds = 0;
        while play.disk.delivered.len() < usize::try_from(arrived).unwrap() {
            play.now = play.now.plus(Duration::from_secs(61));
            play.dispatcher.reopen(play.now);
            play.scan();
            play.park();
            play.feed();
            play.start();
            play.finish(0, Health::Healthy);
            play.end_recording(true);
            play.check();
            rounds += 1;
            prop_assert!(rounds < 3000, "stuck: {play:?}");
        }
    }
}
