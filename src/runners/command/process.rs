//! One guarded process of a program of the operator's: started behind its guard and its walls, with a
//! folder of its own, and ended with everything that it has started. What is said over its pipes is
//! others' business: `worker` and the MCP servers of `agent`.

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

use crate::config::secret::{self, Secret};
use crate::guard::fence::Walls;
use crate::guard::groups::{Group, Groups};
use crate::runners::tail::Tail;
use crate::runtime::Tasks;

/// What a process' environment has of the service's own.
const PASSED_ON: &[&str] = &["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ"];
/// Where a process has its temporary files, within its folder.
const TEMPORARY: &str = "tmp";
/// How long a guard has to end its process before it is killed itself.
const ENDING: Duration = Duration::from_secs(15);
/// How often a control group is looked at until it is empty.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a process has to end once its job is done, where it is not used again.
const LEAVING: Duration = Duration::from_secs(1);

/// How guard processes are started: see `crate::guard`.
#[derive(Debug, Clone)]
pub struct GuardConfig {
    /// This program.
    pub program: PathBuf,
    /// Where each process gets a folder of its own.
    pub work: PathBuf,
    /// What no program may open, beside the files that hold secrets: folders of the service.
    pub hidden: Vec<PathBuf>,
    /// The manifests' folder, which programs may read, but for the manifests.
    pub models: PathBuf,
    /// Where each process gets a control group of its own; `None`: nowhere.
    pub groups: Option<Arc<Groups>>,
    pub tasks: Tasks,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The program and its arguments, never empty.
    pub command: &'a [String],
    /// Where it starts, absolute.
    pub directory: &'a Path,
    pub env: &'a [(String, Secret)],
    /// The address space that each of its processes may have.
    pub memory_bytes: Option<u64>,
    /// Absolute folders that it may write to, beside its own.
    pub writable: &'a [PathBuf],
    /// The name of the model, which its environment has.
    pub model: Option<&'a str>,
}

impl GuardConfig {
    /// A folder for one process, with one for its temporary files.
    fn home(&self) -> io::Result<TempDir> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.work)?;
        let home = TempDir::new_in(&self.work)?;
        std::fs::DirBuilder::new().mode(0o700).create(home.path().join(TEMPORARY))?;
        Ok(home)
    }

    /// What the processes of a program may reach.
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

/// A process that runs, or has ended without anybody having looked. Dropping it tells its guard to end
/// it.
#[derive(Debug)]
pub struct Process {
    /// The guard. Its process group holds the program too.
    child: Child,
    group: Option<Pid>,
    pub stdin: Option<ChildStdin>,
    /// Where it may write.
    pub home: Arc<TempDir>,
    /// The control group of the guard and of all below it.
    control: Option<Group>,
}

impl Process {
    /// Starts a program behind a guard, with the pipe that it writes to; what it writes to standard error
    /// goes to `tail`. To be called on a thread that lives as long as the runtime: the guard takes the end
    /// of the thread for the end of the service.
    ///
    /// # Errors
    /// When this program cannot be started again.
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
        // Python buffers what it writes to a pipe, answers and errors included.
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
        // For as long as the process lives: a shutdown that waited for it would wait for idle workers.
        Tasks::attend(tail.clone().drain(stderr));
        let process = Self { child, group, stdin: Some(stdin), home: Arc::new(home), control };
        Ok((process, stdout))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends it, with everything that it has started; how its process ended.
    pub async fn end(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        self.ask_guard();
        self.gone(ENDING).await
    }

    /// Lets it end by itself for a moment, then ends it.
    pub async fn leave(mut self) -> Option<ExitStatus> {
        self.stdin = None;
        match tokio::time::timeout(LEAVING, self.child.wait()).await {
            Ok(_ended) => self.gone(ENDING).await,
            Err(_elapsed) => self.end().await,
        }
    }

    /// Waits until the guard has ended, and sees to it that it does.
    async fn gone(&mut self, patience: Duration) -> Option<ExitStatus> {
        let waited = tokio::time::timeout(patience, self.child.wait()).await;
        let status = waited.ok().and_then(Result::ok);
        // A guard that was killed itself has left its worker behind.
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
        // Without an id it has ended and was waited for.
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
