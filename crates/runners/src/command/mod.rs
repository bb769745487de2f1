//! The runner `command`: runs a program supplied by the operator, which reads jobs and writes
//! responses as JSON Lines on its standard streams (see `protocol`).
//!
//! In `persistent` mode, a pool of workers serves the jobs, with one job at a time per worker; in
//! `once` mode, each job has its own process. Dropping a run kills its process and all its
//! descendants. This module never retries.

mod pool;
pub mod process;
mod protocol;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::pool::Pool;
pub use self::process::GuardConfig;
use self::protocol::Ended;
use self::worker::Worker;
use super::http::excerpt;
use super::options::{self, Dependencies, Model, Type};
use super::tail::Tail;
use super::{Error, Folder, Health, Job, Maintenance, Run, Runner, Success};
use orrery_config::reader::{Parsed, Section};
use orrery_config::secret::Secret;
use orrery_config::values::{self, list, one_of, problem, size};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::Usage;
use orrery_guard as guard;
use orrery_runtime as runtime;
use orrery_runtime::shortage::when_able;

/// Bounds of `memory_bytes`: the smallest address space in which a program can start, and a sanity
/// limit.
const MEMORY_MIN: u64 = 64 * 1024 * 1024;
const MEMORY_MAX: u64 = 1 << 50;

/// How long to retry a spawn that fails because the machine is out of resources.
const STARTING_MAX: Duration = Duration::from_secs(60);

/// The default `PATH` of a service, which can differ from the `PATH` of a terminal.
const SERVICE_PATH: [&str; 5] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/bin"];
/// File name extensions of scripts.
const SCRIPTS: [&str; 8] = ["py", "sh", "js", "mjs", "ts", "rb", "pl", "php"];

/// The process mode of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Each process is reused for many jobs.
    Persistent,
    /// One process per job.
    Once,
}

impl Mode {
    /// All modes.
    const ALL: [Self; 2] = [Self::Persistent, Self::Once];

    /// Returns the mode's spelling in manifests.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Once => "once",
        }
    }
}

/// The manifest section of this runner type.
pub const TYPE: Type = Type {
    name: "command",
    read: |section, folder| Some(Arc::new(Options::read(section, folder)?)),
};

/// The manifest's options.
#[derive(Debug, PartialEq)]
struct Options {
    /// The program and its arguments, never empty.
    command: Vec<String>,
    mode: Mode,
    /// The absolute working directory; by default, the directory of the manifest.
    directory: PathBuf,
    env: Vec<(String, Secret)>,
    /// The address space limit of each of the program's processes.
    memory_bytes: Option<u64>,
    /// Absolute paths of directories that the program may write to, in addition to its own.
    writable: Vec<PathBuf>,
}

impl Options {
    fn read(section: &mut Section<'_>, folder: &Path) -> Option<Self> {
        let command = section.required("command", program);
        let mode = section.get("mode", Mode::Persistent, one_of(&Mode::ALL, Mode::as_str));
        let directory = section.get("directory", folder.to_path_buf(), directory(folder));
        let env = section.get("env", Vec::new(), values::map(variable(folder)));
        let memory_bytes = section.optional("memory_bytes", size(MEMORY_MIN..=MEMORY_MAX));
        let writable = section.get("writable", Vec::new(), list(self::directory(folder)));
        Some(Self { command: command?, mode, directory, env, memory_bytes, writable })
    }
}

impl options::Options for Options {
    fn programs(&self) -> Option<Vec<PathBuf>> {
        Some(programs(&self.command, &self.directory))
    }

    fn missing(&self, _groups: Option<&crate::managed::Groups>) -> Option<String> {
        missing(&self.command, &self.directory)
    }

    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        let pool = Pool::new(self, model, dependencies.guard.clone());
        Arc::new(CommandRunner { pool, once: Mutex::new(Health::Starting) })
    }
}

pub(crate) fn program(value: &values::Value<'_>) -> Parsed<Vec<String>> {
    let command = list(values::string)(value)?;
    if command.first().is_none_or(String::is_empty) {
        return Err(values::wrong(value, "a list: the program, then its arguments"));
    }
    Ok(command)
}

