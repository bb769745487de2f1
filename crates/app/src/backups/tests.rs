//! Tests of the folder of scheduled backups: which files the schedule recognizes, which it prunes,
//! and when the next backup is due.

use tempfile::TempDir;

use super::*;
use orrery_records::files::Files;
use orrery_storage::{Options, Sealer, Store};

/// A store, and an empty backup folder.
struct Fixture {
    folder: TempDir,
    place: Source,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Sealer::open(&data).unwrap();
        let options = Options { folder: data.clone(), inline_bytes: 10 };
        let store = Store::open(&options).unwrap();
        let place = Source { files: Files::scratch(&data, store.clone()), store };
        fs::create_dir(folder.path().join("backups")).unwrap();
        Self { folder, place }
    }

    fn backups(&self) -> PathBuf {
        self.folder.path().join("backups")
    }

    fn add(&self, name: &str) {
        fs::write(self.backups().join(name), "x").unwrap();
    }

    /// Writes a scheduled backup, and returns the names of all files that are in the folder
    /// afterwards.
    async fn write(&self, keep: usize, now: &str) -> Vec<String> {
        let place = self.place.clone();
        let folder = self.backups();
        let target = Target { folder, keep, reserve: Some(0), encryption: Encryption::Off };
        let now: Timestamp = now.parse().unwrap();
        let working = tokio::task::spawn_blocking(move || write(&place, &target, now).unwrap());
        let (path, _summary) = working.await.unwrap();
        assert!(path.is_file(), "{} was deleted", path.display());
        let mut names: Vec<String> = fs::read_dir(self.backups())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn backup_name_with_time_of_writing_is_scheduled() {
    for (name, expected) in [
        ("orrery-2026-11-20T09-30-00.123Z.backup", true),
        ("orrery-1970-01-01T00-00-00.000Z.backup", true),
        ("orrery-1.backup", false),
        ("orrery-before-upgrade.backup", false),
        ("orrery-2026-11-20.backup", false),
        ("orrery-2026-11-20T09-30-00Z.backup", false),
        ("orrery-2026-11-20T09-30-00.123456Z.backup", false),
        ("orrery-2026-11-20T09:30:00.123Z.backup", false),
        ("orrery-2026-11-20T09-30-00.123+00-00.backup", false),
        ("orrery-2026-13-20T09-30-00.123Z.backup", false),
        ("orrery-2026-11-20T09-30-00.123Z-copy.backup", false),
        ("orrery-2026-11-20T09-30-00.123Z.part", false),
        ("2026-11-20T09-30-00.123Z.backup", false),
    ] {
        assert_eq!(is_scheduled(name), expected, "{name}");
    }
    let time: Timestamp = "2026-11-20T09:30:00.123Z".parse().unwrap();
    assert_eq!(name_of(time), "orrery-2026-11-20T09-30-00.123Z.backup");
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_retention_keeps_manual_backups() {
    let fixture = Fixture::new();
    for name in ["orrery-1.backup", "orrery-before-upgrade.backup", "notes.txt"] {
        fixture.add(name);
    }
    let now = Timestamp::from_micros(0).plus(UNIX_EPOCH.elapsed().unwrap());
    let every = Duration::from_secs(3600);
    // The manual backup is ignored, although it is recent.
    assert_eq!(newest(&fixture.backups()), None);
    assert_eq!(until_due(&fixture.backups(), every, now), Duration::ZERO);
    fixture.add("orrery-2020-01-01T00-00-00.000Z.backup");
    fixture.add("orrery-2020-01-02T00-00-00.000Z.backup");
    let left = fixture.write(2, "2026-11-20T09:30:00.123Z").await;
    let expected = [
        "notes.txt",
        "orrery-1.backup",
        "orrery-2020-01-02T00-00-00.000Z.backup",
        "orrery-2026-11-20T09-30-00.123Z.backup",
        "orrery-before-upgrade.backup",
    ];
    assert_eq!(left, expected);
    let last = newest(&fixture.backups()).unwrap();
    assert!(last.ends_with("orrery-2026-11-20T09-30-00.123Z.backup"), "{}", last.display());
    // The next backup is not due, although the name of a future-dated backup sorts after the new
    // one.
    assert!(until_due(&fixture.backups(), every, now) > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_just_written_stays_after_clock_was_ahead() {
    let fixture = Fixture::new();
    let ahead = "orrery-2036-01-01T00-00-00.000Z.backup";
    fixture.add(ahead);
    fixture.add("orrery-2036-01-02T00-00-00.000Z.backup");
    let left = fixture.write(2, "2026-11-20T09:30:00.123Z").await;
    let first = "orrery-2026-11-20T09-30-00.123Z.backup";
    assert_eq!(left, [first, "orrery-2036-01-02T00-00-00.000Z.backup"]);
    fixture.add(ahead);
    let second = "orrery-2026-11-21T09-30-00.123Z.backup";
    assert_eq!(fixture.write(1, "2026-11-21T09:30:00.123Z").await, [second]);
    // Future-dated backups are pruned before older ones.
    fixture.add(ahead);
    let third = "orrery-2026-11-22T09-30-00.123Z.backup";
    assert_eq!(fixture.write(2, "2026-11-22T09:30:00.123Z").await, [second, third]);
    // The pruned backups do not delay the next one either.
    let every = Duration::from_secs(3600);
    let now = Timestamp::from_micros(0).plus(UNIX_EPOCH.elapsed().unwrap());
    assert!(until_due(&fixture.backups(), every, now) > Duration::ZERO);
    let before = now.before(3 * every).unwrap();
    assert_eq!(until_due(&fixture.backups(), every, before), Duration::ZERO);
}
