//! `orrery doctor` with a running service, a stopped one, and a store that cannot be opened.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::support::eventually;
use crate::support::http::Client;
use crate::support::service::Setup;

/// Configures scheduled backups, so that doctor reports no backup findings for a healthy service.
fn backups(folder: &Path) -> String {
    let secret = folder.join("passphrase");
    std::fs::write(&secret, "correct horse battery staple").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let to = folder.join("backups");
    format!("[backup]\nevery = '24h'\nfolder = {to:?}\npassphrase_file = {secret:?}\n")
}

/// Returns whether doctor found no problem, and its findings.
fn doctor(setup: &Setup) -> (bool, Vec<Value>) {
    let (is_good, found, said) = setup.try_run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&found).unwrap_or_else(|_| panic!("{found}{said}"));
    assert_eq!(report["good"], is_good, "{found}");
    (is_good, report["findings"].as_array().unwrap().clone())
}

fn of<'f>(found: &'f [Value], subject: &str) -> &'f Value {
    let one = found.iter().find(|one| one["subject"] == subject);
    one.unwrap_or_else(|| panic!("nothing about {subject}: {found:?}"))
}

#[test]
fn doctor_reports_the_same_for_running_and_stopped_service() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &backups(folder.path()));
    let service = setup.start();
    let key = setup.create_key();
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "What a night!"}}"#;
    let run = setup.client(&key).post("/v1/prediction/run", &[], body).unwrap();
    assert_eq!(run.status(), 200, "{}", run.text());
    let backup = folder.path().join("backups/orrery-2026-11-20T09-30-00.123Z.backup");
    setup.run(&["backup", backup.to_str().unwrap()]);
    let (_, running) = doctor(&setup);
    for subject in [
        "disk",
        "fsync",
        "memory",
        "clock",
        "time",
        "secrets",
        "tls",
        "backups",
        "backup",
        "last backup",
        "store",
        "work",
        "webhooks",
        "catalog",
        "models",
        "egress",
        "dns",
        "sandbox",
        "cgroups",
        "llm",
        "data",
        "base",
        "metrics",
    ] {
        assert!(of(&running, subject)["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
    for subject in ["store", "work", "secrets", "backups", "last backup", "clock", "base"] {
        assert_eq!(of(&running, subject)["verdict"], "good", "{}", of(&running, subject));
    }
    assert!(of(&running, "last backup")["detail"].as_str().unwrap().contains("was verified"));
    for concern in running.iter().filter(|one| one["concern"] == true) {
        let has_way_out = concern["mend"].is_string() || concern["subject"] == "sandbox";
        assert!(has_way_out || concern["subject"] == "llm", "{concern}");
    }
    service.kill();
    let (_, stopped) = doctor(&setup);
    let subjects = |found: &[Value]| {
        let mut all: Vec<String> =
            found.iter().map(|one| one["subject"].as_str().unwrap().to_owned()).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(subjects(&running), subjects(&stopped));
}

#[test]
fn doctor_reports_damage_and_suggests_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let setup = Setup::new(folder.path(), &data, &backups(folder.path()));
    // Before the first start there is no store to open.
    let (is_good, found) = doctor(&setup);
    assert!(!is_good);
    assert_eq!(of(&found, "service")["mend"], "orrery serve");
    assert!(!data.exists(), "the doctor made a folder");
    setup.add_model("broken", "slug = 'broken'\n");
    let service = setup.start();
    let seal = data.join("seal.key");
    std::fs::set_permissions(&seal, std::fs::Permissions::from_mode(0o644)).unwrap();
    let backup = folder.path().join("backups/orrery-9999-01-01T00-00-00.000Z.backup");
    std::fs::create_dir_all(backup.parent().unwrap()).unwrap();
    std::fs::write(&backup, "cut").unwrap();
    let (is_good, found) = doctor(&setup);
    assert!(!is_good);
    assert_eq!(of(&found, "secrets")["mend"], format!("chmod 600 {}", seal.display()));
    let last = of(&found, "last backup");
    assert_eq!(last["verdict"], "fault");
    assert!(last["mend"].as_str().unwrap().contains("orrery verify"), "{last}");
    let broken = found.iter().find(|one| one["subject"] == "model").unwrap();
    assert_eq!(broken["verdict"], "fault");
    // Findings are sorted by severity, worst first.
    let verdicts: Vec<&str> = found.iter().map(|one| one["verdict"].as_str().unwrap()).collect();
    let mut sorted = verdicts.clone();
    sorted
        .sort_by_key(|verdict| ["fault", "warning", "good"].iter().position(|one| one == verdict));
    assert_eq!(verdicts, sorted);
    drop(service);
}

#[test]
fn damaged_seal_key_is_reported_by_start_doctor_and_verify() {
    const WRONG: &str = "seal.key is not the key of this store";
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &backups(folder.path()));
    let flip = || {
        let path = setup.data().join("seal.key");
        let mut key = std::fs::read(&path).unwrap();
        key[5] ^= 1;
        std::fs::write(&path, key).unwrap();
    };
    let service = setup.start();
    assert_eq!(of(&doctor(&setup).1, "seal")["verdict"], "good");
    service.kill();
    flip();
    let (is_good, report, _) = setup.try_run(&["verify", "--json"]);
    assert!(!is_good && report.contains(WRONG), "{report}");
    let (_, stopped) = doctor(&setup);
    assert_eq!(of(&stopped, "seal")["verdict"], "fault", "{stopped:?}");
    let service = setup.start();
    assert!(setup.log_tail().contains(WRONG), "{}", setup.log_tail());
    let (_, running) = doctor(&setup);
    assert!(of(&running, "seal")["detail"].as_str().unwrap().contains(WRONG), "{running:?}");
    service.kill();
    flip();
    let (is_good, report, _) = setup.try_run(&["verify", "--json"]);
    assert!(is_good && !report.contains(WRONG), "{report}");
}

#[test]
fn doctor_counts_failing_models() {
    const ENDS: &str = "output_type = 'string'\n[runner]\ntype = 'command'\ncommand = ['false']\n";
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &backups(folder.path()));
    let _service = setup.start();
    let found = || of(&doctor(&setup).1, "catalog").clone();
    let good = found();
    let count = good["detail"].as_str().unwrap().strip_suffix(" models, none is failing");
    let count: usize = count.unwrap().parse().unwrap();
    assert_eq!(good["verdict"], "good");
    for (failing, verb, named) in [(1, "is", "ends-1"), (2, "are", "ends-1, ends-2")] {
        let slug = format!("ends-{failing}");
        setup.add_model(&slug, &format!("slug = '{slug}'\n{ENDS}"));
        setup.run(&["reload"]);
        let models = count + failing;
        let expect = format!("{failing} of {models} models {verb} failing: {named}");
        eventually(&expect, || {
            let found = found();
            (found["detail"] == expect && found["verdict"] == "warning").then_some(())
        });
    }
}

