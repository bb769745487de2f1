//! The servers of one model: which of them gets a request, and what happens when it does not answer.
//!
//! ```text
//! address    `url` and `urls` of a manifest        endpoint   how one server is
//! lease      a request's place at one
//! ```
//!
//! A request goes to the usable server that has least in flight for its weight, and waits while each of
//! them has as much as it may. It goes on to another server where nothing can have come of it: no
//! connection was made, or the answer was 502, 503 or 504. A connection that broke after the request was
//! sent is never repeated here: that is for the `retry` of a manifest to say. Servers that do not answer
//! are left out until a probe, or a single request, has found them again (`endpoint`); when all are left
//! out, they are tried all the same.
//!
//! Predictions and the chat router use the same servers with the same counts. So does the runner that a
//! reload makes in the place of another: a server that stays keeps its state, and one that was removed
//! ends the calls that it has. Nothing is kept on the disk.
//!
//! `tower-balance` was considered: it brings tower's `Service` with its readiness protocol, `discover`
//! and `load` for a choice between two random servers, and has neither ejection, probes, limits for each
//! server nor retries that know what was sent. What is left of it would be smaller than what adapts it.

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

pub use self::address::{Address, concurrency, name_of, read};
pub use self::description::DescriptionAge;
use self::endpoint::Endpoint;
pub use self::endpoint::{Readiness, Standing};
pub use self::lease::Lease;
use self::lease::report;
use super::Health;
use crate::http::client::{self, Client, Limits, Overflow, Response};
use crate::http::connector;
use crate::http::places::Arriving;
use crate::runners::openai::stream_options::Refusal;
use crate::runtime;

/// How long a server may take to say how it is, or what it serves, and the bytes that are read of it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const PROBE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Servers that one request is sent to at most.
const TRIES_MAX: usize = 3;
/// The share of a server of weight 1, in the units of its turns.
const TURN: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub enum Error<E> {
    /// The request could not be made.
    Unmade(E),
    Client(client::Error),
}

/// The servers of all models; clones of an [`Arc`] share them over reloads.
#[derive(Debug, Default)]
pub struct Registry {
    groups: Mutex<HashMap<String, Weak<Group>>>,
}

/// The servers of one model, those included that only end their calls.
#[derive(Debug, Default)]
struct Group {
    endpoints: Mutex<HashMap<String, Weak<Endpoint>>>,
    /// A place is free, or a server is usable again.
    changed: tokio::sync::Notify,
}

impl Group {
    /// Held while a server is picked, so that no two requests take the last place.
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

/// How a model's servers are used.
#[derive(Debug, Clone)]
pub struct Settings<'s> {
    /// The model's slug.
    pub model: &'s str,
    pub addresses: &'s [Address],
    /// What one request may take.
    pub patience: Duration,
    /// Whether the servers are asked how they are.
    pub is_probed: bool,
    /// Whether they are asked before they get a first request.
    pub starts_unknown: bool,
}

/// The servers of one model, as one manifest names them.
#[derive(Debug)]
pub struct Pool {
    model: String,
    entries: Vec<Entry>,
    group: Arc<Group>,
    is_probed: bool,
    patience: Duration,
    /// The turn of the last pick.
    turn: AtomicU64,
    /// Whether the servers have refused `stream_options`.
    pub stream_options: Refusal,
}

#[derive(Debug)]
struct Entry {
    endpoint: Arc<Endpoint>,
    weight: u32,
    concurrency: usize,
    /// Goes up with each pick, the slower the larger its weight. Only changed while the group is held.
    turn: AtomicU64,
}

/// What operators see of a model's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointState {
    /// Its URL without secrets.
    pub name: String,
    pub standing: Standing,
    /// Why it is left out.
    pub reason: Option<String>,
    pub in_flight: usize,
    pub weight: u32,
    /// `None`: as many as the model runs.
    pub concurrency: Option<usize>,
}

impl EndpointState {
    /// Its standing in a word, for operators.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.standing {
            Standing::Usable => "used",
            Standing::Starting => "starting",
            Standing::OnTrial => "tried",
            Standing::Ejected => "left out",
        }
    }

    /// Whether it is used as far as it can be.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        matches!(self.standing, Standing::Usable | Standing::Starting)
    }
}

enum Pick {
    Lease(Lease),
    /// Each server that is left has as much as it may.
    Full,
    /// No server is left that was not tried.
    None,
}

