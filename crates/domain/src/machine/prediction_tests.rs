//! Random histories of the state machine: the invariants hold after every event, and every history
//! can be brought to an end.

use proptest::prelude::*;

use super::*;
use crate::delivery::Webhook;
use crate::execution::{Candidate, Prediction, Source, Work};
use crate::machine::{cancel, wake};
use crate::replicate::Event as Announced;

/// An execution, and the accumulated effects of its changes.
#[derive(Debug, Clone)]
struct Machine {
    execution: Execution,
    now: Timestamp,
    lanes: Vec<String>,
    timers: Vec<Timestamp>,
    charges: Vec<Usd>,
    announced: usize,
    started: Vec<u32>,
    reported_cost: Usd,
    ends: usize,
}

#[derive(Debug, Clone)]
enum Act {
    Take,
    Succeed {
        late_by: u32,
        cost: i64,
    },
    Fail {
        late_by: u32,
        class: ErrorClass,
        cost: i64,
        /// Maximum number of attempts of the model.
        tries: u32,
    },
    /// A timer has come due.
    Wake,
    Cancel,
    /// The process dies: volatile effects are lost, and the stored state remains.
    Crash,
}

/// Maximum number of attempts of a model.
const TRIES_MAX: u32 = 3;

fn policy(tries: u32) -> Policy {
    let pause = std::time::Duration::from_secs(1);
    Policy::new(tries, pause, 2.0, pause * 8, Policy::TRANSIENT.to_vec())
}

fn execution(chain: usize, webhook: bool) -> Execution {
    Execution {
        id: [7; 16].into(),
        organization: [1; 16].into(),
        key: [2; 16].into(),
        source: Source::Api,
        status: Status::Created,
        input: payload(),
        work: Work::Prediction(Prediction::new(
            "0.0.1".to_owned(),
            (0..chain).map(|n| Candidate::new(format!("model-{n}"))).collect(),
        )),
        output: None,
        fault: None,
        cost: Usd::ZERO,
        reserved: Usd::ZERO,
        webhook: webhook.then(|| Webhook::unsigned("http://receiver.example/".to_owned())),
        created_at: Timestamp::from_micros(1),
        started_at: None,
        completed_at: None,
        origin: None,
    }
}

fn payload() -> Payload {
    Payload::of(&serde_json::json!({"a": 1})).unwrap()
}

impl Machine {
    fn prediction(&self) -> &Prediction {
        self.execution.prediction().unwrap()
    }

    fn new(chain: usize, webhook: bool) -> Self {
        let execution = execution(chain, webhook);
        Self {
            lanes: vec![execution.lane()],
            execution,
            now: Timestamp::from_micros(1),
            charges: Vec::new(),
            timers: Vec::new(),
            announced: 0,
            started: Vec::new(),
            reported_cost: Usd::ZERO,
            ends: 0,
        }
    }

