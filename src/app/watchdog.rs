//! systemd's watchdog (`WatchdogSec=`): notified for as long as a request over the control socket is accepted,
//! routed and answered from the store.
//!
//! Only that counts: a full disk or a failing model does not end the service.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use hyper_util::rt::TokioIo;

use crate::config::secret::Secret;
use crate::http::unix_socket;
use crate::runtime::Tasks;

/// What is asked for: a route that reads a few rows of the store, however much there is.
const ROUTE: &str = "/api/base/v1/limits";
/// Round trips within the time after which systemd ends the service.
const TRIPS: u32 = 3;

/// Notifies the watchdog until the shutdown; does nothing where systemd has set no time.
pub(super) fn feed(tasks: &Tasks, socket: PathBuf, token: Secret) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let every = limit / TRIPS;
    let stopping = tasks.token();
    tasks.spawn(async move {
        loop {
            match tokio::time::timeout(every, round_trip(socket.clone(), token.clone())).await {
                Ok(Ok(())) => super::serving::notify(sd_notify::NotifyState::Watchdog),
                Ok(Err(error)) => tracing::warn!(%error, "the watchdog got no answer"),
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
    tracing::warn!("the service did not answer its watchdog within {} s", every.as_secs());
}

/// One request over a connection of its own.
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
    anyhow::ensure!(status.is_success(), "its request was answered with {status}");
    Ok(())
}
