//! Sequences of findings and outcomes, and the messages that they cause.

use std::time::Duration;

use super::*;

/// A ledger, its clock, and the messages that the receiver has acknowledged.
#[derive(Default)]
struct World {
    ledger: Ledger,
    now: Timestamp,
    told: Vec<String>,
}

impl World {
    fn check(&mut self, findings: &[Finding]) {
        self.now = self.now.plus(Duration::from_secs(300));
        assert_eq!(self.ledger.observe(findings, true, self.now), 0);
        // Simulates a restart after each check.
        let stored = serde_json::to_vec(&self.ledger).unwrap();
        self.ledger = serde_json::from_slice(&stored).unwrap();
    }

    /// Sends all due messages to a receiver that acknowledges them, and returns the messages.
    fn sent(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        while let Some(next) = self.ledger.begin() {
            sent.push(format!("{:?} {}", next.1.event, next.0.detail));
            self.ledger.end(&next, &Outcome::Acknowledged, self.now);
        }
        self.told.extend(sent.clone());
        sent
    }

    /// Attempts to send one message, with the given outcome.
    fn tries(&mut self, outcome: &Outcome) {
        let next = self.ledger.begin().unwrap();
        self.ledger.end(&next, outcome, self.now);
    }
}

fn low(free: &str) -> Finding {
    Finding::warning("disk", format!("{free} GB are free"))
}

fn refused() -> Outcome {
    Outcome::Refused("503".to_owned())
}

#[test]
fn alert_is_raised_once_and_mended_after_two_good_checks() {
    let mut world = World::default();
    world.check(&[Finding::good("tls", "until May"), low("3.1")]);
    assert_eq!(world.sent(), ["Raised 3.1 GB are free"]);
    world.check(&[low("3.0")]);
    world.check(&[]);
    world.check(&[low("2.9")]);
    world.check(&[]);
    assert!(world.sent().is_empty(), "the finding flaps");
    world.check(&[]);
    assert_eq!(world.sent(), ["Mended 2.9 GB are free"]);
    assert!(world.ledger.alerts.is_empty());
    world.check(&[low("3.1")]);
    assert_eq!(world.sent(), ["Raised 3.1 GB are free"]);
}

#[test]
fn findings_about_different_things_are_different_alerts() {
    let mut world = World::default();
    let manifest = |name: &str| Finding::fault("model", format!("{name}: bad")).about(name);
    world.check(&[manifest("a"), manifest("b"), manifest("a")]);
    assert_eq!(world.sent(), ["Raised a: bad", "Raised b: bad"]);
    world.check(&[manifest("b"), manifest("c")]);
    assert_eq!(world.sent(), ["Raised c: bad"]);
    world.check(&[manifest("b"), manifest("c")]);
    assert_eq!(world.sent(), ["Mended a: bad"]);
}

#[test]
fn alert_that_becomes_an_error_is_worsened_once() {
    let mut world = World::default();
    let full = || Finding::fault("disk", "full");
    world.check(&[low("3")]);
    world.check(&[low("2"), full()]);
    assert_eq!(world.sent(), ["Raised full"], "the worst finding counts");
    let mut world = World::default();
    world.check(&[low("3")]);
    world.sent();
    world.check(&[full()]);
    world.check(&[low("2")]);
    assert!(world.sent().is_empty(), "it is no longer worse");
    world.check(&[full()]);
    assert_eq!(world.sent(), ["Worsened full"]);
    world.check(&[low("1")]);
    world.check(&[full()]);
    assert!(world.sent().is_empty(), "the receiver knows it");
}

#[test]
fn receiver_that_was_away_gets_the_newest_state() {
    let mut world = World::default();
    world.check(&[low("3.1")]);
    world.tries(&refused());
    world.check(&[low("2.0")]);
    world.tries(&refused());
    assert_eq!(world.ledger.failures.as_ref().unwrap().count, 2);
    assert_eq!(world.sent(), ["Raised 2.0 GB are free"]);
    assert!(world.ledger.failures.is_none());
    // If a finding is mended and comes back while the receiver is unreachable, no message is due.
    world.check(&[]);
    world.check(&[]);
    world.tries(&refused());
    world.check(&[low("1.0")]);
    assert!(world.sent().is_empty());
    // A finding appears and disappears while the receiver is unreachable.
    let dns = || Finding::fault("dns", "no answer");
    world.check(&[low("1.0"), dns()]);
    world.tries(&refused());
    world.check(&[low("1.0")]);
    world.check(&[low("1.0")]);
    assert!(world.sent().is_empty());
    assert_eq!(world.ledger.alerts.len(), 1);
}

