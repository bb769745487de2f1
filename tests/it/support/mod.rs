//! Code shared by the tests: the service, a client, a model server and a webhook receiver.

mod axe;
pub(crate) mod chromium;
mod client;
mod cog;
pub(crate) mod conformance;
pub(crate) mod dashboard;
#[path = "../../support/gguf.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
pub(crate) mod gguf;
mod identity;
pub(crate) mod mcp_server;
mod mlserver;
mod process;
mod provider;
mod proxy;
mod python;
mod receiver;
mod server;
mod service;
mod shown;
mod tree;
pub(crate) mod upstream;
#[path = "../../support/whisper.rs"]
#[allow(dead_code, reason = "benchmarks use the rest")]
pub(crate) mod whisper;

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub(crate) use client::{Answer, Ask};
pub(crate) use cog::Cog;
pub(crate) use identity::IdentityProvider;
pub(crate) use mlserver::MlServer;
pub(crate) use process::Process;
pub(crate) use provider::Provider;
pub(crate) use python::installed;
pub(crate) use receiver::{Received, Receiver};
pub(crate) use server::{page, respond, serve};
pub(crate) use service::Service;
pub(crate) use upstream::Upstream;

/// Time limit of every wait; far more than needed.
const PATIENCE: Duration = Duration::from_secs(240);

/// Awaits `waited_for`; fails with its name on timeout.
pub(crate) async fn within<T>(what: &str, waited_for: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited_for).await.unwrap_or_else(|_| panic!("no {what} came"))
}

/// Sends a signal to a process. Returns false if there is no such process.
pub(crate) fn signal(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Polls until `probe` returns a value.
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    within(what, async {
        loop {
            ticks.tick().await;
            if let Some(found) = probe().await {
                return found;
            }
        }
    })
    .await
}

/// Waits until no execution of a model is running or queued: the end of an execution is visible a
/// moment before its slot is free.
pub(crate) async fn lane_is_free(service: &Service, model: &str) {
    until("a free lane", async || {
        let load = service.engine().load(model);
        ((load.running, load.queued) == (0, 0)).then_some(())
    })
    .await;
}

/// Returns whether any file below the folder contains the text.
pub(crate) fn holds(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            return holds(&entry.path(), text);
        }
        let is_socket = !entry.file_type().unwrap().is_file();
        let bytes = if is_socket { Vec::new() } else { std::fs::read(entry.path()).unwrap() };
        String::from_utf8_lossy(&bytes).contains(text)
    })
}
