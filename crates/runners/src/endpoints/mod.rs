//! Load balancing over the endpoints of one model, with ejection, probes and failover.
//!
//! ```text
//! address    `url` and `urls` of a manifest        endpoint   the state of one endpoint
//! lease      a request's use of an endpoint
//! ```
//!
//! A request goes to the usable endpoint with the fewest requests in flight relative to its weight,
//! and waits while all endpoints are at their concurrency limit. A request fails over to another
//! endpoint only if it certainly had no effect: no connection was made, or the response was 502,
//! 503 or 504. If a connection breaks after the request was sent, this module never repeats the
//! request; the manifest's `retry` decides. Endpoints that do not respond are removed from rotation
//! until a probe or a trial request succeeds (`endpoint`); if all endpoints are out of rotation,
//! requests still try them.
//!
//! Predictions and the chat router share the endpoints and their counters. After a reload, the new
//! runner shares them as well: an endpoint that remains retains its state, and a removed endpoint
//! finishes its requests. Nothing is stored on disk.
//!
//! `tower-balance` was considered: it offers tower's `Service` with its readiness protocol,
//! `discover`, and `load` for choosing between two random endpoints, but no ejection, probes,
//! per-endpoint limits, or retries that depend on what was sent. An adapter for `tower-balance`
//! would need more code than it would save.

mod address;
mod description;
mod endpoint;
mod lease;

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode};

pub use self::address::{Address, Servers, name_of};
pub use self::description::DescriptionAge;
use self::endpoint::Endpoint;
pub use self::endpoint::{Readiness, Standing};
pub use self::lease::Lease;
use self::lease::report;
use super::Health;
use super::managed::Server;
use crate::openai::stream_options::Refusal;
use orrery_http::Body;
use orrery_http::client::{self, Client, Limits, Overflow, Response};
use orrery_http::connector;
use orrery_http::places::Arriving;
use orrery_runtime as runtime;

/// Timeout for an endpoint to report its health or description, and the maximum number of bytes
/// read from its response.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const PROBE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum number of repeats of a request after the exit of a server that this service started.
const REPEATS_MAX: u32 = 2;
/// Maximum number of endpoints tried per request.
const TRIES_MAX: usize = 3;
/// Amount by which a selection increases the turn counter of an endpoint with weight 1.
const TURN: u64 = 1 << 20;

/// The error for a request that received no response.
#[derive(Debug)]
pub enum Error<E> {
    /// The request could not be built.
    Unmade(E),
    /// The server that this service starts cannot be started, as a phrase that follows the model's
    /// name.
    Unstarted(String),
    Client(client::Error),
}

/// The endpoints of all models; clones of an [`Arc`] share the registry across reloads.
#[derive(Debug, Default)]
pub struct Registry {
    groups: Mutex<HashMap<String, Weak<Group>>>,
}

/// The endpoints of one model, including removed endpoints that are finishing their requests.
#[derive(Debug, Default)]
struct Group {
    endpoints: Mutex<HashMap<String, Weak<Endpoint>>>,
    /// Notified when an endpoint falls below its concurrency limit or becomes usable.
    changed: tokio::sync::Notify,
}

impl Group {
    /// Locks the endpoints. Selection holds the lock, so that no two requests take the last permit
    /// of an endpoint.
    fn endpoints(&self) -> MutexGuard<'_, HashMap<String, Weak<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn group(&self, model: &str) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(model).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let group = Arc::<Group>::default();
        groups.insert(model.to_owned(), Arc::downgrade(&group));
        group
    }
}

/// Settings for using a model's endpoints.
#[derive(Debug, Clone)]
pub struct Settings<'s> {
    /// The model's slug.
    pub model: &'s str,
    pub addresses: &'s [Address],
    /// Timeout of one request.
    pub patience: Duration,
    /// Whether the endpoints are probed.
    pub is_probed: bool,
    /// Whether an endpoint must be probed before its first request.
    pub starts_unknown: bool,
    /// Whether an error response, or one that is not what was requested, counts as no response.
    pub is_strict: bool,
    /// The server behind the only endpoint, if this service starts it.
    pub server: Option<Arc<Server>>,
}

/// The endpoints of one model, as named in one manifest.
#[derive(Debug)]
pub struct Pool {
    model: String,
    entries: Vec<Entry>,
    group: Arc<Group>,
    is_probed: bool,
    is_strict: bool,
    patience: Duration,
    server: Option<Arc<Server>>,
    /// The highest turn counter with which an endpoint has been selected.
    turn: AtomicU64,
    /// Whether the endpoints have rejected `stream_options`.
    pub stream_options: Refusal,
}

