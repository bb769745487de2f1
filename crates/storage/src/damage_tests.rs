//! Flipped bytes in the tree and the log are always noticed, and readable rows are salvaged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::checkpoint::Limits;
use super::faults::copy_folder;
use super::*;

type Model = BTreeMap<Key, Vec<u8>>;

fn open(folder: &Path) -> Result<Store, Error> {
    let options = Options { folder: folder.to_path_buf(), inline_bytes: 100 };
    Store::open_with(
        &options,
        data_dir::make_and_lock(&options.folder)?,
        Limits::NEVER,
        std::sync::Arc::default(),
    )
}

/// Creates a store that was killed, with rows of several checkpoints in its tree and other rows in
/// its log. Returns the store's folder and the expected rows.
async fn killed() -> (TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let image = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    for round in 0..4_u64 {
        let store = open(folder.path()).unwrap();
        for group in 0..5_u64 {
            let mut commit = Commit::new();
            for number in (0..30_u64).map(|number| number * 7 % 101 + group * 60) {
                let table = if number % 2 == 0 { Table::Facet } else { Table::Execution };
                let key = Key::table(table).raw(&[9; 16]).number_largest_first(number);
                if (number + round).is_multiple_of(6) {
                    model.remove(&key);
                    commit.delete(key);
                } else {
                    let seed = number * 31 + round;
                    let length = 20 + seed % 300;
                    let value: Vec<u8> =
                        (0..length).map(|at| (seed * (at + 1) % 253).to_le_bytes()[0]).collect();
                    model.insert(key.clone(), value.clone());
                    commit.put_bytes(key, value);
                }
            }
            store.commit(commit).await.unwrap();
        }
        if round == 3 {
            let mut end = Commit::new();
            end.put_bytes(Key::table(Table::Lane), vec![1]);
            model.insert(Key::table(Table::Lane), vec![1]);
            store.commit(end).await.unwrap();
            // The writer seals an idle log; the test requests the seal at once.
            let sealed = store.shared.writer_tx.send(writer::Message::Seal).await;
            assert!(sealed.is_ok());
            store.commit(Commit::new()).await.unwrap();
            copy_folder(folder.path(), image.path());
        }
        store.close().await;
    }
    (image, model)
}

/// Returns the readable rows and the unreadable ranges.
fn walked(store: &Store) -> (Model, Vec<String>) {
    let mut rows = Model::new();
    let unreadable = store
        .walk(&mut |key, value| {
            if key.as_bytes()[0] != Table::Meta as u8 {
                rows.insert(key, value);
            }
            Ok(())
        })
        .unwrap();
    (rows, unreadable.iter().map(ToString::to_string).collect())
}

