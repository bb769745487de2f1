//! Tests of files on a real store: storing, finding, sweeping, and untrusted model outputs.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use orrery_domain::file::Digest;
use orrery_domain::ids::KeyId;
use orrery_domain::time::Timestamp;
use orrery_runtime::new_id;
use orrery_storage::Sealer;

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Fixture {
    folder: TempDir,
    clock: Clock,
    files: Files,
    organization: OrganizationId,
    execution: ExecutionId,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let options = storage::Options { folder: data.clone(), inline_bytes: 1000 };
        let store = Store::open_without_checkpoints(&options).unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let sealer = Sealer::open(&data).unwrap();
        let keys = Arc::new(crate::signed_urls::AllKeysLive);
        let signed_urls = SignedUrls::new(sealer, clock.clone(), keys, "http://h".to_owned());
        let options = Options { max_bytes: 10, quota_bytes: None, retention: DAY };
        let limits = crate::limits::Handle::default();
        let files =
            Files::new(data.join("files"), store, clock.clone(), signed_urls, options, limits);
        Self { folder, clock, files, organization: new_id(), execution: new_id() }
    }

    async fn keep_in(
        &self,
        output: Value,
        folder: Option<&std::path::Path>,
    ) -> Result<Value, Error> {
        let organization = self.organization;
        let execution = self.execution;
        let key = KeyId::from([3; 16]);
        let origin = Origin { organization, key, execution, attempt_key: "e:s:1" };
        self.files.keep_artefacts(origin, output, folder).await
    }

    async fn keep(&self, output: Value) -> Result<Value, Error> {
        self.keep_in(output, None).await
    }

    /// Reads a file by the URL that replaced its path in an output.
    async fn read(&self, path: &Value) -> Option<Vec<u8>> {
        let text = serde_json::value::to_raw_value(path).unwrap();
        let shown = self.files.render_links(self.organization, text);
        let url: String = serde_json::from_str(shown.get()).unwrap();
        assert!(url.starts_with("http://h/v1/files/"), "{url}");
        self.files.read_linked(&url, 100).await.unwrap().map(|(_, bytes)| bytes)
    }

    fn blobs(&self) -> Vec<Digest> {
        self.files.shared.blobs.walk().unwrap().batch().unwrap()
    }
}

#[tokio::test]
async fn artefacts_with_bytes_become_files_and_other_outputs_are_unchanged() {
    let fixture = Fixture::new();
    let output =
        json!(["data:text/plain;base64,YWJj", "http://else/where", {"path": "x"}, "data:,abc"]);
    let kept = fixture.keep(output).await.unwrap();
    assert_eq!((&kept[1], &kept[2]), (&json!("http://else/where"), &json!({"path": "x"})));
    for url in [&kept[0], &kept[3]] {
        assert_eq!(fixture.read(url).await.unwrap(), b"abc");
    }
    assert_eq!(fixture.blobs().len(), 1, "identical bytes are stored once");
    let id = FileId::of_output(fixture.execution, "e:s:1", 0);
    let (file, _) = fixture.files.find(fixture.organization, id).await.unwrap().unwrap();
    assert_eq!((file.content_type.as_str(), file.size), ("text/plain", 3));
    assert!(fixture.files.find(new_id(), id).await.unwrap().is_none(), "another organization");
    assert!(fixture.files.read_linked("http://else/where", 9).await.unwrap().is_none());
    fixture.clock.advance(DAY);
    assert!(fixture.files.find(fixture.organization, id).await.unwrap().is_none(), "expired");
}

