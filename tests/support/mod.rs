//! Code shared by the integration tests: the real binary on its own data folder, a client, a server
//! that acts as models and webhook receivers, and random choices that a seed reproduces.
//!
//! It uses plain threads and blocking sockets, so that it does not depend on the code under test.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod gguf;
pub(crate) mod http;
pub(crate) mod random;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod whisper;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit of every wait in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// Polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Polls until `look` returns a value; fails after [`PATIENCE`], naming `what`.
#[expect(clippy::disallowed_methods, reason = "nothing here runs on the code that it tests")]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "after {PATIENCE:?} still waiting: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Sends a signal to a process. Returns false if there is no such process.
pub(crate) fn signal(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Returns a number from the environment, for longer manual runs.
pub(crate) fn count_from(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a whole number"))
    })
}
