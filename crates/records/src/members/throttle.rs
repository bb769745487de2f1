//! Throttling of login attempts, per address and per account over all addresses. The counts are
//! kept in memory, so a restart clears them.
//!
//! An address waits only because of its own failures, for a minute at most. Attempts on the same
//! account from other addresses never lock an address out: if there are many attempts on an
//! account, each address has only one free attempt on that account. An attempt counts from its
//! start, so concurrent attempts cannot bypass the limit. A successful attempt is no longer
//! counted, but failed attempts stay counted.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use orrery_runtime::monotonic_now;

/// Number of attempts from one address before it has to wait.
const FREE_OF_ADDRESS: u32 = 5;
/// Number of attempts on one account, from all addresses, after which each address has fewer free
/// attempts on that account.
const FREE_OF_ACCOUNT: u32 = 50;
/// Number of free attempts per address on an account that is under attack.
const FREE_UNDER_ATTACK: u32 = 1;
/// Maximum wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time without an attempt after which a count is reset.
const FORGET_AFTER: Duration = Duration::from_secs(3600);
/// Maximum number of tracked addresses, and of tracked accounts.
const COUNTED_MAX: usize = 50_000;

/// The network of one person: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Network(u128);

impl Network {
    pub(super) fn of(address: Option<IpAddr>) -> Self {
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
}

impl Count {
    /// Returns how long the next attempt has to wait if `free` attempts are allowed.
    fn wait(&self, free: u32, now: Instant) -> Duration {
        let Some(beyond) = self.attempts.checked_sub(free) else { return Duration::ZERO };
        let wait = Duration::from_secs(1_u64 << beyond.min(6)).min(WAIT_MAX);
        (self.last + wait).saturating_duration_since(now)
    }
}

#[derive(Debug)]
struct Counts<K>(HashMap<K, Count>);

impl<K: Hash + Eq> Counts<K> {
    /// Returns the count for a key, if its last attempt is recent.
    fn of(&self, key: &K, now: Instant) -> Option<&Count> {
        self.0.get(key).filter(|count| now.duration_since(count.last) < FORGET_AFTER)
    }

    /// Counts an attempt; returns the time of the previous attempt.
    fn count(&mut self, key: K, now: Instant) -> Option<Instant> {
        if self.0.len() >= COUNTED_MAX && !self.0.contains_key(&key) {
            self.0.retain(|_, count| now.duration_since(count.last) < FORGET_AFTER);
            if self.0.len() >= COUNTED_MAX {
                self.0.retain(|_, count| !count.wait(FREE_OF_ADDRESS, now).is_zero());
            }
            if self.0.len() >= COUNTED_MAX {
                self.0.clear();
            }
        }
        let before = self.of(&key, now).copied();
        let attempts = before.map_or(0, |count| count.attempts).saturating_add(1);
        self.0.insert(key, Count { attempts, last: now });
        before.map(|count| count.last)
    }

    /// Removes the attempt made at `at` from the count. Waits caused by other attempts remain.
    fn withdraw(&mut self, key: &K, at: Instant, before: Option<Instant>) {
        let Some(count) = self.0.get_mut(key) else { return };
        count.attempts = count.attempts.saturating_sub(1);
        if count.attempts == 0 {
            self.0.remove(key);
        } else if let Some(before) = before.filter(|_| count.last == at) {
            count.last = before;
        }
    }
}

/// An attempt that has been counted.
#[derive(Debug)]
pub(super) struct Attempt {
    account: [u8; 32],
    network: Network,
    at: Instant,
    /// The times of the previous attempts: from the same network, and on the same account.
    before: (Option<Instant>, Option<Instant>),
}

/// Recent login attempts.
#[derive(Debug)]
pub(super) struct Throttle(Mutex<(Counts<Network>, Counts<[u8; 32]>)>);

impl Throttle {
    pub(super) fn new() -> Self {
        Self(Mutex::new((Counts(HashMap::new()), Counts(HashMap::new()))))
    }

    /// Counts an attempt at its start.
    ///
    /// # Errors
    /// Returns the time to wait if the attempt is not allowed yet. Such an attempt is not counted.
    pub(super) fn begin(
        &self,
        account: [u8; 32],
        from: Option<IpAddr>,
    ) -> Result<Attempt, Duration> {
        let now = monotonic_now();
        let network = Network::of(from);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let on_account = counts.1.of(&account, now).map_or(0, |count| count.attempts);
        let is_attacked = on_account >= FREE_OF_ACCOUNT;
        let free = if is_attacked { FREE_UNDER_ATTACK } else { FREE_OF_ADDRESS };
        let wait = counts.0.of(&network, now).map_or(Duration::ZERO, |own| own.wait(free, now));
        if !wait.is_zero() {
            return Err(wait);
        }
        let before = (counts.0.count(network, now), counts.1.count(account, now));
        Ok(Attempt { account, network, at: now, before })
    }