#[tokio::test]
async fn file_created_while_clock_is_wrong_keeps_its_lifetime() {
    let fixture = Fixture::new();
    fixture.clock.advance(400 * DAY);
    let right = fixture.clock.now();
    for (wrong, output) in
        [(right.before(365 * DAY).unwrap(), "data:,behind"), (right.plus(365 * DAY), "data:,ahead")]
    {
        fixture.clock.set(wrong);
        let kept = fixture.keep(json!(output)).await.unwrap();
        assert!(fixture.read(&kept).await.is_some(), "{output}");
        fixture.clock.set(right);
        assert!(fixture.read(&kept).await.is_some(), "{output}: the clock is right again");
        assert_eq!(fixture.files.remove_expired().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn artefacts_of_rerun_attempt_replace_its_files() {
    let fixture = Fixture::new();
    let first = fixture.keep(json!("data:,one")).await.unwrap();
    let again = fixture.keep(json!("data:,two")).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(fixture.read(&first).await.unwrap(), b"two");
    assert_eq!(fixture.blobs().len(), 2);
    let sweep = async || {
        let options = storage::SweepOptions { now: fixture.clock.now(), accepts_loss: false };
        fixture.files.sweep(new_id(), options).await.unwrap().moved
    };
    assert_eq!(sweep().await, 1, "the first blob is orphaned");
    assert_eq!(sweep().await, 0);
    let lost = fixture.folder.path().join("data/files/lost/1970-01-01");
    assert_eq!(fs::read_dir(lost).unwrap().count(), 1, "it is kept for a week");
    assert_eq!(fixture.read(&first).await.unwrap(), b"two");
}

#[tokio::test]
async fn file_expiry_removes_blob_with_its_last_reference() {
    let fixture = Fixture::new();
    fixture.keep(json!(["data:,one", "data:,two"])).await.unwrap();
    fixture.clock.advance(DAY / 2);
    let origin = Origin {
        organization: fixture.organization,
        key: KeyId::from([3; 16]),
        execution: fixture.execution,
        attempt_key: "another",
    };
    let late = fixture.files.keep_artefacts(origin, json!("data:,one"), None).await.unwrap();
    assert_eq!(fixture.files.remove_expired().await.unwrap(), 0);
    fixture.clock.advance(DAY / 2 + Duration::from_secs(1));
    // The totals do not count expired files, even before the sweep has deleted them.
    let usage = async || {
        let usage = fixture.files.usage(fixture.organization).await.unwrap();
        (usage.files, usage.bytes)
    };
    assert_eq!(usage().await, (1, 3));
    assert_eq!(fixture.files.remove_expired().await.unwrap(), 2);
    assert_eq!(usage().await, (1, 3));
    assert_eq!(fixture.blobs().len(), 1, "the later file references the same bytes");
    assert_eq!(fixture.read(&late).await.unwrap(), b"one");
    fixture.clock.advance(DAY);
    assert_eq!(fixture.files.remove_expired().await.unwrap(), 1);
    assert_eq!(fixture.files.remove_expired().await.unwrap(), 0);
    assert!(fixture.blobs().is_empty());
}

#[tokio::test]
async fn concurrent_file_deletions_are_counted_once() {
    let fixture = Fixture::new();
    let kept = fixture.keep(json!(["data:,one", "data:,three"])).await.unwrap();
    let id = kept[0].as_str().unwrap().split('/').nth(3).unwrap().parse().unwrap();
    let deletions = (0..8).map(|_| fixture.files.delete(fixture.organization, id));
    for deleted in futures_util::future::join_all(deletions).await {
        assert!(deleted.unwrap());
    }
    let left = fixture.files.usage(fixture.organization).await.unwrap();
    assert_eq!((left.files, left.bytes), (1, 5));
}

#[tokio::test]
async fn blob_stays_when_client_disconnects_during_commit() {
    let fixture = Fixture::new();
    // Another commit blocks the writer.
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let mut before = Commit::new();
    before.put_bytes(rows::blob_references().raw(&[9; 48]), Vec::new());
    before.after_durable(move || {
        begun.send(()).unwrap();
        held.recv().unwrap();
    });
    let store = fixture.files.shared.store.clone();
    let holding = tokio::task::spawn_blocking({
        let store = store.clone();
        move || tokio::runtime::Handle::current().block_on(store.commit(before))
    });
    begins.await.unwrap();
    let kept = {
        let keeping = fixture.keep(json!("data:,abc"));
        tokio::pin!(keeping);
        // Poll until the commit waits. The bytes are then stored, but no row references them yet.
        while fixture.blobs().is_empty() || store.stats().waiting == 0 {
            let _pending = futures_util::poll!(keeping.as_mut());
            tokio::task::yield_now().await;
        }
        fixture.blobs()
    };
    assert!(fixture.files.shared.gate.try_write().is_err(), "nothing may be deleted yet");
    release.send(()).unwrap();
    holding.await.unwrap().unwrap();
    assert!(!fixture.files.remove_unused(kept[0]).await.unwrap(), "the file's row references it");
    assert_eq!(fixture.blobs(), kept);
}

#[tokio::test]
async fn file_with_damaged_or_missing_content_is_never_served() {
    let fixture = Fixture::new();
    let url = fixture.keep(json!("data:,abc")).await.unwrap();
    let path = fixture.files.path(
        fixture
            .blobs()
            .into_iter()
            .find(|digest| fs::read(fixture.files.path(*digest)).unwrap() == b"abc")
            .unwrap(),
    );
    let text = serde_json::value::to_raw_value(&url).unwrap();
    let shown = fixture.files.render_links(fixture.organization, text);
    let url: String = serde_json::from_str(shown.get()).unwrap();
    let said = async || {
        let read = fixture.files.read_linked(&url, 100).await;
        read.map(|found| found.map(|(_, bytes)| bytes)).map_err(|error| error.to_string())
    };
    assert_eq!(said().await.unwrap().as_deref(), Some(&b"abc"[..]));
    fs::write(&path, "abd").unwrap();
    assert!(said().await.unwrap_err().starts_with("the content of the file is damaged"));
    fs::remove_file(&path).unwrap();
    assert!(said().await.unwrap_err().starts_with("the content of the file is missing"));
}

#[tokio::test]
async fn files_folder_missing_is_refused() {
    let fixture = Fixture::new();
    fixture.files.check_folder().await.unwrap();
    fixture.keep(json!("data:,abc")).await.unwrap();
    fixture.files.check_folder().await.unwrap();
    let folder = fixture.folder.path().join("data/files");
    fs::rename(&folder, fixture.folder.path().join("away")).unwrap();
    let refused = fixture.files.check_folder().await.unwrap_err().to_string();
    assert!(refused.contains("it is missing or empty"), "{refused}");
}

#[tokio::test]
async fn artefacts_are_read_only_from_the_run_folder() {
    let fixture = Fixture::new();
    let run = fixture.folder.path().join("run");
    fs::create_dir_all(run.join("sub")).unwrap();
    fs::write(run.join("sub/a.png"), "pixels").unwrap();
    fs::write(fixture.folder.path().join("secret"), "s").unwrap();
    symlink(fixture.folder.path().join("secret"), run.join("link")).unwrap();
    let absolute = run.join("sub/a.png");
    for path in ["sub/a.png", absolute.to_str().unwrap()] {
        let kept = fixture.keep_in(json!({"path": path}), Some(&run)).await.unwrap();
        assert_eq!(fixture.read(&kept).await.unwrap(), b"pixels");
    }
    let id = FileId::of_output(fixture.execution, "e:s:1", 0);
    let (file, _) = fixture.files.find(fixture.organization, id).await.unwrap().unwrap();
    assert_eq!(file.content_type, "image/png");
    assert_eq!(file.filename.as_deref(), Some("a.png"));
    for (path, says) in [
        (json!("../secret"), "leads outside the folder"),
        (json!("/etc/passwd"), "leads outside the folder"),
        (json!("link"), "is not a file in the folder"),
        (json!("sub"), "is not a file in the folder"),
        (json!("gone"), "cannot be read"),
        (json!("a\u{0}b"), "cannot be read"),
        (json!(""), "is not a file in the folder"),
        (json!(7), "its path must be a string"),
    ] {
        let error = fixture.keep_in(json!({"path": path}), Some(&run)).await.unwrap_err();
        assert!(error.to_string().contains(says), "{path}: {error}");
    }
}

#[tokio::test]
async fn invalid_or_oversized_artefacts_leave_nothing_behind() {
    let fixture = Fixture::new();
    let many: Vec<_> = std::iter::repeat_n("x", artefacts::ARTEFACTS_MAX + 1).collect();
    for (output, says) in [
        (json!("data:nonsense"), "it is not a valid data: URI"),
        (json!("data:image/png;base64,!"), "it is not a valid data: URI"),
        (json!("data:,12345678901"), "it is larger than 10 bytes"),
        (json!(many), "it has more than 100 artefacts"),
    ] {
        let error = fixture.keep(output).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(fixture.blobs().is_empty());
}
