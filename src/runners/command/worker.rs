//! A worker: one process that is given one job at a time, behind its guard.
//!
//! Whatever goes wrong with a worker, it is ended and not used again. Dropping one tells its guard
//! to end it, with everything that it has started.

use std::io;
use std::process::ExitStatus;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStdout;
use tokio::time::Instant;

use super::pool::Pool;
use super::process::{Process, Program};
use super::protocol::{self, Ended, LINE_MAX, Said};
use crate::runners::{Folder, Job};
use crate::runtime;

/// A worker that runs, or has ended without anybody having looked.
#[derive(Debug)]
pub struct Worker {
    /// It may write to its folder; the folders of its runs are in it.
    process: Process,
    stdout: BufReader<ChildStdout>,
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

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// A folder for the files of its next run.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn folder(&self) -> io::Result<Folder> {
        Folder::new_in(&self.process.home)
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
        self.process.end().await
    }

    /// Lets it end by itself for a moment, then ends it.
    pub async fn leave(self) -> Option<ExitStatus> {
        self.process.leave().await
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