    fn act(&mut self, act: &Act) {
        self.now = self.now.plus(std::time::Duration::from_millis(1));
        let attempt = |late_by: u32| {
            self.prediction().running().map_or(99, |running| running.number.saturating_sub(late_by))
        };
        let event = match act {
            Act::Crash => return,
            Act::Wake => return self.wake(),
            Act::Take => Event::Dispatched,
            Act::Cancel => Event::Cancelled,
            Act::Succeed { late_by, cost } => Event::Succeeded {
                attempt: attempt(*late_by),
                output: payload(),
                cost: Usd::from_micros(*cost),
                logs: None,
                is_cached: false,
            },
            Act::Fail { late_by, class, cost, tries } => Event::Failed {
                attempt: attempt(*late_by),
                failure: Failure::new(*class, "no"),
                cost: Usd::from_micros(*cost),
                logs: Some("tried".to_owned()),
                retry: Some(Retry { policy: policy(*tries), now: self.now }),
            },
        };
        let before = self.execution.clone();
        let waits = before.aside_until().is_some();
        let fits = matches!(act, Act::Cancel)
            || (matches!(act, Act::Take) && !waits)
            || (before.prediction().and_then(Prediction::running).is_some()
                && matches!(act, Act::Succeed { late_by: 0, .. } | Act::Fail { late_by: 0, .. }));
        if let (Act::Succeed { cost, .. } | Act::Fail { cost, .. }, true) = (act, fits)
            && !before.status.is_final()
        {
            self.reported_cost = self.reported_cost.plus(Usd::from_micros(*cost));
        }
        // The system clock is set ahead and back repeatedly.
        let ahead =
            std::time::Duration::from_secs(3600 * (self.now.micros().unsigned_abs() / 1000 % 3));
        let effects = apply(&mut self.execution, event, self.now.plus(ahead));
        if before.status.is_final() || !fits {
            assert_eq!((&self.execution, effects.len()), (&before, 0), "a late event changed it");
            return;
        }
        self.perform(effects);
        self.ends += usize::from(self.execution.status.is_final());
        assert!(self.execution.status >= before.status, "the status went back");
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Dequeue { lane } => {
                    let at = self.lanes.iter().position(|held| *held == lane);
                    self.lanes.remove(at.expect("left a lane that it was not in"));
                }
                Effect::Enqueue { lane } => self.lanes.push(lane),
                Effect::Charge { amount, .. } => self.charges.push(amount),
                Effect::EnqueueWebhook => self.announced += 1,
                Effect::Start { attempt } => self.started.push(attempt),
                Effect::SetTimer { due } => self.timers.push(due),
                Effect::ClearTimer { due } => {
                    let at = self.timers.iter().position(|held| *held == due);
                    self.timers.remove(at.expect("waited for no such moment"));
                }
                Effect::Abandon { .. } => unreachable!("a prediction has no children"),
                Effect::Ended => {}
            }
        }
    }

    fn wake(&mut self) {
        let early = self.timers.first().map(|due| Timestamp::from_micros(due.micros() - 1));
        for now in early.into_iter().chain([self.now.plus(std::time::Duration::from_secs(60))]) {
            let before = self.execution.clone();
            let effects = wake(&mut self.execution, now);
            assert_eq!(effects.is_empty(), self.timers.iter().all(|due| *due > now));
            assert!(!effects.is_empty() || self.execution == before);
            self.perform(effects);
        }
    }

    fn invariant_in_one_lane_or_timer_until_the_end(&self) {
        let is_final = self.execution.status.is_final();
        let timer = self.execution.aside_until();
        assert!(!is_final || timer.is_none());
        let lane = (!is_final && timer.is_none()).then(|| self.execution.lane());
        assert_eq!(self.lanes, Vec::from_iter(lane));
        assert_eq!(self.timers, Vec::from_iter(timer));
    }

    fn invariant_attempts_count_from_one_and_only_the_last_runs(&self) {
        for (index, attempt) in self.prediction().attempts.iter().enumerate() {
            assert_eq!(attempt.number as usize, index + 1);
            let is_last = index + 1 == self.prediction().attempts.len();
            assert!(is_last || attempt.outcome == Outcome::Error, "only errors are followed");
            assert_eq!(attempt.completed_at.is_none(), attempt.outcome == Outcome::Running);
        }
        let most = self.prediction().chain.len() * usize::try_from(TRIES_MAX).unwrap();
        assert!(self.prediction().attempts.len() <= most);
    }

    fn invariant_ends_once_with_its_charge_and_webhook(&self) {
        let ended = self.execution.status.is_final();
        assert_eq!(self.ends, usize::from(ended));
        assert_eq!(self.execution.completed_at.is_some(), ended);
        assert_eq!(self.execution.cost, self.reported_cost);
        let charged: Usd = self.charges.iter().copied().sum();
        assert_eq!(charged, if ended { self.reported_cost } else { Usd::ZERO });
        assert!(self.charges.len() <= 1);
        let announces =
            ended && self.execution.webhook.is_some() && self.execution.status != Status::Cancelled;
        assert_eq!(self.announced, usize::from(announces));
    }

    fn invariant_the_outcome_is_whole(&self) {
        let execution = &self.execution;
        assert_eq!(execution.output.is_some(), execution.status == Status::Success);
        assert_eq!(execution.fault.is_some(), execution.status == Status::Error);
        assert!(!(execution.status.is_final() && self.prediction().running().is_some()));
    }

    fn invariants(&self) {
        self.invariant_in_one_lane_or_timer_until_the_end();
        self.invariant_attempts_count_from_one_and_only_the_last_runs();
        self.invariant_ends_once_with_its_charge_and_webhook();
        self.invariant_the_outcome_is_whole();
        self.invariant_stamps_are_in_order();
    }

    fn invariant_stamps_are_in_order(&self) {
        let of_attempts = self.prediction().attempts.iter();
        let of_attempts = of_attempts.flat_map(|one| [Some(one.started_at), one.completed_at]);
        let mut stamps = vec![Some(self.execution.created_at), self.execution.started_at];
        stamps.extend(of_attempts);
        stamps.push(self.execution.completed_at);
        let stamps: Vec<_> = stamps.into_iter().flatten().collect();
        assert!(stamps.is_sorted(), "{stamps:?}");
    }

    /// Dispatches and fails attempts, and checks that the execution ends.
    fn ensure_liveness(&mut self) {
        for _ in 0..=self.prediction().chain.len() {
            self.act(&Act::Wake);
            self.act(&Act::Take);
            let class = ErrorClass::ProviderError;
            self.act(&Act::Fail { late_by: 0, class, cost: 0, tries: 1 });
            self.invariants();
        }
        assert!(self.execution.status.is_final());
    }
}