#[derive(Debug)]
struct Entry {
    endpoint: Arc<Endpoint>,
    weight: u32,
    concurrency: usize,
    /// The turn counter: of equally loaded endpoints, the one with the lowest counter is selected.
    /// Each selection increases the counter, by less for a larger weight. Changed only while the
    /// group is locked.
    turn: AtomicU64,
}

/// The state of an endpoint, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointState {
    /// The URL without secrets.
    pub name: String,
    pub standing: Standing,
    /// The cause of the ejection, if the endpoint is out of rotation.
    pub reason: Option<String>,
    pub in_flight: usize,
    pub weight: u32,
    /// The endpoint's concurrency limit; `None` means the model's concurrency.
    pub concurrency: Option<usize>,
}

impl EndpointState {
    /// Returns the endpoint's state in one word, for operators.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.standing {
            Standing::Usable => "used",
            Standing::Starting => "starting",
            Standing::OnTrial => "tried",
            Standing::Ejected => "left out",
        }
    }

    /// Returns whether the endpoint is in rotation.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        matches!(self.standing, Standing::Usable | Standing::Starting)
    }
}

enum Pick {
    Lease(Lease),
    /// Every endpoint that has not been tried yet is at its concurrency limit.
    Full,
    /// Every endpoint has been tried.
    None,
}

impl Pool {
    /// Creates the pool of a model.
    #[must_use]
    pub fn new(settings: &Settings<'_>, registry: &Registry) -> Self {
        let group = registry.group(settings.model);
        let mut known = group.endpoints();
        known.retain(|_, endpoint| endpoint.strong_count() > 0);
        let entries = settings.addresses.iter().map(|address| {
            let endpoint = known.get(&address.url).and_then(Weak::upgrade).unwrap_or_else(|| {
                let name = name_of(&address.url);
                let new = Endpoint::new(address.url.clone(), name, settings.starts_unknown);
                let new = Arc::new(new);
                known.insert(address.url.clone(), Arc::downgrade(&new));
                new
            });
            let concurrency = address.concurrency.unwrap_or(usize::MAX);
            Entry { endpoint, weight: address.weight.max(1), concurrency, turn: AtomicU64::new(0) }
        });
        let entries = entries.collect();
        drop(known);
        Self {
            model: settings.model.to_owned(),
            entries,
            group,
            is_probed: settings.is_probed,
            is_strict: settings.is_strict,
            patience: settings.patience,
            server: settings.server.clone(),
            turn: AtomicU64::new(0),
            stream_options: Refusal::default(),
        }
    }

    /// Returns the server behind the only endpoint, if this service starts it.
    #[must_use]
    pub const fn server(&self) -> Option<&Arc<Server>> {
        self.server.as_ref()
    }

    /// Returns the number of endpoints.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Always returns false: a pool has at least one endpoint.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sends a request to an endpoint, and to another endpoint if the first attempt certainly had
    /// no effect. Returns the whole response together with the lease, on which the caller records
    /// the outcome.
    ///
    /// # Errors
    /// [`Error`] of the last endpoint tried.
    pub async fn send<E>(
        &self,
        client: &Client,
        limits: &Limits,
        request: impl Fn(&str) -> Result<Request<Bytes>, E>,
    ) -> Result<(Response, Lease), Error<E>> {
        let send = |request| client.send_when_able(request, limits);
        self.exchange(request, send, |answer| answer.status).await
    }

    /// Sends a request like [`Pool::send`], but does not read the response body.
    ///
    /// # Errors
    /// The same errors as [`Pool::send`].
    pub async fn open<E>(
        &self,
        client: &Client,
        request: impl Fn(&str) -> Result<Request<Bytes>, E>,
    ) -> Result<(hyper::Response<Arriving>, Lease), Error<E>> {
        self.exchange(request, |request| client.open(request), hyper::Response::status).await
    }

    /// Sends a request like [`Pool::open`], whose body is produced while it is sent.
    ///
    /// # Errors
    /// The same errors as [`Pool::send`].
    pub async fn open_streaming<E>(
        &self,
        client: &Client,
        request: impl Fn(&str) -> Result<Request<Body>, E>,
    ) -> Result<(hyper::Response<Arriving>, Lease), Error<E>> {
        let open = |request| client.open_streaming(request);
        self.exchange(request, open, hyper::Response::status).await
    }

