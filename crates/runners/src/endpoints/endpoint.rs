//! The state of one endpoint: its requests in flight, and whether it is in rotation. This module
//! does no I/O; callers pass in the time.
//!
//! ```text
//! Starting ──ready──▶ Up ──misses──▶ Ejected ──after a pause──▶ Trial ──answer──▶ Up
//!                                       ▲                          │
//!                                       └─────────── miss ─────────┘
//! ```
//!
//! A miss is a request without a response, or a request for which a proxy reports that it has no
//! backend. Each consecutive ejection doubles the delay before the next trial. After the delay, an
//! endpoint with a readiness route is tested by a probe, and any other endpoint by the next
//! request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Number of consecutive requests without a response after which an endpoint is ejected.
const MISSES_MAX: u32 = 3;
/// Number of consecutive failed probes after which an endpoint that has been ready before is
/// ejected.
const PROBE_MISSES_MAX: u32 = 2;
/// The delay after the first ejection; each further consecutive ejection doubles it.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Maximum delay.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Probe interval of an endpoint that responds.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// The readiness that an endpoint reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// The endpoint is loading its model.
    Starting,
    /// The readiness failure, as a phrase that follows the model's name. Never contains a secret.
    Unready(String),
}

/// The state of an endpoint for selection, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The endpoint responds, or is due for a trial that no request has started yet.
    Usable,
    Starting,
    /// One request is testing whether the endpoint responds again.
    OnTrial,
    Ejected,
}

/// A change that adds an endpoint to the rotation or removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Removed from rotation, with the reason.
    Out(String),
    /// Added or returned to rotation.
    In,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Up,
    Ejected {
        until: Instant,
    },
    /// `is_taken` is true while the trial request is in flight.
    Trial {
        is_taken: bool,
    },
}

#[derive(Debug)]
struct State {
    phase: Phase,
    in_flight: usize,
    misses: u32,
    probe_misses: u32,
    /// Number of consecutive ejections.
    ejections: u32,
    /// When the endpoint was last ejected; outcomes of requests that began earlier are ignored.
    ejected_at: Option<Instant>,
    probed_at: Option<Instant>,
    /// The cause of the ejection; empty while the endpoint is in rotation.
    reason: String,
}

/// One endpoint of a model.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub url: String,
    /// The URL without secrets.
    pub name: String,
    state: Mutex<State>,
}

/// The state of an endpoint as shown to operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub standing: Standing,
    pub in_flight: usize,
    /// The cause of the ejection, if the endpoint is out of rotation.
    pub reason: Option<String>,
}

impl Endpoint {
    /// Creates an endpoint in unknown state; an endpoint with a readiness route counts as starting
    /// until it is probed.
    pub(super) const fn new(url: String, name: String, is_probed: bool) -> Self {
        let phase = if is_probed { Phase::Starting } else { Phase::Up };
        let state = State {
            phase,
            in_flight: 0,
            misses: 0,
            probe_misses: 0,
            ejections: 0,
            ejected_at: None,
            probed_at: None,
            reason: String::new(),
        };
        Self { url, name, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the endpoint's state for selection, and its number of requests in flight. With
    /// `is_probed`, only a probe, and no other request, ends an ejection.
    pub(super) fn standing(&self, now: Instant, is_probed: bool) -> (Standing, usize) {
        let state = self.state();
        let standing = match state.phase {
            Phase::Up | Phase::Trial { is_taken: false } => Standing::Usable,
            Phase::Ejected { until } if !is_probed && until <= now => Standing::Usable,
            Phase::Starting => Standing::Starting,
            Phase::Trial { is_taken: true } => Standing::OnTrial,
            Phase::Ejected { .. } => Standing::Ejected,
        };
        (standing, state.in_flight)
    }

    /// Returns the state as shown to operators. With probes, an endpoint on trial counts as usable,
    /// because a probe has succeeded; without probes, it does not count as usable yet.
    pub(super) fn seen(&self, is_probed: bool) -> Seen {
        let state = self.state();
        let standing = match state.phase {
            Phase::Up => Standing::Usable,
            Phase::Trial { .. } if is_probed => Standing::Usable,
            Phase::Trial { .. } => Standing::OnTrial,
            Phase::Starting => Standing::Starting,
            Phase::Ejected { .. } => Standing::Ejected,
        };
        let reason = (!state.reason.is_empty()).then(|| state.reason.clone());
        Seen { standing, in_flight: state.in_flight, reason }
    }

    /// Counts a request as in flight.
    pub(super) fn take(&self, now: Instant, is_probed: bool) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_add(1);
        match state.phase {
            Phase::Trial { .. } => state.phase = Phase::Trial { is_taken: true },
            Phase::Ejected { until } if !is_probed && until <= now => {
                state.phase = Phase::Trial { is_taken: true };
            }
            Phase::Starting | Phase::Up | Phase::Ejected { .. } => {}
        }
    }

    /// Records that a request is no longer in flight.
    pub(super) fn give_back(&self) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        // If the trial request was dropped, another request may take over the trial.
        if state.phase == (Phase::Trial { is_taken: true }) && state.in_flight == 0 {
            state.phase = Phase::Trial { is_taken: false };
        }
    }

