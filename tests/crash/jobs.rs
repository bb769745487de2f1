//! Workers run jobs while the test kills the service and the workers: each prediction ends and is
//! charged exactly once, with the right output.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use orrery_runtime::monotonic_now;
use serde_json::json;

use crate::support::random::Random;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};

const WORKERS: usize = 3;
/// The model's program, which writes `<n> squared is <n * n>` after a moment.
const PROGRAM: &str = r#"while read -r line; do
id=${line#*\"id\":\"}; id=${id%%\"*}
n=${line#*\"n\":}; n=${n%%[!0-9]*}
sleep 0.3
echo "{\"id\":\"$id\",\"output\":\"$n squared is $((n * n))\"}"
done
"#;

/// The machine of a worker: a folder with its key, manifest and program, and the URL of the
/// service.
struct Machine {
    folder: PathBuf,
    url: String,
}

impl Machine {
    fn new(folder: &Path, setup: &Setup) -> Self {
        let made = ["key", "create", "--name", "worker", "--scope", "worker"];
        let key = setup.run(&made);
        let folder = folder.join("worker");
        fs::create_dir(&folder).unwrap();
        let manifest = "slug = 'far'\noutput_type = 'string'\nconcurrency = 4\n[runner]\n\
                        type = 'command'\ncommand = ['/bin/sh', 'square.sh']\n";
        fs::write(folder.join("far.toml"), manifest).unwrap();
        fs::write(folder.join("square.sh"), PROGRAM).unwrap();
        fs::write(folder.join("key"), key).unwrap();
        fs::set_permissions(folder.join("key"), fs::Permissions::from_mode(0o600)).unwrap();
        Self { folder, url: format!("http://{}", setup.base()) }
    }

    fn worker(&self) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orrery"));
        command.args(["worker", "--server", &self.url, "--key-file", "key"]);
        command.args(["--manifest", "far.toml"]).current_dir(&self.folder);
        Worker(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

/// A worker's process, which is killed when this value is dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// `ORRERY_CRASH_JOBS=1000 ORRERY_CRASH_JOBS_PAUSE=5` makes the test longer.
#[test]
fn jobs_end_once_while_service_and_workers_are_killed() {
    let count = count_from("ORRERY_CRASH_JOBS", 240);
    let pause = Duration::from_secs(count_from("ORRERY_CRASH_JOBS_PAUSE", 1).into());
    let mut random = Random::seeded();
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    setup.add_model(
        "far",
        "slug = 'far'\noutput_type = 'string'\n[cost]\ntype = 'fixed'\namount = 0.01\n\
         [runner]\ntype = 'pull'\nlease = '2s'\n",
    );
    let mut service = setup.start();
    let key = setup.create_key();
    let machine = Machine::new(folder.path(), &setup);
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| machine.worker()).collect();
    let mut client = setup.client(&key);
    let ids: Vec<String> = (0..count)
        .map(|n| {
            let body = json!({"model": "far", "version": "1", "input": {"n": n}}).to_string();
            let made = client.post("/v1/prediction", &[], &body).unwrap().json();
            made["predictionID"].as_str().unwrap().to_owned()
        })
        .collect();
    let started = monotonic_now();
    let (mut of_service, mut of_workers) = (0, 0);
    while setup.unfinished() != Some(0.0) {
        sleep(pause);
        if random.once_in(3) {
            service.kill();
            service = setup.start();
            of_service += 1;
        } else {
            let place = usize::try_from(random.within(0..WORKERS as u64)).unwrap();
            workers[place] = machine.worker();
            of_workers += 1;
        }
    }
    println!(
        "{count} jobs in {:?}, {of_service} kills of the service, {of_workers} of workers",
        started.elapsed()
    );
    let mut client = setup.client(&key);
    for (n, id) in ids.iter().enumerate() {
        let record = eventually("the end of a prediction", || {
            let record = client.get(&format!("/v1/prediction/{id}")).ok()?.json();
            record["completed_at"].is_string().then_some(record)
        });
        assert_eq!(record["status"], "success", "{record}");
        assert_eq!(record["output"], format!("{n} squared is {}", n * n), "{record}");
        assert_eq!(record["metrics"]["cost"], 0.01, "{record}");
    }
    let ledger = setup.run(&["balance", "ledger", "--limit", "10000", "--json"]);
    let ledger: serde_json::Value = serde_json::from_str(&ledger).unwrap();
    assert_eq!(ledger["entries"].as_array().unwrap().len(), ids.len(), "one charge for each job");
}