    async fn exchange<T, E, F, B>(
        &self,
        request: impl Fn(&str) -> Result<Request<B>, E>,
        send: impl Fn(Request<B>) -> F,
        status: impl Fn(&T) -> StatusCode,
    ) -> Result<(T, Lease), Error<E>>
    where
        F: Future<Output = Result<T, client::Error>>,
    {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut last = None;
        let mut repeats = 0;
        loop {
            let in_use = match &self.server {
                Some(server) => Some(server.open().await.map_err(Error::Unstarted)?),
                None => None,
            };
            let Some(mut lease) = self.lease(&tried).await else {
                // There is at least one endpoint, so at least one was tried.
                let no_server = client::Error::Connection(connector::Error::NoHost);
                return last.unwrap_or(Err(Error::Client(no_server)));
            };
            lease.in_use = in_use;
            let request = request(&lease.url()).map_err(Error::Unmade)?;
            let (answer, may_go_on) = match send(request).await {
                Ok(answer) => {
                    let status = status(&answer);
                    let is_missing = is_nobody(status);
                    if is_missing {
                        lease.missed(&format!("it answered {}", status.as_u16()));
                    }
                    (Ok(answer), is_missing)
                }
                Err(error) => {
                    if repeats < REPEATS_MAX && lease.has_lost_server().await {
                        repeats += 1;
                        continue;
                    }
                    let may_go_on = lease.note_error(&error);
                    (Err(Error::Client(error)), may_go_on)
                }
            };
            tried.push(Arc::clone(&lease.endpoint));
            if !may_go_on || tried.len() >= TRIES_MAX.min(self.entries.len()) {
                return answer.map(|answer| (answer, lease));
            }
            // Return the lease before waiting for a lease of another endpoint.
            lease.give_back();
            last = Some(answer.map(|answer| (answer, lease)));
        }
    }

    /// Waits for a lease of an endpoint that has not been tried yet; returns `None` if all were
    /// tried.
    async fn lease(&self, tried: &[Arc<Endpoint>]) -> Option<Lease> {
        loop {
            let changed = self.group.changed.notified();
            tokio::pin!(changed);
            // Notifications sent from here on are not missed.
            changed.as_mut().enable();
            match self.pick(tried) {
                Pick::Lease(lease) => return Some(lease),
                Pick::None => return None,
                Pick::Full => changed.await,
            }
        }
    }

    /// Leases the best endpoint that has not been tried yet.
    fn pick(&self, tried: &[Arc<Endpoint>]) -> Pick {
        let now = runtime::monotonic_now();
        let picking = self.group.endpoints();
        let left = |entry: &&Entry| !tried.iter().any(|one| Arc::ptr_eq(one, &entry.endpoint));
        let left: Vec<(&Entry, Standing, usize)> = self
            .entries
            .iter()
            .filter(left)
            .map(|entry| {
                let (standing, in_flight) = entry.endpoint.standing(now, self.is_probed);
                (entry, standing, in_flight)
            })
            .collect();
        let Some(best) = left.iter().map(|(_, standing, _)| *standing).min() else {
            return Pick::None;
        };
        let free = left.into_iter().filter(|(entry, standing, in_flight)| {
            *standing == best && *in_flight < entry.concurrency
        });
        let load = |in_flight: usize, other: &Entry| in_flight as u64 * u64::from(other.weight);
        let chosen = free.min_by(|(one, _, one_has), (other, _, other_has)| {
            let by_load = load(*one_has, other).cmp(&load(*other_has, one));
            by_load.then_with(|| turn_of(&one.turn).cmp(&turn_of(&other.turn)))
        });
        let Some((entry, ..)) = chosen else { return Pick::Full };
        entry.endpoint.take(now, self.is_probed);
        // Equally loaded endpoints take turns; an endpoint that was out of rotation does not catch
        // up on missed turns.
        let turn = turn_of(&entry.turn).max(turn_of(&self.turn));
        self.turn.store(turn, Ordering::Relaxed);
        let share = TURN / u64::from(entry.weight);
        entry.turn.store(turn.saturating_add(share), Ordering::Relaxed);
        drop(picking);
        Pick::Lease(Lease {
            endpoint: Arc::clone(&entry.endpoint),
            group: Arc::clone(&self.group),
            model: self.model.clone(),
            has_metrics: self.entries.len() > 1,
            begun: now,
            patience: self.patience,
            is_strict: self.is_strict,
            is_noted: false,
            has_place: true,
            in_use: None,
        })
    }

    /// Returns the model's health, derived from its endpoints.
    #[must_use]
    pub fn health(&self) -> Health {
        if let Some(server) = &self.server {
            return server.health();
        }
        let seen: Vec<_> =
            self.entries.iter().map(|entry| entry.endpoint.seen(self.is_probed)).collect();
        let has = |standing| seen.iter().any(|one| one.standing == standing);
        if has(Standing::Usable) {
            return Health::Good;
        }
        if has(Standing::Starting) {
            return Health::Starting;
        }
        let mut reasons = self.entries.iter().zip(seen).filter_map(|(entry, one)| {
            one.reason.map(|reason| (entry.endpoint.name.as_str(), reason))
        });
        let (name, reason) = reasons.next().unwrap_or_default();
        Health::Failing(match self.entries.len() {
            1 => reason,
            count => format!("none of its {count} servers answers; {name}: {reason}"),
        })
    }

