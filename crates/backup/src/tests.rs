//! Tests of backups of a real folder: complete backups are restored and checked; backups truncated
//! at any length or modified at any byte are refused.

use std::fs::{self, File};
use std::path::Path;

use serde_json::value::RawValue;
use tempfile::TempDir;

use super::*;
use orrery_domain::ids::OrganizationId;
use orrery_domain::time::Timestamp;
use orrery_records::files::Files;
use orrery_storage::{Commit, Key, Options, Sealer, Store, Table};

fn open(folder: &Path) -> Source {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 10 };
    let store = Store::open(&options).unwrap();
    let files = Files::scratch(folder, store.clone());
    Source { store, files }
}

/// Creates a folder with rows, a payload file, a key and an authority.
pub(super) async fn world(folder: &TempDir) -> Source {
    let place = open(folder.path());
    Sealer::open(folder.path()).unwrap();
    fs::create_dir(folder.path().join("tls")).unwrap();
    fs::write(folder.path().join("tls/ca.pem"), "authority").unwrap();
    let text = RawValue::from_string(format!("\"{}\"", "x".repeat(100))).unwrap();
    let payload = place.store.write_payload(OrganizationId::from([1; 16]), text).await.unwrap();
    let mut commit = Commit::new();
    place.store.claim(&mut commit, &payload);
    for number in 0..3000_u64 {
        let key = Key::table(Table::Facet).number_largest_first(number);
        commit.put_bytes(key, vec![7; 100]);
    }
    place.store.commit(commit).await.unwrap();
    place
}

pub(super) async fn backed_up(place: &Source) -> Vec<u8> {
    let place = place.clone();
    let write = move || write(&place, Timestamp::from_micros(1), Vec::new(), &mut |_| {});
    tokio::task::spawn_blocking(write).await.unwrap().unwrap().0
}

async fn restored(bytes: &[u8], folder: &Path) -> Result<Summary, Error> {
    restored_with(bytes, folder, Keys::none()).await
}

pub(super) async fn restored_with(
    bytes: &[u8],
    folder: &Path,
    keys: Keys,
) -> Result<Summary, Error> {
    let mut file = tempfile::tempfile().unwrap();
    io::Write::write_all(&mut file, bytes).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let folder = folder.to_path_buf();
    let restore = move || restore(file, &keys, &folder, 10, Timestamp::from_micros(7), &mut |_| {});
    tokio::task::spawn_blocking(restore).await.unwrap()
}