impl Pool {
    /// The servers of a model.
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
            patience: settings.patience,
            turn: AtomicU64::new(0),
            stream_options: Refusal::default(),
        }
    }

    /// How many servers there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none; never so.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sends a request to a server, and to another where nothing can have come of it. Gives the whole
    /// answer with the place at the server, on which the caller notes what it makes of the answer.
    ///
    /// # Errors
    /// [`Error`], of the last server that was tried.
    pub async fn send<E>(
        &self,
        client: &Client,
        limits: &Limits,
        request: impl Fn(&str) -> Result<Request<Bytes>, E>,
    ) -> Result<(Response, Lease), Error<E>> {
        let send = |request| client.send_when_able(request, limits);
        self.exchange(request, send, |answer| answer.status).await
    }

    /// As [`Pool::send`], with the answer's body unread.
    ///
    /// # Errors
    /// As [`Pool::send`].
    pub async fn open<E>(
        &self,
        client: &Client,
        request: impl Fn(&str) -> Result<Request<Bytes>, E>,
    ) -> Result<(hyper::Response<Arriving>, Lease), Error<E>> {
        self.exchange(request, |request| client.open(request), hyper::Response::status).await
    }

    async fn exchange<T, E, F>(
        &self,
        request: impl Fn(&str) -> Result<Request<Bytes>, E>,
        send: impl Fn(Request<Bytes>) -> F,
        status: impl Fn(&T) -> StatusCode,
    ) -> Result<(T, Lease), Error<E>>
    where
        F: Future<Output = Result<T, client::Error>>,
    {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut last = None;
        loop {
            let Some(mut lease) = self.lease(&tried).await else {
                // There is at least one server, so one was tried.
                let no_server = client::Error::Connection(connector::Error::NoHost);
                return last.unwrap_or(Err(Error::Client(no_server)));
            };
            let request = request(&lease.endpoint.url).map_err(Error::Unmade)?;
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
                    let may_go_on = lease.note_error(&error);
                    (Err(Error::Client(error)), may_go_on)
                }
            };
            tried.push(Arc::clone(&lease.endpoint));
            if !may_go_on || tried.len() >= TRIES_MAX.min(self.entries.len()) {
                return answer.map(|answer| (answer, lease));
            }
            // Who waits for a place holds none.
            lease.give_back();
            last = Some(answer.map(|answer| (answer, lease)));
        }
    }

    /// Waits for a place at a server that was not tried; `None` when all were.
    async fn lease(&self, tried: &[Arc<Endpoint>]) -> Option<Lease> {
        loop {
            let changed = self.group.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            match self.pick(tried) {
                Pick::Lease(lease) => return Some(lease),
                Pick::None => return None,
                Pick::Full => changed.await,
            }
        }
    }

    /// Takes a place at the best server that was not tried.
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
        // Equally loaded servers take turns; one that was left out has not saved any up.
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
            is_noted: false,
            has_place: true,
        })
    }

    /// How the model is, by its servers.
    #[must_use]
    pub fn health(&self) -> Health {
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

    /// Each server; none where the model has but one.
    #[must_use]
    pub fn states(&self) -> Vec<EndpointState> {
        if self.entries.len() < 2 {
            return Vec::new();
        }
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

    /// The URL of a server that answers, if one does.
    #[must_use]
    pub fn usable(&self) -> Option<String> {
        let is_usable =
            |entry: &&Entry| entry.endpoint.seen(self.is_probed).standing == Standing::Usable;
        self.entries.iter().find(is_usable).map(|entry| entry.endpoint.url.clone())
    }

    /// Asks those servers how they are for which it is time, all at once. `probe` bounds its own time.
    pub async fn probe<F>(&self, probe: impl Fn(String) -> F)
    where
        F: Future<Output = Readiness>,
    {
        let now = runtime::monotonic_now();
        let due = self.entries.iter().filter(|entry| entry.endpoint.is_probe_due(now));
        let probes = due.map(|entry| {
            let asked = probe(entry.endpoint.url.clone());
            async move { self.note_probe(entry, asked.await) }
        });
        futures_util::future::join_all(probes).await;
    }

    /// Asks the server at `url` how it is, whether or not it is time.
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

/// Asks a server how it is; `is_ready` judges its answer.
pub(super) async fn ask_readiness(
    client: &Client,
    request: hyper::http::request::Builder,
    is_ready: impl Fn(StatusCode) -> bool,
) -> Readiness {
    match probe(client, request).await {
        Ok(answer) if is_ready(answer.status) => Readiness::Ready,
        Ok(answer) => {
            let status = answer.status.as_u16();
            Readiness::Unready(format!("its server says that it is not ready ({status})"))
        }
        Err(error) => Readiness::Unready(format!("its server does not answer: {error}")),
    }
}

/// Sends a server a question about itself, and gives its answer, within a short time.
///
/// # Errors
/// Why there is no answer, in words.
pub(super) async fn probe(
    client: &Client,
    request: hyper::http::request::Builder,
) -> Result<Response, String> {
    let limits =
        Limits { total: PROBE_TIMEOUT, answer_bytes: PROBE_BYTES_MAX, overflow: Overflow::Fail };
    let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
    client.send(request, &limits).await.map_err(|error| error.to_string())
}

/// The answers of a proxy that has nobody to pass the request on to.
const fn is_nobody(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

fn turn_of(turn: &AtomicU64) -> u64 {
    turn.load(Ordering::Relaxed)
}

#[cfg(test)]
impl Pool {
    /// The servers of a test, of which nothing is asked but requests.
    pub fn of_test(addresses: &[Address], patience: Duration) -> Self {
        let settings =
            Settings { model: "m", addresses, patience, is_probed: false, starts_unknown: false };
        Self::new(&settings, &Registry::default())
    }
}

#[cfg(test)]
mod tests;
