//! Runs `backup.after`: the operator's program that copies each scheduled backup to another
//! location.
//!
//! The program gets the path in its environment, a time limit, and only a few of the service's own
//! environment variables. The program's output is discarded, except for the end of its standard
//! error. A failure is logged, counted, and recorded in the data folder for `orrery doctor`; the
//! next success removes the record.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use orrery_api::Services;
use orrery_config as config;

/// The file in the data folder that records a failure.
pub(crate) const FAILED: &str = "backup.after-failed";
/// The environment variable with the path of the backup.
const FILE: &str = "ORRERY_BACKUP_FILE";
/// Variables that the program inherits from the service.
const PASSED_ON: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ"];
/// Maximum bytes of standard error to include in the error message.
const TAIL: usize = 2048;

/// Runs the configured program for a backup, if any. Dropping the future kills the program.
pub(crate) async fn run(services: &Services, config: &config::Backup, backup: &Path) {
    let Some((program, arguments)) = config.after.split_first() else { return };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for name in PASSED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env(FILE, backup).current_dir("/").process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let limit = config.after_timeout;
    let ended = match command.spawn() {
        Err(error) => Err(format!("it cannot be started: {error}")),
        Ok(child) => match tokio::time::timeout(limit, ended(child)).await {
            Ok(ended) => ended,
            Err(_elapsed) => {
                Err(format!("it was killed after {} s (backup.after_timeout)", limit.as_secs()))
            }
        },
    };
    let noted = match &ended {
        Ok(()) => {
            tracing::info!(path = %backup.display(), program, "backup.after succeeded");
            remove(&services.store.folder().join(FAILED))
        }
        Err(reason) => {
            metrics::counter!("orrery_backup_after_failures_total").increment(1);
            tracing::error!(path = %backup.display(), program, reason, "backup.after failed");
            let note = format!("{program} failed for {}: {reason}", backup.display());
            fs::write(services.store.folder().join(FAILED), note)
        }
    };
    if let Err(error) = noted {
        tracing::warn!(%error, "failed to record how backup.after ended");
    }
}

fn remove(note: &Path) -> io::Result<()> {
    match fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) | Ok(()) => Ok(()),
    }
}

/// Kills a program and its process group on drop, unless the program has exited.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ended_by_itself = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Waits for the program to exit. The error describes its failure.
async fn ended(mut child: Child) -> Result<(), String> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group(pid);
    let errors = child.stderr.take();
    let (status, tail) = tokio::join!(child.wait(), async {
        match errors {
            Some(errors) => tail(errors).await,
            None => String::new(),
        }
    });
    let status = status.map_err(|error| error.to_string())?;
    group.0 = None;
    if status.success() {
        return Ok(());
    }
    let said = tail.trim();
    Err(if said.is_empty() { status.to_string() } else { format!("{status}: {said}") })
}

/// Returns the last bytes of a stream.
async fn tail(mut from: impl AsyncRead + Unpin) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let over = kept.len().saturating_sub(TAIL);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
