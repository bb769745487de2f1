//! Passwords: argon2id hashes, which are computed on blocking threads, a few at a time.
//!
//! A hash takes 19 MiB and tens of milliseconds. The number of running and queued hashes is
//! limited, so that a flood of attempts cannot exhaust memory or CPU. Each network has at most one
//! password check in the queue, so that a network with many attempts does not delay other networks.
//! Passwords are never stored or logged.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use argon2::password_hash::{PasswordHash, SaltString};
use argon2::{Algorithm, Argon2, Params, PasswordHasher as _, PasswordVerifier as _, Version};
use tokio::sync::{AcquireError, OnceCell, Semaphore};

use super::Error;
use super::throttle::Network;
use orrery_domain::hex::hex;
pub(super) use orrery_domain::member::{PASSWORD_MAX, PASSWORD_MIN};
use orrery_runtime::random_bytes;

/// The memory for a hash in KiB; the constants below are the number of passes and lanes. OWASP
/// recommends these three values.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// Maximum number of concurrent hashes.
const RUNNING_MAX: usize = 2;
/// Maximum number of queued hashes. Further requests are rejected.
const WAITING_MAX: usize = 1024;
/// Maximum time that a hash may wait in the queue.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Computes hashes. Clones share the limits.
#[derive(Debug, Clone)]
pub(super) struct Passwords {
    places: Arc<Semaphore>,
    present: Arc<AtomicUsize>,
    /// One permit per network, for the only check that may be queued or running.
    turns: Arc<Mutex<HashMap<Network, Weak<Semaphore>>>>,
    /// The hash of a random password. Attempts for a member who does not exist are verified against
    /// this hash, so that the response takes the same time.
    dummy: Arc<OnceCell<String>>,
}

/// Counts a caller until this value is dropped.
struct Present(Arc<AtomicUsize>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Passwords {
    pub(super) fn new() -> Self {
        let places = Arc::new(Semaphore::new(RUNNING_MAX));
        Self { places, present: Arc::default(), turns: Arc::default(), dummy: Arc::default() }
    }

    /// Hashes a new password, in the PHC string format.
    ///
    /// # Errors
    /// [`Error::PasswordLength`], [`Error::Busy`], [`Error::Randomness`].
    pub(super) async fn hash(&self, password: &str) -> Result<String, Error> {
        check_length(password)?;
        let salt = random_bytes::<16>()?;
        let password = password.to_owned();
        self.compute(None, move || {
            let salt = SaltString::encode_b64(&salt).map_err(|error| error.to_string())?;
            let hash = hasher()?.hash_password(password.as_bytes(), &salt);
            hash.map(|hash| hash.to_string()).map_err(|error| error.to_string())
        })
        .await
    }

    /// Returns whether `password` matches `hash`. Without a hash, the function takes the same time
    /// and returns false.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Randomness`].
    pub(super) async fn verify(
        &self,
        hash: Option<&str>,
        password: &str,
        network: Network,
    ) -> Result<bool, Error> {
        let dummy =
            self.dummy.get_or_try_init(|| async { self.hash(&hex(&random_bytes::<16>()?)).await });
        let dummy = dummy.await?;
        let is_known = hash.is_some() && password.len() <= PASSWORD_MAX;
        let hash = hash.filter(|_| is_known).unwrap_or(dummy).to_owned();
        let password: String =
            if is_known { password.to_owned() } else { "-".repeat(PASSWORD_MIN) };
        let is_equal = self
            .compute(Some(network), move || {
                let hash = PasswordHash::new(&hash).map_err(|error| error.to_string())?;
                Ok(hasher()?.verify_password(password.as_bytes(), &hash).is_ok())
            })
            .await?;
        Ok(is_equal && is_known)
    }

    async fn compute<T: Send + 'static>(
        &self,
        network: Option<Network>,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, Error> {
        let present = Present(Arc::clone(&self.present));
        if self.present.fetch_add(1, Ordering::AcqRel) >= RUNNING_MAX + WAITING_MAX {
            return Err(Error::Busy);
        }
        let place = async {
            let turn = match network {
                Some(network) => Some(self.turn_of(network).acquire_owned().await?),
                None => None,
            };
            Ok((turn, Arc::clone(&self.places).acquire_owned().await?))
        };
        let place = tokio::time::timeout(WAIT_MAX, place).await.map_err(|_late| Error::Busy)?;
        let place = place.map_err(|_closed: AcquireError| Error::Busy)?;
        // The permit is held until the hash is computed, even if the caller has disconnected.
        let done = tokio::task::spawn_blocking(move || {
            let _held = (present, place);
            work()
        });
        done.await.map_err(|error| Error::Hash(error.to_string()))?.map_err(Error::Hash)
    }

    fn turn_of(&self, network: Network) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(&network).and_then(Weak::upgrade) {
            return turn;
        }
        // Removes unused entries, so that the map has at most one entry per waiting caller.
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        turns.insert(network, Arc::downgrade(&turn));
        turn
    }
}

