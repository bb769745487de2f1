//! Catches signals that would otherwise terminate a command before it has cleaned up.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGHUP, SIGINT and SIGQUIT, caught instead of terminating the process.
pub(super) struct Signals([Signal; 4]);

impl Signals {
    /// Starts catching the signals.
    ///
    /// # Errors
    /// Returns an error if the system cannot register the signals.
    pub(super) fn new() -> std::io::Result<Self> {
        let [terminate, hang_up, interrupt, quit] = [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ]
        .map(signal);
        Ok(Self([terminate?, hang_up?, interrupt?, quit?]))
    }

    /// Resolves at the next signal.
    pub(super) async fn next(&mut self) {
        let [terminate, hang_up, interrupt, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    }
}
