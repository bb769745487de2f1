//! Follows a prompt over ComfyUI's WebSocket, which reports the active node and its steps.
//!
//! The connection only reports progress, and announces the end of the prompt early. The runner
//! polls the prompt's state even without the connection.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use hyper::header::{CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::graph::Graph;
use crate::Progress;
use orrery_http::client::Client;
use orrery_runtime as runtime;

/// Maximum size of a message. Messages contain previews of images, which are ignored.
const MESSAGE_MAX: usize = 16 * 1024 * 1024;
/// Minimum time between two log lines about the steps of a node.
const STEPS_EVERY: Duration = Duration::from_secs(1);

/// A message about the progress of a prompt. Messages of other types are ignored.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Event {
    /// A node begins; without a node, the prompt has ended.
    Executing {
        node: Option<String>,
        prompt_id: Option<String>,
    },
    Progress {
        value: f64,
        max: f64,
        node: Option<String>,
        prompt_id: Option<String>,
    },
    ExecutionSuccess {
        prompt_id: Option<String>,
    },
    ExecutionError {
        prompt_id: Option<String>,
    },
    ExecutionInterrupted {
        prompt_id: Option<String>,
    },
}

/// The prompt to watch, and where to report its progress.
pub(super) struct Watch<'a> {
    pub client: &'a Client,
    /// The URL of the server.
    pub url: &'a str,
    /// The ID of the prompt, which is also the ID of the connection.
    pub id: &'a str,
    pub graph: &'a Graph,
    pub progress: &'a dyn Progress,
    /// Notified when the prompt ends.
    pub ended: &'a Notify,
}

impl Watch<'_> {
    /// Reports progress until the prompt has ended or the connection is lost.
    pub(super) async fn run(&self) {
        if let Err(error) = self.follow().await {
            tracing::debug!(%error, "no progress of a prompt from ComfyUI");
        }
    }

    async fn follow(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let request = Request::get(format!("{}/ws?clientId={}", self.url, self.id))
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(HeaderName::from_static("sec-websocket-version"), "13")
            .header(SEC_WEBSOCKET_KEY, HeaderValue::try_from(generate_key())?)
            .body(Bytes::new())?;
        let mut answer = self.client.open(request).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(format!("the server answered {}", answer.status()).into());
        }
        let connection = TokioIo::new(hyper::upgrade::on(&mut answer).await?);
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX));
        let mut socket =
            WebSocketStream::from_raw_socket(connection, Role::Client, Some(limits)).await;
        let mut log = Log { last: None, node: None };
        while let Some(message) = socket.next().await {
            let Message::Text(text) = message? else { continue };
            let Ok(event) = serde_json::from_str(&text) else { continue };
            if self.tell(event, &mut log) {
                self.ended.notify_one();
                break;
            }
        }
        Ok(())
    }

    /// Logs an event; returns whether the prompt has ended.
    fn tell(&self, event: Event, log: &mut Log) -> bool {
        let is_ours = |id: &Option<String>| id.as_deref() == Some(self.id);
        match event {
            Event::Executing { node, prompt_id } if is_ours(&prompt_id) => {
                let Some(node) = node else { return true };
                self.progress.log(&format!("{}\n", self.graph.name_of(&node)));
                log.node = Some(node);
                false
            }
            Event::Progress { value, max, node, prompt_id } if is_ours(&prompt_id) => {
                let now = runtime::monotonic_now();
                let is_early = log.last.is_some_and(|last| now - last < STEPS_EVERY);
                if !is_early || value >= max {
                    log.last = Some(now);
                    let node = node.or_else(|| log.node.clone()).unwrap_or_default();
                    let name = self.graph.name_of(&node);
                    self.progress.log(&format!("{name}: {value} of {max}\n"));
                }
                false
            }
            Event::ExecutionSuccess { prompt_id }
            | Event::ExecutionError { prompt_id }
            | Event::ExecutionInterrupted { prompt_id } => is_ours(&prompt_id),
            Event::Executing { .. } | Event::Progress { .. } => false,
        }
    }
}

/// The state of the progress log.
struct Log {
    /// When the last line about steps was written.
    last: Option<Instant>,
    /// The active node.
    node: Option<String>,
}
