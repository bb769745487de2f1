//! Reads a backup entry by entry, and verifies the backup's checksum at the end.

use std::io::{self, BufReader, Cursor, Read};

use super::{
    CHANGES, DAMAGED_MAX, END, Error, FILES, FORMAT, HEAD, Head, PAYLOADS, RECORDS, ROWS, SEAL,
    SEAL_NEXT, Sum, Summary, TLS, damaged_content,
};
use orrery_domain::file::Digest;
use orrery_domain::ids::PayloadId;
use orrery_storage as storage;
use orrery_storage::export::read_change;

/// Maximum size of entries that are read into memory: the head and the end.
const SMALL: u64 = 2 * 1024 * 1024;

/// An entry of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Rows in key order.
    Rows,
    /// Rows written during the export.
    Changes,
    Payload(PayloadId),
    Content(Digest),
    Seal,
    /// The next seal key, during a rotation.
    NextSeal,
    /// A file of the TLS folder, by name.
    Tls(String),
    /// Groups of commits, in a file of the log archive.
    Records,
}

impl Entry {
    fn named(name: &str) -> Option<Self> {
        if name.starts_with(ROWS) {
            return Some(Self::Rows);
        }
        if name.starts_with(CHANGES) {
            return Some(Self::Changes);
        }
        if name.starts_with(RECORDS) {
            return Some(Self::Records);
        }
        if let Some(id) = name.strip_prefix(PAYLOADS) {
            return id.parse().ok().map(Self::Payload);
        }
        if let Some(digest) = name.strip_prefix(FILES) {
            return Digest::parse(digest).map(Self::Content);
        }
        if let Some(name) = name.strip_prefix(TLS) {
            let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
            return is_plain.then(|| Self::Tls(name.to_owned()));
        }
        match name {
            SEAL => Some(Self::Seal),
            SEAL_NEXT => Some(Self::NextSeal),
            _ => None,
        }
    }
}

/// Reads an entire backup and checks every entry, row and checksum. Changes nothing.
///
/// # Errors
/// [`Error::Damaged`] if the file is not a complete backup, or is from a newer release;
/// [`Error::Disk`].
pub fn verify(from: impl Read, progress: &mut dyn FnMut(u64)) -> Result<Summary, Error> {
    let mut bytes = 0;
    let mut other = Vec::new();
    let summary = read(from, &mut |entry, content| {
        match entry {
            Entry::Rows | Entry::Changes => {
                let mut content = BufReader::new(content);
                while let Some((key, value)) = read_change(&mut content)? {
                    bytes += (key.as_bytes().len() + value.map_or(0, |value| value.len())) as u64;
                }
            }
            Entry::Content(digest) => {
                let (read, is_whole) = check_content(*digest, content)?;
                bytes += read;
                if !is_whole && other.len() <= DAMAGED_MAX {
                    other.push(*digest);
                }
            }
            Entry::Records => return Err(not_alone()),
            Entry::Payload(_) | Entry::Seal | Entry::NextSeal | Entry::Tls(_) => {
                bytes += io::copy(content, &mut io::sink())?;
            }
        }
        progress(bytes);
        Ok(())
    })?;
    // The backup lists damage that existed when the backup was made.
    let is_listed = |digest: &Digest| summary.damaged.contains(&damaged_content(*digest));
    match other.iter().find(|digest| !is_listed(digest)) {
        None => Ok(summary),
        Some(digest) => Err(Error::Damaged(format!(
            "the backup is incomplete or damaged: the file {digest} does not match its digest"
        ))),
    }
}

/// Returns the error for a log archive file that was specified in place of a backup.
pub(super) fn not_alone() -> io::Error {
    io::Error::other("it is a log archive file: specify the backup that it follows instead")
}

/// Returns the length of a file's contents, and whether the contents match `digest`.
pub(super) fn check_content(digest: Digest, content: &mut dyn Read) -> io::Result<(u64, bool)> {
    use sha2::{Digest as _, Sha256};
    let mut hash = Sha256::new();
    let bytes = io::copy(content, &mut hash)?;
    Ok((bytes, hash.finalize()[..] == digest.0[..]))
}

/// The magic number of the compressed archive.
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Passes every entry to `visit`. The backup is valid only if this function returns `Ok`.
///
/// # Errors
/// [`Error::Damaged`], and any error of `visit`.
pub(crate) fn read(
    from: impl Read,
    visit: &mut dyn FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
) -> Result<Summary, Error> {
    let damaged =
        |what: String| Error::Damaged(format!("the backup is incomplete or damaged: {what}"));
    let unreadable = |error: io::Error| damaged(error.to_string());
    let mut from = from;
    let mut head = Vec::new();
    from.by_ref().take(ZSTD.len() as u64).read_to_end(&mut head).map_err(unreadable)?;
    if head != ZSTD {
        return Err(damaged("it has no backup header: is it the right file?".to_owned()));
    }
    let decoder = zstd::Decoder::new(Cursor::new(head).chain(from)).map_err(unreadable)?;
    let mut archive = tar::Archive::new(decoder);
    let mut sum = Sum::default();
    let mut store_format = None;
    let mut ended = None;
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let length = entry.size();
        if name == END {
            let summary: Summary = small(&mut entry, length).map_err(unreadable)?;
            if summary.sha256 != sum.hex() || store_format.is_none() {
                return Err(damaged("its content differs from what was written".to_owned()));
            }
            ended = Some(summary);
            break;
        }
        sum.entry(&name, length);
        let mut content = Summing { content: entry, sum: &mut sum };
        if name == HEAD {
            let head: Head = small(&mut content, length).map_err(unreadable)?;
            check_head(&head)?;
            store_format = Some(head.store_format);
            continue;
        }
        let shown: String = name.chars().take(80).collect();
        let known = Entry::named(&name).filter(|_| store_format.is_some());
        let known =
            known.ok_or_else(|| damaged(format!("it contains an unknown entry '{shown}'")))?;
        visit(&known, &mut content).map_err(|error| damaged(format!("{shown}: {error}")))?;
        io::copy(&mut content, &mut io::sink()).map_err(unreadable)?;
    }
    let mut summary: Summary = ended.ok_or_else(|| damaged("it is cut off".to_owned()))?;
    summary.store_format = store_format.unwrap_or_default();
    // Reads to the end of the compressed stream, because the stream has its own checksum.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(unreadable)?;
    Ok(summary)
}

fn check_head(head: &Head) -> Result<(), Error> {
    if head.format > FORMAT || head.store_format > storage::FORMAT {
        let version = &head.version;
        let message = format!(
            "this backup was written by release {version} in a format that this release ({}) does \
             not support: use release {version} or a newer release",
            env!("CARGO_PKG_VERSION")
        );
        return Err(Error::Damaged(message));
    }
    Ok(())
}

fn small<T: serde::de::DeserializeOwned>(content: &mut dyn Read, length: u64) -> io::Result<T> {
    if length > SMALL {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an entry is too large"));
    }
    let mut text = Vec::new();
    content.take(SMALL).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// A reader that hashes an entry while reading it.
struct Summing<'s, R> {
    content: R,
    sum: &'s mut Sum,
}

impl<R: Read> Read for Summing<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.sum.content(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}
