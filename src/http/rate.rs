//! Token buckets: so many requests a second for each key, and a burst.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::domain::ids::KeyId;

/// Buckets that are kept; past it those that are full again are dropped.
const BUCKETS: usize = 10_000;

/// One bucket for each key.
#[derive(Debug)]
pub struct Limiter {
    buckets: DefaultKeyedRateLimiter<KeyId>,
    clock: DefaultClock,
}

impl Limiter {
    /// Buckets that hold `burst` and gain `per_second`; zero of either counts as one.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst));
        Self { buckets: RateLimiter::keyed(quota), clock: DefaultClock::default() }
    }

    /// Takes one from the key's bucket.
    ///
    /// # Errors
    /// The time until there is one, when it is empty.
    pub fn check(&self, key: KeyId) -> Result<(), Duration> {
        if self.buckets.len() > BUCKETS {
            self.buckets.retain_recent();
        }
        self.buckets.check_key(&key).map_err(|refused| refused.wait_time_from(self.clock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_next_waits_less_than_a_second() {
        let limiter = Limiter::new(3, 3);
        let (mine, other) = (KeyId::from([1; 16]), KeyId::from([2; 16]));
        for _ in 0..3 {
            assert_eq!(limiter.check(mine), Ok(()));
        }
        assert!(limiter.check(mine).is_err_and(|wait| wait <= Duration::from_secs(1)));
        assert_eq!(limiter.check(other), Ok(()));
    }
}
