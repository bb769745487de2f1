//! The policies of API keys, in memory for enforcement, and what enforcement counts: the buckets of
//! requests and tokens, and requests in flight.
//!
//! Only keys with a policy have an entry. `accounts` loads the entries at startup, and replaces an
//! entry once its commit is durable. A restart fills the buckets; budgets are counters in the store
//! (`billing`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use orrery_domain::account::ApiKey;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_domain::key_policy::{KeyPolicy, Scope};
use orrery_domain::money::Usd;
use orrery_domain::record::Record;
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, monotonic_now};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

/// The reason why a key may not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("this key is blocked")]
    Blocked,
    #[error("this key may not do this: it needs the scope {}", .0.as_str())]
    Scope(Scope),
    #[error("this key may not use the model '{0}'")]
    Model(String),
    #[error("this key may make {limit} requests per minute")]
    Requests { limit: u32, wait: Duration },
    #[error("this key may use {limit} tokens per minute, and this request may use {needed}")]
    Tokens { limit: u64, needed: u64, wait: Duration },
    /// The request can never be admitted.
    #[error(
        "this request may use {needed} tokens, but this key may use {limit} per minute: limit the \
         answer, for example with max_tokens"
    )]
    TooManyTokens { limit: u64, needed: u64 },
    #[error("this key may have {0} requests in flight")]
    Parallel(u32),
}

impl Refused {
    /// Returns whether the same request may be admitted later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Requests { .. } | Self::Tokens { .. } | Self::Parallel(_))
    }
}

/// A bucket that holds the amount of one minute and fills continuously.
#[derive(Debug)]
struct Bucket {
    /// Negative after a call that used more than it had reserved.
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn full(limit: u64) -> Self {
        Self { left: to_float(limit), filled: monotonic_now() }
    }

    /// Adds what has flowed in since the last call.
    fn fill(&mut self, limit: u64) {
        let now = monotonic_now();
        let most = to_float(limit);
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + passed * most / MINUTE.as_secs_f64()).min(most);
        self.filled = now;
    }

    /// Returns the time until the bucket holds `amount`.
    fn wait(&self, limit: u64, amount: f64) -> Duration {
        let missing = (amount - self.left).max(0.0);
        Duration::try_from_secs_f64(missing * MINUTE.as_secs_f64() / to_float(limit))
            .unwrap_or(Duration::MAX)
    }
}

/// Returns a count as a float. Limits are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "limits are below 2^53")]
fn to_float(count: u64) -> f64 {
    count as f64
}

/// The counts of one key.
#[derive(Debug)]
struct Counts {
    requests: Bucket,
    tokens: Bucket,
    /// Whether the token bucket's stored level has been restored since the service started.
    is_restored: bool,
    in_flight: u32,
}

/// The level of a key's token bucket. Each call stores the level so that it survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Level {
    left: f64,
    pub at: Timestamp,
}

impl Record for Level {
    const NAME: &'static str = "token rate";
}

/// A key's policy and counts.
#[derive(Debug)]
pub struct Entry {
    pub organization: OrganizationId,
    /// The key's name.
    pub name: String,
    pub policy: KeyPolicy,
    pub created_at: Timestamp,
    counts: Arc<Mutex<Counts>>,
}

/// What is left in one of a key's buckets, for the headers of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub limit: u64,
    pub remaining: u64,
    /// The time until the bucket is full.
    pub reset: Duration,
}

/// A request in flight; counted until this value is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Mutex<Counts>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.in_flight = counts.in_flight.saturating_sub(1);
    }
}

/// Tokens taken from a key's bucket for a call. Dropping this value puts them back.
#[derive(Debug)]
pub struct Tokens {
    entry: Arc<Entry>,
    reserved: u64,
}

impl Tokens {
    /// Returns the level of the bucket after this call has used `used` tokens. The maximum tokens
    /// of other calls in flight count as used.
    #[must_use]
    pub fn level_after(&self, used: u64, now: Timestamp) -> Level {
        let mut counts = self.entry.counts();
        counts.tokens.fill(self.entry.policy.tpm_limit.unwrap_or(0));
        Level { left: counts.tokens.left + to_float(self.reserved) - to_float(used), at: now }
    }

    /// Ends the reservation with the tokens that the call has used.
    pub fn settle(mut self, used: u64) {
        let over = to_float(used) - to_float(self.reserved);
        self.reserved = 0;
        self.entry.counts().tokens.left -= over;
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        if self.reserved > 0 {
            self.entry.counts().tokens.left += to_float(self.reserved);
        }
    }
}

