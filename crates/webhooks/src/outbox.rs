//! The outbox's interface for other modules: hand over a delivery, rescan, read the metrics.
//!
//! These functions never wait: deliveries that do not fit in memory are on the disk, where
//! `send_loop` finds them.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{Notify, mpsc, watch};

use super::attempt::Context;
use super::dispatcher::Item;
use super::endpoints::Endpoints;
use super::gauges::Metrics;
use super::rows::RowIndex;
use super::send_loop::SendLoop;
use super::transport::{Network, Transport};
use super::{OnAttempt, Options, test_delivery};
use orrery_domain::delivery::{self, Delivery, Webhook};
use orrery_http::client::Client;
use orrery_http::places::Share;
use orrery_runtime::{Clock, Tasks};
use orrery_storage::{Sealer, Store};

/// Maximum number of new deliveries queued for the loop. The loop finds any other new deliveries on
/// the disk.
const INBOX_MAX: usize = 1024;
/// Maximum body size of a delivery whose contents are kept in memory, so that the queue in memory
/// stays small. A larger body is read from the disk when its delivery is sent.
pub(super) const CARRIED_BYTES_MAX: u64 = 4096;

/// The outbox; clones share the same state.
#[derive(Clone)]
pub struct Outbox {
    pub(super) context: Arc<Context>,
    inbox: mpsc::Sender<Item>,
    pub(super) trials: mpsc::Sender<test_delivery::Job>,
    /// Notifies the loop that the disk contains due deliveries that were not handed over, or that
    /// the clock was changed.
    look: Arc<Notify>,
    figures: watch::Receiver<Metrics>,
    send_loop: Arc<Mutex<Option<SendLoop>>>,
}

impl Outbox {
    /// Creates an outbox that sends with `client`, which restricts the addresses that deliveries
    /// can reach. The outbox does nothing until [`Outbox::start`].
    #[must_use]
    pub fn new(
        store: Store,
        sealer: Sealer,
        client: Client,
        clock: Clock,
        options: Options,
    ) -> Self {
        let network = Network::new(client.with_share(Share::Deliveries), options.timeout);
        Self::over(store, sealer, Arc::new(network), clock, options)
    }

    /// Creates an outbox with a given transport, such as a scripted one in tests.
    #[must_use]
    pub fn over(
        store: Store,
        sealer: Sealer,
        transport: Arc<dyn Transport>,
        clock: Clock,
        options: Options,
    ) -> Self {
        let endpoints = Endpoints::new(store.clone(), sealer.clone(), clock.clone());
        let context = Arc::new(Context {
            store,
            sealer,
            endpoints,
            transport,
            clock,
            options,
            on_attempt: OnceLock::new(),
            in_flight: Mutex::default(),
            taking_up: Arc::default(),
        });
        let (inbox, fresh) = mpsc::channel(INBOX_MAX);
        let (trials, asked) = mpsc::channel(test_delivery::INBOX_MAX);
        let look = Arc::new(Notify::new());
        let (figures, watched) = watch::channel(Metrics::default());
        let send_loop =
            SendLoop::new(Arc::clone(&context), fresh, asked, Arc::clone(&look), figures);
        let send_loop = Arc::new(Mutex::new(Some(send_loop)));
        Self { context, inbox, trials, look, figures: watched, send_loop }
    }

    /// Sets the callback that runs after each attempt. Only the first call has an effect.
    pub fn set_on_attempt(&self, on_attempt: OnAttempt) {
        let _first = self.context.on_attempt.set(on_attempt);
    }

    /// Starts sending, beginning with the due deliveries on the disk. A second call does nothing.
    pub fn start(&self, tasks: &Tasks) {
        let send_loop = self.send_loop.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(send_loop) = send_loop {
            tasks.spawn(send_loop.run(tasks.clone()));
        }
    }

    /// Hands over a delivery that was just committed with [`super::enqueue`]. Never waits: if the
    /// queue is full, the loop finds the delivery on the disk.
    pub fn wake(&self, delivery: Delivery) {
        let Some(due) = delivery.progress.next_attempt_at else { return };
        let item = Item {
            organization: delivery.organization,
            execution: delivery.row(),
            due,
            place: RowIndex::Due,
            receiver: Arc::from(delivery::receiver(&delivery.webhook.url)),
            carried: (delivery.body.len() <= CARRIED_BYTES_MAX
                && due <= self.context.clock.steady())
            .then(|| Box::new(delivery)),
        };
        if due > self.context.clock.steady() || self.inbox.try_send(item).is_err() {
            self.look.notify_one();
        }
    }

    /// Returns the endpoints that deliveries are sent to.
    #[must_use]
    pub fn endpoints(&self) -> &Endpoints {
        &self.context.endpoints
    }

    /// Makes the loop check the disk and the clock immediately.
    pub fn rescan(&self) {
        self.look.notify_one();
    }

    /// Returns whether a webhook's deliveries also include the webhook's secret.
    #[must_use]
    pub fn sends_plain_secret(&self, webhook: &Webhook) -> bool {
        webhook.secret.is_some()
            && webhook.send_plain_secret.unwrap_or(self.context.options.send_plain_secret)
    }

    /// Returns the outbox's metrics, as a receiver that can wait for changes.
    #[must_use]
    pub fn metrics(&self) -> watch::Receiver<Metrics> {
        self.figures.clone()
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("figures", &*self.figures.borrow()).finish_non_exhaustive()
    }
}
