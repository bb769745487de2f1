//! A worker: one process that is given one job at a time, behind its guard.
//!
//! Whatever goes wrong with a worker, it is ended and not used again. Dropping one tells its guard
//! to end it, with everything that it has started.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::Options;
use super::pool::Pool;
use super::protocol::{self, Ended, LINE_MAX, Said};
use crate::config::secret;
use crate::guard::fence::Walls;
use crate::guard::groups::{Group, Groups};
use crate::runners::{Folder, Job};
use crate::runtime::{self, Tasks};

/// What a worker's environment has of the service's own.
const PASSED_ON: &[&str] = &["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ"];
/// Where a process has its temporary files, within its folder.
const TEMPORARY: &str = "tmp";
/// How long a guard has to end its worker before it is killed itself.
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

impl GuardConfig {
    /// A folder for one process, with one for its temporary files.
    fn home(&self) -> io::Result<TempDir> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.work)?;
        let home = TempDir::new_in(&self.work)?;
        std::fs::DirBuilder::new().mode(0o700).create(home.path().join(TEMPORARY))?;
        Ok(home)
    }

    /// What the processes of a model may reach.
    fn walls(&self, options: &Options, home: &Path) -> Walls {
        let secrets = secret::hidden_from_programs();
        Walls {
            hide: self.hidden.iter().cloned().chain(secrets).collect(),
            hide_manifests: Some(self.models.clone()),
            read: vec![self.models.clone(), options.directory.clone()],
            write: options.writable.clone(),
            home: Some(home.to_path_buf()),
            memory_bytes: options.memory_bytes,
        }
    }
}

/// A worker that runs, or has ended without anybody having looked.
#[derive(Debug)]
pub struct Worker {
    /// The guard. Its process group holds the worker too.
    child: Child,
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Where it may write; the folders of its runs are in it.
    home: Arc<TempDir>,
    /// The control group of the guard and of all below it.
    control: Option<Group>,
    pub started: Instant,
    /// It has answered.
    pub is_proven: bool,
}

/// Why a worker gave no answer.
#[derive(Debug)]
pub enum Error {
    /// It has ended.
    Ended,
    /// What it wrote is not understood, in words that follow "its worker".
    Nonsense(String),
}

impl Worker {
    /// Starts a worker behind a guard. To be called on a thread that lives as long as the runtime:
    /// the guard takes the end of the thread for the end of the service.
    ///
    /// # Errors
    /// When this program cannot be started again.
    pub fn start(pool: &Pool) -> io::Result<Self> {
        let Pool { options, model, guard, tail, .. } = pool;
        let home = guard.home()?;
        let mut command = Command::new(&guard.program);
        command.arg("guard").arg("--parent").arg(std::process::id().to_string());
        command.args(guard.walls(options, home.path()).arguments());
        let control = guard.groups.as_ref().map(|groups| groups.make(options.memory_bytes));
        let control = control.transpose()?;
        if let Some(control) = &control {
            command.arg("--group").arg(control.path());
        }
        command.arg("--directory").arg(&options.directory).arg("--").args(&options.command);
        command.env_clear();
        for name in PASSED_ON {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("ORRERY_MODEL", &model.name);
        command.env("TMPDIR", home.path().join(TEMPORARY));
        for (name, value) in &options.env {
            command.env(name, value.expose());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let gone = || io::Error::other("its pipes are closed");
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        guard.tasks.spawn(tail.clone().drain(stderr));
        Ok(Self {
            child,
            group,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
            home: Arc::new(home),
            control,
            started: runtime::monotonic_now(),
            is_proven: false,
        })
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// A folder for the files of its next run.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn folder(&self) -> io::Result<Folder> {
        Folder::new_in(&self.home)
    }

    /// Gives it the job and hears what it says until the job has ended. With `is_last` it is asked
    /// that no other job will come.
    ///
    /// # Errors
    /// [`Error`]: then it is not to be used again.
    pub async fn ask(
        &mut self,
        job: &Job,
        folder: Option<&str>,
        cost_report: &str,
        is_last: bool,
    ) -> Result<Ended, Error> {
        let id = job.attempt_key.as_str();
        let line = protocol::job(id, &job.input, folder);
        let stdin = &mut self.stdin;
        let stdout = &mut self.stdout;
        let writing = async {
            let pipe = stdin.as_mut().ok_or(Error::Ended)?;
            pipe.write_all(line.as_bytes()).await.map_err(|_broken_pipe| Error::Ended)?;
            if is_last {
                *stdin = None;
            }
            Ok::<(), Error>(())
        };
        let reading = async {
            loop {
                let line = read_line(stdout).await?;
                match protocol::parse(&line, Some(id), cost_report).map_err(Error::Nonsense)? {
                    None | Some(Said::Ready) => {}
                    Some(Said::Log(text)) => job.progress.log(&text),
                    Some(Said::Part(part)) => job.progress.output(&part),
                    Some(Said::Ended(ended)) => return Ok(*ended),
                }
            }
        };
        // At once: a worker may write much before it has read all.
        let mut reading = std::pin::pin!(reading);
        let ended = tokio::select! {
            biased;
            ended = &mut reading => ended,
            // What it wrote before it closed its end is heard still.
            _written_or_broken = writing => reading.await,
        }?;
        self.is_proven = true;
        Ok(ended)
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

impl Drop for Worker {
    fn drop(&mut self) {
        self.ask_guard();
    }
}

/// One line, without its end.
async fn read_line(stdout: &mut BufReader<ChildStdout>) -> Result<Vec<u8>, Error> {
    let mut line = Vec::new();
    loop {
        let block = stdout.fill_buf().await.map_err(|_broken_pipe| Error::Ended)?;
        if block.is_empty() {
            return Err(Error::Ended);
        }
        let end = block.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(block.get(..end.unwrap_or(block.len())).unwrap_or_default());
        let used = end.map_or(block.len(), |end| end + 1);
        stdout.consume(used);
        if line.len() > LINE_MAX {
            return Err(Error::Nonsense(format!("wrote a line of more than {LINE_MAX} bytes")));
        }
        match end {
            None => {}
            // Empty lines say nothing.
            Some(_) if line.trim_ascii().is_empty() => line.clear(),
            Some(_) => return Ok(line),
        }
    }
}
