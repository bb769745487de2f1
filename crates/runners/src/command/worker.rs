//! A worker: one guarded process that serves one job at a time.
//!
//! After any fault, the worker is ended instead of being reused. Dropping a worker tells its guard
//! to end it together with all its descendants.

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
pub(super) struct Worker {
    /// The worker process; its directory contains the directories of its runs.
    process: Process,
    stdout: BufReader<ChildStdout>,
    pub started: Instant,
    /// Whether the worker has written a line that looks like an answer.
    pub has_written: bool,
    /// Whether the worker has responded at least once.
    pub is_proven: bool,
}

/// The failure of a worker that sent no response.
#[derive(Debug)]
pub(super) enum Error {
    /// The worker has exited.
    Ended,
    /// The worker violated the protocol; a phrase that follows "its worker".
    Nonsense(String),
}

impl Worker {
    /// Starts a worker behind a guard. Must be called on a thread that lives as long as the
    /// runtime: the guard treats the end of the thread as the end of the service.
    ///
    /// # Errors
    /// Fails if this binary cannot be started again.
    pub(super) fn start(pool: &Pool) -> io::Result<Self> {
        let Pool { options, model, guard, tail, .. } = pool;
        let program = Program {
            command: &options.command,
            directory: &options.directory,
            env: &options.env,
            memory_bytes: options.memory_bytes,
            writable: &options.writable,
            model: Some(&model.name),
            grace: None,
        };
        let (process, stdout) = Process::start(guard, &program, tail)?;
        let stdout = BufReader::new(stdout);
        let started = runtime::monotonic_now();
        Ok(Self { process, stdout, started, has_written: false, is_proven: false })
    }

    /// Returns the exit status if the worker has exited.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Creates a directory for the files of the worker's next run.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub(super) fn folder(&self) -> io::Result<Folder> {
        Folder::new_in(&self.process.home)
    }

    /// Sends a job and reads messages until the job has finished. With `is_last`, closes the
    /// worker's standard input after the job, so that the worker exits.
    ///
    /// # Errors
    /// [`Error`]; the worker must then not be reused.
    pub(super) async fn ask(
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
        let has_written = &mut self.has_written;
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
                *has_written |= line.trim_ascii_start().starts_with(b"{");
                match protocol::parse(&line, Some(id), cost_report).map_err(Error::Nonsense)? {
                    None | Some(Said::Ready) => {}
                    Some(Said::Log(text)) => job.progress.log(&text),
                    Some(Said::Part(part)) => job.progress.output(&part),
                    Some(Said::Ended(ended)) => return Ok(*ended),
                }
            }
        };
        // Read while writing, because a worker may write a lot before it has read the whole job.
        let mut reading = std::pin::pin!(reading);
        let ended = tokio::select! {
            biased;
            ended = &mut reading => ended,
            // Output that the worker wrote before closing its input still counts.
            _written_or_broken = writing => reading.await,
        }?;
        self.is_proven = true;
        Ok(ended)
    }

    /// Ends the worker and all of its descendants, and returns the worker's exit status.
    pub(super) async fn end(&mut self) -> Option<ExitStatus> {
        self.process.end().await
    }

    /// Waits briefly for the worker to exit by itself, then ends it.
    pub(super) async fn leave(self) -> Option<ExitStatus> {
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
