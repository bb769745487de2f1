//! Tests the format of the log, and reading truncated or modified logs.

use proptest::prelude::*;

use super::super::key::{Key, Table};
use super::form::{BadHeader, decode, encode};
use super::replay::{Error, Found, read};
use super::*;

fn row(number: u8, value: Option<&[u8]>) -> (Key, Option<Vec<u8>>) {
    (Key::table(Table::Lane).raw(&[number]), value.map(<[u8]>::to_vec))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn log_header_and_record_match_golden_bytes_of_format_1() {
    let header = Header { store: [7; 16], nonce: 0x0102_0304, first: 5, checkpoint: 3 };
    let expected = concat!(
        "6f7272792d6c6f67",
        "00000001",
        "01020304",
        "07070707070707070707070707070707",
        "0000000000000005",
        "0000000000000003",
        "000000000000000000000000",
    );
    let bytes = header.encode();
    assert_eq!(hex(&bytes[..60]), expected);
    assert_eq!(bytes[60..], crc32fast::hash(&bytes[..60]).to_be_bytes());
    assert_eq!(Header::decode(&bytes), Ok(header));
    let rows = Rows::from([row(1, Some(b"ab")), row(2, None)]);
    let mut record = Vec::new();
    encode(&mut record, header.nonce, 5, 3, Timestamp::from_micros(9), &rows).unwrap();
    let expected = concat!(
        "00000016",
        "00000002",
        "0000000000000005",
        "0000000000000003",
        "0000000000000009",
        "0000000200000002",
        "4c016162",
        "00000002ffffffff",
        "4c02",
        "0000",
    );
    assert_eq!(hex(&record[8..]), expected);
    assert_eq!(record[..4], *b"rec\x01");
    assert_eq!(record.len() as u64, form::record_bytes(&rows));
    let read = decode(&record, 0, header.nonce).unwrap();
    assert_eq!((read.number, read.checkpoint, read.end), (5, 3, record.len()));
    assert_eq!(read.rows(), Some(rows));
    assert!(decode(&record, 0, header.nonce + 1).is_none(), "another use of the file");
}

#[test]
fn log_header_newer_or_damaged_is_refused() {
    let header = Header { store: [7; 16], nonce: 1, first: 5, checkpoint: 3 }.encode();
    for bit in 0..header.len() * 8 {
        let mut changed = header;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Header::decode(&changed), Err(BadHeader::Damaged), "bit {bit}");
    }
    let mut newer = header;
    newer[11] = 2;
    let crc = crc32fast::hash(&newer[..60]);
    newer[60..].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(Header::decode(&newer), Err(BadHeader::Newer(2)));
}

/// Writes a log with `records` records, half of them in each of two segments.
fn written(folder: &Path, records: u8) -> Vec<Rows> {
    let segments = Arc::new(Segments::new(folder.to_path_buf(), Vec::new()));
    let mut log = Log::begin(segments, [7; 16], 0, 0).unwrap();
    let mut all = Vec::new();
    for number in 1..=records {
        let rows = Rows::from([row(number, Some(&[number; 30])), row(0, Some(&[number]))]);
        assert_eq!(log.write(&rows, 0, Timestamp::from_micros(1)).unwrap(), u64::from(number));
        log.sync().unwrap();
        all.push(rows);
        if number == records / 2 {
            log.roll(0, 0).unwrap();
        }
    }
    all
}

fn all(folder: &Path, go_on: bool) -> (Vec<Rows>, Found) {
    let mut rows = Vec::new();
    let found = read(folder, 0, go_on, &mut |record| rows.push(record.rows().unwrap())).unwrap();
    (rows, found)
}

fn change(path: &Path, at: usize, with: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    with(&mut bytes[at..]);
    fs::write(path, bytes).unwrap();
}

#[test]
fn log_round_trips_records() {
    let folder = tempfile::tempdir().unwrap();
    let rows = written(folder.path(), 10);
    let (read, found) = all(folder.path(), false);
    assert_eq!(read, rows);
    assert_eq!((found.first, found.last, found.store), (1, 10, Some([7; 16])));
    assert!(found.errors.is_empty() && !found.is_torn);
    assert_eq!(found.segments.len(), 2);
}

