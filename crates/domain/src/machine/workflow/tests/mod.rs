//! Random histories of random plans: the invariants hold after every event, every history ends, and
//! crashes in between do not change the outcome.

mod answers;
mod plans;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use proptest::prelude::*;

use self::answers::answer;
use self::plans::plan;
use super::*;
use crate::attempt::Outcome;
use crate::classify::ErrorClass;
use crate::execution::{Source, Status, Work, WorkflowRun};
use crate::machine;

/// Makes a random but reproducible decision about a step.
fn fate(seed: u64, what: &str, instance: &Instance, attempt: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, what, instance, attempt).hash(&mut hasher);
    hasher.finish()
}

fn payload(text: &str) -> Payload {
    Payload::of(text).unwrap()
}

/// An execution with its progress, and a model of the executor and its disk.
struct Machine {
    seed: u64,
    plan: Arc<Plan>,
    execution: Execution,
    progress: StepProgress,
    now: Timestamp,
    /// The steps on disk, as they would be read after a crash.
    disk: BTreeMap<Instance, Step>,
    stored: Execution,
    /// Running attempts, and stopped attempts, whose reports are stale.
    runs: BTreeMap<Instance, u32>,
    stopped: Vec<(Instance, u32)>,
    timers: BTreeSet<(Timestamp, Instance)>,
    /// The steps whose event has been sent, perhaps before they began. Survives a crash.
    sent: BTreeSet<Instance>,
    /// The children created so far, by attempt, and which of them have ended or been abandoned.
    /// Survives a crash.
    children: BTreeMap<(Instance, u32), ExecutionId>,
    ended_children: BTreeSet<ExecutionId>,
    abandoned: BTreeSet<ExecutionId>,
    /// Attempts begun since the process started.
    begun: BTreeSet<(Instance, u32)>,
    published: Vec<Instance>,
    charged: Vec<ExecutionId>,
    ends: usize,
    ids: u128,
    /// Whether every run succeeds from now on.
    is_lucky: bool,
}

impl Machine {
    fn new(seed: u64, plan: Arc<Plan>) -> Self {
        let execution = execution();
        let progress = StepProgress::restore(Arc::clone(&plan), Vec::new());
        let mut machine = Self {
            seed,
            plan,
            stored: execution.clone(),
            execution,
            progress,
            now: Timestamp::from_micros(1),
            disk: BTreeMap::new(),
            runs: BTreeMap::new(),
            stopped: Vec::new(),
            timers: BTreeSet::new(),
            sent: BTreeSet::new(),
            children: BTreeMap::new(),
            ended_children: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            begun: BTreeSet::new(),
            published: Vec::new(),
            charged: Vec::new(),
            ends: 0,
            ids: 0,
            is_lucky: false,
        };
        machine.happen(Event::Dispatched);
        machine
    }

    /// Creates a redrive of an execution that has failed or was cancelled.
    fn redriven(failed: &Self) -> Self {
        let kept = failed.disk.iter().filter(|(at, step)| is_reusable(&failed.plan, at, step));
        let kept = kept.map(|(at, step)| (at.clone(), Step { cost: Usd::ZERO, ..step.clone() }));
        let mut machine = Self {
            disk: kept.collect(),
            is_lucky: true,
            // Published predictions remain, because the failed execution was charged for them.
            published: failed.published.clone(),
            ..Self::new(failed.seed, Arc::clone(&failed.plan))
        };
        machine.published.retain(|instance| machine.disk.contains_key(instance));
        machine.sent.clear();
        machine.children.clear();
        machine.ended_children.clear();
        machine.abandoned.clear();
        machine.stored = execution();
        let Work::Workflow(run) = &mut machine.stored.work else { panic!("a prediction") };
        run.redriven_from = Some(failed.execution.id);
        machine.execution = machine.stored.clone();
        machine.charged.clear();
        machine.runs.clear();
        machine.timers.clear();
        machine.begun.clear();
        machine.stopped.clear();
        machine.ends = 0;
        machine.progress = StepProgress::restore(Arc::clone(&machine.plan), machine.disk.clone());
        machine.happen(Event::Dispatched);
        machine
    }