/// Returns the files that a command started in `directory` runs as programs.
pub(crate) fn programs(command: &[String], directory: &Path) -> Vec<PathBuf> {
    // A program name without a slash is looked up in `PATH`; script paths are among the arguments.
    let is_path = |(place, word): &(usize, &String)| *place > 0 || word.contains('/');
    let words = command.iter().enumerate().filter(is_path);
    let paths = words.map(|(_, word)| directory.join(word));
    paths.filter(|path| path.is_file()).collect()
}

/// Returns the missing file that a command started in `directory` needs: its program, or the script
/// that its program reads. A program name without a slash is looked up in `PATH` and in the default
/// path of services.
pub fn missing(command: &[String], directory: &Path) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let found = |folder: PathBuf| is_program(&folder.join(program));
    let is_there = if program.contains('/') {
        found(directory.to_path_buf())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).chain(SERVICE_PATH.map(PathBuf::from)).any(found)
    };
    if !is_there {
        let place = if program.starts_with('/') {
            String::new()
        } else if program.contains('/') {
            format!(" in {}", directory.display())
        } else {
            " in PATH".to_owned()
        };
        return Some(format!("the program '{program}' does not exist{place}, or cannot be run"));
    }
    let script = arguments.first().filter(|word| {
        !word.starts_with('-')
            && Path::new(word)
                .extension()
                .is_some_and(|end| SCRIPTS.iter().any(|known| end == *known))
    })?;
    let is_missing = !directory.join(script).exists();
    is_missing.then(|| format!("the script '{script}' does not exist in {}", directory.display()))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Parses the path of a directory that must exist; a relative path is resolved against `folder`.
pub(crate) fn directory(folder: &Path) -> impl Fn(&values::Value<'_>) -> Parsed<PathBuf> {
    move |value| {
        let path = values::path(folder)(value)?;
        let missing = || problem(value, format!("{} is not a folder", path.display()));
        if path.is_dir() { Ok(path) } else { Err(missing()) }
    }
}

pub(crate) fn variable(
    folder: &Path,
) -> impl Fn(&str, &values::Value<'_>) -> Parsed<(String, Secret)> {
    move |name, value| {
        let secret = values::secret(folder)(value)?;
        if name.is_empty() || name.contains(['=', '\0']) || secret.expose().contains('\0') {
            let message = format!(
                "{name:?} cannot be the name of an environment variable, or its value contains a \
                 NUL"
            );
            return Err(problem(value, message));
        }
        Ok((name.to_owned(), secret))
    }
}

/// A runner of one model.
#[derive(Debug)]
struct CommandRunner {
    pool: Arc<Pool>,
    /// The outcome of the last process in `once` mode.
    once: Mutex<Health>,
}

impl CommandRunner {
    fn mode(&self) -> Mode {
        self.pool.options.mode
    }

    fn model(&self) -> &Model {
        &self.pool.model
    }

    async fn run_in_pool(&self, job: &Job) -> Result<(Ended, Option<Folder>), Failure> {
        let taken = self.pool.take(!job.may_fall_back).await;
        let mut taken = taken
            .map_err(|reason| self.model().failure(ErrorClass::ProviderUnavailable, &reason))?;
        let Some(worker) = &mut taken.worker else {
            return Err(self.model().failure(ErrorClass::InternalError, "it has no worker"));
        };
        let folder = self.folder(worker)?;
        let path = folder.as_ref().map(|folder| folder.path().display().to_string());
        match worker.ask(job, path.as_deref(), &self.model().cost_report, false).await {
            Ok(ended) => {
                taken.return_to_pool();
                Ok((ended, folder))
            }
            Err(fault) => {
                let reason = match fault {
                    worker::Error::Ended => taken.reap().await,
                    worker::Error::Nonsense(what) => format!("its worker {what}"),
                };
                Err(self.model().failure(ErrorClass::ProviderError, &reason))
            }
        }
    }