impl Entry {
    fn of(key: &ApiKey, counts: Option<Arc<Mutex<Counts>>>) -> Self {
        let policy = key.policy.clone();
        let full = || {
            Arc::new(Mutex::new(Counts {
                requests: Bucket::full(policy.rpm_limit.map_or(0, u64::from)),
                tokens: Bucket::full(policy.tpm_limit.unwrap_or(0)),
                is_restored: false,
                in_flight: 0,
            }))
        };
        let counts = counts.unwrap_or_else(full);
        let (organization, name) = (key.organization, key.name.clone());
        Self { organization, name, policy, created_at: key.created_at, counts }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the key may do what needs this scope.
    ///
    /// # Errors
    /// [`Refused::Blocked`], [`Refused::Scope`].
    pub fn may(&self, scope: Scope) -> Result<(), Refused> {
        if self.policy.blocked {
            return Err(Refused::Blocked);
        }
        if self.policy.may(scope) { Ok(()) } else { Err(Refused::Scope(scope)) }
    }

    /// Counts a request: takes one from the bucket of requests, and counts it as in flight until
    /// the returned value is dropped.
    ///
    /// # Errors
    /// [`Refused::Parallel`], [`Refused::Requests`]; nothing is counted then.
    pub fn begin(&self) -> Result<InFlight, Refused> {
        let mut counts = self.counts();
        if let Some(most) = self.policy.max_parallel_requests
            && counts.in_flight >= most
        {
            return Err(Refused::Parallel(most));
        }
        if let Some(limit) = self.policy.rpm_limit {
            let bucket = &mut counts.requests;
            bucket.fill(u64::from(limit));
            if bucket.left < 1.0 {
                let wait = bucket.wait(u64::from(limit), 1.0);
                return Err(Refused::Requests { limit, wait });
            }
            bucket.left -= 1.0;
        }
        counts.in_flight += 1;
        drop(counts);
        Ok(InFlight(Arc::clone(&self.counts)))
    }

    /// Returns what is left in the buckets of requests and of tokens.
    #[must_use]
    pub fn left(&self) -> (Option<Left>, Option<Left>) {
        let mut counts = self.counts();
        let look = |bucket: &mut Bucket, limit: u64| {
            bucket.fill(limit);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            let remaining = bucket.left.max(0.0) as u64;
            Left { limit, remaining, reset: bucket.wait(limit, to_float(limit)) }
        };
        let requests = self.policy.rpm_limit;
        let requests = requests.map(|limit| look(&mut counts.requests, u64::from(limit)));
        let tokens = self.policy.tpm_limit.map(|limit| look(&mut counts.tokens, limit));
        (requests, tokens)
    }
}

/// The policies of all keys; clones share the same state.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    entries: Arc<RwLock<HashMap<KeyId, Arc<Entry>>>>,
}

