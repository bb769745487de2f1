//! Shares one computation among concurrent callers with the same key. A caller never gets an
//! outdated result: a computation is shared only by callers that asked for it before it began.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync;
use tokio::time::Instant;

use super::monotonic_now;

/// The last computation for a key, and the lock of callers that wait for the next one.
type Entry<V> = Arc<sync::Mutex<Option<Computed<V>>>>;

/// Computations by key. Each key has at most one running computation.
#[derive(Debug)]
pub struct SharedAnswers<K, V> {
    entries: Mutex<HashMap<K, Entry<V>>>,
}

#[derive(Debug)]
struct Computed<V> {
    begun: Instant,
    value: V,
}

/// A waiting caller. The last caller that waits for a key removes the key's entry.
struct Asking<'a, K: Eq + Hash, V> {
    all: &'a SharedAnswers<K, V>,
    key: K,
    entry: Entry<V>,
}

impl<K, V> Default for SharedAnswers<K, V> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<K: Eq + Hash + Copy, V: Clone> SharedAnswers<K, V> {
    /// Returns the result of `compute`, or of another caller's computation that began after this
    /// call.
    ///
    /// # Errors
    /// The error of `compute`. Errors are not shared with other callers.
    pub async fn get<E>(
        &self,
        key: K,
        compute: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let asked = monotonic_now();
        let entry = Arc::clone(self.entries().entry(key).or_default());
        let asking = Asking { all: self, key, entry };
        let mut last = asking.entry.lock().await;
        if let Some(Computed { begun, value }) = &*last
            && *begun >= asked
        {
            return Ok(value.clone());
        }
        let begun = monotonic_now();
        let value = compute.await?;
        *last = Some(Computed { begun, value: value.clone() });
        Ok(value)
    }
}

impl<K: Eq + Hash, V> SharedAnswers<K, V> {
    fn entries(&self) -> MutexGuard<'_, HashMap<K, Entry<V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V> Drop for Asking<'_, K, V> {
    fn drop(&mut self) {
        let mut entries = self.all.entries();
        // One reference is this caller's, the other is the map's.
        if Arc::strong_count(&self.entry) == 2 {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shared_answers_begin_after_each_question() {
        let answers = SharedAnswers::<u8, usize>::default();
        let count = AtomicUsize::new(0);
        let ask = |key| {
            answers.get(key, async {
                let value = count.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, ()>(value)
            })
        };
        let later = async |key| {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ask(key).await
        };
        // The two calls that are made during the first computation share the second computation. A
        // call with another key does not wait for either computation.
        let all = tokio::join!(ask(1), later(1), later(1), later(2));
        assert_eq!(all, (Ok(0), Ok(2), Ok(2), Ok(1)));
        assert_eq!(ask(1).await, Ok(3));
        assert!(answers.entries().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn shared_answers_survive_failure_and_dropped_caller() {
        let answers = SharedAnswers::<u8, usize>::default();
        assert_eq!(answers.get(1, async { Err::<usize, _>("no") }).await, Err("no"));
        let forever = answers.get(1, std::future::pending::<Result<usize, ()>>());
        assert!(tokio::time::timeout(Duration::from_secs(1), forever).await.is_err());
        assert_eq!(answers.get(1, async { Ok::<_, ()>(5) }).await, Ok(5));
        assert!(answers.entries().is_empty());
    }
}