    /// Returns whether an endpoint can be selected that responds, or is due for a trial.
    #[must_use]
    pub fn has_usable(&self) -> bool {
        if let Some(server) = &self.server {
            return !matches!(server.health(), Health::Failing(_));
        }
        let now = runtime::monotonic_now();
        let is_usable =
            |entry: &Entry| entry.endpoint.standing(now, self.is_probed).0 == Standing::Usable;
        self.entries.iter().any(is_usable)
    }

    /// Returns the state of each endpoint, or an empty list if the model has only one.
    #[must_use]
    pub fn states(&self) -> Vec<EndpointState> {
        if self.entries.len() < 2 {
            return Vec::new();
        }
        self.all_states()
    }

    /// Returns the state of each endpoint.
    #[must_use]
    pub fn all_states(&self) -> Vec<EndpointState> {
        let state = |entry: &Entry| {
            let seen = entry.endpoint.seen(self.is_probed);
            EndpointState {
                name: entry.endpoint.name.clone(),
                standing: seen.standing,
                reason: seen.reason,
                in_flight: seen.in_flight,
                weight: entry.weight,
                concurrency: Some(entry.concurrency).filter(|most| *most != usize::MAX),
            }
        };
        self.entries.iter().map(state).collect()
    }

    /// Returns the URL of a usable endpoint.
    #[must_use]
    pub fn usable(&self) -> Option<String> {
        if let Some(server) = &self.server {
            return server.address();
        }
        let is_usable =
            |entry: &&Entry| entry.endpoint.seen(self.is_probed).standing == Standing::Usable;
        self.entries.iter().find(is_usable).map(|entry| entry.endpoint.url.clone())
    }

    /// Probes all endpoints that are due, concurrently. `probe` must limit its own duration. Starts
    /// and stops the server instead, if this service starts it.
    pub async fn probe<F>(&self, probe: impl Fn(String) -> F)
    where
        F: Future<Output = Readiness>,
    {
        if let Some(server) = &self.server {
            return server.maintain().await;
        }
        let now = runtime::monotonic_now();
        let due = self.entries.iter().filter(|entry| entry.endpoint.is_probe_due(now));
        let probes = due.map(|entry| {
            let asked = probe(entry.endpoint.url.clone());
            async move { self.note_probe(entry, asked.await) }
        });
        futures_util::future::join_all(probes).await;
    }

    /// Probes the endpoint at `url`, regardless of whether it is due.
    pub async fn probe_now<F>(&self, url: &str, probe: impl Fn(String) -> F) -> Standing
    where
        F: Future<Output = Readiness>,
    {
        let Some(entry) = self.entries.iter().find(|entry| entry.endpoint.url == url) else {
            return Standing::Ejected;
        };
        let said = probe(url.to_owned()).await;
        self.note_probe(entry, said);
        entry.endpoint.seen(self.is_probed).standing
    }

    fn note_probe(&self, entry: &Entry, said: Readiness) {
        let change = entry.endpoint.probed(said, runtime::monotonic_now());
        report(&self.model, &entry.endpoint, change);
        self.group.changed.notify_waiters();
    }
}

/// Probes an endpoint; `is_ready` evaluates its response.
pub(super) async fn ask_readiness(
    client: &Client,
    request: hyper::http::request::Builder,
    is_ready: impl Fn(StatusCode) -> bool,
) -> Readiness {
    match probe(client, request).await {
        Ok(answer) if is_ready(answer.status) => Readiness::Ready,
        Ok(answer) => {
            let status = answer.status.as_u16();
            Readiness::Unready(format!("its server reports that it is not ready ({status})"))
        }
        Err(error) => Readiness::Unready(format!("its server does not answer: {error}")),
    }
}

/// Sends an endpoint a short request for its health or description, and returns the response.
///
/// # Errors
/// The error if there is no response.
pub(super) async fn probe(
    client: &Client,
    request: hyper::http::request::Builder,
) -> Result<Response, String> {
    let limits =
        Limits { total: PROBE_TIMEOUT, answer_bytes: PROBE_BYTES_MAX, overflow: Overflow::Fail };
    let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
    client.send(request, &limits).await.map_err(|error| error.to_string())
}

/// Returns whether a status means that a proxy has no backend.
const fn is_nobody(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

fn turn_of(turn: &AtomicU64) -> u64 {
    turn.load(Ordering::Relaxed)
}

#[cfg(test)]
impl Pool {
    /// Creates a pool for tests whose endpoints receive requests but no probes.
    pub fn of_test(addresses: &[Address], patience: Duration) -> Self {
        let settings = Settings {
            model: "m",
            addresses,
            patience,
            is_probed: false,
            starts_unknown: false,
            is_strict: false,
            server: None,
        };
        Self::new(&settings, &Registry::default())
    }
}

#[cfg(test)]
mod tests;
