//! Certificates from ACME (RFC 8555) with the TLS-ALPN-01 challenge (RFC 8737): ordered from the
//! configured authority, renewed after two thirds of their lifetime, and stored in the cache
//! folder.
//!
//! This module only writes files: the parent module's check serves a new certificate like any
//! changed file. A stored failure survives a restart, so a service that restarts in a loop sends
//! the authority no more orders than a service that keeps running. Every exchange is limited in
//! time and size, and text from the authority is shortened and stripped of control characters.

mod authority_client;
mod cache;
mod challenges;
mod order;

use std::path::PathBuf;
use std::time::Duration;

use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, Tasks};
use tokio::sync::Notify;

use super::authority::{Folder, Names};
use super::pair::{self, Pair};
use super::{Error, Stamp, authority};
use authority_client::AuthorityClient;
use cache::Cache;
pub use cache::Failure;
pub(super) use challenges::{Challenges, is_challenge};

/// The ALPN protocol of challenges. A connection that negotiates this protocol carries no data.
pub const CHALLENGE_PROTOCOL: &[u8] = b"acme-tls/1";

/// How often to check whether an order is due.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time limit for an order, including all its exchanges.
const ORDER_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Delay after the first order that the authority refuses; each further failure doubles the delay.
/// There are therefore four attempts in the first hour, below Let's Encrypt's limit of five failed
/// validations.
const REFUSED_DELAY: Duration = Duration::from_secs(5 * 60);
/// Delay after the first order for which the authority could not be reached.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(10);
const DELAY_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// Maximum `Retry-After` from an authority that is honored.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Minimum time between a refused order and the next order that a reload causes.
const RELOAD_PAUSE: Duration = Duration::from_secs(60);
/// Minimum time until an accepted certificate is renewed. Without this minimum, an authority that
/// issues expired certificates, or a wrong clock, would cause one order after another.
const LIFE_MIN: Duration = Duration::from_secs(10);

/// The authority, the names, and the folder for the account and certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The URL of the authority's directory.
    pub directory: String,
    /// A file of additional certificates to trust for the directory's own TLS certificate.
    pub directory_ca: Option<PathBuf>,
    /// The account's email addresses.
    pub contact: Vec<String>,
    /// DNS names of the certificate, in lower case.
    pub domains: Vec<String>,
    pub cache: PathBuf,
}

/// The stored state, as shown by checks.
#[derive(Debug, Clone)]
pub struct Status {
    /// The file with the certificate and its key, which may not exist yet.
    pub certificate: PathBuf,
    /// The last order, if it failed.
    pub failure: Option<Failure>,
}

/// Returns the stored state. Reads files.
#[must_use]
pub fn status(options: &Options) -> Status {
    let cache = Cache::new(options);
    let failure = cache.failure().filter(|failure| failure.domains == options.domains);
    Status { certificate: cache.certificate, failure }
}

/// A certificate source that uses ACME.
#[derive(Debug)]
pub(super) struct Acme {
    options: Options,
    pub(super) cache: Cache,
    /// The folder and names of the self-signed certificate, which is served until the first
    /// certificate arrives.
    pub(super) fallback: (Folder, Names),
    wake: Notify,
}

impl Acme {
    pub(super) fn new(options: Options, fallback: (Folder, Names)) -> Result<Self, Error> {
        let cache = Cache::new(&options);
        cache.make()?;
        if let Some(path) = &options.directory_ca {
            pair::chain(path)?;
        }
        Ok(Self { options, cache, fallback, wake: Notify::new() })
    }