#[test]
fn doctor_reports_stuck_work() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &backups(folder.path()));
    setup.add_model(
        "slow",
        "slug = 'slow'\noutput_type = 'string'\ntimeout = '24h'\n\
         [runner]\ntype = 'command'\ncommand = ['sleep', '3600']\n",
    );
    let _service = setup.start();
    let key = setup.create_key();
    let body = r#"{"model": "slow", "version": "1", "input": {}}"#;
    let made = setup.client(&key).post("/v1/prediction", &[], body).unwrap();
    assert_eq!(made.status(), 200, "{}", made.text());
    assert_eq!(of(&doctor(&setup).1, "work")["verdict"], "good");
    setup.shift_clock(2 * 3600);
    let (_, found) = doctor(&setup);
    let work = of(&found, "work");
    assert_eq!(work["verdict"], "warning", "{work}");
    assert!(work["detail"].as_str().unwrap().contains("2 hours"), "{work}");
    assert!(work["mend"].as_str().unwrap().starts_with("orrery execution show "), "{work}");
    // Members of an organization must not read the report, so only the control socket serves it.
    let outside = Client::new(setup.base(), &key).get("/admin/doctor").unwrap();
    assert_eq!(outside.status(), 404);
}

#[test]
fn doctor_describes_running_service_rather_than_caller() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("orrery-data"), "");
    let _service = setup.start();
    let report = |command: &str| -> Value {
        let mut orrery = std::process::Command::new(env!("CARGO_BIN_EXE_orrery"));
        orrery.args([command, "--json"]).current_dir(folder.path()).env_remove("ORRERY_CONFIG");
        serde_json::from_slice(&orrery.output().unwrap().stdout).unwrap()
    };
    let file = setup.config().canonicalize().unwrap().to_str().unwrap().to_owned();
    let found = report("doctor")["findings"].as_array().unwrap().clone();
    assert_eq!(of(&found, "config")["detail"], file);
    let base = of(&found, "base")["detail"].as_str().unwrap();
    assert_eq!(base, format!("http://{} is served", setup.base()));
    assert!(of(&found, "metrics")["detail"].as_str().unwrap().contains(":9464"));
    let found = report("check")["findings"].as_array().unwrap().clone();
    let other = found.iter().find(|one| one["subject"] == "config" && one["concern"] == true);
    let other = other.unwrap_or_else(|| panic!("{found:?}"))["detail"].as_str().unwrap();
    assert!(other.contains(&format!("was started with {file}")), "{other}");
    let (_, found, _) = setup.try_run(&["check", "--json"]);
    assert!(!found.contains("was started with"), "{found}");
}

