//! Checks that the folders exist and are writable and private, and that the process may open enough
//! files for the configured connections.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::backups::after;
use orrery_api::{Finding, Verdict};
use orrery_config::Config;
use orrery_config::secret::changeable_by_others;
use orrery_domain::bytes::gigabytes;
use orrery_storage as storage;

/// Files that the service opens in addition to one per connection: the store, payloads, logs and
/// upstream connections.
const FILES_BESIDE_CONNECTIONS: u64 = 1024;
/// Free share of the disk, in percent, below which `orrery check` warns.
const LOW_PERCENT: u64 = 10;

pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![data(&config.data_dir)];
    if config.backup.every.is_some() {
        findings.push(writable("backups", &config.backup.folder).about("folder"));
    }
    findings.extend(changeable(config));
    findings.extend(disk(&config.data_dir, config.limits.disk_reserve));
    findings.extend(open_files(config.limits.connections));
    findings.extend(refused_sweeps(&config.data_dir));
    findings.extend(given_up_log(&config.data_dir));
    findings.extend(not_taken_away(&config.data_dir));
    findings
}

/// Returns a finding if other users can change the configuration or the models folder.
fn changeable(config: &Config) -> Option<Finding> {
    let paths = config.file.iter().chain([&config.models_dir]);
    let reason = paths.into_iter().find_map(|path| changeable_by_others(path))?;
    Some(Finding::warning("models", reason).about("permissions"))
}

/// Returns the free bytes on a folder's disk.
#[must_use]
pub fn free_bytes(folder: &Path) -> u64 {
    storage::DiskSpaceMonitor::with_reserve(folder.to_path_buf(), None).free()
}

/// Returns a finding about the free disk space, and about whether the service would refuse new
/// work.
fn disk(folder: &Path, reserve: Option<u64>) -> Option<Finding> {
    let there = folder.ancestors().find(|folder| folder.is_dir())?;
    let monitor = storage::DiskSpaceMonitor::with_reserve(there.to_path_buf(), reserve);
    let (free, reserve) = (monitor.free(), monitor.reserve());
    let mend = "run `orrery compact` to release unused space of the store, or shorten [retention]";
    if free < reserve {
        return Some(Finding::fault("disk", storage::shortage(free, reserve)).mended_by(mend));
    }
    let total = monitor.total();
    let percent = free.saturating_mul(100).checked_div(total).unwrap_or_default();
    let detail = format!(
        "{} of {} are free ({percent} %); below {} (limits.disk_reserve) new work is refused",
        gigabytes(free),
        gigabytes(total),
        gigabytes(reserve)
    );
    if percent < LOW_PERCENT {
        return Some(Finding::warning("disk", detail).mended_by(mend));
    }
    Some(Finding::good("disk", detail))
}

/// Returns the reason why there is no log archive chain, as recorded by the service.
fn given_up_log(folder: &Path) -> Option<Finding> {
    let reason = fs::read_to_string(folder.join("kept-log.given-up")).ok()?;
    let detail = format!(
        "the log is not archived: {reason}. Archiving resumes with the next full backup, which is tried \
         at least once an hour"
    );
    Some(Finding::new("log archive", Verdict::Fault, detail))
}

/// Returns the last failure of `backup.after` that the service recorded.
fn not_taken_away(folder: &Path) -> Option<Finding> {
    // The program's output may name other machines, so only the operator sees it.
    let reason = fs::read_to_string(folder.join(after::FAILED)).ok()?;
    let detail = "the program failed for the newest backup";
    let mend = format!("{reason}; run it by hand with ORRERY_BACKUP_FILE set");
    Some(Finding::fault("backup.after", detail).mended_by(mend))
}

/// Returns the sweeps that the last start refused, as recorded by the service.
fn refused_sweeps(folder: &Path) -> Vec<Finding> {
    let noted = fs::read_to_string(folder.join("sweep.refused")).unwrap_or_default();
    let what = |line: &str| line.chars().filter(|one| !one.is_ascii_digit()).collect::<String>();
    noted.lines().map(|line| Finding::fault("sweep", line).about(what(line))).collect()
}

