//! A certificate and its private key: read from PEM files, checked to match, and summarized.
//!
//! This module writes nothing, reads no clock, and never includes key material in an error.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, crypto};
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use super::Error;
use crate::content;
use orrery_domain::time::Timestamp;
use orrery_runtime::regular_file;

/// The largest certificate or key file, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
/// A certificate is about to expire when at most 1/`LAST_PART` of its lifetime is left. Automated
/// renewal happens earlier, regardless of the lifetime.
const LAST_PART: i64 = 10;
/// Permission bits that expose a secret file: any access by others, and write access by the group.
const OPEN_MODE: u32 = 0o027;

/// Summary of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The certificate's host names and IP addresses.
    pub names: Vec<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// Problems for clients or the operator.
    pub concerns: Vec<Concern>,
}

/// A problem with a certificate that can still be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    NotYetValid {
        not_before: Timestamp,
    },
    Ended {
        not_after: Timestamp,
    },
    /// At most a tenth of the certificate's lifetime is left.
    EndsSoon {
        not_after: Timestamp,
    },
    /// The certificate contains at most a common name, which clients no longer read (RFC 9525).
    NoNames,
    /// Users other than the owner can access the private key.
    OpenKey {
        mode: u32,
    },
}

impl Concern {
    /// Returns whether clients reject the certificate because of this concern; otherwise, the
    /// certificate still works.
    #[must_use]
    pub const fn is_refused(self) -> bool {
        match self {
            Self::NotYetValid { .. } | Self::Ended { .. } | Self::NoNames => true,
            Self::EndsSoon { .. } | Self::OpenKey { .. } => false,
        }
    }
}

/// Completes a sentence that starts with "the certificate …".
impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYetValid { not_before } => {
                write!(f, "is not valid before {not_before}: check the machine's clock")
            }
            Self::Ended { not_after } => write!(f, "expired at {not_after}: renew it"),
            Self::EndsSoon { not_after } => write!(f, "expires at {not_after}: renew it"),
            Self::NoNames => f.write_str(
                "names no host: have it issued with the names as subject alternative names",
            ),
            Self::OpenKey { mode } => {
                write!(
                    f,
                    "has a private key of mode {mode:04o}, which other users can read: give it to the \
                     service's user with chown, then run chmod 0600 on it"
                )
            }
        }
    }
}

/// A certificate and private key that can be served.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) names: Vec<String>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    key_mode: u32,
}

impl Pair {
    pub(super) fn summary(&self, now: Timestamp) -> Summary {
        let Self { not_before, not_after, key_mode: mode, .. } = *self;
        let last_part = (not_after.micros() - not_before.micros()) / LAST_PART;
        let mut concerns = Vec::new();
        if now < not_before {
            concerns.push(Concern::NotYetValid { not_before });
        } else if now > not_after {
            concerns.push(Concern::Ended { not_after });
        } else if not_after.micros() - now.micros() <= last_part {
            concerns.push(Concern::EndsSoon { not_after });
        }
        if self.names.is_empty() {
            concerns.push(Concern::NoNames);
        }
        if mode & OPEN_MODE != 0 {
            concerns.push(Concern::OpenKey { mode });
        }
        Summary { names: self.names.clone(), not_before, not_after, concerns }
    }
}

/// Reads a certificate chain and its key.
pub(super) fn read(certificate: &Path, key: &Path) -> Result<Pair, Error> {
    let chain = chain(certificate)?;
    let secret = secret(key)?;
    let first = chain.first().ok_or(Error::NoCertificate { path: certificate.to_path_buf() })?;
    let (names, not_before, not_after) = {
        let parsed = parse(first, certificate)?;
        let validity = parsed.validity();
        let moment = |seconds: i64| Timestamp::from_micros(seconds.saturating_mul(1_000_000));
        let not_before = moment(validity.not_before.timestamp());
        (names_of(&parsed), not_before, moment(validity.not_after.timestamp()))
    };
    let signer = crypto::ring::default_provider()
        .key_provider
        .load_private_key(secret)
        .map_err(|error| Error::Key { path: key.to_path_buf(), reason: error.to_string() })?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        // `Unknown` means that ring cannot compute the key's public half, which cannot happen for
        // the key types that it supports.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            let certificate = certificate.to_path_buf();
            let key = key.to_path_buf();
            return Err(Error::Mismatch { certificate, key });
        }
        Err(error) => return Err(unfit(certificate, &error)),
    }
    let key_mode = metadata(key)?.mode() & 0o777;
    Ok(Pair { certified: Arc::new(certified), names, not_before, not_after, key_mode })
}

/// Returns the certificates in a PEM file, at least one.
pub(super) fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = bytes_of(path)?;
    let chain = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_may_quote_the_file| Error::Pem { path: path.to_path_buf() })?;
    if chain.is_empty() {
        return Err(Error::NoCertificate { path: path.to_path_buf() });
    }
    Ok(chain)
}

/// Parses the certificate `der` from the file at `path`.
pub(super) fn parse<'a>(
    der: &'a CertificateDer<'_>,
    path: &Path,
) -> Result<X509Certificate<'a>, Error> {
    let (_rest, parsed) = X509Certificate::from_der(der).map_err(|error| unfit(path, &error))?;
    Ok(parsed)
}

/// Returns the contents of a certificate or key file.
pub(super) fn bytes_of(path: &Path) -> Result<Vec<u8>, Error> {
    let no_file = || Error::NotAFile { path: path.to_path_buf(), most: BYTES_MAX };
    // The file type is checked before opening, because opening a named pipe would block.
    if !metadata(path)?.is_file() {
        return Err(no_file());
    }
    let mut bytes = Vec::new();
    let read =
        regular_file::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    let count = read.map_err(|error| Error::Read { path: path.to_path_buf(), error })?;
    if u64::try_from(count).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(no_file());
    }
    if let Some(text) = bytes.strip_prefix(content::BYTE_ORDER_MARK) {
        bytes = text.to_vec();
    }
    Ok(bytes)
}

fn metadata(path: &Path) -> Result<fs::Metadata, Error> {
    fs::metadata(path).map_err(|error| Error::Read { path: path.to_path_buf(), error })
}

fn secret(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let bytes = bytes_of(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let path = path.to_path_buf();
        // Both formats of encrypted keys contain this word outside the base64 data: PKCS #8 in the
        // section's name, the older format in a header.
        let is_encrypted = bytes.windows(9).any(|window| window == b"ENCRYPTED");
        if is_encrypted {
            Error::EncryptedKey { path }
        } else if matches!(error, pem::Error::NoItemsFound) {
            Error::NoKey { path }
        } else {
            Error::Pem { path }
        }
    })
}

fn unfit(path: &Path, error: &dyn fmt::Display) -> Error {
    Error::Certificate { path: path.to_path_buf(), reason: error.to_string() }
}

/// Returns the host names and IP addresses of a certificate, with addresses in their shortest form.
fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| {
        if let GeneralName::DNSName(name) = name {
            return Some((*name).to_owned());
        }
        let GeneralName::IPAddress(octets) = name else { return None };
        let v4 = <[u8; 4]>::try_from(*octets).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
        let v6 = <[u8; 16]>::try_from(*octets).map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
        v4.or(v6).ok().map(|address| address.to_string())
    };
    extension.value.general_names.iter().filter_map(name).collect()
}
