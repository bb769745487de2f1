//! Checks a store: every row must be readable, and every payload file and file contents that a row
//! refers to must exist and be unchanged.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Error;
use super::write::Source;
use orrery_domain::file::File;
use orrery_domain::ids::PayloadId;
use orrery_domain::payload::FileRef;
use orrery_storage::key;
use orrery_storage::record::decode;
use orrery_storage::{Key, Record, Row, Table};

/// Maximum number of faults in a report.
const FAULTS_MAX: usize = 100;
/// The first byte of a stored record.
const RECORD: u8 = 1;

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub rows: u64,
    pub payloads: u64,
    pub files: u64,
    /// Number of bytes of payloads and files that were read.
    pub bytes: u64,
    /// The first hundred faults, each as a sentence.
    pub faults: Vec<String>,
    /// Number of rows by table, for a store that cannot be opened.
    pub tables: BTreeMap<String, u64>,
    /// Descriptions of repaired damage.
    pub notes: Vec<String>,
}

impl Report {
    fn fault(&mut self, sentence: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(sentence);
        }
    }
}

/// Reads the entire store, continuing after unreadable parts. Changes nothing. Blocks; call it on
/// its own thread, in a process that does not otherwise use the store.
///
/// # Errors
/// If a file cannot be read; all other problems are in the report.
pub fn check_store(place: &Source, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut digests: HashSet<[u8; 32]> = HashSet::new();
    let unreadable = place.store.walk(&mut |key, value| {
        progress(report.rows + 1);
        check_row(place, &key, &value, &mut digests, &mut report);
        Ok(())
    })?;
    for range in unreadable {
        report.fault(range.to_string());
    }
    Ok(report)
}

/// Checks rows and the payloads and file contents that they refer to, until `bytes_max` bytes of
/// payloads and contents have been read. Changes nothing. Blocks.
#[must_use]
pub fn check_rows(place: &Source, rows: &[Row], bytes_max: u64) -> Report {
    let mut report = Report::default();
    let mut digests = HashSet::new();
    for (key, value) in rows {
        if report.bytes >= bytes_max {
            break;
        }
        check_row(place, key, value, &mut digests, &mut report);
    }
    report
}

/// Checks one row and the data that it refers to. File contents in `digests` have already been
/// checked.
fn check_row(
    place: &Source,
    key: &Key,
    value: &[u8],
    digests: &mut HashSet<[u8; 32]>,
    report: &mut Report,
) {
    report.rows += 1;
    let table = key.as_bytes().first().copied().unwrap_or_default();
    if table == Table::PayloadFile as u8
        && let Some(id) = key.last_id::<PayloadId>()
    {
        report.payloads += 1;
        if !place.store.payload_path(id).is_file() {
            report.fault(format!("the payload {id} is referenced but missing"));
        }
    }
    if value.first() != Some(&RECORD) || table == Table::Meta as u8 {
        return;
    }
    // Counters and ids may start with the same byte; a value that is not JSON is not a record.
    let parsed = value.get(1..).and_then(|text| serde_json::from_slice::<Value>(text).ok());
    let Some(record) = parsed else {
        if value.get(1) == Some(&b'{') {
            let table = key::table_name(key.as_bytes());
            report.fault(format!("the row {key:?} of the table {table} is damaged"));
        }
        return;
    };
    let id = record.get("id").and_then(Value::as_str).unwrap_or("without an id");
    let of = format!("of the record {id} in the table '{}'", char::from(table));
    check_payloads(place, &record, &of, report);
    if table == Table::File as u8 {
        match decode::<File>(value) {
            Err(error) => report.fault(format!("{}: {error}", File::NAME)),
            Ok(file) => {
                if digests.insert(file.sha256.0) {
                    check_content(place, &file, report);
                }
            }
        }
    }
}

/// Checks every payload file that the record refers to.
fn check_payloads(place: &Source, record: &Value, of: &str, report: &mut Report) {
    match record {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "file"
                    && let Ok(file) = serde_json::from_value::<FileRef>(value.clone())
                {
                    check_payload(place, file, of, report);
                    continue;
                }
                check_payloads(place, value, of, report);
            }
        }
        Value::Array(items) => {
            for item in items {
                check_payloads(place, item, of, report);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_payload(place: &Source, file: FileRef, of: &str, report: &mut Report) {
    let id = file.id;
    match fs::read(place.store.payload_path(id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.fault(format!("the payload {id} {of} is missing"));
        }
        Err(error) => report.fault(format!("the payload {id} {of} cannot be read: {error}")),
        Ok(bytes) => {
            report.bytes += bytes.len() as u64;
            if bytes.len() as u64 != file.bytes || crc32fast::hash(&bytes) != file.crc32 {
                report.fault(format!("the payload {id} {of} differs from what was written"));
            }
        }
    }
}

fn check_content(place: &Source, file: &File, report: &mut Report) {
    report.files += 1;
    let id = file.id;
    let digest = file.sha256;
    let mut hash = Sha256::new();
    let read = fs::File::open(place.files.path(digest))
        .and_then(|mut content| io::copy(&mut content, &mut hash));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.fault(format!("the bytes {digest} of the file {id} are missing"));
        }
        Err(error) => {
            report.fault(format!("the bytes {digest} of the file {id} cannot be read: {error}"));
        }
        Ok(bytes) => {
            report.bytes += bytes;
            if hash.finalize()[..] != digest.0[..] {
                report.fault(format!(
                    "the bytes {digest} of the file {id} differ from what was written"
                ));
            }
        }
    }
}
