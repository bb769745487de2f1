//! Tests with the folder of payloads or files missing: full backups and log archiving fail while
//! the folder is missing, and the next run after the folder returns includes the folder's contents.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use serde_json::value::RawValue;
use tempfile::TempDir;

use super::chain::{Listed, folder_of, read_file};
use super::read::Entry;
use super::*;
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId};
use orrery_records::files::{Files, Origin};
use orrery_storage::{Commit, Options, Store};

fn open(data: &Path) -> Source {
    let options = Options { folder: data.to_path_buf(), inline_bytes: 10 };
    let store = Store::open(&options).unwrap();
    Source { files: Files::scratch(data, store.clone()), store }
}

/// A service with a chain, and with a payload and a file written after the chain started.
struct Fixture {
    folder: TempDir,
    place: Source,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = open(&folder.path().join("data"));
        let Source { store, files } = &place;
        store.start_archiving().unwrap();
        let organization = OrganizationId::from([1; 16]);
        let text = RawValue::from_string(format!("\"{}\"", "x".repeat(100))).unwrap();
        let payload = store.write_payload(organization, text).await.unwrap();
        let mut commit = Commit::new();
        store.claim(&mut commit, &payload);
        store.commit(commit).await.unwrap();
        let key = KeyId::from([2; 16]);
        let execution = ExecutionId::from([3; 16]);
        let origin = Origin { organization, key, execution, attempt_key: "e:s:1" };
        files.keep_artefacts(origin, json!("data:,abc"), None).await.unwrap();
        Self { folder, place }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("backups").join(LOG)
    }

    async fn archive(&self) -> Result<Option<Part>, Error> {
        let place = self.place.clone();
        let log = self.log();
        let now = Timestamp::from_micros(2);
        let work = move || archive_log(&place, &log, &Encryption::Off, Some(0), now);
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    async fn backup(&self) -> Result<Summary, Error> {
        let place = self.place.clone();
        let work = move || write(&place, Timestamp::from_micros(1), Vec::new(), &mut |_| {});
        Ok(tokio::task::spawn_blocking(work).await.unwrap()?.1)
    }

    fn listed(&self) -> Listed {
        let chain = self.place.store.archive_position().unwrap().chain;
        Listed::of(&folder_of(&self.log(), chain)).unwrap()
    }

    /// Checks that backups and log archiving fail with an error that contains the folder's path,
    /// and that nothing is marked as archived.
    async fn refuses(&self, away: &Path) {
        let before = self.place.store.archive_position();
        let errors = [self.archive().await.unwrap_err(), self.backup().await.unwrap_err()];
        for error in errors {
            let said = error.to_string();
            let is_named = said.starts_with(away.to_str().unwrap());
            assert!(is_named && said.contains("is a volume not mounted?"), "{said}");
            // The error does not end the chain.
            assert!(!matches!(error, Error::Chain(_)), "{said}");
        }
        assert_eq!(self.place.store.archive_position(), before);
        assert_eq!(self.listed().files, []);
    }

    /// Checks that backups and log archiving succeed and include the payload and the file.
    async fn has_everything(&self) {
        let part = self.archive().await.unwrap().unwrap();
        assert_eq!(part.damaged, 0);
        let mut found = [0, 0];
        let file = self.listed().files.remove(0);
        read_file(&file.path, &Keys::none(), &mut |entry, _content| {
            found[0] += u32::from(matches!(entry, Entry::Payload(_)));
            found[1] += u32::from(matches!(entry, Entry::Content(_)));
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [1, 1]);
        let summary = self.backup().await.unwrap();
        assert_eq!((summary.payloads, summary.files), (1, 1));
        assert_eq!(summary.damaged, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_and_log_archive_wait_for_unmounted_folder() {
    let fixture = Fixture::new().await;
    let away = fixture.folder.path().join("away");
    for name in ["payloads", "files"] {
        let place = fixture.data().join(name);
        fs::rename(&place, &away).unwrap();
        fixture.refuses(&place).await;
        // In place of the folder, there is an empty mount point or another folder's contents.
        fs::create_dir(&place).unwrap();
        fixture.refuses(&place).await;
        fs::create_dir(place.join("ab")).unwrap();
        fixture.refuses(&place).await;
        fs::remove_dir_all(&place).unwrap();
        fs::rename(&away, &place).unwrap();
    }
    fixture.has_everything().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_and_log_archive_refuse_folder_that_was_empty_at_start() {
    for name in ["payloads", "files"] {
        let Fixture { folder, place: Source { store, files } } = Fixture::new().await;
        drop(files);
        store.close().await;
        let data = folder.path().join("data");
        let away = folder.path().join("away");
        fs::rename(data.join(name), &away).unwrap();
        fs::create_dir(data.join(name)).unwrap();
        let fixture = Fixture { place: open(&data), folder };
        fixture.refuses(&data.join(name)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_archive_lists_lost_file_of_folder_in_place() {
    let fixture = Fixture::new().await;
    for name in ["payloads", "files"] {
        let mut shards = fs::read_dir(fixture.data().join(name)).unwrap().map(Result::unwrap);
        let shard = shards.find(|it| it.file_name().len() == 2).unwrap();
        let file = fs::read_dir(shard.path()).unwrap().next().unwrap().unwrap().path();
        fs::remove_file(file).unwrap();
    }
    assert_eq!(fixture.archive().await.unwrap().unwrap().damaged, 2);
    let summary = fixture.backup().await.unwrap();
    assert_eq!((summary.payloads, summary.files, summary.damaged.len()), (0, 0, 1));
}