/// Checks the length of a new password.
///
/// # Errors
/// [`Error::PasswordLength`].
pub(super) fn check_length(password: &str) -> Result<(), Error> {
    if !(PASSWORD_MIN..=PASSWORD_MAX).contains(&password.len()) {
        return Err(Error::PasswordLength);
    }
    Ok(())
}

fn hasher() -> Result<Argon2<'static>, String> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None).map_err(|error| error.to_string())?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn password_verifies_only_against_its_own_hash() {
        let passwords = Passwords::new();
        let hash = passwords.hash("correct horse battery").await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let network = Network::of(None);
        assert!(passwords.verify(Some(&hash), "correct horse battery", network).await.unwrap());
        for wrong in ["correct horse batterY", "", &"x".repeat(100_000)] {
            assert!(!passwords.verify(Some(&hash), wrong, network).await.unwrap());
        }
        assert!(!passwords.verify(None, "------------", network).await.unwrap());
        for bad in ["short", &"x".repeat(257)] {
            assert!(matches!(passwords.hash(bad).await, Err(Error::PasswordLength)));
        }
    }

    #[tokio::test]
    async fn password_hashes_beyond_the_queue_are_rejected() {
        let passwords = Passwords::new();
        let held = Arc::clone(&passwords.places).acquire_many_owned(2).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..RUNNING_MAX + WAITING_MAX {
            let mut one = Box::pin(passwords.hash("correct horse battery"));
            assert!(futures_util::poll!(&mut one).is_pending());
            waiting.push(one);
        }
        assert!(matches!(passwords.hash("correct horse battery").await, Err(Error::Busy)));
        drop(waiting);
        drop(held);
        assert!(passwords.hash("correct horse battery").await.is_ok());
        assert_eq!(passwords.present.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn password_checks_of_one_network_do_not_delay_another() {
        let passwords = Passwords::new();
        let hash = passwords.hash("correct horse battery").await.unwrap();
        let network = |address: &str| Network::of(Some(address.parse().unwrap()));
        // Prepare everything before the permits are taken.
        assert!(!passwords.verify(None, "x", network("10.0.0.1")).await.unwrap());
        let held = Arc::clone(&passwords.places).acquire_many_owned(2).await.unwrap();
        let wrong = || passwords.verify(Some(&hash), "wrong", network("10.0.0.1"));
        let mut flood: Vec<_> = (0..200).map(|_| Box::pin(wrong())).collect();
        for one in &mut flood {
            assert!(futures_util::poll!(one).is_pending());
        }
        let owner = passwords.verify(Some(&hash), "correct horse battery", network("10.0.0.2"));
        let mut owner = Box::pin(owner);
        assert!(futures_util::poll!(&mut owner).is_pending());
        drop(held);
        assert!(owner.await.unwrap(), "it waits for one check of the flood, not for 200");
        drop(flood);
        assert!(
            passwords
                .verify(Some(&hash), "correct horse battery", network("10.0.0.1"))
                .await
                .unwrap()
        );
        passwords.verify(None, "x", network("10.0.0.3")).await.unwrap();
        assert_eq!(passwords.turns.lock().unwrap().len(), 1);
    }
}