    /// Applies an event and its consequences, then commits and starts runs as the executor does.
    fn happen(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        let mut starts = Vec::new();
        let mut must_commit = false;
        while let Some(event) = events.pop_front() {
            let before = self.finals();
            let now = self.reading();
            let was_paused = self.execution.paused().is_some();
            let effects = self.progress.apply(&mut self.execution, event, now);
            self.invariant_ends_stand(&before);
            for effect in effects {
                match effect {
                    Effect::Execution(whole) => {
                        must_commit = true;
                        self.whole(&whole);
                    }
                    Effect::Publish { instance } => {
                        must_commit = true;
                        self.published.push(instance);
                    }
                    Effect::CreateChild { instance } => {
                        must_commit = true;
                        let step = self.progress.step(&instance).unwrap();
                        let attempt = step.attempts.last().unwrap().number;
                        let child = step.child.expect("its step says which one it is");
                        let before = self.children.insert((instance, attempt), child);
                        assert_eq!(before, None, "two children of one attempt");
                    }
                    Effect::SetTimer { instance, until } => {
                        self.timers.insert((until, instance));
                    }
                    Effect::Stop { instance } => {
                        starts.retain(|(held, _)| *held != instance);
                        if let Some(attempt) = self.runs.remove(&instance) {
                            self.stopped.push((instance, attempt));
                        }
                    }
                    // A step cancelled by a later effect is not begun.
                    Effect::Begin { instance, .. } if self.has_ended(&instance) => {}
                    Effect::Begin { instance, attempt } => {
                        assert!(!was_paused, "{instance:?} has begun in a pause");
                        self.invariant_its_turn_has_come(&instance);
                        events.extend(self.begin(&instance, attempt, &mut starts));
                    }
                    Effect::JoinOutputs { instance, item } => {
                        let output = payload(&format!("{instance:?} {item:?}"));
                        events.push_back(Event::Joined { instance, item, output });
                    }
                    Effect::ResolveOutput => {
                        events.push_back(Event::OutputResolved { output: Ok(payload("done")) });
                    }
                }
            }
        }
        if must_commit || self.progress.must_commit() {
            let changed = self.progress.changed();
            self.disk.extend(changed.map(|(instance, step)| (instance.clone(), step.clone())));
            self.progress.forget_changed();
            self.stored = self.execution.clone();
        }
        self.runs.extend(starts);
        self.invariants();
    }

    /// The system clock is set ahead and back repeatedly.
    fn reading(&self) -> Now {
        let ahead = Duration::from_secs(3600 * (self.now.micros().unsigned_abs() % 3));
        Now { wall: self.now.plus(ahead), steady: self.now }
    }

    fn whole(&mut self, effect: &machine::Effect) {
        match effect {
            machine::Effect::Charge { execution, amount, .. } => {
                assert!(*amount > Usd::ZERO && !self.charged.contains(execution), "charged twice");
                self.charged.push(*execution);
            }
            machine::Effect::Abandon { child } => {
                assert!(!self.ended_children.contains(child), "it has ended");
                assert!(self.abandoned.insert(*child), "abandoned twice");
            }
            machine::Effect::Ended => self.ends += 1,
            machine::Effect::Dequeue { .. }
            | machine::Effect::Enqueue { .. }
            | machine::Effect::SetTimer { .. }
            | machine::Effect::ClearTimer { .. }
            | machine::Effect::EnqueueWebhook
            | machine::Effect::Start { .. } => {}
        }
    }

