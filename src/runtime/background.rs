//! Threads of their own for the work that nobody waits for at a connection: executions and deliveries.
//!
//! However much of it is ready to run, a request is answered by other threads, which the system lets run
//! first. It never drives the connections of clients.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// How much a thread gives way to those that serve requests, as `nice` counts it. One that never sleeps still
/// gets a tenth of what they get; these sleep often, and get more.
const NICENESS: i32 = 10;

/// The threads, as many as the machine has cores. Dropping it ends what runs on them where it next waits.
#[derive(Debug)]
pub struct Background {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Background {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("orrery-work")
            .on_thread_start(yield_to_requests)
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime that waits for its threads must not be dropped among tasks.
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread: those that serve requests go first.
pub fn yield_to_requests() {
    // Linux knows a priority for each thread, whatever POSIX says of processes.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "a thread keeps the priority of the others");
    }
}