impl Handle {
    /// Returns a key's entry; `None` if the key has no policy.
    #[must_use]
    pub fn of(&self, key: KeyId) -> Option<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        if entries.is_empty() { None } else { entries.get(&key).cloned() }
    }

    /// Returns the entries of all keys that have a budget.
    #[must_use]
    pub fn with_budget(&self) -> Vec<(KeyId, Arc<Entry>)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let with_budget = entries.iter().filter(|(_, entry)| entry.policy.max_budget.is_some());
        with_budget.map(|(key, entry)| (*key, Arc::clone(entry))).collect()
    }

    /// Replaces a key's policy. Requests in flight stay counted; a changed rate starts with a full
    /// bucket.
    pub fn set(&self, key: &ApiKey) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if key.policy.is_default() {
            entries.remove(&key.id);
            return;
        }
        let before = entries.get(&key.id);
        let counts = before.map(|entry| {
            let mut counts = entry.counts();
            if entry.policy.rpm_limit != key.policy.rpm_limit {
                counts.requests = Bucket::full(key.policy.rpm_limit.map_or(0, u64::from));
            }
            if entry.policy.tpm_limit != key.policy.tpm_limit {
                counts.tokens = Bucket::full(key.policy.tpm_limit.unwrap_or(0));
                counts.is_restored = true;
            }
            Arc::clone(&entry.counts)
        });
        entries.insert(key.id, Arc::new(Entry::of(key, counts)));
    }

    /// Forgets a deleted key.
    pub fn remove(&self, key: KeyId) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// Checks that a key may use a model.
    ///
    /// # Errors
    /// [`Refused::Model`].
    pub fn check_model(&self, key: KeyId, model: &str) -> Result<(), Refused> {
        match self.of(key) {
            Some(entry) if !entry.policy.may_use(model) => Err(Refused::Model(model.to_owned())),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether [`Handle::restore`] must restore the level of a key's token bucket.
    #[must_use]
    pub fn is_unrestored(&self, key: KeyId) -> bool {
        self.of(key)
            .is_some_and(|entry| entry.policy.tpm_limit.is_some() && !entry.counts().is_restored)
    }

    /// Restores the level of a key's token bucket: the level stored before the service started,
    /// plus the tokens refilled since, up to the limit, minus the tokens taken since the start.
    pub fn restore(&self, key: KeyId, level: Option<Level>, now: Timestamp) {
        let Some(entry) = self.of(key) else { return };
        let mut counts = entry.counts();
        if counts.is_restored {
            return;
        }
        counts.is_restored = true;
        let (Some(level), Some(limit)) = (level, entry.policy.tpm_limit) else { return };
        let bucket = &mut counts.tokens;
        let spent = to_float(limit) - bucket.left;
        let passed = now.since(level.at).as_secs_f64();
        let left = level.left + passed * to_float(limit) / MINUTE.as_secs_f64();
        bucket.left = left.min(to_float(limit)) - spent;
    }

    /// Takes the maximum tokens of a call from a key's bucket.
    ///
    /// # Errors
    /// [`Refused::TooManyTokens`], [`Refused::Tokens`].
    pub fn take_tokens(&self, key: KeyId, needed: u64) -> Result<Option<Tokens>, Refused> {
        let Some(entry) = self.of(key) else { return Ok(None) };
        let Some(limit) = entry.policy.tpm_limit else { return Ok(None) };
        if needed > limit {
            return Err(Refused::TooManyTokens { limit, needed });
        }
        let mut counts = entry.counts();
        let bucket = &mut counts.tokens;
        bucket.fill(limit);
        if bucket.left < to_float(needed) {
            let wait = bucket.wait(limit, to_float(needed));
            return Err(Refused::Tokens { limit, needed, wait });
        }
        bucket.left -= to_float(needed);
        drop(counts);
        Ok(Some(Tokens { entry, reserved: needed }))
    }

    /// Returns a key's budget and the start of its current period; `None` without a budget.
    #[must_use]
    pub fn budget(&self, key: KeyId, clock: &Clock) -> Option<(Usd, Timestamp)> {
        let entry = self.of(key)?;
        let budget = entry.policy.max_budget?;
        Some((budget, entry.policy.period(entry.created_at, clock.now()).0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::account::dashboard_key;

    fn key(policy: KeyPolicy) -> ApiKey {
        ApiKey {
            id: [7; 16].into(),
            organization: [1; 16].into(),
            name: "k".to_owned(),
            prefix: "smk_abcd".to_owned(),
            created_by: "x".to_owned(),
            created_at: Timestamp::from_micros(0),
            expires_at: None,
            policy,
            previous: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_tokens_per_minute_are_exact() {
        let handle = Handle::default();
        let key = key(KeyPolicy {
            rpm_limit: Some(2),
            tpm_limit: Some(100),
            max_parallel_requests: Some(3),
            ..KeyPolicy::default()
        });
        assert!(handle.of(key.id).is_none() && handle.take_tokens(key.id, 1000).unwrap().is_none());
        handle.set(&key);
        let entry = handle.of(key.id).unwrap();
        let first = entry.begin().unwrap();
        let _second = entry.begin().unwrap();
        let Err(Refused::Requests { limit: 2, wait }) = entry.begin() else { panic!() };
        assert_eq!(wait.as_secs(), 30);
        tokio::time::advance(Duration::from_secs(60)).await;
        let _third = entry.begin().unwrap();
        assert_eq!(entry.begin().unwrap_err(), Refused::Parallel(3));
        drop(first);
        drop(entry.begin().unwrap());

        let (limit, needed) = (100, 101);
        let never = handle.take_tokens(key.id, needed).unwrap_err();
        assert_eq!(never, Refused::TooManyTokens { limit, needed });
        let taken = handle.take_tokens(key.id, 60).unwrap().unwrap();
        assert!(matches!(handle.take_tokens(key.id, 60), Err(Refused::Tokens { .. })));
        taken.settle(10);
        assert_eq!(entry.left().1.unwrap().remaining, 90);
        drop(handle.take_tokens(key.id, 90).unwrap());
        assert_eq!(entry.left().1.unwrap().remaining, 90, "an abandoned call uses nothing");
        handle.take_tokens(key.id, 50).unwrap().unwrap().settle(190);
        let Err(Refused::Tokens { wait, .. }) = handle.take_tokens(key.id, 1) else { panic!() };
        assert_eq!(wait.as_secs(), 60, "the bucket owes 100 tokens");
    }

    #[test]
    fn changes_keep_requests_in_flight_and_blocked_keys_may_nothing() {
        let handle = Handle::default();
        let one = KeyPolicy { max_parallel_requests: Some(1), ..KeyPolicy::default() };
        let mut key = key(one);
        handle.set(&key);
        let _running = handle.of(key.id).unwrap().begin().unwrap();
        key.policy.rpm_limit = Some(5);
        key.policy.models = Some(vec!["llama*".to_owned()]);
        handle.set(&key);
        let entry = handle.of(key.id).unwrap();
        assert_eq!(entry.begin().unwrap_err(), Refused::Parallel(1));
        assert!(handle.check_model(key.id, "llama-3").is_ok());
        let refused = handle.check_model(key.id, "gpt").unwrap_err();
        assert_eq!(refused.to_string(), "this key may not use the model 'gpt'");
        assert!(handle.check_model(dashboard_key([1; 16].into()), "gpt").is_ok());
        key.policy.blocked = true;
        handle.set(&key);
        assert_eq!(handle.of(key.id).unwrap().may(Scope::Read), Err(Refused::Blocked));
        key.policy = KeyPolicy::default();
        handle.set(&key);
        assert!(handle.of(key.id).is_none());
    }
}