    fn begin(
        &mut self,
        instance: &Instance,
        attempt: u32,
        starts: &mut Vec<(Instance, u32)>,
    ) -> Option<Event> {
        let plan = Arc::clone(&self.plan);
        let chance = |what| fate(self.seed, what, instance, 0);
        let instance = instance.clone();
        Some(match &plan.at(instance.step).unwrap().kind {
            Kind::Model(_) | Kind::Http(_) => {
                assert!(self.begun.insert((instance.clone(), attempt)), "one attempt, two runs");
                self.ids += 1;
                let is_model = matches!(plan.at(instance.step).unwrap().kind, Kind::Model(_));
                let prediction = is_model.then(|| ExecutionId::from(self.ids.to_be_bytes()));
                starts.push((instance.clone(), attempt));
                Event::Resolved { instance, input: payload("in"), prediction }
            }
            Kind::Workflow(kind) => {
                assert!(self.begun.insert((instance.clone(), attempt)), "one attempt, two runs");
                if kind.waits {
                    starts.push((instance.clone(), attempt));
                }
                if self.progress.step(&instance).unwrap().child.is_some() {
                    // The child was created before the process died.
                    return None;
                }
                // The child's id is the same after a crash, so that outputs can be compared.
                let chance = u128::from(fate(self.seed, "child", &instance, attempt));
                let child = ExecutionId::from((1 << 100 | chance).to_be_bytes());
                Event::ChildStarted { instance, attempt, child }
            }
            Kind::Choice(_) => Event::Decided { met: chance("met").is_multiple_of(2), instance },
            Kind::Map(_) => {
                Event::MapOpened { items: u32::try_from(chance("items") % 4).unwrap(), instance }
            }
            Kind::Wait(wait) if wait.event().is_some() => match self.sent.contains(&instance) {
                true => answer(instance),
                false => {
                    let until = self.now.plus(wait.event().unwrap().limit());
                    Event::WaitUntil { until, instance }
                }
            },
            Kind::Wait(_) => {
                let span = Duration::from_secs(chance("wait") % 5);
                Event::WaitUntil { until: self.now.plus(span), instance }
            }
            Kind::Pass(_) if chance("pass").is_multiple_of(12) && !self.is_lucky => {
                let fault = Fault::new("ReferenceError", ErrorClass::InvalidModelConfig, "nothing");
                Event::StepInvalid { instance, fault }
            }
            Kind::Pass(_) => Event::ResultReady { instance, output: payload("passed") },
            Kind::Parallel(_) => panic!("it begins by itself"),
        })
    }

    /// Reports the random result of an attempt.
    fn report(&mut self, instance: &Instance, attempt: u32) {
        let chance = fate(self.seed, "run", instance, attempt);
        let cost = Usd::from_micros(i64::try_from(chance % 3).unwrap());
        let instance = instance.clone();
        let is_child = self.children.get(&(instance.clone(), attempt)).copied();
        let cost = if is_child.is_some() { Usd::ZERO } else { cost };
        let is_waiting = |child: &ExecutionId| {
            let step = self.progress.step(&instance);
            step.is_some_and(|step| step.child == Some(*child) && step.running().is_some())
        };
        self.ended_children.extend(is_child.filter(is_waiting));
        self.happen(if chance.is_multiple_of(4) && !self.is_lucky {
            let class = ErrorClass::ALL[usize::try_from(chance % 7).unwrap()];
            let fault = Fault::new("StepFailed", class, "it failed");
            Event::Failed { instance, attempt, fault, cost, logs: None }
        } else {
            let output = payload(&format!("{instance:?}"));
            let success = Success { output, answer: None, cost, logs: None, is_cached: false };
            Event::Succeeded { instance, attempt, success }
        });
    }

    fn run(&mut self, which: usize) {
        let chosen = self.runs.iter().nth(which % self.runs.len().max(1));
        if let Some((instance, attempt)) =
            chosen.map(|(instance, attempt)| (instance.clone(), *attempt))
        {
            self.runs.remove(&instance);
            self.stopped.push((instance.clone(), attempt));
            self.report(&instance, attempt);
        }
    }

    /// Repeats a report, or sends a report that is no longer expected.
    fn report_late(&mut self, which: usize) {
        if let Some((instance, attempt)) =
            self.stopped.get(which % self.stopped.len().max(1)).cloned()
        {
            let before = (self.execution.clone(), self.finals(), self.runs.clone());
            self.report(&instance, attempt);
            assert_eq!(before, (self.execution.clone(), self.finals(), self.runs.clone()));
        }
    }

    /// Advances the time to the next timer.
    fn tick(&mut self) {
        let Some((due, instance)) = self.timers.first().cloned() else { return };
        if due.since(self.now) > Duration::from_secs(24 * 3600) {
            // No child or person takes that long.
            return;
        }
        self.timers.pop_first();
        self.now = self.now.max(due);
        self.happen(Event::Due { instance });
    }

    fn pause(&mut self) {
        self.happen(Event::Paused { by: "chance".to_owned() });
        if !self.execution.status.is_final() {
            assert!(self.stored.paused().is_some(), "it would be forgotten");
        }
    }

    fn resume(&mut self) {
        self.happen(Event::Resumed);
        self.happen(Event::Continued);
    }

    /// The process dies, restarts and recovers the execution.
    fn crash(&mut self) {
        if self.execution.status.is_final() {
            return;
        }
        self.execution = self.stored.clone();
        self.progress = StepProgress::restore(Arc::clone(&self.plan), self.disk.clone());
        self.runs.clear();
        self.stopped.clear();
        self.timers.clear();
        self.begun.clear();
        self.happen(Event::Dispatched);
        self.take_answers();
    }