    /// Removes an attempt from the counts because its password was correct or was not checked.
    pub(super) fn withdraw(&self, attempt: &Attempt) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0.withdraw(&attempt.network, attempt.at, attempt.before.0);
        counts.1.withdraw(&attempt.account, attempt.at, attempt.before.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: [u8; 32] = [1; 32];

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn is_refused(throttle: &Throttle, account: [u8; 32], from: Option<IpAddr>) -> bool {
        throttle.begin(account, from).is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_delays_only_the_failing_address() {
        let throttle = Throttle::new();
        let a = address("10.0.0.1");
        let b = address("10.0.0.2");
        for _ in 0..5 {
            assert!(!is_refused(&throttle, OWNER, a));
        }
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = Duration::from_secs(seconds);
            let refused = throttle.begin([2; 32], a).unwrap_err();
            assert_eq!(refused, wait, "another account does not help");
            tokio::time::advance(wait).await;
            assert!(!is_refused(&throttle, OWNER, a));
        }
        let right = throttle.begin(OWNER, b).unwrap();
        throttle.withdraw(&right);
        assert!(is_refused(&throttle, OWNER, a), "a success elsewhere unblocks no address");
        tokio::time::advance(FORGET_AFTER).await;
        let attempts: Vec<Attempt> = (0..5).map(|_| throttle.begin(OWNER, a).unwrap()).collect();
        throttle.withdraw(attempts.last().unwrap());
        assert!(!is_refused(&throttle, OWNER, a));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_success_withdraws_only_its_own_attempt() {
        let throttle = Throttle::new();
        let a = address("10.0.0.1");
        for _ in 0..4 {
            assert!(!is_refused(&throttle, OWNER, a));
        }
        let right = throttle.begin([2; 32], a).unwrap();
        throttle.withdraw(&right);
        assert!(!is_refused(&throttle, OWNER, a));
        assert!(is_refused(&throttle, OWNER, a), "a login of one's own allows no more guesses");
        assert!(is_refused(&throttle, [2; 32], a));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_withdrawal_keeps_the_wait_of_other_attempts() {
        let throttle = Throttle::new();
        let a = address("10.0.0.1");
        let mut attempts: Vec<Attempt> =
            (0..5).map(|_| throttle.begin(OWNER, a).unwrap()).collect();
        tokio::time::advance(Duration::from_secs(1)).await;
        let sixth = throttle.begin(OWNER, a).unwrap();
        assert_eq!(throttle.begin(OWNER, a).unwrap_err(), Duration::from_secs(2));
        // One of the first five attempts was not checked and is withdrawn, so five attempts count;
        // the last of them was just made.
        throttle.withdraw(&attempts.pop().unwrap());
        assert_eq!(throttle.begin(OWNER, a).unwrap_err(), Duration::from_secs(1));
        throttle.withdraw(&sixth);
        assert!(!is_refused(&throttle, OWNER, a));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_of_an_attacked_account_lets_its_owner_in() {
        let throttle = Throttle::new();
        let owner = address("10.9.9.9");
        for number in 0..1000_u32 {
            let from = Some(IpAddr::from(number.to_be_bytes()));
            assert!(!is_refused(&throttle, OWNER, from));
            if number > FREE_OF_ACCOUNT {
                assert!(is_refused(&throttle, OWNER, from), "one guess for each address");
            }
            let right = throttle.begin(OWNER, owner).unwrap();
            throttle.withdraw(&right);
        }
        // After a typing error, the owner has to wait a second, regardless of attempts from other
        // addresses.
        assert!(!is_refused(&throttle, OWNER, owner));
        assert_eq!(throttle.begin(OWNER, owner).unwrap_err(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!is_refused(&throttle, OWNER, address("10.1.1.1")));
        assert!(!is_refused(&throttle, OWNER, owner));
        assert!(!is_refused(&throttle, [2; 32], address("10.1.1.2")), "another account");
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_counts_an_ipv6_network_as_one() {
        let throttle = Throttle::new();
        for number in 0..5 {
            assert!(!is_refused(&throttle, OWNER, address(&format!("2001:db8::{number}"))));
        }
        assert!(is_refused(&throttle, OWNER, address("2001:db8::ffff")));
        assert!(!is_refused(&throttle, OWNER, address("2001:db8:0:1::1")));
        assert!(!is_refused(&throttle, OWNER, address("::ffff:10.0.0.1")));
    }
}
