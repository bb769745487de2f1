//! The payload files claimed by the rows of an export, recorded on disk so that memory use does not
//! grow with the store.
//!
//! Rows arrive in key order, so the claims on disk are sorted. The few claims that are written
//! during the export are kept in memory. A claim that was released during the export is still
//! reported, because its file exists as long as the export pins it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::export::Change;
use super::key::Table;
use super::payloads::Claim;
use orrery_domain::ids::{Id, PayloadId};

/// Bytes of one claim on disk: id, whether the length and the checksum are known, length, CRC-32.
const NOTE: usize = 16 + 1 + 8 + 4;

/// The claims of one export.
#[derive(Debug)]
pub struct Claims {
    notes: BufWriter<File>,
    count: u64,
    /// The largest id written to the file so far.
    last: Option<PayloadId>,
    /// Claims that arrived out of order because their rows were written during the export.
    late: BTreeMap<PayloadId, Option<Claim>>,
}

impl Claims {
    /// Creates an empty set of claims, recorded in an unnamed file in `folder`.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let notes = BufWriter::new(tempfile::tempfile_in(folder)?);
        Ok(Self { notes, count: 0, last: None, late: BTreeMap::new() })
    }

    pub(super) fn note(&mut self, (key, value): &Change) -> io::Result<()> {
        if key.as_bytes().first() != Some(&(Table::PayloadFile as u8)) {
            return Ok(());
        }
        let (Some(id), Some(value)) = (key.last_id::<PayloadId>(), value) else { return Ok(()) };
        let claim = Claim::read(value);
        if self.last.is_some_and(|last| id <= last) {
            self.late.insert(id, claim);
            return Ok(());
        }
        let known = claim.unwrap_or(Claim { bytes: 0, crc32: 0 });
        self.notes.write_all(&id.bytes())?;
        self.notes.write_all(&[u8::from(claim.is_some())])?;
        self.notes.write_all(&known.bytes.to_be_bytes())?;
        self.notes.write_all(&known.crc32.to_be_bytes())?;
        self.last = Some(id);
        self.count += 1;
        Ok(())
    }

    /// Calls `give` once for each claimed file, with the length and checksum that the claim
    /// records.
    ///
    /// # Errors
    /// If the claims on disk cannot be read, or `give` fails.
    pub fn each(
        mut self,
        give: &mut dyn FnMut(PayloadId, Option<Claim>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.notes.flush()?;
        let mut notes = self.notes.into_inner().map_err(io::IntoInnerError::into_error)?;
        notes.seek(SeekFrom::Start(0))?;
        let mut notes = BufReader::new(notes);
        let mut note = [0; NOTE];
        for _ in 0..self.count {
            notes.read_exact(&mut note)?;
            let (id, rest) = note.split_first_chunk::<16>().ok_or(io::ErrorKind::InvalidData)?;
            let (is_known, rest) = rest.split_first().ok_or(io::ErrorKind::InvalidData)?;
            let id = PayloadId::from(*id);
            self.late.remove(&id);
            give(id, if *is_known == 1 { Claim::read(rest) } else { None })?;
        }
        for (id, claim) in self.late {
            give(id, claim)?;
        }
        Ok(())
    }
}
