//! The machine under test: the hardware and system properties that influence its results.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::measures::bytes;

const KIB: u64 = 1024;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    /// Number of cores that this process may use.
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    /// The file system of the folder, such as `ext4 on /dev/vda1`.
    pub(super) disk: String,
    /// One-minute load average before the measurements.
    pub(super) load_before: f64,
}

impl Machine {
    /// Describes this machine and the disk of `folder`.
    pub(super) fn of(folder: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let system = rustix::system::uname();
        let load = read("/proc/loadavg");
        Self {
            cpu: cpu(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: format!(
                "{} {} {}",
                system.sysname().to_string_lossy(),
                system.release().to_string_lossy(),
                system.machine().to_string_lossy()
            ),
            disk: disk(&read("/proc/self/mountinfo"), folder),
            load_before: load.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(0.0),
        }
    }

    /// Describes the machine in one line.
    pub(super) fn line(&self) -> String {
        let Self { cpu, cores, memory_bytes, kernel, disk, .. } = self;
        format!("{cpu}, {cores} cores, {}, {kernel}, {disk}", bytes(*memory_bytes))
    }
}

fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches(['\t', ' ', ':']).trim())
}

fn cpu(info: &str) -> String {
    let name = ["model name", "Model", "Hardware"].iter().find_map(|name| field(info, name));
    name.filter(|name| !name.is_empty()).unwrap_or("unknown processor").to_owned()
}

fn memory(info: &str) -> u64 {
    let kib = field(info, "MemTotal").and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(KIB)
}

/// Returns the file system with the longest mount point that contains the folder.
fn disk(mounts: &str, folder: &Path) -> String {
    let mut found: Option<(&Path, String)> = None;
    for line in mounts.lines() {
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4).map(Path::new) else { continue };
        let mut words = system.split(' ');
        let (Some(kind), Some(source)) = (words.next(), words.next()) else { continue };
        let is_longer = found
            .as_ref()
            .is_none_or(|(best, _)| point.components().count() >= best.components().count());
        if folder.starts_with(point) && is_longer {
            found = Some((point, format!("{kind} on {source}")));
        }
    }
    found.map_or_else(|| "unknown file system".to_owned(), |(_, disk)| disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_parsed_from_proc_files() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"), "A CPU @ 2 GHz");
        assert_eq!(cpu(""), "unknown processor");
        assert_eq!(memory("MemTotal:        2048 kB\n"), 2 << 20);
        let mounts = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:26 / /data/fast rw shared:1 - xfs /dev/nvme0n1 rw\n\
                      31 22 0:27 / /dat rw - tmpfs none rw\nbroken\n";
        assert_eq!(disk(mounts, Path::new("/data/fast/x")), "xfs on /dev/nvme0n1");
        assert_eq!(disk(mounts, Path::new("/data/slow")), "ext4 on /dev/vda");
        assert_eq!(disk("", Path::new("/data")), "unknown file system");
        let own = Machine::of(Path::new("/"));
        assert!(own.cores > 0 && own.memory_bytes > 0 && own.kernel.starts_with("Linux "));
        assert!(own.line().contains(&own.cpu));
    }
}
