//! Checks of the machine: sandbox features, control groups, memory, processor and time
//! synchronization.

use std::fs;
use std::path::Path;

use orrery_api::Finding;
use orrery_guard::fence;
use orrery_guard::groups;
use orrery_runners::llm::worker;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * 1024;
/// Available memory, in bytes, below which a service with workers may run out of memory.
const MEMORY_MIN: u64 = 256 * MIB;
/// Maximum number of entries that are searched for GPUs.
const GPUS_MAX: usize = 256;
/// Minimum memory of a dedicated AMD GPU, in bytes; a GPU with less is part of the processor.
const GPU_MEMORY_MIN: u64 = 3 * 1024 * MIB;
/// Files that identify time services: each service creates its file after it has set the clock, or
/// while it runs.
const TIME_SERVICES: [(&str, &str); 4] = [
    ("/run/systemd/timesync/synchronized", "systemd-timesyncd"),
    ("/run/chrony", "chrony"),
    ("/run/ntpd.pid", "ntpd"),
    ("/run/openntpd", "openntpd"),
];

pub(super) fn findings() -> Vec<Finding> {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let own = groups::own_folder();
    vec![control_groups(own.as_deref()), free_memory(&memory, own.as_deref()), time_service("/")]
}

/// Reports the sandbox features that the kernel supports.
pub(super) fn sandbox() -> Finding {
    let concerns: Vec<&str> = fence::concerns().collect();
    if concerns.is_empty() {
        return Finding::good("sandbox", "the kernel confines models' programs to their folders");
    }
    Finding::warning("sandbox", concerns.join("; "))
}

/// Reports whether this build and this processor support models that use the `llm` runner.
pub(super) fn language_models() -> Finding {
    match worker::unsupported() {
        Some(concern) => Finding::warning("llm", concern),
        None => Finding::good("llm", "this processor runs language models"),
    }
}

/// Reports the machine's GPUs, because language models from files run on the CPU only.
pub(super) fn graphics() -> Option<Finding> {
    let names = gpus(Path::new("/"));
    if names.is_empty() {
        return None;
    }
    let names = names.join(", ");
    let detail = format!("this machine has a GPU that this build cannot use: {names}");
    let mend = "let Orrery start a server that uses the GPU: orrery model add llama-server";
    Some(Finding::good("gpu", detail).mended_by(mend))
}

/// Returns the names of the dedicated GPUs, which have their own memory.
fn gpus(root: &Path) -> Vec<String> {
    let folders = |path: &str| {
        let entries = fs::read_dir(root.join(path)).into_iter().flatten().take(GPUS_MAX);
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    let nvidia = folders("proc/driver/nvidia/gpus").map(|folder| {
        let text = fs::read_to_string(folder.join("information")).unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
        model.map_or("NVIDIA", str::trim).to_owned()
    });
    let amd = folders("sys/class/drm").filter_map(|card| {
        let read = |name: &str| fs::read_to_string(card.join("device").join(name)).ok();
        let memory: u64 = read("mem_info_vram_total")?.trim().parse().ok()?;
        let name = read("product_name").map(|name| name.trim().to_owned());
        let is_own = card.file_name()?.to_str()?.starts_with("card") && memory >= GPU_MEMORY_MIN;
        is_own.then(|| name.filter(|name| !name.is_empty()).unwrap_or_else(|| "AMD".to_owned()))
    });
    let mut found: Vec<String> = nvidia.chain(amd).collect();
    found.sort();
    found
}

/// Reports whether models' programs can have their own control groups.
fn control_groups(own: Option<&Path>) -> Finding {
    match own {
        None => Finding::warning(
            "cgroups",
            "version 2 is not mounted: a model's processes are not limited together",
        )
        .mended_by("boot with systemd.unified_cgroup_hierarchy=1"),
        Some(own) => {
            let controllers =
                fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
            Finding::good("cgroups", format!("version 2, controllers: {}", controllers.trim()))
        }
    }
}

/// Reports the available memory of the machine and of the service's control group.
fn free_memory(text: &str, group: Option<&Path>) -> Finding {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    let total = field("MemTotal").unwrap_or_default().saturating_mul(KIB);
    let mut free = field("MemAvailable").unwrap_or_default().saturating_mul(KIB);
    let read = |name: &str| fs::read_to_string(group?.join(name)).ok()?.trim().parse::<u64>().ok();
    if let (Some(most), Some(taken)) = (read("memory.max"), read("memory.current")) {
        free = free.min(most.saturating_sub(taken));
    }
    let detail = format!("{} of {} MiB are available", free / MIB, total / MIB);
    if free < MEMORY_MIN {
        return Finding::warning("memory", detail)
            .mended_by("lower limits.model_memory_bytes, or the concurrency of models");
    }
    Finding::good("memory", detail)
}

/// Finds the service that sets the machine's clock, by its files.
fn time_service(root: &str) -> Finding {
    let found = TIME_SERVICES
        .iter()
        .find(|(path, _)| Path::new(root).join(path.trim_start_matches('/')).exists());
    match found {
        Some((_, name)) => Finding::good("time", format!("{name} sets the machine's clock")),
        None => Finding::good("time", "no time service detected: check with `timedatectl`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_machine_and_group_has_verdict() {
        let text = "MemTotal:        2048000 kB\nMemAvailable:    1024000 kB\n";
        assert_eq!(free_memory(text, None).detail, "1000 of 2000 MiB are available");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "104857600\n").unwrap();
        fs::write(folder.path().join("memory.current"), "52428800\n").unwrap();
        let found = free_memory(text, Some(folder.path()));
        assert!(found.concern && found.detail.starts_with("50 of "), "{found:?}");
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert!(!free_memory(text, Some(folder.path())).concern);
    }

    #[test]
    fn gpus_with_memory_of_their_own_are_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(gpus(root.path()).is_empty());
        write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA L4\nIRQ: 1\n");
        write("sys/class/drm/card0/device/mem_info_vram_total", "17163091968\n");
        write("sys/class/drm/card0/device/product_name", "Radeon RX 7800\n");
        write("sys/class/drm/renderD128/device/mem_info_vram_total", "17163091968\n");
        write("sys/class/drm/card1/device/mem_info_vram_total", "536870912\n");
        assert_eq!(gpus(root.path()), ["NVIDIA L4", "Radeon RX 7800"]);
    }

    #[test]
    fn control_groups_and_time_service_are_reported() {
        assert!(control_groups(None).mend.is_some());
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        assert!(time_service(root).detail.starts_with("no time service"));
        fs::create_dir_all(folder.path().join("run/chrony")).unwrap();
        assert_eq!(time_service(root).detail, "chrony sets the machine's clock");
    }
}