#[test]
fn doctor_reports_secret_in_file_readable_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let more = "[router]\nupstream_url = 'http://127.0.0.1:9/v1'\nupstream_key = 'sk-upstream'\n";
    let setup = Setup::new(folder.path(), &folder.path().join("data"), more);
    setup.add_model(
        "open",
        "slug = 'open'\noutput_type = 'string'\n[runner]\ntype = 'http'\nurl = 'http://h/'\nheaders.X-Api-Key = 'sk-model'\n",
    );
    let manifest = folder.path().join("models.d/open.toml");
    for path in [setup.config(), &manifest] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (_, found, _) = setup.try_run(&["check", "--json"]);
    for key in ["`router.upstream_key`", "`runner.headers.X-Api-Key`"] {
        assert!(found.contains(key), "{found}");
    }
    assert!(!found.contains("sk-"), "{found}");
    let service = setup.start();
    let warned = ["`router.upstream_key`", "X-Api-Key`"];
    let log = eventually("the service warns of both", || {
        let log = setup.log_since(0);
        warned.iter().all(|key| log.contains(key)).then_some(log)
    });
    assert!(!log.contains("sk-"), "{log}");
    drop(service);
    for path in [setup.config(), &manifest] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o640)).unwrap();
    }
    let (_, found, _) = setup.try_run(&["check", "--json"]);
    assert!(!found.contains("other users can read the secret"), "{found}");
}

#[test]
fn quiet_doctor_prints_problems_and_fails_only_for_errors() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let (is_good, printed, said) = setup.try_run(&["doctor", "--quiet"]);
    assert!(is_good, "warnings only: {printed}{said}");
    assert!(
        printed.contains("warning: backups: not scheduled: set `backup.every` (fix: "),
        "{printed}"
    );
    assert!(!printed.contains("rows checked"), "{printed}");
    setup.add_model("broken", "slug = 1\n");
    let (is_good, printed, _) = setup.try_run(&["doctor", "--quiet"]);
    assert!(!is_good && printed.starts_with("error: model"), "{printed}");
}
