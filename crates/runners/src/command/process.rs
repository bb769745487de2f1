//! Runs one of the operator's programs as a guarded process: sandboxed, with its own directory, and
//! killed together with all its descendants. The callers, `worker` and the MCP servers of `agent`,
//! implement the protocol on its pipes.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::tail::Tail;
use orrery_config::secret::{self, Secret};
use orrery_guard::fence::Walls;
use orrery_guard::groups::{Group, Groups};
use orrery_runtime::Tasks;

/// Environment variables inherited from the service.
const PASSED_ON: &[&str] = &["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ"];
/// The directory for temporary files, inside the process's directory.
const TEMPORARY: &str = "tmp";
/// Grace period for a guard to end its process before the guard itself is killed.
const ENDING: Duration = Duration::from_secs(15);
/// Polling interval while waiting for a control group to become empty.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Grace period for a process to exit after its job if it is not reused.
const LEAVING: Duration = Duration::from_secs(1);

/// Configuration for starting guard processes; see `orrery_guard`.
#[derive(Debug, Clone)]
pub struct GuardConfig {
    /// This binary.
    pub program: PathBuf,
    /// The parent of the processes' directories.
    pub work: PathBuf,
    /// Directories of the service that no program may open, in addition to files with secrets.
    pub hidden: Vec<PathBuf>,
    /// The manifests' directory, which programs may read except for the manifests themselves.
    pub models: PathBuf,
    /// The parent of the processes' control groups; `None` without control groups.
    pub groups: Option<Arc<Groups>>,
    pub tasks: Tasks,
}

/// A program to start.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The program and its arguments, never empty.
    pub command: &'a [String],
    /// The absolute working directory.
    pub directory: &'a Path,
    pub env: &'a [(String, Secret)],
    /// The address space limit of each of the program's processes.
    pub memory_bytes: Option<u64>,
    /// Absolute paths of directories that the program may write to, in addition to its own.
    pub writable: &'a [PathBuf],
    /// The name of the model, passed in an environment variable.
    pub model: Option<&'a str>,
    /// How long the program may take to exit after SIGTERM; `None` means the guard's default.
    pub grace: Option<Duration>,
}

impl GuardConfig {
    /// Creates a directory for one process, containing a directory for its temporary files.
    fn home(&self) -> io::Result<TempDir> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.work)?;
        let home = TempDir::new_in(&self.work)?;
        std::fs::DirBuilder::new().mode(0o700).create(home.path().join(TEMPORARY))?;
        Ok(home)
    }

    /// Returns the sandbox rules of a program.
    fn walls(&self, program: &Program<'_>, home: &Path) -> Walls {
        let secrets = secret::hidden_from_programs();
        Walls {
            hide: self.hidden.iter().cloned().chain(secrets).collect(),
            hide_manifests: Some(self.models.clone()),
            read: vec![self.models.clone(), program.directory.to_path_buf()],
            write: program.writable.to_vec(),
            home: Some(home.to_path_buf()),
            memory_bytes: program.memory_bytes,
        }
    }
}

/// A guarded process; it may have exited without being reaped yet. Dropping this value tells the
/// guard to end the process.
#[derive(Debug)]
pub struct Process {
    /// The guard. The guard's process group also contains the program.
    child: Child,
    group: Option<Pid>,
    pub stdin: Option<ChildStdin>,
    /// The directory that the process may write to.
    pub home: Arc<TempDir>,
    /// The control group of the guard and all its descendants.
    control: Option<Group>,
    grace: Duration,
}

impl Process {
    /// Starts a program behind a guard. Returns the process and its standard output; standard error
    /// goes to `tail`. Must be called on a thread that lives as long as the runtime: the guard
    /// treats the end of the thread as the end of the service.
    ///
    /// # Errors
    /// Fails if this binary cannot be started again.
    pub fn start(
        guard: &GuardConfig,
        program: &Program<'_>,
        tail: &Tail,
    ) -> io::Result<(Self, ChildStdout)> {
        let home = guard.home()?;
        let mut command = Command::new(&guard.program);
        command.arg("guard").arg("--parent").arg(std::process::id().to_string());
        command.args(guard.walls(program, home.path()).arguments());
        let control = guard.groups.as_ref().map(|groups| groups.make(program.memory_bytes));
        let control = control.transpose()?;
        if let Some(control) = &control {
            command.arg("--group").arg(control.path());
        }
        if let Some(grace) = program.grace {
            command.arg("--grace").arg(grace.as_millis().to_string());
        }
        command.arg("--directory").arg(program.directory).arg("--").args(program.command);
        command.env_clear();
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Some(model) = program.model {
            command.env("ORRERY_MODEL", model);
        }
        command.env("TMPDIR", home.path().join(TEMPORARY));
        // Without this variable, Python buffers output to a pipe, including responses and errors.
        command.env("PYTHONUNBUFFERED", "1");
        for (name, value) in program.env {
            command.env(name, value.expose());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let gone = || io::Error::other("its pipes are closed");
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        // The task lives as long as the process and is not tracked, because a shutdown would
        // otherwise wait for idle workers.
        Tasks::attend(tail.clone().drain(stderr));
        let grace = program.grace.unwrap_or_default();
        let home = Arc::new(home);
        let process = Self { child, group, stdin: Some(stdin), home, control, grace };
        Ok((process, stdout))
    }

    /// Returns the exit status if the process has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends the process and all its descendants, and returns its exit status.
    pub async fn end(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        self.ask_guard();
        self.gone(ENDING.saturating_add(self.grace)).await
    }

    /// Waits briefly for the process to exit by itself, then ends it.
    pub async fn leave(mut self) -> Option<ExitStatus> {
        self.stdin = None;
        match tokio::time::timeout(LEAVING, self.child.wait()).await {
            Ok(_ended) => self.gone(ENDING).await,
            Err(_elapsed) => self.end().await,
        }
    }

    /// Waits until the guard has exited, and kills it if necessary.
    async fn gone(&mut self, patience: Duration) -> Option<ExitStatus> {
        let waited = tokio::time::timeout(patience, self.child.wait()).await;
        let status = waited.ok().and_then(Result::ok);
        // A guard that was itself killed left its worker running.
        if status.is_none_or(|status| status.signal().is_some())
            && let Some(group) = self.group
        {
            let _none_left = kill_process_group(group, Signal::KILL);
        }
        if let Some(control) = self.control.take() {
            control.kill();
            let emptied = async {
                while !control.remove() {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            let _left_for_the_next_start = tokio::time::timeout(LEAVING, emptied).await;
        }
        status
    }

    fn ask_guard(&self) {
        // A process without an id has already been reaped.
        if let (Some(_), Some(guard)) = (self.child.id(), self.group) {
            let _gone = kill_process(guard, Signal::TERM);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.ask_guard();
    }
}
