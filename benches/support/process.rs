//! Processes: this program again under another role, and what the kernel says of one's memory and
//! processor time.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Under which role this program was started again, if it was.
const ROLE: &str = "ORRERY_BENCH_ROLE";

/// The role of this process; `None` for the one that measures.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This program once more, as `role`; its standard output can be read.
pub fn again(role: &str) -> Command {
    program(&std::env::current_exe().unwrap(), role)
}

/// This program once more, as a `role` that prints the address where it listens; it ends with what this
/// gives.
pub fn listening(role: &str) -> (Killed, SocketAddr) {
    let mut child = again(role).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Killed(child), line.trim().parse().unwrap())
}

/// The same of another build of this program.
pub fn program(path: &Path, role: &str) -> Command {
    let mut command = Command::new(path);
    command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A child that is killed, as by `kill -9`, when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The child of a process whose command line has this word.
pub fn child_of(parent: u32, word: &str) -> u32 {
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

/// Memory of the process that is in use now, in bytes.
pub fn resident(pid: u32) -> f64 {
    status(pid, "VmRSS:") * 1024.0
}

/// The most memory that the process ever had in use, in bytes.
pub fn peak(pid: u32) -> f64 {
    status(pid, "VmHWM:") * 1024.0
}

/// Lets the process's [`peak`] begin again at what it has now.
pub fn forget_peak(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

fn status(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Processor time that the process has used so far, in seconds. The kernel counts it in
/// hundredths.
pub fn processor_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is the name in parentheses, which may hold spaces; fields 14 and 15 are the
    // times in user and kernel mode.
    let (_, rest) = text.rsplit_once(") ").unwrap();
    let ticks: f64 =
        rest.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

/// How often threads of the process that still run have waited for something.
pub fn switches(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end in between.
    let texts = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let of_one = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|line| line.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    texts.map(of_one).sum()
}
