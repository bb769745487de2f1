//! Token buckets: limits requests per second for each key or organization, with a burst.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use orrery_domain::ids::{Id as _, KeyId, OrganizationId};

/// Number of buckets up to which no cleanup runs. Above this number, full buckets are dropped,
/// which does not affect the rate limits of their keys.
const BUCKETS: usize = 10_000;

/// Rate limiter with one bucket for each key that has been used recently.
#[derive(Debug)]
pub struct Limiter<C: Clock = DefaultClock> {
    buckets: RateLimiter<KeyId, DefaultKeyedStateStore<KeyId>, C, NoOpMiddleware<C::Instant>>,
    /// Number of buckets that triggers the next cleanup: twice the number left by the last cleanup,
    /// so that cleanups account for only a small part of the cost of checks.
    look_at: AtomicUsize,
}

impl Limiter {
    /// Creates buckets that hold `burst` tokens and gain `per_second`; an argument of zero counts
    /// as one.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self::with_clock(per_second, burst, DefaultClock::default())
    }
}

impl<C: Clock> Limiter<C> {
    fn with_clock(per_second: u32, burst: u32, clock: C) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst));
        let buckets = RateLimiter::new(quota, DefaultKeyedStateStore::default(), clock);
        Self { buckets, look_at: AtomicUsize::new(BUCKETS) }
    }

    /// Takes a token from the key's bucket.
    ///
    /// # Errors
    /// If the bucket is empty, the time until the next token.
    pub fn check(&self, key: KeyId) -> Result<(), Duration> {
        if self.buckets.len() > self.look_at.load(Ordering::Relaxed) {
            self.buckets.retain_recent();
            self.buckets.shrink_to_fit();
            self.look_at
                .store(self.buckets.len().saturating_mul(2).max(BUCKETS), Ordering::Relaxed);
        }
        let now = || self.buckets.clock().now();
        self.buckets.check_key(&key).map_err(|refused| refused.wait_time_from(now()))
    }
}

/// Rate limiter with one bucket for each organization that has its own limit; a bucket holds the
/// tokens of one second.
#[derive(Debug, Default)]
pub struct OrganizationLimiter {
    /// Each bucket with its rate. When the rate changes, the organization gets a full bucket.
    buckets: Mutex<HashMap<OrganizationId, (u32, Limiter)>>,
}

impl OrganizationLimiter {
    /// Takes a token from the organization's bucket, which gains `per_second`.
    ///
    /// # Errors
    /// If the bucket is empty, the time until the next token.
    pub fn check(&self, organization: OrganizationId, per_second: u32) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let full = || (per_second, Limiter::new(per_second, per_second));
        let bucket = buckets.entry(organization).or_insert_with(full);
        if bucket.0 != per_second {
            *bucket = full();
        }
        bucket.1.check(KeyId::from(organization.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn key(number: u64) -> KeyId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        KeyId::from(id)
    }

    #[test]
    fn rate_limiter_permits_burst_then_delays() {
        let clock = FakeRelativeClock::default();
        let limiter = Limiter::with_clock(4, 3, clock.clone());
        let quarter = Duration::from_millis(250);
        for _ in 0..3 {
            assert_eq!(limiter.check(key(1)), Ok(()));
        }
        assert_eq!(limiter.check(key(1)), Err(quarter));
        assert_eq!(limiter.check(key(2)), Ok(()));
        clock.advance(quarter);
        assert_eq!(limiter.check(key(1)), Ok(()));
        assert_eq!(limiter.check(key(1)), Err(quarter));
        clock.advance(Duration::from_secs(60));
        for _ in 0..3 {
            assert_eq!(limiter.check(key(1)), Ok(()));
        }
        assert!(limiter.check(key(1)).is_err());
    }

    #[test]
    fn rate_limiter_treats_zero_as_one() {
        let limiter = Limiter::with_clock(0, 0, FakeRelativeClock::default());
        assert_eq!(limiter.check(key(1)), Ok(()));
        assert_eq!(limiter.check(key(1)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn organization_limiter_has_one_bucket_each_and_follows_limit() {
        let limiter = OrganizationLimiter::default();
        let (one, other) = (OrganizationId::from([1; 16]), OrganizationId::from([2; 16]));
        assert_eq!(limiter.check(one, 1), Ok(()));
        assert!(limiter.check(one, 1).is_err());
        assert_eq!(limiter.check(other, 1), Ok(()));
        assert_eq!(limiter.check(one, 2), Ok(()));
    }

    #[test]
    fn rate_limiter_drops_only_idle_buckets() {
        let clock = FakeRelativeClock::default();
        let limiter = Limiter::with_clock(1, 1, clock.clone());
        for number in 0..=BUCKETS as u64 {
            assert_eq!(limiter.check(key(number)), Ok(()));
        }
        // All keys were used within this second, so no bucket may be dropped.
        assert!(limiter.check(key(0)).is_err());
        assert_eq!(limiter.buckets.len(), BUCKETS + 1);
        clock.advance(Duration::from_secs(60));
        let later = 2 * BUCKETS;
        for number in 1..=later {
            assert_eq!(limiter.check(key((BUCKETS + number) as u64)), Ok(()));
        }
        assert_eq!(limiter.buckets.len(), later);
    }
}
