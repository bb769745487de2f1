//! Background threads for work that no connection waits for: executions and webhook deliveries.
//!
//! Other threads handle requests, and the scheduler prefers those threads even if much background
//! work is ready. Background threads never drive client connections.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// The `nice` value of background threads. A background thread that never sleeps still gets a tenth
/// of the CPU time of a request thread. In practice, background threads sleep often and get more.
const NICENESS: i32 = 10;

/// The background threads, one per core. When this value is dropped, the threads' tasks end at
/// their next await point.
#[derive(Debug)]
pub struct Background {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Background {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system cannot create threads.
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
            // Dropping a runtime inside a task must not wait for the runtime's threads.
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread below that of the threads that serve requests.
pub fn yield_to_requests() {
    // Linux has a priority per thread, although POSIX defines it per process.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of a thread");
    }
}