/// Flips a byte, chosen by `dice`, in the written part of a file. Returns the byte's offset.
fn flip(path: &Path, dice: u64) -> usize {
    let mut bytes = fs::read(path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    let at = usize::try_from(dice).unwrap_or(0) % end;
    bytes[at] ^= 1 << ((dice >> 40) % 8);
    fs::write(path, bytes).unwrap();
    at
}

fn dice(turn: u64) -> u64 {
    let mut state = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    for _ in 0..3 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state >> 8
}

/// Returns the files of a store's tree, or of its log.
fn files(folder: &Path, of_log: bool) -> Vec<PathBuf> {
    let store = folder.join("store");
    let place = if of_log { store.join("log") } else { store };
    let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// The number of bytes to flip: `ORRERY_FLIPS`, or a few by default.
fn turns() -> u64 {
    std::env::var("ORRERY_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Flips one byte of a copy in each turn. Counts how often the flip had no effect, made the store
/// refuse to open, or was reported.
async fn flipped(turns: u64, of_log: bool) -> [u32; 3] {
    let (killed, model) = killed().await;
    let mut tally = [0; 3];
    for turn in 0..turns {
        let image = tempfile::tempdir().unwrap();
        copy_folder(killed.path(), image.path());
        let files = files(image.path(), of_log);
        let path = &files[usize::try_from(turn).unwrap() % files.len()];
        let at = flip(path, dice(turn));
        let place = format!("turn {turn}: byte {at} of {}", path.display());
        match open(image.path()) {
            Err(error) => {
                assert!(error.to_string().len() > 40, "{place}: {error}");
                tally[1] += 1;
            }
            Ok(store) => {
                let (rows, unreadable) = walked(&store);
                if unreadable.is_empty() {
                    assert!(rows == model, "{place}: rows are lost silently");
                    tally[0] += 1;
                } else {
                    assert!(rows.iter().all(|(key, value)| model.get(key) == Some(value)));
                    assert!(unreadable[0].contains("rows of the table"), "{unreadable:?}");
                    tally[2] += 1;
                }
                store.close().await;
            }
        }
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_tree_byte_is_never_silent() {
    let [whole, refused, named] = flipped(turns(), false).await;
    println!("tree: {whole} whole, {refused} refused, {named} named");
    assert!(refused + named > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_log_byte_is_never_silent() {
    let [whole, refused, named] = flipped(turns(), true).await;
    println!("log: {whole} whole, {refused} refused, {named} named");
    assert!(refused > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn salvage_reads_everything_undamaged() {
    let (killed, model) = killed().await;
    let rows = |data: &Path| {
        let scratch = tempfile::tempdir().unwrap();
        let mut rows = Model::new();
        let wreck = salvage::read(data, scratch.path(), &mut |(key, value)| {
            if key.as_bytes()[0] != Table::Meta as u8 {
                rows.insert(key, value.unwrap());
            }
            Ok(())
        });
        (rows, wreck.unwrap().faults)
    };
    assert_eq!(rows(killed.path()), (model.clone(), Vec::new()));
    // Without its log, a store yields the rows of its tree; without its tree, the rows of its log.
    let no_log = tempfile::tempdir().unwrap();
    let no_tree = tempfile::tempdir().unwrap();
    copy_folder(killed.path(), no_log.path());
    fs::remove_dir_all(no_log.path().join("store/log")).unwrap();
    let (found, faults) = rows(no_log.path());
    assert!(found.len() > 50 && faults[0].contains("the log is missing"), "{faults:?}");
    copy_folder(killed.path(), no_tree.path());
    fs::remove_file(no_tree.path().join("store/db")).unwrap();
    let (found, faults) = rows(no_tree.path());
    assert!(found.len() > 50 && faults[0].contains("the tree is missing"), "{faults:?}");
    // Damage one record of the log.
    let path = files(killed.path(), true).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[64 + 200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (found, faults) = rows(killed.path());
    assert!(faults[0].contains("is damaged"), "{faults:?}");
    let same = model.iter().filter(|(key, value)| found.get(*key) == Some(*value)).count();
    assert!(same * 10 > model.len() * 6, "{same} of {}", model.len());
    let refused = open(killed.path()).unwrap_err().to_string();
    assert!(refused.contains("was intact on") && refused.contains("orrery salvage"), "{refused}");
}

/// Creates a small store that was closed and restarted once. Returns the store's folder and the
/// expected rows, some 6,400 of them.
async fn small() -> (TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    let store = open(folder.path()).unwrap();
    for group in 0..64_u64 {
        let mut commit = Commit::new();
        for number in group * 100..(group + 1) * 100 {
            let table = if number % 2 == 0 { Table::Facet } else { Table::Execution };
            let key = Key::table(table).raw(&[9; 16]).number_largest_first(number * 7919 % 6400);
            let value =
                format!("{{\"status\":\"success\",\"number\":{number},\"seed\":{}}}", dice(number));
            model.insert(key.clone(), value.clone().into_bytes());
            commit.put_bytes(key, value.into_bytes());
        }
        store.commit(commit).await.unwrap();
    }
    store.close().await;
    open(folder.path()).unwrap().close().await;
    (folder, model)
}

/// Salvages a copy of a folder after applying `change` to the tree's file.
fn salvaged(folder: &Path, change: impl FnOnce(&mut [u8], usize)) -> (Model, salvage::Wreck) {
    salvaged_after(folder, false, change)
}

/// Like [`salvaged`]. With `is_started`, first tries to start the store, which must be refused.
fn salvaged_after(
    folder: &Path,
    is_started: bool,
    change: impl FnOnce(&mut [u8], usize),
) -> (Model, salvage::Wreck) {
    let image = tempfile::tempdir().unwrap();
    copy_folder(folder, image.path());
    let path = image.path().join("store/db");
    let mut bytes = fs::read(&path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    change(&mut bytes, used);
    fs::write(&path, bytes).unwrap();
    if is_started {
        assert!(open(image.path()).is_err(), "it is refused");
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut rows = Model::new();
    let wreck = salvage::read(image.path(), scratch.path(), &mut |(key, value)| {
        if key.as_bytes()[0] != Table::Meta as u8 {
            rows.insert(key, value.unwrap());
        }
        Ok(())
    });
    (rows, wreck.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn salvage_restores_any_flipped_byte_of_small_store() {
    let (folder, model) = small().await;
    let (rows, wreck) = salvaged(folder.path(), |_, _| {});
    assert_eq!((&rows, wreck.faults, wreck.notes), (&model, Vec::new(), Vec::new()));
    assert_eq!(wreck.rows["Facet"] + wreck.rows["Execution"], model.len() as u64);
    for turn in 0..turns() {
        let place = usize::try_from(dice(turn)).unwrap();
        let flip = if turn % 2 == 0 { 0x10 } else { u8::try_from(turn % 255).unwrap() + 1 };
        let flipped = |bytes: &mut [u8], used: usize| bytes[place % used] ^= flip;
        // An attempt to start the store first must not make the damage worse.
        let (rows, wreck) = salvaged_after(folder.path(), turn % 4 == 3, flipped);
        let same = model.iter().filter(|(key, value)| rows.get(*key) == Some(*value)).count();
        assert!(
            same * 100 >= model.len() * 95,
            "turn {turn}: {same} of {}, {wreck:?}",
            model.len()
        );
        assert_eq!(same, rows.len(), "turn {turn}: rows that were never written");
        let is_named = !wreck.notes.is_empty() || !wreck.faults.is_empty();
        assert!(is_named, "turn {turn}: nothing is said");
        assert!(
            same == model.len() || !wreck.faults.is_empty(),
            "turn {turn}: a loss is not named"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn salvage_reports_loss_from_damaged_sector() {
    let (folder, model) = small().await;
    for turn in 0..turns() {
        let place = usize::try_from(dice(turn)).unwrap();
        let (rows, wreck) = salvaged(folder.path(), |bytes, used| {
            let from = place % used;
            let to = (from + 512).min(used);
            bytes[from..to].fill(0xa5);
        });
        let same = model.iter().filter(|(key, value)| rows.get(*key) == Some(*value)).count();
        assert!(same * 2 > model.len(), "turn {turn}: {same} of {}, {wreck:?}", model.len());
        let lost =
            wreck.faults.iter().any(|fault| fault.contains("of the tree's file cannot be read"));
        let estimate = wreck.faults.iter().any(|fault| fault.contains("estimated loss"));
        assert!(lost && estimate, "turn {turn}: {wreck:?}");
    }
}
