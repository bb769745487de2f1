//! The API keys of an upstream. Calls take turns with the keys. A key that the upstream limits or
//! rejects rests: until then, it is used only if all other keys rest, too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::{HeaderValue, RETRY_AFTER};
use tokio::time::Instant;

use crate::error::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::delivery::retry_after;
use orrery_domain::time::Timestamp;
use orrery_runtime as runtime;

/// How long a key rests after a 429 without `Retry-After`.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest `Retry-After` that is honored.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long a key rests that the upstream rejects.
const PAUSE_REJECTED: Duration = Duration::from_secs(60);

/// The keys of an upstream. An upstream without keys has one entry without a value.
#[derive(Debug)]
pub(crate) struct Keys {
    values: Vec<Option<HeaderValue>>,
    /// The times until which the keys rest.
    rests: Mutex<Vec<Option<Instant>>>,
    /// The number of calls so far.
    turn: AtomicUsize,
}

impl Keys {
    pub(super) fn new(values: Vec<HeaderValue>) -> Self {
        let mut values: Vec<_> = values.into_iter().map(Some).collect();
        if values.is_empty() {
            values.push(None);
        }
        let rests = Mutex::new(vec![None; values.len()]);
        Self { values, rests, turn: AtomicUsize::default() }
    }

    /// Returns the value of a key's header.
    pub(super) fn get(&self, key: usize) -> Option<&HeaderValue> {
        self.values.get(key)?.as_ref()
    }

    fn rests(&self) -> MutexGuard<'_, Vec<Option<Instant>>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys for a call, in order: those that do not rest, in turn; or the key that rests
    /// for the shortest time.
    pub(crate) fn order(&self) -> Vec<usize> {
        let now = runtime::monotonic_now();
        let count = self.values.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let rests = self.rests();
        let rest = |key: usize| rests.get(key).copied().flatten().filter(|until| *until > now);
        let in_turn = (0..count).map(|index| first.wrapping_add(index) % count);
        let awake: Vec<usize> = in_turn.filter(|key| rest(*key).is_none()).collect();
        if awake.is_empty() {
            return (0..count).min_by_key(|key| rest(*key)).into_iter().collect();
        }
        awake
    }

    /// Returns how many keys rest.
    pub(super) fn resting(&self) -> usize {
        let now = runtime::monotonic_now();
        self.rests().iter().flatten().filter(|until| **until > now).count()
    }

    pub(super) fn all_rest(&self) -> bool {
        self.resting() == self.values.len()
    }

    /// Lets a key rest if the failure is about the key. Returns the outcome for metrics.
    pub(super) fn note(&self, key: usize, failure: &Failure, now: Timestamp) -> &'static str {
        // With 403, servers also refuse what a caller has sent.
        if !is_of_key(failure) || failure.status == 403 {
            return "failed";
        }
        let (pause, outcome) = if failure.class == ErrorClass::ProviderAuth {
            (PAUSE_REJECTED, "rejected")
        } else {
            (asked_pause(failure, now), "limited")
        };
        if let Some(rest) = self.rests().get_mut(key) {
            let until = runtime::monotonic_now().checked_add(pause);
            *rest = until.max(*rest);
        }
        outcome
    }
}

/// Returns whether another key of the same upstream may succeed.
pub(super) const fn is_of_key(failure: &Failure) -> bool {
    matches!(failure.class, ErrorClass::ProviderRateLimit | ErrorClass::ProviderAuth)
}

/// Returns for how long the server asks to wait.
fn asked_pause(failure: &Failure, now: Timestamp) -> Duration {
    let headers = &failure.said.headers;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let milliseconds = || text("retry-after-ms")?.trim().parse().ok().map(Duration::from_millis);
    let asked = text(RETRY_AFTER.as_str()).and_then(|header| retry_after(header, now));
    milliseconds().or(asked).unwrap_or(PAUSE).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: usize) -> Keys {
        Keys::new((0..count).map(|_| HeaderValue::from_static("k")).collect())
    }

    fn limited(header: Option<(&'static str, &'static str)>) -> Failure {
        let mut failure = Failure::new(429, ErrorClass::ProviderRateLimit, "slow down");
        if let Some((name, value)) = header {
            failure.said.headers.insert(name, HeaderValue::from_static(value));
        }
        failure
    }

    #[tokio::test(start_paused = true)]
    async fn keys_take_turns_and_rest_as_long_as_the_server_asks() {
        let keys = keys(3);
        let now = Timestamp::from_micros(0);
        assert_eq!((keys.order(), keys.order()), (vec![0, 1, 2], vec![1, 2, 0]));
        assert_eq!(keys.note(1, &limited(Some(("retry-after", "30"))), now), "limited");
        assert_eq!((keys.order(), keys.resting()), (vec![2, 0], 1));
        keys.note(0, &limited(Some(("retry-after-ms", "2500"))), now);
        keys.note(2, &limited(None), now);
        assert!(keys.all_rest());
        assert_eq!(keys.order(), [0], "the shortest rest");
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(keys.order(), [0]);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(keys.resting(), 1);
        tokio::time::advance(Duration::from_secs(25)).await;
        assert_eq!(keys.resting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_rest_only_for_failures_of_their_own() {
        let keys = keys(1);
        let now = Timestamp::from_micros(0);
        let broken = Failure::new(500, ErrorClass::ProviderError, "no");
        assert_eq!((keys.note(0, &broken, now), keys.resting()), ("failed", 0));
        let rejected = Failure::new(502, ErrorClass::ProviderAuth, "no");
        assert_eq!((keys.note(0, &rejected, now), keys.resting()), ("rejected", 1));
        let forbidden = Failure::new(403, ErrorClass::ProviderAuth, "no");
        tokio::time::advance(PAUSE_REJECTED).await;
        assert_eq!((keys.note(0, &forbidden, now), keys.resting()), ("failed", 0));
        keys.note(0, &limited(Some(("retry-after", "999999"))), now);
        tokio::time::advance(PAUSE_MAX).await;
        assert_eq!(keys.resting(), 0, "at most an hour");
    }
}
