//! A running service from start to shutdown: signals, systemd notifications and the shutdown
//! itself.
//!
//! A shutdown waits only for finite work: executions, deliveries and connections. Parts that last
//! as long as the process, such as idle model workers, end with the process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::{FirstStart, first_start, start};
use orrery_api::{Role, Services};
use orrery_config::Config;
use orrery_runtime::shortage::lacks_descriptor;
use orrery_runtime::{Background, Tasks};

/// Duration of a shutdown after which the unfinished work is logged.
const QUIET: Duration = Duration::from_millis(100);

/// A service in this process.
#[derive(Debug)]
pub struct Running {
    pub services: Arc<Services>,
    pub(super) tasks: Tasks,
    pub(super) grace: Duration,
    pub(super) addresses: Vec<(Role, SocketAddr)>,
    /// The first listening address of all hosts together, if there is one.
    pub one_port: Option<SocketAddr>,
    /// The threads that run executions and deliveries.
    pub(super) background: Background,
}

impl Running {
    /// Returns the first listening address of a host.
    #[must_use]
    pub fn address(&self, role: Role) -> Option<SocketAddr> {
        self.addresses.iter().find(|(held, _)| *held == role).map(|(_, address)| *address)
    }

    /// Stops the service: accepts no new connections, and waits for work to finish within the grace
    /// period. The next start resumes unfinished work.
    pub async fn stop(self) {
        self.tasks.stop();
        if !self.tasks.ended(self.grace.min(QUIET)).await {
            let seconds = self.grace.as_secs_f64();
            let waits_for = self.unfinished();
            tracing::info!(
                "stopping: waiting up to {seconds} s for {waits_for}; a second Ctrl-C or SIGTERM ends \
                 the service at once"
            );
            if !self.tasks.ended(self.grace.saturating_sub(QUIET)).await {
                let left = self.unfinished();
                tracing::info!("{left} did not end in time; work resumes at the next start");
            }
        }
        self.services.engine.stopped();
        self.services.store.clone().close().await;
        drop(self.background);
    }

    /// Describes the unfinished work that a shutdown waits for.
    fn unfinished(&self) -> String {
        let (executions, _queued) = self.services.engine.totals();
        let deliveries = self.services.outbox.metrics().borrow().in_flight;
        let requests = self.services.requests.used();
        described(&[
            (executions, "execution"),
            (deliveries, "webhook delivery"),
            (requests, "request"),
        ])
    }
}

/// Lists the nonzero counts; "open connections" if all are zero.
fn described(counts: &[(usize, &str)]) -> String {
    let named: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, thing)| match (count, thing.strip_suffix('y')) {
            (1, _) => format!("1 {thing}"),
            (_, Some(stem)) => format!("{count} {stem}ies"),
            (_, None) => format!("{count} {thing}s"),
        })
        .collect();
    if named.is_empty() { "open connections".to_owned() } else { named.join(", ") }
}

/// Runs a service until SIGTERM or SIGINT; a second signal ends the shutdown at once. SIGHUP
/// reloads configuration, models and certificates. Once the service is ready, calls `ready` with
/// the values that an interactive start prints; the values are empty unless `is_watched`.
///
/// # Errors
/// Returns an error if the service cannot start, or the disk refused a write. After a refused
/// write, acknowledged data is safe, and the next start resumes unfinished work.
pub async fn serve(
    config: Config,
    is_watched: bool,
    ready: impl FnOnce(FirstStart) + Send + 'static,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let running = start(&config).await?;
    let first = first_start::prepare(&running.services, is_watched).await?;
    notify(sd_notify::NotifyState::Ready);
    ready(first);
    let services = Arc::clone(&running.services);
    let failure = loop {
        tokio::select! {
            _ = terminate.recv() => break None,
            _ = interrupt.recv() => break None,
            reason = services.store.failed() => break Some(reason),
            _ = hang_up.recv() => running.reload().await,
        }
    };
    notify(sd_notify::NotifyState::Stopping);
    let is_stopped = tokio::select! {
        () = running.stop() => true,
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    if is_stopped {
        tracing::info!("stopped");
    } else {
        // The shutdown is deliberate, so the executions in flight must not count as the cause of a
        // crash.
        services.engine.stopped();
        tracing::info!("ended at once; work resumes at the next start");
    }
    match failure {
        None => Ok(()),
        Some(reason) => anyhow::bail!(
            "the store accepts no more writes ({reason}): acknowledged data is safe; {}, then start \
             again",
            remedy(&reason)
        ),
    }
}

/// Returns the remedy for a store that accepts no more writes.
fn remedy(reason: &str) -> &'static str {
    if lacks_descriptor(reason) {
        "raise the limit of open files (LimitNOFILE, ulimit -n)"
    } else {
        "free some space or replace the disk"
    }
}

/// Notifies systemd if `NOTIFY_SOCKET` is set.
pub(super) fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "sd_notify failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_lists_pending_work() {
        let things = |executions, deliveries| {
            described(&[(executions, "execution"), (deliveries, "webhook delivery")])
        };
        assert_eq!(things(1, 2), "1 execution, 2 webhook deliveries");
        assert_eq!(things(3, 1), "3 executions, 1 webhook delivery");
        assert_eq!(things(0, 0), "open connections");
    }
}