    /// Processes events until everything has ended.
    fn live_on(&mut self) {
        for _ in 0..20_000 {
            if self.execution.status.is_final() {
                return;
            }
            if self.execution.paused().is_some() && self.runs.is_empty() {
                self.resume();
            } else if self.runs.is_empty() && self.send_awaited() {
            } else if self.runs.is_empty() {
                assert!(!self.timers.is_empty(), "nothing can go on");
                self.tick();
            } else {
                self.run(0);
            }
        }
        panic!("it does not end");
    }

    fn has_ended(&self, instance: &Instance) -> bool {
        self.progress.step(instance).is_some_and(|step| step.status.is_final())
    }

    fn finals(&self) -> BTreeMap<Instance, Step> {
        let ended = self.progress.steps().filter(|(_, step)| step.status.is_final());
        ended.map(|(instance, step)| (instance.clone(), step.clone())).collect()
    }

    // --- invariants ---

    fn invariant_ends_stand(&self, before: &BTreeMap<Instance, Step>) {
        for (instance, step) in before {
            if let Some(now) = self.progress.step(instance) {
                assert_eq!(now, step, "an end has changed");
            }
        }
    }

    fn invariant_its_turn_has_come(&self, instance: &Instance) {
        let planned = self.plan.at(instance.step).unwrap();
        for other in &planned.waits_for {
            let other = Instance { step: *other, items: instance.items.clone() };
            let has_ended = self.progress.step(&other).is_some_and(|step| step.status.is_final());
            assert!(has_ended, "{} began before what it waits for", planned.id);
        }
        if let Some(parent) = planned.parent {
            let depth = self.plan.maps_around(parent.step).len();
            let owner = Instance { step: parent.step, items: instance.items[..depth].to_vec() };
            let owner = self.progress.step(&owner).expect("its container has begun");
            assert!(!owner.status.is_final(), "{} began in what has ended", planned.id);
        }
    }

    fn invariant_maps_keep_to_their_concurrency(&self) {
        let mut working: BTreeMap<(StepIndex, Vec<u32>), BTreeSet<u32>> = BTreeMap::new();
        for (instance, _) in self.progress.unfinished() {
            for (depth, map) in self.plan.maps_around(instance.step).into_iter().enumerate() {
                let outer = instance.items[..depth].to_vec();
                let item = instance.items[depth];
                working.entry((map.position, outer)).or_default().insert(item);
            }
        }
        for ((map, _), items) in working {
            let Kind::Map(kind) = &self.plan.at(map).unwrap().kind else { panic!("no map") };
            assert!(items.len() <= usize::try_from(kind.max_concurrency).unwrap());
        }
    }

    fn invariant_the_end_is_whole(&self) {
        let execution = &self.execution;
        assert_eq!(self.ends, usize::from(execution.status.is_final()));
        assert_eq!(execution.output.is_some(), execution.status == Status::Success);
        assert_eq!(execution.fault.is_some(), execution.status == Status::Error);
        if execution.status.is_final() {
            assert_eq!(self.progress.unfinished().count(), 0, "something is in flight");
            assert!(self.runs.is_empty(), "something runs on: {:?}", self.runs);
        }
    }

    fn invariant_each_model_step_is_published_once(&self) {
        let mut published = self.published.clone();
        published.sort();
        published.dedup();
        assert_eq!(published.len(), self.published.len(), "published twice");
        for (instance, step) in &self.disk {
            let is_published = step.status.is_final() && step.prediction.is_some();
            assert_eq!(published.contains(instance), is_published, "{instance:?} {step:?}");
        }
        let paid =
            self.disk.values().filter(|step| step.status.is_final() && step.prediction.is_some());
        assert_eq!(paid.filter(|step| step.cost > Usd::ZERO).count(), self.charged.len());
    }

    fn invariant_the_cost_is_that_of_the_steps(&self) {
        if self.execution.status.is_final() {
            let cost: Usd = self.disk.values().map(|step| step.cost).sum();
            assert_eq!(self.execution.cost, cost);
        }
    }

