//! Backups on a timetable: the first at once, whole, and only as many as are to be kept.

use std::fs::{self, File};
use std::path::PathBuf;

use orrery::backup;
use serde_json::json;

use crate::support::{Service, until};

fn backups(service: &Service) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(&service.config.backup.folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn a_first_backup_is_written_at_once_and_old_ones_go() {
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
    // Those of earlier days: the oldest of them has to go with the next one.
    for day in ["2020-01-01", "2020-01-02"] {
        fs::write(first.with_file_name(format!("orrery-{day}T00-00-00.000Z.backup")), "x").unwrap();
    }
    fs::write(first.with_file_name("notes.txt"), "of somebody else").unwrap();
    fs::remove_file(&first).unwrap();
    let service = service.restart().await;
    // The newest that is there is as young as its file: nothing is due.
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
