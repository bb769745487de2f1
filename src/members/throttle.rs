//! Slows down attempts to log in: for each address, and more generously for each account over all
//! addresses. Kept in memory; a restart forgets it.
//!
//! Nobody is ever locked out: the longest wait is a minute. An attempt counts when it begins, so that many of
//! them at the same time do not get around the limit. A success clears the count.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::monotonic_now;

/// Attempts from one address before it has to wait.
const FREE_OF_ADDRESS: u32 = 5;
/// Attempts on one account before everybody who tries it has to wait. It is larger, so that one address
/// does not slow down the account's owner at another.
const FREE_OF_ACCOUNT: u32 = 50;
/// The longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A count is forgotten after this time without an attempt.
const FORGET_AFTER: Duration = Duration::from_secs(3600);
/// Addresses, and accounts, that are counted at the same time.
const COUNTED_MAX: usize = 50_000;

/// The part of an address that one person has: all of IPv4, the first 64 bits of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Network(u128);

impl Network {
    fn of(address: Option<IpAddr>) -> Self {
        Self(match address.map(|address| address.to_canonical()) {
            None => 0,
            Some(IpAddr::V4(address)) => u128::from(address.to_bits()),
            Some(IpAddr::V6(address)) => address.to_bits() >> 64 << 64,
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Count {
    attempts: u32,
    last: Instant,
    not_before: Instant,
}

#[derive(Debug)]
struct Counts<K> {
    free: u32,
    counts: HashMap<K, Count>,
}

impl<K: Hash + Eq> Counts<K> {
    fn new(free: u32) -> Self {
        Self { free, counts: HashMap::new() }
    }

    /// How long the next attempt has to wait.
    fn wait(&self, key: &K, now: Instant) -> Duration {
        self.counts.get(key).map_or(Duration::ZERO, |count| count.not_before - now)
    }

    fn count(&mut self, key: K, now: Instant) {
        if self.counts.len() >= COUNTED_MAX && !self.counts.contains_key(&key) {
            self.counts.retain(|_, count| now.duration_since(count.last) < FORGET_AFTER);
            if self.counts.len() >= COUNTED_MAX {
                self.counts.retain(|_, count| count.not_before > now);
            }
            if self.counts.len() >= COUNTED_MAX {
                self.counts.clear();
            }
        }
        let count =
            self.counts.entry(key).or_insert(Count { attempts: 0, last: now, not_before: now });
        if now.duration_since(count.last) >= FORGET_AFTER {
            count.attempts = 0;
        }
        count.attempts = count.attempts.saturating_add(1);
        count.last = now;
        if let Some(beyond) = count.attempts.checked_sub(self.free) {
            let wait = Duration::from_secs(1_u64 << beyond.min(6)).min(WAIT_MAX);
            count.not_before = now + wait;
        }
    }

    fn withdraw(&mut self, key: &K) {
        if let Some(count) = self.counts.get_mut(key) {
            count.attempts = count.attempts.saturating_sub(1);
            count.not_before = count.last;
        }
    }
}

/// The attempts to log in of the recent past.
#[derive(Debug)]
pub(super) struct Throttle(Mutex<(Counts<Network>, Counts<[u8; 32]>)>);

impl Throttle {
    pub(super) fn new() -> Self {
        Self(Mutex::new((Counts::new(FREE_OF_ADDRESS), Counts::new(FREE_OF_ACCOUNT))))
    }

    /// Counts an attempt that begins.
    ///
    /// # Errors
    /// How long to wait, where it has to; it is not counted then.
    pub(super) fn begin(&self, account: [u8; 32], from: Option<IpAddr>) -> Result<(), Duration> {
        let now = monotonic_now();
        let network = Network::of(from);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = counts.0.wait(&network, now).max(counts.1.wait(&account, now));
        if !wait.is_zero() {
            return Err(wait);
        }
        counts.0.count(network, now);
        counts.1.count(account, now);
        Ok(())
    }

    /// The attempt was right: what was counted is forgotten.
    pub(super) fn succeeded(&self, account: [u8; 32], from: Option<IpAddr>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0.counts.remove(&Network::of(from));
        counts.1.counts.remove(&account);
    }

    /// The attempt was neither right nor wrong: it was not looked at.
    pub(super) fn withdraw(&self, account: [u8; 32], from: Option<IpAddr>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0.withdraw(&Network::of(from));
        counts.1.withdraw(&account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_slows_one_address_and_not_another() {
        let throttle = Throttle::new();
        let a = address("10.0.0.1");
        let b = address("10.0.0.2");
        for _ in 0..5 {
            assert_eq!(throttle.begin([1; 32], a), Ok(()));
        }
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(throttle.begin([2; 32], a), Err(wait), "another account does not help");
            tokio::time::advance(wait).await;
            assert_eq!(throttle.begin([1; 32], a), Ok(()));
        }
        assert_eq!(throttle.begin([1; 32], b), Ok(()));
        throttle.succeeded([1; 32], b);
        assert!(throttle.begin([1; 32], a).is_err(), "a success elsewhere frees no address");
        tokio::time::advance(FORGET_AFTER).await;
        for _ in 0..5 {
            assert_eq!(throttle.begin([1; 32], a), Ok(()));
        }
        throttle.withdraw([1; 32], a);
        assert_eq!(throttle.begin([1; 32], a), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_slows_an_account_that_many_addresses_try() {
        let throttle = Throttle::new();
        for number in 0..FREE_OF_ACCOUNT {
            let from = Some(IpAddr::from(number.to_be_bytes()));
            assert_eq!(throttle.begin([1; 32], from), Ok(()));
        }
        assert!(throttle.begin([1; 32], address("10.0.0.1")).is_err());
        assert_eq!(throttle.begin([2; 32], address("10.0.0.1")), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_counts_an_ipv6_network_as_one() {
        let throttle = Throttle::new();
        for number in 0..5 {
            assert_eq!(throttle.begin([1; 32], address(&format!("2001:db8::{number}"))), Ok(()));
        }
        assert!(throttle.begin([1; 32], address("2001:db8::ffff")).is_err());
        assert_eq!(throttle.begin([1; 32], address("2001:db8:0:1::1")), Ok(()));
        assert_eq!(throttle.begin([1; 32], address("::ffff:10.0.0.1")), Ok(()));
    }
}
