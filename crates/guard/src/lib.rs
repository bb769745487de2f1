//! The guard: a process between the service and a worker of a `command` model, started from the
//! same binary (`orrery guard …`).
//!
//! The guard starts the worker in a sandbox (see [`fence`]) and waits. When the worker exits, when
//! the service requests it, or when the service exits, the guard kills all processes that the
//! worker has started, including processes that have left its process group or lost their parent. A
//! worker dies with its guard. The guard does not read or write the worker's pipes.
//!
//! Processes of built-in models need no guard: they cannot start other processes (see [`sandbox`]).

pub mod fence;
pub mod filter;
pub mod groups;
pub mod sandbox;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, wait,
};

use orrery_runtime as runtime;
use tokio::signal::unix::{SignalKind, signal};

use self::fence::Walls;

/// Default time for a worker to exit after SIGTERM, in milliseconds.
const GRACE_MILLIS: u64 = 300;
/// Time limit for killing the remaining descendants.
const KILLING: Duration = Duration::from_secs(10);
/// Polling interval while waiting for processes to exit.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Exit code if the worker's program cannot be started; the same as in shells.
pub const NOT_STARTED: u8 = 127;
/// Prefix of the guard's own messages on standard error.
pub const LOG_PREFIX: &str = "orrery guard: ";

/// Arguments of `orrery guard`.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct GuardArgs {
    /// Process id of the service
    #[arg(long, value_name = "PID")]
    pub parent: i32,
    /// Control group to join
    #[arg(long, value_name = "FOLDER")]
    pub group: Option<PathBuf>,
    #[command(flatten)]
    pub walls: Walls,
    /// Time for the program to exit after SIGTERM, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = GRACE_MILLIS)]
    pub grace: u64,
    /// Working directory of the program
    #[arg(long, value_name = "FOLDER")]
    pub directory: PathBuf,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Starts the worker and waits for it; returns its exit code as a shell would report it.
///
/// # Errors
/// If the limits cannot be set or the worker cannot be started.
pub fn run(args: &GuardArgs) -> io::Result<u8> {
    // Set the signal before any process is started: otherwise, a process would remain if the
    // service died in the meantime.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|parent| parent.get() != args.parent) {
        return Ok(NOT_STARTED);
    }
    if let Some(group) = &args.group {
        groups::enter(group)?;
    }
    // Orphaned descendants become children of this process.
    set_child_subreaper(Some(getpid()))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(watch(args))
}

async fn watch(args: &GuardArgs) -> io::Result<u8> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child_ended = signal(SignalKind::child())?;
    // The worker must be spawned from this thread, which lives as long as the process: the worker's
    // parent-death signal is tied to the spawning thread.
    let mut fenced = Command::new("/proc/self/exe");
    fenced.arg("fence").arg("--parent").arg(getpid().as_raw_nonzero().to_string());
    fenced.args(args.walls.arguments()).arg("--").args(&args.command);
    let worker = fenced.current_dir(&args.directory).spawn().map_err(|error| {
        let program = args.command.first().map(|program| program.to_string_lossy());
        let program = program.unwrap_or_default();
        let folder = args.directory.display();
        io::Error::new(error.kind(), format!("'{program}' cannot be started in {folder}: {error}"))
    })?;
    // Only the worker may keep the pipes open: the service must notice when the worker closes one.
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    let worker = i32::try_from(worker.id()).ok().and_then(Pid::from_raw);
    loop {
        if let Some(status) = reap(worker)? {
            kill_descendants();
            return Ok(code_of(status));
        }
        tokio::select! {
            _ = child_ended.recv() => {}
            _ = terminate.recv() => break,
        }
    }
    let status = terminate_worker(worker, args)?;
    kill_descendants();
    Ok(status.map_or(0, code_of))
}

/// Sends SIGTERM to the worker and waits for its exit, at most for its grace period. The period is
/// short once the service has exited: it may be started again at once, and needs the worker's
/// memory.
fn terminate_worker(worker: Option<Pid>, args: &GuardArgs) -> io::Result<Option<ExitStatus>> {
    if let Some(worker) = worker {
        // The worker may have exited in the meantime.
        let _gone = kill_process(worker, Signal::TERM);
    }
    let asked = runtime::monotonic_now();
    let has_parent =
        || getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == args.parent);
    let grace = || {
        Duration::from_millis(if has_parent() { args.grace } else { GRACE_MILLIS.min(args.grace) })
    };
    while asked.elapsed() < grace() {
        if let Some(status) = reap(worker)? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

/// Reaps all children that have exited; returns the worker's status if the worker is one of them.
fn reap(worker: Option<Pid>) -> io::Result<Option<ExitStatus>> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if Some(pid) == worker {
                    found = Some(ExitStatus::from_raw(status.as_raw()));
                }
            }
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(found),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills all children, including orphans that become children in the meantime, until none are left.
fn kill_descendants() {
    let begun = runtime::monotonic_now();
    while begun.elapsed() < KILLING {
        for child in children() {
            let _gone = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_none_left) => return,
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns the child processes of this process.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let pid: i32 = name.to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // Format: pid (name) state parent …; the name may contain anything.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            (parent.parse() == Ok(own)).then(|| Pid::from_raw(pid)).flatten()
        })
        .collect()
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