    fn invariant_attempts_are_in_order(&self) {
        for (instance, step) in self.progress.steps() {
            for (index, attempt) in step.attempts.iter().enumerate() {
                assert_eq!(usize::try_from(attempt.number).unwrap(), index + 1);
                let is_last = index + 1 == step.attempts.len();
                assert!(is_last || attempt.outcome == Outcome::Error, "{instance:?}");
            }
            assert!(!(step.status.is_final() && step.running().is_some()), "{instance:?}");
        }
    }

    fn is_redrive(&self) -> bool {
        self.execution.workflow().is_some_and(|run| run.redriven_from.is_some())
    }

    fn invariant_stamps_are_in_order(&self) {
        for (instance, step) in self.progress.steps() {
            let of_attempts =
                step.attempts.iter().flat_map(|one| [Some(one.started_at), one.completed_at]);
            let stamps: Vec<_> = of_attempts.chain([step.completed_at]).flatten().collect();
            assert!(stamps.is_sorted(), "{instance:?}: {stamps:?}");
            let began = self.execution.started_at.filter(|_| !self.is_redrive());
            assert!(began.is_none_or(|began| began <= step.started_at), "{instance:?}");
            assert!(stamps.iter().all(|stamp| *stamp >= self.execution.created_at), "{instance:?}");
            assert!(
                self.execution.completed_at.is_none_or(|end| end >= step.latest()),
                "{instance:?}"
            );
        }
    }

    /// A running child has exactly one step that waits for it, or is about to be cancelled.
    fn invariant_no_child_is_orphaned(&self) {
        for ((instance, attempt), child) in &self.children {
            let step = self.disk.get(instance).expect("its creation is in the step's commit");
            let Kind::Workflow(kind) = &self.plan.at(instance.step).unwrap().kind else {
                panic!("no child of this type")
            };
            let running = step.running().map(|running| running.number);
            let is_awaited = running == Some(*attempt) && step.child == Some(*child);
            let is_over = self.ended_children.contains(child) || self.abandoned.contains(child);
            assert!(!kind.waits || is_awaited != is_over, "{instance:?} {attempt} {step:?}");
        }
    }

    fn invariants(&self) {
        self.invariant_answers_are_of_steps_that_ask();
        self.invariant_no_child_is_orphaned();
        self.invariant_maps_keep_to_their_concurrency();
        self.invariant_the_end_is_whole();
        self.invariant_each_model_step_is_published_once();
        self.invariant_the_cost_is_that_of_the_steps();
        self.invariant_attempts_are_in_order();
        self.invariant_stamps_are_in_order();
    }
}

fn execution() -> Execution {
    let workflow = [3; 16].into();
    let revision = [4; 16].into();
    Execution {
        id: [7; 16].into(),
        organization: [1; 16].into(),
        key: [2; 16].into(),
        source: Source::Api,
        status: Status::Created,
        input: payload("in"),
        work: Work::Workflow(WorkflowRun::new(workflow, "v1".to_owned(), revision, None)),
        output: None,
        fault: None,
        cost: Usd::ZERO,
        reserved: Usd::ZERO,
        webhook: None,
        created_at: Timestamp::from_micros(1),
        started_at: None,
        completed_at: None,
        origin: None,
    }
}

#[derive(Debug, Clone)]
enum Act {
    Run(usize),
    Late(usize),
    Send(usize),
    Tick,
    Crash,
    Pause,
    Resume,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => any::<usize>().prop_map(Act::Run),
        2 => any::<usize>().prop_map(Act::Late),
        2 => any::<usize>().prop_map(Act::Send),
        2 => Just(Act::Tick),
        1 => Just(Act::Crash),
        1 => Just(Act::Pause),
        2 => Just(Act::Resume),
    ];
    prop::collection::vec(act, 0..40)
}

