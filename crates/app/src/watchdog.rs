//! Notifies systemd's watchdog (`WatchdogSec=`) as long as requests over the control socket are
//! accepted, routed and answered from the store.
//!
//! Other problems, such as a full disk or a failing model, do not stop the notifications.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use hyper_util::rt::TokioIo;

use orrery_config::secret::Secret;
use orrery_http::unix_socket;
use orrery_runtime::Tasks;

/// The route to query. The route reads a few rows of the store, regardless of the store's size.
const ROUTE: &str = "/api/base/v1/limits";
/// Number of round trips within `WatchdogSec=`.
const TRIPS: u32 = 3;

/// Notifies the watchdog until shutdown; does nothing without `WatchdogSec=`.
pub(super) fn feed(tasks: &Tasks, socket: PathBuf, token: Secret) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let every = limit / TRIPS;
    let stopping = tasks.token();
    tasks.spawn(async move {
        loop {
            match tokio::time::timeout(every, round_trip(socket.clone(), token.clone())).await {
                Ok(Ok(())) => super::serving::notify(sd_notify::NotifyState::Watchdog),
                Ok(Err(error)) => tracing::warn!(%error, "watchdog request failed"),
                Err(_late) => warn_late(every),
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    });
}

fn warn_late(every: Duration) {
    tracing::warn!("no answer to the watchdog within {} s", every.as_secs());
}

/// Sends one request over its own connection.
async fn round_trip(socket: PathBuf, token: Secret) -> anyhow::Result<()> {
    let request = Request::builder()
        .uri(ROUTE)
        .header(HOST, "localhost")
        .header(AUTHORIZATION, format!("Bearer {}", token.expose()))
        .body(Empty::<Bytes>::new())?;
    let io = TokioIo::new(unix_socket::connect(&socket).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let (answer, _connection) =
        tokio::join!(async move { sender.send_request(request).await }, connection);
    let status = answer?.status();
    anyhow::ensure!(status.is_success(), "the request returned status {status}");
    Ok(())
}
