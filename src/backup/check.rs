//! Checking a store: every row can be read, every payload file and every content that a row names is
//! there and is what it was.

use std::collections::HashSet;
use std::fs;
use std::io;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Error;
use super::write::Place;
use crate::domain::file::{Digest, File};
use crate::domain::ids::PayloadId;
use crate::domain::payload::FileRef;
use crate::storage::key;
use crate::storage::record::decode;
use crate::storage::{Record, Table};

/// Faults that one report tells of.
const FAULTS_MAX: usize = 100;
/// The first byte of a record.
const RECORD: u8 = 1;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub rows: u64,
    pub payloads: u64,
    pub files: u64,
    /// Bytes of payloads and files that were read.
    pub bytes: u64,
    /// Sentences, the first hundred.
    pub faults: Vec<String>,
}

impl Report {
    fn fault(&mut self, sentence: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(sentence);
        }
    }
}

/// Reads all that is stored, also behind what cannot be read. Changes nothing. Blocks; for a thread of
/// its own, of a process that does nothing else with the store.
///
/// # Errors
/// When a file of the disk cannot be read; whatever else is wrong is in the report.
pub fn check_store(place: &Place, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut digests: HashSet<[u8; 32]> = HashSet::new();
    let unreadable = place.store.walk(&mut |key, value| {
        report.rows += 1;
        progress(report.rows);
        let table = key.as_bytes().first().copied().unwrap_or_default();
        if table == Table::PayloadFile as u8
            && let Some(id) = key.last_id::<PayloadId>()
        {
            report.payloads += 1;
            if !place.store.payload_path(id).is_file() {
                report.fault(format!("the payload {id} is claimed and not there"));
            }
        }
        if value.first() != Some(&RECORD) || table == Table::Meta as u8 {
            return Ok(());
        }
        // Counters and ids may begin with the same byte; what is no JSON is none of the records.
        let Some(record) = value.get(1..).and_then(|text| serde_json::from_slice(text).ok()) else {
            if value.get(1) == Some(&b'{') {
                let table = key::table_name(key.as_bytes());
                report.fault(format!("the row {key:?} of the table {table} is damaged"));
            }
            return Ok(());
        };
        check_payloads(place, &record, &mut report)?;
        if table == Table::File as u8 {
            match decode::<File>(&value) {
                Err(error) => report.fault(format!("{}: {error}", File::NAME)),
                Ok(file) => {
                    if digests.insert(file.sha256.0) {
                        check_content(place, file.sha256, &mut report)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    for range in unreadable {
        report.fault(range.to_string());
    }
    Ok(report)
}

/// Every payload file that the record names.
fn check_payloads(place: &Place, record: &Value, report: &mut Report) -> io::Result<()> {
    match record {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "file"
                    && let Ok(file) = serde_json::from_value::<FileRef>(value.clone())
                {
                    check_payload(place, file, report)?;
                    continue;
                }
                check_payloads(place, value, report)?;
            }
        }
        Value::Array(items) => {
            for item in items {
                check_payloads(place, item, report)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn check_payload(place: &Place, file: FileRef, report: &mut Report) -> io::Result<()> {
    match fs::read(place.store.payload_path(file.id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.fault(format!("the payload {} is not there", file.id));
        }
        bytes => {
            let bytes = bytes?;
            report.bytes += bytes.len() as u64;
            if bytes.len() as u64 != file.bytes || crc32fast::hash(&bytes) != file.crc32 {
                report.fault(format!("the payload {} is not what was written", file.id));
            }
        }
    }
    Ok(())
}

fn check_content(place: &Place, digest: Digest, report: &mut Report) -> io::Result<()> {
    report.files += 1;
    let mut file = match fs::File::open(place.files.path(digest)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.fault(format!("the bytes of the file {digest} are not there"));
            return Ok(());
        }
        file => file?,
    };
    let mut hash = Sha256::new();
    report.bytes += io::copy(&mut file, &mut hash)?;
    if hash.finalize()[..] != digest.0[..] {
        report.fault(format!("the bytes of the file {digest} are not what was written"));
    }
    Ok(())
}