#[test]
fn alert_that_the_receiver_may_know_is_mended() {
    let mut world = World::default();
    world.check(&[low("3")]);
    world.tries(&Outcome::Unknown("no answer".to_owned()));
    world.tries(&refused());
    world.check(&[]);
    world.check(&[]);
    assert_eq!(world.sent(), ["Mended 3 GB are free"]);
}

#[test]
fn finding_that_ends_or_returns_during_a_request_is_not_lost() {
    let mut world = World::default();
    world.check(&[low("3")]);
    let raised = world.ledger.begin().unwrap();
    for _ in 0..3 {
        world.ledger.observe(&[], true, world.now);
    }
    world.ledger.end(&raised, &Outcome::Acknowledged, world.now);
    assert_eq!(world.ledger.begin().unwrap().1.event, Event::Mended);
    world.ledger.observe(&[low("2")], true, world.now);
    let id = world.ledger.alerts[0].id;
    let mended = (world.ledger.alerts[0].clone(), Due { event: Event::Mended, at: world.now });
    world.ledger.end(&mended, &Outcome::Acknowledged, world.now);
    assert_ne!(world.ledger.alerts[0].id, id);
    assert_eq!(world.sent(), ["Raised 2 GB are free"]);
}

#[test]
fn finding_that_returns_after_an_unclear_mend_is_another_alert() {
    let mut world = World::default();
    world.check(&[low("3")]);
    world.sent();
    world.check(&[]);
    world.check(&[]);
    world.tries(&Outcome::Unknown("no answer".to_owned()));
    world.check(&[low("2")]);
    assert_eq!(world.sent(), ["Mended 2 GB are free", "Raised 2 GB are free"]);
}

#[test]
fn incomplete_check_mends_nothing() {
    let mut world = World::default();
    world.check(&[low("3")]);
    world.sent();
    for _ in 0..3 {
        world.ledger.observe(&[Finding::fault("doctor", "the checks hang")], false, world.now);
    }
    assert_eq!(world.sent(), ["Raised the checks hang"]);
}

#[test]
fn ledger_is_bounded() {
    let mut ledger = Ledger::default();
    let long = "ü".repeat(5000);
    let findings: Vec<Finding> = (0..ALERTS_MAX + 7)
        .map(|number| Finding::warning("model", &*long).about(number.to_string()))
        .collect();
    let now = Timestamp::default();
    assert_eq!(ledger.observe(&findings, true, now), 7);
    assert_eq!(ledger.observe(&findings, true, now), 7);
    assert_eq!(ledger.alerts.len(), ALERTS_MAX);
    assert!(serde_json::to_vec(&ledger).unwrap().len() < 200_000);
    let own = Finding::warning(SUBJECT, "the receiver is away");
    assert_eq!(Ledger::default().observe(&[own], true, now), 0);
}

/// In any history, the receiver gets `Raised` and `Mended` for an alert alternately.
#[test]
fn raised_and_mended_alternate_in_every_history() {
    for seed in 0_u64..2000 {
        let mut world = World::default();
        let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for _ in 0..24 {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            match bits % 3 {
                0 => world.check(&[]),
                1 => world.check(&[low("3")]),
                _ => world.check(&[Finding::fault("disk", "full")]),
            }
            if bits & 8 == 0 {
                world.sent();
            } else if let Some(next) = world.ledger.begin() {
                world.ledger.end(&next, &refused(), world.now);
            }
        }
        let mut is_raised = false;
        for told in &world.told {
            match told.split(' ').next().unwrap() {
                "Raised" => assert!(!std::mem::replace(&mut is_raised, true), "{:?}", world.told),
                "Worsened" => assert!(is_raised, "{:?}", world.told),
                _ => assert!(std::mem::replace(&mut is_raised, false), "{:?}", world.told),
            }
        }
    }
}
