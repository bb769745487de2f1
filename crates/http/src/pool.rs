//! Connection pool for `http://` URLs: idle connections are kept for the next call to the same
//! host.
//!
//! The most recently returned connection is taken first, so that surplus connections expire after a
//! burst. Before the pool writes to a connection, it detects whether the peer has closed that
//! connection in the meantime. While there are idle connections, a task checks all of them every
//! few seconds, and drops connections that are closed or too old. A connection is returned only if
//! its response was read completely. A call that is waiting for a new connection takes a returned
//! connection if one becomes available sooner; the new connection then joins the pool if another
//! idle connection is allowed (see `places`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use hyper::http::uri::Authority;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::client::{Error, Limits, Response};
use super::connector::{self, Connector};
use super::exchange::{Connection, Failure, Outgoing, port_of};
use super::places::Shed;
use orrery_runtime::shortage::Pauses;
use orrery_runtime::{Tasks, monotonic_now};

/// How long an idle connection is kept.
pub(super) const KEEP_IDLE: Duration = Duration::from_secs(60);
/// Interval between sweeps of the idle connections.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Number of connections checked each time the lock is taken; a check takes about 100 ns.
const SWEEP_BATCH: usize = 16;
/// Maximum number of closed connections that a call tries before it opens a new connection.
const CLOSED_MAX: usize = 8;

/// A pool of connections by host and port.
pub(super) struct Pool {
    connector: Connector,
    idle_per_host: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Idle connections of each host, in the order in which they were returned.
    idle: HashMap<Authority, Vec<Idle>>,
    /// Calls that wait for a connection; some of these calls may have been dropped.
    waiting: HashMap<Authority, VecDeque<oneshot::Sender<Box<Connection>>>>,
    has_sweeper: bool,
}

struct Idle {
    connection: Box<Connection>,
    since: Instant,
}

impl Idle {
    fn is_expired(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= KEEP_IDLE
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("connector", &self.connector).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates an empty pool that keeps up to `idle_per_host` idle connections per host.
    pub(super) fn new(connector: Connector, idle_per_host: usize) -> Self {
        Self { connector, idle_per_host, state: Mutex::default() }
    }

    /// Sends a request over a pooled or a new connection, and reads the response. Sets
    /// `is_connected` once there is a connection. `pauses`, if given, waits until a resource
    /// shortage of this machine is over.
    ///
    /// # Errors
    /// Returns [`Error`] if the exchange fails. A request that may have been sent is not retried.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        authority: &Authority,
        mut request: Outgoing,
        limits: &Limits,
        mut pauses: Option<Pauses>,
        is_connected: &AtomicBool,
    ) -> Result<Response, Error> {
        let mut closed = 0;
        loop {
            let (mut connection, is_reused) = match self.obtain(authority, closed).await {
                Ok(obtained) => obtained,
                Err(error) => {
                    wait_out(error, pauses.as_mut()).await?;
                    continue;
                }
            };
            is_connected.store(true, Ordering::Relaxed);
            match connection.exchange(request, limits).await {
                Ok(answer) => {
                    if !answer.truncated {
                        self.put(connection);
                    }
                    return Ok(answer);
                }
                Err(Failure::Unsent { request: unsent, .. }) if is_reused => request = *unsent,
                Err(failure) => return Err(failure.into()),
            }
            closed += 1;
        }
    }

    /// Returns a connection, and whether it has been used before. After [`CLOSED_MAX`] closed
    /// connections, opens a new connection.
    async fn obtain(
        self: &Arc<Self>,
        authority: &Authority,
        closed: usize,
    ) -> Result<(Box<Connection>, bool), Error> {
        let may_reuse = closed < CLOSED_MAX;
        if may_reuse && let Some(kept) = self.take(authority) {
            return Ok((kept, true));
        }
        // The future is boxed, because opening a connection is rare and its future is much larger
        // than the future of a call over an idle connection.
        let making = Box::pin(Arc::clone(self).make(authority.clone()));
        if may_reuse {
            return Box::pin(self.first_of(making, authority)).await;
        }
        Ok((making.await?, false))
    }

    /// Returns the new connection, or a connection that is returned to the pool in the meantime.
    /// The result is like that of [`Pool::obtain`].
    async fn first_of(
        self: &Arc<Self>,
        making: impl Future<Output = Result<Box<Connection>, Error>> + Unpin + Send + 'static,
        authority: &Authority,
    ) -> Result<(Box<Connection>, bool), Error> {
        let mut place = Place::take(self, authority);
        match select(&mut place.returned, making).await {
            Either::Left((Ok(returned), making)) => {
                if self.connector.places.has_spare() {
                    Tasks::attend(Arc::clone(self).keep(making));
                }
                Ok((returned, true))
            }
            Either::Left((Err(_closed), making)) => Ok((making.await?, false)),
            Either::Right((made, returned)) => {
                returned.close();
                if let Ok(surplus) = returned.try_recv() {
                    self.put(surplus);
                }
                Ok((made?, false))
            }
        }
    }

    /// Opens a connection; the connector's guard checks each address.
    async fn make(self: Arc<Self>, authority: Authority) -> Result<Box<Connection>, Error> {
        let connecting = self.connector.connect_plain(authority.host(), port_of(&authority));
        let (stream, socket) = connecting.await.map_err(Error::Connection)?;
        let mut connection = Connection::new(stream, authority).await?;
        connection.count(socket);
        Ok(connection)
    }

