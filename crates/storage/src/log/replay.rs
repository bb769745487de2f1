//! Reads the log: returns every complete record in order, and an error for each damaged record.

use std::fs;
use std::io;
use std::path::Path;

use super::form::{self, ALIGN, BadHeader, HEADER_BYTES, Header, Record, StoreId};
use super::{first_of, path_of};

/// An error in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Error {
    /// A segment's header cannot be read.
    Header { segment: u64 },
    /// A newer release wrote the log.
    Newer { format: u32 },
    /// The segment belongs to another store.
    Foreign { segment: u64 },
    /// The record `number` is damaged, but the later record `behind` is complete.
    Record { segment: u64, offset: u64, number: u64, behind: u64 },
    /// The records from `from` until `to` (exclusive) are missing.
    Gap { from: u64, to: u64 },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header { segment } => {
                write!(f, "the header of the log segment {segment:016x} is damaged")
            }
            Self::Newer { format } => write!(f, "the log has format {format}"),
            Self::Foreign { segment } => {
                write!(f, "the log segment {segment:016x} belongs to another store")
            }
            Self::Record { segment, offset, number, behind } => write!(
                f,
                "record {number} is damaged (log segment {segment:016x}, byte {offset}): record \
                 {behind} after it is intact"
            ),
            Self::Gap { from, to } => {
                write!(f, "the log has no records {from} to {}", to.saturating_sub(1))
            }
        }
    }
}

/// The result of reading a log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// The store to which the log belongs; `None` if there are no segments.
    pub store: Option<StoreId>,
    /// The number of the first record, and the number of the last complete record (or `first` minus
    /// 1 if there is no complete record).
    pub first: u64,
    pub last: u64,
    /// The highest checkpoint number in any header or record.
    pub checkpoint: u64,
    /// The time of the last complete record, in microseconds since 1970.
    pub last_micros: Option<i64>,
    /// Whether an incomplete record, whose write was cut off by a crash, follows the last complete
    /// record.
    pub is_torn: bool,
    pub errors: Vec<Error>,
    /// The first record's number and the size of each segment, oldest first.
    pub segments: Vec<(u64, u64)>,
}

/// Passes every complete record to `take`, in order, up to the first error. With `go_on`, also
/// passes the records after errors. Segments that contain only records up to `applied` are skipped:
/// such segments may remain after a crash, and they are not needed. A missing folder counts as an
/// empty log.
pub(crate) fn read(
    folder: &Path,
    applied: u64,
    go_on: bool,
    take: &mut dyn FnMut(&Record<'_>),
) -> io::Result<Found> {
    let mut found = Found { segments: segments(folder)?, ..Found::default() };
    let mut firsts: Vec<u64> = found.segments.iter().map(|(first, _)| *first).collect();
    while let [_, next, ..] = firsts[..] {
        if next > applied.saturating_add(1) {
            break;
        }
        firsts.remove(0);
    }
    found.first = firsts.first().copied().unwrap_or(1);
    found.last = found.first.saturating_sub(1);
    for (at, first) in firsts.iter().enumerate() {
        if !found.errors.is_empty() && !go_on {
            break;
        }
        let bytes = fs::read(path_of(folder, *first))?;
        let next = firsts.get(at + 1).copied();
        read_segment(&bytes, *first, next, go_on, &mut found, take);
    }
    Ok(found)
}

fn read_segment(
    bytes: &[u8],
    segment: u64,
    next: Option<u64>,
    go_on: bool,
    found: &mut Found,
    take: &mut dyn FnMut(&Record<'_>),
) {
    let header = match Header::decode(bytes) {
        Ok(header) if header.first == segment => header,
        Ok(_) | Err(BadHeader::Damaged) => return found.errors.push(Error::Header { segment }),
        Err(BadHeader::Newer(format)) => return found.errors.push(Error::Newer { format }),
    };
    if *found.store.get_or_insert(header.store) != header.store {
        return found.errors.push(Error::Foreign { segment });
    }
    let mut expected = found.last + 1;
    if segment != expected {
        found.errors.push(Error::Gap { from: expected, to: segment });
        if !go_on {
            return;
        }
        expected = segment;
    }
    found.checkpoint = found.checkpoint.max(header.checkpoint);
    let mut at = usize::try_from(HEADER_BYTES).unwrap_or(bytes.len());
    loop {
        match form::decode(bytes, at, header.nonce) {
            Some(record) if record.number == expected => {
                take(&record);
                found.last = record.number;
                found.checkpoint = found.checkpoint.max(record.checkpoint);
                found.last_micros = Some(record.time.micros());
                (at, expected) = (record.end, expected + 1);
            }
            _ => {
                // These bytes are not a record, so the log ends here unless there is a complete
                // record further on.
                let Some(behind) = whole_behind(bytes, at, header.nonce, expected) else { break };
                let error = Error::Record {
                    segment,
                    offset: at as u64,
                    number: expected,
                    behind: behind.number,
                };
                found.errors.push(error);
                if !go_on {
                    return;
                }
                (at, expected) = (behind.at, behind.number);
            }
        }
    }
    match next {
        Some(next) if next != expected => {
            found.errors.push(Error::Gap { from: expected, to: next });
            found.last = next.saturating_sub(1);
        }
        Some(_) => {}
        None => found.is_torn = form::looks_begun(bytes, at),
    }
}

struct Behind {
    at: usize,
    number: u64,
}

/// Returns the first complete record after `at` with a number of at least `expected`.
fn whole_behind(bytes: &[u8], at: usize, nonce: u32, expected: u64) -> Option<Behind> {
    let places = (at..bytes.len()).step_by(ALIGN);
    let whole =
        |at| form::decode(bytes, at, nonce).map(|record| Behind { at, number: record.number });
    places.filter_map(whole).find(|behind| behind.number >= expected)
}

/// Returns the first record's number and the size of each segment, oldest first.
fn segments(folder: &Path) -> io::Result<Vec<(u64, u64)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(first) = entry.file_name().to_str().and_then(first_of) {
            segments.push((first, entry.metadata()?.len()));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}
