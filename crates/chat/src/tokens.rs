//! The daily token budgets of API keys (`limits.tokens_per_day`): the tokens that each key has used
//! since midnight UTC. The counters are stored on disk and updated in the commit of each call.
//!
//! A key's own limit of tokens per minute (`tpm_limit`) is taken from the key's bucket when the call is
//! admitted, and settled with the used tokens when the call ends.
//!
//! A call is admitted if the tokens already used and the maximum tokens of all calls in flight fit
//! in the budget. A call in progress is never cut off, so a day's usage exceeds the budget by at
//! most one call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::Error;
use orrery_domain::ids::{KeyId, OrganizationId};
use orrery_records::key_policies::{self, Level};
use orrery_runtime::Clock;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

const DAY_SECONDS: i64 = 86_400;
/// The `Retry-After` value if calls in flight reserve the rest of a budget.
const RESERVED_RETRY: Duration = Duration::from_secs(5);
/// The suffix of the key of a row with a [`Level`]. Read as a day, it lies millions of years ahead,
/// so no counter has the same suffix.
const LEVEL: &[u8] = b"rate";
/// A bucket is full again after this time, unless a call used far more tokens than it reserved.
const LEVEL_KEPT: Duration = Duration::from_secs(3600);
/// Maximum rows deleted per batch, and maximum batches per sweep.
const BATCH_MAX: usize = 500;
const BATCHES_MAX: usize = 10_000;

/// The budgets of all keys; clones share the counts of calls in flight.
#[derive(Debug, Clone)]
pub(crate) struct TokenBudgets {
    store: Store,
    clock: Clock,
    policies: key_policies::Handle,
    /// Tokens per day. With `None` there is no limit, and tokens are not counted.
    limit: Option<u64>,
    in_flight: Arc<Mutex<HashMap<KeyId, u64>>>,
}

/// The maximum tokens of a call, counted as in flight until this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    _of_day: Option<OfDay>,
    of_minute: Option<key_policies::Tokens>,
}

impl InFlight {
    /// Settles the tokens that the call has used. Call this after the commit that was passed to
    /// [`TokenBudgets::count`] is durable.
    pub(crate) fn settle(self, used: u64) {
        if let Some(tokens) = self.of_minute {
            tokens.settle(used);
        }
    }
}

/// Tokens that count toward a day's budget until this value is dropped.
#[derive(Debug)]
struct OfDay {
    budgets: TokenBudgets,
    key: KeyId,
    tokens: u64,
}

impl TokenBudgets {
    /// Creates budgets with a limit on tokens per day.
    #[must_use]
    pub(crate) fn new(
        store: Store,
        clock: Clock,
        policies: key_policies::Handle,
        limit: Option<u64>,
    ) -> Self {
        Self { store, clock, policies, limit, in_flight: Arc::default() }
    }

    /// Admits a call that uses at most about `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::TokensUsedUp`], [`Error::TokensReserved`]; [`Error::Engine`] if the key's tokens per
    /// minute do not suffice or the store cannot be read.
    pub(crate) async fn admit(
        &self,
        organization: OrganizationId,
        key: KeyId,
        tokens: u64,
    ) -> Result<InFlight, Error> {
        if self.policies.is_unrestored(key) {
            let level = self.store.read(&level_row(organization, key)).await;
            let level = level.map_err(orrery_engine::Error::from)?;
            self.policies.restore(key, level, self.clock.now());
        }
        let of_minute =
            self.policies.take_tokens(key, tokens).map_err(orrery_engine::Error::from)?;
        let _of_day = self.admit_today(organization, key, tokens).await?;
        Ok(InFlight { _of_day, of_minute })
    }

    async fn admit_today(
        &self,
        organization: OrganizationId,
        key: KeyId,
        tokens: u64,
    ) -> Result<Option<OfDay>, Error> {
        let Some(limit) = self.limit else { return Ok(None) };
        // The call is counted as in flight before the counter is read from disk, so that the second
        // of two concurrent calls includes the first call, and a call that ends between these two
        // steps is not missed. Such a call may be counted twice, which makes the check only
        // stricter.
        let (flying, this) = self.fly(key, tokens);
        let counter = row(organization, key, self.today());
        let used = self.store.counter(&counter).await;
        let used = used.map_err(orrery_engine::Error::from)?;
        let used = u64::try_from(used).unwrap_or(0);
        if used >= limit {
            return Err(Error::TokensUsedUp { limit, retry_after: self.until_midnight() });
        }
        if used.saturating_add(flying) >= limit {
            return Err(Error::TokensReserved { limit, retry_after: RESERVED_RETRY });
        }
        Ok(Some(this))
    }

