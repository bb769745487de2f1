//! The pool of connections for `http://`: unused ones are kept for the next call to the same host.
//!
//! The last one that was returned is the first to be taken, so that a burst's surplus grows old. A
//! connection that its peer has closed while it was unused is noticed before anything is written to
//! it, and every few seconds a task drops those that are closed or too old; it runs only while there
//! are any. A connection goes back only when its answer was read to the end. A call that waits for a
//! new connection takes one that is returned sooner; the new one is then made for the next call, while
//! there is room for one that nobody uses (see `places`).

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

use super::client::{Error, Limits, Response, report};
use super::connector::{self, Connector};
use super::exchange::{Connection, Failure, Outgoing, port_of};
use super::places::Shed;
use crate::runtime::shortage::Pauses;
use crate::runtime::{Tasks, monotonic_now};

/// How long an unused connection is kept.
pub(super) const KEEP_IDLE: Duration = Duration::from_secs(60);
/// Between two looks at the unused connections.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Connections that are looked at while the lock is held: some 100 ns each.
const SWEEP_BATCH: usize = 16;
/// Connections that may turn out to be closed before a call makes its own.
const CLOSED_MAX: usize = 8;

/// Connections, by where they lead.
pub(super) struct Pool {
    connector: Connector,
    idle_per_host: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those of one host are in the order in which they were returned.
    idle: HashMap<Authority, Vec<Idle>>,
    /// Calls that wait for a connection, some of them not any more.
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
    /// An empty pool that keeps up to `idle_per_host` unused connections for each host.
    pub(super) fn new(connector: Connector, idle_per_host: usize) -> Self {
        Self { connector, idle_per_host, state: Mutex::default() }
    }

    /// Sends a request over a connection of the pool or a new one, and reads the answer. `is_connected`
    /// is set once there is a connection. With `pauses`, a shortage of this machine is waited out.
    ///
    /// # Errors
    /// [`Error`]; a request that may have been sent is not sent again.
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
                    wait_out(error, authority, pauses.as_mut()).await?;
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

    /// A connection, and whether it has been used before: after some that were closed it is a new one.
    async fn obtain(
        self: &Arc<Self>,
        authority: &Authority,
        closed: usize,
    ) -> Result<(Box<Connection>, bool), Error> {
        let may_reuse = closed < CLOSED_MAX;
        if may_reuse && let Some(kept) = self.take(authority) {
            return Ok((kept, true));
        }
        // Boxed, since it is rare and much larger than what a call over a kept connection needs.
        let making = Box::pin(Arc::clone(self).make(authority.clone()));
        if may_reuse {
            return Box::pin(self.first_of(making, authority)).await;
        }
        Ok((making.await?, false))
    }

    /// The new connection or one that is returned in the meantime, as [`Pool::obtain`] says it.
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

    /// A new connection; the connector asks its guard about each address.
    async fn make(self: Arc<Self>, authority: Authority) -> Result<Box<Connection>, Error> {
        let connecting = self.connector.connect_plain(authority.host(), port_of(&authority));
        let (stream, socket) = connecting.await.map_err(Error::Connection)?;
        let mut connection = Connection::new(stream, authority).await?;
        connection.count(socket);
        Ok(connection)
    }

    /// Puts the connection that is being made into the pool.
    async fn keep(self: Arc<Self>, making: impl Future<Output = Result<Box<Connection>, Error>>) {
        match making.await {
            Ok(made) => self.put(made),
            Err(error) => tracing::debug!(%error, "a surplus connection was not made"),
        }
    }

    /// The unused connection that was returned last, unless it is too old.
    fn take(&self, authority: &Authority) -> Option<Box<Connection>> {
        let now = monotonic_now();
        let mut state = self.lock();
        let idle = state.idle.get_mut(authority)?;
        let last = idle.pop()?;
        if !last.is_expired(now) {
            return Some(last.connection);
        }
        // The others are older still. They are closed when the lock is released.
        let expired = mem::take(idle);
        drop(state);
        drop(expired);
        None
    }

    /// Keeps a connection for the next call, if it can serve one and there is room for it. A call that
    /// waits for one gets it at once.
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
            // It is closed after the lock is released.
            return;
        }
        idle.push(Idle { connection, since });
        let has_sweeper = mem::replace(&mut state.has_sweeper, true);
        drop(state);
        if !has_sweeper {
            Tasks::attend(Sweeper { pool: Arc::downgrade(self), has_ended: false }.run());
        }
    }

    /// Drops the connections that are closed or too old. Whether any are left: if not, the next one that is
    /// returned needs another sweeper.
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

    /// Looks at the connections of one host from `at` on; where to go on. Calls take connections from the
    /// end in the meantime, so the ones before `at` have been looked at.
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
        // They are closed when the lock is released.
        let unused = mem::take(&mut self.lock().idle);
        drop(unused);
    }
}

/// A call's place among those that wait for a connection.
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

/// A call that leaves clears the places of those that left before, so that the last one leaves none.
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

/// Waits before another attempt where this machine has a shortage, within the limit of `pauses`.
///
/// # Errors
/// The error, where another attempt makes no sense.
async fn wait_out(
    error: Error,
    authority: &Authority,
    pauses: Option<&mut Pauses>,
) -> Result<(), Error> {
    let Some(pauses) = pauses else { return Err(error) };
    let is_short = matches!(error, Error::Connection(connector::Error::Local { .. }));
    if !is_short || !pauses.wait().await {
        return Err(error);
    }
    report(authority.host(), &error);
    Ok(())
}

/// The task that looks at the unused connections of a pool. The pool may end before it does.
struct Sweeper {
    pool: Weak<Pool>,
    /// The pool knows that it has no sweeper any more.
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

/// A sweeper also ends with its runtime; the next call on another one starts its successor.
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
