//! Processes: restarts this program in another role, and reads a process's memory and CPU time.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The environment variable that contains the role of this program.
const ROLE: &str = "ORRERY_BENCH_ROLE";

/// Returns the role of this process; `None` for the process that measures.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns a command that runs this program in the role `role`, with piped standard output.
pub(crate) fn again(role: &str) -> Command {
    program(&std::env::current_exe().unwrap(), role)
}

/// Starts this program in a `role` that prints its listening address; the process ends when the
/// returned value is dropped.
pub(crate) fn listening(role: &str) -> (Killed, SocketAddr) {
    let mut child = again(role).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line.trim().parse().unwrap())
}

/// Like [`again`], for another build of this program.
pub(crate) fn program(path: &Path, role: &str) -> Command {
    let mut command = Command::new(path);
    command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A child that is killed (SIGKILL) when dropped.
pub(crate) struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The child may have exited by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the child of a process whose command line contains this word.
pub(crate) fn child_of(parent: u32, word: &str) -> u32 {
    let parent = format!("PPid:\t{parent}\n");
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        status.contains(&parent) && String::from_utf8_lossy(&line).contains(word)
    })
    .unwrap()
}

/// Returns the resident memory of the process in bytes.
pub(crate) fn resident(pid: u32) -> f64 {
    status(pid, "VmRSS:") * 1024.0
}

/// Returns the peak resident memory of the process in bytes.
pub(crate) fn peak(pid: u32) -> f64 {
    status(pid, "VmHWM:") * 1024.0
}

/// Resets the process's [`peak`] to its current memory usage.
pub(crate) fn forget_peak(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

fn status(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Returns the CPU time of the process so far, in seconds, with a resolution of 10 ms.
pub(crate) fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is the name in parentheses, which may contain spaces; fields 14 and 15 are
    // user and kernel time.
    let (_, rest) = text.rsplit_once(") ").unwrap();
    let ticks: f64 =
        rest.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// Returns the voluntary context switches of the process's live threads.
pub(crate) fn switches(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may exit in the meantime.
    let texts = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let of_one = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|line| line.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    texts.map(of_one).sum()
}