    /// Counts a call as in flight, and returns the tokens that were in flight before the call.
    fn fly(&self, key: KeyId, tokens: u64) -> (u64, OfDay) {
        let mut in_flight = self.lock();
        let flying = in_flight.entry(key).or_default();
        let before = *flying;
        *flying = before.saturating_add(tokens);
        (before, OfDay { budgets: self.clone(), key, tokens })
    }

    /// Adds the used tokens to the commit of a call.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub(crate) fn count(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
        key: KeyId,
        tokens: u64,
        in_flight: &InFlight,
    ) -> Result<(), storage::Error> {
        if let Some(taken) = &in_flight.of_minute {
            let level = taken.level_after(tokens, self.clock.now());
            commit.put(level_row(organization, key), &level)?;
        }
        if self.limit.is_some() && tokens > 0 {
            let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
            commit.add(row(organization, key, self.today()), tokens);
        }
        Ok(())
    }

    /// Deletes the counters of past days, and the levels of buckets that are full again. Returns
    /// the number of deleted rows.
    ///
    /// # Errors
    /// [`storage::Error`]; rows deleted before the error stay deleted.
    pub(crate) async fn forget_past_days(&self) -> Result<usize, storage::Error> {
        let today = self.today().to_be_bytes();
        let now = self.clock.now();
        let is_past = |key: &Key, bytes: &[u8]| match key.as_bytes().ends_with(LEVEL) {
            true => decode::<Level>(bytes).map_or(true, |level| now.since(level.at) > LEVEL_KEPT),
            false => !key.as_bytes().ends_with(&today),
        };
        let mut count = 0;
        let mut scan = self.store.scan(Page::of(Key::table(Table::TokenUse), BATCH_MAX));
        for _ in 0..BATCHES_MAX {
            let Some(rows) = scan.next_page().await? else { break };
            let mut commit = Commit::new();
            for (key, _) in rows.iter().filter(|(key, bytes)| is_past(key, bytes)) {
                commit.delete(key.clone());
                count += 1;
            }
            if !commit.is_empty() {
                self.store.commit(commit).await?;
            }
        }
        Ok(count)
    }

    /// Returns the number of days since 1970.
    fn today(&self) -> u32 {
        let days = self.clock.now().unix_seconds().div_euclid(DAY_SECONDS);
        u32::try_from(days).unwrap_or_default()
    }

    fn until_midnight(&self) -> Duration {
        let left = DAY_SECONDS - self.clock.now().unix_seconds().rem_euclid(DAY_SECONDS);
        Duration::from_secs(u64::try_from(left).unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, u64>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OfDay {
    fn drop(&mut self) {
        let mut in_flight = self.budgets.lock();
        let left = in_flight.get(&self.key).copied().unwrap_or(0).saturating_sub(self.tokens);
        if left > 0 {
            in_flight.insert(self.key, left);
        } else {
            in_flight.remove(&self.key);
        }
    }
}

/// Returns the row of a key's counter for one day.
fn row(organization: OrganizationId, key: KeyId, day: u32) -> Key {
    Key::table(Table::TokenUse).id(organization).id(key).raw(&day.to_be_bytes())
}

/// Returns the row that stores the level of a key's token bucket.
fn level_row(organization: OrganizationId, key: KeyId) -> Key {
    Key::table(Table::TokenUse).id(organization).id(key).raw(LEVEL)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use orrery_domain::account::ApiKey;
    use orrery_domain::key_policy::KeyPolicy;
    use orrery_domain::time::Timestamp;
    use orrery_records::key_policies::Handle;
    use orrery_storage::Options;

    const NOON: i64 = 20_000 * DAY_SECONDS + DAY_SECONDS / 2;

    fn ids() -> (OrganizationId, KeyId) {
        ([1; 16].into(), [2; 16].into())
    }

    #[tokio::test]
    async fn token_budget_counts_prompts_in_flight_and_used_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_owned(), inline_bytes: 1024 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(NOON * 1_000_000));
        let budgets = TokenBudgets::new(store.clone(), clock.clone(), Handle::default(), Some(100));
        let (organization, key) = ids();
        let first = budgets.admit(organization, key, 100).await.unwrap();
        let refused = budgets.admit(organization, key, 1).await.unwrap_err();
        let Error::TokensReserved { limit, retry_after } = refused else { panic!("{refused}") };
        assert_eq!((limit, retry_after), (100, RESERVED_RETRY));
        assert!(budgets.admit(organization, [3; 16].into(), 1).await.is_ok(), "another key");
        drop(first);
        let mut commit = Commit::new();
        let none = InFlight::default();
        budgets.count(&mut commit, organization, key, 99, &none).unwrap();
        store.commit(commit).await.unwrap();
        assert!(budgets.admit(organization, key, 500).await.is_ok(), "one token is left");
        let mut commit = Commit::new();
        budgets.count(&mut commit, organization, key, 1, &none).unwrap();
        store.commit(commit).await.unwrap();
        let refused = budgets.admit(organization, key, 1).await.unwrap_err();
        let Error::TokensUsedUp { limit, retry_after } = refused else { panic!("{refused}") };
        assert_eq!((limit, retry_after), (100, Duration::from_secs(12 * 3600)));
        clock.advance(Duration::from_secs(12 * 3600));
        assert!(budgets.admit(organization, key, 1).await.is_ok(), "a new day");
        assert_eq!(budgets.forget_past_days().await.unwrap(), 1);
        assert_eq!(budgets.forget_past_days().await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_of_a_minute_stay_used_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_owned(), inline_bytes: 1024 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(NOON * 1_000_000));
        let (organization, id) = ids();
        let policy = KeyPolicy { tpm_limit: Some(60), ..KeyPolicy::default() };
        let start = || {
            let policies = Handle::default();
            policies.set(&key(organization, id, policy.clone()));
            TokenBudgets::new(store.clone(), clock.clone(), policies, None)
        };
        let budgets = start();
        let other = budgets.admit(organization, id, 20).await.unwrap();
        let call = budgets.admit(organization, id, 40).await.unwrap();
        let mut commit = Commit::new();
        budgets.count(&mut commit, organization, id, 30, &call).unwrap();
        commit.after_durable(move || call.settle(30));
        store.commit(commit).await.unwrap();
        // A crash: the other call was in flight, so its maximum counts as used.
        drop((budgets, other));
        let budgets = start();
        clock.advance(Duration::from_secs(5));
        assert!(budgets.admit(organization, id, 16).await.is_err(), "10 are left, 5 were refilled");
        budgets.admit(organization, id, 15).await.unwrap();
        assert_eq!(budgets.forget_past_days().await.unwrap(), 0);
        clock.advance(Duration::from_secs(3700));
        assert_eq!(budgets.forget_past_days().await.unwrap(), 1);
        assert!(start().admit(organization, id, 60).await.is_ok(), "the bucket is full again");
    }

    fn key(organization: OrganizationId, id: KeyId, policy: KeyPolicy) -> ApiKey {
        ApiKey {
            id,
            organization,
            name: "k".to_owned(),
            prefix: "smk_abcd".to_owned(),
            created_by: "x".to_owned(),
            created_at: Timestamp::from_micros(0),
            expires_at: None,
            policy,
            previous: None,
        }
    }

    #[tokio::test]
    async fn token_budget_counts_calls_that_end_during_admission() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { folder: folder.path().to_owned(), inline_bytes: 1024 };
        let store = Store::open(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(NOON * 1_000_000));
        let budgets = TokenBudgets::new(store.clone(), clock, Handle::default(), Some(100));
        let (organization, key) = ids();
        let running = budgets.admit(organization, key, 100).await.unwrap();
        let mut second = Box::pin(budgets.admit(organization, key, 1));
        // The second call reads the counter from disk before the first call is added to the
        // counter, and usually continues after the first call has ended.
        let looked = futures_util::poll!(&mut second);
        let mut commit = Commit::new();
        budgets.count(&mut commit, organization, key, 100, &running).unwrap();
        commit.after_durable(move || drop(running));
        store.commit(commit).await.unwrap();
        let answer = match looked {
            Poll::Ready(answer) => answer,
            Poll::Pending => second.await,
        };
        let refused = answer.unwrap_err();
        assert!(matches!(refused, Error::TokensReserved { .. } | Error::TokensUsedUp { .. }));
        assert_eq!(budgets.lock().len(), 0, "a refused call is not in flight");
    }
}