    /// Records that a request started at `begun` received a response.
    pub(super) fn answered(&self, begun: Instant) -> Option<Change> {
        let mut state = self.state();
        if state.ejected_at.is_some_and(|ejected| begun < ejected) {
            return None;
        }
        state.misses = 0;
        state.ejections = 0;
        state.up()
    }

    /// Records that a request started at `begun` received no response, with the reason.
    pub(super) fn missed(&self, begun: Instant, now: Instant, reason: &str) -> Option<Change> {
        let mut state = self.state();
        if state.ejected_at.is_some_and(|ejected| begun < ejected) {
            return None;
        }
        state.misses = state.misses.saturating_add(1);
        let is_trial = matches!(state.phase, Phase::Trial { .. } | Phase::Ejected { .. });
        if !is_trial && state.misses < MISSES_MAX {
            return None;
        }
        let misses = state.misses;
        state.eject(now, format!("it did not answer the last {misses} times: {reason}"))
    }

    /// Returns whether a probe is due.
    pub(super) fn is_probe_due(&self, now: Instant) -> bool {
        let state = self.state();
        let is_old = |every: Duration| state.probed_at.is_none_or(|probed| probed + every <= now);
        match state.phase {
            Phase::Starting => true,
            Phase::Ejected { until } => until <= now,
            Phase::Up | Phase::Trial { .. } => state.probe_misses > 0 || is_old(PROBE_EVERY),
        }
    }

    /// Records the result of a probe.
    pub(super) fn probed(&self, said: Readiness, now: Instant) -> Option<Change> {
        let mut state = self.state();
        state.probed_at = Some(now);
        match said {
            Readiness::Ready => {
                state.probe_misses = 0;
                match state.phase {
                    Phase::Ejected { .. } => {
                        state.phase = Phase::Trial { is_taken: false };
                        state.come_in()
                    }
                    Phase::Starting => state.up(),
                    Phase::Up | Phase::Trial { .. } => None,
                }
            }
            Readiness::Starting => {
                state.probe_misses = 0;
                state.misses = 0;
                state.reason.clear();
                state.phase = Phase::Starting;
                None
            }
            Readiness::Unready(reason) => {
                state.probe_misses = state.probe_misses.saturating_add(1);
                let has_been_ready = matches!(state.phase, Phase::Up | Phase::Trial { .. });
                if has_been_ready && state.probe_misses < PROBE_MISSES_MAX {
                    return None;
                }
                state.eject(now, reason)
            }
        }
    }
}

impl State {
    fn up(&mut self) -> Option<Change> {
        let was_starting = self.phase == Phase::Starting;
        self.phase = Phase::Up;
        let came_in = self.come_in();
        if was_starting { Some(Change::In) } else { came_in }
    }

    fn come_in(&mut self) -> Option<Change> {
        let was_out = !self.reason.is_empty();
        self.reason.clear();
        was_out.then_some(Change::In)
    }