    /// Puts a new connection into the pool as soon as it is open.
    async fn keep(self: Arc<Self>, making: impl Future<Output = Result<Box<Connection>, Error>>) {
        match making.await {
            Ok(made) => self.put(made),
            Err(error) => tracing::debug!(%error, "cannot open surplus connection"),
        }
    }

    /// Takes the most recently returned idle connection, unless it is too old.
    fn take(&self, authority: &Authority) -> Option<Box<Connection>> {
        let now = monotonic_now();
        let mut state = self.lock();
        let idle = state.idle.get_mut(authority)?;
        let last = idle.pop()?;
        if !last.is_expired(now) {
            return Some(last.connection);
        }
        // The host's other idle connections are even older. These connections are closed after the
        // lock is released.
        let expired = mem::take(idle);
        drop(state);
        drop(expired);
        None
    }

    /// Keeps a connection for the next call, if it is reusable and another idle connection is
    /// allowed. If a call is waiting, the call gets the connection immediately.
    fn put(self: &Arc<Self>, mut connection: Box<Connection>) {
        if !connection.is_reusable() {
            return;
        }
        connection.release();
        let since = monotonic_now();
        let mut state = self.lock();
        if let Some(waiting) = state.waiting.get_mut(connection.authority()) {
            while let Some(call) = waiting.pop_front() {
                match call.send(connection) {
                    Ok(()) => return,
                    Err(refused) => connection = refused,
                }
            }
        }
        let idle = match state.idle.get_mut(connection.authority()) {
            Some(idle) => idle,
            None => state.idle.entry(connection.authority().clone()).or_default(),
        };
        if idle.len() >= self.idle_per_host {
            // The connection is closed after the lock is released.
            return;
        }
        idle.push(Idle { connection, since });
        let has_sweeper = mem::replace(&mut state.has_sweeper, true);
        drop(state);
        if !has_sweeper {
            Tasks::attend(Sweeper { pool: Arc::downgrade(self), has_ended: false }.run());
        }
    }

    /// Drops connections that are closed or too old. Returns whether any idle connections are left;
    /// if none are left, the next returned connection starts a new sweeper.
    async fn sweep(&self) -> bool {
        let authorities: Vec<Authority> = self.lock().idle.keys().cloned().collect();
        for authority in &authorities {
            let mut next = Some(0);
            while let Some(at) = next {
                next = self.sweep_batch(authority, at);
                tokio::task::yield_now().await;
            }
        }
        let mut state = self.lock();
        state.idle.retain(|_, idle| !idle.is_empty());
        state.has_sweeper = !state.idle.is_empty();
        state.has_sweeper
    }

    /// Checks connections to one host, starting at index `at`; returns the index at which to
    /// continue. Calls take connections from the end, so connections before `at` need no second
    /// check.
    fn sweep_batch(&self, authority: &Authority, at: usize) -> Option<usize> {
        let now = monotonic_now();
        let mut state = self.lock();
        let idle = state.idle.get_mut(authority)?;
        let end = idle.len().min(at.saturating_add(SWEEP_BATCH));
        if at >= end {
            return None;
        }
        let is_over = |one: &mut Idle| one.is_expired(now) || !one.connection.is_open();
        let over: Vec<Idle> = idle.extract_if(at..end, is_over).collect();
        drop(state);
        Some(end.saturating_sub(over.len()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shed for Pool {
    fn shed(&self) {
        // The connections are closed after the lock is released.
        let unused = mem::take(&mut self.lock().idle);
        drop(unused);
    }
}

/// A call's entry in the list of waiting calls.
struct Place<'a> {
    pool: &'a Pool,
    authority: &'a Authority,
    returned: oneshot::Receiver<Box<Connection>>,
}

impl<'a> Place<'a> {
    fn take(pool: &'a Pool, authority: &'a Authority) -> Self {
        let (call, returned) = oneshot::channel();
        pool.lock().waiting.entry(authority.clone()).or_default().push_back(call);
        Self { pool, authority, returned }
    }
}

/// Dropping an entry also removes the entries of dropped calls from the front of the list, so that
/// the list is empty after the last call.
impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.returned.close();
        let mut state = self.pool.lock();
        let Some(waiting) = state.waiting.get_mut(self.authority) else { return };
        while waiting.pop_front_if(|call| call.is_closed()).is_some() {}
        if waiting.is_empty() {
            state.waiting.remove(self.authority);
        }
    }
}

/// Waits before another attempt if the error is a resource shortage of this machine, within the
/// limit of `pauses`.
///
/// # Errors
/// Returns the error if another attempt would be pointless.
async fn wait_out(error: Error, pauses: Option<&mut Pauses>) -> Result<(), Error> {
    let Some(pauses) = pauses else { return Err(error) };
    let is_short = matches!(error, Error::Connection(connector::Error::Local { .. }));
    if !is_short || !pauses.wait().await {
        return Err(error);
    }
    tracing::info!(detail = error.detail(), "outgoing request waits for resources");
    Ok(())
}

/// The task that sweeps a pool's idle connections. The pool may be dropped first.
struct Sweeper {
    pool: Weak<Pool>,
    /// Whether the pool has been told that its sweeper has ended.
    has_ended: bool,
}

impl Sweeper {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let Some(pool) = self.pool.upgrade() else { return };
            if !pool.sweep().await {
                self.has_ended = true;
                return;
            }
        }
    }
}

/// A sweeper is also dropped when its runtime ends; the next call on another runtime starts a new
/// sweeper.
impl Drop for Sweeper {
    fn drop(&mut self) {
        if !self.has_ended
            && let Some(pool) = self.pool.upgrade()
        {
            pool.lock().has_sweeper = false;
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
