//! Metrics of the process itself, under the names of Prometheus' client libraries, and build
//! information. The values are read from `/proc` on request; values that the kernel does not
//! provide are omitted.

use std::fmt::Write as _;
use std::fs;

use rustix::param::clock_ticks_per_second;

use super::exposition;

/// Fields of `/proc/self/stat` after the name, from 0: user and system time, threads, start,
/// virtual memory.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const THREADS: usize = 17;
const START: usize = 19;
const VIRTUAL_BYTES: usize = 20;

/// Current resource usage of the process; 0 for unknown values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    pub resident_bytes: u64,
    pub open_files: u64,
    pub open_files_max: u64,
    pub threads: u64,
    /// CPU time in seconds.
    pub cpu: f64,
}

/// Returns the current values.
#[must_use]
pub fn figures() -> Figures {
    let mut figures = Figures::default();
    for sample in exposition::samples(&render()) {
        match sample.name {
            "process_resident_memory_bytes" => figures.resident_bytes = sample.count(),
            "process_open_fds" => figures.open_files = sample.count(),
            "process_max_fds" => figures.open_files_max = sample.count(),
            "process_threads" => figures.threads = sample.count(),
            "process_cpu_seconds_total" => figures.cpu = sample.value,
            _ => {}
        }
    }
    figures
}

/// Renders the metrics in Prometheus' text format.
#[must_use]
pub fn render() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let open = fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    let ticks = clock_ticks_per_second() as f64;
    let mut text =
        of(&read("/proc/self/stat"), &read("/proc/stat"), &read("/proc/self/limits"), ticks);
    let resident = orrery_runtime::memory::resident();
    put(&mut text, "process_resident_memory_bytes", "gauge", "Resident memory", resident as f64);
    if let Some(open) = open {
        // Listing the directory opens one more descriptor.
        let open = open.saturating_sub(1) as f64;
        put(&mut text, "process_open_fds", "gauge", "Open file descriptors", open);
    }
    let version = env!("CARGO_PKG_VERSION");
    let abi = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let llama = cfg!(feature = "llama");
    let labels =
        format!("version=\"{version}\",target=\"{arch}-unknown-{os}-{abi}\",llama=\"{llama}\"");
    let name = "orrery_build_info";
    let _infallible = writeln!(
        text,
        "# HELP {name} Build information\n# TYPE {name} gauge\n{name}{{{labels}}} 1\n"
    );
    text
}

/// Renders the metrics from the contents of `/proc/self/stat`, `/proc/stat` and
/// `/proc/self/limits`.
fn of(stat: &str, machine: &str, limits: &str, ticks: f64) -> String {
    let mut text = String::new();
    let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
    let fields: Vec<f64> =
        behind.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
    let field = |index: usize| fields.get(index).copied();
    if let (Some(user), Some(system)) = (field(USER_TIME), field(SYSTEM_TIME)) {
        let name = "process_cpu_seconds_total";
        put(&mut text, name, "counter", "User and system time", (user + system) / ticks);
    }
    let booted =
        machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    if let (Some(start), Some(booted)) = (field(START), booted) {
        let name = "process_start_time_seconds";
        put(&mut text, name, "gauge", "Start of the process, in Unix time", booted + start / ticks);
    }
    if let Some(bytes) = field(VIRTUAL_BYTES) {
        put(&mut text, "process_virtual_memory_bytes", "gauge", "Virtual memory", bytes);
    }
    if let Some(threads) = field(THREADS) {
        put(&mut text, "process_threads", "gauge", "Threads of the process", threads);
    }
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let limit = limit.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    if let Some(limit) = limit {
        put(
            &mut text,
            "process_max_fds",
            "gauge",
            "The maximum number of open file descriptors",
            limit,
        );
    }
    text
}

fn put(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    let _infallible =
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_are_parsed_from_proc_files() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 12 0 1000 4096 9 18446744073709551615";
        let limits = "Limit  Soft  Hard  Units\nMax open files            1024                 4096                 files\n";
        let text = of(stat, "cpu 1\nbtime 1000000\n", limits, 100.0);
        for line in [
            "process_cpu_seconds_total 3",
            "process_start_time_seconds 1000010",
            "process_virtual_memory_bytes 4096",
            "process_threads 12",
            "process_max_fds 1024",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
        }
        assert_eq!(of("", "", "", 100.0), "");
    }

    #[test]
    fn process_metrics_exist_for_this_process() {
        let text = render();
        for name in
            ["process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"]
        {
            assert!(text.contains(&format!("\n{name} ")), "{name} is not in {text}");
        }
        assert!(text.contains("orrery_build_info{version=\""), "{text}");
        let figures = figures();
        assert!(figures.resident_bytes > 0 && figures.open_files > 0 && figures.threads > 0);
        assert!(figures.open_files_max >= figures.open_files, "{figures:?}");
    }
}
