//! Scheduled backups: the program that copies backups to another location, and a test restore.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::eventually;
use crate::support::service::Setup;

fn settings(folder: &Path, after: &str) -> String {
    let to = folder.join("backups");
    format!("[backup]\nevery = '24h'\nfolder = {to:?}\nafter_timeout = '1m'\nafter = {after}\n")
}

fn backup_of(folder: &Path) -> Option<PathBuf> {
    let found = std::fs::read_dir(folder.join("backups")).ok()?.flatten();
    let mut found = found.map(|entry| entry.path());
    found.find(|path| path.extension().is_some_and(|extension| extension == "backup"))
}

fn finding(setup: &Setup, subject: &str) -> Option<Value> {
    let (_, found, _) = setup.try_run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&found).unwrap();
    report["findings"].as_array().unwrap().iter().find(|one| one["subject"] == subject).cloned()
}

#[test]
fn backup_after_gets_path_and_clean_environment() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let script = format!(
        "env > {0}.part && cp $ORRERY_BACKUP_FILE {0}.copy && mv {0}.part {0}",
        said.display()
    );
    let after = format!("['sh', '-c', {script:?}]");
    let setup =
        Setup::new(folder.path(), &folder.path().join("data"), &settings(folder.path(), &after));
    let _service = setup.start();
    let environment = eventually("the program has run", || std::fs::read_to_string(&said).ok());
    let backup = backup_of(folder.path()).unwrap();
    assert!(
        environment.contains(&format!("ORRERY_BACKUP_FILE={}", backup.display())),
        "{environment}"
    );
    assert!(!environment.contains("ORRERY_TEST_CLOCK"), "{environment}");
    let copy = std::fs::read(folder.path().join("said.copy")).unwrap();
    assert_eq!(copy, std::fs::read(&backup).unwrap());
    assert_eq!(setup.metric("orrery_backup_after_failures_total"), Some(0.0));
    assert_eq!(finding(&setup, "backup.after"), None);
}

#[test]
fn failed_backup_after_is_counted_and_reported_by_doctor() {
    let folder = tempfile::tempdir().unwrap();
    let after = "['sh', '-c', 'echo no way to the other box >&2; exit 3']";
    let setup =
        Setup::new(folder.path(), &folder.path().join("data"), &settings(folder.path(), after));
    let service = setup.start();
    eventually("the failure is counted", || {
        (setup.metric("orrery_backup_after_failures_total") == Some(1.0)).then_some(())
    });
    let found = eventually("the failure is noted", || finding(&setup, "backup.after"));
    assert_eq!(found["verdict"], "fault");
    assert!(found["mend"].as_str().unwrap().contains("no way to the other box"), "{found}");
    assert!(backup_of(folder.path()).is_some(), "the backup itself stays");
    // Doctor reports the finding even while the service is stopped.
    service.kill();
    assert!(finding(&setup, "backup.after").is_some());
    // The finding disappears once the next backup is shipped.
    std::fs::remove_file(backup_of(folder.path()).unwrap()).unwrap();
    let text = std::fs::read_to_string(setup.config()).unwrap();
    std::fs::write(setup.config(), text.replace("exit 3", "exit 0")).unwrap();
    let _again = setup.start();
    eventually("the note is removed", || finding(&setup, "backup.after").is_none().then_some(()));
}

#[test]
fn backup_after_needs_a_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let setup =
        Setup::new(folder.path(), &folder.path().join("data"), "[backup]\nafter = ['true']\n");
    let (_, found, _) = setup.try_run(&["check"]);
    assert!(found.contains("set `backup.every` too"), "{found}");
}

#[test]
fn verify_restore_rehearses_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let setup = Setup::new(folder.path(), &place.join("data"), "");
    let _service = setup.start();
    let key = setup.create_key();
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "What a night!"}}"#;
    let run = setup.client(&key).post("/v1/prediction/run", &[], body).unwrap();
    assert_eq!(run.status(), 200, "{}", run.text());
    let backup = folder.path().join("one.backup");
    let backup = backup.to_str().unwrap();
    setup.run(&["backup", backup]);
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
    let before = entries(&place);
    // Verify the backup while the service is running.
    let report: Value =
        serde_json::from_str(&setup.run(&["verify", backup, "--restore", "--json"])).unwrap();
    assert!(
        report["rows"].as_u64().unwrap() > 5 && report["faults"] == Value::Array(Vec::new()),
        "{report}"
    );
    assert_eq!(entries(&place), before);
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let work = elsewhere.to_str().unwrap();
    setup.run(&["verify", backup, "--restore", "--work-dir", work]);
    // A truncated backup is rejected, and again no files remain.
    let bytes = std::fs::read(backup).unwrap();
    std::fs::write(backup, &bytes[..bytes.len() / 2]).unwrap();
    let said = setup.fail(&["verify", backup, "--restore", "--work-dir", work]);
    assert!(said.contains("incomplete or damaged"), "{said}");
    assert_eq!(entries(&elsewhere), 0);
}