    /// Returns the last certificate received, or the self-signed certificate if no certificate was
    /// received.
    pub(super) fn load(&self, now: Timestamp) -> Result<Pair, Error> {
        let (folder, names) = &self.fallback;
        match self.cache.pair() {
            Err(Error::Read { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                authority::provide(folder, names, now)
            }
            other => other,
        }
    }

    /// Like [`Acme::load`], for startup: a file that cannot be served is logged, and the next order
    /// replaces the file.
    pub(super) fn load_first(&self, now: Timestamp) -> Result<Pair, Error> {
        let (folder, names) = &self.fallback;
        self.load(now).or_else(|error| {
            tracing::warn!(
                %error,
                "cannot load certificate: serving the self-signed certificate until a new \
                 certificate arrives"
            );
            authority::provide(folder, names, now)
        })
    }

    /// Returns whether the served certificate is the self-signed certificate and must be reissued.
    pub(super) fn is_fallback_due(&self, pair: &Pair, now: Timestamp) -> bool {
        !self.cache.certificate.exists() && authority::is_due(pair, now)
    }

    /// Tries again immediately if the last order failed.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns the time of the next order.
    fn next_order(&self, now: Timestamp, is_forced: bool) -> Timestamp {
        let due = match self.cache.pair() {
            Ok(pair) if covers(&pair, &self.options.domains) => renewal(&pair),
            Ok(_) | Err(_) => now,
        };
        let Some(failure) = self.cache.failure() else { return due };
        if failure.domains != self.options.domains {
            return due;
        }
        let next = match (is_forced, failure.is_refusal) {
            (false, _) => failure.next,
            (true, true) => failure.at.plus(RELOAD_PAUSE).min(failure.next),
            (true, false) => now,
        };
        // A failure dated in the future was stored while the clock was ahead.
        if failure.at > now { due } else { due.max(next) }
    }

    /// Orders certificates whenever they are due, until the service stops.
    pub(super) async fn run(&self, tasks: &Tasks, clock: &Clock) {
        let mut next = self.next_order(clock.now(), false);
        let mut seen = Stamp::of(&self.cache.certificate);
        loop {
            tokio::select! {
                () = tasks.stopping() => return,
                () = self.wake.notified() => next = self.next_order(clock.now(), true),
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            let now = clock.now();
            let stamp = Stamp::of(&self.cache.certificate);
            if stamp != seen {
                seen = stamp;
                next = self.next_order(now, false);
            }
            if now < next {
                continue;
            }
            tokio::select! {
                () = tasks.stopping() => return,
                () = self.attempt(clock) => {}
            }
            seen = Stamp::of(&self.cache.certificate);
            next = self.next_order(clock.now(), false);
        }
    }

    /// Orders a certificate once, and stores it or the reason for the failure.
    async fn attempt(&self, clock: &Clock) {
        let Options { directory, domains, .. } = &self.options;
        let names = domains.join(", ");
        tracing::info!(%directory, %names, "ordering certificate");
        let client = match AuthorityClient::new(&self.options) {
            Ok(client) => client,
            Err(error) => return self.failed(&order::Error::Files(error), None, clock.now()),
        };
        let ordering =
            order::certificate(&self.options, &self.cache, &self.cache.challenges, &client);
        let ordered = match tokio::time::timeout(ORDER_TIMEOUT, Box::pin(ordering)).await {
            Ok(ordered) => ordered,
            Err(_elapsed) => Err(order::Error::Timeout { limit: ORDER_TIMEOUT }),
        };
        self.cache.challenges.clear();
        let stored = match ordered {
            Ok(pem) => self.store(pem, clock.now()).await,
            Err(error) => Err(error),
        };
        match stored {
            Ok(until) => tracing::info!(%directory, %names, %until, "certificate received"),
            Err(error) => self.failed(&error, client.retry_after(), clock.now()),
        }
    }

    /// Stores an issued certificate if it can be used, and returns its expiry.
    async fn store(&self, pem: String, now: Timestamp) -> Result<Timestamp, order::Error> {
        let cache = self.cache.clone();
        let domains = self.options.domains.clone();
        let storing = tokio::task::spawn_blocking(move || {
            let pair = cache.try_certificate(&pem)?;
            if !covers(&pair, &domains) {
                let names = pair.names.join(", ");
                return Err(order::Error::Unusable { reason: format!("it is for {names}") });
            }
            if now.plus(LIFE_MIN) >= renewal(&pair).max(pair.not_before) || now < pair.not_before {
                let reason = format!(
                    "it is valid from {} until {}: check the machine's clock",
                    pair.not_before, pair.not_after
                );
                return Err(order::Error::Unusable { reason });
            }
            cache.accept_certificate()?;
            Ok(pair.not_after)
        });
        storing.await.map_err(|error| order::Error::Unusable { reason: error.to_string() })?
    }

    fn failed(&self, error: &order::Error, retry_after: Option<Duration>, now: Timestamp) {
        let domains = &self.options.domains;
        let is_refusal = !error.is_temporary();
        let last = self.cache.failure().filter(|last| &last.domains == domains);
        let last = last.filter(|last| last.is_refusal == is_refusal);
        let attempts = last.map_or(0, |last| last.attempts).saturating_add(1);
        let delay = delay(attempts, is_refusal).max(retry_after.unwrap_or_default());
        let next = now.plus(delay.min(RETRY_AFTER_MAX));
        let reason = order::printable(&error.to_string());
        tracing::warn!(%reason, attempts, %next, "certificate not received");
        let domains = domains.clone();
        let failure = Failure { reason, at: now, next, attempts, is_refusal, domains };
        if let Err(error) = self.cache.write_failure(&failure) {
            tracing::warn!(%error, "cannot store the failed order");
        }
    }
}

/// Returns the delay after the given number of consecutive failures. A random part is added, so
/// that boxes that failed together do not retry together.
fn delay(attempts: u32, is_refusal: bool) -> Duration {
    let first = if is_refusal { REFUSED_DELAY } else { UNREACHABLE_DELAY };
    let doubled = first.saturating_mul(1_u32.checked_shl(attempts - 1).unwrap_or(u32::MAX));
    let delay = doubled.min(DELAY_MAX);
    let [random] = orrery_runtime::random_bytes::<1>().unwrap_or_default();
    delay + delay * u32::from(random) / 1024
}

/// Returns whether the certificate has all names.
fn covers(pair: &Pair, domains: &[String]) -> bool {
    domains.iter().all(|domain| pair.names.iter().any(|name| name.eq_ignore_ascii_case(domain)))
}

/// Returns the time at which two thirds of the certificate's lifetime have passed.
fn renewal(pair: &Pair) -> Timestamp {
    let life = pair.not_after.since(pair.not_before);
    pair.not_before.plus(life * 2 / 3)
}

#[cfg(test)]
mod tests;
