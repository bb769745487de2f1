//! A worker: one guarded process that serves one job at a time.
//!
//! After any fault the worker is ended and not reused. Dropping it tells its guard to end it with
//! all its descendants.

use std::io;
use std::process::ExitStatus;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStdout;
use tokio::time::Instant;

use super::pool::Pool;
use super::process::{Process, Program};
use super::protocol::{self, Ended, LINE_MAX, Said};
use crate::{Folder, Job};
use orrery_runtime as runtime;

/// A worker; it may have exited without being reaped yet.
#[derive(Debug)]
pub struct Worker {
    /// The folders of its runs are inside its folder.
    process: Process,
    stdout: BufReader<ChildStdout>,
    pub started: Instant,
    /// Whether it has answered at least once.
    pub is_proven: bool,
}

/// Why a worker gave no answer.
#[derive(Debug)]
pub enum Error {
    /// It has exited.
    Ended,
    /// It violated the protocol; a phrase that follows "its worker".
    Nonsense(String),
}

impl Worker {
    /// Starts a worker behind a guard. Call it on a thread that lives as long as the runtime: the
    /// guard treats the end of the thread as the end of the service.
    ///
    /// # Errors When this binary cannot be started again.
    pub fn start(pool: &Pool) -> io::Result<Self> {
        let Pool { options, model, guard, tail, .. } = pool;
        let program = Program {
            command: &options.command,
            directory: &options.directory,
            env: &options.env,
            memory_bytes: options.memory_bytes,
            writable: &options.writable,
            model: Some(&model.name),
        };
        let (process, stdout) = Process::start(guard, &program, tail)?;
        let stdout = BufReader::new(stdout);
        Ok(Self { process, stdout, started: runtime::monotonic_now(), is_proven: false })
    }

    /// The exit status, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Creates a folder for the files of its next run.
    ///
    /// # Errors When the file system refuses.
    pub fn folder(&self) -> io::Result<Folder> {
        Folder::new_in(&self.process.home)
    }

    /// Sends a job and reads messages until it ends. With `is_last`, tells the worker that no other
    /// job follows.
    ///
    /// # Errors [`Error`]; then the worker must not be reused.
    pub async fn ask(
        &mut self,
        job: &Job,
        folder: Option<&str>,
        cost_report: &str,
        is_last: bool,
    ) -> Result<Ended, Error> {
        let id = job.attempt_key.as_str();
        let line = protocol::job(job, folder);
        let stdin = &mut self.process.stdin;
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
        // Read while writing: a worker may write much before it has read everything.
        let mut reading = std::pin::pin!(reading);
        let ended = tokio::select! {
            biased;
            ended = &mut reading => ended,
            // Output written before it closed its input still counts.
            _written_or_broken = writing => reading.await,
        }?;
        self.is_proven = true;
        Ok(ended)
    }

    /// Ends it with all its descendants. Returns its exit status.
    pub async fn end(&mut self) -> Option<ExitStatus> {
        self.process.end().await
    }

    /// Lets it exit by itself for a moment, then ends it.
    pub async fn leave(self) -> Option<ExitStatus> {
        self.process.leave().await
    }
}

/// Reads one line, without its line break.
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
            // Ignore empty lines.
            Some(_) if line.trim_ascii().is_empty() => line.clear(),
            Some(_) => return Ok(line),
        }
    }
}