    fn eject(&mut self, now: Instant, reason: String) -> Option<Change> {
        let doubled = PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(self.ejections));
        self.ejections = self.ejections.saturating_add(1);
        self.ejected_at = Some(now);
        self.phase = Phase::Ejected { until: now + doubled.min(PAUSE_MAX) };
        let was_out = !self.reason.is_empty();
        self.reason.clone_from(&reason);
        (!was_out).then_some(Change::Out(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_runtime as runtime;

    fn endpoint(is_probed: bool) -> Endpoint {
        Endpoint::new("http://a".to_owned(), "a".to_owned(), is_probed)
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn endpoint_without_readiness_route_is_retried_by_one_request() {
        let one = endpoint(false);
        let now = runtime::monotonic_now();
        assert_eq!(one.missed(now, now, "no"), None);
        assert_eq!(one.answered(now), None, "an answer resets the misses");
        for _ in 0..2 {
            assert_eq!(one.missed(now, now, "no"), None);
        }
        let out = Change::Out("it did not answer the last 3 times: no".to_owned());
        assert_eq!(one.missed(now, now, "no"), Some(out));
        assert_eq!(one.standing(now, false).0, Standing::Ejected);
        let later = now + after(1);
        assert_eq!(one.standing(later, false).0, Standing::Usable, "a trial is due");
        one.take(later, false);
        assert_eq!(one.standing(later, false), (Standing::OnTrial, 1));
        assert_eq!(one.missed(later, later, "no"), None, "already out of rotation");
        one.give_back();
        assert_eq!(one.standing(later + after(1), false).0, Standing::Ejected, "a doubled delay");
        let later = later + after(2);
        one.take(later, false);
        assert_eq!(one.answered(later), Some(Change::In));
        one.give_back();
        assert_eq!(one.standing(later, false), (Standing::Usable, 0));
    }

    #[test]
    fn endpoint_pause_grows_to_its_limit_and_resets() {
        let one = endpoint(false);
        let mut now = runtime::monotonic_now();
        for _ in 0..3 {
            let _counted = one.missed(now, now, "no");
        }
        for seconds in [1, 2, 4, 8, 15, 15, 15] {
            let early = now + after(seconds) - Duration::from_millis(1);
            assert_eq!(one.standing(early, false).0, Standing::Ejected, "{seconds}");
            now += after(seconds);
            assert_eq!(one.standing(now, false).0, Standing::Usable, "{seconds}");
            one.take(now, false);
            let _still_out = one.missed(now, now, "no");
            one.give_back();
        }
        let _in = one.answered(now);
        for _ in 0..3 {
            let _counted = one.missed(now, now, "no");
        }
        assert_eq!(one.standing(now + after(1), false).0, Standing::Usable);
    }

    #[test]
    fn endpoint_ignores_requests_from_before_its_ejection() {
        let one = endpoint(false);
        let before = runtime::monotonic_now();
        let now = before + after(1);
        for _ in 0..3 {
            let _counted = one.missed(now, now, "no");
        }
        assert_eq!(one.answered(before), None);
        assert_eq!(one.missed(before, now, "no"), None);
        assert_eq!(one.standing(now, false).0, Standing::Ejected);
        assert_eq!(one.standing(now + after(1), false).0, Standing::Usable, "only one ejection");
    }

    #[test]
    fn endpoint_with_readiness_route_returns_by_a_probe() {
        let one = endpoint(true);
        let now = runtime::monotonic_now();
        assert_eq!(one.standing(now, true).0, Standing::Starting);
        let unready = || Readiness::Unready("gone".to_owned());
        assert_eq!(one.probed(unready(), now), Some(Change::Out("gone".to_owned())));
        assert!(!one.is_probe_due(now) && one.is_probe_due(now + after(1)));
        assert_eq!(
            one.standing(now + after(9), true).0,
            Standing::Ejected,
            "a request does not end the ejection"
        );
        assert_eq!(one.probed(Readiness::Ready, now + after(1)), Some(Change::In));
        assert_eq!(one.seen(true).standing, Standing::Usable);
        let now = now + after(2);
        one.take(now, true);
        assert_eq!(one.standing(now, true).0, Standing::OnTrial);
        assert_eq!(one.answered(now), None);
        assert_eq!(one.standing(now, true).0, Standing::Usable);
        assert!(!one.is_probe_due(now) && one.is_probe_due(now + after(5)));
        assert_eq!(one.probed(unready(), now), None, "one failed probe");
        assert!(one.is_probe_due(now), "probed again at once");
        assert_eq!(one.probed(unready(), now), Some(Change::Out("gone".to_owned())));
        assert_eq!(one.probed(Readiness::Starting, now), None);
        assert_eq!(one.probed(Readiness::Ready, now), Some(Change::In));
    }

    #[test]
    fn endpoint_trial_that_was_dropped_is_left_to_another_request() {
        let one = endpoint(false);
        let now = runtime::monotonic_now();
        for _ in 0..3 {
            let _counted = one.missed(now, now, "no");
        }
        let now = now + after(1);
        one.take(now, false);
        one.give_back();
        assert_eq!(one.standing(now, false).0, Standing::Usable);
    }
}