fn data(folder: &Path) -> Finding {
    let found = writable("data", folder);
    let Ok(metadata) = fs::metadata(folder) else { return found };
    let mode = metadata.mode() & 0o777;
    if found.verdict == Verdict::Good && mode & 0o077 != 0 {
        let shown = folder.display();
        let detail = format!(
            "{shown} has mode {mode:04o}: other users can access it; the next start removes their \
             access"
        );
        return Finding::new("data", Verdict::Warning, detail);
    }
    found
}

/// Checks that a folder exists and is writable, or can be created.
fn writable(subject: &str, folder: &Path) -> Finding {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => {
            Finding::new(subject, Verdict::Fault, format!("{shown} is not a folder"))
        }
        Ok(_) => match try_a_file(folder) {
            Ok(()) => Finding::new(subject, Verdict::Good, shown.to_string()),
            Err(error) => Finding::new(
                subject,
                Verdict::Fault,
                format!("no file can be created in {shown}: {error}"),
            ),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = folder.ancestors().skip(1).find(|parent| parent.is_dir());
            let parent = parent.unwrap_or(Path::new("."));
            match try_a_file(parent) {
                Ok(()) => {
                    let detail = format!("{shown} will be created at the first start");
                    Finding::new(subject, Verdict::Good, detail)
                }
                Err(error) => {
                    let parent = parent.display();
                    let detail = format!("{shown} cannot be created in {parent}: {error}");
                    Finding::new(subject, Verdict::Fault, detail)
                }
            }
        }
        Err(error) => {
            Finding::new(subject, Verdict::Fault, format!("{shown} cannot be read: {error}"))
        }
    }
}

/// Creates a file in `folder` and deletes it immediately.
fn try_a_file(folder: &Path) -> std::io::Result<()> {
    let probe = folder.join(format!(".orrery-check-{}", std::process::id()));
    fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    fs::remove_file(&probe)
}

/// Warns if the limit on open files is too low for the configured connections.
fn open_files(connections: usize) -> Option<Finding> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let hard = hard_limit(&limits)?;
    let needed = u64::try_from(connections).ok()?.saturating_add(FILES_BESIDE_CONNECTIONS);
    (hard < needed).then(|| {
        let detail = format!(
            "{hard} open files are allowed, and {connections} connections may need {needed}: \
             raise LimitNOFILE, or lower limits.connections"
        );
        Finding::new("open files", Verdict::Warning, detail)
    })
}

/// Reads the hard limit on open files from the text of `/proc/self/limits`.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn check_data_folder_verdict_follows_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("data");
        assert_eq!(data(&inner).verdict, Verdict::Good);
        assert!(data(&inner).detail.contains("created at the first start"));
        assert!(!inner.exists(), "a check creates nothing");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(data(&inner).verdict, Verdict::Warning);
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(data(&inner).verdict, Verdict::Good);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 0, "the probe is deleted");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(data(&file).verdict, Verdict::Fault);
        assert_eq!(data(&file.join("below")).verdict, Verdict::Fault);
    }

    #[test]
    fn check_reports_disk_with_its_threshold() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("a/b");
        let full = disk(&missing, Some(u64::MAX)).unwrap();
        assert_eq!(full.verdict, Verdict::Fault);
        assert!(full.detail.contains("new work is refused until"), "{}", full.detail);
        let good = disk(&missing, Some(0)).unwrap();
        assert_ne!(good.verdict, Verdict::Fault);
        assert!(good.detail.contains("below 0.0 GB (limits.disk_reserve)"), "{}", good.detail);
        // All numbers in the sentence have the same unit.
        for (reserve, shown) in [(13_527_658_700, "13.5 GB"), (2_000_000_000, "2.0 GB")] {
            let found = disk(&missing, Some(reserve)).unwrap().detail;
            assert!(found.contains(shown) && !found.contains("iB"), "{found}");
        }
    }

    #[test]
    fn check_parses_hard_descriptor_limit() {
        let line = "Max processes  1 2 processes\nMax open files            1024                 524288               files\n";
        assert_eq!(hard_limit(line), Some(524_288));
        assert_eq!(hard_limit("Max open files  1024 unlimited files"), Some(u64::MAX));
        assert_eq!(hard_limit(""), None);
    }
}
