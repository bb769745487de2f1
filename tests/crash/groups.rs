//! Control groups: processes that escape from their guard still die with it. If no control group is
//! available, the test reports that it is skipped or, with `ORRERY_FENCE_REQUIRE=1`, fails.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;

use crate::support::service::Setup;
use crate::support::{eventually, signal};

/// A control group delegated to a service. Dropping it kills the processes in it.
struct Delegated(PathBuf);

impl Delegated {
    fn make() -> Option<Self> {
        let made = Self::try_make();
        if made.is_none() {
            let says = "no control group can be made: it needs root and cgroup version 2";
            assert!(std::env::var_os("ORRERY_FENCE_REQUIRE").is_none(), "{says}");
            eprintln!("SKIPPED, NOT TESTED: {says}");
        }
        made
    }

    fn try_make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let folder = Path::new(mount.split(' ').nth(4)?).join(own);
        let folder = folder.join(format!("orrery-test-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let made = Self(folder);
        made.0.join("cgroup.kill").exists().then_some(made)
    }

    fn groups(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }

    /// Returns the groups of the guards, with the processes in each.
    fn guarded(&self) -> Vec<Vec<u32>> {
        let groups = self.groups().into_iter().filter(|group| !group.ends_with("orrery-service"));
        let lists = groups.map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap());
        lists.map(|list| list.lines().map(|pid| pid.parse().unwrap()).collect()).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        drop(fs::write(self.0.join("cgroup.kill"), "1"));
        eventually("the end of the test's groups", || {
            self.groups().iter().for_each(|group| drop(fs::remove_dir(group)));
            fs::remove_dir(&self.0).ok()
        });
    }
}

/// Returns whether a process exists and is not a zombie.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
#[ignore = "needs python3: run tests/run"]
fn process_without_guard_is_killed_by_its_cgroup() {
    let Some(group) = Delegated::make() else { return };
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/odd.py");
    let manifest = format!(
        "slug = 'odd'\noutput_type = 'object'\nconcurrency = 1\n\
         [runner]\ntype = 'command'\ncommand = ['python3', {script:?}]\n"
    );
    setup.add_model("odd", &manifest);
    let mut service = setup.spawn_in(&group.0);
    service.wait_until_ready();
    let of_service = fs::read_to_string(group.0.join("orrery-service/cgroup.procs")).unwrap();
    // A guard that is starting is also in this group, until it moves to its own.
    assert!(of_service.lines().any(|pid| pid == service.pid().to_string()), "{of_service}");
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let body = json!({"model": "odd", "version": "1", "input": {"do": "hang"}}).to_string();
    let made = client.post("/v1/prediction", &[], &body).unwrap().json();
    let path = format!("/v1/prediction/{}", made["predictionID"].as_str().unwrap());
    // The program, its child, and a child in its own session.
    let pids: Vec<u32> = eventually("the program is at work", || {
        let seen = client.get(&path).unwrap().json();
        let logs = seen["logs"].as_str().unwrap_or_default().to_owned();
        let numbers = logs.split(|c: char| !c.is_ascii_digit());
        let pids: Vec<u32> = numbers.filter_map(|digits| digits.parse().ok()).collect();
        (logs.starts_with("pid ") && pids.len() == 3).then_some(pids)
    });
    let guarded = group.guarded();
    assert_eq!(guarded.len(), 1, "one worker: {guarded:?}");
    assert_eq!(guarded[0].len(), 4, "the guard and what it guards: {guarded:?}");
    let guard = guarded[0].iter().find(|pid| !pids.contains(pid)).unwrap();
    assert!(signal(*guard, Signal::KILL));
    eventually("all of them have ended", || pids.iter().all(|pid| !lives(*pid)).then_some(()));
}
