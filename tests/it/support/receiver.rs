//! A webhook receiver that records requests and answers with given statuses.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::conformance;
use super::server::{Whole, respond, serve};
use super::within;

/// A received webhook.
#[derive(Debug)]
pub(crate) struct Received(Whole);

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.0.headers().get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.body()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(self.bytes()).unwrap()
    }

    pub(crate) fn method(&self) -> &str {
        self.0.method().as_str()
    }
}

/// A running receiver.
#[derive(Debug)]
pub(crate) struct Receiver {
    address: SocketAddr,
    gate: Arc<Semaphore>,
    incoming: UnboundedReceiver<Whole>,
}

impl Receiver {
    /// Starts a receiver that responds to every request with 200.
    pub(crate) async fn start() -> Self {
        Self::answering([]).await
    }

    /// Starts a receiver that responds with these statuses in turn, then with 200.
    pub(crate) async fn answering(statuses: impl IntoIterator<Item = u16>) -> Self {
        Self::gated(statuses, Semaphore::MAX_PERMITS, "thanks").await
    }

    /// Like [`Self::answering`], but holds each response until the test releases it.
    pub(crate) async fn held(statuses: impl IntoIterator<Item = u16>) -> Self {
        Self::gated(statuses, 0, "thanks").await
    }

    /// Starts a receiver that responds with 200 and this text.
    pub(crate) async fn saying(text: &'static str) -> Self {
        Self::gated([], Semaphore::MAX_PERMITS, text).await
    }

    async fn gated(
        statuses: impl IntoIterator<Item = u16>,
        open: usize,
        text: &'static str,
    ) -> Self {
        let gate = Arc::new(Semaphore::new(open));
        let held = Arc::clone(&gate);
        let statuses: VecDeque<u16> = statuses.into_iter().collect();
        let statuses = Arc::new(Mutex::new(statuses));
        let (sender, incoming) = unbounded_channel();
        let address = serve(move |request| {
            let status = statuses.lock().unwrap().pop_front().unwrap_or(200);
            sender.send(request).unwrap();
            let held = Arc::clone(&held);
            async move {
                held.acquire().await.unwrap().forget();
                respond(status, text)
            }
        })
        .await;
        Self { address, gate, incoming }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?from=orrery", self.address)
    }

    /// Returns the next webhook, waiting for it if necessary, and checks it against the document.
    pub(crate) async fn next(&mut self) -> Received {
        let received = Received(within("webhook", self.incoming.recv()).await.unwrap());
        if received.header("x-webhook-delivery-id").is_some() {
            conformance::check_webhook(&received.json());
        }
        received
    }

    /// Releases one held response.
    pub(crate) fn let_go(&self) {
        self.gate.add_permits(1);
    }

    /// Returns whether the test has taken all received webhooks.
    pub(crate) fn is_empty(&self) -> bool {
        self.incoming.is_empty()
    }
}