fn acts() -> impl Strategy<Value = Act> {
    let class = (0..ErrorClass::ALL.len()).prop_map(|index| ErrorClass::ALL[index]);
    prop_oneof![
        4 => Just(Act::Take),
        2 => (0_u32..3, 0_i64..50).prop_map(|(late_by, cost)| Act::Succeed { late_by, cost }),
        4 => (0_u32..3, class, 0_i64..50, 1..=TRIES_MAX)
            .prop_map(|(late_by, class, cost, tries)| Act::Fail { late_by, class, cost, tries }),
        3 => Just(Act::Wake),
        1 => Just(Act::Cancel),
        2 => Just(Act::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn prediction_machine_keeps_invariants_in_random_histories(
        chain in 1_usize..5,
        webhook: bool,
        acts in prop::collection::vec(acts(), 0..40),
    ) {
        let mut machine = Machine::new(chain, webhook);
        machine.invariants();
        for act in &acts {
            machine.act(act);
            machine.invariants();
        }
        machine.ensure_liveness();
    }
}

#[test]
fn prediction_machine_announces_cancellation_in_replicates_form_only() {
    let announced = |events: Option<Vec<Announced>>| {
        let mut execution = execution(1, true);
        if let Some(webhook) = &mut execution.webhook {
            webhook.replicate = events;
        }
        let effects = cancel(&mut execution, Timestamp::from_micros(2));
        effects.contains(&Effect::EnqueueWebhook)
    };
    assert!(!announced(None));
    assert!(!announced(Some(vec![Announced::Start, Announced::Output])));
    assert!(announced(Some(vec![Announced::Completed])));
}

#[test]
fn prediction_machine_reruns_attempt_in_flight_at_crash() {
    let mut machine = Machine::new(1, false);
    machine.act(&Act::Take);
    machine.act(&Act::Crash);
    machine.act(&Act::Take);
    assert_eq!(machine.started, [1, 1]);
    assert_eq!(machine.execution.prediction().unwrap().attempts.len(), 1);
}

#[test]
fn prediction_machine_tries_each_model_as_its_retry_rule_says() {
    let mut machine = Machine::new(2, true);
    let mut waits = Vec::new();
    for tries in [3, 3, 3, 2, 2] {
        machine.act(&Act::Take);
        let class = ErrorClass::ProviderUnavailable;
        machine.act(&Act::Fail { late_by: 0, class, cost: 1, tries });
        waits.push(machine.timers.first().map(|due| due.since(machine.now).as_secs()));
        machine.act(&Act::Wake);
        machine.invariants();
    }
    assert_eq!(waits, [Some(1), Some(2), None, Some(1), None]);
    let models: Vec<&str> =
        machine.prediction().attempts.iter().map(|attempt| &*attempt.model).collect();
    assert_eq!(models, ["model-0", "model-0", "model-0", "model-1", "model-1"]);
    assert_eq!(machine.charges, [Usd::from_micros(5)], "once, for all attempts");
    assert_eq!(machine.announced, 1);
    // Cancelling ends the wait for the retry.
    let mut machine = Machine::new(1, false);
    machine.act(&Act::Take);
    let class = ErrorClass::ProviderUnavailable;
    machine.act(&Act::Fail { late_by: 0, class, cost: 0, tries: 2 });
    machine.act(&Act::Take);
    assert_eq!(machine.started, [1], "it waits for its time");
    machine.act(&Act::Cancel);
    machine.invariants();
}

#[test]
fn prediction_machine_falls_back_only_on_provider_errors() {
    for (class, attempts) in [(ErrorClass::InvalidUserInput, 1), (ErrorClass::ProviderError, 3)] {
        let mut machine = Machine::new(3, true);
        machine.ensure_first(class);
        assert_eq!(machine.execution.prediction().unwrap().attempts.len(), attempts, "{class}");
        assert_eq!(machine.announced, 1);
    }
}

impl Machine {
    fn ensure_first(&mut self, class: ErrorClass) {
        for _ in 0..3 {
            self.act(&Act::Take);
            self.act(&Act::Fail { late_by: 0, class, cost: 0, tries: 1 });
        }
    }
}
