//! The retry policy of steps and predictions: the pure rules for the `retry` field of a step
//! (`docs/spec/steps.md`, "Retry") and of a model's manifest.
//!
//! Nothing here waits or draws random numbers. The engine turns a delay into a durable timer.

use std::time::Duration;

use super::classify::ErrorClass;

/// Maximum number of attempts in a policy, including the first.
pub const ATTEMPTS_MAX: u32 = 20;
/// Maximum delay between two attempts: one hour.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);
/// Maximum backoff multiplier.
pub const MULTIPLIER_MAX: f64 = 10.0;

/// Defaults of the fields of `retry`.
const ATTEMPTS_DEFAULT: u32 = 3;
const INITIAL_DEFAULT: Duration = Duration::from_secs(1);
const MULTIPLIER_DEFAULT: f64 = 2.0;
const LONGEST_DEFAULT: Duration = Duration::from_secs(60);

/// A `retry` object as written.
#[derive(Debug, Clone, Default)]
pub struct Written {
    pub max_attempts: Option<u32>,
    pub initial_delay: Option<Duration>,
    pub backoff_multiplier: Option<f64>,
    pub max_delay: Option<Duration>,
    pub retry_on: Option<Vec<ErrorClass>>,
}

impl Written {
    /// Converts to a policy, with defaults for absent fields.
    #[must_use]
    pub fn policy(self) -> Policy {
        let initial = self.initial_delay.unwrap_or(INITIAL_DEFAULT);
        Policy::new(
            self.max_attempts.unwrap_or(ATTEMPTS_DEFAULT),
            initial,
            self.backoff_multiplier.unwrap_or(MULTIPLIER_DEFAULT),
            self.max_delay.unwrap_or_else(|| LONGEST_DEFAULT.max(initial)),
            self.retry_on.unwrap_or_else(|| Policy::TRANSIENT.to_vec()),
        )
    }
}

/// The attempts, the delays between them and the classes of failures that are retried.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    attempts: u32,
    initial: Duration,
    multiplier: f64,
    longest: Duration,
    retry_on: Vec<ErrorClass>,
}

impl Policy {
    /// The classes of transient failures, which are retried by default.
    pub const TRANSIENT: [ErrorClass; 4] = [
        ErrorClass::ExecutionTimeout,
        ErrorClass::ProviderError,
        ErrorClass::ProviderRateLimit,
        ErrorClass::ProviderUnavailable,
    ];

    /// Returns the policy of a step without `retry`: a single attempt.
    #[must_use]
    pub const fn once() -> Self {
        Self {
            attempts: 1,
            initial: Duration::ZERO,
            multiplier: 1.0,
            longest: Duration::ZERO,
            retry_on: Vec::new(),
        }
    }

    /// Creates a policy of `attempts` in total. The delay after the first failure is `initial`;
    /// each further failure multiplies it by `multiplier`, up to `longest`. Only failures of a
    /// class in `retry_on` are retried. Out-of-range values are clamped.
    #[must_use]
    pub fn new(
        attempts: u32,
        initial: Duration,
        multiplier: f64,
        longest: Duration,
        retry_on: Vec<ErrorClass>,
    ) -> Self {
        let longest = longest.min(DELAY_MAX);
        Self {
            attempts: attempts.clamp(1, ATTEMPTS_MAX),
            initial: initial.min(longest),
            multiplier: if multiplier.is_nan() {
                1.0
            } else {
                multiplier.clamp(1.0, MULTIPLIER_MAX)
            },
            longest,
            retry_on,
        }
    }

    /// Returns the maximum number of attempts, including the first.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns the delay after the failure of attempt `number` (from 1); `None` if there is no next
    /// attempt.
    #[must_use]
    pub fn delay_after(&self, number: u32, class: ErrorClass) -> Option<Duration> {
        if number >= self.attempts || !self.retry_on.contains(&class) {
            return None;
        }
        // The bounds keep this value finite: at most 3600 s times 10 to the power of 19.
        let earlier_retries = i32::try_from(number.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.multiplier.powi(earlier_retries);
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(self.longest).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn delays(policy: &Policy) -> Vec<f64> {
        (1..)
            .map_while(|number| policy.delay_after(number, ErrorClass::ProviderError))
            .map(|delay| delay.as_secs_f64())
            .collect()
    }

    fn policy(attempts: u32, initial: f64, multiplier: f64, longest: f64) -> Policy {
        let retry_on = Policy::TRANSIENT.to_vec();
        Policy::new(attempts, seconds(initial), multiplier, seconds(longest), retry_on)
    }

    #[test]
    fn retry_policy_delays_grow_up_to_maximum() {
        for (policy, expect) in [
            (policy(5, 1.0, 2.0, 60.0), vec![1.0, 2.0, 4.0, 8.0]),
            (policy(6, 0.5, 3.0, 10.0), vec![0.5, 1.5, 4.5, 10.0, 10.0]),
            (policy(3, 2.0, 1.0, 60.0), vec![2.0, 2.0]),
            (policy(3, 0.0, 10.0, 60.0), vec![0.0, 0.0]),
            (policy(3, 90.0, 2.0, 60.0), vec![60.0, 60.0]),
            (policy(1, 1.0, 2.0, 60.0), vec![]),
            (Policy::once(), vec![]),
        ] {
            assert_eq!(delays(&policy), expect, "{policy:?}");
        }
    }

    #[test]
    fn retry_policy_retries_only_listed_classes() {
        let policy = policy(3, 1.0, 2.0, 60.0);
        for class in ErrorClass::ALL {
            let is_transient = Policy::TRANSIENT.contains(&class);
            assert_eq!(policy.delay_after(1, class).is_some(), is_transient, "{class}");
        }
    }

    #[test]
    fn retry_policy_clamps_out_of_range_values() {
        assert_eq!(policy(0, 1.0, 2.0, 60.0).attempts(), 1);
        assert_eq!(policy(u32::MAX, 1.0, 2.0, 60.0).attempts(), ATTEMPTS_MAX);
        assert_eq!(delays(&policy(3, 1.0, f64::NAN, 60.0)), [1.0, 1.0]);
        assert_eq!(delays(&policy(3, 1.0, -2.0, 60.0)), [1.0, 1.0]);
        assert_eq!(delays(&policy(3, 1.0, f64::INFINITY, 60.0)), [1.0, 10.0]);
        assert_eq!(delays(&policy(2, 1e9, 2.0, 1e9)), [DELAY_MAX.as_secs_f64()]);
    }

    proptest! {
        #[test]
        fn retry_policy_delays_never_shrink_and_always_end(
            attempts: u32, initial in 0.0..1e6, multiplier: f64, longest in 0.0..1e6,
        ) {
            let delays = delays(&policy(attempts, initial, multiplier, longest));
            prop_assert!(delays.len() < 20);
            prop_assert!(delays.is_sorted());
            let longest = seconds(longest).min(DELAY_MAX).as_secs_f64();
            prop_assert!(delays.iter().all(|delay| *delay <= longest));
        }
    }
}
