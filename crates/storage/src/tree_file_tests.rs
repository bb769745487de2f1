//! Compares the entries read from a tree's file with the entries that the engine reads.

use proptest::prelude::*;

use super::super::tree;
use super::*;

fn entries(folder: &Path) -> (BTreeMap<Vec<u8>, Vec<u8>>, Found) {
    let mut entries = BTreeMap::new();
    let found = read(folder, &mut |key, value| {
        assert_eq!(entries.insert(key.to_vec(), value.to_vec()), None, "a key comes twice");
        Ok(())
    });
    (entries, found.unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn tree_file_has_what_the_engine_has(
        changes in prop::collection::vec((0..400_u16, any::<bool>(), 0..3000_usize), 1..1500),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut model = BTreeMap::new();
        {
            let db = tree::open(folder.path()).unwrap();
            for (key, is_deleted, length) in changes {
                let key = key.to_be_bytes().to_vec();
                if is_deleted && model.remove(&key).is_some() {
                    db.remove(&key).unwrap();
                } else {
                    let value = vec![key[1]; length];
                    db.insert(&key, value.clone()).unwrap();
                    model.insert(key, value);
                }
            }
            db.flush().unwrap();
        }
        let (entries, found) = entries(folder.path());
        prop_assert!(entries == model);
        prop_assert_eq!((found.damage, found.holes), (Vec::new(), Vec::new()));
    }

    #[test]
    fn check_sum_restores_any_byte(body in prop::collection::vec(any::<u8>(), 0..3000), place: usize, flip in 1..=u8::MAX) {
        let rest = [&[kind::NODE, 7, 3, 9][..], &body].concat();
        let mut message = [&[0; CRC][..], &rest].concat();
        let crc = check_sum(&message, CRC + 4).to_le_bytes();
        message[..CRC].copy_from_slice(&crc);
        let mut damaged = message.clone();
        damaged[place % message.len()] ^= flip;
        prop_assert_eq!(put_right(&damaged, CRC + 4), Some(message));
    }
}

#[test]
fn damaged_tree_file_is_copied_completely_or_start_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    {
        let db = tree::open(folder.path()).unwrap();
        for number in 0..200_u8 {
            db.insert([number], vec![number; 500]).unwrap();
            db.flush().unwrap();
        }
    }
    let mut bytes = fs::read(&path).unwrap();
    bytes[20_000] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    let [kept, part] = [KEPT, "db.part"].map(|name| folder.path().join(name));
    fs::create_dir(&part).unwrap();
    let refused = keep_damaged(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("bytes) cannot be made: Is a directory"), "{refused}");
    assert!(refused.contains("free that much space on this disk"), "{refused}");
    fs::remove_dir(&part).unwrap();
    keep_damaged(folder.path()).unwrap();
    assert!(fs::read(&kept).unwrap() == bytes && !part.exists());
}

#[test]
fn covered_ranges_merge_and_leave_holes() {
    let mut covered = Covered::default();
    let key = |text: &str| text.as_bytes().to_vec();
    for (low, high) in [("c", "e"), ("g", "i"), ("e", "f"), ("", "b"), ("k", "")] {
        covered.add(key(low), key(high));
    }
    let holes: Vec<_> = [("b", "c"), ("f", "g"), ("i", "k")].map(|(a, b)| (key(a), key(b))).into();
    assert_eq!(covered.holes(), holes);
    for (text, is_covered) in [("a", true), ("b", false), ("d", true), ("f", false), ("z", true)] {
        assert_eq!(covered.has(text.as_bytes()), is_covered, "{text}");
    }
    covered.add(key("a"), key("m"));
    assert_eq!(covered.holes(), Vec::new());
}
