//! Slots for outgoing connections: shares of the process's file descriptors.
//!
//! Each kind of work has a named share of the process's limit. A request waits for a slot in its
//! share before its host is resolved or anything is sent; organizations take turns. Idle
//! connections count too, and are closed when a new connection needs a descriptor. The descriptors
//! outside the shares are reserved for clients' connections, the store, files and worker processes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use hyper::body::{Body, Frame, Incoming, SizeHint};
use rustix::process::{Resource, getrlimit};

use orrery_runtime::turns::{Turn, Turns};

/// Maximum number of connections in one share, regardless of the number of descriptors: each
/// connection takes about 40 KB.
const CONNECTIONS_MAX: u64 = 4096;
/// The number of descriptors assumed if the system sets no limit.
const UNLIMITED: u64 = 1_048_576;
/// While idle connections are being closed, a share may briefly be exceeded by 1/`CLOSING_SHARE` of
/// its size.
const CLOSING_SHARE: usize = 4;

/// A kind of work that opens connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// HTTP steps, and the URLs in the inputs of models.
    Steps,
    /// Inference servers and the upstream of the chat router.
    Models,
    /// Webhooks and trace exports.
    Deliveries,
    /// Tool servers of agents.
    Tools,
}

impl Share {
    /// Returns the divisor for the share's size: the share has 1/divisor of the process's
    /// descriptors.
    const fn one_in(self) -> u64 {
        match self {
            Self::Steps => 8,
            Self::Models => 16,
            Self::Deliveries | Self::Tools => 32,
        }
    }
}

/// The connections of one share.
#[derive(Debug)]
pub(super) struct Places {
    turns: Arc<Turns>,
    limit: usize,
    open: AtomicUsize,
    /// The pools that may have idle connections.
    pools: Mutex<Vec<Weak<dyn Shed>>>,
}

/// A pool that can close its idle connections.
pub(super) trait Shed: Send + Sync + std::fmt::Debug {
    fn shed(&self);
}

impl Places {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let limit = limit.max(1);
        let (open, pools) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { turns: Turns::new(limit), limit, open, pools })
    }

    /// Returns the slots of a share. Each process has one set of slots per share.
    pub(super) fn of(share: Share) -> Arc<Self> {
        type Shares = [Arc<Places>; 4];
        static SHARES: LazyLock<Shares> = LazyLock::new(|| {
            let descriptors = descriptors();
            let places = |share: Share| Places::new(places(descriptors, share));
            [Share::Steps, Share::Models, Share::Deliveries, Share::Tools].map(places)
        });
        let [steps, models, deliveries, tools] = &*SHARES;
        Arc::clone(match share {
            Share::Steps => steps,
            Share::Models => models,
            Share::Deliveries => deliveries,
            Share::Tools => tools,
        })
    }

    /// Registers a pool whose idle connections may be closed in favor of new ones.
    pub(super) fn register(&self, pool: Weak<dyn Shed>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(pool);
    }

    /// Waits for a slot for a request.
    pub(super) async fn take(&self) -> Turn {
        self.turns.take(1).await
    }

    /// Returns whether there is room to keep another idle connection.
    pub(super) fn has_spare(&self) -> bool {
        self.open.load(Ordering::Relaxed) < self.limit
    }

    /// Counts a new connection. If the share is exhausted, closes idle connections to free
    /// descriptors. Returns `None` while too many connections are still being closed.
    pub(super) fn open(self: &Arc<Self>) -> Option<Socket> {
        if !self.has_spare() {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for pool in pools.iter().filter_map(Weak::upgrade) {
                pool.shed();
            }
        }
        let most = self.limit.saturating_add(self.limit / CLOSING_SHARE).saturating_add(1);
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let socket = Socket { places: Arc::clone(self) };
        (before < most).then_some(socket)
    }

    /// Returns the number of requests that hold a slot.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.turns.used()
    }

    /// Returns the number of open connections.
    #[cfg(test)]
    pub(super) fn open_now(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of idle connections per host.
    pub(super) fn idle_per_host(&self) -> usize {
        (self.limit / 2).max(1)
    }
}

/// Returns the number of descriptors that this process may have. (Startup raises the soft limit to
/// the hard limit.)
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(UNLIMITED)
}

fn places(descriptors: u64, share: Share) -> usize {
    let places = (descriptors / share.one_in()).clamp(1, CONNECTIONS_MAX);
    usize::try_from(places).unwrap_or(usize::MAX)
}

/// The descriptor of an open connection, counted in its share.
#[derive(Debug)]
pub(super) struct Socket {
    places: Arc<Places>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.places.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response while it arrives. The body holds the request's slot.
#[derive(Debug)]
pub struct Arriving {
    body: Incoming,
    /// The request's slot; `None` if the connection belongs to no share.
    _place: Option<Turn>,
}

impl Arriving {
    pub(super) const fn new(body: Incoming, place: Turn) -> Self {
        Self { body, _place: Some(place) }
    }
}

impl From<Incoming> for Arriving {
    fn from(body: Incoming) -> Self {
        Self { body, _place: None }
    }
}

impl Body for Arriving {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Kept(Mutex<Vec<Socket>>);

    impl Shed for Kept {
        fn shed(&self) {
            self.0.lock().unwrap().clear();
        }
    }

    #[test]
    fn places_of_all_shares_leave_a_reserve_of_descriptors() {
        let all = [Share::Steps, Share::Models, Share::Deliveries, Share::Tools];
        for descriptors in [256_u64, 1024, 4096, 524_288] {
            let most = all.map(|share| places(descriptors, share));
            let most: usize = most.iter().map(|one| one + one / CLOSING_SHARE + 1).sum();
            assert!(most as u64 <= descriptors / 3, "{descriptors}: {most}");
        }
        assert_eq!(places(1024, Share::Steps), 128);
        assert_eq!(places(524_288, Share::Steps), 4096);
        assert_eq!(places(4, Share::Steps), 1);
    }

    #[test]
    fn places_close_unused_connections_for_a_new_one() {
        let places = Places::new(4);
        let unused = (0..4).map(|_| places.open().unwrap()).collect();
        let kept = Arc::new(Kept(Mutex::new(unused)));
        let pool: Arc<dyn Shed> = kept.clone();
        places.register(Arc::downgrade(&pool));
        assert!(!places.has_spare());
        let held: Vec<_> = (0..4).map(|_| places.open().unwrap()).collect();
        assert_eq!((places.open.load(Ordering::Relaxed), kept.0.lock().unwrap().len()), (4, 0));
        let closing: Vec<_> = (0..2).map(|_| places.open().unwrap()).collect();
        assert!(places.open().is_none(), "the reserve is not touched");
        drop((held, closing));
        assert_eq!(places.open.load(Ordering::Relaxed), 0);
    }
}