async fn checked(place: &Source) -> Report {
    let place = place.clone();
    let check = move || check_store(&place, &mut |_| {}).unwrap();
    tokio::task::spawn_blocking(check).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_yields_what_was_backed_up() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let place = world(&one).await;
    let bytes = backed_up(&place).await;
    assert!(bytes.len() < 100_000, "it is compressed: {} bytes", bytes.len());
    let summary = verify(&bytes[..], &mut |_| {}).unwrap();
    assert_eq!((summary.payloads, summary.files), (1, 0));
    let into = two.path().join("below/data");
    assert_eq!(restored(&bytes, &into).await.unwrap(), summary);
    assert_eq!(fs::read(into.join("tls/ca.pem")).unwrap(), b"authority");
    assert_eq!(
        fs::read(into.join("seal.key")).unwrap(),
        fs::read(one.path().join("seal.key")).unwrap()
    );
    let place = open(&into);
    let report = checked(&place).await;
    assert_eq!((report.faults, report.payloads), (Vec::<String>::new(), 1));
    let key = Key::table(Table::Facet).number_largest_first(2999);
    assert_eq!(place.store.get(&key).await.unwrap(), Some(vec![7; 100]));
    // The restored store records its origin.
    let acts = place.store.list(&Key::table(Table::Audit), 0, 9).await.unwrap();
    let act: orrery_records::audit::Entry = orrery_storage::record::decode(&acts.rows[0]).unwrap();
    assert_eq!((acts.total, act.action.as_str()), (1, "restore"));
    assert!(act.subject.ends_with(&summary.sha256), "{}", act.subject);
    // A restore into a folder that is not empty fails.
    let refused = restored(&bytes, &into).await.unwrap_err().to_string();
    assert!(refused.contains("already contains payloads"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_refuses_truncated_or_changed_backup() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let bytes = backed_up(&world(&one).await).await;
    let into = two.path().join("data");
    for length in (0..bytes.len()).step_by(bytes.len() / 12) {
        let error = restored(&bytes[..length], &into).await.unwrap_err();
        assert!(
            error.to_string().starts_with("the backup is incomplete or damaged"),
            "{length}: {error}"
        );
        assert!(!into.exists(), "{length}");
    }
    for at in (0..bytes.len()).step_by(bytes.len() / 25) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(verify(&changed[..], &mut |_| {}).is_err(), "{at}");
    }
    assert!(verify(&b"no backup at all"[..], &mut |_| {}).is_err());
    assert!(verify(&[][..], &mut |_| {}).is_err());
}

/// Returns a handcrafted archive with a valid end entry.
fn forged(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
    let mut sum = Sum::default();
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        // Sets the bytes directly, because the library would refuse some of these names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, content).unwrap();
        sum.entry(name, content.len() as u64);
        sum.content(content);
        sum.hex()
    };
    let mut sha256 = String::new();
    for (name, content) in entries {
        sha256 = add(name, content);
    }
    let end = Summary { sha256, ..Summary::default() };
    add(END, &serde_json::to_vec(&end).unwrap());
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn backup_with_path_traversal_or_newer_format_is_refused() {
    let head = br#"{"format":1,"store_format":1,"version":"0.1.0","created_at":"now"}"#;
    verify(&forged(&[(HEAD, head)])[..], &mut |_| {}).unwrap();
    for name in ["../x", "/etc/x", "tls/../x", "tls/.x", "payloads/../../x", "files/x", "x"] {
        let error = verify(&forged(&[(HEAD, head), (name, b"x")])[..], &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("unknown entry"), "{name}: {error}");
    }
    let newer = br#"{"format":2,"store_format":1,"version":"9.0.0","created_at":"now"}"#;
    let error = verify(&forged(&[(HEAD, newer)])[..], &mut |_| {}).unwrap_err().to_string();
    let own = env!("CARGO_PKG_VERSION");
    let expect =
        format!("in a format that this release ({own}) does not support: use release 9.0.0");
    assert!(error.contains(&expect), "{error}");
    let content = format!("{FILES}{}", "0".repeat(64));
    let other = forged(&[(HEAD, head), (&content, b"x")]);
    assert!(verify(&other[..], &mut |_| {}).is_err(), "bytes have to be those of their name");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_missing_payload() {
    let folder = tempfile::tempdir().unwrap();
    let place = world(&folder).await;
    assert_eq!(checked(&place).await.faults, Vec::<String>::new());
    let shard = fs::read_dir(folder.path().join("payloads")).unwrap().next().unwrap().unwrap();
    let payload = fs::read_dir(shard.path()).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(payload).unwrap();
    let faults = checked(&place).await.faults;
    assert_eq!(faults.len(), 1);
    assert!(faults[0].ends_with("is referenced but missing"), "{faults:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_continues_past_damage_and_lists_it() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let place = world(&one).await;
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let content = one.path().join("files/ba").join(digest);
    fs::create_dir_all(content.parent().unwrap()).unwrap();
    fs::write(&content, "abd").unwrap();
    let shard = fs::read_dir(one.path().join("payloads")).unwrap().next().unwrap().unwrap();
    let payload = fs::read_dir(shard.path()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&payload).unwrap();
    fs::write(&payload, text.replace('x', "y")).unwrap();
    let summary = verify(&backed_up(&place).await[..], &mut |_| {}).unwrap();
    assert_eq!((summary.payloads, summary.files, summary.damaged.len()), (1, 1, 2), "{summary:?}");
    assert!(summary.damaged[0].contains("differs from what was written"), "{:?}", summary.damaged);
    assert_eq!(summary.damaged[1], format!("the content {digest} is damaged"));
    fs::remove_file(&payload).unwrap();
    let bytes = backed_up(&place).await;
    let restored = restored(&bytes, &two.path().join("data")).await.unwrap();
    assert_eq!((restored.payloads, restored.damaged.len()), (0, 2));
    assert!(restored.damaged[0].contains("cannot be read"), "{:?}", restored.damaged);
}

#[tokio::test(flavor = "multi_thread")]
async fn compact_preserves_store_contents() {
    let folder = tempfile::tempdir().unwrap();
    let place = world(&folder).await;
    let before = verify(&backed_up(&place).await[..], &mut |_| {}).unwrap();
    place.store.clone().close().await;
    drop(place);
    let path = folder.path().to_path_buf();
    let work = move || compact(&path, 10, &mut |_| {}).unwrap();
    let (old, new) = tokio::task::spawn_blocking(work).await.unwrap();
    assert!(old > 0 && new > 0);
    assert!(!folder.path().join("compact.part").exists());
    let place = open(folder.path());
    let after = verify(&backed_up(&place).await[..], &mut |_| {}).unwrap();
    assert_eq!((after.rows, after.payloads), (before.rows, before.payloads));
    let nothing = tempfile::tempdir().unwrap();
    let path = nothing.path().to_path_buf();
    assert!(compact(&path, 10, &mut |_| {}).is_err());
    assert!(File::open(path.join("store")).is_err(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn salvage_recovers_contents_of_damaged_folder() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let place = world(&one).await;
    place.store.clone().close().await;
    drop(place);
    // A store without its log does not open.
    fs::remove_dir_all(one.path().join("store/log")).unwrap();
    let options = Options { folder: one.path().to_path_buf(), inline_bytes: 10 };
    assert!(Store::open(&options).is_err());
    let from = one.path().to_path_buf();
    let into = two.path().join("new");
    let target = into.clone();
    let work = move || {
        let checked = check_damaged(&from, &mut |_| {}).unwrap();
        let salvaged = salvage(&from, &target, 10, &mut |_| {}).unwrap();
        let again = salvage(&from, &target, 10, &mut |_| {}).unwrap_err().to_string();
        (checked, salvaged, again)
    };
    let (found, salvaged, again) = tokio::task::spawn_blocking(work).await.unwrap();
    assert_eq!(found.faults, salvaged.faults);
    assert!(found.faults[0].contains("the log is missing"), "{:?}", found.faults);
    assert!(found.rows > 3000 && found.rows == salvaged.rows);
    assert!(again.contains("already contains payloads"), "{again}");
    assert!(!into.join("salvage.part").exists());
    assert_eq!(fs::read(into.join("tls/ca.pem")).unwrap(), b"authority");
    let report = checked(&open(&into)).await;
    assert_eq!((report.faults, report.payloads), (Vec::<String>::new(), 1));
}

/// The store has a history: every row was written three times in random order, and then half of the
/// rows were deleted.
#[tokio::test(flavor = "multi_thread")]
async fn compact_shrinks_store() {
    const ROWS: u64 = 600;
    let folder = tempfile::tempdir().unwrap();
    for round in 0..4_u64 {
        let place = open(folder.path());
        let mut commit = Commit::new();
        for number in (0..ROWS).map(|number| number * 77 % ROWS) {
            let key = Key::table(Table::Facet).number_largest_first(number);
            if round < 3 {
                let value = (0..20_000_u64).map(|at| (at * (number + round + 3) % 251) as u8);
                commit.put_bytes(key, value.collect());
            } else if number % 2 == 1 {
                commit.delete(key);
            }
        }
        place.store.commit(commit).await.unwrap();
        place.store.close().await;
    }
    for is_first in [true, false] {
        let path = folder.path().to_path_buf();
        let work = move || compact(&path, 10, &mut |_| {}).unwrap();
        let (old, new) = tokio::task::spawn_blocking(work).await.unwrap();
        let rows = ROWS / 2 * 20_000;
        if is_first {
            assert!(new < old && new < rows * 2, "{old} bytes became {new} for {rows}");
        } else {
            assert!(new <= old, "{old} bytes became {new}");
        }
    }
    let place = open(folder.path());
    let key = |number| Key::table(Table::Facet).number_largest_first(number);
    assert_eq!(place.store.get(&key(1)).await.unwrap(), None);
    assert_eq!(place.store.get(&key(2)).await.unwrap().unwrap().len(), 20_000);
}