    async fn run_once(&self, job: &Job) -> Result<(Ended, Option<Folder>), Failure> {
        let pool = &self.pool;
        let tail = &pool.tail;
        let worker = when_able(STARTING_MAX, || Worker::start(pool)).await;
        let mut worker = worker.map_err(|error| {
            let what = format!("its process cannot be started: {error}");
            self.model().failure(ErrorClass::ProviderUnavailable, &what)
        })?;
        let folder = self.folder(&worker)?;
        let path = folder.as_ref().map(|folder| folder.path().display().to_string());
        let answer = worker.ask(job, path.as_deref(), &self.model().cost_report, true).await;
        let (health, result) = match answer {
            Ok(ended) => {
                worker.leave().await;
                (Health::Good, Ok((ended, folder)))
            }
            Err(worker::Error::Nonsense(what)) => {
                let reason = format!("its process {what}");
                (Health::Good, Err(self.model().failure(ErrorClass::ProviderError, &reason)))
            }
            Err(worker::Error::Ended) => {
                let status = worker.end().await;
                let reason = describe(status, tail);
                let failure = self.model().failure(ErrorClass::ProviderError, &reason);
                (Health::Failing(reason), Err(failure))
            }
        };
        *self.once.lock().unwrap_or_else(PoisonError::into_inner) = health;
        result
    }

    /// Creates a directory for the files of a run, if the model may return files.
    fn folder(&self, worker: &Worker) -> Result<Option<Folder>, Failure> {
        if !self.model().gives_files {
            return Ok(None);
        }
        worker.folder().map(Some).map_err(|error| {
            let what = format!("a folder for its files cannot be created: {error}");
            self.model().failure(ErrorClass::InternalError, &what)
        })
    }
}

impl Runner for CommandRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let started = runtime::monotonic_now();
            let (Ended { result, usage }, folder) = match self.mode() {
                Mode::Persistent => self.run_in_pool(&job).await?,
                Mode::Once => self.run_once(&job).await?,
            };
            let usage = Usage { run_time: started.elapsed(), ..usage };
            match result {
                Ok(output) => Ok(Success { output, usage, folder }),
                Err(failure) => Err(Error {
                    failure: self.model().failure(failure.class, &failure.message),
                    cost: usage.cost,
                }),
            }
        })
    }

    fn health(&self) -> Health {
        match self.mode() {
            Mode::Persistent => self.pool.health(),
            Mode::Once => self.once.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn maintain(&self) -> Maintenance<'_> {
        Box::pin(async {
            if self.mode() == Mode::Persistent {
                self.pool.maintain();
            }
        })
    }

    fn diagnostics(&self) -> Option<String> {
        let written = Some(self.pool.tail.text()).filter(|text| !text.is_empty());
        let hint = self.pool.hint().map(|hint| format!("hint: {hint}"));
        match (written, hint) {
            (Some(written), Some(hint)) => Some(format!("{}\n{hint}", written.trim_end())),
            (written, hint) => written.or(hint),
        }
    }
}

/// The failure reason of a worker that exited successfully without a response.
const ENDED: &str = "its worker ended without an answer";

/// Describes an unexpected exit, as a phrase that follows "the model 'x':". The program's own
/// output is shown only to the operator, except messages from the guard.
fn describe(status: Option<ExitStatus>, tail: &Tail) -> String {
    let not_started =
        status.and_then(|status| status.code()) == Some(i32::from(guard::NOT_STARTED));
    if not_started
        && let Some(line) = tail.last_line()
        && let Some(said) = line.strip_prefix(guard::LOG_PREFIX)
    {
        return format!("its program {said}");
    }
    match status {
        None => "its worker ended and left no exit status".to_owned(),
        Some(status) if status.success() => ENDED.to_owned(),
        Some(status) => format!("{ENDED} ({status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there.py"), "").unwrap();
        let said = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            missing(&command, folder.path())
        };
        for good in [
            &["sh"][..],
            &["/bin/sh", "-c", "gone.py"],
            &["sh", "there.py"],
            &["sh", "--out=gone.py"],
            &["sh", "gone.txt"],
            &[],
        ] {
            assert_eq!(said(good), None, "{good:?}");
        }
        let place = folder.path().display();
        for (bad, expected) in [
            (
                &["no-such-program"][..],
                "the program 'no-such-program' does not exist in PATH, or cannot be run".to_owned(),
            ),
            (
                &["/no/such/program"],
                "the program '/no/such/program' does not exist, or cannot be run".to_owned(),
            ),
            (
                &["./there.py"],
                format!("the program './there.py' does not exist in {place}, or cannot be run"),
            ),
            (&["sh", "gone.py"], format!("the script 'gone.py' does not exist in {place}")),
        ] {
            assert_eq!(said(bad), Some(expected));
        }
    }
}