fn play(machine: &mut Machine, acts: &[Act]) {
    for act in acts {
        match act {
            Act::Run(which) => machine.run(*which),
            Act::Late(which) => machine.report_late(*which),
            Act::Send(which) => machine.send(*which),
            Act::Tick => machine.tick(),
            Act::Crash => machine.crash(),
            Act::Pause => machine.pause(),
            Act::Resume => machine.resume(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn workflow_machine_every_history_ends_and_keeps_invariants(
        seed: u64,
        dice in prop::collection::vec(any::<u8>(), 0..60),
        acts in acts(),
    ) {
        let mut machine = Machine::new(seed, plan(&dice, true));
        play(&mut machine, &acts);
        machine.live_on();
    }

    #[test]
    fn workflow_machine_cancel_or_timeout_ends_it_at_any_moment(
        seed: u64,
        dice in prop::collection::vec(any::<u8>(), 0..60),
        acts in acts(),
        is_cancel: bool,
    ) {
        let mut machine = Machine::new(seed, plan(&dice, true));
        play(&mut machine, &acts);
        let had_ended = machine.execution.status.is_final();
        let before = machine.execution.clone();
        let cause = "too long".to_owned();
        machine.happen(if is_cancel { Event::Cancelled } else { Event::TimedOut { cause } });
        prop_assert!(machine.execution.status.is_final());
        if had_ended {
            prop_assert_eq!(before, machine.execution);
        } else {
            let status = if is_cancel { Status::Cancelled } else { Status::Error };
            prop_assert_eq!(machine.execution.status, status);
        }
    }

    /// Everything in flight at a crash is repeated, with the same outcome.
    #[test]
    fn workflow_machine_crash_changes_no_outcome(
        seed: u64,
        dice in prop::collection::vec(any::<u8>(), 0..60),
        acts in acts(),
    ) {
        // The plan has no timeouts, because the steps that timeouts cut off depend on the timing.
        let plan = plan(&dice, false);
        let mut straight = Machine::new(seed, Arc::clone(&plan));
        straight.live_on();
        let mut machine = Machine::new(seed, Arc::clone(&plan));
        play(&mut machine, &acts);
        machine.live_on();
        prop_assert_eq!(straight.execution.status, machine.execution.status);
        // The siblings in flight at a tolerated failure depend on the order of reports.
        let is_tolerated = plan.steps().any(|step| step.continue_on_error);
        if straight.execution.status == Status::Success && !is_tolerated {
            prop_assert_eq!(straight.execution.cost, machine.execution.cost);
            let outputs = |machine: &Machine| -> BTreeMap<Instance, Option<Payload>> {
                let ended = machine.disk.iter().map(|(at, step)| (at.clone(), step.output.clone()));
                ended.collect()
            };
            prop_assert_eq!(outputs(&straight), outputs(&machine));
        }
    }

    /// A redrive completes, and reused steps do not run again.
    #[test]
    fn workflow_machine_redrive_continues_after_finished_steps(
        seed: u64,
        dice in prop::collection::vec(any::<u8>(), 0..60),
        acts in acts(),
        is_cancelled: bool,
    ) {
        let mut failed = Machine::new(seed, plan(&dice, false));
        play(&mut failed, &acts);
        if is_cancelled {
            failed.happen(Event::Cancelled);
        } else {
            failed.live_on();
        }
        if failed.execution.status != Status::Success {
            let is_kept = |(at, step): &(&Instance, &Step)| is_reusable(&failed.plan, at, step);
            let kept: BTreeSet<Instance> =
                failed.disk.iter().filter(is_kept).map(|(at, _)| at.clone()).collect();
            let mut again = Machine::redriven(&failed);
            again.live_on();
            prop_assert_eq!(again.execution.status, Status::Success);
            prop_assert!(again.begun.iter().all(|(begun, _)| !kept.contains(begun)));
        }
    }

    /// An execution that was suspended during a wait continues as if it had stayed in memory.
    #[test]
    fn workflow_machine_is_suspended_and_resumed(
        seed: u64,
        dice in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut machine = Machine::new(seed, plan(&dice, true));
        for _ in 0..200 {
            while !machine.runs.is_empty() {
                machine.run(0);
            }
            if machine.execution.status.is_final() {
                break;
            }
            if machine.execution.paused().is_some() {
                machine.resume();
                continue;
            }
            let (until, _) = machine.timers.first().cloned().unwrap();
            machine.happen(Event::Suspended { until, ran_ms: 1 });
            let mut stored = machine.stored.clone();
            prop_assert!(machine::wake(&mut stored, machine.now).is_empty() || until <= machine.now);
            machine.now = machine.now.max(until);
            let effects = machine::wake(&mut stored, machine.now);
            let lane = stored.lane();
            prop_assert_eq!(effects, [
                machine::Effect::ClearTimer { due: until },
                machine::Effect::Enqueue { lane },
            ]);
            machine.stored = stored;
            machine.crash();
            while machine.timers.first().is_some_and(|(due, _)| *due <= machine.now) {
                machine.tick();
            }
        }
        prop_assert!(machine.execution.status.is_final());
    }
}
