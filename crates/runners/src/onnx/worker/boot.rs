//! Starts the process: enters the sandbox, loads the model, and serves requests.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as Socket;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::sync::watch;

use super::engine::Engine;
use super::{WorkerArgs, server};
use crate::llm::worker::not_started;
use orrery_runtime::memory;

/// Stack size of each thread in bytes: models nest their graphs.
const STACK: usize = 16 * 1024 * 1024;

/// Serves the model until the service closes the socket.
///
/// # Errors
/// Fails if standard input is not a socket.
pub(super) fn run(args: &WorkerArgs) -> io::Result<u8> {
    memory::keep_less()?;
    let threads = usize::try_from(args.common.threads).unwrap_or(1);
    // Stacks count toward the limit.
    let stacks = (threads as u64).saturating_add(1).saturating_mul(STACK as u64);
    if let Err(error) = args.common.enter_sandbox(stacks, &[]) {
        return Ok(not_started(&error));
    }
    // A panic is reported in a response instead, because its text may quote the input.
    std::panic::set_hook(Box::new(|_panic| {}));
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (ready, state) = watch::channel(None);
    let file = args.common.file.clone();
    std::thread::Builder::new().name("model".to_owned()).stack_size(STACK).spawn(move || {
        let loaded = std::panic::catch_unwind(|| Engine::load(&file));
        let loaded = loaded.unwrap_or_else(|_panic| Err("the engine panicked".to_owned()));
        let loaded = loaded.map_err(|reason| format!("it cannot be loaded: {reason}"));
        // If the receiver was dropped, the process is exiting.
        let _unheard = ready.send(Some(loaded.map(Arc::new)));
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(threads)
        .thread_stack_size(STACK)
        .build()?;
    runtime.block_on(async {
        let socket = UnixStream::from_std(socket)?;
        server::serve(socket, state).await
    })?;
    Ok(0)
}