#[test]
fn log_torn_tail_and_damage_are_distinguished() {
    let record = usize::try_from(form::record_bytes(&Rows::from([
        row(1, Some(&[1; 30])),
        row(0, Some(&[1])),
    ])))
    .unwrap();
    for cut in 1..record {
        let folder = tempfile::tempdir().unwrap();
        let rows = written(folder.path(), 10);
        // The last of five records in the second segment.
        let last = 64 + 4 * record;
        change(&path_of(folder.path(), 6), last + cut, |bytes| bytes[..record - cut].fill(0));
        let (read, found) = all(folder.path(), false);
        // The bytes that were replaced with zeros may already have been zeros.
        if found.last == 10 {
            assert!(record - cut <= 8, "{cut}");
            continue;
        }
        assert_eq!(read, rows[..9], "{cut}");
        assert!(found.errors.is_empty() && found.last == 9, "{cut}: {found:?}");
    }
    for (segment, index, number, behind) in [(6, 1, 7, 8), (1, 0, 1, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let rows = written(folder.path(), 10);
        let offset = 64 + index * record;
        change(&path_of(folder.path(), segment), offset + 50, |bytes| bytes[0] ^= 4);
        let (read, found) = all(folder.path(), false);
        let error = Error::Record { segment, offset: offset as u64, number, behind };
        assert_eq!(found.errors, [error]);
        let before = usize::try_from(number).unwrap() - 1;
        assert_eq!(read, rows[..before]);
        let (read, found) = all(folder.path(), true);
        assert_eq!((read.len(), found.last), (9, 10), "all others are read");
    }
}

#[test]
fn log_flipped_byte_before_a_valid_record_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let rows = written(folder.path(), 10);
    for first in [1, 6] {
        let path = path_of(folder.path(), first);
        let whole = fs::read(&path).unwrap();
        let length = usize::try_from(form::record_bytes(&rows[0])).unwrap();
        // In the last segment, no record follows the last record.
        let records = if first == 1 { 5 } else { 4 };
        for at in (0..64 + records * length).step_by(3) {
            change(&path, at, |bytes| bytes[0] ^= 0x20);
            let (read, found) = all(folder.path(), false);
            assert!(!found.errors.is_empty(), "segment {first}, byte {at}");
            assert!(read.len() < 10);
            fs::write(&path, &whole).unwrap();
        }
    }
}

#[test]
fn log_missing_and_foreign_segments_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 10);
    let other = Header { store: [8; 16], nonce: 1, first: 11, checkpoint: 0 };
    fs::write(path_of(folder.path(), 11), other.encode()).unwrap();
    assert_eq!(all(folder.path(), false).1.errors, [Error::Foreign { segment: 11 }]);
    // A segment may be damaged if all of its records are in the tree.
    change(&path_of(folder.path(), 1), 70, |bytes| bytes[0] ^= 1);
    let found = read(folder.path(), 5, false, &mut |_| ()).unwrap();
    assert_eq!((found.first, found.last, found.errors.len()), (6, 10, 1));
    change(&path_of(folder.path(), 1), 70, |bytes| bytes[0] ^= 1);
    let later = Header { store: [7; 16], nonce: 1, first: 12, checkpoint: 0 };
    fs::remove_file(path_of(folder.path(), 11)).unwrap();
    fs::write(path_of(folder.path(), 12), later.encode()).unwrap();
    assert_eq!(all(folder.path(), false).1.errors, [Error::Gap { from: 11, to: 12 }]);
}

#[test]
fn log_old_segments_are_removed_or_recycled() {
    let folder = tempfile::tempdir().unwrap();
    let segments = Arc::new(Segments::new(folder.path().to_path_buf(), Vec::new()));
    let mut log = Log::begin(Arc::clone(&segments), [7; 16], 0, 0).unwrap();
    let big = Rows::from([row(1, Some(&vec![9; 6 << 20]))]);
    for _ in 0..7 {
        log.write(&big, 0, Timestamp::from_micros(1)).unwrap();
    }
    log.sync().unwrap();
    assert_eq!(all(folder.path(), false).1.last, 7);
    let before = all(folder.path(), false).1.segments.len();
    segments.remove_through(5, true).unwrap();
    let (rows, found) = all(folder.path(), false);
    assert!(found.segments.len() < before && found.first <= 6, "{found:?}");
    assert_eq!(found.last, 7);
    assert!(rows.iter().all(|rows| *rows == big));
    // The next segment reuses a file that contained other records. None of the old records may be
    // read.
    log.roll(5, 0).unwrap();
    log.write(&Rows::from([row(2, None)]), 5, Timestamp::from_micros(1)).unwrap();
    let (rows, found) = all(folder.path(), false);
    assert_eq!((rows.last().unwrap().len(), found.last), (1, 8));
    assert!(found.errors.is_empty());
    segments.remove_through(99, false).unwrap();
    assert_eq!(all(folder.path(), false).1.segments.len(), 1);
    remove_leftovers(folder.path()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn log_record_encode_and_decode_are_inverse(
        rows in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..20),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
            0..20,
        ),
        nonce: u32,
        number: u64,
    ) {
        let rows: Rows =
            rows.into_iter().map(|(key, value)| (Key::from_bytes(&key), value)).collect();
        let mut bytes = Vec::new();
        encode(&mut bytes, nonce, number, 1, Timestamp::from_micros(-1), &rows).unwrap();
        prop_assert_eq!(bytes.len() as u64, form::record_bytes(&rows));
        let record = decode(&bytes, 0, nonce).unwrap();
        prop_assert_eq!(record.number, number);
        prop_assert_eq!(record.time.micros(), -1);
        prop_assert_eq!(record.rows(), Some(rows));
    }

    #[test]
    fn log_record_decode_refuses_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        bytes.splice(0..0, *b"rec\x01");
        prop_assert!(decode(&bytes, 0, 7).is_none());
    }
}
