//! Scheduled backups: the first backup starts immediately and is complete, and only the configured
//! number is retained.

use std::fs::{self, File};
use std::path::PathBuf;

use orrery_backup as backup;
use serde_json::json;

use crate::support::{Service, until};

fn backups(service: &Service) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(&service.config.backup.folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn backup_schedule_writes_first_at_once_and_prunes_old_ones() {
    let service = Service::configured("[backup]\nevery = '1h'\nkeep = 2\n").await;
    let id = service.create("text-template", json!({"template": "hi", "values": {}})).await;
    service.ended(&id).await;
    until("first backup", async || {
        let found = backups(&service);
        (found.len() == 1 && found[0].extension().is_some_and(|it| it == "backup")).then_some(())
    })
    .await;
    let first = backups(&service).remove(0);
    let summary = backup::verify(File::open(&first).unwrap(), &mut |_| {}).unwrap();
    assert!(summary.rows > 0);
    // Add backups of earlier days; the next backup must prune the oldest of them.
    for day in ["2020-01-01", "2020-01-02"] {
        fs::write(first.with_file_name(format!("orrery-{day}T00-00-00.000Z.backup")), "x").unwrap();
    }
    fs::write(first.with_file_name("notes.txt"), "of somebody else").unwrap();
    fs::remove_file(&first).unwrap();
    let service = service.restart().await;
    // The age of a backup is determined by the age of its file, so no backup is due.
    assert_eq!(backups(&service).len(), 3);
    let old = std::time::SystemTime::UNIX_EPOCH;
    for path in backups(&service) {
        File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    let service = service.restart().await;
    until("next backup", async || {
        let names: Vec<_> = backups(&service)
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let is_right = names.len() == 3
            && names[0] == "notes.txt"
            && names[1].starts_with("orrery-2020-01-02")
            && names[2].ends_with(".backup");
        is_right.then_some(())
    })
    .await;
}

/// Runs a command; returns its output on both streams, and whether it succeeded.
fn run(service: &Service, arguments: &[&str]) -> (bool, String) {
    let ran = std::process::Command::new(&service.config.program)
        .arg("--config")
        .arg(service.folder.path().join("config.toml"))
        .args(arguments)
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.success(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn backup_for_recipient_opens_only_with_its_identity() {
    let identity = age::x25519::Identity::generate();
    let lines = format!("[backup]\nevery = '1h'\nrecipient = '{}'\n", identity.to_public());
    let service = Service::configured(&lines).await;
    let scheduled = until("first backup", async || {
        let found = backups(&service).pop()?;
        found.extension().is_some_and(|it| it == "backup").then_some(found)
    })
    .await;
    let key = service.folder.path().join("key.txt");
    let text = identity.to_string();
    fs::write(&key, age::secrecy::ExposeSecret::expose_secret(&text)).unwrap();
    let key = key.to_str().unwrap();
    let by_hand = service.folder.path().join("one.backup");
    let (good, said) = run(&service, &["backup", by_hand.to_str().unwrap()]);
    assert!(good && said.contains("encrypted for 1 recipients"), "{said}");
    for file in [&scheduled, &by_hand] {
        assert!(backup::is_encrypted(file).unwrap());
        let file = file.to_str().unwrap();
        let (good, said) = run(&service, &["verify", file]);
        assert!(!good && said.contains("decrypt it with --identity FILE"), "{said}");
        let (good, said) = run(&service, &["verify", file, "--identity", key]);
        assert!(good && !said.contains("warning"), "{said}");
    }
    let into = service.folder.path().join("elsewhere");
    let restore =
        ["restore", by_hand.to_str().unwrap(), "--into", into.to_str().unwrap(), "--identity", key];
    let (good, said) = run(&service, &restore);
    assert!(good && into.join("seal.key").exists(), "{said}");
}

#[tokio::test]
async fn backup_with_passphrase_restores_and_plain_one_warns() {
    let service = Service::start().await;
    let file = service.folder.path().join("plain.backup");
    let (good, said) = run(&service, &["backup", file.to_str().unwrap()]);
    assert!(good && said.contains("warning: this backup is not encrypted"), "{said}");
    let (good, said) = run(&service, &["verify", file.to_str().unwrap()]);
    assert!(good && said.contains("warning: this backup is not encrypted"), "{said}");

    // The command line uses the current configuration file.
    let config = service.folder.path().join("config.toml");
    let phrase = service.folder.path().join("phrase");
    fs::write(&phrase, "correct horse battery staple\n").unwrap();
    fs::set_permissions(&phrase, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[backup]\npassphrase_file = 'phrase'\n")).unwrap();
    let file = service.folder.path().join("locked.backup");
    let (good, said) = run(&service, &["backup", file.to_str().unwrap()]);
    assert!(good && said.contains("encrypted with the passphrase"), "{said}");
    let (good, said) = run(&service, &["verify", file.to_str().unwrap()]);
    assert!(good, "the passphrase of the configuration is tried: {said}");
    fs::write(&config, text).unwrap();
    let (good, said) = run(&service, &["verify", file.to_str().unwrap()]);
    assert!(!good && said.contains("--passphrase-file FILE"), "{said}");
    let with_file = ["verify", file.to_str().unwrap(), "--passphrase-file"];
    let (good, said) = run(&service, &[&with_file[..], &[phrase.to_str().unwrap()]].concat());
    assert!(good, "{said}");
}
